//! Placement through the API: `cargo bench -p usher --bench placement`.
//!
//! The API server on a disk store, in this process, with 1,000 nodes and 10,000 pending pods; then the controllers start, and
//! the time is taken until the last pod is bound (each binding a durable write, and an event besides). Then as many pods
//! again while placement runs. Prints a table; asserts nothing about speed. `USHER_BENCH_QUICK=1` makes it smaller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use usher_controllers::{Controllers, Options};

/// As in the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let scale = if std::env::var_os("USHER_BENCH_QUICK").is_some() { 10 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure(1_000 / scale, 10_000 / scale));
}

async fn measure(nodes: usize, pods: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let client = server(dir.path()).await;
    create_all(&client, nodes, node).await;
    create_all(&client, pods, |i| pod(&format!("first-{i}"))).await;
    println!("| {nodes} nodes, {pods} pods | seconds | bindings/s |\n|---|---|---|");
    let started = Instant::now();
    let options = Options { event_ttl: None, ..Options::default() };
    let handle = Controllers::start(client.clone(), usher_env::Clock::wall(), options);
    until_bound(&client).await;
    line("all pending at the start", pods, started);
    let started = Instant::now();
    create_all(&client, pods, |i| pod(&format!("second-{i}"))).await;
    let created = started.elapsed().as_secs_f64();
    until_bound(&client).await;
    line(&format!("created meanwhile (in {created:.1} s)"), pods, started);
    let mut events = 0;
    for _ in 0..600 {
        let list = Api::<Event>::all(client.clone()).list_metadata(&ListParams::default()).await.expect("events");
        events = list.items.len();
        if events >= 2 * pods {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("| events recorded | {:.2} | {events} of {} |", started.elapsed().as_secs_f64(), 2 * pods);
    handle.stop().await;
}

fn line(what: &str, pods: usize, started: Instant) {
    let took = started.elapsed().as_secs_f64();
    println!("| {what} | {took:.2} | {:.0} |", pods as f64 / took);
}

async fn server(dir: &std::path::Path) -> Client {
    use usher_apiserver::auth::identity::User;
    let store = usher_store::Store::open_disk(dir, usher_store::Options::default()).expect("a store");
    let clock = usher_env::Clock::wall();
    let pki = usher_apiserver::auth::pki::Pki::in_memory(&["localhost".to_owned()], clock.now()).expect("keys");
    let keys = usher_apiserver::Keys { service_account: pki.service_account_key, tokens: Default::default() };
    let options = usher_apiserver::Options::default();
    let server = usher_apiserver::Server::new(store, clock, usher_env::Ids::random(), options, keys);
    server.bootstrap().await.expect("bootstrap");
    let client = Client::new(server.service_as(User::new("bench", &["system:masters"])), "default");
    let account = json!({"metadata": {"name": "default", "namespace": "default"}});
    // The controller that makes it does not run yet.
    send(&client, "/api/v1/namespaces/default/serviceaccounts", &account).await;
    client
}

async fn send(client: &Client, path: &str, body: &Value) {
    let body = body.to_string().into_bytes();
    let request = http::Request::post(path).header("content-type", "application/json").body(body).expect("a request");
    client.request_text(request).await.expect("created");
}

fn node(i: usize) -> (&'static str, Value) {
    let has = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
    let name = format!("node-{i:04}");
    let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": has, "allocatable": has}});
    ("/api/v1/nodes", node)
}

fn pod(name: &str) -> (&'static str, Value) {
    let requests = json!({"requests": {"cpu": "500m", "memory": "256Mi"}});
    // New nodes are tainted until somebody finds them ready.
    let tolerations = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]);
    let pod = json!({"metadata": {"name": name, "labels": {"app": "bench"}}, "spec": {"tolerations": tolerations,
        "containers": [{"name": "main", "image": "busybox", "command": ["true"], "resources": requests}]}});
    ("/api/v1/namespaces/default/pods", pod)
}

async fn create_all(
    client: &Client,
    count: usize,
    make: impl Fn(usize) -> (&'static str, Value) + Clone + Send + 'static,
) {
    let next = Arc::new(AtomicUsize::new(0));
    let worker = |_| {
        let (client, next, make) = (client.clone(), next.clone(), make.clone());
        tokio::spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return;
                }
                let (path, body) = make(i);
                send(&client, path, &body).await;
            }
        })
    };
    let workers: Vec<_> = (0..64).map(worker).collect();
    for worker in workers {
        worker.await.expect("created");
    }
}

async fn until_bound(client: &Client) {
    let pods = Api::<Pod>::all(client.clone());
    let unbound = ListParams::default().fields("spec.nodeName=").limit(1);
    while !pods.list_metadata(&unbound).await.expect("pods").items.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
