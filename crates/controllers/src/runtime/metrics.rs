//! The work queue metrics that operators of Kubernetes know, by queue name.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    name: String,
}

/// All queues' metrics. Cheap to clone; clones count into the same numbers.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    depth: Family<Queue, Gauge>,
    adds: Family<Queue, Counter>,
    retries: Family<Queue, Counter>,
    work_secs: Family<Queue, Histogram, fn() -> Histogram>,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        QueueMetrics {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            work_secs: Family::new_with_constructor(work_buckets),
        }
    }
}

/// client-go's buckets: 10 ns to 1000 s, by tens.
fn work_buckets() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}

impl QueueMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_depth", "Current depth of workqueue by workqueue name", self.depth.clone());
        // The library appends `_total` to counters.
        registry.register(
            "workqueue_adds",
            "Total number of adds handled by workqueue by workqueue name",
            self.adds.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Total number of retries handled by workqueue by workqueue name",
            self.retries.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes by workqueue name",
            self.work_secs.clone(),
        );
    }

    pub(crate) fn queue(&self, name: &str) -> OneQueue {
        let label = Queue { name: name.to_string() };
        OneQueue {
            depth: self.depth.get_or_create(&label).clone(),
            adds: self.adds.get_or_create(&label).clone(),
            retries: self.retries.get_or_create(&label).clone(),
            work_secs: self.work_secs.get_or_create(&label).clone(),
        }
    }
}

/// One queue's counters, looked up once.
#[derive(Clone, Debug)]
pub(crate) struct OneQueue {
    pub depth: Gauge,
    pub adds: Counter,
    pub retries: Counter,
    pub work_secs: Histogram,
}
