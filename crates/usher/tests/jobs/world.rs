//! A server in this process on virtual time, the controllers, and a pretended node; or a corner of a cluster elsewhere.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::gates::Gates;
use usher_apiserver::{Keys, Server};
use usher_controllers::job::Policy;
use usher_controllers::{Controllers, Handle, Options, job, queueing};
use usher_env::{Clock, Ids};
use usher_store::Store;

use super::kubelet::Kubelet;

/// Where this is set to a kubeconfig, stories are told on that cluster, in time that passes by itself.
pub const CLUSTER: &str = "USHER_STORIES_ON";

/// A duration that is a parameter: long where time costs nothing, short where it is real.
pub fn either(virtually: u64, really: u64) -> u64 {
    if std::env::var_os(CLUSTER).is_some() { really } else { virtually }
}

pub struct World {
    pub client: Client,
    pub clock: Clock,
    gates: Gates,
    /// How work waits in queues, if it does.
    queues: Option<queueing::Policy>,
    controllers: Option<Handle>,
    /// What can be seen of the queues since the controllers were last started.
    pub outlook: queueing::Outlook,
    _kubelet: Option<Kubelet>,
    elsewhere: Option<Box<dyn Switch>>,
}

/// Starts and stops controllers that are not the world's own.
pub trait Switch {
    fn start(&self, through: &dyn Fn(Client) -> Client);
    fn stop(&self) -> LocalBoxFuture<'_, ()>;
}

impl World {
    pub async fn new() -> World {
        World::with_gates(Gates::default()).await
    }

    pub async fn with_gates(gates: Gates) -> World {
        World::with(gates, None).await
    }

    pub async fn with(gates: Gates, queues: Option<queueing::Policy>) -> World {
        let (server, clock) = server(gates.clone()).await;
        if queues.is_some() {
            server.install(usher_api::kueue::definitions()).await.expect("the kinds of queues");
            server.install(usher_api::ray::definitions()).await.expect("the kinds of Ray");
            server.clone().start_custom_resources();
        }
        let client = Client::new(server.service_as(User::new("tester", &[MASTERS])), "default");
        World::on(client, clock, gates, queues)
    }

    /// The controllers and the node against whatever `client` leads to.
    pub fn on(client: Client, clock: Clock, gates: Gates, queues: Option<queueing::Policy>) -> World {
        let kubelet = Kubelet::start(client.clone(), clock.clone());
        let outlook = queueing::Outlook::default();
        let _kubelet = Some(kubelet);
        let mut world = World { client, clock, gates, queues, controllers: None, outlook, _kubelet, elsewhere: None };
        world.start_controllers();
        world
    }

    /// Where controllers and nodes are already at work.
    pub fn elsewhere(client: Client, clock: Clock, switch: Box<dyn Switch>) -> World {
        let gates = Gates::default();
        let outlook = queueing::Outlook::default();
        World {
            client,
            clock,
            gates,
            queues: None,
            controllers: None,
            outlook,
            _kubelet: None,
            elsewhere: Some(switch),
        }
    }

    pub fn start_controllers(&mut self) {
        self.start_controllers_through(&|client| client);
    }

    /// With a client that does not do all that it is told.
    pub fn start_controllers_through(&mut self, through: &dyn Fn(Client) -> Client) {
        if let Some(switch) = &self.elsewhere {
            return switch.start(through);
        }
        let clear = self.gates.mutable_directives_when_suspended;
        let policy = Policy { clear_start_time_on_suspend: clear };
        self.outlook = queueing::Outlook::default();
        let options = Options {
            gc: true,
            namespaces: true,
            service_accounts: true,
            job: Some(job::Options { policy, ..Default::default() }),
            ttl_after_finished: true,
            ray_cluster: self.queues.is_some(),
            queueing: self.queues.clone(),
            queueing_outlook: self.outlook.clone(),
            ..Options::none()
        };
        self.controllers = Some(Controllers::start(through(self.client.clone()), self.clock.clone(), options));
    }

    /// How work waits in queues when the controllers are started again.
    pub fn set_queues(&mut self, policy: queueing::Policy) {
        self.queues = Some(policy);
    }

    /// As a crash would: nothing is finished, nothing is put away.
    pub async fn stop_controllers(&mut self) {
        if let Some(switch) = &self.elsewhere {
            return switch.stop().await;
        }
        if let Some(controllers) = self.controllers.take() {
            controllers.stop().await;
        }
    }

    pub fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates a Job: `spec` with a template whose pods have `notes` (see the kubelet) written on them.
    pub async fn create(&self, name: &str, spec: Value, notes: Value) -> Job {
        let job = json!({"metadata": {"name": name}, "spec": {"template": {
            "metadata": {"annotations": notes},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "containers": [{"name": "main", "image": "busybox"}]},
        }}});
        let mut job = job;
        merge(&mut job["spec"], &spec);
        let job = serde_json::from_value(job).expect("a job");
        self.jobs().create(&Default::default(), &job).await.expect("create the job")
    }

    pub async fn patch(&self, name: &str, spec: Value) -> Result<Job, kube::Error> {
        self.jobs().patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
    }

    pub async fn edit(&self, name: &str, spec: Value) -> Job {
        self.patch(name, spec).await.unwrap_or_else(|error| panic!("patch {name}: {error}"))
    }

    pub async fn job(&self, name: &str) -> Job {
        self.jobs().get(name).await.expect("the job")
    }

    /// The pods of a Job, in order of creation.
    pub async fn pods_of(&self, name: &str) -> Vec<Pod> {
        let label = format!("batch.kubernetes.io/job-name={name}");
        let mut pods = self.pods().list(&ListParams::default().labels(&label)).await.expect("pods").items;
        pods.sort_by_key(|pod| pod.resource_version().and_then(|r| r.parse::<u64>().ok()));
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
        pods
    }

    pub async fn until(&self, name: &str, what: &str, is: impl Fn(&JobStatus) -> bool) -> Job {
        until(&format!("{name} {what}"), async || {
            let job = self.jobs().get_opt(name).await.expect("get the job")?;
            let status = job.status.clone().unwrap_or_default();
            let so = is(&status);
            if so { Some(job) } else { None }
        })
        .await
    }

    pub async fn until_condition(&self, name: &str, kind: &str) -> Job {
        self.until(name, &format!("is {kind}"), |status| condition(status, kind).is_some_and(|c| c.status == "True"))
            .await
    }

    pub async fn until_pods(&self, name: &str, what: &str, is: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
        until(&format!("{name}'s pods {what}"), async || Some(self.pods_of(name).await).filter(|pods| is(pods))).await
    }

    /// Events about an object: type, reason, message.
    pub async fn events(&self, name: &str) -> Vec<(String, String, String)> {
        let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = Api::<Event>::namespaced(self.client.clone(), "default").list(&params).await.expect("events");
        let text = |field: Option<String>| field.unwrap_or_default();
        events.items.into_iter().map(|event| (text(event.type_), text(event.reason), text(event.message))).collect()
    }

    pub async fn until_event(&self, name: &str, reason: &str, message: &str) {
        let is = |event: &(String, String, String)| event.1 == reason && event.2 == message;
        let what = format!("an event {reason} about {name}: {message}");
        until(&what, async || self.events(name).await.iter().any(is).then_some(())).await
    }

    /// Lets time pass, in which nothing that should not happen happens; where time is real, not for long.
    pub async fn pass(&self, secs: u64) {
        let secs = if secs > 30 { either(secs, 3) } else { secs };
        tokio::time::sleep(Duration::from_secs(secs)).await;
    }
}

/// Our server on virtual time, with nothing in it yet.
pub async fn server(gates: Gates) -> (Server, Clock) {
    let clock = Clock::virtual_from("2026-11-15T00:00:00Z".parse().expect("a time"));
    let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).expect("keys");
    let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
    let store = Store::open_memory(usher_store::Options::default());
    let options = usher_apiserver::Options { gates, ..Default::default() };
    let server = Server::new(store, clock.clone(), Ids::seeded(7), options, keys);
    server.bootstrap().await.expect("bootstrap");
    (server, clock)
}

pub async fn until<T, Fut: Future<Output = Option<T>>>(what: &str, mut state: impl FnMut() -> Fut) -> T {
    let mut pause = Duration::from_millis(5);
    let (longest, deadline) = (Duration::from_millis(either(100, 200)), Duration::from_secs(either(2000, 60)));
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < deadline {
        if let Some(found) = state().await {
            return found;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
    panic!("still not so: {what}");
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

pub fn condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// The types of the conditions that are True, in order.
pub fn conditions(job: &Job) -> Vec<String> {
    let status = job.status.clone().unwrap_or_default();
    status.conditions.into_iter().flatten().filter(|c| c.status == "True").map(|c| c.type_).collect()
}

pub fn reason(job: &Job, kind: &str) -> (String, String) {
    let status = job.status.clone().unwrap_or_default();
    let condition = condition(&status, kind).unwrap_or_else(|| panic!("no condition {kind} in {status:?}")).clone();
    (condition.reason.unwrap_or_default(), condition.message.unwrap_or_default())
}

/// active, ready, terminating, succeeded, failed.
pub fn counts(job: &Job) -> [i32; 5] {
    let s = job.status.clone().unwrap_or_default();
    [s.active, s.ready, s.terminating, s.succeeded, s.failed].map(|count| count.unwrap_or(0))
}

pub fn time_of(job: &Job, kind: &str) -> Timestamp {
    let status = job.status.clone().unwrap_or_default();
    condition(&status, kind).and_then(|c| c.last_transition_time.clone()).expect("a time").0
}

pub fn start_time(job: &Job) -> Option<Timestamp> {
    job.status.as_ref()?.start_time.as_ref().map(|time| time.0)
}

pub fn created(pod: &Pod) -> Timestamp {
    pod.metadata.creation_timestamp.as_ref().expect("a creation time").0
}

pub fn gaps(pods: &[Pod]) -> Vec<i64> {
    pods.windows(2).map(|pair| created(&pair[1]).duration_since(created(&pair[0])).as_secs()).collect()
}

pub fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|f| f == "batch.kubernetes.io/job-tracking")
}

pub fn is_active(pod: &Pod) -> bool {
    !super::kubelet::has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

pub fn secs(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

pub fn shown(value: &impl Debug) -> String {
    format!("{value:?}")
}
