//! Nobody gives away more than they have: the check before a role or a binding is written.
//!
//! It passes members of `system:masters`, users with the verb `escalate` (roles) or `bind` (bindings), users who already
//! hold every rule they hand out, and writes that only touch what garbage collection needs.

use k8s_openapi::Metadata;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use usher_schema::field::quote;

use super::{Attributes, Rules, authorize, cover, covers};
use crate::auth::identity::{MASTERS, User};
use crate::auth::refusal::{Forbidden, Refusal, quote_list};

const GROUP: &str = "rbac.authorization.k8s.io";

/// A write of a role or a binding.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    pub user: &'a User,
    pub rules: &'a Rules,
    /// Of the request; empty for the cluster-scoped kinds.
    pub namespace: &'a str,
    /// As the request's path has it: empty when an object is created.
    pub name_in_path: &'a str,
}

impl Write<'_> {
    pub fn cluster_role(&self, new: &ClusterRole, old: Option<&ClusterRole>) -> Result<(), Refusal> {
        if self.may_escalate("clusterroles") || old.is_some_and(|old| only_gc_changed(new, old)) {
            return Ok(());
        }
        self.no_escalation("clusterroles", new.metadata.name.as_deref(), new.rules.as_deref().unwrap_or_default())?;
        if !aggregates(new) && !old.is_some_and(aggregates) {
            return Ok(());
        }
        // What an aggregation rule gathers is not known in advance, so only who may do everything may set one.
        self.no_escalation("clusterroles", new.metadata.name.as_deref(), &everything()).map_err(|_| {
            forbidden(
                "clusterroles",
                new.metadata.name.as_deref(),
                "must have cluster-admin privileges to use the aggregationRule".to_owned(),
            )
        })
    }

    pub fn role(&self, new: &Role, old: Option<&Role>) -> Result<(), Refusal> {
        if self.may_escalate("roles") || old.is_some_and(|old| only_gc_changed(new, old)) {
            return Ok(());
        }
        self.no_escalation("roles", new.metadata.name.as_deref(), new.rules.as_deref().unwrap_or_default())
    }

    pub fn cluster_role_binding(
        &self,
        new: &ClusterRoleBinding,
        old: Option<&ClusterRoleBinding>,
    ) -> Result<(), Refusal> {
        if old.is_some_and(|old| only_gc_changed(new, old)) {
            return Ok(());
        }
        self.binding("clusterrolebindings", new.metadata.name.as_deref(), &new.role_ref)
    }

    pub fn role_binding(&self, new: &RoleBinding, old: Option<&RoleBinding>) -> Result<(), Refusal> {
        if old.is_some_and(|old| only_gc_changed(new, old)) {
            return Ok(());
        }
        self.binding("rolebindings", new.metadata.name.as_deref(), &new.role_ref)
    }

    fn binding(&self, resource: &str, name: Option<&str>, role: &RoleRef) -> Result<(), Refusal> {
        if self.user.in_group(MASTERS) || self.may_bind(role) {
            return Ok(());
        }
        let Some(rules) = self.rules.referenced(role, self.namespace) else {
            return Err(match role.kind.as_str() {
                kind @ ("Role" | "ClusterRole") => {
                    Refusal::NotFound { resource: format!("{}s.{GROUP}", kind.to_lowercase()), name: role.name.clone() }
                }
                kind => Refusal::Internal(format!("unsupported role reference kind: {}", quote(kind))),
            });
        };
        self.no_escalation(resource, name, rules)
    }

    fn may_escalate(&self, resource: &str) -> bool {
        let wanted = Attributes::resource(self.user, "escalate", GROUP, resource);
        authorize(&wanted.namespace(self.namespace).name(self.name_in_path), self.rules).allow
    }

    fn may_bind(&self, role: &RoleRef) -> bool {
        let resource = match role.kind.as_str() {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            _ => return false,
        };
        let group = role.api_group.as_deref().unwrap_or(GROUP);
        let wanted = Attributes::resource(self.user, "bind", group, resource);
        authorize(&wanted.namespace(self.namespace).name(&role.name), self.rules).allow
    }

    fn no_escalation(&self, resource: &str, name: Option<&str>, wanted: &[PolicyRule]) -> Result<(), Refusal> {
        if self.user.in_group(MASTERS) {
            return Ok(());
        }
        let (owned, errors) = self.rules.policy(self.user, self.namespace);
        let Err(missing) = covers(&owned, wanted) else { return Ok(()) };
        let mut why = format!(
            "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            quote(&self.user.name),
            quote_list(&self.user.groups),
            cover::describe(&missing)
        );
        if !errors.is_empty() {
            why.push_str(&format!("; resolution errors: [{}]", crate::auth::refusal::aggregate(&errors)));
        }
        Err(forbidden(resource, name, why))
    }
}

fn forbidden(resource: &str, name: Option<&str>, why: String) -> Refusal {
    Refusal::Forbidden(Forbidden {
        group: GROUP.to_owned(),
        resource: resource.to_owned(),
        name: name.unwrap_or_default().to_owned(),
        why,
    })
}

fn aggregates(role: &ClusterRole) -> bool {
    role.aggregation_rule
        .as_ref()
        .is_some_and(|rule| !rule.cluster_role_selectors.as_deref().unwrap_or_default().is_empty())
}

fn everything() -> [PolicyRule; 2] {
    let all = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: all(), api_groups: Some(all()), resources: Some(all()), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: Some(all()), ..PolicyRule::default() },
    ]
}

/// Finalizers and owners may be changed by who could not write the object's rules.
fn only_gc_changed<T: Metadata<Ty = ObjectMeta> + Clone + PartialEq>(new: &T, old: &T) -> bool {
    let mut new = new.clone();
    let (meta, was) = (new.metadata_mut(), old.metadata());
    meta.owner_references.clone_from(&was.owner_references);
    meta.finalizers.clone_from(&was.finalizers);
    meta.self_link.clone_from(&was.self_link);
    meta.managed_fields.clone_from(&was.managed_fields);
    new == *old
}
