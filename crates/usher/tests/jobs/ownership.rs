//! Adoption, release, and finalizers that nobody needs any longer.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::world::*;

fn manual(name: &str) -> Value {
    json!({"manualSelector": true, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name, "batch.kubernetes.io/job-name": name}}}})
}

async fn loose_pod(world: &World, name: &str, app: &str, notes: Value) -> Pod {
    let pod = json!({"metadata": {"name": name, "labels": {"app": app}, "annotations": notes},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}});
    world
        .pods()
        .create(&Default::default(), &serde_json::from_value(pod).expect("a pod"))
        .await
        .expect("create the pod")
}

#[tokio::test(start_paused = true)]
async fn a_job_adopts_pods_that_match_its_selector() {
    let world = World::new().await;
    loose_pod(&world, "found", "seek", json!({})).await;
    loose_pod(&world, "other", "else", json!({})).await;
    let job = world.create("seek", manual("seek"), json!({})).await;
    world.until("seek", "runs", |s| s.ready == Some(1)).await;
    let found = world.pods().get("found").await.expect("the pod");
    assert_eq!(found.owner_references()[0].uid, job.uid().expect("a uid"));
    assert!(found.owner_references()[0].controller == Some(true) && is_tracked(&found));
    assert!(world.pods().get("other").await.expect("the pod").owner_references().is_empty());
    assert_eq!(world.pods_of("seek").await.len(), 0, "the adopted pod is enough");
}

#[tokio::test(start_paused = true)]
async fn a_job_adopts_a_pod_that_comes_to_match_later_and_releases_one_that_no_longer_does() {
    let world = World::new().await;
    let mut spec = manual("seek");
    (spec["parallelism"], spec["completions"]) = (json!(2), json!(9));
    world.create("seek", spec, json!({})).await;
    world.until("seek", "runs", |s| s.ready == Some(2)).await;
    let one = world.pods_of("seek").await.remove(0).name_any();
    let relabel = |app: &str| Patch::Merge(json!({"metadata": {"labels": {"app": app}}}));
    world.pods().patch(&one, &PatchParams::default(), &relabel("gone")).await.expect("relabel");
    let released =
        async || Some(world.pods().get(&one).await.expect("the pod")).filter(|pod| pod.owner_references().is_empty());
    let released = until("the pod is released", released).await;
    assert!(!is_tracked(&released) && is_active(&released));
    world.until_pods("seek", "are three", |pods| pods.len() == 3).await;
    world.until("seek", "has two again", |s| s.active == Some(2)).await;
    world.pods().patch(&one, &PatchParams::default(), &relabel("seek")).await.expect("relabel");
    world.until("seek", "is back at two", |s| s.active == Some(2) && s.terminating == Some(0)).await;
    until("one of three goes", async || {
        let pods = world.pods_of("seek").await;
        (pods.len() == 2 && pods.iter().all(|pod| !pod.owner_references().is_empty())).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_job_lose_the_finalizer_and_go_or_stay() {
    for (how, stay) in
        [(DeleteParams::background(), false), (DeleteParams::foreground(), false), (DeleteParams::orphan(), true)]
    {
        let world = World::new().await;
        world.create("job", json!({"parallelism": 2, "completions": 2}), json!({})).await;
        world.until("job", "runs", |s| s.ready == Some(2)).await;
        world.jobs().delete("job", &how).await.expect("delete");
        until("the job is gone", async || world.jobs().get_opt("job").await.expect("get").is_none().then_some(()))
            .await;
        let pods = world
            .until_pods("job", "are free", |pods| pods.iter().all(|pod| !is_tracked(pod)) && (stay || pods.is_empty()))
            .await;
        assert_eq!(pods.len(), if stay { 2 } else { 0 });
        assert!(pods.iter().all(|pod| pod.owner_references().is_empty() && is_active(pod)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_another_owner_keeps_its_finalizer() {
    let world = World::new().await;
    let pod = loose_pod(&world, "theirs", "x", json!({})).await;
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "11111111-1111-4111-8111-111111111111", "controller": true}]);
    let patch = json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"], "ownerReferences": owner}});
    world.pods().patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.expect("patch");
    let free = loose_pod(&world, "nobodys", "y", json!({})).await;
    let patch = json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}});
    world.pods().patch(&free.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.expect("patch");
    until("the orphan is freed", async || {
        (!is_tracked(&world.pods().get("nobodys").await.expect("the pod"))).then_some(())
    })
    .await;
    let theirs = world.pods().get_opt("theirs").await.expect("get");
    assert!(theirs.is_some_and(|pod| is_tracked(&pod)));
}
