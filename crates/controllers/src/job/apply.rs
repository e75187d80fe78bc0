//! One look at a Job: wait until the caches show its own writes, gather its pods, decide, carry out.
//!
//! It makes no choices: those are in [`super::decide`]; and no writes but adoptions and releases: those are in
//! [`super::carry_out`].

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use tokio::time::Instant;
use usher_env::Clock;

use super::cache::Cache;
use super::calls::Calls;
use super::carry_out::{Sync, reference};
use super::claim::{self, claim};
use super::decide::{conditions, decide};
use super::memory::{Behind, Memories, Memory};
use super::metrics::JobMetrics;
use super::names;
use super::observe::{Observed, Policy};
use crate::runtime::objects::{is_conflict, is_invalid, is_not_found};
use crate::runtime::{Key, Outcome, Recorder};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("job {0} was deleted or replaced while it was about to adopt pods")]
    Gone(String),
}

pub struct Controller {
    pub calls: Calls,
    pub cache: Cache,
    pub clock: Clock,
    pub memories: Memories,
    pub recorder: Recorder,
    pub metrics: JobMetrics,
    pub policy: Policy,
}

impl Controller {
    pub async fn sync(&self, key: Key) -> Result<Outcome, Error> {
        let Some(job) = self.cache.job(&key) else {
            self.memories.forget(&key);
            return Ok(Outcome::Settled);
        };
        if managed_elsewhere(&job).is_some() || job.status.as_ref().is_some_and(|s| conditions::finished(s).is_some()) {
            self.memories.forget(&key);
            return Ok(Outcome::Settled);
        }
        let mode = job.spec.as_ref().and_then(|spec| spec.completion_mode.clone());
        let mode = match mode.as_deref() {
            None | Some(names::NON_INDEXED) => names::NON_INDEXED,
            Some(names::INDEXED) => names::INDEXED,
            Some(_) => {
                let message = "Skipped Job sync because completion mode is unknown";
                self.recorder.warning(reference(&job), "UnknownCompletionMode", message);
                return Ok(Outcome::Settled);
            }
        };
        let mut memory = self.memories.recall(&key, job.metadata.uid.as_deref().unwrap_or_default());
        let started = Instant::now();
        let (result, action) = match self.is_behind(&job, &mut memory).await {
            Ok(false) => self.reconcile(job, &mut memory).await,
            // What the caches lack will be told, and the Job comes again.
            Ok(true) => {
                self.memories.keep(&key, memory);
                return Ok(Outcome::Settled);
            }
            Err(error) => (Err(error), "reconciling"),
        };
        self.memories.keep(&key, memory);
        self.metrics.synced(mode, result.is_ok(), action, started.elapsed().as_secs_f64());
        result
    }

    /// Whether the caches do not show yet what was last written about the Job.
    async fn is_behind(&self, job: &Job, memory: &mut Memory) -> Result<bool, Error> {
        if memory.unsure {
            self.find_unanswered(job, memory).await?;
        }
        let behind = self.cache.is_behind(memory);
        match behind {
            Some(Behind::Jobs) => self.metrics.stale("batch", "jobs"),
            Some(Behind::Pods) => self.metrics.stale("", "pods"),
            None => {}
        }
        Ok(behind.is_some())
    }

    /// A creation that was not answered may have happened: waits for the caches to show whatever there is.
    async fn find_unanswered(&self, job: &Job, memory: &mut Memory) -> Result<(), Error> {
        let Some(selector) = job.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { return Ok(()) };
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        for pod in self.calls.list_pods(namespace, &claim::selector_text(selector)).await? {
            if self.cache.pod(&pod.key()).is_none_or(|cached| cached.metadata.uid.as_deref() != Some(&pod.uid)) {
                memory.wrote_pod(&pod.resource_version);
            }
        }
        memory.unsure = false;
        Ok(())
    }

    async fn reconcile(&self, job: Arc<Job>, memory: &mut Memory) -> (Result<Outcome, Error>, &'static str) {
        let mut sync = match self.observe(job, memory).await {
            Ok(observed) => Sync::new(self, observed, memory),
            Err(error) => return (Err(error), "reconciling"),
        };
        let mut plan = decide(&sync.observed, self.clock.now());
        if plan.starts_first(&sync.observed) {
            if let Err(error) = sync.start().await {
                return (settled_by_watch(error), "reconciling");
            }
            plan = decide(&sync.observed, self.clock.now());
        }
        let action = plan.action();
        let result = sync.carry_out(&plan).await;
        (result.or_else(settled_by_watch), action)
    }

    /// The Job with the pods that are its own, adopted ones included.
    async fn observe(&self, job: Arc<Job>, memory: &mut Memory) -> Result<Observed, Error> {
        let mut claim = claim(&job, self.cache.candidates(&job));
        for pod in &claim.release {
            match self.calls.patch_pod(pod, &claim::release_patch(&job, pod)).await {
                Ok(meta) => memory.wrote_pod(&meta.resource_version),
                Err(error) if is_not_found(&error) || is_invalid(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !claim.adopt.is_empty() {
            self.recheck(&job).await?;
        }
        for pod in &claim.adopt {
            match self.calls.patch_pod(pod, &claim::adopt_patch(&job, pod)).await {
                Ok(meta) => {
                    memory.wrote_pod(&meta.resource_version);
                    claim.own.push(Arc::new(claim::adopted(&job, pod)));
                }
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Observed::new(job, claim.own, memory.record, self.policy))
    }

    /// A Job must not adopt pods while it is being deleted, and a cache can be late.
    async fn recheck(&self, job: &Job) -> Result<(), Error> {
        let name = job.metadata.name.clone().unwrap_or_default();
        let live = self.calls.get_job(job.metadata.namespace.as_deref().unwrap_or_default(), &name).await?;
        let same = |live: &Job| live.metadata.uid == job.metadata.uid && live.metadata.deletion_timestamp.is_none();
        if live.as_ref().is_some_and(same) { Ok(()) } else { Err(Error::Gone(name)) }
    }
}

/// A write that came too late, about a Job that has changed or gone: its watch will tell, and the Job comes again.
fn settled_by_watch(error: Error) -> Result<Outcome, Error> {
    match error {
        Error::Api(error) if is_conflict(&error) || is_not_found(&error) => Ok(Outcome::Settled),
        error => Err(error),
    }
}

/// The other controller that a Job is left to, if it names one.
pub fn managed_elsewhere(job: &Job) -> Option<&str> {
    job.spec.as_ref()?.managed_by.as_deref().filter(|by| *by != names::CONTROLLER)
}
