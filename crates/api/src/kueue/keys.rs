//! Labels, annotations, finalizers and gates that objects carry.

/// On ClusterQueues and ResourceFlavors until nothing uses them; on Workloads until their quota is free.
pub const RESOURCE_IN_USE: &str = "kueue.x-k8s.io/resource-in-use";

/// The value of labels and annotations that mean yes.
pub const TRUE: &str = "true";

/// The pod set of a job that has one.
pub const MAIN_POD_SET: &str = "main";

/// The LocalQueue and the WorkloadPriorityClass that are used where none is named.
pub const DEFAULT_LOCAL_QUEUE: &str = "default";
pub const DEFAULT_WORKLOAD_PRIORITY_CLASS: &str = "default";

/// The apply manager of what the scheduler writes about admission.
pub const ADMISSION_MANAGER: &str = "kueue-admission";

pub mod label {
    /// On jobs: the LocalQueue.
    pub const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
    /// On jobs: the WorkloadPriorityClass.
    pub const PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";
    /// On jobs: a Workload that was made beforehand. The annotation of the same name goes first.
    pub const PREBUILT_WORKLOAD: &str = "kueue.x-k8s.io/prebuilt-workload-name";
    /// On jobs: how long they may run.
    pub const MAX_EXEC_TIME_SECONDS: &str = "kueue.x-k8s.io/max-exec-time-seconds";
    /// On Workloads: the uid of the job.
    pub const JOB_UID: &str = "kueue.x-k8s.io/job-uid";
    /// On pods: the pod set, the queues.
    pub const POD_SET: &str = "kueue.x-k8s.io/podset";
    pub const CLUSTER_QUEUE: &str = "kueue.x-k8s.io/cluster-queue-name";
    pub const LOCAL_QUEUE: &str = "kueue.x-k8s.io/local-queue-name";
    /// On objects that a queue looks after.
    pub const MANAGED: &str = "kueue.x-k8s.io/managed";
    /// On Workloads that have Variants.
    pub const CONCURRENT_ADMISSION_PARENT: &str = "kueue.x-k8s.io/concurrent-admission-parent";
    /// On Variants; ours. Upstream knows them by their owner alone, but slices are owned by Workloads too.
    pub const CONCURRENT_ADMISSION_VARIANT: &str = "kueue.x-k8s.io/concurrent-admission-variant";
    /// On Workload Slices; ours.
    pub const WORKLOAD_SLICE: &str = "kueue.x-k8s.io/workload-slice";
}

pub mod annotation {
    /// On jobs and Workloads: resizes without stopping.
    pub const ELASTIC_JOB: &str = "kueue.x-k8s.io/elastic-job";
    /// On Jobs: the least parallelism to start with.
    pub const MIN_PARALLELISM: &str = "kueue.x-k8s.io/job-min-parallelism";
    /// On Jobs: completions follow parallelism when partly admitted.
    pub const COMPLETIONS_EQUAL_PARALLELISM: &str = "kueue.x-k8s.io/job-completions-equal-parallelism";
    /// On jobs that are being stopped.
    pub const STOPPING: &str = "kueue.x-k8s.io/stopping";
    pub const PREBUILT_WORKLOAD: &str = "kueue.x-k8s.io/prebuilt-workload-name";
    /// On jobs and Workloads: who must let go before admission.
    pub const ADMISSION_GATED_BY: &str = "kueue.x-k8s.io/admission-gated-by";
    /// On Workloads: added to their priority.
    pub const PRIORITY_BOOST: &str = "kueue.x-k8s.io/priority-boost";
    /// On Workloads: Kueue's spelling of `spec.admissionConstraints.allowedResourceFlavors`, separated by commas.
    pub const ALLOWED_RESOURCE_FLAVORS: &str = "kueue.x-k8s.io/workload-allowed-resource-flavors";
    /// On Workloads that have Variants: the seed's spelling of the parent label.
    pub const PARENT_VARIANT: &str = "kueue.x-k8s.io/parent-variant";
    /// On Variants: which of the policy's variants it is; ours.
    pub const VARIANT_NAME: &str = "kueue.x-k8s.io/variant-name";
    /// On Workloads: the job they were made for.
    pub const JOB_OWNER_GVK: &str = "kueue.x-k8s.io/job-owner-gvk";
    pub const JOB_OWNER_NAME: &str = "kueue.x-k8s.io/job-owner-name";
    /// On pods: the Workload, and the first of a chain of slices.
    pub const WORKLOAD: &str = "kueue.x-k8s.io/workload";
    pub const WORKLOAD_SLICE_NAME: &str = "kueue.x-k8s.io/workload-slice-name";
    /// On Workloads upstream made to replace a smaller one.
    pub const SLICE_REPLACEMENT_FOR: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
    /// On pod templates: the level of the topology that all pods must, or should, or need not be within.
    pub const REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";
    pub const PREFERRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-preferred-topology";
    pub const UNCONSTRAINED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
    /// What begins like this is passed on to provisioning requests.
    pub const PROVISIONING_PREFIX: &str = "provreq.kueue.x-k8s.io/";
}

/// Scheduling gates of pods.
pub mod scheduling_gate {
    pub const ELASTIC_JOB: &str = "kueue.x-k8s.io/elastic-job";
    pub const TOPOLOGY: &str = "kueue.x-k8s.io/topology";
}

/// Preemption gates of Workloads.
pub mod preemption_gate {
    pub const CONCURRENT_ADMISSION: &str = "kueue.x-k8s.io/concurrent-admission";
    pub const MULTI_KUEUE: &str = "kueue.x-k8s.io/multikueue";
}

/// Controllers that AdmissionChecks may name and that are not here.
pub mod check_controller {
    pub const MULTI_KUEUE: &str = "kueue.x-k8s.io/multikueue";
    pub const PROVISIONING_REQUEST: &str = "kueue.x-k8s.io/provisioning-request";
}
