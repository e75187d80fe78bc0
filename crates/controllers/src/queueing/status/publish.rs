//! Writes statuses and lets go of queues, beside the scheduler's loop: what is to be written is drafted there, compared with
//! the object, and sent from a task of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use usher_api::kueue::conditions::WorkloadCondition;
use usher_api::kueue::keys::RESOURCE_IN_USE;
use usher_sched::model::QueueId;

use super::metrics::Metrics;
use super::pace::Pace;
use super::show::{self, Subject};
use crate::queueing::merge_patch;
use crate::queueing::scheduler::book::Book;
use crate::queueing::scheduler::run::Views;
use crate::runtime::objects::is_not_found;
use crate::runtime::{Key, Tasks};

/// Writes under way at once: enough to keep up, few enough to leave the store to decisions.
const CONCURRENT: usize = 4;

/// What is shown of queues, and what of it is being written.
pub(crate) struct Board {
    client: Client,
    tasks: Tasks,
    metrics: Metrics,
    pace: Pace<Subject>,
    /// Queues whose finalizer is being removed.
    leaving: BTreeSet<QueueId>,
    room: Arc<Semaphore>,
    done: mpsc::UnboundedSender<Shown>,
}

/// How a write ended.
pub(crate) struct Shown {
    subject: Subject,
    what: What,
    ok: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Status,
    LetGo,
}

/// A write that is to be made, if the object is still as it was seen.
struct Draft {
    resource: ApiResource,
    key: Key,
    uid: Option<String>,
    revision: Option<String>,
    change: Change,
}

enum Change {
    Status(Box<dyn FnOnce() -> Value + Send>),
    Finalizers(Vec<String>),
}

impl Board {
    pub fn new(client: &Client, tasks: &Tasks, metrics: &Metrics) -> (Board, mpsc::UnboundedReceiver<Shown>) {
        let (done, ended) = mpsc::unbounded_channel();
        let board = Board {
            client: client.clone(),
            tasks: tasks.clone(),
            metrics: metrics.clone(),
            pace: Pace::default(),
            leaving: BTreeSet::new(),
            room: Arc::new(Semaphore::new(CONCURRENT)),
            done,
        };
        (board, ended)
    }

    /// Sends what has changed and may be written. Answers when there is more.
    pub fn publish(&mut self, book: &mut Book, views: &Views, now: Timestamp) -> Option<Timestamp> {
        for subject in book.take_touched() {
            self.pace.touch(subject, now);
            if let Subject::Queue(id) = subject {
                self.let_go(book, views, id);
            }
        }
        for subject in self.pace.take_due(now) {
            if let Some(draft) = self.draft(book, views, subject, now) {
                self.pace.begin(subject, now);
                self.send(subject, draft);
            }
        }
        self.pace.next()
    }

    pub fn ended(&mut self, shown: Shown, now: Timestamp) {
        match (shown.what, shown.subject) {
            (What::Status, subject) => self.pace.end(subject, shown.ok, now),
            (What::LetGo, Subject::Queue(id)) => {
                self.leaving.remove(&id);
                if !shown.ok {
                    self.pace.touch(shown.subject, now);
                }
            }
            (What::LetGo, _) => {}
        }
    }

    /// A queue that is being deleted goes when nobody has quota of it any more.
    fn let_go(&mut self, book: &Book, views: &Views, id: QueueId) {
        let name = book.words.names.queues.name(id.0);
        let Some(queue) = views.queues.get(&Key::new("", name)) else { return };
        let finalizers = queue.metadata.finalizers.as_deref().unwrap_or_default();
        let held = finalizers.iter().any(|finalizer| finalizer == RESOURCE_IN_USE);
        if queue.metadata.deletion_timestamp.is_none() || !held || self.leaving.contains(&id) {
            return;
        }
        if !book.scheduler().is_unused(id) || is_admitting(views, name) {
            return;
        }
        let left = finalizers.iter().filter(|finalizer| *finalizer != RESOURCE_IN_USE).cloned().collect();
        let draft = Draft::of(&*queue, Change::Finalizers(left));
        self.leaving.insert(id);
        self.send(Subject::Queue(id), draft);
    }

    fn draft(&mut self, book: &Book, views: &Views, subject: Subject, now: Timestamp) -> Option<Draft> {
        let names = &book.words.names;
        match subject {
            Subject::Queue(id) => {
                let name = names.queues.name(id.0);
                let Some(queue) = views.queues.get(&Key::new("", name)) else {
                    self.metrics.forget_queue(name);
                    return None;
                };
                // A try to let it go may have failed before.
                self.let_go(book, views, id);
                self.metrics.show_queue(book, id, &queue);
                let to = show::cluster_queue(book, id, &queue, now);
                Draft::status(&*queue, &queue.status, to, queue.status.conditions.is_empty())
            }
            Subject::Local(id) => {
                let key = local_key(names.locals.name(id.0));
                let Some(local) = views.locals.get(&key) else {
                    self.metrics.forget_local(&key);
                    return None;
                };
                let to = show::local_queue(book, id, &local, now);
                self.metrics.show_local(book, id, &local, &to);
                Draft::status(&*local, &local.status, to, local.status.conditions.is_empty())
            }
            Subject::Cohort(id) => {
                let name = names.cohorts.name(id.0);
                let Some(cohort) = views.cohorts.get(&Key::new("", name)) else {
                    self.metrics.forget_cohort(name);
                    return None;
                };
                self.metrics.show_cohort(book, id, name);
                Draft::status(&*cohort, &cohort.status, show::cohort(book, id, &cohort), false)
            }
            Subject::Check(id) => {
                let check = views.checks.get(&Key::new("", names.checks.name(id.0)))?;
                Draft::status(&*check, &check.status, show::check(&check, now), false)
            }
        }
    }

    fn send(&self, subject: Subject, draft: Draft) {
        let (client, room, done) = (self.client.clone(), self.room.clone(), self.done.clone());
        let what = match &draft.change {
            Change::Status(_) => What::Status,
            Change::Finalizers(_) => What::LetGo,
        };
        self.tasks.spawn(async move {
            let _place = room.acquire_owned().await;
            let ok = match draft.put(client).await {
                Ok(()) => true,
                // There is nothing to show any more.
                Err(error) if is_not_found(&error) => true,
                Err(error) => {
                    tracing::debug!(?subject, %error, "what a queue shows could not be written; it is tried again");
                    false
                }
            };
            let _ = done.send(Shown { subject, what, ok });
        });
    }
}

/// Whether a workload says it has quota of this queue. The scheduler need not know all of them: one whose LocalQueue is
/// gone stands nowhere. Asked of queues on their way out only.
fn is_admitting(views: &Views, queue: &str) -> bool {
    views.workloads.all().iter().any(|(_, workload)| {
        let admission = workload.status.admission.as_ref();
        admission.is_some_and(|admission| admission.cluster_queue == queue)
            && !workload.is(WorkloadCondition::Finished)
            && workload.is(WorkloadCondition::QuotaReserved)
    })
}

/// LocalQueues are known as `namespace/name`.
pub(super) fn local_key(name: &str) -> Key {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    Key::new(namespace, name)
}

impl Draft {
    fn of<K: Resource<DynamicType = ()>>(object: &K, change: Change) -> Draft {
        let meta = object.meta();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Draft {
            resource: ApiResource::erase::<K>(&()),
            key: Key::new(&text(&meta.namespace), &text(&meta.name)),
            uid: meta.uid.clone(),
            revision: meta.resource_version.clone(),
            change,
        }
    }

    /// None if it is shown already. A `first` status is written out in full, zeros included.
    fn status<K, S>(object: &K, from: &S, to: S, first: bool) -> Option<Draft>
    where
        K: Resource<DynamicType = ()>,
        S: Serialize + PartialEq + Clone + Send + 'static,
    {
        if *from == to {
            return None;
        }
        let from = (!first).then(|| from.clone());
        let change = move || {
            let json = |status: &S| serde_json::to_value(status).unwrap_or_default();
            let before = from.as_ref().map_or_else(|| json!({}), json);
            merge_patch::diff(&before, &json(&to)).unwrap_or_default()
        };
        Some(Draft::of(object, Change::Status(Box::new(change))))
    }

    async fn put(self, client: Client) -> kube::Result<()> {
        let api: Api<DynamicObject> = match &*self.key.namespace {
            "" => Api::all_with(client, &self.resource),
            namespace => Api::namespaced_with(client, namespace, &self.resource),
        };
        let mut patch = json!({"metadata": {"uid": self.uid, "resourceVersion": self.revision}});
        let (name, params) = (&*self.key.name, PatchParams::default());
        match self.change {
            Change::Status(status) => {
                patch["status"] = status();
                api.patch_status(name, &params, &Patch::Merge(patch)).await.map(drop)
            }
            Change::Finalizers(left) => {
                patch["metadata"]["finalizers"] = json!(left);
                api.patch_metadata(name, &params, &Patch::Merge(patch)).await.map(drop)
            }
        }
    }
}
