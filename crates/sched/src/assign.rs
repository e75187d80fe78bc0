//! Which flavors a workload gets: now, after evicting others, or not yet and what stands in the way.
//!
//! For each pod set (or group of pod sets) and resource group, flavors are tried in order. A flavor is as good as its worst resource; the
//! search goes on past a flavor that would do only where the queue's fungibility says so. What does not fit at full size is tried smaller
//! where the workload allows it.
//!
//! Answers only. Whoever waits gets its watches: for every flavor it might use one cell that is short and how much of it is needed there.
//! Until that much can be had of one of them, asking again would give the same answer.

use std::collections::BTreeMap;

use crate::flavor;
use crate::model::{
    Amount, Assignment, Cell, FlavorId, Fungibility, PodSetAssignment, Preference, Queue, ResourceGroup, ResourceId,
    Shape, Usage,
};
use crate::preempt::{self, Victim};
use crate::reason::{Blocker, Mismatch, Unplaced, Wait};
use crate::world::{Asker, World};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Fits(Assignment),
    Preempts { assignment: Assignment, victims: Vec<Victim>, watches: Vec<Watch> },
    Waits { reason: Wait, watches: Vec<Watch>, aim: Option<Assignment> },
}

/// Asking again is of no use before this much of the cell can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watch {
    pub cell: Cell,
    pub need: Amount,
}

pub fn decide(world: &mut World, asker: &Asker, shape: &Shape) -> Verdict {
    let full: Vec<u32> = shape.pod_sets.iter().map(|pod_set| pod_set.count).collect();
    let answer = at_counts(world, asker, shape, &full);
    match answer {
        Verdict::Waits { reason, watches, aim } if can_shrink(shape) => {
            smaller(world, asker, shape, &full, reason, watches, aim)
        }
        answer => answer,
    }
}

fn can_shrink(shape: &Shape) -> bool {
    shape.pod_sets.iter().any(|pod_set| pod_set.min_count.is_some_and(|min| min < pod_set.count))
}

/// The largest counts between the full and the minimum ones, all pod sets shrunk in proportion, that fit or have victims.
fn smaller(
    world: &mut World,
    asker: &Asker,
    shape: &Shape,
    full: &[u32],
    reason: Wait,
    mut watches: Vec<Watch>,
    aim: Option<Assignment>,
) -> Verdict {
    let deltas: Vec<u64> = (shape.pod_sets.iter())
        .map(|pod_set| u64::from(pod_set.count.saturating_sub(pod_set.min_count.unwrap_or(pod_set.count))))
        .collect();
    let total: u64 = deltas.iter().sum();
    let counts = |cut: u64| -> Vec<u32> {
        full.iter()
            .zip(&deltas)
            .map(|(full, delta)| full - (u128::from(*delta) * u128::from(cut) / u128::from(total)) as u32)
            .collect()
    };
    let (mut low, mut high) = (0, total + 1);
    let mut found = None;
    while low < high {
        let cut = low + (high - low) / 2;
        match at_counts(world, asker, shape, &counts(cut)) {
            Verdict::Waits { watches: own, .. } => {
                if cut == total {
                    watches = own; // The smallest size needs least, so it is what is watched for.
                }
                low = cut + 1;
            }
            answer => {
                found = Some((cut, answer));
                high = cut;
            }
        }
    }
    match found {
        Some((cut, answer)) if cut == low => answer,
        _ => Verdict::Waits { reason, watches, aim },
    }
}

/// Tries flavors until something fits or victims are found. When the victims for one choice do not suffice together, flavors after it are
/// tried where the search had stopped early.
fn at_counts(world: &mut World, asker: &Asker, shape: &Shape, counts: &[u32]) -> Verdict {
    let mut starts = BTreeMap::new();
    let mut watches: Vec<Watch> = Vec::new();
    let mut first: Option<(Wait, Option<Assignment>)> = None;
    loop {
        let trial = Trial::run(world, asker, shape, counts, &starts);
        let mode = trial.mode;
        let assignment = trial.assignment();
        if mode == Mode::Fit {
            return Verdict::Fits(assignment);
        }
        watches.extend(&trial.watches);
        if mode == Mode::Preempt && !trial.hopeless {
            let extra = trial.extra(world, asker);
            if let Some(victims) = preempt::victims(world, asker, &trial.contested, &extra) {
                return Verdict::Preempts { assignment, victims, watches };
            }
            // Each cell alone could be had, all together not: any change to any of them matters.
            watches.extend(extra.iter().map(|(cell, need)| Watch { cell, need: *need }));
        }
        let (stopped, hopeless) = (trial.stopped_early, trial.hopeless);
        if first.is_none() {
            first = Some((Wait::Unplaced(trial.unplaced), (mode == Mode::Preempt).then_some(assignment)));
        }
        if mode == Mode::NoFit || hopeless || stopped.is_empty() {
            break;
        }
        starts.extend(stopped.into_iter().map(|(key, at)| (key, at + 1)));
    }
    if asker.may_preempt && first.as_ref().is_some_and(|(_, aim)| aim.is_some()) {
        // A flavor was preferred because others could have been evicted for it; they cannot, so what is simply free will do.
        let plain = Asker { may_preempt: false, ..*asker };
        let trial = Trial::run(world, &plain, shape, counts, &BTreeMap::new());
        if trial.mode == Mode::Fit {
            return Verdict::Fits(trial.assignment());
        }
    }
    let (reason, aim) = first.unwrap_or((Wait::Unplaced(Vec::new()), None));
    Verdict::Waits { reason, watches, aim }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    NoFit,
    Preempt,
    Fit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    NoFit,
    NoCandidates,
    Preempt,
    Reclaim,
    Fit,
}

impl Grade {
    fn mode(self) -> Mode {
        match self {
            Grade::NoFit => Mode::NoFit,
            Grade::NoCandidates | Grade::Preempt | Grade::Reclaim => Mode::Preempt,
            Grade::Fit => Mode::Fit,
        }
    }
}

/// How a flavor (or one of its cells) could be had, and from how far up its quota comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Merit {
    grade: Grade,
    level: u32,
}

impl Merit {
    const BEST: Merit = Merit { grade: Grade::Fit, level: 0 };

    fn preferred_to(self, other: Merit, preference: Preference) -> bool {
        if self.grade == Grade::NoFit || other.grade == Grade::NoFit {
            return self.grade != Grade::NoFit;
        }
        let (hopeless, other_hopeless) = (self.grade == Grade::NoCandidates, other.grade == Grade::NoCandidates);
        if hopeless != other_hopeless {
            return other_hopeless;
        }
        match preference {
            Preference::BorrowingOverPreemption => (other.grade, self.level) < (self.grade, other.level),
            Preference::PreemptionOverBorrowing => (self.level, other.grade) < (other.level, self.grade),
        }
    }

    fn try_next(self, fungibility: Fungibility) -> bool {
        match self.grade {
            Grade::NoFit | Grade::NoCandidates => true,
            Grade::Preempt | Grade::Reclaim if fungibility.try_next_when_preempting => true,
            _ => self.level > 0 && fungibility.try_next_when_borrowing,
        }
    }
}

/// Which flavor list: of which pod set group, for which resource group.
type Scan = (usize, usize);

struct Trial<'a> {
    shape: &'a Shape,
    counts: &'a [u32],
    /// Of each pod set: the flavor of each resource and the whole pod set's request.
    flavors: Vec<Vec<(ResourceId, FlavorId)>>,
    requests: Vec<Vec<(ResourceId, Amount)>>,
    usage: Usage,
    mode: Mode,
    borrowing: u32,
    contested: Vec<Cell>,
    unplaced: Vec<Unplaced>,
    watches: Vec<Watch>,
    /// Some resource group has only flavors without candidates: evicting others is not worth a search.
    hopeless: bool,
    /// There is more than one pod set to find flavors for.
    several: bool,
    stopped_early: Vec<(Scan, usize)>,
}

struct Found {
    flavor: FlavorId,
    merit: Merit,
    cells: Vec<(ResourceId, Merit)>,
}

impl Found {
    /// The merit says how the flavor compares with others, and a preference for preemption may count a borrowed cell as the worse one.
    /// What has to be done for the flavor is decided by the cell that needs most.
    fn worst(&self) -> Grade {
        self.cells.iter().map(|(_, merit)| merit.grade).min().unwrap_or(Grade::Fit)
    }
}

impl<'a> Trial<'a> {
    fn run(
        world: &mut World,
        asker: &Asker,
        shape: &'a Shape,
        counts: &'a [u32],
        starts: &BTreeMap<Scan, usize>,
    ) -> Trial<'a> {
        let mut trial = Trial {
            shape,
            counts,
            flavors: vec![Vec::new(); counts.len()],
            requests: Vec::with_capacity(counts.len()),
            usage: Usage::default(),
            mode: Mode::Fit,
            borrowing: 0,
            contested: Vec::new(),
            unplaced: Vec::new(),
            watches: Vec::new(),
            hopeless: false,
            several: false,
            stopped_early: Vec::new(),
        };
        let Some(queue) = world.queue(asker.queue).cloned() else {
            trial.mode = Mode::NoFit;
            return trial;
        };
        let covers_pods = queue.group_of(ResourceId::PODS).is_some();
        for (pod_set, count) in shape.pod_sets.iter().zip(counts) {
            let mut requests: Vec<(ResourceId, Amount)> =
                pod_set.requests.iter().map(|(resource, amount)| (*resource, amount.times(*count))).collect();
            requests.retain(|(resource, _)| *resource != ResourceId::PODS);
            if covers_pods {
                requests.push((ResourceId::PODS, Amount(i64::from(*count))));
            }
            requests.sort();
            trial.requests.push(requests);
        }
        let groups = pod_set_groups(shape);
        trial.several = groups.len() > 1;
        for (at, members) in groups.into_iter().enumerate() {
            if !trial.place(world, asker, &queue, at, &members, starts) {
                trial.mode = Mode::NoFit;
                break;
            }
        }
        trial
    }

    /// Finds flavors for pod sets that go together. False if one of their resources can have none.
    fn place(
        &mut self,
        world: &mut World,
        asker: &Asker,
        queue: &Queue,
        at: usize,
        members: &[usize],
        starts: &BTreeMap<Scan, usize>,
    ) -> bool {
        let mut totals: Vec<(ResourceId, Amount)> = Vec::new();
        for &member in members {
            for &(resource, amount) in &self.requests[member] {
                match totals.iter_mut().find(|(own, _)| *own == resource) {
                    Some((_, sum)) => *sum = sum.plus(amount),
                    None => totals.push((resource, amount)),
                }
            }
        }
        totals.sort();
        let mut chosen: Vec<(ResourceId, FlavorId)> = Vec::new();
        let mut unplaced = Unplaced { pod_set: members[0], blockers: Vec::new(), groups: Vec::new() };
        for &(resource, amount) in &totals {
            let Some(group_at) = queue.groups.iter().position(|group| group.resources.contains(&resource)) else {
                if amount == Amount::ZERO || world.settings.ignore_undeclared {
                    continue;
                }
                let blocker = Blocker::NotCovered { resource };
                self.unplaced =
                    vec![Unplaced { pod_set: members[0], blockers: vec![blocker], groups: vec![usize::MAX] }];
                self.watches.clear();
                return false;
            };
            if chosen.iter().any(|(own, _)| *own == resource) {
                continue;
            }
            let scan = Scanner {
                asker,
                queue,
                members,
                totals: &totals,
                scan: (at, group_at),
                group: &queue.groups[group_at],
            };
            match scan.run(world, self, starts, &mut unplaced) {
                Some(found) => {
                    for (resource, merit) in &found.cells {
                        chosen.push((*resource, found.flavor));
                        self.borrowing = self.borrowing.max(merit.level);
                        if merit.grade != Grade::Fit {
                            self.contested.push(Cell::new(found.flavor, *resource));
                        }
                    }
                    self.mode = self.mode.min(found.worst().mode());
                }
                None => {
                    self.unplaced = vec![unplaced];
                    return false;
                }
            }
        }
        for &member in members {
            for &(resource, amount) in &self.requests[member] {
                if let Some((_, flavor)) = chosen.iter().find(|(own, _)| *own == resource) {
                    self.flavors[member].push((resource, *flavor));
                    if amount > Amount::ZERO {
                        self.usage.add(Cell::new(*flavor, resource), amount);
                    }
                }
            }
        }
        if !unplaced.blockers.is_empty() {
            self.unplaced.push(unplaced);
        }
        true
    }

    fn assignment(&self) -> Assignment {
        let pod_sets = (self.counts.iter().zip(&self.flavors).zip(&self.requests))
            .map(|((count, flavors), requests)| PodSetAssignment {
                count: *count,
                flavors: flavors.clone(),
                usage: (requests.iter().copied())
                    .filter(|(resource, _)| flavors.iter().any(|(own, _)| own == resource))
                    .collect(),
            })
            .collect();
        Assignment { pod_sets, usage: self.usage.clone(), borrowing: self.borrowing }
    }

    fn extra(&self, world: &World, asker: &Asker) -> Usage {
        extra(world, asker, &self.usage)
    }
}

/// What an assignment adds to what the workload's group uses already.
pub fn extra(world: &World, asker: &Asker, usage: &Usage) -> Usage {
    let covered = |cell| world.ledger.covered(asker.group, asker.node, cell, asker.workload);
    let more = usage.iter().map(|(cell, amount)| (cell, amount.minus(covered(cell)).or_zero()));
    more.filter(|(_, amount)| *amount > Amount::ZERO).collect()
}

/// Pod sets that get the same flavors, in order of their first.
fn pod_set_groups(shape: &Shape) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::with_capacity(shape.pod_sets.len());
    for (at, pod_set) in shape.pod_sets.iter().enumerate() {
        let same = |group: &&mut Vec<usize>| pod_set.group.is_some() && shape.pod_sets[group[0]].group == pod_set.group;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

/// One walk through the flavors of a resource group.
struct Scanner<'a> {
    asker: &'a Asker,
    queue: &'a Queue,
    members: &'a [usize],
    totals: &'a [(ResourceId, Amount)],
    scan: Scan,
    group: &'a ResourceGroup,
}

impl Scanner<'_> {
    fn run(
        &self,
        world: &mut World,
        trial: &mut Trial,
        starts: &BTreeMap<Scan, usize>,
        unplaced: &mut Unplaced,
    ) -> Option<Found> {
        let start = starts.get(&self.scan).copied().unwrap_or(0);
        let mut best: Option<Found> = None;
        let mut watches = Vec::new();
        let mut blockers = Vec::new();
        for (at, &id) in self.group.flavors.iter().enumerate().skip(start) {
            if let Some(because) = self.mismatch(world, trial.shape, id) {
                blockers.push(Blocker::Mismatch { flavor: id, because });
                continue;
            }
            let found = self.try_flavor(world, trial, id, &mut watches, &mut blockers);
            if !found.merit.try_next(self.queue.fungibility) {
                if at + 1 < self.group.flavors.len() && found.worst() != Grade::Fit {
                    trial.stopped_early.push((self.scan, at));
                }
                best = Some(found);
                break;
            }
            let preferred = match &best {
                None => found.merit.grade != Grade::NoFit,
                Some(best) => found.merit.preferred_to(best.merit, self.queue.fungibility.preference),
            };
            if preferred {
                best = Some(found);
            }
        }
        let grade = best.as_ref().map_or(Grade::NoFit, Found::worst);
        let blocking = matches!(grade, Grade::NoFit | Grade::NoCandidates);
        if blocking && !trial.hopeless && !trial.several {
            // Nothing else matters until this resource group has a flavor.
            trial.watches.clear();
            trial.stopped_early.clear();
        }
        // Which flavor one pod set gets decides what is left for the next, so with several of them each flavor that is short matters.
        if trial.several || (grade != Grade::Fit && !trial.hopeless) {
            trial.watches.extend(watches);
        }
        if grade != Grade::Fit {
            trial.hopeless |= blocking;
            unplaced.groups.extend(std::iter::repeat_n(self.scan.1, blockers.len()));
            unplaced.blockers.extend(blockers);
        }
        best
    }

    fn mismatch(&self, world: &World, shape: &Shape, id: FlavorId) -> Option<Mismatch> {
        if shape.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&id)) {
            return Some(Mismatch::NotAllowed);
        }
        let Some(flavor) = world.flavor(id) else {
            return Some(Mismatch::NotFound);
        };
        self.members.iter().find_map(|member| {
            let pod_set = &shape.pod_sets[*member];
            let pinned = pod_set.pinned.iter().find(|(resource, _)| self.group.resources.contains(resource));
            if let Some((_, to)) = pinned
                && *to != id
            {
                return Some(Mismatch::PinnedTo(Some(*to)));
            }
            flavor::mismatch(flavor, pod_set)
        })
    }

    fn try_flavor(
        &self,
        world: &mut World,
        trial: &Trial,
        flavor: FlavorId,
        watches: &mut Vec<Watch>,
        blockers: &mut Vec<Blocker>,
    ) -> Found {
        let mut found = Found { flavor, merit: Merit::BEST, cells: Vec::new() };
        let mut watched = false;
        for &(resource, request) in self.totals.iter().filter(|(resource, _)| self.group.resources.contains(resource)) {
            let cell = Cell::new(flavor, resource);
            let earlier = trial.usage.amount(cell);
            let skip_search = found.merit.grade == Grade::NoFit;
            let (merit, blocker) = self.try_cell(world, cell, earlier, request, skip_search);
            blockers.extend(blocker);
            if matches!(merit.grade, Grade::NoFit | Grade::NoCandidates) && !watched {
                watches.extend(self.watch(world, cell, request));
                watched = true;
            }
            if found.merit.preferred_to(merit, self.queue.fungibility.preference) {
                found.merit = merit;
            }
            found.cells.push((resource, merit));
        }
        if matches!(found.worst(), Grade::Preempt | Grade::Reclaim) {
            // Each cell could be had, together or in time perhaps not: a change to any of them matters.
            let requests = self.totals.iter().filter(|(resource, _)| self.group.resources.contains(resource));
            watches.extend(
                requests.filter_map(|(resource, request)| self.watch(world, Cell::new(flavor, *resource), *request)),
            );
        }
        found
    }

    /// What earlier pod sets take of the cell may change with their flavor, so only this one's own request is sure to be needed.
    fn watch(&self, world: &World, cell: Cell, request: Amount) -> Option<Watch> {
        let covered = world.ledger.covered(self.asker.group, self.asker.node, cell, self.asker.workload);
        let need = request.minus(covered).or_zero();
        (need <= world.ledger.tree.potential(self.asker.node, cell)).then_some(Watch { cell, need })
    }

    fn try_cell(
        &self,
        world: &mut World,
        cell: Cell,
        earlier: Amount,
        request: Amount,
        skip_search: bool,
    ) -> (Merit, Option<Blocker>) {
        let node = self.asker.node;
        let covered = world.ledger.covered(self.asker.group, node, cell, self.asker.workload);
        let tree = &world.ledger.tree;
        let total = earlier.plus(request);
        let maximum = tree.potential(node, cell).min(Amount::LARGEST_REQUEST);
        if total > maximum {
            let blocker = Blocker::ExceedsMaximum { cell, earlier, request, maximum };
            return (Merit { grade: Grade::NoFit, level: 0 }, Some(blocker));
        }
        let need = total.minus(covered).or_zero();
        let (level, may_reclaim) = tree.height_that_fits(node, cell, need);
        let available = tree.available(node, cell);
        if need <= available {
            return (Merit { grade: Grade::Fit, level }, None);
        }
        let blocker = Some(Blocker::ShortOf { cell, missing: need.minus(available) });
        let may_preempt = tree.quota(node, cell).nominal >= need
            || may_reclaim
            || preempt::preempts_while_borrowing(world, self.queue);
        if !self.asker.may_preempt || !may_preempt || skip_search {
            return (Merit { grade: Grade::NoFit, level }, blocker);
        }
        (simulate(world, self.asker, cell, need, level), blocker)
    }
}

/// Could this much of one cell be had by evicting others, and would the queue borrow then?
fn simulate(world: &mut World, asker: &Asker, cell: Cell, need: Amount, level: u32) -> Merit {
    let hopeless = Merit { grade: Grade::NoCandidates, level };
    let free = world.ledger.tree.free(asker.node, cell);
    if need > free.plus(preempt::most_to_gain(world, asker, cell, need)) {
        return hopeless;
    }
    let extra: Usage = [(cell, need)].into_iter().collect();
    let Some(victims) = preempt::victims(world, asker, &[cell], &extra) else {
        return hopeless;
    };
    victims.iter().for_each(|victim| world.ledger.lift(victim.workload));
    let (level, _) = world.ledger.tree.height_that_fits(asker.node, cell, need);
    victims.iter().for_each(|victim| world.ledger.restore(victim.workload));
    let own = victims.iter().any(|victim| victim.queue == asker.queue);
    Merit { grade: if own { Grade::Preempt } else { Grade::Reclaim }, level }
}
