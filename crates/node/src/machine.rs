//! This machine as a Node: what it has, and how kubelet would describe it. Reads files of the machine; decides nothing.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use usher_api::quantity::{Format, Quantity};

use crate::status::whole_seconds;

/// As many pods as a node takes by default.
const MAX_PODS: i64 = 110;
/// The version of Kubernetes whose behaviour is imitated.
pub const KUBELET_VERSION: &str = "v1.37.0";

#[derive(Clone, Debug)]
pub struct Machine {
    pub hostname: String,
    pub ip: String,
    cpus: i64,
    memory_bytes: i64,
    disk_bytes: i64,
    kernel: String,
    os_image: String,
    machine_id: String,
    boot_id: String,
    arch: &'static str,
}

impl Machine {
    /// `disk` is where pods keep their files.
    pub fn look(disk: &Path) -> Machine {
        let uname = rustix::system::uname();
        let hostname = uname.nodename().to_string_lossy().to_lowercase();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let line = |path: &str| read(path).trim().to_owned();
        // The directory itself may not exist yet.
        let disk = disk.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok());
        Machine {
            ip: own_address(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as i64),
            memory_bytes: memory_bytes(&read("/proc/meminfo")).unwrap_or(0),
            disk_bytes: disk.map_or(0, |d| (d.f_blocks.saturating_mul(d.f_frsize)) as i64),
            kernel: uname.release().to_string_lossy().into_owned(),
            os_image: os_image(&read("/etc/os-release")).unwrap_or_else(|| "Linux".to_owned()),
            machine_id: line("/etc/machine-id"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            arch: go_arch(std::env::consts::ARCH),
            hostname,
        }
    }

    pub fn allocatable(&self) -> BTreeMap<String, Quantity> {
        BTreeMap::from([
            ("cpu".to_owned(), Quantity::from_units(self.cpus, Format::Decimal)),
            ("memory".to_owned(), Quantity::from_units(self.memory_bytes, Format::Binary)),
            ("ephemeral-storage".to_owned(), Quantity::from_units(self.disk_bytes, Format::Binary)),
            ("pods".to_owned(), Quantity::from_units(MAX_PODS, Format::Decimal)),
        ])
    }

    pub fn node(&self, name: &str, now: Timestamp) -> Node {
        let labels = [
            ("beta.kubernetes.io/arch", self.arch),
            ("beta.kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", self.arch),
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
        ];
        let amounts: BTreeMap<String, ApiQuantity> =
            self.allocatable().into_iter().map(|(name, amount)| (name, ApiQuantity(amount.to_string()))).collect();
        let address = |type_: &str, address: &str| NodeAddress { type_: type_.to_owned(), address: address.to_owned() };
        Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
                ..ObjectMeta::default()
            },
            status: Some(NodeStatus {
                capacity: Some(amounts.clone()),
                allocatable: Some(amounts),
                addresses: Some(vec![address("InternalIP", &self.ip), address("Hostname", &self.hostname)]),
                conditions: Some(conditions(now)),
                node_info: Some(self.info()),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    fn info(&self) -> NodeSystemInfo {
        NodeSystemInfo {
            architecture: self.arch.to_owned(),
            boot_id: self.boot_id.clone(),
            container_runtime_version: format!("usher://{}", env!("CARGO_PKG_VERSION")),
            kernel_version: self.kernel.clone(),
            kubelet_version: KUBELET_VERSION.to_owned(),
            machine_id: self.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: self.os_image.clone(),
            system_uuid: self.machine_id.clone(),
            ..NodeSystemInfo::default()
        }
    }
}

/// The conditions of a node in good health.
pub fn conditions(now: Timestamp) -> Vec<NodeCondition> {
    let at = || Some(Time(whole_seconds(now)));
    [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
    .into_iter()
    .map(|(type_, status, reason, message)| NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: at(),
        last_transition_time: at(),
    })
    .collect()
}

/// A host name made into what a node may be called.
pub fn node_name(hostname: &str) -> String {
    let name: String = hostname
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' })
        .collect();
    let labels: Vec<&str> = name.split('.').map(|l| l.trim_matches('-')).filter(|l| !l.is_empty()).collect();
    let name: String = labels.join(".").chars().take(63).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "node".to_owned() } else { name.to_owned() }
}

/// The address that packets to the world would leave from; none is sent.
fn own_address() -> String {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    match found {
        Ok(address) if !address.ip().is_unspecified() => address.ip().to_string(),
        _ => "127.0.0.1".to_owned(),
    }
}

fn memory_bytes(meminfo: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn os_image(release: &str) -> Option<String> {
    let value = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches(['"', '\'']).to_owned())
}

fn go_arch(arch: &'static str) -> &'static str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_becomes_a_node_name() {
        for (host, name) in
            [("Lab-Box", "lab-box"), ("a_b.Example.COM", "a-b.example.com"), ("-x-", "x"), ("", "node"), ("..", "node")]
        {
            assert_eq!(node_name(host), name, "{host}");
            assert!(usher_api::names::dns1123_subdomain(&node_name(host), false).is_empty());
        }
    }

    #[test]
    fn the_machine_has_cpus_memory_and_disk() {
        let node = Machine::look(Path::new("/nowhere/at/all")).node("n", Timestamp::UNIX_EPOCH);
        let capacity = node.status.unwrap().capacity.unwrap();
        for name in ["cpu", "memory", "ephemeral-storage", "pods"] {
            assert!(Quantity::parse(&capacity[name].0).unwrap().units() > 0, "{name}: {capacity:?}");
        }
    }
}
