//! The nouns: ids, amounts, cells, and what the outside tells the scheduler about queues, cohorts, flavors and workloads.
//!
//! Plain data. Nothing here decides, and nothing here knows Kubernetes types: whoever calls has lowered its objects to these.

use std::collections::BTreeMap;
use std::sync::Arc;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A ResourceFlavor.
    FlavorId,
    /// A resource name; `ResourceId::PODS` is Kueue's reserved resource `pods`.
    ResourceId,
    /// A ClusterQueue.
    QueueId,
    /// A LocalQueue.
    LocalId,
    /// A Cohort, whether or not an object of that name exists.
    CohortId,
    /// An AdmissionCheck.
    CheckId,
    /// A Workload. Small and dense: it indexes tables, so numbers of gone workloads are to be used again.
    WorkloadId,
    /// Several workloads that count as one (the Variants of one Parent).
    GroupId,
}

impl ResourceId {
    pub const PODS: ResourceId = ResourceId(0);
}

/// Nanoseconds since the epoch, of whatever clock the caller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub i64);

/// A quantity in the smallest unit of its resource (thousandths of a cpu, bytes, pieces). `UNLIMITED` absorbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount(pub i64);

impl Amount {
    pub const ZERO: Amount = Amount(0);
    pub const UNLIMITED: Amount = Amount(i64::MAX);
    /// The most one workload may ask of one resource. Sums of bookings stay exact below it, so what is added can be taken away again.
    pub const LARGEST_REQUEST: Amount = Amount(1 << 53);

    pub fn plus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }

    /// Unlimited less anything bounded stays unlimited; unlimited less unlimited is nothing.
    pub fn minus(self, other: Amount) -> Amount {
        if self == Amount::UNLIMITED {
            return if other == Amount::UNLIMITED { Amount::ZERO } else { self };
        }
        Amount(self.0.saturating_sub(other.0))
    }

    pub fn times(self, count: u32) -> Amount {
        Amount(self.0.saturating_mul(i64::from(count)))
    }

    pub fn or_zero(self) -> Amount {
        self.max(Amount::ZERO)
    }
}

/// One flavor of one resource: what quota is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cell {
    pub flavor: FlavorId,
    pub resource: ResourceId,
}

impl Cell {
    pub fn new(flavor: FlavorId, resource: ResourceId) -> Self {
        Cell { flavor, resource }
    }
}

/// A small ordered map from cells, in one allocation. Worlds have few cells per queue and many queues.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellMap<T>(Vec<(Cell, T)>);

/// How much of which cells.
pub type Usage = CellMap<Amount>;

impl<T> Default for CellMap<T> {
    fn default() -> Self {
        CellMap(Vec::new())
    }
}

impl<T> CellMap<T> {
    pub fn get(&self, cell: Cell) -> Option<&T> {
        self.position(cell).ok().map(|at| &self.0[at].1)
    }

    pub fn entry(&mut self, cell: Cell) -> &mut T
    where
        T: Default,
    {
        let at = match self.position(cell) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (cell, T::default()));
                at
            }
        };
        &mut self.0[at].1
    }

    pub fn get_mut(&mut self, cell: Cell) -> Option<&mut T> {
        self.position(cell).ok().map(|at| &mut self.0[at].1)
    }

    pub fn remove(&mut self, cell: Cell) -> Option<T> {
        self.position(cell).ok().map(|at| self.0.remove(at).1)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Cell, &T)> {
        self.0.iter().map(|(cell, value)| (*cell, value))
    }

    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (Cell, &mut T)> {
        self.0.iter_mut().map(|(cell, value)| (*cell, value))
    }

    pub fn cells(&self) -> impl ExactSizeIterator<Item = Cell> + '_ {
        self.0.iter().map(|(cell, _)| *cell)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn position(&self, cell: Cell) -> Result<usize, usize> {
        // Most maps have one or two cells; a scan beats a binary search there.
        if self.0.len() <= 4 {
            for (at, (own, _)) in self.0.iter().enumerate() {
                if *own >= cell {
                    return if *own == cell { Ok(at) } else { Err(at) };
                }
            }
            return Err(self.0.len());
        }
        self.0.binary_search_by(|(own, _)| own.cmp(&cell))
    }
}

impl CellMap<Amount> {
    pub fn amount(&self, cell: Cell) -> Amount {
        self.get(cell).copied().unwrap_or_default()
    }

    pub fn add(&mut self, cell: Cell, amount: Amount) {
        let own = self.entry(cell);
        *own = own.plus(amount);
    }
}

impl<T> FromIterator<(Cell, T)> for CellMap<T> {
    fn from_iter<I: IntoIterator<Item = (Cell, T)>>(items: I) -> Self {
        let mut all: Vec<_> = items.into_iter().collect();
        all.sort_by_key(|(cell, _)| *cell);
        all.dedup_by_key(|(cell, _)| *cell);
        CellMap(all)
    }
}

/// What a queue or cohort has of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    pub nominal: Amount,
    /// None: no limit.
    pub borrowing: Option<Amount>,
    /// None: all of it may be lent.
    pub lending: Option<Amount>,
}

impl Quota {
    pub fn of(nominal: i64) -> Self {
        Quota { nominal: Amount(nominal), ..Quota::default() }
    }
}

/// Resources that get their flavor together, and the flavors in order of preference.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceGroup {
    pub resources: Vec<ResourceId>,
    pub flavors: Vec<FlavorId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Queueing {
    #[default]
    BestEffortFifo,
    StrictFifo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stop {
    #[default]
    None,
    /// Nothing new is admitted, and reservations that are not admitted yet are cancelled.
    Hold,
    /// As `Hold`, and what is admitted is evicted.
    HoldAndDrain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithinQueue {
    #[default]
    Never,
    LowerPriority,
    LowerOrNewerEqualPriority,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reclaim {
    #[default]
    Never,
    LowerPriority,
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BorrowWithin {
    #[default]
    Never,
    /// Workloads of lower priority may be preempted while borrowing, up to the threshold if there is one.
    LowerPriority { max_priority: Option<i64> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Preemption {
    pub within_queue: WithinQueue,
    pub reclaim: Reclaim,
    pub borrow: BorrowWithin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    #[default]
    BorrowingOverPreemption,
    PreemptionOverBorrowing,
}

/// When to look at the next flavor although this one would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fungibility {
    pub try_next_when_borrowing: bool,
    pub try_next_when_preempting: bool,
    pub preference: Preference,
}

impl Default for Fungibility {
    fn default() -> Self {
        Fungibility {
            try_next_when_borrowing: false,
            try_next_when_preempting: true,
            preference: Preference::default(),
        }
    }
}

/// A ClusterQueue.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queue {
    pub cohort: Option<CohortId>,
    pub groups: Vec<ResourceGroup>,
    pub quotas: CellMap<Quota>,
    pub strategy: Queueing,
    pub stop: Stop,
    pub preemption: Preemption,
    pub fungibility: Fungibility,
    /// A check and the flavors it is for; no flavors: for all.
    pub checks: Vec<(CheckId, Vec<FlavorId>)>,
    pub fair_weight: FairWeight,
    /// Being deleted: nothing new is admitted.
    pub terminating: bool,
}

/// A Cohort object. A cohort that queues name but nobody defined has no quota of its own and no parent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cohort {
    pub parent: Option<CohortId>,
    pub quotas: CellMap<Quota>,
    pub fair_weight: FairWeight,
}

/// A LocalQueue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalQueue {
    pub queue: QueueId,
    pub stop: Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct FairWeight(pub f64);

impl Default for FairWeight {
    fn default() -> Self {
        FairWeight(1.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    NoSchedule,
    NoExecute,
    PreferNoSchedule,
}

impl TaintEffect {
    pub fn wire(self) -> &'static str {
        match self {
            TaintEffect::NoSchedule => "NoSchedule",
            TaintEffect::NoExecute => "NoExecute",
            TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: TaintEffect,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    Equal,
    Exists,
    /// Both sides are numbers and the taint's is below (above) the toleration's.
    Lt,
    Gt,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Toleration {
    /// Empty with `Exists`: any key.
    pub key: String,
    pub operator: TolerationOperator,
    pub value: String,
    /// None: any effect.
    pub effect: Option<TaintEffect>,
}

/// A ResourceFlavor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flavor {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub tolerations: Vec<Toleration>,
    /// Its nodes are to be chosen by topology, which is not done here: queues that use it admit nothing.
    pub topology: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

/// Requirements that must all hold. The terms of an affinity are alternatives.
pub type Term = Vec<Requirement>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PodSet {
    pub name: String,
    pub count: u32,
    pub min_count: Option<u32>,
    /// Of one pod. `pods` is added by the scheduler where the queue covers it.
    pub requests: Vec<(ResourceId, Amount)>,
    pub tolerations: Vec<Toleration>,
    pub node_selector: Vec<(String, String)>,
    /// Required node affinity; empty: none.
    pub affinity: Vec<Term>,
    /// Pod sets with the same group get the same flavors.
    pub group: Option<String>,
    /// Flavors already settled (a slice takes its parent's): any other flavor does not fit.
    pub pinned: Vec<(ResourceId, FlavorId)>,
}

/// Everything about a workload's request that decides where it fits. Equal shapes wait as one class.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shape {
    pub pod_sets: Vec<PodSet>,
    /// Only these flavors; None: any.
    pub allowed: Option<Vec<FlavorId>>,
}

/// Why the outside keeps a workload out of line. The scheduler only passes it on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Block {
    /// The queue's namespaceSelector does not select the workload's namespace.
    NamespaceMismatch,
    /// Requests above limits, a LimitRange, an unsupported field: what is wrong, in words.
    Misconfigured(String),
    /// The annotation `kueue.x-k8s.io/admission-gated-by`.
    GatedBy(String),
    /// A check answered Retry or Rejected and the workload was not reset yet.
    FailedChecks,
    /// Requeued is False: who evicted it has not let it back yet.
    NotRequeued,
    /// One of a group whose time is still to come. It asks for nothing yet, and keeps the place of its group in line.
    NotYet,
}

/// A workload as the outside sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    pub local: LocalId,
    pub shape: Arc<Shape>,
    pub priority: i64,
    /// The timestamp that orders the queue: creation, or the eviction for some reasons.
    pub queued_at: Time,
    /// Breaks ties of time, the same after every restart; siblings share it.
    pub place: u64,
    /// Order among siblings, best first.
    pub sibling: u32,
    pub group: Option<GroupId>,
    /// A slice of this workload: it leaves with it and is no victim of its own.
    pub part_of: Option<WorkloadId>,
    pub active: bool,
    pub requeue_at: Option<Time>,
    pub block: Option<Block>,
    /// Some preemption gate is closed: it may be admitted, but nobody may be evicted for it.
    pub preemption_gated: bool,
}

impl Workload {
    pub fn new(local: LocalId, shape: Arc<Shape>) -> Self {
        Workload {
            local,
            shape,
            priority: 0,
            queued_at: Time(0),
            place: 0,
            sibling: 0,
            group: None,
            part_of: None,
            active: true,
            requeue_at: None,
            block: None,
            preemption_gated: false,
        }
    }
}

/// How far siblings of an admitted workload may still go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Migration {
    /// Better siblings keep trying, those after `down_to` do not.
    Upgrade { down_to: Option<u32> },
    /// Whoever is admitted first stays.
    #[default]
    Never,
}

/// The flavors, counts and amounts that one pod set got.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSetAssignment {
    pub count: u32,
    pub flavors: Vec<(ResourceId, FlavorId)>,
    /// Of the whole pod set.
    pub usage: Vec<(ResourceId, Amount)>,
}

/// Where a workload goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    pub pod_sets: Vec<PodSetAssignment>,
    pub usage: Usage,
    /// Height of the lowest subtree whose quota holds it; 0: its own queue's.
    pub borrowing: u32,
}

impl Assignment {
    /// Recomputes `usage` from the pod sets.
    pub fn total(pod_sets: &[PodSetAssignment]) -> Usage {
        let mut usage = Usage::default();
        for pod_set in pod_sets {
            for &(resource, amount) in &pod_set.usage {
                if let Some(&(_, flavor)) = pod_set.flavors.iter().find(|(own, _)| *own == resource)
                    && amount > Amount::ZERO
                {
                    usage.add(Cell::new(flavor, resource), amount);
                }
            }
        }
        usage
    }

    pub fn flavors(&self) -> impl Iterator<Item = FlavorId> + '_ {
        self.pod_sets.iter().flat_map(|pod_set| pod_set.flavors.iter().map(|(_, flavor)| *flavor))
    }
}

/// What holds for the whole scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    pub fair_sharing: Option<FairSharing>,
    /// Resources that the queue does not cover are not counted instead of refused.
    pub ignore_undeclared: bool,
    /// Nothing is admitted while an admitted workload's pods are not ready.
    pub block_until_ready: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FairStrategy {
    LessThanOrEqualToFinalShare,
    LessThanInitialShare,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairSharing {
    pub strategies: Vec<FairStrategy>,
}

impl Default for FairSharing {
    fn default() -> Self {
        FairSharing { strategies: vec![FairStrategy::LessThanOrEqualToFinalShare, FairStrategy::LessThanInitialShare] }
    }
}
