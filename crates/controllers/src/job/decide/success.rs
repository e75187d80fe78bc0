//! Whether the indexes that succeeded are enough for a Job's successPolicy.

use k8s_openapi::api::batch::v1::{SuccessPolicy, SuccessPolicyRule};

use super::Indexes;

/// The number of the first rule that is met.
pub fn met_rule(policy: &SuccessPolicy, completions: i32, succeeded: &Indexes) -> Option<usize> {
    if succeeded.is_empty() {
        return None;
    }
    policy.rules.iter().position(|rule| is_met(rule, completions, succeeded))
}

fn is_met(rule: &SuccessPolicyRule, completions: i32, succeeded: &Indexes) -> bool {
    match (&rule.succeeded_indexes, rule.succeeded_count) {
        (Some(text), count) => {
            let required = Indexes::parse(text, completions);
            let shared = required.shared(succeeded);
            // A rule without a readable index can never be met.
            !required.is_empty() && (shared == required.count() || count.is_some_and(|count| shared >= count))
        }
        (None, Some(count)) => succeeded.count() >= count,
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(indexes: Option<&str>, count: Option<i32>) -> SuccessPolicyRule {
        SuccessPolicyRule { succeeded_indexes: indexes.map(str::to_string), succeeded_count: count }
    }

    #[test]
    fn a_rule_is_met_by_all_its_indexes_or_by_enough_of_them() {
        for (rules, succeeded, met) in [
            (vec![rule(Some("0-2"), None)], "0,1", None),
            (vec![rule(Some("0-2"), None)], "0-3", Some(0)),
            (vec![rule(Some("0-4"), Some(2))], "1,9", None),
            (vec![rule(Some("0-4"), Some(2))], "1,4", Some(0)),
            (vec![rule(None, Some(3))], "7,8", None),
            (vec![rule(None, Some(3))], "7-9", Some(0)),
            (vec![rule(Some("0"), None), rule(None, Some(1))], "5", Some(1)),
            (vec![rule(Some("x"), Some(0))], "5", None),
            (vec![rule(None, Some(0))], "", None),
        ] {
            let policy = SuccessPolicy { rules: rules.clone() };
            assert_eq!(met_rule(&policy, 10, &Indexes::parse(succeeded, 10)), met, "{rules:?} with {succeeded}");
        }
    }
}
