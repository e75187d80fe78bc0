//! The words of conditions and their reasons, and reading and writing them.
//!
//! Types and reasons that Kueue has keep its words. Ours, from the seeds, are marked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::crd::words;

words! {
    /// Conditions of a Workload.
    WorkloadCondition {
        QuotaReserved = "QuotaReserved",
        Admitted = "Admitted",
        PodsReady = "PodsReady",
        Evicted = "Evicted",
        Preempted = "Preempted",
        Requeued = "Requeued",
        Finished = "Finished",
        DeactivationTarget = "DeactivationTarget",
        BlockedOnPreemptionGates = "BlockedOnPreemptionGates",
        WaitingForReplacementPods = "WaitingForReplacementPods",
        /// Ours (KEP-77): a resize is under way.
        ResizeRequested = "ResizeRequested",
    }
}

words! {
    /// Reasons of QuotaReserved.
    QuotaReservedReason {
        /// The one reason of True.
        QuotaReserved = "QuotaReserved",
        PendingEvaluation = "PendingEvaluation",
        NoMatchingFlavor = "NoMatchingFlavor",
        WaitingForQuota = "WaitingForQuota",
        ExceedsMaxQuota = "ExceedsMaxQuota",
        TopologyPlacementFailed = "TopologyPlacementFailed",
        WaitingForPreemptedWorkloads = "WaitingForPreemptedWorkloads",
        Misconfigured = "Misconfigured",
        Suspended = "Suspended",
        WaitingForPodsReady = "WaitingForPodsReady",
        AdmissionGated = "AdmissionGated",
        OnHold = "OnHold",
        /// Kueue's words before it told these apart; read, not written.
        Pending = "Pending",
        Inadmissible = "Inadmissible",
        Waiting = "Waiting",
    }
}

words! {
    /// Reasons of Admitted.
    AdmittedReason {
        /// The one reason of True.
        Admitted = "Admitted",
        NoReservation = "NoReservation",
        UnsatisfiedAdmissionChecks = "UnsatisfiedAdmissionChecks",
        PendingDelayedTopologyRequests = "PendingDelayedTopologyRequests",
        /// Ours, on Variants that are ready: a sibling has to make way first.
        WaitingForSiblings = "WaitingForSiblings",
    }
}

words! {
    /// Reasons of Evicted.
    EvictionReason {
        Preempted = "Preempted",
        PodsReadyTimeout = "PodsReadyTimeout",
        AdmissionCheck = "AdmissionCheck",
        ClusterQueueStopped = "ClusterQueueStopped",
        LocalQueueStopped = "LocalQueueStopped",
        NodeFailures = "NodeFailures",
        Deactivated = "Deactivated",
        DeactivatedDueToAdmissionCheck = "DeactivatedDueToAdmissionCheck",
        DeactivatedDueToRequeuingLimitExceeded = "DeactivatedDueToRequeuingLimitExceeded",
        DeactivatedDueToMaximumExecutionTimeExceeded = "DeactivatedDueToMaximumExecutionTimeExceeded",
        /// Ours: its owner suspended the job.
        DeactivatedDueToJobSuspended = "DeactivatedDueToJobSuspended",
        /// A better Variant takes over.
        FlavorMigration = "FlavorMigration",
        /// On Parents: the Variant they ran on was evicted.
        VariantEvicted = "VariantEvicted",
        /// On Parents: no Variant is admitted any more.
        ConcurrentAdmission = "ConcurrentAdmission",
        EvictedOnManagerCluster = "EvictedOnManagerCluster",
        WorkloadSliceReplaced = "WorkloadSliceReplaced",
    }
}

words! {
    /// Reasons of DeactivationTarget, and causes of a deactivation.
    DeactivationCause {
        AdmissionCheck = "AdmissionCheck",
        RequeuingLimitExceeded = "RequeuingLimitExceeded",
        MaximumExecutionTimeExceeded = "MaximumExecutionTimeExceeded",
        /// Ours: its owner suspended the job.
        JobSuspended = "JobSuspended",
    }
}

impl DeactivationCause {
    /// Why a workload that was deactivated because of this is evicted.
    pub fn eviction(self) -> EvictionReason {
        match self {
            DeactivationCause::AdmissionCheck => EvictionReason::DeactivatedDueToAdmissionCheck,
            DeactivationCause::RequeuingLimitExceeded => EvictionReason::DeactivatedDueToRequeuingLimitExceeded,
            DeactivationCause::MaximumExecutionTimeExceeded => {
                EvictionReason::DeactivatedDueToMaximumExecutionTimeExceeded
            }
            DeactivationCause::JobSuspended => EvictionReason::DeactivatedDueToJobSuspended,
        }
    }
}

words! {
    /// Reasons of Preempted.
    PreemptionReason {
        InClusterQueue = "InClusterQueue",
        InCohortReclamation = "InCohortReclamation",
        InCohortFairSharing = "InCohortFairSharing",
        InCohortReclaimWhileBorrowing = "InCohortReclaimWhileBorrowing",
    }
}

words! {
    /// Reasons of Requeued that are not those of the eviction before.
    RequeuedReason {
        Reactivated = "Reactivated",
        BackoffFinished = "BackoffFinished",
        ClusterQueueRestarted = "ClusterQueueRestarted",
        LocalQueueRestarted = "LocalQueueRestarted",
    }
}

words! {
    /// Reasons of PodsReady.
    PodsReadyReason {
        WaitForStart = "WaitForStart",
        Started = "Started",
        WaitForRecovery = "WaitForRecovery",
        Recovered = "Recovered",
    }
}

words! {
    /// Reasons of Finished.
    FinishedReason {
        Succeeded = "Succeeded",
        Failed = "Failed",
        OutOfSync = "OutOfSync",
        OwnerNotFound = "OwnerNotFound",
        FailedToStart = "FailedToStart",
        WorkloadSliceReplaced = "WorkloadSliceReplaced",
    }
}

words! {
    /// Reasons of BlockedOnPreemptionGates.
    GateReason {
        PreemptionGated = "PreemptionGated",
    }
}

words! {
    /// Reasons of ResizeRequested; ours.
    ResizeReason {
        ScaleUp = "ScaleUp",
        ScaleDown = "ScaleDown",
        Resized = "Resized",
    }
}

words! {
    /// The condition of ClusterQueues, LocalQueues and AdmissionChecks.
    QueueCondition {
        Active = "Active",
    }
}

words! {
    /// Reasons of a ClusterQueue's Active.
    ClusterQueueReason {
        Ready = "Ready",
        Terminating = "Terminating",
        Stopped = "Stopped",
        FlavorNotFound = "FlavorNotFound",
        AdmissionCheckNotFound = "AdmissionCheckNotFound",
        AdmissionCheckInactive = "AdmissionCheckInactive",
        MultipleMultiKueueAdmissionChecks = "MultipleMultiKueueAdmissionChecks",
        MultiKueueAdmissionCheckAppliedPerFlavor = "MultiKueueAdmissionCheckAppliedPerFlavor",
        MultiKueueWithProvisioningRequest = "MultiKueueWithProvisioningRequest",
        TopologyNotFound = "TopologyNotFound",
        /// Ours: a flavor has a topology, which is not supported yet.
        TopologyNotSupported = "TopologyNotSupported",
        /// Ours: a check that nothing here does (MultiKueue, provisioning requests).
        AdmissionCheckNotSupported = "AdmissionCheckNotSupported",
        /// Ours: its cohort is part of a circle.
        CohortCycle = "CohortCycle",
        Unknown = "Unknown",
    }
}

words! {
    /// Reasons of a LocalQueue's Active.
    LocalQueueReason {
        Ready = "Ready",
        Stopped = "Stopped",
        ClusterQueueDoesNotExist = "ClusterQueueDoesNotExist",
        ClusterQueueIsInactive = "ClusterQueueIsInactive",
    }
}

/// The condition of this type, if it is there.
pub fn find<'c>(conditions: &'c [Condition], ty: &str) -> Option<&'c Condition> {
    conditions.iter().find(|c| c.type_ == ty)
}

pub fn is_true(conditions: &[Condition], ty: &str) -> bool {
    find(conditions, ty).is_some_and(|c| c.status == "True")
}

/// A condition as it is to be from `now` on.
pub fn condition(
    ty: &str,
    status: bool,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: ty.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: cut(message),
        observed_generation: generation,
        last_transition_time: Time(now),
    }
}

/// Messages longer than what the schema takes end in `...`.
fn cut(message: &str) -> String {
    const MAX: usize = 32 * 1024;
    if message.chars().count() <= MAX {
        return message.to_owned();
    }
    let mut short: String = message.chars().take(MAX - 3).collect();
    short.push_str("...");
    short
}

/// Puts a condition in its place, keeping the time of the last transition if the status stays. Says whether anything changed.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition) -> bool {
    let Some(old) = conditions.iter_mut().find(|c| c.type_ == new.type_) else {
        conditions.push(new);
        return true;
    };
    if old.status == new.status {
        new.last_transition_time = old.last_transition_time.clone();
    }
    let changed = *old != new;
    *old = new;
    changed
}

/// Takes a condition away. Says whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, ty: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|c| c.type_ != ty);
    conditions.len() != before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let (first, later) = (Timestamp::from_second(10).unwrap(), Timestamp::from_second(20).unwrap());
        let mut conditions = Vec::new();
        let quota = WorkloadCondition::QuotaReserved.as_str();
        assert!(set(&mut conditions, condition(quota, false, "WaitingForQuota", "a", Some(1), first)));
        assert!(set(&mut conditions, condition(quota, false, "WaitingForQuota", "b", Some(1), later)));
        assert_eq!(conditions[0].last_transition_time.0, first);
        assert!(!set(&mut conditions, condition(quota, false, "WaitingForQuota", "b", Some(1), later)));
        assert!(set(&mut conditions, condition(quota, true, "QuotaReserved", "b", Some(1), later)));
        assert_eq!(conditions[0].last_transition_time.0, later);
        assert!(is_true(&conditions, quota));
        assert!(remove(&mut conditions, quota) && !remove(&mut conditions, quota));
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for reason in EvictionReason::ALL {
            assert_eq!(EvictionReason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(EvictionReason::parse("Nope"), None);
        assert_eq!(DeactivationCause::AdmissionCheck.eviction().as_str(), "DeactivatedDueToAdmissionCheck");
    }
}
