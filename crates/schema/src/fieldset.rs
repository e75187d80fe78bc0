//! Sets of field paths: who owns what in an object, as server-side apply records it.
//!
//! A [`Set`] is a trie. Each node is one step of a path ([`Element`]); a node may be a member, have members below it, or
//! both (`f:labels` owned as a map, and `f:app` below it). Steps are kept sorted in upstream's order, so every operation
//! is one pass over two sorted lists, and writing a set always gives the same bytes.
//!
//! [`of`] makes the set of a typed value, [`Set::from_fields_v1`] and [`Set::to_fields_v1`] are the stored form
//! (`metadata.managedFields[].fieldsV1`). This module knows nothing about managers or conflicts: that is
//! [`crate::managed`] and [`crate::apply`].

use std::cmp::Ordering;

mod element;
mod json;
mod name;
#[cfg(test)]
pub(crate) mod sample;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use element::equal;
pub use element::{Element, Path};
pub use json::BadFields;
pub(crate) use json::{go_json, write_string};
pub use shape::of;
pub(crate) use shape::{ItemError, MAX_DEPTH, Pos, Shape, everything, identify, keyed};

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Sorted by element, none without a member at or below it.
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    element: Element,
    /// The path that ends here is in the set.
    member: bool,
    below: Set,
}

impl Set {
    pub fn new() -> Set {
        Set::default()
    }

    /// A set of plain field paths: `Set::fields(&[&["metadata", "name"], &["status"]])`.
    pub fn fields(paths: &[&[&str]]) -> Set {
        let mut set = Set::new();
        for path in paths {
            set.insert(&path.iter().map(|name| Element::field(name)).collect::<Vec<_>>());
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many paths are members.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|n| usize::from(n.member) + n.below.len()).sum()
    }

    /// Adds a path, not its parents. The empty path is nobody's and is ignored.
    pub fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else { return };
        let node = self.node_mut(first);
        if rest.is_empty() { node.member = true } else { node.below.insert(rest) }
    }

    pub fn has(&self, path: &[Element]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        match self.node(first) {
            Some(node) if rest.is_empty() => node.member,
            Some(node) => node.below.has(rest),
            None => false,
        }
    }

    /// Whether this one-step path is a member.
    pub(crate) fn has_element(&self, element: &Element) -> bool {
        self.node(element).is_some_and(|n| n.member)
    }

    /// The paths that begin with this element, without it.
    pub fn below(&self, element: &Element) -> Option<&Set> {
        self.node(element).map(|n| &n.below).filter(|s| !s.is_empty())
    }

    pub fn union(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.add(other.clone());
        out
    }

    pub fn difference(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.remove(other);
        out
    }

    /// As [`Set::difference`], but a member of `other` takes everything below it along.
    pub fn recursive_difference(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.remove_recursively(other);
        out
    }

    pub fn intersection(&self, other: &Set) -> Set {
        let mut out = Set::new();
        let mut theirs = other.nodes.iter().peekable();
        for node in &self.nodes {
            while theirs.next_if(|t| t.element < node.element).is_some() {}
            let Some(their) = theirs.next_if(|t| t.element == node.element) else { continue };
            out.push(node.element.clone(), node.member && their.member, node.below.intersection(&their.below));
        }
        out
    }

    /// Whether every member is a member of `other`.
    pub fn is_subset(&self, other: &Set) -> bool {
        let mut theirs = other.nodes.iter().peekable();
        self.nodes.iter().all(|node| {
            while theirs.next_if(|t| t.element < node.element).is_some() {}
            theirs
                .next_if(|t| t.element == node.element)
                .is_some_and(|their| (!node.member || their.member) && node.below.is_subset(&their.below))
        })
    }

    /// Whether some path is a member of both.
    pub fn intersects(&self, other: &Set) -> bool {
        let mut theirs = other.nodes.iter().peekable();
        self.nodes.iter().any(|node| {
            while theirs.next_if(|t| t.element < node.element).is_some() {}
            theirs
                .next_if(|t| t.element == node.element)
                .is_some_and(|their| (node.member && their.member) || node.below.intersects(&their.below))
        })
    }

    /// Only the members with no member below them.
    pub fn leaves(&self) -> Set {
        let mut out = Set::new();
        for node in &self.nodes {
            out.push(node.element.clone(), node.member && node.below.is_empty(), node.below.leaves());
        }
        out
    }

    /// Union in place.
    pub fn add(&mut self, other: Set) {
        if self.nodes.is_empty() {
            *self = other;
            return;
        }
        if other.nodes.is_empty() {
            return;
        }
        let mut out = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        let mut theirs = other.nodes.into_iter().peekable();
        for mut node in std::mem::take(&mut self.nodes) {
            while let Some(their) = theirs.next_if(|t| t.element < node.element) {
                out.push(their);
            }
            if let Some(their) = theirs.next_if(|t| t.element == node.element) {
                node.member |= their.member;
                node.below.add(their.below);
            }
            out.push(node);
        }
        out.extend(theirs);
        self.nodes = out;
    }

    /// Difference in place. True when something was removed.
    pub fn remove(&mut self, other: &Set) -> bool {
        let mut changed = false;
        self.retain_matching(other, &mut |node, their| {
            if node.member && their.member {
                node.member = false;
                changed = true;
            }
            changed |= node.below.remove(&their.below);
        });
        changed
    }

    /// [`Set::recursive_difference`] in place.
    pub fn remove_recursively(&mut self, other: &Set) {
        self.retain_matching(other, &mut |node, their| {
            if their.member {
                node.member = false;
                node.below = Set::new();
            } else {
                node.below.remove_recursively(&their.below);
            }
        });
    }

    /// Calls `edit` for each node that `other` has too, then drops it if nothing is left.
    fn retain_matching(&mut self, other: &Set, edit: &mut dyn FnMut(&mut Node, &Node)) {
        let mut theirs = other.nodes.iter().peekable();
        self.nodes.retain_mut(|node| {
            while theirs.next_if(|t| t.element < node.element).is_some() {}
            if let Some(their) = theirs.next_if(|t| t.element == node.element) {
                edit(node, their);
            }
            node.member || !node.below.is_empty()
        });
    }

    /// Calls `f` for each member: those of a level first, then what is below them, as upstream lists conflicts.
    pub fn for_each(&self, f: &mut dyn FnMut(&[Element])) {
        self.walk(&mut Vec::new(), f);
    }

    pub fn paths(&self) -> Vec<Path> {
        let mut out = Vec::new();
        self.for_each(&mut |path| out.push(Path(path.to_vec())));
        out
    }

    fn walk(&self, prefix: &mut Vec<Element>, f: &mut dyn FnMut(&[Element])) {
        for node in self.nodes.iter().filter(|n| n.member) {
            prefix.push(node.element.clone());
            f(prefix);
            prefix.pop();
        }
        for node in self.nodes.iter().filter(|n| !n.below.is_empty()) {
            prefix.push(node.element.clone());
            node.below.walk(prefix, f);
            prefix.pop();
        }
    }

    /// Appends a node; the caller goes through its elements in order, which is how sets are built without searching.
    pub(crate) fn push(&mut self, element: Element, member: bool, below: Set) {
        if !member && below.is_empty() {
            return;
        }
        debug_assert!(self.nodes.last().is_none_or(|last| last.element < element), "elements are pushed in order");
        self.nodes.push(Node { element, member, below });
    }

    fn find(&self, element: &Element) -> Result<usize, usize> {
        match self.nodes.last() {
            None => Err(0),
            // Most sets are read back in the order in which they were written.
            Some(last) if last.element.cmp(element) == Ordering::Less => Err(self.nodes.len()),
            Some(_) => self.nodes.binary_search_by(|n| n.element.cmp(element)),
        }
    }

    fn node(&self, element: &Element) -> Option<&Node> {
        self.find(element).ok().map(|i| &self.nodes[i])
    }

    fn node_mut(&mut self, element: &Element) -> &mut Node {
        let at = match self.find(element) {
            Ok(at) => at,
            Err(at) => {
                self.nodes.insert(at, Node { element: element.clone(), member: false, below: Set::new() });
                at
            }
        };
        &mut self.nodes[at]
    }
}

impl std::fmt::Display for Set {
    /// One path a line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<String> = self.paths().iter().map(Path::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}
