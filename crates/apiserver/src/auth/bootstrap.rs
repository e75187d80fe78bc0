//! The objects a new cluster starts with: the default roles with their bindings, and the system's priority classes.
//!
//! Names and rules are upstream's. `admin`, `edit` and `view` have all of theirs, also for groups that are not served
//! here (a manifest or a person may rely on them); the roles of components (`system:kube-scheduler`, `system:node`, ...)
//! have the rules for what is served, and upstream's many `system:controller:*` roles are left out: our controllers run
//! inside the server.
//!
//! What an older store lacks is said by [`reconcile`].

pub mod reconcile;

use k8s_openapi::api::rbac::v1::{
    AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::identity::{AUTHENTICATED, MASTERS, SERVICE_ACCOUNTS, UNAUTHENTICATED};
use super::rbac::Rules;

const RBAC: &str = "rbac.authorization.k8s.io";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const TO_ADMIN: &str = "rbac.authorization.k8s.io/aggregate-to-admin";
const TO_EDIT: &str = "rbac.authorization.k8s.io/aggregate-to-edit";
const TO_VIEW: &str = "rbac.authorization.k8s.io/aggregate-to-view";
const SYSTEM: &str = "kube-system";

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const READ_WRITE: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Everything to create where it is missing, in the order to create it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    pub cluster_roles: Vec<ClusterRole>,
    pub cluster_role_bindings: Vec<ClusterRoleBinding>,
    /// All in `kube-system`.
    pub roles: Vec<Role>,
    pub role_bindings: Vec<RoleBinding>,
    pub priority_classes: Vec<PriorityClass>,
}

pub fn defaults() -> Defaults {
    Defaults {
        cluster_roles: cluster_roles(),
        cluster_role_bindings: cluster_role_bindings(),
        roles: roles(),
        role_bindings: role_bindings(),
        priority_classes: priority_classes(),
    }
}

/// Aggregated roles are given the rules they will have, so that `kubectl describe` is right from the first moment.
pub fn cluster_roles() -> Vec<ClusterRole> {
    let everything = vec![rule(&["*"], &["*"], &["*"]), paths(&["*"], &["*"])];
    let mut roles = vec![
        cluster_role("cluster-admin", &[], everything),
        aggregated("admin", &[], TO_ADMIN),
        aggregated("edit", &[TO_ADMIN], TO_EDIT),
        aggregated("view", &[TO_EDIT], TO_VIEW),
        cluster_role("system:aggregate-to-admin", &[TO_ADMIN], admin_rules()),
        cluster_role("system:aggregate-to-edit", &[TO_EDIT], edit_rules()),
        cluster_role("system:aggregate-to-view", &[TO_VIEW], view_rules()),
    ];
    roles.extend(public_roles());
    roles.extend(component_roles());
    let rules = Rules::new(roles.clone(), [], [], []);
    for (name, found) in rules.aggregated() {
        if let Some(role) = roles.iter_mut().find(|role| role.metadata.name.as_deref() == Some(name)) {
            role.rules = Some(found.to_vec());
        }
    }
    roles
}

fn public_roles() -> Vec<ClusterRole> {
    let discovery = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    let monitoring = [
        "/flagz",
        "/healthz",
        "/healthz/*",
        "/livez",
        "/livez/*",
        "/metrics",
        "/metrics/slis",
        "/readyz",
        "/readyz/*",
        "/statusz",
    ];
    let issuer = [
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/",
        "/openid/v1/jwks",
        "/openid/v1/jwks/",
    ];
    let self_reviews = vec![
        rule(&["create"], &["authorization.k8s.io"], &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
        rule(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]),
    ];
    vec![
        cluster_role("system:discovery", &[], vec![paths(&["get"], &discovery)]),
        cluster_role(
            "system:monitoring",
            &[],
            vec![paths(&["get"], &monitoring), rule(&["get"], &[""], &["nodes/metrics"])],
        ),
        cluster_role("system:basic-user", &[], self_reviews),
        cluster_role(
            "system:public-info-viewer",
            &[],
            vec![paths(&["get"], &["/healthz", "/livez", "/readyz", "/version", "/version/"])],
        ),
        cluster_role("system:service-account-issuer-discovery", &[], vec![paths(&["get"], &issuer)]),
        cluster_role("system:auth-delegator", &[], delegation()),
    ]
}

/// For components of a cluster that are run against this server.
fn component_roles() -> Vec<ClusterRole> {
    let lease = |verbs: &[&str], name: &str| PolicyRule {
        resource_names: Some(vec![name.to_owned()]),
        ..rule(verbs, &["coordination.k8s.io"], &["leases"])
    };
    let new_lease = || rule(&["create"], &["coordination.k8s.io"], &["leases"]);
    let mut manager = vec![
        events(),
        new_lease(),
        lease(&["get", "update"], "kube-controller-manager"),
        rule(&["create"], &[""], &["secrets", "serviceaccounts"]),
        rule(&["delete"], &[""], &["secrets"]),
        rule(&["get"], &[""], &["configmaps", "namespaces", "secrets", "serviceaccounts"]),
        rule(&["update"], &[""], &["secrets", "serviceaccounts"]),
    ];
    manager.extend(delegation());
    manager.push(rule(&["list", "watch"], &["*"], &["*"]));
    manager.push(rule(&["create"], &[""], &["serviceaccounts/token"]));

    let mut scheduler = vec![
        events(),
        new_lease(),
        lease(&["get", "list", "update", "watch"], "kube-scheduler"),
        rule(READ, &[""], &["nodes"]),
        rule(&["delete", "get", "list", "watch"], &[""], &["pods"]),
        rule(&["create"], &[""], &["bindings", "pods/binding"]),
        rule(&["patch", "update"], &[""], &["pods/status"]),
        rule(READ, &[""], &["replicationcontrollers", "services"]),
        rule(READ, &[""], &["persistentvolumeclaims", "persistentvolumes"]),
    ];
    scheduler.extend(delegation());
    scheduler.push(rule(READ, &[""], &["namespaces"]));

    let node = vec![
        rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews", "subjectaccessreviews"]),
        rule(READ, &[""], &["services"]),
        rule(&["create", "get", "list", "watch"], &[""], &["nodes"]),
        rule(&["patch", "update"], &[""], &["nodes/status"]),
        rule(&["patch", "update"], &[""], &["nodes"]),
        events(),
        rule(READ, &[""], &["pods"]),
        rule(&["create", "delete"], &[""], &["pods"]),
        rule(&["patch", "update"], &[""], &["pods/status"]),
        rule(&["create"], &[""], &["pods/eviction"]),
        rule(READ, &[""], &["configmaps", "secrets"]),
        rule(&["get"], &[""], &["persistentvolumeclaims", "persistentvolumes"]),
        rule(&["create", "delete", "get", "patch", "update"], &["coordination.k8s.io"], &["leases"]),
        rule(&["create"], &[""], &["serviceaccounts/token"]),
        rule(&["get", "patch", "update"], &[""], &["persistentvolumeclaims/status"]),
        rule(READ, &["node.k8s.io"], &["runtimeclasses"]),
        rule(&["get"], &[""], &["serviceaccounts"]),
    ];
    vec![
        cluster_role("system:kube-controller-manager", &[], manager),
        cluster_role("system:kube-scheduler", &[], scheduler),
        cluster_role("system:node", &[], node),
    ]
}

fn delegation() -> Vec<PolicyRule> {
    vec![
        rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
    ]
}

fn events() -> PolicyRule {
    rule(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"])
}

fn admin_rules() -> Vec<PolicyRule> {
    vec![
        rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
        rule(READ_WRITE, &[RBAC], &["rolebindings", "roles"]),
    ]
}

#[rustfmt::skip]
fn edit_rules() -> Vec<PolicyRule> {
    vec![
        rule(READ, &[""], &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"]),
        rule(&["impersonate"], &[""], &["serviceaccounts"]),
        rule(WRITE, &[""], &["pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"]),
        rule(&["create"], &[""], &["pods/eviction"]),
        rule(WRITE, &[""], &[
            "configmaps", "persistentvolumeclaims", "replicationcontrollers", "replicationcontrollers/scale", "secrets",
            "serviceaccounts", "services", "services/proxy",
        ]),
        rule(&["create"], &[""], &["serviceaccounts/token"]),
        rule(WRITE, &["", "events.k8s.io"], &["events"]),
        rule(WRITE, &["apps"], &[
            "daemonsets", "deployments", "deployments/rollback", "deployments/scale", "replicasets", "replicasets/scale",
            "statefulsets", "statefulsets/scale",
        ]),
        rule(WRITE, &["autoscaling"], &["horizontalpodautoscalers"]),
        rule(WRITE, &["batch"], &["cronjobs", "jobs"]),
        rule(WRITE, &["extensions"], &[
            "daemonsets", "deployments", "deployments/rollback", "deployments/scale", "ingresses", "networkpolicies",
            "replicasets", "replicasets/scale", "replicationcontrollers/scale",
        ]),
        rule(WRITE, &["policy"], &["poddisruptionbudgets"]),
        rule(WRITE, &["networking.k8s.io"], &["ingresses", "networkpolicies"]),
        rule(READ_WRITE, &["coordination.k8s.io"], &["leases"]),
        rule(WRITE, &["resource.k8s.io"], &["resourceclaims", "resourceclaimtemplates"]),
    ]
}

#[rustfmt::skip]
fn view_rules() -> Vec<PolicyRule> {
    vec![
        rule(READ, &[""], &[
            "configmaps", "endpoints", "persistentvolumeclaims", "persistentvolumeclaims/status", "pods",
            "replicationcontrollers", "replicationcontrollers/scale", "serviceaccounts", "services", "services/status",
        ]),
        rule(READ, &[""], &[
            "bindings", "limitranges", "namespaces/status", "pods/log", "pods/status", "replicationcontrollers/status",
            "resourcequotas", "resourcequotas/status",
        ]),
        rule(READ, &[""], &["namespaces"]),
        rule(READ, &["", "events.k8s.io"], &["events"]),
        rule(READ, &["discovery.k8s.io"], &["endpointslices"]),
        rule(READ, &["apps"], &[
            "controllerrevisions", "daemonsets", "daemonsets/status", "deployments", "deployments/scale",
            "deployments/status", "replicasets", "replicasets/scale", "replicasets/status", "statefulsets",
            "statefulsets/scale", "statefulsets/status",
        ]),
        rule(READ, &["autoscaling"], &["horizontalpodautoscalers", "horizontalpodautoscalers/status"]),
        rule(READ, &["batch"], &["cronjobs", "cronjobs/status", "jobs", "jobs/status"]),
        rule(READ, &["extensions"], &[
            "daemonsets", "daemonsets/status", "deployments", "deployments/scale", "deployments/status", "ingresses",
            "ingresses/status", "networkpolicies", "replicasets", "replicasets/scale", "replicasets/status",
            "replicationcontrollers/scale",
        ]),
        rule(READ, &["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
        rule(READ, &["networking.k8s.io"], &["ingresses", "ingresses/status", "networkpolicies"]),
        rule(READ, &["resource.k8s.io"], &["resourceclaims", "resourceclaims/status", "resourceclaimtemplates"]),
    ]
}

pub fn cluster_role_bindings() -> Vec<ClusterRoleBinding> {
    let bind = |role: &str, subjects: Vec<Subject>| ClusterRoleBinding {
        metadata: metadata(role, None, &[]),
        role_ref: role_ref("ClusterRole", role),
        subjects: (!subjects.is_empty()).then_some(subjects),
    };
    vec![
        bind("cluster-admin", vec![group(MASTERS)]),
        bind("system:monitoring", vec![group("system:monitoring")]),
        bind("system:discovery", vec![group(AUTHENTICATED)]),
        bind("system:basic-user", vec![group(AUTHENTICATED)]),
        bind("system:public-info-viewer", vec![group(AUTHENTICATED), group(UNAUTHENTICATED)]),
        bind("system:kube-controller-manager", vec![user("system:kube-controller-manager")]),
        bind("system:kube-scheduler", vec![user("system:kube-scheduler")]),
        // Nodes have no rights by default: upstream's come from an authorizer of their own.
        bind("system:node", vec![]),
        bind("system:service-account-issuer-discovery", vec![group(SERVICE_ACCOUNTS)]),
    ]
}

pub fn roles() -> Vec<Role> {
    let role =
        |name: &str, rules: Vec<PolicyRule>| Role { metadata: metadata(name, Some(SYSTEM), &[]), rules: Some(rules) };
    let locking = || {
        let verbs = ["create", "get", "list", "update", "watch"];
        ["leases", "leasecandidates"].map(|resource| rule(&verbs, &["coordination.k8s.io"], &[resource])).to_vec()
    };
    let reader = PolicyRule {
        resource_names: Some(vec!["extension-apiserver-authentication".to_owned()]),
        ..rule(READ, &[""], &["configmaps"])
    };
    vec![
        role("extension-apiserver-authentication-reader", vec![reader]),
        role("system::leader-locking-kube-controller-manager", locking()),
        role("system::leader-locking-kube-scheduler", locking()),
    ]
}

pub fn role_bindings() -> Vec<RoleBinding> {
    let bind = |name: &str, role: &str, subjects: Vec<Subject>| RoleBinding {
        metadata: metadata(name, Some(SYSTEM), &[]),
        role_ref: role_ref("Role", role),
        subjects: Some(subjects),
    };
    let (manager, scheduler) = ("system:kube-controller-manager", "system:kube-scheduler");
    vec![
        bind(
            "system::extension-apiserver-authentication-reader",
            "extension-apiserver-authentication-reader",
            vec![user(manager), user(scheduler)],
        ),
        bind(
            "system::leader-locking-kube-controller-manager",
            "system::leader-locking-kube-controller-manager",
            vec![user(manager), account("kube-controller-manager"), account("leader-election-controller")],
        ),
        bind(
            "system::leader-locking-kube-scheduler",
            "system::leader-locking-kube-scheduler",
            vec![user(scheduler), account("kube-scheduler")],
        ),
    ]
}

/// System priorities begin above everything a user may choose.
pub fn priority_classes() -> Vec<PriorityClass> {
    let class = |name: &str, value: i32, description: &str| PriorityClass {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        value: Some(value),
        description: Some(description.to_owned()),
        preemption_policy: Some("PreemptLowerPriority".to_owned()),
        global_default: None,
    };
    vec![
        class(
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        class(
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
}

fn cluster_role(name: &str, labels: &[&str], rules: Vec<PolicyRule>) -> ClusterRole {
    ClusterRole { metadata: metadata(name, None, labels), rules: Some(rules), aggregation_rule: None }
}

fn aggregated(name: &str, labels: &[&str], label: &str) -> ClusterRole {
    let selector = LabelSelector {
        match_labels: Some([(label.to_owned(), "true".to_owned())].into()),
        ..LabelSelector::default()
    };
    let aggregation_rule = Some(AggregationRule { cluster_role_selectors: Some(vec![selector]) });
    ClusterRole { aggregation_rule, ..cluster_role(name, labels, Vec::new()) }
}

fn metadata(name: &str, namespace: Option<&str>, labels: &[&str]) -> ObjectMeta {
    let mut all = vec![("kubernetes.io/bootstrapping".to_owned(), "rbac-defaults".to_owned())];
    all.extend(labels.iter().map(|label| ((*label).to_owned(), "true".to_owned())));
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(all.into_iter().collect()),
        annotations: Some([(AUTO_UPDATE.to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    }
}

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> PolicyRule {
    PolicyRule {
        verbs: strings(verbs),
        api_groups: Some(strings(groups)),
        resources: Some(strings(resources)),
        ..PolicyRule::default()
    }
}

fn paths(verbs: &[&str], paths: &[&str]) -> PolicyRule {
    PolicyRule { verbs: strings(verbs), non_resource_urls: Some(strings(paths)), ..PolicyRule::default() }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: Some(RBAC.to_owned()), kind: kind.to_owned(), name: name.to_owned() }
}

fn group(name: &str) -> Subject {
    Subject { kind: "Group".to_owned(), name: name.to_owned(), api_group: Some(RBAC.to_owned()), namespace: None }
}

fn user(name: &str) -> Subject {
    Subject { kind: "User".to_owned(), ..group(name) }
}

fn account(name: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(SYSTEM.to_owned()),
        api_group: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::identity::User;
    use crate::auth::rbac::{Attributes, authorize};

    fn rules() -> Rules {
        let all = defaults();
        Rules::new(all.cluster_roles, all.cluster_role_bindings, all.roles, all.role_bindings)
    }

    fn with(role: &str) -> (User, Rules) {
        let mut rules = rules();
        rules.set_role_binding(RoleBinding {
            metadata: metadata("b", Some("ns"), &[]),
            role_ref: role_ref("ClusterRole", role),
            subjects: Some(vec![super::user("jane")]),
        });
        (User::new("jane", &[AUTHENTICATED]), rules)
    }

    fn may(role: &str, verb: &str, group: &str, resource: &str) -> bool {
        let (jane, rules) = with(role);
        let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
        authorize(&Attributes::resource(&jane, verb, group, resource).subresource(sub).namespace("ns"), &rules).allow
    }

    #[test]
    fn anonymous_sees_health_and_version_and_nothing_else() {
        let (nobody, rules) = (User::anonymous(), rules());
        let may = |path: &str| authorize(&Attributes::path(&nobody, "get", path), &rules).allow;
        for path in ["/healthz", "/livez", "/readyz", "/version", "/version/"] {
            assert!(may(path), "{path}");
        }
        for path in ["/", "/api", "/apis/batch/v1", "/metrics", "/healthz/ping", "/openapi/v3", "/openid/v1/jwks"] {
            assert!(!may(path), "{path}");
        }
        assert!(!authorize(&Attributes::resource(&nobody, "list", "", "namespaces"), &rules).allow);
        assert!(
            !authorize(
                &Attributes::resource(&nobody, "create", "authorization.k8s.io", "selfsubjectaccessreviews"),
                &rules
            )
            .allow
        );
    }

    #[test]
    fn everyone_who_is_known_may_discover_and_ask_about_themselves() {
        let (jane, rules) = (User::new("jane", &[AUTHENTICATED]), rules());
        for path in ["/api", "/apis/batch/v1", "/openapi/v3/apis/batch/v1"] {
            assert!(authorize(&Attributes::path(&jane, "get", path), &rules).allow, "{path}");
        }
        assert!(!authorize(&Attributes::path(&jane, "get", "/metrics"), &rules).allow);
        let review = |resource| Attributes::resource(&jane, "create", "authorization.k8s.io", resource);
        assert!(authorize(&review("selfsubjectaccessreviews"), &rules).allow);
        assert!(!authorize(&review("subjectaccessreviews"), &rules).allow);
        let bot = User::service_account("ns", "bot", "").authenticated();
        assert!(authorize(&Attributes::path(&bot, "get", "/openid/v1/jwks"), &rules).allow);
    }

    #[test]
    fn view_edit_and_admin_build_on_each_other() {
        for (verb, group, resource, view, edit, admin) in [
            ("list", "batch", "jobs", true, true, true),
            ("get", "batch", "jobs/status", true, true, true),
            ("get", "", "pods/log", true, true, true),
            ("get", "", "secrets", false, true, true),
            ("create", "batch", "jobs", false, true, true),
            ("update", "batch", "jobs/status", false, false, false),
            ("create", "", "pods/eviction", false, true, true),
            ("create", "", "serviceaccounts/token", false, true, true),
            ("update", "coordination.k8s.io", "leases", false, true, true),
            ("create", RBAC, "rolebindings", false, false, true),
            ("create", "authorization.k8s.io", "localsubjectaccessreviews", false, false, true),
            ("update", "", "resourcequotas", false, false, false),
            ("delete", "", "namespaces", false, false, false),
            ("list", RBAC, "clusterroles", false, false, false),
        ] {
            for (role, expected) in [("view", view), ("edit", edit), ("admin", admin), ("cluster-admin", true)] {
                assert_eq!(may(role, verb, group, resource), expected, "{role} {verb} {resource}");
            }
        }
    }

    #[test]
    fn an_administrator_of_a_namespace_may_bind_what_they_have_and_no_more() {
        let (jane, rules) = with("admin");
        let write =
            crate::auth::rbac::escalation::Write { user: &jane, rules: &rules, namespace: "ns", name_in_path: "" };
        let binding = |role: &str| RoleBinding {
            metadata: metadata("new", Some("ns"), &[]),
            role_ref: role_ref("ClusterRole", role),
            subjects: None,
        };
        for (role, allowed) in
            [("view", true), ("edit", true), ("admin", true), ("cluster-admin", false), ("system:node", false)]
        {
            assert_eq!(write.role_binding(&binding(role), None).is_ok(), allowed, "{role}");
        }
    }

    #[test]
    fn every_default_is_labelled_and_every_binding_has_its_role() {
        let all = defaults();
        let rules = rules();
        for role in &all.cluster_roles {
            let name = role.metadata.name.as_deref().unwrap();
            assert_eq!(
                role.metadata.labels.as_ref().unwrap()["kubernetes.io/bootstrapping"],
                "rbac-defaults",
                "{name}"
            );
            assert_eq!(role.metadata.annotations.as_ref().unwrap()[AUTO_UPDATE], "true", "{name}");
            assert!(!role.rules.as_ref().unwrap().is_empty(), "{name}");
        }
        for binding in &all.cluster_role_bindings {
            assert!(rules.referenced(&binding.role_ref, "").is_some(), "{:?}", binding.metadata.name);
        }
        for binding in &all.role_bindings {
            assert!(rules.referenced(&binding.role_ref, SYSTEM).is_some(), "{:?}", binding.metadata.name);
        }
        let critical: Vec<i32> = all.priority_classes.iter().filter_map(|class| class.value).collect();
        assert_eq!(critical, [2_000_001_000, 2_000_000_000]);
    }
}
