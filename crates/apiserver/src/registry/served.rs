//! A kind as the REST layer sees it: rules over JSON values. [`Typed`] makes one of a built-in [`Kind`].

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use usher_schema::codec::{self, Problem};
use usher_schema::field::{Errors, Path};
use usher_schema::graph::At;
use usher_store::Entry;

use super::kind::{Column, Cx, Kind, Propagation, Resource};
use super::meta;
use crate::crd::scale::ScalePaths;
use crate::object::{self, Object};
use crate::status::{ApiError, Result};
use crate::stored::{self, Lean};

/// Which part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Main,
    Status,
}

/// What a kind does about the beginning of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Nothing of its own: finalizers and grace decide.
    Ordinary,
    /// It stays until someone lets it go, whatever its finalizers say; the kind has marked it as it likes.
    Held,
    /// As ordinary, after the kind has put something into it.
    Marked,
}

/// The rules of one served resource.
pub trait Served: Send + Sync {
    fn resource(&self) -> &Resource;

    /// Where the kind stands in its type graph: drives apply, patches and managed fields.
    fn schema(&self) -> At<'_>;

    /// Whether list items repeat `apiVersion` and `kind`, as custom resources' do.
    fn is_custom(&self) -> bool;

    /// Makes a body that any client sent into an object of this kind. Returns what was unknown in it.
    fn decode(&self, body: &mut Object) -> Result<Vec<Problem>>;

    fn default(&self, object: Object) -> Result<Object>;

    /// From a defaulted object to one that may be stored. Metadata is filled already.
    fn create(&self, cx: &Cx, object: Object) -> Result<Object>;

    /// The same for a change of `old`. Keeps `status` (or everything else, for [`Part::Status`]) as it was.
    fn update(&self, cx: &Cx, part: Part, new: Object, old: &Object) -> Result<Object>;

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String>;

    fn columns(&self) -> Vec<Column>;
    fn cells(&self, object: &Object, now: Timestamp) -> Vec<Value>;

    fn selectable(&self) -> Vec<String>;
    fn select(&self, object: &Object, field: &str) -> String;

    fn default_propagation(&self) -> Propagation;
    fn create_on_update(&self) -> bool;
    fn unconditional_update(&self) -> bool;

    /// Where its objects are kept. Versions of one resource share a place, and so do the two kinds of events.
    fn collection(&self) -> String {
        self.resource().collection()
    }
    /// Whether the stored bytes can be shown as they are.
    fn is_stored_as_shown(&self) -> bool {
        true
    }
    /// Whether what was stored at `revision` was made under the rules of today, defaults included.
    fn is_current(&self, revision: u64) -> bool {
        let _ = revision;
        true
    }
    /// The bytes to store. Managed fields may come apart, as text (see [`stored::freeze_with`]).
    fn freeze(&self, object: &Object, managed_fields: Option<&str>) -> Bytes {
        stored::freeze_with(object, managed_fields)
    }
    fn thaw_value(&self, value: &[u8], revision: u64) -> Result<Object, serde_json::Error> {
        stored::thaw(self.resource(), value, revision)
    }
    fn thaw(&self, entry: &Entry) -> Result<Object, serde_json::Error> {
        self.thaw_value(&entry.value, entry.mod_revision)
    }

    /// The object with its managed fields left as text; `None` for kinds that are not stored as they are.
    fn thaw_lean(&self, entry: &Entry) -> Option<Result<Lean, serde_json::Error>> {
        let _ = entry;
        None
    }
    /// As much of a stored object as [`Served::select`] looks at.
    fn thaw_selectable(&self, entry: &Entry) -> Object {
        self.thaw(entry).unwrap_or(Value::Null)
    }
    /// Makes what a patch has made of `old` look as this kind writes it, defaults included.
    fn settle(&self, part: Part, patched: Object, old: &Object) -> Result<Object> {
        let _ = (part, old);
        self.default(patched)
    }

    /// What clients of a deprecated version are told, whatever they do.
    fn deprecation(&self) -> Option<&str> {
        None
    }

    /// What OpenAPI shows of a custom resource's schema.
    fn published_schema(&self) -> Option<Value> {
        None
    }

    /// Where the scale subresource finds its numbers, where there is one.
    fn scale_paths(&self) -> Option<&ScalePaths> {
        None
    }

    /// How long a deletion that is asked for now may take: `None` for kinds that know no grace.
    fn grace_secs(&self, _object: &Object, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Marks an object whose deletion begins, in ways of its own.
    fn begin_deletion(&self, _object: &mut Object, _now: Timestamp) -> Deletion {
        Deletion::Ordinary
    }

    /// Whether an object whose deletion has begun stays, whatever its finalizers say.
    fn is_held(&self, object: &Object, now: Timestamp) -> bool {
        self.begin_deletion(&mut object.clone(), now) == Deletion::Held
    }

    /// Whether a deletion that took effect is answered with the object rather than with a Status.
    fn delete_shows_object(&self) -> bool {
        false
    }

    /// Texts for `Warning` headers of a `DELETE` that names no propagation policy.
    fn delete_warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A built-in kind behind the [`Served`] interface.
pub struct Typed<K: Kind> {
    kind: K,
    resource: Resource,
    schema: At<'static>,
}

impl<K: Kind> Typed<K> {
    /// `None` if the type graph does not know the kind: a mistake in the registry, shown by a test.
    pub fn new(kind: K) -> Option<Typed<K>> {
        let resource = kind.resource();
        let schema = usher_schema::builtin::kind(&resource.group, &resource.version, &resource.kind)?;
        Some(Typed { kind, resource, schema })
    }

    fn typed(&self, object: Object) -> Result<K::Object> {
        serde_json::from_value(object).map_err(|e| {
            let r = &self.resource;
            ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {e}",
                r.kind, r.version, r.kind
            ))
        })
    }

    /// The same of an object that is still needed.
    fn typed_copy(&self, object: &Object) -> Result<K::Object> {
        K::Object::deserialize(object).map_err(|e| {
            let r = &self.resource;
            ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {e}",
                r.kind, r.version, r.kind
            ))
        })
    }

    fn value(&self, object: &K::Object) -> Result<Object> {
        let mut value = serde_json::to_value(object).map_err(|e| ApiError::internal(e.to_string()))?;
        codec::encode(self.schema, &mut value);
        Ok(value)
    }

    fn finish(&self, name: &str, errors: &Errors) -> Result<()> {
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(&self.resource, name, errors)) }
    }
}

impl<K: Kind> Served for Typed<K> {
    fn resource(&self) -> &Resource {
        &self.resource
    }

    fn schema(&self) -> At<'_> {
        self.schema
    }

    fn is_custom(&self) -> bool {
        false
    }

    fn decode(&self, body: &mut Object) -> Result<Vec<Problem>> {
        let mut problems = Vec::new();
        codec::decode(self.schema, body, &mut problems).map_err(|e| {
            let r = &self.resource;
            ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {e}",
                r.kind, r.version, r.kind
            ))
        })?;
        Ok(problems)
    }

    fn collection(&self) -> String {
        self.kind.stored_as().map_or_else(|| self.resource.collection(), |twin| twin.collection.to_owned())
    }

    fn is_stored_as_shown(&self) -> bool {
        self.kind.stored_as().is_none()
    }

    fn freeze(&self, object: &Object, managed_fields: Option<&str>) -> Bytes {
        match self.kind.stored_as() {
            Some(twin) => stored::freeze_with(&(twin.freeze)(object.clone()), managed_fields),
            None => stored::freeze_with(object, managed_fields),
        }
    }

    fn thaw_value(&self, value: &[u8], revision: u64) -> Result<Object, serde_json::Error> {
        let object = stored::thaw(&self.resource, value, revision)?;
        Ok(match self.kind.stored_as() {
            Some(twin) => {
                let mut object = (twin.thaw)(object);
                stored::stamp(&mut object, &self.resource.api_version(), &self.resource.kind, revision);
                codec::encode(self.schema, &mut object);
                object
            }
            None => object,
        })
    }

    fn thaw_lean(&self, entry: &Entry) -> Option<Result<Lean, serde_json::Error>> {
        let as_is = self.kind.stored_as().is_none();
        as_is.then(|| stored::thaw_lean(&self.resource, &entry.value, entry.mod_revision))
    }

    fn thaw_selectable(&self, entry: &Entry) -> Object {
        match self.kind.selected_paths() {
            [] => self.thaw(entry).unwrap_or(Value::Null),
            paths => stored::excerpt(&entry.value, paths),
        }
    }

    /// Defaults fill in what a client left out of a spec, and what is stored has them: where nothing but the status, or who
    /// holds on to the object, has changed, there is nothing to fill in.
    fn settle(&self, part: Part, mut patched: Object, old: &Object) -> Result<Object> {
        if (part == Part::Status && !self.kind.defaults_status()) || is_content_kept(&patched, old) {
            codec::encode(self.schema, &mut patched);
            return Ok(patched);
        }
        self.default(patched)
    }

    fn default(&self, object: Object) -> Result<Object> {
        let mut typed = self.typed(object)?;
        self.kind.default(&mut typed);
        self.value(&typed)
    }

    fn create(&self, cx: &Cx, mut object: Object) -> Result<Object> {
        if self.resource.has_status {
            object::as_map(&mut object).remove("status");
        }
        let name = object::name(&object).to_owned();
        let mut errors = Errors::new();
        meta::validate_meta(
            object.get("metadata").unwrap_or(&Value::Null),
            &Path::new("metadata"),
            self.resource.namespaced,
            &|name, prefix| self.kind.validate_name(name, prefix),
            &mut errors,
        );
        check_finalizers(&object, &mut errors);
        let mut typed = self.typed(object)?;
        self.kind.default(&mut typed);
        self.kind.prepare_create(cx, &mut typed);
        self.kind.validate(cx, &typed, &mut errors);
        self.finish(&name, &errors)?;
        // Upstream defaults again whenever it reads from the store, so that what was prepared is defaulted as well (a Job
        // takes its labels from its template, generated ones included).
        self.kind.default(&mut typed);
        let mut object = self.value(&typed)?;
        if self.resource.has_generation {
            object::meta_mut(&mut object).insert("generation".to_owned(), 1.into());
        } else {
            object::meta_mut(&mut object).remove("generation");
        }
        Ok(object)
    }

    fn update(&self, cx: &Cx, part: Part, mut new: Object, old: &Object) -> Result<Object> {
        keep_other_part(part, &mut new, old, self.resource.has_status);
        let mut errors = Errors::new();
        meta::validate_meta_update(
            new.get("metadata").unwrap_or(&Value::Null),
            old.get("metadata").unwrap_or(&Value::Null),
            &Path::new("metadata"),
            &mut errors,
        );
        check_finalizers(&new, &mut errors);
        let name = object::name(&new).to_owned();
        let mut typed = self.typed(new)?;
        let old_typed = self.typed_copy(old)?;
        if part == Part::Main {
            self.kind.default(&mut typed);
            self.kind.prepare_update(cx, &mut typed, &old_typed);
            self.kind.validate_update(cx, &typed, &old_typed, &mut errors);
        } else {
            self.kind.prepare_status_update(cx, &mut typed, &old_typed);
            self.kind.validate_status_update(cx, &typed, &old_typed, &mut errors);
        }
        self.finish(&name, &errors)?;
        let mut new = self.value(&typed)?;
        count_generation(&mut new, old, self.resource.has_generation);
        Ok(new)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        if !self.kind.warns() || self.kind.warns_of_spec() && old.is_some_and(|old| old.get("spec") == new.get("spec"))
        {
            return Vec::new();
        }
        let Ok(new) = self.typed_copy(new) else { return Vec::new() };
        let old = old.and_then(|o| self.typed_copy(o).ok());
        self.kind.warnings(&new, old.as_ref())
    }

    fn columns(&self) -> Vec<Column> {
        self.kind.columns()
    }

    fn cells(&self, object: &Object, now: Timestamp) -> Vec<Value> {
        match self.typed_copy(object) {
            Ok(typed) => self.kind.cells(&typed, object.get("metadata").unwrap_or(&Value::Null), now),
            Err(_) => vec![object::name(object).into()],
        }
    }

    fn selectable(&self) -> Vec<String> {
        self.kind.selectable().iter().map(|s| (*s).to_owned()).collect()
    }

    fn select(&self, object: &Object, field: &str) -> String {
        self.kind.select(object, field)
    }

    fn default_propagation(&self) -> Propagation {
        self.kind.default_propagation()
    }

    fn grace_secs(&self, object: &Object, asked: Option<i64>) -> Option<i64> {
        self.kind.grace_secs(object, asked)
    }

    fn begin_deletion(&self, object: &mut Object, now: Timestamp) -> Deletion {
        self.kind.begin_deletion(object, now)
    }

    fn delete_shows_object(&self) -> bool {
        self.kind.delete_shows_object()
    }

    fn delete_warnings(&self) -> Vec<String> {
        self.kind.delete_warnings()
    }

    fn create_on_update(&self) -> bool {
        self.kind.create_on_update()
    }

    fn unconditional_update(&self) -> bool {
        self.kind.unconditional_update()
    }
}

/// A finalizer of a built-in kind has a domain, or is one of the few that are known without.
fn check_finalizers(object: &Object, errors: &mut Errors) {
    for (i, finalizer) in object::finalizers(object).into_iter().enumerate() {
        let known = finalizer.contains('/') || matches!(finalizer, "orphan" | "foregroundDeletion" | "kubernetes");
        if !known {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(&Path::new("metadata").child("finalizers").index(i), finalizer, why);
        }
    }
}

/// A main update leaves `status` as stored; a status update leaves everything but `status` and metadata.
pub fn keep_other_part(part: Part, new: &mut Object, old: &Object, has_status: bool) {
    let empty = Map::new();
    let old = old.as_object().unwrap_or(&empty);
    let new = object::as_map(new);
    match part {
        Part::Main if has_status => match old.get("status") {
            Some(status) => drop(new.insert("status".to_owned(), status.clone())),
            None => drop(new.remove("status")),
        },
        Part::Main => {}
        Part::Status => {
            let is_own = |key: &str| matches!(key, "metadata" | "status");
            new.retain(|key, _| is_own(key) || old.contains_key(key));
            for (key, value) in old.iter().filter(|(key, _)| !is_own(key)) {
                // Mostly sent back as it was.
                if new.get(key) != Some(value) {
                    new.insert(key.clone(), value.clone());
                }
            }
        }
    }
}

/// The members of an object but for its type, its metadata and `others`.
fn content<'a>(object: &'a Object, others: &'a [&str]) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let left_out = |key: &str| matches!(key, "metadata" | "apiVersion" | "kind") || others.contains(&key);
    object.as_object().into_iter().flatten().filter(move |(key, _)| !left_out(key))
}

/// Whether an object differs from `old` in nothing but who owns it and who waits for its deletion.
fn is_content_kept(new: &Object, old: &Object) -> bool {
    fn meta(object: &Object) -> impl Iterator<Item = (&String, &Value)> {
        let free = |key: &str| matches!(key, "finalizers" | "ownerReferences" | "resourceVersion" | "managedFields");
        object.get("metadata").and_then(Value::as_object).into_iter().flatten().filter(move |(key, _)| !free(key))
    }
    content(new, &[]).eq(content(old, &[])) && meta(new).eq(meta(old))
}

/// `metadata.generation` rises by one when anything but metadata and status changed, and is otherwise as it was.
pub fn count_generation(new: &mut Object, old: &Object, counted: bool) {
    if !counted {
        object::meta_mut(new).remove("generation");
        return;
    }
    let changed = {
        let (new, old) = (content(new, &["status"]), content(old, &["status"]));
        !new.eq(old)
    };
    let generation = object::generation(old) + i64::from(changed);
    object::meta_mut(new).insert("generation".to_owned(), generation.into());
}
