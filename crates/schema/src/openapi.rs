//! OpenAPI documents, v3 by group and version and v2 as one, with what kubectl reads from them: definitions for
//! `explain`, the PATCH operations that say whether the server validates fields and merges strategically, merge keys and
//! list types, and which kind each definition and operation belongs to.
//!
//! The caller says which resources it serves ([`Resource`]); definitions of built-in kinds come from the facts files
//! ([`definition`]), those of custom resources from the caller ([`custom`] makes them of a schema). A document holds the
//! definitions its operations lead to and no others. The `/watch/` paths, deprecated upstream, are left out.

mod custom;
mod definition;
mod paths;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::builtin;
pub use custom::{custom, custom_name};
pub use definition::definition;
pub(crate) use definition::words_for;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Swagger 2.0: no defaults, no `oneOf`; descriptions stand beside a `$ref`.
    V2,
    /// OpenAPI 3.0.
    V3,
}

impl Dialect {
    fn prefix(self) -> &'static str {
        match self {
            Dialect::V2 => "#/definitions/",
            Dialect::V3 => "#/components/schemas/",
        }
    }

    fn reference(self, definition: &str) -> Value {
        json!({"$ref": format!("{}{definition}", self.prefix())})
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// Empty for core.
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl GroupVersionKind {
    pub fn new(group: &str, version: &str, kind: &str) -> GroupVersionKind {
        GroupVersionKind { group: group.into(), version: version.into(), kind: kind.into() }
    }

    fn to_value(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }

    /// The definition's name if the kind is built in.
    pub fn builtin_definition(&self) -> Option<&'static str> {
        let found = |k: &&builtin::Kind| (k.group, k.version, k.kind) == (&*self.group, &*self.version, &*self.kind);
        builtin::kinds().iter().find(found).map(|k| k.definition)
    }
}

/// A resource as the server offers it.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `jobs`
    pub plural: String,
    /// The group and version it is served under, and the kind of its objects.
    pub gvk: GroupVersionKind,
    pub namespaced: bool,
    /// `get`, `list`, `create`, `update`, `patch`, `delete`, `deletecollection`, `watch`.
    pub verbs: Vec<String>,
    /// The name of its objects' definition, built in or among those passed along.
    pub definition: String,
    /// The name of its lists' definition; empty if it cannot be listed.
    pub list_definition: String,
    /// Whether PATCH takes strategic merge patches: built-in kinds do.
    pub strategic: bool,
    pub subresources: Vec<Subresource>,
}

#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`
    pub name: String,
    /// What is sent to it; `policy/v1 Eviction` for a pod's `eviction`.
    pub gvk: GroupVersionKind,
    pub verbs: Vec<String>,
    /// `None` if it answers with text (`log`).
    pub definition: Option<String>,
}

impl Resource {
    /// A built-in resource, its definitions found by its kind.
    pub fn builtin(gvk: GroupVersionKind, plural: &str, namespaced: bool, verbs: &[&str]) -> Resource {
        let list = GroupVersionKind { kind: format!("{}List", gvk.kind), ..gvk.clone() };
        Resource {
            plural: plural.to_owned(),
            definition: gvk.builtin_definition().unwrap_or_default().to_owned(),
            list_definition: list.builtin_definition().unwrap_or_default().to_owned(),
            gvk,
            namespaced,
            verbs: verbs.iter().map(|v| (*v).to_owned()).collect(),
            strategic: true,
            subresources: Vec::new(),
        }
    }
}

/// The v3 document of one group and version. `extra` has the definitions of custom resources, by name.
pub fn v3_group(
    group: &str,
    version: &str,
    server_version: &str,
    resources: &[Resource],
    extra: &Map<String, Value>,
) -> Value {
    let paths = paths::paths(Dialect::V3, group, version, resources);
    let groups = [(group, version)];
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "components": {
            "schemas": definitions(Dialect::V3, &paths, extra, &groups),
            "securitySchemes": {"BearerToken": bearer_token()},
        },
        "paths": paths,
    })
}

/// The v2 document of everything: each group and version with its resources.
pub fn v2(server_version: &str, groups: &[(&str, &str, &[Resource])], extra: &Map<String, Value>) -> Value {
    let mut paths = Map::new();
    for (group, version, resources) in groups {
        paths.append(&mut paths::paths(Dialect::V2, group, version, resources));
    }
    let names: Vec<(&str, &str)> = groups.iter().map(|(group, version, _)| (*group, *version)).collect();
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "definitions": definitions(Dialect::V2, &paths, extra, &names),
        "paths": paths,
        "securityDefinitions": {"BearerToken": bearer_token()},
        "security": [{"BearerToken": []}],
    })
}

fn bearer_token() -> Value {
    json!({"description": "Bearer Token authentication", "type": "apiKey", "name": "authorization", "in": "header"})
}

/// The definitions that `paths` lead to, however indirectly.
fn definitions(
    dialect: Dialect,
    paths: &Map<String, Value>,
    extra: &Map<String, Value>,
    groups: &[(&str, &str)],
) -> Map<String, Value> {
    let mut found = Map::new();
    let mut wanted = BTreeSet::new();
    paths.values().for_each(|path| references(dialect, path, &mut wanted));
    while let Some(name) = wanted.pop_first() {
        if found.contains_key(&name) {
            continue;
        }
        let made = extra.get(&name).cloned().or_else(|| definition(dialect, &name));
        if let Some(mut made) = made {
            if let Some(kinds) = definition::kinds_everywhere(&name, groups) {
                made["x-kubernetes-group-version-kind"] = kinds;
            }
            references(dialect, &made, &mut wanted);
            found.insert(name, made);
        }
    }
    found
}

fn references(dialect: Dialect, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(dialect.prefix())) {
                into.insert(name.to_owned());
            }
            map.values().for_each(|value| references(dialect, value, into));
        }
        Value::Array(items) => items.iter().for_each(|value| references(dialect, value, into)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
