//! Carries out what [`decide`](super::decide) says about Parents and their Variants.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use kube::api::Api;
use parking_lot::Mutex;
use serde_json::{Value, json};
use usher_api::kueue::concurrent::{self, Policy};
use usher_api::kueue::conditions::WorkloadCondition;
use usher_api::kueue::keys::{self, annotation, label};
use usher_api::kueue::workload::Role;
use usher_api::kueue::workload_status::WorkloadStatus;
use usher_api::kueue::{API_VERSION, ClusterQueue, LocalQueue, Workload};
use usher_env::Clock;

use super::decide::{Migration, Next, Seen, Step, decide};
use crate::queueing;
use crate::queueing::apply::{controller_uid, kueue};
use crate::queueing::guarded::{Guarded, key_of, revision};
use crate::queueing::scheduler::write::Told;
use crate::queueing::status::metrics::Metrics;
use crate::runtime::{
    Awaited, Index, Key, Meta, Outcome, QueueMetrics, Recorder, Signal, Store, Tasks, Watches, WorkQueue,
};

const WORKERS: usize = 8;

struct Families {
    /// The gate is on.
    races: bool,
    client: Client,
    writes: Guarded,
    clock: Clock,
    watches: Watches,
    recorder: Recorder,
    counts: Metrics,
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
    counts: &Metrics,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    let workloads: Store<Workload> = watches.view(&kueue("workloads"));
    let all = Arc::new(Families {
        races: policy.concurrent_admission,
        client: client.clone(),
        writes: Guarded::new(client),
        clock: clock.clone(),
        watches: watches.clone(),
        recorder: Recorder::new(client, clock, "concurrent-admission-controller", tasks),
        counts: counts.clone(),
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
            Step::Mark => self.writes.patch(parent, marks(json!(keys::TRUE))).await,
            Step::Unmark => self.writes.patch(parent, marks(Value::Null)).await,
            Step::Create(variant) => self.create(key, parent, &variant).await,
            Step::Spec { of, to, told } => {
                let wrote = self.writes.spec(&of, &to).await?;
                self.tell(&of, told.filter(|_| wrote.is_some()));
                Ok(wrote)
            }
            Step::Status { of, to, told } => self.put_status(&of, &to, told).await,
            Step::Migrate { of, to, told, counted } => {
                let wrote = self.put_status(&of, &to, Some(told)).await?;
                if wrote.is_some() {
                    let Migration { queue, from, to, saved } = counted;
                    self.counts.migrated(&queue, &from, &to, saved.as_secs_f64().max(0.0));
                }
                Ok(wrote)
            }
            Step::Delete { of } => {
                if self.writes.delete(&of).await? {
                    let message = format!("Deleted variant {}", of.metadata.name.as_deref().unwrap_or_default());
                    self.tell(parent, Some(Told::normal("DeletedVariant", message)));
                }
                Ok(None)
            }
        }
    }

    async fn put_status(
        &self,
        of: &Workload,
        to: &WorkloadStatus,
        told: Option<Told>,
    ) -> Result<Option<u64>, kube::Error> {
        let wrote = self.writes.status(of, to).await?;
        self.tell(of, told.filter(|_| wrote.is_some()));
        Ok(wrote)
    }

    /// A name that is taken (by a Variant of a Parent of the same name that is about to be collected) is tried again.
    async fn create(&self, key: &Key, parent: &Workload, variant: &Workload) -> Result<Option<u64>, kube::Error> {
        let api = Api::<Workload>::namespaced(self.client.clone(), &key.namespace);
        let made = api.create(&Default::default(), variant).await?;
        let name = made.metadata.name.as_deref().unwrap_or_default();
        self.tell(parent, Some(Told::normal("CreatedVariant", format!("Created variant {name}"))));
        Ok(Some(revision(made.metadata.resource_version.as_deref())))
    }

    fn tell(&self, about: &Workload, told: Option<Told>) {
        if let Some(told) = told {
            told.tell(&self.recorder, kube::Resource::object_ref(about, &()));
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
