//! A Job and its pods as the decisions see them: every pod classified once, every absent field given its meaning.
//!
//! Nothing here reads a cache or the clock; [`Observed::new`] is given what was found.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition};

use super::decide::backoff::Record;
use super::names;
use crate::runtime::Key;

/// The gates that the controller depends on, read once at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `MutableSchedulingDirectivesForSuspendedJobs`: a Job that becomes suspended loses its startTime.
    pub clear_start_time_on_suspend: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { clear_start_time_on_suspend: true }
    }
}

#[derive(Clone, Debug)]
pub struct Observed {
    pub job: Arc<Job>,
    pub spec: Spec,
    pub status: JobStatus,
    /// The pods that the Job has claimed; of an Indexed Job by index, otherwise by name.
    pub pods: Vec<Member>,
    /// What is remembered of earlier failures; `None` right after a start, when the pods that are left must tell.
    pub remembered: Option<Record>,
    pub policy: Policy,
}

/// A Job's specification, defaults filled in as the server would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub suspended: bool,
    pub parallelism: i32,
    pub completions: Option<i32>,
    pub indexed: bool,
    pub backoff_limit: i32,
    pub backoff_limit_per_index: Option<i32>,
    pub max_failed_indexes: Option<i32>,
    pub deadline: Option<SignedDuration>,
    /// podReplacementPolicy Failed: what terminates is neither failed yet nor replaced.
    pub replace_only_failed: bool,
    pub restarts_on_failure: bool,
}

impl Spec {
    fn lower(spec: &JobSpec) -> Spec {
        let pod = spec.template.spec.as_ref();
        Spec {
            suspended: spec.suspend == Some(true),
            parallelism: spec.parallelism.unwrap_or(1),
            completions: spec.completions,
            indexed: spec.completion_mode.as_deref() == Some(names::INDEXED),
            backoff_limit: spec.backoff_limit.unwrap_or(6),
            backoff_limit_per_index: spec.backoff_limit_per_index,
            max_failed_indexes: spec.max_failed_indexes,
            deadline: spec.active_deadline_seconds.map(SignedDuration::from_secs),
            replace_only_failed: spec.pod_replacement_policy.as_deref() == Some("Failed"),
            restarts_on_failure: pod.and_then(|pod| pod.restart_policy.as_deref()) == Some("OnFailure"),
        }
    }

    /// How many indexes an Indexed Job has.
    pub fn index_count(&self) -> i32 {
        self.completions.unwrap_or(self.parallelism)
    }

    /// The value of metrics' label `completion_mode`.
    pub fn mode(&self) -> &'static str {
        if self.indexed { names::INDEXED } else { names::NON_INDEXED }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Active,
    /// Being deleted, and has not ended.
    Terminating,
    Succeeded,
    Failed,
}

/// One of the Job's pods.
#[derive(Clone, Debug)]
pub struct Member {
    pub pod: Arc<Pod>,
    pub life: Life,
    pub ready: bool,
    /// Has the tracking finalizer: is not counted yet.
    pub tracked: bool,
    /// Counts as failed under the Job's podReplacementPolicy.
    pub failed: bool,
    /// Its index, if it has one that can be read.
    pub index: Option<i32>,
}

impl Observed {
    pub fn new(job: Arc<Job>, pods: Vec<Arc<Pod>>, remembered: Option<Record>, policy: Policy) -> Observed {
        let spec = Spec::lower(&job.spec.clone().unwrap_or_default());
        let mut pods: Vec<Member> = pods.into_iter().map(|pod| Member::classify(pod, &spec)).collect();
        if spec.indexed {
            pods.sort_by(|a, b| (a.index, a.name()).cmp(&(b.index, b.name())));
        }
        let status = job.status.clone().unwrap_or_default();
        Observed { job, spec, status, pods, remembered, policy }
    }

    pub fn with_status(mut self, status: JobStatus) -> Observed {
        self.status = status;
        self
    }

    pub fn job_spec(&self) -> Option<&JobSpec> {
        self.job.spec.as_ref()
    }

    pub fn being_deleted(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_some()
    }

    /// The positions of the active pods.
    pub fn active(&self) -> Vec<usize> {
        self.positions(|pod| pod.life == Life::Active)
    }

    pub fn count(&self, life: Life) -> i32 {
        self.pods.iter().filter(|pod| pod.life == life).count() as i32
    }

    pub fn positions(&self, is: impl Fn(&Member) -> bool) -> Vec<usize> {
        (0..self.pods.len()).filter(|&at| is(&self.pods[at])).collect()
    }

    /// The index of a pod of an Indexed Job, if it is one that the Job has.
    pub fn valid_index(&self, pod: &Member) -> Option<i32> {
        pod.index.filter(|index| *index < self.spec.index_count())
    }

    /// Whether the pod can be counted at all: pods of Indexed Jobs need an index of the Job.
    pub fn counts(&self, pod: &Member) -> bool {
        !self.spec.indexed || self.valid_index(pod).is_some()
    }

    pub fn condition_is(&self, kind: &str, value: &str) -> bool {
        let conditions = self.status.conditions.iter().flatten();
        conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == value)
    }

    /// Runs again after a suspension that the status still shows.
    pub fn resuming(&self) -> bool {
        !self.spec.suspended && self.condition_is(names::SUSPENDED, "True")
    }
}

impl Member {
    fn classify(pod: Arc<Pod>, spec: &Spec) -> Member {
        let status = pod.status.as_ref();
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let life = match status.and_then(|status| status.phase.as_deref()) {
            Some("Succeeded") => Life::Succeeded,
            Some("Failed") => Life::Failed,
            _ if deleted => Life::Terminating,
            _ => Life::Active,
        };
        let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let index = annotation(names::COMPLETION_INDEX).and_then(|text| text.parse().ok()).filter(|index| *index >= 0);
        Member {
            life,
            ready: condition(&pod, "Ready").is_some_and(|ready| ready.status == "True"),
            tracked: pod.metadata.finalizers.iter().flatten().any(|f| f == names::TRACKING_FINALIZER),
            failed: life == Life::Failed || (life == Life::Terminating && !spec.replace_only_failed),
            index,
            pod,
        }
    }

    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn key(&self) -> Key {
        Key::new(self.pod.metadata.namespace.as_deref().unwrap_or_default(), self.name())
    }

    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Failures of its index before it that count, and those that a policy ignores.
    pub fn earlier_failures(&self) -> (i32, i32) {
        let read = |name: &str| {
            let text = self.pod.metadata.annotations.as_ref()?.get(name)?;
            text.parse::<i32>().ok().filter(|count| *count >= 0)
        };
        (read(names::INDEX_FAILURES).unwrap_or(0), read(names::INDEX_IGNORED_FAILURES).unwrap_or(0))
    }

    /// When its last container ended; else when it ceased to be ready; else when it was deleted; else its creation.
    pub fn finished_at(&self) -> Timestamp {
        let meta = &self.pod.metadata;
        let unready = condition(&self.pod, "Ready").filter(|ready| ready.status == "False");
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0));
        self.containers_finished_at()
            .or_else(|| Some(unready?.last_transition_time.as_ref()?.0))
            .or_else(|| meta.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok())
            .or_else(|| Some(meta.creation_timestamp.as_ref()?.0))
            .unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Sidecars, which are init containers that keep running, end after the containers proper.
    fn containers_finished_at(&self) -> Option<Timestamp> {
        let status = self.pod.status.as_ref()?;
        let sidecars = sidecars(&self.pod);
        let side = status.init_container_statuses.iter().flatten().filter(|c| sidecars.contains(&c.name.as_str()));
        let all = status.container_statuses.iter().flatten().chain(side);
        let ends: Option<Vec<Timestamp>> = all.map(finished_at).collect();
        ends?.into_iter().max()
    }

    /// The most restarts of a container, and of a sidecar.
    pub fn max_restarts(&self) -> (i32, i32) {
        let Some(status) = self.pod.status.as_ref() else { return (0, 0) };
        let sidecars = sidecars(&self.pod);
        let regular = status.container_statuses.iter().flatten().map(|c| c.restart_count).max();
        let side = status.init_container_statuses.iter().flatten();
        let side = side.filter(|c| sidecars.contains(&c.name.as_str())).map(|c| c.restart_count).max();
        (regular.unwrap_or(0), side.unwrap_or(0))
    }

    /// All restarts of all containers.
    pub fn restarts(&self) -> i32 {
        let Some(status) = self.pod.status.as_ref() else { return 0 };
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        all.map(|container| container.restart_count).sum()
    }

    pub fn phase(&self) -> &str {
        self.pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    pub fn node(&self) -> &str {
        self.pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
    }

    pub fn ready_since(&self) -> Option<Timestamp> {
        let ready = condition(&self.pod, "Ready").filter(|ready| ready.status == "True")?;
        Some(ready.last_transition_time.as_ref()?.0)
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn sidecars(pod: &Pod) -> Vec<&str> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    init.filter(stays).map(|container| container.name.as_str()).collect()
}

fn finished_at(container: &ContainerStatus) -> Option<Timestamp> {
    Some(container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
}
