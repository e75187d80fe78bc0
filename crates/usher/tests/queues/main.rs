//! Jobs in queues, with the real API server and all controllers in this process, on virtual time, and a node that pretends
//! to run pods.

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../jobs/kubelet.rs"]
#[allow(dead_code, reason = "shared with the tests of Jobs")]
mod kubelet;
#[path = "../jobs/world.rs"]
#[allow(dead_code, reason = "shared with the tests of Jobs")]
mod world;

mod admission;
mod changes;
mod corner;
mod desk;
mod elastic;
mod ends;
mod on_a_cluster;
mod plant;
mod ray_clusters;
mod resizes;
mod restarts;
mod sharing;
mod walks;

const LEFT_OUT: &str = include_str!("left_out.txt");
