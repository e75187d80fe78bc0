//! Health and metrics, over plain HTTP: `/healthz` says that the process answers, `/readyz` that its webhooks would, and what is
//! missing if not; `/metrics` is for Prometheus.
//!
//! Readiness does not depend on leading: every copy serves webhooks.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::serve::{Answers, Peer, Reply, reply, text};

type Check = Box<dyn Fn() -> bool + Send + Sync>;

#[derive(Default)]
pub struct Probes {
    checks: Mutex<Vec<(&'static str, Check)>>,
    registry: Mutex<Registry>,
}

impl Probes {
    /// Ready only while `is_fine` says yes, too.
    pub fn require(&self, what: &'static str, is_fine: impl Fn() -> bool + Send + Sync + 'static) {
        self.checks.lock().push((what, Box::new(is_fine)));
    }

    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// What keeps it from being ready.
    pub fn missing(&self) -> Vec<&'static str> {
        self.checks.lock().iter().filter(|(_, is_fine)| !is_fine()).map(|(what, _)| *what).collect()
    }

    pub fn metrics(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry.lock())?;
        Ok(page)
    }
}

impl Answers for Probes {
    async fn answer(&self, request: Request<Incoming>, _: Peer) -> Reply {
        match request.uri().path() {
            "/healthz" | "/livez" => text(StatusCode::OK, "ok"),
            "/readyz" => match self.missing().as_slice() {
                [] => text(StatusCode::OK, "ok"),
                missing => text(StatusCode::SERVICE_UNAVAILABLE, &format!("not ready: {}\n", missing.join(", "))),
            },
            "/metrics" => match self.metrics() {
                Ok(page) => reply(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", page),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot be shown: {error}\n")),
            },
            _ => text(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics\n"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    webhook: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Webhook {
    webhook: String,
}

/// What webhooks were asked, by the names that controller-runtime uses. Clones count together.
#[derive(Clone)]
pub struct WebhookMetrics {
    requests: Family<Answered, Counter>,
    latency: Family<Webhook, Histogram, fn() -> Histogram>,
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        let buckets = || Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0]);
        WebhookMetrics { requests: Family::default(), latency: Family::new_with_constructor(buckets) }
    }
}

impl WebhookMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Total number of admission requests by HTTP status code";
        registry.register("controller_runtime_webhook_requests", help, self.requests.clone());
        let help = "Histogram of the latency of processing admission requests";
        registry.register("controller_runtime_webhook_latency_seconds", help, self.latency.clone());
    }

    pub fn answered(&self, path: &str, code: StatusCode, took: Duration) {
        let webhook = path.to_owned();
        self.requests.get_or_create(&Answered { webhook: webhook.clone(), code: code.as_u16() }).inc();
        self.latency.get_or_create(&Webhook { webhook }).observe(took.as_secs_f64());
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lease {
    name: String,
}

/// Whether this copy leads, by client-go's name.
#[derive(Clone, Default)]
pub struct LeaderMetrics(Arc<Family<Lease, Gauge>>);

impl LeaderMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. \
            'name' is the string used to identify the lease. Please make sure to group by name";
        registry.register("leader_election_master_status", help, (*self.0).clone());
    }

    pub fn set(&self, lease: &str, leads: bool) {
        self.0.get_or_create(&Lease { name: lease.to_owned() }).set(i64::from(leads));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn it_is_ready_when_nothing_is_missing_and_says_what_is() {
        let probes = Probes::default();
        let certificate = Arc::new(AtomicBool::new(false));
        let has = certificate.clone();
        probes.require("a serving certificate", move || has.load(Ordering::Relaxed));
        probes.require("queues", || true);
        assert_eq!(probes.missing(), ["a serving certificate"]);
        certificate.store(true, Ordering::Relaxed);
        assert!(probes.missing().is_empty());
    }

    #[test]
    fn what_is_counted_is_shown() {
        let (probes, webhooks, leader) = (Probes::default(), WebhookMetrics::default(), LeaderMetrics::default());
        probes.register(|registry| {
            webhooks.register(registry);
            leader.register(registry);
        });
        webhooks.answered("/mutate", StatusCode::OK, Duration::from_millis(1));
        leader.set("usher-controller", true);
        let page = probes.metrics().unwrap();
        assert!(
            page.contains(r#"controller_runtime_webhook_requests_total{webhook="/mutate",code="200"} 1"#),
            "{page}"
        );
        assert!(page.contains(r#"leader_election_master_status{name="usher-controller"} 1"#), "{page}");
    }
}
