//! JSON text to a [`Value`], noticing repeated keys. The last one wins, as in Go.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

use super::{Problem, report};

/// How deep objects and lists may be nested. Upstream allows 10,000; here recursive code must fit a thread's stack, and no
/// real object comes near.
pub const MAX_DEPTH: usize = 127;

/// Worded as Go's decoder does, as far as the position is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("exceeded max depth of {MAX_DEPTH}")]
    TooDeep,
    #[error("{0}")]
    Syntax(String),
}

/// Reads one JSON value and lists the keys that occur twice in an object.
pub fn parse(bytes: &[u8]) -> Result<(Value, Vec<Problem>), ParseError> {
    let mut problems = Vec::new();
    let repaired;
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // Go reads broken UTF-8 as replacement characters.
        Err(_) => {
            repaired = String::from_utf8_lossy(bytes);
            &repaired
        }
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = Node { problems: &mut problems, path: &Path::Root };
    let value = seed.deserialize(&mut deserializer).map_err(|e| explain(text, &e))?;
    deserializer.end().map_err(|e| explain(text, &e))?;
    Ok((value, problems))
}

enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Key(Path::Root, key) => f.write_str(key),
            Path::Key(parent, key) => write!(f, "{parent}.{key}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

struct Node<'a> {
    problems: &'a mut Vec<Problem>,
    path: &'a Path<'a>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        // What does not fit an int64 is a float to Go.
        Ok(match i64::try_from(value) {
            Ok(value) => Value::Number(value.into()),
            Err(_) => Number::from_f64(value as f64).map_or(Value::Null, Value::Number),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = Path::Index(self.path, items.len());
            match seq.next_element_seed(Node { problems: self.problems, path: &path })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let path = Path::Key(self.path, &key);
            let value = access.next_value_seed(Node { problems: self.problems, path: &path })?;
            match map.entry(key) {
                Entry::Vacant(place) => drop(place.insert(value)),
                Entry::Occupied(mut place) => {
                    let path = Path::Key(self.path, place.key()).to_string();
                    report(self.problems, Problem::Duplicate { path });
                    place.insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

/// Says in Go's words what serde_json found. It tells its reason only as text.
fn explain(text: &str, error: &serde_json::Error) -> ParseError {
    let reason = error.to_string();
    if reason.starts_with("recursion limit exceeded") {
        return ParseError::TooDeep;
    }
    if error.is_eof() {
        return ParseError::Syntax("unexpected end of JSON input".into());
    }
    let place = [
        ("key must be a string", "looking for beginning of object key string"),
        ("expected value", "looking for beginning of value"),
        ("expected `:`", "after object key"),
        ("expected `,` or `}`", "after object key:value pair"),
        ("expected `,` or `]`", "after array element"),
        ("trailing characters", "after top-level value"),
        ("trailing comma", "looking for beginning of value"),
        ("control character", "in string literal"),
        ("invalid escape", "in string escape code"),
        ("invalid number", "in numeric literal"),
    ];
    match (place.iter().find(|(ours, _)| reason.starts_with(ours)), character(text, error)) {
        (Some((_, gos)), Some(c)) => ParseError::Syntax(format!("invalid character {} {gos}", quote_char(c))),
        _ => ParseError::Syntax(reason),
    }
}

fn character(text: &str, error: &serde_json::Error) -> Option<char> {
    let line = text.split('\n').nth(error.line().checked_sub(1)?)?;
    let mut at = error.column().checked_sub(1)?.min(line.len());
    while !line.is_char_boundary(at) {
        at -= 1;
    }
    line[at..].chars().next()
}

fn quote_char(c: char) -> String {
    match c {
        '\'' => r"'\''".into(),
        '"' => "'\"'".into(),
        c => format!("'{}'", c.escape_default()),
    }
}
