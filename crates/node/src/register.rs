//! Keeps the Node object of this machine: created when it is not there, its status written when it starts and every five
//! minutes, its lease every ten seconds, as kubelet does.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use usher_env::Clock;

use crate::events::Recorder;
use crate::machine::Machine;

const LEASE_SECS: i32 = 40;
pub const RENEW: Duration = Duration::from_secs(10);
/// Kubelet's `nodeStatusReportFrequency`.
const REPORT: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_millis(500);
const NAMESPACE: &str = "kube-node-lease";

pub struct Registration {
    pub client: Client,
    pub clock: Clock,
    pub machine: Machine,
    pub name: String,
    pub recorder: Recorder,
}

impl Registration {
    /// Until dropped. On virtual time the node is registered once and then left alone.
    pub async fn keep(self) {
        while let Err(error) = self.register().await {
            tracing::warn!(node = self.name, %error, "the node could not be registered");
            tokio::time::sleep(RETRY).await;
        }
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            uid: Some(self.name.clone()),
            ..ObjectReference::default()
        };
        self.recorder.normal(about, "Starting", "Starting kubelet.");
        let mut reported = tokio::time::Instant::now();
        loop {
            if let Err(error) = renew(&self.client, &self.name, self.clock.now()).await {
                tracing::debug!(node = self.name, %error, "the lease could not be renewed");
            }
            if self.clock.is_virtual() {
                return;
            }
            tokio::time::sleep(RENEW).await;
            if reported.elapsed() >= REPORT {
                reported = tokio::time::Instant::now();
                if let Err(error) = self.report().await {
                    tracing::debug!(node = self.name, %error, "the node's status could not be written");
                }
            }
        }
    }

    async fn register(&self) -> Result<(), kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let node = self.machine.node(&self.name, self.clock.now());
        let params = PostParams { field_manager: Some("kubelet".to_owned()), ..PostParams::default() };
        match api.create(&params, &node).await {
            // The status of what is created comes by its own request.
            Ok(_) => {}
            Err(kube::Error::Api(error)) if error.code == 409 => {
                let labels = serde_json::json!({"metadata": {"labels": node.metadata.labels}});
                api.patch(&self.name, &patch_params(), &Patch::Strategic(labels)).await?;
            }
            Err(error) => return Err(error),
        }
        self.report().await?;
        self.untaint(&api).await
    }

    /// A new node is tainted until it is ready. Where there is no controller that sees to that, it is done here.
    async fn untaint(&self, api: &Api<Node>) -> Result<(), kube::Error> {
        let taints = api.get(&self.name).await?.spec.and_then(|s| s.taints).unwrap_or_default();
        let kept = tolerable(&taints);
        if kept.len() < taints.len() {
            let taints = if kept.is_empty() { serde_json::Value::Null } else { serde_json::json!(kept) };
            let patch = serde_json::json!({"spec": {"taints": taints}});
            api.patch(&self.name, &patch_params(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    /// The status, with what conditions say only where it changed.
    async fn report(&self) -> Result<(), kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let now = self.clock.now();
        let mut status = self.machine.node(&self.name, now).status.unwrap_or_default();
        let before = api.get_status(&self.name).await?.status.and_then(|s| s.conditions).unwrap_or_default();
        for condition in status.conditions.iter_mut().flatten() {
            let same = before.iter().find(|b| b.type_ == condition.type_ && b.status == condition.status);
            if let Some(same) = same.filter(|s| s.last_transition_time.is_some()) {
                condition.last_transition_time = same.last_transition_time.clone();
            }
        }
        let patch = serde_json::json!({"status": status});
        api.patch_status(&self.name, &patch_params(), &Patch::Strategic(patch)).await?;
        Ok(())
    }
}

/// Renews the Lease of a node, or makes it.
pub async fn renew(client: &Client, node: &str, now: Timestamp) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = serde_json::json!({"spec": {"renewTime": MicroTime(micros(now)), "holderIdentity": node}});
    match api.patch(node, &patch_params(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(error)) if error.code == 404 => {
            let owner = Api::<Node>::all(client.clone()).get(node).await?;
            api.create(&PostParams::default(), &lease(node, owner.metadata.uid, now)).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Without the taints of a node that has not reported yet.
pub fn tolerable(taints: &[Taint]) -> Vec<Taint> {
    taints.iter().filter(|t| t.key != "node.kubernetes.io/not-ready").cloned().collect()
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() }
}

fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

fn lease(node: &str, uid: Option<String>, now: Timestamp) -> Lease {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.unwrap_or_default(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(LEASE_SECS),
            renew_time: Some(MicroTime(micros(now))),
            ..LeaseSpec::default()
        }),
    }
}
