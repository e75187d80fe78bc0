//! A RayCluster that grows while it runs, for docs/benchmarks.md: `cargo bench -p usher --bench elastic`.
//!
//! Starts the release binary with simulated nodes and a data directory on disk, and raises `replicas` of a running RayCluster of 10
//! workers to 100, 300 and 1,000, each on a server of its own. Prints how long it takes until the last worker is ready, and what
//! was written to the API meanwhile, as the server itself counted it, by resource and verb. Asserts nothing.
//! `USHER_BENCH_QUICK=1` stops at 100.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use usher_api::kueue::{ClusterQueue, LocalQueue, ResourceFlavor, Workload};
use usher_api::ray::RayCluster;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const FROM: i32 = 10;

fn main() {
    let sizes: &[i32] = if std::env::var_os("USHER_BENCH_QUICK").is_some() { &[100] } else { &[100, 300, 1000] };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!(
        "| workers | full size | processor time | writes a replica | of these: slices and their Workload | pods let go | the cluster's status | queues |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for size in sizes {
        runtime.block_on(run(*size));
    }
}

struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

async fn start(dir: &std::path::Path) -> (Up, Client) {
    let nodes = dir.join("nodes.yaml");
    std::fs::write(&nodes, "[{count: 50, name: sim, capacity: {cpu: 64, memory: 256Gi, pods: 110}}]").expect("nodes");
    let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["up", "--node=false", "--listen", "127.0.0.1:0", "--sim-nodes"])
        .arg(&nodes)
        .arg("--data-dir")
        .arg(dir.join("data"))
        .env("USHER_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .expect("usher starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a ready line");
    let up = Up(child);
    let kubeconfig = Kubeconfig::read_from(dir.join("data/kubeconfig")).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a config");
    (up, Client::try_from(config).expect("a client"))
}

async fn run(size: i32) {
    let dir = tempfile::tempdir().expect("a directory");
    let (up, client) = start(dir.path()).await;
    prepare(&client).await;
    until_settled(&client, FROM).await;
    let (before, cpu) = (writes(&client).await, cpu_secs(up.0.id()));
    let began = Instant::now();
    resize(&client, size).await;
    until_settled(&client, size).await;
    let (took, cpu) = (began.elapsed(), cpu_secs(up.0.id()) - cpu);
    let after = writes(&client).await;
    report(size, took, cpu, &since(&before, &after));
}

fn template() -> Value {
    // Without it, a simulated pod ends after a second.
    let runs = json!({"usher.dev/sim-duration": "10h"});
    json!({"metadata": {"annotations": runs}, "spec": {"containers": [{"name": "ray", "image": "ray", "resources": {"requests": {"cpu": "1"}}}]}})
}

async fn create<K>(api: Api<K>, object: Value)
where
    K: kube::Resource + serde::Serialize + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("created");
}

async fn prepare(client: &Client) {
    let all = client.clone();
    create::<ResourceFlavor>(Api::all(all.clone()), json!({"metadata": {"name": "plain"}, "spec": {}})).await;
    let flavors = json!([{"name": "plain", "resources": [{"name": "cpu", "nominalQuota": "2000"}]}]);
    let queue = json!({"metadata": {"name": "q"}, "spec": {"namespaceSelector": {}, "resourceGroups": [
        {"coveredResources": ["cpu"], "flavors": flavors}]}});
    create::<ClusterQueue>(Api::all(all.clone()), queue).await;
    let local = json!({"metadata": {"name": "q"}, "spec": {"clusterQueue": "q"}});
    create::<LocalQueue>(Api::default_namespaced(all.clone()), local).await;
    let group =
        json!({"groupName": "g", "replicas": FROM, "minReplicas": 0, "maxReplicas": 5000, "template": template()});
    let cluster = json!({"metadata": {"name": "r", "labels": {"kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"kueue.x-k8s.io/elastic-job": "true"}},
        "spec": {"headGroupSpec": {"rayStartParams": {}, "template": template()}, "workerGroupSpecs": [group]}});
    create::<RayCluster>(Api::default_namespaced(all), cluster).await;
}

/// What an autoscaler writes.
async fn resize(client: &Client, size: i32) {
    let clusters = Api::<RayCluster>::default_namespaced(client.clone());
    let cluster = clusters.get("r").await.expect("the cluster");
    let mut groups = serde_json::to_value(&cluster.spec.worker_group_specs).expect("json");
    groups[0]["replicas"] = size.into();
    let patch = Patch::Merge(json!({"spec": {"workerGroupSpecs": groups}}));
    clusters.patch("r", &PatchParams::default(), &patch).await.expect("resized");
}

/// Until all workers are ready, all of them are admitted, and nothing is left of the way there.
async fn until_settled(client: &Client, size: i32) {
    let clusters = Api::<RayCluster>::default_namespaced(client.clone());
    let workloads = Api::<Workload>::default_namespaced(client.clone());
    loop {
        let cluster = clusters.get("r").await.expect("the cluster");
        if cluster.status.ready_worker_replicas == Some(size) {
            let all = workloads.list(&ListParams::default()).await.expect("workloads").items;
            let is_settled = |w: &Workload| {
                let sets = w.status.admission.iter().flat_map(|a| &a.pod_set_assignments);
                let admitted: i32 = sets.map(|set| set.count.unwrap_or(0)).sum();
                let asked: i32 = w.spec.pod_sets.iter().map(|set| set.count).sum();
                (admitted, asked) == (size + 1, size + 1) && w.status.folded_slices.is_empty()
            };
            if all.len() == 1 && is_settled(&all[0]) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writes that were answered well, by resource and verb.
async fn writes(client: &Client) -> BTreeMap<String, f64> {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let text = client.request_text(request).await.expect("metrics");
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| {
            let rest = line.split(&format!("{name}=\"")).nth(1)?;
            rest.split('"').next().map(str::to_owned)
        };
        let (Some(verb), Some(resource), Some(sub)) = (label("verb"), label("resource"), label("subresource")) else {
            continue;
        };
        let Some(count) = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()) else { continue };
        if ["POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION"].contains(&verb.as_str()) {
            let path = if sub.is_empty() { resource } else { format!("{resource}/{sub}") };
            *counts.entry(format!("{verb} {path}")).or_default() += count;
        }
    }
    counts
}

fn since(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let less = |(what, count): (&String, &f64)| (what.clone(), count - before.get(what).copied().unwrap_or(0.0));
    after.iter().map(less).filter(|(_, count)| *count > 0.0).collect()
}

/// Refused writes count as much as others. What the pods cost that any job has (they are made, bound, run and talked about) does not.
fn is_aside(what: &str) -> bool {
    let aside = ["POST pods", "POST pods/binding", "PATCH pods/status", "PUT pods/status"];
    let resource = what.split(' ').nth(1).unwrap_or_default();
    aside.contains(&what) || ["events", "leases", "nodes", "nodes/status"].contains(&resource)
}

fn report(size: i32, took: Duration, cpu: f64, writes: &BTreeMap<String, f64>) {
    let added = f64::from(size - FROM);
    let of = |resource: &str| -> f64 {
        let own = writes.iter().filter(|(what, _)| !is_aside(what));
        let own = own.filter(|(what, _)| {
            let path = what.split(' ').nth(1).unwrap_or_default();
            path.split('/').next() == Some(resource)
        });
        own.map(|(_, count)| count).sum()
    };
    let all: f64 = writes.iter().filter(|(what, _)| !is_aside(what)).map(|(_, count)| count).sum();
    println!(
        "| {FROM} to {size} | {:.2} s | {:.1} ms a replica | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
        took.as_secs_f64(),
        cpu * 1e3 / added,
        all / added,
        of("workloads") / added,
        of("pods") / added,
        of("rayclusters") / added,
        (of("clusterqueues") + of("localqueues")) / added,
    );
    for (what, count) in writes {
        let aside = if is_aside(what) { " (aside)" } else { "" };
        eprintln!("  {count:>6} {what}{aside}");
    }
}

/// The processor time that a process has used, of all its threads: what stays comparable when others share the machine.
fn cpu_secs(process: u32) -> f64 {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SEC
}
