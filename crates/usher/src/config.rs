//! Flags and the configuration file of `usher up`. A flag wins over the file; the file has the flags' names.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use usher_apiserver::gates::{GateError, Gates};
use usher_controllers::queueing;
use usher_node::{User, sim};

use crate::selection::{Selection, SelectionError};

/// The user who owns nothing, everywhere.
const NOBODY: u32 = 65534;

#[derive(Args, Clone, Debug, Default, Deserialize)]
#[command(
    after_help = "Examples:\n  usher up\n  usher up --data-dir ./data --listen 127.0.0.1:0\n  usher up --in-memory --feature-gates MutablePodResourcesForSuspendedJobs=false\n  usher up --node=false --sim-nodes nodes.yaml\n\nThen:\n  kubectl --kubeconfig <path of the ready line> get namespaces"
)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct UpFlags {
    /// Where everything is kept [default: the platform's data directory for usher]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address to serve on; port 0 picks a free one, which the ready line tells [default: 127.0.0.1:7443]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Where to write the administrator's kubeconfig, mode 0600 [default: <data-dir>/kubeconfig]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// Keep nothing on disk but the kubeconfig
    #[arg(long)]
    #[serde(default)]
    pub in_memory: bool,
    /// Turn features on or off: A=false,B=true
    #[arg(long, value_name = "A=false,B=true")]
    pub feature_gates: Option<String>,
    /// Bearer tokens to accept: CSV lines of token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Run pods on this machine, as processes; --node=false leaves the machine out [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub node: Option<bool>,
    /// What this machine is called as a node [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Whom pods run as when usher is started as root: a name, uid or uid:gid [default: nobody, 65534]
    #[arg(long, value_name = "USER")]
    pub pod_user: Option<String>,
    /// Where pods keep volumes and working directories; --pod-user must be able to get there [default: below /var/lib/usher/pods for root, else <data-dir>/pods]
    #[arg(long, value_name = "DIR")]
    pub pod_dir: Option<PathBuf>,
    /// The controllers to run: * for all, NAME for one, -NAME for all but that [default: *]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub controllers: Option<String>,
    /// Simulate nodes, whose pods only seem to run: a YAML list of {count, name, labels, taints, capacity}
    #[arg(long, value_name = "FILE")]
    pub sim_nodes: Option<PathBuf>,
    /// How work is queued, as Kueue's configuration file says it: waitForPodsReady, fairSharing, objectRetentionPolicies
    #[arg(long, value_name = "FILE")]
    pub queueing_config: Option<PathBuf>,
    /// Read these settings from a YAML file; flags win over it
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// The settings of one run, complete and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct UpConfig {
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub kubeconfig: PathBuf,
    pub in_memory: bool,
    pub gates: Gates,
    pub token_auth_file: Option<PathBuf>,
    /// `None`: this machine is no node.
    pub node: Option<NodeConfig>,
    pub sim_nodes: Vec<sim::Group>,
    pub controllers: Selection,
    pub queueing: queueing::Policy,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    pub name: Option<String>,
    /// `None`: whoever started usher.
    pub user: Option<User>,
    pub pod_dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {source}; check --config", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the configuration file {} is not valid: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
    #[error("--listen {given:?} is not an address; give one like 127.0.0.1:7443, or port 0 for any free port")]
    Listen { given: String },
    #[error("--feature-gates: {0}")]
    Gates(#[from] GateError),
    #[error("--controllers: {0}")]
    Controllers(#[from] SelectionError),
    #[error("--pod-user: {0}; give a user's name, a uid or uid:gid")]
    PodUser(String),
    #[error("--pod-user can be chosen only by root; started as a user, pods run with that user's rights")]
    PodUserWithoutRoot,
    #[error("--node-name {name:?} is not a name for a node: {why}")]
    NodeName { name: String, why: String },
    #[error("--sim-nodes {}: {why}; it is a list like [{{count: 100, name: sim, capacity: {{cpu: 8}}}}]", path.display())]
    SimNodes { path: PathBuf, why: String },
    #[error("--queueing-config: {0}")]
    Queueing(#[from] crate::queueing_config::QueueingConfigError),
    #[error("there is no home directory to keep data in; say where with --data-dir")]
    NoHome,
}

impl UpConfig {
    pub fn from_flags(flags: UpFlags) -> Result<UpConfig, ConfigError> {
        let file = match &flags.config {
            Some(path) => read_file(path)?,
            None => UpFlags::default(),
        };
        let data_dir = match flags.data_dir.or(file.data_dir) {
            Some(dir) => dir,
            None => default_data_dir().ok_or(ConfigError::NoHome)?,
        };
        let listen = flags.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:7443".to_owned());
        let node = NodeFlags {
            wanted: flags.node.or(file.node).unwrap_or(true),
            name: flags.node_name.or(file.node_name),
            user: flags.pod_user.or(file.pod_user),
            pod_dir: flags.pod_dir.or(file.pod_dir),
        };
        let gates = flags.feature_gates.or(file.feature_gates).unwrap_or_default();
        let gates = Gates::parse(&gates)?;
        let queueing = flags.queueing_config.or(file.queueing_config);
        let queueing = queueing.map_or(Ok(queueing::Policy::default()), |path| crate::queueing_config::read(&path))?;
        Ok(UpConfig {
            listen: resolve(&listen)?,
            kubeconfig: flags.kubeconfig.or(file.kubeconfig).unwrap_or_else(|| data_dir.join("kubeconfig")),
            in_memory: flags.in_memory || file.in_memory,
            queueing: queueing::Policy {
                elastic_jobs: gates.queues.elastic_jobs,
                concurrent_admission: gates.queues.concurrent_admission,
                ..queueing
            },
            gates,
            token_auth_file: flags.token_auth_file.or(file.token_auth_file),
            node: node.check(&data_dir)?,
            controllers: flags.controllers.or(file.controllers).as_deref().unwrap_or("*").parse()?,
            sim_nodes: flags.sim_nodes.or(file.sim_nodes).map_or(Ok(Vec::new()), |path| read_sim_nodes(&path))?,
            data_dir,
        })
    }
}

struct NodeFlags {
    wanted: bool,
    name: Option<String>,
    user: Option<String>,
    pod_dir: Option<PathBuf>,
}

impl NodeFlags {
    fn check(self, data_dir: &Path) -> Result<Option<NodeConfig>, ConfigError> {
        if !self.wanted {
            return Ok(None);
        }
        if let Some(name) = &self.name
            && let Some(why) = usher_api::names::dns1123_subdomain(name, false).into_iter().next()
        {
            return Err(ConfigError::NodeName { name: name.clone(), why });
        }
        let is_root = rustix::process::geteuid().is_root();
        let user = match self.user {
            Some(_) if !is_root => return Err(ConfigError::PodUserWithoutRoot),
            Some(text) => Some(User::parse(&text).map_err(ConfigError::PodUser)?),
            None => is_root.then_some(User { uid: NOBODY, gid: NOBODY, groups: Vec::new() }),
        };
        let pod_dir =
            self.pod_dir.unwrap_or_else(|| if is_root { shared_pod_dir(data_dir) } else { data_dir.join("pods") });
        Ok(Some(NodeConfig { name: self.name, user, pod_dir: absolute(&pod_dir) }))
    }
}

/// The data directory is root's alone, so that pods' directories must be elsewhere: one place for each data directory.
fn shared_pod_dir(data_dir: &Path) -> PathBuf {
    // FNV-1a: short, and the same in every version.
    let hash = absolute(data_dir)
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    Path::new("/var/lib/usher/pods").join(format!("{hash:016x}"))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn resolve(listen: &str) -> Result<SocketAddr, ConfigError> {
    let bad = || ConfigError::Listen { given: listen.to_owned() };
    listen.to_socket_addrs().map_err(|_| bad())?.next().ok_or_else(bad)
}

fn read_file(path: &Path) -> Result<UpFlags, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    if text.trim().is_empty() {
        return Ok(UpFlags::default());
    }
    serde_saphyr::from_str(&text).map_err(|e| ConfigError::Invalid {
        path: path.to_owned(),
        why: e.to_string().lines().next().unwrap_or("").to_owned(),
    })
}

pub fn read_sim_nodes(path: &Path) -> Result<Vec<sim::Group>, ConfigError> {
    let bad = |why: String| ConfigError::SimNodes { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    sim::parse(&text).map_err(bad)
}

/// `$XDG_DATA_HOME/usher`, or where the platform keeps such things.
fn default_data_dir() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable("XDG_DATA_HOME").filter(|dir| dir.is_absolute()) {
        return Some(dir.join("usher"));
    }
    let home = variable("HOME")?;
    Some(if cfg!(target_os = "macos") {
        home.join("Library/Application Support/usher")
    } else {
        home.join(".local/share/usher")
    })
}

/// clap's explanation in one sentence, with the next step.
pub fn flag_error(error: &clap::Error) -> String {
    let text = error.to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let said = first.join(" ");
    if said.is_empty() || !said.starts_with("error:") {
        return "error: say what to run, as in `usher up`; `usher --help` lists the commands".to_owned();
    }
    format!("{said}; see `usher up --help`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usher.yaml");
        std::fs::write(&path, "data-dir: /file\nlisten: 127.0.0.1:1\nin-memory: true\n").unwrap();
        let flags = UpFlags { config: Some(path), listen: Some("127.0.0.1:2".into()), ..UpFlags::default() };
        let config = UpConfig::from_flags(flags).unwrap();
        assert_eq!(config.data_dir, Path::new("/file"));
        assert_eq!(config.kubeconfig, Path::new("/file/kubeconfig"));
        assert_eq!(config.listen.port(), 2);
        assert!(config.in_memory);
    }

    #[test]
    fn a_setting_that_does_not_exist_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usher.yaml");
        std::fs::write(&path, "data-dri: /x\n").unwrap();
        let error = UpConfig::from_flags(UpFlags { config: Some(path), ..UpFlags::default() }).unwrap_err();
        assert!(error.to_string().contains("data-dri"), "{error}");
    }

    #[test]
    fn an_address_that_is_none_is_refused_with_an_example() {
        let flags = UpFlags { listen: Some("7443".into()), data_dir: Some("/x".into()), ..UpFlags::default() };
        assert!(UpConfig::from_flags(flags).unwrap_err().to_string().contains("127.0.0.1:7443"));
    }
}
