//! Starts containers and finds them again: from a pod's description to a [`Launch`], a shim, and how it all ended.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, BufReader};
use usher_env::Clock;

use crate::cgroup;
use crate::decide::Host;
use crate::env::{self, Needs, Objects, Variables};
use crate::events::Recorder;
use crate::fd::wait_readable;
use crate::model::{BackOff, Containers, Ended, Run, STATUS_UNKNOWN, Seen, Trouble};
use crate::record::{Attempt, Bind, Exit, Launch, PodRecord, State, User, View};
use crate::shim;
use crate::volumes::{self, PodDir};

/// How long until something that could not be created is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(10);
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const ANNOUNCED: &str = "USHER_VOLUMES";

/// Which way containers can be shown their volumes on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounting {
    Namespace,
    UserNamespace,
    None,
}

/// What every pod of a node shares.
pub struct Kit {
    pub client: Client,
    pub clock: Clock,
    pub recorder: Recorder,
    pub host: Host,
    pub state: State,
    /// Pods' own files, reachable for the user they run as.
    pub pod_dir: PathBuf,
    /// `None`: pods run as whoever runs the node.
    pub user: Option<User>,
    pub mounting: Mounting,
    pub cgroups: Option<cgroup::Tree>,
    pub api_address: Option<SocketAddr>,
    /// Pods outlive the node and are found again.
    pub survives: bool,
}

/// A container's shim, to be waited for.
pub enum Process {
    Child(Box<tokio::process::Child>),
    /// Started by a node before this one.
    Found(AsyncFd<std::os::fd::OwnedFd>),
    Over,
}

impl Process {
    pub async fn wait(self) {
        match self {
            Process::Child(mut child) => {
                // Waiting closes it, and a shim that dies with its node takes that for the node's end.
                let leash = child.stdin.take();
                drop(child.wait().await);
                drop(leash);
            }
            Process::Found(fd) => drop(fd.readable().await),
            Process::Over => {}
        }
    }
}

pub enum Start {
    Running {
        process: Process,
        since: Timestamp,
    },
    /// It could not even begin: the run is over.
    Failed {
        process: Process,
        why: String,
    },
}

fn config_error(reason: &str, message: String, now: Timestamp) -> Trouble {
    Trouble { reason: reason.to_owned(), message, retry_at: now + RETRY }
}

impl Kit {
    pub fn pod_dir(&self, uid: &str) -> PodDir {
        PodDir(self.pod_dir.join(uid))
    }

    /// Makes what a pod needs before its first container.
    pub async fn prepare(&self, pod: &Pod, uid: &str) -> Result<Option<Timestamp>, String> {
        let record = PodRecord {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            grace_secs: pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30),
        };
        let dir = self.pod_dir(uid);
        let make = || -> io::Result<()> {
            self.state.note_pod(uid, &record)?;
            // Who knows the name of a pod's directory may pass; nobody may look for it.
            open_dir(&self.pod_dir, 0o711)?;
            open_dir(&dir.0, 0o711)
        };
        make().map_err(|e| format!("error making pod data directories: {e}"))?;
        self.volumes(pod, &dir).make().await.map_err(|e| e.to_string())
    }

    pub async fn renew_tokens(&self, pod: &Pod, uid: &str) -> Result<Option<Timestamp>, String> {
        let dir = self.pod_dir(uid);
        self.volumes(pod, &dir).renew().await.map_err(|e| e.to_string())
    }

    pub async fn refresh(&self, pod: &Pod, uid: &str) -> Result<(), String> {
        let dir = self.pod_dir(uid);
        self.volumes(pod, &dir).refresh().await.map_err(|e| e.to_string())
    }

    fn volumes<'a>(&'a self, pod: &'a Pod, dir: &'a PodDir) -> volumes::Maker<'a> {
        // A mode of 0400 is meant for the container: where that would be root, it is the pods' user here.
        let owner = user_of(pod, &Container::default(), self.user.as_ref()).ok().flatten();
        let owner = owner.filter(|_| rustix::process::geteuid().is_root()).map(|user| (user.uid, user.gid));
        volumes::Maker { client: &self.client, pod, dir, host: &self.host, now: self.clock.now(), owner }
    }

    /// Puts together what one run of a container needs.
    pub async fn plan(
        &self,
        pod: &Pod,
        uid: &str,
        container: &Container,
        attempt: u32,
        back_off_secs: u32,
    ) -> Result<Launch, Trouble> {
        let now = self.clock.now();
        let wrong = |message: String| config_error("CreateContainerConfigError", message, now);
        let objects = self.fetch(pod, Needs::of_container(container)).await.map_err(wrong)?;
        let dir = self.pod_dir(uid);
        let own = dir.container(&container.name);
        let user = user_of(pod, container, self.user.as_ref()).map_err(wrong)?;
        let scratch = own.join("work");
        let message = own.join("termination-log");
        let make = || -> io::Result<()> {
            open_dir(&own, 0o711)?;
            open_dir(&scratch, 0o755)?;
            // Each run has a file of its own: the message of an earlier one is not this one's.
            let _ = fs::remove_file(&message);
            fs::write(&message, "")?;
            fs::set_permissions(&message, fs::Permissions::from_mode(0o666))?;
            if let Some(user) = &user {
                chown(&scratch, Some(user.uid), Some(user.gid))?;
            }
            Ok(())
        };
        make().map_err(|e| wrong(format!("cannot make the container's directory {}: {e}", own.display())))?;
        let cwd = match container.working_dir.as_deref().filter(|d| !d.is_empty()) {
            Some(dir) => PathBuf::from(dir),
            None => scratch,
        };
        let given = self.given(pod, container, &cwd, &dir);
        let variables =
            env::variables(pod, container, given, &objects, &self.host).map_err(|e| wrong(e.to_string()))?;
        let Some(argv) = env::command_line(container, &variables) else {
            let message = format!(
                "container {:?} has no command: images are recorded, not pulled, so the entrypoint of {:?} is not known; \
                 set command or args",
                container.name,
                container.image.as_deref().unwrap_or_default()
            );
            return Err(config_error("CreateContainerError", message, now));
        };
        let mut binds = self.binds(pod, container, &dir, &variables).map_err(wrong)?;
        let view = match self.mounting {
            Mounting::None => {
                self.link_volumes(&own, &binds).map_err(|e| wrong(format!("cannot link volumes: {e}")))?;
                binds.clear();
                View::Machine
            }
            mounting => {
                let root = own.join("root");
                open_dir(&root, 0o755).map_err(|e| wrong(format!("cannot make {}: {e}", root.display())))?;
                let path = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
                binds.push(Bind { source: message.clone(), target: path.into(), read_only: false });
                match mounting {
                    Mounting::Namespace => View::Mounts { root },
                    _ => View::UserMounts { root },
                }
            }
        };
        let cgroup = match &self.cgroups {
            Some(tree) => tree
                .create(uid, container, attempt)
                .inspect_err(|e| tracing::warn!(container = container.name, error = %e, "no limits: the cgroup could not be made"))
                .ok(),
            None => None,
        };
        Ok(Launch {
            argv,
            env: variables.into_iter().collect(),
            cwd,
            user,
            view,
            binds,
            cgroup,
            message: Some(message),
            message_from_log: container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError"),
            dies_with_node: !self.survives,
            back_off_secs,
        })
    }

    async fn fetch(&self, pod: &Pod, needs: Needs) -> Result<Objects, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut objects = Objects::default();
        for name in needs.config_maps {
            let found = Api::<ConfigMap>::namespaced(self.client.clone(), namespace).get_opt(&name).await;
            if let Some(found) = found.map_err(|e| e.to_string())? {
                objects.config_maps.insert(name, found);
            }
        }
        for name in needs.secrets {
            let found = Api::<Secret>::namespaced(self.client.clone(), namespace).get_opt(&name).await;
            if let Some(found) = found.map_err(|e| e.to_string())? {
                objects.secrets.insert(name, found);
            }
        }
        Ok(objects)
    }

    /// What a container's environment begins with.
    fn given(&self, pod: &Pod, container: &Container, cwd: &Path, dir: &PodDir) -> Variables {
        let spec = pod.spec.as_ref();
        let hostname = spec.and_then(|s| s.hostname.clone()).or_else(|| pod.metadata.name.clone()).unwrap_or_default();
        let mut given = BTreeMap::from([
            ("PATH".to_owned(), self.search_path()),
            ("HOME".to_owned(), cwd.display().to_string()),
            ("HOSTNAME".to_owned(), hostname),
        ]);
        if let Some(address) = self.api_address {
            let (host, port) = (address.ip().to_string(), address.port().to_string());
            let url = format!("tcp://{address}");
            for (name, value) in [
                ("KUBERNETES_SERVICE_HOST", &host),
                ("KUBERNETES_SERVICE_PORT", &port),
                ("KUBERNETES_SERVICE_PORT_HTTPS", &port),
                ("KUBERNETES_PORT", &url),
            ] {
                given.insert(name.to_owned(), value.clone());
            }
        }
        if self.mounting == Mounting::None {
            let root = dir.container(&container.name).join("volumes");
            given.insert(ANNOUNCED.to_owned(), root.display().to_string());
        }
        given
    }

    /// The node's own where pods run as the node's user; another user may not be able to go where root's leads.
    fn search_path(&self) -> String {
        let own = std::env::var("PATH").ok().filter(|_| self.user.is_none());
        own.unwrap_or_else(|| DEFAULT_PATH.to_owned())
    }

    fn binds(
        &self,
        pod: &Pod,
        container: &Container,
        dir: &PodDir,
        variables: &Variables,
    ) -> Result<Vec<Bind>, String> {
        let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
        let mut binds = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            let volume = volumes
                .iter()
                .find(|v| v.name == mount.name)
                .ok_or_else(|| format!("volume {:?} of container {:?} does not exist", mount.name, container.name))?;
            let mut source = volumes::source(dir, volume);
            let sub = match (&mount.sub_path, &mount.sub_path_expr) {
                (_, Some(text)) => Some(env::expand(text, |name| variables.get(name).cloned())),
                (Some(text), None) => Some(text.clone()),
                (None, None) => None,
            };
            if let Some(sub) = sub.filter(|s| !s.is_empty()) {
                source = volumes::below(&source, &sub)?;
                if !source.exists() {
                    open_dir(&source, 0o777).map_err(|e| format!("cannot make subPath {sub:?}: {e}"))?;
                }
            }
            let is_written = volume.empty_dir.is_some() || volume.host_path.is_some();
            let read_only = mount.read_only == Some(true) || !is_written;
            binds.push(Bind { source, target: PathBuf::from(&mount.mount_path), read_only });
        }
        Ok(binds)
    }

    /// Without a mount namespace: the mount paths as links below a directory that the container is told.
    fn link_volumes(&self, own: &Path, binds: &[Bind]) -> io::Result<()> {
        let root = own.join("volumes");
        let _ = fs::remove_dir_all(&root);
        open_dir(&root, 0o755)?;
        for bind in binds {
            let at = root.join(bind.target.strip_prefix("/").unwrap_or(&bind.target));
            if let Some(parent) = at.parent() {
                open_dir(parent, 0o755)?;
            }
            // A mount inside another has no place of its own.
            let _ = std::os::unix::fs::symlink(&bind.source, &at);
        }
        Ok(())
    }

    /// Runs a container once, under a shim. Returns when it runs, or when it is known that it cannot.
    pub async fn start(&self, attempt: &Attempt, launch: &Launch) -> io::Result<Start> {
        let _ = fs::remove_dir_all(attempt.dir());
        attempt.create(launch)?;
        let lock = attempt.lock()?.ok_or_else(|| io::Error::other("another shim holds this run"))?;
        let mut command = tokio::process::Command::new("/proc/self/exe");
        command.arg0("usher").arg(shim::SHIM).arg(attempt.dir()).env_clear();
        let stdin = if launch.dies_with_node { Stdio::piped() } else { Stdio::null() };
        let mut child = command.stdin(stdin).stdout(lock).stderr(Stdio::piped()).kill_on_drop(false).spawn()?;
        drop(command);
        let mut line = String::new();
        if let Some(stderr) = child.stderr.take() {
            BufReader::new(stderr).read_line(&mut line).await?;
        }
        let process = Process::Child(Box::new(child));
        if line.trim_end() == "started" {
            let since = attempt.started().map_or_else(|| self.clock.now(), |s| s.at);
            return Ok(Start::Running { process, since });
        }
        let why = line.strip_prefix("failed ").map(str::trim_end).unwrap_or("the supervising process ended").to_owned();
        Ok(Start::Failed { process, why })
    }

    /// How a run ended, once its shim is gone. Without a record of it, it ended unseen, and is made sure to have.
    pub fn conclude(&self, attempt: &Attempt, number: u32) -> Ended {
        if let Some(exit) = attempt.exit() {
            return ended(&exit, number);
        }
        let started = attempt.started();
        if let Some(started) = &started
            && started.process.is_alive()
        {
            signal_group(started.process.pid, Signal::KILL);
        }
        let exit = Exit {
            code: 137,
            signal: None,
            started_at: started.map(|s| s.at),
            finished_at: self.clock.now(),
            oom_killed: false,
            start_error: None,
            message: String::new(),
        };
        let _ = attempt.write_exit(&exit);
        let message = "The container could not be located when the node was started again".to_owned();
        Ended { reason: STATUS_UNKNOWN.to_owned(), message, ..ended(&exit, number) }
    }

    pub fn signal(&self, attempt: &Attempt, signal: Signal) {
        if attempt.exit().is_none()
            && let Some(started) = attempt.started()
            && started.process.is_alive()
        {
            signal_group(started.process.pid, signal);
        }
    }

    /// What an earlier node left running, or how it ended.
    pub async fn recover(&self, pod: &Pod, uid: &str) -> (Containers, Vec<(String, Process)>) {
        let mut seen = Containers::new();
        let mut running = Vec::new();
        for (container, attempts) in self.state.containers(uid) {
            let mut attempts = attempts.into_iter().rev();
            let Some(number) = attempts.next() else { continue };
            let attempt = self.state.attempt(uid, &container, number);
            let previous = attempts.next().map(|n| self.conclude(&self.state.attempt(uid, &container, n), n));
            let (run, process) = self.find(&attempt, number).await;
            let back_off_secs = attempt.launch().map_or(0, |l| l.back_off_secs);
            let updated = attempt.started().map_or_else(|| self.clock.now(), |s| s.at);
            if run.is_none() {
                self.state.forget_attempt(uid, &container, number);
            }
            let (run, number) = match (run, &previous) {
                (None, Some(previous)) => (Some(Run::Ended(previous.clone())), previous.attempt),
                (run, _) => (run, number),
            };
            let previous = previous.filter(|p| p.attempt != number);
            let back_off = (back_off_secs > 0).then_some(BackOff { secs: back_off_secs, updated });
            seen.insert(container.clone(), Seen { run, attempt: number, previous, back_off, ..Seen::default() });
            running.extend(process.map(|p| (container, p)));
        }
        self.recall(pod, &mut seen);
        (seen, running)
    }

    async fn find(&self, attempt: &Attempt, number: u32) -> (Option<Run>, Option<Process>) {
        loop {
            if let Some(exit) = attempt.exit() {
                return (Some(Run::Ended(ended(&exit, number))), None);
            }
            match attempt.lock() {
                Ok(None) => {
                    // The shim lives; it may be so young that it has written nothing yet.
                    if let Some(started) = attempt.started()
                        && let Some(process) = watch_process(started.shim.pid)
                    {
                        return (Some(Run::Running { since: started.at }), Some(process));
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                _ if attempt.exit().is_some() => {}
                _ if attempt.started().is_some() => return (Some(Run::Ended(self.conclude(attempt, number))), None),
                // Nothing is run before its start is on record.
                _ => return (None, None),
            }
        }
    }

    /// What the API knows to have run, but nothing is kept of here, is not run again as if it were new.
    fn recall(&self, pod: &Pod, seen: &mut Containers) {
        let Some(status) = &pod.status else { return };
        let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        for told in all {
            if seen.get(&told.name).is_some_and(|s| s.run.is_some()) {
                continue;
            }
            let state = told.state.clone().unwrap_or_default();
            let attempt = told.restart_count.max(0) as u32;
            let run = if let Some(end) = state.terminated {
                Ended {
                    attempt,
                    code: end.exit_code,
                    reason: end.reason.unwrap_or_default(),
                    message: end.message.unwrap_or_default(),
                    started_at: end.started_at.map(|t| t.0),
                    finished_at: end.finished_at.map_or_else(|| self.clock.now(), |t| t.0),
                }
            } else if let Some(running) = state.running {
                Ended {
                    attempt,
                    code: 137,
                    reason: STATUS_UNKNOWN.to_owned(),
                    message: "The container could not be located when the node was started again".to_owned(),
                    started_at: running.started_at.map(|t| t.0),
                    finished_at: self.clock.now(),
                }
            } else {
                continue;
            };
            seen.insert(told.name.clone(), Seen { run: Some(Run::Ended(run)), attempt, ..Seen::default() });
        }
    }

    /// Nothing is kept of a pod that the API has forgotten.
    pub fn forget(&self, uid: &str) {
        if let Some(tree) = &self.cgroups {
            tree.remove_pod(uid);
        }
        self.state.forget_pod(uid);
        let _ = fs::remove_dir_all(self.pod_dir(uid).0);
    }
}

fn ended(exit: &Exit, attempt: u32) -> Ended {
    let reason = match exit {
        Exit { start_error: Some(_), .. } => "StartError",
        Exit { oom_killed: true, .. } => "OOMKilled",
        Exit { code: 0, .. } => "Completed",
        _ => "Error",
    };
    Ended {
        attempt,
        code: exit.code,
        reason: reason.to_owned(),
        message: exit.message.clone(),
        started_at: exit.started_at,
        finished_at: exit.finished_at,
    }
}

pub fn watch_process(pid: i32) -> Option<Process> {
    let pid = Pid::from_raw(pid)?;
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(fd) => wait_readable(fd).ok().map(Process::Found),
        Err(_) => Some(Process::Over),
    }
}

fn signal_group(leader: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(leader) {
        let _ = kill_process_group(group, signal);
    }
}

/// Makes a directory with this mode, whatever the umask.
fn open_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Whom a container runs as on a node that may choose. Never root, which could read the node's keys, unless the node's
/// owner made root the pods' user.
pub fn user_of(pod: &Pod, container: &Container, default: Option<&User>) -> Result<Option<User>, String> {
    let Some(default) = default else { return Ok(None) };
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let own = container.security_context.as_ref();
    let uid = own.and_then(|s| s.run_as_user).or_else(|| of_pod.and_then(|s| s.run_as_user));
    let gid = own.and_then(|s| s.run_as_group).or_else(|| of_pod.and_then(|s| s.run_as_group));
    let chosen = |what: &str, wanted: Option<i64>, default: u32| match wanted {
        None => Ok(default),
        Some(0) if default != 0 => Err(format!(
            "container {:?} asks for {what} 0, but this node runs no pod as root; choose another, or start usher with --pod-user root",
            container.name
        )),
        Some(id) => u32::try_from(id).map_err(|_| format!("{what} {id} is out of range")),
    };
    let uid = chosen("runAsUser", uid, default.uid)?;
    let gid = chosen("runAsGroup", gid, default.gid)?;
    if uid == 0 && own.and_then(|s| s.run_as_non_root).or_else(|| of_pod.and_then(|s| s.run_as_non_root)) == Some(true)
    {
        return Err("container has runAsNonRoot and image will run as root".to_owned());
    }
    let more = of_pod.into_iter().flat_map(|s| s.supplemental_groups.iter().flatten().chain(&s.fs_group));
    let groups = more.filter_map(|g| u32::try_from(*g).ok()).filter(|g| *g != 0 || default.gid == 0).collect();
    Ok(Some(User { uid, gid, groups }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_container_becomes_root_by_asking() {
        let user = |pod_context, container_context, default| {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"containers": [], "securityContext": pod_context}})).unwrap();
            let container = serde_json::from_value(json!({"name": "c", "securityContext": container_context})).unwrap();
            let default = User { uid: default, gid: default, groups: vec![] };
            user_of(&pod, &container, Some(&default)).map(|u| u.map(|u| (u.uid, u.gid, u.groups)))
        };
        assert_eq!(user(json!({}), json!({}), 65534), Ok(Some((65534, 65534, vec![]))));
        assert_eq!(user(json!({"runAsUser": 7}), json!({"runAsGroup": 8}), 65534), Ok(Some((7, 8, vec![]))));
        assert_eq!(
            user(json!({"fsGroup": 9, "supplementalGroups": [0, 10]}), json!({}), 1),
            Ok(Some((1, 1, vec![10, 9])))
        );
        for (pod, container) in [(json!({"runAsUser": 0}), json!({})), (json!({}), json!({"runAsGroup": 0}))] {
            assert!(user(pod, container, 65534).unwrap_err().contains("--pod-user"));
        }
        assert_eq!(user(json!({"runAsUser": 0}), json!({}), 0), Ok(Some((0, 0, vec![]))));
        assert!(user(json!({"runAsNonRoot": true}), json!({}), 0).is_err());
    }
}
