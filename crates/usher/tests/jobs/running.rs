//! Jobs that run: how many pods at a time, which indexes, and that every pod is counted once.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::world::*;

fn index(pod: &Pod) -> i32 {
    pod.annotations()["batch.kubernetes.io/job-completion-index"].parse().expect("an index")
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_to_completion_and_counts_each_pod_once() {
    let world = World::new().await;
    world.create("plain", json!({"completions": 5, "parallelism": 2}), json!({"test/runs": "3"})).await;
    let running = world.until("plain", "has two ready pods", |s| s.ready == Some(2)).await;
    assert_eq!(counts(&running), [2, 2, 0, 0, 0]);
    let job = world.until_condition("plain", "Complete").await;
    assert_eq!(conditions(&job), ["SuccessCriteriaMet", "Complete"]);
    assert_eq!(
        reason(&job, "Complete"),
        ("CompletionsReached".into(), "Reached expected number of succeeded pods".into())
    );
    assert_eq!(counts(&job), [0, 0, 0, 5, 0]);
    let status = job.status.clone().unwrap_or_default();
    assert_eq!(status.completion_time.map(|t| t.0), Some(time_of(&job, "Complete")));
    let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
    assert!(uncounted.succeeded.is_none() && uncounted.failed.is_none());
    let pods = world.pods_of("plain").await;
    assert_eq!(pods.len(), 5);
    assert!(pods.iter().all(|pod| !is_tracked(pod) && pod.name_any().starts_with("plain-")));
    world.until_event("plain", "Completed", "Job completed").await;
    let created = world.events("plain").await.into_iter().filter(|event| event.1 == "SuccessfulCreate");
    let mut told: Vec<_> = created.map(|event| event.2).collect();
    let mut expected: Vec<_> = pods.iter().map(|pod| format!("Created pod: {}", pod.name_any())).collect();
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_runs_each_index_once() {
    let world = World::new().await;
    let spec = json!({"completions": 5, "parallelism": 3, "completionMode": "Indexed"});
    world.create("indexed", spec, json!({"test/runs": "2"})).await;
    let job = world.until_condition("indexed", "Complete").await;
    let status = job.status.clone().unwrap_or_default();
    assert_eq!((status.completed_indexes.as_deref(), status.succeeded), (Some("0-4"), Some(5)));
    assert_eq!(status.failed_indexes, None);
    let pods = world.pods_of("indexed").await;
    let mut indexes: Vec<_> = pods.iter().map(index).collect();
    indexes.sort();
    assert_eq!(indexes, [0, 1, 2, 3, 4]);
    for pod in &pods {
        let spec = pod.spec.as_ref().expect("a spec");
        assert_eq!(spec.hostname, Some(format!("indexed-{}", index(pod))));
        assert!(pod.name_any().starts_with(&format!("indexed-{}-", index(pod))), "{}", pod.name_any());
        assert_eq!(pod.labels()["batch.kubernetes.io/job-completion-index"], index(pod).to_string());
        let env = spec.containers[0].env.as_ref().expect("variables");
        assert_eq!(env[0].name, "JOB_COMPLETION_INDEX");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_without_completions_ends_when_its_pods_have_after_the_first_success() {
    let world = World::new().await;
    // Two of the three pods fail, one of them after the success.
    let spec = json!({"parallelism": 3, "completions": null, "backoffLimit": 10});
    world.create("any", spec, json!({"test/runs": "2", "test/fails": "2"})).await;
    let job = world.until_condition("any", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 1, 2]);
    assert_eq!(world.pods_of("any").await.len(), 3, "after a success no pod is replaced");
}

#[tokio::test(start_paused = true)]
async fn parallelism_can_be_changed_while_a_job_runs() {
    let world = World::new().await;
    world.create("wide", json!({"completions": 10, "parallelism": 1}), json!({})).await;
    world.until("wide", "has one", |s| s.ready == Some(1)).await;
    world.edit("wide", json!({"parallelism": 4})).await;
    world.until("wide", "has four", |s| s.ready == Some(4)).await;
    world.edit("wide", json!({"parallelism": 2})).await;
    let job = world.until("wide", "has two", |s| s.active == Some(2) && s.terminating == Some(0)).await;
    assert_eq!(counts(&job), [2, 2, 0, 0, 0], "what was taken away is not counted as failed");
    world.edit("wide", json!({"parallelism": 0})).await;
    world.until("wide", "has none", |s| s.active.is_none() && s.terminating == Some(0)).await;
    assert!(world.pods_of("wide").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_forgets_indexes_when_it_shrinks_and_runs_them_when_it_grows() {
    let world = World::new().await;
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"});
    // Index 0 runs on; the others end well.
    world.create("elastic", spec, json!({"test/runs": "2", "test/fails": "0"})).await;
    world.edit("elastic", json!({"template": {"metadata": {}}})).await;
    world.until_condition("elastic", "Complete").await;

    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"});
    world.create("stretch", spec, json!({})).await;
    world.until("stretch", "has four", |s| s.ready == Some(4)).await;
    world.edit("stretch", json!({"completions": 2, "parallelism": 2})).await;
    world.until("stretch", "has two", |s| s.active == Some(2) && s.terminating == Some(0)).await;
    let mut left: Vec<_> = world.pods_of("stretch").await.iter().map(index).collect();
    left.sort();
    assert_eq!(left, [0, 1]);
    world.edit("stretch", json!({"completions": 3, "parallelism": 3})).await;
    let pods = world.until_pods("stretch", "are three", |pods| pods.len() == 3).await;
    let mut indexes: Vec<_> = pods.iter().map(index).collect();
    indexes.sort();
    assert_eq!(indexes, [0, 1, 2]);
    assert_eq!(counts(&world.job("stretch").await)[4], 0, "a shrunk index is no failure");
}

#[tokio::test(start_paused = true)]
async fn a_job_managed_by_somebody_else_is_left_alone() {
    let world = World::new().await;
    world.create("theirs", json!({"managedBy": "example.com/other"}), json!({"test/runs": "1"})).await;
    world.create("ours", json!({"managedBy": "kubernetes.io/job-controller"}), json!({"test/runs": "1"})).await;
    world.until_condition("ours", "Complete").await;
    assert!(world.pods_of("theirs").await.is_empty());
    assert_eq!(world.job("theirs").await.status.unwrap_or_default(), Default::default());
}

#[tokio::test(start_paused = true)]
async fn a_job_of_a_thousand_pods_is_created_in_growing_batches() {
    let world = World::new().await;
    let spec = json!({"completions": 1200, "parallelism": 1200});
    world.create("large", spec, json!({"test/runs": "1"})).await;
    let job = world.until_condition("large", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 1200, 0]);
    assert_eq!(world.pods_of("large").await.len(), 1200);
}

#[tokio::test(start_paused = true)]
async fn a_controller_stopped_anywhere_creates_no_pod_twice_and_counts_each_once() {
    for step in 0..40 {
        let mut world = World::new().await;
        let spec = json!({"completions": 6, "parallelism": 3, "backoffLimit": 10});
        world.create("plain", spec, json!({"test/runs": "1", "test/fails": "1"})).await;
        let spec = json!({"completions": 6, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 2});
        world.create("indexed", spec, json!({"test/runs": "1", "test/fails": "1@2"})).await;
        // A stop drops whatever is under way, a call in flight included, after a different number of turns each time.
        for turn in 0..12 {
            for _ in 0..(step * 7 + turn * 3) % 50 {
                tokio::task::yield_now().await;
            }
            if turn % 3 == 2 {
                world.pass(1).await;
            }
            world.stop_controllers().await;
            world.start_controllers();
        }
        let plain = world.until_condition("plain", "Complete").await;
        assert_eq!(counts(&plain), [0, 0, 0, 6, 1], "step {step}");
        let indexed = world.until_condition("indexed", "Complete").await;
        assert_eq!(counts(&indexed), [0, 0, 0, 6, 1], "step {step}");
        assert_eq!(indexed.status.unwrap_or_default().completed_indexes.as_deref(), Some("0-5"));
        for name in ["plain", "indexed"] {
            let pods = world.pods_of(name).await;
            assert_eq!(pods.len(), 7, "step {step}: {name}");
            assert!(pods.iter().all(|pod| !is_tracked(pod)), "step {step}: {name}");
        }
    }
}
