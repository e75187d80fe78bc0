//! The Node objects of simulated nodes: registered once and, where a cluster watches over its nodes, kept alive by Leases.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::Instant;
use usher_env::Clock;

use super::config::Group;
use super::run::{CALLS, RETRY};
use crate::follow::{Change, Which, follow};
use crate::machine;
use crate::register::{RENEW, renew, tolerable};

const SIMULATED: &str = "usher.dev/simulated=true";

/// Removes simulated nodes that are no longer simulated: nobody would run what is bound to them. `names` are those that are.
pub async fn forget_others(client: Client, names: &HashSet<String>) -> Result<usize, kube::Error> {
    let api: Api<Node> = Api::all(client);
    let there = api.list_metadata(&ListParams::default().labels("usher.dev/simulated=true")).await?;
    let gone: Vec<String> =
        there.items.into_iter().filter_map(|n| n.metadata.name).filter(|n| !names.contains(n)).collect();
    let params = DeleteParams::default();
    let deletions: Vec<_> = gone.iter().map(|name| api.delete(name, &params)).collect();
    stream::iter(deletions).buffer_unordered(CALLS).for_each(|_| async {}).await;
    Ok(gone.len())
}

pub async fn register(client: &Client, clock: &Clock, groups: &[Group]) {
    let api: Api<Node> = Api::all(client.clone());
    let nodes = groups.iter().flat_map(|group| group.names().map(move |name| (group, name)));
    let made = stream::iter(nodes).for_each_concurrent(CALLS, |(group, name)| {
        let (api, clock) = (api.clone(), clock.clone());
        async move {
            while let Err(error) = register_one(&api, group, &name, clock.now()).await {
                tracing::debug!(node = name, %error, "a simulated node could not be registered");
                tokio::time::sleep(RETRY).await;
            }
        }
    });
    made.await;
    tracing::info!(nodes = groups.iter().map(|g| g.count).sum::<u32>(), "simulated nodes are ready");
}

async fn register_one(api: &Api<Node>, group: &Group, name: &str, now: Timestamp) -> Result<(), kube::Error> {
    let node = group.node(name, now);
    let params = PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() };
    let there = match api.create(&PostParams::default(), &node).await {
        Ok(created) => created,
        Err(kube::Error::Api(error)) if error.code == 409 => {
            let labels = serde_json::json!({"metadata": {"labels": node.metadata.labels}});
            api.patch(name, &params, &Patch::Merge(labels)).await?
        }
        Err(error) => return Err(error),
    };
    let status = there.status.unwrap_or_default();
    let wanted = node.status.unwrap_or_default();
    if status.capacity != wanted.capacity || status.conditions.is_none_or(|c| c.is_empty()) {
        let status = serde_json::json!({"status": wanted});
        api.patch_status(name, &params, &Patch::Merge(status)).await?;
    }
    // A new node is tainted until its first status has been seen, which is now.
    let taints = there.spec.and_then(|s| s.taints).unwrap_or_default();
    let kept = tolerable(&taints);
    let missing = group.taints().into_iter().filter(|t| !kept.iter().any(|k| k.key == t.key && k.effect == t.effect));
    let wanted: Vec<_> = kept.iter().cloned().chain(missing).collect();
    if wanted != taints {
        let taints = if wanted.is_empty() { serde_json::Value::Null } else { serde_json::json!(wanted) };
        api.patch(name, &params, &Patch::Merge(serde_json::json!({"spec": {"taints": taints}}))).await?;
    }
    Ok(())
}

/// Renews the Leases for ever, and has nodes that were given up taken back: a cluster marks those as unknown whose Leases
/// it has not seen renewed, for example because this process was away. A node that is deleted stays so.
pub async fn keep_alive(client: Client, clock: Clock, groups: Vec<Group>) {
    let groups: BTreeMap<String, Group> = groups.iter().flat_map(|g| g.names().map(|n| (n, g.clone()))).collect();
    if clock.is_virtual() {
        return;
    }
    let names: Vec<String> = groups.keys().cloned().collect();
    tokio::join!(renew_all(client.clone(), clock.clone(), names), take_back(&client, &clock, &groups));
}

/// Spread over the period, so that ten thousand nodes are a steady stream and no wave.
async fn renew_all(client: Client, clock: Clock, names: Vec<String>) {
    let gap = RENEW / u32::try_from(names.len().max(1)).unwrap_or(u32::MAX);
    let mut round = Instant::now();
    loop {
        let calls = stream::iter(names.clone().into_iter().zip(0u32..)).for_each_concurrent(CALLS, |(name, n)| {
            let (client, clock, at) = (client.clone(), clock.clone(), round + gap * n);
            async move {
                tokio::time::sleep_until(at).await;
                if let Err(error) = renew(&client, &name, clock.now()).await {
                    tracing::debug!(node = name, %error, "the lease of a simulated node could not be renewed");
                }
            }
        });
        calls.await;
        // After a pause of the machine, or of the server, no missed rounds are made up for.
        round = (round + RENEW).max(Instant::now());
    }
}

async fn take_back(client: &Client, clock: &Clock, groups: &BTreeMap<String, Group>) {
    let (tell, mut changes) = mpsc::unbounded_channel::<Change<Node>>();
    let ours = Which { labels: Some(SIMULATED), ..Which::default() };
    let following = follow(client.clone(), "/api/v1/nodes", ours, move |change| drop(tell.send(change)));
    let writing = async {
        let api: Api<Node> = Api::all(client.clone());
        while let Some(change) = changes.recv().await {
            let there = match change {
                Change::Listed(all) => all,
                Change::Applied(one) => vec![one],
                Change::Deleted(_) => continue,
            };
            for node in there.iter().filter(|node| !is_ready(node)) {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                let Some(group) = groups.get(name) else { continue };
                while let Err(error) = report(&api, group, name, clock.now()).await {
                    tracing::debug!(node = name, %error, "a simulated node could not say that it is ready");
                    if matches!(error, kube::Error::Api(ref answer) if answer.code == 404) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        }
    };
    tokio::join!(following, writing);
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn report(api: &Api<Node>, group: &Group, name: &str, now: Timestamp) -> Result<(), kube::Error> {
    let params = PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() };
    let capacity = group.node(name, now).status.and_then(|s| s.capacity);
    let status = serde_json::json!({"status": {"conditions": machine::conditions(now), "capacity": capacity, "allocatable": capacity}});
    api.patch_status(name, &params, &Patch::Strategic(status)).await.map(drop)
}
