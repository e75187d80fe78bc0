//! Namespace, Deployment, budget, Services and APIServices.

use serde_json::{Value, json};

use super::Settings;
use crate::names::{
    APP_LABEL, LEADER_LABEL, METRICS_SERVICE, PROBE_PORT, USHER, VISIBILITY_GROUP, VISIBILITY_PORT, VISIBILITY_SERVICE,
    VISIBILITY_VERSIONS, WEBHOOK_PORT, WEBHOOK_SERVICE,
};

pub fn namespace(settings: &Settings) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": settings.namespace, "labels": {
        APP_LABEL: USHER, "pod-security.kubernetes.io/enforce": "restricted"}}})
}

/// The metadata of a namespaced object.
pub(super) fn meta(settings: &Settings, name: &str) -> Value {
    json!({"name": name, "namespace": settings.namespace, "labels": {APP_LABEL: USHER}})
}

/// The metadata of one without a namespace.
pub(super) fn cluster_meta(name: &str) -> Value {
    json!({"name": name, "labels": {APP_LABEL: USHER}})
}

pub fn all(settings: &Settings) -> Vec<Value> {
    let leads = json!({APP_LABEL: USHER, LEADER_LABEL: "true"});
    vec![
        service(settings, WEBHOOK_SERVICE, json!({APP_LABEL: USHER}), "webhook", 443, WEBHOOK_PORT),
        service(settings, VISIBILITY_SERVICE, leads, "visibility", 443, VISIBILITY_PORT),
        service(settings, METRICS_SERVICE, json!({APP_LABEL: USHER}), "metrics", 8080, PROBE_PORT),
        deployment(settings),
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta(settings, USHER),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {APP_LABEL: USHER}}}}),
    ]
}

fn service(settings: &Settings, name: &str, selector: Value, port_name: &str, port: u16, target: u16) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": meta(settings, name), "spec": {"selector": selector,
        "ports": [{"name": port_name, "port": port, "protocol": "TCP", "targetPort": target}]}})
}

fn deployment(settings: &Settings) -> Value {
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "probes"}, "periodSeconds": 5});
    let from = |field: &str| json!({"fieldRef": {"fieldPath": field}});
    let container = json!({
        "name": USHER,
        "image": settings.image,
        "args": [
            "controller",
            format!("--listen=0.0.0.0:{WEBHOOK_PORT}"),
            format!("--visibility=0.0.0.0:{VISIBILITY_PORT}"),
            format!("--probes=0.0.0.0:{PROBE_PORT}"),
            "--leader-elect=true",
            "--install-crds=false",
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": from("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": from("metadata.namespace")},
        ],
        "ports": [
            {"name": "webhook", "containerPort": WEBHOOK_PORT, "protocol": "TCP"},
            {"name": "visibility", "containerPort": VISIBILITY_PORT, "protocol": "TCP"},
            {"name": "probes", "containerPort": PROBE_PORT, "protocol": "TCP"},
        ],
        // Long enough for those who call webhooks to hear that this copy goes.
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "livenessProbe": probe("/healthz"),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "200m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}},
    });
    let apart = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {APP_LABEL: USHER}}}}]}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(settings, USHER), "spec": {
        "replicas": settings.replicas,
        "selector": {"matchLabels": {APP_LABEL: USHER}},
        "template": {
            "metadata": {"labels": {APP_LABEL: USHER}},
            "spec": {
                "serviceAccountName": USHER,
                "terminationGracePeriodSeconds": 30,
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                "affinity": apart,
                "containers": [container],
            },
        },
    }})
}

pub fn api_services(settings: &Settings) -> Vec<Value> {
    let of = |(at, version): (usize, &str)| {
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": cluster_meta(&format!("{version}.{VISIBILITY_GROUP}")),
            "spec": {"group": VISIBILITY_GROUP, "version": version, "groupPriorityMinimum": 100,
                "versionPriority": 100 - at * 10,
                "service": {"name": VISIBILITY_SERVICE, "namespace": settings.namespace, "port": 443}}})
    };
    VISIBILITY_VERSIONS.into_iter().enumerate().map(of).collect()
}
