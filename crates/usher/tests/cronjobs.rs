//! CronJobs as people see them: on virtual time against our server in this process, a year among it; with kubectl against the
//! binary; and event by event against the real controller and a real kube-apiserver.

mod harness;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tower::{BoxError, ServiceExt};
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::{Keys, Options, Server};
use usher_controllers::cronjob::{Metrics, Policy};
use usher_controllers::runtime::QueueMetrics;
use usher_controllers::{Controllers, Handle};
use usher_env::{Clock, Ids};
use usher_store::Store;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Refuses or swallows requests of the controllers, for tests of what happens then.
type Fault = Arc<std::sync::Mutex<Box<dyn FnMut(&Request<Body>) -> Meddle + Send>>>;

#[derive(Clone, Copy, PartialEq)]
enum Meddle {
    Pass,
    /// An event that is said to be stored and is not.
    Forget,
    Refuse,
    /// Neither does it arrive nor is it answered: as if the controllers had been killed just before.
    Lose,
    /// It arrives and is not answered: as if they had been killed just after.
    Mute,
}

/// Our server on virtual time, with the CronJob controller alone and a stand-in for the Job controller.
struct Plane {
    clock: Clock,
    store: Store,
    server: Server,
    client: Client,
    controllers: Option<Handle>,
    fault: Fault,
    metrics: Metrics,
    /// What its work queue has been through.
    work: QueueMetrics,
    /// Every Job that was ever created, in order.
    created: Arc<std::sync::Mutex<Vec<Job>>>,
}

impl Plane {
    async fn start(now: &str) -> Plane {
        let clock = Clock::virtual_from(now.parse().expect("a time"));
        let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).expect("keys");
        let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
        let store = Store::open_memory(usher_store::Options::default());
        let server = Server::new(store.clone(), clock.clone(), Ids::seeded(7), Options::default(), keys);
        server.bootstrap().await.expect("bootstrap");
        let client = Client::new(server.service_as(User::new("tester", &[MASTERS])), "default");
        let created = Arc::default();
        tokio::spawn(finish_jobs(client.clone(), clock.clone(), Arc::clone(&created)));
        let fault: Fault = Arc::new(std::sync::Mutex::new(Box::new(|_| Meddle::Pass)));
        let (metrics, work) = (Metrics::default(), QueueMetrics::default());
        let mut plane = Plane { clock, store, server, client, controllers: None, fault, metrics, work, created };
        plane.restart(Policy::default());
        plane
    }

    /// Kills the controllers where they are and starts others.
    fn restart(&mut self, policy: Policy) {
        drop(self.controllers.take());
        let inner = self.server.service_as(User::new("system:usher", &[MASTERS]));
        let fault = self.fault.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (inner, meddle) = (inner.clone(), (fault.lock().expect("a fault"))(&request));
            async move {
                if meddle == Meddle::Forget {
                    let body =
                        r#"{"kind": "Event", "apiVersion": "v1", "metadata": {"name": "e"}, "involvedObject": {}}"#;
                    let body = Full::new(Bytes::from(body)).map_err(BoxError::from).boxed_unsync();
                    return Ok(Response::builder().status(StatusCode::CREATED).body(body).expect("a response"));
                }
                if meddle == Meddle::Refuse {
                    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no luck today", "reason": "InternalError", "code": 500});
                    let refusal = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR);
                    let body = Full::new(Bytes::from(body.to_string())).map_err(BoxError::from).boxed_unsync();
                    return Ok(refusal.body(body).expect("a response"));
                }
                if meddle == Meddle::Lose {
                    std::future::pending::<()>().await;
                }
                let answer = inner.oneshot(request).await;
                let answer = answer.map(|response| response.map(|body| body.map_err(BoxError::from).boxed_unsync()));
                if meddle == Meddle::Mute {
                    std::future::pending::<()>().await;
                }
                answer
            }
        });
        let options = usher_controllers::Options {
            cronjob: Some(policy),
            cronjob_metrics: self.metrics.clone(),
            metrics: self.work.clone(),
            ..usher_controllers::Options::none()
        };
        self.controllers = Some(Controllers::start(Client::new(service, "default"), self.clock.clone(), options));
    }

    fn meddle(&self, fault: impl FnMut(&Request<Body>) -> Meddle + Send + 'static) {
        *self.fault.lock().expect("a fault") = Box::new(fault);
    }

    fn crons(&self) -> Api<CronJob> {
        Api::default_namespaced(self.client.clone())
    }

    fn jobs(&self) -> Api<Job> {
        Api::default_namespaced(self.client.clone())
    }

    async fn create(&self, name: &str, spec: Value) -> CronJob {
        self.crons().create(&Default::default(), &cron(name, spec)).await.expect("a CronJob")
    }

    async fn cron(&self, name: &str) -> CronJob {
        self.crons().get(name).await.expect("the CronJob")
    }

    /// Virtual time: everything that is due until then happens before this returns.
    async fn pass(&self, secs: u64) {
        tokio::time::sleep(Duration::from_secs(secs)).await;
    }

    /// The annotations of all Jobs ever created, in order.
    fn scheduled(&self) -> Vec<String> {
        let created = self.created.lock().expect("the list");
        created.iter().map(|job| job.annotations().get(SCHEDULED).cloned().unwrap_or_default()).collect()
    }

    async fn events(&self) -> Vec<String> {
        let events = Api::<Event>::default_namespaced(self.client.clone()).list(&Default::default()).await;
        let mut events = events.expect("events").items;
        events.sort_by_key(|event| event.resource_version().and_then(|r| r.parse::<u64>().ok()));
        events.iter().map(|e| format!("{}: {}", text(&e.reason), text(&e.message))).collect()
    }
}

fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or_default()
}

fn cron(name: &str, spec: Value) -> CronJob {
    let template = json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let mut all = json!({"metadata": {"name": name}, "spec": {"schedule": "*/10 * * * *", "jobTemplate": template}});
    for (key, value) in spec.as_object().expect("a spec") {
        all["spec"][key] = value.clone();
    }
    serde_json::from_value(all).expect("a CronJob")
}

/// A template whose Jobs end as told: `fail`, or `hold` for those that never end.
fn ending(how: &str) -> Value {
    json!({"metadata": {"labels": {"ending": how}}, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
}

/// Ends each Job a second after it was created, as the Job controller would after its pods.
async fn finish_jobs(client: Client, clock: Clock, created: Arc<std::sync::Mutex<Vec<Job>>>) {
    let jobs = Api::<Job>::default_namespaced(client);
    let watch = WatchParams { timeout: Some(0), ..WatchParams::default() };
    let mut events = Box::pin(jobs.watch(&watch, "0").await.expect("a watch"));
    while let Ok(Some(event)) = events.try_next().await {
        let WatchEvent::Added(job) = event else { continue };
        created.lock().expect("the list").push(job.clone());
        let ending = job.labels().get("ending").cloned().unwrap_or_default();
        if ending != "hold" {
            let (jobs, clock) = (jobs.clone(), clock.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                finish(&jobs, &clock, &job.name_any(), &ending).await;
            });
        }
    }
}

async fn finish(jobs: &Api<Job>, clock: &Clock, name: &str, ending: &str) {
    let now = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let status = match ending {
        "fail" => json!({"startTime": now, "conditions": [condition("FailureTarget"), condition("Failed")]}),
        _ => json!({"startTime": now, "completionTime": now, "succeeded": 1,
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]}),
    };
    let patch = Patch::Merge(json!({"status": status}));
    // It may have been deleted meanwhile.
    if let Err(error) = jobs.patch_status(name, &PatchParams::default(), &patch).await {
        assert!(matches!(&error, kube::Error::Api(status) if status.code == 404), "{error}");
    }
}

/// When clocks in `zone` show `time`, day after day: never, once or twice a day.
fn daily(zone: &TimeZone, time: jiff::civil::Time, first: jiff::civil::Date, days: i32) -> Vec<Timestamp> {
    let mut all = Vec::new();
    for day in 0..days {
        let shown = (first + day.days()).to_datetime(time);
        let ambiguous = zone.to_ambiguous_timestamp(shown);
        if ambiguous.is_ambiguous() {
            let (earlier, later) = (ambiguous.earlier().expect("a time"), ambiguous.later().expect("a time"));
            // In a gap both show another time than asked for.
            all.extend([earlier, later].into_iter().filter(|at| at.to_zoned(zone.clone()).datetime() == shown));
        } else {
            all.push(ambiguous.compatible().expect("a time"));
        }
    }
    all
}

fn shown(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// Runs one CronJob in Berlin from 22:30 UTC before `first` on, and holds each of its Jobs against `slots`.
async fn run_in_berlin(schedule: &str, first: jiff::civil::Date, days: u64, slots: Vec<Timestamp>) -> Plane {
    let before = first.at(0, 0, 0, 0) - 90.minutes();
    let plane = Plane::start(&format!("{before}Z")).await;
    // Not what this is about, and a third of all requests.
    plane.meddle(|request| if request.uri().path().contains("/events") { Meddle::Forget } else { Meddle::Pass });
    let berlin = TimeZone::get("Europe/Berlin").expect("a zone");
    plane.create("c", json!({"schedule": schedule, "timeZone": "Europe/Berlin"})).await;
    plane.pass(days * 86_400).await;

    let expected: Vec<_> = slots.iter().map(|slot| shown(*slot, &berlin)).collect();
    let wrong = plane.scheduled().into_iter().zip(&expected).find(|(ours, expected)| ours != *expected);
    assert_eq!((plane.scheduled().len(), wrong), (expected.len(), None));
    for (job, slot) in plane.created.lock().expect("the list").iter().zip(&slots) {
        assert_eq!(job.name_any(), format!("c-{}", slot.as_second() / 60));
        assert_eq!(job.creation_timestamp().expect("a time").0, *slot, "created in the second it was meant for");
    }
    let kept = plane.jobs().list(&ListParams::default()).await.expect("jobs").items.len();
    assert_eq!(kept, 3, "as many as the history holds");
    plane
}

#[tokio::test(start_paused = true)]
async fn a_year_of_half_past_two_in_berlin_has_a_day_without_and_a_day_with_two() {
    let berlin = TimeZone::get("Europe/Berlin").expect("a zone");
    let first = jiff::civil::date(2026, 1, 1);
    let slots = daily(&berlin, jiff::civil::time(2, 30, 0, 0), first, 365);
    let plane = run_in_berlin("30 2 * * *", first, 365, slots).await;
    let all = plane.scheduled();
    let has = |text: &str| all.iter().filter(|a| *a == text).count();
    assert_eq!((has("2026-03-28T02:30:00+01:00"), has("2026-03-30T02:30:00+02:00")), (1, 1));
    assert_eq!((has("2026-10-25T02:30:00+02:00"), has("2026-10-25T02:30:00+01:00")), (1, 1));
    assert_eq!((all.len(), all.iter().filter(|a| a.starts_with("2026-03-29")).count()), (365, 0));
}

async fn run_every_hour_in_berlin(first: jiff::civil::Date, days: i64) {
    let started = Instant::now();
    let start = first.at(0, 0, 0, 0).to_zoned(TimeZone::UTC).expect("a time").timestamp();
    let slots = (-1..days * 24 - 1).map(|hour| start + SignedDuration::from_hours(hour)).collect();
    run_in_berlin("0 * * * *", first, days as u64, slots).await;
    println!("{days} days in {:.1?}", started.elapsed());
}

/// The hours of a whole year are decided in `usher-controllers`' tests.
#[tokio::test(start_paused = true)]
async fn every_hour_around_both_clock_changes_in_berlin_comes_once() {
    run_every_hour_in_berlin(jiff::civil::date(2026, 3, 26), 6).await;
    run_every_hour_in_berlin(jiff::civil::date(2026, 10, 22), 6).await;
}

/// Where the server is compiled to be fast this takes seconds: a firing is some six requests, and 8,760 of them cost an
/// unoptimised server minutes.
#[cfg(not(debug_assertions))]
#[tokio::test(start_paused = true)]
async fn a_year_of_every_hour_in_berlin_has_every_hour_once() {
    run_every_hour_in_berlin(jiff::civil::date(2026, 1, 1), 365).await;
}

#[tokio::test(start_paused = true)]
async fn killed_at_any_moment_around_a_slot_it_creates_each_job_once() {
    let mut plane = Plane::start("2026-11-16T00:00:30Z").await;
    plane.create("c", json!({"schedule": "* * * * *"})).await;
    for slot in 0..12 {
        let (writes, how) = (slot / 2, if slot % 2 == 0 { Meddle::Lose } else { Meddle::Mute });
        let mut seen = 0;
        plane.meddle(move |request| {
            let write = *request.method() != Method::GET && !request.uri().path().contains("/events");
            if write {
                seen += 1;
            }
            if write && seen > writes { how } else { Meddle::Pass }
        });
        plane.pass(40).await;
        plane.meddle(|_| Meddle::Pass);
        plane.restart(Policy::default());
        plane.pass(20).await;
    }
    let scheduled = plane.scheduled();
    let expected: Vec<_> = (1..=12).map(|minute| format!("2026-11-16T00:{minute:02}:00Z")).collect();
    assert_eq!(scheduled, expected);
    let status = plane.cron("c").await.status.expect("a status");
    assert_eq!(
        (status.active, status.last_schedule_time.map(|t| t.0.to_string())),
        (None, Some("2026-11-16T00:12:00Z".into()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_starts_the_latest_missed_slot_at_once() {
    let plane = Plane::start("2026-11-16T00:05:00Z").await;
    plane.create("c", json!({})).await;
    plane.pass(10).await;
    let before = tokio::time::Instant::now();
    plane.clock.jump(SignedDuration::from_hours(1));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(plane.scheduled(), ["2026-11-16T01:00:00Z"], "of six missed slots the last one");
    assert!(before.elapsed() < Duration::from_secs(1));
    plane.pass(600).await;
    assert_eq!(plane.scheduled()[1..], ["2026-11-16T01:10:00Z"]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_uses_no_slot_twice() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({})).await;
    plane.pass(90).await;
    assert_eq!(plane.scheduled(), ["2026-11-16T00:10:00Z"]);
    plane.clock.jump(SignedDuration::from_mins(-1));
    plane.pass(9 * 60).await;
    assert_eq!(plane.scheduled().len(), 1);
    plane.pass(120).await;
    assert_eq!(plane.scheduled()[1..], ["2026-11-16T00:20:00Z"]);
}

#[tokio::test(start_paused = true)]
async fn without_its_gate_the_annotation_is_missing_and_with_it_again_only_new_jobs_have_it() {
    let mut plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.restart(Policy { annotate: false, ..Policy::default() });
    plane.create("c", json!({})).await;
    plane.pass(120).await;
    let old = plane.jobs().list(&ListParams::default()).await.expect("jobs").items;
    assert_eq!(plane.scheduled(), [""]);
    assert_eq!(old[0].metadata.annotations, None, "nothing else changes");
    plane.restart(Policy::default());
    plane.pass(600).await;
    assert_eq!(plane.scheduled(), ["", "2026-11-16T00:20:00Z"]);
    let still = plane.jobs().get(&old[0].name_any()).await.expect("the Job");
    assert_eq!(still.resource_version(), old[0].resource_version(), "never touched");
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_the_schedule_starts_nothing_and_a_resumed_cron_job_catches_up() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({"schedule": "0 * * * *", "suspend": true})).await;
    plane.pass(3600).await;
    assert!(plane.scheduled().is_empty());
    let edit = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        plane.crons().patch("c", &Default::default(), &patch).await.expect("edited");
    };
    edit(json!({"suspend": false})).await;
    // Until its Job has ended too: any news but a new schedule makes what is due start.
    plane.pass(5).await;
    assert_eq!(plane.scheduled(), ["2026-11-16T01:00:00Z"]);
    edit(json!({"schedule": "5 * * * *"})).await;
    plane.pass(60).await;
    assert_eq!(plane.scheduled().len(), 1, "01:05 has passed, and an edit waits for a slot");
    edit(json!({"schedule": "30 * * * *"})).await;
    plane.pass(30 * 60).await;
    assert_eq!(plane.scheduled()[1..], ["2026-11-16T01:30:00Z"], "not first at 02:00");
}

#[tokio::test(start_paused = true)]
async fn forbidden_runs_wait_for_the_running_one_and_then_the_latest_slot_starts() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({"concurrencyPolicy": "Forbid", "jobTemplate": ending("hold")})).await;
    plane.pass(35 * 60).await;
    assert_eq!(plane.scheduled(), ["2026-11-16T00:10:00Z"]);
    assert_eq!(plane.cron("c").await.status.and_then(|s| s.active).map(|a| a.len()), Some(1));
    let told = plane.events().await;
    assert!(
        told.contains(
            &"JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid"
                .to_owned()
        ),
        "{told:?}"
    );
    let name = plane.created.lock().expect("the list")[0].name_any();
    finish(&plane.jobs(), &plane.clock, &name, "").await;
    plane.pass(1).await;
    assert_eq!(plane.scheduled()[1..], ["2026-11-16T00:40:00Z"]);
    let status = plane.cron("c").await.status.expect("a status");
    assert!(status.last_successful_time.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_replacing_run_deletes_the_running_one() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({"concurrencyPolicy": "Replace", "jobTemplate": ending("hold")})).await;
    plane.pass(15 * 60).await;
    let jobs = plane.jobs().list(&ListParams::default()).await.expect("jobs").items;
    assert_eq!(jobs.iter().map(|j| j.annotations()[SCHEDULED].as_str()).collect::<Vec<_>>(), ["2026-11-16T00:20:00Z"]);
    let active = plane.cron("c").await.status.and_then(|s| s.active).expect("active");
    assert_eq!((active.len(), &active[0].uid), (1, &jobs[0].metadata.uid));
    let first = plane.created.lock().expect("the list")[0].name_any();
    assert!(plane.events().await.contains(&format!("SuccessfulDelete: Deleted job {first}")));
}

#[tokio::test(start_paused = true)]
async fn history_keeps_as_many_as_it_is_told_of_each_kind() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("good", json!({"successfulJobsHistoryLimit": 2})).await;
    plane.create("bad", json!({"failedJobsHistoryLimit": 1, "jobTemplate": ending("fail")})).await;
    plane.create("none", json!({"successfulJobsHistoryLimit": 0})).await;
    plane.pass(3600).await;
    let jobs = plane.jobs().list(&ListParams::default()).await.expect("jobs").items;
    let names: Vec<_> = jobs.iter().map(|j| j.name_any().rsplit_once('-').expect("a name").0.to_owned()).collect();
    assert_eq!(names, ["bad", "good", "good"]);
    assert_eq!(plane.created.lock().expect("the list").len(), 18);
    let status = plane.cron("bad").await.status.expect("a status");
    assert_eq!((status.last_successful_time, status.active), (None, None));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_is_told_and_tried_again() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({"concurrencyPolicy": "Replace", "jobTemplate": ending("hold")})).await;
    let refuse = |method: Method, times: u32| {
        let mut left = times;
        plane.meddle(move |request| {
            let hit =
                *request.method() == method && request.uri().path().contains("/namespaces/default/jobs") && left > 0;
            left -= u32::from(hit);
            if hit { Meddle::Refuse } else { Meddle::Pass }
        });
    };
    refuse(Method::POST, 2);
    plane.pass(120).await;
    assert_eq!(plane.scheduled(), ["2026-11-16T00:10:00Z"]);
    refuse(Method::GET, 1);
    plane.pass(600).await;
    refuse(Method::DELETE, 1);
    plane.pass(600).await;
    assert_eq!(plane.scheduled().len(), 3);
    let told = plane.events().await;
    for expected in [
        "FailedCreate: Error creating job: no luck today",
        "FailedGet: Get job: no luck today",
        "FailedDelete: Deleted job: no luck today",
    ] {
        assert!(told.iter().any(|event| event == expected), "{expected} in {told:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_somebody_else_took_costs_one_slot_only() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    let slot: Timestamp = "2026-11-16T00:10:00Z".parse().expect("a time");
    let foreign = json!({"metadata": {"name": format!("c-{}", slot.as_second() / 60)},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    plane.jobs().create(&Default::default(), &serde_json::from_value(foreign).expect("a Job")).await.expect("created");
    plane.create("c", json!({})).await;
    plane.pass(12 * 60).await;
    assert_eq!(plane.scheduled(), ["", "2026-11-16T00:20:00Z"]);
}

/// Neither does the controller look at one of them nor ask the server for anything.
#[tokio::test(start_paused = true)]
async fn ten_thousand_cron_jobs_cost_nothing_between_slots() {
    let plane = Plane::start("2026-11-16T00:00:30Z").await;
    plane.create("soon", json!({"schedule": "0 0 20 12 *"})).await;
    let one = plane.create("c10000", json!({"schedule": "0 0 1 1 *"})).await;
    // The others are copies of it, in the store as if they had been created: the server would take its time.
    let collection = "batch/cronjobs";
    let bytes = plane.store.get(collection, "default/c10000").expect("it is there").value.clone();
    let text = String::from_utf8(bytes.to_vec()).expect("JSON");
    for number in 0..10_000 {
        let (name, uid) = (format!("c{number}"), format!("{number:08}-0000-4000-8000-000000000000"));
        let copy = text.replace("\"c10000\"", &format!("\"{name}\"")).replace(&one.uid().expect("a uid"), &uid);
        let put = usher_store::Op::Put(copy.into());
        let key = format!("default/{name}");
        plane.store.write(collection, &key, put, usher_store::Expect::Absent).await.expect("stored");
    }
    plane.pass(1).await;
    let syncs = || {
        let mut registry = prometheus_client::registry::Registry::default();
        plane.work.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        let line = text.lines().find(|l| l.starts_with("workqueue_adds_total{name=\"cronjob\"")).expect("the queue");
        line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    let before = syncs();
    assert!(before >= 10_000, "each was looked at once: {before}");
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = asked.clone();
    plane.meddle(move |_| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Meddle::Pass
    });
    plane.pass(30 * 86_400).await;
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 0, "requests in a month without slots");
    assert_eq!(syncs(), before, "and none was looked at again");
    plane.pass(5 * 86_400).await;
    assert_eq!(plane.scheduled(), ["2026-12-20T00:00:00Z"], "the one whose slot came was awake");
}

#[tokio::test(start_paused = true)]
async fn the_skew_is_measured_once_per_job() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({})).await;
    let measured = |expected: &[&str]| {
        let mut registry = prometheus_client::registry::Registry::default();
        plane.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        for line in expected {
            let line = format!("cronjob_controller_job_creation_skew_duration_seconds_{line}\n");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
    };
    plane.pass(25 * 60).await;
    measured(&["count 3", "sum 0.0", "bucket{le=\"1.0\"} 3", "bucket{le=\"512.0\"} 3"]);
    // From 00:34:00 to a minute and a half after the next slot.
    plane.clock.jump(SignedDuration::from_secs(6 * 60 + 90));
    plane.pass(5).await;
    measured(&["count 4", "sum 90.0", "bucket{le=\"64.0\"} 3", "bucket{le=\"128.0\"} 4"]);
}

/// Anybody who may write the status can list anything. What no Job can be found for is gone, and stops nothing.
#[tokio::test(start_paused = true)]
async fn what_is_listed_and_does_not_exist_is_removed_whatever_it_says() {
    let plane = Plane::start("2026-11-16T00:08:00Z").await;
    plane.create("c", json!({"concurrencyPolicy": "Forbid", "jobTemplate": ending("hold")})).await;
    let listed = json!([
        {"kind": "Job", "namespace": "default", "name": "no-uid"},
        {"kind": "Job", "namespace": "default", "name": "no-uid-2", "uid": ""},
        {"kind": "Job", "name": "no-namespace", "uid": "u1"},
        {"kind": "Job", "namespace": "elsewhere", "name": "far", "uid": "u2"},
        {"kind": "Job", "namespace": "default", "uid": "u3"},
        {"kind": "Job", "namespace": "default", "name": "a?limit=1", "uid": "u4"},
        {"kind": "Job", "namespace": "default", "name": "../cronjobs/c"},
    ]);
    let patch = Patch::Merge(json!({"status": {"active": listed}}));
    plane.crons().patch_status("c", &Default::default(), &patch).await.expect("a status");
    plane.pass(60).await;
    assert_eq!(plane.cron("c").await.status.and_then(|s| s.active), None);
    let told = plane.events().await;
    for name in ["no-uid", "no-uid-2", "no-namespace", "far", "", "a?limit=1", "../cronjobs/c"] {
        assert!(told.contains(&format!("MissingJob: Active job went missing: {name}")), "{name} in {told:#?}");
    }
    plane.pass(120).await;
    assert_eq!(plane.scheduled(), ["2026-11-16T00:10:00Z"]);
}

#[tokio::test(start_paused = true)]
async fn a_listed_job_without_a_uid_is_replaced_like_any_other() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({"concurrencyPolicy": "Replace", "jobTemplate": ending("hold")})).await;
    plane.pass(120).await;
    let first = plane.created.lock().expect("the list")[0].name_any();
    let listed = json!([{"kind": "Job", "namespace": "default", "name": first}]);
    let patch = Patch::Merge(json!({"status": {"active": listed}}));
    plane.crons().patch_status("c", &Default::default(), &patch).await.expect("a status");
    plane.pass(600).await;
    let active = plane.cron("c").await.status.and_then(|s| s.active).expect("active");
    let jobs = plane.jobs().list(&ListParams::default()).await.expect("jobs").items;
    assert_eq!((jobs.len(), active.len()), (1, 1));
    assert_eq!(active[0].uid, jobs[0].metadata.uid);
    assert_eq!(plane.scheduled().len(), 2);
}

/// The new Job does not wait for the old one's end, here as upstream.
#[tokio::test(start_paused = true)]
async fn a_replacing_run_does_not_wait_for_a_job_that_a_finalizer_holds() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({"concurrencyPolicy": "Replace", "jobTemplate": ending("hold")})).await;
    plane.pass(120).await;
    let first = plane.created.lock().expect("the list")[0].name_any();
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    plane.jobs().patch(&first, &Default::default(), &hold).await.expect("held");
    plane.pass(20 * 60).await;
    let expected = ["2026-11-16T00:10:00Z", "2026-11-16T00:20:00Z", "2026-11-16T00:30:00Z"];
    assert_eq!(plane.scheduled(), expected);
    let jobs = plane.jobs().list(&ListParams::default()).await.expect("jobs").items;
    let going: Vec<_> = jobs.iter().map(|job| job.metadata.deletion_timestamp.is_some()).collect();
    assert_eq!((jobs[0].name_any(), going), (first, vec![true, false]));
    let active = plane.cron("c").await.status.and_then(|s| s.active).expect("active");
    assert_eq!((active.len(), &active[0].uid), (1, &jobs[1].metadata.uid));
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_noticed_after_its_deadline_starts_nothing() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    plane.create("c", json!({"startingDeadlineSeconds": 60})).await;
    plane.pass(10).await;
    plane.clock.jump(SignedDuration::from_mins(5));
    plane.pass(60).await;
    assert!(plane.scheduled().is_empty(), "00:10 is over since four minutes");
    plane.pass(6 * 60).await;
    assert_eq!(plane.scheduled(), ["2026-11-16T00:20:00Z"], "the next one is on time");
    // 00:21:10, to half a minute after the slot.
    plane.clock.jump(SignedDuration::from_secs(9 * 60 + 20));
    plane.pass(5).await;
    assert_eq!(plane.scheduled()[1..], ["2026-11-16T00:30:00Z"], "late, but within its deadline");
}

/// A CronJob as it may be in the store from before its rules were what they are.
async fn store_as(plane: &Plane, name: &str, from: &str, to: &str) {
    let mould = plane.create("mould", json!({"suspend": true})).await;
    let bytes = plane.store.get("batch/cronjobs", "default/mould").expect("it is there").value.clone();
    let text = String::from_utf8(bytes.to_vec()).expect("JSON").replace("\"suspend\":true", "\"suspend\":false");
    assert!(text.contains(from), "{from} in {text}");
    let text = text.replace(&mould.uid().expect("a uid"), &format!("{name}-uid"));
    let text = text.replace("\"mould\"", &format!("\"{name}\"")).replace(from, to);
    let put = usher_store::Op::Put(text.into());
    let key = format!("default/{name}");
    plane.store.write("batch/cronjobs", &key, put, usher_store::Expect::Absent).await.expect("stored");
    plane.crons().delete("mould", &Default::default()).await.expect("deleted");
}

#[tokio::test(start_paused = true)]
async fn why_a_cron_job_cannot_run_is_told() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    let mut template = ending("");
    template["metadata"]["labels"] = json!({"a b": "c d"});
    plane.create("labels", json!({"jobTemplate": template})).await;
    store_as(&plane, "zone", "\"suspend\":false", "\"suspend\":false,\"timeZone\":\"Narnia\"").await;
    store_as(&plane, "within", "\"*/10 * * * *\"", "\"TZ=Asia/Kolkata */10 * * * *\"").await;
    plane.pass(90).await;
    let told = plane.events().await;
    for expected in [
        "FailedCreate: Error creating job: Job.batch \"labels-29913130\" is invalid: [metadata.labels: Invalid value: \"a b\": ",
        "UnknownTimeZone: invalid timeZone: \"Narnia\": unknown time zone Narnia",
        "UnsupportedSchedule: CRON_TZ or TZ used in schedule \"TZ=Asia/Kolkata */10 * * * *\" is not officially supported",
    ] {
        assert!(told.iter().any(|event| event.starts_with(expected)), "{expected} in {told:#?}");
    }
    let made: Vec<_> = plane.created.lock().expect("the list").iter().map(|job| job.name_any()).collect();
    assert_eq!(made, ["within-29913130"], "frowned upon, and followed");
}

#[tokio::test(start_paused = true)]
async fn who_updates_a_zone_within_a_schedule_is_warned() {
    let plane = Plane::start("2026-11-16T00:09:00Z").await;
    store_as(&plane, "within", "\"*/10 * * * *\"", "\"TZ=Asia/Kolkata */10 * * * *\"").await;
    store_as(&plane, "without", "*/10", "*/20").await;
    for (name, expected) in [
        (
            "within",
            Some(
                "299 - \"cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details\"",
            ),
        ),
        ("without", None),
    ] {
        let request = Request::patch(format!("/apis/batch/v1/namespaces/default/cronjobs/{name}"))
            .header("content-type", "application/merge-patch+json")
            .body(Body::from(json!({"metadata": {"labels": {"a": "b"}}}).to_string().into_bytes()))
            .expect("a request");
        let service = plane.server.service_as(User::new("tester", &[MASTERS]));
        let answer = service.oneshot(request).await.expect("an answer");
        let warning = answer.headers().get("warning").and_then(|value| value.to_str().ok());
        assert_eq!((answer.status(), warning), (StatusCode::OK, expected), "{name}");
    }
}

/// What a person types, and what the CronJob's events say afterwards. Slots are made due by dating the last one back.
const STORY: &str = r#"
set -e
wait_for() { echo "waiting for $1" >&2; for _ in $(seq 300); do kubectl get events -o jsonpath='{range .items[*]}{.involvedObject.name} {.reason}{"\n"}{end}' | grep -qx "$1" && return; sleep 0.1; done; echo "no event $1" >&2; kubectl get events >&2; exit 1; }
due() { kubectl patch cronjob "$1" --subresource=status --type=merge -p "{\"status\":{\"lastScheduleTime\":\"$2\"}}" >/dev/null; }
long_ago=$(date -u -d '-3 hours' +%FT%TZ); recently=$(date -u -d '-50 minutes' +%FT%TZ)
kubectl create cronjob many --image=busybox --schedule='* * * * *' -- true >/dev/null
due many $long_ago; wait_for 'many SuccessfulCreate'
job=$(kubectl get cronjob many -o jsonpath='{.status.active[0].name}')
kubectl patch job $job --subresource=status --type=merge -p "{\"status\":{\"startTime\":\"$long_ago\",\"completionTime\":\"$recently\",\"succeeded\":1,\"conditions\":[{\"type\":\"SuccessCriteriaMet\",\"status\":\"True\"},{\"type\":\"Complete\",\"status\":\"True\"}]}}" >/dev/null
wait_for 'many SawCompletedJob'
kubectl patch cronjob many --type=merge -p '{"spec":{"suspend":true,"successfulJobsHistoryLimit":0}}' >/dev/null; wait_for 'many SuccessfulDelete'
kubectl create cronjob never --image=busybox --schedule='59 23 31 2 *' >/dev/null; wait_for 'never InvalidSchedule'
kubectl create cronjob forbid --image=busybox --schedule='0 * * * *' --dry-run=client -o yaml | sed 's/^spec:/spec:\n  concurrencyPolicy: Forbid/' | kubectl create -f - >/dev/null
due forbid $long_ago; wait_for 'forbid SuccessfulCreate'
kubectl patch cronjob forbid -p '{"spec":{"schedule":"1 * * * *"}}' >/dev/null; due forbid $long_ago; wait_for 'forbid JobAlreadyActive'
kubectl create job --from=cronjob/forbid by-hand >/dev/null; wait_for 'forbid UnexpectedJob'
kubectl delete job $(kubectl get cronjob forbid -o jsonpath='{.status.active[0].name}') --cascade=background --wait=false >/dev/null; wait_for 'forbid MissingJob'
kubectl get events -o jsonpath='{range .items[*]}{.involvedObject.kind}/{.involvedObject.name} {.type} {.reason} {.source.component}/{.reportingComponent} {.message}{"\n"}{end}'
"#;

fn story(server: &dyn harness::Server, kubectl: &std::path::Path) -> BTreeSet<String> {
    let shell = harness::Shell::new(kubectl, server);
    let ended = harness::run(shell.command("story", STORY), Duration::from_secs(300));
    assert_eq!(ended.code, Some(0), "{}\n{}\n{}", ended.stdout, ended.stderr, server.log());
    let minutes = regex::Regex::new(r"-\d{8}\b").expect("a pattern");
    let lines = ended.stdout.lines().filter(|line| line.starts_with("CronJob/"));
    lines.map(|line| minutes.replace_all(line, "-MINUTES").into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_read_as_the_real_controllers_and_ours_runs_against_a_real_server() {
    let kubectl = need!(harness::kubectl());
    let real = need!(harness::Cluster::start(&["cronjob-controller"]));
    let expected = story(&real, &kubectl);
    drop(real);
    let reasons: BTreeSet<_> = expected.iter().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(reasons.len() >= 8, "{expected:#?}");

    let ours = harness::Usher::start_with(&["--node=false", "--controllers", "cronjob-controller"]);
    assert_eq!(story(&ours, &kubectl), expected, "usher");
    drop(ours);

    let server = need!(harness::Cluster::start(&[]));
    let kubeconfig = Kubeconfig::read_from(harness::Server::kubeconfig(&server)).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a cluster");
    let cronjob = Some(usher_controllers::cronjob::Policy::default());
    let options = usher_controllers::Options { cronjob, ..usher_controllers::Options::none() };
    let handle = Controllers::start(Client::try_from(config).expect("a client"), Clock::wall(), options);
    let told = tokio::task::spawn_blocking(move || story(&server, &kubectl)).await.expect("a story");
    handle.stop().await;
    assert_eq!(told, expected, "our controller, their server");
}

#[test]
fn kubectl_sees_when_a_job_was_meant_to_run() {
    let kubectl = need!(harness::kubectl());
    let server = harness::Usher::start_with(&["--node=false"]);
    let shell = harness::Shell::new(&kubectl, &server);
    let said = |script: &str| {
        let ended = shell.run("cron", script);
        assert_eq!(
            ended.code,
            Some(0),
            "{script}\n{}\n{}\n{}",
            ended.stdout,
            ended.stderr,
            harness::Server::log(&server)
        );
        ended.stdout
    };
    assert_eq!(
        said("kubectl create cronjob hi --image=busybox --schedule='30 2 * * *' -- echo hi"),
        "cronjob.batch/hi created\n"
    );
    said("kubectl patch cronjob hi -p '{\"spec\":{\"timeZone\":\"Asia/Kolkata\"}}'");
    let table = said("kubectl get cronjob hi");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "SCHEDULE", "TIMEZONE", "SUSPEND", "ACTIVE", "LAST", "SCHEDULE", "AGE"]);
    assert_eq!(lines[1][..9], ["hi", "30", "2", "*", "*", "*", "Asia/Kolkata", "False", "0"]);

    // Dated back, yesterday's slot is due.
    said(
        "kubectl patch cronjob hi --subresource=status --type=merge -p \"{\\\"status\\\":{\\\"lastScheduleTime\\\":\\\"$(date -u -d '-2 days' +%FT%TZ)\\\"}}\"",
    );
    said("kubectl wait cronjob/hi --for=jsonpath='{.status.active[0].kind}'=Job --timeout=30s");
    let annotation = said(
        "kubectl get job $(kubectl get cronjob hi -o jsonpath='{.status.active[0].name}') -o jsonpath='{.metadata.annotations.batch\\.kubernetes\\.io/cronjob-scheduled-timestamp}'",
    );
    assert!(annotation.ends_with("T02:30:00+05:30"), "{annotation}");
    let slot: Timestamp = annotation.parse().expect("RFC 3339");
    let last = said("kubectl get cronjob hi -o jsonpath='{.status.lastScheduleTime}'");
    assert_eq!(last.parse::<Timestamp>().expect("a time"), slot);

    assert_eq!(said("kubectl create job --from=cronjob/hi by-hand"), "job.batch/by-hand created\n");
    let notes = said("kubectl get job by-hand -o jsonpath='{.metadata.annotations}'");
    assert_eq!(notes, "{\"cronjob.kubernetes.io/instantiate\":\"manual\"}");
    let metrics = said(
        "kubectl get --raw /metrics | grep -E '^(cronjob_controller_job_creation_skew_duration_seconds_count|workqueue_adds_total.name=.cronjob)'",
    );
    assert_eq!(metrics.lines().count(), 2, "{metrics}");
    assert!(metrics.contains("cronjob_controller_job_creation_skew_duration_seconds_count 1"), "{metrics}");
}

/// Twenty CronJobs become due one after the other, and the process is killed just after the first, the fourth, ... of them.
#[test]
fn the_binary_killed_around_slots_creates_each_job_once() {
    let flags = ["--node=false"];
    let mut machine = need!(harness::machine::Machine::start_without_node(&flags));
    let names: Vec<_> = (10..30).map(|number| format!("c{number}")).collect();
    for name in &names {
        machine.apply(&json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name},
            "spec": cron(name, json!({"schedule": "0 0 1 1 *"})).spec}));
    }
    let last = r#"{"status":{"lastScheduleTime":"2020-06-01T00:00:00Z"}}"#;
    let due = format!("patch cronjob {} --subresource=status --type=merge -p '{last}'", names.join(" "));
    for patched in (1..names.len()).step_by(3) {
        let mut patch = machine.follow(&due);
        while patch.stdout_lines() < patched && patch.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
        machine.kill();
        drop(patch.stop());
        machine.up(&flags);
    }
    let all = machine.kubectl(&due);
    assert_eq!(all.code, Some(0), "{}\n{}", all.stderr, machine.log_tail());
    machine.wait("get cronjobs -o json", "one Job listed for each", |text| {
        let crons: Value = serde_json::from_str(text).unwrap_or_default();
        let active = |cron: &Value| cron["status"]["active"].as_array().map_or(0, Vec::len);
        crons["items"].as_array().is_some_and(|crons| crons.iter().all(|cron| active(cron) == 1))
    });
    let jobs: Value = serde_json::from_str(&machine.kubectl("get jobs -o json").stdout).expect("JSON");
    let jobs = jobs["items"].as_array().expect("a list");
    let owners: Vec<_> = jobs.iter().map(|job| job["metadata"]["ownerReferences"][0]["name"].as_str()).collect();
    assert_eq!(owners, names.iter().map(|name| Some(name.as_str())).collect::<Vec<_>>());
}

#[test]
fn every_spelling_of_the_gate_turns_the_annotation_off() {
    let kubectl = need!(harness::kubectl());
    for name in ["JobScheduledAnnotation", "JobsScheduledAnnotation", "CronJobsScheduledAnnotation"] {
        let server =
            harness::Usher::start_with(&["--node=false", "--in-memory", "--feature-gates", &format!("{name}=false")]);
        let shell = harness::Shell::new(&kubectl, &server);
        let script = r#"set -e
            kubectl create cronjob hi --image=busybox --schedule='0 * * * *' >/dev/null
            kubectl patch cronjob hi --subresource=status --type=merge -p "{\"status\":{\"lastScheduleTime\":\"$(date -u -d '-2 hours' +%FT%TZ)\"}}" >/dev/null
            kubectl wait cronjob/hi --for=jsonpath='{.status.active[0].kind}'=Job --timeout=30s >/dev/null
            kubectl get job -o jsonpath='{.items[*].metadata.annotations}'"#;
        let ended = shell.run("gate", script);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{name}\n{}", ended.stderr);
    }
}
