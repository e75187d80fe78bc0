//! The controllers: each watches through one shared set of watches, decides in a pure function, and applies through
//! `kube::Client`. None of them knows whether that client is a function call or a socket.
//!
//! Nothing here polls: without changes and without anything due there is no work and no timer, also in virtual time.

pub mod cluster_roles;
pub mod cronjob;
pub mod event_expiry;
pub mod gc;
pub mod job;
pub mod namespaces;
pub mod node_lifecycle;
pub mod placement;
pub mod queueing;
pub mod raycluster;
pub mod runtime;
pub mod service_accounts;
#[cfg(feature = "testing")]
pub mod testing;
pub mod ttl_after_finished;

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
    /// Jobs in queues. Off until the whole way of a queued Job is there.
    pub queueing: Option<queueing::Policy>,
    /// What can be seen of queues.
    pub queueing_outlook: queueing::Outlook,
    /// Pending pods are bound to nodes.
    pub placement: bool,
    /// Nodes that fall silent or go away, and the pods on them.
    pub node_lifecycle: bool,
    /// CronJobs, and how they are run; `None` where somebody else runs them.
    pub cronjob: Option<cronjob::Policy>,
    pub cronjob_metrics: cronjob::Metrics,
    /// How long an event is kept after its last write; `None` where the store expires them itself.
    pub event_ttl: Option<Duration>,
    /// Jobs get their pods, and end.
    pub job: Option<job::Options>,
    /// RayClusters get their pods: KubeRay's part, where there is none.
    pub ray_cluster: bool,
    /// Jobs that are over go when their time to live is.
    pub ttl_after_finished: bool,
    /// Register it to see what the Job controllers do.
    pub job_metrics: job::JobMetrics,
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
            queueing: None,
            queueing_outlook: queueing::Outlook::default(),
            placement: true,
            node_lifecycle: true,
            cronjob: Some(cronjob::Policy::default()),
            cronjob_metrics: cronjob::Metrics::default(),
            event_ttl: Some(Duration::from_secs(3600)),
            job: Some(job::Options::default()),
            ray_cluster: true,
            ttl_after_finished: true,
            job_metrics: job::JobMetrics::default(),
            metrics: QueueMetrics::default(),
        }
    }
}

impl Options {
    /// Nothing runs but what is then asked for.
    pub fn none() -> Self {
        Options {
            gc: false,
            namespaces: false,
            service_accounts: false,
            cluster_roles: false,
            placement: false,
            node_lifecycle: false,
            cronjob: None,
            event_ttl: None,
            job: None,
            ray_cluster: false,
            ttl_after_finished: false,
            ..Options::default()
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
            queueing::start(&client, &clock, policy, &options.queueing_outlook, &watches, &tasks, metrics);
        }
        if let Some(job) = options.job {
            job::start(client.clone(), clock.clone(), job, &options.job_metrics, &watches, &tasks, metrics);
        }
        if options.ray_cluster {
            raycluster::start(&client, &clock, &watches, &tasks, metrics);
        }
        if options.ttl_after_finished {
            ttl_after_finished::start(client.clone(), clock.clone(), &options.job_metrics, &watches, &tasks, metrics);
        }
        if options.placement {
            placement::start(client.clone(), clock.clone(), &watches, &tasks, metrics);
        }
        if options.node_lifecycle {
            node_lifecycle::start(client.clone(), clock.clone(), &watches, &tasks, metrics);
        }
        if let Some(policy) = options.cronjob {
            let (client, clock) = (client.clone(), clock.clone());
            cronjob::start(client, clock, &watches, &tasks, metrics, policy, options.cronjob_metrics);
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
