//! Which pods of lower priority must go so that a pod fits: kube-scheduler's default preemption, without disruption budgets
//! (there are none to ask).
//!
//! It chooses; it ends nobody.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::fit::Misfit;
use super::look::Look;
use super::model::Pod;
use super::reason::Hindrance;
use super::state::Slot;

/// So many candidates, or a tenth of the nodes if that is more, are enough to choose from.
const ENOUGH: usize = 100;

pub struct Choice {
    pub slot: Slot,
    /// The most important first.
    pub victims: Vec<Arc<Pod>>,
}

/// The best node to make room on, or what stands in the way on each that could be helped.
pub fn choose(look: &Look, misfits: &[(Slot, Misfit)], start: usize) -> Result<Choice, BTreeMap<Hindrance, usize>> {
    let hopeful: Vec<Slot> = misfits.iter().filter(|(_, m)| m.resolvable).map(|(slot, _)| *slot).collect();
    let enough = ENOUGH.max(hopeful.len() / 10);
    let mut candidates = Vec::new();
    let mut hindrances = BTreeMap::new();
    let lost = look.state.present() - hopeful.len();
    if lost > 0 {
        hindrances.insert(Hindrance::NotHelpful, lost);
    }
    for at in 0..hopeful.len() {
        let slot = hopeful[(start + at) % hopeful.len()];
        match victims(look, slot) {
            Ok(victims) => candidates.push(Choice { slot, victims }),
            Err(reasons) => reasons.into_iter().for_each(|why| *hindrances.entry(why).or_default() += 1),
        }
        if candidates.len() >= enough {
            break;
        }
    }
    candidates.into_iter().min_by_key(|choice| (cost(&choice.victims), choice.slot)).ok_or(hindrances)
}

/// Smaller is better: the highest priority among them, then the sum of priorities, the number, and the latest start.
fn cost(victims: &[Arc<Pod>]) -> (i32, i64, usize, Reverse<Option<Timestamp>>) {
    let highest = victims.iter().map(|pod| pod.priority()).max().unwrap_or(i32::MIN);
    let sum = victims.iter().map(|pod| i64::from(pod.priority()) + i64::from(i32::MAX) + 1).sum();
    let first = victims.iter().filter(|pod| pod.priority() == highest).map(|pod| start(pod)).min();
    (highest, sum, victims.len(), Reverse(first))
}

/// A pod that has not started started last.
fn start(pod: &Pod) -> Timestamp {
    pod.started.unwrap_or(Timestamp::MAX)
}

/// The fewest and least important pods on one node whose end makes room.
fn victims(look: &Look, slot: Slot) -> Result<Vec<Arc<Pod>>, Vec<Hindrance>> {
    let Some((spot, node)) = look.node(slot) else { return Err(vec![Hindrance::NotHelpful]) };
    if !spot.has_below(look.pod.priority()) {
        return Err(vec![Hindrance::NoVictims]);
    }
    let mut lower: Vec<Arc<Pod>> =
        spot.pods.values().filter(|other| other.priority() < look.pod.priority()).cloned().collect();
    let mut room = spot.room.clone();
    let mut stand = look.stand.cloned();
    for victim in &lower {
        room.take(&victim.shape);
        if let Some(stand) = &mut stand {
            stand.change(look.state, look.regards, look.pod, slot, victim, -1);
        }
    }
    let still = |misfit: Misfit| misfit.reasons.into_iter().map(Hindrance::Still).collect::<Vec<_>>();
    look.check_among_rivals(slot, spot, node, &room, stand.as_ref()).map_err(still)?;
    // The more important a pod, the sooner it is spared.
    lower.sort_by_key(|pod| (Reverse(pod.priority()), start(pod), pod.key.clone()));
    let mut victims = Vec::new();
    for pod in lower {
        room.add(&pod.shape);
        if let Some(stand) = &mut stand {
            stand.change(look.state, look.regards, look.pod, slot, &pod, 1);
        }
        if look.check_among_rivals(slot, spot, node, &room, stand.as_ref()).is_err() {
            room.take(&pod.shape);
            if let Some(stand) = &mut stand {
                stand.change(look.state, look.regards, look.pod, slot, &pod, -1);
            }
            victims.push(pod);
        }
    }
    if victims.is_empty() { Err(vec![Hindrance::NotHelpful]) } else { Ok(victims) }
}
