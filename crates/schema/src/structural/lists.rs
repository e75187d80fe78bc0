//! Lists of type `set` and `map`: no item, or no item's keys, twice.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::schema::{At, Props};
use crate::field::{Errors, Path};

pub(super) fn validate(value: &Value, props: &Props, errors: &mut Errors) {
    walk(value, props, &At::Root, errors);
}

fn walk(value: &Value, props: &Props, at: &At, errors: &mut Errors) {
    if !props.below.keyed_lists {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match props.child(key) {
                    Some((child, true)) => walk(value, child, &at.field(key), errors),
                    Some((child, false)) => walk(value, child, &at.key(key), errors),
                    None => {}
                }
            }
        }
        Value::Array(list) => {
            match props.list_type.as_deref() {
                Some("set") => {
                    for i in repeated(list) {
                        errors.duplicate(&at.index(i).path(&Path::default()), list[i].clone());
                    }
                }
                Some("map") => keyed(list, props, at, errors),
                _ => {}
            }
            if let Some(items) = props.items() {
                for (i, item) in list.iter().enumerate() {
                    walk(item, items, &at.index(i), errors);
                }
            }
        }
        _ => {}
    }
}

fn keyed(list: &[Value], props: &Props, at: &At, errors: &mut Errors) {
    if let Some(i) = list.iter().position(|item| !item.is_object() && !item.is_null()) {
        let path = at.index(i).path(&Path::default());
        errors.invalid(&path, list[i].clone(), "must be an object for an array of list-type map");
        return;
    }
    if list.len() < 2 {
        return;
    }
    let keys: Vec<Value> = list.iter().map(|item| keys_of(item, &props.map_keys)).collect();
    for i in repeated(&keys) {
        errors.duplicate(&at.index(i).path(&Path::default()), keys[i].clone());
    }
}

fn keys_of(item: &Value, keys: &[String]) -> Value {
    let get = |key: &String| item.get(key).map(|value| (key.clone(), value.clone()));
    Value::Object(keys.iter().filter_map(get).collect::<Map<_, _>>())
}

/// The index of each value's second appearance.
fn repeated(list: &[Value]) -> Vec<usize> {
    if list.len() < 2 {
        return Vec::new();
    }
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(list.len());
    let mut out = Vec::new();
    for (i, value) in list.iter().enumerate() {
        let times = seen.entry(value.to_string()).or_insert(0);
        *times += 1;
        if *times == 2 {
            out.push(i);
        }
    }
    out
}
