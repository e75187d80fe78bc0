//! The scheduler, pure.

pub mod assign;
pub mod fair;
pub mod flavor;
pub mod ledger;
pub mod model;
pub mod names;
pub mod plan;
pub mod preempt;
pub mod queue;
pub mod quota;
pub mod reason;
pub mod scheduler;
#[cfg(test)]
mod testing;
pub mod view;
pub mod wake;
pub mod world;
