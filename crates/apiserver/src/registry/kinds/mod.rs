//! One file a kind. [`register`] shows them all.

pub mod at;
pub mod common;
pub mod config_map;
pub mod cron_schedule;
pub mod cronjob;
mod describe;
pub mod equality;
pub mod job;
pub mod json_field;
pub mod namespace;
pub mod persistent_volume_claim;
pub mod plain;
pub mod pod;
pub mod pod_template;
pub mod quantity;
pub mod rbac;
pub mod secret;
pub mod selector;
pub mod service_account;
#[cfg(test)]
mod testing;

use super::kind::Kind;

/// Takes each built-in kind in turn; what it makes of them is its own business.
pub trait Visitor {
    fn kind<K: Kind>(&mut self, kind: K);
}

/// Shows every built-in kind to `visitor`.
pub fn register<V: Visitor>(visitor: &mut V) {
    visitor.kind(namespace::Namespaces);
    visitor.kind(config_map::ConfigMaps);
    visitor.kind(secret::Secrets);
    visitor.kind(service_account::ServiceAccounts);
    visitor.kind(rbac::Roles);
    visitor.kind(rbac::ClusterRoles);
    visitor.kind(rbac::RoleBindings);
    visitor.kind(rbac::ClusterRoleBindings);
    visitor.kind(persistent_volume_claim::PersistentVolumeClaims);
    visitor.kind(pod::Pods);
    visitor.kind(job::Jobs);
    visitor.kind(cronjob::CronJobs);
    plain::register_plain(visitor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[derive(Default)]
    struct Seen(Vec<crate::registry::kind::Resource>);

    impl Visitor for Seen {
        fn kind<K: Kind>(&mut self, kind: K) {
            let empty: K::Object = serde_json::from_value(serde_json::json!({"metadata": {}})).unwrap();
            let now = "2026-01-01T00:00:00Z".parse().unwrap();
            let mut defaulted = empty.clone();
            kind.default(&mut defaulted);
            for object in [empty, defaulted] {
                let cells = kind.cells(&object, &serde_json::json!({"name": "x"}), now);
                assert_eq!(kind.columns().len(), cells.len(), "{}", kind.resource().kind);
            }
            self.0.push(kind.resource());
        }
    }

    #[test]
    fn every_kind_is_there_once_and_fills_its_columns() {
        let mut seen = Seen::default();
        register(&mut seen);
        let names: BTreeSet<String> = seen.0.iter().map(|r| r.qualified()).collect();
        assert_eq!(names.len(), seen.0.len());
        assert!(names.contains("jobs.batch"));
    }
}
