//! From objects of the API to the scheduler's model, and from an assignment back to an admission.
//!
//! Names become numbers here and nowhere else; the dictionary is what puts reasons into words again.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodSpec, Taint, Toleration};
use usher_api::kueue::cluster_queue::{
    BorrowPolicy, FlavorPreference, QueueingStrategy, ReclaimWithinCohort, WhenCanBorrow, WhenCanPreempt,
    WithinClusterQueue,
};
use usher_api::kueue::fair_sharing::FairSharing;
use usher_api::kueue::quota::{ResourceGroup, ResourceQuota, StopPolicy};
use usher_api::kueue::workload_status::{Admission, PodSetAssignment, PodSetRequest};
use usher_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload};
use usher_api::quantity::{Format, Quantity};
use usher_sched::model::{self as sched, Amount, Cell, CellMap, Quota};
use usher_sched::names::Names;

use super::requests;

#[derive(Default)]
pub struct Dictionary {
    pub names: Names,
}

/// The smallest unit of a resource: thousandths of a cpu, whole pieces of anything else.
fn amount(resource: &str, quantity: Quantity) -> Amount {
    Amount(if resource == "cpu" { quantity.milli() } else { quantity.units() })
}

/// An amount as the API shows it.
pub fn quantity(resource: &str, amount: Amount) -> Quantity {
    match resource {
        "cpu" => Quantity::from_milli(amount.0, Format::Decimal),
        "memory" | "ephemeral-storage" => Quantity::from_units(amount.0, Format::Binary),
        _ if resource.starts_with("hugepages-") => Quantity::from_units(amount.0, Format::Binary),
        _ => Quantity::from_units(amount.0, Format::Decimal),
    }
}

fn stop(policy: Option<StopPolicy>) -> sched::Stop {
    match policy {
        None | Some(StopPolicy::None) => sched::Stop::None,
        Some(StopPolicy::Hold) => sched::Stop::Hold,
        Some(StopPolicy::HoldAndDrain) => sched::Stop::HoldAndDrain,
    }
}

fn weight(sharing: Option<&FairSharing>) -> sched::FairWeight {
    let said = sharing.and_then(|sharing| sharing.weight);
    said.map_or_else(sched::FairWeight::default, |weight| sched::FairWeight(weight.nanos() as f64 / 1e9))
}

impl Dictionary {
    pub fn flavor_id(&mut self, name: &str) -> sched::FlavorId {
        sched::FlavorId(self.names.flavors.id(name))
    }

    pub fn resource_id(&mut self, name: &str) -> sched::ResourceId {
        sched::ResourceId(self.names.resources.id(name))
    }

    pub fn queue_id(&mut self, name: &str) -> sched::QueueId {
        sched::QueueId(self.names.queues.id(name))
    }

    pub fn cohort_id(&mut self, name: &str) -> sched::CohortId {
        sched::CohortId(self.names.cohorts.id(name))
    }

    pub fn check_id(&mut self, name: &str) -> sched::CheckId {
        sched::CheckId(self.names.checks.id(name))
    }

    /// LocalQueues are known as `namespace/name`.
    pub fn local_id(&mut self, namespace: &str, name: &str) -> sched::LocalId {
        sched::LocalId(self.names.locals.id(&format!("{namespace}/{name}")))
    }

    pub fn queue(&mut self, queue: &ClusterQueue) -> sched::Queue {
        let spec = &queue.spec;
        let preemption = spec.preemption.clone().unwrap_or_default();
        let fungibility = spec.flavor_fungibility.clone().unwrap_or_default();
        let checks = spec.admission_checks_strategy.iter().flat_map(|strategy| &strategy.admission_checks);
        let checks: Vec<_> = checks.map(|rule| (rule.name.clone(), rule.on_flavors.clone())).collect();
        sched::Queue {
            cohort: Some(spec.cohort_name.as_str()).filter(|name| !name.is_empty()).map(|name| self.cohort_id(name)),
            groups: spec.resource_groups.iter().map(|group| self.group(group)).collect(),
            quotas: self.quotas(&spec.resource_groups),
            strategy: match spec.queueing_strategy {
                QueueingStrategy::StrictFIFO => sched::Queueing::StrictFifo,
                QueueingStrategy::BestEffortFIFO => sched::Queueing::BestEffortFifo,
            },
            stop: stop(spec.stop_policy),
            preemption: sched::Preemption {
                within_queue: match preemption.within_cluster_queue {
                    WithinClusterQueue::Never => sched::WithinQueue::Never,
                    WithinClusterQueue::LowerPriority => sched::WithinQueue::LowerPriority,
                    WithinClusterQueue::LowerOrNewerEqualPriority => sched::WithinQueue::LowerOrNewerEqualPriority,
                },
                reclaim: match preemption.reclaim_within_cohort {
                    ReclaimWithinCohort::Never => sched::Reclaim::Never,
                    ReclaimWithinCohort::LowerPriority => sched::Reclaim::LowerPriority,
                    ReclaimWithinCohort::Any => sched::Reclaim::Any,
                },
                borrow: match preemption.borrow_within_cohort {
                    Some(borrow) if borrow.policy == BorrowPolicy::LowerPriority => {
                        let max_priority = borrow.max_priority_threshold.map(i64::from);
                        sched::BorrowWithin::LowerPriority { max_priority }
                    }
                    _ => sched::BorrowWithin::Never,
                },
            },
            fungibility: sched::Fungibility {
                try_next_when_borrowing: fungibility.when_can_borrow == WhenCanBorrow::TryNextFlavor,
                try_next_when_preempting: fungibility.when_can_preempt == WhenCanPreempt::TryNextFlavor,
                preference: match fungibility.preference {
                    Some(FlavorPreference::PreemptionOverBorrowing) => sched::Preference::PreemptionOverBorrowing,
                    _ => sched::Preference::BorrowingOverPreemption,
                },
            },
            checks: checks
                .into_iter()
                .map(|(check, flavors)| {
                    (self.check_id(&check), flavors.iter().map(|flavor| self.flavor_id(flavor)).collect())
                })
                .collect(),
            fair_weight: weight(spec.fair_sharing.as_ref()),
            terminating: queue.metadata.deletion_timestamp.is_some(),
        }
    }

    fn group(&mut self, group: &ResourceGroup) -> sched::ResourceGroup {
        sched::ResourceGroup {
            resources: group.covered_resources.iter().map(|name| self.resource_id(name)).collect(),
            flavors: group.flavors.iter().map(|flavor| self.flavor_id(&flavor.name)).collect(),
        }
    }

    fn quotas(&mut self, groups: &[ResourceGroup]) -> CellMap<Quota> {
        let flavors = groups.iter().flat_map(|group| &group.flavors);
        let quotas = flavors.flat_map(|flavor| flavor.resources.iter().map(move |quota| (&flavor.name, quota)));
        quotas.map(|(flavor, quota)| (self.cell(flavor, &quota.name), lower_quota(quota))).collect()
    }

    fn cell(&mut self, flavor: &str, resource: &str) -> Cell {
        Cell::new(self.flavor_id(flavor), self.resource_id(resource))
    }

    pub fn cohort(&mut self, cohort: &Cohort) -> sched::Cohort {
        let parent = Some(cohort.spec.parent_name.as_str()).filter(|name| !name.is_empty());
        sched::Cohort {
            parent: parent.map(|name| self.cohort_id(name)),
            quotas: self.quotas(&cohort.spec.resource_groups),
            fair_weight: weight(cohort.spec.fair_sharing.as_ref()),
        }
    }

    pub fn local_queue(&mut self, local: &LocalQueue) -> sched::LocalQueue {
        sched::LocalQueue { queue: self.queue_id(&local.spec.cluster_queue), stop: stop(local.spec.stop_policy) }
    }

    /// What decides where a workload fits.
    pub fn shape(&mut self, workload: &Workload) -> sched::Shape {
        let allowed = workload.allowed_flavors();
        let allowed = allowed.map(|names| names.into_iter().map(|name| self.flavor_id(name)).collect());
        let reclaimed: BTreeMap<&str, i32> =
            workload.status.reclaimable_pods.iter().map(|pod| (pod.name.as_str(), pod.count)).collect();
        let pod_sets = workload.spec.pod_sets.iter().map(|set| {
            let spec = set.template.spec.clone().unwrap_or_default();
            let left = set.count - reclaimed.get(set.name.as_str()).copied().unwrap_or(0);
            sched::PodSet {
                name: set.name.clone(),
                count: u32::try_from(left).unwrap_or(0),
                min_count: set.min_count.and_then(|count| u32::try_from(count).ok()),
                requests: self.amounts(&requests::of(&spec)),
                tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
                node_selector: spec.node_selector.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
                affinity: affinity(&spec),
                group: set.topology_request.as_ref().and_then(|request| request.pod_set_group_name.clone()),
                pinned: Vec::new(),
            }
        });
        sched::Shape { pod_sets: pod_sets.collect(), allowed }
    }

    /// What each pod set asks for in all, as the status of a workload that found no room shows it.
    pub fn requests(&self, workload: &Workload, shape: &sched::Shape) -> Vec<PodSetRequest> {
        let sets = workload.spec.pod_sets.iter().zip(&shape.pod_sets);
        let sets = sets.map(|(set, asked)| {
            let resources = asked.requests.iter().map(|(id, amount)| {
                let name = self.names.resources.name(id.0);
                (name.to_owned(), quantity(name, amount.times(asked.count)))
            });
            PodSetRequest { name: set.name.clone(), resources: resources.collect() }
        });
        sets.collect()
    }

    fn amounts(&mut self, requests: &BTreeMap<String, Quantity>) -> Vec<(sched::ResourceId, Amount)> {
        requests.iter().map(|(name, asked)| (self.resource_id(name), amount(name, *asked))).collect()
    }

    /// What a workload holds, as its status says, less the pods that are done with.
    pub fn assignment(&mut self, workload: &Workload) -> Option<sched::Assignment> {
        let admission = workload.status.admission.as_ref()?;
        let sets = admission.pod_set_assignments.iter().map(|set| {
            let count = u32::try_from(set.count.unwrap_or(0)).unwrap_or(0);
            let done = workload.status.reclaimable_pods.iter().find(|pod| pod.name == set.name);
            let left = count.saturating_sub(done.map_or(0, |pod| u32::try_from(pod.count).unwrap_or(0)));
            let usage = set.resource_usage.iter().map(|(name, total)| {
                let total = amount(name, *total);
                let share = if count == 0 { total.0 } else { total.0 / i64::from(count) * i64::from(left) };
                (name.clone(), Amount(share))
            });
            let usage: Vec<_> = usage.collect();
            sched::PodSetAssignment {
                count: left,
                flavors: set.flavors.iter().map(|(name, f)| (self.resource_id(name), self.flavor_id(f))).collect(),
                usage: usage.into_iter().map(|(name, used)| (self.resource_id(&name), used)).collect(),
            }
        });
        let pod_sets: Vec<_> = sets.collect();
        Some(sched::Assignment { usage: sched::Assignment::total(&pod_sets), pod_sets, borrowing: 0 })
    }

    /// An assignment as the status of its workload shows it.
    pub fn admission(&self, queue: sched::QueueId, workload: &Workload, assigned: &sched::Assignment) -> Admission {
        let sets = assigned.pod_sets.iter().zip(&workload.spec.pod_sets).map(|(got, set)| {
            let resource = |id: &sched::ResourceId| self.names.resources.name(id.0).to_owned();
            PodSetAssignment {
                name: set.name.clone(),
                count: i32::try_from(got.count).ok(),
                flavors: got
                    .flavors
                    .iter()
                    .map(|(id, flavor)| (resource(id), self.names.flavors.name(flavor.0).to_owned()))
                    .collect(),
                resource_usage: got
                    .usage
                    .iter()
                    .map(|(id, used)| (resource(id), quantity(self.names.resources.name(id.0), *used)))
                    .collect(),
                ..PodSetAssignment::default()
            }
        });
        Admission { cluster_queue: self.names.queues.name(queue.0).to_owned(), pod_set_assignments: sets.collect() }
    }
}

fn lower_quota(quota: &ResourceQuota) -> Quota {
    let amount = |quantity: Quantity| amount(&quota.name, quantity);
    Quota {
        nominal: amount(quota.nominal_quota),
        borrowing: quota.borrowing_limit.map(amount),
        lending: quota.lending_limit.map(amount),
    }
}

pub fn flavor(flavor: &ResourceFlavor) -> sched::Flavor {
    sched::Flavor {
        labels: flavor.spec.node_labels.clone(),
        taints: flavor.spec.node_taints.iter().filter_map(taint).collect(),
        tolerations: flavor.spec.tolerations.iter().map(toleration).collect(),
        topology: flavor.spec.topology_name.is_some(),
    }
}

fn effect(text: &str) -> Option<sched::TaintEffect> {
    match text {
        "NoSchedule" => Some(sched::TaintEffect::NoSchedule),
        "NoExecute" => Some(sched::TaintEffect::NoExecute),
        "PreferNoSchedule" => Some(sched::TaintEffect::PreferNoSchedule),
        _ => None,
    }
}

fn taint(taint: &Taint) -> Option<sched::Taint> {
    let value = taint.value.clone().unwrap_or_default();
    Some(sched::Taint { key: taint.key.clone(), value, effect: effect(&taint.effect)? })
}

fn toleration(toleration: &Toleration) -> sched::Toleration {
    sched::Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        operator: match toleration.operator.as_deref() {
            Some("Exists") => sched::TolerationOperator::Exists,
            Some("Lt") => sched::TolerationOperator::Lt,
            Some("Gt") => sched::TolerationOperator::Gt,
            _ => sched::TolerationOperator::Equal,
        },
        value: toleration.value.clone().unwrap_or_default(),
        effect: toleration.effect.as_deref().and_then(effect),
    }
}

/// The required node affinity. `matchFields` name a node, not a flavor: they are placement's business.
fn affinity(spec: &PodSpec) -> Vec<sched::Term> {
    let node = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = node.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    required.map_or_else(Vec::new, |required| required.node_selector_terms.iter().map(term).collect())
}

fn term(term: &NodeSelectorTerm) -> sched::Term {
    let requirements = term.match_expressions.iter().flatten().filter_map(|expression| {
        let operator = match expression.operator.as_str() {
            "In" => sched::Operator::In,
            "NotIn" => sched::Operator::NotIn,
            "Exists" => sched::Operator::Exists,
            "DoesNotExist" => sched::Operator::DoesNotExist,
            "Gt" => sched::Operator::Gt,
            "Lt" => sched::Operator::Lt,
            _ => return None,
        };
        let values = expression.values.clone().unwrap_or_default();
        Some(sched::Requirement { key: expression.key.clone(), operator, values })
    });
    requirements.collect()
}

/// Shapes are shared by all workloads that have the same.
#[derive(Default)]
pub struct Shapes(BTreeMap<Arc<sched::Shape>, ()>);

impl Shapes {
    pub fn share(&mut self, shape: sched::Shape) -> Arc<sched::Shape> {
        if let Some((known, ())) = self.0.get_key_value(&shape) {
            return known.clone();
        }
        // Shapes that nobody has any longer go when there are many.
        if self.0.len() > 10_000 {
            self.0.retain(|shape, ()| Arc::strong_count(shape) > 1);
        }
        let shape = Arc::new(shape);
        self.0.insert(shape.clone(), ());
        shape
    }
}
