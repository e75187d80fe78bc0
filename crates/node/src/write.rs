//! How a pod's status is written: what changed, as a strategic merge patch, so that conditions of others are left alone. Pure.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Map, Value, json};

const OURS: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// The patch that turns the pod's status into `new`; `None` if it is that already.
pub fn patch(pod: &Pod, new: &PodStatus) -> Option<Value> {
    let old = fields(pod.status.as_ref().unwrap_or(&PodStatus::default()));
    let mut new = fields(new);
    let mut changes = Map::new();
    for name in old.keys() {
        if !new.contains_key(name) {
            changes.insert(name.clone(), Value::Null);
        }
    }
    new.retain(|name, value| old.get(name) != Some(value));
    if let Some(conditions) = new.get_mut("conditions") {
        keep_ours(conditions);
    }
    changes.extend(new);
    if changes.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"uid": pod.metadata.uid}, "status": changes}))
}

fn fields(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Merging keeps what is not named: what a condition no longer has must be said to be nothing.
fn keep_ours(conditions: &mut Value) {
    let Some(list) = conditions.as_array_mut() else { return };
    list.retain(|c| OURS.iter().any(|ours| c["type"] == *ours));
    for condition in list.iter_mut().filter_map(Value::as_object_mut) {
        for name in ["reason", "message"] {
            condition.entry(name).or_insert(Value::Null);
        }
    }
}

/// Our own last status, with what others have written since.
pub fn newest(ours: &PodStatus, theirs: PodStatus) -> PodStatus {
    let mut status = ours.clone();
    let is_terminal = |s: &PodStatus| crate::model::is_terminal(s.phase.as_deref());
    if is_terminal(&theirs) && !is_terminal(ours) {
        (status.phase, status.reason, status.message) = (theirs.phase, theirs.reason, theirs.message);
    }
    let mine = status.conditions.take().unwrap_or_default();
    let others = theirs.conditions.into_iter().flatten().filter(|c| !OURS.contains(&c.type_.as_str()));
    let mine = mine.into_iter().filter(|c| OURS.contains(&c.type_.as_str()));
    status.conditions = Some(others.chain(mine).collect());
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "status": status})).unwrap()
    }

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_what_changed_is_written_and_what_went_is_said_to_be_gone() {
        let old = pod(json!({"phase": "Pending", "reason": "Gone", "hostIP": "1.1.1.1", "conditions": [
            {"type": "DisruptionTarget", "status": "True"}, {"type": "Ready", "status": "False", "reason": "Because"}]}));
        let new = status(json!({"phase": "Running", "hostIP": "1.1.1.1", "conditions": [
            {"type": "DisruptionTarget", "status": "True"}, {"type": "Ready", "status": "True"}]}));
        let expected = json!({"metadata": {"uid": "u"}, "status": {"phase": "Running", "reason": null, "conditions": [
            {"type": "Ready", "status": "True", "reason": null, "message": null}]}});
        assert_eq!(patch(&old, &new), Some(expected));
        assert_eq!(patch(&old, old.status.as_ref().unwrap()), None);
    }

    #[test]
    fn conditions_of_others_and_their_verdict_win_over_our_memory() {
        let ours = status(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
        let theirs = status(json!({"phase": "Failed", "reason": "Evicted", "conditions": [
            {"type": "DisruptionTarget", "status": "True"}, {"type": "Ready", "status": "False"}]}));
        let both = newest(&ours, theirs);
        assert_eq!((both.phase.as_deref(), both.reason.as_deref()), (Some("Failed"), Some("Evicted")));
        let conditions: Vec<_> = both.conditions.unwrap().into_iter().map(|c| (c.type_, c.status)).collect();
        assert_eq!(conditions, [("DisruptionTarget".into(), "True".into()), ("Ready".into(), "True".into())]);
    }
}
