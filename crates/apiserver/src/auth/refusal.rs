//! Why a review or a guarded write was not done, before it becomes a Status.

use usher_schema::field::{Errors, quote};

#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// 400.
    BadRequest(String),
    /// 422 `<kind>.<group> "<name>" is invalid: ...`.
    Invalid { group: &'static str, kind: &'static str, name: String, errors: Errors },
    /// 403.
    Forbidden(Forbidden),
    /// 404; `resource` is qualified (`clusterroles.rbac.authorization.k8s.io`).
    NotFound { resource: String, name: String },
    /// 409; `resource` is qualified.
    Conflict { resource: String, name: String, why: String },
    /// 500.
    Internal(String),
}

impl Refusal {
    pub fn code(&self) -> u16 {
        match self {
            Refusal::BadRequest(_) => 400,
            Refusal::Forbidden(_) => 403,
            Refusal::NotFound { .. } => 404,
            Refusal::Conflict { .. } => 409,
            Refusal::Invalid { .. } => 422,
            Refusal::Internal(_) => 500,
        }
    }

    /// The Status' `reason`.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::BadRequest(_) => "BadRequest",
            Refusal::Forbidden(_) => "Forbidden",
            Refusal::NotFound { .. } => "NotFound",
            Refusal::Conflict { .. } => "Conflict",
            Refusal::Invalid { .. } => "Invalid",
            Refusal::Internal(_) => "InternalError",
        }
    }

    /// The Status' `message`.
    pub fn message(&self) -> String {
        match self {
            Refusal::BadRequest(why) => why.clone(),
            Refusal::Forbidden(forbidden) => forbidden.message(),
            Refusal::NotFound { resource, name } => format!("{resource} {} not found", quote(name)),
            Refusal::Conflict { resource, name, why } => {
                format!("Operation cannot be fulfilled on {resource} {}: {why}", quote(name))
            }
            Refusal::Invalid { group, kind, name, errors } => {
                format!("{kind}.{group} {} is invalid: {errors}", quote(name))
            }
            Refusal::Internal(why) => format!("Internal error occurred: {why}"),
        }
    }
}

/// A 403: what it is about, for the Status' details, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    pub group: String,
    /// Empty when the request was for a path.
    pub resource: String,
    pub name: String,
    pub why: String,
}

impl Forbidden {
    pub fn message(&self) -> String {
        if self.resource.is_empty() {
            return format!("forbidden: {}", self.why);
        }
        let resource = qualified(&self.resource, &self.group);
        if self.name.is_empty() {
            format!("{resource} is forbidden: {}", self.why)
        } else {
            format!("{resource} {} is forbidden: {}", quote(&self.name), self.why)
        }
    }
}

/// `jobs.batch`, `pods`.
pub(crate) fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// Go's `%q` of a list of strings: `["a" "b"]`.
pub(crate) fn quote_list(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|s| quote(s)).collect();
    format!("[{}]", quoted.join(" "))
}

/// How Go's aggregate prints errors: without repeats, in brackets when there are several.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for error in errors {
        if !seen.contains(&error.as_str()) {
            seen.push(error);
        }
    }
    match seen.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_names_what_was_asked_for() {
        let forbidden = |resource: &str, name: &str| Forbidden {
            group: "batch".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            why: "no".to_owned(),
        };
        assert_eq!(forbidden("jobs", "a").message(), "jobs.batch \"a\" is forbidden: no");
        assert_eq!(forbidden("jobs", "").message(), "jobs.batch is forbidden: no");
        assert_eq!(forbidden("", "").message(), "forbidden: no");
    }

    #[test]
    fn an_aggregate_says_each_error_once() {
        let errors = |list: &[&str]| aggregate(&list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(errors(&["a", "a"]), "a");
        assert_eq!(errors(&["a", "b", "a"]), "[a, b]");
    }
}
