//! CronJobs that fire in the same second, for docs/benchmarks.md: `cargo bench -p usher --bench cronjobs`.
//!
//! The API server and the controller run in this process on a store on disk, on the machine's clock. Prints a table; asserts
//! nothing about speed. `USHER_BENCH_QUICK=1` takes a tenth of the CronJobs.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::{Keys, Options, Server};
use usher_controllers::Controllers;
use usher_env::{Clock, Ids};
use usher_store::Store;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let count = if std::env::var_os("USHER_BENCH_QUICK").is_some() { 100 } else { 1_000 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (idle_cpu, mut skews) = runtime.block_on(fire(count));
    skews.sort();
    let millis = |skew: &SignedDuration| format!("{:.0} ms", skew.as_secs_f64() * 1e3);
    println!("\n| figure | measured | wanted |\n|---|---|---|");
    println!(
        "| {count} CronJobs of one slot: all Jobs created after | {} | 2,000 ms |",
        millis(&skews[skews.len() - 1])
    );
    println!("| skew from the slot to the Job being seen, p50 | {} | |", millis(&skews[skews.len() / 2]));
    println!("| skew, p99 | {} | |", millis(&skews[skews.len() * 99 / 100]));
    println!("| CPU of the whole process in 5 s before the slot | {idle_cpu:.0} ms | |");
}

/// The CPU used while waiting, and for each CronJob the time from its slot to its Job.
async fn fire(count: usize) -> (f64, Vec<SignedDuration>) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open_disk(dir.path(), usher_store::Options::default()).expect("a store");
    let clock = Clock::wall();
    let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).expect("keys");
    let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
    let server = Server::new(store, clock.clone(), Ids::random(), Options::default(), keys);
    server.bootstrap().await.expect("bootstrap");
    let client = Client::new(server.service_as(User::new("bench", &[MASTERS])), "default");
    let controllers = Controllers::start(client.clone(), clock.clone(), usher_controllers::Options::default());

    // A minute that leaves time to create them all and to see them idle.
    let now = clock.now().as_second();
    let slot = (now + 25).div_euclid(60) * 60 + 60;
    let slot = Timestamp::from_second(slot).expect("a time");
    let minute = slot.as_second() / 60 % 60;
    let crons = Api::<CronJob>::default_namespaced(client.clone());
    let jobs = Api::<Job>::default_namespaced(client);
    let template = json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}}});
    futures::stream::iter(0..count)
        .for_each_concurrent(32, |number| {
            let spec = json!({"schedule": format!("{minute} * * * *"), "jobTemplate": template});
            let cron = serde_json::from_value(json!({"metadata": {"name": format!("c{number}")}, "spec": spec}));
            let crons = crons.clone();
            async move { drop(crons.create(&Default::default(), &cron.expect("a CronJob")).await.expect("created")) }
        })
        .await;
    let watch = WatchParams { timeout: Some(0), ..WatchParams::default() };
    let mut events = Box::pin(jobs.watch(&watch, "0").await.expect("a watch"));
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (before, waited) = (cpu_millis(), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = cpu_millis() - before;
    assert!(waited.elapsed() >= Duration::from_secs(5));

    let mut skews = Vec::new();
    while skews.len() < count {
        let event = events.try_next().await.expect("a watch").expect("an event");
        if matches!(event, WatchEvent::Added(_)) {
            skews.push(clock.now().duration_since(slot));
        }
    }
    controllers.stop().await;
    server.close();
    (idle, skews)
}

/// User and system time of this process so far, from /proc (in ticks of 10 ms).
fn cpu_millis() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() * 10.0
}
