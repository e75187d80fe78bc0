//! One step of a field path, whole paths, and the order and equality of the values that name list items.

use std::cmp::Ordering;
use std::fmt;

use super::name::Name;
use crate::field::quote;
use serde_json::{Number, Value};

/// How to get from an object or list to one thing in it.
#[derive(Clone, Debug)]
pub enum Element {
    /// A field of a struct or an entry of a map.
    Field(Name),
    /// The list item with these key fields, sorted by name.
    Key(Box<[(Name, Value)]>),
    /// The item of a set that equals this.
    Value(Box<Value>),
    /// A position. Nothing writes these today; they are read because a client may have stored one.
    Index(i64),
}

impl Element {
    pub fn field(name: &str) -> Element {
        Element::Field(name.into())
    }

    pub fn value(value: Value) -> Element {
        Element::Value(Box::new(value))
    }

    /// A key of a list item; the fields may come in any order.
    pub fn key(fields: impl IntoIterator<Item = (String, Value)>) -> Element {
        let mut fields: Vec<(Name, Value)> = fields.into_iter().map(|(k, v)| (k.as_str().into(), v)).collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Element::Key(fields.into_boxed_slice())
    }

    fn rank(&self) -> u8 {
        match self {
            Element::Field(_) => 0,
            Element::Key(_) => 1,
            Element::Value(_) => 2,
            Element::Index(_) => 3,
        }
    }
}

impl Ord for Element {
    fn cmp(&self, other: &Element) -> Ordering {
        match (self, other) {
            (Element::Field(a), Element::Field(b)) => a.cmp(b),
            (Element::Key(a), Element::Key(b)) => {
                for ((a_name, a_value), (b_name, b_value)) in a.iter().zip(b.iter()) {
                    let order = a_name.cmp(b_name).then_with(|| compare(a_value, b_value));
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Element::Value(a), Element::Value(b)) => compare(a, b),
            (Element::Index(a), Element::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Element) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Element) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Element {}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(fields) => {
                f.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    write!(f, "{name}={}", human(value))?;
                }
                f.write_str("]")
            }
            Element::Value(value) => write!(f, "[={}]", human(value)),
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A whole path; prints as `.spec.template.spec.containers[name="a"].image`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<Element>);

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| write!(f, "{element}"))
    }
}

fn human(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Array(items) => format!("[{}]", items.iter().map(human).collect::<Vec<_>>().join(",")),
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={}", human(v))).collect(),
        other => other.to_string(),
    }
}

/// Upstream's order of values of any type: numbers, strings, booleans, lists, maps, null.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let firsts = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
            firsts.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a.iter().zip(b);
            let firsts =
                pairs.map(|((ak, av), (bk, bv))| ak.cmp(bk).then_with(|| compare(av, bv))).find(|order| order.is_ne());
            firsts.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Whether two values are the same; 1 and 1.0 are.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || compare_numbers(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((ak, av), (bk, bv))| ak == bk && equal(av, bv))
        }
        _ => a == b,
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

/// Numbers by size. Whole numbers are compared exactly, so that the order stays total where a double would round.
fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => {
            let (a, b) = (a.as_f64().unwrap_or_default(), b.as_f64().unwrap_or_default());
            a.partial_cmp(&b).unwrap_or(Ordering::Equal)
        }
    }
}

fn whole(n: &Number) -> Option<i128> {
    if let Some(n) = n.as_i64() {
        return Some(i128::from(n));
    }
    if let Some(n) = n.as_u64() {
        return Some(i128::from(n));
    }
    let n = n.as_f64()?;
    (n.fract() == 0.0 && n.abs() < 1e30).then_some(n as i128)
}
