//! Whether a webhook wants to hear of a request: rules, then selectors, then conditions.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use serde_json::Value;

use super::conditions;
use super::config::Hook;
use crate::admission::{Operation, Review};
use crate::object::Object;
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::stored;

/// A webhook is to be called, with the object in this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    pub version: String,
}

/// What rules look at.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub operation: Operation,
    pub is_namespaced: bool,
}

impl<'a> Subject<'a> {
    pub fn of(review: &Review<'a>) -> Subject<'a> {
        let resource = review.resource();
        Subject {
            group: &resource.group,
            version: &resource.version,
            resource: &resource.plural,
            subresource: review.subresource,
            operation: review.operation,
            is_namespaced: resource.namespaced,
        }
    }

    pub fn matches(&self, rule: &RuleWithOperations) -> bool {
        let listed =
            |list: &Option<Vec<String>>, wanted: &str| list.iter().flatten().any(|item| item == "*" || item == wanted);
        let scope = match rule.scope.as_deref() {
            None | Some("" | "*") => true,
            Some("Namespaced") => self.is_namespaced,
            Some("Cluster") => !self.is_namespaced,
            Some(_) => false,
        };
        scope
            && listed(&rule.operations, self.operation.name())
            && listed(&rule.api_groups, self.group)
            && listed(&rule.api_versions, self.version)
            && rule.resources.iter().flatten().any(|resource| self.is_resource(resource))
    }

    /// `pods`, `pods/status`, `pods/*`, `*`, `*/scale`, `*/*`.
    fn is_resource(&self, listed: &str) -> bool {
        let (resource, subresource) = listed.split_once('/').unwrap_or((listed, ""));
        (resource == "*" || resource == self.resource) && (subresource == "*" || subresource == self.subresource)
    }
}

impl Hook {
    /// The version of the resource that a rule names. Those that were asked for come first.
    pub fn version_for(&self, subject: Subject<'_>, others: impl Fn() -> Vec<String>) -> Option<String> {
        if self.rules.iter().any(|rule| subject.matches(rule)) {
            return Some(subject.version.to_owned());
        }
        if !self.equivalent {
            return None;
        }
        let others = others();
        self.rules
            .iter()
            .find_map(|rule| others.iter().find(|version| Subject { version, ..subject }.matches(rule)).cloned())
    }
}

impl Server {
    /// Whether and how `hook` is to be called. An error if that cannot be told.
    pub(super) fn invocation(
        &self,
        hook: &Hook,
        review: &Review<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<Option<Invocation>> {
        // Rules are the cheapest to look at. Upstream asks the selectors first; only the order of refusals differs.
        let Some(version) = hook.version_for(Subject::of(review), || self.other_versions(review)) else {
            return Ok(None);
        };
        if !self.is_namespace_selected(hook, review, object)? || !is_object_selected(hook, object, old)? {
            return Ok(None);
        }
        let invocation = Invocation { version };
        if hook.conditions.is_empty() {
            return Ok(Some(invocation));
        }
        let shown = |object: Option<&Object>| super::review::shown(review, &invocation, object);
        let request = super::review::request(review, &invocation);
        match conditions::hold(&hook.conditions, shown(object), shown(old), &request) {
            Ok(hold) => Ok(hold.then_some(invocation)),
            Err(_) if hook.ignores_failure => Ok(None),
            Err(why) => Err(ApiError::forbidden(review.resource(), review.name, &why)),
        }
    }

    /// Versions in which the same objects are served.
    fn other_versions(&self, review: &Review<'_>) -> Vec<String> {
        let this = review.resource();
        let catalog = self.catalog();
        let same = catalog.all().map(|served| served.resource());
        same.filter(|r| r.group == this.group && r.plural == this.plural && r.version != this.version)
            .map(|r| r.version.clone())
            .collect()
    }

    /// The labels are those of the object's namespace; of a namespace its own, as they would be.
    fn is_namespace_selected(&self, hook: &Hook, review: &Review<'_>, object: Option<&Object>) -> Result<bool> {
        let is_namespace = review.resource().group.is_empty() && review.resource().plural == "namespaces";
        if review.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let selector = hook.namespaces.as_ref().map_err(|why| ApiError::internal(why.as_str()))?;
        if selector.is_everything() {
            return Ok(true);
        }
        if let Some(namespace) = object.filter(|_| is_namespace && review.subresource.is_empty()) {
            return Ok(selector.matches(&labels(namespace)));
        }
        match self.store().get("core/namespaces", review.namespace) {
            Some(entry) => Ok(selector.matches(&stored::labels(&entry.value))),
            None => Err(ApiError::not_found_core("namespaces", review.namespace)),
        }
    }
}

/// Either the new or the old object must be selected, so that nobody escapes by changing labels.
fn is_object_selected(hook: &Hook, object: Option<&Object>, old: Option<&Object>) -> Result<bool> {
    let selector = hook.objects.as_ref().map_err(|why| ApiError::internal(why.as_str()))?;
    Ok(selector.is_everything() || [object, old].into_iter().flatten().any(|o| selector.matches(&labels(o))))
}

fn labels(object: &Object) -> BTreeMap<&str, &str> {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    labels.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect()
}
