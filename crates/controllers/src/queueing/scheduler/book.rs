//! The scheduler's view of the API: what each object means to it, and what its decisions mean for each object.
//!
//! Pure but for memory: objects in, decisions out. It knows which of its decisions are being written, so that an object
//! that does not show one yet is not taken for a refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use usher_api::kueue::admission_check::CheckState;
use usher_api::kueue::concurrent;
use usher_api::kueue::conditions::{self, EvictionReason, WorkloadCondition};
use usher_api::kueue::keys::annotation;
use usher_api::kueue::workload::Role;
use usher_api::kueue::{AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload};
use usher_sched::model::{self as sched, Block, Time, WorkloadId};
use usher_sched::plan::Plan;
use usher_sched::scheduler::{Event, Scheduler};

use super::census::{Census, Tries};
use super::families::Families;
use super::lower::{self, Dictionary, Shapes};
use super::write::Kind;
use crate::queueing::status::show::{self, Subject};
use crate::runtime::Key;

#[derive(Default)]
pub struct Book {
    scheduler: Scheduler,
    pub words: Dictionary,
    shapes: Shapes,
    workloads: BTreeMap<WorkloadId, Known>,
    /// Workloads by the LocalQueue they wait in: what is said of a queue is said of them.
    by_local: BTreeMap<Key, BTreeSet<Key>>,
    selectors: BTreeMap<String, Selector>,
    locals: BTreeMap<Key, String>,
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Checks that nothing here does.
    unsupported: BTreeSet<sched::CheckId>,
    /// Whose object was seen, so that what it shows may have to change.
    touched: BTreeSet<Subject>,
    races: bool,
    families: Families,
    census: Census,
    /// Slices that count for themselves, by the uid of the Workload they are for, and by their own.
    slices: BTreeMap<String, BTreeMap<String, Key>>,
    /// Who holds the quota of an elastic Workload, by its uid: it itself, or the Variant that is admitted for it.
    holders: BTreeMap<String, WorkloadId>,
}

/// A workload as it was last seen.
struct Known {
    object: Arc<Workload>,
    shape: Arc<sched::Shape>,
    /// An admission of it is being written, or was and is not seen yet.
    admitting: Option<Writing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    UnderWay,
    /// Seen once its revision is at least this.
    Done(u64),
}

type Selector = Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>;

fn time(at: Timestamp) -> Time {
    Time(i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX))
}

impl Book {
    /// `races`: queues may have their workloads race for several flavors.
    pub fn with(settings: sched::Settings, races: bool) -> Book {
        let mut book = Book { races, ..Book::default() };
        book.scheduler.apply(Event::Settings(settings));
        book
    }

    pub fn plan(&mut self, now: Timestamp) -> Plan {
        self.scheduler.plan(time(now))
    }

    pub fn workload(&self, id: WorkloadId) -> Option<&Arc<Workload>> {
        self.workloads.get(&id).map(|known| &known.object)
    }

    /// A workload as it was last seen, Parents included.
    pub fn known(&self, key: &Key) -> Option<&Arc<Workload>> {
        let id = self.words.names.workloads.find(&format!("{}/{}", key.namespace, key.name));
        id.and_then(|id| self.workload(WorkloadId(id))).or_else(|| self.families.known(key))
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The variants that a queue's policy names, and those that workloads in it still are.
    pub fn variants_of(&self, queue: &str) -> BTreeMap<&str, Tries> {
        let named = self.families.variants_of(queue).map(|name| (name, Tries::default()));
        named.chain(self.census.of(queue)).collect()
    }

    /// The Parent of a Variant.
    pub fn parent(&self, variant: &Workload) -> Option<&Arc<Workload>> {
        let owners = variant.metadata.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|owner| Some(owner.uid.as_str()) == variant.parent_uid())?;
        self.families.known(&Key::new(variant.metadata.namespace.as_deref().unwrap_or_default(), &owner.name))
    }

    /// The ClusterQueue that a LocalQueue leads to.
    pub fn cluster_queue_of(&self, namespace: &str, name: &str) -> Option<&str> {
        self.locals.get(&Key::new(namespace, name)).map(String::as_str)
    }

    pub fn is_unsupported(&self, check: sched::CheckId) -> bool {
        self.unsupported.contains(&check)
    }

    /// Whose status may have changed since this was last asked.
    pub fn take_touched(&mut self) -> BTreeSet<Subject> {
        let changed = self.scheduler.take_changed();
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(changed.locals.into_iter().map(Subject::Local));
        if !changed.turned.is_empty() {
            for (key, queue) in &self.locals {
                let turned = self.words.queue_id(queue);
                if changed.turned.contains(&turned) {
                    touched.insert(Subject::Local(self.words.local_id(&key.namespace, &key.name)));
                }
            }
        }
        for queue in changed.queues.union(&changed.turned) {
            touched.insert(Subject::Queue(*queue));
            if self.scheduler.is_fair() {
                touched.extend(self.scheduler.cohorts_above(*queue).into_iter().map(Subject::Cohort));
            }
        }
        touched
    }

    /// What it asks for, as the scheduler was told.
    pub fn shape(&self, id: WorkloadId) -> Arc<sched::Shape> {
        self.workloads.get(&id).map(|known| known.shape.clone()).unwrap_or_default()
    }

    pub fn cluster_queue(&mut self, name: &str, queue: Option<&ClusterQueue>) {
        let id = self.words.queue_id(name);
        self.touched.insert(Subject::Queue(id));
        let lowered = queue.map(|queue| self.words.queue(queue));
        self.scheduler.apply(Event::Queue(id, lowered));
        let selector = queue.map(|queue| queue.spec.namespace_selector.clone());
        let before = self.selectors.get(name).cloned();
        let turned = self
            .families
            .set_policy(name, queue.filter(|_| self.races).and_then(|queue| concurrent::lower(&queue.spec)));
        if before != selector || turned {
            match selector {
                Some(selector) => drop(self.selectors.insert(name.to_owned(), selector)),
                None => drop(self.selectors.remove(name)),
            }
            let locals: Vec<Key> =
                self.locals.iter().filter(|(_, queue)| *queue == name).map(|(key, _)| key.clone()).collect();
            locals.iter().for_each(|local| self.look_again(local));
        }
    }

    pub fn cohort(&mut self, name: &str, cohort: Option<&Cohort>) {
        let id = self.words.cohort_id(name);
        self.touched.insert(Subject::Cohort(id));
        let lowered = cohort.map(|cohort| self.words.cohort(cohort));
        self.scheduler.apply(Event::Cohort(id, lowered));
    }

    pub fn flavor(&mut self, name: &str, flavor: Option<&ResourceFlavor>) {
        let id = self.words.flavor_id(name);
        self.scheduler.apply(Event::Flavor(id, flavor.map(lower::flavor)));
    }

    pub fn check(&mut self, name: &str, check: Option<&AdmissionCheck>) {
        let id = self.words.check_id(name);
        self.touched.insert(Subject::Check(id));
        let not_here = check.is_some_and(|check| show::unsupported(check).is_some());
        if not_here {
            self.unsupported.insert(id);
        } else {
            self.unsupported.remove(&id);
        }
        let active = check.map(|check| !not_here && conditions::is_true(&check.status.conditions, "Active"));
        self.scheduler.apply(Event::Check(id, active));
    }

    pub fn local_queue(&mut self, key: &Key, local: Option<&LocalQueue>) {
        let id = self.words.local_id(&key.namespace, &key.name);
        self.touched.insert(Subject::Local(id));
        let lowered = local.map(|local| self.words.local_queue(local));
        self.scheduler.apply(Event::LocalQueue(id, lowered));
        match local {
            Some(local) => drop(self.locals.insert(key.clone(), local.spec.cluster_queue.clone())),
            None => drop(self.locals.remove(key)),
        }
        self.look_again(key);
    }

    pub fn namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        match labels {
            Some(labels) if self.namespaces.get(name) == Some(&labels) => return,
            Some(labels) => drop(self.namespaces.insert(name.to_owned(), labels)),
            None => drop(self.namespaces.remove(name)),
        }
        let locals: Vec<Key> = self.by_local.keys().filter(|key| &*key.namespace == name).cloned().collect();
        locals.iter().for_each(|local| self.look_again(local));
    }

    /// What is said of a queue may now be something else for those who wait in it.
    fn look_again(&mut self, local: &Key) {
        let waiting: Vec<Key> = self.by_local.get(local).into_iter().flatten().cloned().collect();
        for key in waiting {
            let id = self.id(&key);
            if let Some(object) = self.workload(id).cloned() {
                self.tell(id, &object);
            }
        }
    }

    fn id(&mut self, key: &Key) -> WorkloadId {
        WorkloadId(self.words.names.workloads.id(&format!("{}/{}", key.namespace, key.name)))
    }

    /// A workload was created or changed.
    pub fn seen(&mut self, key: &Key, object: &Arc<Workload>) {
        let id = self.id(key);
        let other = self.workloads.get(&id).is_some_and(|known| known.object.metadata.uid != object.metadata.uid);
        if other {
            self.gone(key);
            return self.seen(key, object);
        }
        if !is_scheduled(object) || self.is_folded(object) {
            self.take_out(key);
            return self.seen_parent(key, object);
        }
        self.fold(object);
        self.note_slice(key, object, true);
        self.families.forget_parent(key);
        let local = Key::new(&key.namespace, &object.spec.queue_name);
        let known = self.workloads.entry(id).or_insert_with(|| Known {
            object: object.clone(),
            shape: Arc::default(),
            admitting: None,
        });
        let before = Key::new(&key.namespace, &known.object.spec.queue_name);
        known.object = object.clone();
        if before != local {
            self.leave_local(&before, key);
        }
        self.by_local.entry(local).or_default().insert(key.clone());
        self.tell(id, &object.clone());
        self.note_holder(key, id, Some(&**object), object);
    }

    /// A slice that its parent's status counts already counts for nothing itself.
    pub fn is_folded(&self, slice: &Workload) -> bool {
        let Some(uid) = slice.metadata.uid.as_deref().filter(|_| slice.role() == Role::Slice) else { return false };
        let holder = self.holder_of(slice).and_then(|id| self.workload(id));
        holder.is_some_and(|holder| holder.status.folded_slices.iter().any(|folded| folded == uid))
    }

    /// What a parent counts from now on is taken out of the books, in the same step in which the parent has more.
    fn fold(&mut self, holder: &Workload) {
        let beside = held_for(holder).and_then(|uid| self.slices.get(uid));
        let Some(beside) = beside.filter(|_| !holder.status.folded_slices.is_empty()) else { return };
        let folded: Vec<Key> = holder.status.folded_slices.iter().filter_map(|uid| beside.get(uid).cloned()).collect();
        folded.iter().for_each(|slice| self.gone(slice));
    }

    fn holder_of(&self, slice: &Workload) -> Option<WorkloadId> {
        self.holders.get(slice.parent_uid()?).copied()
    }

    /// Slices stand in line for whoever has the quota, and only while somebody has it.
    fn note_holder(&mut self, key: &Key, id: WorkloadId, object: Option<&Workload>, known: &Workload) {
        let Some(uid) = held_for(known).filter(|_| known.is_elastic()) else { return };
        let before = self.holders.get(uid).copied();
        let holds =
            object.is_some_and(|object| object.is(WorkloadCondition::Admitted)) && !self.is_superseded(key, known);
        if holds {
            self.holders.insert(uid.to_owned(), id);
        } else if before == Some(id) {
            self.holders.remove(uid);
        }
        if before != self.holders.get(uid).copied() {
            let beside: Vec<Key> =
                self.slices.get(uid).into_iter().flat_map(|beside| beside.values()).cloned().collect();
            for slice in beside {
                let id = self.id(&slice);
                if let Some(object) = self.workload(id).cloned() {
                    self.tell(id, &object);
                }
            }
        }
    }

    /// A Variant whose Parent has become a regular Workload.
    fn is_superseded(&self, key: &Key, object: &Workload) -> bool {
        let owners = object.metadata.owner_references.iter().flatten();
        let parent = owners.into_iter().find(|owner| Some(owner.uid.as_str()) == object.parent_uid());
        let known = parent.and_then(|parent| self.known(&Key::new(&key.namespace, &parent.name)));
        object.role() == Role::Variant && known.is_some_and(|parent| parent.role() != Role::Parent)
    }

    fn note_slice(&mut self, key: &Key, object: &Workload, there: bool) {
        let Some(parent) = object.parent_uid().filter(|_| object.role() == Role::Slice) else { return };
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let beside = self.slices.entry(parent.to_owned()).or_default();
        if there {
            beside.insert(uid, key.clone());
        } else {
            beside.remove(&uid);
        }
        if beside.is_empty() {
            self.slices.remove(parent);
        }
    }

    /// A slice goes where its parent is.
    fn pin(&mut self, holder: Option<WorkloadId>, shape: &mut sched::Shape) {
        let Some(parent) = holder.and_then(|id| self.workload(id).cloned()) else { return };
        let assigned = parent.status.admission.iter().flat_map(|a| &a.pod_set_assignments);
        for got in assigned {
            let pinned =
                got.flavors.iter().map(|(r, f)| (self.words.resource_id(r), self.words.flavor_id(f))).collect();
            if let Some(set) = shape.pod_sets.iter_mut().find(|set| set.name == got.name) {
                set.pinned = pinned;
            }
        }
    }

    /// A Parent stands in line through its Variants: what is known of it is known of them.
    fn seen_parent(&mut self, key: &Key, object: &Arc<Workload>) {
        if object.role() != Role::Parent || object.is(WorkloadCondition::Finished) {
            return self.families.forget_parent(key);
        }
        for variant in self.families.parent(key, object, queued_at(object)) {
            let id = self.id(&variant);
            if let Some(object) = self.workload(id).cloned() {
                self.tell(id, &object);
            }
        }
    }

    fn leave_local(&mut self, local: &Key, key: &Key) {
        if let Some(waiting) = self.by_local.get_mut(local) {
            waiting.remove(key);
            if waiting.is_empty() {
                self.by_local.remove(local);
            }
        }
    }

    /// It is deleted.
    pub fn gone(&mut self, key: &Key) {
        self.take_out(key);
        self.families.forget_parent(key);
    }

    /// It is finished, deleted, or not for the scheduler.
    fn take_out(&mut self, key: &Key) {
        let id = self.id(key);
        let name = format!("{}/{}", key.namespace, key.name);
        if let Some(known) = self.workloads.remove(&id) {
            self.scheduler.apply(Event::Gone(id));
            let local = Key::new(&key.namespace, &known.object.spec.queue_name);
            self.leave_local(&local, key);
            self.families.forget_variant(key, &known.object);
            self.census.gone(key);
            self.note_slice(key, &known.object, false);
            self.note_holder(key, id, None, &known.object);
        }
        self.words.names.workloads.release(&name);
    }

    fn tell(&mut self, id: WorkloadId, object: &Arc<Workload>) {
        let key = key_of(object);
        let queue = self.locals.get(&Key::new(&key.namespace, &object.spec.queue_name)).cloned();
        if self.families.is_represented(object, queue.as_ref()) {
            return self.scheduler.apply(Event::Gone(id));
        }
        if object.role() == Role::Variant && self.census.seen(&key, object, queue.as_ref()) {
            self.touched.extend(queue.as_ref().map(|queue| Subject::Queue(self.words.queue_id(queue))));
        }
        if object.role() == Role::Slice && self.holder_of(object).is_none() {
            // Nobody has quota that it could be added to.
            return self.scheduler.apply(Event::Gone(id));
        }
        let mut lowered = self.lower(object);
        if object.role() == Role::Variant
            && let Some(place) = self.families.variant(&key, object, queue.as_ref())
        {
            if let Some(migration) = place.news {
                self.scheduler.apply(Event::Group(place.group, migration));
            }
            lowered.group = Some(place.group);
            lowered.sibling = place.sibling;
            lowered.queued_at = place.queued_at.unwrap_or(lowered.queued_at);
            if place.is_to_come {
                (lowered.active, lowered.block) = (true, Some(Block::NotYet));
            }
        }
        if let Some(known) = self.workloads.get_mut(&id) {
            known.shape = lowered.shape.clone();
        }
        self.scheduler.apply(Event::Workload(id, lowered));
        if object.is(WorkloadCondition::QuotaReserved) {
            self.tell_reserved(id, object);
        } else if self.shows_its_decision(id, object) {
            self.scheduler.apply(Event::Released(id));
        }
    }

    fn tell_reserved(&mut self, id: WorkloadId, object: &Arc<Workload>) {
        let Some(assignment) = self.words.assignment(object) else { return };
        let reserved = conditions::find(&object.status.conditions, WorkloadCondition::QuotaReserved.as_str());
        let since = reserved.map_or(Time(0), |c| time(c.last_transition_time.0));
        let admitted = object.is(WorkloadCondition::Admitted);
        if let Some(known) = self.workloads.get_mut(&id) {
            known.admitting = None;
        }
        let queue = object.status.admission.as_ref().map(|admission| self.words.queue_id(&admission.cluster_queue));
        self.scheduler.apply(Event::Reserved { workload: id, queue, assignment, since, admitted });
        if object.is(WorkloadCondition::Evicted) {
            self.scheduler.apply(Event::Evicting(id));
        }
        self.scheduler.apply(Event::PodsReady(id, object.is(WorkloadCondition::PodsReady)));
    }

    /// Whether an object without quota means that it has none, or only that it was written before its admission was.
    fn shows_its_decision(&mut self, id: WorkloadId, object: &Workload) -> bool {
        let Some(known) = self.workloads.get_mut(&id) else { return true };
        match known.admitting {
            None => true,
            Some(Writing::UnderWay) => false,
            Some(Writing::Done(revision)) => {
                let seen = object.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
                let shows = seen.is_none_or(|seen: u64| seen >= revision);
                if shows {
                    known.admitting = None;
                }
                shows
            }
        }
    }

    /// A decision to admit is being written.
    pub fn admitting(&mut self, id: WorkloadId) {
        if let Some(known) = self.workloads.get_mut(&id) {
            known.admitting = Some(Writing::UnderWay);
        }
    }

    /// How a write ended: at a revision, or not at all.
    pub fn settle(&mut self, id: WorkloadId, uid: &str, kind: Kind, revision: Option<u64>) {
        let Some(known) = self.workloads.get_mut(&id).filter(|k| k.object.metadata.uid.as_deref() == Some(uid)) else {
            return;
        };
        match (kind, revision) {
            // It may have been seen already; then it was settled there.
            (Kind::Admission, Some(revision)) if known.admitting.is_some() => {
                known.admitting = Some(Writing::Done(revision));
            }
            (Kind::Admission, None) => {
                known.admitting = None;
                self.scheduler.apply(Event::AdmissionRefused(id));
            }
            (Kind::Eviction, None) => self.scheduler.apply(Event::EvictionRefused(id)),
            _ => {}
        }
    }

    fn lower(&mut self, object: &Workload) -> sched::Workload {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let mut shape = self.words.shape(object);
        let part_of = self.holder_of(object).filter(|_| object.role() == Role::Slice);
        self.pin(part_of, &mut shape);
        let boost = object.annotation(annotation::PRIORITY_BOOST).and_then(|text| text.parse::<i64>().ok());
        sched::Workload {
            local: self.words.local_id(namespace, &object.spec.queue_name),
            shape: self.shapes.share(shape),
            priority: i64::from(object.priority()).saturating_add(boost.unwrap_or(0)),
            queued_at: queued_at(object),
            place: place(object),
            sibling: 0,
            group: None,
            part_of,
            active: object.is_active(),
            requeue_at: object
                .status
                .requeue_state
                .as_ref()
                .and_then(|state| state.requeue_at.as_ref())
                .map(|at| time(at.0)),
            block: self.block(namespace, object),
            preemption_gated: object.spec.preemption_gates.iter().any(|gate| !is_open(object, &gate.name)),
        }
    }

    /// What keeps it out of line for reasons that are not the scheduler's.
    fn block(&self, namespace: &str, object: &Workload) -> Option<Block> {
        let gates = object.annotation(annotation::ADMISSION_GATED_BY).filter(|gates| !gates.is_empty());
        if let Some(gates) = gates {
            return Some(Block::GatedBy(gates.to_owned()));
        }
        let failed = [CheckState::Retry, CheckState::Rejected];
        if object.status.admission_checks.iter().any(|check| failed.contains(&check.state)) {
            return Some(Block::FailedChecks);
        }
        let requeued = conditions::find(&object.status.conditions, WorkloadCondition::Requeued.as_str());
        if requeued.is_some_and(|c| c.status == "False") {
            return Some(Block::NotRequeued);
        }
        if object.spec.pod_sets.iter().any(|set| set.topology_request.as_ref().is_some_and(wants_topology)) {
            let what = "topology requests are not supported yet; remove the topology annotations of the pod template";
            return Some(Block::Misconfigured(what.to_owned()));
        }
        let local = Key::new(namespace, &object.spec.queue_name);
        let selector = self.locals.get(&local).and_then(|queue| self.selectors.get(queue))?;
        let labels = self.namespaces.get(namespace);
        (!selects(selector.as_ref(), labels)).then_some(Block::NamespaceMismatch)
    }
}

/// Finished ones, Parents (their Variants stand for them), and those on their way out that hold nothing are not.
fn is_scheduled(object: &Workload) -> bool {
    !object.is(WorkloadCondition::Finished)
        && object.role() != Role::Parent
        && (object.metadata.deletion_timestamp.is_none() || object.is(WorkloadCondition::QuotaReserved))
}

/// The uid of the Workload whose quota this one holds: its own, or its Parent's.
fn held_for(object: &Workload) -> Option<&str> {
    match object.role() {
        Role::Regular => object.metadata.uid.as_deref(),
        Role::Variant => object.parent_uid(),
        Role::Parent | Role::Slice => None,
    }
}

fn key_of(object: &Workload) -> Key {
    let meta = &object.metadata;
    Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn wants_topology(request: &usher_api::kueue::workload::PodSetTopologyRequest) -> bool {
    request.required.is_some() || request.preferred.is_some() || request.unconstrained == Some(true)
}

fn is_open(object: &Workload, gate: &str) -> bool {
    use usher_api::kueue::workload_status::GatePosition;
    let state = object.status.preemption_gates.iter().find(|state| state.name == gate);
    state.is_some_and(|state| state.position == GatePosition::Open)
}

/// When it was created, or evicted for a reason that sends it to the end of the line.
fn queued_at(object: &Workload) -> Time {
    let evicted = conditions::find(&object.status.conditions, WorkloadCondition::Evicted.as_str());
    let to_the_end = [EvictionReason::PodsReadyTimeout, EvictionReason::AdmissionCheck].map(EvictionReason::as_str);
    let evicted = evicted.filter(|c| c.status == "True" && to_the_end.contains(&c.reason.as_str()));
    let at = evicted.map(|c| c.last_transition_time.0);
    let created = object.metadata.creation_timestamp.as_ref().map(|created| created.0);
    at.or(created).map_or(Time(0), time)
}

/// Breaks ties of time the same way after every restart; siblings have their Parent's.
fn place(object: &Workload) -> u64 {
    let own = object.metadata.uid.as_deref().unwrap_or_default();
    let uid = object.parent_uid().unwrap_or(own);
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// No selector selects nothing; an empty one everything.
fn selects(
    selector: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    let (Some(selector), Some(labels)) = (selector, labels) else { return false };
    let exact = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    exact
        && selector.match_expressions.iter().flatten().all(|expression| {
            let have = labels.get(&expression.key);
            let listed = have.is_some_and(|have| expression.values.iter().flatten().any(|value| value == have));
            match expression.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => have.is_some(),
                "DoesNotExist" => have.is_none(),
                _ => false,
            }
        })
}
