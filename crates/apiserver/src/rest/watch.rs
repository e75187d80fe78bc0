//! `watch`: the current state if asked for, then every change after it, as JSON lines.
//!
//! A watch holds a cursor into the store's history and writes events when the connection has room, so a client that stops
//! reading costs nothing and finds itself expired once the history has moved on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use serde_json::json;
use tokio::time::Instant;
use usher_store::{Entry, Event, Kind as EventKind, Watch, WatchEnd};

use super::read::{check_fields, fix_name, matches};
use super::show::{IncludeObject, Shower};
use super::{Answer, Target};
use crate::body::Body;
use crate::negotiate::{Accepted, Encoding, Shape};
use crate::registry::served::Served;
use crate::request::{Freshness, ListOptions};
use crate::server::Server;
use crate::status::{ApiError, Result};

/// How often an idle watch tells its client how far it has come.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How many bytes of events go out in one piece at most, give or take an object.
const PIECE_BYTES: usize = 256 * 1024;

impl Server {
    pub(super) async fn watch(&self, target: &Target<'_>) -> Result<Answer> {
        let mut accepted = target.ask.accepted()?;
        accepted.pretty = false;
        if accepted.encoding != Encoding::Json {
            return Err(ApiError::not_acceptable("application/json;stream=watch"));
        }
        let mut options = ListOptions::parse(&target.ask.query, true)?;
        fix_name(target, &mut options)?;
        check_fields(target.kind.as_ref(), &options.fields)?;
        let include = IncludeObject::parse(target.ask.query.get("includeObject"))?;

        let (initial, after) = match self.starting_point(target, &options).await {
            Ok(start) => start,
            Err(error) if error.code == 410 => return Ok(expired_at_once(&error)),
            Err(error) => return Err(error),
        };
        let collection = target.kind.collection();
        let prefix = match target.namespace() {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        };
        let watch = match self.store().watch(&collection, &prefix, after) {
            Ok(watch) => watch,
            Err(old) => return Ok(expired_at_once(&too_old(old.requested, old.compacted))),
        };
        // On virtual time nothing may happen just because time passes: a watch without a timeout has none.
        let periodic = !self.clock().is_virtual();
        let timeout_secs = options.timeout_secs.or_else(|| periodic.then(|| self.default_watch_secs()));
        let deadline = timeout_secs.map(|secs| Instant::now() + Duration::from_secs(secs));
        let end_of_initial = (options.initial_events == Some(true) && options.bookmarks).then_some(after);
        let state = Lines {
            server: self.clone(),
            kind: target.kind.clone(),
            accepted,
            include,
            bookmark_at: (options.bookmarks && periodic).then(|| next_bookmark(deadline)),
            options,
            initial: initial.into_iter(),
            end_of_initial,
            watch,
            columns_sent: false,
            deadline,
            over: false,
        };
        let body = Body::pieces(stream::unfold(state, |mut lines| async move {
            let piece = lines.next().await?;
            Some((piece, lines))
        }));
        Ok(Answer { code: 200, content_type: accepted.encoding.content_type(), body, warnings: Vec::new() })
    }

    /// What to send first, and the revision after which events follow.
    async fn starting_point(&self, target: &Target<'_>, options: &ListOptions) -> Result<(Vec<Arc<Entry>>, u64)> {
        let with_state = match (options.initial_events, options.freshness) {
            (Some(wanted), _) => wanted,
            (None, Freshness::Latest | Freshness::Any) => true,
            (None, _) => false,
        };
        if with_state {
            let mut all = options.clone();
            (all.limit, all.continue_token) = (None, None);
            let page = self.select_page(target, &all).await?;
            return Ok((page.entries, page.revision));
        }
        match options.freshness {
            Freshness::Latest | Freshness::Any => Ok((Vec::new(), self.store().revision())),
            Freshness::NotOlderThan(revision) | Freshness::Exact(revision) => {
                let compacted = self.store().compacted();
                if revision < compacted { Err(too_old(revision, compacted)) } else { Ok((Vec::new(), revision)) }
            }
        }
    }

    /// Between half an hour and an hour, spread so that clients do not all come back at once.
    fn default_watch_secs(&self) -> u64 {
        let [a, b] = self.ids().bytes();
        1800 + u64::from(u16::from_be_bytes([a, b])) * 1800 / 65536
    }
}

/// Every minute, and shortly before the end, so that the next watch begins where this one came to.
fn next_bookmark(deadline: Option<Instant>) -> Instant {
    let now = Instant::now();
    let last = deadline.and_then(|d| d.checked_sub(Duration::from_secs(2))).filter(|last| *last > now);
    last.map_or(now + BOOKMARK_EVERY, |last| last.min(now + BOOKMARK_EVERY))
}

fn too_old(requested: u64, oldest: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {requested} ({oldest})"))
}

/// Clients expect the stream to open and then to hear that it cannot go on.
fn expired_at_once(error: &ApiError) -> Answer {
    let line = error_line(error);
    Answer { code: 200, content_type: "application/json", body: Body::whole(line), warnings: Vec::new() }
}

fn error_line(error: &ApiError) -> Vec<u8> {
    let mut line = json!({"type": "ERROR", "object": error.to_status()}).to_string().into_bytes();
    line.push(b'\n');
    line
}

struct Lines {
    server: Server,
    kind: Arc<dyn Served>,
    accepted: Accepted,
    include: IncludeObject,
    options: ListOptions,
    initial: std::vec::IntoIter<Arc<Entry>>,
    /// The bookmark that ends the initial events, if one was asked for.
    end_of_initial: Option<u64>,
    watch: Watch,
    columns_sent: bool,
    bookmark_at: Option<Instant>,
    deadline: Option<Instant>,
    over: bool,
}

impl Lines {
    /// The next piece of the stream, when there is one; `None` ends it.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let first = self.initial_piece();
        if !first.is_empty() {
            return Some(first.into());
        }
        loop {
            let mut closing = self.server.closing();
            tokio::select! {
                biased;
                batch = self.watch.next() => match batch {
                    Ok(batch) => {
                        let piece = self.events_piece(&batch.events);
                        if !piece.is_empty() {
                            return Some(piece.into());
                        }
                    }
                    Err(WatchEnd::Expired { cursor, dropped }) => {
                        self.over = true;
                        return Some(error_line(&too_old(cursor, dropped)).into());
                    }
                    Err(WatchEnd::Closed) => return None,
                },
                _ = closing.wait_for(|closing| *closing) => return None,
                () = sleep_until(self.bookmark_at) => {
                    self.bookmark_at = Some(next_bookmark(self.deadline));
                    let revision = self.watch.revision();
                    return Some(self.bookmark(revision, false).into());
                }
                () = sleep_until(self.deadline) => return None,
            }
        }
    }

    fn initial_piece(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < PIECE_BYTES {
            match self.initial.next() {
                Some(entry) => self.line(&mut out, "ADDED", &entry.value, entry.mod_revision),
                None => {
                    if let Some(revision) = self.end_of_initial.take() {
                        out.extend(self.bookmark(revision, true));
                    }
                    break;
                }
            }
        }
        out
    }

    fn events_piece(&mut self, events: &[Arc<Event>]) -> Vec<u8> {
        let mut out = Vec::new();
        for event in events {
            let chosen = |entry: &Entry| matches(self.kind.as_ref(), entry, &self.options.labels, &self.options.fields);
            let everything = self.options.labels.is_everything() && self.options.fields.is_everything();
            let before = event.prev.as_ref().filter(|prev| everything || chosen(prev));
            let after = event.kind == EventKind::Put && (everything || chosen(&event.entry));
            match (before, after) {
                (None, true) => self.line(&mut out, "ADDED", &event.entry.value, event.revision),
                (Some(_), true) => self.line(&mut out, "MODIFIED", &event.entry.value, event.revision),
                // Gone, or no longer chosen: as it was last seen, at the revision of the change.
                (Some(prev), false) => self.line(&mut out, "DELETED", &prev.value, event.revision),
                (None, false) => {}
            }
        }
        out
    }

    fn line(&mut self, out: &mut Vec<u8>, what: &str, value: &[u8], revision: u64) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(what.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        let shower = Shower::new(self.kind.as_ref(), self.accepted, self.include);
        shower.write(out, value, revision, self.server.clock().now(), !self.columns_sent);
        self.columns_sent = true;
        out.extend_from_slice(b"}\n");
    }

    fn bookmark(&mut self, revision: u64, ends_initial: bool) -> Vec<u8> {
        if self.accepted.shape == Shape::Table {
            // A row of nothing, whose metadata says it all, as upstream has it.
            let nothing: &[u8] = if ends_initial {
                br#"{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}"#
            } else {
                br#"{"metadata":{}}"#
            };
            let mut out = Vec::new();
            self.line(&mut out, "BOOKMARK", nothing, revision);
            return out;
        }
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let resource = self.kind.resource();
        let object = match self.accepted.shape {
            Shape::Table | Shape::Object => {
                json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata})
            }
            Shape::Partial | Shape::PartialList => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": self.accepted.meta, "metadata": metadata})
            }
        };
        let mut line = json!({"type": "BOOKMARK", "object": object}).to_string().into_bytes();
        line.push(b'\n');
        line
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
