//! kube-rs over HTTPS with the kubeconfig that `usher up` writes: what our own
//! controllers do in process, done from outside.

mod harness;

use std::{collections::BTreeMap, future::Future, time::Duration};

use futures::{StreamExt, TryStreamExt, pin_mut};
use harness::Server;
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{ConfigMap, Namespace, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
        WatchEvent, WatchParams,
    },
    config::{Config, KubeConfigOptions, Kubeconfig},
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt, reflector, wait,
        watcher::{self, Event, watcher},
    },
};
use serde_json::json;

const NAMESPACE: &str = "default";

/// Runs a test against a server of its own.
fn with_client<F: Future<Output = ()>>(test: impl FnOnce(Client) -> F) {
    let server = need!(harness::server());
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = connect(&*server).await;
        tokio::time::timeout(Duration::from_secs(120), test(client)).await.expect("the test ends");
    });
}

async fn connect(server: &dyn Server) -> Client {
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig()).expect("read the kubeconfig");
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"test": "yes"}}, "data": {"k": value}}))
        .expect("a ConfigMap")
}

fn job(name: &str) -> Job {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"suspend": true, "template": template}}))
        .expect("a Job")
}

/// What a reader of ConfigMaps knows: name and value.
fn values<'a>(maps: impl IntoIterator<Item = &'a ConfigMap>) -> BTreeMap<String, String> {
    maps.into_iter()
        .map(|map| (map.name_any(), map.data.as_ref().map(|data| data["k"].clone()).unwrap_or_default()))
        .collect()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (u16, String) {
    match result {
        Err(Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("not refused by the server: {other:?}"),
    }
}

#[test]
fn objects_are_created_read_listed_replaced_and_deleted() {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        for name in ["a", "b", "c"] {
            maps.create(&PostParams::default(), &config_map(name, "1")).await.expect("create");
        }
        assert_eq!(
            refusal(maps.create(&PostParams::default(), &config_map("a", "1")).await),
            (409, "AlreadyExists".into())
        );

        let mut page = ListParams::default().labels("test=yes").limit(2);
        let first = maps.list(&page).await.expect("first page");
        page = page.continue_token(first.metadata.continue_.as_deref().expect("there is more"));
        let second = maps.list(&page).await.expect("second page");
        let names: Vec<_> = first.iter().chain(&second).map(ResourceExt::name_any).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let listed = maps.list_metadata(&ListParams::default().fields("metadata.name=b")).await.expect("metadata");
        assert_eq!(listed.items.iter().map(PartialObjectMeta::name_any).collect::<Vec<_>>(), ["b"]);

        let read = maps.get("a").await.expect("get");
        let mut changed = read.clone();
        changed.data = Some(BTreeMap::from([("k".to_owned(), "2".to_owned())]));
        maps.replace("a", &PostParams::default(), &changed).await.expect("replace");
        assert_eq!(refusal(maps.replace("a", &PostParams::default(), &changed).await), (409, "Conflict".into()));

        maps.delete("a", &DeleteParams::default()).await.expect("delete");
        assert!(maps.get_opt("a").await.expect("get").is_none());
        maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("test=yes"))
            .await
            .expect("delete all");
        assert!(maps.list(&ListParams::default().labels("test=yes")).await.expect("list").items.is_empty());
    });
}

#[test]
fn a_plain_watch_tells_every_change_in_order() {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let start =
            maps.list(&ListParams::default()).await.expect("list").metadata.resource_version.expect("a revision");
        let events = maps.watch(&WatchParams::default().labels("test=yes").timeout(60), &start).await.expect("watch");
        pin_mut!(events);
        let created = maps.create(&PostParams::default(), &config_map("a", "1")).await.expect("create");
        maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2"}}))).await.expect("patch");
        maps.delete("a", &DeleteParams::default()).await.expect("delete");
        let mut seen = Vec::new();
        while seen.len() < 3 {
            match events.try_next().await.expect("no error").expect("no end") {
                WatchEvent::Added(map) => {
                    assert_eq!(map, created);
                    seen.push("added");
                }
                WatchEvent::Modified(_) => seen.push("modified"),
                WatchEvent::Deleted(map) => {
                    assert!(map.resource_version() > created.resource_version());
                    seen.push("deleted");
                }
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => panic!("{status:?}"),
            }
        }
        assert_eq!(seen, ["added", "modified", "deleted"]);
    });
}

/// Both ways a watcher can begin must lead to the same view of the world.
fn a_watcher_follows(config: watcher::Config) {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        maps.create(&PostParams::default(), &config_map("a", "1")).await.expect("create");
        maps.create(&PostParams::default(), &config_map("b", "1")).await.expect("create");
        let events = watcher(maps.clone(), config.labels("test=yes"));
        pin_mut!(events);
        assert!(matches!(events.try_next().await.expect("no error"), Some(Event::Init)));
        let mut initial = Vec::new();
        loop {
            match events.try_next().await.expect("no error").expect("no end") {
                Event::InitApply(map) => initial.push(map),
                Event::InitDone => break,
                other => panic!("in the middle of the list: {other:?}"),
            }
        }
        assert_eq!(
            values(&initial),
            BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "1".to_owned())])
        );
        maps.patch("b", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2"}}))).await.expect("patch");
        let Some(Event::Apply(changed)) = events.try_next().await.expect("no error") else { panic!("no change") };
        assert_eq!(values([&changed])["b"], "2");
        maps.delete("a", &DeleteParams::default()).await.expect("delete");
        let Some(Event::Delete(gone)) = events.try_next().await.expect("no error") else { panic!("no deletion") };
        assert_eq!(gone.name_any(), "a");
    });
}

#[test]
fn a_watcher_that_lists_first_follows_changes() {
    a_watcher_follows(watcher::Config::default());
}

#[test]
fn a_watcher_that_streams_its_list_follows_changes() {
    a_watcher_follows(watcher::Config::default().streaming_lists());
}

#[test]
fn a_reflector_ends_up_with_what_the_server_has() {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let (reader, writer) = reflector::store();
        let stream = watcher(maps.clone(), watcher::Config::default().labels("test=yes").streaming_lists());
        let follow = tokio::spawn(reflector(writer, stream).default_backoff().touched_objects().for_each(|_| async {}));
        reader.wait_until_ready().await.expect("the first list");

        let writers = (0..4).map(|task| {
            let maps = maps.clone();
            tokio::spawn(async move {
                for round in 0..15 {
                    let name = format!("m-{}", (task * 3 + round) % 7);
                    if round % 4 == 3 {
                        let _ = maps.delete(&name, &DeleteParams::default()).await;
                        continue;
                    }
                    let map = config_map(&name, &format!("{task}-{round}"));
                    maps.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&map)).await.expect("apply");
                }
            })
        });
        for writer in futures::future::join_all(writers).await {
            writer.expect("the writer ends");
        }
        let revision = |map: &ConfigMap| (map.name_any(), map.resource_version());
        let truth = maps.list(&ListParams::default().labels("test=yes")).await.expect("list");
        let mut truth: Vec<_> = truth.iter().map(revision).collect();
        truth.sort();
        loop {
            let mut cached: Vec<_> = reader.state().iter().map(|map| revision(map)).collect();
            cached.sort();
            if cached == truth {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        follow.abort();
    });
}

#[test]
fn patches_and_apply_change_what_they_name() {
    with_client(|client| async move {
        let jobs: Api<Job> = Api::namespaced(client, NAMESPACE);
        let made = jobs.create(&PostParams::default(), &job("work")).await.expect("create");
        assert_eq!(made.metadata.generation, Some(1));
        let resources = json!({"requests": {"cpu": "100m"}});
        let strategic =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "resources": resources}]}}}});
        let patched =
            jobs.patch("work", &PatchParams::default(), &Patch::Strategic(strategic)).await.expect("strategic patch");
        let pod = patched.spec.expect("a spec").template.spec.expect("a pod spec");
        assert_eq!((pod.containers.len(), pod.containers[0].image.as_deref()), (1, Some("busybox")));
        assert_eq!(patched.metadata.generation, Some(2));

        let apply = |parallelism: i32| {
            Patch::Apply(json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": {"parallelism": parallelism},
            }))
        };
        let refused = jobs.patch("work", &PatchParams::apply("one"), &apply(3)).await;
        assert_eq!(refusal(refused), (409, "Conflict".into()), "the creator owns it");
        jobs.patch("work", &PatchParams::apply("one").force(), &apply(3)).await.expect("forced apply");
        let again = jobs.patch("work", &PatchParams::apply("two"), &apply(3)).await.expect("the same value");
        let owners: Vec<_> =
            again.managed_fields().iter().filter(|entry| entry.operation.as_deref() == Some("Apply")).collect();
        assert_eq!(owners.len(), 2);
        let merge = Patch::Merge(json!({"spec": {"paralelism": 4}}));
        let strict =
            PatchParams { field_validation: Some(kube::api::ValidationDirective::Strict), ..PatchParams::default() };
        assert_eq!(refusal(jobs.patch("work", &strict, &merge).await), (422, "Invalid".into()));
    });
}

#[test]
fn status_is_a_subresource_of_its_own() {
    with_client(|client| async move {
        let jobs: Api<Job> = Api::namespaced(client, NAMESPACE);
        jobs.create(&PostParams::default(), &job("work")).await.expect("create");
        let both = json!({"spec": {"parallelism": 9}, "status": {"active": 2}});
        let patched =
            jobs.patch_status("work", &PatchParams::default(), &Patch::Merge(&both)).await.expect("patch the status");
        assert_eq!(patched.status.as_ref().and_then(|status| status.active), Some(2));
        assert_eq!(patched.spec.as_ref().and_then(|spec| spec.parallelism), Some(1));
        assert_eq!(patched.metadata.generation, Some(1), "a status is no new generation");
        let mut replaced = patched;
        replaced.status.as_mut().expect("a status").active = Some(3);
        jobs.replace_status("work", &PostParams::default(), &replaced).await.expect("replace the status");
        let read = jobs.get_status("work").await.expect("read the status");
        assert_eq!(read.status.and_then(|status| status.active), Some(3));
        jobs.patch("work", &PatchParams::default(), &Patch::Merge(&both)).await.expect("patch the rest");
        let read = jobs.get("work").await.expect("get");
        assert_eq!(read.spec.and_then(|spec| spec.parallelism), Some(9));
        assert_eq!(read.status.and_then(|status| status.active), Some(3));
    });
}

#[test]
fn a_pod_is_evicted_and_awaited() {
    with_client(|client| async move {
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "pod"}, "spec": {"containers": [{"name": "main", "image": "busybox"}]},
        }));
        // The service account that every pod needs is made by a controller, a moment after the start.
        let pod: Pod = pod.expect("a pod");
        let uid = loop {
            match pods.create(&PostParams::default(), &pod).await {
                Ok(made) => break made.uid().expect("a uid"),
                Err(Error::Api(status)) if status.code == 403 => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        };
        let gone = wait::await_condition(pods.clone(), "pod", wait::conditions::is_deleted(&uid));
        let evict = async { pods.evict("pod", &kube::api::EvictParams::default()).await };
        let (gone, evicted) = futures::future::join(gone, evict).await;
        evicted.expect("evict");
        gone.expect("the pod is gone");
    });
}

#[test]
fn a_namespace_takes_its_content_with_it() {
    with_client(|client| async move {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": "doomed"}})).expect("a namespace");
        let made = namespaces.create(&PostParams::default(), &namespace).await.expect("create");
        let maps: Api<ConfigMap> = Api::namespaced(client, "doomed");
        maps.create(&PostParams::default(), &config_map("a", "1")).await.expect("create");
        namespaces.delete("doomed", &DeleteParams::default()).await.expect("delete");
        let uid = made.uid().expect("a uid");
        wait::await_condition(namespaces, "doomed", wait::conditions::is_deleted(&uid))
            .await
            .expect("the namespace is gone");
        assert!(maps.list(&ListParams::default()).await.expect("list").items.is_empty());
    });
}

#[test]
fn a_custom_resource_is_defined_and_used() {
    with_client(|client| async move {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }});
        let definition = serde_json::from_value(json!({
            "metadata": {"name": "gears.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "gears", "singular": "gear", "kind": "Gear"},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                              "schema": {"openAPIV3Schema": schema}}],
            },
        }))
        .expect("a definition");
        definitions.create(&PostParams::default(), &definition).await.expect("define");
        wait::await_condition(definitions, "gears.example.com", wait::conditions::is_crd_established())
            .await
            .expect("established");
        let gear = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Gear"));
        let gears: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &gear);
        let body = json!({"apiVersion": "example.com/v1", "kind": "Gear", "metadata": {"name": "a"}, "spec": {}});
        // Established is a promise about the near future: a real server answers 404 for a moment.
        let made = loop {
            match gears.patch("a", &PatchParams::apply("test"), &Patch::Apply(&body)).await {
                Ok(made) => break made,
                Err(Error::Api(status)) if status.code == 404 => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(made.data["spec"]["size"], 3);
        let status = Patch::Merge(json!({"status": {"ok": true}}));
        let patched = gears.patch_status("a", &PatchParams::default(), &status).await.expect("status");
        assert_eq!((&patched.data["status"]["ok"], patched.metadata.generation), (&json!(true), Some(1)));
        assert_eq!(refusal(gears.get("none").await), (404, "NotFound".into()));
    });
}
