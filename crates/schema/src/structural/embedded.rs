//! Resources inside a custom resource (`x-kubernetes-embedded-resource`): their `apiVersion` and `kind`, and which fields
//! their `metadata` may have. The values in `metadata` are the server's to check: see [`Structural::embedded`].
//!
//! [`Structural::embedded`]: super::Structural::embedded

use serde_json::{Map, Value};
use usher_api::names;

use super::schema::{At, Props};
use crate::field::{Errors, Path};

const META_FIELDS: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

pub(super) fn prune_metadata(meta: &mut Value, at: &At, unknown: &mut Vec<String>) {
    if let Value::Object(map) = meta {
        map.retain(|key, _| {
            let known = META_FIELDS.contains(&key.as_str());
            if !known {
                unknown.push(at.field(key).dotted());
            }
            known
        });
    }
}

/// Visits every embedded resource that the schema declares, outermost first.
pub(super) fn each(value: &Value, props: &Props, at: &At, visit: &mut dyn FnMut(&At, &Map<String, Value>)) {
    if !props.below.embedded {
        return;
    }
    match value {
        Value::Object(map) => {
            if props.embedded {
                visit(at, map);
            }
            for (key, child) in map {
                match props.child(key) {
                    Some((schema, true)) => each(child, schema, &at.field(key), visit),
                    Some((schema, false)) => each(child, schema, &at.key(key), visit),
                    None => {}
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = props.items() {
                for (i, item) in list.iter().enumerate() {
                    each(item, items, &at.index(i), visit);
                }
            }
        }
        _ => {}
    }
}

pub(super) fn validate(value: &Value, props: &Props, base: &Path, errors: &mut Errors) {
    each(value, props, &At::Root, &mut |at, map| resource(&at.path(base), map, errors));
}

fn resource(path: &Path, map: &Map<String, Value>, errors: &mut Errors) {
    for name in ["apiVersion", "kind"] {
        let at = path.child(name);
        match map.get(name) {
            None => errors.required(&at, ""),
            Some(Value::String(s)) if s.is_empty() => errors.invalid(&at, "", "must not be empty"),
            Some(Value::String(s)) if name == "kind" => {
                let problems = names::dns1035_label(&s.to_lowercase(), false);
                if !problems.is_empty() {
                    let detail = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
                    errors.invalid(&at, s.as_str(), detail);
                }
            }
            Some(Value::String(s)) => {
                if s.matches('/').count() > 1 {
                    errors.invalid(&at, s.as_str(), format!("unexpected GroupVersion string: {s}"));
                }
            }
            Some(other) => errors.invalid(&at, other.clone(), "must be a string"),
        }
    }
    if let Some(meta) = map.get("metadata").filter(|m| !m.is_object() && !m.is_null()) {
        errors.invalid(&path.child("metadata"), meta.clone(), "must be an object");
    }
}
