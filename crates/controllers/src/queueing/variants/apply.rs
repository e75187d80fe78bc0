//! Carries out what [`decide`](super::decide) says about Parents and their Variants.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};
use usher_api::kueue::concurrent::{self, Policy};
use usher_api::kueue::conditions::WorkloadCondition;
use usher_api::kueue::keys::{self, annotation, label};
use usher_api::kueue::workload::Role;
use usher_api::kueue::{API_VERSION, ClusterQueue, LocalQueue, Workload};
use usher_env::Clock;

use super::decide::{Next, Seen, Step, decide};
use crate::queueing;
use crate::queueing::apply::{controller_uid, kueue, revision};
use crate::queueing::merge_patch;
use crate::queueing::scheduler::write::Told;
use crate::runtime::objects::{is_already_exists, is_conflict, is_not_found};
use crate::runtime::{
    Awaited, Index, Key, Meta, Outcome, QueueMetrics, Recorder, Signal, Store, Tasks, Watches, WorkQueue,
};

const WORKERS: usize = 8;

struct Families {
    /// The gate is on.
    races: bool,
    client: Client,
    clock: Clock,
    watches: Watches,
    recorder: Recorder,
    workloads: Store<Workload>,
    locals: Store<LocalQueue>,
    queues: Store<ClusterQueue>,
    /// By the uid of the object that controls them.
    owned: Index<Workload>,
    /// Those that are or may become Parents, by their LocalQueue as `namespace/name`.
    in_local: Index<Workload>,
    /// The newest revision this wrote of each family: nothing is decided on caches that are older.
    wrote: Mutex<BTreeMap<Key, u64>>,
    /// What was last heard of each ClusterQueue's policy.
    policies: Mutex<BTreeMap<Arc<str>, Option<Policy>>>,
}

pub(in crate::queueing) fn start(
    client: &Client,
    clock: &Clock,
    policy: &queueing::Policy,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    let workloads: Store<Workload> = watches.view(&kueue("workloads"));
    let all = Arc::new(Families {
        races: policy.concurrent_admission,
        client: client.clone(),
        clock: clock.clone(),
        watches: watches.clone(),
        recorder: Recorder::new(client, clock, "concurrent-admission-controller", tasks),
        locals: watches.view(&kueue("localqueues")),
        queues: watches.view(&kueue("clusterqueues")),
        owned: workloads.index(|w| controller_uid(w).into_iter().collect()),
        in_local: workloads.index(|w| local_of(w).into_iter().collect()),
        workloads,
        wrote: Mutex::default(),
        policies: Mutex::default(),
    });
    let queue: WorkQueue<Key> = WorkQueue::new("variants", metrics);
    let mut signals = watches.subscribe(|resource| {
        ["workloads", "localqueues", "clusterqueues"].iter().any(|plural| resource.id == kueue(plural))
    });
    let mut awaited = Awaited::new(["workloads", "localqueues", "clusterqueues"].map(kueue));
    let tasks_of_queue = tasks.clone();
    tasks.spawn(async move {
        while let Some(signal) = signals.recv().await {
            if awaited.ends_with(&signal) {
                // Not before everything is listed: a queue that is not there yet is not one without a policy.
                let worker = all.clone();
                queue.run(WORKERS, &tasks_of_queue, move |key| {
                    let all = worker.clone();
                    async move { all.sync(&key).await }
                });
            }
            for key in all.concerned(&signal) {
                queue.add(key);
            }
        }
    });
}

fn local_of(workload: &Workload) -> Option<Arc<str>> {
    let concerned =
        matches!(workload.role(), Role::Regular | Role::Parent) && !workload.is(WorkloadCondition::Finished);
    let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
    concerned.then(|| format!("{namespace}/{}", workload.spec.queue_name).into())
}

fn key_of(workload: &Workload) -> Key {
    let meta = &workload.metadata;
    Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

impl Families {
    /// The Parents that a change may matter to.
    fn concerned(&self, signal: &Signal) -> Vec<Key> {
        let (Signal::Applied(resource, meta) | Signal::Deleted(resource, meta)) = signal else { return Vec::new() };
        match &*resource.id.plural {
            "workloads" => vec![parent_of(meta)],
            "localqueues" => self.waiting_in(&meta.key()),
            "clusterqueues" => self.concerned_by_queue(meta),
            _ => Vec::new(),
        }
    }

    fn waiting_in(&self, local: &Key) -> Vec<Key> {
        let found = self.in_local.get(&format!("{}/{}", local.namespace, local.name));
        found.iter().map(|workload| key_of(workload)).collect()
    }

    fn concerned_by_queue(&self, meta: &Meta) -> Vec<Key> {
        let policy = self.queues.get(&meta.key()).and_then(|queue| concurrent::lower(&queue.spec));
        let before = self.policies.lock().insert(meta.name.clone(), policy.clone());
        if before == Some(policy) {
            return Vec::new();
        }
        let locals = self.locals.all().into_iter().filter(|(_, local)| local.spec.cluster_queue == *meta.name);
        locals.flat_map(|(key, _)| self.waiting_in(&key)).collect()
    }

    async fn sync(&self, key: &Key) -> Result<Outcome, kube::Error> {
        let Some(parent) = self.workloads.get(key) else {
            self.wrote.lock().remove(key);
            return Ok(Outcome::Settled);
        };
        let wrote = self.wrote.lock().get(key).copied().unwrap_or(0);
        if wrote > self.watches.seen(&kueue("workloads")) {
            // The event of our last write will bring us back.
            return Ok(Outcome::Settled);
        }
        let variants = self.owned.get(parent.metadata.uid.as_deref().unwrap_or_default());
        let variants: Vec<Arc<Workload>> = variants.into_iter().filter(|w| w.role() == Role::Variant).collect();
        let Some(policy) = self.policy(key, &parent) else { return Ok(Outcome::Settled) };
        let now = self.clock.now();
        let Next { step, again } = decide(&Seen { parent: &parent, variants: &variants, policy: policy.as_ref() }, now);
        if let Some(revision) = self.carry_out(key, &parent, step).await? {
            self.wrote.lock().insert(key.clone(), revision);
        }
        let after = again.and_then(|at| std::time::Duration::try_from(at.duration_since(now)).ok());
        Ok(after.map_or(Outcome::Settled, Outcome::After))
    }

    /// Of the queue that it waits in. A queue that is not there (yet, or any longer) leaves everything as it is: None.
    fn policy(&self, key: &Key, parent: &Workload) -> Option<Option<Policy>> {
        let local = self.locals.get(&Key::new(&key.namespace, &parent.spec.queue_name));
        let queue = local.and_then(|local| self.queues.get(&Key::new("", &local.spec.cluster_queue)));
        match queue {
            Some(queue) => Some(concurrent::lower(&queue.spec).filter(|_| self.races)),
            // Its end is its Variants' end.
            None => parent.is(WorkloadCondition::Finished).then_some(None),
        }
    }

    /// Carries out a step; the revision that was written, if any.
    async fn carry_out(&self, key: &Key, parent: &Arc<Workload>, step: Step) -> Result<Option<u64>, kube::Error> {
        match step {
            Step::Nothing => Ok(None),
            Step::Mark => self.patch(parent, marks(json!(keys::TRUE)), false).await,
            Step::Unmark => self.patch(parent, marks(Value::Null), false).await,
            Step::Create(variant) => self.create(key, parent, &variant).await,
            Step::Spec { of, to, told } => {
                let wrote = match difference(&of.spec, &*to)? {
                    Some(spec) => self.patch(&of, json!({ "spec": spec }), false).await?,
                    None => None,
                };
                self.tell(&of, told.filter(|_| wrote.is_some()));
                Ok(wrote)
            }
            Step::Status { of, to, told } => {
                let wrote = match difference(&of.status, &*to)? {
                    Some(status) => self.patch(&of, json!({ "status": status }), true).await?,
                    None => None,
                };
                self.tell(&of, told.filter(|_| wrote.is_some()));
                Ok(wrote)
            }
            Step::Delete { of } => {
                let api = Api::<Workload>::namespaced(self.client.clone(), &key.namespace);
                let only = Preconditions { uid: of.metadata.uid.clone(), resource_version: None };
                let how = DeleteParams { preconditions: Some(only), ..DeleteParams::background() };
                let name = of.metadata.name.as_deref().unwrap_or_default();
                match api.delete(name, &how).await {
                    Ok(_) => {
                        let message = format!("Deleted variant {name}");
                        self.tell(parent, Some(Told::normal("DeletedVariant", message)));
                        Ok(None)
                    }
                    Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn create(&self, key: &Key, parent: &Workload, variant: &Workload) -> Result<Option<u64>, kube::Error> {
        let api = Api::<Workload>::namespaced(self.client.clone(), &key.namespace);
        match api.create(&Default::default(), variant).await {
            Ok(made) => {
                let name = made.metadata.name.as_deref().unwrap_or_default();
                self.tell(parent, Some(Told::normal("CreatedVariant", format!("Created variant {name}"))));
                Ok(Some(revision(made.metadata.resource_version.as_deref())))
            }
            // Made before a restart, or of a Parent of the same name that is about to be collected: looked at again.
            Err(error) if is_already_exists(&error) => Err(error),
            Err(error) => Err(error),
        }
    }

    fn tell(&self, about: &Workload, told: Option<Told>) {
        if let Some(told) = told {
            told.tell(&self.recorder, kube::Resource::object_ref(about, &()));
        }
    }

    /// A patch that holds only for the Workload as it was seen. Somebody who was faster brings us back here.
    async fn patch(&self, of: &Workload, mut patch: Value, status: bool) -> Result<Option<u64>, kube::Error> {
        patch["metadata"]["uid"] = json!(of.metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(of.metadata.resource_version);
        let key = key_of(of);
        let api = Api::<Workload>::namespaced(self.client.clone(), &key.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = if status {
            api.patch_status(&key.name, &params, &patch).await
        } else {
            api.patch(&key.name, &params, &patch).await
        };
        match written {
            Ok(now) => Ok(Some(revision(now.metadata.resource_version.as_deref()))),
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The Parent of a Variant, or the Workload itself.
fn parent_of(meta: &Meta) -> Key {
    let owner = meta.owner_references.iter().find(|o| &*o.kind == "Workload" && &*o.api_version == API_VERSION);
    owner.map_or_else(|| meta.key(), |owner| Key::new(&meta.namespace, &owner.name))
}

fn marks(value: Value) -> Value {
    json!({"metadata": {
        "labels": {label::CONCURRENT_ADMISSION_PARENT: value}, "annotations": {annotation::PARENT_VARIANT: value}}})
}

fn difference<T: serde::Serialize>(from: &T, to: &T) -> Result<Option<Value>, kube::Error> {
    let read = |value: &T| serde_json::to_value(value).map_err(kube::Error::SerdeError);
    Ok(merge_patch::diff(&read(from)?, &read(to)?))
}
