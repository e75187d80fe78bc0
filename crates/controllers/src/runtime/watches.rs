//! One watch per kind, shared by all controllers; which kinds there are is discovered, and discovered again when a
//! CustomResourceDefinition or an APIService changes.
//!
//! Controllers subscribe before [`Watches::start`] and then hear everything from the first list on, each kind in its own
//! order. Only what somebody subscribed to is watched.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Tasks;
use super::catalog::{Catalog, GroupResource, Resource};
use super::meta::Meta;
use super::queue::backoff;
use super::reflect::{Listener, Reflector, purge};
use super::store::{Seen, Store, View, Whole};

/// How long a server may take to show a changed definition in its discovery documents.
const DISCOVERY_LAG: Duration = Duration::from_secs(1);
/// A definition that is not served by then (no version served, names not accepted) waits for its next change.
const DISCOVERY_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub enum Signal {
    Applied(Arc<Resource>, Arc<Meta>),
    Deleted(Arc<Resource>, Arc<Meta>),
    /// A list of the kind, the first or one after a gap, has been told completely.
    Synced(Arc<Resource>),
    /// What is served has changed.
    Catalog(Arc<Catalog>),
    /// Every kind that was there at the start has been listed, or could not be.
    Settled,
}

pub type Signals = mpsc::UnboundedReceiver<Signal>;

/// Kinds of which everything has to be known before anything is decided: what is only not listed yet is not gone.
///
/// [`Signal::Settled`] alone is not enough: it comes as well when a list was refused, for the sake of those who can do without.
pub struct Awaited {
    kinds: Vec<GroupResource>,
    settled: bool,
}

impl Awaited {
    pub fn new(kinds: impl IntoIterator<Item = GroupResource>) -> Awaited {
        Awaited { kinds: kinds.into_iter().collect(), settled: false }
    }

    pub fn is_over(&self) -> bool {
        self.settled && self.kinds.is_empty()
    }

    /// Whether the wait ends with this signal; that is so once.
    pub fn ends_with(&mut self, signal: &Signal) -> bool {
        if self.is_over() {
            return false;
        }
        match signal {
            Signal::Settled => self.settled = true,
            Signal::Synced(resource) => self.kinds.retain(|kind| *kind != resource.id),
            _ => {}
        }
        self.is_over()
    }
}
type Wants = Box<dyn Fn(&Resource) -> bool + Send + Sync>;

/// Clones are handles on the same watches.
#[derive(Clone)]
pub struct Watches(Arc<Inner>);

struct Inner {
    client: Client,
    tasks: Tasks,
    subscribers: Mutex<Vec<(Wants, mpsc::UnboundedSender<Signal>)>>,
    entries: Mutex<BTreeMap<GroupResource, Entry>>,
    catalog: Mutex<Arc<Catalog>>,
    /// Kinds whose first list is awaited; `None` once all have been.
    awaited: Mutex<Option<BTreeSet<GroupResource>>>,
}

/// What is known of a kind; it outlives its watch, so that a kind that comes back is compared with what it was.
#[derive(Default)]
struct Entry {
    cache: Store<Meta>,
    views: Vec<Arc<dyn View>>,
    /// The same views by their type, for the next who asks.
    typed: BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>,
    seen: Seen,
    running: Option<(Arc<Resource>, CancellationToken)>,
    last: Option<Arc<Resource>>,
    /// Seen as the kind of a CustomResourceDefinition: when that is gone, so are all its objects.
    custom: bool,
}

impl Watches {
    pub fn new(client: Client, tasks: Tasks) -> Watches {
        Watches(Arc::new(Inner {
            client,
            tasks,
            subscribers: Mutex::default(),
            entries: Mutex::default(),
            catalog: Mutex::default(),
            awaited: Mutex::default(),
        }))
    }

    /// Everything about the kinds that `wants` picks, from the first list on. To be called before the start.
    pub fn subscribe(&self, wants: impl Fn(&Resource) -> bool + Send + Sync + 'static) -> Signals {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.subscribers.lock().push((Box::new(wants), sender));
        receiver
    }

    /// The metadata of a kind's objects. Reading does not cause a watch; a subscription does.
    pub fn metadata(&self, id: &GroupResource) -> Store<Meta> {
        self.0.entries.lock().entry(id.clone()).or_default().cache.clone()
    }

    /// A kind's objects as far as `T` reads them, but for their managed fields, decoded once for all who ask. To be called
    /// before the start.
    pub fn view<T: DeserializeOwned + Send + Sync + 'static>(&self, id: &GroupResource) -> Store<T> {
        self.view_by(id, |store| Arc::new(store))
    }

    /// The same with managed fields. All who ask for the same `T` get what the first asked for.
    pub fn whole_view<T: DeserializeOwned + Send + Sync + 'static>(&self, id: &GroupResource) -> Store<T> {
        self.view_by(id, |store| Arc::new(Whole(store)))
    }

    fn view_by<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        id: &GroupResource,
        view: impl FnOnce(Store<T>) -> Arc<dyn View>,
    ) -> Store<T> {
        let mut entries = self.0.entries.lock();
        let entry = entries.entry(id.clone()).or_default();
        if let Some(known) = entry.typed.get(&TypeId::of::<T>()).and_then(|any| any.downcast_ref::<Store<T>>()) {
            return known.clone();
        }
        let store = Store::<T>::default();
        entry.views.push(view(store.clone()));
        entry.typed.insert(TypeId::of::<T>(), Arc::new(store.clone()));
        store
    }

    /// The newest revision of the kind that its caches show: whoever wrote revision `r` decides again when this is at
    /// least `r`. A list counts when it is complete, just before [`Signal::Synced`] is told.
    pub fn seen(&self, id: &GroupResource) -> u64 {
        self.0.entries.lock().get(id).map_or(0, |entry| entry.seen.get())
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        self.0.catalog.lock().clone()
    }

    /// Whether changes of the kind will be told.
    pub fn is_watched(&self, id: &GroupResource) -> bool {
        self.0.entries.lock().get(id).is_some_and(|entry| entry.running.is_some())
    }

    pub fn start(&self) {
        let definitions = self.subscribe(is_definition);
        let watches = self.clone();
        self.0.tasks.spawn(async move { watches.keep_discovering(definitions).await });
    }

    async fn keep_discovering(&self, mut definitions: Signals) {
        let mut changed_at = None;
        let mut attempts = 0;
        loop {
            let found = Catalog::discover(&self.0.client).await;
            attempts += 1;
            let pause = match found {
                Ok(catalog) => {
                    let complete = catalog.failed.is_empty();
                    self.adopt(catalog.keep_failed(&self.catalog()));
                    match self.is_current(changed_at, complete) {
                        true => None,
                        false => Some(backoff(attempts + 3, DISCOVERY_LAG)),
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "discovery failed");
                    Some(backoff(attempts, Duration::from_secs(30)))
                }
            };
            let news = match pause {
                None => definition_change(&mut definitions).await,
                Some(pause) => tokio::time::timeout(pause, definition_change(&mut definitions)).await.is_ok(),
            };
            if news {
                (changed_at, attempts) = (Some(Instant::now()), 0);
            }
        }
    }

    /// Whether the catalog may be taken to show the definitions as they are, or waiting for that is of no use.
    fn is_current(&self, changed_at: Option<Instant>, complete: bool) -> bool {
        let Some(changed_at) = changed_at else { return complete };
        let age = changed_at.elapsed();
        age >= DISCOVERY_PATIENCE || (age >= DISCOVERY_LAG && complete && self.agrees_with_definitions())
    }

    fn agrees_with_definitions(&self) -> bool {
        let catalog = self.catalog();
        let entries = self.0.entries.lock();
        let defined = defined(&entries);
        let listed = defined.iter().all(|id| catalog.preferred.contains_key(id));
        let dropped = entries
            .iter()
            .filter(|(id, entry)| entry.custom && !defined.contains(id))
            .all(|(id, _)| !catalog.preferred.contains_key(id));
        listed && dropped
    }

    fn wanted(&self, resource: &Resource, entry: Option<&Entry>) -> bool {
        resource.can("list")
            && resource.can("watch")
            && (entry.is_some_and(|e| !e.views.is_empty())
                || self.0.subscribers.lock().iter().any(|(wants, _)| wants(resource)))
    }

    /// Starts and stops watches so that they are those of `catalog`.
    fn adopt(&self, catalog: Catalog) {
        let catalog = Arc::new(catalog);
        let changed = {
            let mut current = self.0.catalog.lock();
            let changed = *current != catalog;
            *current = catalog.clone();
            changed
        };
        let mut fates = Vec::new();
        let mut entries = self.0.entries.lock();
        let defined = defined(&entries);
        let mut wanted = BTreeMap::new();
        for (id, resource) in &catalog.preferred {
            if self.wanted(resource, entries.get(id)) {
                wanted.insert(id.clone(), resource.clone());
            }
        }
        let ids: BTreeSet<_> = wanted.keys().chain(entries.keys()).cloned().collect();
        let first = {
            let mut awaited = self.0.awaited.lock();
            let first = awaited.is_none() && entries.values().all(|e| e.last.is_none());
            if first {
                *awaited = Some(wanted.keys().cloned().collect());
            }
            first
        };
        for id in ids {
            let entry = entries.entry(id.clone()).or_default();
            entry.custom |= defined.contains(&id);
            let now = wanted.get(&id);
            if entry.running.as_ref().map(|(r, _)| r) != now
                && let Some((_, stop)) = entry.running.take()
            {
                stop.cancel();
            }
            match now {
                Some(resource) if entry.running.is_none() => self.launch(entry, resource),
                None if entry.custom && !defined.contains(&id) => fates.push(id),
                _ => {}
            }
        }
        let gone: Vec<_> = fates
            .iter()
            .filter_map(|id| {
                let entry = entries.get_mut(id)?;
                entry.custom = false;
                Some((entry.cache.clone(), entry.views.clone(), entry.last.clone()?))
            })
            .collect();
        drop(entries);
        for (cache, views, resource) in gone {
            purge(&cache, &views, &resource, self);
        }
        if changed {
            self.tell(Signal::Catalog(catalog));
        }
        if first && wanted.is_empty() {
            self.all_settled();
        }
    }

    fn launch(&self, entry: &mut Entry, resource: &Arc<Resource>) {
        let stop = self.0.tasks.child();
        entry.running = Some((resource.clone(), stop.clone()));
        let last = entry.last.replace(resource.clone());
        let reflector = Reflector {
            client: self.0.client.clone(),
            resource: resource.clone(),
            cache: entry.cache.clone(),
            views: entry.views.clone(),
            seen: entry.seen.clone(),
            listener: self.clone(),
            retell: last.is_some_and(|last| last.version != resource.version),
        };
        self.0.tasks.spawn(async move {
            stop.run_until_cancelled(reflector.run()).await;
        });
    }

    fn all_settled(&self) {
        for (_, subscriber) in self.0.subscribers.lock().iter() {
            let _ = subscriber.send(Signal::Settled);
        }
    }
}

impl Listener for Watches {
    fn tell(&self, signal: Signal) {
        let about = match &signal {
            Signal::Applied(resource, _) | Signal::Deleted(resource, _) | Signal::Synced(resource) => Some(resource),
            Signal::Catalog(_) | Signal::Settled => None,
        };
        for (wants, subscriber) in self.0.subscribers.lock().iter() {
            if about.is_none_or(|resource| wants(resource)) {
                // A subscriber that has gone needs no telling.
                let _ = subscriber.send(signal.clone());
            }
        }
    }

    fn settled(&self, resource: &Resource) {
        let done = {
            let mut awaited = self.0.awaited.lock();
            let Some(rest) = awaited.as_mut() else { return };
            rest.remove(&resource.id) && rest.is_empty()
        };
        if done {
            self.all_settled();
        }
    }
}

fn is_definition(resource: &Resource) -> bool {
    resource.id.is("apiextensions.k8s.io", "customresourcedefinitions")
        || resource.id.is("apiregistration.k8s.io", "apiservices")
}

/// The kinds that definitions define: a definition's name is `<plural>.<group>`, by rule.
fn defined(entries: &BTreeMap<GroupResource, Entry>) -> BTreeSet<GroupResource> {
    let definitions = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
    let Some(entry) = entries.get(&definitions) else { return BTreeSet::new() };
    let names = entry.cache.all();
    names.iter().filter_map(|(key, _)| key.name.split_once('.')).map(|(p, g)| GroupResource::new(g, p)).collect()
}

/// Waits for the next change of a definition and takes all that have piled up.
async fn definition_change(definitions: &mut Signals) -> bool {
    loop {
        match definitions.recv().await {
            Some(Signal::Applied(..) | Signal::Deleted(..)) => break,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
    while definitions.try_recv().is_ok() {}
    true
}
