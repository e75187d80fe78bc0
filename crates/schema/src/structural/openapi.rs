//! A schema as `/openapi/v3` publishes it: as declared, with what every object has added.

use crate::openapi::words_for;
use serde_json::{Map, Value, json};

use super::schema::Structural;

const META_REF: &str = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Group, version and kind of a custom resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gvk {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl Structural {
    /// The schema to publish for this kind.
    pub fn openapi(&self, gvk: &Gvk) -> Value {
        let mut out = self.source.clone();
        embedded(&mut out);
        if let Value::Object(map) = &mut out {
            typed(map);
            let gvk = json!([{"group": gvk.group, "version": gvk.version, "kind": gvk.kind}]);
            map.insert("x-kubernetes-group-version-kind".to_owned(), gvk);
        }
        out
    }
}

fn typed(schema: &mut Map<String, Value>) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        properties.insert("apiVersion".to_owned(), json!({"type": "string", "description": words_for("apiVersion")}));
        properties.insert("kind".to_owned(), json!({"type": "string", "description": words_for("kind")}));
        properties.insert(
            "metadata".to_owned(),
            json!({"description": words_for("metadata"), "allOf": [{"$ref": META_REF}]}),
        );
    }
}

fn embedded(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(embedded);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(keyword) {
            embedded(child);
        }
    }
    if map.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        typed(map);
        let required = map.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(required) = required {
            for name in ["kind", "apiVersion"] {
                if !required.iter().any(|r| r == name) {
                    required.push(name.into());
                }
            }
        }
    }
}
