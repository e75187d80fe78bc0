//! Admission webhooks, asked over HTTPS.

use std::time::{Duration, Instant};

use crate::common::{CONFIG_MAPS, World};
use crate::webhook_server::{Reply, Webhook};
use http::Method;
use serde_json::{Value, json};
use usher_apiserver::Options;
use usher_store::{Expect, Op, Store};

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";

async fn register(world: &World, plural: &str, name: &str, hooks: &[Value]) {
    let config = json!({"metadata": {"name": name}, "webhooks": hooks});
    world.post(&format!("{REGISTRATION}/{plural}"), &config).await.ok();
}

async fn mutating(world: &World, name: &str, hooks: &[Value]) {
    register(world, "mutatingwebhookconfigurations", name, hooks).await;
}

async fn validating(world: &World, name: &str, hooks: &[Value]) {
    register(world, "validatingwebhookconfigurations", name, hooks).await;
}

fn with(mut hook: Value, field: &str, value: Value) -> Value {
    hook[field] = value;
    hook
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn create(world: &World, name: &str) -> crate::common::Answer {
    world.post(CONFIG_MAPS, &config_map(name)).await
}

#[tokio::test]
async fn a_validating_webhook_is_shown_the_request_and_may_allow_it() {
    let world = World::new().await;
    let webhook = Webhook::start(|_, _| Reply::Response(json!({"allowed": true, "warnings": ["mind the gap"]}))).await;
    let hook = webhook.hook("check");
    validating(&world, "v", &[hook]).await;
    let path = format!("{CONFIG_MAPS}?fieldManager=me&fieldValidation=Strict");
    let mut sent = config_map("a");
    sent["data"] = json!({"k": "v"});
    let made = world.post(&path, &sent).await;
    made.ok();
    assert_eq!(made.warnings(), ["299 - \"mind the gap\""]);
    let asked = webhook.asked();
    let (path, request) = &asked[0];
    assert_eq!((asked.len(), path.as_str()), (1, "check"));
    assert_eq!(request["uid"].as_str().unwrap().len(), 36);
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    assert_eq!((&request["kind"], &request["requestKind"]), (&kind, &kind));
    assert_eq!((&request["resource"], &request["requestResource"]), (&resource, &resource));
    assert_eq!(
        (&request["operation"], &request["namespace"], &request["name"], &request["dryRun"]),
        (&json!("CREATE"), &json!("default"), &json!("a"), &json!(false))
    );
    assert_eq!(request["userInfo"], json!({"username": "tester", "groups": ["system:masters"]}));
    assert_eq!(request["oldObject"], Value::Null);
    assert_eq!(
        request["options"],
        json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me", "fieldValidation": "Strict"})
    );
    let object = &request["object"];
    assert_eq!(
        (&object["kind"], &object["apiVersion"], &object["metadata"]["name"]),
        (&json!("ConfigMap"), &json!("v1"), &json!("a"))
    );
    assert_eq!(object["metadata"]["managedFields"][0]["manager"], "me");
    assert!(object["metadata"]["uid"].is_string());
}

#[tokio::test]
async fn a_denied_request_shows_the_webhooks_status() {
    let world = World::new().await;
    let webhook = Webhook::start(|path, _| match path {
        "told" => Reply::Response(json!({"allowed": false,
            "status": {"code": 403, "reason": "Forbidden", "message": "not on a Sunday"}})),
        _ => Reply::Response(json!({"allowed": false})),
    })
    .await;
    validating(&world, "v", &[webhook.hook("told")]).await;
    let (code, reason, message) = create(&world, "a").await.refused();
    assert_eq!((code, reason.as_str()), (403, "Forbidden"));
    assert_eq!(message, "admission webhook \"told.example.com\" denied the request: not on a Sunday");
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);

    world.delete(&format!("{REGISTRATION}/validatingwebhookconfigurations/v"), &Value::Null).await.ok();
    create(&world, "a").await.ok();
    mutating(&world, "m", &[webhook.hook("bare")]).await;
    let (code, reason, message) = create(&world, "b").await.refused();
    assert_eq!((code, reason.as_str()), (400, ""));
    assert_eq!(message, "admission webhook \"bare.example.com\" denied the request without explanation");
}

#[tokio::test]
async fn a_patch_is_applied_before_the_object_is_checked_and_completed() {
    let world = World::new().await;
    world.post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "default"}})).await.ok();
    let webhook = Webhook::start(|path, _| match path {
        "good" => Reply::patch(json!([
            {"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "x"}},
            {"op": "add", "path": "/spec/unknown", "value": 1}])),
        _ => Reply::patch(json!([{"op": "replace", "path": "/spec/containers/0/image", "value": ""}])),
    })
    .await;
    let pods = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]);
    mutating(&world, "m", &[with(webhook.hook("good"), "rules", pods.clone())]).await;
    let pod = json!({"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let path = "/api/v1/namespaces/default/pods";
    let made = world.post(path, &pod).await.ok();
    let side = &made["spec"]["containers"][1];
    // Defaulted, and seen by the plugins once more.
    assert_eq!((&side["name"], &side["terminationMessagePath"]), (&json!("side"), &json!("/dev/termination-log")));
    assert_eq!(side["volumeMounts"].as_array().map(Vec::len), Some(1));
    let asked = webhook.asked();
    assert_eq!(asked.len(), 1);
    let seen = &asked[0].1;
    assert!(seen.get("name").is_none() && seen["object"]["metadata"].get("name").is_none(), "{seen:#}");

    world.delete(&format!("{REGISTRATION}/mutatingwebhookconfigurations/m"), &Value::Null).await.ok();
    mutating(&world, "m", &[with(webhook.hook("bad"), "rules", pods)]).await;
    let (code, _, message) = world.post(path, &pod).await.refused();
    assert_eq!(code, 422);
    assert!(message.contains("spec.containers[0].image: Required value"), "{message}");
}

#[tokio::test]
async fn failures_fail_the_request_or_are_ignored_as_the_policy_says() {
    let world = World::new().await;
    let webhook = Webhook::start(|path, _| match path {
        "late" => Reply::Late(Duration::from_secs(30)),
        "broken" => Reply::Raw(500, "out of order".to_owned()),
        "missing" => Reply::Raw(404, String::new()),
        "garbage" => Reply::Raw(200, "hello".to_owned()),
        "uid" => Reply::Response(json!({"uid": "other", "allowed": true})),
        _ => Reply::patch(json!([{"op": "remove", "path": "/nothing"}])),
    })
    .await;
    let port = webhook.port;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url =
        |port: u16, path: &str| json!({"url": format!("https://127.0.0.1:{port}/{path}"), "caBundle": webhook.ca()});
    let other_ca = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
    let other_ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, other_ca);
    let cases = [
        (
            "late",
            url(port, "late"),
            format!("Post \"https://127.0.0.1:{port}/late?timeout=1s\": context deadline exceeded"),
        ),
        (
            "closed",
            url(closed, ""),
            format!(
                "Post \"https://127.0.0.1:{closed}/?timeout=1s\": dial tcp 127.0.0.1:{closed}: connect: connection refused"
            ),
        ),
        (
            "broken",
            url(port, "broken"),
            "an error on the server (\"out of order\") has prevented the request from succeeding".to_owned(),
        ),
        ("missing", url(port, "missing"), "the server could not find the requested resource".to_owned()),
        ("garbage", url(port, "garbage"), "couldn't get version/kind; json parse error: ".to_owned()),
        (
            "trust",
            json!({"url": format!("https://127.0.0.1:{port}/trust"), "caBundle": other_ca}),
            format!(
                "Post \"https://127.0.0.1:{port}/trust?timeout=1s\": tls: failed to verify certificate: x509: certificate signed by unknown authority"
            ),
        ),
        (
            "absent",
            json!({"service": {"namespace": "default", "name": "absent", "path": "/x"}, "caBundle": webhook.ca()}),
            "Post \"https://absent.default.svc:443/x?timeout=1s\": service \"absent\" not found".to_owned(),
        ),
    ];
    for (name, client, why) in cases {
        let hook = with(with(webhook.hook(name), "clientConfig", client), "timeoutSeconds", json!(1));
        let config = format!("{REGISTRATION}/validatingwebhookconfigurations/v");
        validating(&world, "v", &[with(hook.clone(), "failurePolicy", json!("Fail"))]).await;
        let (code, reason, message) = create(&world, name).await.refused();
        assert_eq!((code, reason.as_str()), (500, "InternalError"));
        let expected = format!(
            "Internal error occurred: failed calling webhook \"{name}.example.com\": failed to call webhook: {why}"
        );
        assert!(message.starts_with(&expected), "{message}\n{expected}");
        world.delete(&config, &Value::Null).await.ok();
        validating(&world, "v", &[with(hook, "failurePolicy", json!("Ignore"))]).await;
        create(&world, name).await.ok();
        world.delete(&config, &Value::Null).await.ok();
    }
    validating(&world, "v", &[webhook.hook("uid")]).await;
    let message = create(&world, "b").await.refused().2;
    assert!(message.contains("received invalid webhook response: expected response.uid=\""), "{message}");
    world.delete(&format!("{REGISTRATION}/validatingwebhookconfigurations/v"), &Value::Null).await.ok();
    // A patch that does not fit is no failure to call: the policy has no say.
    mutating(&world, "m", &[with(webhook.hook("unfit"), "failurePolicy", json!("Ignore"))]).await;
    assert_eq!(create(&world, "c").await.refused().0, 500);
}

#[tokio::test]
async fn selectors_and_conditions_choose_what_is_asked_about() {
    let world = World::new().await;
    let webhook = Webhook::start(|_, _| Reply::allow()).await;
    world.post("/api/v1/namespaces", &json!({"metadata": {"name": "prod", "labels": {"env": "prod"}}})).await.ok();
    let all = json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps", "namespaces"]}]);
    let hook = |path: &str| with(webhook.hook(path), "rules", all.clone());
    let condition = |expression: &str| json!([{"name": "c", "expression": expression}]);
    validating(
        &world,
        "v",
        &[
            with(hook("namespace"), "namespaceSelector", json!({"matchLabels": {"env": "prod"}})),
            with(hook("object"), "objectSelector", json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]})),
            with(
                hook("condition"),
                "matchConditions",
                condition("object.metadata.name.startsWith('x') && request.userInfo.username == 'tester'"),
            ),
        ],
    )
    .await;
    let asked = async |action: &str, answer: crate::common::Answer| {
        assert!(answer.code < 300, "{action}: {}", String::from_utf8_lossy(&answer.body));
        let mut paths = webhook.paths();
        webhook.forget();
        paths.sort();
        paths.join(" ")
    };
    assert_eq!(asked("plain", create(&world, "a").await).await, "");
    assert_eq!(asked("condition", create(&world, "xa").await).await, "condition");
    let prod = "/api/v1/namespaces/prod/configmaps";
    assert_eq!(asked("namespace", world.post(prod, &config_map("a")).await).await, "namespace");
    let labelled = json!({"metadata": {"name": "b", "labels": {"app": "x"}}});
    assert_eq!(asked("object", world.post(CONFIG_MAPS, &labelled).await).await, "object");
    // Taking the label away does not escape the webhook.
    let path = format!("{CONFIG_MAPS}/b");
    let bare = world.patch(&path, "merge", &json!({"metadata": {"labels": null}})).await;
    assert_eq!(asked("unlabel", bare).await, "object");
    let namespace = json!({"metadata": {"name": "prod2", "labels": {"env": "prod"}}});
    assert_eq!(asked("own labels", world.post("/api/v1/namespaces", &namespace).await).await, "namespace");
}

#[tokio::test]
async fn a_condition_that_cannot_be_evaluated_refuses_or_skips_by_policy() {
    let world = World::new().await;
    let webhook = Webhook::start(|_, _| Reply::allow()).await;
    let hook = with(webhook.hook("c"), "matchConditions", json!([{"name": "c", "expression": "object.data.x == '1'"}]));
    validating(&world, "v", std::slice::from_ref(&hook)).await;
    let (code, _, message) = create(&world, "a").await.refused();
    let why = "configmaps \"a\" is forbidden: expression 'object.data.x == '1'' resulted in error: no such key: data";
    assert_eq!((code, message.as_str()), (403, why));
    world.delete(&format!("{REGISTRATION}/validatingwebhookconfigurations/v"), &Value::Null).await.ok();
    validating(&world, "v", &[with(hook, "failurePolicy", json!("Ignore"))]).await;
    create(&world, "a").await.ok();
    assert!(webhook.asked().is_empty());
}

#[tokio::test]
async fn a_dry_run_asks_only_webhooks_without_side_effects() {
    let webhook = Webhook::start(|_, _| Reply::allow()).await;
    // Today's API accepts no such webhook; one may be left from former versions.
    let store = Store::open_memory(usher_store::Options::default());
    let old =
        json!({"metadata": {"name": "old"}, "webhooks": [with(webhook.hook("some"), "sideEffects", json!("Some"))]});
    let collection = "admissionregistration.k8s.io/validatingwebhookconfigurations";
    store.write(collection, "old", Op::Put(old.to_string().into()), Expect::Absent).await.unwrap();
    let world = World::on(store, Options::default()).await;
    let dry = format!("{CONFIG_MAPS}?dryRun=All");
    let (code, _, message) = world.post(&dry, &config_map("a")).await.refused();
    assert_eq!((code, message.as_str()), (400, "admission webhook \"some.example.com\" does not support dry run"));
    create(&world, "a").await.ok();
    world.delete(&format!("{REGISTRATION}/validatingwebhookconfigurations/old"), &Value::Null).await.ok();
    validating(&world, "v", &[webhook.hook("none")]).await;
    world.post(&dry, &config_map("b")).await.ok();
    let asked = webhook.asked();
    assert_eq!(asked.last().unwrap().0, "none");
    assert_eq!(
        (&asked.last().unwrap().1["dryRun"], &asked.last().unwrap().1["options"]["dryRun"]),
        (&json!(true), &json!(["All"]))
    );
}

#[tokio::test]
async fn mutating_webhooks_run_in_order_and_again_where_they_ask_for_it() {
    let world = World::new().await;
    let webhook = Webhook::start(|path, request| {
        let annotations = &request["object"]["metadata"]["annotations"];
        match path {
            // Sets once; the second time it finds its own work.
            "set" if annotations["set"].is_null() => {
                Reply::patch(json!([{"op": "add", "path": "/metadata/annotations/set", "value": "1"}]))
            }
            _ => Reply::allow(),
        }
    })
    .await;
    let again = |path: &str| with(webhook.hook(path), "reinvocationPolicy", json!("IfNeeded"));
    mutating(&world, "b", &[webhook.hook("set"), again("last")]).await;
    mutating(&world, "a", &[again("first"), webhook.hook("once")]).await;
    let made = world.post(CONFIG_MAPS, &json!({"metadata": {"name": "x", "annotations": {"k": "v"}}})).await.ok();
    assert_eq!(made["metadata"]["annotations"]["set"], "1");
    assert_eq!(webhook.paths(), ["first", "once", "set", "last", "first"]);
}

#[tokio::test]
async fn validating_webhooks_are_asked_at_the_same_time_over_connections_that_stay_open() {
    let world = World::new().await;
    let webhook = Webhook::start(|_, _| Reply::Late(Duration::from_millis(400))).await;
    let hooks: Vec<Value> =
        (0..4).map(|i| with(webhook.hook(&format!("h{i}")), "failurePolicy", json!("Ignore"))).collect();
    validating(&world, "v", &hooks).await;
    let started = Instant::now();
    create(&world, "a").await.ok();
    assert!(started.elapsed() < Duration::from_millis(1200), "{:?}", started.elapsed());
    assert_eq!(webhook.asked().len(), 4);
    let before = webhook.connections();
    create(&world, "b").await.ok();
    assert_eq!((webhook.asked().len(), webhook.connections()), (8, before));
}

#[tokio::test]
async fn objects_of_a_collection_are_deleted_at_the_same_time_and_a_refusal_ends_it() {
    let world = World::new().await;
    let webhook = Webhook::start(|path, request| match path {
        "late" => Reply::Late(Duration::from_millis(300)),
        _ if request["name"] == "c5" => Reply::Response(json!({"allowed": false, "status": {"message": "not c5"}})),
        _ => Reply::allow(),
    })
    .await;
    let on_delete = |name: &str| {
        let rules =
            json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["DELETE"]}]);
        with(with(webhook.hook(name), "rules", rules), "failurePolicy", json!("Ignore"))
    };
    validating(&world, "v", &[on_delete("late")]).await;
    for i in 0..8 {
        create(&world, &format!("c{i}")).await.ok();
    }
    let started = Instant::now();
    world.delete(CONFIG_MAPS, &json!({"dryRun": ["All"]})).await.ok();
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    assert_eq!(webhook.asked().len(), 8);

    validating(&world, "w", &[on_delete("judge")]).await;
    let (code, _, message) = world.delete(CONFIG_MAPS, &json!(null)).await.refused();
    assert_eq!((code, message.as_str()), (400, "admission webhook \"judge.example.com\" denied the request: not c5"));
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/c5")).await.code, 200);
    let page = String::from_utf8(world.get("/metrics").await.body.to_vec()).unwrap();
    let rejection = "apiserver_admission_webhook_rejection_count{name=\"judge.example.com\",type=\"validate\",operation=\"DELETE\",error_type=\"no_error\",rejection_code=\"400\"} 1";
    assert!(page.contains(rejection), "{page}");
    assert!(page.contains("apiserver_admission_webhook_fail_open_count{name=\"late.example.com\",type=\"validate\"}"));
}

#[tokio::test]
async fn updates_deletes_and_subresources_are_reviewed_too() {
    let world = World::new().await;
    world.post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "default"}})).await.ok();
    let webhook = Webhook::start(|_, request| match request["operation"].as_str() {
        Some("DELETE") if request["oldObject"]["metadata"]["labels"]["keep"] == "yes" => {
            Reply::Response(json!({"allowed": false, "status": {"message": "kept", "code": 409}}))
        }
        _ => Reply::allow(),
    })
    .await;
    let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    validating(&world, "v", &[with(webhook.hook("all"), "rules", rules.clone())]).await;
    mutating(&world, "m", &[with(webhook.hook("mutate"), "rules", rules)]).await;
    let seen = || {
        let asked = webhook.asked();
        webhook.forget();
        let brief = |(path, r): &(String, Value)| {
            let text = |key: &str| r[key].as_str().unwrap_or("").to_owned();
            let kind = r["kind"]["kind"].as_str().unwrap_or("").to_owned();
            (
                path.clone(),
                text("operation"),
                kind,
                text("subResource"),
                r["object"].is_null(),
                r["oldObject"].is_null(),
            )
        };
        asked.iter().map(brief).collect::<Vec<_>>()
    };
    let both = |operation: &str, kind: &str, sub: &str, object: bool, old: bool| {
        let one = |path: &str| (path.to_owned(), operation.to_owned(), kind.to_owned(), sub.to_owned(), !object, !old);
        vec![one("mutate"), one("all")]
    };
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    world.post(pods, &pod).await.ok();
    assert_eq!(seen(), both("CREATE", "Pod", "", true, false));
    world.patch(&format!("{pods}/p"), "merge", &json!({"metadata": {"labels": {"keep": "yes"}}})).await.ok();
    assert_eq!(seen(), both("UPDATE", "Pod", "", true, true));
    world.patch(&format!("{pods}/p/status"), "merge", &json!({"status": {"message": "m"}})).await.ok();
    assert_eq!(seen(), both("UPDATE", "Pod", "status", true, true));
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    assert_eq!(world.post(&format!("{pods}/p/binding"), &binding).await.code, 201);
    assert_eq!(seen(), both("CREATE", "Binding", "binding", true, false));
    world.post("/api/v1/namespaces/default/serviceaccounts/default/token", &json!({"spec": {}})).await.ok();
    assert_eq!(seen(), both("CREATE", "TokenRequest", "token", true, false));

    let (code, _, message) = world.delete(&format!("{pods}/p"), &json!({"gracePeriodSeconds": 0})).await.refused();
    assert_eq!((code, message.as_str()), (409, "admission webhook \"mutate.example.com\" denied the request: kept"));
    assert_eq!(webhook.asked().last().unwrap().1["options"]["gracePeriodSeconds"], 0);
    webhook.forget();
    // An eviction is reviewed as one, and the delete that it comes to is not.
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    assert_eq!(world.post(&format!("{pods}/p/eviction"), &eviction).await.code, 201);
    assert_eq!(seen(), both("CREATE", "Eviction", "eviction", true, false));
}

#[tokio::test]
async fn custom_resources_are_shown_in_the_version_a_rule_names_and_scales_as_scales() {
    let world = World::new().await;
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "subresources": {"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}, "mode": {"type": "string", "default": "fast"}}},
                "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}}})
    };
    let crd = json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"}, "versions": [version("v1", true), version("v2", false)]}});
    world.server.clone().start_custom_resources();
    world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await.ok();
    while world.get("/apis/x.io/v1/namespaces/default/things").await.code == 404 {
        tokio::task::yield_now().await;
    }
    let webhook = Webhook::start(|path, request| match path {
        "mutate" => Reply::patch(
            json!([{"op": "add", "path": "/metadata/labels", "value": {"by": request["object"]["apiVersion"]
            .as_str().unwrap_or("").replace('/', "_")}}]),
        ),
        _ => Reply::patch(json!([{"op": "replace", "path": "/spec/replicas", "value": 7}])),
    })
    .await;
    let rule = |resource: &str| json!([{"operations": ["*"], "apiGroups": ["x.io"], "apiVersions": ["v2"], "resources": [resource]}]);
    mutating(&world, "m", &[with(webhook.hook("mutate"), "rules", rule("things"))]).await;
    let things = "/apis/x.io/v1/namespaces/default/things";
    let thing = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"replicas": 1}});
    let made = world.post(things, &thing).await.ok();
    assert_eq!((&made["apiVersion"], &made["metadata"]["labels"]["by"]), (&json!("x.io/v1"), &json!("x.io_v2")));
    let request = webhook.asked()[0].1.clone();
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v2"), &json!("v1")));
    assert_eq!((&request["resource"]["version"], &request["requestResource"]["version"]), (&json!("v2"), &json!("v1")));

    mutating(&world, "s", &[with(webhook.hook("scale"), "rules", rule("*/scale"))]).await;
    webhook.forget();
    world.patch(&format!("{things}/t/scale"), "merge", &json!({"spec": {"replicas": 3}})).await.ok();
    let (path, request) = webhook.asked()[0].clone();
    assert_eq!((path.as_str(), &request["kind"]["kind"]), ("scale", &json!("Scale")));
    assert_eq!(
        (&request["object"]["spec"]["replicas"], &request["oldObject"]["spec"]["replicas"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(world.get(&format!("{things}/t")).await.ok()["spec"]["replicas"], 7);

    mutating(&world, "e", &[with(with(webhook.hook("exact"), "rules", rule("things")), "matchPolicy", json!("Exact"))])
        .await;
    webhook.forget();
    let other = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "u"}});
    world.post(things, &other).await.ok();
    assert!(!webhook.paths().contains(&"exact".to_owned()));
}

#[tokio::test]
async fn webhooks_are_not_asked_about_webhook_configurations() {
    let world = World::new().await;
    let webhook = Webhook::start(|_, _| Reply::Response(json!({"allowed": false}))).await;
    let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    validating(&world, "v", &[with(webhook.hook("no"), "rules", rules)]).await;
    assert_eq!(create(&world, "a").await.code, 400);
    let gone = world.send(Method::DELETE, &format!("{REGISTRATION}/validatingwebhookconfigurations/v"), &[], "").await;
    assert_eq!(gone.code, 200);
    create(&world, "a").await.ok();
    assert_eq!(webhook.asked().len(), 1);
}

#[tokio::test]
async fn a_service_is_called_where_its_external_name_points_by_its_own_name() {
    let world = World::new().await;
    let webhook = Webhook::start(|_, _| Reply::allow()).await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    world.post("/api/v1/namespaces/default/services", &service).await.ok();
    let client = json!({"service": {"namespace": "default", "name": "hook", "port": webhook.port, "path": "/by-service"},
        "caBundle": webhook.ca()});
    validating(&world, "v", &[with(webhook.hook("s"), "clientConfig", client)]).await;
    create(&world, "a").await.ok();
    assert_eq!(webhook.paths(), ["by-service"]);
}
