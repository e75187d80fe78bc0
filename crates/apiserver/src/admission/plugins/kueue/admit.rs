//! Asks the rules about one write. Refusals read as those of upstream's webhooks, which is what its clients know.

use serde_json::json;
use usher_api::kueue::{GROUP, VERSION, keys, rules};

use crate::admission::{Operation, Review};
use crate::object::{self, Object};
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::stored;

fn is_ours(review: &Review<'_>) -> bool {
    let resource = review.resource();
    resource.group == GROUP && resource.version == VERSION
}

fn is_job(review: &Review<'_>) -> bool {
    let resource = review.resource();
    resource.group == "batch" && resource.plural == "jobs" && review.subresource.is_empty()
}

fn is_ray_cluster(review: &Review<'_>) -> bool {
    let resource = review.resource();
    resource.group == usher_api::ray::GROUP && resource.plural == "rayclusters" && review.subresource.is_empty()
}

/// Whether a job belongs to one that is queued itself, and so is none of the queue's business.
fn follows_its_owner(server: &Server, namespace: &str, object: &Object) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(serde_json::Value::as_array);
    let owner = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    let Some(owner) = owner else { return false };
    let collection = match (owner["apiVersion"].as_str(), owner["kind"].as_str()) {
        (Some("batch/v1"), Some("Job")) => "batch/jobs",
        (Some(usher_api::ray::API_VERSION), Some("RayCluster")) => "ray.io/rayclusters",
        _ => return false,
    };
    let name = owner["name"].as_str().unwrap_or_default();
    let Some(entry) = server.store().get(collection, &stored::key(namespace, name)) else { return false };
    let Ok(owner) = serde_json::from_slice::<serde_json::Value>(&entry.value) else { return false };
    let labels = owner.pointer("/metadata/labels");
    labels.and_then(|labels| labels.get(keys::label::QUEUE_NAME)).is_some_and(|name| name != "")
}

pub fn admit(server: &Server, review: &Review<'_>, object: &mut Object) {
    let queued = server.options().jobs_in_queues;
    if is_ray_cluster(review) && queued && !follows_its_owner(server, review.namespace, object) {
        let around = surroundings(server, review.namespace);
        match review.operation {
            Operation::Create => rules::default_ray_cluster(object, around),
            Operation::Update => rules::gate_ray_cluster(object, around),
            _ => {}
        }
    }
    if review.operation != Operation::Create || !review.subresource.is_empty() {
        return;
    }
    if is_ours(review) {
        rules::default(&review.resource().plural, object);
    } else if is_job(review) && queued && !follows_its_owner(server, review.namespace, object) {
        rules::default_job(object, surroundings(server, review.namespace));
    }
}

/// Jobs of the system itself are nobody's to queue unless they say so.
fn surroundings(server: &Server, namespace: &str) -> rules::Surroundings {
    let exists =
        |key: &str, namespace: &str, name: &str| server.store().get(key, &stored::key(namespace, name)).is_some();
    rules::Surroundings {
        default_queue: namespace != "kube-system"
            && exists("kueue.x-k8s.io/localqueues", namespace, keys::DEFAULT_LOCAL_QUEUE),
        default_priority_class: exists(
            "kueue.x-k8s.io/workloadpriorityclasses",
            "",
            keys::DEFAULT_WORKLOAD_PRIORITY_CLASS,
        ),
        elastic_jobs: server.gates().queues.elastic_jobs,
    }
}

pub fn validate(
    server: &Server,
    review: &Review<'_>,
    new: &Object,
    old: Option<&Object>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let plural = review.resource().plural.as_str();
    let verdict = if is_ours(review) {
        rules::validate(plural, review.subresource, new, old, &server.gates().queues)
    } else if is_job(review) && server.options().jobs_in_queues {
        rules::validate_job(new, old, surroundings(server, review.namespace))
    } else if is_ray_cluster(review) && server.options().jobs_in_queues {
        rules::validate_ray_cluster(new, old, surroundings(server, review.namespace))
    } else {
        return Ok(());
    };
    warnings.extend(verdict.warnings);
    if verdict.errors.is_empty() {
        return Ok(());
    }
    let message = rules::denial(plural, &verdict.errors);
    tracing::debug!(resource = plural, name = object::name(new), %message, "refused");
    let status = json!({"metadata": {}, "status": "Failure", "message": message, "reason": "Forbidden", "code": 403});
    Err(ApiError::made_elsewhere(403, &message, status.as_object().cloned().unwrap_or_default()))
}
