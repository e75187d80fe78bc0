//! What a default role or binding that is already stored lacks.
//!
//! As upstream at every start: rules, subjects, labels and annotations are added, never taken away, and an object whose
//! `autoupdate` annotation is `false` is left alone.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::AUTO_UPDATE;
use crate::auth::rbac::covers;

/// The stored default role with what it lacks added; `None` when nothing is, or when its owner said to leave it alone.
pub fn cluster_role(stored: &ClusterRole, default: &ClusterRole) -> Option<ClusterRole> {
    let mut role = stored.clone();
    if default.aggregation_rule.is_some() {
        // The rules of an aggregated role follow from others; only its selectors are ours to complete.
        let wanted = default.aggregation_rule.iter().flat_map(|rule| rule.cluster_role_selectors.iter().flatten());
        let selectors = role.aggregation_rule.get_or_insert_default().cluster_role_selectors.get_or_insert_default();
        for selector in wanted {
            if !selectors.contains(selector) {
                selectors.push(selector.clone());
            }
        }
    } else {
        add_missing(&mut role.rules, &default.rules);
    }
    complete(&mut role.metadata, &default.metadata);
    (may_update(&stored.metadata) && role != *stored).then_some(role)
}

/// As [`cluster_role`].
pub fn role(stored: &Role, default: &Role) -> Option<Role> {
    let mut role = stored.clone();
    add_missing(&mut role.rules, &default.rules);
    complete(&mut role.metadata, &default.metadata);
    (may_update(&stored.metadata) && role != *stored).then_some(role)
}

/// The stored default binding with the subjects it lacks. A binding to another role is its owner's business.
pub fn cluster_role_binding(stored: &ClusterRoleBinding, default: &ClusterRoleBinding) -> Option<ClusterRoleBinding> {
    let mut binding = stored.clone();
    add_subjects(&mut binding.subjects, &default.subjects);
    complete(&mut binding.metadata, &default.metadata);
    let ours = may_update(&stored.metadata) && stored.role_ref == default.role_ref;
    (ours && binding != *stored).then_some(binding)
}

/// As [`cluster_role_binding`].
pub fn role_binding(stored: &RoleBinding, default: &RoleBinding) -> Option<RoleBinding> {
    let mut binding = stored.clone();
    add_subjects(&mut binding.subjects, &default.subjects);
    complete(&mut binding.metadata, &default.metadata);
    let ours = may_update(&stored.metadata) && stored.role_ref == default.role_ref;
    (ours && binding != *stored).then_some(binding)
}

fn may_update(metadata: &ObjectMeta) -> bool {
    metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(AUTO_UPDATE))
        .is_none_or(|value| value != "false")
}

fn add_missing(stored: &mut Option<Vec<PolicyRule>>, wanted: &Option<Vec<PolicyRule>>) {
    let have = stored.as_deref().unwrap_or_default();
    if let Err(missing) = covers(have, wanted.as_deref().unwrap_or_default()) {
        stored.get_or_insert_default().extend(missing);
    }
}

fn add_subjects(stored: &mut Option<Vec<Subject>>, wanted: &Option<Vec<Subject>>) {
    for subject in wanted.iter().flatten() {
        if !stored.iter().flatten().any(|have| have == subject) {
            stored.get_or_insert_default().push(subject.clone());
        }
    }
}

fn complete(stored: &mut ObjectMeta, default: &ObjectMeta) {
    for (key, value) in default.labels.iter().flatten() {
        stored.labels.get_or_insert_default().entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in default.annotations.iter().flatten() {
        stored.annotations.get_or_insert_default().entry(key.clone()).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::bootstrap::{cluster_role_bindings, cluster_roles, group, role_ref, rule};
    use crate::auth::identity::AUTHENTICATED;

    #[test]
    fn an_older_store_gets_what_it_lacks_unless_it_was_told_not_to() {
        let all = cluster_roles();
        let default = all.iter().find(|role| role.metadata.name.as_deref() == Some("system:basic-user")).unwrap();
        assert_eq!(cluster_role(default, default), None);
        let mut old = default.clone();
        old.rules = Some(vec![
            rule(&["create"], &["authorization.k8s.io"], &["selfsubjectaccessreviews"]),
            rule(&["get"], &[""], &["own"]),
        ]);
        old.metadata.labels = None;
        let new = cluster_role(&old, default).unwrap();
        assert_eq!(covers(new.rules.as_ref().unwrap(), default.rules.as_ref().unwrap()), Ok(()));
        assert!(new.rules.as_ref().unwrap().contains(&rule(&["get"], &[""], &["own"])));
        assert_eq!(new.metadata.labels, default.metadata.labels);
        assert_eq!(cluster_role(&new, default), None);
        old.metadata.annotations = Some([(AUTO_UPDATE.to_owned(), "false".to_owned())].into());
        assert_eq!(cluster_role(&old, default), None);

        let view = all.iter().find(|role| role.metadata.name.as_deref() == Some("view")).unwrap();
        let mut emptied = view.clone();
        emptied.rules = None;
        assert_eq!(cluster_role(&emptied, view), None, "aggregation fills it");

        let default = &cluster_role_bindings()[2];
        let mut old = default.clone();
        old.subjects = Some(vec![group("mine")]);
        let new = cluster_role_binding(&old, default).unwrap();
        assert_eq!(new.subjects.unwrap(), [group("mine"), group(AUTHENTICATED)]);
        old.role_ref = role_ref("ClusterRole", "view");
        assert_eq!(cluster_role_binding(&old, default), None);
    }
}
