//! Environment variables and where they come from.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector, ResourceFieldSelector,
};
use usher_api::quantity::Quantity;
use usher_schema::field::Errors;

use super::volume_sources::no_backsteps;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, text};
use crate::registry::names;

/// Sorted, as the list of supported values is printed.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
pub const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// What the API knows as a field of a pod at all, whether or not it may be used here.
const POD_FIELDS: [&str; 15] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
    "spec.host",
];
const BYTE_DIVISORS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub fn validate_env(vars: &[EnvVar], at: &At, errors: &mut Errors) {
    for (i, var) in vars.iter().enumerate() {
        let at = at.index(i);
        if var.name.is_empty() {
            errors.required(&at.child("name").path(), "");
        } else {
            each_invalid(names::env_var(&var.name), &var.name, &at.child("name"), errors);
        }
        if let Some(source) = &var.value_from {
            validate_value_from(source, text(&var.value), &at.child("valueFrom"), errors);
        }
    }
}

fn validate_value_from(source: &EnvVarSource, value: &str, at: &At, errors: &mut Errors) {
    let mut sources = 0;
    if let Some(field) = &source.field_ref {
        sources += 1;
        validate_field_ref(field, &ENV_FIELDS, &at.child("fieldRef"), errors);
    }
    if let Some(field) = &source.resource_field_ref {
        sources += 1;
        validate_resource_field_ref(field, false, &at.child("resourceFieldRef"), errors);
    }
    if let Some(selector) = &source.config_map_key_ref {
        sources += 1;
        validate_key_ref(&selector.name, &selector.key, &at.child("configMapKeyRef"), errors);
    }
    if let Some(selector) = &source.secret_key_ref {
        sources += 1;
        validate_key_ref(&selector.name, &selector.key, &at.child("secretKeyRef"), errors);
    }
    if let Some(selector) = &source.file_key_ref {
        sources += 1;
        validate_file_key_ref(selector, &at.child("fileKeyRef"), errors);
    }
    let problem = match sources {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if !value.is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.invalid(&at.path(), "", problem);
}

/// A field of the pod itself, for an environment variable or a file.
pub fn validate_field_ref(field: &ObjectFieldSelector, supported: &[&str], at: &At, errors: &mut Errors) {
    let (version, path) = (text(&field.api_version), field.field_path.as_str());
    if version.is_empty() {
        return errors.required(&at.child("apiVersion").path(), "");
    }
    if path.is_empty() {
        return errors.required(&at.child("fieldPath").path(), "");
    }
    let subscript = subscripted(path);
    let unconvertible = if version != "v1" {
        Some(format!("unsupported pod version: {version}"))
    } else if let Some((base, _)) = subscript {
        let known = base == "metadata.annotations" || base == "metadata.labels";
        (!known).then(|| format!("field label does not support subscript: {path}"))
    } else {
        (!POD_FIELDS.contains(&path)).then(|| format!("field label not supported: {path}"))
    };
    if let Some(why) = unconvertible {
        return errors.invalid(&at.child("fieldPath").path(), path, format!("error converting fieldPath: {why}"));
    }
    match subscript {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            each_invalid(names::qualified(&key), &key, at, errors);
        }
        Some((_, key)) => each_invalid(names::qualified(key), key, at, errors),
        None => {
            let path = if path == "spec.host" { "spec.nodeName" } else { path };
            if !supported.contains(&path) {
                errors.not_supported(&at.child("fieldPath").path(), path, supported);
            }
        }
    }
}

/// `metadata.labels['app']` as its two parts.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let inner = path.strip_suffix("']")?;
    let (base, key) = inner.split_once("['")?;
    (!base.is_empty()).then_some((base, key))
}

/// A resource of a container, for an environment variable or (then the container is named) a file.
pub fn validate_resource_field_ref(field: &ResourceFieldSelector, in_volume: bool, at: &At, errors: &mut Errors) {
    let resource = field.resource.as_str();
    let huge = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if in_volume && text(&field.container_name).is_empty() {
        errors.required(&at.child("containerName").path(), "");
    } else if resource.is_empty() {
        errors.required(&at.child("resource").path(), "");
    } else if !huge && !RESOURCE_FIELDS.contains(&resource) {
        errors.not_supported(&at.child("resource").path(), resource, &RESOURCE_FIELDS);
    }
    if let Some(divisor) = &field.divisor {
        validate_divisor(resource, &divisor.0, huge, &at.child("divisor"), errors);
    }
}

fn validate_divisor(resource: &str, divisor: &str, huge: bool, at: &At, errors: &mut Errors) {
    let shown = match Quantity::parse(divisor) {
        Err(problem) => return errors.invalid(&at.path(), divisor, problem.to_string()),
        Ok(quantity) if quantity.is_zero() => return,
        Ok(quantity) => quantity.to_string(),
    };
    let (supported, listed, name): (&[&str], &str, &str) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "1m and 1", "cpu"),
        "limits.memory" | "requests.memory" => (&BYTE_DIVISORS, "", "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (&BYTE_DIVISORS, "", "local ephemeral storage"),
        _ if huge => (&BYTE_DIVISORS, "", "hugepages"),
        _ => return,
    };
    if !supported.contains(&shown.as_str()) {
        let listed = if listed.is_empty() { supported.join(", ") } else { listed.to_owned() };
        let detail = format!("only divisor's values {listed} are supported with the {name} resource");
        errors.invalid(&at.path(), resource, detail);
    }
}

fn validate_key_ref(name: &str, key: &str, at: &At, errors: &mut Errors) {
    each_invalid(names::dns1123_subdomain(name, false), name, &at.child("name"), errors);
    if key.is_empty() {
        errors.required(&at.child("key").path(), "");
    } else {
        each_invalid(names::config_key(key), key, &at.child("key"), errors);
    }
}

fn validate_file_key_ref(selector: &FileKeySelector, at: &At, errors: &mut Errors) {
    if selector.key.is_empty() {
        errors.required(&at.child("key").path(), "");
    } else {
        each_invalid(names::env_var(&selector.key), &selector.key, &at.child("key"), errors);
    }
    if selector.volume_name.is_empty() {
        errors.required(&at.child("volumeName").path(), "");
    } else {
        let name = selector.volume_name.as_str();
        each_invalid(names::dns1123_label(name, false), name, &at.child("volumeName"), errors);
    }
    if selector.path.is_empty() {
        errors.required(&at.child("path").path(), "");
    } else {
        no_backsteps(&selector.path, &at.child("path"), errors);
    }
}

pub fn validate_env_from(sources: &[EnvFromSource], at: &At, errors: &mut Errors) {
    for (i, source) in sources.iter().enumerate() {
        let item = at.index(i);
        let prefix = text(&source.prefix);
        if !prefix.is_empty() {
            each_invalid(names::env_var(prefix), prefix, &item.child("prefix"), errors);
        }
        let config_map = source.config_map_ref.as_ref().map(|source| ("configMapRef", source.name.as_str()));
        let secret = source.secret_ref.as_ref().map(|source| ("secretRef", source.name.as_str()));
        for (field, name) in config_map.iter().chain(&secret) {
            let at = item.child(field);
            if name.is_empty() {
                errors.required(&at.child("name").path(), "");
            } else {
                each_invalid(names::dns1123_subdomain(name, true), name, &at.child("name"), errors);
            }
        }
        if config_map.is_none() && secret.is_none() {
            errors.invalid(&at.path(), "", "must specify one of: `configMapRef` or `secretRef`");
        } else if config_map.is_some() && secret.is_some() {
            errors.invalid(&at.path(), "", "may not have more than one field specified at a time");
        }
    }
}
