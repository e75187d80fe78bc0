//! Aggregated ClusterRoles: `rules` is the union of the rules of the roles that `aggregationRule` selects.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{AggregationRule, ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;

use crate::runtime::objects::is_not_found;
use crate::runtime::{GroupResource, Key, Outcome, QueueMetrics, Signal, Store, Tasks, Watches, WorkQueue};

const MANAGER: &str = "clusterrole-aggregation-controller";

/// A ClusterRole, as far as aggregation reads it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Role {
    pub metadata: RoleMeta,
    pub aggregation_rule: Option<AggregationRule>,
    pub rules: Option<Vec<PolicyRule>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RoleMeta {
    pub name: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
}

/// The rules that `role` should have, if those it has are others. `all` is in order of name, and so is the union.
pub fn decide<'a>(role: &Role, all: impl Iterator<Item = &'a Role> + Clone) -> Option<Vec<PolicyRule>> {
    let aggregation = role.aggregation_rule.as_ref()?;
    let mut union: Vec<PolicyRule> = Vec::new();
    for selector in aggregation.cluster_role_selectors.iter().flatten() {
        // A selector that cannot be read selects nothing; validation keeps those out.
        let Ok(selector) = Selector::try_from(selector.clone()) else { continue };
        let selected = all.clone().filter(|other| {
            let no_labels = BTreeMap::new();
            other.metadata.name != role.metadata.name
                && selector.matches(other.metadata.labels.as_ref().unwrap_or(&no_labels))
        });
        for rule in selected.flat_map(|other| other.rules.iter().flatten()).map(plain) {
            if !union.contains(&rule) {
                union.push(rule);
            }
        }
    }
    let has: Vec<_> = role.rules.iter().flatten().map(plain).collect();
    (has != union).then_some(union)
}

/// Absent and empty lists are the same.
fn plain(rule: &PolicyRule) -> PolicyRule {
    let some = |list: &Option<Vec<String>>| list.clone().filter(|l| !l.is_empty());
    PolicyRule {
        api_groups: some(&rule.api_groups),
        non_resource_urls: some(&rule.non_resource_urls),
        resource_names: some(&rule.resource_names),
        resources: some(&rule.resources),
        verbs: rule.verbs.clone(),
    }
}

pub(crate) fn start(client: Client, watches: &Watches, tasks: &Tasks, metrics: &QueueMetrics) {
    let id = GroupResource::new("rbac.authorization.k8s.io", "clusterroles");
    let roles: Store<Role> = watches.view(&id);
    let mut signals = watches.subscribe(move |resource| resource.id == id);
    let queue = WorkQueue::new("ClusterRoleAggregator", metrics);
    let tasks_inside = tasks.clone();
    tasks.spawn(async move {
        let mut listed = false;
        while let Some(signal) = signals.recv().await {
            match signal {
                Signal::Synced(_) if !listed => {
                    listed = true;
                    run(&queue, client.clone(), roles.clone(), &tasks_inside);
                }
                Signal::Applied(..) | Signal::Deleted(..) => {}
                _ => continue,
            }
            if listed {
                // Few roles aggregate, and any role may be selected by any of them.
                let all = roles.all();
                let aggregated = all.iter().filter(|(_, role)| role.aggregation_rule.is_some());
                aggregated.for_each(|(key, _)| queue.add(key.clone()));
            }
        }
    });
}

fn run(queue: &WorkQueue<Key>, client: Client, roles: Store<Role>, tasks: &Tasks) {
    queue.run(1, tasks, move |key: Key| {
        let (client, roles) = (client.clone(), roles.clone());
        async move {
            let Some(role) = roles.get(&key) else { return Ok(Outcome::Settled) };
            let all = roles.all();
            match decide(&role, all.iter().map(|(_, role)| &**role)) {
                Some(rules) => apply(client, &key, rules).await,
                None => Ok(Outcome::Settled),
            }
        }
    });
}

async fn apply(client: Client, key: &Key, rules: Vec<PolicyRule>) -> Result<Outcome, kube::Error> {
    let mut role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": &*key.name},
    });
    if !rules.is_empty() {
        role["rules"] = json!(rules);
    }
    let params = PatchParams::apply(MANAGER).force();
    match Api::<ClusterRole>::all(client).patch(&key.name, &params, &Patch::Apply(role)).await {
        Err(error) if !is_not_found(&error) => Err(error),
        _ => Ok(Outcome::Settled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, label: Option<&str>, verbs: &[&str]) -> Role {
        let rules: Vec<_> = verbs
            .iter()
            .map(|v| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [v], "resourceNames": []}))
            .collect();
        let labels = label.map(|l| json!({ l: "true" }));
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "rules": rules})).unwrap()
    }

    fn aggregating(name: &str, labels: &[&str], has: &[&str]) -> Role {
        let selectors: Vec<_> = labels.iter().map(|l| json!({"matchLabels": {*l: "true"}})).collect();
        let rule = serde_json::from_value(json!({ "clusterRoleSelectors": selectors })).unwrap();
        Role { aggregation_rule: Some(rule), ..role(name, None, has) }
    }

    fn verbs(rules: Option<Vec<PolicyRule>>) -> Option<Vec<String>> {
        rules.map(|rules| rules.into_iter().flat_map(|r| r.verbs).collect())
    }

    #[test]
    fn the_union_has_each_rule_once_in_order_of_selector_and_name() {
        let admin = aggregating("admin", &["to-admin", "to-edit"], &[]);
        let all = [
            admin.clone(),
            role("b", Some("to-edit"), &["get", "list"]),
            role("c", Some("to-admin"), &["watch", "get"]),
            role("d", None, &["delete"]),
        ];
        assert_eq!(verbs(decide(&admin, all.iter())), Some(["watch", "get", "list"].map(String::from).to_vec()));
    }

    #[test]
    fn nothing_is_written_when_the_rules_are_right() {
        let admin = aggregating("admin", &["to-admin"], &["get"]);
        let all = [admin.clone(), role("b", Some("to-admin"), &["get"])];
        assert_eq!(decide(&admin, all.iter()), None);
        assert_eq!(decide(&all[1], all.iter()), None, "an ordinary role is nobody's business");
    }

    #[test]
    fn rules_go_when_the_selected_roles_go() {
        let admin = aggregating("admin", &["to-admin"], &["get"]);
        assert_eq!(verbs(decide(&admin, [admin.clone()].iter())), Some(vec![]));
    }

    #[test]
    fn a_role_never_selects_itself() {
        let mut admin = aggregating("admin", &["to-admin"], &["get"]);
        admin.metadata.labels = Some([("to-admin".to_string(), "true".to_string())].into());
        assert_eq!(verbs(decide(&admin, [admin.clone()].iter())), Some(vec![]));
    }
}
