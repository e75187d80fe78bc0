//! What the node knows of a pod beyond the API: its containers' runs as they look on this machine. Plain values, no I/O.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// The reasons that clients know.
pub const CONTAINER_CREATING: &str = "ContainerCreating";
pub const POD_INITIALIZING: &str = "PodInitializing";
pub const CRASH_LOOP: &str = "CrashLoopBackOff";
pub const POST_START_HOOK_ERROR: &str = "PostStartHookError";
pub const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// What a pod's containers look like, by name.
pub type Containers = BTreeMap<String, Seen>;

/// One container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The latest run, if there was one.
    pub run: Option<Run>,
    /// The number of the latest run, from 0; it is the restart count.
    pub attempt: u32,
    /// The run before.
    pub previous: Option<Ended>,
    pub back_off: Option<BackOff>,
    /// Why it cannot be created now.
    pub trouble: Option<Trouble>,
    pub health: Health,
    /// Its postStart hook, unless there is none or it is done.
    pub post_start: Option<PostStart>,
    /// Since when it is being stopped.
    pub stopping: Option<Stopping>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostStart {
    Runs,
    Failed,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Run {
    Running { since: Timestamp },
    Ended(Ended),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub attempt: u32,
    pub code: i32,
    pub reason: String,
    pub message: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub reason: String,
    pub message: String,
    pub retry_at: Timestamp,
}

/// What probes have found of the current run; nothing is found where there is no probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub started: Option<bool>,
    pub ready: Option<bool>,
    pub failed: Option<Failed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    Liveness,
    Startup,
}

impl Failed {
    pub fn name(self) -> &'static str {
        match self {
            Failed::Liveness => "liveness",
            Failed::Startup => "startup",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopping {
    pub since: Timestamp,
    /// When it got its signal; not while its preStop hook runs.
    pub asked: Option<Timestamp>,
    pub killed: bool,
}

/// Kubelet's back-off: none before the first restart, then 10 s, doubling to 5 min, forgotten after 10 quiet minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    pub secs: u32,
    pub updated: Timestamp,
}

impl BackOff {
    const FIRST_SECS: u32 = 10;
    const MAX_SECS: u32 = 300;

    fn is_forgotten(self, at: Timestamp) -> bool {
        at.duration_since(self.updated) > SignedDuration::from_secs(i64::from(Self::MAX_SECS) * 2)
    }

    /// Until when a container that ended at `finished` must wait.
    pub fn until(this: Option<BackOff>, finished: Timestamp) -> Option<Timestamp> {
        let back_off = this.filter(|b| !b.is_forgotten(finished))?;
        Some(finished + SignedDuration::from_secs(i64::from(back_off.secs)))
    }

    /// The back-off after a restart at `now` of a container that ended at `finished`.
    pub fn next(this: Option<BackOff>, finished: Timestamp, now: Timestamp) -> BackOff {
        let secs = match this.filter(|b| !b.is_forgotten(finished)) {
            Some(b) => (b.secs * 2).min(Self::MAX_SECS),
            None => Self::FIRST_SECS,
        };
        BackOff { secs, updated: now }
    }
}

impl Seen {
    pub fn is_running(&self) -> bool {
        matches!(self.run, Some(Run::Running { .. }))
    }

    pub fn ended(&self) -> Option<&Ended> {
        match &self.run {
            Some(Run::Ended(ended)) => Some(ended),
            _ => None,
        }
    }

    pub fn has_started(&self, container: &Container) -> bool {
        self.is_running()
            && self.post_start.is_none()
            && (container.startup_probe.is_none() || self.health.started == Some(true))
    }
}

pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Whether a container that ended with `code` is to run again.
pub fn restarts(container: &Container, spec: &PodSpec, code: i32) -> bool {
    if let Some(policy) = &container.restart_policy {
        let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
        let matches = |rule: &&k8s_openapi::api::core::v1::ContainerRestartRule| {
            rule.exit_codes.as_ref().is_some_and(|on| {
                let listed = on.values.as_deref().unwrap_or_default().contains(&code);
                match on.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
            })
        };
        if rules.iter().find(matches).is_some_and(|rule| rule.action.starts_with("Restart")) {
            return true;
        }
        return by_policy(policy, code);
    }
    by_policy(spec.restart_policy.as_deref().unwrap_or("Always"), code)
}

fn by_policy(policy: &str, code: i32) -> bool {
    match policy {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    }
}

pub fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// `name_namespace(uid)`, as kubelet writes it in messages.
pub fn full_name(pod: &Pod) -> String {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    format!("{}_{}({})", text(&pod.metadata.name), text(&pod.metadata.namespace), text(&pod.metadata.uid))
}

pub fn container_id(pod: &Pod, container: &str, attempt: u32) -> String {
    format!("usher://{}/{container}/{attempt}", pod.metadata.uid.as_deref().unwrap_or_default())
}

/// A duration as Go prints it, for whole seconds.
pub fn go_secs(secs: u32) -> String {
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn back_off_doubles_to_five_minutes_and_is_forgotten_after_ten() {
        let mut now: Timestamp = "2026-11-15T10:00:00Z".parse().unwrap();
        let mut back_off = None;
        let mut waits = vec![];
        for _ in 0..8 {
            let finished = now;
            let until = BackOff::until(back_off, finished).unwrap_or(finished);
            waits.push(until.duration_since(finished).as_secs());
            now = until;
            back_off = Some(BackOff::next(back_off, finished, now));
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        let later = now + SignedDuration::from_secs(601);
        assert_eq!(BackOff::until(back_off, later), None);
        assert_eq!(BackOff::next(back_off, later, later).secs, 10);
    }

    #[test]
    fn go_prints_durations_like_this() {
        let printed: Vec<String> = [10, 80, 300, 3601].into_iter().map(go_secs).collect();
        assert_eq!(printed, ["10s", "1m20s", "5m0s", "1h0m1s"]);
    }

    #[test]
    fn a_rule_of_the_container_comes_before_its_policy_and_that_before_the_pods() {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [], "restartPolicy": "Never"})).unwrap();
        let container = |value| serde_json::from_value::<Container>(value).unwrap();
        let plain = container(json!({"name": "c"}));
        let ruled = container(json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}));
        let failing = container(json!({"name": "c", "restartPolicy": "OnFailure"}));
        let cases =
            [(&plain, 1, false), (&ruled, 42, true), (&ruled, 1, false), (&failing, 1, true), (&failing, 0, false)];
        for (container, code, expected) in cases {
            assert_eq!(restarts(container, &spec, code), expected, "{container:?} {code}");
        }
    }
}
