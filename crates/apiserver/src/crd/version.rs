//! A CustomResourceDefinition compiled into what the server serves: one [`Version`] for each version.

use std::borrow::Cow;

use serde_json::Value;
use usher_schema::field::{Errors, Path};
use usher_schema::structural::{Gvk, Options, Structural};

use super::columns::Columns;
use super::definition::{strings, text, versions};
use super::jsonpath::JsonPath;
use super::scale::ScalePaths;
use crate::registry::kind::{Resource, Subresource};

/// Everything a definition says, ready to be used.
#[derive(Debug)]
pub struct Custom {
    pub group: String,
    pub names: Names,
    pub namespaced: bool,
    /// In the definition's order, those not served included: they may still be stored.
    pub versions: Vec<Version>,
}

/// What the resource is called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

/// One version of a custom resource.
#[derive(Debug)]
pub struct Version {
    pub name: String,
    /// `group/version`, as objects carry it.
    pub api_version: String,
    pub kind: String,
    pub served: bool,
    pub storage: bool,
    /// What clients of a deprecated version are warned of.
    pub deprecation: Option<String>,
    pub structural: Structural,
    /// Whether there is a status subresource.
    pub status: bool,
    pub scale: Option<ScalePaths>,
    pub columns: Columns,
    pub selectable_fields: Vec<Selectable>,
}

/// A field that field selectors may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Selectable {
    /// `spec.color`.
    pub name: String,
    path: JsonPath,
}

impl Custom {
    /// Compiles an accepted definition; the errors are those of a definition that never was.
    pub fn compile(crd: &Value) -> Result<Custom, Errors> {
        let group = text(crd, "/spec/group").to_owned();
        let names = |pointer: &str| Names {
            plural: text(crd, &format!("{pointer}/plural")).to_owned(),
            singular: text(crd, &format!("{pointer}/singular")).to_owned(),
            kind: text(crd, &format!("{pointer}/kind")).to_owned(),
            list_kind: text(crd, &format!("{pointer}/listKind")).to_owned(),
            short_names: strings(crd, &format!("{pointer}/shortNames")),
            categories: strings(crd, &format!("{pointer}/categories")),
        };
        let mut custom = Custom {
            group,
            names: names("/spec/names"),
            namespaced: text(crd, "/spec/scope") == "Namespaced",
            versions: Vec::new(),
        };
        let mut errors = Errors::new();
        for (i, declared) in versions(crd).iter().enumerate() {
            let path = Path::new("spec").child("versions").index(i).child("schema").child("openAPIV3Schema");
            match custom.version(crd, declared, path) {
                Ok(version) => custom.versions.push(version),
                Err(found) => errors.extend(found),
            }
        }
        if errors.is_empty() { Ok(custom) } else { Err(errors) }
    }

    fn version(&self, crd: &Value, declared: &Value, path: Path) -> Result<Version, Errors> {
        let name = text(declared, "/name").to_owned();
        let present = |pointer: &str| declared.pointer(pointer).filter(|v| !v.is_null());
        let status = present("/subresources/status").is_some();
        let structural = match present("/schema/openAPIV3Schema") {
            Some(schema) => {
                let options =
                    Options { path, status_subresource: status, require_pruned_defaults: false, limit_costs: false };
                Structural::compile_with(schema, &options)?
            }
            None => Structural::any(),
        };
        let list = |name: &str| declared.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let selectable = list("selectableFields").iter().filter_map(|f| Selectable::declared(text(f, "/jsonPath")));
        Ok(Version {
            api_version: format!("{}/{name}", self.group),
            kind: self.names.kind.clone(),
            served: declared["served"] == true,
            storage: declared["storage"] == true,
            deprecation: deprecation(crd, declared),
            structural,
            status,
            scale: present("/subresources/scale").and_then(ScalePaths::declared),
            columns: Columns::declared(list("additionalPrinterColumns")),
            selectable_fields: selectable.collect(),
            name,
        })
    }

    /// The version that objects are stored in.
    pub fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.storage)
    }

    /// A version that is served.
    pub fn served(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.served && v.name == name)
    }

    /// What discovery says of a version.
    pub fn resource(&self, version: &Version) -> Resource {
        let mut subresources = Vec::new();
        if version.status {
            subresources.push(Subresource {
                name: "status".to_owned(),
                body: None,
                verbs: vec!["get", "patch", "update"],
            });
        }
        if version.scale.is_some() {
            let body = Some(("autoscaling".to_owned(), "v1".to_owned(), "Scale".to_owned()));
            subresources.push(Subresource { name: "scale".to_owned(), body, verbs: vec!["get", "patch", "update"] });
        }
        Resource {
            group: self.group.clone(),
            version: version.name.clone(),
            kind: self.names.kind.clone(),
            plural: self.names.plural.clone(),
            singular: self.names.singular.clone(),
            short_names: self.names.short_names.clone(),
            categories: self.names.categories.clone(),
            namespaced: self.namespaced,
            verbs: vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
            subresources,
            has_status: version.status,
            has_generation: true,
        }
    }

    /// The schema that `/openapi/v3` publishes for a version.
    pub fn openapi(&self, version: &Version) -> Value {
        let gvk = Gvk { group: self.group.clone(), version: version.name.clone(), kind: self.names.kind.clone() };
        let mut schema = version.structural.openapi(&gvk);
        if !version.selectable_fields.is_empty() {
            let fields: Vec<Value> =
                version.selectable_fields.iter().map(|f| serde_json::json!({"fieldPath": f.name})).collect();
            schema["x-kubernetes-selectable-fields"] = fields.into();
        }
        schema
    }
}

impl Selectable {
    fn declared(json_path: &str) -> Option<Selectable> {
        let path = JsonPath::parse(json_path).ok()?;
        Some(Selectable { name: json_path.strip_prefix('.').unwrap_or(json_path).to_owned(), path })
    }

    /// An object's value for the selector; empty where it has none.
    pub fn value(&self, object: &Value) -> String {
        match self.path.first(object).as_deref() {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(s)) => s.clone(),
            Some(other) => other.to_string(),
        }
    }
}

impl Version {
    /// The value of a field selector's field, if the version declares it.
    pub fn select(&self, object: &Value, field: &str) -> Option<String> {
        self.selectable_fields.iter().find(|f| f.name == field).map(|f| f.value(object))
    }
}

fn deprecation(crd: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) {
        return Some(warning.to_owned());
    }
    let (group, kind, name) = (text(crd, "/spec/group"), text(crd, "/spec/names/kind"), text(version, "/name"));
    let newer = versions(crd)
        .iter()
        .filter(|v| v["served"] == true && v["deprecated"] != true)
        .map(|v| text(v, "/name"))
        .filter(|other| rank(other) > rank(name))
        .max_by_key(|other| rank(other));
    Some(match newer {
        Some(newer) => format!("{group}/{name} {kind} is deprecated; use {group}/{newer} {kind}"),
        None => format!("{group}/{name} {kind} is deprecated"),
    })
}

/// Orders versions as Kubernetes does: `v2` before `v1` before `v2beta1` before `v1alpha1` before anything else.
pub fn rank(version: &str) -> (u8, u32, u32, std::cmp::Reverse<Cow<'_, str>>) {
    let other = (0, 0, 0, std::cmp::Reverse(Cow::Borrowed(version)));
    let same = std::cmp::Reverse(Cow::Borrowed(""));
    let number = |s: &str| s.parse::<u32>().ok().filter(|_| !s.starts_with('0') && !s.starts_with('+'));
    let Some(rest) = version.strip_prefix('v') else { return other };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Some(major) = number(&rest[..digits]) else { return other };
    let tail = &rest[digits..];
    if tail.is_empty() {
        return (3, major, 0, same);
    }
    for (level, name) in [(2, "beta"), (1, "alpha")] {
        if let Some(minor) = tail.strip_prefix(name).and_then(number) {
            return (level, major, minor, same);
        }
    }
    other
}
