//! Where a pod may go: tolerations, affinity, spread, gates.

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSchedulingGate, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use usher_schema::field::Errors;

use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, list, one_of, text};
use crate::registry::kinds::selector;
use crate::registry::names;

pub const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const BAD_OPERATOR: &str = "not a valid selector operator";
const IN_BOTH: &str = "exists in both matchLabelKeys and labelSelector";

pub fn validate_tolerations(tolerations: &[Toleration], at: &At, errors: &mut Errors) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let at = at.index(i);
        let (key, operator) = (text(&toleration.key), text(&toleration.operator));
        let (value, effect) = (text(&toleration.value), text(&toleration.effect));
        if !key.is_empty() {
            each_invalid(names::qualified(key), key, &at.child("key"), errors);
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&at.child("operator").path(), operator, detail);
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(&at.child("effect").path(), effect, detail);
        }
        match operator {
            "Equal" | "" => {
                let problems = names::label_value(value);
                if !problems.is_empty() {
                    errors.invalid(&at.child("operator").path(), value, problems.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.invalid(&at.child("operator").path(), value, detail);
            }
            "Exists" => {}
            // Comparison operators are behind a gate that is off.
            "Lt" | "Gt" => {
                errors.not_supported(&at.child("operator").path(), operator, &["Equal", "Exists", "Lt", "Gt"]);
            }
            _ => errors.not_supported(&at.child("operator").path(), operator, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            one_of(effect, &TAINT_EFFECTS, &at.child("effect"), errors);
        }
    }
}

pub fn validate_affinity(affinity: &Affinity, at: &At, errors: &mut Errors) {
    if let Some(node) = &affinity.node_affinity {
        let at = at.child("nodeAffinity");
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            validate_node_selector(selector, &at.child(REQUIRED), errors);
        }
        let terms = list(&node.preferred_during_scheduling_ignored_during_execution);
        let at = at.child(PREFERRED);
        for (i, term) in terms.iter().enumerate() {
            let at = at.index(i);
            weight(term.weight, &at, errors);
            // Preferences may name label values that no node can have.
            validate_node_term(&term.preference, false, &at.child("preference"), errors);
        }
    }
    if let Some(pod) = &affinity.pod_affinity {
        let at = at.child("podAffinity");
        validate_pod_terms(list(&pod.required_during_scheduling_ignored_during_execution), &at.child(REQUIRED), errors);
        let preferred = list(&pod.preferred_during_scheduling_ignored_during_execution);
        validate_weighted_terms(preferred, &at.child(PREFERRED), errors);
    }
    if let Some(pod) = &affinity.pod_anti_affinity {
        let at = at.child("podAntiAffinity");
        validate_pod_terms(list(&pod.required_during_scheduling_ignored_during_execution), &at.child(REQUIRED), errors);
        let preferred = list(&pod.preferred_during_scheduling_ignored_during_execution);
        validate_weighted_terms(preferred, &at.child(PREFERRED), errors);
    }
}

fn weight(weight: i32, at: &At, errors: &mut Errors) {
    if !(1..=100).contains(&weight) {
        errors.invalid(&at.child("weight").path(), weight, "must be in the range 1-100");
    }
}

fn validate_node_selector(selector: &NodeSelector, at: &At, errors: &mut Errors) {
    let at = at.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        return errors.required(&at.path(), "must have at least one node selector term");
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        validate_node_term(term, true, &at.index(i), errors);
    }
}

fn validate_node_term(term: &NodeSelectorTerm, check_values: bool, at: &At, errors: &mut Errors) {
    for (i, requirement) in list(&term.match_expressions).iter().enumerate() {
        validate_node_requirement(requirement, check_values, &at.child("matchExpressions").index(i), errors);
    }
    for (i, requirement) in list(&term.match_fields).iter().enumerate() {
        validate_node_field(requirement, &at.child("matchFields").index(i), errors);
    }
}

fn validate_node_requirement(requirement: &NodeSelectorRequirement, check_values: bool, at: &At, errors: &mut Errors) {
    let values = list(&requirement.values);
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at.child("values").path(), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&at.child("values").path(), detail);
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.required(&at.child("values").path(), detail);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(&at.child("operator").path(), other, BAD_OPERATOR),
    }
    each_invalid(names::qualified(&requirement.key), &requirement.key, &at.child("key"), errors);
    for (i, value) in values.iter().enumerate().filter(|_| check_values) {
        each_invalid(names::label_value(value), value, &at.child("values").index(i), errors);
    }
}

fn validate_node_field(requirement: &NodeSelectorRequirement, at: &At, errors: &mut Errors) {
    let values = list(&requirement.values);
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(&at.child("values").path(), detail);
        }
        "In" | "NotIn" => {}
        other => errors.invalid(&at.child("operator").path(), other, BAD_OPERATOR),
    }
    if requirement.key != "metadata.name" {
        let detail = "not a valid field selector key";
        return errors.invalid(&at.child("key").path(), requirement.key.as_str(), detail);
    }
    for (i, value) in values.iter().enumerate() {
        each_invalid(names::dns1123_subdomain(value, false), value, &at.child("values").index(i), errors);
    }
}

fn validate_pod_terms(terms: &[PodAffinityTerm], at: &At, errors: &mut Errors) {
    for (i, term) in terms.iter().enumerate() {
        validate_pod_term(term, &at.index(i), errors);
    }
}

fn validate_weighted_terms(terms: &[WeightedPodAffinityTerm], at: &At, errors: &mut Errors) {
    for (i, term) in terms.iter().enumerate() {
        let at = at.index(i);
        weight(term.weight, &at, errors);
        validate_pod_term(&term.pod_affinity_term, &at.child("podAffinityTerm"), errors);
    }
}

fn validate_pod_term(term: &PodAffinityTerm, at: &At, errors: &mut Errors) {
    if let Some(labels) = &term.label_selector {
        selector::validate(labels, &at.child("labelSelector"), errors);
    }
    if let Some(labels) = &term.namespace_selector {
        selector::validate(labels, &at.child("namespaceSelector"), errors);
    }
    for name in list(&term.namespaces) {
        each_invalid(names::dns1123_label(name, false), name, &at.child("namespace"), errors);
    }
    let (matching, mismatching) = (list(&term.match_label_keys), list(&term.mismatch_label_keys));
    validate_label_keys(matching, mismatching, term.label_selector.as_ref(), at, errors);
    if term.topology_key.is_empty() {
        errors.required(&at.child("topologyKey").path(), "can not be empty");
    }
    each_invalid(names::qualified(&term.topology_key), &term.topology_key, &at.child("topologyKey"), errors);
}

/// Keys whose values the scheduler takes from the pod itself.
fn validate_label_keys(
    matching: &[String],
    mismatching: &[String],
    labels: Option<&LabelSelector>,
    at: &At,
    errors: &mut Errors,
) {
    for (field, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", mismatching)] {
        if keys.is_empty() {
            continue;
        }
        let at = at.child(field);
        if labels.is_none() {
            errors.forbidden(&at.path(), "must not be specified when labelSelector is not set");
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            each_invalid(names::qualified(key), key, &at.index(i), errors);
        }
    }
    if matching.is_empty() {
        return;
    }
    // The server adds an expression for each key itself; a second mention of a key is the author's.
    let mut mentioned: Vec<&str> =
        labels.iter().flat_map(|labels| labels.match_labels.iter().flatten()).map(|(key, _)| key.as_str()).collect();
    for expression in labels.iter().flat_map(|labels| list(&labels.match_expressions)) {
        let position = matching.iter().rposition(|key| *key == expression.key);
        if let Some(i) = position.filter(|_| mentioned.contains(&expression.key.as_str())) {
            errors.invalid(&at.index(i).path(), expression.key.as_str(), IN_BOTH);
        }
        mentioned.push(&expression.key);
    }
    for (i, key) in matching.iter().enumerate().filter(|(_, key)| mismatching.contains(key)) {
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.invalid(&at.child("matchLabelKeys").index(i).path(), key.as_str(), detail);
    }
}

pub fn validate_spread(constraints: &[TopologySpreadConstraint], at: &At, errors: &mut Errors) {
    for (i, constraint) in constraints.iter().enumerate() {
        let at = at.index(i);
        if constraint.max_skew <= 0 {
            errors.invalid(&at.child("maxSkew").path(), constraint.max_skew, "must be greater than zero");
        }
        if constraint.topology_key.is_empty() {
            errors.required(&at.child("topologyKey").path(), "can not be empty");
        }
        let action = constraint.when_unsatisfiable.as_str();
        one_of(action, &["DoNotSchedule", "ScheduleAnyway"], &at.child("whenUnsatisfiable"), errors);
        let same = |other: &&TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key && other.when_unsatisfiable == action
        };
        if constraints[i + 1..].iter().find(same).is_some() {
            let value = format!("{{{}, {action}}}", constraint.topology_key);
            errors.duplicate(&at.child("{topologyKey, whenUnsatisfiable}").path(), value);
        }
        if let Some(domains) = constraint.min_domains {
            let at = at.child("minDomains");
            if domains <= 0 {
                errors.invalid(&at.path(), domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.invalid(&at.path(), domains, detail);
            }
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            if let Some(policy) = policy {
                one_of(policy, &["Honor", "Ignore"], &at.child(field), errors);
            }
        }
        let keys = list(&constraint.match_label_keys);
        validate_label_keys(keys, &[], constraint.label_selector.as_ref(), &at, errors);
        if let Some(labels) = &constraint.label_selector {
            selector::validate(labels, &at.child("labelSelector"), errors);
        }
    }
}

pub fn validate_gates(gates: &[PodSchedulingGate], at: &At, errors: &mut Errors) {
    for (i, gate) in gates.iter().enumerate() {
        each_invalid(names::qualified(&gate.name), &gate.name, &at.index(i), errors);
        if gates[..i].iter().any(|other| other.name == gate.name) {
            errors.duplicate(&at.index(i).path(), gate.name.as_str());
        }
    }
}
