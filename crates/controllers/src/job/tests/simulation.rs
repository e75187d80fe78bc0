//! A simulated world: pods that end as they like, watches that are late, calls that are refused or whose answer is lost, a
//! controller that is killed at any call. Whatever happens, no pod is created that is not wanted, and every pod is counted
//! exactly once.
//!
//! The calls are made in the order in which `carry_out` makes them; everything that is decided is the real code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

use crate::job::decide::{Done, conditions, decide, settle, tally};
use crate::job::memory::{Memory, Shown};
use crate::job::names;
use crate::job::observe::{Observed, Policy};
use crate::job::pods;
use crate::runtime::Key;

#[derive(Clone, Debug)]
enum Op {
    /// The watches of Jobs and of pods show this many more changes.
    Deliver {
        jobs: usize,
        pods: usize,
    },
    Sync(Fault),
    Restart,
    /// The n-th pod that has not ended ends.
    End {
        nth: usize,
        well: bool,
    },
    /// Somebody deletes the n-th pod.
    Delete {
        nth: usize,
    },
    Tick {
        secs: i64,
    },
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The n-th call is refused.
    Refuse(usize),
    /// The n-th call is done, but its answer is lost.
    Lose(usize),
    /// The controller is killed before, or right after, the n-th call.
    Kill {
        call: usize,
        after: bool,
    },
}

#[derive(Debug)]
enum Stop {
    Failed { done: bool },
    Conflict,
    Killed,
}

enum Change {
    Job(Arc<Job>),
    Pod(Arc<Pod>),
    Gone(String),
}

struct World {
    now: Timestamp,
    revision: u64,
    job: Arc<Job>,
    pods: BTreeMap<String, Arc<Pod>>,
    created: usize,
    ended_well: usize,
    /// Pods that were to be deleted uncounted and have lost their finalizer for it.
    taken_back: BTreeSet<String>,
    /// Pods that some status has listed: each must be listed once, and counted when it leaves the list.
    listed: BTreeSet<String>,
    jobs_log: Vec<(u64, Change)>,
    pods_log: Vec<(u64, Change)>,
    // What the controller sees and remembers.
    seen_job: Arc<Job>,
    seen_pods: BTreeMap<String, Arc<Pod>>,
    shown: (u64, u64),
    memory: Memory,
    fault: Fault,
    calls: usize,
}

fn pod_name(nth: usize) -> String {
    format!("p{nth:04}")
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap()
}

fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == names::TRACKING_FINALIZER)
}

fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The pods that a status lists and has not counted.
fn listed(status: &JobStatus) -> BTreeSet<String> {
    let lists = status.uncounted_terminated_pods.clone().unwrap_or_default();
    lists.succeeded.into_iter().chain(lists.failed).flatten().collect()
}

fn is_active(pod: &Pod) -> bool {
    !ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

impl World {
    fn new(spec: serde_json::Value) -> World {
        let mut job = json!({"metadata": {"name": "j", "namespace": "n", "uid": "U", "resourceVersion": "1"},
            "spec": {"backoffLimit": 1000, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}}});
        job["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job: Arc<Job> = Arc::new(serde_json::from_value(job).unwrap());
        World {
            now: "2026-11-15T00:00:00Z".parse().unwrap(),
            revision: 1,
            seen_job: job.clone(),
            job,
            pods: BTreeMap::new(),
            created: 0,
            ended_well: 0,
            taken_back: BTreeSet::new(),
            listed: BTreeSet::new(),
            jobs_log: Vec::new(),
            pods_log: Vec::new(),
            seen_pods: BTreeMap::new(),
            shown: (1, 1),
            memory: Memory::of("U"),
            fault: Fault::None,
            calls: 0,
        }
    }

    fn status(&self) -> JobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    fn put_pod(&mut self, mut pod: Pod) -> u64 {
        self.revision += 1;
        pod.metadata.resource_version = Some(self.revision.to_string());
        let gone = pod.metadata.deletion_timestamp.is_some() && !tracked(&pod) && ended(&pod);
        let (key, pod) = (name(&pod).to_string(), Arc::new(pod));
        if gone {
            self.pods.remove(&key);
            self.pods_log.push((self.revision, Change::Gone(key)));
        } else {
            self.pods.insert(key, pod.clone());
            self.pods_log.push((self.revision, Change::Pod(pod)));
        }
        self.revision
    }

    fn deliver(&mut self, jobs: usize, pods: usize) {
        for (revision, change) in self.jobs_log.drain(..jobs.min(self.jobs_log.len())) {
            if let Change::Job(job) = change {
                self.seen_job = job;
            }
            self.shown.0 = revision;
        }
        for (revision, change) in self.pods_log.drain(..pods.min(self.pods_log.len())) {
            match change {
                Change::Pod(pod) => drop(self.seen_pods.insert(name(&pod).to_string(), pod)),
                Change::Gone(key) => drop(self.seen_pods.remove(&key)),
                Change::Job(_) => {}
            }
            self.shown.1 = revision;
        }
    }

    fn restart(&mut self) {
        self.memory = Memory::of("U");
        self.deliver(usize::MAX, usize::MAX);
        self.shown = (self.revision, self.revision);
    }

    /// One call to the API, with whatever goes wrong at it.
    fn call<T>(&mut self, act: impl FnOnce(&mut World) -> Result<T, Stop>) -> Result<T, Stop> {
        self.calls += 1;
        match self.fault {
            Fault::Refuse(call) if call == self.calls => Err(Stop::Failed { done: false }),
            Fault::Kill { call, after: false } if call == self.calls => Err(Stop::Killed),
            Fault::Lose(call) if call == self.calls => act(self).and(Err(Stop::Failed { done: true })),
            Fault::Kill { call, after: true } if call == self.calls => act(self).and(Err(Stop::Killed)),
            _ => act(self),
        }
    }

    fn write(&mut self, observed: &mut Observed, revision: &mut String, status: &JobStatus) -> Result<(), Stop> {
        let guard = revision.clone();
        *revision = self.call(|world| {
            if world.job.metadata.resource_version.as_deref() != Some(&guard) {
                return Err(Stop::Conflict);
            }
            let (old, mut job) = (world.status(), (*world.job).clone());
            let count = |count: Option<i32>| count.unwrap_or(0);
            assert!(count(status.succeeded) >= count(old.succeeded) && count(status.failed) >= count(old.failed));
            let before = listed(&old);
            for uid in listed(status).difference(&before) {
                assert!(world.listed.insert(uid.clone()), "{uid} was counted before");
            }
            world.revision += 1;
            job.metadata.resource_version = Some(world.revision.to_string());
            job.status = Some(status.clone());
            world.job = Arc::new(job);
            world.jobs_log.push((world.revision, Change::Job(world.job.clone())));
            Ok(world.revision.to_string())
        })?;
        self.memory.wrote_job(revision);
        observed.status = status.clone();
        Ok(())
    }

    fn create(&mut self, pod: Pod) -> Result<(), Stop> {
        let revision = self.call(|world| {
            let mut pod = pod;
            world.created += 1;
            let own = pod_name(world.created);
            (pod.metadata.name, pod.metadata.uid) = (Some(own.clone()), Some(own));
            pod.metadata.creation_timestamp = Some(Time(world.now));
            pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
            Ok(world.put_pod(pod))
        })?;
        self.memory.wrote_pod(&revision.to_string());
        Ok(())
    }

    /// The server answers a removal that nothing is left of with the revision before it, and one of nothing with the pod
    /// as it is.
    fn strip(&mut self, pod: &Pod, take_back: bool) -> Result<(), Stop> {
        let key = name(pod).to_string();
        let answer = self.call(|world| {
            let Some(mut pod) = world.pods.get(&key).map(|pod| (**pod).clone()) else { return Ok(None) };
            if tracked(&pod) {
                pod.metadata.finalizers = None;
                world.put_pod(pod.clone());
                world.taken_back.extend(take_back.then(|| key.clone()));
            }
            Ok(Some(world.pods.get(&key).map_or(pod, |pod| (**pod).clone())))
        })?;
        let lives_on = answer.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let revision = lives_on.and_then(|pod| pod.metadata.resource_version);
        self.memory.stripped(Key::new("n", &key), &key, revision.as_deref());
        Ok(())
    }

    fn delete(&mut self, pod: &Pod) -> Result<(), Stop> {
        let key = name(pod).to_string();
        let there = self.call(|world| Ok(world.mark_deleted(&key)))?;
        if there {
            self.memory.deleted.insert(Key::new("n", &key), key.as_str().into());
        }
        Ok(())
    }

    /// Says whether there is such a pod.
    fn mark_deleted(&mut self, key: &str) -> bool {
        let Some(mut pod) = self.pods.get(key).map(|pod| (**pod).clone()) else { return false };
        if pod.metadata.deletion_timestamp.is_none() {
            pod.metadata.deletion_timestamp = Some(Time(self.now));
            self.put_pod(pod);
        }
        true
    }

    fn end(&mut self, key: &str, well: bool) {
        let mut pod = (*self.pods[key]).clone();
        let phase = if well { "Succeeded" } else { "Failed" };
        self.ended_well += usize::from(well);
        pod.status = Some(PodStatus { phase: Some(phase.into()), ..PodStatus::default() });
        self.put_pod(pod);
    }

    /// One look at the Job, as `apply` and `carry_out` take it; says how long to wait before the next.
    fn sync(&mut self, fault: Fault) -> Result<Option<SignedDuration>, Stop> {
        (self.fault, self.calls) = (fault, 0);
        if conditions::finished(&self.seen_job.status.clone().unwrap_or_default()).is_some() {
            return Ok(None);
        }
        if self.memory.unsure {
            let unseen = self.pods.values().filter(|pod| !self.seen_pods.contains_key(name(pod)));
            let revisions: Vec<_> = unseen.filter_map(|pod| pod.metadata.resource_version.clone()).collect();
            revisions.iter().for_each(|revision| self.memory.wrote_pod(revision));
            self.memory.unsure = false;
        }
        let seen = &self.seen_pods;
        let shown = |key: &Key| {
            let pod = seen.get(&*key.name)?;
            let being_deleted = pod.metadata.deletion_timestamp.is_some();
            Some(Shown { uid: name(pod).into(), being_deleted, tracked: tracked(pod) })
        };
        if self.memory.behind(self.shown.0, self.shown.1, shown).is_some() {
            return Ok(None);
        }
        let pods = self.seen_pods.values().cloned().collect();
        let mut observed = Observed::new(self.seen_job.clone(), pods, self.memory.record, Policy::default());
        let mut revision = observed.job.metadata.resource_version.clone().unwrap();
        let mut plan = decide(&observed, self.now);
        if plan.starts_first(&observed) {
            let mut status = observed.status.clone();
            conditions::mark_started(&mut status, self.now);
            self.write(&mut observed, &mut revision, &status)?;
            plan = decide(&observed, self.now);
        }
        let (mut done, mut failure) = (Done::default(), None);
        for &at in plan.delete() {
            let pod = observed.pods[at].pod.clone();
            let stripped = if plan.deletes_uncounted() { self.strip(&pod, true) } else { Ok(()) };
            match stripped.and_then(|()| self.delete(&pod)) {
                Ok(()) => drop(done.deleted.insert(at)),
                Err(Stop::Killed) => return Err(Stop::Killed),
                Err(other) => failure = Some(other),
            }
        }
        let common = pods::from_template(&observed.job, observed.job_spec().unwrap());
        for new in plan.create() {
            match self.create(pods::build(&common, "j", new)) {
                Ok(()) => done.created += 1,
                Err(Stop::Killed) => return Err(Stop::Killed),
                Err(other) => {
                    self.memory.unsure |= matches!(other, Stop::Failed { done: true });
                    failure = Some(other);
                    break;
                }
            }
        }
        let tally = tally(&observed, &plan, &done, self.now);
        if tally.changed {
            self.write(&mut observed, &mut revision, &tally.status)?;
        }
        self.memory.record = Some(plan.record);
        let mut stripped = BTreeSet::new();
        for &at in &tally.strip {
            match self.strip(&observed.pods[at].pod.clone(), false) {
                Ok(()) => drop(stripped.insert(at)),
                Err(Stop::Killed) => return Err(Stop::Killed),
                Err(other) => failure = Some(other),
            }
        }
        let settled = settle(&observed, &tally, &stripped, stripped.len() == tally.strip.len(), self.now);
        if settled.changed {
            self.write(&mut observed, &mut revision, &settled.status)?;
        }
        failure.map_or(Ok(plan.wake), Err)
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Deliver { jobs, pods } => self.deliver(jobs, pods),
            Op::Sync(fault) => {
                if let Err(Stop::Killed) = self.sync(fault) {
                    self.restart();
                }
            }
            Op::Restart => self.restart(),
            Op::End { nth, well } => {
                let running: Vec<_> =
                    self.pods.values().filter(|pod| !ended(pod)).map(|pod| name(pod).to_string()).collect();
                if let Some(key) = running.get(nth % running.len().max(1)) {
                    self.end(&key.clone(), well);
                }
            }
            Op::Delete { nth } => {
                let all: Vec<_> = self.pods.keys().cloned().collect();
                if let Some(key) = all.get(nth % all.len().max(1)) {
                    self.mark_deleted(key);
                }
            }
            Op::Tick { secs } => self.now += SignedDuration::from_secs(secs),
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        let spec = self.job.spec.as_ref().unwrap();
        let active: Vec<_> = self.pods.values().filter(|pod| is_active(pod)).collect();
        assert!(active.len() as i32 <= spec.parallelism.unwrap(), "{} pods are active", active.len());
        let indexes: Vec<_> =
            active.iter().filter_map(|pod| pod.metadata.annotations.as_ref()?.get(names::COMPLETION_INDEX)).collect();
        let distinct: BTreeSet<_> = indexes.iter().collect();
        assert_eq!(distinct.len(), indexes.len(), "an index runs twice: {indexes:?}");
        if spec.pod_replacement_policy.as_deref() == Some("Failed") {
            let there = self.pods.values().filter(|pod| !ended(pod)).count() as i32;
            assert!(there <= spec.parallelism.unwrap(), "{there} pods have not ended");
        }
    }

    /// Lets everything happen that is under way, until the Job is over.
    fn run_out(&mut self) {
        for _ in 0..5000 {
            self.deliver(usize::MAX, usize::MAX);
            let wake = self.sync(Fault::None);
            self.check();
            if conditions::finished(&self.status()).is_some() {
                return;
            }
            match wake {
                Ok(Some(wake)) => self.now += wake,
                Ok(None) => {}
                Err(stop) => panic!("nothing goes wrong any longer: {stop:?}"),
            }
            let running: Vec<_> =
                self.pods.values().filter(|pod| !ended(pod)).map(|pod| name(pod).to_string()).collect();
            running.iter().for_each(|key| self.end(key, true));
        }
        panic!("the Job does not end: {:?}\n{:?}", self.status(), self.pods);
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        4 => Just(Fault::None),
        1 => (1usize..9).prop_map(Fault::Refuse),
        1 => (1usize..9).prop_map(Fault::Lose),
        2 => (1usize..9, any::<bool>()).prop_map(|(call, after)| Fault::Kill { call, after }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..3, 0usize..5).prop_map(|(jobs, pods)| Op::Deliver { jobs, pods }),
        2 => Just(Op::Deliver { jobs: 99, pods: 99 }),
        6 => fault().prop_map(Op::Sync),
        1 => Just(Op::Restart),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(nth, well)| Op::End { nth, well }),
        1 => any::<usize>().prop_map(|nth| Op::Delete { nth }),
        3 => prop_oneof![Just(1i64), Just(12), Just(700)].prop_map(|secs| Op::Tick { secs }),
    ]
}

fn hold(spec: serde_json::Value, ops: Vec<Op>) -> World {
    let mut world = World::new(spec);
    for op in ops {
        world.apply(op);
        world.check();
    }
    world.run_out();
    let status = world.status();
    let (succeeded, failed) = (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0));
    let counted = (succeeded + failed) as usize;
    if status.completed_indexes.is_some() {
        // A pod of an index that was deleted, replaced, and ended well all the same: either it or its replacement is
        // neither a success nor a failure.
        let doubles = world.ended_well - succeeded as usize + world.taken_back.len();
        let all = world.created.saturating_sub(doubles)..=world.created;
        assert!(all.contains(&counted), "{} pods: {status:?}", world.created);
        assert_eq!(failed as usize, world.listed.len(), "{status:?}");
    } else {
        // A pod that is being deleted may be replaced, and end well before a status could list it as failed: then there is
        // one pod too many, and one that still runs is taken back. Every other is counted.
        let missed = (1..=world.created).map(pod_name).filter(|pod| !world.listed.contains(pod));
        let missed: Vec<_> = missed.filter(|pod| !world.taken_back.contains(pod)).collect();
        assert!(missed.is_empty(), "{missed:?} were not counted: {status:?}");
        assert_eq!(counted, world.listed.len(), "{status:?}");
    }
    assert!(world.pods.values().all(|pod| !tracked(pod)), "a pod cannot go");
    world
}

/// A pod that was deleted and has ended goes when its finalizer does. The watch of Jobs may show that it is counted before
/// that of pods shows that it is gone.
#[test]
fn a_pod_that_goes_with_its_finalizer_is_counted_once() {
    for fault in [Fault::None, Fault::Lose(2), Fault::Kill { call: 2, after: true }] {
        let ops = vec![
            Op::Sync(Fault::None),
            Op::Delete { nth: 0 },
            Op::End { nth: 0, well: false },
            Op::Deliver { jobs: 99, pods: 99 },
            Op::Sync(fault),
            Op::Deliver { jobs: 99, pods: 0 },
            Op::Sync(Fault::None),
            Op::Deliver { jobs: 99, pods: 0 },
            Op::Sync(Fault::None),
        ];
        let world = hold(json!({"parallelism": 1, "completions": 1}), ops);
        assert_eq!(world.status().failed, Some(1), "{fault:?}");
    }
}

/// As many as PROPTEST_CASES says.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn every_pod_of_a_job_is_wanted_and_counted_once(
        ops in proptest::collection::vec(op(), 0..120), parallelism in 1i32..5, completions in 1i32..7, waits: bool,
    ) {
        let policy = if waits { "Failed" } else { "TerminatingOrFailed" };
        let spec = json!({"parallelism": parallelism, "completions": completions, "podReplacementPolicy": policy});
        let world = hold(spec, ops);
        prop_assert_eq!(world.status().succeeded, Some(completions), "no success too many");
    }

    #[test]
    fn every_index_of_a_job_succeeds_once(
        ops in proptest::collection::vec(op(), 0..120), parallelism in 1i32..5, completions in 1i32..7, waits: bool,
        per_index: bool,
    ) {
        let policy = if waits { "Failed" } else { "TerminatingOrFailed" };
        let mut spec = json!({"parallelism": parallelism, "completions": completions, "completionMode": "Indexed", "podReplacementPolicy": policy});
        if per_index {
            spec["backoffLimitPerIndex"] = json!(1000);
        }
        let world = hold(spec, ops);
        prop_assert_eq!(world.status().succeeded, Some(completions));
    }
}
