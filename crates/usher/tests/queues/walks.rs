//! Random walks of an elastic job with all controllers: resizes, pods that fail, strangers that preempt it, quota that comes and goes,
//! controllers that stop in the middle. What is written is checked write by write, in the order of the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use usher_api::kueue::Workload;
use usher_api::kueue::workload::Role;

use super::desk::*;
use super::elastic::*;
use super::world::until;

/// Everything that was written about pods and Workloads, by revision.
#[derive(Default)]
struct Log(Mutex<BTreeMap<u64, Seen>>);

enum Seen {
    Pod(Box<Pod>),
    Workload(Box<Workload>),
}

fn revision(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|text| text.parse().ok()).expect("a revision")
}

fn record(desk: &Desk) -> Arc<Log> {
    let log = Arc::new(Log::default());
    let (pods, workloads) = (log.clone(), log.clone());
    let client = desk.world.client.clone();
    let all = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()).applied_objects().boxed();
    tokio::spawn(async move {
        let mut all = all;
        while let Ok(Some(pod)) = all.try_next().await {
            pods.0.lock().insert(revision(&pod), Seen::Pod(Box::new(pod)));
        }
    });
    let all = watcher(Api::<Workload>::all(client), watcher::Config::default()).applied_objects().boxed();
    tokio::spawn(async move {
        let mut all = all;
        while let Ok(Some(workload)) = all.try_next().await {
            workloads.0.lock().insert(revision(&workload), Seen::Workload(Box::new(workload)));
        }
    });
    log
}

fn admitted(workload: &Workload) -> i32 {
    let sets = workload.status.admission.iter().flat_map(|a| &a.pod_set_assignments);
    sets.map(|set| set.count.unwrap_or(0)).sum()
}

impl Log {
    /// Replays what was written: each replica uses one cpu, none is folded twice, and no pod is let go beyond what was admitted at some
    /// time since the last deed (what was decided on a moment ago may be written after it was taken back).
    fn check(&self, deeds: &[u64]) {
        let mut deeds = deeds.iter().copied().peekable();
        let (mut now, mut most, mut free) = (0, 0, BTreeMap::<String, bool>::new());
        for (at, seen) in std::mem::take(&mut *self.0.lock()) {
            while deeds.next_if(|deed| *deed < at).is_some() {
                most = now;
            }
            match seen {
                Seen::Workload(workload) if workload.role() == Role::Regular && workload.is_elastic() => {
                    now = admitted(&workload);
                    most = most.max(now);
                    adds_up(at, &workload);
                }
                Seen::Pod(pod) if pod.name_any().starts_with("j-") => {
                    let uses = !is_gated(&pod) && !super::kubelet::has_ended(&pod);
                    let name = pod.name_any();
                    let before = free.insert(name.clone(), uses);
                    let running = i32::try_from(free.values().filter(|uses| **uses).count()).expect("few");
                    let let_go = before == Some(false) && uses;
                    assert!(!let_go || running <= most, "at {at}: {name} makes {running}, admitted are {most}");
                }
                _ => {}
            }
        }
    }
}

fn adds_up(at: u64, workload: &Workload) {
    for set in workload.status.admission.iter().flat_map(|a| &a.pod_set_assignments) {
        let used = set.resource_usage.get("cpu").map(ToString::to_string).unwrap_or_default();
        assert_eq!(used, set.count.unwrap_or(0).to_string(), "at {at}: what is used is what is admitted");
    }
    let folded = &workload.status.folded_slices;
    let once: std::collections::BTreeSet<_> = folded.iter().collect();
    assert_eq!(once.len(), folded.len(), "at {at}: folded twice: {folded:?}");
}

/// A small deterministic source of deeds.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

async fn revision_now(desk: &Desk) -> u64 {
    let list = desk.workloads().list(&ListParams::default()).await.expect("workloads");
    list.metadata.resource_version.and_then(|text| text.parse().ok()).expect("a revision")
}

async fn wander(seed: u64) {
    let mut desk = desk().await;
    let log = record(&desk);
    let mut dice = Dice(seed);
    desk.queue("q", "6", json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    desk.class("high", 9).await;
    desk.submit_as(elastic(&desk, "j", 2)).await;
    until_pods(&desk, "j", 2, 0).await;
    let (mut wanted, mut strangers, mut deeds) = (2, 0, Vec::new());
    for _ in 0..14 {
        deeds.push(revision_now(&desk).await);
        match dice.roll(9) {
            0..=3 => {
                wanted = i32::try_from(dice.roll(9)).expect("few");
                scale(&desk, "j", wanted).await;
            }
            4 => {
                let (running, _) = pods(&desk, "j").await;
                if let Some(name) = running.first() {
                    desk.world.pods().delete(name, &Default::default()).await.expect("delete it");
                }
            }
            5 => {
                strangers += 1;
                let name = format!("s{strangers}");
                let runs = Some("50");
                desk.submit(Queued { name: &name, class: "high", cpu: "2", runs, ..Default::default() }).await;
            }
            6 => {
                let quota = 3 + dice.roll(5);
                let flavors =
                    json!([{"name": "plain", "resources": [{"name": "cpu", "nominalQuota": quota.to_string()}]}]);
                let groups = json!([{"coveredResources": ["cpu"], "flavors": flavors}]);
                desk.edit_queue("q", json!({"resourceGroups": groups})).await;
            }
            _ => {
                desk.world.stop_controllers().await;
                desk.world.start_controllers();
            }
        }
        match dice.roll(3) {
            0 => desk.world.pass(120).await,
            _ => {
                for _ in 0..dice.roll(80) {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    // Strangers end, quota is enough, and it fits: it has what it wants, and nothing is left over.
    let flavors = json!([{"name": "plain", "resources": [{"name": "cpu", "nominalQuota": "9"}]}]);
    desk.edit_queue("q", json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]})).await;
    let pods = usize::try_from(wanted).expect("few");
    until_pods(&desk, "j", pods, 0).await;
    let settled = |w: &Workload| (admitted(w), w.spec.pod_sets[0].count) == (wanted, wanted);
    desk.until("j", &format!("is admitted with {wanted} (seed {seed})"), settled).await;
    until("no slice is left", async || (slices(&desk).await == 0).then_some(())).await;
    desk.world.pass(120).await;
    let left = 9 - wanted;
    desk.submit(Queued { name: "fits", cpu: &left.to_string(), ..Default::default() }).await;
    desk.until_runs("fits").await;
    log.check(&deeds);
    let owners: Vec<Workload> = desk.workloads().list(&ListParams::default()).await.expect("workloads").items;
    assert!(owners.iter().all(|w| w.role() == Role::Regular), "no orphan slice");
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_every_replica_counts_once_and_nobody_is_let_go_without_quota() {
    for seed in 1..=6 {
        wander(seed).await;
    }
}
