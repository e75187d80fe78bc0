//! The nodes and the pods on them, as the watches show them plus what was decided and is not yet seen; and a log of what
//! changed, by which everything derived is brought up to date instead of being made anew.
//!
//! It knows no rule of placement.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::model::{Links, Node, Pod, PodTerm, Port, Shape, Used};
use crate::runtime::Key;

/// A node's place in the state. Reused after the node and all its pods are gone.
pub type Slot = usize;
/// A topology key that some pod names.
pub type KeyId = usize;
/// A value of a topology key; [`NOWHERE`] for nodes without the label.
pub type Domain = u32;
pub const NOWHERE: Domain = Domain::MAX;

/// What is taken on a node.
#[derive(Clone, Debug, Default)]
pub struct Room {
    pub used: Used,
    pub nonzero_cpu_milli: i128,
    pub nonzero_memory: i128,
    pub pods: usize,
    pub ports: BTreeMap<Port, u32>,
}

impl Room {
    pub fn add(&mut self, shape: &Shape) {
        self.used.add(&shape.requests);
        self.nonzero_cpu_milli += i128::from(shape.nonzero_cpu_milli);
        self.nonzero_memory += i128::from(shape.nonzero_memory);
        self.pods += 1;
        for port in &shape.ports {
            *self.ports.entry(port.clone()).or_default() += 1;
        }
    }

    pub fn take(&mut self, shape: &Shape) {
        self.used.take(&shape.requests);
        self.nonzero_cpu_milli -= i128::from(shape.nonzero_cpu_milli);
        self.nonzero_memory -= i128::from(shape.nonzero_memory);
        self.pods -= 1;
        for port in &shape.ports {
            if let Some(uses) = self.ports.get_mut(port) {
                *uses -= 1;
                if *uses == 0 {
                    self.ports.remove(port);
                }
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Spot {
    pub name: Arc<str>,
    /// `None` while pods name a node that is not there.
    pub node: Option<Arc<Node>>,
    pub room: Room,
    pub pods: BTreeMap<Key, Arc<Pod>>,
    /// Pods that wait for room here after a preemption.
    pub nominated: BTreeMap<Key, Arc<Pod>>,
    priorities: BTreeMap<i32, u32>,
}

impl Spot {
    pub fn has_below(&self, priority: i32) -> bool {
        self.priorities.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }

    fn is_empty(&self) -> bool {
        self.node.is_none() && self.pods.is_empty() && self.nominated.is_empty()
    }
}

#[derive(Clone, Debug)]
pub enum Change {
    /// The node came, went, or is different.
    Node(Slot),
    Placed(Slot, Arc<Pod>),
    Gone(Slot, Arc<Pod>),
    /// The pod there takes the same room, but its labels changed, or it is leaving.
    Swapped(Slot, Arc<Pod>, Arc<Pod>),
    /// Somebody no longer waits for room there.
    Unnominated(Slot),
    /// A namespace's labels.
    Namespace,
}

/// What pods on nodes ask of pods to come, by term.
#[derive(Debug, Default)]
pub struct Existing {
    pub key: KeyId,
    /// By domain: how many of them refuse pods that match.
    pub refusals: Vec<i64>,
    /// By domain: the weight with which they attract pods that match.
    pub pull: Vec<i64>,
    refusing: usize,
    pulling: usize,
}

impl Existing {
    pub fn refuses(&self) -> bool {
        self.refusing > 0
    }

    pub fn pulls(&self) -> bool {
        self.pulling > 0
    }
}

#[derive(Debug, Default)]
struct Column {
    of: Vec<Domain>,
    ids: HashMap<String, Domain>,
}

#[derive(Debug, Default)]
pub struct State {
    pub spots: Vec<Spot>,
    by_name: BTreeMap<Arc<str>, Slot>,
    free: Vec<Slot>,
    /// Nodes that are there.
    present: usize,
    places: HashMap<Key, Slot>,
    namespaces: BTreeMap<Arc<str>, BTreeMap<String, String>>,
    keys: BTreeMap<String, KeyId>,
    columns: Vec<Column>,
    existing: BTreeMap<Arc<PodTerm>, Existing>,
    /// Nominations by pod.
    nominations: HashMap<Key, Slot>,
    log: VecDeque<Change>,
    log_start: usize,
}

impl State {
    pub fn present(&self) -> usize {
        self.present
    }

    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.by_name.get(name).copied()
    }

    /// The nodes that are there.
    pub fn nodes(&self) -> impl Iterator<Item = (Slot, &Spot, &Arc<Node>)> {
        self.spots.iter().enumerate().filter_map(|(slot, spot)| Some((slot, spot, spot.node.as_ref()?)))
    }

    pub fn placed(&self, key: &Key) -> Option<(Slot, &Arc<Pod>)> {
        let slot = *self.places.get(key)?;
        Some((slot, self.spots[slot].pods.get(key)?))
    }

    pub fn nomination(&self, key: &Key) -> Option<Slot> {
        self.nominations.get(key).copied()
    }

    pub fn namespace_labels(&self, namespace: &str) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.namespaces.get(namespace).unwrap_or(&NONE)
    }

    /// Whether the term means the pod.
    pub fn meant(&self, term: &PodTerm, pod: &Pod) -> bool {
        term.matches(pod, self.namespace_labels(&pod.key.namespace))
    }

    pub fn existing(&self) -> impl Iterator<Item = (&PodTerm, &Existing)> {
        self.existing.iter().map(|(term, existing)| (&**term, existing))
    }

    // ---- the log

    /// The position after everything that has happened.
    pub fn now(&self) -> usize {
        self.log_start + self.log.len()
    }

    /// What happened since, or `None` when that is no longer kept.
    pub fn since(&self, position: usize) -> Option<impl Iterator<Item = &Change>> {
        let skip = position.checked_sub(self.log_start)?;
        Some(self.log.range(skip.min(self.log.len())..))
    }

    fn note(&mut self, change: Change) {
        self.log.push_back(change);
    }

    /// Forgets what costs more to replay than to make anew.
    pub fn trim(&mut self) {
        let keep = 1024 + self.spots.len() + self.places.len() / 4;
        if self.log.len() > 2 * keep {
            let gone = self.log.len() - keep;
            self.log.drain(..gone);
            self.log_start += gone;
        }
    }

    // ---- nodes and namespaces

    /// Returns whether anything about it is different.
    pub fn set_node(&mut self, node: Node) -> bool {
        let slot = self.slot_for(&node.name);
        let old = self.spots[slot].node.as_ref();
        if old.is_some_and(|old| **old == node) {
            return false;
        }
        let relabelled = old.is_none_or(|old| old.labels != node.labels);
        self.present += usize::from(old.is_none());
        self.spots[slot].node = Some(Arc::new(node));
        if relabelled {
            self.relabel(slot);
        }
        self.note(Change::Node(slot));
        true
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.slot(name) else { return };
        if self.spots[slot].node.take().is_some() {
            self.present -= 1;
            self.relabel(slot);
            self.note(Change::Node(slot));
        }
        self.reclaim(slot);
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        let changed = match labels {
            Some(labels) => {
                let old = self.namespaces.insert(name.into(), labels);
                old.as_ref() != self.namespaces.get(name)
            }
            None => self.namespaces.remove(name).is_some(),
        };
        if changed {
            self.note(Change::Namespace);
        }
    }

    fn slot_for(&mut self, name: &Arc<str>) -> Slot {
        if let Some(slot) = self.slot(name) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.spots.push(Spot::default());
            self.columns.iter_mut().for_each(|column| column.of.push(NOWHERE));
            self.spots.len() - 1
        });
        self.spots[slot].name = name.clone();
        self.by_name.insert(name.clone(), slot);
        slot
    }

    fn reclaim(&mut self, slot: Slot) {
        if self.spots[slot].is_empty() {
            let name = self.spots[slot].name.clone();
            if self.by_name.remove(&name).is_some() {
                self.free.push(slot);
            }
        }
    }

    // ---- topology

    /// Makes the topology keys that `links` name known.
    pub fn learn(&mut self, links: &Links) {
        let terms = links.affinity.iter().chain(&links.anti_affinity).chain(links.preferred.iter().map(|(_, t)| t));
        let spreads = links.spread.iter().chain(&links.spread_preferred);
        let keys = terms.map(|t| &t.topology_key).chain(spreads.map(|s| &s.topology_key));
        for key in keys {
            if !self.keys.contains_key(key) {
                let id = self.columns.len();
                self.keys.insert(key.clone(), id);
                self.columns.push(Column { of: vec![NOWHERE; self.spots.len()], ids: HashMap::new() });
                (0..self.spots.len()).for_each(|slot| self.domain_anew(id, key, slot));
            }
        }
    }

    /// `None` for a key that nobody has named.
    pub fn key(&self, key: &str) -> Option<KeyId> {
        self.keys.get(key).copied()
    }

    pub fn domain(&self, key: KeyId, slot: Slot) -> Domain {
        self.columns[key].of[slot]
    }

    pub fn domains(&self, key: KeyId) -> usize {
        self.columns[key].ids.len()
    }

    fn domain_anew(&mut self, id: KeyId, key: &str, slot: Slot) {
        let column = &mut self.columns[id];
        let value = self.spots[slot].node.as_ref().and_then(|node| node.labels.get(key));
        column.of[slot] = match value {
            None => NOWHERE,
            Some(value) => match column.ids.get(value) {
                Some(known) => *known,
                None => {
                    let next = column.ids.len() as Domain;
                    column.ids.insert(value.clone(), next);
                    next
                }
            },
        };
    }

    fn relabel(&mut self, slot: Slot) {
        let linked: Vec<Arc<Pod>> =
            self.spots[slot].pods.values().filter(|pod| pod.shape.links.is_some()).cloned().collect();
        linked.iter().for_each(|pod| self.count_links(slot, pod, -1));
        for (key, id) in self.keys.clone() {
            self.domain_anew(id, &key, slot);
        }
        linked.iter().for_each(|pod| self.count_links(slot, pod, 1));
    }

    // ---- pods

    /// Books a pod on the node of that name, there or not. It is not anywhere else from then on.
    pub fn place(&mut self, pod: Arc<Pod>, node: &Arc<str>) -> Slot {
        if let Some(slot) = self.swap(&pod, node) {
            return slot;
        }
        self.unplace(&pod.key);
        self.nominate(&pod, None);
        if let Some(links) = &pod.shape.links {
            self.learn(links);
        }
        let slot = self.slot_for(node);
        let spot = &mut self.spots[slot];
        spot.room.add(&pod.shape);
        *spot.priorities.entry(pod.priority()).or_default() += 1;
        spot.pods.insert(pod.key.clone(), pod.clone());
        self.places.insert(pod.key.clone(), slot);
        self.count_links(slot, &pod, 1);
        self.note(Change::Placed(slot, pod));
        slot
    }

    /// Replaces a pod by itself as it is now, where that changes nothing about the room it takes.
    fn swap(&mut self, pod: &Arc<Pod>, node: &Arc<str>) -> Option<Slot> {
        let (slot, old) = self.placed(&pod.key)?;
        if self.spots[slot].name != *node || old.shape != pod.shape || old.uid != pod.uid {
            return None;
        }
        let old = old.clone();
        if old.labels != pod.labels || old.leaving != pod.leaving {
            self.note(Change::Swapped(slot, old, pod.clone()));
        }
        self.spots[slot].pods.insert(pod.key.clone(), pod.clone());
        Some(slot)
    }

    pub fn unplace(&mut self, key: &Key) -> Option<Arc<Pod>> {
        let slot = self.places.remove(key)?;
        let spot = &mut self.spots[slot];
        let pod = spot.pods.remove(key)?;
        spot.room.take(&pod.shape);
        if let Some(count) = spot.priorities.get_mut(&pod.priority()) {
            *count -= 1;
            if *count == 0 {
                spot.priorities.remove(&pod.priority());
            }
        }
        self.count_links(slot, &pod, -1);
        self.note(Change::Gone(slot, pod.clone()));
        self.reclaim(slot);
        Some(pod)
    }

    fn count_links(&mut self, slot: Slot, pod: &Arc<Pod>, sign: i64) {
        let Some(links) = pod.shape.links.clone() else { return };
        for term in &links.anti_affinity {
            self.count_term(slot, term, sign, |existing, domain, sign| {
                existing.refusing = existing.refusing.saturating_add_signed(sign as isize);
                bump(&mut existing.refusals, domain, sign);
            });
        }
        let required = links.affinity.iter().map(|term| (1, term));
        for (weight, term) in required.chain(links.preferred.iter().map(|(weight, term)| (*weight, term))) {
            self.count_term(slot, term, sign, |existing, domain, sign| {
                existing.pulling = existing.pulling.saturating_add_signed(sign as isize);
                bump(&mut existing.pull, domain, sign * weight);
            });
        }
    }

    fn count_term(&mut self, slot: Slot, term: &Arc<PodTerm>, sign: i64, count: impl Fn(&mut Existing, Domain, i64)) {
        let Some(key) = self.key(&term.topology_key) else { return };
        let domain = self.domain(key, slot);
        if !self.existing.contains_key(term) {
            self.existing.insert(term.clone(), Existing { key, ..Existing::default() });
        }
        let Some(existing) = self.existing.get_mut(term) else { return };
        count(existing, domain, sign);
        if existing.refusing == 0 && existing.pulling == 0 {
            self.existing.remove(term);
        }
    }

    /// Keeps room on a node in mind for a pod that has no place yet; `None` ends that.
    pub fn nominate(&mut self, pod: &Arc<Pod>, node: Option<&Arc<str>>) {
        let old = self.nominations.get(&pod.key).copied();
        let new = node.map(|node| self.slot_for(node));
        if let Some(old) = old.filter(|old| Some(*old) != new) {
            self.spots[old].nominated.remove(&pod.key);
            self.nominations.remove(&pod.key);
            self.note(Change::Unnominated(old));
            self.reclaim(old);
        }
        if let Some(new) = new {
            self.spots[new].nominated.insert(pod.key.clone(), pod.clone());
            self.nominations.insert(pod.key.clone(), new);
        }
    }
}

fn bump(counts: &mut Vec<i64>, domain: Domain, by: i64) {
    if domain == NOWHERE {
        return;
    }
    let domain = domain as usize;
    if counts.len() <= domain {
        counts.resize(domain + 1, 0);
    }
    counts[domain] += by;
}
