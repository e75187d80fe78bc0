//! Labels the namespaces that have a LocalQueue `default`, so that a webhook can be asked about Jobs there and nowhere else.
//! The leader does this; nothing else of a namespace is touched.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use usher_api::kueue::keys::TRUE;

use crate::names::{FIELD_MANAGER, HAS_DEFAULT_QUEUE, SYSTEM_NAMESPACE};
use crate::webhook::surroundings::follow_default_queues;

/// How long to wait before a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What is to be written: the namespace, and whether it gets the label or loses it.
pub fn difference<'n>(with_queue: &'n BTreeSet<String>, labelled: &'n BTreeSet<String>) -> Vec<(&'n str, bool)> {
    let get = with_queue.difference(labelled).filter(|namespace| *namespace != SYSTEM_NAMESPACE);
    let lose = labelled.iter().filter(|namespace| !with_queue.contains(*namespace) || *namespace == SYSTEM_NAMESPACE);
    get.map(|name| (name.as_str(), true)).chain(lose.map(|name| (name.as_str(), false))).collect()
}

/// Keeps labels true. Does not return; `client` is the leader's.
pub async fn keep(client: Client) {
    let (tell_queues, mut queues) = watch::channel(None::<BTreeSet<String>>);
    let (tell_labels, mut labels) = watch::channel(None::<BTreeSet<String>>);
    let write = async {
        loop {
            let mut all_written = true;
            let (with_queue, labelled) = (queues.borrow_and_update().clone(), labels.borrow_and_update().clone());
            if let (Some(with_queue), Some(labelled)) = (with_queue, labelled) {
                for (namespace, has) in difference(&with_queue, &labelled) {
                    let written = label(&client, namespace, has).await;
                    all_written &= written;
                    if written {
                        // The watch says so too, a moment later; until then it is not to be written again.
                        tell_labels.send_if_modified(|known| remember(known, namespace, has));
                    }
                }
            }
            tokio::select! {
                changed = queues.changed() => if changed.is_err() { return },
                changed = labels.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY), if !all_written => {}
            }
        }
    };
    let follow = follow_default_queues(&client, |found| {
        tell_queues.send_replace(Some(found.clone()));
    });
    tokio::join!(write, follow, follow_labels(&client, &tell_labels));
}

/// Wakes nobody.
fn remember(known: &mut Option<BTreeSet<String>>, namespace: &str, has: bool) -> bool {
    if let Some(known) = known {
        if has {
            known.insert(namespace.to_owned())
        } else {
            known.remove(namespace)
        };
    }
    false
}

async fn follow_labels(client: &Client, tell: &watch::Sender<Option<BTreeSet<String>>>) {
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let only = Config::default().labels(&format!("{HAS_DEFAULT_QUEUE}={TRUE}"));
    let mut events = std::pin::pin!(watcher(api, only).default_backoff());
    let (mut found, mut listed) = (BTreeSet::new(), BTreeSet::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(namespace)) => {
                listed.insert(namespace.name_any());
                continue;
            }
            Ok(Event::InitDone) => found = std::mem::take(&mut listed),
            Ok(Event::Apply(namespace)) => {
                found.insert(namespace.name_any());
            }
            Ok(Event::Delete(namespace)) => {
                found.remove(&namespace.name_any());
            }
            Err(error) => {
                tracing::debug!(%error, "the watch of namespaces was cut");
                continue;
            }
        }
        tell.send_replace(Some(found.clone()));
    }
}

/// Whether that is settled.
async fn label(client: &Client, namespace: &str, has: bool) -> bool {
    let api: Api<Namespace> = Api::all(client.clone());
    let how = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = json!({"metadata": {"labels": {HAS_DEFAULT_QUEUE: has.then_some(TRUE)}}});
    match api.patch_metadata(namespace, &how, &Patch::Merge(&patch)).await {
        Ok(_) => tracing::info!(namespace, has, "says whether it has a default queue"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => {
            tracing::warn!(namespace, %error, "cannot be labelled; Jobs that name no queue start at once there");
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use usher_api::kueue::LocalQueue;

    use crate::testing::{World, until};

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_what_differs_is_written_and_the_system_is_left_alone() {
        assert_eq!(difference(&set(&["a", "b"]), &set(&["b", "c"])), [("a", true), ("c", false)]);
        assert_eq!(difference(&set(&["a"]), &set(&["a"])), []);
        assert_eq!(difference(&set(&["kube-system"]), &set(&[])), []);
        assert_eq!(difference(&set(&["kube-system"]), &set(&["kube-system"])), [("kube-system", false)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_is_labelled_for_as_long_as_it_has_a_default_queue() {
        let world = World::new().await;
        let client = world.client(&Arc::default());
        let kept = tokio::spawn(keep(client.clone()));
        let labelled = async |wanted: bool| {
            let namespace = Api::<Namespace>::all(client.clone()).get_metadata("here").await.unwrap();
            (namespace.labels().contains_key(HAS_DEFAULT_QUEUE) == wanted).then_some(())
        };
        let queues: Api<LocalQueue> = Api::default_namespaced(client.clone());
        for name in ["other", "default"] {
            assert!(labelled(false).await.is_some());
            let queue = json!({"metadata": {"name": name}, "spec": {"clusterQueue": "q"}});
            queues.create(&Default::default(), &serde_json::from_value(queue).unwrap()).await.unwrap();
        }
        until(async || labelled(true).await).await;
        // What somebody takes away comes back.
        let away = json!({"metadata": {"labels": {HAS_DEFAULT_QUEUE: null}}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.patch("here", &PatchParams::default(), &Patch::Merge(&away)).await.unwrap();
        until(async || labelled(true).await).await;
        queues.delete("default", &Default::default()).await.unwrap();
        until(async || labelled(false).await).await;
        kept.abort();
    }
}
