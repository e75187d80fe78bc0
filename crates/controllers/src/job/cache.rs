//! The Jobs and pods that the watches show, by what the controller looks them up by. No look at a Job reads pods that are
//! not its own or could become its own.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;

use super::claim::{self, controller_of};
use super::memory::{Behind, Memory, Shown};
use super::orphans::is_tracked;
use crate::runtime::{GroupResource, Index, Key, Store, Watches};

pub struct Cache {
    watches: Watches,
    job_kind: GroupResource,
    pod_kind: GroupResource,
    jobs: Store<Job>,
    pods: Store<Pod>,
    by_controller: Index<Pod>,
    /// Pods that nobody controls, by namespace and by each label.
    orphans: Index<Pod>,
    /// Jobs by namespace and a label that their pods must have.
    by_label: Index<Job>,
}

impl Cache {
    /// To be called before the watches start.
    pub fn new(watches: &Watches) -> Cache {
        let (job_kind, pod_kind) = (GroupResource::new("batch", "jobs"), GroupResource::new("", "pods"));
        let (jobs, pods) = (watches.view::<Job>(&job_kind), watches.view::<Pod>(&pod_kind));
        Cache {
            watches: watches.clone(),
            by_controller: pods
                .index(|pod| controller_of(pod).map(|owner| owner.uid.as_str().into()).into_iter().collect()),
            orphans: pods.index(orphan_labels),
            by_label: jobs.index(|job| vec![selector_label(job)]),
            job_kind,
            pod_kind,
            jobs,
            pods,
        }
    }

    pub fn job(&self, key: &Key) -> Option<Arc<Job>> {
        self.jobs.get(key)
    }

    pub fn pod(&self, key: &Key) -> Option<Arc<Pod>> {
        self.pods.get(key)
    }

    pub fn pods_of(&self, job_uid: &str) -> Vec<Arc<Pod>> {
        self.by_controller.get(job_uid)
    }

    /// The pods that a Job controls and those that it might adopt.
    pub fn candidates(&self, job: &Job) -> Vec<Arc<Pod>> {
        let mut pods = self.pods_of(job.metadata.uid.as_deref().unwrap_or_default());
        pods.extend(self.orphans.get(&selector_label(job)));
        pods
    }

    /// The Jobs that might adopt a pod.
    pub fn jobs_that_select(&self, pod: &Pod) -> Vec<Arc<Job>> {
        let labels = pod.metadata.labels.as_ref();
        let selects = |job: &Arc<Job>| {
            let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| claim::selects(selector, labels))
        };
        orphan_labels(pod).iter().flat_map(|label| self.by_label.get(label)).filter(selects).collect()
    }

    pub fn is_behind(&self, memory: &mut Memory) -> Option<Behind> {
        // Read before the objects: what they show is then at least this new.
        let (jobs, pods) = (self.watches.seen(&self.job_kind), self.watches.seen(&self.pod_kind));
        memory.behind(jobs, pods, |key| {
            let pod = self.pods.get(key)?;
            let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
            let being_deleted = pod.metadata.deletion_timestamp.is_some();
            Some(Shown { uid, being_deleted, tracked: is_tracked(&pod) })
        })
    }
}

fn orphan_labels(pod: &Pod) -> Vec<Arc<str>> {
    if controller_of(pod).is_some() {
        return Vec::new();
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let labels = pod.metadata.labels.iter().flatten().map(|(key, value)| label_entry(namespace, Some((key, value))));
    labels.chain([label_entry(namespace, None)]).collect()
}

fn selector_label(job: &Job) -> Arc<str> {
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    label_entry(job.metadata.namespace.as_deref().unwrap_or_default(), selector.and_then(claim::key_label))
}

fn label_entry(namespace: &str, label: Option<(&String, &String)>) -> Arc<str> {
    match label {
        Some((key, value)) => format!("{namespace}\n{key}={value}").into(),
        None => format!("{namespace}\n").into(),
    }
}
