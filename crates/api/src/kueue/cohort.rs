//! Cohort: queues that lend to each other, in a tree.

use super::fair_sharing::{FairSharing, FairSharingStatus};
use super::quota::ResourceGroup;
use crate::crd::{Definition, Schema, kind, object};

kind! {
    /// Queues that lend to each other, with quota of their own to share.
    Cohort in "kueue.x-k8s.io" "v1beta2", Cluster "cohorts" {
        spec: CohortSpec = CohortSpec::schema(),
        status: CohortStatus = CohortStatus::schema(),
    }
}

object! {
    CohortSpec {
        /// The cohort it belongs to. None: it is a root. A circle stops everything in it.
        parent_name: String = Schema::subdomain(),
        /// Quota that all queues below share, besides their own.
        resource_groups: Vec<ResourceGroup> = ResourceGroup::list(),
        /// Its weight among its siblings.
        fair_sharing: Option<FairSharing> = FairSharing::schema(),
    }
}

object! {
    CohortStatus {
        /// Its share in use.
        fair_sharing: Option<FairSharingStatus> = FairSharingStatus::schema(),
    }
}

impl Cohort {
    pub fn definition() -> Definition {
        Cohort::declared().short(&["co"]).with_status()
    }
}
