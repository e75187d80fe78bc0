//! Bare HTTP over TLS to a running `usher up`: for what a client library would hide, such as encodings, protocols,
//! half-sent bodies and streams that nobody reads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio_rustls::TlsConnector;

pub type Payload = BoxBody<Bytes, std::convert::Infallible>;

/// Where a server is, and who to be there.
#[derive(Clone)]
pub struct Endpoint {
    address: String,
    ca: Vec<u8>,
    /// Certificate and key of the administrator, unless the client is nobody.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Endpoint {
    /// The administrator of the kubeconfig.
    pub fn admin(kubeconfig: &Path) -> Endpoint {
        let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
        let config: Value = serde_saphyr::from_str(&text).expect("YAML");
        let data = |at: &str| {
            let encoded = config.pointer(at).and_then(Value::as_str).expect(at);
            STANDARD.decode(encoded).expect("base64")
        };
        let server = config.pointer("/clusters/0/cluster/server").and_then(Value::as_str).expect("a server");
        Endpoint {
            address: server.trim_start_matches("https://").to_owned(),
            ca: data("/clusters/0/cluster/certificate-authority-data"),
            identity: Some((data("/users/0/user/client-certificate-data"), data("/users/0/user/client-key-data"))),
        }
    }

    /// The same server, without a certificate.
    pub fn anonymous(&self) -> Endpoint {
        Endpoint { identity: None, ..self.clone() }
    }

    fn tls(&self, protocol: &[u8]) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&self.ca).expect("a CA")).expect("a CA");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(certificate).expect("a certificate")],
                    PrivateKeyDer::from_pem_slice(key).expect("a key"),
                )
                .expect("a client certificate"),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }

    async fn connect(&self, protocol: &[u8]) -> TokioIo<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
        let tcp = tokio::net::TcpStream::connect(&self.address).await.expect("connected");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TlsConnector::from(Arc::new(self.tls(protocol))).connect(name, tcp).await.expect("TLS");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol), "the server chose another protocol");
        TokioIo::new(stream)
    }

    pub async fn http1(&self) -> Connection {
        let (sender, connection) =
            hyper::client::conn::http1::handshake(self.connect(b"http/1.1").await).await.expect("HTTP/1.1");
        tokio::spawn(connection);
        Connection::One(sender)
    }

    pub async fn http2(&self) -> Connection {
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), self.connect(b"h2").await)
                .await
                .expect("HTTP/2");
        tokio::spawn(connection);
        Connection::Two(sender)
    }
}

pub enum Connection {
    One(hyper::client::conn::http1::SendRequest<Payload>),
    Two(hyper::client::conn::http2::SendRequest<Payload>),
}

pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}

impl Connection {
    pub async fn get(&mut self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], "").await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let response = self.open(method, path, headers, Full::new(body.into()).boxed()).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Answer { code: head.status.as_u16(), headers: head.headers, body }
    }

    /// Sends a request and returns as soon as the head of the answer is there.
    pub async fn open(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Payload,
    ) -> http::Response<Incoming> {
        let request = self.request(method, path, headers, body);
        match self {
            Connection::One(sender) => {
                sender.ready().await.expect("a connection");
                sender.send_request(request).await.expect("an answer")
            }
            Connection::Two(sender) => {
                sender.ready().await.expect("a connection");
                sender.send_request(request).await.expect("an answer")
            }
        }
    }

    /// Begins a request whose body never ends, on HTTP/2; it lives as long as what is returned.
    pub async fn begin(&mut self, method: Method, path: &str) -> tokio::task::JoinHandle<()> {
        let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, std::convert::Infallible>>());
        let request = self.request(method, path, &[("content-type", "application/json")], BodyExt::boxed(body));
        let Connection::Two(sender) = self else { panic!("many requests at once need HTTP/2") };
        sender.ready().await.expect("a connection");
        let answer = sender.send_request(request);
        tokio::spawn(async move { drop(answer.await) })
    }

    fn request(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Payload) -> Request<Payload> {
        // HTTP/2 wants the authority in the address, HTTP/1.1 in a header.
        let mut request = match self {
            Connection::One(_) => Request::builder().uri(path).header("host", "localhost"),
            Connection::Two(_) => Request::builder().uri(format!("https://localhost{path}")),
        };
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.method(method).body(body).expect("a request")
    }
}

/// Waits until something holds; far longer than it takes.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The next piece of a stream, or None at its proper end. A connection that breaks instead is an error.
pub async fn next(body: &mut Incoming) -> Option<Bytes> {
    loop {
        let frame = tokio::time::timeout(Duration::from_secs(60), body.frame()).await.expect("something happens");
        if let Ok(data) = frame?.expect("the stream ends cleanly").into_data() {
            return Some(data);
        }
    }
}
