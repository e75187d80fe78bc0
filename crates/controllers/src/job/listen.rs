//! Which Jobs to look at again when something changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::apply::{Controller, managed_elsewhere};
use super::orphans::{is_finished, is_tracked};
use crate::runtime::{Key, Meta, OwnerRef, Signal, WorkQueue};

/// Finalizers of a finished Job's pods are gone before it is finished; this is how long their cache may take to show it.
const ORPHAN_DELAY: Duration = Duration::from_secs(1);

pub struct Listener {
    pub controller: Arc<Controller>,
    pub jobs: WorkQueue<Key>,
    pub orphans: WorkQueue<Key>,
    /// How long events of pods are gathered before their Job is looked at.
    pub batch: Duration,
    generations: BTreeMap<Key, (Arc<str>, i64)>,
    pods: BTreeMap<Key, Known>,
}

/// What was last seen of a pod.
#[derive(Clone, Default)]
struct Known {
    job: Option<Key>,
    ended_and_tracked: bool,
}

impl Listener {
    pub fn new(
        controller: Arc<Controller>,
        jobs: WorkQueue<Key>,
        orphans: WorkQueue<Key>,
        batch: Duration,
    ) -> Listener {
        Listener { controller, jobs, orphans, batch, generations: BTreeMap::new(), pods: BTreeMap::new() }
    }

    pub fn hear(&mut self, signal: Signal) {
        match signal {
            Signal::Applied(kind, meta) if kind.id.is("batch", "jobs") => self.job_applied(meta.key()),
            Signal::Deleted(kind, meta) if kind.id.is("batch", "jobs") => {
                self.generations.remove(&meta.key());
                self.free_pods_of(&meta.uid);
                self.jobs.add(meta.key());
            }
            Signal::Applied(_, meta) => self.pod_applied(&meta),
            Signal::Deleted(_, meta) => self.pod_deleted(&meta),
            // A list has moved the caches on without a word about each object.
            Signal::Synced(_) => self.controller.memories.keys().into_iter().for_each(|key| self.jobs.add(key)),
            Signal::Catalog(_) | Signal::Settled => {}
        }
    }

    fn job_applied(&mut self, key: Key) {
        let Some(job) = self.controller.cache.job(&key) else { return };
        let uid: Arc<str> = job.metadata.uid.as_deref().unwrap_or_default().into();
        if is_finished(&job) {
            self.generations.remove(&key);
            self.free_pods_of(&uid);
            // It is over: there is nothing to remember.
            return self.jobs.add(key);
        }
        let generation = job.metadata.generation.unwrap_or(0);
        let before = self.generations.insert(key.clone(), (uid.clone(), generation)).filter(|(old, _)| *old == uid);
        if let (None, Some(other)) = (&before, managed_elsewhere(&job)) {
            self.controller.metrics.managed_by(other);
        }
        match before {
            Some((_, same)) if same == generation => self.jobs.add_after(key, self.batch),
            _ => self.jobs.add(key),
        }
    }

    fn free_pods_of(&self, job_uid: &str) {
        for pod in self.controller.cache.pods_of(job_uid).iter().filter(|pod| is_tracked(pod)) {
            self.orphans.add_after(pod_key(pod), ORPHAN_DELAY);
        }
    }

    fn pod_applied(&mut self, meta: &Meta) {
        let key = meta.key();
        let Some(pod) = self.controller.cache.pod(&key) else { return };
        let known = Known { job: owning_job(meta), ended_and_tracked: has_ended(&pod) && is_tracked(&pod) };
        let before = self.pods.insert(key.clone(), known.clone()).unwrap_or_default();
        if before.ended_and_tracked != known.ended_and_tracked {
            self.controller.metrics.tracked(known.ended_and_tracked);
        }
        if let Some(old) = before.job.filter(|old| known.job.as_ref() != Some(old)) {
            self.jobs.add_after(old, self.batch);
        }
        let tracked = is_tracked(&pod);
        match known.job {
            Some(job) => {
                let alive = self.controller.controlling_job(&pod).is_some_and(|job| !is_finished(&job));
                if tracked && !alive && meta.being_deleted() {
                    self.orphans.add_after(key, ORPHAN_DELAY);
                }
                // What has ended is to be seen in the status before more is begun.
                match known.ended_and_tracked {
                    true => self.jobs.add_urgent_after(job, self.batch),
                    false => self.jobs.add_after(job, self.batch),
                }
            }
            None if meta.owner_references.iter().any(is_controller) => {}
            None => {
                if tracked {
                    self.orphans.add_after(key, ORPHAN_DELAY);
                }
                for job in self.controller.cache.jobs_that_select(&pod) {
                    let name = job.metadata.name.as_deref().unwrap_or_default();
                    self.jobs.add_after(Key::new(&meta.namespace, name), self.batch);
                }
            }
        }
    }

    fn pod_deleted(&mut self, meta: &Meta) {
        let before = self.pods.remove(&meta.key()).unwrap_or_default();
        if before.ended_and_tracked {
            self.controller.metrics.tracked(false);
        }
        let now = owning_job(meta);
        for job in [before.job.filter(|job| Some(job) != now.as_ref()), now].into_iter().flatten() {
            self.jobs.add_after(job, self.batch);
        }
    }
}

fn is_controller(owner: &OwnerRef) -> bool {
    owner.controller == Some(true)
}

fn owning_job(meta: &Meta) -> Option<Key> {
    let owner = meta.owner_references.iter().find(|owner| is_controller(owner) && &*owner.kind == "Job")?;
    Some(Key::new(&meta.namespace, &owner.name))
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn pod_key(pod: &Pod) -> Key {
    let meta = &pod.metadata;
    Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}
