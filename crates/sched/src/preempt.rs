//! Whom to evict so that a workload fits.
//!
//! Candidates use a contested cell and may be preempted by policy: in the workload's own queue, or in queues of its cohort tree that use
//! more than their quota. They are taken away one by one, the least worth keeping first, until the workload fits; then those that turn out
//! not to be needed are put back, the most worth keeping first. `classical` takes them by rank and by who is nearer to the quota,
//! `fair_share` by who is furthest above its share.
//!
//! Works on the ledger by pretending, and leaves it as it was. Issues nothing.

pub mod classical;
pub mod fair_share;

use std::cmp::Reverse;

use crate::ledger::Booking;
use crate::model::{Amount, BorrowWithin, Cell, Queue, QueueId, Reclaim, Time, Usage, WithinQueue, WorkloadId};
use crate::quota::{NodeId, Tree};
use crate::world::{Asker, World};

/// Upstream's reasons of the condition Preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    InClusterQueue,
    InCohortReclamation,
    InCohortFairSharing,
    InCohortReclaimWhileBorrowing,
}

impl Why {
    pub fn wire(self) -> &'static str {
        match self {
            Why::InClusterQueue => "InClusterQueue",
            Why::InCohortReclamation => "InCohortReclamation",
            Why::InCohortFairSharing => "InCohortFairSharing",
            Why::InCohortReclaimWhileBorrowing => "InCohortReclaimWhileBorrowing",
        }
    }

    /// The words of the message on the victim.
    pub fn words(self) -> &'static str {
        match self {
            Why::InClusterQueue => "prioritization in the ClusterQueue",
            Why::InCohortReclamation => "reclamation within the cohort",
            Why::InCohortFairSharing => "Fair Sharing within the cohort",
            Why::InCohortReclaimWhileBorrowing => "reclamation within the cohort while borrowing",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    pub workload: WorkloadId,
    pub queue: QueueId,
    pub why: Why,
    /// It is being evicted already, for another reason or another workload.
    pub already_leaving: bool,
}

/// Who would have to leave so that `extra` fits; None if no permitted set is enough. `contested` are the cells that are short.
pub fn victims(world: &mut World, asker: &Asker, contested: &[Cell], extra: &Usage) -> Option<Vec<Victim>> {
    let found = if world.fair() {
        fair_share::victims(world, asker, contested, extra)
    } else {
        classical::victims(world, asker, contested, extra)
    };
    found.filter(|victims| !victims.is_empty())
}

/// The most of a cell that evicting others could make free for the asker: never too little, often exact. It keeps searches that cannot
/// succeed from being made, and decides who is woken when somebody's use changes.
pub fn most_to_gain(world: &World, asker: &Asker, cell: Cell, need: Amount) -> Amount {
    let Some(queue) = world.queue(asker.queue) else {
        return Amount::ZERO;
    };
    let tree = &world.ledger.tree;
    let nominal = tree.quota(asker.node, cell).nominal;
    // The same condition as in the assignment: who would borrow may preempt only if the policy says so.
    let may =
        nominal >= need || tree.height_that_fits(asker.node, cell, need).1 || preempts_while_borrowing(world, queue);
    if !may {
        return Amount::ZERO;
    }
    let own = match queue.preemption.within_queue {
        WithinQueue::Never => Amount::ZERO,
        WithinQueue::LowerPriority => world.ledger.used_by_priority(asker.queue, cell, asker.priority, false),
        WithinQueue::LowerOrNewerEqualPriority => {
            world.ledger.used_by_priority(asker.queue, cell, asker.priority, true)
        }
    };
    own.plus(most_to_reclaim(world, queue, asker, cell, need, own))
}

fn most_to_reclaim(world: &World, queue: &Queue, asker: &Asker, cell: Cell, need: Amount, own: Amount) -> Amount {
    let tree = &world.ledger.tree;
    if queue.preemption.reclaim == Reclaim::Never || tree.parent(asker.node).is_none() {
        return Amount::ZERO;
    }
    if !preempts_while_borrowing(world, queue) {
        // Reclaiming is for what is within quota: the queue's own, after its own evictions, or that of a cohort above it.
        let within_own = tree.usage(asker.node, cell).minus(own).plus(need) <= tree.subtree(asker.node, cell);
        if !within_own && !fits_some_ancestor(tree, asker.node, cell, need) {
            return Amount::ZERO;
        }
    }
    // All that queues above their quota use, as far as priorities allow to take it.
    let mut sum = Amount::ZERO;
    for id in tree.queues_under(tree.root(asker.node)) {
        let above = tree.queue(id).is_some_and(|node| tree.borrows(node, cell));
        if id != asker.queue && above {
            let (up_to, inclusive) = match queue.preemption.reclaim {
                Reclaim::Any => (i64::MAX, true),
                _ => (asker.priority, false),
            };
            sum = sum.plus(world.ledger.used_by_priority(id, cell, up_to, inclusive));
        }
    }
    sum
}

fn fits_some_ancestor(tree: &Tree, queue: NodeId, cell: Cell, need: Amount) -> bool {
    let mut rest = need.minus(tree.local_free(queue, cell)).or_zero();
    for node in tree.ancestors(queue) {
        if tree.parent(node).is_none() {
            return false; // Nobody is outside of the whole tree.
        }
        if !tree.borrows_with(node, cell, rest) {
            return true;
        }
        rest = rest.minus(tree.local_free(node, cell)).or_zero();
    }
    false
}

pub fn preempts_while_borrowing(world: &World, queue: &Queue) -> bool {
    queue.preemption.borrow != BorrowWithin::Never || (world.fair() && queue.preemption.reclaim != Reclaim::Never)
}

#[derive(Debug, Clone, Copy)]
enum Policy {
    LowerPriority,
    LowerOrNewerEqualPriority,
    Any,
}

impl Policy {
    fn within(queue: &Queue) -> Option<Policy> {
        match queue.preemption.within_queue {
            WithinQueue::Never => None,
            WithinQueue::LowerPriority => Some(Policy::LowerPriority),
            WithinQueue::LowerOrNewerEqualPriority => Some(Policy::LowerOrNewerEqualPriority),
        }
    }

    fn reclaim(queue: &Queue) -> Option<Policy> {
        match queue.preemption.reclaim {
            Reclaim::Never => None,
            Reclaim::LowerPriority => Some(Policy::LowerPriority),
            Reclaim::Any => Some(Policy::Any),
        }
    }

    fn allows(self, asker: &Asker, booking: &Booking) -> bool {
        let lower = asker.priority > booking.priority;
        match self {
            Policy::Any => true,
            Policy::LowerPriority => lower,
            Policy::LowerOrNewerEqualPriority => {
                lower || (asker.priority == booking.priority && asker.queued_at < booking.queued_at)
            }
        }
    }
}

/// Order of candidates: already leaving, other queues, lower priority, newest reservation, latest place.
type Order = (Reverse<bool>, bool, i64, Reverse<Time>, Reverse<u64>, WorkloadId);

fn order(asker: &Asker, workload: WorkloadId, booking: &Booking) -> Order {
    let (priority, since, place, workload) = booking.rank(workload);
    (Reverse(booking.leaving), booking.queue == asker.queue, priority, since, place, workload)
}

/// May this booking be evicted for the asker, policies of priority aside? Siblings are alternatives of one job, slices leave with their
/// parent, and a slice that asks does not evict its own job.
fn eligible(asker: &Asker, workload: WorkloadId, booking: &Booking, contested: &[Cell]) -> bool {
    workload != asker.workload
        && booking.part_of.is_none()
        && asker.part_of != Some(workload)
        && (asker.group.is_none() || booking.group != asker.group)
        && contested.iter().any(|cell| booking.usage.amount(*cell) > Amount::ZERO)
}

fn within_quota(tree: &Tree, node: NodeId, cells: &[Cell]) -> bool {
    cells.iter().all(|cell| !tree.borrows(node, *cell))
}

fn fits(tree: &Tree, node: NodeId, extra: &Usage, may_borrow: bool) -> bool {
    extra.iter().all(|(cell, amount)| {
        (may_borrow || !tree.borrows_with(node, cell, *amount)) && *amount <= tree.available(node, cell)
    })
}

/// Puts back whom it turns out not to need, in reverse order of taking away.
fn fill_back(world: &mut World, node: NodeId, extra: &Usage, may_borrow: bool, taken: &mut Vec<Victim>) {
    for at in (0..taken.len().saturating_sub(1)).rev() {
        world.ledger.restore(taken[at].workload);
        if fits(&world.ledger.tree, node, extra, may_borrow) {
            taken.remove(at);
        } else {
            world.ledger.lift(taken[at].workload);
        }
    }
}

fn restore_all(world: &mut World, taken: &[Victim]) {
    for victim in taken {
        world.ledger.restore(victim.workload);
    }
}
