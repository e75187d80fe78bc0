//! What becomes of nodes that fall silent, and of the pods on them: conditions turn Unknown, taints follow conditions, pods go
//! when what they tolerate is over, and pods of nodes that are no more are ended.
//!
//! Start reading in [`decide`], which is pure. Timers are exact: one for each node that keeps a Lease, one for each pod whose
//! time runs; none when there is neither. A node that never had a Lease promised no heartbeats (simulated nodes) and is taken
//! at its word, where upstream would give it up after a minute.

pub mod apply;
pub mod decide;

pub(crate) use apply::start;
