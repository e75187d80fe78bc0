//! Carries out what [`super::decide`] says: follows the Lease by a watch, writes it by compare-and-swap.
//!
//! A candidate does not ask again and again: it hears of changes, and sleeps until the lease would expire.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use usher_env::Clock;

use super::decide::{Known, Record, Step, Terms, decide};
use crate::client::Fence;
use crate::names::FIELD_MANAGER;

/// One copy that would lead.
pub struct Candidate {
    /// Not fenced.
    pub client: Client,
    pub clock: Clock,
    pub namespace: String,
    pub lease: String,
    /// Different for every process.
    pub identity: String,
    pub terms: Terms,
    /// Opened while leading.
    pub fence: Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Waiting,
    Leading,
    /// For good: who has led and may not any longer starts over as a new process, with nothing remembered.
    Over,
}

/// A candidacy that runs.
pub struct Election {
    standing: watch::Receiver<Standing>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Election {
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Returns when this copy leads (true), or will not (false).
    pub async fn won(&mut self) -> bool {
        let decided = self.standing.wait_for(|standing| *standing != Standing::Waiting).await;
        decided.is_ok_and(|standing| *standing == Standing::Leading)
    }

    /// Returns when this copy does not lead any longer.
    pub async fn lost(&mut self) {
        let _ = self.standing.wait_for(|standing| *standing == Standing::Over).await;
    }

    /// Gives the lease back, so that the next need not wait for it to expire. To be called when nothing is written any more.
    pub async fn release(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

impl Candidate {
    pub fn start(self) -> Election {
        let (tell, standing) = watch::channel(Standing::Waiting);
        let stop = CancellationToken::new();
        let task = tokio::spawn(self.run(tell, stop.clone()));
        Election { standing, stop, task }
    }

    async fn run(self, tell: watch::Sender<Standing>, stop: CancellationToken) {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.lease));
        let mut events = std::pin::pin!(watcher(api.clone(), only).default_backoff());
        let mut known = Known::default();
        let mut listed = false;
        let mut found = None;
        loop {
            let step = match listed || known.renewed.is_some() {
                true => decide(&self.identity, &known, &self.terms, Instant::now()),
                // Nothing is known yet; the first list will tell.
                false => Step::Wait { until: Instant::now() + self.terms.lease },
            };
            if let Step::Resign { why } = step {
                tracing::warn!(lease = self.lease, why, "does not lead any longer");
                break;
            }
            if let Step::Wait { until } = step {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep_until(until) => {}
                    event = events.next() => match event {
                        Some(Ok(watcher::Event::Init)) => found = None,
                        Some(Ok(watcher::Event::InitApply(lease))) => found = Some(record(&lease)),
                        Some(Ok(watcher::Event::InitDone)) => {
                            listed = true;
                            known.see(found.take(), Instant::now());
                        }
                        Some(Ok(watcher::Event::Apply(lease))) => see_newer(&mut known, record(&lease)),
                        Some(Ok(watcher::Event::Delete(_))) => known.see(None, Instant::now()),
                        Some(Err(error)) => tracing::debug!(%error, "the watch of the lease was cut"),
                        None => break,
                    },
                }
                continue;
            }
            self.write(&api, &step, &mut known).await;
            if known.renewed.is_some() && *tell.borrow() == Standing::Waiting {
                tracing::info!(lease = self.lease, identity = self.identity, "leads");
                tell.send_replace(Standing::Leading);
            }
        }
        self.fence.close();
        tell.send_replace(Standing::Over);
        if stop.is_cancelled() && known.renewed.is_some() {
            self.give_back(&api, &known).await;
        }
    }

    async fn write(&self, api: &Api<Lease>, step: &Step, known: &mut Known) {
        let began = Instant::now();
        let now = MicroTime(self.clock.now());
        let mut spec = json!({"holderIdentity": self.identity, "renewTime": now,
            "leaseDurationSeconds": self.terms.lease.as_secs()});
        let limit = self.terms.write_timeout;
        let answer = match step {
            Step::Create => {
                (spec["acquireTime"], spec["leaseTransitions"]) = (json!(now), json!(0));
                tokio::time::timeout(limit, self.create(api, spec)).await
            }
            Step::Take { from } => {
                (spec["acquireTime"], spec["leaseTransitions"]) = (json!(now), json!(from.transitions + 1));
                tokio::time::timeout(limit, self.change(api, from, &spec)).await
            }
            Step::Renew { from } => tokio::time::timeout(limit, self.change(api, from, &spec)).await,
            Step::Wait { .. } | Step::Resign { .. } => return,
        };
        match answer {
            Ok(Ok(lease)) => {
                known.see(Some(record(&lease)), Instant::now());
                (known.renewed, known.failed) = (Some(began), None);
                self.fence.open_until(began + self.terms.renew_deadline);
            }
            Ok(Err(error)) => {
                known.failed = Some(began);
                self.look_again(api, known, &error).await;
            }
            Err(_) => {
                tracing::warn!(lease = self.lease, after = ?limit, "no answer about the lease");
                known.failed = Some(began);
            }
        }
    }

    /// Somebody was faster, or a write went through and was not answered.
    async fn look_again(&self, api: &Api<Lease>, known: &mut Known, error: &kube::Error) {
        tracing::debug!(lease = self.lease, %error, "the lease could not be written");
        if let Ok(Ok(found)) = tokio::time::timeout(self.terms.write_timeout, api.get_opt(&self.lease)).await {
            known.see(found.as_ref().map(record), Instant::now());
        }
    }

    async fn give_back(&self, api: &Api<Lease>, known: &Known) {
        let Some((from, _)) = &known.seen else { return };
        let now = MicroTime(self.clock.now());
        let spec = json!({"holderIdentity": null, "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now});
        match tokio::time::timeout(self.terms.write_timeout, self.change(api, from, &spec)).await {
            Ok(Ok(_)) => tracing::info!(lease = self.lease, "gave the lease back"),
            Ok(Err(error)) => {
                tracing::warn!(lease = self.lease, %error, "could not give the lease back; it will expire");
            }
            Err(_) => tracing::warn!(lease = self.lease, "could not give the lease back; it will expire"),
        }
    }

    async fn create(&self, api: &Api<Lease>, spec: Value) -> Result<Lease, kube::Error> {
        let how = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let lease = json!({"metadata": {"name": self.lease}, "spec": spec});
        api.create(&how, &serde_json::from_value(lease).map_err(kube::Error::SerdeError)?).await
    }

    /// Refused if it is not as it was seen.
    async fn change(&self, api: &Api<Lease>, from: &Record, spec: &Value) -> Result<Lease, kube::Error> {
        let how = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json!({"metadata": {"resourceVersion": from.revision}, "spec": spec});
        api.patch(&self.lease, &how, &Patch::Merge(&patch)).await
    }
}

/// Our own writes come back through the watch, and may come late.
fn see_newer(known: &mut Known, record: Record) {
    let number = |record: &Record| record.revision.parse::<u64>().unwrap_or(u64::MAX);
    if known.seen.as_ref().is_none_or(|(seen, _)| number(&record) > number(seen)) {
        known.see(Some(record), Instant::now());
    }
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
    Record {
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        lasts: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or_default(),
        revision: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}
