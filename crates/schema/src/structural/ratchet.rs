//! Ratcheting: what an update leaves as it was is not refused for rules that came after it.
//!
//! A value is compared with its predecessor only where the two can be told to be the same thing: by field, by key of a
//! map, and by the keys of a list of type `map`. Other lists count as one value.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::schema::Props;

/// A value and what it was before the update.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub new: &'a Value,
    pub old: &'a Value,
    pub props: &'a Props,
}

impl<'a> Pair<'a> {
    pub fn key(self, key: &str) -> Option<Pair<'a>> {
        let (new, old) = (self.new.as_object()?.get(key)?, self.old.as_object()?.get(key)?);
        let (props, _) = self.props.child(key)?;
        Some(Pair { new, old, props })
    }

    /// The predecessors of a list's items; `None` where they cannot be told apart.
    pub fn items(self) -> Option<(OldItems<'a>, &'a Props)> {
        let (old, items) = (self.old.as_array()?, self.props.items()?);
        self.new.as_array()?;
        Some((OldItems::of(self.props, old)?, items))
    }

    /// Upstream's notion of "unchanged": fields the schema does not know make an object count as changed, and the order
    /// in a list of type `map` does not matter.
    pub fn unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len() && new.keys().all(|k| self.key(k).is_some_and(Pair::unchanged))
            }
            (Value::Array(new), Value::Array(old)) if self.props.is_list_map() => {
                let Some((olds, props)) = self.items() else { return new == old };
                let same = |new| olds.get(new).is_some_and(|old| Pair { new, old, props }.unchanged());
                new.len() == old.len() && new.iter().all(same)
            }
            (new, old) => new == old,
        }
    }
}

/// The items of a list of type `map` before the update, found by their keys.
pub(super) struct OldItems<'a> {
    keys: &'a [String],
    old: &'a [Value],
    /// Only where looking through the list would be slow.
    index: Option<HashMap<String, &'a Value>>,
}

impl<'a> OldItems<'a> {
    pub fn of(list: &'a Props, old: &'a [Value]) -> Option<OldItems<'a>> {
        if !list.is_list_map() || list.map_keys.is_empty() {
            return None;
        }
        let keys = list.map_keys.as_slice();
        let index = (old.len() > 16).then(|| {
            let mut index = HashMap::with_capacity(old.len());
            for item in old {
                if let Some(key) = composite(keys, item) {
                    index.entry(key).or_insert(item);
                }
            }
            index
        });
        Some(OldItems { keys, old, index })
    }

    /// The item with the same keys as `new`.
    pub fn get(&self, new: &Value) -> Option<&'a Value> {
        match &self.index {
            Some(index) => index.get(&composite(self.keys, new)?).copied(),
            None => {
                let new = new.as_object()?;
                self.old.iter().find(|item| item.as_object().is_some_and(|old| same_keys(self.keys, new, old)))
            }
        }
    }
}

fn composite(keys: &[String], item: &Value) -> Option<String> {
    let item = item.as_object()?;
    let mut out = String::new();
    for key in keys {
        let value = item.get(key).filter(|v| is_scalar(v))?;
        let _ = write!(out, "{value}\0");
    }
    Some(out)
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Object(_) | Value::Array(_) | Value::Null)
}

fn same_keys(keys: &[String], a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    keys.iter().all(|key| match (a.get(key), b.get(key)) {
        (Some(a), Some(b)) => a == b && is_scalar(a),
        _ => false,
    })
}
