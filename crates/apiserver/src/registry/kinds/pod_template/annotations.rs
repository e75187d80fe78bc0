//! Annotations that mean something on a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use usher_schema::field::Errors;

use super::volume_sources::descending_path;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::text;

pub const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

pub fn validate(annotations: &BTreeMap<String, String>, spec: &PodSpec, at: &At, errors: &mut Errors) {
    for (key, value) in annotations {
        match key.as_str() {
            MIRROR if text(&spec.node_name).is_empty() => {
                let detail = "must set spec.nodeName if mirror pod annotation is set";
                errors.invalid(&at.key(key).path(), value.as_str(), detail);
            }
            DELETION_COST if !is_cost(value) => {
                errors.invalid(&at.key(key).path(), value.as_str(), "must be a 32bit integer");
            }
            SECCOMP_POD => validate_seccomp(key, value, at, errors),
            _ if key.starts_with(SECCOMP_CONTAINER) => validate_seccomp(key, value, at, errors),
            _ => {}
        }
    }
}

/// No sign but minus, no leading zeros.
fn is_cost(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let leading = value.starts_with('+') || (digits.len() > 1 && digits.starts_with('0'));
    !leading && value != "-0" && value.parse::<i32>().is_ok()
}

/// Upstream spells this path with a dot, not with brackets.
fn validate_seccomp(key: &str, value: &str, at: &At, errors: &mut Errors) {
    let path = at.path().child(key);
    match value.strip_prefix("localhost/") {
        Some(profile) => descending_path(profile, &At::Path(&path), errors),
        None if ["runtime/default", "docker/default", "unconfined"].contains(&value) => {}
        None => errors.invalid(&path, value, "must be a valid seccomp profile"),
    }
}

/// Annotations that a pod keeps as it was created.
pub fn validate_update(new: &BTreeMap<String, String>, old: &BTreeMap<String, String>, at: &At, errors: &mut Errors) {
    for (key, _) in old.iter().filter(|(key, value)| new.get(*key) != Some(value)) {
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&at.key(key).path(), "may not remove or update AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&at.key(key).path(), "may not remove or update mirror pod annotation");
        }
    }
    for key in new.keys().filter(|key| !old.contains_key(*key)) {
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&at.key(key).path(), "may not add AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&at.key(key).path(), "may not add mirror pod annotation");
        }
    }
}
