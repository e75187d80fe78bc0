//! An HTTPS server that answers admission reviews as a test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What a webhook does when asked at its path.
pub enum Reply {
    /// `response`, with the uid filled in.
    Response(Value),
    /// The whole body, and its status.
    Raw(u16, String),
    /// Nothing for this long.
    Late(Duration),
}

impl Reply {
    pub fn allow() -> Reply {
        Reply::Response(json!({"allowed": true}))
    }

    pub fn patch(operations: Value) -> Reply {
        let patch = STANDARD.encode(operations.to_string());
        Reply::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
    }
}

pub struct Webhook {
    pub port: u16,
    ca: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    connections: Arc<AtomicUsize>,
}

impl Webhook {
    /// Answers each review at `path` (without the slash) with `reply(path, request)`.
    pub async fn start(reply: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Webhook {
        // As `openssl req -x509` makes them: an authority that is its own server.
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned(), "hook.default.svc".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = Webhook {
            port: listener.local_addr().unwrap().port(),
            ca: STANDARD.encode(certificate.pem()),
            asked: Arc::default(),
            connections: Arc::default(),
        };
        let (asked, connections, reply) = (webhook.asked.clone(), webhook.connections.clone(), Arc::new(reply));
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, asked, reply) = (acceptor.clone(), asked.clone(), reply.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(request, asked.clone(), reply.clone()));
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        webhook
    }

    /// A `webhooks` entry that calls `path` about new config maps.
    pub fn hook(&self, path: &str) -> Value {
        json!({"name": format!("{path}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("https://127.0.0.1:{}/{path}", self.port), "caBundle": self.ca},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]})
    }

    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// The requests so far, with the path each came to.
    pub fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().clone()
    }

    pub fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|(path, _)| path).collect()
    }

    pub fn forget(&self) {
        self.asked.lock().clear();
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn answer(
    request: Request<Incoming>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    reply: Arc<impl Fn(&str, &Value) -> Reply>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let request = review["request"].clone();
    asked.lock().push((path.clone(), request.clone()));
    let (status, body) = match reply(&path, &request) {
        Reply::Response(mut response) => {
            if response.get("uid").is_none() {
                response["uid"] = request["uid"].clone();
            }
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            (200, answer.to_string())
        }
        Reply::Raw(status, body) => (status, body),
        Reply::Late(by) => {
            tokio::time::sleep(by).await;
            (200, String::new())
        }
    };
    Ok(Response::builder().status(status).body(Full::new(Bytes::from(body))).unwrap())
}
