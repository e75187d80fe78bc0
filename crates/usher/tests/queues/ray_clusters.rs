//! RayClusters in queues, with the controller that makes their pods. Ray's autoscaler is played by the tests: it raises
//! `replicas`, and shrinks by naming the workers that are to go.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use usher_api::kueue::Workload;
use usher_api::ray::RayCluster;

use super::desk::*;
use super::world::until;

pub fn clusters(desk: &Desk) -> Api<RayCluster> {
    Api::namespaced(desk.world.client.clone(), "default")
}

/// A head and groups of workers of one cpu each; elastic.
pub fn cluster(name: &str, groups: &[(&str, i32)]) -> Value {
    let template =
        json!({"spec": {"containers": [{"name": "ray", "image": "ray", "resources": {"requests": {"cpu": "1"}}}]}});
    let group = |(name, replicas): &(&str, i32)| json!({"groupName": name, "replicas": replicas, "minReplicas": 0, "maxReplicas": 10, "template": template});
    json!({"metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"kueue.x-k8s.io/elastic-job": "true"}},
        "spec": {"headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": groups.iter().map(group).collect::<Vec<_>>()}})
}

pub async fn submit(desk: &Desk, cluster: Value) -> RayCluster {
    let cluster = serde_json::from_value(cluster).expect("a cluster");
    clusters(desk).create(&PostParams::default(), &cluster).await.expect("create the cluster")
}

/// What an autoscaler writes: all groups, as lists are replaced whole.
pub async fn scale(desk: &Desk, name: &str, change: impl Fn(&mut Value)) {
    let cluster = clusters(desk).get(name).await.expect("the cluster");
    let mut spec = serde_json::to_value(&cluster.spec).expect("json");
    change(&mut spec["workerGroupSpecs"]);
    let patch = json!({"metadata": {"resourceVersion": cluster.metadata.resource_version},
        "spec": {"workerGroupSpecs": spec["workerGroupSpecs"]}});
    clusters(desk).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("scale it");
}

/// Names of the live pods of a group that were let go, and how many wait at their gates.
pub async fn pods(desk: &Desk, name: &str, group: &str) -> (Vec<String>, usize) {
    let params = ListParams::default().labels(&format!("ray.io/cluster={name},ray.io/group={group}"));
    let all = desk.world.pods().list(&params).await.expect("pods").items;
    let live = all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let gated = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty());
    let (waiting, free): (Vec<Pod>, Vec<Pod>) = live.partition(gated);
    let mut names: Vec<String> = free.iter().map(ResourceExt::name_any).collect();
    names.sort();
    (names, waiting.len())
}

pub async fn until_pods(desk: &Desk, name: &str, group: &str, free: usize, gated: usize) -> Vec<String> {
    until(&format!("{group} of {name} has {free} pods let go and {gated} at their gates"), async || {
        let (names, waiting) = pods(desk, name, group).await;
        ((names.len(), waiting) == (free, gated)).then_some(names)
    })
    .await
}

pub async fn until_workload(desk: &Desk, name: &str, what: &str, is: impl Fn(&Workload) -> bool) -> Workload {
    until(&format!("the Workload of {name} {what}"), async || {
        let all = desk.workloads().list(&ListParams::default()).await.expect("workloads").items;
        let own = |w: &Workload| {
            w.name_any().starts_with(&format!("raycluster-{name}-")) && !w.name_any().contains("-slice-")
        };
        all.into_iter().find(|w| own(w)).filter(&is)
    })
    .await
}

fn admitted(workload: &Workload) -> Vec<(String, i32)> {
    let admission = workload.status.admission.iter().flat_map(|a| &a.pod_set_assignments);
    admission.map(|a| (a.name.clone(), a.count.unwrap_or(0))).collect()
}

fn sizes(wanted: &[(&str, i32)]) -> Vec<(String, i32)> {
    wanted.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

pub async fn until_admitted(desk: &Desk, name: &str, wanted: &[(&str, i32)]) -> Workload {
    until_workload(desk, name, &format!("is admitted with {wanted:?}"), |w| admitted(w) == sizes(wanted)).await
}

pub async fn until_no_slices(desk: &Desk) {
    until("no slice is left", async || {
        let params = ListParams::default().labels("kueue.x-k8s.io/workload-slice=true");
        desk.workloads().list(&params).await.expect("workloads").items.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_ray_cluster_waits_for_quota_and_then_starts_on_its_flavor() {
    let desk = desk().await;
    desk.flavor("spot", json!({"nodeLabels": {"type": "spot"}})).await;
    desk.queue(
        "q",
        "3",
        json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
        {"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "3"}]}]}]}),
    )
    .await;
    desk.submit(Queued { name: "other", ..Default::default() }).await;
    desk.until_runs("other").await;
    let made = submit(&desk, cluster("r", &[("g", 2)])).await;
    assert!(made.is_suspended());
    let waits = |w: &Workload| said(w, "QuotaReserved").is_some_and(|(status, ..)| status == "False");
    until_workload(&desk, "r", "waits", waits).await;
    until("it is told as suspended", async || {
        let cluster = clusters(&desk).get("r").await.expect("the cluster");
        (cluster.status.state == "suspended").then_some(())
    })
    .await;
    assert_eq!(pods(&desk, "r", "headgroup").await, (vec![], 0));
    desk.delete("other").await;
    until_pods(&desk, "r", "headgroup", 1, 0).await;
    let workers = until_pods(&desk, "r", "g", 2, 0).await;
    let worker = desk.world.pods().get(&workers[0]).await.expect("a worker");
    assert_eq!(worker.spec.and_then(|spec| spec.node_selector).expect("a selector")["type"], "spot");
    until("it is told as ready", async || {
        let status = clusters(&desk).get("r").await.expect("the cluster").status;
        (status.state == "ready" && status.ready_worker_replicas == Some(2)).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_running_ray_cluster_grows_in_part_and_shrinks_by_the_workers_that_are_named() {
    let desk = desk().await;
    desk.queue("q", "4", json!({})).await;
    let mut autoscaled = cluster("r", &[("g", 1)]);
    // Nothing but its autoscaler says that it is elastic.
    autoscaled["metadata"]["annotations"] = json!({});
    autoscaled["spec"]["enableInTreeAutoscaling"] = true.into();
    autoscaled["spec"]["autoscalerOptions"] = json!({"resources": {}});
    submit(&desk, autoscaled).await;
    let first = until_pods(&desk, "r", "g", 1, 0).await;
    scale(&desk, "r", |groups| groups[0]["replicas"] = 5.into()).await;
    let more = until_pods(&desk, "r", "g", 3, 2).await;
    assert!(more.contains(&first[0]), "the one that ran goes on: {first:?} {more:?}");
    let told = |w: &Workload| {
        said(w, "ResizeRequested").is_some_and(|(status, _, message)| {
            status == "True" && message == "2 of 4 added replicas admitted, waiting for 2 cpu in flavor plain"
        })
    };
    until_workload(&desk, "r", "says what it waits for", told).await;
    // Two of those that run are to go, and nobody asks for the two at their gates any longer.
    let waiting = {
        let params = ListParams::default().labels("ray.io/cluster=r,ray.io/group=g");
        let all = desk.world.pods().list(&params).await.expect("pods").items;
        all.iter().map(ResourceExt::name_any).filter(|name| !more.contains(name)).collect::<Vec<_>>()
    };
    let named: Vec<String> = more.iter().filter(|name| **name != first[0]).take(1).cloned().chain(waiting).collect();
    scale(&desk, "r", |groups| {
        groups[0]["replicas"] = 2.into();
        groups[0]["scaleStrategy"] = json!({ "workersToDelete": named });
    })
    .await;
    let left = until_pods(&desk, "r", "g", 2, 0).await;
    assert!(left.contains(&first[0]) && !left.contains(&named[0]), "{left:?}, without {named:?}");
    let workload = until_admitted(&desk, "r", &[("head", 1), ("g", 2)]).await;
    assert!(said(&workload, "Evicted").is_none());
    until_no_slices(&desk).await;
    desk.submit(Queued { name: "fits", ..Default::default() }).await;
    desk.until_runs("fits").await;
    desk.submit(Queued { name: "late", ..Default::default() }).await;
    desk.until_waits("late", "WaitingForQuota").await;
}

#[tokio::test(start_paused = true)]
async fn two_groups_resized_in_opposite_directions_at_once_both_get_there() {
    let desk = desk().await;
    desk.queue("q", "5", json!({})).await;
    submit(&desk, cluster("r", &[("a", 3), ("b", 1)])).await;
    until_pods(&desk, "r", "a", 3, 0).await;
    let kept = until_pods(&desk, "r", "b", 1, 0).await;
    scale(&desk, "r", |groups| {
        groups[0]["replicas"] = 1.into();
        groups[1]["replicas"] = 3.into();
    })
    .await;
    until_pods(&desk, "r", "a", 1, 0).await;
    let now = until_pods(&desk, "r", "b", 3, 0).await;
    assert!(now.contains(&kept[0]));
    let workload = until_admitted(&desk, "r", &[("head", 1), ("a", 1), ("b", 3)]).await;
    assert!(said(&workload, "Evicted").is_none());
    let done = |w: &Workload| {
        said(w, "ResizeRequested").is_some_and(|(status, ..)| status == "False")
            && w.spec.pod_sets.iter().map(|set| set.count).collect::<Vec<_>>() == [1, 1, 3]
    };
    until_workload(&desk, "r", "has its size", done).await;
    until_no_slices(&desk).await;
}

#[tokio::test(start_paused = true)]
async fn replicas_of_several_hosts_are_admitted_whole() {
    let desk = desk().await;
    // A head, a replica of two, and room for three more.
    desk.queue("q", "6", json!({})).await;
    let mut wide = cluster("r", &[("g", 1)]);
    wide["spec"]["workerGroupSpecs"][0]["numOfHosts"] = 2.into();
    submit(&desk, wide).await;
    until_pods(&desk, "r", "g", 2, 0).await;
    scale(&desk, "r", |groups| groups[0]["replicas"] = 3.into()).await;
    until_pods(&desk, "r", "g", 4, 2).await;
    let told = |w: &Workload| {
        said(w, "ResizeRequested").is_some_and(|(_, _, message)| {
            message == "1 of 2 added replicas admitted, waiting for 2 cpu in flavor plain"
        })
    };
    until_workload(&desk, "r", "says what it waits for", told).await;
}

#[tokio::test(start_paused = true)]
async fn a_ray_cluster_that_is_suspended_gives_its_quota_back_and_comes_back_when_resumed() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    let made = submit(&desk, cluster("r", &[("g", 2)])).await;
    until_pods(&desk, "r", "g", 2, 0).await;
    let suspend = async |to: bool| {
        let patch = Patch::Merge(json!({"spec": {"suspend": to}}));
        clusters(&desk).patch("r", &PatchParams::default(), &patch).await.expect("patch it");
    };
    suspend(true).await;
    until_workload(&desk, "r", "gives its quota back", |w| w.status.admission.is_none()).await;
    desk.submit(Queued { name: "next", cpu: "3", ..Default::default() }).await;
    desk.until_runs("next").await;
    assert_eq!(pods(&desk, "r", "g").await, (vec![], 0));
    let rests = clusters(&desk).get("r").await.expect("the cluster");
    assert_eq!(rests.spec.worker_group_specs[0].template, made.spec.worker_group_specs[0].template, "as it was");
    desk.delete("next").await;
    suspend(false).await;
    until_pods(&desk, "r", "g", 2, 0).await;
    until_admitted(&desk, "r", &[("head", 1), ("g", 2)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_preempted_ray_cluster_leaves_whole_and_comes_back_at_its_wanted_size() {
    let desk = desk().await;
    desk.queue("q", "3", json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    desk.class("high", 9).await;
    submit(&desk, cluster("r", &[("g", 1)])).await;
    until_pods(&desk, "r", "g", 1, 0).await;
    scale(&desk, "r", |groups| groups[0]["replicas"] = 3.into()).await;
    until_pods(&desk, "r", "g", 2, 1).await;
    desk.submit(Queued { name: "urgent", class: "high", cpu: "3", ..Default::default() }).await;
    desk.until_runs("urgent").await;
    until_no_slices(&desk).await;
    assert_eq!(pods(&desk, "r", "g").await, (vec![], 0));
    until_workload(&desk, "r", "asks for all it wants", |w| w.spec.pod_sets[1].count == 3).await;
    desk.delete("urgent").await;
    scale(&desk, "r", |groups| groups[0]["replicas"] = 2.into()).await;
    until_pods(&desk, "r", "g", 2, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_ray_cluster_deleted_while_it_grows_leaves_nothing() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    submit(&desk, cluster("r", &[("g", 1)])).await;
    until_pods(&desk, "r", "g", 1, 0).await;
    scale(&desk, "r", |groups| groups[0]["replicas"] = 4.into()).await;
    until_pods(&desk, "r", "g", 2, 2).await;
    clusters(&desk).delete("r", &DeleteParams::background()).await.expect("delete it");
    desk.until_nothing_is_left().await;
    until("its pods are gone", async || {
        desk.world.pods().list(&ListParams::default()).await.expect("pods").items.is_empty().then_some(())
    })
    .await;
    desk.submit(Queued { name: "next", cpu: "3", ..Default::default() }).await;
    desk.until_runs("next").await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_is_replaced_and_takes_the_place_that_came_free() {
    let desk = desk().await;
    desk.queue("q", "3", json!({})).await;
    submit(&desk, cluster("r", &[("g", 2)])).await;
    let before = until_pods(&desk, "r", "g", 2, 0).await;
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    desk.world.pods().patch_status(&before[0], &PatchParams::default(), &failed).await.expect("fail it");
    let now = until("another was let go", async || {
        let (now, waiting) = pods(&desk, "r", "g").await;
        (now.len() == 2 && waiting == 0 && !now.contains(&before[0])).then_some(now)
    })
    .await;
    assert!(now.contains(&before[1]));
}

#[tokio::test(start_paused = true)]
async fn a_ray_cluster_that_a_queued_job_owns_follows_it() {
    let desk = desk().await;
    desk.queue("q", "1", json!({})).await;
    let owner = desk.submit(Queued { name: "owner", ..Default::default() }).await;
    desk.until_runs("owner").await;
    let mut owned = cluster("r", &[("g", 1)]);
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "owner",
        "uid": owner.metadata.uid, "controller": true}]);
    let made = submit(&desk, owned).await;
    assert!(!made.is_suspended());
    until_pods(&desk, "r", "g", 1, 0).await;
    let all = desk.workloads().list(&ListParams::default()).await.expect("workloads").items;
    assert_eq!(all.len(), 1, "only its owner's");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_a_queued_ray_cluster_owns_follows_it() {
    let desk = desk().await;
    desk.queue("q", "2", json!({})).await;
    let owner = submit(&desk, cluster("r", &[("g", 1)])).await;
    until_pods(&desk, "r", "g", 1, 0).await;
    let mut owned = desk.job(&Queued { name: "owned", ..Default::default() });
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r",
        "uid": owner.metadata.uid, "controller": true}]);
    desk.submit_as(owned).await;
    desk.until_runs("owned").await;
    let all = desk.workloads().list(&ListParams::default()).await.expect("workloads").items;
    assert_eq!(all.len(), 1, "only its owner's");
}
