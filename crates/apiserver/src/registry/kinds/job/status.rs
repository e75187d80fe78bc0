//! The status of a Job, whoever writes it: the built-in controller or one named by `managedBy`.
//!
//! Each rule is applied only when what it is about changed, so that an old violation does not block unrelated updates.

use std::collections::HashSet;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use usher_schema::field::Errors;

use super::{indexes, is_indexed, is_true};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{invalid_without_value, json, list, not_negative, optional_not_negative, text};

const STATUS: At = At::Root("status");

/// One side of the comparison, with its conditions read once.
struct View<'a> {
    status: &'a JobStatus,
    complete: bool,
    failed: bool,
    failure_target: bool,
    success_criteria_met: bool,
}

impl<'a> View<'a> {
    fn of(status: &'a JobStatus) -> View<'a> {
        let conditions = list(&status.conditions);
        View {
            status,
            complete: is_true(conditions, "Complete"),
            failed: is_true(conditions, "Failed"),
            failure_target: is_true(conditions, "FailureTarget"),
            success_criteria_met: is_true(conditions, "SuccessCriteriaMet"),
        }
    }

    fn finished(&self) -> bool {
        self.complete || self.failed
    }
}

pub fn validate_update(new: &Job, old: &Job, errors: &mut Errors) {
    let (no_status, no_spec) = (JobStatus::default(), JobSpec::default());
    let spec = new.spec.as_ref().unwrap_or(&no_spec);
    let new = View::of(new.status.as_ref().unwrap_or(&no_status));
    let old = View::of(old.status.as_ref().unwrap_or(&no_status));
    validate_counts(new.status, errors);
    validate_times(&new, &old, spec, errors);
    validate_conditions(&new, &old, spec, errors);
    validate_finished(&new, &old, spec, errors);
    validate_indexes(&new, &old, spec, errors);
    validate_transitions(&new, &old, spec, errors);
}

fn validate_counts(status: &JobStatus, errors: &mut Errors) {
    not_negative(status.active.unwrap_or(0), &STATUS.child("active"), errors);
    not_negative(status.succeeded.unwrap_or(0), &STATUS.child("succeeded"), errors);
    not_negative(status.failed.unwrap_or(0), &STATUS.child("failed"), errors);
    optional_not_negative(status.ready, &STATUS.child("ready"), errors);
    optional_not_negative(status.terminating, &STATUS.child("terminating"), errors);
    let Some(uncounted) = &status.uncounted_terminated_pods else { return };
    let at = STATUS.child("uncountedTerminatedPods");
    let mut seen = HashSet::new();
    for (field, uids) in [("succeeded", &uncounted.succeeded), ("failed", &uncounted.failed)] {
        for (i, uid) in list(uids).iter().enumerate() {
            let at = at.child(field);
            if uid.is_empty() {
                errors.invalid(&at.index(i).path(), "", "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(&at.index(i).path(), uid.as_str());
            }
        }
    }
}

fn validate_conditions(new: &View, old: &View, spec: &JobSpec, errors: &mut Errors) {
    let complete_changed = new.complete != old.complete;
    let failed_changed = new.failed != old.failed;
    let target_changed = new.failure_target != old.failure_target;
    let criteria_changed = new.success_criteria_met != old.success_criteria_met;
    let failed_indexes_changed = new.status.failed_indexes != old.status.failed_indexes;
    let refusals = [
        (
            (complete_changed || failed_changed) && new.complete && new.failed,
            "cannot set Complete=True and Failed=true conditions",
        ),
        (
            (complete_changed || target_changed) && new.complete && new.failure_target,
            "cannot set Complete=True and FailureTarget=true conditions",
        ),
        (
            (failed_changed || failed_indexes_changed) && new.failed && !new.failure_target,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            (complete_changed || criteria_changed) && new.complete && !new.success_criteria_met,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
        (new.success_criteria_met && new.failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        (
            new.success_criteria_met && new.failure_target,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
        (
            spec.success_policy.is_some() && !new.success_criteria_met && new.complete,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        ),
    ];
    for (_, detail) in refusals.into_iter().filter(|(refused, _)| *refused) {
        invalid_without_value(&STATUS.child("conditions"), detail, errors);
    }
}

fn validate_times(new: &View, old: &View, spec: &JobSpec, errors: &mut Errors) {
    let (status, before) = (new.status, old.status);
    let start_changed = status.start_time != before.start_time;
    let completion_changed = status.completion_time != before.completion_time;
    let at = STATUS.child("completionTime");
    if new.complete != old.complete || completion_changed {
        match (&status.completion_time, new.complete) {
            (Some(time), false) => {
                let detail = "cannot set completionTime when there is no Complete=True condition";
                errors.invalid(&at.path(), json(time), detail);
            }
            (None, true) => errors.required(&at.path(), "completionTime is required for Complete jobs"),
            _ => {}
        }
    }
    if let (Some(start), Some(end)) = (&status.start_time, &status.completion_time)
        && (start_changed || completion_changed)
        && end < start
    {
        errors.invalid(&at.path(), json(end), "must be equal to or after `startTime`");
    }
    if let (Some(new_time), Some(_)) = (&status.completion_time, &before.completion_time)
        && completion_changed
    {
        errors.immutable(&at.path(), json(new_time));
    }
    let said = |conditions: &Option<Vec<JobCondition>>, value: &str| {
        list(conditions).iter().any(|condition| condition.type_ == "Suspended" && condition.status == value)
    };
    let resuming = said(&before.conditions, "True") && said(&status.conditions, "False");
    if start_changed && !resuming && before.start_time.is_some() && spec.suspend != Some(true) {
        let detail = "field is immutable for unsuspended job once set";
        errors.invalid(&STATUS.child("startTime").path(), json(&status.start_time), detail);
    }
}

fn validate_finished(new: &View, old: &View, spec: &JobSpec, errors: &mut Errors) {
    let (status, before) = (new.status, old.status);
    let finished_changed = new.finished() != old.finished();
    let active = status.active.unwrap_or(0);
    let active_changed = active != before.active.unwrap_or(0);
    if new.finished() {
        if (finished_changed || active_changed) && active > 0 {
            errors.invalid(&STATUS.child("active").path(), active, "active>0 is invalid for finished job");
        }
        let never_ran = spec.suspend == Some(true) && spec.completions == Some(0);
        let start_changed = status.start_time != before.start_time;
        if (finished_changed || start_changed) && !never_ran && status.start_time.is_none() {
            errors.required(&STATUS.child("startTime").path(), "startTime is required for finished job");
        }
        let uncounted = status.uncounted_terminated_pods.as_ref();
        let pods = uncounted.map_or(0, |pods| list(&pods.failed).len() + list(&pods.succeeded).len());
        let uncounted_changed = status.uncounted_terminated_pods != before.uncounted_terminated_pods;
        if (finished_changed || uncounted_changed) && pods > 0 {
            let at = STATUS.child("uncountedTerminatedPods");
            errors.invalid(&at.path(), json(&uncounted), "must be empty for finished job");
        }
        let terminating_changed = status.terminating != before.terminating;
        if let Some(terminating) = status.terminating.filter(|n| *n > 0 && (finished_changed || terminating_changed)) {
            let detail = "terminating>0 is invalid for finished job";
            errors.invalid(&STATUS.child("terminating").path(), terminating, detail);
        }
    }
    let ready_changed = status.ready != before.ready;
    if let Some(ready) = status.ready.filter(|ready| *ready > active && (ready_changed || active_changed)) {
        errors.invalid(&STATUS.child("ready").path(), ready, "cannot set more ready pods than active");
    }
}

fn validate_indexes(new: &View, old: &View, spec: &JobSpec, errors: &mut Errors) {
    let completed = text(&new.status.completed_indexes);
    let completed_changed = completed != text(&old.status.completed_indexes);
    let failed_changed = new.status.failed_indexes != old.status.failed_indexes;
    let (completed_at, failed_at) = (STATUS.child("completedIndexes"), STATUS.child("failedIndexes"));
    if completed_changed {
        if let Some(Err(why)) = spec.completions.map(|completions| indexes::count(completed, completions)) {
            errors.invalid(&completed_at.path(), completed, format!("error parsing completedIndexes: {why}"));
        }
        if !completed.is_empty() && !is_indexed(spec) {
            let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.invalid(&completed_at.path(), completed, detail);
        }
    }
    let Some(failed) = &new.status.failed_indexes else { return };
    if failed_changed {
        let parsed = spec.completions.filter(|_| spec.backoff_limit_per_index.is_some());
        if let Some(Err(why)) = parsed.map(|completions| indexes::count(failed, completions)) {
            errors.invalid(&failed_at.path(), failed.as_str(), format!("error parsing failedIndexes: {why}"));
        }
        if spec.backoff_limit_per_index.is_none() {
            let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.invalid(&failed_at.path(), failed.as_str(), detail);
        }
    }
    if failed_changed || completed_changed {
        let shared = spec.completions.and_then(|completions| indexes::overlap(completed, failed, completions));
        if let Some(index) = shared {
            let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
            errors.invalid(&failed_at.path(), failed.as_str(), detail);
        }
    }
}

/// What may not be taken back.
fn validate_transitions(new: &View, old: &View, spec: &JobSpec, errors: &mut Errors) {
    let at = STATUS.child("conditions");
    for (before, now, kind) in [
        (old.failed, new.failed, "Failed"),
        (old.complete, new.complete, "Complete"),
        (old.failure_target, new.failure_target, "FailureTarget"),
    ] {
        if before && !now {
            invalid_without_value(&at, format!("cannot disable the terminal {kind}=True condition"), errors);
        }
    }
    let failed = new.status.failed.unwrap_or(0);
    if failed < old.status.failed.unwrap_or(0) {
        errors.invalid(&STATUS.child("failed").path(), failed, "cannot decrease the failed counter");
    }
    // Elastic Indexed Jobs forget successes when they shrink.
    let elastic = is_indexed(spec) && spec.completions == spec.parallelism;
    let succeeded = new.status.succeeded.unwrap_or(0);
    if !elastic && succeeded < old.status.succeeded.unwrap_or(0) {
        errors.invalid(&STATUS.child("succeeded").path(), succeeded, "cannot decrease the succeeded counter");
    }
    if old.success_criteria_met && !new.success_criteria_met {
        invalid_without_value(&at, "cannot disable the SuccessCriteriaMet=True condition", errors);
    }
    if old.complete && !old.success_criteria_met && new.success_criteria_met {
        let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        invalid_without_value(&at, detail, errors);
    }
}
