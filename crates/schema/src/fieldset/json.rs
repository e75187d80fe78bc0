//! The stored form of a set, `FieldsV1`: nested objects whose keys are path elements (`f:spec`, `k:{"name":"a"}`,
//! `v:"x"`, `i:0`) and where `"."` says that the path so far is itself a member.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
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
        self.write_json(&mut out);
        out
    }

    pub(crate) fn write_json(&self, out: &mut String) {
        self.write(false, out);
    }

    /// Whether a member of this set, or something below it, may be in a stored set whose keys are in our own form.
    pub(crate) fn may_be_in(&self, fields: &Value) -> bool {
        self.nodes
            .iter()
            .any(|node| fields.get(key(&node.element)).is_some_and(|inner| node.member || node.below.may_be_in(inner)))
    }

    /// The same of the stored form as text.
    pub(crate) fn may_be_in_text(&self, fields: &str) -> bool {
        let mut text = serde_json::Deserializer::from_str(fields);
        // A text that cannot be read has to be looked at by whoever reports that.
        Overlap(self).deserialize(&mut text).is_err()
    }

    /// [`Set::from_fields_v1`] from the stored text.
    pub(crate) fn from_fields_v1_text(fields: &str) -> Result<Set, BadFields> {
        let mut problem = None;
        let read =
            Reader { depth: 0, problem: &mut problem }.deserialize(&mut serde_json::Deserializer::from_str(fields));
        match (read, problem) {
            (Ok((set, _)), _) => Ok(set),
            (Err(_), Some(problem)) => Err(problem),
            (Err(_), None) => Err(BadFields::NotAnObject),
        }
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
            write_key(&node.element, out);
            out.push(':');
            node.below.write(node.member, out);
        }
        out.push('}');
    }
}

/// Fails, which ends the reading, where a set and a stored one overlap.
struct Overlap<'s>(&'s Set);

impl<'de> DeserializeSeed<'de> for Overlap<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Overlap<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of fields")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match self.0.nodes.iter().find(|node| is_key(&node.element, &key.0)) {
                Some(node) if node.member => return Err(de::Error::custom("found")),
                Some(node) => map.next_value_seed(Overlap(&node.below))?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// A key, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn is_key(element: &Element, text: &str) -> bool {
    match (element, text.strip_prefix("f:")) {
        (Element::Field(name), name_in_text) => name_in_text == Some(name),
        (_, Some(_)) => false,
        (element, None) => key(element) == text,
    }
}

/// Reads a set as [`read`] does.
struct Reader<'p> {
    depth: usize,
    problem: &'p mut Option<BadFields>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = (Set, bool);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(Set, bool), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = (Set, bool);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of fields")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(Set, bool), E> {
        Ok((Set::new(), true))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(Set, bool), A::Error> {
        if self.depth > MAX_DEPTH {
            *self.problem = Some(BadFields::TooDeep);
            return Err(de::Error::custom("nested too deeply"));
        }
        let (mut set, mut member) = (Set::new(), false);
        while let Some(key) = map.next_key::<Text<'de>>()? {
            if key.0 == "." {
                member = true;
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let element = match parse(&key.0) {
                Ok(Some(element)) => element,
                Ok(None) => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                Err(problem) => {
                    *self.problem = Some(problem);
                    return Err(de::Error::custom("a key that cannot be read"));
                }
            };
            let below = Reader { depth: self.depth + 1, problem: &mut *self.problem };
            let (below, is_member) = map.next_value_seed(below)?;
            let node = set.node_mut(&element);
            node.member |= is_member;
            node.below.add(below);
        }
        member |= set.is_empty();
        Ok((set, member))
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
        b'k' => match plain_key(rest) {
            Some(element) => element,
            None => Element::key(serde_json::from_str::<Map<String, Value>>(rest).map_err(bad)?),
        },
        b'v' => Element::value(serde_json::from_str(rest).map_err(bad)?),
        b'i' => Element::Index(rest.parse().map_err(|e| BadFields::Element(format!("{e}")))?),
        _ => return Ok(None),
    }))
}

/// Reads a key without escapes whose values are strings and small whole numbers, which is nearly all there are: sets are
/// read on every write, and a JSON parser costs several times as much.
fn plain_key(text: &str) -> Option<Element> {
    let mut rest = text.strip_prefix('{')?;
    let mut fields = Vec::with_capacity(2);
    loop {
        let (name, after) = plain_string(rest)?;
        rest = after.strip_prefix(':')?;
        let value = if rest.starts_with('"') {
            let (value, after) = plain_string(rest)?;
            rest = after;
            Value::from(value)
        } else {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = rest.split_at(digits);
            let leading_zero = number.len() > 1 && number.starts_with('0');
            if number.is_empty() || number.len() > 15 || leading_zero {
                return None;
            }
            rest = after;
            Value::from(number.parse::<i64>().ok()?)
        };
        fields.push((name.to_owned(), value));
        match rest.as_bytes() {
            b"}" => return Some(Element::key(fields)),
            [b',', ..] => rest = &rest[1..],
            _ => return None,
        }
    }
}

fn plain_string(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('"')?;
    let end = text.find(|c: char| c == '"' || c == '\\' || c < ' ')?;
    text[end..].strip_prefix('"').map(|rest| (&text[..end], rest))
}

pub(super) fn key(element: &Element) -> String {
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

/// The key as a JSON string.
fn write_key(element: &Element, out: &mut String) {
    match element {
        Element::Field(name) if is_plain(name) => {
            out.push_str("\"f:");
            out.push_str(name);
            out.push('"');
        }
        Element::Key(fields)
            if fields.iter().all(|(name, value)| is_plain(name) && value.as_str().is_some_and(is_plain)) =>
        {
            // JSON inside of JSON: the quotes are what has to be escaped.
            out.push_str("\"k:{");
            for (i, (name, value)) in fields.iter().enumerate() {
                out.push_str(if i > 0 { ",\\\"" } else { "\\\"" });
                out.push_str(name);
                out.push_str("\\\":\\\"");
                out.push_str(value.as_str().unwrap_or_default());
                out.push_str("\\\"");
            }
            out.push_str("}\"");
        }
        element => write_string(&key(element), out),
    }
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::String(s) => write_string(s, out),
        other => escape(&other.to_string(), out),
    }
}

/// JSON as Go's encoder writes it.
pub(crate) fn go_json(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

pub(crate) fn write_string(s: &str, out: &mut String) {
    out.push('"');
    if is_plain(s) {
        out.push_str(s);
    } else {
        s.chars().for_each(|c| write_char(c, out));
    }
    out.push('"');
}

fn write_char(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\0'..' ' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

/// Whether it is written as it is, between quotes.
fn is_plain(s: &str) -> bool {
    s.bytes().all(|b| (b' '..0x7f).contains(&b) && !matches!(b, b'"' | b'\\' | b'<' | b'>' | b'&'))
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
    fn the_short_way_to_read_a_key_agrees_with_the_parser() {
        let keys = [
            r#"{"name":"a"}"#,
            r#"{"containerPort":80,"protocol":"TCP"}"#,
            r#"{"protocol":"TCP","containerPort":80}"#,
            r#"{"a":"","b":0}"#,
            r#"{"a":"\u0041"}"#,
            r#"{"a":-1}"#,
            r#"{"a":1.5}"#,
            r#"{"a":true}"#,
            r#"{"a":99999999999999999999}"#,
            r#"{ "a" : "b" }"#,
            r#"{"é":"ü"}"#,
        ];
        for text in keys {
            let parsed = Element::key(serde_json::from_str::<Map<String, Value>>(text).unwrap());
            assert_eq!(parse(&format!("k:{text}")), Ok(Some(parsed)), "{text}");
        }
        for bad in [r#"{"a":01}"#, r#"{"a":"b"}x"#, r#"{"a":"b",}"#, r#"{"a"}"#, "{", r#"{"a":"b"#, "{\"a\":\"\n\"}"] {
            assert!(parse(&format!("k:{bad}")).is_err(), "{bad}");
        }
        assert_eq!(parse("k:{}"), Ok(Some(Element::key([]))));
    }

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
