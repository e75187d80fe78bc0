//! When to look at a CronJob: when it or a Job of it has changed. A changed schedule waits for its next slot, so that an edit
//! starts nothing by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::CronJob;
use usher_env::Clock;

use super::notes::Note;
use super::run::Policy;
use super::slots;
use crate::runtime::{Key, Meta, Recorder, Signal, Store, WorkQueue};

pub(super) struct Ear {
    crons: Store<CronJob>,
    queue: WorkQueue<Key>,
    recorder: Recorder,
    clock: Clock,
    policy: Policy,
    /// As last heard of.
    known: BTreeMap<Key, Timetable>,
    /// The CronJob behind each Job, for Jobs that change hands.
    owners: BTreeMap<Key, Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timetable {
    uid: Option<String>,
    schedule: String,
    zone: Option<String>,
}

impl Timetable {
    pub(super) fn of(cron: &CronJob) -> Timetable {
        Timetable {
            uid: cron.metadata.uid.clone(),
            schedule: cron.spec.schedule.clone(),
            zone: cron.spec.time_zone.clone(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    Now,
    After(Duration),
    Never(Note),
}

/// When to look at a CronJob that was `before`, if it was known, and is `now`.
pub(super) fn wake(before: Option<&Timetable>, cron: &CronJob, now: Timestamp, policy: &Policy) -> Wake {
    let after = Timetable::of(cron);
    match before {
        Some(before) if before.uid == after.uid && *before != after => match slots::schedule(cron) {
            Err(_) => Wake::Never(Note::UnparseableChange { schedule: after.schedule }),
            Ok(schedule) => slots::wait(cron, &schedule, &policy.local, now).map_or(Wake::Now, Wake::After),
        },
        _ => Wake::Now,
    }
}

impl Ear {
    pub(super) fn new(
        crons: Store<CronJob>,
        queue: WorkQueue<Key>,
        recorder: Recorder,
        clock: Clock,
        policy: Policy,
    ) -> Ear {
        Ear { crons, queue, recorder, clock, policy, known: BTreeMap::new(), owners: BTreeMap::new() }
    }

    pub(super) fn hear(&mut self, signal: Signal) {
        match signal {
            Signal::Applied(resource, meta) if resource.id.plural == "cronjobs" => self.changed(meta.key()),
            Signal::Deleted(resource, meta) if resource.id.plural == "cronjobs" => {
                self.known.remove(&meta.key());
                self.queue.add(meta.key());
            }
            Signal::Applied(_, job) => {
                let owner = owner(&job);
                let before = match &owner {
                    Some(owner) => self.owners.insert(job.key(), owner.clone()),
                    None => self.owners.remove(&job.key()),
                };
                before.filter(|before| owner.as_ref() != Some(before)).into_iter().for_each(|key| self.queue.add(key));
                owner.into_iter().for_each(|key| self.queue.add(key));
            }
            Signal::Deleted(_, job) => {
                self.owners.remove(&job.key());
                owner(&job).into_iter().for_each(|key| self.queue.add(key));
            }
            Signal::Synced(_) | Signal::Catalog(_) | Signal::Settled => {}
        }
    }

    fn changed(&mut self, key: Key) {
        // Gone again: the deletion will be told.
        let Some(cron) = self.crons.get(&key) else { return };
        let before = self.known.insert(key.clone(), Timetable::of(&cron));
        match wake(before.as_ref(), &cron, self.clock.now(), &self.policy) {
            Wake::Now => self.queue.add(key),
            Wake::After(delay) => self.queue.add_after(key, delay),
            Wake::Never(note) => note.record(&self.recorder, &cron),
        }
    }
}

/// A key whose CronJob is gone or another one costs a lookup.
fn owner(job: &Meta) -> Option<Key> {
    let owner = job.owner_references.iter().find(|owner| owner.controller == Some(true))?;
    (&*owner.kind == "CronJob").then(|| Key { namespace: job.namespace.clone(), name: owner.name.clone() })
}
