//! Empties a namespace and lets it go.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceSpec, NamespaceStatus};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::Request;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use usher_env::Clock;

use crate::runtime::objects::{Page, is_method_not_supported, is_not_found, sentence};
use crate::runtime::{Catalog, Meta, Objects, Outcome, Resource, Watches};

use super::decide::{Kind, Report, Verdict, conditions, grace_left, verdict};

const FINALIZER: &str = "kubernetes";
const TERMINATING: &str = "Terminating";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("namespace {0:?} could not be emptied")]
    Incomplete(String),
}

pub(crate) struct Emptier {
    pub objects: Objects,
    pub clock: Clock,
    pub watches: Watches,
}

impl Emptier {
    pub async fn sync(&self, name: &str) -> Result<Outcome, Error> {
        match self.try_sync(name).await {
            // Somebody else has finished it.
            Err(Error::Api(error)) if is_not_found(&error) => Ok(Outcome::Settled),
            result => result,
        }
    }

    async fn try_sync(&self, name: &str) -> Result<Outcome, Error> {
        let api: Api<Namespace> = Api::all(self.objects.client().clone());
        let Some(mut namespace) = api.get_opt(name).await? else { return Ok(Outcome::Settled) };
        let Some(deleted_at) = namespace.metadata.deletion_timestamp.as_ref().map(|time| time.0) else {
            return Ok(Outcome::Settled);
        };
        if phase(&namespace) != Some(TERMINATING) {
            namespace.status.get_or_insert_default().phase = Some(TERMINATING.to_string());
            namespace = api.replace_status(name, &PostParams::default(), &namespace).await?;
        }
        if !finalizers(&namespace).iter().any(|f| f == FINALIZER) {
            return Ok(Outcome::Settled);
        }
        let report = self.empty(name, deleted_at).await;
        let verdict = verdict(&report);
        tracing::debug!(namespace = name, ?verdict, "emptied as far as possible");
        let namespace = self.write_conditions(&api, namespace, &report).await?;
        match verdict {
            Verdict::Finalize => {
                self.finalize(&api, namespace).await?;
                Ok(Outcome::Settled)
            }
            Verdict::Wait { recheck: None } => Ok(Outcome::Settled),
            Verdict::Wait { recheck: Some(delay) } => Ok(Outcome::After(delay)),
            Verdict::Retry => Err(Error::Incomplete(name.to_string())),
        }
    }

    async fn write_conditions(
        &self,
        api: &Api<Namespace>,
        mut namespace: Namespace,
        report: &Report,
    ) -> Result<Namespace, Error> {
        let status: &mut NamespaceStatus = namespace.status.get_or_insert_default();
        let old = status.conditions.take().unwrap_or_default();
        let (new, changed) = conditions(report, &old, self.clock.now());
        status.conditions = Some(new);
        if !changed {
            return Ok(namespace);
        }
        Ok(api.replace_status(&namespace.name_any(), &PostParams::default(), &namespace).await?)
    }

    async fn finalize(&self, api: &Api<Namespace>, namespace: Namespace) -> Result<(), Error> {
        let rest = finalizers(&namespace).iter().filter(|f| *f != FINALIZER).cloned().collect();
        let name = namespace.name_any();
        let finalized = Namespace { spec: Some(NamespaceSpec { finalizers: Some(rest) }), ..namespace };
        api.replace_subresource("finalize", &name, &PostParams::default(), &finalized).await?;
        Ok(())
    }

    /// Deletes everything it can find. Pods go first: the rest may be what they need in order to end well.
    async fn empty(&self, namespace: &str, deleted_at: Timestamp) -> Report {
        let mut report = Report { namespace: namespace.to_string(), ..Report::default() };
        let catalog = match Catalog::discover(self.objects.client()).await {
            Ok(catalog) => {
                report.discovery = discovery_failure(&catalog);
                Arc::new(catalog)
            }
            Err(error) => {
                report.discovery = Some(sentence(&error));
                self.watches.catalog()
            }
        };
        let deletable = catalog.preferred.values().filter(|r| r.namespaced && r.can("delete"));
        let (pods, others): (Vec<_>, Vec<_>) = deletable.partition(|r| r.id.is("", "pods"));
        for resource in pods.into_iter().chain(others) {
            if report.kinds.first().is_some_and(|k| k.resource.id.is("", "pods") && !k.remaining.is_empty()) {
                break;
            }
            report.kinds.push(self.empty_kind(resource, namespace, deleted_at).await);
        }
        report
    }

    async fn empty_kind(&self, resource: &Arc<Resource>, namespace: &str, deleted_at: Timestamp) -> Kind {
        let mut kind = Kind {
            resource: resource.clone(),
            failure: None,
            remaining: Vec::new(),
            grace: Duration::ZERO,
            watched: self.watches.is_watched(&resource.id),
        };
        if resource.id.is("", "pods") {
            match self.longest_grace(resource, namespace).await {
                Ok(longest) => kind.grace = grace_left(longest, deleted_at, self.clock.now()),
                Err(error) => {
                    kind.failure = Some(sentence(&error));
                    return kind;
                }
            }
        }
        match self.delete_all(resource, namespace).await {
            Ok(remaining) => kind.remaining = remaining,
            // Served, but not so that anything could be in it.
            Err(error) if is_not_found(&error) || is_method_not_supported(&error) => {}
            Err(error) => kind.failure = Some(sentence(&error)),
        }
        kind
    }

    /// Asks for the deletion of whatever is there, and says what remains.
    async fn delete_all(&self, resource: &Resource, namespace: &str) -> Result<Vec<Meta>, kube::Error> {
        if !resource.can("list") {
            if resource.can("deletecollection") {
                self.objects.delete_collection(resource, namespace).await?;
            }
            return Ok(Vec::new());
        }
        let found = self.objects.list(resource, namespace).await?;
        if found.is_empty() {
            return Ok(found);
        }
        if resource.can("deletecollection") {
            self.objects.delete_collection(resource, namespace).await?;
        } else {
            for object in &found {
                match self.objects.delete(resource, namespace, &object.name, &DeleteParams::background()).await {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => {}
                }
            }
        }
        self.objects.list(resource, namespace).await
    }

    async fn longest_grace(&self, pods: &Resource, namespace: &str) -> Result<Duration, kube::Error> {
        let request = Request::new(pods.path(namespace)).list(&ListParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let text = self.objects.client().request_text(request).await?;
        let page: Page = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        let pods = page.items.unwrap_or_default();
        let pods = pods.iter().filter_map(|item| serde_json::from_str::<PodGrace>(item.get()).ok());
        let running = pods.filter(|pod| !matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")));
        let longest = running.filter_map(|pod| pod.spec.termination_grace_period_seconds).max();
        Ok(Duration::from_secs(longest.and_then(|secs| u64::try_from(secs).ok()).unwrap_or_default()))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodGrace {
    spec: PodGraceSpec,
    status: PodPhase,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodGraceSpec {
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodPhase {
    phase: Option<String>,
}

fn phase(namespace: &Namespace) -> Option<&str> {
    namespace.status.as_ref()?.phase.as_deref()
}

fn finalizers(namespace: &Namespace) -> &[String] {
    namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_deref()).unwrap_or_default()
}

/// As client-go words it.
fn discovery_failure(catalog: &Catalog) -> Option<String> {
    let failed = &catalog.failed;
    let each: Vec<_> = failed.iter().map(|gv| format!("{gv}: stale GroupVersion discovery: {gv}")).collect();
    (!failed.is_empty()).then(|| {
        format!(
            "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
            failed.len(),
            each.join(", ")
        )
    })
}
