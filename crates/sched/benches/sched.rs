//! Figures of the pure scheduler, on virtual time, printed as a table: decisions per second, and what freeing room costs with few and with
//! many waiting. Counts are exact and the same on every machine; seconds are this machine's.
//!
//! `cargo bench -p usher-sched`, with `quick` for a hundredth of the size. `instructions N` runs only the frees with N waiting, for a tool
//! that counts instructions.

use std::sync::Arc;

use usher_sched::model::*;
use usher_sched::plan::Decision;
use usher_sched::scheduler::{Event, Scheduler};

/// Processor time of this thread, so that a busy machine does not change the figures; wall time where the system does not tell.
struct Stopwatch(f64);

impl Stopwatch {
    fn start() -> Self {
        Stopwatch(Self::now())
    }

    fn seconds(&self) -> f64 {
        Self::now() - self.0
    }

    fn now() -> f64 {
        let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
        let nanos = told.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
        nanos.map_or_else(wall_seconds, |nanos| nanos / 1e9)
    }
}

fn wall_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

const CPU: ResourceId = ResourceId(1);
const MEMORY: ResourceId = ResourceId(2);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let size = if args.iter().any(|arg| arg == "quick") { 100 } else { 1 };
    if let Some(at) = args.iter().position(|arg| arg == "instructions") {
        let parked = args.get(at + 1).and_then(|text| text.parse().ok()).unwrap_or(1_000);
        let free = args.get(at + 2).and_then(|text| text.parse().ok()).unwrap_or(1_000);
        frees(1_000, parked, free);
        return;
    }
    if args.iter().any(|arg| arg == "churn") {
        churn("10 cohorts of 100 queues, 3 sizes", 10, 100, 50_000 / size);
        return;
    }
    println!("{:<44} {:>10} {:>12} {:>14}", "", "decisions", "cpu seconds", "decisions/s");
    for (name, cohorts) in [("1,000 queues alone", 0), ("in 100 cohorts of 10", 100), ("in 10 cohorts of 100", 10)] {
        arrivals(name, 1_000, cohorts, 1_000_000 / size, 1_000);
    }
    println!();
    println!(
        "{:<44} {:>10} {:>12} {:>14}",
        "draining with preemption allowed", "decisions", "cpu seconds", "decisions/s"
    );
    churn("10 cohorts of 100 queues, 3 sizes", 10, 100, 50_000 / size);
    println!();
    println!(
        "{:<44} {:>10} {:>12} {:>14} {:>14} {:>14}",
        "freeing room for one, waiting:", "frees", "us/free", "evaluations", "looks", "classes"
    );
    for parked in [1_000, 1_000_000 / size] {
        frees(1_000, parked, 1_000);
    }
}

fn queue(cohort: Option<u32>, cpu: i64, memory: i64, preemption: Preemption, borrowing: Option<i64>) -> Queue {
    let flavor = FlavorId(0);
    let quota = |amount: i64| Quota { nominal: Amount(amount), borrowing: borrowing.map(Amount), lending: None };
    Queue {
        cohort: cohort.map(CohortId),
        groups: vec![ResourceGroup { resources: vec![CPU, MEMORY], flavors: vec![flavor] }],
        quotas: [(Cell::new(flavor, CPU), quota(cpu)), (Cell::new(flavor, MEMORY), quota(memory))]
            .into_iter()
            .collect(),
        preemption,
        ..Queue::default()
    }
}

fn world(queues: u32, cohorts: u32, cpu: i64, preemption: Preemption, borrowing: Option<i64>) -> Scheduler {
    let mut sched = Scheduler::new();
    sched.apply(Event::Flavor(FlavorId(0), Some(Flavor::default())));
    for id in 0..queues {
        let cohort = (cohorts > 0).then(|| id % cohorts);
        sched.apply(Event::Queue(QueueId(id), Some(queue(cohort, cpu, i64::MAX / 4096, preemption, borrowing))));
        sched.apply(Event::LocalQueue(LocalId(id), Some(LocalQueue { queue: QueueId(id), stop: Stop::None })));
    }
    sched.plan(Time(0));
    sched
}

fn shape(cpu: i64, memory: i64) -> Arc<Shape> {
    let requests = vec![(CPU, Amount(cpu)), (MEMORY, Amount(memory))];
    Arc::new(Shape {
        pod_sets: vec![PodSet { name: "main".into(), count: 1, requests, ..PodSet::default() }],
        allowed: None,
    })
}

/// `many` shapes: some hundred sizes of cpu, each with different amounts of memory.
fn shapes(many: u32) -> Vec<Arc<Shape>> {
    (0..many).map(|at| shape(1_000 + 10 * i64::from(at % 100), 1 << (20 + at / 100 % 10))).collect()
}

fn workload(id: u32, queue: u32, shape: &Arc<Shape>, priority: i64) -> Workload {
    let mut workload = Workload::new(LocalId(queue), shape.clone());
    workload.queued_at = Time(i64::from(id));
    workload.place = u64::from(id);
    workload.priority = priority;
    workload
}

/// Everybody comes, in batches; a tenth is admitted, the rest gets its reason.
fn arrivals(name: &str, queues: u32, cohorts: u32, total: u32, kinds: u32) {
    let per_queue = i64::from(total / queues);
    let mut sched = world(queues, cohorts, per_queue * 150, Preemption::default(), None);
    let shapes = shapes(kinds);
    let start = Stopwatch::start();
    let (mut admitted, mut waiting) = (0u64, 0u64);
    for id in 0..total {
        // A queue sees many shapes, each shape comes to many queues.
        let kind = (id / queues * 7 + id % queues) % kinds;
        sched.apply(Event::Workload(
            WorkloadId(id),
            workload(id, id % queues, &shapes[kind as usize], i64::from(id % 3)),
        ));
        if id % 1_000 == 999 || id + 1 == total {
            for decision in sched.plan(Time(i64::from(id))).decisions {
                match decision {
                    Decision::Admit { .. } => admitted += 1,
                    Decision::Wait { .. } => waiting += 1,
                    _ => {}
                }
            }
        }
    }
    let seconds = start.seconds();
    let decisions = admitted + waiting;
    println!(
        "{name:<44} {decisions:>10} {seconds:>12.2} {:>14.0}   ({admitted} admitted, {waiting} waiting)",
        decisions as f64 / seconds
    );
}

/// The shape of the yardstick: three sizes and priorities, reclaim Any, LowerPriority; what is admitted finishes in order.
fn churn(name: &str, cohorts: u32, per_cohort: u32, total: u32) {
    let preemption =
        Preemption { within_queue: WithinQueue::LowerPriority, reclaim: Reclaim::Any, borrow: BorrowWithin::Never };
    let queues = cohorts * per_cohort;
    let mut sched = world(queues, cohorts, 20_000, preemption, Some(100_000));
    let sizes = [(shape(1_000, 1), 50), (shape(5_000, 1), 100), (shape(20_000, 1), 200)];
    let start = Stopwatch::start();
    let mut running: std::collections::VecDeque<WorkloadId> = Default::default();
    let (mut decisions, mut finished, mut preempted, mut now) = (0u64, 0u32, 0u64, 0i64);
    for id in 0..total {
        let (shape, priority) = &sizes[[0, 0, 0, 0, 0, 0, 0, 1, 1, 2][(id / queues % 10) as usize]];
        sched.apply(Event::Workload(WorkloadId(id), workload(id, id % queues, shape, *priority)));
    }
    while finished < total {
        now += 1;
        let plan = sched.plan(Time(now));
        if plan.decisions.is_empty() && running.is_empty() {
            break;
        }
        for decision in plan.decisions {
            decisions += 1;
            match decision {
                Decision::Admit { workload, .. } => running.push_back(workload),
                Decision::Preempt { victims, .. } => {
                    for victim in victims {
                        preempted += 1;
                        sched.apply(Event::Released(victim.workload));
                        running.retain(|id| *id != victim.workload);
                    }
                }
                _ => {}
            }
        }
        for _ in 0..20 {
            if let Some(id) = running.pop_front() {
                sched.apply(Event::Gone(id));
                finished += 1;
            }
        }
    }
    let seconds = start.seconds();
    let work = sched.work();
    println!(
        "{name:<44} {decisions:>10} {seconds:>12.2} {:>14.0}   ({finished} finished, {preempted} preempted, {} evaluations, {} looks)",
        decisions as f64 / seconds,
        work.evaluations,
        work.looks
    );
}

/// All queues full; again and again one workload finishes and the next of the same size takes its place.
fn frees(queues: u32, parked: u32, frees: u32) {
    let cohorts = queues / 10;
    let mut sched = world(queues, cohorts, 1_000, Preemption::default(), None);
    let shapes = shapes(1_000);
    let one = shape(1_000, 1 << 20);
    for id in 0..queues {
        sched.apply(Event::Workload(WorkloadId(id), workload(id, id, &one, 9)));
    }
    for id in queues..queues + parked {
        let kind = ((id / queues * 7 + id % queues) % 1_000) as usize;
        // Everyone of the smallest number has one that needs just what gets free.
        let shape = if id < queues * 2 { &one } else { &shapes[kind] };
        sched.apply(Event::Workload(WorkloadId(id), workload(id, id % queues, shape, 0)));
    }
    let mut running: std::collections::VecDeque<WorkloadId> = Default::default();
    let admits = |sched: &mut Scheduler, now: i64| -> Vec<WorkloadId> {
        let decisions = sched.plan(Time(now)).decisions;
        decisions
            .into_iter()
            .filter_map(|decision| match decision {
                Decision::Admit { workload, .. } => Some(workload),
                _ => None,
            })
            .collect()
    };
    running.extend(admits(&mut sched, 0));
    let (mut evaluations, mut looks, mut classes, mut seconds, mut refilled) = (0, 0, 0, 0.0, 0);
    for at in 0..frees.min(queues) {
        let Some(id) = running.pop_front() else { break };
        let (before, start) = (sched.work(), Stopwatch::start());
        sched.apply(Event::Gone(id));
        refilled += admits(&mut sched, i64::from(at) + 1).len() as u32;
        seconds += start.seconds();
        let after = sched.work();
        evaluations += after.evaluations - before.evaluations;
        looks += after.looks - before.looks;
        classes += after.classes - before.classes;
        // As many wait as before; their coming is not counted.
        sched.apply(Event::Workload(id, workload(u32::MAX / 2 + at, id.0 % queues, &one, 0)));
        admits(&mut sched, i64::from(at) + 1);
    }
    let frees = f64::from(frees.min(queues));
    println!(
        "{:<44} {:>10} {:>12.2} {:>14.2} {:>14.2} {:>14.2}",
        format!("{parked}"),
        refilled,
        seconds * 1e6 / frees,
        evaluations as f64 / frees,
        looks as f64 / frees,
        classes as f64 / frees,
    );
}
