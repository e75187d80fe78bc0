//! CustomResourceDefinitions as objects. What they define, and whether it makes sense, is in [`crate::crd`].

use jiff::Timestamp;
use serde_json::Value;
use usher_schema::field::Errors;

use super::json_field::text_at;
use crate::crd::{definition, status};
use crate::object;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::served::Deletion;
use crate::registry::table;

/// Until its objects are gone, a definition that is being deleted stays.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

pub struct CustomResourceDefinitions;

impl Kind for CustomResourceDefinitions {
    /// Schemas are data: no type of ours would keep them as they are.
    type Object = Value;

    fn resource(&self) -> Resource {
        Resource::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
            .short(&["crd", "crds"])
            .in_category("api-extensions")
            .with_status()
            .with_generation()
    }

    fn default(&self, crd: &mut Value) {
        definition::default(crd);
    }

    fn prepare_create(&self, _cx: &Cx, crd: &mut Value) {
        definition::prepare_create(crd);
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Value, old: &Value) {
        definition::prepare_update(new, old);
    }

    fn validate(&self, _cx: &Cx, crd: &Value, errors: &mut Errors) {
        definition::validate(crd, errors);
    }

    fn validate_update(&self, _cx: &Cx, new: &Value, old: &Value, errors: &mut Errors) {
        definition::validate_update(new, old, errors);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        definition::warnings(new, old)
    }

    fn begin_deletion(&self, crd: &mut Value, now: Timestamp) -> Deletion {
        let mut finalizers: Vec<String> = object::finalizers(crd).into_iter().map(str::to_owned).collect();
        if object::is_deleting(crd) {
            return Deletion::Marked;
        }
        if !finalizers.iter().any(|f| f == CLEANUP) {
            finalizers.push(CLEANUP.to_owned());
            object::set_finalizers(crd, &finalizers);
        }
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        status::terminate(crd, "InstanceDeletionPending", message, now);
        Deletion::Marked
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Scope", "string", 0, "Whether its objects are in namespaces."),
            Column::new("Versions", "string", 0, "Served versions; the stored one is marked."),
            Column::new("Created At", "date", 0, "When the definition was created."),
            Column::new("Group", "string", 1, "Group of its objects."),
            Column::new("Kind", "string", 1, "Kind of its objects."),
            Column::new("ShortNames", "string", 1, "Abbreviations of its name."),
            Column::new("Established", "boolean", 1, "Whether its objects are served."),
        ]
    }

    fn cells(&self, crd: &Value, meta: &Value, _now: Timestamp) -> Vec<Value> {
        let mut versions: Vec<String> = items(crd, "/spec/versions").iter().filter_map(served_label).collect();
        versions.sort();
        let short_names: Vec<&str> = items(crd, "/spec/names/shortNames").iter().filter_map(Value::as_str).collect();
        let established = items(crd, "/status/conditions")
            .iter()
            .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
        let created = meta.get("creationTimestamp").and_then(Value::as_str).unwrap_or("0001-01-01T00:00:00Z");
        vec![
            table::name_cell(meta),
            text_at(crd, "/spec/scope").into(),
            versions.join(",").into(),
            created.into(),
            text_at(crd, "/spec/group").into(),
            text_at(crd, "/spec/names/kind").into(),
            short_names.join(",").into(),
            established.into(),
        ]
    }

    fn unconditional_update(&self) -> bool {
        false
    }
}

fn items<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn served_label(version: &Value) -> Option<String> {
    let name = version["name"].as_str().filter(|_| version["served"] == true)?;
    Some(if version["storage"] == true { format!("{name}(storage)") } else { name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kinds::testing::cells;
    use serde_json::json;

    fn crd() -> Value {
        json!({"metadata": {"name": "widgets.example.com", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["w", "wd"]},
                "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v1alpha1", "served": true, "storage": false},
                    {"name": "v0", "served": false, "storage": false}]}})
    }

    #[test]
    fn a_deletion_waits_for_the_objects_and_says_so() {
        let mut object = crd();
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(CustomResourceDefinitions.begin_deletion(&mut object, now), Deletion::Marked);
        assert_eq!(object["metadata"]["finalizers"], json!([CLEANUP]));
        assert!(status::is_true(&object, "Terminating"));
    }

    #[test]
    fn columns_read_like_kubectls() {
        let mut object = crd();
        object["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        assert_eq!(
            Value::Array(cells(&CustomResourceDefinitions, object)),
            json!([
                "widgets.example.com",
                "Namespaced",
                "v1(storage),v1alpha1",
                "2026-01-01T00:00:00Z",
                "example.com",
                "Widget",
                "w,wd",
                true
            ])
        );
    }
}
