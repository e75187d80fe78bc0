//! One story in both modes: `usher up`, and `usher controller` on a real cluster with Kubernetes' own Job controller.

mod harness;
#[path = "jobs/kubelet.rs"]
#[allow(dead_code, reason = "shared with the tests of Jobs")]
mod kubelet;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use usher_api::kueue::{ClusterQueue, LocalQueue, ResourceFlavor, Workload, conditions};
use usher_env::Clock;

use harness::{Cluster, Server, Usher};

async fn client(server: &dyn Server) -> Client {
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a config");
    Client::try_from(config).expect("a client")
}

async fn until<T>(what: &str, mut state: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(90);
    loop {
        if let Some(found) = state().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn create<K>(api: Api<K>, object: Value)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).expect("an object");
    // A kind that was just defined takes a moment to be served.
    until("it can be created", async || api.create(&PostParams::default(), &object).await.ok()).await;
}

fn job(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "q"}}, "spec": {"suspend": true,
        "template": {"metadata": {"annotations": {"test/runs": "2"}}, "spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]}}}})
}

/// A Job waits, is admitted, runs, frees its quota; the next one gets it.
async fn a_job_waits_is_admitted_runs_and_frees_its_quota(client: Client) {
    let _kubelet = kubelet::Kubelet::start(client.clone(), Clock::wall());
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    until("there is a service account", async || accounts.get_opt("default").await.ok().flatten()).await;
    let flavor = json!({"metadata": {"name": "plain"}, "spec": {"nodeLabels": {"kind": "plain"}}});
    create::<ResourceFlavor>(Api::all(client.clone()), flavor).await;
    let quota = json!([{"name": "plain", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]);
    let queue = json!({"metadata": {"name": "q"}, "spec": {"namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": quota}]}});
    create::<ClusterQueue>(Api::all(client.clone()), queue).await;
    let local = json!({"metadata": {"name": "q"}, "spec": {"clusterQueue": "q"}});
    create::<LocalQueue>(Api::default_namespaced(client.clone()), local).await;

    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    let workloads: Api<Workload> = Api::default_namespaced(client.clone());
    let said = async |job: &str, ty: &str| {
        let all = workloads.list(&ListParams::default()).await.ok()?.items;
        let one = all.into_iter().find(|w| w.name_any().starts_with(&format!("job-{job}-")))?;
        conditions::find(&one.status.conditions, ty).map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
    };
    create(jobs.clone(), job("first")).await;
    let runs =
        async || jobs.get("first").await.ok().filter(|job| job.spec.as_ref().is_some_and(|s| s.suspend == Some(false)));
    let started = until("the first runs", runs).await;
    let selector = started.spec.and_then(|spec| spec.template.spec).and_then(|spec| spec.node_selector);
    assert_eq!(selector, Some([("kind".to_owned(), "plain".to_owned())].into()), "aimed at its flavor");

    create(jobs.clone(), job("second")).await;
    let waits = async || said("second", "QuotaReserved").await.filter(|(status, ..)| status == "False");
    let (_, reason, message) = until("the second says why it waits", waits).await;
    assert_eq!(reason, "WaitingForQuota");
    assert_eq!(
        message,
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor plain, 1 more needed"
    );
    for name in ["first", "second"] {
        let complete = async || {
            let status = jobs.get(name).await.ok()?.status?;
            status.conditions?.iter().any(|c| c.type_ == "Complete" && c.status == "True").then_some(())
        };
        until(&format!("{name} is complete"), complete).await;
        let finished = async || said(name, "Finished").await.filter(|(status, ..)| status == "True");
        assert_eq!(until("its workload is finished", finished).await.1, "Succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_usher_up_a_job_waits_runs_and_frees_its_quota() {
    let usher = Usher::start_with(&["--node=false", "--controllers", "*,-placement"]);
    a_job_waits_is_admitted_runs_and_frees_its_quota(client(&usher).await).await;
}

/// `usher controller`, stopped on drop.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_real_cluster_a_job_waits_runs_and_frees_its_quota() {
    let of_kubernetes = ["job-controller", "garbage-collector-controller", "serviceaccount-controller"];
    let cluster = need!(Cluster::start(&of_kubernetes));
    let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["controller", "--kubeconfig"])
        .arg(cluster.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .expect("usher controller starts");
    let mut ready = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
    let _controller = Controller(child);
    assert!(ready.starts_with("ready https://"), "{ready:?}");
    a_job_waits_is_admitted_runs_and_frees_its_quota(client(&cluster).await).await;
}
