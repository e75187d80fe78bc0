//! Concurrent admission, with the real API server and all controllers in this process, on virtual time, and a node that pretends to
//! run pods.

#[path = "../queues/desk.rs"]
#[allow(dead_code, reason = "shared with the tests of queues")]
mod desk;
#[path = "../jobs/kubelet.rs"]
#[allow(dead_code, reason = "shared with the tests of Jobs")]
mod kubelet;
#[path = "../jobs/world.rs"]
#[allow(dead_code, reason = "shared with the tests of Jobs")]
mod world;

mod anything;
mod counted;
mod lives;
mod race;
mod rivals;
mod stories;
mod strict;
