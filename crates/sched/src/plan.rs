//! From what changed to what is to be done.
//!
//! `plan` first lets configuration, timers and stop policies take effect, then goes tree by tree through those who can benefit: room kept
//! for preemptors first, then a contest between the queues of the tree, each sending its first in line. Whoever would borrow least far
//! goes first, then priority, then time; with fair sharing the lowest share. Each admission, eviction and reason is a decision; what
//! admissions change is looked at again until nothing moves.
//!
//! Decides everything, does nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::assign::{self, Verdict, Watch};
use crate::fair;
use crate::ledger::{Hold, Stage};
use crate::model::{
    Amount, Assignment, Cell, CheckId, Migration, Queue, QueueId, Queueing, Reclaim, Stop, Time, Usage, Workload,
    WorkloadId,
};
use crate::preempt::{self, Victim};
use crate::queue::{ClassId, Line, Order};
use crate::quota::NodeId;
use crate::reason::Wait;
use crate::scheduler::{Scheduler, Standing};
use crate::wake::Mark;
use crate::world::Asker;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Reserve this quota for it; it is admitted when the checks are ready, at once if there are none.
    Admit {
        workload: WorkloadId,
        queue: QueueId,
        assignment: Assignment,
        checks: Vec<CheckId>,
    },
    /// Evict these so that it fits; its room is kept from now on.
    Preempt {
        workload: WorkloadId,
        queue: QueueId,
        assignment: Assignment,
        victims: Vec<Victim>,
    },
    Evict {
        workload: WorkloadId,
        why: Eviction,
    },
    Wait {
        workload: WorkloadId,
        reason: Arc<Wait>,
    },
}

/// Evictions that are not preemptions, as the reason of the condition Evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Eviction {
    ClusterQueueStopped,
    LocalQueueStopped,
}

impl Eviction {
    pub fn wire(self) -> &'static str {
        match self {
            Eviction::ClusterQueueStopped => "ClusterQueueStopped",
            Eviction::LocalQueueStopped => "LocalQueueStopped",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub decisions: Vec<Decision>,
    /// Plan again then, if nothing happens before.
    pub next_timer: Option<Time>,
}

/// How much was done, counted: a measure that does not depend on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Workloads for which flavors were looked for.
    pub evaluations: u64,
    /// Queues asked for their next in line.
    pub looks: u64,
    /// Classes of equal workloads considered in those looks.
    pub classes: u64,
}

/// Who is next of one queue: how far up it may have to borrow (at least), its place in line, its class.
type Contender = (u32, Order, QueueId, ClassId);

impl Scheduler {
    pub fn plan(&mut self, now: Time) -> Plan {
        self.now = now;
        let mut out = Vec::new();
        self.take_configuration();
        self.pass_timers(now);
        self.drain(&mut out);
        self.note_changes();
        while let Some((root, mark)) = self.marks.take_first() {
            self.round(root, &mark, &mut out);
            self.note_changes();
        }
        self.report(&mut out);
        Plan { decisions: out, next_timer: self.timers.first().map(|(time, _)| *time) }
    }

    /// How much all plans together have done.
    pub fn work(&self) -> Work {
        self.work
    }

    fn take_configuration(&mut self) {
        self.world.ledger.tree.settle();
        self.stale_roots.clear();
        if self.stale_queues.is_empty() && self.stale_locals.is_empty() && self.stale_cohorts.is_empty() {
            return;
        }
        let tree = &self.world.ledger.tree;
        let mut roots: BTreeSet<NodeId> = std::mem::take(&mut self.stale_cohorts)
            .into_iter()
            .filter_map(|id| tree.cohort(id))
            .map(|node| tree.root(node))
            .collect();
        roots.extend(self.stale_queues.iter().filter_map(|id| tree.queue(*id)).map(|node| tree.root(node)));
        let mut queues = std::mem::take(&mut self.stale_queues);
        queues.extend(roots.into_iter().flat_map(|root| tree.queues_under(root)));
        for &id in &queues {
            let inactive = self.world.inactive(id);
            let line = self.line_mut(id);
            line.inactive = inactive;
            line.refresh_all();
        }
        let locals = std::mem::take(&mut self.stale_locals);
        self.touched.extend(queues.iter().copied());
        self.tally.changed.turned.extend(queues.iter().copied());
        self.tally.changed.locals.extend(locals.iter().copied());
        for at in 0..self.entries.len() {
            let id = WorkloadId(at as u32);
            let Some(entry) = &self.entries[at] else { continue };
            let local = entry.workload.local;
            let moved = match &entry.standing {
                Standing::Booked => false,
                Standing::InLine(queue, _) => {
                    locals.contains(&local) || (queues.contains(queue) && self.lines[queue.index()].inactive.is_some())
                }
                Standing::Holding(queue) => locals.contains(&local) || queues.contains(queue),
                Standing::Out(_) => {
                    locals.contains(&local)
                        || self.queue_of(&entry.workload).is_some_and(|queue| queues.contains(&queue))
                }
            };
            if moved {
                self.leave(id);
                self.stand(id);
            }
        }
    }

    fn pass_timers(&mut self, now: Time) {
        while let Some(&(time, id)) = self.timers.first()
            && time <= now
        {
            self.timers.pop_first();
            self.stand(id);
        }
    }

    /// Stopped queues: reservations that are not admitted yet are cancelled, and with HoldAndDrain everything leaves.
    fn drain(&mut self, out: &mut Vec<Decision>) {
        for id in std::mem::take(&mut self.drains) {
            let stop = self.world.queue(id).map_or(Stop::None, |queue| queue.stop);
            let mut leaving = Vec::new();
            for (workload, booking) in self.world.ledger.booked(id) {
                let local_stop = self
                    .entry(workload)
                    .and_then(|entry| self.local(entry.workload.local))
                    .map_or(Stop::None, |local| local.stop);
                let hits =
                    |stop: Stop| stop == Stop::HoldAndDrain || (stop == Stop::Hold && booking.stage < Stage::Admitted);
                if booking.leaving {
                    continue;
                } else if hits(stop) {
                    leaving.push((workload, Eviction::ClusterQueueStopped));
                } else if hits(local_stop) {
                    leaving.push((workload, Eviction::LocalQueueStopped));
                }
            }
            leaving.sort();
            for (workload, why) in leaving {
                self.world.ledger.amend(workload, |booking| booking.leaving = true);
                out.push(Decision::Evict { workload, why });
            }
        }
    }

    fn note_changes(&mut self) {
        let tree = &self.world.ledger.tree;
        let touched = std::mem::take(&mut self.touched);
        let mut marks = std::mem::take(&mut self.marks);
        touched.into_iter().for_each(|queue| marks.fresh(tree, queue));
        let changes = self.world.ledger.take_changes();
        changes.into_iter().for_each(|change| marks.change(&self.world.ledger.tree, change));
        self.marks = marks;
    }

    fn round(&mut self, root: NodeId, mark: &Mark, out: &mut Vec<Decision>) {
        let fair = self.world.fair();
        let queues: Vec<QueueId> = match mark.queues(fair) {
            Some(queues) => queues.into_iter().collect(),
            None => self.world.ledger.tree.queues_under(root),
        };
        for &queue in &queues {
            self.yield_to_newcomer(queue);
        }
        self.retry_holders(root, mark.freed(), out);
        if fair {
            self.contest_by_share(root, mark, &queues, out);
        } else {
            self.contest(mark, &queues, out);
        }
        for queue in queues {
            self.line_mut(queue).end_round();
        }
    }

    /// A strict line has a new head before a workload for which room is kept: the room goes back, the newcomer is first.
    fn yield_to_newcomer(&mut self, queue: QueueId) {
        if self.world.queue(queue).is_none_or(|queue| queue.strategy != Queueing::StrictFifo) {
            return;
        }
        let Some(line) = self.line(queue) else { return };
        let Some(head) = self.first_without_quota(line) else { return };
        let mut demoted: Vec<WorkloadId> =
            line.holding.iter().filter(|held| **held > head).map(|held| held.workload).collect();
        demoted.retain(|id| !self.same_place(*id, head.workload));
        let reserving: Vec<WorkloadId> =
            line.keeping.iter().copied().filter(|id| !self.same_place(*id, head.workload)).collect();
        for id in demoted {
            self.leave(id);
            self.stand(id);
        }
        for id in reserving {
            self.drop_hold(id);
        }
    }

    /// A sibling has quota already: what it still tries for is a better place, and it holds nobody up.
    pub(crate) fn is_placed(&self, id: WorkloadId) -> bool {
        let Some(group) = self.group(id) else { return false };
        let members = self.world.ledger.members(group).iter();
        members.into_iter().any(|member| *member != id && self.world.ledger.booking(*member).is_some())
    }

    /// Those of a strict line whose siblings have quota, in order.
    fn placed(&self, queue: QueueId) -> Vec<(Order, ClassId)> {
        if self.migrations.is_empty() {
            return Vec::new();
        }
        let booked = self.world.ledger.booked(queue).filter_map(|(_, booking)| booking.group);
        let groups: BTreeSet<_> = booked.collect();
        let members = groups.iter().filter_map(|group| self.groups.get(group)).flatten();
        let waiting = members.filter_map(|id| {
            let entry = self.entry(*id)?;
            match entry.standing {
                Standing::InLine(own, class) if own == queue => Some((Order::of(*id, &entry.workload), class)),
                _ => None,
            }
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort();
        waiting
    }

    /// The first of those in line, and of those who keep a place in it, that has no quota through a sibling either.
    fn first_without_quota(&self, line: &Line) -> Option<Order> {
        let waits = |order: &Order| !self.is_placed(order.workload);
        let first = line.heads().map(|(order, _)| order).find(waits);
        let coming = line.coming.iter().copied().find(waits);
        [first, coming].into_iter().flatten().min()
    }

    /// The head of a strict line: the first that has no quota through a sibling either.
    fn strict_head(&self, line: &Line) -> Option<WorkloadId> {
        let held = line.holding.iter().find(|held| !self.is_placed(held.workload)).copied();
        [self.first_without_quota(line), held].into_iter().flatten().min().map(|order| order.workload)
    }

    /// What the head of a strict line asks for, in every flavor that it or its siblings may use: those who only move up leave it alone.
    fn set_aside(&self, id: WorkloadId, queue: QueueId) -> Usage {
        let mut aside = Usage::default();
        let Some(config) = self.world.queue(queue).filter(|config| config.strategy == Queueing::StrictFifo) else {
            return aside;
        };
        let Some(line) = self.line(queue).filter(|_| self.is_placed(id)) else { return aside };
        let Some(head) = self.strict_head(line) else { return aside };
        let siblings = self.group(head).and_then(|group| self.groups.get(&group));
        let head: Vec<WorkloadId> = siblings.map_or_else(|| vec![head], |all| all.iter().copied().collect());
        for entry in head.iter().filter_map(|member| self.entry(*member)) {
            let asks = match &entry.standing {
                Standing::InLine(own, _) => *own == queue,
                Standing::Out(reason) => reason.is_to_come() && self.queue_of(&entry.workload) == Some(queue),
                Standing::Holding(_) | Standing::Booked => false,
            };
            if !asks {
                continue;
            }
            let shape = &entry.workload.shape;
            for group in &config.groups {
                for &resource in &group.resources {
                    let asked = shape.pod_sets.iter().flat_map(|set| {
                        let own = set.requests.iter().filter(move |(asked, _)| *asked == resource);
                        own.map(move |(_, amount)| amount.times(set.count))
                    });
                    let asked = asked.fold(Amount::ZERO, Amount::plus).min(Amount::LARGEST_REQUEST);
                    let may_use = |flavor: &&crate::model::FlavorId| {
                        shape.allowed.as_ref().is_none_or(|allowed| allowed.contains(flavor))
                    };
                    for flavor in group.flavors.iter().filter(may_use).filter(|_| asked > Amount::ZERO) {
                        let own = aside.entry(Cell::new(*flavor, resource));
                        *own = (*own).max(asked);
                    }
                }
            }
        }
        aside
    }

    fn same_place(&self, a: WorkloadId, b: WorkloadId) -> bool {
        a == b || self.group(a).is_some_and(|group| self.group(b) == Some(group))
    }

    /// Room kept for preemptors: those whose room is there are admitted, those whose victims are gone without that look anew.
    fn retry_holders(&mut self, root: NodeId, freed: bool, out: &mut Vec<Decision>) {
        let tree = &self.world.ledger.tree;
        let mut holders: Vec<(Order, QueueId)> = Vec::new();
        for id in self.world.ledger.holders() {
            if let Some(entry) = self.entry(id)
                && let Standing::Holding(queue) = entry.standing
                && tree.queue(queue).is_some_and(|node| tree.root(node) == root)
            {
                holders.push((Order::of(id, &entry.workload), queue));
            }
        }
        holders.sort();
        for (order, queue) in holders {
            self.retry_holder(order, queue, freed, out);
        }
    }

    fn retry_holder(&mut self, order: Order, queue: QueueId, freed: bool, out: &mut Vec<Decision>) {
        let id = order.workload;
        let Some(waits) = self.world.ledger.held(id).map(|hold| !hold.victims.is_empty()) else { return };
        if waits && !freed {
            return;
        }
        let verdict = self.judge(id, queue, true);
        match verdict {
            Verdict::Fits(assignment) => {
                self.line_mut(queue).holding.remove(&order);
                self.admit(id, queue, assignment, true, out);
            }
            // Siblings may use the room that is kept for it, which their own watches do not see.
            _ if waits => self.turn_group(self.group(id)),
            Verdict::Preempts { assignment, victims, .. }
                if !self.is_gated(id) && self.preempting_sibling(id).is_none() =>
            {
                self.preempt(order, queue, assignment, victims, out);
            }
            _ => {
                self.leave(id);
                self.stand(id);
            }
        }
    }

    fn contest(&mut self, mark: &Mark, queues: &[QueueId], out: &mut Vec<Decision>) {
        let mut contenders: BTreeSet<Contender> = BTreeSet::new();
        for &queue in queues {
            contenders.extend(self.next_of(queue, mark));
        }
        while let Some((level, order, queue, class)) = contenders.pop_first() {
            if self.is_candidate(queue, class) {
                let verdict = self.judge(order.workload, queue, true);
                let actual = level_of(&verdict);
                // It would have to borrow from further up than it seemed: others may come first.
                if actual > level
                    && contenders.first().is_some_and(|(level, order_, ..)| (*level, *order_) < (actual, order))
                {
                    contenders.insert((actual, order, queue, class));
                    continue;
                }
                self.settle(order, queue, class, verdict, out);
            }
            contenders.extend(self.next_of(queue, mark));
        }
    }

    fn contest_by_share(&mut self, root: NodeId, mark: &Mark, queues: &[QueueId], out: &mut Vec<Decision>) {
        loop {
            let mut entries = Vec::new();
            let mut verdicts = Vec::new();
            for &queue in queues {
                // Whoever cannot be admitted now is settled at once: nothing gets free in this round.
                while let Some((_, order, _, class)) = self.next_of(queue, mark) {
                    let verdict = self.judge(order.workload, queue, true);
                    let usage = match &verdict {
                        Verdict::Fits(assignment) | Verdict::Preempts { assignment, .. } => assignment.usage.clone(),
                        Verdict::Waits { .. } => {
                            self.settle(order, queue, class, verdict, out);
                            continue;
                        }
                    };
                    let Some(asker) = self.asker(order.workload, queue, true) else { break };
                    entries.push(fair::Entry {
                        node: asker.node,
                        usage: assign::extra(&self.world, &asker, &usage),
                        key: order,
                    });
                    verdicts.push((order, queue, class, verdict));
                    break;
                }
            }
            let Some(winner) = fair::tournament(&mut self.world.ledger.tree, root, &entries) else { return };
            let (order, queue, class, verdict) = verdicts.swap_remove(winner);
            self.settle(order, queue, class, verdict, out);
        }
    }

    /// The next of a queue that is worth looking at.
    fn next_of(&mut self, id: QueueId, mark: &Mark) -> Option<Contender> {
        self.work.looks += 1;
        let queue = self.world.queue(id)?.clone();
        let line = self.line(id)?;
        if line.inactive.is_some() {
            return None;
        }
        match queue.strategy {
            Queueing::StrictFifo => self.next_of_strict(id, mark),
            Queueing::BestEffortFifo => self.next_of_best_effort(id, &queue, mark),
        }
    }

    /// Only the head of a strict line, its siblings included, is looked at; and after it those who already have quota and may move up.
    fn next_of_strict(&mut self, id: QueueId, mark: &Mark) -> Option<Contender> {
        self.meet_new_head(id);
        let line = self.line(id)?;
        let is_due = |class: ClassId| {
            let due = line.is_fresh(class) || (self.concerned(id, class, mark) && self.is_candidate(id, class));
            due && line.is_findable(class)
        };
        if let Some(head) = self.strict_head(line) {
            let waiting = line.heads().filter(|(order, _)| !self.is_placed(order.workload));
            let mut siblings = waiting.take_while(|(order, _)| self.same_place(order.workload, head));
            if let Some((order, class)) = siblings.find(|(_, class)| is_due(*class)) {
                return Some((0, order, id, class));
            }
        }
        let (order, class) = self.placed(id).into_iter().find(|(_, class)| is_due(*class))?;
        Some((0, order, id, class))
    }

    /// Behind another nobody is woken: what came free meanwhile is new to whoever is the head now.
    fn meet_new_head(&mut self, id: QueueId) {
        let Some(line) = self.line(id) else { return };
        let head = self.strict_head(line);
        if line.head == head {
            return;
        }
        let mut classes = Vec::new();
        if let Some(head) = head {
            let waiting = line.heads().filter(|(order, _)| !self.is_placed(order.workload));
            let siblings = waiting.take_while(|(order, _)| self.same_place(order.workload, head));
            classes.extend(siblings.map(|(_, class)| class).filter(|class| line.is_findable(*class)));
        }
        let line = self.line_mut(id);
        line.head = head;
        classes.into_iter().for_each(|class| line.refresh(class));
    }

    fn next_of_best_effort(&mut self, id: QueueId, queue: &Queue, mark: &Mark) -> Option<Contender> {
        let node = self.world.ledger.tree.queue(id)?;
        let line = &self.lines[id.index()];
        let mut best: Option<Contender> = line.first_fresh().map(|(order, class)| (0, order, id, class));
        let (preempts, fair) = (queue.preempts(), self.world.fair());
        let mut considered = 0;
        for cell in line.watched_cells() {
            if !mark.concerns(id, preempts, cell, fair) {
                continue;
            }
            let free = self.world.ledger.tree.free(node, cell);
            for (need, classes) in line.waiting_for(cell) {
                if need > free && need > Amount::ZERO && !self.worth_preempting(id, queue, cell, need, free) {
                    break;
                }
                considered += 1;
                for &(order, class) in classes {
                    if best.is_some_and(|(_, own, ..)| own <= order) {
                        break;
                    }
                    if need <= free || need == Amount::ZERO {
                        let (level, _) = self.world.ledger.tree.height_that_fits(node, cell, need);
                        best = Some((level, order, id, class));
                        break;
                    }
                    if self.could_preempt(id, class, cell, need, free) {
                        best = Some((0, order, id, class));
                        break;
                    }
                }
            }
        }
        self.work.classes += considered;
        // Another of its flavors may be nearer: the level seen here is right only for the cell that was looked at.
        best.map(
            |(level, order, id, class)| {
                if line.watches(class).len() > 1 { (0, order, id, class) } else { (level, order, id, class) }
            },
        )
    }

    fn concerned(&self, id: QueueId, class: ClassId, mark: &Mark) -> bool {
        let preempts = self.world.queue(id).is_some_and(|queue| queue.preempts());
        let Some(line) = self.line(id) else { return false };
        line.watches(class).iter().any(|watch| mark.concerns(id, preempts, watch.cell, self.world.fair()))
    }

    /// Could the class get what it watches for, as things are now?
    fn is_candidate(&self, id: QueueId, class: ClassId) -> bool {
        let (Some(line), Some(node)) = (self.line(id), self.world.ledger.tree.queue(id)) else { return false };
        if line.is_fresh(class) {
            return true;
        }
        line.watches(class).iter().any(|watch| {
            let kept = line.head_of(class).map_or(Amount::ZERO, |head| self.kept_for(head.workload, watch.cell));
            let free = self.world.ledger.tree.free(node, watch.cell).plus(kept);
            watch.need <= free.or_zero() || self.could_preempt(id, class, watch.cell, watch.need, free)
        })
    }

    /// The workload, or members of its group, for which room is kept.
    fn held_for(&self, id: WorkloadId) -> Vec<WorkloadId> {
        let ledger = &self.world.ledger;
        match self.group(id) {
            Some(group) => {
                ledger.members(group).iter().copied().filter(|member| ledger.held(*member).is_some()).collect()
            }
            None => ledger.held(id).map(|_| id).into_iter().collect(),
        }
    }

    /// What is kept for a workload or its siblings counts as used, but not for itself.
    fn kept_for(&self, id: WorkloadId, cell: Cell) -> Amount {
        let kept = self.held_for(id).into_iter().filter_map(|member| self.world.ledger.held(member));
        kept.fold(Amount::ZERO, |sum, hold| sum.plus(hold.assignment.usage.amount(cell)))
    }

    /// Could anyone of the queue get this much by preemption? Needs are looked at in rising order, so a no ends the search.
    fn worth_preempting(&self, id: QueueId, queue: &Queue, cell: Cell, need: Amount, free: Amount) -> bool {
        if !queue.preempts() {
            return false;
        }
        queue.preemption.reclaim != Reclaim::Never
            || need <= free.plus(self.world.ledger.used_by_priority(id, cell, i64::MAX, true))
    }

    fn could_preempt(&self, id: QueueId, class: ClassId, cell: Cell, need: Amount, free: Amount) -> bool {
        let Some(line) = self.line(id) else { return false };
        if line.key(class).preemption_gated || self.world.queue(id).is_none_or(|queue| !queue.preempts()) {
            return false;
        }
        let Some(asker) = line.head_of(class).and_then(|head| self.asker(head.workload, id, true)) else {
            return false;
        };
        need <= free.plus(preempt::most_to_gain(&self.world, &asker, cell, need))
    }

    fn asker(&self, id: WorkloadId, queue: QueueId, may_preempt: bool) -> Option<Asker> {
        let workload = &self.entry(id)?.workload;
        Some(Asker {
            workload: id,
            queue,
            node: self.world.ledger.tree.queue(queue)?,
            priority: workload.priority,
            queued_at: workload.queued_at,
            group: workload.group,
            part_of: workload.part_of,
            may_preempt,
        })
    }

    fn is_gated(&self, id: WorkloadId) -> bool {
        self.entry(id).is_some_and(|entry| entry.workload.preemption_gated)
    }

    /// What becomes of a workload that is next.
    fn judge(&mut self, id: WorkloadId, queue: QueueId, may_preempt: bool) -> Verdict {
        self.work.evaluations += 1;
        let aside = self.set_aside(id, queue);
        let node = self.world.ledger.tree.queue(queue).filter(|_| !aside.is_empty());
        let Some(node) = node else { return self.judge_alone(id, queue, may_preempt) };
        self.world.ledger.pretend(node, &aside, 1);
        let verdict = self.judge_alone(id, queue, false);
        self.world.ledger.pretend(node, &aside, -1);
        verdict
    }

    /// The same as things are, room kept for itself not counted.
    fn judge_alone(&mut self, id: WorkloadId, queue: QueueId, may_preempt: bool) -> Verdict {
        let waits = |reason: Wait, watches: Vec<Watch>| Verdict::Waits { reason, watches, aim: None };
        let Some(asker) = self.asker(id, queue, may_preempt) else {
            return waits(Wait::Deactivated, Vec::new());
        };
        if let Some(variant) = self.admitted_sibling(id) {
            return waits(Wait::SiblingAdmitted { variant }, Vec::new());
        }
        let Some(shape) = self.entry(id).map(|entry| entry.workload.shape.clone()) else {
            return waits(Wait::Deactivated, Vec::new());
        };
        // Room kept for itself or for a sibling is room for the same job.
        let held = self.held_for(id);
        held.iter().for_each(|member| self.world.ledger.lift(*member));
        let mut verdict = assign::decide(&mut self.world, &asker, &shape);
        let forbidden = self.is_gated(id) || self.preempting_sibling(id).is_some();
        if forbidden && let Verdict::Preempts { watches, .. } = &mut verdict {
            // Who may not preempt takes what is free, even where preempting would have been preferred, and watches for it.
            let plain = Asker { may_preempt: false, ..asker };
            match assign::decide(&mut self.world, &plain, &shape) {
                Verdict::Waits { watches: more, .. } => watches.extend(more),
                fits => verdict = fits,
            }
        }
        held.iter().for_each(|member| self.world.ledger.restore(*member));
        match verdict {
            Verdict::Fits(_) if self.world.settings.block_until_ready => match self.unready.first() {
                Some(&workload) => waits(Wait::PodsNotReady { workload }, Vec::new()),
                None => verdict,
            },
            Verdict::Preempts { victims, watches, .. } if self.is_gated(id) => {
                waits(Wait::PreemptionGated { victims }, watches)
            }
            Verdict::Preempts { watches, .. } if self.preempting_sibling(id).is_some() => {
                let variant = self.preempting_sibling(id).unwrap_or(id);
                waits(Wait::SiblingPreempting { variant }, watches)
            }
            verdict => verdict,
        }
    }

    /// A sibling that is admitted and that this one may not take over from.
    fn admitted_sibling(&self, id: WorkloadId) -> Option<WorkloadId> {
        let workload: &Workload = &self.entry(id)?.workload;
        let group = workload.group?;
        let migration = self.migrations.get(&group).copied().unwrap_or_default();
        self.world.ledger.members(group).iter().copied().find(|member| {
            *member != id
                && self.world.ledger.booking(*member).is_some_and(|booking| {
                    booking.stage == Stage::Admitted
                        && match migration {
                            Migration::Never => true,
                            Migration::Upgrade { down_to } => {
                                workload.sibling >= booking.sibling
                                    || down_to.is_some_and(|last| workload.sibling > last)
                            }
                        }
                })
        })
    }

    /// A sibling that waits for its victims, or holds what it won while its checks run.
    fn preempting_sibling(&self, id: WorkloadId) -> Option<WorkloadId> {
        let ledger = &self.world.ledger;
        ledger.members(self.group(id)?).iter().copied().find(|member| {
            let waits = ledger.held(*member).is_some_and(|hold| !hold.victims.is_empty());
            let won = ledger.booking(*member).is_some_and(|booking| booking.won && booking.stage != Stage::Admitted);
            *member != id && (waits || won)
        })
    }

    fn settle(&mut self, order: Order, queue: QueueId, class: ClassId, verdict: Verdict, out: &mut Vec<Decision>) {
        match verdict {
            Verdict::Fits(assignment) => {
                self.leave_for_claim(order, queue, class);
                self.admit(order.workload, queue, assignment, false, out);
            }
            Verdict::Preempts { assignment, victims, .. } => {
                self.leave_for_claim(order, queue, class);
                self.preempt(order, queue, assignment, victims, out);
            }
            Verdict::Waits { reason, watches, aim } => self.park(order, queue, class, reason, watches, aim),
        }
    }

    /// As `leave`, but what it holds is replaced in one step by what it gets.
    fn leave_for_claim(&mut self, order: Order, queue: QueueId, class: ClassId) {
        self.waiting_for_ready.remove(&(queue, order.workload));
        let line = self.line_mut(queue);
        line.keeping.remove(&order.workload);
        line.leave(order, class);
        // The next of a strict line is the head now.
        if self.world.queue(queue).is_some_and(|queue| queue.strategy == Queueing::StrictFifo) {
            self.touched.insert(queue);
            self.refresh_placed(queue, order.workload);
        }
    }

    /// One left a strict line: what was set aside for it is free for those who move up.
    pub(crate) fn refresh_placed(&mut self, queue: QueueId, left: WorkloadId) {
        for (_, class) in self.placed(queue).into_iter().filter(|(order, _)| order.workload != left) {
            self.line_mut(queue).refresh(class);
        }
    }

    fn admit(&mut self, id: WorkloadId, queue: QueueId, assignment: Assignment, won: bool, out: &mut Vec<Decision>) {
        let checks = self
            .world
            .queue(queue)
            .map_or_else(Vec::new, |queue| queue.checks_for(assignment.flavors().collect::<Vec<_>>().into_iter()));
        let now = self.now;
        self.book(id, queue, assignment.usage.clone(), Stage::Assumed, now, won);
        out.push(Decision::Admit { workload: id, queue, assignment, checks });
    }

    fn preempt(
        &mut self,
        order: Order,
        queue: QueueId,
        assignment: Assignment,
        victims: Vec<Victim>,
        out: &mut Vec<Decision>,
    ) {
        let id = order.workload;
        let group = self.group(id);
        let usage = assignment.usage.clone();
        let mut leaving = BTreeSet::new();
        for victim in &victims {
            for part in self.world.ledger.unit(victim.workload).collect::<Vec<_>>() {
                self.world.ledger.amend(part, |booking| booking.leaving = true);
                leaving.insert(part);
            }
        }
        let hold = Hold { queue, assignment: assignment.clone(), victims: leaving, group };
        self.world.ledger.hold(id, hold, usage);
        self.line_mut(queue).holding.insert(order);
        if let Some(entry) = self.entry_mut(id) {
            entry.standing = Standing::Holding(queue);
        }
        self.turn_group(group);
        self.unreported.push(id);
        let victims: Vec<Victim> = victims.into_iter().filter(|victim| !victim.already_leaving).collect();
        if !victims.is_empty() {
            out.push(Decision::Preempt { workload: id, queue, assignment, victims });
        }
    }

    fn park(
        &mut self,
        order: Order,
        queue: QueueId,
        class: ClassId,
        reason: Wait,
        watches: Vec<Watch>,
        aim: Option<Assignment>,
    ) {
        if let Wait::PodsNotReady { .. } = reason {
            self.waiting_for_ready.insert((queue, order.workload));
        }
        let line = self.line_mut(queue);
        let turned = line.reason(class).is_some_and(|old| old.code() != reason.code());
        line.park(class, Arc::new(reason), watches);
        if turned {
            let members: Vec<WorkloadId> = line.members(class).map(|order| order.workload).collect();
            self.unreported.extend(members);
        } else {
            self.unreported.push(order.workload);
        }
        self.keep_for_head(order.workload, queue, aim);
    }

    /// The head of a strict line that could be had by preemption, had it candidates, keeps what it can of its quota from others, unless
    /// its queue can always take it back.
    fn keep_for_head(&mut self, id: WorkloadId, queue_id: QueueId, aim: Option<Assignment>) {
        let Some(queue) = self.world.queue(queue_id).cloned() else { return };
        let strict = queue.strategy == Queueing::StrictFifo && !self.is_placed(id);
        let keeps = strict && queue.preemption.reclaim != Reclaim::Any;
        let (Some(assignment), true) = (aim, keeps) else {
            self.drop_hold(id);
            return;
        };
        let Some(asker) = self.asker(id, queue_id, true) else { return };
        self.world.ledger.lift(id);
        let tree = &self.world.ledger.tree;
        let kept = |(cell, amount): (Cell, &Amount)| {
            let (quota, used) = (tree.quota(asker.node, cell), tree.usage(asker.node, cell));
            let most = match (assignment.borrowing > 0, quota.borrowing) {
                (true, None) => *amount,
                (true, Some(limit)) => (*amount).min(quota.nominal.plus(limit).minus(used)),
                (false, _) => (*amount).min(quota.nominal.minus(used)),
            };
            (cell, most.or_zero())
        };
        let usage: Usage = assign::extra(&self.world, &asker, &assignment.usage)
            .iter()
            .map(kept)
            .filter(|(_, amount)| *amount > Amount::ZERO)
            .collect();
        self.world.ledger.restore(id);
        if self.world.ledger.held(id).is_some_and(|hold| hold.assignment.usage == usage) {
            return;
        }
        self.world.ledger.release(id);
        self.line_mut(queue_id).keeping.remove(&id);
        if !usage.is_empty() {
            self.line_mut(queue_id).keeping.insert(id);
            let group = asker.group;
            let assignment = Assignment { usage: usage.clone(), ..assignment };
            self.world.ledger.hold(id, Hold { queue: queue_id, assignment, victims: BTreeSet::new(), group }, usage);
        }
    }

    fn report(&mut self, out: &mut Vec<Decision>) {
        for id in std::mem::take(&mut self.unreported) {
            let Some(reason) = self.reason(id) else { continue };
            let Some(entry) = self.entry_mut(id) else { continue };
            if entry.reported.as_ref().is_some_and(|old| old.alike(&reason)) {
                continue;
            }
            entry.reported = Some(reason.clone());
            out.push(Decision::Wait { workload: id, reason });
        }
    }

    /// Why a workload waits, with the numbers of the last look. None if it does not wait, or was not looked at yet.
    pub fn reason(&self, id: WorkloadId) -> Option<Arc<Wait>> {
        match &self.entry(id)?.standing {
            Standing::Booked => None,
            Standing::Out(reason) => Some(reason.clone()),
            Standing::Holding(_) => {
                let victims = self.world.ledger.held(id)?.victims.iter().copied().collect();
                Some(Arc::new(Wait::Preempting { victims }))
            }
            Standing::InLine(queue, class) => {
                let line = self.line(*queue)?;
                if self.world.queue(*queue)?.strategy == Queueing::StrictFifo {
                    if self.is_placed(id) {
                        return line.reason(*class).cloned();
                    }
                    let head = self.strict_head(line)?;
                    if !self.same_place(head, id) || line.reason(*class).is_none() {
                        return Some(Arc::new(Wait::BehindHead { head }));
                    }
                }
                line.reason(*class).cloned()
            }
        }
    }
}

fn level_of(verdict: &Verdict) -> u32 {
    match verdict {
        Verdict::Fits(assignment) | Verdict::Preempts { assignment, .. } => assignment.borrowing,
        Verdict::Waits { .. } => 0,
    }
}
