//! Where the items of a merged list go: the patch decides about its own items, the rest keeps its place relative to them
//! as well as that can be done.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{DIRECTIVE, Result, StrategicError, no_merge_key, wrong_type};
use crate::apply::check::{go_type, plain};

/// Whether the lists hold objects; all items of all lists have to be of one type.
pub(super) fn items_are_objects(lists: &[&[Value]]) -> Result<bool> {
    let mut items = lists.iter().flat_map(|list| list.iter());
    let first = items.next().ok_or(StrategicError::NoItems)?;
    if first.is_array() {
        return Err(StrategicError::ListOfLists);
    }
    if first.is_null() || items.any(|item| go_type(item) != go_type(first)) {
        let lists: Vec<String> = lists.iter().map(|list| plain(&Value::Array(list.to_vec()))).collect();
        return Err(StrategicError::MixedItems(lists.join(" ")));
    }
    Ok(first.is_object())
}

/// The items of the patch have to be in `$setElementOrder`, in the same order.
pub(super) fn check(patch: &[Value], order: &[Value], key: &str) -> Result<()> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut left = Vec::with_capacity(patch.len());
    for item in patch {
        if !key.is_empty() && !item.is_object() {
            return Err(wrong_type("map[string]interface {}", item));
        }
        let directive = item.get(DIRECTIVE);
        if key.is_empty() || directive.and_then(Value::as_str) != Some("delete") {
            left.push((item, directive.is_some()));
        }
    }
    let (mut left, mut order_left) = (left.into_iter().peekable(), order.iter().peekable());
    while let (Some((item, directive)), Some(next)) = (left.peek(), order_left.peek()) {
        if *directive {
            left.next();
            continue;
        }
        if same_item(item, next, key)? {
            left.next();
        }
        order_left.next();
    }
    if left.peek().is_none() {
        return Ok(());
    }
    let text = |list: &[Value]| plain(&Value::Array(list.to_vec()));
    Err(StrategicError::OrderMismatch { patch: text(patch), order: text(order) })
}

fn same_item(a: &Value, b: &Value, key: &str) -> Result<bool> {
    if key.is_empty() {
        return Ok(a == b);
    }
    Ok(merge_value(a, key)? == merge_value(b, key)?)
}

fn merge_value<'v>(item: &'v Value, key: &str) -> Result<&'v Value> {
    let map = item.as_object().ok_or_else(|| wrong_type("map[string]interface {}", item))?;
    map.get(key).ok_or_else(|| no_merge_key(map, key))
}

/// The live order that counts for `$setElementOrder`: where the patch deletes items, new ones take their places at the end.
/// (Upstream merges in place and gets there by accident, but clients see it when a sidecar was added behind their back.)
pub(super) fn live_after_deletions(live: Vec<Value>, patch: &[Value], key: &str) -> Vec<Value> {
    let directive = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    if key.is_empty() || patch.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        return live;
    }
    let keys = |items: &[Value], deleted: bool| -> HashSet<Value> {
        let chosen = items.iter().filter(|item| directive(item).is_some() == deleted);
        chosen.filter_map(|item| item.get(key).cloned()).collect()
    };
    let (length, deleted) = (live.len(), keys(patch, true));
    let mut left = live;
    left.retain(|item| item.get(key).is_none_or(|value| !deleted.contains(value)));
    let kept = keys(&left, false);
    let is_new = |item: &&Value| directive(item).is_none() && item.get(key).is_some_and(|value| !kept.contains(value));
    let freed = length - left.len();
    left.extend(patch.iter().filter(is_new).take(freed).cloned());
    left
}

/// Puts a merged list in order: items named by `order` follow it, the others follow `live`, and the two are interleaved so
/// that one of the others comes before the first ordered item that it preceded in `live`.
pub(super) fn interleave(
    merged: Vec<Value>,
    order: &[Value],
    live: &[Value],
    key: &str,
    objects: bool,
) -> Result<Vec<Value>> {
    let by_key = !key.is_empty();
    if by_key {
        merged.iter().try_for_each(|item| merge_value(item, key).map(drop))?;
    }
    if by_key && objects {
        order.iter().chain(live).try_for_each(|item| merge_value(item, key).map(drop))?;
    }
    let identity = |item: &'_ Value| if by_key { item.get(key).cloned() } else { Some(item.clone()) };
    let index = |list: &[Value]| {
        let mut places = HashMap::with_capacity(list.len());
        for (at, item) in list.iter().enumerate() {
            places.entry(identity(item)).or_insert(at);
        }
        places
    };
    let (in_order, in_live) = (index(order), index(live));
    let mut ordered: Vec<(usize, Option<usize>, Value)> = Vec::new();
    let mut others: Vec<(usize, Value)> = Vec::new();
    for item in merged {
        let identity = identity(&item);
        let live_at = in_live.get(&identity).copied();
        match in_order.get(&identity) {
            Some(at) => ordered.push((*at, live_at, item)),
            None => others.push((live_at.unwrap_or(usize::MAX), item)),
        }
    }
    ordered.sort_by_key(|(at, ..)| *at);
    others.sort_by_key(|(at, _)| *at);

    let mut out = Vec::with_capacity(ordered.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, live_at, item) in ordered {
        if let Some(at) = live_at {
            while let Some((_, other)) = others.next_if(|(other, _)| *other < at) {
                out.push(other);
            }
        }
        out.push(item);
    }
    out.extend(others.map(|(_, other)| other));
    Ok(out)
}
