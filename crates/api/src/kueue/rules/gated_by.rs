//! The annotation that keeps a Workload (or a job) out of admission until its controllers let go.

use std::collections::BTreeSet;

use crate::field::{Errors, Path};
use crate::kueue::keys::annotation::ADMISSION_GATED_BY;
use crate::names;

const MAX_BYTES: usize = 63;

fn path() -> Path {
    Path::new("metadata").child("annotations").key(ADMISSION_GATED_BY)
}

/// The names in the annotation, as upstream splits them.
pub fn gates(value: &str) -> Vec<&str> {
    if value.trim().is_empty() { Vec::new() } else { value.split(',').map(str::trim).collect() }
}

pub fn validate(value: &str, errors: &mut Errors) {
    if value.is_empty() {
        return;
    }
    let (path, mut seen) = (path(), BTreeSet::new());
    for gate in gates(value) {
        if gate.is_empty() {
            errors.invalid(&path, value, "cannot contain empty gate names");
        } else if !seen.insert(gate) {
            errors.invalid(&path, value, format!("duplicate gate name: {gate}"));
        } else {
            domain_prefixed_path(gate, &path, errors);
            if gate.len() > MAX_BYTES {
                errors.too_long(&path, MAX_BYTES);
            }
        }
    }
}

/// Gates can be removed, never added.
pub fn validate_update(new: &str, old: &str, errors: &mut Errors) {
    if old.is_empty() && !new.is_empty() {
        errors.forbidden(&path(), "cannot add admission gate after creation");
    }
    let before = gates(old);
    if !old.is_empty() && gates(new).iter().any(|gate| !before.contains(gate)) {
        errors.forbidden(&path(), "can only remove gates, not add new ones");
    }
    validate(new, errors);
}

/// `acme.io/foo`.
fn domain_prefixed_path(value: &str, path: &Path, errors: &mut Errors) {
    let Some((host, rest)) = value.split_once('/').filter(|(host, rest)| !host.is_empty() && !rest.is_empty()) else {
        errors.invalid(path, value, "must be a domain-prefixed path (such as \"acme.io/foo\")");
        return;
    };
    for problem in names::dns1123_subdomain(host, false) {
        errors.invalid(path, host, problem);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
    if !rest.chars().all(allowed) {
        let why = names::regex_error("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]);
        errors.invalid(path, rest, why);
    }
}
