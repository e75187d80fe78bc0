//! This machine as a node of `usher up`, and its logs as the API server asks for them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use usher_apiserver::Server;
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::exec::{ExecRequest, ExecSource, Output, Session};
use usher_apiserver::logs::{LogError, LogRequest, LogSource, LogStream};
use usher_node::sim::{Simulation, forget_others};
use usher_node::{ExecQuery, LogQuery, Node, Options, StartError, State};

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
    let others = client.clone();
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
    let simulated = nodes.simulation.as_ref().map(Simulation::names).unwrap_or_default();
    match forget_others(others, &simulated).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "nodes of an earlier simulation are gone"),
        Err(error) => tracing::warn!(%error, "nodes of an earlier simulation could not be removed"),
    }
    let source =
        Arc::new(Containers { machine: nodes.machine.as_ref().map(|m| (m.name.clone(), m.state.clone())), simulated });
    server.serve_logs(source.clone());
    server.serve_exec(source);
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

/// What the API server asks of containers.
struct Containers {
    machine: Option<(String, State)>,
    simulated: Arc<HashSet<String>>,
}

impl LogSource for Containers {
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

impl Containers {
    /// Who knows the pod's processes, and the pod.
    fn place(&self, request: &ExecRequest) -> Result<(&State, Pod), LogError> {
        if self.simulated.contains(&request.node) {
            let why = format!("node {} is simulated: there is no process to run a command beside", request.node);
            return Err(LogError::Refused(why));
        }
        let Some((_, state)) = self.machine.as_ref().filter(|(name, _)| *name == request.node) else {
            return Err(LogError::NoSuchNode);
        };
        let pod = serde_json::from_value(request.pod.clone()).map_err(|e| LogError::Refused(e.to_string()))?;
        Ok((state, pod))
    }
}

impl ExecSource for Containers {
    fn check(&self, request: &ExecRequest) -> Result<(), LogError> {
        let (state, pod) = self.place(request)?;
        state.can_exec(&pod, &request.container).map_err(LogError::Refused)
    }

    fn exec(&self, request: ExecRequest) -> Result<Session, LogError> {
        let (state, pod) = self.place(&request)?;
        let query = ExecQuery {
            container: request.container,
            command: request.command,
            stdin: request.stdin,
            tty: request.tty,
        };
        let exec = state.exec(&pod, query).map_err(LogError::Refused)?;
        let (say, output) = mpsc::channel(8);
        tokio::spawn(carry(exec.output, Output::Stdout, say.clone()));
        if let Some(errors) = exec.errors {
            tokio::spawn(carry(errors, Output::Stderr, say));
        }
        let input = exec.input.filter(|_| request.stdin).map(|mut to| {
            let (input, mut said) = mpsc::channel::<Bytes>(8);
            tokio::spawn(async move {
                while let Some(data) = said.recv().await {
                    // A file of the runtime's writes later: only flushed it is sent.
                    if to.write_all(&data).await.is_err() || to.flush().await.is_err() {
                        break;
                    }
                }
            });
            input
        });
        let sizes = exec.terminal.map(|terminal| {
            let (sizes, mut told) = mpsc::channel(8);
            tokio::spawn(async move {
                while let Some((columns, rows)) = told.recv().await {
                    terminal.resize(columns, rows);
                }
            });
            sizes
        });
        Ok(Session { input, sizes, output, end: exec.end })
    }
}

/// Until the end of the stream, which for a terminal is an error.
async fn carry(mut from: tokio::fs::File, as_what: Output, say: mpsc::Sender<(Output, Bytes)>) {
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if say.send((as_what, Bytes::copy_from_slice(&buffer[..read]))).await.is_err() {
            return;
        }
    }
}
