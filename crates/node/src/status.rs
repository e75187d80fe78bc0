//! The status that a pod is shown with, from what its containers look like: phases, container states and conditions as kubelet
//! words them. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::decide::{Ending, Host, back_off_message};
use crate::model::{
    BackOff, CONTAINER_CREATING, CRASH_LOOP, Containers, Ended, POD_INITIALIZING, POST_START_HOOK_ERROR, PostStart,
    Run, STATUS_UNKNOWN, Seen, container_id, is_sidecar, is_terminal, restarts,
};

pub const DEADLINE_REASON: &str = "DeadlineExceeded";
pub const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";
const LOST_MESSAGE: &str = "The container could not be located when the pod was terminated";

pub(crate) fn of(
    pod: &Pod,
    spec: &PodSpec,
    seen: &Containers,
    host: &Host,
    ending: Option<Ending>,
    now: Timestamp,
) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    let running = seen.values().any(Seen::is_running);
    let over = ending.is_some() && !running;
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let show = |list: &[Container], old: Option<&Vec<ContainerStatus>>| -> Vec<ContainerStatus> {
        let view = View { pod, spec, seen, ending, over, now };
        list.iter().map(|c| view.container(c, old.and_then(|o| o.iter().find(|s| s.name == c.name)))).collect()
    };
    let container_statuses = show(&spec.containers, old.container_statuses.as_ref());
    let init_statuses = show(inits, old.init_container_statuses.as_ref());
    let mut status = PodStatus {
        observed_generation: pod.metadata.generation,
        host_ip: Some(host.ip.clone()),
        host_ips: Some(vec![HostIP { ip: host.ip.clone() }]),
        start_time: Some(old.start_time.clone().unwrap_or(Time(whole_seconds(now)))),
        ..old.clone()
    };
    if seen.values().any(|s| s.run.is_some()) && old.pod_ip.is_none() {
        status.pod_ip = Some(host.ip.clone());
        status.pod_ips = Some(vec![PodIP { ip: host.ip.clone() }]);
    }
    let phase = next_phase(&old, spec, &container_statuses, &init_statuses, ending, over);
    if ending == Some(Ending::DeadlineExceeded) && over {
        status.reason = Some(DEADLINE_REASON.to_owned());
        status.message = Some(DEADLINE_MESSAGE.to_owned());
    } else if old.phase.as_deref() != Some(phase) {
        (status.reason, status.message) = (None, None);
    }
    status.phase = Some(phase.to_owned());
    let sandbox = if over { Some("pod sandbox is not ready") } else { no_sandbox(seen) };
    let facts = Facts { pod, spec, containers: &container_statuses, inits: &init_statuses, phase, sandbox };
    status.conditions = Some(facts.conditions(&old, now));
    status.container_statuses = Some(container_statuses);
    if !inits.is_empty() {
        status.init_container_statuses = Some(init_statuses);
    }
    status
}

fn no_sandbox(seen: &Containers) -> Option<&'static str> {
    seen.values().all(|s| s.run.is_none()).then_some("no pod sandbox exists")
}

pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// A pod does not become terminal while something of it runs, nor cease to be.
fn next_phase(
    old: &PodStatus,
    spec: &PodSpec,
    containers: &[ContainerStatus],
    inits: &[ContainerStatus],
    ending: Option<Ending>,
    over: bool,
) -> &'static str {
    match old.phase.as_deref() {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    let natural = phase(spec, containers, inits, over);
    match ending {
        Some(Ending::DeadlineExceeded) if over => "Failed",
        Some(_) if over && !is_terminal(Some(natural)) => "Failed",
        Some(_) if !over && is_terminal(Some(natural)) => match old.phase.as_deref() {
            Some("Pending") | None => "Pending",
            _ => "Running",
        },
        _ => natural,
    }
}

/// Kubelet's `getPhase`.
fn phase(spec: &PodSpec, containers: &[ContainerStatus], inits: &[ContainerStatus], over: bool) -> &'static str {
    let find = |list: &[ContainerStatus], name: &str| list.iter().find(|s| s.name == name).cloned().unwrap_or_default();
    let mut pending = 0;
    let mut pending_sidecars = 0;
    let (mut running, mut waiting, mut stopped, mut for_good, mut succeeded) = (0, 0, 0, 0, 0);
    for container in spec.init_containers.as_deref().unwrap_or_default() {
        let status = find(inits, &container.name);
        let state = status.state.unwrap_or_default();
        let last = status.last_state.unwrap_or_default().terminated;
        if is_sidecar(container) {
            if state.running.is_some() {
                pending_sidecars += usize::from(status.started != Some(true));
                running += 1;
            } else if state.terminated.is_none() && last.is_none() {
                pending_sidecars += 1;
                waiting += 1;
            }
            continue;
        }
        match state.terminated.as_ref().or(last.as_ref()) {
            _ if state.running.is_some() => pending += 1,
            Some(ended) if ended.exit_code != 0 => {
                if !restarts(container, spec, ended.exit_code) {
                    return "Failed";
                }
            }
            Some(_) => {}
            None => pending += 1,
        }
    }
    let mut initialized = false;
    for container in &spec.containers {
        let status = find(containers, &container.name);
        let state = status.state.unwrap_or_default();
        let last = status.last_state.unwrap_or_default().terminated;
        initialized |= state.running.is_some() || state.terminated.is_some() || last.is_some();
        match (state.running, state.terminated.or(last)) {
            (Some(_), _) => running += 1,
            (None, Some(ended)) => {
                stopped += 1;
                for_good += usize::from(!restarts(container, spec, ended.exit_code));
                succeeded += usize::from(ended.exit_code == 0);
            }
            (None, None) => waiting += 1,
        }
    }
    if pending > 0 || (pending_sidecars > 0 && !initialized) || waiting > 0 {
        return "Pending";
    }
    if running > 0 {
        return "Running";
    }
    match stopped {
        0 => "Pending",
        _ if !over && stopped != for_good => "Running",
        _ if stopped == succeeded => "Succeeded",
        _ => "Failed",
    }
}

struct View<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    seen: &'a Containers,
    ending: Option<Ending>,
    over: bool,
    now: Timestamp,
}

impl View<'_> {
    fn container(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let none = Seen::default();
        let seen = self.seen.get(&container.name).unwrap_or(&none);
        let id = |attempt: u32| container_id(self.pod, &container.name, attempt);
        let mut status = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            restart_count: seen.attempt as i32,
            started: Some(seen.has_started(container)),
            volume_mounts: volume_mounts(container),
            ..ContainerStatus::default()
        };
        status.last_state = seen.previous.as_ref().map(|e| terminated(e, id(e.attempt)));
        if seen.run.is_some() {
            status.container_id = Some(id(seen.attempt));
            status.resources = container.resources.clone();
            status.allocated_resources = container.resources.as_ref().and_then(|r| r.requests.clone());
        } else if self.over && old.is_some_and(|o| o.state.as_ref().is_some_and(|s| s.terminated.is_some())) {
            // Nothing is known here any longer, and the end was told before.
            return old.cloned().unwrap_or_default();
        }
        status.ready = self.is_ready(container, seen);
        status.state = Some(match &seen.run {
            Some(Run::Running { .. }) if self.ending.is_none() && seen.post_start.is_some() => self.not_run(seen),
            Some(Run::Running { since }) => ContainerState {
                running: Some(ContainerStateRunning { started_at: Some(Time(whole_seconds(*since))) }),
                ..ContainerState::default()
            },
            Some(Run::Ended(ended)) => match self.waits_for(container, seen, ended) {
                Some(waiting) => {
                    status.last_state = Some(terminated(ended, id(ended.attempt)));
                    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
                }
                None => terminated(ended, id(ended.attempt)),
            },
            None => self.not_run(seen),
        });
        status
    }

    fn is_ready(&self, container: &Container, seen: &Seen) -> bool {
        let is_init = self.spec.init_containers.iter().flatten().any(|c| c.name == container.name);
        if is_init && !is_sidecar(container) {
            return seen.ended().is_some_and(|e| e.code == 0);
        }
        seen.has_started(container) && (container.readiness_probe.is_none() || seen.health.ready == Some(true))
    }

    fn not_run(&self, seen: &Seen) -> ContainerState {
        if self.over && self.ending != Some(Ending::Finished) && self.was_initialized() {
            let lost = ContainerStateTerminated {
                exit_code: 137,
                reason: Some(STATUS_UNKNOWN.to_owned()),
                message: Some(LOST_MESSAGE.to_owned()),
                ..ContainerStateTerminated::default()
            };
            return ContainerState { terminated: Some(lost), ..ContainerState::default() };
        }
        let waiting = match &seen.trouble {
            Some(trouble) => waiting(&trouble.reason, Some(trouble.message.clone())),
            None if seen.post_start == Some(PostStart::Failed) => waiting(POST_START_HOOK_ERROR, None),
            None if self.spec.init_containers.as_ref().is_some_and(|i| !i.is_empty()) => {
                waiting(POD_INITIALIZING, None)
            }
            None => waiting(CONTAINER_CREATING, None),
        };
        ContainerState { waiting: Some(waiting), ..ContainerState::default() }
    }

    /// Whether containers ever had a chance to run: those before them have all succeeded.
    fn was_initialized(&self) -> bool {
        let inits = self.spec.init_containers.as_deref().unwrap_or_default();
        inits.last().is_none_or(|last| {
            self.seen.get(&last.name).is_some_and(|s| s.is_running() || s.ended().is_some_and(|e| e.code == 0))
        }) || self.spec.containers.iter().any(|c| self.seen.get(&c.name).is_some_and(|s| s.run.is_some()))
    }

    /// The waiting state of a container that ended and will run again, if there is more to say than that it ended.
    fn waits_for(&self, container: &Container, seen: &Seen, ended: &Ended) -> Option<ContainerStateWaiting> {
        if self.ending.is_some() || !(is_sidecar(container) || restarts(container, self.spec, ended.code)) {
            return None;
        }
        let is_init = self.spec.init_containers.iter().flatten().any(|c| c.name == container.name);
        if is_init && !is_sidecar(container) && ended.code == 0 {
            return None;
        }
        if let Some(trouble) = &seen.trouble {
            return Some(waiting(&trouble.reason, Some(trouble.message.clone())));
        }
        let until = BackOff::until(seen.back_off, ended.finished_at).filter(|until| *until > self.now);
        let secs = until.and(seen.back_off)?.secs;
        Some(waiting(CRASH_LOOP, Some(back_off_message(self.pod, &container.name, secs))))
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerStateWaiting {
    ContainerStateWaiting { reason: Some(reason.to_owned()), message }
}

fn terminated(ended: &Ended, container_id: String) -> ContainerState {
    let terminated = ContainerStateTerminated {
        container_id: Some(container_id),
        exit_code: ended.code,
        reason: Some(ended.reason.clone()),
        message: Some(ended.message.clone()).filter(|m| !m.is_empty()),
        signal: None,
        // What never began is told as containerd tells it: at the beginning of time.
        started_at: ended
            .started_at
            .or((ended.reason == "StartError").then_some(Timestamp::UNIX_EPOCH))
            .map(|at| Time(whole_seconds(at))),
        finished_at: Some(Time(whole_seconds(ended.finished_at))),
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

fn volume_mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref()?.iter().map(|mount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: mount.read_only.filter(|r| *r).map(|_| "Disabled".to_owned()),
        ..VolumeMountStatus::default()
    });
    Some(mounts.collect())
}

struct Facts<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    containers: &'a [ContainerStatus],
    inits: &'a [ContainerStatus],
    phase: &'a str,
    /// Why there is nothing that containers could be started in.
    sandbox: Option<&'static str>,
}

type Verdict = (bool, Option<&'static str>, Option<String>);

const OURS: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

impl Facts<'_> {
    fn conditions(&self, old: &PodStatus, now: Timestamp) -> Vec<PodCondition> {
        let before = old.conditions.as_deref().unwrap_or_default();
        let mut out: Vec<PodCondition> = before.iter().filter(|c| !OURS.contains(&c.type_.as_str())).cloned().collect();
        let sandbox = match self.sandbox {
            None => (true, None, None),
            Some(why) => (false, Some("PodSandboxNotReady"), Some(why.to_owned())),
        };
        let verdicts = [sandbox, self.initialized(), self.ready(before), self.containers_ready(), (true, None, None)];
        for (type_, (is, reason, message)) in OURS.into_iter().zip(verdicts) {
            let status = if is { "True" } else { "False" };
            let same = before.iter().find(|c| c.type_ == type_ && c.status == status);
            let since = same.and_then(|c| c.last_transition_time.clone()).unwrap_or(Time(whole_seconds(now)));
            out.push(PodCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: reason.map(str::to_owned),
                message,
                last_transition_time: Some(since),
                observed_generation: self.pod.metadata.generation,
                ..PodCondition::default()
            });
        }
        out
    }

    fn terminal(&self) -> Option<Verdict> {
        match self.phase {
            "Failed" => Some((false, Some("PodFailed"), None)),
            "Succeeded" => Some((false, Some("PodCompleted"), None)),
            _ => None,
        }
    }

    fn initialized(&self) -> Verdict {
        if self.phase == "Succeeded" {
            return (true, Some("PodCompleted"), None);
        }
        let has_started = |s: &ContainerStatus| {
            let state = s.state.clone().unwrap_or_default();
            state.running.is_some()
                || state.terminated.is_some_and(|t| t.started_at.is_some())
                || s.last_state.is_some()
        };
        if self.containers.iter().any(has_started) {
            return (true, None, None);
        }
        let inits = self.spec.init_containers.as_deref().unwrap_or_default();
        let incomplete: Vec<&str> = inits
            .iter()
            .zip(self.inits)
            .filter(|(c, s)| if is_sidecar(c) { s.started != Some(true) } else { !s.ready })
            .map(|(c, _)| c.name.as_str())
            .collect();
        if incomplete.is_empty() {
            return (true, None, None);
        }
        let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
        (false, Some("ContainersNotInitialized"), Some(message))
    }

    fn containers_ready(&self) -> Verdict {
        if let Some(verdict) = self.terminal() {
            return verdict;
        }
        let sidecars = self.spec.init_containers.iter().flatten().zip(self.inits).filter(|(c, _)| is_sidecar(c));
        let statuses = sidecars.map(|(_, s)| s).chain(self.containers);
        let unready: Vec<&str> = statuses.filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
        if unready.is_empty() {
            return (true, None, None);
        }
        let message = format!("containers with unready status: [{}]", unready.join(" "));
        (false, Some("ContainersNotReady"), Some(message))
    }

    fn ready(&self, conditions: &[PodCondition]) -> Verdict {
        let containers = self.containers_ready();
        if !containers.0 {
            return containers;
        }
        let gates = self.spec.readiness_gates.as_deref().unwrap_or_default();
        let closed: Vec<String> = gates
            .iter()
            .filter_map(|gate| {
                let name = &gate.condition_type;
                match conditions.iter().find(|c| c.type_ == *name) {
                    None => Some(format!("corresponding condition of pod readiness gate {name:?} does not exist.")),
                    Some(c) if c.status != "True" => {
                        Some(format!("the status of pod readiness gate {name:?} is not \"True\", but {}", c.status))
                    }
                    Some(_) => None,
                }
            })
            .collect();
        match closed.is_empty() {
            true => (true, None, None),
            false => (false, Some("ReadinessGatesNotReady"), Some(closed.join(", "))),
        }
    }
}
