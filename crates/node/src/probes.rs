//! Startup, liveness and readiness probes of one run of a container: commands, TCP connections, HTTP(S) requests and gRPC health
//! checks ([`crate::reach`]). Thresholds and words are kubelet's.
//!
//! A probe reports what it has come to; what follows from that is decided in [`crate::decide`].

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Probe};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::events::container_reference;
use crate::model::{Failed, Health};
use crate::reach::Reach;

/// What a probe has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    Started,
    Ready(bool),
    Failed(Failed),
}

impl Finding {
    pub fn note(self, health: &mut Health) {
        match self {
            Finding::Started => health.started = Some(true),
            Finding::Ready(ready) => health.ready = Some(ready),
            Finding::Failed(failed) => health.failed = Some(failed),
        }
    }
}

/// Probing ends when this is dropped.
pub struct Guard {
    _stop: DropGuard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }

    /// What it means when a probe has said the same often enough.
    fn finding(self, healthy: bool) -> Option<Finding> {
        match (self, healthy) {
            (Kind::Startup, true) => Some(Finding::Started),
            (Kind::Startup, false) => Some(Finding::Failed(Failed::Startup)),
            (Kind::Liveness, true) => None,
            (Kind::Liveness, false) => Some(Finding::Failed(Failed::Liveness)),
            (Kind::Readiness, ready) => Some(Finding::Ready(ready)),
        }
    }
}

pub fn start(reach: Reach, pod: Arc<Pod>, since: Timestamp, report: impl Fn(Finding) + Send + Sync + 'static) -> Guard {
    let container = &reach.container;
    let stop = CancellationToken::new();
    let report = Arc::new(report);
    let (started, _) = watch::channel(container.startup_probe.is_none());
    let started = Arc::new(started);
    let probes = [
        (Kind::Startup, container.startup_probe.clone()),
        (Kind::Liveness, container.liveness_probe.clone()),
        (Kind::Readiness, container.readiness_probe.clone()),
    ];
    for (kind, probe) in probes {
        let Some(probe) = probe else { continue };
        let prober = Prober { reach: reach.clone(), pod: pod.clone(), kind, probe };
        let (report, started, stop) = (report.clone(), started.clone(), stop.clone());
        tokio::spawn(async move {
            let probing = prober.keep(since, &started, |finding| {
                if finding == Finding::Started {
                    started.send_replace(true);
                }
                report(finding);
            });
            stop.run_until_cancelled(probing).await;
        });
    }
    Guard { _stop: stop.drop_guard() }
}

struct Prober {
    reach: Reach,
    pod: Arc<Pod>,
    kind: Kind,
    probe: Probe,
}

/// How often a probe has said the same.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    healthy: bool,
    times: i32,
}

impl Tally {
    /// Whether this result, after those before, counts.
    fn counts(&mut self, healthy: bool, probe: &Probe) -> bool {
        if self.healthy != healthy {
            *self = Tally { healthy, times: 0 };
        }
        self.times = self.times.saturating_add(1);
        let threshold =
            if healthy { probe.success_threshold.unwrap_or(1) } else { probe.failure_threshold.unwrap_or(3) };
        self.times >= threshold
    }
}

impl Prober {
    async fn keep(&self, since: Timestamp, started: &watch::Sender<bool>, report: impl Fn(Finding)) {
        if self.kind != Kind::Startup {
            let _ = started.subscribe().wait_for(|started| *started).await;
        }
        let wait = first(&self.probe, since).duration_since(self.reach.kit.clock.now());
        tokio::time::sleep(wait.try_into().unwrap_or_default()).await;
        let period = Duration::from_secs(self.probe.period_seconds.unwrap_or(10).max(1) as u64);
        let mut ticks = tokio::time::interval(period);
        let mut tally = Tally::default();
        loop {
            ticks.tick().await;
            let result = self.once().await;
            if let Err(why) = &result {
                let message = format!("{} probe failed: {why}", self.kind.name());
                self.reach.kit.recorder.warning(
                    container_reference(&self.pod, &self.reach.container.name),
                    "Unhealthy",
                    message,
                );
            }
            if !tally.counts(result.is_ok(), &self.probe) {
                continue;
            }
            if let Some(finding) = self.kind.finding(result.is_ok()) {
                report(finding);
                if self.kind != Kind::Readiness {
                    // Started, or about to be stopped: there is nothing more to find out about this run.
                    return;
                }
            }
        }
    }

    async fn once(&self) -> Result<(), String> {
        let timeout = Duration::from_secs(self.probe.timeout_seconds.unwrap_or(1).max(1) as u64);
        let reach = &self.reach;
        if let Some(exec) = &self.probe.exec {
            let place = format!("probe-{}", self.kind.name());
            return reach.exec(&place, exec.command.as_deref().unwrap_or_default(), Some(timeout)).await;
        }
        let checked = async {
            if let Some(http) = &self.probe.http_get {
                match reach.http(http, "kube-probe/1.37").await? {
                    200..=399 => Ok(()),
                    code => Err(format!("HTTP probe failed with statuscode: {code}")),
                }
            } else if let Some(tcp) = &self.probe.tcp_socket {
                reach.connect(tcp.host.as_deref(), reach.port(&tcp.port)?).await.map(drop)
            } else if let Some(grpc) = &self.probe.grpc {
                reach.grpc(grpc.port, grpc.service.as_deref().unwrap_or_default()).await
            } else {
                Err("the probe says neither exec nor httpGet, tcpSocket or grpc".to_owned())
            }
        };
        tokio::time::timeout(timeout, checked).await.unwrap_or_else(|_| {
            Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned())
        })
    }
}

/// When a container that runs since then is probed first.
fn first(probe: &Probe, since: Timestamp) -> Timestamp {
    since + SignedDuration::from_secs(probe.initial_delay_seconds.unwrap_or(0).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_result_counts_when_it_has_come_often_enough_in_a_row() {
        let probe: Probe = serde_json::from_value(json!({"failureThreshold": 2, "successThreshold": 1})).unwrap();
        let mut tally = Tally::default();
        let counted: Vec<bool> =
            [false, true, false, false, false].into_iter().map(|healthy| tally.counts(healthy, &probe)).collect();
        assert_eq!(counted, [false, true, false, true, true]);
    }

    #[test]
    fn the_first_probe_comes_after_its_delay() {
        let since: Timestamp = "2026-11-15T10:00:00Z".parse().unwrap();
        let probe = |value| serde_json::from_value::<Probe>(value).unwrap();
        assert_eq!(first(&probe(json!({})), since), since);
        let later = "2026-11-15T10:00:07Z".parse().unwrap();
        assert_eq!(first(&probe(json!({"initialDelaySeconds": 7})), since), later);
    }
}
