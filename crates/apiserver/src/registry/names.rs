//! The checks of [`usher_api::names`], and those that report into a list of errors themselves.

pub use usher_api::names::*;
use usher_schema::field::Errors;

use super::kinds::at::At;

/// `acme.io/foo`: a DNS subdomain, a slash, and characters of an HTTP path.
pub fn domain_prefixed_path(value: &str, at: &At, errors: &mut Errors) {
    if value.is_empty() {
        return errors.required(&at.path(), "");
    }
    let (host, path) = match value.split_once('/') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => (host, path),
        _ => {
            let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            return errors.invalid(&at.path(), value, detail);
        }
    };
    for message in dns1123_subdomain(host, false) {
        errors.invalid(&at.path(), host, message);
    }
    if !path.bytes().all(|c| c.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&c)) {
        let message = regex_error("Invalid path", "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+", &[]);
        errors.invalid(&at.path(), path, message);
    }
}

/// At least three labels (signer names and the like).
pub fn fully_qualified(value: &str, at: &At, errors: &mut Errors) {
    if value.is_empty() {
        return errors.required(&at.path(), "");
    }
    let problems = dns1123_subdomain(value, false);
    if !problems.is_empty() {
        return errors.invalid(&at.path(), value, problems.join(","));
    }
    if value.split('.').count() < 3 {
        errors.invalid(&at.path(), value, "should be a domain with at least three segments separated by dots");
    }
}
