//! CronJobs: a Job for every slot of a schedule, and the bookkeeping about those Jobs.
//!
//! Start reading in `decide`, which says what is to be done about one CronJob at one moment; `slots` knows which moment a
//! schedule means; `apply` asks the server what a cache cannot know, and does what was decided; `hear` says when to look.
//! Between slots nothing runs: each CronJob is a delayed key in one queue, until its next slot exactly. When the clock is set,
//! every CronJob is looked at again, because the queue sleeps by another clock.

mod apply;
mod decide;
mod hear;
mod job;
mod metrics;
mod notes;
mod run;
mod slots;
#[cfg(test)]
mod tests;

pub use metrics::Metrics;
pub use run::Policy;
pub(crate) use run::start;
