//! RayClusters where there is no KubeRay: pods for the head and the workers, and a status that tells about them as KubeRay's
//! does. Only `usher up` runs it.
//!
//! Start reading in [`decide`]. It makes pods and takes them away, and nothing else: no services, no autoscaler, no secrets, no
//! `ray start` in their commands. Ray's autoscaler, or whoever plays it, writes `replicas` and `workersToDelete`.

mod apply;
pub mod decide;
pub mod pods;
pub mod status;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use usher_api::ray;
use usher_env::Clock;

use crate::runtime::{GroupResource, Key, QueueMetrics, Signal, Tasks, Watches, WorkQueue};
use apply::Runner;

const WORKERS: usize = 8;

pub(crate) fn start(client: &Client, clock: &Clock, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let (clusters_id, pods_id) = (GroupResource::new(ray::GROUP, "rayclusters"), GroupResource::new("", "pods"));
    let clusters = watches.view(&clusters_id);
    let pods = watches.view::<Pod>(&pods_id).index(|pod| {
        let owners = pod.metadata.owner_references.iter().flatten();
        owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str().into()).collect()
    });
    let wanted = [clusters_id.clone(), pods_id.clone()];
    let mut signals = watches.subscribe(move |resource| wanted.contains(&resource.id));
    let queue: WorkQueue<Key> = WorkQueue::new("raycluster", metrics);
    let runner = Arc::new(Runner::new(client, clock, watches, clusters, pods, tasks));
    let inside = tasks.clone();
    tasks.spawn(async move {
        // Not before both kinds have been listed once: a pod that is only not yet listed would be made again.
        let mut awaited = vec![clusters_id.clone(), pods_id];
        while let Some(signal) = signals.recv().await {
            match signal {
                Signal::Synced(resource) if !awaited.is_empty() => {
                    awaited.retain(|id| *id != resource.id);
                    if awaited.is_empty() {
                        let runner = runner.clone();
                        queue.run(WORKERS, &inside, move |key| {
                            let runner = runner.clone();
                            async move { runner.sync(&key).await }
                        });
                    }
                }
                Signal::Applied(resource, meta) | Signal::Deleted(resource, meta) => {
                    if resource.id == clusters_id {
                        queue.add(meta.key());
                    } else if let Some(owner) = meta.owner_references.iter().find(|o| o.controller == Some(true))
                        && &*owner.kind == "RayCluster"
                    {
                        queue.add(Key::new(&meta.namespace, &owner.name));
                    }
                }
                _ => {}
            }
        }
    });
}
