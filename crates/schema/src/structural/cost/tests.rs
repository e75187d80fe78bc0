use serde_json::{Value, json};

use super::*;
use crate::expression::parse;
use crate::structural::{Options, Structural};

fn cost(schema: &Value, rule: &str) -> u64 {
    let root = json!({"type": "object", "properties": {"it": schema}});
    let structural = Structural::compile(&root).unwrap_or_else(|e| panic!("{schema}: {e}"));
    let props = structural.root.properties.get("it").unwrap();
    estimate(&parse(rule).unwrap_or_else(|e| panic!("{rule}: {e}")), props, false)
}

#[test]
fn rules_cost_what_upstream_estimates() {
    let mut wrong = Vec::new();
    let lines = include_str!("../../../testdata/costs.txt").lines().filter(|line| !line.starts_with('#'));
    let mut seen = 0;
    for line in lines {
        let parts: Vec<&str> = line.split('\t').collect();
        let [schema, rule, expected] = parts[..] else { panic!("{line}") };
        let found = cost(&serde_json::from_str(schema).unwrap(), rule);
        let right = match expected.parse::<u64>() {
            Ok(n) if n % 1_000_000 == 0 => found.abs_diff(n) <= n / 20,
            Ok(n) => found.abs_diff(n) <= 1 + n / 1_000_000,
            Err(_) => found >= 1_000_000_000,
        };
        if !right {
            wrong.push(format!("{rule} on {schema}: {found}, upstream {expected}"));
        }
        seen += 1;
    }
    assert!(seen > 30);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn refusals(schema: &Value, limit_costs: bool) -> Vec<String> {
    let options = Options { limit_costs, ..Options::default() };
    match Structural::compile_with(schema, &options) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn an_expensive_rule_is_refused_and_names_its_share_in_the_whole() {
    let list = json!({"type": "array", "items": {"type": "string"}, "maxItems": 100,
        "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"l": list}}}});
    let at = "spec.validation.openAPIV3Schema";
    let rule = format!("{at}.properties[spec].properties[l].x-kubernetes-validations[0].rule");
    let advice = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are \
                  declared)";
    assert_eq!(
        refusals(&schema, true),
        [
            format!("{rule}: Forbidden: estimated rule cost exceeds budget by factor of more than 100x {advice}"),
            format!(
                "{rule}: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
            ),
            format!(
                "{at}: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds \
                 budget by factor of 31.5x {advice}"
            ),
        ]
    );
    assert_eq!(refusals(&schema, false), Vec::<String>::new(), "a definition that was accepted stays so");
}

#[test]
fn a_rule_counts_as_often_as_its_node_can_occur() {
    let of = |max_items: Value| {
        let item = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self.contains('abc')"}]});
        let list = json!({"type": "array", "items": item, "maxItems": max_items});
        refusals(&json!({"type": "object", "properties": {"l": list}}), true).len()
    };
    assert_eq!(of(json!(5)), 0);
    assert_eq!(of(json!(1000)), 3);
    assert_eq!(of(Value::Null), 3, "as many as fit into a request");
}
