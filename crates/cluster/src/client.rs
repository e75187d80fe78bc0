//! The way to the API server: what is the same for every request, and the fence that writes of a leader pass.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::{ACCEPT_ENCODING, HeaderValue};
use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use parking_lot::RwLock;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// A client for everybody; with a fence, for the leader's writes only.
pub fn connect(config: Config, fence: Option<Fence>) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(config)?.with_layer(&Manners { fence }).build())
}

/// Lets writes pass as long as this process surely leads. Clones are the same fence.
///
/// A Lease is no fence by itself: a write that waits on the way may arrive when somebody else leads. So a write starts only
/// while the lease was renewed less than `renewDeadline` ago, and is given up after `write_timeout`, which is shorter than what
/// is left of the lease then.
#[derive(Clone, Debug)]
pub struct Fence {
    open_until: Arc<RwLock<Option<Instant>>>,
    write_timeout: Duration,
}

impl Fence {
    pub fn closed(write_timeout: Duration) -> Fence {
        Fence { open_until: Arc::default(), write_timeout }
    }

    pub fn open_until(&self, until: Instant) {
        *self.open_until.write() = Some(until);
    }

    pub fn close(&self) {
        *self.open_until.write() = None;
    }

    pub fn is_open(&self, now: Instant) -> bool {
        self.open_until.read().is_some_and(|until| now < until)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("not sent: this copy of usher does not lead, or not surely")]
    NotLeading,
    #[error("given up after {0:?}: the lease might not last until it arrives")]
    TooSlow(Duration),
}

/// What every request carries, and which of them pass the fence.
#[derive(Clone)]
pub struct Manners {
    pub fence: Option<Fence>,
}

impl<S> Layer<S> for Manners {
    type Service = Mannered<S>;

    fn layer(&self, inner: S) -> Mannered<S> {
        Mannered { inner, fence: self.fence.clone() }
    }
}

pub struct Mannered<S> {
    inner: S,
    fence: Option<Fence>,
}

impl<S, B> Service<Request<Body>> for Mannered<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // kube-apiserver 1.37 compresses each event of a watch by itself, which kube's client does not undo.
        request.headers_mut().entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        let fence = self.fence.as_ref().filter(|_| is_write(request.method()));
        let Some(fence) = fence.cloned() else {
            let answer = self.inner.call(request);
            return Box::pin(async move { answer.await.map_err(Into::into) });
        };
        if !fence.is_open(Instant::now()) {
            return Box::pin(async { Err(Refused::NotLeading.into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            match tokio::time::timeout(fence.write_timeout, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(Refused::TooSlow(fence.write_timeout).into()),
            }
        })
    }
}

fn is_write(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt;

    /// Asks a server that takes a while for everything.
    async fn send(takes: Duration, fence: &Fence, method: Method) -> Result<(), String> {
        let server = tower::service_fn(move |_: Request<Body>| async move {
            tokio::time::sleep(takes).await;
            Ok::<_, BoxError>(Response::new(()))
        });
        let request = Request::builder().method(method).body(Body::empty()).unwrap();
        let way = Manners { fence: Some(fence.clone()) }.layer(server);
        way.oneshot(request).await.map(|_| ()).map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_leader_writes_and_everybody_reads() {
        let fence = Fence::closed(Duration::from_secs(4));
        let quick = Duration::from_millis(1);
        assert!(send(quick, &fence, Method::GET).await.is_ok());
        assert!(send(quick, &fence, Method::POST).await.unwrap_err().contains("does not lead"));
        fence.open_until(Instant::now() + Duration::from_secs(10));
        assert!(send(quick, &fence, Method::POST).await.is_ok());
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(send(quick, &fence, Method::PATCH).await.is_err(), "the lease was not renewed");
        fence.open_until(Instant::now() + Duration::from_secs(10));
        fence.close();
        assert!(send(quick, &fence, Method::DELETE).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_given_up_before_somebody_else_may_lead_and_a_watch_is_not() {
        let fence = Fence::closed(Duration::from_secs(4));
        fence.open_until(Instant::now() + Duration::from_secs(10));
        let long = Duration::from_secs(60);
        assert!(send(long, &fence, Method::GET).await.is_ok());
        fence.open_until(Instant::now() + Duration::from_secs(10));
        assert!(send(long, &fence, Method::PUT).await.unwrap_err().contains("given up after 4s"));
    }
}
