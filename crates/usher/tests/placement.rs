//! Placement from the outside: a table of situations that our placement on virtual time and the real kube-scheduler both
//! pass, word for word; and what placement does when the world changes.

mod harness;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::{Keys, Options, Server};
use usher_controllers::{Controllers, Handle};
use usher_env::{Clock, Ids};
use usher_store::Store;

const SITUATIONS: &str = include_str!("placement/situations.yaml");

// ---- the table

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Situation {
    name: String,
    nodes: Vec<Value>,
    pods: Vec<PodLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PodLine {
    name: String,
    #[serde(default)]
    labels: Value,
    cpu: Option<u32>,
    #[serde(default)]
    spec: Value,
    becomes: Becomes,
    /// Pods that are ended for it; the test then takes them away, and this one gets the place.
    #[serde(default)]
    ends: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Becomes {
    on: Option<String>,
    says: Option<String>,
    nominated: Option<String>,
}

fn situations() -> Vec<Situation> {
    serde_saphyr::from_str(SITUATIONS).expect("the table can be read")
}

// ---- the two control planes

async fn ours() -> (Client, Handle) {
    // As beside the real kube-scheduler, nobody else touches nodes.
    let (client, clock) = server().await;
    let options = usher_controllers::Options { node_lifecycle: false, ..Default::default() };
    (client.clone(), Controllers::start(client, clock, options))
}

async fn server() -> (Client, Clock) {
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().try_init();
    let clock = Clock::virtual_from("2026-11-15T00:00:00Z".parse().expect("a time"));
    let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).expect("keys");
    let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
    let store = Store::open_memory(usher_store::Options::default());
    let server = Server::new(store, clock.clone(), Ids::seeded(7), Options::default(), keys);
    server.bootstrap().await.expect("bootstrap");
    let client = Client::new(server.service_as(User::new("tester", &[MASTERS])), "default");
    (client, clock)
}

struct Scheduler(Child);

impl Scheduler {
    fn start(kubeconfig: &Path) -> Result<Scheduler, String> {
        let script = harness::repository().join("tools/cluster/cluster");
        let output = Command::new(script).arg("bin").output().map_err(|e| e.to_string())?;
        let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let child = Command::new(Path::new(&dir).join("kube-scheduler"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(["--leader-elect=false", "--secure-port=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.map(Scheduler).map_err(|error| format!("kube-scheduler cannot be run: {error}"))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// ---- playing a situation

async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match look().await {
            Ok(found) => return found,
            Err(last) if Instant::now() >= deadline => panic!("{what}: {last}"),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn create_node(client: &Client, line: &Value) {
    let nodes = Api::<Node>::all(client.clone());
    let name = line["name"].as_str().expect("a name");
    let mut labels = json!({"kubernetes.io/hostname": name});
    let mut allocatable = json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "110"});
    for (to, from) in [(&mut labels, &line["labels"]), (&mut allocatable, &line["allocatable"])] {
        for (key, value) in from.as_object().into_iter().flatten() {
            to[key] = value.clone();
        }
    }
    // Cordoned until everything about it is as it should be: no pod is placed on half a node.
    for value in labels.as_object_mut().into_iter().flat_map(|labels| labels.values_mut()).filter(|v| v.is_number()) {
        *value = value.to_string().into();
    }
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": true}});
    nodes.create(&Default::default(), &serde_json::from_value(node).expect("a node")).await.expect("create a node");
    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
        "lastHeartbeatTime": "2026-11-15T00:00:00Z", "lastTransitionTime": "2026-11-15T00:00:00Z"}]);
    let status = json!({"status": {"capacity": allocatable, "allocatable": allocatable, "conditions": ready}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a node's status");
    let unschedulable = line["unschedulable"].as_bool().filter(|yes| *yes);
    let spec = json!({"spec": {"taints": line["taints"], "unschedulable": unschedulable}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(spec)).await.expect("a node's spec");
}

fn pod(line: &PodLine) -> Pod {
    let mut container = json!({"name": "c", "image": "i"});
    if let Some(cpu) = line.cpu {
        container["resources"] = json!({"requests": {"cpu": cpu.to_string()}});
    }
    let mut spec = json!({"containers": [container]});
    for (key, value) in line.spec.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let labels = if line.labels.is_null() { json!({}) } else { line.labels.clone() };
    serde_json::from_value(json!({"metadata": {"name": line.name, "labels": labels}, "spec": spec})).expect("a pod")
}

fn condition(pod: &Pod) -> Option<(String, String, String)> {
    let all = pod.status.as_ref()?.conditions.as_ref()?;
    let found = all.iter().find(|c| c.type_ == "PodScheduled")?;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Some((found.status.clone(), text(&found.reason), text(&found.message)))
}

async fn events(client: &Client, namespace: &str, pod: &str, reason: &str) -> Vec<String> {
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let all = events.list(&ListParams::default()).await.expect("events").items;
    let about = all.into_iter().filter(|e| e.involved_object.name.as_deref() == Some(pod));
    about.filter(|e| e.reason.as_deref() == Some(reason)).filter_map(|e| e.message).collect()
}

/// Waits until the pod has come to something and returns how that differs from what the table says.
async fn settle(client: &Client, namespace: &str, line: &PodLine) -> Vec<String> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let found = wait_for(&line.name, async || {
        let pod = pods.get(&line.name).await.map_err(|e| e.to_string())?;
        let nominated = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_ref());
        match condition(&pod) {
            Some((status, ..)) if status == "True" => Ok(pod),
            Some((_, reason, _))
                if reason == "Unschedulable" && (line.becomes.nominated.is_none() || nominated.is_some()) =>
            {
                Ok(pod)
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let mut differences = Vec::new();
    let node = found.spec.as_ref().and_then(|s| s.node_name.clone());
    let (_, _, message) = condition(&found).expect("a condition");
    let mut compare = |what: &str, is: String, should: String| {
        if is != should {
            differences.push(format!("{}: {what}\n      is {is}\n  should {should}", line.name));
        }
    };
    if let Some(on) = &line.becomes.on {
        let is = node.clone().unwrap_or(message.clone());
        let should = if on == "any" { is.clone() } else { on.clone() };
        compare("node", is.clone(), should);
        if let Some(node) = &node {
            let should = format!("Successfully assigned {namespace}/{} to {node}", line.name);
            let is = wait_for("event Scheduled", async || {
                events(client, namespace, &line.name, "Scheduled").await.pop().ok_or("none".to_string())
            });
            compare("event Scheduled", is.await, should);
        }
    }
    if let Some(says) = &line.becomes.says {
        compare("condition", node.map_or(message, |node| format!("on {node}")), says.clone());
        let heard = wait_for("event FailedScheduling", async || {
            events(client, namespace, &line.name, "FailedScheduling").await.pop().ok_or("none".to_string())
        });
        compare("event FailedScheduling", heard.await, says.clone());
    }
    let nominated = found.status.as_ref().and_then(|s| s.nominated_node_name.clone());
    compare("nominated", nominated.unwrap_or_default(), line.becomes.nominated.clone().unwrap_or_default());
    differences
}

/// The victims are on their way, with everything that says why; then they are gone, and the pod has their place.
async fn end_victims(client: &Client, namespace: &str, line: &PodLine) {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let preemptor = pods.get(&line.name).await.expect("the pod").uid().expect("a uid");
    let node = line.becomes.nominated.as_deref().expect("a nominated node");
    for victim in &line.ends {
        wait_for(victim, async || {
            let pod = pods.get(victim).await.map_err(|e| e.to_string())?;
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
            let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget").ok_or("not told why")?;
            let message = target.message.as_deref().unwrap_or_default();
            let expected = "default-scheduler: preempting to accommodate a higher priority pod";
            let said = (target.status.as_str(), target.reason.as_deref(), message);
            (said == ("True", Some("PreemptionByScheduler"), expected)).then_some(()).ok_or(format!("{said:?}"))?;
            let told = events(client, namespace, victim, "Preempted").await;
            let expected = format!("Preempted by pod {preemptor} on node {node}");
            (told == [expected]).then_some(()).ok_or(format!("{told:?}"))?;
            pod.metadata.deletion_timestamp.map(drop).ok_or("not being deleted".to_string())
        })
        .await;
        pods.delete(victim, &DeleteParams::default().grace_period(0)).await.expect("take the victim away");
    }
    wait_for(&line.name, async || {
        let pod = pods.get(&line.name).await.map_err(|e| e.to_string())?;
        let on = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
        (on == Some(node)).then_some(()).ok_or(format!("on {on:?}, {:?}", condition(&pod)))
    })
    .await;
}

async fn priority_classes(client: &Client) {
    let classes = Api::<PriorityClass>::all(client.clone());
    let policy = |never: bool| if never { "Never" } else { "PreemptLowerPriority" };
    for (name, value, never) in
        [("low", 10, false), ("middle", 100, false), ("high", 1000, false), ("polite", 1000, true)]
    {
        let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy(never)});
        classes.create(&Default::default(), &serde_json::from_value(class).expect("a class")).await.expect("create");
    }
}

async fn play(client: &Client, number: usize, situation: &Situation) -> Vec<String> {
    let namespace = format!("situation-{number}");
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
    let object = json!({"metadata": {"name": namespace}});
    namespaces.create(&Default::default(), &serde_json::from_value(object).expect("json")).await.expect("a namespace");
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client.clone(), &namespace);
    wait_for("service account", async || accounts.get("default").await.map_err(|e| e.to_string())).await;
    for node in &situation.nodes {
        create_node(client, node).await;
    }
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let mut differences = Vec::new();
    for line in &situation.pods {
        pods.create(&Default::default(), &pod(line)).await.unwrap_or_else(|e| panic!("{}: {e}", line.name));
        differences.extend(settle(client, &namespace, line).await);
        if !line.ends.is_empty() {
            end_victims(client, &namespace, line).await;
        }
    }
    for pod in pods.list(&ListParams::default()).await.expect("pods") {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.expect("delete a pod");
    }
    let nodes = Api::<Node>::all(client.clone());
    for node in nodes.list(&ListParams::default()).await.expect("nodes") {
        nodes.delete(&node.name_any(), &DeleteParams::default()).await.expect("delete a node");
    }
    differences
}

async fn play_all(client: &Client) {
    priority_classes(client).await;
    let mut differences = Vec::new();
    for (number, situation) in situations().iter().enumerate() {
        let found = play(client, number, situation).await;
        differences.extend(found.iter().map(|difference| format!("{}: {difference}", situation.name)));
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn every_situation_comes_out_as_the_table_says() {
    let (client, handle) = ours().await;
    play_all(&client).await;
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_situation_comes_out_the_same_with_the_real_kube_scheduler() {
    let cluster = need!(harness::Cluster::start(&["serviceaccount-controller"]));
    let kubeconfig = harness::Server::kubeconfig(&cluster);
    let _scheduler = need!(Scheduler::start(kubeconfig));
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a cluster");
    play_all(&Client::try_from(config).expect("a client")).await;
}

// ---- when the world changes

const NAMESPACE: &str = "default";

async fn started() -> (Client, Clock, Handle) {
    let (client, clock) = server().await;
    let handle = Controllers::start(client.clone(), clock.clone(), usher_controllers::Options::default());
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    wait_for("service account", async || accounts.get("default").await.map_err(|e| e.to_string())).await;
    (client, clock, handle)
}

fn line(name: &str, cpu: u32, spec: Value) -> PodLine {
    let becomes = Becomes { on: None, says: None, nominated: None };
    PodLine { name: name.to_owned(), labels: Value::Null, cpu: Some(cpu), spec, becomes, ends: Vec::new() }
}

async fn create(client: &Client, name: &str, cpu: u32, spec: Value) {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    pods.create(&Default::default(), &pod(&line(name, cpu, spec))).await.expect("create a pod");
}

/// Waits for where the pod is, or for the reason of its condition.
async fn until(client: &Client, name: &str, expected: &str) {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    wait_for(name, async || {
        let pod = pods.get(name).await.map_err(|e| e.to_string())?;
        let is = match pod.spec.as_ref().and_then(|s| s.node_name.clone()) {
            Some(node) => node,
            None => condition(&pod).map(|(_, reason, _)| reason).unwrap_or_default(),
        };
        (is == expected).then_some(()).ok_or(format!("is {is}, not {expected}"))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pod_is_placed_when_something_that_helps_happens() {
    let (client, _, handle) = started().await;
    let nodes = Api::<Node>::all(client.clone());
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let merge = |patch: Value| Patch::Merge(patch);
    create(&client, "first", 3, json!({})).await;
    until(&client, "first", "Unschedulable").await;
    create_node(&client, &json!({"name": "a"})).await;
    until(&client, "first", "a").await;

    create(&client, "gated", 1, json!({"schedulingGates": [{"name": "example.com/later"}]})).await;
    until(&client, "gated", "SchedulingGated").await;
    let open = json!({"spec": {"schedulingGates": null}});
    pods.patch("gated", &PatchParams::default(), &merge(open)).await.expect("take the gate away");
    until(&client, "gated", "a").await;

    create(&client, "second", 1, json!({})).await;
    until(&client, "second", "Unschedulable").await;
    pods.patch_status("gated", &PatchParams::default(), &merge(json!({"status": {"phase": "Succeeded"}})))
        .await
        .expect("end");
    until(&client, "second", "a").await;

    create(&client, "third", 3, json!({})).await;
    until(&client, "third", "Unschedulable").await;
    pods.delete("first", &DeleteParams::default().grace_period(0)).await.expect("delete");
    until(&client, "third", "a").await;

    create(&client, "labelled", 1, json!({"nodeSelector": {"disk": "ssd"}})).await;
    create_node(&client, &json!({"name": "b", "unschedulable": true})).await;
    until(&client, "labelled", "Unschedulable").await;
    nodes
        .patch("b", &PatchParams::default(), &merge(json!({"metadata": {"labels": {"disk": "ssd"}}})))
        .await
        .expect("label");
    nodes
        .patch("b", &PatchParams::default(), &merge(json!({"spec": {"unschedulable": null}})))
        .await
        .expect("uncordon");
    until(&client, "labelled", "b").await;
    handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarts_never_overcommit_a_node_and_lose_no_pod() {
    let (client, clock, mut handle) = started().await;
    for i in 0..5 {
        create_node(&client, &json!({"name": format!("n{i}")})).await;
    }
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    for i in 0..30 {
        create(&client, &format!("p{i}"), 1, json!({})).await;
        if i % 7 == 3 {
            handle.stop().await;
            handle = Controllers::start(client.clone(), clock.clone(), usher_controllers::Options::default());
        }
    }
    wait_for("every pod is placed or told why not", async || {
        let (mut on, mut waiting) = (std::collections::BTreeMap::<String, usize>::new(), 0);
        for pod in pods.list(&ListParams::default()).await.expect("pods") {
            match pod.spec.as_ref().and_then(|s| s.node_name.clone()) {
                Some(node) => *on.entry(node).or_default() += 1,
                None if condition(&pod).is_some_and(|(_, reason, _)| reason == "Unschedulable") => waiting += 1,
                None => return Err("not yet decided".to_owned()),
            }
        }
        assert!(on.values().all(|count| *count <= 4), "{on:?}");
        let placed = on.values().sum::<usize>();
        (placed == 20 && waiting == 10).then_some(()).ok_or(format!("{placed} placed, {waiting} waiting"))
    })
    .await;
    handle.stop().await;
}

fn ready(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.as_str())
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    taints.iter().map(|t| format!("{}:{}", t.key.trim_start_matches("node.kubernetes.io/"), t.effect)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_falls_silent_is_tainted_after_40_s_and_its_pods_go_after_300_more() {
    use k8s_openapi::api::coordination::v1::Lease;
    let (client, _, handle) = started().await;
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
    let leases_in = "kube-node-lease";
    if namespaces.get_opt(leases_in).await.expect("get").is_none() {
        let object = serde_json::from_value(json!({"metadata": {"name": leases_in}})).expect("json");
        namespaces.create(&Default::default(), &object).await.expect("a namespace");
    }
    let nodes = Api::<Node>::all(client.clone());
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    create_node(&client, &json!({"name": "a"})).await;
    wait_for("no taint", async || {
        let taints = taints(&nodes.get("a").await.expect("the node"));
        taints.is_empty().then_some(()).ok_or(format!("{taints:?}"))
    })
    .await;
    create(&client, "p", 1, json!({})).await;
    until(&client, "p", "a").await;
    let leases = Api::<Lease>::namespaced(client.clone(), leases_in);
    let lease = |at: &str| json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "a", "renewTime": at}});
    let first = serde_json::from_value(lease("2026-11-15T00:00:00.000000Z")).expect("a lease");
    leases.create(&Default::default(), &first).await.expect("create a lease");
    sleep(Duration::from_secs(30)).await;
    leases
        .patch("a", &PatchParams::default(), &Patch::Merge(lease("2026-11-15T00:00:30.000000Z")))
        .await
        .expect("renew");
    let renewed = Instant::now();
    sleep(Duration::from_secs(35)).await;
    assert_eq!(ready(&nodes.get("a").await.expect("the node")), Some("True"), "renewed 35 s ago");
    wait_for("unreachable", async || {
        let node = nodes.get("a").await.expect("the node");
        let expected = ["unreachable:NoSchedule", "unreachable:NoExecute"];
        (ready(&node) == Some("Unknown") && taints(&node) == expected)
            .then_some(())
            .ok_or(format!("{:?}", taints(&node)))
    })
    .await;
    assert!((40..42).contains(&renewed.elapsed().as_secs()), "{:?}", renewed.elapsed());
    sleep(Duration::from_secs(295)).await;
    assert!(pods.get("p").await.expect("the pod").metadata.deletion_timestamp.is_none(), "tolerated for 300 s");
    wait_for("eviction", async || {
        let pod = pods.get("p").await.map_err(|e| e.to_string())?;
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let why = conditions.iter().find(|c| c.type_ == "DisruptionTarget").and_then(|c| c.reason.clone());
        let told = events(&client, NAMESPACE, "p", "TaintManagerEviction").await;
        let all = pod.metadata.deletion_timestamp.is_some()
            && why.as_deref() == Some("DeletionByTaintManager")
            && told == ["Marking for deletion Pod default/p"];
        all.then_some(()).ok_or(format!("{why:?} {told:?}"))
    })
    .await;
    // Times in objects have whole seconds.
    assert!((339..345).contains(&renewed.elapsed().as_secs()), "{:?}", renewed.elapsed());

    nodes.delete("a", &DeleteParams::default()).await.expect("delete the node");
    let deleted = Instant::now();
    sleep(Duration::from_secs(35)).await;
    pods.get("p").await.expect("the node may come back");
    wait_for("the pod is gone with its node", async || match pods.get_opt("p").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!((40..45).contains(&deleted.elapsed().as_secs()), "{:?}", deleted.elapsed());
    handle.stop().await;
}
