//! Labels, selectors and tolerations, checked as Kubernetes does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::field::{Errors, Path};
use crate::names;

const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

pub fn labels(labels: &BTreeMap<String, String>, path: &Path, errors: &mut Errors) {
    for (key, value) in labels {
        key_of(key, path, errors);
        each(names::label_value(value), value, path, errors);
    }
}

pub fn annotations(annotations: &BTreeMap<String, String>, path: &Path, errors: &mut Errors) {
    for key in annotations.keys() {
        each(names::qualified(&key.to_lowercase()), key, path, errors);
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ANNOTATIONS_MAX_BYTES {
        errors.too_long(path, ANNOTATIONS_MAX_BYTES);
    }
}

/// The key of a label or a taint, or the name of a resource.
pub fn key_of(key: &str, path: &Path, errors: &mut Errors) {
    each(names::qualified(key), key, path, errors);
}

pub fn tolerations(tolerations: &[Toleration], path: &Path, errors: &mut Errors) {
    for (i, toleration) in tolerations.iter().enumerate() {
        if let Some(key) = toleration.key.as_deref().filter(|key| !key.is_empty()) {
            key_of(key, &path.index(i).child("key"), errors);
        }
    }
}

pub fn selector(selector: &LabelSelector, path: &Path, errors: &mut Errors) {
    if let Some(wanted) = &selector.match_labels {
        labels(wanted, &path.child("matchLabels"), errors);
    }
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&path.child("values"), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        key_of(&requirement.key, &path.child("key"), errors);
        for (j, value) in values.iter().enumerate() {
            each(names::label_value(value), value, &path.child("values").index(j), errors);
        }
    }
}

fn each(problems: Vec<String>, value: &str, path: &Path, errors: &mut Errors) {
    for problem in problems {
        errors.invalid(path, value, problem);
    }
}
