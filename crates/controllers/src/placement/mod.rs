//! Placement: which node a pending pod goes to, as kube-scheduler decides it.
//!
//! Start reading in [`decide`], which is pure; [`model`] is what it reads, [`fit`] and [`topology`] say why a pod does not fit a
//! node, [`score`] which node is best, [`preempt`] who has to go, [`reason`] how that is said. [`apply`] writes decisions and
//! keeps the planner told.
//!
//! Not here: volumes, resource claims and disruption budgets; pods with unbound claims are placed as if they had none.

pub mod apply;
mod cache;
pub mod decide;
pub mod fit;
mod index;
mod look;
pub mod model;
mod parked;
mod preempt;
pub mod reason;
mod score;
pub mod state;
#[cfg(test)]
mod tests;
mod topology;
mod wake;

pub(crate) use apply::start;
