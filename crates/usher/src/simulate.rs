//! `usher node --simulate`: simulated nodes for a cluster that is already there, so that its control plane can be tested under load
//! with no machines.
//!
//! It keeps nothing: stopped and started again it goes on with the pods it finds. The nodes stay when it ends, and the cluster
//! then takes them for silent.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use kube::Client;
use usher_env::Clock;
use usher_node::sim::{Group, Simulation};

use crate::cluster;
use crate::config::{ConfigError, read_sim_nodes};
use crate::process::{Signals, init_logs};

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  usher node --simulate nodes.yaml\n  usher node --simulate nodes.yaml --kubeconfig ~/.kube/config --context staging\n\nnodes.yaml:\n  - {count: 100, name: cpu, capacity: {cpu: 64, memory: 256Gi}}\n  - {count: 10, name: gpu, labels: {gpu: a100}, capacity: {nvidia.com/gpu: 8}}\n\nWhat a pod does is written on it: usher.dev/sim-duration (1s), usher.dev/sim-exit-code (0), usher.dev/sim-stop-duration (0).\nTo remove the nodes: kubectl delete nodes -l usher.dev/simulated=true"
)]
pub struct SimulateFlags {
    /// The nodes: a YAML list of {count, name, labels, taints, capacity}
    #[arg(long, value_name = "FILE", required = true)]
    simulate: PathBuf,
    /// How to reach the cluster [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod this runs in]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Which context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    #[error("{}", .0.to_string().replacen("--sim-nodes", "--simulate", 1))]
    Groups(#[from] ConfigError),
    #[error("--simulate {}: it names no nodes; it is a list like [{{count: 100, name: sim}}]", .0.display())]
    NoNodes(PathBuf),
    #[error("cannot read how to reach the cluster: {0}; check --kubeconfig and --context")]
    Config(String),
    #[error("cannot reach the API server at {server}: {why}; check --kubeconfig, and that it is running")]
    Unreachable { server: String, why: String },
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

pub fn run(flags: SimulateFlags) -> Result<(), SimulateError> {
    init_logs();
    let groups = read_sim_nodes(&flags.simulate)?;
    if groups.iter().all(|group| group.count == 0) {
        return Err(SimulateError::NoNodes(flags.simulate));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(SimulateError::Runtime)?;
    runtime.block_on(serve(flags, groups))
}

async fn serve(flags: SimulateFlags, groups: Vec<Group>) -> Result<(), SimulateError> {
    let mut signals = Signals::listen().map_err(SimulateError::Runtime)?;
    let config =
        cluster::config(flags.kubeconfig.as_deref(), flags.context.as_deref()).await.map_err(SimulateError::Config)?;
    let server = config.cluster_url.to_string();
    let unreachable =
        |error: kube::Error| SimulateError::Unreachable { server: server.clone(), why: error.to_string() };
    let client = Client::try_from(config).map_err(unreachable)?;
    client.apiserver_version().await.map_err(unreachable)?;
    let simulation = Simulation::with_heartbeats(client, Clock::wall(), groups);
    tokio::select! {
        () = simulation.registered() => say_ready(&server, simulation.names().len()),
        () = signals.wait() => {
            simulation.stop().await;
            return Ok(());
        }
    }
    signals.wait().await;
    tracing::info!("stopping; the nodes stay, until somebody deletes them");
    simulation.stop().await;
    Ok(())
}

/// The one line on stdout. A reader that has gone away is no reason to stop.
fn say_ready(server: &str, nodes: usize) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {} nodes={nodes}", server.trim_end_matches('/'));
    let _ = out.flush();
}
