//! Concurrent admission in a strict queue: a Job is one place in line, all of its Variants are tried there, and those who only move up
//! hold nobody up.
//!
//! Creation times have whole seconds, and within one the uid decides who is first: Jobs here are submitted more than a second apart.

use serde_json::{Value, json};

use super::desk::*;
use super::race::*;

fn strict(mut spec: Value) -> Value {
    spec["queueingStrategy"] = json!("StrictFIFO");
    spec
}

fn upgrade_only() -> Value {
    strict(json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}}}))
}

fn explicit(variants: Value) -> Value {
    strict(
        json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}, "explicitVariants": variants}}),
    )
}

/// Later than everybody before it.
async fn submit(desk: &Desk, job: Queued<'_>) {
    desk.world.pass(2).await;
    desk.submit(job).await;
}

/// Waits because somebody is ahead.
async fn until_behind(desk: &Desk, job: &str) {
    let why = desk.until_waits(job, "PendingEvaluation").await;
    assert!(why.contains("is ahead"), "{why}");
}

async fn assert_rests(desk: &Desk, job: &str) {
    assert!(is_suspended(&desk.world.job(job).await), "{job} has overtaken");
}

#[tokio::test(start_paused = true)]
async fn siblings_are_one_place_and_all_of_the_heads_are_tried_before_the_line_waits() {
    let desk = racing(&[("a", "1"), ("b", "2")], upgrade_only()).await;
    submit(&desk, Queued { name: "big", cpu: "2", ..Default::default() }).await;
    until_runs_on(&desk, "big", "b").await;
    submit(&desk, Queued { name: "head", cpu: "2", ..Default::default() }).await;
    desk.until_waits("head", "ExceedsMaxQuota").await;
    submit(&desk, Queued { name: "small", ..Default::default() }).await;
    until_behind(&desk, "small").await;
    desk.world.pass(600).await;
    assert_rests(&desk, "small").await;
    desk.delete("big").await;
    until_runs_on(&desk, "head", "b").await;
    until_runs_on(&desk, "small", "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_variant_of_the_head_keeps_the_line_waiting() {
    let policy = explicit(json!([{"name": "a", "allowedResourceFlavors": ["a"]},
        {"name": "b", "allowedResourceFlavors": ["b"], "createDelaySeconds": 600}]));
    let desk = racing(&[("a", "1"), ("b", "1")], policy).await;
    submit(&desk, Queued { name: "old", cpu: "500m", ..Default::default() }).await;
    until_runs_on(&desk, "old", "a").await;
    submit(&desk, Queued { name: "head", ..Default::default() }).await;
    desk.until_waits("head", "WaitingForQuota").await;
    submit(&desk, Queued { name: "small", cpu: "100m", ..Default::default() }).await;
    until_behind(&desk, "small").await;
    desk.world.pass(580).await;
    assert_rests(&desk, "small").await;
    until_runs_on(&desk, "head", "b").await;
    until_runs_on(&desk, "small", "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_head_of_which_every_variant_is_delayed_keeps_its_place() {
    let policy = explicit(json!([{"name": "a", "allowedResourceFlavors": ["a"], "createDelaySeconds": 300},
        {"name": "b", "allowedResourceFlavors": ["b"], "createDelaySeconds": 600}]));
    let desk = desk().await;
    desk.class("high", 9).await;
    race_in(&desk, &[("a", "2"), ("b", "0")], policy).await;
    submit(&desk, Queued { name: "early", ..Default::default() }).await;
    desk.world.pass(200).await;
    submit(&desk, Queued { name: "head", class: "high", ..Default::default() }).await;
    until_active(&desk, "early", &["a"]).await;
    until_behind(&desk, "early").await;
    desk.world.pass(100).await;
    assert_rests(&desk, "early").await;
    until_runs_on(&desk, "head", "a").await;
    until_runs_on(&desk, "early", "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_variant_of_the_head_is_out_and_its_delayed_one_keeps_the_place() {
    let desk = desk().await;
    desk.check("slow").await;
    let mut policy = explicit(json!([{"name": "a", "allowedResourceFlavors": ["a"]},
        {"name": "b", "allowedResourceFlavors": ["b"], "createDelaySeconds": 600}]));
    policy["admissionChecksStrategy"] = json!({"admissionChecks": [{"name": "slow", "onFlavors": ["a"]}]});
    race_in(&desk, &[("a", "1"), ("b", "1")], policy).await;
    submit(&desk, Queued { name: "head", ..Default::default() }).await;
    until_variant(&desk, "head", "a", "has quota", |w| is(w, "QuotaReserved")).await;
    submit(&desk, Queued { name: "next", ..Default::default() }).await;
    say(&desk, "head", "a", json!({"name": "slow", "state": "Rejected"})).await;
    until_variant(&desk, "head", "a", "is out", |w| w.spec.active == Some(false) && !is(w, "QuotaReserved")).await;
    desk.world.pass(500).await;
    let next = variant(&desk, "next", "a").await.expect("it");
    assert!(!is(&next, "QuotaReserved"), "the head keeps its place");
    until_runs_on(&desk, "head", "b").await;
    until_variant(&desk, "next", "a", "has quota", |w| is(w, "QuotaReserved")).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_moves_up_holds_nobody_up_and_comes_after_the_head() {
    let desk = racing(&[("a", "0"), ("b", "2")], upgrade_only()).await;
    submit(&desk, Queued { name: "first", ..Default::default() }).await;
    until_runs_on(&desk, "first", "b").await;
    until_active(&desk, "first", &["a", "b"]).await;
    submit(&desk, Queued { name: "second", ..Default::default() }).await;
    until_runs_on(&desk, "second", "b").await;
    submit(&desk, Queued { name: "third", ..Default::default() }).await;
    submit(&desk, Queued { name: "small", cpu: "100m", ..Default::default() }).await;
    until_behind(&desk, "small").await;
    // The head comes before those who only want a better place.
    let ran = pods(&desk, "first").await;
    set_quota(&desk, &[("a", "1"), ("b", "2")]).await;
    until_runs_on(&desk, "third", "a").await;
    desk.delete("second").await;
    until_runs_on(&desk, "small", "b").await;
    assert_eq!(pods(&desk, "first").await, ran, "what there was of the better flavor was the head's");
    set_quota(&desk, &[("a", "2"), ("b", "2")]).await;
    until_runs_on(&desk, "first", "a").await;
}

#[tokio::test(start_paused = true)]
async fn what_the_head_asks_for_is_set_aside_in_every_flavor_before_anybody_moves_up() {
    let desk = racing(&[("a", "0"), ("b", "2")], upgrade_only()).await;
    submit(&desk, Queued { name: "first", ..Default::default() }).await;
    until_runs_on(&desk, "first", "b").await;
    let ran = pods(&desk, "first").await;
    submit(&desk, Queued { name: "head", cpu: "2", ..Default::default() }).await;
    desk.until_waits("head", "ExceedsMaxQuota").await;
    // One cpu of the better flavor would do for the first, but the head may use it when there is one more.
    set_quota(&desk, &[("a", "1"), ("b", "2")]).await;
    desk.world.pass(600).await;
    assert_eq!(pods(&desk, "first").await, ran);
    set_quota(&desk, &[("a", "3"), ("b", "2")]).await;
    until_runs_on(&desk, "head", "a").await;
    until_runs_on(&desk, "first", "a").await;
}
