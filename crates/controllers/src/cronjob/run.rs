//! Starts the controller: what it watches, who works, and what wakes it. It decides nothing.

use std::sync::Arc;

use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::Client;
use usher_env::Clock;

use super::apply::Runner;
use super::decide;
use super::hear::Ear;
use super::metrics::Metrics;
use crate::runtime::{GroupResource, Key, QueueMetrics, Recorder, Signal, Tasks, Watches, WorkQueue};

/// Upstream has five. Ours wait for one disk together, so more of them mean fewer waits when many CronJobs share a slot.
const WORKERS: usize = 32;

/// What may be chosen, read once at the edge.
#[derive(Clone, Debug)]
pub struct Policy {
    /// KEP-4026: Jobs carry the time they were meant to run at.
    pub annotate: bool,
    /// The zone of schedules that name none.
    pub local: TimeZone,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { annotate: true, local: TimeZone::UTC }
    }
}

pub(crate) fn start(
    client: Client,
    clock: Clock,
    watches: &Watches,
    tasks: &Tasks,
    queues: &QueueMetrics,
    policy: Policy,
    metrics: Metrics,
) {
    let (crons_id, jobs_id) = (GroupResource::new("batch", "cronjobs"), GroupResource::new("batch", "jobs"));
    let crons = watches.view::<CronJob>(&crons_id);
    let jobs = watches
        .view::<Job>(&jobs_id)
        .index(|job| decide::controller(job).map(|o| o.uid.as_str().into()).into_iter().collect());
    let mut signals = watches.subscribe(move |resource| resource.id == crons_id || resource.id == jobs_id);
    let queue: WorkQueue<Key> = WorkQueue::new("cronjob", queues);
    let recorder = Recorder::new(&client, &clock, "cronjob-controller", tasks);
    let runner =
        Arc::new(Runner::new(client, clock.clone(), crons.clone(), jobs, recorder.clone(), policy.clone(), metrics));
    let mut jumps = clock.jumps();
    let mut ear = Ear::new(crons.clone(), queue.clone(), recorder, clock, policy);
    let (queue_of_jumps, inside) = (queue.clone(), tasks.clone());
    tasks.spawn(async move {
        loop {
            jumps.next().await;
            crons.all().into_iter().for_each(|(key, _)| queue_of_jumps.add(key));
        }
    });
    tasks.spawn(async move {
        // Not before both kinds have been listed once: a Job that is only not yet listed would be taken for missing.
        let mut awaited = vec!["cronjobs", "jobs"];
        while let Some(signal) = signals.recv().await {
            if let Signal::Synced(resource) = &signal
                && !awaited.is_empty()
            {
                awaited.retain(|plural| *plural != resource.id.plural);
                if awaited.is_empty() {
                    let runner = runner.clone();
                    queue.run(WORKERS, &inside, move |key| {
                        let runner = runner.clone();
                        async move { runner.sync(&key).await }
                    });
                }
            }
            ear.hear(signal);
        }
    });
}
