//! What is known about a Workload: its conditions, its admission, its checks, its variants.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::admission_check::CheckState;
use super::concurrent::MAX_VARIANTS;
use super::keys::MAIN_POD_SET;
use super::workload::MAX_POD_SETS;
use super::workload_rules as rules;
use crate::crd::{Schema, embedded, object, words};
use crate::quantity::Quantity;

/// Folded slices that may be listed before those that are gone are pruned.
pub const MAX_FOLDED_SLICES: usize = 4096;

object! {
    WorkloadStatus {
        /// QuotaReserved, Admitted, Evicted, Finished and others.
        conditions: Vec<Condition> = embedded::conditions(),
        /// Where and on what it is admitted.
        admission: Option<Admission> = Admission::schema(),
        /// When it may be tried again after an eviction.
        requeue_state: Option<RequeueState> = RequeueState::schema(),
        /// Pods whose quota is no longer needed.
        reclaimable_pods: Vec<ReclaimablePod> =
            Schema::list(ReclaimablePod::schema()).max_items(MAX_POD_SETS).keyed(&["name"]),
        /// What the admission checks say.
        admission_checks: Vec<AdmissionCheckState> =
            Schema::list(AdmissionCheckState::schema()).max_items(8).keyed(&["name"]),
        /// What it asked for when it was last looked at without success.
        resource_requests: Vec<PodSetRequest> =
            Schema::list(PodSetRequest::schema()).max_items(MAX_POD_SETS).keyed(&["name"]),
        /// How long it was admitted before, against maximumExecutionTimeSeconds.
        accumulated_past_execution_time_seconds: Option<i32> = Schema::int32(),
        /// How often it was evicted.
        scheduling_stats: Option<SchedulingStats> = SchedulingStats::schema(),
        /// Clusters it may go to.
        nominated_cluster_names: Vec<String> = Schema::list(Schema::string().max_len(256)).max_items(20).atomic(),
        /// The cluster it went to.
        cluster_name: Option<String> = Schema::string().max_len(256),
        /// Nodes it ran on that failed.
        unhealthy_nodes: Vec<UnhealthyNode> = Schema::list(UnhealthyNode::schema()).max_items(8).keyed(&["name"]),
        /// Positions of its preemption gates.
        preemption_gates: Vec<PreemptionGateState> =
            Schema::list(PreemptionGateState::schema()).max_items(8).keyed(&["name"]),
        /// On a Parent: its Variants, best first.
        variants: Vec<VariantStatus> = Schema::list(VariantStatus::schema()).max_items(MAX_VARIANTS).keyed(&["name"]),
        /// On a Parent: when the delays of its Variants began to count.
        concurrent_admission: Option<ConcurrentAdmissionStatus> = ConcurrentAdmissionStatus::schema(),
        /// UIDs of Workload Slices that admission already counts.
        folded_slices: Vec<String> =
            Schema::list(Schema::string().min_len(1).max_len(64)).max_items(MAX_FOLDED_SLICES).set(),
    } where
        rules::CLUSTER_NAME => "clusterName is immutable once set",
        rules::CLUSTER_OR_NOMINATED => "clusterName and nominatedClusterNames are mutually exclusive",
}

object! {
    Admission {
        /// The ClusterQueue whose quota it holds.
        cluster_queue: String = Schema::subdomain(),
        /// What each pod set got.
        pod_set_assignments: Vec<PodSetAssignment> =
            Schema::list(PodSetAssignment::schema()).max_items(MAX_POD_SETS).keyed(&["name"]),
    }
}

object! {
    PodSetAssignment {
        /// Name of the pod set.
        name: String = Schema::label().default_to(MAIN_POD_SET),
        /// The flavor of each resource.
        flavors: BTreeMap<String, String> = Schema::map(Schema::subdomain()),
        /// What all pods of the set use together.
        resource_usage: BTreeMap<String, Quantity> = embedded::resources(),
        /// How many pods were admitted.
        count: Option<i32> = Schema::int32().min(0),
        /// Where they go.
        topology_assignment: Option<TopologyAssignment> = TopologyAssignment::schema(),
        /// Whether the place is still to be found.
        delayed_topology_request: Option<DelayedTopologyRequest> = DelayedTopologyRequest::schema().max_len(7),
    }
}

words! {
    DelayedTopologyRequest {
        Pending = "Pending",
        Ready = "Ready",
    }
}

object! {
    TopologyAssignment {
        /// Node labels of the levels.
        levels: Vec<String> =
            Schema::list(Schema::string().max_len(317)).min_items(1).max_items(16).atomic().required(),
        /// The domains, in parts.
        slices: Vec<TopologyAssignmentSlice> =
            Schema::list(TopologyAssignmentSlice::schema()).max_items(1000).atomic().required(),
    } where
        "self.slices.all(x, size(x.valuesPerLevel) == size(self.levels))" =>
            "valuesPerLevel must have the same length as the number of levels in this TopologyAssignment",
}

object! {
    TopologyAssignmentSlice {
        /// Domains in this part.
        domain_count: i32 = Schema::int32().min(1).required(),
        /// Names of the domains, level by level.
        values_per_level: Vec<LevelValues> =
            Schema::list(LevelValues::schema()).min_items(1).max_items(16).atomic().required(),
        /// Pods in each domain.
        pod_counts: PodCounts = PodCounts::schema().required(),
    } where
        "!has(self.podCounts.individual) || size(self.podCounts.individual) == self.domainCount" =>
            "podCounts.individual must have length equal to domainCount",
        "self.valuesPerLevel.all(x, !has(x.individual) || size(x.individual.roots) == self.domainCount)" =>
            "valuesPerLevel.individual, if set, must have roots of length equal to domainCount of this \
             TopologyAssignmentSlice",
}

object! {
    LevelValues {
        /// One value for all domains.
        universal: Option<String> = Schema::string().max_len(63),
        /// A value for each.
        individual: Option<IndividualValues> = IndividualValues::schema(),
    } where
        "has(self.universal) != has(self.individual)" =>
            "exactly one of the fields in [universal individual] must be set",
}

object! {
    IndividualValues {
        /// What all begin with.
        prefix: Option<String> = Schema::string().max_len(63),
        /// What all end with.
        suffix: Option<String> = Schema::string().max_len(63),
        /// What is between.
        roots: Vec<String> =
            Schema::list(Schema::string().max_len(63)).min_items(1).max_items(100_000).atomic().required(),
    }
}

object! {
    PodCounts {
        /// The same in all domains.
        universal: Option<i32> = Schema::int32().min(1),
        /// One for each domain.
        individual: Vec<i32> = Schema::list(Schema::int32().min(1)).min_items(1).max_items(100_000).atomic(),
    } where
        "[has(self.universal),has(self.individual)].filter(x,x==true).size() == 1" =>
            "exactly one of the fields in [universal individual] must be set",
}

object! {
    RequeueState {
        /// How often it was put back.
        count: Option<i32> = Schema::int32().min(0),
        /// Not before this.
        requeue_at: Option<Time> = Schema::time(),
    }
}

object! {
    ReclaimablePod {
        /// Name of the pod set.
        name: String = Schema::label().required(),
        /// Pods that need no quota any more.
        count: i32 = Schema::int32().min(0).required(),
    }
}

object! {
    AdmissionCheckState {
        /// Name of the AdmissionCheck.
        name: String = Schema::string().min_len(1).max_len(316).required(),
        /// What it says.
        state: CheckState = CheckState::schema().required(),
        /// Since when.
        last_transition_time: Option<Time> = Schema::time().required(),
        /// Why, for people.
        message: Text = Schema::string().max_len(32768).required(),
        /// How long to wait after Retry.
        requeue_after_seconds: Option<i32> = Schema::int32().min(0),
        /// How often it said Retry.
        retry_count: Option<i32> = Schema::int32().min(0),
        /// What it wants changed in the pods.
        pod_set_updates: Vec<PodSetUpdate> =
            Schema::list(PodSetUpdate::schema()).max_items(MAX_POD_SETS).atomic(),
    }
}

/// Text that is written even when it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Text(pub String);

impl crate::crd::Omit for Text {}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(text.to_owned())
    }
}

object! {
    PodSetUpdate {
        /// Name of the pod set.
        name: String = Schema::label().required(),
        /// Labels to add.
        labels: BTreeMap<String, String> = Schema::map(Schema::string()),
        /// Annotations to add.
        annotations: BTreeMap<String, String> = Schema::map(Schema::string()),
        /// Node selectors to add.
        node_selector: BTreeMap<String, String> = Schema::map(Schema::string()),
        /// Tolerations to add.
        tolerations: Vec<Toleration> = embedded::tolerations(),
    }
}

object! {
    PodSetRequest {
        /// Name of the pod set.
        name: String = Schema::label().required(),
        /// What all its pods ask for together.
        resources: BTreeMap<String, Quantity> = embedded::resources(),
    }
}

object! {
    SchedulingStats {
        /// By reason.
        evictions: Vec<EvictionCount> =
            Schema::list(EvictionCount::schema()).max_items(256).keyed(&["reason", "underlyingCause"]),
    }
}

object! {
    EvictionCount {
        /// As in the Evicted condition.
        reason: String = Schema::string().max_len(316).required(),
        /// What was behind it.
        underlying_cause: Text = Schema::string().max_len(316).required(),
        /// How often.
        count: i32 = Schema::int32().min(0).required(),
    }
}

object! {
    UnhealthyNode {
        /// Name of the node.
        name: String = Schema::string().max_len(63).required(),
    }
}

words! {
    /// Whether a workload may preempt, as far as this gate is concerned.
    GatePosition {
        Closed = "Closed",
        Open = "Open",
    }
}

object! {
    PreemptionGateState {
        /// Name of the gate.
        name: String = Schema::string().min_len(1).max_len(63).required(),
        /// Whether it is open.
        position: GatePosition = GatePosition::schema().required(),
        /// Since when.
        last_transition_time: Option<Time> = Schema::time().required(),
    }
}

object! {
    /// A Variant as its Parent shows it.
    VariantStatus {
        /// Name of the Variant's Workload.
        name: String = Schema::subdomain().required(),
        /// The flavors it may use.
        resource_flavors: Vec<String> = Schema::list(Schema::subdomain()).max_items(256).atomic(),
        /// Its spec.active.
        active: bool = Schema::boolean().required(),
        /// Its conditions that matter here.
        conditions: Vec<Condition> = embedded::conditions(),
    }
}

object! {
    /// The base of the countdowns of Variants.
    ConcurrentAdmissionStatus {
        /// createDelaySeconds counts from here: the creation, or the last reset.
        reset_time: Option<Time> = Schema::time(),
        /// deleteDelaySeconds counts from here: the first admission since the reset.
        first_admission_time: Option<Time> = Schema::time(),
    }
}
