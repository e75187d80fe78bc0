//! PersistentVolumeClaims: kept and checked, nothing binds them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
use serde_json::Value;
use usher_api::quantity::Quantity;
use usher_schema::field::Errors;

use super::at::At;
use super::common::{default_text, each_invalid, list, one_of, text};
use super::equality::semantic_eq;
use super::pod_template::defaults::default_resource_list;
use super::pod_template::resources::validate_quantity;
use super::selector;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::{names, table};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const SPEC: At = At::Root("spec");

pub struct PersistentVolumeClaims;

impl Kind for PersistentVolumeClaims {
    type Object = PersistentVolumeClaim;

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims").short(&["pvc"]).with_status()
    }

    fn default(&self, claim: &mut PersistentVolumeClaim) {
        let spec = claim.spec.get_or_insert_default();
        default_text(&mut spec.volume_mode, "Filesystem");
        if let Some(resources) = &mut spec.resources {
            resources.limits.iter_mut().chain(&mut resources.requests).for_each(default_resource_list);
        }
        default_text(&mut claim.status.get_or_insert_default().phase, "Pending");
    }

    fn prepare_create(&self, _cx: &Cx, claim: &mut PersistentVolumeClaim) {
        claim.status = Some(PersistentVolumeClaimStatus {
            phase: Some("Pending".to_owned()),
            ..PersistentVolumeClaimStatus::default()
        });
    }

    fn validate(&self, _cx: &Cx, claim: &PersistentVolumeClaim, errors: &mut Errors) {
        if let Some(spec) = &claim.spec {
            validate_claim_spec(spec, &SPEC, errors);
        }
    }

    fn validate_update(&self, cx: &Cx, new: &PersistentVolumeClaim, old: &PersistentVolumeClaim, errors: &mut Errors) {
        self.validate(cx, new, errors);
        let (Some(new_spec), Some(old_spec)) = (&new.spec, &old.spec) else { return };
        let bound = old.status.as_ref().is_some_and(|status| text(&status.phase) == "Bound");
        let mut allowed = old_spec.clone();
        if text(&old_spec.volume_name).is_empty() {
            allowed.volume_name.clone_from(&new_spec.volume_name);
        }
        allowed.volume_attributes_class_name.clone_from(&new_spec.volume_attributes_class_name);
        if bound {
            allowed.resources.clone_from(&new_spec.resources);
        }
        if !semantic_eq(new_spec, &allowed) {
            let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";
            errors.forbidden(&SPEC.path(), detail);
        }
    }

    fn delete_shows_object(&self) -> bool {
        true
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Status", "string", 0, "Where the claim is in its life."),
            Column::new("Volume", "string", 0, "The volume that backs the claim."),
            Column::new("Capacity", "string", 0, "Size of the volume."),
            Column::new("Access Modes", "string", 0, "How the volume may be mounted."),
            Column::new("StorageClass", "string", 0, "The class the claim asks for."),
            Column::new("VolumeAttributesClass", "string", 0, "The class of attributes the claim asks for."),
            table::age_column(),
            Column::new("VolumeMode", "string", 1, "Whether the volume is a file system or a block device."),
        ]
    }

    fn cells(&self, claim: &PersistentVolumeClaim, meta: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
        let phase = if meta.get("deletionTimestamp").is_some_and(|time| !time.is_null()) {
            "Terminating"
        } else {
            status.map_or("", |status| text(&status.phase))
        };
        let volume = spec.map_or("", |spec| text(&spec.volume_name));
        let (mut capacity, mut modes) = (String::new(), String::new());
        if let Some(status) = status.filter(|_| !volume.is_empty()) {
            capacity = status.capacity.as_ref().and_then(|c| c.get("storage")).map_or(String::new(), |q| q.0.clone());
            modes = access_modes(list(&status.access_modes));
        }
        let class = spec.map_or("", |spec| text(&spec.storage_class_name));
        let attributes = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref()).unwrap_or("<unset>");
        let mode = spec.and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("<unset>");
        vec![
            table::name_cell(meta),
            phase.into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class.into(),
            attributes.into(),
            table::age_cell(meta, now),
            mode.into(),
        ]
    }
}

/// As `kubectl get` abbreviates them.
fn access_modes(modes: &[String]) -> String {
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let short: Vec<&str> =
        known.iter().filter(|(mode, _)| modes.iter().any(|m| m == mode)).map(|(_, short)| *short).collect();
    short.join(",")
}

/// The spec of a claim, also of one that a pod's ephemeral volume makes.
pub fn validate_claim_spec(spec: &PersistentVolumeClaimSpec, at: &At, errors: &mut Errors) {
    let modes = list(&spec.access_modes);
    if modes.is_empty() {
        errors.required(&at.child("accessModes").path(), "at least 1 access mode is required");
    }
    if let Some(labels) = &spec.selector {
        selector::validate(labels, &at.child("selector"), errors);
    }
    for mode in modes {
        one_of(mode, &ACCESS_MODES, &at.child("accessModes"), errors);
    }
    let exclusive = modes.iter().any(|mode| mode == "ReadWriteOncePod");
    if exclusive && modes.iter().any(|mode| ACCESS_MODES[..3].contains(&mode.as_str())) {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.forbidden(&at.child("accessModes").path(), detail);
    }
    let resources_at = at.child("resources");
    let storage_at = resources_at.key("storage");
    match spec.resources.as_ref().and_then(|r| r.requests.as_ref()).and_then(|r| r.get("storage")) {
        None => errors.required(&storage_at.path(), ""),
        Some(size) => match Quantity::parse(&size.0) {
            Ok(parsed) if parsed <= Quantity::ZERO => {
                errors.invalid(&storage_at.path(), parsed.to_string(), "must be greater than zero");
            }
            _ => drop(validate_quantity("storage", size, &storage_at, errors)),
        },
    }
    for (field, class) in [
        ("storageClassName", &spec.storage_class_name),
        ("volumeAttributesClassName", &spec.volume_attributes_class_name),
    ] {
        let class = text(class);
        if !class.is_empty() {
            each_invalid(names::dns1123_subdomain(class, false), class, &at.child(field), errors);
        }
    }
    if let Some(mode) = &spec.volume_mode {
        one_of(mode, &["Block", "Filesystem"], &at.child("volumeMode"), errors);
    }
    if let Some(source) = &spec.data_source {
        let at = at.child("dataSource");
        if source.name.is_empty() {
            errors.required(&at.child("name").path(), "");
        }
        if source.kind.is_empty() {
            errors.required(&at.child("kind").path(), "");
        }
        if text(&source.api_group).is_empty() && source.kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.invalid(&at.path(), source.kind.as_str(), detail);
        }
    }
}
