//! The rules for a service as it stands.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use serde_json::json;
use usher_schema::field::Errors;

use super::update::needs_health_check;
use super::{is_external, is_headless};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, ip, json as shown, list, one_of, required_one_of, text};
use crate::registry::kinds::node::parse_cidr;
use crate::registry::kinds::pod_template::probes::port_number_or_name;
use crate::registry::kinds::selector::pairs;
use crate::registry::{meta, names};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const FAMILY_POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const MAX_AFFINITY_SECS: i32 = 86400;
const NOT_EXTERNAL_NAME: &str = "may not be set for ExternalName services";
const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";
const SPEC: At = At::Root("spec");

pub fn validate(service: &Service, old: Option<&Service>, errors: &mut Errors) {
    let empty = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&empty);
    let old_ips = old.and_then(|old| old.spec.as_ref()).map_or(&[] as &[String], |old| list(&old.external_ips));
    let kind = text(&spec.type_);
    if list(&spec.ports).is_empty() && !is_headless(spec) && kind != "ExternalName" {
        errors.required(&SPEC.child("ports").path(), "");
    }
    validate_type(spec, errors);
    validate_ports(spec, errors);
    if let Some(labels) = &spec.selector {
        meta::validate_labels(pairs(labels), &SPEC.child("selector"), errors);
    }
    validate_affinity(spec, errors);
    if kind != "ExternalName" {
        validate_cluster_ips(spec, errors);
    }
    for (i, address) in list(&spec.external_ips).iter().enumerate().filter(|(_, ip)| !old_ips.contains(ip)) {
        validate_external_ip(address, &SPEC.child("externalIPs").index(i), errors);
    }
    required_one_of(kind, &TYPES, &SPEC.child("type"), errors);
    validate_port_numbers(spec, errors);
    validate_balancing(spec, errors);
    validate_traffic(spec, errors);
}

fn validate_type(spec: &ServiceSpec, errors: &mut Errors) {
    match text(&spec.type_) {
        kind @ ("LoadBalancer" | "NodePort") if is_headless(spec) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.invalid(&SPEC.child("clusterIPs").index(0).path(), "None", detail);
        }
        "ExternalName" => {
            for (field, is_set) in [
                ("clusterIPs", !list(&spec.cluster_ips).is_empty()),
                ("ipFamilies", !list(&spec.ip_families).is_empty()),
                ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
            ] {
                if is_set {
                    errors.forbidden(&SPEC.child(field).path(), NOT_EXTERNAL_NAME);
                }
            }
            let at = SPEC.child("externalName");
            let name = text(&spec.external_name);
            let name = name.strip_suffix('.').unwrap_or(name);
            if name.is_empty() {
                errors.required(&at.path(), "");
            } else {
                each_invalid(names::dns1123_subdomain(name, false), name, &at, errors);
            }
        }
        _ => {}
    }
}

fn validate_ports(spec: &ServiceSpec, errors: &mut Errors) {
    let ports = list(&spec.ports);
    let at = SPEC.child("ports");
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        validate_port(port, ports.len() > 1, &mut seen, &at.index(i), errors);
    }
}

fn validate_port<'p>(
    port: &'p ServicePort,
    name_required: bool,
    seen: &mut BTreeSet<&'p str>,
    at: &At,
    errors: &mut Errors,
) {
    let name = text(&port.name);
    if !name.is_empty() {
        each_invalid(names::dns1123_label(name, false), name, &at.child("name"), errors);
        if !seen.insert(name) {
            errors.duplicate(&at.child("name").path(), name);
        }
    } else if name_required {
        errors.required(&at.child("name").path(), "");
    }
    for problem in names::port_number(i64::from(port.port)) {
        errors.invalid(&at.child("port").path(), port.port, problem);
    }
    required_one_of(text(&port.protocol), &["SCTP", "TCP", "UDP"], &at.child("protocol"), errors);
    if let Some(target) = &port.target_port {
        port_number_or_name(target, &at.child("targetPort"), errors);
    }
    if let Some(protocol) = &port.app_protocol {
        each_invalid(names::qualified(protocol), protocol, &at.child("appProtocol"), errors);
    }
}

/// Each pair of protocol and port is there once.
fn validate_port_numbers(spec: &ServiceSpec, errors: &mut Errors) {
    let ports = list(&spec.ports);
    let at = SPEC.child("ports");
    let node_port = |port: &ServicePort| port.node_port.unwrap_or_default();
    if text(&spec.type_) == "ClusterIP" {
        for (i, _) in ports.iter().enumerate().filter(|(_, port)| node_port(port) != 0) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.forbidden(&at.index(i).child("nodePort").path(), detail);
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate().filter(|(_, port)| node_port(port) != 0) {
        if !seen.insert((text(&port.protocol), node_port(port))) {
            errors.duplicate(&at.index(i).child("nodePort").path(), node_port(port));
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let protocol = text(&port.protocol);
        if !seen.insert((protocol, port.port)) {
            let value = json!({"Name": "", "Protocol": protocol, "AppProtocol": null, "Port": port.port, "TargetPort": 0, "NodePort": 0});
            errors.duplicate(&at.index(i).path(), value);
        }
    }
}

fn validate_affinity(spec: &ServiceSpec, errors: &mut Errors) {
    let affinity = text(&spec.session_affinity);
    required_one_of(affinity, &["ClientIP", "None"], &SPEC.child("sessionAffinity"), errors);
    let at = SPEC.child("sessionAffinityConfig");
    let config = spec.session_affinity_config.as_ref();
    if affinity == "None" && config.is_some() {
        errors.forbidden(&at.path(), "must not be set when session affinity is None");
    }
    let seconds = config.and_then(|config| config.client_ip.as_ref()).and_then(|client| client.timeout_seconds);
    if let Some(seconds) = seconds.filter(|s| affinity == "ClientIP" && !(1..=MAX_AFFINITY_SECS).contains(s)) {
        let detail = format!("must be greater than 0 and less than {MAX_AFFINITY_SECS}");
        errors.invalid(&at.child("clientIP").child("timeoutSeconds").path(), seconds, detail);
    }
}

fn validate_cluster_ips(spec: &ServiceSpec, errors: &mut Errors) {
    let ips = list(&spec.cluster_ips);
    let at = SPEC.child("clusterIPs");
    match (text(&spec.cluster_ip), ips.first()) {
        ("", Some(_)) => errors.invalid(&at.path(), ips, "must be empty when `clusterIP` is not specified"),
        (ip, Some(first)) if ip != first => errors.invalid(&at.path(), ips, "first value must match `clusterIP`"),
        _ => {}
    }
    let families_at = SPEC.child("ipFamilies");
    let families = list(&spec.ip_families);
    for (i, family) in families.iter().enumerate() {
        one_of(family, &["IPv4", "IPv6"], &families_at.index(i), errors);
        if families[..i].contains(family) {
            errors.duplicate(&families_at.index(i).path(), family.as_str());
        }
    }
    if let Some(policy) = &spec.ip_family_policy {
        one_of(policy, &FAMILY_POLICIES, &SPEC.child("ipFamilyPolicy"), errors);
    }
    let found = errors.len();
    if is_headless(spec) {
        if ips.len() > 1 {
            errors.invalid(&at.path(), ips, "'None' must be the first and only value");
        }
        return;
    }
    for (i, address) in ips.iter().enumerate() {
        ip(address, &at.index(i), errors);
    }
    let all_good = errors.len() == found;
    if ips.len() > 2 {
        errors.invalid(&at.path(), ips, "may only hold up to 2 values");
    }
    let v6 = |address: &String| address.contains(':');
    if all_good && ips.len() > 1 && ips.iter().all(|ip| v6(ip) == v6(&ips[0])) {
        errors.invalid(&at.path(), ips, "may specify no more than one IP for each IP family");
    }
    for (i, (address, family)) in ips.iter().zip(families).enumerate().filter(|_| all_good) {
        if matches!((family.as_str(), v6(address)), ("IPv4", true) | ("IPv6", false)) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            errors.invalid(&at.index(i).path(), address.as_str(), detail);
        }
    }
}

fn validate_external_ip(address: &str, at: &At, errors: &mut Errors) {
    let Ok(parsed) = address.parse::<IpAddr>() else { return ip(address, at, errors) };
    let (link_local, link_multicast) = match parsed {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.segments()[0] & 0xffc0 == 0xfe80, v6.segments()[0] & 0xff0f == 0xff02),
    };
    let problem = if parsed.is_unspecified() {
        format!("may not be unspecified ({address})")
    } else if parsed.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()
    } else if link_local {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()
    } else if link_multicast {
        "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned()
    } else {
        return;
    };
    errors.invalid(&at.path(), address, problem);
}

fn validate_balancing(spec: &ServiceSpec, errors: &mut Errors) {
    let balanced = text(&spec.type_) == "LoadBalancer";
    let ranges = list(&spec.load_balancer_source_ranges);
    let at = SPEC.child("LoadBalancerSourceRanges");
    if !ranges.is_empty() && !balanced {
        errors.forbidden(&at.path(), ONLY_BALANCED);
    }
    for (i, range) in ranges.iter().enumerate() {
        if let Err(problem) = parse_cidr(range.trim()) {
            errors.invalid(&at.index(i).path(), range.trim(), problem);
        }
    }
    if spec.allocate_load_balancer_node_ports.is_some() && !balanced {
        errors.forbidden(&SPEC.child("allocateLoadBalancerNodePorts").path(), ONLY_BALANCED);
    }
    let at = SPEC.child("loadBalancerClass");
    match &spec.load_balancer_class {
        Some(class) if balanced => each_invalid(names::qualified(class), class, &at, errors),
        Some(_) => errors.forbidden(&at.path(), ONLY_BALANCED),
        None => {}
    }
}

fn validate_traffic(spec: &ServiceSpec, errors: &mut Errors) {
    let at = SPEC.child("externalTrafficPolicy");
    let policy = text(&spec.external_traffic_policy);
    if is_external(spec) {
        required_one_of(policy, &["Cluster", "Local"], &at, errors);
    } else if !policy.is_empty() {
        errors.invalid(&at.path(), policy, "may only be set for externally-accessible services");
    }
    let at = SPEC.child("healthCheckNodePort");
    // Nothing allocates the port, so that it may be missing where upstream has one.
    if let Some(port) = spec.health_check_node_port.filter(|port| *port != 0) {
        if needs_health_check(spec) {
            for problem in names::port_number(i64::from(port)) {
                errors.invalid(&at.path(), port, problem);
            }
        } else {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(&at.path(), port, detail);
        }
    }
    if let Some(policy) = &spec.internal_traffic_policy {
        one_of(policy, &["Cluster", "Local"], &SPEC.child("internalTrafficPolicy"), errors);
    }
    if let Some(distribution) = &spec.traffic_distribution {
        let supported = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        one_of(distribution, &supported, &SPEC.child("trafficDistribution"), errors);
    }
}

pub fn validate_status(service: &Service, errors: &mut Errors) {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.map_or(&[] as &[_], |balancer| list(&balancer.ingress));
    let at = At::Root("status");
    let at = at.child("loadBalancer");
    let at = at.child("ingress");
    if service.spec.as_ref().is_none_or(|spec| text(&spec.type_) != "LoadBalancer") && !ingress.is_empty() {
        return errors.forbidden(&at.path(), "may only be used when `spec.type` is 'LoadBalancer'");
    }
    for (i, entry) in ingress.iter().enumerate() {
        let at = at.index(i);
        let (address, hostname) = (text(&entry.ip), text(&entry.hostname));
        if !address.is_empty() {
            ip(address, &at.child("ip"), errors);
        }
        let mode_at = at.child("ipMode");
        match &entry.ip_mode {
            None if !address.is_empty() => errors.required(&mode_at.path(), "must be specified when `ip` is set"),
            Some(_) if address.is_empty() => {
                errors.forbidden(&mode_at.path(), "may not be specified when `ip` is not set");
            }
            Some(mode) => one_of(mode, &["Proxy", "VIP"], &mode_at, errors),
            None => {}
        }
        if !hostname.is_empty() {
            let at = at.child("hostname");
            each_invalid(names::dns1123_subdomain(hostname, false), hostname, &at, errors);
            if hostname.parse::<IpAddr>().is_ok() {
                errors.invalid(&at.path(), shown(&hostname), "must be a DNS name, not an IP address");
            }
        }
    }
}
