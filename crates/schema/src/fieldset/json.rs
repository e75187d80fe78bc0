//! The stored form of a set, `FieldsV1`: nested objects whose keys are path elements (`f:spec`, `k:{"name":"a"}`,
//! `v:"x"`, `i:0`) and where `"."` says that the path so far is itself a member.

use serde_json::{Map, Value};
use thiserror::Error;

use super::{Element, MAX_DEPTH, Set};

/// Why a stored set cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadFields {
    #[error("key must be 2 characters long:")]
    ShortKey,
    #[error("missing colon: {0}")]
    NoColon(String),
    #[error("parsing key as path element: {0}")]
    Element(String),
    #[error("expected an object of fields")]
    NotAnObject,
    #[error("nested too deeply")]
    TooDeep,
}

impl Set {
    /// Reads a stored set. Elements of a kind from the future are dropped, as upstream does.
    pub fn from_fields_v1(fields: &Value) -> Result<Set, BadFields> {
        Ok(read(fields, 0)?.0)
    }

    /// The stored form as a value (whose keys `serde_json` keeps in its own order).
    pub fn to_fields_v1(&self) -> Value {
        Value::Object(self.object(false))
    }

    /// The stored form as upstream would write it, byte for byte.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(false, &mut out);
        out
    }

    fn object(&self, own: bool) -> Map<String, Value> {
        let mut map = Map::new();
        if own && !self.nodes.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for node in &self.nodes {
            map.insert(key(&node.element), Value::Object(node.below.object(node.member)));
        }
        map
    }

    fn write(&self, own: bool, out: &mut String) {
        out.push('{');
        let mut first = true;
        if own && !self.nodes.is_empty() {
            out.push_str("\".\":{}");
            first = false;
        }
        for node in &self.nodes {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            write_string(&key(&node.element), out);
            out.push(':');
            node.below.write(node.member, out);
        }
        out.push('}');
    }
}

/// The set below, and whether the path that led here is a member: it is when said so, or when nothing is below.
fn read(fields: &Value, depth: usize) -> Result<(Set, bool), BadFields> {
    let empty = Map::new();
    let map = match fields {
        Value::Object(map) => map,
        Value::Null => &empty,
        _ => return Err(BadFields::NotAnObject),
    };
    if depth > MAX_DEPTH {
        return Err(BadFields::TooDeep);
    }
    let (mut set, mut member) = (Set::new(), false);
    set.nodes.reserve(map.len());
    for (key, value) in map {
        if key == "." {
            member = true;
            continue;
        }
        let Some(element) = parse(key)? else { continue };
        let (below, is_member) = read(value, depth + 1)?;
        let node = set.node_mut(&element);
        node.member |= is_member;
        node.below.add(below);
    }
    member |= set.is_empty();
    Ok((set, member))
}

/// An element from its stored form; none when its kind is unknown.
fn parse(key: &str) -> Result<Option<Element>, BadFields> {
    let (Some(&kind), Some(&colon)) = (key.as_bytes().first(), key.as_bytes().get(1)) else {
        return Err(BadFields::ShortKey);
    };
    if colon != b':' {
        return Err(BadFields::NoColon(key.to_owned()));
    }
    let rest = &key[2..];
    let bad = |e: serde_json::Error| BadFields::Element(e.to_string());
    Ok(Some(match kind {
        b'f' => Element::Field(rest.into()),
        b'k' => Element::key(serde_json::from_str::<Map<String, Value>>(rest).map_err(bad)?),
        b'v' => Element::value(serde_json::from_str(rest).map_err(bad)?),
        b'i' => Element::Index(rest.parse().map_err(|e| BadFields::Element(format!("{e}")))?),
        _ => return Ok(None),
    }))
}

fn key(element: &Element) -> String {
    match element {
        Element::Field(name) => {
            let mut out = String::with_capacity(name.len() + 2);
            out.push_str("f:");
            out.push_str(name);
            out
        }
        Element::Key(fields) => {
            let mut out = String::from("k:{");
            for (i, (name, value)) in fields.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(name, &mut out);
                out.push(':');
                write_value(value, &mut out);
            }
            out.push('}');
            out
        }
        Element::Value(value) => {
            let mut out = String::from("v:");
            write_value(value, &mut out);
            out
        }
        Element::Index(index) => format!("i:{index}"),
    }
}

fn write_value(value: &Value, out: &mut String) {
    escape(&value.to_string(), out);
}

/// JSON as Go's encoder writes it.
pub(crate) fn go_json(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

fn write_string(s: &str, out: &mut String) {
    escape(&Value::from(s).to_string(), out);
}

/// Go's encoder escapes these five in strings, and JSON has none of them outside of strings.
fn escape(json: &str, out: &mut String) {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        out.push_str(json);
        return;
    }
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_kinds_from_the_future_are_ignored_and_garbage_is_refused() {
        assert_eq!(parse("x:whatever"), Ok(None));
        assert_eq!(parse("f"), Err(BadFields::ShortKey));
        assert_eq!(parse(""), Err(BadFields::ShortKey));
        assert_eq!(parse("name"), Err(BadFields::NoColon("name".to_owned())));
        assert!(parse("k:{\"name\":").is_err());
        assert!(parse("k:[]").is_err());
        assert!(parse("v:1 2").is_err());
        assert!(parse("i:x").is_err());
        assert!(parse("é").is_err());
    }
}
