//! The end of a namespace: everything in it goes, pods first, and then its finalizer `kubernetes`.
//!
//! Start reading in [`decide`], which turns what was found into conditions and a verdict; [`apply`] finds and deletes.
//! While content waits for finalizers or for a node, nothing is asked again until a watch tells that something changed.

pub mod apply;
pub mod decide;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usher_env::Clock;

use crate::runtime::{Objects, QueueMetrics, Resource, Signal, Tasks, Watches, WorkQueue};
use apply::Emptier;

const WORKERS: usize = 4;
/// Upstream retries namespaces at least every minute.
const RETRY_CAP: Duration = Duration::from_secs(60);

pub(crate) fn start(
    objects: Objects,
    clock: Clock,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
    delay: Duration,
) {
    let mut signals = watches.subscribe(|resource| is_namespace(resource) || is_content(resource));
    let queue: WorkQueue<Arc<str>> = WorkQueue::with_retry_cap("namespace", metrics, RETRY_CAP);
    let emptier = Arc::new(Emptier { objects, clock, watches: watches.clone() });
    queue.run(WORKERS, tasks, move |namespace| {
        let emptier = emptier.clone();
        async move { emptier.sync(&namespace).await }
    });
    tasks.spawn(async move {
        // Each with the moment from which it may be emptied.
        let mut leaving: BTreeMap<Arc<str>, Instant> = BTreeMap::new();
        let look = |name: &Arc<str>, from: Instant| {
            queue.add_after(name.clone(), from.saturating_duration_since(Instant::now()));
        };
        while let Some(signal) = signals.recv().await {
            match signal {
                Signal::Applied(resource, meta) if is_namespace(&resource) && meta.being_deleted() => {
                    let from = *leaving.entry(meta.name.clone()).or_insert_with(|| Instant::now() + delay);
                    look(&meta.name, from);
                }
                Signal::Deleted(resource, meta) if is_namespace(&resource) => {
                    leaving.remove(&meta.name);
                }
                Signal::Applied(_, meta) | Signal::Deleted(_, meta) => {
                    if let Some(from) = leaving.get(&meta.namespace) {
                        look(&meta.namespace, *from);
                    }
                }
                // A kind that could not be listed before may hold content.
                Signal::Catalog(_) => leaving.iter().for_each(|(name, from)| look(name, *from)),
                Signal::Synced(_) | Signal::Settled => {}
            }
        }
    });
}

fn is_namespace(resource: &Resource) -> bool {
    resource.id.is("", "namespaces")
}

/// Events have no finalizers: they are gone when they are deleted, and too many to be watched for that.
fn is_content(resource: &Resource) -> bool {
    resource.namespaced && resource.can("delete") && resource.id.plural != "events"
}
