//! The status of a Pod, as a node agent or a controller writes it.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use usher_schema::field::Errors;

use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, immutable, ip, json, list, text};
use crate::registry::names;

const STATUS: At = At::Root("status");
const ONE_PER_FAMILY: &str = "may specify no more than one IP for each IP family";

/// Keeps what an older writer leaves out.
pub fn prepare(new: &mut Pod, old: &Pod) {
    new.metadata.owner_references.clone_from(&old.metadata.owner_references);
    let no_status = PodStatus::default();
    let old = old.status.as_ref().unwrap_or(&no_status);
    let new = new.status.get_or_insert_default();
    if text(&new.qos_class).is_empty() {
        new.qos_class.clone_from(&old.qos_class);
    }
    if new.resource_claim_statuses.is_none() {
        new.resource_claim_statuses.clone_from(&old.resource_claim_statuses);
    }
    if new.extended_resource_claim_status.is_none() {
        new.extended_resource_claim_status.clone_from(&old.extended_resource_claim_status);
    }
    if new.observed_generation.unwrap_or(0) == 0 {
        new.observed_generation = old.observed_generation;
    }
    for condition in new.conditions.iter_mut().flatten() {
        if condition.observed_generation.unwrap_or(0) == 0 {
            let before = list(&old.conditions).iter().find(|old| old.type_ == condition.type_);
            condition.observed_generation = before.and_then(|before| before.observed_generation);
        }
    }
}

pub fn validate(new: &Pod, old: &Pod, errors: &mut Errors) {
    let (no_status, no_spec) = (PodStatus::default(), PodSpec::default());
    let spec = old.spec.as_ref().unwrap_or(&no_spec);
    let (new, old) = (new.status.as_ref().unwrap_or(&no_status), old.status.as_ref().unwrap_or(&no_status));
    validate_conditions(new, errors);
    validate_nomination(new, old, spec, errors);
    if let Some(generation) = new.observed_generation.filter(|generation| *generation < 0) {
        let detail = "must be a non-negative integer";
        errors.invalid(&STATUS.child("observedGeneration").path(), generation, detail);
    }
    immutable(&new.qos_class, &old.qos_class, &STATUS.child("qosClass"), errors);
    let all_could_restart = spec.containers.iter().chain(list(&spec.init_containers)).any(restarts_all);
    if !all_could_restart {
        let (after, before) = (list(&new.container_statuses), list(&old.container_statuses));
        no_resurrection(after, before, &spec.containers, spec, &STATUS.child("containerStatuses"), errors);
        let (after, before) = (list(&new.init_container_statuses), list(&old.init_container_statuses));
        let at = STATUS.child("initContainerStatuses");
        no_resurrection(after, before, list(&spec.init_containers), spec, &at, errors);
    }
    let (after, before) = (list(&new.ephemeral_container_statuses), list(&old.ephemeral_container_statuses));
    no_resurrection(after, before, &[], spec, &STATUS.child("ephemeralContainerStatuses"), errors);
    validate_addresses(new, errors);
}

fn validate_conditions(status: &PodStatus, errors: &mut Errors) {
    for (i, condition) in list(&status.conditions).iter().enumerate() {
        let at = STATUS.child("conditions");
        let at = at.index(i);
        if let Some(generation) = condition.observed_generation.filter(|generation| *generation < 0) {
            let detail = "must be a non-negative integer";
            errors.invalid(&at.child("observedGeneration").path(), generation, detail);
        }
        each_invalid(names::qualified(&condition.type_), &condition.type_, &at.child("Type"), errors);
    }
}

fn validate_nomination(new: &PodStatus, old: &PodStatus, spec: &PodSpec, errors: &mut Errors) {
    let nominated = text(&new.nominated_node_name);
    if nominated.is_empty() || nominated == text(&old.nominated_node_name) {
        return;
    }
    let at = STATUS.child("nominatedNodeName");
    each_invalid(names::dns1123_subdomain(nominated, false), nominated, &at, errors);
    if !text(&spec.node_name).is_empty() {
        errors.forbidden(&at.path(), "may not be set on pods that are already bound to a node");
    }
}

fn restarts_all(container: &Container) -> bool {
    list(&container.restart_policy_rules).iter().any(|rule| rule.action == "RestartAllContainers")
}

/// A container that ended may only run again if its restart policy says so. `containers` is empty where none may.
fn no_resurrection(
    new: &[ContainerStatus],
    old: &[ContainerStatus],
    containers: &[Container],
    spec: &PodSpec,
    at: &At,
    errors: &mut Errors,
) {
    for (i, before) in old.iter().enumerate() {
        let Some(ended) = before.state.as_ref().and_then(|state| state.terminated.as_ref()) else { continue };
        let Some(after) = new.iter().find(|after| after.name == before.name) else { continue };
        if after.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
            continue;
        }
        let container = containers.iter().find(|container| container.name == before.name);
        if !container.is_some_and(|container| may_restart(container, spec, ended.exit_code)) {
            let detail = "may not be transitioned to non-terminated state";
            errors.forbidden(&at.index(i).child("state").path(), detail);
        }
    }
}

fn may_restart(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    for rule in list(&container.restart_policy_rules) {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = list(&codes.values).contains(&exit_code);
        let matched = if codes.operator == "NotIn" { !listed } else { listed };
        if matched {
            return rule.action == "Restart";
        }
    }
    match container.restart_policy.as_deref().unwrap_or_else(|| text(&spec.restart_policy)) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

fn validate_addresses(status: &PodStatus, errors: &mut Errors) {
    let at = STATUS.child("podIPs");
    let ips = list(&status.pod_ips);
    let addresses: Vec<&str> = ips.iter().map(|ip| ip.ip.as_str()).collect();
    validate_list(&addresses, json(&ips), &at, errors);
    let single = text(&status.pod_ip);
    match addresses.first() {
        first if single.is_empty() != first.is_none() => {
            errors.invalid(&at.path(), json(&ips), "podIP and podIPs must either both be set or both be unset");
        }
        Some(first) if *first != single => {
            errors.invalid(&at.index(0).child("ip").path(), *first, "must be equal to `podIP`");
        }
        _ => {}
    }
    let at = STATUS.child("hostIPs");
    let ips = list(&status.host_ips);
    let addresses: Vec<&str> = ips.iter().map(|ip| ip.ip.as_str()).collect();
    if let Some(first) = addresses.first().filter(|first| **first != text(&status.host_ip)) {
        errors.invalid(&at.index(0).child("ip").path(), *first, "must be equal to `hostIP`");
    }
    validate_list(&addresses, json(&ips), &at, errors);
}

fn validate_list(addresses: &[&str], shown: serde_json::Value, at: &At, errors: &mut Errors) {
    for (i, address) in addresses.iter().enumerate() {
        ip(address, &at.index(i), errors);
    }
    let families: Vec<bool> = addresses.iter().map(|address| address.contains(':')).collect();
    let dual = matches!(families[..], [] | [_] | [true, false] | [false, true]);
    if !dual {
        errors.invalid(&at.path(), shown, ONE_PER_FAMILY);
    }
}
