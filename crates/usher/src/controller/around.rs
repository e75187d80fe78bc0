//! What every copy serves, whether it leads or not: webhooks, the visibility API, health and metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use usher_cluster::certificates::{Keeper, Serving};
use usher_cluster::probes::{LeaderMetrics, Probes, WebhookMetrics};
use usher_cluster::serve::{Answers, serve};
use usher_cluster::visibility::{FrontProxy, Line, Source, Visibility};
use usher_cluster::webhook::{Around, Webhooks};
use usher_controllers::queueing::Outlook;
use usher_controllers::queueing::status::window;
use usher_env::Clock;

use super::{ControllerError, ControllerFlags, Identity};

pub struct Surround {
    pub probes: Arc<Probes>,
    pub leader: LeaderMetrics,
    /// Whether this copy knows who waits.
    pub leads: Arc<AtomicBool>,
    /// What is served where, as the line on stdout says it.
    pub places: String,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Surround {
    pub async fn start(
        flags: &ControllerFlags,
        identity: &Identity,
        client: &Client,
        clock: &Clock,
        outlook: &Outlook,
    ) -> Result<Surround, ControllerError> {
        let mut around = Surround {
            probes: Arc::default(),
            leader: LeaderMetrics::default(),
            leads: Arc::default(),
            places: String::new(),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
        };
        around.probes.register(|registry| {
            around.leader.register(registry);
            outlook.metrics.register(registry);
        });
        if let Some(address) = flags.probes {
            let listener = around.bind("--probes", address).await?;
            around.serve(listener, None, around.probes.clone());
        }
        if flags.listen.is_none() && flags.visibility.is_none() {
            return Ok(around);
        }
        let serving = around.keep_certificate(flags, identity, client, clock).await?;
        if let Some(address) = flags.listen {
            around.serve_webhooks(address, client, &serving).await?;
        }
        if let Some(address) = flags.visibility {
            around.serve_visibility(address, client, &serving, outlook).await?;
        }
        Ok(around)
    }

    /// Lets requests under way finish.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    async fn keep_certificate(
        &mut self,
        flags: &ControllerFlags,
        identity: &Identity,
        client: &Client,
        clock: &Clock,
    ) -> Result<Serving, ControllerError> {
        let mut names = usher_cluster::names::serving_names(&identity.namespace);
        let addresses = [flags.listen, flags.visibility].into_iter().flatten().map(|address| address.ip());
        for ip in addresses.filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string()) {
            if !names.contains(&ip) {
                names.push(ip);
            }
        }
        let keeper = Keeper::new(client, clock, &identity.namespace, names);
        keeper.look().await?;
        let serving = keeper.serving();
        self.tasks.spawn(keeper.run(self.stop.clone()));
        let has = serving.clone();
        self.probes.require("a serving certificate", move || has.is_there());
        Ok(serving)
    }

    async fn serve_webhooks(
        &mut self,
        address: SocketAddr,
        client: &Client,
        serving: &Serving,
    ) -> Result<(), ControllerError> {
        let listener = self.bind("--listen", address).await?;
        let tls = serving.tls(None).map_err(|error| ControllerError::Tls(error.to_string()))?;
        let around = Around::watch(client, Default::default(), &self.stop);
        let metrics = WebhookMetrics::default();
        self.probes.register(|registry| metrics.register(registry));
        let known = around.clone();
        self.probes.require("a list of default queues", move || known.is_known());
        self.serve(listener, Some(tls), Arc::new(Webhooks { around, metrics }));
        Ok(())
    }

    async fn serve_visibility(
        &mut self,
        address: SocketAddr,
        client: &Client,
        serving: &Serving,
        outlook: &Outlook,
    ) -> Result<(), ControllerError> {
        let listener = self.bind("--visibility", address).await?;
        let proxy = FrontProxy::published(client).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read how the API server introduces its users; nobody is told who waits");
            None
        });
        let verifier = proxy.as_ref().map(FrontProxy::verifier).transpose().map_err(ControllerError::Tls)?;
        let tls = serving.tls(verifier).map_err(|error| ControllerError::Tls(error.to_string()))?;
        let (leads, source) = (self.leads.clone(), waiting(outlook.window.clone()));
        let source = Box::new(move || leads.load(Ordering::Relaxed).then(|| source.clone()));
        self.serve(listener, Some(tls), Arc::new(Visibility { client: client.clone(), proxy, source }));
        Ok(())
    }

    async fn bind(&mut self, flag: &'static str, address: SocketAddr) -> Result<TcpListener, ControllerError> {
        let problem = |source| ControllerError::Listen { flag, address, source };
        let listener = TcpListener::bind(address).await.map_err(problem)?;
        let bound = listener.local_addr().map_err(problem)?;
        self.places.push_str(&format!(" {}={bound}", flag.trim_start_matches('-')));
        Ok(listener)
    }

    fn serve<A: Answers>(&mut self, listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>, answers: Arc<A>) {
        self.tasks.spawn(serve(listener, tls, answers, self.stop.clone()));
    }
}

/// Lets the visibility API look through the scheduler's window.
fn waiting(window: window::Window) -> Source {
    Arc::new(move |line, offset, limit| {
        let window = window.clone();
        let line = match line {
            Line::ClusterQueue(name) => window::Line::ClusterQueue(name),
            Line::LocalQueue { namespace, name } => window::Line::LocalQueue { namespace, name },
        };
        Box::pin(async move {
            let waiting = window.waiting(line, offset, limit).await?;
            Some(waiting.iter().filter_map(|one| serde_json::to_value(one).ok()).collect())
        })
    })
}
