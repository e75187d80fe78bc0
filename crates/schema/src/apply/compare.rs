//! What changed between two objects of a type, as three sets of fields.
//!
//! Unlike [`fieldset::of`](crate::fieldset::of) this counts structs: a struct that was not there before is itself added.
//! That is why objects of Go types, in which structs are always there, have no `"."` at `f:spec`, and custom resources do.

use serde_json::{Map, Value};

use crate::fieldset::{Element, ItemError, MAX_DEPTH, Pos, Set, Shape, equal, everything, keyed};
use crate::graph::{At, List, Presence, Scalar, Type};

/// No path is in more than one of the three.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub removed: Set,
    pub modified: Set,
    pub added: Set,
}

impl Comparison {
    /// Leaves out fields that this endpoint does not let clients change, with all that is in them.
    pub fn without(mut self, reset: &Set) -> Comparison {
        if !reset.is_empty() {
            self.removed.remove_recursively(reset);
            self.modified.remove_recursively(reset);
            self.added.remove_recursively(reset);
        }
        self
    }

    fn push(&mut self, element: Element, own: Own, below: Comparison) {
        let Comparison { removed, modified, added } = below;
        if own.removed || !removed.is_empty() {
            self.removed.push(element.clone(), own.removed, removed);
        }
        if own.modified || !modified.is_empty() {
            self.modified.push(element.clone(), own.modified, modified);
        }
        self.added.push(element, own.added, added);
    }
}

/// Which of the three sets the path itself goes to.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    removed: bool,
    modified: bool,
    added: bool,
}

/// Compares two objects. An error means that some list has an item without identity.
pub(crate) fn compare(at: At<'_>, old: &Value, new: &Value) -> Result<Comparison, (usize, ItemError)> {
    Ok(both(Pos::Typed(at), old, new, 0)?.1)
}

type Walked = Result<(Own, Comparison), (usize, ItemError)>;

fn walk(pos: Pos<'_>, old: Option<&Value>, new: Option<&Value>, depth: usize) -> Walked {
    match (old, new) {
        (Some(old), Some(new)) => both(pos, old, new, depth),
        (None, Some(new)) => added(pos, new, depth),
        (Some(old), None) => removed(pos, old, depth),
        (None, None) => Ok((Own::default(), Comparison::default())),
    }
}

fn added(pos: Pos<'_>, new: &Value, depth: usize) -> Walked {
    let added = everything(pos, new, depth)?;
    Ok((Own { added: true, ..Own::default() }, Comparison { added, ..Comparison::default() }))
}

fn removed(pos: Pos<'_>, old: &Value, depth: usize) -> Walked {
    let removed = everything(pos, old, depth)?;
    Ok((Own { removed: true, ..Own::default() }, Comparison { removed, ..Comparison::default() }))
}

fn both(pos: Pos<'_>, old: &Value, new: &Value, depth: usize) -> Walked {
    if depth > MAX_DEPTH {
        return Ok(leaf(old, new));
    }
    match pos.shape() {
        Shape::Leaf => Ok(leaf(old, new)),
        Shape::Fields => fields(pos, old, new, depth),
        Shape::Items(list) => items(list, pos, old, new, depth),
        Shape::Deduced if old.is_object() || new.is_object() => {
            let (mut own, comparison) = fields(pos, old, new, depth)?;
            // An object in place of a scalar or the other way round: the field itself changed as well.
            own.modified |= [old, new].into_iter().any(|v| !v.is_object() && !v.is_null());
            Ok((own, comparison))
        }
        Shape::Deduced => Ok(leaf(old, new)),
    }
}

fn leaf(old: &Value, new: &Value) -> (Own, Comparison) {
    (Own { modified: !equal(old, new), ..Own::default() }, Comparison::default())
}

fn fields(pos: Pos<'_>, old: &Value, new: &Value, depth: usize) -> Walked {
    let empty = Map::new();
    let old_map = old.as_object().unwrap_or(&empty);
    let new_map = new.as_object().unwrap_or(&empty);
    if old_map.is_empty() && new_map.is_empty() {
        return Ok(leaf(old, new)); // keeps {} and null apart
    }
    let mut out = Comparison::default();
    let (mut olds, mut news) = (old_map.iter().peekable(), new_map.iter().peekable());
    loop {
        let key = match (olds.peek(), news.peek()) {
            (None, None) => break,
            (Some((old, _)), None) => *old,
            (None, Some((new, _))) => *new,
            (Some((old, _)), Some((new, _))) => (*old).min(*new),
        };
        let old = olds.next_if(|(k, _)| *k == key).map(|(_, v)| v);
        let new = news.next_if(|(k, _)| *k == key).map(|(_, v)| v);
        let Some(child) = pos.child(key) else { continue };
        let (own, below) = walk(child, old, new, depth + 1)?;
        push(&mut out, || Element::field(key), own, below);
    }
    Ok((Own::default(), out))
}

/// Most fields are the same on both sides, and then even the element is not made.
fn push(out: &mut Comparison, element: impl FnOnce() -> Element, own: Own, below: Comparison) {
    let nothing = !(own.added || own.modified || own.removed)
        && below.added.is_empty()
        && below.modified.is_empty()
        && below.removed.is_empty();
    if !nothing {
        out.push(element(), own, below);
    }
}

fn items(list: &List, pos: Pos<'_>, old: &Value, new: &Value, depth: usize) -> Walked {
    let old_items = old.as_array().map_or(&[][..], Vec::as_slice);
    let new_items = new.as_array().map_or(&[][..], Vec::as_slice);
    let (false, Some(child)) = (old_items.is_empty() && new_items.is_empty(), pos.items()) else {
        return Ok(leaf(old, new));
    };
    let mut out = Comparison::default();
    if old == new {
        return Ok((Own::default(), out)); // the rule, and much cheaper to find out than the items' identities
    }
    let mut olds = keyed(list, old_items)?.into_iter().peekable();
    let mut news = keyed(list, new_items)?.into_iter().peekable();
    loop {
        let element = match (olds.peek(), news.peek()) {
            (None, None) => break,
            (Some((old, _)), None) => old.clone(),
            (None, Some((new, _))) => new.clone(),
            (Some((old, _)), Some((new, _))) => old.min(new).clone(),
        };
        let same = |side: &mut std::iter::Peekable<std::vec::IntoIter<(Element, _)>>| {
            let mut values: Vec<&Value> = Vec::new();
            while let Some((_, value)) = side.next_if(|(e, _)| *e == element) {
                values.push(value);
            }
            values
        };
        let (old, new) = (same(&mut olds), same(&mut news));
        let (own, below) = duplicates(child, &old, &new, depth)?;
        push(&mut out, || element, own, below);
    }
    Ok((Own::default(), out))
}

/// Items of one identity. More than one of them on a side are compared as one value.
fn duplicates(child: Pos<'_>, old: &[&Value], new: &[&Value], depth: usize) -> Walked {
    match (old, new) {
        ([] | [_], [] | [_]) => walk(child, old.first().copied(), new.first().copied(), depth + 1),
        ([_, _, ..], [_, _, ..]) => {
            let same = old.len() == new.len() && old.iter().zip(new).all(|(a, b)| equal(a, b));
            Ok((Own { modified: !same, ..Own::default() }, Comparison::default()))
        }
        ([_, _, ..], []) => Ok((Own { removed: true, ..Own::default() }, Comparison::default())),
        ([_, _, ..], [new]) => {
            let (own, below) = added(child, new, depth + 1)?;
            Ok((Own { removed: true, ..own }, below))
        }
        ([], _) => Ok((Own { added: true, ..Own::default() }, Comparison::default())),
        ([old], _) => {
            let (own, below) = removed(child, old, depth + 1)?;
            Ok((Own { added: true, ..own }, below))
        }
    }
}

/// A new, empty object of a Go type as its encoder writes it. Creations are compared with this, so that structs which are
/// always there belong to nobody.
pub(crate) fn zero(at: At<'_>) -> Value {
    zero_struct(at, 0)
}

fn zero_struct(at: At<'_>, depth: usize) -> Value {
    let mut map = Map::new();
    if let (Type::Struct(s), true) = (at.ty(), depth < 32) {
        for field in &s.fields {
            match field.presence {
                Presence::Always => map.insert(field.name.clone(), zero_value(at.to(field.ty), depth + 1)),
                Presence::Struct => map.insert(field.name.clone(), zero_value(at.to(field.ty), depth + 1)),
                Presence::Null => map.insert(field.name.clone(), Value::Null),
                Presence::NonZero | Presence::Set => None,
            };
        }
    }
    Value::Object(map)
}

fn zero_value(at: At<'_>, depth: usize) -> Value {
    match at.ty() {
        Type::Struct(_) => zero_struct(at, depth),
        Type::Map(_) | Type::List(_) | Type::Any => Value::Null,
        Type::Scalar(scalar) => match scalar {
            Scalar::String => Value::from(""),
            Scalar::Bool => Value::from(false),
            Scalar::Int32 | Scalar::Int64 | Scalar::Double | Scalar::IntOrString => Value::from(0),
            Scalar::Bytes | Scalar::Time | Scalar::MicroTime => Value::Null,
            Scalar::Quantity => Value::from("0"),
            Scalar::Duration => Value::from("0s"),
        },
    }
}
