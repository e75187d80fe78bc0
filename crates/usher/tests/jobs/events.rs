//! What people are told about a Job that does not go as it should.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::json;
use tower::{BoxError, ServiceExt};
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::gates::Gates;

use super::world::*;

#[tokio::test(start_paused = true)]
async fn pods_that_the_server_refuses_are_told_and_tried_again() {
    let world = World::new().await;
    let spec = json!({"template": {"spec": {"serviceAccountName": "later"}}});
    world.create("early", spec, json!({"test/runs": "1"})).await;
    let told = until("the refusal is told", async || {
        world.events("early").await.into_iter().find(|event| event.1 == "FailedCreate")
    })
    .await;
    assert_eq!(told.0, "Warning");
    assert!(told.2.starts_with("Error creating: pods \"early-"), "{}", told.2);
    assert!(told.2.ends_with("error looking up service account default/later: serviceaccount \"later\" not found"));
    let account = serde_json::from_value(json!({"metadata": {"name": "later"}})).expect("an account");
    let accounts = kube::Api::<k8s_openapi::api::core::v1::ServiceAccount>::default_namespaced(world.client.clone());
    accounts.create(&Default::default(), &account).await.expect("create the account");
    world.until_condition("early", "Complete").await;
    assert_eq!(world.pods_of("early").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_too_many_are_deleted_and_each_is_named() {
    let world = World::new().await;
    world.create("wide", json!({"parallelism": 3, "completions": 9}), json!({})).await;
    world.until("wide", "runs", |s| s.ready == Some(3)).await;
    let before: Vec<_> = world.pods_of("wide").await.iter().map(|pod| pod.name_any()).collect();
    world.edit("wide", json!({"parallelism": 1})).await;
    world.until("wide", "has shrunk", |s| s.active == Some(1)).await;
    let left: Vec<_> = world.pods_of("wide").await.into_iter().filter(is_active).map(|pod| pod.name_any()).collect();
    assert_eq!(left.len(), 1);
    for name in before.iter().filter(|name| !left.contains(name)) {
        world.until_event("wide", "SuccessfulDelete", &format!("Deleted pod: {name}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn more_successes_than_were_asked_for_are_told() {
    let world = World::new().await;
    for name in ["one", "two"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "seek"}, "annotations": {"test/runs": "1"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}});
        let pod = serde_json::from_value(pod).expect("a pod");
        world.pods().create(&Default::default(), &pod).await.expect("create the pod");
    }
    until("both have ended", async || {
        let pods = world.pods().list(&Default::default()).await.expect("pods").items;
        pods.iter().all(super::kubelet::has_ended).then_some(())
    })
    .await;
    let spec = json!({"manualSelector": true, "selector": {"matchLabels": {"app": "seek"}},
        "template": {"metadata": {"labels": {"app": "seek"}}}});
    world.create("seek", spec, json!({})).await;
    let job = world.until_condition("seek", "Complete").await;
    assert_eq!(counts(&job)[3], 2);
    let message = "Too many succeeded pods running after completion count reached";
    world.until_event("seek", "TooManySucceededPods", message).await;
}

/// A world whose first deletion of a pod is refused, and whose Jobs have a completion mode that does not exist if `strange`.
async fn meddled(refusals: u32, strange: bool) -> World {
    let (server, clock) = server(Gates::default()).await;
    let inner = server.service_as(User::new("tester", &[MASTERS]));
    let left = Arc::new(AtomicU32::new(refusals));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, left) = (inner.clone(), left.clone());
        async move {
            let path = request.uri().path().to_owned();
            let deletes = *request.method() == Method::DELETE && path.contains("/pods/");
            if deletes && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no luck today",
                    "reason": "InternalError", "code": 500});
                let body = Full::new(Bytes::from(body.to_string())).map_err(BoxError::from).boxed_unsync();
                let refusal = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR).body(body);
                return Ok(refusal.expect("a response"));
            }
            let is_list = strange && path == "/apis/batch/v1/jobs";
            let answer = inner.oneshot(request).await?;
            Ok::<_, BoxError>(answer.map(|body| {
                let body = body.map_frame(move |frame| match frame.into_data() {
                    Ok(data) if is_list => {
                        let text = String::from_utf8_lossy(&data).replace("NonIndexed", "Backwards");
                        hyper::body::Frame::data(Bytes::from(text))
                    }
                    Ok(data) => hyper::body::Frame::data(data),
                    Err(frame) => frame,
                });
                body.map_err(BoxError::from).boxed_unsync()
            }))
        }
    });
    World::on(Client::new(service, "default"), clock, Gates::default(), None)
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_refused_is_told_and_tried_again() {
    let world = meddled(1, false).await;
    world.create("narrow", json!({"parallelism": 2, "completions": 9}), json!({})).await;
    world.until("narrow", "runs", |s| s.ready == Some(2)).await;
    world.edit("narrow", json!({"parallelism": 0})).await;
    world.until_event("narrow", "FailedDelete", "Error deleting: no luck today").await;
    world.until("narrow", "is empty", |s| s.active.unwrap_or(0) == 0).await;
}

/// As from a version that has a mode more: the server of this one would not store it.
#[tokio::test(start_paused = true)]
async fn a_completion_mode_that_is_not_known_is_told_and_the_job_left_alone() {
    let world = meddled(0, true).await;
    world.create("strange", json!({}), json!({"test/runs": "1"})).await;
    let message = "Skipped Job sync because completion mode is unknown";
    world.until_event("strange", "UnknownCompletionMode", message).await;
    world.pass(60).await;
    assert!(world.pods_of("strange").await.is_empty());
    assert_eq!(start_time(&world.job("strange").await), None);
}
