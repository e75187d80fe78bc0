//! Labels and words of KubeRay.

pub mod label {
    /// On pods: the RayCluster they are of.
    pub const CLUSTER: &str = "ray.io/cluster";
    /// On pods: `head` or `worker`.
    pub const NODE_TYPE: &str = "ray.io/node-type";
    /// On pods: the group they are of.
    pub const GROUP: &str = "ray.io/group";
    pub const IS_RAY_NODE: &str = "ray.io/is-ray-node";
    pub const IDENTIFIER: &str = "ray.io/identifier";
    /// On workers: which replica of their group they are part of.
    pub const REPLICA_INDEX: &str = "ray.io/worker-group-replica-index";
    /// On workers of replicas of several hosts: which of them.
    pub const HOST_INDEX: &str = "ray.io/replica-host-index";
}

/// The group of the head's pod.
pub const HEAD_GROUP: &str = "headgroup";
/// The pod set of the head, in Workloads. Pod sets of workers are called after their groups.
pub const HEAD_POD_SET: &str = "head";

/// `spec.managedBy` of a RayCluster that KubeRay looks after, as it does if nothing is said.
pub const KUBERAY: &str = "ray.io/kuberay-operator";
