//! What every controller stands on: a work queue, one shared watch per kind, and the few API calls that work on any kind.

pub mod catalog;
pub mod events;
pub mod meta;
pub mod metrics;
pub mod objects;
pub mod queue;
mod reflect;
mod store;
mod tasks;
#[cfg(test)]
mod tests;
pub mod watches;

pub use catalog::{Catalog, GroupResource, Resource};
pub use events::Recorder;
pub use meta::{Key, Meta, OwnerRef};
pub use metrics::QueueMetrics;
pub use objects::Objects;
pub use queue::{Outcome, WorkQueue};
pub use store::{Index, Store};
pub use tasks::Tasks;
pub use watches::{Awaited, Signal, Signals, Watches};
