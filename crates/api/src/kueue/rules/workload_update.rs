//! Workloads on the way from an old state to a new one: what stays as it is while quota is held.

use std::collections::BTreeSet;

use serde_json::Value;

use super::workload::{Outline, PodSetOutline, templates};
use super::{Gates, gated_by};
use crate::field::{Errors, Path};
use crate::kueue::admission_check::CheckState;
use crate::kueue::keys::annotation;
use crate::kueue::template;
use crate::kueue::workload_status::{Admission, ReclaimablePod};

pub fn validate(new: &Outline, old: &Outline, gates: &Gates, errors: &mut Errors) {
    let status = Path::new("status");
    if new.has_quota() && old.has_quota() {
        validate_reclaimable(new, old, gates, &status.child("reclaimablePods"), errors);
    }
    let elastic = new.is_elastic(gates) && old.is_elastic(gates);
    validate_admission(new, old, elastic, &status.child("admission"), errors);
    validate_pod_set_updates(new, old, &status.child("admissionChecks"), errors);
    validate_cluster_name(new, old, gates, &status.child("clusterName"), errors);
    let gates_of = |workload: &Outline| workload.annotation(annotation::ADMISSION_GATED_BY).to_owned();
    gated_by::validate_update(&gates_of(new), &gates_of(old), errors);
}

/// Pod sets do not change while quota is held, but for the counts of elastic Workloads: down at will, up to what is admitted.
pub fn pod_sets(
    new: &Outline,
    old: &Outline,
    new_value: &Value,
    old_value: &Value,
    gates: &Gates,
    errors: &mut Errors,
) {
    let path = Path::new("spec").child("podSets");
    let (sets, before) = (&new.spec.pod_sets, &old.spec.pod_sets);
    let shown = new_value.pointer("/spec/podSets").cloned().unwrap_or_default();
    if sets.len() != before.len() {
        errors.immutable(&path, shown);
        return;
    }
    let elastic = new.is_elastic(gates) && old.is_elastic(gates);
    let template_pairs = templates(new_value).zip(templates(old_value));
    for (i, ((set, was), (template, template_was))) in sets.iter().zip(before).zip(template_pairs).enumerate() {
        let same = PodSetOutline { count: was.count, ..clone(set) } == *was && same_template(template, template_was);
        if !same || (set.count != was.count && !elastic) {
            // Upstream's path; it has the index as a field.
            errors.immutable(&path.child(&i.to_string()), shown.get(i).cloned().unwrap_or_default());
            continue;
        }
        let admitted = admitted_count(new, &set.name);
        if set.count > was.count && admitted.is_some_and(|admitted| set.count > admitted) {
            let detail = format!(
                "cannot rise above the {} admitted pods while quota is reserved; added pods are admitted as slices first",
                admitted.unwrap_or_default()
            );
            errors.invalid(&path.index(i).child("count"), set.count, detail);
        }
    }
}

fn clone(set: &PodSetOutline) -> PodSetOutline {
    PodSetOutline {
        name: set.name.clone(),
        count: set.count,
        min_count: set.min_count,
        topology_request: set.topology_request.clone(),
    }
}

fn same_template(new: Option<&Value>, old: Option<&Value>) -> bool {
    // The same quantity may be written in several ways.
    new == old || new.map(template::read) == old.map(template::read)
}

fn admitted_count(workload: &Outline, pod_set: &str) -> Option<i32> {
    let admission = workload.status.admission.as_ref()?;
    admission.pod_set_assignments.iter().find(|a| a.name == pod_set)?.count
}

/// An admission is given and taken, not changed. Places may be found later; elastic Workloads may have more or fewer pods on
/// the same flavors.
fn validate_admission(new: &Outline, old: &Outline, elastic: bool, path: &Path, errors: &mut Errors) {
    let (Some(new), Some(old)) = (&new.status.admission, &old.status.admission) else { return };
    if fixed_part(new, elastic) != fixed_part(old, elastic) {
        errors.immutable(path, serde_json::to_value(new).unwrap_or_default());
    }
}

fn fixed_part(admission: &Admission, elastic: bool) -> Admission {
    let mut fixed = admission.clone();
    for assignment in &mut fixed.pod_set_assignments {
        assignment.topology_assignment = None;
        assignment.delayed_topology_request = None;
        if elastic {
            assignment.count = None;
            assignment.resource_usage.clear();
        }
    }
    fixed
}

/// What a job gave back it does not take again, unless it was scaled down.
fn validate_reclaimable(new: &Outline, old: &Outline, gates: &Gates, path: &Path, errors: &mut Errors) {
    let shrunk = scaled_down(new, gates);
    let count = |pods: &[ReclaimablePod], name: &str| pods.iter().find(|p| p.name == name).map(|p| p.count);
    for was in old.status.reclaimable_pods.iter().filter(|was| !shrunk.contains(was.name.as_str())) {
        let path = path.key(&was.name);
        match count(&new.status.reclaimable_pods, &was.name) {
            Some(now) if now < was.count => {
                errors.invalid(&path.child("count"), now, format!("cannot be less than {}", was.count));
            }
            Some(_) => {}
            None => errors.required(&path, "cannot be removed"),
        }
    }
}

/// Pod sets that are smaller than what was admitted.
fn scaled_down<'w>(workload: &'w Outline, gates: &Gates) -> BTreeSet<&'w str> {
    if !workload.is_elastic(gates) {
        return BTreeSet::new();
    }
    let sets = workload.spec.pod_sets.iter();
    let smaller = sets.filter(|set| admitted_count(workload, &set.name).is_some_and(|admitted| admitted > set.count));
    smaller.map(|set| set.name.as_str()).collect()
}

/// What a check asked for when it was ready, it got.
fn validate_pod_set_updates(new: &Outline, old: &Outline, path: &Path, errors: &mut Errors) {
    for (i, was) in old.status.admission_checks.iter().enumerate() {
        let Some(now) = new.status.admission_checks.iter().find(|check| check.name == was.name) else { continue };
        let ready = was.state == CheckState::Ready && now.state == CheckState::Ready;
        if ready && was.pod_set_updates != now.pod_set_updates {
            let value = serde_json::to_value(&now.pod_set_updates).unwrap_or_default();
            errors.immutable(&path.index(i).child("podSetUpdates"), value);
        }
    }
}

fn validate_cluster_name(new: &Outline, old: &Outline, gates: &Gates, path: &Path, errors: &mut Errors) {
    if gates.elastic_jobs && !new.annotation(annotation::SLICE_REPLACEMENT_FOR).is_empty() {
        return;
    }
    if let (None, Some(name)) = (&old.status.cluster_name, &new.status.cluster_name)
        && !old.status.nominated_cluster_names.contains(name)
    {
        errors.invalid(path, name.as_str(), "when setting clusterName it must be one of the nominatedClusterNames");
    }
}
