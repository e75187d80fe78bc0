//! Limits on a container's processes by cgroup v2, where the machine lets us: `cpu.max`, `memory.max`. The files are written
//! directly; where a controller is missing or the tree is not ours to write, there are no limits, and the log says so once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;
use usher_api::quantity::Quantity;

const PERIOD_USECS: i64 = 100_000;
/// The kernel refuses less.
const MIN_QUOTA_USECS: i64 = 1_000;

/// Where pods' cgroups are made.
#[derive(Clone, Debug)]
pub struct Tree {
    base: PathBuf,
}

impl Tree {
    /// Makes a cgroup for all pods, named after this node, below the root of the tree.
    pub fn open(name: &str) -> Result<Tree, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let root = cgroup2_mount(&mounts).ok_or("no cgroup v2 tree is mounted")?;
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let missing: Vec<&str> =
            ["cpu", "memory"].into_iter().filter(|c| !controllers.split_whitespace().any(|have| have == *c)).collect();
        if !missing.is_empty() {
            return Err(format!("{} has no controller {}", root.display(), missing.join(", ")));
        }
        let parent = root.join("usher");
        let base = parent.join(name);
        let said = |what: &Path| {
            let what = what.display().to_string();
            move |e: io::Error| format!("{what}: {e}")
        };
        let _ = fs::write(root.join("cgroup.subtree_control"), "+cpu +memory");
        for dir in [&parent, &base] {
            fs::create_dir_all(dir).map_err(said(dir))?;
            fs::write(dir.join("cgroup.subtree_control"), "+cpu +memory").map_err(said(dir))?;
        }
        Ok(Tree { base })
    }

    /// The cgroup of one run of a container, with its limits.
    pub fn create(&self, pod_uid: &str, container: &Container, attempt: u32) -> io::Result<PathBuf> {
        let pod = self.base.join(pod_uid);
        if !pod.is_dir() {
            fs::create_dir(&pod)?;
            fs::write(pod.join("cgroup.subtree_control"), "+cpu +memory")?;
        }
        let dir = pod.join(format!("{}.{attempt}", container.name));
        if !dir.is_dir() {
            fs::create_dir(&dir)?;
        }
        for (file, value) in limits(container) {
            fs::write(dir.join(file), value)?;
        }
        Ok(dir)
    }

    pub fn remove_run(&self, pod_uid: &str, container: &str, attempt: u32) {
        let _ = fs::remove_dir(self.base.join(pod_uid).join(format!("{container}.{attempt}")));
    }

    pub fn remove_pod(&self, pod_uid: &str) {
        let pod = self.base.join(pod_uid);
        for entry in fs::read_dir(&pod).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(pod);
    }
}

fn cgroup2_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (after.split_whitespace().next()? == "cgroup2").then(|| before.split_whitespace().nth(4).map(PathBuf::from))?
    })
}

fn limits(container: &Container) -> Vec<(&'static str, String)> {
    let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    let limit = |name: &str| limits.and_then(|l| Quantity::parse(&l.get(name)?.0).ok()).filter(|q| !q.is_zero());
    let mut out = Vec::new();
    if let Some(cpu) = limit("cpu") {
        let quota = (cpu.milli().saturating_mul(PERIOD_USECS) / 1000).max(MIN_QUOTA_USECS);
        out.push(("cpu.max", format!("{quota} {PERIOD_USECS}")));
    }
    if let Some(memory) = limit("memory") {
        out.push(("memory.max", memory.units().to_string()));
        out.push(("memory.oom.group", "1".to_owned()));
    }
    out
}

/// Whether the kernel killed something in this cgroup for want of memory.
pub fn was_oom_killed(cgroup: &Path) -> bool {
    let events = fs::read_to_string(cgroup.join("memory.events")).unwrap_or_default();
    events.lines().any(|l| l.strip_prefix("oom_kill ").is_some_and(|n| n.trim() != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_become_files() {
        let container = |limits| serde_json::from_value(json!({"name": "c", "resources": {"limits": limits}})).unwrap();
        let memory = |bytes: &str| [("memory.max", bytes.to_owned()), ("memory.oom.group", "1".to_owned())];
        let cpu = |quota: &str| ("cpu.max", format!("{quota} 100000"));
        assert_eq!(limits(&container(json!({"cpu": "1500m"}))), [cpu("150000")]);
        assert_eq!(limits(&container(json!({"cpu": "1m"}))), [cpu("1000")]);
        assert_eq!(limits(&container(json!({"memory": "64Mi"}))), memory("67108864"));
        assert_eq!(limits(&container(json!({}))), []);
    }

    #[test]
    fn the_tree_is_found_among_the_mounts() {
        let text = "24 30 0:22 / /proc rw - proc proc rw\n35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_mount(text), Some("/sys/fs/cgroup".into()));
        assert_eq!(cgroup2_mount("24 30 0:22 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn an_oom_kill_is_read_from_the_events() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!was_oom_killed(dir.path()));
        for (text, killed) in [("oom 1\noom_kill 0\n", false), ("oom 1\noom_kill 2\n", true)] {
            fs::write(dir.path().join("memory.events"), text).unwrap();
            assert_eq!(was_oom_killed(dir.path()), killed);
        }
    }
}
