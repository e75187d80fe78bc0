//! The only one who writes: checks expectations in order, commits a batch, publishes it, answers.
//!
//! On a blocking engine it lives on a thread and takes whatever has queued up as one batch; otherwise each caller runs
//! it for its own write. Clearing old records out of the log rides along with the batches, and goes on in small steps
//! while nobody writes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::{mpsc, oneshot};

use crate::{
    Entry, Event, Expect, Kind, Op, WriteError, Written,
    engine::{Change, CommitError, Engine, Record},
    state::{Channel, Shared, State, deleted},
};

/// One batch takes at most this many writes, or this many bytes and one write.
const BATCH_WRITES: usize = 512;
const BATCH_BYTES: usize = 16 << 20;
/// Old records removed along with every write of a batch, and with the batch. A write makes at most two, so this keeps
/// up with any rate of writes without making a small batch slow.
const FORGET_PER_WRITE: usize = 2;
const FORGET_PER_BATCH: usize = 32;
/// Old records removed at once while nobody writes; a write that comes meanwhile waits for this many.
const FORGET_IDLE: usize = 128;

pub(crate) struct Proposal {
    pub channel: Arc<Channel>,
    pub key: Arc<str>,
    pub op: Op,
    pub expect: Expect,
}

pub(crate) type Answer = Result<Written, WriteError>;

pub(crate) enum Request {
    Write(Proposal, oneshot::Sender<Answer>),
    /// There are records to forget.
    Tidy,
    /// Answered when the engine is closed.
    Close(oneshot::Sender<()>),
}

pub(crate) struct Writer {
    engine: Box<dyn Engine>,
    shared: Arc<Shared>,
    /// Records to forget, in the order in which they became useless. They must go in that order: a deletion that went
    /// before the versions it deleted would bring them back.
    garbage: VecDeque<u64>,
    /// What the log has recorded.
    compacted: u64,
    /// Someone asked for compaction, or the store was just opened: clear out old records also while nobody writes.
    /// Otherwise they wait for the next write, which costs no fsync of its own.
    tidying: bool,
    /// The last commit failed; what it left in the log, if anything, has to go.
    failed: bool,
}

struct Accepted {
    channel: Arc<Channel>,
    event: Arc<Event>,
}

impl Writer {
    pub fn new(engine: Box<dyn Engine>, shared: Arc<Shared>, compacted: u64) -> Writer {
        Writer { engine, shared, garbage: VecDeque::new(), compacted, tidying: true, failed: false }
    }

    /// Answers each proposal, in order, as if they had come one after the other.
    pub fn write(&mut self, batch: &[Proposal]) -> Vec<Answer> {
        let (accepted, answers) = evaluate(&self.shared.state.read(), batch);
        if accepted.is_empty() {
            return answers;
        }
        match self.commit(&accepted, FORGET_PER_BATCH + FORGET_PER_WRITE * accepted.len()) {
            Ok(()) => {
                self.publish(accepted);
                answers
            }
            Err(CommitError(why)) => {
                // Also the refused: what they were compared with may be among what failed.
                tracing::error!(writes = batch.len(), %why, "a batch of writes failed");
                let why: Arc<str> = why.into();
                batch.iter().map(|_| Err(WriteError::Failed(why.clone()))).collect()
            }
        }
    }

    /// Removes some old records from the log and notes how far compaction got.
    fn tidy(&mut self) {
        let state = self.shared.state.read();
        let clean = self.garbage.is_empty() && state.garbage.is_empty() && state.compacted == self.compacted;
        drop(state);
        if clean && !self.failed {
            self.tidying = false;
        } else if let Err(why) = self.commit(&[], FORGET_IDLE) {
            // Not again before someone writes or asks: the disk may be broken for long.
            self.tidying = false;
            tracing::warn!(%why, "old records could not be removed");
        }
    }

    fn commit(&mut self, accepted: &[Accepted], forget: usize) -> Result<(), CommitError> {
        let (base, compacted) = {
            let mut state = self.shared.state.write();
            self.garbage.extend(state.garbage.drain(..));
            (state.revision, state.compacted)
        };
        let append: Vec<_> = accepted.iter().map(Accepted::record).collect();
        let mut forget: Vec<_> = self.garbage.iter().take(forget).copied().collect();
        // Neighbours in the log share pages.
        forget.sort_unstable();
        let outcome = self.engine.commit(&Change { base, append: &append, forget: &forget, compacted });
        self.failed = outcome.is_err();
        outcome?;
        self.garbage.drain(..forget.len());
        self.compacted = compacted;
        self.shared.disk_bytes.store(self.engine.size_bytes(), Ordering::Relaxed);
        Ok(())
    }

    fn publish(&self, accepted: Vec<Accepted>) {
        let mut rung: Vec<Arc<Channel>> = Vec::new();
        let (revision, dropped) = {
            let mut state = self.shared.state.write();
            for Accepted { channel, event } in accepted {
                state.publish(channel.index, event);
                if !rung.iter().any(|other| other.index == channel.index) {
                    rung.push(channel);
                }
            }
            (state.revision, state.trim())
        };
        for channel in rung {
            channel.changed.send_replace(revision);
        }
        self.shared.revision.send_replace(revision);
        drop(dropped);
    }

    /// Records how far compaction got and ends the watches.
    pub fn finish(&mut self) {
        self.tidy();
        self.shared.finish();
    }

    /// Serves the queue until it is closed or everyone who could write is gone.
    pub fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        // Also when something below panics: a watch must not wait for events that nobody will publish.
        let _end = Finish(self.shared.clone());
        let mut batch = Batch::default();
        let mut done = Vec::new();
        while batch.done.is_empty() && !batch.abandoned {
            batch.take(&mut queue, &mut self.tidying);
            for (reply, answer) in batch.replies.drain(..).zip(self.write(&batch.proposals)) {
                // The writer may have given up waiting; the write stands.
                let _ = reply.send(answer);
            }
            if batch.proposals.is_empty() && self.tidying {
                self.tidy();
            }
            batch.proposals.clear();
        }
        done.append(&mut batch.done);
        queue.close();
        while let Ok(request) = queue.try_recv() {
            match request {
                Request::Write(_, reply) => _ = reply.send(Err(WriteError::Closed)),
                Request::Close(other) => done.push(other),
                Request::Tidy => {}
            }
        }
        self.finish();
        drop(self);
        for done in done {
            let _ = done.send(());
        }
    }
}

/// What was taken from the queue at once.
#[derive(Default)]
struct Batch {
    proposals: Vec<Proposal>,
    /// One for each proposal.
    replies: Vec<oneshot::Sender<Answer>>,
    bytes: usize,
    /// Those who asked to close.
    done: Vec<oneshot::Sender<()>>,
    /// Nobody is left who could write.
    abandoned: bool,
}

impl Batch {
    /// Waits for a first request, unless there is tidying to do, then takes what else is there.
    fn take(&mut self, queue: &mut mpsc::Receiver<Request>, tidying: &mut bool) {
        self.bytes = 0;
        if !*tidying {
            match queue.blocking_recv() {
                Some(request) => self.add(request, tidying),
                None => self.abandoned = true,
            }
        }
        while self.proposals.len() < BATCH_WRITES && self.bytes < BATCH_BYTES && self.done.is_empty() {
            match queue.try_recv() {
                Ok(request) => self.add(request, tidying),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.abandoned = true;
                    break;
                }
            }
        }
    }

    fn add(&mut self, request: Request, tidying: &mut bool) {
        match request {
            Request::Write(proposal, reply) => {
                self.bytes += proposal.bytes();
                self.proposals.push(proposal);
                self.replies.push(reply);
            }
            Request::Tidy => *tidying = true,
            Request::Close(done) => self.done.push(done),
        }
    }
}

struct Finish(Arc<Shared>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Proposal {
    fn bytes(&self) -> usize {
        match &self.op {
            Op::Put(value) => value.len(),
            Op::Delete => 0,
        }
    }
}

impl Accepted {
    fn record(&self) -> Record<'_> {
        let Entry { key, create_revision, value, .. } = &*self.event.entry;
        Record {
            revision: self.event.revision,
            kind: self.event.kind,
            collection: &self.channel.name,
            key,
            create_revision: *create_revision,
            value: match self.event.kind {
                Kind::Put => value,
                Kind::Delete => &[],
            },
        }
    }
}

/// Compares each proposal with the published state and the proposals accepted before it.
fn evaluate(state: &State, batch: &[Proposal]) -> (Vec<Accepted>, Vec<Answer>) {
    let mut revision = state.revision;
    let mut pending: HashMap<(usize, &str), Option<Arc<Entry>>> = HashMap::new();
    let mut accepted = Vec::with_capacity(batch.len());
    let mut answers = Vec::with_capacity(batch.len());
    for proposal in batch {
        let place = (proposal.channel.index, &*proposal.key);
        let current = match pending.get(&place) {
            Some(entry) => entry.clone(),
            None => state.get(place.0, place.1).cloned(),
        };
        let event = match decide(proposal, current, revision + 1) {
            Ok(event) => Arc::new(event),
            Err(error) => {
                answers.push(Err(error));
                continue;
            }
        };
        revision = event.revision;
        if batch.len() > 1 {
            pending.insert(place, (event.kind == Kind::Put).then(|| event.entry.clone()));
        }
        answers.push(Ok(Written { revision, entry: event.entry.clone(), prev: event.prev.clone() }));
        accepted.push(Accepted { channel: proposal.channel.clone(), event });
    }
    (accepted, answers)
}

fn decide(proposal: &Proposal, current: Option<Arc<Entry>>, revision: u64) -> Result<Event, WriteError> {
    let holds = match (proposal.expect, &current) {
        (Expect::Any, _) | (Expect::Absent, None) => true,
        (Expect::Revision(expected), Some(current)) => current.mod_revision == expected,
        (Expect::Absent, Some(_)) => false,
        (Expect::Revision(_), None) => return Err(WriteError::NotFound),
    };
    match (&proposal.op, current) {
        (_, Some(current)) if !holds => Err(WriteError::Conflict { current }),
        (Op::Delete, None) => Err(WriteError::NotFound),
        (Op::Delete, Some(prev)) => {
            let entry = Arc::new(deleted(&prev, revision));
            Ok(Event { revision, kind: Kind::Delete, entry, prev: Some(prev) })
        }
        (Op::Put(value), prev) => {
            let (key, create_revision) = match &prev {
                Some(prev) => (prev.key.clone(), prev.create_revision),
                None => (proposal.key.clone(), revision),
            };
            let entry = Arc::new(Entry { key, create_revision, mod_revision: revision, value: value.clone() });
            Ok(Event { revision, kind: Kind::Put, entry, prev })
        }
    }
}
