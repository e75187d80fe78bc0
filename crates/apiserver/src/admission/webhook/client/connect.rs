//! TCP and TLS to a webhook, with the errors that Go's client would give.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use usher_store::Store;

use super::endpoint::Place;
use super::trust;

/// Connects to one place, whatever URI it is asked for.
#[derive(Clone)]
pub struct Connector {
    pub place: Place,
    pub server_name: ServerName<'static>,
    pub tls: Arc<ClientConfig>,
    pub store: Store,
}

/// Why there is no connection, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoConnection(pub String);

impl Connector {
    async fn connect(self) -> Result<Stream, NoConnection> {
        let (host, port) = self.place.address(&self.store).map_err(NoConnection)?;
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|e| self.dial_error(&host, port, &e))?;
        // Reviews are small and waited for.
        let _ = stream.set_nodelay(true);
        let tls = TlsConnector::from(self.tls.clone());
        let stream = tls
            .connect(self.server_name.clone(), stream)
            .await
            .map_err(|e| NoConnection(trust::describe(&e, &self.server_name.to_str())))?;
        Ok(Stream(TokioIo::new(stream)))
    }

    fn dial_error(&self, host: &str, port: u16, error: &std::io::Error) -> NoConnection {
        let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        NoConnection(match error.kind() {
            ErrorKind::ConnectionRefused => format!("dial tcp {shown}: connect: connection refused"),
            ErrorKind::TimedOut => format!("dial tcp {shown}: i/o timeout"),
            ErrorKind::HostUnreachable => format!("dial tcp {shown}: connect: no route to host"),
            ErrorKind::NetworkUnreachable => format!("dial tcp {shown}: connect: network is unreachable"),
            _ if error.raw_os_error().is_some() => format!("dial tcp {shown}: {error}"),
            _ => self.place.unknown().unwrap_or_else(|| format!("dial tcp: lookup {host}: no such host")),
        })
    }
}

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = NoConnection;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, NoConnection>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NoConnection>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

pub struct Stream(TokioIo<TlsStream<TcpStream>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
