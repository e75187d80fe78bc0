//! core/v1 Pod.
//!
//! The spec's own rules are in [`pod_template`](super::pod_template), shared with templates; here is what only a Pod has:
//! [`prepare`] fills what a client may not choose, [`update`] and [`status`] say what may change, [`columns`] prints.

pub mod columns;
pub mod prepare;
pub mod status;
pub mod update;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::Value;
use usher_schema::field::{Errors, Path};

use super::at::At;
use super::common::{list, not_negative, text};
use super::pod_template::{annotations, containers, defaults, validate, warnings};
use crate::registry::kind::{Column, Cx, Kind, Resource};

const SPEC: At = At::Root("spec");
const METADATA: At = At::Root("metadata");

pub struct Pods;

impl Kind for Pods {
    type Object = Pod;

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "Pod", "pods")
            .short(&["po"])
            .in_all()
            .sub("binding", &["create"], Some(("", "v1", "Binding")))
            .sub("eviction", &["create"], Some(("policy", "v1", "Eviction")))
            .sub("log", &["get"], None)
            .with_status()
            .with_generation()
    }

    /// What is asked for, else what the pod says; none for a pod that runs nowhere or no longer.
    fn grace_secs(&self, pod: &Value, asked: Option<i64>) -> Option<i64> {
        let text = |at: &str| pod.pointer(at).and_then(Value::as_str).unwrap_or("");
        if text("/spec/nodeName").is_empty() || matches!(text("/status/phase"), "Succeeded" | "Failed") {
            return Some(0);
        }
        let own = || pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
        Some(asked.or_else(own).unwrap_or(0))
    }

    fn delete_shows_object(&self) -> bool {
        true
    }

    fn default(&self, pod: &mut Pod) {
        defaults::default_pod(pod);
    }

    fn prepare_create(&self, cx: &Cx, pod: &mut Pod) {
        prepare::create(pod, cx.now);
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Pod, old: &Pod) {
        // Pod-level resources were filled in on create; a client that never knew of them keeps them.
        if let (Some(new), Some(old)) = (&mut new.spec, &old.spec)
            && new.resources.is_none()
        {
            new.resources.clone_from(&old.resources);
        }
    }

    fn prepare_status_update(&self, _cx: &Cx, new: &mut Pod, old: &Pod) {
        status::prepare(new, old);
    }

    fn validate(&self, _cx: &Cx, pod: &Pod, errors: &mut Errors) {
        let Some(spec) = &pod.spec else { return errors.required(&SPEC.path(), "") };
        validate_metadata_and_spec(pod, spec, errors);
        if !list(&spec.ephemeral_containers).is_empty() {
            errors.forbidden(&SPEC.child("ephemeralContainers").path(), "cannot be set on create");
        }
        if !text(&spec.node_name).is_empty() && !list(&spec.scheduling_gates).is_empty() {
            let detail = "cannot be set until all schedulingGates have been cleared";
            errors.forbidden(&SPEC.child("nodeName").path(), detail);
        }
    }

    fn validate_update(&self, _cx: &Cx, new: &Pod, old: &Pod, errors: &mut Errors) {
        let Some(spec) = &new.spec else { return errors.required(&SPEC.path(), "") };
        validate_metadata_and_spec(new, spec, errors);
        let no_spec = PodSpec::default();
        validate_annotation_update(new, old, errors);
        update::validate(spec, old.spec.as_ref().unwrap_or(&no_spec), errors);
    }

    fn validate_status_update(&self, _cx: &Cx, new: &Pod, old: &Pod, errors: &mut Errors) {
        validate_annotation_update(new, old, errors);
        status::validate(new, old, errors);
    }

    fn warnings(&self, new: &Pod, old: Option<&Pod>) -> Vec<String> {
        match &new.spec {
            Some(spec) if old.is_none_or(|old| old.spec != new.spec) => {
                warnings::warnings(spec, &new.metadata, &Path::default())
            }
            _ => Vec::new(),
        }
    }

    fn defaults_status(&self) -> bool {
        false
    }

    fn warns_of_spec(&self) -> bool {
        true
    }

    fn columns(&self) -> Vec<Column> {
        columns::columns()
    }

    fn cells(&self, pod: &Pod, meta: &Value, now: Timestamp) -> Vec<Value> {
        columns::cells(pod, meta, now)
    }

    fn selectable(&self) -> &'static [&'static str] {
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ]
    }

    fn selected_paths(&self) -> &'static [&'static [&'static str]] {
        &[
            &["spec", "hostNetwork"],
            &["spec", "nodeName"],
            &["spec", "restartPolicy"],
            &["spec", "schedulerName"],
            &["spec", "serviceAccountName"],
            &["status", "nominatedNodeName"],
            &["status", "phase"],
            &["status", "podIPs"],
        ]
    }

    fn select(&self, pod: &Value, field: &str) -> String {
        let pointer = match field {
            "spec.nodeName" => "/spec/nodeName",
            "spec.restartPolicy" => "/spec/restartPolicy",
            "spec.schedulerName" => "/spec/schedulerName",
            "spec.serviceAccountName" => "/spec/serviceAccountName",
            "status.phase" => "/status/phase",
            "status.podIP" => "/status/podIPs/0/ip",
            "status.nominatedNodeName" => "/status/nominatedNodeName",
            "spec.hostNetwork" => {
                return (pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true))).to_string();
            }
            // Upstream accepts status.podIPs in a selector and never has a value for it.
            _ => return String::new(),
        };
        pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

fn validate_metadata_and_spec(pod: &Pod, spec: &PodSpec, errors: &mut Errors) {
    if let Some(notes) = &pod.metadata.annotations {
        annotations::validate(notes, spec, &METADATA.child("annotations"), errors);
    }
    validate::validate_spec(spec, Some(&pod.metadata), &SPEC, errors);
    if text(&spec.service_account_name).is_empty() {
        forbid_tokens(spec, errors);
    }
    if let Some(secs) = spec.termination_grace_period_seconds {
        not_negative(secs, &SPEC.child("terminationGracePeriodSeconds"), errors);
    }
    for (i, container) in spec.containers.iter().enumerate() {
        containers::validate_image_padding(container, &SPEC.child("containers").index(i), errors);
    }
    for (i, container) in list(&spec.init_containers).iter().enumerate() {
        containers::validate_image_padding(container, &SPEC.child("initContainers").index(i), errors);
    }
}

/// A token is an account's; a pod without an account can have none.
fn forbid_tokens(spec: &PodSpec, errors: &mut Errors) {
    for (v, volume) in list(&spec.volumes).iter().enumerate() {
        let sources = volume.projected.as_ref().map_or(&[][..], |projected| list(&projected.sources));
        for (s, _) in sources.iter().enumerate().filter(|(_, source)| source.service_account_token.is_some()) {
            let at = SPEC.child("volumes");
            let at = at.index(v);
            let at = at.child("projected");
            let at = at.child("sources");
            let detail = "must not be specified when serviceAccountName is not set";
            errors.forbidden(&at.index(s).child("serviceAccountToken").path(), detail);
        }
    }
}

fn validate_annotation_update(new: &Pod, old: &Pod, errors: &mut Errors) {
    let (new, old) = (validate::annotations_of(&new.metadata), validate::annotations_of(&old.metadata));
    annotations::validate_update(&new, &old, &METADATA.child("annotations"), errors);
}

#[cfg(test)]
mod tests;
