//! Marks the pod that leads, and no other: only there is known who waits, so the visibility API's Service picks it by this label.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::names::{FIELD_MANAGER, LEADER_LABEL};

const RETRY: Duration = Duration::from_secs(5);

/// Returns when the label is where it belongs. `client` is the leader's.
pub async fn mark(client: &Client, namespace: &str, pod: &str) {
    while let Err(error) = try_mark(client, namespace, pod).await {
        tracing::warn!(pod, %error, "cannot be marked as the leader; the visibility API is not reached until it is");
        tokio::time::sleep(RETRY).await;
    }
}

async fn try_mark(client: &Client, namespace: &str, pod: &str) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let marked = api.list_metadata(&ListParams::default().labels(&format!("{LEADER_LABEL}=true"))).await?;
    let how = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    for other in marked.items.iter().map(ResourceExt::name_any).filter(|name| name != pod) {
        let unmark = json!({"metadata": {"labels": {LEADER_LABEL: null}}});
        api.patch_metadata(&other, &how, &Patch::Merge(&unmark)).await?;
    }
    let mark = json!({"metadata": {"labels": {LEADER_LABEL: "true"}}});
    api.patch_metadata(pod, &how, &Patch::Merge(&mark)).await?;
    Ok(())
}
