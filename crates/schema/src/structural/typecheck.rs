//! What can be refused of a rule before any object exists: fields the schema does not have, names nobody declared,
//! comparisons of different types, results of the wrong type.
//!
//! A small part of the language's type checker: where it does not know a type it says [`Type::Dyn`] and accepts, so it
//! never refuses what upstream accepts.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue};

use super::formats::Format;
use super::schema::{Props, Ty};
use super::values::{children, escape};

/// Where an expression stands.
pub(super) struct Scope<'p> {
    pub props: &'p Props,
    /// Whether `self` is a resource, whose type and names are visible without being declared.
    pub resource: bool,
    /// Whether `oldSelf` is an optional.
    pub optional_old: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Want {
    Bool,
    String,
}

#[derive(Clone, Debug)]
pub(super) enum Type<'p> {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Null,
    Timestamp,
    Duration,
    List(Box<Type<'p>>),
    Map(Box<Type<'p>>),
    Object { props: &'p Props, resource: bool },
    Metadata,
}

impl Type<'_> {
    pub fn is_not(&self, want: Want) -> bool {
        !matches!((self, want), (Type::Dyn, _) | (Type::Bool, Want::Bool) | (Type::String, Want::String))
    }

    fn scalar(&self) -> Option<&'static str> {
        Some(match self {
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "timestamp",
            Type::Duration => "duration",
            _ => return None,
        })
    }
}

/// The problems of an expression, and its type.
pub(super) fn check<'p>(
    expr: &IdedExpr,
    source: &str,
    scope: &Scope<'p>,
    has_function: &dyn Fn(Option<&str>, &str) -> bool,
) -> (Vec<String>, Type<'p>) {
    let this = of(scope.props, scope.resource);
    let old = if scope.optional_old { Type::Dyn } else { this.clone() };
    let mut checker = Checker {
        source,
        names: vec![("self".to_owned(), this), ("oldSelf".to_owned(), old)],
        problems: Vec::new(),
        has_function,
    };
    let ty = checker.infer(expr);
    (checker.problems, ty)
}

/// One problem as the language's own compiler prints it, with a pointer at its place.
fn problem(source: &str, offset: usize, text: &str) -> String {
    let line_start = source[..offset].rfind('\n').map_or(0, |i| i + 1);
    let line_number = source[..offset].matches('\n').count() + 1;
    let line = source[line_start..].lines().next().unwrap_or_default();
    let column = source[line_start..offset].chars().count();
    format!("ERROR: <input>:{line_number}:{}: {text}\n | {line}\n | {}^", column + 1, ".".repeat(column))
}

fn of(props: &Props, resource: bool) -> Type<'_> {
    if props.int_or_string {
        return Type::Dyn;
    }
    match props.ty {
        Ty::Unset | Ty::Other => Type::Dyn,
        Ty::Boolean => Type::Bool,
        Ty::Integer => Type::Int,
        Ty::Number => Type::Double,
        Ty::String => match props.format {
            Some(Format::DateTime | Format::Date) => Type::Timestamp,
            Some(Format::Duration) => Type::Duration,
            Some(Format::Byte) => Type::Bytes,
            _ => Type::String,
        },
        Ty::Array => Type::List(Box::new(props.items().map_or(Type::Dyn, |items| of(items, items.embedded)))),
        Ty::Object => match props.additional() {
            Some(values) => Type::Map(Box::new(of(values, values.embedded))),
            None if props.has_additional() => Type::Map(Box::new(Type::Dyn)),
            None => Type::Object { props, resource },
        },
    }
}

struct Checker<'p, 'f> {
    source: &'f str,
    /// Innermost last.
    names: Vec<(String, Type<'p>)>,
    problems: Vec<String>,
    has_function: &'f dyn Fn(Option<&str>, &str) -> bool,
}

impl<'p> Checker<'p, '_> {
    /// Reports a problem at the first place where the text `at` occurs: the parser keeps no positions.
    fn report(&mut self, at: &str, text: &str) {
        let offset = self.source.find(at).unwrap_or(0);
        self.report_at(offset, text);
    }

    /// Calls are located at their parenthesis.
    fn report_call(&mut self, name: &str, text: &str) {
        let offset = self.source.find(&format!("{name}(")).map_or(0, |i| i + name.len());
        self.report_at(offset, text);
    }

    /// Selections are located at their dot, those in `has()` at the macro's parenthesis.
    fn report_field(&mut self, field: &str, test: bool, text: &str) {
        let dot = self.source.find(&format!(".{field}")).unwrap_or(0);
        let has = if test { self.source[..dot].rfind("has(").map(|i| i + 3) } else { None };
        self.report_at(has.unwrap_or(dot), text);
    }

    fn report_at(&mut self, offset: usize, text: &str) {
        let problem = problem(self.source, offset, text);
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn infer(&mut self, expr: &IdedExpr) -> Type<'p> {
        match &expr.expr {
            Expr::Unspecified | Expr::Map(_) | Expr::Struct(_) => {
                let mut parts = Vec::new();
                children(expr, &mut |child| parts.push(child));
                for part in parts {
                    self.infer(part);
                }
                if matches!(expr.expr, Expr::Map(_)) { Type::Map(Box::new(Type::Dyn)) } else { Type::Dyn }
            }
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Bytes(_) => Type::Bytes,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::UInt(_) => Type::Uint,
                LiteralValue::String(_) => Type::String,
                LiteralValue::Null => Type::Null,
            },
            Expr::Ident(name) => self.name(name),
            Expr::List(list) => {
                let types: Vec<Type> = list.elements.iter().map(|e| self.infer(e)).collect();
                let same = types.windows(2).all(|w| w[0].scalar().is_some() && w[0].scalar() == w[1].scalar());
                let item = types.into_iter().next().filter(|_| same).unwrap_or(Type::Dyn);
                Type::List(Box::new(item))
            }
            Expr::Select(select) => {
                let operand = self.infer(&select.operand);
                let ty = self.field(operand, &select.field, select.test);
                if select.test { Type::Bool } else { ty }
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn name(&mut self, name: &str) -> Type<'p> {
        const TYPES: [&str; 13] = [
            "int",
            "uint",
            "double",
            "bool",
            "string",
            "bytes",
            "list",
            "map",
            "null_type",
            "type",
            "timestamp",
            "duration",
            "optional_type",
        ];
        if let Some((_, ty)) = self.names.iter().rev().find(|(known, _)| known == name) {
            return ty.clone();
        }
        if !TYPES.contains(&name) && !name.starts_with('@') && !name.starts_with("__") && !name.contains('.') {
            self.report(name, &format!("undeclared reference to '{name}' (in container '')"));
        }
        Type::Dyn
    }

    fn field(&mut self, operand: Type<'p>, field: &str, test: bool) -> Type<'p> {
        let found = match &operand {
            Type::Object { props, resource } => {
                let declared = props.properties.iter().find(|(name, _)| escape(name).as_deref() == Some(field));
                match declared {
                    Some((name, _)) if *resource && name == "metadata" => Some(Type::Metadata),
                    Some((_, child)) => Some(of(child, child.embedded)),
                    None if *resource && field == "metadata" => Some(Type::Metadata),
                    None if *resource && matches!(field, "apiVersion" | "kind") => Some(Type::String),
                    None => None,
                }
            }
            Type::Metadata => matches!(field, "name" | "generateName").then_some(Type::String),
            Type::Map(values) => Some((**values).clone()),
            Type::Dyn | Type::Null => Some(Type::Dyn),
            other => {
                let name = other.scalar().unwrap_or("list");
                self.report_field(field, test, &format!("type '{name}' does not support field selection"));
                return Type::Dyn;
            }
        };
        found.unwrap_or_else(|| {
            self.report_field(field, test, &format!("undefined field '{field}'"));
            Type::Dyn
        })
    }

    fn call(&mut self, call: &CallExpr) -> Type<'p> {
        let name = call.func_name.as_str();
        let target = match call.target.as_deref() {
            // `sets.contains(...)`: the target is no value but the first half of the function's name.
            Some(IdedExpr { expr: Expr::Ident(space), .. }) if !self.names.iter().any(|(known, _)| known == space) => {
                if !(self.has_function)(Some(space), name) {
                    let text = format!("undeclared reference to '{space}.{name}' (in container '')");
                    self.report_call(name, &text);
                }
                None
            }
            Some(target) => {
                let ty = self.infer(target);
                self.function(name);
                Some(ty)
            }
            None => {
                self.function(name);
                None
            }
        };
        let args: Vec<Type> = call.args.iter().map(|arg| self.infer(arg)).collect();
        match (name, args.as_slice()) {
            ("_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => {
                self.comparable(name, a, b);
                Type::Bool
            }
            ("_&&_" | "_||_", [a, b]) => {
                self.logical(name, a, b);
                Type::Bool
            }
            ("!_" | "@in" | "@not_strictly_false", _) => Type::Bool,
            ("startsWith" | "endsWith" | "contains" | "matches", _) => Type::Bool,
            ("size", _) => Type::Int,
            ("_?_:_", [_, a, b]) => match (a.scalar(), b.scalar()) {
                (Some(x), Some(y)) if x == y => a.clone(),
                _ => Type::Dyn,
            },
            ("_[_]", [Type::List(item), _]) => (**item).clone(),
            ("_[_]", [Type::Map(value), _]) => (**value).clone(),
            ("_+_", [Type::String, Type::String]) => Type::String,
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [Type::Int, Type::Int]) => Type::Int,
            ("string", [_]) => Type::String,
            ("int", [_]) => Type::Int,
            ("format" | "lowerAscii" | "upperAscii" | "trim" | "replace" | "substring" | "join", _)
                if matches!(target, Some(Type::String)) || name == "format" || name == "join" =>
            {
                Type::String
            }
            _ => Type::Dyn,
        }
    }

    fn function(&mut self, name: &str) {
        let plain = name.starts_with(|c: char| c.is_ascii_alphabetic());
        if plain && !(self.has_function)(None, name) {
            self.report_call(name, &format!("undeclared reference to '{name}' (in container '')"));
        }
    }

    fn comparable(&mut self, operator: &str, a: &Type, b: &Type) {
        let (Some(x), Some(y)) = (a.scalar(), b.scalar()) else { return };
        let numeric = |t: &str| matches!(t, "int" | "uint" | "double");
        let across = !matches!(operator, "_==_" | "_!=_") && numeric(x) && numeric(y);
        if x != y && !across {
            let text = format!("found no matching overload for '{operator}' applied to '({x}, {y})'");
            self.report(operator.trim_matches('_'), &text);
        }
    }

    fn logical(&mut self, operator: &str, a: &Type, b: &Type) {
        for ty in [a, b] {
            if let Some(name) = ty.scalar().filter(|name| *name != "bool") {
                let text = format!("expected type 'bool' but found '{name}'");
                self.report(operator.trim_matches('_'), &text);
            }
        }
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Type<'p> {
        let range = self.infer(&c.iter_range);
        let (first, second) = match range {
            Type::List(item) if c.iter_var2.is_none() => (*item, Type::Dyn),
            Type::List(item) => (Type::Int, *item),
            Type::Map(value) => (Type::String, *value),
            _ => (Type::Dyn, Type::Dyn),
        };
        let accumulated = self.infer(&c.accu_init);
        let depth = self.names.len();
        self.names.push((c.accu_var.clone(), accumulated));
        self.names.push((c.iter_var.clone(), first));
        if let Some(name) = &c.iter_var2 {
            self.names.push((name.clone(), second));
        }
        self.infer(&c.loop_cond);
        self.infer(&c.loop_step);
        self.names.truncate(depth + 1);
        let result = self.infer(&c.result);
        self.names.truncate(depth);
        result
    }
}
