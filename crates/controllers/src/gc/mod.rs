//! Garbage collection by owner references, with Kubernetes' semantics: background, foreground and orphan.
//!
//! Start reading in [`graph`], which knows who owns whom; [`decide`] says what to do about one object; [`apply`] does it.

pub mod apply;
pub mod decide;
pub mod graph;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use usher_env::Clock;

use crate::runtime::{Objects, QueueMetrics, Recorder, Resource, Signal, Tasks, Watches};
use apply::Collector;

const WORKERS: usize = 8;

/// Collects garbage of every kind that can be listed, watched and deleted. Events own nothing and are too many.
pub(crate) fn start(objects: Objects, clock: Clock, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let mut signals = watches.subscribe(is_collected);
    let recorder = Recorder::new(objects.client(), &clock, "garbage-collector-controller", tasks);
    let collector = Arc::new(Collector::new(objects, recorder, watches.clone(), metrics));
    let tasks_inside = tasks.clone();
    tasks.spawn(async move {
        while let Some(signal) = signals.recv().await {
            if matches!(signal, Signal::Settled) {
                // Not before everything has been listed once: an owner that is only not yet listed need not be asked for.
                collector.run(WORKERS, &tasks_inside);
            }
            collector.hear(signal).await;
        }
    });
}

fn is_collected(resource: &Resource) -> bool {
    resource.can("delete") && resource.id.plural != "events"
}
