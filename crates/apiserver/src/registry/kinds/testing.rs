//! What the tests of the kinds share: running one kind's hooks in the server's order on JSON.

use serde_json::Value;
use usher_env::Ids;
use usher_schema::field::Errors;

use crate::registry::kind::{Cx, Gates, Kind};

pub fn cx<R>(gates: &Gates, run: impl FnOnce(&Cx) -> R) -> R {
    let ids = Ids::seeded(1);
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    run(&Cx { now, ids: &ids, gates, user: "alice", namespace: "default" })
}

fn decode<K: Kind>(kind: &K, value: Value) -> K::Object {
    let mut object: K::Object = serde_json::from_value(value).unwrap();
    kind.default(&mut object);
    object
}

fn texts(errors: Errors) -> Vec<String> {
    errors.0.iter().map(ToString::to_string).collect()
}

/// The object as it would be stored, and what is wrong with it.
pub fn create<K: Kind>(kind: &K, value: Value) -> (Value, Vec<String>) {
    cx(&Gates::default(), |cx| {
        let mut object = decode(kind, value);
        kind.prepare_create(cx, &mut object);
        let mut errors = Errors::new();
        kind.validate(cx, &object, &mut errors);
        (serde_json::to_value(&object).unwrap(), texts(errors))
    })
}

pub fn create_errors<K: Kind>(kind: &K, value: Value) -> Vec<String> {
    create(kind, value).1
}

pub fn update_errors<K: Kind>(kind: &K, gates: &Gates, new: Value, old: Value) -> Vec<String> {
    cx(gates, |cx| {
        let (mut new, old) = (decode(kind, new), decode(kind, old));
        kind.prepare_update(cx, &mut new, &old);
        let mut errors = Errors::new();
        kind.validate_update(cx, &new, &old, &mut errors);
        texts(errors)
    })
}

pub fn status_errors<K: Kind>(kind: &K, new: Value, old: Value) -> Vec<String> {
    cx(&Gates::default(), |cx| {
        let (mut new, old) = (decode(kind, new), decode(kind, old));
        kind.prepare_status_update(cx, &mut new, &old);
        let mut errors = Errors::new();
        kind.validate_status_update(cx, &new, &old, &mut errors);
        texts(errors)
    })
}

/// The cells of an object created on 2026-01-01, seen an hour later.
pub fn cells<K: Kind>(kind: &K, value: Value) -> Vec<Value> {
    let object = decode(kind, value);
    let meta = serde_json::to_value(&object).unwrap()["metadata"].clone();
    kind.cells(&object, &meta, "2026-01-01T01:00:00Z".parse().unwrap())
}

/// `base` with the fields of `extra` laid over it, at any depth; `null` removes.
pub fn merged(mut base: Value, extra: Value) -> Value {
    json_patch::merge(&mut base, &extra);
    base
}
