//! Errors as the wire shows them: a `metav1.Status` with reason, code, details and causes.
//!
//! One constructor for each error that clients tell apart. The texts are Kubernetes': kubectl prints them and programs match
//! on them.

use serde_json::{Map, Value, json};
use usher_schema::field::Errors;

use crate::registry::kind::Resource;

/// A refusal or failure on its way to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    details: Map<String, Value>,
    /// `metadata.continue`: how an expired list may go on.
    continue_token: Option<Box<str>>,
    /// A whole status made elsewhere, shown as it is.
    made: Option<Box<Map<String, Value>>>,
    /// Texts for `Warning` headers: a refused request may have been warned about as well.
    pub warnings: Box<[String]>,
}

pub type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            reason,
            message: message.into(),
            details: Map::new(),
            continue_token: None,
            made: None,
            warnings: Box::default(),
        }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> ApiError {
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                self.details.insert(key.to_owned(), value.into());
            }
        }
        self
    }

    fn on(self, resource: &Resource, name: &str) -> ApiError {
        self.about(&resource.group, &resource.plural, name)
    }

    fn cause(mut self, reason: &str, field: &str, message: &str) -> ApiError {
        let mut cause = Map::new();
        for (key, value) in [("reason", reason), ("message", message), ("field", field)] {
            if !value.is_empty() {
                cause.insert(key.to_owned(), value.into());
            }
        }
        let causes = self.details.entry("causes").or_insert_with(|| json!([]));
        if let Value::Array(list) = causes {
            list.push(Value::Object(cause));
        }
        self
    }

    fn retry_after(mut self, secs: u32) -> ApiError {
        self.details.insert("retryAfterSeconds".to_owned(), secs.into());
        self
    }

    #[must_use]
    pub fn warned(mut self, warnings: Vec<String>) -> ApiError {
        self.warnings = std::mem::take(&mut self.warnings).into_iter().chain(warnings).collect();
        self
    }

    /// Seconds for the `Retry-After` header.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.details.get("retryAfterSeconds").and_then(Value::as_u64)
    }

    pub fn not_found(resource: &Resource, name: &str) -> ApiError {
        ApiError::new(404, "NotFound", format!("{} {name:?} not found", resource.qualified())).on(resource, name)
    }

    /// For a path that leads nowhere: the group, version or resource is not served.
    pub fn no_such_path() -> ApiError {
        ApiError::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub fn already_exists(resource: &Resource, name: &str) -> ApiError {
        ApiError::new(409, "AlreadyExists", format!("{} {name:?} already exists", resource.qualified()))
            .on(resource, name)
    }

    pub fn being_deleted(resource: &Resource, name: &str) -> ApiError {
        let mut error = ApiError::already_exists(resource, name);
        error.message = format!("object is being deleted: {}", error.message);
        error
    }

    pub fn generate_name_conflict(resource: &Resource, name: &str) -> ApiError {
        let mut error = ApiError::already_exists(resource, name).retry_after(1);
        error.message.push_str(", the server was not able to generate a unique name for the object");
        error
    }

    pub fn conflict(resource: &Resource, name: &str, why: &str) -> ApiError {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        ApiError::new(409, "Conflict", message).on(resource, name)
    }

    /// A precondition of a delete, which upstream words with the kind in place of the resource.
    pub fn delete_conflict(resource: &Resource, name: &str, why: &str) -> ApiError {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified_kind());
        ApiError::new(409, "Conflict", message).about(&resource.group, &resource.kind, name)
    }

    /// The object changed since the client read it.
    pub fn modified(resource: &Resource, name: &str) -> ApiError {
        ApiError::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn apply_conflict(message: String, causes: &[(String, String)]) -> ApiError {
        causes.iter().fold(ApiError::new(409, "Conflict", message), |error, (field, message)| {
            error.cause("FieldManagerConflict", field, message)
        })
    }

    pub fn invalid(resource: &Resource, name: &str, errors: &Errors) -> ApiError {
        ApiError::invalid_kind(&resource.group, &resource.kind, name, errors)
    }

    pub fn invalid_kind(group: &str, kind: &str, name: &str, errors: &Errors) -> ApiError {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let message = if errors.is_empty() {
            format!("{qualified} {name:?} is invalid")
        } else {
            format!("{qualified} {name:?} is invalid: {errors}")
        };
        let error = ApiError::new(422, "Invalid", message).about(group, kind, name);
        errors.0.iter().fold(error, |error, e| error.cause(e.kind.reason(), &e.path.to_string(), &e.body()))
    }

    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> ApiError {
        ApiError::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> ApiError {
        ApiError::forbidden_on(&resource.group, &resource.plural, name, why)
    }

    pub fn forbidden_on(group: &str, resource: &str, name: &str, why: &str) -> ApiError {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let message = match (qualified.as_str(), name) {
            ("", _) => format!("forbidden: {why}"),
            (q, "") => format!("{q} is forbidden: {why}"),
            (q, n) => format!("{q} {n:?} is forbidden: {why}"),
        };
        ApiError::new(403, "Forbidden", message).about(group, resource, name)
    }

    pub fn namespace_terminating(resource: &Resource, name: &str, namespace: &str) -> ApiError {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        ApiError::forbidden(resource, name, &why).cause(
            "NamespaceTerminating",
            "metadata.namespace",
            &format!("namespace {namespace} is being terminated"),
        )
    }

    pub fn expired(message: impl Into<String>) -> ApiError {
        ApiError::new(410, "Expired", message)
    }

    pub fn continue_expired(token: String) -> ApiError {
        let mut error = ApiError::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
             results. Continuing with the provided token results in an inconsistent list - objects that were created, \
             modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        );
        error.continue_token = Some(token.into());
        error
    }

    pub fn too_large_resource_version(wanted: u64, current: u64) -> ApiError {
        let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
        ApiError::new(504, "Timeout", message).retry_after(1).cause(
            "ResourceVersionTooLarge",
            "",
            "Too large resource version",
        )
    }

    pub fn timeout(message: &str) -> ApiError {
        ApiError::new(504, "Timeout", format!("Timeout: {message}"))
    }

    pub fn method_not_allowed(resource: &Resource, action: &str) -> ApiError {
        let message = format!("{action} is not supported on resources of kind {:?}", resource.qualified());
        ApiError::new(405, "MethodNotAllowed", message).on(resource, "")
    }

    /// A method this path does not know at all.
    pub fn method_unknown() -> ApiError {
        ApiError::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    pub fn not_acceptable(accepted: &str) -> ApiError {
        ApiError::new(406, "NotAcceptable", format!("only the following media types are accepted: {accepted}"))
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> ApiError {
        ApiError::new(415, "UnsupportedMediaType", message)
    }

    pub fn too_large(message: &str) -> ApiError {
        ApiError::new(413, "RequestEntityTooLarge", format!("Request entity too large: {message}"))
    }

    pub fn too_many_requests(message: &str, retry_after_secs: u32) -> ApiError {
        ApiError::new(429, "TooManyRequests", message).retry_after(retry_after_secs)
    }

    /// An eviction or another request that a rule holds back for now, with its cause.
    pub fn too_many_requests_because(message: &str, cause: &str, why: &str) -> ApiError {
        ApiError::new(429, "TooManyRequests", message).cause(cause, "", why)
    }

    pub fn internal(why: impl Into<String>) -> ApiError {
        let why = why.into();
        ApiError::new(500, "InternalError", format!("Internal error occurred: {why}")).cause("", "", &why)
    }

    /// An error without a reason, as upstream's untyped errors come out.
    pub fn plain(code: u16, message: &str) -> ApiError {
        ApiError::new(code, "", message)
    }

    /// "Not found" for a core resource that is not the one asked for: a pod's namespace, say.
    pub fn not_found_core(plural: &str, name: &str) -> ApiError {
        ApiError::new(404, "NotFound", format!("{plural} {name:?} not found")).about("", plural, name)
    }

    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(503, "ServiceUnavailable", message)
    }

    /// A status made elsewhere, such as a webhook's refusal.
    pub fn other(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(code, reason, message)
    }

    /// A `Status` that a webhook refused with; it has a code and a message.
    pub fn made_elsewhere(code: u16, message: &str, status: Map<String, Value>) -> ApiError {
        ApiError { made: Some(Box::new(status)), ..ApiError::new(code, "", message) }
    }

    /// The `Status` object of the answer.
    pub fn to_status(&self) -> Value {
        if let Some(made) = &self.made {
            let mut status = Value::Object((**made).clone());
            status["kind"] = "Status".into();
            status["apiVersion"] = "v1".into();
            return status;
        }
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".to_owned(), token.as_ref().into());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata,
            "status": "Failure", "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        }
        if self.reason.is_empty() {
            status.as_object_mut().map(|s| s.remove("reason"));
        }
        status
    }
}

/// `Status` for a deletion that took effect at once.
pub fn deleted(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = Map::new();
    for (key, value) in [("name", name), ("group", &resource.group), ("kind", &resource.plural), ("uid", uid)] {
        if !value.is_empty() {
            details.insert(key.to_owned(), value.into());
        }
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_schema::field::Path;

    #[test]
    fn an_invalid_object_lists_every_cause_with_its_field() {
        let mut errors = Errors::new();
        errors.required(&Path::new("spec.template"), "");
        let status = ApiError::invalid_kind("batch", "Job", "x", &errors).to_status();
        assert_eq!(status["message"], "Job.batch \"x\" is invalid: spec.template: Required value");
        assert_eq!(
            status["details"],
            json!({"name": "x", "group": "batch", "kind": "Job", "causes": [
                {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.template"}]})
        );
        assert_eq!(status["code"], 422);
    }

    #[test]
    fn a_resource_version_from_the_future_tells_clients_to_retry() {
        let error = ApiError::too_large_resource_version(9, 4);
        assert_eq!(error.retry_after_secs(), Some(1));
        assert_eq!(error.to_status()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    }
}
