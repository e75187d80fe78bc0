//! May this user do this? Role-based access control, by the rules of Kubernetes' RBAC authorizer.
//!
//! Rules only ever allow; what no rule allows is refused. [`Rules`] holds the stored roles and bindings in a form that
//! answers for one user without looking at other users' bindings. The REST layer keeps it current and asks [`authorize`]
//! once a request. Writing roles and bindings is guarded by [`escalation`].

pub mod cover;
pub mod escalation;
pub mod rules;

use k8s_openapi::api::authorization::v1::{NonResourceRule, ResourceRule};
use k8s_openapi::api::rbac::v1::PolicyRule;
use usher_schema::field::quote;

use super::identity::{MASTERS, User};
use super::refusal::{Forbidden, aggregate};
pub use cover::covers;
pub use rules::Rules;

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `get`, `list`, `create`, ...; the lower-cased method for a path.
    pub verb: &'a str,
    /// Empty at the cluster scope.
    pub namespace: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    /// Empty where the request names no object (`list`, `create`).
    pub name: &'a str,
    /// Set for requests that are not for a resource; then everything above but user and verb is ignored.
    pub path: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    pub fn resource(user: &'a User, verb: &'a str, group: &'a str, resource: &'a str) -> Attributes<'a> {
        Attributes { user, verb, namespace: "", group, version: "*", resource, subresource: "", name: "", path: None }
    }

    pub fn path(user: &'a User, verb: &'a str, path: &'a str) -> Attributes<'a> {
        Attributes { path: Some(path), version: "", ..Attributes::resource(user, verb, "", "") }
    }

    #[must_use]
    pub fn namespace(self, namespace: &'a str) -> Attributes<'a> {
        Attributes { namespace, ..self }
    }

    #[must_use]
    pub fn subresource(self, subresource: &'a str) -> Attributes<'a> {
        Attributes { subresource, ..self }
    }

    #[must_use]
    pub fn name(self, name: &'a str) -> Attributes<'a> {
        Attributes { name, ..self }
    }

    /// The 403 for this request; `reason` as [`authorize`] gave it.
    pub fn forbidden(&self, reason: &str) -> Forbidden {
        // Some clients show errors as HTML: nothing that a user chose may look like it.
        let refused = self.refused().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        Forbidden {
            group: self.group.to_owned(),
            resource: self.resource.to_owned(),
            name: self.name.to_owned(),
            why: if reason.is_empty() { refused } else { format!("{refused}: {reason}") },
        }
    }

    fn refused(&self) -> String {
        let (user, verb) = (quote(&self.user.name), self.verb);
        if let Some(path) = self.path {
            return format!("User {user} cannot {verb} path {}", quote(path));
        }
        let resource = match self.subresource {
            "" => quote(self.resource),
            sub => quote(&format!("{}/{sub}", self.resource)),
        };
        let group = quote(self.group);
        match self.namespace {
            "" => format!("User {user} cannot {verb} resource {resource} in API group {group} at the cluster scope"),
            ns => format!(
                "User {user} cannot {verb} resource {resource} in API group {group} in the namespace {}",
                quote(ns)
            ),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allow: bool,
    /// Which binding allowed it, or which bindings point at roles that do not exist; often empty.
    pub reason: String,
}

pub fn authorize(attributes: &Attributes, rules: &Rules) -> Decision {
    if attributes.user.in_group(MASTERS) {
        return Decision { allow: true, reason: String::new() };
    }
    let mut errors = Vec::new();
    // Role bindings of a namespace say nothing about paths, whatever namespace the caller put beside one.
    let namespace = if attributes.path.is_some() { "" } else { attributes.namespace };
    for grant in rules.grants(attributes.user, namespace) {
        match grant.rules() {
            Ok(granted) if granted.iter().any(|rule| allows(rule, attributes)) => {
                let reason = format!("RBAC: allowed by {}", grant.describe(attributes.user));
                return Decision { allow: true, reason };
            }
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    let reason = if errors.is_empty() { String::new() } else { format!("RBAC: {}", aggregate(&errors)) };
    Decision { allow: false, reason }
}

fn allows(rule: &PolicyRule, wanted: &Attributes) -> bool {
    if !has_or_star(&rule.verbs, wanted.verb) {
        return false;
    }
    if let Some(path) = wanted.path {
        return list(&rule.non_resource_urls).iter().any(|pattern| path_matches(pattern, path));
    }
    let names = list(&rule.resource_names);
    has_or_star(list(&rule.api_groups), wanted.group)
        && list(&rule.resources).iter().any(|pattern| resource_matches(pattern, wanted))
        && (names.is_empty() || names.iter().any(|name| name == wanted.name))
}

/// `*` is everything with all subresources, `*/log` that subresource of everything; there is no `pods/*`.
fn resource_matches(pattern: &str, wanted: &Attributes) -> bool {
    let after = |prefix: &str| pattern.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
    match wanted.subresource {
        _ if pattern == "*" => true,
        "" => pattern == wanted.resource,
        sub => after(wanted.resource) == Some(sub) || after("*") == Some(sub),
    }
}

/// A trailing `*` stands for any rest.
pub(crate) fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == path || (pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*')))
}

fn has_or_star(set: &[String], wanted: &str) -> bool {
    set.iter().any(|s| s == "*" || s == wanted)
}

pub(crate) fn list(field: &Option<Vec<String>>) -> &[String] {
    field.as_deref().unwrap_or_default()
}

/// What a user may do in a namespace, as SelfSubjectRulesReview lists it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RulesFor {
    pub resources: Vec<ResourceRule>,
    pub paths: Vec<NonResourceRule>,
    /// Bindings whose role does not exist; the rest of the list is still right.
    pub error: Option<String>,
}

pub fn rules_for(user: &User, namespace: &str, rules: &Rules) -> RulesFor {
    let (granted, errors) = rules.policy(user, namespace);
    let mut out = RulesFor::default();
    for rule in granted {
        if !list(&rule.resources).is_empty() {
            out.resources.push(ResourceRule {
                api_groups: rule.api_groups.clone(),
                resource_names: rule.resource_names.clone(),
                resources: rule.resources.clone(),
                verbs: rule.verbs.clone(),
            });
        }
        if !list(&rule.non_resource_urls).is_empty() {
            out.paths.push(NonResourceRule { non_resource_urls: rule.non_resource_urls, verbs: rule.verbs });
        }
    }
    out.error = (!errors.is_empty()).then(|| aggregate(&errors));
    out
}

#[cfg(test)]
pub(crate) mod tests;
