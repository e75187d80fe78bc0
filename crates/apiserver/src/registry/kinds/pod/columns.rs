//! A Pod as `kubectl get` shows it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus};
use serde_json::Value;

use crate::registry::kind::Column;
use crate::registry::kinds::common::{list, text};
use crate::registry::table;

pub fn columns() -> Vec<Column> {
    vec![
        table::name_column(),
        Column::new("Ready", "string", 0, "Containers that are ready, and how many there are."),
        Column::new("Status", "string", 0, "What the Pod is doing, or why it is not."),
        Column::new("Restarts", "string", 0, "How often its containers were restarted, and when last."),
        table::age_column(),
        Column::new("IP", "string", 1, "The Pod's first address."),
        Column::new("Node", "string", 1, "The node the Pod is bound to."),
        Column::new("Nominated Node", "string", 1, "The node that is being cleared for the Pod."),
        Column::new("Readiness Gates", "string", 1, "Readiness gates that are met, and how many there are."),
    ]
}

pub fn cells(pod: &Pod, meta: &Value, now: Timestamp) -> Vec<Value> {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let summary = Summary::of(spec, status, meta);
    let or_none = |value: &str| Value::from(if value.is_empty() { "<none>" } else { value });
    vec![
        table::name_cell(meta),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.clone().into(),
        summary.restarts_cell(now).into(),
        table::age_cell(meta, now),
        or_none(list(&status.pod_ips).first().map_or("", |ip| ip.ip.as_str())),
        or_none(text(&spec.node_name)),
        or_none(text(&status.nominated_node_name)),
        readiness_gates(spec, status).into(),
    ]
}

/// What the containers' states add up to.
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i32,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(spec: &PodSpec, status: &PodStatus, meta: &Value) -> Summary {
        let mut summary = Summary::at_first_sight(spec, status);
        let sidecars = Sidecars::of(spec, status);
        let initializing = summary.read_init_containers(spec, status);
        if !initializing || has_condition(status, "Initialized") {
            summary.restarts = sidecars.restarts;
            summary.last_restart = sidecars.last_restart;
            summary.read_containers(status);
        }
        summary.consider_deletion(status, meta);
        summary
    }

    fn at_first_sight(spec: &PodSpec, status: &PodStatus) -> Summary {
        let phase = text(&status.phase);
        let reason = text(&status.reason);
        let gated = list(&status.conditions)
            .iter()
            .any(|condition| condition.type_ == "PodScheduled" && text(&condition.reason) == "SchedulingGated");
        let reason = match () {
            () if gated => "SchedulingGated",
            () if !reason.is_empty() => reason,
            () => phase,
        };
        let sidecars = list(&spec.init_containers).iter().filter(|container| is_sidecar(container)).count();
        Summary {
            reason: reason.to_owned(),
            ready: 0,
            total: spec.containers.len() + sidecars,
            restarts: 0,
            last_restart: None,
        }
    }

    /// Goes through the init containers up to the first that is not done; whether there is one.
    fn read_init_containers(&mut self, spec: &PodSpec, status: &PodStatus) -> bool {
        let init = list(&spec.init_containers);
        for (i, container) in list(&status.init_container_statuses).iter().enumerate() {
            self.count_restarts(container);
            let sidecar = init.iter().any(|spec| spec.name == container.name && is_sidecar(spec));
            let terminated = terminated(container);
            if terminated.is_some_and(|ended| ended.exit_code == 0) {
                continue;
            }
            if sidecar && container.started == Some(true) {
                self.ready += usize::from(container.ready);
                continue;
            }
            let waiting = waiting_reason(container);
            self.reason = match terminated {
                Some(ended) => format!("Init:{}", ended_reason(ended)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
                None => format!("Init:{i}/{}", init.len()),
            };
            return true;
        }
        false
    }

    /// The first container (hence from the last) that has something to say gives the reason.
    fn read_containers(&mut self, status: &PodStatus) {
        let mut running = false;
        let mut failure = String::new();
        for container in list(&status.container_statuses).iter().rev() {
            self.count_restarts(container);
            let waiting = waiting_reason(container);
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if let Some(ended) = terminated(container) {
                self.reason = ended_reason(ended);
                if ended.exit_code != 0 {
                    failure.clone_from(&self.reason);
                }
            } else if container.ready && container.state.as_ref().is_some_and(|state| state.running.is_some()) {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && has_condition(status, "Ready") {
                self.reason = "Running".to_owned();
            } else if !failure.is_empty() {
                self.reason = failure;
            } else if running {
                self.reason = "NotReady".to_owned();
            }
        }
    }

    fn consider_deletion(&mut self, status: &PodStatus, meta: &Value) {
        if meta.get("deletionTimestamp").is_none_or(Value::is_null) {
            return;
        }
        if text(&status.reason) == "NodeLost" {
            self.reason = "Unknown".to_owned();
        } else if !matches!(text(&status.phase), "Succeeded" | "Failed") {
            self.reason = "Terminating".to_owned();
        }
    }

    fn count_restarts(&mut self, container: &ContainerStatus) {
        self.restarts += container.restart_count;
        self.last_restart = self.last_restart.max(last_end(container));
    }

    fn restarts_cell(&self, now: Timestamp) -> String {
        match self.last_restart.filter(|_| self.restarts != 0) {
            Some(time) => format!("{} ({} ago)", self.restarts, table::since(Some(time), now)),
            None => self.restarts.to_string(),
        }
    }
}

/// Restarts of sidecars, which go on counting when the pod runs.
struct Sidecars {
    restarts: i32,
    last_restart: Option<Timestamp>,
}

impl Sidecars {
    /// Like the columns themselves, up to the first init container that is not done.
    fn of(spec: &PodSpec, status: &PodStatus) -> Sidecars {
        let mut out = Sidecars { restarts: 0, last_restart: None };
        for container in list(&status.init_container_statuses) {
            let sidecar =
                list(&spec.init_containers).iter().any(|spec| spec.name == container.name && is_sidecar(spec));
            if sidecar {
                out.restarts += container.restart_count;
                out.last_restart = out.last_restart.max(last_end(container));
            }
            let done = terminated(container).is_some_and(|ended| ended.exit_code == 0);
            let started = sidecar && container.started == Some(true);
            if !done && !started {
                break;
            }
        }
        out
    }
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

fn waiting_reason(container: &ContainerStatus) -> &str {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.map_or("", |waiting| text(&waiting.reason))
}

fn last_end(container: &ContainerStatus) -> Option<Timestamp> {
    Some(container.last_state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
}

fn ended_reason(ended: &ContainerStateTerminated) -> String {
    match (text(&ended.reason), ended.signal.unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", ended.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn has_condition(status: &PodStatus, kind: &str) -> bool {
    list(&status.conditions).iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn readiness_gates(spec: &PodSpec, status: &PodStatus) -> String {
    let gates = list(&spec.readiness_gates);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let met = gates.iter().filter(|gate| {
        let first = list(&status.conditions).iter().find(|condition| condition.type_ == gate.condition_type);
        first.is_some_and(|condition| condition.status == "True")
    });
    format!("{}/{}", met.count(), gates.len())
}
