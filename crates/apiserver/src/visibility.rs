//! Who waits in a queue, and in which place: `visibility.kueue.x-k8s.io`. The server knows paths and options; who waits is
//! the scheduler's business, and of whoever wires the two together. Nothing of this is stored, and nothing is kept for it.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::registry::kind::{Resource, Subresource};
use crate::rest::{Answer, Ask};
use crate::server::Server;
use crate::status::{ApiError, Result};

pub(crate) const GROUP: &str = "visibility.kueue.x-k8s.io";
const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
const KIND: &str = "PendingWorkloadsSummary";
const PENDING: &str = "pendingworkloads";

/// How many are shown if the request does not say, and at most.
const DEFAULT_LIMIT: i64 = 1000;
const MAX_LIMIT: i64 = 100_000;

/// Whose line is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    ClusterQueue(String),
    LocalQueue { namespace: String, name: String },
}

pub trait PendingWorkloads: Send + Sync {
    /// The items of the answer, in order, from the `offset`th on; None if there is no such queue.
    fn items(&self, line: Line, offset: usize, limit: usize) -> BoxFuture<'_, Option<Vec<Value>>>;
}

/// As discovery shows them: the queues themselves have no verbs here.
pub(crate) fn resources() -> impl Iterator<Item = Resource> {
    VERSIONS.into_iter().flat_map(|version| {
        [("clusterqueues", "clusterqueue", false), ("localqueues", "localqueue", true)].map(
            |(plural, singular, namespaced)| Resource {
                group: GROUP.to_owned(),
                version: version.to_owned(),
                kind: KIND.to_owned(),
                plural: plural.to_owned(),
                singular: singular.to_owned(),
                short_names: Vec::new(),
                categories: Vec::new(),
                namespaced,
                verbs: Vec::new(),
                subresources: vec![Subresource { name: PENDING.to_owned(), body: None, verbs: vec!["get"] }],
                has_status: false,
                has_generation: false,
            },
        )
    })
}

impl Server {
    pub(crate) async fn pending_workloads(&self, ask: &Ask, resource: &Resource) -> Result<Answer> {
        let info = &ask.info;
        if info.subresource != PENDING || resource.namespaced == info.namespace.is_empty() {
            return Err(ApiError::no_such_path());
        }
        if info.verb != "get" {
            return Err(ApiError::method_unknown());
        }
        ask.accepts_whole()?;
        let (offset, limit) = (ask.query.number("offset")?, ask.query.number("limit")?);
        let limit = limit.filter(|limit| *limit != 0).unwrap_or(DEFAULT_LIMIT).clamp(0, MAX_LIMIT);
        let size = |number: i64| usize::try_from(number).unwrap_or(0);
        let line = if resource.namespaced {
            Line::LocalQueue { namespace: info.namespace.clone(), name: info.name.clone() }
        } else {
            Line::ClusterQueue(info.name.clone())
        };
        let source = self.pending_source().ok_or_else(ApiError::no_such_path)?;
        let Some(items) = source.items(line, size(offset.unwrap_or(0)), size(limit)).await else {
            // Upstream names the queue by its singular here.
            let named = Resource { plural: resource.singular.clone(), ..resource.clone() };
            return Err(ApiError::not_found(&named, &info.name));
        };
        let answer = json!({"kind": KIND, "apiVersion": resource.api_version(), "metadata": {}, "items": items});
        Ok(Answer::json(200, &answer))
    }
}
