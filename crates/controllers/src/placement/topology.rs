//! What pods ask about other pods: affinity, anti-affinity and even spreading over topologies.
//!
//! A [`Tally`] counts, for one shape and by domain, the pods that its terms mean; the log keeps it up to date. [`Stand`] is
//! that for one pod, together with the pods that refuse it, and can be asked "what if these pods were gone".

use std::sync::Arc;

use super::fit::{Misfit, Mismatch, Regards};
use super::model::{Links, Pod, Shape, Spread};
use super::score;
use super::state::{Change, Domain, KeyId, NOWHERE, Slot, State};

/// Hosts are counted one by one when spreading is only preferred.
const HOSTNAME: &str = "kubernetes.io/hostname";

#[derive(Clone, Default)]
pub struct Tally {
    position: Option<usize>,
    /// For each required term: pods that all required terms mean.
    affinity: Vec<Counts>,
    /// For each term: pods that it means.
    anti: Vec<Counts>,
    /// Likewise, times the weight.
    pull: Vec<Counts>,
    spread: Vec<SpreadCounts>,
    spread_preferred: Vec<SpreadCounts>,
}

#[derive(Clone)]
struct Counts {
    key: KeyId,
    by_domain: Vec<i64>,
    weight: i64,
}

#[derive(Clone)]
struct SpreadCounts {
    key: KeyId,
    by_domain: Vec<i64>,
    /// Nodes that count, by domain.
    nodes: Vec<u32>,
}

impl Counts {
    fn new(state: &State, key: &str, weight: i64) -> Option<Counts> {
        let key = state.key(key)?;
        Some(Counts { key, by_domain: vec![0; state.domains(key)], weight })
    }

    fn bump(&mut self, state: &State, slot: Slot, by: i64) {
        add(&mut self.by_domain, state.domain(self.key, slot), by * self.weight);
    }

    fn at(&self, domain: Domain) -> i64 {
        self.by_domain.get(domain as usize).copied().unwrap_or(0)
    }
}

fn add(counts: &mut Vec<i64>, domain: Domain, by: i64) {
    if domain == NOWHERE {
        return;
    }
    let domain = domain as usize;
    if counts.len() <= domain {
        counts.resize(domain + 1, 0);
    }
    counts[domain] += by;
}

impl Tally {
    pub fn refresh(&mut self, state: &State, regards: &Regards, shape: &Shape) {
        let Some(links) = shape.links.as_deref() else { return };
        let mut pods = Vec::new();
        let replay = self.position.and_then(|position| state.since(position)).is_some_and(|changes| {
            for change in changes {
                match change {
                    Change::Node(_) | Change::Namespace => return false,
                    Change::Placed(slot, pod) => pods.push((*slot, pod, 1)),
                    Change::Gone(slot, pod) => pods.push((*slot, pod, -1)),
                    Change::Swapped(slot, old, new) => pods.extend([(*slot, old, -1), (*slot, new, 1)]),
                    Change::Unnominated(_) => {}
                }
            }
            true
        });
        if replay {
            pods.into_iter().for_each(|(slot, pod, by)| self.count(state, regards, links, slot, pod, by));
        } else {
            *self = Tally::anew(state, regards, links);
        }
        self.position = Some(state.now());
    }

    fn anew(state: &State, regards: &Regards, links: &Links) -> Tally {
        let counts = |key: &str, weight| Counts::new(state, key, weight);
        let mut tally = Tally {
            position: None,
            affinity: links.affinity.iter().filter_map(|t| counts(&t.topology_key, 1)).collect(),
            anti: links.anti_affinity.iter().filter_map(|t| counts(&t.topology_key, 1)).collect(),
            pull: links.preferred.iter().filter_map(|(weight, t)| counts(&t.topology_key, *weight)).collect(),
            spread: spreads(state, regards, &links.spread),
            spread_preferred: spreads(state, regards, &links.spread_preferred),
        };
        for (slot, spot, _) in state.nodes() {
            spot.pods.values().for_each(|pod| tally.count(state, regards, links, slot, pod, 1));
        }
        tally
    }

    fn count(&mut self, state: &State, regards: &Regards, links: &Links, slot: Slot, pod: &Arc<Pod>, by: i64) {
        if state.spots[slot].node.is_none() {
            return;
        }
        if !links.affinity.is_empty() && links.affinity.iter().all(|term| state.meant(term, pod)) {
            self.affinity.iter_mut().for_each(|counts| counts.bump(state, slot, by));
        }
        for (term, counts) in links.anti_affinity.iter().zip(&mut self.anti) {
            if state.meant(term, pod) {
                counts.bump(state, slot, by);
            }
        }
        for ((_, term), counts) in links.preferred.iter().zip(&mut self.pull) {
            if state.meant(term, pod) {
                counts.bump(state, slot, by);
            }
        }
        if *links.namespace == *pod.key.namespace && !pod.leaving {
            let required = links.spread.iter().zip(&mut self.spread);
            count_spread(state, regards, required.collect(), slot, pod, by);
            let preferred = links.spread_preferred.iter().zip(&mut self.spread_preferred);
            count_spread(state, regards, preferred.collect(), slot, pod, by);
        }
    }
}

fn count_spread(
    state: &State,
    regards: &Regards,
    spreads: Vec<(&Spread, &mut SpreadCounts)>,
    slot: Slot,
    pod: &Pod,
    by: i64,
) {
    if spreads.iter().any(|(_, counts)| state.domain(counts.key, slot) == NOWHERE) {
        return;
    }
    for (spread, counts) in spreads {
        let selected = spread.selector.as_ref().is_some_and(|s| !s.is_everything() && s.matches(&pod.labels));
        if selected && counts_node(spread, regards, slot) {
            add(&mut counts.by_domain, state.domain(counts.key, slot), by);
        }
    }
}

fn counts_node(spread: &Spread, regards: &Regards, slot: Slot) -> bool {
    let Some(regard) = regards.get(slot) else { return false };
    (!spread.honor_affinity || regard.selected) && (!spread.honor_taints || regard.tolerated)
}

fn spreads(state: &State, regards: &Regards, spreads: &[Spread]) -> Vec<SpreadCounts> {
    let keys: Vec<KeyId> = spreads.iter().filter_map(|spread| state.key(&spread.topology_key)).collect();
    if keys.len() < spreads.len() {
        return Vec::new();
    }
    let complete = |slot: Slot| keys.iter().all(|key| state.domain(*key, slot) != NOWHERE);
    let made = spreads.iter().zip(&keys).map(|(spread, key)| {
        let mut nodes = vec![0; state.domains(*key)];
        for (slot, ..) in state.nodes() {
            if complete(slot) && counts_node(spread, regards, slot) {
                nodes[state.domain(*key, slot) as usize] += 1;
            }
        }
        SpreadCounts { key: *key, by_domain: vec![0; nodes.len()], nodes }
    });
    made.collect()
}

/// The answer for one pod.
#[derive(Clone)]
pub struct Stand {
    tally: Tally,
    /// How many pods that are there refuse it, by domain.
    refused: Vec<Counts>,
    /// How pods that are there attract it, by domain.
    pulled: Vec<Counts>,
    /// The fewest pods of a domain, by constraint; worked out when asked first.
    fewest: Vec<i64>,
}

impl Stand {
    /// `None` for a pod to which nothing of this applies.
    pub fn of(state: &State, tally: Option<&Tally>, pod: &Pod) -> Option<Stand> {
        let mut refused: Vec<Counts> = Vec::new();
        let mut pulled = Vec::new();
        for (term, existing) in state.existing() {
            if !state.meant(term, pod) {
                continue;
            }
            if existing.refuses() {
                refused.push(Counts { key: existing.key, by_domain: existing.refusals.clone(), weight: 1 });
            }
            if existing.pulls() {
                pulled.push(Counts { key: existing.key, by_domain: existing.pull.clone(), weight: 1 });
            }
        }
        if tally.is_none() && refused.is_empty() && pulled.is_empty() {
            return None;
        }
        let mut stand = Stand { tally: tally.cloned().unwrap_or_default(), refused, pulled, fewest: Vec::new() };
        stand.find_fewest(pod);
        Some(stand)
    }

    /// As if `other` came to (`by` 1) or went from (-1) the node at `slot`.
    pub fn change(&mut self, state: &State, regards: &Regards, pod: &Pod, slot: Slot, other: &Arc<Pod>, by: i64) {
        if let Some(links) = pod.shape.links.as_deref() {
            self.tally.count(state, regards, links, slot, other, by);
        }
        for term in other.shape.links.iter().flat_map(|links| &links.anti_affinity) {
            let Some(key) = state.key(&term.topology_key).filter(|_| state.meant(term, pod)) else { continue };
            let known = self.refused.iter().position(|counts| counts.key == key);
            let at = known.unwrap_or_else(|| {
                self.refused.push(Counts { key, by_domain: Vec::new(), weight: 1 });
                self.refused.len() - 1
            });
            self.refused[at].bump(state, slot, by);
        }
        self.find_fewest(pod);
    }

    fn find_fewest(&mut self, pod: &Pod) {
        let Some(links) = pod.shape.links.as_deref() else { return };
        let fewest = links.spread.iter().zip(&self.tally.spread).map(|(spread, counts)| {
            let eligible = counts.nodes.iter().zip(&counts.by_domain).filter(|(nodes, _)| **nodes > 0);
            let (domains, least) = eligible.fold((0, i64::from(i32::MAX)), |(n, least), (_, c)| (n + 1, least.min(*c)));
            if domains < spread.min_domains { 0 } else { least }
        });
        self.fewest = fewest.collect();
    }

    /// Spreading, then affinity, then anti-affinity, then the anti-affinity of those who are there.
    pub fn check(&self, state: &State, pod: &Pod, slot: Slot) -> Result<(), Misfit> {
        if let Some(links) = pod.shape.links.as_deref() {
            self.check_spread(state, links, pod, slot)?;
            self.check_affinity(state, links, pod, slot)?;
            if near(state, &self.tally.anti, slot) > 0 {
                return Err(Misfit::resolvable(Mismatch::AntiAffinity));
            }
        }
        match near(state, &self.refused, slot) > 0 {
            true => Err(Misfit::resolvable(Mismatch::ExistingAntiAffinity)),
            false => Ok(()),
        }
    }

    fn check_spread(&self, state: &State, links: &Links, pod: &Pod, slot: Slot) -> Result<(), Misfit> {
        for ((spread, counts), fewest) in links.spread.iter().zip(&self.tally.spread).zip(&self.fewest) {
            let domain = state.domain(counts.key, slot);
            if domain == NOWHERE {
                return Err(Misfit::lasting(Mismatch::SpreadLabel));
            }
            let itself = i64::from(spread.selector.as_ref().is_some_and(|s| s.matches(&pod.labels)));
            let there = counts.by_domain.get(domain as usize).copied().unwrap_or(0);
            if there + itself - fewest > spread.max_skew {
                return Err(Misfit::resolvable(Mismatch::Spread));
            }
        }
        Ok(())
    }

    fn check_affinity(&self, state: &State, links: &Links, pod: &Pod, slot: Slot) -> Result<(), Misfit> {
        let counts = &self.tally.affinity;
        if links.affinity.is_empty() {
            return Ok(());
        }
        let misfit = Misfit::lasting(Mismatch::Affinity);
        if counts.iter().any(|c| state.domain(c.key, slot) == NOWHERE) {
            return Err(misfit);
        }
        if counts.iter().all(|c| c.at(state.domain(c.key, slot)) > 0) {
            return Ok(());
        }
        // The first of pods that want to be together must be let in.
        let nobody = counts.iter().all(|c| c.by_domain.iter().all(|count| *count <= 0));
        match nobody && links.affinity.iter().all(|term| state.meant(term, pod)) {
            true => Ok(()),
            false => Err(misfit),
        }
    }

    pub fn scores(&self) -> bool {
        !self.pulled.is_empty() || !self.tally.pull.is_empty() || !self.tally.spread_preferred.is_empty()
    }

    /// How much pods there attract the pod; to be compared among the nodes that fit.
    pub fn pull(&self, state: &State, slot: Slot) -> i64 {
        near(state, &self.tally.pull, slot) + near(state, &self.pulled, slot)
    }

    /// What preferred spreading adds to each of the nodes that fit.
    pub fn spread_scores(&self, state: &State, pod: &Pod, fitting: &[Slot]) -> Vec<i64> {
        let Some(links) = pod.shape.links.as_deref().filter(|links| !links.spread_preferred.is_empty()) else {
            return vec![0; fitting.len()];
        };
        let counts = &self.tally.spread_preferred;
        let ignored = |slot: Slot| counts.iter().any(|c| state.domain(c.key, slot) == NOWHERE);
        let taken: Vec<Slot> = fitting.iter().copied().filter(|slot| !ignored(*slot)).collect();
        let weights: Vec<f64> = counts
            .iter()
            .zip(&links.spread_preferred)
            .map(|(c, spread)| {
                let domains: std::collections::BTreeSet<Domain> =
                    taken.iter().map(|slot| state.domain(c.key, *slot)).collect();
                let size = if spread.topology_key == HOSTNAME { taken.len() } else { domains.len() };
                ((size + 2) as f64).ln()
            })
            .collect();
        let raw = |slot: Slot| -> i64 {
            let each = counts.iter().zip(&links.spread_preferred).zip(&weights).map(|((c, spread), weight)| {
                let count = c.by_domain.get(state.domain(c.key, slot) as usize).copied().unwrap_or(0);
                count as f64 * weight + (spread.max_skew - 1) as f64
            });
            each.sum::<f64>().round() as i64
        };
        let scores: Vec<i64> = taken.iter().map(|slot| raw(*slot)).collect();
        let (least, most) =
            (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0).max(0));
        let of = |slot: &Slot| if ignored(*slot) { 0 } else { score::spread(raw(*slot), least, most) };
        fitting.iter().map(of).collect()
    }
}

/// What is counted in the domains of a node. A node without the label is in none.
fn near(state: &State, counts: &[Counts], slot: Slot) -> i64 {
    counts.iter().map(|counts| counts.at(state.domain(counts.key, slot))).sum()
}
