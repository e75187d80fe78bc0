//! ClusterQueue: quota, who may use it, and in which order.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};

use super::concurrent::{ConcurrentAdmission, ConcurrentAdmissionPolicy};
use super::fair_sharing::{AdmissionScope, FairSharing, FairSharingStatus};
use super::quota::{ResourceGroup, StopPolicy};
use crate::crd::{Definition, Schema, embedded, kind, object, words};
use crate::quantity::Quantity;
use serde_json::json;

kind! {
    /// Quota, who may use it, and in which order.
    ClusterQueue in "kueue.x-k8s.io" "v1beta2", Cluster "clusterqueues" {
        spec: ClusterQueueSpec = ClusterQueueSpec::schema(),
        status: ClusterQueueStatus = ClusterQueueStatus::schema(),
    }
}

object! {
    ClusterQueueSpec {
        /// The quota, by flavor and resource.
        resource_groups: Vec<ResourceGroup> = ResourceGroup::list(),
        /// The cohort it borrows from and lends to. The Cohort object need not exist.
        cohort_name: String = Schema::subdomain(),
        /// Whether one that does not fit holds up those behind it.
        queueing_strategy: QueueingStrategy = QueueingStrategy::schema().default_to("BestEffortFIFO"),
        /// Namespaces whose workloads may be admitted. Not set: none; empty: all.
        namespace_selector: Option<LabelSelector> = embedded::label_selector(),
        /// When to look at the next flavor although this one would do.
        flavor_fungibility: Option<FlavorFungibility> = FlavorFungibility::schema().default_to(json!({})),
        /// Whom its workloads may preempt.
        preemption: Option<ClusterQueuePreemption> = ClusterQueuePreemption::schema().default_to(json!({})),
        /// Checks that its workloads must pass.
        admission_checks_strategy: Option<AdmissionChecksStrategy> = AdmissionChecksStrategy::schema(),
        /// Whether it is stopped.
        stop_policy: Option<StopPolicy> = StopPolicy::schema().default_to("None"),
        /// Its weight in its cohort.
        fair_sharing: Option<FairSharing> = FairSharing::schema(),
        /// The order of admission among its LocalQueues.
        admission_scope: Option<AdmissionScope> = AdmissionScope::schema(),
        /// Whether workloads race for several flavors at once.
        concurrent_admission: Option<ConcurrentAdmission> = ConcurrentAdmission::schema(),
        /// The same in Kueue's words. Set this or concurrentAdmission.
        concurrent_admission_policy: Option<ConcurrentAdmissionPolicy> = ConcurrentAdmissionPolicy::schema(),
    } where
        "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, \
         f.resources.all(r, !has(r.borrowingLimit)))) : true" =>
            "borrowingLimit must be nil when cohort is empty",
        "!has(self.concurrentAdmission) || !has(self.concurrentAdmissionPolicy)" =>
            "concurrentAdmission and concurrentAdmissionPolicy are two spellings of one policy: only one may be set",
}

words! {
    QueueingStrategy or BestEffortFIFO {
        /// One that cannot be admitted holds up those behind it.
        StrictFIFO = "StrictFIFO",
        /// One that cannot be admitted lets others pass.
        BestEffortFIFO = "BestEffortFIFO",
    }
}

object! {
    FlavorFungibility {
        /// When the workload would have to borrow.
        when_can_borrow: WhenCanBorrow = WhenCanBorrow::schema().default_to("MayStopSearch"),
        /// When the workload would have to preempt.
        when_can_preempt: WhenCanPreempt = WhenCanPreempt::schema().default_to("TryNextFlavor"),
        /// What is worse, if both flavors were looked at.
        preference: Option<FlavorPreference> = FlavorPreference::schema(),
    } where
        "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')" =>
            "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor",
}

words! {
    WhenCanBorrow {
        MayStopSearch = "MayStopSearch",
        TryNextFlavor = "TryNextFlavor",
    }
}

words! {
    WhenCanPreempt or TryNextFlavor {
        MayStopSearch = "MayStopSearch",
        TryNextFlavor = "TryNextFlavor",
    }
}

words! {
    FlavorPreference {
        BorrowingOverPreemption = "BorrowingOverPreemption",
        PreemptionOverBorrowing = "PreemptionOverBorrowing",
    }
}

object! {
    ClusterQueuePreemption {
        /// Whom a workload that fits within nominal quota may preempt in queues that borrow.
        reclaim_within_cohort: ReclaimWithinCohort = ReclaimWithinCohort::schema().default_to("Never"),
        /// Whether a workload may preempt others of the cohort and borrow.
        borrow_within_cohort: Option<BorrowWithinCohort> = BorrowWithinCohort::schema().default_to(json!({})),
        /// Whom a workload may preempt in its own queue.
        within_cluster_queue: WithinClusterQueue = WithinClusterQueue::schema().default_to("Never"),
    } where
        "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) &&  self.borrowWithinCohort.policy != \
         'Never')" => "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
}

words! {
    ReclaimWithinCohort {
        Never = "Never",
        LowerPriority = "LowerPriority",
        Any = "Any",
    }
}

words! {
    WithinClusterQueue {
        Never = "Never",
        LowerPriority = "LowerPriority",
        LowerOrNewerEqualPriority = "LowerOrNewerEqualPriority",
    }
}

object! {
    BorrowWithinCohort {
        /// Who may be preempted while borrowing.
        policy: BorrowPolicy = BorrowPolicy::schema().default_to("Never"),
        /// Only workloads of at most this priority.
        max_priority_threshold: Option<i32> = Schema::int32(),
    }
}

words! {
    BorrowPolicy {
        Never = "Never",
        LowerPriority = "LowerPriority",
    }
}

object! {
    AdmissionChecksStrategy {
        /// The checks.
        admission_checks: Vec<AdmissionCheckStrategyRule> = Schema::list(AdmissionCheckStrategyRule::schema())
            .min_items(1)
            .max_items(64)
            .keyed(&["name"])
            .required(),
    }
}

object! {
    AdmissionCheckStrategyRule {
        /// Name of an AdmissionCheck.
        name: String = Schema::string().min_len(1).max_len(316).required(),
        /// The flavors it is asked for. Empty: all.
        on_flavors: Vec<String> = Schema::list(Schema::subdomain()).max_items(64).set(),
    }
}

object! {
    ClusterQueueStatus {
        /// Active: whether workloads can be admitted, and if not, why.
        conditions: Vec<Condition> = embedded::conditions(),
        /// Quota held.
        flavors_reservation: Vec<FlavorUsage> = FlavorUsage::list(),
        /// Quota used by admitted workloads.
        flavors_usage: Vec<FlavorUsage> = FlavorUsage::list(),
        /// Workloads that wait.
        pending_workloads: i32 = Schema::int32(),
        /// Workloads that hold quota.
        reserving_workloads: i32 = Schema::int32(),
        /// Workloads that may run.
        admitted_workloads: i32 = Schema::int32(),
        /// Its share in use.
        fair_sharing: Option<FairSharingStatus> = FairSharingStatus::schema(),
    }
}

object! {
    FlavorUsage {
        /// Name of the flavor.
        name: String = Schema::subdomain().required(),
        /// What is used, by resource.
        resources: Vec<ResourceUsage> =
            Schema::list(ResourceUsage::schema()).max_items(64).keyed(&["name"]).required(),
    }
}

impl FlavorUsage {
    fn list() -> Schema {
        Schema::list(FlavorUsage::schema()).max_items(64).keyed(&["name"])
    }
}

object! {
    ResourceUsage {
        /// Name of the resource.
        name: String = Schema::string().required(),
        /// How much of it, borrowed included.
        total: Quantity = Schema::quantity(),
        /// How much of it is borrowed.
        borrowed: Quantity = Schema::quantity(),
    }
}

impl ClusterQueueSpec {
    /// All flavors, in the order of groups and then of preference.
    pub fn flavors(&self) -> impl Iterator<Item = &str> {
        self.resource_groups.iter().flat_map(|group| &group.flavors).map(|flavor| flavor.name.as_str())
    }
}

impl ClusterQueue {
    pub fn definition() -> Definition {
        ClusterQueue::declared()
            .short(&["cq"])
            .with_status()
            .column("Cohort", "string", ".spec.cohortName", false, "Cohort that this ClusterQueue belongs to")
            .column("Strategy", "string", ".spec.queueingStrategy", true, "How its workloads are ordered")
            .column("Pending Workloads", "integer", ".status.pendingWorkloads", false, "Number of pending workloads")
            .column("Admitted Workloads", "integer", ".status.admittedWorkloads", true, "Number of admitted workloads")
    }
}
