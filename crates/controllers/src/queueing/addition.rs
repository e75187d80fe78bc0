//! What an admission adds to the pods of a pod set: the labels and tolerations of its flavors, what its admission checks
//! ask for, and the labels by which pods are known again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodSchedulingGate, PodTemplateSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use usher_api::kueue::keys::{self, annotation, label, scheduling_gate};
use usher_api::kueue::workload::{PodSet, PodSetTopologyRequest};
use usher_api::kueue::workload_status::{PodSetAssignment, PodSetUpdate};
use usher_api::kueue::{ResourceFlavor, Workload};
use usher_api::names::dns1123_label;

/// What is added to one pod set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addition {
    /// How many pods were admitted.
    pub count: i32,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AdditionError {
    /// It may come: waiting is right.
    #[error("flavor {flavor} is gone")]
    NoFlavor { flavor: String },
    /// Trying again cannot help.
    #[error(
        "invalid admission check PodSetUpdate: conflict for {field}: conflict for key={key}, value1={have}, value2={want}"
    )]
    Conflict { field: &'static str, key: String, have: String, want: String },
    /// The admission is of another workload than this one has become.
    #[error("the admission has {assigned} pod sets, the workload {wanted}")]
    OtherPodSets { assigned: usize, wanted: usize },
}

impl AdditionError {
    pub fn is_permanent(&self) -> bool {
        matches!(self, AdditionError::Conflict { .. })
    }
}

pub type Flavors<'a> = &'a dyn Fn(&str) -> Option<Arc<ResourceFlavor>>;

/// What the admission of `workload` adds, pod set by pod set.
pub fn additions(workload: &Workload, flavors: Flavors<'_>) -> Result<Vec<Addition>, AdditionError> {
    let assigned = workload.status.admission.iter().flat_map(|a| &a.pod_set_assignments).collect::<Vec<_>>();
    let sets = &workload.spec.pod_sets;
    if assigned.len() != sets.len() {
        return Err(AdditionError::OtherPodSets { assigned: assigned.len(), wanted: sets.len() });
    }
    assigned.into_iter().zip(sets).map(|(assignment, set)| one(workload, assignment, set, flavors)).collect()
}

fn one(
    workload: &Workload,
    assignment: &PodSetAssignment,
    set: &PodSet,
    flavors: Flavors<'_>,
) -> Result<Addition, AdditionError> {
    let mut addition = Addition { count: assignment.count.unwrap_or(set.count), ..Addition::default() };
    let names: BTreeSet<&String> = assignment.flavors.values().collect();
    for name in names {
        let flavor = flavors(name).ok_or_else(|| AdditionError::NoFlavor { flavor: name.clone() })?;
        let spec = &flavor.spec;
        addition.node_selector.extend(spec.node_labels.iter().map(|(k, v)| (k.clone(), v.clone())));
        addition.tolerate(&spec.tolerations);
    }
    addition.labels.insert(label::POD_SET.to_owned(), assignment.name.clone());
    addition.labels.insert(label::LOCAL_QUEUE.to_owned(), workload.spec.queue_name.clone());
    // A label's value is shorter than a queue's name may be.
    let queue = workload.status.admission.as_ref().map_or("", |a| &a.cluster_queue);
    if dns1123_label(queue, false).is_empty() {
        addition.labels.insert(label::CLUSTER_QUEUE.to_owned(), queue.to_owned());
    }
    for check in &workload.status.admission_checks {
        for update in check.pod_set_updates.iter().filter(|update| update.name == assignment.name) {
            addition.add(update)?;
        }
    }
    Ok(addition)
}

impl Addition {
    fn add(&mut self, update: &PodSetUpdate) -> Result<(), AdditionError> {
        join("annotations", &mut self.annotations, &update.annotations)?;
        join("labels", &mut self.labels, &update.labels)?;
        join("nodeSelector", &mut self.node_selector, &update.node_selector)?;
        self.tolerate(&update.tolerations);
        Ok(())
    }

    fn tolerate(&mut self, more: &[Toleration]) {
        join_tolerations(&mut self.tolerations, more);
    }

    /// The template as its pods are to be.
    pub fn merged_into(&self, template: &PodTemplateSpec) -> Result<PodTemplateSpec, AdditionError> {
        let mut merged = template.clone();
        let meta = merged.metadata.get_or_insert_default();
        join("annotations", meta.annotations.get_or_insert_default(), &self.annotations)?;
        join("labels", meta.labels.get_or_insert_default(), &self.labels)?;
        let spec = merged.spec.get_or_insert_default();
        join("nodeSelector", spec.node_selector.get_or_insert_default(), &self.node_selector)?;
        join_tolerations(spec.tolerations.get_or_insert_default(), &self.tolerations);
        without_empty(&mut merged);
        Ok(merged)
    }
}

/// What an admission may have added is as before; all else is left as it is, and so are labels that its kind makes.
pub fn restore(template: &mut PodTemplateSpec, before: &PodTemplateSpec, is_made: impl Fn(&str) -> bool) {
    let meta = template.metadata.get_or_insert_default();
    let old = before.metadata.clone().unwrap_or_default();
    let made = meta.labels.take().unwrap_or_default().into_iter().filter(|(key, _)| is_made(key));
    let mut labels = old.labels.unwrap_or_default();
    labels.extend(made);
    (meta.labels, meta.annotations) = (Some(labels), old.annotations);
    let (spec, old) = (template.spec.get_or_insert_default(), before.spec.clone().unwrap_or_default());
    (spec.node_selector, spec.tolerations) = (old.node_selector, old.tolerations);
    spec.scheduling_gates = old.scheduling_gates;
    without_empty(template);
}

/// Pods made from this template wait for their turn (KEP-77).
pub fn gate(template: &mut PodTemplateSpec) {
    let gates = template.spec.get_or_insert_default().scheduling_gates.get_or_insert_default();
    if !gates.iter().any(|gate| gate.name == scheduling_gate::ELASTIC_JOB) {
        gates.push(PodSchedulingGate { name: scheduling_gate::ELASTIC_JOB.to_owned() });
    }
}

/// What the annotations of pods say about where they are to be.
pub fn topology_of(template: &PodTemplateSpec) -> Option<PodSetTopologyRequest> {
    let notes = template.metadata.as_ref()?.annotations.as_ref()?;
    let noted = |key: &str| notes.get(key).cloned();
    let request = PodSetTopologyRequest {
        required: noted(annotation::REQUIRED_TOPOLOGY),
        preferred: noted(annotation::PREFERRED_TOPOLOGY),
        unconstrained: noted(annotation::UNCONSTRAINED_TOPOLOGY).map(|said| said == keys::TRUE),
        ..PodSetTopologyRequest::default()
    };
    (request != PodSetTopologyRequest::default()).then_some(request)
}

/// Absent and empty mean the same; absent is what a server shows.
pub fn without_empty(template: &mut PodTemplateSpec) {
    if let Some(meta) = &mut template.metadata {
        meta.annotations = meta.annotations.take().filter(|map| !map.is_empty());
        meta.labels = meta.labels.take().filter(|map| !map.is_empty());
    }
    if let Some(spec) = &mut template.spec {
        spec.node_selector = spec.node_selector.take().filter(|map| !map.is_empty());
        spec.tolerations = spec.tolerations.take().filter(|list| !list.is_empty());
        spec.scheduling_gates = spec.scheduling_gates.take().filter(|list| !list.is_empty());
    }
    template.metadata = template.metadata.take().filter(|meta| *meta != ObjectMeta::default());
}

fn join(
    field: &'static str,
    into: &mut BTreeMap<String, String>,
    more: &BTreeMap<String, String>,
) -> Result<(), AdditionError> {
    for (key, want) in more {
        match into.get(key) {
            Some(have) if have != want => {
                let (key, have, want) = (key.clone(), have.clone(), want.clone());
                return Err(AdditionError::Conflict { field, key, have, want });
            }
            Some(_) => {}
            None => drop(into.insert(key.clone(), want.clone())),
        }
    }
    Ok(())
}

fn join_tolerations(into: &mut Vec<Toleration>, more: &[Toleration]) {
    for toleration in more {
        if !into.contains(toleration) {
            into.push(toleration.clone());
        }
    }
}
