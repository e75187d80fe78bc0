//! The controllers: each watches through one shared set of watches, decides in a pure function, and applies through
//! `kube::Client`. None of them knows whether that client is a function call or a socket.
//!
//! Nothing here polls: without changes and without anything due there is no work and no timer, also in virtual time.

pub mod cluster_roles;
pub mod event_expiry;
pub mod gc;
pub mod namespaces;
pub mod queueing;
pub mod runtime;
pub mod service_accounts;
#[cfg(feature = "testing")]
pub mod testing;

use std::time::Duration;

use kube::Client;
use usher_env::Clock;

use runtime::{Objects, QueueMetrics, Tasks, Watches};

/// Which controllers run, and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub gc: bool,
    pub namespaces: bool,
    /// Wait this long before a deleted namespace is emptied. Upstream waits 5 s, so that every one of several API
    /// servers has seen the deletion; with one server there is nothing to wait for.
    pub namespace_delay: Duration,
    /// A ServiceAccount `default` in every namespace.
    pub service_accounts: bool,
    /// The certificate authority to publish in every namespace, in PEM.
    pub root_ca: Option<String>,
    pub cluster_roles: bool,
    /// Jobs in queues: None where something else looks after them.
    pub queueing: Option<queueing::Policy>,
    /// How long an event is kept after its last write; `None` where the store expires them itself.
    pub event_ttl: Option<Duration>,
    /// Register it to see the work queues.
    pub metrics: QueueMetrics,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            gc: true,
            namespaces: true,
            namespace_delay: Duration::ZERO,
            service_accounts: true,
            root_ca: None,
            cluster_roles: true,
            queueing: Some(queueing::Policy::default()),
            event_ttl: Some(Duration::from_secs(3600)),
            metrics: QueueMetrics::default(),
        }
    }
}

pub struct Controllers;

impl Controllers {
    /// Starts what `options` ask for on the current tokio runtime.
    pub fn start(client: Client, clock: Clock, options: Options) -> Handle {
        let tasks = Tasks::default();
        let watches = Watches::new(client.clone(), tasks.clone());
        let objects = Objects::new(client.clone());
        let metrics = &options.metrics;
        if options.gc {
            gc::start(objects.clone(), clock.clone(), &watches, &tasks, metrics);
        }
        if options.namespaces {
            namespaces::start(objects.clone(), clock.clone(), &watches, &tasks, metrics, options.namespace_delay);
        }
        if options.service_accounts {
            service_accounts::start_default_accounts(client.clone(), &watches, &tasks, metrics);
        }
        if let Some(root_ca) = options.root_ca {
            service_accounts::start_root_ca(client.clone(), root_ca, &watches, &tasks, metrics);
        }
        if let Some(policy) = &options.queueing {
            queueing::start(&client, &clock, policy, &watches, &tasks, metrics);
        }
        if options.cluster_roles {
            cluster_roles::start(client, &watches, &tasks, metrics);
        }
        if let Some(ttl) = options.event_ttl {
            event_expiry::start(objects, clock, ttl, &watches, &tasks, metrics);
        }
        watches.start();
        Handle { tasks }
    }
}

/// The running controllers. Dropping it stops them too, without waiting.
#[must_use]
pub struct Handle {
    tasks: Tasks,
}

impl Handle {
    /// Returns when nothing of them runs any longer.
    pub async fn stop(self) {
        self.tasks.stop().await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}
