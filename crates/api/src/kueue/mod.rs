//! `kueue.x-k8s.io/v1beta2`: the kinds of Kueue 0.19, with the fields that the seeds add.
//!
//! One file a kind. [`definitions`] gives their CustomResourceDefinitions; [`conditions`] has the words of conditions and
//! reasons; [`keys`] labels, annotations and the like; [`names`] how Workloads are called; [`concurrent`] the two
//! spellings of concurrent admission as one value; [`rules`] what is filled in and refused beyond the schemas.
//!
//! Served as upstream: ResourceFlavor, ClusterQueue, LocalQueue, Cohort, Workload, WorkloadPriorityClass, AdmissionCheck, and
//! Topology, so that manifests that name one apply. Not here: MultiKueueCluster, MultiKueueConfig and
//! ProvisioningRequestConfig (no controller of ours reads them; the checks that would are shown as inactive), and `v1beta1`.

pub mod admission_check;
pub mod cluster_queue;
pub mod cohort;
pub mod concurrent;
pub mod conditions;
mod definitions;
pub mod fair_sharing;
pub mod keys;
pub mod local_queue;
pub mod names;
pub mod quota;
pub mod resource_flavor;
pub mod rules;
pub(crate) mod template;
pub mod topology;
pub mod workload;
pub mod workload_priority_class;
mod workload_rules;
pub mod workload_status;

pub use admission_check::AdmissionCheck;
pub use cluster_queue::ClusterQueue;
pub use cohort::Cohort;
pub use definitions::{REVISION, REVISION_ANNOTATION, definitions};
pub use local_queue::LocalQueue;
pub use resource_flavor::ResourceFlavor;
pub use topology::Topology;
pub use workload::Workload;
pub use workload_priority_class::WorkloadPriorityClass;
pub use workload_rules::{Native, native};

pub const GROUP: &str = "kueue.x-k8s.io";
pub const VERSION: &str = "v1beta2";
pub const API_VERSION: &str = "kueue.x-k8s.io/v1beta2";
