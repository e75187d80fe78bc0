//! Kueue's kinds on this server: what manifests may rely on.

use serde_json::{Value, json};
use usher_api::kueue::{REVISION_ANNOTATION, definitions};
use usher_apiserver::Options;
use usher_apiserver::gates::Gates;
use usher_store::Store;

use crate::common::World;

const GROUP: &str = "/apis/kueue.x-k8s.io/v1beta2";
const QUEUES: &str = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues";
const FLAVORS: &str = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors";
const LOCAL_QUEUES: &str = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/localqueues";
const WORKLOADS: &str = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn world() -> World {
    world_with(Options::default()).await
}

async fn world_with(options: Options) -> World {
    let world = World::with(options).await;
    world.server.install(definitions()).await.unwrap();
    world
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn queue(more: Value) -> Value {
    let quota = json!({"name": "cpu", "nominalQuota": 9});
    let mut spec = json!({"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"],
        "flavors": [{"name": "default-flavor", "resources": [quota]}]}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object("ClusterQueue", "cluster-queue", spec)
}

fn workload(more: Value) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": 1}}, "futureField": 1});
    let mut spec = json!({"queueName": "user-queue", "podSets": [{"template": {"spec": {"containers": [container]}}}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object("Workload", "w", spec)
}

/// The message of a refusal by a schema.
async fn refused(world: &World, path: &str, body: &Value) -> String {
    let (code, reason, message) = world.post(path, body).await.refused();
    assert_eq!((code, reason.as_str()), (422, "Invalid"), "{message}");
    message
}

#[tokio::test]
async fn the_kinds_are_served_when_installation_returns() {
    let world = world().await;
    let resources = world.get(GROUP).await.ok();
    let mut found: Vec<(String, bool, Value)> = Vec::new();
    for resource in resources["resources"].as_array().unwrap() {
        let name = resource["name"].as_str().unwrap();
        if !name.contains('/') {
            found.push((name.to_owned(), resource["namespaced"] == true, resource["shortNames"].clone()));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let row = |name: &str, namespaced: bool, short: Value| (name.to_owned(), namespaced, short);
    assert_eq!(
        found,
        [
            row("admissionchecks", false, json!(["ac"])),
            row("clusterqueues", false, json!(["cq"])),
            row("cohorts", false, json!(["co"])),
            row("localqueues", true, json!(["queue", "queues", "lq"])),
            row("resourceflavors", false, json!(["flavor", "flavors", "rf"])),
            row("topologies", false, json!(["topo"])),
            row("workloadpriorityclasses", false, json!(["wpc"])),
            row("workloads", true, json!(["kwl", "kueueworkload", "kueueworkloads"])),
        ]
    );
}

#[tokio::test]
async fn a_documented_setup_applies_and_is_filled_in() {
    let world = world().await;
    let flavor = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "default-flavor"}});
    let flavor = world.post(FLAVORS, &flavor).await.ok();
    assert_eq!(flavor["metadata"]["finalizers"], json!(["kueue.x-k8s.io/resource-in-use"]));

    let queue = world.post(QUEUES, &queue(json!({"fairSharing": {}}))).await.ok();
    assert_eq!(queue["metadata"]["finalizers"], json!(["kueue.x-k8s.io/resource-in-use"]));
    let spec = &queue["spec"];
    assert_eq!(spec["queueingStrategy"], "BestEffortFIFO");
    assert_eq!(spec["stopPolicy"], "None");
    assert_eq!(spec["flavorFungibility"], json!({"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}));
    let preemption = json!({"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "Never"}, "withinClusterQueue": "Never"});
    assert_eq!(spec["preemption"], preemption);
    assert_eq!(spec["fairSharing"], json!({"weight": 1}));
    let path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota";
    assert_eq!(queue.pointer(path), Some(&json!(9)));

    let local = object("LocalQueue", "user-queue", json!({"clusterQueue": "cluster-queue"}));
    assert_eq!(world.post(LOCAL_QUEUES, &local).await.ok()["spec"]["stopPolicy"], "None");

    let made = world.post(WORKLOADS, &workload(json!({}))).await.ok();
    assert_eq!(made["spec"]["active"], true);
    let pod_set = &made["spec"]["podSets"][0];
    assert_eq!((pod_set["name"].as_str(), pod_set["count"].as_i64()), (Some("main"), Some(1)));
    // Templates keep what no schema of ours knows.
    assert_eq!(pod_set["template"]["spec"]["containers"][0]["futureField"], 1);
}

#[tokio::test]
async fn the_other_documented_kinds_apply() {
    let world = world().await;
    let post = async |plural: &str, body: Value| world.post(&format!("{GROUP}/{plural}"), &body).await.ok();
    let tainted = json!({"nodeLabels": {"instance-type": "spot"}, "nodeTaints": [{"effect": "NoSchedule", "key": "spot", "value": "true"}],
        "tolerations": [{"key": "spot-taint", "operator": "Exists", "effect": "NoSchedule"}]});
    post("resourceflavors", object("ResourceFlavor", "spot", tainted)).await;
    let levels = json!({"levels": [{"nodeLabel": "cloud.example.com/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]});
    post("topologies", object("Topology", "default", levels)).await;
    let placed = json!({"nodeLabels": {"node-group": "tas"}, "topologyName": "default"});
    post("resourceflavors", object("ResourceFlavor", "tas-flavor", placed)).await;
    let check = json!({"controllerName": "kueue.x-k8s.io/provisioning-request",
        "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "prov-test-config"}});
    post("admissionchecks", object("AdmissionCheck", "sample-prov", check)).await;
    let class = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"},
        "value": 10000, "description": "for those in a hurry"});
    post("workloadpriorityclasses", class).await;
    let quota = json!({"name": "cpu", "nominalQuota": 5, "borrowingLimit": 1, "lendingLimit": 10});
    let shared = json!({"parentName": "root", "resourceGroups": [{"coveredResources": ["cpu"],
        "flavors": [{"name": "spot", "resources": [quota]}]}]});
    post("cohorts", object("Cohort", "team", shared)).await;
    let policy = json!({"migration": {"mode": "TryPreferredFlavors"}});
    let racing = queue(json!({"concurrentAdmissionPolicy": policy, "queueingStrategy": "StrictFIFO",
        "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}));
    post("clusterqueues", racing).await;
}

#[tokio::test]
async fn rules_in_schemas_are_kept() {
    let world = world().await;
    let rf = |spec: Value| object("ResourceFlavor", "f", spec);
    for (path, body, said) in [
        (
            FLAVORS,
            rf(json!({"topologyName": "t", "nodeLabels": {}})),
            "at least one nodeLabel is required when topology is set",
        ),
        (FLAVORS, rf(json!({"nodeTaints": [{"key": "k", "effect": "Never"}]})), "supported taint effect values"),
        (
            FLAVORS,
            rf(json!({"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]})),
            "a value must be empty when 'operator' is 'Exists'",
        ),
        (
            QUEUES,
            queue(json!({"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}})),
            "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
        ),
        (
            QUEUES,
            queue(json!({"flavorFungibility": {"preference": "BorrowingOverPreemption"}})),
            "preference can only be set when both",
        ),
        (
            QUEUES,
            queue(json!({"queueingStrategy": "LIFO"})),
            "spec.queueingStrategy: Unsupported value: \"LIFO\": supported values: \"StrictFIFO\", \"BestEffortFIFO\"",
        ),
        (
            QUEUES,
            queue(
                json!({"concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}}, "concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}}}),
            ),
            "two spellings of one policy",
        ),
        (
            WORKLOADS,
            workload(
                json!({"priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "p"}}),
            ),
            "priority should not be nil when priorityClassRef is set",
        ),
        (
            WORKLOADS,
            workload(
                json!({"priority": 1, "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "PriorityClass", "name": "p"}}),
            ),
            "only the WorkloadPriorityClass kind is allowed",
        ),
        (
            WORKLOADS,
            workload(json!({"podSets": [{"count": 1, "minCount": 2, "template": {}}]})),
            "minCount should be positive and less or equal to count",
        ),
        (WORKLOADS, workload(json!({"podSets": []})), "spec.podSets"),
        (
            WORKLOADS,
            workload(json!({"admissionConstraints": {"allowedResourceFlavors": ["a", "a"]}})),
            "Duplicate value",
        ),
    ] {
        let message = refused(&world, path, &body).await;
        assert!(message.contains(said), "{message}");
    }
    let mut uneven = queue(json!({}));
    uneven["spec"]["resourceGroups"][0]["coveredResources"] = json!(["cpu", "memory"]);
    let message = refused(&world, QUEUES, &uneven).await;
    assert!(message.contains("flavors must have the same number of resources as the coveredResources"), "{message}");
    let mut alone = queue(json!({}));
    alone["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = 1.into();
    let message = refused(&world, QUEUES, &alone).await;
    assert!(message.contains("borrowingLimit must be nil when cohort is empty"), "{message}");
}

#[tokio::test]
async fn what_is_fixed_cannot_be_changed() {
    let world = world().await;
    world.post(LOCAL_QUEUES, &object("LocalQueue", "q", json!({"clusterQueue": "a"}))).await.ok();
    let (code, _, message) =
        world.patch(&format!("{LOCAL_QUEUES}/q"), "merge", &json!({"spec": {"clusterQueue": "b"}})).await.refused();
    assert_eq!(code, 422);
    assert!(message.contains("spec.clusterQueue: Invalid value: \"b\": field is immutable"), "{message}");
}

#[tokio::test]
async fn rules_of_webhooks_are_kept_in_process() {
    let world = world().await;
    let quota = json!({"name": "cpu", "nominalQuota": -1});
    let bad = json!([{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}]);
    let (code, reason, message) = world.post(QUEUES, &queue(json!({"resourceGroups": bad}))).await.refused();
    assert_eq!((code, reason.as_str()), (403, "Forbidden"));
    assert_eq!(
        message,
        "admission webhook \"vclusterqueue.kb.io\" denied the request: \
         spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: Invalid value: \"-1\": must be greater than or equal to 0"
    );
    assert_eq!(world.get(&format!("{QUEUES}/cluster-queue")).await.code, 404);
    let broken = workload(json!({"podSets": [{"template": {"spec": {"containers": [{"image": "i"}]}}}]}));
    let (code, _, message) = world.post(WORKLOADS, &broken).await.refused();
    assert_eq!(code, 403);
    assert!(message.ends_with("spec.podSets[0].template.spec.containers[0].name: Required value"), "{message}");
}

#[tokio::test]
async fn a_workload_is_admitted_through_its_status_and_then_fixed() {
    let world = world().await;
    world.post(WORKLOADS, &workload(json!({}))).await.ok();
    let path = format!("{WORKLOADS}/w");
    let status = format!("{path}/status");
    let condition = |ty: &str| json!({"type": ty, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let reserved = json!({"status": {"conditions": [condition("QuotaReserved")]}});
    let (code, _, message) = world.patch(&status, "merge", &reserved).await.refused();
    assert_eq!(code, 403);
    assert!(message.contains("status.admission: Required value"), "{message}");
    let assignment = json!({"flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": 1}, "count": 1});
    let admission = json!({"clusterQueue": "q", "podSetAssignments": [assignment]});
    let admitted =
        json!({"status": {"conditions": [condition("QuotaReserved"), condition("Admitted")], "admission": admission}});
    let made = world.patch(&status, "merge", &admitted).await.ok();
    assert_eq!(made["status"]["admission"]["podSetAssignments"][0]["name"], "main");

    let (code, _, message) = world.patch(&path, "merge", &json!({"spec": {"queueName": "other"}})).await.refused();
    assert_eq!(code, 422);
    assert!(message.contains("queueName is immutable while workload quota reserved"), "{message}");
    let (code, _, message) = world
        .patch(&path, "json", &json!([{"op": "replace", "path": "/spec/podSets/0/count", "value": 0}]))
        .await
        .refused();
    assert_eq!(code, 403);
    assert!(
        message.contains("spec.podSets.0: Invalid value: {") && message.ends_with("field is immutable"),
        "{message}"
    );

    // Shown with upstream's columns, found by the queue that admitted it.
    let table = world
        .send(
            http::Method::GET,
            &format!("{WORKLOADS}?fieldSelector=status.admission.clusterQueue%3Dq"),
            &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
            "",
        )
        .await
        .ok();
    let columns: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Name", "Queue", "Reserved in", "Admitted", "Finished", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..4], [json!("w"), json!("user-queue"), json!("q"), json!("True")]);
}

#[tokio::test]
async fn with_the_gate_off_a_policy_is_ignored_with_a_warning() {
    let gates = Gates::parse("ConcurrentAdmission=false").unwrap();
    let world = world_with(Options { gates, ..Options::default() }).await;
    let policy = json!({"concurrentAdmission": {"migrationConstraints": {"mode": "NoMigration", "minFlavor": "default-flavor"}}});
    let answer = world.post(QUEUES, &queue(policy)).await;
    answer.ok();
    assert_eq!(
        answer.warnings(),
        ["299 - \"spec.concurrentAdmission is ignored: the feature gate ConcurrentAdmission is off\""]
    );
}

#[tokio::test]
async fn installing_again_changes_nothing_and_an_old_definition_is_brought_up_to_date() {
    let store = Store::open_memory(usher_store::Options::default());
    let world = World::on(store.clone(), Options::default()).await;
    world.server.install(definitions()).await.unwrap();
    let before = store.revision();
    world.server.install(definitions()).await.unwrap();
    assert_eq!(store.revision(), before);

    // As an older server left it, with a label that someone added.
    let path = format!("{DEFINITIONS}/cohorts.kueue.x-k8s.io");
    let old = json!({"metadata": {"labels": {"team": "x"}, "annotations": {REVISION_ANNOTATION: "0", "note": "kept"}},
        "spec": {"names": {"shortNames": ["old"]}}});
    world.patch(&path, "merge", &old).await.ok();
    world.server.install(definitions()).await.unwrap();
    let now = world.get(&path).await.ok();
    assert_eq!(now["spec"]["names"]["shortNames"], json!(["co"]));
    assert_eq!(now["status"]["acceptedNames"]["shortNames"], json!(["co"]));
    assert_eq!(now["metadata"]["labels"]["team"], "x");
    assert_eq!(now["metadata"]["annotations"]["note"], "kept");
    assert_ne!(now["metadata"]["annotations"][REVISION_ANNOTATION], "0");

    // A newer server's, and one that is nobody's, stay.
    for theirs in [json!("1000000"), Value::Null] {
        let change = json!({"metadata": {"annotations": {REVISION_ANNOTATION: theirs}}, "spec": {"names": {"shortNames": ["new"]}}});
        world.patch(&path, "merge", &change).await.ok();
        world.server.install(definitions()).await.unwrap();
        assert_eq!(world.get(&path).await.ok()["spec"]["names"]["shortNames"], json!(["new"]));
    }
}
