//! What the built-in admission plugins do to objects on their way in.

use crate::common::World;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn pod_with(name: &str, spec: Value) -> Value {
    let mut pod = pod(name);
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod
}

async fn world() -> World {
    let world = World::new().await;
    world.post(ACCOUNTS, &json!({"metadata": {"name": "default"}})).await.ok();
    world
}

async fn refusal(world: &World, path: &str, object: &Value) -> String {
    let (code, reason, message) = world.post(path, object).await.refused();
    assert_eq!((code, reason.as_str()), (403, "Forbidden"), "{message}");
    message
}

#[tokio::test]
async fn a_plain_pod_is_completed_as_kube_apiserver_does() {
    let world = world().await;
    let made = world.post(PODS, &pod("p")).await.ok();
    let spec = &made["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"], &spec["priority"], &spec["preemptionPolicy"]),
        (&json!("default"), &json!("default"), &json!(0), &json!("PreemptLowerPriority"))
    );
    let toleration =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    let expected = [toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable")];
    assert_eq!(spec["tolerations"], json!(expected));
    let volume = spec["volumes"][0]["name"].as_str().unwrap();
    assert!(volume.starts_with("kube-api-access-") && volume.len() == "kube-api-access-".len() + 5, "{volume}");
    assert_eq!(
        spec["volumes"][0]["projected"],
        json!({"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]})
    );
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{"name": volume, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}])
    );
}

#[tokio::test]
async fn an_account_that_is_not_there_refuses_the_pod_and_one_that_is_gives_what_it_has() {
    let world = world().await;
    assert_eq!(
        refusal(&world, PODS, &pod_with("p", json!({"serviceAccountName": "nobody"}))).await,
        "pods \"p\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
    );
    let account = json!({"metadata": {"name": "builder"}, "automountServiceAccountToken": false,
        "imagePullSecrets": [{"name": "registry"}]});
    world.post(ACCOUNTS, &account).await.ok();
    let made = world.post(PODS, &pod_with("a", json!({"serviceAccountName": "builder"}))).await.ok();
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "registry"}]));
    assert!(made["spec"].get("volumes").is_none(), "{made:#}");
    let wants = json!({"serviceAccountName": "builder", "automountServiceAccountToken": true,
        "imagePullSecrets": [{"name": "own"}]});
    let made = world.post(PODS, &pod_with("b", wants)).await.ok();
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "own"}]));
    assert_eq!(made["spec"]["volumes"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_default_account_of_a_new_namespace_is_waited_for() {
    let world = World::new().await;
    let late = async {
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        world.post(ACCOUNTS, &json!({"metadata": {"name": "default"}})).await.ok();
    };
    let pod = pod("p");
    let (made, ()) = tokio::join!(world.post(PODS, &pod), late);
    made.ok();
}

#[tokio::test]
async fn a_mirror_pod_stays_as_it_is_and_may_name_no_account_or_secret() {
    let world = world().await;
    let mirror = |name: &str, spec: Value| {
        let mut pod = pod_with(name, spec);
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        pod["spec"]["nodeName"] = json!("n");
        pod
    };
    assert_eq!(
        refusal(&world, PODS, &mirror("a", json!({"serviceAccountName": "default"}))).await,
        "pods \"a\" is forbidden: a mirror pod may not reference service accounts"
    );
    let volumes = json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]});
    let why = "pods \"b\" is forbidden: a mirror pod may not reference secrets";
    assert_eq!(refusal(&world, PODS, &mirror("b", volumes)).await, why);
}

#[tokio::test]
async fn priority_comes_from_the_class_and_from_nowhere_else() {
    let world = world().await;
    let class = |name: &str, value: i64, default: bool| json!({"metadata": {"name": name}, "value": value, "globalDefault": default, "preemptionPolicy": "Never"});
    world.post(CLASSES, &class("high", 1000, false)).await.ok();
    let made = world.post(PODS, &pod_with("a", json!({"priorityClassName": "high"}))).await.ok();
    assert_eq!((&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]), (&json!(1000), &json!("Never")));
    let system = world.post(PODS, &pod_with("s", json!({"priorityClassName": "system-node-critical"}))).await.ok();
    assert_eq!(system["spec"]["priority"], 2_000_001_000);

    assert_eq!(
        refusal(&world, PODS, &pod_with("b", json!({"priorityClassName": "none"}))).await,
        "pods \"b\" is forbidden: no PriorityClass with name none was found"
    );
    assert_eq!(
        refusal(&world, PODS, &pod_with("b", json!({"priorityClassName": "high", "priority": 7}))).await,
        "pods \"b\" is forbidden: the integer value of priority (7) must not be provided in pod spec; priority admission \
         controller computed 1000 from the given PriorityClass name"
    );
    assert_eq!(
        refusal(
            &world,
            PODS,
            &pod_with("b", json!({"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"}))
        )
        .await,
        "pods \"b\" is forbidden: the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod \
         spec; priority admission controller computed Never from the given PriorityClass name"
    );

    world.post(CLASSES, &class("usual", 5, true)).await.ok();
    assert_eq!(
        refusal(&world, CLASSES, &class("other", 6, true)).await,
        "priorityclasses.scheduling.k8s.io \"other\" is forbidden: PriorityClass usual is already marked as default. Only \
         one default can exist"
    );
    let made = world.post(PODS, &pod("c")).await.ok();
    assert_eq!((&made["spec"]["priority"], &made["spec"]["priorityClassName"]), (&json!(5), &json!("usual")));
    let same = world.patch(&format!("{CLASSES}/usual"), "merge", &json!({"description": "ours"})).await;
    same.ok();
}

#[tokio::test]
async fn limit_ranges_complete_and_bound_pods_and_claims() {
    let world = world().await;
    let limits = json!({"metadata": {"name": "limits"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "100m"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"}},
        {"type": "Pod", "max": {"cpu": "3"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}});
    world.post("/api/v1/namespaces/default/limitranges", &limits).await.ok();
    let made = world.post(PODS, &pod("a")).await.ok();
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    let sized = |name: &str, sizes: &[&str]| {
        let containers: Vec<Value> = sizes
            .iter()
            .enumerate()
            .map(|(i, cpu)| json!({"name": format!("c{i}"), "image": "i", "resources": {"limits": {"cpu": cpu}}}))
            .collect();
        json!({"metadata": {"name": name}, "spec": {"containers": containers}})
    };
    assert_eq!(
        refusal(&world, PODS, &sized("b", &["2500m"])).await,
        "pods \"b\" is forbidden: maximum cpu usage per Container is 2, but limit is 2500m"
    );
    assert_eq!(
        refusal(&world, PODS, &sized("b", &["2", "2"])).await,
        "pods \"b\" is forbidden: maximum cpu usage per Pod is 3, but limit is 4"
    );
    let claim = json!({"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "2Gi"}}}});
    assert_eq!(
        refusal(&world, "/api/v1/namespaces/default/persistentvolumeclaims", &claim).await,
        "persistentvolumeclaims \"d\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"
    );
}

#[tokio::test]
async fn a_runtime_class_brings_overhead_and_scheduling() {
    let world = world().await;
    let class = json!({"metadata": {"name": "sandbox"}, "handler": "runsc", "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"kind": "sandbox"}, "tolerations": [{"key": "sandbox", "operator": "Exists"}]}});
    world.post("/apis/node.k8s.io/v1/runtimeclasses", &class).await.ok();
    let wants = |more: Value| {
        let mut spec = json!({"runtimeClassName": "sandbox"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pod_with("p", spec)
    };
    let made = world.post(PODS, &wants(json!({"nodeSelector": {"zone": "a"}}))).await.ok();
    assert_eq!(made["spec"]["overhead"], json!({"cpu": "250m"}));
    assert_eq!(made["spec"]["nodeSelector"], json!({"zone": "a", "kind": "sandbox"}));
    let keys: Vec<_> = made["spec"]["tolerations"].as_array().unwrap().iter().map(|t| t["key"].clone()).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "sandbox"]);

    for (more, why) in [
        (
            json!({"nodeSelector": {"kind": "x"}}),
            "conflict: runtimeClass.scheduling.nodeSelector[kind] = sandbox; pod.spec.nodeSelector[kind] = x",
        ),
        (
            json!({"overhead": {"cpu": "1"}}),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (json!({"runtimeClassName": "none"}), "pod rejected: RuntimeClass \"none\" not found"),
    ] {
        assert_eq!(refusal(&world, PODS, &wants(more)).await, format!("pods \"p\" is forbidden: {why}"));
    }
    assert_eq!(
        refusal(&world, PODS, &pod_with("p", json!({"overhead": {"cpu": "1"}}))).await,
        "pods \"p\" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    );
}

#[tokio::test]
async fn a_new_node_is_not_ready_and_hands_its_topology_to_its_pods() {
    let world = world().await;
    let node = json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z", "other": "x"}}});
    let made = world.post("/api/v1/nodes", &node).await.ok();
    assert_eq!(made["spec"]["taints"], json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]));
    world.post(PODS, &pod("p")).await.ok();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    assert_eq!(world.post(&format!("{PODS}/p/binding"), &binding).await.code, 201);
    let bound = world.get(&format!("{PODS}/p")).await.ok();
    assert_eq!(bound["metadata"]["labels"], json!({"topology.kubernetes.io/zone": "z"}));
    assert_eq!(bound["spec"]["nodeName"], "n");
}

#[tokio::test]
async fn refusals_name_an_object_without_a_name_by_its_beginning() {
    let world = world().await;
    let mut pod = pod_with("", json!({"priorityClassName": "none"}));
    pod["metadata"] = json!({"generateName": "run-"});
    assert_eq!(
        refusal(&world, PODS, &pod).await,
        "pods \"run-\" is forbidden: no PriorityClass with name none was found"
    );
}

#[tokio::test]
async fn namespaces_that_must_stay_and_namespaces_that_go() {
    let world = world().await;
    for name in ["default", "kube-system", "kube-public"] {
        let (code, _, message) = world.delete(&format!("/api/v1/namespaces/{name}"), &Value::Null).await.refused();
        let expected = format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted");
        assert_eq!((code, message), (403, expected));
    }
    let config_maps = "/api/v1/namespaces/gone/configmaps";
    let (code, _, message) = world.post(config_maps, &json!({"metadata": {"name": "a"}})).await.refused();
    assert_eq!((code, message.as_str()), (404, "namespaces \"gone\" not found"));
    world.post("/api/v1/namespaces", &json!({"metadata": {"name": "gone"}})).await.ok();
    world.delete("/api/v1/namespaces/gone", &Value::Null).await.ok();
    let answer = world.post(config_maps, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(
        answer.refused().2,
        "configmaps \"a\" is forbidden: unable to create new content in namespace gone because it is being terminated"
    );
    assert_eq!(answer.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
}
