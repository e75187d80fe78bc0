//! The Job of a slot. Its name follows from the slot, so that the same slot never gets two.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use usher_api::cron::load_zone;

use super::run::Policy;

/// KEP-4026.
pub const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// By the minute: of the slots within one minute only one gets a Job.
pub fn name(cron: &CronJob, slot: Timestamp) -> String {
    format!("{}-{}", cron.metadata.name.as_deref().unwrap_or_default(), slot.as_second() / 60)
}

pub fn build(cron: &CronJob, slot: Timestamp, policy: &Policy) -> Job {
    let template = &cron.spec.job_template;
    let (labels, annotations) =
        template.metadata.as_ref().map_or((None, None), |meta| (meta.labels.clone(), meta.annotations.clone()));
    let mut annotations = annotations.unwrap_or_default();
    if policy.annotate {
        annotations.insert(SCHEDULED.to_owned(), scheduled(cron, slot, policy));
    }
    let owner = OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "CronJob".to_owned(),
        name: cron.metadata.name.clone().unwrap_or_default(),
        uid: cron.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    Job {
        metadata: ObjectMeta {
            name: Some(name(cron, slot)),
            namespace: cron.metadata.namespace.clone(),
            labels,
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The slot in the CronJob's zone, in UTC where it names none.
fn scheduled(cron: &CronJob, slot: Timestamp, policy: &Policy) -> String {
    let zone = match cron.spec.time_zone.as_deref().map(load_zone) {
        Some(Ok(Some(zone))) => zone,
        Some(Ok(None)) => policy.local.clone(),
        Some(Err(_)) | None => TimeZone::UTC,
    };
    let shown = slot.to_zoned(zone);
    let format = if shown.offset().is_zero() { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    shown.strftime(format).to_string()
}

/// The entry of `status.active`.
pub fn reference(job: &Job) -> ObjectReference {
    let meta = job.metadata.clone();
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        namespace: meta.namespace,
        name: meta.name,
        uid: meta.uid,
        resource_version: meta.resource_version,
        field_path: None,
    }
}
