//! Server-side apply: a client sends the fields it cares about, the server merges them into the live object, removes those
//! that the client has dropped and nobody else wants, and refuses to overwrite what others have set.
//!
//! [`apply`] is one such request. It works on JSON alone and imitates upstream's structured merge and field manager; the
//! entries themselves are in [`crate::managed`].
//!
//! # What the server does around it
//!
//! 1. Check that the configuration's `apiVersion` and `kind` are the endpoint's (400 `invalid object type: …`), and that
//!    a field manager was given. Do **not** default, prune or convert the configuration: its fields as sent are what
//!    the manager will own.
//! 2. Call [`apply`] with the live object as stored, defaults and `managedFields` included, or an empty object when there
//!    is none.
//! 3. Decode, prune and default the result as any other write, run admission, preparation (which puts the live status
//!    back, and so on) and validation. Defaults filled in here belong to nobody, and so to whoever sets them next. Leave
//!    `managedFields` as they came out: do not call [`managed::update`](crate::managed::update) for an apply.
//! 4. If [`managed::equal_ignoring_manager_times`](crate::managed::equal_ignoring_manager_times) holds for the live object
//!    and the result, answer with the live one and write nothing.
//!
//! [`ApplyError::Invalid`] is upstream's plain error: 500 without a reason. [`ApplyError::ManagedFieldsInConfig`] is a 400.
//! [`ApplyError::Conflicts`] is a 409 `Conflict` with [`conflict_message`] and one cause for each conflict.

use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::field::quote;
use crate::fieldset::{self, ItemError, Path, Set, equal, go_json};
use crate::graph::At;
use crate::managed::{self, Entry, Manager, Operation};

pub(crate) mod check;
pub(crate) mod compare;
mod merge;
#[cfg(test)]
mod tests;

use compare::{Comparison, compare, zero};

/// The manager name of `kubectl apply --server-side`, which takes over from `kubectl apply`.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Annotations above this size are refused; the last applied configuration is given up before that happens.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Why a configuration was not applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ApplyError {
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    #[error("{0}")]
    Invalid(String),
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsInConfig,
}

impl From<(usize, ItemError)> for ApplyError {
    fn from((i, e): (usize, ItemError)) -> ApplyError {
        ApplyError::Invalid(format!("failed to compare objects: element {i}: {e}"))
    }
}

/// A field that the configuration would change and that someone else has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    /// When the other manager last changed something.
    pub time: Option<Timestamp>,
    pub path: Path,
}

impl Conflict {
    /// The text of its status cause, whose type is `FieldManagerConflict`.
    pub fn message(&self) -> String {
        format!("conflict with {}", self.with())
    }

    /// The field of its status cause.
    pub fn field(&self) -> String {
        self.path.to_string()
    }

    fn with(&self) -> String {
        let mut out = quote(&self.manager);
        if !self.subresource.is_empty() {
            out.push_str(&format!(" with subresource {}", quote(&self.subresource)));
        }
        if self.operation == Operation::Update {
            out.push_str(&format!(" using {}", self.api_version));
        }
        out
    }
}

/// The message of the 409 answer.
pub fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: {}: {}", only.message(), only.path);
    }
    let mut lines: Vec<String> = Vec::new();
    let mut last: Option<String> = None;
    for conflict in conflicts {
        let with = conflict.with();
        if last.as_ref() != Some(&with) {
            lines.push(format!("conflicts with {with}:"));
            last = Some(with);
        }
        lines.push(format!("- {}", conflict.path));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Applies a configuration to the live object (an empty one when there is none).
///
/// Gives the object to be written, managed fields included, or nothing when that would be the live object again.
/// `force` takes over fields instead of reporting conflicts; `reset` are the fields that this endpoint does not write.
pub fn apply(
    at: At<'_>,
    live: &Value,
    config: &Value,
    manager: &Manager<'_>,
    force: bool,
    reset: &Set,
) -> Result<Option<Value>, ApplyError> {
    if config.pointer("/metadata/managedFields").is_some_and(Value::is_array) {
        return Err(ApplyError::ManagedFieldsInConfig);
    }
    check::check(at, config)
        .map_err(|e| ApplyError::Invalid(format!("failed to create typed patch object ({}): {e}", describe(config))))?;
    let mut base = live.clone();
    let managed = base.get_mut("metadata").and_then(Value::as_object_mut).and_then(|m| m.remove("managedFields"));
    let mut entries = managed::decode_stored(managed.unwrap_or_default())
        .map_err(|e| ApplyError::Invalid(format!("failed to decode managed fields: {e}")))?;
    if entries.is_empty() && !is_empty(&base) {
        let before = Manager { name: "before-first-apply", ..*manager };
        entries = managed::track(at, &zero(at), &base, entries, &before, reset)?;
    }
    managed::reconcile(at, &mut entries);

    let (mut object, entries) = merge_into(at, &base, config, entries, manager, force, reset)?;
    if manager.name == KUBECTL {
        refresh_last_applied(&mut object, config);
    }
    if !object.get("metadata").is_some_and(Value::is_object)
        && let Value::Object(root) = &mut object
    {
        root.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
    managed::set_managed_fields(&mut object, managed::encode(entries));
    Ok((object != *live).then_some(object))
}

/// The merged object without managed fields, and the entries that belong to it.
fn merge_into(
    at: At<'_>,
    base: &Value,
    config: &Value,
    mut entries: Vec<Entry>,
    manager: &Manager<'_>,
    force: bool,
    reset: &Set,
) -> Result<(Value, Vec<Entry>), ApplyError> {
    let mut own = Entry::new(manager, Operation::Apply);
    own.set = fieldset::of(at, config).recursive_difference(reset);
    let before = entries.iter().position(|e| e.is_same(&own)).map(|i| entries.remove(i));

    let mut object = merge::merge(at, base, config);
    if let Some(before) = &before {
        object = prune(at, object, &before.set, &own.set, &entries);
    }
    if !entries.is_empty() {
        let Comparison { removed, modified: mut taken, added } = compare(at, base, &object)?.without(reset);
        taken.add(added);
        if !force {
            refuse(conflicts(&entries, &taken), || allowed_by_last_applied(at, base, manager))?;
        }
        managed::take(&mut entries, &taken, &removed);
    }

    own.set = managed::owned(own.set);
    let changed = is_empty(base) || !equal(base, &object);
    own.time = if changed { Some(manager.now) } else { before.as_ref().and_then(|b| b.time) };
    if let Some(before) = before
        && before.set == own.set
        && before.api_version == own.api_version
        && !changed
    {
        own.stored = before.stored;
    }
    if !own.set.is_empty() {
        entries.push(own);
    }
    let object = if changed { object } else { base.clone() };
    Ok((object, entries))
}

/// Conflicts end the request, but for those that the `allowed` fields of `kubectl apply` make go away.
fn refuse(conflicts: Vec<Conflict>, allowed: impl FnOnce() -> Option<Set>) -> Result<(), ApplyError> {
    if conflicts.is_empty() {
        return Ok(());
    }
    let left: Vec<Conflict> = match allowed() {
        Some(allowed) => conflicts.into_iter().filter(|c| !allowed.has(&c.path.0)).collect(),
        None => conflicts,
    };
    if left.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(left)) }
}

fn conflicts(entries: &[Entry], taken: &Set) -> Vec<Conflict> {
    let mut others: Vec<&Entry> = entries.iter().filter(|e| e.set.intersects(taken)).collect();
    others.sort_by_cached_key(|e| e.identity());
    let of_entry = |entry: &Entry| -> Vec<Conflict> {
        let paths = entry.set.intersection(taken).paths();
        let conflict = |path| Conflict {
            manager: entry.manager.clone(),
            operation: entry.operation,
            api_version: entry.api_version.clone(),
            subresource: entry.subresource.clone(),
            time: entry.time,
            path,
        };
        paths.into_iter().map(conflict).collect()
    };
    others.into_iter().flat_map(of_entry).collect()
}

/// Removes what the manager applied last time and not this time, unless another manager owns it as well. What nobody owns
/// stays, even in an item whose other fields go.
fn prune(at: At<'_>, merged: Value, last: &Set, now: &Set, others: &[Entry]) -> Value {
    let merged_set = fieldset::of(at, &merged);
    if last.is_subset(now) && last.is_subset(&merged_set) {
        // Nothing was dropped. (Something applied as {} that is not empty here may still go by the rules below.)
        return merged;
    }
    let named = |set: &Set| set.ensure_named_fields_are_members(at);
    let (last, merged_set) = (named(last), named(&merged_set));

    // What is left without all that was applied last time, plus all that someone owns.
    let without_last = merge::remove(at, &merged, &last);
    let mut kept = now.clone();
    for other in others {
        kept.add(other.set.clone());
    }
    let mut kept = named(&kept);
    kept.add(named(&fieldset::of(at, &without_last)));
    let pruned = merge::remove(at, &merged, &merged_set.difference(&kept));

    // Of what is missing there, only what the manager itself had applied really goes.
    let pruned_set = named(&fieldset::of(at, &pruned));
    let gone = merged_set.difference(&pruned_set).intersection(&last);
    merge::remove(at, &merged, &gone)
}

/// The fields that `kubectl apply` set last and that are still as it set them: `kubectl apply --server-side` may change
/// them although they belong to the former.
fn allowed_by_last_applied(at: At<'_>, base: &Value, manager: &Manager<'_>) -> Option<Set> {
    if manager.name != KUBECTL {
        return None;
    }
    let last: Value = serde_json::from_str(last_applied(base)?).ok()?;
    let text = |key: &str| last.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") != manager.api_version || text("kind").is_empty() || check::check(at, &last).is_err() {
        return None;
    }
    let Comparison { removed, modified, added } = compare(at, &last, base).ok()?;
    let mut set = fieldset::of(at, &last);
    for changed in [&modified, &added, &removed] {
        set.remove(changed);
    }
    Some(set)
}

fn last_applied(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str().filter(|s| !s.is_empty())
}

/// Keeps the annotation of `kubectl apply` true for as long as it is there, so that going back to it loses nothing.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    if last_applied(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        match metadata.get_mut("annotations") {
            Some(Value::Object(annotations)) => annotations.remove(LAST_APPLIED),
            _ => metadata.remove("annotations"),
        };
    }
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    annotations.insert(LAST_APPLIED.to_owned(), Value::from(go_json(&config) + "\n"));
    let bytes: usize = annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if bytes > MAX_ANNOTATION_BYTES {
        annotations.remove(LAST_APPLIED);
    }
}

fn is_empty(object: &Value) -> bool {
    object.as_object().is_none_or(Map::is_empty)
}

/// `namespace/name; group/version, Kind=kind`
fn describe(config: &Value) -> String {
    let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    format!("{namespace}/{name}; {group}/{version}, Kind={}", text("/kind"))
}
