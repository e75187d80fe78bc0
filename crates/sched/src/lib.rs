//! The scheduler, pure: who gets which quota, who is evicted for it, and why everybody else waits.
//!
//! Events in ([`scheduler::Event`]), a plan out ([`plan::Plan`]). No I/O, no async, no clock (`now` is an argument), no randomness, no
//! logging, no serde, no Kubernetes types. The same events in the same order give the same plans, byte for byte.
//!
//! ```text
//!   Event ──► scheduler   state; what each event does to it
//!                │           ├─ queue    the line of one queue: order, classes of equal workloads, watches
//!                │           ├─ world    configuration and the ledger
//!                │           │    ├─ ledger  bookings, groups, room kept for preemptors
//!                │           │    └─ quota   the tree: free, potential, borrowing levels
//!                │           └─ wake     what changed, sorted by who can benefit
//!   Plan  ◄── plan        rounds: kept room first, then a contest between queues
//!                ├─ assign   flavors for one workload, or its watches
//!                │    ├─ flavor   taints, selectors, affinity
//!                │    └─ preempt  whom to evict: classical, fair_share
//!                ├─ fair     dominant resource shares, the tournament
//!                └─ reason   why it waits: values, codes, sentences (names: the dictionary for them)
//!             tally       how many wait and have quota, kept as things change
//!             view        positions, counts, usage: what status and people see
//! ```
//!
//! Start reading at `plan`. What holds, always:
//!
//! - The ledger is never above a limit because of an admission; a quota cut or an admission made elsewhere may leave it above, and then
//!   nothing is added.
//! - Claims of one group (variants of one job) count as the largest of them in each cell; siblings are never each other's victims; at most
//!   one of them preempts.
//! - Room for which others were evicted is kept until they have left.
//! - A workload that waits has a reason and, unless only configuration, time, a gate or a sibling can help, a watch on every flavor it might
//!   use. Nothing else wakes it. Plans cost what is woken (and a look at each queue of a tree in which something got free), not what is
//!   parked.
//! - In a strict line nobody passes the head.
//!
//! Where this is not Kueue: there is no cycle, no one head per queue and no batch of one second; a preemptor's room is kept across plans;
//! a resource group whose flavors have no candidates is not searched for victims together with others; what is free is taken when a
//! preferred preemption turns out impossible.

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
pub mod tally;
#[cfg(test)]
mod testing;
pub mod view;
pub mod wake;
pub mod world;
