//! The whole of a pod spec or a template.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{HostAlias, PodDNSConfig, PodResourceClaim, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use usher_schema::field::Errors;

use super::resources::{self, Names};
use super::volumes::{self, Volumes};
use super::{annotations, containers, pod_resources, scheduling, security};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, ip, is_true, json, list, required_one_of, text};
use crate::registry::kinds::selector::pairs;
use crate::registry::{meta, names};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARS_MAX: usize = 2048;
const HOSTNAME_OVERRIDE_MAX: usize = 64;

/// What the containers of a pod share.
pub struct Shared<'a> {
    pub volumes: Volumes<'a>,
    pub claims: Vec<&'a str>,
    pub grace_secs: Option<i64>,
    pub os: &'a str,
    pub restart_policy: &'a str,
    pub host_users: bool,
}

/// The template of a workload.
pub fn validate_template(template: &PodTemplateSpec, at: &At, errors: &mut Errors) {
    let (no_meta, no_spec) = (ObjectMeta::default(), PodSpec::default());
    let metadata = template.metadata.as_ref().unwrap_or(&no_meta);
    let spec = template.spec.as_ref().unwrap_or(&no_spec);
    if let Some(labels) = &metadata.labels {
        meta::validate_labels(pairs(labels), &at.child("labels"), errors);
    }
    if let Some(notes) = &metadata.annotations {
        meta::validate_annotations(pairs(notes), &at.child("annotations"), errors);
        annotations::validate(notes, spec, &at.child("annotations"), errors);
    }
    validate_spec(spec, None, &at.child("spec"), errors);
    if !list(&spec.ephemeral_containers).is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.forbidden(&at.child("spec").child("ephemeralContainers").path(), detail);
    }
}

/// A pod spec; `meta` is the Pod's, and absent for a template.
pub fn validate_spec(spec: &PodSpec, meta: Option<&ObjectMeta>, at: &At, errors: &mut Errors) {
    if spec.termination_grace_period_seconds.is_none() {
        errors.required(&at.child("terminationGracePeriodSeconds").path(), "");
    }
    let claims = list(&spec.resource_claims);
    let shared = Shared {
        volumes: volumes::validate(list(&spec.volumes), meta, &at.child("volumes"), errors),
        claims: claims.iter().map(|claim| claim.name.as_str()).filter(|name| !name.is_empty()).collect(),
        grace_secs: spec.termination_grace_period_seconds,
        os: spec.os.as_ref().map_or("", |os| os.name.as_str()),
        restart_policy: text(&spec.restart_policy),
        host_users: spec.host_users != Some(false),
    };
    validate_claims(claims, meta, &at.child("resourceClaims"), errors);
    containers::validate_containers(spec, &shared, &at.child("containers"), errors);
    containers::validate_init_containers(spec, &shared, &at.child("initContainers"), errors);
    containers::validate_ephemeral_containers(spec, &shared, &at.child("ephemeralContainers"), errors);
    pod_resources::validate(spec, &shared.claims, at, errors);
    containers::validate_host_network_ports(spec, meta.is_some(), at, errors);
    required_one_of(shared.restart_policy, &["Always", "OnFailure", "Never"], &at.child("restartPolicy"), errors);
    let dns_policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    required_one_of(text(&spec.dns_policy), &dns_policies, &at.child("dnsPolicy"), errors);
    if let Some(selector) = &spec.node_selector {
        meta::validate_labels(pairs(selector), &at.child("nodeSelector"), errors);
    }
    if let Some(context) = &spec.security_context {
        security::validate_pod(context, spec, &at.child("securityContext"), errors);
    }
    validate_namespaces(spec, at, errors);
    if let Some(affinity) = &spec.affinity {
        scheduling::validate_affinity(affinity, &at.child("affinity"), errors);
    }
    validate_dns(spec.dns_config.as_ref(), text(&spec.dns_policy), &at.child("dnsConfig"), errors);
    for (i, gate) in list(&spec.readiness_gates).iter().enumerate() {
        let at = at.child("readinessGates");
        let at = at.index(i);
        each_invalid(names::qualified(&gate.condition_type), &gate.condition_type, &at.child("conditionType"), errors);
    }
    scheduling::validate_gates(list(&spec.scheduling_gates), &at.child("schedulingGates"), errors);
    let spread = list(&spec.topology_spread_constraints);
    scheduling::validate_spread(spread, &at.child("topologySpreadConstraints"), errors);
    validate_host_users(spec, at, errors);
    validate_names(spec, at, errors);
    scheduling::validate_tolerations(list(&spec.tolerations), &at.child("tolerations"), errors);
    validate_host_aliases(list(&spec.host_aliases), &at.child("hostAliases"), errors);
    validate_classes(spec, at, errors);
    security::validate_os(spec, at, errors);
    validate_file_refs(spec, &shared.volumes, at, errors);
}

fn validate_claims(claims: &[PodResourceClaim], meta: Option<&ObjectMeta>, at: &At, errors: &mut Errors) {
    let mirror = meta.and_then(|meta| meta.annotations.as_ref()).is_some_and(|a| a.contains_key(annotations::MIRROR));
    for (i, claim) in claims.iter().enumerate() {
        let at = at.index(i);
        if mirror {
            errors.forbidden(&At::Root("").path(), "static pods do not support resource claims");
            continue;
        }
        if claim.name.is_empty() {
            errors.required(&at.child("name").path(), "");
        } else if claims[..i].iter().any(|other| other.name == claim.name) {
            errors.duplicate(&at.child("name").path(), claim.name.as_str());
        } else {
            each_invalid(names::dns1123_label(&claim.name, false), &claim.name, &at.child("name"), errors);
        }
        let (by_name, by_template) = (&claim.resource_claim_name, &claim.resource_claim_template_name);
        if by_name.is_some() && by_template.is_some() {
            let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
            errors.invalid(&at.path(), json(claim), detail);
        }
        if by_name.is_none() && by_template.is_none() {
            let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errors.invalid(&at.path(), json(claim), detail);
        }
        for (field, name) in [("resourceClaimName", by_name), ("resourceClaimTemplateName", by_template)] {
            if let Some(name) = name {
                each_invalid(names::dns1123_subdomain(name, false), name, &at.child(field), errors);
            }
        }
    }
}

/// What a pod shares with its host or among its containers.
fn validate_namespaces(spec: &PodSpec, at: &At, errors: &mut Errors) {
    if is_true(spec.host_pid) && is_true(spec.share_process_namespace) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&at.child("shareProcessNamespace").path(), true, detail);
    }
}

fn validate_host_users(spec: &PodSpec, at: &At, errors: &mut Errors) {
    if spec.host_users != Some(false) {
        return;
    }
    let detail = "when `hostUsers` is false";
    for (field, set) in [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)] {
        if is_true(set) {
            errors.forbidden(&at.child(field).path(), detail);
        }
    }
    security::visit(spec, at, &mut |container, at| {
        if !list(&container.volume_devices).is_empty() {
            errors.forbidden(&at.child("volumeDevices").path(), detail);
        }
    });
}

fn validate_dns(config: Option<&PodDNSConfig>, policy: &str, at: &At, errors: &mut Errors) {
    let Some(config) = config else {
        if policy == "None" {
            errors.required(&at.path(), "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    let (servers, searches) = (list(&config.nameservers), list(&config.searches));
    if policy == "None" && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return errors.required(&at.child("nameservers").path(), detail);
    }
    if servers.len() > NAMESERVERS_MAX {
        let detail = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        errors.invalid(&at.child("nameservers").path(), json(&servers), detail);
    }
    for (i, server) in servers.iter().enumerate() {
        ip(server, &at.child("nameservers").index(i), errors);
    }
    if searches.len() > SEARCHES_MAX {
        let detail = format!("must not have more than {SEARCHES_MAX} search paths");
        errors.invalid(&at.child("searches").path(), json(&searches), detail);
    }
    let chars = searches.iter().map(String::len).sum::<usize>() + searches.len().saturating_sub(1);
    if chars > SEARCH_CHARS_MAX {
        let detail =
            format!("must not have more than {SEARCH_CHARS_MAX} characters (including spaces) in the search list");
        errors.invalid(&at.child("searches").path(), json(&searches), detail);
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        let problems = names::dns1123_subdomain_with_underscore(search);
        each_invalid(problems, search, &at.child("searches").index(i), errors);
    }
    for (i, option) in list(&config.options).iter().enumerate() {
        if text(&option.name).is_empty() {
            errors.required(&at.child("options").index(i).path(), "must not be empty");
        }
    }
}

/// Names of the pod on the network, of its account and of its node.
fn validate_names(spec: &PodSpec, at: &At, errors: &mut Errors) {
    if let Some(hostname) = &spec.hostname_override {
        let at = at.child("hostnameOverride");
        if is_true(spec.set_hostname_as_fqdn) {
            errors.forbidden(&at.path(), "may not be specified when setHostnameAsFQDN is true");
        }
        if is_true(spec.host_network) {
            errors.forbidden(&at.path(), "may not be specified when hostNetwork is true");
        }
        if hostname.len() > HOSTNAME_OVERRIDE_MAX {
            errors.too_long(&at.path(), HOSTNAME_OVERRIDE_MAX);
        }
        each_invalid(names::dns1123_subdomain(hostname, false), hostname, &at, errors);
    }
    for (field, name) in [("serviceAccountName", &spec.service_account_name), ("nodeName", &spec.node_name)] {
        let name = text(name);
        if !name.is_empty() {
            each_invalid(names::dns1123_subdomain(name, false), name, &at.child(field), errors);
        }
    }
    if let Some(secs) = spec.active_deadline_seconds.filter(|secs| !(1..=i64::from(i32::MAX)).contains(secs)) {
        let detail = names::inclusive_range(1, i64::from(i32::MAX));
        errors.invalid(&at.child("activeDeadlineSeconds").path(), secs, detail);
    }
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        let name = text(name);
        if !name.is_empty() {
            each_invalid(names::dns1123_label(name, false), name, &at.child(field), errors);
        }
    }
}

fn validate_host_aliases(aliases: &[HostAlias], at: &At, errors: &mut Errors) {
    for (i, alias) in aliases.iter().enumerate() {
        let at = at.index(i);
        ip(&alias.ip, &at.child("ip"), errors);
        for (j, name) in list(&alias.hostnames).iter().enumerate() {
            each_invalid(names::dns1123_subdomain(name, false), name, &at.child("hostnames").index(j), errors);
        }
    }
}

/// Priority, runtime class and what the runtime costs.
fn validate_classes(spec: &PodSpec, at: &At, errors: &mut Errors) {
    let class = text(&spec.priority_class_name);
    if !class.is_empty() {
        each_invalid(names::dns1123_subdomain(class, false), class, &at.child("priorityClassName"), errors);
    }
    if let Some(class) = &spec.runtime_class_name {
        each_invalid(names::dns1123_subdomain(class, false), class, &at.child("runtimeClassName"), errors);
    }
    if let Some(policy) = &spec.preemption_policy {
        required_one_of(policy, &["PreemptLowerPriority", "Never"], &at.child("preemptionPolicy"), errors);
    }
    if let Some(overhead) = &spec.overhead {
        let requirements =
            k8s_openapi::api::core::v1::ResourceRequirements { limits: Some(overhead.clone()), ..Default::default() };
        resources::validate(&requirements, Names::Container, &[], &at.child("overhead"), errors);
    }
}

/// Variables that come from a file name an emptyDir volume.
fn validate_file_refs(spec: &PodSpec, volumes: &Volumes, at: &At, errors: &mut Errors) {
    security::visit(spec, at, &mut |container, at| {
        for (i, var) in list(&container.env).iter().enumerate() {
            let Some(file) = var.value_from.as_ref().and_then(|source| source.file_key_ref.as_ref()) else { continue };
            let at = at.child("env");
            let at = at.index(i);
            let at = at.child("valueFrom");
            let at = at.child("fileKeyRef");
            match volumes.get(file.volume_name.as_str()) {
                None => errors.not_found(&at.child("volumeName").path(), file.volume_name.as_str()),
                Some(volume) if volume.empty_dir.is_none() => {
                    let detail = "referenced volume must be of type emptyDir";
                    errors.invalid(&at.child("volumeName").path(), file.volume_name.as_str(), detail);
                }
                Some(_) => {}
            }
        }
    });
}

/// The annotations of a pod's metadata, or none.
pub fn annotations_of(meta: &ObjectMeta) -> std::borrow::Cow<'_, BTreeMap<String, String>> {
    match &meta.annotations {
        Some(annotations) => std::borrow::Cow::Borrowed(annotations),
        None => std::borrow::Cow::Owned(BTreeMap::new()),
    }
}
