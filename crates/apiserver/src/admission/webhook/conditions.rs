//! `matchConditions`: CEL expressions over `object`, `oldObject` and `request`, all of which must be true for a call.
//!
//! Left out: `authorizer`, which is an undeclared reference here, and a bound on the cost of evaluation.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::{Key, Map as CelMap};
use kube_cel::cel::parser::Expression;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};
use serde_json::Value;

/// An expression, or why it is none.
pub struct Condition(Result<Expression, String>);

thread_local! {
    /// Kubernetes' functions. Registering them costs far more than evaluating an expression.
    static FUNCTIONS: Context<'static> = Context::default().with_all();
}

impl Condition {
    pub fn compile(source: &str) -> Condition {
        Condition(usher_schema::expression::parse(source).map_err(|why| format!("compilation failed: {why}")))
    }
}

/// Whether all conditions hold. One that is false decides, whatever fails beside it.
pub fn hold(
    conditions: &[Condition],
    object: Option<Value>,
    old: Option<Value>,
    request: &Value,
) -> Result<bool, String> {
    FUNCTIONS.with(|functions| {
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("object", object.map_or(Cel::Null, |o| cel(&o)));
        context.add_variable_from_value("oldObject", old.map_or(Cel::Null, |o| cel(&o)));
        context.add_variable_from_value("request", cel(request));
        let mut problems: Vec<String> = Vec::new();
        for condition in conditions {
            match condition.0.as_ref().map_err(Clone::clone).and_then(|expression| evaluate(&context, expression)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(why) => problems.push(why),
            }
        }
        match problems.as_slice() {
            [] => Ok(true),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    })
}

fn evaluate(context: &Context<'_>, expression: &Expression) -> Result<bool, String> {
    match catch_unwind(AssertUnwindSafe(|| context.resolve(expression))) {
        Ok(Ok(Cel::Bool(holds))) => Ok(holds),
        Ok(Ok(_)) => Err("expression result type is not bool".to_owned()),
        Ok(Err(ExecutionError::NoSuchKey(key))) => Err(format!("no such key: {key}")),
        Ok(Err(ExecutionError::UndeclaredReference(name))) => {
            Err(format!("compilation failed: undeclared reference to '{name}' (in container '')"))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("evaluation failed".to_owned()),
    }
}

/// Whole numbers are ints, as they are in Kubernetes' unstructured objects.
fn cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => n.as_i64().map_or_else(|| Cel::Float(n.as_f64().unwrap_or(f64::NAN)), Cel::Int),
        Value::String(s) => Cel::String(Arc::new(s.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(cel).collect())),
        Value::Object(fields) => {
            let entry = |(key, value): (&String, &Value)| (Key::String(Arc::new(key.clone())), cel(value));
            Cel::Map(CelMap { map: Arc::new(fields.iter().map(entry).collect::<HashMap<_, _>>()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(expressions: &[&str]) -> Result<bool, String> {
        let conditions: Vec<Condition> = expressions.iter().map(|e| Condition::compile(e)).collect();
        let object = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"team": "a"}},
            "spec": {"replicas": 3}});
        let request = json!({"operation": "CREATE", "namespace": "shop", "userInfo": {"username": "jane",
            "groups": ["dev"]}, "resource": {"group": "", "resource": "pods"}, "dryRun": false});
        hold(&conditions, Some(object), None, &request)
    }

    #[test]
    fn conditions_see_the_object_and_the_request() {
        for (expression, expected) in [
            ("object.metadata.name == 'web'", true),
            ("object.metadata.namespace == request.namespace", true),
            ("object.spec.replicas > 3", false),
            ("object.spec.replicas + 1 == 4", true),
            ("oldObject == null", true),
            ("request.operation == 'UPDATE'", false),
            ("!('system:nodes' in request.userInfo.groups)", true),
            ("has(object.metadata.labels) && object.metadata.labels['team'] in ['a', 'b']", true),
            ("!has(object.spec.paused)", true),
            ("request.userInfo.groups.exists(g, g == 'dev')", true),
            ("request.resource.resource.startsWith('po')", true),
        ] {
            assert_eq!(check(&[expression]), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn one_false_condition_decides_whatever_fails_beside_it() {
        assert_eq!(check(&["object.nothing.here == 1", "false"]), Ok(false));
        assert_eq!(check(&["true", "object.nothing.here == 1"]), Err("no such key: nothing".to_owned()));
    }

    #[test]
    fn what_is_no_condition_is_an_error_and_no_panic() {
        let deep = "(".repeat(5000);
        for bad in ["object.", "1 + 1", "authorizer.group('').check('x')", "", "'", deep.as_str(), "nobody == 1"] {
            assert!(check(&[bad]).is_err(), "{bad}");
        }
    }
}
