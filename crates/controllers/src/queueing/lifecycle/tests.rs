//! Each rule in a story: a Workload, time that passes, and what is to be seen of it.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use usher_api::kueue::conditions::{self, EvictionReason};
use usher_api::kueue::{ClusterQueue, LocalQueue, Workload};

use super::decide::{Owner, Seen, Step, decide};
use crate::queueing::policy::{PodsReady, Policy};
use crate::queueing::transition::Transition;

struct World {
    workload: Workload,
    local: LocalQueue,
    queue: ClusterQueue,
    owner: Owner,
    policy: Policy,
    now: Timestamp,
    events: Vec<String>,
    is_gone: bool,
}

fn start() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

impl World {
    /// A Workload that waits in the queue `cq`, which has these checks.
    fn with_checks(checks: &[&str]) -> World {
        let rules: Vec<Value> = checks.iter().map(|name| json!({"name": name})).collect();
        let strategy = if rules.is_empty() { Value::Null } else { json!({"admissionChecks": rules}) };
        let read = "an object";
        World {
            workload: serde_json::from_value(json!({
                "metadata": {"name": "w", "namespace": "n", "uid": "u", "generation": 1,
                    "finalizers": ["kueue.x-k8s.io/resource-in-use"]},
                "spec": {"queueName": "lq", "active": true, "podSets": [{"name": "main", "count": 1, "template": {}}]}}))
            .expect(read),
            local: serde_json::from_value(json!({"metadata": {"name": "lq"}, "spec": {"clusterQueue": "cq"}}))
                .expect(read),
            queue: serde_json::from_value(
                json!({"metadata": {"name": "cq"}, "spec": {"admissionChecksStrategy": strategy}}),
            )
            .expect(read),
            owner: Owner::Somebody,
            policy: Policy { pods_ready: None, ..Policy::default() },
            now: start(),
            events: Vec::new(),
            is_gone: false,
        }
    }

    fn status(&mut self, change: impl FnOnce(Transition) -> Transition) -> &mut World {
        self.workload.status = change(Transition::of(&self.workload, self.now)).status;
        self
    }

    fn reserve(&mut self, checks: &[&str]) -> &mut World {
        let admission = serde_json::from_value(json!({"clusterQueue": "cq", "podSetAssignments": [
            {"name": "main", "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "1"}}]}));
        let checks: Vec<String> = checks.iter().map(|&name| name.to_owned()).collect();
        self.status(|status| status.quota_reserved(admission.expect("an admission"), &checks))
    }

    fn check_says(&mut self, name: &str, state: &str, after_secs: Option<i32>) -> &mut World {
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now);
        let check = self.workload.status.admission_checks.iter_mut().find(|c| c.name == name).expect("the check");
        check.state = serde_json::from_value(json!(state)).expect("a state");
        (check.last_transition_time, check.requeue_after_seconds) = (Some(now), after_secs);
        self
    }

    /// What queueing does once nothing of an evicted job runs.
    fn release(&mut self, reason: &str) -> &mut World {
        self.status(|status| status.requeued(false, reason, "evicted").quota_released("evicted"))
    }

    fn pass(&mut self, secs: i64) -> &mut World {
        self.now += SignedDuration::from_secs(secs);
        self
    }

    /// Carries out steps until there is none, and says when time alone will call for the next.
    fn settle(&mut self) -> Option<i64> {
        for _ in 0..20 {
            let seen = Seen {
                workload: &self.workload,
                local: Some(&self.local),
                queue: Some(&self.queue),
                owner: self.owner,
                policy: &self.policy,
            };
            let next = decide(&seen, self.now);
            match next.step {
                Step::Nothing => return next.again.map(|at| at.duration_since(self.now).as_secs()),
                Step::Status { to, told } => {
                    assert_ne!(*to, self.workload.status, "a write that changes nothing");
                    self.workload.status = *to;
                    self.events.extend(told.iter().map(|told| format!("{}: {}", told.reason, told.message)));
                }
                Step::Deactivate => self.workload.spec.active = Some(false),
                Step::LetGo => self.workload.metadata.finalizers = None,
                Step::Delete { .. } => {
                    self.is_gone = true;
                    return None;
                }
            }
        }
        panic!("no end to it: {:?}", self.workload.status);
    }

    /// Status, reason and message of a condition.
    fn condition(&self, ty: &str) -> (String, String, String) {
        let found = conditions::find(&self.workload.status.conditions, ty).cloned();
        found.map(|c| (c.status, c.reason, c.message)).unwrap_or_default()
    }

    fn short(&self, ty: &str) -> String {
        let (status, reason, _) = self.condition(ty);
        format!("{status} {reason}")
    }

    fn requeue_in(&self) -> Option<i64> {
        let at = self.workload.status.requeue_state.as_ref()?.requeue_at.as_ref()?;
        Some(at.0.duration_since(self.now).as_secs())
    }
}

#[test]
fn it_is_admitted_when_all_its_checks_are_ready_and_not_before() {
    let mut world = World::with_checks(&["a", "b"]);
    world.reserve(&["a", "b"]).settle();
    assert_eq!(world.short("Admitted"), "False UnsatisfiedAdmissionChecks");
    world.check_says("a", "Ready", None).settle();
    assert_eq!(world.short("Admitted"), "False UnsatisfiedAdmissionChecks");
    world.pass(7).check_says("b", "Ready", None).settle();
    assert_eq!(world.short("Admitted"), "True Admitted");
    assert_eq!(world.events, ["Admitted: Admitted by ClusterQueue cq, wait time since reservation was 7s"]);
}

#[test]
fn checks_that_a_queue_gets_or_loses_later_come_and_go() {
    let mut world = World::with_checks(&["a"]);
    world.reserve(&["a"]).settle();
    let other =
        json!({"admissionChecks": [{"name": "b", "onFlavors": ["spot"]}, {"name": "c", "onFlavors": ["other"]}]});
    world.queue.spec.admission_checks_strategy = serde_json::from_value(other).unwrap();
    world.settle();
    let checks: Vec<&str> = world.workload.status.admission_checks.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(checks, ["b"], "of those that apply to its flavor");
    world.queue.spec.admission_checks_strategy = None;
    world.settle();
    assert_eq!(world.short("Admitted"), "True Admitted", "nothing is left to wait for");
}

#[test]
fn a_check_that_says_retry_evicts_and_the_wait_is_as_long_as_it_said() {
    let mut world = World::with_checks(&["a"]);
    world.reserve(&["a"]).settle();
    world.check_says("a", "Retry", Some(90)).settle();
    assert_eq!(world.short("Evicted"), "True AdmissionCheck");
    assert_eq!(world.condition("Evicted").2, "Evicted due to AdmissionCheck in Retry state: \"a\"");
    let check = &world.workload.status.admission_checks[0];
    assert_eq!((check.state.as_str(), check.retry_count), ("Pending", Some(1)));
    assert_eq!(check.message.0, "Reset to Pending after eviction. Previously: Retry");
    assert_eq!(world.requeue_in(), Some(90));
    assert_eq!(world.release("AdmissionCheck").settle(), Some(90));
    assert_eq!(world.short("Requeued"), "False AdmissionCheck");
    world.pass(90).settle();
    assert_eq!((world.short("Requeued"), world.requeue_in()), ("True BackoffFinished".to_owned(), None));
}

#[test]
fn a_check_that_rejects_deactivates_and_someone_may_reactivate() {
    let mut world = World::with_checks(&["a"]);
    world.reserve(&["a"]).settle();
    world.check_says("a", "Rejected", None).workload.status.admission_checks[0].message.0 = "too big".into();
    world.settle();
    assert_eq!(world.workload.spec.active, Some(false));
    assert_eq!(world.short("Evicted"), "True DeactivatedDueToAdmissionCheck");
    let why = "The workload is deactivated due to AdmissionCheck in Rejected state: \"a\" (too big)";
    assert_eq!(world.condition("Evicted").2, why);
    assert_eq!(world.short("DeactivationTarget"), " ", "it was done");
    assert_eq!(
        world.events,
        [
            "AdmissionCheckRejected: Deactivated due to AdmissionCheck in Rejected state: \"a\" (too big)".to_owned(),
            format!("EvictedDueToDeactivatedDueToAdmissionCheck: {why}"),
        ]
    );
    let stats = world.workload.status.scheduling_stats.clone().unwrap();
    assert_eq!((stats.evictions[0].reason.as_str(), stats.evictions[0].count), ("Deactivated", 1));
    world.release("DeactivatedDueToAdmissionCheck").settle();
    assert_eq!(world.short("Requeued"), "False DeactivatedDueToAdmissionCheck");
    world.workload.spec.active = Some(true);
    world.settle();
    assert_eq!(world.short("Requeued"), "True Reactivated");
}

#[test]
fn deactivated_by_hand_it_is_evicted_without_a_cause_and_forgets_its_wait() {
    let mut world = World::with_checks(&[]);
    world.reserve(&[]).settle();
    world.workload.spec.active = Some(false);
    world.workload.status.requeue_state = serde_json::from_value(json!({"count": 3})).unwrap();
    world.settle();
    assert_eq!(world.short("Evicted"), "True Deactivated");
    assert_eq!(world.workload.status.requeue_state, None);
    assert_eq!(world.events, ["EvictedDueToDeactivated: The workload is deactivated"]);
}

#[test]
fn pods_that_are_not_ready_in_time_send_it_back_longer_each_time_and_at_last_for_good() {
    let mut world = World::with_checks(&[]);
    let ready = PodsReady { timeout: SignedDuration::from_secs(300), retries: Some(2), ..PodsReady::default() };
    world.policy.pods_ready = Some(ready);
    for (nth, wait) in [(1, 60), (2, 120)] {
        assert_eq!(world.reserve(&[]).settle(), Some(300));
        world.pass(300).settle();
        assert_eq!(world.short("Evicted"), "True PodsReadyTimeout");
        assert_eq!(world.workload.status.requeue_state.clone().unwrap().count, Some(nth));
        assert_eq!(world.requeue_in(), Some(wait));
        assert_eq!(world.release("PodsReadyTimeout").settle(), Some(wait));
        world.pass(wait).settle();
        assert_eq!(world.short("Requeued"), "True BackoffFinished");
    }
    world.reserve(&[]).pass(300).settle();
    assert_eq!(world.short("Evicted"), "True DeactivatedDueToRequeuingLimitExceeded");
    assert_eq!(world.workload.spec.active, Some(false));
}

#[test]
fn ready_pods_have_no_deadline_and_failed_ones_have_their_own() {
    let mut world = World::with_checks(&[]);
    let recovery = Some(SignedDuration::from_secs(50));
    world.policy.pods_ready = Some(PodsReady { recovery_timeout: recovery, ..PodsReady::default() });
    world.reserve(&[]).status(|status| status.pods_ready(true, "Started", ""));
    assert_eq!(world.settle(), None);
    world.pass(10_000).status(|status| status.pods_ready(false, "WaitForRecovery", ""));
    assert_eq!(world.settle(), Some(50));
    world.pass(50).settle();
    assert_eq!(world.short("Evicted"), "True PodsReadyTimeout");
    let stats = world.workload.status.scheduling_stats.clone().unwrap();
    assert_eq!(stats.evictions[0].underlying_cause.0, "WaitForRecovery");
}

#[test]
fn its_time_to_run_counts_all_its_admissions_together() {
    let mut world = World::with_checks(&[]);
    world.workload.spec.maximum_execution_time_seconds = Some(100);
    assert_eq!(world.reserve(&[]).settle(), Some(100));
    world.pass(60).status(|s| s.evicted(EvictionReason::Preempted, "", "")).status(|s| s.quota_released(""));
    assert_eq!(world.workload.status.accumulated_past_execution_time_seconds, Some(60));
    world.pass(1000);
    assert_eq!(world.reserve(&[]).settle(), Some(40));
    world.pass(40).settle();
    assert_eq!(world.short("Evicted"), "True DeactivatedDueToMaximumExecutionTimeExceeded");
    assert!(world.events[0].ends_with("The maximum execution time (100s) exceeded"), "{:?}", world.events);
}

#[test]
fn a_queue_that_starts_again_takes_back_what_it_sent_away() {
    for (reason, is_local) in [("ClusterQueueStopped", false), ("LocalQueueStopped", true)] {
        let mut world = World::with_checks(&[]);
        let stopped = serde_json::from_value(json!("HoldAndDrain")).unwrap();
        (world.local.spec.stop_policy, world.queue.spec.stop_policy) = (Some(stopped), Some(stopped));
        world.reserve(&[]).release(reason).settle();
        assert_eq!(world.short("Requeued"), format!("False {reason}"));
        if is_local {
            world.local.spec.stop_policy = None
        } else {
            world.queue.spec.stop_policy = None
        }
        world.settle();
        let restarted = if is_local { "True LocalQueueRestarted" } else { "True ClusterQueueRestarted" };
        assert_eq!(world.short("Requeued"), restarted);
    }
}

#[test]
fn whose_job_is_gone_is_let_go_and_who_never_had_one_waits_on() {
    let mut world = World::with_checks(&[]);
    world.owner = Owner::None;
    world.settle();
    assert!(world.workload.metadata.finalizers.is_some(), "anyone may make a Workload");
    let deleted =
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["kueue.x-k8s.io/resource-in-use"]});
    for (owner, held) in [(Owner::Somebody, true), (Owner::None, false), (Owner::Gone, false)] {
        world.workload.metadata = serde_json::from_value(deleted.clone()).unwrap();
        world.owner = owner;
        world.settle();
        assert_eq!(world.workload.metadata.finalizers.is_some(), held, "{owner:?}");
    }
}

#[test]
fn one_that_its_job_left_behind_is_finished() {
    let mut world = World::with_checks(&[]);
    world.owner = Owner::None;
    world.workload.metadata.labels = Some([("kueue.x-k8s.io/job-uid".to_owned(), "u".to_owned())].into());
    world.settle();
    assert_eq!(world.short("Finished"), "True OwnerNotFound");
    assert_eq!(world.workload.metadata.finalizers, None);
}

#[test]
fn a_finished_one_is_deleted_when_its_time_is_over() {
    let mut world = World::with_checks(&[]);
    world.policy.keep_finished = Some(SignedDuration::from_secs(60));
    world.status(|status| status.finished(conditions::FinishedReason::Succeeded, ""));
    assert_eq!(world.settle(), Some(60));
    world.pass(60).settle();
    assert!(world.is_gone);
}
