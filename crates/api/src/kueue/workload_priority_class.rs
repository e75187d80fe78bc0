//! WorkloadPriorityClass: a priority for admission that leaves the pods' own alone.

use crate::crd::{Definition, Schema, kind};

kind! {
    /// A priority for admission that leaves the pods' own alone.
    WorkloadPriorityClass in "kueue.x-k8s.io" "v1beta2", Cluster "workloadpriorityclasses" {
        /// The priority; higher comes first.
        value: i32 = Schema::int32().required(),
        /// When to use it.
        description: String = Schema::string().max_len(2048),
    }
}

impl WorkloadPriorityClass {
    pub fn definition() -> Definition {
        WorkloadPriorityClass::declared().short(&["wpc"]).column("Value", "integer", ".value", false, "The priority")
    }
}
