//! Which pods are a Job's: those that it controls and that match its selector. It takes in orphans that match, and lets go
//! of what no longer does.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, OwnerReference};
use serde_json::{Value, json};

use super::names;

#[derive(Debug, Default)]
pub struct Claim {
    pub own: Vec<Arc<Pod>>,
    pub adopt: Vec<Arc<Pod>>,
    pub release: Vec<Arc<Pod>>,
}

/// `pods` are those that the Job controls and those of its namespace that nobody does.
pub fn claim(job: &Job, pods: Vec<Arc<Pod>>) -> Claim {
    let leaving = job.metadata.deletion_timestamp.is_some();
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let mut claim = Claim::default();
    for pod in pods {
        let matches = selector.is_some_and(|selector| selects(selector, pod.metadata.labels.as_ref()));
        match controller_of(&pod) {
            Some(owner) if Some(&owner.uid) != job.metadata.uid.as_ref() => {}
            Some(_) if matches => claim.own.push(pod),
            Some(_) if !leaving => claim.release.push(pod),
            None if matches && !leaving && pod.metadata.deletion_timestamp.is_none() => claim.adopt.push(pod),
            _ => {}
        }
    }
    claim
}

pub fn controller_of(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

pub fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| label(key) == Some(value));
    let meets = |rule: &LabelSelectorRequirement| {
        let listed = |value: &String| rule.values.iter().flatten().any(|v| v == value);
        match (rule.operator.as_str(), label(&rule.key)) {
            ("In", value) => value.is_some_and(listed),
            ("NotIn", value) => !value.is_some_and(listed),
            ("Exists", value) => value.is_some(),
            ("DoesNotExist", value) => value.is_none(),
            _ => false,
        }
    };
    equal && selector.match_expressions.iter().flatten().all(meets)
}

/// One label that every pod of the selector has, to find them by; `None` if it asks for none in particular.
pub fn key_label(selector: &LabelSelector) -> Option<(&String, &String)> {
    selector.match_labels.as_ref()?.iter().next()
}

/// The selector as it is written in a request.
pub fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let rules = selector.match_expressions.iter().flatten().filter_map(|rule| {
        let values = rule.values.as_deref().unwrap_or_default().join(",");
        match rule.operator.as_str() {
            "In" => Some(format!("{} in ({values})", rule.key)),
            "NotIn" => Some(format!("{} notin ({values})", rule.key)),
            "Exists" => Some(rule.key.clone()),
            "DoesNotExist" => Some(format!("!{}", rule.key)),
            _ => None,
        }
    });
    equal.chain(rules).collect::<Vec<_>>().join(",")
}

pub fn owner_reference(job: &Job) -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_string(),
        kind: "Job".to_string(),
        name: job.metadata.name.clone().unwrap_or_default(),
        uid: job.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod as it is once it has been adopted.
pub fn adopted(job: &Job, pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    pod.metadata.owner_references.get_or_insert_default().push(owner_reference(job));
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == names::TRACKING_FINALIZER) {
        finalizers.push(names::TRACKING_FINALIZER.to_string());
    }
    pod
}

/// The uid makes sure that it is still the same pod.
pub fn adopt_patch(job: &Job, pod: &Pod) -> Value {
    json!({"metadata": {"uid": pod.metadata.uid, "ownerReferences": [owner_reference(job)], "finalizers": [names::TRACKING_FINALIZER]}})
}

pub fn release_patch(job: &Job, pod: &Pod) -> Value {
    json!({"metadata": {
        "uid": pod.metadata.uid,
        "ownerReferences": [{"$patch": "delete", "uid": job.metadata.uid}],
        "$deleteFromPrimitiveList/finalizers": [names::TRACKING_FINALIZER],
    }})
}

pub fn strip_patch() -> Value {
    json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [names::TRACKING_FINALIZER]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(extra: Value) -> Job {
        let mut job = json!({"metadata": {"name": "j", "uid": "U"}, "spec": {"template": {},
            "selector": {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["x"]}]}}});
        job["metadata"].as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap());
        serde_json::from_value(job).unwrap()
    }

    fn pod(name: &str, owner: Option<&str>, labels: Value, extra: Value) -> Arc<Pod> {
        let owners = owner
            .map(|uid| json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": true}]));
        let mut pod = json!({"metadata": {"name": name, "labels": labels, "ownerReferences": owners}});
        pod["metadata"].as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap());
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn sorted(job: &Job) -> [Vec<String>; 3] {
        let pods = vec![
            pod("own", Some("U"), json!({"a": "1"}), json!({})),
            pod("strayed", Some("U"), json!({"a": "1", "b": "x"}), json!({})),
            pod("other", Some("V"), json!({"a": "1"}), json!({})),
            pod("orphan", None, json!({"a": "1", "c": "2"}), json!({})),
            pod("stranger", None, json!({"a": "2"}), json!({})),
            pod("dying", None, json!({"a": "1"}), json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        ];
        let claim = claim(job, pods);
        [claim.own, claim.adopt, claim.release]
            .map(|pods| pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect())
    }

    #[test]
    fn a_job_adopts_matching_orphans_and_releases_what_no_longer_matches() {
        assert_eq!(sorted(&job(json!({}))), [vec!["own"], vec!["orphan"], vec!["strayed"]]);
    }

    #[test]
    fn a_job_that_is_being_deleted_neither_adopts_nor_releases() {
        let leaving = job(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(sorted(&leaving), [vec!["own"], vec![], vec![]]);
    }
}
