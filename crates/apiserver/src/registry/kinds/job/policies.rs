//! Pod failure policy and success policy.

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule, SuccessPolicy, SuccessPolicyRule,
};
use usher_schema::field::Errors;

use super::indexes;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, invalid_without_value, json, list, not_negative, text};
use crate::registry::names;

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const PATTERNS_MAX: usize = 20;
const SUCCEEDED_INDEXES_MAX: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];

pub fn validate_failure(policy: &PodFailurePolicy, spec: &JobSpec, at: &At, errors: &mut Errors) {
    let at = at.child("rules");
    if policy.rules.len() > RULES_MAX {
        errors.too_many(&at.path(), policy.rules.len(), RULES_MAX);
    }
    for (i, rule) in policy.rules.iter().enumerate() {
        validate_failure_rule(rule, spec, &at.index(i), errors);
    }
}

fn validate_failure_rule(rule: &PodFailurePolicyRule, spec: &JobSpec, at: &At, errors: &mut Errors) {
    one_of_listed(&rule.action, &ACTIONS, &at.child("action"), errors);
    if rule.action == "FailIndex" && spec.backoff_limit_per_index.is_none() {
        let detail = "requires the backoffLimitPerIndex to be set";
        errors.invalid(&at.child("action").path(), rule.action.as_str(), detail);
    }
    let conditions = list(&rule.on_pod_conditions);
    if let Some(codes) = &rule.on_exit_codes {
        validate_exit_codes(codes, spec, &at.child("onExitCodes"), errors);
    }
    if !conditions.is_empty() {
        validate_conditions(conditions, &at.child("onPodConditions"), errors);
    }
    match (rule.on_exit_codes.is_some(), !conditions.is_empty()) {
        (true, true) => {
            let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
            invalid_without_value(at, detail, errors);
        }
        (false, false) => {
            let detail = "specifying one of OnExitCodes and OnPodConditions is required";
            invalid_without_value(at, detail, errors);
        }
        _ => {}
    }
}

/// A missing value is answered with the list of possible ones, printed as Go prints a slice.
fn one_of_listed(value: &str, supported: &[&str], at: &At, errors: &mut Errors) {
    if value.is_empty() {
        let quoted: Vec<String> = supported.iter().map(|s| format!("\"{s}\"")).collect();
        errors.required(&at.path(), format!("valid values: [{}]", quoted.join(" ")));
    } else if !supported.contains(&value) {
        errors.not_supported(&at.path(), value, supported);
    }
}

fn validate_exit_codes(codes: &PodFailurePolicyOnExitCodesRequirement, spec: &JobSpec, at: &At, errors: &mut Errors) {
    one_of_listed(&codes.operator, &OPERATORS, &at.child("operator"), errors);
    if let Some(name) = &codes.container_name {
        let pod = spec.template.spec.as_ref();
        let known = pod.is_some_and(|pod| {
            pod.containers.iter().chain(list(&pod.init_containers)).any(|container| container.name == *name)
        });
        if !known {
            let detail = "must be one of the container or initContainer names in the pod template";
            errors.invalid(&at.child("containerName").path(), name.as_str(), detail);
        }
    }
    let (at, values) = (at.child("values"), &codes.values);
    if values.is_empty() {
        errors.invalid(&at.path(), json(values), "at least one value is required");
    } else if values.len() > EXIT_CODES_MAX {
        errors.too_many(&at.path(), values.len(), EXIT_CODES_MAX);
    }
    let mut seen = std::collections::HashSet::new();
    for (i, code) in values.iter().enumerate() {
        if codes.operator == "In" && *code == 0 {
            errors.invalid(&at.index(i).path(), 0, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate(&at.index(i).path(), *code);
        }
    }
    if !values.is_sorted() {
        errors.invalid(&at.path(), json(values), "must be ordered");
    }
}

fn validate_conditions(patterns: &[PodFailurePolicyOnPodConditionsPattern], at: &At, errors: &mut Errors) {
    if patterns.len() > PATTERNS_MAX {
        errors.too_many(&at.path(), patterns.len(), PATTERNS_MAX);
    }
    for (i, pattern) in patterns.iter().enumerate() {
        let at = at.index(i);
        each_invalid(names::qualified(&pattern.type_), &pattern.type_, &at.child("type"), errors);
        one_of_listed(text(&pattern.status), &STATUSES, &at.child("status"), errors);
    }
}

pub fn validate_success(policy: &SuccessPolicy, spec: &JobSpec, at: &At, errors: &mut Errors) {
    let at = at.child("rules");
    if policy.rules.is_empty() {
        errors.required(&at.path(), "at least one rules must be specified when the successPolicy is specified");
    }
    if policy.rules.len() > RULES_MAX {
        errors.too_many(&at.path(), policy.rules.len(), RULES_MAX);
    }
    for (i, rule) in policy.rules.iter().enumerate() {
        validate_success_rule(rule, spec.completions.unwrap_or(0), &at.index(i), errors);
    }
}

fn validate_success_rule(rule: &SuccessPolicyRule, completions: i32, at: &At, errors: &mut Errors) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        errors.required(&at.path(), "at least one of succeededCount or succeededIndexes must be specified");
    }
    let mut listed = 0;
    if let Some(text) = &rule.succeeded_indexes {
        let at = at.child("succeededIndexes");
        if text.len() > SUCCEEDED_INDEXES_MAX {
            errors.too_long(&at.path(), SUCCEEDED_INDEXES_MAX);
        }
        match indexes::count(text, completions) {
            Ok(count) => listed = count,
            Err(why) => {
                errors.invalid(&at.path(), text.as_str(), format!("error parsing succeededIndexes: {why}"));
            }
        }
    }
    if let Some(count) = rule.succeeded_count {
        let at = at.child("succeededCount");
        not_negative(count, &at, errors);
        if count > completions {
            let detail = format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.invalid(&at.path(), count, detail);
        }
        if rule.succeeded_indexes.is_some() && count > listed {
            let detail = format!(
                "must be less than or equal to {listed} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.invalid(&at.path(), count, detail);
        }
    }
}
