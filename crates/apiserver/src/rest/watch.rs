//! `watch`: the current state if asked for, then every change after it, as JSON lines.
//!
//! A watch holds a cursor into the store's history and writes events when the connection has room, so a client that stops
//! reading costs nothing and finds itself expired once the history has moved on.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tokio::time::{Instant, Sleep};
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
use crate::stored::Head;

/// How often an idle watch tells its client how far it has come.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How many bytes of events go out in one piece at most, give or take an object. Larger ones come from and go back to the
/// system each time, which costs more than what they save.
const PIECE_BYTES: usize = 32 * 1024;

impl Server {
    pub(super) async fn watch(&self, target: &Target<'_>) -> Result<Answer> {
        let mut accepted = target.ask.accepted()?;
        accepted.pretty = false;
        let framed = accepted.encoding == Encoding::Protobuf;
        if accepted.encoding == Encoding::Yaml {
            return Err(ApiError::not_acceptable(STREAM_TYPES));
        }
        let mut options = ListOptions::parse(&target.ask.query, true)?;
        fix_name(target, &mut options)?;
        check_fields(target.kind.as_ref(), &options.fields)?;
        let include = IncludeObject::parse(target.ask.query.get("includeObject"))?;

        let (initial, after) = match self.starting_point(target, &options).await {
            Ok(start) => start,
            // What has become impossible, or is not yet possible, is told by the stream.
            Err(error) if matches!(error.code, 410 | 504) => return Ok(ended_at_once(&error, framed)),
            Err(error) => return Err(error),
        };
        let collection = target.kind.collection();
        let prefix = match target.namespace() {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        };
        let watch = match self.store().watch(&collection, &prefix, after) {
            Ok(watch) => watch,
            Err(old) => return Ok(ended_at_once(&too_old(old.requested, old.compacted), framed)),
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
            bookmark: (options.bookmarks && periodic)
                .then(|| Box::pin(tokio::time::sleep_until(next_bookmark(deadline)))),
            options,
            initial: initial.into_iter(),
            end_of_initial,
            watch,
            waiting: Vec::new().into_iter(),
            columns_sent: false,
            sent: {
                let resource = target.kind.resource();
                self.metrics().watch_events(&resource.group, &resource.version, &resource.plural)
            },
            head: Shower::head(target.kind.as_ref(), accepted),
            end: Box::pin(end(self.closing(), deadline)),
            deadline,
            crowd: (periodic && !target.ask.in_process).then(|| self.crowd().join()),
            rest_until: None,
            over: false,
        };
        let body = Body::pieces(stream::unfold(state, move |mut lines| async move {
            let piece = lines.next().await?;
            Some((if framed { frames(&piece) } else { piece }, lines))
        }));
        Ok(Answer::whole(200, content_type(framed), body))
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
fn ended_at_once(error: &ApiError, framed: bool) -> Answer {
    let line = Bytes::from(error_line(error));
    let body = Body::whole(if framed { frames(&line) } else { line });
    Answer::whole(200, content_type(framed), body)
}

const STREAM_TYPES: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

fn content_type(framed: bool) -> &'static str {
    if framed { "application/vnd.kubernetes.protobuf;stream=watch" } else { "application/json" }
}

/// Events as protobuf frames, from lines of JSON.
fn frames(lines: &[u8]) -> Bytes {
    let events = lines.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    events.filter_map(|event| usher_schema::protobuf::encode_event(&event)).flatten().collect()
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
    /// Events from the store that are still to be sent.
    waiting: std::vec::IntoIter<Arc<Event>>,
    columns_sent: bool,
    /// Events sent, of all watches of this kind.
    sent: Counter,
    head: Head,
    bookmark: Option<Pin<Box<Sleep>>>,
    deadline: Option<Instant>,
    /// The server closes, or the deadline has come. Made once: a timer for every event would cost more than the event.
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Those who watch over the network, this one among them.
    crowd: Option<Member>,
    /// No events are sent before, so that those of the meantime go out together.
    rest_until: Option<Instant>,
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
        if let Some(piece) = self.waiting_piece() {
            return Some(piece);
        }
        if let Some(until) = self.rest_until.take() {
            tokio::select! {
                biased;
                () = &mut self.end => return None,
                () = tokio::time::sleep_until(until) => {}
            }
        }
        loop {
            tokio::select! {
                biased;
                batch = self.watch.next() => match batch {
                    Ok(batch) => {
                        self.waiting = batch.events.into_iter();
                        if let Some(piece) = self.waiting_piece() {
                            return Some(piece);
                        }
                    }
                    Err(WatchEnd::Expired { cursor, dropped }) => {
                        self.over = true;
                        return Some(error_line(&too_old(cursor, dropped)).into());
                    }
                    Err(WatchEnd::Closed) => return None,
                },
                () = due(&mut self.bookmark) => {
                    if let Some(bookmark) = &mut self.bookmark {
                        bookmark.as_mut().reset(next_bookmark(self.deadline));
                    }
                    let revision = self.watch.revision();
                    return Some(self.bookmark(revision, false).into());
                }
                () = &mut self.end => return None,
            }
        }
    }

    /// The next piece of the events that were taken from the store; after the last of them comes the rest.
    fn waiting_piece(&mut self) -> Option<Bytes> {
        while !self.waiting.as_slice().is_empty() {
            let piece = self.events_piece();
            if !piece.is_empty() {
                let rest = self.crowd.as_ref().and_then(Member::rest);
                self.rest_until = rest.map(|rest| Instant::now() + rest);
                return Some(piece.into());
            }
        }
        None
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

    /// As many of the waiting events as go into one piece.
    fn events_piece(&mut self) -> Vec<u8> {
        let everything = self.options.labels.is_everything() && self.options.fields.is_everything();
        let mut out = Vec::new();
        if everything {
            // Made as large as it will be: a piece that grows is copied again and again.
            let size: usize = self.waiting.as_slice().iter().map(|event| event.entry.value.len() + 256).sum();
            out.reserve(size.min(PIECE_BYTES + PIECE_BYTES / 4));
        }
        while out.len() < PIECE_BYTES
            && let Some(event) = self.waiting.next()
        {
            let chosen = |entry: &Entry| matches(self.kind.as_ref(), entry, &self.options.labels, &self.options.fields);
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
        let shower = Shower::with_head(self.kind.as_ref(), self.accepted, self.include, &self.head);
        shower.write(out, value, revision, self.server.clock().now(), !self.columns_sent);
        self.columns_sent = true;
        self.sent.inc();
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

async fn due(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}

/// Returns when a watch is over, whatever happens.
async fn end(mut closing: tokio::sync::watch::Receiver<bool>, deadline: Option<Instant>) {
    let deadline = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = closing.wait_for(|closing| *closing) => {}
        () = deadline => {}
    }
}

/// How many watch over the network.
///
/// Sending an event to a client costs mostly what sending anything costs: a wake-up, a TLS record, a system call. Where
/// hundreds watch what changes all the time, each rests after a piece for as long as the others need for theirs, and then
/// gets all that has happened since. Whoever was idle gets an event at once, and few watchers never rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd(Arc<()>);

/// A watcher in a [`Crowd`].
struct Member(Crowd);

/// What one piece costs, about.
const PIECE_COST: Duration = Duration::from_micros(30);
const REST_MAX: Duration = Duration::from_millis(5);

impl Crowd {
    fn join(&self) -> Member {
        Member(self.clone())
    }
}

impl Member {
    /// None when it would be shorter than timers can measure.
    fn rest(&self) -> Option<Duration> {
        // One count is the server's own.
        let watchers = u32::try_from(Arc::strong_count(&self.0.0) - 1).unwrap_or(u32::MAX);
        let rest = PIECE_COST.saturating_mul(watchers).min(REST_MAX);
        (rest >= Duration::from_millis(1)).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_rest_when_they_are_many_and_not_when_they_are_few() {
        let crowd = Crowd::default();
        let first = crowd.join();
        assert_eq!(first.rest(), None);
        let others: Vec<Member> = (0..99).map(|_| crowd.join()).collect();
        assert_eq!(first.rest(), Some(PIECE_COST * 100));
        let more: Vec<Member> = (0..9900).map(|_| crowd.join()).collect();
        assert_eq!(first.rest(), Some(REST_MAX));
        drop((others, more));
        assert_eq!(first.rest(), None);
    }
}
