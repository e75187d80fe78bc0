//! Jobs from create to Complete on simulated nodes, for docs/benchmarks.md: `cargo bench -p usher --bench jobs`.
//!
//! Starts the release binary with simulated nodes and a data directory on disk, creates Jobs over HTTPS from this process,
//! and watches them end. Prints a table; asserts nothing about speed. `USHER_BENCH_QUICK=1` makes everything smaller.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// As in the binary: the client is to cost as little of the machine as it can.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PODS_PER_JOB: usize = 10;
const CREATORS: usize = 32;

fn main() {
    let jobs = if std::env::var_os("USHER_BENCH_QUICK").is_some() { 50 } else { 1000 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run(jobs));
}

struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

async fn run(count: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = dir.path().join("nodes.yaml");
    std::fs::write(&nodes, "[{count: 200, name: sim, capacity: {cpu: 64, memory: 256Gi, pods: 110}}]").expect("nodes");
    let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["up", "--node=false", "--listen", "127.0.0.1:0", "--sim-nodes"])
        .arg(&nodes)
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .env("USHER_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .expect("usher starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a ready line");
    let up = Up(child);
    let kubeconfig = Kubeconfig::read_from(dir.path().join("data/kubeconfig")).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a config");
    let client = Client::try_from(config).expect("a client");
    until_nodes(&client, 200).await;

    let (jobs, pods) = (Api::<Job>::default_namespaced(client.clone()), Api::<Pod>::default_namespaced(client.clone()));
    let params = WatchParams::default().timeout(290);
    let seen_jobs = jobs
        .watch(&params, "0")
        .await
        .expect("a watch")
        .map_ok(|event| object(event).map(|job| Seen::Job(Box::new(job))))
        .boxed();
    let seen_pods = pods
        .watch(&params, "0")
        .await
        .expect("a watch")
        .map_ok(|event| object(event).map(|pod| Seen::Pod(Box::new(pod))))
        .boxed();
    let started = Instant::now();
    let creating = tokio::spawn(create(jobs, count));
    let story = watch(futures::stream::select(seen_jobs, seen_pods), count, started).await;
    creating.await.expect("creating");
    print(&client, &up, count, &story).await;
}

async fn until_nodes(client: &Client, wanted: usize) {
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(client.clone());
    while nodes.list_metadata(&Default::default()).await.map_or(0, |list| list.items.len()) < wanted {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn create(jobs: Api<Job>, count: usize) {
    let one = |n: usize| {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("job-{n:04}")},
            "spec": {"parallelism": PODS_PER_JOB, "completions": PODS_PER_JOB, "template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "busybox", "command": ["true"],
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]}}}});
        serde_json::from_value::<Job>(job).expect("a job")
    };
    futures::stream::iter((0..count).map(one))
        .for_each_concurrent(CREATORS, |job| {
            let jobs = jobs.clone();
            async move { drop(jobs.create(&PostParams::default(), &job).await.expect("created")) }
        })
        .await;
}

enum Seen {
    Job(Box<Job>),
    Pod(Box<Pod>),
}

fn object<K>(event: WatchEvent<K>) -> Option<K> {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(object),
        _ => None,
    }
}

#[derive(Default)]
struct Story {
    pods_bound: usize,
    all_bound_after: Duration,
    complete_after: Duration,
    /// From a pod's end, seen by a client, to the Job's status that shows it.
    latencies: Vec<Duration>,
}

async fn watch(
    seen: impl futures::Stream<Item = Result<Option<Seen>, kube::Error>> + Unpin,
    count: usize,
    started: Instant,
) -> Story {
    let mut story = Story::default();
    let mut ends: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    let (mut bound, mut ended) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    let mut complete = std::collections::BTreeSet::new();
    let mut seen = seen;
    while complete.len() < count {
        match seen.next().await.expect("a watch that goes on").expect("an event") {
            Some(Seen::Pod(pod)) => {
                let name = pod.metadata.name.unwrap_or_default();
                let labels = pod.metadata.labels.unwrap_or_default();
                let job = labels.get("batch.kubernetes.io/job-name").cloned().unwrap_or_default();
                if pod.spec.is_some_and(|spec| spec.node_name.is_some()) && bound.insert(name.clone()) {
                    story.pods_bound += 1;
                    story.all_bound_after = started.elapsed();
                }
                let phase = pod.status.and_then(|status| status.phase);
                if phase.as_deref() == Some("Succeeded") && ended.insert(name) {
                    ends.entry(job).or_default().push(Instant::now());
                }
            }
            Some(Seen::Job(job)) => {
                let name = job.metadata.name.unwrap_or_default();
                let Some(status) = job.status else { continue };
                let uncounted =
                    status.uncounted_terminated_pods.iter().flat_map(|u| u.succeeded.iter().flatten()).count();
                let shown = usize::try_from(status.succeeded.unwrap_or(0)).unwrap_or(0) + uncounted;
                let before = told.insert(name.clone(), shown).unwrap_or(0);
                let of_job = ends.get(&name).map_or(&[][..], Vec::as_slice);
                story
                    .latencies
                    .extend(of_job.iter().skip(before).take(shown.saturating_sub(before)).map(Instant::elapsed));
                if status.completion_time.is_some() && complete.insert(name) {
                    story.complete_after = started.elapsed();
                }
            }
            None => {}
        }
    }
    story.latencies.sort();
    story
}

async fn print(client: &Client, up: &Up, count: usize, story: &Story) {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let metrics = client.request_text(request).await.expect("metrics");
    if let Some(path) = std::env::var_os("USHER_BENCH_METRICS") {
        std::fs::write(path, &metrics).expect("a file for the metrics");
    }
    let p99 = |sorted: &[Duration]| sorted.get(sorted.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default();
    let status = std::fs::read_to_string(format!("/proc/{}/status", up.0.id())).unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("").trim().to_owned();
    let secs = story.complete_after.as_secs_f64();
    println!("\n| figure | measured | wanted |\n|---|---|---|");
    println!("| {count} Jobs of {PODS_PER_JOB} pods, create to Complete | {secs:.1} s | |");
    println!(
        "| pods created and bound | {:.0}/s | 490/s (ten times Kubernetes here) |",
        story.pods_bound as f64 / story.all_bound_after.as_secs_f64()
    );
    println!("| a Job sync, p99 | at most {} | 100 ms |", sync_p99(&metrics));
    println!("| a pod's end to its Job's status, p99 | {:.0} ms | 100 ms |", p99(&story.latencies).as_secs_f64() * 1e3);
    println!("| peak RSS | {peak} | |");
    println!(
        "| processor time of the server, for each pod | {:.2} ms | |",
        cpu_secs(up.0.id()) * 1e3 / story.pods_bound as f64
    );
}

/// The processor time that a process has used, of all its threads: what stays comparable when others share the machine.
fn cpu_secs(process: u32) -> f64 {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SEC
}

/// The bucket below which 99 of 100 syncs lie.
fn sync_p99(metrics: &str) -> String {
    let mut buckets: BTreeMap<u64, (String, f64)> = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("job_controller_job_sync_duration_seconds_bucket{")) {
        let Some(bound) = line.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()) else { continue };
        let Some(value) = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()) else { continue };
        let key = bound.parse::<f64>().map_or(u64::MAX, |secs| (secs * 1e6) as u64);
        let entry = buckets.entry(key).or_insert_with(|| (bound.to_owned(), 0.0));
        entry.1 += value;
    }
    let total = buckets.values().last().map_or(0.0, |(_, count)| *count);
    let found = buckets.values().find(|(_, count)| *count >= total * 0.99);
    found.map_or_else(
        || "nothing".to_owned(),
        |(bound, _)| format!("{:.0} ms", bound.parse::<f64>().unwrap_or(0.0) * 1e3),
    )
}
