//! What queues show of themselves: conditions and figures in their status, who waits in which place, metrics; and that
//! nothing goes away while it is in use.
//!
//! [`show`] says what a status comes to, [`pace`] when it may be written, [`publish`] writes it. [`in_use`] keeps flavors and
//! checks that queues use. [`window`] answers who waits. [`metrics`] counts by upstream's names.

pub mod in_use;
pub mod metrics;
pub mod pace;
pub mod publish;
pub mod show;
pub mod window;
