//! Which pods are missing, and which of them may be created now.

use jiff::{SignedDuration, Timestamp};

use super::backoff::{self, Record};
use super::counts::{self, Counts};
use super::plan::NewPod;
use crate::job::observe::{Life, Observed};

/// Pods created or deleted in one go.
pub const PER_SYNC: usize = 500;

/// The pods to create now, and after how long to look again for those that have to wait.
pub struct Fill {
    pub create: Vec<NewPod>,
    pub wait: Option<SignedDuration>,
}

/// How many pods should be active.
pub fn wanted(observed: &Observed, counts: &Counts) -> i32 {
    let parallelism = observed.spec.parallelism;
    match observed.spec.completions {
        Some(completions) => completions.saturating_sub(counts.succeeded).min(parallelism).max(0),
        // After the first success what runs is left to run, and nothing is added.
        None if counts.succeeded > 0 => observed.count(Life::Active),
        None => parallelism,
    }
}

pub fn fill(observed: &Observed, counts: &Counts, record: &Record, missing: i32, now: Timestamp) -> Fill {
    let nothing = |wait| Fill { create: Vec::new(), wait };
    let per_index = observed.spec.backoff_limit_per_index.is_some();
    let wait = record.remaining(now);
    if !per_index && wait > SignedDuration::ZERO {
        return nothing(Some(wait));
    }
    let missing = usize::try_from(missing).unwrap_or(0).min(PER_SYNC);
    if !observed.spec.indexed {
        return Fill { create: vec![NewPod::default(); missing], wait: None };
    }
    let mut fill = nothing(None);
    for index in free_indexes(observed, counts, missing) {
        let kept = counts.kept.get(&index).map(|&at| &observed.pods[at]);
        let wait = kept.map_or(SignedDuration::ZERO, |pod| backoff::remaining_for_index(pod, now));
        if wait > SignedDuration::ZERO {
            fill.wait = Some(fill.wait.map_or(wait, |least| least.min(wait)));
            continue;
        }
        let failures = per_index.then(|| match kept {
            None => (0, 0),
            Some(pod) => {
                let (counted, ignored) = pod.earlier_failures();
                match counts::is_ignored(observed, pod) {
                    true => (counted, ignored.saturating_add(1)),
                    false => (counted.saturating_add(1), ignored),
                }
            }
        });
        fill.create.push(NewPod { index: Some(index), failures });
    }
    fill
}

/// The lowest indexes that nobody has, has had, or (podReplacementPolicy Failed) still holds while it terminates.
fn free_indexes(observed: &Observed, counts: &Counts, limit: usize) -> Vec<i32> {
    let holds = |life: Life| life == Life::Active || (life == Life::Terminating && observed.spec.replace_only_failed);
    let held = observed.pods.iter().filter(|pod| holds(pod.life)).filter_map(|pod| pod.index).collect();
    let taken = counts.succeeded_indexes.union(&held);
    let taken = counts.failed_indexes.iter().fold(taken, |taken, failed| taken.union(failed));
    taken.first_missing(limit, observed.spec.index_count())
}
