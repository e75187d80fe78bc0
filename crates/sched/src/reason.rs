//! Why a workload waits, as a value with numbers, and the one place that turns it into a condition's reason and sentence.
//!
//! Two reasons that differ only in their numbers are `alike`: what was written to the API stays as it is, so that a busy queue does not
//! rewrite a million conditions. The numbers of the moment are there for who asks.

use crate::model::{Amount, Block, Cell, FlavorId, LocalId, QueueId, ResourceId, Shape, Taint, Time, WorkloadId};
use crate::names::Names;
use crate::preempt::Victim;
use crate::world::Inactive;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// `spec.active` is false.
    Deactivated,
    LocalQueueMissing {
        local: LocalId,
    },
    LocalQueueStopped {
        local: LocalId,
    },
    QueueInactive {
        queue: QueueId,
        why: Inactive,
    },
    /// `requeueAt` is ahead.
    Backoff {
        until: Time,
    },
    Blocked(Block),
    /// No flavor does, for these pod sets.
    Unplaced(Vec<Unplaced>),
    /// Those it preempted are still there; its room is kept.
    Preempting {
        victims: Vec<WorkloadId>,
    },
    /// It could be had by preemption, but a preemption gate is closed.
    PreemptionGated {
        victims: Vec<Victim>,
    },
    /// StrictFIFO: the head of the line goes first.
    BehindHead {
        head: WorkloadId,
    },
    /// A sibling is evicting others, or holds what it won that way while its checks run.
    SiblingPreempting {
        variant: WorkloadId,
    },
    /// A sibling is admitted, and this one may not take over.
    SiblingAdmitted {
        variant: WorkloadId,
    },
    /// Admission is blocked until the pods of this admitted workload are ready.
    PodsNotReady {
        workload: WorkloadId,
    },
}

/// Why no flavor does for one pod set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplaced {
    pub pod_set: usize,
    pub blockers: Vec<Blocker>,
    /// Resource groups are needed together, the flavors of one are alternatives: which group each blocker is of.
    pub groups: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    NotCovered {
        resource: ResourceId,
    },
    Mismatch {
        flavor: FlavorId,
        because: Mismatch,
    },
    /// More than there is, were everything free.
    ExceedsMaximum {
        cell: Cell,
        earlier: Amount,
        request: Amount,
        maximum: Amount,
    },
    ShortOf {
        cell: Cell,
        missing: Amount,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    NotAllowed,
    NotFound,
    Taint(Taint),
    Affinity,
    /// The workload's other pods are on this flavor.
    PinnedTo(Option<FlavorId>),
}

/// Reasons of QuotaReserved=False, as upstream spells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    PendingEvaluation,
    WaitingForQuota,
    ExceedsMaxQuota,
    NoMatchingFlavor,
    WaitingForPreemptedWorkloads,
    Misconfigured,
    Suspended,
    WaitingForPodsReady,
    AdmissionGated,
    OnHold,
}

impl Code {
    pub fn wire(self) -> &'static str {
        match self {
            Code::PendingEvaluation => "PendingEvaluation",
            Code::WaitingForQuota => "WaitingForQuota",
            Code::ExceedsMaxQuota => "ExceedsMaxQuota",
            Code::NoMatchingFlavor => "NoMatchingFlavor",
            Code::WaitingForPreemptedWorkloads => "WaitingForPreemptedWorkloads",
            Code::Misconfigured => "Misconfigured",
            Code::Suspended => "Suspended",
            Code::WaitingForPodsReady => "WaitingForPodsReady",
            Code::AdmissionGated => "AdmissionGated",
            Code::OnHold => "OnHold",
        }
    }
}

impl Wait {
    /// Whether it is in a queue at all: what is deactivated, gated by others or has no queue that takes it is not.
    pub fn is_queued(&self) -> bool {
        !matches!(
            self,
            Wait::Deactivated
                | Wait::LocalQueueMissing { .. }
                | Wait::LocalQueueStopped { .. }
                | Wait::Blocked(Block::GatedBy(_))
        )
    }

    /// Whether it asks for nothing yet, but stands for its group in line.
    pub fn is_to_come(&self) -> bool {
        matches!(self, Wait::Blocked(Block::NotYet))
    }

    pub fn code(&self) -> Code {
        match self {
            Wait::QueueInactive { why: Inactive::NotFound, .. } => Code::Misconfigured,
            Wait::Deactivated | Wait::QueueInactive { .. } | Wait::LocalQueueStopped { .. } => Code::Suspended,
            Wait::LocalQueueMissing { .. } => Code::Misconfigured,
            Wait::Backoff { .. } => Code::OnHold,
            Wait::Blocked(block) => match block {
                Block::NamespaceMismatch | Block::Misconfigured(_) => Code::Misconfigured,
                Block::GatedBy(_) => Code::AdmissionGated,
                Block::FailedChecks => Code::PendingEvaluation,
                Block::NotRequeued | Block::NotYet => Code::OnHold,
            },
            Wait::Unplaced(pod_sets) => pod_sets.iter().map(Unplaced::code).max().unwrap_or(Code::WaitingForQuota),
            Wait::Preempting { .. } => Code::WaitingForPreemptedWorkloads,
            Wait::PreemptionGated { .. } => Code::AdmissionGated,
            Wait::BehindHead { .. } | Wait::SiblingPreempting { .. } | Wait::SiblingAdmitted { .. } => {
                Code::PendingEvaluation
            }
            Wait::PodsNotReady { .. } => Code::WaitingForPodsReady,
        }
    }

    /// The same but for numbers and for who else is involved.
    pub fn alike(&self, other: &Wait) -> bool {
        match (self, other) {
            (Wait::Unplaced(a), Wait::Unplaced(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.alike(b)),
            (Wait::QueueInactive { queue: a, .. }, Wait::QueueInactive { queue: b, .. }) => {
                a == b && self.code() == other.code()
            }
            (Wait::Preempting { .. }, Wait::Preempting { .. })
            | (Wait::PreemptionGated { .. }, Wait::PreemptionGated { .. })
            | (Wait::BehindHead { .. }, Wait::BehindHead { .. })
            | (Wait::SiblingPreempting { .. }, Wait::SiblingPreempting { .. })
            | (Wait::SiblingAdmitted { .. }, Wait::SiblingAdmitted { .. })
            | (Wait::PodsNotReady { .. }, Wait::PodsNotReady { .. }) => true,
            (a, b) => a == b,
        }
    }

    /// The sentence of the condition.
    pub fn render(&self, shape: &Shape, names: &Names) -> String {
        match self {
            Wait::Deactivated => "The workload is deactivated".into(),
            Wait::LocalQueueMissing { local } => {
                format!("LocalQueue {} doesn't exist", short(names.locals.name(local.0)))
            }
            Wait::LocalQueueStopped { local } => {
                format!("LocalQueue {} is inactive", short(names.locals.name(local.0)))
            }
            Wait::QueueInactive { queue, why: Inactive::NotFound } => {
                format!("ClusterQueue {} doesn't exist", names.queues.name(queue.0))
            }
            Wait::QueueInactive { queue, .. } => format!("ClusterQueue {} is inactive", names.queues.name(queue.0)),
            Wait::Backoff { .. } => "The workload waits out its back-off before it is queued again".into(),
            Wait::Blocked(Block::NamespaceMismatch) => "Workload namespace doesn't match ClusterQueue selector".into(),
            Wait::Blocked(Block::Misconfigured(what)) => what.clone(),
            Wait::Blocked(Block::GatedBy(gates)) => format!("Admission is gated by: {gates}"),
            Wait::Blocked(Block::FailedChecks) => "The workload has failed admission checks".into(),
            Wait::Blocked(Block::NotRequeued) => "The workload was evicted and is not queued again yet".into(),
            Wait::Blocked(Block::NotYet) => "The variant does not try for quota yet".into(),
            Wait::Unplaced(pod_sets) => {
                pod_sets.iter().map(|unplaced| unplaced.render(shape, names)).collect::<Vec<_>>().join("; ")
            }
            Wait::Preempting { victims } => format!("Pending the preemption of {} workload(s)", victims.len()),
            Wait::PreemptionGated { .. } => "Workload requires preemption, but it's gated".into(),
            Wait::BehindHead { head } => {
                format!("The queue is strict and workload {} is ahead", names.workloads.name(head.0))
            }
            Wait::SiblingPreempting { variant } => {
                format!("Variant {} is already making room by preemption", names.workloads.name(variant.0))
            }
            Wait::SiblingAdmitted { .. } => "A more favorable variant is already admitted".into(),
            Wait::PodsNotReady { .. } => "waiting for all admitted workloads to be in PodsReady condition".into(),
        }
    }
}

/// A LocalQueue without its namespace, which is the workload's own.
fn short(local: &str) -> &str {
    local.rsplit('/').next().unwrap_or(local)
}

impl Unplaced {
    /// Flavors of a group are alternatives, so the mildest counts; groups are needed together, so the gravest does.
    fn code(&self) -> Code {
        let mut by_group: Vec<(usize, Code)> = Vec::new();
        for (blocker, group) in self.blockers.iter().zip(&self.groups) {
            match by_group.iter_mut().find(|(own, _)| own == group) {
                Some((_, code)) => *code = (*code).min(blocker.code()),
                None => by_group.push((*group, blocker.code())),
            }
        }
        by_group.into_iter().map(|(_, code)| code).max().unwrap_or(Code::NoMatchingFlavor)
    }

    fn alike(&self, other: &Unplaced) -> bool {
        self.pod_set == other.pod_set
            && self.blockers.len() == other.blockers.len()
            && self.blockers.iter().zip(&other.blockers).all(|(a, b)| a.alike(b))
    }

    fn render(&self, shape: &Shape, names: &Names) -> String {
        let pod_set = shape.pod_sets.get(self.pod_set).map_or("", |pod_set| pod_set.name.as_str());
        let mut reasons: Vec<String> = self.blockers.iter().map(|blocker| blocker.render(names)).collect();
        reasons.sort();
        format!("couldn't assign flavors to pod set {pod_set}: {}", reasons.join(", "))
    }
}

impl Blocker {
    fn code(&self) -> Code {
        match self {
            Blocker::NotCovered { .. } | Blocker::Mismatch { .. } => Code::NoMatchingFlavor,
            Blocker::ExceedsMaximum { .. } => Code::ExceedsMaxQuota,
            Blocker::ShortOf { .. } => Code::WaitingForQuota,
        }
    }

    fn alike(&self, other: &Blocker) -> bool {
        match (self, other) {
            (Blocker::ShortOf { cell: a, .. }, Blocker::ShortOf { cell: b, .. }) => a == b,
            (a, b) => a == b,
        }
    }

    fn render(&self, names: &Names) -> String {
        let flavor = |id: &FlavorId| names.flavors.name(id.0);
        match self {
            Blocker::NotCovered { resource } => {
                format!("resource {} unavailable in ClusterQueue", names.resources.name(resource.0))
            }
            Blocker::Mismatch { flavor: id, because } => match because {
                Mismatch::NotAllowed => format!("flavor {} is not among the workload's allowed flavors", flavor(id)),
                Mismatch::NotFound => format!("flavor {} not found", flavor(id)),
                Mismatch::Taint(taint) => {
                    let (key, value, effect) = (&taint.key, &taint.value, taint.effect.wire());
                    format!("untolerated taint {{{key} {value} {effect} <nil>}} in flavor {}", flavor(id))
                }
                Mismatch::Affinity => format!("flavor {} doesn't match node affinity", flavor(id)),
                Mismatch::PinnedTo(to) => format!(
                    "could not assign {} flavor since the original workload is assigned: {}",
                    flavor(id),
                    to.as_ref().map_or("", |to| flavor(to))
                ),
            },
            Blocker::ExceedsMaximum { cell, earlier, request, maximum } => format!(
                "insufficient quota for {} in flavor {}, previously considered podsets requests ({}) + current podset request ({}) > maximum capacity ({})",
                names.resources.name(cell.resource.0),
                flavor(&cell.flavor),
                names.quantity(cell.resource, *earlier),
                names.quantity(cell.resource, *request),
                names.quantity(cell.resource, *maximum),
            ),
            Blocker::ShortOf { cell, missing } => format!(
                "insufficient unused quota for {} in flavor {}, {} more needed",
                names.resources.name(cell.resource.0),
                flavor(&cell.flavor),
                names.quantity(cell.resource, *missing),
            ),
        }
    }
}
