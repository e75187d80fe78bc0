//! What becomes of Variants when their Parent, their queue or their neighbours change; and that never two of them are admitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use serde_json::{Value, json};
use usher_api::kueue::Workload;
use usher_controllers::queueing::policy::{PodsReady, Policy};

use super::desk::*;
use super::race::*;
use super::world::{either, until};

fn upgrade_only() -> Value {
    json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}}})
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_finishes_its_variants_and_frees_all_they_held() {
    let desk = racing(&[("a", "1"), ("b", "1")], upgrade_only()).await;
    for name in ["first", "second", "third", "fourth"] {
        desk.submit(Queued { name, runs: Some("60"), ..Default::default() }).await;
    }
    for name in ["first", "second", "third", "fourth"] {
        desk.world.until_condition(name, "Complete").await;
        for flavor in ["a", "b"] {
            until_variant(&desk, name, flavor, "is finished", |w| is(w, "Finished")).await;
        }
    }
    for name in ["first", "second", "third", "fourth"] {
        desk.delete(name).await;
    }
    desk.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_says_what_its_variants_wait_for() {
    let desk = racing(&[("a", "1"), ("b", "1")], upgrade_only()).await;
    desk.submit(Queued { cpu: "4", ..Default::default() }).await;
    let both = |w: &Workload| {
        said(w, "QuotaReserved").is_some_and(|(_, reason, why)| {
            reason == "ExceedsMaxQuota"
                && why.starts_with("a: couldn't assign flavors")
                && why.contains("; b: couldn't assign flavors")
        })
    };
    desk.until("j", "says what both wait for", both).await;
}

#[tokio::test(start_paused = true)]
async fn a_better_variant_that_loses_its_check_leaves_the_running_job_alone() {
    let desk = desk().await;
    desk.check("slow").await;
    let mut spec = upgrade_only();
    spec["admissionChecksStrategy"] = json!({"admissionChecks": [{"name": "slow", "onFlavors": ["a"]}]});
    race_in(&desk, &[("a", "1"), ("b", "1")], spec).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "b").await;
    let first = pods(&desk, "j").await;
    until_variant(&desk, "j", "a", "has quota", |w| is(w, "QuotaReserved")).await;
    say(&desk, "j", "a", json!({"name": "slow", "state": "Retry", "requeueAfterSeconds": either(60, 5)})).await;
    until_variant(&desk, "j", "a", "has left", |w| !is(w, "QuotaReserved")).await;
    until_variant(&desk, "j", "a", "tries again", |w| is(w, "QuotaReserved")).await;
    assert_eq!(pods(&desk, "j").await, first, "nothing happened to the running job");
    say(&desk, "j", "a", json!({"name": "slow", "state": "Ready"})).await;
    until_runs_on(&desk, "j", "a").await;
    until_active(&desk, "j", &["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_variant_stays_out_and_when_all_are_the_parent_is_deactivated() {
    let desk = desk().await;
    desk.check("slow").await;
    let mut spec = upgrade_only();
    spec["admissionChecksStrategy"] = json!({"admissionChecks": [{"name": "slow"}]});
    race_in(&desk, &[("a", "1"), ("b", "1")], spec).await;
    desk.submit(Queued::default()).await;
    until_variant(&desk, "j", "b", "has quota", |w| is(w, "QuotaReserved")).await;
    until_variant(&desk, "j", "a", "has quota", |w| is(w, "QuotaReserved")).await;
    say(&desk, "j", "a", json!({"name": "slow", "state": "Rejected"})).await;
    until_active(&desk, "j", &["b"]).await;
    desk.world.pass(60).await;
    until_active(&desk, "j", &["b"]).await;
    say(&desk, "j", "b", json!({"name": "slow", "state": "Rejected"})).await;
    let parent = desk.until("j", "is deactivated", |w| w.spec.active == Some(false)).await;
    let name = parent.name_any();
    desk.until("j", "has left", |w| is(w, "Evicted")).await;
    until_variant(&desk, "j", "b", "is reset", |w| said(w, "Evicted").is_some_and(|c| c.1 == "Deactivated")).await;
    let patch = Patch::Merge(json!({"spec": {"active": true}}));
    desk.workloads().patch(&name, &PatchParams::default(), &patch).await.expect("activate it");
    until_variant(&desk, "j", "b", "has quota again", |w| is(w, "QuotaReserved")).await;
    say(&desk, "j", "b", json!({"name": "slow", "state": "Ready"})).await;
    until_runs_on(&desk, "j", "b").await;
}

#[tokio::test(start_paused = true)]
async fn preemption_by_a_stranger_resets_the_parent() {
    let desk = desk().await;
    desk.class("high", 9).await;
    let spec = json!({"preemption": {"withinClusterQueue": "LowerPriority"}, "concurrentAdmission": {
        "migrationConstraints": {"mode": "UpgradeOnly"}, "explicitVariants": [
            {"name": "a", "allowedResourceFlavors": ["a"]},
            {"name": "b", "allowedResourceFlavors": ["b"], "createDelaySeconds": either(600, 8)}]}});
    race_in(&desk, &[("a", "0"), ("b", "1")], spec).await;
    desk.submit(Queued { name: "low", ..Default::default() }).await;
    desk.world.pass(either(610, 9)).await;
    until_runs_on(&desk, "low", "b").await;
    let before = desk.workload_of("low").await.expect("it").status.concurrent_admission.expect("it");
    assert!(before.first_admission_time.is_some());
    desk.submit(Queued { name: "high", class: "high", runs: Some("100"), ..Default::default() }).await;
    let high = until_variant(&desk, "high", "b", "waits for its time", |w| w.spec.active == Some(false)).await;
    assert!(!is(&high, "QuotaReserved"));
    desk.world.pass(either(590, 1)).await;
    until_runs_on(&desk, "high", "b").await;
    let low = until_active(&desk, "low", &["a"]).await;
    let noted = low.status.concurrent_admission.clone().expect("it");
    assert!(noted.reset_time > before.reset_time && noted.first_admission_time.is_none(), "{noted:?}");
    assert_eq!(said(&low, "Evicted").expect("it").1, "VariantEvicted");
    desk.world.pass(either(590, 1)).await;
    until_runs_on(&desk, "low", "b").await;
    let ran = desk.world.clock.now().duration_since(noted.reset_time.expect("it").0).as_secs();
    assert!(ran >= either(600, 8) as i64, "its delay counted anew: {ran}");
}

#[tokio::test(start_paused = true)]
async fn only_one_variant_of_a_parent_preempts_and_the_better_one_is_asked_first() {
    let desk = desk().await;
    desk.class("high", 9).await;
    let mut spec = upgrade_only();
    spec["preemption"] = json!({"withinClusterQueue": "LowerPriority"});
    race_in(&desk, &[("a", "1"), ("b", "1")], spec).await;
    let slow = async |name: &str| {
        let mut slow = desk.job(&Queued { name, ..Default::default() });
        slow["spec"]["template"]["metadata"]["annotations"] = json!({"test/stops-after": "30"});
        desk.submit_as(slow).await;
    };
    slow("x").await;
    until_runs_on(&desk, "x", "a").await;
    slow("y").await;
    until_runs_on(&desk, "y", "b").await;
    let first = pods(&desk, "y").await;
    desk.submit(Queued { name: "high", class: "high", ..Default::default() }).await;
    until_runs_on(&desk, "high", "a").await;
    assert_eq!(pods(&desk, "y").await, first, "nobody had to leave flavor b");
    assert!(said(&desk.workload_of("y").await.expect("it"), "Evicted").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_parent_whose_pods_are_not_ready_takes_its_variants_along_and_keeps_its_back_off() {
    let secs = |n: u64| super::world::secs(n as i64);
    let ready = PodsReady { timeout: secs(either(100, 8)), backoff_base: secs(either(60, 8)), ..PodsReady::default() };
    let desk = desk_with(Policy { pods_ready: Some(ready), ..Policy::default() }).await;
    race_in(&desk, &[("a", "1"), ("b", "0")], upgrade_only()).await;
    let mut job = desk.job(&Queued::default());
    job["spec"]["template"]["metadata"]["annotations"] = json!({"test/pending": "yes"});
    desk.submit_as(job).await;
    desk.until_admitted("j").await;
    let parent = desk.until("j", "was evicted and has left", |w| is(w, "Evicted") && !is(w, "QuotaReserved")).await;
    assert_eq!(said(&parent, "Evicted").expect("it").1, "PodsReadyTimeout");
    let at = parent.status.requeue_state.as_ref().and_then(|state| state.requeue_at.clone()).expect("a back-off").0;
    until_variant(&desk, "j", "a", "gave its quota back", |w| !is(w, "QuotaReserved") && w.spec.active == Some(false))
        .await;
    // Others may have it meanwhile.
    desk.submit(Queued { name: "other", runs: Some("5"), ..Default::default() }).await;
    desk.world.until_condition("other", "Complete").await;
    desk.until_admitted("j").await;
    assert!(desk.world.clock.now() >= at, "not before its time");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_queue_drains_the_job_and_takes_it_back() {
    let desk = racing(&[("a", "1"), ("b", "1")], upgrade_only()).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "a").await;
    desk.edit_queue("q", json!({"stopPolicy": "HoldAndDrain"})).await;
    desk.until_rests("j").await;
    until_variant(&desk, "j", "a", "gave its quota back", |w| !is(w, "QuotaReserved")).await;
    desk.edit_queue("q", json!({"stopPolicy": "None"})).await;
    until_runs_on(&desk, "j", "a").await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_suspends_a_racing_job_shrinks_it_and_runs_it_again() {
    let desk = racing(&[("a", "1"), ("b", "4")], upgrade_only()).await;
    desk.submit(Queued { cpu: "4", ..Default::default() }).await;
    until_runs_on(&desk, "j", "b").await;
    desk.edit_job("j", json!({"spec": {"suspend": true}})).await;
    desk.until("j", "is withdrawn", |w| w.spec.active == Some(false) && !is(w, "QuotaReserved")).await;
    until_variant(&desk, "j", "b", "has left", |w| !is(w, "QuotaReserved") && w.spec.active == Some(false)).await;
    desk.until_rests("j").await;
    let smaller = json!([{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]);
    desk.edit_job("j", json!({"spec": {"template": {"spec": {"containers": smaller}}}})).await;
    desk.edit_job("j", json!({"spec": {"suspend": false}})).await;
    until_runs_on(&desk, "j", "a").await;
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_it_waits_reaches_the_variants() {
    let desk = racing(&[("a", "1"), ("b", "1")], upgrade_only()).await;
    desk.class("high", 7).await;
    desk.submit(Queued { cpu: "4", ..Default::default() }).await;
    desk.until_waits("j", "ExceedsMaxQuota").await;
    desk.edit_job("j", json!({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}})).await;
    until_variant(&desk, "j", "b", "has the new priority", |w| w.spec.priority == Some(7)).await;
    let smaller = json!([{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]);
    desk.edit_job("j", json!({"spec": {"template": {"spec": {"containers": smaller}}}})).await;
    until_runs_on(&desk, "j", "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_moves_to_a_queue_without_the_policy_waits_there_as_one_workload() {
    let desk = racing(&[("a", "0"), ("b", "0")], upgrade_only()).await;
    desk.queue("plain", "1", json!({})).await;
    desk.submit(Queued::default()).await;
    desk.until_waits("j", "ExceedsMaxQuota").await;
    desk.edit_job("j", json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "plain"}}})).await;
    desk.until_runs("j").await;
    until("it has no variants", async || variant(&desk, "j", "a").await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn flavors_added_removed_and_reordered_change_the_variants() {
    let desk = racing(&[("a", "0"), ("b", "1")], upgrade_only()).await;
    desk.flavor("c", json!({"nodeLabels": {"type": "c"}})).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "b").await;
    // A better one comes: the job moves. The one it was on goes: nothing happens to it.
    set_quota(&desk, &[("c", "1"), ("a", "0"), ("b", "1")]).await;
    until_runs_on(&desk, "j", "c").await;
    set_quota(&desk, &[("c", "1"), ("a", "0")]).await;
    until("b is gone", async || variant(&desk, "j", "b").await.is_none().then_some(())).await;
    let before = pods(&desk, "j").await;
    // Another order: what was worse is better now.
    set_quota(&desk, &[("a", "0"), ("c", "1")]).await;
    until_active(&desk, "j", &["a", "c"]).await;
    assert_eq!(pods(&desk, "j").await, before);
    // The one it runs on goes: it leaves gently and goes on elsewhere.
    set_quota(&desk, &[("a", "1")]).await;
    until_runs_on(&desk, "j", "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_goes_leaves_the_job_running_where_it_is() {
    let desk = racing(&[("a", "0"), ("b", "1")], upgrade_only()).await;
    desk.submit(Queued { name: "runs", ..Default::default() }).await;
    until_runs_on(&desk, "runs", "b").await;
    let first = pods(&desk, "runs").await;
    desk.submit(Queued { name: "waits", ..Default::default() }).await;
    desk.until_waits("waits", "ExceedsMaxQuota").await;
    desk.edit_queue("q", json!({"concurrentAdmission": null})).await;
    for name in ["runs", "waits"] {
        let regular = |w: &Workload| w.label("kueue.x-k8s.io/concurrent-admission-parent").is_none();
        desk.until(name, "is regular", regular).await;
        until("it has no variants", async || variant(&desk, name, "b").await.is_none().then_some(())).await;
    }
    let runs = desk.workload_of("runs").await.expect("it");
    assert!(runs.status.variants.is_empty() && is(&runs, "Admitted"));
    assert_eq!(pods(&desk, "runs").await, first, "it was never stopped");
    desk.until_waits("waits", "WaitingForQuota").await;
    desk.delete("runs").await;
    until_runs_on(&desk, "waits", "b").await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_comes_lets_the_running_run_and_splits_the_waiting() {
    let desk = racing(&[("a", "1"), ("b", "0")], json!({})).await;
    desk.submit(Queued { name: "runs", ..Default::default() }).await;
    until_runs_on(&desk, "runs", "a").await;
    let first = pods(&desk, "runs").await;
    desk.submit(Queued { name: "waits", ..Default::default() }).await;
    desk.until_waits("waits", "WaitingForQuota").await;
    desk.edit_queue("q", upgrade_only()).await;
    until_active(&desk, "waits", &["a", "b"]).await;
    assert_eq!(pods(&desk, "runs").await, first);
    set_quota(&desk, &[("a", "1"), ("b", "1")]).await;
    until_runs_on(&desk, "waits", "b").await;
}

#[tokio::test(start_paused = true)]
async fn kueues_spelling_means_the_same() {
    let policy = json!({"concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors",
        "constraints": {"lastAcceptableFlavorName": "a"}}}});
    let desk = racing(&[("a", "0"), ("b", "0"), ("c", "1")], policy).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "c").await;
    until_active(&desk, "j", &["a", "c"]).await;
    set_quota(&desk, &[("a", "1"), ("b", "1"), ("c", "1")]).await;
    until_runs_on(&desk, "j", "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_variant_deleted_under_a_running_job_stops_it_and_it_starts_again() {
    let desk = racing(&[("a", "1"), ("b", "0")], upgrade_only()).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "a").await;
    let first = pods(&desk, "j").await;
    let name = variant(&desk, "j", "a").await.expect("it").name_any();
    desk.workloads().delete(&name, &DeleteParams::default()).await.expect("delete it");
    let again = async || {
        let now = pods(&desk, "j").await;
        (!now.is_empty() && now != first).then_some(())
    };
    until("it runs again", again).await;
    until_runs_on(&desk, "j", "a").await;
}

/// Looks at every change of every Workload, and remembers what must never be.
fn watch_over(desk: &Desk) -> Arc<Mutex<Vec<String>>> {
    let (api, faults) = (desk.workloads(), Arc::new(Mutex::new(Vec::new())));
    let noted = faults.clone();
    tokio::spawn(async move {
        let mut stream = watcher(api, watcher::Config::default()).applied_objects().boxed();
        let mut admitted: BTreeMap<String, BTreeMap<String, bool>> = BTreeMap::new();
        while let Ok(Some(workload)) = stream.try_next().await {
            let Some(parent) = workload.parent_uid() else { continue };
            let now = is(&workload, "Admitted") && !is(&workload, "Finished");
            let family = admitted.entry(parent.to_owned()).or_default();
            family.insert(workload.name_any(), now);
            let both: Vec<&String> = family.iter().filter(|(_, admitted)| **admitted).map(|(name, _)| name).collect();
            if both.len() > 1 {
                noted.lock().push(format!("admitted at once: {both:?}"));
            }
        }
    });
    faults
}

#[tokio::test(start_paused = true)]
async fn controllers_stopped_at_any_moment_of_a_migration_finish_it() {
    // Each round stops them a little later into the same story, so that every write is the last one once.
    for moment in 0..either(15, 3) {
        let mut desk = racing(&[("a", "0"), ("b", "1")], upgrade_only()).await;
        let faults = watch_over(&desk);
        desk.submit(Queued::default()).await;
        until_runs_on(&desk, "j", "b").await;
        set_quota(&desk, &[("a", "1"), ("b", "1")]).await;
        for _ in 0..moment * 8 {
            tokio::task::yield_now().await;
        }
        if moment % 2 == 1 {
            tokio::time::sleep(std::time::Duration::from_millis(moment * either(2, 100))).await;
        }
        desk.world.stop_controllers().await;
        desk.world.start_controllers();
        until_runs_on(&desk, "j", "a").await;
        until_active(&desk, "j", &["a"]).await;
        until_variant(&desk, "j", "b", "holds nothing", |w| !is(w, "QuotaReserved")).await;
        assert_eq!(*faults.lock(), Vec::<String>::new(), "stopped at {moment}");
        let all = desk.workloads().list(&ListParams::default()).await.expect("workloads").items;
        assert_eq!(all.len(), 3, "a Parent and two Variants, stopped at {moment}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_gate_off_policies_are_ignored() {
    let policy = Policy { concurrent_admission: false, ..Policy::default() };
    let desk = desk_with(policy).await;
    race_in(&desk, &[("a", "0"), ("b", "1")], upgrade_only()).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "b").await;
    assert!(variant(&desk, "j", "a").await.is_none());
    set_quota(&desk, &[("a", "1"), ("b", "1")]).await;
    desk.world.pass(60).await;
    assert_eq!(flavor_of(&desk.world.job("j").await), "b", "nobody moves");
}

#[tokio::test(start_paused = true)]
async fn with_the_gate_turned_off_parents_become_regular_workloads_where_they_run() {
    let mut desk = racing(&[("a", "0"), ("b", "1")], upgrade_only()).await;
    desk.submit(Queued { name: "runs", ..Default::default() }).await;
    until_runs_on(&desk, "runs", "b").await;
    let first = pods(&desk, "runs").await;
    desk.submit(Queued { name: "waits", ..Default::default() }).await;
    until_active(&desk, "waits", &["a", "b"]).await;
    desk.world.stop_controllers().await;
    desk.world.set_queues(Policy { concurrent_admission: false, ..Policy::default() });
    desk.world.start_controllers();
    for name in ["runs", "waits"] {
        let regular = |w: &Workload| w.label("kueue.x-k8s.io/concurrent-admission-parent").is_none();
        desk.until(name, "is regular", regular).await;
        for flavor in ["a", "b"] {
            until("it has no variants", async || variant(&desk, name, flavor).await.is_none().then_some(())).await;
        }
    }
    assert_eq!(pods(&desk, "runs").await, first, "it was never stopped");
    desk.delete("runs").await;
    until_runs_on(&desk, "waits", "b").await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_too_long_takes_its_variants_along() {
    let desk = racing(&[("a", "0"), ("b", "1")], upgrade_only()).await;
    let mut job = desk.job(&Queued::default());
    job["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = json!("100");
    desk.submit_as(job).await;
    until_runs_on(&desk, "j", "b").await;
    let parent = desk.until("j", "was stopped", |w| w.spec.active == Some(false) && !is(w, "QuotaReserved")).await;
    assert_eq!(said(&parent, "Evicted").expect("it").1, "DeactivatedDueToMaximumExecutionTimeExceeded");
    for flavor in ["a", "b"] {
        let out = |w: &Workload| w.spec.active == Some(false) && !is(w, "QuotaReserved");
        until_variant(&desk, "j", flavor, "is out", out).await;
    }
    set_quota(&desk, &[("a", "1"), ("b", "1")]).await;
    desk.world.pass(600).await;
    assert!(is_suspended(&desk.world.job("j").await));
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_is_limited_itself_races_only_for_what_it_may_have() {
    let desk = racing(&[("a", "0"), ("b", "0"), ("c", "1")], upgrade_only()).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "c").await;
    let parent = desk.workload_of("j").await.expect("it");
    let limit = json!({"spec": {"admissionConstraints": {"allowedResourceFlavors": ["b", "c"]}}});
    desk.workloads().patch(&parent.name_any(), &PatchParams::default(), &Patch::Merge(limit)).await.expect("limit it");
    until_active(&desk, "j", &["b", "c"]).await;
    set_quota(&desk, &[("a", "1"), ("b", "1"), ("c", "1")]).await;
    until_runs_on(&desk, "j", "b").await;
    until("a is gone", async || variant(&desk, "j", "a").await.is_none().then_some(())).await;
}
