//! Takes the tracking finalizer off pods that no Job will account for any longer: their Job is gone or over, or they have
//! none. Without this they could never be deleted.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;

use super::apply::{Controller, managed_elsewhere};
use super::claim::controller_of;
use super::decide::conditions;
use super::names;
use crate::runtime::{Key, Outcome};

pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::TRACKING_FINALIZER)
}

pub fn is_finished(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|status| conditions::finished(status).is_some())
}

impl Controller {
    pub async fn free_orphan(&self, key: Key) -> Result<Outcome, kube::Error> {
        let Some(pod) = self.cache.pod(&key).filter(|pod| is_tracked(pod)) else { return Ok(Outcome::Settled) };
        if self.is_accounted_for(&pod) {
            return Ok(Outcome::Settled);
        }
        self.calls.strip_pod(&pod).await.map(|_| Outcome::Settled)
    }

    /// Whether the finalizer is somebody's: a Job's that still counts, or another controller's.
    fn is_accounted_for(&self, pod: &Pod) -> bool {
        let Some(owner) = controller_of(pod) else { return false };
        if owner.kind != "Job" || owner.api_version != "batch/v1" {
            return true;
        }
        self.controlling_job(pod).is_some_and(|job| managed_elsewhere(&job).is_some() || !is_finished(&job))
    }

    /// The Job that controls the pod, if it is there.
    pub fn controlling_job(&self, pod: &Pod) -> Option<Arc<Job>> {
        let owner = controller_of(pod).filter(|owner| owner.kind == "Job")?;
        let key = Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), &owner.name);
        self.cache.job(&key).filter(|job| job.metadata.uid.as_ref() == Some(&owner.uid))
    }
}
