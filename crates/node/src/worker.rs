//! One pod on this machine: decides when something happened, does what was decided, writes the status.
//!
//! A worker owns its pod from the first time the node hears of it until nothing of it is left. It makes no choices of its own:
//! those are in [`crate::decide`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use rustix::process::Signal as Posix;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::decide::{self, Note, Plan, Signal, Stop};
use crate::events::{container_reference, pod_reference};
use crate::hooks::{self, Moment};
use crate::launch::{Kit, Process, Start};
use crate::model::{BackOff, Containers, Health, PostStart, Run, Seen, Stopping, Trouble};
use crate::probes::{self, Finding};
use crate::reach::Reach;
use crate::status::DEADLINE_MESSAGE;
use crate::{volumes, write};

const RETRY: SignedDuration = SignedDuration::from_secs(10);
const WRITE_RETRY: SignedDuration = SignedDuration::from_secs(1);
/// What remains between the signals for a pod that the API has forgotten.
const GONE_GRACE: std::time::Duration = std::time::Duration::from_secs(2);

pub enum Message {
    Pod(Arc<Pod>),
    /// The API has forgotten the pod.
    Gone,
    Ended {
        container: String,
        attempt: u32,
    },
    Found {
        container: String,
        attempt: u32,
        finding: Finding,
    },
    /// A hook is done, with whatever success.
    Hooked {
        container: String,
        attempt: u32,
        moment: Moment,
        result: Result<(), String>,
    },
    /// Something that volumes or variables are made from may have changed.
    Refresh,
}

pub struct Worker {
    kit: Arc<Kit>,
    pod: Arc<Pod>,
    uid: String,
    seen: Containers,
    /// The status as we last wrote it; the API's copy may be older.
    written: Option<PodStatus>,
    told: BTreeSet<String>,
    prepared: bool,
    renew_at: Option<Timestamp>,
    /// Trouble of the pod as a whole, or of our calls.
    retry_at: Option<Timestamp>,
    removing: bool,
    probes: BTreeMap<String, probes::Guard>,
    /// Hooks that run; each ends with its container.
    hooks: BTreeMap<String, DropGuard>,
    /// What volumes are made from may be newer than they are.
    stale: bool,
    inbox: mpsc::UnboundedReceiver<Message>,
    outbox: mpsc::UnboundedSender<Message>,
}

impl Worker {
    /// A worker for `pod`, and where to tell it things.
    pub fn new(kit: Arc<Kit>, pod: Arc<Pod>) -> (Worker, mpsc::UnboundedSender<Message>) {
        let (outbox, inbox) = mpsc::unbounded_channel();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let worker = Worker {
            kit,
            pod,
            uid,
            seen: Containers::new(),
            written: None,
            told: BTreeSet::new(),
            prepared: false,
            renew_at: None,
            retry_at: None,
            removing: false,
            probes: BTreeMap::new(),
            hooks: BTreeMap::new(),
            stale: false,
            inbox,
            outbox: outbox.clone(),
        };
        (worker, outbox)
    }

    /// Returns when nothing of the pod is left.
    pub async fn run(mut self) {
        let (seen, running) = self.kit.recover(&self.pod, &self.uid).await;
        self.seen = seen;
        for (container, process) in running {
            let attempt = self.seen.get(&container).map_or(0, |s| s.attempt);
            self.watch(&container, attempt, process);
            self.start_probes(&container);
        }
        loop {
            self.refresh().await;
            let pod = self.known();
            let plan = decide::decide(&pod, &self.seen, &self.kit.host, self.kit.clock.now());
            let wake_at = plan.wake_at;
            let again = self.apply(&pod, plan).await;
            if again {
                continue;
            }
            let wake_at = [wake_at, self.renew_at, self.retry_at].into_iter().flatten().min();
            match self.next(wake_at).await {
                Some(Message::Gone) => break,
                Some(message) => self.hear(message),
                None => self.due().await,
            }
            while let Ok(message) = self.inbox.try_recv() {
                if matches!(message, Message::Gone) {
                    return self.end().await;
                }
                self.hear(message);
            }
        }
        self.end().await;
    }

    async fn next(&mut self, wake_at: Option<Timestamp>) -> Option<Message> {
        let Some(at) = wake_at else { return self.inbox.recv().await };
        let wait = at.duration_since(self.kit.clock.now()).try_into().unwrap_or_default();
        tokio::time::timeout(wait, self.inbox.recv()).await.ok().flatten()
    }

    /// The pod as far as it is known: our own last status is newer than what a watch may still bring.
    fn known(&self) -> Pod {
        let mut pod = (*self.pod).clone();
        if let Some(ours) = &self.written {
            let theirs = pod.status.take().unwrap_or_default();
            pod.status = Some(write::newest(ours, theirs));
        }
        pod
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Pod(pod) => {
                let notes = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
                self.stale |= volumes::tell_of_the_pod(&pod) && notes(&pod) != notes(&self.pod);
                self.pod = pod;
            }
            Message::Refresh => {
                self.stale = true;
                // What was missing may be there now.
                self.retry_at = None;
                let now = self.kit.clock.now();
                self.seen.values_mut().filter_map(|s| s.trouble.as_mut()).for_each(|trouble| trouble.retry_at = now);
            }
            Message::Gone => {}
            Message::Ended { container, attempt } => {
                self.probes.remove(&container);
                self.hooks.remove(&container);
                let record = self.kit.state.attempt(&self.uid, &container, attempt);
                let ended = self.kit.conclude(&record, attempt);
                if let Some(tree) = &self.kit.cgroups {
                    tree.remove_run(&self.uid, &container, attempt);
                }
                if let Some(seen) = self.seen.get_mut(&container).filter(|s| s.attempt == attempt) {
                    seen.run = Some(Run::Ended(ended));
                    (seen.stopping, seen.post_start) = (None, None);
                    seen.health = Health::default();
                }
            }
            Message::Found { container, attempt, finding } => {
                if let Some(seen) = self.seen.get_mut(&container).filter(|s| s.attempt == attempt && s.is_running()) {
                    finding.note(&mut seen.health);
                }
            }
            Message::Hooked { container, attempt, moment, result } => self.hooked(&container, attempt, moment, result),
        }
    }

    fn hooked(&mut self, container: &str, attempt: u32, moment: Moment, result: Result<(), String>) {
        let Some(seen) = self.seen.get_mut(container).filter(|s| s.attempt == attempt && s.is_running()) else {
            return;
        };
        self.hooks.remove(container);
        if let Err(why) = &result {
            let (reason, message) = match moment {
                Moment::PostStart => ("FailedPostStartHook", "PostStartHook failed"),
                Moment::PreStop => ("FailedPreStopHook", "PreStopHook failed"),
            };
            // Not in the event, as in kubelet: what a hook prints may be a secret.
            tracing::warn!(pod = self.uid, container, why, "{message}");
            self.kit.recorder.warning(container_reference(&self.pod, container), reason, message);
        }
        match moment {
            Moment::PostStart => {
                seen.post_start = result.is_err().then_some(PostStart::Failed);
                if result.is_ok() {
                    self.start_probes(container);
                }
            }
            Moment::PreStop => self.ask(container),
        }
    }

    /// The signal to stop.
    fn ask(&mut self, container: &str) {
        let Some(seen) = self.seen.get_mut(container) else { return };
        let record = self.kit.state.attempt(&self.uid, container, seen.attempt);
        if let Some(stopping) = &mut seen.stopping {
            stopping.asked = Some(self.kit.clock.now());
        }
        let signal = find(&self.pod, container).map_or(Posix::TERM, |c| hooks::stop_signal(&c));
        self.kit.signal(&record, signal);
    }

    /// Runs a hook beside everything else, for no longer than `limit`.
    fn hook(&mut self, name: &str, moment: Moment, limit: Option<std::time::Duration>) {
        let (Some(container), Some(seen)) = (find(&self.pod, name), self.seen.get(name)) else { return };
        let attempt = seen.attempt;
        let reach = Reach { kit: self.kit.clone(), container, run: self.kit.state.attempt(&self.uid, name, attempt) };
        let (outbox, stop, container) = (self.outbox.clone(), CancellationToken::new(), name.to_owned());
        self.hooks.insert(container.clone(), stop.clone().drop_guard());
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let running = hooks::run(&reach, moment);
            let result = match limit {
                // Out of time is out of luck, not a failure.
                Some(limit) => tokio::time::timeout(limit, running).await.unwrap_or(Ok(())),
                None => running.await,
            };
            let _ = outbox.send(Message::Hooked { container, attempt, moment, result });
        }));
    }

    /// Brings the files of configMap, secret and downwardAPI volumes up to date under the containers that read them.
    async fn refresh(&mut self) {
        if !std::mem::take(&mut self.stale) || !self.seen.values().any(Seen::is_running) {
            return;
        }
        if let Err(why) = self.kit.refresh(&self.known(), &self.uid).await {
            self.kit.recorder.warning(pod_reference(&self.pod), "FailedMount", why);
        }
    }

    async fn due(&mut self) {
        let now = self.kit.clock.now();
        self.retry_at = self.retry_at.filter(|at| *at > now);
        if self.renew_at.is_some_and(|at| at <= now) {
            self.renew_at = match self.kit.renew_tokens(&self.pod, &self.uid).await {
                Ok(next) => next,
                Err(why) => {
                    tracing::warn!(pod = self.uid, why, "a token could not be renewed");
                    Some(now + RETRY)
                }
            };
        }
    }

    /// Does what was decided. Whether to decide again at once, because something changed by it.
    async fn apply(&mut self, pod: &Pod, plan: Plan) -> bool {
        for stop in &plan.stop {
            self.stop(pod, stop);
        }
        for note in plan.notes {
            self.tell(pod, &note);
        }
        self.write(pod, plan.status).await;
        let mut changed = false;
        if !plan.start.is_empty() && self.retry_at.is_none() && self.prepare(pod).await {
            for name in plan.start {
                changed |= self.start(pod, &name).await;
            }
        }
        if plan.remove && !self.removing && self.retry_at.is_none() {
            self.remove().await;
        }
        changed
    }

    fn stop(&mut self, pod: &Pod, stop: &Stop) {
        let now = self.kit.clock.now();
        let Some(seen) = self.seen.get_mut(&stop.container) else { return };
        let record = self.kit.state.attempt(&self.uid, &stop.container, seen.attempt);
        match stop.signal {
            Signal::Terminate => {
                let about = container_reference(pod, &stop.container);
                self.kit.recorder.normal(about, "Killing", stop.because.clone());
                seen.stopping = Some(Stopping { since: now, asked: None, killed: false });
                let left = stop.until.duration_since(now).try_into().unwrap_or(std::time::Duration::ZERO);
                let hooked = find(pod, &stop.container).is_some_and(|c| Moment::PreStop.of(&c).is_some());
                match hooked && !left.is_zero() {
                    true => self.hook(&stop.container, Moment::PreStop, Some(left)),
                    false => self.ask(&stop.container),
                }
            }
            Signal::Kill => {
                if let Some(stopping) = &mut seen.stopping {
                    stopping.killed = true;
                }
                self.kit.signal(&record, Posix::KILL);
            }
        }
        self.probes.remove(&stop.container);
    }

    fn tell(&mut self, pod: &Pod, note: &Note) {
        match note {
            Note::BackOff { container } => {
                let attempt = self.seen.get(container).map_or(0, |s| s.attempt);
                if self.told.insert(format!("back-off {container} {attempt}")) {
                    let name = crate::model::full_name(pod);
                    let message = format!("Back-off restarting failed container {container} in pod {name}");
                    self.kit.recorder.warning(container_reference(pod, container), "BackOff", message);
                }
            }
            Note::DeadlineExceeded => {
                if self.told.insert("deadline".to_owned()) {
                    self.kit.recorder.normal(pod_reference(pod), "DeadlineExceeded", DEADLINE_MESSAGE);
                }
            }
        }
    }

    async fn prepare(&mut self, pod: &Pod) -> bool {
        if self.prepared {
            return true;
        }
        match self.kit.prepare(pod, &self.uid).await {
            Ok(renew_at) => {
                self.renew_at = renew_at;
                self.prepared = true;
                true
            }
            Err(why) => {
                self.kit.recorder.warning(pod_reference(pod), "FailedMount", why);
                self.retry_at = Some(self.kit.clock.now() + RETRY);
                false
            }
        }
    }

    /// Runs a container (again). Whether anything is different afterwards.
    async fn start(&mut self, pod: &Pod, name: &str) -> bool {
        let Some(container) = find(pod, name) else { return false };
        let now = self.kit.clock.now();
        let (attempt, previous, back_off) = match self.seen.get(name) {
            Some(Seen { run: Some(Run::Ended(ended)), back_off, .. }) => {
                (ended.attempt + 1, Some(ended.clone()), Some(BackOff::next(*back_off, ended.finished_at, now)))
            }
            Some(Seen { run: Some(Run::Running { .. }), .. }) => return false,
            _ => (0, None, None),
        };
        let secs = back_off.map_or(0, |b| b.secs);
        let launch = match self.kit.plan(pod, &self.uid, &container, attempt, secs).await {
            Ok(launch) => launch,
            Err(trouble) => return self.trouble(pod, name, trouble),
        };
        let about = || container_reference(pod, name);
        let image = container.image.as_deref().unwrap_or_default();
        let pulled = format!("Container image {image:?} already present on machine and can be accessed by the pod");
        self.kit.recorder.normal(about(), "Pulled", pulled);
        let record = self.kit.state.attempt(&self.uid, name, attempt);
        let (run, process) = match self.kit.start(&record, &launch).await {
            Ok(Start::Running { process, since }) => {
                self.kit.recorder.normal(about(), "Created", "Container created");
                self.kit.recorder.normal(about(), "Started", "Container started");
                (Run::Running { since }, Some(process))
            }
            Ok(Start::Failed { process, why }) => {
                self.kit.recorder.normal(about(), "Created", "Container created");
                self.kit.recorder.warning(about(), "Failed", format!("Error: {why}"));
                // The shim is writing that down, and then goes: the container never seems to run.
                process.wait().await;
                (Run::Ended(self.kit.conclude(&record, attempt)), None)
            }
            Err(error) => {
                let message = format!("the container's supervisor could not be started: {error}");
                let trouble = Trouble { reason: "RunContainerError".to_owned(), message, retry_at: now + RETRY };
                return self.trouble(pod, name, trouble);
            }
        };
        if let Some(old) = attempt.checked_sub(2) {
            self.kit.state.forget_attempt(&self.uid, name, old);
        }
        let hooked = process.is_some() && Moment::PostStart.of(&container).is_some();
        let post_start = hooked.then_some(PostStart::Runs);
        let seen = Seen { run: Some(run), attempt, previous, back_off, post_start, ..Seen::default() };
        self.seen.insert(name.to_owned(), seen);
        if let Some(process) = process {
            self.watch(name, attempt, process);
            match hooked {
                true => self.hook(name, Moment::PostStart, None),
                false => self.start_probes(name),
            }
        }
        true
    }

    fn trouble(&mut self, pod: &Pod, name: &str, trouble: Trouble) -> bool {
        let about = container_reference(pod, name);
        self.kit.recorder.warning(about, "Failed", format!("Error: {}", trouble.message));
        self.seen.entry(name.to_owned()).or_default().trouble = Some(trouble);
        true
    }

    /// Hears of the end of a run.
    fn watch(&self, container: &str, attempt: u32, process: Process) {
        let (outbox, container) = (self.outbox.clone(), container.to_owned());
        tokio::spawn(async move {
            process.wait().await;
            let _ = outbox.send(Message::Ended { container, attempt });
        });
    }

    fn start_probes(&mut self, name: &str) {
        let Some(container) = find(&self.pod, name) else { return };
        let Some(Seen { run: Some(Run::Running { since }), attempt, .. }) = self.seen.get(name) else { return };
        let (outbox, attempt, since) = (self.outbox.clone(), *attempt, *since);
        let report = {
            let name = name.to_owned();
            move |finding| drop(outbox.send(Message::Found { container: name.clone(), attempt, finding }))
        };
        let run = self.kit.state.attempt(&self.uid, name, attempt);
        let reach = Reach { kit: self.kit.clone(), container, run };
        let guard = probes::start(reach, self.pod.clone(), since, report);
        self.probes.insert(name.to_owned(), guard);
    }

    async fn write(&mut self, pod: &Pod, status: PodStatus) {
        if self.retry_at.is_some() && self.written.as_ref() == Some(&status) {
            return;
        }
        let Some(patch) = write::patch(pod, &status) else { return };
        let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or_default(), pod.metadata.name.as_deref());
        let api: Api<Pod> = Api::namespaced(self.kit.client.clone(), namespace);
        let params = PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() };
        match api.patch_status(name.unwrap_or_default(), &params, &Patch::Strategic(patch)).await {
            Ok(_) => self.written = Some(status),
            // It is gone, or another with the same name is there: the watch will say so.
            Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => {}
            Err(error) => {
                tracing::warn!(namespace, name, %error, "the status of a pod could not be written");
                self.retry_at = Some(self.kit.clock.now() + WRITE_RETRY);
            }
        }
    }

    /// Nothing runs: the API need not wait any longer.
    async fn remove(&mut self) {
        let meta = &self.pod.metadata;
        let (namespace, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let api: Api<Pod> = Api::namespaced(self.kit.client.clone(), namespace);
        let preconditions = Preconditions { uid: Some(self.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }.grace_period(0);
        match api.delete(name, &params).await {
            Ok(_) => self.removing = true,
            Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => self.removing = true,
            Err(error) => {
                tracing::warn!(namespace, name, %error, "a pod that has ended could not be deleted");
                self.retry_at = Some(self.kit.clock.now() + WRITE_RETRY);
            }
        }
    }

    /// Ends what still runs and leaves nothing behind.
    async fn end(mut self) {
        self.probes.clear();
        self.hooks.clear();
        for signal in [Posix::TERM, Posix::KILL] {
            let running: Vec<_> =
                self.seen.iter().filter(|(_, s)| s.is_running()).map(|(n, s)| (n.clone(), s.attempt)).collect();
            if running.is_empty() {
                break;
            }
            for (name, attempt) in running {
                self.kit.signal(&self.kit.state.attempt(&self.uid, &name, attempt), signal);
            }
            let grace = if signal == Posix::TERM { GONE_GRACE } else { GONE_GRACE * 30 };
            let _ = tokio::time::timeout(grace, async {
                while self.seen.values().any(Seen::is_running) {
                    match self.inbox.recv().await {
                        Some(message) => self.hear(message),
                        None => break,
                    }
                }
            })
            .await;
        }
        self.kit.forget(&self.uid);
    }
}

fn find(pod: &Pod, name: &str) -> Option<Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name).cloned()
}
