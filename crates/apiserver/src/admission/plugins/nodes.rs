//! TaintNodesByCondition and PodTopologyLabels: what nodes are given at birth, and what pods take over from their node.

use serde_json::{Value, json};

use super::values::{list_mut, map_mut, spec_mut, stored_object, text};
use crate::object::{self, Object};
use crate::server::Server;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const TOPOLOGY_LABELS: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// A new node takes no pods until something found it ready and took the taint away.
pub fn taint_as_not_ready(node: &mut Object) {
    let taints = list_mut(spec_mut(node), "taints");
    let is_it = |taint: &Value| text(taint, "/key") == NOT_READY && text(taint, "/effect") == "NoSchedule";
    if !taints.iter().any(is_it) {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

/// The labels of a binding end up on its pod.
pub fn copy_topology_to_binding(server: &Server, binding: &mut Object) {
    if text(binding, "/target/kind") == "Node" {
        let node = text(binding, "/target/name").to_owned();
        copy_topology(server, &node, binding);
    }
}

/// For pods that are created on a node.
pub fn copy_topology_to_pod(server: &Server, pod: &mut Object) {
    let node = text(pod, "/spec/nodeName").to_owned();
    if !node.is_empty() {
        copy_topology(server, &node, pod);
    }
}

fn copy_topology(server: &Server, node: &str, object: &mut Object) {
    let Some(node) = stored_object(server, "core/nodes", "", node) else { return };
    for label in TOPOLOGY_LABELS {
        if let Some(value) = node.get("metadata").and_then(|m| m.get("labels")).and_then(|l| l.get(label)) {
            map_mut(object::meta_mut(object), "labels").insert(label.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_is_tainted_once_beside_its_other_taints() {
        let mut node =
            json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": NOT_READY, "effect": "NoExecute"}]}});
        taint_as_not_ready(&mut node);
        let taints = json!([{"key": NOT_READY, "effect": "NoExecute"}, {"key": NOT_READY, "effect": "NoSchedule"}]);
        assert_eq!(node["spec"]["taints"], taints);
        taint_as_not_ready(&mut node);
        assert_eq!(node["spec"]["taints"], taints);
    }
}
