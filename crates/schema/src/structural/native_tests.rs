//! Rules that run as code say what their CEL says.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::{Value, json};

use super::Structural;
use crate::field::Errors;

/// The schema of Workloads, and the same one with rules whose text nobody knows.
fn schemas() -> (Structural, Structural) {
    fn disguise(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(rule)) = fields.get_mut("rule") {
                    rule.insert(0, ' ');
                }
                fields.values_mut().for_each(disguise);
            }
            Value::Array(items) => items.iter_mut().for_each(disguise),
            _ => {}
        }
    }
    let all = usher_api::kueue::definitions();
    let workloads = all.into_iter().find(|d| d["spec"]["names"]["plural"] == "workloads").unwrap();
    let schema = workloads.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone();
    let mut slow = schema.clone();
    disguise(&mut slow);
    (Structural::compile(&schema).unwrap(), Structural::compile(&slow).unwrap())
}

fn maybe(key: &'static str, values: Vec<Value>) -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    prop_oneof![Just(None), proptest::sample::select(values).prop_map(Some)]
        .prop_map(move |value| value.map(|value| (key, value)).into_iter().collect())
}

fn object(fields: impl IntoIterator<Item = Vec<(&'static str, Value)>>) -> Value {
    Value::Object(fields.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn workload() -> impl Strategy<Value = Value> {
    let class = |group: &str, kind: &str, name: &str| json!({"group": group, "kind": kind, "name": name});
    let classes = vec![
        class("scheduling.k8s.io", "PriorityClass", "a"),
        class("scheduling.k8s.io", "PriorityClass", "b"),
        class("kueue.x-k8s.io", "WorkloadPriorityClass", "a"),
        class("kueue.x-k8s.io", "WorkloadPriorityClass", "b"),
    ];
    let set = |name: &str, min: i64| json!({"name": name, "count": 2, "minCount": min, "template": {}});
    let sets = vec![json!([set("a", 1)]), json!([set("a", 3)]), json!([set("a", 1), set("b", 2)])];
    let spec = (
        maybe("podSets", sets),
        maybe("priorityClassRef", classes),
        maybe("priority", vec![json!(1), json!(2)]),
        maybe("queueName", vec![json!("a"), json!("b")]),
        maybe("maximumExecutionTimeSeconds", vec![json!(1), json!(2)]),
    );
    let spec = spec.prop_map(|(a, b, c, d, e)| object([a, b, c, d, e]));
    let condition = |ty: &str, status: &str| json!({"type": ty, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let conditions = vec![
        json!([]),
        json!([condition("QuotaReserved", "True")]),
        json!([condition("QuotaReserved", "False"), condition("Admitted", "True")]),
        json!([condition("QuotaReserved", "True"), condition("Admitted", "True")]),
    ];
    let admissions = vec![
        json!({"clusterQueue": "q"}),
        json!({"podSetAssignments": [{"name": "a"}]}),
        json!({"podSetAssignments": [{"name": "a"}, {"name": "b"}]}),
    ];
    let status = (
        maybe("conditions", conditions),
        maybe("admission", admissions),
        maybe("clusterName", vec![json!("a"), json!("b")]),
        maybe("nominatedClusterNames", vec![json!([]), json!(["a"])]),
    );
    let status = status.prop_map(|(a, b, c, d)| object([a, b, c, d]));
    (proptest::option::of(spec), proptest::option::of(status)).prop_map(|(spec, status)| {
        let mut whole = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w"}});
        for (name, part) in [("spec", spec), ("status", status)] {
            if let Some(part) = part {
                whole[name] = part;
            }
        }
        whole
    })
}

#[test]
fn rules_in_code_refuse_what_their_cel_refuses() {
    let (fast, slow) = schemas();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut refused = 0;
    let pairs = (workload(), proptest::option::of(workload()));
    for _ in 0..4000 {
        let (new, old) = pairs.new_tree(&mut runner).unwrap().current();
        let said = |schema: &Structural| {
            let mut errors = Errors::new();
            schema.validate(&new, old.as_ref(), &mut errors);
            errors
        };
        let (fast, slow) = (said(&fast), said(&slow));
        assert_eq!(fast, slow, "{new:#} was {old:#?}");
        refused += usize::from(!slow.is_empty());
    }
    assert!((400..3600).contains(&refused), "{refused} of 4000 were refused: nothing is compared");
}
