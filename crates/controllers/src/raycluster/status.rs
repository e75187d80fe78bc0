//! What is told about a RayCluster, in KubeRay's words. `suspended` is said only when there is no pod, and taken back before
//! the first is made.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use usher_api::kueue::conditions::{self, condition};
use usher_api::quantity::Quantity;
use usher_api::ray::RayCluster;
use usher_api::ray::keys::{HEAD_GROUP, label};
use usher_api::ray::status::{ClusterCondition, HeadInfo, RayClusterStatus, state};

use super::pods::{labelled, phase};

/// The status as it is to be; the same as it was, if nothing has changed.
pub fn status(cluster: &RayCluster, pods: &[Arc<Pod>], now: Timestamp) -> RayClusterStatus {
    let mut to = cluster.status.clone();
    count(cluster, pods, &mut to);
    let head = pods.iter().find(|pod| labelled(pod, label::GROUP) == HEAD_GROUP);
    let place = |pod: &Arc<Pod>| HeadInfo {
        pod_IP: pod.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default(),
        pod_name: pod.metadata.name.clone().unwrap_or_default(),
        ..HeadInfo::default()
    };
    to.head = head.map(place);
    let desired = usize::try_from(to.desired_worker_replicas.unwrap_or(0)).unwrap_or(0);
    if pods.len() == desired + 1 && pods.iter().all(|pod| is_ready(pod)) && !cluster.is_suspended() {
        to.state = state::READY.to_owned();
    }
    if cluster.is_suspended() && pods.is_empty() {
        to.state = state::SUSPENDED.to_owned();
    }
    let mut say = |ty: ClusterCondition, is: bool, reason: &str, message: &str| {
        conditions::set(&mut to.conditions, condition(ty.as_str(), is, reason, message, None, now));
    };
    match head {
        Some(head) if is_ready(head) => say(ClusterCondition::HeadPodReady, true, "HeadPodRunningAndReady", ""),
        Some(_) => say(ClusterCondition::HeadPodReady, false, "Unknown", ""),
        None => say(ClusterCondition::HeadPodReady, false, "HeadPodNotFound", "Head Pod not found"),
    }
    let (is_suspended, is_suspending) = match () {
        () if cluster.is(ClusterCondition::Suspended) => (cluster.is_suspended(), false),
        () if cluster.is(ClusterCondition::Suspending) => (pods.is_empty(), !pods.is_empty()),
        // One that never had a pod has nothing to wait for.
        () if cluster.is_suspended() => (pods.is_empty(), !pods.is_empty()),
        () => (false, false),
    };
    if is_suspended {
        let message = "RayCluster has been suspended";
        say(ClusterCondition::Provisioned, false, "RayClusterPodsProvisioning", message);
    } else if !cluster.is(ClusterCondition::Provisioned) {
        if !pods.is_empty() && pods.len() == desired + 1 && pods.iter().all(|pod| is_ready(pod)) {
            let message = "All Ray Pods are ready for the first time";
            say(ClusterCondition::Provisioned, true, "AllPodRunningAndReadyFirstTime", message);
        } else {
            let message = "RayCluster Pods are being provisioned for first time";
            say(ClusterCondition::Provisioned, false, "RayClusterPodsProvisioning", message);
        }
    }
    let word = |ty: ClusterCondition| ty.as_str();
    say(ClusterCondition::Suspending, is_suspending, word(ClusterCondition::Suspending), "");
    say(ClusterCondition::Suspended, is_suspended, word(ClusterCondition::Suspended), "");
    to.observed_generation = cluster.metadata.generation;
    if to != cluster.status {
        if to.state != cluster.status.state {
            to.state_transition_times.insert(to.state.clone(), Time(now));
        }
        to.last_update_time = Some(Time(now));
    }
    to
}

/// Whether nothing but the numbers of workers that run differs: of these the newest is enough, a little later.
pub fn differs_in_counts_only(from: &RayClusterStatus, to: &RayClusterStatus) -> bool {
    let without = |status: &RayClusterStatus| RayClusterStatus {
        ready_worker_replicas: None,
        available_worker_replicas: None,
        last_update_time: None,
        ..status.clone()
    };
    without(from) == without(to)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    phase(pod) == "Running" && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn count(cluster: &RayCluster, pods: &[Arc<Pod>], to: &mut RayClusterStatus) {
    let workers = || pods.iter().filter(|pod| labelled(pod, label::NODE_TYPE) == "worker");
    // None is left out, as Go does it.
    let shown = |count: usize| i32::try_from(count).ok().filter(|count| *count > 0);
    to.ready_worker_replicas = shown(workers().filter(|pod| is_ready(pod)).count());
    to.available_worker_replicas = shown(workers().filter(|pod| phase(pod) == "Running").count());
    let groups = || cluster.spec.worker_group_specs.iter().filter(|group| group.suspend != Some(true));
    let sum = |of: &dyn Fn(&usher_api::ray::ray_cluster::WorkerGroup) -> i32| {
        let total = groups().fold(0_i32, |total, group| total.saturating_add(of(group)));
        Some(total).filter(|total| *total > 0)
    };
    to.desired_worker_replicas = sum(&|group| group.wanted_pods());
    to.min_worker_replicas = sum(&|group| group.min_replicas.unwrap_or(0).max(0).saturating_mul(group.hosts()));
    to.max_worker_replicas = sum(&|group| group.max_replicas.unwrap_or(i32::MAX).max(0).saturating_mul(group.hosts()));
    let total = |of: &dyn Fn(&str) -> bool| {
        let head = asked(&cluster.spec.head_group_spec.template, of);
        let workers = groups().map(|group| (asked(&group.template, of), i64::from(group.wanted_pods())));
        let total =
            workers.fold(head.milli(), |sum, (each, pods)| sum.saturating_add(each.milli().saturating_mul(pods)));
        let format =
            groups().map(|group| asked(&group.template, of)).find(|each| !each.is_zero()).unwrap_or(head).format();
        Some(if total % 1000 == 0 {
            Quantity::from_units(total / 1000, format)
        } else {
            Quantity::from_milli(total, format)
        })
    };
    to.desired_CPU = total(&|name| name == "cpu");
    to.desired_memory = total(&|name| name == "memory");
    to.desired_GPU = total(&|name| name.ends_with("gpu"));
    to.desired_TPU = total(&|name| name == "google.com/tpu");
}

/// What a pod asks for; where a container asks for nothing, its limit.
fn asked(template: &PodTemplateSpec, of: &dyn Fn(&str) -> bool) -> Quantity {
    let mut sum = Quantity::ZERO;
    for container in template.spec.iter().flat_map(|spec| &spec.containers) {
        let Some(resources) = &container.resources else { continue };
        let mut all = resources.limits.clone().unwrap_or_default();
        all.extend(resources.requests.clone().unwrap_or_default());
        for (_, amount) in all.into_iter().filter(|(name, _)| of(name)) {
            sum = sum + Quantity::parse(&amount.0).unwrap_or_default();
        }
    }
    sum
}
