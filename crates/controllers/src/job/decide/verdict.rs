//! Whether a Job has come to its end other than by running out of work: what its status already says, then failures,
//! then its success policy. The first that holds counts.

use jiff::{SignedDuration, Timestamp};

use super::conditions;
use super::counts::{self, Counts};
use super::failure::Action;
use super::success;
use crate::job::names;
use crate::job::observe::Observed;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub outcome: Outcome,
    pub reason: String,
    pub message: String,
    /// The status does not say it yet.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
}

impl Outcome {
    /// The condition that announces the end.
    pub fn interim(self) -> &'static str {
        match self {
            Outcome::Success => names::SUCCESS_CRITERIA_MET,
            Outcome::Failure => names::FAILURE_TARGET,
        }
    }

    /// The condition that is the end.
    pub fn terminal(self) -> &'static str {
        match self {
            Outcome::Success => names::COMPLETE,
            Outcome::Failure => names::FAILED,
        }
    }
}

impl Verdict {
    fn new(outcome: Outcome, reason: &str, message: impl Into<String>) -> Verdict {
        Verdict { outcome, reason: reason.to_string(), message: message.into(), is_new: true }
    }

    pub fn completions_reached() -> Verdict {
        Verdict::new(Outcome::Success, "CompletionsReached", "Reached expected number of succeeded pods")
    }
}

/// The end that has come, if one has.
pub fn verdict(observed: &Observed, counts: &Counts, now: Timestamp) -> Option<Verdict> {
    announced(observed, Outcome::Success)
        .or_else(|| announced(observed, Outcome::Failure))
        .or_else(|| failed_by_policy(observed))
        .or_else(|| past_backoff_limit(observed, counts))
        .or_else(|| past_deadline(observed, now))
        .or_else(|| failed_by_indexes(observed, counts))
        .or_else(|| succeeded_by_policy(observed, counts))
}

fn announced(observed: &Observed, outcome: Outcome) -> Option<Verdict> {
    let condition = conditions::find(&observed.status, outcome.interim()).filter(|c| c.status == "True")?;
    let (reason, message) = (condition.reason.clone(), condition.message.clone());
    Some(Verdict { outcome, reason: reason.unwrap_or_default(), message: message.unwrap_or_default(), is_new: false })
}

fn failed_by_policy(observed: &Observed) -> Option<Verdict> {
    observed.job_spec()?.pod_failure_policy.as_ref()?;
    let namespace = observed.job.metadata.namespace.as_deref().unwrap_or_default();
    let fails = |pod: &&crate::job::observe::Member| pod.failed;
    observed.pods.iter().filter(fails).find_map(|pod| {
        let rule = counts::rule(observed, pod).filter(|rule| rule.action == Action::FailJob)?;
        Some(Verdict::new(Outcome::Failure, "PodFailurePolicy", rule.sentence(namespace, pod.name())))
    })
}

fn past_backoff_limit(observed: &Observed, counts: &Counts) -> Option<Verdict> {
    let limit = observed.spec.backoff_limit;
    let running = observed.pods.iter().filter(|pod| matches!(pod.phase(), "Pending" | "Running"));
    let restarts = running.fold(0i32, |sum, pod| sum.saturating_add(pod.restarts()));
    let restarted_too_often = observed.spec.restarts_on_failure && restarts >= limit.max(1);
    (counts.failed > limit || restarted_too_often)
        .then(|| Verdict::new(Outcome::Failure, "BackoffLimitExceeded", "Job has reached the specified backoff limit"))
}

fn past_deadline(observed: &Observed, now: Timestamp) -> Option<Verdict> {
    (deadline_in(observed, now)? <= SignedDuration::ZERO)
        .then(|| Verdict::new(Outcome::Failure, "DeadlineExceeded", "Job was active longer than specified deadline"))
}

/// The time that is left to the Job; none while it is suspended, all of it right after it was resumed.
pub fn deadline_in(observed: &Observed, now: Timestamp) -> Option<SignedDuration> {
    let deadline = observed.spec.deadline.filter(|_| !observed.spec.suspended)?;
    let started = observed.status.start_time.as_ref().filter(|_| !observed.resuming()).map_or(now, |time| time.0);
    Some(deadline.saturating_sub(now.duration_since(started)))
}

fn failed_by_indexes(observed: &Observed, counts: &Counts) -> Option<Verdict> {
    let failed = counts.failed_indexes.as_ref()?.count();
    if observed.spec.max_failed_indexes.is_some_and(|max| failed > max) {
        let message = "Job has exceeded the specified maximal number of failed indexes";
        return Some(Verdict::new(Outcome::Failure, "MaxFailedIndexesExceeded", message));
    }
    let all_over = failed > 0 && failed + counts.succeeded_indexes.count() >= observed.spec.index_count();
    all_over.then(|| Verdict::new(Outcome::Failure, "FailedIndexes", "Job has failed indexes"))
}

fn succeeded_by_policy(observed: &Observed, counts: &Counts) -> Option<Verdict> {
    let policy = observed.job_spec()?.success_policy.as_ref().filter(|_| observed.spec.indexed)?;
    let rule = success::met_rule(policy, observed.spec.index_count(), &counts.succeeded_indexes)?;
    Some(Verdict::new(Outcome::Success, "SuccessPolicy", format!("Matched rules at index {rule}")))
}
