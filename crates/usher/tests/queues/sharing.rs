//! Two teams in a cohort: borrowing, reclaiming, preempting.

use serde_json::json;

use usher_controllers::queueing::policy::{FairSharing, Policy};

use super::desk::*;

fn team() -> serde_json::Value {
    json!({"cohortName": "all", "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}})
}

#[tokio::test(start_paused = true)]
async fn a_team_borrows_what_the_other_leaves_and_gives_it_back_when_asked() {
    let desk = desk().await;
    desk.queue("a", "2", team()).await;
    desk.queue("b", "2", team()).await;
    for name in ["a1", "a2", "a3", "a4"] {
        desk.submit(Queued { name, queue: "a", ..Default::default() }).await;
        desk.until_runs(name).await;
        desk.world.pass(2).await;
    }
    desk.submit(Queued { name: "b1", queue: "b", cpu: "2", ..Default::default() }).await;
    desk.until_runs("b1").await;
    for name in ["a3", "a4"] {
        let workload = desk.until(name, "was sent away", |w| is(w, "Preempted")).await;
        let (_, reason, message) = said(&workload, "Preempted").expect("it");
        assert_eq!(reason, "InCohortReclamation", "the newest go first");
        assert!(message.ends_with("preemptor path: /all/b; preemptee path: /all/a"), "{message}");
        desk.until_rests(name).await;
    }
    for name in ["a1", "a2"] {
        assert!(is(&desk.workload_of(name).await.expect("it"), "Admitted"), "{name} is within its own quota");
    }
    let why = desk.until_waits("a4", "WaitingForQuota").await;
    assert!(why.contains("insufficient unused quota for cpu in flavor plain"), "{why}");
    desk.delete("b1").await;
    desk.until_runs("a3").await;
    desk.until_runs("a4").await;
}

#[tokio::test(start_paused = true)]
async fn the_important_take_the_place_of_the_less_important_and_no_more() {
    let desk = desk().await;
    desk.queue("a", "3", team()).await;
    desk.class("low", 1).await;
    desk.class("high", 9).await;
    for name in ["l1", "l2", "l3"] {
        desk.submit(Queued { name, queue: "a", class: "low", ..Default::default() }).await;
        desk.until_runs(name).await;
        desk.world.pass(2).await;
    }
    desk.submit(Queued { name: "h", queue: "a", class: "high", cpu: "2", ..Default::default() }).await;
    desk.until_runs("h").await;
    for name in ["l2", "l3"] {
        let workload = desk.until(name, "was sent away", |w| is(w, "Preempted")).await;
        assert_eq!(said(&workload, "Preempted").expect("it").1, "InClusterQueue");
    }
    assert!(is(&desk.workload_of("l1").await.expect("it"), "Admitted"));
}

#[tokio::test(start_paused = true)]
async fn room_that_victims_make_goes_to_whom_they_left_for() {
    let desk = desk().await;
    desk.queue("a", "2", team()).await;
    desk.class("low", 1).await;
    desk.class("high", 9).await;
    let mut slow = desk.job(&Queued { name: "slow", queue: "a", class: "low", cpu: "2", ..Default::default() });
    slow["spec"]["template"]["metadata"]["annotations"] = json!({"test/stops-after": "25"});
    desk.submit_as(slow).await;
    desk.until_runs("slow").await;
    desk.submit(Queued { name: "high", queue: "a", class: "high", cpu: "2", ..Default::default() }).await;
    let why = desk.until_waits("high", "WaitingForPreemptedWorkloads").await;
    assert!(!why.is_empty());
    // Fits into what is free at no moment before the victim has gone; must not slip in when it has.
    desk.submit(Queued { name: "thief", queue: "a", class: "low", ..Default::default() }).await;
    desk.until_runs("high").await;
    assert!(!is(&desk.workload_of("thief").await.expect("it"), "QuotaReserved"));
    assert!(is_suspended(&desk.world.job("thief").await));
}

#[tokio::test(start_paused = true)]
async fn with_fair_sharing_who_borrows_more_gives_way() {
    let policy = Policy { fair_sharing: Some(FairSharing::default()), ..Policy::default() };
    let desk = desk_with(policy).await;
    let share = json!({"cohortName": "all", "preemption": {"reclaimWithinCohort": "Any"}});
    desk.queue("a", "0", share.clone()).await;
    desk.queue("b", "0", share.clone()).await;
    desk.queue("lender", "4", json!({"cohortName": "all"})).await;
    for name in ["a1", "a2", "a3", "a4"] {
        desk.submit(Queued { name, queue: "a", ..Default::default() }).await;
        desk.until_runs(name).await;
        desk.world.pass(2).await;
    }
    for name in ["b1", "b2"] {
        desk.submit(Queued { name, queue: "b", ..Default::default() }).await;
        desk.until_runs(name).await;
    }
    for name in ["a3", "a4"] {
        let workload = desk.until(name, "was sent away", |w| is(w, "Preempted")).await;
        assert_eq!(said(&workload, "Preempted").expect("it").1, "InCohortFairSharing");
    }
    // Both have half now: a third of b's would be more than its share.
    desk.submit(Queued { name: "b3", queue: "b", ..Default::default() }).await;
    desk.until_waits("b3", "WaitingForQuota").await;
    for name in ["a1", "a2", "b1", "b2"] {
        assert!(is(&desk.workload_of(name).await.expect("it"), "Admitted"), "{name} stays");
    }
}
