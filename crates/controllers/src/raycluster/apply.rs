//! Carries out what [`decide`](super::decide) says about one RayCluster, and writes its status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use parking_lot::Mutex;
use serde_json::json;
use usher_api::ray::{API_VERSION, RayCluster};
use usher_env::Clock;

use super::decide::{decide, is_ours};
use super::pods::{Place, build};
use super::status::{differs_in_counts_only, status};
use crate::queueing::merge_patch;
use crate::runtime::objects::{is_conflict, is_namespace_terminating, is_not_found, sentence};
use crate::runtime::{GroupResource, Index, Key, Outcome, Recorder, Store, Tasks, Watches};

/// Pods written at once, of one cluster.
const AT_ONCE: usize = 16;
/// The least time between two writes of a status that tell nothing but how many workers run: thousands may start in a moment.
const PACE: SignedDuration = SignedDuration::from_millis(500);

pub(super) struct Runner {
    client: Client,
    clock: Clock,
    watches: Watches,
    recorder: Recorder,
    clusters: Store<RayCluster>,
    /// By the uid of their controller.
    pods: Index<Pod>,
    /// The newest revisions of the cluster and of its pods that this wrote: nothing is decided on caches that are older.
    wrote: Mutex<BTreeMap<Key, (u64, u64)>>,
    /// When the status of each was last written.
    told: Mutex<BTreeMap<Key, Timestamp>>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Runner {
    pub fn new(
        client: &Client,
        clock: &Clock,
        watches: &Watches,
        clusters: Store<RayCluster>,
        pods: Index<Pod>,
        tasks: &Tasks,
    ) -> Runner {
        Runner {
            client: client.clone(),
            clock: clock.clone(),
            watches: watches.clone(),
            recorder: Recorder::new(client, clock, "raycluster-controller", tasks),
            clusters,
            pods,
            wrote: Mutex::default(),
            told: Mutex::default(),
        }
    }

    pub async fn sync(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(cluster) = self.clusters.get(key) else {
            self.wrote.lock().remove(key);
            self.told.lock().remove(key);
            return Ok(Outcome::Settled);
        };
        if !is_ours(&cluster) || !self.is_fresh(key) {
            // Not ours; or the caches do not show our last write yet, and its event will bring us back.
            return Ok(Outcome::Settled);
        }
        let pods = self.pods.get(cluster.metadata.uid.as_deref().unwrap_or_default());
        // The status first: that it has no pods is taken back before the first is made.
        let again = self.write_status(key, &cluster, &pods).await?;
        let plan = decide(&cluster, &pods);
        self.delete(&cluster, &plan.delete).await?;
        self.create(key, &cluster, &plan.create).await?;
        Ok(again.map_or(Outcome::Settled, Outcome::After))
    }

    fn is_fresh(&self, key: &Key) -> bool {
        let Some((cluster, pods)) = self.wrote.lock().get(key).copied() else { return true };
        cluster <= self.watches.seen(&GroupResource::new("ray.io", "rayclusters"))
            && pods <= self.watches.seen(&GroupResource::new("", "pods"))
    }

    fn remember(&self, key: &Key, cluster: u64, pods: u64) {
        let mut all = self.wrote.lock();
        let known = all.entry(key.clone()).or_default();
        *known = (known.0.max(cluster), known.1.max(pods));
    }

    /// Says when to look again, if what has changed can wait.
    async fn write_status(
        &self,
        key: &Key,
        cluster: &RayCluster,
        pods: &[Arc<Pod>],
    ) -> Result<Option<Duration>, Error> {
        let now = self.clock.now();
        let to = status(cluster, pods, now);
        let diff = merge_patch::diff(&serde_json::to_value(&cluster.status)?, &serde_json::to_value(&to)?);
        let Some(diff) = diff else { return Ok(None) };
        let last = self.told.lock().get(key).copied();
        if let Some(last) = last.filter(|_| differs_in_counts_only(&cluster.status, &to))
            // Of a clock that was set back, nothing is expected.
            && let Ok(wait) = Duration::try_from((last + PACE).duration_since(now).min(PACE))
            && !wait.is_zero()
        {
            return Ok(Some(wait));
        }
        let meta = &cluster.metadata;
        let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": diff});
        let api = Api::<RayCluster>::namespaced(self.client.clone(), &key.namespace);
        match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(stored) => {
                self.told.lock().insert(key.clone(), now);
                self.remember(key, revision(stored.metadata.resource_version.as_deref()), 0);
            }
            // Somebody was faster, and what they did brings us back here.
            Err(error) if is_conflict(&error) || is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    async fn delete(&self, cluster: &RayCluster, pods: &[Arc<Pod>]) -> Result<(), Error> {
        let all: Vec<BoxFuture<'_, Result<(), Error>>> =
            pods.iter().map(|pod| -> BoxFuture<'_, _> { Box::pin(self.delete_one(cluster, pod)) }).collect();
        futures::stream::iter(all).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    async fn delete_one(&self, cluster: &RayCluster, pod: &Pod) -> Result<(), Error> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let only = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let how = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        match self.pods_of(cluster).delete(name, &how).await {
            Ok(_) => self.recorder.normal(reference(cluster), "DeletedPod", format!("Deleted Pod {name}")),
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn create(&self, key: &Key, cluster: &RayCluster, places: &[Place]) -> Result<(), Error> {
        let all: Vec<BoxFuture<'_, Result<(), Error>>> = (places.iter())
            .filter_map(|place| build(cluster, place))
            .map(|pod| -> BoxFuture<'_, _> { Box::pin(self.create_one(key, cluster, pod)) })
            .collect();
        // All of them are heard, also after one has failed: what was made must be known before anything is made again.
        let made: Vec<Result<(), Error>> = futures::stream::iter(all).buffer_unordered(AT_ONCE).collect().await;
        made.into_iter().collect()
    }

    async fn create_one(&self, key: &Key, cluster: &RayCluster, pod: Pod) -> Result<(), Error> {
        match self.pods_of(cluster).create(&PostParams::default(), &pod).await {
            Ok(made) => {
                self.remember(key, 0, revision(made.metadata.resource_version.as_deref()));
                let name = made.metadata.name.unwrap_or_default();
                self.recorder.normal(reference(cluster), "CreatedPod", format!("Created Pod {name}"));
                Ok(())
            }
            Err(error) => {
                if !is_namespace_terminating(&error) {
                    let message = format!("Failed to create Pod: {}", sentence(&error));
                    self.recorder.warning(reference(cluster), "FailedToCreatePod", message);
                }
                Err(error.into())
            }
        }
    }

    fn pods_of(&self, cluster: &RayCluster) -> Api<Pod> {
        Api::namespaced(self.client.clone(), cluster.metadata.namespace.as_deref().unwrap_or_default())
    }
}

fn reference(cluster: &RayCluster) -> ObjectReference {
    let meta = &cluster.metadata;
    ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some("RayCluster".to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// A revision that cannot be compared is not waited for.
fn revision(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
