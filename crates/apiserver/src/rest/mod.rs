//! The verbs: what happens between a parsed request and the store.

mod decode;
mod delete;
mod dispatch;
mod patch;
mod read;
mod show;
mod subresource;
mod watch;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use serde_json::Value;
use usher_schema::protobuf;

use crate::auth::identity::User;
use crate::body::Body;
use crate::negotiate::{self, Accepted, Encoding};
use crate::registry::served::Served;
use crate::request::{Info, Query};
use crate::status::{ApiError, Result};

pub(crate) use decode::{decode_body, question_body};
pub(crate) use watch::Crowd;

/// A request on a resource, authorized, with its body read.
pub struct Ask {
    pub info: Info,
    pub query: Query,
    pub user: Arc<User>,
    /// Asked by a client in this process, without a socket.
    pub in_process: bool,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Ask {
    fn header(&self, name: http::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    pub fn accepted(&self) -> Result<Accepted> {
        negotiate::accept(self.header(ACCEPT), self.query.flag("pretty"))
    }

    /// See [`negotiate::accept_whole`].
    pub fn accepts_whole(&self) -> Result<()> {
        negotiate::accept_whole(self.header(ACCEPT)).map(|_| ())
    }

    pub fn content_type(&self) -> Option<&str> {
        self.header(CONTENT_TYPE)
    }

    /// Who owns the fields this request sets: the manager named in the query, else the client's name before the first slash.
    pub fn field_manager(&self, named: &str) -> String {
        if !named.is_empty() {
            return named.to_owned();
        }
        let agent = self.header(USER_AGENT).unwrap_or("");
        let name: String =
            agent.split('/').next().unwrap_or("").chars().filter(|c| !c.is_control()).take(128).collect();
        if name.is_empty() { "unknown".to_owned() } else { name }
    }
}

/// What goes back.
pub struct Answer {
    pub code: u16,
    pub content_type: &'static str,
    pub body: Body,
    pub warnings: Vec<String>,
    /// The connection becomes a websocket.
    pub switch: Option<Switch>,
    /// In JSON, and of a shape nobody chose: encoded as the client wants it where it leaves.
    pub is_plain: bool,
}

/// What a client that asked for a websocket is told.
pub struct Switch {
    pub accept: String,
    pub protocol: &'static str,
}

impl Answer {
    pub fn json(code: u16, value: &serde_json::Value) -> Answer {
        let body = Body::whole(format!("{value}\n"));
        Answer { code, content_type: "application/json", body, warnings: Vec::new(), switch: None, is_plain: true }
    }

    pub fn text(code: u16, text: impl Into<String>) -> Answer {
        let text: String = text.into();
        Answer::whole(code, "text/plain; charset=utf-8", Body::whole(text))
    }

    /// An answer that is as it should be.
    pub fn whole(code: u16, content_type: &'static str, body: Body) -> Answer {
        Answer { code, content_type, body, warnings: Vec::new(), switch: None, is_plain: false }
    }

    /// The same as the client wants it encoded, if it is still in JSON; what has no protobuf form stays so.
    #[must_use]
    pub fn encoded(mut self, encoding: Encoding) -> Answer {
        if encoding == Encoding::Json || self.content_type != Encoding::Json.content_type() {
            return self;
        }
        let Body::Whole(Some(json)) = &self.body else { return self };
        let object: Value = serde_json::from_slice(json).unwrap_or_default();
        let bytes = match encoding {
            Encoding::Protobuf => protobuf::encode_object(&object),
            // Documents that are no objects have one form.
            _ => object.get("kind").and_then(|_| serde_saphyr::to_string(&object).ok()).map(String::into_bytes),
        };
        if let Some(bytes) = bytes {
            self.body = Body::whole(bytes);
            self.content_type = encoding.content_type();
        }
        self
    }

    #[must_use]
    pub fn warned(mut self, warnings: Vec<String>) -> Answer {
        self.warnings.extend(warnings);
        self
    }
}

/// A resource and the request on it: what every verb needs.
pub struct Target<'a> {
    pub kind: &'a Arc<dyn Served>,
    pub ask: &'a Ask,
}

impl Target<'_> {
    pub fn key(&self, name: &str) -> String {
        crate::stored::key(self.namespace(), name)
    }

    /// The namespace objects of this request live in; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        if self.kind.resource().namespaced { &self.ask.info.namespace } else { "" }
    }

    pub fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(self.kind.resource(), name)
    }
}
