//! Watches nodes, Leases and pods, and writes what [`super::decide`] says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use usher_env::Clock;

use super::decide::{self, GRACE, QUARANTINE};
use crate::runtime::objects::{is_conflict, is_not_found};
use crate::runtime::{
    GroupResource, Index, Key, Outcome, QueueMetrics, Recorder, Signal, Signals, Store, Tasks, Watches, WorkQueue,
};

const WORKERS: usize = 4;
const LEASES: &str = "kube-node-lease";

pub(crate) fn start(client: Client, clock: Clock, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let pods: Store<Pod> = watches.view(&GroupResource::new("", "pods"));
    let by_node = pods.index(|pod: &Pod| node_of(pod).map(Arc::from).into_iter().collect());
    let lives = Arc::new(Lives {
        recorder: Recorder::new(&client, &clock, "node-controller", tasks),
        client,
        clock,
        nodes: watches.view(&GroupResource::new("", "nodes")),
        pods,
        by_node,
        heard: Mutex::default(),
        missing: Mutex::default(),
        marked: Mutex::default(),
        listed: Mutex::default(),
    });
    let signals = watches.subscribe(|resource| {
        resource.id.is("", "nodes") || resource.id.is("", "pods") || resource.id.is("coordination.k8s.io", "leases")
    });
    let nodes: WorkQueue<Key> = WorkQueue::new("node_lifecycle_controller", metrics);
    let pods: WorkQueue<Key> = WorkQueue::new("taint_eviction_controller", metrics);
    let (life, worker) = (lives.clone(), lives.clone());
    nodes.run(WORKERS, tasks, move |key| {
        let life = life.clone();
        async move { life.look_at_node(&key).await }
    });
    pods.run(WORKERS, tasks, move |key| {
        let worker = worker.clone();
        async move { worker.look_at_pod(&key).await }
    });
    tasks.spawn(async move { lives.listen(signals, nodes, pods).await });
}

struct Lives {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    nodes: Store<Node>,
    pods: Store<Pod>,
    by_node: Index<Pod>,
    /// When each node's Lease was last seen to be renewed.
    heard: Mutex<BTreeMap<Arc<str>, Instant>>,
    /// Since when pods name nodes that are not there.
    missing: Mutex<BTreeMap<Arc<str>, Instant>>,
    /// Pods whose time runs.
    marked: Mutex<BTreeSet<Key>>,
    /// Whether all nodes are known: until then none is missing.
    listed: Mutex<bool>,
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

fn key_of(pod: &Pod) -> Key {
    Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), pod.metadata.name.as_deref().unwrap_or_default())
}

impl Lives {
    async fn listen(&self, mut signals: Signals, nodes: WorkQueue<Key>, pods: WorkQueue<Key>) {
        while let Some(signal) = signals.recv().await {
            match signal {
                Signal::Applied(resource, meta) | Signal::Deleted(resource, meta) => {
                    match resource.id.plural.as_str() {
                        "nodes" => {
                            nodes.add(meta.key());
                            self.by_node.get(&meta.name).iter().for_each(|pod| pods.add(key_of(pod)));
                        }
                        "pods" => pods.add(meta.key()),
                        _ if *meta.namespace == *LEASES => {
                            self.heard.lock().insert(meta.name.clone(), Instant::now());
                            nodes.add(Key::new("", &meta.name));
                        }
                        _ => {}
                    }
                }
                Signal::Synced(resource) if resource.id.is("", "nodes") => {
                    *self.listed.lock() = true;
                    self.pods.all().into_iter().for_each(|(key, _)| pods.add(key));
                }
                Signal::Synced(_) | Signal::Catalog(_) | Signal::Settled => {}
            }
        }
    }

    async fn look_at_node(&self, key: &Key) -> Result<Outcome, kube::Error> {
        let Some(node) = self.nodes.get(key) else {
            self.heard.lock().remove(&key.name);
            return Ok(Outcome::Settled);
        };
        self.missing.lock().remove(&key.name);
        let silence = self.heard.lock().get(&key.name).map(Instant::elapsed);
        let now = self.clock.now();
        let api = Api::<Node>::all(self.client.clone());
        if silence.is_some_and(|silence| silence >= GRACE) {
            let changed = decide::unknown(&node, now);
            if !changed.is_empty() {
                let patch = json!({"status": {"conditions": changed}});
                forgive(api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await)?;
                if decide::is_ready(&node) {
                    self.say_not_ready(&node).await?;
                }
                // The watch shows it, and then its taints follow.
                return Ok(Outcome::Settled);
            }
        }
        if let Some(taints) = decide::taints(&node, now) {
            let taints = if taints.is_empty() { Value::Null } else { json!(taints) };
            let patch = json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": taints}});
            forgive(api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await)?;
        }
        Ok(match silence {
            Some(silence) if silence < GRACE => Outcome::After(GRACE - silence),
            _ => Outcome::Settled,
        })
    }

    /// A node that was ready is not: neither are its pods.
    async fn say_not_ready(&self, node: &Node) -> Result<(), kube::Error> {
        let name = node.name_any();
        let message = format!("Node {name} status is now: NodeNotReady");
        self.recorder.normal(about("Node", "", &name, node.uid()), "NodeNotReady", message);
        for pod in self.by_node.get(&name) {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
            if !conditions.iter().any(|c| c.type_ == "Ready" && c.status != "False") {
                continue;
            }
            let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": self.now()});
            self.patch_pod(&pod, json!({"conditions": [condition]})).await?;
            self.recorder.warning(about_pod(&pod), "NodeNotReady", "Node is not ready");
        }
        Ok(())
    }

    async fn look_at_pod(&self, key: &Key) -> Result<Outcome, kube::Error> {
        let pod = self.pods.get(key);
        let Some((pod, name)) = pod.as_ref().and_then(|pod| Some((pod, node_of(pod)?))) else {
            self.marked.lock().remove(key);
            return Ok(Outcome::Settled);
        };
        let Some(node) = self.nodes.get(&Key::new("", name)) else { return self.orphan(pod, name).await };
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() || matches!(phase, "Succeeded" | "Failed") {
            return Ok(Outcome::Settled);
        }
        let place = format!("{}/{}", key.namespace, key.name);
        match decide::stay(pod, &node, self.clock.now()) {
            None => {
                if self.marked.lock().remove(key) {
                    let message = format!("Cancelling deletion of Pod {place}");
                    self.recorder.normal(about_pod(pod), "TaintManagerEviction", message);
                }
                Ok(Outcome::Settled)
            }
            Some(Duration::ZERO) => {
                let message = format!("Marking for deletion Pod {place}");
                self.recorder.normal(about_pod(pod), "TaintManagerEviction", message);
                let why = self.disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
                self.patch_pod(pod, json!({"conditions": [why]})).await?;
                self.marked.lock().remove(key);
                self.delete(pod, DeleteParams::default()).await
            }
            Some(left) => {
                self.marked.lock().insert(key.clone());
                Ok(Outcome::After(left))
            }
        }
    }

    /// The pod's node is not there: when that stays so, nobody else will end it.
    async fn orphan(&self, pod: &Pod, node: &str) -> Result<Outcome, kube::Error> {
        if !*self.listed.lock() {
            return Ok(Outcome::Settled);
        }
        let since = *self.missing.lock().entry(node.into()).or_insert_with(Instant::now);
        if since.elapsed() < QUARANTINE {
            return Ok(Outcome::After(QUARANTINE - since.elapsed()));
        }
        if Api::<Node>::all(self.client.clone()).get_opt(node).await?.is_some() {
            return Ok(Outcome::Settled);
        }
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        if !matches!(phase, "Succeeded" | "Failed") {
            let why = self.disrupted("DeletionByPodGC", "PodGC: node no longer exists");
            self.patch_pod(pod, json!({"phase": "Failed", "conditions": [why]})).await?;
        }
        self.delete(pod, DeleteParams::default().grace_period(0)).await
    }

    fn disrupted(&self, reason: &str, message: &str) -> Value {
        json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": self.now()})
    }

    async fn patch_pod(&self, pod: &Pod, status: Value) -> Result<(), kube::Error> {
        let api = self.api(pod);
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid()}, "status": status}));
        forgive(api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await)
    }

    async fn delete(&self, pod: &Pod, how: DeleteParams) -> Result<Outcome, kube::Error> {
        let how = how.preconditions(Preconditions { uid: pod.uid(), resource_version: None });
        forgive(self.api(pod).delete(&pod.name_any(), &how).await)?;
        Ok(Outcome::Settled)
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default())
    }

    fn now(&self) -> Value {
        let now = self.clock.now();
        jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string().into()
    }
}

/// What has gone or was changed by another needs nothing from us now: the watch tells.
fn forgive<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

fn about_pod(pod: &Pod) -> ObjectReference {
    about("Pod", pod.metadata.namespace.as_deref().unwrap_or_default(), &pod.name_any(), pod.uid())
}

fn about(kind: &str, namespace: &str, name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_string()),
        kind: Some(kind.to_string()),
        namespace: Some(namespace.to_string()).filter(|n| !n.is_empty()),
        name: Some(name.to_string()),
        uid,
        ..Default::default()
    }
}
