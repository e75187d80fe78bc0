//! How server-side apply sees a type: leaf, fields or items. And the set of fields that a value sets.

use std::borrow::Cow;

use serde_json::{Map, Value};
use thiserror::Error;

use super::name::Name;
use super::{Element, Set};
use crate::graph::{At, List, Topology, Type};

/// Below this depth a value counts as one leaf: nothing real nests so far, and recursion has to end somewhere.
pub(crate) const MAX_DEPTH: usize = 300;

/// A position in a type, also where the type says nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pos<'g> {
    Typed(At<'g>),
    /// Unknown fields of a custom resource that keeps them: objects merge by field, all else is one value.
    Deduced,
}

/// What there is to see at a position.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape<'g> {
    /// One value, replaced whole: scalars, atomic lists and maps.
    Leaf,
    /// A struct or map.
    Fields,
    /// A set or a list of keyed items.
    Items(&'g List),
    /// [`Pos::Deduced`]: fields if it is an object.
    Deduced,
}

/// Why an item of a set or keyed list has no identity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ItemError {
    #[error("associative list with keys may not have a null element")]
    NullItem,
    #[error("associative list with keys may not have non-map elements")]
    NotAnObject,
    #[error(
        "associative list with keys has an element that omits all key fields [{0}] (and doesn't have default values for any key fields)"
    )]
    NoKeys(String),
    #[error("associative list without keys has an element that's a map type")]
    SetOfMaps,
    #[error("not supported: associative list with lists as elements")]
    SetOfLists,
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
}

impl<'g> Pos<'g> {
    pub(crate) fn shape(self) -> Shape<'g> {
        let Pos::Typed(at) = self else { return Shape::Deduced };
        match at.ty() {
            Type::Struct(s) if s.atomic => Shape::Leaf,
            Type::Map(m) if m.atomic => Shape::Leaf,
            Type::List(l) if l.topology == Topology::Atomic => Shape::Leaf,
            Type::Struct(_) | Type::Map(_) => Shape::Fields,
            Type::List(l) => Shape::Items(l),
            Type::Scalar(_) | Type::Any => Shape::Leaf,
        }
    }

    /// The value under a key; none for a field that the type does not have and does not keep.
    pub(crate) fn child(self, key: &str) -> Option<Pos<'g>> {
        let Pos::Typed(at) = self else { return Some(Pos::Deduced) };
        match at.ty() {
            Type::Struct(s) => match s.field(key) {
                Some(field) => Some(Pos::Typed(at.to(field.ty))),
                None => s.preserve_unknown.then_some(Pos::Deduced),
            },
            _ => at.child(key).map(Pos::Typed),
        }
    }

    /// Whether the key is a declared field, rather than an entry of a map. Declared fields are owned through what is in
    /// them; entries of maps are owned themselves.
    pub(crate) fn declares(self, key: &str) -> bool {
        matches!(self, Pos::Typed(at) if at.field(key).is_some())
    }

    pub(crate) fn items(self) -> Option<Pos<'g>> {
        match self {
            Pos::Typed(at) => at.items().map(Pos::Typed),
            Pos::Deduced => None,
        }
    }
}

/// What tells an item of this list apart from the others.
pub(crate) fn identify(list: &List, item: &Value) -> Result<Element, ItemError> {
    match &list.topology {
        Topology::Map { keys, defaults } => {
            let map = match item {
                Value::Object(map) => map,
                Value::Null => return Err(ItemError::NullItem),
                _ => return Err(ItemError::NotAnObject),
            };
            identify_by(keys, defaults, map)
        }
        _ => match item {
            Value::Object(_) => Err(ItemError::SetOfMaps),
            Value::Array(_) => Err(ItemError::SetOfLists),
            Value::Null => Err(ItemError::NullInSet),
            scalar => Ok(Element::value(scalar.clone())),
        },
    }
}

fn identify_by(keys: &[String], defaults: &[(String, Value)], item: &Map<String, Value>) -> Result<Element, ItemError> {
    let mut fields: Vec<(Name, Value)> = Vec::with_capacity(keys.len());
    for key in keys {
        let value = item.get(key).or_else(|| defaults.iter().find(|(name, _)| name == key).map(|(_, value)| value));
        // A key field that is neither there nor defaulted is left out: the item is another one than if it were set.
        if let Some(value) = value {
            fields.push((key.as_str().into(), value.clone()));
        }
    }
    if fields.is_empty() {
        let quoted: Vec<String> = keys.iter().map(|k| crate::field::quote(k)).collect();
        return Err(ItemError::NoKeys(quoted.join(" ")));
    }
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Element::Key(fields.into_boxed_slice()))
}

/// The items with their identities, sorted by identity; items with the same one stay in their order, side by side.
pub(crate) fn keyed<'v>(list: &List, items: &'v [Value]) -> Result<Vec<(Element, &'v Value)>, (usize, ItemError)> {
    let mut out = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        out.push((identify(list, item).map_err(|e| (i, e))?, item));
    }
    if !out.is_sorted_by(|a, b| a.0 <= b.0) {
        out.sort_by(|a, b| a.0.cmp(&b.0));
    }
    Ok(out)
}

/// The fields that a value sets, as owning them is recorded for an applied configuration: scalars and whatever is merged as
/// one value are members, so are list items, entries of maps, nulls and empty objects; structs are not.
pub fn of(at: At<'_>, value: &Value) -> Set {
    collect(Pos::Typed(at), value, 0).1
}

/// Whether the value is a leaf, and the set below it.
fn collect(pos: Pos<'_>, value: &Value, depth: usize) -> (bool, Set) {
    if depth > MAX_DEPTH {
        return (true, Set::new());
    }
    match (pos.shape(), value) {
        (Shape::Leaf, _) => (true, Set::new()),
        (Shape::Fields | Shape::Deduced, Value::Object(map)) => (false, collect_fields(pos, map, depth)),
        (Shape::Items(list), Value::Array(items)) => (false, collect_items(list, pos, items, depth)),
        // A null or a value of the wrong type where fields or items belong owns nothing below it.
        (Shape::Fields | Shape::Items(_), _) => (false, Set::new()),
        (Shape::Deduced, Value::Null) => (false, Set::new()),
        (Shape::Deduced, _) => (true, Set::new()),
    }
}

fn collect_fields(pos: Pos<'_>, map: &Map<String, Value>, depth: usize) -> Set {
    let mut set = Set::new();
    set.nodes.reserve(map.len());
    for (key, value) in map {
        let Some(child) = pos.child(key) else { continue };
        let (leaf, below) = collect(child, value, depth + 1);
        let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        set.push(Element::field(key), leaf || empty || !pos.declares(key), below);
    }
    set
}

/// All that is in a value: as [`of`], but structs, maps and lists are members too. This is what is added or removed along
/// with the value.
pub(crate) fn everything(pos: Pos<'_>, value: &Value, depth: usize) -> Result<Set, (usize, ItemError)> {
    let mut set = Set::new();
    match (pos.shape(), value) {
        _ if depth > MAX_DEPTH => {}
        (Shape::Fields | Shape::Deduced, Value::Object(map)) => {
            set.nodes.reserve(map.len());
            for (key, value) in map {
                let Some(child) = pos.child(key) else { continue };
                set.push(Element::field(key), true, everything(child, value, depth + 1)?);
            }
        }
        (Shape::Items(list), Value::Array(items)) => {
            let Some(child) = pos.items() else { return Ok(set) };
            set.nodes.reserve(items.len());
            let mut items = keyed(list, items)?.into_iter().peekable();
            while let Some((element, item)) = items.next() {
                let mut below = everything(child, item, depth + 1)?;
                while items.next_if(|(next, _)| *next == element).is_some() {
                    below = Set::new();
                }
                set.push(element, true, below);
            }
        }
        _ => {}
    }
    Ok(set)
}

fn collect_items(list: &List, pos: Pos<'_>, items: &[Value], depth: usize) -> Set {
    let mut set = Set::new();
    let Some(child) = pos.items() else { return set };
    let mut sorted: Vec<(Element, &Value)> =
        items.iter().filter_map(|item| identify(list, item).ok().map(|e| (e, item))).collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    let mut rest = sorted.into_iter().peekable();
    while let Some((element, item)) = rest.next() {
        let mut duplicate = false;
        while rest.next_if(|(next, _)| *next == element).is_some() {
            duplicate = true;
        }
        // Items with the same identity are owned together and nothing in them is.
        let below = if duplicate { Set::new() } else { collect(child, item, depth + 1).1 };
        set.push(element, true, below);
    }
    set
}

impl Set {
    /// The set plus the declared struct fields on the way to its members: owning `a.b.c` is taken to own `a` and `a.b` if
    /// they are fields of structs, not if they are entries of maps or list items.
    pub fn ensure_named_fields_are_members(&self, at: At<'_>) -> Set {
        self.with_named_fields(Some(Pos::Typed(at)))
    }

    pub(crate) fn with_named_fields(&self, pos: Option<Pos<'_>>) -> Set {
        let mut out = Set::new();
        out.nodes.reserve(self.nodes.len());
        for node in &self.nodes {
            let (named, child) = match (&node.element, pos) {
                (Element::Field(name), Some(pos)) => (pos.declares(name), pos.child(name)),
                (Element::Key(_), Some(pos)) => (false, pos.items()),
                _ => (false, None),
            };
            let member = node.member || (named && !node.below.is_empty());
            out.push(node.element.clone(), member, node.below.with_named_fields(child));
        }
        out
    }

    /// Turns what is below a field that has become atomic since the set was written into owning that field. None if
    /// nothing changes, which is the rule.
    pub(crate) fn reconciled(&self, at: At<'_>) -> Option<Set> {
        match self.reconcile(Pos::Typed(at)) {
            Cow::Borrowed(_) => None,
            Cow::Owned(set) => Some(set),
        }
    }

    fn reconcile(&self, pos: Pos<'_>) -> Cow<'_, Set> {
        let mut out = Cow::Borrowed(self);
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| !n.below.is_empty()) {
            let child = match &node.element {
                Element::Field(name) => pos.child(name),
                Element::Key(_) | Element::Value(_) | Element::Index(_) => pos.items(),
            };
            let Some(child) = child else { continue };
            if matches!(child, Pos::Typed(at) if atomic_container(at)) {
                let node = &mut out.to_mut().nodes[i];
                node.member = true;
                node.below = Set::new();
            } else if let Cow::Owned(below) = node.below.reconcile(child) {
                out.to_mut().nodes[i].below = below;
            }
        }
        out
    }
}

fn atomic_container(at: At<'_>) -> bool {
    match at.ty() {
        Type::Struct(s) => s.atomic,
        Type::Map(m) => m.atomic,
        Type::List(l) => l.topology == Topology::Atomic,
        Type::Any => true,
        Type::Scalar(_) => false,
    }
}
