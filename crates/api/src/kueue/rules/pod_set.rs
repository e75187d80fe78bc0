//! Pod sets: their templates, and what they ask of a topology.
//!
//! The schema keeps whatever a template says; here it must be a pod template, with what the rules of queues depend on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::Value;

use super::{labels, quotas};
use crate::field::{Errors, Path};
use crate::kueue::template;
use crate::kueue::workload::PodSetTopologyRequest;
use crate::quantity::Quantity;

pub fn validate_template(value: &Value, path: &Path, errors: &mut Errors) {
    let template = match template::read(value) {
        Ok(template) => template,
        Err(why) => {
            errors.invalid(path, Value::Null, format!("is not a pod template: {why}"));
            return;
        }
    };
    let meta = template.metadata.unwrap_or_default();
    labels::labels(&meta.labels.unwrap_or_default(), &path.child("metadata").child("labels"), errors);
    let annotations = meta.annotations.unwrap_or_default();
    labels::annotations(&annotations, &path.child("metadata").child("annotations"), errors);
    let Some(spec) = template.spec else { return };
    let path = path.child("spec");
    if spec.containers.is_empty() {
        errors.required(&path.child("containers"), "");
    }
    let init = spec.init_containers.unwrap_or_default();
    for (field, containers) in [("initContainers", &init), ("containers", &spec.containers)] {
        for (i, container) in containers.iter().enumerate() {
            validate_container(container, &path.child(field).index(i), errors);
        }
    }
    if let Some(resources) = &spec.resources {
        validate_resources(resources, &path.child("resources"), errors);
    }
}

fn validate_container(container: &Container, path: &Path, errors: &mut Errors) {
    if container.name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    if let Some(resources) = &container.resources {
        validate_resources(resources, &path.child("resources"), errors);
    }
}

fn validate_resources(resources: &ResourceRequirements, path: &Path, errors: &mut Errors) {
    for (field, list) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        if let Some(list) = list {
            validate_list(list, &path.child(field), errors);
        }
    }
}

fn validate_list(list: &BTreeMap<String, Text>, path: &Path, errors: &mut Errors) {
    for (name, amount) in list {
        let path = path.key(name);
        if name == "pods" {
            errors.invalid(&path, "pods", "the key is reserved for internal kueue use");
        }
        match Quantity::parse(&amount.0) {
            Ok(amount) => quotas::not_negative(amount, &path, errors),
            Err(why) => errors.invalid(&path, amount.0.as_str(), why.to_string()),
        }
    }
}

/// A slice's topology and its size come together.
pub fn validate_slice_size(request: &PodSetTopologyRequest, path: &Path, errors: &mut Errors) {
    let size = path.child("podSetSliceSize");
    match (&request.pod_set_slice_required_topology, request.pod_set_slice_size) {
        (Some(_), None) => errors.required(&size, "must be set when podSetSliceRequiredTopology is specified"),
        (Some(_), Some(found)) if found <= 0 => errors.invalid(&size, found, "must be greater than 0"),
        (None, Some(_)) => {
            errors.forbidden(&size, "may not be set when podSetSliceRequiredTopology is not specified");
        }
        _ => {}
    }
    let path = path.child("podsetSliceRequiredTopologyConstraints");
    for (i, constraint) in request.podset_slice_required_topology_constraints.iter().enumerate() {
        if constraint.size <= 0 {
            errors.invalid(&path.index(i).child("size"), constraint.size, "must be greater than 0");
        }
    }
}
