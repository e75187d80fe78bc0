//! Jobs in queues: a job that names a LocalQueue is represented by a Workload, starts when that is admitted, and stops when
//! that is evicted.
//!
//! Start reading in [`decide`], which says what is to be done about one job; [`kind`] is all that it knows about kinds of
//! jobs, and each of [`kinds`] is one. What an admission adds to pods is in [`addition`].

pub mod addition;
mod apply;
pub mod decide;
pub mod kind;
pub mod kinds;
mod merge_patch;
pub mod shape;
pub mod transition;

#[cfg(test)]
mod tests;
