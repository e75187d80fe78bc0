//! Sockets: accepts, shakes hands where there is TLS, and lets requests under way finish at the end. What is answered is said
//! by whoever implements [`Answers`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How long a client may take for its TLS handshake, and for the head of a request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests that are being worked on may still take once we are told to stop.
const DRAIN: Duration = Duration::from_secs(5);

pub type Reply = Response<Full<Bytes>>;

/// The certificate that a client showed and that was verified, if any.
pub type Peer = Option<Arc<CertificateDer<'static>>>;

pub trait Answers: Send + Sync + 'static {
    fn answer(&self, request: Request<Incoming>, peer: Peer) -> impl Future<Output = Reply> + Send;
}

/// Serves until `stop`, then lets requests under way finish.
pub async fn serve<A: Answers>(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    answers: Arc<A>,
    stop: CancellationToken,
) {
    let acceptor = tls.map(TlsAcceptor::from);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, acceptor.clone(), answers.clone(), graceful.watcher()));
            }
            Err(error) => {
                // Out of file descriptors, most likely: give connections a moment to go away.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("some connections did not end in time and were cut");
    }
}

async fn connection<A: Answers>(stream: TcpStream, acceptor: Option<TlsAcceptor>, answers: Arc<A>, watcher: Watcher) {
    // Small answers should not wait for more to say.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return speak(stream, None, answers, watcher).await };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let peer = shown.map(|certificate| Arc::new(certificate.clone().into_owned()));
            speak(stream, peer, answers, watcher).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn speak<A: Answers, S>(stream: S, peer: Peer, answers: Arc<A>, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (answers, peer) = (answers.clone(), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(answers.answer(request, peer).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(30)));
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

pub fn json(status: StatusCode, body: &serde_json::Value) -> Reply {
    reply(status, "application/json", body.to_string())
}

pub fn text(status: StatusCode, body: &str) -> Reply {
    reply(status, "text/plain; charset=utf-8", body.to_owned())
}

pub fn reply(status: StatusCode, kind: &'static str, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}
