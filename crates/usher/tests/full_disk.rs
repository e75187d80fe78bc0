//! A disk that is full: writes fail, everything else goes on, and what was answered is still there afterwards.

mod harness;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use http::Method;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use harness::wire::{Endpoint, next};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LIMIT_KIB: usize = 16 << 10;

/// `usher up` that may write no file past `LIMIT_KIB`, which is what a full disk looks like without one. The signal that comes with
/// it is ignored, so that the write fails as on a full disk.
fn start(data: &Path, limited: bool) -> Child {
    let limit = if limited { format!("trap '' XFSZ; ulimit -f {LIMIT_KIB};") } else { String::new() };
    let mut child = Command::new("bash")
        .args(["-c", &format!("{limit} exec \"$0\" up --listen 127.0.0.1:0 --data-dir \"$1\"")])
        .arg(env!("CARGO_BIN_EXE_usher"))
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash runs");
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut ready).expect("a line");
    assert!(ready.starts_with("ready "), "{ready:?}");
    child
}

fn config_map(i: usize) -> Value {
    json!({"metadata": {"name": format!("m{i:03}")}, "data": {"text": "x".repeat(500_000)}})
}

#[tokio::test]
async fn a_full_disk_fails_writes_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut usher = start(&data, true);
    let admin = Endpoint::admin(&data.join("kubeconfig"));
    let mut connection = admin.http1().await;
    let mut watching = admin.http1().await;
    let mut answered = Vec::new();
    let failure = loop {
        let i = answered.len();
        assert!(i < 100, "the disk does not get full");
        let answer = connection.post(MAPS, &config_map(i)).await;
        if answer.code != 201 {
            break answer;
        }
        answered.push(format!("m{i:03}"));
    };
    assert!(!answered.is_empty());
    assert_eq!((failure.code, failure.json()["reason"].as_str()), (500, Some("InternalError")), "{}", failure.text());

    // Reads and watches, old ones and new ones, go on; writes go on failing without doing harm.
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().expect("items").iter();
        let names = items.map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned());
        names.filter(|name| name.starts_with('m')).collect()
    };
    for _ in 0..3 {
        assert_eq!(connection.post(MAPS, &config_map(answered.len())).await.code, 500);
        assert_eq!(names(&connection.get(MAPS).await.json()), answered);
        assert_eq!(connection.get(&format!("{MAPS}/m000")).await.code, 200);
    }
    let watch = watching.open(Method::GET, &format!("{MAPS}?watch=1"), &[], Full::default().boxed()).await;
    assert!(next(&mut watch.into_body()).await.expect("an event").starts_with(b"{\"type\":\"ADDED\""));
    assert_eq!(connection.get("/livez").await.code, 200);
    assert!(matches!(usher.try_wait(), Ok(None)), "it stopped");
    usher.kill().expect("killed");
    usher.wait().expect("ended");

    let mut usher = start(&data, false);
    let mut connection = Endpoint::admin(&data.join("kubeconfig")).http1().await;
    assert_eq!(names(&connection.get(MAPS).await.json()), answered, "what was answered, and nothing that was refused");
    assert_eq!(connection.post(MAPS, &config_map(answered.len())).await.code, 201);
    usher.kill().expect("killed");
    usher.wait().expect("ended");
}
