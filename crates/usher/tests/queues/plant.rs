//! The cluster that stories run on in their second mode, and the controllers of `usher controller` on it: one set of them for all
//! stories, in this process, on a runtime of their own. A story that needs another policy has them for itself; one that stops
//! and starts them does so to all, and no other may notice.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use futures::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedMutexGuard, RwLock};
use usher_controllers::queueing::Policy;
use usher_controllers::{Controllers, Handle, Options};
use usher_env::Clock;

use super::corner;
use super::world::{CLUSTER, Switch, World, until};

struct Plant {
    kubeconfig: PathBuf,
    runtime: Runtime,
    running: Mutex<Option<(Policy, Handle)>>,
    /// Stories that share the controllers read; one that has them for itself writes.
    floor: Arc<RwLock<()>>,
    /// Held from stop to start.
    stopped: Arc<tokio::sync::Mutex<()>>,
    installed: tokio::sync::OnceCell<()>,
}

static PLANT: LazyLock<Option<Plant>> = LazyLock::new(|| {
    let kubeconfig = PathBuf::from(std::env::var_os(CLUSTER)?);
    let filter = tracing_subscriber::EnvFilter::try_from_env("USHER_LOG").unwrap_or_default();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    Some(Plant {
        kubeconfig,
        runtime,
        running: Mutex::default(),
        floor: Arc::default(),
        stopped: Arc::default(),
        installed: tokio::sync::OnceCell::new(),
    })
});
static STORIES: AtomicU32 = AtomicU32::new(0);

/// The world of a story on the cluster, if that is where stories run.
pub async fn world(policy: &Policy) -> Option<World> {
    let plant = PLANT.as_ref()?;
    let_time_run();
    let alone = *policy != Policy::default();
    let floor = plant.floor.clone();
    let place: Box<dyn Send> =
        if alone { Box::new(floor.write_owned().await) } else { Box::new(floor.read_owned().await) };
    let client = plant.client().await;
    plant.installed.get_or_init(|| install(&client)).await;
    plant.set(policy).await;
    // Nothing else is called so, not even in another process.
    let prefix = format!("z{:x}x{}-", std::process::id(), STORIES.fetch_add(1, Ordering::Relaxed));
    let namespace = format!("{prefix}default");
    let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("a namespace");
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.expect("a namespace");
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &namespace);
    until("pods can be made", async || accounts.get_opt("default").await.expect("accounts")).await;
    let switch = Shared { policy: policy.clone(), stopped: Mutex::default(), _place: place };
    Some(World::elsewhere(corner::client_of(client, &prefix), Clock::wall(), Box::new(switch)))
}

/// Tests are begun with time standing still.
fn let_time_run() {
    let before = tokio::time::Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(2));
    if before == tokio::time::Instant::now() {
        tokio::time::resume();
    }
}

impl Plant {
    async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a config");
        config.read_timeout = None;
        Client::try_from(config).expect("a client")
    }

    /// Has the controllers run with this policy.
    async fn set(&'static self, policy: &Policy) {
        let _turn = self.stopped.lock().await;
        if self.running.lock().as_ref().is_some_and(|(running, _)| running == policy) {
            return;
        }
        self.stop().await;
        self.start(policy, &|client| client);
    }

    /// What `usher controller` runs; and RayClusters get their pods from us, as there is no KubeRay.
    fn start(&'static self, policy: &Policy, through: &dyn Fn(Client) -> Client) {
        let mut running = self.running.lock();
        if running.is_some() {
            return;
        }
        let options = Options { queueing: Some(policy.clone()), ray_cluster: true, ..Options::none() };
        let client = std::thread::scope(|scope| {
            scope.spawn(|| self.runtime.block_on(self.client())).join().expect("a client of that runtime")
        });
        let _on_it = self.runtime.enter();
        *running = Some((policy.clone(), Controllers::start(through(client), Clock::wall(), options)));
    }

    async fn stop(&'static self) {
        let running = self.running.lock().take();
        if let Some((_, handle)) = running {
            handle.stop().await;
        }
    }
}

struct Shared {
    policy: Policy,
    stopped: Mutex<Option<OwnedMutexGuard<()>>>,
    _place: Box<dyn Send>,
}

impl Switch for Shared {
    fn start(&self, through: &dyn Fn(Client) -> Client) {
        PLANT.as_ref().expect("a plant").start(&self.policy, through);
        self.stopped.lock().take();
    }

    fn stop(&self) -> LocalBoxFuture<'_, ()> {
        let plant = PLANT.as_ref().expect("a plant");
        Box::pin(async {
            let turn = plant.stopped.clone().lock_owned().await;
            *self.stopped.lock() = Some(turn);
            plant.stop().await;
        })
    }
}

async fn install(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let how = PatchParams::apply("usher").force();
    for definition in usher_api::kueue::definitions().into_iter().chain(usher_api::ray::definitions()) {
        let name = definition["metadata"]["name"].as_str().expect("a name").to_owned();
        api.patch(&name, &how, &Patch::Apply(&definition)).await.expect("a definition");
        until(&format!("{name} is served"), async || {
            let conditions = api.get(&name).await.expect("it").status?.conditions?;
            conditions.iter().any(|c| c.type_ == "Established" && c.status == "True").then_some(())
        })
        .await;
    }
}
