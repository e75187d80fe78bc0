//! Elastic Jobs with the real Job controller: what runs keeps running, what is added waits at its gate.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::desk::*;
use super::world::{either, until};

pub fn elastic(desk: &Desk, name: &str, pods: i32) -> Value {
    let mut job = desk.job(&Queued { name, pods, ..Default::default() });
    job["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
    // As many as its parallelism says, until one of them ends well.
    job["spec"].as_object_mut().expect("a spec").remove("completions");
    job
}

pub fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()))
}

/// Names of the pods that were let go, and of those that wait.
pub async fn pods(desk: &Desk, job: &str) -> (Vec<String>, Vec<String>) {
    let pods = desk.world.pods_of(job).await;
    let live = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let (gated, free): (Vec<&Pod>, Vec<&Pod>) = live.partition(|pod| is_gated(pod));
    let names = |pods: Vec<&Pod>| {
        let mut names: Vec<String> = pods.iter().map(|pod| pod.name_any()).collect();
        names.sort();
        names
    };
    (names(free), names(gated))
}

pub async fn until_pods(desk: &Desk, job: &str, free: usize, gated: usize) -> Vec<String> {
    until(&format!("{job} has {free} pods let go and {gated} at their gates"), async || {
        let (now, waiting) = pods(desk, job).await;
        ((now.len(), waiting.len()) == (free, gated)).then_some(now)
    })
    .await
}

pub async fn scale(desk: &Desk, job: &str, parallelism: i32) {
    desk.edit_job(job, json!({"spec": {"parallelism": parallelism}})).await;
}

pub async fn slices(desk: &Desk) -> usize {
    let params = ListParams::default().labels("kueue.x-k8s.io/workload-slice=true");
    desk.workloads().list(&params).await.expect("workloads").items.len()
}

#[tokio::test(start_paused = true)]
async fn a_running_job_grows_as_far_as_there_is_quota_and_the_rest_follows_when_some_is_free() {
    let desk = desk().await;
    desk.queue("q", "5", json!({})).await;
    desk.submit(Queued { name: "other", ..Default::default() }).await;
    desk.until_runs("other").await;
    desk.submit_as(elastic(&desk, "grows", 2)).await;
    let first = until_pods(&desk, "grows", 2, 0).await;
    scale(&desk, "grows", 5).await;
    let more = until_pods(&desk, "grows", 4, 1).await;
    assert!(first.iter().all(|name| more.contains(name)), "those that ran go on: {first:?} {more:?}");
    let told = |w: &usher_api::kueue::Workload| {
        said(w, "ResizeRequested").is_some_and(|(status, _, message)| {
            status == "True" && message == "2 of 3 added replicas admitted, waiting for 1 cpu in flavor plain"
        })
    };
    let workload = desk.until("grows", "says what it waits for", told).await;
    assert!(said(&workload, "Evicted").is_none());
    desk.delete("other").await;
    until_pods(&desk, "grows", 5, 0).await;
    let done = |w: &usher_api::kueue::Workload| {
        said(w, "ResizeRequested").is_some_and(|(status, ..)| status == "False") && w.spec.pod_sets[0].count == 5
    };
    desk.until("grows", "has its size", done).await;
    until("no slice is left", async || (slices(&desk).await == 0).then_some(())).await;
    assert!(!is_suspended(&desk.world.job("grows").await));
}

#[tokio::test(start_paused = true)]
async fn a_running_job_shrinks_and_others_get_its_quota_at_once() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit_as(elastic(&desk, "shrinks", 4)).await;
    let before = until_pods(&desk, "shrinks", 4, 0).await;
    desk.submit(Queued { name: "next", cpu: "3", ..Default::default() }).await;
    desk.until_waits("next", "WaitingForQuota").await;
    scale(&desk, "shrinks", 1).await;
    desk.until_runs("next").await;
    let left = until_pods(&desk, "shrinks", 1, 0).await;
    assert!(before.contains(&left[0]), "it is one of those that ran");
    let workload = desk.until("shrinks", "has its size", |w| w.spec.pod_sets[0].count == 1).await;
    assert!(said(&workload, "Evicted").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_that_is_preempted_leaves_whole_and_comes_back_at_its_wanted_size() {
    let desk = desk().await;
    desk.queue("q", "3", json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    desk.class("high", 9).await;
    desk.submit_as(elastic(&desk, "grows", 1)).await;
    until_pods(&desk, "grows", 1, 0).await;
    scale(&desk, "grows", 5).await;
    until_pods(&desk, "grows", 3, 2).await;
    desk.submit(Queued { name: "urgent", class: "high", cpu: "3", ..Default::default() }).await;
    desk.until_runs("urgent").await;
    desk.until_rests("grows").await;
    until("no slice is left", async || (slices(&desk).await == 0).then_some(())).await;
    let workload = desk.until("grows", "asks for all it wants", |w| w.spec.pod_sets[0].count == 5).await;
    assert!(workload.status.admission.is_none());
    desk.delete("urgent").await;
    scale(&desk, "grows", 3).await;
    until_pods(&desk, "grows", 3, 0).await;
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_deleted_while_it_grows_leaves_nothing() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    desk.submit_as(elastic(&desk, "grows", 1)).await;
    until_pods(&desk, "grows", 1, 0).await;
    scale(&desk, "grows", 4).await;
    until_pods(&desk, "grows", 2, 2).await;
    desk.delete("grows").await;
    desk.until_nothing_is_left().await;
    desk.submit(Queued { name: "next", cpu: "2", ..Default::default() }).await;
    desk.until_runs("next").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_replaced_takes_the_place_that_came_free() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    let before = until_pods(&desk, "j", 2, 0).await;
    desk.world.pods().delete(&before[0], &Default::default()).await.expect("delete it");
    let now = until("another was let go", async || {
        let (now, waiting) = pods(&desk, "j").await;
        (now.len() == 2 && waiting.is_empty() && !now.contains(&before[0])).then_some(now)
    })
    .await;
    assert!(now.contains(&before[1]));
}

#[tokio::test(start_paused = true)]
async fn controllers_stopped_while_a_job_grows_count_every_replica_once() {
    for moment in 0..either(25, 2) {
        let mut desk = desk().await;
        desk.queue("q", "6", json!({})).await;
        desk.submit_as(elastic(&desk, "grows", 1)).await;
        until_pods(&desk, "grows", 1, 0).await;
        scale(&desk, "grows", 4).await;
        for _ in 0..moment * 7 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(moment * either(0, 100))).await;
        desk.world.stop_controllers().await;
        desk.world.start_controllers();
        until_pods(&desk, "grows", 4, 0).await;
        let done = |w: &usher_api::kueue::Workload| w.spec.pod_sets[0].count == 4 && w.status.folded_slices.is_empty();
        desk.until("grows", "has its size", done).await;
        // Two are left for others, neither more nor fewer.
        desk.submit(Queued { name: "fits", cpu: "2", ..Default::default() }).await;
        desk.until_runs("fits").await;
        desk.submit(Queued { name: "late", ..Default::default() }).await;
        desk.until_waits("late", "WaitingForQuota").await;
    }
}
