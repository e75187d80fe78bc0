//! Definitions of the built-in types: shape and rules from `facts/types.txt`, words from `facts/docs.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::{Dialect, GroupVersionKind};
use crate::builtin::{self, Attributes, Definition, FieldLine};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const TYPE_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta";

/// The schema of a built-in type. References in it are in the dialect's style.
pub fn definition(dialect: Dialect, name: &str) -> Option<Value> {
    let mut schema = match CATALOG.definitions.get(name) {
        Some(definition) => of_struct(dialect, definition),
        None => of_leaf(dialect, name)?,
    };
    let docs = CATALOG.docs.get(name);
    match docs.map_or("", |d| d.text) {
        "" => {}
        text => schema["description"] = unescape(text).into(),
    }
    if let Some(gvk) = kind_of(name) {
        schema["x-kubernetes-group-version-kind"] = json!([gvk.to_value()]);
    }
    Some(schema)
}

/// `DeleteOptions` and `WatchEvent` belong to every group of a document, `Status` and its like to core.
pub(super) fn kinds_everywhere(name: &str, groups: &[(&str, &str)]) -> Option<Value> {
    let kind = name.strip_prefix(META).filter(|kind| ["DeleteOptions", "WatchEvent"].contains(kind))?;
    let mut kinds = vec![GroupVersionKind::new("", "v1", kind)];
    kinds.extend(groups.iter().map(|(group, version)| GroupVersionKind::new(group, version, kind)));
    kinds.sort();
    kinds.dedup();
    Some(kinds.iter().map(GroupVersionKind::to_value).collect())
}

fn kind_of(name: &str) -> Option<GroupVersionKind> {
    let kind = builtin::kinds().iter().find(|k| k.definition == name)?;
    let group = if kind.group == builtin::META { "" } else { kind.group };
    Some(GroupVersionKind::new(group, kind.version, kind.kind))
}

struct Catalog {
    definitions: HashMap<&'static str, Definition>,
    docs: HashMap<&'static str, Docs>,
}

#[derive(Default)]
struct Docs {
    text: &'static str,
    fields: HashMap<&'static str, &'static str>,
}

static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog {
    definitions: builtin::facts().definitions.into_iter().map(|d| (d.name, d)).collect(),
    docs: docs(include_str!("../../facts/docs.txt")),
});

fn docs(text: &'static str) -> HashMap<&'static str, Docs> {
    let mut all: HashMap<&'static str, Docs> = HashMap::new();
    let mut current = "";
    for line in text.lines() {
        let indented = line.strip_prefix("  ");
        let (name, text) = indented.unwrap_or(line).split_once(' ').unwrap_or((line, ""));
        if indented.is_some() {
            all.entry(current).or_default().fields.insert(name, text);
        } else {
            current = name;
            all.entry(name).or_default().text = text;
        }
    }
    all
}

/// What is said about `apiVersion`, `kind` and `metadata` of any kind, for those that are not built in.
pub(crate) fn words_for(field: &str) -> String {
    let said = |name: &str| CATALOG.docs.get(name).and_then(|d| d.fields.get(field)).map(|text| unescape(text));
    said("io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta")
        .or_else(|| said("io.k8s.api.core.v1.ConfigMap"))
        .unwrap_or_default()
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            (c, false) => out.push(c),
        }
    }
    out
}

fn of_struct(dialect: Dialect, definition: &Definition) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    collect(dialect, definition, definition.name, &mut properties, &mut required);
    let mut schema = json!({"type": "object"});
    if !properties.is_empty() {
        schema["properties"] = properties.into();
    }
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    if let Some(kind) = definition.attributes.get("map") {
        schema["x-kubernetes-map-type"] = kind.into();
    }
    if let Some(unions) = definition.attributes.json("unions") {
        schema["x-kubernetes-unions"] = unions;
    }
    schema
}

/// A struct's own fields and those of the structs embedded in it. `outer` is where their descriptions stand.
fn collect(
    dialect: Dialect,
    definition: &Definition,
    outer: &str,
    properties: &mut Map<String, Value>,
    required: &mut Vec<Value>,
) {
    for line in &definition.fields {
        properties.insert(line.name.to_owned(), property(dialect, line, describe(outer, definition.name, line.name)));
        if line.attributes.get("required").is_some() {
            required.push(line.name.into());
        }
    }
    for (_, embedded) in &definition.embeds {
        if let Some(embedded) = CATALOG.definitions.get(embedded) {
            collect(dialect, embedded, outer, properties, required);
        }
    }
}

fn describe(outer: &str, own: &str, field: &str) -> Option<String> {
    let text = |definition: &str| CATALOG.docs.get(definition)?.fields.get(field).copied();
    let common = if own == TYPE_META { TYPE_META } else { own };
    text(outer).or_else(|| text(common)).map(unescape)
}

/// kube-openapi ends the description of an enum with its values. What it says about some of them is not among our facts.
fn with_values(mut text: String, values: Option<&Value>) -> String {
    let Some(values) = values.and_then(Value::as_array) else { return text };
    text.push_str("\n\nPossible enum values:");
    for value in values {
        text.push_str(&format!("\n - `{value}`"));
    }
    text
}

fn property(dialect: Dialect, line: &FieldLine, description: Option<String>) -> Value {
    let mut schema = of_type(dialect, line.ty, Some(&line.attributes));
    let mut extra = Map::new();
    let values = line.attributes.json("enum");
    let description = description.map(|text| with_values(text, values.as_ref()));
    extra.extend(description.map(|text| ("description".to_owned(), text.into())));
    extra.extend(values.map(|values| ("enum".to_owned(), values)));
    if dialect == Dialect::V3 {
        extra.extend(line.attributes.json("default").map(|value| ("default".to_owned(), value)));
    }
    patch_rules(&line.attributes, &mut extra);
    let Value::Object(map) = &mut schema else { return schema };
    // OpenAPI 3.0 ignores what stands beside a reference.
    if dialect == Dialect::V3 && !extra.is_empty() && map.contains_key("$ref") {
        schema = json!({"allOf": [schema]});
    }
    if let Value::Object(map) = &mut schema {
        map.append(&mut extra);
    }
    schema
}

fn patch_rules(attributes: &Attributes, extra: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| extra.insert(format!("x-kubernetes-{name}"), value);
    if let Some((kind, keys)) = attributes.get("list").map(|list| list.split_once(':').unwrap_or((list, ""))) {
        put("list-type", kind.into());
        if !keys.is_empty() {
            put("list-map-keys", keys.split(',').collect());
        }
    }
    if let Some(kind) = attributes.get("map") {
        put("map-type", kind.into());
    }
    if let Some((strategy, key)) = attributes.get("patch").map(|patch| patch.split_once(':').unwrap_or((patch, ""))) {
        put("patch-strategy", strategy.into());
        if !key.is_empty() {
            put("patch-merge-key", key.into());
        }
    }
}

fn of_type(dialect: Dialect, text: &str, attributes: Option<&Attributes>) -> Value {
    if let Some(name) = text.strip_prefix('@') {
        return dialect.reference(name);
    }
    let element = |text: &str| {
        let mut schema = of_type(dialect, text, None);
        if let Some(values) = attributes.and_then(|a| a.json("items.enum")) {
            schema["enum"] = values;
        }
        schema
    };
    if let Some(items) = text.strip_prefix("[]") {
        return json!({"type": "array", "items": element(items)});
    }
    if let Some(values) = text.strip_prefix("{}") {
        return json!({"type": "object", "additionalProperties": element(values)});
    }
    let base = text.split('/').next().unwrap_or(text);
    match base {
        "string" => json!({"type": "string"}),
        "bool" => json!({"type": "boolean"}),
        "int32" | "int64" => json!({"type": "integer", "format": base}),
        "double" => json!({"type": "number", "format": "double"}),
        "bytes" => json!({"type": "string", "format": "byte"}),
        other => dialect.reference(LEAVES.iter().find(|(word, _)| *word == other).map_or("", |(_, name)| name)),
    }
}

/// Types with an encoding of their own, which are definitions in OpenAPI, by their word in the facts.
const LEAVES: [(&str, &str); 11] = [
    ("quantity", "io.k8s.apimachinery.pkg.api.resource.Quantity"),
    ("time", "io.k8s.apimachinery.pkg.apis.meta.v1.Time"),
    ("microtime", "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime"),
    ("duration", "io.k8s.apimachinery.pkg.apis.meta.v1.Duration"),
    ("intorstring", "io.k8s.apimachinery.pkg.util.intstr.IntOrString"),
    ("raw", "io.k8s.apimachinery.pkg.runtime.RawExtension"),
    ("fields", "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1"),
    ("json", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON"),
    ("schemaorbool", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool"),
    ("schemaorarray", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray"),
    ("schemaorstrings", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray"),
];

pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

fn of_leaf(dialect: Dialect, name: &str) -> Option<Value> {
    if name == PATCH {
        return Some(json!({"type": "object", "description": "A patch in the format that the content type names."}));
    }
    let (word, _) = LEAVES.iter().find(|(_, leaf)| *leaf == name)?;
    Some(match (*word, dialect) {
        ("quantity", Dialect::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        ("intorstring", Dialect::V3) => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        ("intorstring", Dialect::V2) => json!({"format": "int-or-string", "type": "string"}),
        ("time" | "microtime", _) => json!({"format": "date-time", "type": "string"}),
        ("quantity" | "duration", _) => json!({"type": "string"}),
        ("raw" | "fields", _) => json!({"type": "object"}),
        _ => json!({}),
    })
}
