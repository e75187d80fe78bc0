//! How far a Job has come: what its status has counted, plus what has ended and is not counted yet.

use std::collections::{BTreeMap, BTreeSet};

use super::Indexes;
use super::failure::{self, Action};
use crate::job::observe::{Life, Member, Observed};

#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub succeeded: i32,
    pub failed: i32,
    /// Positions of pods that ended and are in no list of the status yet.
    pub new_succeeded: Vec<usize>,
    pub new_failed: Vec<usize>,
    /// Indexes that the status has, and those with what has succeeded since. Empty unless the Job is Indexed.
    pub counted_indexes: Indexes,
    pub succeeded_indexes: Indexes,
    /// Only with backoffLimitPerIndex.
    pub failed_indexes: Option<Indexes>,
    /// The last failed pod of each index that waits for a replacement: it must stay until that exists, because it knows
    /// how often its index has failed.
    pub kept: BTreeMap<i32, usize>,
}

impl Counts {
    pub fn of(observed: &Observed) -> Counts {
        let uncounted = Uncounted::of(observed);
        let fresh = |is: &dyn Fn(&Member) -> bool, listed: &BTreeSet<&str>| {
            observed.positions(|pod| pod.tracked && !listed.contains(pod.uid()) && observed.counts(pod) && is(pod))
        };
        let succeeds = |pod: &Member| pod.life == Life::Succeeded && !uncounted.failed.contains(pod.uid());
        let new_succeeded = fresh(&succeeds, &uncounted.succeeded);
        let new_failed = fresh(&|pod| pod.failed, &uncounted.failed);
        let (status, pods) = (&observed.status, &observed.pods);
        let not_ignored = new_failed.iter().filter(|&&at| !is_ignored(observed, &pods[at])).count();
        let succeeded = new_succeeded.len() + uncounted.succeeded.len();
        let failed = not_ignored + uncounted.failed.len();
        let mut counts = Counts {
            succeeded: status.succeeded.unwrap_or(0).saturating_add(succeeded as i32),
            failed: status.failed.unwrap_or(0).saturating_add(failed as i32),
            new_succeeded,
            new_failed,
            ..Counts::default()
        };
        if observed.spec.indexed {
            counts.count_indexes(observed);
        }
        counts
    }

    fn count_indexes(&mut self, observed: &Observed) {
        let all = observed.spec.index_count();
        let read = |text: &Option<String>| Indexes::parse(text.as_deref().unwrap_or_default(), all);
        let known_failed = read(&observed.status.failed_indexes);
        // What was deleted and listed as failed stays so, even if it ended well after all: upstream counts it twice.
        let listed = Uncounted::of(observed).failed;
        let indexes_of = |is: &dyn Fn(&Member) -> bool| -> Indexes {
            let pods = observed.pods.iter().filter(|pod| pod.tracked && is(pod));
            pods.filter_map(|pod| observed.valid_index(pod)).collect()
        };
        let succeeds = |pod: &Member| pod.life == Life::Succeeded && !listed.contains(pod.uid());
        self.counted_indexes = read(&observed.status.completed_indexes);
        // An index is one or the other: the API refuses a status in which it is both.
        let succeeded = indexes_of(&|pod| succeeds(pod) && !pod.index.is_some_and(|i| known_failed.has(i)));
        self.succeeded_indexes = self.counted_indexes.union(&succeeded);
        self.succeeded = self.succeeded_indexes.count();
        let Some(limit) = observed.spec.backoff_limit_per_index else { return };
        let done = &self.succeeded_indexes;
        let failed =
            indexes_of(&|pod| fails_index(observed, pod, limit) && !pod.index.is_some_and(|index| done.has(index)));
        self.failed_indexes = Some(known_failed.union(&failed));
        self.kept = self.kept_pods(observed);
    }

    fn kept_pods(&self, observed: &Observed) -> BTreeMap<i32, usize> {
        let active: BTreeSet<i32> = observed.active().iter().filter_map(|&at| observed.pods[at].index).collect();
        let over = |index| {
            self.succeeded_indexes.has(index)
                || self.failed_indexes.as_ref().is_some_and(|failed| failed.has(index))
                || active.contains(&index)
        };
        let age = |at: usize| {
            let (counted, ignored) = observed.pods[at].earlier_failures();
            (counted.saturating_add(ignored), observed.pods[at].finished_at())
        };
        let mut kept = BTreeMap::new();
        for at in observed.positions(|pod| pod.tracked && pod.failed) {
            let Some(index) = observed.valid_index(&observed.pods[at]).filter(|index| !over(*index)) else { continue };
            let last = kept.entry(index).or_insert(at);
            let (before, this) = (age(*last), age(at));
            if before.0 <= this.0 && before.1 <= this.1 {
                *last = at;
            }
        }
        kept
    }
}

/// The uids that the status lists as ended but not counted.
pub struct Uncounted<'a> {
    pub succeeded: BTreeSet<&'a str>,
    pub failed: BTreeSet<&'a str>,
}

impl<'a> Uncounted<'a> {
    pub fn of(observed: &'a Observed) -> Uncounted<'a> {
        let lists = observed.status.uncounted_terminated_pods.as_ref();
        let set = |list: Option<&'a Vec<String>>| list.into_iter().flatten().map(String::as_str).collect();
        Uncounted {
            succeeded: set(lists.and_then(|lists| lists.succeeded.as_ref())),
            failed: set(lists.and_then(|lists| lists.failed.as_ref())),
        }
    }
}

/// The rule of the Job's podFailurePolicy that the pod meets.
pub fn rule(observed: &Observed, pod: &Member) -> Option<failure::Match> {
    let policy = observed.job_spec()?.pod_failure_policy.as_ref()?;
    failure::match_policy(policy, &pod.pod)
}

pub fn is_ignored(observed: &Observed, pod: &Member) -> bool {
    rule(observed, pod).is_some_and(|rule| rule.action == Action::Ignore)
}

fn fails_index(observed: &Observed, pod: &Member, limit: i32) -> bool {
    pod.failed
        && match rule(observed, pod).map(|rule| rule.action) {
            Some(Action::FailIndex) => true,
            Some(Action::Ignore) => false,
            _ => pod.earlier_failures().0 >= limit,
        }
}
