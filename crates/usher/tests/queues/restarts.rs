//! Controllers that stop and start again at any moment: nothing is lost, nothing is admitted twice, quotas are right.

use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use serde_json::json;

use super::desk::*;
use super::world::either;

#[tokio::test(start_paused = true)]
async fn controllers_stopped_at_any_moment_finish_what_they_began() {
    // Each round stops them a little later into the same story, so that every write is the last one once.
    for moment in 0..either(40, 3) {
        let mut desk = desk().await;
        desk.queue("q", "2", json!({})).await;
        for name in ["a", "b", "c"] {
            desk.submit(Queued { name, runs: Some("3"), ..Default::default() }).await;
        }
        for _ in 0..moment {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(moment * either(200, 1000))).await;
        desk.world.stop_controllers().await;
        desk.world.start_controllers();
        for name in ["a", "b", "c"] {
            let job = desk.world.until_condition(name, "Complete").await;
            assert_eq!(job.status.expect("a status").succeeded, Some(1), "{name}, stopped at {moment}");
            desk.until(name, "is finished", |w| is(w, "Finished")).await;
            assert_eq!(desk.world.pods_of(name).await.len(), 1, "{name} ran once, stopped at {moment}");
        }
        let all = desk.workloads().list(&ListParams::default()).await.expect("workloads").items;
        assert_eq!(all.len(), 3, "one each, stopped at {moment}");
    }
}

#[tokio::test(start_paused = true)]
async fn quota_in_use_is_known_after_a_restart() {
    let mut desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    desk.submit(Queued { name: "a", cpu: "2", runs: Some("100"), ..Default::default() }).await;
    desk.until_runs("a").await;
    desk.world.stop_controllers().await;
    desk.submit(Queued { name: "b", runs: Some("5"), ..Default::default() }).await;
    desk.world.start_controllers();
    desk.until_waits("b", "WaitingForQuota").await;
    desk.world.until_condition("a", "Complete").await;
    desk.world.until_condition("b", "Complete").await;
}

#[tokio::test(start_paused = true)]
async fn a_preemption_under_way_goes_on_after_a_restart() {
    let mut desk = desk().await;
    desk.queue("a", "2", json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    desk.class("high", 9).await;
    let mut slow = desk.job(&Queued { name: "slow", queue: "a", cpu: "2", ..Default::default() });
    slow["spec"]["template"]["metadata"]["annotations"] = json!({"test/stops-after": "20"});
    desk.submit_as(slow).await;
    desk.until_runs("slow").await;
    desk.submit(Queued { name: "high", queue: "a", class: "high", cpu: "2", ..Default::default() }).await;
    desk.until("slow", "is told to go", |w| is(w, "Evicted")).await;
    desk.world.stop_controllers().await;
    desk.world.start_controllers();
    desk.until_runs("high").await;
    desk.until_rests("slow").await;
}

/// For the first seconds nobody is told which Workloads there are.
fn silent_about_workloads(client: Client) -> Client {
    let begun = tokio::time::Instant::now();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move {
            if request.uri().path().ends_with("/workloads")
                && request.method() == http::Method::GET
                && begun.elapsed() < Duration::from_secs(3)
            {
                return Err(kube::Error::Service("not now".into()));
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_hears_of_workloads_last_stops_nobody_and_starts_nobody() {
    let mut desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    desk.submit(Queued { name: "a", cpu: "2", ..Default::default() }).await;
    desk.until_runs("a").await;
    let workload = desk.until_admitted("a").await;
    desk.submit(Queued { name: "b", ..Default::default() }).await;
    desk.until_waits("b", "WaitingForQuota").await;
    desk.world.stop_controllers().await;
    desk.world.start_controllers_through(&silent_about_workloads);
    // Only the one that hears of everything can say this.
    desk.submit(Queued { name: "c", ..Default::default() }).await;
    desk.until_waits("c", "WaitingForQuota").await;
    for (name, suspended) in [("a", false), ("b", true), ("c", true)] {
        assert_eq!(is_suspended(&desk.world.job(name).await), suspended, "{name}");
    }
    assert_eq!(desk.world.pods_of("a").await.len(), 1, "it ran all the time");
    assert_eq!(desk.workload_of("a").await.expect("it").metadata.uid, workload.metadata.uid);
    let all = desk.workloads().list(&ListParams::default()).await.expect("workloads").items;
    assert_eq!(all.len(), 3, "one each");
}
