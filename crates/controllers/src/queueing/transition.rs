//! The changes of a Workload's status, each whole: conditions that belong together change together.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use usher_api::kueue::Workload;
use usher_api::kueue::admission_check::CheckState;
use usher_api::kueue::conditions::{
    self, AdmittedReason, DeactivationCause, EvictionReason, FinishedReason, QuotaReservedReason, ResizeReason,
    WorkloadCondition,
};
use usher_api::kueue::workload::Role;
use usher_api::kueue::workload_status::{
    Admission, AdmissionCheckState, EvictionCount, GatePosition, RequeueState, SchedulingStats, WorkloadStatus,
};

/// A status under change.
pub struct Transition {
    pub status: WorkloadStatus,
    generation: Option<i64>,
    /// One of several that may be admitted for one job: that it is ready does not admit it.
    is_variant: bool,
    now: Timestamp,
}

impl Transition {
    pub fn of(workload: &Workload, now: Timestamp) -> Transition {
        // Times of conditions have whole seconds.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let is_variant = workload.role() == Role::Variant;
        Transition { status: workload.status.clone(), generation: workload.metadata.generation, is_variant, now }
    }

    fn set(&mut self, ty: WorkloadCondition, status: bool, reason: &str, message: &str) {
        let new = conditions::condition(ty.as_str(), status, reason, message, self.generation, self.now);
        conditions::set(&mut self.status.conditions, new);
    }

    fn is(&self, ty: WorkloadCondition) -> bool {
        conditions::is_true(&self.status.conditions, ty.as_str())
    }

    /// It holds quota from now on; it may start once the checks are ready, at once if there are none.
    #[must_use]
    pub fn quota_reserved(mut self, admission: Admission, checks: &[String]) -> Self {
        let message = format!("Quota reserved in ClusterQueue {}", admission.cluster_queue);
        self.set(WorkloadCondition::QuotaReserved, true, QuotaReservedReason::QuotaReserved.as_str(), &message);
        self.status.admission = Some(admission);
        self.status.resource_requests.clear();
        self.status.requeue_state =
            self.status.requeue_state.take().map(|state| RequeueState { requeue_at: None, ..state });
        for over in [WorkloadCondition::Evicted, WorkloadCondition::Preempted] {
            if let Some(before) = conditions::find(&self.status.conditions, over.as_str()).cloned()
                && before.status == "True"
            {
                let message = format!("Previously: {}", before.message);
                self.set(over, false, QuotaReservedReason::QuotaReserved.as_str(), &message);
            }
        }
        self.with_checks(checks).admission_synced()
    }

    /// Exactly these checks; those that are already there keep what they said.
    #[must_use]
    pub fn with_checks(mut self, checks: &[String]) -> Self {
        let mut before = std::mem::take(&mut self.status.admission_checks);
        self.status.admission_checks = checks
            .iter()
            .map(|name| match before.iter().position(|check| check.name == *name) {
                Some(at) => before.swap_remove(at),
                None => AdmissionCheckState {
                    name: name.clone(),
                    state: CheckState::Pending,
                    last_transition_time: Some(Time(self.now)),
                    ..AdmissionCheckState::default()
                },
            })
            .collect();
        self
    }

    /// It waits, and why.
    #[must_use]
    pub fn waiting(mut self, reason: &str, message: &str) -> Self {
        self.set(WorkloadCondition::QuotaReserved, false, reason, message);
        if conditions::find(&self.status.conditions, WorkloadCondition::Admitted.as_str()).is_some() {
            self = self.admission_synced();
        }
        self
    }

    /// It makes room for another.
    #[must_use]
    pub fn preempted(mut self, reason: &str, message: &str) -> Self {
        self = self.evicted(EvictionReason::Preempted, reason, message);
        self.set(WorkloadCondition::Preempted, true, reason, message);
        self
    }

    /// It holds no quota any longer, and waits to be looked at.
    #[must_use]
    pub fn quota_released(self, message: &str) -> Self {
        self.quota_released_for(QuotaReservedReason::PendingEvaluation, message)
    }

    #[must_use]
    pub fn quota_released_for(mut self, reason: QuotaReservedReason, message: &str) -> Self {
        self.set(WorkloadCondition::QuotaReserved, false, reason.as_str(), message);
        conditions::remove(&mut self.status.conditions, WorkloadCondition::ResizeRequested.as_str());
        (self.status.admission, self.status.folded_slices) = (None, Vec::new());
        self.admission_synced()
    }

    /// Whether it may be looked at again, by why it was evicted.
    #[must_use]
    pub fn requeued(mut self, may: bool, reason: &str, message: &str) -> Self {
        self.set(WorkloadCondition::Requeued, may, reason, message);
        self
    }

    #[must_use]
    pub fn finished(mut self, reason: FinishedReason, message: &str) -> Self {
        self.set(WorkloadCondition::Finished, true, reason.as_str(), message);
        self
    }

    /// It is to be made inactive, and why.
    #[must_use]
    pub fn deactivated(mut self, cause: DeactivationCause, message: &str) -> Self {
        self.set(WorkloadCondition::DeactivationTarget, true, cause.as_str(), message);
        self
    }

    /// A change of size is under way, or over.
    #[must_use]
    pub fn resizing(mut self, under_way: bool, reason: ResizeReason, message: &str) -> Self {
        self.set(WorkloadCondition::ResizeRequested, under_way, reason.as_str(), message);
        self
    }

    #[must_use]
    pub fn pods_ready(mut self, ready: bool, reason: &str, message: &str) -> Self {
        self.set(WorkloadCondition::PodsReady, ready, reason, message);
        self
    }

    /// It is to stop. Its quota stays booked until its pods are gone; its checks begin anew.
    #[must_use]
    pub fn evicted(self, reason: EvictionReason, underlying: &str, message: &str) -> Self {
        self.leaving(reason.as_str(), reason, underlying, message)
    }

    /// The same because it was deactivated, by its owner or for a cause.
    #[must_use]
    pub fn evicted_as_inactive(self, cause: &str, message: &str) -> Self {
        let reason = EvictionReason::Deactivated;
        let full =
            if cause.is_empty() { reason.as_str().to_owned() } else { format!("{}DueTo{cause}", reason.as_str()) };
        self.leaving(&full, reason, cause, message)
    }

    fn leaving(mut self, full: &str, reason: EvictionReason, underlying: &str, message: &str) -> Self {
        if self.is(WorkloadCondition::Evicted) {
            return self;
        }
        self.set(WorkloadCondition::Evicted, true, full, message);
        let now = Some(Time(self.now));
        for check in self.status.admission_checks.iter_mut().filter(|check| check.state != CheckState::Pending) {
            let retried = check.state == CheckState::Retry;
            *check = AdmissionCheckState {
                name: std::mem::take(&mut check.name),
                message: format!("Reset to Pending after eviction. Previously: {}", check.state.as_str())
                    .as_str()
                    .into(),
                state: CheckState::Pending,
                last_transition_time: now.clone(),
                requeue_after_seconds: check.requeue_after_seconds,
                retry_count: retried.then(|| check.retry_count.unwrap_or(0).saturating_add(1)),
                pod_set_updates: Vec::new(),
            };
        }
        (self.status.cluster_name, self.status.nominated_cluster_names) = (None, Vec::new());
        self.status.unhealthy_nodes.clear();
        if self.is(WorkloadCondition::BlockedOnPreemptionGates) {
            self.set(WorkloadCondition::BlockedOnPreemptionGates, false, full, message);
        }
        for gate in self.status.preemption_gates.iter_mut().filter(|gate| gate.position != GatePosition::Closed) {
            (gate.position, gate.last_transition_time) = (GatePosition::Closed, now.clone());
        }
        self.counted(reason, underlying)
    }

    /// Nothing is to happen at some time any longer, and nothing is to be deactivated.
    #[must_use]
    pub fn without_wait(mut self) -> Self {
        conditions::remove(&mut self.status.conditions, WorkloadCondition::DeactivationTarget.as_str());
        self.status.requeue_state = None;
        self
    }

    fn counted(mut self, reason: EvictionReason, underlying: &str) -> Self {
        let stats = self.status.scheduling_stats.get_or_insert_with(SchedulingStats::default);
        let same = |e: &&mut EvictionCount| e.reason == reason.as_str() && e.underlying_cause.0 == underlying;
        match stats.evictions.iter_mut().find(same) {
            Some(entry) => entry.count = entry.count.saturating_add(1),
            None => stats.evictions.push(EvictionCount {
                reason: reason.as_str().to_owned(),
                underlying_cause: underlying.into(),
                count: 1,
            }),
        }
        self
    }

    /// A Variant is ready, and it is its turn.
    #[must_use]
    pub fn admitted_as_variant(mut self) -> Self {
        self.set(WorkloadCondition::Admitted, true, AdmittedReason::Admitted.as_str(), "The workload is admitted");
        self
    }

    /// Admitted follows from the reservation and the checks; that of a Variant also from its siblings.
    #[must_use]
    pub fn admission_synced(mut self) -> Self {
        let was = self.is(WorkloadCondition::Admitted);
        let reserved = self.is(WorkloadCondition::QuotaReserved);
        let ready = self.status.admission_checks.iter().all(|check| check.state == CheckState::Ready);
        let (status, reason, message) = match (reserved, ready) {
            (false, _) => (false, AdmittedReason::NoReservation, "The workload has no reservation"),
            (true, false) => {
                (false, AdmittedReason::UnsatisfiedAdmissionChecks, "The workload has not all checks ready")
            }
            (true, true) if self.is_variant && !was => {
                (false, AdmittedReason::WaitingForSiblings, "The workload is ready; it is admitted when no sibling is")
            }
            (true, true) => (true, AdmittedReason::Admitted, "The workload is admitted"),
        };
        if was && !status {
            let since = conditions::find(&self.status.conditions, WorkloadCondition::Admitted.as_str());
            let ran = since.map_or(0, |c| (self.now.as_second() - c.last_transition_time.0.as_second()).max(0));
            let ran = i32::try_from(ran).unwrap_or(i32::MAX);
            let before = self.status.accumulated_past_execution_time_seconds.unwrap_or(0);
            self.status.accumulated_past_execution_time_seconds = Some(before.saturating_add(ran));
        }
        self.set(WorkloadCondition::Admitted, status, reason.as_str(), message);
        self
    }
}
