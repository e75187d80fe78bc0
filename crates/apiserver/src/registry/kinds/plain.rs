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
            fn validate_name(&self, n: &str, p: bool) -> Vec<String> {
                crate::registry::names::path_segment(n, p)
            }
        }
        $v.kind($t)
    }};
}
pub fn register_plain<V: Visitor>(v: &mut V) {
    use k8s_openapi::api::{core::v1 as core, rbac::v1 as rbac, scheduling::v1 as scheduling};
    const NONE: [&str; 0] = [];
    plain!(v, A, core::Namespace, "", "Namespace", "namespaces", ["ns"], false, true);
    plain!(v, B, core::ConfigMap, "", "ConfigMap", "configmaps", ["cm"], true, false);
    plain!(v, C, core::Secret, "", "Secret", "secrets", NONE, true, false);
    plain!(v, D, core::ServiceAccount, "", "ServiceAccount", "serviceaccounts", ["sa"], true, false);
    plain!(v, E, core::Pod, "", "Pod", "pods", ["po"], true, true);
    plain!(v, F, core::Node, "", "Node", "nodes", ["no"], false, true);
    plain!(v, I, rbac::ClusterRole, "rbac.authorization.k8s.io", "ClusterRole", "clusterroles", NONE, false, false);
    plain!(
        v,
        J,
        rbac::ClusterRoleBinding,
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        "clusterrolebindings",
        NONE,
        false,
        false
    );
    plain!(v, K2, rbac::Role, "rbac.authorization.k8s.io", "Role", "roles", NONE, true, false);
    plain!(v, L, rbac::RoleBinding, "rbac.authorization.k8s.io", "RoleBinding", "rolebindings", NONE, true, false);
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
