//! Queues under load, for docs/benchmarks.md: `cargo bench -p usher --bench queues`.
//!
//! Kueue's scalability scenario rebuilt from its figures: Workloads arrive, are admitted, are marked finished after their time
//! and put back when they are evicted, all through the API over HTTPS by this process, against the release binary with a data
//! directory on disk. Prints a table; asserts nothing about speed.
//!
//! `USHER_BENCH_ONLY=yardstick,variants,large,drain,latency` runs a part; `USHER_BENCH_QUICK=1` makes everything smaller.

mod client;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Connection, Endpoint};
use http::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CONNECTIONS: usize = 32;

fn main() {
    let quick = std::env::var_os("USHER_BENCH_QUICK").is_some();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!("| figure | measured | wanted |\n|---|---|---|");
    runtime.block_on(async {
        if wants("yardstick") {
            yardstick(quick).await;
        }
        if wants("variants") {
            variants(quick).await;
        }
        if wants("large") {
            large(quick).await;
        }
        if wants("drain") {
            drain(if quick { 1_000 } else { 15_000 }).await;
        }
        if wants("latency") {
            latency(if quick { 50 } else { 500 }).await;
        }
    });
}

fn wants(part: &str) -> bool {
    std::env::var("USHER_BENCH_ONLY").map_or(true, |only| only.split(',').any(|p| p == part))
}

fn row(figure: &str, measured: impl std::fmt::Display, wanted: &str) {
    println!("| {figure} | {measured} | {wanted} |");
}

/// `usher up` in a process of its own.
struct Up {
    child: Child,
    endpoint: Endpoint,
    _dir: tempfile::TempDir,
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

impl Up {
    fn start(more: &[&str]) -> Up {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(["up", "--node=false", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path().join("data"))
            .args(more)
            .env("USHER_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .expect("usher starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a ready line");
        let kubeconfig = std::fs::read_to_string(dir.path().join("data/kubeconfig")).expect("a kubeconfig");
        Up { child, endpoint: Endpoint::from_kubeconfig(&kubeconfig), _dir: dir }
    }

    /// A line of /proc/PID/status, in MB.
    fn memory_mb(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let kb = status.lines().find_map(|l| l.strip_prefix(line)?.split_whitespace().next()?.parse::<u64>().ok());
        kb.unwrap_or(0) / 1024
    }

    fn cpu_secs(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / 100.0
    }
}

/// Connections that many tasks share.
#[derive(Clone)]
struct Pool {
    free: Arc<Mutex<Vec<Connection>>>,
    places: Arc<Semaphore>,
}

impl Pool {
    async fn open(endpoint: &Endpoint) -> Pool {
        let mut free = Vec::new();
        for _ in 0..CONNECTIONS {
            free.push(Connection::open(endpoint).await);
        }
        Pool { free: Arc::new(Mutex::new(free)), places: Arc::new(Semaphore::new(CONNECTIONS)) }
    }

    async fn send(&self, method: Method, path: &str, ty: &'static str, body: Bytes) -> (u16, Bytes) {
        let _place = self.places.acquire().await.expect("places");
        let mut connection = self.free.lock().pop().expect("a free connection");
        let answer = connection.send_as(method, path, ty, body).await;
        self.free.lock().push(connection);
        answer
    }

    async fn create(&self, path: &str, object: &Value) -> Bytes {
        let (code, body) = self.send(Method::POST, path, "application/json", Bytes::from(object.to_string())).await;
        assert_eq!(code, 201, "{path}: {}", String::from_utf8_lossy(&body));
        body
    }
}

const WORKLOADS: &str = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads";

struct Class {
    name: &'static str,
    count: usize,
    cpu: u64,
    runs: Duration,
    priority: i32,
    every: Duration,
}

fn class(name: &'static str, count: usize, cpu: u64, runs_ms: u64, priority: i32, every_ms: u64) -> Class {
    let (runs, every) = (Duration::from_millis(runs_ms), Duration::from_millis(every_ms));
    Class { name, count, cpu, runs, priority, every }
}

struct Scenario {
    cohorts: usize,
    queues: usize,
    /// Which share the quota. Of several, workloads race for all of them and move up.
    flavors: &'static [&'static str],
    classes: Vec<Class>,
}

const ONE_FLAVOR: &[&str] = &["default"];

impl Scenario {
    fn workloads(&self) -> usize {
        self.cohorts * self.queues * self.classes.iter().map(|c| c.count).sum::<usize>()
    }

    /// What capacity and arrival allow at best.
    fn floor(&self) -> f64 {
        let work: f64 =
            self.classes.iter().map(|c| (c.count as u64 * c.cpu) as f64 * c.runs.as_secs_f64()).sum::<f64>() / 20.0;
        let last = |c: &Class| c.every.as_secs_f64() * (c.count - 1) as f64 + c.runs.as_secs_f64();
        self.classes.iter().map(last).fold(work, f64::max)
    }
}

fn yardstick_with(flavors: &'static [&'static str], quick: bool) -> Scenario {
    let share = if quick { 10 } else { 1 };
    Scenario {
        cohorts: 5,
        queues: 6,
        flavors,
        classes: vec![
            class("small", 350 / share, 1, 200, 50, 100),
            class("medium", 100 / share, 5, 500, 100, 500),
            class("large", 50 / share, 20, 1000, 200, 1200),
        ],
    }
}

async fn yardstick(quick: bool) {
    let scenario = yardstick_with(ONE_FLAVOR, quick);
    contest("15,000 Workloads, 5 cohorts of 6 queues", &scenario, "at most 76 s, above 85 %; RSS at most 400 MB").await;
}

/// The yardstick as it is, and with concurrent admission: three flavors that each have a third of the quota, UpgradeOnly.
async fn variants(quick: bool) {
    let name = "the yardstick with one flavor";
    let plain = contest(name, &yardstick_with(ONE_FLAVOR, quick), "").await;
    let three = yardstick_with(&["reservation", "on-demand", "spot"], quick);
    let raced = contest("the same, racing for three flavors, UpgradeOnly", &three, "").await;
    row(
        "concurrent admission against the plain run",
        format!(
            "{:.2} times the time, {:.2} times the decisions ({} and {}: {})",
            raced.wall_secs / plain.wall_secs,
            raced.decisions.values().sum::<u64>() as f64 / plain.decisions.values().sum::<u64>().max(1) as f64,
            plain.decisions.values().sum::<u64>(),
            raced.decisions.values().sum::<u64>(),
            raced.decisions.iter().map(|(kind, n)| format!("{kind} {n}")).collect::<Vec<_>>().join(", "),
        ),
        "at most 1.5 and 3 times",
    );
}

async fn large(quick: bool) {
    let share = if quick { 10 } else { 1 };
    let scenario = Scenario {
        cohorts: 10,
        queues: 100 / share,
        flavors: ONE_FLAVOR,
        classes: vec![
            class("small", 35, 1, 150, 50, 0),
            class("medium", 11, 5, 350, 100, 0),
            class("large", 4, 20, 700, 200, 0),
        ],
    };
    contest("50,000 Workloads, 10 cohorts of 100 queues", &scenario, "at most 40 s").await;
}

/// What a contest cost.
struct Cost {
    wall_secs: f64,
    /// Of the scheduler, by kind.
    decisions: BTreeMap<String, u64>,
}

async fn contest(name: &str, scenario: &Scenario, wanted: &str) -> Cost {
    let up = Up::start(&[]);
    let pool = Pool::open(&up.endpoint).await;
    configure(&pool, scenario.cohorts, scenario.queues, scenario.flavors).await;
    let total = scenario.workloads();
    let watch = Connection::open(&up.endpoint).await.stream(&format!("{WORKLOADS}?watch=1&resourceVersion=0")).await;
    let started = Instant::now();
    let creating = tokio::spawn(create(pool.clone(), queue_names(scenario), plan(scenario)));
    let done = Runner::new(pool.clone(), total).run(watch).await;
    creating.await.expect("creating");
    let wall = done.last_finish.duration_since(started).as_secs_f64();
    let capacity = (scenario.cohorts * scenario.queues * 20) as f64;
    row(
        name,
        format!(
            "{wall:.1} s (floor {:.0} s), {:.0} % of the quota used, {} evictions, peak RSS {} MB, {:.0} s of processor time",
            scenario.floor(),
            100.0 * done.cpu_secs / (capacity * wall),
            done.evictions,
            up.memory_mb("VmHWM:"),
            up.cpu_secs(),
        ),
        wanted,
    );
    Cost { wall_secs: wall, decisions: decisions(&pool).await }
}

async fn decisions(pool: &Pool) -> BTreeMap<String, u64> {
    let (code, text) = pool.send(Method::GET, "/metrics", "application/json", Bytes::new()).await;
    assert_eq!(code, 200, "/metrics");
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines = text.lines().filter_map(|line| line.strip_prefix("kueue_scheduling_decisions_total{"));
    let read = |line: &str| {
        let kind = line.split("decision=\"").nth(1)?.split('"').next()?;
        Some((kind.to_owned(), line.rsplit(' ').next()?.parse().ok()?))
    };
    lines.filter_map(read).collect()
}

fn queue_names(scenario: &Scenario) -> Vec<String> {
    (0..scenario.cohorts).flat_map(|c| (0..scenario.queues).map(move |q| format!("cq-{c}-{q}"))).collect()
}

/// Queues of 20 cpus that may borrow 100, in equal parts of these flavors.
async fn configure(pool: &Pool, cohorts: usize, queues: usize, flavors: &[&str]) {
    for name in flavors {
        let flavor =
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}});
        pool.create("/apis/kueue.x-k8s.io/v1beta2/resourceflavors", &flavor).await;
    }
    let part = |cpus: usize| format!("{}m", cpus * 1000 / flavors.len());
    let quota = |name: &&str| {
        json!({"name": name, "resources": [
        {"name": "cpu", "nominalQuota": part(20), "borrowingLimit": part(100)}]})
    };
    let quotas: Vec<Value> = flavors.iter().map(quota).collect();
    let policy = (flavors.len() > 1).then(|| json!({"migrationConstraints": {"mode": "UpgradeOnly"}}));
    for cohort in 0..cohorts {
        for queue in 0..queues {
            let name = format!("cq-{cohort}-{queue}");
            let mut object = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
                "spec": {"cohortName": format!("cohort-{cohort}"), "namespaceSelector": {},
                    "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
                    "resourceGroups": [{"coveredResources": ["cpu"], "flavors": quotas}]}});
            if let Some(policy) = &policy {
                object["spec"]["concurrentAdmission"] = policy.clone();
            }
            pool.create("/apis/kueue.x-k8s.io/v1beta2/clusterqueues", &object).await;
            let local = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": name},
                "spec": {"clusterQueue": name}});
            pool.create("/apis/kueue.x-k8s.io/v1beta2/namespaces/default/localqueues", &local).await;
        }
    }
}

/// When, in which class: for each queue.
fn plan(scenario: &Scenario) -> Vec<(Duration, &'static str, Value)> {
    let mut all = Vec::new();
    for class in &scenario.classes {
        for n in 0..class.count {
            let object = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {"labels": {"class": class.name, "runs-ms": class.runs.as_millis().to_string(),
                    "cpu": class.cpu.to_string()}},
                "spec": {"priority": class.priority, "podSets": [{"name": "main", "count": 1, "template": {"spec": {
                    "restartPolicy": "Never", "containers": [{"name": "c", "image": "none",
                        "resources": {"requests": {"cpu": class.cpu.to_string()}}}]}}}]}});
            all.push((class.every * n as u32, class.name, object));
        }
    }
    all.sort_by_key(|(at, _, _)| *at);
    all
}

async fn create(pool: Pool, queues: Vec<String>, plan: Vec<(Duration, &'static str, Value)>) {
    let started = Instant::now();
    let mut sending = tokio::task::JoinSet::new();
    for (n, (at, class, object)) in plan.into_iter().enumerate() {
        tokio::time::sleep_until((started + at).into()).await;
        for queue in &queues {
            let mut object = object.clone();
            object["metadata"]["name"] = json!(format!("{queue}-{class}-{n}"));
            object["spec"]["queueName"] = json!(queue);
            let pool = pool.clone();
            sending.spawn(async move { pool.create(WORKLOADS, &object).await });
        }
        while sending.len() > 4 * CONNECTIONS {
            sending.join_next().await;
        }
    }
    while sending.join_next().await.is_some() {}
}

#[derive(Deserialize)]
struct Event {
    object: Seen,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    metadata: Meta,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
    #[serde(default)]
    labels: HashMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<Value>,
}

impl Seen {
    fn is(&self, ty: &str) -> bool {
        self.status.conditions.iter().any(|c| c["type"] == ty && c["status"] == "True")
    }
}

struct Done {
    last_finish: Instant,
    cpu_secs: f64,
    evictions: usize,
}

/// Stands in for whoever runs the work: lets it run, marks it finished, puts it back when it is evicted.
struct Runner {
    pool: Pool,
    total: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    newest: HashMap<String, Seen>,
    running: HashMap<String, Instant>,
    putting_back: HashMap<String, String>,
    cpu_secs: f64,
    evictions: usize,
}

impl Runner {
    fn new(pool: Pool, total: usize) -> Runner {
        Runner { pool, total, state: Arc::default() }
    }

    async fn run(self, mut watch: client::Stream) -> Done {
        let (mut text, mut finished, mut last_finish) = (Vec::new(), 0, Instant::now());
        while finished < self.total {
            text.extend_from_slice(&watch.next().await.expect("the watch goes on"));
            let mut at = 0;
            while let Some(end) = text[at..].iter().position(|b| *b == b'\n') {
                let line = &text[at..at + end];
                at += end + 1;
                let Ok(event) = serde_json::from_slice::<Event>(line) else { continue };
                // Parents are run; what becomes of their Variants is not ours to do.
                if event.object.metadata.labels.contains_key("kueue.x-k8s.io/concurrent-admission-variant") {
                    continue;
                }
                if event.object.is("Finished") {
                    finished += usize::from(self.state.lock().newest.remove(&event.object.metadata.name).is_some());
                    last_finish = Instant::now();
                } else {
                    self.see(event.object);
                }
            }
            text.drain(..at);
        }
        let state = self.state.lock();
        Done { last_finish, cpu_secs: state.cpu_secs, evictions: state.evictions }
    }

    fn see(&self, seen: Seen) {
        let mut state = self.state.lock();
        let name = seen.metadata.name.clone();
        state.newest.insert(name.clone(), seen.clone());
        if !seen.is("Admitted") {
            return;
        }
        if seen.is("Evicted") {
            let version = seen.metadata.resource_version.clone();
            if state.putting_back.insert(name.clone(), version.clone()) != Some(version) {
                if let Some(since) = state.running.remove(&name) {
                    let cpu: f64 = seen.metadata.labels["cpu"].parse().expect("cpu");
                    state.cpu_secs += cpu * since.elapsed().as_secs_f64();
                    state.evictions += 1;
                }
                tokio::spawn(put_back(self.pool.clone(), seen));
            }
        } else if !state.running.contains_key(&name) {
            let began = Instant::now();
            state.running.insert(name.clone(), began);
            tokio::spawn(finish(self.pool.clone(), self.state.clone(), name, began));
        }
    }
}

async fn finish(pool: Pool, state: Arc<Mutex<State>>, name: String, began: Instant) {
    let runs = state.lock().newest[&name].metadata.labels["runs-ms"].parse().expect("a time");
    tokio::time::sleep_until((began + Duration::from_millis(runs)).into()).await;
    {
        let mut state = state.lock();
        if state.running.get(&name) != Some(&began) {
            return;
        }
        state.running.remove(&name);
        let cpu: f64 = state.newest[&name].metadata.labels["cpu"].parse().expect("cpu");
        state.cpu_secs += cpu * began.elapsed().as_secs_f64();
    }
    let condition = json!({"type": "Finished", "status": "True", "reason": "ByTest", "message": "By test runner",
        "lastTransitionTime": now()});
    let patch = json!([{"op": "add", "path": "/status/conditions/-", "value": condition}]);
    let path = format!("{WORKLOADS}/{name}/status");
    let (code, body) =
        pool.send(Method::PATCH, &path, "application/json-patch+json", Bytes::from(patch.to_string())).await;
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
}

async fn put_back(pool: Pool, seen: Seen) {
    let mut conditions = seen.status.conditions.clone();
    for condition in &mut conditions {
        let reason = match condition["type"].as_str() {
            Some("QuotaReserved") => "Pending",
            Some("Admitted") => "NoReservation",
            _ => continue,
        };
        condition["status"] = json!("False");
        (condition["reason"], condition["lastTransitionTime"]) = (json!(reason), json!(now()));
    }
    let patch = json!({"metadata": {"resourceVersion": seen.metadata.resource_version},
        "status": {"admission": null, "conditions": conditions}});
    let path = format!("{WORKLOADS}/{}/status", seen.metadata.name);
    let (code, body) =
        pool.send(Method::PATCH, &path, "application/merge-patch+json", Bytes::from(patch.to_string())).await;
    assert!(code == 200 || code == 409, "{}", String::from_utf8_lossy(&body));
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Pending Workloads that all fit once their queue is opened.
async fn drain(count: usize) {
    const QUEUES: usize = 30;
    let up = Up::start(&[]);
    let pool = Pool::open(&up.endpoint).await;
    configure(&pool, 5, 6, ONE_FLAVOR).await;
    let names: Vec<String> = (0..QUEUES).map(|n| format!("cq-{}-{}", n / 6, n % 6)).collect();
    edit_queues(&pool, &names, &json!({"spec": {"stopPolicy": "Hold"}})).await;
    let room = json!({"spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "default",
        "resources": [{"name": "cpu", "nominalQuota": count.to_string(), "borrowingLimit": "0"}]}]}]}});
    edit_queues(&pool, &names, &room).await;
    let classes = vec![class("small", count / QUEUES, 1, 1000, 50, 0)];
    let scenario = Scenario { cohorts: 5, queues: 6, flavors: ONE_FLAVOR, classes };
    create(pool.clone(), names.clone(), plan(&scenario)).await;
    let mut watch = Connection::open(&up.endpoint).await.stream(&format!("{WORKLOADS}?watch=1")).await;
    let started = Instant::now();
    edit_queues(&pool, &names, &json!({"spec": {"stopPolicy": "None"}})).await;
    let (mut text, mut admitted) = (Vec::new(), std::collections::HashSet::new());
    while admitted.len() < scenario.workloads() {
        text.extend_from_slice(&watch.next().await.expect("the watch goes on"));
        let mut at = 0;
        while let Some(end) = text[at..].iter().position(|b| *b == b'\n') {
            if let Ok(event) = serde_json::from_slice::<Event>(&text[at..at + end])
                && event.object.is("Admitted")
            {
                admitted.insert(event.object.metadata.name);
            }
            at += end + 1;
        }
        text.drain(..at);
    }
    let secs = started.elapsed().as_secs_f64();
    row(
        &format!("{count} pending Workloads that all fit, admitted"),
        format!("{:.0}/s, peak RSS {} MB", scenario.workloads() as f64 / secs, up.memory_mb("VmHWM:")),
        "3,000/s",
    );
}

async fn edit_queues(pool: &Pool, names: &[String], patch: &Value) {
    for name in names {
        let path = format!("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{name}");
        let body = Bytes::from(patch.to_string());
        let (code, body) = pool.send(Method::PATCH, &path, "application/merge-patch+json", body).await;
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
    }
}

/// One queued Job after another on an idle system: to `suspend: false`, and to its first pod.
async fn latency(count: usize) {
    let up = Up::start(&[]);
    let pool = Pool::open(&up.endpoint).await;
    configure(&pool, 1, 1, ONE_FLAVOR).await;
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let pods = "/api/v1/namespaces/default/pods";
    let mut job_watch = Connection::open(&up.endpoint).await.stream(&format!("{jobs}?watch=1")).await;
    let mut pod_watch = Connection::open(&up.endpoint).await.stream(&format!("{pods}?watch=1")).await;
    let (mut started, mut first_pod) = (Vec::new(), Vec::new());
    for n in 0..count {
        let name = format!("job-{n}");
        let job = json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "cq-0-0"}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none",
                "resources": {"requests": {"cpu": "1"}}}]}}}});
        pool.create(jobs, &job).await;
        let answered = Instant::now();
        until(&mut job_watch, |e| e["object"]["metadata"]["name"] == *name && e["object"]["spec"]["suspend"] == false)
            .await;
        started.push(answered.elapsed());
        until(&mut pod_watch, |e| e["object"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == *name).await;
        first_pod.push(answered.elapsed());
        let path = format!("{jobs}/{name}?propagationPolicy=Background");
        let (code, _) = pool.send(Method::DELETE, &path, "application/json", Bytes::new()).await;
        assert_eq!(code, 200);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let at = |times: &mut Vec<Duration>, share: f64| {
        times.sort();
        times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0
    };
    let (p50, p99) = (at(&mut started, 0.5), at(&mut started, 0.99));
    row("a queued Job that fits, create to unsuspended", format!("p50 {p50:.1} ms, p99 {p99:.1} ms"), "5 and 20 ms");
    let (p50, p99) = (at(&mut first_pod, 0.5), at(&mut first_pod, 0.99));
    row("the same, to its first pod", format!("p50 {p50:.1} ms, p99 {p99:.1} ms"), "10 and 40 ms");
}

async fn until(watch: &mut client::Stream, is: impl Fn(&Value) -> bool) {
    let mut text = Vec::new();
    loop {
        text.extend_from_slice(&watch.next().await.expect("the watch goes on"));
        let mut found = false;
        let mut at = 0;
        while let Some(end) = text[at..].iter().position(|b| *b == b'\n') {
            found |= serde_json::from_slice::<Value>(&text[at..at + end]).is_ok_and(|event| is(&event));
            at += end + 1;
        }
        text.drain(..at);
        if found {
            return;
        }
    }
}
