//! Deletion at every step: nothing is leaked, nothing hangs, quota comes back.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use super::desk::*;

#[tokio::test(start_paused = true)]
async fn a_job_deleted_while_it_waits_takes_its_workload_along() {
    let desk = desk().await;
    desk.queue("q", "0", json!({})).await;
    desk.submit(Queued::default()).await;
    desk.until_waits("j", "ExceedsMaxQuota").await;
    desk.delete("j").await;
    desk.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_deleted_while_it_runs_frees_its_quota() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    for (n, how) in [DeleteParams::background(), DeleteParams::foreground()].into_iter().enumerate() {
        let name = format!("j{n}");
        desk.submit(Queued { name: &name, ..Default::default() }).await;
        desk.until_runs(&name).await;
        desk.world.jobs().delete(&name, &how).await.expect("delete it");
        desk.until_nothing_is_left().await;
    }
    desk.submit(Queued { name: "next", ..Default::default() }).await;
    desk.until_runs("next").await;
}

#[tokio::test(start_paused = true)]
async fn a_job_deleted_between_quota_and_start_frees_its_quota() {
    let desk = desk().await;
    desk.check("never").await;
    desk.queue("q", "1", json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "never"}]}})).await;
    desk.submit(Queued { name: "a", ..Default::default() }).await;
    desk.until("a", "has quota", |w| is(w, "QuotaReserved")).await;
    desk.delete("a").await;
    desk.submit(Queued { name: "b", ..Default::default() }).await;
    desk.until("b", "has quota", |w| is(w, "QuotaReserved")).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_deleted_and_made_again_under_its_name_starts_afresh() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    for _ in 0..3 {
        desk.submit(Queued::default()).await;
        let job = desk.until_runs("j").await;
        let workload = desk.until_admitted("j").await;
        assert_eq!(workload.metadata.owner_references.as_ref().expect("an owner")[0].uid, job.uid().expect("a uid"));
        desk.delete("j").await;
    }
    desk.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_deleted_under_a_running_job_stops_it_and_it_queues_again() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    desk.submit(Queued::default()).await;
    desk.until_runs("j").await;
    let first = desk.until_admitted("j").await;
    desk.workloads().delete(&first.name_any(), &DeleteParams::default()).await.expect("delete it");
    let other = |w: &usher_api::kueue::Workload| w.metadata.uid != first.metadata.uid && is(w, "Admitted");
    desk.until("j", "is made anew and admitted", other).await;
    desk.until_runs("j").await;
}

#[tokio::test(start_paused = true)]
async fn an_orphaned_workload_is_finished_and_frees_its_quota() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    desk.submit(Queued::default()).await;
    desk.until_runs("j").await;
    let orphan = DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Orphan), ..Default::default() };
    desk.world.jobs().delete("j", &orphan).await.expect("delete it");
    let left = desk.until("j", "is finished", |w| is(w, "Finished")).await;
    assert_eq!(said(&left, "Finished").expect("it").1, "OwnerNotFound");
    desk.submit(Queued { name: "next", ..Default::default() }).await;
    desk.until_runs("next").await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_is_deactivated_by_hand_and_comes_back_by_hand() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    desk.submit(Queued::default()).await;
    desk.until_runs("j").await;
    let name = desk.until_admitted("j").await.name_any();
    let set = async |active: bool| {
        let patch = kube::api::Patch::Merge(json!({"spec": {"active": active}}));
        desk.workloads().patch(&name, &Default::default(), &patch).await.expect("set it");
    };
    set(false).await;
    desk.until("j", "has left", |w| is(w, "Evicted") && !is(w, "QuotaReserved")).await;
    desk.until_rests("j").await;
    set(true).await;
    desk.until_runs("j").await;
}
