//! Work that changes while it waits or runs, and configuration that changes under it.

use serde_json::json;

use super::desk::*;
use super::world::until;

#[tokio::test(start_paused = true)]
async fn a_waiting_job_that_asks_for_less_is_looked_at_again_at_once() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    desk.submit(Queued { name: "big", cpu: "8", ..Default::default() }).await;
    let why = desk.until_waits("big", "ExceedsMaxQuota").await;
    assert!(why.contains("cpu"), "{why}");
    let smaller = json!([{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "2"}}}]);
    desk.edit_job("big", json!({"spec": {"template": {"spec": {"containers": smaller}}}})).await;
    desk.until_runs("big").await;
    let workload = desk.until_admitted("big").await;
    let used = &workload.status.admission.as_ref().expect("it").pod_set_assignments[0].resource_usage;
    assert_eq!(serde_json::to_value(used).expect("json"), json!({"cpu": "2"}));
}

#[tokio::test(start_paused = true)]
async fn a_user_suspends_a_running_job_shrinks_it_and_runs_it_again() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit(Queued { cpu: "4", ..Default::default() }).await;
    desk.until_runs("j").await;
    desk.submit(Queued { name: "other", cpu: "3", ..Default::default() }).await;
    desk.until_waits("other", "WaitingForQuota").await;
    desk.edit_job("j", json!({"spec": {"suspend": true}})).await;
    let workload = desk.until("j", "is withdrawn", |w| w.spec.active == Some(false) && !is(w, "QuotaReserved")).await;
    assert_eq!(said(&workload, "Evicted").expect("it").1, "DeactivatedDueToJobSuspended");
    desk.until_runs("other").await;
    let resting = desk.until_rests("j").await;
    assert!(is_suspended(&resting), "nobody starts it again but its owner");
    let smaller = json!([{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]);
    desk.edit_job("j", json!({"spec": {"template": {"spec": {"containers": smaller}}}})).await;
    desk.edit_job("j", json!({"spec": {"suspend": false}})).await;
    desk.until_runs("j").await;
    let workload = desk.until_admitted("j").await;
    assert_eq!(workload.spec.active, Some(true));
    let used = &workload.status.admission.as_ref().expect("it").pod_set_assignments[0].resource_usage;
    assert_eq!(serde_json::to_value(used).expect("json"), json!({"cpu": "1"}));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_job_moves_to_another_queue() {
    let desk = desk().await;
    desk.queue("full", "0", json!({})).await;
    desk.queue("free", "1", json!({})).await;
    desk.submit(Queued { queue: "full", ..Default::default() }).await;
    desk.until_waits("j", "ExceedsMaxQuota").await;
    desk.edit_job("j", json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "free"}}})).await;
    desk.until_runs("j").await;
    assert_eq!(desk.until_admitted("j").await.status.admission.expect("it").cluster_queue, "free");
}

#[tokio::test(start_paused = true)]
async fn quota_cut_below_use_stops_nobody_and_adds_nobody() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    desk.submit(Queued { name: "a", cpu: "3", runs: Some("100"), ..Default::default() }).await;
    desk.until_runs("a").await;
    let cut = |cpu: &str| {
        json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
        {"name": "plain", "resources": [{"name": "cpu", "nominalQuota": cpu}]}]}]})
    };
    desk.edit_queue("q", cut("1")).await;
    desk.submit(Queued { name: "b", runs: Some("5"), ..Default::default() }).await;
    let why = desk.until_waits("b", "WaitingForQuota").await;
    assert_eq!(
        why,
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor plain, 1 more needed"
    );
    desk.world.until_condition("a", "Complete").await;
    desk.world.until_condition("b", "Complete").await;
    assert!(said(&desk.workload_of("a").await.expect("it"), "Evicted").is_none());
}

#[tokio::test(start_paused = true)]
async fn configuration_that_comes_late_is_enough() {
    let desk = desk().await;
    desk.submit(Queued { runs: Some("5"), ..Default::default() }).await;
    let why = desk.until_waits("j", "Misconfigured").await;
    assert_eq!(why, "LocalQueue q doesn't exist");
    desk.queue("q", "1", json!({})).await;
    desk.world.until_condition("j", "Complete").await;
}

#[tokio::test(start_paused = true)]
async fn a_held_queue_admits_nobody_and_lets_the_running_go_on() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    desk.submit(Queued { name: "a", runs: Some("50"), ..Default::default() }).await;
    desk.until_runs("a").await;
    desk.edit_queue("q", json!({"stopPolicy": "Hold"})).await;
    desk.submit(Queued { name: "b", runs: Some("5"), ..Default::default() }).await;
    desk.until_waits("b", "Suspended").await;
    desk.world.until_condition("a", "Complete").await;
    assert!(is_suspended(&desk.world.job("b").await));
    desk.edit_queue("q", json!({"stopPolicy": "None"})).await;
    desk.world.until_condition("b", "Complete").await;
}

#[tokio::test(start_paused = true)]
async fn a_class_that_changes_changes_who_is_next() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    desk.class("low", 1).await;
    desk.class("high", 100).await;
    desk.submit(Queued { name: "now", runs: Some("60"), ..Default::default() }).await;
    desk.until_runs("now").await;
    desk.submit(Queued { name: "a", class: "low", ..Default::default() }).await;
    desk.world.pass(2).await;
    desk.submit(Queued { name: "b", class: "low", ..Default::default() }).await;
    desk.until_waits("b", "WaitingForQuota").await;
    desk.edit_job("b", json!({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}})).await;
    desk.until("b", "has the new priority", |w| w.spec.priority == Some(100)).await;
    desk.until_runs("b").await;
    assert!(!is(&desk.workload_of("a").await.expect("it"), "QuotaReserved"));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_in_a_queue_is_nobodys_business() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    desk.world.create("free", json!({}), json!({"test/runs": "1"})).await;
    desk.world.until_condition("free", "Complete").await;
    assert!(desk.workload_of("free").await.is_none());
    desk.world.create("held", json!({"suspend": true}), json!({})).await;
    desk.world.until_condition("held", "Suspended").await;
    assert!(is_suspended(&desk.world.job("held").await));
    until("still no workload", async || desk.workload_of("held").await.is_none().then_some(())).await;
}
