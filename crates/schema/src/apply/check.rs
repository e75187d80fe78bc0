//! Whether an applied configuration fits its type, in the words that upstream's typed values use. The configuration is
//! checked before it is merged because afterwards nobody could tell whose mistake it was.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::field::quote;
use crate::fieldset::{Element, MAX_DEPTH, identify};
use crate::graph::{At, List, Scalar, Topology, Type};

/// Everything wrong with the configuration, as one text; empty when it is fine.
pub(crate) fn check(at: At<'_>, config: &Value) -> Result<(), String> {
    let mut wrong = Vec::new();
    let mut path = String::new();
    match config {
        Value::Object(map) => fields(at, map, &mut path, 0, &mut wrong),
        other => wrong.push(format!("expected map, got &{{{}}}", plain(other))),
    }
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(many.iter().fold("errors:".to_owned(), |text, one| text + "\n  " + one)),
    }
}

fn value(at: At<'_>, value: &Value, path: &mut String, depth: usize, wrong: &mut Vec<String>) {
    if value.is_null() || depth > MAX_DEPTH {
        return;
    }
    let mut say = |what: String| wrong.push(if path.is_empty() { what } else { format!("{path}: {what}") });
    match at.ty() {
        Type::Any => {}
        Type::Scalar(scalar) => {
            if let Some(what) = scalar_mismatch(*scalar, value) {
                say(what);
            }
        }
        Type::Struct(_) | Type::Map(_) => match value {
            Value::Object(map) => fields(at, map, path, depth, wrong),
            other => say(format!("expected map, got &{{{}}}", plain(other))),
        },
        Type::List(list) => match value {
            Value::Array(array) => items(at, list, array, path, depth, wrong),
            other => say(format!("expected list, got &{{{}}}", plain(other))),
        },
    }
}

fn fields(at: At<'_>, map: &Map<String, Value>, path: &mut String, depth: usize, wrong: &mut Vec<String>) {
    for (key, child) in map {
        let length = path.len();
        path.push('.');
        path.push_str(key);
        let type_meta = depth == 0 && (key == "apiVersion" || key == "kind");
        match (at.child(key), at.ty()) {
            (Some(to), _) => value(to, child, path, depth + 1, wrong),
            (None, Type::Struct(s)) if s.preserve_unknown || type_meta => {}
            (None, _) => {
                wrong.push(format!("{path}: field not declared in schema"));
                path.truncate(length);
                return; // upstream looks no further in this object
            }
        }
        path.truncate(length);
    }
}

fn items(at: At<'_>, list: &List, array: &[Value], path: &mut String, depth: usize, wrong: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, item) in array.iter().enumerate() {
        let element = match &list.topology {
            Topology::Atomic => Element::Index(i64::try_from(i).unwrap_or(i64::MAX)),
            Topology::Set | Topology::Map { .. } => match identify(list, item) {
                Ok(element) => element,
                Err(e) => {
                    wrong.push(format!("{path}: element {i}: {e}"));
                    return;
                }
            },
        };
        let length = path.len();
        if !matches!(element, Element::Index(_)) {
            if seen.contains(&element) {
                wrong.push(format!("{path}: duplicate entries for key {element}"));
            } else {
                seen.insert(element.clone());
            }
        }
        path.push_str(&element.to_string());
        value(at.to(list.items), item, path, depth + 1, wrong);
        path.truncate(length);
    }
}

fn scalar_mismatch(scalar: Scalar, value: &Value) -> Option<String> {
    match scalar {
        Scalar::String | Scalar::Bytes | Scalar::Duration => (!value.is_string())
            .then(|| format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value))),
        Scalar::Bool => (!value.is_boolean()).then(|| format!("expected boolean, got &{{{}}}", plain(value))),
        Scalar::Int32 | Scalar::Int64 | Scalar::Double => {
            (!value.is_number()).then(|| format!("expected numeric (int or float), got {}", go_type(value)))
        }
        Scalar::Quantity | Scalar::IntOrString | Scalar::Time | Scalar::MicroTime => {
            (value.is_array() || value.is_object()).then(|| format!("expected any scalar, got &{{{}}}", plain(value)))
        }
    }
}

/// Go's name for the type that JSON is decoded to.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value in Go's `%v` form.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", plain(v))).collect();
            format!("map[{}]", entries.join(" "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A value in Go's `%#v` form.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(s) => quote(s),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let entries: Vec<String> = map.iter().map(|(k, v)| format!("{}:{}", quote(k), go_syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
