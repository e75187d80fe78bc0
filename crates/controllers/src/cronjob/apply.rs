//! Asks the server what a cache cannot know, and does what was decided. One status update at the end holds everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use parking_lot::Mutex;
use usher_env::Clock;

use super::decide::{self, Observed, Start, Then, controller, decide, forgotten, is_active, surplus, uid_of, unseen};
use super::job;
use super::metrics::Metrics;
use super::notes::Note;
use super::run::Policy;
use crate::runtime::objects::{is_already_exists, is_conflict, is_namespace_terminating, is_not_found, sentence};
use crate::runtime::{Index, Key, Outcome, Recorder, Store};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("could not replace job {0}")]
    Replace(String),
}

pub(crate) struct Runner {
    client: Client,
    clock: Clock,
    crons: Store<CronJob>,
    /// By the uid of their controller.
    jobs: Index<Job>,
    recorder: Recorder,
    policy: Policy,
    metrics: Metrics,
    /// The revision of each CronJob's last status of ours: what is older in the cache is not decided on.
    written: Mutex<BTreeMap<Key, u64>>,
}

impl Runner {
    pub fn new(
        client: Client,
        clock: Clock,
        crons: Store<CronJob>,
        jobs: Index<Job>,
        recorder: Recorder,
        policy: Policy,
        metrics: Metrics,
    ) -> Runner {
        Runner { client, clock, crons, jobs, recorder, policy, metrics, written: Mutex::default() }
    }

    pub async fn sync(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(cron) = self.crons.get(key) else {
            self.written.lock().remove(key);
            return Ok(Outcome::Settled);
        };
        if self.is_behind(key, &cron) {
            // The watch will show our own write, and then this key comes again.
            return Ok(Outcome::Settled);
        }
        let jobs = self.jobs.get(cron.metadata.uid.as_deref().unwrap_or_default());
        let reaped = self.reap(&cron, &jobs).await;
        let mut status = cron.status.clone().unwrap_or_default();
        reaped.iter().for_each(|uid| decide::remove(&mut status, uid));
        let (cron, outcome) = match self.latest(cron, &jobs, &reaped).await {
            Ok((cron, missing)) => {
                let seen = Observed { cron: &cron, jobs: &jobs, reaped: &reaped, missing: &missing };
                let decision = decide(&seen, self.clock.now(), &self.policy);
                decision.notes.iter().for_each(|note| self.tell(&cron, note));
                status = decision.status;
                let outcome = match decision.then {
                    Then::Rest => Ok(Outcome::Settled),
                    Then::Wait(delay) => Ok(Outcome::After(delay)),
                    Then::Start(start) => self.start(&cron, *start, &mut status).await,
                };
                (cron, outcome)
            }
            Err((cron, error)) => (cron, Err(error)),
        };
        self.write_status(key, &cron, status).await?;
        outcome
    }

    fn tell(&self, cron: &CronJob, note: &Note) {
        note.record(&self.recorder, cron);
    }

    fn is_behind(&self, key: &Key, cron: &CronJob) -> bool {
        let written = self.written.lock().get(key).copied();
        written.is_some_and(|written| revision(cron).is_some_and(|cached| cached < written))
    }

    /// Deletes what the history cannot hold. What fails is told and tried again at the next look.
    async fn reap(&self, cron: &CronJob, jobs: &[Arc<Job>]) -> BTreeSet<String> {
        let mut reaped = BTreeSet::new();
        for job in surplus(cron, jobs) {
            let meta = &job.metadata;
            if self.delete(cron, &self.jobs_of(cron), meta.name.as_deref().unwrap_or_default(), meta.uid.clone()).await
            {
                reaped.extend(job.metadata.uid.clone());
            }
        }
        reaped
    }

    /// That very Job: another one that has its name by now is none of ours to delete.
    async fn delete(&self, cron: &CronJob, jobs: &Api<Job>, name: &str, uid: Option<String>) -> bool {
        let only = Preconditions { uid, resource_version: None };
        match jobs.delete(name, &DeleteParams::background().preconditions(only)).await {
            Ok(_) => self.tell(cron, &Note::Deleted { job: name.to_owned() }),
            // Somebody was faster, or we were and the cache has not heard of it.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => {
                self.tell(cron, &Note::FailedDelete { why: sentence(&error) });
                return false;
            }
        }
        true
    }

    /// The CronJob as new as its Jobs, and the Jobs it lists in vain.
    async fn latest(
        &self,
        mut cron: Arc<CronJob>,
        jobs: &[Arc<Job>],
        reaped: &BTreeSet<String>,
    ) -> Result<(Arc<CronJob>, Vec<ObjectReference>), (Arc<CronJob>, Error)> {
        let strangers = forgotten(&cron, jobs);
        if !strangers.is_empty() {
            let name = cron.metadata.name.as_deref().unwrap_or_default();
            let now = match self.crons_of(&cron).get(name).await {
                Ok(now) => now,
                Err(error) => return Err((cron, error.into())),
            };
            let status = now.status.clone().unwrap_or_default();
            if now.metadata.uid == cron.metadata.uid && strangers.iter().any(|uid| is_active(&status, uid)) {
                cron = Arc::new(now);
            }
        }
        let mut missing = Vec::new();
        for listed in unseen(&cron, jobs).into_iter().filter(|listed| !reaped.contains(uid_of(listed))) {
            let found = match self.place(&listed) {
                None => Ok(None),
                Some((jobs, name)) => jobs.get_metadata_opt(name).await,
            };
            match found {
                Ok(Some(_)) => {}
                Ok(None) => missing.push(listed),
                Err(error) => return Err((cron, error.into())),
            }
        }
        Ok((cron, missing))
    }

    async fn start(&self, cron: &CronJob, start: Start, status: &mut CronJobStatus) -> Result<Outcome, Error> {
        for old in &start.replaces {
            if let Some((jobs, name)) = self.place(old) {
                let found = match jobs.get_metadata(name).await {
                    Ok(found) => found,
                    Err(error) => {
                        self.tell(cron, &Note::FailedGet { why: sentence(&error) });
                        return Err(error.into());
                    }
                };
                let uid = old.uid.clone().filter(|uid| !uid.is_empty()).or(found.metadata.uid);
                if !self.delete(cron, &jobs, name, uid).await {
                    return Err(Error::Replace(format!("{}/{name}", old.namespace.as_deref().unwrap_or_default())));
                }
            }
            decide::unlist(status, |listed| listed == old);
        }
        let then = start.wait.map_or(Outcome::Settled, Outcome::After);
        let job = match self.jobs_of(cron).create(&PostParams::default(), &start.job).await {
            Ok(job) => {
                if let Some(created) = &job.metadata.creation_timestamp {
                    self.metrics.skew_secs.observe(created.0.duration_since(start.slot).as_secs_f64());
                }
                self.tell(cron, &Note::Created { job: job.metadata.name.clone().unwrap_or_default() });
                job
            }
            // Ours, from before a restart or a status that could not be written: to be listed. Somebody else's keeps the
            // name, and this slot is lost. Upstream then also forgets to look at the next one.
            Err(error) if is_already_exists(&error) => {
                let name = start.job.metadata.name.as_deref().unwrap_or_default();
                let job = self.jobs_of(cron).get(name).await?;
                let uid = job.metadata.uid.as_deref().unwrap_or_default();
                let ours = controller(&job).is_some_and(|owner| Some(&owner.uid) == cron.metadata.uid.as_ref());
                if !ours || is_active(status, uid) {
                    return Ok(then);
                }
                job
            }
            Err(error) => {
                if !is_namespace_terminating(&error) {
                    self.tell(cron, &Note::FailedCreate { why: sentence(&error) });
                }
                return Err(error.into());
            }
        };
        status.active.get_or_insert_default().push(job::reference(&job));
        status.last_schedule_time = Some(Time(start.slot));
        Ok(then)
    }

    async fn write_status(&self, key: &Key, cron: &CronJob, status: CronJobStatus) -> Result<(), Error> {
        if status == cron.status.clone().unwrap_or_default() {
            return Ok(());
        }
        let name = cron.metadata.name.as_deref().unwrap_or_default();
        let new = CronJob { status: Some(status), ..cron.clone() };
        let stored = self.crons_of(cron).replace_status(name, &PostParams::default(), &new).await?;
        if let Some(revision) = revision(&stored) {
            self.written.lock().insert(key.clone(), revision);
        }
        Ok(())
    }

    /// Where an entry of `status.active` says that its Job is, in its own namespace as upstream; nowhere if it says what
    /// cannot be a Job's name. Anybody who may write the status may have written it.
    fn place<'a>(&self, listed: &'a ObjectReference) -> Option<(Api<Job>, &'a str)> {
        let plain = |name: &&str| {
            !name.is_empty() && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
        };
        let namespace = listed.namespace.as_deref().filter(plain).filter(|name| !name.contains('.'))?;
        let name = listed.name.as_deref().filter(plain).filter(|name| !name.starts_with('.'))?;
        Some((Api::namespaced(self.client.clone(), namespace), name))
    }

    fn jobs_of(&self, cron: &CronJob) -> Api<Job> {
        Api::namespaced(self.client.clone(), cron.metadata.namespace.as_deref().unwrap_or_default())
    }

    fn crons_of(&self, cron: &CronJob) -> Api<CronJob> {
        Api::namespaced(self.client.clone(), cron.metadata.namespace.as_deref().unwrap_or_default())
    }
}

fn revision(cron: &CronJob) -> Option<u64> {
    cron.metadata.resource_version.as_deref()?.parse().ok()
}
