//! Which waiting pods a change could help. A change that cannot is not held against anybody; one that could is held against a
//! class of pods, not each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fit::{Regards, has_room};
use super::model::{Pod, PodTerm, Shape};
use super::parked::{Class, Wake};
use super::state::{Change, Slot, State};

/// What happened, as far as it may help somebody, each with its last position in the log.
pub struct News<'a> {
    pub nodes: BTreeMap<Slot, usize>,
    /// Where pods went away.
    pub freed: BTreeMap<Slot, usize>,
    /// Pods that came, went or changed.
    pods: Vec<(usize, &'a Arc<Pod>)>,
    /// A namespace changed.
    namespaces: Option<usize>,
    /// Too much happened to be told one by one.
    everything: bool,
}

impl<'a> News<'a> {
    pub fn read(state: &'a State, from: usize) -> News<'a> {
        let mut news = News {
            nodes: BTreeMap::new(),
            freed: BTreeMap::new(),
            pods: Vec::new(),
            namespaces: None,
            everything: false,
        };
        let Some(changes) = state.since(from) else {
            news.everything = true;
            return news;
        };
        for (at, change) in (from..).zip(changes) {
            match change {
                Change::Node(slot) => drop(news.nodes.insert(*slot, at)),
                Change::Placed(_, pod) => news.pods.push((at, pod)),
                Change::Gone(slot, pod) => {
                    news.freed.insert(*slot, at);
                    news.pods.push((at, pod));
                }
                Change::Swapped(_, old, new) => news.pods.extend([(at, old), (at, new)]),
                Change::Unnominated(slot) => drop(news.freed.insert(*slot, at)),
                Change::Namespace => news.namespaces = Some(at),
            }
        }
        news
    }

    /// What is new since the class was judged, held against it.
    pub fn judge(&self, state: &State, regards: &Regards, class: &Class, first: &Arc<Pod>, judged_at: usize) -> Wake {
        let could_fit = |slot: &Slot| could_fit(state, regards, &class.shape, *slot);
        let nodes = || self.nodes.iter().filter(|(_, at)| **at >= judged_at).map(|(slot, _)| slot);
        if self.everything || nodes().any(could_fit) {
            return Wake::All;
        }
        if class.own.is_some() {
            // A node that comes, goes or is relabelled moves the pods on it, too, from one domain to another.
            let moved = nodes().next().is_some() || self.namespaces.is_some_and(|at| at >= judged_at);
            let mut pods = self.pods.iter().filter(|(at, _)| *at >= judged_at);
            if moved || pods.any(|(_, pod)| concerns(state, first, pod)) {
                return Wake::All;
            }
        }
        let mut freed = self.freed.iter().filter(|(_, at)| **at >= judged_at).map(|(slot, _)| slot);
        if freed.any(could_fit) { Wake::First } else { Wake::None }
    }
}

/// Whether there is room, or would be without less important pods, as far as the node and its room go.
fn could_fit(state: &State, regards: &Regards, shape: &Shape, slot: Slot) -> bool {
    let spot = &state.spots[slot];
    let (Some(node), Some(regard)) = (&spot.node, regards.get(slot)) else { return false };
    if !regard.admits() {
        return false;
    }
    if has_room(shape, &node.allocatable, &spot.room) {
        return true;
    }
    if !shape.preempts || !spot.has_below(shape.priority) {
        return false;
    }
    let mut room = spot.room.clone();
    let lower = spot.pods.values().filter(|pod| pod.priority() < shape.priority);
    lower.for_each(|pod| room.take(&pod.shape));
    has_room(shape, &node.allocatable, &room)
}

/// Whether a term of either pod means the other.
fn concerns(state: &State, pod: &Pod, other: &Pod) -> bool {
    let by_own = pod.shape.links.as_deref().is_some_and(|links| {
        let mut terms = links.affinity.iter().chain(&links.anti_affinity);
        let mut spreads = links.spread.iter().filter_map(|spread| spread.selector.as_ref());
        terms.any(|term| state.meant(term, other))
            || (*links.namespace == *other.key.namespace && spreads.any(|selector| selector.matches(&other.labels)))
    });
    let by_other = |term: &Arc<PodTerm>| state.meant(term, pod);
    by_own || other.shape.links.as_deref().is_some_and(|links| links.anti_affinity.iter().any(by_other))
}
