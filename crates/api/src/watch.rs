//! Reading a watch: its lines, and the two parts of each. Pure: whoever has the stream feeds it in.
//!
//! Events come many at a time, and none of them is copied that lies whole in a piece.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The lines of a stream that comes in pieces.
#[derive(Default)]
pub struct Lines {
    /// The beginning of a line whose end is still to come.
    part: Vec<u8>,
}

impl Lines {
    /// Calls `each` with every line that `piece` ends, until it says that this is enough.
    pub fn feed<T>(&mut self, piece: &[u8], mut each: impl FnMut(&str) -> Option<T>) -> Option<T> {
        let mut enough = None;
        match std::str::from_utf8(piece) {
            Ok(mut text) if self.part.is_empty() => {
                while let (None, Some(end)) = (&enough, text.find('\n')) {
                    enough = each(&text[..end]);
                    text = &text[end + 1..];
                }
                self.part.extend_from_slice(text.as_bytes());
            }
            _ => {
                self.part.extend_from_slice(piece);
                while let (None, Some(end)) = (&enough, self.part.iter().position(|byte| *byte == b'\n')) {
                    let line: Vec<u8> = self.part.drain(..=end).collect();
                    enough = each(&String::from_utf8_lossy(&line[..end]));
                }
            }
        }
        enough
    }
}

/// A line of a watch: what happened, and the object's text.
pub fn split_event(line: &str) -> Option<(&str, &str)> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(rename = "type")]
        what: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    // As servers write it. Should more follow the object, then the rest is no object, and whoever reads it finds out.
    let plain = || {
        let (what, rest) = line.strip_prefix("{\"type\":\"")?.split_once("\",\"object\":")?;
        let object = rest.strip_suffix('}').filter(|_| matches!(what, "ADDED" | "MODIFIED" | "DELETED"))?;
        Some((what, object))
    };
    plain().or_else(|| serde_json::from_str::<Line<'_>>(line).ok().map(|line| (line.what, line.object.get())))
}

/// An object's metadata, as far as `M` reads it. What follows it is not even looked at: servers write metadata first, and most
/// of an object comes after.
pub fn metadata<'a, M: Deserialize<'a>>(text: &'a str) -> Result<M, serde_json::Error> {
    let mut found = None;
    let mut reader = serde_json::Deserializer::from_str(text);
    match reader.deserialize_map(UpToMetadata(&mut found)) {
        Err(error) if found.is_none() => Err(error),
        _ => found.ok_or_else(|| serde_json::Error::missing_field("metadata")),
    }
}

struct UpToMetadata<'f, M>(&'f mut Option<M>);

impl<'de, M: Deserialize<'de>> Visitor<'de> for UpToMetadata<'_, M> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == "metadata" {
                *self.0 = Some(map.next_value()?);
                // The one way to stop reading.
                return Err(A::Error::custom("enough"));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// An object's text without the record of who set which field, which is half of many objects and which hardly anyone reads.
pub fn without_managed_fields(text: &str) -> Cow<'_, str> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields<'a> {
        #[serde(borrow)]
        managed_fields: Option<&'a RawValue>,
    }
    let fields = metadata::<Fields<'_>>(text).ok().and_then(|metadata| metadata.managed_fields);
    let Some(fields) = fields.map(RawValue::get) else { return Cow::Borrowed(text) };
    // It is a part of the text.
    let start = fields.as_ptr() as usize - text.as_ptr() as usize;
    Cow::Owned([&text[..start], "null", &text[start + fields.len()..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = "{\"a\":\"ä\"}\n{}\n\nlast and ünfinished";
        for size in 1..=text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                let enough: Option<()> = lines.feed(piece, |line| {
                    seen.push(line.to_owned());
                    None
                });
                assert_eq!(enough, None);
            }
            assert_eq!(seen, ["{\"a\":\"ä\"}", "{}", ""], "in pieces of {size}");
        }
    }

    #[test]
    fn nothing_is_read_after_enough() {
        for first in ["a\nb\nc\n", "", "a"] {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            let mut each = |line: &str| {
                seen.push(line.to_owned());
                (line == "b").then_some(7)
            };
            let enough = lines.feed(first.as_bytes(), &mut each);
            let rest = &"a\nb\nc\n"[first.len()..];
            assert_eq!(enough.or_else(|| lines.feed(rest.as_bytes(), &mut each)), Some(7));
            assert_eq!(seen, ["a", "b"]);
        }
    }

    #[test]
    fn a_line_is_split_whichever_way_it_is_written() {
        for line in [r#"{"type":"ADDED","object":{"a":1}}"#, r#"{"object": {"a":1}, "type": "ADDED"}"#] {
            assert_eq!(split_event(line), Some(("ADDED", r#"{"a":1}"#)));
        }
        assert_eq!(split_event(r#"{"type":"ERROR","object":{}}"#), Some(("ERROR", "{}")));
        assert_eq!(split_event("nonsense"), None);
    }

    #[test]
    fn metadata_is_read_wherever_it_stands_and_only_up_to_its_end() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Name {
            name: String,
        }
        let name = |text: &str| metadata::<Name>(text).ok().map(|metadata| metadata.name);
        assert_eq!(name(r#"{"kind":"K","metadata":{"name":"x"},"spec":{}}"#).as_deref(), Some("x"));
        assert_eq!(
            name(r#"{"spec":{"metadata":{"name":"y"}},"metadata":{"uid":"u","name":"x"}}"#).as_deref(),
            Some("x")
        );
        assert_eq!(name(r#"{"metadata":{"name":"x"},"spec": nonsense"#).as_deref(), Some("x"));
        for without in [r#"{"kind":"K"}"#, r#"{"metadata":{}}"#, "[]", "nonsense", ""] {
            assert_eq!(name(without), None, "{without}");
        }
    }

    #[test]
    fn managed_fields_are_left_out_wherever_they_stand_and_nothing_else_is() {
        for (text, lean) in [
            (
                r#"{"metadata":{"managedFields":[{"a":"]}"}],"name":"x"},"b":1}"#,
                r#"{"metadata":{"managedFields":null,"name":"x"},"b":1}"#,
            ),
            (
                r#"{"spec":{"managedFields":[1]},"metadata":{"name":"x"}}"#,
                r#"{"spec":{"managedFields":[1]},"metadata":{"name":"x"}}"#,
            ),
            ("{}", "{}"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(without_managed_fields(text), lean);
        }
    }
}
