//! List and watch of one kind, kept in a cache, told to whoever subscribed.
//!
//! There is no resync and no idle timeout: a watch that stays silent costs nothing, also in virtual time. After a gap
//! (410, or a watch that had to be given up) the list is compared with the cache, so no deletion is ever missed.

use std::sync::Arc;
use std::time::Duration;

use futures::io::AsyncBufReadExt;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use tokio::time::Instant;
use usher_api::watch::{Lines, metadata, split_event};

use super::catalog::Resource;
use super::meta::{Key, Meta};
use super::objects::{Page, is_expired};
use super::queue::backoff;
use super::store::{Seen, Store, Text, View};
use super::watches::Signal;

const PAGE: u32 = 500;
const RETRY_CAP: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this was refused rather than ended.
const SHORT: Duration = Duration::from_secs(1);

/// Who hears what a reflector sees.
pub(crate) trait Listener: Send + Sync {
    fn tell(&self, signal: Signal);
    /// The first list is complete, or was refused: nobody need wait for this kind any longer.
    fn settled(&self, resource: &Resource);
}

pub(crate) struct Reflector<L> {
    pub client: Client,
    pub resource: Arc<Resource>,
    pub cache: Store<Meta>,
    pub views: Vec<Arc<dyn View>>,
    pub seen: Seen,
    pub listener: L,
    /// Tell everything in the first list, known or not: the kind is now read at another version.
    pub retell: bool,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

/// Why a watch is over.
enum End {
    /// Go on from the last revision seen.
    Ended,
    /// The revision is no longer kept: list again.
    Expired,
}

impl<L: Listener> Reflector<L> {
    pub async fn run(mut self) {
        let mut failures = 0;
        loop {
            match self.list().await {
                Ok(revision) => {
                    failures = 0;
                    self.retell = false;
                    self.listener.tell(Signal::Synced(self.resource.clone()));
                    self.listener.settled(&self.resource);
                    self.follow(revision).await;
                }
                Err(error) => {
                    self.listener.settled(&self.resource);
                    failures += 1;
                    tracing::debug!(resource = %self.resource, %error, "list failed");
                    tokio::time::sleep(backoff(failures, RETRY_CAP)).await;
                }
            }
        }
    }

    fn request(&self) -> Request {
        Request::new(self.resource.path(""))
    }

    async fn list(&self) -> Result<String, kube::Error> {
        let mut gone: std::collections::BTreeSet<Key> = self.cache.keys().into_iter().collect();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let request = match self.views.is_empty() {
                true => self.request().list_metadata(&params),
                false => self.request().list(&params),
            };
            let text = self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await?;
            let page: Page = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
            for item in page.items.unwrap_or_default() {
                let text = Text::of(item.get());
                if let Some(meta) = self.read(&text.lean) {
                    gone.remove(&meta.key());
                    self.tell_all(self.upsert(meta, &text));
                }
            }
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => {
                    gone.iter().for_each(|key| self.remove(key));
                    let revision = page.metadata.resource_version.unwrap_or_default();
                    self.seen.advance(&revision);
                    return Ok(revision);
                }
            }
        }
    }

    /// Watches from `revision` on until that is no longer possible.
    async fn follow(&self, mut revision: String) {
        let mut failures = 0;
        loop {
            let (started, before) = (Instant::now(), revision.clone());
            let end = self.watch(&mut revision).await;
            match &end {
                Ok(End::Expired) => return,
                Err(error) if is_expired(error) => return,
                _ => {}
            }
            if revision != before || (end.is_ok() && started.elapsed() >= SHORT) {
                failures = 0;
                continue;
            }
            failures += 1;
            if let Err(error) = end {
                tracing::debug!(resource = %self.resource, %error, "watch failed");
            }
            tokio::time::sleep(backoff(failures, RETRY_CAP)).await;
        }
    }

    async fn watch(&self, revision: &mut String) -> Result<End, kube::Error> {
        // Zero leaves the length of the watch to the server; kube's default would end it every five minutes.
        let params = WatchParams { timeout: Some(0), ..WatchParams::default() };
        let request = match self.views.is_empty() {
            true => self.request().watch_metadata(&params, revision),
            false => self.request().watch(&params, revision),
        };
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        // kube-apiserver 1.37 compresses each event by itself, which kube's client does not undo.
        request.headers_mut().insert(http::header::ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
        let mut stream = self.client.request_stream(request).await?;
        let mut lines = Lines::default();
        loop {
            let piece = stream.fill_buf().await.map_err(kube::Error::ReadEvents)?;
            let size = piece.len();
            if size == 0 {
                return Ok(End::Ended);
            }
            if let Some(end) = lines.feed(piece, |line| self.hear(line, revision)) {
                return end;
            }
            stream.consume_unpin(size);
        }
    }

    /// Takes in one event; returns why the watch is over, if it is.
    fn hear(&self, line: &str, revision: &mut String) -> Option<Result<End, kube::Error>> {
        let (what, text) = split_event(line)?;
        if what == "ERROR" {
            let failure: Failure = match serde_json::from_str(text) {
                Ok(failure) => failure,
                Err(error) => return Some(Err(kube::Error::SerdeError(error))),
            };
            tracing::debug!(resource = %self.resource, code = failure.code, failure.message, "watch error");
            return Some(Ok(if failure.code == 410 { End::Expired } else { End::Ended }));
        }
        let text = Text::of(text);
        let meta = self.read(&text.lean)?;
        if !meta.resource_version.is_empty() {
            revision.clear();
            revision.push_str(&meta.resource_version);
        }
        // Seen before told: who hears of a revision finds the caches at it.
        match what {
            "ADDED" | "MODIFIED" => {
                let signals = self.upsert(meta, &text);
                self.seen.advance(revision);
                self.tell_all(signals);
            }
            "DELETED" => {
                let signal = self.delete(meta);
                self.seen.advance(revision);
                self.listener.tell(signal);
            }
            _ => self.seen.advance(revision),
        }
        None
    }

    fn read(&self, text: &str) -> Option<Meta> {
        match metadata::<Meta>(text) {
            Ok(metadata) => Some(metadata),
            Err(error) => {
                tracing::warn!(resource = %self.resource, %error, "an object that cannot be read is left out");
                None
            }
        }
    }

    /// Puts an object into the caches; returns what there is to tell about it.
    fn upsert(&self, meta: Meta, text: &Text<'_>) -> impl Iterator<Item = Signal> + use<L> {
        let (key, meta) = (meta.key(), Arc::new(meta));
        self.views.iter().for_each(|view| view.put(&key, text));
        let old = self.cache.put(key, meta.clone());
        let known =
            old.as_ref().is_some_and(|old| old.uid == meta.uid && old.resource_version == meta.resource_version);
        // Deleted and created again within a gap.
        let replaced = old.filter(|old| old.uid != meta.uid);
        let gone = replaced.map(|old| Signal::Deleted(self.resource.clone(), old));
        let here = (!known || self.retell).then(|| Signal::Applied(self.resource.clone(), meta));
        gone.into_iter().chain(here)
    }

    fn delete(&self, last: Meta) -> Signal {
        let key = last.key();
        self.views.iter().for_each(|view| view.remove(&key));
        self.cache.remove(&key);
        Signal::Deleted(self.resource.clone(), Arc::new(last))
    }

    fn tell_all(&self, signals: impl IntoIterator<Item = Signal>) {
        signals.into_iter().for_each(|signal| self.listener.tell(signal));
    }

    fn remove(&self, key: &Key) {
        self.views.iter().for_each(|view| view.remove(key));
        if let Some(last) = self.cache.remove(key) {
            self.listener.tell(Signal::Deleted(self.resource.clone(), last));
        }
    }
}

/// Everything of a kind that has ceased to exist.
pub(crate) fn purge(cache: &Store<Meta>, views: &[Arc<dyn View>], resource: &Arc<Resource>, listener: &impl Listener) {
    for key in cache.keys() {
        views.iter().for_each(|view| view.remove(&key));
        if let Some(last) = cache.remove(&key) {
            listener.tell(Signal::Deleted(resource.clone(), last));
        }
    }
}
