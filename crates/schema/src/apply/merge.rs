//! Merging an applied configuration into the live object, and taking fields out of an object.

use serde_json::{Map, Value};

use crate::fieldset::{Element, MAX_DEPTH, Pos, Set, Shape, identify};
use crate::graph::{At, List};

/// The live object with the configuration's fields set. Nothing is removed; lists of items keep the live order where the
/// configuration has nothing to say about it.
pub(crate) fn merge(at: At<'_>, live: &Value, config: &Value) -> Value {
    value(Pos::Typed(at), Some(live), Some(config), 0).unwrap_or_else(|| Value::Object(Map::new()))
}

fn value(pos: Pos<'_>, live: Option<&Value>, config: Option<&Value>, depth: usize) -> Option<Value> {
    let newest = || config.or(live).cloned();
    if live.is_none() || config.is_none() || depth > MAX_DEPTH {
        return newest();
    }
    match pos.shape() {
        Shape::Leaf => newest(),
        Shape::Fields => fields(pos, live, config, depth),
        Shape::Items(list) => items(list, pos, live, config, depth),
        // A null says nothing about an object; anything else that is not an object replaces it.
        Shape::Deduced if config.is_some_and(|c| c.is_object() || c.is_null()) => fields(pos, live, config, depth),
        Shape::Deduced => newest(),
    }
}

fn fields(pos: Pos<'_>, live: Option<&Value>, config: Option<&Value>, depth: usize) -> Option<Value> {
    let empty = Map::new();
    let live_map = live.and_then(Value::as_object).unwrap_or(&empty);
    let config_map = config.and_then(Value::as_object).unwrap_or(&empty);
    if live_map.is_empty() && config_map.is_empty() {
        return config.or(live).cloned();
    }
    let mut out = Map::new();
    for (key, live) in live_map {
        let merged = match (config_map.get(key), pos.child(key)) {
            (Some(config), Some(child)) => value(child, Some(live), Some(config), depth + 1),
            (config, _) => Some(config.unwrap_or(live).clone()),
        };
        if let Some(merged) = merged {
            out.insert(key.clone(), merged);
        }
    }
    for (key, config) in config_map.iter().filter(|(key, _)| !live_map.contains_key(*key)) {
        out.insert(key.clone(), config.clone());
    }
    Some(Value::Object(out))
}

fn items(list: &List, pos: Pos<'_>, live: Option<&Value>, config: Option<&Value>, depth: usize) -> Option<Value> {
    let live_items = live.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let config_items = config.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (false, Some(child)) = (live_items.is_empty() && config_items.is_empty(), pos.items()) else {
        return config.or(live).cloned();
    };
    let pairing = Pairing::new(list, live_items, config_items);
    let mut out = Vec::with_capacity(live_items.len().max(config_items.len()));
    for step in pairing.order() {
        match step {
            Step::Live(l) => out.push(live_items[l].clone()),
            Step::Config(c) => {
                // Live items that share an identity are not merged with: the configuration's takes their place.
                let live = pairing.live_of[c].filter(|l| !pairing.duplicate[*l]).map(|l| &live_items[l]);
                out.extend(value(child, live, Some(&config_items[c]), depth + 1));
            }
        }
    }
    Some(Value::Array(out))
}

/// Which live item and which configured item are the same.
struct Pairing {
    /// For each live item, its place in the configuration.
    config_of: Vec<Option<usize>>,
    /// For each configured item, the first live item of its identity.
    live_of: Vec<Option<usize>>,
    /// For each live item, whether another has the same identity.
    duplicate: Vec<bool>,
}

enum Step {
    Live(usize),
    Config(usize),
}

impl Pairing {
    fn new(list: &List, live: &[Value], config: &[Value]) -> Pairing {
        let index = |items: &[Value]| {
            let mut out: Vec<(Element, usize)> =
                items.iter().enumerate().filter_map(|(i, item)| Some((identify(list, item).ok()?, i))).collect();
            out.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1)));
            out
        };
        let (lives, configs) = (index(live), index(config));
        let mut pairing = Pairing {
            config_of: vec![None; live.len()],
            live_of: vec![None; config.len()],
            duplicate: vec![false; live.len()],
        };
        for (i, (element, l)) in lives.iter().enumerate() {
            let beside = |other: Option<&(Element, usize)>| other.is_some_and(|(e, _)| e == element);
            pairing.duplicate[*l] = beside(lives.get(i + 1)) || (i > 0 && beside(lives.get(i - 1)));
            if let Ok(found) = configs.binary_search_by(|(e, _)| e.cmp(element)) {
                let c = configs[found].1;
                pairing.config_of[*l] = Some(c);
                pairing.live_of[c].get_or_insert(*l);
            }
        }
        pairing
    }

    /// The order of the merged list: items of both sides follow the configuration, live items stay where they were
    /// relative to those, and items only in the configuration come before the next one that both sides have.
    fn order(&self) -> Vec<Step> {
        let (live_len, config_len) = (self.config_of.len(), self.live_of.len());
        let mut shared = (0..config_len).filter(|c| self.live_of[*c].is_some());
        let mut next_shared = shared.next();
        let mut merged = vec![false; config_len];
        let (mut l, mut c, mut out) = (0, 0, Vec::with_capacity(live_len.max(config_len)));
        while l < live_len || c < config_len {
            if l < live_len && c < config_len {
                let same = self.config_of[l];
                if same == Some(c) {
                    merged[c] = true;
                    out.push(Step::Config(c));
                    (l, c, next_shared) = (l + 1, c + 1, shared.next());
                    continue;
                }
                if same.is_some() && next_shared.is_some() && next_shared != same {
                    l += 1; // its turn comes with the configuration's order
                    continue;
                }
            }
            if l < live_len {
                match self.config_of[l] {
                    None => {
                        out.push(Step::Live(l));
                        l += 1;
                        continue;
                    }
                    Some(c) if merged[c] => l += 1,
                    Some(_) => {}
                }
            }
            if c < config_len {
                merged[c] = true;
                out.push(Step::Config(c));
                if next_shared == Some(c) {
                    next_shared = shared.next();
                }
                c += 1;
            }
        }
        out
    }
}

/// The object without the given fields and items, and without what is in them. A container that loses its last entry
/// becomes null.
pub(crate) fn remove(at: At<'_>, object: &Value, fields: &Set) -> Value {
    match without(Pos::Typed(at), object, fields) {
        Value::Null => Value::Object(Map::new()),
        rest => rest,
    }
}

fn without(pos: Pos<'_>, value: &Value, remove: &Set) -> Value {
    match (pos.shape(), value) {
        (Shape::Fields | Shape::Deduced, Value::Object(map)) => {
            let mut out = Map::new();
            for (key, value) in map {
                let element = Element::field(key);
                if remove.has_element(&element) {
                    continue;
                }
                let left = match (remove.below(&element), pos.child(key)) {
                    (Some(below), Some(child)) => without(child, value, below),
                    _ => value.clone(),
                };
                out.insert(key.clone(), left);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Shape::Items(list), Value::Array(items)) => {
            let left: Vec<Value> = items.iter().filter_map(|item| item_without(list, pos, item, remove)).collect();
            if left.is_empty() { Value::Null } else { Value::Array(left) }
        }
        (Shape::Fields | Shape::Items(_), _) => Value::Null,
        (Shape::Leaf | Shape::Deduced, scalar) => scalar.clone(),
    }
}

fn item_without(list: &List, pos: Pos<'_>, item: &Value, remove: &Set) -> Option<Value> {
    let Ok(element) = identify(list, item) else { return Some(item.clone()) };
    if remove.has_element(&element) {
        return None;
    }
    match (remove.below(&element), pos.items()) {
        (Some(below), Some(child)) => Some(without(child, item, below)),
        _ => Some(item.clone()),
    }
}
