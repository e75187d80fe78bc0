//! What is to be done about one Workload: the first of the rules that has something to say.
//!
//! Rules are in the order in which they matter: what has ended before what waits, what waits before what runs. Each is one
//! write; what it changes is seen before the next is decided.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use usher_api::kueue::admission_check::CheckState;
use usher_api::kueue::conditions::{
    self, DeactivationCause, EvictionReason, FinishedReason, PodsReadyReason, RequeuedReason, WorkloadCondition,
};
use usher_api::kueue::keys::{self, label};
use usher_api::kueue::quota::StopPolicy;
use usher_api::kueue::workload::Role;
use usher_api::kueue::workload_status::{AdmissionCheckState, RequeueState, WorkloadStatus};
use usher_api::kueue::{ClusterQueue, LocalQueue, Workload};

use crate::queueing::policy::{PodsReady, Policy};
use crate::queueing::scheduler::write::Told;
use crate::queueing::transition::Transition;

/// All that a decision is made from.
pub struct Seen<'a> {
    pub workload: &'a Workload,
    pub local: Option<&'a LocalQueue>,
    /// The one it holds quota in, or else the one its LocalQueue leads to.
    pub queue: Option<&'a ClusterQueue>,
    pub owner: Owner,
    pub policy: &'a Policy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    None,
    /// It is there, or it is of a kind that is not ours to know.
    Somebody,
    /// It was one of our jobs, and is no longer there.
    Gone,
}

/// One write, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    Status {
        to: Box<WorkloadStatus>,
        told: Vec<Told>,
    },
    /// `spec.active` becomes false.
    Deactivate,
    /// Nothing uses it any longer: its finalizer goes.
    LetGo,
    Delete {
        why: &'static str,
    },
}

/// The step, and when time alone will call for another.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    pub step: Step,
    pub again: Option<Timestamp>,
}

pub fn decide(seen: &Seen<'_>, now: Timestamp) -> Next {
    let one = One { seen, workload: seen.workload, now };
    let step = one.rules().iter().find_map(|rule| rule(&one)).unwrap_or(Step::Nothing);
    let again = one.due_times().into_iter().flatten().filter(|at| *at > now).min();
    Next { step, again }
}

struct One<'a> {
    seen: &'a Seen<'a>,
    workload: &'a Workload,
    now: Timestamp,
}

type Rule = fn(&One<'_>) -> Option<Step>;

const OF_THE_FINISHED: &[Rule] = &[|one| one.let_go_when_nobody_is_left(), |one| one.delete_after_its_time()];

const OF_THE_LIVING: &[Rule] = &[
    |one| one.let_go_when_nobody_is_left(),
    |one| one.finish_when_orphaned(),
    |one| one.wait_as_long_as_its_checks_say(),
    |one| one.deactivate(),
    |one| one.evict_when_deactivated(),
    |one| one.forget_a_wait_that_is_over(),
    |one| one.return_to_the_queue(),
    |one| one.have_the_checks_of_its_queue(),
    |one| one.be_admitted_when_checks_are_ready(),
    |one| one.leave_when_a_check_failed(),
    |one| one.leave_when_pods_are_not_ready_in_time(),
    |one| one.leave_when_it_ran_too_long(),
];

impl One<'_> {
    fn rules(&self) -> &'static [Rule] {
        if self.is(WorkloadCondition::Finished) { OF_THE_FINISHED } else { OF_THE_LIVING }
    }

    fn is(&self, condition: WorkloadCondition) -> bool {
        self.workload.is(condition)
    }

    fn condition(&self, ty: WorkloadCondition) -> Option<&Condition> {
        conditions::find(&self.workload.status.conditions, ty.as_str())
    }

    fn transition(&self) -> Transition {
        Transition::of(self.workload, self.now)
    }

    fn is_deleted(&self) -> bool {
        self.workload.metadata.deletion_timestamp.is_some()
    }

    /// It waits for quota.
    fn is_pending(&self) -> bool {
        !self.is(WorkloadCondition::QuotaReserved) && !self.is_deleted()
    }

    /// It holds quota and nobody has told it to leave.
    fn is_staying(&self) -> bool {
        self.is(WorkloadCondition::QuotaReserved)
            && !self.is(WorkloadCondition::Evicted)
            && !self.is(WorkloadCondition::DeactivationTarget)
            && self.workload.is_active()
            && !self.is_deleted()
    }

    /// Checks are of Workloads that get quota themselves.
    fn has_checks(&self) -> bool {
        self.is_staying() && self.workload.role() != Role::Parent
    }

    fn due_times(&self) -> [Option<Timestamp>; 4] {
        [self.requeue_at(), self.ready_by().map(|(_, at)| at), self.ends_by(), self.goes_at()]
    }

    fn let_go_when_nobody_is_left(&self) -> Option<Step> {
        let held = self.workload.metadata.finalizers.iter().flatten().any(|f| f == keys::RESOURCE_IN_USE);
        let over = self.is_deleted() || self.is(WorkloadCondition::Finished);
        (held && over && self.seen.owner != Owner::Somebody).then_some(Step::LetGo)
    }

    /// Its job went and left it behind.
    fn finish_when_orphaned(&self) -> Option<Step> {
        let had_job = self.workload.label(label::JOB_UID).is_some_and(|uid| !uid.is_empty());
        let orphaned = self.seen.owner == Owner::None && had_job && !self.is_deleted();
        let to = || self.transition().finished(FinishedReason::OwnerNotFound, "The workload's owner no longer exists");
        orphaned.then(|| quietly(to()))
    }

    fn goes_at(&self) -> Option<Timestamp> {
        let finished = self.condition(WorkloadCondition::Finished).filter(|c| c.status == "True")?;
        finished.last_transition_time.0.checked_add(self.seen.policy.keep_finished?).ok()
    }

    fn delete_after_its_time(&self) -> Option<Step> {
        let over = self.goes_at().is_some_and(|at| at <= self.now) && !self.is_deleted();
        over.then_some(Step::Delete { why: "Deleted finished workload due to elapsed retention" })
    }

    fn requeue_at(&self) -> Option<Timestamp> {
        self.workload.status.requeue_state.as_ref()?.requeue_at.as_ref().map(|at| at.0)
    }

    fn wait_as_long_as_its_checks_say(&self) -> Option<Step> {
        let retries = self.workload.status.admission_checks.iter().filter(|check| check.state == CheckState::Retry);
        let until = retries.filter_map(|check| {
            let secs = SignedDuration::from_secs(check.requeue_after_seconds?.into());
            check.last_transition_time.as_ref()?.0.checked_add(secs).ok()
        });
        let until = until.max().filter(|until| *until > self.now)?;
        if self.requeue_at().is_some_and(|at| at >= until) {
            return None;
        }
        let mut to = self.transition();
        to.status.requeue_state.get_or_insert_with(RequeueState::default).requeue_at = Some(Time(until));
        Some(quietly(to))
    }

    fn deactivate(&self) -> Option<Step> {
        (self.workload.is_active() && self.is(WorkloadCondition::DeactivationTarget)).then_some(Step::Deactivate)
    }

    fn evict_when_deactivated(&self) -> Option<Step> {
        if self.workload.is_active() {
            return None;
        }
        if self.is(WorkloadCondition::Evicted) {
            let to = self.transition().without_wait();
            return (to.status != self.workload.status).then(|| quietly(to));
        }
        let target = self.condition(WorkloadCondition::DeactivationTarget);
        let cause = target.map_or("", |c| c.reason.as_str());
        let mut message = "The workload is deactivated".to_owned();
        if let Some(target) = target {
            message = format!("{message} due to {}", target.message);
        }
        let to = self.transition().without_wait().evicted_as_inactive(cause, &message);
        let due_to = if cause.is_empty() { String::new() } else { format!("DueTo{cause}") };
        let told = self.workload.status.admission.iter();
        let told = told.map(|_| Told::normal(format!("EvictedDueToDeactivated{due_to}"), message.clone())).collect();
        Some(Step::Status { to: Box::new(to.status), told })
    }

    /// Time has passed, or what kept it from the queue is over.
    fn forget_a_wait_that_is_over(&self) -> Option<Step> {
        let over = self.requeue_at().is_some_and(|at| at <= self.now);
        if !over || !self.is_pending() || self.is_put_back_by_time() {
            return None;
        }
        let mut to = self.transition();
        to.status.requeue_state = to.status.requeue_state.map(|state| RequeueState { requeue_at: None, ..state });
        Some(quietly(to))
    }

    /// Why it is kept out of the queue since its last eviction.
    fn kept_out_by(&self) -> Option<&str> {
        self.condition(WorkloadCondition::Requeued).filter(|c| c.status == "False").map(|c| c.reason.as_str())
    }

    fn is_put_back_by_time(&self) -> bool {
        let timed = [EvictionReason::PodsReadyTimeout, EvictionReason::AdmissionCheck].map(EvictionReason::as_str);
        self.kept_out_by().is_some_and(|reason| timed.contains(&reason))
    }

    fn return_to_the_queue(&self) -> Option<Step> {
        if !self.workload.is_active() {
            return None;
        }
        let running = |policy: Option<StopPolicy>| matches!(policy, None | Some(StopPolicy::None));
        let (reason, message) = match self.kept_out_by()? {
            // The causes of ours and of others all begin like this.
            reason if reason.starts_with(EvictionReason::Deactivated.as_str()) => {
                (RequeuedReason::Reactivated, "The workload was reactivated")
            }
            _ if self.is_put_back_by_time() && self.requeue_at().is_none_or(|at| at <= self.now) => {
                (RequeuedReason::BackoffFinished, "The workload backoff was finished")
            }
            reason
                if reason == EvictionReason::LocalQueueStopped.as_str()
                    && self.seen.local.is_some_and(|local| running(local.spec.stop_policy)) =>
            {
                (RequeuedReason::LocalQueueRestarted, "The LocalQueue was restarted after being stopped")
            }
            reason
                if reason == EvictionReason::ClusterQueueStopped.as_str()
                    && self.seen.queue.is_some_and(|queue| running(queue.spec.stop_policy)) =>
            {
                (RequeuedReason::ClusterQueueRestarted, "The ClusterQueue was restarted after being stopped")
            }
            _ => return None,
        };
        let mut to = self.transition().requeued(true, reason.as_str(), message);
        if reason == RequeuedReason::BackoffFinished {
            to.status.requeue_state = to.status.requeue_state.map(|state| RequeueState { requeue_at: None, ..state });
        }
        Some(quietly(to))
    }

    /// The checks of the queue that apply to the flavors it got; its queue may have been given others since.
    fn have_the_checks_of_its_queue(&self) -> Option<Step> {
        if !self.has_checks() {
            return None;
        }
        let queue = self.seen.queue?;
        let admission = self.workload.status.admission.as_ref()?;
        let got =
            |flavor: &String| admission.pod_set_assignments.iter().any(|a| a.flavors.values().any(|f| f == flavor));
        let rules = queue.spec.admission_checks_strategy.iter().flat_map(|strategy| &strategy.admission_checks);
        let rules = rules.filter(|rule| rule.on_flavors.is_empty() || rule.on_flavors.iter().any(got));
        let wanted: Vec<String> = rules.map(|rule| rule.name.clone()).collect();
        let to = self.transition().with_checks(&wanted);
        let same = to.status.admission_checks.len() == self.workload.status.admission_checks.len()
            && self.workload.status.admission_checks.iter().all(|check| wanted.contains(&check.name));
        (!same).then(|| quietly(to))
    }

    fn be_admitted_when_checks_are_ready(&self) -> Option<Step> {
        let ready = self.workload.status.admission_checks.iter().all(|check| check.state == CheckState::Ready);
        // Variants are admitted one at a time, with regard to their siblings.
        let by_itself = self.has_checks() && self.workload.role() != Role::Variant;
        if !by_itself || self.is(WorkloadCondition::Admitted) || !ready {
            return None;
        }
        let to = self.transition().admission_synced();
        let reserved = self.condition(WorkloadCondition::QuotaReserved)?;
        let waited = (self.now.as_second() - reserved.last_transition_time.0.as_second()).max(0);
        let queue = &self.workload.status.admission.as_ref()?.cluster_queue;
        let message = format!("Admitted by ClusterQueue {queue}, wait time since reservation was {waited}s");
        Some(Step::Status { to: Box::new(to.status), told: vec![Told::normal("Admitted", message)] })
    }

    fn leave_when_a_check_failed(&self) -> Option<Step> {
        if !self.has_checks() {
            return None;
        }
        let of = |state: CheckState| -> Vec<&AdmissionCheckState> {
            self.workload.status.admission_checks.iter().filter(|check| check.state == state).collect()
        };
        let (rejected, retry) = (of(CheckState::Rejected), of(CheckState::Retry));
        if !rejected.is_empty() {
            let message = checks_in(rejected, CheckState::Rejected);
            let to = self.transition().deactivated(DeactivationCause::AdmissionCheck, &message);
            let told = vec![Told::warning("AdmissionCheckRejected", format!("Deactivated due to {message}"))];
            return Some(Step::Status { to: Box::new(to.status), told });
        }
        if retry.is_empty() {
            return None;
        }
        let message = format!("Evicted due to {}", checks_in(retry, CheckState::Retry));
        let to = self.transition().evicted(EvictionReason::AdmissionCheck, "", &message);
        Some(Step::Status { to: Box::new(to.status), told: vec![Told::normal("EvictedDueToAdmissionCheck", message)] })
    }

    /// When its pods have to be ready, and what they are waited for.
    fn ready_by(&self) -> Option<(PodsReadyReason, Timestamp)> {
        let policy = self.seen.policy.pods_ready.as_ref()?;
        let admitted = self.condition(WorkloadCondition::Admitted).filter(|c| c.status == "True")?;
        let ready = self.condition(WorkloadCondition::PodsReady);
        let reason = ready.and_then(|c| PodsReadyReason::parse(&c.reason)).unwrap_or(PodsReadyReason::WaitForStart);
        if !self.is_staying()
            || matches!(self.workload.role(), Role::Variant | Role::Slice)
            || ready.is_some_and(|c| c.status == "True")
        {
            return None;
        }
        let (since, timeout) = match (reason, ready) {
            (PodsReadyReason::WaitForStart, _) => (&admitted.last_transition_time, policy.timeout),
            (PodsReadyReason::WaitForRecovery, Some(ready)) => (&ready.last_transition_time, policy.recovery_timeout?),
            _ => return None,
        };
        Some((reason, since.0.checked_add(timeout).ok()?))
    }

    fn leave_when_pods_are_not_ready_in_time(&self) -> Option<Step> {
        let policy = self.seen.policy.pods_ready.as_ref()?;
        let (waited_for, _) = self.ready_by().filter(|(_, at)| *at <= self.now)?;
        let count = self.workload.status.requeue_state.as_ref().and_then(|state| state.count).unwrap_or(0) + 1;
        if policy.retries.is_some_and(|most| count > most) {
            let message = "exceeding the maximum number of re-queuing retries";
            return Some(quietly(self.transition().deactivated(DeactivationCause::RequeuingLimitExceeded, message)));
        }
        Some(self.put_back(policy, count, waited_for))
    }

    fn put_back(&self, policy: &PodsReady, count: i32, waited_for: PodsReadyReason) -> Step {
        let meta = &self.workload.metadata;
        let name = |part: &Option<String>| part.clone().unwrap_or_default();
        let message = format!("Exceeded the PodsReady timeout {}/{}", name(&meta.namespace), name(&meta.name));
        let mut to = self.transition().evicted(EvictionReason::PodsReadyTimeout, waited_for.as_str(), &message);
        let until = self.now.checked_add(policy.backoff(count)).unwrap_or(self.now);
        let at = self.requeue_at().map_or(until, |at| at.max(until));
        // Times on the wire have whole seconds: rounded up, so that nobody comes early.
        let at = Timestamp::from_second(at.as_second() + i64::from(at.subsec_nanosecond() > 0)).unwrap_or(at);
        to.status.requeue_state = Some(RequeueState { count: Some(count), requeue_at: Some(Time(at)) });
        Step::Status { to: Box::new(to.status), told: vec![Told::normal("EvictedDueToPodsReadyTimeout", message)] }
    }

    fn ends_by(&self) -> Option<Timestamp> {
        // The job of a Variant is its Parent's.
        let most =
            self.workload.spec.maximum_execution_time_seconds.filter(|_| self.workload.role() != Role::Variant)?;
        let admitted = self.condition(WorkloadCondition::Admitted).filter(|c| c.status == "True")?;
        let left = most - self.workload.status.accumulated_past_execution_time_seconds.unwrap_or(0);
        admitted.last_transition_time.0.checked_add(SignedDuration::from_secs(left.into())).ok()
    }

    fn leave_when_it_ran_too_long(&self) -> Option<Step> {
        if !self.is_staying() || self.ends_by().is_none_or(|at| at > self.now) {
            return None;
        }
        let cause = DeactivationCause::MaximumExecutionTimeExceeded;
        let mut to = self.transition().deactivated(cause, "exceeding the maximum execution time");
        to.status.accumulated_past_execution_time_seconds = None;
        let most = self.workload.spec.maximum_execution_time_seconds.unwrap_or(0);
        let message = format!("The maximum execution time ({most}s) exceeded");
        Some(Step::Status { to: Box::new(to.status), told: vec![Told::warning(cause.as_str(), message)] })
    }
}

fn quietly(to: Transition) -> Step {
    Step::Status { to: Box::new(to.status), told: Vec::new() }
}

/// `AdmissionChecks in Retry state: "a" (why); "b"`.
fn checks_in(mut checks: Vec<&AdmissionCheckState>, state: CheckState) -> String {
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    let each: Vec<String> = checks
        .iter()
        .map(|check| match check.message.0.as_str() {
            "" => format!("{:?}", check.name),
            why => format!("{:?} ({why})", check.name),
        })
        .collect();
    let noun = if checks.len() > 1 { "AdmissionChecks" } else { "AdmissionCheck" };
    format!("{noun} in {} state: {}", state.as_str(), each.join("; "))
}
