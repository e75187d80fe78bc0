//! Reading and changing pods and the objects around them as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::object::{self, Object};
use crate::server::Server;
use crate::stored;
use usher_api::quantity::Quantity;

pub type Resources = BTreeMap<String, Quantity>;

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

pub fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn spec_mut(object: &mut Object) -> &mut Map<String, Value> {
    let spec = object::as_map(object).entry("spec").or_insert_with(|| Value::Object(Map::new()));
    object::as_map(spec)
}

/// The list under `key`, made if it is not there.
pub fn list_mut<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Vec<Value> {
    let value = map.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("made an array above"),
    }
}

/// The map under `key`, made if it is not there.
pub fn map_mut<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    object::as_map(map.entry(key).or_insert_with(|| Value::Object(Map::new())))
}

/// A resource list. What is not a quantity was refused elsewhere and counts as absent.
pub fn resources(value: Option<&Value>) -> Resources {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, amount)| Some((name.clone(), quantity(amount)?))).collect()
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

pub fn stored_object(server: &Server, collection: &str, namespace: &str, name: &str) -> Option<Object> {
    let entry = server.store().get(collection, &stored::key(namespace, name))?;
    serde_json::from_slice(&entry.value).ok()
}

/// All objects of a collection, or those of one namespace, by name.
pub fn stored_objects(server: &Server, collection: &str, namespace: &str) -> Vec<Object> {
    let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    let page = server.store().list(collection, &usher_store::ListOptions { prefix, ..Default::default() });
    page.into_iter().flat_map(|p| p.entries).filter_map(|e| serde_json::from_slice(&e.value).ok()).collect()
}
