//! A node of pods that only pretend to run, for tests of the Job controller: what a pod does is written on it.
//!
//! - `test/runs`: seconds after which it ends; without it, it runs until it is deleted.
//! - `test/fails`: how many pods of the Job (of an Indexed Job: of the index) end badly before one ends well.
//! - `test/exit-code`: with which code it ends badly; 1 if nothing is said.
//! - `test/condition`: a condition that a pod that ends badly gets.
//! - `test/stops-after`: seconds that it takes to stop when it is deleted.
//! - `test/pending`: it never gets a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use usher_env::Clock;

pub struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelet {
    pub fn start(client: Client, clock: Clock) -> Kubelet {
        let attempts = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
        Kubelet(tokio::spawn(async move {
            let mut pods =
                watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()).applied_objects().boxed();
            let mut begun = BTreeSet::new();
            while let Ok(Some(pod)) = pods.try_next().await {
                let stopping = pod.metadata.deletion_timestamp.is_some();
                if !stopping && is_gated(&pod) {
                    // Nobody binds it yet.
                    continue;
                }
                if begun.insert((pod.uid().unwrap_or_default(), stopping)) {
                    let node = Node { client: client.clone(), clock: clock.clone(), attempts: attempts.clone() };
                    tokio::spawn(async move { if stopping { node.stop(pod).await } else { node.run(pod).await } });
                }
            }
        }))
    }
}

struct Node {
    client: Client,
    clock: Clock,
    attempts: Arc<Mutex<BTreeMap<String, u32>>>,
}

fn note(pod: &Pod, name: &str) -> Option<String> {
    pod.annotations().get(name).cloned()
}

fn secs(pod: &Pod, name: &str) -> Option<Duration> {
    note(pod, name)?.parse().ok().map(Duration::from_secs_f64)
}

impl Node {
    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default())
    }

    async fn run(&self, pod: Pod) {
        if note(&pod, "test/pending").is_some() || has_ended(&pod) {
            return;
        }
        let (api, name) = (self.api(&pod), pod.name_any());
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": "pretend"}});
        let _ = api.create_subresource::<Value, Value>("binding", &name, &PostParams::default(), &binding).await;
        self.report(&pod, "Running", "True", json!({"running": {"startedAt": self.now()}}), None).await;
        let Some(runs) = secs(&pod, "test/runs") else { return };
        let fails = self.fails(&pod).await;
        tokio::time::sleep(runs).await;
        let code: i32 =
            if fails { note(&pod, "test/exit-code").map_or(1, |code| code.parse().expect("a code")) } else { 0 };
        let phase = if fails { "Failed" } else { "Succeeded" };
        let condition = note(&pod, "test/condition").filter(|_| fails);
        self.report(&pod, phase, "False", self.terminated(code), condition).await;
    }

    async fn fails(&self, pod: &Pod) -> bool {
        let Some(wanted) = note(pod, "test/fails") else { return false };
        let job = pod.owner_references().first().map(|owner| owner.uid.clone()).unwrap_or_default();
        let index = note(pod, "batch.kubernetes.io/job-completion-index").unwrap_or_default();
        let mut attempts = self.attempts.lock().await;
        let attempt = attempts.entry(format!("{job}/{index}")).or_default();
        *attempt += 1;
        // `2@1,3`: two failures, of the indexes 1 and 3 only.
        let (count, only) = wanted.split_once('@').unwrap_or((&wanted, ""));
        let concerned = only.is_empty() || only.split(',').any(|one| one == index);
        concerned && *attempt <= count.parse().expect("a number")
    }

    async fn stop(&self, pod: Pod) {
        tokio::time::sleep(secs(&pod, "test/stops-after").unwrap_or_default()).await;
        if !has_ended(&pod) {
            self.report(&pod, "Failed", "False", self.terminated(143), None).await;
        }
        let _ = self.api(&pod).delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
    }

    fn now(&self) -> String {
        self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    fn terminated(&self, code: i32) -> Value {
        json!({"terminated": {"exitCode": code, "finishedAt": self.now(), "startedAt": self.now()}})
    }

    async fn report(&self, pod: &Pod, phase: &str, ready: &str, state: Value, condition: Option<String>) {
        let containers: Vec<Value> = pod.spec.iter().flat_map(|spec| &spec.containers)
            .map(|c| json!({"name": c.name, "image": c.image, "imageID": "", "ready": ready == "True", "restartCount": 0, "state": state}))
            .collect();
        let mut conditions = vec![json!({"type": "Ready", "status": ready, "lastTransitionTime": self.now()})];
        conditions
            .extend(condition.map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": self.now()})));
        let status = json!({"metadata": {"uid": pod.uid()}, "status": {"phase": phase, "conditions": conditions, "containerStatuses": containers}});
        let _ = self.api(pod).patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await;
    }
}

fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()))
}

pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
