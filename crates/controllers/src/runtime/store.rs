//! The objects of one kind as its watch has shown them, by place and by whatever else they are looked up by.
//!
//! Readers share what is stored; only the watch writes, and an index is never behind the objects it leads to.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use usher_api::watch::without_managed_fields;

use super::meta::Key;

/// Clones share the content.
pub struct Store<T>(Arc<RwLock<Content<T>>>);

struct Content<T> {
    objects: BTreeMap<Key, Arc<T>>,
    indexes: Vec<Entries<T>>,
}

type Values<T> = Box<dyn Fn(&T) -> Vec<Arc<str>> + Send + Sync>;

struct Entries<T> {
    values: Values<T>,
    keys: BTreeMap<Arc<str>, BTreeSet<Key>>,
}

/// The objects of a [`Store`] by a value they have, such as the uid of their controller.
pub struct Index<T> {
    store: Store<T>,
    number: usize,
}

impl<T> Clone for Store<T> {
    fn clone(&self) -> Self {
        Store(self.0.clone())
    }
}

impl<T> Clone for Index<T> {
    fn clone(&self) -> Self {
        Index { store: self.store.clone(), number: self.number }
    }
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Store(Arc::new(RwLock::new(Content { objects: BTreeMap::new(), indexes: Vec::new() })))
    }
}

impl<T> Store<T> {
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.0.read().objects.get(key).cloned()
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.0.read().objects.contains_key(key)
    }

    pub fn len(&self) -> usize {
        self.0.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A snapshot, in order of place.
    pub fn all(&self) -> Vec<(Key, Arc<T>)> {
        self.0.read().objects.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// Keeps the objects findable by `values` of theirs from now on.
    pub fn index(&self, values: impl Fn(&T) -> Vec<Arc<str>> + Send + Sync + 'static) -> Index<T> {
        let mut content = self.0.write();
        let content = &mut *content;
        let mut entries = Entries { values: Box::new(values), keys: BTreeMap::new() };
        content.objects.iter().for_each(|(key, object)| entries.insert(key, object));
        content.indexes.push(entries);
        Index { store: self.clone(), number: content.indexes.len() - 1 }
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.0.read().objects.keys().cloned().collect()
    }

    pub(crate) fn put(&self, key: Key, object: Arc<T>) -> Option<Arc<T>> {
        let mut content = self.0.write();
        let Content { objects, indexes } = &mut *content;
        let old = objects.get(&key).cloned();
        for index in indexes {
            index.replace(&key, old.as_deref(), &object);
        }
        objects.insert(key, object)
    }

    pub(crate) fn remove(&self, key: &Key) -> Option<Arc<T>> {
        let mut content = self.0.write();
        let Content { objects, indexes } = &mut *content;
        let old = objects.remove(key)?;
        indexes.iter_mut().for_each(|index| index.remove(key, &old));
        Some(old)
    }
}

impl<T> Index<T> {
    /// The objects that have `value`, in order of place.
    pub fn get(&self, value: &str) -> Vec<Arc<T>> {
        let content = self.store.0.read();
        let keys = content.indexes[self.number].keys.get(value);
        keys.into_iter().flatten().filter_map(|key| content.objects.get(key).cloned()).collect()
    }
}

impl<T> Entries<T> {
    fn insert(&mut self, key: &Key, object: &T) {
        self.enter(key, (self.values)(object));
    }

    fn remove(&mut self, key: &Key, object: &T) {
        self.strike(key, (self.values)(object));
    }

    /// Most changes of an object change nothing that it is looked up by.
    fn replace(&mut self, key: &Key, old: Option<&T>, new: &T) {
        let (before, after) = (old.map(&self.values).unwrap_or_default(), (self.values)(new));
        if before != after {
            self.strike(key, before);
            self.enter(key, after);
        }
    }

    fn enter(&mut self, key: &Key, values: Vec<Arc<str>>) {
        for value in values {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn strike(&mut self, key: &Key, values: Vec<Arc<str>>) {
        for value in values {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

/// An object's text.
pub(crate) struct Text<'a> {
    pub whole: &'a str,
    /// Without the record of who set which field, which is half of many objects and which hardly anyone reads.
    pub lean: Cow<'a, str>,
}

impl<'a> Text<'a> {
    pub fn of(whole: &'a str) -> Text<'a> {
        Text { whole, lean: without_managed_fields(whole) }
    }
}

/// A store of more than metadata, fed with the same text. It makes its kind's watch carry whole objects.
pub(crate) trait View: Send + Sync {
    fn put(&self, key: &Key, object: &Text<'_>);
    fn remove(&self, key: &Key);
}

impl<T: DeserializeOwned + Send + Sync> View for Store<T> {
    fn put(&self, key: &Key, object: &Text<'_>) {
        self.put_text(key, &object.lean);
    }

    fn remove(&self, key: &Key) {
        Store::remove(self, key);
    }
}

/// A view for who reads managed fields.
pub(crate) struct Whole<T>(pub Store<T>);

impl<T: DeserializeOwned + Send + Sync> View for Whole<T> {
    fn put(&self, key: &Key, object: &Text<'_>) {
        self.0.put_text(key, object.whole);
    }

    fn remove(&self, key: &Key) {
        self.0.remove(key);
    }
}

impl<T: DeserializeOwned> Store<T> {
    fn put_text(&self, key: &Key, text: &str) {
        match serde_json::from_str::<T>(text) {
            Ok(value) => drop(self.put(key.clone(), Arc::new(value))),
            Err(error) => tracing::warn!(?key, %error, "an object that cannot be read is left out"),
        }
    }
}

/// The newest revision that a kind's watch has shown.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<AtomicU64>);

impl Seen {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Only ever forward; a revision that is not a number is not comparable and left alone.
    pub fn advance(&self, revision: &str) {
        if let Ok(revision) = revision.parse() {
            self.0.fetch_max(revision, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Pod {
        owner: &'static str,
    }

    fn store() -> (Store<Pod>, Index<Pod>) {
        let store = Store::default();
        store.put(Key::new("n", "a"), Arc::new(Pod { owner: "x" }));
        let index = store.index(|pod: &Pod| vec![pod.owner.into()]);
        (store, index)
    }

    #[test]
    fn an_index_finds_what_was_there_before_and_what_came_after() {
        let (store, index) = store();
        store.put(Key::new("n", "b"), Arc::new(Pod { owner: "x" }));
        assert_eq!(index.get("x").len(), 2);
        assert!(index.get("y").is_empty());
    }

    #[test]
    fn an_index_follows_changes_and_removals() {
        let (store, index) = store();
        store.put(Key::new("n", "a"), Arc::new(Pod { owner: "y" }));
        assert_eq!((index.get("x").len(), index.get("y").len()), (0, 1));
        store.remove(&Key::new("n", "a"));
        assert!(index.get("y").is_empty());
    }

    #[test]
    fn what_was_seen_never_goes_back() {
        let seen = Seen::default();
        for revision in ["7", "12", "9", "", "x"] {
            seen.advance(revision);
        }
        assert_eq!(seen.get(), 12);
    }
}
