//! Whoever counts workloads counts a Parent once, and never its Variants; those have figures of their own.

use kube::{Api, ResourceExt};
use serde_json::json;
use usher_api::kueue::{ClusterQueue, LocalQueue};
use usher_controllers::queueing::status::window::Line;

use super::desk::*;
use super::race::*;
use super::world::until;

/// The value of a metric whose labels contain these words, all series together.
fn metric(desk: &Desk, name: &str, labels: &[&str]) -> f64 {
    let mut registry = prometheus_client::registry::Registry::default();
    desk.world.outlook.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("metrics");
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

async fn until_metric(desk: &Desk, name: &str, labels: &[&str], wanted: f64) {
    until(&format!("{name}{labels:?} is {wanted}"), async || (metric(desk, name, labels) == wanted).then_some(()))
        .await;
}

/// pending, reserving, admitted: of the ClusterQueue and of the LocalQueue.
async fn counts(desk: &Desk) -> [[i32; 3]; 2] {
    let queue = Api::<ClusterQueue>::all(desk.world.client.clone()).get("q").await.expect("it").status;
    let local = Api::<LocalQueue>::namespaced(desk.world.client.clone(), "default").get("q").await.expect("it").status;
    [
        [queue.pending_workloads, queue.reserving_workloads, queue.admitted_workloads],
        [local.pending_workloads, local.reserving_workloads, local.admitted_workloads],
    ]
}

async fn until_counts(desk: &Desk, wanted: [i32; 3]) {
    until(&format!("the counts are {wanted:?}"), async || (counts(desk).await == [wanted; 2]).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_counts_once_and_its_variants_have_figures_of_their_own() {
    let spec = json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}}});
    let desk = racing(&[("a", "1"), ("b", "1")], spec).await;
    for (name, flavor) in [("first", "a"), ("second", "b")] {
        desk.submit(Queued { name, runs: Some("400"), ..Default::default() }).await;
        until_runs_on(&desk, name, flavor).await;
        desk.world.pass(2).await;
    }
    desk.submit(Queued { name: "third", runs: Some("400"), ..Default::default() }).await;
    desk.submit(Queued { name: "fourth", cpu: "5", ..Default::default() }).await;
    until_active(&desk, "third", &["a", "b"]).await;
    until_active(&desk, "fourth", &["a", "b"]).await;
    // The second runs on b and tries for a: it does not wait.
    until_counts(&desk, [2, 2, 2]).await;
    until_metric(&desk, "kueue_pending_workloads", &[], 2.0).await;
    until_metric(&desk, "kueue_reserving_active_workloads", &[], 2.0).await;
    until_metric(&desk, "kueue_admitted_active_workloads", &[], 2.0).await;
    until_metric(&desk, "kueue_quota_reserved_workloads_total", &[], 2.0).await;
    until_metric(&desk, "kueue_admitted_workloads_total", &[], 2.0).await;
    until_metric(&desk, "kueue_variant_active", &[r#"variant="a""#], 4.0).await;
    until_metric(&desk, "kueue_variant_active", &[r#"variant="b""#], 3.0).await;
    until_metric(&desk, "kueue_variant_admitted", &[r#"variant="a""#], 1.0).await;
    until_metric(&desk, "kueue_variant_admitted", &[r#"variant="b""#], 1.0).await;
    assert_eq!(metric(&desk, "kueue_variant_migrations_total", &[]), 0.0);

    let line = desk.world.outlook.window.waiting(Line::ClusterQueue("q".to_owned()), 0, 10).await.expect("a line");
    let mut names: Vec<String> = line.iter().map(|w| w.metadata.name.clone().expect("a name")).collect();
    let mut parents = Vec::new();
    for name in ["third", "fourth"] {
        parents.push(desk.workload_of(name).await.expect("it").name_any());
    }
    names.sort();
    parents.sort();
    assert_eq!(names, parents, "Parents wait, each in one place");
    assert_eq!(line.iter().map(|w| w.position_in_cluster_queue).collect::<Vec<_>>(), [0, 1]);

    desk.world.pass(300).await;
    set_quota(&desk, &[("a", "2"), ("b", "1")]).await;
    until_runs_on(&desk, "second", "a").await;
    until_runs_on(&desk, "third", "b").await;
    until_counts(&desk, [1, 3, 3]).await;
    until_metric(&desk, "kueue_variant_migrations_total", &[r#"from_flavor="b""#, r#"to_flavor="a""#], 1.0).await;
    let saved = metric(&desk, "kueue_variant_time_saved_waiting_seconds_sum", &[r#"cluster_queue="q""#]);
    assert!((300.0..330.0).contains(&saved), "it ran {saved} s before what it would have waited for was there");
    until_metric(&desk, "kueue_admitted_workloads_total", &[], 4.0).await;
    let why = [r#"reason="VariantEvicted""#, r#"underlying_cause="FlavorMigration""#];
    until_metric(&desk, "kueue_evicted_workloads_total", &why, 1.0).await;
    until_metric(&desk, "kueue_evicted_workloads_total", &[], 1.0).await;

    for name in ["first", "second", "third"] {
        desk.world.until_condition(name, "Complete").await;
    }
    until_metric(&desk, "kueue_finished_workloads_total", &[], 3.0).await;
    until_counts(&desk, [1, 0, 0]).await;
    until_metric(&desk, "kueue_variant_admitted", &[], 0.0).await;
    until_metric(&desk, "kueue_variant_active", &[], 2.0).await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_whose_variants_are_all_delayed_waits_once() {
    let spec = json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}, "explicitVariants": [
        {"name": "a", "allowedResourceFlavors": ["a"], "createDelaySeconds": 300},
        {"name": "b", "allowedResourceFlavors": ["b"], "createDelaySeconds": 300}]}});
    let desk = racing(&[("a", "1"), ("b", "1")], spec).await;
    desk.submit(Queued::default()).await;
    until_counts(&desk, [1, 0, 0]).await;
    until_metric(&desk, "kueue_pending_workloads", &[r#"status="inadmissible""#], 1.0).await;
    until_runs_on(&desk, "j", "a").await;
    until_counts(&desk, [0, 1, 1]).await;
}
