//! Simulated nodes against our own server in this process, on virtual time.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::{Keys, Options, Server};
use usher_env::{Clock, Ids};
use usher_node::sim::{self, Simulation};
use usher_store::Store;

async fn world(groups: &str) -> (Client, Simulation) {
    let clock = Clock::virtual_from("2026-11-15T00:00:00Z".parse().expect("a time"));
    let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).expect("keys");
    let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
    let store = Store::open_memory(usher_store::Options::default());
    let server = Server::new(store, clock.clone(), Ids::seeded(7), Options::default(), keys);
    server.bootstrap().await.expect("bootstrap");
    let client = Client::new(server.service_as(User::new("tester", &[MASTERS])), "default");
    let account = json!({"metadata": {"name": "default"}});
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::default_namespaced(client.clone());
    accounts.create(&Default::default(), &serde_json::from_value(account).expect("an account")).await.expect("created");
    let simulation = Simulation::start(client.clone(), clock, sim::parse(groups).expect("groups"));
    (client, simulation)
}

async fn create(client: &Client, name: &str, annotations: Value, spec: Value) -> Api<Pod> {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let mut whole = json!({"nodeName": "sim-0", "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    for (key, value) in spec.as_object().expect("an object") {
        whole[key] = value.clone();
    }
    let pod = json!({"metadata": {"name": name, "annotations": annotations}, "spec": whole});
    api.create(&Default::default(), &serde_json::from_value(pod).expect("a pod")).await.expect("created");
    api
}

/// Waits until the pod is so; time is virtual, so that this costs nothing.
async fn until(api: &Api<Pod>, name: &str, what: &str, is: impl Fn(&Pod) -> bool) -> Pod {
    for _ in 0..10_000 {
        if let Some(pod) = api.get_opt(name).await.expect("an answer")
            && is(&pod)
        {
            return pod;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} was never {what}: {:?}", api.get_opt(name).await);
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

#[tokio::test(start_paused = true)]
async fn nodes_are_ready_and_carry_what_was_asked_for() {
    let groups = "- {count: 30, name: big, labels: {zone: a}, taints: [{key: k, effect: NoSchedule}], capacity: {cpu: 64}}\n- {}";
    let (client, simulation) = world(groups).await;
    let api: Api<Node> = Api::all(client);
    let ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let tainted = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key.contains("not-ready"));
        !tainted && conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    let mut nodes = Vec::new();
    for _ in 0..1000 {
        nodes = api.list(&ListParams::default()).await.expect("a list").items;
        if nodes.len() == 31 && nodes.iter().all(ready) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(nodes.len() == 31 && nodes.iter().all(ready), "{} nodes", nodes.len());
    let big = nodes.iter().find(|n| n.metadata.name.as_deref() == Some("big-29")).expect("the last of the group");
    assert_eq!(big.metadata.labels.as_ref().expect("labels")["zone"], "a");
    assert_eq!(big.status.as_ref().expect("status").allocatable.as_ref().expect("amounts")["cpu"].0, "64");
    assert_eq!(big.spec.as_ref().expect("spec").taints.as_ref().expect("taints").len(), 1);
    simulation.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_for_as_long_as_it_says_and_ends_as_it_says() {
    let (client, simulation) = world("- {}").await;
    for (name, annotations, secs, end, code) in [
        ("short", json!({}), 1, "Succeeded", 0),
        ("long", json!({"usher.dev/sim-duration": "1m30s"}), 90, "Succeeded", 0),
        ("bad", json!({"usher.dev/sim-duration": "10s", "usher.dev/sim-exit-code": "42"}), 10, "Failed", 42),
    ] {
        let begun = Instant::now();
        let api = create(&client, name, annotations, json!({})).await;
        let running = until(&api, name, "running", |p| phase(p) == "Running").await;
        assert!(
            running
                .status
                .expect("status")
                .conditions
                .expect("conditions")
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True")
        );
        let done = until(&api, name, "over", |p| matches!(phase(p), "Succeeded" | "Failed")).await;
        let took = begun.elapsed().as_secs();
        assert!((secs..=secs + 1).contains(&took), "{name} took {took} s");
        assert_eq!(phase(&done), end);
        let state =
            done.status.expect("status").container_statuses.expect("containers")[0].state.clone().expect("a state");
        assert_eq!(state.terminated.expect("terminated").exit_code, code);
    }
    simulation.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_goes_at_once_and_one_that_is_held_shows_its_end() {
    let (client, simulation) = world("- {}").await;
    let long = json!({"usher.dev/sim-duration": "1h"});
    let api = create(&client, "p", long.clone(), json!({"terminationGracePeriodSeconds": 600})).await;
    until(&api, "p", "running", |p| phase(p) == "Running").await;
    let begun = Instant::now();
    api.delete("p", &DeleteParams::default()).await.expect("deleted");
    while api.get_opt("p").await.expect("an answer").is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "it is still there");
    }
    let api = create(&client, "held", long, json!({})).await;
    until(&api, "held", "running", |p| phase(p) == "Running").await;
    let hold = json!({"metadata": {"finalizers": ["test/hold"]}});
    api.patch("held", &Default::default(), &kube::api::Patch::Merge(hold)).await.expect("patched");
    api.delete("held", &DeleteParams::default()).await.expect("deleted");
    let held = until(&api, "held", "failed", |p| phase(p) == "Failed").await;
    assert!(held.metadata.deletion_timestamp.is_some());
    simulation.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_take_its_time_to_stop() {
    let (client, simulation) = world("- {}").await;
    let slow = json!({"usher.dev/sim-duration": "1h", "usher.dev/sim-stop-duration": "20s"});
    for (grace, secs) in [(30, 20), (5, 5)] {
        let api = create(&client, "p", slow.clone(), json!({"terminationGracePeriodSeconds": grace})).await;
        until(&api, "p", "running", |p| phase(p) == "Running").await;
        let begun = Instant::now();
        api.delete("p", &DeleteParams::default()).await.expect("deleted");
        while api.get_opt("p").await.expect("an answer").is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(begun.elapsed() < Duration::from_secs(60), "it is still there");
        }
        // Times on the wire are whole seconds.
        let took = begun.elapsed().as_secs_f64();
        assert!((f64::from(secs) - 1.0..f64::from(secs) + 1.0).contains(&took), "{took} s");
    }
    simulation.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_pod_that_restarts_backs_off_like_a_real_one() {
    let (client, simulation) = world("- {}").await;
    let annotations = json!({"usher.dev/sim-duration": "1s", "usher.dev/sim-exit-code": "1"});
    let begun = Instant::now();
    let api = create(&client, "p", annotations, json!({"restartPolicy": "OnFailure"})).await;
    let restarts =
        |p: &Pod| p.status.as_ref().and_then(|s| Some(s.container_statuses.as_ref()?[0].restart_count)).unwrap_or(0);
    let third = until(&api, "p", "restarted three times", |p| restarts(p) == 3).await;
    // One second each, then nothing, 10 s and 20 s.
    let took = begun.elapsed().as_secs();
    assert!((32..=36).contains(&took), "{took} s");
    assert_eq!(phase(&third), "Running");
    simulation.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_simulated_pod_too() {
    let (client, simulation) = world("- {}").await;
    let long = json!({"usher.dev/sim-duration": "1h"});
    let api = create(&client, "p", long, json!({"activeDeadlineSeconds": 30})).await;
    let begun = Instant::now();
    let done = until(&api, "p", "over", |p| phase(p) == "Failed").await;
    assert!(begun.elapsed() <= Duration::from_secs(32), "{:?}", begun.elapsed());
    assert_eq!(done.status.expect("status").reason.as_deref(), Some("DeadlineExceeded"));
    simulation.stop().await;
}
