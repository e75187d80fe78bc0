//! What a Job's status becomes. Pods that ended are counted exactly once, whatever is interrupted:
//!
//! 1. [`tally`]: their uids (of successes of an Indexed Job: their indexes) go into the status, with whatever else changed.
//! 2. Their finalizers are removed; only then can they disappear.
//! 3. [`settle`]: the uids leave the list and the counters go up. When none is left and nothing terminates, the Job ends.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus, UncountedTerminatedPods};

use super::Indexes;
use super::conditions::{self, whole_seconds};
use super::counts::{self, Uncounted};
use super::failure::Action;
use super::plan::{Plan, Step};
use super::verdict::{Outcome, Verdict};
use crate::job::observe::{Life, Member, Observed};

/// Uids in the status at any time: about 20 KB.
pub const MAX_UNCOUNTED: usize = 500;

/// What came of a plan's creations and deletions.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Positions of the pods that were deleted or were gone already.
    pub deleted: BTreeSet<usize>,
    pub created: usize,
}

#[derive(Clone, Debug)]
pub struct Tally {
    pub status: JobStatus,
    /// The status is not what the Job has: write it.
    pub changed: bool,
    /// Positions of the pods whose finalizers are to be removed then.
    pub strip: Vec<usize>,
    /// How the Job ends when everything is counted.
    pub verdict: Option<Verdict>,
    /// More pods have ended than one status may list.
    pub capped: bool,
    pub suspension: Option<Suspension>,
    pub handled_by_policy: BTreeMap<Action, u64>,
}

/// What to tell about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspension {
    Suspended,
    Resumed,
}

pub fn tally(observed: &Observed, plan: &Plan, done: &Done, now: Timestamp) -> Tally {
    let mut status = observed.status.clone();
    let (active, terminating, ready) = population(observed, done);
    let mut suspension = None;
    let clearing_out = matches!(plan.step, Step::ClearOut { .. });
    if !observed.spec.suspended && status.start_time.is_none() && !clearing_out {
        status.start_time = Some(whole_seconds(now));
    }
    let verdict = end(observed, plan, done, active);
    let manages = !matches!(plan.step, Step::Leave | Step::End { .. }) && !clearing_out;
    if verdict.is_none() && manages {
        suspension = mark_suspension(observed, &mut status, now);
    }
    status.active = Some(active).filter(|active| *active != 0);
    status.ready = Some(ready);
    status.terminating = Some(terminating);
    let with_finalizer = observed.pods.iter().filter(|pod| pod.tracked).map(Member::uid).collect();
    count_stripped(&mut status, &with_finalizer);

    let mut tally = Tally {
        status,
        changed: false,
        strip: Vec::new(),
        verdict,
        capped: false,
        suspension,
        handled_by_policy: BTreeMap::new(),
    };
    tally.list_ended(observed, plan, done);
    if observed.spec.indexed {
        write_indexes(&mut tally.status, plan);
    }
    if let Some(verdict) = tally.verdict.as_ref().filter(|verdict| verdict.is_new) {
        let (kind, reason, message) = (verdict.outcome.interim(), &verdict.reason, &verdict.message);
        conditions::ensure(&mut tally.status, conditions::new(kind, "True", reason, message, now));
    }
    tally.changed = !is_same(&tally.status, &observed.status);
    tally
}

/// Active, terminating and ready pods, with what was just done.
fn population(observed: &Observed, done: &Done) -> (i32, i32, i32) {
    let deleted = done.deleted.len() as i32;
    let ready = |at: &usize| observed.pods[*at].life == Life::Active && observed.pods[*at].ready;
    let was_ready = (0..observed.pods.len()).filter(ready).count() as i32;
    let ready_deleted = done.deleted.iter().filter(|at| ready(at)).count() as i32;
    let active = observed.count(Life::Active) - deleted + done.created as i32;
    (active, observed.count(Life::Terminating) + deleted, was_ready - ready_deleted)
}

/// The end of the Job, unless pods that should have been deleted are still there.
fn end(observed: &Observed, plan: &Plan, done: &Done, active: i32) -> Option<Verdict> {
    match &plan.step {
        Step::End { verdict, delete } => (done.deleted.len() == delete.len()).then(|| verdict.clone()),
        _ => {
            // Without a number of completions, one success is enough.
            let enough = observed.spec.completions.unwrap_or(1);
            (plan.counts.succeeded >= enough && active == 0).then(Verdict::completions_reached)
        }
    }
}

fn mark_suspension(observed: &Observed, status: &mut JobStatus, now: Timestamp) -> Option<Suspension> {
    if observed.spec.suspended {
        let clear = observed.policy.clear_start_time_on_suspend;
        conditions::mark_suspended(status, clear, now).then_some(Suspension::Suspended)
    } else {
        conditions::mark_started(status, now).then_some(Suspension::Resumed)
    }
}

impl Tally {
    /// Lists the pods that have ended, and chooses those that may go.
    fn list_ended(&mut self, observed: &Observed, plan: &Plan, done: &Done) {
        let before = Uncounted::of(observed);
        let lists = self.status.uncounted_terminated_pods.get_or_insert_default();
        let succeeded = lists.succeeded.get_or_insert_default();
        let failed = lists.failed.get_or_insert_default();
        let mut new_indexes = 0;
        for (at, pod) in observed.pods.iter().enumerate().filter(|(_, pod)| pod.tracked) {
            let freed = plan.deletes_uncounted() && done.deleted.contains(&at);
            if freed || !may_go(observed, plan, self.verdict.is_some(), at) {
                continue;
            }
            self.strip.push(at);
            let listed_as_failed = before.failed.contains(pod.uid());
            if pod.life == Life::Succeeded && !listed_as_failed {
                match observed.spec.indexed {
                    // The index is enough not to count it again.
                    true => {
                        let new = observed.valid_index(pod).filter(|index| !plan.counts.counted_indexes.has(*index));
                        new_indexes += usize::from(new.is_some());
                    }
                    false if before.succeeded.contains(pod.uid()) => {}
                    false => succeeded.push(pod.uid().to_string()),
                }
            } else if (pod.failed || self.verdict.as_ref().is_some_and(|v| v.outcome == Outcome::Failure))
                && !listed_as_failed
                && observed.counts(pod)
            {
                let action = counts::rule(observed, pod).map(|rule| rule.action);
                if let Some(action) = action {
                    *self.handled_by_policy.entry(action).or_default() += 1;
                }
                if action != Some(Action::Ignore) {
                    failed.push(pod.uid().to_string());
                }
            }
            if new_indexes + succeeded.len() + failed.len() >= MAX_UNCOUNTED {
                self.capped = true;
                break;
            }
        }
        tidy(lists);
    }
}

/// Whether a pod has played its part. One that waits for its replacement has not: it knows its index's failures.
fn may_go(observed: &Observed, plan: &Plan, over: bool, at: usize) -> bool {
    let pod = &observed.pods[at];
    if observed.being_deleted() || over || pod.life == Life::Succeeded {
        return true;
    }
    let kept = pod.index.is_some_and(|index| plan.counts.kept.get(&index) == Some(&at));
    pod.failed && !kept
}

fn write_indexes(status: &mut JobStatus, plan: &Plan) {
    let written = |indexes: &Indexes| indexes.to_string();
    status.succeeded = Some(plan.counts.succeeded_indexes.count()).filter(|count| *count != 0);
    status.completed_indexes = Some(written(&plan.counts.succeeded_indexes)).filter(|text| !text.is_empty());
    status.failed_indexes = plan.counts.failed_indexes.as_ref().map(written);
}

/// Moves listed uids whose pods have lost their finalizer, or are gone, into the counters.
fn count_stripped(status: &mut JobStatus, with_finalizer: &BTreeSet<&str>) {
    let Some(lists) = status.uncounted_terminated_pods.as_mut() else { return };
    let count = |list: &mut Option<Vec<String>>| {
        let Some(uids) = list.as_mut() else { return 0 };
        let before = uids.len();
        uids.retain(|uid| with_finalizer.contains(uid.as_str()));
        (before - uids.len()) as i32
    };
    let (succeeded, failed) = (count(&mut lists.succeeded), count(&mut lists.failed));
    tidy(lists);
    let add = |counter: &mut Option<i32>, more: i32| {
        *counter = Some(counter.unwrap_or(0).saturating_add(more)).filter(|count| *count != 0);
    };
    add(&mut status.succeeded, succeeded);
    add(&mut status.failed, failed);
}

/// On the wire an empty list is absent.
fn tidy(lists: &mut UncountedTerminatedPods) {
    for list in [&mut lists.succeeded, &mut lists.failed] {
        if list.as_ref().is_some_and(Vec::is_empty) {
            *list = None;
        }
    }
}

/// Equal but for what means the same: no list and an empty one, no number and zero.
fn is_same(a: &JobStatus, b: &JobStatus) -> bool {
    let plain = |status: &JobStatus| {
        let mut status = status.clone();
        for count in [&mut status.active, &mut status.succeeded, &mut status.failed] {
            *count = Some(count.unwrap_or(0));
        }
        let lists = status.uncounted_terminated_pods.get_or_insert_default();
        tidy(lists);
        status.completed_indexes.get_or_insert_default();
        status.conditions.get_or_insert_default();
        status
    };
    plain(a) == plain(b)
}

/// The status after finalizers were removed.
pub struct Settled {
    pub status: JobStatus,
    pub changed: bool,
    /// The Job is over.
    pub finished: Option<JobCondition>,
}

/// `stripped` are the positions whose finalizer is gone now; `all` says that none of the removals failed.
pub fn settle(observed: &Observed, tally: &Tally, stripped: &BTreeSet<usize>, all: bool, now: Timestamp) -> Settled {
    let mut status = tally.status.clone();
    let left = observed.pods.iter().enumerate().filter(|(at, pod)| pod.tracked && !stripped.contains(at));
    count_stripped(&mut status, &left.map(|(_, pod)| pod.uid()).collect());
    let verdict = tally.verdict.as_ref().filter(|_| all && !tally.capped);
    let finished = verdict.and_then(|verdict| finish(&mut status, verdict, now));
    Settled { changed: !is_same(&status, &tally.status), status, finished }
}

/// The last condition, once nothing is left to count and nothing terminates.
fn finish(status: &mut JobStatus, verdict: &Verdict, now: Timestamp) -> Option<JobCondition> {
    let lists = status.uncounted_terminated_pods.as_ref();
    let listed = lists.is_some_and(|lists| lists.succeeded.is_some() || lists.failed.is_some());
    if listed || status.terminating.unwrap_or(0) > 0 {
        return None;
    }
    // The API takes no end before the start, not even from a clock that went back.
    let now = status.start_time.as_ref().map_or(now, |start| now.max(start.0));
    let last = conditions::new(verdict.outcome.terminal(), "True", &verdict.reason, &verdict.message, now);
    conditions::ensure(status, last.clone());
    if verdict.outcome == Outcome::Success {
        status.completion_time = last.last_transition_time.clone();
    }
    Some(last)
}
