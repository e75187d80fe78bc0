//! Protobuf bodies: client-go and controller-runtime send built-in kinds this way and do not fall back to JSON; some clients
//! take answers in no other form.
//!
//! The wire format is read and written field by field along the type graph, which knows every field's number; there are no
//! generated messages. What is read is what Go would write as JSON for the same object.
//!
//! Start at [`decode_unknown`] for the envelope, then [`to_json`] for the object in it; [`encode_object`] is the way back.

mod encode;
mod wire;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use crate::codec::{self, JSON_SCHEMA_PROPS, MAX_DEPTH};
use crate::graph::{At, Field, Form, Scalar, Struct, Type};
pub use encode::{encode_event, encode_object, encode_raw};
use wire::{Payload, Reader};

/// What every body starts with.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: illegal tag {0}")]
    IllegalTag(u64),
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WireType { field: String, wire: u8 },
    #[error("proto: unexpected end of group")]
    EndOfGroup,
    #[error("proto: exceeded max depth of {MAX_DEPTH}")]
    TooDeep,
    #[error("proto: field {field}: {reason}")]
    Invalid { field: String, reason: String },
}

/// The kind of the object in an envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeMeta {
    pub api_version: String,
    pub kind: String,
}

pub fn is_protobuf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Opens the envelope (`runtime.Unknown`) around an object.
pub fn decode_unknown(bytes: &[u8]) -> Result<(TypeMeta, &[u8]), ProtoError> {
    let mut reader = Reader::new(bytes.strip_prefix(MAGIC).ok_or(ProtoError::NoMagic)?);
    let mut meta = TypeMeta::default();
    let mut raw: &[u8] = &[];
    while let Some((number, payload)) = reader.next()? {
        match number {
            1 => {
                let mut inner = Reader::new(payload.bytes("typeMeta")?);
                while let Some((number, payload)) = inner.next()? {
                    match number {
                        1 => meta.api_version = text(payload.bytes("apiVersion")?),
                        2 => meta.kind = text(payload.bytes("kind")?),
                        _ => {}
                    }
                }
            }
            2 => raw = payload.bytes("raw")?,
            _ => {}
        }
    }
    Ok((meta, raw))
}

/// The object as Go would write it in JSON. Protobuf carries no `apiVersion` and `kind` inside; they come from the
/// envelope.
pub fn to_json(at: At, raw: &[u8]) -> Result<Value, ProtoError> {
    let mut value = Decoder { depth: 0 }.value(at, "", Payload::Bytes(raw))?;
    codec::encode(at, &mut value);
    Ok(value)
}

struct Decoder {
    /// Messages entered. Each can be two levels of JSON (a field's list and its item), hence half of [`MAX_DEPTH`].
    depth: usize,
}

impl Decoder {
    /// One value: a message, a scalar, or one item of a list.
    fn value(&mut self, at: At, field: &str, payload: Payload) -> Result<Value, ProtoError> {
        match at.ty() {
            Type::Struct(s) => self.deeper(|this| {
                let mut map = Map::new();
                this.message(at, s, payload.bytes(field)?, &mut map)?;
                Ok(Value::Object(map))
            }),
            Type::Scalar(scalar) => scalar_value(*scalar, field, payload),
            Type::Any => self.deeper(|this| this.any(at, field, payload.bytes(field)?)),
            // Protobuf has no list of lists or map of lists: Go wraps the inner list in a message (`ExtraValue`).
            Type::List(list) => {
                let mut items = Vec::new();
                let mut reader = Reader::new(payload.bytes(field)?);
                while let Some((number, payload)) = reader.next()? {
                    if number == 1 {
                        items.push(self.value(at.to(list.items), field, payload)?);
                    }
                }
                Ok(if items.is_empty() { Value::Null } else { Value::Array(items) })
            }
            Type::Map(_) => Err(invalid(field, "a map of maps has no protobuf form")),
        }
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Decoder) -> Result<T, ProtoError>) -> Result<T, ProtoError> {
        if self.depth >= MAX_DEPTH / 2 {
            return Err(ProtoError::TooDeep);
        }
        self.depth += 1;
        let outcome = read(self);
        self.depth -= 1;
        outcome
    }

    fn message(&mut self, at: At, s: &Struct, bytes: &[u8], map: &mut Map<String, Value>) -> Result<(), ProtoError> {
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            if let Some(field) = s.fields.iter().find(|f| f.number == number) {
                self.field(at, field, payload, map)?;
            } else if let Some(embed) = at.graph.embeds(at.id).iter().find(|e| e.number == number) {
                // Embedding is not recursive, so it needs no depth.
                if let Type::Struct(inner) = at.graph.get(embed.ty) {
                    self.message(at.to(embed.ty), inner, payload.bytes(&s.name)?, map)?;
                }
            }
        }
        Ok(())
    }

    fn field(
        &mut self,
        at: At,
        field: &Field,
        payload: Payload,
        map: &mut Map<String, Value>,
    ) -> Result<(), ProtoError> {
        let name = field.name.as_str();
        match at.graph.get(field.ty) {
            Type::List(list) => {
                let items = at.to(list.items);
                let slot = map.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(list) = slot else { return Ok(()) };
                match (packed(items), payload) {
                    (Some(scalar), Payload::Bytes(bytes)) => {
                        let mut reader = Reader::new(bytes);
                        while let Some(payload) = reader.packed(scalar == Scalar::Double)? {
                            list.push(scalar_value(scalar, name, payload)?);
                        }
                    }
                    (_, payload) => {
                        let item = self.value(items, name, payload)?;
                        list.push(item);
                    }
                }
            }
            Type::Map(m) => {
                let (key, value) = self.entry(at.to(m.values), name, payload.bytes(name)?)?;
                let slot = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = slot {
                    map.insert(key, value);
                }
            }
            // A message that comes in pieces is one message.
            Type::Struct(s) if map.get(name).is_some_and(Value::is_object) => {
                if let Some(Value::Object(inner)) = map.get_mut(name) {
                    self.deeper(|this| this.message(at.to(field.ty), s, payload.bytes(name)?, inner))?;
                }
            }
            _ => {
                let value = self.value(at.to(field.ty), name, payload)?;
                map.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    /// A map's entry is a message of key and value, either of which may be missing.
    fn entry(&mut self, values: At, field: &str, bytes: &[u8]) -> Result<(String, Value), ProtoError> {
        let mut key = String::new();
        let mut value = None;
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            match number {
                1 => key = text(payload.bytes(field)?),
                2 => value = Some(self.value(values, field, payload)?),
                _ => {}
            }
        }
        Ok((key, value.unwrap_or_else(|| codec::zero(values))))
    }

    fn any(&mut self, at: At, field: &str, bytes: &[u8]) -> Result<Value, ProtoError> {
        let schema = at.graph.named(JSON_SCHEMA_PROPS);
        let mut union = Union::default();
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            match (at.graph.form(at.id), number, schema) {
                (Some(Form::Raw), 1, _) => union.raw = payload.bytes(field)?,
                (Some(Form::SchemaOrBool), 1, _) => union.allows = payload.varint(field)? != 0,
                (Some(Form::SchemaOrBool), 2, Some(schema))
                | (Some(Form::SchemaOrArray | Form::SchemaOrStrings), 1, Some(schema)) => {
                    union.schema = Some(self.value(schema, field, payload)?);
                }
                (Some(Form::SchemaOrArray), 2, Some(schema)) => union.items.push(self.value(schema, field, payload)?),
                (Some(Form::SchemaOrStrings), 2, _) => union.items.push(text(payload.bytes(field)?).into()),
                _ => {}
            }
        }
        match at.graph.form(at.id) {
            Some(Form::SchemaOrBool) => Ok(union.schema.unwrap_or(Value::Bool(union.allows))),
            Some(Form::SchemaOrArray | Form::SchemaOrStrings) if !union.items.is_empty() => Ok(union.items.into()),
            Some(Form::SchemaOrArray | Form::SchemaOrStrings) => Ok(union.schema.unwrap_or(Value::Null)),
            _ => self.raw(field, union.raw),
        }
    }

    /// JSON inside protobuf: its depth counts on.
    fn raw(&self, field: &str, bytes: &[u8]) -> Result<Value, ProtoError> {
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        let (value, _) = codec::parse(bytes).map_err(|e| invalid(field, &e.to_string()))?;
        let left = MAX_DEPTH.saturating_sub(2 * self.depth);
        if codec::within_depth(&value, left) { Ok(value) } else { Err(ProtoError::TooDeep) }
    }
}

/// The messages of [`Form`], whose fields overlap.
#[derive(Default)]
struct Union<'a> {
    raw: &'a [u8],
    allows: bool,
    schema: Option<Value>,
    items: Vec<Value>,
}

/// Whether several of these may come in one length-delimited field.
fn packed(items: At) -> Option<Scalar> {
    match items.ty() {
        Type::Scalar(s @ (Scalar::Bool | Scalar::Int32 | Scalar::Int64 | Scalar::Double)) => Some(*s),
        _ => None,
    }
}

fn scalar_value(scalar: Scalar, field: &str, payload: Payload) -> Result<Value, ProtoError> {
    Ok(match scalar {
        Scalar::String => text(payload.bytes(field)?).into(),
        Scalar::Bool => (payload.varint(field)? != 0).into(),
        Scalar::Int32 => (payload.varint(field)? as i32).into(),
        Scalar::Int64 => (payload.varint(field)? as i64).into(),
        Scalar::Double => {
            let float = f64::from_bits(payload.fixed64(field)?);
            let mut value = Number::from_f64(float).map_or(Value::Null, Value::Number);
            codec::normalize_numbers(&mut value);
            value
        }
        Scalar::Bytes => STANDARD.encode(payload.bytes(field)?).into(),
        Scalar::Quantity => quantity(field, payload.bytes(field)?)?,
        Scalar::IntOrString => int_or_string(payload.bytes(field)?)?,
        Scalar::Time => time(field, payload.bytes(field)?, codec::render_seconds)?,
        Scalar::MicroTime => time(field, payload.bytes(field)?, codec::render_micros)?,
        // No built-in kind has a duration; Go would write it as text like "1h0m0s".
        Scalar::Duration => return Err(invalid(field, "durations are not read from protobuf")),
    })
}

fn quantity(field: &str, bytes: &[u8]) -> Result<Value, ProtoError> {
    let mut reader = Reader::new(bytes);
    let mut found = String::new();
    while let Some((number, payload)) = reader.next()? {
        if number == 1 {
            found = text(payload.bytes(field)?);
        }
    }
    if found.is_empty() {
        return Ok("0".into());
    }
    let canonical = usher_api::quantity::canonical(&found).map_err(|e| invalid(field, &e.to_string()))?;
    Ok(canonical.into_owned().into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtoError> {
    let (mut is_string, mut int, mut string) = (false, 0i32, String::new());
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        match number {
            1 => is_string = payload.varint("type")? == 1,
            2 => int = payload.varint("intVal")? as i32,
            3 => string = text(payload.bytes("strVal")?),
            _ => {}
        }
    }
    Ok(if is_string { string.into() } else { int.into() })
}

fn time(field: &str, bytes: &[u8], render: fn(jiff::civil::DateTime) -> String) -> Result<Value, ProtoError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0i64, 0i32);
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        match number {
            1 => seconds = payload.varint(field)? as i64,
            2 => nanos = payload.varint(field)? as i32,
            _ => {}
        }
    }
    let utc = codec::from_unix(seconds, nanos).ok_or_else(|| invalid(field, "time out of range"))?;
    Ok(render(utc).into())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn invalid(field: &str, reason: &str) -> ProtoError {
    ProtoError::Invalid { field: field.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;
