//! Clients that take nothing but protobuf.

use crate::common::{Answer, CONFIG_MAPS, World};
use http::Method;
use serde_json::{Value, json};
use usher_schema::{builtin, protobuf};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn ask(world: &World, method: Method, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    world.send(method, path, &[("accept", PROTOBUF), ("content-type", "application/json")], body).await
}

/// The object in an answer, with the kind its envelope names.
#[track_caller]
fn read(answer: &Answer) -> Value {
    assert_eq!(answer.headers["content-type"], PROTOBUF, "{}", String::from_utf8_lossy(&answer.body));
    open(&answer.body)
}

fn open(bytes: &[u8]) -> Value {
    let (meta, raw) = protobuf::decode_unknown(bytes).unwrap();
    let (group, version) = meta.api_version.split_once('/').unwrap_or(("", &meta.api_version));
    let mut object = protobuf::to_json(builtin::kind(group, version, &meta.kind).unwrap(), raw).unwrap();
    object["kind"] = meta.kind.into();
    object["apiVersion"] = meta.api_version.into();
    object
}

#[tokio::test]
async fn objects_lists_and_errors_are_answered_in_protobuf() {
    let world = World::new().await;
    let made = ask(&world, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).await;
    assert_eq!(made.code, 201);
    assert_eq!(read(&made), world.get(&format!("{CONFIG_MAPS}/a")).await.ok());
    let got = ask(&world, Method::GET, &format!("{CONFIG_MAPS}/a"), &Value::Null).await;
    assert_eq!(got.body, made.body);
    let list = read(&ask(&world, Method::GET, CONFIG_MAPS, &Value::Null).await);
    let plain = world.get(CONFIG_MAPS).await.ok();
    assert_eq!((&list["kind"], &list["items"]), (&json!("ConfigMapList"), &plain["items"]));
    let missing = ask(&world, Method::GET, &format!("{CONFIG_MAPS}/b"), &Value::Null).await;
    let status = read(&missing);
    assert_eq!((missing.code, &status["reason"], &status["details"]["name"]), (404, &json!("NotFound"), &json!("b")));
    let gone = read(&ask(&world, Method::DELETE, &format!("{CONFIG_MAPS}/a"), &Value::Null).await);
    assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")));
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/x", "verb": "get"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(read(&ask(&world, Method::POST, path, &review).await)["status"]["allowed"], true);
}

#[tokio::test]
async fn a_watch_is_a_row_of_frames() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    world.config_map("b", json!({})).await;
    let path = format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=1");
    let answer =
        world.send(Method::GET, &path, &[("accept", "application/vnd.kubernetes.protobuf;stream=watch")], "").await;
    assert_eq!(answer.headers["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
    let mut rest = &answer.body[..];
    let mut names = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        // `type` and its text, then `object` around `raw`, whose beginning the envelope's own mark tells.
        assert_eq!(&frame[..7], b"\x0a\x05ADDED");
        let envelope = frame.windows(4).position(|w| w == b"k8s\0").unwrap();
        names.push(open(&frame[envelope..])["metadata"]["name"].clone());
        rest = after;
    }
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn custom_resources_are_not_acceptable_in_protobuf_but_their_metadata_is() {
    let world = World::new().await;
    world.server.clone().start_custom_resources();
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.ok();
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    while world.post(widgets, &widget).await.code == 404 {
        tokio::task::yield_now().await;
    }
    let refused = ask(&world, Method::GET, &format!("{widgets}/w"), &Value::Null).await;
    let status = read(&refused);
    assert_eq!((refused.code, &status["reason"]), (406, &json!("NotAcceptable")));
    assert_eq!(
        status["message"],
        "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
    );
    let accept = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let metadata = read(&world.send(Method::GET, widgets, &[("accept", accept)], "").await);
    assert_eq!(metadata["items"][0]["metadata"]["name"], "w");
    let table = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
    assert_eq!(world.send(Method::GET, CONFIG_MAPS, &[("accept", table)], "").await.refused().0, 406);
}

#[tokio::test]
async fn errors_and_outcomes_come_in_yaml_to_who_asks_for_yaml() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    let path = format!("{CONFIG_MAPS}/a");
    for (method, expected) in [(Method::DELETE, "Success"), (Method::GET, "Failure")] {
        let answer = world.send(method, &path, &[("accept", "application/yaml")], "").await;
        assert_eq!(answer.headers["content-type"], "application/yaml");
        let status: Value = serde_saphyr::from_slice(&answer.body).unwrap();
        assert_eq!(status["status"], expected, "{status:#}");
    }
}
