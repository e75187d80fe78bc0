//! The way in: which rules an object goes through.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{cluster_queue, cohort, resource_flavor, workload};
use crate::field::{Errors, Path};
use crate::kueue::keys::RESOURCE_IN_USE;

/// The features that rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    pub concurrent_admission: bool,
    pub elastic_jobs: bool,
}

impl Default for Gates {
    fn default() -> Gates {
        Gates { concurrent_admission: true, elastic_jobs: true }
    }
}

/// What is to be said about a write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// If there are any, the write is refused.
    pub errors: Errors,
    pub warnings: Vec<String>,
}

/// Fills in what upstream's webhooks fill in when an object is created. Says whether anything changed.
pub fn default(plural: &str, object: &mut Value) -> bool {
    match plural {
        // What uses them is told before they go.
        "clusterqueues" | "resourceflavors" => add_finalizer(object),
        _ => false,
    }
}

fn add_finalizer(object: &mut Value) -> bool {
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return false };
    let finalizers = meta.entry("finalizers").or_insert_with(|| json!([]));
    match finalizers {
        Value::Array(list) if list.iter().any(|f| f == RESOURCE_IN_USE) => false,
        Value::Array(list) => {
            list.push(RESOURCE_IN_USE.into());
            true
        }
        other => {
            *other = json!([RESOURCE_IN_USE]);
            true
        }
    }
}

/// Checks an object that is to be created (`old` is `None`) or updated, as it would be stored. `subresource` is empty or
/// `status`.
pub fn validate(plural: &str, subresource: &str, new: &Value, old: Option<&Value>, gates: &Gates) -> Verdict {
    match (plural, subresource) {
        ("clusterqueues", "") => typed(new, old, |new, old, verdict| cluster_queue::validate(new, old, gates, verdict)),
        ("cohorts", "") => typed(new, old, |new, _, verdict| cohort::validate(new, &mut verdict.errors)),
        ("resourceflavors", "") => {
            typed(new, old, |new, _, verdict| resource_flavor::validate(new, &mut verdict.errors))
        }
        ("workloads", "" | "status") => workload::validate(new, old, subresource == "status", gates),
        _ => Verdict::default(),
    }
}

/// How the refusal reads: as from the webhook that upstream has for it.
pub fn denial(plural: &str, errors: &Errors) -> String {
    let kind = plural.strip_suffix('s').unwrap_or(plural);
    format!("admission webhook \"v{kind}.kb.io\" denied the request: {errors}")
}

fn typed<K: DeserializeOwned>(
    new: &Value,
    old: Option<&Value>,
    check: impl FnOnce(&K, Option<&K>, &mut Verdict),
) -> Verdict {
    let mut verdict = Verdict::default();
    match read::<K>(new) {
        // An old one that cannot be read is no reason to refuse a new one.
        Ok(new) => check(&new, old.and_then(|old| read(old).ok()).as_ref(), &mut verdict),
        Err(why) => unreadable(&why, &mut verdict.errors),
    }
    verdict
}

pub fn read<'v, K: Deserialize<'v>>(value: &'v Value) -> Result<K, serde_json::Error> {
    K::deserialize(value)
}

/// Schemas leave little that cannot be read; quantities with absurd exponents are one.
pub fn unreadable(why: &serde_json::Error, errors: &mut Errors) {
    errors.invalid(&Path::new("spec"), Value::Null, format!("cannot be read: {why}"));
}
