//! Dropping what the schema does not know: unknown fields, and nulls where none is allowed.

use serde_json::{Map, Value};

use super::embedded;
use super::schema::{At, MAX_DEPTH, Props, Structural, is_meta};
use crate::field::Path;

impl Structural {
    /// Drops unknown fields and the nulls of fields that are neither nullable nor defaulted.
    ///
    /// The paths of unknown fields are appended as strict and warn field validation show them (`spec.foo`,
    /// `spec.list[0].bar`), sorted. `apiVersion`, `kind` and `metadata` of the root are left alone.
    pub fn prune(&self, value: &mut Value, unknown: &mut Vec<String>) {
        let before = unknown.len();
        prune(value, Some(&self.root), true, &At::Root, 0, unknown);
        unknown[before..].sort();
    }
}

/// Whether pruning would change `value`, a default of `props`.
pub(super) fn has_unknown(value: &Value, props: &Props) -> bool {
    let mut copy = value.clone();
    let mut unknown = Vec::new();
    prune(&mut copy, Some(props), props.embedded, &At::Root, 0, &mut unknown);
    !unknown.is_empty()
}

fn prune(value: &mut Value, props: Option<&Props>, meta: bool, at: &At, depth: usize, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => prune_map(map, props, meta, at, depth, unknown),
        // Nothing that came through a decoder is this deep; what is, holds no field the schema knows.
        Value::Array(list) if depth > MAX_DEPTH * 4 => list.clear(),
        Value::Array(list) => {
            let keep_unknown = props.is_some_and(Props::preserves_unknown);
            let items = props.and_then(Props::items);
            if keep_unknown && items.is_none() {
                return;
            }
            for (i, item) in list.iter_mut().enumerate() {
                prune(item, items, items.is_some_and(|p| p.embedded), &at.index(i), depth + 1, unknown);
            }
        }
        _ => {}
    }
}

fn prune_map(
    map: &mut Map<String, Value>,
    props: Option<&Props>,
    meta: bool,
    at: &At,
    depth: usize,
    unknown: &mut Vec<String>,
) {
    map.retain(|key, value| {
        if meta && is_meta(key) {
            if key == "metadata" && !matches!(at, At::Root) {
                embedded::prune_metadata(value, &at.field(key), unknown);
            }
            return true;
        }
        let Some(props) = props else {
            unknown.push(at.field(key).dotted());
            return false;
        };
        match props.child(key) {
            Some((child, _)) => {
                prune(value, Some(child), child.embedded, &at.field(key), depth + 1, unknown);
                !(value.is_null() && !child.nullable && child.default.is_none())
            }
            None if props.preserves_unknown() && !props.has_additional() => true,
            None if props.has_additional() => {
                prune(value, None, false, &at.field(key), depth + 1, unknown);
                true
            }
            None => {
                unknown.push(at.field(key).dotted());
                false
            }
        }
    });
}

/// Where embedded resources are, for a check of their metadata that needs more than the schema.
impl Structural {
    pub fn embedded(&self, value: &Value, visit: &mut dyn FnMut(&Path, &Map<String, Value>)) {
        if self.root.below.embedded {
            embedded::each(value, &self.root, &At::Root, &mut |at, map| visit(&at.path(&Path::default()), map));
        }
    }
}
