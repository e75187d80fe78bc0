//! Weights and shares, on ClusterQueues, LocalQueues and Cohorts.

use crate::crd::{Schema, object, words};
use crate::quantity::Quantity;

object! {
    /// How much this one counts when others of its cohort compete with it.
    FairSharing {
        /// Shares are divided by it. 0: whatever is borrowed is given back first. 1 if not said.
        weight: Option<Quantity> = Schema::quantity().default_to(1),
    }
}

object! {
    /// The share in use.
    FairSharingStatus {
        /// Use above nominal quota of the most borrowed resource, in thousandths of what the cohort can lend, by weight.
        weighted_share: i64 = Schema::int64().required(),
    }
}

object! {
    /// Which order of admission a ClusterQueue follows.
    AdmissionScope {
        /// Whether LocalQueues that used less come first.
        admission_mode: AdmissionMode = AdmissionMode::schema().required(),
    }
}

words! {
    /// Whether past use of LocalQueues decides about admission.
    AdmissionMode {
        UsageBasedAdmissionFairSharing = "UsageBasedAdmissionFairSharing",
        NoAdmissionFairSharing = "NoAdmissionFairSharing",
    }
}
