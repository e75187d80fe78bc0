//! Containers, init containers and ephemeral containers.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerResizePolicy, ContainerRestartRule, EphemeralContainer, PodSpec,
};
use usher_schema::field::Errors;

use super::probes;
use super::resources::{self, Names};
use super::validate::Shared;
use super::{env, mounts, security};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, is_true, list, one_of, required_one_of, text};
use crate::registry::names;

pub const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const RESTART_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const NOT_FOR_INIT: &str = "may not be set for init containers without restartPolicy=Always";
const NOT_FOR_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

pub fn validate_containers(spec: &PodSpec, shared: &Shared, at: &At, errors: &mut Errors) {
    if spec.containers.is_empty() {
        return errors.required(&at.path(), "");
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (i, container) in spec.containers.iter().enumerate() {
        let at = at.index(i);
        validate_common(container, shared, &at, errors);
        if !seen.insert(&container.name) {
            errors.duplicate(&at.child("name").path(), container.name.as_str());
        }
        probes::validate_all(container, shared, &at, errors);
        let rules = list(&container.restart_policy_rules);
        validate_restart_policy(container.restart_policy.as_deref(), rules, &at, errors);
    }
    unique_host_ports(&spec.containers, at, errors);
}

pub fn validate_init_containers(spec: &PodSpec, shared: &Shared, at: &At, errors: &mut Errors) {
    let mut seen: HashSet<&str> = spec.containers.iter().map(|container| container.name.as_str()).collect();
    for (i, container) in list(&spec.init_containers).iter().enumerate() {
        let at_list = at;
        let at = at.index(i);
        validate_common(container, shared, &at, errors);
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        let rules = list(&container.restart_policy_rules);
        validate_restart_policy(container.restart_policy.as_deref(), rules, &at, errors);
        if !container.name.is_empty() && !seen.insert(&container.name) {
            errors.duplicate(&at.child("name").path(), container.name.as_str());
        }
        unique_host_ports(std::slice::from_ref(container), at_list, errors);
        if sidecar {
            probes::validate_all(container, shared, &at, errors);
        } else {
            forbid_on_init(container, &at, errors);
        }
    }
}

fn forbid_on_init(container: &Container, at: &At, errors: &mut Errors) {
    let set = [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ];
    for (field, _) in set.into_iter().filter(|(_, set)| *set) {
        errors.forbidden(&at.child(field).path(), NOT_FOR_INIT);
    }
    for (j, policy) in list(&container.resize_policy).iter().enumerate() {
        if policy.restart_policy == "RestartContainer" {
            let at = at.child("resizePolicy");
            let at = at.index(j);
            let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            errors.invalid(&at.child("restartPolicy").path(), policy.restart_policy.as_str(), detail);
        }
    }
}

pub fn validate_ephemeral_containers(spec: &PodSpec, shared: &Shared, at: &At, errors: &mut Errors) {
    let containers = list(&spec.ephemeral_containers);
    if containers.is_empty() {
        return;
    }
    let others: HashSet<&str> =
        spec.containers.iter().chain(list(&spec.init_containers)).map(|container| container.name.as_str()).collect();
    let mut seen = others.clone();
    for (i, ephemeral) in containers.iter().enumerate() {
        let at = at.index(i);
        let container = as_container(ephemeral);
        validate_common(&container, shared, &at, errors);
        validate_image_padding(&container, &at, errors);
        if !seen.insert(&ephemeral.name) {
            errors.duplicate(&at.child("name").path(), ephemeral.name.as_str());
        }
        let target = text(&ephemeral.target_container_name);
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&at.child("targetContainerName").path(), target);
        }
        forbid_on_ephemeral(ephemeral, &at, errors);
    }
}

fn forbid_on_ephemeral(container: &EphemeralContainer, at: &At, errors: &mut Errors) {
    let resources = container.resources.as_ref();
    let set = [
        ("ports", container.ports.is_some()),
        ("resources", resources.is_some_and(|r| *r != Default::default())),
        ("resizePolicy", container.resize_policy.is_some()),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", container.restart_policy_rules.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ];
    for (field, _) in set.into_iter().filter(|(_, set)| *set) {
        errors.forbidden(&at.child(field).path(), NOT_FOR_EPHEMERAL);
    }
    let at = at.child("volumeMounts");
    for (i, mount) in list(&container.volume_mounts).iter().enumerate() {
        for (field, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if !text(value).is_empty() {
                errors.forbidden(&at.index(i).child(field).path(), NOT_FOR_EPHEMERAL);
            }
        }
    }
}

/// The part an ephemeral container has in common with the others.
fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        name: e.name,
        image: e.image,
        command: e.command,
        args: e.args,
        working_dir: e.working_dir,
        env: e.env,
        env_from: e.env_from,
        image_pull_policy: e.image_pull_policy,
        security_context: e.security_context,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        ..Container::default()
    }
}

/// What holds for every kind of container.
fn validate_common(container: &Container, shared: &Shared, at: &At, errors: &mut Errors) {
    if container.name.is_empty() {
        errors.required(&at.child("name").path(), "");
    } else {
        each_invalid(names::dns1123_label(&container.name, false), &container.name, &at.child("name"), errors);
    }
    if text(&container.image).is_empty() {
        errors.required(&at.child("image").path(), "");
    }
    let policy = text(&container.termination_message_policy);
    required_one_of(policy, &["File", "FallbackToLogsOnError"], &at.child("terminationMessagePolicy"), errors);
    validate_ports(list(&container.ports), &at.child("ports"), errors);
    env::validate_env(list(&container.env), &at.child("env"), errors);
    env::validate_env_from(list(&container.env_from), &at.child("envFrom"), errors);
    mounts::validate_mounts(container, &shared.volumes, &at.child("volumeMounts"), errors);
    mounts::validate_devices(container, &shared.volumes, &at.child("volumeDevices"), errors);
    required_one_of(text(&container.image_pull_policy), &PULL_POLICIES, &at.child("imagePullPolicy"), errors);
    if let Some(requirements) = &container.resources {
        resources::validate(requirements, Names::Container, &shared.claims, &at.child("resources"), errors);
    }
    validate_resize_policy(list(&container.resize_policy), shared, &at.child("resizePolicy"), errors);
    if let Some(context) = &container.security_context {
        security::validate_container(context, shared.host_users, &at.child("securityContext"), errors);
    }
}

/// Pods (not templates) refuse images with stray blanks.
pub fn validate_image_padding(container: &Container, at: &At, errors: &mut Errors) {
    let image = text(&container.image);
    if image.trim() != image {
        errors.invalid(&at.child("image").path(), image, "must not have leading or trailing whitespace");
    }
}

fn validate_ports(ports: &[ContainerPort], at: &At, errors: &mut Errors) {
    let mut seen: Vec<&str> = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let at = at.index(i);
        let name = text(&port.name);
        if !name.is_empty() {
            let problems = names::port_name(name);
            if !problems.is_empty() {
                each_invalid(problems, name, &at.child("name"), errors);
            } else if seen.contains(&name) {
                errors.duplicate(&at.child("name").path(), name);
            } else {
                seen.push(name);
            }
        }
        if port.container_port == 0 {
            errors.required(&at.child("containerPort").path(), "");
        } else {
            port_number(port.container_port, &at.child("containerPort"), errors);
        }
        if let Some(port) = port.host_port.filter(|port| *port != 0) {
            port_number(port, &at.child("hostPort"), errors);
        }
        required_one_of(text(&port.protocol), &["SCTP", "TCP", "UDP"], &at.child("protocol"), errors);
    }
}

fn port_number(port: i32, at: &At, errors: &mut Errors) {
    for problem in names::port_number(i64::from(port)) {
        errors.invalid(&at.path(), port, problem);
    }
}

fn unique_host_ports(containers: &[Container], at: &At, errors: &mut Errors) {
    let mut seen: HashSet<(&str, &str, i32)> = HashSet::new();
    for (c, container) in containers.iter().enumerate() {
        for (p, port) in list(&container.ports).iter().enumerate() {
            let Some(number) = port.host_port.filter(|port| *port != 0) else { continue };
            let (protocol, ip) = (text(&port.protocol), text(&port.host_ip));
            if !seen.insert((protocol, ip, number)) {
                let at = at.index(c);
                let at = at.child("ports");
                errors.duplicate(&at.index(p).child("hostPort").path(), format!("{protocol}/{ip}/{number}"));
            }
        }
    }
}

fn validate_resize_policy(policies: &[ContainerResizePolicy], shared: &Shared, at: &At, errors: &mut Errors) {
    for (i, policy) in policies.iter().enumerate() {
        if policies[..i].iter().any(|other| other.resource_name == policy.resource_name) {
            errors.duplicate(&at.index(i).path(), policy.resource_name.as_str());
        }
        required_one_of(&policy.resource_name, &["cpu", "memory"], at, errors);
        required_one_of(&policy.restart_policy, &["NotRequired", "RestartContainer"], at, errors);
        if shared.restart_policy == "Never" && policy.restart_policy != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(&at.path(), policy.restart_policy.as_str(), detail);
        }
    }
}

fn validate_restart_policy(policy: Option<&str>, rules: &[ContainerRestartRule], at: &At, errors: &mut Errors) {
    match policy {
        None if rules.is_empty() => return,
        None => {
            let detail = "must specify restartPolicy when restart rules are used";
            errors.required(&at.child("restartPolicy").path(), detail);
        }
        Some(policy) => one_of(policy, &["Always", "Never", "OnFailure"], &at.child("restartPolicy"), errors),
    }
    let at = at.child("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        errors.too_many(&at.path(), rules.len(), RESTART_RULES_MAX);
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = at.index(i);
        one_of(&rule.action, &["Restart", "RestartAllContainers"], &at.child("action"), errors);
        let at = at.child("exitCodes");
        match &rule.exit_codes {
            None => errors.required(&at.path(), "must be specified"),
            Some(codes) => {
                one_of(&codes.operator, &["In", "NotIn"], &at.child("operator"), errors);
                let count = list(&codes.values).len();
                if count > EXIT_CODES_MAX {
                    errors.too_many(&at.child("values").path(), count, EXIT_CODES_MAX);
                }
            }
        }
    }
}

/// Host-network pods publish their ports as they are.
pub fn validate_host_network_ports(spec: &PodSpec, is_pod: bool, at: &At, errors: &mut Errors) {
    if !is_true(spec.host_network) {
        return;
    }
    let at = at.child("containers");
    for (c, container) in spec.containers.iter().enumerate() {
        for (p, port) in list(&container.ports).iter().enumerate() {
            let host = port.host_port.unwrap_or(0);
            if (is_pod || host != 0) && host != port.container_port {
                let at = at.index(c);
                let at = at.child("ports");
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(&at.index(p).child("hostPort").path(), host, detail);
            }
        }
    }
}
