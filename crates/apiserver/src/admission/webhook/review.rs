//! `admission.k8s.io/v1 AdmissionReview`: the question a webhook is asked, and what may be made of its answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::matching::Invocation;
use crate::admission::Review;
use crate::object::{self, Object};
use crate::status::ApiError;

/// Versions of the review that can be spoken. They look the same; what is checked in answers differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V1beta1,
}

impl Version {
    /// The first that the webhook lists and that is known.
    pub fn choose(listed: &[String]) -> Option<Version> {
        listed.iter().find_map(|version| match version.as_str() {
            "v1" => Some(Version::V1),
            "v1beta1" => Some(Version::V1beta1),
            _ => None,
        })
    }

    fn api_version(self) -> &'static str {
        match self {
            Version::V1 => "admission.k8s.io/v1",
            Version::V1beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// An object as webhooks are shown it: as clients see it, in the version their rule names.
pub fn shown(review: &Review<'_>, invocation: &Invocation, object: Option<&Object>) -> Option<Value> {
    let object = object?.clone();
    let (group, version, kind) = review.body_kind();
    if !review.is_own_kind() {
        return Some(typed(object, group, version, kind));
    }
    Some(typed(object, group, &invocation.version, kind))
}

fn typed(mut object: Value, group: &str, version: &str, kind: &str) -> Value {
    let root = object::as_map(&mut object);
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    root.insert("apiVersion".to_owned(), api_version.into());
    root.insert("kind".to_owned(), kind.into());
    object
}

/// The request without uid and objects, which is also what conditions see.
pub fn request(review: &Review<'_>, invocation: &Invocation) -> Value {
    let resource = review.resource();
    let (group, version, kind) = review.body_kind();
    let wanted = if review.is_own_kind() { invocation.version.as_str() } else { version };
    let gvk = |version: &str| json!({"group": group, "version": version, "kind": kind});
    let gvr = |version: &str| json!({"group": resource.group, "version": version, "resource": resource.plural});
    let mut request = json!({
        "kind": gvk(wanted), "resource": gvr(&invocation.version),
        "requestKind": gvk(version), "requestResource": gvr(&resource.version),
        "operation": review.operation.name(), "userInfo": review.user.info(),
        "dryRun": review.dry_run, "options": review.options(),
    });
    for (key, text) in [
        ("subResource", review.subresource),
        ("requestSubResource", review.subresource),
        ("name", review.name),
        ("namespace", review.namespace),
    ] {
        if !text.is_empty() {
            request[key] = text.into();
        }
    }
    request
}

pub fn question(
    version: Version,
    uid: &str,
    review: &Review<'_>,
    invocation: &Invocation,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Value {
    let mut request = request(review, invocation);
    request["uid"] = uid.into();
    request["object"] = shown(review, invocation, object).unwrap_or(Value::Null);
    request["oldObject"] = shown(review, invocation, old).unwrap_or(Value::Null);
    json!({"kind": "AdmissionReview", "apiVersion": version.api_version(), "request": request})
}

/// What a webhook said.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    pub allowed: bool,
    pub status: Option<Map<String, Value>>,
    /// A JSON patch, still as text.
    pub patch: Vec<u8>,
    pub patch_type: String,
    pub warnings: Vec<String>,
}

impl Verdict {
    /// Reads an answer to the question with this uid. Errors are worded as upstream's.
    pub fn read(version: Version, uid: &str, is_mutating: bool, answer: &Value) -> Result<Verdict, String> {
        let response = match answer.get("response") {
            Some(Value::Object(response)) => response,
            _ => return Err("webhook response was absent".to_owned()),
        };
        let text = |key: &str| response.get(key).and_then(Value::as_str).unwrap_or("");
        let patch = STANDARD
            .decode(text("patch"))
            .map_err(|e| format!("webhook returned a response.patch that is not base64: {e}"))?;
        let said_type = response.get("patchType").filter(|t| !t.is_null()).is_some();
        if version == Version::V1 {
            check_identity(uid, text("uid"), answer)?;
            check_patch(is_mutating, !patch.is_empty(), said_type, text("patchType"))?;
        }
        let patch_type = if version == Version::V1 { text("patchType") } else { "JSONPatch" };
        let warnings = response.get("warnings").and_then(Value::as_array).into_iter().flatten();
        Ok(Verdict {
            allowed: response.get("allowed").and_then(Value::as_bool).unwrap_or(false),
            status: response.get("status").and_then(Value::as_object).cloned(),
            patch: if is_mutating { patch } else { Vec::new() },
            patch_type: patch_type.to_owned(),
            warnings: warnings.filter_map(|w| w.as_str().map(str::to_owned)).collect(),
        })
    }

    /// The refusal that the client gets to see.
    pub fn refusal(self, hook: &str) -> ApiError {
        let denied = format!("admission webhook {hook:?} denied the request");
        let mut status = self.status.unwrap_or_default();
        let text =
            |status: &Map<String, Value>, key: &str| status.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let message = match (text(&status, "message").as_str(), text(&status, "reason").as_str()) {
            ("", "") => format!("{denied} without explanation"),
            ("", reason) => format!("{denied}: {reason}"),
            (message, _) => format!("{denied}: {message}"),
        };
        let code = status.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let code = code.filter(|code| (400..600).contains(code)).unwrap_or(400);
        if matches!(text(&status, "status").as_str(), "" | "Success") {
            status.insert("status".to_owned(), "Failure".into());
        }
        status.entry("metadata").or_insert_with(|| json!({}));
        status.insert("message".to_owned(), message.as_str().into());
        status.insert("code".to_owned(), code.into());
        ApiError::made_elsewhere(code, &message, status)
    }
}

fn check_identity(uid: &str, said: &str, answer: &Value) -> Result<(), String> {
    if said != uid {
        return Err(format!("expected response.uid={uid:?}, got {said:?}"));
    }
    let root = |key: &str| answer.get(key).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (root("apiVersion"), root("kind"));
    if (api_version, kind) != ("admission.k8s.io/v1", "AdmissionReview") {
        return Err(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {api_version}, Kind={kind}"
        ));
    }
    Ok(())
}

fn check_patch(is_mutating: bool, has_patch: bool, said_type: bool, patch_type: &str) -> Result<(), String> {
    let problem = match (is_mutating, has_patch, said_type) {
        (true, true, false) => "webhook returned response.patch but not response.patchType",
        (true, false, true) => "webhook returned response.patchType but not response.patch",
        (true, true, true) if patch_type.is_empty() => "webhook returned invalid response.patchType of \"\"",
        (false, true, _) => "validating webhook may not return response.patch",
        (false, _, true) => "validating webhook may not return response.patchType",
        _ => return Ok(()),
    };
    Err(problem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(response: Value) -> Value {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }

    #[test]
    fn answers_that_break_the_protocol_are_errors() {
        let read = |is_mutating, value: &Value| Verdict::read(Version::V1, "u", is_mutating, value).unwrap_err();
        assert_eq!(read(true, &json!({})), "webhook response was absent");
        assert_eq!(read(true, &answer(json!({"uid": "x", "allowed": true}))), "expected response.uid=\"u\", got \"x\"");
        let mut other = answer(json!({"uid": "u"}));
        other["kind"] = "Review".into();
        assert_eq!(
            read(true, &other),
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1, Kind=Review"
        );
        let patched = answer(json!({"uid": "u", "allowed": true, "patch": "W10="}));
        assert_eq!(read(true, &patched), "webhook returned response.patch but not response.patchType");
        assert_eq!(read(false, &patched), "validating webhook may not return response.patch");
        let typed = answer(json!({"uid": "u", "allowed": true, "patchType": "JSONPatch"}));
        assert_eq!(read(true, &typed), "webhook returned response.patchType but not response.patch");
        assert_eq!(read(false, &typed), "validating webhook may not return response.patchType");
        assert!(read(true, &answer(json!({"uid": "u", "patch": "%%"}))).contains("not base64"));
    }

    #[test]
    fn a_refusal_keeps_the_webhooks_status_and_has_a_code_of_an_error() {
        let refuse = |status: Option<Value>| {
            let mut response = json!({"uid": "u", "allowed": false});
            if let Some(status) = status {
                response["status"] = status;
            }
            Verdict::read(Version::V1, "u", false, &answer(response)).unwrap().refusal("h.io")
        };
        let bare = refuse(None);
        assert_eq!(bare.message, "admission webhook \"h.io\" denied the request without explanation");
        assert_eq!((bare.code, bare.to_status()["status"].as_str()), (400, Some("Failure")));
        assert!(bare.to_status().get("reason").is_none());

        let told = refuse(Some(json!({"message": "no", "reason": "Forbidden", "code": 403, "details": {"name": "x"}})));
        assert_eq!(
            told.to_status(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden",
                "code": 403, "message": "admission webhook \"h.io\" denied the request: no", "details": {"name": "x"}})
        );
        assert_eq!(refuse(Some(json!({"code": 200, "reason": "Why"}))).code, 400);
        let reason = refuse(Some(json!({"reason": "Why"})));
        assert_eq!(reason.message, "admission webhook \"h.io\" denied the request: Why");
    }
}
