//! What these tests say and see: queues whose workloads race, and their Variants.

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use usher_api::kueue::Workload;

use super::desk::*;
use super::world::until;

/// Flavors, best first, each with so much cpu; pods on one of them have the node label `type`.
pub type Flavors<'a> = &'a [(&'a str, &'a str)];

pub fn group(flavors: Flavors<'_>) -> Value {
    let flavors = flavors
        .iter()
        .map(|(name, cpu)| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": cpu}]}))
        .collect::<Vec<_>>();
    json!([{"coveredResources": ["cpu"], "flavors": flavors}])
}

/// The queue `q` with these flavors and whatever else.
pub async fn racing(flavors: Flavors<'_>, more: Value) -> Desk {
    let desk = desk().await;
    race_in(&desk, flavors, more).await;
    desk
}

pub async fn race_in(desk: &Desk, flavors: Flavors<'_>, more: Value) {
    for (name, _) in flavors {
        desk.flavor(name, json!({"nodeLabels": {"type": name}})).await;
    }
    let mut spec = json!({"resourceGroups": group(flavors)});
    spec.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    desk.queue("q", "0", spec).await;
}

pub async fn set_quota(desk: &Desk, flavors: Flavors<'_>) {
    desk.edit_queue("q", json!({"resourceGroups": group(flavors)})).await;
}

pub fn flavor_of(job: &Job) -> String {
    template(job)["spec"]["nodeSelector"]["type"].as_str().unwrap_or_default().to_owned()
}

/// Until all its pods run, on this flavor.
pub async fn until_runs_on(desk: &Desk, name: &str, flavor: &str) -> Job {
    let job = until(&format!("{name} runs on {flavor}"), async || {
        let job = desk.world.jobs().get_opt(name).await.expect("jobs")?;
        let wanted = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
        let ready = job.status.as_ref().and_then(|status| status.ready).unwrap_or(0);
        (ready == wanted && flavor_of(&job) == flavor).then_some(job)
    })
    .await;
    let pods = desk.world.pods_of(name).await;
    for pod in pods.iter().filter(|pod| super::world::is_active(pod)) {
        assert_eq!(serde_json::to_value(pod).expect("json")["spec"]["nodeSelector"]["type"], flavor);
    }
    job
}

/// The Variants of a Job, by which of the policy's they are.
pub async fn variant(desk: &Desk, job: &str, name: &str) -> Option<Workload> {
    let which = ListParams::default().labels("kueue.x-k8s.io/concurrent-admission-variant=true");
    let all = desk.workloads().list(&which).await.expect("workloads").items;
    all.into_iter().find(|w| {
        w.name_any().starts_with(&format!("job-{job}-")) && w.annotation("kueue.x-k8s.io/variant-name") == Some(name)
    })
}

pub async fn until_variant(desk: &Desk, job: &str, name: &str, what: &str, so: impl Fn(&Workload) -> bool) -> Workload {
    until(&format!("variant {name} of {job} {what}"), async || variant(desk, job, name).await.filter(&so)).await
}

/// Until exactly these Variants are active, as the Parent shows them.
pub async fn until_active(desk: &Desk, job: &str, names: &[&str]) -> Workload {
    desk.until(job, &format!("has active variants {names:?}"), |parent| active(parent) == names).await
}

/// Names of the active Variants that a Parent shows, best first.
pub fn active(parent: &Workload) -> Vec<&str> {
    let shown = parent.status.variants.iter().filter(|v| v.active);
    shown.map(|v| v.name.rsplit_once("-variant-").expect("its name").1).collect()
}

/// What an admission check says of a Variant.
pub async fn say(desk: &Desk, job: &str, name: &str, mut check: Value) {
    let variant = variant(desk, job, name).await.expect("the variant").name_any();
    check["lastTransitionTime"] = json!(wire_time(desk.world.clock.now()));
    check["message"] = check.get("message").cloned().unwrap_or(json!(""));
    let patch = Patch::Merge(json!({"status": {"admissionChecks": [check]}}));
    desk.workloads().patch_status(&variant, &PatchParams::default(), &patch).await.expect("say it");
}

/// The pods of a Job, by name: the same ones as before means that it was not stopped in between.
pub async fn pods(desk: &Desk, job: &str) -> Vec<String> {
    desk.world.pods_of(job).await.iter().map(ResourceExt::name_any).collect()
}
