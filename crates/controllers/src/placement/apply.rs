//! The shell around the planner: tells it what the watches show, writes what it decides, and tells it what was refused.
//!
//! Writes never hold up the next decision. All writes about one pod go through one writer, in the order they were decided, so
//! that "has no place" is never written after "is on a node".

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, ObjectReference, Pod};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use usher_env::Clock;

use super::decide::{Decision, Planner};
use super::model::lower::{self, SCHEDULER};
use super::model::{self, Lowering};
use super::reason;
use crate::runtime::metrics::OneQueue;
use crate::runtime::objects::{is_conflict, is_not_found};
use crate::runtime::{GroupResource, Key, QueueMetrics, Recorder, Resource, Signal, Signals, Store, Tasks, Watches};
use crate::runtime::{WorkQueue, objects};

/// Writes under way at a time; concurrent writes share a commit of the store.
const WRITERS: usize = 24;
/// Decisions between two looks at the news.
const BATCH: usize = 256;
const KINDS: [&str; 3] = ["namespaces", "nodes", "pods"];

pub(crate) fn start(client: Client, clock: Clock, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let id = |plural: &str| GroupResource::new("", plural);
    let (answers, answered) = mpsc::unbounded_channel();
    let recorder = Recorder::new(&client, &clock, SCHEDULER, tasks);
    let writer = |_| {
        let (sender, receiver) = mpsc::unbounded_channel();
        let writer = Writer {
            client: client.clone(),
            clock: clock.clone(),
            recorder: recorder.clone(),
            answers: answers.clone(),
        };
        tasks.spawn(writer.run(receiver));
        sender
    };
    let shell = Shell {
        pods: watches.view(&id("pods")),
        nodes: watches.view(&id("nodes")),
        namespaces: watches.view(&id("namespaces")),
        writers: (0..WRITERS).map(writer).collect(),
        retries: WorkQueue::new("placement_retries", metrics),
        metrics: metrics.queue("placement"),
        planner: Planner::default(),
        lowering: Lowering::default(),
        unlisted: KINDS.into(),
    };
    let signals = watches.subscribe(|resource: &Resource| KINDS.iter().any(|kind| resource.id.is("", kind)));
    tasks.spawn(shell.run(signals, answered));
}

/// What became of a write.
enum Answer {
    Refused {
        pod: Key,
        uid: Arc<str>,
        retry: bool,
    },
    /// A victim lives on; the pod that wanted its place tries again.
    Spared {
        victim: Key,
        preemptor: Key,
    },
    Bound {
        pod: Key,
    },
}

struct Shell {
    pods: Store<Pod>,
    nodes: Store<Node>,
    namespaces: Store<Namespace>,
    writers: Vec<mpsc::UnboundedSender<Decision>>,
    retries: WorkQueue<Key>,
    metrics: OneQueue,
    planner: Planner,
    lowering: Lowering,
    /// Kinds whose first list is not complete: until then a node may look empty that is full.
    unlisted: BTreeSet<&'static str>,
}

impl Shell {
    async fn run(mut self, mut signals: Signals, mut answers: mpsc::UnboundedReceiver<Answer>) {
        let mut busy = false;
        loop {
            if busy {
                tokio::task::yield_now().await;
            } else {
                tokio::select! {
                    biased;
                    signal = signals.recv() => match signal {
                        Some(signal) => self.hear(signal),
                        None => return,
                    },
                    Some(answer) = answers.recv() => self.take(answer),
                    key = self.retries.get() => {
                        self.planner.retry(&key);
                        self.retries.done(&key);
                    }
                }
            }
            while let Ok(signal) = signals.try_recv() {
                self.hear(signal);
            }
            while let Ok(answer) = answers.try_recv() {
                self.take(answer);
            }
            busy = self.unlisted.is_empty() && self.decide();
        }
    }

    /// Returns whether there is more to decide.
    fn decide(&mut self) -> bool {
        let started = Instant::now();
        let decisions = self.planner.decide(BATCH);
        if decisions.is_empty() {
            return false;
        }
        let more = decisions.len() == BATCH;
        self.metrics.adds.inc_by(decisions.len() as u64);
        self.metrics.depth.set(self.planner.queued() as i64);
        for decision in decisions {
            let writer = &self.writers[writer_of(&decision)];
            // The writers end with this task.
            let _ = writer.send(decision);
        }
        self.metrics.work_secs.observe(started.elapsed().as_secs_f64());
        more
    }

    fn hear(&mut self, signal: Signal) {
        match signal {
            Signal::Applied(resource, meta) | Signal::Deleted(resource, meta) => self.look(&resource, &meta.key()),
            Signal::Synced(resource) => drop(self.unlisted.remove(resource.id.plural.as_ref() as &str)),
            Signal::Catalog(_) | Signal::Settled => {}
        }
    }

    /// Takes the object over as it is now, which may be later than the signal.
    fn look(&mut self, resource: &Resource, key: &Key) {
        match resource.id.plural.as_ref() {
            "pods" => match self.pods.get(key) {
                Some(pod) => self.planner.set_pod(self.lowering.pod(&pod)),
                None => self.planner.remove_pod(key),
            },
            "nodes" => match self.nodes.get(key) {
                Some(node) => self.planner.set_node(lower::node(&node)),
                None => self.planner.remove_node(&key.name),
            },
            _ => {
                let labels = self.namespaces.get(key).map(|n| n.metadata.labels.clone().unwrap_or_default());
                self.planner.set_namespace(&key.name, labels);
            }
        }
    }

    fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Bound { pod } => self.retries.forget(&pod),
            Answer::Refused { pod, uid, retry } => {
                self.planner.refused(&pod, &uid);
                if retry {
                    self.retries.retry(pod);
                }
            }
            Answer::Spared { victim, preemptor } => {
                self.planner.spared(&victim);
                self.retries.retry(preemptor);
            }
        }
    }
}

fn writer_of(decision: &Decision) -> usize {
    let (Decision::Bind { pod, .. } | Decision::Wait { pod, .. }) = decision;
    let mut hasher = DefaultHasher::new();
    pod.key.hash(&mut hasher);
    (hasher.finish() % WRITERS as u64) as usize
}

struct Writer {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    answers: mpsc::UnboundedSender<Answer>,
}

impl Writer {
    async fn run(self, mut decisions: mpsc::UnboundedReceiver<Decision>) {
        while let Some(decision) = decisions.recv().await {
            match decision {
                Decision::Bind { pod, node } => self.bind(&pod, &node).await,
                Decision::Wait { pod, unfit, nominate, victims, displaced } => {
                    let message = reason::render(&unfit);
                    self.explain(&pod, &message, nominate.as_ref().map(|node| node.as_deref())).await;
                    for other in displaced {
                        self.write_status(&other, json!({"nominatedNodeName": null})).await;
                    }
                    if let Some(Some(node)) = &nominate {
                        for victim in victims.iter().filter(|victim| !victim.leaving) {
                            self.preempt(&pod, victim, node).await;
                        }
                    }
                }
            }
        }
    }

    async fn bind(&self, pod: &model::Pod, node: &str) {
        let (namespace, name) = (&*pod.key.namespace, &*pod.key.name);
        let body = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": &*pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/binding"))
            .header(http::header::CONTENT_TYPE, "application/json");
        match self.send(request, &body).await {
            Ok(()) => {
                let message = format!("Successfully assigned {namespace}/{name} to {node}");
                self.recorder.normal(about(pod), "Scheduled", message);
                self.answer(Answer::Bound { pod: pod.key.clone() });
            }
            Err(error) => {
                tracing::debug!(pod = name, namespace, node, %error, "a binding was refused");
                // Gone, or no longer to be bound: what it is now comes by the watch.
                let retry = !is_not_found(&error) && !is_conflict(&error);
                if retry {
                    let message = format!("binding rejected: {}", objects::sentence(&error));
                    self.recorder.warning(about(pod), "FailedScheduling", reason::note(&message));
                }
                self.answer(Answer::Refused { pod: pod.key.clone(), uid: pod.uid.clone(), retry });
            }
        }
    }

    /// Says in condition and event why a pod waits, unless that has been said.
    async fn explain(&self, pod: &model::Pod, message: &str, nominate: Option<Option<&str>>) {
        let said = pod.said.as_ref();
        let known = said.is_some_and(|s| s.status == "False" && s.reason == "Unschedulable" && s.message == message);
        if known && nominate.is_none() {
            return;
        }
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        });
        if said.is_none_or(|said| said.status != "False") {
            condition["lastTransitionTime"] = self.now();
        }
        if let Some(generation) = pod.generation {
            condition["observedGeneration"] = generation.into();
        }
        let mut status = json!({"conditions": [condition]});
        if let Some(node) = nominate {
            status["nominatedNodeName"] = node.into();
        }
        self.recorder.warning(about(pod), "FailedScheduling", reason::note(message));
        self.write_status(pod, status).await;
    }

    async fn preempt(&self, preemptor: &model::Pod, victim: &model::Pod, node: &str) {
        let mut condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{SCHEDULER}: preempting to accommodate a higher priority pod"),
            "lastTransitionTime": self.now(),
        });
        if let Some(generation) = victim.generation {
            condition["observedGeneration"] = generation.into();
        }
        let mut ended = self.write_status(victim, json!({"conditions": [condition]})).await;
        if ended {
            let (namespace, name) = (&victim.key.namespace, &victim.key.name);
            let request = http::Request::delete(format!("/api/v1/namespaces/{namespace}/pods/{name}"))
                .header(http::header::CONTENT_TYPE, "application/json");
            let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": &*victim.uid}});
            ended = match self.send(request, &body).await {
                Ok(()) => {
                    let message = format!("Preempted by pod {} on node {node}", preemptor.uid);
                    self.recorder.normal(about(victim), "Preempted", message);
                    true
                }
                Err(error) => {
                    tracing::warn!(pod = &**name, namespace = &**namespace, %error, "a pod could not be preempted");
                    is_gone(&error)
                }
            };
        }
        if !ended {
            self.answer(Answer::Spared { victim: victim.key.clone(), preemptor: preemptor.key.clone() });
        }
    }

    /// Merges into a pod's status; true when it is so now, or the pod is gone.
    async fn write_status(&self, pod: &model::Pod, status: Value) -> bool {
        let (namespace, name) = (&pod.key.namespace, &pod.key.name);
        let request = http::Request::patch(format!("/api/v1/namespaces/{namespace}/pods/{name}/status"))
            .header(http::header::CONTENT_TYPE, "application/strategic-merge-patch+json");
        match self.send(request, &json!({"metadata": {"uid": &*pod.uid}, "status": status})).await {
            Ok(()) => true,
            Err(error) if is_gone(&error) => true,
            Err(error) => {
                tracing::warn!(pod = &**name, namespace = &**namespace, %error, "a pod's status was not written");
                false
            }
        }
    }

    async fn send(&self, request: http::request::Builder, body: &Value) -> Result<(), kube::Error> {
        let body = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
        let request = request.body(body).map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await.map(drop)
    }

    fn answer(&self, answer: Answer) {
        // Nobody listens only when everything stops.
        let _ = self.answers.send(answer);
    }

    fn now(&self) -> Value {
        let now = self.clock.now();
        let whole = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
        whole.to_string().into()
    }
}

/// Not there, or another of the same name.
fn is_gone(error: &kube::Error) -> bool {
    is_not_found(error) || is_conflict(error)
}

fn about(pod: &model::Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_string()),
        kind: Some("Pod".to_string()),
        namespace: Some(pod.key.namespace.to_string()),
        name: Some(pod.key.name.to_string()),
        uid: Some(pod.uid.to_string()),
        ..Default::default()
    }
}
