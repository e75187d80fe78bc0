//! A Job's conditions: one of each type, with whole seconds as the wire has them.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::job::names;

pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

pub fn find<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub fn is_true(status: &JobStatus, kind: &str) -> bool {
    find(status, kind).is_some_and(|condition| condition.status == "True")
}

/// The condition that says that the Job is over, if it is.
pub fn finished(status: &JobStatus) -> Option<&JobCondition> {
    let over = |c: &&JobCondition| (c.type_ == names::COMPLETE || c.type_ == names::FAILED) && c.status == "True";
    status.conditions.iter().flatten().find(over)
}

pub fn new(kind: &str, value: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: kind.to_string(),
        status: value.to_string(),
        reason: Some(reason.to_string()),
        message: Some(message.to_string()),
        last_probe_time: Some(whole_seconds(now)),
        last_transition_time: Some(whole_seconds(now)),
    }
}

/// Makes the condition so; returns whether that changed anything. A condition that was never there is not added as False:
/// from nothing to False nothing has happened.
pub fn ensure(status: &mut JobStatus, condition: JobCondition) -> bool {
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|old| old.type_ == condition.type_) {
        Some(old) => {
            let same = |c: &JobCondition| (c.status.clone(), c.reason.clone(), c.message.clone());
            let changed = same(old) != same(&condition);
            if changed {
                *old = condition;
            }
            changed
        }
        None if condition.status == "False" => false,
        None => {
            conditions.push(condition);
            true
        }
    }
}

/// Started, and not suspended (any longer). Returns whether the Job was resumed.
pub fn mark_started(status: &mut JobStatus, now: Timestamp) -> bool {
    let resumed = ensure(status, new(names::SUSPENDED, "False", "JobResumed", "Job resumed", now));
    if resumed || status.start_time.is_none() {
        status.start_time = Some(whole_seconds(now));
    }
    resumed
}

/// Suspended; returns whether that is news.
pub fn mark_suspended(status: &mut JobStatus, clear_start_time: bool, now: Timestamp) -> bool {
    let changed = ensure(status, new(names::SUSPENDED, "True", "JobSuspended", "Job suspended", now));
    if changed && clear_start_time {
        status.start_time = None;
    }
    changed
}
