//! The line before one queue: who waits, in which order, and under which watches.
//!
//! Workloads that would get the same answer (same shape, same priority) wait as one class, and only the first of a class is ever looked
//! at: if it cannot be admitted, the others cannot either. A class is fresh (to be looked at) or parked under its watches; a parked class
//! is found again by cell and by how much of it is needed, so that a little freed room does not look at those who need more.
//!
//! Does not decide and does not know quota.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use crate::assign::Watch;
use crate::model::{Amount, Cell, GroupId, Shape, Time, Workload, WorkloadId};
use crate::reason::Wait;
use crate::world::Inactive;

/// A hash map whose order is never looked at, with a hasher that is fast and the same in every process.
pub type Table<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// Multiplies and rotates, eight bytes at a time. Keys are shapes, and whoever can create workloads can make them collide; that costs them
/// the speed of their own queue and nothing else, because each line has its own table.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

/// Place in line: priority, time, then what the outside chose to break ties, siblings side by side, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    pub priority: Reverse<i64>,
    pub queued_at: Time,
    pub place: u64,
    pub sibling: u32,
    pub workload: WorkloadId,
}

impl Order {
    pub fn of(id: WorkloadId, workload: &Workload) -> Order {
        Order {
            priority: Reverse(workload.priority),
            queued_at: workload.queued_at,
            place: workload.place,
            sibling: workload.sibling,
            workload: id,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u32);

/// What all members of a class have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub shape: Arc<Shape>,
    pub priority: i64,
    pub preemption_gated: bool,
    /// Members of a group are answered with regard to their siblings, so each is a class of its own.
    pub group: Option<(GroupId, u32)>,
    pub part_of: Option<WorkloadId>,
}

impl Key {
    pub fn of(workload: &Workload) -> Key {
        Key {
            shape: workload.shape.clone(),
            priority: workload.priority,
            preemption_gated: workload.preemption_gated,
            group: workload.group.map(|group| (group, workload.sibling)),
            part_of: workload.part_of,
        }
    }
}

#[derive(Debug, Clone)]
enum State {
    Fresh,
    Parked { reason: Arc<Wait>, watches: Vec<Watch> },
}

#[derive(Debug, Clone)]
struct Class {
    key: Arc<Key>,
    members: BTreeSet<Order>,
    state: State,
    /// Parked classes that were just looked at are left out of the search until the round is over.
    findable: bool,
}

impl Class {
    fn head(&self) -> Option<Order> {
        self.members.first().copied()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Line {
    pub inactive: Option<Inactive>,
    /// Preempting workloads of this queue whose victims have not left.
    pub holding: BTreeSet<Order>,
    /// Who waits for this queue and cannot stand in line: it is inactive, or something else is in their way.
    pub outside: BTreeSet<Order>,
    /// Those of them who only keep the place of their group.
    pub coming: BTreeSet<Order>,
    /// Heads of a strict line that keep what there is of their quota while they wait.
    pub keeping: BTreeSet<WorkloadId>,
    /// The head of a strict line that was looked at last.
    pub head: Option<WorkloadId>,
    classes: Vec<Option<Class>>,
    free_ids: Vec<u32>,
    by_key: Table<Arc<Key>, ClassId>,
    heads: BTreeSet<(Order, ClassId)>,
    fresh: BTreeSet<(Order, ClassId)>,
    parked: BTreeMap<Cell, BTreeMap<Amount, BTreeSet<(Order, ClassId)>>>,
    unfindable: Vec<ClassId>,
    len: usize,
    /// Members of parked classes.
    parked_len: usize,
}

impl Line {
    /// The line of a queue that nobody has described yet.
    pub fn unknown() -> Line {
        Line { inactive: Some(Inactive::NotFound), ..Line::default() }
    }

    /// Lets a workload stand in line. True if it is the first of its class, so that the class has to be looked at.
    pub fn join(&mut self, order: Order, key: Key) -> (ClassId, bool) {
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => self.new_class(key),
        };
        self.len += 1;
        let old = self.class(id).head();
        self.class_mut(id).members.insert(order);
        let was_parked = !self.is_fresh(id);
        if old.is_some_and(|old| old < order) {
            self.parked_len += usize::from(was_parked);
            return (id, !was_parked);
        }
        if was_parked {
            self.parked_len -= self.class(id).members.len() - 1;
        }
        // A new head may get what the old one could not (it is older), so the class is looked at again.
        if let Some(old) = old {
            self.unlist(id, old);
        }
        self.class_mut(id).state = State::Fresh;
        self.list(id);
        (id, true)
    }

    pub fn leave(&mut self, order: Order, id: ClassId) {
        let Some(head) = self.class(id).head() else { return };
        let parked = usize::from(!self.is_fresh(id));
        if head != order {
            if self.class_mut(id).members.remove(&order) {
                self.len -= 1;
                self.parked_len -= parked;
            }
            return;
        }
        self.unlist(id, head);
        self.len -= 1;
        self.parked_len -= parked;
        self.class_mut(id).members.remove(&order);
        if self.class(id).members.is_empty() {
            let key = self.class(id).key.clone();
            self.by_key.remove(&key);
            self.classes[id.0 as usize] = None;
            self.free_ids.push(id.0);
        } else {
            self.list(id);
        }
    }

    /// Parks a class; it is found again from the end of the round on.
    pub fn park(&mut self, id: ClassId, reason: Arc<Wait>, mut watches: Vec<Watch>) {
        let Some(head) = self.class(id).head() else { return };
        // Of one cell the smallest need is enough.
        watches.sort();
        watches.dedup_by_key(|watch| watch.cell);
        if self.is_fresh(id) {
            self.parked_len += self.class(id).members.len();
        }
        self.unlist(id, head);
        let class = self.class_mut(id);
        class.state = State::Parked { reason, watches };
        class.findable = false;
        self.unfindable.push(id);
        self.list(id);
    }

    /// The round is over: what was looked at may be found again.
    pub fn end_round(&mut self) {
        for id in std::mem::take(&mut self.unfindable) {
            if let Some(Some(class)) = self.classes.get_mut(id.0 as usize)
                && !class.findable
                && let Some(head) = class.head()
            {
                self.unlist(id, head);
                self.class_mut(id).findable = true;
                self.list(id);
            }
        }
    }

    /// The class is to be looked at again, whatever its watches say.
    pub fn refresh(&mut self, id: ClassId) {
        let Some(head) = self.class(id).head() else { return };
        if !self.is_fresh(id) {
            self.parked_len -= self.class(id).members.len();
        }
        self.unlist(id, head);
        let class = self.class_mut(id);
        class.state = State::Fresh;
        class.findable = true;
        self.list(id);
    }

    pub fn refresh_all(&mut self) {
        let all: Vec<ClassId> = self.heads.iter().map(|(_, id)| *id).collect();
        for id in all {
            self.refresh(id);
        }
    }

    pub fn is_fresh(&self, id: ClassId) -> bool {
        matches!(self.class(id).state, State::Fresh)
    }

    pub fn is_findable(&self, id: ClassId) -> bool {
        self.class(id).findable
    }

    pub fn key(&self, id: ClassId) -> &Arc<Key> {
        &self.class(id).key
    }

    pub fn head_of(&self, id: ClassId) -> Option<Order> {
        self.class(id).head()
    }

    pub fn reason(&self, id: ClassId) -> Option<&Arc<Wait>> {
        match &self.class(id).state {
            State::Parked { reason, .. } => Some(reason),
            State::Fresh => None,
        }
    }

    pub fn watches(&self, id: ClassId) -> &[Watch] {
        match &self.class(id).state {
            State::Parked { watches, .. } => watches,
            State::Fresh => &[],
        }
    }

    pub fn members(&self, id: ClassId) -> impl Iterator<Item = Order> + '_ {
        self.class(id).members.iter().copied()
    }

    /// Heads of classes, in line order.
    pub fn heads(&self) -> impl Iterator<Item = (Order, ClassId)> + '_ {
        self.heads.iter().copied()
    }

    pub fn first_fresh(&self) -> Option<(Order, ClassId)> {
        self.fresh.first().copied()
    }

    /// Parked classes that wait for a cell, by how much of it they need.
    pub fn waiting_for(&self, cell: Cell) -> impl Iterator<Item = (Amount, &BTreeSet<(Order, ClassId)>)> {
        self.parked.get(&cell).into_iter().flatten().map(|(need, classes)| (*need, classes))
    }

    pub fn watched_cells(&self) -> impl Iterator<Item = Cell> + '_ {
        self.parked.keys().copied()
    }

    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many wait to be woken.
    pub fn parked_len(&self) -> usize {
        self.parked_len
    }

    /// Who waits, in order, after this place: those in line, those who hold room and those outside. No more than `most`, and no more work
    /// than that (but for a look at each class).
    pub fn after(&self, place: Option<Order>, most: usize) -> Vec<Order> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let classes = self.heads.iter().map(|(_, id)| &self.class(*id).members);
        let sets = [&self.holding, &self.outside].into_iter().chain(classes);
        let mut rests: Vec<_> = sets.map(|set| set.range((from, Bound::Unbounded))).collect();
        let mut next: BTreeSet<(Order, usize)> = BTreeSet::new();
        next.extend(rests.iter_mut().enumerate().filter_map(|(at, rest)| Some((*rest.next()?, at))));
        let mut found = Vec::new();
        while found.len() < most
            && let Some((order, at)) = next.pop_first()
        {
            found.push(order);
            next.extend(rests[at].next().map(|order| (*order, at)));
        }
        found
    }

    fn new_class(&mut self, key: Key) -> ClassId {
        let key = Arc::new(key);
        let class = Class { key: key.clone(), members: BTreeSet::new(), state: State::Fresh, findable: true };
        let id = match self.free_ids.pop() {
            Some(id) => ClassId(id),
            None => {
                self.classes.push(None);
                ClassId(self.classes.len() as u32 - 1)
            }
        };
        self.classes[id.0 as usize] = Some(class);
        self.by_key.insert(key, id);
        id
    }

    fn class(&self, id: ClassId) -> &Class {
        self.classes[id.0 as usize].as_ref().unwrap_or_else(|| unreachable!("class {id:?} is gone"))
    }

    fn class_mut(&mut self, id: ClassId) -> &mut Class {
        self.classes[id.0 as usize].as_mut().unwrap_or_else(|| unreachable!("class {id:?} is gone"))
    }

    fn list(&mut self, id: ClassId) {
        let Some(Some(class)) = self.classes.get(id.0 as usize) else { return };
        let Some(head) = class.head() else { return };
        self.heads.insert((head, id));
        match &class.state {
            State::Fresh => {
                self.fresh.insert((head, id));
            }
            State::Parked { watches, .. } if class.findable => {
                for watch in watches {
                    self.parked.entry(watch.cell).or_default().entry(watch.need).or_default().insert((head, id));
                }
            }
            State::Parked { .. } => {}
        }
    }

    fn unlist(&mut self, id: ClassId, head: Order) {
        self.heads.remove(&(head, id));
        let Some(Some(class)) = self.classes.get(id.0 as usize) else { return };
        match &class.state {
            State::Fresh => {
                self.fresh.remove(&(head, id));
            }
            State::Parked { watches, .. } if class.findable => {
                for watch in watches {
                    let Some(needs) = self.parked.get_mut(&watch.cell) else { continue };
                    if let Some(classes) = needs.get_mut(&watch.need) {
                        classes.remove(&(head, id));
                        if classes.is_empty() {
                            needs.remove(&watch.need);
                        }
                    }
                    if needs.is_empty() {
                        self.parked.remove(&watch.cell);
                    }
                }
            }
            State::Parked { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LocalId;

    /// A few hundred random comings, goings, parkings and wakings of one line.
    #[test]
    fn the_number_of_parked_is_what_counting_them_gives() {
        let mut line = Line::default();
        let mut standing: BTreeMap<u32, (Order, ClassId)> = BTreeMap::new();
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..2000 {
            let id = random(20) as u32;
            match (standing.remove(&id), random(4)) {
                (Some((order, class)), 0) => line.leave(order, class),
                (Some((order, class)), 1) => {
                    line.park(class, Arc::new(Wait::Deactivated), Vec::new());
                    standing.insert(id, (order, class));
                }
                (Some((order, class)), 2) => {
                    line.refresh(class);
                    standing.insert(id, (order, class));
                }
                (Some(known), _) => drop(standing.insert(id, known)),
                (None, _) => {
                    let mut workload = Workload::new(LocalId(0), Arc::default());
                    workload.priority = random(4) as i64;
                    workload.queued_at = Time(random(50) as i64);
                    let order = Order::of(WorkloadId(id), &workload);
                    let (class, _) = line.join(order, Key::of(&workload));
                    standing.insert(id, (order, class));
                }
            }
            let parked = standing.values().filter(|(_, class)| !line.is_fresh(*class)).count();
            assert_eq!((line.parked_len(), line.len()), (parked, standing.len()));
            let in_order: BTreeSet<Order> = standing.values().map(|(order, _)| *order).collect();
            assert!(line.after(None, usize::MAX).into_iter().eq(in_order));
        }
    }
}
