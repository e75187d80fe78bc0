//! The socket: TLS, HTTP/1.1 and HTTP/2, and a quiet end.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::auth::authenticate;
use crate::server::Server;
use crate::service::Peer;

/// How long a client may take for its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests that are being worked on may still take once we are told to stop.
const DRAIN: Duration = Duration::from_secs(5);
/// Streams on one connection: client-go puts all its watches on one.
const MAX_STREAMS: u32 = 2000;
const WINDOW_BYTES: u32 = 1024 * 1024;

/// Serves until [`Server::close`] is called, then lets the requests under way finish.
pub async fn serve(server: Server, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
    let graceful = GracefulShutdown::new();
    let mut closing = server.closing();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Dropped only once `graceful` lets go of all watchers, below.
                let watcher = graceful.watcher();
                tokio::spawn(connection(server.clone(), acceptor.clone(), stream, watcher));
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

async fn connection(
    server: Server,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    watcher: hyper_util::server::graceful::Watcher,
) {
    // Small answers should not wait for more to say.
    let _ = stream.set_nodelay(true);
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let Ok(Ok(stream)) = handshake else {
        tracing::debug!("a TLS handshake failed");
        return;
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let peer = Peer { certificate: certificate.map(|der| authenticate::certified(der)) };
    let service = service_fn(move |mut request: Request<Incoming>| {
        let server = server.clone();
        request.extensions_mut().insert(peer.clone());
        async move { Ok::<_, std::convert::Infallible>(server.handle(request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES * 4)
        .max_send_buf_size(512 * 1024)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(20));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
