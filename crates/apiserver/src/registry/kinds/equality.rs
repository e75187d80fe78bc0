//! Kubernetes' "semantic" equality, which update rules compare with.
//!
//! An empty list or map equals an absent one and quantities compare by value, so that an edit that changes nothing is not
//! refused. Structs are not touched: `emptyDir: {}` is not the same as no `emptyDir`.

use serde::Serialize;
use serde_json::Value;
use usher_api::quantity::Quantity;

/// Fields that are maps in the Go types (as opposed to structs, whose presence means something even when empty).
const MAPS: [&str; 16] = [
    "labels",
    "annotations",
    "nodeSelector",
    "matchLabels",
    "limits",
    "requests",
    "overhead",
    "volumeAttributes",
    "options",
    "userAnnotations",
    "data",
    "binaryData",
    "allocatedResources",
    "capacity",
    "allocatable",
    "hard",
];
const QUANTITY_MAPS: [&str; 5] = ["limits", "requests", "overhead", "capacity", "hard"];
const QUANTITIES: [&str; 2] = ["sizeLimit", "divisor"];

/// Whether two values of one type mean the same.
pub fn semantic_eq<T: PartialEq + Serialize>(a: &T, b: &T) -> bool {
    if a == b {
        return true;
    }
    let normal = |value: &T| {
        serde_json::to_value(value).map(|mut value| {
            normalize(&mut value);
            value
        })
    };
    matches!((normal(a), normal(b)), (Ok(a), Ok(b)) if a == b)
}

fn normalize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if QUANTITY_MAPS.contains(&name.as_str()) {
                    field.as_object_mut().into_iter().flatten().for_each(|(_, v)| canonicalize(v));
                } else if QUANTITIES.contains(&name.as_str()) {
                    canonicalize(field);
                } else if !MAPS.contains(&name.as_str()) {
                    normalize(field);
                }
            }
            fields.retain(|name, field| match field {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(map) => !(map.is_empty() && MAPS.contains(&name.as_str())),
                _ => true,
            });
        }
        _ => {}
    }
}

fn canonicalize(value: &mut Value) {
    let parsed = match value {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => return,
    };
    if let Ok(quantity) = parsed {
        // 1024 and 1Ki are equal but print differently, so compare plain units.
        *value = Value::String(quantity.nanos().to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::json;

    fn equal(a: Value, b: Value) -> bool {
        let spec = |v| serde_json::from_value::<PodSpec>(v).unwrap();
        semantic_eq(&spec(a), &spec(b))
    }

    #[test]
    fn empty_collections_and_differently_written_quantities_are_equal() {
        assert!(equal(json!({"containers": [], "nodeSelector": {}, "tolerations": []}), json!({"containers": []})));
        let with = |limits: Value| json!({"containers": [{"name": "a", "resources": {"limits": limits}}]});
        assert!(equal(with(json!({"cpu": "1", "memory": "1Ki"})), with(json!({"cpu": "1000m", "memory": 1024}))));
        assert!(!equal(with(json!({"cpu": "1"})), with(json!({"cpu": "2"}))));
        assert!(!equal(with(json!({"cpu": "1"})), with(json!({}))));
    }

    #[test]
    fn an_empty_struct_is_not_an_absent_one() {
        let volume = |source: Value| json!({"containers": [], "volumes": [source]});
        assert!(!equal(volume(json!({"name": "v", "emptyDir": {}})), volume(json!({"name": "v"}))));
    }
}
