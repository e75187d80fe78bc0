//! From create to the end of a Job in a queue.

use serde_json::json;
use usher_controllers::queueing::policy::{PodsReady, Policy};

use super::desk::*;
use super::world::{counts, either, until};

#[tokio::test(start_paused = true)]
async fn a_job_waits_is_admitted_runs_and_frees_its_quota() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    let first = desk.submit(Queued { name: "first", cpu: "2", runs: Some("60"), ..Default::default() }).await;
    assert!(is_suspended(&first), "as the API answered it");
    desk.until_runs("first").await;
    desk.submit(Queued { name: "second", runs: Some("10"), ..Default::default() }).await;
    let why = desk.until_waits("second", "WaitingForQuota").await;
    let expected =
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor plain, 1 more needed";
    assert_eq!(why, expected);
    assert!(is_suspended(&desk.world.job("second").await));
    desk.world.until_condition("first", "Complete").await;
    let second = desk.world.until_condition("second", "Complete").await;
    assert_eq!(counts(&second), [0, 0, 0, 1, 0]);
    let let_go = |w: &usher_api::kueue::Workload| w.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
    let workload = desk.until("second", "is finished and let go", |w| is(w, "Finished") && let_go(w)).await;
    assert_eq!(said(&workload, "Finished").expect("it").1, "Succeeded");
    desk.world.until_event("second", "Started", "Admitted by clusterQueue q").await;
}

#[tokio::test(start_paused = true)]
async fn a_flavor_aims_the_pods_and_eviction_takes_its_aim_back() {
    let desk = desk().await;
    let tolerations = json!([{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]);
    desk.flavor("spot", json!({"nodeLabels": {"type": "spot"}, "tolerations": tolerations})).await;
    let flavors = json!([{"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]);
    desk.queue("q", "0", json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]})).await;
    let created = desk.submit(Queued { pods: 2, ..Default::default() }).await;
    let before = template(&created);
    let running = desk.until_runs("j").await;
    let aimed = template(&running);
    assert_eq!(aimed["spec"]["nodeSelector"], json!({"type": "spot"}));
    assert_eq!(aimed["spec"]["tolerations"], tolerations);
    for pod in desk.world.pods_of("j").await {
        let pod = serde_json::to_value(pod).expect("json");
        assert_eq!(pod["spec"]["nodeSelector"], json!({"type": "spot"}));
        assert_eq!(pod["metadata"]["labels"]["kueue.x-k8s.io/podset"], "main");
    }
    desk.edit_queue("q", json!({"stopPolicy": "HoldAndDrain"})).await;
    let workload = desk.until("j", "has left", |w| is(w, "Evicted") && !is(w, "QuotaReserved")).await;
    assert_eq!(said(&workload, "Evicted").expect("it").1, "ClusterQueueStopped");
    let resting = desk.until_rests("j").await;
    assert_eq!(template(&resting), before, "exactly as it was");
    desk.edit_queue("q", json!({"stopPolicy": "None"})).await;
    desk.until_runs("j").await;
}

#[tokio::test(start_paused = true)]
async fn in_a_namespace_with_a_default_queue_every_job_is_queued() {
    let desk = desk().await;
    desk.queue("default", "1", json!({})).await;
    let created = desk.world.create("plain", json!({}), json!({"test/runs": "5"})).await;
    assert!(is_suspended(&created));
    assert_eq!(created.metadata.labels.expect("labels")["kueue.x-k8s.io/queue-name"], "default");
    desk.world.until_condition("plain", "Complete").await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_can_run_with_less_starts_with_what_there_is() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    let mut job = desk.job(&Queued { pods: 5, runs: Some("10"), ..Default::default() });
    job["metadata"]["annotations"] = json!({"kueue.x-k8s.io/job-min-parallelism": "2"});
    desk.submit_as(job).await;
    let running = desk.until_runs("j").await;
    assert_eq!(running.spec.expect("a spec").parallelism, Some(3));
    let workload = desk.until_admitted("j").await;
    let got = &workload.status.admission.as_ref().expect("it").pod_set_assignments[0];
    assert_eq!((got.count, workload.spec.pod_sets[0].count), (Some(3), 5));
}

#[tokio::test(start_paused = true)]
async fn quota_is_given_only_where_the_queue_selects_the_namespace() {
    let desk = desk().await;
    desk.queue("q", "1", json!({"namespaceSelector": {"matchLabels": {"team": "a"}}})).await;
    desk.submit(Queued::default()).await;
    desk.until_waits("j", "Misconfigured").await;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(desk.world.client.clone());
    let label = kube::api::Patch::Merge(json!({"metadata": {"labels": {"team": "a"}}}));
    namespaces.patch("default", &Default::default(), &label).await.expect("label it");
    desk.until_runs("j").await;
}

#[tokio::test(start_paused = true)]
async fn checks_hold_an_admission_back_and_shape_the_pods() {
    let desk = desk().await;
    desk.check("budget").await;
    desk.queue("q", "2", json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}})).await;
    desk.submit(Queued { runs: Some("10"), ..Default::default() }).await;
    let workload = desk.until("j", "has quota", |w| is(w, "QuotaReserved")).await;
    assert_eq!(said(&workload, "Admitted").expect("it").1, "UnsatisfiedAdmissionChecks");
    assert!(is_suspended(&desk.world.job("j").await));
    let updates = json!([{"name": "main", "nodeSelector": {"rack": "7"}, "annotations": {"budget": "ok"}}]);
    desk.say("j", json!({"name": "budget", "state": "Ready", "podSetUpdates": updates})).await;
    let running = template(&desk.until_runs("j").await);
    assert_eq!(running["spec"]["nodeSelector"], json!({"rack": "7"}));
    assert_eq!(running["metadata"]["annotations"]["budget"], "ok");
    desk.world.until_condition("j", "Complete").await;
}

#[tokio::test(start_paused = true)]
async fn a_check_that_asks_for_another_try_frees_the_quota_until_then() {
    let desk = desk().await;
    desk.check("budget").await;
    desk.queue("q", "1", json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}})).await;
    desk.submit(Queued { name: "poor", ..Default::default() }).await;
    desk.until("poor", "has quota", |w| is(w, "QuotaReserved")).await;
    let began = desk.world.clock.now();
    desk.say("poor", json!({"name": "budget", "state": "Retry", "requeueAfterSeconds": either(120, 10)})).await;
    desk.submit(Queued { name: "rich", runs: Some("5"), ..Default::default() }).await;
    desk.until("rich", "has quota", |w| is(w, "QuotaReserved")).await;
    desk.say("rich", json!({"name": "budget", "state": "Ready"})).await;
    desk.world.until_condition("rich", "Complete").await;
    desk.until("poor", "has quota again", |w| is(w, "QuotaReserved") && !is(w, "Evicted")).await;
    let waited = desk.world.clock.now().duration_since(began).as_secs();
    let (least, most) = (either(119, 9), either(130, 60));
    assert!((least as i64..=most as i64).contains(&waited), "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn pods_that_never_get_ready_lose_their_place_for_a_while() {
    let secs = |n: u64| jiff::SignedDuration::from_secs(n as i64);
    let ready = PodsReady { timeout: secs(either(60, 8)), backoff_base: secs(either(60, 5)), ..PodsReady::default() };
    let desk = desk_with(Policy { pods_ready: Some(ready), ..Policy::default() }).await;
    desk.queue("q", "1", json!({})).await;
    let mut stuck = desk.job(&Queued { name: "stuck", ..Default::default() });
    stuck["spec"]["template"]["metadata"]["annotations"] = json!({"test/pending": "yes"});
    desk.submit_as(stuck).await;
    desk.until_admitted("stuck").await;
    desk.submit(Queued { name: "next", runs: Some("5"), ..Default::default() }).await;
    desk.until_waits("next", "WaitingForQuota").await;
    desk.world.until_condition("next", "Complete").await;
    let again = desk.until("stuck", "is admitted again", |w| is(w, "Admitted") && !is(w, "Evicted")).await;
    assert_eq!(again.status.requeue_state.expect("a count").count, Some(1));
    let ready = said(&desk.until("next", "is ready", |w| is(w, "Finished")).await, "PodsReady").expect("it");
    assert_eq!((ready.0.as_str(), ready.1.as_str()), ("True", "Started"));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_too_long_is_stopped_for_good() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    let mut job = desk.job(&Queued::default());
    job["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = json!(either(30, 10).to_string());
    desk.submit_as(job).await;
    desk.until_runs("j").await;
    let workload = desk.until("j", "is stopped", |w| w.spec.active == Some(false) && !is(w, "QuotaReserved")).await;
    assert_eq!(said(&workload, "Evicted").expect("it").1, "DeactivatedDueToMaximumExecutionTimeExceeded");
    desk.until_rests("j").await;
    desk.submit(Queued { name: "next", runs: Some("1"), ..Default::default() }).await;
    desk.world.until_condition("next", "Complete").await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_done_free_quota_before_their_job_ends() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    let mut job = desk.job(&Queued { name: "two", pods: 2, ..Default::default() });
    job["spec"]["completionMode"] = json!("Indexed");
    // One index ends at once, the other never.
    job["spec"]["template"]["metadata"]["annotations"] = json!({"test/runs": "5", "test/fails": "9@1"});
    job["spec"]["backoffLimit"] = json!(100);
    desk.submit_as(job).await;
    desk.until("two", "gave one back", |w| w.status.reclaimable_pods.iter().any(|p| p.count == 1)).await;
    desk.submit(Queued { name: "next", runs: Some("1"), ..Default::default() }).await;
    desk.world.until_condition("next", "Complete").await;
    assert!(!is(&desk.workload_of("two").await.expect("it"), "Finished"), "the other index goes on");
}

#[tokio::test(start_paused = true)]
async fn a_workload_without_a_job_is_admitted_the_same_way() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    let bare = json!({"metadata": {"name": "bare"}, "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1,
        "template": {"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}}]}});
    let bare = serde_json::from_value(bare).expect("a workload");
    desk.workloads().create(&Default::default(), &bare).await.expect("create it");
    let get = async || desk.workloads().get("bare").await.ok().filter(|w| is(w, "Admitted"));
    until("it is admitted", get).await;
    desk.submit(Queued::default()).await;
    desk.until_waits("j", "WaitingForQuota").await;
    let done = json!({"status": {"conditions": [{"type": "Finished", "status": "True", "reason": "ByTest", "message": "",
        "lastTransitionTime": wire_time(desk.world.clock.now())}]}});
    let patch = kube::api::Patch::Merge(done);
    desk.workloads().patch_status("bare", &Default::default(), &patch).await.expect("finish it");
    desk.until_runs("j").await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_made_beforehand_is_adopted_by_the_job_that_names_it() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    let mut named = desk.job(&Queued { runs: Some("5"), ..Default::default() });
    named["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"] = json!("made");
    desk.submit_as(named).await;
    // What the API server fills into a Job's template belongs to what was agreed.
    let template = template(&desk.world.job("j").await);
    let mut labels = template["metadata"]["labels"].clone();
    for generated in ["job-name", "controller-uid", "batch.kubernetes.io/controller-uid"] {
        labels.as_object_mut().expect("labels").remove(generated);
    }
    let made = json!({"metadata": {"name": "made"}, "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1,
        "template": {"metadata": {"labels": labels, "annotations": template["metadata"]["annotations"]},
            "spec": template["spec"]}}]}});
    let made = serde_json::from_value(made).expect("a workload");
    desk.workloads().create(&Default::default(), &made).await.expect("create it");
    let job = desk.world.until_condition("j", "Complete").await;
    let finished = async || desk.workloads().get("made").await.ok().filter(|w| is(w, "Finished"));
    let workload = until("it is finished", finished).await;
    let owner = workload.metadata.owner_references.expect("an owner").remove(0);
    assert_eq!((owner.kind.as_str(), Some(owner.uid)), ("Job", job.metadata.uid));
    assert!(desk.workload_of("j").await.is_none(), "no other was made");
}

#[tokio::test(start_paused = true)]
async fn a_wait_shows_what_is_asked_for_and_what_is_not_supported_says_so() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    desk.submit(Queued { name: "big", cpu: "1500m", pods: 2, ..Default::default() }).await;
    let why = desk.until_waits("big", "ExceedsMaxQuota").await;
    assert!(why.contains("(3) > maximum capacity (1)"), "{why}");
    let workload = desk.workload_of("big").await.expect("it");
    let asked = serde_json::to_value(&workload.status.resource_requests).expect("json");
    assert_eq!(asked, json!([{"name": "main", "resources": {"cpu": "3"}}]));
    let mut placed = desk.job(&Queued { name: "placed", ..Default::default() });
    let notes = json!({"kueue.x-k8s.io/podset-required-topology": "rack"});
    placed["spec"]["template"]["metadata"]["annotations"] = notes;
    desk.submit_as(placed).await;
    let why = desk.until_waits("placed", "Misconfigured").await;
    assert!(why.starts_with("topology requests are not supported yet"), "{why}");
}
