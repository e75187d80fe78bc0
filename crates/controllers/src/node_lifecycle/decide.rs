//! Conditions to taints, taints to evictions: upstream's rules as functions of objects and `now`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A node's Lease may be this old.
pub const GRACE: Duration = Duration::from_secs(40);
/// A node may be missing this long before its pods are.
pub const QUARANTINE: Duration = Duration::from_secs(40);

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Condition, its status, and the taint that says the same.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
/// What a silent node no longer vouches for.
const VOUCHED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

fn conditions(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[])
}

pub fn is_ready(node: &Node) -> bool {
    conditions(node).iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The conditions that change because the node is silent; empty when all is said.
pub fn unknown(node: &Node, now: Timestamp) -> Vec<NodeCondition> {
    let changed = |kind: &&str| {
        let old = conditions(node).iter().find(|c| c.type_ == **kind);
        if old.is_some_and(|c| c.status == "Unknown") {
            return None;
        }
        let (reason, message) = match old {
            Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
            None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
        };
        let heartbeat = old.map_or(node.metadata.creation_timestamp.clone(), |c| c.last_heartbeat_time.clone());
        Some(NodeCondition {
            type_: kind.to_string(),
            status: "Unknown".to_string(),
            reason: Some(reason.to_string()),
            message: Some(message.to_string()),
            last_heartbeat_time: heartbeat,
            last_transition_time: Some(Time(now)),
        })
    };
    VOUCHED.iter().filter_map(changed).collect()
}

/// The node's taints as its conditions want them, when they are not.
pub fn taints(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.as_ref();
    let old = spec.and_then(|s| s.taints.clone()).unwrap_or_default();
    let holds = |kind: &str, status: &str| conditions(node).iter().any(|c| c.type_ == kind && c.status == status);
    let mut wanted: Vec<(&str, &str)> = BY_CONDITION
        .iter()
        .filter(|(kind, status, _)| holds(kind, status))
        .map(|(_, _, key)| (*key, "NoSchedule"))
        .collect();
    if spec.and_then(|s| s.unschedulable).unwrap_or(false) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let readiness = conditions(node).iter().find(|c| c.type_ == "Ready").map(|c| c.status.as_str());
    match readiness {
        Some("False") => wanted.push((NOT_READY, "NoExecute")),
        Some("Unknown") => wanted.push((UNREACHABLE, "NoExecute")),
        _ => {}
    }
    let ours = |taint: &Taint| match taint.effect.as_str() {
        "NoSchedule" => taint.key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, key)| *key == taint.key),
        "NoExecute" => readiness.is_some() && matches!(taint.key.as_str(), NOT_READY | UNREACHABLE),
        _ => false,
    };
    let is = |taint: &Taint, (key, effect): &(&str, &str)| taint.key == *key && taint.effect == *effect;
    let mut new: Vec<Taint> = old.iter().filter(|t| !ours(t) || wanted.iter().any(|w| is(t, w))).cloned().collect();
    for want in &wanted {
        if !new.iter().any(|taint| is(taint, want)) {
            let (key, effect) = (want.0.to_string(), want.1.to_string());
            new.push(Taint { key, effect, value: None, time_added: Some(Time(now)) });
        }
    }
    (new != old).then_some(new)
}

/// How long the pod may stay on the node; `None` for as long as it likes.
pub fn stay(pod: &Pod, node: &Node, now: Timestamp) -> Option<Duration> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or(&[]);
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or(&[]);
    let mut left: Option<Duration> = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let Some(toleration) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else {
            return Some(Duration::ZERO);
        };
        let Some(secs) = toleration.toleration_seconds else { continue };
        // From the later of taint and pod on: who knew of the taint when it came is not sent off at once.
        let since = [taint.time_added.as_ref(), pod.metadata.creation_timestamp.as_ref()];
        let since = since.into_iter().flatten().map(|time| time.0).max().unwrap_or(now);
        let over = since.saturating_add(jiff::SignedDuration::from_secs(secs.max(0))).unwrap_or(Timestamp::MAX);
        let rest = Duration::try_from(over.duration_since(now)).unwrap_or(Duration::ZERO);
        left = Some(left.map_or(rest, |left| left.min(rest)));
    }
    left
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (key, effect, value) = (text(&toleration.key), text(&toleration.effect), text(&toleration.value));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => value == text(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn node(ready: &str, taints: Value) -> Node {
        let conditions = if ready.is_empty() { json!([]) } else { json!([{"type": "Ready", "status": ready}]) };
        let object =
            json!({"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": conditions}});
        serde_json::from_value(object).unwrap()
    }

    fn names(taints: Option<Vec<Taint>>) -> Option<Vec<String>> {
        let short = |t: &Taint| format!("{}:{}", t.key.trim_start_matches("node.kubernetes.io/"), t.effect);
        taints.map(|taints| taints.iter().map(short).collect())
    }

    #[test]
    fn taints_follow_conditions_and_others_stay() {
        let own = json!({"key": "gpu", "effect": "NoSchedule"});
        let new = json!({"key": NOT_READY, "effect": "NoSchedule"});
        let gone = json!({"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": NOW});
        let cases = [
            ("True", json!([own]), None),
            ("True", json!([new, own, gone]), Some(vec!["gpu:NoSchedule"])),
            ("False", json!([new]), Some(vec!["not-ready:NoSchedule", "not-ready:NoExecute"])),
            ("Unknown", json!([own]), Some(vec!["gpu:NoSchedule", "unreachable:NoSchedule", "unreachable:NoExecute"])),
            ("False", json!([gone]), Some(vec!["not-ready:NoSchedule", "not-ready:NoExecute"])),
        ];
        for (ready, before, after) in cases {
            let after = after.map(|taints: Vec<&str>| taints.iter().map(|t| t.to_string()).collect());
            assert_eq!(names(taints(&node(ready, before.clone()), now())), after, "{ready} {before}");
        }
        let mut cordoned = node("True", json!([]));
        cordoned.spec.as_mut().unwrap().unschedulable = Some(true);
        assert_eq!(names(taints(&cordoned, now())).unwrap(), ["unschedulable:NoSchedule"]);
    }

    #[test]
    fn a_silent_node_vouches_for_nothing_and_that_is_said_once() {
        let mut silent = node("True", json!([]));
        let changed = unknown(&silent, now());
        let said: Vec<_> = changed.iter().map(|c| (c.type_.as_str(), c.reason.as_deref().unwrap())).collect();
        assert_eq!(said[0], ("Ready", "NodeStatusUnknown"));
        assert_eq!(said[1], ("MemoryPressure", "NodeStatusNeverUpdated"));
        assert_eq!(said.len(), 4);
        silent.status.as_mut().unwrap().conditions = Some(changed);
        assert!(unknown(&silent, now()).is_empty());
    }

    #[test]
    fn a_pod_stays_as_long_as_it_tolerates_all_taints() {
        let added = "2026-01-01T00:59:00Z";
        let tainted = node(
            "Unknown",
            json!([{"key": "a", "effect": "NoExecute", "timeAdded": added}, {"key": "b", "effect": "NoSchedule"}]),
        );
        let cases = [
            (json!([]), Some(0)),
            (json!([{"operator": "Exists"}]), None),
            (json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]), Some(240)),
            (json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 30}]), Some(0)),
            (json!([{"key": "a", "operator": "Exists", "tolerationSeconds": -5}]), Some(0)),
            (json!([{"key": "a", "value": "x", "tolerationSeconds": 300}]), Some(0)),
            (json!([{"key": "a", "operator": "Exists", "tolerationSeconds": i64::MAX}]), Some(u64::MAX)),
        ];
        for (tolerations, secs) in cases {
            let object = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"containers": [], "tolerations": tolerations}});
            let pod: Pod = serde_json::from_value(object).unwrap();
            let left = stay(&pod, &tainted, now()).map(|left| left.as_secs());
            match secs {
                Some(u64::MAX) => assert!(left.unwrap() > 1_000_000_000, "{left:?}"),
                secs => assert_eq!(left, secs, "{tolerations}"),
            }
        }
    }
}
