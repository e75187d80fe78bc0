//! What operators of CronJobs look at.

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Cheap to clone; clones count into the same numbers.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// From a slot to the creation of its Job, in seconds.
    pub skew_secs: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics { skew_secs: Histogram::new(exponential_buckets(1.0, 2.0, 10)) }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "cronjob_controller_job_creation_skew_duration_seconds",
            "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
            self.skew_secs.clone(),
        );
    }
}
