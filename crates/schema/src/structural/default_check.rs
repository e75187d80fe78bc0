//! Defaults must be what the schema would accept: without unknown fields, valid, and passing the rules.

use serde_json::Value;

use super::schema::{Options, Props, is_meta};
use super::{embedded, prune, rules, validate};
use crate::field::{Errors, Path};

/// Everything but the rules.
pub(super) fn defaults(root: &Props, options: &Options) -> Errors {
    let mut errors = Errors::new();
    each(root, &options.path, true, false, &mut |props, value, path, inside_meta| {
        let at = path.child("default");
        if !inside_meta && options.require_pruned_defaults && prune::has_unknown(value, props) {
            errors.invalid(&at, value.clone(), "must not have unknown fields");
        }
        let mut found = Errors::new();
        if !inside_meta {
            embedded::validate(value, props, &at, &mut found);
        }
        if found.is_empty() {
            validate::validate_default(props, value, &at, &mut found);
        }
        errors.extend(found);
    });
    errors
}

/// The rules, once they are compiled: a default must pass both as it stands and as an update of itself.
pub(super) fn rules(root: &Props, options: &Options) -> Errors {
    let mut errors = Errors::new();
    each(root, &options.path, true, false, &mut |props, value, path, _| {
        let at = path.child("default");
        let mut found = Errors::new();
        rules::validate(props, value, Some(value), props.embedded, &at, &mut found);
        if found.is_empty() {
            rules::validate(props, value, None, props.embedded, &at, &mut found);
        }
        errors.extend(found);
    });
    errors
}

fn each(
    props: &Props,
    path: &Path,
    resource: bool,
    inside_meta: bool,
    visit: &mut dyn FnMut(&Props, &Value, &Path, bool),
) {
    if !props.below.defaults {
        return;
    }
    let inside_meta = inside_meta && !props.embedded;
    if let Some(value) = &props.default {
        visit(props, value, path, inside_meta);
    }
    if let Some(items) = props.items() {
        each(items, &path.child("items"), items.embedded, inside_meta, visit);
    }
    for (name, field) in &props.properties {
        let inside_meta = inside_meta || resource && is_meta(name);
        each(field, &path.child("properties").key(name), field.embedded, inside_meta, visit);
    }
}
