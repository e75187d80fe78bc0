//! Usher installed on a real cluster: what `usher manifests` prints is applied with kubectl, and `usher controller` runs with the
//! rights of its ServiceAccount and no others. Webhooks reach it at an address on loopback.

mod harness;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use usher_api::kueue::{ClusterQueue, LocalQueue, ResourceFlavor, Workload, conditions};

use harness::{Cluster, Server, Shell};

const USHER: &str = env!("CARGO_BIN_EXE_usher");
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

async fn until<T>(what: &str, mut state: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(240);
    loop {
        if let Some(found) = state().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A real control plane on which Usher is installed, without controllers of its own: what happens is Usher's doing.
struct Installed {
    cluster: Cluster,
    shell: Shell,
    client: Client,
    dir: TempDir,
    _proxy: TempDir,
}

/// What the API server shows to aggregated API servers.
fn front_proxy() -> TempDir {
    let dir = tempfile::Builder::new().prefix("usher-test-").tempdir().expect("a directory");
    let now = usher_env::Clock::wall().now();
    let authority = usher_pki::Authority::new("front-proxy-ca", now).expect("an authority");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "front-proxy-client");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let client = authority.issue(params, rcgen::KeyPair::generate().expect("a key"), now).expect("a certificate");
    let files = [("ca.crt", authority.pem), ("client.crt", client.pem), ("client.key", client.key.serialize_pem())];
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

impl Installed {
    async fn new() -> Result<Installed, String> {
        let kubectl = harness::kubectl()?;
        let proxy = front_proxy();
        let cluster = Cluster::start_with(&[], &["--front-proxy".as_ref(), proxy.path().as_os_str()])?;
        let shell = Shell::new(&kubectl, &cluster);
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a config");
        let client = Client::try_from(config).expect("a client");
        let dir = tempfile::Builder::new().prefix("usher-test-").tempdir().expect("a directory");
        let installed = Installed { cluster, shell, client, dir, _proxy: proxy };
        installed.apply("");
        Ok(installed)
    }

    /// As a person would.
    fn apply(&self, flags: &str) {
        let done = self.shell.run_long("", &format!("{USHER} manifests {flags} | kubectl apply --server-side -f -"));
        assert_eq!(done.code, Some(0), "{done:?}");
    }

    /// A kubeconfig with the rights of Usher's ServiceAccount.
    fn kubeconfig(&self) -> PathBuf {
        let path = self.dir.path().join("kubeconfig");
        let done = self.shell.run("", "kubectl create token usher --namespace usher-system");
        assert_eq!(done.code, Some(0), "{done:?}");
        let text = std::fs::read_to_string(self.cluster.kubeconfig()).expect("the admin's kubeconfig");
        let lines = text.lines().map(|line| match line.strip_prefix("    token: ") {
            Some(_) => format!("    token: {}\n", done.stdout.trim()),
            None => format!("{line}\n"),
        });
        std::fs::write(&path, lines.collect::<String>()).expect("a kubeconfig");
        path
    }

    /// With webhooks, reached at the address it listens on.
    fn start_with_webhooks(&self) -> Copy {
        let copy = Copy::start(&self.kubeconfig(), self.dir.path(), "usher", &["--listen=127.0.0.1:0"]);
        self.apply(&format!("--webhook-url https://{}", copy.places["listen"]));
        copy
    }

    /// Until the API server believes our certificate: a write is tried that webhooks are asked about.
    async fn answers(&self) {
        let flavors: Api<ResourceFlavor> = Api::all(self.client.clone());
        let probe: ResourceFlavor = from(json!({"metadata": {"name": "probe"}, "spec": {}}));
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let asked = async || flavors.create(&dry, &probe).await.ok().filter(|made| !made.finalizers().is_empty());
        until("webhooks answer", asked).await;
    }

    async fn queue(&self, cpu: &str) {
        let flavor = from(json!({"metadata": {"name": "plain"}, "spec": {}}));
        create::<ResourceFlavor>(Api::all(self.client.clone()), &flavor).await;
        let quota = json!([{"name": "plain", "resources": [{"name": "cpu", "nominalQuota": cpu}]}]);
        let queue = from(json!({"metadata": {"name": "q"}, "spec": {"namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": quota}]}}));
        create::<ClusterQueue>(Api::all(self.client.clone()), &queue).await;
        self.local_queue("default", "default").await;
    }

    async fn local_queue(&self, namespace: &str, name: &str) {
        let local = from(json!({"metadata": {"name": name}, "spec": {"clusterQueue": "q"}}));
        create::<LocalQueue>(Api::namespaced(self.client.clone(), namespace), &local).await;
    }

    fn jobs(&self, namespace: &str) -> Api<Job> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

async fn create<K>(api: Api<K>, object: &K)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), object).await.unwrap_or_else(|error| panic!("{error}: {object:?}"));
}

fn job(name: &str, labels: Value) -> Job {
    from(json!({"metadata": {"name": name, "labels": labels}, "spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]}}}}))
}

fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend).unwrap_or(false)
}

/// One `usher controller`; killed on drop.
struct Copy {
    child: Child,
    places: BTreeMap<String, String>,
    log: PathBuf,
}

impl Copy {
    fn start(kubeconfig: &Path, dir: &Path, name: &str, flags: &[&str]) -> Copy {
        let log = dir.join(format!("{name}.log"));
        let mut child = Command::new(USHER)
            .args(["controller", "--install-crds=false", "--leader-elect", "--probes=127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .args(flags)
            .env("USHER_LOG", "info,usher_controllers=debug,usher_cluster=debug")
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("usher controller starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
        let copy = Copy { child, places: places(&ready), log };
        assert!(ready.starts_with("ready https://"), "{ready:?}\n{}", copy.log());
        copy
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let stream = tokio::net::TcpStream::connect(&self.places["probes"]).await.expect("a connection");
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut send, connection) = hyper::client::conn::http1::handshake(io).await.expect("HTTP");
        tokio::spawn(connection);
        let request = http::Request::get(path).header("host", "usher").body(String::new()).expect("a request");
        let answer = send.send_request(request).await.expect("an answer");
        let code = answer.status().as_u16();
        let body = http_body_util::BodyExt::collect(answer.into_body()).await.expect("a body").to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    async fn leads(&self) -> bool {
        self.get("/metrics").await.1.contains("leader_election_master_status{name=\"usher-controller\"} 1")
    }

    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

/// `ready URL listen=ADDRESS probes=ADDRESS`
fn places(ready: &str) -> BTreeMap<String, String> {
    let pairs = ready.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(name, place)| (name.to_owned(), place.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_of_an_installed_usher_catch_what_is_queued_and_nothing_else() {
    let world = need!(Installed::new().await);
    let mut usher = world.start_with_webhooks();
    world.answers().await;
    until("it is ready", async || (usher.get("/readyz").await.0 == 200).then_some(())).await;
    world.queue("1").await;
    let jobs = world.jobs("default");

    // A Job that names a queue is born suspended, and started by the leader, with its ServiceAccount's rights alone.
    let queued = jobs.create(&PostParams::default(), &job("queued", json!({QUEUE: "default"}))).await.expect("created");
    assert!(is_suspended(&queued), "{queued:?}");
    let runs = async || jobs.get("queued").await.ok().filter(|job| !is_suspended(job));
    until("it is admitted", runs).await;

    // One that names none is left alone where there is no default queue, and caught where there is.
    for namespace in ["plain", "caught"] {
        create::<Namespace>(Api::all(world.client.clone()), &from(json!({"metadata": {"name": namespace}}))).await;
    }
    world.local_queue("caught", "default").await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let labelled = async || {
        let labels = namespaces.get("caught").await.ok()?.metadata.labels?;
        labels.get("kueue.x-k8s.io/has-default-queue").filter(|value| *value == "true").map(|_| ())
    };
    until("the namespace is labelled", labelled).await;
    let caught = async || {
        let made = world.jobs("caught").create(&PostParams::default(), &job("j", json!({}))).await.expect("created");
        if is_suspended(&made) {
            return Some(made);
        }
        // API servers hear of a namespace's labels with a delay.
        world.jobs("caught").delete("j", &DeleteParams::background()).await.expect("deleted");
        None
    };
    let caught = until("it is caught", caught).await;
    assert_eq!(caught.labels().get(QUEUE).map(String::as_str), Some("default"));
    let free = world.jobs("plain").create(&PostParams::default(), &job("j", json!({}))).await.expect("created");
    assert!(!is_suspended(&free) && free.labels().get(QUEUE).is_none(), "{free:?}");

    refuses_what_upstream_refuses(&world).await;
    // Not a single right was missing.
    let log = usher.log();
    let missing: Vec<&str> = log.lines().filter(|line| line.contains("forbidden")).collect();
    assert!(missing.is_empty(), "{missing:#?}");

    usher.kill();
    works_without_usher(&world).await;
}

async fn refuses_what_upstream_refuses(world: &Installed) {
    // The schema lets this pass: a flavor in two groups.
    let group = |resource: &str| {
        let flavors = json!([{"name": "plain", "resources": [{"name": resource, "nominalQuota": "1"}]}]);
        json!({"coveredResources": [resource], "flavors": flavors})
    };
    let groups = [group("cpu"), group("memory")];
    let bad: ClusterQueue = from(json!({"metadata": {"name": "bad"}, "spec": {"resourceGroups": groups}}));
    let queues: Api<ClusterQueue> = Api::all(world.client.clone());
    let refused = queues.create(&PostParams::default(), &bad).await.expect_err("refused");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    let words = "admission webhook \"vclusterqueue.kb.io\" denied the request: \
        spec.resourceGroups[1].flavors[0].name: Duplicate value: \"plain\"";
    assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (403, "Forbidden", words));
    // And an update of a Job that runs.
    let moved = json!({"metadata": {"labels": {QUEUE: "elsewhere"}}});
    let patch = Patch::Merge(&moved);
    let refused = world.jobs("default").patch("queued", &PatchParams::default(), &patch).await.expect_err("refused");
    let begins = "admission webhook \"vjob.kb.io\" denied the request: metadata.labels[kueue.x-k8s.io/queue-name]";
    assert!(refused.to_string().contains(begins), "{refused}");
}

/// What is not queued does not notice; what is queued waits for Usher, but can be deleted.
async fn works_without_usher(world: &Installed) {
    let free = world.jobs("plain").create(&PostParams::default(), &job("later", json!({}))).await.expect("created");
    assert!(!is_suspended(&free));
    let queued = job("later", json!({QUEUE: "default"}));
    let refused = world.jobs("default").create(&PostParams::default(), &queued).await.expect_err("refused");
    assert!(refused.to_string().contains("failed calling webhook \"mjob.kb.io\""), "{refused}");
    let jobs = world.jobs("default");
    let held = json!({"metadata": {"finalizers": ["test/holds"]}});
    jobs.patch("queued", &PatchParams::default(), &Patch::Merge(&held)).await.expect("a finalizer is none of ours");
    jobs.delete("queued", &DeleteParams::background()).await.expect("deleted");
    let gone = json!({"metadata": {"finalizers": null}});
    jobs.patch("queued", &PatchParams::default(), &Patch::Merge(&gone)).await.expect("it can go");
    assert!(jobs.get_opt("queued").await.expect("an answer").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_lost_is_made_anew_and_believed() {
    let world = need!(Installed::new().await);
    let _usher = world.start_with_webhooks();
    world.answers().await;
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "usher-system");
    let name = "usher-webhook-server-cert";
    let certificate = async || secrets.get(name).await.ok()?.data?.get("tls.crt").map(|bytes| bytes.0.clone());
    let before = certificate().await.expect("a certificate");
    secrets.delete(name, &DeleteParams::default()).await.expect("deleted");
    until("another is made", async || certificate().await.filter(|now| *now != before)).await;
    world.answers().await;
}

/// What each Workload went through, as everybody could see it.
#[derive(Default)]
struct Seen {
    /// How often each was given quota.
    admissions: BTreeMap<String, usize>,
    reserved: BTreeMap<String, bool>,
    most_at_once: usize,
}

impl Seen {
    fn see(&mut self, workload: &Workload) {
        let has = conditions::is_true(&workload.status.conditions, "QuotaReserved");
        let had = self.reserved.insert(workload.name_any(), has).unwrap_or(false);
        if has && !had {
            *self.admissions.entry(workload.name_any()).or_default() += 1;
        }
        self.most_at_once = self.most_at_once.max(self.reserved.values().filter(|has| **has).count());
    }
}

fn record(client: &Client) -> Arc<Mutex<Seen>> {
    let (seen, api) = (Arc::new(Mutex::new(Seen::default())), Api::<Workload>::all(client.clone()));
    let told = seen.clone();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        while let Some(event) = events.next().await {
            if let Ok(watcher::Event::Apply(workload) | watcher::Event::InitApply(workload)) = event {
                told.lock().expect("a lock").see(&workload);
            }
        }
    });
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_is_killed_the_other_goes_on_and_nothing_is_admitted_twice() {
    const JOBS: usize = 120;
    const QUOTA: usize = 80;
    let world = need!(Installed::new().await);
    // Webhooks are none of this test's business: with nobody there they would refuse.
    for kind in ["mutating", "validating"] {
        let done = world
            .shell
            .run("", &format!("kubectl delete {kind}webhookconfiguration usher-{kind}-webhook-configuration"));
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let kubeconfig = world.kubeconfig();
    let mut copies = ["one", "two"].map(|name| Copy::start(&kubeconfig, world.dir.path(), name, &[]));
    world.queue(&QUOTA.to_string()).await;
    let leader = until("one leads", async || match (copies[0].leads().await, copies[1].leads().await) {
        (true, false) => Some(0),
        (false, true) => Some(1),
        (true, true) => panic!("both lead"),
        (false, false) => None,
    })
    .await;

    let seen = record(&world.client);
    let jobs = world.jobs("default");
    let make = async |from: usize, to: usize| {
        for at in from..to {
            let mut job = job(&format!("j{at}"), json!({QUEUE: "default"}));
            job.spec.as_mut().expect("a spec").suspend = Some(true);
            create(jobs.clone(), &job).await;
        }
    };
    make(0, JOBS / 2).await;
    let admitted = || seen.lock().expect("a lock").reserved.values().filter(|has| **has).count();
    until("it is in the middle of it", async || (admitted() >= JOBS / 8).then_some(())).await;
    copies[leader].kill();
    make(JOBS / 2, JOBS).await;
    let other = &mut copies[1 - leader];
    until("the other leads", async || other.leads().await.then_some(())).await;
    until("all that fit are admitted", async || (admitted() == QUOTA).then_some(())).await;

    let workloads: Api<Workload> = Api::default_namespaced(world.client.clone());
    let waiting = async || {
        let all = workloads.list(&ListParams::default()).await.ok()?.items;
        let says_why = |w: &&Workload| {
            conditions::find(&w.status.conditions, "QuotaReserved").is_some_and(|c| c.status == "False")
        };
        (all.len() == JOBS && all.iter().filter(says_why).count() == JOBS - QUOTA).then_some(())
    };
    until("all others say why they wait", waiting).await;
    let running = async || {
        let all = jobs.list(&ListParams::default()).await.ok()?.items;
        let running = all.iter().filter(|job| !is_suspended(job)).count();
        assert!(running <= QUOTA, "{running} run");
        (running == QUOTA).then_some(())
    };
    until("what is admitted runs", running).await;
    {
        let seen = seen.lock().expect("a lock");
        assert_eq!(seen.most_at_once, QUOTA);
        assert!(seen.admissions.values().all(|times| *times == 1), "{:?}", seen.admissions);
    }

    // Told to stop, it gives the lease back: a third copy need not wait for it to expire.
    let third = Copy::start(&kubeconfig, world.dir.path(), "three", &[]);
    assert!(!third.leads().await);
    let began = Instant::now();
    assert_eq!(other.terminate(), Some(0));
    until("the third leads", async || third.leads().await.then_some(())).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(seen.lock().expect("a lock").most_at_once, QUOTA);
}

/// The Service is an address outside here, because nothing routes cluster addresses.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_passes_on_who_waits_to_those_who_may_know() {
    let world = need!(Installed::new().await);
    let kubeconfig = world.kubeconfig();
    let flags = ["--listen=127.0.0.1:0", "--visibility=127.0.0.1:0"];
    let usher = Copy::start(&kubeconfig, world.dir.path(), "usher", &flags);
    world.apply(&format!("--webhook-url https://{}", usher.places["listen"]));
    world.answers().await;
    let version = "v1beta2.visibility.kueue.x-k8s.io";
    let believed = async || {
        let done = world.shell.run("", &format!("kubectl get apiservice {version} -o yaml"));
        done.stdout.contains("caBundle").then_some(())
    };
    until("the API server is told whom to trust", believed).await;
    let port = usher.places["visibility"].rsplit(':').next().expect("a port");
    let there = format!("{{\"spec\":{{\"service\":{{\"port\":{port}}}}}}}");
    for step in [
        "kubectl -n usher-system delete service usher-visibility-server",
        "kubectl -n usher-system create service externalname usher-visibility-server --external-name localhost",
        &format!("kubectl patch apiservice {version} --type merge -p '{there}'"),
    ] {
        let done = world.shell.run_long("", step);
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    world.queue("0").await;
    for name in ["a", "b"] {
        create(world.jobs("default"), &job(name, json!({QUEUE: "default"}))).await;
    }
    let path = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/q/pendingworkloads";
    let shown = until("both are shown", async || {
        let done = world.shell.run("", &format!("kubectl get --raw {path}"));
        let shown: Value = serde_json::from_str(&done.stdout).ok()?;
        (shown["items"].as_array()?.len() == 2).then_some(shown)
    })
    .await;
    assert_eq!(shown["kind"], "PendingWorkloadsSummary");
    assert_eq!(shown["items"][1]["positionInClusterQueue"], 1);
    let as_eve = format!("kubectl --as system:serviceaccount:default:eve get --raw {path}");
    let refused = world.shell.run("", &as_eve);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.to_lowercase().contains("forbidden"), "{refused:?}");
}
