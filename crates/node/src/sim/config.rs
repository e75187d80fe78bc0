//! Which nodes to simulate: a YAML list of groups of equal nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use usher_api::quantity::Quantity;

use crate::machine;

/// More than anyone has asked for; a typing error should not fill the disk.
const MAX_NODES: u32 = 100_000;

/// Equal nodes, `<name>-0` and so on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    #[serde(default = "one")]
    pub count: u32,
    #[serde(default = "name")]
    pub name: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub taints: Vec<TaintSpec>,
    /// Over the default of 8 cpus, 32Gi of memory, 100Gi of ephemeral storage and 110 pods.
    #[serde(default)]
    pub capacity: BTreeMap<String, Amount>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaintSpec {
    pub key: String,
    #[serde(default)]
    pub value: String,
    pub effect: String,
}

/// A quantity, written with or without quotes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    Whole(i64),
    Text(String),
}

fn one() -> u32 {
    1
}

fn name() -> String {
    "sim".to_owned()
}

/// Reads and checks the groups; the error is a sentence for people.
pub fn parse(text: &str) -> Result<Vec<Group>, String> {
    let groups: Vec<Group> = serde_saphyr::from_str(text)
        .map_err(|e| e.to_string().lines().next().unwrap_or("it is not a YAML list of groups").to_owned())?;
    let mut total = 0u32;
    let mut names = std::collections::BTreeSet::new();
    for group in &groups {
        total = total.saturating_add(group.count);
        let full = format!("{}-{}", group.name, group.count);
        if let Some(why) = usher_api::names::dns1123_subdomain(&full, false).into_iter().next() {
            return Err(format!("name {:?}: {why}", group.name));
        }
        if !names.insert(&group.name) {
            return Err(format!("two groups have the name {:?}; give each its own", group.name));
        }
        for (resource, amount) in &group.capacity {
            if let Err(why) = Quantity::parse(&amount.text()) {
                return Err(format!("group {:?}: capacity {resource}: {why}", group.name));
            }
        }
    }
    if total > MAX_NODES {
        return Err(format!("{total} nodes are more than the {MAX_NODES} that can be simulated"));
    }
    Ok(groups)
}

impl Amount {
    fn text(&self) -> String {
        match self {
            Amount::Whole(number) => number.to_string(),
            Amount::Text(text) => text.clone(),
        }
    }
}

impl Group {
    pub fn names(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|n| format!("{}-{n}", self.name))
    }

    pub fn taints(&self) -> Vec<Taint> {
        let taint = |t: &TaintSpec| Taint {
            key: t.key.clone(),
            value: Some(t.value.clone()).filter(|v| !v.is_empty()),
            effect: t.effect.clone(),
            ..Taint::default()
        };
        self.taints.iter().map(taint).collect()
    }

    pub fn node(&self, name: &str, now: Timestamp) -> Node {
        let given = [("cpu", "8"), ("memory", "32Gi"), ("ephemeral-storage", "100Gi"), ("pods", "110")];
        let mut capacity: BTreeMap<String, ApiQuantity> =
            given.into_iter().map(|(k, v)| (k.to_owned(), ApiQuantity(v.to_owned()))).collect();
        capacity.extend(self.capacity.iter().map(|(k, v)| (k.clone(), ApiQuantity(v.text()))));
        let mut labels: BTreeMap<String, String> = [
            ("kubernetes.io/arch", "amd64"),
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
            ("usher.dev/simulated", "true"),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
        labels.extend(self.labels.clone());
        let taints = self.taints();
        Node {
            metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() },
            spec: Some(NodeSpec { taints: Some(taints).filter(|t| !t.is_empty()), ..NodeSpec::default() }),
            status: Some(NodeStatus {
                capacity: Some(capacity.clone()),
                allocatable: Some(capacity),
                addresses: Some(vec![NodeAddress { type_: "Hostname".to_owned(), address: name.to_owned() }]),
                conditions: Some(machine::conditions(now)),
                node_info: Some(NodeSystemInfo {
                    architecture: "amd64".to_owned(),
                    operating_system: "linux".to_owned(),
                    kubelet_version: machine::KUBELET_VERSION.to_owned(),
                    container_runtime_version: format!("usher-sim://{}", env!("CARGO_PKG_VERSION")),
                    ..NodeSystemInfo::default()
                }),
                ..NodeStatus::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_labels_taints_and_capacity() {
        let text = "- count: 2\n  name: gpu\n  labels: {zone: a}\n  taints: [{key: gpu, effect: NoSchedule}]\n  \
                    capacity: {cpu: 64, nvidia.com/gpu: \"8\"}\n- {}\n";
        let groups = parse(text).unwrap();
        let names: Vec<String> = groups.iter().flat_map(Group::names).collect();
        assert_eq!(names, ["gpu-0", "gpu-1", "sim-0"]);
        let node = groups[0].node("gpu-1", Timestamp::UNIX_EPOCH);
        let (labels, status) = (node.metadata.labels.unwrap(), node.status.unwrap());
        assert_eq!((labels["zone"].as_str(), labels["kubernetes.io/hostname"].as_str()), ("a", "gpu-1"));
        let amount = |name: &str| status.allocatable.as_ref().unwrap()[name].0.clone();
        assert_eq!([amount("cpu"), amount("memory"), amount("nvidia.com/gpu")], ["64", "32Gi", "8"]);
        assert_eq!(node.spec.unwrap().taints.unwrap()[0].effect, "NoSchedule");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("- {name: A_B}", "A_B"),
            ("- {capacity: {cpu: lots}}", "cpu"),
            ("- {name: a}\n- {name: a}", "two groups"),
            ("- {count: 200000}", "200000"),
            ("- {cuont: 2}", "cuont"),
            ("count: 2", ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
