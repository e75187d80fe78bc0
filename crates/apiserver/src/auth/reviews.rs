//! Questions about access that clients ask as objects: may I, may they, who am I, whose token is this.
//!
//! A review is created, answered and forgotten: JSON in, the same JSON with its `status` out. The REST layer has decoded
//! the body and checked that the caller may create the review. Label keys of selectors are not checked here, and raw
//! selectors are not parsed: RBAC decides without them.

use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
    SelfSubjectAccessReviewSpec, SubjectAccessReviewSpec,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use usher_schema::field::{Errors, Path};

use super::authenticate::Unauthorized;
use super::identity::User;
use super::jwt::ISSUER;
use super::rbac::{Attributes, Decision, Rules, rules_for};
use super::refusal::Refusal;

const AUTHORIZATION: &str = "authorization.k8s.io";

/// Answers one question; the REST layer's is [`super::rbac::authorize`] with the current rules.
pub type Authorize<'a> = &'a dyn Fn(&Attributes) -> Decision;

/// Finds the user of a token that is good for one of the audiences, as [`super::authenticate::Authenticator::token`].
pub type Authenticate<'a> = &'a dyn Fn(&str, &[String]) -> Result<(User, Vec<String>), Unauthorized>;

pub fn subject_access_review(body: &Value, authorize: Authorize) -> Result<Value, Refusal> {
    let spec: SubjectAccessReviewSpec = spec_of(body)?;
    let mut errors = validate_subject(&spec);
    if metadata(body, &[]) {
        errors.invalid(&Path::new("metadata"), body["metadata"].clone(), "must be empty");
    }
    refuse("SubjectAccessReview", errors)?;
    Ok(answer(body, "SubjectAccessReview", access(&subject(&spec), &Asked::of_subject(&spec), authorize)))
}

/// `namespace` is the one of the path.
pub fn local_subject_access_review(body: &Value, namespace: &str, authorize: Authorize) -> Result<Value, Refusal> {
    let spec: SubjectAccessReviewSpec = spec_of(body)?;
    let own = body["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut errors = validate_subject(&spec);
    if metadata(body, &["namespace"]) {
        errors.invalid(&Path::new("metadata"), body["metadata"].clone(), "must be empty except for namespace");
    }
    if let Some(wanted) = &spec.resource_attributes {
        let wanted = text(&wanted.namespace);
        if wanted != own {
            errors.invalid(&Path::new("spec.resourceAttributes.namespace"), wanted, "must match metadata.namespace");
        }
    }
    if let Some(path) = &spec.non_resource_attributes {
        let why = "disallowed on this kind of request";
        errors.invalid(&Path::new("spec.nonResourceAttributes"), shown(Some(path)), why);
    }
    refuse("LocalSubjectAccessReview", errors)?;
    if own != namespace {
        let why = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(Refusal::BadRequest(why));
    }
    Ok(answer(body, "LocalSubjectAccessReview", access(&subject(&spec), &Asked::of_subject(&spec), authorize)))
}

pub fn self_subject_access_review(body: &Value, user: &User, authorize: Authorize) -> Result<Value, Refusal> {
    let spec: SelfSubjectAccessReviewSpec = spec_of(body)?;
    let asked = Asked { resource: spec.resource_attributes.as_ref(), path: spec.non_resource_attributes.as_ref() };
    let mut errors = asked.validate_union();
    errors.extend(asked.validate_selectors());
    if metadata(body, &[]) {
        errors.invalid(&Path::new("metadata"), body["metadata"].clone(), "must be empty");
    }
    refuse("SelfSubjectAccessReview", errors)?;
    Ok(answer(body, "SelfSubjectAccessReview", access(user, &asked, authorize)))
}

pub fn self_subject_rules_review(body: &Value, user: &User, rules: &Rules) -> Result<Value, Refusal> {
    let namespace = body["spec"]["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Refusal::BadRequest("no namespace on request".to_owned()));
    }
    let found = rules_for(user, namespace, rules);
    let mut status = json!({
        "resourceRules": found.resources, "nonResourceRules": found.paths, "incomplete": false,
    });
    if let Some(error) = found.error {
        status["evaluationError"] = json!(error);
    }
    // The question is not repeated, as upstream has it.
    Ok(json!({
        "kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1",
        "metadata": {}, "spec": {}, "status": status,
    }))
}

pub fn token_review(body: &Value, authenticate: Authenticate) -> Result<Value, Refusal> {
    let token = match &body["spec"]["token"] {
        Value::Null => "",
        Value::String(token) => token.as_str(),
        _ => return Err(Refusal::BadRequest("spec.token must be a string".to_owned())),
    };
    if token.is_empty() {
        return Err(Refusal::BadRequest("token is required for TokenReview in authentication".to_owned()));
    }
    let mut audiences: Vec<String> = match &body["spec"]["audiences"] {
        Value::Null => Vec::new(),
        list => serde_json::from_value(list.clone()).map_err(|error| Refusal::BadRequest(error.to_string()))?,
    };
    if audiences.is_empty() {
        audiences = vec![ISSUER.to_owned()];
    }
    let status = match authenticate(token, &audiences) {
        Ok((user, audiences)) => json!({"authenticated": true, "user": user.info(), "audiences": audiences}),
        Err(unauthorized) => json!({"user": {}, "error": unauthorized.to_string()}),
    };
    let mut out = answer(body, "TokenReview", status);
    out["apiVersion"] = json!("authentication.k8s.io/v1");
    Ok(out)
}

/// `kubectl auth whoami`.
pub fn self_subject_review(user: &User, now: Timestamp) -> Value {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    json!({
        "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": now.to_string()},
        "status": {"userInfo": user.info()},
    })
}

/// The question itself: exactly one of the two once it is validated.
struct Asked<'a> {
    resource: Option<&'a ResourceAttributes>,
    path: Option<&'a NonResourceAttributes>,
}

impl<'a> Asked<'a> {
    fn of_subject(spec: &'a SubjectAccessReviewSpec) -> Asked<'a> {
        Asked { resource: spec.resource_attributes.as_ref(), path: spec.non_resource_attributes.as_ref() }
    }

    fn validate_union(&self) -> Errors {
        let mut errors = Errors::new();
        if self.resource.is_some() == self.path.is_some() {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid(&Path::new("spec"), shown(self.path), why);
        }
        errors
    }

    fn validate_selectors(&self) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("spec").child("resourceAttributes");
        let Some(resource) = self.resource else { return errors };
        if let Some(FieldSelectorAttributes { raw_selector, requirements }) = &resource.field_selector {
            let list: Vec<Requirement> =
                requirements.iter().flatten().map(|r| (&r.key, &r.operator, &r.values)).collect();
            errors.extend(validate_selector(&path.child("fieldSelector"), raw_selector, &list, true));
        }
        if let Some(LabelSelectorAttributes { raw_selector, requirements }) = &resource.label_selector {
            let list: Vec<Requirement> =
                requirements.iter().flatten().map(|r| (&r.key, &r.operator, &r.values)).collect();
            errors.extend(validate_selector(&path.child("labelSelector"), raw_selector, &list, false));
        }
        errors
    }

    fn attributes(&self, user: &'a User) -> Attributes<'a> {
        let Some(wanted) = self.resource else {
            let (verb, path) = self.path.map_or(("", ""), |path| (text(&path.verb), text(&path.path)));
            return Attributes::path(user, verb, path);
        };
        Attributes {
            user,
            verb: text(&wanted.verb),
            namespace: text(&wanted.namespace),
            group: text(&wanted.group),
            version: if text(&wanted.version).is_empty() { "*" } else { text(&wanted.version) },
            resource: text(&wanted.resource),
            subresource: text(&wanted.subresource),
            name: text(&wanted.name),
            path: None,
        }
    }

    /// Selectors that say something we do not know. Leaving them out asks for more, never for less.
    fn ignored(&self) -> Option<String> {
        let resource = self.resource?;
        let unknown_label = |r: &Requirement| !["In", "NotIn", "Exists", "DoesNotExist"].contains(&r.1.as_str());
        let unknown_field =
            |r: &Requirement| !["In", "NotIn"].contains(&r.1.as_str()) || r.2.as_deref().unwrap_or_default().len() != 1;
        let fields: Vec<Requirement> = resource
            .field_selector
            .iter()
            .flat_map(|s| s.requirements.iter().flatten())
            .map(|r| (&r.key, &r.operator, &r.values))
            .collect();
        let labels: Vec<Requirement> = resource
            .label_selector
            .iter()
            .flat_map(|s| s.requirements.iter().flatten())
            .map(|r| (&r.key, &r.operator, &r.values))
            .collect();
        let note = |name: &str, unknown: usize, all: usize| match unknown {
            0 => None,
            n if n == all => Some(format!("spec.resourceAttributes.{name} ignored due to parse error")),
            _ => Some(format!("spec.resourceAttributes.{name} partially ignored due to parse error")),
        };
        let notes: Vec<String> = [
            note("fieldSelector", fields.iter().filter(|r| unknown_field(r)).count(), fields.len()),
            note("labelSelector", labels.iter().filter(|r| unknown_label(r)).count(), labels.len()),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

type Requirement<'a> = (&'a String, &'a String, &'a Option<Vec<String>>);

fn validate_selector(path: &Path, raw: &Option<String>, requirements: &[Requirement], needs_key: bool) -> Errors {
    let mut errors = Errors::new();
    let raw = text(raw);
    if !raw.is_empty() && !requirements.is_empty() {
        errors.invalid(&path.child("rawSelector"), raw, "may not specified at the same time as requirements");
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {path} is specified, requirements or rawSelector is required");
        errors.required(&path.child("requirements"), why);
    }
    for (i, (key, operator, values)) in requirements.iter().enumerate() {
        let path = path.child("requirements").index(i);
        if needs_key && key.is_empty() {
            errors.required(&path.child("key"), "must be specified");
        }
        let empty = values.as_deref().unwrap_or_default().is_empty();
        match operator.as_str() {
            "In" | "NotIn" if empty => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !empty => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&path.child("values"), why);
            }
            _ => {}
        }
    }
    errors
}

fn validate_subject(spec: &SubjectAccessReviewSpec) -> Errors {
    let asked = Asked::of_subject(spec);
    let mut errors = asked.validate_union();
    if text(&spec.user).is_empty() && spec.groups.as_deref().unwrap_or_default().is_empty() {
        let why = "at least one of user or group must be specified";
        errors.invalid(&Path::new("spec").child("user"), text(&spec.user), why);
    }
    errors.extend(asked.validate_selectors());
    errors
}

/// Groups are as asked: nobody is made `system:authenticated` by a question about them.
fn subject(spec: &SubjectAccessReviewSpec) -> User {
    User {
        name: text(&spec.user).to_owned(),
        uid: text(&spec.uid).to_owned(),
        groups: spec.groups.clone().unwrap_or_default(),
        extra: spec.extra.clone().unwrap_or_default(),
    }
}

/// The `status` of an access review.
fn access(user: &User, asked: &Asked, authorize: Authorize) -> Value {
    let decision = authorize(&asked.attributes(user));
    let mut status = Map::from_iter([("allowed".to_owned(), json!(decision.allow))]);
    if !decision.reason.is_empty() {
        status.insert("reason".to_owned(), json!(decision.reason));
    }
    if let Some(note) = asked.ignored() {
        status.insert("evaluationError".to_owned(), json!(note));
    }
    Value::Object(status)
}

/// The body with its kind and metadata made sure of, and with this status.
fn answer(body: &Value, kind: &str, status: Value) -> Value {
    let mut out = body.as_object().cloned().unwrap_or_default();
    out.insert("kind".to_owned(), json!(kind));
    out.insert("apiVersion".to_owned(), json!("authorization.k8s.io/v1"));
    out.entry("metadata").or_insert_with(|| json!({}));
    out.insert("status".to_owned(), status);
    Value::Object(out)
}

fn refuse(kind: &'static str, errors: Errors) -> Result<(), Refusal> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Refusal::Invalid { group: AUTHORIZATION, kind, name: String::new(), errors })
}

fn spec_of<T: DeserializeOwned + Default>(body: &Value) -> Result<T, Refusal> {
    match &body["spec"] {
        Value::Null => Ok(T::default()),
        spec => serde_json::from_value(spec.clone()).map_err(|error| Refusal::BadRequest(error.to_string())),
    }
}

/// Whether the metadata says anything that a review has no use for.
fn metadata(body: &Value, allowed: &[&str]) -> bool {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    body["metadata"].as_object().is_some_and(|metadata| {
        metadata.iter().any(|(key, value)| key != "managedFields" && !allowed.contains(&key.as_str()) && !empty(value))
    })
}

/// How upstream's errors show it: by the names of Go's fields.
fn shown(path: Option<&NonResourceAttributes>) -> Value {
    path.map_or(Value::Null, |path| json!({"Path": text(&path.path), "Verb": text(&path.verb)}))
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
