//! Who waits in a queue: paths, options and discovery. Who really waits is made up here.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use usher_apiserver::visibility::{Line, PendingWorkloads};

use super::common::World;

const GROUP: &str = "/apis/visibility.kueue.x-k8s.io";

/// Answers with what was asked; knows every queue but `x`.
struct Echo;

impl PendingWorkloads for Echo {
    fn items(&self, line: Line, offset: usize, limit: usize) -> BoxFuture<'_, Option<Vec<Value>>> {
        let name = match line {
            Line::ClusterQueue(name) => name,
            Line::LocalQueue { namespace, name } => format!("{namespace}/{name}"),
        };
        let known = !name.ends_with('x');
        Box::pin(async move { known.then(|| vec![json!([name, offset, limit])]) })
    }
}

async fn world() -> World {
    let world = World::new().await;
    world.server.serve_pending_workloads(Arc::new(Echo));
    world
}

async fn items(world: &World, path: &str) -> Value {
    world.get(&format!("{GROUP}/v1beta2/{path}")).await.ok()["items"].clone()
}

#[tokio::test]
async fn both_kinds_of_queues_are_asked_by_their_own_path() {
    let world = world().await;
    assert_eq!(items(&world, "clusterqueues/q/pendingworkloads").await, json!([["q", 0, 1000]]));
    assert_eq!(items(&world, "namespaces/n/localqueues/q/pendingworkloads").await, json!([["n/q", 0, 1000]]));
    let answer = world.get(&format!("{GROUP}/v1beta1/clusterqueues/q/pendingworkloads")).await.ok();
    assert_eq!(answer["apiVersion"], "visibility.kueue.x-k8s.io/v1beta1");
    assert_eq!(answer["kind"], "PendingWorkloadsSummary");
}

#[tokio::test]
async fn offset_and_limit_are_kept_within_bounds() {
    let world = world().await;
    for (query, offset, limit) in [
        ("offset=7&limit=3", 7, 3),
        ("limit=0", 0, 1000),
        ("limit=-1", 0, 0),
        ("offset=-5", 0, 1000),
        ("limit=9999999", 0, 100_000),
    ] {
        let path = format!("clusterqueues/q/pendingworkloads?{query}");
        assert_eq!(items(&world, &path).await, json!([["q", offset, limit]]), "{query}");
    }
    let refused = world.get(&format!("{GROUP}/v1beta2/clusterqueues/q/pendingworkloads?offset=a")).await.refused();
    assert_eq!((refused.0, refused.1.as_str()), (400, "BadRequest"));
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_not_found_and_neither_is_any_other_path() {
    let world = world().await;
    let refused = |path: &'static str| {
        let world = &world;
        async move { world.get(&format!("{GROUP}/v1beta2/{path}")).await.refused() }
    };
    assert_eq!(
        refused("clusterqueues/x/pendingworkloads").await.2,
        "clusterqueue.visibility.kueue.x-k8s.io \"x\" not found"
    );
    assert_eq!(
        refused("namespaces/n/localqueues/x/pendingworkloads").await.2,
        "localqueue.visibility.kueue.x-k8s.io \"x\" not found"
    );
    for path in [
        "clusterqueues",
        "clusterqueues/q",
        "clusterqueues/q/other",
        "localqueues/q/pendingworkloads",
        "namespaces/n/clusterqueues/q/pendingworkloads",
    ] {
        let (code, _, message) = refused(path).await;
        assert_eq!((code, message.as_str()), (404, "the server could not find the requested resource"), "{path}");
    }
    let path = format!("{GROUP}/v1beta2/clusterqueues/q/pendingworkloads");
    assert_eq!(world.post(&path, &json!({})).await.code, 405);
}

#[tokio::test]
async fn the_group_is_served_once_somebody_knows_who_waits() {
    let world = World::new().await;
    assert_eq!(world.get(GROUP).await.code, 404);
    assert_eq!(world.get(&format!("{GROUP}/v1beta2/clusterqueues/q/pendingworkloads")).await.code, 404);
    world.server.serve_pending_workloads(Arc::new(Echo));
    let group = world.get(GROUP).await.ok();
    assert_eq!(group["preferredVersion"]["version"], "v1beta2");
    let list = world.get(&format!("{GROUP}/v1beta2")).await.ok();
    let named: Vec<(&str, &Value)> =
        list["resources"].as_array().unwrap().iter().map(|r| (r["name"].as_str().unwrap(), &r["verbs"])).collect();
    assert_eq!(
        named,
        [
            ("clusterqueues", &json!([])),
            ("clusterqueues/pendingworkloads", &json!(["get"])),
            ("localqueues", &json!([])),
            ("localqueues/pendingworkloads", &json!(["get"])),
        ]
    );
}
