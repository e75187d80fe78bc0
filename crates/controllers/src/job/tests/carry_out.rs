//! What the controller remembers of its calls, against a server that answers as it is told.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use usher_env::Clock;

use crate::job::apply::Controller;
use crate::job::cache::Cache;
use crate::job::calls::Calls;
use crate::job::carry_out::Sync;
use crate::job::decide::decide;
use crate::job::memory::{Behind, Memory, Shown};
use crate::job::names;
use crate::job::observe::{Observed, Policy};
use crate::runtime::{Key, Recorder, Tasks, Watches};

/// A second ago: nothing is replaced yet.
const LATELY: &str = "2026-11-15T00:00:00Z";

fn answer(code: u16, body: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn not_found() -> (u16, Value) {
    (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "gone"}))
}

/// The removal of a finalizer gets the given answer, status writes succeed, and there is nothing else.
fn server(stripped: (u16, Value)) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path();
        let (code, body) = match path {
            _ if request.method() == Method::PATCH && path.contains("/pods/") => stripped.clone(),
            _ if path.ends_with("/jobs/j/status") => (200, json!({"metadata": {"name": "j", "resourceVersion": "10"}})),
            _ => not_found(),
        };
        async move { Ok::<_, Infallible>(answer(code, &body)) }
    });
    Client::new(service, "n")
}

/// What is remembered after one look at a Job and its pod.
async fn remembered(suspended: bool, pod: Value, stripped: (u16, Value)) -> Memory {
    let job = json!({
        "metadata": {"name": "j", "namespace": "n", "uid": "U", "resourceVersion": "4"},
        "spec": {"parallelism": 1, "completions": 1, "suspend": suspended, "template": {"spec": {"containers": []}}},
        "status": {"startTime": "2026-11-15T00:00:00Z", "active": 1},
    });
    let (tasks, clock) = (Tasks::default(), Clock::virtual_from("2026-11-15T00:00:01Z".parse().unwrap()));
    let client = server(stripped);
    let controller = Controller {
        recorder: Recorder::new(&client, &clock, "job-controller", &tasks),
        cache: Cache::new(&Watches::new(client.clone(), tasks.clone())),
        calls: Calls { client },
        clock: clock.clone(),
        memories: Default::default(),
        metrics: Default::default(),
        policy: Policy::default(),
    };
    let (job, pod) = (serde_json::from_value(job).unwrap(), serde_json::from_value(pod).unwrap());
    let observed = Observed::new(Arc::new(job), vec![Arc::new(pod)], None, Policy::default());
    let plan = decide(&observed, clock.now());
    let mut memory = Memory::of("U");
    Sync::new(&controller, observed, &mut memory).carry_out(&plan).await.unwrap();
    memory
}

fn pod(phase: &str, deleted: Option<&str>) -> Value {
    json!({"metadata": {"name": "p", "namespace": "n", "uid": "P", "resourceVersion": "5", "creationTimestamp": LATELY, "deletionTimestamp": deleted,
            "finalizers": [names::TRACKING_FINALIZER]},
        "status": {"phase": phase}})
}

/// The caches show the Job as it was written, and the pod with its finalizer, or nothing of it.
fn behind(memory: &Memory, pods: u64, shown: bool) -> Option<Behind> {
    let pod = |_: &Key| shown.then(|| Shown { uid: "P".into(), being_deleted: true, tracked: true });
    memory.clone().behind(10, pods, pod)
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_went_with_its_finalizer_is_not_looked_at_again_until_the_cache_shows_it_gone() {
    // With this removal, which is answered with the pod as it last was; or with an earlier one, whose answer was lost.
    let gone_now = (200, json!({"metadata": {"name": "p", "resourceVersion": "5", "deletionTimestamp": LATELY}}));
    for stripped in [gone_now, not_found()] {
        let counted = remembered(false, pod("Failed", Some(LATELY)), stripped.clone()).await;
        assert_eq!(behind(&counted, 5, true), Some(Behind::Pods), "counted: {stripped:?}");
        assert_eq!(behind(&counted, 5, false), None, "counted: {stripped:?}");
        // Suspended: deleted and not counted. The cache is late and shows it running.
        let uncounted = remembered(true, pod("Running", None), stripped.clone()).await;
        assert_eq!(behind(&uncounted, 5, true), Some(Behind::Pods), "uncounted: {stripped:?}");
        assert_eq!(behind(&uncounted, 5, false), None, "uncounted: {stripped:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_lives_on_without_its_finalizer_is_awaited_at_the_revision_that_it_got() {
    let stripped = (200, json!({"metadata": {"name": "p", "resourceVersion": "6"}}));
    let memory = remembered(false, pod("Failed", None), stripped).await;
    assert_eq!(behind(&memory, 5, true), Some(Behind::Pods));
    assert_eq!(behind(&memory, 6, true), None);
}
