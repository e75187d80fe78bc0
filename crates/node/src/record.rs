//! What is kept on disk about each run of a container, so that a node that was killed finds its processes again.
//!
//! `<state>/pods/<pod uid>/pod.json` says whose processes these are; `<state>/pods/<pod uid>/<container>/<attempt>/` holds
//! one run: `launch.json` (written by the node before anything starts), `started.json` and `exit.json` (written by the shim),
//! `lock` (held by the shim for as long as it lives) and `log`. A run whose lock is free and that has no exit record ended
//! unseen: the machine or the shim was killed. Nothing here decides what follows from that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Everything the shim needs to run one container once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub user: Option<User>,
    pub view: View,
    pub binds: Vec<Bind>,
    pub cgroup: Option<PathBuf>,
    /// Where, on this machine, the container's termination message file is.
    pub message: Option<PathBuf>,
    /// Without a message file, the end of a failed container's output is its message.
    pub message_from_log: bool,
    /// Kill the container when the node's process goes: nobody would find it again.
    pub dies_with_node: bool,
    /// The wait before the next restart that was in force when this run began.
    pub back_off_secs: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// How a container sees its volumes at their mount paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum View {
    /// Not at all: it sees the machine as it is, and finds its volumes by an environment variable.
    Machine,
    /// In a mount namespace, on a root of its own put together in this directory.
    Mounts { root: PathBuf },
    /// The same inside a user namespace, for a node that is not root.
    UserMounts { root: PathBuf },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The leader of the container's session and process group.
    pub process: ProcessId,
    pub shim: ProcessId,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// As a shell would say it: 128 and the signal for one that was killed.
    pub code: i32,
    pub signal: Option<i32>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    pub oom_killed: bool,
    /// Why it could not be started at all.
    pub start_error: Option<String>,
    pub message: String,
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// In clock ticks after the boot, from `/proc/PID/stat`.
    pub start_ticks: u64,
    pub boot: String,
}

impl ProcessId {
    pub fn of(pid: i32) -> io::Result<ProcessId> {
        Ok(ProcessId { pid, start_ticks: start_ticks(pid)?, boot: boot_id() })
    }

    pub fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_ticks(&stat).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is not understood")))
}

/// Field 22. The second field is a name that may contain anything, parentheses included.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The directory of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt(PathBuf);

impl Attempt {
    pub fn at(dir: impl Into<PathBuf>) -> Attempt {
        Attempt(dir.into())
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }

    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    pub fn create(&self, launch: &Launch) -> io::Result<()> {
        private_dir(&self.0)?;
        write_record(&self.0.join("launch.json"), launch)
    }

    pub fn launch(&self) -> io::Result<Launch> {
        read_record(&self.0.join("launch.json"))
    }

    pub fn write_started(&self, started: &Started) -> io::Result<()> {
        write_record(&self.0.join("started.json"), started)
    }

    pub fn started(&self) -> Option<Started> {
        read_record(&self.0.join("started.json")).ok()
    }

    pub fn write_exit(&self, exit: &Exit) -> io::Result<()> {
        write_record(&self.0.join("exit.json"), exit)
    }

    pub fn exit(&self) -> Option<Exit> {
        read_record(&self.0.join("exit.json")).ok()
    }

    /// Takes the lock that says "a shim lives". `None`: another process holds it.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let file = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(self.0.join("lock"))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whose processes are below a pod's directory: enough to end them when the API has forgotten the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    pub namespace: String,
    pub name: String,
    pub grace_secs: i64,
}

/// The node's private directory.
#[derive(Clone, Debug)]
pub struct State(PathBuf);

impl State {
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<State> {
        let dir = dir.into();
        private_dir(&dir.join("pods"))?;
        Ok(State(dir))
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.0.join("pods").join(uid)
    }

    pub fn attempt(&self, uid: &str, container: &str, attempt: u32) -> Attempt {
        Attempt(self.pod_dir(uid).join(container).join(attempt.to_string()))
    }

    pub fn note_pod(&self, uid: &str, pod: &PodRecord) -> io::Result<()> {
        let dir = self.pod_dir(uid);
        private_dir(&dir)?;
        write_record(&dir.join("pod.json"), pod)
    }

    pub fn pod(&self, uid: &str) -> Option<PodRecord> {
        read_record(&self.pod_dir(uid).join("pod.json")).ok()
    }

    /// The uids of all pods that something is kept of.
    pub fn pods(&self) -> Vec<String> {
        names(&self.0.join("pods"))
    }

    /// The containers of a pod and their attempts, oldest first.
    pub fn containers(&self, uid: &str) -> Vec<(String, Vec<u32>)> {
        let dir = self.pod_dir(uid);
        names(&dir)
            .into_iter()
            .filter(|name| dir.join(name).is_dir())
            .map(|name| {
                let mut attempts: Vec<u32> = names(&dir.join(&name)).iter().filter_map(|n| n.parse().ok()).collect();
                attempts.sort_unstable();
                (name, attempts)
            })
            .collect()
    }

    pub fn forget_pod(&self, uid: &str) {
        let _ = fs::remove_dir_all(self.pod_dir(uid));
    }

    /// Only the last two runs of a container can be asked about.
    pub fn forget_attempt(&self, uid: &str, container: &str, attempt: u32) {
        let _ = fs::remove_dir_all(self.attempt(uid, container, attempt).dir());
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

pub fn private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn read_record<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)
}

/// Whole or not at all, for readers and after a kill.
fn write_record<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(record).map_err(io::Error::other)?)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=30).map(|n| n.to_string()).collect();
        for name in ["sh", "a) b", "(x) 1 2 3"] {
            assert_eq!(parse_start_ticks(&format!("7 ({name}) {}", fields.join(" "))), Some(22), "{name}");
        }
        assert_eq!(parse_start_ticks("7 (sh) 1 2"), None);
    }

    #[test]
    fn a_process_is_itself_and_no_later_one() {
        let me = ProcessId::of(std::process::id() as i32).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessId { start_ticks: me.start_ticks + 1, ..me.clone() }.is_alive());
        assert!(!ProcessId { boot: "another".into(), ..me }.is_alive());
    }

    #[test]
    fn a_lock_is_held_by_one_and_free_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let attempt = Attempt::at(dir.path());
        let held = attempt.lock().unwrap().expect("free");
        assert!(attempt.lock().unwrap().is_none());
        drop(held);
        assert!(attempt.lock().unwrap().is_some());
    }
}
