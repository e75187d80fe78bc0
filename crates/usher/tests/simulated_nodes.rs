//! `usher node --simulate` on a real cluster: Kubernetes' own scheduler and Job controller, and nodes that do not exist.

mod harness;

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;

use harness::{Beside, Cluster, Server};

async fn until<T>(what: &str, mut state: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(90);
    loop {
        if let Some(found) = state().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn client(server: &dyn Server) -> Client {
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a config");
    Client::try_from(config).expect("a client")
}

fn job(name: &str, notes: serde_json::Value) -> Job {
    let job = json!({"metadata": {"name": name}, "spec": {"completions": 4, "parallelism": 2, "backoffLimit": 0,
        "template": {"metadata": {"annotations": notes}, "spec": {"restartPolicy": "Never", "nodeSelector": {"zone": "a"},
            "containers": [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "30"}}}]}}}});
    serde_json::from_value(job).expect("a job")
}

fn ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_real_cluster_run_on_simulated_nodes() {
    let cluster = need!(Cluster::start_whole());
    let file = tempfile::NamedTempFile::new().expect("a file");
    let nodes = "- {count: 2, name: big, labels: {zone: a}, capacity: {cpu: 32}}\n- {count: 3, name: other}\n";
    std::fs::write(file.path(), nodes).expect("write it");
    let path = file.path().to_str().expect("a path").to_owned();
    let mut simulation = Beside::start(&["node", "--simulate", &path], &cluster);
    assert!(simulation.ready.ends_with(" nodes=5"), "{}", simulation.ready);
    let client = client(&cluster).await;

    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    let ends = async |name: &str, how: &str| {
        until(&format!("{name} is {how}"), async || {
            let conditions = jobs.get(name).await.ok()?.status?.conditions?;
            conditions.iter().any(|c| c.type_ == how && c.status == "True").then_some(())
        })
        .await;
    };
    jobs.create(&PostParams::default(), &job("well", json!({"usher.dev/sim-duration": "500ms"}))).await.expect("a job");
    ends("well", "Complete").await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let all = pods.list(&ListParams::default().labels("job-name=well")).await.expect("pods").items;
    assert_eq!(all.len(), 4);
    for pod in &all {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        assert!(node.starts_with("big-"), "{node} has the label and the room");
    }
    let bad = json!({"usher.dev/sim-duration": "100ms", "usher.dev/sim-exit-code": "3"});
    jobs.create(&PostParams::default(), &job("badly", bad)).await.expect("a job");
    ends("badly", "Failed").await;

    // What the cluster watches over: a Lease for each, and one that was given up comes back.
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    for name in ["big-0", "big-1", "other-0", "other-1", "other-2"] {
        let lease = until(&format!("{name} has a lease"), async || leases.get_opt(name).await.ok().flatten()).await;
        assert_eq!(lease.metadata.owner_references.expect("an owner")[0].name, name);
    }
    let api: Api<Node> = Api::all(client.clone());
    let silent = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status."}]}});
    let given_up = async || {
        let node = api.patch_status("other-0", &PatchParams::default(), &Patch::Strategic(&silent)).await;
        assert!(!ready(&node.expect("patch it")));
    };
    given_up().await;
    until("it is ready again", async || api.get("other-0").await.ok().filter(ready)).await;

    // Started again, it goes on where it was.
    simulation.kill();
    given_up().await;
    jobs.create(&PostParams::default(), &job("late", json!({"usher.dev/sim-duration": "1s"}))).await.expect("a job");
    let _again = Beside::start(&["node", "--simulate", &path], &cluster);
    ends("late", "Complete").await;
    until("it is ready again", async || api.get("other-0").await.ok().filter(ready)).await;
}

#[test]
fn what_is_wrong_with_the_file_is_said_before_anything_else() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    for (text, said) in [("- {cuont: 3}", "cuont"), ("[]", "it names no nodes"), ("- {count: 0}", "it names no nodes")]
    {
        std::fs::write(file.path(), text).expect("write it");
        let path = file.path().to_str().expect("a path");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_usher"));
        command.args(["node", "--simulate", path, "--kubeconfig", "/nonexistent"]);
        let done = harness::run(command, Duration::from_secs(20));
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(done.stderr.contains(said) && done.stderr.contains("--simulate"), "{text}: {}", done.stderr);
    }
}
