//! How Jobs end: failures and their waits, deadlines, indexes, and what is cleaned up afterwards.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use super::world::*;

#[tokio::test(start_paused = true)]
async fn failures_are_retried_ever_more_slowly_until_the_limit() {
    let world = World::new().await;
    world.create("bad", json!({"backoffLimit": 3}), json!({"test/runs": "1", "test/fails": "100"})).await;
    let job = world.until_condition("bad", "Failed").await;
    assert_eq!(conditions(&job), ["FailureTarget", "Failed"]);
    let why = ("BackoffLimitExceeded".to_string(), "Job has reached the specified backoff limit".to_string());
    assert_eq!((reason(&job, "FailureTarget"), reason(&job, "Failed")), (why.clone(), why.clone()));
    assert_eq!(counts(&job), [0, 0, 0, 0, 4]);
    assert_eq!(job.status.as_ref().and_then(|s| s.completion_time.clone()), None);
    let pods = world.pods_of("bad").await;
    assert_eq!(gaps(&pods), [11, 21, 41], "one second to fail, then 10, 20 and 40 to wait");
    world.until_event("bad", &why.0, &why.1).await;
}

#[tokio::test(start_paused = true)]
async fn a_success_ends_the_row_of_failures() {
    let world = World::new().await;
    let spec = json!({"completions": 2, "parallelism": 1});
    world.create("job", spec, json!({"test/runs": "1", "test/fails": "2"})).await;
    let job = world.until_condition("job", "Complete").await;
    assert_eq!(counts(&job), [0, 0, 0, 2, 2]);
    let gaps = gaps(&world.pods_of("job").await);
    assert_eq!(gaps[..2], [11, 21]);
    assert!(gaps[2] <= 2, "after a success there is nothing to wait for: {gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn the_wait_after_failures_survives_a_restart() {
    let mut world = World::new().await;
    world.create("bad", json!({"backoffLimit": 4}), json!({"test/runs": "1", "test/fails": "3"})).await;
    world.until("bad", "has failed twice", |s| s.failed == Some(2)).await;
    world.stop_controllers().await;
    world.start_controllers();
    world.until_condition("bad", "Complete").await;
    let gaps = gaps(&world.pods_of("bad").await);
    assert_eq!(gaps, [11, 21, 41]);
}

#[tokio::test(start_paused = true)]
async fn deleting_a_failed_pod_does_not_shorten_the_wait() {
    let world = World::new().await;
    world.create("bad", json!({}), json!({"test/runs": "1", "test/fails": "2"})).await;
    world.until("bad", "has failed twice", |s| s.failed == Some(2)).await;
    let pods = world.pods_of("bad").await;
    for pod in &pods {
        world.pods().delete(&pod.name_any(), &DeleteParams::default()).await.expect("delete");
    }
    world.until_condition("bad", "Complete").await;
    let last = created(&world.pods_of("bad").await[0]);
    assert_eq!(last.duration_since(created(&pods[1])).as_secs(), 21);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_job_on_the_second() {
    let world = World::new().await;
    world.create("late", json!({"activeDeadlineSeconds": 30, "parallelism": 2, "completions": 2}), json!({})).await;
    let job = world.until_condition("late", "Failed").await;
    let why = ("DeadlineExceeded".to_string(), "Job was active longer than specified deadline".to_string());
    assert_eq!(reason(&job, "Failed"), why);
    let start = start_time(&job).expect("a start");
    assert_eq!(time_of(&job, "FailureTarget").duration_since(start).as_secs(), 30);
    assert_eq!(counts(&job), [0, 0, 0, 0, 2], "what ran counts as failed");
    assert!(world.pods_of("late").await.iter().all(|pod| !is_active(pod)));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_can_be_set_while_a_job_runs() {
    let world = World::new().await;
    world.create("job", json!({}), json!({})).await;
    world.until("job", "runs", |s| s.ready == Some(1)).await;
    world.pass(100).await;
    world.edit("job", json!({"activeDeadlineSeconds": 130})).await;
    let job = world.until_condition("job", "Failed").await;
    let start = start_time(&job).expect("a start");
    assert_eq!(time_of(&job, "FailureTarget").duration_since(start).as_secs(), 130);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_not_failed_before_its_pods_are_gone() {
    let world = World::new().await;
    let notes = json!({"test/stops-after": "20"});
    world.create("slow", json!({"activeDeadlineSeconds": 10}), notes).await;
    let dying = world.until_condition("slow", "FailureTarget").await;
    assert_eq!((counts(&dying), conditions(&dying)), ([0, 0, 1, 0, 1], vec!["FailureTarget".to_string()]));
    let job = world.until_condition("slow", "Failed").await;
    let waited = time_of(&job, "Failed").duration_since(time_of(&job, "FailureTarget"));
    assert!((20..=21).contains(&waited.as_secs()), "{waited:?}");
    assert_eq!(counts(&job), [0, 0, 0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn each_index_has_its_own_limit_and_its_own_wait() {
    let world = World::new().await;
    let spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1});
    world.create("per", spec, json!({"test/runs": "1", "test/fails": "2@1"})).await;
    let job = world.until_condition("per", "Failed").await;
    assert_eq!(reason(&job, "Failed"), ("FailedIndexes".into(), "Job has failed indexes".into()));
    let status = job.status.clone().unwrap_or_default();
    assert_eq!((status.completed_indexes.as_deref(), status.failed_indexes.as_deref()), (Some("0,2"), Some("1")));
    assert_eq!(counts(&job), [0, 0, 0, 2, 2]);
    let count = "batch.kubernetes.io/job-index-failure-count";
    let is_one =
        |pod: &&k8s_openapi::api::core::v1::Pod| pod.annotations()["batch.kubernetes.io/job-completion-index"] == "1";
    let pods = world.pods_of("per").await;
    let ones: Vec<_> = pods.iter().filter(is_one).cloned().collect();
    let counted: Vec<_> = ones.iter().map(|pod| pod.annotations()[count].clone()).collect();
    assert_eq!((counted, gaps(&ones)), (vec!["0".to_string(), "1".to_string()], vec![11]));
}

#[tokio::test(start_paused = true)]
async fn too_many_failed_indexes_end_a_job_early() {
    let world = World::new().await;
    let spec = json!({"completions": 10, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "maxFailedIndexes": 1});
    world.create("many", spec, json!({"test/runs": "1", "test/fails": "1"})).await;
    let job = world.until_condition("many", "Failed").await;
    let message = "Job has exceeded the specified maximal number of failed indexes";
    assert_eq!(reason(&job, "Failed"), ("MaxFailedIndexesExceeded".into(), message.into()));
    assert_eq!(job.status.unwrap_or_default().failed_indexes.as_deref(), Some("0,1"));
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_goes_when_its_time_to_live_is_over_with_all_its_pods() {
    let world = World::new().await;
    let spec = json!({"ttlSecondsAfterFinished": 100, "completions": 2, "parallelism": 2});
    world.create("brief", spec, json!({"test/runs": "1"})).await;
    world.create("kept", json!({}), json!({"test/runs": "1"})).await;
    let job = world.until_condition("brief", "Complete").await;
    let ended = time_of(&job, "Complete");
    until("brief is gone", async || world.jobs().get_opt("brief").await.expect("get").is_none().then_some(())).await;
    let waited = world.clock.now().duration_since(ended).as_secs();
    assert!((100..=101).contains(&waited), "{waited}");
    assert!(world.pods_of("brief").await.is_empty());
    assert_eq!(conditions(&world.job("kept").await), ["SuccessCriteriaMet", "Complete"]);
}

#[tokio::test(start_paused = true)]
async fn restarts_within_a_pod_count_against_the_limit() {
    let world = World::new().await;
    let spec = json!({"backoffLimit": 2, "template": {"spec": {"restartPolicy": "OnFailure"}}});
    world.create("restarting", spec, json!({})).await;
    world.until("restarting", "runs", |s| s.ready == Some(1)).await;
    let pod = world.pods_of("restarting").await.remove(0);
    for restarts in [1, 2] {
        let mut status = pod.clone();
        status.status = world.pods().get(&pod.name_any()).await.expect("the pod").status;
        let container =
            &mut status.status.as_mut().expect("a status").container_statuses.as_mut().expect("containers")[0];
        container.restart_count = restarts;
        let patch = kube::api::Patch::Merge(json!({"status": status.status}));
        world.pods().patch_status(&pod.name_any(), &Default::default(), &patch).await.expect("restart");
        if restarts == 1 {
            world.pass(5).await;
            assert_eq!(conditions(&world.job("restarting").await), Vec::<String>::new());
        }
    }
    let job = world.until_condition("restarting", "Failed").await;
    assert_eq!(reason(&job, "Failed").0, "BackoffLimitExceeded");
}
