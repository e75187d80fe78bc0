//! RuntimeClass: a pod takes overhead, node selector and tolerations from its class.

use serde_json::Value;

use super::tolerations;
use super::values::{items, map_mut, resources, spec_mut, stored_object};
use crate::admission::Review;
use crate::object::Object;
use crate::server::Server;
use crate::status::Result;

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const UNFOUNDED: &str = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

pub fn admit(server: &Server, review: &Review<'_>, pod: &mut Object) -> Result<()> {
    let Some(class) = class_of(server, review, pod)? else { return Ok(()) };
    if let Some(fixed) = overhead(&class) {
        let given = resources(pod.pointer("/spec/overhead"));
        if !given.is_empty() && given != resources(Some(fixed)) {
            return Err(review.forbidden(pod, MISMATCH));
        }
        spec_mut(pod).insert("overhead".to_owned(), fixed.clone());
    }
    if class.get("scheduling").is_some_and(Value::is_object) {
        schedule(review, pod, &class)?;
    }
    Ok(())
}

pub fn validate(server: &Server, review: &Review<'_>, pod: &Object) -> Result<()> {
    let class = class_of(server, review, pod)?;
    let given = pod.pointer("/spec/overhead").filter(|overhead| !overhead.is_null());
    match class.as_ref().and_then(overhead) {
        Some(fixed) if resources(Some(fixed)) != resources(given) => Err(review.forbidden(pod, MISMATCH)),
        None if given.is_some() => Err(review.forbidden(pod, UNFOUNDED)),
        _ => Ok(()),
    }
}

fn class_of(server: &Server, review: &Review<'_>, pod: &Object) -> Result<Option<Object>> {
    let Some(name) = pod.pointer("/spec/runtimeClassName").and_then(Value::as_str) else { return Ok(None) };
    match stored_object(server, "node.k8s.io/runtimeclasses", "", name) {
        Some(class) => Ok(Some(class)),
        None => Err(review.forbidden(pod, &format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

fn overhead(class: &Object) -> Option<&Value> {
    class.pointer("/overhead/podFixed").filter(|fixed| fixed.is_object())
}

fn schedule(review: &Review<'_>, pod: &mut Object, class: &Object) -> Result<()> {
    let wanted = class.pointer("/scheduling/nodeSelector").and_then(Value::as_object);
    for (key, value) in wanted.into_iter().flatten() {
        let value = value.as_str().unwrap_or("");
        let given =
            pod.get("spec").and_then(|s| s.get("nodeSelector")).and_then(|s| s.get(key)).and_then(Value::as_str);
        if let Some(given) = given.filter(|given| *given != value) {
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {given}"
            );
            return Err(review.forbidden(pod, &why));
        }
        map_mut(spec_mut(pod), "nodeSelector").insert(key.clone(), value.into());
    }
    let merged = tolerations::merge(items(pod, "/spec/tolerations"), items(class, "/scheduling/tolerations"));
    if !merged.is_empty() {
        spec_mut(pod).insert("tolerations".to_owned(), merged.into());
    }
    Ok(())
}
