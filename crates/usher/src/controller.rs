//! `usher controller`: the controllers of queues against an API server that is already there, and what they need around them
//! on a cluster: webhooks, certificates, a leader among several copies, the visibility API, health and metrics.
//!
//! It keeps nothing: everything it knows is in that API server, so it can be stopped and started at any time. A copy that led
//! and does not any longer ends, and starts over with nothing remembered.

mod around;
mod lead;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use usher_env::Clock;

use crate::cluster;
use crate::process::{Signals, init_logs};
use around::Surround;
use lead::Ended;

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  usher controller\n  usher controller --kubeconfig ~/.kube/config --context staging\n  usher controller --listen 0.0.0.0:9443 --probes 0.0.0.0:8081 --leader-elect\n\nThe kinds of queues are installed first; see crds/. Jobs then name their queue with the label kueue.x-k8s.io/queue-name.\nTo install it on a cluster see `usher manifests`, deploy/ and docs/cluster.md."
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
    /// Serve webhooks at this address, over TLS; their configurations are installed with `usher manifests`
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Serve the visibility API at this address, over TLS, for the API server to aggregate
    #[arg(long, value_name = "ADDRESS")]
    visibility: Option<SocketAddr>,
    /// Serve /healthz, /readyz and /metrics at this address, over plain HTTP
    #[arg(long, value_name = "ADDRESS")]
    probes: Option<SocketAddr>,
    /// Decide only while this copy holds the Lease usher-controller, so that several copies can run [default: in a pod]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: Option<bool>,
    /// Where the Lease and the serving certificate are kept [default: $POD_NAMESPACE, or usher-system]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
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
    #[error("{flag}: cannot listen on {address}: {source}; stop what uses it or choose another address")]
    Listen { flag: &'static str, address: SocketAddr, source: std::io::Error },
    #[error("{0}; apply what `usher manifests` prints first, and give this user the rights of its roles")]
    Certificate(#[from] usher_cluster::certificates::keep::CertificateError),
    #[error("cannot set up TLS: {0}")]
    Tls(String),
    #[error("another copy may lead now; this one ends and is to be started again")]
    Deposed,
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

impl ControllerError {
    /// Whether the process failed before it did anything.
    pub fn is_before_start(&self) -> bool {
        !matches!(self, ControllerError::Deposed)
    }
}

/// Who this copy is on the cluster.
#[derive(Clone, Debug)]
struct Identity {
    namespace: String,
    /// The pod this runs in, if it does.
    pod: Option<String>,
}

impl Identity {
    fn find(flags: &ControllerFlags) -> Identity {
        let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let namespace = flags.namespace.clone().or_else(|| said("POD_NAMESPACE"));
        Identity {
            namespace: namespace.unwrap_or_else(|| usher_cluster::names::NAMESPACE.to_owned()),
            pod: said("POD_NAME"),
        }
    }
}

pub fn run(flags: ControllerFlags) -> Result<(), ControllerError> {
    init_logs();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ControllerError::Runtime)?;
    runtime.block_on(serve(flags))
}

async fn serve(flags: ControllerFlags) -> Result<(), ControllerError> {
    let policy = flags.queueing_config.as_deref().map(crate::queueing_config::read).transpose()?.unwrap_or_default();
    let mut signals = Signals::listen().map_err(ControllerError::Runtime)?;
    let (clock, identity) = (Clock::wall(), Identity::find(&flags));
    let config = cluster::config(flags.kubeconfig.as_deref(), flags.context.as_deref())
        .await
        .map_err(ControllerError::Config)?;
    let server = config.cluster_url.to_string();
    let unreachable =
        |error: kube::Error| ControllerError::Unreachable { server: server.clone(), why: error.to_string() };
    let client = usher_cluster::client::connect(config.clone(), None).map_err(unreachable)?;
    let version = client.apiserver_version().await.map_err(unreachable)?;
    tracing::info!(version = version.git_version, server, "found the API server");
    if flags.install_crds {
        install(&client).await?;
    }
    let outlook = usher_controllers::queueing::Outlook::default();
    let around = Surround::start(&flags, &identity, &client, &clock, &outlook).await?;
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {}{}", server.trim_end_matches('/'), around.places);
    let _ = out.flush();
    let elects = flags.leader_elect.unwrap_or(identity.pod.is_some());
    let term = lead::Term { config, client, clock, identity, policy, outlook, elects };
    let ended = term.run(&around, &mut signals).await.map_err(unreachable)?;
    around.stop().await;
    match ended {
        Ended::Told => Ok(()),
        Ended::Deposed => Err(ControllerError::Deposed),
    }
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
