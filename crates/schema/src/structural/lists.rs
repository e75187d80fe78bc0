//! Lists of type `set` and `map`: no item, or no item's keys, twice.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::schema::{At, Props};
use super::values::compare;
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
                    for i in repeated(&list.iter().map(Some).collect::<Vec<_>>(), 1) {
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
    let keys = list.iter().flat_map(|item| props.map_keys.iter().map(move |key| item.get(key)));
    for i in repeated(&keys.collect::<Vec<_>>(), props.map_keys.len()) {
        errors.duplicate(&at.index(i).path(&Path::default()), keys_of(&list[i], &props.map_keys));
    }
}

fn keys_of(item: &Value, keys: &[String]) -> Value {
    let get = |key: &String| item.get(key).map(|value| (key.clone(), value.clone()));
    Value::Object(keys.iter().filter_map(get).collect::<Map<_, _>>())
}

/// The index of each second appearance of an identity, of which `identities` has `width` parts for each item. Nothing is
/// copied: lists are checked on every write.
fn repeated(identities: &[Option<&Value>], width: usize) -> Vec<usize> {
    let of = |i: usize| &identities[i * width..(i + 1) * width];
    let order = |a: &usize, b: &usize| compare_parts(of(*a), of(*b));
    let mut sorted: Vec<usize> = (0..identities.len() / width.max(1)).collect();
    // Equal ones stay in their order.
    sorted.sort_by(order);
    let groups = sorted.chunk_by(|a, b| order(a, b).is_eq());
    let mut out: Vec<usize> = groups.filter_map(|same| same.get(1)).copied().collect();
    out.sort_unstable();
    out
}

fn compare_parts(a: &[Option<&Value>], b: &[Option<&Value>]) -> Ordering {
    let parts = a.iter().zip(b).map(|parts| match parts {
        (Some(a), Some(b)) => compare(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    });
    parts.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}
