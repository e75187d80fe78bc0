//! The housekeeping controllers against the server that `USHER_TEST_KUBECONFIG` names: a kube-apiserver without
//! controllers (`tools/cluster/cluster up DIR --no-controllers`), or our own.

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use usher_controllers::{Controllers, testing};
use usher_env::Clock;

#[tokio::test(flavor = "multi_thread")]
async fn every_promised_behaviour_holds_against_a_server() {
    let Some(path) = std::env::var_os("USHER_TEST_KUBECONFIG") else {
        println!("skipped: USHER_TEST_KUBECONFIG names no server");
        return;
    };
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let kubeconfig = Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a cluster");
    let client = Client::try_from(config).expect("a client");
    let handle = Controllers::start(client.clone(), Clock::wall(), testing::options());
    let result = testing::run_all(client).await;
    handle.stop().await;
    let held = result.expect("every behaviour");
    assert_eq!(held, testing::all().len());
}
