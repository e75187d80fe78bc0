//! Jobs in queues: a job that names a LocalQueue is represented by a Workload, starts when that is admitted, and stops when
//! that is evicted.
//!
//! Start reading in [`decide`], which says what is to be done about one job; [`kind`] is all that it knows about kinds of
//! jobs, and each of [`kinds`] is one. What an admission adds to pods is in [`addition`]. [`guarded`] is how Workloads are written. [`elastic`] resizes what runs,
//! [`ungate`] lets its pods go. [`lifecycle`] is about Workloads whoever
//! they belong to, [`scheduler`] about who gets quota, [`variants`] about Workloads that race for several flavors.

pub mod addition;
mod apply;
pub mod decide;
pub mod elastic;
mod guarded;
pub mod kind;
pub mod kinds;
pub mod lifecycle;
pub(crate) mod merge_patch;
pub mod policy;
pub mod scheduler;
pub mod shape;
pub mod status;
pub mod transition;
pub mod ungate;
pub mod variants;

#[cfg(test)]
mod tests;

use k8s_openapi::api::batch::v1::Job;
use kube::Client;
use usher_api::ray::RayCluster;
use usher_env::Clock;

use crate::runtime::{QueueMetrics, Tasks, Watches};
pub use policy::Policy;
pub use scheduler::run::Outlook;

/// Starts the scheduler and the controllers of every kind of job that can be queued.
pub(crate) fn start(
    client: &Client,
    clock: &Clock,
    policy: &Policy,
    outlook: &Outlook,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    scheduler::run::start(client, clock, policy, outlook, watches, tasks);
    status::in_use::start(client, watches, tasks, metrics);
    lifecycle::start(client, clock, policy, watches, tasks, metrics);
    variants::start(client, clock, policy, &outlook.metrics, watches, tasks, metrics);
    apply::start::<Job>(client, clock, policy, watches, tasks, metrics);
    apply::start::<RayCluster>(client, clock, policy, watches, tasks, metrics);
    ungate::start::<Job>(client, watches, tasks, metrics);
    ungate::start::<RayCluster>(client, watches, tasks, metrics);
}
