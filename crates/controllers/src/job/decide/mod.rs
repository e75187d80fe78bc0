//! What to do about a Job, as pure functions of what was observed and the time.
//!
//! Start reading in [`plan`]: which pods to create or delete. [`tally`] then says what the status becomes, before and
//! after finalizers are removed. Everything else is one idea that these two use.

pub mod backoff;
pub mod conditions;
pub mod counts;
pub mod failure;
mod gap;
mod indexes;
pub mod plan;
mod success;
mod surplus;
pub mod tally;
pub mod verdict;

pub use indexes::Indexes;
pub use plan::{NewPod, Plan, Step, decide};
pub use tally::{Done, Tally, settle, tally};
