//! Roles and bindings. Whether somebody may grant what they grant is the authorizer's question, not asked here.

use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use serde_json::{Value, json};
use usher_schema::field::Errors;

use super::at::At;
use super::common::{default_text, each_invalid, list, one_of, text};
use super::json_field::{created_at_cells, created_at_columns};
use super::selector;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::{names, table};

const GROUP: &str = "rbac.authorization.k8s.io";
const RULES: At = At::Root("rules");
const SUBJECTS: At = At::Root("subjects");
const ROLE_REF: At = At::Root("roleRef");

pub struct Roles;

impl Kind for Roles {
    type Object = Role;

    fn resource(&self) -> Resource {
        Resource::namespaced(GROUP, "v1", "Role", "roles")
    }

    fn validate(&self, _cx: &Cx, role: &Role, errors: &mut Errors) {
        validate_rules(list(&role.rules), true, errors);
        require_verbs(list(&role.rules), errors);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        path_segment(name, prefix)
    }

    fn columns(&self) -> Vec<Column> {
        created_at_columns()
    }

    fn cells(&self, _role: &Role, meta: &Value, _now: Timestamp) -> Vec<Value> {
        created_at_cells(meta)
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

pub struct ClusterRoles;

impl Kind for ClusterRoles {
    type Object = ClusterRole;

    fn resource(&self) -> Resource {
        Resource::cluster(GROUP, "v1", "ClusterRole", "clusterroles")
    }

    fn validate(&self, _cx: &Cx, role: &ClusterRole, errors: &mut Errors) {
        validate_rules(list(&role.rules), false, errors);
        if let Some(aggregation) = &role.aggregation_rule {
            let at = At::Root("aggregationRule");
            let at = at.child("clusterRoleSelectors");
            let selectors = list(&aggregation.cluster_role_selectors);
            if selectors.is_empty() {
                let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
                errors.required(&at.path(), detail);
            }
            for (i, labels) in selectors.iter().enumerate() {
                selector::validate(labels, &at.index(i), errors);
            }
        }
        require_verbs(list(&role.rules), errors);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        path_segment(name, prefix)
    }

    fn columns(&self) -> Vec<Column> {
        created_at_columns()
    }

    fn cells(&self, _role: &ClusterRole, meta: &Value, _now: Timestamp) -> Vec<Value> {
        created_at_cells(meta)
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

pub struct RoleBindings;

impl Kind for RoleBindings {
    type Object = RoleBinding;

    fn resource(&self) -> Resource {
        Resource::namespaced(GROUP, "v1", "RoleBinding", "rolebindings")
    }

    fn default(&self, binding: &mut RoleBinding) {
        default_binding(&mut binding.role_ref, &mut binding.subjects);
    }

    fn validate(&self, _cx: &Cx, binding: &RoleBinding, errors: &mut Errors) {
        validate_binding(&binding.role_ref, list(&binding.subjects), true, errors);
        require_names(&binding.role_ref, list(&binding.subjects), errors);
    }

    fn validate_update(&self, _cx: &Cx, new: &RoleBinding, old: &RoleBinding, errors: &mut Errors) {
        validate_binding(&new.role_ref, list(&new.subjects), true, errors);
        same_role(&new.role_ref, &old.role_ref, errors);
        require_names(&new.role_ref, list(&new.subjects), errors);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        path_segment(name, prefix)
    }

    fn columns(&self) -> Vec<Column> {
        binding_columns()
    }

    fn cells(&self, binding: &RoleBinding, meta: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(&binding.role_ref, list(&binding.subjects), meta, now)
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

pub struct ClusterRoleBindings;

impl Kind for ClusterRoleBindings {
    type Object = ClusterRoleBinding;

    fn resource(&self) -> Resource {
        Resource::cluster(GROUP, "v1", "ClusterRoleBinding", "clusterrolebindings")
    }

    fn default(&self, binding: &mut ClusterRoleBinding) {
        default_binding(&mut binding.role_ref, &mut binding.subjects);
    }

    fn validate(&self, _cx: &Cx, binding: &ClusterRoleBinding, errors: &mut Errors) {
        validate_binding(&binding.role_ref, list(&binding.subjects), false, errors);
        require_names(&binding.role_ref, list(&binding.subjects), errors);
    }

    fn validate_update(&self, _cx: &Cx, new: &ClusterRoleBinding, old: &ClusterRoleBinding, errors: &mut Errors) {
        validate_binding(&new.role_ref, list(&new.subjects), false, errors);
        same_role(&new.role_ref, &old.role_ref, errors);
        require_names(&new.role_ref, list(&new.subjects), errors);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        path_segment(name, prefix)
    }

    fn columns(&self) -> Vec<Column> {
        binding_columns()
    }

    fn cells(&self, binding: &ClusterRoleBinding, meta: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(&binding.role_ref, list(&binding.subjects), meta, now)
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

/// Unlike other names, those of RBAC objects are checked in full even when they are only a prefix.
fn path_segment(name: &str, _prefix: bool) -> Vec<String> {
    names::path_segment(name, false)
}

fn validate_rules(rules: &[PolicyRule], namespaced: bool, errors: &mut Errors) {
    for (i, rule) in rules.iter().enumerate() {
        let at = RULES.index(i);
        let urls = list(&rule.non_resource_urls);
        let (groups, resources) = (list(&rule.api_groups), list(&rule.resources));
        if urls.is_empty() {
            if groups.is_empty() {
                errors.required(&at.child("apiGroups").path(), "resource rules must supply at least one api group");
            }
            if resources.is_empty() {
                errors.required(&at.child("resources").path(), "resource rules must supply at least one resource");
            }
            continue;
        }
        let at = at.child("nonResourceURLs");
        if namespaced {
            errors.invalid(&at.path(), urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if !groups.is_empty() || !resources.is_empty() || !list(&rule.resource_names).is_empty() {
            errors.invalid(&at.path(), urls, "rules cannot apply to both regular resources and non-resource URLs");
        }
    }
}

// Upstream checks these three in its schema since 1.37: their errors come last and without a detail.

fn require_verbs(rules: &[PolicyRule], errors: &mut Errors) {
    for (i, rule) in rules.iter().enumerate() {
        if rule.verbs.is_empty() {
            errors.required(&RULES.index(i).child("verbs").path(), "");
        }
    }
}

fn require_names(role: &RoleRef, subjects: &[Subject], errors: &mut Errors) {
    for (i, subject) in subjects.iter().enumerate() {
        if subject.name.is_empty() {
            errors.required(&SUBJECTS.index(i).child("name").path(), "");
        }
    }
    if role.name.is_empty() {
        errors.required(&ROLE_REF.child("name").path(), "");
    }
}

fn default_binding(role: &mut RoleRef, subjects: &mut Option<Vec<Subject>>) {
    default_text(&mut role.api_group, GROUP);
    for subject in subjects.iter_mut().flatten() {
        match subject.kind.as_str() {
            "User" | "Group" => default_text(&mut subject.api_group, GROUP),
            _ => subject.api_group = subject.api_group.take().filter(|group| !group.is_empty()),
        }
    }
}

fn validate_binding(role: &RoleRef, subjects: &[Subject], namespaced: bool, errors: &mut Errors) {
    one_of(text(&role.api_group), &[GROUP], &ROLE_REF.child("apiGroup"), errors);
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    one_of(&role.kind, kinds, &ROLE_REF.child("kind"), errors);
    if !role.name.is_empty() {
        each_invalid(path_segment(&role.name, false), &role.name, &ROLE_REF.child("name"), errors);
    }
    for (i, subject) in subjects.iter().enumerate() {
        validate_subject(subject, namespaced, &SUBJECTS.index(i), errors);
    }
}

fn validate_subject(subject: &Subject, namespaced: bool, at: &At, errors: &mut Errors) {
    let group = text(&subject.api_group);
    match subject.kind.as_str() {
        "ServiceAccount" => {
            if !subject.name.is_empty() {
                let problems = names::dns1123_subdomain(&subject.name, false);
                each_invalid(problems, &subject.name, &at.child("name"), errors);
            }
            one_of(group, &[""], &at.child("apiGroup"), errors);
            if !namespaced && text(&subject.namespace).is_empty() {
                errors.required(&at.child("namespace").path(), "");
            }
        }
        "User" | "Group" => one_of(group, &[GROUP], &at.child("apiGroup"), errors),
        other => errors.not_supported(&at.child("kind").path(), other, &["ServiceAccount", "User", "Group"]),
    }
}

fn same_role(new: &RoleRef, old: &RoleRef, errors: &mut Errors) {
    if new != old {
        let shown = json!({"APIGroup": text(&new.api_group), "Kind": new.kind, "Name": new.name});
        errors.immutable(&ROLE_REF.path(), shown);
    }
}

fn binding_columns() -> Vec<Column> {
    vec![
        table::name_column(),
        Column::new("Role", "string", 0, "The role that is granted."),
        table::age_column(),
        Column::new("Users", "string", 1, "Users it is granted to."),
        Column::new("Groups", "string", 1, "Groups it is granted to."),
        Column::new("ServiceAccounts", "string", 1, "Service accounts it is granted to."),
    ]
}

fn binding_cells(role: &RoleRef, subjects: &[Subject], meta: &Value, now: Timestamp) -> Vec<Value> {
    let joined = |kind: &str, show: &dyn Fn(&Subject) -> String| -> Value {
        let names: Vec<String> = subjects.iter().filter(|subject| subject.kind == kind).map(show).collect();
        names.join(", ").into()
    };
    vec![
        table::name_cell(meta),
        format!("{}/{}", role.kind, role.name).into(),
        table::age_cell(meta, now),
        joined("User", &|subject| subject.name.clone()),
        joined("Group", &|subject| subject.name.clone()),
        joined("ServiceAccount", &|subject| format!("{}/{}", text(&subject.namespace), subject.name)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create, create_errors, merged, update_errors};

    fn binding(extra: Value) -> Value {
        let base = json!({"metadata": {"name": "b", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "Group", "name": "g"}, {"kind": "Group", "name": "h"},
                {"kind": "ServiceAccount", "name": "s", "namespace": "n", "apiGroup": ""}]});
        merged(base, extra)
    }

    #[test]
    fn groups_are_defaulted_by_kind_of_subject() {
        let (stored, errors) = create(&ClusterRoleBindings, binding(json!({})));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(stored["roleRef"]["apiGroup"], GROUP);
        assert_eq!(stored["subjects"][0]["apiGroup"], GROUP);
        assert_eq!(stored["subjects"][3].get("apiGroup"), None);
    }

    #[test]
    fn rules_name_either_resources_or_urls() {
        let of = |rule: Value| json!({"metadata": {"name": "r"}, "rules": [rule]});
        let urls = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz"]});
        assert!(create_errors(&ClusterRoles, of(urls.clone())).is_empty());
        assert_eq!(
            create_errors(&Roles, of(urls)),
            [
                "rules[0].nonResourceURLs: Invalid value: [\"/healthz\"]: namespaced rules cannot apply to non-resource URLs"
            ]
        );
        let both = json!({"verbs": ["get"], "nonResourceURLs": ["/x"], "apiGroups": [""], "resources": ["pods"]});
        assert_eq!(
            create_errors(&ClusterRoles, of(both)),
            [
                "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and non-resource URLs"
            ]
        );
        assert_eq!(
            create_errors(&Roles, of(json!({}))),
            [
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
                "rules[0].verbs: Required value"
            ]
        );
    }

    #[test]
    fn an_aggregation_selects_something() {
        let role = json!({"metadata": {"name": "r"}, "aggregationRule": {"clusterRoleSelectors": []}});
        assert_eq!(
            create_errors(&ClusterRoles, role),
            [
                "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"
            ]
        );
    }

    #[test]
    fn bindings_name_a_role_and_known_subjects() {
        let bad = json!({"roleRef": {"apiGroup": "x", "kind": "Role", "name": "a/b"}, "subjects": [
            {"kind": "Robot", "name": "r"}, {"kind": "ServiceAccount", "name": "s"}, {"kind": "User", "name": ""}]});
        assert_eq!(
            create_errors(&ClusterRoleBindings, binding(bad)),
            [
                "roleRef.apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "roleRef.name: Invalid value: \"a/b\": may not contain '/'",
                "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
                "subjects[1].namespace: Required value",
                "subjects[2].name: Required value"
            ]
        );
    }

    #[test]
    fn the_role_of_a_binding_never_changes() {
        let new = binding(json!({"roleRef": {"name": "edit"}}));
        assert_eq!(
            update_errors(&RoleBindings, &Gates::default(), new, binding(json!({}))),
            [
                "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\"Name\":\"edit\"}: field is immutable"
            ]
        );
    }

    #[test]
    fn names_are_path_segments() {
        assert!(Roles.validate_name("system:node:a_B", false).is_empty());
        assert_eq!(ClusterRoles.validate_name("a%b", true), ["may not contain '%'"]);
    }

    #[test]
    fn columns_read_like_kubectls() {
        assert_eq!(
            Value::Array(cells(&RoleBindings, binding(json!({})))),
            json!(["b", "ClusterRole/view", "60m", "u", "g, h", "n/s"])
        );
        let role = json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(Value::Array(cells(&Roles, role)), json!(["r", "2026-01-01T00:00:00Z"]));
    }
}
