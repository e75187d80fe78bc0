//! From untyped JSON to what Go's typed decoder (`sigs.k8s.io/json`, case-sensitive, ints preserved) would hold.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;
use usher_api::quantity;

use super::{Problem, normalize_numbers, report, time};
use crate::graph::{At, Form, Scalar, Struct, Type};

/// A value of the wrong type or form, in upstream's words. The server puts it behind
/// `Job in version "v1" cannot be handled as a Job: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    pub message: String,
}

/// Makes of `value` what a Go program would hold after decoding it as `at`: fields the type lacks are removed and
/// reported in `strict`, nulls are absent, quantities, times and base64 are canonical.
pub fn decode(at: At, value: &mut Value, strict: &mut Vec<Problem>) -> Result<(), DecodeError> {
    let mut decoder = Decoder { strict: Some(strict), saved: None, stopped: false };
    decoder.value(at, value, &Path::Root);
    decoder.saved.map_or(Ok(()), Err)
}

/// Where the decoder is. `Field` remembers the struct, which type errors name.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, At<'a>, &'a str),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

/// As in strict decoding errors: `spec.containers[0].foo`.
impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, _, key) | Path::Key(Path::Root, key) => f.write_str(key),
            Path::Field(parent, _, key) | Path::Key(parent, key) => write!(f, "{parent}.{key}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl<'a> Path<'a> {
    /// As in type errors, ` struct field JobSpec.spec.parallelism`: the innermost struct, then the Go fields from the
    /// root (map keys and indexes are not part of it), through embedded structs by name.
    fn go(&self) -> Option<String> {
        let mut fields = Vec::new();
        let mut innermost = None;
        let mut path = self;
        loop {
            match path {
                Path::Root => break,
                Path::Key(parent, _) | Path::Index(parent, _) => path = parent,
                Path::Field(parent, at, name) => {
                    innermost = innermost.or(struct_of(*at));
                    fields.push((*name).to_owned());
                    fields.extend(embedded_in(*at, name));
                    path = parent;
                }
            }
        }
        fields.reverse();
        innermost.map(|s| format!("{}.{}", last_segments(&s.name, 1), fields.join(".")))
    }
}

fn struct_of(at: At<'_>) -> Option<&Struct> {
    match at.ty() {
        Type::Struct(s) => Some(s),
        _ => None,
    }
}

/// The embedded struct that a field comes from, if it does.
fn embedded_in(at: At, field: &str) -> Option<String> {
    let embeds = at.graph.embeds(at.id).iter();
    let embed = embeds.map(|e| at.to(e.ty)).find(|embed| embed.field(field).is_some())?;
    Some(last_segments(&struct_of(embed)?.name, 1).to_owned())
}

fn last_segments(name: &str, count: usize) -> &str {
    name.rmatch_indices('.').nth(count - 1).map_or(name, |(i, _)| &name[i + 1..])
}

struct Decoder<'p> {
    /// `None` inside types with their own decoder, which upstream does not check strictly.
    strict: Option<&'p mut Vec<Problem>>,
    /// The first error; the rest of the document is still read.
    saved: Option<DecodeError>,
    /// A type's own decoder failed, which ends the whole.
    stopped: bool,
}

impl Decoder<'_> {
    fn value(&mut self, at: At, value: &mut Value, path: &Path) {
        match at.ty() {
            Type::Struct(s) => self.object(at, s, value, path),
            Type::Map(map) => self.map(at, at.to(map.values), value, path),
            Type::List(list) => self.list(at, at.to(list.items), value, path),
            Type::Scalar(scalar) => self.scalar(at, *scalar, value, path),
            Type::Any => self.any(at, value, path),
        }
    }

    fn object(&mut self, at: At, s: &Struct, value: &mut Value, path: &Path) {
        let Value::Object(map) = value else { return self.mismatch(at, value, path) };
        map.retain(|key, value| {
            if self.stopped {
                return true;
            }
            match s.field(key) {
                // A null is as good as absent, whatever the field's type.
                Some(_) if value.is_null() => false,
                Some(field) => {
                    self.value(at.to(field.ty), value, &Path::Field(path, at, key));
                    true
                }
                None if s.preserve_unknown => true,
                None => {
                    if let Some(strict) = &mut self.strict {
                        report(strict, Problem::Unknown { path: Path::Key(path, key).to_string() });
                    }
                    false
                }
            }
        });
    }

    fn map(&mut self, at: At, values: At, value: &mut Value, path: &Path) {
        let Value::Object(map) = value else { return self.mismatch(at, value, path) };
        for (key, value) in map.iter_mut() {
            self.element(values, value, &Path::Key(path, key));
        }
    }

    fn list(&mut self, at: At, items: At, value: &mut Value, path: &Path) {
        let Value::Array(list) = value else { return self.mismatch(at, value, path) };
        for (i, value) in list.iter_mut().enumerate() {
            self.element(items, value, &Path::Index(path, i));
        }
    }

    /// An item or a map's value: unlike a field it cannot be absent, so a null becomes Go's zero value.
    fn element(&mut self, at: At, value: &mut Value, path: &Path) {
        if self.stopped {
        } else if value.is_null() {
            *value = zero(at);
        } else {
            self.value(at, value, path);
        }
    }

    fn scalar(&mut self, at: At, scalar: Scalar, value: &mut Value, path: &Path) {
        match (scalar, &mut *value) {
            (Scalar::String, Value::String(_)) | (Scalar::Bool, Value::Bool(_)) => {}
            (Scalar::Int32 | Scalar::Int64, Value::Number(_)) => self.integer(at, scalar, value, path),
            (Scalar::Double, Value::Number(_)) => normalize_numbers(value),
            (Scalar::Bytes, Value::String(text)) => match base64_as_go(text) {
                Ok(canonical) => *text = canonical,
                Err(message) => self.save(message),
            },
            (Scalar::Quantity, Value::String(text)) => self.quantity(text.trim().to_owned(), value),
            (Scalar::Quantity, other) => self.quantity(other.to_string(), value),
            (Scalar::IntOrString, Value::String(_)) => {}
            (Scalar::IntOrString, Value::Number(_)) => {
                self.integer(at, Scalar::Int32, value, path);
                self.stopped |= self.saved.is_some();
            }
            (Scalar::Time, Value::String(text)) => self.own(time::whole_seconds(text), value),
            (Scalar::MicroTime, Value::String(text)) => self.own(time::micro_time(text), value),
            (Scalar::Duration, Value::String(_)) => {}
            (Scalar::IntOrString | Scalar::Time | Scalar::MicroTime | Scalar::Duration, _) => {
                self.mismatch(at, value, path);
                self.stopped = true;
            }
            _ => self.mismatch(at, value, path),
        }
    }

    fn integer(&mut self, at: At, scalar: Scalar, value: &Value, path: &Path) {
        let fits = match (scalar, value.as_i64()) {
            (Scalar::Int32, Some(n)) => i32::try_from(n).is_ok(),
            (_, n) => n.is_some(),
        };
        if !fits {
            self.type_error(at, &format!("number {value}"), path);
        }
    }

    fn quantity(&mut self, text: String, value: &mut Value) {
        match quantity::canonical(&text) {
            Ok(canonical) => match value {
                Value::String(old) if *old == canonical => {}
                _ => *value = Value::String(canonical.into_owned()),
            },
            Err(error) => self.stop(error.to_string()),
        }
    }

    /// The outcome of a type's own decoder.
    fn own(&mut self, outcome: Result<Option<String>, String>, value: &mut Value) {
        match outcome {
            Ok(text) => *value = text.map_or(Value::Null, Value::String),
            Err(message) => self.stop(message),
        }
    }

    fn any(&mut self, at: At, value: &mut Value, path: &Path) {
        let Some(form) = at.graph.form(at.id) else { return normalize_numbers(value) };
        match (form, &mut *value) {
            (Form::Raw, _) | (Form::SchemaOrBool, Value::Bool(_)) => {}
            (_, Value::Object(_)) => self.schema(at, value, path),
            (Form::SchemaOrArray, Value::Array(items)) => {
                items.iter_mut().for_each(|item| self.schema(at, item, path));
            }
            (Form::SchemaOrStrings, Value::Array(_)) => {}
            (Form::SchemaOrBool, _) => self.stop("boolean or JSON schema expected".into()),
            (Form::SchemaOrArray | Form::SchemaOrStrings, _) => *value = Value::Null,
        }
    }

    fn schema(&mut self, at: At, value: &mut Value, path: &Path) {
        let Some(schema) = at.graph.named(super::encode::JSON_SCHEMA_PROPS) else { return };
        let mut inner = Decoder { strict: None, saved: None, stopped: false };
        inner.value(schema, value, path);
        if let Some(error) = inner.saved {
            self.stop(error.message);
        }
    }

    fn mismatch(&mut self, at: At, value: &Value, path: &Path) {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        self.type_error(at, found, path);
    }

    fn type_error(&mut self, at: At, found: &str, path: &Path) {
        let target = match path.go() {
            Some(field) => format!("struct field {field}"),
            None => "value".to_owned(),
        };
        self.save(format!("json: cannot unmarshal {found} into Go {target} of type {}", go_type(at)));
    }

    fn save(&mut self, message: String) {
        self.saved.get_or_insert(DecodeError { message });
    }

    fn stop(&mut self, message: String) {
        self.saved = Some(DecodeError { message });
        self.stopped = true;
    }
}

/// What Go's type is called in an error.
fn go_type(at: At) -> String {
    if let Some(name) = at.graph.go_name(at.id) {
        return name.to_owned();
    }
    match at.ty() {
        Type::Struct(s) => last_segments(&s.name, 2).to_owned(),
        Type::Map(map) => format!("map[string]{}", go_type(at.to(map.values))),
        Type::List(list) => format!("[]{}", go_type(at.to(list.items))),
        Type::Any => "interface {}".to_owned(),
        Type::Scalar(scalar) => match scalar {
            Scalar::Bool => "bool",
            Scalar::Int32 => "int32",
            Scalar::Int64 => "int64",
            Scalar::Double => "float64",
            Scalar::Bytes => "[]uint8",
            Scalar::IntOrString => "int32",
            Scalar::String | Scalar::Quantity | Scalar::Time | Scalar::MicroTime | Scalar::Duration => "string",
        }
        .to_owned(),
    }
}

/// Go's zero value as a list item or a map's value.
pub(crate) fn zero(at: At) -> Value {
    match at.ty() {
        Type::Struct(_) => Value::Object(serde_json::Map::new()),
        Type::Map(_) | Type::List(_) | Type::Any => Value::Null,
        Type::Scalar(scalar) => match scalar {
            Scalar::String => "".into(),
            Scalar::Bool => false.into(),
            Scalar::Int32 | Scalar::Int64 | Scalar::Double | Scalar::IntOrString => 0.into(),
            Scalar::Quantity => "0".into(),
            Scalar::Duration => "0s".into(),
            Scalar::Bytes | Scalar::Time | Scalar::MicroTime => Value::Null,
        },
    }
}

/// Go's decoder skips line breaks and does not mind stray bits at the end.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

fn base64_as_go(text: &str) -> Result<String, String> {
    let illegal = |offset: usize| format!("illegal base64 data at input byte {offset}");
    let decoded =
        if text.contains(['\n', '\r']) { BASE64.decode(text.replace(['\n', '\r'], "")) } else { BASE64.decode(text) };
    match decoded {
        Ok(bytes) => Ok(BASE64.encode(bytes)),
        Err(base64::DecodeError::InvalidByte(offset, _) | base64::DecodeError::InvalidLastSymbol(offset, _)) => {
            Err(illegal(offset))
        }
        Err(_) => Err(illegal(text.len() / 4 * 4)),
    }
}
