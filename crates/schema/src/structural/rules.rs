//! Rules (`x-kubernetes-validations`): compiled once with the schema, evaluated where an object has a value for them.
//!
//! `kube-cel` brings the language and Kubernetes' functions; walking, ratcheting and messages are done here, because they
//! must follow upstream and because converting a whole object for a rule that reads one field costs more than the rule.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::parser::Expression;
use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value as Cel};
use serde_json::Value;

use super::cost::{Budget, Times};
use super::fieldpath;
use super::ratchet::{OldItems, Pair};
use super::schema::{At, Props, Ty};
use super::typecheck::{self, Want};
use super::values::{self, Uses};
use crate::expression::parse;
use crate::field::{Error, Errors, Kind, Path};

/// Steps that the rules of one object may take together, and one rule alone; upstream's numbers, on a coarser measure.
const BUDGET: u64 = 10_000_000;
const RULE_BUDGET: u64 = 1_000_000;
/// What a `messageExpression` may produce, in bytes.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

thread_local! {
    /// Kubernetes' functions. Registering them costs far more than evaluating a rule.
    static FUNCTIONS: Context<'static> = functions();
}

/// The types that `type()` tells apart, by the names rules use for them.
const TYPES: [&str; 9] = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type"];

fn functions() -> Context<'static> {
    let mut functions = Context::default().with_all();
    functions.add_function("type", |value: Cel| -> ResolveResult {
        let name = match value {
            Cel::Int(_) => "int",
            Cel::UInt(_) => "uint",
            Cel::Float(_) => "double",
            Cel::Bool(_) => "bool",
            Cel::String(_) => "string",
            Cel::Bytes(_) => "bytes",
            Cel::List(_) => "list",
            Cel::Map(_) => "map",
            Cel::Null => "null_type",
            _ => "object",
        };
        Ok(Cel::String(Arc::new(name.to_owned())))
    });
    functions.add_function("dyn", |value: Cel| -> ResolveResult { Ok(value) });
    functions.add_function("bool", |value: Cel| -> ResolveResult {
        match &value {
            Cel::Bool(_) => Ok(value),
            Cel::String(s) if matches!(s.as_str(), "true" | "True" | "TRUE" | "t" | "1") => Ok(Cel::Bool(true)),
            Cel::String(s) if matches!(s.as_str(), "false" | "False" | "FALSE" | "f" | "0") => Ok(Cel::Bool(false)),
            _ => Err(ExecutionError::function_error("bool", "type conversion error to 'bool'")),
        }
    });
    for name in TYPES {
        functions.add_variable_from_value(name, Cel::String(Arc::new(name.to_owned())));
    }
    functions
}

#[derive(Debug, Default)]
pub(super) struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: Option<String>,
    pub field_path: String,
    pub optional_old_self: Option<bool>,
    compiled: Option<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    program: Expression,
    message: Option<Expression>,
    uses_old: bool,
    self_uses: Uses,
    old_uses: Uses,
    /// How deeply its loops nest.
    loops: u32,
    field_path: Option<Path>,
    /// The same in code, for rules of kinds that are written often.
    native: Option<usher_api::kueue::Native>,
}

impl Rule {
    pub fn declared(source: &Value) -> Rule {
        let text = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Rule {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: source.get("reason").and_then(Value::as_str).map(str::to_owned),
            field_path: text("fieldPath"),
            optional_old_self: source.get("optionalOldSelf").and_then(Value::as_bool),
            compiled: None,
        }
    }

    /// Refuses the rule as upstream does, showing it as Go prints its internal type.
    fn refuse(&self, at: &Path, detail: &str, errors: &mut Errors) {
        let text = |s: &str| go_json(&Value::from(s));
        let detail = format!(
            "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}: \
             {detail}",
            text(&self.rule),
            text(&self.message),
            text(&self.message_expression),
            self.reason.as_deref().map_or("null".to_owned(), text),
            text(&self.field_path),
            self.optional_old_self.map_or("null".to_owned(), |b| b.to_string()),
        );
        errors.0.push(Error { kind: Kind::Invalid, path: at.clone(), value: None, detail });
    }

    /// How the rule is named in messages about it.
    fn name(&self) -> &str {
        if self.message.is_empty() { self.rule.trim() } else { self.message.trim() }
    }

    fn detail(&self) -> String {
        if self.message.is_empty() {
            format!("failed rule: {}", self.rule.trim())
        } else {
            self.message.trim().to_owned()
        }
    }
}

/// Compiles the rules of a sound schema in place.
pub(super) fn compile(root: &mut Props, path: &Path, limit_costs: bool, errors: &mut Errors) {
    let mut budget = limit_costs.then(Budget::default);
    compile_node(
        root,
        path,
        &Place { resource: true, uncorrelatable: None, times: Times::once() },
        &mut budget,
        errors,
    );
    if let Some(budget) = budget {
        budget.settle(path, errors);
    }
}

/// What the nodes above say about a node.
struct Place<'a> {
    resource: bool,
    /// Where the items begin that cannot be told to be the same after an update.
    uncorrelatable: Option<&'a Path>,
    times: Times,
}

fn compile_node(props: &mut Props, path: &Path, place: &Place, budget: &mut Option<Budget>, errors: &mut Errors) {
    if !props.below.rules {
        return;
    }
    let Place { resource, uncorrelatable, times } = *place;
    let mut rules = std::mem::take(&mut props.rules);
    for (i, rule) in rules.iter_mut().enumerate() {
        let at = path.child("x-kubernetes-validations").index(i);
        rule.compiled = compile_rule(rule, props, resource, uncorrelatable, &at, errors);
        if let (Some(budget), Some(compiled)) = (budget.as_mut(), &rule.compiled) {
            budget.rule(&compiled.program, props, resource, times, &at.child("rule"), errors);
            if let Some(message) = &compiled.message {
                budget.message(message, props, resource, &at.child("messageExpression"), errors);
            }
        }
    }
    props.rules = rules;
    let times = times.below(props);
    // Only items of lists of type `map` can be told to be the same item after an update.
    let below_list = if props.is_list_map() { uncorrelatable } else { uncorrelatable.or(Some(path)) };
    for (name, field) in &mut props.properties {
        let embedded = field.embedded;
        let place = Place { resource: embedded, uncorrelatable, times };
        compile_node(field, &path.child("properties").key(name), &place, budget, errors);
    }
    if let super::schema::Additional::Schema(values) = &mut props.additional {
        let embedded = values.embedded;
        let place = Place { resource: embedded, uncorrelatable, times };
        compile_node(values, &path.child("additionalProperties"), &place, budget, errors);
    }
    if let super::schema::Items::Schema(items) = &mut props.items {
        let embedded = items.embedded;
        let place = Place { resource: embedded, uncorrelatable: below_list, times };
        compile_node(items, &path.child("items"), &place, budget, errors);
    }
}

fn compile_rule(
    rule: &Rule,
    props: &Props,
    resource: bool,
    uncorrelatable: Option<&Path>,
    at: &Path,
    errors: &mut Errors,
) -> Option<Compiled> {
    let scope = typecheck::Scope { props, resource, optional_old: rule.optional_old_self == Some(true) };
    let program = match checked(&rule.rule, &scope, Want::Bool) {
        Ok(program) => program,
        Err(Refusal::Type) => {
            rule.refuse(&at.child("rule"), "cel expression must evaluate to a bool", errors);
            return None;
        }
        Err(Refusal::Compile(why)) => {
            rule.refuse(&at.child("rule"), &format!("compilation failed: {why}"), errors);
            return None;
        }
    };
    let message = match rule.message_expression.trim() {
        "" => None,
        text => match checked(text, &scope, Want::String) {
            Ok(program) => Some(program),
            Err(refusal) => {
                let detail = match refusal {
                    Refusal::Type => "messageExpression must evaluate to a string".to_owned(),
                    Refusal::Compile(why) => format!("messageExpression compilation failed: {why}"),
                };
                rule.refuse(&at.child("messageExpression"), &detail, errors);
                return None;
            }
        },
    };
    let uses_old = program.references().has_variable("oldSelf");
    if let Some(path) = uncorrelatable.filter(|_| uses_old) {
        let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {path}");
        errors.invalid(&at.child("rule"), rule.rule.as_str(), detail);
    } else if let Some(optional) = rule.optional_old_self.filter(|_| !uses_old) {
        errors.invalid(&at.child("optionalOldSelf"), optional, "may not be set if oldSelf is not used in rule");
    }
    let (self_uses, old_uses) = Uses::of(&program);
    let field_path = Some(rule.field_path.as_str()).filter(|p| !p.is_empty());
    Some(Compiled {
        loops: values::loops(&program),
        field_path: field_path.and_then(|p| fieldpath::resolve(p, props, true).ok()).map(|(path, _)| path),
        native: usher_api::kueue::native(&rule.rule),
        program,
        message,
        uses_old,
        self_uses,
        old_uses,
    })
}

enum Refusal {
    Compile(String),
    Type,
}

/// Parses an expression and checks what can be checked of its types.
fn checked(source: &str, scope: &typecheck::Scope, want: Want) -> Result<Expression, Refusal> {
    let expression = parse(source).map_err(Refusal::Compile)?;
    let (problems, ty) = typecheck::check(&expression, source, scope, &is_function);
    if !problems.is_empty() {
        return Err(Refusal::Compile(problems.join("\n")));
    }
    if ty.is_not(want) { Err(Refusal::Type) } else { Ok(expression) }
}

/// Whether this build of the language has the function: asked by calling it without arguments.
fn is_function(space: Option<&str>, name: &str) -> bool {
    let missing = |result: Result<Cel, ExecutionError>| match result {
        Err(ExecutionError::UndeclaredReference(what)) => space.is_some() || *what == name,
        _ => false,
    };
    FUNCTIONS.with(|functions| {
        let exists = |source: String| -> bool {
            let call = AssertUnwindSafe(|| parse(&source).ok().map(|expression| functions.resolve(&expression)));
            !catch_unwind(call).ok().flatten().is_some_and(missing)
        };
        match space {
            Some(space) => exists(format!("{space}.{name}()")),
            None => exists(format!("{name}()")) && exists(format!("''.{name}()")),
        }
    })
}

/// Evaluates the rules of a node and of everything below it.
pub(super) fn validate(
    props: &Props,
    value: &Value,
    old: Option<&Value>,
    resource: bool,
    base: &Path,
    errors: &mut Errors,
) {
    let ratchet = Ratchet { current: old.map(|old| Pair { new: value, old, props }), parent: None };
    FUNCTIONS.with(|functions| {
        let mut walk = Walk { functions, budget: BUDGET, base, errors };
        walk.node(props, value, old, ratchet, resource, &At::Root);
    });
}

/// What is known of a value before the update; if nothing, what is known of its nearest ancestor.
#[derive(Clone, Copy)]
struct Ratchet<'a> {
    current: Option<Pair<'a>>,
    parent: Option<Pair<'a>>,
}

impl<'a> Ratchet<'a> {
    fn unchanged(self) -> bool {
        self.current.or(self.parent).is_some_and(Pair::unchanged)
    }

    fn key(self, key: &str) -> Ratchet<'a> {
        match self.current {
            None => self,
            // Conversions hide changes of these two.
            Some(_) if self.parent.is_none() && matches!(key, "apiVersion" | "kind") => {
                Ratchet { current: None, parent: None }
            }
            Some(current) => Ratchet { current: current.key(key), parent: Some(current) },
        }
    }
}

struct Walk<'w> {
    functions: &'w Context<'static>,
    budget: u64,
    base: &'w Path,
    errors: &'w mut Errors,
}

/// The budget is spent: nothing more is evaluated.
struct Spent;

impl Walk<'_> {
    fn node(
        &mut self,
        props: &Props,
        value: &Value,
        old: Option<&Value>,
        ratchet: Ratchet,
        resource: bool,
        at: &At,
    ) -> Option<Spent> {
        if !props.below.rules || value.is_null() {
            return None;
        }
        let old = old.filter(|old| !old.is_null());
        for rule in &props.rules {
            if let Some(spent) = self.rule(rule, props, value, old, ratchet, resource, at) {
                return Some(spent);
            }
        }
        match value {
            Value::Array(list) => self.array(props, list, old, ratchet, at),
            Value::Object(map) => {
                for (key, value) in map {
                    let Some((child, declared)) = props.child(key).filter(|(c, _)| c.below.rules) else { continue };
                    let old = old.and_then(|old| old.get(key));
                    let at = if declared { at.field(key) } else { at.key(key) };
                    if let Some(spent) = self.node(child, value, old, ratchet.key(key), child.embedded, &at) {
                        return Some(spent);
                    }
                }
                None
            }
            _ => None,
        }
    }

    fn array(
        &mut self,
        props: &Props,
        list: &[Value],
        old: Option<&Value>,
        ratchet: Ratchet,
        at: &At,
    ) -> Option<Spent> {
        let items = props.items().filter(|items| items.below.rules)?;
        let olds = old.and_then(Value::as_array).and_then(|old| OldItems::of(props, old));
        for (i, item) in list.iter().enumerate() {
            let old = olds.as_ref().and_then(|olds| olds.get(item));
            let ratchet = match ratchet.current {
                None => ratchet,
                Some(parent) => {
                    Ratchet { current: old.map(|old| Pair { new: item, old, props: items }), parent: Some(parent) }
                }
            };
            if let Some(spent) = self.node(items, item, old, ratchet, items.embedded, &at.index(i)) {
                return Some(spent);
            }
        }
        None
    }

    #[allow(clippy::too_many_arguments)]
    fn rule(
        &mut self,
        rule: &Rule,
        props: &Props,
        value: &Value,
        old: Option<&Value>,
        ratchet: Ratchet,
        resource: bool,
        at: &At,
    ) -> Option<Spent> {
        let compiled = rule.compiled.as_ref()?;
        let optional = rule.optional_old_self == Some(true);
        if compiled.uses_old && old.is_none() && !optional {
            return None;
        }
        if let Some(holds) = compiled.native.and_then(|native| native(value, old)) {
            if !holds {
                self.failed(rule, compiled, props, value, old, ratchet, resource, at);
            }
            return None;
        }
        let mut reader = values::Reader { widest: 0, unordered: compiled.uses_old };
        let mut scope = self.functions.new_inner_scope();
        scope.add_variable_from_value("self", reader.resource(value, props, &compiled.self_uses, resource));
        if compiled.uses_old {
            let old = old.map(|old| reader.resource(old, props, &compiled.old_uses, resource));
            if let Some(bound) = bind_old(old, optional) {
                scope.add_variable_from_value("oldSelf", bound);
            }
        }
        let cost = (reader.widest as u64).saturating_pow(compiled.loops);
        if cost > RULE_BUDGET || cost > self.budget {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.errors.invalid(&at.path(self.base), props.ty.name(), detail);
            return Some(Spent);
        }
        self.budget -= cost;
        let result = catch_unwind(AssertUnwindSafe(|| scope.resolve(&compiled.program)));
        match result {
            Ok(Ok(Cel::Bool(true))) => {}
            Ok(Ok(Cel::Bool(false))) => self.failed(rule, compiled, props, value, old, ratchet, resource, at),
            Ok(Ok(_)) => self.broken(props, at, "cel expression must evaluate to a bool".to_owned()),
            Ok(Err(error)) => self.broken(props, at, evaluation_error(&error, rule)),
            Err(_) => self.broken(props, at, format!("internal error evaluating rule: {}", rule.name())),
        }
        None
    }

    fn broken(&mut self, props: &Props, at: &At, detail: String) {
        self.errors.invalid(&at.path(self.base), props.ty.name(), detail);
    }

    #[allow(clippy::too_many_arguments)]
    fn failed(
        &mut self,
        rule: &Rule,
        compiled: &Compiled,
        props: &Props,
        value: &Value,
        old: Option<&Value>,
        ratchet: Ratchet,
        resource: bool,
        at: &At,
    ) {
        if !compiled.uses_old && ratchet.unchanged() {
            return;
        }
        let mut path = at.path(self.base);
        if let Some(below) = &compiled.field_path {
            path = path.child(below.as_str());
        }
        let detail = compiled
            .message
            .as_ref()
            .and_then(|program| self.message(program, props, value, old, resource))
            .unwrap_or_else(|| rule.detail());
        let shown = (!matches!(props.ty, Ty::Object | Ty::Array)).then(|| value.clone());
        let (kind, value, detail) = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => (Kind::Forbidden, None, detail),
            Some("FieldValueRequired") => (Kind::Required, None, detail),
            Some("FieldValueDuplicate") => (Kind::Duplicate, shown, String::new()),
            _ => (Kind::Invalid, shown, detail),
        };
        self.errors.0.push(Error { kind, path, value, detail });
    }

    /// The text of a `messageExpression`, unless it fails or is not fit to be shown.
    fn message(
        &self,
        program: &Expression,
        props: &Props,
        value: &Value,
        old: Option<&Value>,
        resource: bool,
    ) -> Option<String> {
        let mut reader = values::Reader { widest: 0, unordered: false };
        let mut scope = self.functions.new_inner_scope();
        scope.add_variable_from_value("self", reader.resource(value, props, &Uses::All, resource));
        if let Some(old) = old {
            scope.add_variable_from_value("oldSelf", reader.resource(old, props, &Uses::All, resource));
        }
        match catch_unwind(AssertUnwindSafe(|| scope.resolve(program))) {
            Ok(Ok(Cel::String(text))) => {
                let text = text.trim();
                let fits = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
                fits.then(|| text.to_owned())
            }
            _ => None,
        }
    }
}

fn bind_old(old: Option<Cel>, optional: bool) -> Option<Cel> {
    match (old, optional) {
        (Some(old), true) => Some(Cel::Opaque(Arc::new(OptionalValue::of(old)))),
        (None, true) => Some(Cel::Opaque(Arc::new(OptionalValue::none()))),
        (old, false) => old,
    }
}

fn evaluation_error(error: &ExecutionError, rule: &Rule) -> String {
    let text = match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::IndexOutOfBounds(Cel::Int(i)) => format!("index out of bounds: {i}"),
        ExecutionError::IndexOutOfBounds(_) => "index out of bounds".to_owned(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        ExecutionError::UndeclaredReference(name) => format!("undeclared reference to '{name}'"),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedTargetType { .. } => {
            return format!(
                "'no such overload': call arguments did not match a supported operator, function or macro signature for \
                 rule: {}",
                rule.name()
            );
        }
        other => other.to_string(),
    };
    format!("{text} evaluating rule: {}", rule.name())
}

/// JSON as Go writes it, which escapes what HTML would read.
fn go_json(value: &Value) -> String {
    value.to_string().replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}
