//! The Job controller's metrics, by upstream's names.

use k8s_openapi::api::batch::v1::JobStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::decide::Indexes;
use super::decide::failure::Action;
use super::observe::Spec;

macro_rules! labels {
    ($($name:ident { $($field:ident),* })*) => {
        $(#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        struct $name { $($field: String),* })*
    };
}

labels! {
    Sync { completion_mode, result, action }
    Finished { completion_mode, result, reason }
    PodsFinished { completion_mode, result }
    Handled { action }
    Tracking { event }
    Creation { reason, status }
    External { controller_name }
    Stale { group, resource }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case)]
struct FinishedIndexes {
    status: String,
    backoffLimit: String,
}

/// Cheap to clone; clones count into the same numbers.
#[derive(Clone, Debug)]
pub struct JobMetrics {
    sync_secs: Family<Sync, Histogram, fn() -> Histogram>,
    syncs: Family<Sync, Counter>,
    finished: Family<Finished, Counter>,
    pods_finished: Family<PodsFinished, Counter>,
    handled: Family<Handled, Counter>,
    tracking: Family<Tracking, Counter>,
    finished_indexes: Family<FinishedIndexes, Counter>,
    creations: Family<Creation, Counter>,
    external: Family<External, Counter>,
    stale: Family<Stale, Counter>,
    ttl_secs: Histogram,
}

impl Default for JobMetrics {
    fn default() -> Self {
        JobMetrics {
            sync_secs: Family::new_with_constructor(sync_buckets),
            syncs: Family::default(),
            finished: Family::default(),
            pods_finished: Family::default(),
            handled: Family::default(),
            tracking: Family::default(),
            finished_indexes: Family::default(),
            creations: Family::default(),
            external: Family::default(),
            stale: Family::default(),
            ttl_secs: Histogram::new(exponential_buckets(0.1, 2.0, 14)),
        }
    }
}

fn sync_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.004, 2.0, 15))
}

impl JobMetrics {
    /// The library appends `_total` to counters.
    pub fn register(&self, registry: &mut Registry) {
        macro_rules! register {
            ($($field:ident $name:literal $help:literal)*) => {
                $(registry.register(concat!("job_controller_", $name), $help, self.$field.clone());)*
            };
        }
        register! {
            sync_secs "job_sync_duration_seconds" "The time it took to sync a job"
            syncs "job_syncs" "The number of job syncs"
            finished "jobs_finished" "The number of finished jobs"
            pods_finished "job_pods_finished" "The number of finished Pods that are fully tracked"
            handled "pod_failures_handled_by_failure_policy" "The number of failed Pods handled by failure policy, by the action of the matched rule"
            tracking "terminated_pods_tracking_finalizer" "The number of terminated pods (phase=Failed|Succeeded) that have the finalizer batch.kubernetes.io/job-tracking, by event: add or delete"
            finished_indexes "job_finished_indexes" "The number of finished indexes, by status (succeeded, failed) and backoffLimit (perIndex, global)"
            creations "job_pods_creation" "The number of Pods created by the Job controller, by reason (new, recreate_terminating_or_failed, recreate_failed) and status (succeeded, failed)"
            external "jobs_by_external_controller" "The number of Jobs managed by an external controller"
            stale "stale_sync_skips" "Total number of Job syncs skipped due to a stale watch cache"
        }
        registry.register(
            "ttl_after_finished_controller_job_deletion_duration_seconds",
            "The time it took to delete the job since it became eligible for deletion",
            self.ttl_secs.clone(),
        );
    }

    pub(crate) fn synced(&self, mode: &str, ok: bool, action: &str, secs: f64) {
        let result = if ok { "success" } else { "error" };
        let labels = Sync { completion_mode: mode.into(), result: result.into(), action: action.into() };
        self.sync_secs.get_or_create(&labels).observe(secs);
        self.syncs.get_or_create(&labels).inc();
    }

    pub(crate) fn job_finished(&self, mode: &str, success: bool, reason: &str) {
        let result = if success { "succeeded" } else { "failed" };
        let labels = Finished { completion_mode: mode.into(), result: result.into(), reason: reason.into() };
        self.finished.get_or_create(&labels).inc();
    }

    /// Counts what a status write has counted.
    pub(crate) fn counted(&self, spec: &Spec, old: &JobStatus, new: &JobStatus) {
        let more = |new: i32, old: i32| u64::try_from(new.saturating_sub(old)).unwrap_or(0);
        let indexes =
            |text: &Option<String>| Indexes::parse(text.as_deref().unwrap_or_default(), spec.index_count()).count();
        let failed = more(new.failed.unwrap_or(0), old.failed.unwrap_or(0));
        let succeeded = match spec.indexed {
            true => more(indexes(&new.completed_indexes), indexes(&old.completed_indexes)),
            false => more(new.succeeded.unwrap_or(0), old.succeeded.unwrap_or(0)),
        };
        for (result, count) in [("succeeded", succeeded), ("failed", failed)] {
            let labels = PodsFinished { completion_mode: spec.mode().into(), result: result.into() };
            self.pods_finished.get_or_create(&labels).inc_by(count);
        }
        if spec.indexed {
            let per_index = spec.backoff_limit_per_index.is_some();
            let limit = if per_index { "perIndex" } else { "global" };
            let failed = more(indexes(&new.failed_indexes), indexes(&old.failed_indexes));
            for (status, count) in [("succeeded", succeeded), ("failed", failed)] {
                let labels = FinishedIndexes { status: status.into(), backoffLimit: limit.into() };
                if count > 0 {
                    self.finished_indexes.get_or_create(&labels).inc_by(count);
                }
            }
        }
    }

    pub(crate) fn handled_by_policy(&self, action: Action, count: u64) {
        self.handled.get_or_create(&Handled { action: action.as_str().into() }).inc_by(count);
    }

    /// A pod that has ended got (or was found with) the finalizer, or lost it.
    pub(crate) fn tracked(&self, added: bool) {
        let event = if added { "add" } else { "delete" };
        self.tracking.get_or_create(&Tracking { event: event.into() }).inc();
    }

    pub(crate) fn created(&self, reason: &str, succeeded: u64, failed: u64) {
        for (status, count) in [("succeeded", succeeded), ("failed", failed)] {
            if count > 0 {
                let labels = Creation { reason: reason.into(), status: status.into() };
                self.creations.get_or_create(&labels).inc_by(count);
            }
        }
    }

    pub(crate) fn managed_by(&self, controller: &str) {
        self.external.get_or_create(&External { controller_name: controller.into() }).inc();
    }

    pub(crate) fn stale(&self, group: &str, resource: &str) {
        self.stale.get_or_create(&Stale { group: group.into(), resource: resource.into() }).inc();
    }

    pub(crate) fn ttl_deleted(&self, secs: f64) {
        self.ttl_secs.observe(secs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_upstreams_names() {
        let metrics = JobMetrics::default();
        metrics.synced("Indexed", true, "tracking", 0.001);
        metrics.job_finished("Indexed", false, "FailedIndexes");
        metrics.handled_by_policy(Action::Ignore, 2);
        metrics.tracked(true);
        metrics.created("new", 3, 1);
        metrics.managed_by("example.com/other");
        metrics.stale("batch", "jobs");
        metrics.ttl_deleted(1.0);
        let job = serde_json::json!({"spec": {"completionMode": "Indexed", "completions": 9, "backoffLimitPerIndex": 1, "template": {}}});
        let job = std::sync::Arc::new(serde_json::from_value(job).unwrap());
        let spec = crate::job::observe::Observed::new(job, Vec::new(), None, Default::default()).spec;
        let new = JobStatus {
            completed_indexes: Some("0-2".into()),
            failed_indexes: Some("4".into()),
            failed: Some(2),
            ..JobStatus::default()
        };
        metrics.counted(&spec, &JobStatus::default(), &new);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"job_controller_job_sync_duration_seconds_count{completion_mode="Indexed",result="success",action="tracking"} 1"#,
            r#"job_controller_job_sync_duration_seconds_bucket{le="0.004",completion_mode="Indexed",result="success",action="tracking"} 1"#,
            r#"job_controller_job_syncs_total{completion_mode="Indexed",result="success",action="tracking"} 1"#,
            r#"job_controller_jobs_finished_total{completion_mode="Indexed",result="failed",reason="FailedIndexes"} 1"#,
            r#"job_controller_job_pods_finished_total{completion_mode="Indexed",result="succeeded"} 3"#,
            r#"job_controller_job_pods_finished_total{completion_mode="Indexed",result="failed"} 2"#,
            r#"job_controller_pod_failures_handled_by_failure_policy_total{action="Ignore"} 2"#,
            r#"job_controller_terminated_pods_tracking_finalizer_total{event="add"} 1"#,
            r#"job_controller_job_finished_indexes_total{status="succeeded",backoffLimit="perIndex"} 3"#,
            r#"job_controller_job_finished_indexes_total{status="failed",backoffLimit="perIndex"} 1"#,
            r#"job_controller_job_pods_creation_total{reason="new",status="succeeded"} 3"#,
            r#"job_controller_job_pods_creation_total{reason="new",status="failed"} 1"#,
            r#"job_controller_jobs_by_external_controller_total{controller_name="example.com/other"} 1"#,
            r#"job_controller_stale_sync_skips_total{group="batch",resource="jobs"} 1"#,
            "ttl_after_finished_controller_job_deletion_duration_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
