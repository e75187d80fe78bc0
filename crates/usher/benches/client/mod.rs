//! A small HTTPS client that costs as little as possible, so that the server is what is measured.

#![allow(dead_code, reason = "each benchmark uses what it needs")]

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio_rustls::TlsConnector;

const JSON: &str = "application/json";

#[derive(Clone)]
pub struct Endpoint {
    address: String,
    tls: Arc<rustls::ClientConfig>,
}

impl Endpoint {
    pub fn from_kubeconfig(text: &str) -> Endpoint {
        let config: Value = serde_saphyr::from_str(text).expect("a kubeconfig");
        let data = |at: &str| {
            let encoded = config.pointer(at).and_then(Value::as_str).expect(at);
            STANDARD.decode(encoded).expect("base64")
        };
        let server = config.pointer("/clusters/0/cluster/server").and_then(Value::as_str).expect("a server");
        let ca = data("/clusters/0/cluster/certificate-authority-data");
        let cert = data("/users/0/user/client-certificate-data");
        let key = data("/users/0/user/client-key-data");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&ca).expect("a CA")).expect("a CA");
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(&cert).expect("a certificate")],
                PrivateKeyDer::from_pem_slice(&key).expect("a key"),
            )
            .expect("a client certificate");
        Endpoint { address: server.trim_start_matches("https://").to_owned(), tls: Arc::new(tls) }
    }
}

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    pub async fn open(endpoint: &Endpoint) -> Connection {
        let tcp = tokio::net::TcpStream::connect(&endpoint.address).await.expect("connected");
        tcp.set_nodelay(true).expect("nodelay");
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = TlsConnector::from(endpoint.tls.clone()).connect(name, tcp).await.expect("TLS");
        let (sender, connection) = handshake(TokioIo::new(tls)).await.expect("HTTP");
        tokio::spawn(connection);
        Connection { sender }
    }

    fn request(method: Method, path: &str, ty: &'static str, body: Bytes) -> Request<Full<Bytes>> {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", ty)
            .body(Full::new(body))
            .expect("a request")
    }

    pub async fn call(&mut self, method: Method, path: &str, body: Option<&Value>) -> (u16, Bytes) {
        self.send(method, path, Bytes::from(body.map(Value::to_string).unwrap_or_default())).await
    }

    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> (u16, Bytes) {
        self.send_as(method, path, JSON, body).await
    }

    pub async fn send_as(&mut self, method: Method, path: &str, ty: &'static str, body: Bytes) -> (u16, Bytes) {
        self.sender.ready().await.expect("connection");
        let response = self.sender.send_request(Self::request(method, path, ty, body)).await.expect("an answer");
        let code = response.status().as_u16();
        (code, response.into_body().collect().await.expect("a body").to_bytes())
    }

    pub async fn stream(mut self, path: &str) -> Stream {
        let response =
            self.sender.send_request(Self::request(Method::GET, path, JSON, Bytes::new())).await.expect("an answer");
        assert_eq!(response.status(), 200);
        Stream { body: response.into_body(), _connection: self }
    }
}

pub struct Stream {
    body: hyper::body::Incoming,
    _connection: Connection,
}

impl Stream {
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                return Some(data);
            }
        }
    }
}
