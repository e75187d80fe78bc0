//! What can be set for all queued work; Kueue's configuration in what it has in common with it.

use jiff::SignedDuration;
use usher_sched::model::Settings;
pub use usher_sched::model::{FairSharing, FairStrategy};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether the pods of admitted work have to be ready in time; `None`: nobody looks.
    pub pods_ready: Option<PodsReady>,
    /// How long a finished Workload is kept; `None`: as long as its job.
    pub keep_finished: Option<SignedDuration>,
    /// Jobs that ask for it grow and shrink without stopping (KEP-77).
    pub elastic_jobs: bool,
    /// Who borrows how much decides who is next, and who is sent away; `None`: priority and time do.
    pub fair_sharing: Option<FairSharing>,
    /// The gate `ConcurrentAdmission`; off: policies of queues are ignored, and Parents become regular Workloads.
    pub concurrent_admission: bool,
}

impl Policy {
    /// What of it the scheduler is to know.
    pub fn settings(&self) -> Settings {
        Settings {
            fair_sharing: self.fair_sharing.clone(),
            ignore_undeclared: false,
            block_until_ready: self.pods_ready.as_ref().is_some_and(|ready| ready.block_admission),
        }
    }
}

/// As upstream has it unless told otherwise.
impl Default for Policy {
    fn default() -> Policy {
        Policy {
            pods_ready: Some(PodsReady::default()),
            keep_finished: None,
            elastic_jobs: true,
            fair_sharing: None,
            concurrent_admission: true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsReady {
    /// From admission to all pods ready.
    pub timeout: SignedDuration,
    /// From a pod's failure to all pods ready again; `None`: however long it takes.
    pub recovery_timeout: Option<SignedDuration>,
    /// How often work is put back before it is deactivated; `None`: for ever.
    pub retries: Option<i32>,
    /// The first wait before it is looked at again; each further one is twice as long.
    pub backoff_base: SignedDuration,
    pub backoff_max: SignedDuration,
    /// Nothing is admitted while admitted work is not ready.
    pub block_admission: bool,
}

impl Default for PodsReady {
    fn default() -> PodsReady {
        let timeout = SignedDuration::from_mins(30);
        PodsReady {
            timeout,
            recovery_timeout: Some(timeout),
            retries: None,
            backoff_base: SignedDuration::from_secs(60),
            backoff_max: SignedDuration::from_secs(3600),
            block_admission: false,
        }
    }
}

impl PodsReady {
    /// How long work waits that is put back for the nth time.
    pub fn backoff(&self, nth: i32) -> SignedDuration {
        let doublings = u32::try_from(nth.saturating_sub(1)).unwrap_or(0).min(30);
        self.backoff_base.saturating_mul(1 << doublings).min(self.backoff_max)
    }
}
