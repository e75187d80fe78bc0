use proptest::prelude::*;

use super::*;
use crate::model::{CohortId, FairWeight, FlavorId, Quota, ResourceId};

fn cell(flavor: u32) -> Cell {
    Cell::new(FlavorId(flavor), ResourceId(1))
}

fn usage(amounts: &[(u32, i64)]) -> Usage {
    amounts.iter().map(|(flavor, amount)| (cell(*flavor), Amount(*amount))).collect()
}

fn booking(queue: u32, usage: Usage, group: Option<u32>) -> Booking {
    Booking {
        queue: QueueId(queue),
        usage,
        stage: Stage::Assumed,
        since: Time(0),
        priority: 0,
        queued_at: Time(0),
        place: 0,
        leaving: false,
        won: false,
        ready: true,
        group: group.map(GroupId),
        sibling: 0,
        part_of: None,
    }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    for queue in 0..2 {
        let quotas = [(cell(0), Quota::of(10)), (cell(1), Quota::of(10))].into_iter().collect();
        ledger.tree.set_queue(QueueId(queue), Some(CohortId(0)), &quotas, FairWeight::default());
    }
    ledger.tree.settle();
    ledger
}

fn used(ledger: &Ledger, queue: u32, flavor: u32) -> i64 {
    ledger.tree.usage(ledger.tree.queue(QueueId(queue)).unwrap(), cell(flavor)).0
}

#[test]
fn siblings_use_a_shared_cell_once_and_their_own_cells_both() {
    let mut ledger = ledger();
    ledger.book(WorkloadId(0), booking(0, usage(&[(0, 4), (1, 3)]), Some(7)));
    ledger.book(WorkloadId(1), booking(0, usage(&[(0, 6)]), Some(7)));
    assert_eq!((used(&ledger, 0, 0), used(&ledger, 0, 1)), (6, 3));
    ledger.release(WorkloadId(1));
    assert_eq!((used(&ledger, 0, 0), used(&ledger, 0, 1)), (4, 3));
    ledger.release(WorkloadId(0));
    assert_eq!((used(&ledger, 0, 0), used(&ledger, 0, 1)), (0, 0));
}

#[test]
fn a_hold_counts_until_it_turns_into_a_booking_and_then_counts_once() {
    let mut ledger = ledger();
    let hold = Hold { queue: QueueId(0), assignment: Assignment::default(), victims: BTreeSet::new(), group: None };
    ledger.hold(WorkloadId(0), hold, usage(&[(0, 5)]));
    assert_eq!((used(&ledger, 0, 0), ledger.usage(QueueId(0)).len()), (5, 0));
    ledger.book(WorkloadId(0), booking(0, usage(&[(0, 5)]), None));
    assert_eq!((used(&ledger, 0, 0), ledger.usage(QueueId(0)).amount(cell(0))), (5, Amount(5)));
}

#[test]
fn who_waits_for_a_victim_is_told_when_it_has_left() {
    let mut ledger = ledger();
    for holder in [3, 4] {
        let victims = [WorkloadId(1), WorkloadId(holder + 10)].into_iter().collect();
        let hold = Hold { queue: QueueId(0), assignment: Assignment::default(), victims, group: None };
        ledger.hold(WorkloadId(holder), hold, usage(&[(0, 1)]));
    }
    assert_eq!(ledger.victim_left(WorkloadId(1)), vec![WorkloadId(3), WorkloadId(4)]);
    assert_eq!(ledger.victim_left(WorkloadId(1)), vec![]);
    assert_eq!(ledger.held(WorkloadId(4)).unwrap().victims.len(), 1);
}

#[test]
fn a_parent_is_lifted_with_its_slices() {
    let mut ledger = ledger();
    ledger.book(WorkloadId(0), booking(0, usage(&[(0, 4)]), None));
    ledger.book(WorkloadId(1), Booking { part_of: Some(WorkloadId(0)), ..booking(0, usage(&[(0, 1)]), None) });
    ledger.lift(WorkloadId(0));
    assert_eq!(used(&ledger, 0, 0), 0);
    ledger.restore(WorkloadId(0));
    assert_eq!(used(&ledger, 0, 0), 5);
    assert!(ledger.take_changes().iter().all(|change| change.grew), "pretending is not a change");
}

#[derive(Debug, Clone)]
enum Step {
    Book { workload: u32, queue: u32, usage: Vec<(u32, i64)>, group: Option<u32>, priority: i64 },
    Hold { workload: u32, queue: u32, usage: Vec<(u32, i64)>, group: Option<u32> },
    Release(u32),
    Resize(u32, Vec<(u32, i64)>),
    Reprioritize(u32, i64),
    LiftAndRestore(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let amounts = || prop::collection::vec((0..2u32, 1..6i64), 0..3);
    let group = || prop::option::of(0..2u32);
    let step = prop_oneof![
        4 => (0..8u32, 0..2u32, amounts(), group(), 0..3i64)
            .prop_map(|(workload, queue, usage, group, priority)| Step::Book { workload, queue, usage, group, priority }),
        2 => (0..8u32, 0..2u32, amounts(), group())
            .prop_map(|(workload, queue, usage, group)| Step::Hold { workload, queue, usage, group }),
        3 => (0..8u32).prop_map(Step::Release),
        2 => (0..8u32, amounts()).prop_map(|(workload, usage)| Step::Resize(workload, usage)),
        1 => (0..8u32, 0..3i64).prop_map(|(workload, priority)| Step::Reprioritize(workload, priority)),
        1 => (0..8u32).prop_map(Step::LiftAndRestore),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(crate::testing::cases(400))]

    #[test]
    fn usage_is_the_sum_over_workloads_and_the_largest_within_a_group(steps in steps()) {
        let mut ledger = ledger();
        // The obvious book: what each workload claims where, and in which group.
        let mut book: BTreeMap<u32, (u32, Usage, Option<u32>, Option<i64>)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Book { workload, queue, usage: amounts, group, priority } => {
                    let usage = usage(&amounts);
                    ledger.book(WorkloadId(workload), Booking { priority, ..booking(queue, usage.clone(), group) });
                    book.insert(workload, (queue, usage, group, Some(priority)));
                }
                Step::Hold { workload, queue, usage: amounts, group } => {
                    let usage = usage(&amounts);
                    let hold = Hold {
                        queue: QueueId(queue),
                        assignment: Assignment::default(),
                        victims: BTreeSet::new(),
                        group: group.map(GroupId),
                    };
                    ledger.hold(WorkloadId(workload), hold, usage.clone());
                    book.insert(workload, (queue, usage, group, None));
                }
                Step::Release(workload) => {
                    prop_assert_eq!(ledger.release(WorkloadId(workload)), book.remove(&workload).is_some());
                }
                Step::Resize(workload, amounts) => {
                    let resized = ledger.resize(WorkloadId(workload), usage(&amounts));
                    match book.get_mut(&workload) {
                        Some((_, own, _, Some(_))) => { *own = usage(&amounts); prop_assert!(resized) }
                        _ => prop_assert!(!resized),
                    }
                }
                Step::Reprioritize(workload, priority) => {
                    if ledger.amend(WorkloadId(workload), |booking| booking.priority = priority) {
                        book.get_mut(&workload).unwrap().3 = Some(priority);
                    }
                }
                Step::LiftAndRestore(workload) => {
                    ledger.lift(WorkloadId(workload));
                    ledger.restore(WorkloadId(workload));
                }
            }
            for queue in 0..2u32 {
                for flavor in 0..2u32 {
                    let mut sum = 0;
                    let mut groups: BTreeMap<u32, i64> = BTreeMap::new();
                    for (_, usage, group, _) in book.values().filter(|(own, ..)| *own == queue) {
                        let amount = usage.amount(cell(flavor)).0;
                        match group {
                            None => sum += amount,
                            Some(group) => { let top = groups.entry(*group).or_default(); *top = amount.max(*top); }
                        }
                    }
                    prop_assert_eq!(used(&ledger, queue, flavor), sum + groups.values().sum::<i64>());
                    for priority in 0..3i64 {
                        let below: i64 = book.values().filter(|(own, _, _, p)| *own == queue && p.is_some_and(|p| p <= priority))
                            .map(|(_, usage, ..)| usage.amount(cell(flavor)).0).sum();
                        prop_assert_eq!(ledger.used_by_priority(QueueId(queue), cell(flavor), priority, true).0, below);
                    }
                }
            }
        }
    }
}
