//! What may change on a Pod that exists: images, a shorter deadline, more tolerations, fewer scheduling gates, and, while
//! it is gated, tighter node selection.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Container, NodeAffinity, NodeSelectorTerm, PodSpec, Toleration};
use serde_json::Value;
use usher_schema::field::Errors;

use super::SPEC;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{json, list, text};
use crate::registry::kinds::equality::semantic_eq;
use crate::registry::names;

const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
    `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const DIFFERENCES_SHOWN: usize = 20;

pub fn validate(new: &PodSpec, old: &PodSpec, errors: &mut Errors) {
    let init = (list(&new.init_containers), list(&old.init_containers));
    if !validate_containers(&new.containers, &old.containers, &SPEC.child("containers"), errors)
        || !validate_containers(init.0, init.1, &SPEC.child("initContainers"), errors)
        || !validate_deadline(new.active_deadline_seconds, old.active_deadline_seconds, errors)
    {
        return;
    }
    only_added_tolerations(list(&new.tolerations), list(&old.tolerations), errors);
    only_removed_gates(new, old, errors);
    if new == old {
        return;
    }
    let allowed = with_allowed_changes(new, old, errors);
    if !semantic_eq(&allowed, old) {
        let detail = format!("{ONLY}\n{}", differences(&json(old), &json(&allowed)));
        errors.forbidden(&SPEC.path(), detail);
    }
}

/// Whether the containers can be compared one by one.
fn validate_containers(new: &[Container], old: &[Container], at: &At, errors: &mut Errors) -> bool {
    if new.len() != old.len() {
        errors.forbidden(&at.path(), "pod updates may not add or remove containers");
        return false;
    }
    for (i, container) in new.iter().enumerate() {
        let (at, image) = (at.index(i), text(&container.image));
        if image.is_empty() {
            errors.required(&at.child("image").path(), "");
        }
        if image.trim() != image {
            errors.invalid(&at.child("image").path(), image, "must not have leading or trailing whitespace");
        }
    }
    true
}

/// A deadline may come closer, but neither recede nor go away.
fn validate_deadline(new: Option<i64>, old: Option<i64>, errors: &mut Errors) -> bool {
    let at = SPEC.child("activeDeadlineSeconds");
    match (new, old) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            errors.invalid(&at.path(), new, names::inclusive_range(0, i64::from(i32::MAX)));
            false
        }
        (Some(new), Some(old)) if old < new => {
            errors.invalid(&at.path(), new, "must be less than or equal to previous value");
            false
        }
        (None, Some(_)) => {
            errors.invalid(&at.path(), Value::Null, "must not update from a positive integer to nil value");
            true
        }
        _ => true,
    }
}

fn only_added_tolerations(new: &[Toleration], old: &[Toleration], errors: &mut Errors) {
    let kept = |old: &Toleration| {
        new.iter().any(|new| Toleration { toleration_seconds: new.toleration_seconds, ..old.clone() } == *new)
    };
    if !old.iter().all(kept) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(&SPEC.child("tolerations").path(), detail);
    }
}

fn only_removed_gates(new: &PodSpec, old: &PodSpec, errors: &mut Errors) {
    let before = list(&old.scheduling_gates);
    for (i, gate) in list(&new.scheduling_gates).iter().enumerate() {
        if !before.contains(gate) {
            let at = SPEC.child("schedulingGates");
            let detail = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.name);
            errors.forbidden(&at.index(i).child("name").path(), detail);
        }
    }
}

/// The new spec with everything that may change put back to what it was.
fn with_allowed_changes(new: &PodSpec, old: &PodSpec, errors: &mut Errors) -> PodSpec {
    let mut spec = new.clone();
    for (container, old) in spec.containers.iter_mut().zip(&old.containers) {
        container.image.clone_from(&old.image);
    }
    for (container, old) in spec.init_containers.iter_mut().flatten().zip(list(&old.init_containers)) {
        container.image.clone_from(&old.image);
    }
    spec.active_deadline_seconds = old.active_deadline_seconds;
    spec.scheduling_gates.clone_from(&old.scheduling_gates);
    spec.tolerations.clone_from(&old.tolerations);
    if old.termination_grace_period_seconds.is_some_and(|secs| secs < 0)
        && spec.termination_grace_period_seconds == Some(1)
    {
        spec.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    if !list(&old.scheduling_gates).is_empty() {
        validate_selector_change(new, old, errors);
        spec.node_selector.clone_from(&old.node_selector);
        let before = old.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let after = new.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        if !semantic_eq(&before, &after) {
            validate_affinity_change(after, before, errors);
            spec.affinity = with_node_affinity(spec.affinity, old.affinity.as_ref(), before);
        }
    }
    spec
}

/// `new` with the old node affinity, spelled so that nothing else seems to have changed.
fn with_node_affinity(
    new: Option<Affinity>,
    old: Option<&Affinity>,
    node_affinity: Option<&NodeAffinity>,
) -> Option<Affinity> {
    match new {
        None => node_affinity.map(|node| Affinity { node_affinity: Some(node.clone()), ..Affinity::default() }),
        Some(new) if old.is_none() && new.pod_affinity.is_none() && new.pod_anti_affinity.is_none() => None,
        Some(new) => Some(Affinity { node_affinity: node_affinity.cloned(), ..new }),
    }
}

fn validate_selector_change(new: &PodSpec, old: &PodSpec, errors: &mut Errors) {
    let no_labels = BTreeMap::new();
    let after = new.node_selector.as_ref().unwrap_or(&no_labels);
    if old.node_selector.iter().flatten().any(|(key, value)| after.get(key) != Some(value)) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.invalid(&SPEC.child("nodeSelector").path(), json(after), detail);
    }
}

/// A gated pod's required terms may only get stricter.
fn validate_affinity_change(new: Option<&NodeAffinity>, old: Option<&NodeAffinity>, errors: &mut Errors) {
    fn terms(affinity: Option<&NodeAffinity>) -> &[NodeSelectorTerm] {
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        required.map_or(&[], |selector| &selector.node_selector_terms)
    }
    let at = SPEC.child("affinity");
    let at = at.child("nodeAffinity");
    let at = at.child("requiredDuringSchedulingIgnoredDuringExecution");
    let at = at.child("nodeSelectorTerms");
    let (before, after) = (terms(old), terms(new));
    if before.is_empty() {
        return;
    }
    if before.len() != after.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return errors.invalid(&at.path(), json(&after), detail);
    }
    for (i, (after, before)) in after.iter().zip(before).enumerate() {
        let expressions = (list(&after.match_expressions), list(&before.match_expressions));
        let fields = (list(&after.match_fields), list(&before.match_fields));
        // A term without requirements matches nothing; adding some would make it match more.
        let was_empty = expressions.1.is_empty() && fields.1.is_empty();
        let is_empty = expressions.0.is_empty() && fields.0.is_empty();
        let grew = expressions.0.starts_with(expressions.1) && fields.0.starts_with(fields.1);
        if !grew || (was_empty && !is_empty) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.invalid(&at.index(i).path(), json(after), detail);
        }
    }
}

/// What differs, a line a field.
fn differences(old: &Value, new: &Value) -> String {
    let mut lines = Vec::new();
    walk(old, new, "spec", &mut lines);
    let more = lines.len().saturating_sub(DIFFERENCES_SHOWN);
    lines.truncate(DIFFERENCES_SHOWN);
    if more > 0 {
        lines.push(format!("  ... and {more} more"));
    }
    lines.join("\n")
}

fn walk(old: &Value, new: &Value, path: &str, lines: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let (old, new) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                walk(old, new, &format!("{path}.{key}"), lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (old, new)) in a.iter().zip(b).enumerate() {
                walk(old, new, &format!("{path}[{i}]"), lines);
            }
        }
        _ => {
            lines.push(format!("- {path}: {old}"));
            lines.push(format!("+ {path}: {new}"));
        }
    }
}
