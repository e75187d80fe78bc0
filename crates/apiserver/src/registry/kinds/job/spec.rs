//! The spec of a Job, in a Job or in a CronJob's job template.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobSpec;
use usher_schema::field::Errors;

use super::{is_indexed, policies, template_labels};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{json, one_of, optional_not_negative, text};
use crate::registry::kinds::pod_template::validate::validate_template;
use crate::registry::kinds::selector;
use crate::registry::names;

const PARALLELISM_MAX: i32 = 100_000;
const FAILED_INDEXES_MAX: i32 = 100_000;
/// Above this many completions, per-index back-off has tighter limits.
const MANY_COMPLETIONS: i32 = 100_000;
const PARALLELISM_MAX_WITH_MANY: i32 = 10_000;
const FAILED_INDEXES_MAX_WITH_MANY: i32 = 10_000;
const MANAGED_BY_MAX: usize = 63;

/// A Job's own spec: what is common, and its selector.
pub fn validate(spec: &JobSpec, at: &At, errors: &mut Errors) {
    validate_common(spec, at, errors);
    match &spec.selector {
        // Upstream reads a missing selector as one that matches nothing, which is a second error.
        None => {
            errors.required(&at.child("selector").path(), "");
            mismatch(spec, at, errors);
        }
        Some(chosen) => {
            selector::validate(chosen, &at.child("selector"), errors);
            let no_labels = BTreeMap::new();
            let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
            let readable =
                super::list(&chosen.match_expressions).iter().all(|e| operators.contains(&e.operator.as_str()));
            if readable && !selector::matches(chosen, template_labels(spec).unwrap_or(&no_labels)) {
                mismatch(spec, at, errors);
            }
        }
    }
}

fn mismatch(spec: &JobSpec, at: &At, errors: &mut Errors) {
    let at = at.child("template");
    let at = at.child("metadata");
    let labels = template_labels(spec).map_or(serde_json::Value::Null, json);
    errors.invalid(&at.child("labels").path(), labels, "`selector` does not match template `labels`");
}

/// What also holds for a job template.
pub fn validate_common(spec: &JobSpec, at: &At, errors: &mut Errors) {
    optional_not_negative(spec.parallelism, &at.child("parallelism"), errors);
    optional_not_negative(spec.completions, &at.child("completions"), errors);
    optional_not_negative(spec.active_deadline_seconds, &at.child("activeDeadlineSeconds"), errors);
    optional_not_negative(spec.backoff_limit, &at.child("backoffLimit"), errors);
    optional_not_negative(spec.ttl_seconds_after_finished, &at.child("ttlSecondsAfterFinished"), errors);
    optional_not_negative(spec.backoff_limit_per_index, &at.child("backoffLimitPerIndex"), errors);
    optional_not_negative(spec.max_failed_indexes, &at.child("maxFailedIndexes"), errors);
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        errors.required(&at.child("backoffLimitPerIndex").path(), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = &spec.managed_by {
        names::domain_prefixed_path(manager, &at.child("managedBy"), errors);
        if manager.len() > MANAGED_BY_MAX {
            errors.too_long(&at.child("managedBy").path(), MANAGED_BY_MAX);
        }
    }
    if let Some(mode) = &spec.completion_mode {
        one_of(mode, &["NonIndexed", "Indexed"], &at.child("completionMode"), errors);
    }
    if is_indexed(spec) {
        validate_indexed(spec, at, errors);
    } else if matches!(spec.completion_mode.as_deref(), None | Some("NonIndexed")) {
        for (field, value) in
            [("backoffLimitPerIndex", spec.backoff_limit_per_index), ("maxFailedIndexes", spec.max_failed_indexes)]
        {
            if let Some(value) = value {
                errors.invalid(&at.child(field).path(), value, "requires indexed completion mode");
            }
        }
    }
    if let Some(policy) = &spec.pod_failure_policy {
        policies::validate_failure(policy, spec, &at.child("podFailurePolicy"), errors);
    }
    if let Some(policy) = &spec.success_policy {
        let at = at.child("successPolicy");
        if is_indexed(spec) {
            policies::validate_success(policy, spec, &at, errors);
        } else {
            errors.invalid(&at.path(), json(policy), "requires indexed completion mode");
        }
    }
    if let Some(policy) = &spec.pod_replacement_policy {
        let supported: &[&str] =
            if spec.pod_failure_policy.is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
        one_of(policy, supported, &at.child("podReplacementPolicy"), errors);
    }
    validate_template(&spec.template, &at.child("template"), errors);
    validate_restart_policy(spec, at, errors);
}

fn validate_indexed(spec: &JobSpec, at: &At, errors: &mut Errors) {
    let Some(completions) = spec.completions else {
        errors.required(&at.child("completions").path(), "when completion mode is Indexed");
        return validate_bounds(spec, i32::MAX, at, errors);
    };
    validate_bounds(spec, completions, at, errors);
    if completions <= MANY_COMPLETIONS || spec.backoff_limit_per_index.is_none() {
        return;
    }
    let suffix = format!("when completions are above {MANY_COMPLETIONS} and used with backoff limit per index");
    if spec.max_failed_indexes.is_none() {
        let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.required(&at.child("maxFailedIndexes").path(), detail);
    }
    if let Some(parallelism) = spec.parallelism.filter(|n| *n > PARALLELISM_MAX_WITH_MANY) {
        let detail = format!("must be less than or equal to {PARALLELISM_MAX_WITH_MANY} {suffix}");
        errors.invalid(&at.child("parallelism").path(), parallelism, detail);
    }
    if let Some(failed) = spec.max_failed_indexes.filter(|n| *n > FAILED_INDEXES_MAX_WITH_MANY) {
        let detail = format!("must be less than or equal to {FAILED_INDEXES_MAX_WITH_MANY} {suffix}");
        errors.invalid(&at.child("maxFailedIndexes").path(), failed, detail);
    }
}

fn validate_bounds(spec: &JobSpec, completions: i32, at: &At, errors: &mut Errors) {
    if let Some(parallelism) = spec.parallelism.filter(|n| *n > PARALLELISM_MAX) {
        let detail = format!("must be less than or equal to {PARALLELISM_MAX} when completion mode is Indexed");
        errors.invalid(&at.child("parallelism").path(), parallelism, detail);
    }
    let Some(failed) = spec.max_failed_indexes else { return };
    let at = at.child("maxFailedIndexes");
    if failed > completions {
        errors.invalid(&at.path(), failed, "must be less than or equal to completions");
    }
    if failed > FAILED_INDEXES_MAX {
        errors.invalid(&at.path(), failed, format!("must be less than or equal to {FAILED_INDEXES_MAX}"));
    }
}

/// A Job ends, so its pods must not be restarted for ever.
fn validate_restart_policy(spec: &JobSpec, at: &At, errors: &mut Errors) {
    let at = at.child("template");
    let at = at.child("spec");
    let at = at.child("restartPolicy");
    let policy = spec.template.spec.as_ref().map_or("", |pod| text(&pod.restart_policy));
    match policy {
        "" | "Always" => errors.required(&at.path(), "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.pod_failure_policy.is_some() => {
            errors.invalid(&at.path(), policy, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        other => errors.not_supported(&at.path(), other, &["OnFailure", "Never"]),
    }
}
