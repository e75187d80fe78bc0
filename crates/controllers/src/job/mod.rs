//! Runs Jobs: creates their pods, counts how these end, and ends the Job, as Kubernetes' own controller does.
//!
//! Start reading in [`observe`] (what is known), then [`decide`] (what to do: pure), then [`apply`] (doing it).

pub mod apply;
mod cache;
mod calls;
mod carry_out;
pub mod claim;
pub mod decide;
mod listen;
mod memory;
pub mod metrics;
pub mod names;
pub mod observe;
mod orphans;
mod pods;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use usher_env::Clock;

use crate::runtime::{GroupResource, QueueMetrics, Recorder, Signal, Tasks, Watches, WorkQueue};
use apply::Controller;
use cache::Cache;
use calls::Calls;
pub(crate) use calls::Calls as JobCalls;
use listen::Listener;
pub use metrics::JobMetrics;
pub use observe::Policy;

/// How the Job controller runs.
#[derive(Clone, Debug)]
pub struct Options {
    pub workers: usize,
    /// How long events of pods are gathered before their Job is looked at. Upstream takes a second.
    pub batch: Duration,
    pub policy: Policy,
}

impl Default for Options {
    fn default() -> Self {
        Options { workers: 8, batch: Duration::from_millis(10), policy: Policy::default() }
    }
}

const ORPHAN_WORKERS: usize = 4;
/// Upstream's longest wait before a failed look is repeated.
const RETRY_CAP: Duration = Duration::from_secs(60);

pub(crate) fn start(
    client: Client,
    clock: Clock,
    options: Options,
    job_metrics: &JobMetrics,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    let cache = Cache::new(watches);
    let mut signals = watches.subscribe(|kind| kind.id.is("batch", "jobs") || kind.id.is("", "pods"));
    let controller = Arc::new(Controller {
        recorder: Recorder::new(&client, &clock, "job-controller", tasks),
        calls: Calls { client },
        cache,
        clock,
        memories: Default::default(),
        metrics: job_metrics.clone(),
        policy: options.policy,
    });
    let jobs = WorkQueue::with_retry_cap("job", metrics, RETRY_CAP);
    let orphans = WorkQueue::with_retry_cap("job_orphan_pod", metrics, RETRY_CAP);
    let mut listener = Listener::new(controller.clone(), jobs.clone(), orphans.clone(), options.batch);
    let workers = tasks.clone();
    tasks.spawn(async move {
        // A pod whose Job is only not listed yet is no orphan, and a Job whose pods are not listed yet lacks none.
        let mut awaited = vec![GroupResource::new("batch", "jobs"), GroupResource::new("", "pods")];
        while let Some(signal) = signals.recv().await {
            let synced = match &signal {
                Signal::Synced(kind) => Some(kind.id.clone()),
                _ => None,
            };
            listener.hear(signal);
            if let Some(kind) = synced.filter(|kind| awaited.contains(kind)) {
                awaited.retain(|other| *other != kind);
                if awaited.is_empty() {
                    let worker = controller.clone();
                    jobs.run(options.workers, &workers, move |key| {
                        let worker = worker.clone();
                        async move { worker.sync(key).await }
                    });
                    let worker = controller.clone();
                    orphans.run(ORPHAN_WORKERS, &workers, move |key| {
                        let worker = worker.clone();
                        async move { worker.free_orphan(key).await }
                    });
                }
            }
        }
    });
}
