//! Simulated nodes: Node objects by the thousand that cost nothing while nothing happens, and pods on them that only seem to run.
//!
//! What a pod does is written on it ([`part`]): it runs for `usher.dev/sim-duration` (a duration as Go writes it, default 1 s), its
//! containers end with `usher.dev/sim-exit-code` (default 0), and being told to stop it takes `usher.dev/sim-stop-duration` (default
//! nothing, at most its grace period). Everything else follows the same rules as real pods: restart policy and back-off, init
//! containers (which end at once), deadlines. Works on virtual time and through any client; heartbeats only for a cluster that
//! wants them ([`Simulation::with_heartbeats`]). There are no events and no output.

mod config;
mod nodes;
mod part;
mod run;

pub use config::{Group, parse};
pub use nodes::forget_others;
pub use run::Simulation;
