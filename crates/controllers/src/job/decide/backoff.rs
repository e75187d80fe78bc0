//! How long to wait before failed pods are replaced: ten seconds after the first failure in a row, doubling up to ten
//! minutes. A success ends the row.
//!
//! Like upstream, a running controller remembers the row, so that deleting the failed pods does not shorten the wait. Unlike
//! upstream, one that has just started reads it off the pods that are left instead of starting from nothing.

use jiff::{SignedDuration, Timestamp};

use super::counts::Counts;
use crate::job::observe::{Life, Member, Observed};

pub const FIRST: SignedDuration = SignedDuration::from_secs(10);
pub const LONGEST: SignedDuration = SignedDuration::from_secs(600);

/// The failures since the last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub failures: i32,
    pub last: Option<Timestamp>,
}

impl Record {
    pub fn remaining(&self, now: Timestamp) -> SignedDuration {
        self.last.map_or(SignedDuration::ZERO, |last| remaining(self.failures, last, now))
    }
}

/// The record with what has ended since.
pub fn next(observed: &Observed, counts: &Counts) -> Record {
    let all = |positions: &[usize]| positions.iter().map(|&at| &observed.pods[at]).collect::<Vec<_>>();
    match observed.remembered {
        Some(record) => extended(record, &all(&counts.new_succeeded), &all(&counts.new_failed)),
        None => {
            let succeeded = observed.positions(|pod| pod.life == Life::Succeeded && observed.counts(pod));
            // A pod that is being deleted and is not tracked was suspended or surplus, or is counted and about to go.
            let let_go = |pod: &Member| !pod.tracked && pod.pod.metadata.deletion_timestamp.is_some();
            let failed = observed.positions(|pod| pod.failed && observed.counts(pod) && !let_go(pod));
            extended(Record::default(), &all(&succeeded), &all(&failed))
        }
    }
}

fn extended(record: Record, succeeded: &[&Member], failed: &[&Member]) -> Record {
    let last_success = succeeded.iter().map(|pod| pod.finished_at()).max();
    let ends = failed.iter().map(|pod| pod.finished_at());
    let ends: Vec<_> = ends.filter(|end| last_success.is_none_or(|success| *end > success)).collect();
    let record = if last_success.is_some() { Record::default() } else { record };
    match ends.iter().max() {
        Some(last) => Record { failures: record.failures.saturating_add(ends.len() as i32), last: Some(*last) },
        None => record,
    }
}

/// The wait before the pod of an index is replaced: the pod itself says how often its index had failed before.
pub fn remaining_for_index(failed: &Member, now: Timestamp) -> SignedDuration {
    let (counted, ignored) = failed.earlier_failures();
    remaining(counted.saturating_add(ignored).saturating_add(1), failed.finished_at(), now)
}

fn remaining(failures: i32, last: Timestamp, now: Timestamp) -> SignedDuration {
    if failures <= 0 {
        return SignedDuration::ZERO;
    }
    let doublings = (failures - 1).min(16) as u32;
    let wait = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    // A failure that seems to lie in the future (a clock went back) waits no longer than one of now would.
    let elapsed = now.duration_since(last).max(SignedDuration::ZERO);
    wait.saturating_sub(elapsed).max(SignedDuration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_ten_seconds_to_ten_minutes() {
        let now = Timestamp::UNIX_EPOCH;
        let waits = |n| remaining(n, now, now).as_secs();
        assert_eq!([0, 1, 2, 3, 6, 7, 8, i32::MAX].map(waits), [0, 10, 20, 40, 320, 600, 600, 600]);
    }

    #[test]
    fn time_that_has_passed_counts() {
        let at = |secs| Timestamp::from_second(secs).unwrap();
        assert_eq!(remaining(2, at(0), at(5)).as_secs(), 15);
        assert_eq!(remaining(2, at(0), at(20)).as_secs(), 0);
        assert_eq!(remaining(2, at(0), at(999)).as_secs(), 0);
        assert_eq!(remaining(1, at(50), at(0)).as_secs(), 10);
    }
}
