//! Who leads, as client-go's leaderelection says it. Pure: what was seen and `now` in, the next step out.
//!
//! Time is the monotonic clock's, never the time written in the Lease: clocks of machines differ, and are set. A lease has
//! expired when nobody has changed it for as long as it lasts, counted from when that was seen *here*.

use std::time::Duration;

use tokio::time::Instant;

/// How long things take. The defaults are client-go's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// A lease that was not renewed for so long may be taken.
    pub lease: Duration,
    /// A leader that could not renew for so long stops.
    pub renew_deadline: Duration,
    /// Between two renewals, and between two tries.
    pub retry: Duration,
    /// A leader gives up a write after so long; less than `lease - renew_deadline`, so that none arrives when somebody else
    /// may lead.
    pub write_timeout: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
            write_timeout: Duration::from_secs(4),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTerms {
    #[error("the lease lasts {lease:?}, which is not longer than the deadline to renew it, {renew:?}")]
    Lease { lease: Duration, renew: Duration },
    #[error("the lease is to be renewed within {renew:?}, which leaves no second try after {retry:?}")]
    Retry { renew: Duration, retry: Duration },
    #[error(
        "a write may take {write:?}, which is not shorter than the {left:?} that a lease lasts beyond its deadline"
    )]
    Write { write: Duration, left: Duration },
}

impl Terms {
    pub fn check(&self) -> Result<(), BadTerms> {
        let Terms { lease, renew_deadline: renew, retry, write_timeout: write } = *self;
        if lease <= renew {
            return Err(BadTerms::Lease { lease, renew });
        }
        if renew <= retry {
            return Err(BadTerms::Retry { renew, retry });
        }
        if write >= lease - renew {
            return Err(BadTerms::Write { write, left: lease - renew });
        }
        Ok(())
    }
}

/// What the Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Empty when it was released.
    pub holder: String,
    pub lasts: Duration,
    pub transitions: i32,
    pub revision: String,
}

/// What is known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The Lease, and since when it has not changed; None if there is none, or it was never seen.
    pub seen: Option<(Record, Instant)>,
    /// While leading: when the last renewal that succeeded was begun.
    pub renewed: Option<Instant>,
    /// When the last write that failed was begun.
    pub failed: Option<Instant>,
}

impl Known {
    /// Takes in what the API server shows. A record that was seen already does not start to count anew.
    pub fn see(&mut self, record: Option<Record>, now: Instant) {
        let same = self.seen.as_ref().map(|(known, _)| known) == record.as_ref();
        if !same {
            self.seen = record.map(|record| (record, now));
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no Lease: make one.
    Create,
    /// It is free, or its holder is silent: take it.
    Take {
        from: Record,
    },
    /// It is ours: say so again.
    Renew {
        from: Record,
    },
    Wait {
        until: Instant,
    },
    /// We may not be the leader any longer.
    Resign {
        why: &'static str,
    },
}

pub fn decide(me: &str, known: &Known, terms: &Terms, now: Instant) -> Step {
    if let Some(renewed) = known.renewed {
        return lead(me, known, renewed, terms, now);
    }
    let step = match &known.seen {
        None => Step::Create,
        Some((record, since)) if !record.holder.is_empty() && now < *since + record.lasts => {
            return Step::Wait { until: *since + record.lasts };
        }
        Some((record, _)) => Step::Take { from: record.clone() },
    };
    match known.failed.map(|at| at + terms.retry).filter(|next| now < *next) {
        Some(until) => Step::Wait { until },
        None => step,
    }
    .for_candidate(me)
}

fn lead(me: &str, known: &Known, renewed: Instant, terms: &Terms, now: Instant) -> Step {
    let Some((record, _)) = &known.seen else { return Step::Resign { why: "the lease was deleted" } };
    if record.holder != me {
        return Step::Resign { why: "somebody else holds the lease" };
    }
    let deadline = renewed + terms.renew_deadline;
    if now >= deadline {
        return Step::Resign { why: "the lease could not be renewed in time" };
    }
    let next = known.failed.map_or(renewed, |failed| failed.max(renewed)) + terms.retry;
    if now >= next { Step::Renew { from: record.clone() } } else { Step::Wait { until: next.min(deadline) } }
}

impl Step {
    /// Identities are never used twice, so a Lease that names us is one that we took and did not hear back about.
    fn for_candidate(self, me: &str) -> Step {
        match self {
            Step::Take { from } if from.holder == me => Step::Renew { from },
            other => other,
        }
    }
}
