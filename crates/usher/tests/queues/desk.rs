//! What the tests say and see: queues, queued Jobs, Workloads.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use usher_api::kueue::conditions;
use usher_api::kueue::{AdmissionCheck, ClusterQueue, LocalQueue, ResourceFlavor, Workload};
use usher_apiserver::gates::Gates;
use usher_controllers::queueing::Policy;

use super::plant;
use super::world::{World, until};

pub struct Desk {
    pub world: World,
}

pub async fn desk() -> Desk {
    desk_with(Policy::default()).await
}

pub async fn desk_with(policy: Policy) -> Desk {
    let world = match plant::world(&policy).await {
        Some(world) => world,
        None => World::with(Gates::default(), Some(policy)).await,
    };
    let desk = Desk { world };
    desk.flavor("plain", json!({})).await;
    desk
}

/// A Job that waits in `queue` for this much cpu for each of its pods, which then run so long.
pub struct Queued<'a> {
    pub name: &'a str,
    pub queue: &'a str,
    pub cpu: &'a str,
    pub pods: i32,
    pub runs: Option<&'a str>,
    pub class: &'a str,
}

impl Default for Queued<'_> {
    fn default() -> Self {
        Queued { name: "j", queue: "q", cpu: "1", pods: 1, runs: None, class: "" }
    }
}

impl Desk {
    fn cluster<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::ClusterResourceScope>,
        K::DynamicType: Default,
    {
        Api::all(self.world.client.clone())
    }

    pub fn workloads(&self) -> Api<Workload> {
        Api::namespaced(self.world.client.clone(), "default")
    }

    async fn put<K>(api: Api<K>, object: Value)
    where
        K: kube::Resource + serde::Serialize + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).expect("an object");
        api.create(&PostParams::default(), &object).await.expect("create it");
    }

    pub async fn flavor(&self, name: &str, spec: Value) {
        Desk::put::<ResourceFlavor>(self.cluster(), json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    pub async fn check(&self, name: &str) {
        let check = json!({"metadata": {"name": name}, "spec": {"controllerName": "example.com/us"}});
        Desk::put::<AdmissionCheck>(self.cluster(), check).await;
        let active = json!({"status": {"conditions": [{"type": "Active", "status": "True", "reason": "Us", "message": "",
            "lastTransitionTime": "2026-11-15T00:00:00Z"}]}});
        let api: Api<AdmissionCheck> = self.cluster();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(active)).await.expect("an active check");
    }

    /// A ClusterQueue with so much cpu of the flavor `plain`, and whatever else; and a LocalQueue that leads to it.
    pub async fn queue(&self, name: &str, cpu: &str, more: Value) {
        let mut spec = json!({"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
            {"name": "plain", "resources": [{"name": "cpu", "nominalQuota": cpu}]}]}]});
        for (key, value) in more.as_object().expect("a map") {
            spec[key] = value.clone();
        }
        Desk::put::<ClusterQueue>(self.cluster(), json!({"metadata": {"name": name}, "spec": spec})).await;
        let local = json!({"metadata": {"name": name}, "spec": {"clusterQueue": name}});
        Desk::put::<LocalQueue>(Api::namespaced(self.world.client.clone(), "default"), local).await;
    }

    pub async fn edit_queue(&self, name: &str, spec: Value) {
        let api: Api<ClusterQueue> = self.cluster();
        let patch = Patch::Merge(json!({ "spec": spec }));
        api.patch(name, &PatchParams::default(), &patch).await.expect("edit the queue");
    }

    pub async fn class(&self, name: &str, value: i32) {
        let class = json!({"metadata": {"name": name}, "value": value});
        Desk::put::<usher_api::kueue::WorkloadPriorityClass>(self.cluster(), class).await;
    }

    pub fn job(&self, queued: &Queued<'_>) -> Value {
        let mut labels = json!({"kueue.x-k8s.io/queue-name": queued.queue});
        if !queued.class.is_empty() {
            labels["kueue.x-k8s.io/priority-class"] = queued.class.into();
        }
        let notes = queued.runs.map_or(json!({}), |secs| json!({"test/runs": secs}));
        json!({"metadata": {"name": queued.name, "labels": labels}, "spec": {
            "parallelism": queued.pods, "completions": queued.pods, "template": {"metadata": {"annotations": notes},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": queued.cpu}}}]}}}})
    }

    pub async fn submit(&self, queued: Queued<'_>) -> Job {
        self.submit_as(self.job(&queued)).await
    }

    pub async fn submit_as(&self, job: Value) -> Job {
        let job = serde_json::from_value(job).expect("a job");
        self.world.jobs().create(&PostParams::default(), &job).await.expect("create the job")
    }

    pub async fn delete(&self, job: &str) {
        self.world.jobs().delete(job, &DeleteParams::background()).await.expect("delete the job");
    }

    /// The Workload of a Job, once it is as wanted.
    pub async fn until(&self, job: &str, what: &str, is: impl Fn(&Workload) -> bool) -> Workload {
        until(&format!("the Workload of {job} {what}"), async || self.workload_of(job).await.filter(&is)).await
    }

    pub async fn workload_of(&self, job: &str) -> Option<Workload> {
        let all = self.workloads().list(&ListParams::default()).await.expect("workloads").items;
        all.into_iter().find(|w| w.name_any().starts_with(&format!("job-{job}-")))
    }

    /// Until its Workload waits for this reason; what it says.
    pub async fn until_waits(&self, job: &str, reason: &str) -> String {
        let is =
            |w: &Workload| said(w, "QuotaReserved").is_some_and(|(status, why, _)| status == "False" && why == reason);
        let workload = self.until(job, &format!("waits: {reason}"), is).await;
        said(&workload, "QuotaReserved").map(|(_, _, message)| message).unwrap_or_default()
    }

    pub async fn until_admitted(&self, job: &str) -> Workload {
        self.until(job, "is admitted", |w| is(w, "Admitted")).await
    }

    /// Until it runs as many pods as it asks for.
    pub async fn until_runs(&self, job: &str) -> Job {
        let pods = |job: &Job| job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
        until(&format!("{job} runs"), async || {
            let job = self.world.jobs().get_opt(job).await.expect("jobs")?;
            let ready = job.status.as_ref().and_then(|status| status.ready).unwrap_or(0);
            (ready == pods(&job)).then_some(job)
        })
        .await
    }

    /// Until it does not run and nothing of it is left running.
    pub async fn until_rests(&self, job: &str) -> Job {
        until(&format!("{job} rests"), async || {
            let job = self.world.jobs().get_opt(job).await.expect("jobs")?;
            let status = job.status.clone().unwrap_or_default();
            let none = status.active.unwrap_or(0) == 0 && status.terminating.unwrap_or(0) == 0;
            (none && is_suspended(&job)).then_some(job)
        })
        .await
    }

    pub async fn edit_job(&self, name: &str, patch: Value) {
        self.world.jobs().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("edit the job");
    }

    /// What an admission check says of a Job's Workload.
    pub async fn say(&self, job: &str, check: Value) {
        let name = self.workload_of(job).await.expect("its workload").name_any();
        let mut check = check;
        check["lastTransitionTime"] = json!(wire_time(self.world.clock.now()));
        check["message"] = check.get("message").cloned().unwrap_or(json!(""));
        let patch = Patch::Merge(json!({"status": {"admissionChecks": [check]}}));
        self.workloads().patch_status(&name, &PatchParams::default(), &patch).await.expect("say it");
    }

    /// Everything that is in this namespace's queues is gone, or has been let go.
    pub async fn until_nothing_is_left(&self) {
        until("no workload is left", async || {
            let left = self.workloads().list(&ListParams::default()).await.expect("workloads").items;
            left.is_empty().then_some(())
        })
        .await;
    }
}

pub fn wire_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn said(workload: &Workload, ty: &str) -> Option<(String, String, String)> {
    let found = conditions::find(&workload.status.conditions, ty).cloned();
    found.map(|c| (c.status, c.reason, c.message))
}

pub fn is(workload: &Workload, ty: &str) -> bool {
    conditions::is_true(&workload.status.conditions, ty)
}

pub fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

pub fn template(job: &Job) -> Value {
    serde_json::to_value(&job.spec.as_ref().expect("a spec").template).expect("json")
}
