//! What is booked and who waits, as plain lists, and quota by the definitions (spec 3.2): slow and obvious.

use std::collections::{BTreeMap, BTreeSet};

use usher_sched::model::*;
use usher_sched::queue::Order;
use usher_sched::scheduler::Event;
use usher_sched::tally::{Counts, Figures};

#[derive(Debug, Clone)]
pub struct Booked {
    pub workload: Workload,
    pub assignment: Assignment,
    pub since: Time,
    pub assumed: bool,
    pub admitted: bool,
    pub leaving: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Book {
    pub queues: BTreeMap<u32, Queue>,
    pub cohorts: BTreeMap<u32, Cohort>,
    pub pending: BTreeMap<u32, Workload>,
    pub bookings: BTreeMap<u32, Booked>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Queue(u32),
    Cohort(u32),
}

impl Book {
    pub fn book(&mut self, id: u32, workload: Workload, assignment: Assignment, since: Time) {
        let booked = Booked { workload, assignment, since, assumed: true, admitted: false, leaving: false };
        self.bookings.insert(id, booked);
    }

    pub fn usage(&self, queue: u32) -> Usage {
        self.usage_of(queue, |_| true)
    }

    /// Everybody counted, a group once.
    pub fn figures(&self, queue: u32) -> Figures {
        let one = |id: &u32, workload: &Workload| workload.group.map_or((*id, false), |group| (group.0, true));
        let has_quota = |workload: &Workload| {
            let mut siblings = self.bookings.values().filter(|b| b.workload.group == workload.group && !b.assumed);
            workload.group.is_some() && siblings.any(|b| b.workload.local.0 == queue)
        };
        let pending: BTreeSet<_> = (self.pending.iter())
            .filter(|(_, workload)| workload.local.0 == queue && workload.active && !has_quota(workload))
            .map(|(id, workload)| one(id, workload))
            .collect();
        let booked = |counts: fn(&Booked) -> bool| {
            let booked = self.bookings.iter().filter(|(_, b)| b.workload.local.0 == queue && counts(b));
            booked.map(|(id, b)| one(id, &b.workload)).collect::<BTreeSet<_>>().len()
        };
        let counts = Counts {
            pending: pending.len(),
            reserving: booked(|booked| !booked.assumed),
            admitted: booked(|booked| !booked.assumed && booked.admitted),
        };
        let some = |usage: Usage| usage.iter().filter(|(_, n)| **n != Amount::ZERO).map(|(c, n)| (c, *n)).collect();
        Figures {
            counts,
            reserved: some(self.usage_of(queue, |booked| !booked.assumed)),
            admitted: some(self.usage_of(queue, |booked| !booked.assumed && booked.admitted)),
        }
    }

    /// Sum over workloads, the largest within a group.
    fn usage_of(&self, queue: u32, counts: impl Fn(&Booked) -> bool) -> Usage {
        let mut usage = Usage::default();
        let mut groups: BTreeMap<GroupId, Usage> = BTreeMap::new();
        for booked in self.bookings.values().filter(|booked| booked.workload.local.0 == queue && counts(booked)) {
            for (cell, amount) in booked.assignment.usage.iter() {
                match booked.workload.group {
                    None => usage.add(cell, *amount),
                    Some(group) => {
                        let most = groups.entry(group).or_default().entry(cell);
                        *most = (*most).max(*amount);
                    }
                }
            }
        }
        for group in groups.values() {
            group.iter().for_each(|(cell, amount)| usage.add(cell, *amount));
        }
        usage
    }

    pub fn usages(&self) -> BTreeMap<u32, Usage> {
        self.queues.keys().map(|id| (*id, self.usage(*id))).collect()
    }

    fn declared_parent(&self, node: Node) -> Option<Node> {
        let parent = match node {
            Node::Queue(id) => self.queues.get(&id)?.cohort,
            Node::Cohort(id) => self.cohorts.get(&id)?.parent,
        };
        parent.map(|id| Node::Cohort(id.0))
    }

    /// None also above a cycle.
    fn parent(&self, node: Node) -> Option<Node> {
        let mut at = node;
        for _ in 0..20 {
            match self.declared_parent(at) {
                Some(parent) => at = parent,
                None => return self.declared_parent(node),
            }
        }
        None
    }

    fn children(&self, node: Node) -> Vec<Node> {
        let queues = self.queues.keys().map(|id| Node::Queue(*id));
        let cohorts = self.cohorts.keys().map(|id| Node::Cohort(*id));
        queues.chain(cohorts).filter(|child| self.parent(*child) == Some(node)).collect()
    }

    fn quota(&self, node: Node, cell: Cell) -> Quota {
        let quotas = match node {
            Node::Queue(id) => self.queues.get(&id).map(|queue| &queue.quotas),
            Node::Cohort(id) => self.cohorts.get(&id).map(|cohort| &cohort.quotas),
        };
        quotas.and_then(|quotas| quotas.get(cell)).copied().unwrap_or_default()
    }

    fn subtree(&self, node: Node, cell: Cell) -> i64 {
        let lent = self.children(node).into_iter().map(|child| self.subtree(child, cell) - self.local(child, cell));
        self.quota(node, cell).nominal.0 + lent.sum::<i64>()
    }

    fn local(&self, node: Node, cell: Cell) -> i64 {
        self.quota(node, cell).lending.map_or(0, |lending| (self.subtree(node, cell) - lending.0).max(0))
    }

    fn used(&self, node: Node, cell: Cell, usages: &BTreeMap<u32, Usage>) -> i64 {
        match node {
            Node::Queue(id) => usages.get(&id).map_or(0, |usage| usage.amount(cell).0),
            Node::Cohort(_) => {
                let children = self.children(node);
                children
                    .into_iter()
                    .map(|child| (self.used(child, cell, usages) - self.local(child, cell)).max(0))
                    .sum()
            }
        }
    }

    fn available(&self, node: Node, cell: Cell, usages: &BTreeMap<u32, Usage>) -> i64 {
        let (subtree, local, used) = (self.subtree(node, cell), self.local(node, cell), self.used(node, cell, usages));
        let Some(parent) = self.parent(node) else {
            return subtree - used;
        };
        let above = self.available(parent, cell, usages);
        let above = match self.quota(node, cell).borrowing {
            Some(limit) => above.min(subtree - local - (used - local).max(0) + limit.0),
            None => above,
        };
        (local - used).max(0) + above
    }

    /// No node on the way up is above its limit and higher than before.
    pub fn check_limits(&self, queue: u32, before: &BTreeMap<u32, Usage>) -> Result<(), String> {
        let after = self.usages();
        let cells: Vec<Cell> = after.get(&queue).map_or_else(Vec::new, |usage| usage.cells().collect());
        let mut at = Some(Node::Queue(queue));
        while let Some(node) = at {
            for &cell in &cells {
                let (old, new) = (self.used(node, cell, before), self.used(node, cell, &after));
                let limit = match (self.parent(node), self.quota(node, cell).borrowing) {
                    (None, _) => self.subtree(node, cell),
                    (Some(_), Some(limit)) => self.subtree(node, cell) + limit.0,
                    (Some(_), None) => i64::MAX,
                };
                if new > old && new > limit {
                    return Err(format!("{node:?} uses {new} of {cell:?}, more than {limit}"));
                }
            }
            at = self.parent(node);
        }
        Ok(())
    }

    fn stands_in_line(&self, workload: &Workload, now: i64) -> bool {
        self.keeps_a_place(workload, now) && workload.block.is_none()
    }

    /// It stands in line, or its time is still to come.
    fn keeps_a_place(&self, workload: &Workload, now: i64) -> bool {
        let active = self.queues.get(&workload.local.0).is_some_and(|queue| queue.stop == Stop::None);
        let in_time = workload.block.is_some() || workload.requeue_at.is_none_or(|at| at.0 <= now);
        active && workload.active && in_time
    }

    /// Somebody of the same strict line who is ahead and still waits.
    pub fn ahead_in_strict_line(&self, id: u32, workload: &Workload, now: i64) -> Option<u32> {
        let queue = self.queues.get(&workload.local.0)?;
        if queue.strategy != Queueing::StrictFifo {
            return None;
        }
        // Who has quota through a sibling only moves up: it holds nobody up, and waits behind nobody.
        let has_place = |waiting: &Workload| {
            waiting.group.is_some() && self.bookings.values().any(|booked| booked.workload.group == waiting.group)
        };
        if has_place(workload) {
            return None;
        }
        let own = Order::of(WorkloadId(id), workload);
        let ahead = |other: u32, waiting: &Workload| {
            waiting.local == workload.local
                && self.keeps_a_place(waiting, now)
                && !has_place(waiting)
                && Order::of(WorkloadId(other), waiting) < own
                && (workload.group.is_none() || waiting.group != workload.group)
        };
        self.pending.iter().find(|(other, waiting)| ahead(**other, waiting)).map(|(other, _)| *other)
    }

    pub fn other_admitted(&self, id: u32) -> bool {
        let group = self.bookings.get(&id).and_then(|booked| booked.workload.group);
        group.is_some()
            && self
                .bookings
                .iter()
                .any(|(other, booked)| *other != id && booked.workload.group == group && booked.admitted)
    }

    pub fn other_admitted_better(&self, id: u32, workload: &Workload) -> bool {
        let better = |other: &u32, booked: &Booked| {
            *other != id
                && booked.workload.group == workload.group
                && booked.admitted
                && booked.workload.sibling < workload.sibling
        };
        workload.group.is_some() && self.bookings.iter().any(|(other, booked)| better(other, booked))
    }

    /// A waiting workload with one pod set, alone in its group, for which one flavor has room: nobody like that may be left waiting.
    pub fn fits_somewhere(&self, now: i64, inactive: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
        let usages = self.usages();
        for (id, workload) in &self.pending {
            let queue_id = workload.local.0;
            let queue = self.queues.get(&queue_id)?;
            let simple = workload.shape.pod_sets.len() == 1 && workload.group.is_none() && queue.groups.len() == 1;
            let strict = queue.strategy == Queueing::StrictFifo;
            if !simple || strict || inactive(queue_id) || !self.stands_in_line(workload, now) {
                continue;
            }
            let pod_set = &workload.shape.pod_sets[0];
            for flavor in &queue.groups[0].flavors {
                let allowed = workload.shape.allowed.as_ref().is_none_or(|allowed| allowed.contains(flavor));
                let count = pod_set.min_count.unwrap_or(pod_set.count);
                let fits = pod_set.requests.iter().all(|(resource, amount)| {
                    let free = self.available(Node::Queue(queue_id), Cell::new(*flavor, *resource), &usages);
                    amount.times(count).0 <= free.max(0)
                });
                if allowed && fits {
                    return Some((*id, flavor.0));
                }
            }
        }
        None
    }

    /// All of it as events, for a scheduler that starts anew.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (id, cohort) in &self.cohorts {
            events.push(Event::Cohort(CohortId(*id), Some(cohort.clone())));
        }
        for (id, queue) in &self.queues {
            events.push(Event::Queue(QueueId(*id), Some(queue.clone())));
        }
        for (id, booked) in &self.bookings {
            let workload = WorkloadId(*id);
            events.push(Event::Workload(workload, booked.workload.clone()));
            let (assignment, since, admitted) = (booked.assignment.clone(), booked.since, booked.admitted);
            events.push(Event::Reserved { workload, queue: None, assignment, since, admitted });
            if booked.leaving {
                events.push(Event::Evicting(workload));
            }
        }
        for (id, workload) in &self.pending {
            events.push(Event::Workload(WorkloadId(*id), workload.clone()));
        }
        events
    }
}
