//! What is served, as clients ask: one document for everything (aggregated), or step by step (legacy).

use serde_json::{Value, json};

use crate::registry::catalog::{Catalog, Version};
use crate::registry::kind::Resource;

/// `/api` and `/apis` in one document each. `core`: the group without a name.
pub fn aggregated(catalog: &Catalog, core: bool, api: &str) -> Value {
    let items: Vec<Value> = catalog
        .groups()
        .into_iter()
        .filter(|group| group.name.is_empty() == core)
        .map(|group| {
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = version.resources.iter().map(|r| aggregated_resource(r)).collect();
                    json!({"version": version.name, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if core { json!({}) } else { json!({"name": group.name}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{api}"),
        "metadata": {}, "items": items,
    })
}

fn aggregated_resource(r: &Resource) -> Value {
    let mut out = json!({
        "resource": r.plural,
        "responseKind": {"group": r.group, "version": r.version, "kind": r.kind},
        "scope": if r.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": r.singular,
        "verbs": r.verbs,
    });
    if !r.short_names.is_empty() {
        out["shortNames"] = json!(r.short_names);
    }
    if !r.categories.is_empty() {
        out["categories"] = json!(r.categories);
    }
    if !r.subresources.is_empty() {
        let subresources: Vec<Value> = r
            .subresources
            .iter()
            .map(|s| {
                let (group, version, kind) = body_of(r, s);
                json!({"subresource": s.name, "responseKind": {"group": group, "version": version, "kind": kind}, "verbs": s.verbs})
            })
            .collect();
        out["subresources"] = subresources.into();
    }
    out
}

fn body_of<'a>(r: &'a Resource, s: &'a crate::registry::kind::Subresource) -> (&'a str, &'a str, &'a str) {
    match &s.body {
        Some((group, version, kind)) => (group, version, kind),
        None => (&r.group, &r.version, &r.kind),
    }
}

/// Legacy `/api`.
pub fn api_versions(address: &str) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]})
}

/// Legacy `/apis`.
pub fn group_list(catalog: &Catalog) -> Value {
    let groups: Vec<Value> = catalog
        .groups()
        .iter()
        .filter(|group| !group.name.is_empty())
        .map(|group| group_value(&group.name, &group.versions, false))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// Legacy `/apis/<group>`.
pub fn group(catalog: &Catalog, name: &str) -> Option<Value> {
    let groups = catalog.groups();
    let group = groups.iter().find(|group| group.name == name && !group.name.is_empty())?;
    Some(group_value(&group.name, &group.versions, true))
}

fn group_value(group: &str, versions: &[Version<'_>], alone: bool) -> Value {
    let versions: Vec<Value> =
        versions.iter().map(|v| json!({"groupVersion": format!("{group}/{}", v.name), "version": v.name})).collect();
    let mut out = json!({"name": group, "versions": versions, "preferredVersion": versions.first()});
    if alone {
        out["kind"] = "APIGroup".into();
        out["apiVersion"] = "v1".into();
    }
    out
}

/// Legacy `/api/v1` and `/apis/<group>/<version>`.
pub fn resource_list(catalog: &Catalog, group: &str, version: &str) -> Option<Value> {
    let groups = catalog.groups();
    let found = groups.iter().find(|g| g.name == group)?;
    let found = found.versions.iter().find(|v| v.name == version)?;
    let mut list = Vec::new();
    for r in &found.resources {
        let mut entry = json!({
            "name": r.plural, "singularName": r.singular, "namespaced": r.namespaced, "kind": r.kind, "verbs": r.verbs,
        });
        if !r.short_names.is_empty() {
            entry["shortNames"] = json!(r.short_names);
        }
        if !r.categories.is_empty() {
            entry["categories"] = json!(r.categories);
        }
        if r.verbs.contains(&"list") {
            entry["storageVersionHash"] = storage_hash(r).into();
        }
        list.push(entry);
        for s in &r.subresources {
            let (g, v, kind) = body_of(r, s);
            let mut entry = json!({
                "name": format!("{}/{}", r.plural, s.name), "singularName": "", "namespaced": r.namespaced,
                "kind": kind, "verbs": s.verbs,
            });
            if s.body.is_some() {
                entry["group"] = g.into();
                entry["version"] = v.into();
            }
            list.push(entry);
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

/// Eight bytes that change when the stored version does, in base64, as upstream shows them.
fn storage_hash(r: &Resource) -> String {
    use base64::Engine;
    let text = format!("{}/{}/{}", r.group, r.version, r.kind);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}
