//! Random histories against a reference that keeps everything and computes every answer from the beginning.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;
use usher_store::{
    Compacted, Entry, Expect, Kind, ListError, ListOptions, Op, Options, Page, Store, Watch, WatchEnd, WriteError,
};

#[derive(Debug, Clone)]
enum Step {
    Write {
        place: Place,
        value: Option<Vec<u8>>,
        belief: Belief,
    },
    /// How far back from the newest revision, and the page.
    List {
        collection: usize,
        back: u64,
        options: ListOptions,
    },
    /// Watches from that far back to the end.
    Watch {
        collection: usize,
        back: u64,
        prefix: &'static str,
    },
    /// Reads a watch that was opened long ago.
    ReadOld {
        which: usize,
    },
    Compact {
        back: u64,
    },
    Reopen,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    collection: usize,
    key: usize,
}

#[derive(Debug, Clone, Copy)]
enum Belief {
    Absent,
    Current,
    Stale,
    Any,
}

const COLLECTIONS: [&str; 2] = ["jobs", "pods"];
const KEYS: [&str; 6] = ["a/1", "a/10", "a/2", "b", "b/1", "c/\u{fc}"];
const PREFIXES: [&str; 4] = ["", "a/", "b", "nothing"];

fn step() -> impl Strategy<Value = Step> {
    let collection = 0..COLLECTIONS.len();
    let place = (collection.clone(), 0..KEYS.len()).prop_map(|(collection, key)| Place { collection, key });
    let belief = prop_oneof![Just(Belief::Absent), Just(Belief::Current), Just(Belief::Stale), Just(Belief::Any)];
    let value = prop::option::weighted(0.7, prop::collection::vec(any::<u8>(), 0..20));
    let prefix = prop::sample::select(&PREFIXES[..]);
    let after = prop::option::of(prop::sample::select(&KEYS[..]));
    let list = (collection.clone(), 0..12u64, prefix.clone(), after, prop::option::of(0..4usize)).prop_map(
        |(collection, back, prefix, after, limit)| Step::List {
            collection,
            back,
            options: ListOptions { prefix: prefix.into(), start_after: after.map(Into::into), limit, at: None },
        },
    );
    prop_oneof![
        12 => (place, value, belief).prop_map(|(place, value, belief)| Step::Write { place, value, belief }),
        4 => list,
        2 => (collection, 0..12u64, prefix).prop_map(|(collection, back, prefix)| Step::Watch { collection, back, prefix }),
        2 => (0..8usize).prop_map(|which| Step::ReadOld { which }),
        1 => (0..12u64).prop_map(|back| Step::Compact { back }),
        1 => Just(Step::Reopen),
    ]
}

/// What happened at one revision.
#[derive(Debug, Clone)]
struct Happened {
    revision: u64,
    collection: usize,
    key: &'static str,
    /// `None` for a delete.
    value: Option<Vec<u8>>,
}

/// All that ever happened.
struct Reference {
    log: Vec<Happened>,
    compacted: u64,
    max_events: u64,
}

impl Reference {
    fn revision(&self) -> u64 {
        1 + self.log.len() as u64
    }

    fn at(&self, collection: usize, revision: u64) -> BTreeMap<&'static str, Entry> {
        let mut state: BTreeMap<&str, Entry> = BTreeMap::new();
        for happened in self.log.iter().filter(|each| each.collection == collection && each.revision <= revision) {
            match &happened.value {
                Some(value) => {
                    let create_revision =
                        state.get(happened.key).map_or(happened.revision, |entry| entry.create_revision);
                    let entry = Entry {
                        key: happened.key.into(),
                        create_revision,
                        mod_revision: happened.revision,
                        value: Bytes::from(value.clone()),
                    };
                    state.insert(happened.key, entry);
                }
                None => _ = state.remove(happened.key),
            }
        }
        state
    }

    fn write(&mut self, place: Place, value: Option<Vec<u8>>, expect: Expect) -> Result<u64, WriteError> {
        let key = KEYS[place.key];
        let current = self.at(place.collection, self.revision()).remove(key).map(Arc::new);
        match (expect, current) {
            (Expect::Absent, Some(current)) => return Err(WriteError::Conflict { current }),
            (Expect::Revision(expected), Some(current)) if current.mod_revision != expected => {
                return Err(WriteError::Conflict { current });
            }
            (Expect::Revision(_), None) => return Err(WriteError::NotFound),
            (_, None) if value.is_none() => return Err(WriteError::NotFound),
            _ => {}
        }
        let revision = self.revision() + 1;
        self.log.push(Happened { revision, collection: place.collection, key, value });
        // Nothing happened at revision 1, so keeping all that followed drops nothing.
        let dropped = Some(revision.saturating_sub(self.max_events)).filter(|dropped| *dropped > 1);
        self.compacted = self.compacted.max(dropped.unwrap_or(0));
        Ok(revision)
    }

    fn list(&self, collection: usize, options: &ListOptions) -> Result<Page, ListError> {
        let revision = options.at.unwrap_or(self.revision());
        if revision > self.revision() {
            return Err(ListError::Future { requested: revision, current: self.revision() });
        }
        if revision < self.compacted {
            return Err(Compacted { requested: revision, compacted: self.compacted }.into());
        }
        let after = options.start_after.as_deref();
        let mut entries: Vec<_> = self
            .at(collection, revision)
            .into_iter()
            .filter(|(key, _)| key.starts_with(&options.prefix) && after.is_none_or(|after| *key > after))
            .map(|(_, entry)| Arc::new(entry))
            .collect();
        let rest = entries.split_off(options.limit.unwrap_or(usize::MAX).min(entries.len()));
        Ok(Page { entries, revision, remaining: rest.len() })
    }

    fn events(&self, collection: usize, prefix: &str, after: u64) -> Vec<&Happened> {
        let wanted =
            |each: &&Happened| each.collection == collection && each.revision > after && each.key.starts_with(prefix);
        self.log.iter().filter(wanted).collect()
    }
}

/// A watch on the store and how far it has been read.
struct Old {
    watch: Watch,
    collection: usize,
    prefix: &'static str,
    read_to: u64,
}

struct Run {
    dir: TempDir,
    on_disk: bool,
    options: Options,
    store: Store,
    reference: Reference,
    old: Vec<Old>,
}

impl Run {
    fn new(on_disk: bool, max_events: usize) -> Run {
        let dir = TempDir::new().unwrap();
        let options = Options { max_events, ..Options::default() };
        let store = if on_disk {
            Store::open_disk(dir.path(), options.clone()).unwrap()
        } else {
            Store::open_memory(options.clone())
        };
        let reference = Reference { log: Vec::new(), compacted: 0, max_events: max_events as u64 };
        Run { dir, on_disk, options, store, reference, old: Vec::new() }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Write { place, value, belief } => self.write(place, value, belief).await,
            Step::List { collection, back, mut options } => {
                // Sometimes one too far, into the future.
                options.at = (back < 11).then(|| (self.reference.revision() + 1).saturating_sub(back));
                let listed = self.store.list(COLLECTIONS[collection], &options);
                assert_eq!(listed, self.reference.list(collection, &options));
            }
            Step::Watch { collection, back, prefix } => self.watch(collection, back, prefix).await,
            Step::ReadOld { which } => {
                if !self.old.is_empty() {
                    self.read_old(which % self.old.len()).await;
                }
            }
            Step::Compact { back } => {
                let revision = self.reference.revision().saturating_sub(back);
                self.store.compact(revision);
                self.reference.compacted = self.reference.compacted.max(revision);
            }
            Step::Reopen if self.on_disk => self.reopen().await,
            Step::Reopen => {}
        }
        assert_eq!(self.store.revision(), self.reference.revision());
        assert_eq!(self.store.compacted(), self.reference.compacted);
    }

    async fn write(&mut self, place: Place, value: Option<Vec<u8>>, belief: Belief) {
        let (collection, key) = (COLLECTIONS[place.collection], KEYS[place.key]);
        let current = self.store.get(collection, key).map_or(1, |entry| entry.mod_revision);
        let expect = match belief {
            Belief::Absent => Expect::Absent,
            Belief::Current => Expect::Revision(current),
            Belief::Stale => Expect::Revision(current - 1),
            Belief::Any => Expect::Any,
        };
        let op = value.clone().map_or(Op::Delete, |value| Op::Put(value.into()));
        let written = self.store.write(collection, key, op, expect).await;
        assert_eq!(written.map(|written| written.revision), self.reference.write(place, value, expect));
    }

    async fn watch(&mut self, collection: usize, back: u64, prefix: &'static str) {
        let after = self.reference.revision().saturating_sub(back);
        let watch = self.store.watch(COLLECTIONS[collection], prefix, after);
        let compacted = self.reference.compacted;
        if after < compacted {
            assert_eq!(watch.err(), Some(Compacted { requested: after, compacted }));
            return;
        }
        self.old.push(Old { watch: watch.unwrap(), collection, prefix, read_to: after });
        self.old.push(Old {
            watch: self.store.watch(COLLECTIONS[collection], prefix, after).unwrap(),
            collection,
            prefix,
            read_to: after,
        });
        self.read_old(self.old.len() - 1).await;
    }

    async fn read_old(&mut self, which: usize) {
        let old = &mut self.old[which];
        // A watch expires exactly when an event of its collection that it has not passed is gone.
        let passed = old.read_to;
        let missed = self
            .reference
            .events(old.collection, "", passed)
            .iter()
            .any(|each| each.revision <= self.reference.compacted);
        if missed {
            assert!(matches!(old.watch.next().await, Err(WatchEnd::Expired { .. })));
            self.old.remove(which);
            return;
        }
        let mut events = Vec::new();
        while old.watch.revision() < self.reference.revision() {
            events.extend(old.watch.next().await.unwrap().events);
        }
        let expected = self.reference.events(old.collection, old.prefix, old.read_to);
        assert_eq!(events.len(), expected.len());
        for (event, happened) in events.iter().zip(expected) {
            assert_eq!((event.revision, event.key()), (happened.revision, happened.key));
            assert_eq!(event.kind == Kind::Put, happened.value.is_some());
            let before = self.reference.at(old.collection, event.revision - 1).remove(happened.key);
            assert_eq!(event.prev.as_deref(), before.as_ref());
            let last = match &happened.value {
                Some(value) => value.clone(),
                None => before.unwrap().value.to_vec(),
            };
            assert_eq!((event.entry.mod_revision, &event.entry.value[..]), (event.revision, &last[..]));
        }
        old.read_to = self.reference.revision();
    }

    async fn reopen(&mut self) {
        self.store.close().await;
        self.old.clear();
        self.store = Store::open_disk(self.dir.path(), self.options.clone()).unwrap();
    }
}

fn run(on_disk: bool, max_events: usize, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut run = Run::new(on_disk, max_events);
        for step in steps {
            run.step(step).await;
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_memory_store_answers_as_the_reference(max_events in 3..60usize, steps in prop::collection::vec(step(), 1..120)) {
        run(false, max_events, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_disk_store_answers_as_the_reference(max_events in 3..60usize, steps in prop::collection::vec(step(), 1..80)) {
        run(true, max_events, steps);
    }
}
