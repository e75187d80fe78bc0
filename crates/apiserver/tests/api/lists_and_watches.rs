//! What lists and watches promise: one state, every change after it, once, in order.

use std::time::Duration;

use crate::common::{CONFIG_MAPS, World, revision};
use serde_json::json;
use usher_store::{Options as StoreOptions, Store};

fn pair(event: &str, name: &str) -> Option<(String, String)> {
    Some((event.to_owned(), name.to_owned()))
}

#[tokio::test]
async fn a_watch_from_a_lists_revision_sees_exactly_what_came_after() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    let list = world.get(CONFIG_MAPS).await.ok();
    world.config_map("b", json!({})).await;
    world.delete(&format!("{CONFIG_MAPS}/a"), &json!(null)).await.ok();
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", revision(&list))).await;
    assert_eq!(watch.brief().await, pair("ADDED", "b"));
    let gone = watch.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("a")));
    // A deletion has a revision of its own, so that a client that resumes there does not see it again.
    assert!(revision(&gone["object"]) > revision(&list));
    let mut resumed =
        world.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", revision(&gone["object"]))).await;
    world.config_map("c", json!({})).await;
    assert_eq!(resumed.brief().await, pair("ADDED", "c"));
}

#[tokio::test]
async fn a_watch_without_a_revision_begins_with_the_state() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    world.config_map("b", json!({})).await;
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "a"));
    assert_eq!(watch.brief().await, pair("ADDED", "b"));
    world.config_map("c", json!({})).await;
    assert_eq!(watch.brief().await, pair("ADDED", "c"));
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark_that_says_so() {
    let world = World::new().await;
    let a = world.config_map("a", json!({})).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?{query}")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "a"));
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "ConfigMap");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert!(revision(&bookmark["object"]) >= revision(&a));
}

#[tokio::test]
async fn an_object_that_leaves_the_selection_is_deleted_to_the_watcher_and_added_when_it_returns() {
    let world = World::new().await;
    world.config_map("a", json!({"app": "x"})).await;
    world.config_map("other", json!({"app": "y"})).await;
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=1&labelSelector=app%3Dx")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "a"));
    let path = format!("{CONFIG_MAPS}/a");
    world.patch(&path, "merge", &json!({"metadata": {"labels": {"app": "y"}}})).await.ok();
    let left = watch.next().await.unwrap();
    assert_eq!(left["type"], "DELETED");
    // As it was when it was last selected.
    assert_eq!(left["object"]["metadata"]["labels"]["app"], "x");
    world.patch(&path, "merge", &json!({"metadata": {"labels": {"app": "x"}}})).await.ok();
    assert_eq!(watch.brief().await, pair("ADDED", "a"));
    world.patch(&path, "merge", &json!({"data": {"k": "v"}})).await.ok();
    assert_eq!(watch.brief().await, pair("MODIFIED", "a"));
}

#[tokio::test]
async fn a_watch_of_one_name_sees_only_that_name() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    world.config_map("ab", json!({})).await;
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Dab")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "ab"));
    world.patch(&format!("{CONFIG_MAPS}/a"), "merge", &json!({"data": {"k": "v"}})).await.ok();
    world.patch(&format!("{CONFIG_MAPS}/ab"), "merge", &json!({"data": {"k": "v"}})).await.ok();
    assert_eq!(watch.brief().await, pair("MODIFIED", "ab"));
}

#[tokio::test]
async fn a_watch_from_a_forgotten_revision_opens_and_says_expired() {
    let store = Store::open_memory(StoreOptions { max_events: 4, ..StoreOptions::default() });
    let world = World::on(store, Default::default()).await;
    for i in 0..10 {
        world.config_map(&format!("a{i}"), json!({})).await;
    }
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=3")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn pages_show_one_state_whatever_is_written_between_them() {
    let world = World::new().await;
    for name in ["a", "b", "c", "d", "e"] {
        world.config_map(name, json!({})).await;
    }
    let first = world.get(&format!("{CONFIG_MAPS}?limit=2")).await.ok();
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    world.delete(&format!("{CONFIG_MAPS}/c"), &json!(null)).await.ok();
    world.config_map("bb", json!({})).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = world.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await.ok();
    let names = |list: &serde_json::Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = world.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await.ok();
    assert_eq!(names(&third), ["e"]);
    assert!(third["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn an_expired_continue_token_comes_back_with_one_that_goes_on() {
    let store = Store::open_memory(StoreOptions { max_events: 4, ..StoreOptions::default() });
    let world = World::on(store, Default::default()).await;
    for name in ["a", "b", "c"] {
        world.config_map(name, json!({})).await;
    }
    let first = world.get(&format!("{CONFIG_MAPS}?limit=1")).await.ok();
    for i in 0..10 {
        world.config_map(&format!("z{i}"), json!({})).await;
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let expired = world.get(&format!("{CONFIG_MAPS}?limit=1&continue={token}")).await;
    assert_eq!(expired.refused().0, 410);
    let token = expired.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let next = world.get(&format!("{CONFIG_MAPS}?limit=1&continue={token}")).await.ok();
    assert_eq!(next["items"][0]["metadata"]["name"], "b");
}

#[tokio::test(start_paused = true)]
async fn history_is_forgotten_by_age_and_a_continue_token_with_it() {
    let world = World::new().await;
    let server = world.server.clone();
    let minute = Duration::from_secs(60);
    let compaction = tokio::spawn(async move { server.compact_by_age(5 * minute).await });
    for name in ["a", "b", "c"] {
        world.config_map(name, json!({})).await;
    }
    let first = world.get(&format!("{CONFIG_MAPS}?limit=1")).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = format!("{CONFIG_MAPS}?limit=1&continue={token}");
    world.config_map("d", json!({})).await;
    tokio::time::sleep(4 * minute).await;
    assert_eq!(world.get(&rest).await.ok()["items"][0]["metadata"]["name"], "b");
    tokio::time::sleep(3 * minute).await;
    assert_eq!(world.get(&rest).await.refused().1, "Expired");
    world.server.close();
    compaction.await.unwrap();
}

#[tokio::test]
async fn a_page_of_a_selection_is_full_however_far_apart_the_matches_are() {
    let world = World::new().await;
    for i in 0..30 {
        world.config_map(&format!("n{i:02}"), json!({"odd": if i % 10 == 9 { "yes" } else { "no" }})).await;
    }
    let first = world.get(&format!("{CONFIG_MAPS}?limit=2&labelSelector=odd%3Dyes")).await.ok();
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    assert!(first["metadata"].get("remainingItemCount").is_none());
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = world.get(&format!("{CONFIG_MAPS}?limit=2&labelSelector=odd%3Dyes&continue={token}")).await.ok();
    assert_eq!(rest["items"][0]["metadata"]["name"], "n29");
    assert!(rest["metadata"].get("continue").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_not_there_yet_is_waited_for_and_then_refused_with_a_hint_to_retry() {
    let world = World::new().await;
    let answer = world.get(&format!("{CONFIG_MAPS}?resourceVersion=999999&resourceVersionMatch=NotOlderThan")).await;
    let (code, reason, message) = answer.refused();
    assert_eq!((code, reason.as_str()), (504, "Timeout"));
    assert!(message.starts_with("Timeout: Too large resource version: 999999, current: "), "{message}");
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test(start_paused = true)]
async fn a_watch_with_initial_events_from_the_future_opens_and_says_so() {
    let world = World::new().await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=999999";
    let event = world.watch(&format!("{CONFIG_MAPS}?{query}")).await.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["reason"]), (&json!("ERROR"), &json!("Timeout")));
}

#[tokio::test]
async fn a_page_goes_on_at_its_own_revision_and_at_no_other() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.config_map(name, json!({})).await;
    }
    let first = world.get(&format!("{CONFIG_MAPS}?limit=1")).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (code, _, message) = world.get(&format!("{CONFIG_MAPS}?continue={token}&resourceVersion=1")).await.refused();
    assert_eq!((code, message.as_str()), (400, "specifying resource version is not allowed when using continue"));
    assert_eq!(world.get(&format!("{CONFIG_MAPS}?continue={token}&resourceVersion=0")).await.code, 200);
}

#[tokio::test]
async fn an_exact_list_shows_the_past() {
    let world = World::new().await;
    let a = world.config_map("a", json!({})).await;
    world.config_map("b", json!({})).await;
    let query = format!("resourceVersion={}&resourceVersionMatch=Exact", revision(&a));
    let past = world.get(&format!("{CONFIG_MAPS}?{query}")).await.ok();
    assert_eq!(past["items"].as_array().unwrap().len(), 1);
    assert_eq!(revision(&past), revision(&a));
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_after_the_time_the_client_asked_for() {
    let world = World::new().await;
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=5")).await;
    let started = tokio::time::Instant::now();
    assert!(watch.next().await.is_none());
    assert_eq!(started.elapsed().as_secs(), 5);
}

#[tokio::test]
async fn watches_end_cleanly_when_the_server_stops() {
    let world = World::new().await;
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    world.server.close();
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_watcher_that_does_not_read_costs_nothing_and_is_told_when_it_comes_back_too_late() {
    let store = Store::open_memory(StoreOptions { max_events: 50, ..StoreOptions::default() });
    let world = World::on(store, Default::default()).await;
    let mut stalled = world.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    for i in 0..200 {
        world.config_map(&format!("a{i}"), json!({})).await;
    }
    assert!(world.server.store().stats().history_events <= 50);
    let event = stalled.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["reason"]), (&json!("ERROR"), &json!("Expired")));
    assert!(stalled.next().await.is_none());
}

#[tokio::test]
async fn a_table_has_its_columns_in_the_first_event_of_a_watch_only() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let list = world.send(http::Method::GET, CONFIG_MAPS, &table, "").await.ok();
    assert_eq!(list["kind"], "Table");
    assert_eq!(list["columnDefinitions"][0]["name"], "Name");
    assert_eq!(list["rows"][0]["cells"][0], "a");
    assert_eq!(list["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let partial = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    let list = world.send(http::Method::GET, CONFIG_MAPS, &partial, "").await.ok();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    assert!(list["items"][0].get("data").is_none());
}
