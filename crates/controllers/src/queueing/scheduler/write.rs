//! What a decision means for the status of a workload, and what people are told.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use usher_api::kueue::Workload;
use usher_api::kueue::conditions::{EvictionReason, QuotaReservedReason, WorkloadCondition};
use usher_api::kueue::keys::label;
use usher_api::kueue::workload_status::WorkloadStatus;
use usher_sched::model::{Assignment, CheckId, QueueId, WorkloadId};
use usher_sched::plan::{Decision, Eviction};
use usher_sched::preempt::Why;
use usher_sched::reason::Wait;

use super::book::Book;
use crate::queueing::transition::Transition;
use crate::runtime::Recorder;
use crate::runtime::events::Severity;

/// A decision, as far as it is about one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub workload: WorkloadId,
    pub uid: String,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Admit { queue: QueueId, assignment: Assignment, checks: Vec<CheckId> },
    Preempt { why: Why, message: String },
    Evict(Eviction),
    Wait(Arc<Wait>),
}

impl Order {
    pub fn kind(&self) -> Kind {
        match self.what {
            What::Admit { .. } => Kind::Admission,
            What::Preempt { .. } | What::Evict(_) => Kind::Eviction,
            What::Wait(_) => Kind::Reason,
        }
    }
}

/// One write of a workload's status.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub kind: Kind,
    pub of: Arc<Workload>,
    pub to: WorkloadStatus,
    pub told: Vec<Told>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Admission,
    Eviction,
    Reason,
}

/// An event about the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub severity: Severity,
    pub reason: Cow<'static, str>,
    pub message: String,
}

impl Told {
    pub fn normal(reason: impl Into<Cow<'static, str>>, message: String) -> Told {
        Told { severity: Severity::Normal, reason: reason.into(), message }
    }

    pub fn warning(reason: impl Into<Cow<'static, str>>, message: String) -> Told {
        Told { severity: Severity::Warning, reason: reason.into(), message }
    }

    pub(crate) fn tell(&self, recorder: &Recorder, about: ObjectReference) {
        match self.severity {
            Severity::Normal => recorder.normal(about, &self.reason, self.message.clone()),
            Severity::Warning => recorder.warning(about, &self.reason, self.message.clone()),
        }
    }
}

/// Whom a decision is about. One about a workload that is no longer known is about nobody.
pub fn orders(book: &Book, decision: &Decision) -> Vec<Order> {
    let order = |workload: WorkloadId, what: What| {
        let uid = book.workload(workload)?.metadata.uid.clone().unwrap_or_default();
        Some(Order { workload, uid, what })
    };
    match decision {
        Decision::Admit { workload, queue, assignment, checks } => {
            let what = What::Admit { queue: *queue, assignment: assignment.clone(), checks: checks.clone() };
            order(*workload, what).into_iter().collect()
        }
        Decision::Preempt { workload, queue, victims, .. } => {
            let Some(preemptor) = book.workload(*workload) else { return Vec::new() };
            let leaving = victims.iter().filter(|victim| !victim.already_leaving);
            let preempted = leaving.filter_map(|victim| {
                let (by, from) = (path_of(book, *queue), path_of(book, victim.queue));
                let message = preempted_message(preemptor, victim.why.words(), &by, &from);
                order(victim.workload, What::Preempt { why: victim.why, message })
            });
            preempted.collect()
        }
        Decision::Evict { workload, why } => order(*workload, What::Evict(*why)).into_iter().collect(),
        Decision::Wait { workload, reason } => order(*workload, What::Wait(reason.clone())).into_iter().collect(),
    }
}

/// What an order means for the workload as it is now. None: it is another one, or has nothing to be evicted from.
pub fn write(book: &Book, order: &Order, of: &Arc<Workload>, now: Timestamp) -> Option<Write> {
    let same = of.metadata.uid.as_deref() == Some(order.uid.as_str());
    if !same || (order.kind() == Kind::Eviction && !of.is(WorkloadCondition::QuotaReserved)) {
        return None;
    }
    let (to, told) = match &order.what {
        What::Admit { queue, assignment, checks } => admit(book, of, *queue, assignment, checks, now),
        What::Preempt { why, message } => {
            let to = Transition::of(of, now).preempted(why.wire(), message).status;
            (to, vec![Told::normal("Preempted", message.clone())])
        }
        What::Evict(why) => evict(of, *why, now),
        What::Wait(reason) => {
            let shape = book.shape(order.workload);
            let message = reason.render(&shape, &book.words.names);
            let mut to = Transition::of(of, now).waiting(reason.code().wire(), &message).status;
            if matches!(**reason, Wait::Unplaced(_)) {
                to.resource_requests = book.words.requests(of, &shape);
            }
            (to, vec![Told::warning("Pending", message)])
        }
    };
    Some(Write { kind: order.kind(), of: of.clone(), to, told })
}

fn admit(
    book: &Book,
    of: &Workload,
    queue: QueueId,
    assignment: &Assignment,
    checks: &[CheckId],
    now: Timestamp,
) -> (WorkloadStatus, Vec<Told>) {
    let admission = book.words.admission(queue, of, assignment);
    let checks: Vec<String> = checks.iter().map(|check| book.words.names.checks.name(check.0).to_owned()).collect();
    let queue = admission.cluster_queue.clone();
    let to = Transition::of(of, now).quota_reserved(admission, &checks).status;
    let waited = waited_secs(of, now);
    let mut told = vec![Told::normal(
        "QuotaReserved",
        format!("Quota reserved in ClusterQueue {queue}, wait time since queued was {waited}s"),
    )];
    if checks.is_empty() {
        let message = format!("Admitted by ClusterQueue {queue}, wait time since reservation was 0s");
        told.push(Told::normal("Admitted", message));
    }
    (to, told)
}

fn evict(of: &Workload, why: Eviction, now: Timestamp) -> (WorkloadStatus, Vec<Told>) {
    let queue = of.status.admission.as_ref().map_or("", |admission| admission.cluster_queue.as_str());
    let (reason, message, stopped) = match why {
        Eviction::ClusterQueueStopped => (
            EvictionReason::ClusterQueueStopped,
            "The ClusterQueue is stopped",
            format!("ClusterQueue {queue} is stopped"),
        ),
        Eviction::LocalQueueStopped => (
            EvictionReason::LocalQueueStopped,
            "The LocalQueue is stopped",
            format!("LocalQueue {} is stopped", of.spec.queue_name),
        ),
    };
    if of.is(WorkloadCondition::Admitted) {
        let to = Transition::of(of, now).evicted(reason, "", message);
        (to.status, vec![Told::normal(evicted_event(reason), message.to_owned())])
    } else {
        // Nothing of it can run yet: what it reserved is free at once.
        let to = Transition::of(of, now).quota_released_for(QuotaReservedReason::Suspended, &stopped);
        (to.status, Vec::new())
    }
}

fn waited_secs(of: &Workload, now: Timestamp) -> i64 {
    let created = of.metadata.creation_timestamp.as_ref().map_or(now, |created| created.0);
    (now.as_second() - created.as_second()).max(0)
}

fn evicted_event(reason: EvictionReason) -> &'static str {
    match reason {
        EvictionReason::ClusterQueueStopped => "EvictedDueToClusterQueueStopped",
        EvictionReason::LocalQueueStopped => "EvictedDueToLocalQueueStopped",
        _ => "Evicted",
    }
}

/// A queue below the cohorts it is in: `/everybody/team-a`.
fn path_of(book: &Book, queue: QueueId) -> String {
    let mut path = String::new();
    for cohort in book.scheduler().cohorts_of(queue).into_iter().rev() {
        path.push('/');
        path.push_str(book.words.names.cohorts.name(cohort.0));
    }
    format!("{path}/{}", book.words.names.queues.name(queue.0))
}

fn preempted_message(preemptor: &Workload, why: &str, by: &str, from: &str) -> String {
    let or_unknown = |text: Option<&str>| text.filter(|t| !t.is_empty()).unwrap_or("UNKNOWN").to_owned();
    let uid = or_unknown(preemptor.metadata.uid.as_deref());
    let job = or_unknown(preemptor.label(label::JOB_UID));
    format!(
        "Preempted to accommodate a workload (UID: {uid}, JobUID: {job}) due to {why}; preemptor path: {by}; preemptee path: {from}"
    )
}
