//! Counters and histograms under the names that operators of Kubernetes watch.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::request::Info;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub verb: String,
    pub dry_run: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: String,
    pub component: String,
    pub code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DurationLabels {
    pub verb: String,
    pub dry_run: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: String,
    pub component: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    pub request_kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LongRunningLabels {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: String,
    pub component: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResourceLabels {
    pub resource: String,
}

/// Upstream's buckets for `apiserver_request_duration_seconds`.
const DURATION_BUCKETS: [f64; 26] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 180.0,
];

type Durations = Family<DurationLabels, Histogram, fn() -> Histogram>;

pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    durations: Durations,
    inflight: Family<KindLabels, Gauge>,
    long_running: Family<LongRunningLabels, Gauge>,
    objects: Family<ResourceLabels, Gauge<i64, AtomicI64>>,
    refused: Family<KindLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let durations: Durations = Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS));
        let metrics = Metrics {
            registry: Mutex::new(Registry::default()),
            requests: Family::default(),
            durations,
            inflight: Family::default(),
            long_running: Family::default(),
            objects: Family::default(),
            refused: Family::default(),
        };
        {
            let mut registry = metrics.registry.lock();
            registry.register(
                "apiserver_request",
                "Requests, by what they asked for and how they were answered",
                metrics.requests.clone(),
            );
            registry.register(
                "apiserver_request_duration_seconds",
                "Time from the arrival of a request to its answer",
                metrics.durations.clone(),
            );
            registry.register(
                "apiserver_current_inflight_requests",
                "Requests being worked on, long-running ones aside",
                metrics.inflight.clone(),
            );
            registry.register(
                "apiserver_longrunning_requests",
                "Watches and other streams that are open",
                metrics.long_running.clone(),
            );
            registry.register("apiserver_storage_objects", "Stored objects, by resource", metrics.objects.clone());
            registry.register(
                "apiserver_dropped_requests",
                "Requests answered 429 because too many were being worked on",
                metrics.refused.clone(),
            );
        }
        metrics
    }
}

/// The verb as metrics spell it: reads by what they are, writes by method, apply on its own.
pub fn metric_verb(info: &Info, is_apply: bool) -> &'static str {
    match info.verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" if is_apply => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "GET",
        _ => "other",
    }
}

impl Metrics {
    pub fn observe(&self, info: &Info, verb: &str, dry_run: bool, code: u16, took: Option<Duration>) {
        let duration = DurationLabels {
            verb: verb.to_owned(),
            dry_run: if dry_run { "All".to_owned() } else { String::new() },
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope: if info.is_resource { info.scope().to_owned() } else { String::new() },
            component: "apiserver".to_owned(),
        };
        if let Some(took) = took {
            self.durations.get_or_create(&duration).observe(took.as_secs_f64());
        }
        let DurationLabels { verb, dry_run, group, version, resource, subresource, scope, component } = duration;
        let labels = RequestLabels {
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
            code: code.to_string(),
        };
        self.requests.get_or_create(&labels).inc();
    }

    pub fn inflight(&self, mutating: bool) -> Gauge {
        let request_kind = if mutating { "mutating" } else { "readOnly" };
        self.inflight.get_or_create(&KindLabels { request_kind: request_kind.to_owned() }).clone()
    }

    pub fn refused(&self, mutating: bool) {
        let request_kind = if mutating { "mutating" } else { "readOnly" };
        self.refused.get_or_create(&KindLabels { request_kind: request_kind.to_owned() }).inc();
    }

    pub fn long_running(&self, info: &Info, verb: &str) -> Gauge {
        let labels = LongRunningLabels {
            verb: verb.to_owned(),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope: info.scope().to_owned(),
            component: "apiserver".to_owned(),
        };
        self.long_running.get_or_create(&labels).clone()
    }

    /// Lets other parts of the process show their figures on the same page.
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock());
    }

    /// The page at `/metrics`.
    pub fn page(&self, objects: &[(String, usize)]) -> String {
        for (resource, count) in objects {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.objects.get_or_create(&ResourceLabels { resource: resource.clone() }).set(count);
        }
        let mut out = String::new();
        match encode(&mut out, &self.registry.lock()) {
            Ok(()) => out,
            Err(error) => format!("# metrics could not be written: {error}\n"),
        }
    }
}
