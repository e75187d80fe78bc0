//! CustomResourceDefinitions as objects. What they define, and whether it makes sense, is another module's business: the
//! server hands its rules over as [`Rules`].

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use usher_schema::field::Errors;

use super::json_field::text_at;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::table;

/// The deep rules for a definition.
#[derive(Clone, Copy)]
pub struct Rules {
    pub validate: fn(&Value, &mut Errors),
    /// The new definition comes first.
    pub validate_update: fn(&Value, &Value, &mut Errors),
    pub warnings: fn(&Value, Option<&Value>) -> Vec<String>,
}

impl Rules {
    /// Everything goes.
    pub const NONE: Rules = Rules { validate: |_, _| {}, validate_update: |_, _, _| {}, warnings: |_, _| Vec::new() };
}

#[derive(Clone, Copy)]
pub struct CustomResourceDefinitions {
    pub rules: Rules,
}

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
        let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else { return };
        default_names(spec);
        if spec.get("conversion").is_none_or(Value::is_null) {
            spec.insert("conversion".to_owned(), json!({"strategy": "None"}));
        }
        let service =
            spec.get_mut("conversion").and_then(|conversion| conversion.pointer_mut("/webhook/clientConfig/service"));
        if let Some(Value::Object(service)) = service
            && service.get("port").is_none_or(Value::is_null)
        {
            service.insert("port".to_owned(), 443.into());
        }
        let nothing_stored = crd.pointer("/status/storedVersions").and_then(Value::as_array).is_none_or(Vec::is_empty);
        if nothing_stored {
            remember_stored(crd);
        }
    }

    fn prepare_create(&self, _cx: &Cx, crd: &mut Value) {
        if let Value::Object(fields) = crd {
            fields.remove("status");
        }
        remember_stored(crd);
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Value, _old: &Value) {
        remember_stored(new);
    }

    fn validate(&self, _cx: &Cx, crd: &Value, errors: &mut Errors) {
        (self.rules.validate)(crd, errors);
    }

    fn validate_update(&self, _cx: &Cx, new: &Value, old: &Value, errors: &mut Errors) {
        (self.rules.validate_update)(new, old, errors);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        (self.rules.warnings)(new, old)
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

fn default_names(spec: &mut Map<String, Value>) {
    let Some(Value::Object(names)) = spec.get_mut("names") else { return };
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let missing = |value: Option<&Value>| value.and_then(Value::as_str).is_none_or(str::is_empty);
    if missing(names.get("singular")) {
        names.insert("singular".to_owned(), kind.to_lowercase().into());
    }
    if missing(names.get("listKind")) && !kind.is_empty() {
        names.insert("listKind".to_owned(), format!("{kind}List").into());
    }
}

/// Notes in the status that objects of the storage version are, from now on, in the store.
fn remember_stored(crd: &mut Value) {
    let stored = |version: &&Value| version["storage"] == true;
    let Some(name) = items(crd, "/spec/versions").iter().find(stored).and_then(|version| version["name"].as_str())
    else {
        return;
    };
    let name = Value::from(name);
    let Value::Object(fields) = crd else { return };
    let status = fields.entry("status").or_insert_with(|| json!({}));
    if !status.is_object() {
        *status = json!({});
    }
    match &mut status["storedVersions"] {
        Value::Array(versions) if versions.contains(&name) => {}
        Value::Array(versions) => versions.push(name),
        other => *other = json!([name]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create, cx};
    use usher_schema::field::Path;

    fn crd() -> Value {
        json!({"metadata": {"name": "widgets.example.com", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["w", "wd"]},
                "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v1alpha1", "served": true, "storage": false},
                    {"name": "v0", "served": false, "storage": false}]}})
    }

    #[test]
    fn names_conversion_and_the_stored_version_are_filled_in() {
        let kind = CustomResourceDefinitions { rules: Rules::NONE };
        let (stored, errors) = create(&kind, crd());
        assert!(errors.is_empty());
        assert_eq!(stored["spec"]["names"]["singular"], "widget");
        assert_eq!(stored["spec"]["names"]["listKind"], "WidgetList");
        assert_eq!(stored["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(stored["status"], json!({"storedVersions": ["v1"]}));
    }

    #[test]
    fn a_new_storage_version_is_added_to_the_stored_ones() {
        let kind = CustomResourceDefinitions { rules: Rules::NONE };
        let (old, _) = create(&kind, crd());
        let mut new = old.clone();
        new["spec"]["versions"][0]["storage"] = json!(false);
        new["spec"]["versions"][1]["storage"] = json!(true);
        cx(&Gates::default(), |cx| kind.prepare_update(cx, &mut new, &old));
        assert_eq!(new["status"]["storedVersions"], json!(["v1", "v1alpha1"]));
    }

    #[test]
    fn a_webhook_conversions_service_has_a_port() {
        let mut object = crd();
        object["spec"]["conversion"] =
            json!({"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"name": "s"}}}});
        CustomResourceDefinitions { rules: Rules::NONE }.default(&mut object);
        assert_eq!(object["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"], 443);
    }

    #[test]
    fn the_servers_rules_are_asked() {
        let rules = Rules { validate: |_, errors| errors.required(&Path::new("spec"), ""), ..Rules::NONE };
        assert_eq!(create(&CustomResourceDefinitions { rules }, crd()).1, ["spec: Required value"]);
    }

    #[test]
    fn malformed_definitions_do_no_harm() {
        for object in [
            json!(null),
            json!([]),
            json!({"spec": 1}),
            json!({"spec": {"versions": [{"storage": true}]}, "status": 2}),
        ] {
            let mut object = object;
            let kind = CustomResourceDefinitions { rules: Rules::NONE };
            kind.default(&mut object);
            cx(&Gates::default(), |cx| kind.prepare_create(cx, &mut object));
            assert_eq!(kind.cells(&object, &json!({}), Timestamp::UNIX_EPOCH).len(), kind.columns().len());
        }
    }

    #[test]
    fn columns_read_like_kubectls() {
        let mut object = crd();
        object["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        assert_eq!(
            Value::Array(cells(&CustomResourceDefinitions { rules: Rules::NONE }, object)),
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
