//! What queueing needs to know about a kind of job. A kind is one file that implements [`JobKind`]; nothing else in
//! queueing looks into a job.
//!
//! All of it is pure: a kind says what an object is, and what it is to become. What is sent is the difference.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use usher_api::kueue::keys::{self, annotation};
use usher_api::kueue::workload::PodSet;
use usher_api::kueue::workload_status::ReclaimablePod;

use super::addition::{Addition, AdditionError};
use crate::runtime::GroupResource;

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub succeeded: bool,
    pub message: String,
}

pub trait JobKind: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    const API_VERSION: &'static str;
    const KIND: &'static str;

    fn resource() -> GroupResource;
    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Whether it is asked to run no pods.
    fn is_suspended(&self) -> bool;
    fn set_suspended(&mut self, suspended: bool);
    /// Whether pods of it may still be running, terminating ones included.
    fn has_pods(&self) -> bool;
    fn end(&self) -> Option<End>;
    /// The pods it asks for, as a Workload shows them: without what its own controller puts in.
    fn pod_sets(&self) -> Vec<PodSet>;
    /// Pods that will not be needed again.
    fn reclaimable(&self) -> Vec<ReclaimablePod>;
    /// Whether as many pods are ready, or have succeeded.
    fn are_pods_ready(&self, wanted: i32) -> bool;
    /// How many pods of it there are, terminating ones included.
    fn pods_now(&self) -> i32;
    /// Whether its owner lets it grow and shrink while it runs.
    fn is_elastic(&self) -> bool {
        let notes = self.metadata().annotations.as_ref();
        notes.and_then(|notes| notes.get(annotation::ELASTIC_JOB)).is_some_and(|said| said == keys::TRUE)
    }
    /// Pods that come and go together, in one of its pod sets: resized by as many at once.
    fn replica_size(&self, _pod_set: &str) -> i32 {
        1
    }
    /// Makes its pods what they are to be once admitted, as many as were admitted.
    fn add(&mut self, additions: &[Addition]) -> Result<(), AdditionError>;
    /// Pods made from now on wait for their turn (KEP-77).
    fn gate_pods(&mut self);
    /// Makes its pods what they were before, as its Workload remembers them.
    fn restore(&mut self, pod_sets: &[PodSet]);
}
