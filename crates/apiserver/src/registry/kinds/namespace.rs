//! Namespaces. What a namespace's end means for the objects in it is the server's and the namespace controller's business.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceStatus};
use serde_json::Value;
use usher_schema::field::Errors;

use super::at::At;
use super::common::{default_text, each_invalid, list, text};
use super::json_field::text_at;
use crate::object;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::served::Deletion;
use crate::registry::{names, table};

const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The finalizer that keeps a namespace until its content is gone.
pub const KUBERNETES_FINALIZER: &str = "kubernetes";
const STANDARD_FINALIZERS: [&str; 3] = [KUBERNETES_FINALIZER, "orphan", "foregroundDeletion"];
const SPEC: At = At::Root("spec");
const STATUS: At = At::Root("status");

pub struct Namespaces;

impl Kind for Namespaces {
    type Object = Namespace;

    fn resource(&self) -> Resource {
        Resource::cluster("", "v1", "Namespace", "namespaces")
            .short(&["ns"])
            .without("deletecollection")
            .sub("finalize", &["update"], None)
            .with_status()
    }

    fn default(&self, namespace: &mut Namespace) {
        set_name_label(namespace);
        default_text(&mut namespace.status.get_or_insert_default().phase, "Active");
    }

    fn prepare_create(&self, _cx: &Cx, namespace: &mut Namespace) {
        // Again, for a name that was only generated after defaulting.
        set_name_label(namespace);
        namespace.status = Some(NamespaceStatus { phase: Some("Active".to_owned()), ..NamespaceStatus::default() });
        let finalizers = namespace.spec.get_or_insert_default().finalizers.get_or_insert_default();
        if !finalizers.iter().any(|finalizer| finalizer == KUBERNETES_FINALIZER) {
            finalizers.push(KUBERNETES_FINALIZER.to_owned());
        }
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Namespace, old: &Namespace) {
        set_name_label(new);
        // Only the finalize subresource takes finalizers away.
        new.spec.clone_from(&old.spec);
    }

    /// A namespace is marked and stays until its content is gone and `finalize` has taken its finalizers away.
    fn begin_deletion(&self, namespace: &mut Value, now: Timestamp) -> Deletion {
        if object::meta_str(namespace, "deletionTimestamp").is_empty() {
            object::set_meta_str(namespace, "deletionTimestamp", &object::time(now));
            namespace["status"]["phase"] = "Terminating".into();
        }
        let finalizers = namespace.pointer("/spec/finalizers").and_then(Value::as_array);
        if finalizers.is_some_and(|list| !list.is_empty()) { Deletion::Held } else { Deletion::Marked }
    }

    fn delete_shows_object(&self) -> bool {
        true
    }

    fn validate(&self, _cx: &Cx, namespace: &Namespace, errors: &mut Errors) {
        for finalizer in finalizers(namespace) {
            validate_finalizer(finalizer, &SPEC.child("finalizers"), errors);
        }
    }

    fn validate_status_update(&self, _cx: &Cx, new: &Namespace, _old: &Namespace, errors: &mut Errors) {
        let phase = new.status.as_ref().map_or("", |status| text(&status.phase));
        let (wanted, when) = match new.metadata.deletion_timestamp {
            None => ("Active", "empty"),
            Some(_) => ("Terminating", "not empty"),
        };
        if phase != wanted {
            let detail = format!("may only be '{wanted}' if `deletionTimestamp` is {when}");
            errors.invalid(&STATUS.child("Phase").path(), phase, detail);
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns1123_label(name, prefix)
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Status", "string", 0, "Whether the namespace is active or going away."),
            table::age_column(),
        ]
    }

    fn cells(&self, namespace: &Namespace, meta: &Value, now: Timestamp) -> Vec<Value> {
        let phase = namespace.status.as_ref().map_or("", |status| text(&status.phase));
        vec![table::name_cell(meta), phase.into(), table::age_cell(meta, now)]
    }

    fn selectable(&self) -> &'static [&'static str] {
        // "name" works inside upstream's storage, but its API refuses it.
        &["status.phase"]
    }

    fn select(&self, object: &Value, field: &str) -> String {
        if field == "status.phase" { text_at(object, "/status/phase") } else { String::new() }
    }
}

/// Whether `new` may replace a namespace through the finalize subresource.
pub fn validate_finalize(new: &Namespace, errors: &mut Errors) {
    let at = SPEC.child("finalizers");
    for (i, finalizer) in finalizers(new).iter().enumerate() {
        validate_finalizer(finalizer, &at.index(i), errors);
    }
}

fn finalizers(namespace: &Namespace) -> &[String] {
    namespace.spec.as_ref().map_or(&[], |spec| list(&spec.finalizers))
}

fn validate_finalizer(finalizer: &str, at: &At, errors: &mut Errors) {
    each_invalid(names::qualified(finalizer), finalizer, at, errors);
    if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        errors.invalid(&at.path(), finalizer, detail);
    }
}

/// Selectors of network policies and webhooks find a namespace by name through this label.
fn set_name_label(namespace: &mut Namespace) {
    let Some(name) = namespace.metadata.name.clone().filter(|name| !name.is_empty()) else { return };
    namespace.metadata.labels.get_or_insert_with(BTreeMap::new).insert(NAME_LABEL.to_owned(), name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create, create_errors, status_errors, update_errors};
    use serde_json::json;

    #[test]
    fn a_new_namespace_is_active_labelled_and_held_by_a_finalizer() {
        let (stored, errors) = create(
            &Namespaces,
            json!({"metadata": {"name": "team", "labels": {"kubernetes.io/metadata.name": "other"}},
                "status": {"phase": "Terminating"}}),
        );
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(stored["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "team"}));
        assert_eq!(stored["spec"]["finalizers"], json!(["kubernetes"]));
        assert_eq!(stored["status"], json!({"phase": "Active"}));
    }

    #[test]
    fn finalizers_are_names_with_a_domain_or_standard_ones() {
        let with = |finalizer: &str| json!({"metadata": {"name": "a"}, "spec": {"finalizers": [finalizer]}});
        assert!(create_errors(&Namespaces, with("example.com/hold")).is_empty());
        assert_eq!(
            create_errors(&Namespaces, with("hold")),
            [
                "spec.finalizers: Invalid value: \"hold\": name is neither a standard finalizer name nor is it fully qualified"
            ]
        );
        let mut errors = Errors::new();
        validate_finalize(&serde_json::from_value(with("hold")).unwrap(), &mut errors);
        assert!(errors.to_string().starts_with("spec.finalizers[0]: Invalid value: \"hold\""));
    }

    #[test]
    fn a_plain_update_keeps_the_finalizers() {
        let old = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}});
        let new = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["bad"]}});
        assert!(update_errors(&Namespaces, &Gates::default(), new, old).is_empty());
    }

    #[test]
    fn the_phase_follows_deletion() {
        let alive = json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}});
        assert_eq!(
            status_errors(&Namespaces, alive.clone(), alive),
            ["status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"]
        );
        let going = json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Active"}});
        assert_eq!(
            status_errors(&Namespaces, going.clone(), going),
            ["status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"]
        );
    }

    #[test]
    fn columns_and_discovery_are_upstreams() {
        let seen = cells(&Namespaces, json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}}));
        assert_eq!(Value::Array(seen), json!(["a", "Active", "60m"]));
        let resource = Namespaces.resource();
        assert!(!resource.verbs.contains(&"deletecollection") && !resource.namespaced);
        let subs: Vec<&str> = resource.subresources.iter().map(|sub| sub.name.as_str()).collect();
        assert_eq!(subs, ["finalize", "status"]);
    }
}
