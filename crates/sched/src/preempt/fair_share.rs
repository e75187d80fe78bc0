//! Preemption with fair sharing: take from who is furthest above its share, as long as the rules of the strategies allow.
//!
//! The asker's use is added first, because shares are compared as they would be. A queue that stays within its nominal quota takes back
//! what is its own whatever the shares. Shares are compared just below where the paths of asker and candidate meet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Order, Policy, Victim, Why, eligible, fill_back, fits, order, restore_all};
use crate::fair::Share;
use crate::model::{Cell, FairStrategy, QueueId, Usage, WorkloadId};
use crate::quota::{NodeId, Owner, Tree};
use crate::world::{Asker, World};

#[derive(Debug, Clone, Copy)]
struct Candidate {
    order: Order,
    workload: WorkloadId,
    leaving: bool,
}

pub fn victims(world: &mut World, asker: &Asker, contested: &[Cell], extra: &Usage) -> Option<Vec<Victim>> {
    let strategies = world.settings.fair_sharing.as_ref()?.strategies.clone();
    let candidates = candidates(world, asker, contested);
    if candidates.is_empty() {
        return None;
    }
    world.ledger.pretend(asker.node, extra, 1);
    let mut search = Search { world, asker, extra, taken: Vec::new() };
    let mut targets = Targets::new(asker, candidates);
    let first = strategies.first().copied().unwrap_or(FairStrategy::LessThanOrEqualToFinalShare);
    let within_nominal = contested.iter().all(|cell| !search.tree().borrows(asker.node, *cell));
    let mut left_over = BTreeMap::new();
    let mut done = search.first(&mut targets, first, within_nominal, &mut left_over);
    if !done && strategies.len() > 1 {
        done = search.second(&mut Targets::new(asker, left_over));
    }
    let mut taken = search.taken;
    world.ledger.pretend(asker.node, extra, -1);
    if done {
        fill_back(world, asker.node, extra, true, &mut taken);
    }
    restore_all(world, &taken);
    done.then_some(taken)
}

type ByQueue = BTreeMap<QueueId, VecDeque<Candidate>>;

fn candidates(world: &World, asker: &Asker, contested: &[Cell]) -> ByQueue {
    let tree = &world.ledger.tree;
    let mut found = ByQueue::new();
    let Some(queue) = world.queue(asker.queue) else {
        return found;
    };
    let mut take = |id: QueueId, policy: Policy| {
        let bookings = world.ledger.booked(id).filter(|(workload, booking)| {
            eligible(asker, *workload, booking, contested) && policy.allows(asker, booking)
        });
        let mut all: Vec<Candidate> = bookings
            .map(|(workload, booking)| Candidate {
                order: order(asker, workload, booking),
                workload,
                leaving: booking.leaving,
            })
            .collect();
        if !all.is_empty() {
            all.sort_by_key(|candidate| candidate.order);
            found.insert(id, all.into());
        }
    };
    if let Some(policy) = Policy::within(queue) {
        take(asker.queue, policy);
    }
    if let (Some(policy), Some(_)) = (Policy::reclaim(queue), tree.parent(asker.node)) {
        for id in tree.queues_under(tree.root(asker.node)) {
            let Some(node) = tree.queue(id) else { continue };
            if id != asker.queue && contested.iter().any(|cell| tree.borrows(node, *cell)) {
                take(id, policy);
            }
        }
    }
    found
}

struct Search<'a> {
    world: &'a mut World,
    asker: &'a Asker,
    extra: &'a Usage,
    taken: Vec<Victim>,
}

impl Search<'_> {
    fn tree(&self) -> &Tree {
        &self.world.ledger.tree
    }

    fn take(&mut self, queue: QueueId, candidate: Candidate, why: Why) -> bool {
        self.world.ledger.lift(candidate.workload);
        self.taken.push(Victim { workload: candidate.workload, queue, why, already_leaving: candidate.leaving });
        self.world.ledger.pretend(self.asker.node, self.extra, -1);
        let fits = fits(self.tree(), self.asker.node, self.extra, true);
        self.world.ledger.pretend(self.asker.node, self.extra, 1);
        fits
    }

    fn first(
        &mut self,
        targets: &mut Targets,
        rule: FairStrategy,
        within_nominal: bool,
        left_over: &mut ByQueue,
    ) -> bool {
        while let Some(id) = targets.next(self.tree()) {
            let unconditional = match (id == self.asker.queue, within_nominal) {
                (true, _) => Some(Why::InClusterQueue),
                (false, true) => Some(Why::InCohortReclamation),
                (false, false) => None,
            };
            if let Some(why) = unconditional {
                if let Some(candidate) = targets.pop(id)
                    && self.take(id, candidate, why)
                {
                    return true;
                }
                continue;
            }
            let Some((own, other)) = just_below_meet(self.tree(), self.asker.node, id) else {
                targets.drop(id);
                continue;
            };
            let (asker_share, old_share) = (Share::of(self.tree(), own), Share::of(self.tree(), other));
            while let Some(candidate) = targets.pop(id) {
                let passes = match rule {
                    FairStrategy::LessThanInitialShare => asker_share.compare(&old_share).is_lt(),
                    FairStrategy::LessThanOrEqualToFinalShare => {
                        self.world.ledger.lift(candidate.workload);
                        let new_share = Share::of(self.tree(), other);
                        self.world.ledger.restore(candidate.workload);
                        asker_share.compare(&new_share).is_le()
                    }
                };
                if !passes {
                    left_over.entry(id).or_default().push_back(candidate);
                    continue;
                }
                if self.take(id, candidate, Why::InCohortFairSharing) {
                    return true;
                }
                break; // Shares have changed: another queue may be the furthest above its share now.
            }
        }
        false
    }

    /// The second rule asks only whether the asker would stay below what the other has now; at most one of each queue.
    fn second(&mut self, targets: &mut Targets) -> bool {
        while let Some(id) = targets.next(self.tree()) {
            let below = just_below_meet(self.tree(), self.asker.node, id).is_some_and(|(own, other)| {
                Share::of(self.tree(), own).compare(&Share::of(self.tree(), other)).is_lt()
            });
            if let Some(candidate) = targets.pop(id)
                && below
                && self.take(id, candidate, Why::InCohortFairSharing)
            {
                return true;
            }
            targets.drop(id);
        }
        false
    }
}

/// The two nodes whose parent is the lowest cohort that has both queues below it.
fn just_below_meet(tree: &Tree, asker: NodeId, other: QueueId) -> Option<(NodeId, NodeId)> {
    let other = tree.queue(other)?;
    let meet = tree.ancestors(other).find(|node| tree.ancestors(asker).any(|own| own == *node))?;
    let below = |start: NodeId| {
        std::iter::once(start).chain(tree.ancestors(start)).find(|node| tree.parent(*node) == Some(meet))
    };
    Some((below(asker)?, below(other)?))
}

/// From which queue to take next: from the root down, always into the child with the highest share.
struct Targets<'a> {
    asker: &'a Asker,
    by_queue: ByQueue,
    pruned: BTreeSet<NodeId>,
    dropped: BTreeSet<QueueId>,
}

impl<'a> Targets<'a> {
    fn new(asker: &'a Asker, by_queue: ByQueue) -> Self {
        Targets { asker, by_queue, pruned: BTreeSet::new(), dropped: BTreeSet::new() }
    }

    fn pop(&mut self, id: QueueId) -> Option<Candidate> {
        self.by_queue.get_mut(&id)?.pop_front()
    }

    fn drop(&mut self, id: QueueId) {
        self.dropped.insert(id);
    }

    fn has(&self, id: QueueId) -> bool {
        !self.dropped.contains(&id) && self.by_queue.get(&id).is_some_and(|queue| !queue.is_empty())
    }

    fn next(&mut self, tree: &Tree) -> Option<QueueId> {
        let root = tree.root(self.asker.node);
        if root == self.asker.node {
            return self.has(self.asker.queue).then_some(self.asker.queue);
        }
        while !self.pruned.contains(&root) {
            if let Some(id) = self.descend(tree, root) {
                return Some(id);
            }
        }
        None
    }

    /// One walk down; None if it only found nodes to prune.
    fn descend(&mut self, tree: &Tree, root: NodeId) -> Option<QueueId> {
        let mut at = root;
        loop {
            let queue = self.highest_queue(tree, at);
            let cohort = self.highest_cohort(tree, at);
            match (cohort, queue) {
                (None, None) => {
                    self.pruned.insert(at);
                    return None;
                }
                (None, Some((id, _))) => return Some(id),
                (Some((node, _)), None) => at = node,
                (Some((node, cohort)), Some((id, queue))) => {
                    // On a tie the cohort: within it the most unfair one can be chosen.
                    if cohort.compare(&queue).is_lt() {
                        return Some(id);
                    }
                    at = node;
                }
            }
        }
    }

    fn highest_queue(&mut self, tree: &Tree, at: NodeId) -> Option<(QueueId, Share)> {
        let mut best: Option<(QueueId, Share)> = None;
        for &child in tree.children(at) {
            let Owner::Queue(id) = tree.owner(child) else { continue };
            if !self.has(id) {
                continue;
            }
            let share = Share::of(tree, child);
            if !share.is_borrowing() && id != self.asker.queue {
                self.drop(id);
                continue;
            }
            let wins = match &best {
                None => true,
                Some((own, highest)) => match share.compare(highest) {
                    std::cmp::Ordering::Greater => true,
                    std::cmp::Ordering::Equal => self.front(id) < self.front(*own),
                    std::cmp::Ordering::Less => false,
                },
            };
            if wins {
                best = Some((id, share));
            }
        }
        best
    }

    fn highest_cohort(&mut self, tree: &Tree, at: NodeId) -> Option<(NodeId, Share)> {
        let mut best: Option<(NodeId, Share)> = None;
        for &child in tree.children(at) {
            if !matches!(tree.owner(child), Owner::Cohort(_)) || self.pruned.contains(&child) {
                continue;
            }
            let share = Share::of(tree, child);
            // A cohort above the asker may be unbalanced within, so it is left only when all below it is.
            if !share.is_borrowing() && !tree.ancestors(self.asker.node).any(|node| node == child) {
                self.pruned.insert(child);
                continue;
            }
            if best.as_ref().is_none_or(|(_, highest)| share.compare(highest).is_ge()) {
                best = Some((child, share));
            }
        }
        best
    }

    fn front(&self, id: QueueId) -> Option<Order> {
        self.by_queue.get(&id)?.front().map(|candidate| candidate.order)
    }
}
