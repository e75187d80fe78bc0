//! Requests, limits and claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource;
use usher_api::quantity::Quantity;
use usher_schema::field::{Error, Errors, Kind};

use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, list, text};
use crate::registry::names;

/// Whose resources they are: containers and whole pods may name different ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Names {
    Container,
    Pod,
}

const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
const INTEGER: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const HUGEPAGES: &str = "hugepages-";

pub fn validate(requirements: &ResourceRequirements, whose: Names, claims: &[&str], at: &At, errors: &mut Errors) {
    let empty = BTreeMap::new();
    let limits = requirements.limits.as_ref().unwrap_or(&empty);
    let requests = requirements.requests.as_ref().unwrap_or(&empty);
    let (limits_at, requests_at) = (at.child("limits"), at.child("requests"));
    for (name, quantity) in limits {
        validate_entry(name, quantity, whose, &limits_at.key(name), errors);
    }
    for (name, quantity) in requests {
        let request = validate_entry(name, quantity, whose, &requests_at.key(name), errors);
        match limits.get(name) {
            None if !overcommit_allowed(name) => {
                errors.required(&limits_at.path(), "Limit must be set for non overcommitable resources");
            }
            None => {}
            Some(limit) => {
                let (Some(request), Ok(limit)) = (request, Quantity::parse(&limit.0)) else { continue };
                let problem = if request != limit && !overcommit_allowed(name) {
                    format!("must be equal to {name} limit of {limit}")
                } else if request > limit {
                    format!("must be less than or equal to {name} limit of {limit}")
                } else {
                    continue;
                };
                errors.invalid(&requests_at.path(), request.to_string(), problem);
            }
        }
    }
    let any = |wanted: fn(&str) -> bool| limits.keys().chain(requests.keys()).any(|name| wanted(name));
    if any(is_huge_pages) && !any(|name| name == "cpu" || name == "memory") {
        errors.forbidden(&at.path(), "HugePages require cpu or memory");
    }
    validate_claims(list(&requirements.claims), claims, &at.child("claims"), errors);
}

fn validate_entry(
    name: &str,
    quantity: &resource::Quantity,
    whose: Names,
    at: &At,
    errors: &mut Errors,
) -> Option<Quantity> {
    match whose {
        Names::Container => validate_container_resource_name(name, at, errors),
        Names::Pod => validate_pod_resource_name(name, at, errors),
    }
    let parsed = validate_quantity(name, quantity, at, errors)?;
    if is_huge_pages(name) && !is_page_multiple(name, parsed) {
        let detail = format!("{parsed} is not positive integer multiple of {name}");
        errors.invalid(&at.path(), parsed.to_string(), detail);
    }
    Some(parsed)
}

/// Not negative, and whole where the resource is counted.
pub fn validate_quantity(name: &str, quantity: &resource::Quantity, at: &At, errors: &mut Errors) -> Option<Quantity> {
    let parsed = match Quantity::parse(&quantity.0) {
        Ok(parsed) => parsed,
        Err(problem) => {
            errors.invalid(&at.path(), quantity.0.as_str(), problem.to_string());
            return None;
        }
    };
    if parsed.is_negative() {
        errors.invalid(&at.path(), parsed.to_string(), "must be greater than or equal to 0");
    }
    if !parsed.is_whole() && is_integer(name) {
        errors.invalid(&at.path(), parsed.to_string(), "must be an integer");
    }
    Some(parsed)
}

/// The name of a resource anywhere in the API.
pub fn validate_resource_name(name: &str, at: &At, errors: &mut Errors) -> bool {
    if STANDARD[..3].contains(&name) {
        return true;
    }
    let problems = names::qualified(name);
    if !problems.is_empty() {
        each_invalid(problems, name, at, errors);
        return false;
    }
    if !name.contains('/') && !is_standard(name) {
        errors.invalid(&at.path(), name, "must be a standard resource type or fully qualified");
        return false;
    }
    true
}

fn validate_container_resource_name(name: &str, at: &At, errors: &mut Errors) {
    validate_resource_name(name, at, errors);
    if !name.contains('/') {
        if !STANDARD[..3].contains(&name) && !is_huge_pages(name) {
            errors.invalid(&at.path(), name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(&at.path(), name, "doesn't follow extended resource name standard");
    }
}

fn validate_pod_resource_name(name: &str, at: &At, errors: &mut Errors) {
    if validate_resource_name(name, at, errors) && name != "cpu" && name != "memory" && !is_huge_pages(name) {
        errors.not_supported(&at.path(), name, &["cpu", "memory"]);
    }
}

pub fn is_standard(name: &str) -> bool {
    let huge = |name: &str| is_huge_pages(name) || name.starts_with("requests.hugepages-");
    STANDARD.contains(&name) || huge(name)
}

pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGEPAGES)
}

/// Kubernetes' own resources have no domain, or `kubernetes.io`.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Devices and the like: `nvidia.com/gpu`.
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified(&format!("requests.{name}")).is_empty()
}

fn is_integer(name: &str) -> bool {
    INTEGER.contains(&name) || is_extended(name)
}

fn overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

fn is_page_multiple(name: &str, quantity: Quantity) -> bool {
    let page = Quantity::parse(name.strip_prefix(HUGEPAGES).unwrap_or_default());
    match page {
        Ok(page) if page > Quantity::ZERO && page.is_whole() => quantity.units() % page.units() == 0,
        _ => false,
    }
}

fn validate_claims(claims: &[ResourceClaim], known: &[&str], at: &At, errors: &mut Errors) {
    let mut seen: Vec<String> = Vec::new();
    for (i, claim) in claims.iter().enumerate() {
        let at = at.index(i);
        let (name, request) = (claim.name.as_str(), text(&claim.request));
        if name.is_empty() {
            errors.required(&at.path(), "");
            continue;
        }
        if seen.iter().any(|key| key == name) {
            errors.duplicate(&at.path(), name);
        } else {
            let mut key = name.to_owned();
            if !request.is_empty() {
                each_invalid(names::dns1123_label(request, false), request, &at.child("request"), errors);
                key = format!("{name}/{request}");
            }
            let of_the_same = |key: &&String| key.split_once('/').is_some_and(|(claim, _)| claim == name);
            if seen.contains(&key) {
                errors.duplicate(&at.path(), key.as_str());
            } else if request.is_empty() {
                seen.iter().filter(of_the_same).for_each(|_| errors.duplicate(&at.path(), name));
            }
            seen.push(key);
        }
        if !known.contains(&name) {
            let mut sorted = known.to_vec();
            sorted.sort_unstable();
            let tail = if sorted.is_empty() { " which is empty".into() } else { format!(": {}", sorted.join(", ")) };
            let detail = format!("must be one of the names in pod.spec.resourceClaims{tail}");
            errors.0.push(Error { kind: Kind::NotFound, path: at.path(), value: Some(name.into()), detail });
        }
    }
}
