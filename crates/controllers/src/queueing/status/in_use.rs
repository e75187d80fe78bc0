//! Flavors, checks and topologies stay while something uses them: a finalizer keeps each, and goes when the last user has
//! gone. (Queues are let go of by [`super::publish`], which knows who has quota.)

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::json;
use usher_api::kueue::keys::RESOURCE_IN_USE;
use usher_api::kueue::{AdmissionCheck, ClusterQueue, ResourceFlavor, Topology};

use crate::queueing::apply::kueue;
use crate::runtime::objects::{is_conflict, is_not_found};
use crate::runtime::{Awaited, Key, Outcome, QueueMetrics, Signal, Store, Tasks, Watches, WorkQueue};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Flavor,
    Check,
    Topology,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Flavor, Kind::Check, Kind::Topology];

    fn plural(self) -> &'static str {
        match self {
            Kind::Flavor => "resourceflavors",
            Kind::Check => "admissionchecks",
            Kind::Topology => "topologies",
        }
    }
}

/// What is to become of the finalizers of one object, if anything.
fn decide(meta: &ObjectMeta, used: impl FnOnce() -> bool) -> Option<Vec<String>> {
    let now = meta.finalizers.as_deref().unwrap_or_default();
    let held = now.iter().any(|finalizer| finalizer == RESOURCE_IN_USE);
    match (meta.deletion_timestamp.is_some(), held) {
        (false, false) => Some(now.iter().cloned().chain([RESOURCE_IN_USE.to_owned()]).collect()),
        (true, true) if !used() => {
            Some(now.iter().filter(|finalizer| *finalizer != RESOURCE_IN_USE).cloned().collect())
        }
        _ => None,
    }
}

struct Keeper {
    client: Client,
    queues: Store<ClusterQueue>,
    flavors: Store<ResourceFlavor>,
    checks: Store<AdmissionCheck>,
    topologies: Store<Topology>,
}

pub(crate) fn start(client: &Client, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let keeper = Arc::new(Keeper {
        client: client.clone(),
        queues: watches.view(&kueue("clusterqueues")),
        flavors: watches.view(&kueue("resourceflavors")),
        checks: watches.view(&kueue("admissionchecks")),
        topologies: watches.view(&kueue("topologies")),
    });
    let queue: WorkQueue<(Kind, Key)> = WorkQueue::new("kueue_in_use", metrics);
    let mut signals = watches.subscribe(|resource| {
        let plural = &*resource.id.plural;
        resource.id.group == "kueue.x-k8s.io"
            && (plural == "clusterqueues" || Kind::ALL.iter().any(|kind| kind.plural() == plural))
    });
    let work = keeper.clone();
    queue.run(1, tasks, move |(kind, key)| {
        let keeper = work.clone();
        async move { keeper.keep(kind, &key).await }
    });
    tasks.spawn(async move {
        // Who uses what is known when everything has been listed.
        let mut awaited = Awaited::new(["clusterqueues", "resourceflavors"].map(kueue));
        while let Some(signal) = signals.recv().await {
            if awaited.ends_with(&signal) {
                Kind::ALL.iter().for_each(|kind| keeper.each(*kind, |_| true, |key| queue.add((*kind, key))));
            }
            match signal {
                Signal::Applied(resource, meta) | Signal::Deleted(resource, meta) if awaited.is_over() => {
                    let kind = Kind::ALL.into_iter().find(|kind| kind.plural() == &*resource.id.plural);
                    if let Some(kind) = kind {
                        queue.add((kind, meta.key()));
                    }
                    // What it used may be free now. Topologies are used by flavors, the rest by queues.
                    let freed: &[Kind] = match kind {
                        None => &[Kind::Flavor, Kind::Check],
                        Some(Kind::Flavor) => &[Kind::Topology],
                        Some(_) => &[],
                    };
                    for kind in freed {
                        let going = |meta: &ObjectMeta| meta.deletion_timestamp.is_some();
                        keeper.each(*kind, going, |key| queue.add((*kind, key)));
                    }
                }
                _ => {}
            }
        }
    });
}

impl Keeper {
    async fn keep(&self, kind: Kind, key: &Key) -> kube::Result<Outcome> {
        let Some(meta) = self.meta(kind, key) else { return Ok(Outcome::Settled) };
        let Some(finalizers) = decide(&meta, || self.is_used(kind, &key.name)) else { return Ok(Outcome::Settled) };
        let patch = json!({"metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers
        }});
        let resource = match kind {
            Kind::Flavor => ApiResource::erase::<ResourceFlavor>(&()),
            Kind::Check => ApiResource::erase::<AdmissionCheck>(&()),
            Kind::Topology => ApiResource::erase::<Topology>(&()),
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        match api.patch_metadata(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(Outcome::Settled),
            // Its next change is told.
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Outcome::Settled),
            Err(error) => Err(error),
        }
    }

    fn meta(&self, kind: Kind, key: &Key) -> Option<ObjectMeta> {
        match kind {
            Kind::Flavor => self.flavors.get(key).map(|object| object.metadata.clone()),
            Kind::Check => self.checks.get(key).map(|object| object.metadata.clone()),
            Kind::Topology => self.topologies.get(key).map(|object| object.metadata.clone()),
        }
    }

    fn each(&self, kind: Kind, is: impl Fn(&ObjectMeta) -> bool, then: impl Fn(Key)) {
        let keys: Vec<Key> = match kind {
            Kind::Flavor => picked(&self.flavors, |object| is(&object.metadata)),
            Kind::Check => picked(&self.checks, |object| is(&object.metadata)),
            Kind::Topology => picked(&self.topologies, |object| is(&object.metadata)),
        };
        keys.into_iter().for_each(then);
    }

    fn is_used(&self, kind: Kind, name: &str) -> bool {
        match kind {
            Kind::Flavor => {
                self.queues.all().iter().any(|(_, queue)| queue.spec.flavors().any(|flavor| flavor == name))
            }
            Kind::Check => self.queues.all().iter().any(|(_, queue)| {
                let checks =
                    queue.spec.admission_checks_strategy.iter().flat_map(|strategy| &strategy.admission_checks);
                checks.into_iter().any(|check| check.name == name)
            }),
            Kind::Topology => {
                self.flavors.all().iter().any(|(_, flavor)| flavor.spec.topology_name.as_deref() == Some(name))
            }
        }
    }
}

fn picked<T>(store: &Store<T>, is: impl Fn(&T) -> bool) -> Vec<Key> {
    store.all().into_iter().filter(|(_, object)| is(object)).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn meta(deleting: bool, finalizers: &[&str]) -> ObjectMeta {
        ObjectMeta {
            deletion_timestamp: deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
            finalizers: Some(finalizers.iter().map(|f| (*f).to_owned()).collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_may_go() {
        let held = ["other", RESOURCE_IN_USE];
        assert_eq!(decide(&meta(true, &held), || true), None);
        assert_eq!(decide(&meta(true, &held), || false), Some(vec!["other".to_owned()]));
        assert_eq!(decide(&meta(true, &["other"]), || false), None);
    }

    #[test]
    fn a_live_object_is_kept_from_the_start() {
        assert_eq!(decide(&meta(false, &[]), || false), Some(vec![RESOURCE_IN_USE.to_owned()]));
        assert_eq!(decide(&meta(false, &[RESOURCE_IN_USE]), || false), None);
    }
}
