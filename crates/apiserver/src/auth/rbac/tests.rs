use super::escalation::Write;
use super::*;
use crate::auth::refusal::Refusal;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde_json::json;

/// A rule in one line: `get,list batch jobs,jobs/status a,b` (names optional), or `get /path,/other/*`; `core` is "".
pub(crate) fn rule(text: &str) -> PolicyRule {
    let list =
        |s: &str| s.split(',').map(|s| if s == "core" { String::new() } else { s.to_owned() }).collect::<Vec<_>>();
    let parts: Vec<&str> = text.split(' ').collect();
    if parts[1].starts_with('/') || parts.len() == 2 {
        return PolicyRule { verbs: list(parts[0]), non_resource_urls: Some(list(parts[1])), ..PolicyRule::default() };
    }
    PolicyRule {
        verbs: list(parts[0]),
        api_groups: Some(list(parts[1])),
        resources: Some(list(parts[2])),
        resource_names: parts.get(3).map(|names| list(names)),
        non_resource_urls: None,
    }
}

fn cluster_role(name: &str, rules: &[&str]) -> ClusterRole {
    let rules = rules.iter().map(|r| rule(r)).collect();
    let mut role = ClusterRole { rules: Some(rules), ..ClusterRole::default() };
    role.metadata.name = Some(name.to_owned());
    role
}

fn labelled(mut role: ClusterRole, label: &str) -> ClusterRole {
    role.metadata.labels = Some([(label.to_owned(), "true".to_owned())].into());
    role
}

fn aggregating(name: &str, label: &str) -> ClusterRole {
    serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]},
        "rules": [{"verbs": ["stale"], "apiGroups": ["*"], "resources": ["*"]}],
    }))
    .unwrap()
}

fn role(namespace: &str, name: &str, rules: &[&str]) -> Role {
    let mut role = Role { rules: Some(rules.iter().map(|r| rule(r)).collect()), ..Role::default() };
    role.metadata.name = Some(name.to_owned());
    role.metadata.namespace = Some(namespace.to_owned());
    role
}

/// `User jane`, `Group dev`, `ServiceAccount bot`, `ServiceAccount ns/bot`.
fn subject(text: &str) -> serde_json::Value {
    let (kind, name) = text.split_once(' ').unwrap();
    match name.split_once('/') {
        Some((namespace, name)) => json!({"kind": kind, "name": name, "namespace": namespace}),
        None => json!({"kind": kind, "name": name}),
    }
}

fn cluster_binding(name: &str, role: &str, subjects: &[&str]) -> ClusterRoleBinding {
    serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": subjects.iter().map(|s| subject(s)).collect::<Vec<_>>(),
    }))
    .unwrap()
}

fn binding(namespace: &str, name: &str, kind: &str, role: &str, subjects: &[&str]) -> RoleBinding {
    serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": subjects.iter().map(|s| subject(s)).collect::<Vec<_>>(),
    }))
    .unwrap()
}

/// Whether jane, whose only rule is `rule` in the whole cluster, may do `wanted`: `verb group resource[/sub] [name]` or
/// `verb /path`.
fn jane_may(text: &str, wanted: &str) -> bool {
    let rules = Rules::new([cluster_role("r", &[text])], [cluster_binding("b", "r", &["User jane"])], [], []);
    let jane = User::new("jane", &[]);
    let parts: Vec<&str> = wanted.split(' ').collect();
    let attributes = if parts[1].starts_with('/') {
        Attributes::path(&jane, parts[0], parts[1])
    } else {
        let (resource, sub) = parts[2].split_once('/').unwrap_or((parts[2], ""));
        let group = if parts[1] == "core" { "" } else { parts[1] };
        Attributes::resource(&jane, parts[0], group, resource)
            .subresource(sub)
            .name(parts.get(3).unwrap_or(&""))
            .namespace("ns")
    };
    authorize(&attributes, &rules).allow
}

#[test]
fn a_rule_allows_what_it_names_and_nothing_else() {
    for (rule, wanted, allowed) in [
        ("get,list core pods", "get core pods", true),
        ("get,list core pods", "list core pods a", true),
        ("get,list core pods", "watch core pods", false),
        ("get core pods", "get batch pods", false),
        ("get core,batch pods,jobs", "get batch jobs", true),
        ("get core,batch pods,jobs", "get batch pods", true),
        ("* core pods", "anything core pods", true),
        ("get * pods", "get batch pods", true),
        // resources and subresources
        ("get core pods", "get core pods/log", false),
        ("get core pods/log", "get core pods/log", true),
        ("get core pods/log", "get core pods", false),
        ("get core *", "get core pods/log", true),
        ("get core */log", "get core pods/log", true),
        ("get core */log", "get core pods", false),
        ("get core */log", "get core pods/status", false),
        ("get core pods/*", "get core pods/log", false),
        ("get core pods/*", "get core pods", false),
        ("get core po*", "get core pods", false),
        ("get core */a/b", "get core x/a/b", true),
        ("get core x/a/b", "get core x/a/b", true),
        // names
        ("get core pods a,b", "get core pods b", true),
        ("get core pods a,b", "get core pods c", false),
        ("list core pods a", "list core pods", false),
        ("delete core pods a", "delete core pods a", true),
        // paths
        ("get /healthz", "get /healthz", true),
        ("get /healthz", "get /healthz/ping", false),
        ("get /healthz/*", "get /healthz/ping/x", true),
        ("get /healthz/*", "get /healthz", false),
        ("get /health*", "get /healthz", true),
        ("get *", "get /anything", true),
        ("get /*", "get /", true),
        ("get /a*b", "get /axb", false),
        ("get /healthz", "post /healthz", false),
        // a path rule is no resource rule, and the other way round
        ("* *", "get core pods", false),
        ("* * *", "get /healthz", false),
    ] {
        assert_eq!(jane_may(rule, wanted), allowed, "{rule:?} for {wanted:?}");
    }
}

#[test]
fn a_binding_counts_for_its_subjects_in_its_namespace() {
    let rules = Rules::new(
        [cluster_role("view", &["get core pods"])],
        [cluster_binding("everywhere", "view", &["Group ops", "ServiceAccount sys/bot", "ServiceAccount homeless"])],
        [role("ns", "own", &["get core secrets"])],
        [
            binding("ns", "viewers", "ClusterRole", "view", &["User jane", "ServiceAccount bot"]),
            binding("ns", "owners", "Role", "own", &["User jane", "Robot jane"]),
            binding("other", "owners", "Role", "own", &["User jane"]),
        ],
    );
    let may = |user: &User, resource: &str, namespace: &str| {
        authorize(&Attributes::resource(user, "get", "", resource).namespace(namespace), &rules).allow
    };
    let (jane, joe) = (User::new("jane", &[]), User::new("joe", &["ops"]));
    assert!(may(&jane, "pods", "ns") && may(&jane, "secrets", "ns"));
    assert!(!may(&jane, "pods", "other") && !may(&jane, "pods", ""));
    assert!(!may(&jane, "secrets", "other"), "a Role of another namespace");
    assert!(may(&joe, "pods", "") && may(&joe, "pods", "anywhere") && !may(&joe, "secrets", "ns"));
    assert!(!may(&User::new("ops", &["jane"]), "pods", "ns"), "a user is not a group");
    assert!(may(&User::service_account("ns", "bot", ""), "pods", "ns"), "local service account without namespace");
    assert!(!may(&User::service_account("other", "bot", ""), "pods", "ns"));
    assert!(may(&User::service_account("sys", "bot", ""), "pods", "x"));
    assert!(!may(&User::service_account("", "homeless", ""), "pods", "x"));
}

#[test]
fn the_reason_names_the_binding_or_what_is_broken() {
    let rules = Rules::new(
        [cluster_role("view", &["get core pods"])],
        [cluster_binding("lost", "gone", &["User jane", "User joe"])],
        [],
        [
            binding("ns", "viewers", "ClusterRole", "view", &["Group x", "ServiceAccount bot", "User jane"]),
            binding("ns", "lost", "Role", "gone", &["User joe"]),
        ],
    );
    let ask = |user: &User| authorize(&Attributes::resource(user, "get", "", "pods").namespace("ns"), &rules);
    assert_eq!(
        ask(&User::new("jane", &[])).reason,
        "RBAC: allowed by RoleBinding \"viewers/ns\" of ClusterRole \"view\" to User \"jane\""
    );
    assert_eq!(
        ask(&User::service_account("ns", "bot", "")).reason,
        "RBAC: allowed by RoleBinding \"viewers/ns\" of ClusterRole \"view\" to ServiceAccount \"bot/ns\""
    );
    assert_eq!(
        ask(&User::new("joe", &[])),
        Decision {
            allow: false,
            reason: "RBAC: [clusterrole.rbac.authorization.k8s.io \"gone\" not found, \
                     role.rbac.authorization.k8s.io \"gone\" not found]"
                .to_owned()
        }
    );
    assert_eq!(ask(&User::new("eve", &[])), Decision::default());
}

#[test]
fn masters_need_no_rule() {
    let root = User::new("root", &["system:masters"]);
    assert!(authorize(&Attributes::resource(&root, "delete", "", "nodes"), &Rules::default()).allow);
    assert!(authorize(&Attributes::path(&root, "get", "/metrics"), &Rules::default()).allow);
}

#[test]
fn a_refusal_reads_as_upstreams() {
    let user = User::new("x<y>", &[]);
    let pods = Attributes::resource(&user, "list", "", "pods");
    assert_eq!(
        pods.namespace("default").forbidden("").message(),
        "pods is forbidden: User \"x&lt;y&gt;\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    assert_eq!(
        Attributes::resource(&user, "update", "batch", "jobs")
            .subresource("status")
            .name("a")
            .forbidden("RBAC: why")
            .message(),
        "jobs.batch \"a\" is forbidden: User \"x&lt;y&gt;\" cannot update resource \"jobs/status\" in API group \"batch\" \
         at the cluster scope: RBAC: why"
    );
    assert_eq!(
        Attributes::path(&user, "get", "/y").forbidden("").message(),
        "forbidden: User \"x&lt;y&gt;\" cannot get path \"/y\""
    );
}

#[test]
fn aggregated_roles_hold_the_rules_of_the_roles_they_select() {
    let mut rules = Rules::new(
        [
            aggregating("admin", "to-admin"),
            labelled(aggregating("edit", "to-edit"), "to-admin"),
            labelled(cluster_role("b-part", &["get core pods"]), "to-edit"),
            labelled(cluster_role("a-part", &["list core pods", "get core pods"]), "to-edit"),
            labelled(cluster_role("more", &["bind core roles"]), "to-admin"),
        ],
        [cluster_binding("b", "admin", &["User jane"])],
        [],
        [],
    );
    let aggregated = |rules: &Rules, name: &str| {
        rules.aggregated().find(|(n, _)| *n == name).map(|(_, rules)| rules.to_vec()).unwrap()
    };
    assert_eq!(aggregated(&rules, "edit"), [rule("list core pods"), rule("get core pods")]);
    assert_eq!(aggregated(&rules, "admin"), [rule("list core pods"), rule("get core pods"), rule("bind core roles")]);
    let jane = User::new("jane", &[]);
    let may_list = |rules: &Rules| authorize(&Attributes::resource(&jane, "list", "", "pods"), rules).allow;
    assert!(may_list(&rules));
    rules.remove_cluster_role("a-part");
    assert!(!may_list(&rules));
    rules.set_cluster_role(labelled(cluster_role("new", &["list core pods"]), "to-edit"));
    assert!(may_list(&rules));
}

#[test]
fn roles_that_aggregate_each_other_end() {
    let rules = Rules::new(
        [
            labelled(aggregating("a", "to-a"), "to-b"),
            labelled(aggregating("b", "to-b"), "to-a"),
            labelled(cluster_role("x", &["get core pods"]), "to-a"),
        ],
        [],
        [],
        [],
    );
    assert!(rules.aggregated().all(|(_, rules)| rules == [rule("get core pods")]));
}

#[test]
fn an_aggregation_that_selects_nothing_grants_nothing() {
    let rules = Rules::new([aggregating("a", "none")], [cluster_binding("b", "a", &["User jane"])], [], []);
    let jane = User::new("jane", &[]);
    assert!(!authorize(&Attributes::resource(&jane, "stale", "", "pods"), &rules).allow);
}

#[test]
fn a_changed_or_removed_binding_is_forgotten() {
    let mut rules = Rules::new([cluster_role("view", &["get core pods"])], [], [], []);
    let may = |rules: &Rules, name: &str, namespace: &str| {
        let user = User::new(name, &[]);
        authorize(&Attributes::resource(&user, "get", "", "pods").namespace(namespace), rules).allow
    };
    rules.set_role_binding(binding("ns", "b", "ClusterRole", "view", &["User jane"]));
    assert!(may(&rules, "jane", "ns"));
    rules.set_role_binding(binding("ns", "b", "ClusterRole", "view", &["User joe"]));
    assert!(!may(&rules, "jane", "ns") && may(&rules, "joe", "ns"));
    rules.remove_role_binding("ns", "b");
    assert!(!may(&rules, "joe", "ns"));
    rules.set_cluster_role_binding(cluster_binding("b", "view", &["User jane"]));
    assert!(may(&rules, "jane", "x"));
    rules.remove_cluster_role_binding("b");
    assert!(!may(&rules, "jane", "x"));
    rules.set_role(role("ns", "r", &["get core pods"]));
    rules.set_role_binding(binding("ns", "b", "Role", "r", &["User jane"]));
    assert!(may(&rules, "jane", "ns"));
    rules.remove_role("ns", "r");
    assert!(!may(&rules, "jane", "ns"));
}

#[test]
fn a_users_bindings_are_found_without_looking_at_the_others() {
    let bindings = (0..1000).map(|i| binding("ns", &format!("b{i}"), "ClusterRole", "view", &[&format!("User u{i}")]));
    let rules = Rules::new([cluster_role("view", &["get core pods"])], [], [], bindings);
    assert_eq!(rules.grants(&User::new("u7", &["g"]), "ns").len(), 1);
}

#[test]
fn rules_for_lists_resources_and_paths_apart_and_says_what_is_broken() {
    let rules = Rules::new(
        [cluster_role("r", &["get core pods a", "get /healthz"])],
        [cluster_binding("b", "r", &["User jane"]), cluster_binding("lost", "gone", &["User jane"])],
        [],
        [binding("ns", "b", "ClusterRole", "r", &["User jane"])],
    );
    let found = rules_for(&User::new("jane", &[]), "ns", &rules);
    assert_eq!(found.resources.len(), 2);
    assert_eq!(found.resources[0].resource_names, Some(vec!["a".to_owned()]));
    assert_eq!(found.paths[0].non_resource_urls, Some(vec!["/healthz".to_owned()]));
    assert_eq!(found.error.unwrap(), "clusterrole.rbac.authorization.k8s.io \"gone\" not found");
}

#[test]
fn one_owners_rule_must_cover_each_piece() {
    let rules = |list: &[&str]| list.iter().map(|r| rule(r)).collect::<Vec<_>>();
    for (owner, wanted, missing) in [
        (&["get,list core pods"][..], &["get core pods"][..], &[][..]),
        (&["get core pods", "list core pods"], &["get,list core pods"], &[]),
        (
            &["get core pods"],
            &["get,list core pods,secrets"],
            &["list core pods", "get core secrets", "list core secrets"],
        ),
        (&["* * *"], &["get core pods/log", "escalate rbac roles"], &[]),
        (&["get core pods"], &["* core pods"], &["* core pods"]),
        (&["get core pods"], &["get core *"], &["get core *"]),
        (&["get core */log"], &["get core pods/log"], &[]),
        (&["get core */log"], &["get core */log"], &[]),
        (&["get core pods"], &["get core pods/log"], &["get core pods/log"]),
        (&["get core pods a"], &["get core pods a"], &[]),
        (&["get core pods a"], &["get core pods a,b"], &["get core pods b"]),
        (&["get core pods a"], &["get core pods"], &["get core pods"]),
        (&["get core pods"], &["get core pods a"], &[]),
        (&["get /api/*"], &["get /api/v1,/apis"], &["get /apis"]),
        (&["get *"], &["get /x"], &[]),
        (&["* * *"], &["get /x"], &["get /x"]),
        (&[], &[], &[]),
    ] {
        let expected = if missing.is_empty() { Ok(()) } else { Err(rules(missing)) };
        assert_eq!(covers(&rules(owner), &rules(wanted)), expected, "{owner:?} for {wanted:?}");
    }
}

fn write<'a>(user: &'a User, rules: &'a Rules, namespace: &'a str) -> Write<'a> {
    Write { user, rules, namespace, name_in_path: "" }
}

#[test]
fn nobody_writes_a_role_with_more_than_they_have() {
    let rules = Rules::new(
        [cluster_role("r", &["get core pods"]), cluster_role("esc", &["escalate rbac.authorization.k8s.io roles"])],
        [cluster_binding("b", "r", &["User jane"])],
        [],
        [binding("ns", "esc", "ClusterRole", "esc", &["User joe"])],
    );
    let jane = User::new("jane", &["dev", "system:authenticated"]);
    assert_eq!(write(&jane, &rules, "ns").role(&role("ns", "x", &["get core pods"]), None), Ok(()));
    let refused = write(&jane, &rules, "ns").role(&role("ns", "x", &["get,list,watch core pods", "get /x"]), None);
    assert_eq!(
        refused.unwrap_err().message(),
        "roles.rbac.authorization.k8s.io \"x\" is forbidden: user \"jane\" (groups=[\"dev\" \"system:authenticated\"]) \
         is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
         {NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}"
    );
    let everything = role("ns", "x", &["* * *"]);
    assert_eq!(write(&User::new("joe", &[]), &rules, "ns").role(&everything, None), Ok(()));
    assert!(write(&User::new("joe", &[]), &rules, "other").role(&everything, None).is_err());
    assert_eq!(write(&User::new("root", &["system:masters"]), &rules, "ns").role(&everything, None), Ok(()));
}

#[test]
fn changing_only_finalizers_of_a_role_is_not_an_escalation() {
    let rules = Rules::default();
    let gc = User::new("gc", &[]);
    let old = role("ns", "x", &["* * *"]);
    let mut new = old.clone();
    new.metadata.finalizers = Some(vec!["a/b".to_owned()]);
    assert_eq!(write(&gc, &rules, "ns").role(&new, Some(&old)), Ok(()));
    new.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    assert!(write(&gc, &rules, "ns").role(&new, Some(&old)).is_err());
}

#[test]
fn an_aggregation_rule_needs_every_right() {
    let rules = Rules::new(
        [cluster_role("most", &["* * *"]), cluster_role("all", &["* * *", "* *"])],
        [cluster_binding("most", "most", &["User most"]), cluster_binding("all", "all", &["User all"])],
        [],
        [],
    );
    let mut new = aggregating("x", "l");
    new.rules = None;
    // `escalate` on everything is part of `* * *`: such a user passes before the rules are compared.
    assert_eq!(write(&User::new("most", &[]), &rules, "").cluster_role(&new, None), Ok(()));
    let few = Rules::new([cluster_role("r", &["get core pods"])], [cluster_binding("b", "r", &["User jane"])], [], []);
    assert_eq!(
        write(&User::new("jane", &[]), &few, "").cluster_role(&new, None).unwrap_err().message(),
        "clusterroles.rbac.authorization.k8s.io \"x\" is forbidden: must have cluster-admin privileges to use the \
         aggregationRule"
    );
}

#[test]
fn binding_needs_the_verb_bind_or_the_roles_rules() {
    let rules = Rules::new(
        [
            cluster_role("view", &["get core pods"]),
            cluster_role("binder", &["bind rbac.authorization.k8s.io clusterroles view"]),
        ],
        [cluster_binding("has", "view", &["User jane"])],
        [],
        [binding("ns", "binder", "ClusterRole", "binder", &["User joe"])],
    );
    let (jane, joe, eve) = (User::new("jane", &[]), User::new("joe", &[]), User::new("eve", &[]));
    let view = cluster_binding("new", "view", &["User x"]);
    assert_eq!(write(&jane, &rules, "").cluster_role_binding(&view, None), Ok(()));
    assert!(matches!(write(&eve, &rules, "").cluster_role_binding(&view, None), Err(Refusal::Forbidden(_))));
    assert!(write(&joe, &rules, "").cluster_role_binding(&view, None).is_err(), "may bind in ns only");
    let local = binding("ns", "new", "ClusterRole", "view", &["User x"]);
    assert_eq!(write(&joe, &rules, "ns").role_binding(&local, None), Ok(()));
    let lost = binding("ns", "new", "ClusterRole", "gone", &["User x"]);
    let refused = write(&eve, &rules, "ns").role_binding(&lost, None).unwrap_err();
    assert_eq!(refused.message(), "clusterroles.rbac.authorization.k8s.io \"gone\" not found");
    assert_eq!(refused.code(), 404);
}
