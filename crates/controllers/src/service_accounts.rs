//! What every namespace is born with, and gets back when it loses it: the ServiceAccount `default`, and the ConfigMap
//! `kube-root-ca.crt` with which a pod can trust the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};

use crate::runtime::objects::{is_already_exists, is_namespace_terminating, is_not_found};
use crate::runtime::{GroupResource, Key, Meta, Outcome, QueueMetrics, Signal, Signals, Tasks, Watches, WorkQueue};

const DEFAULT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const CA_KEY: &str = "ca.crt";
const DESCRIBED: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// Whether the namespace must be given the account.
pub fn lacks_account(namespace: Option<&Meta>, account: Option<&Meta>) -> bool {
    namespace.is_some_and(|n| !n.being_deleted()) && account.is_none()
}

/// The ConfigMap as it must be written, if it is not right as it is.
pub fn decide_root_ca(found: Option<&ConfigMap>, root_ca: &str) -> Option<ConfigMap> {
    let data = BTreeMap::from([(CA_KEY.to_string(), root_ca.to_string())]);
    let described = |m: &ConfigMap| {
        m.metadata.annotations.as_ref().and_then(|a| a.get(DESCRIBED)).is_some_and(|text| !text.is_empty())
    };
    if found.is_some_and(|map| map.data.as_ref() == Some(&data) && described(map)) {
        return None;
    }
    let mut map = found.cloned().unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta { name: Some(ROOT_CA.to_string()), ..Default::default() },
        ..Default::default()
    });
    map.data = Some(data);
    map.metadata.annotations.get_or_insert_default().insert(DESCRIBED.to_string(), DESCRIPTION.to_string());
    Some(map)
}

pub(crate) fn start_default_accounts(client: Client, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let (namespaces, accounts) = (GroupResource::new("", "namespaces"), GroupResource::new("", "serviceaccounts"));
    let (known_namespaces, known_accounts) = (watches.metadata(&namespaces), watches.metadata(&accounts));
    let signals = subscribe(watches, [namespaces, accounts.clone()]);
    let queue = WorkQueue::new("serviceaccount", metrics);
    keep(signals, queue, tasks, accounts, DEFAULT, false, move |namespace| {
        let client = client.clone();
        let found = known_namespaces.get(&Key::new("", &namespace));
        let account = known_accounts.get(&Key::new(&namespace, DEFAULT));
        async move {
            if !lacks_account(found.as_deref(), account.as_deref()) {
                return Ok(());
            }
            let account = ServiceAccount {
                metadata: ObjectMeta { name: Some(DEFAULT.to_string()), ..Default::default() },
                ..Default::default()
            };
            let api = Api::<ServiceAccount>::namespaced(client, &namespace);
            api.create(&Default::default(), &account).await.map(drop)
        }
    });
}

pub(crate) fn start_root_ca(client: Client, root_ca: String, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let (namespaces, maps) = (GroupResource::new("", "namespaces"), GroupResource::new("", "configmaps"));
    let known_namespaces = watches.metadata(&namespaces);
    let signals = subscribe(watches, [namespaces, maps.clone()]);
    let queue = WorkQueue::new("root_ca_cert_publisher", metrics);
    let root_ca: Arc<str> = root_ca.into();
    keep(signals, queue, tasks, maps, ROOT_CA, true, move |namespace| {
        let (client, root_ca) = (client.clone(), root_ca.clone());
        let active = known_namespaces.get(&Key::new("", &namespace)).is_some_and(|n| !n.being_deleted());
        async move {
            if !active {
                return Ok(());
            }
            // Watching whole ConfigMaps to see this one would cost more than asking for it when it changes.
            let api = Api::<ConfigMap>::namespaced(client, &namespace);
            let found = api.get_opt(ROOT_CA).await?;
            match decide_root_ca(found.as_ref(), &root_ca) {
                Some(map) if found.is_some() => api.replace(ROOT_CA, &Default::default(), &map).await.map(drop),
                Some(map) => api.create(&Default::default(), &map).await.map(drop),
                None => Ok(()),
            }
        }
    });
}

fn subscribe<const N: usize>(watches: &Watches, ids: [GroupResource; N]) -> Signals {
    watches.subscribe(move |resource| ids.contains(&resource.id))
}

/// Calls `ensure` for a namespace when it appears or changes, and when the object `name` of kind `of` is lost there (or
/// `edits`: changed), from the moment when both kinds have been listed.
fn keep<F, Fut>(
    mut signals: Signals,
    queue: WorkQueue<Arc<str>>,
    tasks: &Tasks,
    of: GroupResource,
    name: &'static str,
    edits: bool,
    ensure: F,
) where
    F: Fn(Arc<str>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), kube::Error>> + Send,
{
    let tasks_inside = tasks.clone();
    tasks.spawn(async move {
        let mut unlisted = BTreeSet::from([of.clone(), GroupResource::new("", "namespaces")]);
        while let Some(signal) = signals.recv().await {
            match signal {
                Signal::Applied(resource, meta) if resource.id == of => {
                    if edits && *meta.name == *name {
                        queue.add(meta.namespace.clone());
                    }
                }
                Signal::Deleted(resource, meta) if resource.id == of => {
                    if *meta.name == *name {
                        queue.add(meta.namespace.clone());
                    }
                }
                Signal::Applied(_, namespace) => queue.add(namespace.name.clone()),
                Signal::Synced(resource) => {
                    if unlisted.remove(&resource.id) && unlisted.is_empty() {
                        let ensure = ensure.clone();
                        queue.run(2, &tasks_inside, move |namespace| {
                            let done = ensure(namespace);
                            async move { settle(done.await) }
                        });
                    }
                }
                Signal::Deleted(..) | Signal::Catalog(_) | Signal::Settled => {}
            }
        }
    });
}

/// Somebody else was faster, or the namespace is going or gone: nothing is left to do.
fn settle(result: Result<(), kube::Error>) -> Result<Outcome, kube::Error> {
    match result {
        Err(e) if !is_already_exists(&e) && !is_not_found(&e) && !is_namespace_terminating(&e) => Err(e),
        _ => Ok(Outcome::Settled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_made_only_in_a_namespace_that_stays() {
        let (staying, leaving) =
            (Meta::default(), Meta { deletion_timestamp: Some(jiff::Timestamp::UNIX_EPOCH), ..Meta::default() });
        assert!(lacks_account(Some(&staying), None));
        assert!(!lacks_account(Some(&staying), Some(&Meta::default())));
        assert!(!lacks_account(Some(&leaving), None));
        assert!(!lacks_account(None, None));
    }

    #[test]
    fn the_ca_is_restored_and_foreign_keys_are_dropped() {
        let right = decide_root_ca(None, "pem").unwrap();
        assert_eq!(right.data.as_ref().unwrap()["ca.crt"], "pem");
        assert!(right.metadata.annotations.as_ref().unwrap()[DESCRIBED].starts_with("Contains a CA bundle"));
        assert_eq!(decide_root_ca(Some(&right), "pem"), None);
        let mut wrong = right.clone();
        wrong.data.as_mut().unwrap().insert("extra".into(), "x".into());
        wrong.metadata.resource_version = Some("7".into());
        wrong.metadata.labels = Some([("kept".to_string(), "yes".to_string())].into());
        let restored = decide_root_ca(Some(&wrong), "pem").unwrap();
        assert_eq!(restored.data, right.data);
        assert_eq!(
            (restored.metadata.resource_version.as_deref(), restored.metadata.labels.is_some()),
            (Some("7"), true)
        );
    }

    #[test]
    fn a_description_of_ones_own_is_kept_and_a_missing_one_is_written() {
        let mut map = decide_root_ca(None, "pem").unwrap();
        map.metadata.annotations.as_mut().unwrap().insert(DESCRIBED.into(), "ours".into());
        assert_eq!(decide_root_ca(Some(&map), "pem"), None);
        map.metadata.annotations = None;
        assert!(decide_root_ca(Some(&map), "pem").is_some());
    }
}
