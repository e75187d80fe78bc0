//! What the server fills in on a new Pod.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, Pod, PodAffinityTerm, PodCondition, PodSpec, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, Time};

use crate::registry::kinds::common::list;
use crate::registry::kinds::pod_template::pod_resources::aggregate;
use crate::registry::kinds::pod_template::resources::is_huge_pages;
use usher_api::quantity::Quantity;

pub fn create(pod: &mut Pod, now: Timestamp) {
    let spec = pod.spec.get_or_insert_default();
    let no_labels = BTreeMap::new();
    merge_label_keys(spec, pod.metadata.labels.as_ref().unwrap_or(&no_labels));
    default_pod_level_resources(spec);
    let gated = !list(&spec.scheduling_gates).is_empty();
    pod.status = Some(PodStatus {
        phase: Some("Pending".to_owned()),
        qos_class: Some(qos_class(spec).to_owned()),
        conditions: gated.then(|| vec![gated_condition(now)]),
        ..PodStatus::default()
    });
}

fn gated_condition(now: Timestamp) -> PodCondition {
    PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some("SchedulingGated".to_owned()),
        message: Some("Scheduling is blocked due to non-empty scheduling gates".to_owned()),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    }
}

/// `matchLabelKeys` mean "the same value as mine": the values become part of the selector, once and for all.
fn merge_label_keys(spec: &mut PodSpec, labels: &BTreeMap<String, String>) {
    let term = |term: &mut PodAffinityTerm| {
        let PodAffinityTerm { label_selector: Some(selector), match_label_keys, mismatch_label_keys, .. } = term else {
            return;
        };
        add_requirements(selector, list(match_label_keys), "In", labels);
        add_requirements(selector, list(mismatch_label_keys), "NotIn", labels);
    };
    if let Some(affinity) = &mut spec.affinity {
        if let Some(pods) = &mut affinity.pod_affinity {
            pods.required_during_scheduling_ignored_during_execution.iter_mut().flatten().for_each(term);
            let preferred = pods.preferred_during_scheduling_ignored_during_execution.iter_mut().flatten();
            preferred.for_each(|weighted| term(&mut weighted.pod_affinity_term));
        }
        if let Some(pods) = &mut affinity.pod_anti_affinity {
            pods.required_during_scheduling_ignored_during_execution.iter_mut().flatten().for_each(term);
            let preferred = pods.preferred_during_scheduling_ignored_during_execution.iter_mut().flatten();
            preferred.for_each(|weighted| term(&mut weighted.pod_affinity_term));
        }
    }
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        if let Some(selector) = &mut constraint.label_selector {
            add_requirements(selector, list(&constraint.match_label_keys), "In", labels);
        }
    }
}

fn add_requirements(selector: &mut LabelSelector, keys: &[String], operator: &str, labels: &BTreeMap<String, String>) {
    for key in keys {
        if let Some(value) = labels.get(key) {
            selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: key.clone(),
                operator: operator.to_owned(),
                values: Some(vec![value.clone()]),
            });
        }
    }
}

fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_huge_pages(name)
}

fn sets_pod_level(resources: &ResourceRequirements) -> bool {
    resources.requests.iter().chain(&resources.limits).flatten().any(|(name, _)| is_pod_level(name))
}

/// A pod that names resources as a whole requests at least what its containers do, and what it limits.
fn default_pod_level_resources(spec: &mut PodSpec) {
    if !spec.resources.as_ref().is_some_and(sets_pod_level) {
        return;
    }
    let owned = |sums: BTreeMap<&str, Quantity>| -> Vec<(String, resource::Quantity)> {
        let kept = sums.into_iter().filter(|(name, _)| is_pod_level(name));
        kept.map(|(name, quantity)| (name.to_owned(), resource::Quantity(quantity.to_string()))).collect()
    };
    let requests = owned(aggregate(spec, |c| c.resources.as_ref()?.requests.as_ref()));
    let limits = owned(aggregate(spec, |c| c.resources.as_ref()?.limits.as_ref()));
    let Some(pod) = &mut spec.resources else { return };
    for (name, quantity) in limits.into_iter().filter(|(name, _)| is_huge_pages(name)) {
        pod.limits.get_or_insert_default().entry(name).or_insert(quantity);
    }
    let pod_limits = pod.limits.clone().unwrap_or_default();
    let pod_requests = pod.requests.get_or_insert_default();
    for (name, quantity) in requests {
        pod_requests.entry(name).or_insert(quantity);
    }
    for (name, quantity) in pod_limits.into_iter().filter(|(name, _)| is_pod_level(name)) {
        pod_requests.entry(name).or_insert(quantity);
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, from what is requested and limited.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    if let Some(resources) = spec.resources.as_ref().filter(|resources| sets_pod_level(resources)) {
        return requirements_qos(Some(resources));
    }
    let mut containers = list(&spec.init_containers).iter().chain(&spec.containers);
    let Some(first) = containers.next() else { return "BestEffort" };
    let class = requirements_qos(first.resources.as_ref());
    let same = |container: &Container| requirements_qos(container.resources.as_ref()) == class;
    if containers.all(same) { class } else { "Burstable" }
}

fn requirements_qos(resources: Option<&ResourceRequirements>) -> &'static str {
    let quantity = |list: Option<&BTreeMap<String, resource::Quantity>>, name: &str| {
        list.and_then(|list| list.get(name)).and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or(Quantity::ZERO)
    };
    let Some(resources) = resources else { return "BestEffort" };
    let of = |name| {
        let request = quantity(resources.requests.as_ref(), name);
        let limit = quantity(resources.limits.as_ref(), name);
        match () {
            () if request != limit => "Burstable",
            () if request.is_zero() => "BestEffort",
            () => "Guaranteed",
        }
    };
    let (cpu, memory) = (of("cpu"), of("memory"));
    if cpu == memory { cpu } else { "Burstable" }
}
