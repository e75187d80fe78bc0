//! The wire of the real binary: protocols, encodings, limits, who may come in, and clients that behave badly.

mod harness;

use std::io::Read;

use http::Method;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use harness::wire::{Connection, Endpoint, eventually, next};
use harness::{Server, Usher};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: (&str, &str) = ("content-type", "application/json");

fn config_map(name: &str, bytes: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"text": "lorem ".repeat(bytes / 6)}})
}

async fn create(connection: &mut Connection, object: &Value) {
    let answer = connection.post(MAPS, object).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
}

#[tokio::test]
async fn http_1_and_http_2_are_both_spoken_and_say_the_same() {
    let usher = Usher::start();
    let admin = Endpoint::admin(usher.kubeconfig());
    let (mut one, mut two) = (admin.http1().await, admin.http2().await);
    create(&mut one, &config_map("a", 10)).await;
    create(&mut two, &config_map("b", 10)).await;
    for name in ["a", "b"] {
        let path = format!("{MAPS}/{name}");
        assert_eq!(one.get(&path).await.json(), two.get(&path).await.json());
    }
}

#[tokio::test]
async fn a_big_list_is_compressed_for_who_asks_and_a_watch_never_is() {
    let usher = Usher::start();
    let mut connection = Endpoint::admin(usher.kubeconfig()).http1().await;
    for i in 0..4 {
        create(&mut connection, &config_map(&format!("big-{i}"), 100_000)).await;
    }
    let plain = connection.get(MAPS).await;
    assert_eq!(plain.header("content-encoding"), "");
    let asked = [("accept-encoding", "gzip")];
    let packed = connection.send(Method::GET, MAPS, &asked, "").await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.body.len() * 5 < plain.body.len(), "{} of {} bytes", packed.body.len(), plain.body.len());
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&packed.body[..]).read_to_end(&mut unpacked).expect("gzip");
    assert_eq!(unpacked, plain.body);
    let small = connection.send(Method::GET, "/version", &asked, "").await;
    assert_eq!(small.header("content-encoding"), "", "a small answer is not worth it");
    let watch = connection.open(Method::GET, &format!("{MAPS}?watch=1"), &asked, Full::default().boxed()).await;
    assert_eq!(watch.headers().get("content-encoding"), None);
    let first = next(&mut watch.into_body()).await.expect("an event");
    assert!(first.starts_with(b"{\"type\":\"ADDED\""), "{first:?}");
}

#[tokio::test]
async fn nobody_sees_health_and_version_and_nothing_else() {
    let usher = Usher::start();
    let mut nobody = Endpoint::admin(usher.kubeconfig()).anonymous().http1().await;
    for path in ["/healthz", "/livez", "/readyz", "/livez?verbose", "/version"] {
        assert_eq!(nobody.get(path).await.code, 200, "{path}");
    }
    for path in ["/api", "/apis", "/metrics", "/openapi/v3", "/api/v1/namespaces", MAPS, "/"] {
        let answer = nobody.get(path).await;
        assert_eq!(answer.code, 403, "{path}");
        let message = answer.json()["message"].as_str().expect("a message").to_owned();
        assert!(message.contains("User \"system:anonymous\" cannot "), "{message}");
    }
    let answer = nobody.send(Method::GET, MAPS, &[("authorization", "Bearer nonsense")], "").await;
    assert_eq!((answer.code, answer.json()["reason"].as_str()), (401, Some("Unauthorized")), "{}", answer.text());
}

#[tokio::test]
async fn tokens_of_the_file_are_users_with_their_groups() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tokens.csv");
    std::fs::write(&file, "s3cret,jane,7,\"staff,system:masters\"\nother,joe,8\n").expect("written");
    let usher = Usher::start_with(&["--token-auth-file", file.to_str().expect("text")]);
    let mut connection = Endpoint::admin(usher.kubeconfig()).anonymous().http1().await;
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let jane = connection.send(Method::POST, reviews, &[JSON, ("authorization", "Bearer s3cret")], "{}").await.json();
    assert_eq!(jane["status"]["userInfo"]["username"], "jane", "{jane}");
    assert_eq!(jane["status"]["userInfo"]["uid"], "7");
    assert_eq!(jane["status"]["userInfo"]["groups"], json!(["staff", "system:masters", "system:authenticated"]));
    let mut code = async |token: &str| connection.send(Method::GET, MAPS, &[("authorization", token)], "").await.code;
    assert_eq!(code("Bearer s3cret").await, 200);
    assert_eq!(code("Bearer other").await, 403);
    assert_eq!(code("Bearer s3cre").await, 401);
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_the_server_goes_on() {
    let usher = Usher::start();
    let admin = Endpoint::admin(usher.kubeconfig());
    let mut connection = admin.http2().await;
    let too_big = connection.post(MAPS, &config_map("big", 4 << 20)).await;
    assert_eq!((too_big.code, too_big.json()["reason"].as_str()), (413, Some("RequestEntityTooLarge")));
    let nested = |open: &str, close: &str, n: usize| format!("{{\"data\":{}{}}}", open.repeat(n), close.repeat(n));
    let yaml = ("content-type", "application/yaml");
    let protobuf = ("content-type", "application/vnd.kubernetes.protobuf");
    for (header, body) in [
        (JSON, nested("[", "]", 500_000).into_bytes()),
        (JSON, nested("{\"a\":", "}", 200_000).into_bytes()),
        (yaml, nested("[", "]", 100_000).into_bytes()),
        (yaml, "- ".repeat(100_000).into_bytes()),
        (yaml, b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n".to_vec()),
        (JSON, b"{\"metadata\":{\"name\":\"a\"}".to_vec()),
        (JSON, b"\xff\xfe\x00".to_vec()),
        (protobuf, b"k8s\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()),
        (protobuf, [b"k8s\x00".to_vec(), vec![0x0a; 100_000]].concat()),
        (protobuf, b"{}".to_vec()),
    ] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(30)]).into_owned();
        let answer = connection.send(Method::POST, MAPS, &[header], body).await;
        assert_eq!((answer.code, answer.json()["status"].as_str()), (400, Some("Failure")), "{shown}: {}", answer.text());
    }
    let odd = connection.send(Method::POST, MAPS, &[("content-type", "text/plain")], "hello").await;
    assert_eq!(odd.code, 415, "{}", odd.text());
    create(&mut connection, &config_map("fine", 10)).await;
}

#[tokio::test]
async fn when_too_many_write_at_once_the_next_is_told_to_come_back_and_readers_notice_nothing() {
    let usher = Usher::start();
    let admin = Endpoint::admin(usher.kubeconfig());
    let mut slow = admin.http2().await;
    let mut writers = Vec::new();
    // 200 writes may be worked on at once. These never finish sending.
    for _ in 0..200 {
        writers.push(slow.begin(Method::POST, MAPS).await);
    }
    // All of them must have their places first: a write of ours in between would take one of theirs.
    let reader = std::sync::Arc::new(tokio::sync::Mutex::new(admin.http1().await));
    eventually("200 writers", || {
        let reader = reader.clone();
        async move {
            let metrics = reader.lock().await.get("/metrics").await;
            metrics.text().contains("apiserver_current_inflight_requests{request_kind=\"mutating\"} 200\n")
        }
    })
    .await;
    let mut connection = admin.http1().await;
    let refused = connection.post(MAPS, &config_map("refused", 1)).await;
    assert_eq!(refused.code, 429, "{}", refused.text());
    assert_eq!((refused.header("retry-after"), refused.json()["reason"].as_str()), ("1", Some("TooManyRequests")));
    assert_eq!(connection.get(MAPS).await.code, 200, "reads have places of their own");
    drop(slow);
    writers.iter().for_each(tokio::task::JoinHandle::abort);
    drop(writers);
    let connection = std::sync::Arc::new(tokio::sync::Mutex::new(connection));
    eventually("a place", || {
        let connection = connection.clone();
        async move { connection.lock().await.post(MAPS, &config_map("later", 1)).await.code != 429 }
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn watchers_that_stop_reading_cost_little_and_others_hear_everything() {
    const STALLED: usize = 100;
    const WRITES: usize = 100;
    let usher = Usher::start_with(&["--in-memory"]);
    let admin = Endpoint::admin(usher.kubeconfig());
    let (path, mut stalled) = (format!("{MAPS}?watch=1"), Vec::new());
    for _ in 0..STALLED {
        let mut connection = admin.http1().await;
        let watch = connection.open(Method::GET, &path, &[], Full::default().boxed()).await;
        stalled.push((connection, watch));
    }
    let mut reader = admin.http1().await;
    let mut heard = reader.open(Method::GET, &path, &[], Full::default().boxed()).await.into_body();
    let mut writer = admin.http1().await;
    for i in 0..WRITES {
        create(&mut writer, &config_map(&format!("m{i:03}"), 200_000)).await;
    }
    let (mut text, last) = (Vec::new(), format!("\"m{:03}\"", WRITES - 1));
    while !String::from_utf8_lossy(&text[text.len().saturating_sub(400_000)..]).contains(&last) {
        text.extend_from_slice(&next(&mut heard).await.expect("the watch goes on"));
    }
    for i in 0..WRITES {
        assert!(String::from_utf8_lossy(&text).contains(&format!("\"m{i:03}\"")), "m{i:03} was not told");
    }
    // 100 writes of 200 kB to 100 watchers would be 2 GB, were each of them kept for each.
    let rss = usher.rss_bytes();
    assert!(rss < 700 << 20, "{} MB in use", rss >> 20);
    drop(stalled);
}

#[tokio::test]
async fn a_stopping_server_ends_its_watches_properly() {
    for signal in ["TERM", "INT"] {
        let mut usher = Usher::start();
        let admin = Endpoint::admin(usher.kubeconfig());
        let (mut one, mut two) = (admin.http1().await, admin.http2().await);
        let path =
            format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
        let mut bodies = Vec::new();
        for connection in [&mut one, &mut two] {
            bodies.push(connection.open(Method::GET, &path, &[], Full::default().boxed()).await.into_body());
        }
        usher.signal(signal);
        for body in &mut bodies {
            // `next` fails on a connection that is cut.
            while next(body).await.is_some() {}
        }
        assert_eq!(usher.wait(), Some(0), "{signal}: {}", usher.log());
    }
}
