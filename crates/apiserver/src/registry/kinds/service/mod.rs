//! Services: kept and checked. Nothing routes to them and no cluster IPs or node ports are allocated; what a client gives
//! stays.

mod update;
mod validate;

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Service, ServiceSpec, ServiceStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;
use usher_schema::field::Errors;

use super::common::{default_text, list, text};
use super::json_field::text_at;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::{names, table};

const AFFINITY_SECS: i32 = 3 * 60 * 60;

pub struct Services;

impl Kind for Services {
    type Object = Service;

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "Service", "services").short(&["svc"]).in_all().with_status()
    }

    fn default(&self, service: &mut Service) {
        let spec = service.spec.get_or_insert_default();
        default_spec(spec);
        let balanced = text(&spec.type_) == "LoadBalancer";
        let balancer = service.status.get_or_insert_default().load_balancer.get_or_insert_default();
        for ingress in balancer.ingress.iter_mut().flatten().filter(|_| balanced) {
            if !text(&ingress.ip).is_empty() {
                ingress.ip_mode.get_or_insert_with(|| "VIP".to_owned());
            }
        }
    }

    fn prepare_create(&self, _cx: &Cx, service: &mut Service) {
        service.status = Some(ServiceStatus { load_balancer: Some(Default::default()), ..ServiceStatus::default() });
        let spec = service.spec.get_or_insert_default();
        if !text(&spec.cluster_ip).is_empty() && list(&spec.cluster_ips).is_empty() {
            spec.cluster_ips = Some(vec![text(&spec.cluster_ip).to_owned()]);
        }
        choose_families(spec, None);
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Service, old: &Service) {
        let empty = ServiceSpec::default();
        let old_spec = old.spec.as_ref().unwrap_or(&empty);
        let spec = new.spec.get_or_insert_default();
        update::drop_what_no_longer_applies(spec, old_spec);
        update::agree_on_cluster_ips(spec, old_spec);
        choose_families(spec, Some(old_spec));
        if text(&spec.type_) != "LoadBalancer"
            && let Some(status) = &mut new.status
        {
            status.load_balancer = Some(Default::default());
        }
    }

    fn validate(&self, _cx: &Cx, service: &Service, errors: &mut Errors) {
        validate::validate(service, None, errors);
    }

    fn validate_update(&self, _cx: &Cx, new: &Service, old: &Service, errors: &mut Errors) {
        update::validate(new, old, errors);
        validate::validate(new, Some(old), errors);
    }

    fn validate_status_update(&self, _cx: &Cx, new: &Service, _old: &Service, errors: &mut Errors) {
        validate::validate_status(new, errors);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns1123_label(name, prefix)
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Type", "string", 0, "How the service is reached."),
            Column::new("Cluster-IP", "string", 0, "Its address inside the cluster."),
            Column::new("External-IP", "string", 0, "Its addresses from outside."),
            Column::new("Port(s)", "string", 0, "Its ports."),
            table::age_column(),
            Column::new("Selector", "string", 1, "Labels of the pods behind it."),
        ]
    }

    fn cells(&self, service: &Service, meta: &Value, now: Timestamp) -> Vec<Value> {
        let empty = ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&empty);
        let labels: Vec<String> = spec.selector.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            table::name_cell(meta),
            text(&spec.type_).into(),
            list(&spec.cluster_ips).first().map_or("<none>", String::as_str).into(),
            external_ip(service, spec).into(),
            table::joined_or_none(&ports(spec)).into(),
            table::age_cell(meta, now),
            table::joined_or_none(&labels).into(),
        ]
    }

    fn selectable(&self) -> &'static [&'static str] {
        &["spec.clusterIP", "spec.type"]
    }

    fn select(&self, object: &Value, field: &str) -> String {
        match field {
            "spec.clusterIP" => text_at(object, "/spec/clusterIP"),
            "spec.type" => text_at(object, "/spec/type"),
            _ => String::new(),
        }
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

fn default_spec(spec: &mut ServiceSpec) {
    default_text(&mut spec.session_affinity, "None");
    match text(&spec.session_affinity) {
        "None" => spec.session_affinity_config = None,
        "ClientIP" => {
            let client = spec.session_affinity_config.get_or_insert_default().client_ip.get_or_insert_default();
            client.timeout_seconds.get_or_insert(AFFINITY_SECS);
        }
        _ => {}
    }
    default_text(&mut spec.type_, "ClusterIP");
    for port in spec.ports.iter_mut().flatten() {
        default_text(&mut port.protocol, "TCP");
        let unset = match &port.target_port {
            None | Some(IntOrString::Int(0)) => true,
            Some(IntOrString::String(name)) => name.is_empty(),
            Some(IntOrString::Int(_)) => false,
        };
        if unset {
            port.target_port = Some(IntOrString::Int(port.port));
        }
    }
    if is_external(spec) {
        default_text(&mut spec.external_traffic_policy, "Cluster");
    }
    if matches!(text(&spec.type_), "ClusterIP" | "NodePort" | "LoadBalancer") {
        spec.internal_traffic_policy.get_or_insert_with(|| "Cluster".to_owned());
    }
    if text(&spec.type_) == "LoadBalancer" {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
    }
}

/// Reached from outside, and so has an external traffic policy.
fn is_external(spec: &ServiceSpec) -> bool {
    match text(&spec.type_) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !list(&spec.external_ips).is_empty(),
        _ => false,
    }
}

fn is_headless(spec: &ServiceSpec) -> bool {
    list(&spec.cluster_ips).first().is_some_and(|ip| ip == "None")
}

/// The cluster counts as one of IPv4 only. Headless services without a selector are dual-stack all the same.
fn choose_families(spec: &mut ServiceSpec, old: Option<&ServiceSpec>) {
    if text(&spec.type_) == "ExternalName" {
        return;
    }
    let free = text(&spec.cluster_ip) == "None" && spec.selector.as_ref().is_none_or(|selector| selector.is_empty());
    if spec.ip_family_policy.is_none() {
        let kept = old.and_then(|old| old.ip_family_policy.clone());
        let fresh = if free { "RequireDualStack" } else { "SingleStack" };
        spec.ip_family_policy = Some(kept.unwrap_or_else(|| fresh.to_owned()));
    }
    if list(&spec.ip_families).is_empty() {
        let v6 = list(&spec.cluster_ips).first().is_some_and(|ip| ip.contains(':'));
        spec.ip_families = Some(vec![if v6 { "IPv6" } else { "IPv4" }.to_owned()]);
    }
    if free
        && text(&spec.ip_family_policy) != "SingleStack"
        && let Some([only]) = spec.ip_families.as_deref()
    {
        let other = if only == "IPv4" { "IPv6" } else { "IPv4" };
        spec.ip_families = Some(vec![only.clone(), other.to_owned()]);
    }
}

fn ports(spec: &ServiceSpec) -> Vec<String> {
    let show = |port: &k8s_openapi::api::core::v1::ServicePort| match port.node_port.unwrap_or_default() {
        node if node > 0 => format!("{}:{node}/{}", port.port, text(&port.protocol)),
        _ => format!("{}/{}", port.port, text(&port.protocol)),
    };
    list(&spec.ports).iter().map(show).collect()
}

fn external_ip(service: &Service, spec: &ServiceSpec) -> String {
    let given = list(&spec.external_ips);
    match text(&spec.type_) {
        "ClusterIP" | "NodePort" => table::joined_or_none(given),
        "LoadBalancer" => {
            let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
            let balanced: BTreeSet<&str> = ingress
                .into_iter()
                .flat_map(|balancer| list(&balancer.ingress))
                .map(|ingress| if text(&ingress.ip).is_empty() { text(&ingress.hostname) } else { text(&ingress.ip) })
                .filter(|address| !address.is_empty())
                .collect();
            let all: Vec<&str> = balanced.into_iter().chain(given.iter().map(String::as_str)).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => text(&spec.external_name).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests;
