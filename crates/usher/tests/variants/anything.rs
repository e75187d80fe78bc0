//! Whatever happens, in whatever order: random flavors, quotas and policies that change, jobs that come, finish, fail to start and go,
//! strangers that take back what they lent, checks that say no, and controllers that stop and start in the middle of it. What must never
//! be is looked for at every single write; and when the storm is over, everything runs.
//!
//! `USHER_VARIANTS_SEEDS=40..400` plays other seeds than the usual ones; a failure prints its seed and what was done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use usher_api::kueue::admission_check::CheckState;
use usher_api::kueue::workload::Role;
use usher_api::kueue::{ClusterQueue, Workload};
use usher_controllers::queueing::policy::{PodsReady, Policy};

use super::desk::*;
use super::race::*;
use super::world::{secs, until};

const FLAVORS: [&str; 3] = ["a", "b", "c"];
const OPS: usize = 24;

fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("USHER_VARIANTS_SEEDS").ok();
    let range = asked.as_deref().and_then(|text| text.split_once(".."));
    range.map_or(0..10, |(from, to)| from.parse().expect("a seed")..to.parse().expect("a seed"))
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len() as u64) as usize) }
    }
}

/// What has been seen of all Workloads, and what of it must never be.
#[derive(Default)]
struct Overseer {
    workloads: BTreeMap<String, Workload>,
    faults: Vec<String>,
}

impl Overseer {
    fn family(&self, uid: &str) -> impl Iterator<Item = &Workload> {
        self.workloads.values().filter(move |w| w.role() == Role::Variant && w.parent_uid() == Some(uid))
    }

    fn parent(&self, variant: &Workload) -> Option<&Workload> {
        let uid = variant.parent_uid()?;
        self.workloads.values().find(|w| w.metadata.uid.as_deref() == Some(uid))
    }

    fn see(&mut self, now: Workload) {
        let name = now.name_any();
        let before = self.workloads.insert(name.clone(), now.clone());
        let before = before.filter(|before| before.metadata.uid == now.metadata.uid);
        let became = |ty: &str| is(&now, ty) && !before.as_ref().is_some_and(|b| is(b, ty));
        let lost = |ty: &str| !is(&now, ty) && before.as_ref().is_some_and(|b| is(b, ty));
        let mut faults = Vec::new();
        match now.role() {
            Role::Variant if !is(&now, "Finished") => {
                let parent = self.parent(&now);
                let siblings = || self.family(now.parent_uid().unwrap_or_default()).filter(|s| s.name_any() != name);
                if became("Admitted") {
                    faults.extend(siblings().filter(|s| is(s, "Admitted")).map(|s| format!("beside {}", s.name_any())));
                    if parent.is_some_and(|p| p.role() == Role::Parent && is(p, "QuotaReserved")) {
                        faults.push("admitted while its Parent holds another's quota".to_owned());
                    }
                    if !is(&now, "QuotaReserved") || !ready(&now) {
                        faults.push("admitted without quota, or before its checks were ready".to_owned());
                    }
                }
                if became("Evicted")
                    && said(&now, "Evicted").is_some_and(|c| c.1 == "FlavorMigration")
                    && !siblings()
                        .any(|s| is(s, "QuotaReserved") && !is(s, "Evicted") && !is(s, "Admitted") && ready(s))
                {
                    faults.push("makes way though no sibling is ready".to_owned());
                }
                if lost("QuotaReserved")
                    && before.as_ref().is_some_and(|b| is(b, "Admitted"))
                    && parent.is_some_and(|p| p.role() == Role::Parent && is(p, "QuotaReserved") && !is(p, "Finished"))
                {
                    faults.push("gave its quota back while the job may still run on it".to_owned());
                }
            }
            Role::Parent if !is(&now, "Finished") => {
                let uid = now.metadata.uid.clone().unwrap_or_default();
                let admitted: Vec<&Workload> = self.family(&uid).filter(|v| is(v, "Admitted")).collect();
                let was_parent = before.as_ref().is_some_and(|b| b.role() == Role::Parent);
                if became("QuotaReserved") && !admitted.iter().any(|v| v.status.admission == now.status.admission) {
                    faults.push("has quota that none of its admitted Variants has".to_owned());
                }
                let by_variant = said(&now, "Evicted").is_some_and(|c| c.1 == "VariantEvicted");
                if became("Evicted") && by_variant && was_parent && !admitted.iter().any(|v| is(v, "Evicted")) {
                    faults.push("was evicted by a Variant that is not the admitted one".to_owned());
                }
            }
            _ => {}
        }
        self.faults.extend(faults.into_iter().map(|fault| format!("{name}: {fault}")));
    }
}

fn ready(workload: &Workload) -> bool {
    workload.status.admission_checks.iter().all(|check| check.state == CheckState::Ready)
}

/// Looks at every change of every Workload, and at which flavors the pods of each Job are on.
fn oversee(desk: &Desk) -> Arc<Mutex<Overseer>> {
    let overseer = Arc::new(Mutex::new(Overseer::default()));
    let (api, sees) = (desk.workloads(), overseer.clone());
    tokio::spawn(async move {
        let mut stream = watcher(api, watcher::Config::default()).boxed();
        while let Ok(Some(event)) = stream.try_next().await {
            match event {
                watcher::Event::Apply(workload) | watcher::Event::InitApply(workload) => sees.lock().see(workload),
                watcher::Event::Delete(workload) => drop(sees.lock().workloads.remove(&workload.name_any())),
                watcher::Event::Init | watcher::Event::InitDone => {}
            }
        }
    });
    let (api, sees) = (desk.world.pods(), overseer.clone());
    tokio::spawn(async move {
        let mut running: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut stream = watcher(api, watcher::Config::default()).boxed();
        while let Ok(Some(event)) = stream.try_next().await {
            match event {
                watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                    let (job, flavor) = place(&pod);
                    let others: BTreeSet<&String> =
                        running.values().filter(|(own, on)| *own == job && *on != flavor).map(|(_, on)| on).collect();
                    if !others.is_empty() {
                        sees.lock().faults.push(format!("pods of {job} on {flavor} and on {others:?}"));
                    }
                    if super::kubelet::has_ended(&pod) {
                        running.remove(&pod.name_any());
                    } else {
                        running.insert(pod.name_any(), (job, flavor));
                    }
                }
                watcher::Event::Delete(pod) => drop(running.remove(&pod.name_any())),
                watcher::Event::Init | watcher::Event::InitDone => {}
            }
        }
    });
    overseer
}

fn place(pod: &Pod) -> (String, String) {
    let job = pod.labels().get("batch.kubernetes.io/job-name").cloned().unwrap_or_default();
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    (job, selector.and_then(|s| s.get("type")).cloned().unwrap_or_default())
}

/// One random story.
struct Story {
    desk: Desk,
    random: Random,
    submitted: usize,
    log: Vec<String>,
}

impl Story {
    async fn begin(seed: u64) -> Story {
        let ready = PodsReady { timeout: secs(120), ..PodsReady::default() };
        let desk = desk_with(Policy { pods_ready: Some(ready), ..Policy::default() }).await;
        desk.check("slow").await;
        desk.class("high", 9).await;
        for name in FLAVORS {
            desk.flavor(name, json!({"nodeLabels": {"type": name}})).await;
        }
        let mut story = Story { desk, random: Random(seed ^ 0x5eed), submitted: 0, log: Vec::new() };
        let queue = story.queue();
        story.desk.queue("q", "0", json!({})).await;
        story.desk.edit_queue("q", queue).await;
        let lends: Vec<(&str, &str)> = FLAVORS.iter().map(|name| (*name, "1")).collect();
        let stranger = json!({"cohortName": "all", "resourceGroups": group(&lends),
            "preemption": {"reclaimWithinCohort": "Any"}});
        story.desk.queue("s", "0", stranger).await;
        story
    }

    /// Flavors in any order, with any quota; a policy or none; a check or none; either strategy.
    fn queue(&mut self) -> Value {
        let random = &mut self.random;
        let mut names = FLAVORS.to_vec();
        names.rotate_left(random.below(3) as usize);
        names.truncate(1 + random.below(3).max(1) as usize);
        let quotas: Vec<String> = names.iter().map(|_| random.below(4).to_string()).collect();
        let flavors: Vec<(&str, &str)> = names.iter().zip(&quotas).map(|(name, cpu)| (*name, cpu.as_str())).collect();
        let upgrade = !random.one_in(4);
        let least = upgrade && random.one_in(3);
        let mut policy = json!({"migrationConstraints": {"mode": if upgrade { "UpgradeOnly" } else { "NoMigration" },
            "minFlavor": null, "minVariant": null}, "explicitVariants": null});
        if random.one_in(3) {
            let delay = |random: &mut Random| if random.one_in(2) { json!(random.below(100)) } else { Value::Null };
            let explicit = |name: &&str, random: &mut Random| {
                json!({"name": name, "allowedResourceFlavors": [name], "createDelaySeconds": delay(random),
                    "deleteDelaySeconds": delay(random)})
            };
            policy["explicitVariants"] = names.iter().map(|name| explicit(name, random)).collect();
        }
        let limit = if policy["explicitVariants"].is_null() { "minFlavor" } else { "minVariant" };
        policy["migrationConstraints"][limit] = if least { json!(names[0]) } else { Value::Null };
        let check = names.contains(&"a") && random.one_in(2);
        let check = check.then(|| json!({"admissionChecks": [{"name": "slow", "onFlavors": ["a"]}]}));
        json!({"cohortName": "all", "resourceGroups": group(&flavors), "admissionChecksStrategy": check,
            "preemption": {"withinClusterQueue": if random.one_in(2) { "LowerPriority" } else { "Never" }},
            "queueingStrategy": if random.one_in(3) { "StrictFIFO" } else { "BestEffortFIFO" },
            "stopPolicy": if random.one_in(8) { "HoldAndDrain" } else { "None" },
            "concurrentAdmission": if random.one_in(6) { Value::Null } else { policy }})
    }

    async fn submit(&mut self) {
        self.submitted += 1;
        let name = format!("j{}", self.submitted);
        let random = &mut self.random;
        let runs = (20 + random.below(200)).to_string();
        let mut job = self.desk.job(&Queued {
            name: &name,
            queue: if random.one_in(4) { "s" } else { "q" },
            cpu: if random.one_in(3) { "2" } else { "1" },
            pods: 1,
            runs: (!random.one_in(3)).then_some(&runs),
            class: if random.one_in(4) { "high" } else { "" },
        });
        let notes = &mut job["spec"]["template"]["metadata"]["annotations"];
        if random.one_in(3) {
            notes["test/stops-after"] = json!(random.below(20).to_string());
        }
        if random.one_in(8) {
            notes["test/pending"] = json!("yes");
        }
        self.log.push(format!("submit {job}"));
        self.desk.submit_as(job).await;
    }

    async fn jobs(&self) -> Vec<String> {
        let jobs = self.desk.world.jobs().list(&ListParams::default()).await.expect("jobs").items;
        jobs.iter().map(ResourceExt::name_any).collect()
    }

    async fn all(&self) -> Vec<Workload> {
        self.desk.workloads().list(&ListParams::default()).await.expect("workloads").items
    }

    async fn answer_a_check(&mut self) {
        let asked = |w: &Workload| w.status.admission_checks.iter().any(|c| c.state == CheckState::Pending);
        let waiting: Vec<Workload> =
            self.all().await.into_iter().filter(|w| asked(w) && is(w, "QuotaReserved")).collect();
        let state = ["Ready", "Ready", "Ready", "Retry", "Rejected"][self.random.below(5) as usize];
        let Some(workload) = self.random.pick(&waiting) else { return };
        self.log.push(format!("check of {}: {state}", workload.name_any()));
        let mut said = json!({"name": "slow", "state": state, "message": "", "lastTransitionTime": wire_time(self.desk.world.clock.now())});
        if state == "Retry" {
            said["requeueAfterSeconds"] = json!(30);
        }
        self.patch_status(workload, json!({"status": {"admissionChecks": [said]}})).await;
    }

    /// As it was seen; somebody may be faster.
    async fn patch_status(&self, of: &Workload, mut patch: Value) {
        patch["metadata"] = json!({"resourceVersion": of.metadata.resource_version});
        let _ = self.desk.workloads().patch_status(&of.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    }

    async fn set_active(&mut self, active: bool) {
        let parents = self.all().await.into_iter().filter(|w| w.role() != Role::Variant && !is(w, "Finished"));
        let parents: Vec<Workload> = parents.filter(|w| w.is_active() != active).collect();
        let Some(parent) = self.random.pick(&parents) else { return };
        self.log.push(format!("{} active: {active}", parent.name_any()));
        let patch = Patch::Merge(json!({"spec": {"active": active}}));
        let _ = self.desk.workloads().patch(&parent.name_any(), &PatchParams::default(), &patch).await;
    }

    async fn act(&mut self) {
        match self.random.below(20) {
            0..=5 => self.submit().await,
            6..=8 => {
                let queue = self.queue();
                self.log.push(format!("queue {queue}"));
                self.desk.edit_queue("q", queue).await;
            }
            9..=11 => self.answer_a_check().await,
            12 => {
                let jobs = self.jobs().await;
                let Some(job) = self.random.pick(&jobs) else { return };
                self.log.push(format!("delete {job}"));
                let _ = self.desk.world.jobs().delete(job, &DeleteParams::background()).await;
            }
            13 => {
                let jobs = self.jobs().await;
                let Some(job) = self.random.pick(&jobs) else { return };
                self.log.push(format!("urgent {job}"));
                // Refused of one that runs without a class.
                let patch = Patch::Merge(json!({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}}));
                let _ = self.desk.world.jobs().patch(job, &PatchParams::default(), &patch).await;
            }
            14 => self.set_active(false).await,
            15 => self.set_active(true).await,
            16..=17 => {
                self.log.push("crash".to_owned());
                self.desk.world.stop_controllers().await;
                if self.random.one_in(2) {
                    self.desk.world.pass(self.random.below(30)).await;
                }
                self.desk.world.start_controllers();
            }
            _ => {
                let secs = self.random.below(90);
                self.log.push(format!("pass {secs}"));
                self.desk.world.pass(secs).await;
            }
        }
        // In the middle of what follows, or after it.
        for _ in 0..self.random.below(200) {
            tokio::task::yield_now().await;
        }
        if self.random.one_in(2) {
            self.desk.world.pass(self.random.below(8)).await;
        }
    }

    /// A queue with room for everybody, and nothing in anybody's way.
    async fn calm_down(&mut self) {
        self.log.push("calm".to_owned());
        let flavors: Vec<(&str, &str)> = FLAVORS.iter().map(|name| (*name, "30")).collect();
        let policy = json!({"migrationConstraints": {"mode": "UpgradeOnly", "minFlavor": null, "minVariant": null}, "explicitVariants": null});
        self.desk
            .edit_queue(
                "q",
                json!({"resourceGroups": group(&flavors), "admissionChecksStrategy": null, "stopPolicy": "None",
                "concurrentAdmission": policy}),
            )
            .await;
        for job in self.jobs().await {
            let object = self.desk.world.job(&job).await;
            if template(&object)["metadata"]["annotations"]["test/pending"] == "yes" {
                let _ = self.desk.world.jobs().delete(&job, &DeleteParams::background()).await;
            }
        }
    }

    /// Everybody has finished or runs, on one flavor, and is counted once.
    async fn until_all_is_well(&mut self) {
        until("everybody has finished or runs", async || {
            for workload in self.all().await {
                if workload.role() != Role::Variant && !workload.is_active() && !is(&workload, "Finished") {
                    let patch = Patch::Merge(json!({"spec": {"active": true}}));
                    let _ = self.desk.workloads().patch(&workload.name_any(), &PatchParams::default(), &patch).await;
                }
            }
            let jobs = self.desk.world.jobs().list(&ListParams::default()).await.expect("jobs").items;
            let well = |job: &k8s_openapi::api::batch::v1::Job| {
                let status = job.status.clone().unwrap_or_default();
                status.succeeded == Some(1) || status.ready == Some(1)
            };
            jobs.iter().all(well).then_some(())
        })
        .await;
        until("quota is held for those who run, and for nobody else", async || {
            let all = self.all().await;
            let (mut running, mut on) = (0, BTreeMap::<String, i64>::new());
            for parent in
                all.iter().filter(|w| w.role() != Role::Variant && !is(w, "Finished") && w.spec.queue_name == "q")
            {
                running += 1;
                let got = parent.status.admission.as_ref()?.pod_set_assignments.first()?;
                let cpu = got.resource_usage.get("cpu")?;
                *on.entry(got.flavors.get("cpu")?.clone()).or_default() +=
                    serde_json::to_value(cpu).ok()?.as_str()?.parse::<i64>().ok()?;
                let uid = parent.metadata.uid.as_deref();
                let admitted =
                    all.iter().filter(|v| v.role() == Role::Variant && v.parent_uid() == uid && is(v, "Admitted"));
                let admitted: Vec<&Workload> = admitted.collect();
                let mirrored = admitted.len() == 1 && admitted[0].status.admission == parent.status.admission;
                (mirrored || parent.role() == Role::Regular).then_some(())?;
            }
            let status = Api::<ClusterQueue>::all(self.desk.world.client.clone()).get("q").await.expect("it").status;
            let counted = (status.pending_workloads, status.reserving_workloads, status.admitted_workloads)
                == (0, running, running);
            counted.then_some(())
        })
        .await;
    }
}

async fn play(seed: u64) {
    let mut story = Story::begin(seed).await;
    let overseer = oversee(&story.desk);
    let failed = |story: &Story| {
        let faults = overseer.lock().faults.clone();
        if faults.is_empty() { None } else { Some(format!("seed {seed}: {faults:#?}\nafter {:#?}", story.log)) }
    };
    for _ in 0..OPS {
        story.act().await;
        if let Some(failure) = failed(&story) {
            panic!("{failure}");
        }
    }
    story.calm_down().await;
    let _told = Told(format!("seed {seed} after {:#?}", story.log));
    story.until_all_is_well().await;
    for job in story.jobs().await {
        let _ = story.desk.world.jobs().delete(&job, &DeleteParams::background()).await;
    }
    story.desk.until_nothing_is_left().await;
    if let Some(failure) = failed(&story) {
        panic!("{failure}");
    }
}

/// Says what was done before a wait that failed.
struct Told(String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

#[test]
fn whatever_happens_one_variant_is_admitted_and_in_the_end_everybody_runs() {
    for seed in seeds() {
        // A runtime of its own for each: nothing of one story is left in the next.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(play(seed));
    }
}
