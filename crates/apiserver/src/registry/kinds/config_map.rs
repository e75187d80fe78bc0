//! ConfigMaps.

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use std::collections::BTreeMap;
use usher_schema::field::{Errors, Path};

use super::at::At;
use super::common::{each_invalid, is_true};
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::{names, table};

/// The values of a ConfigMap or Secret together.
pub const MAX_BYTES: usize = 1024 * 1024;
pub const FROZEN: &str = "field is immutable when `immutable` is set";
const DATA: At = At::Root("data");
const BINARY_DATA: At = At::Root("binaryData");

pub struct ConfigMaps;

impl Kind for ConfigMaps {
    type Object = ConfigMap;

    fn warns(&self) -> bool {
        false
    }

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "ConfigMap", "configmaps").short(&["cm"])
    }

    fn validate(&self, _cx: &Cx, map: &ConfigMap, errors: &mut Errors) {
        let mut bytes = 0usize;
        for (key, value) in map.data.iter().flatten() {
            each_invalid(names::config_key(key), key, &DATA.key(key), errors);
            if map.binary_data.as_ref().is_some_and(|binary| binary.contains_key(key)) {
                errors.invalid(&DATA.key(key).path(), key.as_str(), "duplicate of key present in binaryData");
            }
            bytes += value.len();
        }
        bytes += validate_binary(map.binary_data.as_ref(), &BINARY_DATA, errors);
        if bytes > MAX_BYTES {
            // The object as a whole is too long.
            errors.too_long(&Path::new("[]"), MAX_BYTES);
        }
    }

    fn validate_update(&self, cx: &Cx, new: &ConfigMap, old: &ConfigMap, errors: &mut Errors) {
        if is_true(old.immutable) {
            if !is_true(new.immutable) {
                errors.forbidden(&Path::new("immutable"), FROZEN);
            }
            if !same_map(&new.data, &old.data) {
                errors.forbidden(&DATA.path(), FROZEN);
            }
            if !same_map(&new.binary_data, &old.binary_data) {
                errors.forbidden(&BINARY_DATA.path(), FROZEN);
            }
        }
        self.validate(cx, new, errors);
    }

    fn columns(&self) -> Vec<Column> {
        vec![table::name_column(), Column::new("Data", "string", 0, "How many keys it holds."), table::age_column()]
    }

    fn cells(&self, map: &ConfigMap, meta: &Value, now: Timestamp) -> Vec<Value> {
        let keys = map.data.as_ref().map_or(0, BTreeMap::len) + map.binary_data.as_ref().map_or(0, BTreeMap::len);
        vec![table::name_cell(meta), keys.into(), table::age_cell(meta, now)]
    }
}

/// Checks the keys and returns the bytes of the values.
pub fn validate_binary(data: Option<&BTreeMap<String, ByteString>>, at: &At, errors: &mut Errors) -> usize {
    let mut bytes = 0;
    for (key, value) in data.into_iter().flatten() {
        each_invalid(names::config_key(key), key, &at.key(key), errors);
        bytes += value.0.len();
    }
    bytes
}

/// Whether two maps are equal; an absent map is an empty one.
pub fn same_map<V: PartialEq>(a: &Option<BTreeMap<String, V>>, b: &Option<BTreeMap<String, V>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b,
        (None, Some(map)) | (Some(map), None) => map.is_empty(),
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create_errors, merged, update_errors};
    use serde_json::json;

    fn map(extra: Value) -> Value {
        let base = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}, "data": {"k": "v"}});
        merged(base, extra)
    }

    #[test]
    fn keys_are_checked() {
        assert!(create_errors(&ConfigMaps, map(json!({"binaryData": {"b.bin": "AAEC"}}))).is_empty());
        assert_eq!(
            create_errors(&ConfigMaps, map(json!({"binaryData": {"k": "AAEC"}}))),
            ["data[k]: Invalid value: \"k\": duplicate of key present in binaryData"]
        );
        let errors = create_errors(&ConfigMaps, map(json!({"data": {"a/b": "x"}, "binaryData": {"c d": ""}})));
        assert!(
            errors[0].starts_with("data[a/b]: Invalid value: \"a/b\": a valid config key must consist of"),
            "{errors:?}"
        );
        assert!(errors[1].starts_with("binaryData[c d]: Invalid value: \"c d\""), "{errors:?}");
    }

    #[test]
    fn the_values_are_limited_together() {
        let half = "x".repeat(MAX_BYTES / 2);
        assert!(create_errors(&ConfigMaps, map(json!({"data": {"a": half, "k": half}}))).is_empty());
        assert_eq!(
            create_errors(&ConfigMaps, map(json!({"data": {"a": half, "b": half}}))),
            ["[]: Too long: may not be more than 1048576 bytes"]
        );
    }

    #[test]
    fn an_immutable_one_keeps_its_data_and_stays_immutable() {
        let old = map(json!({"immutable": true}));
        let update = |extra| update_errors(&ConfigMaps, &Gates::default(), map(extra), old.clone());
        assert!(update(json!({"immutable": true, "metadata": {"labels": {"a": "b"}}})).is_empty());
        assert_eq!(
            update(json!({"data": {"k": "w"}, "binaryData": {"b": ""}})),
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
                "binaryData: Forbidden: field is immutable when `immutable` is set"
            ]
        );
    }

    #[test]
    fn the_data_column_counts_both_bags() {
        assert_eq!(Value::Array(cells(&ConfigMaps, map(json!({"binaryData": {"b": ""}})))), json!(["a", 2, "60m"]));
    }
}
