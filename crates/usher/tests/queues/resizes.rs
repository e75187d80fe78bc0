//! Jobs that grow and shrink while they run (KEP-77), sentence by sentence; docs/elastic-jobs.md says which test holds which.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use usher_api::kueue::Workload;
use usher_controllers::queueing::policy::{PodsReady, Policy};

use super::desk::*;
use super::elastic::*;
use super::ray_clusters;
use super::world::{secs, until};

fn resized(workload: &Workload) -> bool {
    said(workload, "ResizeRequested").is_some_and(|(status, ..)| status == "False")
}

fn admitted(workload: &Workload) -> i32 {
    let sets = workload.status.admission.iter().flat_map(|a| &a.pod_set_assignments);
    sets.map(|set| set.count.unwrap_or(0)).sum()
}

/// An Indexed Job with as many completions as pods.
fn indexed(desk: &Desk, name: &str, pods: i32) -> Value {
    let mut job = elastic(desk, name, pods);
    job["spec"]["completionMode"] = "Indexed".into();
    job["spec"]["completions"] = pods.into();
    job
}

async fn until_no_slices(desk: &Desk) {
    until("no slice is left", async || (slices(desk).await == 0).then_some(())).await;
}

/// Exactly so much cpu is left in the queue: a Job of as much runs, and one more cpu waits.
async fn until_left(desk: &Desk, cpu: i32) {
    if cpu > 0 {
        desk.submit(Queued { name: "fits", cpu: &cpu.to_string(), ..Default::default() }).await;
        desk.until_runs("fits").await;
    }
    desk.submit(Queued { name: "late", ..Default::default() }).await;
    desk.until_waits("late", "WaitingForQuota").await;
}

fn refusal(result: Result<k8s_openapi::api::batch::v1::Job, kube::Error>) -> String {
    match result {
        Err(kube::Error::Api(status)) if status.code == 422 || status.code == 403 => status.message,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_gate_off_a_resize_stops_the_job_and_queues_it_again_at_its_new_size() {
    let desk = desk_with(Policy { elastic_jobs: false, ..Policy::default() }).await;
    desk.queue("q", "4", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    let before = until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 3).await;
    let after = until_pods(&desk, "j", 3, 0).await;
    assert!(before.iter().all(|name| !after.contains(name)), "all of them are new: {before:?} {after:?}");
    desk.until("j", "has its size", |w| w.spec.pod_sets[0].count == 3 && is(w, "Admitted")).await;
    until_left(&desk, 1).await;
}

#[tokio::test(start_paused = true)]
async fn with_the_gate_off_pods_that_were_born_gated_are_still_let_go() {
    let mut desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    let before = until_pods(&desk, "j", 2, 0).await;
    desk.world.stop_controllers().await;
    desk.world.set_queues(Policy { elastic_jobs: false, ..Policy::default() });
    // Its template still has the gate, and so has the pod that takes the place of this one.
    desk.world.pods().delete(&before[0], &Default::default()).await.expect("delete it");
    desk.world.start_controllers();
    let after = until("another was let go", async || {
        let (now, waiting) = pods(&desk, "j").await;
        (now.len() == 2 && waiting.is_empty() && !now.contains(&before[0])).then_some(now)
    })
    .await;
    assert!(after.contains(&before[1]), "the other one goes on");
}

#[tokio::test(start_paused = true)]
async fn the_gate_turned_off_in_the_middle_of_a_resize_leaves_no_slice() {
    let mut desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit(Queued { name: "other", ..Default::default() }).await;
    desk.until_runs("other").await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 4).await;
    until_pods(&desk, "j", 3, 1).await;
    desk.world.stop_controllers().await;
    desk.world.set_queues(Policy { elastic_jobs: false, ..Policy::default() });
    desk.world.start_controllers();
    desk.until_rests("j").await;
    until_no_slices(&desk).await;
    desk.delete("other").await;
    until_pods(&desk, "j", 4, 0).await;
    until_left(&desk, 0).await;
}

#[tokio::test(start_paused = true)]
async fn whether_a_job_is_elastic_cannot_change() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 1)).await;
    desk.submit(Queued { name: "plain", ..Default::default() }).await;
    let note = async |job: &str, value: Value| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"kueue.x-k8s.io/elastic-job": value}}}));
        refusal(desk.world.jobs().patch(job, &PatchParams::default(), &patch).await)
    };
    let path = "metadata.annotations[kueue.x-k8s.io/elastic-job]";
    for said in [note("j", Value::Null).await, note("j", json!("false")).await, note("plain", json!("true")).await] {
        assert!(said.contains(path) && said.contains("field is immutable"), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_with_partial_admission_is_refused() {
    let desk = desk().await;
    let mut both = elastic(&desk, "j", 4);
    both["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] = "2".into();
    let job = serde_json::from_value(both).expect("a job");
    let said = refusal(desk.world.jobs().create(&PostParams::default(), &job).await);
    assert!(said.contains("partial admission and elastic job cannot be used together"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn parallelism_beyond_completions_is_no_resize() {
    let desk = desk().await;
    desk.queue("q", "9", json!({})).await;
    let mut job = elastic(&desk, "j", 2);
    job["spec"]["completions"] = 3.into();
    desk.submit_as(job).await;
    until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 8).await;
    until_pods(&desk, "j", 3, 0).await;
    let workload = desk.until("j", "has its size", |w| w.spec.pod_sets[0].count == 3 && resized(w)).await;
    assert_eq!(admitted(&workload), 3, "as many as there are completions");
    until_no_slices(&desk).await;
    let before = workload.metadata.resource_version.clone();
    scale(&desk, "j", 9).await;
    desk.world.pass(5).await;
    let after = desk.workload_of("j").await.expect("it");
    assert_eq!(after.metadata.resource_version, before, "nothing is to be done");
}

#[tokio::test(start_paused = true)]
async fn a_slice_is_what_its_parent_is_and_goes_where_its_parent_is() {
    let desk = desk().await;
    desk.class("mid", 5).await;
    for name in ["a", "b"] {
        desk.flavor(name, json!({"nodeLabels": {"type": name}})).await;
    }
    let flavors = json!([{"name": "a", "resources": [{"name": "cpu", "nominalQuota": "3"}]},
        {"name": "b", "resources": [{"name": "cpu", "nominalQuota": "9"}]}]);
    desk.queue("q", "0", json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]})).await;
    let mut job = elastic(&desk, "j", 2);
    job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "mid".into();
    desk.submit_as(job).await;
    until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 5).await;
    // One more fits where it is; the others wait there, though there is room elsewhere.
    until_pods(&desk, "j", 3, 2).await;
    desk.world.pass(60).await;
    let parent = desk.until("j", "waits for the rest", |w| admitted(w) == 3).await;
    let params = ListParams::default().labels("kueue.x-k8s.io/workload-slice=true");
    let waiting = desk.workloads().list(&params).await.expect("slices").items;
    assert_eq!(waiting.len(), 2);
    for slice in waiting {
        let owner = &slice.metadata.owner_references.as_ref().expect("an owner")[0];
        assert_eq!((owner.kind.as_str(), &owner.uid), ("Workload", parent.metadata.uid.as_ref().expect("a uid")));
        assert_eq!((slice.spec.queue_name.as_str(), slice.spec.priority), ("q", Some(5)));
        assert_eq!(slice.spec.pod_sets[0].template, parent.spec.pod_sets[0].template);
        assert!(!is(&slice, "QuotaReserved"));
    }
}

#[tokio::test(start_paused = true)]
async fn every_pod_is_born_gated_the_first_ones_too() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    let job = desk.submit_as(elastic(&desk, "j", 2)).await;
    let gate = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
    assert_eq!(template(&job)["spec"]["schedulingGates"], gate);
    until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 4).await;
    until_pods(&desk, "j", 4, 0).await;
    assert_eq!(template(&desk.world.job("j").await)["spec"]["schedulingGates"], gate, "of all that are still to come");
}

#[tokio::test(start_paused = true)]
async fn other_gates_of_a_pod_are_left_alone() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    let mut job = elastic(&desk, "j", 2);
    job["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "example.com/own"}]);
    desk.submit_as(job).await;
    let gates = |pod: &Pod| -> Vec<String> {
        let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
        gates.map(|gate| gate.name.clone()).collect()
    };
    let own = |pods: &[Pod]| pods.len() == 2 && pods.iter().all(|pod| gates(pod) == ["example.com/own"]);
    desk.world.until_pods("j", "have only their own gate", own).await;
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_grows_and_shrinks_with_its_completions_lowest_index_first() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit(Queued { name: "other", ..Default::default() }).await;
    desk.until_runs("other").await;
    desk.submit_as(indexed(&desk, "j", 2)).await;
    let first = until_pods(&desk, "j", 2, 0).await;
    let both = |count: i32| json!({"spec": {"parallelism": count, "completions": count}});
    desk.edit_job("j", both(5)).await;
    let more = until_pods(&desk, "j", 3, 2).await;
    assert!(first.iter().all(|name| more.contains(name)));
    let indexes: Vec<&str> = more.iter().filter_map(|name| name.rsplit('-').nth(1)).collect();
    assert_eq!(indexes, ["0", "1", "2"]);
    desk.edit_job("j", both(1)).await;
    let left = until_pods(&desk, "j", 1, 0).await;
    assert!(first.contains(&left[0]) && left[0].starts_with("j-0-"), "{left:?}");
    desk.until("j", "has its size", |w| w.spec.pod_sets[0].count == 1 && resized(w)).await;
    until_no_slices(&desk).await;
    until_left(&desk, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_scale_down_is_over_when_the_pods_above_the_new_size_are_gone() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    let mut job = elastic(&desk, "j", 3);
    job["spec"]["template"]["metadata"]["annotations"] = json!({"test/stops-after": "30"});
    desk.submit_as(job).await;
    desk.until_runs("j").await;
    scale(&desk, "j", 1).await;
    let told = |w: &Workload| {
        said(w, "ResizeRequested").is_some_and(|(status, reason, message)| {
            status == "True" && reason == "ScaleDown" && message == "2 pods above the new size of 1 are still there"
        })
    };
    let workload = desk.until("j", "says what is still there", told).await;
    assert_eq!(admitted(&workload), 1, "their quota is free already");
    desk.world.pass(40).await;
    let workload = desk.until("j", "has its size", resized).await;
    assert!(said(&workload, "Evicted").is_none());
    assert!(!is_suspended(&desk.world.job("j").await));
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_is_ready_when_as_many_pods_are_as_were_admitted() {
    let ready = PodsReady { timeout: secs(60), recovery_timeout: Some(secs(60)), ..PodsReady::default() };
    let desk = desk_with(Policy { pods_ready: Some(ready), ..Policy::default() }).await;
    desk.queue("q", "2", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 1)).await;
    let first = until_pods(&desk, "j", 1, 0).await;
    desk.until("j", "is ready", |w| is(w, "PodsReady")).await;
    scale(&desk, "j", 4).await;
    until_pods(&desk, "j", 2, 2).await;
    desk.until("j", "is ready with two", |w| is(w, "PodsReady") && admitted(w) == 2).await;
    desk.world.pass(600).await;
    let workload = desk.workload_of("j").await.expect("it");
    assert!(is(&workload, "PodsReady") && said(&workload, "Evicted").is_none(), "the two that wait are not waited for");
    assert!(until_pods(&desk, "j", 2, 2).await.contains(&first[0]));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_queue_drains_an_elastic_job_whole_and_its_quota_is_free_only_when_its_pods_are_gone() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    let mut job = elastic(&desk, "j", 2);
    job["spec"]["template"]["metadata"]["annotations"] = json!({"test/stops-after": "30"});
    desk.submit_as(job).await;
    desk.until_runs("j").await;
    scale(&desk, "j", 5).await;
    until_pods(&desk, "j", 3, 2).await;
    desk.edit_queue("q", json!({"stopPolicy": "HoldAndDrain"})).await;
    until_no_slices(&desk).await;
    until_pods(&desk, "j", 0, 0).await;
    let workload = desk.workload_of("j").await.expect("it");
    assert_eq!(admitted(&workload), 3, "three are still stopping, and still use what they were given");
    desk.until_rests("j").await;
    desk.until("j", "gave its quota back", |w| w.status.admission.is_none() && w.spec.pod_sets[0].count == 5).await;
    desk.edit_queue("q", json!({"stopPolicy": "None"})).await;
    scale(&desk, "j", 3).await;
    until_pods(&desk, "j", 3, 0).await;
}

#[tokio::test(start_paused = true)]
async fn scaled_down_while_slices_wait_the_newest_are_withdrawn_first() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    let ran = until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 6).await;
    until("four slices wait", async || (slices(&desk).await == 4).then_some(())).await;
    let names = async || {
        let params = ListParams::default().labels("kueue.x-k8s.io/workload-slice=true");
        let all = desk.workloads().list(&params).await.expect("slices").items;
        all.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    let before = names().await;
    scale(&desk, "j", 4).await;
    until("two slices wait", async || (slices(&desk).await == 2).then_some(())).await;
    assert_eq!(names().await, before[..2], "the oldest are left: {before:?}");
    scale(&desk, "j", 2).await;
    until_no_slices(&desk).await;
    let workload = desk.until("j", "has its size", resized).await;
    assert_eq!((admitted(&workload), workload.spec.pod_sets[0].count), (2, 2));
    assert_eq!(until_pods(&desk, "j", 2, 0).await, ran);
}

#[tokio::test(start_paused = true)]
async fn down_and_then_up_again_ends_where_it_was() {
    let desk = desk().await;
    desk.queue("q", "5", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 4)).await;
    until_pods(&desk, "j", 4, 0).await;
    scale(&desk, "j", 1).await;
    until_pods(&desk, "j", 1, 0).await;
    scale(&desk, "j", 4).await;
    until_pods(&desk, "j", 4, 0).await;
    // And without waiting in between.
    scale(&desk, "j", 1).await;
    scale(&desk, "j", 4).await;
    desk.until("j", "has its size", |w| admitted(w) == 4 && w.spec.pod_sets[0].count == 4 && resized(w)).await;
    until_pods(&desk, "j", 4, 0).await;
    until_no_slices(&desk).await;
    until_left(&desk, 1).await;
}

#[tokio::test(start_paused = true)]
async fn up_and_down_in_the_same_second_leaves_nothing_behind() {
    for steps in [0, 3, 10, 30, 60, 100] {
        let desk = desk().await;
        desk.queue("q", "5", json!({})).await;
        desk.submit_as(elastic(&desk, "j", 2)).await;
        until_pods(&desk, "j", 2, 0).await;
        scale(&desk, "j", 4).await;
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        scale(&desk, "j", 2).await;
        desk.world.pass(5).await;
        until_pods(&desk, "j", 2, 0).await;
        until_no_slices(&desk).await;
        let over = |w: &Workload| said(w, "ResizeRequested").is_none_or(|(status, ..)| status == "False");
        let settled = |w: &Workload| (admitted(w), w.spec.pod_sets[0].count) == (2, 2) && over(w);
        desk.until("j", "has its size", settled).await;
        until_left(&desk, 3).await;
    }
}

#[tokio::test(start_paused = true)]
async fn scaled_to_zero_and_back() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 0).await;
    until_pods(&desk, "j", 0, 0).await;
    let workload = desk.until("j", "has its size", |w| admitted(w) == 0 && resized(w)).await;
    assert!(is(&workload, "Admitted"), "it is not queued again");
    desk.submit(Queued { name: "other", cpu: "2", ..Default::default() }).await;
    desk.until_runs("other").await;
    scale(&desk, "j", 2).await;
    until_pods(&desk, "j", 1, 1).await;
    let told = |w: &Workload| {
        said(w, "ResizeRequested").is_some_and(|(_, _, message)| {
            message == "1 of 2 added replicas admitted, waiting for 1 cpu in flavor plain"
        })
    };
    desk.until("j", "says what it waits for", told).await;
    scale(&desk, "j", 0).await;
    until_pods(&desk, "j", 0, 0).await;
    until_no_slices(&desk).await;
    desk.delete("other").await;
    scale(&desk, "j", 3).await;
    until_pods(&desk, "j", 3, 0).await;
    until_left(&desk, 0).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_starts_with_nothing_waits_for_what_it_lacks_in_its_flavor() {
    let desk = desk().await;
    desk.flavor("spot", json!({"nodeLabels": {"type": "spot"}})).await;
    let flavors = json!([{"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "2"}]}]);
    desk.queue("q", "0", json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]})).await;
    desk.submit(Queued { name: "other", cpu: "2", ..Default::default() }).await;
    desk.until_runs("other").await;
    desk.submit_as(elastic(&desk, "j", 0)).await;
    desk.until_admitted("j").await;
    scale(&desk, "j", 2).await;
    let told = |w: &Workload| {
        said(w, "ResizeRequested").is_some_and(|(_, _, message)| {
            message == "0 of 2 added replicas admitted, waiting for 2 cpu in flavor spot"
        })
    };
    desk.until("j", "says what it waits for", told).await;
    until_pods(&desk, "j", 0, 2).await;
    desk.delete("other").await;
    until_pods(&desk, "j", 2, 0).await;
    let pods = desk.world.pods_of("j").await;
    assert!(
        pods.iter().all(|pod| pod
            .spec
            .as_ref()
            .and_then(|s| s.node_selector.as_ref())
            .is_some_and(|s| s["type"] == "spot"))
    );
}

#[tokio::test(start_paused = true)]
async fn resized_while_it_is_suspended_it_is_updated_and_gets_no_slices() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods(&desk, "j", 2, 0).await;
    desk.edit_job("j", json!({"spec": {"suspend": true}})).await;
    desk.until_rests("j").await;
    desk.until("j", "gave its quota back", |w| w.status.admission.is_none()).await;
    scale(&desk, "j", 4).await;
    desk.until("j", "asks for another size", |w| w.spec.pod_sets[0].count == 4).await;
    assert_eq!(slices(&desk).await, 0);
    desk.edit_job("j", json!({"spec": {"suspend": false}})).await;
    until_pods(&desk, "j", 4, 0).await;
    assert_eq!(slices(&desk).await, 0);
    let workload = desk.workload_of("j").await.expect("it");
    assert!(said(&workload, "ResizeRequested").is_none(), "it was no resize");
}

#[tokio::test(start_paused = true)]
async fn resized_while_it_waits_to_be_admitted_it_asks_for_another_size() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit(Queued { name: "other", cpu: "2", ..Default::default() }).await;
    desk.until_runs("other").await;
    desk.submit_as(elastic(&desk, "j", 4)).await;
    desk.until_waits("j", "WaitingForQuota").await;
    scale(&desk, "j", 2).await;
    until_pods(&desk, "j", 2, 0).await;
    assert_eq!(slices(&desk).await, 0);
    let workload = desk.workload_of("j").await.expect("it");
    assert_eq!((workload.spec.pod_sets[0].count, admitted(&workload)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_slice_whose_check_fails_gives_its_quota_back_and_tries_again() {
    let desk = desk().await;
    desk.check("slow").await;
    desk.queue("q", "3", json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "slow"}]}})).await;
    desk.submit_as(elastic(&desk, "j", 1)).await;
    desk.until("j", "has quota", |w| is(w, "QuotaReserved")).await;
    desk.say("j", json!({"name": "slow", "state": "Ready"})).await;
    until_pods(&desk, "j", 1, 0).await;
    scale(&desk, "j", 2).await;
    let slice = async |what: &str, so: &dyn Fn(&Workload) -> bool| {
        until(&format!("the slice {what}"), async || {
            let params = ListParams::default().labels("kueue.x-k8s.io/workload-slice=true");
            desk.workloads().list(&params).await.expect("slices").items.into_iter().find(|slice| so(slice))
        })
        .await
    };
    let say = async |name: &str, mut check: Value| {
        check["lastTransitionTime"] = json!(wire_time(desk.world.clock.now()));
        check["message"] = json!("");
        let patch = Patch::Merge(json!({"status": {"admissionChecks": [check]}}));
        desk.workloads().patch_status(name, &PatchParams::default(), &patch).await.expect("say it");
    };
    let first = slice("has quota", &|w| is(w, "QuotaReserved")).await.name_any();
    say(&first, json!({"name": "slow", "state": "Retry", "requeueAfterSeconds": 600})).await;
    slice("has none any longer", &|w| !is(w, "QuotaReserved") && w.status.admission.is_none()).await;
    desk.submit(Queued { name: "fits", cpu: "2", ..Default::default() }).await;
    desk.until("fits", "has what the slice gave back", |w| is(w, "QuotaReserved")).await;
    desk.delete("fits").await;
    desk.world.pass(600).await;
    let again = slice("has quota again", &|w| is(w, "QuotaReserved")).await.name_any();
    say(&again, json!({"name": "slow", "state": "Ready"})).await;
    until_pods(&desk, "j", 2, 0).await;
    until_no_slices(&desk).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_starts_empty_grows_on_its_flavor() {
    let desk = desk().await;
    desk.flavor("spot", json!({"nodeLabels": {"type": "spot"}})).await;
    let flavors = json!([{"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "3"}]}]);
    desk.queue("q", "0", json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]})).await;
    ray_clusters::submit(&desk, ray_clusters::cluster("r", &[("g", 0)])).await;
    ray_clusters::until_pods(&desk, "r", "headgroup", 1, 0).await;
    ray_clusters::scale(&desk, "r", |groups| groups[0]["replicas"] = 4.into()).await;
    let workers = ray_clusters::until_pods(&desk, "r", "g", 2, 2).await;
    let worker = desk.world.pods().get(&workers[0]).await.expect("a worker");
    assert_eq!(worker.spec.and_then(|spec| spec.node_selector).expect("a selector")["type"], "spot");
    ray_clusters::scale(&desk, "r", |groups| groups[0]["replicas"] = 0.into()).await;
    ray_clusters::until_pods(&desk, "r", "g", 0, 0).await;
    ray_clusters::until_no_slices(&desk).await;
    let workload = ray_clusters::until_admitted(&desk, "r", &[("head", 1), ("g", 0)]).await;
    assert!(said(&workload, "Evicted").is_none());
    until_left(&desk, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_template_in_the_middle_of_a_resize_stops_the_cluster_and_leaves_no_slice() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    ray_clusters::submit(&desk, ray_clusters::cluster("r", &[("g", 1)])).await;
    ray_clusters::until_pods(&desk, "r", "g", 1, 0).await;
    ray_clusters::scale(&desk, "r", |groups| groups[0]["replicas"] = 4.into()).await;
    ray_clusters::until_pods(&desk, "r", "g", 2, 2).await;
    ray_clusters::scale(&desk, "r", |groups| {
        groups[0]["replicas"] = 2.into();
        groups[0]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "500m".into();
    })
    .await;
    ray_clusters::until_workload(&desk, "r", "asks for less", |w| {
        let cpu = serde_json::to_value(&w.spec.pod_sets[1]).expect("json");
        cpu.pointer("/template/spec/containers/0/resources/requests/cpu") == Some(&json!("500m"))
    })
    .await;
    ray_clusters::until_pods(&desk, "r", "g", 2, 0).await;
    ray_clusters::until_no_slices(&desk).await;
    ray_clusters::until_admitted(&desk, "r", &[("head", 1), ("g", 2)]).await;
    until_left(&desk, 1).await;
}

#[tokio::test(start_paused = true)]
async fn each_step_of_a_resize_is_told_on_the_job() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods(&desk, "j", 2, 0).await;
    scale(&desk, "j", 5).await;
    until_pods(&desk, "j", 3, 2).await;
    desk.world.until_event("j", "ScaleUpRequested", "Asked for 3 more replicas").await;
    desk.world.until_event("j", "ScaledUp", "1 more replicas admitted, 3 in all").await;
    scale(&desk, "j", 1).await;
    until_pods(&desk, "j", 1, 0).await;
    desk.world.until_event("j", "ScaleUpWithdrawn", "Withdrew 2 replicas that were not admitted yet").await;
    desk.world.until_event("j", "ScaledDown", "Quota is kept for 1 replicas from now on").await;
    desk.world.until_event("j", "Resized", "All 1 replicas are admitted").await;
}
