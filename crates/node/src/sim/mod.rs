//! Simulated nodes: Node objects by the thousand that cost nothing while nothing happens, and pods on them that only seem to run.
//!
//! A pod runs for its annotation `usher.dev/sim-duration` (a duration as Go writes it, default 1 s) and then its containers end
//! with `usher.dev/sim-exit-code` (default 0). Everything else follows the same rules as real pods: restart policy and
//! back-off, init containers (which end at once), deadlines, deletion (at once, whatever the grace period). Works on virtual
//! time and through any client. There are no heartbeats, no events and no output.

mod config;
mod run;

pub use config::{Group, parse};
pub use run::{Simulation, forget_others};
