//! Reading and writing the metadata of an object that is a JSON value.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// An API object in the form the REST layer works on.
pub type Object = Value;

/// `metadata.<field>` as a string, or "".
pub fn meta_str<'a>(object: &'a Object, field: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or("")
}

pub fn name(object: &Object) -> &str {
    meta_str(object, "name")
}

pub fn namespace(object: &Object) -> &str {
    meta_str(object, "namespace")
}

pub fn uid(object: &Object) -> &str {
    meta_str(object, "uid")
}

pub fn generation(object: &Object) -> i64 {
    object.get("metadata").and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0)
}

pub fn is_deleting(object: &Object) -> bool {
    !meta_str(object, "deletionTimestamp").is_empty()
}

pub fn deletion_grace_secs(object: &Object) -> Option<i64> {
    object.get("metadata").and_then(|m| m.get("deletionGracePeriodSeconds")).and_then(Value::as_i64)
}

pub fn finalizers(object: &Object) -> Vec<&str> {
    object
        .get("metadata")
        .and_then(|m| m.get("finalizers"))
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// The metadata, made if it is missing or not an object.
pub fn meta_mut(object: &mut Object) -> &mut Map<String, Value> {
    let root = as_map(object);
    as_map(root.entry("metadata").or_insert_with(|| Value::Object(Map::new())))
}

/// The value as an object, replaced by an empty one if it is something else.
pub fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// Sets or, with an empty text, removes a metadata field.
pub fn set_meta_str(object: &mut Object, field: &str, text: &str) {
    let meta = meta_mut(object);
    if text.is_empty() {
        meta.remove(field);
    } else {
        meta.insert(field.to_owned(), text.into());
    }
}

pub fn set_finalizers(object: &mut Object, finalizers: &[String]) {
    let meta = meta_mut(object);
    if finalizers.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".to_owned(), finalizers.to_vec().into());
    }
}

/// `metav1.Time` on the wire: whole seconds in UTC.
pub fn time(at: Timestamp) -> String {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(at);
    format!("{whole}")
}

pub fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}
