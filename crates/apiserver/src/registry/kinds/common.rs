//! Small words every kind's rules are made of.
//!
//! The Kubernetes types here have `Option`s where Go has zero values; these functions read both alike.

use serde::Serialize;
use serde_json::Value;
use usher_schema::field::{Error, Errors, Kind};

use super::at::At;

pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// An absent string is an empty one.
pub fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or_default()
}

/// An absent list is an empty one.
pub fn list<T>(value: &Option<Vec<T>>) -> &[T] {
    value.as_deref().unwrap_or_default()
}

pub fn is_true(value: Option<bool>) -> bool {
    value == Some(true)
}

/// Sets a string that is absent or empty.
pub fn default_text(value: &mut Option<String>, default: &str) {
    if text(value).is_empty() {
        *value = Some(default.to_owned());
    }
}

/// A value as an error shows it.
pub fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

pub fn not_negative(value: impl Into<i64>, at: &At, errors: &mut Errors) {
    let value = value.into();
    if value < 0 {
        errors.invalid(&at.path(), value, NOT_NEGATIVE);
    }
}

pub fn optional_not_negative(value: Option<impl Into<i64>>, at: &At, errors: &mut Errors) {
    if let Some(value) = value {
        not_negative(value, at, errors);
    }
}

/// A value that is not one of `supported`.
pub fn one_of(value: &str, supported: &[&str], at: &At, errors: &mut Errors) {
    if !supported.contains(&value) {
        errors.not_supported(&at.path(), value, supported);
    }
}

/// As [`one_of`], but an empty value is a missing one.
pub fn required_one_of(value: &str, supported: &[&str], at: &At, errors: &mut Errors) {
    if value.is_empty() {
        errors.required(&at.path(), "");
    } else {
        one_of(value, supported, at, errors);
    }
}

/// Adds each of the problems a name rule found.
pub fn each_invalid(problems: Vec<String>, value: &str, at: &At, errors: &mut Errors) {
    for problem in problems {
        errors.invalid(&at.path(), value, problem);
    }
}

/// `Invalid value: detail`, for values that upstream leaves out.
pub fn invalid_without_value(at: &At, detail: impl Into<String>, errors: &mut Errors) {
    errors.0.push(Error { kind: Kind::Invalid, path: at.path(), value: None, detail: detail.into() });
}

/// `field is immutable` unless both are the same.
pub fn immutable<T: PartialEq + Serialize>(new: &T, old: &T, at: &At, errors: &mut Errors) {
    if new != old {
        errors.immutable(&at.path(), json(new));
    }
}

/// An IP address as fields that predate strict checks accept it since 1.36.
pub fn ip(value: &str, at: &At, errors: &mut Errors) {
    if value.parse::<std::net::IpAddr>().is_err() {
        errors.invalid(&at.path(), value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
    }
}
