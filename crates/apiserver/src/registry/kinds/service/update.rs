//! What an update of a service means: `type` decides which fields apply, and old clients know only half of the fields.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use usher_schema::field::Errors;

use super::{is_external, is_headless};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{json as shown, list, text};

const SPEC: At = At::Root("spec");

/// Clears fields that the new type has no use for, unless the client changed them (then validation refuses them).
pub fn drop_what_no_longer_applies(new: &mut ServiceSpec, old: &ServiceSpec) {
    let is = |spec: &ServiceSpec, kind: &str| text(&spec.type_) == kind;
    if !is(old, "ExternalName") && is(new, "ExternalName") {
        if text(&new.cluster_ip) == text(&old.cluster_ip) && list(&new.cluster_ips) == list(&old.cluster_ips) {
            (new.cluster_ip, new.cluster_ips) = (None, None);
        }
        if list(&new.ip_families) == list(&old.ip_families) {
            new.ip_families = None;
        }
        if new.ip_family_policy == old.ip_family_policy {
            new.ip_family_policy = None;
        }
    }
    let uses_node_ports = |spec: &ServiceSpec| is(spec, "NodePort") || is(spec, "LoadBalancer");
    if uses_node_ports(old) && !uses_node_ports(new) {
        let node_ports = |spec: &ServiceSpec| -> BTreeSet<i32> {
            list(&spec.ports).iter().filter_map(|port| port.node_port).filter(|port| *port != 0).collect()
        };
        if node_ports(old).is_superset(&node_ports(new)) {
            new.ports.iter_mut().flatten().for_each(|port| port.node_port = None);
        }
    }
    if needs_health_check(old) && !needs_health_check(new) && new.health_check_node_port == old.health_check_node_port {
        new.health_check_node_port = None;
    }
    if is(old, "LoadBalancer") && !is(new, "LoadBalancer") {
        if new.allocate_load_balancer_node_ports == old.allocate_load_balancer_node_ports {
            new.allocate_load_balancer_node_ports = None;
        }
        if new.load_balancer_class == old.load_balancer_class {
            new.load_balancer_class = None;
        }
    }
    if is_external(old) && !is_external(new) && text(&new.external_traffic_policy) == text(&old.external_traffic_policy)
    {
        new.external_traffic_policy = None;
    }
}

pub fn needs_health_check(spec: &ServiceSpec) -> bool {
    text(&spec.type_) == "LoadBalancer" && text(&spec.external_traffic_policy) == "Local"
}

/// Old clients write `clusterIP` alone; `clusterIPs` follows it.
pub fn agree_on_cluster_ips(new: &mut ServiceSpec, old: &ServiceSpec) {
    let same_ip = text(&new.cluster_ip) == text(&old.cluster_ip);
    if !list(&old.cluster_ips).is_empty() && list(&new.cluster_ips).is_empty() && same_ip {
        new.cluster_ips.clone_from(&old.cluster_ips);
    }
    if !same_ip && list(&new.cluster_ips) == list(&old.cluster_ips) {
        let only = text(&new.cluster_ip).to_owned();
        new.cluster_ips = if only.is_empty() { None } else { Some(vec![only]) };
    }
}

pub fn validate(new: &Service, old: &Service, errors: &mut Errors) {
    let empty = ServiceSpec::default();
    let (new, old) = (new.spec.as_ref().unwrap_or(&empty), old.spec.as_ref().unwrap_or(&empty));
    validate_cluster_ips(new, old, errors);
    if text(&new.type_) == "LoadBalancer"
        && text(&old.type_) == "LoadBalancer"
        && new.load_balancer_class != old.load_balancer_class
    {
        let at = SPEC.child("loadBalancerClass");
        errors.invalid(&at.path(), shown(&new.load_balancer_class), "may not change once set");
    }
    if needs_health_check(old) && needs_health_check(new) && new.health_check_node_port != old.health_check_node_port {
        errors.forbidden(&SPEC.child("healthCheckNodePort").path(), "field is immutable");
    }
}

/// An address that was given stays; a second one may come and go.
fn validate_cluster_ips(new: &ServiceSpec, old: &ServiceSpec, errors: &mut Errors) {
    let external_name = |spec: &ServiceSpec| text(&spec.type_) == "ExternalName";
    if external_name(new) || external_name(old) || (is_headless(new) && is_headless(old)) {
        return;
    }
    let at = SPEC.child("clusterIPs");
    let (new_ips, old_ips) = (list(&new.cluster_ips), list(&old.cluster_ips));
    let changed = "may not change once set";
    if new_ips.len() == old_ips.len() {
        for (i, _) in old_ips.iter().enumerate().filter(|(i, ip)| new_ips[*i] != **ip) {
            errors.invalid(&at.index(i).path(), new_ips, changed);
        }
        return;
    }
    if new_ips.is_empty() {
        errors.invalid(&at.index(0).path(), shown(&new.cluster_ips), "primary clusterIP can not be unset");
    }
    if let (Some(new), Some(old)) = (new_ips.first(), old_ips.first())
        && new != old
    {
        errors.invalid(&at.index(0).path(), new_ips, changed);
    }
    if new_ips.len() == 1 && old_ips.len() > 1 && text(&new.ip_family_policy) != "SingleStack" {
        let detail = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        errors.invalid(&SPEC.child("ipFamilyPolicy").path(), shown(&new.ip_family_policy), detail);
    }
}
