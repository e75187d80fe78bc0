//! RayClusters and their pods as seen in one moment: what is made, what goes, what is told.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use usher_api::ray::RayCluster;

use super::decide::decide;
use super::pods::{Place, build};
use super::status::status;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// A cluster with one group `g`, whose pods may be there.
fn cluster(spec: Value, group: Value) -> RayCluster {
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}}]}});
    let mut one = json!({"groupName": "g", "replicas": 2, "numOfHosts": 1, "template": template});
    one.as_object_mut().unwrap().extend(group.as_object().cloned().unwrap_or_default());
    let mut all = json!({"metadata": {"name": "r", "namespace": "n", "uid": "U", "generation": 3},
        "status": {"observedGeneration": 3},
        "spec": {"headGroupSpec": {"template": template}, "workerGroupSpecs": [one]}});
    all["spec"].as_object_mut().unwrap().extend(spec.as_object().cloned().unwrap_or_default());
    serde_json::from_value(all).unwrap()
}

fn pod(cluster: &RayCluster, place: &Place, name: &str, change: Value) -> Arc<Pod> {
    let mut pod = serde_json::to_value(build(cluster, place).unwrap()).unwrap();
    pod["metadata"]["name"] = name.into();
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    for (place, value) in change.as_object().cloned().unwrap_or_default() {
        let (outer, inner) = place.split_once('/').unwrap();
        pod[outer][inner] = value;
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn worker(cluster: &RayCluster, replica: u32, host: u32, change: Value) -> Arc<Pod> {
    pod(cluster, &Place::Worker { group: 0, replica, host }, &format!("w{replica}.{host}"), change)
}

fn head(cluster: &RayCluster) -> Arc<Pod> {
    pod(cluster, &Place::Head, "head", json!({}))
}

/// What is made and what goes, in words.
fn planned(cluster: &RayCluster, pods: &[Arc<Pod>]) -> (Vec<String>, Vec<String>) {
    let plan = decide(cluster, pods);
    let place = |place: &Place| match place {
        Place::Head => "head".to_owned(),
        Place::Worker { replica, host, .. } => format!("w{replica}.{host}"),
    };
    let gone = plan.delete.iter().map(|pod| pod.metadata.name.clone().unwrap_or_default());
    (plan.create.iter().map(place).collect(), gone.collect())
}

const NONE: [&str; 0] = [];

fn is(found: (Vec<String>, Vec<String>), made: &[&str], gone: &[&str]) {
    assert_eq!((found.0.as_slice(), found.1.as_slice()), (&*own(made), &*own(gone)));
}

fn own(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_cluster_gets_a_head_and_its_workers_and_no_more() {
    let cluster = cluster(json!({}), json!({}));
    is(planned(&cluster, &[]), &["head", "w0.0", "w1.0"], &NONE);
    let pods = [head(&cluster), worker(&cluster, 0, 0, json!({})), worker(&cluster, 1, 0, json!({}))];
    is(planned(&cluster, &pods), &NONE, &NONE);
}

#[test]
fn nothing_is_made_before_the_status_says_that_there_may_be_pods() {
    let mut fresh = cluster(json!({}), json!({}));
    fresh.status = Default::default();
    is(planned(&fresh, &[]), &NONE, &NONE);
    fresh.status = status(&fresh, &[], now());
    assert!(fresh.may_have_pods());
    is(planned(&fresh, &[]), &["head", "w0.0", "w1.0"], &NONE);
}

#[test]
fn a_suspended_cluster_loses_its_pods_and_says_so_when_they_are_gone() {
    let mut cluster = cluster(json!({"suspend": true}), json!({}));
    let going = worker(&cluster, 0, 0, json!({"metadata/deletionTimestamp": "2026-11-15T00:00:00Z"}));
    let pods = [head(&cluster), going.clone()];
    is(planned(&cluster, &pods), &NONE, &["head"]);
    cluster.status = status(&cluster, &[going], now());
    assert!(cluster.may_have_pods(), "one is still there");
    cluster.status = status(&cluster, &[], now());
    assert!(!cluster.may_have_pods());
    assert_eq!(cluster.status.state, "suspended");
    // Resumed: first the status, then the pods.
    cluster.spec.suspend = Some(false);
    is(planned(&cluster, &[]), &NONE, &NONE);
    cluster.status = status(&cluster, &[], now());
    is(planned(&cluster, &[]), &["head", "w0.0", "w1.0"], &NONE);
}

#[test]
fn workers_that_are_named_go_and_nobody_else_does() {
    let group = json!({"replicas": 1, "scaleStrategy": {"workersToDelete": ["w0.0"]}});
    let cluster = cluster(json!({"enableInTreeAutoscaling": true}), group);
    let pods = [head(&cluster), worker(&cluster, 0, 0, json!({})), worker(&cluster, 1, 0, json!({}))];
    is(planned(&cluster, &pods), &NONE, &["w0.0"]);
    let going = worker(&cluster, 0, 0, json!({"metadata/deletionTimestamp": "2026-11-15T00:00:00Z"}));
    is(planned(&cluster, &[head(&cluster), going, pods[2].clone()]), &NONE, &NONE);
}

#[test]
fn without_an_autoscaler_those_at_their_gates_go_first_and_then_the_youngest() {
    let with = |replicas: i32, spec: Value| {
        let cluster = cluster(spec, json!({ "replicas": replicas }));
        let at = |second: u32| json!({"metadata/creationTimestamp": format!("2026-11-15T00:00:0{second}Z")});
        let mut gated = at(0);
        gated["spec/schedulingGates"] = json!([{"name": "g"}]);
        let pods = [
            head(&cluster),
            worker(&cluster, 0, 0, at(2)),
            worker(&cluster, 1, 0, at(1)),
            worker(&cluster, 2, 0, gated),
        ];
        planned(&cluster, &pods)
    };
    is(with(2, json!({})), &NONE, &["w2.0"]);
    is(with(1, json!({})), &NONE, &["w0.0", "w2.0"]);
    is(with(1, json!({"enableInTreeAutoscaling": true})), &NONE, &NONE);
}

#[test]
fn a_pod_that_has_ended_goes_and_is_made_anew_when_it_is_gone() {
    let cluster = cluster(json!({}), json!({}));
    let failed = worker(&cluster, 0, 0, json!({"status/phase": "Failed"}));
    let other = worker(&cluster, 1, 0, json!({}));
    is(planned(&cluster, &[head(&cluster), failed, other.clone()]), &NONE, &["w0.0"]);
    is(planned(&cluster, &[head(&cluster), other.clone()]), &["w0.0"], &NONE);
    let ended = pod(&cluster, &Place::Head, "head", json!({"status/phase": "Succeeded"}));
    is(planned(&cluster, &[ended, worker(&cluster, 0, 0, json!({})), other]), &NONE, &["head"]);
}

#[test]
fn a_replica_of_several_hosts_comes_and_goes_as_one() {
    let cluster = cluster(json!({}), json!({"numOfHosts": 2}));
    is(planned(&cluster, &[head(&cluster)]), &["w0.0", "w0.1", "w1.0", "w1.1"], &NONE);
    let pods = |change: Value| {
        vec![
            head(&cluster),
            worker(&cluster, 0, 0, json!({})),
            worker(&cluster, 0, 1, change),
            worker(&cluster, 1, 0, json!({})),
            worker(&cluster, 1, 1, json!({})),
        ]
    };
    is(planned(&cluster, &pods(json!({"status/phase": "Failed"}))), &NONE, &["w0.0", "w0.1"]);
    let mut partly = pods(json!({}));
    partly.remove(2);
    is(planned(&cluster, &partly), &["w0.1"], &NONE);
}

#[test]
fn what_somebody_else_manages_or_what_is_being_deleted_is_left_alone() {
    let others = cluster(json!({"managedBy": "kueue.x-k8s.io/multikueue"}), json!({}));
    is(planned(&others, &[]), &NONE, &NONE);
    let mut leaving = cluster(json!({}), json!({}));
    leaving.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    is(planned(&leaving, &[]), &NONE, &NONE);
}

#[test]
fn pods_are_named_and_labelled_as_kuberay_does_it() {
    let cluster = cluster(json!({}), json!({"numOfHosts": 2}));
    let shown = serde_json::to_value(build(&cluster, &Place::Worker { group: 0, replica: 3, host: 1 })).unwrap();
    assert_eq!(shown["metadata"]["generateName"], "r-g-worker-");
    assert_eq!(
        shown["metadata"]["labels"],
        json!({"app": "a", "ray.io/is-ray-node": "yes", "ray.io/cluster": "r", "ray.io/node-type": "worker",
            "ray.io/group": "g", "ray.io/identifier": "r-worker", "ray.io/worker-group-replica-index": "3",
            "ray.io/replica-host-index": "1"})
    );
    assert_eq!(shown["metadata"]["ownerReferences"][0]["uid"], "U");
    let head = serde_json::to_value(build(&cluster, &Place::Head)).unwrap();
    assert_eq!(head["metadata"]["generateName"], "r-head-");
    assert_eq!(head["metadata"]["labels"]["ray.io/group"], "headgroup");
}

#[test]
fn the_status_counts_pods_and_what_they_ask_for() {
    let mut cluster = cluster(json!({}), json!({"minReplicas": 1, "maxReplicas": 5}));
    let waiting = worker(&cluster, 1, 0, json!({"status/phase": "Pending", "status/conditions": []}));
    cluster.status = status(&cluster, &[head(&cluster), worker(&cluster, 0, 0, json!({})), waiting], now());
    let told = serde_json::to_value(&cluster.status).unwrap();
    assert_eq!((&told["readyWorkerReplicas"], &told["availableWorkerReplicas"]), (&json!(1), &json!(1)));
    assert_eq!((&told["desiredWorkerReplicas"], &told["maxWorkerReplicas"]), (&json!(2), &json!(5)));
    assert_eq!((&told["desiredCPU"], &told["desiredMemory"]), (&json!("1500m"), &json!("3Gi")));
    assert_eq!((&told["head"]["podName"], told.get("state")), (&json!("head"), None));
    let ready = [head(&cluster), worker(&cluster, 0, 0, json!({})), worker(&cluster, 1, 0, json!({}))];
    cluster.status = status(&cluster, &ready, now());
    assert_eq!(cluster.status.state, "ready");
    assert_eq!(status(&cluster, &ready, now()), cluster.status, "nothing new, nothing to write");
}
