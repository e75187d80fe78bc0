//! The names on the wire that the Job controller reads and writes.

pub const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub const COMPLETION_INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub const INDEX_IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// The value of managedBy that means this controller.
pub const CONTROLLER: &str = "kubernetes.io/job-controller";

pub const INDEXED: &str = "Indexed";
pub const NON_INDEXED: &str = "NonIndexed";

pub const SUSPENDED: &str = "Suspended";
pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
pub const COMPLETE: &str = "Complete";
pub const FAILURE_TARGET: &str = "FailureTarget";
pub const FAILED: &str = "Failed";
