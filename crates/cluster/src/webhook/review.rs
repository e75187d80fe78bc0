//! One AdmissionReview: what is asked, and what is answered. Pure; the rules are those of `usher up`.
//!
//! Nothing that is not ours is touched: what is asked about another kind is allowed as it is.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use usher_api::kueue::rules::{self, Gates, Surroundings};
use usher_api::{kueue, ray};

/// What an API server asks.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub uid: String,
    pub resource: Resource,
    #[serde(default)]
    pub sub_resource: String,
    #[serde(default)]
    pub namespace: String,
    pub operation: String,
    #[serde(default)]
    pub object: Value,
    #[serde(default)]
    pub old_object: Value,
}

#[derive(Debug, Deserialize)]
pub struct Resource {
    #[serde(default)]
    pub group: String,
    pub version: String,
    pub resource: String,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unreadable {
    #[error("the body is no AdmissionReview: {0}")]
    Json(String),
    #[error(
        "the body is a {kind:?} of {api_version:?}; what is read here is an AdmissionReview of admission.k8s.io/v1"
    )]
    Kind { api_version: String, kind: String },
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

pub fn read(body: &[u8]) -> Result<Request, Unreadable> {
    let envelope: Envelope = serde_json::from_slice(body).map_err(|error| Unreadable::Json(error.to_string()))?;
    if envelope.api_version != "admission.k8s.io/v1" || envelope.kind != "AdmissionReview" {
        return Err(Unreadable::Kind { api_version: envelope.api_version, kind: envelope.kind });
    }
    envelope.request.ok_or(Unreadable::NoRequest)
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A kind of `kueue.x-k8s.io`.
    Queueing,
    Job,
    RayCluster,
    /// Nothing that concerns us.
    Other,
}

impl Request {
    pub fn subject(&self) -> Subject {
        let Resource { group, version, resource } = &self.resource;
        match (group.as_str(), resource.as_str()) {
            (kueue::GROUP, _) if version == kueue::VERSION => Subject::Queueing,
            ("batch", "jobs") if self.sub_resource.is_empty() => Subject::Job,
            (ray::GROUP, "rayclusters") if self.sub_resource.is_empty() => Subject::RayCluster,
            _ => Subject::Other,
        }
    }

    fn creates(&self) -> bool {
        self.operation == "CREATE"
    }

    /// The controller that the object belongs to, if that may be in a queue itself.
    pub fn owner(&self) -> Option<Owner<'_>> {
        let owners = self.object.pointer("/metadata/ownerReferences").and_then(Value::as_array)?;
        let owner = owners.iter().find(|owner| owner["controller"] == true)?;
        let kind = match (owner["apiVersion"].as_str()?, owner["kind"].as_str()?) {
            ("batch/v1", "Job") => Subject::Job,
            (ray::API_VERSION, "RayCluster") => Subject::RayCluster,
            _ => return None,
        };
        Some(Owner { kind, name: owner["name"].as_str()? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'r> {
    pub kind: Subject,
    pub name: &'r str,
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Why not.
    pub refusal: Option<String>,
    pub warnings: Vec<String>,
    /// A JSON patch, if anything is filled in.
    pub patch: Option<Value>,
}

/// What is filled in. `follows_owner` says that the job belongs to one that is queued itself, and so is none of the queue's
/// business.
pub fn mutate(request: &Request, around: Surroundings, follows_owner: bool) -> Answer {
    let mut object = request.object.clone();
    match request.subject() {
        Subject::Queueing if request.creates() && request.sub_resource.is_empty() => {
            rules::default(&request.resource.resource, &mut object);
        }
        Subject::Job if request.creates() => {
            let default_queue = around.default_queue && !follows_owner;
            rules::default_job(&mut object, Surroundings { default_queue, ..around });
        }
        Subject::RayCluster if follows_owner => {}
        Subject::RayCluster if request.creates() => rules::default_ray_cluster(&mut object, around),
        Subject::RayCluster if request.operation == "UPDATE" => rules::gate_ray_cluster(&mut object, around),
        _ => {}
    }
    if object == request.object {
        return Answer::default();
    }
    let patch = serde_json::to_value(json_patch::diff(&request.object, &object)).ok();
    Answer { patch, ..Answer::default() }
}

pub fn validate(request: &Request, around: Surroundings, gates: &Gates) -> Answer {
    if !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
        return Answer::default();
    }
    let new = &request.object;
    let old = Some(&request.old_object).filter(|old| !old.is_null());
    let verdict = match request.subject() {
        Subject::Queueing => rules::validate(&request.resource.resource, &request.sub_resource, new, old, gates),
        Subject::Job => rules::validate_job(new, old, around),
        Subject::RayCluster => rules::validate_ray_cluster(new, old, around),
        Subject::Other => return Answer::default(),
    };
    let refusal = (!verdict.errors.is_empty()).then(|| verdict.errors.to_string());
    Answer { refusal, warnings: verdict.warnings, patch: None }
}

/// The AdmissionReview that goes back. The API server puts the webhook's name before a refusal.
pub fn render(uid: &str, answer: &Answer) -> Value {
    let mut response = json!({"uid": uid, "allowed": answer.refusal.is_none()});
    if let Some(message) = &answer.refusal {
        response["status"] = json!({"code": 403, "reason": "Forbidden", "message": message});
    }
    if !answer.warnings.is_empty() {
        response["warnings"] = json!(answer.warnings);
    }
    if let Some(patch) = &answer.patch {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(patch.to_string()));
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(operation: &str, group: &str, version: &str, resource: &str, object: Value, old: Value) -> Request {
        let request = json!({"uid": "u", "operation": operation, "namespace": "n", "object": object, "oldObject": old,
            "resource": {"group": group, "version": version, "resource": resource}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        read(review.to_string().as_bytes()).unwrap()
    }

    fn job(labels: Value, owners: Value) -> Value {
        json!({"metadata": {"name": "j", "labels": labels, "ownerReferences": owners},
            "spec": {"suspend": false, "template": {"spec": {}}}})
    }

    /// The object after what is filled in.
    fn filled(request: &Request, around: Surroundings, follows: bool) -> Value {
        let mut object = request.object.clone();
        if let Some(patch) = mutate(request, around, follows).patch {
            json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
        }
        object
    }

    const DEFAULT: Surroundings =
        Surroundings { default_queue: true, default_priority_class: false, elastic_jobs: true };
    const NONE: Surroundings = Surroundings { default_queue: false, default_priority_class: false, elastic_jobs: true };

    #[test]
    fn a_queued_job_is_suspended_and_an_unqueued_one_is_not_touched() {
        let queued = ask(
            "CREATE",
            "batch",
            "v1",
            "jobs",
            job(json!({"kueue.x-k8s.io/queue-name": "q"}), json!([])),
            Value::Null,
        );
        assert_eq!(filled(&queued, NONE, false)["spec"]["suspend"], true);
        let free = ask("CREATE", "batch", "v1", "jobs", job(json!({}), json!([])), Value::Null);
        assert_eq!(mutate(&free, NONE, false), Answer::default());
        let caught = filled(&free, DEFAULT, false);
        assert_eq!(caught["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "default");
        assert_eq!(caught["spec"]["suspend"], true);
    }

    #[test]
    fn a_job_of_a_queued_owner_is_not_put_into_the_default_queue() {
        let owners =
            json!([{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "uid": "x", "controller": true}]);
        let owned = ask("CREATE", "batch", "v1", "jobs", job(json!({}), owners), Value::Null);
        assert_eq!(owned.owner(), Some(Owner { kind: Subject::RayCluster, name: "r" }));
        assert_eq!(mutate(&owned, DEFAULT, true), Answer::default());
        assert!(mutate(&owned, DEFAULT, false).patch.is_some());
    }

    #[test]
    fn the_pods_of_an_elastic_job_are_born_gated() {
        let mut elastic = job(json!({"kueue.x-k8s.io/queue-name": "q"}), json!([]));
        elastic["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
        let request = ask("CREATE", "batch", "v1", "jobs", elastic, Value::Null);
        let gates = filled(&request, NONE, false)["spec"]["template"]["spec"]["schedulingGates"].clone();
        assert_eq!(gates, json!([{"name": "kueue.x-k8s.io/elastic-job"}]));
    }

    #[test]
    fn only_what_is_ours_is_answered_with_more_than_yes() {
        let deployment = ask(
            "CREATE",
            "apps",
            "v1",
            "deployments",
            job(json!({"kueue.x-k8s.io/queue-name": "q"}), json!([])),
            Value::Null,
        );
        assert_eq!(mutate(&deployment, DEFAULT, false), Answer::default());
        assert_eq!(validate(&deployment, DEFAULT, &Gates::default()), Answer::default());
        let suspended = job(json!({"kueue.x-k8s.io/queue-name": "q"}), json!([]));
        let update = ask("UPDATE", "batch", "v1", "jobs", suspended.clone(), suspended);
        assert_eq!(mutate(&update, DEFAULT, false), Answer::default(), "a running job is not stopped by a webhook");
    }

    #[test]
    fn a_bad_queue_is_refused_and_a_good_one_is_kept_while_in_use() {
        let queue = |preemption: Value| json!({"metadata": {"name": "q"}, "spec": {"preemption": preemption}});
        let bad = queue(json!({"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "LowerPriority"}}));
        let asked = ask("CREATE", "kueue.x-k8s.io", "v1beta2", "clusterqueues", bad, Value::Null);
        let refused = validate(&asked, NONE, &Gates::default()).refusal.unwrap();
        assert!(
            refused.starts_with("spec.preemption: Invalid value: {")
                && refused.ends_with("reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"),
            "{refused}"
        );
        let rendered = render("u", &Answer { refusal: Some(refused.clone()), ..Answer::default() });
        assert_eq!(
            rendered["response"],
            json!({"uid": "u", "allowed": false,
            "status": {"code": 403, "reason": "Forbidden", "message": refused}})
        );
        let good = ask("CREATE", "kueue.x-k8s.io", "v1beta2", "clusterqueues", queue(json!({})), Value::Null);
        assert_eq!(validate(&good, NONE, &Gates::default()), Answer::default());
        assert_eq!(filled(&good, NONE, false)["metadata"]["finalizers"], json!(["kueue.x-k8s.io/resource-in-use"]));
    }

    #[test]
    fn what_is_no_review_is_said_to_be_none() {
        assert!(matches!(read(b"{"), Err(Unreadable::Json(_))));
        assert!(matches!(read(br#"{"apiVersion":"v1","kind":"Pod"}"#), Err(Unreadable::Kind { .. })));
        let empty = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#;
        assert_eq!(read(empty).unwrap_err(), Unreadable::NoRequest);
    }

    #[test]
    fn a_patch_goes_back_as_the_api_server_reads_it() {
        let rendered = render("u", &Answer { patch: Some(json!([])), warnings: vec!["w".into()], refusal: None });
        assert_eq!(
            rendered["response"],
            json!({"uid": "u", "allowed": true, "warnings": ["w"], "patchType": "JSONPatch", "patch": "W10="})
        );
    }
}
