use super::*;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn jobs() -> Resource {
    let gvk = GroupVersionKind::new("batch", "v1", "Job");
    let status = Subresource {
        name: "status".into(),
        gvk: gvk.clone(),
        verbs: ["get", "patch", "update"].map(String::from).to_vec(),
        definition: gvk.builtin_definition().map(str::to_owned),
    };
    Resource { subresources: vec![status], ..Resource::builtin(gvk, "jobs", true, &VERBS) }
}

fn batch() -> Value {
    v3_group("batch", "v1", "v1.37.1", &[jobs()], &Map::new())
}

#[test]
fn explain_finds_the_kind_by_path_and_then_its_definition() {
    let document = batch();
    let get = &document["paths"]["/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]["get"];
    let gvk = json!({"group": "batch", "version": "v1", "kind": "Job"});
    assert_eq!(get["x-kubernetes-group-version-kind"], gvk);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let found: Vec<&String> =
        schemas.iter().filter(|(_, s)| s["x-kubernetes-group-version-kind"] == json!([gvk])).map(|(n, _)| n).collect();
    assert_eq!(found, ["io.k8s.api.batch.v1.Job"]);
    let spec = &schemas["io.k8s.api.batch.v1.JobSpec"]["properties"];
    assert_eq!(spec["parallelism"]["type"], "integer");
    assert!(spec["parallelism"]["description"].as_str().unwrap().len() > 20);
    assert_eq!(spec["completionMode"]["enum"], json!(["Indexed", "NonIndexed"]));
    let description = spec["completionMode"]["description"].as_str().unwrap();
    assert!(description.ends_with("\n\nPossible enum values:\n - `\"Indexed\"`\n - `\"NonIndexed\"`"), "{description}");
}

#[test]
fn patch_tells_kubectl_that_fields_are_validated_and_merges_are_strategic() {
    let document = batch();
    let patch = &document["paths"]["/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]["patch"];
    let names: Vec<&str> = patch["parameters"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
    assert_eq!(patch["operationId"], "patchBatchV1NamespacedJob");
    assert_eq!(patch["tags"], json!(["batch_v1"]));
}

#[test]
fn lists_carry_their_keys_and_strategies() {
    let spec = definition(Dialect::V3, "io.k8s.api.core.v1.PodSpec").unwrap();
    let containers = &spec["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(spec["required"], json!(["containers"]));
    assert_eq!(spec["properties"]["volumes"]["x-kubernetes-patch-strategy"], "merge,retainKeys");
}

#[test]
fn the_dialects_differ_where_they_must() {
    let template = |dialect, name| definition(dialect, name).unwrap()["properties"]["template"].clone();
    let name = "io.k8s.api.batch.v1.JobSpec";
    let (v2, v3) = (template(Dialect::V2, name), template(Dialect::V3, name));
    assert_eq!(v2["$ref"], "#/definitions/io.k8s.api.core.v1.PodTemplateSpec");
    assert!(v2.get("default").is_none() && v2.get("description").is_some());
    assert_eq!(v3["allOf"], json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"}]));
    assert_eq!(v3["default"], json!({}));
    let quantity = |dialect| definition(dialect, "io.k8s.apimachinery.pkg.api.resource.Quantity").unwrap();
    assert_eq!(quantity(Dialect::V2)["type"], "string");
    assert_eq!(quantity(Dialect::V3)["oneOf"], json!([{"type": "string"}, {"type": "number"}]));
}

#[test]
fn embedded_structs_are_flat_and_described() {
    let volume = definition(Dialect::V3, "io.k8s.api.core.v1.Volume").unwrap();
    assert!(volume["properties"]["emptyDir"]["description"].is_string());
    let pod = definition(Dialect::V3, "io.k8s.api.core.v1.Pod").unwrap();
    assert!(pod["properties"]["apiVersion"]["description"].is_string());
    assert_eq!(pod["properties"]["kind"]["type"], "string");
}

/// Every reference in a document leads somewhere.
#[track_caller]
fn assert_closed(dialect: Dialect, document: &Value, definitions: &Value) {
    let mut wanted = BTreeSet::new();
    references(dialect, document, &mut wanted);
    for name in wanted {
        assert!(definitions.get(&name).is_some(), "{name} is referenced but not defined");
    }
}

#[test]
fn documents_are_complete() {
    let document = batch();
    assert_closed(Dialect::V3, &document, &document["components"]["schemas"]);
    let pods = Resource::builtin(GroupVersionKind::new("", "v1", "Pod"), "pods", true, &VERBS);
    let crds = GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let crds = Resource::builtin(crds, "customresourcedefinitions", false, &VERBS);
    let groups: [(&str, &str, &[Resource]); 3] =
        [("", "v1", &[pods]), ("batch", "v1", &[jobs()]), ("apiextensions.k8s.io", "v1", &[crds])];
    let document = v2("v1.37.1", &groups, &Map::new());
    assert_closed(Dialect::V2, &document, &document["definitions"]);
    let options = &document["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    assert_eq!(options["x-kubernetes-group-version-kind"].as_array().unwrap().len(), 3);
    assert!(document["paths"].get("/api/v1/namespaces/{namespace}/pods").is_some());
}

#[test]
fn every_builtin_kind_has_a_definition_and_a_description() {
    for kind in builtin::kinds() {
        let schema = definition(Dialect::V3, kind.definition).unwrap();
        let listed = kind.kind.ends_with("List") || kind.group == builtin::META;
        assert!(listed || schema["description"].is_string(), "{}", kind.definition);
    }
}

#[test]
fn a_custom_resource_brings_its_own_definition() {
    let gvk = GroupVersionKind::new("stable.example.com", "v1", "CronTab");
    let schema = json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {
            "cron": {"type": "string", "default": "* * * * *"},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        }}},
    });
    let name = custom_name(&gvk);
    assert_eq!(name, "com.example.stable.v1.CronTab");
    let extra = custom(Dialect::V3, &gvk, "CronTabList", Some(&schema));
    let resource = Resource {
        definition: name.clone(),
        list_definition: "com.example.stable.v1.CronTabList".into(),
        strategic: false,
        ..Resource::builtin(gvk.clone(), "crontabs", true, &VERBS)
    };
    let document = v3_group("stable.example.com", "v1", "v1.37.1", &[resource], &extra);
    assert_closed(Dialect::V3, &document, &document["components"]["schemas"]);
    assert_eq!(document["components"]["schemas"][&name]["x-kubernetes-group-version-kind"][0]["kind"], "CronTab");
    let patch = &document["paths"]["/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}"]["patch"];
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    assert_eq!(patch["operationId"], "patchStableExampleComV1NamespacedCronTab");
    let v2 = &custom(Dialect::V2, &gvk, "CronTabList", Some(&schema))[&name];
    assert_eq!(v2["properties"]["spec"]["properties"]["cron"], json!({"type": "string"}));
    assert_eq!(v2["properties"]["spec"]["properties"]["port"], json!({"x-kubernetes-int-or-string": true}));
}
