//! Elastic jobs: what is done about each change of size, and that every replica counts once whatever happens in between.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use usher_api::kueue::Workload;
use usher_api::kueue::conditions::{self, EvictionReason, WorkloadCondition};
use usher_api::kueue::keys::annotation;
use usher_api::kueue::workload::PodSet;
use usher_api::kueue::workload_status::{Admission, PodSetAssignment};

use super::World;
use crate::queueing::elastic::{Elastic, Gone, Resize, What};

/// An elastic job that runs with two replicas of one cpu each.
fn elastic() -> World {
    let mut world = World::new();
    world.job.metadata.annotations = Some([(annotation::ELASTIC_JOB.to_owned(), "true".to_owned())].into());
    world.settle().admit_on("spot", 2);
    let used = &mut world.workload.as_mut().unwrap().status.admission.as_mut().unwrap().pod_set_assignments[0];
    used.resource_usage = serde_json::from_value(json!({"cpu": "2"})).unwrap();
    world.settle().pods(2, 0).settle();
    assert_eq!(world.done(), ["Create", "Started"]);
    world
}

impl World {
    fn scale(&mut self, parallelism: i32) -> &mut World {
        self.job.spec.as_mut().unwrap().parallelism = Some(parallelism);
        self
    }

    /// The scheduler admits so many of the slices that wait, the oldest first.
    fn admit_slices(&mut self, count: usize) -> &mut World {
        let now = self.now;
        let waiting = self.slices.iter_mut().filter(|slice| !slice.is(WorkloadCondition::Admitted));
        for slice in waiting.take(count) {
            let slice = Arc::make_mut(slice);
            slice.status.admission = Some(Admission {
                cluster_queue: "cq".to_owned(),
                pod_set_assignments: vec![PodSetAssignment {
                    name: "main".to_owned(),
                    flavors: [("cpu".to_owned(), "spot".to_owned())].into(),
                    resource_usage: serde_json::from_value(json!({"cpu": "1"})).unwrap(),
                    count: Some(1),
                    ..PodSetAssignment::default()
                }],
            });
            for ty in ["QuotaReserved", "Admitted"] {
                let new = conditions::condition(ty, true, ty, "", None, now);
                conditions::set(&mut slice.status.conditions, new);
            }
        }
        self
    }

    /// Replicas admitted and what they use, as the Workload says.
    fn admitted(&self) -> (i32, String) {
        let admission = self.workload.as_ref().unwrap().status.admission.clone().unwrap_or_default();
        let got = admission.pod_set_assignments.first().cloned().unwrap_or_default();
        (got.count.unwrap_or(0), got.resource_usage.get("cpu").map(ToString::to_string).unwrap_or_default())
    }

    fn resize(&self) -> String {
        let status = &self.workload.as_ref().unwrap().status;
        let found = conditions::find(&status.conditions, "ResizeRequested");
        found.map(|c| format!("{} {}: {}", c.status, c.reason, c.message)).unwrap_or_default()
    }

    fn spec_count(&self) -> i32 {
        self.workload.as_ref().unwrap().spec.pod_sets[0].count
    }
}

#[test]
fn scaled_up_it_gets_a_slice_for_each_replica_and_starts_those_that_fit() {
    let mut world = elastic();
    world.scale(5).settle();
    assert_eq!(world.done(), ["SizeTold", "3 slices"]);
    assert_eq!(world.resize(), "True ScaleUp: 0 of 3 added replicas admitted, waiting for 3 cpu in flavor spot");
    let slice = world.slices[0].clone();
    assert_eq!((slice.spec.queue_name.as_str(), slice.spec.pod_sets[0].count), ("q", 1));
    assert_eq!(slice.spec.pod_sets[0].template, world.workload.as_ref().unwrap().spec.pod_sets[0].template);
    world.admit_slices(2).settle();
    assert_eq!(world.done(), ["Folded(2)", "2 slices go"]);
    assert_eq!(world.admitted(), (4, "4".to_owned()));
    assert_eq!(world.resize(), "True ScaleUp: 2 of 3 added replicas admitted, waiting for 1 cpu in flavor spot");
    world.admit_slices(1).settle();
    assert_eq!(world.done(), ["Folded(1)", "1 slices go", "SizeSettled", "SizeTold"]);
    assert_eq!((world.admitted(), world.spec_count()), ((5, "5".to_owned()), 5));
    assert_eq!(world.resize(), "False Resized: All 5 replicas are admitted");
    assert!(!world.is_suspended());
    assert!(world.workload.as_ref().unwrap().status.folded_slices.is_empty(), "those that are gone are forgotten");
}

#[test]
fn scaled_down_its_quota_is_free_at_once_and_it_never_stops() {
    let mut world = elastic();
    world.scale(1).settle();
    assert_eq!(world.done(), ["ScaledDown", "SizeSettled"]);
    assert_eq!((world.admitted(), world.spec_count()), ((1, "1".to_owned()), 1));
    assert!(world.resize().starts_with("True ScaleDown: 1 pods above the new size of 1"), "{}", world.resize());
    world.pods(1, 0).settle();
    assert_eq!(world.resize(), "False Resized: All 1 replicas are admitted");
    assert!(!world.is_suspended());
}

#[test]
fn scaled_down_while_slices_wait_the_newest_are_withdrawn() {
    let mut world = elastic();
    world.scale(6).settle().scale(4).settle();
    let left: Vec<_> = world.slices.iter().map(|s| s.metadata.name.clone().unwrap_or_default()).collect();
    assert_eq!(left.len(), 2);
    assert!(left[0].ends_with("-slice-main-1") && left[1].ends_with("-slice-main-2"), "{left:?}");
    world.scale(2).settle();
    assert_eq!(world.slices.len(), 0);
    assert_eq!(world.resize(), "False Resized: All 2 replicas are admitted");
}

#[test]
fn down_and_up_and_up_and_down_in_one_moment_leave_nothing_behind() {
    let mut world = elastic();
    world.scale(1).scale(3).settle().admit_slices(9).settle();
    assert_eq!((world.admitted().0, world.slices.len()), (3, 0));
    world.scale(7).settle().scale(3).settle();
    assert_eq!((world.admitted().0, world.slices.len()), (3, 0));
}

#[test]
fn scaled_to_nothing_it_keeps_nothing_and_comes_back() {
    let mut world = elastic();
    world.scale(0).settle().pods(0, 0).settle();
    assert_eq!(world.admitted(), (0, "0".to_owned()));
    assert!(!world.is_suspended());
    world.scale(2).settle().admit_slices(2).settle();
    assert_eq!(world.admitted(), (2, "2".to_owned()));
}

#[test]
fn evicted_it_loses_its_slices_and_comes_back_at_its_wanted_size() {
    let mut world = elastic();
    world.scale(4).settle().admit_slices(1).settle();
    world.done();
    world.evict(EvictionReason::Preempted).settle();
    assert_eq!(world.done(), ["1 slices go", "Stopped"]);
    world.pods(0, 0).settle();
    assert_eq!(world.done(), ["Restored", "Requeued", "Resized"]);
    assert_eq!((world.spec_count(), world.slices.len()), (4, 0));
    assert_eq!(world.resize(), "");
}

#[test]
fn resized_while_it_waits_it_is_simply_another_size() {
    let mut world = World::new();
    world.job.metadata.annotations = Some([(annotation::ELASTIC_JOB.to_owned(), "true".to_owned())].into());
    world.settle().scale(7).settle();
    assert_eq!(world.done(), ["Create", "Resized"]);
    assert_eq!(world.spec_count(), 7);
}

#[test]
fn with_the_feature_off_a_resize_stops_and_queues_again() {
    let mut world = elastic();
    world.policy.elastic_jobs = false;
    world.scale(3).settle();
    assert!(world.is_suspended());
    world.pods(0, 0).settle();
    assert_eq!((world.spec_count(), world.slices.len()), (3, 0));
}

#[test]
fn its_pods_are_ready_when_as_many_are_as_were_admitted() {
    let mut world = elastic();
    world.policy.pods_ready = Some(crate::queueing::policy::PodsReady::default());
    world.job.status.as_mut().unwrap().ready = Some(2);
    world.scale(5).settle();
    let status = &world.workload.as_ref().unwrap().status;
    assert!(conditions::is_true(&status.conditions, "PodsReady"));
}

/// A Workload that was admitted with these pod sets, each pod of one cpu.
fn parent(sets: &[(&str, i32)]) -> Workload {
    let spec = |(name, count): &(&str, i32)| json!({"name": name, "count": count, "template": {}});
    let got = |(name, count): &(&str, i32)| json!({"name": name, "count": count, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": count.to_string()}});
    let parent = json!({"metadata": {"name": "w", "uid": "u"},
        "spec": {"queueName": "q", "podSets": sets.iter().map(spec).collect::<Vec<_>>()},
        "status": {"admission": {"clusterQueue": "cq", "podSetAssignments": sets.iter().map(got).collect::<Vec<_>>()}}});
    serde_json::from_value(parent).unwrap()
}

fn next(parent: &Workload, slices: &[Arc<Workload>], wanted: &[(&str, i32)], size: i32) -> Option<Resize> {
    let wanted: Vec<PodSet> = (wanted.iter())
        .map(|(name, count)| PodSet { name: (*name).to_owned(), count: *count, ..PodSet::default() })
        .collect();
    let now = jiff::Timestamp::from_second(1_700_000_000).unwrap();
    Elastic { parent, variant: None, slices, wanted: &wanted, replica_size: &|_| size, pods_now: 0, now }.next()
}

#[test]
fn a_replica_of_several_pods_is_one_slice() {
    let mut parent = parent(&[("g", 4)]);
    let Some(Resize::Status(status, What::Told)) = next(&parent, &[], &[("g", 12)], 4) else { panic!("not told") };
    let told = conditions::find(&status.conditions, "ResizeRequested").map(|c| c.message.clone());
    assert_eq!(told.as_deref(), Some("0 of 2 added replicas admitted, waiting for 8 cpu in flavor spot"));
    parent.status = *status;
    let Some(Resize::Create(slices)) = next(&parent, &[], &[("g", 12)], 4) else { panic!("no slices") };
    assert_eq!(slices.iter().map(|slice| slice.spec.pod_sets[0].count).collect::<Vec<_>>(), [4, 4]);
    let slices: Vec<_> = slices.into_iter().map(Arc::new).collect();
    let Some(Resize::Delete(gone, Gone::Withdrawn)) = next(&parent, &slices, &[("g", 8)], 4) else {
        panic!("none goes")
    };
    assert_eq!(gone, [slices[1].clone()]);
}

#[test]
fn a_pod_set_that_shrinks_has_its_size_while_another_still_waits() {
    let (mut parent, wanted) = (parent(&[("a", 3), ("b", 1)]), [("a", 1), ("b", 3)]);
    let Some(Resize::Status(status, What::ScaledDown)) = next(&parent, &[], &wanted, 1) else { panic!("not lowered") };
    parent.status = *status;
    let told = conditions::find(&parent.status.conditions, "ResizeRequested").map(|c| c.message.clone());
    assert_eq!(told.as_deref(), Some("0 of 2 added replicas admitted, waiting for 2 cpu in flavor spot"));
    let Some(Resize::Create(slices)) = next(&parent, &[], &wanted, 1) else { panic!("no slices") };
    let slices: Vec<_> = slices.into_iter().map(Arc::new).collect();
    assert!(slices.len() == 2 && slices.iter().all(|slice| slice.spec.pod_sets[0].name == "b"));
    let Some(Resize::Spec(spec)) = next(&parent, &slices, &wanted, 1) else { panic!("the spec is not lowered") };
    assert_eq!(spec.pod_sets.iter().map(|set| set.count).collect::<Vec<_>>(), [1, 1]);
}

#[derive(Clone, Debug)]
enum Deed {
    Scale(i32),
    Admit(usize),
    Evict,
    PodsGone,
    /// One step only, as if the process had then died.
    Step,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        (0..9).prop_map(Deed::Scale),
        (1usize..4).prop_map(Deed::Admit),
        Just(Deed::Evict),
        Just(Deed::PodsGone),
        Just(Deed::Step),
        Just(Deed::Step),
    ];
    proptest::collection::vec(deed, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_in_between_what_is_used_is_what_is_admitted(deeds in deeds()) {
        let mut world = elastic();
        for deed in deeds {
            match deed {
                Deed::Scale(count) => drop(world.scale(count)),
                Deed::Admit(count) => drop(world.admit_slices(count)),
                Deed::Evict => drop(world.evict(EvictionReason::Preempted)),
                Deed::PodsGone => drop(world.pods(0, 0)),
                Deed::Step => drop(world.step()),
            }
            let (count, used) = world.admitted();
            prop_assert!(used.is_empty() || used == count.to_string(), "{} replicas use {}", count, used);
            let folded = world.workload.as_ref().unwrap().status.folded_slices.clone();
            let twice = folded.len() != folded.iter().collect::<std::collections::BTreeSet<_>>().len();
            prop_assert!(!twice, "a slice was folded twice: {:?}", folded);
        }
        world.settle().pods(0, 0).settle();
        if world.is_suspended() {
            world.admit_on("spot", world.spec_count()).settle();
        }
        let wanted = world.job.spec.as_ref().unwrap().parallelism.unwrap_or(0);
        for _ in 0..3 {
            world.admit_slices(20).settle();
        }
        prop_assert_eq!((world.admitted().0, world.spec_count(), world.slices.len()), (wanted, wanted, 0));
    }
}
