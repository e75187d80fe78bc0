//! What the scheduler shows: positions, counts, usage, shares. Reads only.

use std::collections::BTreeMap;

use crate::fair::Share;
use crate::ledger::{Booking, Hold, Stage};
use crate::model::{Amount, Cell, CohortId, GroupId, LocalId, Queue, QueueId, Queueing, Usage, WorkloadId};
use crate::queue::{Line, Order};
use crate::quota::Owner;
use crate::scheduler::Scheduler;
use crate::tally::{Changed, Figures};
use crate::world::Inactive;

/// What one queue has of a cell that somebody else is short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub queue: QueueId,
    pub used: Amount,
    pub borrowed: Amount,
}

impl Scheduler {
    /// Why a queue admits nothing, if so.
    pub fn inactive(&self, queue: QueueId) -> Option<Inactive> {
        self.line(queue).map_or(Some(Inactive::NotFound), |line| line.inactive.clone())
    }

    /// All reasons why a queue admits nothing.
    pub fn problems(&self, queue: QueueId) -> Vec<Inactive> {
        self.world.problems(queue)
    }

    /// Cohorts whose parents form a cycle.
    pub fn cycles(&self) -> Vec<CohortId> {
        self.world.ledger.tree.cycles()
    }

    pub fn booking(&self, workload: WorkloadId) -> Option<&Booking> {
        self.world.ledger.booking(workload)
    }

    /// The room that is kept for a workload.
    pub fn hold(&self, workload: WorkloadId) -> Option<&Hold> {
        self.world.ledger.held(workload)
    }

    /// Workloads that room is kept for.
    pub fn holders(&self) -> Vec<WorkloadId> {
        self.world.ledger.holders().collect()
    }

    /// What the bookings of a queue use, room that is kept aside.
    pub fn usage(&self, queue: QueueId) -> Usage {
        self.world.ledger.usage(queue)
    }

    /// How much of a cell a queue uses beyond its nominal quota.
    pub fn borrowed(&self, queue: QueueId, cell: Cell) -> Amount {
        let nominal = self
            .world
            .queue(queue)
            .and_then(|queue| queue.quotas.get(cell))
            .map_or(Amount::ZERO, |quota| quota.nominal);
        self.usage(queue).amount(cell).minus(nominal).or_zero()
    }

    /// Who has what of a cell in the tree of a queue, the most first.
    pub fn holders_of(&self, queue: QueueId, cell: Cell) -> Vec<Holder> {
        let tree = &self.world.ledger.tree;
        let Some(node) = tree.queue(queue) else { return Vec::new() };
        let mut holders: Vec<Holder> = (tree.queues_under(tree.root(node)).into_iter())
            .map(|queue| Holder { queue, used: self.usage(queue).amount(cell), borrowed: self.borrowed(queue, cell) })
            .filter(|holder| holder.used > Amount::ZERO)
            .collect();
        holders.sort_by_key(|holder| (std::cmp::Reverse(holder.used), holder.queue));
        holders
    }

    /// Who waits for a queue, in order, after this place; parked or not, in line or not.
    pub fn line_after(&self, queue: QueueId, place: Option<Order>, most: usize) -> Vec<Order> {
        self.line(queue).map_or_else(Vec::new, |line| line.after(place, most))
    }

    /// Everybody who waits for a queue, in order.
    pub fn line_up(&self, queue: QueueId) -> Vec<WorkloadId> {
        self.line_after(queue, None, usize::MAX).into_iter().map(|order| order.workload).collect()
    }

    /// How many wait for and have quota of a queue, and how much. Costs the same however many there are.
    pub fn figures(&self, queue: QueueId) -> Figures {
        self.tally.queue(queue)
    }

    /// The same for those who came through one local queue.
    pub fn local_figures(&self, local: LocalId) -> Figures {
        self.tally.local(local)
    }

    /// Whose figures, configuration or state have changed since this was last asked.
    pub fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.tally.changed)
    }

    /// Of those who wait: how many are looked at as soon as it is their turn, and how many not before something changes. A group is
    /// looked at when any of its members is.
    pub fn active_and_parked(&self, queue: QueueId) -> (usize, usize) {
        let pending = self.figures(queue).counts.pending;
        let Some(line) = self.line(queue) else { return (0, pending) };
        let strict = self.world.queue(queue).is_some_and(|queue| queue.strategy == Queueing::StrictFifo);
        let (members, groups) = self.parked_groups(line, strict);
        let parked = match (&line.inactive, strict) {
            (Some(_), _) => pending,
            (None, true) => line.outside.len() - members + groups,
            (None, false) => line.outside.len() + line.parked_len() - members + groups,
        };
        let parked = parked.min(pending);
        (pending - parked, parked)
    }

    /// How many members of groups are parked or outside, and how many groups wait with all of their members like that.
    fn parked_groups(&self, line: &Line, strict: bool) -> (usize, usize) {
        let mut groups: BTreeMap<GroupId, bool> = BTreeMap::new();
        let mut members = 0;
        if !self.groups.is_empty() {
            let outside = line.outside.iter().filter_map(|order| Some((self.group(order.workload)?, true, 1)));
            let holding = line.holding.iter().filter_map(|order| Some((self.group(order.workload)?, false, 1)));
            let in_line = line.heads().filter_map(|(_, class)| {
                let (group, _) = line.key(class).group?;
                Some((group, !strict && !line.is_fresh(class), line.members(class).count()))
            });
            for (group, parked, count) in outside.chain(holding).chain(in_line) {
                members += if parked { count } else { 0 };
                *groups.entry(group).or_insert(true) &= parked;
            }
        }
        let waits = |group: &GroupId| {
            let mut bookings = self.world.ledger.members(*group).iter().filter_map(|id| self.booking(*id));
            bookings.all(|booking| booking.stage == Stage::Assumed)
        };
        (members, groups.iter().filter(|(group, parked)| **parked && waits(group)).count())
    }

    /// Whether a workload waits only for a better place: a sibling of it has quota.
    pub fn has_quota_through_a_sibling(&self, workload: WorkloadId) -> bool {
        self.is_placed(workload)
    }

    /// Whether nobody has quota of a queue, decisions that are not confirmed yet included.
    pub fn is_unused(&self, queue: QueueId) -> bool {
        self.world.ledger.booked(queue).next().is_none()
    }

    /// A queue as it was last described.
    pub fn queue(&self, queue: QueueId) -> Option<&Queue> {
        self.world.queue(queue).map(|queue| &**queue)
    }

    /// The cohorts above a queue, the nearest first, the root left out: it borrows from nobody.
    pub fn cohorts_above(&self, queue: QueueId) -> Vec<CohortId> {
        let mut above = self.cohorts_of(queue);
        above.pop();
        above
    }

    /// The cohorts a queue is in, the nearest first.
    pub fn cohorts_of(&self, queue: QueueId) -> Vec<CohortId> {
        let tree = &self.world.ledger.tree;
        let Some(node) = tree.queue(queue).filter(|node| !tree.in_cycle(*node)) else { return Vec::new() };
        let cohort = |node| match tree.owner(node) {
            Owner::Cohort(id) => Some(id),
            Owner::Queue(_) => None,
        };
        tree.ancestors(node).filter_map(cohort).collect()
    }

    /// The cohort at the top of the tree of a queue.
    pub fn root_cohort(&self, queue: QueueId) -> Option<CohortId> {
        let tree = &self.world.ledger.tree;
        let node = tree.queue(queue).filter(|node| !tree.in_cycle(*node))?;
        match tree.owner(tree.root(node)) {
            Owner::Cohort(id) => Some(id),
            Owner::Queue(_) => None,
        }
    }

    pub fn is_fair(&self) -> bool {
        self.world.fair()
    }

    pub fn queue_share(&self, queue: QueueId) -> Option<Share> {
        let tree = &self.world.ledger.tree;
        Some(Share::of(tree, tree.queue(queue)?))
    }

    pub fn cohort_share(&self, cohort: CohortId) -> Option<Share> {
        let tree = &self.world.ledger.tree;
        Some(Share::of(tree, tree.cohort(cohort)?))
    }
}
