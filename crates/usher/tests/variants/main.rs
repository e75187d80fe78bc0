//! Concurrent admission, with the real API server and all controllers in this process, on virtual time, and a node that pretends to
//! run pods.

#[path = "../queues/corner.rs"]
mod corner;
#[path = "../queues/desk.rs"]
#[allow(dead_code, reason = "shared with the tests of queues")]
mod desk;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../jobs/kubelet.rs"]
#[allow(dead_code, reason = "shared with the tests of Jobs")]
mod kubelet;
#[path = "../queues/on_a_cluster.rs"]
mod on_a_cluster;
#[path = "../queues/plant.rs"]
mod plant;
#[path = "../jobs/world.rs"]
#[allow(dead_code, reason = "shared with the tests of Jobs")]
mod world;

mod anything;
mod counted;
mod elastic;
mod lives;
mod race;
mod rivals;
mod stories;
mod strict;

const LEFT_OUT: &str = include_str!("left_out.txt");
