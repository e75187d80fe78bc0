//! What must hold in every world: small random worlds, random events, the loop played by a driver that confirms, refuses and evicts.
//!
//! Two references, both slow and obvious: `book` computes quota from the list of what is booked, by the definitions; and a scheduler that
//! is told the same state from scratch looks at everybody, so whoever it would admit or preempt for was not woken when it should have been.

mod book;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use book::Book;
use proptest::prelude::*;
use proptest::test_runner::Config;
use usher_sched::ledger::{Booking, Stage};
use usher_sched::model::*;
use usher_sched::plan::Decision;
use usher_sched::scheduler::{Event, Scheduler};

const QUEUES: u32 = 4;
const COHORTS: u32 = 3;
const FLAVORS: u32 = 2;
const WORKLOADS: u32 = 10;

/// `USHER_SCHED_CASES` times as many worlds as usual.
fn cases(few: u32) -> Config {
    let times = std::env::var("USHER_SCHED_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1u32);
    Config {
        cases: few.saturating_mul(times),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Workload { id: u32, workload: Sketch },
    Queue { id: u32, queue: Queue },
    Cohort { id: u32, cohort: Cohort },
    Finish(u32),
    Release(u32),
    EvictByOthers(u32),
    Refuse(u32),
    RefuseEviction(u32),
    Checks(u32),
    Resize { id: u32, percent: i64 },
    Plan { later: i64 },
}

/// Requests by resource, count, minimum count.
type PodSetSketch = (Vec<(u32, i64)>, u32, Option<u32>);

#[derive(Debug, Clone)]
struct Sketch {
    queue: u32,
    pod_sets: Vec<PodSetSketch>,
    allowed: Option<u32>,
    priority: i64,
    queued_at: i64,
    active: bool,
    requeue_at: Option<i64>,
    gated: bool,
    group: Option<u32>,
    /// Only for members of groups.
    not_yet: bool,
}

fn resource(at: u32) -> ResourceId {
    ResourceId(1 + at)
}

impl Sketch {
    fn lower(&self, id: u32) -> Workload {
        let pod_set = |(requests, count, min): &PodSetSketch| PodSet {
            name: "main".into(),
            count: *count,
            min_count: min.map(|min| min.min(*count)),
            requests: requests
                .iter()
                .map(|(at, amount)| (resource(*at), Amount(*amount)))
                .collect::<BTreeMap<_, _>>()
                .into_iter()
                .collect(),
            ..PodSet::default()
        };
        let shape = Shape {
            pod_sets: self.pod_sets.iter().map(pod_set).collect(),
            allowed: self.allowed.map(|flavor| vec![FlavorId(flavor)]),
        };
        let mut workload = Workload::new(LocalId(self.queue), Arc::new(shape));
        workload.priority = self.priority;
        workload.queued_at = Time(self.queued_at);
        workload.place = u64::from(id);
        workload.active = self.active;
        workload.requeue_at = self.requeue_at.map(Time);
        workload.preemption_gated = self.gated;
        if let Some(group) = self.group {
            // Siblings are alternatives of one job: same priority, same time, one place.
            workload.group = Some(GroupId(group));
            workload.sibling = id;
            workload.place = 100 + u64::from(group);
            workload.priority = i64::from(group);
            workload.queued_at = Time(3);
            workload.local = LocalId(group % QUEUES);
            workload.block = self.not_yet.then_some(Block::NotYet);
        }
        workload
    }
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let pod_set = (prop::collection::vec((0..2u32, 0..6i64), 1..3), 1..4u32, prop::option::weighted(0.2, 1..3u32));
    (
        0..QUEUES,
        prop::collection::vec(pod_set, 1..3),
        prop::option::weighted(0.2, 0..FLAVORS),
        0..3i64,
        0..6i64,
        prop::bool::weighted(0.95),
        prop::option::weighted(0.1, 0..40i64),
        prop::bool::weighted(0.1),
        (prop::option::weighted(0.2, 0..2u32), prop::bool::weighted(0.2)),
    )
        .prop_map(
            |(queue, pod_sets, allowed, priority, queued_at, active, requeue_at, gated, (group, not_yet))| Sketch {
                queue,
                pod_sets,
                allowed,
                priority,
                queued_at,
                active,
                requeue_at,
                gated,
                group,
                not_yet,
            },
        )
}

fn quota() -> impl Strategy<Value = Quota> {
    let limit = || prop::option::weighted(0.3, (0..10i64).prop_map(Amount));
    (0..12i64, limit(), limit()).prop_map(|(nominal, borrowing, lending)| Quota {
        nominal: Amount(nominal),
        borrowing,
        lending,
    })
}

fn quotas() -> impl Strategy<Value = CellMap<Quota>> {
    prop::collection::vec(quota(), (FLAVORS * 2) as usize).prop_map(|quotas| {
        let cells = (0..FLAVORS).flat_map(|flavor| (0..2).map(move |at| Cell::new(FlavorId(flavor), resource(at))));
        cells.zip(quotas).collect()
    })
}

fn queue() -> impl Strategy<Value = Queue> {
    let policies = (0..3u8, 0..3u8, prop::option::weighted(0.3, prop::option::of(0..3i64)), any::<[bool; 3]>());
    let rest = (prop::bool::weighted(0.2), prop::bool::weighted(0.05), 0..3u8, any::<bool>());
    (prop::option::weighted(0.8, 0..COHORTS), quotas(), policies, rest).prop_map(
        |(cohort, quotas, (within, reclaim, borrow, fungible), (strict, stopped, weight, one_group))| {
            let flavors: Vec<FlavorId> = (0..FLAVORS).map(FlavorId).collect();
            let groups = if one_group {
                vec![ResourceGroup { resources: vec![resource(0), resource(1)], flavors }]
            } else {
                let group = |at: u32| ResourceGroup { resources: vec![resource(at)], flavors: vec![FlavorId(at)] };
                vec![group(0), group(1)]
            };
            let reclaim = [Reclaim::Never, Reclaim::LowerPriority, Reclaim::Any][reclaim as usize];
            let borrow = match borrow {
                Some(max_priority) if reclaim != Reclaim::Never => BorrowWithin::LowerPriority { max_priority },
                _ => BorrowWithin::Never,
            };
            let within = [WithinQueue::Never, WithinQueue::LowerPriority, WithinQueue::LowerOrNewerEqualPriority]
                [within as usize];
            let quotas = (quotas.iter())
                .filter(|(cell, _)| {
                    groups.iter().any(|g| g.flavors.contains(&cell.flavor) && g.resources.contains(&cell.resource))
                })
                .map(|(cell, quota)| (cell, *quota))
                .collect();
            Queue {
                cohort: cohort.map(CohortId),
                groups,
                quotas,
                strategy: if strict { Queueing::StrictFifo } else { Queueing::BestEffortFifo },
                stop: if stopped { Stop::Hold } else { Stop::None },
                preemption: Preemption { within_queue: within, reclaim, borrow },
                fungibility: Fungibility {
                    try_next_when_borrowing: fungible[0],
                    try_next_when_preempting: fungible[1],
                    preference: if fungible[0] && fungible[1] && fungible[2] {
                        Preference::PreemptionOverBorrowing
                    } else {
                        Preference::BorrowingOverPreemption
                    },
                },
                fair_weight: FairWeight([0.0, 1.0, 2.0][weight as usize]),
                ..Queue::default()
            }
        },
    )
}

fn cohort() -> impl Strategy<Value = Cohort> {
    (prop::option::weighted(0.5, 0..COHORTS), quotas(), prop::bool::weighted(0.5)).prop_map(|(parent, quotas, own)| {
        Cohort {
            parent: parent.map(CohortId),
            quotas: if own { quotas } else { CellMap::default() },
            ..Cohort::default()
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..WORKLOADS, sketch()).prop_map(|(id, workload)| Step::Workload { id, workload }),
        1 => (0..QUEUES, queue()).prop_map(|(id, queue)| Step::Queue { id, queue }),
        1 => (0..COHORTS, cohort()).prop_map(|(id, cohort)| Step::Cohort { id, cohort }),
        4 => (0..WORKLOADS).prop_map(Step::Finish),
        6 => (0..WORKLOADS).prop_map(Step::Release),
        1 => (0..WORKLOADS).prop_map(Step::EvictByOthers),
        1 => (0..WORKLOADS).prop_map(Step::Refuse),
        1 => (0..WORKLOADS).prop_map(Step::RefuseEviction),
        2 => (0..WORKLOADS).prop_map(Step::Checks),
        1 => (0..WORKLOADS, 0..200i64).prop_map(|(id, percent)| Step::Resize { id, percent }),
        8 => (0..10i64).prop_map(|later| Step::Plan { later }),
    ]
}

#[derive(Debug, Clone)]
struct World {
    fair: bool,
    queues: Vec<Queue>,
    cohorts: Vec<Cohort>,
    steps: Vec<Step>,
}

fn world() -> impl Strategy<Value = World> {
    (
        prop::bool::weighted(0.3),
        prop::collection::vec(queue(), QUEUES as usize),
        prop::collection::vec(cohort(), COHORTS as usize),
        prop::collection::vec(step(), 1..50),
    )
        .prop_map(|(fair, queues, cohorts, steps)| World { fair, queues, cohorts, steps })
}

fn base(fair: bool) -> Vec<Event> {
    let fair_sharing = fair.then(FairSharing::default);
    let mut events = vec![Event::Settings(Settings { fair_sharing, ..Settings::default() })];
    events.extend((0..FLAVORS).map(|id| Event::Flavor(FlavorId(id), Some(Flavor::default()))));
    events.extend(
        (0..QUEUES).map(|id| Event::LocalQueue(LocalId(id), Some(LocalQueue { queue: QueueId(id), stop: Stop::None }))),
    );
    events.extend((0..2).map(|id| Event::Group(GroupId(id), Migration::Upgrade { down_to: None })));
    events
}

/// The driver: what the API would show, kept apart from the scheduler.
struct Driver {
    fair: bool,
    sched: Scheduler,
    book: Book,
    now: i64,
    log: Vec<String>,
}

impl Driver {
    fn new(world: &World) -> Driver {
        let mut driver =
            Driver { fair: world.fair, sched: Scheduler::new(), book: Book::default(), now: 0, log: Vec::new() };
        for event in base(world.fair) {
            driver.sched.apply(event);
        }
        for (id, cohort) in world.cohorts.iter().enumerate() {
            driver.step(&Step::Cohort { id: id as u32, cohort: cohort.clone() });
        }
        for (id, queue) in world.queues.iter().enumerate() {
            driver.step(&Step::Queue { id: id as u32, queue: queue.clone() });
        }
        driver
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Queue { id, queue } => {
                self.book.queues.insert(*id, queue.clone());
                self.sched.apply(Event::Queue(QueueId(*id), Some(queue.clone())));
            }
            Step::Cohort { id, cohort } => {
                self.book.cohorts.insert(*id, cohort.clone());
                self.sched.apply(Event::Cohort(CohortId(*id), Some(cohort.clone())));
            }
            Step::Workload { id, workload } => {
                let workload = workload.lower(*id);
                // A booked workload may change its priority, not its shape, queue or group.
                let workload = match self.book.bookings.get(id) {
                    Some(booked) => Workload { priority: workload.priority, ..booked.workload.clone() },
                    None => workload,
                };
                if let Some(booked) = self.book.bookings.get_mut(id) {
                    booked.workload = workload.clone();
                } else {
                    self.book.pending.insert(*id, workload.clone());
                }
                self.sched.apply(Event::Workload(WorkloadId(*id), workload));
            }
            Step::Finish(id) => {
                self.book.pending.remove(id);
                self.book.bookings.remove(id);
                self.sched.apply(Event::Gone(WorkloadId(*id)));
            }
            Step::Release(id) => {
                if self.book.bookings.get(id).is_some_and(|booked| booked.leaving) {
                    let booked = self.book.bookings.remove(id).unwrap();
                    self.book.pending.insert(*id, booked.workload);
                    self.sched.apply(Event::Released(WorkloadId(*id)));
                }
            }
            Step::EvictByOthers(id) => {
                if let Some(booked) = self.book.bookings.get_mut(id) {
                    booked.leaving = true;
                    self.sched.apply(Event::Evicting(WorkloadId(*id)));
                }
            }
            Step::Refuse(id) => {
                if self.book.bookings.get(id).is_some_and(|booked| booked.assumed && !booked.leaving) {
                    let booked = self.book.bookings.remove(id).unwrap();
                    self.book.pending.insert(*id, booked.workload);
                    self.sched.apply(Event::AdmissionRefused(WorkloadId(*id)));
                }
            }
            Step::RefuseEviction(id) => {
                if let Some(booked) = self.book.bookings.get_mut(id).filter(|booked| booked.leaving) {
                    booked.leaving = false;
                    self.sched.apply(Event::EvictionRefused(WorkloadId(*id)));
                }
            }
            Step::Checks(id) => {
                if let Some(booked) = self.book.bookings.get_mut(id) {
                    booked.assumed = false;
                    let admitted = booked.admitted || !self.book.other_admitted(*id);
                    let booked = self.book.bookings.get_mut(id).unwrap();
                    booked.admitted = admitted;
                    let (assignment, since) = (booked.assignment.clone(), booked.since);
                    let workload = WorkloadId(*id);
                    self.sched.apply(Event::Reserved { workload, queue: None, assignment, since, admitted });
                }
            }
            Step::Resize { id, percent } => {
                if let Some(booked) = self.book.bookings.get_mut(id) {
                    for pod_set in &mut booked.assignment.pod_sets {
                        pod_set.usage.iter_mut().for_each(|(_, amount)| amount.0 = amount.0 * percent / 100);
                    }
                    booked.assignment.usage = Assignment::total(&booked.assignment.pod_sets);
                    let assignment = booked.assignment.clone();
                    self.sched.apply(Event::Resized { workload: WorkloadId(*id), assignment });
                }
            }
            Step::Plan { later } => {
                self.now += later;
            }
        }
    }

    /// Plans and does what was decided, checking each decision on the way.
    fn plan(&mut self) -> Result<(), TestCaseError> {
        let plan = self.sched.plan(Time(self.now));
        for decision in &plan.decisions {
            self.log.push(format!("{decision:?}"));
            match decision {
                Decision::Admit { workload, queue, assignment, .. } => {
                    let id = workload.0;
                    let Some(pending) = self.book.pending.get(&id).cloned() else {
                        return Err(TestCaseError::fail(format!("{id} was admitted though it does not wait")));
                    };
                    prop_assert_eq!(pending.local.0, queue.0);
                    prop_assert!(
                        !self.book.other_admitted_better(id, &pending),
                        "{} admitted beside an admitted better sibling",
                        id
                    );
                    if let Some(ahead) = self.book.ahead_in_strict_line(id, &pending, self.now) {
                        return Err(TestCaseError::fail(format!("{id} overtook {ahead}")));
                    }
                    let before = self.book.usages();
                    self.book.pending.remove(&id);
                    self.book.book(id, pending, assignment.clone(), Time(self.now));
                    self.book.check_limits(queue.0, &before).map_err(TestCaseError::fail)?;
                }
                Decision::Preempt { workload, victims, .. } => {
                    let asker = self.book.pending.get(&workload.0).cloned();
                    prop_assert!(asker.is_some(), "{} preempts though it does not wait", workload.0);
                    prop_assert!(
                        !asker.as_ref().is_some_and(|asker| asker.preemption_gated),
                        "{} preempts though gated",
                        workload.0
                    );
                    for victim in victims {
                        let booked = self.book.bookings.get_mut(&victim.workload.0);
                        let Some(booked) = booked else {
                            return Err(TestCaseError::fail("the victim has nothing to give"));
                        };
                        prop_assert!(!booked.leaving, "evicted twice");
                        let sibling = booked.workload.group.is_some()
                            && booked.workload.group == asker.as_ref().and_then(|a| a.group);
                        prop_assert!(!sibling, "siblings are never each other's victims");
                        booked.leaving = true;
                    }
                }
                Decision::Evict { workload, .. } => {
                    let booked = self.book.bookings.get_mut(&workload.0);
                    prop_assert!(booked.as_ref().is_some_and(|booked| !booked.leaving));
                    booked.unwrap().leaving = true;
                }
                Decision::Wait { workload, .. } => {
                    prop_assert!(
                        self.book.pending.contains_key(&workload.0),
                        "{} has a reason to wait but does not wait",
                        workload.0
                    );
                }
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let again = self.sched.plan(Time(self.now));
        prop_assert!(again.decisions.is_empty(), "a second plan with no change: {:?}", again.decisions);
        for id in 0..QUEUES {
            prop_assert_eq!(self.sched.usage(QueueId(id)), self.book.usage(id), "usage of queue {}", id);
        }
        for id in self.book.pending.keys() {
            prop_assert!(self.sched.reason(WorkloadId(*id)).is_some(), "{} waits without a reason", id);
        }
        self.check_figures()?;
        self.check_groups()?;
        for (id, workload) in &self.book.pending {
            if let Some(holds) = self.sched.hold(WorkloadId(*id)) {
                prop_assert!(
                    holds.victims.iter().all(|v| self.book.bookings.get(&v.0).is_some_and(|b| b.leaving)),
                    "{:?}",
                    workload
                );
            }
        }
        if self.sched.holders().is_empty() {
            self.check_nobody_is_forgotten()?;
        }
        Ok(())
    }

    /// At most one of a group has preemptions outstanding, or holds what it won by them and is not admitted yet.
    fn check_groups(&self) -> Result<(), TestCaseError> {
        for group in 0..2 {
            let all =
                self.book.pending.iter().chain(self.book.bookings.iter().map(|(id, booked)| (id, &booked.workload)));
            let members =
                all.filter(|(_, workload)| workload.group == Some(GroupId(group))).map(|(id, _)| WorkloadId(*id));
            let preempts = |id: &WorkloadId| {
                let waits = self.sched.hold(*id).is_some_and(|hold| !hold.victims.is_empty());
                let won = |booking: &Booking| booking.won && booking.stage != Stage::Admitted;
                waits || self.sched.booking(*id).is_some_and(won)
            };
            let preempting: Vec<WorkloadId> = members.filter(preempts).collect();
            prop_assert!(preempting.len() <= 1, "{:?} of group {} preempt at once", preempting, group);
        }
        Ok(())
    }

    /// What is counted as things change is what counting everybody gives. (In these worlds a queue and its local queue have one number.)
    fn check_figures(&self) -> Result<(), TestCaseError> {
        for id in 0..QUEUES {
            let counted = self.book.figures(id);
            prop_assert_eq!(&self.sched.figures(QueueId(id)), &counted, "figures of queue {}", id);
            prop_assert_eq!(&self.sched.local_figures(LocalId(id)), &counted, "figures of local queue {}", id);
            let line = self.sched.line_up(QueueId(id));
            let waiting: BTreeSet<WorkloadId> = (self.book.pending.iter())
                .filter(|(_, workload)| workload.local.0 == id && workload.active)
                .map(|(id, _)| WorkloadId(*id))
                .collect();
            prop_assert_eq!(&line.iter().copied().collect::<BTreeSet<_>>(), &waiting, "the line of queue {}", id);
            prop_assert_eq!(line.len(), waiting.len());
            let mut places = line.iter().map(|id| {
                let workload = &self.book.pending[&id.0];
                (std::cmp::Reverse(workload.priority), workload.queued_at, workload.place, workload.sibling)
            });
            prop_assert!(
                places.clone().eq(places.by_ref().collect::<BTreeSet<_>>()),
                "the line of queue {} in order",
                id
            );
            let pieces = self.pieces(QueueId(id), 2);
            prop_assert_eq!(&pieces, &line, "the line of queue {} by twos", id);
            let (active, parked) = self.sched.active_and_parked(QueueId(id));
            prop_assert_eq!(active + parked, counted.counts.pending);
        }
        Ok(())
    }

    fn pieces(&self, queue: QueueId, most: usize) -> Vec<WorkloadId> {
        let (mut all, mut place) = (Vec::new(), None);
        loop {
            let piece = self.sched.line_after(queue, place, most);
            let Some(last) = piece.last() else { return all };
            place = Some(*last);
            all.extend(piece.iter().map(|order| order.workload));
        }
    }

    /// A scheduler that knows nothing but the state finds nobody to admit and nobody to preempt for.
    fn check_nobody_is_forgotten(&mut self) -> Result<(), TestCaseError> {
        if let Some((id, flavor)) =
            self.book.fits_somewhere(self.now, |queue| self.sched.inactive(QueueId(queue)).is_some())
        {
            return Err(TestCaseError::fail(format!("{id} fits flavor {flavor} and is left waiting")));
        }
        let mut fresh = Scheduler::new();
        for event in base(self.fair) {
            fresh.apply(event);
        }
        for event in self.book.events() {
            fresh.apply(event);
        }
        let plan = fresh.plan(Time(self.now));
        let strict: BTreeSet<u32> = (self.book.queues.iter())
            .filter(|(_, queue)| queue.strategy == Queueing::StrictFifo)
            .map(|(id, _)| *id)
            .collect();
        for decision in plan.decisions {
            match decision {
                Decision::Admit { workload, queue, .. } | Decision::Preempt { workload, queue, .. } => {
                    // What siblings won by preemption is not in the API in this model; strict lines are checked where they are planned;
                    // and flavors for several pod sets are found one after the other, so somebody's growth may turn the first pod set
                    // to another flavor and so make room for the second: nobody is woken for that.
                    let exempt = |w: &Workload| w.group.is_some() || w.shape.pod_sets.len() > 1;
                    let grouped = self.book.pending.get(&workload.0).is_some_and(exempt);
                    prop_assert!(
                        grouped || strict.contains(&queue.0),
                        "{} of queue {} was forgotten",
                        workload.0,
                        queue.0
                    );
                    if grouped {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn play(world: &World, checked: bool) -> Result<Vec<String>, TestCaseError> {
    let mut driver = Driver::new(world);
    for step in &world.steps {
        driver.step(step);
        if matches!(step, Step::Plan { .. }) {
            driver.plan()?;
            if checked {
                driver.check()?;
            }
        }
    }
    // In the end everything that leaves has left.
    driver.plan()?;
    for id in 0..WORKLOADS {
        driver.step(&Step::Release(id));
    }
    driver.plan()?;
    if checked {
        driver.check()?;
    }
    Ok(driver.log)
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_plan_keeps_the_limits_the_order_and_forgets_nobody(world in world()) {
        play(&world, true)?;
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_same_events_give_the_same_plans(world in world()) {
        prop_assert_eq!(play(&world, false)?, play(&world, false)?);
    }
}
