//! RuntimeClasses: a handler's name, and what its pods cost and where they run.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::api::node::v1::RuntimeClass;
use serde_json::{Value, json};
use usher_schema::field::Errors;

use super::at::At;
use super::common::{each_invalid, list, text};
use super::pod_template::defaults::default_resource_list;
use super::pod_template::resources::{self, Names};
use super::pod_template::scheduling::validate_tolerations;
use super::pod_template::warnings::deprecated_node_label;
use super::selector::pairs;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::{meta, names, table};

const HANDLER: At = At::Root("handler");
const SCHEDULING: At = At::Root("scheduling");

pub struct RuntimeClasses;

impl Kind for RuntimeClasses {
    type Object = RuntimeClass;

    fn resource(&self) -> Resource {
        Resource::cluster("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
    }

    fn default(&self, class: &mut RuntimeClass) {
        class.overhead.iter_mut().flat_map(|overhead| &mut overhead.pod_fixed).for_each(default_resource_list);
    }

    fn validate(&self, _cx: &Cx, class: &RuntimeClass, errors: &mut Errors) {
        validate_cost(class, errors);
        validate_handler(class, errors);
    }

    fn validate_update(&self, _cx: &Cx, new: &RuntimeClass, old: &RuntimeClass, errors: &mut Errors) {
        validate_cost(new, errors);
        validate_handler(new, errors);
        if new.handler != old.handler {
            // Upstream checks this by a declaration that has no value to show.
            errors.immutable(&HANDLER.path(), Value::Null);
        }
    }

    fn warnings(&self, new: &RuntimeClass, _old: Option<&RuntimeClass>) -> Vec<String> {
        let selector = new.scheduling.as_ref().and_then(|scheduling| scheduling.node_selector.as_ref());
        let deprecated = selector.into_iter().flatten().filter_map(|(key, _)| deprecated_node_label(key));
        deprecated.map(|message| format!("scheduling.nodeSelector: {message}")).collect()
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Handler", "string", 0, "The container runtime's configuration it stands for."),
            table::age_column(),
        ]
    }

    fn cells(&self, class: &RuntimeClass, meta: &Value, now: Timestamp) -> Vec<Value> {
        vec![table::name_cell(meta), class.handler.as_str().into(), table::age_cell(meta, now)]
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn unconditional_update(&self) -> bool {
        false
    }
}

fn validate_handler(class: &RuntimeClass, errors: &mut Errors) {
    if class.handler.is_empty() {
        errors.required(&HANDLER.path(), "");
    } else {
        each_invalid(names::dns1123_label(&class.handler, false), &class.handler, &HANDLER, errors);
    }
}

fn validate_cost(class: &RuntimeClass, errors: &mut Errors) {
    if let Some(overhead) = &class.overhead {
        let limits = ResourceRequirements { limits: overhead.pod_fixed.clone(), ..ResourceRequirements::default() };
        resources::validate(&limits, Names::Container, &[], &At::Root("overhead"), errors);
    }
    let Some(scheduling) = &class.scheduling else { return };
    if let Some(labels) = &scheduling.node_selector {
        meta::validate_labels(pairs(labels), &SCHEDULING.child("nodeSelector"), errors);
    }
    let at = SCHEDULING.child("tolerations");
    let tolerations = list(&scheduling.tolerations);
    validate_tolerations(tolerations, &at, errors);
    let mut seen = BTreeSet::new();
    for (i, t) in tolerations.iter().enumerate() {
        let key = [text(&t.key), text(&t.operator), text(&t.value), text(&t.effect)];
        if !seen.insert(key) {
            let [key, operator, value, effect] = key;
            let shown = json!({"Key": key, "Operator": operator, "Value": value, "Effect": effect,
                "TolerationSeconds": t.toleration_seconds});
            errors.duplicate(&at.index(i).path(), shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create_errors, update_errors};

    fn class(handler: &str) -> Value {
        json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}, "handler": handler})
    }

    #[test]
    fn the_handler_is_a_label_and_stays() {
        assert_eq!(create_errors(&RuntimeClasses, class("")), ["handler: Required value"]);
        assert!(
            create_errors(&RuntimeClasses, class("Kata"))[0]
                .starts_with("handler: Invalid value: \"Kata\": a lowercase RFC 1123 label")
        );
        assert_eq!(
            update_errors(&RuntimeClasses, &Gates::default(), class("b"), class("a")),
            ["handler: Invalid value: null: field is immutable"]
        );
    }

    #[test]
    fn overhead_and_tolerations_are_checked() {
        let mut bad = class("a");
        bad["overhead"] = json!({"podFixed": {"cpu": "-1"}});
        bad["scheduling"] =
            json!({"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "Exists"}]});
        let errors = create_errors(&RuntimeClasses, bad);
        assert_eq!(errors[0], "overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0");
        assert!(errors[1].starts_with("scheduling.tolerations[1]: Duplicate value:"), "{errors:?}");
    }

    #[test]
    fn the_handler_is_a_column() {
        assert_eq!(Value::Array(cells(&RuntimeClasses, class("kata"))), json!(["r", "kata", "60m"]));
    }
}
