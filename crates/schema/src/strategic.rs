//! Strategic merge patches: JSON merge patches that know which lists are merged, and by what.
//!
//! [`apply`] follows upstream's server side rule for rule, directives included: `$patch` (delete and replace), `null`,
//! `$deleteFromPrimitiveList/x`, `$setElementOrder/x` and `$retainKeys`. Custom resources have no patch strategies; the
//! server refuses the patch type for them (415) before it comes here. How lists are put in order is in [`order`].

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::apply::check::{go_type, plain};
use crate::field::quote;
use crate::fieldset::MAX_DEPTH;
use crate::graph::{At, ListPatch, Scalar, Type};

mod order;
#[cfg(test)]
mod tests;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

type Object = Map<String, Value>;
type Result<T> = std::result::Result<T, StrategicError>;

/// Why a patch does not apply. The texts are upstream's; [`StrategicError::code`] is the answer's status code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrategicError {
    #[error("invalid JSON document")]
    NotAnObject,
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("invalid patch format of primitive list")]
    BadPrimitiveList,
    #[error("invalid patch format of retainKeys")]
    BadRetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    BadSetElementOrder,
    #[error("map: {map} does not contain declared merge key: {key}")]
    NoMergeKey { map: String, key: String },
    #[error("expected a {expected}, but received a {received}")]
    WrongType { expected: &'static str, received: &'static str },
    #[error("unknown patch type: {directive} in map: {map}")]
    UnknownDirective { directive: String, map: String },
    #[error("merging lists cannot yet be specified in the patch")]
    MergeDirectiveInList,
    #[error("list element types are not identical: [{0}]")]
    MixedItems(String),
    #[error("no elements in any of the given slices")]
    NoItems,
    #[error("cannot merge lists without merge key for {0}")]
    ListWithoutMergeKey(&'static str),
    #[error("The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n")]
    OrderMismatch { patch: String, order: String },
    #[error("unable to find api field in struct {name} for the json field {}", quote(.field))]
    UnknownField { name: String, field: String },
    #[error("merging an object in json but data type is not struct, instead is: {0}")]
    NotAStruct(&'static str),
    #[error("expected slice or array type, but got: struct")]
    NotAList,
    #[error("unexpected slice of slice")]
    SchemaListOfLists,
    #[error("patch is nested too deeply")]
    TooDeep,
}

impl StrategicError {
    /// 400 and 422 where upstream tells the client; its 500 for the rest.
    pub fn code(&self) -> u16 {
        match self {
            StrategicError::NotAnObject
            | StrategicError::BadPrimitiveList
            | StrategicError::BadRetainKeys
            | StrategicError::BadSetElementOrder
            | StrategicError::TooDeep => 400,
            StrategicError::ListOfLists => 422,
            _ => 500,
        }
    }
}

/// Applies a patch to an object of the given type. On an error the original may be half patched.
pub fn apply(at: At<'_>, original: &mut Value, patch: Value) -> Result<()> {
    let Value::Object(patch) = patch else { return Err(StrategicError::NotAnObject) };
    let Value::Object(object) = original else { return Err(StrategicError::NotAnObject) };
    merge_object(at, object, patch, 0)
}

fn merge_object(at: At<'_>, original: &mut Object, mut patch: Object, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(StrategicError::TooDeep);
    }
    if let Some(directive) = patch.get(DIRECTIVE) {
        match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                *original = patch;
            }
            Some("delete") => original.clear(),
            _ => return Err(unknown_directive(directive, &patch)),
        }
        return Ok(());
    }
    retain_keys(original, &mut patch)?;
    merge_ordered_lists(at, original, &mut patch, depth)?;
    for (key, value) in patch {
        merge_field(at, original, key, value, depth)?;
    }
    Ok(())
}

fn merge_field(at: At<'_>, original: &mut Object, key: String, patch: Value, depth: usize) -> Result<()> {
    if key.starts_with(DELETE_FROM) {
        let field = directive_field(&key, DELETE_FROM).ok_or(StrategicError::BadPrimitiveList)?;
        return delete_from(at, original, field, patch);
    }
    if patch.is_null() {
        original.remove(&key);
        return Ok(());
    }
    match (original.get_mut(&key), patch) {
        (Some(Value::Object(into)), Value::Object(patch)) => {
            merge_object(struct_field(at, &key)?, into, patch, depth + 1)
        }
        (Some(Value::Array(into)), Value::Array(patch)) => {
            let field = ListField::find(at, &key)?;
            let live = std::mem::take(into);
            *into = merge_list(&field, live, patch, depth)?;
            Ok(())
        }
        (_, mut patch) => {
            discard_nulls(&mut patch, depth)?;
            match without_directives(patch) {
                Some(value) => original.insert(key, value),
                None => original.remove(&key),
            };
            Ok(())
        }
    }
}

/// `$deleteFromPrimitiveList/field`: takes scalars out of a list, whatever its strategy.
fn delete_from(at: At<'_>, original: &mut Object, field: &str, gone: Value) -> Result<()> {
    if gone.is_null() {
        original.remove(field);
        return Ok(());
    }
    let (Some(Value::Array(live)), Value::Array(gone)) = (original.get_mut(field), gone) else { return Ok(()) };
    let list = ListField::find(at, field)?;
    if live.is_empty() && gone.is_empty() {
        return Ok(());
    }
    if order::items_are_objects(&[live, &gone])? {
        // Upstream falls through to an ordinary merge here.
        let merged = merge_objects_list(&list, std::mem::take(live), gone, 0)?;
        *live = merged;
    } else {
        let gone: HashSet<Value> = gone.into_iter().collect();
        live.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// `$retainKeys`: only these fields of the original survive, and the patch may set no others.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<()> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = keys else { return Err(StrategicError::BadRetainKeys) };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let retained = |key: &str| keys.contains(key);
    let directive = |key: &str| key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
    if patch.iter().any(|(key, value)| !value.is_null() && !directive(key) && !retained(key)) {
        return Err(StrategicError::BadRetainKeys);
    }
    original.retain(|key, _| retained(key));
    Ok(())
}

/// `$setElementOrder/field` and the lists it speaks of, which are merged and then put in that order.
fn merge_ordered_lists(at: At<'_>, original: &mut Object, patch: &mut Object, depth: usize) -> Result<()> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = list_of(patch.remove(&directive).unwrap_or_default())?;
        let name = directive_field(&directive, SET_ORDER).ok_or(StrategicError::BadSetElementOrder)?;
        let live = original.get(name).map(|live| list_of(live.clone())).transpose()?;
        let patched = patch.get(name).map(|patch| list_of(patch.clone())).transpose()?;
        let field = ListField::find(at, name)?;
        order::check(patched.as_deref().unwrap_or_default(), &order, field.key)?;
        let merged = match (live.clone(), patched.clone()) {
            (None, None) => continue,
            (Some(live), None) => live,
            (None, Some(patched)) => patched.into_iter().filter_map(without_directives).collect(),
            (Some(live), Some(patched)) => merge_list(&field, live, patched, depth)?,
        };
        let (live, patched) = (live.unwrap_or_default(), patched.unwrap_or_default());
        let objects = order::items_are_objects(&[&live, &patched])?;
        let live = if field.merges { order::live_after_deletions(live, &patched, field.key) } else { live };
        let ordered = order::interleave(merged, &order, &live, field.key, objects)?;
        original.insert(name.to_owned(), Value::Array(ordered));
        patch.remove(name);
    }
    Ok(())
}

fn merge_list(field: &ListField<'_>, live: Vec<Value>, patch: Vec<Value>, depth: usize) -> Result<Vec<Value>> {
    if !field.merges {
        return Ok(patch);
    }
    if live.is_empty() && patch.is_empty() {
        return Ok(live);
    }
    if order::items_are_objects(&[&live, &patch])? {
        return merge_objects_list(field, live, patch, depth);
    }
    let mut seen = HashSet::with_capacity(live.len() + patch.len());
    let merged: Vec<Value> = live.iter().chain(&patch).filter(|item| seen.insert(*item)).cloned().collect();
    order::interleave(merged, &patch, &live, field.key, false)
}

fn merge_objects_list(field: &ListField<'_>, live: Vec<Value>, patch: Vec<Value>, depth: usize) -> Result<Vec<Value>> {
    let key = field.key;
    if key.is_empty() {
        return Err(StrategicError::ListWithoutMergeKey(go_kind(field.items)));
    }
    let (live, patch) = list_directives(key, live, patch)?;
    let mut merged = live.clone();
    let mut places: HashMap<Value, usize> = HashMap::with_capacity(merged.len());
    for (at, value) in merged.iter().enumerate().filter_map(|(at, item)| Some((at, item.get(key)?))) {
        places.entry(value.clone()).or_insert(at);
    }
    for item in &patch {
        let Value::Object(map) = item else { return Err(wrong_type("map[string]interface {}", item)) };
        let value = map.get(key).ok_or_else(|| no_merge_key(map, key))?;
        match places.get(value).and_then(|at| merged.get_mut(*at)) {
            Some(Value::Object(into)) => merge_object(field.items, into, map.clone(), depth + 1)?,
            _ => {
                places.insert(value.clone(), merged.len());
                merged.push(item.clone());
            }
        }
    }
    order::interleave(merged, &patch, &live, key, true)
}

/// Carries out the `$patch` directives among the items of a patch: the live list after deletions or replaced, and the
/// items that remain to be merged.
fn list_directives(key: &str, mut live: Vec<Value>, patch: Vec<Value>) -> Result<(Vec<Value>, Vec<Value>)> {
    let (mut rest, mut replace, mut deleted) = (Vec::with_capacity(patch.len()), false, HashSet::new());
    for item in patch {
        let Some((map, directive)) = item.as_object().and_then(|m| Some((m, m.get(DIRECTIVE)?))) else {
            rest.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let value = map.get(key).ok_or_else(|| no_merge_key(map, key))?;
                deleted.insert(value.clone());
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(StrategicError::MergeDirectiveInList),
            _ => return Err(unknown_directive(directive, map)),
        }
    }
    if !deleted.is_empty() {
        live.retain(|item| item.get(key).is_none_or(|value| !deleted.contains(value)));
    }
    Ok(if replace { (rest, Vec::new()) } else { (live, rest) })
}

/// A value that is new to the original: fields and items with a `$patch` directive say nothing about it.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            Some(Value::Object(map.into_iter().filter_map(|(k, v)| Some((k, without_directives(v)?))).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(without_directives).collect())),
        scalar => Some(scalar),
    }
}

fn discard_nulls(value: &mut Value, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(StrategicError::TooDeep);
    }
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().try_for_each(|v| discard_nulls(v, depth + 1))
        }
        Value::Array(items) => items.iter_mut().try_for_each(|v| discard_nulls(v, depth + 1)),
        _ => Ok(()),
    }
}

/// A list field and how it is patched.
struct ListField<'g> {
    items: At<'g>,
    merges: bool,
    /// Empty for lists of scalars and lists that are replaced.
    key: &'g str,
}

impl<'g> ListField<'g> {
    fn find(at: At<'g>, name: &str) -> Result<ListField<'g>> {
        let field = struct_field(at, name)?;
        let Type::List(list) = field.ty() else { return Err(StrategicError::NotAList) };
        let items = at.to(list.items);
        if matches!(items.ty(), Type::List(_)) {
            return Err(StrategicError::SchemaListOfLists);
        }
        let (merges, key) = match &list.patch {
            ListPatch::Replace => (false, ""),
            ListPatch::Merge { key } => (true, key.as_str()),
        };
        Ok(ListField { items, merges, key })
    }
}

/// The type of a field. Upstream asks only when it has to merge, so fields of maps are fine until then.
fn struct_field<'g>(at: At<'g>, name: &str) -> Result<At<'g>> {
    let unknown = |of: &str| StrategicError::UnknownField { name: of.to_owned(), field: name.to_owned() };
    match at.ty() {
        Type::Struct(s) => {
            let field = s.field(name).or_else(|| s.fields.iter().find(|f| f.name.eq_ignore_ascii_case(name)));
            field.map(|f| at.to(f.ty)).ok_or_else(|| unknown(s.name.rsplit('.').next().unwrap_or_default()))
        }
        Type::Any => Err(unknown("RawExtension")),
        _ => Err(StrategicError::NotAStruct(go_kind(at))),
    }
}

/// Go's kind of the type that this position has upstream.
fn go_kind(at: At<'_>) -> &'static str {
    match at.ty() {
        Type::Struct(_) | Type::Any => "struct",
        Type::Map(_) => "map",
        Type::List(_) => "slice",
        Type::Scalar(scalar) => match scalar {
            Scalar::String => "string",
            Scalar::Bool => "bool",
            Scalar::Int32 => "int32",
            Scalar::Int64 => "int64",
            Scalar::Double => "float64",
            Scalar::Bytes => "slice",
            Scalar::Quantity | Scalar::IntOrString | Scalar::Time | Scalar::MicroTime | Scalar::Duration => "struct",
        },
    }
}

/// The field that a directive key such as `$setElementOrder/containers` speaks of.
fn directive_field<'k>(key: &'k str, prefix: &str) -> Option<&'k str> {
    key.split_once('/').filter(|(directive, _)| *directive == prefix).map(|(_, field)| field)
}

fn list_of(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wrong_type("[]interface {}", &other)),
    }
}

fn wrong_type(expected: &'static str, received: &Value) -> StrategicError {
    // Go prints a type that is not there like this.
    let received = if received.is_null() { "%!s(<nil>)" } else { go_type(received) };
    StrategicError::WrongType { expected, received }
}

fn no_merge_key(map: &Object, key: &str) -> StrategicError {
    StrategicError::NoMergeKey { map: plain(&Value::Object(map.clone())), key: key.to_owned() }
}

fn unknown_directive(directive: &Value, map: &Object) -> StrategicError {
    let map = plain(&Value::Object(map.clone()));
    let directive = match directive {
        Value::String(s) => s.clone(),
        Value::Null => "%!s(<nil>)".to_owned(),
        other => format!("%!s({}={})", go_type(other), plain(other)),
    };
    StrategicError::UnknownDirective { directive, map }
}
