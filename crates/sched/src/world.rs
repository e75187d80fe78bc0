//! What the decisions are made from: configuration and the ledger. Holds no workload that waits.

use std::sync::Arc;

use crate::ledger::Ledger;
use crate::model::{
    CheckId, Flavor, FlavorId, GroupId, Queue, QueueId, Reclaim, ResourceGroup, ResourceId, Settings, Stop, Time,
    WorkloadId,
};
use crate::quota::NodeId;

#[derive(Debug, Clone, Default)]
pub struct World {
    pub ledger: Ledger,
    pub settings: Settings,
    queues: Vec<Option<Arc<Queue>>>,
    flavors: Vec<Option<Flavor>>,
    /// Some(active) where the check exists.
    checks: Vec<Option<bool>>,
}

/// Who asks for room.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    pub workload: WorkloadId,
    pub queue: QueueId,
    pub node: NodeId,
    pub priority: i64,
    pub queued_at: Time,
    pub group: Option<GroupId>,
    pub part_of: Option<WorkloadId>,
    /// False: look only for what is free.
    pub may_preempt: bool,
}

/// Why a queue admits nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Inactive {
    NotFound,
    Terminating,
    Stopped,
    FlavorNotFound(Vec<FlavorId>),
    CheckNotFound(Vec<CheckId>),
    CheckInactive(Vec<CheckId>),
    /// These flavors have a topology, which nothing here places by.
    Topology(Vec<FlavorId>),
    CohortCycle,
}

impl World {
    /// Shared, so that it can be kept at hand while the ledger is changed by pretending.
    pub fn queue(&self, id: QueueId) -> Option<&Arc<Queue>> {
        self.queues.get(id.index())?.as_ref()
    }

    pub fn queue_ids(&self) -> impl Iterator<Item = QueueId> + '_ {
        (0..self.queues.len() as u32).map(QueueId).filter(|id| self.queue(*id).is_some())
    }

    pub fn flavor(&self, id: FlavorId) -> Option<&Flavor> {
        self.flavors.get(id.index())?.as_ref()
    }

    pub fn set_queue(&mut self, id: QueueId, queue: Option<Queue>) {
        let (cohort, quotas, weight) = match &queue {
            Some(queue) => (queue.cohort, queue.quotas.clone(), queue.fair_weight),
            None => Default::default(),
        };
        self.ledger.tree.set_queue(id, cohort, &quotas, weight);
        put(&mut self.queues, id.index(), queue.map(Arc::new));
    }

    pub fn set_flavor(&mut self, id: FlavorId, flavor: Option<Flavor>) {
        put(&mut self.flavors, id.index(), flavor);
    }

    pub fn set_check(&mut self, id: CheckId, active: Option<bool>) {
        put(&mut self.checks, id.index(), active);
    }

    /// The first reason why a queue admits nothing.
    pub fn inactive(&self, id: QueueId) -> Option<Inactive> {
        self.problems(id).into_iter().next()
    }

    /// All reasons why a queue admits nothing, in the order upstream names them. One that is gone or going has no other.
    pub fn problems(&self, id: QueueId) -> Vec<Inactive> {
        let Some(queue) = self.queue(id) else {
            return vec![Inactive::NotFound];
        };
        if queue.terminating {
            return vec![Inactive::Terminating];
        }
        let check = |id: &CheckId| self.checks.get(id.index()).copied().flatten();
        let checks = |is: &dyn Fn(Option<bool>) -> bool| -> Vec<CheckId> {
            queue.checks.iter().map(|(id, _)| *id).filter(|id| is(check(id))).collect()
        };
        let flavors = |is: &dyn Fn(Option<&Flavor>) -> bool| -> Vec<FlavorId> {
            queue.groups.iter().flat_map(|group| &group.flavors).copied().filter(|id| is(self.flavor(*id))).collect()
        };
        let in_cycle = self.ledger.tree.queue(id).is_some_and(|node| self.ledger.tree.in_cycle(node));
        let some = |ids: Vec<FlavorId>, why: fn(Vec<FlavorId>) -> Inactive| (!ids.is_empty()).then(|| why(ids));
        let some_check = |ids: Vec<CheckId>, why: fn(Vec<CheckId>) -> Inactive| (!ids.is_empty()).then(|| why(ids));
        [
            (queue.stop != Stop::None).then_some(Inactive::Stopped),
            some(flavors(&|flavor| flavor.is_none()), Inactive::FlavorNotFound),
            some_check(checks(&|active| active.is_none()), Inactive::CheckNotFound),
            some_check(checks(&|active| active == Some(false)), Inactive::CheckInactive),
            some(flavors(&|flavor| flavor.is_some_and(|flavor| flavor.topology)), Inactive::Topology),
            in_cycle.then_some(Inactive::CohortCycle),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    pub fn fair(&self) -> bool {
        self.settings.fair_sharing.is_some()
    }
}

impl Queue {
    pub fn group_of(&self, resource: ResourceId) -> Option<&ResourceGroup> {
        self.groups.iter().find(|group| group.resources.contains(&resource))
    }

    /// May anyone be evicted for a workload of this queue?
    pub fn preempts(&self) -> bool {
        self.preemption.within_queue != crate::model::WithinQueue::Never || self.preemption.reclaim != Reclaim::Never
    }

    /// The checks that an assignment to these flavors has to pass, in order.
    pub fn checks_for(&self, flavors: impl Iterator<Item = FlavorId> + Clone) -> Vec<CheckId> {
        let applies = |on: &Vec<FlavorId>| on.is_empty() || flavors.clone().any(|flavor| on.contains(&flavor));
        self.checks.iter().filter(|(_, on)| applies(on)).map(|(check, _)| *check).collect()
    }
}

fn put<T>(table: &mut Vec<Option<T>>, at: usize, value: Option<T>) {
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    table[at] = value;
}
