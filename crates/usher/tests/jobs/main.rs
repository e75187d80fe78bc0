//! The Job controller with the real API server in this process, on virtual time, and a node that pretends to run pods; and
//! against a real kube-apiserver.

#[path = "../harness/mod.rs"]
mod harness;

mod ends;
mod events;
mod kubelet;
mod ownership;
mod policies;
mod real;
mod running;
mod suspension;
#[allow(dead_code, reason = "shared with the tests of queues")]
mod world;
