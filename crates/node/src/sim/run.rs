//! The simulation: one watch for all pods, one timer for what is due next, and writes of many pods at a time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use usher_env::Clock;

use super::config::Group;
use super::nodes;
use super::part::{self, Part};
use crate::decide::{self, Host};
use crate::follow::{Change, Which, follow};
use crate::model::{BackOff, Containers, Ended, Health, Run, Seen, is_sidecar};
use crate::write;

/// Calls to the API at a time: enough to keep its disk busy, few enough to leave room for others.
pub(super) const CALLS: usize = 16;
pub(super) const RETRY: Duration = Duration::from_millis(20);
/// The pause between tries grows to this: a server that is away or sheds load is not helped by fifty calls a second.
const RETRY_CAP: Duration = Duration::from_secs(1);
/// A conflict is tried again so often. The server itself has then tried several times, unless the pod is another one.
const CONFLICTS: u32 = 5;
const TERMINATED: i32 = 143;

/// Running simulated nodes; dropping it stops them.
#[must_use]
pub struct Simulation {
    names: Arc<HashSet<String>>,
    registered: CancellationToken,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Simulation {
    /// Registers the nodes and runs the pods that are bound to them, on the current tokio runtime. The nodes promise no
    /// heartbeats and send none.
    pub fn start(client: Client, clock: Clock, groups: Vec<Group>) -> Simulation {
        Simulation::begin(client, clock, groups, false)
    }

    /// The same with Leases that are renewed as kubelet renews its own, for a cluster that watches over its nodes.
    pub fn with_heartbeats(client: Client, clock: Clock, groups: Vec<Group>) -> Simulation {
        Simulation::begin(client, clock, groups, true)
    }

    fn begin(client: Client, clock: Clock, groups: Vec<Group>, heartbeats: bool) -> Simulation {
        let names: Arc<HashSet<String>> = Arc::new(groups.iter().flat_map(Group::names).collect());
        let (stop, registered) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (client, clock, stop, registered) = (client.clone(), clock.clone(), stop.clone(), registered.clone());
            let keep = async move {
                nodes::register(&client, &clock, &groups).await;
                registered.cancel();
                if heartbeats {
                    nodes::keep_alive(client, clock, groups).await;
                }
            };
            async move {
                stop.run_until_cancelled(keep).await;
            }
        });
        tasks.spawn({
            let (names, stop) = (names.clone(), stop.clone());
            async move {
                stop.run_until_cancelled(run(client, clock, names)).await;
            }
        });
        Simulation { names, registered, stop, tasks }
    }

    /// The names of the simulated nodes.
    pub fn names(&self) -> Arc<HashSet<String>> {
        self.names.clone()
    }

    /// Until every node is registered and ready.
    pub async fn registered(&self) {
        self.registered.cancelled().await;
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

async fn run(client: Client, clock: Clock, names: Arc<HashSet<String>>) {
    let (tell, mut changes) = mpsc::unbounded_channel::<Change<Pod>>();
    let following = {
        let client = client.clone();
        let bound = Which { fields: Some("spec.nodeName!="), ..Which::default() };
        async move { follow(client, "/api/v1/pods", bound, |change| drop(tell.send(change))).await }
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
            let mut plan = decide::decide(&self.pod, &self.seen, &host, now);
            let stops_at = part::stops_at(&self.pod).filter(|at| *at > now);
            if plan.start.is_empty() && (plan.stop.is_empty() || stops_at.is_some()) {
                plan.wake_at = [plan.wake_at, stops_at].into_iter().flatten().min();
                return plan;
            }
            for name in &plan.start {
                self.start(name, now);
            }
            for stop in plan.stop.iter().filter(|_| stops_at.is_none()) {
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
        let Part { duration, code } = part::of(&self.pod);
        let mains = spec.into_iter().flat_map(|s| &s.containers).map(move |c| (c, duration, code));
        inits.chain(mains).filter_map(|(container, duration, code): (&Container, _, _)| {
            let Some(Run::Running { since }) = self.seen.get(&container.name)?.run else { return None };
            Some((container.name.as_str(), since.checked_add(duration).ok()?, code))
        })
    }
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
        let (mut pause, mut conflicts) = (RETRY, 0);
        loop {
            let Ok(request) = request() else { return false };
            let answer = {
                let Ok(_place) = self.room.acquire().await else { return false };
                self.client.request_text(request).await
            };
            match answer {
                Ok(_) => return true,
                Err(kube::Error::Api(error)) if error.code == 409 && conflicts < CONFLICTS => {
                    conflicts += 1;
                    tokio::time::sleep(RETRY).await;
                }
                Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409 | 422 | 400 | 403) => {
                    if error.code != 404 {
                        tracing::debug!(pod = ?self.pod.metadata.name, %error, "a simulated pod could not be written");
                    }
                    return false;
                }
                Err(error) => {
                    tracing::debug!(pod = ?self.pod.metadata.name, %error, "a call is tried again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_CAP);
                }
            }
        }
    }
}
