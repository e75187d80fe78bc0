//! The shared watches against a server that can be made to lie, break and forget.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Awaited, GroupResource, Key, Signal, Signals, Tasks, Watches};

type Answer = UnsyncBoxBody<Bytes, Infallible>;

#[derive(Default)]
struct Server {
    kinds: BTreeSet<(String, String)>,
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    watchers: BTreeMap<String, Vec<mpsc::UnboundedSender<String>>>,
    revision: u64,
    requests: Vec<String>,
    refuse_lists_of: BTreeSet<String>,
    /// Watches from before this revision are told 410.
    oldest: u64,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Server>>);

fn path(group: &str, plural: &str) -> String {
    if group.is_empty() { format!("/api/v1/{plural}") } else { format!("/apis/{group}/v1/{plural}") }
}

impl Fake {
    fn serve(&self, group: &str, plural: &str) -> &Fake {
        self.0.lock().kinds.insert((group.into(), plural.into()));
        self
    }

    fn unserve(&self, group: &str, plural: &str) {
        self.0.lock().kinds.remove(&(group.into(), plural.into()));
        self.break_watches(&path(group, plural));
    }

    fn tell(server: &mut Server, path: &str, what: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": what, "object": object}));
        server.watchers.entry(path.into()).or_default().retain(|w| w.send(line.clone()).is_ok());
    }

    fn put(&self, path: &str, name: &str) -> &Fake {
        let mut server = self.0.lock();
        server.revision += 1;
        let uid = format!("{name}-{}", server.revision);
        let object = json!({"metadata": {"name": name, "uid": uid, "resourceVersion": server.revision.to_string()}});
        let old = server.objects.entry(path.into()).or_default().insert(name.into(), object.clone());
        Fake::tell(&mut server, path, if old.is_some() { "MODIFIED" } else { "ADDED" }, &object);
        self
    }

    fn remove(&self, path: &str, name: &str) {
        let mut server = self.0.lock();
        server.revision += 1;
        let mut object = server.objects.entry(path.into()).or_default().remove(name).unwrap();
        object["metadata"]["resourceVersion"] = json!(server.revision.to_string());
        Fake::tell(&mut server, path, "DELETED", &object);
    }

    fn break_watches(&self, path: &str) {
        self.0.lock().watchers.remove(path);
    }

    /// Ends the kind's watches and forgets the past.
    fn forget_history(&self, path: &str) {
        self.break_watches(path);
        let mut server = self.0.lock();
        server.oldest = server.revision + 1;
        server.revision += 1;
    }

    fn requests(&self) -> usize {
        self.0.lock().requests.len()
    }

    fn discovery(&self, core: bool) -> Value {
        let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (group, plural) in self.0.lock().kinds.iter().filter(|(group, _)| group.is_empty() == core) {
            groups.entry(group.clone()).or_default().push(json!({"resource": plural, "scope": "Cluster",
                "responseKind": {"kind": plural}, "verbs": ["list", "watch", "delete"]}));
        }
        let items: Vec<_> = groups
            .into_iter()
            .map(|(g, r)| json!({"metadata": {"name": g}, "versions": [{"version": "v1", "resources": r}]}))
            .collect();
        json!({ "items": items })
    }

    fn answer(&self, uri: &http::Uri) -> Response<Answer> {
        self.0.lock().requests.push(uri.to_string());
        let (path, query) = (uri.path().to_string(), uri.query().unwrap_or_default());
        if path == "/api" || path == "/apis" {
            return body(200, &self.discovery(path == "/api"));
        }
        let mut server = self.0.lock();
        if query.contains("watch=true") {
            let from = query.split('&').find_map(|p| p.strip_prefix("resourceVersion=")).unwrap();
            if from.parse::<u64>().unwrap() < server.oldest {
                let line = json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}});
                return body(200, &line);
            }
            let (sender, receiver) = mpsc::unbounded_channel::<String>();
            server.watchers.entry(path).or_default().push(sender);
            let lines = futures::stream::unfold(receiver, |mut r| async { r.recv().await.map(|line| (line, r)) });
            let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))));
            return Response::new(StreamBody::new(frames).boxed_unsync());
        }
        if server.refuse_lists_of.contains(&path) {
            return body(
                500,
                &json!({"kind": "Status", "status": "Failure", "code": 500, "message": "no", "reason": "InternalError"}),
            );
        }
        let all: Vec<Value> = server.objects.get(&path).into_iter().flat_map(|o| o.values().cloned()).collect();
        // Two a page, so that paging is always exercised.
        let start: usize = query.split('&').find_map(|p| p.strip_prefix("continue=")).map_or(0, |t| t.parse().unwrap());
        let next = if start + 2 < all.len() { (start + 2).to_string() } else { String::new() };
        let items: Vec<_> = all.into_iter().skip(start).take(2).collect();
        body(
            200,
            &json!({"metadata": {"resourceVersion": server.revision.to_string(), "continue": next}, "items": items}),
        )
    }

    fn client(&self) -> Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = fake.answer(request.uri());
            async move { Ok::<_, Infallible>(answer) }
        });
        Client::new(service, "default")
    }
}

fn body(code: u16, value: &Value) -> Response<Answer> {
    Response::builder().status(code).body(Full::from(format!("{value}\n")).boxed_unsync()).unwrap()
}

/// What has been told once nothing moves any more, in words.
async fn told(signals: &mut Signals) -> Vec<String> {
    // Time stands still while anything can happen.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut words = Vec::new();
    while let Ok(signal) = signals.try_recv() {
        words.push(match signal {
            Signal::Applied(r, m) => format!("{} + {}", r.id.plural, m.name),
            Signal::Deleted(r, m) => format!("{} - {}", r.id.plural, m.name),
            Signal::Synced(r) => format!("{} synced", r.id.plural),
            Signal::Catalog(_) => "catalog".into(),
            Signal::Settled => "settled".into(),
        });
    }
    words
}

fn start(fake: &Fake) -> (Watches, Signals, Tasks) {
    let tasks = Tasks::default();
    let watches = Watches::new(fake.client(), tasks.clone());
    let signals = watches.subscribe(|resource| resource.id.plural != "customresourcedefinitions");
    watches.start();
    (watches, signals, tasks)
}

const PODS: &str = "/api/v1/pods";

#[tokio::test(start_paused = true)]
async fn a_kind_is_told_page_by_page_and_then_change_by_change() {
    let fake = Fake::default();
    fake.serve("", "pods").put(PODS, "a").put(PODS, "b").put(PODS, "c");
    let (watches, mut signals, _tasks) = start(&fake);
    let first = told(&mut signals).await;
    assert_eq!(first, ["catalog", "pods + a", "pods + b", "pods + c", "pods synced", "settled"]);
    fake.put(PODS, "d");
    fake.remove(PODS, "a");
    assert_eq!(told(&mut signals).await, ["pods + d", "pods - a"]);
    let store = watches.metadata(&GroupResource::new("", "pods"));
    let names: Vec<_> = store.all().iter().map(|(key, _)| key.name.to_string()).collect();
    assert_eq!(names, ["b", "c", "d"]);
    assert!(store.contains(&Key::new("", "b")));
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_goes_on_where_it_was() {
    let fake = Fake::default();
    fake.serve("", "pods").put(PODS, "a");
    let (_watches, mut signals, _tasks) = start(&fake);
    told(&mut signals).await;
    fake.break_watches(PODS);
    tokio::time::sleep(Duration::from_secs(1)).await;
    fake.put(PODS, "b");
    assert_eq!(told(&mut signals).await, ["pods + b"], "without a list");
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_only_what_differs_is_told() {
    let fake = Fake::default();
    fake.serve("", "pods").put(PODS, "stays").put(PODS, "goes").put(PODS, "again");
    let (_watches, mut signals, _tasks) = start(&fake);
    told(&mut signals).await;
    fake.break_watches(PODS);
    fake.remove(PODS, "goes");
    fake.remove(PODS, "again");
    fake.put(PODS, "again").put(PODS, "new");
    fake.forget_history(PODS);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        told(&mut signals).await,
        ["pods - again", "pods + again", "pods + new", "pods - goes", "pods synced"],
        "an object of the same name is another object"
    );
}

#[tokio::test(start_paused = true)]
async fn one_kind_that_cannot_be_listed_does_not_hold_up_the_others() {
    let fake = Fake::default();
    fake.serve("", "pods").serve("", "secrets").put(PODS, "a");
    fake.0.lock().refuse_lists_of.insert("/api/v1/secrets".into());
    let (_watches, mut signals, _tasks) = start(&fake);
    assert!(told(&mut signals).await.contains(&"settled".to_string()));
    fake.0.lock().refuse_lists_of.clear();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(told(&mut signals).await, ["secrets synced"]);
}

#[tokio::test(start_paused = true)]
async fn who_awaits_a_kind_waits_until_it_was_really_listed() {
    let fake = Fake::default();
    fake.serve("", "pods").serve("", "secrets").put(PODS, "a");
    fake.0.lock().refuse_lists_of.insert("/api/v1/secrets".into());
    let (_watches, mut signals, _tasks) = start(&fake);
    let mut awaited = Awaited::new([GroupResource::new("", "secrets"), GroupResource::new("", "pods")]);
    let mut ends = async || {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut ends = 0;
        while let Ok(signal) = signals.try_recv() {
            ends += usize::from(awaited.ends_with(&signal));
        }
        (ends, awaited.is_over())
    };
    assert_eq!(ends().await, (0, false), "settled, but for the secrets");
    fake.0.lock().refuse_lists_of.clear();
    assert_eq!(ends().await, (1, true));
    fake.put(PODS, "b");
    fake.forget_history(PODS);
    assert_eq!(ends().await, (0, true), "once and for all");
}

#[tokio::test(start_paused = true)]
async fn a_new_kind_is_watched_and_one_whose_definition_goes_takes_its_objects_along() {
    let crds = path("apiextensions.k8s.io", "customresourcedefinitions");
    let fake = Fake::default();
    fake.serve("apiextensions.k8s.io", "customresourcedefinitions");
    let (watches, mut signals, _tasks) = start(&fake);
    told(&mut signals).await;
    fake.put(&crds, "gizmos.example.com");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(told(&mut signals).await.is_empty(), "defined but not served yet");
    fake.serve("example.com", "gizmos").put("/apis/example.com/v1/gizmos", "one");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(told(&mut signals).await, ["catalog", "gizmos + one", "gizmos synced"]);
    assert!(watches.is_watched(&GroupResource::new("example.com", "gizmos")));

    fake.unserve("example.com", "gizmos");
    fake.remove(&crds, "gizmos.example.com");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(told(&mut signals).await, ["gizmos - one", "catalog"]);
    assert!(!watches.is_watched(&GroupResource::new("example.com", "gizmos")));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_only_not_served_for_a_while_keeps_its_objects() {
    let crds = path("apiextensions.k8s.io", "customresourcedefinitions");
    let gizmos = "/apis/example.com/v1/gizmos";
    let fake = Fake::default();
    fake.serve("apiextensions.k8s.io", "customresourcedefinitions").serve("example.com", "gizmos");
    fake.put(&crds, "gizmos.example.com").put(gizmos, "one").put(gizmos, "two");
    let (_watches, mut signals, _tasks) = start(&fake);
    tokio::time::sleep(Duration::from_secs(5)).await;
    told(&mut signals).await;
    fake.unserve("example.com", "gizmos");
    fake.put(&crds, "gizmos.example.com");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(told(&mut signals).await, ["catalog"]);
    fake.remove(gizmos, "two");
    fake.serve("example.com", "gizmos").put(&crds, "gizmos.example.com");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(told(&mut signals).await, ["catalog", "gizmos - two", "gizmos synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_year_without_changes_is_a_year_without_requests() {
    let fake = Fake::default();
    fake.serve("", "pods").serve("apiextensions.k8s.io", "customresourcedefinitions").put(PODS, "a");
    let (_watches, mut signals, tasks) = start(&fake);
    told(&mut signals).await;
    let before = fake.requests();
    tokio::time::sleep(Duration::from_secs(365 * 86_400)).await;
    assert_eq!(fake.requests(), before);
    tasks.stop().await;
    fake.put(PODS, "b");
    assert!(told(&mut signals).await.is_empty(), "what is stopped hears nothing");
}
