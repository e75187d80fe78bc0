//! A server in this process, on a store in memory, and a client that shows everything of an answer.

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, BodyStream, Full};
use serde_json::{Value, json};
use tower::ServiceExt;
use usher_apiserver::auth::identity::User;
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::service::InProcess;
use usher_apiserver::{Body, Keys, Options, Server};
use usher_env::{Clock, Ids};
use usher_store::Store;

pub struct World {
    pub server: Server,
    service: InProcess,
}

pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e} in {} {}", self.code, String::from_utf8_lossy(&self.body)))
    }

    /// The answer's object, if it is one of success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        let value = self.json();
        assert!((200..300).contains(&self.code), "{} {value:#}", self.code);
        value
    }

    /// Code, reason and message of a refusal.
    #[track_caller]
    pub fn refused(&self) -> (u16, String, String) {
        let value = self.json();
        assert_eq!(value["kind"], "Status", "{value:#}");
        let text = |key: &str| value[key].as_str().unwrap_or("").to_owned();
        (self.code, text("reason"), text("message"))
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers.get_all("warning").iter().map(|v| v.to_str().unwrap().to_owned()).collect()
    }
}

impl World {
    pub async fn new() -> World {
        World::with(Options::default()).await
    }

    pub async fn with(options: Options) -> World {
        World::on(Store::open_memory(usher_store::Options::default()), options).await
    }

    pub async fn on(store: Store, options: Options) -> World {
        let clock = Clock::wall();
        let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).unwrap();
        let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
        let server = Server::new(store, clock, Ids::seeded(1), options, keys);
        server.bootstrap().await.unwrap();
        let service = server.service_as(User::new("tester", &["system:masters"]));
        World { server, service }
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let response = self.open(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.service.clone().oneshot(request.body(Full::new(body.into())).unwrap()).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn patch(&self, path: &str, form: &str, body: &Value) -> Answer {
        let form = match form {
            "apply" => "application/apply-patch+yaml".to_owned(),
            form => format!("application/{form}-patch+json"),
        };
        self.send(Method::PATCH, path, &[("content-type", &form)], body.to_string()).await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> Answer {
        let body = if options.is_null() { String::new() } else { options.to_string() };
        self.send(Method::DELETE, path, &[("content-type", "application/json")], body).await
    }

    pub async fn watch(&self, path: &str) -> Lines {
        let response = self.open(Method::GET, path, &[], "").await;
        assert_eq!(response.status(), 200);
        Lines { stream: BodyStream::new(response.into_body()), buffer: Vec::new() }
    }

    /// Creates a config map in `default` and returns it as stored.
    pub async fn config_map(&self, name: &str, labels: Value) -> Value {
        self.post(CONFIG_MAPS, &json!({"metadata": {"name": name, "labels": labels}})).await.ok()
    }
}

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The events of a watch.
pub struct Lines {
    stream: BodyStream<Body>,
    buffer: Vec<u8>,
}

impl Lines {
    /// The next event, or `None` when the stream has ended.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.stream.next().await?.unwrap();
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// Type and name of the next event.
    pub async fn brief(&mut self) -> Option<(String, String)> {
        let event = self.next().await?;
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("").to_owned();
        Some((event["type"].as_str().unwrap().to_owned(), name))
    }
}

pub fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}
