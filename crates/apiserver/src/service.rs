//! From an HTTP request to an answer: who asks, what for, may they, and which part of the server knows.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER,
    SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE, USER_AGENT,
};
use http::{Request, Response};
use http_body_util::BodyExt;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::json;

use crate::auth::authenticate::Certified;
use crate::auth::identity::User;
use crate::body::Body;
use crate::negotiate::{self, Encoding};
use crate::registry::kind::Resource;
use crate::request::{Info, Query};
use crate::rest::{Answer, Ask};
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::{discovery, exec, metrics};

/// Who a connection belongs to, put on its requests by the listener. Absent in process without a user.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// What the client's certificate says, if it has shown one; verified against our CA.
    pub certificate: Option<Certified>,
}

/// The user of an in-process client: trusted, because only code in this process can put it on a request.
#[derive(Clone, Debug)]
pub struct Trusted(pub Arc<User>);

/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

impl Server {
    /// A tower service for `kube::Client::new`: the whole API as `user`, without a socket.
    pub fn service_as(&self, user: User) -> InProcess {
        InProcess { server: self.clone(), user: Arc::new(user) }
    }

    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body + Send,
        B::Data: Buf + Send,
        B::Error: std::fmt::Display,
    {
        let started = std::time::Instant::now();
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or(""));
        let info = Info::parse(&parts.method, parts.uri.path(), &query);
        let media = parts.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        let verb = metrics::metric_verb(&info, media.starts_with("application/apply-patch"));
        let dry_run = query.get("dryRun").is_some_and(|v| v == "All");
        let long = is_long_running(&info, &query);
        let gzip = !long
            && parts.headers.get(ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("gzip"));
        let accept = parts.headers.get(ACCEPT).and_then(|v| v.to_str().ok());
        let style = Style { gzip, encoding: negotiate::accept_whole(accept).unwrap_or(Encoding::Json) };
        let trusted = parts.extensions.get::<Trusted>().cloned();
        let _place = match self.take_place(&info, long, trusted.is_some()) {
            Ok(place) => place,
            Err(error) => {
                return self.respond(&info, verb, dry_run, (started, Duration::ZERO), Err(error), style);
            }
        };
        let work = self.answer(parts, info.clone(), query, trusted, body);
        let (result, elsewhere) = metrics::admission::measure(work).await;
        let mut response = self.respond(&info, verb, dry_run, (started, elsewhere), result, style);
        if long && response.status().is_success() {
            let gauge = self.metrics().long_running(&info, verb);
            let (head, body) = response.into_parts();
            response = Response::from_parts(head, counted(body, gauge));
        }
        response
    }

    async fn answer<B>(
        &self,
        mut parts: http::request::Parts,
        info: Info,
        query: Query,
        trusted: Option<Trusted>,
        body: B,
    ) -> Result<Answer>
    where
        B: http_body::Body + Send,
        B::Data: Buf + Send,
        B::Error: std::fmt::Display,
    {
        if let Some(text) = query.get("timeout").filter(|text| !text.is_empty() && !is_long_running(&info, &query)) {
            usher_schema::duration::parse(text).map_err(|why| {
                ApiError::bad_request(format!("invalid timeout specified in the request URL - {why}"))
            })?;
        }
        let in_process = trusted.is_some();
        let user = match trusted {
            Some(Trusted(user)) => user,
            None => {
                let peer = parts.extensions.get::<Peer>().cloned().unwrap_or_default();
                self.authenticate(&parts.headers, &peer)?
            }
        };
        let user = self.authorize(user, &mut parts.headers, &info, &query)?;
        if exec::is_stream(&info) {
            // Whoever may only read must not run something: a websocket begins with a GET.
            self.authorize(user, &mut parts.headers, &Info { verb: "create", ..info.clone() }, &query)?;
            return self.stream(parts, &info, &query);
        }
        if !info.is_resource {
            if !matches!(info.verb, "get" | "head") {
                return Err(ApiError::method_unknown());
            }
            return self.document(&info.path, &parts.headers, &query);
        }
        let body = read_body(body, self.options().max_body_bytes).await?;
        let ask = Ask { info, query, user, in_process, headers: parts.headers, body };
        self.dispatch(ask).await
    }

    /// Everything that is not a resource.
    fn document(&self, path: &str, headers: &http::HeaderMap, query: &Query) -> Result<Answer> {
        let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok());
        let catalog = self.catalog();
        let trimmed = path.trim_end_matches('/');
        match trimmed {
            "/healthz" | "/livez" | "/readyz" => return Ok(self.health(trimmed, query)),
            "/version" => {
                let mut answer = Answer::text(200, serde_json::to_string_pretty(&version()).unwrap_or_default());
                answer.content_type = "application/json";
                return Ok(answer);
            }
            "/metrics" => return Ok(self.metrics_page(accept)),
            "/api" | "/apis" => {
                let core = trimmed == "/api";
                if let Some(api) = negotiate::aggregated_discovery(accept) {
                    let mut answer = Answer::json(200, &discovery::aggregated(&catalog, core, api));
                    answer.content_type = if api == "v2" {
                        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                    } else {
                        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
                    };
                    return Ok(answer);
                }
                let value = if core {
                    discovery::api_versions(&self.options().address)
                } else {
                    discovery::group_list(&catalog)
                };
                return Ok(Answer::json(200, &value));
            }
            "" => return Ok(Answer::json(200, &json!({"paths": self.paths(&catalog)}))),
            _ => {}
        }
        if let Some(check) = trimmed
            .strip_prefix("/livez/")
            .or_else(|| trimmed.strip_prefix("/readyz/"))
            .or_else(|| trimmed.strip_prefix("/healthz/"))
        {
            return if matches!(check, "ping" | "log" | "etcd") {
                Ok(Answer::text(200, "ok"))
            } else {
                Err(ApiError::no_such_path())
            };
        }
        let parts: Vec<&str> = trimmed.trim_start_matches('/').split('/').collect();
        let found = match parts.as_slice() {
            ["api", version] => discovery::resource_list(&catalog, "", version),
            ["apis", group] => discovery::group(&catalog, group),
            ["apis", group, version] => discovery::resource_list(&catalog, group, version),
            ["openapi", rest @ ..] => return self.openapi(rest, accept),
            [".well-known", "openid-configuration"] => Some(self.access().openid_configuration()),
            ["openid", "v1", "jwks"] => Some(self.access().jwks()),
            _ => None,
        };
        found.map(|value| Answer::json(200, &value)).ok_or_else(ApiError::no_such_path)
    }

    fn health(&self, path: &str, query: &Query) -> Answer {
        if query.get("verbose").is_some() {
            let name = path.trim_start_matches('/');
            Answer::text(200, format!("[+]ping ok\n[+]log ok\n[+]etcd ok\n{name} check passed\n"))
        } else {
            Answer::text(200, "ok")
        }
    }

    /// In the format kube-apiserver uses, unless the scraper asks for the newer one.
    fn metrics_page(&self, accept: Option<&str>) -> Answer {
        const OPEN: &str = "application/openmetrics-text";
        const CLASSIC: &str = "text/plain";
        let open = negotiate::preferred(accept, &[CLASSIC, OPEN]) == Some(OPEN);
        let stats = self.store().stats();
        let objects: Vec<(String, String, usize)> = stats
            .collections
            .iter()
            .map(|(name, count)| {
                let (group, plural) = name.split_once('/').unwrap_or(("core", name));
                (if group == "core" { String::new() } else { group.to_owned() }, plural.to_owned(), *count)
            })
            .collect();
        let disk_bytes = Some(stats.disk_bytes).filter(|bytes| *bytes > 0);
        let stored = metrics::Stored { objects: &objects, disk_bytes };
        let mut answer = Answer::text(200, self.metrics().page(&stored, &version(), open));
        answer.content_type = if open {
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        } else {
            "text/plain; version=0.0.4; charset=utf-8"
        };
        answer
    }

    fn paths(&self, catalog: &crate::registry::catalog::Catalog) -> Vec<String> {
        let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
        for group in catalog.groups().iter().filter(|g| !g.name.is_empty()) {
            paths.push(format!("/apis/{}", group.name));
            paths.extend(group.versions.iter().map(|v| format!("/apis/{}/{}", group.name, v.name)));
        }
        paths.extend(
            ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"].map(str::to_owned),
        );
        paths
    }

    fn respond(
        &self,
        info: &Info,
        verb: &str,
        dry_run: bool,
        (started, elsewhere): (std::time::Instant, Duration),
        result: Result<Answer>,
        Style { gzip, encoding }: Style,
    ) -> Response<Body> {
        let (answer, retry_after) = match result {
            Ok(answer) => (answer, None),
            Err(error) => {
                let answer = Answer::json(error.code, &error.to_status());
                (answer.warned(error.warnings.to_vec()), error.retry_after_secs())
            }
        };
        let answer = if answer.is_plain { answer.encoded(encoding) } else { answer };
        let took = (info.verb != "watch").then(|| (started.elapsed(), elsewhere));
        // Whatever a client made up must not become a label.
        let nothing = Info::default();
        let known = if !info.is_resource || self.serves(info) { info } else { &nothing };
        self.metrics().observe(known, verb, dry_run, answer.code, took);
        let mut response = Response::new(Body::empty());
        *response.status_mut() =
            http::StatusCode::from_u16(answer.code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
        headers.insert("cache-control", HeaderValue::from_static("no-cache, private"));
        headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        if let Some(secs) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(secs));
        }
        if let Some(switch) = &answer.switch {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(switch.protocol));
            if let Ok(accept) = HeaderValue::from_str(&switch.accept) {
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
            }
            headers.remove(CONTENT_TYPE);
            return response;
        }
        for warning in answer.warnings {
            if let Ok(value) = HeaderValue::from_str(&warning_header(&warning)) {
                headers.append("warning", value);
            }
        }
        let body = match answer.body {
            Body::Whole(Some(bytes)) if gzip && bytes.len() > GZIP_FROM_BYTES => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                headers.append("vary", HeaderValue::from_static("Accept-Encoding"));
                Body::whole(compress(&bytes))
            }
            Body::Pieces(stream) if gzip => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                headers.append("vary", HeaderValue::from_static("Accept-Encoding"));
                Body::Pieces(gzipped(stream))
            }
            body => body,
        };
        if info.verb == "head" {
            return response;
        }
        let body = match verb {
            "GET" | "LIST" => sized(body, self.metrics().sizes(known, verb)),
            _ => body,
        };
        *response.body_mut() = body;
        response
    }

    fn serves(&self, info: &Info) -> bool {
        let catalog = self.catalog();
        let subresource =
            |r: &Resource| info.subresource.is_empty() || r.subresources.iter().any(|s| s.name == info.subresource);
        match catalog.find(&info.group, &info.version, &info.resource) {
            Some(kind) => subresource(kind.resource()),
            None => catalog.question(&info.group, &info.version, &info.resource).is_some_and(subresource),
        }
    }

    /// A place among the requests being worked on, or 429. Streams and our own controllers need none.
    fn take_place(&self, info: &Info, long: bool, trusted: bool) -> Result<Option<Place>> {
        if long || trusted {
            return Ok(None);
        }
        let mutating = matches!(info.verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        let limit = if mutating { self.options().max_writes_inflight } else { self.options().max_reads_inflight };
        let gauge = self.metrics().inflight(mutating);
        let before = gauge.inc();
        let place = Place { gauge };
        if usize::try_from(before).is_ok_and(|n| n >= limit) {
            self.metrics().refused(mutating);
            return Err(ApiError::too_many_requests(
                "the server has received too many requests and has asked us to try again later",
                1,
            ));
        }
        Ok(Some(place))
    }
}

/// How a client wants its answer sent.
#[derive(Clone, Copy)]
struct Style {
    gzip: bool,
    /// Of what nobody chose the shape of: errors, reviews.
    encoding: Encoding,
}

struct Place {
    gauge: prometheus_client::metrics::gauge::Gauge,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// Notes how many bytes an answer had, when it has been sent or given up.
fn sized(body: Body, sizes: Histogram) -> Body {
    struct Sent {
        bytes: usize,
        sizes: Histogram,
    }
    impl Sent {
        fn add(&mut self, piece: &Bytes) {
            self.bytes += piece.len();
        }
    }
    impl Drop for Sent {
        fn drop(&mut self) {
            self.sizes.observe(self.bytes as f64);
        }
    }
    match body {
        Body::Whole(Some(bytes)) => {
            drop(Sent { bytes: bytes.len(), sizes });
            Body::Whole(Some(bytes))
        }
        Body::Pieces(stream) => {
            let mut sent = Sent { bytes: 0, sizes };
            Body::Pieces(Box::pin(futures::StreamExt::map(stream, move |piece| {
                sent.add(&piece);
                piece
            })))
        }
        empty => empty,
    }
}

/// Counts a stream for as long as its body lives.
fn counted(body: Body, gauge: prometheus_client::metrics::gauge::Gauge) -> Body {
    gauge.inc();
    let place = Place { gauge };
    match body {
        Body::Pieces(stream) => Body::Pieces(Box::pin(futures::StreamExt::map(stream, move |piece| {
            let _ = &place;
            piece
        }))),
        whole => whole,
    }
}

fn is_long_running(info: &Info, query: &Query) -> bool {
    info.verb == "watch" || (info.subresource == "log" && query.flag("follow")) || exec::is_stream(info)
}

async fn read_body<B>(body: B, limit: usize) -> Result<Bytes>
where
    B: http_body::Body + Send,
    B::Data: Buf + Send,
    B::Error: std::fmt::Display,
{
    let too_large = || ApiError::too_large(&format!("limit is {limit}"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let read = async {
        let mut body = std::pin::pin!(body);
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| ApiError::bad_request(format!("the body could not be read: {e}")))?;
            if let Ok(mut data) = frame.into_data() {
                if all.len() + data.remaining() > limit {
                    return Err(too_large());
                }
                if all.is_empty() && body.is_end_stream() {
                    return Ok(data.copy_to_bytes(data.remaining())); // in one piece, and not copied
                }
                all.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
        }
        Ok(all.freeze())
    };
    match tokio::time::timeout(BODY_TIMEOUT, read).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::timeout("the body of the request did not arrive in time")),
    }
}

/// RFC 7234 warning: code 299, no agent, quoted text.
fn warning_header(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    for c in text.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    format!("299 - \"{quoted}\"")
}

/// As upstream: small answers are not worth compressing.
const GZIP_FROM_BYTES: usize = 128 * 1024;

fn compress(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 4), flate2::Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

fn gzipped(
    pieces: Pin<Box<dyn futures::Stream<Item = Bytes> + Send>>,
) -> Pin<Box<dyn futures::Stream<Item = Bytes> + Send>> {
    use std::io::Write;
    let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    Box::pin(futures::stream::unfold((pieces, Some(encoder)), |(mut pieces, encoder)| async move {
        let mut encoder = encoder?;
        loop {
            match futures::StreamExt::next(&mut pieces).await {
                Some(piece) => {
                    let _ = encoder.write_all(&piece);
                    let out = std::mem::take(encoder.get_mut());
                    if !out.is_empty() {
                        return Some((Bytes::from(out), (pieces, Some(encoder))));
                    }
                }
                None => return Some((Bytes::from(encoder.finish().unwrap_or_default()), (pieces, None))),
            }
        }
    }))
}

/// The version of Kubernetes whose behaviour this is, with our own after the plus sign.
pub fn version() -> serde_json::Value {
    json!({
        "major": "1", "minor": "37",
        "emulationMajor": "1", "emulationMinor": "37", "minCompatibilityMajor": "1", "minCompatibilityMinor": "36",
        "gitVersion": concat!("v1.37.0+usher-", env!("CARGO_PKG_VERSION")), "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none (rust)", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_arch()),
    })
}

fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The API as a tower service for one user.
#[derive(Clone)]
pub struct InProcess {
    server: Server,
    user: Arc<User>,
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: std::fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let server = self.server.clone();
        request.extensions_mut().insert(Trusted(self.user.clone()));
        // Managed fields name their manager by it.
        request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static("usher"));
        Box::pin(async move { Ok(server.handle(request).await) })
    }
}
