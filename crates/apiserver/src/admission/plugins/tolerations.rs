//! DefaultTolerationSeconds, and how tolerations are merged.

use serde_json::{Value, json};

use super::values::{items, list_mut, spec_mut, text};
use crate::object::Object;

/// How long a pod stays on a node that went away, unless it says otherwise.
const DEFAULT_SECS: i64 = 300;
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

pub fn add_default(pod: &mut Object) {
    let covers = |toleration: &Value, taint: &str| {
        let (key, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
        (key == taint || key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
    };
    let given = items(pod, "/spec/tolerations");
    let missing: Vec<&str> = TAINTS.into_iter().filter(|taint| !given.iter().any(|t| covers(t, taint))).collect();
    for taint in missing {
        list_mut(spec_mut(pod), "tolerations").push(json!({
            "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEFAULT_SECS,
        }));
    }
}

/// Both lists, without what another toleration covers; of two equal ones the first stays.
pub fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut merged: Vec<Value> = Vec::new();
    for (i, toleration) in all.iter().enumerate() {
        let covered_before = merged.iter().any(|other| covers(other, toleration));
        let covered_later = all[i + 1..].iter().any(|other| *other != *toleration && covers(other, toleration));
        if !covered_before && !covered_later {
            merged.push((*toleration).clone());
        }
    }
    merged
}

/// Whether `wide` tolerates everything that `narrow` does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let (key, operator, effect) = (text(wide, "/key"), text(wide, "/operator"), text(wide, "/effect"));
    let any_key = key.is_empty() && operator == "Exists";
    if text(narrow, "/key") != key && !any_key {
        return false;
    }
    if text(narrow, "/effect") != effect && !effect.is_empty() {
        return false;
    }
    let secs = |toleration: &Value| toleration.get("tolerationSeconds").and_then(Value::as_i64);
    if effect == "NoExecute"
        && let Some(limit) = secs(wide)
        && secs(narrow).is_none_or(|secs| secs > limit)
    {
        return false;
    }
    match operator {
        "" | "Equal" => text(narrow, "/operator") == "Equal" && text(narrow, "/value") == text(wide, "/value"),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn toleration(key: &str, effect: &str) -> Value {
        json!({"key": key, "operator": "Exists", "effect": effect})
    }

    #[test]
    fn only_what_is_not_tolerated_yet_is_added() {
        let keys = |given: Value| {
            let mut pod = json!({"spec": {"tolerations": given}});
            add_default(&mut pod);
            let list = items(&pod, "/spec/tolerations");
            list.iter().map(|t| (text(t, "/key").to_owned(), t["tolerationSeconds"].as_i64())).collect::<Vec<_>>()
        };
        let (not_ready, unreachable) = (TAINTS[0].to_owned(), TAINTS[1].to_owned());
        assert_eq!(keys(json!([])), [(not_ready.clone(), Some(300)), (unreachable.clone(), Some(300))]);
        let given = json!([toleration(&not_ready, "NoExecute")]);
        assert_eq!(keys(given), [(not_ready.clone(), None), (unreachable.clone(), Some(300))]);
        assert_eq!(keys(json!([{"operator": "Exists"}])), [(String::new(), None)]);
        assert_eq!(keys(json!([toleration(&not_ready, "NoSchedule")])).len(), 3);
    }

    #[test]
    fn a_wider_toleration_makes_a_narrower_one_superfluous() {
        let (wide, narrow) = (toleration("a", ""), toleration("a", "NoSchedule"));
        assert_eq!(merge(from_ref(&narrow), from_ref(&wide)), from_ref(&wide));
        assert_eq!(merge(from_ref(&wide), from_ref(&narrow)), from_ref(&wide));
        assert_eq!(merge(from_ref(&wide), from_ref(&wide)), from_ref(&wide));
        let other = toleration("b", "");
        assert_eq!(merge(from_ref(&wide), from_ref(&other)), [wide, other]);
    }
}
