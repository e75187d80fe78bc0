//! Roles and bindings, indexed by who they are about.
//!
//! Every change touches only its own object's entries, except that a change of a ClusterRole computes the aggregated ones
//! again (there are few). Cloning is linear; keep one behind a lock rather than a copy per request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use usher_schema::field::quote;

use crate::auth::identity::{User, service_account_user};
use crate::selector;

#[derive(Clone, Debug, Default)]
pub struct Rules {
    cluster_roles: BTreeMap<String, ClusterRoleRules>,
    /// Namespace, then name.
    roles: HashMap<String, HashMap<String, Arc<[PolicyRule]>>>,
    cluster_bindings: Bindings,
    /// By namespace.
    bindings: HashMap<String, Bindings>,
}

#[derive(Clone, Debug)]
struct ClusterRoleRules {
    labels: BTreeMap<String, String>,
    /// Set for aggregated roles: their stored rules are overwritten by what the selectors find.
    selectors: Option<Vec<LabelSelector>>,
    rules: Arc<[PolicyRule]>,
}

#[derive(Clone, Debug, Default)]
struct Bindings {
    by_name: BTreeMap<String, Binding>,
    users: HashMap<String, BTreeSet<String>>,
    groups: HashMap<String, BTreeSet<String>>,
}

#[derive(Clone, Debug)]
struct Binding {
    role: RoleRef,
    subjects: Vec<Subject>,
}

impl Rules {
    pub fn new(
        cluster_roles: impl IntoIterator<Item = ClusterRole>,
        cluster_role_bindings: impl IntoIterator<Item = ClusterRoleBinding>,
        roles: impl IntoIterator<Item = Role>,
        role_bindings: impl IntoIterator<Item = RoleBinding>,
    ) -> Rules {
        let mut rules = Rules::default();
        cluster_roles.into_iter().for_each(|role| rules.insert_cluster_role(role));
        rules.aggregate();
        cluster_role_bindings.into_iter().for_each(|binding| rules.set_cluster_role_binding(binding));
        roles.into_iter().for_each(|role| rules.set_role(role));
        role_bindings.into_iter().for_each(|binding| rules.set_role_binding(binding));
        rules
    }

    pub fn set_cluster_role(&mut self, role: ClusterRole) {
        self.insert_cluster_role(role);
        self.aggregate();
    }

    pub fn remove_cluster_role(&mut self, name: &str) {
        self.cluster_roles.remove(name);
        self.aggregate();
    }

    pub fn set_role(&mut self, role: Role) {
        let namespace = role.metadata.namespace.unwrap_or_default();
        let name = role.metadata.name.unwrap_or_default();
        self.roles.entry(namespace).or_default().insert(name, role.rules.unwrap_or_default().into());
    }

    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        if let Some(roles) = self.roles.get_mut(namespace) {
            roles.remove(name);
            if roles.is_empty() {
                self.roles.remove(namespace);
            }
        }
    }

    pub fn set_cluster_role_binding(&mut self, binding: ClusterRoleBinding) {
        let name = binding.metadata.name.unwrap_or_default();
        self.cluster_bindings.set(name, "", binding.role_ref, binding.subjects.unwrap_or_default());
    }

    pub fn remove_cluster_role_binding(&mut self, name: &str) {
        self.cluster_bindings.remove(name, "");
    }

    pub fn set_role_binding(&mut self, binding: RoleBinding) {
        let namespace = binding.metadata.namespace.unwrap_or_default();
        let name = binding.metadata.name.unwrap_or_default();
        let bindings = self.bindings.entry(namespace.clone()).or_default();
        bindings.set(name, &namespace, binding.role_ref, binding.subjects.unwrap_or_default());
    }

    pub fn remove_role_binding(&mut self, namespace: &str, name: &str) {
        if let Some(bindings) = self.bindings.get_mut(namespace) {
            bindings.remove(name, namespace);
            if bindings.by_name.is_empty() {
                self.bindings.remove(namespace);
            }
        }
    }

    /// The aggregated ClusterRoles with the rules they stand for: what their stored `rules` should say.
    pub fn aggregated(&self) -> impl Iterator<Item = (&str, &[PolicyRule])> {
        self.cluster_roles
            .iter()
            .filter(|(_, role)| role.selectors.is_some())
            .map(|(n, role)| (n.as_str(), &*role.rules))
    }

    /// Every rule a user has in a namespace (none for the cluster scope), and what is wrong with some bindings.
    pub fn policy(&self, user: &User, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for grant in self.grants(user, namespace) {
            match grant.rules() {
                Ok(granted) => rules.extend_from_slice(granted),
                Err(error) => errors.push(error),
            }
        }
        (rules, errors)
    }

    /// The rules of the role a binding in `namespace` (none for a ClusterRoleBinding) points at.
    pub fn referenced(&self, role: &RoleRef, namespace: &str) -> Option<&[PolicyRule]> {
        match role.kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(&role.name).map(|found| &*found.rules),
            "Role" => self.roles.get(namespace)?.get(&role.name).map(|found| &**found),
            _ => None,
        }
    }

    /// The bindings that are about this user: the cluster's, then the namespace's.
    pub(crate) fn grants<'a>(&'a self, user: &User, namespace: &'a str) -> Vec<Grant<'a>> {
        let grant =
            |namespace| move |(name, binding): (&'a str, &'a Binding)| Grant { rules: self, namespace, name, binding };
        let mut grants: Vec<Grant<'a>> = self.cluster_bindings.about(user).map(grant("")).collect();
        if let Some(bindings) = self.bindings.get(namespace).filter(|_| !namespace.is_empty()) {
            grants.extend(bindings.about(user).map(grant(namespace)));
        }
        grants
    }

    fn insert_cluster_role(&mut self, role: ClusterRole) {
        let entry = ClusterRoleRules {
            labels: role.metadata.labels.unwrap_or_default(),
            selectors: role.aggregation_rule.map(|rule| rule.cluster_role_selectors.unwrap_or_default()),
            rules: role.rules.unwrap_or_default().into(),
        };
        self.cluster_roles.insert(role.metadata.name.unwrap_or_default(), entry);
    }

    /// Gives aggregated roles the rules of the roles they select, in upstream's order: selector by selector, roles by
    /// name, a rule once. A role may select other aggregated roles (admin, edit, view), also in a circle.
    fn aggregate(&mut self) {
        let aggregated: Vec<String> =
            self.cluster_roles.iter().filter(|(_, r)| r.selectors.is_some()).map(|(name, _)| name.clone()).collect();
        for name in &aggregated {
            // What is stored there may be from before a role lost its label.
            self.replace_rules(name, Vec::new());
        }
        // Each round carries rules at least one role further; without a circle the last round changes nothing.
        for _ in 0..=aggregated.len() {
            let mut changed = false;
            for name in &aggregated {
                let rules = self.selected_by(name);
                if *rules != *self.cluster_roles[name].rules {
                    changed = true;
                    self.replace_rules(name, rules);
                }
            }
            if !changed {
                break;
            }
        }
    }

    fn replace_rules(&mut self, name: &str, rules: Vec<PolicyRule>) {
        if let Some(role) = self.cluster_roles.get_mut(name) {
            role.rules = rules.into();
        }
    }

    fn selected_by(&self, name: &str) -> Vec<PolicyRule> {
        let selectors = self.cluster_roles.get(name).and_then(|role| role.selectors.as_deref()).unwrap_or_default();
        let mut out: Vec<PolicyRule> = Vec::new();
        // Validation refuses a selector that cannot be read; should one be stored, nothing is granted by it.
        for selector in selectors.iter().filter_map(selector::LabelSelector::from_object) {
            for (other, role) in &self.cluster_roles {
                if other != name && selector.matches(&role.labels) {
                    for rule in role.rules.iter() {
                        if !out.contains(rule) {
                            out.push(rule.clone());
                        }
                    }
                }
            }
        }
        out
    }
}

/// A binding that is about the user in question.
pub(crate) struct Grant<'a> {
    rules: &'a Rules,
    namespace: &'a str,
    name: &'a str,
    binding: &'a Binding,
}

impl<'a> Grant<'a> {
    pub(crate) fn rules(&self) -> Result<&'a [PolicyRule], String> {
        let role = &self.binding.role;
        self.rules.referenced(role, self.namespace).ok_or_else(|| match role.kind.as_str() {
            kind @ ("Role" | "ClusterRole") => {
                format!("{}.rbac.authorization.k8s.io {} not found", kind.to_lowercase(), quote(&role.name))
            }
            kind => format!("unsupported role reference kind: {}", quote(kind)),
        })
    }

    /// `RoleBinding "x/ns" of ClusterRole "view" to User "jane"`.
    pub(crate) fn describe(&self, user: &User) -> String {
        let role = &self.binding.role;
        let (kind, name) = match self.namespace {
            "" => ("ClusterRoleBinding", self.name.to_owned()),
            namespace => ("RoleBinding", format!("{}/{namespace}", self.name)),
        };
        let to = self.binding.subjects.iter().find(|subject| is_about(subject, self.namespace, user));
        let to = to.map(|subject| match subject.kind.as_str() {
            "ServiceAccount" => {
                let namespace = subject.namespace.as_deref().filter(|ns| !ns.is_empty()).unwrap_or(self.namespace);
                format!("ServiceAccount {}", quote(&format!("{}/{namespace}", subject.name)))
            }
            kind => format!("{kind} {}", quote(&subject.name)),
        });
        format!("{kind} {} of {} {} to {}", quote(&name), role.kind, quote(&role.name), to.unwrap_or_default())
    }
}

/// Whom a subject names.
enum About {
    User(String),
    Group(String),
}

impl About {
    /// `None` for a kind nobody knows, and for a ServiceAccount of no namespace.
    fn of(subject: &Subject, binding_namespace: &str) -> Option<About> {
        match subject.kind.as_str() {
            "User" => Some(About::User(subject.name.clone())),
            "Group" => Some(About::Group(subject.name.clone())),
            "ServiceAccount" => {
                let own = subject.namespace.as_deref().unwrap_or_default();
                let namespace = if own.is_empty() { binding_namespace } else { own };
                (!namespace.is_empty()).then(|| About::User(service_account_user(namespace, &subject.name)))
            }
            _ => None,
        }
    }
}

fn is_about(subject: &Subject, binding_namespace: &str, user: &User) -> bool {
    match About::of(subject, binding_namespace) {
        Some(About::User(name)) => name == user.name,
        Some(About::Group(group)) => user.in_group(&group),
        None => false,
    }
}

impl Bindings {
    fn set(&mut self, name: String, namespace: &str, role: RoleRef, subjects: Vec<Subject>) {
        self.remove(&name, namespace);
        for subject in &subjects {
            match About::of(subject, namespace) {
                Some(About::User(user)) => self.users.entry(user).or_default().insert(name.clone()),
                Some(About::Group(group)) => self.groups.entry(group).or_default().insert(name.clone()),
                None => false,
            };
        }
        self.by_name.insert(name, Binding { role, subjects });
    }

    fn remove(&mut self, name: &str, namespace: &str) {
        let Some(binding) = self.by_name.remove(name) else { return };
        for subject in &binding.subjects {
            match About::of(subject, namespace) {
                Some(About::User(user)) => forget(&mut self.users, &user, name),
                Some(About::Group(group)) => forget(&mut self.groups, &group, name),
                None => {}
            }
        }
    }

    fn about<'a>(&'a self, user: &User) -> impl Iterator<Item = (&'a str, &'a Binding)> + use<'a> {
        let mut names: BTreeSet<&'a str> = BTreeSet::new();
        let groups = user.groups.iter().filter_map(|group| self.groups.get(group));
        for set in self.users.get(&user.name).into_iter().chain(groups) {
            names.extend(set.iter().map(String::as_str));
        }
        names.into_iter().filter_map(|name| Some((name, self.by_name.get(name)?)))
    }
}

fn forget(index: &mut HashMap<String, BTreeSet<String>>, key: &str, name: &str) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}
