//! What creates, updates, patches and deletes promise.

use crate::common::{CONFIG_MAPS, World, revision};
use http::Method;
use serde_json::{Value, json};
use usher_apiserver::Options;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job(name: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"suspend": true, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
}

#[tokio::test]
async fn a_name_is_generated_from_its_base_with_five_characters() {
    let world = World::new().await;
    let made = world.post(CONFIG_MAPS, &json!({"metadata": {"generateName": "run-"}})).await.ok();
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("run-") && name.len() == 9, "{name}");
    let long = "x".repeat(70);
    let made = world.post(CONFIG_MAPS, &json!({"metadata": {"generateName": long}})).await.ok();
    assert_eq!(made["metadata"]["name"].as_str().unwrap().len(), 63);
}

#[tokio::test]
async fn the_same_name_twice_already_exists() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    let (code, reason, message) = world.post(CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await.refused();
    assert_eq!((code, reason.as_str(), message.as_str()), (409, "AlreadyExists", "configmaps \"a\" already exists"));
}

#[tokio::test]
async fn a_dry_run_shows_the_result_and_stores_nothing() {
    let world = World::new().await;
    let before = world.server.store().revision();
    let made = world.post(&format!("{JOBS}?dryRun=All"), &job("a")).await.ok();
    assert_eq!(made["spec"]["backoffLimit"], 6);
    assert_eq!(world.server.store().revision(), before);
    assert_eq!(world.get(&format!("{JOBS}/a")).await.code, 404);
    world.post(JOBS, &job("a")).await.ok();
    let gone = world.send(Method::DELETE, &format!("{JOBS}/a?dryRun=All"), &[], "").await;
    assert_eq!(gone.code, 200);
    assert_eq!(world.get(&format!("{JOBS}/a")).await.code, 200);
    let (code, _, _) = world.post(&format!("{JOBS}?dryRun=Some"), &job("b")).await.refused();
    assert_eq!(code, 422);
}

#[tokio::test]
async fn an_update_from_an_old_version_conflicts_and_one_without_a_version_does_not() {
    let world = World::new().await;
    let mut old = world.config_map("a", json!({})).await;
    let path = format!("{CONFIG_MAPS}/a");
    world.patch(&path, "merge", &json!({"data": {"k": "1"}})).await.ok();
    old["data"] = json!({"k": "2"});
    let (code, reason, message) = world.put(&path, &old).await.refused();
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert_eq!(
        message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the \
         latest version and try again"
    );
    old["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(world.put(&path, &old).await.ok()["data"]["k"], "2");
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_revision() {
    let world = World::new().await;
    let made = world.post(JOBS, &job("a")).await.ok();
    let path = format!("{JOBS}/a");
    let same = world.put(&path, &made).await.ok();
    assert_eq!(revision(&same), revision(&made));
    let patched = world.patch(&path, "merge", &json!({"spec": {"suspend": true}})).await.ok();
    assert_eq!(revision(&patched), revision(&made));
}

#[tokio::test]
async fn generation_counts_changes_of_the_spec_and_nothing_else() {
    let world = World::new().await;
    world.post(JOBS, &job("a")).await.ok();
    let path = format!("{JOBS}/a");
    let generation = |o: &Value| o["metadata"]["generation"].as_i64().unwrap();
    let labelled = world.patch(&path, "merge", &json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
    assert_eq!(generation(&labelled), 1);
    let resized = world.patch(&path, "merge", &json!({"spec": {"parallelism": 3}})).await.ok();
    assert_eq!(generation(&resized), 2);
    let status = json!({"status": {"conditions": [{"type": "Suspended", "status": "True"}]}});
    let seen = world.patch(&format!("{path}/status"), "merge", &status).await.ok();
    assert_eq!((generation(&seen), &seen["status"]["conditions"][0]["type"]), (2, &json!("Suspended")));
}

#[tokio::test]
async fn status_is_written_through_its_subresource_only_and_spec_never_through_it() {
    let world = World::new().await;
    let mut body = job("a");
    body["status"] = json!({"active": 5});
    let made = world.post(JOBS, &body).await.ok();
    assert!(made["status"].get("active").is_none());
    let path = format!("{JOBS}/a");
    let main = world.patch(&path, "merge", &json!({"status": {"active": 1}})).await.ok();
    assert!(main["status"].get("active").is_none());
    let both = json!({"spec": {"parallelism": 9}, "status": {"active": 1}});
    let status = world.patch(&format!("{path}/status"), "merge", &both).await.ok();
    assert_eq!((&status["status"]["active"], &status["spec"]["parallelism"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn each_kind_of_patch_does_what_it_is_for() {
    let world = World::new().await;
    let mut body = job("a");
    body["spec"]["template"]["spec"]["containers"] =
        json!([{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}, {"name": "d", "image": "j"}]);
    world.post(JOBS, &body).await.ok();
    let path = format!("{JOBS}/a");
    let json_patch = json!([{"op": "test", "path": "/spec/parallelism", "value": 1}, {"op": "add", "path": "/metadata/labels/x", "value": "y"}]);
    assert_eq!(world.patch(&path, "json", &json_patch).await.ok()["metadata"]["labels"]["x"], "y");
    let failing = json!([{"op": "test", "path": "/spec/parallelism", "value": 2}]);
    assert_eq!(world.patch(&path, "json", &failing).await.refused().0, 422);
    let merge = json!({"metadata": {"labels": {"x": null}}});
    assert!(world.patch(&path, "merge", &merge).await.ok()["metadata"]["labels"].get("x").is_none());
    // Containers are told apart by name, so a strategic patch changes one and keeps the other.
    let strategic = json!({"spec": {"template": {"spec": {"containers": [{"name": "d", "resources": {"limits": {"cpu": "1000m"}}}]}}}});
    let patched = world.patch(&path, "strategic-merge", &strategic).await.ok();
    let containers = patched["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    assert_eq!(containers[1]["resources"]["limits"]["cpu"], "1");
    assert_eq!(world.patch(&path, "unknown", &json!({})).await.refused().0, 415);
}

#[tokio::test]
async fn apply_creates_conflicts_forces_and_lets_go() {
    let world = World::new().await;
    let path = format!("{CONFIG_MAPS}/a");
    let config =
        |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let apply =
        |manager: &str, force: bool| format!("{path}?fieldManager={manager}{}", if force { "&force=true" } else { "" });
    assert_eq!(world.patch(&path, "apply", &config(json!({}))).await.refused().0, 422);
    let made = world.patch(&apply("one", false), "apply", &config(json!({"k": "1", "l": "1"}))).await;
    assert_eq!(made.code, 201);
    let refused = world.patch(&apply("two", false), "apply", &config(json!({"k": "2"}))).await;
    let (code, reason, message) = refused.refused();
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"one\": .data.k");
    assert_eq!(
        refused.json()["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.k"}])
    );
    let forced = world.patch(&apply("two", true), "apply", &config(json!({"k": "2"}))).await.ok();
    assert_eq!(forced["data"], json!({"k": "2", "l": "1"}));
    let less = world.patch(&apply("one", false), "apply", &config(json!({}))).await.ok();
    assert_eq!(less["data"], json!({"k": "2"}));
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_about_or_ignored_as_asked() {
    let world = World::new().await;
    let mut body = job("a");
    body["spec"]["parallelisms"] = json!(3);
    let (code, _, message) = world.post(&format!("{JOBS}?fieldValidation=Strict"), &body).await.refused();
    assert_eq!(code, 400);
    assert_eq!(
        message,
        "Job in version \"v1\" cannot be handled as a Job: strict decoding error: unknown field \"spec.parallelisms\""
    );
    let warned = world.post(JOBS, &body).await;
    assert_eq!(warned.warnings(), ["299 - \"unknown field \\\"spec.parallelisms\\\"\""]);
    assert!(warned.ok()["spec"].get("parallelisms").is_none());
    body["metadata"]["name"] = json!("b");
    let ignored = world.post(&format!("{JOBS}?fieldValidation=Ignore"), &body).await;
    assert_eq!((ignored.code, ignored.warnings().len()), (201, 0));
    let twice = r#"{"metadata":{"name":"c"},"data":{"k":"1","k":"2"}}"#;
    let headers = [("content-type", "application/json")];
    let strict = world.send(Method::POST, &format!("{CONFIG_MAPS}?fieldValidation=Strict"), &headers, twice).await;
    assert!(strict.refused().2.contains("duplicate field \"data.k\""), "{:?}", strict.refused());
}

#[tokio::test]
async fn an_object_with_finalizers_waits_for_them_and_goes_with_the_last() {
    let world = World::new().await;
    let body = json!({"metadata": {"name": "a", "finalizers": ["example.com/x"]}});
    world.post(CONFIG_MAPS, &body).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let marked = world.delete(&path, &json!(null)).await.ok();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    let again = world.post(CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await.refused();
    assert_eq!(again.2, "object is being deleted: configmaps \"a\" already exists");
    let added = json!({"metadata": {"finalizers": ["example.com/x", "example.com/y"]}});
    let (code, _, message) = world.patch(&path, "merge", &added).await.refused();
    assert_eq!(code, 422);
    assert!(message.contains("metadata.finalizers: Forbidden: no new finalizers can be added"), "{message}");
    world.patch(&path, "merge", &json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(world.get(&path).await.code, 404);
}

#[tokio::test]
async fn propagation_becomes_finalizers_for_the_garbage_collector() {
    let world = World::new().await;
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        world.post(JOBS, &job("a")).await.ok();
        let path = format!("{JOBS}/a");
        let marked = world.delete(&path, &json!({"propagationPolicy": policy})).await.ok();
        assert_eq!(marked["metadata"]["finalizers"], json!([finalizer]));
        let gone = world.delete(&path, &json!({"propagationPolicy": "Background"})).await.ok();
        assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")));
    }
    world.post(JOBS, &job("b")).await.ok();
    let unsaid = world.delete(&format!("{JOBS}/b"), &json!(null)).await;
    assert!(unsaid.warnings()[0].contains("child pods are preserved by default when jobs are deleted"));
    assert_eq!(unsaid.ok()["metadata"]["finalizers"], json!(["orphan"]));
    let bad = world.delete(&format!("{JOBS}/b"), &json!({"propagationPolicy": "Sideways"})).await.refused();
    assert_eq!(bad.0, 422);
}

#[tokio::test]
async fn a_delete_may_insist_on_identity_and_version() {
    let world = World::new().await;
    let a = world.config_map("a", json!({})).await;
    let path = format!("{CONFIG_MAPS}/a");
    let (code, reason, _) = world.delete(&path, &json!({"preconditions": {"uid": "other"}})).await.refused();
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert_eq!(world.delete(&path, &json!({"preconditions": {"resourceVersion": "1"}})).await.refused().0, 409);
    let uid = a["metadata"]["uid"].clone();
    let gone = world.delete(&path, &json!({"preconditions": {"uid": uid}})).await.ok();
    assert_eq!(gone["details"], json!({"name": "a", "kind": "configmaps", "uid": uid}));
}

#[tokio::test]
async fn a_collection_is_deleted_as_far_as_it_is_selected() {
    let world = World::new().await;
    world.config_map("a", json!({"x": "1"})).await;
    world.config_map("b", json!({"x": "2"})).await;
    let gone = world.send(Method::DELETE, &format!("{CONFIG_MAPS}?labelSelector=x%3D1"), &[], "").await.ok();
    assert_eq!(gone["items"].as_array().unwrap().len(), 1);
    let left = world.get(CONFIG_MAPS).await.ok();
    assert_eq!(left["items"][0]["metadata"]["name"], "b");
}

#[tokio::test]
async fn a_collection_goes_a_page_at_a_time_where_there_is_a_limit_and_is_shown_as_it_was() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        let held = json!({"metadata": {"name": name, "finalizers": ["example.com/hold"]}});
        world.post(CONFIG_MAPS, &held).await.ok();
    }
    let gone = world.send(Method::DELETE, &format!("{CONFIG_MAPS}?limit=2"), &[], "").await.ok();
    assert_eq!(gone["kind"], "ConfigMapList");
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    assert_eq!(gone["metadata"]["remainingItemCount"], 1);
    assert!(gone["metadata"]["continue"].is_string());
    assert!(gone["items"][0]["metadata"].get("deletionTimestamp").is_none(), "{gone:#}");
    let left = world.get(CONFIG_MAPS).await.ok();
    let marked = |i: usize| left["items"][i]["metadata"].get("deletionTimestamp").is_some();
    assert_eq!((marked(0), marked(1), marked(2)), (true, true, false));
}

#[tokio::test]
async fn a_dry_run_of_a_collection_deletes_nothing_and_a_precondition_holds_for_each() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    let shown = world.delete(CONFIG_MAPS, &json!({"dryRun": ["All"]})).await.ok();
    assert_eq!(shown["items"].as_array().unwrap().len(), 1);
    let refused = world.delete(CONFIG_MAPS, &json!({"preconditions": {"uid": "another"}})).await;
    assert_eq!(refused.refused().0, 409);
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/a")).await.code, 200);
}

#[tokio::test]
async fn a_body_of_delete_options_leaves_nothing_to_the_query() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    let path = format!("{CONFIG_MAPS}/a");
    world.delete(&format!("{path}?dryRun=All"), &json!({"propagationPolicy": "Background"})).await.ok();
    assert_eq!(world.get(&path).await.code, 404);
}

#[tokio::test]
async fn nothing_new_in_a_namespace_that_is_missing_or_going() {
    let world = World::new().await;
    let (code, reason, message) =
        world.post("/api/v1/namespaces/nope/configmaps", &json!({"metadata": {"name": "a"}})).await.refused();
    assert_eq!((code, reason.as_str(), message.as_str()), (404, "NotFound", "namespaces \"nope\" not found"));
    world.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.ok();
    world.delete("/api/v1/namespaces/team", &json!(null)).await.ok();
    let refused = world.post("/api/v1/namespaces/team/configmaps", &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(refused.refused().0, 403);
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    assert_eq!(world.delete("/api/v1/namespaces/default", &json!(null)).await.refused().0, 403);
}

#[tokio::test]
async fn a_namespace_that_is_going_stays_until_it_is_finalized() {
    let world = World::new().await;
    let path = "/api/v1/namespaces/team";
    world.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.ok();
    world.delete(path, &json!(null)).await.ok();
    let conditions = json!({"status": {"conditions": [{"type": "NamespaceContentRemaining", "status": "True"}]}});
    world.patch(&format!("{path}/status"), "merge", &conditions).await.ok();
    let mut namespace = world.get(path).await.ok();
    assert_eq!(namespace["status"]["phase"], "Terminating");
    assert_eq!(namespace["status"]["conditions"][0]["type"], "NamespaceContentRemaining");
    namespace["spec"] = json!({"finalizers": []});
    world.put(&format!("{path}/finalize"), &namespace).await.ok();
    assert_eq!(world.get(path).await.code, 404);
}

#[tokio::test]
async fn the_body_must_be_what_the_url_says() {
    let world = World::new().await;
    let (code, _, message) =
        world.put(&format!("{CONFIG_MAPS}/a"), &json!({"metadata": {"name": "b"}})).await.refused();
    assert_eq!((code, message.as_str()), (400, "the name of the object (b) does not match the name on the URL (a)"));
    let elsewhere = json!({"metadata": {"name": "a", "namespace": "other"}});
    let (code, _, message) = world.post(CONFIG_MAPS, &elsewhere).await.refused();
    assert_eq!(code, 400);
    assert_eq!(message, "the namespace of the provided object does not match the namespace sent on the request");
    let version = json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let (code, _, message) = world.post(CONFIG_MAPS, &version).await.refused();
    assert_eq!(code, 400);
    assert_eq!(message, "the API version in the data (v2) does not match the expected API version (v1)");
}

#[tokio::test]
async fn hostile_bodies_get_their_error_and_harm_nobody() {
    let world = World::new().await;
    let json_type = [("content-type", "application/json")];
    let deep = format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":{}1{}}}", "[".repeat(50_000), "]".repeat(50_000));
    let huge = format!("{{\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(4 * 1024 * 1024));
    let yaml_bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
        d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
        g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Vec<u8>, u16);
    let cases: Vec<Case<'_>> = vec![
        ("not JSON", &json_type, b"{\"metadata\":".to_vec(), 400),
        ("not an object", &json_type, b"[1]".to_vec(), 400),
        ("wrong type", &json_type, br#"{"metadata":{"name":"a"},"data":"x"}"#.to_vec(), 400),
        ("nested without end", &json_type, deep.into_bytes(), 400),
        ("too large", &json_type, huge.into_bytes(), 413),
        ("empty", &json_type, Vec::new(), 400),
        ("not YAML", &[("content-type", "application/yaml")], b"a: [".to_vec(), 400),
        ("a YAML bomb", &[("content-type", "application/yaml")], yaml_bomb.as_bytes().to_vec(), 400),
        (
            "not protobuf",
            &[("content-type", "application/vnd.kubernetes.protobuf")],
            b"k8s\0\xff\xff\xff".to_vec(),
            400,
        ),
        ("unknown form", &[("content-type", "text/plain")], b"hi".to_vec(), 415),
        // As Go does, what is not UTF-8 becomes U+FFFD, which no name may contain.
        ("not UTF-8", &json_type, b"{\"metadata\":{\"name\":\"\xff\"}}".to_vec(), 422),
    ];
    for (what, headers, body, expected) in cases {
        let answer = world.send(Method::POST, CONFIG_MAPS, headers, body).await;
        assert_eq!(answer.refused().0, expected, "{what}: {:?}", answer.refused());
    }
    world.config_map("still-here", json!({})).await;
}

#[tokio::test]
async fn a_json_patch_cannot_nest_an_object_past_what_can_be_read() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    let mut value = json!("x");
    for _ in 0..100 {
        value = json!([value]);
    }
    let mut operations = vec![json!({"op": "add", "path": "/data", "value": {"k": value}})];
    // Each step puts the whole of it one level deeper into a copy of itself.
    for _ in 0..200 {
        operations.push(json!({"op": "copy", "from": "/data", "path": "/data/k/0"}));
    }
    let refused = world.patch(&format!("{CONFIG_MAPS}/a"), "json", &json!(operations)).await.refused();
    assert!(matches!(refused.0, 400 | 413 | 422), "{refused:?}");
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/a")).await.code, 200);
}

#[tokio::test]
async fn bad_paths_and_verbs_are_named_as_such() {
    let world = World::new().await;
    for (method, path, code, reason) in [
        (Method::GET, "/api/v1/nonsense", 404, "NotFound"),
        (Method::GET, "/apis/nope.example.com/v1/things", 404, "NotFound"),
        (Method::GET, "/nowhere", 404, "NotFound"),
        (Method::POST, "/api/v1/configmaps", 405, "MethodNotAllowed"),
        (Method::POST, "/api/v1/namespaces/default/configmaps/a", 405, "MethodNotAllowed"),
        (Method::GET, "/api/v1/namespaces/default/namespaces", 404, "NotFound"),
        (Method::PUT, "/api/v1/namespaces/default/configmaps", 405, "MethodNotAllowed"),
    ] {
        let refused = world.send(method.clone(), path, &[("content-type", "application/json")], "{}").await.refused();
        assert_eq!((refused.0, refused.1.as_str()), (code, reason), "{method} {path}");
    }
    let (code, _, message) = world.get(&format!("{CONFIG_MAPS}?labelSelector=a%20b")).await.refused();
    assert_eq!(code, 400);
    assert!(message.contains("unable to parse requirement"), "{message}");
    assert_eq!(world.get(&format!("{CONFIG_MAPS}?fieldSelector=spec.x%3Dy")).await.refused().0, 400);
    assert_eq!(world.get(&format!("{CONFIG_MAPS}?limit=x")).await.refused().0, 400);
    assert_eq!(world.get(&format!("{CONFIG_MAPS}?continue=zzz")).await.refused().0, 400);
    let accept = [("accept", "application/xml")];
    assert_eq!(world.send(Method::GET, CONFIG_MAPS, &accept, "").await.refused().0, 406);
}

#[tokio::test]
async fn refused_updates_are_counted_under_the_names_operators_watch() {
    let world = World::with(Options::default()).await;
    world.post(JOBS, &job("a")).await.ok();
    let immutable = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "other"}]}}}});
    assert_eq!(world.patch(&format!("{JOBS}/a"), "strategic-merge", &immutable).await.refused().0, 422);
    let page = String::from_utf8(world.get("/metrics").await.body.to_vec()).unwrap();
    let line = page
        .lines()
        .find(|l| l.starts_with("apiserver_request_total{") && l.contains("code=\"422\""))
        .unwrap_or_else(|| panic!("{page}"));
    for label in ["verb=\"PATCH\"", "group=\"batch\"", "version=\"v1\"", "resource=\"jobs\"", "scope=\"resource\""] {
        assert!(line.contains(label), "{line}");
    }
    assert!(line.ends_with(" 1"), "{line}");
}

#[tokio::test]
async fn the_page_of_metrics_has_what_operators_watch() {
    let world = World::new().await;
    world.config_map("a", json!({})).await;
    world.get(CONFIG_MAPS).await.ok();
    let mut watch = world.watch(&format!("{CONFIG_MAPS}?watch=true")).await;
    watch.next().await.unwrap();
    let answer = world.get("/metrics").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let page = String::from_utf8(answer.body.to_vec()).unwrap();
    let figure = |start: &str, labels: &[&str]| {
        let fits = |l: &&str| l.starts_with(start) && labels.iter().all(|label| l.contains(label));
        let line = page.lines().find(fits).unwrap_or_else(|| panic!("no {start} {labels:?} in\n{page}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let list = ["verb=\"LIST\"", "resource=\"configmaps\"", "scope=\"namespace\""];
    assert_eq!(figure("apiserver_request_sli_duration_seconds_count{", &list), 1.0);
    assert_eq!(figure("apiserver_response_sizes_count{", &list), 1.0);
    assert!(figure("apiserver_response_sizes_sum{", &list) > 100.0);
    assert_eq!(figure("apiserver_resource_objects{", &["resource=\"configmaps\"", "group=\"\""]), 1.0);
    assert!(figure("apiserver_storage_objects{", &["resource=\"clusterroles.rbac.authorization.k8s.io\""]) > 10.0);
    assert_eq!(figure("apiserver_watch_events_total{", &["resource=\"configmaps\""]), 1.0);
    assert_eq!(figure("apiserver_longrunning_requests{", &["verb=\"WATCH\""]), 1.0);
    let step = ["type=\"admit\"", "operation=\"CREATE\"", "rejected=\"false\""];
    assert!(figure("apiserver_admission_step_admission_duration_seconds_count{", &step) >= 1.0);
    assert_eq!(figure("kubernetes_build_info{", &["major=\"1\""]), 1.0);
    if cfg!(target_os = "linux") {
        assert!(figure("process_resident_memory_bytes ", &[]) > 1e6);
        assert!(figure("process_start_time_seconds ", &[]) > 1.6e9);
        assert!(figure("process_open_fds ", &[]) >= 1.0);
    }
    assert!(page.contains("# TYPE apiserver_request_total counter\n"), "{page}");
    assert!(!page.contains("# EOF"));
    let open =
        world.send(Method::GET, "/metrics", &[("accept", "application/openmetrics-text;version=1.0.0")], "").await;
    assert!(open.body.ends_with(b"# EOF\n"));
}

#[tokio::test]
async fn names_that_clients_make_up_do_not_become_metrics() {
    let world = World::new().await;
    assert_eq!(world.get("/apis/made-up.example.com/v1/inventions").await.code, 404);
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/a/fantasy")).await.code, 404);
    let page = String::from_utf8(world.get("/metrics").await.body.to_vec()).unwrap();
    assert!(!page.contains("inventions") && !page.contains("fantasy"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_right_that_was_taken_away_is_gone_from_the_next_request_on_however_many_ask() {
    use http::Request;
    use tower::ServiceExt;
    use usher_apiserver::auth::identity::User;
    let world = World::new().await;
    let role = json!({"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    world.post(roles, &role).await.ok();
    let binding = json!({"metadata": {"name": "readers"}, "subjects": [{"kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let jane = world.server.service_as(User::new("jane", &[]));
    let ask = || async {
        let request = Request::builder().uri(CONFIG_MAPS).body(http_body_util::Full::new(bytes::Bytes::new())).unwrap();
        jane.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    // Others ask all the time, so that what is derived from the roles is being made anew at every moment.
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let askers: Vec<_> = (0..3)
        .map(|_| {
            let (jane, stop) = (jane.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let body = http_body_util::Full::new(bytes::Bytes::new());
                    let _ = jane.clone().oneshot(Request::builder().uri(CONFIG_MAPS).body(body).unwrap()).await;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for _ in 0..50 {
        world.post(bindings, &binding).await.ok();
        assert_eq!(ask().await, 200);
        world.delete(&format!("{bindings}/readers"), &json!(null)).await.ok();
        assert_eq!(ask().await, 403);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for asker in askers {
        asker.await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_yaml_repeats_is_refused_warned_about_or_ignored_as_asked_and_the_last_counts() {
    let world = World::new().await;
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: dup\ndata:\n  a: \"1\"\n  a: \"2\"\n";
    let yaml = [("content-type", "application/yaml")];
    let apply = [("content-type", "application/apply-patch+yaml")];
    let post = |validation: &str| format!("{CONFIG_MAPS}?dryRun=All&fieldValidation={validation}");
    let patch = |validation: &str| format!("{CONFIG_MAPS}/dup?fieldManager=me&dryRun=All&fieldValidation={validation}");
    let line = "yaml: unmarshal errors:\n  line 7: key \"a\" already set in map";
    let (code, _, message) = world.send(Method::POST, &post("Strict"), &yaml, body).await.refused();
    let kind = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap";
    assert_eq!((code, message), (400, format!("{kind}: strict decoding error: {line}")));
    let (code, _, message) = world.send(Method::PATCH, &patch("Strict"), &apply, body).await.refused();
    assert_eq!((code, message), (400, format!("error strict decoding patch: error converting YAML to JSON: {line}")));
    for (validation, warned) in [("Warn", 1), ("Ignore", 0)] {
        for answer in [
            world.send(Method::POST, &post(validation), &yaml, body).await,
            world.send(Method::PATCH, &patch(validation), &apply, body).await,
        ] {
            assert_eq!(answer.ok()["data"]["a"], "2");
            let warnings = answer.warnings();
            assert_eq!(warnings.len(), warned, "{warnings:?}");
            assert!(warnings.iter().all(|w| w.contains("line 7: key \\\"a\\\" already set in map")), "{warnings:?}");
        }
    }
}

#[tokio::test]
async fn a_timeout_that_is_none_is_refused() {
    let world = World::new().await;
    let (code, _, message) = world.get("/api/v1/namespaces?timeout=soon").await.refused();
    assert_eq!(code, 400);
    assert_eq!(message, "invalid timeout specified in the request URL - time: invalid duration \"soon\"");
    world.get("/api/v1/namespaces?timeout=3m").await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_definition_goes_when_its_last_object_goes_at_the_very_moment_of_its_deletion() {
    let world = World::new().await;
    world.server.clone().start_custom_resources();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for round in 0..20 {
        let (plural, kind) = (format!("things{round}"), format!("Thing{round}"));
        let name = format!("{plural}.example.com");
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        world.post(definitions, &json!({"metadata": {"name": name}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})).await.ok();
        let objects = format!("/apis/example.com/v1/{plural}");
        let thing = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "it", "finalizers": ["example.com/hold"]}});
        while world.post(&objects, &thing).await.code != 201 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let (definition, object) = (format!("{definitions}/{name}"), format!("{objects}/it"));
        let free = async {
            let merge = [("content-type", "application/merge-patch+json")];
            let body = r#"{"metadata":{"finalizers":null}}"#;
            // Until it is gone: a conflict with the clean-up is no reason to stop.
            while world.send(Method::PATCH, &object, &merge, body).await.code == 409 {}
        };
        let null = json!(null);
        tokio::join!(world.delete(&definition, &null), free);
        let gone = async {
            while world.get(&definition).await.code != 404 {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), gone)
            .await
            .unwrap_or_else(|_| panic!("round {round}"));
    }
}

#[tokio::test]
async fn an_object_from_before_a_default_shows_it_when_it_is_read() {
    let world = World::new().await;
    world.server.clone().start_custom_resources();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let schema = |color: Value| json!({"type": "object", "properties": {"color": color}});
    let definition = |color: Value| {
        json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema(color)}}]}})
    };
    world.post(definitions, &definition(json!({"type": "string"}))).await.ok();
    let things = "/apis/example.com/v1/things";
    let thing = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}});
    while world.post(things, &thing("old")).await.code != 201 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let merge = [("content-type", "application/merge-patch+json")];
    let path = format!("{definitions}/things.example.com");
    let patch = json!({"spec": definition(json!({"type": "string", "default": "red"}))["spec"]}).to_string();
    world.send(Method::PATCH, &path, &merge, patch).await.ok();
    assert_eq!(world.get(&format!("{things}/old")).await.ok()["color"], "red");
    world.post(things, &thing("new")).await.ok();
    let list = world.get(things).await.ok();
    let colors: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["color"]).collect();
    assert_eq!(colors, ["red", "red"]);
}

#[tokio::test]
async fn an_object_has_the_fields_of_the_version_it_is_shown_in_and_of_the_one_it_is_stored_in() {
    let world = World::new().await;
    world.server.clone().start_custom_resources();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let text = json!({"type": "string"});
    let version = |name: &str, storage: bool, spec: Value| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": spec}}}}})
    };
    let first = json!({"a": text, "only1": {"type": "string", "default": "one"}});
    let second = json!({"a": text, "only2": text, "late": {"type": "string", "default": "two"}});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [version("v1", true, first), version("v2", false, second)]}});
    world.post(definitions, &definition).await.ok();
    let thing = |name: &str, version: &str, spec: Value| json!({"apiVersion": format!("example.com/{version}"), "kind": "Thing", "metadata": {"name": name}, "spec": spec});
    while world.post("/apis/example.com/v1/things", &thing("x", "v1", json!({"a": "1"}))).await.code != 201 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let spec = |object: Value| object["spec"].clone();
    assert_eq!(spec(world.get("/apis/example.com/v1/things/x").await.ok()), json!({"a": "1", "only1": "one"}));
    // Its own defaults come with what is written, not with what is read from another version.
    assert_eq!(spec(world.get("/apis/example.com/v2/things/x").await.ok()), json!({"a": "1"}));
    let sent = thing("y", "v2", json!({"a": "1", "only2": "2"}));
    assert_eq!(spec(world.post("/apis/example.com/v2/things", &sent).await.ok()), json!({"a": "1"}));
    let labelled = json!({"metadata": {"labels": {"l": "1"}}});
    let patched = world.patch("/apis/example.com/v2/things/x", "merge", &labelled).await;
    assert_eq!(patched.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_full_house_asks_clients_to_come_back() {
    let options = Options { max_writes_inflight: 0, ..Options::default() };
    let world = World::with(options).await;
    // Our own controllers never wait for a place...
    world.config_map("a", json!({})).await;
    // ...others do. Without a client certificate this would be 401 or 403 otherwise.
    let request = http::Request::builder()
        .method(Method::POST)
        .uri(CONFIG_MAPS)
        .body(http_body_util::Full::new(bytes::Bytes::new()))
        .unwrap();
    let response = world.server.handle(request).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
}
