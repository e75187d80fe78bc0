//! One pod looked at against all nodes: which fit, which is best, and what the others lack.

use std::sync::Arc;

use super::fit::{Misfit, Regards, check_room, has_room};
use super::model::{Node, Pod};
use super::score;
use super::state::{Room, Slot, Spot, State};
use super::topology::Stand;

pub struct Look<'a> {
    pub state: &'a State,
    pub regards: &'a Regards,
    /// `None` when no other pod matters.
    pub stand: Option<&'a Stand>,
    pub pod: &'a Arc<Pod>,
}

impl<'a> Look<'a> {
    pub fn check(&self, slot: Slot) -> Result<(), Misfit> {
        let Some((spot, node)) = self.node(slot) else { return Ok(()) };
        if let Some(regard) = self.regards.get(slot) {
            regard.check()?;
        }
        self.check_among_rivals(slot, spot, node, &spot.room, self.stand)
    }

    pub fn node(&self, slot: Slot) -> Option<(&'a Spot, &'a Arc<Node>)> {
        let spot = &self.state.spots[slot];
        Some((spot, spot.node.as_ref()?))
    }

    /// Room and topology, as they are given. Pods at least as important that wait for room there count as there; and it must
    /// fit without them too, since they may go elsewhere.
    pub fn check_among_rivals(
        &self,
        slot: Slot,
        spot: &Spot,
        node: &Node,
        room: &Room,
        stand: Option<&Stand>,
    ) -> Result<(), Misfit> {
        let rivals: Vec<&Arc<Pod>> = self.rivals(spot).collect();
        if !rivals.is_empty() {
            let mut room = room.clone();
            let mut stand = stand.cloned();
            for rival in rivals {
                room.add(&rival.shape);
                if let Some(stand) = &mut stand {
                    stand.change(self.state, self.regards, self.pod, slot, rival, 1);
                }
            }
            self.check_with(slot, node, &room, stand.as_ref())?;
        }
        self.check_with(slot, node, room, stand)
    }

    fn rivals(&self, spot: &'a Spot) -> impl Iterator<Item = &'a Arc<Pod>> {
        let pod = self.pod;
        spot.nominated.values().filter(move |other| other.priority() >= pod.priority() && other.key != pod.key)
    }

    fn check_with(&self, slot: Slot, node: &Node, room: &Room, stand: Option<&Stand>) -> Result<(), Misfit> {
        check_room(&self.pod.shape, &node.allocatable, room)?;
        stand.map_or(Ok(()), |stand| stand.check(self.state, self.pod, slot))
    }

    fn fits(&self, slot: Slot) -> bool {
        let Some((spot, node)) = self.node(slot) else { return false };
        if self.rivals(spot).next().is_some() {
            return self.check(slot).is_ok();
        }
        self.regards.get(slot).is_some_and(|regard| regard.admits())
            && has_room(&self.pod.shape, &node.allocatable, &spot.room)
            && self.stand.is_none_or(|stand| stand.check(self.state, self.pod, slot).is_ok())
    }

    /// The best of all nodes, by looking at each of them.
    pub fn best(&self) -> Option<Slot> {
        let fitting: Vec<Slot> = self.regards.all().map(|(slot, _)| slot).filter(|slot| self.fits(*slot)).collect();
        let regard = |slot: &Slot| self.regards.get(*slot).copied().unwrap_or_default();
        let preference = fitting.iter().map(|slot| regard(slot).preference).max().unwrap_or(0);
        let dislikes = fitting.iter().map(|slot| regard(slot).dislikes).max().unwrap_or(0);
        let others = self.scores_by_others(&fitting);
        let worth = |at: usize| {
            let (spot, node) = self.node(fitting[at])?;
            let regard = regard(&fitting[at]);
            let own = score::regard(regard.preference, regard.dislikes, preference, dislikes);
            Some((-(own + score::room(&self.pod.shape, node, &spot.room) + others[at]), spot.room.pods, fitting[at]))
        };
        (0..fitting.len()).filter_map(worth).min().map(|(_, _, slot)| slot)
    }

    /// What other pods make the fitting nodes worth.
    fn scores_by_others(&self, fitting: &[Slot]) -> Vec<i64> {
        let Some(stand) = self.stand.filter(|stand| stand.scores()) else { return vec![0; fitting.len()] };
        let pulls: Vec<i64> = fitting.iter().map(|slot| stand.pull(self.state, *slot)).collect();
        let (least, most) = (pulls.iter().copied().min().unwrap_or(0), pulls.iter().copied().max().unwrap_or(0));
        let spreads = stand.spread_scores(self.state, self.pod, fitting);
        let both = pulls.iter().zip(&spreads);
        both.map(|(pull, spread)| score::POD_AFFINITY * score::stretch(*pull, least, most) + score::SPREAD * spread)
            .collect()
    }

    /// What each node lacks.
    pub fn misfits(&self) -> Vec<(Slot, Misfit)> {
        let all = self.regards.all().map(|(slot, _)| slot);
        all.filter_map(|slot| Some((slot, self.check(slot).err()?))).collect()
    }
}
