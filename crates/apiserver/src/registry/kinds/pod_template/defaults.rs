//! Defaults of a pod spec, and the further ones only a Pod gets (a template keeps what its author left out).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EphemeralContainer, HTTPGetAction, LifecycleHandler, ObjectFieldSelector, Pod, PodSpec, PodStatus,
    PodTemplateSpec, Probe, ProjectedVolumeSource, ResourceFieldSelector, ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource;

use crate::registry::kinds::common::{default_text, text};
use usher_api::quantity::Quantity;

const FILE_MODE: i32 = 0o644;
const TOKEN_SECS: i64 = 3600;

pub fn default_template(template: &mut PodTemplateSpec) {
    default_spec(template.spec.get_or_insert_default());
}

pub fn default_spec(spec: &mut PodSpec) {
    if text(&spec.service_account_name).is_empty() {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    spec.service_account.clone_from(&spec.service_account_name);
    default_text(&mut spec.dns_policy, "ClusterFirst");
    default_text(&mut spec.restart_policy, "Always");
    default_text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.volumes.iter_mut().flatten().for_each(default_volume);
    spec.init_containers.iter_mut().flatten().for_each(default_container);
    spec.containers.iter_mut().for_each(default_container);
    spec.ephemeral_containers.iter_mut().flatten().for_each(default_ephemeral_container);
    if let Some(overhead) = &mut spec.overhead {
        default_resource_list(overhead);
    }
    if let Some(resources) = &mut spec.resources {
        default_resources(resources);
    }
}

/// What only a Pod gets on top of [`default_spec`].
pub fn default_pod(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    if spec.termination_grace_period_seconds.is_some_and(|secs| secs < 0) {
        spec.termination_grace_period_seconds = Some(1);
    }
    default_spec(spec);
    let containers = spec.init_containers.iter_mut().flatten().chain(spec.containers.iter_mut());
    let host_network = spec.host_network == Some(true);
    for container in containers {
        if let Some(resources) = &mut container.resources {
            requests_from_limits(resources);
        }
        if host_network {
            for port in container.ports.iter_mut().flatten().filter(|port| port.host_port.unwrap_or(0) == 0) {
                port.host_port = Some(port.container_port);
            }
        }
    }
    spec.enable_service_links.get_or_insert(true);
    if let Some(status) = &mut pod.status {
        default_pod_ips(status);
    }
}

/// What is limited but not requested is requested up to its limit.
fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, quantity) in limits {
        if !requests.contains_key(name) {
            requests.insert(name.clone(), quantity.clone());
        }
    }
}

/// The single address and the list follow each other; the single one wins.
fn default_pod_ips(status: &mut PodStatus) {
    let first = status.pod_ips.iter().flatten().next().map(|ip| ip.ip.clone());
    let single = text(&status.pod_ip);
    match first {
        None if !single.is_empty() => status.pod_ips = Some(vec![pod_ip(single)]),
        Some(first) if single.is_empty() => status.pod_ip = Some(first),
        Some(first) if first != single => status.pod_ips = Some(vec![pod_ip(single)]),
        _ => {}
    }
}

fn pod_ip(ip: &str) -> k8s_openapi::api::core::v1::PodIP {
    k8s_openapi::api::core::v1::PodIP { ip: ip.to_owned() }
}

fn default_container(container: &mut Container) {
    if text(&container.image_pull_policy).is_empty() {
        container.image_pull_policy = Some(pull_policy(text(&container.image)).to_owned());
    }
    default_text(&mut container.termination_message_path, "/dev/termination-log");
    default_text(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        default_text(&mut port.protocol, "TCP");
    }
    for source in container.env.iter_mut().flatten().filter_map(|env| env.value_from.as_mut()) {
        source.field_ref.iter_mut().for_each(default_field_ref);
        source.resource_field_ref.iter_mut().for_each(default_resource_field_ref);
    }
    if let Some(resources) = &mut container.resources {
        default_resources(resources);
    }
    let probes = [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    probes.into_iter().flatten().for_each(default_probe);
    if let Some(lifecycle) = &mut container.lifecycle {
        lifecycle.post_start.iter_mut().for_each(default_handler);
        lifecycle.pre_stop.iter_mut().for_each(default_handler);
    }
}

fn default_ephemeral_container(container: &mut EphemeralContainer) {
    if text(&container.image_pull_policy).is_empty() {
        container.image_pull_policy = Some(pull_policy(text(&container.image)).to_owned());
    }
    default_text(&mut container.termination_message_path, "/dev/termination-log");
    default_text(&mut container.termination_message_policy, "File");
    for source in container.env.iter_mut().flatten().filter_map(|env| env.value_from.as_mut()) {
        source.field_ref.iter_mut().for_each(default_field_ref);
        source.resource_field_ref.iter_mut().for_each(default_resource_field_ref);
    }
}

fn default_probe(probe: &mut Probe) {
    let unset = |value: &mut Option<i32>, default| {
        if value.unwrap_or(0) == 0 {
            *value = Some(default);
        }
    };
    unset(&mut probe.timeout_seconds, 1);
    unset(&mut probe.period_seconds, 10);
    unset(&mut probe.success_threshold, 1);
    unset(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(default_http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_handler(handler: &mut LifecycleHandler) {
    handler.http_get.iter_mut().for_each(default_http_get);
}

fn default_http_get(get: &mut HTTPGetAction) {
    default_text(&mut get.path, "/");
    default_text(&mut get.scheme, "HTTP");
}

fn default_field_ref(field: &mut ObjectFieldSelector) {
    default_text(&mut field.api_version, "v1");
}

fn default_resource_field_ref(field: &mut ResourceFieldSelector) {
    field.divisor.get_or_insert_with(|| resource::Quantity("0".to_owned()));
}

fn default_resources(resources: &mut ResourceRequirements) {
    resources.limits.iter_mut().chain(resources.requests.iter_mut()).for_each(default_resource_list);
}

/// Quantities of a resource list are whole thousandths in canonical form. What does not parse is left for validation.
pub fn default_resource_list(resources: &mut BTreeMap<String, resource::Quantity>) {
    for quantity in resources.values_mut() {
        if is_canonical(&quantity.0) {
            continue;
        }
        if let Ok(parsed) = Quantity::parse(&quantity.0) {
            quantity.0 = parsed.rounded_to_milli().to_string();
        }
    }
}

/// Most quantities are plain small numbers, which need no rewriting.
fn is_canonical(quantity: &str) -> bool {
    let digits = (1..4).contains(&quantity.len()) && quantity.bytes().all(|c| c.is_ascii_digit());
    digits && (quantity.len() == 1 || !quantity.starts_with('0'))
}

fn default_volume(volume: &mut Volume) {
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(FILE_MODE);
        for file in source.items.iter_mut().flatten() {
            file.field_ref.iter_mut().for_each(default_field_ref);
            file.resource_field_ref.iter_mut().for_each(default_resource_field_ref);
        }
    }
    volume.projected.iter_mut().for_each(default_projected);
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.image
        && text(&source.pull_policy).is_empty()
    {
        source.pull_policy = Some(pull_policy(text(&source.reference)).to_owned());
    }
    if let Some(source) = &mut volume.iscsi {
        default_text(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut volume.rbd {
        default_text(&mut source.pool, "rbd");
        default_text(&mut source.user, "admin");
        default_text(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(claim) = volume.ephemeral.as_mut().and_then(|source| source.volume_claim_template.as_mut()) {
        default_text(&mut claim.spec.volume_mode, "Filesystem");
    }
    if super::volumes::sources(volume).next().is_none() {
        volume.empty_dir = Some(k8s_openapi::api::core::v1::EmptyDirVolumeSource::default());
    }
}

fn default_projected(projected: &mut ProjectedVolumeSource) {
    projected.default_mode.get_or_insert(FILE_MODE);
    for source in projected.sources.iter_mut().flatten() {
        if let Some(token) = &mut source.service_account_token {
            token.expiration_seconds.get_or_insert(TOKEN_SECS);
        }
        for file in source.downward_api.iter_mut().flat_map(|api| api.items.iter_mut().flatten()) {
            file.field_ref.iter_mut().for_each(default_field_ref);
            file.resource_field_ref.iter_mut().for_each(default_resource_field_ref);
        }
    }
}

/// `Always` for images that may change under their name (no tag, or `latest`), else `IfNotPresent`.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, ""), |(name, digest)| (name, digest));
    let last = name.rsplit('/').next().unwrap_or_default();
    let (_, tag) = last.split_once(':').unwrap_or((last, ""));
    let path = match name.split_once('/') {
        // A registry's host may have capital letters, a repository's name may not.
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => rest,
        _ => name,
    };
    let repository = path.strip_suffix(tag).unwrap_or(path);
    let unreadable = name.is_empty() || repository.bytes().any(|c| c.is_ascii_uppercase() || c.is_ascii_whitespace());
    let latest = tag == "latest" || (tag.is_empty() && digest.is_empty());
    if latest && !unreadable { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(value: Value) -> Value {
        let mut spec: PodSpec = serde_json::from_value(value).unwrap();
        default_spec(&mut spec);
        serde_json::to_value(spec).unwrap()
    }

    #[test]
    fn a_spec_gets_kubernetes_defaults() {
        assert_eq!(
            spec(json!({"containers": [{"name": "a", "image": "busybox", "ports": [{"containerPort": 80}]}]})),
            json!({
                "containers": [{"name": "a", "image": "busybox", "imagePullPolicy": "Always",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                "securityContext": {}, "terminationGracePeriodSeconds": 30
            })
        );
    }

    #[test]
    fn pull_policy_follows_the_tag() {
        for (image, policy) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("host:5000/busybox", "Always"),
            ("host:5000/busybox:1", "IfNotPresent"),
            ("Host:5000/busybox", "Always"),
            ("busybox@sha256:00", "IfNotPresent"),
            ("busybox:V1", "IfNotPresent"),
            ("BusyBox", "IfNotPresent"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn probes_volumes_and_quantities_are_completed() {
        let out = spec(json!({
            "containers": [{"name": "a", "livenessProbe": {"httpGet": {"port": 80}},
                "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}, "requests": {"cpu": "100u"}},
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}],
            "volumes": [{"name": "none"}, {"name": "s", "secret": {"secretName": "x"}}, {"name": "h", "hostPath": {"path": "/x"}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
            "serviceAccount": "robot"
        }));
        let container = &out["containers"][0];
        assert_eq!(
            container["livenessProbe"],
            json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(container["resources"], json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1m"}}));
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(
            out["volumes"],
            json!([{"name": "none", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}},
                {"name": "h", "hostPath": {"path": "/x", "type": ""}},
                {"name": "p", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}])
        );
        assert_eq!(out["serviceAccountName"], "robot");
    }

    #[test]
    fn only_a_pod_requests_what_it_limits() {
        let mut pod: Pod = serde_json::from_value(json!({"spec": {"hostNetwork": true, "terminationGracePeriodSeconds": -5, "containers": [
            {"name": "a", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}]},
            "status": {"podIP": "10.0.0.1"}}))
        .unwrap();
        default_pod(&mut pod);
        let out = serde_json::to_value(&pod).unwrap();
        assert_eq!(out["spec"]["containers"][0]["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
        assert_eq!(out["spec"]["containers"][0]["ports"][0]["hostPort"], 80);
        assert_eq!(out["spec"]["enableServiceLinks"], true);
        assert_eq!(out["spec"]["terminationGracePeriodSeconds"], 1);
        assert_eq!(out["status"]["podIPs"], json!([{"ip": "10.0.0.1"}]));
    }
}
