//! podFailurePolicy, successPolicy and podReplacementPolicy.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::world::*;

fn rules(rules: Value) -> Value {
    json!({"podFailurePolicy": {"rules": rules}, "backoffLimit": 6})
}

#[tokio::test(start_paused = true)]
async fn an_exit_code_can_fail_the_whole_job() {
    let world = World::new().await;
    let mut spec = rules(json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]));
    (spec["completions"], spec["parallelism"]) = (json!(3), json!(3));
    world.create("fatal", spec, json!({"test/runs": "2", "test/fails": "1", "test/exit-code": "42"})).await;
    let job = world.until_condition("fatal", "Failed").await;
    let (why, message) = reason(&job, "Failed");
    let pods = world.pods_of("fatal").await;
    let about = pods.iter().find(|pod| message.contains(&pod.name_any())).expect("the pod is named").name_any();
    assert_eq!(why, "PodFailurePolicy");
    assert_eq!(
        message,
        format!("Container main for pod default/{about} failed with exit code 42 matching FailJob rule at index 0")
    );
}

#[tokio::test(start_paused = true)]
async fn failures_that_a_rule_ignores_are_not_counted() {
    let world = World::new().await;
    let mut spec = rules(json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]));
    spec["backoffLimit"] = json!(0);
    let notes = json!({"test/runs": "1", "test/fails": "2", "test/condition": "DisruptionTarget"});
    world.create("disturbed", spec, notes).await;
    let job = world.until_condition("disturbed", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 1, 0]);
    assert_eq!(world.pods_of("disturbed").await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_exit_code_can_fail_its_index_at_once() {
    let world = World::new().await;
    let mut spec = rules(json!([{"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1]}}]));
    spec["backoffLimit"] = json!(null);
    for (name, value) in [
        ("completions", json!(2)),
        ("parallelism", json!(2)),
        ("completionMode", json!("Indexed")),
        ("backoffLimitPerIndex", json!(5)),
    ] {
        spec[name] = value;
    }
    world.create("index", spec, json!({"test/runs": "1", "test/fails": "1@0", "test/exit-code": "9"})).await;
    let job = world.until_condition("index", "Failed").await;
    let status = job.status.clone().unwrap_or_default();
    assert_eq!((status.completed_indexes.as_deref(), status.failed_indexes.as_deref()), (Some("1"), Some("0")));
    assert_eq!(world.pods_of("index").await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_success_policy_ends_a_job_before_all_indexes_are_done() {
    let world = World::new().await;
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 5,
        "successPolicy": {"rules": [{"succeededIndexes": "2,3", "succeededCount": 2}, {"succeededCount": 2}]}});
    world.create("leader", spec, json!({"test/runs": "1", "test/fails": "9@2,3"})).await;
    let job = world.until_condition("leader", "Complete").await;
    assert_eq!(reason(&job, "SuccessCriteriaMet"), ("SuccessPolicy".into(), "Matched rules at index 1".into()));
    assert_eq!(reason(&job, "Complete"), ("SuccessPolicy".into(), "Matched rules at index 1".into()));
    assert_eq!(job.status.clone().unwrap_or_default().completed_indexes.as_deref(), Some("0,1"));
    assert!(world.pods_of("leader").await.iter().all(|pod| !is_active(pod) && !is_tracked(pod)));
}

#[tokio::test(start_paused = true)]
async fn what_runs_on_when_a_success_policy_is_met_is_stopped_and_not_counted_as_failed() {
    let world = World::new().await;
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    world.create("first", spec, json!({"test/stops-after": "15"})).await;
    world.until("first", "runs", |s| s.ready == Some(2)).await;
    let pods = world.pods_of("first").await;
    let leader = pods.iter().find(|pod| pod.name_any().starts_with("first-0-")).expect("index 0").name_any();
    let done = json!({"status": {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}});
    world.pods().patch_status(&leader, &Default::default(), &kube::api::Patch::Merge(done)).await.expect("succeed");
    let waiting = world.until_condition("first", "SuccessCriteriaMet").await;
    assert_eq!(
        (counts(&waiting), conditions(&waiting).len()),
        ([0, 0, 1, 1, 0], 1),
        "not complete while one terminates"
    );
    let job = world.until_condition("first", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_replaced_at_once_or_only_when_it_is_gone() {
    for (policy, at_once) in [("TerminatingOrFailed", true), ("Failed", false)] {
        let world = World::new().await;
        world.create("job", json!({"podReplacementPolicy": policy}), json!({"test/stops-after": "25"})).await;
        world.until("job", "runs", |s| s.ready == Some(1)).await;
        let old = world.pods_of("job").await.remove(0);
        world.pods().delete(&old.name_any(), &DeleteParams::default()).await.expect("delete");
        let deleted = world.clock.now();
        let pods =
            world.until_pods("job", "hold a new one", |pods| pods.iter().any(|pod| pod.uid() != old.uid())).await;
        let new = pods.iter().find(|pod| pod.uid() != old.uid()).expect("a new one");
        let waited = created(new).duration_since(deleted).as_secs();
        // Either way the failure is waited for: ten seconds after the deletion, or after the end.
        match at_once {
            true => assert!((9..=11).contains(&waited), "{policy}: {waited}"),
            false => assert!((34..=36).contains(&waited), "{policy}: {waited}"),
        }
        world.until("job", "has counted", |s| s.failed == Some(1)).await;
    }
}
