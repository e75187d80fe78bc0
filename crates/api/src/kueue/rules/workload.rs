//! Workloads: what holds for each one. What holds between an old and a new one is in [`super::workload_update`].
//!
//! This is asked for every status write of every Workload, so pod templates are read only when they may have changed.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::review::{read, unreadable};
use super::{Gates, Verdict, gated_by, labels, pod_set, workload_update};
use crate::field::{Errors, Path};
use crate::kueue::conditions::{self, WorkloadCondition};
use crate::kueue::keys::{self, annotation};
use crate::kueue::workload::PodSetTopologyRequest;
use crate::kueue::workload_status::{Admission, AdmissionCheckState, ReclaimablePod, WorkloadStatus};
use crate::quantity::Quantity;

/// A Workload without its templates.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Outline {
    metadata: Meta,
    pub spec: Spec,
    pub status: WorkloadStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Meta {
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub pod_sets: Vec<PodSetOutline>,
    admission_constraints: Constraints,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Constraints {
    allowed_resource_flavors: Vec<String>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetOutline {
    pub name: String,
    pub count: i32,
    pub min_count: Option<i32>,
    pub topology_request: Option<PodSetTopologyRequest>,
}

impl Default for PodSetOutline {
    fn default() -> PodSetOutline {
        PodSetOutline { name: keys::MAIN_POD_SET.to_owned(), count: 1, min_count: None, topology_request: None }
    }
}

impl Outline {
    pub fn is(&self, condition: WorkloadCondition) -> bool {
        conditions::is_true(&self.status.conditions, condition.as_str())
    }

    pub fn has_quota(&self) -> bool {
        self.is(WorkloadCondition::QuotaReserved)
    }

    pub fn annotation(&self, key: &str) -> &str {
        self.metadata.annotations.get(key).map_or("", String::as_str)
    }

    pub fn is_elastic(&self, gates: &Gates) -> bool {
        gates.elastic_jobs && self.annotation(annotation::ELASTIC_JOB) == keys::TRUE
    }

    /// Holds quota, and nobody knows which.
    fn has_quota_without_admission(&self) -> bool {
        self.has_quota() && self.status.admission.is_none()
    }

    fn pod_set_names(&self) -> Vec<&str> {
        self.spec.pod_sets.iter().map(|p| p.name.as_str()).collect()
    }
}

/// The template of each pod set, as it came.
pub fn templates(workload: &Value) -> impl Iterator<Item = Option<&Value>> {
    let pod_sets = workload.pointer("/spec/podSets").and_then(Value::as_array);
    pod_sets.into_iter().flatten().map(|p| p.get("template"))
}

pub fn validate(new_value: &Value, old_value: Option<&Value>, is_status: bool, gates: &Gates) -> Verdict {
    let mut verdict = Verdict::default();
    let errors = &mut verdict.errors;
    let new: Outline = match read(new_value) {
        Ok(new) => new,
        Err(why) => {
            unreadable(&why, errors);
            return verdict;
        }
    };
    let old: Option<Outline> = old_value.and_then(|old| read(old).ok());
    if !is_status {
        validate_templates(new_value, old_value, errors);
    }
    validate_spec(&new, gates, errors);
    validate_status(&new, old.as_ref(), gates, errors);
    if let (Some(old), Some(old_value)) = (&old, old_value) {
        workload_update::validate(&new, old, gates, errors);
        if !is_status && old.has_quota() {
            workload_update::pod_sets(&new, old, new_value, old_value, gates, errors);
        }
    }
    verdict
}

fn validate_templates(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    let path = Path::new("spec").child("podSets");
    let before: Vec<Option<&Value>> = old.into_iter().flat_map(templates).collect();
    for (i, template) in templates(new).enumerate() {
        // One that is as it was has been accepted already.
        if let Some(template) = template.filter(|t| before.get(i).copied().flatten() != Some(*t)) {
            pod_set::validate_template(template, &path.index(i).child("template"), errors);
        }
    }
}

fn validate_spec(workload: &Outline, gates: &Gates, errors: &mut Errors) {
    let path = Path::new("spec").child("podSets");
    for (i, pod_set) in workload.spec.pod_sets.iter().enumerate() {
        if let Some(request) = &pod_set.topology_request {
            pod_set::validate_slice_size(request, &path.index(i).child("topologyRequest"), errors);
        }
    }
    let variable = workload.spec.pod_sets.iter().filter(|p| p.min_count.is_some()).count();
    if variable > 1 {
        errors.invalid(&path, variable, "at most one podSet can use minCount");
    }
    if variable > 0 && workload.is_elastic(gates) {
        errors.invalid(&path, variable, "partial admission and elastic job cannot be used together");
    }
    let said = &workload.spec.admission_constraints.allowed_resource_flavors;
    let noted = workload.annotation(annotation::ALLOWED_RESOURCE_FLAVORS);
    if !said.is_empty() && !noted.is_empty() && noted.split(',').map(str::trim).ne(said.iter().map(String::as_str)) {
        let detail =
            format!("must be the same as the annotation {} if both are set", annotation::ALLOWED_RESOURCE_FLAVORS);
        let path = Path::new("spec").child("admissionConstraints").child("allowedResourceFlavors");
        errors.invalid(&path, said.join(","), detail);
    }
}

fn validate_status(new: &Outline, old: Option<&Outline>, gates: &Gates, errors: &mut Errors) {
    let path = Path::new("status");
    if new.has_quota() {
        validate_admission(new, old, &path.child("admission"), errors);
    }
    validate_reclaimable(new, old, gates, &path.child("reclaimablePods"), errors);
    for (i, check) in new.status.admission_checks.iter().enumerate() {
        validate_updates(check, new, &path.child("admissionChecks").index(i).child("podSetUpdates"), errors);
    }
    if old.is_none() {
        gated_by::validate(new.annotation(annotation::ADMISSION_GATED_BY), errors);
    }
}

fn validate_admission(new: &Outline, old: Option<&Outline>, path: &Path, errors: &mut Errors) {
    let Some(admission) = &new.status.admission else {
        // One that was like this already may go on, so that it can end.
        if !old.is_some_and(Outline::has_quota_without_admission) {
            errors.required(path, "must be set while the QuotaReserved condition is true");
        }
        return;
    };
    validate_assignments(admission, &new.pod_set_names(), &path.child("podSetAssignments"), errors);
}

fn validate_assignments(admission: &Admission, names: &[&str], path: &Path, errors: &mut Errors) {
    for (i, assignment) in admission.pod_set_assignments.iter().enumerate() {
        let path = path.index(i);
        if !names.contains(&assignment.name.as_str()) {
            errors.not_found(&path.child("name"), assignment.name.as_str());
        }
        let Some(count) = assignment.count.filter(|count| *count > 0) else { continue };
        for (resource, used) in &assignment.resource_usage {
            if amount(resource, *used) % i64::from(count) != 0 {
                let path = path.child("resourceUsage").key(resource);
                errors.invalid(&path, used.to_string(), format!("is not a multiple of {count}"));
            }
        }
    }
}

/// Cpu counts in thousandths, all else in whole units.
fn amount(resource: &str, quantity: Quantity) -> i64 {
    if resource == "cpu" { quantity.milli() } else { quantity.units() }
}

fn validate_reclaimable(new: &Outline, old: Option<&Outline>, gates: &Gates, path: &Path, errors: &mut Errors) {
    // Left over from before an elastic job was scaled down: it may stay until it is worked out anew.
    let is_left_over = |pod: &ReclaimablePod| {
        new.is_elastic(gates) && old.is_some_and(|old| old.status.reclaimable_pods.contains(pod))
    };
    for pod in &new.status.reclaimable_pods {
        let path = path.key(&pod.name);
        match new.spec.pod_sets.iter().find(|p| p.name == pod.name) {
            None => errors.not_supported(&path.child("name"), pod.name.as_str(), &new.pod_set_names()),
            Some(pod_set) if pod.count > pod_set.count && !is_left_over(pod) => {
                let detail = format!("should be less or equal to {}", pod_set.count);
                errors.invalid(&path.child("count"), pod.count, detail);
            }
            Some(_) => {}
        }
    }
}

fn validate_updates(check: &AdmissionCheckState, workload: &Outline, path: &Path, errors: &mut Errors) {
    for (i, update) in check.pod_set_updates.iter().enumerate() {
        let path = path.index(i);
        let mut names = workload.pod_set_names();
        if !names.contains(&update.name.as_str()) {
            names.sort_unstable();
            errors.not_supported(&path.child("name"), update.name.as_str(), &names);
        }
        labels::tolerations(&update.tolerations, &path.child("tolerations"), errors);
        labels::annotations(&update.annotations, &path.child("annotations"), errors);
        labels::labels(&update.node_selector, &path.child("nodeSelector"), errors);
        labels::labels(&update.labels, &path.child("labels"), errors);
    }
}
