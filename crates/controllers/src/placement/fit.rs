//! Why a pod does not fit a node: the filters of kube-scheduler, in its order, as typed reasons. The first filter that
//! refuses gives the reason; the one for resources gives all of its reasons.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::model::{Aim, Allocatable, Effect, Node, Shape, Shared, Taint};
use super::state::{Change, Room, Slot, State};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mismatch {
    /// The required affinity names nodes, and not this one.
    NotNamed,
    Unschedulable,
    Taint,
    NodeAffinity,
    Ports,
    TooManyPods,
    Insufficient(Arc<str>),
    SpreadLabel,
    Spread,
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub reasons: Vec<Mismatch>,
    /// Whether it could fit if pods went away.
    pub resolvable: bool,
}

impl Misfit {
    pub fn lasting(reason: Mismatch) -> Misfit {
        Misfit { reasons: vec![reason], resolvable: false }
    }

    pub fn resolvable(reason: Mismatch) -> Misfit {
        Misfit { reasons: vec![reason], resolvable: true }
    }
}

/// What an aim makes of one node, whoever is on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regard {
    pub named: bool,
    pub schedulable: bool,
    pub tolerated: bool,
    pub selected: bool,
    /// The weights of the preferred terms that match.
    pub preference: i64,
    /// Taints with PreferNoSchedule that are not tolerated.
    pub dislikes: i64,
}

impl Regard {
    pub fn of(aim: &Aim, node: &Node) -> Regard {
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".to_string(),
            value: String::new(),
            effect: Effect::NoSchedule,
        };
        let required = aim.required.as_ref();
        let by_affinity = required.is_none_or(|terms| terms.iter().any(|t| t.matches(&node.name, &node.labels)));
        let matching = aim.preferred.iter().filter(|(_, term)| term.matches(&node.name, &node.labels));
        let disliked = node.taints.iter().filter(|t| t.effect == Effect::PreferNoSchedule && !aim.tolerates(t));
        Regard {
            named: aim.names.as_ref().is_none_or(|names| names.contains(&*node.name)),
            schedulable: !node.unschedulable || aim.tolerates(&cordon),
            tolerated: node.taints.iter().filter(|taint| taint.repels()).all(|taint| aim.tolerates(taint)),
            selected: by_affinity && aim.node_selector.iter().all(|r| r.matches(&node.labels)),
            preference: matching.map(|(weight, _)| weight).sum(),
            dislikes: disliked.count() as i64,
        }
    }

    pub fn admits(&self) -> bool {
        self.named && self.schedulable && self.tolerated && self.selected
    }

    pub fn check(&self) -> Result<(), Misfit> {
        Err(Misfit::lasting(match self {
            Regard { named: false, .. } => Mismatch::NotNamed,
            Regard { schedulable: false, .. } => Mismatch::Unschedulable,
            Regard { tolerated: false, .. } => Mismatch::Taint,
            Regard { selected: false, .. } => Mismatch::NodeAffinity,
            _ => return Ok(()),
        }))
    }
}

/// The regard of one aim for every node, kept up to date by the log.
#[derive(Default)]
pub struct Regards {
    by_slot: Vec<Option<Regard>>,
    position: Option<usize>,
}

impl Regards {
    pub fn refresh(&mut self, state: &State, aim: &Aim) {
        let changes = self.position.and_then(|position| state.since(position));
        self.by_slot.resize(state.spots.len(), None);
        let look = |slot: Slot| state.spots[slot].node.as_ref().map(|node| Regard::of(aim, node));
        match changes {
            Some(changes) => {
                let slots: BTreeSet<Slot> =
                    changes.filter_map(|c| if let Change::Node(slot) = c { Some(*slot) } else { None }).collect();
                slots.into_iter().for_each(|slot| self.by_slot[slot] = look(slot));
            }
            None => (0..state.spots.len()).for_each(|slot| self.by_slot[slot] = look(slot)),
        }
        self.position = Some(state.now());
    }

    pub fn get(&self, slot: Slot) -> Option<&Regard> {
        self.by_slot.get(slot)?.as_ref()
    }

    /// Nodes that are there, with their regard.
    pub fn all(&self) -> impl Iterator<Item = (Slot, &Regard)> {
        self.by_slot.iter().enumerate().filter_map(|(slot, regard)| Some((slot, regard.as_ref()?)))
    }
}

/// Host ports, then resources.
pub fn check_room(shape: &Shared<Shape>, allocatable: &Allocatable, room: &Room) -> Result<(), Misfit> {
    if !shape.ports.is_empty() && room.ports.keys().any(|used| shape.ports.iter().any(|port| port.conflicts(used))) {
        return Err(Misfit::resolvable(Mismatch::Ports));
    }
    check_resources(shape, allocatable, room)
}

fn check_resources(shape: &Shape, allocatable: &Allocatable, room: &Room) -> Result<(), Misfit> {
    let mut misfit = Misfit { reasons: Vec::new(), resolvable: true };
    if room.pods as i128 + 1 > i128::from(allocatable.pods) {
        misfit.reasons.push(Mismatch::TooManyPods);
    }
    let mut compare = |name: &dyn Fn() -> Arc<str>, wanted: i64, offered: i64, used: i128| {
        if wanted > 0 && i128::from(wanted) > i128::from(offered) - used {
            misfit.reasons.push(Mismatch::Insufficient(name()));
            misfit.resolvable &= wanted <= offered;
        }
    };
    let (requests, used) = (&shape.requests, &room.used);
    compare(&|| "cpu".into(), requests.cpu_milli, allocatable.cpu_milli, used.cpu_milli);
    compare(&|| "memory".into(), requests.memory, allocatable.memory, used.memory);
    compare(&|| "ephemeral-storage".into(), requests.storage, allocatable.storage, used.storage);
    for (name, wanted) in &requests.extended {
        let offered = allocatable.extended.get(name).copied().unwrap_or(0);
        compare(&|| name.clone(), *wanted, offered, used.extended.get(name).copied().unwrap_or(0));
    }
    if misfit.reasons.is_empty() { Ok(()) } else { Err(misfit) }
}

/// [`check_room`] without the reasons.
pub fn has_room(shape: &Shape, allocatable: &Allocatable, room: &Room) -> bool {
    let enough =
        |wanted: i64, offered: i64, used: i128| wanted <= 0 || i128::from(wanted) <= i128::from(offered) - used;
    let (requests, used) = (&shape.requests, &room.used);
    (room.pods as i128) < i128::from(allocatable.pods)
        && enough(requests.cpu_milli, allocatable.cpu_milli, used.cpu_milli)
        && enough(requests.memory, allocatable.memory, used.memory)
        && enough(requests.storage, allocatable.storage, used.storage)
        && requests.extended.iter().all(|(name, wanted)| {
            let offered = allocatable.extended.get(name).copied().unwrap_or(0);
            enough(*wanted, offered, used.extended.get(name).copied().unwrap_or(0))
        })
        && (shape.ports.is_empty()
            || !room.ports.keys().any(|used| shape.ports.iter().any(|port| port.conflicts(used))))
}
