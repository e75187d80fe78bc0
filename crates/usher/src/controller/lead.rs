//! What only the leader does: deciding. Everything it knows it lists anew, consistently, when its term begins.

use std::sync::atomic::Ordering;

use kube::{Client, Config};
use usher_cluster::client::{Fence, connect};
use usher_cluster::election::{Candidate, Election, Terms};
use usher_cluster::{default_queue, leader_pod, names};
use usher_controllers::queueing::{Outlook, Policy};
use usher_controllers::{Controllers, Options};
use usher_env::{Clock, Ids};

use super::Identity;
use super::around::Surround;
use crate::process::Signals;

pub struct Term {
    pub config: Config,
    pub client: Client,
    pub clock: Clock,
    pub identity: Identity,
    pub policy: Policy,
    pub outlook: Outlook,
    /// Whether there may be other copies.
    pub elects: bool,
}

pub enum Ended {
    /// By a signal.
    Told,
    /// By losing the lease.
    Deposed,
}

impl Term {
    /// Waits until this copy may lead, leads, and gives the lease back when told to stop.
    pub async fn run(self, around: &Surround, signals: &mut Signals) -> Result<Ended, kube::Error> {
        if !self.elects {
            let leading = self.start(around, self.client.clone());
            signals.wait().await;
            leading.stop().await;
            return Ok(Ended::Told);
        }
        let terms = Terms::default();
        let fence = Fence::closed(terms.write_timeout);
        let mut election = self.candidate(terms, fence.clone()).start();
        around.leader.set(names::LEASE, false);
        let won = tokio::select! {
            won = election.won() => won,
            () = signals.wait() => {
                election.release().await;
                return Ok(Ended::Told);
            }
        };
        if !won {
            return Ok(Ended::Deposed);
        }
        around.leader.set(names::LEASE, true);
        let leading = self.start(around, connect(self.config.clone(), Some(fence))?);
        let ended = until_over(&mut election, signals).await;
        leading.stop().await;
        // Only now, when nothing is written any more, may somebody else begin.
        election.release().await;
        around.leader.set(names::LEASE, false);
        Ok(ended)
    }

    fn candidate(&self, terms: Terms, fence: Fence) -> Candidate {
        let place = self.identity.pod.clone().or_else(usher_apiserver::auth::pki::hostname);
        Candidate {
            client: self.client.clone(),
            clock: self.clock.clone(),
            namespace: self.identity.namespace.clone(),
            lease: names::LEASE.to_owned(),
            identity: format!("{}_{}", place.unwrap_or_else(|| "usher".to_owned()), Ids::random().uid()),
            terms,
            fence,
        }
    }

    fn start(&self, around: &Surround, client: Client) -> Leading {
        let options =
            Options { queueing: Some(self.policy.clone()), queueing_outlook: self.outlook.clone(), ..Options::none() };
        around.probes.register(|registry| options.metrics.register(registry));
        around.leads.store(true, Ordering::Relaxed);
        let pod = self.identity.pod.clone();
        let (keeps, marks, namespace) = (client.clone(), client.clone(), self.identity.namespace.clone());
        let beside = tokio::spawn(async move {
            let mark = async {
                if let Some(pod) = pod {
                    leader_pod::mark(&marks, &namespace, &pod).await;
                }
            };
            tokio::join!(mark, default_queue::keep(keeps));
        });
        Leading {
            controllers: Controllers::start(client, self.clock.clone(), options),
            beside,
            around: around.leads.clone(),
        }
    }
}

async fn until_over(election: &mut Election, signals: &mut Signals) -> Ended {
    tokio::select! {
        () = signals.wait() => {
            tracing::info!("stopping");
            Ended::Told
        }
        () = election.lost() => Ended::Deposed,
    }
}

struct Leading {
    controllers: usher_controllers::Handle,
    beside: tokio::task::JoinHandle<()>,
    around: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Leading {
    async fn stop(self) {
        self.around.store(false, Ordering::Relaxed);
        self.beside.abort();
        let _ = self.beside.await;
        self.controllers.stop().await;
    }
}
