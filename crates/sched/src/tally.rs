//! How many wait, how many have quota and how much of it, by queue and by local queue.
//!
//! Kept as things change: a look costs the same however many wait. The members of a group wait as one and have quota as one (a cell is
//! used by the largest of them), and a group that has quota does not wait. What was only decided here and is not confirmed yet counts nowhere: neither does it wait, nor has
//! anybody seen its quota. Says which queues have changed, so that only these are shown again. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Amount, GroupId, LocalId, QueueId, Usage, WorkloadId};

/// How many there are, a group counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub pending: usize,
    /// Quota reserved, admitted or not.
    pub reserving: usize,
    pub admitted: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    pub counts: Counts,
    /// What all who have quota use.
    pub reserved: Usage,
    /// What those of them use who are admitted.
    pub admitted: Usage,
}

/// What one workload adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// None: its local queue leads nowhere.
    pub queue: Option<QueueId>,
    pub local: LocalId,
    pub group: Option<GroupId>,
    pub state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Pending,
    Reserving(Box<Usage>),
    Admitted(Box<Usage>),
}

impl State {
    fn counts(&self) -> Counts {
        match self {
            State::Pending => Counts { pending: 1, ..Counts::default() },
            State::Reserving(_) => Counts { reserving: 1, ..Counts::default() },
            State::Admitted(_) => Counts { reserving: 1, admitted: 1, ..Counts::default() },
        }
    }
}

/// Whose figures have changed, or whose configuration has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changed {
    pub queues: BTreeSet<QueueId>,
    pub locals: BTreeSet<LocalId>,
    /// Queues that may have become active or inactive: what leads to them is to be shown again too.
    pub turned: BTreeSet<QueueId>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    parts: Vec<Option<Part>>,
    queues: Vec<Sums>,
    locals: Vec<Sums>,
    pub changed: Changed,
}

impl Tally {
    /// The workload adds this from now on.
    pub fn set(&mut self, workload: WorkloadId, part: Option<Part>) {
        let at = workload.index();
        if self.parts.len() <= at {
            self.parts.resize_with(at + 1, || None);
        }
        if self.parts[at] == part {
            return;
        }
        for (part, sign) in [(std::mem::replace(&mut self.parts[at], part.clone()), -1), (part, 1)] {
            let Some(part) = part else { continue };
            self.changed.locals.insert(part.local);
            sums(&mut self.locals, part.local.index()).shift(workload, &part, sign);
            if let Some(queue) = part.queue {
                self.changed.queues.insert(queue);
                sums(&mut self.queues, queue.index()).shift(workload, &part, sign);
            }
        }
    }

    /// The queue that a workload is counted as waiting for.
    pub fn waits_for(&self, workload: WorkloadId) -> Option<QueueId> {
        let part = self.parts.get(workload.index())?.as_ref()?;
        part.queue.filter(|_| part.state == State::Pending)
    }

    pub fn queue(&self, queue: QueueId) -> Figures {
        self.queues.get(queue.index()).map_or_else(Figures::default, Sums::figures)
    }

    pub fn local(&self, local: LocalId) -> Figures {
        self.locals.get(local.index()).map_or_else(Figures::default, Sums::figures)
    }
}

fn sums(table: &mut Vec<Sums>, at: usize) -> &mut Sums {
    if table.len() <= at {
        table.resize_with(at + 1, Sums::default);
    }
    &mut table[at]
}

#[derive(Debug, Clone, Default)]
struct Sums {
    counts: Counts,
    reserved: Usage,
    admitted: Usage,
    /// Members of each group, by what they add: the group adds one where any of them does.
    groups: BTreeMap<GroupId, Counts>,
    /// Members of groups that have quota.
    booked: BTreeMap<GroupId, BTreeMap<WorkloadId, State>>,
}

impl Sums {
    fn shift(&mut self, workload: WorkloadId, part: &Part, sign: i64) {
        match part.group {
            None => {
                add(&mut self.counts, part.state.counts(), sign);
                match &part.state {
                    State::Pending => {}
                    State::Reserving(usage) => shift(&mut self.reserved, usage, sign),
                    State::Admitted(usage) => {
                        shift(&mut self.reserved, usage, sign);
                        shift(&mut self.admitted, usage, sign);
                    }
                }
            }
            Some(group) => {
                let members = self.groups.entry(group).or_default();
                let before = once(*members);
                add(members, part.state.counts(), sign);
                let after = once(*members);
                if *members == Counts::default() {
                    self.groups.remove(&group);
                }
                add(&mut self.counts, before, -1);
                add(&mut self.counts, after, 1);
                self.shift_booked(workload, group, &part.state, sign);
            }
        }
    }

    fn shift_booked(&mut self, workload: WorkloadId, group: GroupId, state: &State, sign: i64) {
        if *state == State::Pending {
            return;
        }
        let members = self.booked.entry(group).or_default();
        if sign > 0 {
            members.insert(workload, state.clone());
        } else {
            members.remove(&workload);
        }
        if members.is_empty() {
            self.booked.remove(&group);
        }
    }

    fn figures(&self) -> Figures {
        let mut figures =
            Figures { counts: self.counts, reserved: self.reserved.clone(), admitted: self.admitted.clone() };
        for members in self.booked.values() {
            let (mut reserved, mut admitted) = (Usage::default(), Usage::default());
            for state in members.values() {
                if let State::Reserving(usage) | State::Admitted(usage) = state {
                    raise(&mut reserved, usage);
                }
                if let State::Admitted(usage) = state {
                    raise(&mut admitted, usage);
                }
            }
            shift(&mut figures.reserved, &reserved, 1);
            shift(&mut figures.admitted, &admitted, 1);
        }
        figures
    }
}

/// A group that has quota does not wait: what its other members try for is a better place.
fn once(members: Counts) -> Counts {
    let pending = if members.reserving > 0 { 0 } else { members.pending.min(1) };
    Counts { pending, reserving: members.reserving.min(1), admitted: members.admitted.min(1) }
}

fn add(to: &mut Counts, what: Counts, sign: i64) {
    let one = |to: &mut usize, what: usize| *to = if sign > 0 { *to + what } else { to.saturating_sub(what) };
    one(&mut to.pending, what.pending);
    one(&mut to.reserving, what.reserving);
    one(&mut to.admitted, what.admitted);
}

/// Cells come back to nothing when all who used them are gone.
fn shift(to: &mut Usage, usage: &Usage, sign: i64) {
    for (cell, amount) in usage.iter() {
        to.add(cell, Amount(amount.0.saturating_mul(sign)));
        if to.amount(cell) == Amount::ZERO {
            to.remove(cell);
        }
    }
}

fn raise(to: &mut Usage, usage: &Usage) {
    for (cell, amount) in usage.iter() {
        let own = to.entry(cell);
        *own = (*own).max(*amount);
    }
}
