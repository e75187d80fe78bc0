//! The handle that everyone holds.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    Closed, Compacted, Entry, Expect, ListError, ListOptions, Op, OpenError, Options, Page, Stats, Watch, WriteError,
    Written,
    engine::{Disk, Engine, Memory},
    state::{Shared, State},
    writer::{Proposal, Request, Writer},
};

/// Writes that may wait for the disk; more of them wait for a place here.
const QUEUE: usize = 1024;
/// Events dropped under one hold of the lock.
const COMPACT_STEP: usize = 4096;

/// A store. Clones are handles on the same one.
///
/// [`Store::close`] closes it for all. Without it, dropping the last handle finishes the writes that were accepted,
/// closes the file and waits for that; watches do not keep a store open.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    pen: Pen,
    closing: AtomicBool,
}

/// Where writes are made.
enum Pen {
    /// On the task that writes.
    Here(Mutex<Option<Writer>>),
    /// On a thread that waits for the disk.
    Thread { queue: Mutex<Option<mpsc::Sender<Request>>>, thread: Mutex<Option<JoinHandle<()>>> },
}

impl Store {
    /// Opens the store in the directory `dir`, creating it if there is none.
    pub fn open_disk(dir: impl AsRef<Path>, options: Options) -> Result<Store, OpenError> {
        Store::open(Box::new(Disk::open(dir.as_ref())?), options)
    }

    /// A store that lives and dies with the process.
    pub fn open_memory(options: Options) -> Store {
        let state = State::new(options, 0);
        Store::start(Box::new(Memory), state, 0)
    }

    pub fn open(mut engine: Box<dyn Engine>, options: Options) -> Result<Store, OpenError> {
        let recorded = engine.compacted()?;
        let mut state = State::new(options, recorded);
        engine.replay(&mut |record| state.restore(&record))?;
        Ok(Store::start(engine, state, recorded))
    }

    /// `recorded` is the compaction revision that the engine has.
    fn start(engine: Box<dyn Engine>, state: State, recorded: u64) -> Store {
        let shared = Arc::new(Shared {
            revision: watch::Sender::new(state.revision),
            disk_bytes: AtomicU64::new(engine.size_bytes()),
            state: RwLock::new(state),
        });
        let blocks = engine.blocks();
        let writer = Writer::new(engine, shared.clone(), recorded);
        let pen = if blocks {
            let (queue, requests) = mpsc::channel(QUEUE);
            let thread = thread::Builder::new().name("store".into()).spawn(move || writer.run(requests));
            // Without a thread nothing serves the queue, and every write is answered `Closed`.
            let thread = thread.inspect_err(|error| tracing::error!(%error, "the store's thread did not start")).ok();
            Pen::Thread { queue: Mutex::new(Some(queue)), thread: Mutex::new(thread) }
        } else {
            Pen::Here(Mutex::new(Some(writer)))
        };
        Store(Arc::new(Inner { shared, pen, closing: AtomicBool::new(false) }))
    }

    /// The revision of the last write that can be read.
    pub fn revision(&self) -> u64 {
        self.0.shared.state.read().revision
    }

    /// The oldest revision that can be listed, or watched from.
    pub fn compacted(&self) -> u64 {
        self.0.shared.state.read().compacted
    }

    pub fn get(&self, collection: &str, key: &str) -> Option<Arc<Entry>> {
        let state = self.0.shared.state.read();
        let collection = state.collection(collection)?.channel.index;
        state.get(collection, key).cloned()
    }

    pub fn list(&self, collection: &str, options: &ListOptions) -> Result<Page, ListError> {
        self.0.shared.state.read().list(collection, options)
    }

    /// Changes one key. Answered when the change is durable and can be read.
    ///
    /// Dropping the future before that leaves it open whether the write happens.
    pub async fn write(&self, collection: &str, key: &str, op: Op, expect: Expect) -> Result<Written, WriteError> {
        if self.0.closing.load(Ordering::Acquire) {
            return Err(WriteError::Closed);
        }
        let proposal = Proposal { channel: self.channel(collection), key: key.into(), op, expect };
        match &self.0.pen {
            Pen::Here(writer) => {
                let mut writer = writer.lock();
                let writer = writer.as_mut().ok_or(WriteError::Closed)?;
                writer.write(&[proposal]).pop().unwrap_or(Err(WriteError::Closed))
            }
            Pen::Thread { queue, .. } => {
                let queue = queue.lock().clone().ok_or(WriteError::Closed)?;
                let (reply, answer) = oneshot::channel();
                queue.send(Request::Write(proposal, reply)).await.map_err(|_| WriteError::Closed)?;
                answer.await.unwrap_or(Err(WriteError::Closed))
            }
        }
    }

    /// The events in `collection`, of keys that begin with `prefix`, after the revision `after`.
    ///
    /// `after` may lie in the future: events up to it are then not delivered. Whether that makes sense is the caller's
    /// to check.
    pub fn watch(&self, collection: &str, prefix: &str, after: u64) -> Result<Watch, Compacted> {
        let channel = self.channel(collection);
        let watch = Watch::new(self.0.shared.clone(), channel, prefix.into(), after);
        // Checked last; if compaction comes after this, the watch itself finds out.
        let compacted = self.compacted();
        if after < compacted {
            return Err(Compacted { requested: after, compacted });
        }
        Ok(watch)
    }

    /// Waits until the store has reached `revision`.
    pub async fn wait_for(&self, revision: u64) -> Result<(), Closed> {
        let mut published = self.0.shared.revision.subscribe();
        loop {
            published.borrow_and_update();
            {
                let state = self.0.shared.state.read();
                if state.revision >= revision {
                    return Ok(());
                }
                if state.closed {
                    return Err(Closed);
                }
            }
            published.changed().await.map_err(|_| Closed)?;
        }
    }

    /// Drops the history at or below `revision`; current values stay. The log on disk follows in the background.
    ///
    /// Frees what it drops on the caller's thread, without holding up readers and writers: a moment for a large history.
    pub fn compact(&self, revision: u64) {
        loop {
            let dropped = self.0.shared.state.write().compact(revision, COMPACT_STEP);
            if dropped.is_empty() {
                break;
            }
        }
        if let Pen::Thread { queue, .. } = &self.0.pen
            && let Some(queue) = &*queue.lock()
        {
            // A full queue means that the writer is awake and will see for itself.
            let _ = queue.try_send(Request::Tidy);
        }
    }

    pub fn stats(&self) -> Stats {
        self.0.shared.state.read().stats(self.0.shared.disk_bytes.load(Ordering::Relaxed))
    }

    /// Finishes the writes that were accepted, closes the file and ends the watches. Later writes get `Closed`; what
    /// was written can still be read.
    pub async fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        match &self.0.pen {
            Pen::Here(writer) => {
                if let Some(mut writer) = writer.lock().take() {
                    writer.finish();
                }
            }
            Pen::Thread { queue, .. } => {
                let Some(queue) = queue.lock().clone() else { return };
                let (done, closed) = oneshot::channel();
                if queue.send(Request::Close(done)).await.is_ok() {
                    let _ = closed.await;
                }
            }
        }
    }

    fn channel(&self, collection: &str) -> Arc<crate::state::Channel> {
        if let Some(known) = self.0.shared.state.read().collection(collection) {
            return known.channel.clone();
        }
        self.0.shared.state.write().channel(collection)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match &self.pen {
            Pen::Here(writer) => {
                if let Some(mut writer) = writer.lock().take() {
                    writer.finish();
                }
            }
            Pen::Thread { queue, thread } => {
                drop(queue.lock().take());
                if let Some(thread) = thread.lock().take() {
                    let _ = thread.join();
                }
            }
        }
    }
}
