//! Writes a decision, once, and finds out whether it was written.
//!
//! A write names the revision it was made from, so it can take effect once at most, and can be tried again for as long as there is
//! no answer that settles it. Quota stays booked until then: a write whose answer was lost may have been carried out.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use usher_api::kueue::Workload;

use super::write::{Kind, Write};
use crate::queueing::merge_patch;
use crate::runtime::objects::is_conflict;
use crate::runtime::queue::backoff;

/// A server that is away or sheds load is asked again within this time.
const RETRY_CAP: Duration = Duration::from_secs(5);

/// The object as it is now; `None`: the workload is no longer as it was seen, and nothing was written.
pub async fn put(client: &Client, write: &Write) -> Option<Arc<Workload>> {
    let (from, to) = (serde_json::to_value(&write.of.status).ok()?, serde_json::to_value(&write.to).ok()?);
    let Some(status) = merge_patch::diff(&from, &to) else { return Some(write.of.clone()) };
    let meta = &write.of.metadata;
    let api = Api::<Workload>::namespaced(client.clone(), meta.namespace.as_deref().unwrap_or_default());
    let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status});
    let name = meta.name.as_deref().unwrap_or_default();
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let (mut failures, mut in_doubt) = (0, false);
    loop {
        let mut answer = api.patch_status(name, &params, &patch).await;
        if in_doubt {
            answer = look(&api, name, write, answer).await;
        }
        let error = match answer {
            Ok(now) => return Some(Arc::new(now)),
            Err(error) => error,
        };
        if is_answer(&error) {
            tracing::debug!(name, %error, "a decision could not be written; it is made again");
            return None;
        }
        failures += 1;
        // Whoever is told that there is too much to do was not listened to.
        in_doubt |= !matches!(&error, kube::Error::Api(status) if status.code == 429);
        tracing::debug!(name, %error, "a decision is written once more");
        tokio::time::sleep(backoff(failures, RETRY_CAP)).await;
    }
}

/// A conflict after a lost answer may be one with ourselves.
async fn look(
    api: &Api<Workload>,
    name: &str,
    write: &Write,
    answer: Result<Workload, kube::Error>,
) -> Result<Workload, kube::Error> {
    let Err(conflict) = answer else { return answer };
    if !is_conflict(&conflict) {
        return Err(conflict);
    }
    let now = api.get(name).await?;
    // What matters of an admission is who holds the quota; more may have happened since. The rest is decided again.
    let ours = now.metadata.uid == write.of.metadata.uid
        && write.kind == Kind::Admission
        && now.status.admission == write.to.admission;
    if ours { Ok(now) } else { Err(conflict) }
}

/// Whether the server has looked at the request and said no.
fn is_answer(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && !matches!(status.code, 408 | 429))
}
