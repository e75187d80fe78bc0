//! What is to be done about a CronJob now: a function of the CronJob, its Jobs and the time.
//!
//! Two questions come first, because their answers change the rest: which finished Jobs are more than the history may hold
//! ([`surplus`]), and which Jobs only the server knows about ([`forgotten`], [`unseen`]). Then [`decide`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use usher_api::cron::{Schedule, load_zone};

use super::job;
use super::notes::Note;
use super::run::Policy;
use super::slots::{self, Missed};

/// Values of `spec.concurrencyPolicy`; all others allow.
const FORBID: &str = "Forbid";
const REPLACE: &str = "Replace";

/// What is known when it is decided.
pub struct Observed<'a> {
    pub cron: &'a CronJob,
    pub jobs: &'a [Arc<Job>],
    /// Uids of finished Jobs that have just been deleted for the history's sake.
    pub reaped: &'a BTreeSet<String>,
    /// Entries of `status.active` of which the server says that they do not exist.
    pub missing: &'a [ObjectReference],
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub notes: Vec<Note>,
    /// As it should be, before anything is started.
    pub status: CronJobStatus,
    pub then: Then,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Then {
    /// Nothing until something changes.
    Rest,
    /// Look again after this long.
    Wait(Duration),
    Start(Box<Start>),
}

/// A Job to create for a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub slot: Timestamp,
    pub job: Job,
    /// Deleted before.
    pub replaces: Vec<ObjectReference>,
    /// When the slot is used, look again after this long.
    pub wait: Option<Duration>,
}

pub fn decide(seen: &Observed, now: Timestamp, policy: &Policy) -> Decision {
    let mut notes = Vec::new();
    let status = bookkeeping(seen, &mut notes);
    let cron = CronJob { status: Some(status.clone()), ..seen.cron.clone() };
    let then = match phase(&cron, now, policy, &mut notes) {
        Phase::Idle => Then::Rest,
        Phase::Waiting(schedule) => wait(&cron, &schedule, now, policy),
        Phase::Due(schedule, slot) => start_or_wait(&cron, &schedule, slot, now, policy, &mut notes),
    };
    Decision { notes, status, then }
}

/// `status.active` and `lastSuccessfulTime` as the Jobs say they are.
fn bookkeeping(seen: &Observed, notes: &mut Vec<Note>) -> CronJobStatus {
    let mut status = seen.cron.status.clone().unwrap_or_default();
    seen.reaped.iter().for_each(|uid| remove(&mut status, uid));
    for job in seen.jobs {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let active = is_active(&status, uid);
        match finished(job) {
            None if !active => notes.push(Note::UnexpectedJob { job: name_of(job) }),
            None => {}
            Some(condition) => {
                if active {
                    remove(&mut status, uid);
                    notes.push(Note::SawCompletedJob { job: name_of(job), condition });
                }
                if condition == Ended::Complete {
                    let completed = job.status.as_ref().and_then(|s| s.completion_time.as_ref()).map(|time| time.0);
                    let known = status.last_successful_time.as_ref().map(|time| time.0);
                    status.last_successful_time = completed.max(known).map(Time);
                }
            }
        }
    }
    for gone in active(&status).to_vec().iter().filter(|listed| seen.missing.contains(listed)) {
        notes.push(Note::MissingJob { job: gone.name.clone().unwrap_or_default() });
        unlist(&mut status, |listed| listed == gone);
    }
    status
}

enum Phase {
    /// Nothing is to be started, whatever the time.
    Idle,
    Waiting(Schedule),
    Due(Schedule, Timestamp),
}

fn phase(cron: &CronJob, now: Timestamp, policy: &Policy, notes: &mut Vec<Note>) -> Phase {
    let spec = &cron.spec;
    if cron.metadata.deletion_timestamp.is_some() {
        return Phase::Idle;
    }
    if let Some(zone) = &spec.time_zone
        && let Err(why) = load_zone(zone)
    {
        notes.push(Note::UnknownTimeZone { zone: zone.clone(), why });
        return Phase::Idle;
    }
    if spec.suspend == Some(true) {
        return Phase::Idle;
    }
    if spec.schedule.contains("TZ") {
        notes.push(Note::UnsupportedSchedule { schedule: spec.schedule.clone() });
    }
    let schedule = match slots::schedule(cron) {
        Ok(schedule) => schedule,
        Err(why) => {
            notes.push(Note::UnparseableSchedule { schedule: spec.schedule.clone(), why });
            return Phase::Idle;
        }
    };
    match slots::recent(cron, &schedule, &policy.local, now, true) {
        Err(why) => {
            notes.push(Note::InvalidSchedule { schedule: spec.schedule.clone(), why: why.to_string() });
            Phase::Idle
        }
        Ok(recent) => match recent.slot {
            None => Phase::Waiting(schedule),
            Some(slot) => {
                if recent.missed == Missed::Many {
                    notes.push(Note::TooManyMissedTimes);
                }
                Phase::Due(schedule, slot)
            }
        },
    }
}

pub(super) fn start_or_wait(
    cron: &CronJob,
    schedule: &Schedule,
    slot: Timestamp,
    now: Timestamp,
    policy: &Policy,
    notes: &mut Vec<Note>,
) -> Then {
    let status = cron.status.clone().unwrap_or_default();
    let deadline = cron.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    if deadline.is_some_and(|deadline| now.duration_since(slot) > deadline) {
        notes.push(Note::MissSchedule { slot });
        return wait(cron, schedule, now, policy);
    }
    let name = job::name(cron, slot);
    let same = |r: &ObjectReference| r.name.as_ref() == Some(&name) && r.namespace == cron.metadata.namespace;
    if active(&status).iter().any(same) || status.last_schedule_time == Some(Time(slot)) {
        return wait(cron, schedule, now, policy);
    }
    let replaces = match cron.spec.concurrency_policy.as_deref() {
        Some(FORBID) if !active(&status).is_empty() => {
            notes.push(Note::JobAlreadyActive);
            return wait(cron, schedule, now, policy);
        }
        Some(REPLACE) => active(&status).to_vec(),
        _ => Vec::new(),
    };
    let used =
        CronJob { status: Some(CronJobStatus { last_schedule_time: Some(Time(slot)), ..status }), ..cron.clone() };
    Then::Start(Box::new(Start {
        slot,
        job: job::build(cron, slot, policy),
        replaces,
        wait: slots::wait(&used, schedule, &policy.local, now),
    }))
}

fn wait(cron: &CronJob, schedule: &Schedule, now: Timestamp, policy: &Policy) -> Then {
    slots::wait(cron, schedule, &policy.local, now).map_or(Then::Rest, Then::Wait)
}

/// Finished Jobs beyond what the history may hold, oldest first, successful ones before failed ones.
pub fn surplus(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let spec = &cron.spec;
    let limits =
        [(Ended::Complete, spec.successful_jobs_history_limit), (Ended::Failed, spec.failed_jobs_history_limit)];
    let mut out = Vec::new();
    for (condition, limit) in limits {
        let Some(limit) = limit else { continue };
        let mut ended: Vec<_> = jobs.iter().filter(|job| finished(job) == Some(condition)).collect();
        // Unset start times last, then by name.
        ended.sort_by_key(|job| {
            let started = job.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|time| time.0);
            (started.is_none(), started, job.metadata.name.clone())
        });
        let excess = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        // Those on their way out count, but need no second push.
        out.extend(ended.into_iter().take(excess).filter(|job| job.metadata.deletion_timestamp.is_none()).cloned());
    }
    out
}

/// Whether a Job runs that the CronJob does not list: then the CronJob may be older than the Job.
pub fn forgotten<'a>(cron: &CronJob, jobs: &'a [Arc<Job>]) -> Vec<&'a str> {
    let status = cron.status.clone().unwrap_or_default();
    let running = jobs.iter().filter(|job| finished(job).is_none());
    running.filter_map(|job| job.metadata.uid.as_deref()).filter(|uid| !is_active(&status, uid)).collect()
}

/// Jobs that the CronJob lists and nobody has seen: they may be newer than what was seen.
pub fn unseen(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<ObjectReference> {
    let seen: BTreeSet<_> = jobs.iter().filter_map(|job| job.metadata.uid.as_deref()).collect();
    let listed = cron.status.as_ref().map_or(&[][..], active);
    listed.iter().filter(|listed| !seen.contains(uid_of(listed))).cloned().collect()
}

pub fn controller(job: &Job) -> Option<&OwnerReference> {
    job.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// The condition by which a Job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    Failed,
}

impl Ended {
    pub fn condition(self) -> &'static str {
        match self {
            Ended::Complete => "Complete",
            Ended::Failed => "Failed",
        }
    }
}

pub fn finished(job: &Job) -> Option<Ended> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let mut met = conditions.iter().filter(|c| c.status == "True");
    met.find_map(|c| [Ended::Complete, Ended::Failed].into_iter().find(|ended| ended.condition() == c.type_))
}

pub fn active(status: &CronJobStatus) -> &[ObjectReference] {
    status.active.as_deref().unwrap_or_default()
}

pub fn is_active(status: &CronJobStatus, uid: &str) -> bool {
    active(status).iter().any(|listed| uid_of(listed) == uid)
}

/// An entry that somebody wrote without a uid has the empty one, as upstream.
pub fn uid_of(listed: &ObjectReference) -> &str {
    listed.uid.as_deref().unwrap_or_default()
}

pub fn remove(status: &mut CronJobStatus, uid: &str) {
    unlist(status, |listed| uid_of(listed) == uid);
}

pub fn unlist(status: &mut CronJobStatus, which: impl Fn(&ObjectReference) -> bool) {
    if let Some(active) = &mut status.active {
        active.retain(|listed| !which(listed));
        if active.is_empty() {
            status.active = None;
        }
    }
}

fn name_of(job: &Job) -> String {
    job.metadata.name.clone().unwrap_or_default()
}
