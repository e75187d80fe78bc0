//! Stories of one job and its Workload: each step is carried out as the API would, and what is to be seen is compared.

mod elastic;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};
use usher_api::kueue::conditions::{self, DeactivationCause, EvictionReason, WorkloadCondition};
use usher_api::kueue::keys::annotation;
use usher_api::kueue::workload_status::{Admission, PodSetAssignment};
use usher_api::kueue::{ResourceFlavor, Workload};

use super::decide::{ADMITTED_BY, Change, Observed, Priority, Step, decide};
use super::policy::{PodsReady, Policy};
use super::transition::Transition;

/// A job, its Workload if it has one, and what the rest of the world does to them.
struct World {
    job: Job,
    workload: Option<Workload>,
    slices: Vec<Arc<Workload>>,
    /// Slices made so far.
    made: usize,
    policy: Policy,
    now: Timestamp,
    /// What was done, in order.
    done: Vec<String>,
}

fn flavor(name: &str) -> Option<Arc<ResourceFlavor>> {
    let spec = match name {
        "spot" => json!({"nodeLabels": {"type": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}),
        "plain" => json!({}),
        _ => return None,
    };
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).ok().map(Arc::new)
}

impl World {
    fn new() -> World {
        let job = json!({
            "metadata": {"name": "j", "namespace": "n", "uid": "job-uid", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
            "spec": {"parallelism": 2, "suspend": true, "template": {
                "metadata": {"labels": {"app": "a", "batch.kubernetes.io/job-name": "j"}},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
                    "nodeSelector": {"zone": "a"}}}}});
        World {
            job: serde_json::from_value(job).unwrap(),
            workload: None,
            slices: Vec::new(),
            made: 0,
            policy: Policy { pods_ready: None, ..Policy::default() },
            now: Timestamp::from_second(1_700_000_000).unwrap(),
            done: Vec::new(),
        }
    }

    /// Carries out steps until there is none.
    fn settle(&mut self) -> &mut World {
        for _ in 0..40 {
            if !self.step() {
                return self;
            }
        }
        panic!("no end to it: {:?}", self.done);
    }

    /// Carries out one step, if there is any.
    fn step(&mut self) -> bool {
        let workloads: Vec<_> = self.workload.clone().map(Arc::new).into_iter().collect();
        let priority = Priority::default();
        let seen = Observed {
            job: &self.job,
            workloads: &workloads,
            slices: &self.slices,
            variants: &[],
            flavors: &flavor,
            priority: Some(&priority),
            policy: &self.policy,
        };
        let step = decide(&seen, self.now);
        let is_one = step != Step::Nothing;
        self.carry_out(step);
        is_one
    }

    fn carry_out(&mut self, step: Step<Job>) {
        let tell = |change: &Change| format!("{change:?}").split([' ', '{']).next().unwrap_or_default().to_owned();
        match step {
            Step::Nothing => {}
            Step::Create(workload) => {
                let mut workload = *workload;
                workload.metadata.uid = Some("workload-uid".to_owned());
                workload.metadata.generation = Some(1);
                self.workload = Some(workload);
                self.done.push("Create".to_owned());
            }
            Step::Job { to, change } => {
                self.done.push(tell(&change));
                self.job = *to;
            }
            Step::Spec { to, change, .. } => {
                self.done.push(tell(&change));
                let workload = self.workload.as_mut().unwrap();
                workload.spec = *to;
                if change == Change::Adopted {
                    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid"}]);
                    workload.metadata.owner_references = serde_json::from_value(owner).unwrap();
                }
            }
            Step::Status { to, change, .. } => {
                self.done.push(tell(&change));
                self.workload.as_mut().unwrap().status = *to;
            }
            Step::CreateSlices(slices) => {
                self.done.push(format!("{} slices", slices.len()));
                for mut slice in slices {
                    self.made += 1;
                    slice.metadata.uid = Some(format!("slice-{}", self.made));
                    self.slices.push(Arc::new(slice));
                }
            }
            Step::DeleteSlices(slices, _) => {
                self.done.push(format!("{} slices go", slices.len()));
                self.slices.retain(|own| !slices.contains(own));
            }
            Step::Delete { .. } => self.done.push("Delete".to_owned()),
            Step::LetGo { .. } => {
                self.done.push("LetGo".to_owned());
                let workload = self.workload.as_mut().unwrap();
                workload.metadata.finalizers = None;
                if workload.metadata.deletion_timestamp.is_some() {
                    self.workload = None;
                }
            }
        }
    }

    fn done(&mut self) -> Vec<String> {
        std::mem::take(&mut self.done)
    }

    fn status(&mut self, change: impl FnOnce(Transition) -> Transition) {
        let workload = self.workload.as_mut().unwrap();
        workload.status = change(Transition::of(workload, self.now)).status;
    }

    fn admit_on(&mut self, flavor: &str, count: i32) -> &mut World {
        let (now, workload) = (self.now, self.workload.as_mut().unwrap());
        let assignment = PodSetAssignment {
            name: "main".to_owned(),
            flavors: [("cpu".to_owned(), flavor.to_owned())].into(),
            count: Some(count),
            ..PodSetAssignment::default()
        };
        workload.status.admission =
            Some(Admission { cluster_queue: "cq".to_owned(), pod_set_assignments: vec![assignment] });
        let set = &mut workload.status.conditions;
        conditions::set(set, conditions::condition("QuotaReserved", true, "QuotaReserved", "", None, now));
        conditions::set(set, conditions::condition("Evicted", false, "QuotaReserved", "", None, now));
        workload.status = Transition::of(workload, now).admission_synced().status;
        self
    }

    fn evict(&mut self, reason: EvictionReason) -> &mut World {
        self.status(|status| status.evicted(reason, "", "make room"));
        self
    }

    /// What the lifecycle of Workloads does about a deactivation.
    fn deactivate(&mut self, cause: DeactivationCause) -> &mut World {
        self.workload.as_mut().unwrap().spec.active = Some(false);
        self.evict(cause.eviction())
    }

    fn pods(&mut self, active: i32, terminating: i32) -> &mut World {
        let status = self.job.status.get_or_insert_default();
        (status.active, status.terminating) = (Some(active), Some(terminating));
        self
    }

    fn suspend(&mut self, suspend: bool) -> &mut World {
        self.job.spec.as_mut().unwrap().suspend = Some(suspend);
        self
    }

    fn node_selector(&self) -> Value {
        json!(self.job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().node_selector)
    }

    fn is_suspended(&self) -> bool {
        self.job.spec.as_ref().unwrap().suspend == Some(true)
    }

    fn holds_quota(&self) -> bool {
        self.workload.as_ref().unwrap().is(WorkloadCondition::QuotaReserved)
    }

    fn note(&self, key: &str) -> Option<&str> {
        self.job.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn set_cpu(&mut self, cpu: &str) {
        let template = &mut self.job.spec.as_mut().unwrap().template;
        let resources = template.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(cpu.to_owned());
        resources.requests.as_mut().unwrap().insert("cpu".to_owned(), quantity);
    }

    fn asked_cpu(&self) -> String {
        let set = &self.workload.as_ref().unwrap().spec.pod_sets[0];
        let resources = set.template.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap();
        resources.requests.as_ref().unwrap()["cpu"].0.clone()
    }
}

fn running() -> World {
    let mut world = World::new();
    world.settle().admit_on("spot", 2).settle().pods(2, 0).settle();
    assert_eq!(world.done(), ["Create", "Started"]);
    world
}

#[test]
fn a_job_gets_a_workload_that_says_what_it_asks_for() {
    let mut world = World::new();
    world.settle();
    let workload = world.workload.clone().unwrap();
    assert!(workload.metadata.name.as_deref().is_some_and(|name| name.starts_with("job-j-")));
    assert_eq!(workload.spec.queue_name, "q");
    assert_eq!((workload.spec.pod_sets.len(), workload.spec.pod_sets[0].count), (1, 2));
    let owner = &workload.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("Job", "job-uid", Some(true)));
    assert_eq!(world.done(), ["Create"]);
}

#[test]
fn an_admitted_job_starts_with_one_write_that_carries_its_flavor() {
    let mut world = World::new();
    world.settle().admit_on("spot", 2).settle();
    assert_eq!(world.done(), ["Create", "Started"]);
    assert!(!world.is_suspended());
    assert_eq!(world.node_selector(), json!({"type": "spot", "zone": "a"}));
    assert_eq!(world.note(ADMITTED_BY), Some("workload-uid"));
    let labels = world.job.spec.as_ref().unwrap().template.metadata.as_ref().unwrap().labels.clone().unwrap();
    assert_eq!(labels["kueue.x-k8s.io/podset"], "main");
    assert_eq!(labels["kueue.x-k8s.io/cluster-queue-name"], "cq");
}

#[test]
fn an_evicted_job_keeps_its_quota_until_its_pods_are_gone_and_gets_its_template_back() {
    let mut world = running();
    world.evict(EvictionReason::Preempted).settle();
    assert!(world.is_suspended() && world.holds_quota());
    assert_eq!(world.done(), ["Stopped"]);
    world.pods(0, 2).settle();
    assert!(world.holds_quota(), "terminating pods still use what it holds");
    world.pods(0, 0).settle();
    assert_eq!(world.done(), ["Restored", "Requeued"]);
    assert!(!world.holds_quota());
    assert_eq!(world.node_selector(), json!({"zone": "a"}));
    assert_eq!((world.note(ADMITTED_BY), world.note(annotation::STOPPING)), (None, None));
    let workload = world.workload.as_ref().unwrap();
    assert!(workload.is(WorkloadCondition::Requeued));
    assert!(workload.status.admission.is_none());
}

#[test]
fn an_eviction_that_is_no_preemption_does_not_requeue_at_once() {
    let mut world = running();
    world.evict(EvictionReason::PodsReadyTimeout).settle().pods(0, 0).settle();
    assert!(!world.workload.as_ref().unwrap().is(WorkloadCondition::Requeued));
    assert!(!world.holds_quota());
}

#[test]
fn an_evicted_job_starts_again_on_another_flavor() {
    let mut world = running();
    world.evict(EvictionReason::Preempted).settle().pods(0, 0).settle();
    world.done();
    world.admit_on("plain", 2).settle();
    assert_eq!(world.done(), ["Started"]);
    assert_eq!(world.node_selector(), json!({"zone": "a"}));
    assert!(!world.is_suspended());
}

#[test]
fn a_waiting_job_that_is_resized_updates_its_workload_in_place() {
    let mut world = World::new();
    world.settle().set_cpu("500m");
    world.settle();
    assert_eq!(world.done(), ["Create", "Resized"]);
    assert_eq!(world.asked_cpu(), "500m");
}

#[test]
fn the_same_amount_in_other_words_is_no_resize() {
    let mut world = World::new();
    world.settle().set_cpu("1000m");
    world.settle();
    assert_eq!(world.done(), ["Create"]);
}

#[test]
fn a_waiting_job_that_is_aimed_elsewhere_updates_its_workload() {
    let mut world = World::new();
    world.settle();
    let spec = world.job.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    spec.node_selector = Some([("zone".to_owned(), "b".to_owned())].into());
    world.settle();
    assert_eq!(world.done(), ["Create", "Resized"]);
}

#[test]
fn a_job_resized_after_its_admission_never_starts_on_it() {
    let mut world = World::new();
    world.settle().admit_on("spot", 2).set_cpu("4");
    world.settle();
    assert_eq!(world.done(), ["Create", "Requeued", "Resized", "Queued"]);
    assert!(world.is_suspended() && !world.holds_quota());
    assert_eq!(world.asked_cpu(), "4");
}

#[test]
fn a_running_job_whose_owner_suspends_it_gives_its_quota_back_and_waits() {
    let mut world = running();
    world.suspend(true).settle();
    assert_eq!(world.done(), ["Withdrawn"]);
    world.deactivate(DeactivationCause::JobSuspended).settle();
    assert!(world.holds_quota(), "its pods are still there");
    world.pods(0, 0).settle();
    assert_eq!(world.done(), ["Restored", "Requeued"]);
    assert!(world.is_suspended() && !world.holds_quota());
    assert_eq!(world.node_selector(), json!({"zone": "a"}));
}

#[test]
fn a_suspended_job_that_is_wanted_again_is_queued_at_its_new_size() {
    let mut world = running();
    world.suspend(true).settle().deactivate(DeactivationCause::JobSuspended).pods(0, 0).settle();
    world.set_cpu("250m");
    world.settle();
    world.done();
    world.suspend(false).settle();
    assert_eq!(world.done(), ["Stopped", "Returned", "Restored"]);
    assert!(world.is_suspended(), "until it is admitted");
    assert_eq!(world.workload.as_ref().unwrap().spec.active, Some(true));
    assert_eq!(world.asked_cpu(), "250m");
    world.admit_on("spot", 2).settle();
    assert_eq!(world.done(), ["Started"]);
}

#[test]
fn a_job_of_an_inactive_workload_is_not_reactivated_by_unsuspending_it() {
    let mut world = World::new();
    world.settle();
    world.workload.as_mut().unwrap().spec.active = Some(false);
    world.done();
    world.suspend(false).settle();
    assert_eq!(world.done(), ["Stopped", "Restored"]);
    assert_eq!(world.workload.as_ref().unwrap().spec.active, Some(false));
}

#[test]
fn a_job_that_runs_without_admission_is_stopped() {
    let mut world = World::new();
    world.settle().suspend(false).pods(1, 0).settle();
    assert_eq!(world.done(), ["Create", "Stopped"]);
    world.pods(0, 0).settle();
    assert_eq!(world.done(), ["Restored"]);
}

#[test]
fn a_running_job_without_a_workload_stops_before_it_gets_one() {
    let mut world = World::new();
    world.suspend(false).pods(2, 0).settle();
    assert_eq!(world.done(), ["Stopped"]);
    world.pods(0, 0).settle();
    assert_eq!(world.done(), ["Create", "Restored"]);
}

#[test]
fn a_running_job_whose_parallelism_changes_is_queued_again_at_its_new_size() {
    let mut world = running();
    world.job.spec.as_mut().unwrap().parallelism = Some(5);
    world.settle();
    assert_eq!(world.done(), ["Stopped"]);
    world.pods(0, 0).settle();
    assert_eq!(world.done(), ["Restored", "Requeued", "Resized", "Queued"]);
    assert_eq!(world.workload.as_ref().unwrap().spec.pod_sets[0].count, 5);
    assert_eq!(world.job.spec.as_ref().unwrap().parallelism, Some(5));
}

#[test]
fn a_finished_job_finishes_its_workload_and_lets_it_go() {
    let mut world = running();
    let status = json!({"conditions": [{"type": "Complete", "status": "True", "message": "done"}]});
    world.job.status = serde_json::from_value(status).unwrap();
    world.settle();
    assert_eq!(world.done(), ["Finished", "LetGo"]);
    let finished = conditions::find(&world.workload.as_ref().unwrap().status.conditions, "Finished").cloned().unwrap();
    assert_eq!((finished.reason.as_str(), finished.message.as_str()), ("Succeeded", "done"));
}

#[test]
fn a_deleted_workload_stops_its_job_and_is_made_anew() {
    let mut world = running();
    let when = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now);
    world.workload.as_mut().unwrap().metadata.deletion_timestamp = Some(when);
    world.settle();
    assert_eq!(world.done(), ["Stopped"]);
    world.pods(0, 0).settle();
    assert_eq!(world.done(), ["Restored", "LetGo", "Create"]);
    assert_eq!(world.node_selector(), json!({"zone": "a"}));
}

#[test]
fn a_deleted_job_lets_its_workload_go() {
    let mut world = running();
    world.job.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
    world.settle();
    assert_eq!(world.done(), ["LetGo"]);
}

#[test]
fn pods_that_are_done_with_are_given_back_and_never_taken_again() {
    let mut world = running();
    world.job.status.as_mut().unwrap().succeeded = Some(1);
    world.settle();
    assert_eq!(world.done(), ["Reclaimed"]);
    assert_eq!(world.workload.as_ref().unwrap().status.reclaimable_pods[0].count, 1);
    world.job.status.as_mut().unwrap().succeeded = Some(0);
    world.settle();
    assert!(world.done().is_empty());
}

#[test]
fn a_conflict_with_an_admission_check_finishes_the_workload() {
    let mut world = World::new();
    world.settle();
    let check = json!({"name": "c", "state": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "podSetUpdates": [{"name": "main", "nodeSelector": {"zone": "other"}}]});
    world.workload.as_mut().unwrap().status.admission_checks = vec![serde_json::from_value(check).unwrap()];
    world.admit_on("spot", 2).settle();
    assert_eq!(world.done(), ["Create", "FailedToStart", "LetGo"]);
    let finished = conditions::find(&world.workload.as_ref().unwrap().status.conditions, "Finished").cloned().unwrap();
    assert_eq!(
        finished.message,
        "invalid admission check PodSetUpdate: conflict for nodeSelector: conflict for key=zone, value1=a, value2=other"
    );
}

#[test]
fn a_missing_flavor_is_waited_for() {
    let mut world = World::new();
    world.settle().admit_on("gone", 2).settle();
    assert_eq!(world.done(), ["Create"]);
    assert!(world.is_suspended());
}

#[test]
fn a_waiting_job_can_change_its_queue() {
    let mut world = World::new();
    world.settle();
    world.job.metadata.labels = Some([("kueue.x-k8s.io/queue-name".to_owned(), "other".to_owned())].into());
    world.settle();
    assert_eq!(world.done(), ["Create", "QueueChanged"]);
    assert_eq!(world.workload.as_ref().unwrap().spec.queue_name, "other");
}

#[test]
fn readiness_of_pods_is_told_with_its_history() {
    let mut world = World::new();
    world.policy.pods_ready = Some(PodsReady::default());
    world.settle().admit_on("spot", 2).settle().pods(2, 0).settle();
    let reason = |world: &World| {
        let all = &world.workload.as_ref().unwrap().status.conditions;
        conditions::find(all, "PodsReady").map(|c| (c.status.clone(), c.reason.clone())).unwrap()
    };
    assert_eq!(reason(&world), ("False".to_owned(), "WaitForStart".to_owned()));
    let ready = |world: &mut World, n| {
        world.job.status.as_mut().unwrap().ready = Some(n);
        world.settle();
    };
    ready(&mut world, 2);
    assert_eq!(reason(&world), ("True".to_owned(), "Started".to_owned()));
    ready(&mut world, 1);
    assert_eq!(reason(&world), ("False".to_owned(), "WaitForRecovery".to_owned()));
    ready(&mut world, 2);
    assert_eq!(reason(&world), ("True".to_owned(), "Recovered".to_owned()));
}

#[test]
fn time_spent_admitted_adds_up_over_evictions() {
    let mut world = running();
    world.now += SignedDuration::from_secs(40);
    world.evict(EvictionReason::Preempted).settle().pods(0, 0).settle();
    world.admit_on("spot", 2).settle();
    world.now += SignedDuration::from_secs(5);
    world.evict(EvictionReason::Preempted).settle().pods(0, 0).settle();
    let status = &world.workload.as_ref().unwrap().status;
    assert_eq!(status.accumulated_past_execution_time_seconds, Some(45));
    let evictions = &status.scheduling_stats.as_ref().unwrap().evictions;
    assert_eq!((evictions[0].reason.as_str(), evictions[0].count), ("Preempted", 2));
}
