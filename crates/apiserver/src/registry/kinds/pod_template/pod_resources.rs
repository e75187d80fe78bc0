//! Resources of a whole pod, which must leave room for those of its containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource;
use usher_api::quantity::Quantity;
use usher_schema::field::Errors;

use super::resources::{self, Names, is_huge_pages};
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::list;

pub fn validate(spec: &PodSpec, claims: &[&str], at: &At, errors: &mut Errors) {
    let Some(requirements) = &spec.resources else { return };
    let at = at.child("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return errors.forbidden(&at.path(), "may not be set for a windows pod");
    }
    if requirements.claims.is_some() {
        errors.forbidden(&at.child("claims").path(), "claims may not be set for Resources at pod-level");
    }
    resources::validate(requirements, Names::Pod, claims, &at, errors);
    let requests_at = at.child("requests");
    for (name, needed) in aggregate(spec, requests) {
        if let Some(pod) = quantity(requirements.requests.as_ref(), name).filter(|pod| needed > *pod) {
            let detail = format!("must be greater than or equal to aggregate container requests of {needed}");
            errors.invalid(&requests_at.key(name).path(), pod.to_string(), detail);
        }
    }
    let limits_at = at.child("limits");
    for (name, needed) in aggregate(spec, limits).into_iter().filter(|(name, _)| is_huge_pages(name)) {
        if let Some(pod) = quantity(requirements.limits.as_ref(), name).filter(|pod| needed > *pod) {
            let detail = format!("must be greater than or equal to aggregate container limits of {needed}");
            errors.invalid(&limits_at.key(name).path(), pod.to_string(), detail);
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (name, limit) in limits(container).into_iter().flatten() {
            let (Ok(limit), Some(pod)) = (Quantity::parse(&limit.0), quantity(requirements.limits.as_ref(), name))
            else {
                continue;
            };
            if limit > pod {
                let at = at.child("containers");
                let at = at.index(i);
                let detail = format!("must be less than or equal to pod limits of {pod}");
                errors.invalid(&at.key(name).child("limits").path(), limit.to_string(), detail);
            }
        }
    }
}

type List = BTreeMap<String, resource::Quantity>;

fn requests(container: &Container) -> Option<&List> {
    container.resources.as_ref()?.requests.as_ref()
}

fn limits(container: &Container) -> Option<&List> {
    container.resources.as_ref()?.limits.as_ref()
}

fn quantity(list: Option<&List>, name: &str) -> Option<Quantity> {
    Quantity::parse(&list?.get(name)?.0).ok()
}

/// What the containers need together: the running ones and sidecars added up, or one init container alone if that is more.
pub fn aggregate<'a>(spec: &'a PodSpec, of: fn(&'a Container) -> Option<&'a List>) -> BTreeMap<&'a str, Quantity> {
    let mut total: BTreeMap<&str, Quantity> = BTreeMap::new();
    let add = |total: &mut BTreeMap<&'a str, Quantity>, container: &'a Container| {
        for (name, quantity) in of(container).into_iter().flatten() {
            if let Ok(quantity) = Quantity::parse(&quantity.0) {
                total.entry(name).and_modify(|sum| *sum = *sum + quantity).or_insert(quantity);
            }
        }
    };
    spec.containers.iter().for_each(|container| add(&mut total, container));
    let mut sidecars: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut peak: BTreeMap<&str, Quantity> = BTreeMap::new();
    for container in list(&spec.init_containers) {
        let mut while_it_runs = sidecars.clone();
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, container);
            add(&mut sidecars, container);
            while_it_runs = sidecars.clone();
        } else {
            add(&mut while_it_runs, container);
        }
        for (name, quantity) in while_it_runs {
            let most = peak.entry(name).or_insert(quantity);
            *most = (*most).max(quantity);
        }
    }
    for (name, quantity) in peak {
        let sum = total.entry(name).or_insert(quantity);
        *sum = (*sum).max(quantity);
    }
    total
}
