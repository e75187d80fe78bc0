//! From what a Go program would hold to what its JSON encoder writes: zero values left out or put in, field by field.

use serde_json::{Map, Value};

use super::decode::zero;
use crate::graph::{At, Form, Presence, Scalar, Type};

pub(crate) const JSON_SCHEMA_PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Makes a decoded object look as Go writes it.
pub fn encode(at: At, value: &mut Value) {
    match at.ty() {
        Type::Struct(s) => {
            if value.is_null() {
                *value = zero(at);
            }
            let Value::Object(map) = value else { return };
            // What is there first: an object has far fewer members than its type has fields.
            map.retain(|name, value| {
                let Some(field) = s.field(name) else { return true };
                if value.is_null() {
                    // As good as absent: put back below where a field is always written.
                    return false;
                }
                let child = at.to(field.ty);
                encode(child, value);
                field.presence != Presence::NonZero || !is_zero(child, value)
            });
            let needed = |presence| matches!(presence, Presence::Always | Presence::Struct | Presence::Null);
            for field in s.fields.iter().filter(|field| needed(field.presence)) {
                if !map.contains_key(&field.name) {
                    absent(at.to(field.ty), &field.name, field.presence, map);
                }
            }
        }
        Type::Map(m) => {
            if let Value::Object(map) = value {
                map.values_mut().for_each(|value| encode(at.to(m.values), value));
            }
        }
        Type::List(l) => {
            if let Value::Array(items) = value {
                items.iter_mut().for_each(|item| encode(at.to(l.items), item));
            }
        }
        Type::Any => any(at, value),
        Type::Scalar(_) => {}
    }
}

fn absent(at: At, name: &str, presence: Presence, map: &mut Map<String, Value>) {
    match presence {
        Presence::NonZero | Presence::Set => {
            map.remove(name);
        }
        Presence::Always | Presence::Struct => {
            let mut value = zero(at);
            encode(at, &mut value);
            map.insert(name.to_owned(), value);
        }
        Presence::Null => {
            map.insert(name.to_owned(), Value::Null);
        }
    }
}

fn any(at: At, value: &mut Value) {
    let Some(schema) = at.graph.named(JSON_SCHEMA_PROPS) else { return };
    match (at.graph.form(at.id), value) {
        (Some(Form::SchemaOrBool | Form::SchemaOrArray | Form::SchemaOrStrings), value @ Value::Object(_)) => {
            encode(schema, value);
        }
        (Some(Form::SchemaOrArray), Value::Array(items)) => items.iter_mut().for_each(|item| encode(schema, item)),
        _ => {}
    }
}

/// Whether Go would call it empty (`omitempty`) or zero (`omitzero`).
fn is_zero(at: At, value: &Value) -> bool {
    match (at.ty(), value) {
        (_, Value::Null) => true,
        (Type::Struct(s), Value::Object(map)) => map.iter().all(|(key, value)| match s.field(key) {
            Some(field) => match field.presence {
                Presence::Set => false,
                _ => is_zero(at.to(field.ty), value),
            },
            None => false,
        }),
        (Type::Map(_), Value::Object(map)) => map.is_empty(),
        (Type::List(_), Value::Array(items)) => items.is_empty(),
        (Type::Scalar(Scalar::Quantity), Value::String(text)) => text == "0",
        (Type::Scalar(Scalar::IntOrString), Value::String(_)) => false,
        (Type::Scalar(_), Value::String(text)) => text.is_empty(),
        (Type::Scalar(_), Value::Bool(value)) => !value,
        (Type::Scalar(_), Value::Number(number)) => number.as_f64() == Some(0.0),
        _ => false,
    }
}
