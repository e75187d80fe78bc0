//! The scheduler's state, and what each event does to it.
//!
//! `apply` takes note of one change; `plan` (in the module of that name) answers with what to do. Applying what is already known changes
//! nothing, so events may be repeated, and after a restart the state follows from the objects alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ledger::{Booking, Stage};
use crate::model::{
    Assignment, CheckId, Cohort, CohortId, Flavor, FlavorId, GroupId, LocalId, LocalQueue, Migration, Queue, QueueId,
    Queueing, Settings, Stop, Time, Usage, Workload, WorkloadId,
};
use crate::plan::Work;
use crate::queue::{ClassId, Key, Line, Order};
use crate::quota::NodeId;
use crate::reason::Wait;
use crate::tally::{Part, State, Tally};
use crate::wake::Marks;
use crate::world::{Inactive, World};

/// What the outside has seen.
#[derive(Debug, Clone)]
pub enum Event {
    Settings(Settings),
    Queue(QueueId, Option<Queue>),
    Cohort(CohortId, Option<Cohort>),
    Flavor(FlavorId, Option<Flavor>),
    /// Whether the check is active; None: there is no such check.
    Check(CheckId, Option<bool>),
    LocalQueue(LocalId, Option<LocalQueue>),
    Group(GroupId, Migration),
    /// A workload was created or changed.
    Workload(WorkloadId, Workload),
    /// Its quota is reserved in the API, or it is admitted: confirms a decision, or tells of one made before a restart.
    Reserved {
        workload: WorkloadId,
        /// Whose quota; None: that of the queue it waits for. Its local queue may be gone, or lead elsewhere by now.
        queue: Option<QueueId>,
        assignment: Assignment,
        since: Time,
        admitted: bool,
    },
    /// All its checks are ready.
    Admitted(WorkloadId),
    /// The pods of a booked workload are (not) ready; only of interest where admission is blocked until they are.
    PodsReady(WorkloadId, bool),
    /// It uses more or less from now on (reclaimable pods, an elastic job), in place.
    Resized {
        workload: WorkloadId,
        assignment: Assignment,
    },
    /// The write of an admission was refused: the booking is rolled back and the workload stands in line again.
    AdmissionRefused(WorkloadId),
    /// It is being evicted and still holds its quota.
    Evicting(WorkloadId),
    /// The write of an eviction was refused: it stays.
    EvictionRefused(WorkloadId),
    /// Its quota is cleared; it waits again.
    Released(WorkloadId),
    /// Finished or deleted.
    Gone(WorkloadId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    InLine(QueueId, ClassId),
    Out(Arc<Wait>),
    /// Room is kept for it while its victims leave.
    Holding(QueueId),
    Booked,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub workload: Workload,
    pub standing: Standing,
    /// The last reason that was handed out.
    pub reported: Option<Arc<Wait>>,
}

#[derive(Debug, Clone, Default)]
pub struct Scheduler {
    pub(crate) world: World,
    pub(crate) locals: Vec<Option<LocalQueue>>,
    pub(crate) entries: Vec<Option<Entry>>,
    pub(crate) lines: Vec<Line>,
    pub(crate) groups: BTreeMap<GroupId, BTreeSet<WorkloadId>>,
    pub(crate) migrations: BTreeMap<GroupId, Migration>,
    pub(crate) timers: BTreeSet<(Time, WorkloadId)>,
    pub(crate) marks: Marks,
    /// Queues and local queues whose configuration, or that of something they depend on, has changed.
    pub(crate) stale_queues: BTreeSet<QueueId>,
    pub(crate) stale_locals: BTreeSet<LocalId>,
    pub(crate) stale_cohorts: BTreeSet<CohortId>,
    /// Roots of trees, as they were, whose queues are all stale.
    pub(crate) stale_roots: BTreeSet<NodeId>,
    /// When the last plan was made.
    pub(crate) now: Time,
    /// Queues with classes to look at.
    pub(crate) touched: BTreeSet<QueueId>,
    /// Queues whose bookings may have to be drained because something was stopped.
    pub(crate) drains: BTreeSet<QueueId>,
    /// Booked workloads whose pods are not ready.
    pub(crate) unready: BTreeSet<WorkloadId>,
    pub(crate) waiting_for_ready: BTreeSet<(QueueId, WorkloadId)>,
    /// Workloads that may have to be told a new reason.
    pub(crate) unreported: Vec<WorkloadId>,
    pub(crate) tally: Tally,
    pub(crate) work: Work,
}

impl Scheduler {
    pub fn new() -> Self {
        Scheduler::default()
    }

    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Settings(settings) => {
                if self.world.settings != settings {
                    self.world.settings = settings;
                    self.stale_queues.extend(self.world.queue_ids());
                }
            }
            Event::Queue(id, queue) => self.set_queue(id, queue),
            Event::Cohort(id, cohort) => {
                self.stale_tree(self.world.ledger.tree.cohort(id));
                let cohort = cohort.unwrap_or_default();
                self.world.ledger.tree.set_cohort(id, cohort.parent, &cohort.quotas, cohort.fair_weight);
                self.stale_cohorts.insert(id);
            }
            Event::Flavor(id, flavor) => {
                self.world.set_flavor(id, flavor);
                let uses = |queue: &Queue| queue.groups.iter().any(|group| group.flavors.contains(&id));
                self.stale_where(uses);
            }
            Event::Check(id, active) => {
                self.world.set_check(id, active);
                self.stale_where(|queue| queue.checks.iter().any(|(check, _)| *check == id));
            }
            Event::LocalQueue(id, local) => {
                if self.locals.len() <= id.index() {
                    self.locals.resize(id.index() + 1, None);
                }
                if self.locals[id.index()] != local {
                    self.drains.extend(local.as_ref().map(|local| local.queue));
                    self.locals[id.index()] = local;
                    self.stale_locals.insert(id);
                }
            }
            Event::Group(id, migration) => {
                self.migrations.insert(id, migration);
                self.turn_group(Some(id));
            }
            Event::Workload(id, workload) => self.set_workload(id, workload),
            Event::Reserved { workload, queue, assignment, since, admitted } => {
                self.reserved(workload, queue, assignment, since, admitted)
            }
            Event::Admitted(id) => {
                if self.world.ledger.amend(id, |booking| booking.stage = Stage::Admitted) {
                    self.turn_group(self.group(id));
                    self.recount(id);
                }
            }
            Event::PodsReady(id, ready) => self.pods_ready(id, ready),
            Event::Resized { workload, assignment } => {
                let old = self.world.ledger.booking(workload).map(|booking| booking.usage.clone());
                if old.is_some_and(|old| old != assignment.usage) {
                    self.world.ledger.resize(workload, assignment.usage);
                    self.turn_group(self.group(workload));
                    self.recount(workload);
                }
            }
            Event::AdmissionRefused(id) => {
                if self.world.ledger.booking(id).is_some_and(|booking| booking.stage == Stage::Assumed) {
                    self.give_up_quota(id);
                    self.stand(id);
                }
            }
            Event::Evicting(id) => {
                self.world.ledger.amend(id, |booking| booking.leaving = true);
            }
            Event::EvictionRefused(id) => {
                self.world.ledger.amend(id, |booking| booking.leaving = false);
                self.victim_gone(id);
            }
            Event::Released(id) => {
                if self.world.ledger.booking(id).is_some() {
                    self.give_up_quota(id);
                    self.stand(id);
                }
            }
            Event::Gone(id) => self.gone(id),
        }
    }

    fn set_queue(&mut self, id: QueueId, queue: Option<Queue>) {
        if self.world.queue(id).map(|queue| &**queue) == queue.as_ref() {
            return;
        }
        self.stale_tree(self.world.ledger.tree.queue(id));
        self.stale_queues.insert(id);
        self.drains.insert(id);
        self.line_mut(id);
        self.world.set_queue(id, queue);
    }

    /// Everything below the root of this node has to be looked at again. (The other side of a move is seen when the tree is settled.)
    fn stale_tree(&mut self, node: Option<NodeId>) {
        let tree = &self.world.ledger.tree;
        if let Some(root) = node.map(|node| tree.root(node))
            && self.stale_roots.insert(root)
        {
            self.stale_queues.extend(tree.queues_under(root));
        }
    }

    fn stale_where(&mut self, uses: impl Fn(&Queue) -> bool) {
        let world = &self.world;
        self.stale_queues.extend(world.queue_ids().filter(|id| world.queue(*id).is_some_and(|queue| uses(queue))));
    }

    fn set_workload(&mut self, id: WorkloadId, workload: Workload) {
        let old = self.entry(id).map(|entry| (entry.workload.clone(), entry.standing.clone()));
        let Some((old, standing)) = old else {
            if let Some(group) = workload.group {
                self.groups.entry(group).or_default().insert(id);
            }
            let standing = Standing::Out(Arc::new(Wait::Deactivated));
            put(&mut self.entries, id.index(), Some(Entry { workload, standing, reported: None }));
            self.stand(id);
            return;
        };
        if old == workload {
            return;
        }
        if old.group != workload.group {
            self.forget_group(id, old.group);
            if let Some(group) = workload.group {
                self.groups.entry(group).or_default().insert(id);
            }
        }
        if standing == Standing::Booked {
            let (priority, queued_at, sibling) = (workload.priority, workload.queued_at, workload.sibling);
            if let Some(entry) = self.entry_mut(id) {
                entry.workload = workload;
            }
            self.world.ledger.amend(id, |booking| {
                booking.priority = priority;
                booking.queued_at = queued_at;
                booking.sibling = sibling;
            });
            if old.sibling != sibling {
                self.turn_group(self.group(id));
            }
            // Whom it can be preempted by has changed: as if it were newly there.
            if let Some(booking) = self.world.ledger.booking(id).cloned()
                && old.priority != priority
            {
                self.world.ledger.book(id, booking);
            }
            self.recount(id);
            return;
        }
        self.leave(id);
        if let Some(entry) = self.entry_mut(id) {
            entry.workload = workload;
        }
        self.stand(id);
    }

    fn reserved(
        &mut self,
        id: WorkloadId,
        queue: Option<QueueId>,
        assignment: Assignment,
        since: Time,
        admitted: bool,
    ) {
        let Some(entry) = self.entry(id) else { return };
        let workload = entry.workload.clone();
        let stage = if admitted { Stage::Admitted } else { Stage::Reserved };
        if let Some(booking) = self.world.ledger.booking(id) {
            let (same, turned) = (booking.usage == assignment.usage, booking.stage != stage);
            self.world.ledger.amend(id, |booking| {
                booking.stage = stage;
                booking.since = since;
            });
            if !same {
                self.world.ledger.resize(id, assignment.usage);
            }
            if turned {
                self.turn_group(workload.group);
            }
            self.recount(id);
        } else {
            let Some(queue) = queue.or_else(|| self.queue_of(&workload)) else { return };
            self.leave(id);
            self.book(id, queue, assignment.usage, stage, since, false);
        }
        if let Some(booking) = self.world.ledger.booking(id) {
            self.drains.insert(booking.queue);
        }
    }

    pub(crate) fn book(&mut self, id: WorkloadId, queue: QueueId, usage: Usage, stage: Stage, since: Time, won: bool) {
        let Some(entry) = self.entry_mut(id) else { return };
        entry.standing = Standing::Booked;
        entry.reported = None;
        let workload = &entry.workload;
        let group = workload.group;
        let booking = Booking {
            queue,
            usage,
            stage,
            since,
            priority: workload.priority,
            queued_at: workload.queued_at,
            place: workload.place,
            leaving: false,
            won,
            ready: false,
            group,
            sibling: workload.sibling,
            part_of: workload.part_of,
        };
        self.world.ledger.book(id, booking);
        self.unready.insert(id);
        self.turn_group(group);
        self.recount(id);
    }

    fn pods_ready(&mut self, id: WorkloadId, ready: bool) {
        if !self.world.ledger.amend(id, |booking| booking.ready = ready) {
            return;
        }
        if ready {
            self.unready.remove(&id);
            self.turn_ready();
        } else {
            self.unready.insert(id);
        }
    }

    fn turn_ready(&mut self) {
        if self.unready.is_empty() {
            for (queue, id) in std::mem::take(&mut self.waiting_for_ready) {
                if let Some(Standing::InLine(own, class)) = self.entry(id).map(|entry| entry.standing.clone())
                    && own == queue
                {
                    self.line_mut(queue).refresh(class);
                    self.touched.insert(queue);
                }
            }
        }
    }

    /// Its claim ends: room for others, and those who waited for it to leave are looked at.
    pub(crate) fn give_up_quota(&mut self, id: WorkloadId) {
        self.tally.changed.queues.extend(self.world.ledger.booking(id).map(|booking| booking.queue));
        self.world.ledger.release(id);
        self.victim_gone(id);
        if self.unready.remove(&id) {
            self.turn_ready();
        }
        self.turn_group(self.group(id));
    }

    fn victim_gone(&mut self, id: WorkloadId) {
        for holder in self.world.ledger.victim_left(id) {
            if let Some(hold) = self.world.ledger.held(holder) {
                self.touched.insert(hold.queue);
            }
        }
    }

    fn gone(&mut self, id: WorkloadId) {
        if self.entry(id).is_none() {
            return;
        }
        let group = self.group(id);
        self.leave(id);
        self.give_up_quota(id);
        self.forget_group(id, group);
        self.entries[id.index()] = None;
        self.recount(id);
    }

    fn forget_group(&mut self, id: WorkloadId, group: Option<GroupId>) {
        if let Some(group) = group
            && let Some(members) = self.groups.get_mut(&group)
        {
            members.remove(&id);
            if members.is_empty() {
                self.groups.remove(&group);
                self.migrations.remove(&group);
            }
        }
    }

    /// A member of the group got, lost or turned a claim: its siblings are looked at again.
    pub(crate) fn turn_group(&mut self, group: Option<GroupId>) {
        let Some(members) = group.and_then(|group| self.groups.get(&group)) else { return };
        for id in members.clone() {
            let Some(entry) = self.entry(id) else { continue };
            match entry.standing {
                Standing::InLine(queue, class) => {
                    self.line_mut(queue).refresh(class);
                    self.touched.insert(queue);
                    self.unreported.push(id);
                }
                // Whether the place that it keeps is before somebody may have changed.
                Standing::Out(ref reason) if reason.is_to_come() => {
                    let queue = self.queue_of(&entry.workload);
                    self.touched.extend(queue);
                }
                _ => {}
            }
        }
    }

    /// Takes a waiting workload out of its line and out of the room kept for it.
    pub(crate) fn leave(&mut self, id: WorkloadId) {
        let Some(entry) = self.entry(id) else { return };
        let (order, timer) = (Order::of(id, &entry.workload), entry.workload.requeue_at);
        if entry.standing == Standing::Booked {
            return;
        }
        if let Some(at) = timer {
            self.timers.remove(&(at, id));
        }
        let outside = Standing::Out(Arc::new(Wait::Deactivated));
        match self.entry_mut(id).map(|entry| std::mem::replace(&mut entry.standing, outside)) {
            Some(Standing::InLine(queue, class)) => {
                self.waiting_for_ready.remove(&(queue, id));
                self.line_mut(queue).leave(order, class);
                self.drop_hold(id);
                self.touched.insert(queue);
                if self.world.queue(queue).is_some_and(|queue| queue.strategy == Queueing::StrictFifo) {
                    self.refresh_placed(queue, id);
                }
            }
            Some(Standing::Holding(queue)) => {
                self.line_mut(queue).holding.remove(&order);
                self.drop_hold(id);
                self.touched.insert(queue);
            }
            _ => self.leave_outside(order),
        }
    }

    /// It does not wait beside its line any more, if it did.
    fn leave_outside(&mut self, order: Order) {
        if let Some(queue) = self.tally.waits_for(order.workload) {
            let line = self.line_mut(queue);
            line.outside.remove(&order);
            if line.coming.remove(&order) {
                self.touched.insert(queue);
                self.refresh_placed(queue, order.workload);
            }
        }
    }

    pub(crate) fn drop_hold(&mut self, id: WorkloadId) {
        if let Some(queue) = self.world.ledger.held(id).map(|hold| hold.queue) {
            self.line_mut(queue).keeping.remove(&id);
            self.world.ledger.release(id);
            self.turn_group(self.group(id));
        }
    }

    /// Finds a waiting workload its place: in line, or outside with a reason.
    pub(crate) fn stand(&mut self, id: WorkloadId) {
        let Some(order) = self.entry(id).map(|entry| Order::of(id, &entry.workload)) else { return };
        self.leave_outside(order);
        let Some(entry) = self.entry(id) else { return };
        let workload = &entry.workload;
        let standing = match self.outside(workload) {
            Some(reason) => {
                let queue = self.queue_of(workload).filter(|_| reason.is_queued());
                if let Wait::Backoff { until } = reason {
                    self.timers.insert((until, id));
                }
                if let Some(queue) = queue {
                    self.line_mut(queue).outside.insert(order);
                    if reason.is_to_come() {
                        self.line_mut(queue).coming.insert(order);
                        self.touched.insert(queue);
                    }
                }
                Standing::Out(Arc::new(reason))
            }
            None => {
                let key = Key::of(workload);
                let Some(queue) = self.queue_of(workload) else { return };
                let (class, first) = self.line_mut(queue).join(order, key);
                if first {
                    self.touched.insert(queue);
                }
                Standing::InLine(queue, class)
            }
        };
        if let Some(entry) = self.entry_mut(id) {
            entry.standing = standing;
        }
        self.unreported.push(id);
        self.recount(id);
    }

    /// What it adds to the figures of its queues may have changed.
    fn recount(&mut self, id: WorkloadId) {
        self.tally.set(id, self.part(id));
    }

    fn part(&self, id: WorkloadId) -> Option<Part> {
        let entry = self.entry(id)?;
        let (local, group) = (entry.workload.local, entry.workload.group);
        let state = match &entry.standing {
            Standing::InLine(..) | Standing::Holding(_) => State::Pending,
            Standing::Out(reason) if reason.is_queued() => State::Pending,
            Standing::Out(_) => return None,
            Standing::Booked => {
                let booking = self.world.ledger.booking(id)?;
                let usage = || Box::new(booking.usage.clone());
                let state = match booking.stage {
                    Stage::Assumed => return None,
                    Stage::Reserved => State::Reserving(usage()),
                    Stage::Admitted => State::Admitted(usage()),
                };
                return Some(Part { queue: Some(booking.queue), local, group, state });
            }
        };
        Some(Part { queue: self.queue_of(&entry.workload), local, group, state })
    }

    /// Why a workload cannot stand in line.
    fn outside(&self, workload: &Workload) -> Option<Wait> {
        if !workload.active {
            return Some(Wait::Deactivated);
        }
        let Some(local) = self.local(workload.local) else {
            return Some(Wait::LocalQueueMissing { local: workload.local });
        };
        if local.stop != Stop::None {
            return Some(Wait::LocalQueueStopped { local: workload.local });
        }
        let queue = local.queue;
        if let Some(why) = self.line(queue).map_or(Some(Inactive::NotFound), |line| line.inactive.clone()) {
            return Some(Wait::QueueInactive { queue, why });
        }
        if let Some(block) = &workload.block {
            return Some(Wait::Blocked(block.clone()));
        }
        workload.requeue_at.filter(|until| *until > self.now).map(|until| Wait::Backoff { until })
    }

    pub(crate) fn queue_of(&self, workload: &Workload) -> Option<QueueId> {
        self.local(workload.local).map(|local| local.queue)
    }

    pub(crate) fn local(&self, id: LocalId) -> Option<&LocalQueue> {
        self.locals.get(id.index())?.as_ref()
    }

    pub(crate) fn line(&self, id: QueueId) -> Option<&Line> {
        self.lines.get(id.index())
    }

    pub(crate) fn line_mut(&mut self, id: QueueId) -> &mut Line {
        if self.lines.len() <= id.index() {
            self.lines.resize_with(id.index() + 1, Line::unknown);
        }
        &mut self.lines[id.index()]
    }

    pub(crate) fn entry(&self, id: WorkloadId) -> Option<&Entry> {
        self.entries.get(id.index())?.as_ref()
    }

    pub(crate) fn entry_mut(&mut self, id: WorkloadId) -> Option<&mut Entry> {
        self.entries.get_mut(id.index())?.as_mut()
    }

    pub(crate) fn group(&self, id: WorkloadId) -> Option<GroupId> {
        self.entry(id)?.workload.group
    }
}

fn put<T>(table: &mut Vec<Option<T>>, at: usize, value: Option<T>) {
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    table[at] = value;
}
