//! Kueue's configuration file (`config.kueue.x-k8s.io`), as far as it says how work is queued.
//!
//! Settings of Kueue's own process (ports, certificates, leader election, clients) mean nothing here and are passed over; the
//! log names them. Settings that would change what is admitted and are not supported are refused.

use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use serde::Deserialize;
use usher_controllers::queueing::policy::{FairSharing, FairStrategy, PodsReady, Policy};

#[derive(Debug, thiserror::Error)]
pub enum QueueingConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is not a configuration of Kueue: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
    #[error("{}: {field} is not supported; {advice}", path.display())]
    Unsupported { path: PathBuf, field: &'static str, advice: &'static str },
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Configuration {
    api_version: String,
    kind: String,
    wait_for_pods_ready: Option<WaitForPodsReady>,
    fair_sharing: Option<Sharing>,
    object_retention_policies: Option<Retention>,
    manage_jobs_without_queue_name: bool,
    admission_fair_sharing: Option<serde_json::Value>,
    resources: Option<serde_json::Value>,
    // Of Kueue's own process, or told here by flags.
    namespace: Option<serde_json::Value>,
    managed_jobs_namespace_selector: Option<serde_json::Value>,
    internal_cert_management: Option<serde_json::Value>,
    client_connection: Option<serde_json::Value>,
    integrations: Option<serde_json::Value>,
    multi_kueue: Option<serde_json::Value>,
    feature_gates: Option<serde_json::Value>,
    visibility_server: Option<serde_json::Value>,
    webhook: Option<serde_json::Value>,
    leader_election: Option<serde_json::Value>,
    metrics: Option<serde_json::Value>,
    health: Option<serde_json::Value>,
    pprof_bind_address: Option<serde_json::Value>,
    controller: Option<serde_json::Value>,
    tls: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WaitForPodsReady {
    enable: Option<bool>,
    timeout: Option<String>,
    recovery_timeout: Option<String>,
    block_admission: Option<bool>,
    requeuing_strategy: Option<Requeuing>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Requeuing {
    timestamp: Option<String>,
    backoff_limit_count: Option<i32>,
    backoff_base_seconds: Option<i64>,
    backoff_max_seconds: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Sharing {
    enable: Option<bool>,
    preemption_strategies: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Retention {
    workloads: Option<WorkloadRetention>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkloadRetention {
    after_finished: Option<String>,
    after_deactivated_by_kueue: Option<String>,
}

pub fn read(path: &Path) -> Result<Policy, QueueingConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| QueueingConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Policy, QueueingConfigError> {
    let invalid = |why: String| QueueingConfigError::Invalid { path: path.to_owned(), why };
    let said: Configuration = serde_saphyr::from_str(text).map_err(|error| invalid(error.to_string()))?;
    if !said.api_version.starts_with("config.kueue.x-k8s.io/") || said.kind != "Configuration" {
        return Err(invalid(format!("it says {} {}", said.api_version, said.kind)));
    }
    check_supported(&said, path)?;
    name_what_is_passed_over(&said);
    let mut policy = Policy::default();
    if let Some(ready) = &said.wait_for_pods_ready {
        policy.pods_ready = pods_ready(ready).map_err(invalid)?;
    }
    if let Some(sharing) = &said.fair_sharing {
        policy.fair_sharing = fair_sharing(sharing).map_err(invalid)?;
    }
    let retention = said.object_retention_policies.and_then(|retention| retention.workloads);
    if let Some(after) = retention.and_then(|workloads| workloads.after_finished) {
        policy.keep_finished = Some(duration(&after).map_err(invalid)?);
    }
    Ok(policy)
}

fn check_supported(said: &Configuration, path: &Path) -> Result<(), QueueingConfigError> {
    let refuse = |field, advice| Err(QueueingConfigError::Unsupported { path: path.to_owned(), field, advice });
    if said.manage_jobs_without_queue_name {
        let advice = "make a LocalQueue named default in each namespace whose Jobs are to be queued";
        return refuse("manageJobsWithoutQueueName", advice);
    }
    if said.admission_fair_sharing.is_some() {
        return refuse("admissionFairSharing", "remove it; fairSharing between ClusterQueues is supported");
    }
    if said.resources.is_some() {
        return refuse("resources", "remove it; what pods request is counted as they request it");
    }
    let retention = said.object_retention_policies.as_ref().and_then(|retention| retention.workloads.as_ref());
    if retention.is_some_and(|workloads| workloads.after_deactivated_by_kueue.is_some()) {
        let advice = "remove it; deactivated Jobs stay until somebody deletes them";
        return refuse("objectRetentionPolicies.workloads.afterDeactivatedByKueue", advice);
    }
    let strategy = said.wait_for_pods_ready.as_ref().and_then(|ready| ready.requeuing_strategy.as_ref());
    if strategy.and_then(|strategy| strategy.timestamp.as_deref()).is_some_and(|by| by != "Eviction") {
        let advice = "only Eviction is: work that was put back goes to the end of the line";
        return refuse("waitForPodsReady.requeuingStrategy.timestamp", advice);
    }
    Ok(())
}

fn name_what_is_passed_over(said: &Configuration) {
    let parts = [
        ("namespace", &said.namespace),
        ("managedJobsNamespaceSelector", &said.managed_jobs_namespace_selector),
        ("internalCertManagement", &said.internal_cert_management),
        ("clientConnection", &said.client_connection),
        ("integrations", &said.integrations),
        ("multiKueue", &said.multi_kueue),
        ("featureGates", &said.feature_gates),
        ("visibilityServer", &said.visibility_server),
        ("webhook", &said.webhook),
        ("leaderElection", &said.leader_election),
        ("metrics", &said.metrics),
        ("health", &said.health),
        ("pprofBindAddress", &said.pprof_bind_address),
        ("controller", &said.controller),
        ("tls", &said.tls),
    ];
    let over: Vec<&str> = parts.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| *name).collect();
    if !over.is_empty() {
        tracing::info!(settings = over.join(", "), "settings of Kueue's own process are passed over");
    }
}

fn pods_ready(said: &WaitForPodsReady) -> Result<Option<PodsReady>, String> {
    if said.enable == Some(false) {
        return Ok(None);
    }
    let mut ready = PodsReady::default();
    if let Some(timeout) = &said.timeout {
        ready.timeout = duration(timeout)?;
        ready.recovery_timeout = Some(ready.timeout);
    }
    if let Some(timeout) = &said.recovery_timeout {
        ready.recovery_timeout = Some(duration(timeout)?);
    }
    ready.block_admission = said.block_admission.unwrap_or(false);
    if let Some(strategy) = &said.requeuing_strategy {
        ready.retries = strategy.backoff_limit_count;
        ready.backoff_base = strategy.backoff_base_seconds.map_or(ready.backoff_base, SignedDuration::from_secs);
        ready.backoff_max = strategy.backoff_max_seconds.map_or(ready.backoff_max, SignedDuration::from_secs);
    }
    Ok(Some(ready))
}

fn fair_sharing(said: &Sharing) -> Result<Option<FairSharing>, String> {
    if said.enable == Some(false) {
        return Ok(None);
    }
    let Some(names) = &said.preemption_strategies else { return Ok(Some(FairSharing::default())) };
    let strategies = names.iter().map(|name| match name.as_str() {
        "LessThanOrEqualToFinalShare" => Ok(FairStrategy::LessThanOrEqualToFinalShare),
        "LessThanInitialShare" => Ok(FairStrategy::LessThanInitialShare),
        other => Err(format!("fairSharing.preemptionStrategies: there is no strategy {other:?}")),
    });
    Ok(Some(FairSharing { strategies: strategies.collect::<Result<_, _>>()? }))
}

/// As Go writes them: `5m`, `1h30m`.
fn duration(text: &str) -> Result<SignedDuration, String> {
    let read: SignedDuration = text.parse().map_err(|_| format!("{text:?} is not a duration like 5m or 1h30m"))?;
    if read.is_negative() { Err(format!("{text:?} is negative")) } else { Ok(read) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> Result<Policy, String> {
        let text = format!("apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n{body}");
        parse(&text, Path::new("kueue.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_manager_config_of_kueue_says_about_queueing_is_taken_over() {
        let policy = parsed(
            "health: {healthProbeBindAddress: ':8081'}\nwaitForPodsReady: {timeout: 1h30m, blockAdmission: true, \
             requeuingStrategy: {backoffLimitCount: 3, backoffBaseSeconds: 10}}\nfairSharing: {preemptionStrategies: \
             [LessThanInitialShare]}\nobjectRetentionPolicies: {workloads: {afterFinished: 10m}}",
        )
        .unwrap();
        let ready = policy.pods_ready.unwrap();
        assert_eq!((ready.timeout.as_secs(), ready.recovery_timeout.unwrap().as_secs()), (5400, 5400));
        assert_eq!((ready.retries, ready.backoff_base.as_secs(), ready.block_admission), (Some(3), 10, true));
        assert_eq!(policy.fair_sharing.unwrap().strategies, [FairStrategy::LessThanInitialShare]);
        assert_eq!(policy.keep_finished.unwrap().as_secs(), 600);
    }

    #[test]
    fn nothing_said_is_as_upstream_and_what_is_turned_off_is_off() {
        assert_eq!(parsed("").unwrap(), Policy::default());
        let off = parsed("waitForPodsReady: {enable: false}\nfairSharing: {enable: false}").unwrap();
        assert_eq!((off.pods_ready, off.fair_sharing), (None, None));
    }

    #[test]
    fn what_would_change_admission_and_is_not_there_is_refused_and_says_what_to_do() {
        let said = parsed("manageJobsWithoutQueueName: true").unwrap_err();
        assert!(
            said.contains("manageJobsWithoutQueueName is not supported; make a LocalQueue named default"),
            "{said}"
        );
        assert!(
            parsed("resources: {excludeResourcePrefixes: [x]}").unwrap_err().contains("resources is not supported")
        );
        assert!(parsed("fairSharin: {}").unwrap_err().contains("fairSharin"));
        assert!(parsed("waitForPodsReady: {timeout: soon}").unwrap_err().contains("not a duration"));
        let other = parse("apiVersion: v1\nkind: Pod\n", Path::new("x")).unwrap_err().to_string();
        assert!(other.contains("it says v1 Pod"), "{other}");
    }
}
