//! Carries out what [`decide`](super::decide) says, against any server that can get, delete and patch.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, Patch, Preconditions, PropagationPolicy};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::runtime::objects::{is_conflict, is_not_found, is_unsupported_media_type};
use crate::runtime::{
    Catalog, Meta, Objects, Outcome, OwnerRef, QueueMetrics, Recorder, Resource, Signal, Tasks, Watches, WorkQueue,
};

use super::decide::{Decision, Owner, Policy, Triage, decide, is_leaving, misplaced_message, triage};
use super::graph::{Effects, FOREGROUND, Graph, Identity, ORPHAN, Snapshot, Task, Uid};

/// The part of a cluster that collection needs. In tests it is a map.
pub trait Cluster: Send + Sync + 'static {
    fn catalog(&self) -> Arc<Catalog>;
    /// Whether changes of the kind are told.
    fn is_watched(&self, resource: &Resource) -> bool;
    fn get(&self, at: &Place) -> impl Future<Output = Result<Option<Meta>, kube::Error>> + Send;
    fn delete(&self, at: &Place, how: &DeleteParams) -> impl Future<Output = Result<(), kube::Error>> + Send;
    fn patch(&self, at: &Place, patch: &Patch<Value>) -> impl Future<Output = Result<(), kube::Error>> + Send;
    fn report_misplaced(&self, dependent: &Identity, reference: &OwnerRef);
}

/// Where an object is to be found.
#[derive(Clone, Debug)]
pub struct Place {
    pub resource: Arc<Resource>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

pub struct Live {
    objects: Objects,
    recorder: Recorder,
    watches: Watches,
}

impl Cluster for Live {
    fn catalog(&self) -> Arc<Catalog> {
        self.watches.catalog()
    }

    fn is_watched(&self, resource: &Resource) -> bool {
        self.watches.is_watched(&resource.id)
    }

    async fn get(&self, at: &Place) -> Result<Option<Meta>, kube::Error> {
        self.objects.get(&at.resource, &at.namespace, &at.name).await
    }

    async fn delete(&self, at: &Place, how: &DeleteParams) -> Result<(), kube::Error> {
        self.objects.delete(&at.resource, &at.namespace, &at.name, how).await
    }

    async fn patch(&self, at: &Place, patch: &Patch<Value>) -> Result<(), kube::Error> {
        self.objects.patch(&at.resource, &at.namespace, &at.name, patch).await
    }

    fn report_misplaced(&self, dependent: &Identity, reference: &OwnerRef) {
        let about = ObjectReference {
            kind: Some(dependent.kind.to_string()),
            api_version: Some(dependent.api_version.to_string()),
            namespace: Some(dependent.namespace.to_string()).filter(|n| !n.is_empty()),
            name: Some(dependent.name.to_string()),
            uid: Some(dependent.uid.to_string()),
            ..Default::default()
        };
        self.recorder.warning(about, "OwnerRefInvalidNamespace", misplaced_message(dependent, reference));
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// No watch will tell about it, so it must be asked for again.
    #[error("owner {0} exists but its kind is not watched")]
    Unwatched(Identity),
}

/// Why an object has no place to be looked up at.
enum Nowhere {
    /// Its kind is not served now; it may be later.
    Unserved,
    /// A cluster-scoped object refers to a namespaced owner: that never becomes right by itself.
    NoNamespace,
}

pub struct Collector<C> {
    cluster: C,
    graph: Mutex<Graph>,
    to_delete: WorkQueue<Task>,
    to_orphan: WorkQueue<Uid>,
    /// What waits for a kind to be served.
    parked: Mutex<BTreeSet<Task>>,
}

impl Collector<Live> {
    pub fn new(objects: Objects, recorder: Recorder, watches: Watches, metrics: &QueueMetrics) -> Self {
        Collector::on(Live { objects, recorder, watches }, metrics)
    }
}

impl<C: Cluster> Collector<C> {
    pub fn on(cluster: C, metrics: &QueueMetrics) -> Self {
        Collector {
            cluster,
            graph: Mutex::default(),
            to_delete: WorkQueue::new("garbage_collector_attempt_to_delete", metrics),
            to_orphan: WorkQueue::new("garbage_collector_attempt_to_orphan", metrics),
            parked: Mutex::default(),
        }
    }

    pub fn run(self: &Arc<Self>, workers: usize, tasks: &Tasks) {
        let collector = self.clone();
        self.to_delete.run(workers, tasks, move |task| {
            let collector = collector.clone();
            async move { collector.work(task).await }
        });
        let collector = self.clone();
        self.to_orphan.run(workers, tasks, move |uid| {
            let collector = collector.clone();
            async move { collector.orphan(&uid).await }
        });
    }

    /// Takes in what a watch tells.
    pub async fn hear(&self, signal: Signal) {
        let effects = match signal {
            Signal::Applied(resource, meta) => self.graph.lock().observe(&resource, meta),
            Signal::Deleted(resource, meta) => self.graph.lock().remove(&resource, &meta),
            Signal::Synced(resource) => Effects { tasks: self.graph.lock().synced(&resource), ..Effects::default() },
            Signal::Catalog(_) => {
                let parked = std::mem::take(&mut *self.parked.lock());
                Effects { tasks: parked.into_iter().collect(), ..Effects::default() }
            }
            Signal::Settled => return,
        };
        self.follow(effects).await;
    }

    async fn follow(&self, effects: Effects) {
        for task in effects.tasks {
            match task {
                Task::Orphan(uid) => self.to_orphan.add(uid),
                task => self.to_delete.add(task),
            }
        }
        for (dependent, reference) in effects.misplaced {
            self.cluster.report_misplaced(&dependent, &reference);
        }
    }

    /// Looks at one object and does what is due.
    pub async fn work(&self, task: Task) -> Result<Outcome, Error> {
        let uid = match &task {
            Task::Verify(uid) | Task::Examine(uid) | Task::Orphan(uid) => uid,
        };
        let Some(node) = self.graph.lock().snapshot(uid) else { return Ok(Outcome::Settled) };
        if matches!(task, Task::Verify(_)) && node.observed || is_leaving(&node) {
            return Ok(Outcome::Settled);
        }
        let place = match self.place(&node.identity) {
            Ok(place) => place,
            Err(Nowhere::Unserved) => return Ok(self.park(task, &node.identity)),
            Err(Nowhere::NoNamespace) => return Ok(Outcome::Settled),
        };
        let live = self.cluster.get(&place).await?;
        let decision = match (triage(&node, live.as_ref()), &live) {
            (Triage::Decided(decision), _) => decision,
            (Triage::AskOwners, Some(live)) => {
                let mut owners = Vec::new();
                for reference in &live.owner_references {
                    match self.owner(reference, &node).await? {
                        Ok(owner) => owners.push((reference.clone(), owner)),
                        Err(Nowhere::Unserved) => {
                            let claimed = Identity::claimed(reference, &node.identity.namespace);
                            return Ok(self.park(task, &claimed));
                        }
                        Err(Nowhere::NoNamespace) => return Ok(Outcome::Settled),
                    }
                }
                decide(&node, live, &owners)
            }
            (Triage::AskOwners, None) => Decision::Gone,
        };
        if decision != Decision::Leave {
            tracing::debug!(item = %node.identity, ?decision, "collecting");
        }
        let gone = decision == Decision::Gone;
        self.carry_out(&node, &place, live.as_ref(), decision).await?;
        if !gone && !node.observed && !self.cluster.is_watched(&place.resource) {
            return Err(Error::Unwatched(node.identity));
        }
        Ok(Outcome::Settled)
    }

    async fn carry_out(
        &self,
        node: &Snapshot,
        place: &Place,
        live: Option<&Meta>,
        decision: Decision,
    ) -> Result<(), Error> {
        match decision {
            Decision::Leave => {}
            Decision::Gone => self.vanish(&node.identity).await,
            Decision::RemoveFinalizer => self.remove_finalizer(&node.identity, place, FOREGROUND).await?,
            Decision::Press(dependents) => dependents.into_iter().for_each(|d| self.to_delete.add(Task::Examine(d))),
            Decision::DropReferences(owners) => self.drop_references(&node.identity.uid, place, &owners).await?,
            Decision::Delete { policy, unblock } => {
                let Some(live) = live else { return Ok(()) };
                if unblock {
                    self.unblock_owners(place, live).await?;
                }
                // Letting go of the owners has changed the revision.
                let revision = (!unblock).then_some(live);
                match self.delete(&node.identity.uid, place, revision, policy).await {
                    Err(error) if is_not_found(&error) => self.vanish(&node.identity).await,
                    result => result?,
                }
            }
        }
        Ok(())
    }

    async fn vanish(&self, identity: &Identity) {
        let effects = self.graph.lock().vanished(identity);
        self.follow(effects).await;
    }

    fn place(&self, identity: &Identity) -> Result<Place, Nowhere> {
        let catalog = self.cluster.catalog();
        let resource = catalog.kind(&identity.api_version, &identity.kind).ok_or(Nowhere::Unserved)?;
        if resource.namespaced && identity.namespace.is_empty() {
            return Err(Nowhere::NoNamespace);
        }
        let namespace = if resource.namespaced { identity.namespace.clone() } else { "".into() };
        Ok(Place { resource: resource.clone(), namespace, name: identity.name.clone() })
    }

    /// Waits for the kind of `missing` to be served, without asking.
    fn park(&self, task: Task, missing: &Identity) -> Outcome {
        self.parked.lock().insert(task.clone());
        // It may have come while we were parking.
        if self.cluster.catalog().kind(&missing.api_version, &missing.kind).is_some() {
            self.parked.lock().remove(&task);
            self.to_delete.add(task);
        }
        Outcome::Settled
    }

    async fn owner(&self, reference: &OwnerRef, node: &Snapshot) -> Result<Result<Owner, Nowhere>, kube::Error> {
        if self.graph.lock().is_absent(reference, &node.identity.namespace) {
            return Ok(Ok(Owner::Absent));
        }
        let mut claimed = Identity::claimed(reference, &node.identity.namespace);
        let place = match self.place(&claimed) {
            Ok(place) => place,
            Err(nowhere) => return Ok(Err(nowhere)),
        };
        let owner = Owner::of(self.cluster.get(&place).await?.as_ref(), reference);
        if owner == Owner::Absent {
            claimed.namespace = place.namespace;
            self.graph.lock().note_absent(claimed);
        }
        Ok(Ok(owner))
    }

    /// Deletes the object that was looked at and no other. Changes that leave the owners as they were do not save it.
    async fn delete(&self, uid: &Uid, at: &Place, seen: Option<&Meta>, policy: Policy) -> Result<(), kube::Error> {
        let how = |revision: Option<&Meta>| DeleteParams {
            propagation_policy: Some(match policy {
                Policy::Background => PropagationPolicy::Background,
                Policy::Foreground => PropagationPolicy::Foreground,
                Policy::Orphan => PropagationPolicy::Orphan,
            }),
            preconditions: Some(Preconditions {
                uid: Some(uid.to_string()),
                resource_version: revision.map(|meta| meta.resource_version.to_string()),
            }),
            ..DeleteParams::default()
        };
        match (self.cluster.delete(at, &how(seen)).await, seen) {
            (Err(error), Some(seen)) if is_conflict(&error) => match self.cluster.get(at).await? {
                Some(now) if now.uid == *uid && now.owner_references == seen.owner_references => {
                    self.cluster.delete(at, &how(None)).await
                }
                // Other owners, or gone: the next look will find that.
                _ => Err(error),
            },
            (result, _) => result,
        }
    }

    async fn remove_finalizer(&self, identity: &Identity, at: &Place, finalizer: &str) -> Result<(), Error> {
        let Some(live) = self.cluster.get(at).await? else { return Ok(()) };
        if live.uid != identity.uid || !live.has_finalizer(finalizer) {
            return Ok(());
        }
        let rest: Vec<_> = live.finalizers.iter().filter(|f| *f != finalizer).collect();
        let patch = json!({"metadata": {"resourceVersion": &*live.resource_version, "finalizers": rest}});
        match self.cluster.patch(at, &Patch::Merge(patch)).await {
            Err(error) if is_not_found(&error) => Ok(()),
            result => Ok(result?),
        }
    }

    /// A strategic merge patch where the kind has one, else a merge patch of the whole list at its revision.
    async fn drop_references(&self, uid: &Uid, at: &Place, owners: &[Uid]) -> Result<(), Error> {
        let refs: Vec<_> = owners.iter().map(|owner| json!({"$patch": "delete", "uid": &**owner})).collect();
        let strategic = json!({"metadata": {"uid": &**uid, "ownerReferences": refs}});
        self.patch_references(uid, at, strategic, |references| references.retain(|r| !owners.contains(&r.uid))).await
    }

    async fn unblock_owners(&self, at: &Place, live: &Meta) -> Result<(), Error> {
        let blocking = live.owner_references.iter().filter(|r| r.blocks());
        let refs: Vec<_> = blocking.map(|r| OwnerRef { block_owner_deletion: Some(false), ..r.clone() }).collect();
        if refs.is_empty() {
            return Ok(());
        }
        let strategic = json!({"metadata": {"uid": &*live.uid, "ownerReferences": refs}});
        let unblock = |r: &mut OwnerRef| r.block_owner_deletion = Some(false);
        self.patch_references(&live.uid, at, strategic, |references| references.iter_mut().for_each(unblock)).await
    }

    async fn patch_references(
        &self,
        uid: &Uid,
        at: &Place,
        strategic: Value,
        edit: impl FnOnce(&mut Vec<OwnerRef>) + Send,
    ) -> Result<(), Error> {
        match self.cluster.patch(at, &Patch::Strategic(strategic)).await {
            Err(error) if is_unsupported_media_type(&error) => {}
            Err(error) if is_not_found(&error) => return Ok(()),
            result => return Ok(result?),
        }
        let Some(live) = self.cluster.get(at).await?.filter(|meta| meta.uid == *uid) else { return Ok(()) };
        let mut references = live.owner_references.clone();
        edit(&mut references);
        let merge = json!({"metadata": {"resourceVersion": &*live.resource_version, "ownerReferences": references}});
        match self.cluster.patch(at, &Patch::Merge(merge)).await {
            Err(error) if is_not_found(&error) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Takes the owner out of its dependents' references, then lets it go.
    pub async fn orphan(&self, uid: &Uid) -> Result<Outcome, Error> {
        let Some(owner) = self.graph.lock().snapshot(uid) else { return Ok(Outcome::Settled) };
        let Ok(place) = self.place(&owner.identity) else { return Ok(Outcome::Settled) };
        for dependent in &owner.dependents {
            if let Ok(at) = self.place(&dependent.identity) {
                self.drop_references(&dependent.identity.uid, &at, std::slice::from_ref(uid)).await?;
            }
        }
        self.remove_finalizer(&owner.identity, &place, ORPHAN).await?;
        Ok(Outcome::Settled)
    }

    #[cfg(test)]
    pub(crate) fn uids(&self) -> Vec<Uid> {
        self.graph.lock().uids().cloned().collect()
    }

    #[cfg(test)]
    pub(crate) fn queues(&self) -> (&WorkQueue<Task>, &WorkQueue<Uid>) {
        (&self.to_delete, &self.to_orphan)
    }

    #[cfg(test)]
    pub(crate) fn cluster(&self) -> &C {
        &self.cluster
    }
}
