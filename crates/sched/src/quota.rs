//! The quota tree: queues under cohorts under cohorts, and how much of each cell is free where.
//!
//! Usage of a queue is what is booked there; usage of a cohort is what its children use beyond what only they may use. So the usage of
//! every node follows from the usage of the queues, and adding and taking away are exact inverses. Configuration changes only mark the
//! tree; `settle` computes what follows from them.
//!
//! Does not know workloads, and never refuses: a quota cut may leave a node above its quota, and then nothing is available there.

use crate::model::{Amount, Cell, CellMap, CohortId, FairWeight, QueueId, Quota, ResourceId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Queue(QueueId),
    Cohort(CohortId),
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    quota: Quota,
    /// Own quota and what the children lend.
    subtree: Amount,
    usage: Amount,
}

impl Level {
    /// What only this subtree may use, because of its lending limit.
    fn local(&self) -> Amount {
        self.quota.lending.map_or(Amount::ZERO, |lending| self.subtree.minus(lending).or_zero())
    }

    fn local_free(&self) -> Amount {
        self.local().minus(self.usage).or_zero()
    }

    fn beyond_local(&self) -> Amount {
        self.usage.minus(self.local()).or_zero()
    }
}

#[derive(Debug, Clone)]
struct Node {
    owner: Owner,
    declared_parent: Option<CohortId>,
    /// None also where the declared parents form a cycle.
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    cells: CellMap<Level>,
    weight: FairWeight,
    root: NodeId,
    height: u32,
    in_cycle: bool,
    /// What the subtree could have of each resource, over all flavors: the divisor of its children's shares.
    lendable: Vec<(ResourceId, Amount)>,
}

#[derive(Debug, Clone, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    queues: Vec<Option<NodeId>>,
    cohorts: Vec<Option<NodeId>>,
    stale: bool,
}

impl Tree {
    pub fn set_queue(&mut self, id: QueueId, cohort: Option<CohortId>, quotas: &CellMap<Quota>, weight: FairWeight) {
        let node = self.queue_node(id);
        self.configure(node, cohort, quotas, weight);
    }

    pub fn set_cohort(&mut self, id: CohortId, parent: Option<CohortId>, quotas: &CellMap<Quota>, weight: FairWeight) {
        let node = self.cohort_node(id);
        self.configure(node, parent, quotas, weight);
    }

    /// Works out parents, cycles, heights, subtree quotas and the usage of cohorts after changes of configuration.
    pub fn settle(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        self.link();
        let order = self.parents_first();
        for &id in order.iter().rev() {
            self.sum_up(id);
        }
        for &id in &order {
            self.nodes[id.0 as usize].lendable = self.lendable_of(id);
        }
    }

    /// Cohorts whose parents form a cycle, or lead into one.
    pub fn cycles(&self) -> Vec<CohortId> {
        let cohort = |node: &Node| match node.owner {
            Owner::Cohort(id) if node.in_cycle => Some(id),
            _ => None,
        };
        self.nodes.iter().filter_map(cohort).collect()
    }

    /// Changes what a queue uses, and what follows from it above. Answers the highest node whose usage changed.
    pub fn shift(&mut self, queue: NodeId, cell: Cell, by: Amount) -> NodeId {
        let mut at = queue;
        let mut by = by;
        loop {
            let node = &mut self.nodes[at.0 as usize];
            let level = node.cells.entry(cell);
            let before = level.beyond_local();
            level.usage = level.usage.plus(by);
            by = level.beyond_local().minus(before);
            match node.parent {
                Some(parent) if by != Amount::ZERO => at = parent,
                _ => return at,
            }
        }
    }

    /// What is free for the queue, borrowing included; negative where more is used than there is.
    pub fn free(&self, node: NodeId, cell: Cell) -> Amount {
        let mut best = Amount::UNLIMITED;
        let mut below = Amount::ZERO;
        let mut at = node;
        loop {
            let node = self.node(at);
            let level = node.level(cell);
            let Some(parent) = node.parent else {
                return best.min(below.plus(level.subtree.minus(level.usage)));
            };
            below = below.plus(level.local_free());
            if let Some(limit) = level.quota.borrowing {
                let stored = level.subtree.minus(level.local());
                best = best.min(below.plus(stored.minus(level.beyond_local()).plus(limit)));
            }
            at = parent;
        }
    }

    /// As `free`, never negative.
    pub fn available(&self, node: NodeId, cell: Cell) -> Amount {
        self.free(node, cell).or_zero()
    }

    /// The most the node could ever have: everything unused.
    pub fn potential(&self, node: NodeId, cell: Cell) -> Amount {
        let mut best = Amount::UNLIMITED;
        let mut below = Amount::ZERO;
        let mut at = node;
        loop {
            let node = self.node(at);
            let level = node.level(cell);
            let Some(parent) = node.parent else {
                return best.min(below.plus(level.subtree));
            };
            if let Some(limit) = level.quota.borrowing {
                best = best.min(below.plus(level.subtree).plus(limit));
            }
            below = below.plus(level.local());
            at = parent;
        }
    }

    /// Would the node use more than its subtree's quota with that much more?
    pub fn borrows_with(&self, node: NodeId, cell: Cell, more: Amount) -> bool {
        let level = self.node(node).level(cell);
        level.subtree < level.usage.plus(more)
    }

    pub fn borrows(&self, node: NodeId, cell: Cell) -> bool {
        self.borrows_with(node, cell, Amount::ZERO)
    }

    /// Height of the lowest subtree with quota for that much more (0: the queue itself), and whether it is smaller than the whole tree,
    /// so that quota lent outside of it may be reclaimed. Where none has it: the whole tree's height.
    pub fn height_that_fits(&self, queue: NodeId, cell: Cell, more: Amount) -> (u32, bool) {
        let Some(mut at) = self.node(queue).parent else {
            return (0, false);
        };
        if !self.borrows_with(queue, cell, more) {
            return (0, true);
        }
        let mut rest = more.minus(self.local_free(queue, cell));
        loop {
            let node = self.node(at);
            if !self.borrows_with(at, cell, rest) {
                return (node.height, node.parent.is_some());
            }
            rest = rest.minus(self.local_free(at, cell));
            match node.parent {
                Some(parent) => at = parent,
                None => return (node.height, false),
            }
        }
    }

    pub fn usage(&self, node: NodeId, cell: Cell) -> Amount {
        self.node(node).level(cell).usage
    }

    pub fn subtree(&self, node: NodeId, cell: Cell) -> Amount {
        self.node(node).level(cell).subtree
    }

    pub fn quota(&self, node: NodeId, cell: Cell) -> Quota {
        self.node(node).level(cell).quota
    }

    /// What only this subtree may use and does not.
    pub fn local_free(&self, node: NodeId, cell: Cell) -> Amount {
        self.node(node).level(cell).local_free()
    }

    /// The cells the node has quota or usage of, with subtree quota and usage.
    pub fn levels(&self, node: NodeId) -> impl Iterator<Item = (Cell, Amount, Amount)> + '_ {
        self.node(node).cells.iter().map(|(cell, level)| (cell, level.subtree, level.usage))
    }

    pub fn queue(&self, id: QueueId) -> Option<NodeId> {
        self.queues.get(id.index()).copied().flatten()
    }

    pub fn cohort(&self, id: CohortId) -> Option<NodeId> {
        self.cohorts.get(id.index()).copied().flatten()
    }

    pub fn owner(&self, node: NodeId) -> Owner {
        self.node(node).owner
    }

    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.node(node).parent
    }

    pub fn root(&self, node: NodeId) -> NodeId {
        self.node(node).root
    }

    pub fn in_cycle(&self, node: NodeId) -> bool {
        self.node(node).in_cycle
    }

    pub fn children(&self, node: NodeId) -> &[NodeId] {
        &self.node(node).children
    }

    pub fn weight(&self, node: NodeId) -> FairWeight {
        self.node(node).weight
    }

    pub fn lendable(&self, node: NodeId) -> &[(ResourceId, Amount)] {
        &self.node(node).lendable
    }

    /// Parent, its parent, and so on.
    pub fn ancestors(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.node(node).parent, |at| self.node(*at).parent)
    }

    /// The queues of a subtree, those nearest to its root first.
    pub fn queues_under(&self, node: NodeId) -> Vec<QueueId> {
        let mut found = Vec::new();
        let mut open = vec![node];
        let mut next = 0;
        while next < open.len() {
            let node = self.node(open[next]);
            next += 1;
            match node.owner {
                Owner::Queue(id) => found.push(id),
                Owner::Cohort(_) => open.extend(&node.children),
            }
        }
        found
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn configure(&mut self, id: NodeId, parent: Option<CohortId>, quotas: &CellMap<Quota>, weight: FairWeight) {
        if let Some(parent) = parent {
            self.cohort_node(parent);
        }
        let node = &mut self.nodes[id.0 as usize];
        node.declared_parent = parent;
        node.weight = weight;
        for (_, level) in node.cells.iter_mut() {
            level.quota = Quota::default();
        }
        for (cell, quota) in quotas.iter() {
            node.cells.entry(cell).quota = *quota;
        }
        self.stale = true;
    }

    /// The node of a queue, made if need be.
    pub fn queue_node(&mut self, id: QueueId) -> NodeId {
        if let Some(node) = self.queue(id) {
            return node;
        }
        let node = self.add(Owner::Queue(id));
        if self.queues.len() <= id.index() {
            self.queues.resize(id.index() + 1, None);
        }
        self.queues[id.index()] = Some(node);
        node
    }

    fn cohort_node(&mut self, id: CohortId) -> NodeId {
        if let Some(node) = self.cohort(id) {
            return node;
        }
        let node = self.add(Owner::Cohort(id));
        if self.cohorts.len() <= id.index() {
            self.cohorts.resize(id.index() + 1, None);
        }
        self.cohorts[id.index()] = Some(node);
        node
    }

    fn add(&mut self, owner: Owner) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Node {
            owner,
            declared_parent: None,
            parent: None,
            children: Vec::new(),
            cells: CellMap::default(),
            weight: FairWeight::default(),
            root: id,
            height: 0,
            in_cycle: false,
            lendable: Vec::new(),
        });
        self.stale = true;
        id
    }

    /// Sets effective parents and children; whatever leads into a cycle stands alone.
    fn link(&mut self) {
        let declared: Vec<Option<NodeId>> =
            self.nodes.iter().map(|node| node.declared_parent.and_then(|id| self.cohort(id))).collect();
        for node in &mut self.nodes {
            node.children.clear();
        }
        let cyclic = lead_into_cycle(&declared);
        for (at, parent) in declared.iter().enumerate() {
            self.nodes[at].in_cycle = cyclic[at];
            self.nodes[at].parent = if cyclic[at] { None } else { *parent };
            if let Some(parent) = self.nodes[at].parent {
                self.nodes[parent.0 as usize].children.push(NodeId(at as u32));
            }
        }
    }

    fn parents_first(&mut self) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = Vec::with_capacity(self.nodes.len());
        for at in 0..self.nodes.len() {
            if self.nodes[at].parent.is_none() {
                order.push(NodeId(at as u32));
            }
        }
        let mut next = 0;
        while next < order.len() {
            let id = order[next];
            next += 1;
            self.nodes[id.0 as usize].root = self.node(id).parent.map_or(id, |parent| self.node(parent).root);
            order.extend(self.nodes[id.0 as usize].children.iter());
        }
        order
    }

    fn sum_up(&mut self, id: NodeId) {
        let mut cells = std::mem::take(&mut self.nodes[id.0 as usize].cells);
        let is_queue = matches!(self.node(id).owner, Owner::Queue(_));
        let mut height = 0;
        for (_, level) in cells.iter_mut() {
            level.subtree = level.quota.nominal;
            if !is_queue {
                level.usage = Amount::ZERO;
            }
        }
        for &child in &self.node(id).children {
            let child = self.node(child);
            height = height.max(child.height + 1);
            for (cell, lower) in child.cells.iter() {
                let level = cells.entry(cell);
                level.subtree = level.subtree.plus(lower.subtree.minus(lower.local()));
                level.usage = level.usage.plus(lower.beyond_local());
            }
        }
        let node = &mut self.nodes[id.0 as usize];
        node.height = height;
        node.cells = cells;
    }

    fn lendable_of(&self, id: NodeId) -> Vec<(ResourceId, Amount)> {
        let mut lendable: Vec<(ResourceId, Amount)> = Vec::new();
        for cell in self.node(self.node(id).root).cells.cells() {
            let potential = self.potential(id, cell);
            match lendable.iter_mut().find(|(resource, _)| *resource == cell.resource) {
                Some((_, sum)) => *sum = sum.plus(potential),
                None => lendable.push((cell.resource, potential)),
            }
        }
        lendable.sort_by_key(|(resource, _)| *resource);
        lendable
    }
}

impl Node {
    fn level(&self, cell: Cell) -> Level {
        self.cells.get(cell).copied().unwrap_or_default()
    }
}

/// For each node of a graph of parents: does following them end in a cycle?
fn lead_into_cycle(parents: &[Option<NodeId>]) -> Vec<bool> {
    let mut verdict: Vec<Option<bool>> = vec![None; parents.len()];
    for start in 0..parents.len() {
        let mut path = Vec::new();
        let mut at = start;
        let cyclic = loop {
            if let Some(known) = verdict[at] {
                break known;
            }
            if path.len() > parents.len() {
                break true;
            }
            path.push(at);
            match parents[at] {
                Some(parent) => at = parent.0 as usize,
                None => break false,
            }
        };
        for at in path {
            verdict[at] = Some(cyclic);
        }
    }
    verdict.into_iter().map(|known| known.unwrap_or(false)).collect()
}

#[cfg(test)]
mod tests;
