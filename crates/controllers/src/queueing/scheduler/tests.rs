//! Decisions and the writes of them, as they cross.

use std::sync::Arc;

use serde_json::{Value, json};
use usher_api::kueue::Workload;
use usher_sched::plan::Decision;

use super::book::Book;
use super::outbox::Outbox;
use super::write::{Kind, Order, orders};
use crate::runtime::Key;

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A queue of five cpus whose more important workloads push out the others.
fn book() -> Book {
    let mut book = Book::default();
    book.flavor("default", Some(&read(json!({"metadata": {"name": "default"}, "spec": {}}))));
    let queue = json!({"metadata": {"name": "team"}, "spec": {"namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"],
            "flavors": [{"name": "default", "resources": [{"name": "cpu", "nominalQuota": "5"}]}]}]}});
    book.cluster_queue("team", Some(&read(queue)));
    book.namespace("n", Some(Default::default()));
    let local = json!({"metadata": {"name": "q", "namespace": "n"}, "spec": {"clusterQueue": "team"}});
    book.local_queue(&Key::new("n", "q"), Some(&read(local)));
    book
}

fn see(book: &mut Book, name: &str, priority: i32) {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "5"}}});
    let workload: Workload = read(json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueName": "q", "priority": priority, "active": true,
            "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}]}}));
    book.seen(&Key::new("n", name), &Arc::new(workload));
}

/// Plans; the orders that go out at once, and what was decided.
fn plan(book: &mut Book, outbox: &mut Outbox) -> (Vec<Order>, Vec<Decision>) {
    let decisions = book.plan(now()).decisions;
    let mut out = Vec::new();
    for order in decisions.iter().flat_map(|decision| orders(book, decision)).collect::<Vec<_>>() {
        if order.kind() == Kind::Admission {
            book.admitting(order.workload);
        }
        out.extend(outbox.put(order));
    }
    (out, decisions)
}

fn admitted(book: &Book, decisions: &[Decision]) -> Vec<String> {
    let admitted = decisions.iter().filter_map(|decision| match decision {
        Decision::Admit { workload, .. } => book.workload(*workload)?.metadata.name.clone(),
        _ => None,
    });
    admitted.collect()
}

fn refuse(book: &mut Book, outbox: &mut Outbox, order: &Order) -> Option<Order> {
    book.settle(order.workload, &order.uid, order.kind(), None);
    let then = outbox.ended(order.workload, order.kind(), false);
    for fallen in &then.fallen {
        book.settle(fallen.workload, &fallen.uid, fallen.kind(), None);
    }
    then.next
}

#[test]
fn a_workload_evicted_before_its_admission_could_be_written_is_not_forgotten() {
    let (mut book, mut outbox) = (book(), Outbox::default());
    see(&mut book, "a", 0);
    let (out, _) = plan(&mut book, &mut outbox);
    assert_eq!(out.iter().map(Order::kind).collect::<Vec<_>>(), [Kind::Admission]);
    see(&mut book, "b", 10);
    let (more, decisions) = plan(&mut book, &mut outbox);
    assert!(matches!(&decisions[0], Decision::Preempt { victims, .. } if victims.len() == 1), "{decisions:?}");
    assert!(more.iter().all(|order| order.uid == "b"), "the eviction waits for the admission: {more:?}");

    assert_eq!(refuse(&mut book, &mut outbox, &out[0]), None);
    let (_, decisions) = plan(&mut book, &mut outbox);
    assert_eq!(admitted(&book, &decisions), ["b"], "it has the room that a was never given");
    book.gone(&Key::new("n", "b"));
    let (_, decisions) = plan(&mut book, &mut outbox);
    assert_eq!(admitted(&book, &decisions), ["a"], "it has its turn");
}
