//! Watches, plans, writes. Decisions are made as fast as changes come; writes go out beside them and never hold up the
//! next plan.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::Client;
use tokio::sync::{Semaphore, mpsc};
use usher_api::kueue::workload::Role;
use usher_api::kueue::{AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload};
use usher_env::Clock;
use usher_sched::model::{Time, WorkloadId};
use usher_sched::plan::Decision;

use super::book::Book;
use super::outbox::Outbox;
use super::put::put;
use super::write::{Kind, Order, orders, write};
use crate::queueing::apply::kueue;
use crate::queueing::guarded::revision;
use crate::queueing::policy::Policy;
use crate::queueing::status::metrics::Metrics;
use crate::queueing::status::publish::{Board, Shown};
use crate::queueing::status::window::{Question, Window};
use crate::runtime::{Awaited, GroupResource, Recorder, Resource, Signal, Signals, Store, Tasks, Watches};

/// Writes under way at once.
const CONCURRENT: usize = 64;
/// Changes taken in before a plan is made, at most: many together are planned once.
const BATCH: usize = 4096;

pub(crate) struct Views {
    pub queues: Store<ClusterQueue>,
    pub locals: Store<LocalQueue>,
    pub cohorts: Store<Cohort>,
    flavors: Store<ResourceFlavor>,
    pub checks: Store<AdmissionCheck>,
    pub workloads: Store<Workload>,
    namespaces: Store<Namespace>,
}

/// How a write ended.
struct Written {
    workload: WorkloadId,
    uid: String,
    kind: Kind,
    /// The object as it is now; None: refused.
    now: Option<Arc<Workload>>,
}

/// What can be seen of the scheduler from outside.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// Register it to see what queues do.
    pub metrics: Metrics,
    /// Ask it who waits.
    pub window: Window,
}

/// What decisions are made from.
const KINDS: [&str; 6] = ["clusterqueues", "localqueues", "cohorts", "resourceflavors", "admissionchecks", "workloads"];

pub(crate) fn start(
    client: &Client,
    clock: &Clock,
    policy: &Policy,
    outlook: &Outlook,
    watches: &Watches,
    tasks: &Tasks,
) {
    let views = Views {
        queues: watches.view(&kueue("clusterqueues")),
        locals: watches.view(&kueue("localqueues")),
        cohorts: watches.view(&kueue("cohorts")),
        flavors: watches.view(&kueue("resourceflavors")),
        checks: watches.view(&kueue("admissionchecks")),
        workloads: watches.view(&kueue("workloads")),
        namespaces: watches.view(&namespaces()),
    };
    let signals = watches
        .subscribe(|resource| resource.id == namespaces() || KINDS.iter().any(|plural| resource.id == kueue(plural)));
    let (done, results) = mpsc::unbounded_channel();
    let (board, shown) = Board::new(client, tasks, &outlook.metrics);
    let run = Run {
        board,
        metrics: outlook.metrics.clone(),
        questions: VecDeque::new(),
        preempting: BTreeMap::new(),
        client: client.clone(),
        clock: clock.clone(),
        recorder: Recorder::new(client, clock, "kueue-admission", tasks),
        tasks: tasks.clone(),
        views,
        book: Book::with(policy.settings(), policy.concurrent_admission),
        room: Arc::new(Semaphore::new(CONCURRENT)),
        outbox: Outbox::default(),
        done,
        awaited: Awaited::new(KINDS.iter().map(|plural| kueue(plural)).chain([namespaces()])),
    };
    let inbox = Inbox { signals, results, shown, asked: outlook.window.open() };
    tasks.spawn(run.run(inbox));
}

fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

struct Run {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    tasks: Tasks,
    views: Views,
    book: Book,
    room: Arc<Semaphore>,
    outbox: Outbox,
    done: mpsc::UnboundedSender<Written>,
    /// Nothing is decided before everything has been listed.
    awaited: Awaited,
    board: Board,
    metrics: Metrics,
    /// Who asks who waits, and is not answered yet.
    questions: VecDeque<Question>,
    /// Victims whose eviction is being written: who preempts them, and why.
    preempting: BTreeMap<WorkloadId, (String, &'static str)>,
}

/// What the loop hears of.
struct Inbox {
    signals: Signals,
    results: mpsc::UnboundedReceiver<Written>,
    shown: mpsc::UnboundedReceiver<Shown>,
    asked: Option<mpsc::UnboundedReceiver<Question>>,
}

impl Run {
    async fn run(mut self, inbox: Inbox) {
        let Inbox { mut signals, mut results, mut shown, mut asked } = inbox;
        let mut timer: Option<Time> = None;
        loop {
            let wait = if self.questions.is_empty() || !self.awaited.is_over() {
                timer.map(|at| self.until(at))
            } else {
                Some(Duration::ZERO)
            };
            tokio::select! {
                signal = signals.recv() => match signal {
                    Some(signal) => self.hear(signal),
                    None => return,
                },
                Some(result) = results.recv() => self.finish(result),
                Some(shown) = shown.recv() => self.board.ended(shown, self.clock.now()),
                Some(question) = ask(&mut asked) => self.questions.push_back(question),
                () = sleep(wait) => {}
            }
            for _ in 0..BATCH {
                match (signals.try_recv(), results.try_recv()) {
                    (Err(_), Err(_)) => break,
                    (signal, result) => {
                        signal.into_iter().for_each(|signal| self.hear(signal));
                        result.into_iter().for_each(|result| self.finish(result));
                    }
                }
            }
            if self.awaited.is_over() {
                timer = self.plan();
                timer = timer.into_iter().chain(self.publish()).min();
                let question = self.questions.pop_front();
                self.questions.extend(question.and_then(|question| question.go_on(&self.book)));
            }
        }
    }

    fn publish(&mut self) -> Option<Time> {
        let next = self.board.publish(&mut self.book, &self.views, self.clock.now());
        next.map(|at| Time(i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)))
    }

    fn until(&self, at: Time) -> Duration {
        let now = self.clock.now().as_nanosecond();
        u64::try_from(i128::from(at.0) - now).map_or(Duration::ZERO, Duration::from_nanos)
    }

    fn hear(&mut self, signal: Signal) {
        self.awaited.ends_with(&signal);
        if let Signal::Applied(resource, meta) | Signal::Deleted(resource, meta) = signal {
            self.look(&resource, &meta.key());
        }
    }

    /// The object as the caches have it now, which may be newer than what was told.
    fn look(&mut self, resource: &Resource, key: &crate::runtime::Key) {
        let (book, views) = (&mut self.book, &self.views);
        match &*resource.id.plural {
            "clusterqueues" => book.cluster_queue(&key.name, views.queues.get(key).as_deref()),
            "cohorts" => book.cohort(&key.name, views.cohorts.get(key).as_deref()),
            "resourceflavors" => book.flavor(&key.name, views.flavors.get(key).as_deref()),
            "admissionchecks" => book.check(&key.name, views.checks.get(key).as_deref()),
            "localqueues" => book.local_queue(key, views.locals.get(key).as_deref()),
            "namespaces" => {
                let labels = views.namespaces.get(key).map(|ns| ns.metadata.labels.clone().unwrap_or_default());
                book.namespace(&key.name, labels);
            }
            "workloads" => self.look_at_workload(key),
            _ => {}
        }
    }

    fn look_at_workload(&mut self, key: &crate::runtime::Key) {
        let book = &mut self.book;
        // As long as its parent does not count it.
        let slice = |known: &&Arc<Workload>| known.role() == Role::Slice;
        let queue_of = |book: &Book, slice: &Workload| {
            book.cluster_queue_of(&key.namespace, &slice.spec.queue_name).unwrap_or_default().to_owned()
        };
        let Some(workload) = self.views.workloads.get(key) else {
            if let Some(known) = book.known(key).filter(slice) {
                self.metrics.slice_withdrawn(&queue_of(book, known));
            }
            return book.gone(key);
        };
        match book.known(key).filter(|old| old.metadata.uid == workload.metadata.uid) {
            // What became of a Parent is counted once, not what became of each of its Variants.
            Some(_) if workload.role() == Role::Variant => {}
            Some(old) => self.metrics.turned(old, &workload, self.clock.now()),
            // Those that are there when this starts were counted before.
            None if self.awaited.is_over() && slice(&&workload) && !book.is_folded(&workload) => {
                self.metrics.slice_created(&queue_of(book, &workload));
            }
            None => {}
        }
        book.seen(key, &workload);
    }

    fn plan(&mut self) -> Option<Time> {
        let now = self.clock.now();
        let looked_at = self.book.scheduler().work().evaluations;
        let plan = self.book.plan(now);
        if self.book.scheduler().work().evaluations != looked_at {
            let admitted = plan.decisions.iter().any(|decision| matches!(decision, Decision::Admit { .. }));
            self.metrics.attempt(admitted, self.clock.now().duration_since(now).as_secs_f64());
        }
        for decision in &plan.decisions {
            self.metrics.decided(kind(decision));
            if let Decision::Preempt { queue, victims, .. } = decision {
                let by = self.book.words.names.queues.name(queue.0);
                let evicted = victims.iter().filter(|victim| !victim.already_leaving);
                self.preempting.extend(evicted.map(|victim| (victim.workload, (by.to_owned(), victim.why.wire()))));
            }
            for order in orders(&self.book, decision) {
                self.send(order);
            }
        }
        plan.next_timer
    }

    fn send(&mut self, order: Order) {
        if order.kind() == Kind::Admission {
            self.book.admitting(order.workload);
        }
        if let Some(order) = self.outbox.put(order) {
            self.start(&order, None);
        }
    }

    /// Writes what is ordered, of the workload as it was left by the last write of it or else as it was last seen.
    fn start(&mut self, order: &Order, left: Option<Arc<Workload>>) {
        let of = left.or_else(|| self.book.workload(order.workload).cloned());
        let write = of.and_then(|of| write(&self.book, order, &of, self.clock.now()));
        let (done, recorder) = (self.done.clone(), self.recorder.clone());
        let (workload, uid, kind) = (order.workload, order.uid.clone(), order.kind());
        let end = move |now| drop(done.send(Written { workload, uid, kind, now }));
        let Some(write) = write else { return end(None) };
        if write.to == write.of.status {
            return end(Some(write.of));
        }
        let (client, room) = (self.client.clone(), self.room.clone());
        self.tasks.spawn(async move {
            let _place = room.acquire_owned().await;
            let now = put(&client, &write).await;
            if now.is_some() {
                let about = reference(&write.of);
                write.told.iter().for_each(|told| told.tell(&recorder, about.clone()));
            }
            end(now);
        });
    }

    fn finish(&mut self, written: Written) {
        let Written { workload, uid, kind, now } = written;
        self.settle(workload, &uid, kind, now.as_ref());
        let then = self.outbox.ended(workload, kind, now.is_some());
        for fallen in then.fallen {
            self.settle(fallen.workload, &fallen.uid, fallen.kind(), None);
        }
        if let Some(next) = then.next {
            self.start(&next, now);
        }
    }

    /// Says how a write ended to those whom it matters to.
    fn settle(&mut self, workload: WorkloadId, uid: &str, kind: Kind, now: Option<&Arc<Workload>>) {
        let revision = now.map(|now| revision(now.metadata.resource_version.as_deref()));
        self.book.settle(workload, uid, kind, revision);
        if kind == Kind::Eviction
            && let Some((by, why)) = self.preempting.remove(&workload)
            && now.is_some()
        {
            self.metrics.preempted(&by, why);
        }
    }
}

fn kind(decision: &Decision) -> &'static str {
    match decision {
        Decision::Admit { .. } => "admit",
        Decision::Preempt { .. } => "preempt",
        Decision::Evict { .. } => "evict",
        Decision::Wait { .. } => "wait",
    }
}

fn reference(workload: &Workload) -> ObjectReference {
    kube::Resource::object_ref(workload, &())
}

/// The next question; never, where nobody can ask.
async fn ask(asked: &mut Option<mpsc::UnboundedReceiver<Question>>) -> Option<Question> {
    match asked {
        Some(asked) => asked.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
