//! What is to be done about one RayCluster and its pods: a function of both.
//!
//! As KubeRay does it: pods that have ended go and are made anew when they are gone, pods that `workersToDelete` names go
//! whatever `replicas` says, and where an autoscaler decides, nobody else chooses pods to go. A replica of several hosts comes
//! and goes as one. Nothing is made for a cluster whose status still says that it has no pods: others rely on that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use usher_api::ray::RayCluster;
use usher_api::ray::keys::{HEAD_GROUP, KUBERAY, label};
use usher_api::ray::ray_cluster::WorkerGroup;
use usher_api::ray::status::ClusterCondition;

use super::pods::{Place, has_ended, labelled};

/// Pods to make and pods to delete.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub create: Vec<Place>,
    pub delete: Vec<Arc<Pod>>,
}

/// Whether this cluster is looked after here at all.
pub fn is_ours(cluster: &RayCluster) -> bool {
    cluster.metadata.deletion_timestamp.is_none() && cluster.spec.managed_by.as_deref().is_none_or(|by| by == KUBERAY)
}

/// `pods` are those that the cluster controls.
pub fn decide(cluster: &RayCluster, pods: &[Arc<Pod>]) -> Plan {
    let mut plan = Plan::default();
    if !is_ours(cluster) {
        return plan;
    }
    if cluster.is_suspended() || cluster.is(ClusterCondition::Suspending) {
        plan.delete = pods.iter().filter(|pod| !is_going(pod)).cloned().collect();
        return plan;
    }
    if !cluster.may_have_pods() {
        // Its status says so first, and brings us back.
        return plan;
    }
    head(pods, &mut plan);
    let groups = &cluster.spec.worker_group_specs;
    for (at, group) in groups.iter().enumerate() {
        workers(cluster, at, group, pods, &mut plan);
    }
    // Groups that there are no more.
    let known: BTreeSet<&str> =
        groups.iter().map(|group| group.group_name.as_str()).chain(std::iter::once(HEAD_GROUP)).collect();
    let strangers = pods.iter().filter(|pod| !is_going(pod) && !known.contains(labelled(pod, label::GROUP)));
    plan.delete.extend(strangers.cloned());
    plan
}

fn is_going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn head(pods: &[Arc<Pod>], plan: &mut Plan) {
    let heads: Vec<&Arc<Pod>> = pods.iter().filter(|pod| labelled(pod, label::GROUP) == HEAD_GROUP).collect();
    let ended = heads.iter().filter(|pod| has_ended(pod) && !is_going(pod));
    plan.delete.extend(ended.map(|pod| (*pod).clone()));
    if heads.is_empty() {
        plan.create.push(Place::Head);
    }
}

fn workers(cluster: &RayCluster, at: usize, group: &WorkerGroup, pods: &[Arc<Pod>], plan: &mut Plan) {
    let own = pods.iter().filter(|pod| labelled(pod, label::GROUP) == group.group_name);
    let mut replicas: BTreeMap<u32, Vec<&Arc<Pod>>> = BTreeMap::new();
    let mut unnumbered = u32::MAX;
    for pod in own {
        let index = labelled(pod, label::REPLICA_INDEX).parse().unwrap_or_else(|_| {
            unnumbered -= 1;
            unnumbered
        });
        replicas.entry(index).or_default().push(pod);
    }
    let named: BTreeSet<&str> = group.workers_to_delete().iter().map(String::as_str).collect();
    let is_named = |pod: &Pod| named.contains(pod.metadata.name.as_deref().unwrap_or_default());
    let (going, mut staying): (Vec<_>, Vec<_>) =
        replicas.iter().partition(|(_, pods)| pods.iter().any(|pod| is_going(pod) || has_ended(pod) || is_named(pod)));
    let mut delete = |pods: &[&Arc<Pod>]| {
        plan.delete.extend(pods.iter().filter(|pod| !is_going(pod)).map(|pod| (*pod).clone()));
    };
    going.iter().for_each(|(_, pods)| delete(pods));
    let wanted = usize::try_from(group.wanted_replicas()).unwrap_or(0);
    // A suspended group goes whole; else, where an autoscaler decides, it says which.
    if staying.len() > wanted && (!cluster.autoscales() || group.suspend == Some(true)) {
        staying.sort_by_key(|(index, pods)| (pods.iter().map(|pod| rank(pod)).max(), **index));
        staying.split_off(wanted).iter().for_each(|(_, pods)| delete(pods));
    }
    let hosts = u32::try_from(group.hosts()).unwrap_or(1);
    let host_of = |pod: &Pod| labelled(pod, label::HOST_INDEX).parse::<u32>().unwrap_or(0);
    for (index, pods) in &staying {
        let missing = (0..hosts).filter(|host| !pods.iter().any(|pod| host_of(pod) == *host));
        plan.create.extend(missing.map(|host| Place::Worker { group: at, replica: **index, host }));
    }
    let missing = wanted.saturating_sub(staying.len() + going.len());
    let free = (0..u32::MAX).filter(|index| !replicas.contains_key(index)).take(missing);
    for replica in free {
        plan.create.extend((0..hosts).map(|host| Place::Worker { group: at, replica, host }));
    }
}

/// The higher, the sooner a pod is given up: at its gate, not running, young.
fn rank(pod: &Pod) -> (bool, bool, Option<jiff::Timestamp>) {
    let gated = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty());
    let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    (gated, !running, pod.metadata.creation_timestamp.as_ref().map(|at| at.0))
}
