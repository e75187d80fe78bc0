//! What to do about a pod: from its object, what its containers look like and the time, to what to start, whom to signal, what
//! to write and when to look again. No I/O; the rules are kubelet's.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use usher_api::quantity::Quantity;

use crate::model::{BackOff, Containers, PostStart, Run, Seen, full_name, is_sidecar, is_terminal, restarts};
use crate::status;

/// Kubelet gives every container this long between the signals, whatever the grace period.
const MIN_GRACE_SECS: i64 = 2;
const DEFAULT_GRACE_SECS: i64 = 30;

#[derive(Debug, PartialEq)]
pub struct Plan {
    /// Containers to run (again), in order.
    pub start: Vec<String>,
    pub stop: Vec<Stop>,
    pub notes: Vec<Note>,
    pub status: PodStatus,
    /// When to decide again if nothing happens before.
    pub wake_at: Option<Timestamp>,
    /// Nothing runs any longer and the API may forget the pod.
    pub remove: bool,
}

#[derive(Debug, PartialEq)]
pub struct Stop {
    pub container: String,
    pub signal: Signal,
    /// What the event says.
    pub because: String,
    /// When its grace is over: its preStop hook has no longer than that.
    pub until: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Terminate,
    Kill,
}

/// Something people are told, once however often it is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    BackOff { container: String },
    DeadlineExceeded,
}

/// Why nothing is started any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Deleted,
    DeadlineExceeded,
    /// The containers have done what they will, or the API says that the pod is over; sidecars may remain.
    Finished,
}

/// What a machine knows about itself that pods are told.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub ip: String,
    /// What a container without limits may use.
    pub allocatable: BTreeMap<String, Quantity>,
}

pub fn decide(pod: &Pod, seen: &Containers, host: &Host, now: Timestamp) -> Plan {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut plan = Plan {
        start: Vec::new(),
        stop: Vec::new(),
        notes: Vec::new(),
        status: PodStatus::default(),
        wake_at: None,
        remove: false,
    };
    let ending = ending(pod, spec, seen, now);
    match ending {
        Some(why) => stop_all(&mut plan, pod, spec, seen, why, now),
        None => {
            go_on(&mut plan, spec, seen, now);
            wake(&mut plan, deadline(pod));
        }
    }
    let running = seen.values().any(Seen::is_running);
    plan.remove = ending == Some(Ending::Deleted) && !running;
    plan.status = status::of(pod, spec, seen, host, ending, now);
    plan
}

fn ending(pod: &Pod, spec: &PodSpec, seen: &Containers, now: Timestamp) -> Option<Ending> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(Ending::Deleted);
    }
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if is_terminal(phase) {
        return Some(Ending::Finished);
    }
    let finished = is_finished(spec, seen);
    match deadline(pod).filter(|at| *at <= now) {
        // What ended in time ended by itself; what ended later was made to.
        Some(at) if !finished || seen.values().filter_map(Seen::ended).any(|e| e.finished_at >= at) => {
            Some(Ending::DeadlineExceeded)
        }
        _ => finished.then_some(Ending::Finished),
    }
}

fn deadline(pod: &Pod) -> Option<Timestamp> {
    let secs = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    start.checked_add(SignedDuration::from_secs(secs)).ok()
}

/// No container will run again, apart from sidecars, which do not count.
fn is_finished(spec: &PodSpec, seen: &Containers) -> bool {
    let failed_init = inits(spec).iter().filter(|c| !is_sidecar(c)).any(|container| {
        let ended = seen.get(&container.name).and_then(Seen::ended);
        ended.is_some_and(|e| e.code != 0 && !restarts(container, spec, e.code))
    });
    let all_over = spec.containers.iter().all(|container| {
        let ended = seen.get(&container.name).and_then(Seen::ended);
        ended.is_some_and(|e| !restarts(container, spec, e.code))
    });
    failed_init || (all_over && !spec.containers.is_empty())
}

fn inits(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or_default()
}

/// Starts what is next: init containers one after the other, then all others; and restarts what ended.
fn go_on(plan: &mut Plan, spec: &PodSpec, seen: &Containers, now: Timestamp) {
    let none = Seen::default();
    let look = |container: &Container| seen.get(&container.name).unwrap_or(&none);
    let initialized = spec.containers.iter().any(|c| look(c).run.is_some());
    for container in inits(spec) {
        let state = look(container);
        if is_sidecar(container) {
            tend(plan, container, spec, state, now);
            if !initialized && !state.has_started(container) {
                return;
            }
        } else if !initialized && state.ended().is_none_or(|e| e.code != 0) {
            return tend(plan, container, spec, state, now);
        }
    }
    for container in &spec.containers {
        tend(plan, container, spec, look(container), now);
        // Kubelet starts containers one after the other, each with its hook.
        if look(container).post_start == Some(PostStart::Runs) {
            return;
        }
    }
}

/// One container that should be running, or have run.
fn tend(plan: &mut Plan, container: &Container, spec: &PodSpec, seen: &Seen, now: Timestamp) {
    if let Some(trouble) = seen.trouble.as_ref().filter(|t| t.retry_at > now) {
        return wake(plan, Some(trouble.retry_at));
    }
    match &seen.run {
        None => plan.start.push(container.name.clone()),
        Some(Run::Running { .. }) => heal(plan, container, spec, seen, now),
        Some(Run::Ended(ended)) => {
            let again = is_sidecar(container) || restarts(container, spec, ended.code);
            if !again {
                return;
            }
            match BackOff::until(seen.back_off, ended.finished_at).filter(|until| *until > now) {
                Some(until) => {
                    plan.notes.push(Note::BackOff { container: container.name.clone() });
                    wake(plan, Some(until));
                }
                None => plan.start.push(container.name.clone()),
            }
        }
    }
}

/// A container that its probes or its postStart hook say is broken is stopped; that it runs again is decided once it has ended.
fn heal(plan: &mut Plan, container: &Container, spec: &PodSpec, seen: &Seen, now: Timestamp) {
    let began = seen.stopping.map_or(now, |s| s.since);
    if seen.post_start == Some(PostStart::Failed) {
        let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECS);
        let over = began + SignedDuration::from_secs(grace);
        return stop(plan, &container.name, seen, over, "FailedPostStartHook".to_owned(), now);
    }
    let Some(failed) = seen.health.failed else { return };
    let probe = match failed {
        crate::model::Failed::Liveness => container.liveness_probe.as_ref(),
        crate::model::Failed::Startup => container.startup_probe.as_ref(),
    };
    let grace = probe
        .and_then(|p| p.termination_grace_period_seconds)
        .or(spec.termination_grace_period_seconds)
        .unwrap_or(DEFAULT_GRACE_SECS);
    let what = if is_sidecar(container) { "Init container" } else { "Container" };
    let again = if restarts(container, spec, 137) { ", will be restarted" } else { "" };
    let because = format!("{what} {} failed {} probe{again}", container.name, failed.name());
    stop(plan, &container.name, seen, began + SignedDuration::from_secs(grace), because, now);
}

/// Ends every process: all at once, but sidecars after those they serve, in reverse order.
fn stop_all(plan: &mut Plan, pod: &Pod, spec: &PodSpec, seen: &Containers, why: Ending, now: Timestamp) {
    if why == Ending::DeadlineExceeded {
        plan.notes.push(Note::DeadlineExceeded);
    }
    let began = began(pod, why, seen, now);
    let grace = match why {
        Ending::Deleted => pod.metadata.deletion_grace_period_seconds,
        _ => None,
    };
    let grace = grace.or(spec.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE_SECS);
    let over = began + SignedDuration::from_secs(grace);
    let is_running = |name: &str| seen.get(name).is_some_and(Seen::is_running);
    let mut earlier_run = spec.containers.iter().any(|c| is_running(&c.name));
    for container in &spec.containers {
        end(plan, &container.name, seen, over, now);
    }
    for container in inits(spec).iter().rev() {
        if is_sidecar(container) && earlier_run && now < over {
            wake(plan, Some(over));
            continue;
        }
        end(plan, &container.name, seen, over, now);
        earlier_run |= is_running(&container.name);
    }
}

/// When the end began; a deletion carries its own time, so that a restart of the node gives no more grace.
fn began(pod: &Pod, why: Ending, seen: &Containers, now: Timestamp) -> Timestamp {
    let said =
        match why {
            Ending::Deleted => pod.metadata.deletion_timestamp.as_ref().map(|at| {
                at.0 - SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0))
            }),
            Ending::DeadlineExceeded => deadline(pod),
            Ending::Finished => None,
        };
    said.unwrap_or_else(|| seen.values().filter_map(|s| Some(s.stopping?.since)).min().unwrap_or(now))
}

fn end(plan: &mut Plan, name: &str, seen: &Containers, over: Timestamp, now: Timestamp) {
    let Some(seen) = seen.get(name).filter(|s| s.is_running()) else { return };
    stop(plan, name, seen, over, format!("Stopping container {name}"), now);
}

/// Its hook first, if it has one, then its signal; when its grace is over and it has had a moment with the signal, by force.
fn stop(plan: &mut Plan, name: &str, seen: &Seen, over: Timestamp, because: String, now: Timestamp) {
    let moment = SignedDuration::from_secs(MIN_GRACE_SECS);
    let signal = match seen.stopping {
        None => Some(Signal::Terminate),
        Some(stopping) if stopping.killed => None,
        Some(stopping) => {
            let kill_at = over.max(stopping.asked.unwrap_or(over) + moment);
            if kill_at > now {
                return wake(plan, Some(kill_at));
            }
            Some(Signal::Kill)
        }
    };
    if let Some(signal) = signal {
        plan.stop.push(Stop { container: name.to_owned(), signal, because, until: over });
    }
}

fn wake(plan: &mut Plan, at: Option<Timestamp>) {
    plan.wake_at = match (plan.wake_at, at) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
}

/// What the waiting state and the event of a container in back-off say.
pub fn back_off_message(pod: &Pod, container: &str, secs: u32) -> String {
    format!("back-off {} restarting failed container={container} pod={}", crate::model::go_secs(secs), full_name(pod))
}

#[cfg(test)]
#[path = "decide/tests.rs"]
mod tests;
