//! The simulation: one watch for all pods, one timer for what is due next, and writes of many pods at a time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Node, Pod, PodStatus};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use usher_env::Clock;

use super::config::Group;
use crate::decide::{self, Host};
use crate::follow::{Change, follow};
use crate::model::{BackOff, Containers, Ended, Health, Run, Seen, is_sidecar};
use crate::register::tolerable;
use crate::write;

pub const DURATION: &str = "usher.dev/sim-duration";
pub const EXIT_CODE: &str = "usher.dev/sim-exit-code";
const DEFAULT_DURATION: SignedDuration = SignedDuration::from_secs(1);
/// Calls to the API at a time: enough to keep its disk busy, few enough to leave room for others.
const CALLS: usize = 16;
const RETRY: std::time::Duration = std::time::Duration::from_millis(20);
const TERMINATED: i32 = 143;

/// Running simulated nodes; dropping it stops them.
#[must_use]
pub struct Simulation {
    names: Arc<HashSet<String>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Simulation {
    /// Registers the nodes and runs the pods that are bound to them, on the current tokio runtime.
    pub fn start(client: Client, clock: Clock, groups: Vec<Group>) -> Simulation {
        let names: Arc<HashSet<String>> = Arc::new(groups.iter().flat_map(Group::names).collect());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (client, clock, stop) = (client.clone(), clock.clone(), stop.clone());
            async move {
                stop.run_until_cancelled(register(client, clock, groups)).await;
            }
        });
        tasks.spawn({
            let (names, stop) = (names.clone(), stop.clone());
            async move {
                stop.run_until_cancelled(run(client, clock, names)).await;
            }
        });
        Simulation { names, stop, tasks }
    }

    /// The names of the simulated nodes.
    pub fn names(&self) -> Arc<HashSet<String>> {
        self.names.clone()
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Removes simulated nodes that are no longer simulated: nobody would run what is bound to them. `names` are those that are.
pub async fn forget_others(client: Client, names: &HashSet<String>) -> Result<usize, kube::Error> {
    let api: Api<Node> = Api::all(client);
    let there = api.list_metadata(&ListParams::default().labels("usher.dev/simulated=true")).await?;
    let gone: Vec<String> =
        there.items.into_iter().filter_map(|n| n.metadata.name).filter(|n| !names.contains(n)).collect();
    let params = DeleteParams::default();
    let deletions: Vec<_> = gone.iter().map(|name| api.delete(name, &params)).collect();
    stream::iter(deletions).buffer_unordered(CALLS).for_each(|_| async {}).await;
    Ok(gone.len())
}

async fn register(client: Client, clock: Clock, groups: Vec<Group>) {
    let api: Api<Node> = Api::all(client);
    let nodes = groups.iter().flat_map(|group| group.names().map(move |name| (group, name)));
    let made = stream::iter(nodes).for_each_concurrent(CALLS, |(group, name)| {
        let (api, clock) = (api.clone(), clock.clone());
        async move {
            while let Err(error) = register_one(&api, group, &name, clock.now()).await {
                tracing::debug!(node = name, %error, "a simulated node could not be registered");
                tokio::time::sleep(RETRY).await;
            }
        }
    });
    made.await;
    tracing::info!(nodes = groups.iter().map(|g| g.count).sum::<u32>(), "simulated nodes are ready");
}

async fn register_one(api: &Api<Node>, group: &Group, name: &str, now: Timestamp) -> Result<(), kube::Error> {
    let node = group.node(name, now);
    let params = PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() };
    let there = match api.create(&PostParams::default(), &node).await {
        Ok(created) => created,
        Err(kube::Error::Api(error)) if error.code == 409 => {
            let labels = serde_json::json!({"metadata": {"labels": node.metadata.labels}});
            api.patch(name, &params, &Patch::Merge(labels)).await?
        }
        Err(error) => return Err(error),
    };
    let status = there.status.unwrap_or_default();
    let wanted = node.status.unwrap_or_default();
    if status.capacity != wanted.capacity || status.conditions.is_none_or(|c| c.is_empty()) {
        let status = serde_json::json!({"status": wanted});
        api.patch_status(name, &params, &Patch::Merge(status)).await?;
    }
    // A new node is tainted until its first status has been seen, which is now.
    let taints = there.spec.and_then(|s| s.taints).unwrap_or_default();
    let kept = tolerable(&taints);
    let missing = group.taints().into_iter().filter(|t| !kept.iter().any(|k| k.key == t.key && k.effect == t.effect));
    let wanted: Vec<_> = kept.iter().cloned().chain(missing).collect();
    if wanted != taints {
        let taints = if wanted.is_empty() { serde_json::Value::Null } else { serde_json::json!(wanted) };
        api.patch(name, &params, &Patch::Merge(serde_json::json!({"spec": {"taints": taints}}))).await?;
    }
    Ok(())
}

async fn run(client: Client, clock: Clock, names: Arc<HashSet<String>>) {
    let (tell, mut changes) = mpsc::unbounded_channel::<Change<Pod>>();
    let following = {
        let client = client.clone();
        async move { follow(client, "/api/v1/pods", Some("spec.nodeName!="), |change| drop(tell.send(change))).await }
    };
    let mut world = World {
        client,
        clock,
        names,
        pods: HashMap::new(),
        due: BTreeSet::new(),
        calls: JoinSet::new(),
        room: Arc::new(Semaphore::new(CALLS)),
    };
    let turning = async move {
        loop {
            let next = world.due.first().map(|(at, _)| *at);
            tokio::select! {
                change = changes.recv() => match change {
                    None => return,
                    Some(change) => world.hear(change),
                },
                Some(done) = world.calls.join_next() => {
                    if let Ok((uid, outcome)) = done {
                        world.called(&uid, outcome);
                    }
                }
                () = sleep_until(&world.clock, next), if next.is_some() => world.ripen(),
            }
        }
    };
    tokio::join!(following, turning);
}

async fn sleep_until(clock: &Clock, at: Option<Timestamp>) {
    let wait = at.map_or(SignedDuration::ZERO, |at| at.duration_since(clock.now()));
    tokio::time::sleep(wait.try_into().unwrap_or_default()).await;
}

struct World {
    client: Client,
    clock: Clock,
    names: Arc<HashSet<String>>,
    pods: HashMap<String, Simulated>,
    /// When to look at which pod again.
    due: BTreeSet<(Timestamp, String)>,
    calls: JoinSet<(String, Outcome)>,
    room: Arc<Semaphore>,
}

struct Simulated {
    /// With the status that was last written, as far as the watch does not show a newer one.
    pod: Arc<Pod>,
    seen: Containers,
    written: Option<PodStatus>,
    wake_at: Option<Timestamp>,
    /// A call about it is on its way; the next follows when that is answered.
    busy: bool,
    removed: bool,
}

enum Outcome {
    Written(Box<PodStatus>),
    Removed,
    /// It is no longer there, or another one is.
    Lost,
}

impl World {
    fn hear(&mut self, change: Change<Pod>) {
        match change {
            Change::Listed(list) => {
                let there: HashSet<&str> = list.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
                let gone: Vec<String> = self.pods.keys().filter(|uid| !there.contains(uid.as_str())).cloned().collect();
                gone.iter().for_each(|uid| self.forget(uid));
                list.into_iter().for_each(|pod| self.apply(pod));
            }
            Change::Applied(pod) => self.apply(pod),
            Change::Deleted(pod) => self.forget(pod.metadata.uid.as_deref().unwrap_or_default()),
        }
    }

    fn apply(&mut self, pod: Pod) {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        if !self.names.contains(node) {
            return;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match self.pods.get_mut(&uid) {
            Some(known) => known.see(pod),
            None => {
                let seen = recall(&pod);
                let pod = Arc::new(pod);
                let new = Simulated { pod, seen, written: None, wake_at: None, busy: false, removed: false };
                self.pods.insert(uid.clone(), new);
            }
        }
        self.advance(&uid);
    }

    fn forget(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid)
            && let Some(at) = pod.wake_at
        {
            self.due.remove(&(at, uid.to_owned()));
        }
    }

    fn called(&mut self, uid: &str, outcome: Outcome) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.busy = false;
        match outcome {
            Outcome::Written(status) => pod.wrote(*status),
            Outcome::Removed => pod.removed = true,
            Outcome::Lost => return,
        }
        self.advance(uid);
    }

    fn ripen(&mut self) {
        let now = self.clock.now();
        while let Some((at, uid)) = self.due.first().cloned().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, uid.clone()));
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.wake_at = None;
                self.advance(&uid);
            }
        }
    }

    /// Lets a pod do all it can now, writes where it has got to, and notes when it goes on.
    fn advance(&mut self, uid: &str) {
        let now = self.clock.now();
        let Some(it) = self.pods.get_mut(uid) else { return };
        if it.busy {
            return;
        }
        let plan = it.live(now);
        let wake_at = [plan.wake_at, it.next_end()].into_iter().flatten().filter(|at| *at > now).min();
        if it.wake_at != wake_at {
            if let Some(old) = it.wake_at.take() {
                self.due.remove(&(old, uid.to_owned()));
            }
            it.wake_at = wake_at;
            self.due.extend(wake_at.map(|at| (at, uid.to_owned())));
        }
        let patch = write::patch(&it.pod, &plan.status);
        if patch.is_none() && (!plan.remove || it.removed) {
            return;
        }
        it.busy = true;
        let call = Call { client: self.client.clone(), pod: it.pod.clone(), room: self.room.clone() };
        let uid = uid.to_owned();
        self.calls.spawn(async move {
            let outcome = match patch {
                Some(patch) => call.write(patch, plan.status).await,
                None => call.remove().await,
            };
            (uid, outcome)
        });
    }
}

impl Simulated {
    /// The pod as a watch shows it, which may be older than what was written.
    fn see(&mut self, mut pod: Pod) {
        if let Some(ours) = &self.written {
            let theirs = pod.status.take().unwrap_or_default();
            pod.status = Some(write::newest(ours, theirs));
        }
        self.pod = Arc::new(pod);
    }

    fn wrote(&mut self, status: PodStatus) {
        let pod = Arc::make_mut(&mut self.pod);
        let theirs = pod.status.take().unwrap_or_default();
        pod.status = Some(write::newest(&status, theirs));
        self.written = Some(status);
    }

    /// Starts and ends containers until nothing more happens at `now`.
    fn live(&mut self, now: Timestamp) -> decide::Plan {
        loop {
            self.end_due(now);
            let host = Host { ip: address(&self.pod), ..Host::default() };
            let plan = decide::decide(&self.pod, &self.seen, &host, now);
            if plan.start.is_empty() && plan.stop.is_empty() {
                return plan;
            }
            for name in &plan.start {
                self.start(name, now);
            }
            for stop in &plan.stop {
                self.end(&stop.container, TERMINATED, now);
            }
        }
    }

    fn start(&mut self, name: &str, now: Timestamp) {
        let seen = self.seen.entry(name.to_owned()).or_default();
        let (attempt, previous, back_off) = match seen.ended() {
            Some(ended) => {
                (ended.attempt + 1, Some(ended.clone()), Some(BackOff::next(seen.back_off, ended.finished_at, now)))
            }
            None => (0, None, None),
        };
        let health = Health { started: Some(true), ready: Some(true), failed: None };
        *seen = Seen { run: Some(Run::Running { since: now }), attempt, previous, back_off, health, ..Seen::default() };
    }

    fn end(&mut self, name: &str, code: i32, at: Timestamp) {
        let Some(seen) = self.seen.get_mut(name) else { return };
        let Some(Run::Running { since }) = seen.run else { return };
        let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        let (attempt, started_at) = (seen.attempt, Some(since));
        seen.run =
            Some(Run::Ended(Ended { attempt, code, reason, message: String::new(), started_at, finished_at: at }));
    }

    fn end_due(&mut self, now: Timestamp) {
        let due: Vec<(String, i32)> =
            self.lives().filter(|(_, ends, _)| *ends <= now).map(|(name, _, code)| (name.to_owned(), code)).collect();
        for (name, code) in due {
            self.end(&name, code, now);
        }
    }

    fn next_end(&self) -> Option<Timestamp> {
        self.lives().map(|(_, ends, _)| ends).min()
    }

    /// What runs now, when it will end by itself, and how.
    fn lives(&self) -> impl Iterator<Item = (&str, Timestamp, i32)> {
        let spec = self.pod.spec.as_ref();
        let inits = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten()).filter(|c| !is_sidecar(c));
        let inits = inits.map(|c| (c, SignedDuration::ZERO, 0));
        let (duration, code) = wanted(&self.pod);
        let mains = spec.into_iter().flat_map(|s| &s.containers).map(move |c| (c, duration, code));
        inits.chain(mains).filter_map(|(container, duration, code): (&Container, _, _)| {
            let Some(Run::Running { since }) = self.seen.get(&container.name)?.run else { return None };
            Some((container.name.as_str(), since.checked_add(duration).ok()?, code))
        })
    }
}

/// How long a pod wants to run, and how to end.
fn wanted(pod: &Pod) -> (SignedDuration, i32) {
    let note = |name: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(name));
    let duration = note(DURATION).and_then(|text| go_duration(text)).unwrap_or(DEFAULT_DURATION);
    let code = note(EXIT_CODE).and_then(|text| text.trim().parse::<u8>().ok()).unwrap_or(0);
    (duration, i32::from(code))
}

/// `1h2m3.5s`, as Go writes and reads it.
fn go_duration(text: &str) -> Option<SignedDuration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    if text.trim().is_empty() { None } else { SignedDuration::try_from_secs_f64(seconds).ok() }
}

/// An address of its own, made from the uid.
fn address(pod: &Pod) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let part = |at: usize| uid.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(1);
    format!("10.{}.{}.{}", part(0), part(2), part(4))
}

/// Where a pod is that an earlier simulation left.
fn recall(pod: &Pod) -> Containers {
    let mut seen = Containers::new();
    let Some(status) = &pod.status else { return seen };
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    for told in all {
        let state = told.state.clone().unwrap_or_default();
        let attempt = told.restart_count.max(0) as u32;
        let ended = state.terminated.or_else(|| told.last_state.clone()?.terminated);
        let run = match (state.running, ended) {
            (Some(running), _) => running.started_at.map(|at| Run::Running { since: at.0 }),
            (None, Some(end)) => end.finished_at.map(|finished| {
                let started_at = end.started_at.map(|t| t.0);
                let (reason, message) = (end.reason.unwrap_or_default(), end.message.unwrap_or_default());
                Run::Ended(Ended { attempt, code: end.exit_code, reason, message, started_at, finished_at: finished.0 })
            }),
            (None, None) => None,
        };
        let health = Health { started: Some(true), ready: Some(true), failed: None };
        if run.is_some() {
            seen.insert(told.name.clone(), Seen { run, attempt, health, ..Seen::default() });
        }
    }
    seen
}

struct Call {
    client: Client,
    pod: Arc<Pod>,
    room: Arc<Semaphore>,
}

impl Call {
    async fn write(self, patch: serde_json::Value, status: PodStatus) -> Outcome {
        let params = PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() };
        let (path, name) = self.place();
        let patch = Patch::Strategic(patch);
        match self.insist(|| Request::new(&path).patch_subresource("status", &name, &params, &patch)).await {
            true => Outcome::Written(Box::new(status)),
            false => Outcome::Lost,
        }
    }

    async fn remove(self) -> Outcome {
        let preconditions = Preconditions { uid: self.pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }.grace_period(0);
        let (path, name) = self.place();
        match self.insist(|| Request::new(&path).delete(&name, &params)).await {
            true => Outcome::Removed,
            false => Outcome::Lost,
        }
    }

    fn place(&self) -> (String, String) {
        let meta = &self.pod.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        (format!("/api/v1/namespaces/{namespace}/pods"), meta.name.clone().unwrap_or_default())
    }

    /// Makes a call until it is answered; false when the pod is not what it was.
    async fn insist(&self, request: impl Fn() -> Result<http::Request<Vec<u8>>, kube::core::request::Error>) -> bool {
        loop {
            let Ok(request) = request() else { return false };
            let answer = {
                let Ok(_place) = self.room.acquire().await else { return false };
                self.client.request_text(request).await
            };
            match answer {
                Ok(_) => return true,
                Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409 | 422 | 400 | 403) => {
                    if error.code != 404 {
                        tracing::debug!(pod = ?self.pod.metadata.name, %error, "a simulated pod could not be written");
                    }
                    return false;
                }
                Err(error) => {
                    tracing::debug!(pod = ?self.pod.metadata.name, %error, "a call is tried again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_does() {
        for (text, millis) in
            [("1s", 1000), ("1m30s", 90_000), ("1.5s", 1500), ("250ms", 250), ("0", 0), ("1h", 3_600_000)]
        {
            assert_eq!(go_duration(text), Some(SignedDuration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "1x", "s", "-1s", "1s "] {
            assert_eq!(go_duration(text).is_some(), text == "1s ", "{text:?}");
        }
    }
}
