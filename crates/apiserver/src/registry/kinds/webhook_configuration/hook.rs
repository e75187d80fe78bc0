//! The rules of one webhook, whichever kind of configuration it is in.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, RuleWithOperations, ServiceReference, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use usher_schema::field::Errors;

use super::url::validate_url;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, list, one_of};
use crate::registry::kinds::selector;
use crate::registry::names;

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MAX_CONDITIONS: usize = 64;

/// What the two kinds of webhooks have in common.
pub struct Hook<'a> {
    pub name: &'a str,
    pub client_config: &'a WebhookClientConfig,
    pub rules: &'a [RuleWithOperations],
    pub failure_policy: Option<&'a str>,
    pub match_policy: Option<&'a str>,
    /// For the namespace, for the object.
    pub selectors: [Option<&'a LabelSelector>; 2],
    pub side_effects: &'a str,
    pub timeout_seconds: Option<i32>,
    pub review_versions: &'a [String],
    pub match_conditions: &'a [MatchCondition],
    pub reinvocation_policy: Option<&'a str>,
}

/// Newer rules do not apply to a configuration that broke them before they were rules.
pub struct Strictness {
    no_side_effects: bool,
    known_review_version: bool,
    unique_names: bool,
    match_conditions: bool,
}

impl Strictness {
    pub fn of_new() -> Strictness {
        Strictness { no_side_effects: true, known_review_version: true, unique_names: true, match_conditions: true }
    }

    pub fn of_update(new: &[Hook], old: &[Hook]) -> Strictness {
        let known = |hook: &Hook| hook.review_versions.is_empty() || has_known_version(hook.review_versions);
        let names: BTreeSet<&str> = old.iter().map(|hook| hook.name).collect();
        let same_conditions = new.len() == old.len()
            && new.iter().zip(old).all(|(new, old)| new.match_conditions == old.match_conditions);
        Strictness {
            no_side_effects: old.iter().all(|hook| NO_SIDE_EFFECTS.contains(&hook.side_effects)),
            known_review_version: old.iter().all(known),
            unique_names: names.len() == old.len(),
            match_conditions: !same_conditions,
        }
    }
}

fn has_known_version(versions: &[String]) -> bool {
    versions.iter().any(|version| REVIEW_VERSIONS.contains(&version.as_str()))
}

pub fn validate_hooks(hooks: &[Hook], strict: &Strictness, errors: &mut Errors) {
    let at = At::Root("webhooks");
    let mut seen = BTreeSet::new();
    for (i, hook) in hooks.iter().enumerate() {
        let at = at.index(i);
        validate_hook(hook, strict, &at, errors);
        validate_review_versions(hook.review_versions, strict, &at.child("admissionReviewVersions"), errors);
        if strict.unique_names && !hook.name.is_empty() && !seen.insert(hook.name) {
            errors.duplicate(&at.child("name").path(), hook.name);
        }
    }
}

fn validate_hook(hook: &Hook, strict: &Strictness, at: &At, errors: &mut Errors) {
    names::fully_qualified(hook.name, &at.child("name"), errors);
    let rules_at = at.child("rules");
    for (i, rule) in hook.rules.iter().enumerate() {
        validate_rule(rule, &rules_at.index(i), errors);
    }
    for (field, value, supported) in [
        ("failurePolicy", hook.failure_policy, ["Fail", "Ignore"]),
        ("matchPolicy", hook.match_policy, ["Equivalent", "Exact"]),
    ] {
        if let Some(value) = value {
            one_of(value, &supported, &at.child(field), errors);
        }
    }
    let effects: &[&str] = if strict.no_side_effects { &NO_SIDE_EFFECTS } else { &SIDE_EFFECTS };
    if hook.side_effects.is_empty() {
        errors.required(&at.child("sideEffects").path(), format!("must specify one of {}", effects.join(", ")));
    } else {
        one_of(hook.side_effects, effects, &at.child("sideEffects"), errors);
    }
    if let Some(seconds) = hook.timeout_seconds.filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&at.child("timeoutSeconds").path(), seconds, detail);
    }
    for (field, labels) in ["namespaceSelector", "objectSelector"].into_iter().zip(hook.selectors) {
        if let Some(labels) = labels {
            selector::validate(labels, &at.child(field), errors);
        }
    }
    if let Some(policy) = hook.reinvocation_policy {
        one_of(policy, &["IfNeeded", "Never"], &at.child("reinvocationPolicy"), errors);
    }
    let client_at = at.child("clientConfig");
    match (&hook.client_config.url, &hook.client_config.service) {
        (Some(url), None) => validate_url(url, &client_at.child("url"), errors),
        (None, Some(service)) => validate_service(service, &client_at.child("service"), errors),
        _ => errors.required(&client_at.path(), "exactly one of url or service is required"),
    }
    if strict.match_conditions {
        validate_conditions(hook.match_conditions, &at.child("matchConditions"), errors);
    }
}

fn validate_review_versions(versions: &[String], strict: &Strictness, at: &At, errors: &mut Errors) {
    if versions.is_empty() {
        return errors.required(&at.path(), format!("must specify one of {}", REVIEW_VERSIONS.join(", ")));
    }
    let mut seen = BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            errors.invalid(&at.index(i).path(), version.as_str(), "duplicate version");
            continue;
        }
        each_invalid(names::dns1035_label(version, false), version, &at.index(i), errors);
    }
    if strict.known_review_version && !has_known_version(versions) {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.invalid(&at.path(), versions, detail);
    }
}

fn validate_rule(rule: &RuleWithOperations, at: &At, errors: &mut Errors) {
    let operations = list(&rule.operations);
    not_only_wildcard(operations, "operations", at.child("operations"), errors);
    for (i, operation) in operations.iter().enumerate() {
        one_of(operation, &OPERATIONS, &at.child("operations").index(i), errors);
    }
    not_only_wildcard(list(&rule.api_groups), "API groups", at.child("apiGroups"), errors);
    let versions = list(&rule.api_versions);
    not_only_wildcard(versions, "API versions", at.child("apiVersions"), errors);
    for (i, _) in versions.iter().enumerate().filter(|(_, version)| version.is_empty()) {
        errors.required(&at.child("apiVersions").index(i).path(), "");
    }
    validate_resources(list(&rule.resources), &at.child("resources"), errors);
    if let Some(scope) = &rule.scope {
        one_of(scope, &["*", "Cluster", "Namespaced"], &at.child("scope"), errors);
    }
}

/// There is something, and beside `*` there is nothing.
fn not_only_wildcard(values: &[String], what: &str, at: At, errors: &mut Errors) {
    if values.is_empty() {
        errors.required(&at.path(), "");
    }
    if values.len() > 1 && values.iter().any(|value| value == "*") {
        errors.invalid(&at.path(), values, format!("if '*' is present, must not specify other {what}"));
    }
}

fn validate_resources(resources: &[String], at: &At, errors: &mut Errors) {
    if resources.is_empty() {
        errors.required(&at.path(), "");
    }
    let (mut all_of, mut in_all): (BTreeSet<&str>, BTreeSet<&str>) = Default::default();
    // As upstream: the last resource without a subresource decides.
    let mut plain_last = false;
    for (i, resource) in resources.iter().enumerate() {
        if resource.is_empty() {
            errors.required(&at.index(i).path(), "");
            continue;
        }
        let Some((name, sub)) = resource.split_once('/') else {
            plain_last = resource != "*";
            continue;
        };
        if all_of.contains(name) {
            let detail = format!("if '{name}/*' is present, must not specify {resource}");
            errors.invalid(&at.index(i).path(), resource.as_str(), detail);
        }
        if in_all.contains(sub) {
            let detail = format!("if '*/{sub}' is present, must not specify {resource}");
            errors.invalid(&at.index(i).path(), resource.as_str(), detail);
        }
        if sub == "*" {
            all_of.insert(name);
        }
        if name == "*" {
            in_all.insert(sub);
        }
    }
    let has = |wanted: &str| resources.iter().any(|resource| resource == wanted);
    if resources.len() > 1 && has("*/*") {
        errors.invalid(&at.path(), resources, "if '*/*' is present, must not specify other resources");
    }
    if has("*") && plain_last {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(&at.path(), resources, detail);
    }
}

fn validate_service(service: &ServiceReference, at: &At, errors: &mut Errors) {
    // Upstream hands over the two in the wrong order, so that each is reported under the other's name.
    if service.namespace.is_empty() {
        errors.required(&at.child("name").path(), "");
    }
    if service.name.is_empty() {
        errors.required(&at.child("namespace").path(), "");
    }
    let port = service.port.unwrap_or_default();
    let problems = names::port_number(i64::from(port));
    if !problems.is_empty() {
        errors.invalid(&at.child("port").path(), port, format!("port is not valid: {}", problems.join(", ")));
    }
    if let Some(path) = &service.path {
        validate_path(path, &at.child("path"), errors);
    }
}

fn validate_path(path: &str, at: &At, errors: &mut Errors) {
    match path {
        "" | "/" => return,
        "//" => return errors.invalid(&at.path(), path, "segment[0] may not be empty"),
        _ => {}
    }
    if !path.starts_with('/') {
        errors.invalid(&at.path(), path, "must start with a '/'");
    }
    let rest = path.char_indices().nth(1).map_or("", |(start, _)| &path[start..]);
    for (i, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(&at.path(), path, format!("segment[{i}] may not be empty"));
            continue;
        }
        for problem in names::dns1123_subdomain(step, false) {
            errors.invalid(&at.path(), path, format!("segment[{i}]: {problem}"));
        }
    }
}

fn validate_conditions(conditions: &[MatchCondition], at: &At, errors: &mut Errors) {
    if conditions.len() > MAX_CONDITIONS {
        errors.too_many(&at.path(), conditions.len(), MAX_CONDITIONS);
    }
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let at = at.index(i);
        let expression = condition.expression.trim();
        if expression.is_empty() {
            errors.required(&at.child("expression").path(), "");
        } else if let Some(problem) = syntax_problem(expression) {
            errors.invalid(&at.child("expression").path(), expression, problem);
        }
        if condition.name.is_empty() {
            errors.required(&at.child("name").path(), "");
            continue;
        }
        each_invalid(names::qualified(&condition.name), &condition.name, &at.child("name"), errors);
        if !seen.insert(&condition.name) {
            errors.duplicate(&at.child("name").path(), condition.name.as_str());
        }
    }
}

/// Types and declarations are not checked.
fn syntax_problem(expression: &str) -> Option<String> {
    usher_schema::expression::parse(expression).err().map(|why| format!("compilation failed: {why}"))
}
