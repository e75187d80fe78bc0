//! A definition from its creation to the objects it defines.

use jiff::Timestamp;
use serde_json::{Value, json};
use usher_schema::field::{Errors, Path};

use super::version::{Custom, rank};
use super::{definition, status};

fn now() -> Timestamp {
    "2024-01-01T00:00:00Z".parse().expect("a constant")
}

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["color"], "properties": {
            "color": {"type": "string", "enum": ["red", "blue"]},
            "size": {"type": "integer", "default": 3, "minimum": 0},
            "replicas": {"type": "integer"},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "note": {"type": "string"}}}}})
}

fn widgets() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema()},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}],
                "selectableFields": [{"jsonPath": ".spec.color"}]}]},
    })
}

fn created(mut crd: Value) -> Value {
    definition::default(&mut crd);
    definition::prepare_create(&mut crd);
    crd
}

/// What is said about a definition after `change`.
fn said(change: impl Fn(&mut Value)) -> Vec<String> {
    let mut crd = widgets();
    change(&mut crd);
    let mut errors = Errors::new();
    definition::validate(&created(crd), &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

fn no_meta(_: &Path, _: &Value, _: Option<&Value>, _: &mut Errors) {}

fn widget(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "generation": 1}, "spec": spec})
}

#[test]
fn names_and_conversion_are_filled_in() {
    let crd = created(widgets());
    assert_eq!(crd["spec"]["names"]["singular"], "widget");
    assert_eq!(crd["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    let mut again = crd.clone();
    definition::default(&mut again);
    assert_eq!(crd, again);
}

#[test]
fn a_good_definition_is_accepted() {
    assert_eq!(said(|_| {}), Vec::<String>::new());
}

#[test]
fn definitions_are_refused_in_upstreams_words() {
    const DNS: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                       character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
                       validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    type Change = fn(&mut Value);
    let table: Vec<(Change, Vec<String>)> = vec![
        (
            |crd| crd["metadata"]["name"] = json!("x"),
            vec!["metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group".into()],
        ),
        (
            |crd| crd["spec"]["scope"] = json!("World"),
            vec!["spec.scope: Unsupported value: \"World\": supported values: \"Cluster\", \"Namespaced\"".into()],
        ),
        (
            |crd| crd["spec"]["versions"][0]["storage"] = json!(false),
            vec![
                "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":false,\"Deprecated\":false,\
                 \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\
                 \"SelectableFields\":null}]: must have exactly one version marked as storage version"
                    .into(),
                "status.storedVersions: Invalid value: null: must have at least one stored version".into(),
            ],
        ),
        (
            |crd| crd["spec"]["names"]["shortNames"] = json!(["W_D"]),
            vec![format!("spec.names.shortNames[0]: Invalid value: \"W_D\": {DNS}")],
        ),
        (
            |crd| crd["spec"]["names"]["kind"] = json!("My_Widget"),
            vec![
                format!("spec.names.singular: Invalid value: \"my_widget\": {DNS}"),
                format!("spec.names.kind: Invalid value: \"My_Widget\": may have mixed case, but should otherwise match: {DNS}"),
                format!("spec.names.listKind: Invalid value: \"My_WidgetList\": may have mixed case, but should otherwise match: {DNS}"),
            ],
        ),
        (
            |crd| crd["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"] = json!(".status.x"),
            vec!["spec.subresources.scale.specReplicasPath: Invalid value: \".status.x\": should be a json path under .spec".into()],
        ),
        (
            |crd| crd["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "", "type": "text", "jsonPath": "spec", "format": "x"}]),
            vec![
                "spec.additionalPrinterColumns[0].name: Required value".into(),
                "spec.additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string".into(),
                "spec.additionalPrinterColumns[0].format: Invalid value: \"x\": must be one of \
                 byte,date,date-time,double,float,int32,int64,password".into(),
                "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec\": must be a simple json path starting with .".into(),
            ],
        ),
        (
            |crd| crd["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec"}, {"jsonPath": ".spec.nope"}]),
            vec![
                "spec.selectableFields[0].jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or \
                 integer. Enum string fields and strings with formats are allowed.".into(),
                "spec.selectableFields[1].jsonPath: Invalid value: \".spec.nope\": is an invalid path: does not refer to a valid field".into(),
            ],
        ),
        (
            |crd| crd["spec"]["versions"][0]["schema"] = json!(null),
            vec!["spec.versions[0].schema.openAPIV3Schema: Required value".into()],
        ),
        (
            |crd| crd["spec"]["versions"][0]["deprecationWarning"] = json!("x"),
            vec!["spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions".into()],
        ),
        (
            |crd| crd["spec"]["preserveUnknownFields"] = json!(true),
            vec![
                "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields \
                 to true in spec.versions[*].schema instead".into(),
            ],
        ),
    ];
    for (i, (change, expected)) in table.into_iter().enumerate() {
        assert_eq!(said(change), expected, "case {i}");
    }
}

#[test]
fn conversion_by_webhook_is_refused_clearly() {
    let said = said(|crd| crd["spec"]["conversion"] = json!({"strategy": "Webhook"}));
    assert_eq!(
        said,
        [
            "spec.conversion.strategy: Forbidden: conversion by webhook is not supported by this server; serve versions that \
          differ only in name, with strategy None"
        ]
    );
}

#[test]
fn schema_errors_show_where_versions_differ() {
    let broken =
        |schema: Value| json!({"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": schema}});
    let one = said(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({}));
    assert!(
        one.iter().any(|e| e.starts_with("spec.validation.openAPIV3Schema.properties[spec].type: Required value")),
        "{one:?}"
    );
    let two = said(|crd| {
        let versions = crd["spec"]["versions"].as_array_mut().expect("a list");
        versions.push(broken(json!({"type": "object", "properties": {"spec": {}}})));
    });
    assert_eq!(
        two,
        [
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified \
          object fields"
        ]
    );
}

#[test]
fn protected_groups_need_approval() {
    let crd = |annotation: Option<&str>| {
        said(|crd| {
            crd["spec"]["group"] = json!("example.k8s.io");
            crd["metadata"]["name"] = json!("widgets.example.k8s.io");
            if let Some(text) = annotation {
                crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": text});
            }
        })
    };
    assert_eq!(
        crd(None),
        [
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \
          \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
        ]
    );
    assert!(crd(Some("unapproved, experimental")).is_empty());
    assert!(crd(Some("https://github.com/kubernetes/kubernetes/pull/1")).is_empty());
    assert_eq!(crd(Some("yes")).len(), 1);
}

#[test]
fn what_identifies_a_resource_does_not_change() {
    let mut old = created(widgets());
    status::update(&mut old, std::iter::empty(), now());
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    new["spec"]["names"]["plural"] = json!("gadgets");
    definition::prepare_update(&mut new, &old);
    let mut errors = Errors::new();
    definition::validate_update(&new, &old, &mut errors);
    assert_eq!(
        errors.to_string(),
        "[spec.scope: Invalid value: \"Cluster\": field is immutable, spec.names.plural: Invalid value: \"gadgets\": field is \
         immutable]"
    );
}

#[test]
fn a_version_that_was_stored_must_stay() {
    let mut old = created(widgets());
    status::update(&mut old, std::iter::empty(), now());
    let mut new = old.clone();
    new["spec"]["versions"][0]["name"] = json!("v2");
    definition::prepare_update(&mut new, &old);
    assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
    let mut errors = Errors::new();
    definition::validate_update(&new, &old, &mut errors);
    assert_eq!(
        errors.to_string(),
        "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and \
         must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from \
         status.storedVersions"
    );
}

#[test]
fn names_are_accepted_once() {
    let mut first = created(widgets());
    assert!(status::update(&mut first, std::iter::empty(), now()));
    assert!(status::is_true(&first, "NamesAccepted") && status::is_true(&first, "Established"));
    assert_eq!(
        first["status"]["conditions"],
        json!([
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found", "lastTransitionTime": "2024-01-01T00:00:00Z"},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted", "lastTransitionTime": "2024-01-01T00:00:00Z"},
        ])
    );
    assert_eq!(
        first["status"]["acceptedNames"],
        json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"], "categories": ["all"]})
    );
    let itself = [first.clone()];
    assert!(!status::update(&mut first, itself.iter(), now()), "nothing new the second time");

    let mut second = widgets();
    second["metadata"]["name"] = json!("gadgets.example.com");
    second["spec"]["names"]["plural"] = json!("gadgets");
    let mut second = created(second);
    status::update(&mut second, itself.iter(), now());
    assert!(!status::is_true(&second, "NamesAccepted") && !status::is_true(&second, "Established"));
    assert_eq!(second["status"]["conditions"][0]["reason"], "ListKindConflict");
    assert_eq!(second["status"]["conditions"][0]["message"], "\"WidgetList\" is already in use");
    assert_eq!(second["status"]["conditions"][1]["reason"], "NotAccepted");
    assert_eq!(second["status"]["acceptedNames"]["plural"], "gadgets");

    status::update(&mut second, std::iter::empty(), now());
    assert!(status::is_true(&second, "Established"), "the names were freed");
}

#[test]
fn a_definition_becomes_a_served_resource() {
    let mut crd = widgets();
    let mut old = crd["spec"]["versions"][0].clone();
    old["name"] = json!("v1beta1");
    old["storage"] = json!(false);
    old["deprecated"] = json!(true);
    crd["spec"]["versions"].as_array_mut().expect("a list").push(old);
    let custom = Custom::compile(&created(crd)).expect("accepted");
    let v1 = custom.storage().expect("v1");
    assert_eq!(v1.api_version, "example.com/v1");
    let resource = custom.resource(v1);
    assert_eq!((resource.plural.as_str(), resource.namespaced, resource.has_status), ("widgets", true, true));
    let subresources: Vec<&str> = resource.subresources.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(subresources, ["status", "scale"]);
    assert_eq!(
        custom.served("v1beta1").and_then(|v| v.deprecation.clone()).as_deref(),
        Some("example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget")
    );
    assert!(custom.served("v2").is_none());
    assert_eq!(v1.select(&widget(json!({"color": "red"})), "spec.color").as_deref(), Some("red"));
    assert_eq!(v1.select(&widget(json!({})), "spec.color").as_deref(), Some(""));
    assert_eq!(v1.select(&widget(json!({})), "spec.size"), None);
    assert_eq!(v1.columns.cells(&widget(json!({"color": "red"})), now()), [json!("w"), json!("red")]);
    assert_eq!(custom.openapi(v1)["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]));

    let mut stored = widget(json!({"color": "red"}));
    custom.served("v1beta1").expect("served").convert(&mut stored);
    assert_eq!(stored["apiVersion"], "example.com/v1beta1");
}

#[test]
fn versions_are_ordered_as_kubernetes_orders_them() {
    let mut versions = vec!["foo", "v1alpha1", "v1beta2", "v10", "v2", "v1", "v1beta1", "bar"];
    versions.sort_by(|a, b| rank(b).cmp(&rank(a)));
    assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "bar", "foo"]);
}

#[test]
fn an_object_is_pruned_defaulted_and_checked() {
    let custom = Custom::compile(&created(widgets())).expect("accepted");
    let v1 = custom.storage().expect("v1");
    let mut object = widget(json!({"color": "red", "nope": 1}));
    object["status"] = json!({"note": "mine"});
    let mut unknown = Vec::new();
    v1.admit(&mut object, &mut unknown);
    v1.prepare_create(&mut object);
    assert_eq!(unknown, ["spec.nope"]);
    assert_eq!(object["spec"], json!({"color": "red", "size": 3}));
    assert!(object.get("status").is_none(), "only the status subresource sets it");
    let mut errors = Errors::new();
    v1.validate_create(&object, &no_meta, &mut errors);
    assert!(errors.is_empty(), "{errors}");

    let wrong = json!({"apiVersion": "example.com/v2", "kind": "Gadget", "spec": {}});
    v1.validate_create(&wrong, &no_meta, &mut errors);
    assert_eq!(
        errors.to_string(),
        "[kind: Invalid value: \"Gadget\": must be Widget, apiVersion: Invalid value: \"example.com/v2\": must be example.com/v1]"
    );
}

#[test]
fn metadata_is_handed_out_wherever_it_is() {
    let custom = Custom::compile(&created(widgets())).expect("accepted");
    let template = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
    let object = widget(json!({"color": "red", "template": template}));
    let hook = |path: &Path, meta: &Value, old: Option<&Value>, errors: &mut Errors| {
        errors.invalid(path, meta["name"].clone(), if old.is_some() { "update" } else { "create" });
    };
    let mut errors = Errors::new();
    custom.storage().expect("v1").validate_update(&object, &object, &hook, &mut errors);
    assert_eq!(
        errors.to_string(),
        "[metadata: Invalid value: \"w\": update, spec.template.metadata: Invalid value: \"p\": create]"
    );
}

#[test]
fn spec_and_status_are_written_apart() {
    let custom = Custom::compile(&created(widgets())).expect("accepted");
    let v1 = custom.storage().expect("v1");
    let mut old = widget(json!({"color": "red", "size": 3}));
    old["status"] = json!({"note": "old"});

    let mut new = widget(json!({"color": "blue", "size": 3}));
    new["status"] = json!({"note": "new"});
    v1.prepare_update(&mut new, &old);
    assert_eq!(new["status"], json!({"note": "old"}));
    assert!(v1.changes_generation(&new, &old));

    let mut new = old.clone();
    new["spec"]["color"] = json!("blue");
    new["metadata"]["labels"] = json!({"a": "b"});
    new["metadata"]["managedFields"] = json!([{"manager": "m"}]);
    new["status"] = json!({"note": "new"});
    v1.prepare_status_update(&mut new, &old);
    assert_eq!(new["spec"], old["spec"]);
    assert_eq!(new["status"], json!({"note": "new"}));
    assert_eq!(new["metadata"], json!({"name": "w", "generation": 1, "managedFields": [{"manager": "m"}]}));

    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(!v1.changes_generation(&labelled, &old));
    let mut errors = Errors::new();
    new["status"]["replicas"] = json!(-1);
    v1.validate_status_update(&new, &old, &no_meta, &mut errors);
    assert_eq!(errors.to_string(), ".status.replicas: Invalid value: -1: should be a non-negative integer");
}

#[test]
fn careless_finalizers_are_warned_of_once() {
    let custom = Custom::compile(&created(widgets())).expect("accepted");
    let v1 = custom.storage().expect("v1");
    let mut new = widget(json!({}));
    new["metadata"]["finalizers"] = json!(["a/b", "orphan", "plain", "dotted.example.com"]);
    assert_eq!(
        v1.warnings(&new, None),
        [
            "metadata.finalizers: \"dotted.example.com\": prefer a domain-qualified finalizer name including a path (/) to avoid \
             accidental conflicts with other finalizer writers",
            "metadata.finalizers: \"plain\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other \
             finalizer writers",
        ]
    );
    assert!(v1.warnings(&new, Some(&new)).is_empty());
}

#[test]
fn hostile_definitions_are_refused_not_feared() {
    for hostile in [
        json!(null),
        json!([]),
        json!({}),
        json!({"spec": 5}),
        json!({"spec": {"versions": [null, 5, {"name": 3}], "names": []}}),
    ] {
        let mut crd = hostile.clone();
        if !crd.is_object() {
            crd = json!({"spec": crd});
        }
        definition::default(&mut crd);
        definition::prepare_create(&mut crd);
        let mut errors = Errors::new();
        definition::validate(&crd, &mut errors);
        assert!(!errors.is_empty(), "{hostile}");
        status::update(&mut crd, std::iter::empty(), now());
        let _ = Custom::compile(&crd);
    }
}
