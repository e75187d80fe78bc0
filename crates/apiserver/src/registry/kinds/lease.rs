//! Leases. Leader election of every controller writes them, so a PUT without a resourceVersion is refused.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use serde_json::Value;
use usher_schema::field::Errors;

use super::at::At;
use super::common::{each_invalid, one_of, optional_not_negative, text};
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::{names, table};

const SPEC: At = At::Root("spec");

pub struct Leases;

impl Kind for Leases {
    type Object = Lease;

    fn warns(&self) -> bool {
        false
    }

    fn resource(&self) -> Resource {
        Resource::namespaced("coordination.k8s.io", "v1", "Lease", "leases")
    }

    fn default(&self, lease: &mut Lease) {
        lease.spec.get_or_insert_default();
    }

    fn prepare_create(&self, _cx: &Cx, lease: &mut Lease) {
        keep_coordination(lease, None);
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Lease, old: &Lease) {
        keep_coordination(new, old.spec.as_ref());
    }

    fn validate(&self, _cx: &Cx, lease: &Lease, errors: &mut Errors) {
        let Some(spec) = &lease.spec else { return };
        if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
            errors.invalid(&SPEC.child("leaseDurationSeconds").path(), seconds, "must be greater than 0");
        }
        optional_not_negative(spec.lease_transitions, &SPEC.child("leaseTransitions"), errors);
        if let Some(strategy) = &spec.strategy {
            let at = SPEC.child("strategy");
            let at = at.child("strategy");
            if strategy.contains('/') {
                each_invalid(names::qualified(strategy), strategy, &at, errors);
            } else {
                one_of(strategy, &["OldestEmulationVersion"], &at, errors);
            }
        }
        if !text(&spec.preferred_holder).is_empty() && text(&spec.strategy).is_empty() {
            let at = SPEC.child("preferredHolder");
            errors.forbidden(&at.path(), "may only be specified if `strategy` is defined");
        }
    }

    fn columns(&self) -> Vec<Column> {
        vec![table::name_column(), Column::new("Holder", "string", 0, "Who holds the lease."), table::age_column()]
    }

    fn cells(&self, lease: &Lease, meta: &Value, now: Timestamp) -> Vec<Value> {
        let holder = lease.spec.as_ref().map_or("", |spec| text(&spec.holder_identity));
        vec![table::name_cell(meta), holder.into(), table::age_cell(meta, now)]
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn unconditional_update(&self) -> bool {
        false
    }
}

/// Coordinated leader election is off by default upstream: only what is there already may stay.
fn keep_coordination(lease: &mut Lease, old: Option<&LeaseSpec>) {
    let Some(spec) = &mut lease.spec else { return };
    if old.is_none_or(|old| old.strategy.is_none()) {
        spec.strategy = None;
    }
    if old.is_none_or(|old| old.preferred_holder.is_none()) {
        spec.preferred_holder = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kinds::testing::{cells, create, create_errors};
    use serde_json::json;

    #[test]
    fn durations_and_counts_are_positive() {
        let spec = json!({"leaseDurationSeconds": 0, "leaseTransitions": -1});
        assert_eq!(
            create_errors(&Leases, json!({"metadata": {"name": "l"}, "spec": spec})),
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"
            ]
        );
    }

    #[test]
    fn gated_fields_are_dropped() {
        let spec = json!({"strategy": "Any", "preferredHolder": "a", "holderIdentity": "b"});
        let (stored, errors) = create(&Leases, json!({"metadata": {"name": "l"}, "spec": spec}));
        assert!(errors.is_empty());
        assert_eq!(stored["spec"], json!({"holderIdentity": "b"}));
    }

    #[test]
    fn the_holder_is_a_column() {
        let lease = json!({"metadata": {"name": "l", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"holderIdentity": "me"}});
        assert_eq!(Value::Array(cells(&Leases, lease)), json!(["l", "me", "60m"]));
        assert!(Leases.create_on_update() && !Leases.unconditional_update());
    }
}
