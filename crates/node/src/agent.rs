//! This machine as a node: registers it, keeps its lease, and gives every pod bound to it a worker.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use usher_env::Clock;

use crate::cgroup;
use crate::decide::Host;
use crate::events::Recorder;
use crate::follow::{Change, Which, follow};
use crate::launch::{Kit, Mounting};
use crate::machine::{Machine, node_name};
use crate::record::{State, User};
use crate::register;
use crate::shim;
use crate::volumes::{Source, sources};
use crate::worker::{Message, Worker};

#[derive(Clone, Debug)]
pub struct Options {
    /// What the node is called; otherwise after the host.
    pub name: Option<String>,
    /// Private: records of what runs, and logs.
    pub state_dir: PathBuf,
    /// Pods' volumes and working directories; the user that pods run as must be able to get there.
    pub pod_dir: PathBuf,
    /// Whom pods run as. Only root can choose; `None` is whoever runs the node.
    pub user: Option<User>,
    /// Where the API is served, for programs in pods.
    pub api_address: Option<SocketAddr>,
    /// Whether pods keep running when the node stops, to be found again; otherwise they end with it.
    pub survives: bool,
}

impl User {
    /// `name`, `uid` or `uid:gid`, with names from the machine's user database.
    pub fn parse(text: &str) -> Result<User, String> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} is not a number"));
        if let Some((uid, gid)) = text.split_once(':') {
            return Ok(User { uid: number(uid)?, gid: number(gid)?, groups: Vec::new() });
        }
        if let Ok(uid) = text.parse() {
            return Ok(User { uid, gid: uid, groups: Vec::new() });
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let fields = users.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|f| f.first() == Some(&text));
        match fields.as_deref() {
            Some([_, _, uid, gid, ..]) => Ok(User { uid: number(uid)?, gid: number(gid)?, groups: Vec::new() }),
            _ => Err(format!("there is no user {text:?} on this machine")),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot keep the node's state in {}: {source}", dir.display())]
    State { dir: PathBuf, source: io::Error },
}

/// The running node. Dropping it stops it without waiting; pods go on if they survive.
#[must_use]
pub struct Node {
    pub name: String,
    pub state: State,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Node {
    /// Starts the node on the current tokio runtime. Processes that an earlier one left are found again.
    pub async fn start(client: Client, clock: Clock, options: Options) -> Result<Node, StartError> {
        let state = State::open(&options.state_dir)
            .map_err(|source| StartError::State { dir: options.state_dir.clone(), source })?;
        let machine = Machine::look(&options.pod_dir);
        let name = options.name.clone().unwrap_or_else(|| node_name(&machine.hostname));
        let mounting = mounting(&options.state_dir).await;
        let cgroups = cgroup::Tree::open(&name)
            .inspect_err(|why| tracing::warn!(why, "pods run without cpu and memory limits"))
            .ok();
        let (recorder, writing) = Recorder::new(client.clone(), clock.clone(), name.clone());
        let kit = Kit {
            client: client.clone(),
            clock: clock.clone(),
            recorder: recorder.clone(),
            host: Host { ip: machine.ip.clone(), allocatable: machine.allocatable() },
            state: state.clone(),
            pod_dir: options.pod_dir,
            user: options.user,
            mounting,
            cgroups,
            api_address: options.api_address,
            survives: options.survives,
        };
        say_whose_rights(&kit);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let until = |stop: &CancellationToken| stop.clone();
        tasks.spawn({
            let stop = until(&stop);
            async move {
                stop.run_until_cancelled(writing).await;
            }
        });
        tasks.spawn({
            let (stop, name) = (until(&stop), name.clone());
            let registration = register::Registration { client: client.clone(), clock, machine, name, recorder };
            async move {
                stop.run_until_cancelled(registration.keep()).await;
            }
        });
        tasks.spawn({
            let (stop, name) = (until(&stop), name.clone());
            run_pods(Arc::new(kit), client, name, stop)
        });
        Ok(Node { name, state, stop, tasks })
    }

    /// Stops looking after pods, and returns when that is done. Those that survive keep running; the others are ended.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Every pod of this node has one worker, from when it is first seen until nothing of it is left.
async fn run_pods(kit: Arc<Kit>, client: Client, name: String, stop: CancellationToken) {
    let (tell, mut changes) = mpsc::unbounded_channel::<Change<Pod>>();
    let fields = format!("spec.nodeName={name}");
    let (say, mut sources) = mpsc::unbounded_channel();
    for (source, path) in [(Source::ConfigMap, "/api/v1/configmaps"), (Source::Secret, "/api/v1/secrets")] {
        let (client, say, stop) = (client.clone(), say.clone(), stop.clone());
        tokio::spawn(async move {
            let follow =
                follow(client, path, Which::default(), |change: Change<Named>| drop(say.send((source, change))));
            stop.run_until_cancelled(follow).await;
        });
    }
    drop(say);
    let following = tokio::spawn({
        let stop = stop.clone();
        async move {
            let ours = Which { fields: Some(&fields), ..Which::default() };
            let follow = follow(client, "/api/v1/pods", ours, |change| drop(tell.send(change)));
            stop.run_until_cancelled(follow).await;
        }
    });
    let mut pods = Pods { kit, workers: HashMap::new(), sources: HashMap::new(), tasks: JoinSet::new() };
    let mut first = true;
    loop {
        tokio::select! {
            Some((source, change)) = sources.recv() => pods.refresh(source, &change),
            change = changes.recv() => match change {
                None => break,
                Some(Change::Listed(list)) => {
                    pods.keep_only(&list);
                    if first {
                        pods.end_orphans(&list);
                        first = false;
                    }
                    list.into_iter().for_each(|pod| pods.tell(pod));
                }
                Some(Change::Applied(pod)) => pods.tell(pod),
                Some(Change::Deleted(pod)) => pods.gone(pod.metadata.uid.as_deref().unwrap_or_default()),
            },
            Some(ended) = pods.tasks.join_next() => {
                if let Ok(uid) = ended {
                    pods.workers.remove(&uid);
                    pods.sources.remove(&uid);
                }
            }
            () = stop.cancelled() => break,
        }
    }
    following.abort();
    pods.stop().await;
}

/// Of an object that volumes and variables are made from, all that matters here.
#[derive(serde::Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(serde::Deserialize)]
struct Name {
    namespace: String,
    name: String,
}

struct Pods {
    kit: Arc<Kit>,
    workers: HashMap<String, mpsc::UnboundedSender<Message>>,
    /// What the volumes and variables of each pod are made from, and in which namespace.
    sources: HashMap<String, (String, BTreeSet<(Source, String)>)>,
    tasks: JoinSet<String>,
}

impl Pods {
    fn tell(&mut self, pod: Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let pod = Arc::new(pod);
        if let Some(worker) = self.workers.get(&uid) {
            let _ = worker.send(Message::Pod(pod));
            return;
        }
        self.sources.insert(uid.clone(), (pod.metadata.namespace.clone().unwrap_or_default(), sources(&pod)));
        let (worker, outbox) = Worker::new(self.kit.clone(), pod);
        self.workers.insert(uid.clone(), outbox);
        self.tasks.spawn(async move {
            worker.run().await;
            uid
        });
    }

    /// Tells the pods that are concerned by what has changed; after a gap nobody knows what has.
    fn refresh(&self, source: Source, change: &Change<Named>) {
        let concerns = |(namespace, of): &(String, BTreeSet<(Source, String)>)| match change {
            Change::Listed(_) => of.iter().any(|(kind, _)| *kind == source),
            Change::Applied(Named { metadata }) | Change::Deleted(Named { metadata }) => {
                metadata.namespace == *namespace && of.contains(&(source, metadata.name.clone()))
            }
        };
        for (uid, _) in self.sources.iter().filter(|(_, sources)| concerns(sources)) {
            if let Some(worker) = self.workers.get(uid) {
                let _ = worker.send(Message::Refresh);
            }
        }
    }

    fn gone(&self, uid: &str) {
        if let Some(worker) = self.workers.get(uid) {
            let _ = worker.send(Message::Gone);
        }
    }

    fn keep_only(&self, list: &[Pod]) {
        let there: std::collections::HashSet<_> = list.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
        self.workers.keys().filter(|uid| !there.contains(uid.as_str())).for_each(|uid| self.gone(uid));
    }

    /// What runs here of pods that the API forgot while nobody looked.
    fn end_orphans(&mut self, list: &[Pod]) {
        let there: std::collections::HashSet<_> = list.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
        for uid in self.kit.state.pods().into_iter().filter(|uid| !there.contains(uid.as_str())) {
            let record = self.kit.state.pod(&uid);
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid.clone());
            pod.metadata.name = record.as_ref().map(|r| r.name.clone());
            pod.metadata.namespace = record.map(|r| r.namespace);
            // Nothing may be started of it meanwhile: it is on its way out.
            pod.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.kit.clock.now()));
            let (worker, outbox) = Worker::new(self.kit.clone(), Arc::new(pod));
            let _ = outbox.send(Message::Gone);
            self.workers.insert(uid.clone(), outbox);
            self.tasks.spawn(async move {
                worker.run().await;
                uid
            });
        }
    }

    async fn stop(mut self) {
        if self.kit.survives {
            self.tasks.abort_all();
        } else {
            self.workers.values().for_each(|worker| drop(worker.send(Message::Gone)));
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Tries in a process of its own whether volumes can be shown at their mount paths.
async fn mounting(dir: &std::path::Path) -> Mounting {
    let root = dir.join("check");
    let _ = crate::record::private_dir(&root);
    let mut command = tokio::process::Command::new("/proc/self/exe");
    command.arg0("usher").arg(shim::CHECK).arg(&root).env_clear().stdin(std::process::Stdio::null());
    let output = tokio::time::timeout(Duration::from_secs(10), command.output()).await;
    let why = match output {
        Ok(Ok(output)) if output.status.success() => {
            return if rustix::process::geteuid().is_root() { Mounting::Namespace } else { Mounting::UserNamespace };
        }
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer within 10 s".to_owned(),
    };
    tracing::warn!(
        why,
        "volumes cannot be mounted for pods here: they find them below $USHER_VOLUMES instead of at their mount paths"
    );
    Mounting::None
}

fn say_whose_rights(kit: &Kit) {
    let own = rustix::process::geteuid().as_raw();
    match &kit.user {
        Some(user) if user.uid == 0 => {
            tracing::warn!(
                "pods run as root and can read everything on this machine, the keys in the data directory included"
            );
        }
        Some(user) => tracing::info!(uid = user.uid, gid = user.gid, "pods run as this user"),
        None => tracing::warn!(
            uid = own,
            "pods run with the rights of the user who started usher, and can read that user's files, the keys in the data \
             directory included; started as root, usher runs them as another user"
        ),
    }
}
