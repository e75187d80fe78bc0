//! What is to be done about one job and its Workload: a function of both, one step at a time.
//!
//! Each step is one write; what it changes is seen in the caches before the next is decided. Everything that decides is in
//! the objects themselves, so a restart between any two steps goes on where it was:
//! - the annotation [`ADMITTED_BY`] on a job says that it carries what an admission added, and by which Workload;
//! - [`annotation::STOPPING`] says that queueing suspended it, and not its owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use usher_api::kueue::Workload;
use usher_api::kueue::conditions::{
    self, DeactivationCause, EvictionReason, FinishedReason, PodsReadyReason, WorkloadCondition,
};
use usher_api::kueue::keys::{self, annotation, label};
use usher_api::kueue::names::{self, Owner};
use usher_api::kueue::workload::{PriorityClassRef, Role, WorkloadSpec};
use usher_api::kueue::workload_status::WorkloadStatus;

use super::addition::{AdditionError, Flavors, additions};
use super::elastic::{Elastic, Gone, Resize, What};
use super::kind::JobKind;
use super::policy::Policy;
use super::shape;
use super::transition::Transition;

/// On a job that carries what an admission added to it: the uid of the Workload that was admitted.
pub const ADMITTED_BY: &str = "usher.dev/admitted-by";

/// Why a Workload is kept out of its queue while it is not what its job asks for: admitted as it was, it would only have to leave again.
const JOB_CHANGED: &str = "JobChanged";

/// A priority, and where it comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Priority {
    pub class: Option<PriorityClassRef>,
    pub value: i32,
}

/// All that a decision is made from.
pub struct Observed<'a, J> {
    pub job: &'a J,
    /// The Workloads it controls, in the order they were made; or the one it names as made beforehand.
    pub workloads: &'a [Arc<Workload>],
    /// Replicas that an elastic job was given beside its Workload, not folded into it yet.
    pub slices: &'a [Arc<Workload>],
    /// Those that race for its Workload, if that is a Parent.
    pub variants: &'a [Arc<Workload>],
    pub flavors: Flavors<'a>,
    /// None: the class it names does not exist.
    pub priority: Option<&'a Priority>,
    pub policy: &'a Policy,
}

/// One write, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<J> {
    Nothing,
    Create(Box<Workload>),
    /// The difference between what the job is and `to`, in one PATCH that holds only for the job as it was seen.
    Job {
        to: Box<J>,
        change: Change,
    },
    Spec {
        of: Arc<Workload>,
        to: Box<WorkloadSpec>,
        change: Change,
    },
    Status {
        of: Arc<Workload>,
        to: Box<WorkloadStatus>,
        change: Change,
    },
    Delete {
        of: Arc<Workload>,
    },
    /// Slices of an elastic job, all at once.
    CreateSlices(Vec<Workload>),
    DeleteSlices(Vec<Arc<Workload>>, Gone),
    /// Nothing of the job runs on its account any longer.
    LetGo {
        of: Arc<Workload>,
    },
}

/// What a write is for; events say it to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Started {
        queue: String,
    },
    Stopped {
        message: String,
    },
    Restored,
    Adopted,
    Resized,
    Requeued {
        message: String,
    },
    /// Back in line, with what its job asks for now.
    Queued,
    QueueChanged,
    PriorityChanged,
    Withdrawn,
    Returned,
    Reclaimed,
    /// So many slices now count as part of their Workload.
    Folded(usize),
    ScaledDown,
    /// A slice that was told to leave holds nothing any longer.
    SliceReleased,
    /// The spec says what is admitted.
    SizeSettled,
    SizeTold,
    PodsReady,
    Finished,
    FailedToStart {
        message: String,
    },
    OutOfSync,
}

pub fn decide<J: JobKind>(seen: &Observed<'_, J>, now: Timestamp) -> Step<J> {
    let job = seen.job;
    if job.metadata().deletion_timestamp.is_some() {
        return seen.workloads.iter().find(|w| is_held(w)).map_or(Step::Nothing, let_go);
    }
    let Some((workload, extra)) = seen.workloads.split_first() else { return without_workload(seen) };
    if let Some(other) = extra.iter().find(|w| w.metadata.deletion_timestamp.is_none() && !is_finished(w)) {
        return Step::Delete { of: other.clone() };
    }
    let one = One { seen, workload, now };
    match () {
        () if is_finished(workload) => one.finished(),
        () if workload.metadata.deletion_timestamp.is_some() => one.workload_deleted(),
        () if !one.is_adopted() => one.adopt(),
        () if job.end().is_some() => one.finish(),
        () if workload.is(WorkloadCondition::Evicted) => one.evicted(),
        () => one.progress(),
    }
}

fn is_held(workload: &Workload) -> bool {
    workload.metadata.finalizers.iter().flatten().any(|f| f == keys::RESOURCE_IN_USE)
}

fn is_finished(workload: &Workload) -> bool {
    workload.is(WorkloadCondition::Finished)
}

fn is_leaving(workload: &Workload) -> bool {
    workload.is(WorkloadCondition::Evicted)
}

fn change_of(what: What) -> Change {
    match what {
        What::Folded(count) => Change::Folded(count),
        What::ScaledDown => Change::ScaledDown,
        What::Told => Change::SizeTold,
    }
}

fn let_go<J>(of: &Arc<Workload>) -> Step<J> {
    Step::LetGo { of: of.clone() }
}

fn noted<'j, J: JobKind>(job: &'j J, key: &str) -> Option<&'j str> {
    job.metadata().annotations.as_ref()?.get(key).map(String::as_str)
}

/// The Workload a job names as made beforehand.
pub fn prebuilt_name<J: JobKind>(job: &J) -> Option<&str> {
    let labelled = || job.metadata().labels.as_ref()?.get(label::PREBUILT_WORKLOAD).map(String::as_str);
    noted(job, annotation::PREBUILT_WORKLOAD).or_else(labelled).filter(|name| !name.is_empty())
}

pub fn queue_name<J: JobKind>(job: &J) -> Option<&str> {
    job.metadata().labels.as_ref()?.get(label::QUEUE_NAME).map(String::as_str).filter(|name| !name.is_empty())
}

fn without_workload<J: JobKind>(seen: &Observed<'_, J>) -> Step<J> {
    let job = seen.job;
    if job.end().is_some() {
        return Step::Nothing;
    }
    if !job.is_suspended() {
        let message = match prebuilt_name(job) {
            Some(_) => "missing workload",
            None => "Missing Workload; unable to restore pod templates",
        };
        return stop(job, message);
    }
    let (Some(priority), None) = (seen.priority, prebuilt_name(job)) else { return Step::Nothing };
    // What ran before on nobody's account must be gone before quota is asked for.
    if job.has_pods() { Step::Nothing } else { Step::Create(Box::new(workload_for(job, priority))) }
}

/// The Workload of a job, as it is made.
pub fn workload_for<J: JobKind>(job: &J, priority: &Priority) -> Workload {
    let meta = job.metadata();
    let (name, uid) = (meta.name.clone().unwrap_or_default(), meta.uid.clone().unwrap_or_default());
    let group = J::API_VERSION.split_once('/').map_or("", |(group, _)| group);
    let owner = Owner { kind: J::KIND, group, name: &name, uid: &uid };
    let passed_on = meta.annotations.iter().flatten().filter(|(key, _)| {
        let others = [annotation::ADMISSION_GATED_BY, annotation::ELASTIC_JOB];
        key.starts_with(annotation::PROVISIONING_PREFIX) || others.contains(&key.as_str())
    });
    let mut annotations: BTreeMap<String, String> = passed_on.map(|(k, v)| (k.clone(), v.clone())).collect();
    if job.is_elastic() {
        annotations.insert(annotation::ELASTIC_JOB.to_owned(), keys::TRUE.to_owned());
    }
    Workload {
        metadata: ObjectMeta {
            name: Some(names::for_owner(&owner, "")),
            namespace: meta.namespace.clone(),
            labels: Some([(label::JOB_UID.to_owned(), uid.clone())].into()),
            annotations: Some(annotations).filter(|map| !map.is_empty()),
            finalizers: Some(vec![keys::RESOURCE_IN_USE.to_owned()]),
            owner_references: Some(vec![owner_reference::<J>(&name, &uid)]),
            ..ObjectMeta::default()
        },
        spec: spec_for(job, priority, Some(true)),
        status: WorkloadStatus::default(),
    }
}

fn owner_reference<J: JobKind>(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: J::API_VERSION.to_owned(),
        kind: J::KIND.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn spec_for<J: JobKind>(job: &J, priority: &Priority, active: Option<bool>) -> WorkloadSpec {
    WorkloadSpec {
        pod_sets: job.pod_sets(),
        queue_name: queue_name(job).unwrap_or_default().to_owned(),
        priority_class_ref: priority.class.clone(),
        priority: Some(priority.value),
        active,
        maximum_execution_time_seconds: shape::max_run_secs(job),
        ..WorkloadSpec::default()
    }
}

/// Suspends a job, marked as queueing's own doing.
fn stop<J: JobKind>(job: &J, message: &str) -> Step<J> {
    let mut to = job.clone();
    to.set_suspended(true);
    let notes = to.metadata_mut().annotations.get_or_insert_default();
    notes.insert(annotation::STOPPING.to_owned(), keys::TRUE.to_owned());
    Step::Job { to: Box::new(to), change: Change::Stopped { message: message.to_owned() } }
}

/// A job that has its one Workload.
struct One<'a, J> {
    seen: &'a Observed<'a, J>,
    workload: &'a Arc<Workload>,
    now: Timestamp,
}

impl<J: JobKind> One<'_, J> {
    fn job(&self) -> &J {
        self.seen.job
    }

    fn status(&self, to: Transition, change: Change) -> Step<J> {
        Step::Status { of: self.workload.clone(), to: Box::new(to.status), change }
    }

    fn transition(&self) -> Transition {
        Transition::of(self.workload, self.now)
    }

    fn is_reserved(&self) -> bool {
        self.workload.is(WorkloadCondition::QuotaReserved)
    }

    fn is_admitted(&self) -> bool {
        self.workload.is(WorkloadCondition::Admitted)
    }

    /// Whether queueing, and not its owner, suspended it.
    fn is_stopping(&self) -> bool {
        noted(self.job(), annotation::STOPPING) == Some(keys::TRUE)
    }

    /// Whether it carries what an admission added.
    fn carries_addition(&self) -> bool {
        noted(self.job(), ADMITTED_BY).is_some()
    }

    fn was_started_for_this(&self) -> bool {
        noted(self.job(), ADMITTED_BY) == self.workload.metadata.uid.as_deref()
    }

    /// Why it was deactivated: by the suspension of its job, or by anything else.
    fn is_withdrawn(&self) -> bool {
        let target = conditions::find(&self.workload.status.conditions, WorkloadCondition::DeactivationTarget.as_str());
        let evicted = conditions::find(&self.workload.status.conditions, WorkloadCondition::Evicted.as_str());
        let cause = DeactivationCause::JobSuspended;
        !self.workload.is_active()
            && (target.is_some_and(|c| c.reason == cause.as_str())
                || evicted.is_some_and(|c| c.reason == cause.eviction().as_str()))
    }

    fn is_adopted(&self) -> bool {
        let owners = self.workload.metadata.owner_references.iter().flatten();
        let uid = self.job().metadata().uid.as_deref().unwrap_or_default();
        owners.into_iter().any(|owner| owner.uid == uid)
    }

    /// A Workload that was made beforehand becomes the job's.
    fn adopt(&self) -> Step<J> {
        if self.workload.metadata.owner_references.iter().flatten().any(|o| o.controller == Some(true)) {
            return if self.job().is_suspended() { Step::Nothing } else { stop(self.job(), "missing workload") };
        }
        Step::Spec { of: self.workload.clone(), to: Box::new(self.workload.spec.clone()), change: Change::Adopted }
    }

    /// What is left of a resize goes with the Workload it was for.
    fn without_slices(&self) -> Option<Step<J>> {
        let left = self.seen.slices.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none());
        let left: Vec<_> = left.cloned().collect();
        (!left.is_empty()).then_some(Step::DeleteSlices(left, Gone::Withdrawn))
    }

    fn is_elastic(&self) -> bool {
        self.seen.policy.elastic_jobs && self.job().is_elastic() && prebuilt_name(self.job()).is_none()
    }

    fn is_parent(&self) -> bool {
        self.workload.role() == Role::Parent
    }

    /// The spec says what is admitted: whichever Variant it moves to asks for as much.
    fn settle_size(&self) -> Option<Step<J>> {
        let admission = self.workload.status.admission.as_ref().filter(|_| self.is_parent() && self.is_elastic())?;
        let mut to = self.workload.spec.clone();
        for set in &mut to.pod_sets {
            let got = admission.pod_set_assignments.iter().find(|got| got.name == set.name);
            set.count = got.and_then(|got| got.count).unwrap_or(set.count);
        }
        let of = self.workload.clone();
        (to != of.spec).then(|| Step::Spec { of, to: Box::new(to), change: Change::SizeSettled })
    }

    /// It moves, or may at once start elsewhere: it takes what a Variant of it already has, and is resized there.
    fn takes_what_is_reserved(&self) -> bool {
        let has_quota = |v: &Arc<Workload>| v.is(WorkloadCondition::QuotaReserved) && !is_leaving(v) && v.is_active();
        self.is_parent()
            && self.is_elastic()
            && is_leaving(self.workload)
            && shape::is_same_at_another_size(self.job(), self.workload)
            && self.seen.variants.iter().any(has_quota)
    }

    /// An elastic job that runs is resized where it is.
    fn resize_in_place(&self) -> Step<J> {
        let variant = self.seen.variants.iter().find(|v| v.is(WorkloadCondition::Admitted) && !is_leaving(v));
        if self.is_parent() && variant.is_none() {
            // It is about to leave, and nothing is decided before that.
            return Step::Nothing;
        }
        let wanted = self.job().pod_sets();
        let elastic = Elastic {
            parent: self.workload,
            variant: variant.filter(|_| self.is_parent()).map(|variant| &**variant),
            slices: self.seen.slices,
            wanted: &wanted,
            replica_size: &|set| self.job().replica_size(set),
            pods_now: self.job().pods_now(),
            now: self.now,
        };
        match elastic.next() {
            None => Step::Nothing,
            Some(Resize::Create(slices)) => Step::CreateSlices(slices),
            Some(Resize::Delete(slices, why)) => Step::DeleteSlices(slices, why),
            Some(Resize::Release(of, to)) => Step::Status { of, to, change: Change::SliceReleased },
            Some(Resize::Spec(to)) => Step::Spec { of: self.workload.clone(), to, change: Change::SizeSettled },
            Some(Resize::Status(to, what)) => Step::Status { of: self.workload.clone(), to, change: change_of(what) },
            Some(Resize::Held(to, what)) => {
                let of = variant.unwrap_or(self.workload).clone();
                Step::Status { of, to, change: change_of(what) }
            }
        }
    }

    fn finished(&self) -> Step<J> {
        if let Some(step) = self.without_slices() {
            return step;
        }
        if is_held(self.workload) { let_go(self.workload) } else { Step::Nothing }
    }

    fn finish(&self) -> Step<J> {
        let Some(end) = self.job().end() else { return Step::Nothing };
        let reason = if end.succeeded { FinishedReason::Succeeded } else { FinishedReason::Failed };
        self.status(self.transition().finished(reason, &end.message), Change::Finished)
    }

    /// Someone deleted the Workload under the job: it stops, and is queued again with a new one.
    fn workload_deleted(&self) -> Step<J> {
        if let Some(step) = self.without_slices() {
            return step;
        }
        match self.wind_down("Workload is deleted") {
            Some(step) => step,
            None if is_held(self.workload) => let_go(self.workload),
            None => Step::Nothing,
        }
    }

    /// Eviction, in this order: suspend, wait for the pods to go, restore the template, give the quota back.
    fn evicted(&self) -> Step<J> {
        let evicted = conditions::find(&self.workload.status.conditions, WorkloadCondition::Evicted.as_str());
        let (reason, message) = evicted.map_or(("", ""), |c| (c.reason.as_str(), c.message.as_str()));
        if let Some(step) = self.without_slices() {
            return step;
        }
        if let Some(step) = self.wind_down(message).or_else(|| self.settle_size()) {
            return step;
        }
        if self.is_reserved() {
            let again = [EvictionReason::Preempted, EvictionReason::NodeFailures];
            let again = again.iter().any(|r| r.as_str() == reason);
            let to = self.transition().requeued(again, reason, message).quota_released(message);
            return self.status(to, Change::Requeued { message: message.to_owned() });
        }
        self.rest()
    }

    /// The steps until nothing of the job runs and its template is as it was; `None` when that is so.
    fn wind_down(&self, message: &str) -> Option<Step<J>> {
        let job = self.job();
        if !job.is_suspended() {
            return Some(stop(job, message));
        }
        if job.has_pods() {
            return Some(Step::Nothing);
        }
        self.carries_addition().then(|| self.restore())
    }

    /// As its Workload remembers it, without the marks of queueing, but for the one that it is to run again.
    fn restore(&self) -> Step<J> {
        let mut to = self.job().clone();
        to.restore(&self.workload.spec.pod_sets);
        if let Some(notes) = to.metadata_mut().annotations.as_mut() {
            notes.remove(ADMITTED_BY);
            if !self.is_withdrawn() {
                notes.remove(annotation::STOPPING);
            }
        }
        Step::Job { to: Box::new(to), change: Change::Restored }
    }

    /// Nothing of it runs, and it is not admitted: it may have changed, or its owner may want a suspended one to run again.
    fn rest(&self) -> Step<J> {
        if let Some(step) = self.without_slices() {
            return step;
        }
        if !shape::is_same(self.job(), self.workload) {
            return if self.takes_what_is_reserved() { Step::Nothing } else { self.resize() };
        }
        if let Some(step) = self.return_as_it_is_now() {
            return step;
        }
        if self.is_withdrawn() && self.is_stopping() {
            let mut to = self.workload.spec.clone();
            to.active = Some(true);
            return Step::Spec { of: self.workload.clone(), to: Box::new(to), change: Change::Returned };
        }
        self.wait()
    }

    /// It asks for what its job asks for again.
    fn return_as_it_is_now(&self) -> Option<Step<J>> {
        let kept_out = conditions::find(&self.workload.status.conditions, WorkloadCondition::Requeued.as_str());
        kept_out.filter(|c| c.status == "False" && c.reason == JOB_CHANGED)?;
        let to = self.transition().requeued(true, JOB_CHANGED, "The workload asks for what its job asks for");
        Some(self.status(to, Change::Queued))
    }

    fn progress(&self) -> Step<J> {
        let job = self.job();
        if let Some(step) = self.follow_counts() {
            return step;
        }
        match (job.is_suspended(), self.is_admitted()) {
            (true, true) if self.was_started_for_this() && !self.is_stopping() => self.withdraw(),
            (true, true) if self.was_started_for_this() || self.carries_addition() => self.change_under_way(),
            (true, true) if shape::is_same(job, self.workload) => self.start(),
            (true, true)
                if self.is_parent() && self.is_elastic() && shape::is_same_at_another_size(job, self.workload) =>
            {
                self.start()
            }
            (true, _) => self.rest(),
            (false, true) if !self.was_started_for_this() => stop(job, "Not admitted by cluster queue"),
            (false, true) if self.is_elastic() && shape::is_same_but_for_counts(job, self.workload) => {
                self.resize_in_place()
            }
            (false, true) if !shape::is_running(job, self.workload, self.seen.flavors) => {
                stop(job, "No matching Workload; restoring pod templates according to existent Workload")
            }
            (false, true) => Step::Nothing,
            (false, false) => stop(job, "Not admitted by cluster queue"),
        }
    }

    /// Counts that follow the job at any time: pods that are done with, pods that are ready.
    fn follow_counts(&self) -> Option<Step<J>> {
        let reclaimable = self.reclaimable();
        if reclaimable != self.workload.status.reclaimable_pods && self.is_reserved() {
            let mut to = self.transition();
            to.status.reclaimable_pods = reclaimable;
            return Some(self.status(to, Change::Reclaimed));
        }
        let now = conditions::find(&self.workload.status.conditions, WorkloadCondition::PodsReady.as_str());
        // Until it is admitted, nothing said means the same as not ready.
        if self.seen.policy.pods_ready.is_none() || (now.is_none() && !self.is_admitted()) {
            return None;
        }
        let (ready, reason, message) = self.pods_ready();
        let same = now.is_some_and(|c| (c.status == "True") == ready && c.reason == reason.as_str());
        (!same).then(|| self.status(self.transition().pods_ready(ready, reason.as_str(), message), Change::PodsReady))
    }

    /// Never more than a pod set has, and never less than was said before.
    fn reclaimable(&self) -> Vec<usher_api::kueue::workload_status::ReclaimablePod> {
        // Counts of an elastic job say themselves what it needs.
        if self.is_elastic() {
            return self.workload.status.reclaimable_pods.clone();
        }
        let mut pods = self.job().reclaimable();
        for pod in &mut pods {
            let set = self.workload.spec.pod_sets.iter().find(|set| set.name == pod.name);
            pod.count = pod.count.min(set.map_or(0, |set| set.count));
            let said = self.workload.status.reclaimable_pods.iter().find(|said| said.name == pod.name);
            pod.count = pod.count.max(said.map_or(0, |said| said.count));
        }
        if pods.is_empty() { self.workload.status.reclaimable_pods.clone() } else { pods }
    }

    fn pods_ready(&self) -> (bool, PodsReadyReason, &'static str) {
        let before = conditions::find(&self.workload.status.conditions, WorkloadCondition::PodsReady.as_str());
        let before = before.and_then(|c| PodsReadyReason::parse(&c.reason));
        let recovering = matches!(before, Some(PodsReadyReason::WaitForRecovery | PodsReadyReason::Recovered));
        const NOT_READY: &str = "Not all pods are ready or succeeded";
        const FAILED: &str = "At least one pod has failed, waiting for recovery";
        const READY: &str = "All pods reached readiness and the workload is running";
        if !self.is_admitted() {
            return (false, PodsReadyReason::WaitForStart, NOT_READY);
        }
        match (self.job().are_pods_ready(self.pods_to_be_ready()), before) {
            (true, _) if recovering => (true, PodsReadyReason::Recovered, READY),
            (true, _) => (true, PodsReadyReason::Started, READY),
            (false, Some(PodsReadyReason::Started | PodsReadyReason::Recovered | PodsReadyReason::WaitForRecovery)) => {
                (false, PodsReadyReason::WaitForRecovery, FAILED)
            }
            (false, _) => (false, PodsReadyReason::WaitForStart, NOT_READY),
        }
    }

    /// An elastic job is judged by what it was admitted with, never by what it asks for.
    fn pods_to_be_ready(&self) -> i32 {
        if !self.is_elastic() {
            return self.job().pod_sets().iter().map(|set| set.count).sum();
        }
        let admission = self.workload.status.admission.iter();
        admission.flat_map(|a| &a.pod_set_assignments).map(|a| a.count.unwrap_or(0)).sum()
    }

    /// One PATCH that starts the job as it was admitted.
    fn start(&self) -> Step<J> {
        let queue = self.workload.status.admission.as_ref().map_or(String::new(), |a| a.cluster_queue.clone());
        let mut to = self.job().clone();
        let added = additions(self.workload, self.seen.flavors).and_then(|added| to.add(&added));
        match added {
            Ok(()) => {
                to.set_suspended(false);
                if self.is_elastic() {
                    to.gate_pods();
                }
                let notes = to.metadata_mut().annotations.get_or_insert_default();
                notes.insert(ADMITTED_BY.to_owned(), self.workload.metadata.uid.clone().unwrap_or_default());
                notes.remove(annotation::STOPPING);
                Step::Job { to: Box::new(to), change: Change::Started { queue } }
            }
            Err(AdditionError::NoFlavor { .. } | AdditionError::OtherPodSets { .. }) => Step::Nothing,
            Err(error) => {
                let message = error.to_string();
                let to = self.transition().finished(FinishedReason::FailedToStart, &message);
                self.status(to, Change::FailedToStart { message })
            }
        }
    }

    /// Its owner suspended a running job: its quota goes to others, and it waits until it is wanted again.
    fn withdraw(&self) -> Step<J> {
        if self.workload.is(WorkloadCondition::DeactivationTarget) {
            return Step::Nothing;
        }
        let message = "The job was suspended by its owner; unsuspend it to queue it again";
        self.status(self.transition().deactivated(DeactivationCause::JobSuspended, message), Change::Withdrawn)
    }

    /// It was stopped because it is no longer what was admitted: once its pods are gone it is queued again as it is now.
    fn change_under_way(&self) -> Step<J> {
        match self.without_slices().or_else(|| self.wind_down("")) {
            Some(step) => step,
            None => self.resize(),
        }
    }

    /// The job asks for something else than its Workload says. Quota that was reserved for what it was is given back first.
    fn resize(&self) -> Step<J> {
        if prebuilt_name(self.job()).is_some() {
            let to = self
                .transition()
                .finished(FinishedReason::OutOfSync, "The prebuilt workload is out of sync with its user job");
            return self.status(to, Change::OutOfSync);
        }
        if self.is_reserved() {
            let message = "The job has changed; it is queued again as it is now";
            let to = self.transition().requeued(false, JOB_CHANGED, message).quota_released(message);
            return self.status(to, Change::Requeued { message: message.to_owned() });
        }
        let Some(priority) = self.seen.priority else { return Step::Nothing };
        let to = spec_for(self.job(), priority, self.workload.spec.active);
        let to = WorkloadSpec {
            preemption_gates: self.workload.spec.preemption_gates.clone(),
            admission_constraints: self.workload.spec.admission_constraints.clone(),
            ..to
        };
        Step::Spec { of: self.workload.clone(), to: Box::new(to), change: Change::Resized }
    }

    /// Nothing runs, and nothing is admitted: the marks of a stop are wiped, and queue and priority follow the job.
    fn wait(&self) -> Step<J> {
        if self.is_stopping() && !self.job().has_pods() {
            return self.restore();
        }
        let mut to = self.workload.spec.clone();
        if let Some(queue) = queue_name(self.job()).filter(|queue| *queue != to.queue_name && !self.is_reserved()) {
            to.queue_name = queue.to_owned();
            return Step::Spec { of: self.workload.clone(), to: Box::new(to), change: Change::QueueChanged };
        }
        let Some(priority) = self.seen.priority.filter(|_| !self.is_reserved()) else { return Step::Nothing };
        if (&to.priority_class_ref, to.priority) == (&priority.class, Some(priority.value)) {
            return Step::Nothing;
        }
        (to.priority_class_ref, to.priority) = (priority.class.clone(), Some(priority.value));
        Step::Spec { of: self.workload.clone(), to: Box::new(to), change: Change::PriorityChanged }
    }
}
