//! Preemption without fair sharing.
//!
//! Three kinds of candidates: those over whom the asker has a hierarchical advantage (its subtree has quota for it, theirs borrows),
//! those whom only priority decides about (where `borrowWithinCohort` and its threshold speak), and those of its own queue.

use super::{Order, Policy, Victim, Why, eligible, fill_back, fits, order, restore_all, within_quota};
use crate::model::{BorrowWithin, Cell, Queue, QueueId, Usage, WorkloadId};
use crate::quota::{NodeId, Owner, Tree};
use crate::world::{Asker, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    OwnQueue,
    HierarchicalReclaim,
    /// Only if the asker's queue does not borrow in the end.
    ReclaimWithoutBorrowing,
    ReclaimWhileBorrowing,
}

impl Kind {
    fn why(self) -> Why {
        match self {
            Kind::OwnQueue => Why::InClusterQueue,
            Kind::HierarchicalReclaim | Kind::ReclaimWithoutBorrowing => Why::InCohortReclamation,
            Kind::ReclaimWhileBorrowing => Why::InCohortReclaimWhileBorrowing,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    order: Order,
    workload: WorkloadId,
    queue: QueueId,
    node: NodeId,
    /// Where the paths of candidate and asker meet.
    meet: Option<NodeId>,
    kind: Kind,
    leaving: bool,
}

pub fn victims(world: &mut World, asker: &Asker, contested: &[Cell], extra: &Usage) -> Option<Vec<Victim>> {
    let queue = world.queue(asker.queue)?.clone();
    let mut own = own_queue(world, &queue, asker, contested);
    let (mut hierarchy, mut priority) = other_queues(world, &queue, asker, contested, extra);
    for list in [&mut own, &mut hierarchy, &mut priority] {
        list.sort_by_key(|candidate| candidate.order);
    }
    let from_others = !hierarchy.is_empty() || !priority.is_empty();
    let by_hierarchy = !hierarchy.is_empty();
    // Who is leaving anyway comes first, whatever its kind.
    let (mut all, rest): (Vec<_>, Vec<_>) =
        [hierarchy, priority, own].into_iter().flatten().partition(|candidate| candidate.leaving);
    all.extend(rest);

    let forbidden = queue.preemption.borrow == BorrowWithin::Never;
    let tree = &world.ledger.tree;
    let under_nominal =
        contested.iter().all(|cell| tree.usage(asker.node, *cell) < tree.quota(asker.node, *cell).nominal);
    let attempts: &[bool] = if !from_others || (forbidden && !under_nominal) {
        &[true]
    } else if forbidden && !by_hierarchy {
        &[false, true]
    } else {
        &[true, false]
    };
    attempts.iter().find_map(|may_borrow| attempt(world, asker, contested, extra, &all, *may_borrow))
}

fn attempt(
    world: &mut World,
    asker: &Asker,
    contested: &[Cell],
    extra: &Usage,
    candidates: &[Candidate],
    may_borrow: bool,
) -> Option<Vec<Victim>> {
    let mut taken: Vec<Victim> = Vec::new();
    for candidate in candidates {
        if !still_valid(&world.ledger.tree, asker, contested, candidate, may_borrow) {
            continue;
        }
        world.ledger.lift(candidate.workload);
        taken.push(Victim {
            workload: candidate.workload,
            queue: candidate.queue,
            why: candidate.kind.why(),
            already_leaving: candidate.leaving,
        });
        if fits(&world.ledger.tree, asker.node, extra, may_borrow) {
            fill_back(world, asker.node, extra, may_borrow, &mut taken);
            restore_all(world, &taken);
            return Some(taken);
        }
    }
    restore_all(world, &taken);
    None
}

/// Evicting others may have brought this candidate's queue, or a cohort between it and the asker, back to its quota.
fn still_valid(tree: &Tree, asker: &Asker, contested: &[Cell], candidate: &Candidate, may_borrow: bool) -> bool {
    if candidate.queue == asker.queue {
        return true;
    }
    if may_borrow && candidate.kind == Kind::ReclaimWithoutBorrowing {
        return false;
    }
    let below_meet = tree.ancestors(candidate.node).take_while(|node| Some(*node) != candidate.meet);
    std::iter::once(candidate.node).chain(below_meet).all(|node| !within_quota(tree, node, contested))
}

fn own_queue(world: &World, queue: &Queue, asker: &Asker, contested: &[Cell]) -> Vec<Candidate> {
    match Policy::within(queue) {
        Some(policy) => from_queue(world, asker, contested, asker.queue, policy, None, |_| Kind::OwnQueue),
        None => Vec::new(),
    }
}

/// Candidates of other queues: by hierarchical advantage, and by priority.
fn other_queues(
    world: &World,
    queue: &Queue,
    asker: &Asker,
    contested: &[Cell],
    extra: &Usage,
) -> (Vec<Candidate>, Vec<Candidate>) {
    let (mut hierarchy, mut priority) = (Vec::new(), Vec::new());
    let Some(policy) = Policy::reclaim(queue) else {
        return (hierarchy, priority);
    };
    let tree = &world.ledger.tree;
    let mut rest: Usage = extra.clone();
    let mut advantage = fits_quota(tree, asker.node, &mut rest);
    let mut done = asker.node;
    for top in tree.ancestors(asker.node) {
        let list = if advantage { &mut hierarchy } else { &mut priority };
        for id in above_quota(tree, top, done, contested) {
            list.extend(from_queue(world, asker, contested, id, policy, Some(top), |candidate| {
                if advantage {
                    return Kind::HierarchicalReclaim;
                }
                match queue.preemption.borrow {
                    BorrowWithin::LowerPriority { max_priority }
                        if candidate < asker.priority && max_priority.is_none_or(|max| candidate <= max) =>
                    {
                        Kind::ReclaimWhileBorrowing
                    }
                    _ => Kind::ReclaimWithoutBorrowing,
                }
            }));
        }
        advantage |= fits_quota(tree, top, &mut rest);
        done = top;
    }
    (hierarchy, priority)
}

/// Queues below `top` (but not below `done`, which was looked at before) that are above their quota, as are all cohorts on the way.
fn above_quota(tree: &Tree, top: NodeId, done: NodeId, contested: &[Cell]) -> Vec<QueueId> {
    let mut found = Vec::new();
    let mut open = vec![top];
    while let Some(at) = open.pop() {
        for &child in tree.children(at) {
            if child == done || within_quota(tree, child, contested) {
                continue;
            }
            match tree.owner(child) {
                Owner::Queue(id) => found.push(id),
                Owner::Cohort(_) => open.push(child),
            }
        }
    }
    found
}

/// Does the request fit the node's quota? What its local quota takes does not reach the parent.
fn fits_quota(tree: &Tree, node: NodeId, rest: &mut Usage) -> bool {
    let mut all = true;
    for (cell, amount) in rest.iter_mut() {
        all &= !tree.borrows_with(node, cell, *amount);
        *amount = amount.minus(tree.local_free(node, cell)).or_zero();
    }
    all
}

fn from_queue(
    world: &World,
    asker: &Asker,
    contested: &[Cell],
    queue: QueueId,
    policy: Policy,
    meet: Option<NodeId>,
    kind: impl Fn(i64) -> Kind,
) -> Vec<Candidate> {
    let Some(node) = world.ledger.tree.queue(queue) else {
        return Vec::new();
    };
    let bookings = world
        .ledger
        .booked(queue)
        .filter(|(workload, booking)| eligible(asker, *workload, booking, contested) && policy.allows(asker, booking));
    let candidate = |(workload, booking): (WorkloadId, &crate::ledger::Booking)| Candidate {
        order: order(asker, workload, booking),
        workload,
        queue,
        node,
        meet,
        kind: kind(booking.priority),
        leaving: booking.leaving,
    };
    bookings.map(candidate).collect()
}
