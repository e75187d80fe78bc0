//! A window on who waits, and in which place: whoever asks is answered by the scheduler's loop, between plans, in pieces.
//! Nothing is kept for those who might ask.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use usher_sched::model::{LocalId, QueueId};
use usher_sched::queue::Order;

use crate::queueing::scheduler::book::Book;

/// How many are looked at between two plans.
const PIECE: usize = 2000;

/// Whose line is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    ClusterQueue(String),
    LocalQueue { namespace: String, name: String },
}

/// Somebody who waits, as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    pub metadata: ObjectMeta,
    pub priority: i32,
    pub local_queue_name: String,
    pub position_in_cluster_queue: usize,
    pub position_in_local_queue: usize,
}

/// Clones look through the same window.
#[derive(Clone, Debug)]
pub struct Window {
    ask: mpsc::UnboundedSender<Question>,
    asked: Arc<Mutex<Option<mpsc::UnboundedReceiver<Question>>>>,
}

impl Default for Window {
    fn default() -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        Window { ask, asked: Arc::new(Mutex::new(Some(asked))) }
    }
}

impl Window {
    /// Those who wait, in order, from the `offset`th on; None if there is no such queue.
    pub async fn waiting(&self, line: Line, offset: usize, limit: usize) -> Option<Vec<Waiting>> {
        let (answer, answered) = oneshot::channel();
        let question = Question {
            line,
            offset,
            limit,
            answer,
            place: None,
            seen: 0,
            locals: BTreeMap::new(),
            found: Vec::new(),
        };
        self.ask.send(question).ok()?;
        answered.await.ok()?
    }

    /// What is asked, for the one who answers.
    pub(crate) fn open(&self) -> Option<mpsc::UnboundedReceiver<Question>> {
        self.asked.lock().take()
    }
}

/// A question and how far its answer is.
#[derive(Debug)]
pub(crate) struct Question {
    line: Line,
    offset: usize,
    limit: usize,
    answer: oneshot::Sender<Option<Vec<Waiting>>>,
    /// The last that was looked at.
    place: Option<Order>,
    seen: usize,
    /// How many of each LocalQueue were seen.
    locals: BTreeMap<LocalId, usize>,
    found: Vec<Waiting>,
}

impl Question {
    /// Looks at the next piece of the line. Answers what is left to do, None if it is answered.
    pub fn go_on(mut self, book: &Book) -> Option<Question> {
        if self.answer.is_closed() {
            return None;
        }
        let Some((queue, local)) = self.find(book) else {
            let _ = self.answer.send(None);
            return None;
        };
        let piece = book.scheduler().line_after(queue, self.place, PIECE);
        let ended = piece.len() < PIECE;
        for order in piece {
            if self.found.len() >= self.limit {
                break;
            }
            self.look(book, order, local);
        }
        if ended || self.found.len() >= self.limit {
            let _ = self.answer.send(Some(self.found));
            return None;
        }
        Some(self)
    }

    fn find(&self, book: &Book) -> Option<(QueueId, Option<LocalId>)> {
        let names = &book.words.names;
        match &self.line {
            Line::ClusterQueue(name) => {
                let queue = QueueId(names.queues.find(name)?);
                book.scheduler().queue(queue).map(|_| (queue, None))
            }
            Line::LocalQueue { namespace, name } => {
                let queue = book.cluster_queue_of(namespace, name)?;
                let queue = QueueId(names.queues.find(queue)?);
                Some((queue, names.locals.find(&format!("{namespace}/{name}")).map(LocalId)))
            }
        }
    }

    fn look(&mut self, book: &Book, order: Order, only: Option<LocalId>) {
        self.place = Some(order);
        let at = self.seen;
        self.seen += 1;
        let Some(object) = book.workload(order.workload) else { return };
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let local = book.words.names.locals.find(&format!("{namespace}/{}", object.spec.queue_name)).map(LocalId);
        let Some(local) = local.filter(|local| only.is_none_or(|only| only == *local)) else { return };
        let in_local = self.locals.entry(local).or_default();
        let in_its_own = *in_local;
        *in_local += 1;
        let skipped = if only.is_some() { in_its_own } else { at };
        if skipped < self.offset {
            return;
        }
        self.found.push(Waiting {
            metadata: shown(&object.metadata),
            priority: object.priority(),
            local_queue_name: object.spec.queue_name.clone(),
            position_in_cluster_queue: at,
            position_in_local_queue: in_its_own,
        });
    }
}

/// The part of the metadata that upstream shows.
fn shown(meta: &ObjectMeta) -> ObjectMeta {
    let owners = meta.owner_references.iter().flatten().map(|owner| {
        let mut owner = owner.clone();
        (owner.controller, owner.block_owner_deletion) = (None, None);
        owner
    });
    let owners: Vec<_> = owners.collect();
    ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        creation_timestamp: meta.creation_timestamp.clone(),
        owner_references: (!owners.is_empty()).then_some(owners),
        ..ObjectMeta::default()
    }
}
