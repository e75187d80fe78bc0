use proptest::prelude::*;

use super::*;
use crate::model::FlavorId;

const CPU: Cell = Cell { flavor: FlavorId(0), resource: ResourceId(1) };

fn quota(nominal: i64, borrowing: Option<i64>, lending: Option<i64>) -> CellMap<Quota> {
    [(CPU, Quota { nominal: Amount(nominal), borrowing: borrowing.map(Amount), lending: lending.map(Amount) })]
        .into_iter()
        .collect()
}

fn queue(tree: &mut Tree, id: u32, cohort: Option<u32>, quotas: CellMap<Quota>) -> NodeId {
    tree.set_queue(QueueId(id), cohort.map(CohortId), &quotas, FairWeight::default());
    tree.settle();
    tree.queue(QueueId(id)).unwrap()
}

#[test]
fn a_queue_alone_has_its_nominal_quota() {
    let mut tree = Tree::default();
    let a = queue(&mut tree, 0, None, quota(10, None, None));
    assert_eq!(tree.available(a, CPU), Amount(10));
    tree.shift(a, CPU, Amount(4));
    assert_eq!(tree.available(a, CPU), Amount(6));
    assert_eq!(tree.potential(a, CPU), Amount(10));
}

#[test]
fn a_queue_borrows_what_its_cohort_does_not_use_up_to_its_limit() {
    let mut tree = Tree::default();
    let a = queue(&mut tree, 0, Some(0), quota(10, Some(3), None));
    let b = queue(&mut tree, 1, Some(0), quota(10, None, None));
    assert_eq!((tree.available(a, CPU), tree.available(b, CPU)), (Amount(13), Amount(20)));
    tree.shift(b, CPU, Amount(9));
    assert_eq!(tree.available(a, CPU), Amount(11));
    assert_eq!(tree.height_that_fits(a, CPU, Amount(11)), (1, false));
    assert_eq!(tree.height_that_fits(a, CPU, Amount(10)), (0, true));
}

#[test]
fn what_a_lending_limit_keeps_is_seen_by_its_own_queue_only() {
    let mut tree = Tree::default();
    let a = queue(&mut tree, 0, Some(0), quota(10, None, Some(4)));
    let b = queue(&mut tree, 1, Some(0), quota(0, None, None));
    assert_eq!((tree.available(a, CPU), tree.available(b, CPU)), (Amount(10), Amount(4)));
    let top = tree.shift(a, CPU, Amount(6));
    assert_eq!((top, tree.available(b, CPU)), (a, Amount(4)), "usage within local quota does not bubble");
    let top = tree.shift(a, CPU, Amount(1));
    assert_eq!((top, tree.available(b, CPU)), (tree.root(a), Amount(3)));
}

#[test]
fn a_quota_cut_leaves_nothing_available_rather_than_less_than_nothing() {
    let mut tree = Tree::default();
    let a = queue(&mut tree, 0, Some(0), quota(10, None, None));
    tree.shift(a, CPU, Amount(10));
    let a = queue(&mut tree, 0, Some(0), quota(4, None, None));
    assert_eq!((tree.free(a, CPU), tree.available(a, CPU)), (Amount(-6), Amount(0)));
}

#[test]
fn cohorts_in_a_cycle_are_reported_and_stand_alone() {
    let mut tree = Tree::default();
    let none = CellMap::default();
    for (id, parent) in [(0, Some(1)), (1, Some(2)), (2, Some(1)), (3, None)] {
        tree.set_cohort(CohortId(id), parent.map(CohortId), &none, FairWeight::default());
    }
    let a = queue(&mut tree, 0, Some(0), quota(10, None, None));
    let b = queue(&mut tree, 1, Some(3), quota(10, None, None));
    assert_eq!(tree.cycles(), vec![CohortId(0), CohortId(1), CohortId(2)]);
    assert!(tree.in_cycle(a) && !tree.in_cycle(b));
    assert_eq!(tree.available(a, CPU), Amount(10));
}

#[test]
fn a_long_chain_of_cohorts_needs_no_stack() {
    let mut tree = Tree::default();
    let none = CellMap::default();
    for id in 0..5_000 {
        tree.set_cohort(CohortId(id), Some(CohortId(id + 1)), &none, FairWeight::default());
    }
    let a = queue(&mut tree, 0, Some(0), quota(10, None, None));
    assert_eq!(tree.available(a, CPU), Amount(10));
}

/// Parents and quotas.
type Nodes = Vec<(Option<u32>, Quota)>;

/// A random tree: two levels of cohorts, queues below either.
fn world() -> impl Strategy<Value = (Nodes, Nodes)> {
    let limit = || prop_oneof![Just(None), (0..12i64).prop_map(|n| Some(Amount(n)))];
    let quota = move || {
        (0..12i64, limit(), limit()).prop_map(|(nominal, borrowing, lending)| Quota {
            nominal: Amount(nominal),
            borrowing,
            lending,
        })
    };
    let cohorts = (proptest::option::of(3..5u32), quota());
    (prop::collection::vec(cohorts, 3), prop::collection::vec((proptest::option::of(0..5u32), quota()), 1..6))
}

fn build(cohorts: &[(Option<u32>, Quota)], queues: &[(Option<u32>, Quota)]) -> Tree {
    let mut tree = Tree::default();
    for (at, (parent, quota)) in cohorts.iter().enumerate() {
        let quotas = [(CPU, *quota)].into_iter().collect();
        tree.set_cohort(CohortId(at as u32), parent.map(CohortId), &quotas, FairWeight::default());
    }
    for (at, (cohort, quota)) in queues.iter().enumerate() {
        let quotas = [(CPU, *quota)].into_iter().collect();
        tree.set_queue(QueueId(at as u32), cohort.map(CohortId), &quotas, FairWeight::default());
    }
    tree.settle();
    tree
}

/// Spec 3.2, written down as it reads.
fn available_by_the_book(tree: &Tree, at: NodeId) -> i64 {
    let level = tree.node(at).level(CPU);
    match tree.parent(at) {
        None => level.subtree.0 - level.usage.0,
        Some(parent) => {
            let local = level.quota.lending.map_or(0, |lending| (level.subtree.0 - lending.0).max(0));
            let above = available_by_the_book(tree, parent);
            let above = match level.quota.borrowing {
                Some(limit) => above.min((level.subtree.0 - local) - (level.usage.0 - local).max(0) + limit.0),
                None => above,
            };
            (local - level.usage.0).max(0) + above
        }
    }
}

proptest! {
    #![proptest_config(crate::testing::cases(400))]

    #[test]
    fn usage_of_cohorts_follows_from_that_of_queues_whatever_the_order(
        (cohorts, queues) in world(),
        moves in prop::collection::vec((0..6usize, -5..9i64), 0..30),
    ) {
        let mut tree = build(&cohorts, &queues);
        let mut used = vec![0i64; queues.len()];
        for (at, by) in moves {
            let at = at % queues.len();
            let by = by.max(-used[at]);
            used[at] += by;
            let node = tree.queue(QueueId(at as u32)).unwrap();
            tree.shift(node, CPU, Amount(by));
        }
        let mut again = tree.clone();
        again.stale = true;
        again.settle();
        for at in 0..tree.nodes.len() {
            let id = NodeId(at as u32);
            prop_assert_eq!(tree.usage(id, CPU), again.usage(id, CPU));
            prop_assert_eq!(tree.free(id, CPU).0, available_by_the_book(&tree, id));
        }
        for (at, used) in used.iter().enumerate() {
            prop_assert_eq!(tree.usage(tree.queue(QueueId(at as u32)).unwrap(), CPU), Amount(*used));
        }
    }

    #[test]
    fn what_is_available_may_be_used_without_passing_any_limit(
        (cohorts, queues) in world(),
        asks in prop::collection::vec((0..6usize, 1..12i64), 0..30),
    ) {
        let mut tree = build(&cohorts, &queues);
        for (at, ask) in asks {
            let node = tree.queue(QueueId((at % queues.len()) as u32)).unwrap();
            prop_assert!(tree.available(node, CPU) <= tree.potential(node, CPU));
            if Amount(ask) <= tree.available(node, CPU) {
                tree.shift(node, CPU, Amount(ask));
            }
        }
        for at in 0..tree.nodes.len() {
            let id = NodeId(at as u32);
            let level = tree.node(id).level(CPU);
            match (tree.parent(id), level.quota.borrowing) {
                (None, _) => prop_assert!(level.usage <= level.subtree),
                (Some(_), Some(limit)) => prop_assert!(level.usage <= level.subtree.plus(limit)),
                _ => {}
            }
        }
    }
}
