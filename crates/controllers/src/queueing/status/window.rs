//! A window on who waits, and in which place: whoever asks is answered by the scheduler's loop, between plans, in pieces.
//! Nothing is kept for those who might ask.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use usher_api::kueue::workload::Role;
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
            family: String::new(),
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
    /// The last that was looked at, and the last Parent whose Variants were.
    place: Option<Order>,
    family: String,
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
        let Some(mut object) = book.workload(order.workload) else { return };
        if object.role() == Role::Variant {
            // Siblings stand side by side and are one place, their Parent's; one that only wants a better place does not wait.
            let parent = object.parent_uid().unwrap_or_default();
            if book.scheduler().has_quota_through_a_sibling(order.workload) || self.family == parent {
                return;
            }
            parent.clone_into(&mut self.family);
            object = book.parent(object).unwrap_or(object);
        }
        let at = self.seen;
        self.seen += 1;
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::runtime::Key;

    /// Two LocalQueues of one ClusterQueue that admits nothing, and who waits in them, as `local/priority`.
    fn book(waiting: &[(&str, i32)]) -> Book {
        let mut book = Book::default();
        let queue = json!({"metadata": {"name": "q"}, "spec": {"namespaceSelector": {}, "stopPolicy": "Hold"}});
        book.cluster_queue("q", serde_json::from_value(queue).ok().as_ref());
        for name in ["a", "b"] {
            let local = json!({"metadata": {"namespace": "n", "name": name}, "spec": {"clusterQueue": "q"}});
            book.local_queue(&Key::new("n", name), serde_json::from_value(local).ok().as_ref());
        }
        for (at, (local, priority)) in waiting.iter().enumerate() {
            let workload = json!({"metadata": {"namespace": "n", "name": format!("w{at}"), "labels": {"secret": "1"},
                "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", at % 60)},
                "spec": {"queueName": local, "priority": priority, "active": true, "podSets": []}});
            let workload = serde_json::from_value(workload).unwrap();
            book.seen(&Key::new("n", &format!("w{at}")), &Arc::new(workload));
        }
        book.plan(Timestamp::from_second(2_000_000_000).unwrap());
        book
    }

    /// Name and places of those the answer shows, and in how many pieces it was made.
    /// Name and both positions of each.
    type Answered = Option<Vec<(String, usize, usize)>>;

    fn ask(book: &Book, line: Line, offset: usize, limit: usize) -> (Answered, usize) {
        let window = Window::default();
        let mut asked = window.open().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let answer = tokio::spawn(async move { window.waiting(line, offset, limit).await });
            let mut question = asked.recv().await;
            let mut pieces = 0;
            while let Some(left) = question {
                pieces += 1;
                question = left.go_on(book);
            }
            let answer = answer.await.unwrap().map(|waiting| {
                let shown = |w: Waiting| {
                    assert_eq!(w.metadata.labels, None, "only what upstream shows");
                    (w.metadata.name.unwrap(), w.position_in_cluster_queue, w.position_in_local_queue)
                };
                waiting.into_iter().map(shown).collect()
            });
            (answer, pieces)
        })
    }

    fn whole() -> Line {
        Line::ClusterQueue("q".to_owned())
    }

    fn of(name: &str) -> Line {
        Line::LocalQueue { namespace: "n".to_owned(), name: name.to_owned() }
    }

    fn named(shown: &[(&str, usize, usize)]) -> Option<Vec<(String, usize, usize)>> {
        Some(shown.iter().map(|(name, a, b)| ((*name).to_owned(), *a, *b)).collect())
    }

    #[test]
    fn everybody_has_a_place_in_both_lines() {
        let book = book(&[("a", 0), ("b", 0), ("a", 5), ("b", 5)]);
        assert_eq!(ask(&book, whole(), 0, 10).0, named(&[("w2", 0, 0), ("w3", 1, 0), ("w0", 2, 1), ("w1", 3, 1)]));
        assert_eq!(ask(&book, whole(), 1, 2).0, named(&[("w3", 1, 0), ("w0", 2, 1)]));
        assert_eq!(ask(&book, of("b"), 0, 10).0, named(&[("w3", 1, 0), ("w1", 3, 1)]));
        assert_eq!(ask(&book, of("b"), 1, 10).0, named(&[("w1", 3, 1)]));
        assert_eq!(ask(&book, whole(), 9, 10).0, named(&[]));
        assert_eq!(ask(&book, whole(), 0, 0).0, named(&[]));
    }

    #[test]
    fn there_is_no_answer_about_a_queue_that_is_not_there() {
        let book = book(&[]);
        assert_eq!(ask(&book, Line::ClusterQueue("x".to_owned()), 0, 10).0, None);
        assert_eq!(ask(&book, of("x"), 0, 10).0, None);
        assert_eq!(ask(&book, of("a"), 0, 10).0, named(&[]));
    }

    #[test]
    fn a_long_line_is_looked_at_in_pieces() {
        let long: Vec<(&str, i32)> = (0..2 * PIECE + 1).map(|at| (if at % 2 == 0 { "a" } else { "b" }, 0)).collect();
        let book = book(&long);
        let (all, pieces) = ask(&book, whole(), 0, usize::MAX);
        let all = all.unwrap();
        assert_eq!((all.len(), pieces), (long.len(), 3));
        assert!(all.iter().enumerate().all(|(at, (_, place, _))| at == *place));
        assert_eq!(ask(&book, whole(), 0, 1).1, 1);
    }
}
