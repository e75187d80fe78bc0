//! Events as kubelet records them: written in the order they happened, by one task, so that no pod waits for them. The same
//! event again counts up.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use usher_env::Clock;

use crate::status::whole_seconds;

/// Events that are remembered for counting.
const MEMORY: usize = 4096;

#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::UnboundedSender<Said>,
    clock: Clock,
}

struct Said {
    about: ObjectReference,
    kind: &'static str,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

impl Recorder {
    /// A recorder and the task that writes for it.
    pub fn new(client: Client, clock: Clock, node: String) -> (Recorder, impl Future<Output = ()> + Send) {
        let (queue, said) = mpsc::unbounded_channel();
        (Recorder { queue, clock }, write_all(client, node, said))
    }

    pub fn normal(&self, about: ObjectReference, reason: &'static str, message: impl Into<String>) {
        self.say(about, "Normal", reason, message.into());
    }

    pub fn warning(&self, about: ObjectReference, reason: &'static str, message: impl Into<String>) {
        self.say(about, "Warning", reason, message.into());
    }

    fn say(&self, about: ObjectReference, kind: &'static str, reason: &'static str, message: String) {
        let _ = self.queue.send(Said { about, kind, reason, message, at: self.clock.now() });
    }
}

pub fn pod_reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

pub fn container_reference(pod: &Pod, container: &str) -> ObjectReference {
    let spec = pod.spec.as_ref();
    let is_init = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten()).any(|c| c.name == container);
    let list = if is_init { "initContainers" } else { "containers" };
    ObjectReference { field_path: Some(format!("spec.{list}{{{container}}}")), ..pod_reference(pod) }
}

type Same = (Option<String>, Option<String>, &'static str, String);

async fn write_all(client: Client, node: String, mut said: mpsc::UnboundedReceiver<Said>) {
    let mut before: HashMap<Same, (String, i32)> = HashMap::new();
    let mut sequence = 0u64;
    while let Some(event) = said.recv().await {
        let same = (event.about.uid.clone(), event.about.field_path.clone(), event.reason, event.message.clone());
        let namespace = event.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        if let Some((name, count)) = before.get_mut(&same) {
            *count += 1;
            let at = Time(whole_seconds(event.at));
            let patch = serde_json::json!({"count": *count, "lastTimestamp": at});
            if api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.is_ok() {
                continue;
            }
        }
        sequence += 1;
        let name = format!(
            "{}.{:x}",
            event.about.name.as_deref().unwrap_or_default(),
            event.at.as_nanosecond().wrapping_add(i128::from(sequence))
        );
        if before.len() >= MEMORY {
            before.clear();
        }
        before.insert(same, (name.clone(), 1));
        let object = lower(event, name, &namespace, &node);
        let params = PostParams { field_manager: Some("kubelet".to_owned()), ..PostParams::default() };
        if let Err(error) = api.create(&params, &object).await {
            tracing::debug!(%error, "an event could not be recorded");
        }
    }
}

fn lower(event: Said, name: String, namespace: &str, node: &str) -> Event {
    let at = Time(whole_seconds(event.at));
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
        involved_object: event.about,
        reason: Some(event.reason.to_owned()),
        message: Some(event.message),
        type_: Some(event.kind.to_owned()),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node.to_owned()),
        first_timestamp: Some(at.clone()),
        last_timestamp: Some(at),
        count: Some(1),
        ..Event::default()
    }
}
