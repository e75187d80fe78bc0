//! Carries out what [`decide`](super::decide) says about the jobs of one kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::Request;
use parking_lot::Mutex;
use serde_json::{Value, json};
use usher_api::kueue::conditions::{self, WorkloadCondition};
use usher_api::kueue::keys::label;
use usher_api::kueue::workload::{PriorityClassRef, Role};
use usher_api::kueue::workload_status::WorkloadStatus;
use usher_api::kueue::{ResourceFlavor, Workload, WorkloadPriorityClass};
use usher_api::ray::RayCluster;
use usher_env::Clock;

use super::decide::{Change, Observed, Priority, Step, decide, prebuilt_name, queue_name};
use super::elastic::Gone;
use super::guarded::{Guarded, revision};
use super::kind::JobKind;
use super::merge_patch;
use super::policy::Policy;
use crate::runtime::objects::{is_already_exists, is_conflict, is_invalid, is_not_found};
use crate::runtime::{
    Awaited, GroupResource, Index, Key, Meta, Outcome, QueueMetrics, Recorder, Signal, Store, Tasks, Watches, WorkQueue,
};

const WORKERS: usize = 8;
/// Slices written at once, of one job.
const SLICES: usize = 16;

/// Where the kinds that queueing reads are.
pub(super) fn kueue(plural: &str) -> GroupResource {
    GroupResource::new("kueue.x-k8s.io", plural)
}

pub(super) struct Jobs<J> {
    client: Client,
    writes: Guarded,
    clock: Clock,
    policy: Policy,
    watches: Watches,
    recorder: Recorder,
    jobs: Store<J>,
    /// Kinds of jobs that may own others.
    batch: Store<Job>,
    rays: Store<RayCluster>,
    workloads: Store<Workload>,
    /// By the uid of the object that controls them.
    owned: Index<Workload>,
    /// By the flavors they are admitted on.
    on_flavor: Index<Workload>,
    flavors: Store<ResourceFlavor>,
    classes: Store<WorkloadPriorityClass>,
    pod_classes: Store<PriorityClass>,
    /// The newest revisions this wrote, job by job: nothing is decided on caches that are older.
    wrote: Mutex<BTreeMap<Key, Wrote>>,
    /// Slices that were deleted and may still be in the caches, by the uid of their Workload: gone is gone.
    gone: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

#[derive(Clone, Copy, Default)]
struct Wrote {
    job: u64,
    workload: u64,
}

impl Wrote {
    fn workload(revision: u64) -> Wrote {
        Wrote { workload: revision, ..Wrote::default() }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Starts the controller of one kind of jobs.
pub(super) fn start<J: JobKind>(
    client: &Client,
    clock: &Clock,
    policy: &Policy,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    let component = format!("{}/{}-kueue-controller", J::resource().group, J::KIND.to_lowercase());
    let workloads: Store<Workload> = watches.view(&kueue("workloads"));
    let jobs = Arc::new(Jobs::<J> {
        client: client.clone(),
        writes: Guarded::new(client),
        clock: clock.clone(),
        policy: policy.clone(),
        watches: watches.clone(),
        recorder: Recorder::new(client, clock, &component, tasks),
        jobs: watches.view(&J::resource()),
        batch: watches.view(&Job::resource()),
        rays: watches.view(&RayCluster::resource()),
        owned: workloads.index(|w| controller_uid(w).into_iter().collect()),
        on_flavor: workloads.index(assigned_flavors),
        workloads,
        flavors: watches.view(&kueue("resourceflavors")),
        classes: watches.view(&kueue("workloadpriorityclasses")),
        pod_classes: watches.view(&GroupResource::new("scheduling.k8s.io", "priorityclasses")),
        wrote: Mutex::default(),
        gone: Mutex::default(),
    });
    let queue: WorkQueue<Key> = WorkQueue::new(&J::KIND.to_lowercase(), metrics);
    let mut signals = watches.subscribe(|resource| {
        resource.id == J::resource()
            || ["workloads", "resourceflavors", "workloadpriorityclasses"].iter().any(|p| resource.id == kueue(p))
            || resource.id.is("scheduling.k8s.io", "priorityclasses")
    });
    let kinds = ["workloads", "resourceflavors", "workloadpriorityclasses"].map(kueue);
    let pod_classes = GroupResource::new("scheduling.k8s.io", "priorityclasses");
    let mut awaited = Awaited::new(kinds.into_iter().chain([J::resource(), pod_classes]));
    let tasks_of_queue = tasks.clone();
    tasks.spawn(async move {
        while let Some(signal) = signals.recv().await {
            if awaited.ends_with(&signal) {
                // Not before everything is listed: a job that runs, and whose Workload is not there yet, would be stopped.
                let worker = jobs.clone();
                queue.run(WORKERS, &tasks_of_queue, move |key| {
                    let jobs = worker.clone();
                    async move { jobs.sync(&key).await }
                });
            }
            for key in jobs.concerned(&signal) {
                queue.add(key);
            }
        }
    });
}

pub(super) fn controller_uid(workload: &Workload) -> Option<Arc<str>> {
    let owners = workload.metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str().into())
}

fn assigned_flavors(workload: &Workload) -> Vec<Arc<str>> {
    let assignments = workload.status.admission.iter().flat_map(|a| &a.pod_set_assignments);
    let mut names: Vec<Arc<str>> =
        assignments.flat_map(|a| a.flavors.values()).map(|name| name.as_str().into()).collect();
    names.sort();
    names.dedup();
    names
}

impl<J: JobKind> Jobs<J> {
    /// The jobs that a change may matter to.
    fn concerned(&self, signal: &Signal) -> Vec<Key> {
        match signal {
            Signal::Applied(resource, meta) | Signal::Deleted(resource, meta) => {
                if resource.id == J::resource() {
                    vec![meta.key()]
                } else if resource.id == kueue("workloads") {
                    self.job_of(meta)
                } else if resource.id == kueue("resourceflavors") {
                    self.on_flavor.get(&meta.name).iter().flat_map(|w| self.owner_of(w)).collect()
                } else {
                    // A class came, or changed: whoever names one looks again.
                    self.jobs.all().into_iter().map(|(key, _)| key).collect()
                }
            }
            Signal::Synced(resource) if resource.id == J::resource() || resource.id == kueue("workloads") => {
                self.jobs.all().into_iter().map(|(key, _)| key).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The job that a Workload belongs to, or that names it as made beforehand.
    fn job_of(&self, workload: &Meta) -> Vec<Key> {
        let owner = workload.owner_references.iter().find(|o| o.controller == Some(true));
        if let Some(owner) = owner.filter(|owner| &*owner.kind == "Workload") {
            let parent = self.workloads.get(&Key::new(&workload.namespace, &owner.name));
            return parent.and_then(|parent| self.owner_of(&parent)).into_iter().collect();
        }
        if let Some(owner) = owner {
            let is_ours = &*owner.kind == J::KIND && &*owner.api_version == J::API_VERSION;
            return is_ours.then(|| Key::new(&workload.namespace, &owner.name)).into_iter().collect();
        }
        let names_it = |(key, job): (Key, Arc<J>)| {
            (key.namespace == workload.namespace && prebuilt_name(&*job) == Some(&*workload.name)).then_some(key)
        };
        self.jobs.all().into_iter().filter_map(names_it).collect()
    }

    fn owner_of(&self, workload: &Workload) -> Option<Key> {
        let owner = workload.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true))?;
        let is_ours = owner.kind == J::KIND && owner.api_version == J::API_VERSION;
        is_ours.then(|| Key::new(workload.metadata.namespace.as_deref().unwrap_or_default(), &owner.name))
    }

    async fn sync(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(job) = self.jobs.get(key) else {
            self.wrote.lock().remove(key);
            return Ok(Outcome::Settled);
        };
        if queue_name(&*job).is_none() || self.follows_its_owner(&*job) || !self.is_fresh(key) {
            // Not ours; or the caches do not show our last write yet, and its event will bring us back.
            return Ok(Outcome::Settled);
        }
        let step = self.decide(key, &*job);
        self.carry_out(key, &job, step).await?;
        Ok(Outcome::Settled)
    }

    /// Whether it belongs to a job that is queued itself: that one was admitted for both.
    fn follows_its_owner(&self, job: &J) -> bool {
        let meta = job.metadata();
        let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let Some(owner) = owner else { return false };
        let key = Key::new(meta.namespace.as_deref().unwrap_or_default(), &owner.name);
        let is = |api_version: &str, kind: &str| owner.api_version == api_version && owner.kind == kind;
        (is(Job::API_VERSION, Job::KIND) && self.batch.get(&key).is_some_and(|job| queue_name(&*job).is_some()))
            || (is(RayCluster::API_VERSION, RayCluster::KIND)
                && self.rays.get(&key).is_some_and(|cluster| queue_name(&*cluster).is_some()))
    }

    fn decide(&self, key: &Key, job: &J) -> Step<J> {
        let workloads = self.workloads_of(key, job);
        let priority = self.priority(job, &workloads);
        let slices = workloads.first().map_or_else(Vec::new, |workload| self.slices_of(workload));
        let variants = workloads.first().map_or_else(Vec::new, |workload| self.variants_of(workload));
        let flavors = |name: &str| self.flavors.get(&Key::new("", name));
        let seen = Observed {
            job,
            workloads: &workloads,
            slices: &slices,
            variants: &variants,
            flavors: &flavors,
            priority: priority.as_ref().ok(),
            policy: &self.policy,
        };
        let step = decide(&seen, self.clock.now());
        if let (Step::Nothing, Err(class)) = (&step, &priority) {
            let message = format!("WorkloadPriorityClass {class:?} not found");
            self.recorder.warning(reference(job), "WorkloadPriorityClassNotFound", message);
        }
        step
    }

    fn is_fresh(&self, key: &Key) -> bool {
        let Some(wrote) = self.wrote.lock().get(key).copied() else { return true };
        wrote.job <= self.watches.seen(&J::resource()) && wrote.workload <= self.watches.seen(&kueue("workloads"))
    }

    fn workloads_of(&self, key: &Key, job: &J) -> Vec<Arc<Workload>> {
        if let Some(name) = prebuilt_name(job) {
            return self.workloads.get(&Key::new(&key.namespace, name)).into_iter().collect();
        }
        let mut owned = self.owned.get(job.metadata().uid.as_deref().unwrap_or_default());
        owned.sort_by(|a, b| {
            let age = |w: &Workload| w.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (age(a), &a.metadata.name).cmp(&(age(b), &b.metadata.name))
        });
        owned
    }

    fn variants_of(&self, workload: &Workload) -> Vec<Arc<Workload>> {
        if workload.role() != Role::Parent {
            return Vec::new();
        }
        let mut owned = self.owned.get(workload.metadata.uid.as_deref().unwrap_or_default());
        owned.retain(|variant| variant.role() == Role::Variant && variant.metadata.deletion_timestamp.is_none());
        owned
    }

    fn slices_of(&self, workload: &Workload) -> Vec<Arc<Workload>> {
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        let mut owned = self.owned.get(uid);
        owned.retain(|slice| slice.role() == Role::Slice);
        let mut all = self.gone.lock();
        if let Some(gone) = all.get_mut(uid) {
            let cached: BTreeSet<&str> = owned.iter().filter_map(|slice| slice.metadata.uid.as_deref()).collect();
            gone.retain(|uid| cached.contains(uid.as_str()));
            owned.retain(|slice| slice.metadata.uid.as_ref().is_none_or(|uid| !gone.contains(uid)));
        }
        all.retain(|_, gone| !gone.is_empty());
        owned
    }

    /// The priority a job's classes give it; the name of its class if that does not exist.
    fn priority(&self, job: &J, workloads: &[Arc<Workload>]) -> Result<Priority, String> {
        let labels = job.metadata().labels.as_ref();
        if let Some(name) = labels.and_then(|l| l.get(label::PRIORITY_CLASS)).filter(|name| !name.is_empty()) {
            let class = self.classes.get(&Key::new("", name)).ok_or_else(|| name.clone())?;
            return Ok(Priority { class: Some(PriorityClassRef::workload(name)), value: class.value });
        }
        let sets = workloads.first().map_or_else(|| job.pod_sets(), |w| w.spec.pod_sets.clone());
        let named = sets.iter().filter_map(|set| set.template.spec.as_ref()?.priority_class_name.clone());
        match named.into_iter().find(|name| !name.is_empty()) {
            Some(name) => {
                let class = self.pod_classes.get(&Key::new("", &name));
                let value = class.and_then(|class| class.value).unwrap_or(0);
                Ok(Priority { class: Some(PriorityClassRef::pod(&name)), value })
            }
            None => Ok(self.default_priority()),
        }
    }

    fn default_priority(&self) -> Priority {
        let all = self.pod_classes.all();
        let default = all.iter().find(|(_, class)| class.global_default == Some(true));
        default.map_or_else(Priority::default, |(key, class)| Priority {
            class: Some(PriorityClassRef::pod(&key.name)),
            value: class.value.unwrap_or(0),
        })
    }

    async fn carry_out(&self, key: &Key, job: &J, step: Step<J>) -> Result<(), Error> {
        let about = reference(job);
        let wrote = match step {
            Step::Nothing => return Ok(()),
            Step::Create(workload) => self.create(about, key, &workload).await?,
            Step::Job { to, change } => self.write_job(about, key, job, &to, &change).await?,
            Step::Spec { of, to, change } => {
                let wrote = if change == Change::Adopted {
                    let adopt = json!({"metadata": {
                        "ownerReferences": [owner::<J>(job)], "labels": {label::JOB_UID: job.metadata().uid}}});
                    self.writes.patch(&of, adopt).await?
                } else {
                    self.writes.spec(&of, &to).await?
                };
                let done = wrote.map(Wrote::workload);
                self.tell_spec(about, &of, &change, done);
                done
            }
            Step::Status { of, to, change } => {
                let done = self.writes.status(&of, &to).await?.map(Wrote::workload);
                if done.is_some() {
                    self.tell_status(about, &of, &to, &change);
                }
                done
            }
            Step::Delete { of } => {
                self.writes.delete(&of).await?;
                self.recorder.normal(
                    about,
                    "DeletedWorkload",
                    format!("Deleted not matching Workload: {}", place(&of)),
                );
                None
            }
            Step::CreateSlices(slices) => {
                let wrote = self.create_slices(key, &slices).await?;
                let message = format!("Asked for {} more replicas", slices.len());
                self.recorder.normal(about, "ScaleUpRequested", message);
                wrote
            }
            Step::DeleteSlices(slices, why) => {
                self.delete_slices(&slices).await?;
                if why == Gone::Withdrawn {
                    let message = format!("Withdrew {} replicas that were not admitted yet", slices.len());
                    self.recorder.normal(about, "ScaleUpWithdrawn", message);
                }
                None
            }
            Step::LetGo { of } => self.writes.let_go(&of).await?.map(Wrote::workload),
        };
        if let Some(wrote) = wrote {
            let mut all = self.wrote.lock();
            let known = all.entry(key.clone()).or_default();
            (known.job, known.workload) = (known.job.max(wrote.job), known.workload.max(wrote.workload));
        }
        Ok(())
    }

    async fn create(&self, about: ObjectReference, key: &Key, workload: &Workload) -> Result<Option<Wrote>, Error> {
        let api = Api::<Workload>::namespaced(self.client.clone(), &key.namespace);
        match api.create(&Default::default(), workload).await {
            Ok(made) => {
                self.recorder.normal(about, "CreatedWorkload", format!("Created Workload: {}", place(&made)));
                Ok(Some(Wrote::workload(revision(made.metadata.resource_version.as_deref()))))
            }
            // Made before a restart; the watch will show it.
            Err(error) if is_already_exists(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn create_slices(&self, key: &Key, slices: &[Workload]) -> Result<Option<Wrote>, Error> {
        let mut all: Vec<BoxFuture<'_, Result<u64, Error>>> = Vec::new();
        for slice in slices {
            all.push(Box::pin(self.create_slice(key, slice)));
        }
        let made: Vec<u64> = futures::stream::iter(all).buffer_unordered(SLICES).try_collect().await?;
        Ok(made.into_iter().max().map(Wrote::workload))
    }

    async fn create_slice(&self, key: &Key, slice: &Workload) -> Result<u64, Error> {
        let api = Api::<Workload>::namespaced(self.client.clone(), &key.namespace);
        match api.create(&Default::default(), slice).await {
            Ok(made) => Ok(revision(made.metadata.resource_version.as_deref())),
            Err(error) if is_already_exists(&error) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete_slices(&self, slices: &[Arc<Workload>]) -> Result<(), Error> {
        let all: Vec<BoxFuture<'_, Result<(), Error>>> =
            slices.iter().map(|slice| -> BoxFuture<'_, _> { Box::pin(self.delete_slice(slice)) }).collect();
        futures::stream::iter(all).buffer_unordered(SLICES).try_collect::<()>().await
    }

    async fn delete_slice(&self, slice: &Workload) -> Result<(), Error> {
        self.writes.delete(slice).await?;
        if let (Some(parent), Some(uid)) = (slice.parent_uid(), &slice.metadata.uid) {
            self.gone.lock().entry(parent.to_owned()).or_default().insert(uid.clone());
        }
        Ok(())
    }

    fn tell_status(&self, about: ObjectReference, of: &Workload, to: &WorkloadStatus, change: &Change) {
        let admission = to.admission.iter().flat_map(|a| &a.pod_set_assignments);
        let admitted: i32 = admission.map(|a| a.count.unwrap_or(0)).sum();
        self.tell_change(about.clone(), of, admitted, change);
        let resizing = WorkloadCondition::ResizeRequested;
        let over = conditions::find(&to.conditions, resizing.as_str()).filter(|c| c.status == "False");
        if let Some(over) = over.filter(|_| of.is(resizing)) {
            self.recorder.normal(about, "Resized", over.message.clone());
        }
    }

    fn tell_change(&self, about: ObjectReference, of: &Workload, admitted: i32, change: &Change) {
        match change {
            Change::Finished => {
                let message = format!("Workload '{}' is declared finished", place(of));
                self.recorder.normal(about, "FinishedWorkload", message);
            }
            Change::Folded(more) => {
                self.recorder.normal(about, "ScaledUp", format!("{more} more replicas admitted, {admitted} in all"));
            }
            Change::ScaledDown => {
                self.recorder.normal(about, "ScaledDown", format!("Quota is kept for {admitted} replicas from now on"));
            }
            _ => {}
        }
    }

    /// The difference, in one PATCH that holds only for the job as it was seen.
    async fn write_job(
        &self,
        about: ObjectReference,
        key: &Key,
        from: &J,
        to: &J,
        change: &Change,
    ) -> Result<Option<Wrote>, Error> {
        let diff = merge_patch::diff(&serde_json::to_value(from)?, &serde_json::to_value(to)?);
        let Some(mut patch) = diff else { return Ok(None) };
        let meta = from.metadata();
        patch["metadata"]["uid"] = json!(meta.uid);
        patch["metadata"]["resourceVersion"] = json!(meta.resource_version);
        let path = format!("/apis/{}/namespaces/{}/{}", J::API_VERSION, key.namespace, J::resource().plural);
        let request = Request::new(path).patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch));
        let request = request.map_err(kube::Error::BuildRequest)?;
        match self.client.request::<Value>(request).await {
            Ok(stored) => {
                match change {
                    Change::Started { queue } => {
                        self.recorder.normal(about, "Started", format!("Admitted by clusterQueue {queue}"));
                    }
                    Change::Stopped { message } => self.recorder.normal(about, "Stopped", message.clone()),
                    _ => {}
                }
                let version = stored.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                Ok(Some(Wrote { job: revision(version), ..Wrote::default() }))
            }
            // Someone was faster, or it is gone: what happened brings us back here.
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(None),
            // The template is not open yet: the write that opens it will bring us back.
            Err(error) if is_invalid(&error) && *change == Change::Restored => {
                tracing::debug!(?key, %error, "the template cannot be restored yet");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn tell_spec(&self, about: ObjectReference, of: &Workload, change: &Change, done: Option<Wrote>) {
        if done.is_none() {
            return;
        }
        let message = match change {
            Change::Resized => format!("Updated not matching Workload for suspended job: {}", place(of)),
            Change::PriorityChanged => format!("Updated workload priority class: {}", place(of)),
            Change::QueueChanged => format!("Moved Workload to the job's new queue: {}", place(of)),
            Change::Returned => format!("Queued again because the job was unsuspended: {}", place(of)),
            _ => return,
        };
        self.recorder.normal(about, "UpdatedWorkload", message);
    }
}

fn owner<J: JobKind>(job: &J) -> Value {
    let meta = job.metadata();
    json!({"apiVersion": J::API_VERSION, "kind": J::KIND, "name": meta.name, "uid": meta.uid, "controller": true,
        "blockOwnerDeletion": true})
}

fn reference<J: JobKind>(job: &J) -> ObjectReference {
    let meta = job.metadata();
    ObjectReference {
        api_version: Some(J::API_VERSION.to_owned()),
        kind: Some(J::KIND.to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

fn place(workload: &Workload) -> String {
    let meta = &workload.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}
