//! Suspending, editing and resuming: KEP-2926 and KEP-5440 from the controller's side.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use usher_apiserver::gates::Gates;

use super::world::*;

fn template(generation: usize) -> Value {
    json!({"template": {
        "metadata": {"labels": {"generation": generation.to_string()}},
        "spec": {
            "nodeSelector": {"pool": format!("p{generation}")},
            "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": format!("{}m", generation + 1)}}}],
        },
    }})
}

/// What the pod was made from, if its parts agree.
fn generation(pod: &Pod) -> usize {
    let spec = pod.spec.as_ref().expect("a spec");
    let label: usize = pod.labels()["generation"].parse().expect("a number");
    assert_eq!(spec.node_selector.as_ref().expect("a selector")["pool"], format!("p{label}"));
    let requests = spec.containers[0].resources.as_ref().and_then(|r| r.requests.clone()).expect("requests");
    assert_eq!(requests["cpu"].0, format!("{}m", label + 1));
    label
}

fn with(mut spec: Value, more: Value) -> Value {
    spec.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    spec
}

#[tokio::test(start_paused = true)]
async fn a_job_created_suspended_has_no_pods_until_it_is_resumed() {
    let world = World::new().await;
    world.create("held", json!({"suspend": true}), json!({"test/runs": "1"})).await;
    let job = world.until_condition("held", "Suspended").await;
    assert_eq!(reason(&job, "Suspended"), ("JobSuspended".into(), "Job suspended".into()));
    assert_eq!(start_time(&job), None);
    world.pass(100).await;
    assert!(world.pods_of("held").await.is_empty());
    let resumed_at = world.clock.now();
    world.edit("held", json!({"suspend": false})).await;
    let job = world.until_condition("held", "Complete").await;
    assert_eq!(reason(&job, "Suspended"), ("JobResumed".into(), "Job resumed".into()));
    assert!(start_time(&job).expect("a start").duration_since(resumed_at).as_secs().abs() <= 1);
    for (reason, message) in [("Suspended", "Job suspended"), ("Resumed", "Job resumed")] {
        world.until_event("held", reason, message).await;
    }
}

#[tokio::test(start_paused = true)]
async fn suspending_deletes_the_pods_without_counting_them_in_one_status_write() {
    let world = World::new().await;
    world.create("job", json!({"parallelism": 3, "completions": 3}), json!({"test/stops-after": "20"})).await;
    world.until("job", "runs", |s| s.ready == Some(3)).await;
    world.edit("job", json!({"suspend": true})).await;
    let job = world.until("job", "shows it", |s| s.terminating == Some(3) || condition(s, "Suspended").is_some()).await;
    assert_eq!((counts(&job), conditions(&job)), ([0, 0, 3, 0, 0], vec!["Suspended".to_string()]));
    assert_eq!(start_time(&job), None, "all in one write");
    assert!(world.pods_of("job").await.iter().all(|pod| !is_tracked(pod)));
    let job = world.until("job", "is empty", |s| s.terminating == Some(0)).await;
    assert_eq!(counts(&job), [0, 0, 0, 0, 0]);
    assert!(world.pods_of("job").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_resumed_job_runs_with_its_new_directives_and_resources() {
    let world = World::new().await;
    world.create("job", with(template(0), json!({"parallelism": 2, "completions": 2})), json!({})).await;
    world.until("job", "runs", |s| s.ready == Some(2)).await;
    assert!(world.pods_of("job").await.iter().all(|pod| generation(pod) == 0));
    let refused = world.patch("job", template(1)).await.expect_err("the template of a running Job is closed");
    assert!(shown(&refused).contains("field is immutable"), "{refused}");
    world.edit("job", json!({"suspend": true})).await;
    world.until_condition("job", "Suspended").await;
    world.edit("job", with(template(1), json!({"suspend": false}))).await;
    let pods = world.until_pods("job", "run again", |pods| pods.iter().filter(|pod| is_active(pod)).count() == 2).await;
    assert!(pods.iter().filter(|pod| is_active(pod)).all(|pod| generation(pod) == 1));
    assert_eq!(counts(&world.job("job").await)[4], 0);
}

#[tokio::test(start_paused = true)]
async fn with_replacement_policy_failed_new_pods_wait_for_the_old_ones() {
    let world = World::new().await;
    let spec = with(template(0), json!({"parallelism": 2, "completions": 2, "podReplacementPolicy": "Failed"}));
    world.create("job", spec, json!({"test/stops-after": "20"})).await;
    world.until("job", "runs", |s| s.ready == Some(2)).await;
    world.edit("job", json!({"suspend": true})).await;
    world.until_condition("job", "Suspended").await;
    world.edit("job", with(template(1), json!({"suspend": false}))).await;
    let start = world.clock.now();
    let pods = world
        .until_pods("job", "are new", |pods| {
            let old = pods.iter().filter(|pod| generation(pod) == 0).count();
            let new = pods.len() - old;
            assert!(old == 0 || new == 0, "{old} old and {new} new at the same time");
            new == 2
        })
        .await;
    assert_eq!(pods.len(), 2);
    assert!(world.clock.now().duration_since(start) >= secs(15));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_restarts_when_a_job_is_resumed() {
    for keeps_start_time in [false, true] {
        let gates = Gates { mutable_directives_when_suspended: !keeps_start_time, ..Gates::default() };
        let world = World::with_gates(gates).await;
        world.create("job", json!({"activeDeadlineSeconds": 30}), json!({})).await;
        world.until("job", "runs", |s| s.ready == Some(1)).await;
        world.pass(20).await;
        world.edit("job", json!({"suspend": true})).await;
        let job = world.until_condition("job", "Suspended").await;
        assert_eq!(start_time(&job).is_some(), keeps_start_time, "startTime is cleared iff the relaxed gate is on");
        world.pass(200).await;
        assert_eq!(conditions(&world.job("job").await), ["Suspended"], "no deadline while suspended");
        let resumed = world.clock.now();
        world.edit("job", json!({"suspend": false})).await;
        let job = world.until_condition("job", "Failed").await;
        let ran = time_of(&job, "FailureTarget").duration_since(resumed).as_secs();
        assert!((29..=30).contains(&ran), "{ran}");
    }
}

#[tokio::test(start_paused = true)]
async fn completion_wins_over_suspension() {
    let world = World::new().await;
    world.create("none", json!({"suspend": true, "completions": 0}), json!({})).await;
    let job = world.until_condition("none", "Complete").await;
    assert_eq!((start_time(&job), conditions(&job)), (None, vec!["SuccessCriteriaMet".into(), "Complete".into()]));
}

/// KEP-2926's race: unsuspend, suspend and edit in quick succession, at all distances from what the controller does.
async fn race(replacement: &str, notes: Value, rounds: usize) {
    let world = World::new().await;
    let spec = json!({"parallelism": 2, "completions": 1000000, "podReplacementPolicy": replacement, "suspend": true});
    world.create("raced", with(template(0), spec), notes).await;
    let (mut edits, mut refused, mut ran, mut random) = (0, 0, 0, 12345u64);
    for round in 1..=rounds {
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        // All three are under way at the same time, a little apart.
        let sent = |spec: Value, turns: u64, long: bool| {
            let world = &world;
            async move {
                pause(turns, long).await;
                world.patch("raced", spec).await
            }
        };
        let (start, long) = (next(60), next(3) == 0);
        let gap = if next(2) == 0 { next(5) } else { next(40) };
        let (resumed, suspended, edited, ()) = tokio::join!(
            sent(json!({"suspend": false}), 0, false),
            sent(json!({"suspend": true}), start, long),
            sent(template(round), start + gap, long),
            async {
                pause(start, long).await;
                ran += usize::from(!world.pods_of("raced").await.is_empty());
            }
        );
        resumed.expect("resume");
        suspended.expect("suspend");
        match edited {
            Ok(_) => edits += 1,
            Err(error) => {
                assert!(shown(&error).contains("field is immutable"), "{error}");
                refused += 1;
            }
        }
        check(&world, replacement, round).await;
        if next(3) == 0 {
            world.edit("raced", json!({"suspend": false})).await;
            pause(next(30), false).await;
            check(&world, replacement, round).await;
            world.edit("raced", json!({"suspend": true})).await;
        }
    }
    assert!(
        edits > rounds / 10 && refused > rounds / 50 && ran > rounds / 10,
        "{edits} edits, {refused} refused, {ran} ran"
    );
    world.edit("raced", json!({"suspend": false})).await;
    let last =
        world.job("raced").await.spec.expect("a spec").template.metadata.expect("metadata").labels.expect("labels");
    let pods = world.until_pods("raced", "are two", |pods| pods.len() == 2 && pods.iter().all(is_active)).await;
    assert!(pods.iter().all(|pod| generation(pod).to_string() == last["generation"]));
}

async fn check(world: &World, replacement: &str, round: usize) {
    let pods = world.pods_of("raced").await;
    let of = |is: fn(&Pod) -> bool| pods.iter().filter(|pod| is(pod)).map(generation).collect::<BTreeSet<_>>();
    let active = of(is_active);
    assert!(active.len() <= 1, "round {round}: pods of {active:?} at the same time");
    if replacement == "Failed" {
        let all = of(|pod| !super::kubelet::has_ended(pod));
        assert!(all.len() <= 1, "round {round}: pods of {all:?}, terminating ones included");
    }
}

/// Two thousand rounds in all, unless somebody wants more.
fn rounds(usual: usize) -> usize {
    std::env::var("USHER_RACE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

/// A few turns of the runtime, or until the controllers have nothing to do.
async fn pause(turns: u64, long: bool) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
    if long {
        tokio::time::sleep(std::time::Duration::from_millis(turns * 5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_edit_ever_mixes_pods_of_two_templates() {
    race("TerminatingOrFailed", json!({"test/pending": "true"}), rounds(1500)).await;
}

#[tokio::test(start_paused = true)]
async fn with_replacement_policy_failed_not_even_terminating_pods_are_of_another_template() {
    race("Failed", json!({"test/stops-after": "0.05"}), rounds(500)).await;
}
