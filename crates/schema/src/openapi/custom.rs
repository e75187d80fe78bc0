//! Definitions of custom resources, made of the schema in their CustomResourceDefinition.

use serde_json::{Map, Value, json};

use super::definition::words_for;
use super::{Dialect, GroupVersionKind};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// The definition's name: `com.example.stable.v1.CronTab` for `stable.example.com`.
pub fn custom_name(gvk: &GroupVersionKind) -> String {
    let reversed: Vec<&str> = gvk.group.split('.').rev().collect();
    format!("{}.{}.{}", reversed.join("."), gvk.version, gvk.kind)
}

/// The definitions of a custom kind and its list, by name. Without a schema anything goes.
pub fn custom(dialect: Dialect, gvk: &GroupVersionKind, list_kind: &str, schema: Option<&Value>) -> Map<String, Value> {
    let list = GroupVersionKind { kind: list_kind.to_owned(), ..gvk.clone() };
    let name = custom_name(gvk);
    let mut object = match (schema, dialect) {
        (Some(schema), Dialect::V3) => schema.clone(),
        (Some(schema), Dialect::V2) => for_v2(schema),
        (None, _) => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
    };
    if let Some(map) = object.as_object_mut() {
        map.insert("type".into(), "object".into());
        map.insert("x-kubernetes-group-version-kind".into(), json!([gvk.to_value()]));
        let properties = map.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            properties.insert("apiVersion".into(), json!({"type": "string", "description": words_for("apiVersion")}));
            properties.insert("kind".into(), json!({"type": "string", "description": words_for("kind")}));
            let about = words_for("metadata");
            let metadata = match dialect {
                Dialect::V2 => {
                    let mut metadata = dialect.reference(OBJECT_META);
                    metadata["description"] = about.into();
                    metadata
                }
                Dialect::V3 => json!({"allOf": [dialect.reference(OBJECT_META)], "description": about}),
            };
            properties.insert("metadata".into(), metadata);
        }
    }
    let list_schema = json!({
        "description": format!("{list_kind} is a list of {}", gvk.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": words_for("apiVersion")},
            "kind": {"type": "string", "description": words_for("kind")},
            "metadata": dialect.reference(LIST_META),
            "items": {"type": "array", "items": dialect.reference(&name)},
        },
        "x-kubernetes-group-version-kind": [list.to_value()],
    });
    [(name, object), (custom_name(&list), list_schema)].into_iter().collect()
}

/// Swagger 2.0 has no words for some of a schema; what they allow must not be forbidden by the rest.
fn for_v2(schema: &Value) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let flag = |name: &str| map.get(name) == Some(&Value::Bool(true));
    let untyped = flag("nullable") || flag("x-kubernetes-int-or-string");
    let open = flag("nullable") || flag("x-kubernetes-preserve-unknown-fields");
    let mut out = Map::new();
    for (key, value) in map {
        let kept = match key.as_str() {
            "default" | "oneOf" | "anyOf" | "allOf" | "not" | "nullable" => continue,
            "type" if untyped => continue,
            "items" | "properties" | "additionalProperties" | "required" if open => continue,
            "properties" => match value {
                Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), for_v2(field))).collect(),
                other => other.clone(),
            },
            "items" | "additionalProperties" => for_v2(value),
            _ => value.clone(),
        };
        out.insert(key.clone(), kept);
    }
    Value::Object(out)
}
