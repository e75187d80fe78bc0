//! Lets the pods of elastic jobs go, as many as are admitted (KEP-77).
//!
//! A counter for each pod set: no pod is let go unless those that were, and have not ended, are fewer than the replicas
//! admitted. Pods that are being deleted still count: they use what they were given.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use usher_api::kueue::Workload;
use usher_api::kueue::conditions::WorkloadCondition;
use usher_api::kueue::keys::{MAIN_POD_SET, label, scheduling_gate};
use usher_api::ray::keys::label::{HOST_INDEX, REPLICA_INDEX};

use super::apply::{controller_uid, kueue};
use super::kind::JobKind;
use crate::runtime::objects::{is_conflict, is_invalid, is_not_found};
use crate::runtime::{
    Awaited, GroupResource, Index, Key, Outcome, OwnerRef, QueueMetrics, Signal, Store, Tasks, Watches, WorkQueue,
};

const WORKERS: usize = 4;
/// Pods let go at once, of one job.
const AT_ONCE: usize = 16;
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// A pod as far as its gate is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gated {
    pub uid: String,
    pub is_gated: bool,
    /// It has ended, and uses nothing.
    pub has_ended: bool,
    pub is_deleted: bool,
    pub index: Option<u32>,
    pub created: Option<Timestamp>,
    pub name: String,
}

/// The pods to let go: the lowest index first, else the oldest.
pub fn to_let_go(pods: &[Gated], admitted: usize) -> Vec<&Gated> {
    let running = pods.iter().filter(|pod| !pod.is_gated && !pod.has_ended).count();
    let mut waiting: Vec<&Gated> =
        pods.iter().filter(|pod| pod.is_gated && !pod.has_ended && !pod.is_deleted).collect();
    let order = |pod: &&Gated| (pod.index.unwrap_or(u32::MAX), pod.created, pod.name.clone());
    waiting.sort_by_key(order);
    waiting.truncate(admitted.saturating_sub(running));
    waiting
}

/// Pods that were let go and are not seen to be yet, job by job: the watch may be slow, the count must not be.
#[derive(Debug, Default)]
struct UnderWay(BTreeMap<Key, BTreeSet<String>>);

impl UnderWay {
    fn begin(&mut self, job: &Key, pod: &str) {
        self.0.entry(job.clone()).or_default().insert(pod.to_owned());
    }

    /// It was not let go after all.
    fn undo(&mut self, job: &Key, pod: &str) {
        if let Some(pods) = self.0.get_mut(job) {
            pods.remove(pod);
        }
    }

    /// The pods of a job as they are, whether or not the watch shows it yet.
    fn correct(&mut self, job: &Key, pods: &mut [Gated]) {
        let Some(under_way) = self.0.get_mut(job) else { return };
        // Those that are seen without their gate, or gone, are no longer under way.
        let gated: HashSet<&str> = pods.iter().filter(|pod| pod.is_gated).map(|pod| pod.uid.as_str()).collect();
        under_way.retain(|uid| gated.contains(uid.as_str()));
        let under_way = under_way.clone();
        if under_way.is_empty() {
            self.0.remove(job);
        }
        for pod in pods {
            pod.is_gated &= !under_way.contains(&pod.uid);
        }
    }
}

struct Ungater<J> {
    client: Client,
    pods: Index<Pod>,
    jobs: Store<J>,
    /// By the uid of the job.
    workloads: Index<Workload>,
    under_way: Mutex<UnderWay>,
}

pub(super) fn start<J: JobKind>(client: &Client, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let pods: Store<Pod> = watches.view(&GroupResource::new("", "pods"));
    let workloads: Store<Workload> = watches.view(&kueue("workloads"));
    let ungater = Arc::new(Ungater::<J> {
        client: client.clone(),
        pods: pods.index(|pod| owner(pod).into_iter().collect()),
        jobs: watches.view(&J::resource()),
        workloads: workloads.index(|workload| controller_uid(workload).into_iter().collect()),
        under_way: Mutex::default(),
    });
    let queue: WorkQueue<Key> = WorkQueue::new(&format!("elastic_{}_ungater", J::KIND.to_lowercase()), metrics);
    let mut signals = watches.subscribe(|resource| {
        resource.id.is("", "pods") || resource.id == J::resource() || resource.id == kueue("workloads")
    });
    let mut awaited = Awaited::new([GroupResource::new("", "pods"), J::resource(), kueue("workloads")]);
    let tasks_of_queue = tasks.clone();
    tasks.spawn(async move {
        while let Some(signal) = signals.recv().await {
            if awaited.ends_with(&signal) {
                // Not before everything is listed: pods that are not there yet may have been let go.
                let worker = ungater.clone();
                queue.run(WORKERS, &tasks_of_queue, move |key| {
                    let ungater = worker.clone();
                    async move { ungater.sync(&key).await }
                });
            }
            if let Some(key) = ungater.concerned(&signal) {
                queue.add(key);
            }
        }
    });
}

fn owner(pod: &Pod) -> Option<Arc<str>> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str().into())
}

impl<J: JobKind> Ungater<J> {
    /// The elastic job that a change is about.
    fn concerned(&self, signal: &Signal) -> Option<Key> {
        let (Signal::Applied(resource, meta) | Signal::Deleted(resource, meta)) = signal else { return None };
        let key = if resource.id == J::resource() {
            meta.key()
        } else {
            let is_ours = |o: &&OwnerRef| o.controller == Some(true) && &*o.kind == J::KIND;
            let owner = meta.owner_references.iter().find(is_ours)?;
            Key::new(&meta.namespace, &owner.name)
        };
        self.jobs.get(&key).filter(|job| job.is_elastic()).map(|_| key)
    }

    async fn sync(&self, key: &Key) -> Result<Outcome, kube::Error> {
        let Some(job) = self.jobs.get(key) else {
            self.under_way.lock().0.remove(key);
            return Ok(Outcome::Settled);
        };
        let uid = job.metadata().uid.as_deref().unwrap_or_default();
        let pods = self.pods.get(uid);
        let mut seen: Vec<Gated> = pods.iter().map(|pod| gated(pod)).collect();
        self.under_way.lock().correct(key, &mut seen);
        if !seen.iter().any(|pod| pod.is_gated) {
            return Ok(Outcome::Settled);
        }
        let admitted = self.admitted(uid);
        let mut by_set: BTreeMap<&str, Vec<Gated>> = BTreeMap::new();
        for (pod, gated) in pods.iter().zip(seen) {
            by_set.entry(set_of(pod)).or_default().push(gated);
        }
        let mut next: HashSet<&str> = HashSet::new();
        for (set, pods) in &by_set {
            let admitted = usize::try_from(admitted.get(*set).copied().unwrap_or(0)).unwrap_or(0);
            next.extend(to_let_go(pods, admitted).iter().map(|pod| pod.uid.as_str()));
        }
        let next = pods.iter().filter(|pod| next.contains(pod.metadata.uid.as_deref().unwrap_or_default()));
        let all: Vec<BoxFuture<'_, Result<(), kube::Error>>> =
            next.map(|pod| -> BoxFuture<'_, _> { Box::pin(self.let_go(key, pod)) }).collect();
        futures::stream::iter(all).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        Ok(Outcome::Settled)
    }

    /// How many replicas of each pod set the job was admitted with.
    fn admitted(&self, job_uid: &str) -> BTreeMap<String, i32> {
        let workloads = self.workloads.get(job_uid);
        let admitted = workloads.iter().find(|w| {
            w.is(WorkloadCondition::Admitted) && !w.is(WorkloadCondition::Evicted) && !w.is(WorkloadCondition::Finished)
        });
        let admission = admitted.and_then(|w| w.status.admission.as_ref());
        let assignments = admission.map_or(&[][..], |admission| &admission.pod_set_assignments);
        assignments.iter().map(|a| (a.name.clone(), a.count.unwrap_or(0))).collect()
    }

    async fn let_go(&self, key: &Key, pod: &Pod) -> Result<(), kube::Error> {
        let (meta, uid) = (&pod.metadata, pod.metadata.uid.clone().unwrap_or_default());
        let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
        let others: Vec<_> = gates.filter(|gate| gate.name != scheduling_gate::ELASTIC_JOB).collect();
        let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"schedulingGates": others}});
        self.under_way.lock().begin(key, &uid);
        let api = Api::<Pod>::namespaced(self.client.clone(), &key.namespace);
        let name = meta.name.as_deref().unwrap_or_default();
        let written = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        if let Err(error) = written {
            self.under_way.lock().undo(key, &uid);
            // Somebody was faster, and what they did brings us back here.
            if !is_conflict(&error) && !is_not_found(&error) && !is_invalid(&error) {
                return Err(error);
            }
        }
        Ok(())
    }
}

fn set_of(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(label::POD_SET)).map_or(MAIN_POD_SET, String::as_str)
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == scheduling_gate::ELASTIC_JOB)
}

fn gated(pod: &Pod) -> Gated {
    let meta = &pod.metadata;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let labels = meta.labels.as_ref();
    // The hosts of one replica go together.
    let replica = labels.filter(|l| l.contains_key(HOST_INDEX)).and_then(|l| l.get(REPLICA_INDEX));
    let index = meta.annotations.as_ref().and_then(|notes| notes.get(COMPLETION_INDEX)).or(replica);
    Gated {
        uid: meta.uid.clone().unwrap_or_default(),
        is_gated: is_gated(pod),
        has_ended: matches!(phase, Some("Succeeded" | "Failed")),
        is_deleted: meta.deletion_timestamp.is_some(),
        index: index.and_then(|text| text.parse().ok()),
        created: meta.creation_timestamp.as_ref().map(|at| at.0),
        name: meta.name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, is_gated: bool, index: Option<u32>) -> Gated {
        let (name, created) = (uid.to_owned(), Timestamp::from_second(1_700_000_000).ok());
        Gated { uid: uid.to_owned(), is_gated, has_ended: false, is_deleted: false, index, created, name }
    }

    fn let_go(pods: &[Gated], admitted: usize) -> Vec<&str> {
        to_let_go(pods, admitted).into_iter().map(|pod| pod.uid.as_str()).collect()
    }

    #[test]
    fn no_more_are_let_go_than_are_admitted_lowest_index_first() {
        let pods = [pod("c", true, Some(2)), pod("a", true, Some(0)), pod("b", true, Some(1))];
        assert_eq!(let_go(&pods, 2), ["a", "b"]);
        assert_eq!(let_go(&pods, 0), [""; 0]);
        assert_eq!(let_go(&pods, 9), ["a", "b", "c"]);
    }

    #[test]
    fn one_that_is_being_deleted_keeps_its_place_and_one_that_has_ended_does_not() {
        let mut going = pod("going", false, None);
        going.is_deleted = true;
        let mut ended = pod("ended", false, None);
        ended.has_ended = true;
        let pods = [going, ended, pod("next", true, None)];
        assert_eq!(let_go(&pods, 1), [""; 0]);
        assert_eq!(let_go(&pods, 2), ["next"]);
    }

    #[test]
    fn the_oldest_go_first_and_those_that_are_leaving_never() {
        let (mut old, young, mut leaving) = (pod("old", true, None), pod("a-young", true, None), pod("b", true, None));
        old.created = Timestamp::from_second(1_600_000_000).ok();
        leaving.is_deleted = true;
        assert_eq!(let_go(&[young, old, leaving], 3), ["old", "a-young"]);
    }

    #[test]
    fn one_that_was_let_go_counts_before_the_watch_shows_it() {
        let (mut under_way, job) = (UnderWay::default(), Key::new("n", "j"));
        let seen = || vec![pod("a", true, None), pod("b", true, None)];
        let next = |under_way: &mut UnderWay, mut pods: Vec<Gated>| {
            under_way.correct(&job, &mut pods);
            let_go(&pods, 1).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(next(&mut under_way, seen()), ["a"]);
        under_way.begin(&job, "a");
        assert_eq!(next(&mut under_way, seen()), [""; 0], "the watch is slow");
        under_way.undo(&job, "a");
        assert_eq!(next(&mut under_way, seen()), ["a"], "it was refused");
        under_way.begin(&job, "a");
        assert_eq!(next(&mut under_way, vec![pod("b", true, None)]), ["b"], "it is gone");
        assert!(under_way.0.is_empty());
    }
}
