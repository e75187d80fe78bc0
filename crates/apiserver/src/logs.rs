//! Where the output of containers comes from. The server knows pods; what they print is the business of their nodes, and of
//! whoever wires the two together.

use std::pin::Pin;

use bytes::Bytes;
use futures::Stream;
use futures::future::BoxFuture;
use jiff::Timestamp;
use usher_schema::field::{Errors, Path};

use crate::object::Object;
use crate::request::Query;
use crate::status::{ApiError, Result};

/// What is asked of a node: `PodLogOptions`, checked, about a pod that is bound to it.
#[derive(Clone, Debug)]
pub struct LogRequest {
    pub pod: Object,
    pub node: String,
    pub container: String,
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<Timestamp>,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
}

pub type LogStream = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// Why there is no output to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// The node answers, and refuses: 400 with this text.
    Refused(String),
    /// Nobody here speaks for the node.
    NoSuchNode,
}

pub trait LogSource: Send + Sync {
    fn open(&self, request: LogRequest) -> BoxFuture<'_, std::result::Result<LogStream, LogError>>;
}

/// A stream that ends when the server does: someone who follows must not keep it from stopping.
pub(crate) fn until_closing(
    stream: LogStream,
    mut closing: tokio::sync::watch::Receiver<bool>,
) -> impl Stream<Item = Bytes> + Send {
    use futures::StreamExt;
    stream.take_until(async move { drop(closing.wait_for(|closing| *closing).await) })
}

/// The options of a request, with kube-apiserver's complaints.
pub(crate) fn read_options(query: &Query, name: &str, now: Timestamp) -> Result<LogRequest> {
    let mut errors = Errors::new();
    let tail = query.number("tailLines")?;
    if let Some(lines) = tail.filter(|n| *n < 0) {
        errors.invalid(&Path::new("tailLines"), lines, "must be greater than or equal to 0");
    }
    let limit = query.number("limitBytes")?;
    if let Some(bytes) = limit.filter(|n| *n < 1) {
        errors.invalid(&Path::new("limitBytes"), bytes, "must be greater than 0");
    }
    let since_secs = query.number("sinceSeconds")?;
    let since_time = query.get("sinceTime").filter(|t| !t.is_empty());
    match (since_secs, since_time) {
        (Some(_), Some(_)) => {
            errors.forbidden(&Path::new(""), "at most one of `sinceTime` or `sinceSeconds` may be specified");
        }
        (Some(secs), None) if secs < 1 => errors.invalid(&Path::new("sinceSeconds"), secs, "must be greater than 0"),
        _ => {}
    }
    // Selecting a stream is behind a gate that is off in 1.37.
    if query.get("stream").is_some_and(|s| !s.is_empty()) {
        errors.forbidden(&Path::new("stream"), "may not be specified");
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid_kind("", "PodLogOptions", name, &errors));
    }
    let since = match since_time {
        None => since_secs.and_then(|secs| now.checked_sub(jiff::SignedDuration::from_secs(secs)).ok()),
        Some(text) => Some(text.parse().map_err(|_| {
            ApiError::bad_request(format!("parsing time {}: cannot parse", usher_schema::field::quote(text)))
        })?),
    };
    Ok(LogRequest {
        pod: Object::Null,
        node: String::new(),
        container: String::new(),
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
        since,
        tail_lines: tail.and_then(|n| u64::try_from(n).ok()),
        limit_bytes: limit.and_then(|n| u64::try_from(n).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<LogRequest> {
        read_options(&Query::parse(query), "p", "2026-11-15T10:00:00Z".parse().expect("a time"))
    }

    #[test]
    fn options_are_read() {
        let options =
            read("follow=true&previous&timestamps=1&tailLines=5&limitBytes=10&sinceSeconds=60").expect("valid");
        assert!(options.follow && options.previous && options.timestamps);
        assert_eq!((options.tail_lines, options.limit_bytes), (Some(5), Some(10)));
        assert_eq!(options.since, "2026-11-15T09:59:00Z".parse().ok());
        let options = read("sinceTime=2026-11-15T01:00:00Z&follow=false").expect("valid");
        assert_eq!((options.since, options.follow), ("2026-11-15T01:00:00Z".parse().ok(), false));
    }

    #[test]
    fn options_that_make_no_sense_are_refused_as_upstream_does() {
        for (query, code, text) in [
            ("tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
            (
                "sinceSeconds=1&sinceTime=2026-11-15T01:00:00Z",
                422,
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            ("stream=Stdout", 422, "stream: Forbidden: may not be specified"),
            ("sinceTime=yesterday", 400, "yesterday"),
            ("tailLines=x", 400, "x"),
        ] {
            let error = read(query).expect_err(query);
            assert!(error.code == code && error.message.contains(text), "{query}: {} {}", error.code, error.message);
        }
    }
}
