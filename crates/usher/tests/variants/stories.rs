//! The seven stories of KEP-8691, with their own configuration.

use serde_json::{Value, json};

use super::desk::*;
use super::race::*;
use super::world::either;

const ZERO: &str = "0";

fn upgrade_only() -> Value {
    json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}}})
}

#[tokio::test(start_paused = true)]
async fn story_1_a_job_starts_on_whatever_there_is_and_moves_up_step_by_step() {
    let desk = racing(&[("reservation", ZERO), ("on-demand", ZERO), ("spot", "2")], upgrade_only()).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "spot").await;
    let parent = until_active(&desk, "j", &["reservation", "on-demand", "spot"]).await;
    assert_eq!(parent.label("kueue.x-k8s.io/concurrent-admission-parent"), Some("true"));
    assert_eq!(parent.annotation("kueue.x-k8s.io/parent-variant"), Some("true"));
    set_quota(&desk, &[("reservation", ZERO), ("on-demand", "2"), ("spot", "2")]).await;
    until_runs_on(&desk, "j", "on-demand").await;
    until_active(&desk, "j", &["reservation", "on-demand"]).await;
    set_quota(&desk, &[("reservation", "2"), ("on-demand", "2"), ("spot", "2")]).await;
    until_runs_on(&desk, "j", "reservation").await;
    let parent = until_active(&desk, "j", &["reservation"]).await;
    let flavors = &parent.status.admission.as_ref().expect("it").pod_set_assignments[0].flavors;
    assert_eq!(flavors["cpu"], "reservation");
}

#[tokio::test(start_paused = true)]
async fn story_2_only_the_reservation_is_worth_a_migration() {
    let mut policy = upgrade_only();
    policy["concurrentAdmission"]["migrationConstraints"]["minFlavor"] = json!("reservation");
    let desk = racing(&[("reservation", ZERO), ("on-demand", ZERO), ("spot", "2")], policy).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "spot").await;
    let first = pods(&desk, "j").await;
    until_active(&desk, "j", &["reservation", "spot"]).await;
    set_quota(&desk, &[("reservation", ZERO), ("on-demand", "2"), ("spot", "2")]).await;
    desk.world.pass(600).await;
    assert_eq!(flavor_of(&desk.world.job("j").await), "spot");
    assert_eq!(pods(&desk, "j").await, first, "it was never restarted");
    set_quota(&desk, &[("reservation", "2"), ("on-demand", "2"), ("spot", "2")]).await;
    until_runs_on(&desk, "j", "reservation").await;
}

#[tokio::test(start_paused = true)]
async fn story_3_homogeneous_flavors_race_their_checks_and_only_the_reservation_takes_over() {
    let desk = desk().await;
    desk.check("slow").await;
    let policy = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "slow", "onFlavors": ["2a", "2b", "2c"]}]},
        "concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly", "minFlavor": "reservation"}}});
    race_in(&desk, &[("reservation", ZERO), ("2a", "2"), ("2b", "2"), ("2c", "2")], policy).await;
    desk.submit(Queued::default()).await;
    for name in ["2a", "2b", "2c"] {
        until_variant(&desk, "j", name, "has quota", |w| is(w, "QuotaReserved")).await;
    }
    assert!(is_suspended(&desk.world.job("j").await));
    let updates = json!([{"name": "main", "nodeSelector": {"rack": "7"}, "annotations": {"slow": "ok"}}]);
    say(&desk, "j", "2b", json!({"name": "slow", "state": "Ready", "podSetUpdates": updates})).await;
    let running = until_runs_on(&desk, "j", "2b").await;
    assert_eq!(template(&running)["spec"]["nodeSelector"]["rack"], "7", "what the winner's check asked for");
    let first = pods(&desk, "j").await;
    until_active(&desk, "j", &["reservation", "2b"]).await;
    until_variant(&desk, "j", "2a", "gave its quota back", |w| !is(w, "QuotaReserved")).await;
    desk.world.pass(600).await;
    assert_eq!(pods(&desk, "j").await, first, "nothing happened to the running job");
    set_quota(&desk, &[("reservation", "2"), ("2a", "2"), ("2b", "2"), ("2c", "2")]).await;
    let moved = until_runs_on(&desk, "j", "reservation").await;
    assert_eq!(template(&moved)["spec"]["nodeSelector"], json!({"type": "reservation"}));
}

#[tokio::test(start_paused = true)]
async fn story_4_the_first_admission_stands() {
    let policy = json!({"concurrentAdmission": {"migrationConstraints": {"mode": "NoMigration"}}});
    let desk = racing(&[("1a", ZERO), ("1b", ZERO), ("1c", "2")], policy).await;
    desk.submit(Queued::default()).await;
    until_runs_on(&desk, "j", "1c").await;
    let first = pods(&desk, "j").await;
    until_active(&desk, "j", &["1c"]).await;
    set_quota(&desk, &[("1a", "2"), ("1b", "2"), ("1c", "2")]).await;
    desk.world.pass(600).await;
    assert_eq!(flavor_of(&desk.world.job("j").await), "1c");
    assert_eq!(pods(&desk, "j").await, first);
}

fn explicit(variants: Value) -> Value {
    json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}, "explicitVariants": variants}})
}

#[tokio::test(start_paused = true)]
async fn story_5_for_two_hours_only_the_reservation_is_tried() {
    let policy = explicit(json!([
        {"name": "reservation", "allowedResourceFlavors": ["reservation"]},
        {"name": "on-demand", "allowedResourceFlavors": ["on-demand"], "createDelaySeconds": either(7200, 12)}]));
    let desk = racing(&[("reservation", ZERO), ("on-demand", "2")], policy).await;
    desk.submit(Queued::default()).await;
    until_active(&desk, "j", &["reservation"]).await;
    desk.world.pass(either(7100, 5)).await;
    assert!(is_suspended(&desk.world.job("j").await));
    assert_eq!(active(&desk.workload_of("j").await.expect("it")), ["reservation"]);
    desk.world.pass(either(200, 7)).await;
    until_runs_on(&desk, "j", "on-demand").await;
    set_quota(&desk, &[("reservation", "2"), ("on-demand", "2")]).await;
    until_runs_on(&desk, "j", "reservation").await;
}

#[tokio::test(start_paused = true)]
async fn story_6_after_a_day_a_running_job_is_not_moved_any_more() {
    let policy = explicit(json!([
        {"name": "reservation", "allowedResourceFlavors": ["reservation"], "deleteDelaySeconds": either(86_400, 20)},
        {"name": "on-demand", "allowedResourceFlavors": ["on-demand"]}]));
    let flavors = [("reservation", ZERO), ("on-demand", "4")];
    let desk = racing(&flavors, policy).await;
    desk.submit(Queued { name: "early", ..Default::default() }).await;
    desk.submit(Queued { name: "late", cpu: "2", ..Default::default() }).await;
    until_runs_on(&desk, "early", "on-demand").await;
    until_runs_on(&desk, "late", "on-demand").await;
    desk.world.pass(either(86_000, 1)).await;
    set_quota(&desk, &[("reservation", "1"), ("on-demand", "4")]).await;
    until_runs_on(&desk, "early", "reservation").await;
    desk.world.pass(either(500, 20)).await;
    until_active(&desk, "late", &["on-demand"]).await;
    set_quota(&desk, &[("reservation", "4"), ("on-demand", "4")]).await;
    desk.world.pass(600).await;
    assert_eq!(flavor_of(&desk.world.job("late").await), "on-demand");
}

#[tokio::test(start_paused = true)]
async fn story_7_the_gpu_flavor_changes_and_the_cpu_flavor_stays() {
    let desk = desk().await;
    for name in ["reservation", "on-demand"] {
        desk.flavor(name, json!({"nodeLabels": {"type": name}})).await;
    }
    desk.flavor("default-cpu", json!({"nodeLabels": {"cpus": "plain"}})).await;
    let groups = |reserved: &str| {
        let gpu =
            |name: &str, n: &str| json!({"name": name, "resources": [{"name": "example.com/gpu", "nominalQuota": n}]});
        json!([{"coveredResources": ["example.com/gpu"], "flavors": [gpu("reservation", reserved), gpu("on-demand", "2")]},
            {"coveredResources": ["cpu"], "flavors": [
                {"name": "default-cpu", "resources": [{"name": "cpu", "nominalQuota": "2"}]}]}])
    };
    let mut spec = explicit(json!([
        {"name": "reservation-flavor", "allowedResourceFlavors": ["reservation", "default-cpu"]},
        {"name": "on-demand-flavor", "allowedResourceFlavors": ["on-demand", "default-cpu"]}]));
    spec["resourceGroups"] = groups("0");
    desk.queue("q", "0", spec).await;
    let mut job = desk.job(&Queued { cpu: "2", ..Default::default() });
    let asked = json!({"requests": {"cpu": "2", "example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}});
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = asked;
    desk.submit_as(job).await;
    let running = until_runs_on(&desk, "j", "on-demand").await;
    assert_eq!(template(&running)["spec"]["nodeSelector"]["cpus"], "plain");
    // All the cpu there is is in use by the job itself: it is booked once, whichever variant holds it.
    desk.edit_queue("q", json!({"resourceGroups": groups("2")})).await;
    let moved = until_runs_on(&desk, "j", "reservation").await;
    assert_eq!(template(&moved)["spec"]["nodeSelector"]["cpus"], "plain");
}
