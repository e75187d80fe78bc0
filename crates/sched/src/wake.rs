//! What changed since the last look, sorted by who can benefit.
//!
//! The keys a wait can have, and what turns each:
//!
//! | key | turned by |
//! |---|---|
//! | capacity of a cell in a subtree | less use of the cell, as far up the tree as it shows |
//! | preemption candidates | more use of the cell (somebody's admission), a changed priority, a changed stage |
//! | a fair share | any change of use in the tree, where shares decide |
//! | configuration | a queue, cohort, flavor, check, local queue or setting was set or removed |
//! | a timer | `requeueAt` has passed |
//! | a gate, or itself | the workload was changed |
//! | a sibling | a member of its group got, lost or turned a claim |
//! | readiness | all admitted workloads have their pods ready |
//!
//! The last five make a class fresh; the first three are the marks below.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::Change;
use crate::model::{Cell, QueueId};
use crate::quota::{NodeId, Tree};

/// What happened to one cell: to whom it can matter.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    freed_everywhere: bool,
    grew_everywhere: bool,
    freed_in: BTreeSet<QueueId>,
    grew_in: BTreeSet<QueueId>,
}

/// What happened in one tree.
#[derive(Debug, Clone, Default)]
pub struct Mark {
    /// Queues with classes to look at in any case.
    pub fresh: BTreeSet<QueueId>,
    pub cells: BTreeMap<Cell, Reach>,
    /// Shares have changed.
    pub shares: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Marks(BTreeMap<NodeId, Mark>);

impl Marks {
    pub fn fresh(&mut self, tree: &Tree, queue: QueueId) {
        if let Some(node) = tree.queue(queue) {
            self.0.entry(tree.root(node)).or_default().fresh.insert(queue);
        }
    }

    pub fn change(&mut self, tree: &Tree, change: Change) {
        let Some(node) = tree.queue(change.queue) else { return };
        let mark = self.0.entry(tree.root(node)).or_default();
        mark.shares = true;
        let reach = mark.cells.entry(change.cell).or_default();
        // What stays within a queue's local quota is seen by nobody else. What grew can be taken from outside only above quota.
        let inside = change.top == node && tree.parent(node).is_some();
        match (change.grew, inside) {
            (false, true) => drop(reach.freed_in.insert(change.queue)),
            (false, false) => reach.freed_everywhere = true,
            (true, inside) => {
                reach.grew_in.insert(change.queue);
                reach.grew_everywhere |= !inside && tree.borrows(node, change.cell);
            }
        }
    }

    pub fn take_first(&mut self) -> Option<(NodeId, Mark)> {
        self.0.pop_first()
    }
}

impl Mark {
    /// Cells of which a queue's waiting classes may now get more, by capacity or, if it preempts at all, by preemption.
    pub fn concerns(&self, queue: QueueId, preempts: bool, cell: Cell, fair: bool) -> bool {
        if fair && preempts && self.shares {
            return true;
        }
        let Some(reach) = self.cells.get(&cell) else {
            return false;
        };
        let freed = reach.freed_everywhere || reach.freed_in.contains(&queue);
        freed || (preempts && (reach.grew_everywhere || reach.grew_in.contains(&queue)))
    }

    /// Did anything get free?
    pub fn freed(&self) -> bool {
        self.cells.values().any(|reach| reach.freed_everywhere || !reach.freed_in.is_empty())
    }

    /// The queues it can matter to, or None: all of the tree.
    pub fn queues(&self, fair: bool) -> Option<BTreeSet<QueueId>> {
        let mut queues = self.fresh.clone();
        for reach in self.cells.values() {
            if reach.freed_everywhere || reach.grew_everywhere {
                return None;
            }
            queues.extend(reach.freed_in.iter().chain(&reach.grew_in));
        }
        if fair && self.shares { None } else { Some(queues) }
    }
}
