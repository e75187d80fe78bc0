//! Operations: one description of each, written in either dialect.

use serde_json::{Map, Value, json};

use super::definition::PATCH;
use super::{Dialect, GroupVersionKind, Resource, Subresource};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// The paths of one group and version.
pub fn paths(dialect: Dialect, group: &str, version: &str, resources: &[Resource]) -> Map<String, Value> {
    let base = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let writer = Writer { dialect, group, version };
    let mut paths = Map::new();
    paths.insert(format!("{base}/"), json!({"get": writer.operation(&discovery(group, version))}));
    for resource in resources {
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{base}{scope}/{}", resource.plural);
        let item = format!("{collection}/{{name}}");
        let mut put = |path: String, operations: Vec<Operation>| {
            if !operations.is_empty() {
                paths.insert(path.clone(), writer.path(&path, &resource.gvk.kind, &operations));
            }
        };
        if resource.namespaced && has(&resource.verbs, "list") {
            put(format!("{base}/{}", resource.plural), vec![list(resource, "ForAllNamespaces")]);
        }
        put(collection, on_collection(resource));
        put(item.clone(), on_item(resource));
        for subresource in &resource.subresources {
            put(format!("{item}/{}", subresource.name), on_subresource(resource, subresource));
        }
    }
    paths
}

struct Operation {
    method: &'static str,
    /// `x-kubernetes-action`; empty if there is none.
    action: &'static str,
    /// The verb at the start of the id, and what comes after group and version.
    id: (&'static str, String),
    description: String,
    /// Definition of the body and its content types.
    body: Option<(String, Vec<&'static str>)>,
    parameters: &'static [&'static str],
    /// Definition of the answer, or `None` for text.
    answer: Option<String>,
    codes: &'static [u16],
    gvk: Option<GroupVersionKind>,
}

const ANY: &[&str] = &["*/*"];
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const WRITE_PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: &[&str] = &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
];

fn has(verbs: &[String], verb: &str) -> bool {
    verbs.iter().any(|v| v == verb)
}

fn discovery(group: &str, version: &str) -> Operation {
    Operation {
        method: "get",
        action: "",
        id: ("get", "APIResources".into()),
        description: format!("get the resources of {}", if group.is_empty() { version } else { group }),
        body: None,
        parameters: &[],
        answer: Some(format!("{META}APIResourceList")),
        codes: &[200],
        gvk: None,
    }
}

/// `NamespacedJob`, or `Node`.
fn scoped(resource: &Resource) -> String {
    let scope = if resource.namespaced { "Namespaced" } else { "" };
    format!("{scope}{}", resource.gvk.kind)
}

fn list(resource: &Resource, suffix: &str) -> Operation {
    let kind = &resource.gvk.kind;
    Operation {
        method: "get",
        action: "list",
        id: ("list", if suffix.is_empty() { scoped(resource) } else { format!("{kind}{suffix}") }),
        description: format!("list or watch objects of kind {kind}"),
        body: None,
        parameters: LIST,
        answer: Some(resource.list_definition.clone()),
        codes: &[200],
        gvk: Some(resource.gvk.clone()),
    }
}

fn on_collection(resource: &Resource) -> Vec<Operation> {
    let kind = &resource.gvk.kind;
    let mut operations = Vec::new();
    if has(&resource.verbs, "list") {
        operations.push(list(resource, ""));
    }
    if has(&resource.verbs, "create") {
        operations.push(Operation {
            method: "post",
            action: "post",
            id: ("create", scoped(resource)),
            description: format!("create {} {kind}", article(kind)),
            body: Some((resource.definition.clone(), ANY.to_vec())),
            parameters: WRITE,
            answer: Some(resource.definition.clone()),
            codes: &[200, 201, 202],
            gvk: Some(resource.gvk.clone()),
        });
    }
    if has(&resource.verbs, "deletecollection") {
        operations.push(Operation {
            method: "delete",
            action: "deletecollection",
            id: ("delete", format!("Collection{}", scoped(resource))),
            description: format!("delete collection of {kind}"),
            body: Some((format!("{META}DeleteOptions"), ANY.to_vec())),
            parameters: DELETE_COLLECTION,
            answer: Some(format!("{META}Status")),
            codes: &[200],
            gvk: Some(resource.gvk.clone()),
        });
    }
    operations
}

fn on_item(resource: &Resource) -> Vec<Operation> {
    let kind = &resource.gvk.kind;
    let target = Target {
        of: kind.clone(),
        id: scoped(resource),
        definition: Some(&resource.definition),
        gvk: &resource.gvk,
        strategic: resource.strategic,
    };
    let mut operations = target.operations(&resource.verbs);
    operations.retain(|operation| operation.method != "post");
    if has(&resource.verbs, "delete") {
        operations.push(Operation {
            method: "delete",
            action: "delete",
            id: ("delete", scoped(resource)),
            description: format!("delete {} {kind}", article(kind)),
            body: Some((format!("{META}DeleteOptions"), ANY.to_vec())),
            parameters: DELETE,
            answer: Some(format!("{META}Status")),
            codes: &[200, 202],
            gvk: Some(resource.gvk.clone()),
        });
    }
    operations
}

fn on_subresource(resource: &Resource, subresource: &Subresource) -> Vec<Operation> {
    let target = Target {
        of: format!("{} of the specified {}", subresource.name, resource.gvk.kind),
        id: format!("{}{}", scoped(resource), capital(&subresource.name)),
        definition: subresource.definition.as_deref(),
        gvk: &subresource.gvk,
        strategic: resource.strategic,
    };
    target.operations(&subresource.verbs)
}

/// What one reads, replaces and patches: an object or a part of it.
struct Target<'a> {
    of: String,
    id: String,
    definition: Option<&'a str>,
    gvk: &'a GroupVersionKind,
    strategic: bool,
}

impl Target<'_> {
    fn operations(&self, verbs: &[String]) -> Vec<Operation> {
        let body = || Some((self.definition.unwrap_or_default().to_owned(), ANY.to_vec()));
        let mut patches = vec![APPLY_PATCH, JSON_PATCH, MERGE_PATCH];
        if self.strategic {
            patches.push(STRATEGIC_PATCH);
        }
        let all = [
            ("get", self.operation("get", "get", "read", "read", None, &[], &[200])),
            ("create", self.operation("post", "post", "create", "create", body(), WRITE, &[200, 201, 202])),
            ("update", self.operation("put", "put", "replace", "replace", body(), WRITE, &[200, 201])),
            (
                "patch",
                self.operation(
                    "patch",
                    "patch",
                    "patch",
                    "partially update",
                    Some((PATCH.to_owned(), patches)),
                    WRITE_PATCH,
                    &[200, 201],
                ),
            ),
        ];
        all.into_iter().filter(|(verb, _)| has(verbs, verb)).map(|(_, operation)| operation).collect()
    }

    #[allow(clippy::too_many_arguments)]
    fn operation(
        &self,
        method: &'static str,
        action: &'static str,
        id: &'static str,
        words: &str,
        body: Option<(String, Vec<&'static str>)>,
        parameters: &'static [&'static str],
        codes: &'static [u16],
    ) -> Operation {
        let specified = if self.of.contains(' ') { "" } else { "specified " };
        Operation {
            method,
            action,
            id: (id, self.id.clone()),
            description: format!("{words} the {specified}{}", self.of),
            body,
            parameters,
            answer: self.definition.map(str::to_owned),
            codes,
            gvk: Some(self.gvk.clone()),
        }
    }
}

struct Writer<'a> {
    dialect: Dialect,
    group: &'a str,
    version: &'a str,
}

impl Writer<'_> {
    fn path(&self, path: &str, kind: &str, operations: &[Operation]) -> Value {
        let mut parameters = Vec::new();
        if path.contains("{name}") {
            parameters.push(self.parameter("path", "name", "string", &format!("name of the {kind}")));
        }
        if path.contains("{namespace}") {
            parameters.push(self.parameter("path", "namespace", "string", "the namespace of the object"));
        }
        parameters.push(self.query("pretty"));
        let mut item = json!({"parameters": parameters});
        for operation in operations {
            item[operation.method] = self.operation(operation);
        }
        item
    }

    fn operation(&self, operation: &Operation) -> Value {
        let (camel, version) = (camel_group(self.group), capital(self.version));
        let (verb, rest) = &operation.id;
        let mut parameters: Vec<Value> = operation.parameters.iter().map(|name| self.query(name)).collect();
        let mut out = json!({
            "description": operation.description,
            "operationId": format!("{verb}{}{version}{rest}", capital(&camel)),
            "tags": [format!("{camel}_{}", self.version)],
            "responses": self.responses(operation),
        });
        if let Some((definition, types)) = &operation.body {
            // A DELETE may come without options.
            let required = operation.method != "delete";
            let schema = self.dialect.reference(definition);
            match self.dialect {
                Dialect::V2 => {
                    parameters.insert(0, json!({"in": "body", "name": "body", "required": required, "schema": schema}));
                }
                Dialect::V3 => out["requestBody"] = json!({"content": content(types, &schema), "required": required}),
            }
        }
        if self.dialect == Dialect::V2 {
            out["consumes"] = operation.body.as_ref().map_or(ANY, |(_, types)| types).into();
            out["produces"] = self.answer_types(operation).into();
            out["schemes"] = json!(["https"]);
        }
        if !parameters.is_empty() {
            out["parameters"] = parameters.into();
        }
        if !operation.action.is_empty() {
            out["x-kubernetes-action"] = operation.action.into();
        }
        if let Some(gvk) = &operation.gvk {
            out["x-kubernetes-group-version-kind"] = gvk.to_value();
        }
        out
    }

    fn answer_types(&self, operation: &Operation) -> Vec<&'static str> {
        match (&operation.answer, operation.action) {
            (None, _) => vec!["text/plain"],
            (_, "list") => vec!["application/json", "application/yaml", "application/json;stream=watch"],
            _ => vec!["application/json", "application/yaml"],
        }
    }

    fn responses(&self, operation: &Operation) -> Value {
        let schema = match &operation.answer {
            Some(definition) => self.dialect.reference(definition),
            None => json!({"type": "string"}),
        };
        let mut responses = json!({"401": {"description": "Unauthorized"}});
        for code in operation.codes {
            let description = match code {
                200 => "OK",
                201 => "Created",
                _ => "Accepted",
            };
            responses[code.to_string()] = match self.dialect {
                Dialect::V2 => json!({"description": description, "schema": schema}),
                Dialect::V3 => {
                    json!({"description": description, "content": content(&self.answer_types(operation), &schema)})
                }
            };
        }
        responses
    }

    fn query(&self, name: &str) -> Value {
        let (_, ty, description) = QUERIES.iter().find(|(query, ..)| *query == name).unwrap_or(&QUERIES[0]);
        self.parameter("query", name, ty, description)
    }

    fn parameter(&self, place: &str, name: &str, ty: &str, description: &str) -> Value {
        let mut parameter = json!({"in": place, "name": name, "description": description});
        let schema = json!({"type": ty, "uniqueItems": true});
        if place == "path" {
            parameter["required"] = true.into();
        }
        match (self.dialect, schema) {
            (Dialect::V3, schema) => parameter["schema"] = schema,
            (Dialect::V2, Value::Object(mut schema)) => {
                parameter.as_object_mut().into_iter().for_each(|map| map.append(&mut schema));
            }
            _ => {}
        }
        parameter
    }
}

fn content(types: &[&str], schema: &Value) -> Map<String, Value> {
    types.iter().map(|ty| ((*ty).to_owned(), json!({"schema": schema}))).collect()
}

const QUERIES: [(&str, &str, &str); 18] = [
    ("pretty", "string", "'true' indents the answer."),
    ("dryRun", "string", "'All' goes through every stage but stores nothing."),
    ("fieldManager", "string", "Who is making the change, for managed fields. Apply patches need it."),
    (
        "fieldValidation",
        "string",
        "What to do about unknown and duplicate fields: 'Ignore', 'Warn' (default) or 'Strict'.",
    ),
    ("force", "boolean", "Lets an apply patch take over fields that others own."),
    ("gracePeriodSeconds", "integer", "Seconds before the object is removed. 0 removes it at once."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    ("propagationPolicy", "string", "What happens to dependents: 'Orphan', 'Background' or 'Foreground'."),
    ("allowWatchBookmarks", "boolean", "Lets a watch send events of type BOOKMARK."),
    ("continue", "string", "Where to go on with a list, from the answer before."),
    ("fieldSelector", "string", "Restricts the objects by their fields."),
    ("labelSelector", "string", "Restricts the objects by their labels."),
    ("limit", "integer", "The most objects to return at once."),
    ("resourceVersion", "string", "The resource version to read at, or to watch from."),
    ("resourceVersionMatch", "string", "How resourceVersion is applied to a list: 'Exact' or 'NotOlderThan'."),
    ("sendInitialEvents", "boolean", "Lets a watch begin with the objects that exist."),
    ("timeoutSeconds", "integer", "Ends a list or watch after this time."),
    ("watch", "boolean", "Answers with a stream of changes instead of a list."),
];

/// `rbac.authorization.k8s.io` is `rbacAuthorization` in ids and tags, the core group `core`.
fn camel_group(group: &str) -> String {
    let mut words = group.strip_suffix(".k8s.io").unwrap_or(group).split(['.', '-']).filter(|w| !w.is_empty());
    let first = words.next().unwrap_or("core").to_owned();
    words.fold(first, |camel, word| camel + &capital(word))
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

fn article(kind: &str) -> &'static str {
    if kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" }
}
