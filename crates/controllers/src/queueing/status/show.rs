//! What the status of a queue comes to: pure, from the scheduler's state and the object as it is.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use usher_api::kueue::admission_check::AdmissionCheckStatus;
use usher_api::kueue::cluster_queue::{ClusterQueueStatus, FlavorUsage, ResourceUsage};
use usher_api::kueue::cohort::CohortStatus;
use usher_api::kueue::conditions::{self, ClusterQueueReason, LocalQueueReason, QueueCondition};
use usher_api::kueue::fair_sharing::FairSharingStatus;
use usher_api::kueue::local_queue::{LocalQueueFlavorUsage, LocalQueueResourceUsage, LocalQueueStatus};
use usher_api::kueue::quota::StopPolicy;
use usher_api::kueue::{AdmissionCheck, ClusterQueue, Cohort, LocalQueue};
use usher_sched::model::{Amount, Cell, CheckId, CohortId, LocalId, Queue, QueueId, Usage};
use usher_sched::tally::Counts;
use usher_sched::world::Inactive;

use crate::queueing::scheduler::book::Book;
use crate::queueing::scheduler::lower;

/// Whose status it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Queue(QueueId),
    Local(LocalId),
    Cohort(CohortId),
    Check(CheckId),
}

/// Controllers of checks that are not here, and what they would be there for.
const NOT_HERE: [(&str, &str); 2] =
    [("kueue.x-k8s.io/multikueue", "MultiKueue"), ("kueue.x-k8s.io/provisioning-request", "ProvisioningRequest")];

/// What a check is for that nobody here does.
pub fn unsupported(check: &AdmissionCheck) -> Option<&'static str> {
    NOT_HERE.iter().find(|(name, _)| *name == check.spec.controller_name).map(|(_, what)| *what)
}

pub fn cluster_queue(book: &Book, id: QueueId, object: &ClusterQueue, now: Timestamp) -> ClusterQueueStatus {
    let scheduler = book.scheduler();
    let figures = scheduler.figures(id);
    let (reason, message) = readiness(book, id);
    let mut status = object.status.clone();
    activate(
        &mut status.conditions,
        reason == ClusterQueueReason::Ready,
        reason.as_str(),
        &message,
        object.metadata.generation,
        now,
    );
    let queue = scheduler.queue(id);
    status.flavors_reservation = queue.map_or_else(Vec::new, |queue| flavors(book, queue, &figures.reserved));
    status.flavors_usage = queue.map_or_else(Vec::new, |queue| flavors(book, queue, &figures.admitted));
    status.pending_workloads = number(figures.counts.pending);
    status.reserving_workloads = number(figures.counts.reserving);
    status.admitted_workloads = number(figures.counts.admitted);
    let share = scheduler.queue_share(id).filter(|_| scheduler.is_fair());
    status.fair_sharing = share.map(|share| FairSharingStatus { weighted_share: share.rounded() });
    status
}

pub fn local_queue(book: &Book, id: LocalId, object: &LocalQueue, now: Timestamp) -> LocalQueueStatus {
    let scheduler = book.scheduler();
    let queue = book.words.names.queues.find(&object.spec.cluster_queue).map(QueueId);
    let found = queue.and_then(|id| scheduler.queue(id));
    let stopped = !matches!(object.spec.stop_policy, None | Some(StopPolicy::None));
    let (reason, message) = match (found, queue.map(|id| scheduler.inactive(id))) {
        _ if stopped => (LocalQueueReason::Stopped, "LocalQueue is stopped"),
        (None, _) => (LocalQueueReason::ClusterQueueDoesNotExist, "Can't submit new workloads to clusterQueue"),
        (Some(_), Some(None)) => (LocalQueueReason::Ready, "Can submit new workloads to localQueue"),
        (Some(_), _) => (LocalQueueReason::ClusterQueueIsInactive, "Can't submit new workloads to clusterQueue"),
    };
    let mut figures = scheduler.local_figures(id);
    if stopped {
        figures.counts.pending = 0;
    }
    let mut status = object.status.clone();
    let active = reason == LocalQueueReason::Ready;
    activate(&mut status.conditions, active, reason.as_str(), message, object.metadata.generation, now);
    let Counts { pending, reserving, admitted } = figures.counts;
    status.pending_workloads = number(pending);
    status.reserving_workloads = number(reserving);
    status.admitted_workloads = number(admitted);
    status.flavors_reservation = found.map_or_else(Vec::new, |queue| local_flavors(book, queue, &figures.reserved));
    status.flavors_usage = found.map_or_else(Vec::new, |queue| local_flavors(book, queue, &figures.admitted));
    status
}

pub fn cohort(book: &Book, id: CohortId, object: &Cohort) -> CohortStatus {
    let scheduler = book.scheduler();
    let share = scheduler.cohort_share(id).filter(|_| scheduler.is_fair());
    let mut status = object.status.clone();
    status.fair_sharing = share.map(|share| FairSharingStatus { weighted_share: share.rounded() });
    status
}

/// Checks are their controllers' business. Those that have none here, and never will, say so.
pub fn check(object: &AdmissionCheck, now: Timestamp) -> AdmissionCheckStatus {
    let mut status = object.status.clone();
    if let Some(what) = unsupported(object) {
        let message =
            format!("{what} is not supported; ClusterQueues with this check admit nothing until it is removed");
        activate(&mut status.conditions, false, "NotSupported", &message, object.metadata.generation, now);
    }
    status
}

/// The condition Active, in upstream's words where upstream has them.
pub fn readiness(book: &Book, id: QueueId) -> (ClusterQueueReason, String) {
    let mut reasons = Vec::new();
    let mut messages = Vec::new();
    for problem in book.scheduler().problems(id) {
        match problem {
            Inactive::NotFound => return (ClusterQueueReason::Unknown, "ClusterQueue not found".to_owned()),
            Inactive::Terminating => {
                let message = "Can't admit new workloads; clusterQueue is terminating";
                return (ClusterQueueReason::Terminating, message.to_owned());
            }
            Inactive::CheckInactive(checks) => {
                let (not_here, idle): (Vec<CheckId>, Vec<CheckId>) =
                    checks.into_iter().partition(|check| book.is_unsupported(*check));
                if !not_here.is_empty() {
                    reasons.push(ClusterQueueReason::AdmissionCheckNotSupported);
                    messages.push(format!("references not supported AdmissionCheck(s): {}", list(&not_here, book)));
                }
                if !idle.is_empty() {
                    reasons.push(ClusterQueueReason::AdmissionCheckInactive);
                    messages.push(format!("references inactive AdmissionCheck(s): {}", list(&idle, book)));
                }
            }
            Inactive::CheckNotFound(checks) => {
                reasons.push(ClusterQueueReason::AdmissionCheckNotFound);
                messages.push(format!("references missing AdmissionCheck(s): {}", list(&checks, book)));
            }
            Inactive::FlavorNotFound(flavors) => {
                let names: Vec<&str> = flavors.iter().map(|id| book.words.names.flavors.name(id.0)).collect();
                reasons.push(ClusterQueueReason::FlavorNotFound);
                messages.push(format!("references missing ResourceFlavor(s): {}", names.join(",")));
            }
            Inactive::Topology(flavors) => {
                let names: Vec<&str> = flavors.iter().map(|id| book.words.names.flavors.name(id.0)).collect();
                reasons.push(ClusterQueueReason::TopologyNotSupported);
                messages.push(format!("topologies are not supported, used by ResourceFlavor(s): {}", names.join(",")));
            }
            Inactive::Stopped => {
                reasons.push(ClusterQueueReason::Stopped);
                messages.push("is stopped".to_owned());
            }
            Inactive::CohortCycle => {
                reasons.push(ClusterQueueReason::CohortCycle);
                messages.push("its cohort has a cycle".to_owned());
            }
        }
    }
    match reasons.first() {
        None => (ClusterQueueReason::Ready, "Can admit new workloads".to_owned()),
        Some(first) => (*first, format!("Can't admit new workloads: {}.", messages.join(", "))),
    }
}

fn list(checks: &[CheckId], book: &Book) -> String {
    let mut names: Vec<&str> = checks.iter().map(|id| book.words.names.checks.name(id.0)).collect();
    names.sort_unstable();
    names.join(",")
}

fn activate(
    conditions: &mut Vec<Condition>,
    active: bool,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let ty = QueueCondition::Active.as_str();
    conditions::set(conditions, conditions::condition(ty, active, reason, message, generation, now));
}

/// Every cell the queue has quota for, whether used or not: flavors as the queue has them, resources by name.
fn cells<'b>(book: &'b Book, queue: &'b Queue) -> impl Iterator<Item = (&'b str, Vec<(&'b str, Cell)>)> {
    let names = &book.words.names;
    queue.groups.iter().flat_map(move |group| {
        group.flavors.iter().map(move |flavor| {
            let resources = group.resources.iter();
            let mut cells: Vec<(&str, Cell)> =
                resources.map(|resource| (names.resources.name(resource.0), Cell::new(*flavor, *resource))).collect();
            cells.sort_unstable();
            (names.flavors.name(flavor.0), cells)
        })
    })
}

fn flavors(book: &Book, queue: &Queue, usage: &Usage) -> Vec<FlavorUsage> {
    let resources = |(name, cell): (&str, Cell)| {
        let used = usage.amount(cell);
        let nominal = queue.quotas.get(cell).map_or(Amount::ZERO, |quota| quota.nominal);
        let borrowed = if queue.cohort.is_some() { used.minus(nominal).or_zero() } else { Amount::ZERO };
        let [total, borrowed] = [used, borrowed].map(|amount| lower::quantity(name, amount));
        ResourceUsage { name: name.to_owned(), total, borrowed }
    };
    let flavors = cells(book, queue);
    flavors
        .map(|(name, cells)| FlavorUsage {
            name: name.to_owned(),
            resources: cells.into_iter().map(resources).collect(),
        })
        .collect()
}

fn local_flavors(book: &Book, queue: &Queue, usage: &Usage) -> Vec<LocalQueueFlavorUsage> {
    let resources = |(name, cell): (&str, Cell)| LocalQueueResourceUsage {
        name: name.to_owned(),
        total: lower::quantity(name, usage.amount(cell)),
    };
    let flavors = cells(book, queue);
    flavors
        .map(|(name, cells)| LocalQueueFlavorUsage {
            name: name.to_owned(),
            resources: cells.into_iter().map(resources).collect(),
        })
        .collect()
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
