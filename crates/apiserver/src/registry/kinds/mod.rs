//! One file a kind. [`register`] shows them all.

pub mod at;
pub mod common;
pub mod config_map;
pub mod cronjob;
pub mod custom_resource_definition;
mod describe;
pub mod equality;
pub mod event;
pub mod job;
pub mod json_field;
pub mod lease;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_template;
pub mod pod_templates;
pub mod priority_class;
pub mod rbac;
pub mod resource_quota;
pub mod runtime_class;
pub mod secret;
pub mod selector;
pub mod service;
pub mod service_account;
#[cfg(test)]
mod testing;
pub mod webhook_configuration;

use super::kind::Kind;

/// Takes each built-in kind in turn; what it makes of them is its own business.
pub trait Visitor {
    fn kind<K: Kind>(&mut self, kind: K);
}

/// Shows every built-in kind to `visitor`.
pub fn register<V: Visitor>(visitor: &mut V) {
    visitor.kind(namespace::Namespaces);
    visitor.kind(node::Nodes);
    visitor.kind(config_map::ConfigMaps);
    visitor.kind(secret::Secrets);
    visitor.kind(service_account::ServiceAccounts);
    visitor.kind(service::Services);
    visitor.kind(limit_range::LimitRanges);
    visitor.kind(resource_quota::ResourceQuotas);
    visitor.kind(event::Events);
    visitor.kind(event::NewEvents);
    visitor.kind(lease::Leases);
    visitor.kind(priority_class::PriorityClasses);
    visitor.kind(runtime_class::RuntimeClasses);
    visitor.kind(rbac::Roles);
    visitor.kind(rbac::ClusterRoles);
    visitor.kind(rbac::RoleBindings);
    visitor.kind(rbac::ClusterRoleBindings);
    visitor.kind(webhook_configuration::MutatingWebhookConfigurations);
    visitor.kind(webhook_configuration::ValidatingWebhookConfigurations);
    visitor.kind(custom_resource_definition::CustomResourceDefinitions);
    visitor.kind(persistent_volume_claim::PersistentVolumeClaims);
    visitor.kind(pod::Pods);
    visitor.kind(pod_templates::PodTemplates);
    visitor.kind(job::Jobs);
    visitor.kind(cronjob::CronJobs);
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
