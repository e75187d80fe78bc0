//! Reading and writing JSON as Go does, so that an object looks the same here as behind kube-apiserver.
//!
//! [`parse`] turns text into a [`Value`], [`decode`] makes of it what Go's typed decoder would have kept (unknown fields
//! go, quantities and times get their canonical text, a wrong type is an error in upstream's words), and [`encode`]
//! makes it look as Go's encoder writes it (zero values left out or put in, as the struct tags say).
//!
//! All three work on one `Value` in place; nothing is copied into typed structs. Fields are visited in alphabetical
//! order, which is also the order in which Go clients send them; upstream goes by the order of the text.

mod decode;
mod encode;
mod parse;
mod time;

pub(crate) use decode::zero;
pub use decode::{DecodeError, decode};
pub(crate) use encode::JSON_SCHEMA_PROPS;
pub use encode::encode;
pub use parse::{MAX_DEPTH, ParseError, parse};
pub(crate) use time::{from_unix, render_micros, render_seconds};

use std::fmt;

use serde_json::Value;

use crate::field::quote;

/// What strict field validation objects to, and a lenient one drops or overwrites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    Unknown {
        path: String,
    },
    Duplicate {
        path: String,
    },
    /// In YAML, where a key is known by its line.
    Repeated {
        line: u64,
        key: String,
    },
}

/// Upstream's wording, as in `strict decoding error: unknown field "spec.foo"`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unknown { path } => write!(f, "unknown field {}", quote(path)),
            Problem::Duplicate { path } => write!(f, "duplicate field {}", quote(path)),
            Problem::Repeated { line, key } => write!(f, "line {line}: key {} already set in map", quote(key)),
        }
    }
}

/// Upstream reports no more than this many.
const MAX_PROBLEMS: usize = 100;

fn report(problems: &mut Vec<Problem>, problem: Problem) {
    if problems.len() < MAX_PROBLEMS && !problems.contains(&problem) {
        problems.push(problem);
    }
}

/// Numbers as Go keeps them in untyped objects: a float without a fraction is written without one.
pub fn normalize_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|_| number.is_f64()).and_then(whole_number) {
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize_numbers),
        Value::Object(map) => map.values_mut().for_each(normalize_numbers),
        _ => {}
    }
}

fn whole_number(float: f64) -> Option<i64> {
    // Beyond 2^63 there is no integer to write it as.
    (float.fract() == 0.0 && float.abs() < 9_223_372_036_854_775_808.0).then_some(float as i64)
}

/// Whether objects and lists are nested no deeper than `limit`. [`parse`] sees to it; what comes from YAML or out of a
/// patch has to be asked, because [`decode`] and [`encode`] recurse.
pub fn within_depth(value: &Value, limit: usize) -> bool {
    match value {
        Value::Array(items) => limit > 0 && items.iter().all(|item| within_depth(item, limit - 1)),
        Value::Object(map) => limit > 0 && map.values().all(|value| within_depth(value, limit - 1)),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
