//! Who has booked what, and for whom room is kept.
//!
//! A workload has at most one claim on its queue's quota: a booking (its admission is decided, written or confirmed) or a hold (room kept
//! for it while those it preempted are still there). Claims of one group count as one: a cell is used by the *largest* of them, because
//! they are alternatives of one job; cells that only one of them uses are used all the same, because they are really held.
//!
//! Every change is noted, so that only who can benefit is woken. Does not decide anything, and never refuses to book: what the outside
//! admitted is a fact, even above quota.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Amount, Assignment, Cell, GroupId, QueueId, Time, Usage, WorkloadId};
use crate::quota::{NodeId, Tree};

/// How far the admission of a booked workload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Decided here, not yet seen in the API.
    Assumed,
    /// Quota is reserved, checks are not all ready.
    Reserved,
    Admitted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    pub queue: QueueId,
    pub usage: Usage,
    pub stage: Stage,
    /// When the quota was reserved: the newest goes first.
    pub since: Time,
    pub priority: i64,
    pub queued_at: Time,
    /// Breaks ties of time: the later place goes first.
    pub place: u64,
    /// Evicted, its quota not yet cleared.
    pub leaving: bool,
    /// Its room was made by evicting others.
    pub won: bool,
    pub ready: bool,
    pub group: Option<GroupId>,
    pub sibling: u32,
    pub part_of: Option<WorkloadId>,
}

impl Booking {
    pub fn rank(&self, workload: WorkloadId) -> Rank {
        (self.priority, Reverse(self.since), Reverse(self.place), workload)
    }
}

/// Room kept for a workload that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub queue: QueueId,
    pub assignment: Assignment,
    /// Who has to leave first; empty for the head of a strict line, which keeps what it has until the rest comes.
    pub victims: BTreeSet<WorkloadId>,
    pub group: Option<GroupId>,
}

/// Somebody's use of a cell changed, up to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub top: NodeId,
    pub queue: QueueId,
    pub cell: Cell,
    pub grew: bool,
}

/// Order among the booked of a queue: the first is the first to be preempted.
pub type Rank = (i64, Reverse<Time>, Reverse<u64>, WorkloadId);

#[derive(Debug, Clone)]
enum Kind {
    Booked(Booking),
    Held(Hold),
}

#[derive(Debug, Clone)]
struct Claim {
    node: NodeId,
    usage: Usage,
    group: Option<GroupId>,
    kind: Kind,
    /// False while a simulation pretends that it is gone.
    counted: bool,
}

#[derive(Debug, Clone, Default)]
struct QueueBook {
    ranks: BTreeSet<Rank>,
    /// Sums of what is booked, by cell and priority: what preemption could free at most.
    by_priority: BTreeMap<(Cell, i64), Amount>,
}

#[derive(Debug, Clone, Default)]
pub struct Ledger {
    pub tree: Tree,
    claims: Vec<Option<Claim>>,
    groups: BTreeMap<GroupId, Vec<WorkloadId>>,
    queues: Vec<QueueBook>,
    parts: BTreeMap<WorkloadId, BTreeSet<WorkloadId>>,
    holds: BTreeMap<WorkloadId, ()>,
    changes: Vec<Change>,
}

impl Ledger {
    /// Books a workload; what it had booked or held before is given up in the same step.
    pub fn book(&mut self, workload: WorkloadId, booking: Booking) {
        self.release(workload);
        let node = self.tree.queue_node(booking.queue);
        self.tree.settle();
        let book = self.queue_book(booking.queue);
        book.ranks.insert(booking.rank(workload));
        for (cell, amount) in booking.usage.iter() {
            let sum = book.by_priority.entry((cell, booking.priority)).or_default();
            *sum = sum.plus(*amount);
        }
        if let Some(owner) = booking.part_of {
            self.parts.entry(owner).or_default().insert(workload);
        }
        let claim = Claim {
            node,
            usage: booking.usage.clone(),
            group: booking.group,
            kind: Kind::Booked(booking),
            counted: false,
        };
        self.insert(workload, claim);
    }

    /// Keeps room for a workload; what it had booked or held before is given up.
    pub fn hold(&mut self, workload: WorkloadId, hold: Hold, usage: Usage) {
        self.release(workload);
        let node = self.tree.queue_node(hold.queue);
        self.tree.settle();
        self.holds.insert(workload, ());
        let claim = Claim { node, usage, group: hold.group, kind: Kind::Held(hold), counted: false };
        self.insert(workload, claim);
    }

    /// Ends the claim of a workload, if it has one. True if it had.
    pub fn release(&mut self, workload: WorkloadId) -> bool {
        if self.claim(workload).is_none() {
            return false;
        }
        self.uncount(workload, true);
        let Some(claim) = self.claims.get_mut(workload.index()).and_then(Option::take) else {
            return false;
        };
        if let Some(group) = claim.group
            && let Some(members) = self.groups.get_mut(&group)
        {
            members.retain(|member| *member != workload);
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
        match claim.kind {
            Kind::Booked(booking) => {
                self.forget_rank(workload, &booking);
                if let Some(owner) = booking.part_of
                    && let Some(parts) = self.parts.get_mut(&owner)
                {
                    parts.remove(&workload);
                    if parts.is_empty() {
                        self.parts.remove(&owner);
                    }
                }
            }
            Kind::Held(_) => {
                self.holds.remove(&workload);
            }
        }
        true
    }

    /// Changes what a booked workload uses, in place. False if it is not booked.
    pub fn resize(&mut self, workload: WorkloadId, usage: Usage) -> bool {
        let Some(mut booking) = self.booking(workload).cloned() else {
            return false;
        };
        booking.usage = usage;
        self.book(workload, booking);
        true
    }

    /// Changes what does not touch usage: stage, priority, leaving. False if it is not booked.
    pub fn amend(&mut self, workload: WorkloadId, change: impl FnOnce(&mut Booking)) -> bool {
        let Some(Claim { kind: Kind::Booked(booking), .. }) =
            self.claims.get_mut(workload.index()).and_then(Option::as_mut)
        else {
            return false;
        };
        let before = booking.clone();
        change(booking);
        let after = booking.clone();
        debug_assert!(before.usage == after.usage && before.queue == after.queue && before.group == after.group);
        if before.rank(workload) != after.rank(workload) {
            self.forget_rank(workload, &before);
            let book = self.queue_book(after.queue);
            book.ranks.insert(after.rank(workload));
            for (cell, amount) in after.usage.iter() {
                let sum = book.by_priority.entry((cell, after.priority)).or_default();
                *sum = sum.plus(*amount);
            }
        }
        true
    }

    /// A victim is gone, or will not go after all: it is nobody's victim any more. Answers who waited for it.
    pub fn victim_left(&mut self, victim: WorkloadId) -> Vec<WorkloadId> {
        let holders: Vec<WorkloadId> = self.holds.keys().copied().collect();
        let mut waited = Vec::new();
        for holder in holders {
            if let Some(Claim { kind: Kind::Held(hold), .. }) = self.claims[holder.index()].as_mut()
                && hold.victims.remove(&victim)
            {
                waited.push(holder);
            }
        }
        waited
    }

    pub fn booking(&self, workload: WorkloadId) -> Option<&Booking> {
        match &self.claim(workload)?.kind {
            Kind::Booked(booking) => Some(booking),
            Kind::Held(_) => None,
        }
    }

    pub fn held(&self, workload: WorkloadId) -> Option<&Hold> {
        match &self.claim(workload)?.kind {
            Kind::Held(hold) => Some(hold),
            Kind::Booked(_) => None,
        }
    }

    /// Workloads that room is kept for.
    pub fn holders(&self) -> impl Iterator<Item = WorkloadId> + '_ {
        self.holds.keys().copied()
    }

    /// The booked of a queue, the first to be preempted first.
    pub fn booked(&self, queue: QueueId) -> impl Iterator<Item = (WorkloadId, &Booking)> {
        self.queues
            .get(queue.index())
            .into_iter()
            .flat_map(|book| book.ranks.iter())
            .filter_map(|(.., workload)| Some((*workload, self.booking(*workload)?)))
    }

    /// What the bookings of a queue use, holds aside.
    pub fn usage(&self, queue: QueueId) -> Usage {
        let mut usage = Usage::default();
        let mut groups: BTreeMap<GroupId, Usage> = BTreeMap::new();
        for (_, booking) in self.booked(queue) {
            let sum = match booking.group {
                None => {
                    booking.usage.iter().for_each(|(cell, amount)| usage.add(cell, *amount));
                    continue;
                }
                Some(group) => groups.entry(group).or_default(),
            };
            for (cell, amount) in booking.usage.iter() {
                let own = sum.entry(cell);
                *own = (*own).max(*amount);
            }
        }
        for sum in groups.values() {
            sum.iter().for_each(|(cell, amount)| usage.add(cell, *amount));
        }
        usage
    }

    /// What workloads of the queue with a priority up to this one (or below it) use of a cell.
    pub fn used_by_priority(&self, queue: QueueId, cell: Cell, up_to: i64, inclusive: bool) -> Amount {
        let Some(book) = self.queues.get(queue.index()) else {
            return Amount::ZERO;
        };
        let below = book.by_priority.range((cell, i64::MIN)..=(cell, up_to));
        below
            .filter(|((_, priority), _)| inclusive || *priority < up_to)
            .fold(Amount::ZERO, |sum, (_, amount)| sum.plus(*amount))
    }

    /// What a group already has of a cell through other members that are booked: a member that needs no more than that needs nothing.
    /// Room that is only kept for a member does not count, because it may not be there yet.
    pub fn covered(&self, group: Option<GroupId>, node: NodeId, cell: Cell, except: WorkloadId) -> Amount {
        self.largest_claim(group, node, cell, except, |claim| matches!(claim.kind, Kind::Booked(_)))
    }

    fn largest_claim(
        &self,
        group: Option<GroupId>,
        node: NodeId,
        cell: Cell,
        except: WorkloadId,
        counts: impl Fn(&Claim) -> bool,
    ) -> Amount {
        let Some(members) = group.and_then(|group| self.groups.get(&group)) else {
            return Amount::ZERO;
        };
        let claims = members.iter().filter(|member| **member != except).filter_map(|member| self.claim(*member));
        let claims = claims.filter(|claim| claim.counted && claim.node == node && counts(claim));
        claims.map(|claim| claim.usage.amount(cell)).max().unwrap_or_default()
    }

    /// Members of a group that have a claim.
    pub fn members(&self, group: GroupId) -> &[WorkloadId] {
        self.groups.get(&group).map_or(&[], Vec::as_slice)
    }

    /// The workload and the slices that leave with it.
    pub fn unit(&self, workload: WorkloadId) -> impl Iterator<Item = WorkloadId> + '_ {
        std::iter::once(workload).chain(self.parts.get(&workload).into_iter().flatten().copied())
    }

    /// Pretends that a workload (with its slices) is gone, until `restore`.
    pub fn lift(&mut self, workload: WorkloadId) {
        for part in self.unit(workload).collect::<Vec<_>>() {
            self.uncount(part, false);
        }
    }

    pub fn restore(&mut self, workload: WorkloadId) {
        for part in self.unit(workload).collect::<Vec<_>>() {
            self.count(part, false);
        }
    }

    /// Pretends that a queue uses more (or, with negative amounts, less).
    pub fn pretend(&mut self, node: NodeId, usage: &Usage, sign: i64) {
        for (cell, amount) in usage.iter() {
            self.tree.shift(node, cell, Amount(amount.0 * sign));
        }
    }

    /// What changed since this was last asked.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    fn claim(&self, workload: WorkloadId) -> Option<&Claim> {
        self.claims.get(workload.index())?.as_ref()
    }

    fn insert(&mut self, workload: WorkloadId, claim: Claim) {
        if self.claims.len() <= workload.index() {
            self.claims.resize_with(workload.index() + 1, || None);
        }
        if let Some(group) = claim.group {
            self.groups.entry(group).or_default().push(workload);
        }
        self.claims[workload.index()] = Some(claim);
        self.count(workload, true);
    }

    fn count(&mut self, workload: WorkloadId, noted: bool) {
        self.set_counted(workload, true, noted);
    }

    fn uncount(&mut self, workload: WorkloadId, noted: bool) {
        self.set_counted(workload, false, noted);
    }

    fn set_counted(&mut self, workload: WorkloadId, counted: bool, noted: bool) {
        let Some(claim) = self.claims.get_mut(workload.index()).and_then(Option::as_mut) else {
            return;
        };
        if claim.counted == counted {
            return;
        }
        claim.counted = counted;
        // The usage is moved out and back so that the tree may change meanwhile without a copy.
        let usage = std::mem::take(&mut claim.usage);
        let (node, group) = (claim.node, claim.group);
        let queue = match &claim.kind {
            Kind::Booked(booking) => booking.queue,
            Kind::Held(hold) => hold.queue,
        };
        for (cell, amount) in usage.iter() {
            let more = match group {
                None => *amount,
                Some(_) => amount.minus(self.largest_claim(group, node, cell, workload, |_| true)).or_zero(),
            };
            if more == Amount::ZERO {
                continue;
            }
            let top = self.tree.shift(node, cell, if counted { more } else { Amount(-more.0) });
            if noted {
                self.changes.push(Change { top, queue, cell, grew: counted });
            }
        }
        if let Some(claim) = self.claims[workload.index()].as_mut() {
            claim.usage = usage;
        }
    }

    fn forget_rank(&mut self, workload: WorkloadId, booking: &Booking) {
        let book = self.queue_book(booking.queue);
        book.ranks.remove(&booking.rank(workload));
        for (cell, amount) in booking.usage.iter() {
            let key = (cell, booking.priority);
            if let Some(sum) = book.by_priority.get_mut(&key) {
                *sum = sum.minus(*amount);
                if *sum == Amount::ZERO {
                    book.by_priority.remove(&key);
                }
            }
        }
    }

    fn queue_book(&mut self, queue: QueueId) -> &mut QueueBook {
        if self.queues.len() <= queue.index() {
            self.queues.resize_with(queue.index() + 1, QueueBook::default);
        }
        &mut self.queues[queue.index()]
    }
}

#[cfg(test)]
mod tests;
