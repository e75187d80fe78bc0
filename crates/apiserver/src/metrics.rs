//! Counters and histograms under the names that operators of Kubernetes watch.

pub mod admission;
mod process;
mod text;

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct GroupResourceLabels {
    pub group: String,
    pub resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WatchedLabels {
    pub group: String,
    pub version: String,
    pub resource: String,
}

/// Upstream's buckets for `apiserver_request_duration_seconds`.
const DURATION_BUCKETS: [f64; 26] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 180.0,
];

/// Upstream's buckets for `apiserver_request_sli_duration_seconds`.
const SLI_BUCKETS: [f64; 21] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
const SIZE_BUCKETS: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

type Durations = Family<DurationLabels, Histogram, fn() -> Histogram>;
type Distribution = Family<LongRunningLabels, Histogram, fn() -> Histogram>;

/// What the store says when the page is asked for.
pub struct Stored<'a> {
    /// Group, resource and how many there are.
    pub objects: &'a [(String, String, usize)],
    /// `None` without a disk.
    pub disk_bytes: Option<u64>,
}

pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    durations: Durations,
    sli: Distribution,
    sizes: Distribution,
    watch_events: Family<WatchedLabels, Counter>,
    admission: admission::Admission,
    inflight: Family<KindLabels, Gauge>,
    long_running: Family<LongRunningLabels, Gauge>,
    objects: Family<GroupResourceLabels, Gauge<i64, AtomicI64>>,
    /// The same under the name that was stable until Kubernetes 1.34.
    objects_before: Family<ResourceLabels, Gauge<i64, AtomicI64>>,
    refused: Family<KindLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let durations: Durations = Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS));
        let metrics = Metrics {
            registry: Mutex::new(Registry::default()),
            requests: Family::default(),
            durations,
            sli: Family::new_with_constructor(|| Histogram::new(SLI_BUCKETS)),
            sizes: Family::new_with_constructor(|| Histogram::new(SIZE_BUCKETS)),
            watch_events: Family::default(),
            admission: admission::Admission::default(),
            inflight: Family::default(),
            long_running: Family::default(),
            objects: Family::default(),
            objects_before: Family::default(),
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
            registry.register(
                "apiserver_request_sli_duration_seconds",
                "Time from the arrival of a request to its answer, webhooks aside",
                metrics.sli.clone(),
            );
            registry.register("apiserver_response_sizes", "Bytes in answers to reads", metrics.sizes.clone());
            registry.register("apiserver_watch_events", "Events sent to watchers", metrics.watch_events.clone());
            metrics.admission.register(&mut registry);
            registry.register("apiserver_resource_objects", "Stored objects, by resource", metrics.objects.clone());
            registry.register(
                "apiserver_storage_objects",
                "Stored objects, by resource: the older name of apiserver_resource_objects",
                metrics.objects_before.clone(),
            );
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
    /// `took`: the whole time, and how much of it went to webhooks.
    pub fn observe(&self, info: &Info, verb: &str, dry_run: bool, code: u16, took: Option<(Duration, Duration)>) {
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
        if let Some((took, elsewhere)) = took {
            self.durations.get_or_create(&duration).observe(took.as_secs_f64());
            if !dry_run {
                let ours = took.saturating_sub(elsewhere).as_secs_f64();
                self.sli.get_or_create(&labels(info, verb)).observe(ours);
            }
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
        self.long_running.get_or_create(&labels(info, verb)).clone()
    }

    /// Where the size of an answer to this read is noted.
    pub fn sizes(&self, info: &Info, verb: &str) -> Histogram {
        self.sizes.get_or_create(&labels(info, verb)).clone()
    }

    pub fn watch_events(&self, group: &str, version: &str, resource: &str) -> Counter {
        let labels = WatchedLabels { group: group.into(), version: version.into(), resource: resource.into() };
        self.watch_events.get_or_create(&labels).clone()
    }

    pub fn admission(&self) -> &admission::Admission {
        &self.admission
    }

    /// Lets other parts of the process show their figures on the same page.
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock());
    }

    /// The page at `/metrics`, in OpenMetrics' format or in the older one.
    pub fn page(&self, stored: &Stored<'_>, version: &serde_json::Value, open: bool) -> String {
        for (group, resource, count) in stored.objects {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            let labels = GroupResourceLabels { group: group.clone(), resource: resource.clone() };
            self.objects.get_or_create(&labels).set(count);
            let resource = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
            self.objects_before.get_or_create(&ResourceLabels { resource }).set(count);
        }
        let mut out = String::new();
        if let Err(error) = encode(&mut out, &self.registry.lock()) {
            return format!("# metrics could not be written: {error}\n");
        }
        if open { out } else { text::classic(&out) + &at_the_end(stored, version) }
    }
}

/// What is only known when the page is asked for.
fn at_the_end(stored: &Stored<'_>, version: &serde_json::Value) -> String {
    let mut out = process::lines();
    if let Some(bytes) = stored.disk_bytes {
        let name = "apiserver_storage_size_bytes";
        out += &format!(
            "# HELP {name} Bytes of the store on disk.\n# TYPE {name} gauge\n{name}{{storage_cluster_id=\"usher\"}} {bytes}\n"
        );
    }
    let label = |label: &str, key: &str| format!("{label}={}", version.get(key).unwrap_or(&serde_json::Value::Null));
    let labels = [
        label("build_date", "buildDate"),
        label("compiler", "compiler"),
        label("git_commit", "gitCommit"),
        label("git_tree_state", "gitTreeState"),
        label("git_version", "gitVersion"),
        label("go_version", "goVersion"),
        label("major", "major"),
        label("minor", "minor"),
        label("platform", "platform"),
    ];
    let name = "kubernetes_build_info";
    out + &format!(
        "# HELP {name} What this server is, always 1.\n# TYPE {name} gauge\n{name}{{{}}} 1\n",
        labels.join(",")
    )
}

fn labels(info: &Info, verb: &str) -> LongRunningLabels {
    LongRunningLabels {
        verb: verb.to_owned(),
        group: info.group.clone(),
        version: info.version.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        scope: if info.is_resource { info.scope().to_owned() } else { String::new() },
        component: "apiserver".to_owned(),
    }
}
