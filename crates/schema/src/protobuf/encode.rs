//! Writing protobuf as Kubernetes' Go types do, byte for byte, for clients that take nothing else: fields by rising number,
//! values that Go holds by value always, pointers only when set.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::MAGIC;
use crate::builtin;
use crate::codec::JSON_SCHEMA_PROPS;
use crate::graph::{At, Form, Presence, Scalar, Struct, Type};

/// A complete body: the envelope and the object in it. `None` for kinds that have no protobuf form (custom resources,
/// Tables) and for what is no object.
pub fn encode_object(object: &Value) -> Option<Vec<u8>> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let at = builtin::kind(group, version, kind)?;
    let mut meta = Vec::new();
    bytes(1, api_version.as_bytes(), &mut meta);
    bytes(2, kind.as_bytes(), &mut meta);
    let mut out = MAGIC.to_vec();
    bytes(1, &meta, &mut out);
    bytes(2, &encode_raw(at, object), &mut out);
    // How the object would be compressed, and what it would be if not protobuf.
    bytes(3, b"", &mut out);
    bytes(4, b"", &mut out);
    Some(out)
}

/// The message of an object without its envelope.
pub fn encode_raw(at: At, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    message_of(at, object, &mut out);
    out
}

/// One event of a watch as a frame: its length in four bytes, then the event.
pub fn encode_event(event: &Value) -> Option<Vec<u8>> {
    let object = encode_object(event.get("object")?)?;
    let mut raw = Vec::with_capacity(object.len() + 8);
    bytes(1, &object, &mut raw);
    let mut out = vec![0; 4];
    bytes(1, event.get("type")?.as_str()?.as_bytes(), &mut out);
    bytes(2, &raw, &mut out);
    let length = u32::try_from(out.len() - 4).ok()?;
    out[..4].copy_from_slice(&length.to_be_bytes());
    Some(out)
}

fn message_of(at: At, value: &Value, out: &mut Vec<u8>) {
    let empty = Map::new();
    if let Type::Struct(s) = at.ty() {
        message(at, s, value.as_object().unwrap_or(&empty), out);
    }
}

fn message(at: At, s: &Struct, map: &Map<String, Value>, out: &mut Vec<u8>) {
    enum Part<'g> {
        Field(&'g crate::graph::Field),
        Embed(crate::graph::TypeId),
    }
    let fields = s.fields.iter().map(|field| (field.number, Part::Field(field)));
    let embeds = at.graph.embeds(at.id).iter().map(|embed| (embed.number, Part::Embed(embed.ty)));
    let mut parts: Vec<(u32, Part)> = fields.chain(embeds).filter(|(number, _)| *number > 0).collect();
    parts.sort_by_key(|(number, _)| *number);
    for (number, part) in parts {
        match part {
            Part::Field(field) => {
                let value = map.get(&field.name).filter(|value| !value.is_null());
                let pointer = matches!(field.presence, Presence::Set | Presence::Null);
                self::field(number, at.to(field.ty), pointer, value, out);
            }
            // Its fields are the outer struct's in JSON.
            Part::Embed(ty) => {
                if let Type::Struct(inner) = at.graph.get(ty) {
                    nested(number, out, |out| message(at.to(ty), inner, map, out));
                }
            }
        }
    }
}

fn field(number: u32, at: At, pointer: bool, value: Option<&Value>, out: &mut Vec<u8>) {
    match (at.ty(), value) {
        (Type::List(list), Some(Value::Array(items))) => {
            for item in items {
                element(number, at.to(list.items), item, out);
            }
        }
        (Type::Map(m), Some(Value::Object(map))) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            for (key, value) in entries {
                nested(number, out, |out| {
                    bytes(1, key.as_bytes(), out);
                    let values = at.to(m.values);
                    if !(value.is_null() && matches!(values.ty(), Type::Scalar(Scalar::Bytes))) {
                        element(2, values, value, out);
                    }
                });
            }
        }
        (Type::List(_) | Type::Map(_) | Type::Scalar(Scalar::Bytes), None) => {}
        (Type::List(_) | Type::Map(_), Some(_)) => {}
        (_, None) if pointer => {}
        (_, value) => element(number, at, value.unwrap_or(&Value::Null), out),
    }
}

/// A value that is written whatever it is; null is the type's zero.
fn element(number: u32, at: At, value: &Value, out: &mut Vec<u8>) {
    match at.ty() {
        Type::Struct(_) => nested(number, out, |out| message_of(at, value, out)),
        Type::Scalar(kind) => scalar(number, *kind, value, out),
        Type::Any => nested(number, out, |out| any(at, value, out)),
        // The message around an inner list (`ExtraValue`).
        Type::List(list) => nested(number, out, |out| {
            for item in value.as_array().into_iter().flatten() {
                element(1, at.to(list.items), item, out);
            }
        }),
        Type::Map(_) => {}
    }
}

fn any(at: At, value: &Value, out: &mut Vec<u8>) {
    let schema = at.graph.named(JSON_SCHEMA_PROPS);
    let write_schema = |number: u32, value: &Value, out: &mut Vec<u8>| {
        if let Some(schema) = schema {
            element(number, schema, value, out);
        }
    };
    match (at.graph.form(at.id), value) {
        (Some(Form::SchemaOrBool), Value::Object(_)) => {
            varint_field(1, 1, out);
            write_schema(2, value, out);
        }
        (Some(Form::SchemaOrBool), _) => varint_field(1, u64::from(value.as_bool() == Some(true)), out),
        (Some(Form::SchemaOrArray | Form::SchemaOrStrings), Value::Object(_)) => write_schema(1, value, out),
        (Some(Form::SchemaOrArray), Value::Array(items)) => items.iter().for_each(|item| write_schema(2, item, out)),
        (Some(Form::SchemaOrStrings), Value::Array(items)) => {
            items.iter().filter_map(Value::as_str).for_each(|item| bytes(2, item.as_bytes(), out));
        }
        (_, Value::Null) => {}
        (_, value) => bytes(1, value.to_string().as_bytes(), out),
    }
}

fn scalar(number: u32, scalar: Scalar, value: &Value, out: &mut Vec<u8>) {
    let text = value.as_str().unwrap_or_default();
    match scalar {
        Scalar::String => bytes(number, text.as_bytes(), out),
        Scalar::Bool => varint_field(number, u64::from(value.as_bool() == Some(true)), out),
        Scalar::Int32 | Scalar::Int64 => varint_field(number, integer(value).cast_unsigned(), out),
        Scalar::Double => {
            varint(u64::from(number) << 3 | 1, out);
            out.extend(value.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        Scalar::Bytes => bytes(number, &STANDARD.decode(text).unwrap_or_default(), out),
        Scalar::Quantity => {
            let text = if text.is_empty() { "0" } else { text };
            nested(number, out, |out| bytes(1, text.as_bytes(), out));
        }
        Scalar::IntOrString => nested(number, out, |out| {
            varint_field(1, u64::from(value.is_string()), out);
            varint_field(2, integer(value).cast_unsigned(), out);
            bytes(3, text.as_bytes(), out);
        }),
        Scalar::Time | Scalar::MicroTime => nested(number, out, |out| {
            if let Ok(at) = text.parse::<jiff::Timestamp>() {
                // Go counts nanoseconds forward from the second before.
                let nanos = at.subsec_nanosecond();
                let (seconds, nanos) =
                    if nanos < 0 { (at.as_second() - 1, nanos + 1_000_000_000) } else { (at.as_second(), nanos) };
                varint_field(1, seconds.cast_unsigned(), out);
                varint_field(2, i64::from(nanos).cast_unsigned(), out);
            }
        }),
        Scalar::Duration => nested(number, out, |out| {
            varint_field(1, crate::duration::parse(text).unwrap_or(0).cast_unsigned(), out);
        }),
    }
}

fn integer(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_f64().map(|f| f as i64)).unwrap_or(0)
}

fn nested(number: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    bytes(number, &inner, out);
}

fn bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | 2, out);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn varint_field(number: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3, out);
    varint(value, out);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
