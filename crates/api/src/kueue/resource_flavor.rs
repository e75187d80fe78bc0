//! ResourceFlavor: a kind of machine that quota can be given for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::crd::{Definition, Schema, embedded, kind, object};

kind! {
    /// A kind of machine that quota can be given for.
    ResourceFlavor in "kueue.x-k8s.io" "v1beta2", Cluster "resourceflavors" {
        spec: ResourceFlavorSpec = ResourceFlavorSpec::schema(),
    }
}

object! {
    ResourceFlavorSpec {
        /// Labels of its nodes. They become node selectors of what is admitted on it.
        node_labels: BTreeMap<String, String> = Schema::map(Schema::string()).max_properties(8).atomic_map(),
        /// Taints of its nodes, which workloads must tolerate to use it.
        node_taints: Vec<Taint> = embedded::taints(),
        /// Tolerations given to the pods that are admitted on it.
        tolerations: Vec<Toleration> = embedded::tolerations(),
        /// Topology of its nodes.
        topology_name: Option<String> = Schema::subdomain(),
    } where
        "!has(self.topologyName) || self.nodeLabels.size() >= 1" =>
            "at least one nodeLabel is required when topology is set",
        "!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)" =>
            "topologyName is immutable when topologyName is set",
}

impl ResourceFlavor {
    pub fn definition() -> Definition {
        ResourceFlavor::declared().short(&["flavor", "flavors", "rf"])
    }
}
