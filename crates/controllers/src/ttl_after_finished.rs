//! Deletes Jobs that are over, `ttlSecondsAfterFinished` after they ended, with all that they own.
//!
//! Each such Job is a delayed key in one queue: without one there is no timer.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::Client;
use usher_env::Clock;

use crate::job::decide::conditions;
use crate::job::{JobCalls, JobMetrics};
use crate::runtime::objects::{is_conflict, is_not_found};
use crate::runtime::{GroupResource, Key, Outcome, QueueMetrics, Signal, Store, Tasks, Watches, WorkQueue};

const WORKERS: usize = 4;

/// When the Job may go: not before it is over, and not at all if nobody said so.
pub fn expires_at(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let over = conditions::finished(job.status.as_ref()?)?;
    let ended = over.last_transition_time.as_ref()?.0;
    let going = job.metadata.deletion_timestamp.is_some();
    ended.checked_add(SignedDuration::from_secs(ttl.into())).ok().filter(|_| !going)
}

pub(crate) fn start(
    client: Client,
    clock: Clock,
    job_metrics: &JobMetrics,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    let id = GroupResource::new("batch", "jobs");
    let jobs: Store<Job> = watches.view(&id);
    let mut signals = watches.subscribe(move |kind| kind.id == id);
    let queue = WorkQueue::new("ttl_jobs_to_delete", metrics);
    let cleaner = Cleaner { calls: JobCalls { client }, clock, metrics: job_metrics.clone(), jobs: jobs.clone() };
    queue.run(WORKERS, tasks, move |key| {
        let cleaner = cleaner.clone();
        async move { cleaner.clean(key).await }
    });
    tasks.spawn(async move {
        while let Some(signal) = signals.recv().await {
            let Signal::Applied(_, meta) = signal else { continue };
            if jobs.get(&meta.key()).is_some_and(|job| expires_at(&job).is_some()) {
                queue.add(meta.key());
            }
        }
    });
}

#[derive(Clone)]
struct Cleaner {
    calls: JobCalls,
    clock: Clock,
    metrics: JobMetrics,
    jobs: Store<Job>,
}

impl Cleaner {
    async fn clean(&self, key: Key) -> Result<Outcome, kube::Error> {
        let Some(expiry) = self.jobs.get(&key).and_then(|job| expires_at(&job)) else { return Ok(Outcome::Settled) };
        if let Some(left) = self.left(expiry) {
            return Ok(Outcome::After(left));
        }
        // The cache may be late, and the time to live may have been prolonged.
        let Some(live) = self.calls.get_job(&key.namespace, &key.name).await? else { return Ok(Outcome::Settled) };
        let Some(expiry) = expires_at(&live) else { return Ok(Outcome::Settled) };
        if let Some(left) = self.left(expiry) {
            return Ok(Outcome::After(left));
        }
        match self.calls.delete_job(&live).await {
            Ok(()) => self.metrics.ttl_deleted(self.clock.now().duration_since(expiry).as_secs_f64()),
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(Outcome::Settled)
    }

    fn left(&self, expiry: Timestamp) -> Option<Duration> {
        let left = expiry.duration_since(self.clock.now());
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn expiry(spec: Value, conditions: Value, deleted: Value) -> Option<String> {
        let mut spec = spec;
        spec["template"] = json!({});
        let job: Job = serde_json::from_value(
            json!({"metadata": {"deletionTimestamp": deleted}, "spec": spec, "status": {"conditions": conditions}}),
        )
        .unwrap();
        expires_at(&job).map(|at| at.to_string())
    }

    #[test]
    fn only_a_job_that_is_over_and_has_a_time_to_live_expires() {
        let over = |kind: &str, status: &str| {
            json!([{"type": "Suspended", "status": "False", "lastTransitionTime": "2025-01-01T00:00:00Z"},
                {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        let ttl = json!({"ttlSecondsAfterFinished": 90});
        let end = Some("2026-01-01T00:01:30Z".to_string());
        assert_eq!(expiry(ttl.clone(), over("Complete", "True"), json!(null)), end);
        assert_eq!(expiry(ttl.clone(), over("Failed", "True"), json!(null)), end);
        assert_eq!(
            expiry(json!({"ttlSecondsAfterFinished": 0}), over("Failed", "True"), json!(null)).as_deref(),
            Some("2026-01-01T00:00:00Z")
        );
        assert_eq!(expiry(ttl.clone(), over("Complete", "False"), json!(null)), None);
        assert_eq!(expiry(ttl.clone(), over("SuccessCriteriaMet", "True"), json!(null)), None);
        assert_eq!(expiry(json!({}), over("Complete", "True"), json!(null)), None);
        assert_eq!(expiry(ttl, over("Complete", "True"), json!("2026-01-01T00:00:30Z")), None);
    }
}
