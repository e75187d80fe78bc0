//! From stored bytes to the shape the client asked for.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Answer;
use crate::body::Body;
use crate::negotiate::{Accepted, Encoding, Shape};
use crate::object::{self, Object};
use crate::registry::kind::Column;
use crate::registry::served::Served;
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::stored::Head;

/// Which part of each object goes along in a Table row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    pub fn parse(text: Option<&str>) -> Result<IncludeObject> {
        match text.unwrap_or("") {
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "None" => Ok(IncludeObject::None),
            "Object" => Ok(IncludeObject::Object),
            other => Err(ApiError::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

/// Writes single objects of one kind in one shape.
pub struct Shower<'a> {
    pub kind: &'a dyn Served,
    pub accepted: Accepted,
    pub include: IncludeObject,
    head: Cow<'a, Head>,
}

impl<'a> Shower<'a> {
    pub fn new(kind: &'a dyn Served, accepted: Accepted, include: IncludeObject) -> Shower<'a> {
        Shower { kind, accepted, include, head: Cow::Owned(Shower::head(kind, accepted)) }
    }

    /// With a [`Shower::head`] that is kept for many objects.
    pub fn with_head(kind: &'a dyn Served, accepted: Accepted, include: IncludeObject, head: &'a Head) -> Shower<'a> {
        Shower { kind, accepted, include, head: Cow::Borrowed(head) }
    }

    pub fn head(kind: &dyn Served, accepted: Accepted) -> Head {
        match accepted.shape {
            Shape::Partial | Shape::PartialList => Head::new(accepted.meta, "PartialObjectMetadata"),
            _ => Head::of(kind.resource()),
        }
    }

    /// Appends one object in the shape asked for.
    pub fn write(&self, out: &mut Vec<u8>, value: &[u8], revision: u64, now: jiff::Timestamp, columns: bool) {
        match self.accepted.shape {
            Shape::Object if self.kind.is_stored_as_shown() && self.kind.is_current(revision) => {
                self.head.write(out, value, revision)
            }
            Shape::Object => append(out, &self.object(value, revision)),
            Shape::Partial | Shape::PartialList => self.head.write(out, &metadata_only(value), revision),
            Shape::Table => {
                let rows = vec![self.row(value, revision, now)];
                let meta = json!({"resourceVersion": revision.to_string()});
                append(out, &table(self.accepted.meta, meta, columns.then(|| self.kind.columns()), rows));
            }
        }
    }

    pub fn object(&self, value: &[u8], revision: u64) -> Object {
        self.kind.thaw_value(value, revision).unwrap_or(Value::Null)
    }

    pub fn row(&self, value: &[u8], revision: u64, now: jiff::Timestamp) -> Value {
        let object = self.object(value, revision);
        let cells = self.kind.cells(&object, now);
        let shown = match self.include {
            IncludeObject::None => None,
            IncludeObject::Object => Some(object),
            IncludeObject::Metadata => Some(json!({
                "kind": "PartialObjectMetadata", "apiVersion": self.accepted.meta,
                "metadata": object.get("metadata").cloned().unwrap_or(Value::Null),
            })),
        };
        let mut row = json!({"cells": cells});
        if let Some(shown) = shown {
            row["object"] = shown;
        } else {
            row["object"] = Value::Null;
        }
        row
    }
}

fn append(out: &mut Vec<u8>, value: &Value) {
    let _ = serde_json::to_writer(out, value);
}

pub fn table(api_version: &str, metadata: Value, columns: Option<Vec<Column>>, rows: Vec<Value>) -> Value {
    let shown = |c: Column| json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority});
    // Columns that were told before are null, as Go writes a list that is not there.
    let columns = columns.map(|columns| columns.into_iter().map(shown).collect::<Vec<Value>>());
    json!({"kind": "Table", "apiVersion": api_version, "metadata": metadata, "columnDefinitions": columns, "rows": rows})
}

/// The stored bytes cut down to the metadata, in the stored form.
fn metadata_only(value: &[u8]) -> Vec<u8> {
    #[derive(Deserialize)]
    struct Root<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    match serde_json::from_slice::<Root<'_>>(value) {
        Ok(root) => format!("{{\"metadata\":{}}}", root.metadata.get()).into_bytes(),
        Err(_) => b"{\"metadata\":{}}".to_vec(),
    }
}

impl Server {
    /// An answer with one object that is in the store.
    pub(super) fn show_stored(
        &self,
        code: u16,
        kind: &dyn Served,
        value: &Bytes,
        revision: u64,
        accepted: Accepted,
        include: Option<&str>,
    ) -> Result<Answer> {
        let shower = Shower::new(kind, accepted, IncludeObject::parse(include)?);
        let mut out = Vec::with_capacity(value.len() + 128);
        shower.write(&mut out, value, revision, self.clock().now(), true);
        Ok(finish(code, out, accepted))
    }

    /// An answer with an object that need not be in the store (a dry run, a subresource's body).
    pub(super) fn show_object(
        &self,
        code: u16,
        kind: &dyn Served,
        object: &Object,
        accepted: Accepted,
    ) -> Result<Answer> {
        if accepted.shape == Shape::Object {
            return Ok(finish(code, object.to_string().into_bytes(), accepted));
        }
        let revision = object::meta_str(object, "resourceVersion").parse().unwrap_or(0);
        self.show_stored(code, kind, &kind.freeze(object, None), revision, accepted, None)
    }
}

/// Encodes JSON bytes as the client wants them.
pub fn finish(code: u16, mut json: Vec<u8>, accepted: Accepted) -> Answer {
    // Go's encoder ends a document with a line break, and so do we.
    json.push(b'\n');
    let body = match (accepted.encoding, accepted.pretty) {
        (Encoding::Json, false) => Body::whole(json),
        (Encoding::Json, true) => match serde_json::from_slice::<Value>(&json) {
            Ok(value) => Body::whole(serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"),
            Err(_) => Body::whole(json),
        },
        (Encoding::Protobuf, _) => {
            let content_type = Encoding::Json.content_type();
            return Answer::whole(code, content_type, Body::whole(json)).encoded(Encoding::Protobuf);
        }
        (Encoding::Yaml, _) => match serde_json::from_slice::<Value>(&json) {
            Ok(value) => Body::whole(serde_saphyr::to_string(&value).unwrap_or_default()),
            Err(_) => Body::whole(json),
        },
    };
    Answer::whole(code, accepted.encoding.content_type(), body)
}
