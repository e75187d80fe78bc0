//! The rules of `metadata`, for every kind alike.
//!
//! Works on JSON, because the server keeps metadata generic; kinds only bring the rule for their names. The server fills
//! uid, creationTimestamp, the namespace of the request and (for an update that left it out) resourceVersion first.

use std::collections::BTreeSet;

use serde_json::Value;
use usher_schema::field::{Errors, Path, quote};

use super::kinds::at::At;
use super::names;

/// Bytes of all annotation keys and values of an object together.
pub const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;
const FIELD_MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;

/// A kind's rule for names: what is wrong with `name`; `prefix` when it is a `generateName`.
pub type NameRule<'a> = &'a dyn Fn(&str, bool) -> Vec<String>;

/// Metadata of a new object.
pub fn validate_meta(meta: &Value, path: &Path, namespaced: bool, name_rule: NameRule, errors: &mut Errors) {
    let at = At::Path(path);
    let generate = text(meta, "generateName");
    if !generate.is_empty() {
        for message in name_rule(generate, true) {
            errors.invalid(&at.child("generateName").path(), generate, message);
        }
    }
    let name = text(meta, "name");
    if name.is_empty() {
        errors.required(&at.child("name").path(), "name or generateName is required");
    } else {
        for message in name_rule(name, false) {
            errors.invalid(&at.child("name").path(), name, message);
        }
    }
    validate_namespace(text(meta, "namespace"), namespaced, &at.child("namespace"), errors);
    let generation = number(meta, "generation");
    if generation < 0 {
        errors.invalid(&at.child("generation").path(), generation, "must be greater than or equal to 0");
    }
    validate_common(meta, &at, errors);
    validate_finalizers(meta, &at.child("finalizers"), errors);
}

/// Metadata of an object that replaces `old`.
pub fn validate_meta_update(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let at = At::Path(path);
    if set(old, "deletionTimestamp").is_some() {
        no_new_finalizers(new, old, &at.child("finalizers"), errors);
    }
    if text(new, "resourceVersion").is_empty() {
        errors.invalid(&at.child("resourceVersion").path(), "", "must be specified for an update");
    }
    let (generation, before) = (number(new, "generation"), number(old, "generation"));
    if generation < 0 {
        errors.invalid(&at.child("generation").path(), generation, "must be greater than or equal to 0");
    }
    if generation < before {
        errors.invalid(&at.child("generation").path(), generation, "must not be decremented");
    }
    for field in ["name", "namespace", "uid"] {
        if text(new, field) != text(old, field) {
            errors.immutable(&at.child(field).path(), text(new, field));
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if set(new, field) != set(old, field) {
            errors.immutable(&at.child(field).path(), set(new, field).cloned().unwrap_or_default());
        }
    }
    validate_common(new, &at, errors);
}

fn validate_common(meta: &Value, at: &At, errors: &mut Errors) {
    if let Some(labels) = meta.get("labels").and_then(Value::as_object) {
        let pairs = labels.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
        validate_labels(pairs, &at.child("labels"), errors);
    }
    if let Some(annotations) = meta.get("annotations").and_then(Value::as_object) {
        let pairs = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
        validate_annotations(pairs, &at.child("annotations"), errors);
    }
    validate_owners(meta, &at.child("ownerReferences"), errors);
    validate_managed_fields(meta, &at.child("managedFields"), errors);
}

/// Labels, also those of a template or a selector's `matchLabels`.
pub fn validate_labels<'v>(labels: impl Iterator<Item = (&'v str, &'v str)>, at: &At, errors: &mut Errors) {
    for (key, value) in labels {
        for message in names::qualified(key) {
            errors.invalid(&at.path(), key, message);
        }
        for message in names::label_value(value) {
            errors.invalid(&at.path(), value, message);
        }
    }
}

pub fn validate_annotations<'v>(annotations: impl Iterator<Item = (&'v str, &'v str)>, at: &At, errors: &mut Errors) {
    let mut bytes = 0usize;
    for (key, value) in annotations {
        bytes += key.len() + value.len();
        let problems = if key.bytes().any(|c| c.is_ascii_uppercase()) || !key.is_ascii() {
            names::qualified(&key.to_lowercase())
        } else {
            names::qualified(key)
        };
        for message in problems {
            errors.invalid(&at.path(), key, message);
        }
    }
    if bytes > ANNOTATIONS_MAX_BYTES {
        errors.too_long(&at.path(), ANNOTATIONS_MAX_BYTES);
    }
}

fn validate_namespace(namespace: &str, namespaced: bool, at: &At, errors: &mut Errors) {
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.required(&at.path(), ""),
        (true, false) => {
            for message in names::dns1123_label(namespace, false) {
                errors.invalid(&at.path(), namespace, message);
            }
        }
        (false, true) => {}
        (false, false) => errors.forbidden(&at.path(), "not allowed on this type"),
    }
}

fn validate_owners(meta: &Value, at: &At, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for (i, owner) in list(meta, "ownerReferences").iter().enumerate() {
        validate_owner(owner, &at.index(i), errors);
        if owner.get("controller").and_then(Value::as_bool) != Some(true) {
            continue;
        }
        let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
        match &controller {
            None => controller = Some(this),
            Some(first) => errors.invalid(
                &at.path(),
                meta["ownerReferences"].clone(),
                format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                ),
            ),
        }
    }
}

fn validate_owner(owner: &Value, at: &At, errors: &mut Errors) {
    let api_version = text(owner, "apiVersion");
    let version = match api_version.split_once('/') {
        None => Some(api_version),
        Some((_, version)) => (!version.contains('/')).then_some(version),
    };
    if api_version.is_empty() {
        errors.required(&at.child("apiVersion").path(), "must not be empty");
    } else if version.is_none_or(str::is_empty) {
        errors.invalid(&at.child("apiVersion").path(), api_version, "must be <group>/<version> or <version>");
    }
    for field in ["kind", "name", "uid"] {
        if text(owner, field).is_empty() {
            errors.required(&at.child(field).path(), "must not be empty");
        }
    }
    if api_version == "v1" && text(owner, "kind") == "Event" {
        errors.invalid(&at.path(), owner.clone(), "/v1, Kind=Event is disallowed from being an owner");
    }
}

fn validate_finalizers(meta: &Value, at: &At, errors: &mut Errors) {
    let (mut orphan, mut foreground) = (false, false);
    for finalizer in list(meta, "finalizers").iter().filter_map(Value::as_str) {
        for message in names::qualified(finalizer) {
            errors.invalid(&at.path(), finalizer, message);
        }
        orphan |= finalizer == "orphan";
        foreground |= finalizer == "foregroundDeletion";
    }
    if orphan && foreground {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(&at.path(), meta["finalizers"].clone(), detail);
    }
}

fn no_new_finalizers(new: &Value, old: &Value, at: &At, errors: &mut Errors) {
    let names = |meta| list(meta, "finalizers").iter().filter_map(Value::as_str).collect::<BTreeSet<_>>();
    let before = names(old);
    let extra: Vec<String> = names(new).difference(&before).map(|name| quote(name)).collect();
    if !extra.is_empty() {
        let found = extra.join(", ");
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{found}}}"
        );
        errors.forbidden(&at.path(), detail);
    }
}

fn validate_managed_fields(meta: &Value, at: &At, errors: &mut Errors) {
    for (i, entry) in list(meta, "managedFields").iter().enumerate() {
        let at = at.index(i);
        match text(entry, "operation") {
            "" => errors.required(&at.child("operation").path(), "must not be empty"),
            "Apply" | "Update" => {}
            other => errors.not_supported(&at.child("operation").path(), other, &["Apply", "Update"]),
        }
        let fields_type = text(entry, "fieldsType");
        if !fields_type.is_empty() && fields_type != "FieldsV1" {
            errors.invalid(&at.child("fieldsType").path(), fields_type, "must be `FieldsV1`");
        }
        validate_field_manager(text(entry, "manager"), &at.child("manager"), errors);
        if text(entry, "subresource").len() > SUBRESOURCE_MAX {
            errors.too_long(&at.child("subresource").path(), SUBRESOURCE_MAX);
        }
    }
}

/// The name of a field manager, in an object or in a request's `fieldManager`.
pub fn validate_field_manager(manager: &str, at: &At, errors: &mut Errors) {
    if manager.len() > FIELD_MANAGER_MAX {
        errors.too_long(&at.path(), FIELD_MANAGER_MAX);
    }
    for (position, c) in manager.char_indices().filter(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        let shown = if c.is_control() { String::new() } else { format!(" '{c}'") };
        let detail = format!("invalid character U+{:04X}{shown} (at position {position})", u32::from(c));
        errors.invalid(&at.path(), manager, detail);
    }
}

fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, field: &str) -> i64 {
    object.get(field).and_then(Value::as_i64).unwrap_or_default()
}

fn set<'v>(object: &'v Value, field: &str) -> Option<&'v Value> {
    object.get(field).filter(|value| !value.is_null())
}

fn list<'v>(object: &'v Value, field: &str) -> &'v [Value] {
    object.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn created(meta: Value) -> Vec<String> {
        let mut errors = Errors::new();
        validate_meta(&meta, &Path::new("metadata"), true, &names::dns1123_subdomain, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    fn updated(new: Value, old: Value) -> Vec<String> {
        let mut errors = Errors::new();
        validate_meta_update(&new, &old, &Path::new("metadata"), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_new_object_needs_a_name_and_a_namespace() {
        assert_eq!(
            created(json!({})),
            ["metadata.name: Required value: name or generateName is required", "metadata.namespace: Required value"]
        );
        assert!(created(json!({"name": "a", "namespace": "default"})).is_empty());
        let mut errors = Errors::new();
        let meta = json!({"name": "a", "namespace": "x"});
        validate_meta(&meta, &Path::new("metadata"), false, &names::dns1123_subdomain, &mut errors);
        assert_eq!(errors.to_string(), "metadata.namespace: Forbidden: not allowed on this type");
    }

    #[test]
    fn labels_annotations_owners_and_finalizers_are_checked() {
        let base = |extra: Value| {
            let mut meta = json!({"name": "a", "namespace": "default"});
            meta.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            created(meta)
        };
        assert!(
            base(json!({"labels": {"a b": "c"}}))[0]
                .starts_with("metadata.labels: Invalid value: \"a b\": name part must")
        );
        assert!(base(json!({"annotations": {"Example.COM/x": "any thing"}})).is_empty());
        assert_eq!(
            base(json!({"annotations": {"x": "y".repeat(ANNOTATIONS_MAX_BYTES)}})),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        assert!(base(json!({"ownerReferences": [owner, owner]}))[0].ends_with(
            "Only one reference can have Controller set to true. Found \"true\" in references for Pod/p and Pod/p"
        ));
        assert_eq!(
            base(json!({"ownerReferences": [{"apiVersion": "a/b/c"}]}))[0],
            "metadata.ownerReferences[0].apiVersion: Invalid value: \"a/b/c\": must be <group>/<version> or <version>"
        );
        assert!(
            base(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"}]}))[0]
                .ends_with("/v1, Kind=Event is disallowed from being an owner")
        );
        assert!(base(json!({"finalizers": ["orphan", "foregroundDeletion"]}))[0].contains("cannot be both set"));
        assert_eq!(
            base(json!({"managedFields": [{"operation": "Own"}]})),
            [
                "metadata.managedFields[0].operation: Unsupported value: \"Own\": supported values: \"Apply\", \"Update\""
            ]
        );
    }

    #[test]
    fn identity_is_immutable_and_a_dying_object_gets_no_new_finalizers() {
        let old = json!({"name": "a", "namespace": "n", "uid": "1", "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": ["x/a"]});
        let mut new = old.clone();
        assert!(updated(new.clone(), old.clone()).is_empty());
        new["uid"] = "2".into();
        new["finalizers"] = json!(["x/b"]);
        assert_eq!(
            updated(new, old.clone()),
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, \
                 found new finalizers []string{\"x/b\"}",
                "metadata.uid: Invalid value: \"2\": field is immutable"
            ]
        );
        let mut unversioned = old.clone();
        unversioned["resourceVersion"] = "".into();
        assert_eq!(
            updated(unversioned, old),
            ["metadata.resourceVersion: Invalid value: \"\": must be specified for an update"]
        );
    }
}
