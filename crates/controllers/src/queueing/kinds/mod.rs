//! The kinds of jobs that can be queued.

mod job;
mod ray_cluster;
