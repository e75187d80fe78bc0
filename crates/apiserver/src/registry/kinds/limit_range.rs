//! LimitRanges: checked and defaulted here, applied to pods by admission.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource;
use serde_json::Value;
use usher_api::quantity::{Format, Quantity};
use usher_schema::field::Errors;

use super::at::At;
use super::common::each_invalid;
use super::json_field::{created_at_cells, created_at_columns};
use super::pod_template::defaults::default_resource_list;
use super::pod_template::resources::{is_extended, is_huge_pages, is_native, validate_resource_name};
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::names;

const STANDARD_TYPES: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const SPEC: At = At::Root("spec");

type List = BTreeMap<String, resource::Quantity>;

pub struct LimitRanges;

impl Kind for LimitRanges {
    type Object = LimitRange;

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "LimitRange", "limitranges").short(&["limits"])
    }

    fn default(&self, range: &mut LimitRange) {
        range.spec.get_or_insert_default().limits.iter_mut().for_each(default_item);
    }

    fn validate(&self, _cx: &Cx, range: &LimitRange, errors: &mut Errors) {
        let Some(spec) = &range.spec else { return };
        let at = SPEC.child("limits");
        let mut types = BTreeSet::new();
        for (i, item) in spec.limits.iter().enumerate() {
            let at = at.index(i);
            validate_type(&item.type_, &at.child("type"), errors);
            if !types.insert(&item.type_) {
                errors.duplicate(&at.child("type").path(), item.type_.as_str());
            }
            validate_item(item, &at, errors);
        }
    }

    fn columns(&self) -> Vec<Column> {
        created_at_columns()
    }

    fn cells(&self, _range: &LimitRange, meta: &Value, _now: Timestamp) -> Vec<Value> {
        created_at_cells(meta)
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

/// For containers, what is not said follows from what is: the default limit from the maximum, the default request from
/// the default limit or else the minimum.
fn default_item(item: &mut LimitRangeItem) {
    for list in
        [&mut item.max, &mut item.min, &mut item.default, &mut item.default_request, &mut item.max_limit_request_ratio]
    {
        list.iter_mut().for_each(default_resource_list);
    }
    if item.type_ != "Container" {
        return;
    }
    fn fill(target: &mut Option<List>, source: &Option<List>) {
        for (name, quantity) in source.iter().flatten() {
            target.get_or_insert_default().entry(name.clone()).or_insert_with(|| quantity.clone());
        }
    }
    fill(&mut item.default, &item.max);
    fill(&mut item.default_request, &item.default);
    fill(&mut item.default_request, &item.min);
}

fn validate_type(kind: &str, at: &At, errors: &mut Errors) {
    let problems = names::qualified(kind);
    if problems.is_empty() && !kind.contains('/') && !STANDARD_TYPES.contains(&kind) {
        errors.invalid(&at.path(), kind, "must be a standard limit type or fully qualified");
    }
    each_invalid(problems, kind, at, errors);
}

fn validate_item(item: &LimitRangeItem, at: &At, errors: &mut Errors) {
    let is_pod = item.type_ == "Pod";
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    type Slot = fn(&mut Row) -> &mut Option<Quantity>;
    let parts: [(&'static str, &Option<List>, Slot, bool); 5] = [
        ("max", &item.max, |row| &mut row.max, true),
        ("min", &item.min, |row| &mut row.min, true),
        ("default", &item.default, |row| &mut row.limit, !is_pod),
        ("defaultRequest", &item.default_request, |row| &mut row.request, !is_pod),
        ("maxLimitRequestRatio", &item.max_limit_request_ratio, |row| &mut row.ratio, true),
    ];
    for (field, resources, slot, allowed) in parts {
        let at_field = at.child(field);
        if field == "maxLimitRequestRatio" && item.type_ == "PersistentVolumeClaim" {
            let has = |list: &Option<List>| list.as_ref().is_some_and(|list| list.contains_key("storage"));
            if !has(&item.min) && !has(&item.max) {
                let detail = "either minimum or maximum storage value is required, but neither was provided";
                errors.required(&at.child("limits").path(), detail);
            }
        }
        if !allowed {
            if resources.as_ref().is_some_and(|resources| !resources.is_empty()) {
                errors.forbidden(&at_field.path(), "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        for (name, quantity) in resources.iter().flatten() {
            let at = at_field.key(name);
            validate_name(&item.type_, name, &at, errors);
            match Quantity::parse(&quantity.0) {
                Ok(parsed) => *slot(rows.entry(name.as_str()).or_default()) = Some(parsed),
                Err(problem) => errors.invalid(&at.path(), quantity.0.as_str(), problem.to_string()),
            }
        }
    }
    for (name, row) in &rows {
        row.validate(name, at, errors);
    }
}

fn validate_name(kind: &str, name: &str, at: &At, errors: &mut Errors) {
    validate_resource_name(name, at, errors);
    if kind != "Pod" && kind != "Container" {
        return;
    }
    if !name.contains('/') {
        if !CONTAINER_RESOURCES.contains(&name) && !is_huge_pages(name) {
            errors.invalid(&at.path(), name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(&at.path(), name, "doesn't follow extended resource name standard");
    }
}

/// What is said about one resource.
#[derive(Default)]
struct Row {
    min: Option<Quantity>,
    max: Option<Quantity>,
    limit: Option<Quantity>,
    request: Option<Quantity>,
    ratio: Option<Quantity>,
}

impl Row {
    fn validate(&self, name: &str, at: &At, errors: &mut Errors) {
        let mut check = |low: Option<Quantity>,
                         high: Option<Quantity>,
                         field: &'static str,
                         shown: Option<Quantity>,
                         words: [&str; 2]| {
            if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
                && low > high
            {
                let detail = format!("{} value {low} is greater than {} value {high}", words[0], words[1]);
                errors.invalid(&at.child(field).key(name).path(), shown.to_string(), detail);
            }
        };
        check(self.min, self.max, "min", self.min, ["min", "max"]);
        check(self.min, self.request, "defaultRequest", self.request, ["min", "default request"]);
        check(self.request, self.max, "defaultRequest", self.request, ["default request", "max"]);
        check(self.request, self.limit, "defaultRequest", self.request, ["default request", "default limit"]);
        check(self.min, self.limit, "default", self.min, ["min", "default"]);
        check(self.limit, self.max, "default", self.max, ["default", "max"]);
        self.validate_ratio(name, at, errors);
        if let (Some(limit), Some(request)) = (self.limit, self.request)
            && limit != request
            && (!is_native(name) || is_huge_pages(name))
        {
            let detail = format!("default value {limit} must equal to defaultRequest value {request} in {name}");
            errors.invalid(&at.child("defaultRequest").key(name).path(), request.to_string(), detail);
        }
    }

    fn validate_ratio(&self, name: &str, at: &At, errors: &mut Errors) {
        let Some(ratio) = self.ratio else { return };
        let at = at.child("maxLimitRequestRatio");
        let at = at.key(name);
        let number = |quantity: Quantity| quantity.rounded_to_milli().nanos() as f64;
        let one = number(Quantity::from_units(1, Format::Decimal));
        if number(ratio) < one {
            errors.invalid(&at.path(), ratio.to_string(), format!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (self.min, self.max) {
            let most = number(max) / number(min);
            if number(ratio) / one > most {
                let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
                errors.invalid(&at.path(), ratio.to_string(), detail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kinds::testing::{cells, create, create_errors};
    use serde_json::json;

    fn range(item: Value) -> Value {
        json!({"metadata": {"name": "l", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"limits": [item]}})
    }

    #[test]
    fn container_defaults_follow_from_the_bounds() {
        let (stored, errors) = create(
            &LimitRanges,
            range(
                json!({"type": "Container", "max": {"cpu": "2", "memory": "1Gi"}, "min": {"cpu": "100m", "ephemeral-storage": "1Gi"},
                "default": {"cpu": "0.5"}}),
            ),
        );
        assert!(errors.is_empty(), "{errors:?}");
        let item = &stored["spec"]["limits"][0];
        assert_eq!(item["default"], json!({"cpu": "500m", "memory": "1Gi"}));
        assert_eq!(item["defaultRequest"], json!({"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"}));
    }

    #[test]
    fn contradictions_are_refused() {
        for (item, expected) in [
            (
                json!({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}),
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            ),
            (
                json!({"type": "Container", "defaultRequest": {"cpu": "2"}, "default": {"cpu": "1"}}),
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than default limit value 1",
            ),
            (
                json!({"type": "Pod", "default": {"cpu": "2"}}),
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            ),
            (
                json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}}),
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
            ),
            (
                json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "3"}, "max": {"cpu": "2"}, "min": {"cpu": "1"}}),
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.000000",
            ),
            (
                json!({"type": "PersistentVolumeClaim"}),
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            ),
            (
                json!({"type": "Planet"}),
                "spec.limits[0].type: Invalid value: \"Planet\": must be a standard limit type or fully qualified",
            ),
            (
                json!({"type": "Container", "default": {"nvidia.com/gpu": "2"}, "defaultRequest": {"nvidia.com/gpu": "1"}}),
                "spec.limits[0].defaultRequest[nvidia.com/gpu]: Invalid value: \"1\": default value 2 must equal to defaultRequest value 1 in nvidia.com/gpu",
            ),
            (
                json!({"type": "Container", "max": {"pods": "2"}}),
                "spec.limits[0].max[pods]: Invalid value: \"pods\": must be a standard resource for containers",
            ),
        ] {
            assert_eq!(create_errors(&LimitRanges, range(item.clone()))[..1], [expected], "{item}");
        }
    }

    #[test]
    fn each_type_is_there_once() {
        let item = json!({"type": "Pod"});
        let twice = json!({"metadata": {"name": "l"}, "spec": {"limits": [item, item]}});
        assert_eq!(create_errors(&LimitRanges, twice), ["spec.limits[1].type: Duplicate value: \"Pod\""]);
    }

    #[test]
    fn columns_are_name_and_time() {
        assert_eq!(Value::Array(cells(&LimitRanges, range(json!({})))), json!(["l", "2026-01-01T00:00:00Z"]));
    }
}
