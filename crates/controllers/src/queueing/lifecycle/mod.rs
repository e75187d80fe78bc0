//! The life of a Workload apart from its job and from quota: checks, deactivation, waiting times, deadlines, and its end.
//!
//! Start reading in [`decide`]: a list of rules, each a function of what is seen.

mod apply;
pub mod decide;

#[cfg(test)]
mod tests;

pub(super) use apply::start;
