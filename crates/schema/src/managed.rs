//! `metadata.managedFields`: which client set which fields, kept up to date on every write.
//!
//! [`update`] is for creations, replacements and all patches but apply; [`crate::apply`] builds on the same entries. Both
//! imitate upstream's field manager: an entry is told apart by manager, operation, subresource and, for updates, API
//! version; a write takes the fields it changes from all other entries; its time moves only if it changed something; ten
//! update entries are kept and the oldest merged into `ancient-changes`; names and the like belong to nobody.
//!
//! All versions of a kind are taken to have the same fields, so entries of other versions are compared as they are.
//!
//! # When to call
//!
//! As upstream: after decoding and defaulting, before mutating admission and before the kind's own preparation of the
//! object. What admission and the server itself fill in (uid, generated labels) therefore belongs to nobody, and defaults
//! belong to whoever created the object.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::apply::ApplyError;
use crate::apply::compare::{Comparison, compare, zero};
use crate::fieldset::{Set, equal, go_json, write_string};
use crate::graph::At;

#[cfg(test)]
mod tests;

/// Who writes, through what, and when.
#[derive(Clone, Copy, Debug)]
pub struct Manager<'a> {
    /// The request's `fieldManager`, or what its user agent begins with.
    pub name: &'a str,
    /// Empty for the resource itself.
    pub subresource: &'a str,
    /// The version that the request speaks, `batch/v1`.
    pub api_version: &'a str,
    pub now: Timestamp,
}

/// What kind of write an entry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// As many entries of updates are kept apart.
const MAX_UPDATE_ENTRIES: usize = 10;

/// Fields that identify the object or that only the server sets; nobody owns them.
static UNOWNED: LazyLock<Set> = LazyLock::new(|| {
    Set::fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// One element of `managedFields`.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    pub time: Option<Timestamp>,
    /// Its fields, once [`Entry::read`]; empty before.
    pub set: Set,
    /// As it was stored, for as long as nothing in it has changed: most entries are only carried along.
    pub stored: Option<Stored>,
    /// The set is still to be read from `stored`, which this server has written itself.
    unread: bool,
}

/// The stored form of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    Value(Value),
    /// The text of its `fieldsV1`, which is all of an entry that is not kept beside it.
    Fields(Box<RawValue>),
}

/// Sets the managed fields of an object about to be written.
///
/// `old` is the live object, or an empty one for a creation; `new` is what will be stored. Managed fields that the client
/// sent in `new` are used if they can be read, the live ones otherwise; an empty list or a list of one empty entry resets
/// them. Through a subresource only the live ones count. `reset` are the fields that this endpoint does not write.
pub fn update(at: At<'_>, old: &Value, new: &mut Value, manager: &Manager<'_>, reset: &Set) {
    let Some(given) = new.get_mut("metadata").and_then(Value::as_object_mut).map(|m| m.remove("managedFields")) else {
        return;
    };
    let live = old.pointer("/metadata/managedFields");
    let entries = match given {
        // The usual case: the client sends back what it has read.
        Some(given) if Some(&given) == live => decode_lazily(given),
        Some(given) if manager.subresource.is_empty() && is_reset(&given) => Ok(Vec::new()),
        Some(given) if manager.subresource.is_empty() => match decode(given) {
            Ok(entries) if !entries.is_empty() => Ok(entries),
            _ => decode_lazily(live.cloned().unwrap_or_default()),
        },
        _ => decode_lazily(live.cloned().unwrap_or_default()),
    };
    let entries = entries.unwrap_or_default();
    if entries.is_empty() && !is_creation(old) {
        return; // nobody keeps track of this object until someone applies to it
    }
    let managed = match track(at, old, new, entries, manager, reset) {
        Ok(entries) => encode(entries),
        Err(_) => old.pointer("/metadata/managedFields").cloned(),
    };
    set_managed_fields(new, managed);
}

/// The managed fields of a new object for which the client sent none: what [`update`] would put into it, as JSON text. Most
/// creations only ever write them to the store, and text is a fraction of the work.
pub fn of_new(at: At<'_>, new: &Value, manager: &Manager<'_>, reset: &Set) -> Option<String> {
    to_text(track(at, &Value::Null, new, Vec::new(), manager, reset).unwrap_or_default())
}

fn to_text(entries: Vec<Entry>) -> Option<String> {
    if entries.is_empty() {
        return None;
    }
    let mut out = String::with_capacity(4096);
    for entry in sorted(entries) {
        out.push(if out.is_empty() { '[' } else { ',' });
        entry.write(&mut out);
    }
    out.push(']');
    Some(out)
}

/// As [`update`], for a change whose client said nothing about managed fields, and without making values of them: `live` is
/// the text of the stored list, and neither `old` nor `new` contains it. Returns the text of the new list.
pub fn update_text(
    at: At<'_>,
    old: &Value,
    new: &Value,
    live: Option<&str>,
    manager: &Manager<'_>,
    reset: &Set,
) -> Option<String> {
    let entries = live.map(decode_text).transpose().unwrap_or_default().unwrap_or_default();
    if entries.is_empty() && !is_creation(old) {
        return None;
    }
    match track(at, old, new, entries, manager, reset) {
        Ok(entries) => to_text(entries),
        Err(_) => live.map(str::to_owned),
    }
}

/// Whether managed fields can be read; what is wrong with them otherwise. Admission may change them, and a result that
/// cannot be read is discarded with a warning.
pub fn validate(managed_fields: &Value) -> Result<(), String> {
    decode(managed_fields.clone()).map(drop)
}

/// Whether two objects are the same but for the times in their managed fields. Such a write changes nothing and is not
/// made, so that applying the same configuration again and again does not produce revisions.
pub fn equal_ignoring_manager_times(old: &Value, new: &Value) -> bool {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return old == new };
    same_but(old, new, "metadata", |old, new| {
        let (Value::Object(old), Value::Object(new)) = (old, new) else { return old == new };
        same_but(old, new, "managedFields", |old, new| {
            let (Value::Array(old), Value::Array(new)) = (old, new) else { return old == new };
            let same_entry = |(old, new): (&Value, &Value)| {
                let (Value::Object(old), Value::Object(new)) = (old, new) else { return old == new };
                let kept = |map: &Map<String, Value>| map.len() - usize::from(map.contains_key("time"));
                kept(old) == kept(new) && old.iter().all(|(k, v)| k == "time" || new.get(k) == Some(v))
            };
            old.len() == new.len() && old.iter().zip(new).all(same_entry)
        })
    })
}

/// The same of two texts of managed fields.
pub fn equal_texts_ignoring_times(old: Option<&str>, new: Option<&str>) -> bool {
    let object = |text: Option<&str>| {
        let fields = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
        let meta = fields.into_iter().map(|fields| ("managedFields".to_owned(), fields)).collect();
        Value::Object(Map::from_iter([("metadata".to_owned(), Value::Object(meta))]))
    };
    old == new || equal_ignoring_manager_times(&object(old), &object(new))
}

fn same_but(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    key: &str,
    same: impl Fn(&Value, &Value) -> bool,
) -> bool {
    old.len() == new.len()
        && old.iter().zip(new).all(|((old_key, old), (new_key, new))| {
            old_key == new_key && if old_key == key { same(old, new) } else { equal(old, new) }
        })
}

/// An object without a uid was never stored.
pub(crate) fn is_creation(live: &Value) -> bool {
    live.pointer("/metadata/uid").and_then(Value::as_str).is_none_or(str::is_empty)
}

fn is_reset(given: &Value) -> bool {
    match given.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(only)]) => only.is_empty(),
        _ => false,
    }
}

pub(crate) fn set_managed_fields(object: &mut Value, managed: Option<Value>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match managed {
        Some(managed) => metadata.insert("managedFields".to_owned(), managed),
        None => metadata.remove("managedFields"),
    };
}

/// The entries after a write that made `new` out of `old`.
pub(crate) fn track(
    at: At<'_>,
    old: &Value,
    new: &Value,
    mut entries: Vec<Entry>,
    manager: &Manager<'_>,
    reset: &Set,
) -> Result<Vec<Entry>, ApplyError> {
    let empty = old.as_object().is_none_or(Map::is_empty);
    let compared = if empty { compare(at, &zero(at), new) } else { compare(at, old, new) };
    let Comparison { removed, modified: mut taken, added } = compared?.without(reset);
    taken.add(added);
    let entry = Entry::new(manager, Operation::Update);
    for before in &mut entries {
        if before.is_same(&entry) || before.may_have(&taken) || before.may_have(&removed) {
            before.read().map_err(ApplyError::Invalid)?;
        }
    }
    reconcile(at, &mut entries);
    take(&mut entries, &taken, &removed);
    taken.remove(&UNOWNED);
    if !taken.is_empty() {
        match entries.iter_mut().find(|e| e.is_same(&entry)) {
            Some(before) => {
                before.set.add(taken);
                before.time = Some(manager.now);
                before.stored = None;
            }
            None => entries.push(Entry { set: taken, time: Some(manager.now), ..entry }),
        }
    }
    cap(&mut entries).map_err(ApplyError::Invalid)?;
    Ok(entries)
}

/// Rewrites sets that were stored under an older schema, in which something atomic now was not.
pub(crate) fn reconcile(at: At<'_>, entries: &mut [Entry]) {
    for entry in entries.iter_mut().filter(|e| !e.unread) {
        if let Some(set) = entry.set.reconciled(at) {
            entry.set = set;
            entry.stored = None;
        }
    }
}

/// Takes fields that someone else has set, and fields that are gone, from the entries; those left with none disappear.
pub(crate) fn take(entries: &mut Vec<Entry>, taken: &Set, removed: &Set) {
    for entry in entries.iter_mut().filter(|e| !e.unread) {
        if entry.set.remove(taken) | entry.set.remove(removed) {
            entry.stored = None;
        }
    }
    entries.retain(|e| e.unread || !e.set.is_empty());
}

/// A set without the fields that nobody owns.
pub(crate) fn owned(mut set: Set) -> Set {
    set.remove(&UNOWNED);
    set
}

/// Merges the oldest entries of updates, those of one version together, until there are few enough.
fn cap(entries: &mut Vec<Entry>) -> Result<(), String> {
    let mut updates: Vec<usize> = (0..entries.len()).filter(|i| entries[*i].operation == Operation::Update).collect();
    if updates.len() <= MAX_UPDATE_ENTRIES {
        return Ok(());
    }
    entries.iter_mut().try_for_each(Entry::read)?;
    updates.sort_by_cached_key(|i| (entries[*i].seconds(), entries[*i].identity()));
    let mut left = updates.len();
    let mut gone = vec![false; entries.len()];
    let mut first_of_version: Vec<(String, usize)> = Vec::new();
    for i in updates {
        if left <= MAX_UPDATE_ENTRIES {
            break;
        }
        let version = entries[i].api_version.clone();
        let Some(&(_, first)) = first_of_version.iter().find(|(v, _)| *v == version) else {
            first_of_version.push((version, i));
            continue;
        };
        let is_bucket = |e: &Entry| e.manager == "ancient-changes" && e.api_version == version && e.is_plain_update();
        let bucket = (0..entries.len()).find(|b| !gone[*b] && is_bucket(&entries[*b])).unwrap_or(first);
        // The bucket itself is not merged into itself: the entry before it goes there instead.
        let merged = if bucket == i { first } else { i };
        let (set, time) = (std::mem::take(&mut entries[merged].set), entries[i].time);
        gone[merged] = true;
        left -= 1;
        let bucket = &mut entries[bucket];
        bucket.manager = "ancient-changes".to_owned();
        bucket.subresource = String::new();
        bucket.time = time;
        bucket.set.add(set);
        bucket.stored = None;
    }
    let mut gone = gone.into_iter();
    entries.retain(|_| !gone.next().unwrap_or_default());
    Ok(())
}

impl Entry {
    /// An entry without fields.
    pub(crate) fn new(manager: &Manager<'_>, operation: Operation) -> Entry {
        Entry {
            manager: if manager.name.is_empty() { "unknown" } else { manager.name }.to_owned(),
            operation,
            api_version: manager.api_version.to_owned(),
            subresource: manager.subresource.to_owned(),
            time: None,
            set: Set::new(),
            stored: None,
            unread: false,
        }
    }

    /// Whether a path of the set may be among the fields; a look into the stored form that is cheaper than reading it.
    fn may_have(&self, set: &Set) -> bool {
        self.unread
            && match &self.stored {
                Some(Stored::Value(entry)) => entry.get("fieldsV1").is_some_and(|fields| set.may_be_in(fields)),
                Some(Stored::Fields(fields)) => set.may_be_in_text(fields.get()),
                None => false,
            }
    }

    /// Reads the set if that was put off.
    fn read(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.unread) {
            let set = match &self.stored {
                Some(Stored::Value(entry)) => Set::from_fields_v1(entry.get("fieldsV1").unwrap_or(&Value::Null)),
                Some(Stored::Fields(fields)) => Set::from_fields_v1_text(fields.get()),
                None => Ok(Set::new()),
            };
            self.set = set.map_err(|e| format!("error decoding set: {e}"))?;
        }
        Ok(())
    }

    /// Whether both stand for the same writer. Appliers keep their entry when they go to another version.
    pub(crate) fn is_same(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn is_plain_update(&self) -> bool {
        self.operation == Operation::Update && self.subresource.is_empty()
    }

    fn seconds(&self) -> i64 {
        self.time.map_or(0, Timestamp::as_second)
    }

    /// What upstream tells managers apart by, and sorts them by where times are equal.
    pub(crate) fn identity(&self) -> String {
        let mut out = String::from("{");
        let mut field = |name: &str, value: &str| {
            if !value.is_empty() {
                let comma = if out.len() > 1 { "," } else { "" };
                out.push_str(&format!("{comma}\"{name}\":{}", go_json(&Value::from(value))));
            }
        };
        field("manager", &self.manager);
        field("operation", self.operation.as_str());
        if self.operation == Operation::Update {
            field("apiVersion", &self.api_version);
        }
        field("subresource", &self.subresource);
        out.push('}');
        out
    }

    fn decode(stored: Value, i: usize) -> Result<Entry, String> {
        let text = |key: &str| stored.get(key).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        if text("apiVersion").is_empty() {
            return Err("apiVersion must not be empty".to_owned());
        }
        match text("fieldsType") {
            "FieldsV1" => {}
            "" => return Err(format!("missing fieldsType in managed fields entry {i}")),
            other => return Err(format!("invalid fieldsType \"{other}\" in managed fields entry {i}")),
        }
        let time = match stored.get("time") {
            None | Some(Value::Null) => None,
            Some(time) => Some(
                time.as_str()
                    .and_then(|t| t.parse().ok())
                    .ok_or_else(|| format!("invalid time in managed fields entry {i}"))?,
            ),
        };
        Ok(Entry {
            manager: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            subresource: text("subresource").to_owned(),
            time,
            set: Set::new(),
            stored: Some(Stored::Value(stored)),
            unread: true,
        })
    }

    fn encode(self) -> Value {
        if let Some(Stored::Value(stored)) = self.stored {
            return stored;
        }
        let texts = self.texts().into_iter().filter(|(_, text)| !text.is_empty());
        let mut out: Map<String, Value> = texts.map(|(key, text)| (key.to_owned(), Value::from(text))).collect();
        out.insert("fieldsV1".to_owned(), self.set.to_fields_v1());
        Value::Object(out)
    }

    /// The same as text.
    fn write(&self, out: &mut String) {
        out.push_str("{\"fieldsV1\":");
        match &self.stored {
            Some(Stored::Fields(fields)) => out.push_str(fields.get()),
            _ => self.set.write_json(out),
        }
        for (key, text) in self.texts().iter().filter(|(_, text)| !text.is_empty()) {
            out.push_str(",\"");
            out.push_str(key);
            out.push_str("\":");
            write_string(text, out);
        }
        out.push('}');
    }

    /// All but the fields.
    fn texts(&self) -> [(&'static str, String); 6] {
        [
            ("manager", self.manager.clone()),
            ("operation", self.operation.as_str().to_owned()),
            ("apiVersion", self.api_version.clone()),
            ("time", self.time.map(render_time).unwrap_or_default()),
            ("fieldsType", "FieldsV1".to_owned()),
            ("subresource", self.subresource.clone()),
        ]
    }
}

/// `metav1.Time`: whole seconds, UTC.
pub(crate) fn render_time(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// The entries of a `managedFields` list that someone sent; where two stand for the same writer, the later one counts.
/// They are stored in our own form from then on, which is what lets [`Entry::may_have`] compare keys as text.
pub(crate) fn decode(managed: Value) -> Result<Vec<Entry>, String> {
    let mut entries = decode_lazily(managed)?;
    for (i, entry) in entries.iter_mut().enumerate() {
        entry.read().map_err(|e| format!("{e} in managed fields entry {i}"))?;
        let is_same =
            |s: &Stored| matches!(s, Stored::Value(v) if v.get("fieldsV1") == Some(&entry.set.to_fields_v1()));
        let same = entry.stored.as_ref().is_some_and(is_same);
        entry.stored = entry.stored.take().filter(|_| same);
    }
    Ok(entries)
}

/// The entries of a stored list; their sets are read when they are needed.
pub(crate) fn decode_lazily(managed: Value) -> Result<Vec<Entry>, String> {
    let stored = match managed {
        Value::Array(stored) => stored,
        Value::Null => return Ok(Vec::new()),
        _ => return Err("managedFields must be a list".to_owned()),
    };
    let mut entries: Vec<Entry> = Vec::with_capacity(stored.len());
    for (i, stored) in stored.into_iter().enumerate() {
        let entry = Entry::decode(stored, i)?;
        match entries.iter_mut().find(|e| e.is_same(&entry)) {
            Some(before) => *before = entry,
            None => entries.push(entry),
        }
    }
    Ok(entries)
}

/// As [`decode_lazily`], from the stored text.
fn decode_text(managed: &str) -> Result<Vec<Entry>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Text<'a> {
        #[serde(borrow, default)]
        manager: Cow<'a, str>,
        #[serde(borrow)]
        operation: Cow<'a, str>,
        #[serde(borrow)]
        api_version: Cow<'a, str>,
        #[serde(borrow, default)]
        subresource: Cow<'a, str>,
        #[serde(borrow, default)]
        time: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        fields_type: Cow<'a, str>,
        #[serde(borrow, rename = "fieldsV1")]
        fields: Option<&'a RawValue>,
    }
    let texts: Vec<Text<'_>> = serde_json::from_str(managed).map_err(|e| e.to_string())?;
    let mut entries: Vec<Entry> = Vec::with_capacity(texts.len() + 1);
    for (i, text) in texts.into_iter().enumerate() {
        if text.fields_type != "FieldsV1" {
            return Err(format!("invalid fieldsType \"{}\" in managed fields entry {i}", text.fields_type));
        }
        let time = text.time.map(|t| t.parse()).transpose();
        let entry = Entry {
            manager: text.manager.into_owned(),
            operation: match &*text.operation {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err("operation must be `Apply` or `Update`".to_owned()),
            },
            api_version: text.api_version.into_owned(),
            subresource: text.subresource.into_owned(),
            time: time.map_err(|_| format!("invalid time in managed fields entry {i}"))?,
            set: Set::new(),
            stored: text.fields.map(|fields| Stored::Fields(fields.to_owned())),
            unread: true,
        };
        match entries.iter_mut().find(|e| e.is_same(&entry)) {
            Some(before) => *before = entry,
            None => entries.push(entry),
        }
    }
    Ok(entries)
}

/// The entries of a stored list with their sets.
pub(crate) fn decode_stored(managed: Value) -> Result<Vec<Entry>, String> {
    let mut entries = decode_lazily(managed)?;
    entries.iter_mut().try_for_each(Entry::read)?;
    Ok(entries)
}

/// The list to store, in upstream's order; none when there is no entry.
pub(crate) fn encode(entries: Vec<Entry>) -> Option<Value> {
    if entries.is_empty() {
        return None;
    }
    Some(Value::Array(sorted(entries).into_iter().map(Entry::encode).collect()))
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(stored_order);
    entries
}

fn stored_order(a: &Entry, b: &Entry) -> Ordering {
    let key = |e: &Entry| (e.operation, e.seconds());
    key(a)
        .cmp(&key(b))
        .then_with(|| a.manager.cmp(&b.manager))
        .then_with(|| a.api_version.cmp(&b.api_version))
        .then_with(|| a.subresource.cmp(&b.subresource))
}
