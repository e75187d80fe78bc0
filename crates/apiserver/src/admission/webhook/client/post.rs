//! One question, one answer.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls_pki_types::ServerName;
use serde_json::Value;
use usher_store::Store;

use super::connect::{Connector, NoConnection};
use super::endpoint::Endpoint;
use super::trust;

/// A patch can replace a whole object, in base64 and more than once; nothing sensible is larger.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// Of a body that explains an error.
const MAX_SHOWN_CHARS: usize = 2048;
const IDLE: Duration = Duration::from_secs(90);

pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    url: String,
}

impl Client {
    pub fn new(endpoint: &Endpoint, store: Store) -> Result<Client, String> {
        let server_name = ServerName::try_from(endpoint.server_name.clone())
            .map_err(|_| format!("{:?} is not a name that a certificate could have", endpoint.server_name))?;
        let tls = Arc::new(trust::client_config(&endpoint.roots)?);
        let connector = Connector { place: endpoint.place.clone(), server_name, tls, store };
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Client { http, url: format!("https://{}{}", endpoint.authority, endpoint.path) })
    }

    /// Sends a review and gives the answer's JSON. Errors are worded as client-go's.
    pub async fn post(&self, question: &Value, timeout: Duration) -> Result<Value, String> {
        let url = format!("{}?timeout={}s", self.url, timeout.as_secs());
        let request = Request::builder()
            .method(Method::POST)
            .uri(&url)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .header(USER_AGENT, concat!("usher-admission/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from(question.to_string())))
            .map_err(|e| e.to_string())?;
        let answered = tokio::time::timeout(timeout, self.exchange(request)).await;
        let failed = |why: &str| format!("Post {url:?}: {why}");
        let (status, is_text, body) = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return Err(failed(&why)),
            Err(_) => return Err(failed("context deadline exceeded")),
        };
        if !status.is_success() {
            return Err(refused(status, is_text, &body));
        }
        let answer: Value =
            serde_json::from_slice(&body).map_err(|e| format!("couldn't get version/kind; json parse error: {e}"))?;
        if answer.get("kind").and_then(Value::as_str).unwrap_or("").is_empty() {
            let shown: String = String::from_utf8_lossy(&body).chars().take(MAX_SHOWN_CHARS).collect();
            return Err(format!("Object 'Kind' is missing in '{shown}'"));
        }
        Ok(answer)
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, bool, Bytes), String> {
        let response = self.http.request(request).await.map_err(|e| cause(&e))?;
        let status = response.status();
        let media = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        let is_text = media.is_empty() || media.starts_with("text/");
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|e| match e.downcast_ref::<http_body_util::LengthLimitError>() {
            Some(_) => format!("the response is longer than {MAX_ANSWER_BYTES} bytes"),
            None => "unexpected EOF".to_owned(),
        })?;
        Ok((status, is_text, body.to_bytes()))
    }
}

/// The reason at the end of the chain.
fn cause(error: &legacy::Error) -> String {
    let mut at: Option<&(dyn Error + 'static)> = Some(error);
    let mut last = error.to_string();
    while let Some(error) = at {
        if let Some(NoConnection(why)) = error.downcast_ref() {
            return why.clone();
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(|e| e.is_incomplete_message() || e.is_closed()) {
            return "EOF".to_owned();
        }
        last = error.to_string();
        at = error.source();
    }
    last
}

/// What client-go makes of a status that is no success.
fn refused(status: StatusCode, is_text: bool, body: &[u8]) -> String {
    let said: String = String::from_utf8_lossy(body).trim().chars().take(MAX_SHOWN_CHARS).collect();
    let said = if is_text { said } else { "unknown".to_owned() };
    match status.as_u16() {
        409 => "the server reported a conflict".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 | 415 => said,
        405 => "the server does not allow this method on the requested resource".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .to_owned()
        }
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        code if code >= 500 => {
            format!("an error on the server ({said:?}) has prevented the request from succeeding")
        }
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}
