//! What of a Job's pod template may change, and when (KEP-2926, KEP-5440).
//!
//! Judged on the stored Job alone: a request may edit and unsuspend at once, but not edit and suspend. Upstream leaves
//! template metadata unchecked and lets `resources.claims` change where resources are open; both stay closed here.

use k8s_openapi::api::batch::v1::{JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{Affinity, Container, PodSpec, PodTemplateSpec};
use usher_schema::field::Errors;

use super::is_true;
use crate::registry::kind::Gates;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{json, list};
use crate::registry::kinds::equality::semantic_eq;

/// What is open to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Node affinity, node selector, tolerations, scheduling gates, labels and annotations.
    pub directives: bool,
    /// Requests and limits of containers and init containers.
    pub resources: bool,
}

/// What is open on a stored Job.
pub fn open(spec: &JobSpec, status: Option<&JobStatus>, gates: &Gates) -> Open {
    let suspended = spec.suspend == Some(true);
    let never_started = status.is_none_or(|status| status.start_time.is_none());
    let said_so = status.is_some_and(|status| is_true(list(&status.conditions), "Suspended"));
    let no_active_pods = status.is_none_or(|status| status.active.unwrap_or(0) == 0);
    let at_rest = suspended && (never_started || said_so) && no_active_pods;
    let directives = if gates.mutable_directives_when_suspended { at_rest } else { suspended && never_started };
    Open {
        directives: gates.mutable_directives && directives,
        resources: gates.mutable_resources_when_suspended && at_rest,
    }
}

pub fn validate(
    new: &JobSpec,
    old: &JobSpec,
    old_status: Option<&JobStatus>,
    gates: &Gates,
    at: &At,
    errors: &mut Errors,
) {
    if new.template == old.template {
        return;
    }
    let open = open(old, old_status, gates);
    let allowed = allowed(&new.template, &old.template, open);
    let at = at.child("template");
    if !open.resources {
        if !semantic_eq(&new.template, &allowed) {
            errors.immutable(&at.path(), json(&new.template));
        }
        return;
    }
    let (new_meta, allowed_meta) =
        (new.template.metadata.clone().unwrap_or_default(), allowed.metadata.unwrap_or_default());
    if !semantic_eq(&new_meta, &allowed_meta) {
        errors.immutable(&at.path(), json(&new.template));
    }
    if !semantic_eq(&new.template.spec, &allowed.spec) {
        errors.immutable(&at.child("spec").path(), json(&new.template.spec));
    }
}

/// The old template with everything that is open taken from the new one.
fn allowed(new: &PodTemplateSpec, old: &PodTemplateSpec, open: Open) -> PodTemplateSpec {
    let mut allowed = old.clone();
    let no_spec = PodSpec::default();
    let from = new.spec.as_ref().unwrap_or(&no_spec);
    let to = allowed.spec.get_or_insert_default();
    if open.directives {
        to.node_selector.clone_from(&from.node_selector);
        to.tolerations.clone_from(&from.tolerations);
        to.scheduling_gates.clone_from(&from.scheduling_gates);
        to.affinity = with_node_affinity(to.affinity.take(), from.affinity.as_ref());
    }
    if open.resources {
        copy_resources(&from.containers, &mut to.containers);
        copy_resources(list(&from.init_containers), to.init_containers.as_deref_mut().unwrap_or_default());
    }
    if open.directives {
        let new_meta = new.metadata.clone().unwrap_or_default();
        let meta = allowed.metadata.get_or_insert_default();
        meta.labels = new_meta.labels;
        meta.annotations = new_meta.annotations;
    }
    allowed
}

/// `old` with the node affinity of `new`; pod affinity and anti-affinity stay. An affinity that held nothing else may go.
fn with_node_affinity(old: Option<Affinity>, new: Option<&Affinity>) -> Option<Affinity> {
    match (old, new) {
        (None, None) => None,
        (None, Some(new)) => Some(Affinity { node_affinity: new.node_affinity.clone(), ..Affinity::default() }),
        (Some(old), None) => Some(Affinity { node_affinity: None, ..old }).filter(|rest| *rest != Affinity::default()),
        (Some(old), Some(new)) => Some(Affinity { node_affinity: new.node_affinity.clone(), ..old }),
    }
}

/// Requests and limits, where the containers are the same ones in the same order.
fn copy_resources(from: &[Container], to: &mut [Container]) {
    if from.len() != to.len() {
        return;
    }
    for (from, to) in from.iter().zip(to).filter(|(from, to)| from.name == to.name) {
        let no_resources = Default::default();
        let resources = from.resources.as_ref().unwrap_or(&no_resources);
        let claims = to.resources.as_ref().and_then(|resources| resources.claims.clone());
        let mut merged = resources.clone();
        merged.claims = claims;
        // An absent `resources` and an empty one are the same to everyone.
        to.resources = if merged == Default::default() { from.resources.clone() } else { Some(merged) };
    }
}
