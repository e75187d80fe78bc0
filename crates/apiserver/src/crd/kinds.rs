//! Custom resources as the REST layer sees them.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use usher_schema::codec::{self, Problem};
use usher_schema::field::Errors;
use usher_schema::graph::{At, Graph, TypeId};
use usher_store::Entry;

use super::scale::ScalePaths;
use super::version::{Custom, Version};
use crate::object::{self, Object};
use crate::registry::kind::{Column, Cx, Propagation, Resource};
use crate::registry::served::{Part, Served};
use crate::registry::{meta, names};
use crate::status::{ApiError, Result};
use crate::stored::{self, Lean};

/// One served version of a custom resource.
pub struct CustomKind {
    custom: Arc<Custom>,
    /// Its place in `custom.versions`.
    version: usize,
    resource: Resource,
    graph: Graph,
    root: TypeId,
    published: Value,
    /// The revision of the definition. What was stored before it may lack defaults.
    since: u64,
}

impl CustomKind {
    /// Read as what it was stored as, then told in this version: without the defaults that only this one has, as upstream
    /// does it.
    fn tell_in_this_version(&self, object: &mut Object, revision: u64) {
        if self.is_current(revision) {
            return;
        }
        let mut unknown = Vec::new();
        let storage = self.storage_apart();
        storage.unwrap_or(self.version()).admit(object, &mut unknown);
        if storage.is_some() {
            self.version().structural.prune(object, &mut unknown);
        }
    }

    /// All served versions of a compiled definition.
    pub fn all(custom: &Arc<Custom>, since: u64) -> Vec<CustomKind> {
        let served = custom.versions.iter().enumerate().filter(|(_, v)| v.served);
        served
            .map(|(version, v)| {
                let mut graph = Graph::new();
                let object_meta = graph.import(usher_schema::builtin::object_meta());
                let root = v.structural.lower(&mut graph, object_meta);
                CustomKind {
                    resource: custom.resource(v),
                    published: custom.openapi(v),
                    custom: custom.clone(),
                    version,
                    graph,
                    root,
                    since,
                }
            })
            .collect()
    }

    fn version(&self) -> &Version {
        &self.custom.versions[self.version]
    }

    /// The version objects are stored in, if it is another.
    fn storage_apart(&self) -> Option<&Version> {
        self.custom.storage().filter(|storage| storage.name != self.version().name)
    }

    fn check(&self, object: &Object, validate: impl FnOnce(super::object::Meta<'_>, &mut Errors)) -> Result<()> {
        let mut errors = Errors::new();
        let namespaced = self.resource.namespaced;
        validate(
            &|path, new, old, errors| match old {
                // Only the object's own metadata has a name that is ours to check; an embedded one is taken as it is.
                None if path.as_str() == "metadata" => {
                    meta::validate_meta(new, path, namespaced, &names::dns1123_subdomain, errors);
                }
                None => {}
                Some(old) => meta::validate_meta_update(new, old, path, errors),
            },
            &mut errors,
        );
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(&self.resource, object::name(object), &errors)) }
    }

    fn type_meta(&self, object: &mut Object) {
        let root = object::as_map(object);
        root.insert("apiVersion".to_owned(), self.version().api_version.clone().into());
        root.insert("kind".to_owned(), self.resource.kind.clone().into());
    }
}

impl Served for CustomKind {
    fn resource(&self) -> &Resource {
        &self.resource
    }

    fn schema(&self) -> At<'_> {
        self.graph.at(self.root)
    }

    fn is_custom(&self) -> bool {
        true
    }

    fn decode(&self, body: &mut Object) -> Result<Vec<Problem>> {
        let mut problems = Vec::new();
        if let Some(metadata) = body.get_mut("metadata") {
            let mut found = Vec::new();
            codec::decode(usher_schema::builtin::object_meta(), metadata, &mut found).map_err(|e| {
                ApiError::bad_request(format!("error decoding metadata of a {}: {e}", self.resource.kind))
            })?;
            codec::encode(usher_schema::builtin::object_meta(), metadata);
            problems.extend(found.into_iter().map(|p| match p {
                Problem::Unknown { path } => Problem::Unknown { path: format!("metadata.{path}") },
                Problem::Duplicate { path } => Problem::Duplicate { path: format!("metadata.{path}") },
                repeated @ Problem::Repeated { .. } => repeated,
            }));
        }
        codec::normalize_numbers(body);
        let mut unknown = Vec::new();
        self.version().structural.prune(body, &mut unknown);
        problems.extend(unknown.into_iter().map(|path| Problem::Unknown { path }));
        Ok(problems)
    }

    /// What the stored version does not know is not stored.
    fn freeze(&self, object: &Object, managed_fields: Option<&str>) -> Bytes {
        let Some(storage) = self.storage_apart() else { return stored::freeze_with(object, managed_fields) };
        let mut object = object.clone();
        storage.structural.prune(&mut object, &mut Vec::new());
        stored::freeze_with(&object, managed_fields)
    }

    /// Another version's fields and defaults are not this one's.
    fn is_current(&self, revision: u64) -> bool {
        self.custom.versions.len() == 1 && revision > self.since
    }

    fn thaw_value(&self, value: &[u8], revision: u64) -> Result<Object, serde_json::Error> {
        let mut object = stored::thaw(&self.resource, value, revision)?;
        self.tell_in_this_version(&mut object, revision);
        Ok(object)
    }

    fn thaw_lean(&self, entry: &Entry) -> Option<Result<Lean, serde_json::Error>> {
        Some(stored::thaw_lean(&self.resource, &entry.value, entry.mod_revision).map(|mut lean| {
            self.tell_in_this_version(&mut lean.object, entry.mod_revision);
            lean
        }))
    }

    fn default(&self, mut object: Object) -> Result<Object> {
        self.version().structural.default(&mut object);
        self.type_meta(&mut object);
        Ok(object)
    }

    fn create(&self, _cx: &Cx, mut object: Object) -> Result<Object> {
        self.version().prepare_create(&mut object);
        self.check(&object, |meta, errors| self.version().validate_create(&object, meta, errors))?;
        object::meta_mut(&mut object).insert("generation".to_owned(), 1.into());
        Ok(object)
    }

    fn update(&self, _cx: &Cx, part: Part, mut new: Object, old: &Object) -> Result<Object> {
        let version = self.version();
        match part {
            Part::Main => {
                version.prepare_update(&mut new, old);
                self.check(&new, |meta, errors| version.validate_update(&new, old, meta, errors))?;
            }
            Part::Status => {
                version.prepare_status_update(&mut new, old);
                self.check(&new, |meta, errors| version.validate_status_update(&new, old, meta, errors))?;
            }
        }
        let generation =
            object::generation(old) + i64::from(version.changes_generation(&new, old) && part == Part::Main);
        object::meta_mut(&mut new).insert("generation".to_owned(), generation.into());
        Ok(new)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        self.version().warnings(new, old)
    }

    fn deprecation(&self) -> Option<&str> {
        self.version().deprecation.as_deref()
    }

    fn columns(&self) -> Vec<Column> {
        self.version().columns.headers.clone()
    }

    fn cells(&self, object: &Object, now: Timestamp) -> Vec<Value> {
        self.version().columns.cells(object, now)
    }

    fn selectable(&self) -> Vec<String> {
        self.version().selectable_fields.iter().map(|f| f.name.clone()).collect()
    }

    fn select(&self, object: &Object, field: &str) -> String {
        self.version().select(object, field).unwrap_or_default()
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Background
    }

    fn create_on_update(&self) -> bool {
        false
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn published_schema(&self) -> Option<Value> {
        Some(self.published.clone())
    }

    fn scale_paths(&self) -> Option<&ScalePaths> {
        self.version().scale.as_ref()
    }
}
