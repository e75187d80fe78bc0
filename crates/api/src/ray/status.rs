//! What a RayCluster has come to, as KubeRay writes it.

#![allow(non_snake_case, reason = "the wire spells abbreviations in capitals: desiredCPU, podIP")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::crd::{Schema, embedded, object, words};
use crate::quantity::Quantity;

/// A RayCluster's `status.state` once all its pods ran, and once none does.
pub mod state {
    pub const READY: &str = "ready";
    pub const SUSPENDED: &str = "suspended";
}

words! {
    ClusterCondition {
        /// All pods were ready once, since it was last suspended.
        Provisioned = "RayClusterProvisioned",
        HeadPodReady = "HeadPodReady",
        /// It is to have no pods, and some are there.
        Suspending = "RayClusterSuspending",
        /// It is to have no pods and has none.
        Suspended = "RayClusterSuspended",
    }
}

/// Numbers that Go leaves out when they are nothing.
fn count() -> Schema {
    Schema::int32()
}

object! {
    RayClusterStatus {
        /// `ready` once all pods ran, `suspended` when none does.
        state: String = Schema::string(),
        /// What all pods it asks for ask for.
        desired_CPU: Option<Quantity> = Schema::quantity(),
        desired_memory: Option<Quantity> = Schema::quantity(),
        desired_GPU: Option<Quantity> = Schema::quantity(),
        desired_TPU: Option<Quantity> = Schema::quantity(),
        /// When anything here last changed.
        last_update_time: Option<Time> = Schema::time(),
        /// When it came to each state.
        state_transition_times: BTreeMap<String, Time> = Schema::map(Schema::time()),
        endpoints: BTreeMap<String, String> = Schema::map(Schema::string()),
        /// Where its head is.
        head: Option<HeadInfo> = HeadInfo::schema(),
        /// Why it is in its state.
        reason: String = Schema::string(),
        conditions: Vec<Condition> = embedded::conditions(),
        /// Workers that are ready.
        ready_worker_replicas: Option<i32> = count(),
        /// Workers that run.
        available_worker_replicas: Option<i32> = count(),
        /// Workers it asks for.
        desired_worker_replicas: Option<i32> = count(),
        min_worker_replicas: Option<i32> = count(),
        max_worker_replicas: Option<i32> = count(),
        /// The generation all this was worked out from.
        observed_generation: Option<i64> = Schema::int64(),
    }
}

object! {
    HeadInfo {
        pod_IP: String = Schema::string(),
        pod_name: String = Schema::string(),
        service_IP: String = Schema::string(),
        service_name: String = Schema::string(),
    }
}
