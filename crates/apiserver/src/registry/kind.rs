//! What a built-in kind says about itself: one implementation of [`Kind`] in one file.
//!
//! The REST layer never sees [`Kind`]; it sees [`Served`], which works on JSON values. [`Typed`] turns one into the other
//! and decodes an object once per write. Custom resources implement [`Served`] directly.

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use usher_env::Ids;
use usher_schema::field::Errors;

pub use crate::gates::Gates;

/// A resource as discovery describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// Served for the resource itself, in discovery's order.
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    /// Whether the object has a `status` that only the status subresource writes.
    pub has_status: bool,
    /// Whether `metadata.generation` counts changes of everything but metadata and status.
    pub has_generation: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Subresource {
    /// `status`, `log`, `binding`, ...
    pub name: String,
    /// Group, version and kind of its body where they differ from the resource's.
    pub body: Option<(String, String, String)>,
    pub verbs: Vec<&'static str>,
}

impl Resource {
    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// How errors name it: `jobs.batch`, `pods`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// How "is invalid" errors name it: `Job.batch`, `Pod`.
    pub fn qualified_kind(&self) -> String {
        if self.group.is_empty() { self.kind.clone() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// The collection in the store. Versions of one resource share it.
    pub fn collection(&self) -> String {
        format!("{}/{}", if self.group.is_empty() { "core" } else { &self.group }, self.plural)
    }
}

/// The world of one write.
pub struct Cx<'a> {
    pub now: Timestamp,
    pub ids: &'a Ids,
    pub gates: &'a Gates,
    /// Who asks (for kinds whose defaults or rules depend on it).
    pub user: &'a str,
    /// Namespace of the request; empty for cluster-scoped kinds.
    pub namespace: &'a str,
}

/// A column of `kubectl get`.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: String,
    /// `string`, `integer`, `date`, ...
    pub kind: String,
    /// `name` for the name column, else empty.
    pub format: String,
    pub description: String,
    /// 0: always shown; 1: with `-o wide`.
    pub priority: i32,
}

impl Column {
    pub fn new(name: &str, kind: &str, priority: i32, description: &str) -> Column {
        Column {
            name: name.to_owned(),
            kind: kind.to_owned(),
            format: if name == "Name" { "name".to_owned() } else { String::new() },
            description: description.to_owned(),
            priority,
        }
    }
}

/// The rules of one built-in kind. Everything has a default, so that a kind's file holds only what is special about it.
///
/// The server calls, on create: `default`, mutating admission, `prepare_create`, `validate`. On update (PUT and patches
/// alike): `default`, mutating admission, `prepare_update`, `validate_update`. On the status subresource:
/// `prepare_status_update`, `validate_status_update`. The server itself keeps `status` as stored on a main update (and
/// everything but `status` and metadata on a status update), wipes `status` on create where [`Resource::has_status`],
/// validates and fills ObjectMeta, counts generations, and keeps managed fields.
pub trait Kind: Send + Sync + 'static {
    type Object: DeserializeOwned + Serialize + Clone + Send + Sync;

    fn resource(&self) -> Resource;

    /// Defaults, also applied to what is read back from the store.
    fn default(&self, _object: &mut Self::Object) {}

    /// Whether `default` may fill in something in the status.
    fn defaults_status(&self) -> bool {
        true
    }

    /// Fills or clears what a client may not choose.
    fn prepare_create(&self, _cx: &Cx, _object: &mut Self::Object) {}
    fn prepare_update(&self, _cx: &Cx, _new: &mut Self::Object, _old: &Self::Object) {}
    fn prepare_status_update(&self, _cx: &Cx, _new: &mut Self::Object, _old: &Self::Object) {}

    fn validate(&self, _cx: &Cx, _object: &Self::Object, _errors: &mut Errors) {}
    /// Runs `validate` unless a kind has its own rules.
    fn validate_update(&self, cx: &Cx, new: &Self::Object, _old: &Self::Object, errors: &mut Errors) {
        self.validate(cx, new, errors);
    }
    fn validate_status_update(&self, _cx: &Cx, _new: &Self::Object, _old: &Self::Object, _errors: &mut Errors) {}

    /// Texts for `Warning` headers.
    fn warnings(&self, _new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        Vec::new()
    }

    /// False for kinds that never warn, so that nothing is decoded to find that out.
    fn warns(&self) -> bool {
        true
    }
    /// Whether an update that leaves the spec as it was has nothing to warn of.
    fn warns_of_spec(&self) -> bool {
        false
    }

    /// Names are DNS subdomains unless a kind says otherwise: appends the problems with `name` in upstream's words.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        super::names::dns1123_subdomain(name, prefix)
    }

    /// The columns of `kubectl get` and an object's cells in them; by default Name and Age.
    fn columns(&self) -> Vec<Column> {
        super::table::name_and_age()
    }
    fn cells(&self, object: &Self::Object, meta: &Value, now: Timestamp) -> Vec<Value> {
        let _ = object;
        super::table::name_and_age_cells(meta, now)
    }

    /// Field selectors beyond `metadata.name` and `metadata.namespace`: the labels a selector may use...
    fn selectable(&self) -> &'static [&'static str] {
        &[]
    }
    /// ...and this object's value for one of them (work on JSON: this runs for every event of a watch with a selector).
    fn select(&self, _object: &Value, _field: &str) -> String {
        String::new()
    }

    /// What [`Kind::select`] looks at, sorted, so that nothing else has to be decoded; nothing here means everything.
    fn selected_paths(&self) -> &'static [&'static [&'static str]] {
        &[]
    }

    /// What `DELETE` without a propagation policy does.
    fn default_propagation(&self) -> Propagation {
        Propagation::Background
    }

    /// Texts for `Warning` headers of a `DELETE` that names no propagation policy.
    fn delete_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// See [`super::served::Served::grace_secs`].
    fn grace_secs(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// See [`super::served::Served::begin_deletion`].
    fn begin_deletion(&self, _object: &mut Value, _now: Timestamp) -> super::served::Deletion {
        super::served::Deletion::Ordinary
    }

    /// Whether a deletion that took effect is answered with the object rather than with a Status.
    fn delete_shows_object(&self) -> bool {
        false
    }

    /// Set for a kind whose objects are kept as another kind's.
    fn stored_as(&self) -> Option<Twin> {
        None
    }

    /// Whether a PUT to a name that does not exist creates it.
    fn create_on_update(&self) -> bool {
        false
    }
    /// Whether an update may leave out `resourceVersion`.
    fn unconditional_update(&self) -> bool {
        true
    }
}

/// The kind that really keeps the objects, and the way there and back.
#[derive(Clone, Copy)]
pub struct Twin {
    pub collection: &'static str,
    pub freeze: fn(Value) -> Value,
    pub thaw: fn(Value) -> Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}
