//! ResourceQuotas: checked here, counted by the quota controller, enforced by admission.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaSpec, ScopedResourceSelectorRequirement};
use k8s_openapi::apimachinery::pkg::api::resource;
use serde_json::{Value, json};
use usher_api::quantity::Quantity;
use usher_schema::field::Errors;

use super::at::At;
use super::common::{json as shown, list};
use super::pod_template::defaults::default_resource_list;
use super::pod_template::resources::{is_standard, validate_quantity, validate_resource_name};
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::table;

const POD_RESOURCES: [&str; 7] =
    ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const CLAIM_RESOURCES: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];
const POD_SCOPES: [&str; 5] =
    ["Terminating", "NotTerminating", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity"];
const CONFLICTS: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];
const SPEC: At = At::Root("spec");
const STATUS: At = At::Root("status");

type List = BTreeMap<String, resource::Quantity>;

pub struct ResourceQuotas;

impl Kind for ResourceQuotas {
    type Object = ResourceQuota;

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "ResourceQuota", "resourcequotas").short(&["quota"]).with_status()
    }

    fn default(&self, quota: &mut ResourceQuota) {
        let (spec, status) = (quota.spec.get_or_insert_default(), quota.status.get_or_insert_default());
        for resources in [&mut spec.hard, &mut status.hard, &mut status.used] {
            resources.iter_mut().for_each(default_resource_list);
        }
    }

    fn validate(&self, _cx: &Cx, quota: &ResourceQuota, errors: &mut Errors) {
        if let Some(spec) = &quota.spec {
            validate_list(&spec.hard, &SPEC.child("hard"), errors);
            validate_scopes(spec, errors);
            validate_selector(spec, errors);
        }
    }

    fn validate_update(&self, cx: &Cx, new: &ResourceQuota, old: &ResourceQuota, errors: &mut Errors) {
        self.validate(cx, new, errors);
        let scopes = |quota: &ResourceQuota| -> BTreeSet<String> {
            quota.spec.iter().flat_map(|spec| list(&spec.scopes)).cloned().collect()
        };
        if scopes(new) != scopes(old) {
            let given = new.spec.as_ref().and_then(|spec| spec.scopes.as_ref());
            errors.immutable(&SPEC.child("scopes").path(), shown(&given));
        }
    }

    fn validate_status_update(&self, _cx: &Cx, new: &ResourceQuota, _old: &ResourceQuota, errors: &mut Errors) {
        if let Some(status) = &new.status {
            validate_list(&status.hard, &STATUS.child("hard"), errors);
            validate_list(&status.used, &STATUS.child("used"), errors);
        }
    }

    /// Only on create, as upstream does.
    fn warnings(&self, new: &ResourceQuota, old: Option<&ResourceQuota>) -> Vec<String> {
        let hard = new.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        let Some(hard) = hard.filter(|_| old.is_none()) else { return Vec::new() };
        let quantity = |name: &str| hard.get(name).and_then(|quantity| Quantity::parse(&quantity.0).ok());
        let mut out = Vec::new();
        for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
            let mut request_name = format!("requests.{name}");
            let mut request = quantity(&request_name);
            if request.is_none() && matches!(name, "cpu" | "memory") {
                request = quantity(name);
                name.clone_into(&mut request_name);
            }
            let limit_name = format!("limits.{name}");
            if let (Some(request), Some(limit)) = (request, quantity(&limit_name))
                && request > limit
            {
                out.push(format!(
                    "ResourceQuota {request_name} ({request}) should be less than {limit_name} ({limit})"
                ));
            }
        }
        out
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Request", "string", 0, "What is used of the quota for requests and objects."),
            Column::new("Limit", "string", 0, "What is used of the quota for limits."),
            table::age_column(),
        ]
    }

    fn cells(&self, quota: &ResourceQuota, meta: &Value, now: Timestamp) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        if let Some(status) = &quota.status {
            for (name, hard) in status.hard.iter().flatten() {
                let used = status.used.as_ref().and_then(|used| used.get(name)).map_or("0", |used| used.0.as_str());
                let column = if name.starts_with("limits.") { &mut limits } else { &mut requests };
                column.push(format!("{name}: {used}/{}", hard.0));
            }
        }
        vec![table::name_cell(meta), requests.join(", ").into(), limits.join(", ").into(), table::age_cell(meta, now)]
    }
}

fn validate_list(resources: &Option<List>, at: &At, errors: &mut Errors) {
    for (name, quantity) in resources.iter().flatten() {
        let at = at.key(name);
        validate_resource_name(name, &at, errors);
        if !name.contains('/') && !is_quota_resource(name) {
            errors.invalid(&at.path(), name.as_str(), "must be a standard resource for quota");
        }
        validate_quantity(name, quantity, &at, errors);
    }
}

/// Everything that is a resource but `storage`, which is counted per claim as `requests.storage`.
fn is_quota_resource(name: &str) -> bool {
    name != "storage" && is_standard(name)
}

fn is_scope(scope: &str) -> bool {
    POD_SCOPES.contains(&scope) || matches!(scope, "BestEffort" | "VolumeAttributesClass")
}

/// Whether a quota with this scope can count the resource.
fn counts(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => CLAIM_RESOURCES.contains(&resource),
        _ => !POD_SCOPES.contains(&scope) || POD_RESOURCES.contains(&resource),
    }
}

/// How many of the quota's resources the scope cannot count.
fn uncountable(spec: &ResourceQuotaSpec, scope: &str) -> usize {
    let names = spec.hard.iter().flatten().map(|(name, _)| name.as_str());
    names.filter(|name| is_quota_resource(name) && !counts(scope, name)).count()
}

fn validate_scopes(spec: &ResourceQuotaSpec, errors: &mut Errors) {
    let scopes = list(&spec.scopes);
    let at = SPEC.child("scopes");
    for scope in scopes {
        if !is_scope(scope) {
            errors.invalid(&at.path(), scopes, "unsupported scope");
        }
        for _ in 0..uncountable(spec, scope) {
            errors.invalid(&at.path(), scopes, "unsupported scope applied to resource");
        }
    }
    let has = |scope: &str| scopes.iter().any(|s| s == scope);
    for _ in CONFLICTS.iter().filter(|pair| pair.iter().all(|scope| has(scope))) {
        errors.invalid(&at.path(), scopes, "conflicting scopes");
    }
}

fn validate_selector(spec: &ResourceQuotaSpec, errors: &mut Errors) {
    let Some(selector) = &spec.scope_selector else { return };
    let requirements = list(&selector.match_expressions);
    let at = SPEC.child("scopeSelector");
    let at = at.child("matchExpressions");
    for requirement in requirements {
        if !is_scope(&requirement.scope_name) {
            errors.invalid(&at.child("scopeName").path(), requirement.scope_name.as_str(), "unsupported scope");
        }
        for _ in 0..uncountable(spec, &requirement.scope_name) {
            errors.invalid(&at.path(), go_selector(requirements), "unsupported scope applied to resource");
        }
        validate_requirement(requirement, &at, errors);
    }
    let has = |scope: &str| requirements.iter().any(|r| r.scope_name == scope);
    for _ in CONFLICTS.iter().filter(|pair| pair.iter().all(|scope| has(scope))) {
        errors.invalid(&at.path(), shown(&spec.scopes), "conflicting scopes");
    }
}

fn validate_requirement(requirement: &ScopedResourceSelectorRequirement, at: &At, errors: &mut Errors) {
    let operator = requirement.operator.as_str();
    let valueless = ["BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "CrossNamespacePodAffinity"];
    if valueless.contains(&requirement.scope_name.as_str()) && operator != "Exists" {
        let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                      ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.invalid(&at.child("operator").path(), operator, detail);
    }
    let values = list(&requirement.values);
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            errors.required(&at.child("values").path(), detail);
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
            errors.invalid(&at.child("values").path(), values, detail);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.invalid(&at.child("operator").path(), other, "not a valid selector operator"),
    }
}

fn go_selector(requirements: &[ScopedResourceSelectorRequirement]) -> Value {
    let each = |r: &ScopedResourceSelectorRequirement| json!({"ScopeName": r.scope_name, "Operator": r.operator, "Values": r.values});
    json!({"MatchExpressions": requirements.iter().map(each).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create, create_errors, merged, status_errors, update_errors};

    fn quota(extra: Value) -> Value {
        merged(json!({"metadata": {"name": "q", "creationTimestamp": "2026-01-01T00:00:00Z"}}), extra)
    }

    #[test]
    fn counted_resources_pass_in_canonical_form() {
        let hard = json!({"requests.cpu": "1000m", "pods": "4", "count/jobs.batch": "3", "requests.nvidia.com/gpu": 2,
            "gold.storageclass.storage.k8s.io/requests.storage": "1Gi", "requests.hugepages-2Mi": "2Mi"});
        let (stored, errors) = create(&ResourceQuotas, quota(json!({"spec": {"hard": hard}})));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(stored["spec"]["hard"]["requests.cpu"], "1");
        assert_eq!(stored["status"], json!({}));
    }

    #[test]
    fn mistakes_are_refused() {
        for (spec, expected) in [
            (
                json!({"hard": {"storage": "1"}}),
                "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota",
            ),
            (json!({"hard": {"pods": "1500m"}}), "spec.hard[pods]: Invalid value: \"1500m\": must be an integer"),
            (json!({"scopes": ["Sunny"]}), "spec.scopes: Invalid value: [\"Sunny\"]: unsupported scope"),
            (
                json!({"scopes": ["BestEffort"], "hard": {"cpu": "1", "pods": "1"}}),
                "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource",
            ),
            (
                json!({"scopes": ["Terminating", "NotTerminating"]}),
                "spec.scopes: Invalid value: [\"Terminating\",\"NotTerminating\"]: conflicting scopes",
            ),
            (
                json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}),
                "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
        ] {
            assert_eq!(create_errors(&ResourceQuotas, quota(json!({"spec": spec}))), [expected], "{spec}");
        }
    }

    #[test]
    fn scopes_never_change() {
        let new = quota(json!({"spec": {"scopes": ["BestEffort"]}}));
        assert_eq!(
            update_errors(&ResourceQuotas, &Gates::default(), new, quota(json!({}))),
            ["spec.scopes: Invalid value: [\"BestEffort\"]: field is immutable"]
        );
    }

    #[test]
    fn a_status_counts_known_resources() {
        let new = quota(json!({"status": {"used": {"moons": "1"}}}));
        assert_eq!(
            status_errors(&ResourceQuotas, new, quota(json!({}))),
            [
                "status.used[moons]: Invalid value: \"moons\": must be a standard resource type or fully qualified",
                "status.used[moons]: Invalid value: \"moons\": must be a standard resource for quota"
            ]
        );
    }

    #[test]
    fn more_requests_than_limits_are_warned_of_on_create() {
        let object: ResourceQuota =
            serde_json::from_value(quota(json!({"spec": {"hard": {"cpu": "3", "limits.cpu": "2"}}}))).unwrap();
        let warning = "ResourceQuota cpu (3) should be less than limits.cpu (2)";
        assert_eq!(ResourceQuotas.warnings(&object, None), [warning]);
        assert!(ResourceQuotas.warnings(&object, Some(&object)).is_empty());
    }

    #[test]
    fn columns_show_use_by_kind_of_resource() {
        let status = json!({"hard": {"pods": "4", "cpu": "2", "limits.cpu": "3"}, "used": {"cpu": "500m"}});
        assert_eq!(
            Value::Array(cells(&ResourceQuotas, quota(json!({"status": status})))),
            json!(["q", "cpu: 500m/2, pods: 0/4", "limits.cpu: 0/3", "60m"])
        );
    }
}
