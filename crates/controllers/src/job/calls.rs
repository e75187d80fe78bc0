//! The API calls of the Job controller: each reads of its answer what is needed and no more.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use serde_json::{Map, Value, json};

use super::claim;
use crate::runtime::Meta;
use crate::runtime::meta::Partial;
use crate::runtime::objects::{Page, is_not_found};

#[derive(Clone)]
pub struct Calls {
    pub client: Client,
}

impl Calls {
    /// Writes the status if the Job is still at `revision`; returns the revision it got.
    pub async fn write_status(
        &self,
        job: &Job,
        revision: &str,
        old: &JobStatus,
        new: &JobStatus,
    ) -> Result<String, kube::Error> {
        let (namespace, name) = place(&job.metadata);
        let patch = status_patch(job, revision, old, new)?;
        let request = jobs(namespace).patch_subresource("status", name, &PatchParams::default(), &Patch::Merge(patch));
        let answer: Partial = self.client.request(request.map_err(kube::Error::BuildRequest)?).await?;
        Ok(answer.metadata.resource_version.to_string())
    }

    pub async fn get_job(&self, namespace: &str, name: &str) -> Result<Option<Job>, kube::Error> {
        let request = jobs(namespace).get(name, &Default::default()).map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            Ok(job) => Ok(Some(job)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the Job and, before it is gone, what it owns.
    pub async fn delete_job(&self, job: &Job) -> Result<(), kube::Error> {
        let (namespace, name) = place(&job.metadata);
        let same = Preconditions { uid: job.metadata.uid.clone(), resource_version: None };
        let how = DeleteParams::foreground().preconditions(same);
        let request = jobs(namespace).delete(name, &how).map_err(kube::Error::BuildRequest)?;
        self.client.request_text(request).await.map(drop)
    }

    pub async fn create_pod(&self, pod: &Pod) -> Result<Meta, kube::Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
        let request = pods(namespace).create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
        Ok(self.client.request::<Partial>(request).await?.metadata)
    }

    /// Applies a strategic merge patch; returns what the pod is then.
    pub async fn patch_pod(&self, pod: &Pod, patch: &Value) -> Result<Meta, kube::Error> {
        let (namespace, name) = place(&pod.metadata);
        let request = pods(namespace).patch_metadata(name, &PatchParams::default(), &Patch::Strategic(patch));
        let answer: Partial = self.client.request(request.map_err(kube::Error::BuildRequest)?).await?;
        Ok(answer.metadata)
    }

    /// Removes the tracking finalizer; returns the revision at which the pod goes on without it. There is none to tell if
    /// the pod is gone, or was being deleted and may have gone with its finalizer: that is answered with an old revision.
    pub async fn strip_pod(&self, pod: &Pod) -> Result<Option<Arc<str>>, kube::Error> {
        match self.patch_pod(pod, &claim::strip_patch()).await {
            Ok(meta) => Ok(Some(meta).filter(|meta| !meta.being_deleted()).map(|meta| meta.resource_version)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn delete_pod(&self, pod: &Pod) -> Result<(), kube::Error> {
        let (namespace, name) = place(&pod.metadata);
        let same = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let how = DeleteParams::default().preconditions(same);
        let request = pods(namespace).delete(name, &how).map_err(kube::Error::BuildRequest)?;
        self.client.request_text(request).await.map(drop)
    }

    /// The pods of a selector as they are now, not as some cache has them.
    pub async fn list_pods(&self, namespace: &str, selector: &str) -> Result<Vec<Meta>, kube::Error> {
        let request = pods(namespace).list_metadata(&ListParams::default().labels(selector));
        let text = self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await?;
        let page: Page = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        let read = |item: &&serde_json::value::RawValue| serde_json::from_str::<Partial>(item.get());
        let all: Result<Vec<Partial>, _> = page.items.unwrap_or_default().iter().map(read).collect();
        Ok(all.map_err(kube::Error::SerdeError)?.into_iter().map(|object| object.metadata).collect())
    }
}

fn jobs(namespace: &str) -> Request {
    Request::new(format!("/apis/batch/v1/namespaces/{namespace}/jobs"))
}

fn pods(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

fn place(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// What makes `old` into `new`; the revision and the uid guard it.
fn status_patch(job: &Job, revision: &str, old: &JobStatus, new: &JobStatus) -> Result<Value, kube::Error> {
    let fields = |status: &JobStatus| serde_json::to_value(status).map_err(kube::Error::SerdeError);
    let status = merge_patch(fields(old)?, fields(new)?);
    Ok(json!({"metadata": {"resourceVersion": revision, "uid": job.metadata.uid}, "status": status}))
}

/// The JSON merge patch (RFC 7386) from one value to another.
fn merge_patch(old: Value, new: Value) -> Value {
    let (Value::Object(mut old), Value::Object(new)) = (old, new.clone()) else { return new };
    let mut patch = Map::new();
    for (name, value) in new {
        match old.remove(&name) {
            Some(before) if before == value => {}
            Some(before) => drop(patch.insert(name, merge_patch(before, value))),
            None => drop(patch.insert(name, value)),
        }
    }
    patch.extend(old.into_iter().map(|(name, _)| (name, Value::Null)));
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_what_changed_and_takes_away_what_is_gone() {
        let old = json!({"active": 2, "startTime": "t", "uncountedTerminatedPods": {"failed": ["a"]}, "ready": 1});
        let new = json!({"active": 2, "uncountedTerminatedPods": {"succeeded": ["b"]}, "ready": 0});
        let patch =
            json!({"startTime": null, "uncountedTerminatedPods": {"failed": null, "succeeded": ["b"]}, "ready": 0});
        assert_eq!(merge_patch(old, new), patch);
    }
}
