//! What the housekeeping controllers promise, kept by them against our server in this process on virtual time, and against a
//! real kube-apiserver that has no controllers of its own.

mod harness;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::{Keys, Options, Server};
use usher_controllers::{Controllers, testing};
use usher_env::{Clock, Ids};
use usher_store::Store;

#[tokio::test(start_paused = true)]
async fn every_promise_is_kept_in_process_on_virtual_time() {
    let clock = Clock::virtual_from("2026-11-15T00:00:00Z".parse().expect("a time"));
    let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).expect("keys");
    let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
    let store = Store::open_memory(usher_store::Options::default());
    let server = Server::new(store, clock.clone(), Ids::seeded(7), Options::default(), keys);
    server.bootstrap().await.expect("bootstrap");
    server.clone().start_custom_resources();
    let client = Client::new(server.service_as(User::new("tester", &[MASTERS])), "default");
    let handle = Controllers::start(client.clone(), clock, testing::options());
    let held = testing::run_all(client).await.expect("every promise");
    handle.stop().await;
    assert_eq!(held, testing::all().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_is_kept_against_a_real_kube_apiserver() {
    let cluster = need!(harness::Cluster::start(&[]));
    let kubeconfig = Kubeconfig::read_from(harness::Server::kubeconfig(&cluster)).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a cluster");
    let client = Client::try_from(config).expect("a client");
    let handle = Controllers::start(client.clone(), Clock::wall(), testing::options());
    let held = testing::run_all(client).await.expect("every promise");
    handle.stop().await;
    assert_eq!(held, testing::all().len());
}
