//! Fair shares: how far a queue or cohort is above its quota, as a part of what its cohort could lend, divided by its weight.
//!
//! The largest such part over all resources counts (dominant resource share). Shares order the line between queues (`tournament`) and
//! pick whom to preempt from (`order_of_targets` in `preempt`). Floating point as upstream's, over ordered cells, so that ties fall alike.

use std::cmp::Ordering;

use crate::model::{Amount, Cell, ResourceId, Usage};
use crate::quota::{NodeId, Tree};

#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Thousandths of what can be lent, before the weight.
    pub ratio: f64,
    pub weight: f64,
    /// Cells of which more than the subtree's quota is used.
    pub borrowed: Vec<Cell>,
}

impl Share {
    /// Below every share: where a search for the largest begins.
    pub const NONE: Share = Share { ratio: -1.0, weight: 1.0, borrowed: Vec::new() };

    /// The dominant resource share of a node.
    pub fn of(tree: &Tree, node: NodeId) -> Share {
        let mut share = Share { ratio: 0.0, weight: tree.weight(node).0, borrowed: Vec::new() };
        let Some(parent) = tree.parent(node) else {
            return share;
        };
        let mut borrowed: Vec<(ResourceId, Amount)> = Vec::new();
        for (cell, quota, usage) in tree.levels(node) {
            let above = usage.minus(quota);
            if above <= Amount::ZERO {
                continue;
            }
            share.borrowed.push(cell);
            match borrowed.iter_mut().find(|(resource, _)| *resource == cell.resource) {
                Some((_, sum)) => *sum = sum.plus(above),
                None => borrowed.push((cell.resource, above)),
            }
        }
        for (resource, amount) in borrowed {
            let lendable =
                tree.lendable(parent).iter().find(|(own, _)| *own == resource).map_or(Amount::ZERO, |(_, sum)| *sum);
            if lendable > Amount::ZERO {
                share.ratio = share.ratio.max(amount.0 as f64 * 1000.0 / lendable.0 as f64);
            }
        }
        share
    }

    pub fn is_borrowing(&self) -> bool {
        !self.borrowed.is_empty()
    }

    pub fn is_borrowing_on(&self, usage: &Usage) -> bool {
        self.borrowed.iter().any(|cell| usage.amount(*cell) > Amount::ZERO)
    }

    /// Infinite where a weight of zero borrows.
    pub fn weighted(&self) -> f64 {
        match (self.ratio == 0.0, self.weight == 0.0) {
            (true, _) => 0.0,
            (false, true) => f64::INFINITY,
            (false, false) => self.ratio / self.weight,
        }
    }

    /// What status and metrics show: rounded up, the largest number for infinite.
    pub fn rounded(&self) -> i64 {
        if self.weighted().is_infinite() { i64::MAX } else { self.weighted().ceil() as i64 }
    }

    /// The lower share is served first, the higher one gives first.
    pub fn compare(&self, other: &Share) -> Ordering {
        let zero_weight_borrows = |share: &Share| share.weight == 0.0 && share.ratio != 0.0;
        match (zero_weight_borrows(self), zero_weight_borrows(other)) {
            (true, true) => self.ratio.total_cmp(&other.ratio),
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.weighted().total_cmp(&other.weighted()),
        }
    }
}

/// One queue's best workload in the contest for who is next.
#[derive(Debug, Clone)]
pub struct Entry<K> {
    pub node: NodeId,
    /// What it would use.
    pub usage: Usage,
    /// Settles ties of shares: priority, time, place.
    pub key: K,
}

/// Which entry is next: at each cohort the child that would have the lowest share after admission wins, a child that would not borrow
/// what its entry asks for before one that would.
pub fn tournament<K: Ord>(tree: &mut Tree, root: NodeId, entries: &[Entry<K>]) -> Option<usize> {
    // For each entry, the shares of its queue and of each cohort above it, were it admitted: leaf first, without the root.
    let mut shares: Vec<Vec<(NodeId, Share)>> = Vec::with_capacity(entries.len());
    for entry in entries {
        shift(tree, entry, 1);
        let path = std::iter::once(entry.node).chain(tree.ancestors(entry.node)).filter(|node| *node != root);
        shares.push(path.map(|node| (node, Share::of(tree, node))).collect());
        shift(tree, entry, -1);
    }
    let better = |a: usize, b: usize, depth_a: usize, depth_b: usize| {
        let (share_a, share_b) = (&shares[a][depth_a].1, &shares[b][depth_b].1);
        let borrows = |share: &Share, at: usize| share.is_borrowing_on(&entries[at].usage);
        (borrows(share_a, a).cmp(&borrows(share_b, b)))
            .then_with(|| share_a.compare(share_b))
            .then_with(|| entries[a].key.cmp(&entries[b].key))
            .is_lt()
    };
    // From the deepest cohorts up: the winner below each node.
    let mut winners: Vec<(NodeId, usize, usize)> = (0..entries.len()).map(|at| (entries[at].node, at, 0)).collect();
    loop {
        if winners.iter().all(|(node, ..)| *node == root || tree.parent(*node) == Some(root)) {
            break;
        }
        // Lift those whose path is longest by one level, keeping the best of each cohort.
        let left = |at: usize, depth: usize| shares[at].len() - depth;
        let longest = winners.iter().map(|(_, at, depth)| left(*at, *depth)).max().unwrap_or(0);
        let (deep, mut rest): (Vec<_>, Vec<_>) =
            winners.into_iter().partition(|(_, at, depth)| left(*at, *depth) == longest);
        let mut lifted: std::collections::BTreeMap<NodeId, (usize, usize)> = std::collections::BTreeMap::new();
        for (node, at, depth) in deep {
            let Some(parent) = tree.parent(node) else { continue };
            match lifted.get(&parent) {
                Some((best, best_depth)) if !better(at, *best, depth, *best_depth) => {}
                _ => {
                    lifted.insert(parent, (at, depth));
                }
            }
        }
        rest.extend(lifted.into_iter().map(|(node, (at, depth))| (node, at, depth + 1)));
        winners = rest;
    }
    // What is left are children of the root (or a queue without a cohort).
    let mut best: Option<(usize, usize)> = None;
    for (_, at, depth) in winners {
        let wins = match best {
            Some((own, own_depth)) if depth < shares[at].len() && own_depth < shares[own].len() => {
                better(at, own, depth, own_depth)
            }
            Some(_) => false,
            None => true,
        };
        if wins {
            best = Some((at, depth));
        }
    }
    best.map(|(at, _)| at)
}

fn shift<K>(tree: &mut Tree, entry: &Entry<K>, sign: i64) {
    for (cell, amount) in entry.usage.iter() {
        tree.shift(entry.node, cell, Amount(amount.0 * sign));
    }
}
