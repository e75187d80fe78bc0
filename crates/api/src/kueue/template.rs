//! Pod templates inside Workloads.
//!
//! In a custom resource a quantity may be a number (`cpu: 1`), because its schema takes numbers and strings; the types of
//! k8s-openapi take strings only. So templates are read through JSON, where quantities become text as Go writes it: equal
//! amounts are equal then.

use k8s_openapi::api::core::v1::{PodTemplateSpec, ResourceRequirements};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::quantity::Quantity;

/// `#[serde(deserialize_with)]` of a template.
pub fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PodTemplateSpec, D::Error> {
    let mut template = Value::deserialize(deserializer)?;
    quantities_as_text(&mut template);
    serde_json::from_value(template).map_err(serde::de::Error::custom)
}

/// Reads a template, or says why it is none.
pub fn read(template: &Value) -> Result<PodTemplateSpec, String> {
    lenient(template.clone()).map_err(|e: serde_json::Error| e.to_string())
}

/// What a container asks for, as read from JSON; `None` if that is something else.
pub fn read_resources(resources: &Value) -> Option<ResourceRequirements> {
    let mut resources = resources.clone();
    walk(&mut resources);
    serde_json::from_value(resources).ok()
}

/// The places in a template where quantities may be: maps of them, and single ones.
const MAPS: [&str; 4] = ["requests", "limits", "overhead", "capacity"];
const SINGLE: [&str; 2] = ["sizeLimit", "divisor"];

/// Only below these: a label may be called `limits` too.
fn quantities_as_text(template: &mut Value) {
    if let Some(spec) = template.get_mut("spec") {
        walk(spec);
    }
}

fn walk(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::Object(amounts) if MAPS.contains(&name.as_str()) => {
                        amounts.values_mut().for_each(canonical);
                    }
                    Value::Number(_) | Value::String(_) if SINGLE.contains(&name.as_str()) => canonical(field),
                    other => walk(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(walk),
        _ => {}
    }
}

/// What is no quantity stays as it is, to be refused by whoever wants one.
fn canonical(value: &mut Value) {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => std::mem::take(text),
        _ => return,
    };
    *value = Value::String(Quantity::parse(&text).map_or(text, |amount| amount.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_amounts_are_equal() {
        let with =
            |cpu| read(&json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}));
        assert_eq!(with(json!(1)), with(json!("1000m")));
        assert_ne!(with(json!(1)), with(json!("1001m")));
    }

    #[test]
    fn quantities_may_be_numbers() {
        let template = read(&json!({"metadata": {"labels": {"limits": "x"}}, "spec": {
            "nodeSelector": {"cpu": "amd"},
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": 5}}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 2}}}]}}))
        .unwrap();
        let spec = template.spec.unwrap();
        let resources = spec.containers[0].resources.as_ref().unwrap();
        assert_eq!(resources.requests.as_ref().unwrap()["cpu"].0, "1");
        assert_eq!(resources.limits.as_ref().unwrap()["cpu"].0, "2");
        let volume = &spec.volumes.as_ref().unwrap()[0];
        assert_eq!(volume.empty_dir.as_ref().unwrap().size_limit.as_ref().unwrap().0, "5");
    }

    #[test]
    fn what_is_no_template_is_refused_with_a_reason() {
        let why = read(&json!({"spec": {"containers": "none"}})).unwrap_err();
        assert!(why.contains("invalid type"), "{why}");
    }
}
