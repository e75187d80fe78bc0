//! Elastic jobs that race: slices belong to the Parent, go to the flavor of the Variant that is admitted and are folded into that; the
//! others ask for as much, and a migration moves the job at the size that it has.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use usher_api::kueue::{ClusterQueue, Workload};

use super::desk::*;
use super::race::*;
use super::world::until;

fn upgrade_only() -> Value {
    json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}}})
}

fn elastic(desk: &Desk, name: &str, pods: i32) -> Value {
    let mut job = desk.job(&Queued { name, pods, ..Default::default() });
    job["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
    job["spec"].as_object_mut().expect("a spec").remove("completions");
    job
}

async fn scale(desk: &Desk, job: &str, parallelism: i32) {
    desk.edit_job(job, json!({"spec": {"parallelism": parallelism}})).await;
}

/// Names of its pods that were let go, all of them for this flavor, once there are so many and so many wait at their gates.
async fn until_pods_on(desk: &Desk, job: &str, flavor: &str, free: usize, gated: usize) -> Vec<String> {
    until(&format!("{job} has {free} pods on {flavor} and {gated} at their gates"), async || {
        let pods = desk.world.pods_of(job).await;
        let live: Vec<&Pod> = pods.iter().filter(|pod| super::world::is_active(pod)).collect();
        let spec = |pod: &Pod| serde_json::to_value(&pod.spec).expect("json");
        let (waiting, running): (Vec<&Pod>, Vec<&Pod>) =
            live.into_iter().partition(|pod| spec(pod)["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()));
        let there = running.iter().all(|pod| spec(pod)["nodeSelector"]["type"] == flavor);
        let mut names: Vec<String> = running.iter().map(|pod| pod.name_any()).collect();
        names.sort();
        (there && (running.len(), waiting.len()) == (free, gated)).then_some(names)
    })
    .await
}

async fn slices(desk: &Desk) -> Vec<Workload> {
    let params = ListParams::default().labels("kueue.x-k8s.io/workload-slice=true");
    desk.workloads().list(&params).await.expect("workloads").items
}

async fn until_no_slices(desk: &Desk) {
    until("no slice is left", async || slices(desk).await.is_empty().then_some(())).await;
}

/// What it asks for, and what it was admitted with.
fn size(workload: &Workload) -> (i32, i32) {
    let sets = workload.status.admission.iter().flat_map(|a| &a.pod_set_assignments);
    (workload.spec.pod_sets[0].count, sets.map(|set| set.count.unwrap_or(0)).sum())
}

async fn until_sizes(desk: &Desk, job: &str, parent: (i32, i32), variants: &[(&str, (i32, i32))]) {
    desk.until(job, &format!("has the size {parent:?}"), |w| size(w) == parent).await;
    for (name, wanted) in variants {
        until_variant(desk, job, name, &format!("has the size {wanted:?}"), |w| size(w) == *wanted).await;
    }
}

fn told(message: &str) -> impl Fn(&Workload) -> bool {
    let message = message.to_owned();
    move |w| said(w, "ResizeRequested").is_some_and(|(_, _, told)| told == message)
}

/// Exactly so much cpu is left of the flavor: a Job of as much that may go nowhere else runs, and one more cpu waits.
async fn until_left_of(desk: &Desk, flavor: &str, cpu: i32) {
    let constrained = async |name: &str, cpu: &str| {
        let mut job = desk.job(&Queued { name, cpu, ..Default::default() });
        job["spec"]["template"]["spec"]["nodeSelector"] = json!({"type": flavor});
        desk.submit_as(job).await;
    };
    if cpu > 0 {
        constrained("fits", &cpu.to_string()).await;
        desk.until_runs("fits").await;
    }
    constrained("late", "1").await;
    desk.until("late", "waits", |w| said(w, "QuotaReserved").is_some_and(|(status, ..)| status == "False")).await;
    desk.world.pass(30).await;
    assert!(!is(&desk.workload_of("late").await.expect("it"), "QuotaReserved"), "only {cpu} of {flavor} are left");
}

#[tokio::test(start_paused = true)]
async fn slices_belong_to_the_parent_take_its_variants_flavor_and_are_folded_into_that() {
    let desk = racing(&[("a", "1"), ("b", "4")], upgrade_only()).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    let first = until_pods_on(&desk, "j", "b", 2, 0).await;
    scale(&desk, "j", 5).await;
    // One more would fit in flavor a; but it is not there that the job is.
    let more = until_pods_on(&desk, "j", "b", 4, 1).await;
    assert!(first.iter().all(|name| more.contains(name)), "those that ran go on");
    let message = "2 of 3 added replicas admitted, waiting for 1 cpu in flavor b";
    let parent = desk.until("j", "says what it waits for", told(message)).await;
    desk.world.pass(60).await;
    let waiting = slices(&desk).await;
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].parent_uid(), parent.metadata.uid.as_deref());
    let variant = until_variant(&desk, "j", "b", "has what was folded", |w| size(w) == (4, 4)).await;
    assert_eq!(variant.status.admission, desk.workload_of("j").await.expect("it").status.admission, "mirrored");
    until_variant(&desk, "j", "a", "asks for as much", |w| size(w) == (4, 0)).await;
    set_quota(&desk, &[("a", "1"), ("b", "6")]).await;
    until_pods_on(&desk, "j", "b", 5, 0).await;
    until_sizes(&desk, "j", (5, 5), &[("b", (5, 5)), ("a", (5, 0))]).await;
    until_no_slices(&desk).await;
    let parent = desk.until("j", "is done", told("All 5 replicas are admitted")).await;
    assert!(said(&parent, "Evicted").is_none());
    until_left_of(&desk, "b", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_migration_moves_an_elastic_job_at_its_current_size() {
    let desk = racing(&[("a", "1"), ("b", "4")], upgrade_only()).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods_on(&desk, "j", "b", 2, 0).await;
    scale(&desk, "j", 6).await;
    let before = until_pods_on(&desk, "j", "b", 4, 2).await;
    until_variant(&desk, "j", "a", "asks for what it has now", |w| size(w) == (4, 0)).await;
    // Enough for the four that run, not for the six that are wanted.
    set_quota(&desk, &[("a", "5"), ("b", "4")]).await;
    let after = until_pods_on(&desk, "j", "a", 5, 1).await;
    assert!(before.iter().all(|name| !after.contains(name)), "it was restarted there");
    desk.until("j", "waits for the rest there", told("1 of 2 added replicas admitted, waiting for 1 cpu in flavor a"))
        .await;
    until_sizes(&desk, "j", (4, 5), &[("a", (5, 5))]).await;
    set_quota(&desk, &[("a", "9"), ("b", "4")]).await;
    until_pods_on(&desk, "j", "a", 6, 0).await;
    until_sizes(&desk, "j", (6, 6), &[("a", (6, 6)), ("b", (6, 0))]).await;
    until_no_slices(&desk).await;
    assert_eq!(active(&desk.workload_of("j").await.expect("it")), ["a"]);
    until_left_of(&desk, "a", 3).await;
}

#[tokio::test(start_paused = true)]
async fn scaled_down_its_variant_gives_quota_back_at_once_and_a_smaller_size_may_move_up() {
    let desk = racing(&[("a", "2"), ("b", "4")], upgrade_only()).await;
    desk.submit_as(elastic(&desk, "j", 4)).await;
    let before = until_pods_on(&desk, "j", "b", 4, 0).await;
    scale(&desk, "j", 3).await;
    let left = until_pods_on(&desk, "j", "b", 3, 0).await;
    assert!(left.iter().all(|name| before.contains(name)), "never stopped");
    until_sizes(&desk, "j", (3, 3), &[("b", (3, 3)), ("a", (3, 0))]).await;
    // Two fit into the better flavor.
    scale(&desk, "j", 2).await;
    until_pods_on(&desk, "j", "a", 2, 0).await;
    until_sizes(&desk, "j", (2, 2), &[("a", (2, 2))]).await;
    until_left_of(&desk, "b", 4).await;
}

#[tokio::test(start_paused = true)]
async fn preempted_it_leaves_whole_and_comes_back_at_its_wanted_size() {
    let desk = desk().await;
    desk.class("high", 9).await;
    let mut spec = upgrade_only();
    spec["preemption"] = json!({"withinClusterQueue": "LowerPriority"});
    race_in(&desk, &[("a", "0"), ("b", "4")], spec).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods_on(&desk, "j", "b", 2, 0).await;
    scale(&desk, "j", 6).await;
    until_pods_on(&desk, "j", "b", 4, 2).await;
    desk.submit(Queued { name: "urgent", class: "high", cpu: "4", ..Default::default() }).await;
    until_runs_on(&desk, "urgent", "b").await;
    until_no_slices(&desk).await;
    until_sizes(&desk, "j", (6, 0), &[("a", (6, 0)), ("b", (6, 0))]).await;
    desk.delete("urgent").await;
    set_quota(&desk, &[("a", "0"), ("b", "7")]).await;
    until_pods_on(&desk, "j", "b", 6, 0).await;
    until_left_of(&desk, "b", 1).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_policy_it_keeps_its_size_and_grows_as_a_regular_workload() {
    let desk = racing(&[("a", "0"), ("b", "4")], upgrade_only()).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods_on(&desk, "j", "b", 2, 0).await;
    scale(&desk, "j", 6).await;
    let before = until_pods_on(&desk, "j", "b", 4, 2).await;
    let api: kube::Api<ClusterQueue> = kube::Api::all(desk.world.client.clone());
    let patch = Patch::Merge(json!({"spec": {"concurrentAdmission": null}}));
    api.patch("q", &PatchParams::default(), &patch).await.expect("remove the policy");
    until("the variants are gone", async || variant(&desk, "j", "b").await.is_none().then_some(())).await;
    set_quota(&desk, &[("a", "0"), ("b", "8")]).await;
    let after = until_pods_on(&desk, "j", "b", 6, 0).await;
    assert!(before.iter().all(|name| after.contains(name)), "never stopped");
    desk.until("j", "has its size", |w| size(w) == (6, 6)).await;
    until_no_slices(&desk).await;
    until_left_of(&desk, "b", 2).await;
}

#[tokio::test(start_paused = true)]
async fn controllers_stopped_while_it_grows_and_moves_count_every_replica_once() {
    for moment in 0..16 {
        let mut desk = racing(&[("a", "0"), ("b", "6")], upgrade_only()).await;
        desk.submit_as(elastic(&desk, "j", 1)).await;
        until_pods_on(&desk, "j", "b", 1, 0).await;
        let restart = async |desk: &mut Desk, after: usize| {
            for _ in 0..after {
                tokio::task::yield_now().await;
            }
            desk.world.stop_controllers().await;
            desk.world.start_controllers();
        };
        scale(&desk, "j", 4).await;
        restart(&mut desk, moment * 11).await;
        until_pods_on(&desk, "j", "b", 4, 0).await;
        until_sizes(&desk, "j", (4, 4), &[("a", (4, 0)), ("b", (4, 4))]).await;
        set_quota(&desk, &[("a", "5"), ("b", "6")]).await;
        restart(&mut desk, moment * 11).await;
        until_pods_on(&desk, "j", "a", 4, 0).await;
        until_sizes(&desk, "j", (4, 4), &[("a", (4, 4)), ("b", (4, 0))]).await;
        until_no_slices(&desk).await;
        until_left_of(&desk, "a", 1).await;
    }
}
