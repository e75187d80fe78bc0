//! What a rule can cost at worst, estimated from the schema before any object exists: a definition whose rules could keep
//! the server busy is refused when it is written.
//!
//! The numbers are those of CEL's own estimator and of Kubernetes' additions to it, because a definition must be accepted
//! here exactly when it is there. Sizes come from `maxItems`, `maxLength` and their like, or from what fits into a
//! request. Only upper bounds are kept: the lower ones decide nothing. Start at [`Budget`].

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};

use super::formats::Format;
use super::schema::{Props, Ty};
use super::values::escape;
use crate::field::{Errors, Path};

const RULE_LIMIT: u64 = 10_000_000;
const SCHEMA_LIMIT: u64 = 100_000_000;
const REQUEST_BYTES: u64 = 3 * 1024 * 1024;
/// Of rules that make a schema too expensive, this many are named.
const NAMED: usize = 4;

const TRAVERSAL: f64 = 0.1;
const REGEX: f64 = 0.25;
const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;
const STRUCT_COST: u64 = 40;

/// The sum of a schema's rules, and which of them weigh most.
#[derive(Default)]
pub(super) struct Budget {
    total: u64,
    expensive: Vec<(u64, Path)>,
}

impl Budget {
    /// Adds a rule that can be evaluated `times` times for one object.
    pub fn rule(
        &mut self,
        rule: &IdedExpr,
        props: &Props,
        resource: bool,
        times: Times,
        at: &Path,
        errors: &mut Errors,
    ) {
        let each = estimate(rule, props, resource);
        let times = times.0.unwrap_or_else(|| REQUEST_BYTES / (min_bytes(props, resource) + 1));
        self.observe("estimated rule cost", each.saturating_mul(times), at, errors);
    }

    /// Adds a `messageExpression`, which is evaluated once.
    pub fn message(&mut self, message: &IdedExpr, props: &Props, resource: bool, at: &Path, errors: &mut Errors) {
        self.observe("estimated messageExpression cost", estimate(message, props, resource), at, errors);
    }

    fn observe(&mut self, what: &str, cost: u64, at: &Path, errors: &mut Errors) {
        if cost > RULE_LIMIT {
            errors.forbidden(at, exceeds(what, cost, RULE_LIMIT));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= SCHEMA_LIMIT / 100 {
            self.expensive.push((cost, at.clone()));
        }
    }

    /// Says so if the rules of the whole schema are too expensive together.
    pub fn settle(mut self, schema: &Path, errors: &mut Errors) {
        if self.total <= SCHEMA_LIMIT {
            return;
        }
        self.expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, at) in self.expensive.iter().take(NAMED) {
            errors.forbidden(
                at,
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            );
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.forbidden(schema, exceeds(what, self.total, SCHEMA_LIMIT));
    }
}

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// How often a node can occur in one object; `None` where only the size of a request bounds it.
#[derive(Clone, Copy)]
pub(super) struct Times(Option<u64>);

impl Times {
    pub fn once() -> Times {
        Times(Some(1))
    }

    /// Of the children of a node that occurs so often.
    pub fn below(self, props: &Props) -> Times {
        let factor = match props.ty {
            Ty::Object if props.has_additional() => props.max_properties.map(non_negative),
            Ty::Array => props.max_items.map(non_negative),
            _ => Some(1),
        };
        Times(self.0.zip(factor).map(|(times, factor)| times.saturating_mul(factor)))
    }
}

fn non_negative(n: i64) -> u64 {
    n.max(0).unsigned_abs()
}

/// What an expression costs at most.
fn estimate(expression: &IdedExpr, props: &Props, resource: bool) -> u64 {
    let root = Declared::Node { props, resource };
    let variable = || Variable { declared: Some(root), kind: root.kind(), size: None, entry: None };
    let variables = vec![("self".to_owned(), variable()), ("oldSelf".to_owned(), variable())];
    Estimator { root, variables }.node(expression).cost
}

/// Where in the schema a value is declared.
#[derive(Clone, Copy)]
enum Declared<'p> {
    Node {
        props: &'p Props,
        resource: bool,
    },
    Metadata,
    /// A string that only a request bounds: a resource's kind, version or name.
    Text,
    /// A key of a map, whose length upstream does not count.
    Key,
    /// Nowhere that upstream could follow.
    Lost,
}

/// As much of a type as costs depend on.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Of one size: numbers, booleans, times.
    Scalar,
    String,
    Bytes,
    List,
    Map,
    Struct,
    Unknown,
}

impl<'p> Declared<'p> {
    fn kind(self) -> Kind {
        match self {
            Declared::Metadata => Kind::Struct,
            Declared::Text | Declared::Key => Kind::String,
            Declared::Lost => Kind::Unknown,
            Declared::Node { props, .. } if props.int_or_string => Kind::Unknown,
            Declared::Node { props, .. } => match props.ty {
                Ty::Unset | Ty::Other => Kind::Unknown,
                Ty::Boolean | Ty::Integer | Ty::Number => Kind::Scalar,
                Ty::String => match props.format {
                    Some(Format::DateTime | Format::Date | Format::Duration) => Kind::Scalar,
                    Some(Format::Byte) => Kind::Bytes,
                    _ => Kind::String,
                },
                Ty::Array => Kind::List,
                Ty::Object if props.has_additional() => Kind::Map,
                Ty::Object => Kind::Struct,
            },
        }
    }

    /// How many items, members or bytes it has at most. Upstream has 0 for what cannot grow.
    fn size(self) -> Option<u64> {
        match self {
            Declared::Text => Some(REQUEST_BYTES - 2),
            Declared::Metadata | Declared::Key => Some(0),
            Declared::Node { props, .. } => Some(max_size(props)),
            Declared::Lost => None,
        }
    }

    fn field(self, name: &str) -> Declared<'p> {
        let Declared::Node { props, resource } = self else {
            let named = matches!(self, Declared::Metadata) && matches!(name, "name" | "generateName");
            return if named { Declared::Text } else { Declared::Lost };
        };
        match name {
            "metadata" if resource => return Declared::Metadata,
            "kind" | "apiVersion" if resource => return Declared::Text,
            _ => {}
        }
        let child = props.properties.iter().find(|(key, _)| escape(key).as_deref() == Some(name));
        // The members of a map have no names that upstream's estimator knows.
        let child = child.filter(|_| !props.has_additional());
        child.map_or(Declared::Lost, |(_, child)| Declared::Node { props: child, resource: child.embedded })
    }

    /// Of the items of a list or the values of a map.
    fn element(self) -> Declared<'p> {
        let Declared::Node { props, .. } = self else { return Declared::Lost };
        let element = props.items().or_else(|| props.additional());
        element.map_or(Declared::Lost, |element| Declared::Node { props: element, resource: element.embedded })
    }
}

fn max_size(props: &Props) -> u64 {
    let characters = |max: i64| non_negative(max).saturating_mul(4);
    if props.int_or_string {
        return props.max_length.map_or(REQUEST_BYTES - 2, characters);
    }
    match props.ty {
        Ty::Array => props.max_items.map(non_negative).unwrap_or_else(|| {
            let item = props.items().map_or(0, |items| min_bytes(items, items.embedded));
            (REQUEST_BYTES - 2) / (item + 1)
        }),
        Ty::Object => props.additional().map_or(0, |values| {
            let value = min_bytes(values, values.embedded);
            props.max_properties.map_or((REQUEST_BYTES - 2) / (value + 6), non_negative)
        }),
        Ty::String => match (props.format, props.max_length) {
            (Some(Format::Duration | Format::DateTime), _) => 32,
            (Some(Format::Date), _) => 12,
            (Some(Format::Byte), Some(max)) => non_negative(max),
            (_, Some(max)) => characters(max),
            (None, None) if !props.allowed.is_empty() => {
                let lengths = props.allowed.iter().filter_map(|value| value.as_str()).map(str::len);
                lengths.max().unwrap_or(0) as u64
            }
            _ => REQUEST_BYTES - 2,
        },
        _ => 0,
    }
}

/// The fewest bytes a value takes as JSON.
fn min_bytes(props: &Props, resource: bool) -> u64 {
    if props.int_or_string {
        return 1;
    }
    match props.ty {
        Ty::Boolean => 4,
        Ty::Integer | Ty::Number => 1,
        Ty::String => match props.format {
            Some(Format::Duration) => 3,
            Some(Format::Date) => 12,
            Some(Format::DateTime) => 21,
            _ => 2,
        },
        Ty::Object if !props.has_additional() => {
            let required = props.required.iter().filter_map(|name| Some((name, props.properties.get(name)?)));
            let required = required.filter(|(name, child)| {
                child.default.is_none() && !(resource && super::schema::is_meta(name)) && child.ty != Ty::Unset
            });
            required.fold(2, |sum, (name, child)| sum + name.len() as u64 + min_bytes(child, child.embedded) + 4)
        }
        _ => 2,
    }
}

/// Sizes of what a list or map holds.
#[derive(Clone, Copy)]
struct Entry {
    list: bool,
    key: u64,
    value: u64,
}

impl Entry {
    fn union(a: Option<Entry>, b: Option<Entry>) -> Option<Entry> {
        let (a, b) = a.zip(b)?;
        Some(Entry { list: a.list, key: a.key.max(b.key), value: a.value.max(b.value) })
    }
}

#[derive(Clone, Copy)]
struct Variable<'p> {
    declared: Option<Declared<'p>>,
    kind: Kind,
    size: Option<u64>,
    entry: Option<Entry>,
}

/// What is known of a part of an expression.
#[derive(Clone, Copy)]
struct Node<'p> {
    cost: u64,
    declared: Option<Declared<'p>>,
    kind: Kind,
    /// What follows from the expression itself.
    size: Option<u64>,
    /// What is known of a variable otherwise.
    bound: Option<u64>,
    entry: Option<Entry>,
}

impl Node<'_> {
    fn new(cost: u64, kind: Kind) -> Node<'static> {
        Node { cost, declared: None, kind, size: None, bound: None, entry: None }
    }

    fn size(&self) -> u64 {
        let declared = self.declared.and_then(Declared::size);
        let scalar = (self.kind == Kind::Scalar).then_some(1);
        self.size.or(declared).or(scalar).or(self.bound).unwrap_or(u64::MAX)
    }
}

/// A share of a size, rounded up.
fn share(size: u64, factor: f64) -> u64 {
    let product = (size as f64 * factor).ceil();
    if product >= u64::MAX as f64 { u64::MAX } else { product as u64 }
}

struct Estimator<'p> {
    /// Where upstream's estimator lands with whatever has no place in the schema of its own.
    root: Declared<'p>,
    /// Innermost last.
    variables: Vec<(String, Variable<'p>)>,
}

impl<'p> Estimator<'p> {
    fn node(&mut self, expression: &IdedExpr) -> Node<'p> {
        match &expression.expr {
            Expr::Unspecified => Node::new(0, Kind::Unknown),
            Expr::Literal(literal) => {
                let (kind, size) = match literal {
                    LiteralValue::String(text) => (Kind::String, text.inner().chars().count() as u64),
                    LiteralValue::Bytes(bytes) => (Kind::Bytes, bytes.inner().len() as u64),
                    _ => (Kind::Scalar, 1),
                };
                Node { size: Some(size), ..Node::new(0, kind) }
            }
            Expr::Ident(name) => match self.variables.iter().rev().find(|(known, _)| known == name) {
                Some((_, v)) => {
                    Node { cost: 1, declared: v.declared, kind: v.kind, size: None, bound: v.size, entry: v.entry }
                }
                None => Node { declared: Some(self.root), ..Node::new(1, Kind::Unknown) },
            },
            Expr::Select(select) => {
                let operand = self.node(&select.operand);
                if select.test {
                    return Node::new(operand.cost, Kind::Scalar);
                }
                let looks_up = matches!(operand.kind, Kind::Map | Kind::Struct);
                let declared = operand.declared.map_or(self.root, |d| d.field(&select.field));
                let kind = match operand.kind {
                    Kind::Unknown => Kind::Unknown,
                    Kind::Map => operand.declared.map_or(Kind::Unknown, |d| d.element().kind()),
                    _ => declared.kind(),
                };
                let declared = Some(declared);
                Node { declared, ..Node::new(operand.cost.saturating_add(u64::from(looks_up)), kind) }
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let items: Vec<Node> = list.elements.iter().map(|item| self.node(item)).collect();
                let value = items.iter().map(Node::size).max().unwrap_or(0);
                let cost = items.iter().fold(LIST_COST, |sum, item| sum.saturating_add(item.cost));
                let entry = Some(Entry { list: true, key: 1, value });
                Node { size: Some(items.len() as u64), entry, ..Node::new(cost, Kind::List) }
            }
            Expr::Map(map) => {
                let (mut cost, mut key, mut value) = (MAP_COST, 0, 0);
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        let (k, v) = (self.node(&entry.key), self.node(&entry.value));
                        cost = cost.saturating_add(k.cost).saturating_add(v.cost);
                        (key, value) = (key.max(k.size()), value.max(v.size()));
                    }
                }
                let entry = Some(Entry { list: false, key, value });
                Node { size: Some(map.entries.len() as u64), entry, ..Node::new(cost, Kind::Map) }
            }
            Expr::Struct(fields) => {
                let mut cost = STRUCT_COST;
                for entry in &fields.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        cost = cost.saturating_add(self.node(&field.value).cost);
                    }
                }
                Node::new(cost, Kind::Unknown)
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Node<'p> {
        let range = self.node(&c.iter_range);
        let init = self.node(&c.accu_init);
        let depth = self.variables.len();
        let variable =
            |n: &Node<'p>, size: Option<u64>| Variable { declared: n.declared, kind: n.kind, size, entry: n.entry };
        self.variables.push((c.accu_var.clone(), variable(&init, Some(init.size()))));
        let is_list = range.entry.map_or(range.kind == Kind::List, |entry| entry.list);
        let key = || Variable {
            declared: Some(range.declared.map_or(self.root, |_| if is_list { Declared::Lost } else { Declared::Key })),
            kind: if is_list { Kind::Scalar } else { Kind::String },
            size: range.entry.map(|entry| entry.key),
            entry: None,
        };
        let element = range.declared.map_or(self.root, Declared::element);
        let value = Variable {
            declared: Some(element),
            kind: if range.declared.is_some() && range.kind != Kind::Unknown { element.kind() } else { Kind::Unknown },
            size: range.entry.map(|entry| entry.value),
            entry: None,
        };
        match &c.iter_var2 {
            Some(second) => {
                self.variables.push((c.iter_var.clone(), key()));
                self.variables.push((second.clone(), value));
            }
            None if is_list || range.kind == Kind::Unknown => self.variables.push((c.iter_var.clone(), value)),
            None => self.variables.push((c.iter_var.clone(), key())),
        }
        let condition = self.node(&c.loop_cond);
        let step = self.node(&c.loop_step);
        self.variables.truncate(depth + 1);
        let result = self.node(&c.result);
        self.variables.truncate(depth);
        let turns = range.size().saturating_mul(step.cost.saturating_add(condition.cost));
        let cost = [range.cost, init.cost, result.cost, turns].into_iter().fold(0, u64::saturating_add);
        match &c.accu_init.expr {
            Expr::List(_) | Expr::Map(_) => {
                Node { size: Some(range.size()), entry: step.entry, ..Node::new(cost, init.kind) }
            }
            _ => Node { size: init.size, ..Node::new(cost, result.kind) },
        }
    }

    fn call(&mut self, call: &CallExpr) -> Node<'p> {
        let name = call.func_name.as_str();
        let target = call.target.as_deref();
        // `sets.contains(...)`: the target is no value but the first half of the function's name.
        let space = match target.map(|t| &t.expr) {
            Some(Expr::Ident(space)) if !self.variables.iter().any(|(known, _)| known == space) => Some(space.as_str()),
            _ => None,
        };
        let target = target.filter(|_| space.is_none()).map(|t| self.node(t));
        let args: Vec<Node<'p>> = call.args.iter().map(|arg| self.node(arg)).collect();
        let arg_cost = args.iter().fold(0, |sum: u64, arg| sum.saturating_add(arg.cost));
        let before = target.map_or(0, |t| t.cost).saturating_add(arg_cost);
        let done = |own: u64, node: Node<'p>| Node { cost: before.saturating_add(own), ..node };
        match (name, args.as_slice()) {
            ("_&&_" | "_||_", _) => done(0, Node::new(0, Kind::Scalar)),
            ("_?_:_", [condition, a, b]) => {
                let kind = if a.kind == b.kind { a.kind } else { Kind::Unknown };
                let size = Some(a.size().max(b.size()));
                let cost = condition.cost.saturating_add(a.cost.max(b.cost));
                Node { cost, size, entry: Entry::union(a.entry, b.entry), ..Node::new(0, kind) }
            }
            ("_[_]", [container, _]) => {
                let declared = container.declared.map_or(self.root, Declared::element);
                let known = container.declared.is_some() && container.kind != Kind::Unknown;
                let kind = if known { declared.kind() } else { Kind::Unknown };
                let (declared, size) = (Some(declared), container.entry.map(|entry| entry.value));
                done(1, Node { declared, size, ..Node::new(0, kind) })
            }
            ("dyn", [arg]) => Node { cost: arg.cost.saturating_add(1), ..*arg },
            _ => {
                let (own, kind, size) = own_cost(space, name, target.as_ref(), &args);
                let entry = match (name, args.as_slice()) {
                    ("_+_", [a, b]) => Entry::union(a.entry, b.entry),
                    _ => None,
                };
                done(own, Node { size, entry, ..Node::new(0, kind) })
            }
        }
    }
}

/// What a function costs besides its arguments, and what it makes: kind and size.
fn own_cost(space: Option<&str>, name: &str, target: Option<&Node>, args: &[Node]) -> (u64, Kind, Option<u64>) {
    const ONE: (u64, Kind, Option<u64>) = (1, Kind::Unknown, None);
    let scalar = |cost: u64| (cost, Kind::Scalar, None);
    let traverse = |node: &Node| share(node.size(), TRAVERSAL);
    let same = |node: &Node, cost: u64| (cost, Kind::String, Some(node.size()));
    match (space, name, target, args) {
        (None, "_==_" | "_!=_", None, [a, b]) => scalar(share(a.size().min(b.size()), TRAVERSAL)),
        (None, "_<_" | "_<=_" | "_>_" | "_>=_", None, [a, b]) => {
            let texts = |n: &Node| matches!(n.kind, Kind::String | Kind::Bytes);
            let compared = texts(a) || texts(b) || (a.kind == Kind::Unknown && b.kind == Kind::Unknown);
            scalar(if compared { share(a.size().min(b.size()), TRAVERSAL).max(1) } else { 1 })
        }
        (None, "_+_", None, [a, b]) => {
            let size = a.size().saturating_add(b.size());
            match if a.kind == Kind::Unknown { b.kind } else { a.kind } {
                kind @ (Kind::String | Kind::Bytes) => (share(size, TRAVERSAL), kind, Some(size)),
                Kind::List => (1, Kind::List, Some(size)),
                Kind::Scalar => scalar(1),
                _ => (share(size, TRAVERSAL), Kind::Unknown, Some(size)),
            }
        }
        (None, "@in", None, [_, list]) => scalar(if list.kind == Kind::Map { 1 } else { list.size() }),
        (None, "size" | "!_" | "@not_strictly_false" | "_-_" | "_*_" | "_/_" | "_%_" | "-_", _, _) => scalar(1),
        (None, "int" | "uint" | "double" | "bool" | "timestamp" | "duration", None, [_]) => scalar(1),
        (None, "string", None, [arg]) if arg.kind == Kind::Bytes => same(arg, traverse(arg)),
        (None, "string", None, [arg]) if arg.kind == Kind::String => same(arg, 1),
        (None, "string", None, [_]) => (1, Kind::String, None),
        (None, "bytes", None, [arg]) => (traverse(arg), Kind::Bytes, Some(arg.size().saturating_mul(4))),
        (None, "startsWith" | "endsWith", Some(_), [affix]) => scalar(traverse(affix)),
        (None, "contains", Some(text), [part]) => scalar(traverse(text).saturating_mul(traverse(part))),
        (None, "matches", Some(text), [regex]) | (None, "matches", None, [text, regex]) => {
            scalar(regex_cost(text, regex))
        }
        (None, "find" | "findAll", Some(text), [regex, ..]) => {
            let kind = if name == "find" { Kind::String } else { Kind::List };
            (regex_cost(text, regex), kind, Some(text.size()))
        }
        (None, "lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => same(text, traverse(text)),
        (None, "format", Some(text), _) => (traverse(text), Kind::String, None),
        (None, "replace", Some(text), [from, to, ..]) => {
            // Only literals have a size that is known from below.
            let least = from.size.unwrap_or(0);
            let (count, kept) = if least == 0 {
                (text.size().saturating_add(1), text.size())
            } else if to.size() <= least {
                (0, text.size())
            } else {
                (text.size().div_ceil(least), 0)
            };
            let size = count.saturating_mul(to.size()).saturating_add(kept);
            (share(text.size(), 2.0 * TRAVERSAL), Kind::String, Some(size))
        }
        (None, "split", Some(text), _) => (share(text.size(), 2.0 * TRAVERSAL), Kind::List, Some(text.size())),
        (None, "join", Some(list), separator) => {
            let element = list.declared.and_then(|d| d.element().size()).unwrap_or(u64::MAX);
            let mut size = list.size().saturating_mul(element);
            if let Some(separator) = separator.first() {
                size = size.saturating_add(separator.size().saturating_mul(list.size().saturating_sub(1)));
            }
            (share(size, TRAVERSAL), Kind::String, Some(size))
        }
        (None, "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes", Some(target), _) => {
            if target.kind == Kind::String {
                return scalar(traverse(target));
            }
            let element = target.declared.map(Declared::element);
            let texts = element.filter(|e| matches!(e.kind(), Kind::String | Kind::Bytes));
            let each = 1u64.saturating_add(texts.and_then(Declared::size).map_or(0, |size| share(size, TRAVERSAL)));
            let kind = if matches!(name, "sum" | "max" | "min") { Kind::Unknown } else { Kind::Scalar };
            (target.size().saturating_mul(each), kind, None)
        }
        (None, "url", None, [text]) | (Some("jsonpatch"), "escapeKey", None, [text]) => same(text, traverse(text)),
        (None, "isURL", ..) => scalar(1),
        (None, "cidr" | "ip" | "quantity" | "semver", None, [text, ..]) => (traverse(text), Kind::Unknown, None),
        (None, "isIP" | "isCIDR" | "isQuantity" | "isSemver", None, [text, ..]) => scalar(traverse(text)),
        (Some("ip"), "isCanonical", None, [text]) => scalar(share(text.size(), 2.0 * TRAVERSAL)),
        (None, "containsIP", Some(_), [other]) => scalar(share(32, TRAVERSAL) + parsed(other)),
        (None, "containsCIDR", Some(_), [other]) => {
            scalar(share(32, TRAVERSAL) + share(16, TRAVERSAL) + 1 + parsed(other))
        }
        (None, "validate", Some(_), [text]) => (share(traverse(text), 128.0 * REGEX), Kind::Unknown, None),
        (
            None,
            "sign" | "isInteger" | "asInteger" | "asApproximateFloat" | "isGreaterThan" | "isLessThan" | "compareTo",
            ..,
        ) => scalar(1),
        _ => ONE,
    }
}

/// A string has to be read before it can be compared with an address; an address does not.
fn parsed(node: &Node) -> u64 {
    if node.kind == Kind::String { share(node.size(), TRAVERSAL) } else { 0 }
}

fn regex_cost(text: &Node, regex: &Node) -> u64 {
    share(text.size().saturating_add(1), TRAVERSAL).saturating_mul(share(regex.size(), REGEX))
}

#[cfg(test)]
mod tests;
