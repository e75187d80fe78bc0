//! What a job finds in its namespace: kept by two small watches, so that an answer needs no request.
//!
//! Only objects named `default` are watched, whatever else there is.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use usher_api::kueue::keys::{DEFAULT_LOCAL_QUEUE, DEFAULT_WORKLOAD_PRIORITY_CLASS, label};
use usher_api::kueue::rules::{Gates, Surroundings};
use usher_api::kueue::{LocalQueue, WorkloadPriorityClass};
use usher_api::ray::RayCluster;

use super::review::{Owner, Subject};
use crate::names::SYSTEM_NAMESPACE;

/// Clones know the same.
#[derive(Clone)]
pub struct Around {
    client: Client,
    gates: Gates,
    known: Arc<RwLock<Known>>,
}

#[derive(Default)]
struct Known {
    /// Namespaces with a LocalQueue `default`; None before the first list.
    queues: Option<BTreeSet<String>>,
    /// Whether there is a class `default`; None before the first list.
    class: Option<bool>,
}

impl Around {
    /// Watches until `stop`.
    pub fn watch(client: &Client, gates: Gates, stop: &CancellationToken) -> Around {
        let around = Around { client: client.clone(), gates, known: Arc::default() };
        let (queues, classes) = (around.clone(), around.clone());
        let run = async move { tokio::join!(queues.watch_queues(), classes.watch_classes()) };
        tokio::spawn(stop.clone().run_until_cancelled_owned(run));
        around
    }

    /// Whether both have been listed.
    pub fn is_known(&self) -> bool {
        let known = self.known.read();
        known.queues.is_some() && known.class.is_some()
    }

    pub fn of(&self, namespace: &str) -> Surroundings {
        let known = self.known.read();
        Surroundings {
            default_queue: namespace != SYSTEM_NAMESPACE
                && known.queues.as_ref().is_some_and(|queues| queues.contains(namespace)),
            default_priority_class: known.class == Some(true),
            elastic_jobs: self.gates.elastic_jobs,
        }
    }

    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    /// Whether an owner is in a queue itself. It is asked for, because few jobs have owners that could be.
    pub async fn is_queued(&self, namespace: &str, owner: Owner<'_>) -> bool {
        let labels = match owner.kind {
            Subject::Job => {
                let api: Api<Job> = Api::namespaced(self.client.clone(), namespace);
                api.get_metadata_opt(owner.name).await.map(|found| found.and_then(|o| o.metadata.labels))
            }
            Subject::RayCluster => {
                let api: Api<RayCluster> = Api::namespaced(self.client.clone(), namespace);
                api.get_metadata_opt(owner.name).await.map(|found| found.and_then(|o| o.metadata.labels))
            }
            Subject::Queueing | Subject::Other => return false,
        };
        match labels {
            Ok(labels) => labels.is_some_and(|l| l.get(label::QUEUE_NAME).is_some_and(|name| !name.is_empty())),
            Err(error) => {
                tracing::warn!(namespace, owner = owner.name, %error, "cannot see whether the owner is queued");
                false
            }
        }
    }

    async fn watch_queues(&self) {
        follow_default_queues(&self.client, |found| self.known.write().queues = Some(found.clone())).await;
    }

    async fn watch_classes(&self) {
        let api: Api<PartialObjectMeta<WorkloadPriorityClass>> = Api::all(self.client.clone());
        let only = Config::default().fields(&format!("metadata.name={DEFAULT_WORKLOAD_PRIORITY_CLASS}"));
        let mut events = std::pin::pin!(watcher(api, only).default_backoff());
        let mut found = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => found = false,
                Ok(Event::InitApply(_) | Event::Apply(_)) => found = true,
                Ok(Event::Delete(_)) => found = false,
                Ok(Event::InitDone) => {}
                Err(error) => {
                    tracing::debug!(%error, "the watch of WorkloadPriorityClasses was cut");
                    continue;
                }
            }
            // Within a list nothing is certain yet.
            if !matches!(event, Ok(Event::Init | Event::InitApply(_))) {
                self.known.write().class = Some(found);
            }
        }
    }
}

/// Tells which namespaces have a LocalQueue `default`, at first and whenever that changes. Does not return.
pub(crate) async fn follow_default_queues(client: &Client, mut tell: impl FnMut(&BTreeSet<String>)) {
    let api: Api<PartialObjectMeta<LocalQueue>> = Api::all(client.clone());
    let only = Config::default().fields(&format!("metadata.name={DEFAULT_LOCAL_QUEUE}"));
    let mut events = std::pin::pin!(watcher(api, only).default_backoff());
    let (mut found, mut listed) = (BTreeSet::new(), BTreeSet::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(queue)) => {
                listed.extend(queue.namespace());
            }
            Ok(Event::InitDone) => {
                found = std::mem::take(&mut listed);
                tell(&found);
            }
            Ok(Event::Apply(queue)) => {
                found.extend(queue.namespace());
                tell(&found);
            }
            Ok(Event::Delete(queue)) => {
                queue.namespace().inspect(|namespace| {
                    found.remove(namespace);
                });
                tell(&found);
            }
            Err(error) => tracing::debug!(%error, "the watch of LocalQueues was cut"),
        }
    }
}
