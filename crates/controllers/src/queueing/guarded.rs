//! Writes of Workloads that hold only for what was seen. Somebody who was faster is no error: what happened is an event,
//! and that brings whoever wanted to write back to decide anew.

use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde::Serialize;
use serde_json::{Value, json};
use usher_api::kueue::workload::WorkloadSpec;
use usher_api::kueue::workload_status::WorkloadStatus;
use usher_api::kueue::{Workload, keys};

use super::merge_patch;
use crate::runtime::Key;
use crate::runtime::objects::{is_conflict, is_not_found};

/// Every write answers with the revision it made, or with `None` where nothing was written.
#[derive(Clone)]
pub(super) struct Guarded {
    client: Client,
}

pub(super) fn key_of(workload: &Workload) -> Key {
    let meta = &workload.metadata;
    Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// A revision that cannot be compared is not waited for.
pub(super) fn revision(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Guarded {
    pub fn new(client: &Client) -> Guarded {
        Guarded { client: client.clone() }
    }

    pub async fn spec(&self, of: &Workload, to: &WorkloadSpec) -> Result<Option<u64>, kube::Error> {
        match difference(&of.spec, to)? {
            Some(spec) => self.patch(of, json!({ "spec": spec })).await,
            None => Ok(None),
        }
    }

    pub async fn status(&self, of: &Workload, to: &WorkloadStatus) -> Result<Option<u64>, kube::Error> {
        let Some(status) = difference(&of.status, to)? else { return Ok(None) };
        let patch = of_what_was_seen(of, json!({ "status": status }));
        let (key, params) = (key_of(of), PatchParams::default());
        let written = self.api(&key).patch_status(&key.name, &params, &Patch::Merge(&patch)).await;
        unless_overtaken(written.map(|now| now.metadata.resource_version))
    }

    /// Anything but the status.
    pub async fn patch(&self, of: &Workload, patch: Value) -> Result<Option<u64>, kube::Error> {
        let (key, patch) = (key_of(of), of_what_was_seen(of, patch));
        let params = PatchParams::default();
        let written = self.api(&key).patch_metadata(&key.name, &params, &Patch::Merge(&patch)).await;
        unless_overtaken(written.map(|now| now.metadata.resource_version))
    }

    /// Takes away the finalizer that keeps a Workload while its quota is in use.
    pub async fn let_go(&self, of: &Workload) -> Result<Option<u64>, kube::Error> {
        let finalizers = of.metadata.finalizers.as_deref().unwrap_or_default();
        let left: Vec<&String> = finalizers.iter().filter(|f| *f != keys::RESOURCE_IN_USE).collect();
        if left.len() == finalizers.len() {
            return Ok(None);
        }
        self.patch(of, json!({"metadata": {"finalizers": left}})).await
    }

    /// Whether it was there to be deleted.
    pub async fn delete(&self, of: &Workload) -> Result<bool, kube::Error> {
        let only = Preconditions { uid: of.metadata.uid.clone(), resource_version: None };
        let how = DeleteParams { preconditions: Some(only), ..DeleteParams::background() };
        let key = key_of(of);
        match self.api(&key).delete(&key.name, &how).await {
            Ok(_) => Ok(true),
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn api(&self, key: &Key) -> Api<Workload> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }
}

fn of_what_was_seen(of: &Workload, mut patch: Value) -> Value {
    patch["metadata"]["uid"] = json!(of.metadata.uid);
    patch["metadata"]["resourceVersion"] = json!(of.metadata.resource_version);
    patch
}

fn unless_overtaken(written: Result<Option<String>, kube::Error>) -> Result<Option<u64>, kube::Error> {
    match written {
        Ok(version) => Ok(Some(revision(version.as_deref()))),
        Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn difference<T: Serialize>(from: &T, to: &T) -> Result<Option<Value>, kube::Error> {
    let read = |value: &T| serde_json::to_value(value).map_err(kube::Error::SerdeError);
    Ok(merge_patch::diff(&read(from)?, &read(to)?))
}
