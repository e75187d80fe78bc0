//! Carries a plan out: creations in growing batches, deletions, finalizers, and status writes that are guarded by the
//! revision that was decided on. What came of the calls goes back into the pure functions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};

use super::apply::{Controller, Error};
use super::decide::tally::Suspension;
use super::decide::{Done, Plan, Tally, conditions, settle, tally};
use super::memory::Memory;
use super::names;
use super::observe::{Life, Member, Observed};
use super::pods;
use crate::runtime::Outcome;
use crate::runtime::objects::{is_conflict, is_namespace_terminating, is_not_found, sentence};

/// Calls about one Job that are made at the same time.
const AT_ONCE: usize = 16;
/// No timer is set for longer than this; whoever wakes early looks and sleeps again.
const LONGEST_SLEEP: Duration = Duration::from_secs(365 * 24 * 3600);

/// One Job while its plan is carried out.
pub struct Sync<'a> {
    controller: &'a Controller,
    pub observed: Observed,
    memory: &'a mut Memory,
    /// The Job's revision, which every status write of this round moves on.
    revision: String,
    /// The first call that failed. The rest is done all the same: what was achieved must be accounted for.
    failure: Option<Error>,
}

impl<'a> Sync<'a> {
    pub fn new(controller: &'a Controller, observed: Observed, memory: &'a mut Memory) -> Self {
        let revision = observed.job.metadata.resource_version.clone().unwrap_or_default();
        Sync { controller, observed, memory, revision, failure: None }
    }

    /// Says that the Job has started, before its first pod. Whoever changed the Job meanwhile wins: the write is refused
    /// and no pod is made from a template that is no longer the Job's.
    pub async fn start(&mut self) -> Result<(), Error> {
        let mut status = self.observed.status.clone();
        let resumed = conditions::mark_started(&mut status, self.controller.clock.now());
        self.write(&status).await?;
        if resumed {
            self.controller.recorder.normal(reference(&self.observed.job), "Resumed", "Job resumed");
        }
        Ok(())
    }

    pub async fn carry_out(mut self, plan: &Plan) -> Result<Outcome, Error> {
        let mut done = Done::default();
        self.delete(plan, &mut done).await;
        self.create(plan, &mut done).await;
        let tally = tally(&self.observed, plan, &done, self.controller.clock.now());
        if tally.changed {
            self.write(&tally.status).await?;
        }
        self.memory.record = Some(plan.record);
        self.tell(&tally);
        let stripped = self.strip(&tally.strip).await;
        let now = self.controller.clock.now();
        let settled = settle(&self.observed, &tally, &stripped, stripped.len() == tally.strip.len(), now);
        if settled.changed {
            self.write(&settled.status).await?;
        }
        if let Some(end) = &settled.finished {
            self.tell_end(end, &settled.status);
        }
        match (self.failure, plan.wake) {
            (Some(failure), _) => Err(failure),
            (None, Some(wake)) => Ok(Outcome::After(sleep(wake))),
            (None, None) => Ok(Outcome::Settled),
        }
    }

    async fn write(&mut self, status: &JobStatus) -> Result<(), Error> {
        let (job, old) = (&self.observed.job, &self.observed.status);
        let revision = self.controller.calls.write_status(job, &self.revision, old, status).await?;
        self.memory.wrote_job(&revision);
        self.controller.metrics.counted(&self.observed.spec, old, status);
        self.revision = revision;
        self.observed.status = status.clone();
        Ok(())
    }

    async fn delete(&mut self, plan: &Plan, done: &mut Done) {
        let (controller, uncounted) = (self.controller, plan.deletes_uncounted());
        let deletion = |at: usize| {
            let pod = &self.observed.pods[at];
            async move { (at, delete(controller, pod, uncounted).await) }
        };
        let deletions: Vec<_> = plan.delete().iter().copied().map(deletion).collect();
        let results: Vec<_> = stream::iter(deletions).buffered(AT_ONCE).collect().await;
        let about = reference(&self.observed.job);
        for (at, Deletion { stripped, result }) in results {
            let pod = &self.observed.pods[at];
            if let Some(revision) = stripped {
                self.memory.stripped(pod.key(), pod.uid(), revision.as_deref());
            }
            match result {
                Ok(()) => {
                    self.memory.deleted.insert(pod.key(), pod.uid().into());
                    done.deleted.insert(at);
                    let message = format!("Deleted pod: {}", pod.name());
                    controller.recorder.normal(about.clone(), "SuccessfulDelete", message);
                }
                Err(error) if is_not_found(&error) || is_conflict(&error) => drop(done.deleted.insert(at)),
                Err(error) => {
                    let message = format!("Error deleting: {}", sentence(&error));
                    controller.recorder.warning(about.clone(), "FailedDelete", message);
                    self.failure.get_or_insert(error.into());
                }
            }
        }
    }

    /// Creates pods in batches of one, two, four and so on: where one is refused, hundreds would be.
    async fn create(&mut self, plan: &Plan, done: &mut Done) {
        let Some(spec) = self.observed.job_spec().filter(|_| !plan.create().is_empty()) else { return };
        let common = pods::from_template(&self.observed.job, spec);
        let name = self.observed.job.metadata.name.clone().unwrap_or_default();
        let (mut rest, mut batch, mut failed) = (plan.create(), 1, 0);
        while !rest.is_empty() && failed == 0 {
            let (now, later) = rest.split_at(batch.min(rest.len()));
            let made: Vec<Pod> = now.iter().map(|new| pods::build(&common, &name, new)).collect();
            let creations: Vec<_> = made.iter().map(|pod| self.controller.calls.create_pod(pod)).collect();
            let results: Vec<_> = stream::iter(creations).buffered(AT_ONCE).collect().await;
            for result in results {
                match result {
                    Ok(meta) => {
                        self.memory.wrote_pod(&meta.resource_version);
                        done.created += 1;
                        let about = reference(&self.observed.job);
                        let message = format!("Created pod: {}", meta.name);
                        self.controller.recorder.normal(about, "SuccessfulCreate", message);
                    }
                    Err(error) => {
                        failed += 1;
                        self.not_created(error);
                    }
                }
            }
            (rest, batch) = (later, batch * 2);
        }
        let reason = creation_reason(&self.observed, plan);
        self.controller.metrics.created(reason, done.created as u64, failed);
    }

    fn not_created(&mut self, error: kube::Error) {
        // Everything in the namespace is about to go; nothing more can be created, and nobody need be told.
        if is_namespace_terminating(&error) {
            return;
        }
        let message = format!("Error creating: {}", sentence(&error));
        self.controller.recorder.warning(reference(&self.observed.job), "FailedCreate", message);
        self.memory.unsure |= !was_refused(&error);
        self.failure.get_or_insert(error.into());
    }

    /// Removes the tracking finalizer; returns the positions of the pods that have none any longer.
    async fn strip(&mut self, positions: &[usize]) -> BTreeSet<usize> {
        let removal = |at: usize| {
            let (calls, pod) = (&self.controller.calls, &self.observed.pods[at].pod);
            async move { (at, calls.strip_pod(pod).await) }
        };
        let removals: Vec<_> = positions.iter().copied().map(removal).collect();
        let results: Vec<_> = stream::iter(removals).buffered(AT_ONCE).collect().await;
        let mut stripped = BTreeSet::new();
        for (at, result) in results {
            let pod = &self.observed.pods[at];
            match result {
                Ok(revision) => {
                    self.memory.stripped(pod.key(), pod.uid(), revision.as_deref());
                    stripped.insert(at);
                }
                Err(error) => drop(self.failure.get_or_insert(error.into())),
            }
        }
        stripped
    }

    fn tell(&self, tally: &Tally) {
        let about = || reference(&self.observed.job);
        match tally.suspension {
            Some(Suspension::Suspended) => self.controller.recorder.normal(about(), "Suspended", "Job suspended"),
            Some(Suspension::Resumed) => self.controller.recorder.normal(about(), "Resumed", "Job resumed"),
            None => {}
        }
        for (action, count) in &tally.handled_by_policy {
            self.controller.metrics.handled_by_policy(*action, *count);
        }
    }

    fn tell_end(&self, end: &JobCondition, status: &JobStatus) {
        let (recorder, about) = (&self.controller.recorder, reference(&self.observed.job));
        let (reason, message) = (end.reason.as_deref().unwrap_or_default(), end.message.clone().unwrap_or_default());
        let success = end.type_ == names::COMPLETE;
        if success {
            if self.observed.spec.completions.is_some_and(|wanted| status.succeeded.unwrap_or(0) > wanted) {
                let message = "Too many succeeded pods running after completion count reached";
                recorder.warning(about.clone(), "TooManySucceededPods", message);
            }
            recorder.normal(about, "Completed", "Job completed");
        } else {
            recorder.warning(about, reason, message);
        }
        self.controller.metrics.job_finished(self.observed.spec.mode(), success, reason);
    }
}

/// What came of deleting a pod.
struct Deletion {
    /// It lost its finalizer, at this revision if one was told.
    stripped: Option<Option<Arc<str>>>,
    result: Result<(), kube::Error>,
}

/// An uncounted pod loses its finalizer first: once that is gone nobody takes its end for a failure.
async fn delete(controller: &Controller, pod: &Member, uncounted: bool) -> Deletion {
    let stripped = match uncounted && pod.tracked {
        true => match controller.calls.strip_pod(&pod.pod).await {
            Ok(revision) => Some(revision),
            Err(error) => return Deletion { stripped: None, result: Err(error) },
        },
        false => None,
    };
    Deletion { stripped, result: controller.calls.delete_pod(&pod.pod).await }
}

/// Whether the server certainly did not do what it was asked for.
fn was_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code))
}

/// The value of metrics' label `reason`.
fn creation_reason(observed: &Observed, plan: &Plan) -> &'static str {
    match plan.counts.failed > 0 {
        true if observed.spec.replace_only_failed => "recreate_failed",
        true => "recreate_terminating_or_failed",
        false if observed.count(Life::Terminating) > 0 => "recreate_terminating_or_failed",
        false => "new",
    }
}

fn sleep(wake: SignedDuration) -> Duration {
    Duration::try_from(wake).unwrap_or_default().min(LONGEST_SLEEP)
}

pub fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_string()),
        kind: Some("Job".to_string()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        field_path: None,
    }
}
