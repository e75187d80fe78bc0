//! This machine as a node of `usher up`, and its logs as the API server asks for them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use usher_apiserver::Server;
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::logs::{LogError, LogRequest, LogSource, LogStream};
use usher_node::sim::Simulation;
use usher_node::{LogQuery, Node, Options, StartError, State};

use crate::config::UpConfig;

/// What runs pods.
pub struct Nodes {
    machine: Option<Node>,
    simulation: Option<Simulation>,
    /// Where the records of a node are that keeps nothing.
    passing: Option<PathBuf>,
}

pub async fn start(server: &Server, config: &UpConfig, address: SocketAddr) -> Result<Nodes, StartError> {
    let client = kube::Client::new(server.service_as(User::new("system:usher", &[MASTERS])), "default");
    let mut nodes = Nodes { machine: None, simulation: None, passing: None };
    if let Some(node) = &config.node {
        let passing = config.in_memory.then(|| std::env::temp_dir().join(format!("usher-node-{}", std::process::id())));
        if let Some(dir) = &passing {
            // Of an earlier process with the same number.
            let _ = std::fs::remove_dir_all(dir);
        }
        let options = Options {
            name: node.name.clone(),
            state_dir: passing.clone().unwrap_or_else(|| config.data_dir.join("node")),
            pod_dir: node.pod_dir.clone(),
            user: node.user.clone(),
            api_address: Some(reachable(address)),
            survives: !config.in_memory,
        };
        nodes.machine = Some(Node::start(client.clone(), server.clock().clone(), options).await?);
        nodes.passing = passing;
    }
    if !config.sim_nodes.is_empty() {
        nodes.simulation = Some(Simulation::start(client, server.clock().clone(), config.sim_nodes.clone()));
    }
    server.serve_logs(Arc::new(Logs {
        machine: nodes.machine.as_ref().map(|m| (m.name.clone(), m.state.clone())),
        simulated: nodes.simulation.as_ref().map(Simulation::names).unwrap_or_default(),
    }));
    Ok(nodes)
}

/// An address that a program on this machine can call.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

impl Nodes {
    pub async fn stop(self) {
        if let Some(machine) = self.machine {
            machine.stop().await;
        }
        if let Some(simulation) = self.simulation {
            simulation.stop().await;
        }
        if let Some(dir) = self.passing {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

struct Logs {
    machine: Option<(String, State)>,
    simulated: Arc<HashSet<String>>,
}

impl LogSource for Logs {
    fn open(&self, request: LogRequest) -> BoxFuture<'_, Result<LogStream, LogError>> {
        async move {
            if self.simulated.contains(&request.node) {
                let text = format!("node {} is simulated: its pods run nothing and print nothing\n", request.node);
                return Ok(futures::stream::once(async { text.into() }).boxed());
            }
            let Some((_, state)) = self.machine.as_ref().filter(|(name, _)| *name == request.node) else {
                return Err(LogError::NoSuchNode);
            };
            let pod = serde_json::from_value(request.pod).map_err(|e| LogError::Refused(e.to_string()))?;
            let query = LogQuery {
                container: request.container,
                follow: request.follow,
                previous: request.previous,
                timestamps: request.timestamps,
                since: request.since,
                tail_lines: request.tail_lines,
                limit_bytes: request.limit_bytes,
            };
            Ok(state.logs(&pod, query).map_err(LogError::Refused)?.boxed())
        }
        .boxed()
    }
}
