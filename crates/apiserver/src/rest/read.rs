//! `get` and `list`.

use std::sync::Arc;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD};
use bytes::Bytes;
use serde_json::{Value, json};
use usher_schema::codec;
use usher_store::{Entry, ListError};

use super::show::{IncludeObject, Shower, finish, table};
use super::{Answer, Target};
use crate::body::Body;
use crate::negotiate::{Accepted, Encoding, Shape};
use crate::registry::served::Served;
use crate::request::{Freshness, ListOptions, bad_version, parse_resource_version};
use crate::selector::{FieldSelector, LabelSelector};
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::stored::{self, Head};

impl Server {
    pub(super) async fn get(&self, target: &Target<'_>) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let name = &target.ask.info.name;
        if let Some(version) = target.ask.query.get("resourceVersion").filter(|v| !v.is_empty()) {
            // Upstream finds this out so late that it has no reason for it.
            let revision = parse_resource_version(version).map_err(|_| ApiError::plain(500, &bad_version(version)))?;
            self.reach(revision).await?;
        }
        let kind = target.kind.as_ref();
        let entry = self.store().get(&kind.collection(), &target.key(name)).ok_or_else(|| target.not_found(name))?;
        let include = target.ask.query.get("includeObject");
        self.show_stored(200, kind, &entry.value, entry.mod_revision, accepted, include)
    }

    /// Waits a moment for the store to reach a revision that a client has heard of elsewhere.
    pub(super) async fn reach(&self, revision: u64) -> Result<()> {
        if self.store().revision() >= revision {
            return Ok(());
        }
        let patience = std::time::Duration::from_secs(3);
        match tokio::time::timeout(patience, self.store().wait_for(revision)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(ApiError::too_large_resource_version(revision, self.store().revision())),
        }
    }

    pub(super) async fn list(&self, target: &Target<'_>) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let mut options = ListOptions::parse(&target.ask.query, false)?;
        fix_name(target, &mut options)?;
        check_fields(target.kind.as_ref(), &options.fields)?;
        let page = self.select_page(target, &options).await?;
        let include = IncludeObject::parse(target.ask.query.get("includeObject"))?;
        Ok(self.show_page(target.kind, accepted, include, page))
    }

    /// One page of what the selectors choose.
    pub(super) async fn select_page(&self, target: &Target<'_>, options: &ListOptions) -> Result<Page> {
        let kind = target.kind.as_ref();
        let collection = kind.collection();
        let prefix = match target.namespace() {
            "" => options
                .fields
                .exact("metadata.namespace")
                .filter(|_| kind.resource().namespaced)
                .map(|n| format!("{n}/")),
            namespace => Some(format!("{namespace}/")),
        }
        .unwrap_or_default();
        let mut at = match options.freshness {
            Freshness::Latest | Freshness::Any => None,
            Freshness::NotOlderThan(revision) => {
                self.reach(revision).await?;
                None
            }
            Freshness::Exact(revision) => {
                self.reach(revision).await?;
                Some(revision)
            }
        };
        let mut start_after = None;
        if let Some(token) = &options.continue_token {
            let token = Continue::decode(token)?;
            if matches!(options.freshness, Freshness::NotOlderThan(_) | Freshness::Exact(_)) {
                return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
            }
            at = token.revision;
            start_after = Some(token.after);
        }
        // Selectors are applied page by page: a page is full when it has `limit` matches, however many were looked at.
        let everything = options.labels.is_everything() && options.fields.is_everything();
        let mut found: Vec<Arc<Entry>> = Vec::new();
        loop {
            let wanted = options.limit.map(|limit| limit - found.len());
            let batch = if everything { wanted } else { wanted.map(|n| n.max(500)) };
            let page = self
                .store()
                .list(
                    &collection,
                    &usher_store::ListOptions {
                        prefix: prefix.clone(),
                        start_after: start_after.clone(),
                        limit: batch,
                        at,
                    },
                )
                .map_err(|e| list_error(e, start_after.as_deref().filter(|_| options.continue_token.is_some())))?;
            at = Some(page.revision);
            let mut remaining = page.remaining;
            let total = page.entries.len();
            for (i, entry) in page.entries.into_iter().enumerate() {
                start_after = Some(entry.key.to_string());
                if everything || matches(kind, &entry, &options.labels, &options.fields) {
                    found.push(entry);
                    if options.limit == Some(found.len()) {
                        remaining += total - i - 1;
                        break;
                    }
                }
            }
            let full = options.limit == Some(found.len());
            if full || remaining == 0 {
                let more = full && remaining > 0;
                return Ok(Page {
                    entries: found,
                    revision: page.revision,
                    next: more
                        .then(|| Continue { revision: Some(page.revision), after: start_after.unwrap_or_default() }),
                    // Only known without selectors: the store counts keys, not matches.
                    remaining: (more && everything).then_some(remaining),
                });
            }
        }
    }

    pub(super) fn show_page(
        &self,
        kind: &Arc<dyn Served>,
        accepted: Accepted,
        include: IncludeObject,
        page: Page,
    ) -> Answer {
        let mut metadata = page.metadata();
        if kind.is_custom() && accepted.shape == Shape::Object && metadata.get("continue").is_none() {
            // Upstream's lists of custom resources always have the member.
            metadata["continue"] = "".into();
        }
        let now = self.clock().now();
        if accepted.shape == Shape::Table {
            let shower = Shower::new(kind.as_ref(), accepted, include);
            let rows = page.entries.iter().map(|e| shower.row(&e.value, e.mod_revision, now)).collect();
            return finish(
                200,
                table(accepted.meta, metadata, Some(kind.columns()), rows).to_string().into_bytes(),
                accepted,
            );
        }
        let (list_kind, api_version) = match accepted.shape {
            Shape::Partial | Shape::PartialList => ("PartialObjectMetadataList".to_owned(), accepted.meta.to_owned()),
            _ => (format!("{}List", kind.resource().kind), kind.resource().api_version()),
        };
        let opening = format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
            Value::from(list_kind),
            Value::from(api_version)
        );
        let whole = accepted.encoding != Encoding::Json || accepted.pretty;
        let pieces = ListPieces {
            kind: kind.clone(),
            accepted,
            opening: Some(opening),
            entries: page.entries.into_iter(),
            first: true,
            done: false,
            now,
        };
        if whole {
            return finish(200, pieces.flatten().collect(), accepted);
        }
        let mut pieces = pieces;
        let Some(first) = pieces.next() else { return finish(200, Vec::new(), accepted) };
        let body = if pieces.done {
            Body::whole(first)
        } else {
            Body::pieces(futures::stream::iter(std::iter::once(first).chain(pieces).map(Bytes::from)))
        };
        Answer::whole(200, "application/json", body)
    }
}

/// A list written in pieces of about this size, when the connection has room for the next.
const PIECE_BYTES: usize = 256 * 1024;

struct ListPieces {
    kind: Arc<dyn Served>,
    accepted: Accepted,
    opening: Option<String>,
    entries: std::vec::IntoIter<Arc<Entry>>,
    first: bool,
    done: bool,
    now: jiff::Timestamp,
}

impl Iterator for ListPieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.done {
            return None;
        }
        let bare = self.accepted.shape == Shape::Object && !self.kind.is_custom() && self.kind.is_stored_as_shown();
        let bare_head = Head::bare();
        let shower = Shower::new(self.kind.as_ref(), self.accepted, IncludeObject::None);
        let mut out = self.opening.take().map(String::into_bytes).unwrap_or_default();
        while out.len() < PIECE_BYTES {
            let Some(entry) = self.entries.next() else {
                out.extend_from_slice(b"]}\n");
                self.done = true;
                return Some(out);
            };
            if !std::mem::take(&mut self.first) {
                out.push(b',');
            }
            if bare {
                bare_head.write(&mut out, &entry.value, entry.mod_revision);
            } else {
                shower.write(&mut out, &entry.value, entry.mod_revision, self.now, false);
            }
        }
        Some(out)
    }
}

/// Part of a list.
pub struct Page {
    pub entries: Vec<Arc<Entry>>,
    pub revision: u64,
    next: Option<Continue>,
    remaining: Option<usize>,
}

impl Page {
    fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(next) = &self.next {
            metadata["continue"] = next.encode().into();
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// What upstream's tokens say they are, and ours.
const TOKEN_VERSION: &str = "meta.k8s.io/v1";

/// Reads what Go's decoder reads: bits that are left over at the end need not be zero.
const TOKEN_CODE: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// A byte as Go shows it where it expected a character.
fn go_byte(byte: u8) -> String {
    if matches!(byte, 0x80..=0xa0 | 0xad) { format!("\\u{byte:04x}") } else { char::from(byte).to_string() }
}

/// Where a token stops being base64.
fn bad_byte(token: &str, error: &base64::DecodeError) -> usize {
    match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        _ => token.len(),
    }
}

/// Where the next page begins, and in which state of the store.
#[derive(Debug, PartialEq)]
struct Continue {
    /// `None` for the newest: what a client may choose to go on with after its token expired.
    revision: Option<u64>,
    after: String,
}

impl Continue {
    fn encode(&self) -> String {
        let revision = self.revision.map_or(json!(-1), Into::into);
        URL_SAFE_NO_PAD.encode(json!({"v": TOKEN_VERSION, "rv": revision, "start": self.after}).to_string())
    }

    fn decode(token: &str) -> Result<Continue> {
        let bad =
            |why: &str| ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = TOKEN_CODE
            .decode(token.trim_end_matches('='))
            .map_err(|e| bad(&format!("illegal base64 data at input byte {}", bad_byte(token, &e))))?;
        if let Some(byte) = bytes.first().filter(|byte| !byte.is_ascii()) {
            return Err(bad(&format!("invalid character '{}' looking for beginning of value", go_byte(*byte))));
        }
        let (value, _) = codec::parse(&bytes).map_err(|e| bad(&e.to_string()))?;
        let version = value.get("v").and_then(Value::as_str).unwrap_or("");
        if version != TOKEN_VERSION {
            return Err(bad(&format!("server does not recognize this encoded version {version}")));
        }
        let revision = match value.get("rv").and_then(Value::as_i64) {
            Some(n) if n > 0 => Some(n.unsigned_abs()),
            Some(n) if n < 0 => None,
            _ => return Err(bad(&format!("incorrect encoded start resourceVersion (version {TOKEN_VERSION})"))),
        };
        match value.get("start").and_then(Value::as_str) {
            Some(after) if !after.is_empty() => Ok(Continue { revision, after: after.to_owned() }),
            _ => Err(bad(&format!("encoded start key empty (version {TOKEN_VERSION})"))),
        }
    }
}

fn list_error(error: ListError, continuing_after: Option<&str>) -> ApiError {
    match (error, continuing_after) {
        (ListError::Compacted(_), Some(after)) => {
            ApiError::continue_expired(Continue { revision: None, after: after.to_owned() }.encode())
        }
        (ListError::Compacted(_), None) => ApiError::expired("The resourceVersion for the provided list is too old."),
        (ListError::Future { requested, current }, _) => ApiError::too_large_resource_version(requested, current),
    }
}

/// A request for one name is a selection by name.
pub fn fix_name(target: &Target<'_>, options: &mut ListOptions) -> Result<()> {
    let name = &target.ask.info.name;
    if name.is_empty() {
        return Ok(());
    }
    match options.fields.exact("metadata.name") {
        Some(selected) if selected != name => {
            Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"))
        }
        Some(_) => Ok(()),
        None if options.fields.is_everything() => {
            options.fields.require("metadata.name", name);
            Ok(())
        }
        None => Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name")),
    }
}

/// Only the fields a kind offers can be selected by.
pub fn check_fields(kind: &dyn Served, fields: &FieldSelector) -> Result<()> {
    let offered = kind.selectable();
    for field in fields.terms().iter().map(|t| &t.field) {
        if !matches!(field.as_str(), "metadata.name" | "metadata.namespace") && !offered.contains(field) {
            let resource = kind.resource();
            return Err(ApiError::bad_request(if resource.group == "batch" && resource.kind == "Job" {
                format!("field label {field:?} not supported for Job")
            } else if offered.is_empty() {
                format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            } else {
                format!("field label not supported: {field}")
            }));
        }
    }
    Ok(())
}

/// Whether the selectors choose this version of an object.
pub fn matches(kind: &dyn Served, entry: &Entry, labels: &LabelSelector, fields: &FieldSelector) -> bool {
    if !labels.is_everything() && !labels.matches(&stored::labels(&entry.value)) {
        return false;
    }
    if fields.is_everything() {
        return true;
    }
    let (namespace, name) = entry.key.split_once('/').unwrap_or(("", &entry.key));
    let mut parsed: Option<Value> = None;
    fields.terms().iter().all(|term| {
        let value = match term.field.as_str() {
            "metadata.name" => name.to_owned(),
            "metadata.namespace" => namespace.to_owned(),
            field => {
                let object = parsed.get_or_insert_with(|| kind.thaw(entry).unwrap_or(Value::Null));
                kind.select(object, field)
            }
        };
        (value == term.value) == term.equal
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_survives_the_trip_and_nonsense_is_refused() {
        let token = Continue { revision: Some(7), after: "default/a".into() };
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
        let newest = Continue { revision: None, after: "x".into() };
        assert_eq!(Continue::decode(&newest.encode()).unwrap(), newest);
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for (bad, why) in [
            ("a!".to_owned(), "illegal base64 data at input byte 1"),
            ("garbage".to_owned(), "invalid character '\\u0081' looking for beginning of value"),
            (encode("{}"), "server does not recognize this encoded version "),
            (encode("i"), "invalid character 'i' looking for beginning of value"),
            (
                encode(r#"{"v":"meta.k8s.io/v1","start":"a"}"#),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (encode(r#"{"v":"meta.k8s.io/v1","rv":5}"#), "encoded start key empty (version meta.k8s.io/v1)"),
        ] {
            let error = Continue::decode(&bad).unwrap_err();
            assert_eq!(error.message, format!("invalid continue token: continue key is not valid: {why}"));
            assert_eq!(error.code, 400);
        }
    }
}
