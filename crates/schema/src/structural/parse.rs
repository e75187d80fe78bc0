//! From the JSON of a `JSONSchemaProps` to [`Props`].
//!
//! The CustomResourceDefinition was decoded before it came here, so wrong JSON types are rare; they are still answered, not
//! assumed away.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::formats::{Format, go_regex};
use super::rules::Rule;
use super::schema::{Additional, Items, MAX_DEPTH, Props, Ty};
use crate::field::{Errors, Path};

pub(super) fn props(schema: &Value, path: &Path, errors: &mut Errors) -> Props {
    node(schema, path, 0, errors)
}

fn node(schema: &Value, path: &Path, depth: usize, errors: &mut Errors) -> Props {
    let Value::Object(map) = schema else {
        errors.invalid(path, schema.clone(), "must be a schema object");
        return Props::default();
    };
    if depth > MAX_DEPTH {
        errors.invalid(path, "", format!("must not nest deeper than {MAX_DEPTH} levels"));
        return Props::default();
    }
    let mut read = Reader { map, path, errors };
    let mut out = Props {
        described: !read.string("description").is_empty(),
        titled: !read.string("title").is_empty(),
        nullable: read.flag("nullable"),
        default: map.get("default").filter(|v| !v.is_null()).cloned(),
        format_name: read.string("format"),
        maximum: read.number("maximum"),
        exclusive_maximum: read.flag("exclusiveMaximum"),
        minimum: read.number("minimum"),
        exclusive_minimum: read.flag("exclusiveMinimum"),
        max_length: read.count("maxLength"),
        min_length: read.count("minLength"),
        pattern: read.string("pattern"),
        max_items: read.count("maxItems"),
        min_items: read.count("minItems"),
        unique_items: read.flag("uniqueItems"),
        multiple_of: read.number("multipleOf"),
        max_properties: read.count("maxProperties"),
        min_properties: read.count("minProperties"),
        required: read.strings("required"),
        allowed: read.list("enum").to_vec(),
        preserve_unknown: map.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool),
        embedded: read.flag("x-kubernetes-embedded-resource"),
        int_or_string: read.flag("x-kubernetes-int-or-string"),
        list_type: read.optional_string("x-kubernetes-list-type"),
        map_keys: read.strings("x-kubernetes-list-map-keys"),
        map_type: read.optional_string("x-kubernetes-map-type"),
        only_type: map.len() == 1 && map.contains_key("type"),
        only_structure: map.keys().all(|k| matches!(k.as_str(), "type" | "properties" | "default")),
        ..Props::default()
    };
    out.ty_name = read.string("type");
    out.ty = ty(&out.ty_name);
    out.unsupported = unsupported(map);
    out.rules = read.list("x-kubernetes-validations").iter().map(Rule::declared).collect();
    out.regex = go_regex(&out.pattern).ok().filter(|_| !out.pattern.is_empty());
    out.format = Format::supported(&out.format_name, if out.int_or_string { Ty::Unset } else { out.ty });
    children(map, path, depth, errors, &mut out);
    out.summarise();
    out
}

fn children(map: &Map<String, Value>, path: &Path, depth: usize, errors: &mut Errors, out: &mut Props) {
    if let Some(fields) = map.get("properties").filter(|v| !v.is_null()) {
        let at = path.child("properties");
        out.properties = match fields {
            Value::Object(fields) => {
                fields.iter().map(|(name, s)| (name.clone(), node(s, &at.key(name), depth + 1, errors))).collect()
            }
            other => {
                errors.invalid(&at, other.clone(), "must be an object");
                BTreeMap::new()
            }
        };
    }
    out.additional = match map.get("additionalProperties") {
        None | Some(Value::Null) => Additional::Absent,
        Some(Value::Bool(allowed)) => Additional::Allowed(*allowed),
        Some(s) => Additional::Schema(Box::new(node(s, &path.child("additionalProperties"), depth + 1, errors))),
    };
    out.items = match map.get("items") {
        None | Some(Value::Null) => Items::Absent,
        Some(Value::Array(_)) => Items::Several,
        Some(s) => Items::Schema(Box::new(node(s, &path.child("items"), depth + 1, errors))),
    };
    let mut junctor = |name: &str| -> Vec<Props> {
        let at = path.child(name);
        let list = map.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().map(|(i, s)| node(s, &at.index(i), depth + 1, errors)).collect()
    };
    out.all_of = junctor("allOf");
    out.any_of = junctor("anyOf");
    out.one_of = junctor("oneOf");
    out.not = map
        .get("not")
        .filter(|v| !v.is_null())
        .map(|s| Box::new(node(s, &path.child("not"), depth + 1, errors)));
}

fn ty(name: &str) -> Ty {
    match name {
        "" => Ty::Unset,
        "object" => Ty::Object,
        "array" => Ty::Array,
        "string" => Ty::String,
        "integer" => Ty::Integer,
        "number" => Ty::Number,
        "boolean" => Ty::Boolean,
        _ => Ty::Other,
    }
}

fn unsupported(map: &Map<String, Value>) -> Vec<&'static str> {
    const KEYWORDS: [&str; 7] =
        ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"];
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::String(s) => !s.is_empty(),
        Value::Object(o) => !o.is_empty(),
        _ => true,
    };
    KEYWORDS.into_iter().filter(|k| map.get(*k).is_some_and(says)).collect()
}

struct Reader<'a> {
    map: &'a Map<String, Value>,
    path: &'a Path,
    errors: &'a mut Errors,
}

impl<'a> Reader<'a> {
    fn get<T>(&mut self, name: &str, want: &str, read: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.map.get(name).filter(|v| !v.is_null())?;
        let out = read(value);
        if out.is_none() {
            self.errors.invalid(&self.path.child(name), value.clone(), format!("must be {want}"));
        }
        out
    }

    fn string(&mut self, name: &str) -> String {
        self.optional_string(name).unwrap_or_default()
    }

    fn optional_string(&mut self, name: &str) -> Option<String> {
        self.get(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    fn flag(&mut self, name: &str) -> bool {
        self.get(name, "a boolean", Value::as_bool).unwrap_or(false)
    }

    fn number(&mut self, name: &str) -> Option<f64> {
        self.get(name, "a number", Value::as_f64)
    }

    fn count(&mut self, name: &str) -> Option<i64> {
        self.get(name, "an integer", Value::as_i64)
    }

    fn list(&mut self, name: &str) -> &'a [Value] {
        self.get(name, "a list", |v| v.as_array().map(Vec::as_slice)).unwrap_or(&[])
    }

    fn strings(&mut self, name: &str) -> Vec<String> {
        let list = self.list(name);
        let out: Vec<String> = list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect();
        if out.len() != list.len() {
            self.errors.invalid(&self.path.child(name), Value::from(list), "must be a list of strings");
        }
        out
    }
}
