//! Variants and preemption: fungibility holds within a Variant, never between Variants, and a race goes on while victims leave.

use serde_json::{Value, json};

use super::desk::*;
use super::race::*;

/// A Job whose pods take a while to stop.
async fn submit_slow(desk: &Desk, name: &str) {
    let mut slow = desk.job(&Queued { name, ..Default::default() });
    slow["spec"]["template"]["metadata"]["annotations"] = json!({"test/stops-after": "100"});
    desk.submit_as(slow).await;
}

fn preempting(variants: Option<Value>) -> Value {
    let mut policy = json!({"migrationConstraints": {"mode": "UpgradeOnly"}});
    if let Some(variants) = variants {
        policy["explicitVariants"] = variants;
    }
    json!({"preemption": {"withinClusterQueue": "LowerPriority"}, "concurrentAdmission": policy,
        "flavorFungibility": {"whenCanPreempt": "TryNextFlavor"}})
}

#[tokio::test(start_paused = true)]
async fn a_better_variant_is_had_by_preemption_and_a_worse_one_runs_while_the_victims_leave() {
    let desk = desk().await;
    desk.class("high", 9).await;
    race_in(&desk, &[("a", "1"), ("b", "1")], preempting(None)).await;
    submit_slow(&desk, "low").await;
    until_runs_on(&desk, "low", "a").await;
    desk.submit(Queued { name: "high", class: "high", ..Default::default() }).await;
    // Between Variants the next flavor is no reason to spare the better one's victims; but the job need not wait for them to go.
    desk.until("low", "is told to go", |w| is(w, "Evicted")).await;
    until_runs_on(&desk, "high", "b").await;
    until_active(&desk, "high", &["a", "b"]).await;
    until_runs_on(&desk, "high", "a").await;
    until_runs_on(&desk, "low", "b").await;
}

#[tokio::test(start_paused = true)]
async fn within_a_variant_of_several_flavors_the_next_flavor_spares_the_victims() {
    let desk = desk().await;
    desk.class("high", 9).await;
    let variants = json!([{"name": "any", "allowedResourceFlavors": ["a", "b"]}]);
    race_in(&desk, &[("a", "1"), ("b", "1")], preempting(Some(variants))).await;
    submit_slow(&desk, "low").await;
    until_runs_on(&desk, "low", "a").await;
    let ran = pods(&desk, "low").await;
    desk.submit(Queued { name: "high", class: "high", ..Default::default() }).await;
    until_runs_on(&desk, "high", "b").await;
    desk.world.pass(600).await;
    assert_eq!(pods(&desk, "low").await, ran, "nobody had to go");
    assert_eq!(flavor_of(&desk.world.job("high").await), "b", "and within a Variant nobody moves");
}
