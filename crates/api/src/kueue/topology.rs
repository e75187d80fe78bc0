//! Topology: how nodes are arranged. Kept so that manifests apply; nothing here places by topology yet, and queues whose flavors
//! name one are shown as inactive.

use crate::crd::{Definition, Schema, embedded, kind, object};

kind! {
    /// The levels at which nodes are close to each other.
    Topology in "kueue.x-k8s.io" "v1beta2", Cluster "topologies" {
        spec: TopologySpec = TopologySpec::schema(),
    }
}

object! {
    TopologySpec {
        /// From the widest level to the narrowest.
        levels: Vec<TopologyLevel> = Schema::list(TopologyLevel::schema())
            .min_items(1)
            .max_items(16)
            .atomic()
            .required()
            .rule(
                "self == oldSelf || (self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname' && \
                 oldSelf[size(oldSelf) - 1].nodeLabel == 'kubernetes.io/hostname')",
                "levels are mutable only when kubernetes.io/hostname is the lowest level both before and after the change",
            )
            .rule("size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0", "must be unique")
            .rule(
                "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0 || \
                 self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
                "the kubernetes.io/hostname label can only be used at the lowest level of topology",
            ),
    }
}

object! {
    TopologyLevel {
        /// The node label whose value names the domain.
        node_label: String = embedded::qualified_name().min_len(1).required(),
    }
}

impl Topology {
    pub fn definition() -> Definition {
        Topology::declared().short(&["topo"])
    }
}
