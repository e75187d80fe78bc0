use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use usher_api::kueue::{ResourceFlavor, Workload};

use super::*;
use crate::runtime::Key;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn queue(spec: Value) -> ClusterQueue {
    let mut whole = json!({"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["memory", "cpu"],
        "flavors": [{"name": "f", "resources": [
            {"name": "memory", "nominalQuota": "1Gi"}, {"name": "cpu", "nominalQuota": 2}]}]}]});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    read(json!({"metadata": {"name": "q", "generation": 3}, "spec": whole}))
}

fn flavor(name: &str, spec: Value) -> ResourceFlavor {
    read(json!({"metadata": {"name": name}, "spec": spec}))
}

fn check(name: &str, controller: &str, active: bool) -> AdmissionCheck {
    let status = if active { "True" } else { "False" };
    read(
        json!({"metadata": {"name": name, "generation": 1}, "spec": {"controllerName": controller}, "status": {"conditions":
        [{"type": "Active", "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
    )
}

fn local(spec: Value) -> LocalQueue {
    let mut whole = json!({"clusterQueue": "q"});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    read(json!({"metadata": {"namespace": "n", "name": "lq", "generation": 1}, "spec": whole}))
}

/// A world with a queue `q`, its flavor, and a LocalQueue `n/lq` that leads to it.
fn book(queue: &ClusterQueue) -> Book {
    let mut book = Book::default();
    book.cluster_queue("q", Some(queue));
    book.flavor("f", Some(&flavor("f", json!({}))));
    book.namespace("n", Some(Default::default()));
    book.local_queue(&Key::new("n", "lq"), Some(&local(json!({}))));
    book.plan(at(0));
    book
}

fn id(book: &Book) -> QueueId {
    QueueId(book.words.names.queues.find("q").unwrap())
}

fn local_id(book: &Book) -> LocalId {
    LocalId(book.words.names.locals.find("n/lq").unwrap())
}

fn words(book: &mut Book) -> (&'static str, String) {
    book.plan(at(0));
    let (reason, message) = readiness(book, id(book));
    (reason.as_str(), message)
}

/// A workload that asks for so much cpu and, if said so, has it.
fn workload(book: &mut Book, name: &str, cpu: &str, has: Option<bool>) {
    let mut object = json!({"metadata": {"namespace": "n", "name": name, "uid": name, "resourceVersion": "1"}, "spec": {
        "queueName": "lq", "active": true, "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}}]}});
    if let Some(admitted) = has {
        let condition = |ty: &str, is: bool| {
            json!({"type": ty, "status": if is { "True" } else { "False" }, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        object["status"] = json!({
            "conditions": [condition("QuotaReserved", true), condition("Admitted", admitted)],
            "admission": {"clusterQueue": "q", "podSetAssignments": [
                {"name": "main", "count": 1, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": cpu}}]}});
    }
    let object: Workload = read(object);
    book.seen(&Key::new("n", name), &Arc::new(object));
}

#[test]
fn a_queue_says_first_what_upstream_says_first_and_then_the_rest() {
    let mut book = book(&queue(json!({"stopPolicy": "Hold", "admissionChecksStrategy": {"admissionChecks": [
        {"name": "z"}, {"name": "a"}, {"name": "idle"}, {"name": "far"}]}})));
    book.flavor("f", None);
    book.check("idle", Some(&check("idle", "example.com/us", false)));
    book.check("far", Some(&check("far", "kueue.x-k8s.io/multikueue", true)));
    assert_eq!(
        words(&mut book),
        (
            "Stopped",
            "Can't admit new workloads: is stopped, references missing ResourceFlavor(s): f, references missing \
             AdmissionCheck(s): a,z, references not supported AdmissionCheck(s): far, references inactive \
             AdmissionCheck(s): idle."
                .to_owned()
        )
    );
}

#[test]
fn a_queue_becomes_ready_as_what_it_needs_appears() {
    let mut book = book(&queue(json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "c"}]}})));
    book.flavor("f", None);
    assert_eq!(words(&mut book).0, "FlavorNotFound");
    book.flavor("f", Some(&flavor("f", json!({}))));
    assert_eq!(words(&mut book).0, "AdmissionCheckNotFound");
    book.check("c", Some(&check("c", "example.com/us", false)));
    assert_eq!(words(&mut book).0, "AdmissionCheckInactive");
    book.check("c", Some(&check("c", "example.com/us", true)));
    assert_eq!(words(&mut book), ("Ready", "Can admit new workloads".to_owned()));
}

#[test]
fn what_is_not_supported_says_so() {
    let mut book = book(&queue(json!({"cohortName": "a"})));
    book.flavor("f", Some(&flavor("f", json!({"topologyName": "t", "nodeLabels": {"a": "b"}}))));
    assert_eq!(words(&mut book).0, "TopologyNotSupported");
    let far = check("c", "kueue.x-k8s.io/provisioning-request", true);
    let status = super::check(&far, at(0));
    assert_eq!((&*status.conditions[0].status, &*status.conditions[0].reason), ("False", "NotSupported"));
    assert!(status.conditions[0].message.starts_with("ProvisioningRequest is not supported"));
    let ours = check("c", "example.com/us", false);
    assert_eq!(super::check(&ours, at(0)), ours.status);
}

#[test]
fn a_cohort_that_is_nowhere_does_no_harm_and_one_in_a_circle_does() {
    let mut book = book(&queue(json!({"cohortName": "a"})));
    assert_eq!(words(&mut book).0, "Ready");
    let cohort = |parent: &str| read::<Cohort>(json!({"metadata": {"name": "c"}, "spec": {"parentName": parent}}));
    book.cohort("a", Some(&cohort("b")));
    assert_eq!(words(&mut book).0, "Ready");
    book.cohort("b", Some(&cohort("a")));
    assert_eq!(words(&mut book), ("CohortCycle", "Can't admit new workloads: its cohort has a cycle.".to_owned()));
    book.cohort("b", None);
    assert_eq!(words(&mut book).0, "Ready");
}

#[test]
fn a_queue_that_is_being_deleted_says_only_that() {
    let mut going = queue(json!({"stopPolicy": "Hold"}));
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    let mut book = book(&going);
    assert_eq!(words(&mut book), ("Terminating", "Can't admit new workloads; clusterQueue is terminating".to_owned()));
}

#[test]
fn the_figures_are_those_of_the_workloads_and_every_cell_is_shown() {
    let own = queue(json!({"cohortName": "team"}));
    let mut book = book(&own);
    workload(&mut book, "admitted", "1500m", Some(true));
    workload(&mut book, "reserving", "1", Some(false));
    workload(&mut book, "waiting", "1", None);
    workload(&mut book, "too", "5", None);
    book.plan(at(0));
    let status = cluster_queue(&book, id(&book), &own, at(9));
    assert_eq!((status.pending_workloads, status.reserving_workloads, status.admitted_workloads), (2, 2, 1));
    assert_eq!(
        serde_json::to_value(&status.flavors_reservation).unwrap(),
        json!([{"name": "f", "resources": [{"name": "cpu", "total": "2500m", "borrowed": "500m"},
            {"name": "memory", "total": "0", "borrowed": "0"}]}])
    );
    assert_eq!(
        serde_json::to_value(&status.flavors_usage).unwrap(),
        json!([{"name": "f", "resources": [{"name": "cpu", "total": "1500m", "borrowed": "0"},
            {"name": "memory", "total": "0", "borrowed": "0"}]}])
    );
    assert_eq!(status.conditions[0].observed_generation, Some(3));
    assert_eq!(status.fair_sharing, None);
    let status = local_queue(&book, local_id(&book), &local(json!({})), at(9));
    assert_eq!((status.pending_workloads, status.reserving_workloads, status.admitted_workloads), (2, 2, 1));
    assert_eq!(
        serde_json::to_value(&status.flavors_usage).unwrap(),
        json!([{"name": "f", "resources": [{"name": "cpu", "total": "1500m"}, {"name": "memory", "total": "0"}]}])
    );
}

#[test]
fn a_queue_without_a_cohort_borrows_nothing_even_above_its_quota() {
    let own = queue(json!({}));
    let mut book = book(&own);
    workload(&mut book, "big", "5", Some(true));
    book.plan(at(0));
    let status = cluster_queue(&book, id(&book), &own, at(9));
    assert_eq!(serde_json::to_value(&status.flavors_usage[0].resources[0]).unwrap()["borrowed"], "0");
}

#[test]
fn what_is_shown_already_stays_as_it_is() {
    let mut own = queue(json!({}));
    let book = book(&own);
    own.status = cluster_queue(&book, id(&book), &own, at(1));
    assert_eq!(cluster_queue(&book, id(&book), &own, at(5)), own.status);
}

#[test]
fn a_local_queue_says_whether_its_queue_takes_anything() {
    let words = |book: &Book, object: &LocalQueue| {
        let condition = local_queue(book, local_id(book), object, at(0)).conditions.remove(0);
        (condition.status, condition.reason, condition.message)
    };
    let expect = |status: &str, reason: &str, message: &str| (status.to_owned(), reason.to_owned(), message.to_owned());
    let mut own = book(&queue(json!({})));
    let plain = local(json!({}));
    assert_eq!(words(&own, &plain), expect("True", "Ready", "Can submit new workloads to localQueue"));
    let stopped = local(json!({"stopPolicy": "Hold"}));
    assert_eq!(words(&own, &stopped), expect("False", "Stopped", "LocalQueue is stopped"));
    own.cluster_queue("q", Some(&queue(json!({"stopPolicy": "Hold"}))));
    own.plan(at(0));
    let inactive = "Can't submit new workloads to clusterQueue";
    assert_eq!(words(&own, &plain), expect("False", "ClusterQueueIsInactive", inactive));
    own.cluster_queue("q", None);
    own.plan(at(0));
    assert_eq!(words(&own, &plain), expect("False", "ClusterQueueDoesNotExist", inactive));
}

#[test]
fn whoever_waits_where_nobody_takes_him_is_not_pending() {
    let own = queue(json!({}));
    let mut book = book(&own);
    workload(&mut book, "big", "5", None);
    book.plan(at(0));
    assert_eq!(cluster_queue(&book, id(&book), &own, at(0)).pending_workloads, 1);
    // A stopped ClusterQueue keeps its line; a stopped LocalQueue has none.
    let held = queue(json!({"stopPolicy": "Hold"}));
    book.cluster_queue("q", Some(&held));
    book.plan(at(0));
    assert_eq!(cluster_queue(&book, id(&book), &held, at(0)).pending_workloads, 1);
    let stopped = local(json!({"stopPolicy": "Hold"}));
    book.local_queue(&Key::new("n", "lq"), Some(&stopped));
    book.plan(at(0));
    assert_eq!(cluster_queue(&book, id(&book), &held, at(0)).pending_workloads, 0);
    assert_eq!(local_queue(&book, local_id(&book), &stopped, at(0)).pending_workloads, 0);
}

#[test]
fn only_those_whose_state_may_differ_are_shown_again() {
    let mut book = book(&queue(json!({})));
    book.take_touched();
    book.plan(at(1));
    assert_eq!(book.take_touched(), [].into());
    workload(&mut book, "w", "5", None);
    book.plan(at(2));
    assert_eq!(book.take_touched(), [Subject::Queue(id(&book)), Subject::Local(local_id(&book))].into());
    book.flavor("f", None);
    book.plan(at(3));
    assert_eq!(book.take_touched(), [Subject::Queue(id(&book)), Subject::Local(local_id(&book))].into());
}

#[test]
fn quota_stays_in_use_where_it_was_given_when_the_local_queue_is_gone() {
    let own = queue(json!({}));
    let mut book = book(&own);
    book.local_queue(&Key::new("n", "lq"), None);
    workload(&mut book, "w", "1", Some(true));
    book.plan(at(0));
    let status = cluster_queue(&book, id(&book), &own, at(0));
    assert_eq!((status.pending_workloads, status.admitted_workloads), (0, 1));
    assert!(!book.scheduler().is_unused(id(&book)));
}
