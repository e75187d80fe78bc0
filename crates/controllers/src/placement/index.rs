//! The nodes that have room for one shape, best first, kept up to date by the log: choosing one costs what changed since
//! the last choice, not a look at every node.
//!
//! Only for shapes that ask nothing about other pods.

use std::collections::{BTreeMap, BTreeSet};

use super::fit::{Regards, has_room};
use super::model::Shape;
use super::score;
use super::state::{Change, Slot, State};

#[derive(Default)]
pub struct Index {
    position: Option<usize>,
    entries: Vec<Option<Entry>>,
    /// By worth (negated), then number of pods, then slot.
    order: BTreeSet<(i64, usize, Slot)>,
    preferences: Most,
    dislikes: Most,
    /// The greatest preference and dislike that the order was made with.
    weighed: (i64, i64),
    /// It was too far behind to be worth it last time, too.
    passed_over: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    pods: usize,
    room: i64,
    preference: i64,
    dislikes: i64,
    worth: i64,
}

/// How often each value occurs; most are zero and not kept.
#[derive(Default)]
struct Most(BTreeMap<i64, usize>);

impl Most {
    fn add(&mut self, value: i64) {
        if value != 0 {
            *self.0.entry(value).or_default() += 1;
        }
    }

    fn take(&mut self, value: i64) {
        if let Some(count) = self.0.get_mut(&value) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&value);
            }
        }
    }

    fn get(&self) -> i64 {
        self.0.last_key_value().map_or(0, |(value, _)| (*value).max(0))
    }
}

impl Index {
    /// The nodes with room, best first.
    pub fn best(&self) -> impl Iterator<Item = Slot> {
        self.order.iter().map(|(_, _, slot)| *slot)
    }

    /// Whether one look at every node costs less than catching up. Never twice in a row: a shape that comes often is to have
    /// its index.
    pub fn is_not_worth_it(&mut self, state: &State) -> bool {
        let behind = self.position.map_or(usize::MAX, |position| state.now() - position);
        self.passed_over = !self.passed_over && behind > state.present() / 4;
        self.passed_over
    }

    pub fn refresh(&mut self, state: &State, regards: &Regards, shape: &Shape) {
        let changes = self.position.and_then(|position| state.since(position));
        self.entries.resize(state.spots.len(), None);
        match changes {
            Some(changes) => {
                let mut last = None;
                for change in changes {
                    let (Change::Node(slot) | Change::Placed(slot, _) | Change::Gone(slot, _)) = change else {
                        continue;
                    };
                    if last != Some(*slot) {
                        self.update(state, regards, shape, *slot);
                        last = Some(*slot);
                    }
                }
            }
            None => (0..state.spots.len()).for_each(|slot| self.update(state, regards, shape, slot)),
        }
        self.position = Some(state.now());
        let most = (self.preferences.get(), self.dislikes.get());
        if self.weighed != most {
            self.weighed = most;
            self.weigh_anew();
        }
    }

    fn update(&mut self, state: &State, regards: &Regards, shape: &Shape, slot: Slot) {
        if let Some(old) = self.entries[slot].take() {
            self.order.remove(&(-old.worth, old.pods, slot));
            self.preferences.take(old.preference);
            self.dislikes.take(old.dislikes);
        }
        let spot = &state.spots[slot];
        let (Some(node), Some(regard)) = (&spot.node, regards.get(slot)) else { return };
        if !regard.admits() || !has_room(shape, &node.allocatable, &spot.room) {
            return;
        }
        self.preferences.add(regard.preference);
        self.dislikes.add(regard.dislikes);
        let mut entry = Entry {
            pods: spot.room.pods,
            room: score::room(shape, node, &spot.room),
            preference: regard.preference,
            dislikes: regard.dislikes,
            worth: 0,
        };
        entry.worth = self.worth(&entry);
        self.order.insert((-entry.worth, entry.pods, slot));
        self.entries[slot] = Some(entry);
    }

    fn worth(&self, entry: &Entry) -> i64 {
        entry.room + score::regard(entry.preference, entry.dislikes, self.weighed.0, self.weighed.1)
    }

    /// Preferences are worth what they are compared with the greatest among the nodes that fit.
    fn weigh_anew(&mut self) {
        self.order.clear();
        for slot in 0..self.entries.len() {
            let Some(mut entry) = self.entries[slot] else { continue };
            entry.worth = self.worth(&entry);
            self.order.insert((-entry.worth, entry.pods, slot));
            self.entries[slot] = Some(entry);
        }
    }
}
