//! `usher controller`: the controllers alone, against an API server that is already there.
//!
//! It keeps nothing: everything it knows is in that API server, so it can be stopped and started at any time. One copy at a
//! time; electing a leader is not its business yet.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use usher_controllers::{Controllers, Options};
use usher_env::Clock;

use crate::cluster;
use crate::process::{Signals, init_logs};

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  usher controller\n  usher controller --kubeconfig ~/.kube/config --context staging\n\nThe kinds of queues are installed first; see crds/. Jobs then name their queue with the label kueue.x-k8s.io/queue-name."
)]
pub struct ControllerFlags {
    /// How to reach the cluster [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod this runs in]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Which context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// How work is queued, as Kueue's configuration file says it: waitForPodsReady, fairSharing, objectRetentionPolicies
    #[arg(long, value_name = "FILE")]
    queueing_config: Option<PathBuf>,
    /// Install or update the kinds of queues before starting
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true")]
    install_crds: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error("cannot read how to reach the cluster: {0}; check --kubeconfig and --context")]
    Config(String),
    #[error("cannot reach the API server at {server}: {why}; check --kubeconfig, and that it is running")]
    Unreachable { server: String, why: String },
    #[error(
        "cannot install {name}: {why}; give this user the right, or apply crds/ by hand and start with --install-crds=false"
    )]
    Install { name: String, why: String },
    #[error("--queueing-config: {0}")]
    Queueing(#[from] crate::queueing_config::QueueingConfigError),
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

pub fn run(flags: ControllerFlags) -> Result<(), ControllerError> {
    init_logs();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ControllerError::Runtime)?;
    runtime.block_on(serve(flags))
}

async fn serve(flags: ControllerFlags) -> Result<(), ControllerError> {
    let policy = flags.queueing_config.as_deref().map(crate::queueing_config::read).transpose()?.unwrap_or_default();
    let mut signals = Signals::listen().map_err(ControllerError::Runtime)?;
    let config = cluster::config(flags.kubeconfig.as_deref(), flags.context.as_deref())
        .await
        .map_err(ControllerError::Config)?;
    let server = config.cluster_url.to_string();
    let unreachable =
        |error: kube::Error| ControllerError::Unreachable { server: server.clone(), why: error.to_string() };
    let client = Client::try_from(config.clone()).map_err(unreachable)?;
    let version = client.apiserver_version().await.map_err(unreachable)?;
    tracing::info!(version = version.git_version, server, "found the API server");
    if flags.install_crds {
        install(&client).await?;
    }
    let options = Options { queueing: Some(policy), ..Options::none() };
    let controllers = Controllers::start(client, Clock::wall(), options);
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {}", server.trim_end_matches('/'));
    let _ = out.flush();
    signals.wait().await;
    tracing::info!("stopping");
    controllers.stop().await;
    Ok(())
}

async fn install(client: &Client) -> Result<(), ControllerError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let how = PatchParams::apply("usher").force();
    for definition in usher_api::kueue::definitions() {
        let name = definition.pointer("/metadata/name").and_then(|n| n.as_str()).unwrap_or_default().to_owned();
        let failed = |why: String| ControllerError::Install { name: name.clone(), why };
        api.patch(&name, &how, &Patch::Apply(&definition)).await.map_err(|e| failed(e.to_string()))?;
    }
    Ok(())
}
