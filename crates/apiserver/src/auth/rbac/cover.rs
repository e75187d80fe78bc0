//! Whether one set of rules allows everything another one does, and how a missing rule is shown.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::{list, path_matches};
use crate::auth::refusal::quote_list;

/// Whether `owner` allows everything that `wanted` does; otherwise the smallest rules that are missing.
///
/// As upstream: a wanted rule is split until each piece has one verb and one resource or path, and one rule of the owner
/// must allow a piece alone.
pub fn covers(owner: &[PolicyRule], wanted: &[PolicyRule]) -> Result<(), Vec<PolicyRule>> {
    let missing: Vec<PolicyRule> = wanted
        .iter()
        .flat_map(split)
        .filter(|piece| !owner.iter().any(|rule| piece.is_in(rule)))
        .map(Piece::rule)
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

/// One verb on one thing.
enum Piece<'a> {
    Resource { verb: &'a str, group: &'a str, resource: &'a str, name: Option<&'a str> },
    Path { verb: &'a str, path: &'a str },
}

fn split(rule: &PolicyRule) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let names = list(&rule.resource_names);
    for group in list(&rule.api_groups) {
        for resource in list(&rule.resources) {
            for verb in &rule.verbs {
                if names.is_empty() {
                    pieces.push(Piece::Resource { verb, group, resource, name: None });
                }
                pieces.extend(names.iter().map(|name| Piece::Resource { verb, group, resource, name: Some(name) }));
            }
        }
    }
    for path in list(&rule.non_resource_urls) {
        pieces.extend(rule.verbs.iter().map(|verb| Piece::Path { verb, path }));
    }
    pieces
}

impl Piece<'_> {
    fn is_in(&self, owner: &PolicyRule) -> bool {
        let has = |set: &[String], wanted: &str| set.iter().any(|s| s == "*" || s == wanted);
        match *self {
            Piece::Resource { verb, group, resource, name } => {
                let names = list(&owner.resource_names);
                has(&owner.verbs, verb)
                    && has(list(&owner.api_groups), group)
                    && list(&owner.resources).iter().any(|own| resource_covers(own, resource))
                    && (names.is_empty() || name.is_some_and(|name| names.iter().any(|own| own == name)))
            }
            // An owner's rule limited to names never covers a path, as upstream has it.
            Piece::Path { verb, path } => {
                has(&owner.verbs, verb)
                    && list(&owner.non_resource_urls).iter().any(|own| path_matches(own, path))
                    && list(&owner.resource_names).is_empty()
            }
        }
    }

    fn rule(self) -> PolicyRule {
        let one = |s: &str| Some(vec![s.to_owned()]);
        match self {
            Piece::Resource { verb, group, resource, name } => PolicyRule {
                api_groups: one(group),
                resources: one(resource),
                resource_names: name.and_then(one),
                verbs: vec![verb.to_owned()],
                non_resource_urls: None,
            },
            Piece::Path { verb, path } => {
                PolicyRule { non_resource_urls: one(path), verbs: vec![verb.to_owned()], ..PolicyRule::default() }
            }
        }
    }
}

/// `*` covers all, `*/scale` covers `jobs/scale`; a subresource is not part of its resource.
fn resource_covers(own: &str, wanted: &str) -> bool {
    own == "*"
        || own == wanted
        || wanted.split_once('/').is_some_and(|(_, sub)| own.strip_prefix("*/").is_some_and(|own| own == sub))
}

/// The missing rules as lines for people: pieces that differ in the verb only are joined, lines are sorted.
pub(crate) fn describe(missing: &[PolicyRule]) -> String {
    let mut joined: Vec<PolicyRule> = Vec::new();
    for rule in missing {
        let same = |other: &&mut PolicyRule| {
            rule.resources.is_some()
                && (&other.api_groups, &other.resources, &other.resource_names)
                    == (&rule.api_groups, &rule.resources, &rule.resource_names)
        };
        match joined.iter_mut().find(same) {
            Some(other) => other.verbs.extend_from_slice(&rule.verbs),
            None => joined.push(rule.clone()),
        }
    }
    let lines: BTreeSet<String> = joined.iter().map(compact).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
fn compact(rule: &PolicyRule) -> String {
    let parts: Vec<String> = [
        ("APIGroups", list(&rule.api_groups)),
        ("Resources", list(&rule.resources)),
        ("NonResourceURLs", list(&rule.non_resource_urls)),
        ("ResourceNames", list(&rule.resource_names)),
        ("Verbs", &rule.verbs),
    ]
    .into_iter()
    .filter(|(_, values)| !values.is_empty())
    .map(|(name, values)| format!("{name}:{}", quote_list(values)))
    .collect();
    format!("{{{}}}", parts.join(", "))
}
