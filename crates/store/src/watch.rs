//! Watches pull: a cursor into the shared history, moved by whoever reads.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    Event,
    state::{Channel, Shared, State},
};

/// Events handed out at once, so that a reader that was away does not hold the whole history.
const BATCH: usize = 1024;
/// Events looked at under one hold of the lock.
const SCAN: usize = 8192;

/// The events of one collection after a revision, each exactly once and in order.
///
/// It keeps no events itself. `next` may be dropped at any point without losing any.
pub struct Watch {
    shared: Arc<Shared>,
    channel: Arc<Channel>,
    changed: watch::Receiver<u64>,
    prefix: String,
    /// Every matching event at or below was handed out.
    cursor: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Never empty.
    pub events: Vec<Arc<Event>>,
    /// Everything that matches up to this revision has been handed out, with this batch.
    pub revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// Compaction took events that this watch had not read.
    #[error("the watch stood at revision {cursor}, events up to {dropped} have been compacted")]
    Expired { cursor: u64, dropped: u64 },
    #[error("the store is closed")]
    Closed,
}

enum Found {
    Batch(Batch),
    /// Nothing yet, but the scan stopped early.
    More,
    Nothing,
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>, channel: Arc<Channel>, prefix: String, after: u64) -> Watch {
        let changed = channel.changed.subscribe();
        Watch { shared, channel, changed, prefix, cursor: after }
    }

    /// Waits for events. When the store closes, what was published before is still handed out first.
    pub async fn next(&mut self) -> Result<Batch, WatchEnd> {
        loop {
            // Marked before looking: whatever is published after the look rings again.
            self.changed.borrow_and_update();
            match self.scan()? {
                Found::Batch(batch) => return Ok(batch),
                Found::More => {}
                Found::Nothing => self.changed.changed().await.map_err(|_| WatchEnd::Closed)?,
            }
        }
    }

    /// The revision up to which this watch has missed nothing: the store's own when no event is waiting to be read.
    /// It is what a bookmark may say.
    pub fn revision(&mut self) -> u64 {
        let shared = self.shared.clone();
        let state = shared.state.read();
        let home = &state.collections[self.channel.index];
        let waiting = home.events.range(home.events_after(self.cursor)..).any(|event| self.wants(event));
        if !waiting && self.cursor >= home.dropped {
            self.cursor = self.cursor.max(state.revision);
        }
        self.cursor
    }

    fn scan(&mut self) -> Result<Found, WatchEnd> {
        let shared = self.shared.clone();
        let state = shared.state.read();
        let dropped = state.collections[self.channel.index].dropped;
        if self.cursor < dropped {
            return Err(WatchEnd::Expired { cursor: self.cursor, dropped });
        }
        let (events, scanned_to) = self.collect(&state);
        self.cursor = self.cursor.max(scanned_to);
        match events.is_empty() {
            false => Ok(Found::Batch(Batch { events, revision: self.cursor })),
            true if scanned_to < state.revision => Ok(Found::More),
            true if state.closed => Err(WatchEnd::Closed),
            true => Ok(Found::Nothing),
        }
    }

    /// The next matching events and the revision up to which there are no others.
    fn collect(&self, state: &State) -> (Vec<Arc<Event>>, u64) {
        let home = &state.collections[self.channel.index];
        let mut found = Vec::new();
        for (seen, event) in home.events.range(home.events_after(self.cursor)..).enumerate() {
            if seen == SCAN || found.len() == BATCH {
                return (found, event.revision - 1);
            }
            if self.wants(event) {
                found.push(event.clone());
            }
        }
        (found, state.revision)
    }

    fn wants(&self, event: &Event) -> bool {
        event.key().starts_with(&self.prefix)
    }
}
