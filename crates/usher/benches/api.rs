//! The API server's figures for docs/benchmarks.md: `cargo bench -p usher --bench api`.
//!
//! Starts the release binary as its own process with a data directory on disk, drives it over HTTPS, then measures the same
//! server inside this process. Prints a table; asserts nothing about speed. `USHER_BENCH_QUICK=1` makes everything smaller.

mod client;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Connection, Endpoint};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const NAMESPACE: &str = "/apis/bench.usher.dev/v1/namespaces/default/things";

fn main() {
    let quick = std::env::var_os("USHER_BENCH_QUICK").is_some();
    let scale = if quick { 20 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut table: Vec<(String, String, &str)> = Vec::new();
    runtime.block_on(async {
        if wants("https") {
            over_https(scale, &mut table).await;
        }
        if wants("process") {
            in_process(scale, &mut table).await;
        }
        if wants("scale") {
            at_scale(scale, &mut table).await;
        }
    });
    println!("\n| figure | measured | wanted |\n|---|---|---|");
    for (figure, measured, wanted) in table {
        println!("| {figure} | {measured} | {wanted} |");
    }
}

/// `USHER_BENCH_ONLY=https,process,scale` runs a part, for profiling.
fn wants(part: &str) -> bool {
    std::env::var("USHER_BENCH_ONLY").map_or(true, |only| only.split(',').any(|p| p == part))
}

/// A custom resource of about 3 KB.
fn thing(name: &str) -> Value {
    let entries: Vec<Value> = (0..24)
        .map(
            |i| json!({"name": format!("entry-{i}"), "value": "x".repeat(60), "count": i, "labels": {"tier": "batch"}}),
        )
        .collect();
    json!({
        "apiVersion": "bench.usher.dev/v1", "kind": "Thing",
        "metadata": {"name": name, "labels": {"app": "bench"}, "annotations": {"usher.dev/note": "x".repeat(200)}},
        "spec": {"replicas": 3, "entries": entries},
    })
}

/// Bodies that differ in nothing but the name, so that making them costs next to nothing.
#[derive(Clone)]
struct Bodies {
    before: Arc<str>,
    after: Arc<str>,
}

impl Bodies {
    fn new() -> Bodies {
        let text = thing("NAME-OF-THE-THING").to_string();
        let (before, after) = text.split_once("NAME-OF-THE-THING").expect("a name");
        Bodies { before: before.into(), after: after.into() }
    }

    fn named(&self, name: &str) -> Bytes {
        Bytes::from([&*self.before, name, &*self.after].concat())
    }
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.bench.usher.dev"},
        "spec": {
            "group": "bench.usher.dev", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "replicas": {"type": "integer", "minimum": 0},
                    "entries": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                        "type": "object", "required": ["name"], "properties": {
                            "name": {"type": "string"}, "value": {"type": "string", "maxLength": 256}, "count": {"type": "integer"},
                            "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}}}}}}}}],
        },
    })
}

struct Up {
    child: Child,
    endpoint: Endpoint,
    ready_after: Duration,
}

impl Up {
    fn start(dir: &Path) -> Up {
        let started = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir)
            .env("USHER_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .expect("usher starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a ready line");
        let ready_after = started.elapsed();
        assert!(line.starts_with("ready "), "{line}");
        let kubeconfig = std::fs::read_to_string(dir.join("kubeconfig")).expect("a kubeconfig");
        Up { child, endpoint: Endpoint::from_kubeconfig(&kubeconfig), ready_after }
    }

    fn cpu_secs(&self) -> f64 {
        cpu_secs(&self.child.id().to_string())
    }

    fn rss_mb(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or("");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
    }

    fn stop(mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The processor time that a process has used, of all its threads: what stays comparable when others share the machine.
fn cpu_secs(process: &str) -> f64 {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SEC
}

/// What `count` creates cost, given what the clocks say.
fn creates(count: usize, secs: f64, cpu_secs: f64) -> String {
    format!("{:.0}/s, {:.0} µs of processor time each", count as f64 / secs, cpu_secs * 1e6 / count as f64)
}

async fn define(connection: &mut Connection) {
    let (code, body) = connection
        .call(Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", Some(&definition()))
        .await;
    assert!(code == 201 || code == 409, "{code} {}", String::from_utf8_lossy(&body));
    // Served once it is established.
    for _ in 0..200 {
        if connection.call(Method::GET, NAMESPACE, None).await.0 == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the bench's resource is not served");
}

/// Creates `count` objects over `connections` connections; returns the seconds it took.
async fn create_many(endpoint: &Endpoint, connections: usize, first: usize, count: usize) -> f64 {
    let next = Arc::new(AtomicUsize::new(first));
    let bodies = Bodies::new();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(endpoint).await);
    }
    let started = Instant::now();
    let tasks: Vec<_> = open
        .into_iter()
        .map(|mut connection| {
            let (next, bodies) = (next.clone(), bodies.clone());
            tokio::spawn(async move {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= first + count {
                        return;
                    }
                    let (code, body) =
                        connection.send(Method::POST, NAMESPACE, bodies.named(&format!("thing-{i:06}"))).await;
                    assert_eq!(code, 201, "{}", String::from_utf8_lossy(&body));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a writer");
    }
    started.elapsed().as_secs_f64()
}

async fn over_https(scale: usize, table: &mut Vec<(String, String, &'static str)>) {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(dir.path());
    table.push(("ready from an empty store".into(), format!("{} ms", up.ready_after.as_millis()), "300 ms"));
    let mut connection = Connection::open(&up.endpoint).await;
    define(&mut connection).await;
    let size = thing("thing-000000").to_string().len();
    println!("object size: {size} bytes as sent");

    let count = 40_000 / scale;
    let cpu_before = up.cpu_secs();
    let secs = create_many(&up.endpoint, 64, 0, count).await;
    table.push((
        "durable creates over HTTPS, 64 connections (processor time: the server's)".into(),
        creates(count, secs, up.cpu_secs() - cpu_before),
        "4,000/s",
    ));

    let wanted = 10_000.min(count);
    let mut best = Duration::MAX;
    let mut bytes = 0;
    for _ in 0..5 {
        let started = Instant::now();
        let (code, body) = connection.call(Method::GET, &format!("{NAMESPACE}?limit={wanted}"), None).await;
        assert_eq!(code, 200);
        bytes = body.len();
        best = best.min(started.elapsed());
    }
    table.push((
        format!("list of {wanted} objects ({:.0} MB)", bytes as f64 / 1e6),
        format!("{} ms", best.as_millis()),
        "150 ms",
    ));
    let cpu_before = up.cpu_secs();
    let delivered = watch_latency(&up.endpoint, scale, table).await;
    table.push((
        "processor time of the server for that, for each event delivered".into(),
        format!("{:.1} µs", (up.cpu_secs() - cpu_before) * 1e6 / delivered as f64),
        "",
    ));
    up.stop();
}

/// 100 watchers, 1,000 writes a second: how long from the answered write's start to each watcher's line. Gives the number
/// of lines.
async fn watch_latency(endpoint: &Endpoint, scale: usize, table: &mut Vec<(String, String, &'static str)>) -> usize {
    let (watchers, rate, secs) = (100, 1000, if scale == 1 { 10 } else { 2 });
    let sent: Arc<Vec<Mutex<Option<Instant>>>> = Arc::new((0..rate * secs).map(|_| Mutex::new(None)).collect());
    let expected = rate * secs;
    let mut readers = Vec::new();
    for _ in 0..watchers {
        let connection = Connection::open(endpoint).await;
        let path = "/api/v1/namespaces/default/configmaps?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&timeoutSeconds=120";
        let mut stream = connection.stream(path).await;
        let sent = sent.clone();
        readers.push(tokio::spawn(async move {
            let mut latencies: Vec<f32> = Vec::with_capacity(expected);
            let mut rest = String::new();
            while latencies.len() < expected {
                let Some(piece) = stream.next().await else { break };
                let now = Instant::now();
                // A piece may end within a line. Everything here is ASCII.
                let piece = std::str::from_utf8(&piece).expect("text");
                let Some((lines, tail)) = piece.rsplit_once('\n') else {
                    rest.push_str(piece);
                    continue;
                };
                rest.push_str(lines);
                for i in rest.lines().filter_map(index_of) {
                    if let Some(at) = *sent[i].lock().await {
                        latencies.push((now - at).as_secs_f32() * 1000.0);
                    }
                }
                rest.clear();
                rest.push_str(tail);
            }
            latencies
        }));
    }
    let lanes = 16;
    let mut writers = Vec::new();
    for lane in 0..lanes {
        let mut connection = Connection::open(endpoint).await;
        let sent = sent.clone();
        writers.push(tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs_f64(lanes as f64 / rate as f64));
            let mut i = lane;
            while i < expected {
                tick.tick().await;
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("w-{i:06}")},
                    "data": {"x": "y".repeat(2600)}});
                *sent[i].lock().await = Some(Instant::now());
                let (code, _) =
                    connection.call(Method::POST, "/api/v1/namespaces/default/configmaps", Some(&body)).await;
                assert_eq!(code, 201);
                i += lanes;
            }
        }));
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    let mut all: Vec<f32> = Vec::new();
    for reader in readers {
        all.extend(
            tokio::time::timeout(Duration::from_secs(30), reader).await.expect("watchers finish").expect("a watcher"),
        );
    }
    assert_eq!(all.len(), expected * watchers, "every watcher saw every write");
    all.sort_by(f32::total_cmp);
    let at = |q: f64| all[((all.len() - 1) as f64 * q) as usize];
    table.push((
        format!("watch delivery, {watchers} watchers over HTTPS at {rate} writes/s of 3 KB (write sent to event read)"),
        format!("p50 {:.1} ms, p99 {:.1} ms", at(0.5), at(0.99)),
        "p99 10 ms",
    ));
    all.len()
}

fn index_of(text: &str) -> Option<usize> {
    let at = text.find("\"w-")?;
    text.get(at + 3..at + 9)?.parse().ok()
}

async fn in_process(scale: usize, table: &mut Vec<(String, String, &'static str)>) {
    use tower::ServiceExt;
    use usher_apiserver::auth::identity::User;
    let dir = tempfile::tempdir().expect("a directory");
    let store = usher_store::Store::open_disk(dir.path(), usher_store::Options::default()).expect("a store");
    let now = usher_env::Clock::wall();
    let pki = usher_apiserver::auth::pki::Pki::in_memory(&["localhost".to_owned()], now.now()).expect("keys");
    let keys = usher_apiserver::Keys { service_account: pki.service_account_key, tokens: Default::default() };
    let server =
        usher_apiserver::Server::new(store, now, usher_env::Ids::random(), usher_apiserver::Options::default(), keys);
    server.bootstrap().await.expect("bootstrap");
    server.clone().start_custom_resources();
    let service = server.service_as(User::new("bench", &["system:masters"]));
    let bodies = Bodies::new();
    let call = move |method: Method, path: String, body: Bytes| {
        let service = service.clone();
        async move {
            let request = http::Request::builder()
                .method(method)
                .uri(path)
                .header("content-type", "application/json")
                .body(http_body_util::Full::new(body))
                .expect("a request");
            let response = service.oneshot(request).await.expect("infallible");
            let code = response.status().as_u16();
            (code, http_body_util::BodyExt::collect(response.into_body()).await.expect("infallible").to_bytes())
        }
    };
    let (code, _) = call(
        Method::POST,
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".into(),
        definition().to_string().into(),
    )
    .await;
    assert_eq!(code, 201);
    for _ in 0..200 {
        if call(Method::GET, NAMESPACE.into(), Bytes::new()).await.0 == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let count = 60_000 / scale;
    let next = Arc::new(AtomicUsize::new(0));
    let (started, cpu_before) = (Instant::now(), cpu_secs("self"));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (next, call, bodies) = (next.clone(), call.clone(), bodies.clone());
            tokio::spawn(async move {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        return;
                    }
                    let (code, body) = call(Method::POST, NAMESPACE.into(), bodies.named(&format!("p-{i:06}"))).await;
                    assert_eq!(code, 201, "{}", String::from_utf8_lossy(&body));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a writer");
    }
    table.push((
        "durable creates in process, 64 tasks".into(),
        creates(count, started.elapsed().as_secs_f64(), cpu_secs("self") - cpu_before),
        "15,000/s",
    ));
    server.close();
}

async fn at_scale(scale: usize, table: &mut Vec<(String, String, &'static str)>) {
    let dir = tempfile::tempdir().expect("a directory");
    let count = 100_000 / scale;
    let up = Up::start(dir.path());
    define(&mut Connection::open(&up.endpoint).await).await;
    create_many(&up.endpoint, 64, 0, count).await;
    table.push((format!("RSS with {count} objects of 3 KB"), format!("{:.0} MB", up.rss_mb()), "1,000 MB"));
    up.stop();
    let up = Up::start(dir.path());
    table.push((
        format!("restart with {count} objects until ready"),
        format!("{} ms", up.ready_after.as_millis()),
        "3,000 ms",
    ));
    table.push(("RSS after that restart".to_owned(), format!("{:.0} MB", up.rss_mb()), ""));
    up.stop();
}
