//! `usher up`: opens the store, starts the API server and the controllers, says it is ready, and stops cleanly.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::{self, Pki, PkiError};
use usher_apiserver::auth::token_file::{TokenFile, TokenFileError};
use usher_apiserver::visibility::{Line, PendingWorkloads};
use usher_apiserver::{Keys, Options, Server, listen};
use usher_controllers::queueing::status::window;
use usher_controllers::{self as controllers, Controllers, Handle, cronjob, job};
use usher_env::{Clock, Ids};
use usher_store::{OpenError, Store};

use crate::config::{ConfigError, UpConfig};
use crate::process::{Signals, init_logs};

/// How far back a watch may begin, at least: as long as etcd keeps history for kube-apiserver.
const HISTORY: Duration = Duration::from_secs(5 * 60);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("cannot listen on {address}: {source}; stop what uses it or choose another with --listen")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot create the data directory {}: {source}; choose another with --data-dir", path.display())]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error("{source}; {}", store_advice(source))]
    Store {
        #[from]
        source: OpenError,
    },
    #[error("{0}")]
    Pki(#[from] PkiError),
    #[error("--token-auth-file {}: {why}", path.display())]
    Tokens { path: PathBuf, why: String },
    #[error("cannot write the kubeconfig {}: {source}; choose another place with --kubeconfig", path.display())]
    Kubeconfig { path: PathBuf, source: std::io::Error },
    #[error("{0}; choose another --data-dir, or leave this machine out with --node=false")]
    Node(#[from] usher_node::StartError),
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
    #[error("the first objects could not be stored: {0}")]
    Bootstrap(String),
}

impl StartError {
    /// Whether the process failed before it served anything.
    pub fn is_before_start(&self) -> bool {
        !matches!(self, StartError::Bootstrap(_))
    }
}

fn store_advice(error: &OpenError) -> &'static str {
    match error {
        OpenError::Newer { .. } => "use that version of usher, or another --data-dir",
        OpenError::Locked { .. } => "stop the other usher, or choose another --data-dir",
        OpenError::Corrupt { .. } => "restore it from a backup, or choose another --data-dir",
        OpenError::Io { .. } => "make it readable and writable, or choose another --data-dir",
    }
}

pub fn run(config: UpConfig) -> Result<(), StartError> {
    init_logs();
    // The port first: if it is taken, nothing has been touched yet.
    let listener =
        TcpListener::bind(config.listen).map_err(|source| StartError::Listen { address: config.listen, source })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(StartError::Runtime)?;
    runtime.block_on(serve(config, listener))
}

async fn serve(config: UpConfig, listener: TcpListener) -> Result<(), StartError> {
    let mut signals = Signals::listen().map_err(StartError::Runtime)?;
    let address = listener.local_addr().map_err(StartError::Runtime)?;
    let clock = Clock::wall();
    let tokens = read_tokens(&config)?;
    let names = pki::server_names(pki::hostname().as_deref(), address.ip());
    let (store, pki) = if config.in_memory {
        (Store::open_memory(usher_store::Options::default()), Pki::in_memory(&names, clock.now())?)
    } else {
        make_private_dir(&config.data_dir)?;
        let store = Store::open_disk(&config.data_dir, usher_store::Options::default())?;
        (store, Pki::open(&config.data_dir, &names, clock.now())?)
    };
    let url = format!("https://{address}");
    let kubeconfig = pki::kubeconfig(&url, &pki);
    pki::write_private(&config.kubeconfig, kubeconfig.as_bytes())
        .map_err(|source| StartError::Kubeconfig { path: config.kubeconfig.clone(), source })?;
    let tls = Arc::new(pki.server_config()?);
    let options = Options {
        gates: config.gates.clone(),
        address: address.to_string(),
        ca_pem: pki.ca_pem.clone(),
        jobs_in_queues: config.controllers.queueing,
        ..Options::default()
    };
    let keys = Keys { service_account: pki.service_account_key, tokens };
    let server = Server::new(store.clone(), clock, Ids::random(), options, keys);
    server.bootstrap().await.map_err(|e| StartError::Bootstrap(e.message))?;
    let mut definitions = usher_api::kueue::definitions();
    if config.controllers.ray_cluster {
        // Without its controller the kind is somebody else's to define.
        definitions.extend(usher_api::ray::definitions());
    }
    server.install(definitions).await.map_err(|e| StartError::Bootstrap(e.message))?;

    server.clone().start_custom_resources();
    listener.set_nonblocking(true).map_err(StartError::Runtime)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(StartError::Runtime)?;
    let serving = tokio::spawn(listen::serve(server.clone(), listener, tls));
    let compaction = tokio::spawn({
        let server = server.clone();
        async move { server.compact_by_age(HISTORY).await }
    });
    let controllers = start_controllers(&server, pki.ca_pem, &config);
    let nodes = crate::node::start(&server, &config, address).await?;
    say_ready(&url, &config);
    signals.wait().await;
    tracing::info!("stopping");
    nodes.stop().await;
    controllers.stop().await;
    server.close();
    let _ = serving.await;
    let _ = compaction.await;
    store.close().await;
    Ok(())
}

/// The controllers call the API in process, as a member of `system:masters`.
fn start_controllers(server: &Server, ca_pem: String, config: &UpConfig) -> Handle {
    let client = kube::Client::new(server.service_as(User::new("system:usher", &[MASTERS])), "default");
    let (gates, run) = (&config.gates, &config.controllers);
    let cronjob = cronjob::Policy { annotate: gates.scheduled_annotation, local: jiff::tz::TimeZone::system() };
    let suspend = job::Policy { clear_start_time_on_suspend: gates.mutable_directives_when_suspended };
    let options = controllers::Options {
        gc: run.garbage_collector,
        namespaces: run.namespace,
        service_accounts: run.service_account,
        root_ca: run.root_ca.then_some(ca_pem),
        cluster_roles: run.cluster_role_aggregation,
        job: run.job.then(|| job::Options { policy: suspend, ..job::Options::default() }),
        ray_cluster: run.ray_cluster,
        ttl_after_finished: run.ttl_after_finished,
        cronjob: run.cronjob.then_some(cronjob),
        node_lifecycle: run.node_lifecycle,
        placement: run.placement,
        queueing: run.queueing.then(|| config.queueing.clone()),
        ..controllers::Options::default()
    };
    if options.queueing.is_some() {
        server.serve_pending_workloads(Arc::new(Waiting(options.queueing_outlook.window.clone())));
    }
    server.metrics().register(|registry| {
        options.metrics.register(registry);
        options.job_metrics.register(registry);
        options.cronjob_metrics.register(registry);
        if options.queueing.is_some() {
            options.queueing_outlook.metrics.register(registry);
        }
    });
    Controllers::start(client, server.clock().clone(), options)
}

/// Lets the API server look through the scheduler's window.
struct Waiting(window::Window);

impl PendingWorkloads for Waiting {
    fn items(&self, line: Line, offset: usize, limit: usize) -> BoxFuture<'_, Option<Vec<serde_json::Value>>> {
        let line = match line {
            Line::ClusterQueue(name) => window::Line::ClusterQueue(name),
            Line::LocalQueue { namespace, name } => window::Line::LocalQueue { namespace, name },
        };
        Box::pin(async move {
            let waiting = self.0.waiting(line, offset, limit).await?;
            Some(waiting.iter().filter_map(|one| serde_json::to_value(one).ok()).collect())
        })
    }
}

/// The one line on stdout. A reader that has gone away is no reason to stop.
fn say_ready(url: &str, config: &UpConfig) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {url} kubeconfig={}", config.kubeconfig.display());
    let _ = out.flush();
}

fn make_private_dir(path: &std::path::Path) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StartError::DataDir { path: path.to_owned(), source })
}

fn read_tokens(config: &UpConfig) -> Result<TokenFile, StartError> {
    let Some(path) = &config.token_auth_file else { return Ok(TokenFile::default()) };
    let bad = |why: String| StartError::Tokens { path: path.clone(), why };
    let bytes = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
    TokenFile::parse(&bytes).map_err(|e: TokenFileError| bad(e.to_string()))
}
