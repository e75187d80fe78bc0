//! A custom object on its way into the store: what is filled in, kept and refused on create, update and status update.
//!
//! The server calls, on every write: [`Version::admit`] on what the client sent (after a patch: on the result), then the
//! `prepare_` and the `validate_` of the operation. Metadata is not looked into here but handed to [`Meta`].

use std::collections::BTreeSet;

use serde_json::Value;
use usher_schema::field::{Errors, Path};

use super::version::Version;

/// Checks a `metadata` at this path; the second value is what it was before an update. Called for the object's own
/// metadata and, always as on create, for that of embedded resources.
pub type Meta<'a> = &'a dyn Fn(&Path, &Value, Option<&Value>, &mut Errors);

impl Version {
    /// Prunes and defaults what came from a client or from the store. The names of dropped fields are appended to
    /// `unknown`, for `unknown field "spec.x"`.
    pub fn admit(&self, object: &mut Value, unknown: &mut Vec<String>) {
        self.structural.prune(object, unknown);
        self.structural.default(object);
    }

    /// Conversion by strategy None: the object becomes one of this version by its name alone.
    pub fn convert(&self, object: &mut Value) {
        if let Value::Object(map) = object {
            map.insert("apiVersion".to_owned(), self.api_version.clone().into());
            self.admit(object, &mut Vec::new());
        }
    }

    /// Only the status subresource sets a status, where there is one.
    pub fn prepare_create(&self, object: &mut Value) {
        if let Some(map) = object.as_object_mut().filter(|_| self.status) {
            map.remove("status");
        }
    }

    pub fn prepare_update(&self, new: &mut Value, old: &Value) {
        if let Some(map) = new.as_object_mut().filter(|_| self.status) {
            match old.get("status") {
                Some(status) => map.insert("status".to_owned(), status.clone()),
                None => map.remove("status"),
            };
        }
    }

    /// Takes only the status of what was sent; the rest stays as it was, but for the record of who wrote which field.
    pub fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        let status = new.as_object_mut().and_then(|map| map.remove("status"));
        let managed = new.pointer_mut("/metadata/managedFields").map(Value::take);
        *new = old.clone();
        if let Some(map) = new.as_object_mut() {
            match status {
                Some(status) => map.insert("status".to_owned(), status),
                None => map.remove("status"),
            };
        }
        if let Some(meta) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            match managed {
                Some(managed) => meta.insert("managedFields".to_owned(), managed),
                None => meta.remove("managedFields"),
            };
        }
    }

    /// Whether a prepared update counts as a new generation: anything but metadata changed. With a status subresource the
    /// status cannot have.
    pub fn changes_generation(&self, new: &Value, old: &Value) -> bool {
        let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new != old };
        let counts = |key: &&String| *key != "metadata";
        let keys: BTreeSet<&String> = new.keys().chain(old.keys()).filter(counts).collect();
        keys.into_iter().any(|key| new.get(key) != old.get(key))
    }

    pub fn validate_create(&self, object: &Value, meta: Meta, errors: &mut Errors) {
        if !self.validate_type(object, errors) {
            return;
        }
        let nothing = Value::Null;
        let metadata = object.get("metadata").unwrap_or(&nothing);
        meta(&Path::new("metadata"), metadata, None, errors);
        let mut scale = |errors: &mut Errors| {
            if let Some(scale) = &self.scale {
                scale.validate_spec(object, errors);
                scale.validate_status(object, errors);
            }
        };
        self.structural.validate_with(object, None, &mut scale, errors);
        self.validate_embedded(object, meta, errors);
    }

    pub fn validate_update(&self, new: &Value, old: &Value, meta: Meta, errors: &mut Errors) {
        if !self.validate_type(new, errors) {
            return;
        }
        let nothing = Value::Null;
        let metadata = new.get("metadata").unwrap_or(&nothing);
        meta(&Path::new("metadata"), metadata, old.get("metadata"), errors);
        let mut scale = |errors: &mut Errors| {
            if let Some(scale) = &self.scale {
                scale.validate_spec(new, errors);
                scale.validate_status(new, errors);
            }
        };
        self.structural.validate_with(new, Some(old), &mut scale, errors);
        self.validate_embedded(new, meta, errors);
    }

    pub fn validate_status_update(&self, new: &Value, old: &Value, meta: Meta, errors: &mut Errors) {
        if !self.validate_type(new, errors) {
            return;
        }
        let nothing = Value::Null;
        let metadata = new.get("metadata").unwrap_or(&nothing);
        meta(&Path::new("metadata"), metadata, old.get("metadata"), errors);
        self.structural.validate_status(new, old, errors);
        if let Some(scale) = &self.scale {
            scale.validate_status(new, errors);
        }
    }

    fn validate_embedded(&self, object: &Value, meta: Meta, errors: &mut Errors) {
        self.structural.embedded(object, &mut |path, map| {
            if let Some(metadata) = map.get("metadata") {
                meta(&path.child("metadata"), metadata, None, errors);
            }
        });
    }

    fn validate_type(&self, object: &Value, errors: &mut Errors) -> bool {
        let before = errors.len();
        for (name, want) in [("kind", &self.kind), ("apiVersion", &self.api_version)] {
            let got = object.get(name).and_then(Value::as_str).unwrap_or_default();
            if got != want {
                errors.invalid(&Path::new(name), got, format!("must be {want}"));
            }
        }
        errors.len() == before
    }

    /// Warnings about finalizers that this write adds.
    pub fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
        let of = |object: &Value| -> BTreeSet<String> {
            let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
            list.into_iter().flatten().filter_map(|f| f.as_str().map(str::to_owned)).collect()
        };
        let known = old.map(of).unwrap_or_default();
        let plain = |name: &&String| !name.contains('/') && !STANDARD.contains(&name.as_str());
        let added: Vec<String> = of(new).difference(&known).filter(plain).cloned().collect();
        let tell = |name: String| {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            format!(
                "metadata.finalizers: \"{name}\": prefer a domain-qualified finalizer name{path} to avoid accidental \
                 conflicts with other finalizer writers"
            )
        };
        added.into_iter().map(tell).collect()
    }
}
