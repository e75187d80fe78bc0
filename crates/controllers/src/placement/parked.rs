//! Pods that have no place, by what they ask for: those that ask the same wait as one, and a change is held against what
//! they ask, not against each of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use super::model::{Pod, Shape, Shared};
use crate::runtime::Key;

/// Who is looked at first: higher priority, then older, then seen first.
pub type Order = (Reverse<i32>, Option<Timestamp>, u64);

/// Pods with the same class have the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    pub shape: Shared<Shape>,
    /// Namespace and labels, where other pods' terms look at them.
    pub own: Option<(Arc<str>, BTreeMap<String, String>)>,
}

#[derive(Default)]
pub struct Parked {
    classes: HashMap<Class, Members>,
}

#[derive(Default)]
struct Members {
    pods: BTreeMap<Order, Arc<Pod>>,
    /// The position in the log at which one of them was last looked at: the answer holds for all.
    judged_at: usize,
}

/// How much of a class is worth another look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    None,
    /// Its first pod: room for one may have come.
    First,
    All,
}

impl Parked {
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    pub fn add(&mut self, class: Class, order: Order, pod: Arc<Pod>, judged_at: usize) {
        let members = self.classes.entry(class).or_default();
        members.pods.insert(order, pod);
        members.judged_at = judged_at;
    }

    pub fn judged_at(&self, class: &Class) -> usize {
        self.classes.get(class).map_or(0, |members| members.judged_at)
    }

    pub fn remove(&mut self, class: &Class, order: &Order) {
        if let Some(members) = self.classes.get_mut(class) {
            members.pods.remove(order);
            if members.pods.is_empty() {
                self.classes.remove(class);
            }
        }
    }

    pub fn first(&self, class: &Class) -> Option<Key> {
        self.classes.get(class)?.pods.values().next().map(|pod| pod.key.clone())
    }

    /// Those of each class that `judge` wakes, given the class, its first pod and when it was judged.
    pub fn woken(&self, mut judge: impl FnMut(&Class, &Arc<Pod>, usize) -> Wake) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for (class, members) in &self.classes {
            let Some(first) = members.pods.values().next() else { continue };
            match judge(class, first, members.judged_at) {
                Wake::None => {}
                Wake::First => drop(keys.insert(first.key.clone())),
                Wake::All => keys.extend(members.pods.values().map(|pod| pod.key.clone())),
            }
        }
        keys
    }
}
