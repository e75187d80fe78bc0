//! Does a flavor suit a pod set? Taints and tolerations, node selector and required node affinity against the flavor's labels.
//!
//! Only the flavor's own label keys count: a term that says nothing about them suits every flavor.

use std::collections::BTreeMap;

use crate::model::{Flavor, Operator, PodSet, Requirement, Taint, TaintEffect, Toleration, TolerationOperator};
use crate::reason::Mismatch;

/// The first thing about the flavor that does not suit the pod set.
pub fn mismatch(flavor: &Flavor, pod_set: &PodSet) -> Option<Mismatch> {
    let tolerated = |taint: &Taint| {
        pod_set.tolerations.iter().chain(&flavor.tolerations).any(|toleration| tolerates(toleration, taint))
    };
    let keeps_away = |taint: &&Taint| taint.effect != TaintEffect::PreferNoSchedule && !tolerated(taint);
    if let Some(taint) = flavor.taints.iter().find(keeps_away) {
        return Some(Mismatch::Taint(taint.clone()));
    }
    (!selects(pod_set, &flavor.labels)).then_some(Mismatch::Affinity)
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.is_empty() || toleration.key == taint.key;
    let effect = toleration.effect.is_none_or(|effect| effect == taint.effect);
    let number = |text: &str| text.parse::<i64>().ok();
    let value = match toleration.operator {
        TolerationOperator::Exists => true,
        TolerationOperator::Equal => toleration.value == taint.value,
        TolerationOperator::Lt => {
            number(&taint.value).zip(number(&toleration.value)).is_some_and(|(taint, own)| taint < own)
        }
        TolerationOperator::Gt => {
            number(&taint.value).zip(number(&toleration.value)).is_some_and(|(taint, own)| taint > own)
        }
    };
    key && effect && value
}

fn selects(pod_set: &PodSet, labels: &BTreeMap<String, String>) -> bool {
    let selected = pod_set.node_selector.iter().all(|(key, value)| labels.get(key).is_none_or(|own| own == value));
    selected && affine(pod_set, labels)
}

fn affine(pod_set: &PodSet, labels: &BTreeMap<String, String>) -> bool {
    let relevant = |requirement: &&Requirement| labels.contains_key(&requirement.key);
    if pod_set.affinity.is_empty() {
        return true;
    }
    pod_set.affinity.iter().any(|term| {
        let mut own = term.iter().filter(relevant).peekable();
        own.peek().is_none() || own.all(|requirement| holds(requirement, &labels[&requirement.key]))
    })
}

fn holds(requirement: &Requirement, value: &str) -> bool {
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = || requirement.values.first().and_then(|text| number(text));
    match requirement.operator {
        Operator::In => requirement.values.iter().any(|own| own == value),
        Operator::NotIn => requirement.values.iter().all(|own| own != value),
        Operator::Exists => true,
        Operator::DoesNotExist => false,
        Operator::Gt => number(value).zip(bound()).is_some_and(|(value, bound)| value > bound),
        Operator::Lt => number(value).zip(bound()).is_some_and(|(value, bound)| value < bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str) -> Taint {
        Taint { key: key.into(), value: value.into(), effect: TaintEffect::NoSchedule }
    }

    fn toleration(key: &str, operator: TolerationOperator, value: &str) -> Toleration {
        Toleration { key: key.into(), operator, value: value.into(), effect: None }
    }

    fn needs(key: &str, operator: Operator, values: &[&str]) -> Requirement {
        Requirement { key: key.into(), operator, values: values.iter().map(|value| value.to_string()).collect() }
    }

    #[test]
    fn a_taint_is_tolerated_by_the_pod_or_by_the_flavor_itself() {
        let mut flavor = Flavor { taints: vec![taint("spot", "true")], ..Flavor::default() };
        let plain = PodSet::default();
        assert_eq!(mismatch(&flavor, &plain), Some(Mismatch::Taint(taint("spot", "true"))));
        for (operator, value, suits) in [
            (TolerationOperator::Equal, "true", true),
            (TolerationOperator::Equal, "false", false),
            (TolerationOperator::Exists, "", true),
        ] {
            let pods = PodSet { tolerations: vec![toleration("spot", operator, value)], ..PodSet::default() };
            assert_eq!(mismatch(&flavor, &pods).is_none(), suits);
        }
        flavor.tolerations = vec![toleration("", TolerationOperator::Exists, "")];
        assert_eq!(mismatch(&flavor, &plain), None);
    }

    #[test]
    fn a_taint_that_only_prefers_keeps_nobody_away() {
        let soft = Taint { effect: TaintEffect::PreferNoSchedule, ..taint("spot", "") };
        assert_eq!(mismatch(&Flavor { taints: vec![soft], ..Flavor::default() }, &PodSet::default()), None);
    }

    #[test]
    fn numeric_tolerations_compare_the_taint_with_their_own_value() {
        let flavor = Flavor { taints: vec![taint("failure-rate", "5")], ..Flavor::default() };
        for (operator, value, suits) in [
            (TolerationOperator::Lt, "6", true),
            (TolerationOperator::Lt, "5", false),
            (TolerationOperator::Gt, "4", true),
            (TolerationOperator::Gt, "x", false),
        ] {
            let pods = PodSet { tolerations: vec![toleration("failure-rate", operator, value)], ..PodSet::default() };
            assert_eq!(mismatch(&flavor, &pods).is_none(), suits);
        }
    }

    #[test]
    fn selectors_and_affinity_count_only_for_the_flavors_own_keys() {
        let flavor = Flavor { labels: [("type".to_string(), "spot".to_string())].into(), ..Flavor::default() };
        let selector =
            |key: &str, value: &str| PodSet { node_selector: vec![(key.into(), value.into())], ..PodSet::default() };
        assert_eq!(mismatch(&flavor, &selector("type", "spot")), None);
        assert_eq!(mismatch(&flavor, &selector("zone", "a")), None);
        assert_eq!(mismatch(&flavor, &selector("type", "reserved")), Some(Mismatch::Affinity));
        for (terms, suits) in [
            (vec![vec![needs("type", Operator::In, &["spot", "x"])]], true),
            (vec![vec![needs("type", Operator::NotIn, &["spot"])]], false),
            (vec![vec![needs("type", Operator::NotIn, &["spot"])], vec![needs("zone", Operator::In, &["a"])]], true),
            (vec![vec![needs("type", Operator::DoesNotExist, &[]), needs("zone", Operator::In, &["a"])]], false),
        ] {
            assert_eq!(mismatch(&flavor, &PodSet { affinity: terms, ..PodSet::default() }).is_none(), suits);
        }
    }
}
