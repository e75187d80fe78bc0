//! Where a validation error is and what is wrong there, in Kubernetes' words.
//!
//! The wire shows each error twice: as a cause (`reason`, `field`, `message`) and in the Status' sentence. Both are rendered
//! here, so that a kind's validation only says what is wrong.

use std::fmt;

use serde_json::Value;

/// A path to a field: `spec.template.spec.containers[0].name`, `metadata.labels[app]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    pub fn new(name: &str) -> Path {
        Path(name.to_owned())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Path {
        if self.0.is_empty() { Path(name.to_owned()) } else { Path(format!("{}.{name}", self.0)) }
    }

    #[must_use]
    pub fn index(&self, i: usize) -> Path {
        Path(format!("{}[{i}]", self.0))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Path {
        Path(format!("{}[{key}]", self.0))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Go's field.Path prints a nil path like this.
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooShort,
    TooMany,
    TooFew,
    Internal,
    TypeInvalid,
}

impl Kind {
    /// The machine-readable `reason` of a Status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Kind::NotFound => "FieldValueNotFound",
            Kind::Required => "FieldValueRequired",
            Kind::Duplicate => "FieldValueDuplicate",
            Kind::Invalid => "FieldValueInvalid",
            Kind::NotSupported => "FieldValueNotSupported",
            Kind::Forbidden => "FieldValueForbidden",
            Kind::TooLong => "FieldValueTooLong",
            Kind::TooShort => "FieldValueTooShort",
            Kind::TooMany => "FieldValueTooMany",
            Kind::TooFew => "FieldValueTooFew",
            Kind::Internal => "InternalError",
            Kind::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::NotFound => "Not found",
            Kind::Required => "Required value",
            Kind::Duplicate => "Duplicate value",
            Kind::Invalid | Kind::TypeInvalid => "Invalid value",
            Kind::NotSupported => "Unsupported value",
            Kind::Forbidden => "Forbidden",
            Kind::TooLong => "Too long",
            Kind::TooShort => "Too short",
            Kind::TooMany => "Too many",
            Kind::TooFew => "Too few",
            Kind::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(self, Kind::Required | Kind::Forbidden | Kind::TooLong | Kind::TooShort | Kind::Internal)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    pub kind: Kind,
    pub path: Path,
    /// The refused value; `None` where upstream omits it.
    pub value: Option<Value>,
    pub detail: String,
}

impl Error {
    /// What a Status cause says: everything but the path.
    pub fn body(&self) -> String {
        let mut out = self.kind.words().to_owned();
        if let Some(value) = self.value.as_ref().filter(|_| self.kind.shows_value()) {
            out.push_str(": ");
            match value {
                Value::String(s) => out.push_str(&quote(s)),
                other => out.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

pub use crate::cron::quote;

/// The errors of one object, in the order they were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    pub fn new() -> Errors {
        Errors::default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn extend(&mut self, other: Errors) {
        self.0.extend(other.0);
    }

    fn push(&mut self, kind: Kind, path: &Path, value: Option<Value>, detail: impl Into<String>) {
        self.0.push(Error { kind, path: path.clone(), value, detail: detail.into() });
    }

    pub fn required(&mut self, path: &Path, detail: impl Into<String>) {
        self.push(Kind::Required, path, None, detail);
    }

    pub fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(Kind::Invalid, path, Some(value.into()), detail);
    }

    pub fn type_invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(Kind::TypeInvalid, path, Some(value.into()), detail);
    }

    /// `Invalid value: …: field is immutable`.
    pub fn immutable(&mut self, path: &Path, value: impl Into<Value>) {
        self.invalid(path, value, "field is immutable");
    }

    pub fn forbidden(&mut self, path: &Path, detail: impl Into<String>) {
        self.push(Kind::Forbidden, path, None, detail);
    }

    pub fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.push(Kind::Duplicate, path, Some(value.into()), "");
    }

    pub fn not_found(&mut self, path: &Path, value: impl Into<Value>) {
        self.push(Kind::NotFound, path, Some(value.into()), "");
    }

    pub fn not_supported(&mut self, path: &Path, value: impl Into<Value>, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| quote(s)).collect();
        let detail = if list.is_empty() { String::new() } else { format!("supported values: {}", list.join(", ")) };
        self.push(Kind::NotSupported, path, Some(value.into()), detail);
    }

    pub fn too_long(&mut self, path: &Path, max_bytes: usize) {
        let unit = if max_bytes == 1 { "byte" } else { "bytes" };
        self.push(Kind::TooLong, path, None, format!("may not be more than {max_bytes} {unit}"));
    }

    pub fn too_many(&mut self, path: &Path, found: usize, max: usize) {
        let unit = if max == 1 { "item" } else { "items" };
        self.push(Kind::TooMany, path, Some(found.into()), format!("must have at most {max} {unit}"));
    }

    pub fn too_few(&mut self, path: &Path, found: usize, min: usize) {
        let unit = if min == 1 { "item" } else { "items" };
        self.push(Kind::TooFew, path, Some(found.into()), format!("must have at least {min} {unit}"));
    }

    pub fn internal(&mut self, path: &Path, detail: impl Into<String>) {
        self.push(Kind::Internal, path, None, detail);
    }
}

impl fmt::Display for Errors {
    /// One error stands alone, several stand in brackets without repeats, as Go's aggregate errors do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen: Vec<String> = Vec::new();
        for error in &self.0 {
            let text = error.to_string();
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
        match seen.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_upstream_prints_it() {
        let spec = Path::new("spec");
        let mut errors = Errors::new();
        errors.invalid(&spec.child("parallelism"), -1, "must be greater than or equal to 0");
        errors.required(&spec.child("template").child("spec").child("containers").index(0).child("name"), "");
        errors.not_supported(&spec.child("mode"), "x\"y", &["A", "B"]);
        assert_eq!(
            errors.to_string(),
            "[spec.parallelism: Invalid value: -1: must be greater than or equal to 0, \
             spec.template.spec.containers[0].name: Required value, \
             spec.mode: Unsupported value: \"x\\\"y\": supported values: \"A\", \"B\"]"
        );
    }

    #[test]
    fn equal_errors_are_said_once_and_a_single_one_without_brackets() {
        let mut errors = Errors::new();
        errors.too_long(&Path::new("a"), 63);
        errors.too_long(&Path::new("a"), 63);
        assert_eq!(errors.to_string(), "a: Too long: may not be more than 63 bytes");
        assert_eq!(errors.0[0].kind.reason(), "FieldValueTooLong");
    }
}
