//! What readers see: the current entries and the retained history, all in memory.
//!
//! One lock guards it. The writer changes it only with events that are durable; readers clone `Arc`s and leave. Values
//! that fall out of the history are handed back to the caller, to be freed after the lock is released.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, btree_map},
    iter::Peekable,
    ops::Bound,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::{Compacted, Entry, Event, Kind, ListError, ListOptions, Options, Page, Stats, engine::Record};

/// The state and the ways to learn that it changed.
pub(crate) struct Shared {
    pub state: RwLock<State>,
    /// The published revision; for `wait_for`.
    pub revision: watch::Sender<u64>,
    pub disk_bytes: std::sync::atomic::AtomicU64,
}

impl Shared {
    /// Ends watches and waiters. What was published stays readable.
    pub fn finish(&self) {
        let channels = {
            let mut state = self.state.write();
            state.closed = true;
            state.collections.iter().map(|collection| collection.channel.clone()).collect::<Vec<_>>()
        };
        for channel in channels {
            channel.changed.send_modify(|_| {});
        }
        self.revision.send_modify(|_| {});
    }
}

/// A collection's identity and its bell. Lives outside the lock.
pub(crate) struct Channel {
    pub index: usize,
    pub name: Arc<str>,
    /// Rung after every batch that touched this collection; the number is of no importance.
    pub changed: watch::Sender<u64>,
}

pub(crate) struct Collection {
    pub channel: Arc<Channel>,
    entries: BTreeMap<Arc<str>, Arc<Entry>>,
    /// By rising revision; all above the store's `compacted`.
    pub events: VecDeque<Arc<Event>>,
    /// The newest event of this collection that was dropped.
    pub dropped: u64,
}

pub(crate) struct State {
    pub revision: u64,
    pub compacted: u64,
    pub closed: bool,
    options: Options,
    pub collections: Vec<Collection>,
    by_name: HashMap<Arc<str>, usize>,
    /// The collection of every retained event, by rising revision: the last one belongs to `revision`.
    order: VecDeque<usize>,
    history_bytes: usize,
    /// Revisions whose records the log no longer needs, in the order in which that became so.
    pub garbage: Vec<u64>,
}

/// The revision of a store that nothing was written to. Not 0, which callers use for "any".
const EMPTY: u64 = 1;

impl State {
    pub fn new(options: Options, compacted: u64) -> State {
        State {
            revision: compacted.max(EMPTY),
            compacted,
            closed: false,
            options,
            collections: Vec::new(),
            by_name: HashMap::new(),
            order: VecDeque::new(),
            history_bytes: 0,
            garbage: Vec::new(),
        }
    }

    pub fn collection(&self, name: &str) -> Option<&Collection> {
        self.by_name.get(name).map(|index| &self.collections[*index])
    }

    pub fn channel(&mut self, name: &str) -> Arc<Channel> {
        if let Some(collection) = self.collection(name) {
            return collection.channel.clone();
        }
        let index = self.collections.len();
        let name: Arc<str> = name.into();
        let channel = Arc::new(Channel { index, name: name.clone(), changed: watch::Sender::new(0) });
        self.by_name.insert(name, index);
        self.collections.push(Collection {
            channel: channel.clone(),
            entries: BTreeMap::new(),
            events: VecDeque::new(),
            dropped: self.compacted,
        });
        channel
    }

    pub fn get(&self, collection: usize, key: &str) -> Option<&Arc<Entry>> {
        self.collections[collection].entries.get(key)
    }

    /// Makes the next revision's event part of the state.
    pub fn publish(&mut self, collection: usize, event: Arc<Event>) {
        debug_assert_eq!(event.revision, self.revision + 1);
        self.revision = event.revision;
        self.history_bytes += event.prev.as_ref().map_or(0, |prev| prev.value.len());
        let home = &mut self.collections[collection];
        home.put(event.kind, &event.entry);
        home.events.push_back(event);
        self.order.push_back(collection);
    }

    /// Takes one record of the log, in its order, when the store is opened.
    pub fn restore(&mut self, record: &Record<'_>) -> Result<(), String> {
        let collection = self.channel(record.collection).index;
        let prev = self.get(collection, record.key).cloned();
        let known = record.revision <= self.compacted;
        if !known && record.revision != self.revision + 1 {
            return Err(format!("revision {} follows {}", record.revision, self.revision));
        }
        let entry = match (record.kind, &prev) {
            (Kind::Put, _) => Entry {
                key: prev.as_ref().map_or_else(|| record.key.into(), |prev| prev.key.clone()),
                create_revision: record.create_revision,
                mod_revision: record.revision,
                value: Bytes::copy_from_slice(record.value),
            },
            (Kind::Delete, Some(prev)) => deleted(prev, record.revision),
            (Kind::Delete, None) if known => {
                self.garbage.push(record.revision);
                return Ok(());
            }
            (Kind::Delete, None) => return Err(format!("revision {} deletes what is not there", record.revision)),
        };
        let entry = Arc::new(entry);
        if known {
            self.garbage.extend(prev.map(|prev| prev.mod_revision));
            if record.kind == Kind::Delete {
                self.garbage.push(record.revision);
            }
            self.collections[collection].put(record.kind, &entry);
        } else {
            self.publish(collection, Arc::new(Event { revision: record.revision, kind: record.kind, entry, prev }));
            // Nobody else holds the lock while the store is being opened.
            drop(self.trim());
        }
        Ok(())
    }

    /// Drops history beyond the bounds. The result is to be dropped without the lock.
    #[must_use = "free it after unlocking"]
    pub fn trim(&mut self) -> Vec<Arc<Event>> {
        let mut dropped = Vec::new();
        while self.order.len() > self.options.max_events || self.history_bytes > self.options.max_bytes {
            dropped.extend(self.drop_oldest());
        }
        dropped
    }

    /// Drops at most `limit` events at or below `revision`; none when that is done. As for `trim`.
    #[must_use = "free it after unlocking"]
    pub fn compact(&mut self, revision: u64, limit: usize) -> Vec<Arc<Event>> {
        let revision = revision.min(self.revision);
        let mut dropped = Vec::new();
        while dropped.len() < limit {
            let oldest = self.revision + 1 - self.order.len() as u64;
            if oldest > revision {
                self.compacted = self.compacted.max(revision);
                break;
            }
            dropped.extend(self.drop_oldest());
        }
        dropped
    }

    fn drop_oldest(&mut self) -> Option<Arc<Event>> {
        let collection = &mut self.collections[self.order.pop_front()?];
        let event = collection.events.pop_front()?;
        collection.dropped = event.revision;
        self.compacted = event.revision;
        if let Some(prev) = &event.prev {
            self.history_bytes -= prev.value.len();
            self.garbage.push(prev.mod_revision);
        }
        if event.kind == Kind::Delete {
            self.garbage.push(event.revision);
        }
        Some(event)
    }

    pub fn list(&self, collection: &str, options: &ListOptions) -> Result<Page, ListError> {
        let at = options.at.unwrap_or(self.revision);
        if at > self.revision {
            return Err(ListError::Future { requested: at, current: self.revision });
        }
        if at < self.compacted {
            return Err(Compacted { requested: at, compacted: self.compacted }.into());
        }
        let mut page = Page { entries: Vec::new(), revision: at, remaining: 0 };
        let Some(collection) = self.collection(collection) else { return Ok(page) };
        let limit = options.limit.unwrap_or(usize::MAX);
        if at == self.revision {
            let mut entries = collection.range(options);
            page.entries.extend(entries.by_ref().take(limit).map(|(_, entry)| entry.clone()));
            page.remaining = entries.count();
        } else {
            let changed = collection.changed_since(at, options);
            let mut entries = Merge { now: collection.range(options).peekable(), then: changed.into_iter().peekable() };
            page.entries.extend(entries.by_ref().take(limit).cloned());
            page.remaining = entries.count();
        }
        Ok(page)
    }

    pub fn stats(&self, disk_bytes: u64) -> Stats {
        let mut collections: Vec<_> =
            self.collections.iter().map(|each| (each.channel.name.clone(), each.entries.len())).collect();
        collections.sort();
        Stats {
            revision: self.revision,
            compacted: self.compacted,
            collections,
            history_events: self.order.len(),
            history_bytes: self.history_bytes,
            disk_bytes,
        }
    }
}

impl Collection {
    fn put(&mut self, kind: Kind, entry: &Arc<Entry>) {
        match kind {
            Kind::Put => self.entries.insert(entry.key.clone(), entry.clone()),
            Kind::Delete => self.entries.remove(&entry.key),
        };
    }

    /// Where the events after `revision` begin.
    pub fn events_after(&self, revision: u64) -> usize {
        self.events.partition_point(|event| event.revision <= revision)
    }

    fn range<'a>(&'a self, options: &'a ListOptions) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<Entry>)> {
        let prefix = options.prefix.as_str();
        let start = match options.start_after.as_deref() {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.entries.range::<str, _>((start, Bound::Unbounded)).take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The keys written after `revision`, with what they held then.
    fn changed_since<'a>(&'a self, revision: u64, options: &ListOptions) -> BTreeMap<&'a str, Option<&'a Arc<Entry>>> {
        let mut changed = BTreeMap::new();
        for event in self.events.range(self.events_after(revision)..) {
            let wanted = event.key().starts_with(&options.prefix)
                && options.start_after.as_deref().is_none_or(|after| event.key() > after);
            if wanted {
                changed.entry(event.key()).or_insert(event.prev.as_ref());
            }
        }
        changed
    }
}

/// The entries of now, overruled by those of then.
struct Merge<'a, N: Iterator<Item = (&'a Arc<str>, &'a Arc<Entry>)>> {
    now: Peekable<N>,
    then: Peekable<btree_map::IntoIter<&'a str, Option<&'a Arc<Entry>>>>,
}

impl<'a, N: Iterator<Item = (&'a Arc<str>, &'a Arc<Entry>)>> Iterator for Merge<'a, N> {
    type Item = &'a Arc<Entry>;

    fn next(&mut self) -> Option<&'a Arc<Entry>> {
        loop {
            let Some((then, _)) = self.then.peek() else { return self.now.next().map(|(_, entry)| entry) };
            if let Some((_, entry)) = self.now.next_if(|(now, _)| ***now < **then) {
                return Some(entry);
            }
            self.now.next_if(|(now, _)| ***now == **then);
            if let Some((_, Some(entry))) = self.then.next() {
                return Some(entry);
            }
        }
    }
}

/// What a delete event carries: the last value, at the deletion's revision.
pub(crate) fn deleted(last: &Entry, revision: u64) -> Entry {
    Entry { mod_revision: revision, ..last.clone() }
}
