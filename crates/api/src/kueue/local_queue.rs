//! LocalQueue: a namespace's way into a ClusterQueue.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::fair_sharing::FairSharing;
use super::quota::StopPolicy;
use crate::crd::{Definition, Schema, embedded, kind, object};
use crate::quantity::Quantity;

kind! {
    /// A namespace's way into a ClusterQueue.
    LocalQueue in "kueue.x-k8s.io" "v1beta2", Namespaced "localqueues" {
        spec: LocalQueueSpec = LocalQueueSpec::schema(),
        status: LocalQueueStatus = LocalQueueStatus::schema(),
    }
}

object! {
    LocalQueueSpec {
        /// The ClusterQueue behind it.
        cluster_queue: String = Schema::subdomain().immutable(),
        /// Whether it is stopped.
        stop_policy: Option<StopPolicy> = StopPolicy::schema().default_to("None"),
        /// Its weight among the LocalQueues of its ClusterQueue.
        fair_sharing: Option<FairSharing> = FairSharing::schema(),
    }
}

object! {
    LocalQueueStatus {
        /// Active: whether workloads can be admitted through it.
        conditions: Vec<Condition> = embedded::conditions(),
        /// Workloads that wait.
        pending_workloads: i32 = Schema::int32(),
        /// Workloads that hold quota.
        reserving_workloads: i32 = Schema::int32(),
        /// Workloads that may run.
        admitted_workloads: i32 = Schema::int32(),
        /// Quota held by its workloads.
        flavors_reservation: Vec<LocalQueueFlavorUsage> = LocalQueueFlavorUsage::list(),
        /// Quota used by its admitted workloads.
        flavors_usage: Vec<LocalQueueFlavorUsage> = LocalQueueFlavorUsage::list(),
        /// Its share.
        fair_sharing: Option<LocalQueueFairSharingStatus> = LocalQueueFairSharingStatus::schema(),
    }
}

object! {
    LocalQueueFlavorUsage {
        /// Name of the flavor.
        name: String = Schema::subdomain().required(),
        /// What is used, by resource.
        resources: Vec<LocalQueueResourceUsage> =
            Schema::list(LocalQueueResourceUsage::schema()).max_items(64).keyed(&["name"]).required(),
    }
}

impl LocalQueueFlavorUsage {
    fn list() -> Schema {
        Schema::list(LocalQueueFlavorUsage::schema()).max_items(64).keyed(&["name"])
    }
}

object! {
    LocalQueueResourceUsage {
        /// Name of the resource.
        name: String = Schema::string().required(),
        /// How much of it.
        total: Quantity = Schema::quantity(),
    }
}

object! {
    LocalQueueFairSharingStatus {
        /// The share in use.
        weighted_share: i64 = Schema::int64().required(),
        /// What past use counts for.
        admission_fair_sharing_status: Option<LocalQueueAdmissionFairSharingStatus> =
            LocalQueueAdmissionFairSharingStatus::schema(),
    }
}

object! {
    LocalQueueAdmissionFairSharingStatus {
        /// Past use, fading with time.
        consumed_resources: BTreeMap<String, Quantity> = embedded::resources().required(),
        /// When it was last worked out.
        last_update: Option<Time> = Schema::time().required(),
    }
}

impl LocalQueue {
    pub fn definition() -> Definition {
        LocalQueue::declared()
            .short(&["queue", "queues", "lq"])
            .with_status()
            .column("ClusterQueue", "string", ".spec.clusterQueue", false, "Backing ClusterQueue")
            .column("Pending Workloads", "integer", ".status.pendingWorkloads", false, "Number of pending workloads")
            .column("Admitted Workloads", "integer", ".status.admittedWorkloads", false, "Number of admitted workloads")
    }
}
