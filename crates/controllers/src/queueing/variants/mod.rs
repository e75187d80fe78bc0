//! Concurrent admission (KEP-8691): a Workload races for several flavors at once, starts on any, and moves up to better ones.
//!
//! A Workload in a queue with the policy becomes a Parent: never scheduled, it mirrors the one of its Variants that is admitted, and its
//! job follows it. Start reading in [`decide`]; how a Variant is made is in [`make`], what a Parent shows in [`report`], how
//! many pods a Variant of an elastic job asks for in [`size`].

mod apply;
pub mod decide;
pub mod make;
mod report;
mod size;

pub(super) use apply::start;
