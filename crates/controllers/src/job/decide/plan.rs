//! Which pods to create or to delete. One of them at a time: deletions go first, creations wait for the next look.

use jiff::{SignedDuration, Timestamp};

use super::backoff::{self, Record};
use super::counts::Counts;
use super::gap::{self, PER_SYNC};
use super::surplus;
use super::verdict::{Verdict, deadline_in, verdict};
use crate::job::observe::{Life, Observed};

#[derive(Clone, Debug)]
pub struct Plan {
    pub counts: Counts,
    /// What to remember of failures once they are in the status.
    pub record: Record,
    pub step: Step,
    /// Look again after this long, whatever happens.
    pub wake: Option<SignedDuration>,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// The Job is being deleted: its pods are accounted for and otherwise left alone.
    Leave,
    /// The end has come: the active pods go, counted.
    End { verdict: Verdict, delete: Vec<usize> },
    /// Every active pod goes, uncounted.
    Suspend { delete: Vec<usize> },
    /// The Job was edited while pods of an earlier template were left over: they go first, uncounted.
    ClearOut { delete: Vec<usize> },
    /// Too many pods, or wrong ones: these go, uncounted.
    Shrink { delete: Vec<usize> },
    /// Too few. There may be none to create yet.
    Grow { create: Vec<NewPod> },
    /// As many pods as there should be.
    Rest,
}

/// A pod to create from the Job's template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPod {
    pub index: Option<i32>,
    /// With backoffLimitPerIndex: the failures of the index so far, counted and ignored.
    pub failures: Option<(i32, i32)>,
}

pub fn decide(observed: &Observed, now: Timestamp) -> Plan {
    let counts = Counts::of(observed);
    let record = backoff::next(observed, &counts);
    if let Some(verdict) = verdict(observed, &counts, now) {
        let step = Step::End { verdict, delete: observed.active() };
        return Plan { counts, record, step, wake: None };
    }
    let deadline = deadline_in(observed, now);
    let (step, wait) = match phase(observed, &counts) {
        Phase::Leaving => (Step::Leave, None),
        Phase::Suspended => (Step::Suspend { delete: surplus::choose(observed, observed.active().len()) }, None),
        Phase::LeftOver => (Step::ClearOut { delete: observed.active() }, None),
        Phase::TooMany(delete) => (Step::Shrink { delete }, None),
        Phase::TooFew(missing) => {
            let fill = gap::fill(observed, &counts, &record, missing, now);
            (Step::Grow { create: fill.create }, fill.wait)
        }
        Phase::Level => (Step::Rest, None),
    };
    let wake = [deadline, wait].into_iter().flatten().min();
    Plan { counts, record, step, wake }
}

enum Phase {
    Leaving,
    Suspended,
    LeftOver,
    TooMany(Vec<usize>),
    TooFew(i32),
    Level,
}

fn phase(observed: &Observed, counts: &Counts) -> Phase {
    if observed.being_deleted() {
        return Phase::Leaving;
    }
    if observed.spec.suspended {
        return Phase::Suspended;
    }
    let active = observed.count(Life::Active);
    // The status says: suspended, and nothing runs. Then the template was open, and whatever runs all the same (a
    // creation whose answer was lost) may be of an older one.
    if active > 0 && observed.resuming() && observed.status.active.unwrap_or(0) == 0 {
        return Phase::LeftOver;
    }
    let wanted = gap::wanted(observed, counts);
    let surplus = usize::try_from(active.saturating_sub(wanted)).unwrap_or(0);
    let mut delete = surplus::choose(observed, surplus);
    delete.truncate(PER_SYNC);
    if !delete.is_empty() {
        return Phase::TooMany(delete);
    }
    let terminating = if observed.spec.replace_only_failed { observed.count(Life::Terminating) } else { 0 };
    match wanted.saturating_sub(terminating).saturating_sub(active) {
        missing if missing > 0 => Phase::TooFew(missing),
        _ => Phase::Level,
    }
}

impl Plan {
    pub fn delete(&self) -> &[usize] {
        match &self.step {
            Step::End { delete, .. }
            | Step::Suspend { delete }
            | Step::ClearOut { delete }
            | Step::Shrink { delete } => delete,
            Step::Leave | Step::Grow { .. } | Step::Rest => &[],
        }
    }

    /// Whether deleted pods lose their finalizer first, so that they are never counted.
    pub fn deletes_uncounted(&self) -> bool {
        !matches!(self.step, Step::End { .. })
    }

    pub fn create(&self) -> &[NewPod] {
        match &self.step {
            Step::Grow { create } => create,
            _ => &[],
        }
    }

    /// Before the first pod, the status must say that the Job has started, guarded by the revision whose template the
    /// pods are made from: from then on the template cannot change under them (KEP-2926's race).
    pub fn starts_first(&self, observed: &Observed) -> bool {
        !self.create().is_empty() && (observed.status.start_time.is_none() || observed.resuming())
    }

    /// The value of metrics' label `action`.
    pub fn action(&self) -> &'static str {
        match &self.step {
            Step::Leave | Step::End { .. } => "reconciling",
            Step::Suspend { .. } | Step::ClearOut { .. } | Step::Shrink { .. } => "pods_deleted",
            Step::Grow { .. } => "pods_created",
            Step::Rest => "tracking",
        }
    }
}
