//! Whom a webhook's rules concern.

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use serde_json::{Value, json};

use super::config::Hook;
use super::matching::Subject;
use crate::admission::Operation;
use crate::selector::LabelSelector;

fn rule(overrides: Value) -> RuleWithOperations {
    let mut rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    for (key, value) in overrides.as_object().unwrap() {
        rule[key] = value.clone();
    }
    serde_json::from_value(rule).unwrap()
}

fn hook(rules: Vec<RuleWithOperations>, equivalent: bool) -> Hook {
    Hook {
        name: "h".to_owned(),
        rules,
        equivalent,
        namespaces: Ok(LabelSelector::default()),
        objects: Ok(LabelSelector::default()),
        conditions: vec![],
        ignores_failure: false,
        timeout: std::time::Duration::from_secs(1),
        side_effects: None,
        reinvoked: false,
        review_versions: vec![],
        client: Err(String::new()),
    }
}

const PODS: Subject<'_> = Subject {
    group: "",
    version: "v1",
    resource: "pods",
    subresource: "",
    operation: Operation::Create,
    is_namespaced: true,
};

#[test]
fn rules_match_what_they_list() {
    let status = Subject { subresource: "status", ..PODS };
    let scale = Subject { group: "x.io", resource: "things", subresource: "scale", ..PODS };
    let namespaces = Subject { resource: "namespaces", is_namespaced: false, ..PODS };
    for (subject, overrides, expected) in [
        (PODS, json!({}), true),
        (PODS, json!({"operations": ["UPDATE", "DELETE"]}), false),
        (PODS, json!({"operations": ["*"]}), true),
        (PODS, json!({"apiGroups": ["batch"]}), false),
        (PODS, json!({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}), true),
        (PODS, json!({"apiVersions": ["v2"]}), false),
        (PODS, json!({"resources": ["jobs"]}), false),
        (PODS, json!({"resources": ["pods/status"]}), false),
        (PODS, json!({"resources": ["pods/*"]}), true),
        (PODS, json!({"resources": ["*/*"]}), true),
        (status, json!({}), false),
        (status, json!({"resources": ["*"]}), false),
        (status, json!({"resources": ["pods/status"]}), true),
        (status, json!({"resources": ["pods/*"]}), true),
        (status, json!({"resources": ["*/status"]}), true),
        (scale, json!({"apiGroups": ["*"], "resources": ["*/scale"]}), true),
        (scale, json!({"apiGroups": ["*"], "resources": ["*/status"]}), false),
        (PODS, json!({"scope": "Namespaced"}), true),
        (PODS, json!({"scope": "Cluster"}), false),
        (PODS, json!({"scope": "*"}), true),
        (namespaces, json!({"resources": ["namespaces"], "scope": "Cluster"}), true),
        (namespaces, json!({"resources": ["namespaces"], "scope": "Namespaced"}), false),
    ] {
        assert_eq!(subject.matches(&rule(overrides.clone())), expected, "{overrides} {}", subject.subresource);
    }
}

#[test]
fn another_version_counts_only_where_equivalence_is_asked_for() {
    let v2 = || vec![rule(json!({"apiVersions": ["v2"]}))];
    let others = || vec!["v1beta1".to_owned(), "v2".to_owned()];
    assert_eq!(hook(v2(), true).version_for(PODS, others).as_deref(), Some("v2"));
    assert_eq!(hook(v2(), false).version_for(PODS, others), None);
    assert_eq!(hook(v2(), true).version_for(PODS, Vec::new), None);
    let both = vec![rule(json!({"apiVersions": ["v2"]})), rule(json!({}))];
    assert_eq!(hook(both, true).version_for(PODS, others).as_deref(), Some("v1"));
}
