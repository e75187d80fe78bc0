//! What Usher may do, and no more; and what people may see of queues.

use serde_json::{Value, json};

use super::Settings;
use super::objects::{cluster_meta, meta};
use crate::names::{
    CERTIFICATE_SECRET, LEASE, MUTATING_CONFIGURATION, USHER, VALIDATING_CONFIGURATION, VISIBILITY_GROUP,
    VISIBILITY_VERSIONS,
};

const READ: &[&str] = &["get", "list", "watch"];

pub fn all(settings: &Settings) -> Vec<Value> {
    let subjects = json!([{"kind": "ServiceAccount", "name": USHER, "namespace": settings.namespace}]);
    let to = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let api = "rbac.authorization.k8s.io/v1";
    let mut borrowed = meta(settings, "usher-auth-reader");
    borrowed["namespace"] = json!("kube-system");
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(settings, USHER)}),
        json!({"apiVersion": api, "kind": "ClusterRole", "metadata": cluster_meta(USHER), "rules": cluster_rules()}),
        json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": cluster_meta(USHER),
            "roleRef": to("ClusterRole", USHER), "subjects": subjects}),
        json!({"apiVersion": api, "kind": "Role", "metadata": meta(settings, USHER), "rules": own_rules()}),
        json!({"apiVersion": api, "kind": "RoleBinding", "metadata": meta(settings, USHER),
            "roleRef": to("Role", USHER), "subjects": subjects}),
        // How the API server introduces the users that it asks for.
        json!({"apiVersion": api, "kind": "RoleBinding", "metadata": borrowed,
            "roleRef": to("Role", "extension-apiserver-authentication-reader"), "subjects": subjects}),
        people(
            "usher-queues-view",
            &["view", "edit", "admin"],
            &[
                rule(&["kueue.x-k8s.io"], &["localqueues", "workloads"], READ),
                rule(&[VISIBILITY_GROUP], &["localqueues/pendingworkloads"], &["get"]),
            ],
        ),
        people(
            "usher-queues-admin",
            &["admin"],
            &[rule(
                &["kueue.x-k8s.io"],
                &["localqueues"],
                &["create", "delete", "deletecollection", "patch", "update"],
            )],
        ),
    ]
}

/// A role that adds to those that every cluster has.
fn people(name: &str, to: &[&str], rules: &[Value]) -> Value {
    let mut metadata = cluster_meta(name);
    for role in to {
        metadata["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{role}")] = json!("true");
    }
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules})
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn named(group: &str, resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs, "resourceNames": names})
}

fn cluster_rules() -> Vec<Value> {
    let registration = "admissionregistration.k8s.io";
    let services = VISIBILITY_VERSIONS.map(|version| format!("{version}.{VISIBILITY_GROUP}"));
    let services: Vec<&str> = services.iter().map(String::as_str).collect();
    vec![
        rule(
            &["kueue.x-k8s.io"],
            &[
                "admissionchecks",
                "clusterqueues",
                "cohorts",
                "localqueues",
                "resourceflavors",
                "topologies",
                "workloadpriorityclasses",
            ],
            READ,
        ),
        // Finalizers: what is in use stays.
        rule(&["kueue.x-k8s.io"], &["admissionchecks", "clusterqueues", "resourceflavors", "topologies"], &["patch"]),
        rule(
            &["kueue.x-k8s.io"],
            &[
                "admissionchecks/status",
                "clusterqueues/status",
                "cohorts/status",
                "localqueues/status",
                "workloads/status",
            ],
            &["patch"],
        ),
        rule(&["kueue.x-k8s.io"], &["workloads"], &["get", "list", "watch", "create", "patch", "update", "delete"]),
        // Where owners may only be named by those who may hold up their deletion.
        rule(&["kueue.x-k8s.io"], &["workloads/finalizers"], &["update"]),
        rule(&["batch"], &["jobs"], &["get", "list", "watch", "patch"]),
        rule(&["batch"], &["jobs/status"], &["patch"]),
        rule(&["batch"], &["jobs/finalizers"], &["update"]),
        rule(&["ray.io"], &["rayclusters"], &["get", "list", "watch", "patch"]),
        rule(&["ray.io"], &["rayclusters/finalizers"], &["update"]),
        // Gates of admitted pods are lifted; the leader's pod is labelled.
        rule(&[""], &["pods"], &["get", "list", "watch", "patch"]),
        // Labelled where they have a default queue.
        rule(&[""], &["namespaces"], &["get", "list", "watch", "patch"]),
        rule(&[""], &["events"], &["create", "patch"]),
        rule(&["scheduling.k8s.io"], &["priorityclasses"], READ),
        // Which kinds there are.
        rule(&["apiextensions.k8s.io"], &["customresourcedefinitions"], READ),
        rule(&["apiregistration.k8s.io"], &["apiservices"], READ),
        // Whom to trust.
        named(
            registration,
            &["mutatingwebhookconfigurations"],
            &["get", "list", "watch", "patch"],
            &[MUTATING_CONFIGURATION],
        ),
        named(
            registration,
            &["validatingwebhookconfigurations"],
            &["get", "list", "watch", "patch"],
            &[VALIDATING_CONFIGURATION],
        ),
        named("apiregistration.k8s.io", &["apiservices"], &["patch"], &services),
        // Who may see who waits.
        rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
    ]
}

/// In its own namespace. A name cannot be demanded of what is created.
fn own_rules() -> Vec<Value> {
    vec![
        rule(&["coordination.k8s.io"], &["leases"], &["create"]),
        named("coordination.k8s.io", &["leases"], &["get", "list", "watch", "patch"], &[LEASE]),
        rule(&[""], &["secrets"], &["create"]),
        named("", &["secrets"], &["get", "list", "watch", "update"], &[CERTIFICATE_SECRET]),
    ]
}
