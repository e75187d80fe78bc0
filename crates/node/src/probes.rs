//! Startup, liveness and readiness probes of one run of a container: commands in the container's own view of the machine, TCP
//! connections and HTTP requests to this machine. Thresholds and words are kubelet's. gRPC and HTTPS probes are not made.
//!
//! A probe reports what it has come to; what follows from that is decided in [`crate::decide`].

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::events::container_reference;
use crate::launch::Kit;
use crate::model::{Failed, Health};
use crate::record::Attempt;
use crate::shim;

/// Of a command's output, for its message.
const OUTPUT_BYTES: u64 = 10 * 1024;
const ANSWER_BYTES: u64 = 1024;

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

pub fn start(
    kit: Arc<Kit>,
    pod: Arc<Pod>,
    container: Container,
    run: Attempt,
    since: Timestamp,
    report: impl Fn(Finding) + Send + Sync + 'static,
) -> Guard {
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
        let prober =
            Prober { kit: kit.clone(), pod: pod.clone(), container: container.clone(), run: run.clone(), kind, probe };
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
    kit: Arc<Kit>,
    pod: Arc<Pod>,
    container: Container,
    run: Attempt,
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
        let first = since + SignedDuration::from_secs(self.probe.initial_delay_seconds.unwrap_or(0).into());
        let wait = first.duration_since(self.kit.clock.now());
        tokio::time::sleep(wait.try_into().unwrap_or_default()).await;
        let period = Duration::from_secs(self.probe.period_seconds.unwrap_or(10).max(1) as u64);
        let mut ticks = tokio::time::interval(period);
        let mut tally = Tally::default();
        loop {
            ticks.tick().await;
            let result = self.once().await;
            if let Err(why) = &result {
                let message = format!("{} probe failed: {why}", self.kind.name());
                self.kit.recorder.warning(container_reference(&self.pod, &self.container.name), "Unhealthy", message);
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
        if let Some(exec) = &self.probe.exec {
            return self.exec(exec.command.as_deref().unwrap_or_default(), timeout).await;
        }
        let checked = async {
            if let Some(http) = &self.probe.http_get {
                self.http(http).await
            } else if let Some(tcp) = &self.probe.tcp_socket {
                self.connect(tcp.host.as_deref(), self.port(&tcp.port)?).await.map(drop)
            } else {
                Err("this kind of probe is not supported on this node; use exec, tcpSocket or httpGet".to_owned())
            }
        };
        tokio::time::timeout(timeout, checked).await.unwrap_or_else(|_| {
            Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned())
        })
    }

    /// Runs a command where the container runs: its user, its volumes, its environment.
    async fn exec(&self, command: &[String], timeout: Duration) -> Result<(), String> {
        let mut launch = self.run.launch().map_err(|e| e.to_string())?;
        launch.argv = command.to_vec();
        let place = Attempt::at(self.run.dir().join(format!("probe-{}", self.kind.name())));
        place.create(&launch).map_err(|e| e.to_string())?;
        let (mut failure, failure_end) = std::io::pipe().map_err(|e| e.to_string())?;
        let mut enter = tokio::process::Command::new("/proc/self/exe");
        enter.arg0("usher").arg(shim::ENTER).arg(place.dir()).env_clear();
        enter.stdin(failure_end).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = enter.spawn().map_err(|e| e.to_string())?;
        drop(enter);
        let group = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let _kill = KillGroup(group);
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let text = async {
            let mut text = Vec::new();
            if let Some(out) = out {
                let _ = out.take(OUTPUT_BYTES).read_to_end(&mut text).await;
            }
            if let Some(err) = err {
                let _ = err.take(OUTPUT_BYTES).read_to_end(&mut text).await;
            }
            text
        };
        let Ok((text, status)) = tokio::time::timeout(timeout, async { tokio::join!(text, child.wait()) }).await else {
            let secs = timeout.as_secs();
            return Err(format!("command timed out: {:?} timed out after {secs}s", command.join(" ")));
        };
        if status.is_ok_and(|s| s.success()) {
            return Ok(());
        }
        let mut why = String::new();
        let _ = failure.read_to_string(&mut why);
        Err(if why.is_empty() { String::from_utf8_lossy(&text).into_owned() } else { why })
    }

    fn port(&self, wanted: &IntOrString) -> Result<u16, String> {
        let number = match wanted {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => {
                let ports = self.container.ports.as_deref().unwrap_or_default();
                let named = ports.iter().find(|p| p.name.as_ref() == Some(name)).map(|p| p.container_port);
                named.or_else(|| name.parse().ok())
            }
        };
        number.and_then(|n| u16::try_from(n).ok()).ok_or_else(|| format!("invalid port: {wanted:?}"))
    }

    /// At the pod's address, which is the machine's, or where only programs of the machine listen.
    async fn connect(&self, host: Option<&str>, port: u16) -> Result<TcpStream, String> {
        let ip = host.filter(|h| !h.is_empty()).unwrap_or(&self.kit.host.ip);
        match TcpStream::connect((ip, port)).await {
            Ok(stream) => Ok(stream),
            Err(error) => match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(stream) if host.is_none_or(str::is_empty) => Ok(stream),
                _ => Err(format!("dial tcp {ip}:{port}: {error}")),
            },
        }
    }

    async fn http(&self, wanted: &HTTPGetAction) -> Result<(), String> {
        if wanted.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")) {
            return Err("HTTPS probes are not supported on this node".to_owned());
        }
        let port = self.port(&wanted.port)?;
        let host = wanted.host.as_deref().filter(|h| !h.is_empty());
        let path = wanted.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
        let shown = host.unwrap_or(&self.kit.host.ip);
        let failed = |why: String| format!("Get \"http://{shown}:{port}{path}\": {why}");
        let mut stream = self.connect(host, port).await.map_err(failed)?;
        let request = http_request(wanted, &format!("{shown}:{port}"), path);
        stream.write_all(request.as_bytes()).await.map_err(|e| failed(e.to_string()))?;
        let mut answer = Vec::new();
        let mut limited = stream.take(ANSWER_BYTES);
        while !answer.contains(&b'\n') {
            if limited.read_buf(&mut answer).await.map_err(|e| failed(e.to_string()))? == 0 {
                break;
            }
        }
        match status_code(&answer) {
            Some(200..=399) => Ok(()),
            Some(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
            None => Err(failed("malformed HTTP response".to_owned())),
        }
    }
}

/// Whatever a probe's command left behind goes with it.
struct KillGroup(Option<Pid>);

impl Drop for KillGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn http_request(wanted: &HTTPGetAction, authority: &str, path: &str) -> String {
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
    let headers = wanted.http_headers.as_deref().unwrap_or_default();
    let has = |name: &str| headers.iter().any(|h| h.name.eq_ignore_ascii_case(name));
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut text = format!("GET {slash}{} HTTP/1.1\r\n", clean(path).replace(' ', "%20"));
    for (name, value) in [("Host", authority), ("User-Agent", "kube-probe/1.37"), ("Accept", "*/*")] {
        if !has(name) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    for header in headers {
        text.push_str(&format!("{}: {}\r\n", clean(&header.name), clean(&header.value)));
    }
    text.push_str("Connection: close\r\n\r\n");
    text
}

fn status_code(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer.split(|&b| b == b'\n').next()?).ok()?;
    let mut words = line.split_whitespace();
    words.next().filter(|w| w.starts_with("HTTP/"))?;
    words.next()?.parse().ok()
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
    fn the_answer_to_a_request_is_its_code() {
        assert_eq!(status_code(b"HTTP/1.1 204 No Content\r\nX: y\r\n"), Some(204));
        assert_eq!(status_code(b"SSH-2.0-x\r\n"), None);
        assert_eq!(status_code(b""), None);
    }

    #[test]
    fn headers_of_the_pods_author_cannot_smuggle_lines() {
        let wanted: HTTPGetAction =
            serde_json::from_value(json!({"port": 80, "httpHeaders": [{"name": "host", "value": "a\r\nX: 1"}]}))
                .unwrap();
        let text = http_request(&wanted, "1.2.3.4:80", "health");
        assert!(text.starts_with("GET /health HTTP/1.1\r\n") && text.contains("host: aX: 1\r\n"), "{text}");
        assert!(!text.contains("1.2.3.4"), "{text}");
    }
}
