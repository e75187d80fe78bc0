//! What the scheduler shows: positions, counts, usage, shares. Reads only.

use crate::fair::Share;
use crate::ledger::{Booking, Hold, Stage};
use crate::model::{Amount, Cell, CohortId, QueueId, Usage, WorkloadId};
use crate::scheduler::{Scheduler, Standing};
use crate::world::Inactive;

/// How many there are, a group counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub pending: usize,
    /// Quota reserved, admitted or not.
    pub reserving: usize,
    pub admitted: usize,
}

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

    /// Everybody who stands in line, in order, those for whom room is kept included.
    pub fn line_up(&self, queue: QueueId) -> Vec<WorkloadId> {
        self.line(queue).map_or_else(Vec::new, |line| line.everyone().into_iter().map(|order| order.workload).collect())
    }

    /// All waiting workloads of a queue, whether they stand in line or not, and what is booked. A group counts once.
    pub fn counts(&self, queue: QueueId) -> Counts {
        let mut pending = std::collections::BTreeSet::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if entry.standing != Standing::Booked && self.queue_of(&entry.workload) == Some(queue) {
                pending.insert(entry.workload.group.map_or((at as u32, false), |group| (group.0, true)));
            }
        }
        let mut counts = Counts { pending: pending.len(), ..Counts::default() };
        let mut reserving = std::collections::BTreeSet::new();
        let mut admitted = std::collections::BTreeSet::new();
        for (workload, booking) in self.world.ledger.booked(queue) {
            let one = booking.group.map_or((workload.0, false), |group| (group.0, true));
            reserving.insert(one);
            if booking.stage == Stage::Admitted {
                admitted.insert(one);
            }
        }
        counts.reserving = reserving.len();
        counts.admitted = admitted.len();
        counts
    }

    /// How many stand in line, without a walk.
    pub fn in_line(&self, queue: QueueId) -> usize {
        self.line(queue).map_or(0, |line| line.len() + line.holding.len())
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
