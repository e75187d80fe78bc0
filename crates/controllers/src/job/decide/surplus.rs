//! Which active pods go when there are too many: those that have got the least far.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::job::observe::{Member, Observed};

/// The positions of the pods to delete: those of an Indexed Job that have no index of it or share one, then as many
/// as `at_least` still asks for.
pub fn choose(observed: &Observed, at_least: usize) -> Vec<usize> {
    let (mut chosen, mut rest) = match observed.spec.indexed {
        true => misplaced(observed),
        false => (Vec::new(), observed.active()),
    };
    if chosen.len() < at_least {
        rest.sort_by(|&a, &b| order(&observed.pods[a], &observed.pods[b]));
        chosen.extend(rest.into_iter().take(at_least - chosen.len()));
    }
    chosen
}

fn misplaced(observed: &Observed) -> (Vec<usize>, Vec<usize>) {
    let (mut chosen, mut rest) = (Vec::new(), Vec::new());
    let mut by_index: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for at in observed.active() {
        match observed.valid_index(&observed.pods[at]) {
            Some(index) => by_index.entry(index).or_default().push(at),
            None => chosen.push(at),
        }
    }
    for mut same in by_index.into_values() {
        same.sort_by(|&a, &b| order(&observed.pods[a], &observed.pods[b]));
        rest.extend(same.pop());
        chosen.append(&mut same);
    }
    (chosen, rest)
}

/// The pod to delete first comes first: without a node, pending, not ready, ready for the shortest time, restarted most
/// often, youngest.
fn order(a: &Member, b: &Member) -> Ordering {
    let assigned = |pod: &Member| !pod.node().is_empty();
    let phase = |pod: &Member| match pod.phase() {
        "Pending" => 0,
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    };
    assigned(a)
        .cmp(&assigned(b))
        .then_with(|| phase(a).cmp(&phase(b)))
        .then_with(|| a.ready.cmp(&b.ready))
        .then_with(|| if a.ready && b.ready { youngest(a.ready_since(), b.ready_since()) } else { Ordering::Equal })
        .then_with(|| b.max_restarts().cmp(&a.max_restarts()))
        .then_with(|| youngest(created(a), created(b)))
        .then_with(|| a.name().cmp(b.name()))
}

fn created(pod: &Member) -> Option<Timestamp> {
    pod.pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// What has no time counts as younger than anything.
fn youngest(a: Option<Timestamp>, b: Option<Timestamp>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.cmp(&a),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}
