//! A work queue: each key at most once in it, never worked on by two at a time, retried ever more slowly.
//!
//! It keeps client-go's promises (a key added while it is being worked on is handed out again afterwards) and adds two
//! of its own: there is no jitter, so a run in virtual time repeats; and an empty queue sets no timer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Tasks;
use super::metrics::{OneQueue, QueueMetrics};

/// First wait before a retry; each further failure doubles it.
pub const RETRY_FIRST: Duration = Duration::from_millis(5);
/// client-go's cap for a single item.
pub const RETRY_CAP: Duration = Duration::from_secs(1000);
/// So many urgent keys may go before one that is not.
const URGENT_IN_A_ROW: usize = 8;

/// What the work on a key came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes.
    Settled,
    /// Look again after this long, whatever happens.
    After(Duration),
}

/// Clones are handles on the same queue.
pub struct WorkQueue<K>(Arc<Shared<K>>);

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        WorkQueue(self.0.clone())
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    metrics: OneQueue,
    retry_cap: Duration,
}

struct State<K> {
    /// A key in one of the two lines is to be taken if it is dirty and nobody works on it; it may stand in both.
    ready: VecDeque<K>,
    first: VecDeque<K>,
    /// Keys that go to the line `first` when their time comes.
    urgent: BTreeSet<K>,
    /// How many were taken from `first` since one was from `ready`.
    in_a_row: usize,
    /// Keys that wait in a line.
    waiting: usize,
    /// Keys that somebody must still look at: in a line, or being worked on and added meanwhile.
    dirty: BTreeSet<K>,
    working: BTreeSet<K>,
    /// By due time, then in the order they were added.
    delayed: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    failures: BTreeMap<K, u32>,
    sequence: u64,
}

impl<K: Ord + Clone> WorkQueue<K> {
    pub fn new(name: &str, metrics: &QueueMetrics) -> Self {
        Self::with_retry_cap(name, metrics, RETRY_CAP)
    }

    pub fn with_retry_cap(name: &str, metrics: &QueueMetrics, retry_cap: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            first: VecDeque::new(),
            urgent: BTreeSet::new(),
            in_a_row: 0,
            waiting: 0,
            dirty: BTreeSet::new(),
            working: BTreeSet::new(),
            delayed: BTreeMap::new(),
            due: BTreeMap::new(),
            failures: BTreeMap::new(),
            sequence: 0,
        };
        WorkQueue(Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            metrics: metrics.queue(name),
            retry_cap,
        }))
    }

    pub fn add(&self, key: K) {
        let mut state = self.0.state.lock();
        self.mark_dirty(&mut state, key);
    }

    /// Adds `key` once `delay` has passed; of two delays for one key the earlier counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let mut state = self.0.state.lock();
        let at = Instant::now() + delay;
        if let Some(&old) = state.due.get(&key) {
            if old.0 <= at {
                return;
            }
            state.delayed.remove(&old);
        }
        state.sequence += 1;
        let slot = (at, state.sequence);
        let is_next = state.delayed.first_key_value().is_none_or(|(next, _)| slot < *next);
        state.delayed.insert(slot, key.clone());
        state.due.insert(key, slot);
        drop(state);
        if is_next {
            self.0.changed.notify_one();
        }
    }

    /// As [`WorkQueue::add_after`], and when the delay has passed the key goes before those that are not urgent.
    pub fn add_urgent_after(&self, key: K, delay: Duration) {
        {
            let mut state = self.0.state.lock();
            if state.urgent.insert(key.clone()) && state.dirty.contains(&key) && !state.working.contains(&key) {
                state.first.push_back(key.clone());
            }
        }
        self.add_after(key, delay);
    }

    /// Adds `key` after a wait that doubles with each call until [`WorkQueue::forget`].
    pub fn retry(&self, key: K) {
        let failures = {
            let mut state = self.0.state.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures += 1;
            *failures
        };
        self.0.metrics.retries.inc();
        self.add_after(key, backoff(failures, self.0.retry_cap));
    }

    /// Ends the history of failures of `key`.
    pub fn forget(&self, key: &K) {
        self.0.state.lock().failures.remove(key);
    }

    /// The next key, when there is one. It is the caller's until [`WorkQueue::done`].
    pub async fn get(&self) -> K {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next_due = {
                let mut state = self.0.state.lock();
                self.ripen(&mut state, Instant::now());
                if let Some(key) = state.pop() {
                    self.0.metrics.depth.set(state.waiting as i64);
                    if state.waiting > 0 || !state.delayed.is_empty() {
                        // Somebody else takes the next one, or sees to the timer.
                        self.0.changed.notify_one();
                    }
                    return key;
                }
                state.delayed.keys().next().map(|&(at, _)| at)
            };
            match next_due {
                Some(at) => tokio::select! {
                    () = &mut changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => changed.await,
            }
        }
    }

    /// Hands a key back; it is ready again at once if it was added while it was out.
    pub fn done(&self, key: &K) {
        let mut state = self.0.state.lock();
        state.working.remove(key);
        if state.dirty.contains(key) {
            state.line_up(key.clone());
            self.announce(&state);
        }
    }

    pub fn len(&self) -> usize {
        self.0.state.lock().waiting
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn ripen(&self, state: &mut State<K>, now: Instant) {
        while let Some(entry) = state.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            state.due.remove(&key);
            self.mark_dirty(state, key);
        }
    }

    fn mark_dirty(&self, state: &mut State<K>, key: K) {
        if !state.dirty.insert(key.clone()) {
            return;
        }
        self.0.metrics.adds.inc();
        if !state.working.contains(&key) {
            state.line_up(key);
            self.announce(state);
        }
    }

    fn announce(&self, state: &State<K>) {
        self.0.metrics.depth.set(state.waiting as i64);
        self.0.changed.notify_one();
    }
}

impl<K: Ord + Clone> State<K> {
    fn line_up(&mut self, key: K) {
        self.waiting += 1;
        if self.urgent.contains(&key) { self.first.push_back(key) } else { self.ready.push_back(key) }
    }

    /// The next key, now worked on. The urgent go first, but not without end.
    fn pop(&mut self) -> Option<K> {
        loop {
            let urgent = !self.first.is_empty() && (self.in_a_row < URGENT_IN_A_ROW || self.ready.is_empty());
            let key = if urgent { self.first.pop_front() } else { self.ready.pop_front() }?;
            if !self.dirty.contains(&key) || self.working.contains(&key) {
                continue; // it stood in the other line as well
            }
            self.in_a_row = if urgent { self.in_a_row + 1 } else { 0 };
            self.waiting -= 1;
            self.dirty.remove(&key);
            self.urgent.remove(&key);
            self.working.insert(key.clone());
            return Some(key);
        }
    }
}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> WorkQueue<K> {
    /// Works the queue off with `workers` tasks until these are stopped. An error means: retry, later each time.
    pub fn run<F, Fut, E>(&self, workers: usize, tasks: &Tasks, work: F)
    where
        F: Fn(K) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send,
        E: Display,
    {
        for _ in 0..workers {
            let (queue, work) = (self.clone(), work.clone());
            tasks.spawn(async move {
                loop {
                    let key = queue.get().await;
                    let started = Instant::now();
                    let result = work(key.clone()).await;
                    queue.0.metrics.work_secs.observe(started.elapsed().as_secs_f64());
                    match result {
                        Ok(Outcome::Settled) => queue.forget(&key),
                        Ok(Outcome::After(delay)) => {
                            queue.forget(&key);
                            queue.add_after(key.clone(), delay);
                        }
                        Err(error) => {
                            tracing::debug!(?key, %error, "will be retried");
                            queue.retry(key.clone());
                        }
                    }
                    queue.done(&key);
                }
            });
        }
    }
}

/// The wait before the `failures`th retry.
pub fn backoff(failures: u32, cap: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(30);
    RETRY_FIRST.saturating_mul(1 << doublings).min(cap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn queue() -> WorkQueue<&'static str> {
        WorkQueue::new("test", &QueueMetrics::default())
    }

    #[tokio::test]
    async fn a_key_is_queued_once_and_in_order() {
        let q = queue();
        for key in ["a", "b", "a"] {
            q.add(key);
        }
        assert_eq!((q.get().await, q.get().await), ("a", "b"));
        assert!(q.get().now_or_never().is_none());
    }

    #[tokio::test]
    async fn urgent_keys_go_first_once_each_and_leave_room_for_others() {
        let q = WorkQueue::new("test", &QueueMetrics::default());
        (0..3).for_each(|n| q.add(n));
        q.add_urgent_after(2, Duration::ZERO);
        (100..100 + URGENT_IN_A_ROW).for_each(|n| q.add_urgent_after(n, Duration::ZERO));
        assert_eq!(q.len(), 3 + URGENT_IN_A_ROW);
        let mut order = vec![];
        while let Some(key) = q.get().now_or_never() {
            order.push(key);
        }
        let urgent: Vec<usize> = [2].into_iter().chain(100..100 + URGENT_IN_A_ROW).collect();
        let (row, rest) = urgent.split_at(URGENT_IN_A_ROW);
        assert_eq!(order, [row, &[0], rest, &[1]].concat());
        assert_eq!(q.len(), 0);
        // Urgent once is not urgent for ever, and never with two workers.
        q.add_urgent_after(2, Duration::ZERO);
        assert!(q.get().now_or_never().is_none(), "two workers on one key");
        order.iter().for_each(|key| q.done(key));
        (0..3).for_each(|n| q.add(n));
        assert_eq!((q.get().await, q.get().await), (2, 0));
        q.done(&2);
        q.add(2);
        assert_eq!((q.get().await, q.get().await), (1, 2));
    }

    #[tokio::test]
    async fn a_key_added_while_worked_on_comes_again_only_after_done() {
        let q = queue();
        q.add("a");
        assert_eq!(q.get().await, "a");
        q.add("a");
        assert!(q.get().now_or_never().is_none(), "two workers on one key");
        q.done(&"a");
        assert_eq!(q.get().now_or_never(), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_delays_counts() {
        let q = queue();
        let start = Instant::now();
        q.add_after("a", Duration::from_secs(60));
        q.add_after("a", Duration::from_secs(10));
        q.add_after("a", Duration::from_secs(30));
        assert_eq!(q.get().await, "a");
        assert_eq!(start.elapsed().as_secs(), 10);
        q.done(&"a");
        assert!(tokio::time::timeout(Duration::from_secs(3600), q.get()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn retries_double_until_forgotten() {
        let q = queue();
        let mut waits = vec![];
        for round in 0..5 {
            if round == 3 {
                q.forget(&"a");
            }
            let start = Instant::now();
            q.retry("a");
            q.get().await;
            q.done(&"a");
            waits.push(start.elapsed().as_millis());
        }
        assert_eq!(waits, [5, 10, 20, 5, 10]);
        assert_eq!(backoff(u32::MAX, RETRY_CAP), RETRY_CAP);
    }

    #[tokio::test(start_paused = true)]
    async fn workers_retry_what_fails_and_count_what_they_do() {
        let metrics = QueueMetrics::default();
        let q: WorkQueue<u8> = WorkQueue::new("test", &metrics);
        let tasks = Tasks::default();
        let tries = Arc::new(Mutex::new(0));
        let seen = tries.clone();
        q.run(2, &tasks, move |_| {
            let seen = seen.clone();
            async move {
                *seen.lock() += 1;
                if *seen.lock() < 3 { Err("not yet") } else { Ok(Outcome::Settled) }
            }
        });
        q.add(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*tries.lock(), 3);
        tasks.stop().await;
        let mut registry = prometheus_client::registry::Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "workqueue_depth{name=\"test\"} 0",
            "workqueue_adds_total{name=\"test\"} 3",
            "workqueue_retries_total{name=\"test\"} 2",
            "workqueue_work_duration_seconds_count{name=\"test\"} 3",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
