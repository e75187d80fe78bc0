//! batch/v1 Job.
//!
//! [`spec`] checks a Job's spec (also the one inside a CronJob), [`template_rule`] decides what of a suspended Job's
//! template may still change, [`status`] guards the status.

pub mod indexes;
pub mod policies;
pub mod spec;
pub mod status;
pub mod template_rule;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Container;
use serde_json::Value;
use usher_schema::field::{Errors, Path};

use super::at::At;
use super::common::{default_text, immutable, list};
use super::pod_template::defaults::default_template;
use super::pod_template::warnings;
use super::selector;
use crate::registry::kind::{Column, Cx, Kind, Propagation, Resource};
use crate::registry::{names, table};

pub const CONTROLLER_UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
pub const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";
const LEGACY_CONTROLLER_UID_LABEL: &str = "controller-uid";
const LEGACY_JOB_NAME_LABEL: &str = "job-name";
const DEFAULT_BACKOFF_LIMIT: i32 = 6;
const SPEC: At = At::Root("spec");
const METADATA: At = At::Root("metadata");

pub struct Jobs;

impl Kind for Jobs {
    type Object = Job;

    fn resource(&self) -> Resource {
        Resource::namespaced("batch", "v1", "Job", "jobs").in_all().with_status().with_generation()
    }

    fn default(&self, job: &mut Job) {
        let spec = job.spec.get_or_insert_default();
        default_pod_level(spec);
        if spec.completions.is_none() && spec.parallelism.is_none() {
            spec.completions = Some(1);
        }
        spec.parallelism.get_or_insert(1);
        let per_index = spec.backoff_limit_per_index.is_some();
        spec.backoff_limit.get_or_insert(if per_index { i32::MAX } else { DEFAULT_BACKOFF_LIMIT });
        default_text(&mut spec.completion_mode, "NonIndexed");
        spec.suspend.get_or_insert(false);
        let replacement = if spec.pod_failure_policy.is_some() { "Failed" } else { "TerminatingOrFailed" };
        spec.pod_replacement_policy.get_or_insert_with(|| replacement.to_owned());
        spec.manual_selector.get_or_insert(false);
        // A Job read back from the store gets its template's generated labels this way, too.
        let unlabelled = job.metadata.labels.as_ref().is_none_or(BTreeMap::is_empty);
        if let Some(labels) = template_labels(spec).filter(|_| unlabelled) {
            job.metadata.labels = Some(labels.clone());
        }
    }

    fn prepare_create(&self, _cx: &Cx, job: &mut Job) {
        job.status = Some(JobStatus::default());
        let Some(spec) = &mut job.spec else { return };
        spec.scheduling = None;
        if spec.manual_selector != Some(true) {
            // Upstream's defaulting shares one map between the Job's and the template's labels, so that the Job gets the
            // generated ones as well.
            let shared = template_labels(spec).is_some_and(|labels| job.metadata.labels.as_ref() == Some(labels));
            let name = job.metadata.name.clone().unwrap_or_default();
            generate_selector(spec, &name, job.metadata.uid.as_deref().unwrap_or_default());
            if shared {
                job.metadata.labels = template_labels(spec).cloned();
            }
        }
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Job, old: &Job) {
        // Behind a gate that is off: kept only where it is stored already.
        if old.spec.as_ref().is_none_or(|spec| spec.scheduling.is_none())
            && let Some(spec) = &mut new.spec
        {
            spec.scheduling = None;
        }
    }

    fn validate(&self, _cx: &Cx, job: &Job, errors: &mut Errors) {
        let Some(spec) = &job.spec else { return errors.required(&SPEC.path(), "") };
        validate_generated_selector(job, spec, errors);
        spec::validate(spec, &SPEC, errors);
        validate_name_for_indexes(job, spec, errors);
    }

    fn validate_update(&self, cx: &Cx, new: &Job, old: &Job, errors: &mut Errors) {
        let Some(spec) = &new.spec else { return errors.required(&SPEC.path(), "") };
        let no_spec = JobSpec::default();
        let old_spec = old.spec.as_ref().unwrap_or(&no_spec);
        spec::validate(spec, &SPEC, errors);
        validate_completions(spec, old_spec, errors);
        immutable(&spec.selector, &old_spec.selector, &SPEC.child("selector"), errors);
        template_rule::validate(spec, old_spec, old.status.as_ref(), cx.gates, &SPEC, errors);
        immutable(&spec.completion_mode, &old_spec.completion_mode, &SPEC.child("completionMode"), errors);
        immutable(&spec.pod_failure_policy, &old_spec.pod_failure_policy, &SPEC.child("podFailurePolicy"), errors);
        let per_index = SPEC.child("backoffLimitPerIndex");
        immutable(&spec.backoff_limit_per_index, &old_spec.backoff_limit_per_index, &per_index, errors);
        immutable(&spec.managed_by, &old_spec.managed_by, &SPEC.child("managedBy"), errors);
        immutable(&spec.success_policy, &old_spec.success_policy, &SPEC.child("successPolicy"), errors);
        validate_name_for_indexes(new, spec, errors);
    }

    fn validate_status_update(&self, _cx: &Cx, new: &Job, old: &Job, errors: &mut Errors) {
        status::validate_update(new, old, errors);
    }

    fn warnings(&self, new: &Job, old: Option<&Job>) -> Vec<String> {
        let Some(spec) = &new.spec else { return Vec::new() };
        if old.is_some_and(|old| old.spec == new.spec) {
            return Vec::new();
        }
        let mut out = Vec::new();
        if old.is_none() {
            out.extend(pod_name_warning(new.metadata.name.as_deref().unwrap_or_default()));
        }
        out.extend(spec_warnings(spec, &Path::new("spec")));
        out
    }

    fn defaults_status(&self) -> bool {
        false
    }

    fn warns_of_spec(&self) -> bool {
        true
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Status", "string", 0, "What the Job is doing, or how it ended."),
            Column::new("Completions", "string", 0, "Pods that succeeded, and how many should."),
            Column::new("Duration", "string", 0, "How long the Job ran, or has been running."),
            table::age_column(),
            Column::new("Containers", "string", 1, "Names of the template's containers."),
            Column::new("Images", "string", 1, "Images of the template's containers."),
            Column::new("Selector", "string", 1, "Labels by which the Job finds its pods."),
        ]
    }

    fn cells(&self, job: &Job, meta: &Value, now: Timestamp) -> Vec<Value> {
        let no_spec = JobSpec::default();
        let no_status = JobStatus::default();
        let spec = job.spec.as_ref().unwrap_or(&no_spec);
        let status = job.status.as_ref().unwrap_or(&no_status);
        let (containers, images) = container_cells(spec);
        vec![
            table::name_cell(meta),
            state(status, meta).into(),
            completions_cell(spec, status).into(),
            duration_cell(status, now).into(),
            table::age_cell(meta, now),
            containers.into(),
            images.into(),
            selector::format(spec.selector.as_ref()).into(),
        ]
    }

    fn selectable(&self) -> &'static [&'static str] {
        &["status.successful"]
    }

    fn selected_paths(&self) -> &'static [&'static [&'static str]] {
        &[&["status", "succeeded"]]
    }

    fn select(&self, object: &Value, _field: &str) -> String {
        object.pointer("/status/succeeded").and_then(Value::as_i64).unwrap_or(0).to_string()
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Orphan
    }

    fn delete_warnings(&self) -> Vec<String> {
        vec![
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them \
             or set propagationPolicy=Orphan to suppress this warning"
                .to_owned(),
        ]
    }
}

/// Defaults below the Job's own fields: the only ones a CronJob's job template gets.
pub fn default_pod_level(spec: &mut JobSpec) {
    default_template(&mut spec.template);
    if let Some(policy) = &mut spec.pod_failure_policy {
        for pattern in policy.rules.iter_mut().flat_map(|rule| rule.on_pod_conditions.iter_mut().flatten()) {
            default_text(&mut pattern.status, "True");
        }
    }
}

pub fn template_labels(spec: &JobSpec) -> Option<&BTreeMap<String, String>> {
    spec.template.metadata.as_ref()?.labels.as_ref()
}

/// Pods of a Job are found by the Job's uid, which nobody else has. Labels the author wrote are not overwritten; if
/// they do not fit, validation refuses them.
fn generate_selector(spec: &mut JobSpec, name: &str, uid: &str) {
    let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
    for (key, value) in [
        (LEGACY_JOB_NAME_LABEL, name),
        (JOB_NAME_LABEL, name),
        (LEGACY_CONTROLLER_UID_LABEL, uid),
        (CONTROLLER_UID_LABEL, uid),
    ] {
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let matching = spec.selector.get_or_insert_default().match_labels.get_or_insert_default();
    matching.entry(CONTROLLER_UID_LABEL.to_owned()).or_insert_with(|| uid.to_owned());
}

fn validate_generated_selector(job: &Job, spec: &JobSpec, errors: &mut Errors) {
    let Some(chosen) = spec.selector.as_ref().filter(|_| spec.manual_selector != Some(true)) else { return };
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        errors.required(&METADATA.child("uid").path(), "");
    }
    let no_labels = BTreeMap::new();
    let labels = template_labels(spec).unwrap_or(&no_labels);
    let at = SPEC.child("template");
    let at = at.child("metadata");
    let at = at.child("labels");
    let expected = [
        (LEGACY_CONTROLLER_UID_LABEL, uid),
        (LEGACY_JOB_NAME_LABEL, name),
        (CONTROLLER_UID_LABEL, uid),
        (JOB_NAME_LABEL, name),
    ];
    for (key, value) in expected {
        let detail = format!("must be '{value}'");
        match labels.get(key) {
            None => errors.required(&at.key(key).path(), detail),
            Some(actual) if actual != value => {
                errors.invalid(&at.key(key).path(), super::common::json(labels), detail);
            }
            Some(_) => {}
        }
    }
    let generated = expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    if !selector::matches(chosen, &generated) {
        let detail = "`selector` not auto-generated";
        errors.invalid(&SPEC.child("selector").path(), super::common::json(chosen), detail);
    }
}

/// Each pod of an Indexed Job is named after its index, and that name must be a host name.
fn validate_name_for_indexes(job: &Job, spec: &JobSpec, errors: &mut Errors) {
    let Some(completions) = spec.completions.filter(|n| *n > 0 && is_indexed(spec)) else { return };
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let last = format!("{name}-{}", completions - 1);
    if !names::dns1123_label(&last, false).is_empty() {
        let detail = format!("will not able to create pod with invalid DNS label: {last}");
        errors.invalid(&METADATA.child("name").path(), name, detail);
    }
}

/// Elastic Indexed Jobs grow and shrink with their parallelism; other Jobs keep their completions.
fn validate_completions(new: &JobSpec, old: &JobSpec, errors: &mut Errors) {
    let at = SPEC.child("completions");
    if !is_indexed(new) {
        return immutable(&new.completions, &old.completions, &at, errors);
    }
    let Some(completions) = new.completions.filter(|_| new.completions != old.completions) else { return };
    if new.parallelism != Some(completions) {
        errors.invalid(&at.path(), completions, "can only be modified in tandem with spec.parallelism");
    }
}

pub fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

/// A Job's or CronJob's name becomes part of host names.
pub fn pod_name_warning(name: &str) -> Option<String> {
    let problems = names::dns1123_label(name, false);
    (!problems.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; \
             a DNS label is recommended: [{}]",
            problems.join(" ")
        )
    })
}

pub fn spec_warnings(spec: &JobSpec, at: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let (completions, parallelism) = (spec.completions.unwrap_or(0), spec.parallelism.unwrap_or(0));
    if is_indexed(spec) && completions > 100_000 && parallelism > 10_000 {
        out.push(format!(
            "{at}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    let no_meta = Default::default();
    let meta = spec.template.metadata.as_ref().unwrap_or(&no_meta);
    if let Some(pod) = &spec.template.spec {
        out.extend(warnings::warnings(pod, meta, &at.child("template")));
    }
    out
}

/// Whether a condition is there and `True`.
pub fn is_true(conditions: &[JobCondition], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn state(status: &JobStatus, meta: &Value) -> &'static str {
    // Unlike elsewhere, only the first condition of a type counts here.
    let has = |kind: &str| {
        let first = list(&status.conditions).iter().find(|condition| condition.type_ == kind);
        first.is_some_and(|condition| condition.status == "True")
    };
    let deleting = meta.get("deletionTimestamp").is_some_and(|time| !time.is_null());
    match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if deleting => "Terminating",
        () if has("Suspended") => "Suspended",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions_cell(spec: &JobSpec, status: &JobStatus) -> String {
    let succeeded = status.succeeded.unwrap_or(0);
    match (spec.completions, spec.parallelism.unwrap_or(0)) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn duration_cell(status: &JobStatus, now: Timestamp) -> String {
    let Some(start) = &status.start_time else { return String::new() };
    let end = status.completion_time.as_ref().map_or(now, |time| time.0);
    table::human_duration(end.duration_since(start.0))
}

/// Names and images of the template's containers, for the wide columns.
pub fn container_cells(spec: &JobSpec) -> (String, String) {
    let containers: &[Container] = spec.template.spec.as_ref().map_or(&[], |pod| &pod.containers);
    let names: Vec<&str> = containers.iter().map(|container| container.name.as_str()).collect();
    let images: Vec<&str> = containers.iter().map(|container| super::common::text(&container.image)).collect();
    (names.join(","), images.join(","))
}

#[cfg(test)]
mod tests;
