//! Label selectors: checking, matching, printing.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use usher_schema::field::Errors;

use super::at::At;
use super::common::{each_invalid, list};
use crate::registry::{meta, names};

pub fn validate(selector: &LabelSelector, at: &At, errors: &mut Errors) {
    if let Some(labels) = &selector.match_labels {
        meta::validate_labels(pairs(labels), &at.child("matchLabels"), errors);
    }
    let at = at.child("matchExpressions");
    for (i, requirement) in list(&selector.match_expressions).iter().enumerate() {
        validate_requirement(requirement, &at.index(i), errors);
    }
}

fn validate_requirement(requirement: &LabelSelectorRequirement, at: &At, errors: &mut Errors) {
    let values = list(&requirement.values);
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at.child("values").path(), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&at.child("values").path(), detail);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.invalid(&at.child("operator").path(), other, "not a valid selector operator"),
    }
    each_invalid(names::qualified(&requirement.key), &requirement.key, &at.child("key"), errors);
    for (i, value) in values.iter().enumerate() {
        each_invalid(names::label_value(value), value, &at.child("values").index(i), errors);
    }
}

/// Whether `labels` satisfy the selector; an unknown operator matches nothing. An empty selector matches everything.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    crate::selector::LabelSelector::from_object(selector).is_some_and(|selector| selector.matches(labels))
}

/// As `kubectl get` shows it.
pub fn format(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "<none>".to_owned() };
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        terms.push((key.clone(), format!("{key}={value}")));
    }
    for requirement in list(&selector.match_expressions) {
        let key = &requirement.key;
        let mut values = list(&requirement.values).to_vec();
        values.sort();
        let values = values.join(",");
        let text = match requirement.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".to_owned(),
        };
        terms.push((key.clone(), text));
    }
    if terms.is_empty() {
        return "<none>".to_owned();
    }
    terms.sort_by(|a, b| a.0.cmp(&b.0));
    terms.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

/// A label map as pairs of slices.
pub fn pairs(labels: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selector(value: serde_json::Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn expressions_are_checked_matched_and_printed() {
        let s = selector(json!({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "c", "operator": "NotIn", "values": ["y", "x"]}, {"key": "d", "operator": "Exists"}]}));
        assert_eq!(format(Some(&s)), "a=b,c notin (x,y),d");
        let labels = |v| serde_json::from_value::<BTreeMap<String, String>>(v).unwrap();
        assert!(matches(&s, &labels(json!({"a": "b", "d": "1"}))));
        assert!(!matches(&s, &labels(json!({"a": "b", "d": "1", "c": "x"}))));
        let mut errors = Errors::new();
        let bad = selector(json!({"matchExpressions": [
            {"key": "c", "operator": "In"}, {"key": "c", "operator": "Exists", "values": ["x"]}, {"key": "c", "operator": "Like"}]}));
        validate(&bad, &At::Root("spec"), &mut errors);
        assert_eq!(
            errors.to_string(),
            "[spec.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn', \
             spec.matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist', \
             spec.matchExpressions[2].operator: Invalid value: \"Like\": not a valid selector operator]"
        );
    }
}
