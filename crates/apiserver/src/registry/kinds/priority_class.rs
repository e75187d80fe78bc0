//! PriorityClasses. That at most one is the global default is admission's rule; that the system ones stay is the server's.

use jiff::Timestamp;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::Value;
use usher_schema::field::{Errors, Path};

use super::at::At;
use super::common::{immutable, is_true, required_one_of, text};
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::table;

pub const SYSTEM_PREFIX: &str = "system-";
/// The classes every cluster has, with their values. They cannot be deleted.
pub const SYSTEM_CLASSES: [(&str, i32); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
pub const HIGHEST_USER_VALUE: i32 = 1_000_000_000;

pub struct PriorityClasses;

impl Kind for PriorityClasses {
    type Object = PriorityClass;

    fn resource(&self) -> Resource {
        Resource::cluster("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
            .short(&["pc"])
            .with_generation()
    }

    fn default(&self, class: &mut PriorityClass) {
        class.value.get_or_insert_default();
        class.preemption_policy.get_or_insert_with(|| "PreemptLowerPriority".to_owned());
    }

    fn validate(&self, _cx: &Cx, class: &PriorityClass, errors: &mut Errors) {
        let (name, value) = (text(&class.metadata.name), class.value.unwrap_or_default());
        if name.starts_with(SYSTEM_PREFIX) {
            if let Some(problem) = system_problem(name, value, is_true(class.global_default)) {
                let detail = format!(
                    "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {problem}"
                );
                errors.forbidden(&Path::new("metadata").child("name"), detail);
            }
        } else if value > HIGHEST_USER_VALUE {
            let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_VALUE}");
            errors.forbidden(&Path::new("value"), detail);
        }
        if let Some(policy) = &class.preemption_policy {
            required_one_of(policy, &["PreemptLowerPriority", "Never"], &At::Root("preemptionPolicy"), errors);
        }
    }

    fn validate_update(&self, _cx: &Cx, new: &PriorityClass, old: &PriorityClass, errors: &mut Errors) {
        if new.value != old.value {
            errors.forbidden(&Path::new("value"), "may not be changed in an update.");
        }
        immutable(&new.preemption_policy, &old.preemption_policy, &At::Root("preemptionPolicy"), errors);
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Value", "integer", 0, "Priority of pods of this class."),
            Column::new("Global-Default", "boolean", 0, "Whether pods without a class get this one."),
            table::age_column(),
            Column::new("PreemptionPolicy", "string", 0, "Whether pods of this class preempt lower ones."),
        ]
    }

    fn cells(&self, class: &PriorityClass, meta: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            table::name_cell(meta),
            class.value.unwrap_or_default().into(),
            is_true(class.global_default).into(),
            table::age_cell(meta, now),
            text(&class.preemption_policy).into(),
        ]
    }
}

fn system_problem(name: &str, value: i32, global: bool) -> Option<String> {
    match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
        None => Some(format!("{name} is not a known system priority class")),
        Some((_, wanted)) if *wanted != value => Some(format!("value of {name} PriorityClass must be {wanted}")),
        Some(_) if global => Some(format!("globalDefault of {name} PriorityClass must be false")),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create_errors, update_errors};
    use serde_json::json;

    fn class(name: &str, value: i64) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}, "value": value})
    }

    #[test]
    fn the_highest_values_and_system_names_are_reserved() {
        assert!(create_errors(&PriorityClasses, class("high", 1_000_000_000)).is_empty());
        assert!(create_errors(&PriorityClasses, class("system-node-critical", 2_000_001_000)).is_empty());
        assert_eq!(
            create_errors(&PriorityClasses, class("high", 1_000_000_001)),
            ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"]
        );
        let reserved = "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error:";
        assert_eq!(
            create_errors(&PriorityClasses, class("system-mine", 1)),
            [format!("{reserved} system-mine is not a known system priority class")]
        );
        assert_eq!(
            create_errors(&PriorityClasses, class("system-cluster-critical", 1)),
            [format!("{reserved} value of system-cluster-critical PriorityClass must be 2000000000")]
        );
    }

    #[test]
    fn value_and_policy_never_change() {
        let mut new = class("a", 2);
        new["preemptionPolicy"] = json!("Never");
        assert_eq!(
            update_errors(&PriorityClasses, &Gates::default(), new, class("a", 1)),
            [
                "value: Forbidden: may not be changed in an update.",
                "preemptionPolicy: Invalid value: \"Never\": field is immutable"
            ]
        );
    }

    #[test]
    fn columns_read_like_kubectls() {
        assert_eq!(
            Value::Array(cells(&PriorityClasses, class("a", 7))),
            json!(["a", 7, false, "60m", "PreemptLowerPriority"])
        );
    }
}
