//! temporary
use super::Visitor;
use crate::registry::kind::*;
const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
macro_rules! plain {
    ($v:expr, $t:ident, $ty:ty, $g:expr, $k:expr, $p:expr, $s:expr, $ns:expr, $st:expr) => {{
        struct $t;
        impl Kind for $t {
            type Object = $ty;
            fn resource(&self) -> Resource {
                Resource {
                    group: $g.into(),
                    version: "v1".into(),
                    kind: $k.into(),
                    plural: $p.into(),
                    singular: $k.to_lowercase(),
                    short_names: $s.iter().map(|s: &&str| s.to_string()).collect(),
                    categories: vec![],
                    namespaced: $ns,
                    verbs: ALL.to_vec(),
                    subresources: if $st {
                        vec![Subresource { name: "status".into(), body: None, verbs: vec!["get", "patch", "update"] }]
                    } else {
                        vec![]
                    },
                    has_status: $st,
                    has_generation: $st,
                }
            }
        }
        $v.kind($t)
    }};
}
pub fn register_plain<V: Visitor>(v: &mut V) {
    use k8s_openapi::api::{core::v1 as core, scheduling::v1 as scheduling};
    plain!(v, F, core::Node, "", "Node", "nodes", ["no"], false, true);
    plain!(
        v,
        M,
        scheduling::PriorityClass,
        "scheduling.k8s.io",
        "PriorityClass",
        "priorityclasses",
        ["pc"],
        false,
        false
    );
}
