//! Carries out what [`decide`](super::decide) says about Workloads.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use kube::Client;
use parking_lot::Mutex;
use serde_json::json;
use usher_api::kueue::conditions::{self, WorkloadCondition};
use usher_api::kueue::{ClusterQueue, LocalQueue, Workload};
use usher_api::ray::RayCluster;
use usher_env::Clock;

use super::decide::{Next, Owner, Seen, Step, decide};
use crate::queueing::apply::{controller_uid, kueue};
use crate::queueing::guarded::{Guarded, key_of};
use crate::queueing::kind::JobKind;
use crate::queueing::policy::Policy;
use crate::queueing::scheduler::write::Told;
use crate::runtime::{
    Awaited, GroupResource, Index, Key, Meta, Outcome, QueueMetrics, Recorder, Signal, Store, Tasks, Watches, WorkQueue,
};

const WORKERS: usize = 8;

struct Workloads {
    writes: Guarded,
    clock: Clock,
    policy: Policy,
    watches: Watches,
    recorder: Recorder,
    workloads: Store<Workload>,
    locals: Store<LocalQueue>,
    queues: Store<ClusterQueue>,
    jobs: Store<Job>,
    rays: Store<RayCluster>,
    /// By the uid of the object that controls them.
    owned: Index<Workload>,
    /// By the ClusterQueue whose quota they hold.
    holding: Index<Workload>,
    /// Those that are kept out of their LocalQueue, as `namespace/name`.
    kept_out: Index<Workload>,
    /// The newest revision this wrote of each: nothing is decided on caches that are older.
    wrote: Mutex<BTreeMap<Key, u64>>,
    /// What was last heard of each ClusterQueue: its status changes all the time, and matters to nobody here.
    generations: Mutex<BTreeMap<Arc<str>, i64>>,
}

pub(in crate::queueing) fn start(
    client: &Client,
    clock: &Clock,
    policy: &Policy,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    let workloads: Store<Workload> = watches.view(&kueue("workloads"));
    let all = Arc::new(Workloads {
        writes: Guarded::new(client),
        clock: clock.clone(),
        policy: policy.clone(),
        watches: watches.clone(),
        recorder: Recorder::new(client, clock, "workload_controller", tasks),
        locals: watches.view(&kueue("localqueues")),
        queues: watches.view(&kueue("clusterqueues")),
        jobs: watches.view(&Job::resource()),
        rays: watches.view(&RayCluster::resource()),
        owned: workloads.index(|w| controller_uid(w).into_iter().collect()),
        holding: workloads.index(|w| held_in(w).into_iter().collect()),
        kept_out: workloads.index(|w| kept_out_of(w).into_iter().collect()),
        workloads,
        wrote: Mutex::default(),
        generations: Mutex::default(),
    });
    let queue: WorkQueue<Key> = WorkQueue::new("workload", metrics);
    let mut signals = watches.subscribe(|resource| {
        is_job(&resource.id) || ["workloads", "localqueues", "clusterqueues"].iter().any(|p| resource.id == kueue(p))
    });
    let worker = all.clone();
    let kinds = ["workloads", "localqueues", "clusterqueues"].map(kueue);
    let mut awaited = Awaited::new(kinds.into_iter().chain([Job::resource()]));
    let start = queue.clone();
    let tasks_of_queue = tasks.clone();
    tasks.spawn(async move {
        while let Some(signal) = signals.recv().await {
            if awaited.ends_with(&signal) {
                // Not before everything is listed: a job that is not there yet is not one that is gone.
                let worker = worker.clone();
                start.run(WORKERS, &tasks_of_queue, move |key| {
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

/// The kinds that Workloads are made for.
fn is_job(id: &GroupResource) -> bool {
    [Job::resource(), RayCluster::resource()].contains(id)
}

fn held_in(workload: &Workload) -> Option<Arc<str>> {
    workload.status.admission.as_ref().map(|admission| admission.cluster_queue.as_str().into())
}

fn kept_out_of(workload: &Workload) -> Option<Arc<str>> {
    let requeued = conditions::find(&workload.status.conditions, WorkloadCondition::Requeued.as_str())?;
    let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
    (requeued.status == "False").then(|| format!("{namespace}/{}", workload.spec.queue_name).into())
}

impl Workloads {
    /// The Workloads that a change may matter to.
    fn concerned(&self, signal: &Signal) -> Vec<Key> {
        let (Signal::Applied(resource, meta) | Signal::Deleted(resource, meta)) = signal else { return Vec::new() };
        let gone = matches!(signal, Signal::Deleted(..));
        let of = |found: Vec<Arc<Workload>>| found.iter().map(|w| key_of(w)).collect();
        match &*resource.id.plural {
            "workloads" => vec![meta.key()],
            _ if is_job(&resource.id) && gone => of(self.owned.get(&meta.uid)),
            "localqueues" => of(self.kept_out.get(&format!("{}/{}", meta.namespace, meta.name))),
            "clusterqueues" => self.concerned_by_queue(meta),
            _ => Vec::new(),
        }
    }

    fn concerned_by_queue(&self, meta: &Meta) -> Vec<Key> {
        let queue = self.queues.get(&meta.key());
        let generation = queue.as_ref().and_then(|queue| queue.metadata.generation).unwrap_or(0);
        if self.generations.lock().insert(meta.name.clone(), generation) == Some(generation) {
            return Vec::new();
        }
        let mut concerned: Vec<Key> = self.holding.get(&meta.name).iter().map(|w| key_of(w)).collect();
        for (key, local) in self.locals.all() {
            if local.spec.cluster_queue == *meta.name {
                let kept = self.kept_out.get(&format!("{}/{}", key.namespace, key.name));
                concerned.extend(kept.iter().map(|w| key_of(w)));
            }
        }
        concerned
    }

    async fn sync(&self, key: &Key) -> Result<Outcome, kube::Error> {
        let Some(workload) = self.workloads.get(key) else {
            self.wrote.lock().remove(key);
            return Ok(Outcome::Settled);
        };
        let wrote = self.wrote.lock().get(key).copied().unwrap_or(0);
        if wrote > self.watches.seen(&kueue("workloads")) {
            // The event of our last write will bring us back.
            return Ok(Outcome::Settled);
        }
        let now = self.clock.now();
        let Next { step, again } = self.decide(key, &workload, now);
        let after = again.map(|at| at.duration_since(now));
        if let Some(revision) = self.carry_out(&workload, step).await? {
            self.wrote.lock().insert(key.clone(), revision);
        }
        let after = after.and_then(|after| std::time::Duration::try_from(after).ok());
        Ok(after.map_or(Outcome::Settled, Outcome::After))
    }

    fn decide(&self, key: &Key, workload: &Workload, now: jiff::Timestamp) -> Next {
        let local = self.locals.get(&Key::new(&key.namespace, &workload.spec.queue_name));
        let held = workload.status.admission.as_ref().map(|admission| admission.cluster_queue.clone());
        let queue = held.or_else(|| local.as_ref().map(|local| local.spec.cluster_queue.clone()));
        let queue = queue.and_then(|name| self.queues.get(&Key::new("", &name)));
        let seen = Seen {
            workload,
            local: local.as_deref(),
            queue: queue.as_deref(),
            owner: self.owner(key, workload),
            policy: &self.policy,
        };
        decide(&seen, now)
    }

    fn owner(&self, key: &Key, workload: &Workload) -> Owner {
        let owners = workload.metadata.owner_references.as_deref().unwrap_or_default();
        let Some(owner) = owners.iter().find(|o| o.controller == Some(true)).or(owners.first()) else {
            return Owner::None;
        };
        let at = Key::new(&key.namespace, &owner.name);
        let there = match (owner.api_version.as_str(), owner.kind.as_str()) {
            (Job::API_VERSION, Job::KIND) => self.jobs.get(&at).and_then(|job| job.metadata.uid.clone()),
            (RayCluster::API_VERSION, RayCluster::KIND) => self.rays.get(&at).and_then(|ray| ray.metadata.uid.clone()),
            _ => return Owner::Somebody,
        };
        if there.as_deref() == Some(owner.uid.as_str()) { Owner::Somebody } else { Owner::Gone }
    }

    /// Carries out a step; the revision that was written, if any.
    async fn carry_out(&self, of: &Workload, step: Step) -> Result<Option<u64>, kube::Error> {
        match step {
            Step::Nothing => Ok(None),
            Step::Status { to, told } => {
                let wrote = self.writes.status(of, &to).await?;
                if wrote.is_some() {
                    told.iter().for_each(|told| told.tell(&self.recorder, kube::Resource::object_ref(of, &())));
                }
                Ok(wrote)
            }
            Step::Deactivate => self.writes.patch(of, json!({"spec": {"active": false}})).await,
            Step::LetGo => self.writes.let_go(of).await,
            Step::Delete { why } => {
                let wrote = self.writes.let_go(of).await?;
                if self.writes.delete(of).await? {
                    let about = kube::Resource::object_ref(of, &());
                    Told::normal("Deleted", why.to_owned()).tell(&self.recorder, about);
                }
                Ok(wrote)
            }
        }
    }
}
