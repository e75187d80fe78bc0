//! What every engine must make true, as functions that panic when it does not.
//!
//! Implement [`Bed`] for the engine and let [`conformance_suite!`](crate::conformance_suite) make a test of each:
//!
//! ```text
//! usher_store::conformance_suite!(my_engine, MyBed::new(), durable);
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    Batch, Closed, Compacted, Entry, Event, Expect, Kind, ListError, ListOptions, Op, Options, Page, Store, Watch,
    WatchEnd, WriteError, Written,
};

/// A place where one store can be opened, again and again.
pub trait Bed: Send + Sync {
    /// On a durable engine: with all that was there when it was last closed.
    fn open(&self, options: Options) -> Store;
}

/// One test per rule, in a module of the given name; the expression makes a fresh [`Bed`]. With `durable` also the rules
/// for an engine that outlives its process.
#[macro_export]
macro_rules! conformance_suite {
    ($name:ident, $bed:expr) => {
        $crate::conformance_suite!(@each $name, $bed,
            the_first_write_is_above_the_empty_revision
            absent_is_met_once
            a_write_at_a_stale_revision_is_refused_with_the_current_entry
            a_missing_key_cannot_be_deleted_or_updated
            a_recreated_key_gets_a_new_create_revision
            collections_do_not_see_each_other
            racing_writers_at_one_revision_have_one_winner
            revisions_have_no_holes_under_concurrent_writers
            a_list_is_ordered_and_bounded_by_its_prefix
            pages_show_one_revision_while_writes_go_on
            a_past_list_undoes_puts_and_deletes
            a_list_in_the_future_or_below_compaction_is_refused
            a_watch_delivers_everything_after_its_revision
            a_delete_event_carries_the_last_value
            watches_have_no_gap_and_no_duplicate_under_concurrent_writers
            a_watch_is_not_woken_by_other_collections
            a_bookmark_follows_the_store_but_never_passes_an_unread_event
            a_watch_from_the_future_skips_what_lies_before
            a_watch_that_falls_behind_expires
            a_quiet_watch_survives_compaction
            history_is_bounded_by_count
            history_is_bounded_by_bytes
            compaction_keeps_current_values
            wait_for_returns_at_the_revision
            a_closed_store_refuses_writes_and_ends_watches
            dropping_the_store_ends_watches
        );
    };
    ($name:ident, $bed:expr, durable) => {
        $crate::conformance_suite!($name, $bed);
        mod durable {
            use super::*;
            $crate::conformance_suite!(@each $name, $bed,
                reopening_keeps_values_revisions_and_history
                reopening_after_compaction_keeps_the_revision
            );
        }
    };
    (@each $name:ident, $bed:expr, $($rule:ident)+) => {
        mod $name {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $rule() {
                    $crate::conformance::$rule(&$bed).await;
                }
            )+
        }
    };
}

const C: &str = "things";

fn options() -> Options {
    Options::default()
}

async fn put(store: &Store, key: &str, value: &str) -> Written {
    write(store, C, key, Op::Put(Bytes::copy_from_slice(value.as_bytes())), Expect::Any).await
}

async fn delete(store: &Store, key: &str) -> Written {
    write(store, C, key, Op::Delete, Expect::Any).await
}

async fn write(store: &Store, collection: &str, key: &str, op: Op, expect: Expect) -> Written {
    store.write(collection, key, op, expect).await.expect("the write is accepted")
}

fn value(text: &str) -> Op {
    Op::Put(Bytes::copy_from_slice(text.as_bytes()))
}

fn text(entry: &Entry) -> &str {
    str::from_utf8(&entry.value).expect("the tests write text")
}

/// `key=value` of a page, for comparing whole pages.
fn shown(page: &Page) -> Vec<String> {
    page.entries.iter().map(|entry| format!("{}={}", entry.key, text(entry))).collect()
}

fn list(store: &Store, options: ListOptions) -> Page {
    store.list(C, &options).expect("the revision is kept")
}

fn at(revision: u64) -> ListOptions {
    ListOptions { at: Some(revision), ..ListOptions::default() }
}

/// Reads until the watch has delivered the event of `last`.
async fn read_until(watch: &mut Watch, last: u64) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Arc<Event>| event.revision < last) {
        events.extend(soon(watch.next()).await.expect("the watch goes on").events);
    }
    events
}

/// Fails instead of hanging.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("it takes less than a minute")
}

async fn is_pending<T>(work: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_millis(30), work).await.is_err()
}

pub async fn the_first_write_is_above_the_empty_revision(bed: &impl Bed) {
    let store = bed.open(options());
    assert_eq!((store.revision(), store.compacted()), (1, 0));
    let page = list(&store, ListOptions::default());
    assert_eq!((page.revision, page.entries.len(), page.more()), (1, 0, false));
    let written = put(&store, "a", "1").await;
    assert_eq!((written.revision, written.prev), (2, None));
    assert_eq!((written.entry.create_revision, written.entry.mod_revision), (2, 2));
    assert_eq!(store.get(C, "a"), Some(written.entry));
    assert_eq!(store.revision(), 2);
}

pub async fn absent_is_met_once(bed: &impl Bed) {
    let store = bed.open(options());
    let first = write(&store, C, "a", value("1"), Expect::Absent).await;
    let second = store.write(C, "a", value("2"), Expect::Absent).await;
    assert_eq!(second, Err(WriteError::Conflict { current: first.entry.clone() }));
    assert_eq!(store.get(C, "a"), Some(first.entry));
    assert_eq!(store.revision(), first.revision);
    delete(&store, "a").await;
    write(&store, C, "a", value("3"), Expect::Absent).await;
}

pub async fn a_write_at_a_stale_revision_is_refused_with_the_current_entry(bed: &impl Bed) {
    let store = bed.open(options());
    let first = put(&store, "a", "1").await;
    let second = write(&store, C, "a", value("2"), Expect::Revision(first.revision)).await;
    assert_eq!(second.prev, Some(first.entry.clone()));
    assert_eq!(second.entry.create_revision, first.revision);
    let conflict = Err(WriteError::Conflict { current: second.entry.clone() });
    assert_eq!(store.write(C, "a", value("3"), Expect::Revision(first.revision)).await, conflict);
    assert_eq!(store.write(C, "a", Op::Delete, Expect::Revision(first.revision)).await, conflict);
    assert_eq!(store.get(C, "a"), Some(second.entry.clone()));
    write(&store, C, "a", Op::Delete, Expect::Revision(second.revision)).await;
    assert_eq!(store.get(C, "a"), None);
}

pub async fn a_missing_key_cannot_be_deleted_or_updated(bed: &impl Bed) {
    let store = bed.open(options());
    for (op, expect) in [
        (Op::Delete, Expect::Any),
        (Op::Delete, Expect::Absent),
        (Op::Delete, Expect::Revision(1)),
        (value("1"), Expect::Revision(1)),
    ] {
        assert_eq!(store.write(C, "a", op, expect).await, Err(WriteError::NotFound));
    }
    assert_eq!(store.revision(), 1);
}

pub async fn a_recreated_key_gets_a_new_create_revision(bed: &impl Bed) {
    let store = bed.open(options());
    put(&store, "a", "1").await;
    let gone = delete(&store, "a").await;
    let again = put(&store, "a", "2").await;
    assert_eq!(again.prev, None);
    assert_eq!(again.entry.create_revision, gone.revision + 1);
}

pub async fn collections_do_not_see_each_other(bed: &impl Bed) {
    let store = bed.open(options());
    let ours = put(&store, "a", "ours").await;
    let theirs = write(&store, "others", "a", value("theirs"), Expect::Absent).await;
    assert_eq!(theirs.revision, ours.revision + 1, "the revision is one for all");
    assert_eq!(shown(&list(&store, ListOptions::default())), ["a=ours"]);
    assert_eq!(store.get("others", "a"), Some(theirs.entry));
    assert_eq!(store.get("nowhere", "a"), None);
    let counts: Vec<_> = store.stats().collections;
    assert_eq!(counts, [("others".into(), 1), (C.into(), 1)]);
}

pub async fn racing_writers_at_one_revision_have_one_winner(bed: &impl Bed) {
    let store = bed.open(options());
    let mut current = put(&store, "a", "0").await.revision;
    for round in 0..10 {
        let writers: Vec<_> = (0..16)
            .map(|writer| {
                let store = store.clone();
                let op = value(&format!("{round}/{writer}"));
                tokio::spawn(async move { store.write(C, "a", op, Expect::Revision(current)).await })
            })
            .collect();
        let mut won = Vec::new();
        for writer in writers {
            match writer.await.expect("no panic") {
                Ok(written) => won.push(written),
                Err(WriteError::Conflict { current: found }) => assert_ne!(found.mod_revision, current),
                Err(other) => panic!("unexpected {other}"),
            }
        }
        assert_eq!(won.len(), 1);
        assert_eq!(store.get(C, "a"), Some(won[0].entry.clone()));
        current = won[0].revision;
    }
}

pub async fn revisions_have_no_holes_under_concurrent_writers(bed: &impl Bed) {
    let store = bed.open(options());
    let mut revisions = spawn_writers(&store, 8, 40).await;
    revisions.sort_unstable();
    assert_eq!(revisions, (2..2 + 8 * 40).collect::<Vec<_>>());
    assert_eq!(store.revision(), 1 + 8 * 40);
}

/// Each writer puts and sometimes deletes a few keys of its own; returns the revisions they were answered.
async fn spawn_writers(store: &Store, writers: usize, writes: usize) -> Vec<u64> {
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut revisions = Vec::new();
                for n in 0..writes {
                    let key = format!("{writer}/{}", n % 5);
                    let op =
                        if n % 7 >= 5 && store.get(C, &key).is_some() { Op::Delete } else { value(&n.to_string()) };
                    revisions.push(write(&store, C, &key, op, Expect::Any).await.revision);
                }
                revisions
            })
        })
        .collect();
    let mut revisions = Vec::new();
    for task in tasks {
        revisions.extend(task.await.expect("no panic"));
    }
    revisions
}

pub async fn a_list_is_ordered_and_bounded_by_its_prefix(bed: &impl Bed) {
    let store = bed.open(options());
    for key in ["b/2", "a/1", "b/10", "b/1", "bb/1", "c/1", "b"] {
        put(&store, key, "x").await;
    }
    let keys = |options| list(&store, options).entries.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>();
    let b = || ListOptions { prefix: "b/".into(), ..ListOptions::default() };
    assert_eq!(keys(ListOptions::default()), ["a/1", "b", "b/1", "b/10", "b/2", "bb/1", "c/1"]);
    assert_eq!(keys(b()), ["b/1", "b/10", "b/2"]);
    assert_eq!(keys(ListOptions { start_after: Some("b/1".into()), ..b() }), ["b/10", "b/2"]);
    assert_eq!(keys(ListOptions { start_after: Some("a".into()), ..b() }), ["b/1", "b/10", "b/2"]);
    assert_eq!(keys(ListOptions { start_after: Some("c".into()), ..b() }), [""; 0]);
    let first = list(&store, ListOptions { limit: Some(2), ..b() });
    assert_eq!((shown(&first), first.remaining, first.more()), (vec!["b/1=x".into(), "b/10=x".into()], 1, true));
    let last = list(&store, ListOptions { limit: Some(2), start_after: Some("b/10".into()), ..b() });
    assert_eq!((shown(&last), last.remaining, last.more()), (vec!["b/2=x".into()], 0, false));
    let none = list(&store, ListOptions { limit: Some(0), ..b() });
    assert_eq!((none.entries.len(), none.remaining), (0, 3));
}

pub async fn pages_show_one_revision_while_writes_go_on(bed: &impl Bed) {
    let store = bed.open(options());
    for n in 0..30 {
        put(&store, &format!("{n:02}"), "before").await;
    }
    let before = list(&store, ListOptions::default());
    let mut read = Vec::new();
    let mut page = list(&store, ListOptions { limit: Some(7), ..ListOptions::default() });
    loop {
        assert_eq!(page.revision, before.revision);
        assert_eq!(page.remaining, 30 - read.len() - page.entries.len());
        read.extend(page.entries.clone());
        if !page.more() {
            break;
        }
        let round = read.len();
        put(&store, &format!("{:02}", round - 1), "changed behind").await;
        put(&store, &format!("{:02}", round + 1), "changed ahead").await;
        put(&store, &format!("{round:02}-new"), "new").await;
        delete(&store, &format!("{round:02}")).await;
        let last = read.last().map(|entry| entry.key.to_string());
        let next = ListOptions { limit: Some(7), start_after: last, at: Some(page.revision), ..ListOptions::default() };
        page = list(&store, next);
    }
    assert_eq!(read, before.entries);
}

pub async fn a_past_list_undoes_puts_and_deletes(bed: &impl Bed) {
    let store = bed.open(options());
    put(&store, "a", "1").await;
    put(&store, "b", "1").await;
    put(&store, "a", "2").await;
    delete(&store, "b").await;
    put(&store, "c", "1").await;
    put(&store, "b", "2").await;
    let shown_at = |revision| shown(&list(&store, at(revision)));
    assert_eq!(shown_at(1), [""; 0]);
    assert_eq!(shown_at(2), ["a=1"]);
    assert_eq!(shown_at(3), ["a=1", "b=1"]);
    assert_eq!(shown_at(4), ["a=2", "b=1"]);
    assert_eq!(shown_at(5), ["a=2"]);
    assert_eq!(shown_at(6), ["a=2", "c=1"]);
    assert_eq!(shown_at(7), ["a=2", "b=2", "c=1"]);
}

pub async fn a_list_in_the_future_or_below_compaction_is_refused(bed: &impl Bed) {
    let store = bed.open(options());
    for n in 0..5 {
        put(&store, "a", &n.to_string()).await;
    }
    assert_eq!(store.list(C, &at(7)), Err(ListError::Future { requested: 7, current: 6 }));
    store.compact(1);
    assert_eq!((store.compacted(), store.stats().history_events), (1, 5));
    store.compact(4);
    assert_eq!((store.compacted(), store.stats().history_events), (4, 2));
    assert_eq!(store.list(C, &at(3)), Err(Compacted { requested: 3, compacted: 4 }.into()));
    assert_eq!(shown(&list(&store, at(4))), ["a=2"]);
    assert_eq!(shown(&list(&store, at(5))), ["a=3"]);
}

pub async fn a_watch_delivers_everything_after_its_revision(bed: &impl Bed) {
    let store = bed.open(options());
    put(&store, "a", "1").await;
    let second = put(&store, "a", "2").await;
    put(&store, "b/1", "1").await;
    let mut all = store.watch(C, "", 2).expect("not compacted");
    let mut some = store.watch(C, "b/", 2).expect("not compacted");
    let Batch { events, revision } = soon(all.next()).await.expect("open");
    assert_eq!((events.len(), revision), (2, 4));
    assert_eq!((&events[0].entry, events[0].kind), (&second.entry, Kind::Put));
    assert_eq!(events[0].prev.as_ref().map(|prev| text(prev)), Some("1"));
    assert!(is_pending(all.next()).await);
    let written = put(&store, "b/2", "1").await;
    let keys = |events: &[Arc<Event>]| events.iter().map(|event| event.key().to_string()).collect::<Vec<_>>();
    assert_eq!(keys(&soon(all.next()).await.expect("open").events), ["b/2"]);
    assert_eq!(keys(&read_until(&mut some, written.revision).await), ["b/1", "b/2"]);
}

pub async fn a_delete_event_carries_the_last_value(bed: &impl Bed) {
    let store = bed.open(options());
    let first = put(&store, "a", "last words").await;
    let mut watch = store.watch(C, "", first.revision).expect("not compacted");
    let gone = delete(&store, "a").await;
    let events = soon(watch.next()).await.expect("open").events;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].kind, events[0].revision), (Kind::Delete, gone.revision));
    assert_eq!(events[0].prev, Some(first.entry.clone()));
    assert_eq!(events[0].entry, gone.entry);
    assert_eq!(*gone.entry, Entry { mod_revision: gone.revision, ..(*first.entry).clone() });
}

pub async fn watches_have_no_gap_and_no_duplicate_under_concurrent_writers(bed: &impl Bed) {
    const WRITES: u64 = 8 * 60;
    let store = bed.open(options());
    let start = store.revision();
    let watchers: Vec<_> = (0..6)
        .map(|n: u64| {
            let store = store.clone();
            tokio::spawn(async move {
                // Registered at different moments of the storm.
                soon(store.wait_for(start + n * WRITES / 8)).await.expect("open");
                let from = store.revision();
                let mut state: BTreeMap<String, Arc<Entry>> =
                    list(&store, at(from)).entries.iter().map(|entry| (entry.key.to_string(), entry.clone())).collect();
                let mut watch = store.watch(C, "", from).expect("not compacted");
                let mut revision = from;
                while revision < start + WRITES {
                    for event in soon(watch.next()).await.expect("open").events {
                        assert_eq!(event.revision, revision + 1, "neither a gap nor a duplicate");
                        revision = event.revision;
                        let before = match event.kind {
                            Kind::Put => state.insert(event.key().into(), event.entry.clone()),
                            Kind::Delete => state.remove(event.key()),
                        };
                        assert_eq!(event.prev, before);
                    }
                }
                state.into_values().collect::<Vec<_>>()
            })
        })
        .collect();
    spawn_writers(&store, 8, 60).await;
    let end = list(&store, ListOptions::default()).entries;
    for watcher in watchers {
        assert_eq!(watcher.await.expect("no panic"), end);
    }
}

pub async fn a_watch_is_not_woken_by_other_collections(bed: &impl Bed) {
    let store = bed.open(options());
    let mut watch = store.watch(C, "", 1).expect("not compacted");
    let mut next = std::pin::pin!(watch.next());
    let counter = Arc::new(Wakes::default());
    let waker = std::task::Waker::from(counter.clone());
    let mut context = std::task::Context::from_waker(&waker);
    assert!(next.as_mut().poll(&mut context).is_pending());
    for n in 0..20 {
        write(&store, "others", &n.to_string(), value("x"), Expect::Any).await;
    }
    assert_eq!(counter.count(), 0);
    put(&store, "a", "1").await;
    assert!(counter.count() > 0);
    assert!(next.as_mut().poll(&mut context).is_ready());
}

#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

pub async fn a_bookmark_follows_the_store_but_never_passes_an_unread_event(bed: &impl Bed) {
    let store = bed.open(options());
    let mut watch = store.watch(C, "a/", 1).expect("not compacted");
    put(&store, "b/1", "not watched").await;
    write(&store, "others", "x", value("not watched"), Expect::Any).await;
    assert_eq!(watch.revision(), 3);
    let seen = put(&store, "a/1", "watched").await.revision;
    write(&store, "others", "x", value("not watched"), Expect::Any).await;
    assert_eq!(watch.revision(), 3);
    let batch = soon(watch.next()).await.expect("open");
    assert_eq!((batch.events[0].revision, batch.revision), (seen, seen + 1));
    assert_eq!(watch.revision(), seen + 1);
}

pub async fn a_watch_from_the_future_skips_what_lies_before(bed: &impl Bed) {
    let store = bed.open(options());
    let mut watch = store.watch(C, "", 3).expect("not compacted");
    put(&store, "a", "2").await;
    put(&store, "a", "3").await;
    assert!(is_pending(watch.next()).await);
    put(&store, "a", "4").await;
    let events = soon(watch.next()).await.expect("open").events;
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [4]);
}

pub async fn a_watch_that_falls_behind_expires(bed: &impl Bed) {
    let store = bed.open(options());
    let mut watch = store.watch(C, "", 1).expect("not compacted");
    for n in 0..5 {
        put(&store, "a", &n.to_string()).await;
    }
    store.compact(4);
    assert_eq!(soon(watch.next()).await, Err(WatchEnd::Expired { cursor: 1, dropped: 4 }));
    assert_eq!(watch.revision(), 1, "no bookmark past what was missed");
    assert_eq!(store.watch(C, "", 3).err(), Some(Compacted { requested: 3, compacted: 4 }));
    let mut fresh = store.watch(C, "", 4).expect("the compacted revision itself can be watched from");
    assert_eq!(soon(fresh.next()).await.expect("open").events.len(), 2);
}

pub async fn a_quiet_watch_survives_compaction(bed: &impl Bed) {
    let store = bed.open(options());
    let mut watch = store.watch(C, "", 1).expect("not compacted");
    for n in 0..5 {
        write(&store, "others", "x", value(&n.to_string()), Expect::Any).await;
    }
    store.compact(store.revision());
    let written = put(&store, "a", "1").await;
    assert_eq!(read_until(&mut watch, written.revision).await.len(), 1);
}

pub async fn history_is_bounded_by_count(bed: &impl Bed) {
    let store = bed.open(Options { max_events: 10, ..options() });
    for n in 0..50 {
        put(&store, &format!("{}", n % 3), &n.to_string()).await;
    }
    let stats = store.stats();
    assert_eq!((stats.history_events, stats.revision, stats.compacted), (10, 51, 41));
    assert!(store.list(C, &at(40)).is_err());
    assert_eq!(shown(&list(&store, at(41))), ["0=39", "1=37", "2=38"]);
}

pub async fn history_is_bounded_by_bytes(bed: &impl Bed) {
    let store = bed.open(Options { max_bytes: 1000, ..options() });
    for _ in 0..50 {
        put(&store, "a", &"x".repeat(100)).await;
    }
    let stats = store.stats();
    assert_eq!((stats.history_events, stats.history_bytes), (10, 1000));
    put(&store, "b", &"x".repeat(5000)).await;
    assert_eq!(store.stats().history_bytes, 1000, "a current value is not history");
}

pub async fn compaction_keeps_current_values(bed: &impl Bed) {
    let store = bed.open(options());
    for n in 0..20 {
        put(&store, &format!("{}", n % 4), &n.to_string()).await;
    }
    delete(&store, "3").await;
    store.compact(u64::MAX);
    assert_eq!(store.compacted(), store.revision());
    assert_eq!(store.stats().history_events, 0);
    assert_eq!(shown(&list(&store, ListOptions::default())), ["0=16", "1=17", "2=18"]);
    let current = store.get(C, "0").expect("kept");
    write(&store, C, "0", value("on"), Expect::Revision(current.mod_revision)).await;
}

pub async fn wait_for_returns_at_the_revision(bed: &impl Bed) {
    let store = bed.open(options());
    soon(store.wait_for(1)).await.expect("open");
    assert!(is_pending(store.wait_for(3)).await);
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { (store.wait_for(3).await, store.revision()) }
    });
    put(&store, "a", "1").await;
    put(&store, "a", "2").await;
    assert_eq!(soon(waiter).await.expect("no panic"), (Ok(()), 3));
}

pub async fn a_closed_store_refuses_writes_and_ends_watches(bed: &impl Bed) {
    let store = bed.open(options());
    let mut watch = store.watch(C, "", 1).expect("not compacted");
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { store.wait_for(1000).await }
    });
    let written = put(&store, "a", "1").await;
    soon(store.close()).await;
    assert_eq!(store.write(C, "a", value("2"), Expect::Any).await, Err(WriteError::Closed));
    assert_eq!(store.get(C, "a"), Some(written.entry), "reads go on");
    assert_eq!(soon(watch.next()).await.expect("published before the end").events.len(), 1);
    assert_eq!(soon(watch.next()).await, Err(WatchEnd::Closed));
    assert_eq!(soon(waiter).await.expect("no panic"), Err(Closed));
    soon(store.close()).await;
    store.compact(2);
}

pub async fn dropping_the_store_ends_watches(bed: &impl Bed) {
    let store = bed.open(options());
    let mut watch = store.watch(C, "", 1).expect("not compacted");
    let waiting = tokio::spawn(async move { watch.next().await });
    drop(store);
    assert_eq!(soon(waiting).await.expect("no panic"), Err(WatchEnd::Closed));
    let again = bed.open(options());
    put(&again, "a", "1").await;
}

pub async fn reopening_keeps_values_revisions_and_history(bed: &impl Bed) {
    let store = bed.open(options());
    spawn_writers(&store, 4, 30).await;
    write(&store, "others", "key with / and \u{e9}", value("other"), Expect::Absent).await;
    write(&store, "others", "empty", value(""), Expect::Absent).await;
    store.compact(20);
    let end = store.revision();
    let before = everything(&store).await;
    soon(store.close()).await;
    drop(store);
    let store = bed.open(options());
    assert_eq!((store.revision(), store.compacted()), (end, 20));
    assert_eq!(everything(&store).await, before);
    assert_eq!(put(&store, "new", "1").await.revision, end + 1);
}

/// Every past list that can be had, and all events.
async fn everything(store: &Store) -> (Vec<Page>, Vec<Arc<Event>>, Vec<Page>) {
    let kept = store.compacted()..=store.revision();
    let lists = |collection: &str| {
        kept.clone().map(|revision| store.list(collection, &at(revision)).expect("kept")).collect::<Vec<_>>()
    };
    let mut watch = store.watch(C, "", store.compacted()).expect("not compacted");
    let mut events = Vec::new();
    while watch.revision() < store.revision() {
        events.extend(soon(watch.next()).await.expect("open").events);
    }
    (lists(C), events, lists("others"))
}

pub async fn reopening_after_compaction_keeps_the_revision(bed: &impl Bed) {
    let store = bed.open(options());
    put(&store, "kept", "1").await;
    put(&store, "gone", "1").await;
    let end = delete(&store, "gone").await.revision;
    store.compact(end);
    soon(store.close()).await;
    drop(store);
    // The newest record was the deletion, and compaction removed it.
    let store = bed.open(options());
    assert_eq!((store.revision(), store.compacted()), (end, end));
    assert_eq!(shown(&list(&store, ListOptions::default())), ["kept=1"]);
    assert_eq!(put(&store, "gone", "2").await.entry.create_revision, end + 1);
}
