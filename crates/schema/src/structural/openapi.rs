//! A schema as `/openapi/v3` publishes it: as declared, with what every object has added.

use serde_json::{Map, Value, json};

use super::schema::Structural;

const META_REF: &str = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const META: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const EMBEDDED_API_VERSION: &str = "apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const EMBEDDED_KIND: &str = "kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

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
            typed(map, API_VERSION, KIND);
            let gvk = json!([{"group": gvk.group, "version": gvk.version, "kind": gvk.kind}]);
            map.insert("x-kubernetes-group-version-kind".to_owned(), gvk);
        }
        out
    }
}

fn typed(schema: &mut Map<String, Value>, api_version: &str, kind: &str) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        properties.insert("apiVersion".to_owned(), json!({"type": "string", "description": api_version}));
        properties.insert("kind".to_owned(), json!({"type": "string", "description": kind}));
        properties.insert("metadata".to_owned(), json!({"description": META, "allOf": [{"$ref": META_REF}]}));
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
        typed(map, EMBEDDED_API_VERSION, EMBEDDED_KIND);
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
