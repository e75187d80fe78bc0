//! What a Variant is: its Parent's request, limited to some flavors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use usher_api::kueue::concurrent::{Policy, Variant};
use usher_api::kueue::conditions::WorkloadCondition;
use usher_api::kueue::keys::{self, annotation, label};
use usher_api::kueue::workload::{AdmissionConstraints, Role, WorkloadSpec};
use usher_api::kueue::workload_status::WorkloadStatus;
use usher_api::kueue::{API_VERSION, Workload, names};

/// Whether a Workload in a queue with a policy leaves the race to Variants. One that already holds quota keeps it, as it is: a policy
/// that comes later does not touch what runs.
pub fn has_variants(workload: &Workload) -> bool {
    workload.role() == Role::Regular
        && !workload.is(WorkloadCondition::QuotaReserved)
        && !workload.is(WorkloadCondition::Finished)
        && workload.metadata.deletion_timestamp.is_none()
}

/// The policy as far as a Parent's own limits let it: variants without a flavor that it may use are none of its.
pub fn applicable(policy: &Policy, parent: &Workload) -> Policy {
    let Some(own) = parent.allowed_flavors() else { return policy.clone() };
    let mut left = policy.clone();
    let mut targets = 0;
    left.variants.clear();
    for (rank, variant) in policy.variants.iter().enumerate() {
        let flavors: Vec<String> =
            variant.allowed_flavors.iter().filter(|flavor| own.contains(&flavor.as_str())).cloned().collect();
        if !flavors.is_empty() {
            targets += usize::from(rank < policy.targets);
            left.variants.push(Variant { allowed_flavors: flavors, ..variant.clone() });
        }
    }
    Policy { targets, ..left }
}

/// Which of the policy's variants a Workload is.
pub fn variant_name(workload: &Workload) -> &str {
    workload.annotation(annotation::VARIANT_NAME).unwrap_or_default()
}

pub fn variant(parent: &Workload, as_said: &Variant, active: bool) -> Workload {
    let meta = &parent.metadata;
    let (name, uid) = (meta.name.clone().unwrap_or_default(), meta.uid.clone().unwrap_or_default());
    let mut labels: BTreeMap<String, String> = meta.labels.clone().unwrap_or_default();
    labels.remove(label::CONCURRENT_ADMISSION_PARENT);
    labels.insert(label::CONCURRENT_ADMISSION_VARIANT.to_owned(), keys::TRUE.to_owned());
    let mut annotations: BTreeMap<String, String> = meta.annotations.clone().unwrap_or_default();
    annotations.remove(annotation::PARENT_VARIANT);
    annotations.remove(annotation::ALLOWED_RESOURCE_FLAVORS);
    annotations.insert(annotation::VARIANT_NAME.to_owned(), as_said.name.clone());
    Workload {
        metadata: ObjectMeta {
            name: Some(names::variant(&name, &uid, &as_said.name)),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: API_VERSION.to_owned(),
                kind: "Workload".to_owned(),
                name,
                uid,
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: WorkloadSpec { active: Some(active), ..spec(parent, as_said) },
        status: WorkloadStatus::default(),
    }
}

/// What a Variant asks for; whether it is active is decided elsewhere.
pub fn spec(parent: &Workload, as_said: &Variant) -> WorkloadSpec {
    WorkloadSpec {
        active: None,
        admission_constraints: Some(AdmissionConstraints { allowed_resource_flavors: as_said.allowed_flavors.clone() }),
        ..parent.spec.clone()
    }
}
