//! From the JSON of a `JSONSchemaProps` to [`Props`].
//!
//! The CustomResourceDefinition was decoded before it came here, so wrong JSON types are rare; they are still answered, not
//! assumed away.

use serde_json::{Map, Value};

use super::formats::{Format, go_regex};
use super::rules::Rule;
use super::schema::{Additional, Items, MAX_DEPTH, Props, Ty};
use crate::field::{Errors, Path};

pub(super) fn props(schema: &Value, path: &Path, errors: &mut Errors) -> Props {
    *node(schema, path, 0, errors)
}

/// Boxed and filled in place: this recurses, and a node is large.
fn node(schema: &Value, path: &Path, depth: usize, errors: &mut Errors) -> Box<Props> {
    let mut out = Box::<Props>::default();
    match schema {
        Value::Object(_) if depth > MAX_DEPTH => {
            errors.invalid(path, "", format!("must not nest deeper than {MAX_DEPTH} levels"));
        }
        Value::Object(map) => {
            own(map, path, errors, &mut out);
            children(map, path, depth, errors, &mut out);
            out.summarise();
        }
        other => errors.invalid(path, other.clone(), "must be a schema object"),
    }
    out
}

fn own(map: &Map<String, Value>, path: &Path, errors: &mut Errors, out: &mut Props) {
    let mut read = Reader { map, path, errors };
    out.described = !read.string("description").is_empty();
    out.titled = !read.string("title").is_empty();
    out.nullable = read.flag("nullable");
    out.default = map.get("default").filter(|v| !v.is_null()).cloned();
    out.maximum = read.number("maximum");
    out.exclusive_maximum = read.flag("exclusiveMaximum");
    out.minimum = read.number("minimum");
    out.exclusive_minimum = read.flag("exclusiveMinimum");
    out.max_length = read.count("maxLength");
    out.min_length = read.count("minLength");
    out.max_items = read.count("maxItems");
    out.min_items = read.count("minItems");
    out.unique_items = read.flag("uniqueItems");
    out.multiple_of = read.number("multipleOf");
    out.max_properties = read.count("maxProperties");
    out.min_properties = read.count("minProperties");
    out.required = read.strings("required");
    out.allowed = read.list("enum").to_vec();
    out.preserve_unknown = map.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool);
    out.embedded = read.flag("x-kubernetes-embedded-resource");
    out.int_or_string = read.flag("x-kubernetes-int-or-string");
    out.list_type = read.optional_string("x-kubernetes-list-type");
    out.map_keys = read.strings("x-kubernetes-list-map-keys");
    out.map_type = read.optional_string("x-kubernetes-map-type");
    out.only_type = map.len() == 1 && map.contains_key("type");
    out.only_structure = map.keys().all(|k| matches!(k.as_str(), "type" | "properties" | "default"));
    out.ty_name = read.string("type");
    out.ty = ty(&out.ty_name);
    out.format_name = read.string("format");
    out.format = Format::supported(&out.format_name, if out.int_or_string { Ty::Unset } else { out.ty });
    out.pattern = read.string("pattern");
    out.regex = go_regex(&out.pattern).ok().filter(|_| !out.pattern.is_empty());
    out.rules = read.list("x-kubernetes-validations").iter().map(Rule::declared).collect();
    out.unsupported = unsupported(map);
}

fn children(map: &Map<String, Value>, path: &Path, depth: usize, errors: &mut Errors, out: &mut Props) {
    match map.get("properties") {
        None | Some(Value::Null) => {}
        Some(Value::Object(fields)) => {
            let at = path.child("properties");
            for (name, schema) in fields {
                out.properties.insert(name.clone(), *node(schema, &at.key(name), depth + 1, errors));
            }
        }
        Some(other) => errors.invalid(&path.child("properties"), other.clone(), "must be an object"),
    }
    out.additional = match map.get("additionalProperties") {
        None | Some(Value::Null) => Additional::Absent,
        Some(Value::Bool(allowed)) => Additional::Allowed(*allowed),
        Some(schema) => Additional::Schema(node(schema, &path.child("additionalProperties"), depth + 1, errors)),
    };
    out.items = match map.get("items") {
        None | Some(Value::Null) => Items::Absent,
        Some(Value::Array(_)) => Items::Several,
        Some(schema) => Items::Schema(node(schema, &path.child("items"), depth + 1, errors)),
    };
    for (name, branches) in [("allOf", &mut out.all_of), ("anyOf", &mut out.any_of), ("oneOf", &mut out.one_of)] {
        let at = path.child(name);
        let list = map.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (i, schema) in list.iter().enumerate() {
            branches.push(*node(schema, &at.index(i), depth + 1, errors));
        }
    }
    if let Some(schema) = map.get("not").filter(|v| !v.is_null()) {
        out.not = Some(node(schema, &path.child("not"), depth + 1, errors));
    }
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
