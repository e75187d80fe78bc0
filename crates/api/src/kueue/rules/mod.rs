//! What is filled in and refused beyond the schemas: Kueue's webhooks as pure functions, in its words.
//!
//! [`default`] and [`validate`] take objects as JSON, because that is what both callers have: the API server in process, and
//! a webhook endpoint on a cluster. Nothing here reads other objects: whether a flavor or a cohort exists is told by the
//! Active condition of a queue, not refused.
//!
//! Where this differs from upstream: a concurrent admission policy may be changed on a live queue, works with StrictFIFO, and
//! with several resource groups through explicit variants; while quota is reserved, pod counts may only change on elastic
//! Workloads (upstream lets any fall), where they may also rise to what is admitted, and admitted counts may change.

mod cluster_queue;
mod cohort;
mod concurrent;
mod gated_by;
mod job;
mod labels;
mod pod_set;
mod quotas;
mod ray_cluster;
mod resource_flavor;
mod review;
mod workload;
mod workload_update;

#[cfg(test)]
mod tests;

pub use job::{Surroundings, default_job, validate_job};
pub use ray_cluster::{default_ray_cluster, gate_ray_cluster, validate_ray_cluster};
pub use review::{Gates, Verdict, default, denial, validate};
