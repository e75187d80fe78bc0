//! List and watch of one kind, typed, told change by change.
//!
//! There is no resync and no timeout of our own: a watch that stays silent costs nothing, also in virtual time. After a gap the
//! whole list is told again, so that its receiver can miss no deletion.

use std::borrow::Cow;
use std::time::Duration;

use futures::io::AsyncBufReadExt;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use usher_api::watch::{Lines, metadata, split_event, without_managed_fields};

const PAGE: u32 = 1000;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this was refused rather than ended.
const SHORT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub enum Change<T> {
    /// Everything there is.
    Listed(Vec<T>),
    Applied(T),
    Deleted(T),
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMeta,
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen<'a> {
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
}

/// Which objects of the collection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Which<'a> {
    pub fields: Option<&'a str>,
    pub labels: Option<&'a str>,
}

/// Follows the collection at `path` (`/api/v1/pods`) for ever.
pub async fn follow<T: DeserializeOwned>(
    client: Client,
    path: &str,
    which: Which<'_>,
    mut tell: impl FnMut(Change<T>),
) {
    let mut wait = RETRY_FIRST;
    loop {
        match list(&client, path, which).await {
            Ok((items, mut version)) => {
                wait = RETRY_FIRST;
                tell(Change::Listed(items));
                while watch(&client, path, which, &mut version, &mut tell).await {}
            }
            Err(error) => {
                tracing::debug!(path, %error, "list failed");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY_CAP);
            }
        }
    }
}

async fn list<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    which: Which<'_>,
) -> Result<(Vec<T>, String), kube::Error> {
    let (field_selector, label_selector) = (which.fields.map(str::to_owned), which.labels.map(str::to_owned));
    let mut params = ListParams { field_selector, label_selector, ..ListParams::default() }.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let request = Request::new(path).list(&params).map_err(kube::Error::BuildRequest)?;
        let text = client.request_text(request).await?;
        let page: Page<T> = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        all.extend(page.items.into_iter().flatten());
        match page.metadata.next.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok((all, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}

/// Watches until that ends. Whether it can be taken up again from `version`.
async fn watch<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    which: Which<'_>,
    version: &mut String,
    tell: &mut impl FnMut(Change<T>),
) -> bool {
    let (started, before) = (Instant::now(), version.clone());
    let end = lines(client, path, which, version, tell).await;
    let refused = *version == before && started.elapsed() < SHORT;
    match end {
        Ok(()) if !refused => true,
        Ok(()) => false,
        Err(error) => {
            tracing::debug!(path, %error, "watch failed");
            if refused {
                tokio::time::sleep(RETRY_FIRST).await;
            }
            false
        }
    }
}

async fn lines<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    which: Which<'_>,
    version: &mut String,
    tell: &mut impl FnMut(Change<T>),
) -> Result<(), kube::Error> {
    // Zero leaves the length of the watch to the server.
    let (field_selector, label_selector) = (which.fields.map(str::to_owned), which.labels.map(str::to_owned));
    let params = WatchParams { timeout: Some(0), field_selector, label_selector, ..WatchParams::default() };
    let mut request = Request::new(path).watch(&params, version).map_err(kube::Error::BuildRequest)?;
    // kube-apiserver 1.37 compresses each event by itself, which kube's client does not undo.
    request.headers_mut().insert(http::header::ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
    let mut stream = client.request_stream(request).await?;
    let mut lines = Lines::default();
    loop {
        let piece = stream.fill_buf().await.map_err(kube::Error::ReadEvents)?;
        let size = piece.len();
        if size == 0 {
            return Ok(());
        }
        if let Some(error) = lines.feed(piece, |line| hear(line, path, version, tell)) {
            return Err(error);
        }
        stream.consume_unpin(size);
    }
}

/// Tells one event; returns the error that ends the watch, if it is one.
fn hear<T: DeserializeOwned>(
    line: &str,
    path: &str,
    version: &mut String,
    tell: &mut impl FnMut(Change<T>),
) -> Option<kube::Error> {
    let (what, text) = split_event(line)?;
    if what == "ERROR" {
        return Some(kube::Error::Service(text.to_owned().into()));
    }
    let lean = without_managed_fields(text);
    if let Ok(seen) = metadata::<Seen<'_>>(&lean) {
        *version = seen.resource_version.into_owned();
    }
    if what == "BOOKMARK" {
        // A version, and no object.
        return None;
    }
    match (what, serde_json::from_str::<T>(&lean)) {
        ("ADDED" | "MODIFIED", Ok(object)) => tell(Change::Applied(object)),
        ("DELETED", Ok(object)) => tell(Change::Deleted(object)),
        (_, Ok(_)) => {}
        (_, Err(error)) => tracing::warn!(path, %error, "an object that cannot be read is left out"),
    }
    None
}
