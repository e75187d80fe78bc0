//! What queues do, by upstream's names (`kueue_*`).
//!
//! Gauges are set when a queue is shown, so a scrape reads numbers and computes nothing; counters follow what is seen of
//! workloads, whoever wrote it. Everything about a queue goes with the queue.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use usher_api::kueue::conditions::{self, ResizeReason, WorkloadCondition};
use usher_api::kueue::local_queue::LocalQueueStatus;
use usher_api::kueue::{ClusterQueue, LocalQueue, Workload};
use usher_sched::model::{Amount, CohortId, LocalId, QueueId};
use usher_sched::world::Inactive;

use crate::queueing::scheduler::book::Book;
use crate::queueing::scheduler::lower;
use crate::runtime::Key;

type Labels = Vec<(&'static str, String)>;
type Buckets = fn() -> Histogram;
type Level = Gauge<f64, AtomicU64>;

/// Only one replica runs at a time.
const ROLE: (&str, &str) = ("replica_role", "standalone");

/// The series of one metric, each with its owner (a queue or cohort), so that they can go together.
#[derive(Debug)]
struct Series<M, C = fn() -> M> {
    family: Family<Labels, M, C>,
    owners: Arc<Mutex<BTreeMap<String, HashSet<Labels>>>>,
}

impl<M, C: Clone> Clone for Series<M, C> {
    fn clone(&self) -> Self {
        Series { family: self.family.clone(), owners: self.owners.clone() }
    }
}

impl<M: Clone, C: MetricConstructor<M>> Series<M, C> {
    fn new(make: C) -> Self {
        Series { family: Family::new_with_constructor(make), owners: Arc::default() }
    }

    fn of(&self, owner: &str, labels: Labels) -> M {
        let mut owners = self.owners.lock();
        match owners.get_mut(owner) {
            Some(known) if known.contains(&labels) => {}
            Some(known) => drop(known.insert(labels.clone())),
            None => drop(owners.insert(owner.to_owned(), HashSet::from([labels.clone()]))),
        }
        self.family.get_or_create_owned(&labels)
    }

    /// Ends the series of an owner that are not among these.
    fn keep(&self, owner: &str, these: &HashSet<Labels>) {
        let mut owners = self.owners.lock();
        let Some(known) = owners.get_mut(owner) else { return };
        known.retain(|labels| {
            let kept = these.contains(labels);
            if !kept {
                self.family.remove(labels);
            }
            kept
        });
        if known.is_empty() {
            owners.remove(owner);
        }
    }
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])* $field:ident: $ty:ty = $make:expr, $name:literal $help:literal;)*) => {
        /// Cheap to clone; clones count into the same numbers.
        #[derive(Clone, Debug)]
        pub struct Metrics {
            $($field: $ty,)*
        }

        impl Default for Metrics {
            fn default() -> Self {
                Metrics { $($field: Series::new($make),)* }
            }
        }

        impl Metrics {
            fn register_all(&self, registry: &mut Registry) {
                $(registry.register(concat!("kueue_", $name), $help, self.$field.family.clone());)*
            }

            /// Ends everything about a queue or cohort.
            fn forget(&self, owner: &str) {
                $(self.$field.keep(owner, &HashSet::new());)*
            }
        }
    };
}

fn buckets_14() -> Histogram {
    buckets(14)
}

fn buckets_16() -> Histogram {
    buckets(16)
}

fn buckets(count: u16) -> Histogram {
    Histogram::new(std::iter::once(1.0).chain(exponential_buckets(2.5, 2.0, count - 1)))
}

/// The default buckets of Prometheus' clients.
fn short_buckets() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

// The library appends `_total` to counters.
metrics! {
    attempts: Series<Counter> = Counter::default, "admission_attempts"
        "The total number of attempts to admit workloads, by result: success if at least one workload was admitted, else inadmissible";
    attempt_secs: Series<Histogram, Buckets> = short_buckets, "admission_attempt_duration_seconds"
        "The latency of an admission attempt, by result";
    decisions: Series<Counter> = Counter::default, "scheduling_decisions"
        "The total number of decisions of the scheduler, by kind: admit, preempt, evict, wait";
    pending: Series<Level> = Level::default, "pending_workloads"
        "The number of pending workloads, per cluster_queue and status (active, inadmissible)";
    reserving: Series<Level> = Level::default, "reserving_active_workloads"
        "The number of Workloads that are reserving quota, per cluster_queue";
    admitted: Series<Level> = Level::default, "admitted_active_workloads"
        "The number of admitted Workloads that are active, per cluster_queue";
    status: Series<Level> = Level::default, "cluster_queue_status"
        "Reports cluster_queue with its status (pending, active, terminating); 1 for one of them";
    info: Series<Level> = Level::default, "cluster_queue_info"
        "Reports ClusterQueue hierarchy information. The metric has value 1 and can be joined using labels";
    reserved: Series<Level> = Level::default, "cluster_queue_resource_reservation"
        "Reports the cluster_queue's total resource reservation within all the flavors";
    used: Series<Level> = Level::default, "cluster_queue_resource_usage"
        "Reports the cluster_queue's total resource usage within all the flavors";
    nominal: Series<Level> = Level::default, "cluster_queue_nominal_quota"
        "Reports the cluster_queue's resource nominal quota within all the flavors";
    borrowing: Series<Level> = Level::default, "cluster_queue_borrowing_limit"
        "Reports the cluster_queue's resource borrowing limit within all the flavors; +Inf if there is none";
    lending: Series<Level> = Level::default, "cluster_queue_lending_limit"
        "Reports the cluster_queue's resource lending limit within all the flavors; +Inf if there is none";
    share: Series<Level> = Level::default, "cluster_queue_weighted_share"
        "The largest ratio of usage above nominal quota to what the cohort can lend, over all resources, by weight; NaN if a weight of zero borrows";
    cohort_share: Series<Level> = Level::default, "cohort_weighted_share"
        "The largest ratio of usage above nominal quota to what the parent can lend, over all resources, by weight; NaN if a weight of zero borrows";
    quota_reserved: Series<Counter> = Counter::default, "quota_reserved_workloads"
        "The total number of quota reserved workloads per cluster_queue";
    quota_reserved_secs: Series<Histogram, Buckets> = buckets_14, "quota_reserved_wait_time_seconds"
        "The time between a workload was created or requeued until it got quota reservation, per cluster_queue";
    admissions: Series<Counter> = Counter::default, "admitted_workloads"
        "The total number of admitted workloads per cluster_queue";
    admission_secs: Series<Histogram, Buckets> = buckets_16, "admission_wait_time_seconds"
        "The time between a workload was created or requeued until admission, per cluster_queue";
    checks_secs: Series<Histogram, Buckets> = buckets_14, "admission_checks_wait_time_seconds"
        "The time from when a workload got the quota reservation until admission, per cluster_queue";
    ready_secs: Series<Histogram, Buckets> = buckets_14, "ready_wait_time_seconds"
        "The time between a workload was created or requeued until ready, per cluster_queue";
    admitted_ready_secs: Series<Histogram, Buckets> = buckets_14, "admitted_until_ready_wait_time_seconds"
        "The time between a workload was admitted until ready, per cluster_queue";
    evicted: Series<Counter> = Counter::default, "evicted_workloads"
        "The number of evicted workloads per cluster_queue, by reason and underlying_cause";
    evicted_once: Series<Counter> = Counter::default, "evicted_workloads_once"
        "The number of unique workload evictions per cluster_queue, by reason and underlying_cause";
    eviction_secs: Series<Histogram, Buckets> = buckets_14, "workload_eviction_latency_seconds"
        "The time from workload eviction until its quota is released, per cluster_queue and reason";
    preempted: Series<Counter> = Counter::default, "preempted_workloads"
        "The number of preempted workloads per preempting_cluster_queue, by reason";
    finished: Series<Counter> = Counter::default, "finished_workloads"
        "The total number of finished workloads per cluster_queue";
    execution_secs: Series<Histogram, Buckets> = buckets_16, "execution_time_seconds"
        "The total execution time of a finished admitted workload, time before evictions included, per cluster_queue";
    local_pending: Series<Level> = Level::default, "local_queue_pending_workloads"
        "The number of pending workloads, per LocalQueue and status (active, inadmissible)";
    local_reserving: Series<Level> = Level::default, "local_queue_reserving_active_workloads"
        "The number of Workloads that are reserving quota, per LocalQueue";
    local_admitted: Series<Level> = Level::default, "local_queue_admitted_active_workloads"
        "The number of admitted Workloads that are active, per LocalQueue";
    local_status: Series<Level> = Level::default, "local_queue_status"
        "Reports LocalQueue with its active status (True, False, Unknown); 1 for one of them";
    local_reserved: Series<Level> = Level::default, "local_queue_resource_reservation"
        "Reports the LocalQueue's total resource reservation within all the flavors";
    local_used: Series<Level> = Level::default, "local_queue_resource_usage"
        "Reports the LocalQueue's total resource usage within all the flavors";
    local_quota_reserved: Series<Counter> = Counter::default, "local_queue_quota_reserved_workloads"
        "The total number of quota reserved workloads per LocalQueue";
    local_quota_reserved_secs: Series<Histogram, Buckets> = buckets_14, "local_queue_quota_reserved_wait_time_seconds"
        "The time between a workload was created or requeued until it got quota reservation, per LocalQueue";
    local_admissions: Series<Counter> = Counter::default, "local_queue_admitted_workloads"
        "The total number of admitted workloads per LocalQueue";
    local_admission_secs: Series<Histogram, Buckets> = buckets_14, "local_queue_admission_wait_time_seconds"
        "The time between a workload was created or requeued until admission, per LocalQueue";
    local_checks_secs: Series<Histogram, Buckets> = buckets_14, "local_queue_admission_checks_wait_time_seconds"
        "The time from when a workload got the quota reservation until admission, per LocalQueue";
    local_evicted: Series<Counter> = Counter::default, "local_queue_evicted_workloads"
        "The number of evicted workloads per LocalQueue, by reason and underlying_cause";
    local_finished: Series<Counter> = Counter::default, "local_queue_finished_workloads"
        "The total number of finished workloads per LocalQueue";
    variant_active: Series<Level> = Level::default, "variant_active"
        "The number of Variants that try for quota or have it, per cluster_queue and variant";
    variant_admitted: Series<Level> = Level::default, "variant_admitted"
        "The number of Variants that are admitted, per cluster_queue and variant";
    variant_migrations: Series<Counter> = Counter::default, "variant_migrations"
        "The total number of running workloads that moved to a better Variant, per cluster_queue, from and to flavor";
    variant_saved_secs: Series<Histogram, Buckets> = buckets_16, "variant_time_saved_waiting_seconds"
        "How long a workload had been running when it moved to a better Variant, which it would have waited for otherwise, per cluster_queue";
    slices_created: Series<Counter> = Counter::default, "workload_slices_created"
        "The number of Workload Slices created for added replicas of elastic jobs, per cluster_queue";
    slices_folded: Series<Counter> = Counter::default, "workload_slices_folded"
        "The number of Workload Slices that were admitted and count as part of their Workload, per cluster_queue";
    slices_withdrawn: Series<Counter> = Counter::default, "workload_slices_withdrawn"
        "The number of Workload Slices that went before they counted as part of their Workload, per cluster_queue";
    resize_secs: Series<Histogram, Buckets> = buckets_16, "elastic_job_resize_seconds"
        "The time from a resize request of an elastic job to its full size, per cluster_queue and direction (up, down)";
    build: Series<Level> = Level::default, "build_info"
        "Build information: 1, labeled by git version, git commit, build date, go version, compiler, platform";
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        self.register_all(registry);
        let labels = vec![
            ("git_version", concat!("v", env!("CARGO_PKG_VERSION")).to_owned()),
            ("git_commit", String::new()),
            ("build_date", String::new()),
            ("go_version", String::new()),
            ("compiler", "rustc".to_owned()),
            ("platform", format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)),
        ];
        self.build.of("", labels).set(1.0);
    }

    /// One plan, in which somebody was looked at.
    pub(crate) fn attempt(&self, admitted: bool, secs: f64) {
        let labels = labels([("result", if admitted { "success" } else { "inadmissible" })]);
        self.attempts.of("", labels.clone()).inc();
        self.attempt_secs.of("", labels).observe(secs);
    }

    pub(crate) fn decided(&self, decision: &'static str) {
        self.decisions.of("", labels([("decision", decision)])).inc();
    }

    pub(crate) fn preempted(&self, queue: &str, why: &str) {
        let labels = labels([("preempting_cluster_queue", queue), ("reason", why)]);
        self.preempted.of(&queue_owner(queue), labels).inc();
    }

    /// A running workload makes way for its better Variant, after so long on the worse one.
    pub(crate) fn migrated(&self, queue: &str, from: &str, to: &str, saved_secs: f64) {
        let owner = queue_owner(queue);
        let flavors = labels([("cluster_queue", queue), ("from_flavor", from), ("to_flavor", to)]);
        self.variant_migrations.of(&owner, flavors).inc();
        self.variant_saved_secs.of(&owner, labels([("cluster_queue", queue)])).observe(saved_secs);
    }

    fn show_variants(&self, book: &Book, queue: &str) {
        let owner = queue_owner(queue);
        let mut shown = HashSet::new();
        for (variant, tries) in book.variants_of(queue) {
            let labels = labels([("cluster_queue", queue), ("variant", variant)]);
            self.variant_active.of(&owner, labels.clone()).set(tries.active as f64);
            self.variant_admitted.of(&owner, labels.clone()).set(tries.admitted as f64);
            shown.insert(labels);
        }
        self.variant_active.keep(&owner, &shown);
        self.variant_admitted.keep(&owner, &shown);
    }

    pub(crate) fn show_queue(&self, book: &Book, id: QueueId, object: &ClusterQueue) {
        let scheduler = book.scheduler();
        let Some(name) = object.metadata.name.as_deref() else { return };
        let owner = queue_owner(name);
        let figures = scheduler.figures(id);
        let (active, parked) = scheduler.active_and_parked(id);
        for (status, count) in [("active", active), ("inadmissible", parked)] {
            let labels = labels([("cluster_queue", name), ("status", status)]);
            self.pending.of(&owner, labels).set(count as f64);
        }
        let own = labels([("cluster_queue", name)]);
        self.reserving.of(&owner, own.clone()).set(figures.counts.reserving as f64);
        self.admitted.of(&owner, own).set(figures.counts.admitted as f64);
        let now = match scheduler.inactive(id) {
            None => "active",
            Some(Inactive::Terminating) => "terminating",
            Some(_) => "pending",
        };
        for status in ["pending", "active", "terminating"] {
            let labels = labels([("cluster_queue", name), ("status", status)]);
            self.status.of(&owner, labels).set(f64::from(u8::from(status == now)));
        }
        self.show_hierarchy(book, id, name, &object.spec.cohort_name);
        self.show_resources(book, id, name, &object.spec.cohort_name);
        self.show_variants(book, name);
    }

    fn show_hierarchy(&self, book: &Book, id: QueueId, name: &str, cohort: &str) {
        let scheduler = book.scheduler();
        let owner = queue_owner(name);
        let root = scheduler.root_cohort(id).map(|id| book.words.names.cohorts.name(id.0)).unwrap_or_default();
        let parent = if root.is_empty() { "" } else { cohort };
        let info = labels([("cluster_queue", name), ("parent_cohort", parent), ("root_cohort", root)]);
        self.info.of(&owner, info.clone()).set(1.0);
        self.info.keep(&owner, &HashSet::from([info]));
        let own = labels([("cluster_queue", name), ("cohort", cohort)]);
        match scheduler.queue_share(id).filter(|_| scheduler.is_fair()) {
            Some(share) => {
                self.share.of(&owner, own.clone()).set(finite(share.weighted()));
                self.share.keep(&owner, &HashSet::from([own]));
            }
            None => self.share.keep(&owner, &HashSet::new()),
        }
    }

    fn show_resources(&self, book: &Book, id: QueueId, name: &str, cohort: &str) {
        let scheduler = book.scheduler();
        let owner = queue_owner(name);
        let (figures, names) = (scheduler.figures(id), &book.words.names);
        let mut shown = HashSet::new();
        for (cell, quota) in scheduler.queue(id).into_iter().flat_map(|queue| queue.quotas.iter()) {
            let (flavor, resource) = (names.flavors.name(cell.flavor.0), names.resources.name(cell.resource.0));
            let labels =
                labels([("cohort", cohort), ("cluster_queue", name), ("flavor", flavor), ("resource", resource)]);
            let value = |amount: Amount| plain(resource, amount);
            let limit = |limit: Option<Amount>| limit.map_or(f64::INFINITY, value);
            self.reserved.of(&owner, labels.clone()).set(value(figures.reserved.amount(cell)));
            self.used.of(&owner, labels.clone()).set(value(figures.admitted.amount(cell)));
            self.nominal.of(&owner, labels.clone()).set(value(quota.nominal));
            self.borrowing.of(&owner, labels.clone()).set(limit(quota.borrowing));
            self.lending.of(&owner, labels.clone()).set(limit(quota.lending));
            shown.insert(labels);
        }
        for series in [&self.reserved, &self.used, &self.nominal, &self.borrowing, &self.lending] {
            series.keep(&owner, &shown);
        }
    }

    pub(crate) fn show_local(&self, book: &Book, id: LocalId, object: &LocalQueue, status: &LocalQueueStatus) {
        let meta = &object.metadata;
        let key = Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let owner = local_owner(&key);
        let active = conditions::is_true(&status.conditions, "Active");
        // Those in line are not told apart by LocalQueue: whether they are parked is known of the whole queue.
        let waiting = if active {
            [("active", status.pending_workloads), ("inadmissible", 0)]
        } else {
            [("active", 0), ("inadmissible", status.pending_workloads)]
        };
        for (state, count) in waiting {
            self.local_pending.of(&owner, local_labels(&key, [("status", state)])).set(f64::from(count));
        }
        let own = || local_labels(&key, []);
        self.local_reserving.of(&owner, own()).set(f64::from(status.reserving_workloads));
        self.local_admitted.of(&owner, own()).set(f64::from(status.admitted_workloads));
        for state in ["True", "False", "Unknown"] {
            let is = (state == "True" && active) || (state == "False" && !active);
            self.local_status.of(&owner, local_labels(&key, [("active", state)])).set(f64::from(u8::from(is)));
        }
        let figures = book.scheduler().local_figures(id);
        let queue = book.words.names.queues.find(&object.spec.cluster_queue).map(QueueId);
        let queue = queue.and_then(|id| book.scheduler().queue(id));
        let mut shown = HashSet::new();
        for (cell, _) in queue.into_iter().flat_map(|queue| queue.quotas.iter()) {
            let names = &book.words.names;
            let (flavor, resource) = (names.flavors.name(cell.flavor.0), names.resources.name(cell.resource.0));
            let labels = local_labels(&key, [("flavor", flavor), ("resource", resource)]);
            self.local_reserved.of(&owner, labels.clone()).set(plain(resource, figures.reserved.amount(cell)));
            self.local_used.of(&owner, labels.clone()).set(plain(resource, figures.admitted.amount(cell)));
            shown.insert(labels);
        }
        self.local_reserved.keep(&owner, &shown);
        self.local_used.keep(&owner, &shown);
    }

    pub(crate) fn show_cohort(&self, book: &Book, id: CohortId, name: &str) {
        let share = book.scheduler().cohort_share(id).filter(|_| book.scheduler().is_fair());
        if let Some(share) = share {
            self.cohort_share.of(&cohort_owner(name), labels([("cohort", name)])).set(finite(share.weighted()));
        }
    }

    pub(crate) fn forget_queue(&self, name: &str) {
        self.forget(&queue_owner(name));
    }

    pub(crate) fn forget_local(&self, key: &Key) {
        self.forget(&local_owner(key));
    }

    pub(crate) fn forget_cohort(&self, name: &str) {
        self.forget(&cohort_owner(name));
    }

    /// Counts what has become of a workload between two looks at it.
    pub(crate) fn turned(&self, old: &Workload, new: &Workload, now: Timestamp) {
        let admission = |workload: &Workload| workload.status.admission.as_ref().map(|a| a.cluster_queue.clone());
        let queue = admission(new).or_else(|| admission(old)).unwrap_or_default();
        let turn = Turn { metrics: self, old, new, now, queue: &queue };
        turn.reserved();
        turn.admitted();
        turn.ready();
        turn.evicted();
        turn.finished();
        turn.resized();
    }

    /// A replica is asked for beside a Workload that runs.
    pub(crate) fn slice_created(&self, queue: &str) {
        self.slices_created.of(&queue_owner(queue), labels([("cluster_queue", queue)])).inc();
    }

    /// It is gone, and its Workload does not count it.
    pub(crate) fn slice_withdrawn(&self, queue: &str) {
        self.slices_withdrawn.of(&queue_owner(queue), labels([("cluster_queue", queue)])).inc();
    }
}

/// One workload as it was and as it is.
struct Turn<'a> {
    metrics: &'a Metrics,
    old: &'a Workload,
    new: &'a Workload,
    now: Timestamp,
    queue: &'a str,
}

impl Turn<'_> {
    fn became(&self, condition: WorkloadCondition) -> bool {
        self.new.is(condition) && !self.old.is(condition)
    }

    fn since(&self, condition: WorkloadCondition) -> Option<f64> {
        let found = conditions::find(&self.new.status.conditions, condition.as_str());
        found.map(|c| secs(c.last_transition_time.0, self.now))
    }

    /// Seconds since it was created, or let back into its queue.
    fn queued_secs(&self) -> f64 {
        let created = self.new.metadata.creation_timestamp.as_ref().map_or(0.0, |at| secs(at.0, self.now));
        self.since(WorkloadCondition::Requeued).unwrap_or(created)
    }

    fn class(&self) -> &str {
        self.new.spec.priority_class_ref.as_ref().map_or("", |class| &class.name)
    }

    fn labels(&self) -> Labels {
        labels([("cluster_queue", self.queue), ("priority_class", self.class())])
    }

    fn local(&self) -> Key {
        Key::new(self.new.metadata.namespace.as_deref().unwrap_or_default(), &self.new.spec.queue_name)
    }

    fn local_labels(&self) -> Labels {
        local_labels(&self.local(), [("priority_class", self.class())])
    }

    fn reserved(&self) {
        if !self.became(WorkloadCondition::QuotaReserved) {
            return;
        }
        let (owner, local, waited) = (queue_owner(self.queue), local_owner(&self.local()), self.queued_secs());
        self.metrics.quota_reserved.of(&owner, self.labels()).inc();
        self.metrics.quota_reserved_secs.of(&owner, self.labels()).observe(waited);
        self.metrics.local_quota_reserved.of(&local, self.local_labels()).inc();
        self.metrics.local_quota_reserved_secs.of(&local, self.local_labels()).observe(waited);
    }

    fn admitted(&self) {
        if !self.became(WorkloadCondition::Admitted) {
            return;
        }
        let (owner, local, waited) = (queue_owner(self.queue), local_owner(&self.local()), self.queued_secs());
        self.metrics.admissions.of(&owner, self.labels()).inc();
        self.metrics.admission_secs.of(&owner, self.labels()).observe(waited);
        self.metrics.local_admissions.of(&local, self.local_labels()).inc();
        self.metrics.local_admission_secs.of(&local, self.local_labels()).observe(waited);
        if !self.new.status.admission_checks.is_empty() {
            let waited = self.since(WorkloadCondition::QuotaReserved).unwrap_or(0.0);
            self.metrics.checks_secs.of(&owner, self.labels()).observe(waited);
            self.metrics.local_checks_secs.of(&local, self.local_labels()).observe(waited);
        }
    }

    fn ready(&self) {
        if !self.became(WorkloadCondition::PodsReady) {
            return;
        }
        let owner = queue_owner(self.queue);
        self.metrics.ready_secs.of(&owner, self.labels()).observe(self.queued_secs());
        if let Some(waited) = self.since(WorkloadCondition::Admitted) {
            self.metrics.admitted_ready_secs.of(&owner, self.labels()).observe(waited);
        }
    }

    /// What an elastic job was given since, and whether it is what it wants to be.
    fn resized(&self) {
        let (owner, own) = (queue_owner(self.queue), labels([("cluster_queue", self.queue)]));
        let before: HashSet<&String> = self.old.status.folded_slices.iter().collect();
        let folded = self.new.status.folded_slices.iter().filter(|uid| !before.contains(uid)).count();
        if folded > 0 {
            self.metrics.slices_folded.of(&owner, own).inc_by(folded as u64);
        }
        let ty = WorkloadCondition::ResizeRequested;
        let asked = conditions::find(&self.old.status.conditions, ty.as_str()).filter(|c| c.status == "True");
        let over = conditions::find(&self.new.status.conditions, ty.as_str()).is_some_and(|c| c.status == "False");
        if let Some(asked) = asked.filter(|_| over) {
            let direction = if asked.reason == ResizeReason::ScaleDown.as_str() { "down" } else { "up" };
            let labels = labels([("cluster_queue", self.queue), ("direction", direction)]);
            let took = secs(asked.last_transition_time.0, self.now);
            self.metrics.resize_secs.of(&owner, labels).observe(took);
        }
    }

    /// How often it was evicted is in its status, by reason: the difference is what happened in between.
    fn evicted(&self) {
        let evictions = |workload: &Workload| workload.status.scheduling_stats.clone().unwrap_or_default().evictions;
        let before = evictions(self.old);
        for eviction in evictions(self.new) {
            let same = |e: &&usher_api::kueue::workload_status::EvictionCount| {
                e.reason == eviction.reason && e.underlying_cause == eviction.underlying_cause
            };
            let earlier = before.iter().find(same).map_or(0, |e| e.count);
            let more = u64::try_from(eviction.count.saturating_sub(earlier)).unwrap_or(0);
            if more == 0 {
                continue;
            }
            let cause = eviction.underlying_cause.0.clone();
            let why = [("reason", eviction.reason.as_str()), ("underlying_cause", cause.as_str())];
            let own = labels([("cluster_queue", self.queue), why[0], why[1], ("priority_class", self.class())]);
            let owner = queue_owner(self.queue);
            self.metrics.evicted.of(&owner, own.clone()).inc_by(more);
            if earlier == 0 {
                self.metrics.evicted_once.of(&owner, own).inc();
            }
            let local = local_labels(&self.local(), [why[0], why[1], ("priority_class", self.class())]);
            self.metrics.local_evicted.of(&local_owner(&self.local()), local).inc_by(more);
        }
        let released = self.old.is(WorkloadCondition::QuotaReserved) && !self.new.is(WorkloadCondition::QuotaReserved);
        let evicted = conditions::find(&self.new.status.conditions, WorkloadCondition::Evicted.as_str());
        if let Some(evicted) = evicted.filter(|c| released && c.status == "True") {
            let labels = labels([("cluster_queue", self.queue), ("reason", &evicted.reason)]);
            let took = secs(evicted.last_transition_time.0, self.now);
            self.metrics.eviction_secs.of(&queue_owner(self.queue), labels).observe(took);
        }
    }

    fn finished(&self) {
        if !self.became(WorkloadCondition::Finished) {
            return;
        }
        let owner = queue_owner(self.queue);
        self.metrics.finished.of(&owner, self.labels()).inc();
        self.metrics.local_finished.of(&local_owner(&self.local()), self.local_labels()).inc();
        if self.new.is(WorkloadCondition::Admitted) {
            let before = self.new.status.accumulated_past_execution_time_seconds.unwrap_or(0);
            let ran = self.since(WorkloadCondition::Admitted).unwrap_or(0.0) + f64::from(before);
            self.metrics.execution_secs.of(&owner, self.labels()).observe(ran);
        }
    }
}

fn secs(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().chain([ROLE]).map(|(name, value)| (name, value.to_owned())).collect()
}

fn local_labels<const N: usize>(key: &Key, pairs: [(&'static str, &str); N]) -> Labels {
    let own = [("name", &*key.name), ("namespace", &*key.namespace)];
    own.into_iter().chain(pairs).chain([ROLE]).map(|(name, value)| (name, value.to_owned())).collect()
}

fn queue_owner(name: &str) -> String {
    format!("queue/{name}")
}

fn local_owner(key: &Key) -> String {
    format!("local/{}/{}", key.namespace, key.name)
}

fn cohort_owner(name: &str) -> String {
    format!("cohort/{name}")
}

/// An amount in whole units: cpus, bytes, pieces.
fn plain(resource: &str, amount: Amount) -> f64 {
    lower::quantity(resource, amount).nanos() as f64 / 1e9
}

fn finite(share: f64) -> f64 {
    if share.is_infinite() { f64::NAN } else { share }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workload(status: Value) -> Workload {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "w", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"queueName": "lq", "priorityClassRef": {"name": "high"}, "podSets": []}, "status": status}))
        .unwrap()
    }

    fn condition(ty: &str, status: &str, at: &str) -> Value {
        json!({"type": ty, "status": status, "reason": "Preempted", "message": "", "lastTransitionTime": at})
    }

    fn text(metrics: &Metrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    fn line(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = text(metrics);
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) || *line == name);
        lines.map(|line| line.replace(r#",replica_role="standalone""#, "")).collect()
    }

    #[test]
    fn what_became_of_a_workload_is_counted_once() {
        let metrics = Metrics::default();
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let waiting = workload(json!({}));
        let admission = json!({"clusterQueue": "cq", "podSetAssignments": []});
        let admitted = workload(json!({"admission": admission, "conditions": [
            condition("QuotaReserved", "True", "2026-01-01T00:00:04Z"), condition("Admitted", "True", "2026-01-01T00:00:10Z")]}));
        metrics.turned(&waiting, &admitted, now);
        metrics.turned(&admitted, &admitted, now);
        let labels = r#"{cluster_queue="cq",priority_class="high"}"#;
        assert_eq!(
            line(&metrics, "kueue_admitted_workloads_total"),
            [format!("kueue_admitted_workloads_total{labels} 1")]
        );
        assert_eq!(
            line(&metrics, "kueue_admission_wait_time_seconds_sum"),
            [format!("kueue_admission_wait_time_seconds_sum{labels} 10.0")]
        );
        assert_eq!(line(&metrics, "kueue_admission_checks_wait_time_seconds_count"), [""; 0]);
        assert_eq!(
            line(&metrics, "kueue_local_queue_quota_reserved_workloads_total"),
            [r#"kueue_local_queue_quota_reserved_workloads_total{name="lq",namespace="n",priority_class="high"} 1"#]
        );
        let finished = workload(
            json!({"admission": admission, "accumulatedPastExecutionTimeSeconds": 5, "conditions": [
            condition("QuotaReserved", "True", "2026-01-01T00:00:04Z"), condition("Admitted", "True", "2026-01-01T00:00:10Z"),
            condition("Finished", "True", "2026-01-01T00:00:30Z")]}),
        );
        metrics.turned(&admitted, &finished, "2026-01-01T00:00:30Z".parse().unwrap());
        assert_eq!(
            line(&metrics, "kueue_finished_workloads_total"),
            [format!("kueue_finished_workloads_total{labels} 1")]
        );
        assert_eq!(
            line(&metrics, "kueue_execution_time_seconds_sum"),
            [format!("kueue_execution_time_seconds_sum{labels} 25.0")]
        );
    }

    #[test]
    fn evictions_are_counted_by_reason_and_once() {
        let metrics = Metrics::default();
        let now: Timestamp = "2026-01-01T00:00:20Z".parse().unwrap();
        let evicted = |count: i32, reserved: &str| {
            let stats = json!({"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": count}]});
            workload(json!({"schedulingStats": stats, "admission": {"clusterQueue": "cq", "podSetAssignments": []},
                "conditions": [condition("QuotaReserved", reserved, "2026-01-01T00:00:04Z"),
                    condition("Evicted", if count == 0 { "False" } else { "True" }, "2026-01-01T00:00:17Z")]}))
        };
        metrics.turned(&evicted(0, "True"), &evicted(1, "True"), now);
        metrics.turned(&evicted(1, "True"), &evicted(1, "False"), now);
        metrics.turned(&evicted(1, "True"), &evicted(2, "True"), now);
        let labels = r#"{cluster_queue="cq",reason="Preempted",underlying_cause="",priority_class="high"}"#;
        assert_eq!(
            line(&metrics, "kueue_evicted_workloads_total"),
            [format!("kueue_evicted_workloads_total{labels} 2")]
        );
        assert_eq!(
            line(&metrics, "kueue_evicted_workloads_once_total"),
            [format!("kueue_evicted_workloads_once_total{labels} 1")]
        );
        assert_eq!(
            line(&metrics, "kueue_workload_eviction_latency_seconds_sum"),
            [r#"kueue_workload_eviction_latency_seconds_sum{cluster_queue="cq",reason="Preempted"} 3.0"#]
        );
    }

    #[test]
    fn a_resize_is_counted_slice_by_slice_and_timed_until_it_is_over() {
        let metrics = Metrics::default();
        let resize = |status: &str, reason: &str, at: &str, folded: serde_json::Value| {
            let condition = json!({"type": "ResizeRequested", "status": status, "reason": reason, "message": "", "lastTransitionTime": at});
            workload(
                json!({"admission": {"clusterQueue": "cq", "podSetAssignments": []}, "foldedSlices": folded, "conditions": [condition]}),
            )
        };
        let asked = resize("True", "ScaleUp", "2026-01-01T00:00:10Z", json!([]));
        let part = resize("True", "ScaleUp", "2026-01-01T00:00:10Z", json!(["a", "b"]));
        let done = resize("False", "Resized", "2026-01-01T00:00:40Z", json!(["b", "c"]));
        let now: Timestamp = "2026-01-01T00:00:40Z".parse().unwrap();
        for (old, new) in [(&asked, &part), (&part, &done), (&done, &done)] {
            metrics.turned(old, new, now);
        }
        metrics.slice_created("cq");
        metrics.slice_withdrawn("cq");
        let count = |what: &str, count: u32| {
            let name = format!("kueue_workload_slices_{what}_total");
            assert_eq!(line(&metrics, &name), [format!("{name}{{cluster_queue=\"cq\"}} {count}")]);
        };
        count("created", 1);
        count("folded", 3);
        count("withdrawn", 1);
        assert_eq!(
            line(&metrics, "kueue_elastic_job_resize_seconds_sum"),
            [r#"kueue_elastic_job_resize_seconds_sum{cluster_queue="cq",direction="up"} 30.0"#]
        );
    }

    #[test]
    fn everything_about_a_queue_goes_with_it() {
        let metrics = Metrics::default();
        metrics.preempted("a", "InClusterQueue");
        metrics.preempted("b", "InClusterQueue");
        metrics.forget_queue("a");
        assert_eq!(
            line(&metrics, "kueue_preempted_workloads_total"),
            [r#"kueue_preempted_workloads_total{preempting_cluster_queue="b",reason="InClusterQueue"} 1"#]
        );
        metrics.preempted("a", "InClusterQueue");
        assert_eq!(line(&metrics, "kueue_preempted_workloads_total").len(), 2);
    }
}
