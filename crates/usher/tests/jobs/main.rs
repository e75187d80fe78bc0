//! The Job controller with the real API server in this process, on virtual time, and a node that pretends to run pods.

mod ends;
mod kubelet;
mod ownership;
mod policies;
mod running;
mod suspension;
mod world;
