//! The same controller against a real kube-apiserver that has no controllers of its own, in real time.

use kube::Client;
use kube::ResourceExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use usher_apiserver::gates::Gates;
use usher_env::Clock;

use super::harness;
use super::world::*;
use crate::need;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_suspend_resume_and_end_against_a_real_kube_apiserver() {
    let cluster = need!(harness::Cluster::start(&[]));
    let kubeconfig = Kubeconfig::read_from(harness::Server::kubeconfig(&cluster)).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a cluster");
    let world = World::on(Client::try_from(config).expect("a client"), Clock::wall(), Gates::default(), None);
    let account = async || {
        let accounts =
            kube::Api::<k8s_openapi::api::core::v1::ServiceAccount>::default_namespaced(world.client.clone());
        accounts.get_opt("default").await.expect("accounts")
    };
    until("there is a service account", account).await;

    world.create("plain", json!({"completions": 5, "parallelism": 2}), json!({"test/runs": "0.5"})).await;
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 0});
    world.create("indexed", spec, json!({"test/runs": "0.5", "test/fails": "1@2"})).await;
    world.create("late", json!({"activeDeadlineSeconds": 3, "parallelism": 2, "completions": 2}), json!({})).await;
    world.create("brief", json!({"ttlSecondsAfterFinished": 1}), json!({"test/runs": "0.1"})).await;
    world.create("held", json!({"parallelism": 2, "completions": 2}), json!({})).await;

    let plain = world.until_condition("plain", "Complete").await;
    assert_eq!((counts(&plain), conditions(&plain).len()), ([0, 0, 0, 5, 0], 2));
    assert!(world.pods_of("plain").await.iter().all(|pod| !is_tracked(pod)));
    world.until_event("plain", "Completed", "Job completed").await;

    let indexed = world.until_condition("indexed", "Failed").await;
    let status = indexed.status.clone().unwrap_or_default();
    assert_eq!((status.completed_indexes.as_deref(), status.failed_indexes.as_deref()), (Some("0,1,3"), Some("2")));
    assert_eq!(reason(&indexed, "Failed").0, "FailedIndexes");

    let late = world.until_condition("late", "Failed").await;
    assert_eq!((reason(&late, "Failed").0.as_str(), counts(&late)), ("DeadlineExceeded", [0, 0, 0, 0, 2]));

    until("brief is gone", async || world.jobs().get_opt("brief").await.expect("get").is_none().then_some(())).await;

    world.until("held", "runs", |s| s.ready == Some(2)).await;
    world.edit("held", json!({"suspend": true})).await;
    let held = world.until_condition("held", "Suspended").await;
    assert_eq!(counts(&held)[0], 0);
    assert_eq!(counts(&held)[4], 0, "suspended pods are no failures");
    let aimed = json!({"suspend": false, "template": {"spec": {"nodeSelector": {"pool": "b"}}}});
    world.edit("held", aimed).await;
    let pods =
        world.until_pods("held", "run again", |pods| pods.iter().filter(|pod| is_active(pod)).count() == 2).await;
    for pod in pods.iter().filter(|pod| is_active(pod)) {
        let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.clone()).unwrap_or_default();
        assert_eq!(selector.get("pool").map(String::as_str), Some("b"), "{}", pod.name_any());
    }
}
