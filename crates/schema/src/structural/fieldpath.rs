//! The little JSONPath of `fieldPath` in rules and of `selectableFields`: fields and map keys only, checked against the
//! schema.

use super::schema::{Props, Structural};
use crate::field::Path;

/// A path that the schema confirmed.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldPath {
    pub path: Path,
    /// The field it starts with.
    pub root: String,
    /// The type of what it points at: `string`, `integer`, ...; empty where the schema leaves it open.
    pub ty: &'static str,
}

impl Structural {
    /// Resolves a selectable field's `jsonPath`; the error says what is wrong with it in upstream's words.
    pub fn selectable(&self, json_path: &str) -> Result<FieldPath, String> {
        let (path, props) = resolve(json_path, &self.root, false)?;
        let root = path.as_str().split(['.', '[']).next().unwrap_or_default().to_owned();
        Ok(FieldPath { path, root, ty: props.ty.name() })
    }
}

pub(super) fn resolve<'p>(json_path: &str, schema: &'p Props, brackets: bool) -> Result<(Path, &'p Props), String> {
    let mut path = Path::default();
    let mut props = schema;
    let mut tokens = Tokens { rest: json_path };
    const END: &str = "unexpected end of JSON path";
    while let Some(token) = tokens.next() {
        match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or(END)?;
                let inner = quoted.strip_prefix('\'').and_then(|q| q.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                (path, props) = step(path, props, &unescape(inner)?)?;
                match tokens.next().ok_or(END)? {
                    "]" => {}
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => (path, props) = step(path, props, tokens.next().ok_or(END)?)?,
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok((path, props))
}

fn step<'p>(path: Path, props: &'p Props, name: &str) -> Result<(Path, &'p Props), String> {
    const NO_FIELD: &str = "does not refer to a valid field";
    if !props.properties.is_empty() {
        return Ok((path.child(name), props.properties.get(name).ok_or(NO_FIELD)?));
    }
    Ok((path.key(name), props.additional().ok_or(NO_FIELD)?))
}

/// Splits at `.`, `[` and `]`, each a token of its own; a quoted string is one token.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let bytes = self.rest.as_bytes();
        let end = match bytes.first()? {
            b'\'' => {
                let close = (1..bytes.len()).find(|&i| bytes[i] == b'\'' && bytes[i - 1] != b'\\');
                close.map_or(bytes.len(), |i| i + 1)
            }
            b'.' | b'[' | b']' => 1,
            _ => self.rest.find(['.', '[', ']']).unwrap_or(bytes.len()),
        };
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(token)
    }
}

fn unescape(s: &str) -> Result<String, String> {
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\x07',
            Some('b') => '\x08',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\x0b',
            Some(c @ ('\'' | '\\')) => c,
            other => {
                let shown = other.map_or(String::new(), String::from);
                return Err(format!("invalid string literal: invalid escape char \\{shown}"));
            }
        });
    }
    Ok(out)
}
