//! JSON into the values that rules see, typed by the schema, and only the parts a rule reads.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base64::Engine;
use kube_cel::cel::IdedExpr;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::objects::{Key, Map as CelMap};
use serde_json::{Map, Value};

use super::formats::Format;
use super::schema::{Props, Ty};

/// Which parts of `self` or `oldSelf` a rule reads.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Uses {
    #[default]
    Nothing,
    /// By the names that the rule uses, which are escaped.
    Fields(BTreeMap<String, Uses>),
    All,
}

impl Uses {
    /// What an expression reads of `self` and of `oldSelf`.
    pub fn of(expr: &IdedExpr) -> (Uses, Uses) {
        let (mut new, mut old) = (Uses::Nothing, Uses::Nothing);
        visit(expr, &mut |root, path| match root {
            "self" => new.add(path),
            "oldSelf" => old.add(path),
            _ => {}
        });
        (new, old)
    }

    fn add(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else {
            *self = Uses::All;
            return;
        };
        match self {
            Uses::All => {}
            Uses::Fields(fields) => fields.entry((*first).to_owned()).or_default().add(rest),
            Uses::Nothing => {
                let mut below = Uses::Nothing;
                below.add(rest);
                *self = Uses::Fields(BTreeMap::from([((*first).to_owned(), below)]));
            }
        }
    }
}

/// Calls `found` with each variable read and the fields selected from it directly.
fn visit(expr: &IdedExpr, found: &mut dyn FnMut(&str, &[&str])) {
    let mut path = Vec::new();
    let mut at = expr;
    while let Expr::Select(select) = &at.expr {
        path.push(select.field.as_str());
        at = &select.operand;
    }
    if let Expr::Ident(name) = &at.expr {
        path.reverse();
        return found(name, &path);
    }
    children(at, &mut |child| visit(child, found));
}

pub(crate) fn children<'e>(expr: &'e IdedExpr, visit: &mut dyn FnMut(&'e IdedExpr)) {
    match &expr.expr {
        Expr::Call(call) => {
            if let Some(target) = &call.target {
                visit(target);
            }
            call.args.iter().for_each(visit);
        }
        Expr::Comprehension(c) => {
            for part in [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result] {
                visit(part);
            }
        }
        Expr::List(list) => list.elements.iter().for_each(visit),
        Expr::Select(select) => visit(&select.operand),
        Expr::Map(map) => map.entries.iter().for_each(|e| entry(&e.expr, visit)),
        Expr::Struct(s) => s.entries.iter().for_each(|e| entry(&e.expr, visit)),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}

fn entry<'e>(entry: &'e EntryExpr, visit: &mut dyn FnMut(&'e IdedExpr)) {
    match entry {
        EntryExpr::StructField(field) => visit(&field.value),
        EntryExpr::MapEntry(entry) => {
            visit(&entry.key);
            visit(&entry.value);
        }
    }
}

/// How deeply loops (`all`, `exists`, `map`, ...) nest in an expression.
pub(super) fn loops(expr: &IdedExpr) -> u32 {
    let mut deepest = 0;
    if let Expr::Comprehension(c) = &expr.expr {
        let inside = [&c.loop_cond, &c.loop_step, &c.result].into_iter().map(loops).max().unwrap_or(0);
        return loops(&c.iter_range).max(inside + 1);
    }
    children(expr, &mut |child| deepest = deepest.max(loops(child)));
    deepest
}

/// How a field's name is written in rules; `None` for names that cannot be written there.
pub(super) fn escape(name: &str) -> Option<String> {
    const RESERVED: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '_' if chars.next_if_eq(&'_').is_some() => out.push_str("__underscores__"),
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
            _ => return None,
        }
    }
    Some(out)
}

/// Converts values and notes how large the largest collection was.
pub(super) struct Reader {
    pub widest: usize,
    /// Order the items of sets and keyed lists, so that two of them compare regardless of order, as upstream's do.
    pub unordered: bool,
}

impl Reader {
    /// A value that may be the root of a resource, whose metadata rules see by name only.
    pub fn resource(&mut self, value: &Value, props: &Props, uses: &Uses, resource: bool) -> Cel {
        match value {
            Value::Object(map) if resource => self.object(map, props, uses, true),
            _ => self.value(value, Some(props), uses),
        }
    }

    fn value(&mut self, value: &Value, props: Option<&Props>, uses: &Uses) -> Cel {
        match value {
            Value::Null => Cel::Null,
            Value::Bool(b) => Cel::Bool(*b),
            Value::Number(n) => {
                let number = props.is_some_and(|p| p.ty == Ty::Number && !p.int_or_string);
                match n.as_i64() {
                    Some(i) if !number => Cel::Int(i),
                    _ => float(n.as_f64().unwrap_or(f64::NAN), props),
                }
            }
            Value::String(s) => string(s, props.and_then(|p| p.format.filter(|_| p.ty == Ty::String))),
            Value::Array(list) => self.list(list, props),
            Value::Object(map) => match props {
                Some(props) => self.object(map, props, uses, props.embedded),
                None => self.map(map, None, uses),
            },
        }
    }

    fn list(&mut self, list: &[Value], props: Option<&Props>) -> Cel {
        self.widest = self.widest.max(list.len());
        let items = props.and_then(Props::items);
        let mut order: Vec<&Value> = list.iter().collect();
        if let Some(props) = props.filter(|_| self.unordered) {
            match props.list_type.as_deref() {
                Some("set") => order.sort_by(|a, b| compare(a, b)),
                Some("map") => order.sort_by(|a, b| compare_keys(&props.map_keys, a, b)),
                _ => {}
            }
        }
        Cel::List(Arc::new(order.into_iter().map(|item| self.value(item, items, &Uses::All)).collect()))
    }

    fn object(&mut self, map: &Map<String, Value>, props: &Props, uses: &Uses, resource: bool) -> Cel {
        if props.properties.is_empty() && !resource {
            return self.map(map, Some(props), uses);
        }
        let mut out = HashMap::new();
        for (name, value) in map.iter().filter(|(_, v)| !v.is_null()) {
            let Some(escaped) = escape(name) else { continue };
            let below = match uses {
                Uses::All => &Uses::All,
                Uses::Nothing => continue,
                Uses::Fields(fields) => match fields.get(&escaped) {
                    Some(below) => below,
                    None => continue,
                },
            };
            let converted = match (props.properties.get(name), name.as_str()) {
                (_, "metadata") if resource => self.metadata(value),
                (_, "apiVersion" | "kind") if resource => self.value(value, None, below),
                (Some(child), _) => self.value(value, Some(child), below),
                (None, _) => continue,
            };
            out.insert(Key::String(Arc::new(escaped)), converted);
        }
        Cel::Map(CelMap { map: Arc::new(out) })
    }

    fn metadata(&mut self, meta: &Value) -> Cel {
        let named = |key: &&str| meta.get(*key).filter(|v| v.is_string());
        let fields = ["name", "generateName"].into_iter().filter_map(|k| named(&k).map(|v| (k, v)));
        let out = fields.map(|(k, v)| (Key::String(Arc::new(k.to_owned())), self.value(v, None, &Uses::All)));
        Cel::Map(CelMap { map: Arc::new(out.collect()) })
    }

    fn map(&mut self, map: &Map<String, Value>, props: Option<&Props>, uses: &Uses) -> Cel {
        self.widest = self.widest.max(map.len());
        let values = props.and_then(Props::additional);
        let mut out = HashMap::new();
        for (key, value) in map {
            let below = match uses {
                Uses::All => &Uses::All,
                Uses::Nothing => continue,
                Uses::Fields(fields) => match fields.get(key) {
                    Some(below) => below,
                    None => continue,
                },
            };
            out.insert(Key::String(Arc::new(key.clone())), self.value(value, values, below));
        }
        Cel::Map(CelMap { map: Arc::new(out) })
    }
}

fn float(f: f64, props: Option<&Props>) -> Cel {
    let integer = props.is_some_and(|p| p.ty == Ty::Integer || p.int_or_string);
    if integer && f.fract() == 0.0 && f.abs() < 9.2e18 { Cel::Int(f as i64) } else { Cel::Float(f) }
}

fn string(s: &str, format: Option<Format>) -> Cel {
    let typed = match format {
        Some(Format::DateTime) => s.parse().ok().map(Cel::Timestamp),
        Some(Format::Date) => format!("{s}T00:00:00Z").parse().ok().map(Cel::Timestamp),
        Some(Format::Duration) => duration(s),
        Some(Format::Byte) => {
            base64::engine::general_purpose::STANDARD.decode(s).ok().map(|bytes| Cel::Bytes(Arc::new(bytes)))
        }
        _ => None,
    };
    typed.unwrap_or_else(|| Cel::String(Arc::new(s.to_owned())))
}

/// A Go duration. Its type belongs to a crate that is not ours to name, so it is made as a difference of two times.
fn duration(s: &str) -> Option<Cel> {
    let nanos = crate::duration::parse(s).ok()?;
    let (Cel::Timestamp(epoch), Cel::Timestamp(zero)) = (
        "1970-01-01T00:00:00Z".parse().ok().map(Cel::Timestamp)?,
        "1970-01-01T00:00:00Z".parse().ok().map(Cel::Timestamp)?,
    ) else {
        return None;
    };
    let shifted = epoch + std::time::Duration::from_nanos(nanos.unsigned_abs());
    Some(Cel::Duration(if nanos < 0 { zero - shifted } else { shifted - zero }))
}

/// Some order of JSON values, the same for equal ones.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => a.to_string().cmp(&b.to_string()),
    }
}

fn compare_keys(keys: &[String], a: &Value, b: &Value) -> Ordering {
    keys.iter()
        .map(|key| match (a.get(key), b.get(key)) {
            (Some(a), Some(b)) => compare(a, b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        })
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}
