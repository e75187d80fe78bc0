//! The decisions: which pending pod goes where, and why the others wait. A function of what it was told; the same calls give
//! the same decisions.
//!
//! A decision counts as done until [`Planner::set_pod`] shows otherwise or [`Planner::refused`] takes it back. A pod without
//! a place is parked, and looked at again when a change could help it; nothing is tried on a timer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::cache::Cache;
use super::fit::{Misfit, Regards};
use super::index::Index;
use super::look::Look;
use super::model::{Aim, Node, Pod, Shape};
use super::parked::{Class, Order, Parked};
use super::preempt;
use super::reason::{Preemption, Unfit};
use super::state::{Slot, State};
use super::topology::{Stand, Tally};
use super::wake::News;
use crate::runtime::Key;

#[derive(Clone, Debug)]
pub enum Decision {
    Bind {
        pod: Arc<Pod>,
        node: Arc<str>,
    },
    Wait {
        pod: Arc<Pod>,
        unfit: Unfit,
        /// The node to wait for, where that changes: `Some(None)` for none any longer.
        nominate: Option<Option<Arc<str>>>,
        /// Pods to end so that this one fits.
        victims: Vec<Arc<Pod>>,
        /// Less important pods that waited for the same node and have to look elsewhere.
        displaced: Vec<Arc<Pod>>,
    },
}

#[derive(Default)]
pub struct Planner {
    state: State,
    waiting: HashMap<Key, Waiting>,
    queue: BTreeMap<Order, Key>,
    parked: Parked,
    /// Victims that were chosen and have not been seen to go.
    condemned: BTreeMap<Key, Arc<str>>,
    aims: Cache<Aim, Regards>,
    indexes: Cache<Shape, Index>,
    tallies: Cache<Shape, Tally>,
    /// The answer for a class as long as nothing changes.
    memo: HashMap<Class, Unfit>,
    memo_at: usize,
    woken_at: usize,
    arrivals: u64,
    preemptions: usize,
}

struct Waiting {
    pod: Arc<Pod>,
    order: Order,
    at: At,
    /// Woken for this class: if it finds a place, the next of the class may too.
    chain: Option<Class>,
    /// A nomination that was decided and is not yet seen.
    nominated: Option<Option<Arc<str>>>,
}

enum At {
    Queued,
    Parked(Class),
    Bound,
    /// Its binding was refused; it waits to be told when to try again.
    Refused,
}

enum Answer {
    Fits(Slot),
    Unfit { unfit: Unfit, choice: Option<preempt::Choice> },
}

impl Planner {
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How many pods wait to be looked at.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn set_node(&mut self, node: Node) {
        self.state.set_node(node);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.state.remove_node(name);
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        self.state.set_namespace(name, labels);
    }

    /// The pod as it is now.
    pub fn set_pod(&mut self, pod: Pod) {
        let pod = Arc::new(pod);
        let known = self.waiting.get(&pod.key).map(|w| &w.pod).or(self.state.placed(&pod.key).map(|(_, pod)| pod));
        if known.is_some_and(|known| known.uid != pod.uid) {
            self.remove_pod(&pod.key);
        }
        match &pod.node {
            _ if pod.finished => self.remove_pod(&pod.key),
            Some(node) => {
                self.forget(&pod.key);
                let node = node.clone();
                self.state.place(pod, &node);
            }
            None if pod.is_pending() => self.set_pending(pod),
            None => self.remove_pod(&pod.key),
        }
    }

    pub fn remove_pod(&mut self, key: &Key) {
        if let Some(waiting) = self.forget(key) {
            self.state.nominate(&waiting.pod, None);
        }
        self.state.unplace(key);
        self.condemned.remove(key);
    }

    fn set_pending(&mut self, pod: Arc<Pod>) {
        let key = pod.key.clone();
        if let Some(links) = &pod.shape.links {
            self.state.learn(links);
        }
        match self.waiting.get_mut(&key) {
            None => {
                self.arrivals += 1;
                let order = (Reverse(pod.priority()), pod.created, self.arrivals);
                let at = At::Queued;
                self.waiting.insert(key.clone(), Waiting { pod, order, at, chain: None, nominated: None });
                self.queue.insert(order, key.clone());
            }
            Some(waiting) => {
                let same = waiting.pod.asks_the_same(&pod);
                waiting.pod = pod;
                if !same && !matches!(waiting.at, At::Bound) {
                    self.enqueue(&key);
                }
            }
        }
        self.renominate(&key);
    }

    /// Makes the state's nomination what was decided last, or else what the pod says.
    fn renominate(&mut self, key: &Key) {
        let Some(waiting) = self.waiting.get_mut(key) else { return };
        if matches!(waiting.at, At::Bound) {
            return;
        }
        if waiting.nominated.as_ref() == Some(&waiting.pod.nominated) {
            waiting.nominated = None;
        }
        let to = waiting.nominated.clone().unwrap_or_else(|| waiting.pod.nominated.clone());
        self.state.nominate(&waiting.pod, to.as_ref());
    }

    fn forget(&mut self, key: &Key) -> Option<Waiting> {
        let waiting = self.waiting.remove(key)?;
        match &waiting.at {
            At::Queued => drop(self.queue.remove(&waiting.order)),
            At::Parked(class) => self.parked.remove(class, &waiting.order),
            At::Bound | At::Refused => {}
        }
        Some(waiting)
    }

    fn enqueue(&mut self, key: &Key) {
        let Some(mut waiting) = self.forget(key) else { return };
        // A change may have given it another priority.
        waiting.order.0 = Reverse(waiting.pod.priority());
        waiting.at = At::Queued;
        self.queue.insert(waiting.order, key.clone());
        self.waiting.insert(key.clone(), waiting);
    }

    /// The binding was not accepted: the pod is not there, and waits until it changes or [`Planner::retry`].
    pub fn refused(&mut self, key: &Key, uid: &str) {
        let Some(waiting) = self.waiting.get_mut(key) else { return };
        if &*waiting.pod.uid == uid && matches!(waiting.at, At::Bound) {
            waiting.at = At::Refused;
            self.state.unplace(key);
        }
    }

    /// Looks again at a pod that was refused or whose preemption came to nothing.
    pub fn retry(&mut self, key: &Key) {
        if self.waiting.get(key).is_some_and(|waiting| !matches!(waiting.at, At::Bound)) {
            self.enqueue(key);
        }
    }

    /// A victim could not be ended.
    pub fn spared(&mut self, key: &Key) {
        self.condemned.remove(key);
    }

    /// Up to `limit` decisions; none when there is nothing left to decide.
    pub fn decide(&mut self, limit: usize) -> Vec<Decision> {
        let mut decisions = Vec::new();
        loop {
            self.wake();
            if self.queue.is_empty() || decisions.len() >= limit {
                self.state.trim();
                return decisions;
            }
            while decisions.len() < limit {
                let Some((_, key)) = self.queue.pop_first() else { break };
                decisions.extend(self.decide_one(&key));
            }
        }
    }

    fn decide_one(&mut self, key: &Key) -> Option<Decision> {
        let pod = self.waiting.get(key)?.pod.clone();
        let class = self.class(&pod);
        match self.answer(&pod, &class) {
            Answer::Fits(slot) => {
                let node = self.state.spots[slot].name.clone();
                self.state.place(pod.clone(), &node);
                let waiting = self.waiting.get_mut(key)?;
                waiting.at = At::Bound;
                waiting.nominated = None;
                let chain = waiting.chain.take();
                self.wake_next(chain);
                Some(Decision::Bind { pod, node })
            }
            Answer::Unfit { unfit, choice } => Some(self.park(pod, class, unfit, choice)),
        }
    }

    fn wake_next(&mut self, chain: Option<Class>) {
        let Some(class) = chain else { return };
        if let Some(next) = self.parked.first(&class) {
            self.enqueue(&next);
            if let Some(waiting) = self.waiting.get_mut(&next) {
                waiting.chain = Some(class);
            }
        }
    }

    fn park(&mut self, pod: Arc<Pod>, class: Class, unfit: Unfit, choice: Option<preempt::Choice>) -> Decision {
        let node = choice.as_ref().map(|choice| self.state.spots[choice.slot].name.clone());
        let before = self.state.nomination(&pod.key).map(|slot| self.state.spots[slot].name.clone());
        let keeps = matches!(unfit_preemption(&unfit), Some(Preemption::Never | Preemption::Waiting));
        let nominate = if keeps || before == node { None } else { Some(node.clone()) };
        let mut displaced = Vec::new();
        if let Some(choice) = &choice {
            let nominated = self.state.spots[choice.slot].nominated.values();
            displaced = nominated.filter(|other| other.priority() < pod.priority()).cloned().collect();
            for victim in &choice.victims {
                self.condemned.insert(victim.key.clone(), victim.uid.clone());
            }
        }
        for other in &displaced {
            self.nominate(&other.key, None);
            self.enqueue(&other.key);
        }
        if let Some(to) = &nominate {
            self.nominate(&pod.key, to.clone());
        }
        let mut chain = None;
        if let Some(waiting) = self.waiting.get_mut(&pod.key) {
            chain = waiting.chain.take().filter(|chain| *chain != class);
            waiting.at = At::Parked(class.clone());
            self.parked.add(class, waiting.order, pod.clone(), self.state.now());
        }
        self.wake_next(chain);
        let victims = choice.map(|choice| choice.victims).unwrap_or_default();
        Decision::Wait { pod, unfit, nominate, victims, displaced }
    }

    fn nominate(&mut self, key: &Key, to: Option<Arc<str>>) {
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.nominated = Some(to);
            self.renominate(key);
        }
    }

    // ---- where a pod can go

    fn class(&self, pod: &Pod) -> Class {
        let looked_at = pod.shape.links.is_some()
            || self.state.existing().any(|(term, existing)| existing.refuses() && self.state.meant(term, pod));
        let own = looked_at.then(|| (pod.key.namespace.clone(), pod.labels.clone()));
        Class { shape: pod.shape.clone(), own }
    }

    fn answer(&mut self, pod: &Arc<Pod>, class: &Class) -> Answer {
        let nominated = self.state.nomination(&pod.key);
        if self.memo_at != self.state.now() {
            self.memo.clear();
            self.memo_at = self.state.now();
        }
        if nominated.is_none()
            && let Some(unfit) = self.memo.get(class)
        {
            return Answer::Unfit { unfit: unfit.clone(), choice: None };
        }
        let answer = self.answer_anew(pod, nominated);
        if nominated.is_none()
            && let Answer::Unfit { unfit, choice: None } = &answer
        {
            self.memo.insert(class.clone(), unfit.clone());
        }
        answer
    }

    fn answer_anew(&mut self, pod: &Arc<Pod>, nominated: Option<Slot>) -> Answer {
        let nodes = self.state.present();
        if nodes == 0 {
            return Answer::Unfit { unfit: Unfit::NoNodes, choice: None };
        }
        let state = &self.state;
        let regards = self.aims.get(&pod.shape.aim);
        regards.refresh(state, &pod.shape.aim);
        let tally = pod.shape.links.is_some().then(|| {
            let tally = self.tallies.get(&pod.shape);
            tally.refresh(state, regards, &pod.shape);
            &*tally
        });
        let stand = Stand::of(state, tally, pod);
        let look = Look { state, regards, stand: stand.as_ref(), pod };
        if let Some(slot) = nominated.filter(|slot| state.spots[*slot].node.is_some() && look.check(*slot).is_ok()) {
            return Answer::Fits(slot);
        }
        let best = match stand.is_some() {
            true => look.best(),
            false => {
                let index = self.indexes.get(&pod.shape);
                if index.is_not_worth_it(state) {
                    look.best()
                } else {
                    index.refresh(state, regards, &pod.shape);
                    index.best().find(|slot| state.spots[*slot].nominated.is_empty() || look.check(*slot).is_ok())
                }
            }
        };
        match best {
            Some(slot) => Answer::Fits(slot),
            None => unfit(&look, nominated, &self.condemned, &mut self.preemptions),
        }
    }

    // ---- who is looked at again

    fn wake(&mut self) {
        let from = std::mem::replace(&mut self.woken_at, self.state.now());
        if self.parked.is_empty() || from == self.woken_at {
            return;
        }
        let news = News::read(&self.state, from);
        let (state, aims) = (&self.state, &mut self.aims);
        let mut keys = self.parked.woken(|class, first, judged_at| {
            let regards = aims.get(&class.shape.aim);
            regards.refresh(state, &class.shape.aim);
            news.judge(state, regards, class, first, judged_at)
        });
        for (slot, changed_at) in news.nodes.iter().chain(&news.freed) {
            let judged_before = |key: &&Key| match self.waiting.get(*key).map(|waiting| &waiting.at) {
                Some(At::Parked(class)) => self.parked.judged_at(class) <= *changed_at,
                _ => false,
            };
            keys.extend(state.spots[*slot].nominated.keys().filter(judged_before).cloned());
        }
        for key in keys {
            let Some(At::Parked(class)) = self.waiting.get(&key).map(|waiting| &waiting.at) else { continue };
            let class = class.clone();
            self.enqueue(&key);
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.chain = Some(class);
            }
        }
    }
}

fn unfit_preemption(unfit: &Unfit) -> Option<&Preemption> {
    match unfit {
        Unfit::NoNodes | Unfit::Conflict { .. } => None,
        Unfit::Nodes { preemption, .. } => Some(preemption),
    }
}

/// The reasons, and whom to preempt.
fn unfit(look: &Look, nominated: Option<Slot>, condemned: &BTreeMap<Key, Arc<str>>, preemptions: &mut usize) -> Answer {
    let nodes = look.state.present();
    if look.pod.shape.aim.names.as_ref().is_some_and(BTreeSet::is_empty) {
        return Answer::Unfit { unfit: Unfit::Conflict { nodes }, choice: None };
    }
    let misfits = look.misfits();
    let mut lacks = BTreeMap::new();
    for reason in misfits.iter().flat_map(|(_, misfit)| &misfit.reasons) {
        *lacks.entry(reason.clone()).or_default() += 1;
    }
    let mut chosen = None;
    let preemption = if !look.pod.shape.preempts {
        Preemption::Never
    } else if is_waiting(look, nominated, &misfits, condemned) {
        Preemption::Waiting
    } else {
        match preempt::choose(look, &misfits, *preemptions) {
            Ok(choice) => {
                *preemptions += 1;
                let node = look.state.spots[choice.slot].name.to_string();
                let victims = choice.victims.len();
                chosen = Some(choice);
                Preemption::Found { node, victims }
            }
            Err(because) => Preemption::Useless { nodes, because },
        }
    };
    Answer::Unfit { unfit: Unfit::Nodes { nodes, lacks, preemption }, choice: chosen }
}

/// Whether pods that were preempted for this one are still ending on the node it waits for.
fn is_waiting(
    look: &Look,
    nominated: Option<Slot>,
    misfits: &[(Slot, Misfit)],
    condemned: &BTreeMap<Key, Arc<str>>,
) -> bool {
    let Some(slot) = nominated else { return false };
    if misfits.iter().any(|(at, misfit)| *at == slot && !misfit.resolvable) {
        return false;
    }
    let ending = |other: &Arc<Pod>| other.preempted || condemned.get(&other.key) == Some(&other.uid);
    look.state.spots[slot].pods.values().any(|other| other.priority() < look.pod.priority() && ending(other))
}
