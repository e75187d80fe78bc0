//! What a schema must look like to be accepted: upstream's structural rules and its restrictions of OpenAPI v3.
//!
//! Two independent readings, as upstream has them: [`structural`] (is every value's shape known without looking into
//! `allOf` and its like?) and [`openapi`] (is every keyword one that is supported here?).

use serde_json::Value;

use super::fieldpath;
use super::schema::{Additional, Items, Options, Props, Ty, is_meta};
use crate::field::{Errors, Path};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
/// Go's names of the fields, because the message shows them.
const ALLOWED_AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength \
     MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example \
     XPreserveUnknownFields XValidations]";
const FORBIDDEN_AT_ROOT: [&str; 21] = [
    "id",
    "$schema",
    "$ref",
    "nullable",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
];

/// What is forbidden at the root only.
pub(super) fn root(props: &Props, source: &Value, options: &Options, errors: &mut Errors) {
    if options.status_subresource {
        if props.ty != Ty::Object && !props.ty_name.is_empty() {
            errors.invalid(
                &options.path.child("type"),
                props.ty_name.as_str(),
                "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled",
            );
        } else if FORBIDDEN_AT_ROOT.iter().any(|k| source.get(*k).is_some_and(says_something)) || props.int_or_string {
            let detail = format!(
                "only {ALLOWED_AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.invalid(&options.path, source.clone(), detail);
        }
    }
    if props.nullable {
        errors.forbidden(&options.path.child("nullable"), "nullable cannot be true at the root");
    }
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(s) => !s.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

/// Why the schema cannot be read as a structural one at all.
pub(super) fn unconvertible(props: &Props) -> Option<String> {
    if let Some(keyword) = props.unsupported.first() {
        let keyword = if *keyword == "$schema" { "schema" } else { keyword };
        return Some(format!("OpenAPIV3Schema '{keyword}' is not supported"));
    }
    if matches!(props.items, Items::Several) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    if props.preserve_unknown == Some(false) {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    let junctors = props.all_of.iter().chain(&props.any_of).chain(&props.one_of).chain(props.not.as_deref());
    let spine = props.properties.values().chain(props.items()).chain(props.additional());
    junctors.chain(spine).find_map(unconvertible)
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The invariants of a structural schema, sorted as upstream sorts them.
pub(super) fn structural(props: &Props, path: &Path) -> Errors {
    let mut errors = Errors::new();
    invariants(props, Level::Root, path, &mut errors);
    completeness(props, props, path, path, &mut errors);
    errors.0.sort_by_cached_key(ToString::to_string);
    errors
}

fn invariants(props: &Props, level: Level, path: &Path, errors: &mut Errors) {
    if props.ty == Ty::Array && props.items().is_none() {
        errors.required(&path.child("items"), "must be specified");
    }
    if let Some(items) = props.items() {
        invariants(items, Level::Item, &path.child("items"), errors);
    }
    for (name, field) in &props.properties {
        invariants(field, Level::Field, &path.child("properties").key(name), errors);
    }
    if props.has_additional() && level == Level::Root {
        errors.forbidden(&path.child("additionalProperties"), "must not be used at the root");
    }
    if let Some(additional) = props.additional() {
        invariants(additional, Level::Field, &path.child("additionalProperties"), errors);
    }
    if props.int_or_string && props.preserves_unknown() {
        let at = path.child("x-kubernetes-preserve-unknown-fields");
        errors.invalid(&at, true, "must be false if x-kubernetes-int-or-string is true");
    }
    if props.int_or_string && props.embedded {
        let at = path.child("x-kubernetes-embedded-resource");
        errors.invalid(&at, true, "must be false if x-kubernetes-int-or-string is true");
    }
    let skip_any_of = is_int_or_string(&props.any_of);
    let skip_first = props.all_of.first().is_some_and(|first| is_int_or_string(&first.any_of));
    value_validation(props, skip_any_of, skip_first, path, errors);
    types(props, level, path, errors);
    metadata(props, level, path, errors);
}

fn is_int_or_string(any_of: &[Props]) -> bool {
    matches!(any_of, [a, b] if a.only_type && b.only_type && a.ty == Ty::Integer && b.ty == Ty::String)
}

fn types(props: &Props, level: Level, path: &Path, errors: &mut Errors) {
    let at = path.child("type");
    if props.embedded && props.ty != Ty::Object {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        if props.ty_name.is_empty() {
            errors.required(&at, detail);
        } else {
            errors.invalid(&at, props.ty_name.as_str(), detail);
        }
    } else if props.ty_name.is_empty() && !props.int_or_string && !props.preserves_unknown() {
        let whose = match level {
            Level::Root => "at the root",
            Level::Item => "for specified array items",
            Level::Field => "for specified object fields",
        };
        errors.required(&at, format!("must not be empty {whose}"));
    }
    if props.embedded && props.has_additional() {
        let at = path.child("additionalProperties");
        errors.forbidden(&at, "must not be used if x-kubernetes-embedded-resource is set");
    }
    if level == Level::Root && !props.ty_name.is_empty() && props.ty != Ty::Object {
        errors.invalid(&at, props.ty_name.as_str(), "must be object at the root");
    }
}

fn metadata(props: &Props, level: Level, path: &Path, errors: &mut Errors) {
    let has_meta = level == Level::Root || props.embedded;
    let fields = path.child("properties");
    for name in ["kind", "apiVersion"] {
        if let Some(field) = props.properties.get(name).filter(|f| has_meta && f.ty != Ty::String) {
            errors.invalid(&fields.key(name).child("type"), field.ty_name.as_str(), "must be string");
        }
    }
    if let Some(meta) = props.properties.get("metadata") {
        let at = fields.key("metadata");
        if has_meta && meta.ty != Ty::Object {
            errors.invalid(&at.child("type"), meta.ty_name.as_str(), "must be object");
        }
        let only_names = meta.properties.keys().all(|k| matches!(k.as_str(), "name" | "generateName"));
        if level == Level::Root && !(meta.only_structure && only_names) {
            let detail =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.forbidden(&at, detail);
        }
    }
    if props.embedded && !props.preserves_unknown() && props.properties.is_empty() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        errors.required(&fields, detail);
    }
}

fn value_validation(props: &Props, skip_any_of: bool, skip_first: bool, path: &Path, errors: &mut Errors) {
    if !skip_any_of {
        for (i, branch) in props.any_of.iter().enumerate() {
            nested(branch, false, &path.child("anyOf").index(i), errors);
        }
    }
    for (i, branch) in props.all_of.iter().enumerate() {
        nested(branch, skip_first && i == 0, &path.child("allOf").index(i), errors);
    }
    for (i, branch) in props.one_of.iter().enumerate() {
        nested(branch, false, &path.child("oneOf").index(i), errors);
    }
    if let Some(not) = &props.not {
        nested(not, false, &path.child("not"), errors);
    }
    if !props.pattern.is_empty()
        && let Err(error) = super::formats::go_regex(&props.pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {}", go_error(&props.pattern, &error));
        errors.invalid(&path.child("pattern"), props.pattern.as_str(), detail);
    }
}

/// The commonest mistakes in Go's words.
fn go_error(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
    match last {
        "unclosed group" => format!("error parsing regexp: missing closing ): `{pattern}`"),
        "unclosed character class" => format!("error parsing regexp: missing closing ]: `{pattern}`"),
        other => format!("error parsing regexp: {other}"),
    }
}

/// Below a logical junctor a schema may only narrow values, not say what they are.
fn nested(props: &Props, skip_any_of: bool, path: &Path, errors: &mut Errors) {
    value_validation(props, skip_any_of, false, path, errors);
    if let Some(items) = props.items() {
        nested(items, false, &path.child("items"), errors);
    }
    for (name, field) in &props.properties {
        nested(field, false, &path.child("properties").key(name), errors);
    }
    const EMPTY: &str = "must be empty to be structural";
    const UNDEFINED: &str = "must be undefined to be structural";
    const FALSE: &str = "must be false to be structural";
    let additional = matches!(props.additional, Additional::Schema(_) | Additional::Allowed(true));
    let forbidden = [
        (!props.ty_name.is_empty(), "type", EMPTY),
        (additional, "additionalProperties", UNDEFINED),
        (props.default.is_some(), "default", UNDEFINED),
        (props.titled, "title", EMPTY),
        (props.described, "description", EMPTY),
        (props.nullable, "nullable", FALSE),
        (props.preserves_unknown(), "x-kubernetes-preserve-unknown-fields", FALSE),
        (props.embedded, "x-kubernetes-embedded-resource", FALSE),
        (props.int_or_string, "x-kubernetes-int-or-string", FALSE),
        (!props.map_keys.is_empty(), "x-kubernetes-list-map-keys", EMPTY),
        (props.list_type.is_some(), "x-kubernetes-list-type", UNDEFINED),
        (props.map_type.is_some(), "x-kubernetes-map-type", UNDEFINED),
        (!props.rules.is_empty(), "x-kubernetes-validations", EMPTY),
    ];
    for (said, keyword, detail) in forbidden {
        if said {
            errors.forbidden(&path.child(keyword), detail);
        }
    }
    if props.properties.contains_key("metadata") {
        errors.forbidden(&path.child("properties").key("metadata"), "must not be specified in a nested context");
    }
}

/// Everything that a junctor's branch talks about must also exist on the structural side.
fn completeness(branch: &Props, spine: &Props, spine_path: &Path, path: &Path, errors: &mut Errors) {
    let mut descend = |b: &Props, at: Path| nested_completeness(b, spine, spine_path, &at, errors);
    if let Some(not) = &branch.not {
        descend(not, path.child("not"));
    }
    for (name, branches) in [("allOf", &branch.all_of), ("anyOf", &branch.any_of), ("oneOf", &branch.one_of)] {
        for (i, b) in branches.iter().enumerate() {
            descend(b, path.child(name).index(i));
        }
    }
}

fn nested_completeness(branch: &Props, spine: &Props, spine_path: &Path, path: &Path, errors: &mut Errors) {
    completeness(branch, spine, spine_path, path, errors);
    if let Some(items) = branch.items() {
        let (at, from) = (spine_path.child("items"), path.child("items"));
        match spine.items() {
            Some(spine) => nested_completeness(items, spine, &at, &from, errors),
            None => errors.required(&at, format!("because it is defined in {from}")),
        }
    }
    for (name, field) in &branch.properties {
        let (at, from) = (spine_path.child("properties").key(name), path.child("properties").key(name));
        match spine.properties.get(name) {
            Some(spine) => nested_completeness(field, spine, &at, &from, errors),
            None => errors.required(&at, format!("because it is defined in {from}")),
        }
    }
}

/// What surrounds the node being looked at.
#[derive(Clone, Copy, Default)]
struct Around<'a> {
    root: bool,
    /// Why a `default` is forbidden here.
    no_defaults: Option<&'a str>,
    inside_meta: bool,
}

/// Keywords and combinations of them that are not supported.
pub(super) fn openapi(props: &Props, path: &Path) -> Errors {
    let mut errors = Errors::new();
    keywords(props, path, Around { root: true, ..Around::default() }, &mut errors);
    errors
}

fn keywords(props: &Props, path: &Path, around: Around, errors: &mut Errors) {
    standard(props, path, around, errors);
    if props.unique_items {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&path.child("uniqueItems"), detail);
    }
    let inner = Around { root: false, ..around };
    let additional = path.child("additionalProperties");
    if !props.properties.is_empty() && matches!(props.additional, Additional::Schema(_) | Additional::Allowed(false)) {
        errors.forbidden(&additional, "additionalProperties and properties are mutual exclusive");
    }
    if let Some(values) = props.additional() {
        let mut inner = inner;
        if around.inside_meta {
            inner.no_defaults = Some("inside additionalProperties applying to object metadata");
        }
        keywords(values, &additional, inner, errors);
    }
    for (name, field) in &props.properties {
        let mut inner = inner;
        let reason = format!("in top-level {name}");
        if (around.root || props.embedded) && is_meta(name) {
            inner.inside_meta = true;
            if around.root {
                inner.no_defaults = Some(&reason);
            }
        }
        keywords(field, &path.child("properties").key(name), inner, errors);
    }
    if let Some(not) = &props.not {
        keywords(not, &path.child("not"), inner, errors);
    }
    for (name, branches) in [("allOf", &props.all_of), ("oneOf", &props.one_of), ("anyOf", &props.any_of)] {
        for (i, branch) in branches.iter().enumerate() {
            keywords(branch, &path.child(name).index(i), inner, errors);
        }
    }
    if let Some(items) = props.items() {
        keywords(items, &path.child("items"), inner, errors);
    }
    if props.preserve_unknown == Some(false) {
        errors.invalid(&path.child("x-kubernetes-preserve-unknown-fields"), false, "must be true or undefined");
    }
    map_type(props, path, errors);
    list_type(props, path, errors);
    list_map_keys(props, path, errors);
    rules(props, path, errors);
}

fn standard(props: &Props, path: &Path, around: Around, errors: &mut Errors) {
    if props.ty == Ty::Other {
        errors.not_supported(&path.child("type"), props.ty_name.as_str(), &TYPES);
    }
    if let Some(reason) = around.no_defaults.filter(|_| props.default.is_some()) {
        errors.forbidden(&path.child("default"), format!("must not be set {reason}"));
    }
    for keyword in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if props.unsupported.contains(&keyword) {
            errors.forbidden(&path.child(keyword), format!("{keyword} is not supported"));
        }
    }
    if props.ty_name == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.forbidden(&path.child("type"), detail);
    }
    if matches!(props.items, Items::Several) {
        errors.forbidden(&path.child("items"), "items must be a schema object and not an array");
    }
    if around.inside_meta && props.embedded {
        let at = path.child("x-kubernetes-embedded-resource");
        errors.forbidden(&at, "must not be used inside of resource meta");
    }
}

/// `type` must be `want` when the extension `keyword` is used.
fn requires_type(props: &Props, path: &Path, want: Ty, keyword: &str, errors: &mut Errors) -> bool {
    let detail = format!("must be {} if {keyword} is specified", want.name());
    if props.ty == want {
        return true;
    } else if props.ty_name.is_empty() {
        errors.required(&path.child("type"), detail);
    } else {
        errors.invalid(&path.child("type"), props.ty_name.as_str(), detail);
    }
    false
}

fn map_type(props: &Props, path: &Path, errors: &mut Errors) {
    let Some(map_type) = &props.map_type else { return };
    requires_type(props, path, Ty::Object, "x-kubernetes-map-type", errors);
    if !matches!(map_type.as_str(), "atomic" | "granular") {
        errors.not_supported(&path.child("x-kubernetes-map-type"), map_type.as_str(), &["atomic", "granular"]);
    }
}

fn list_type(props: &Props, path: &Path, errors: &mut Errors) {
    let Some(list_type) = &props.list_type else { return };
    let is_array = requires_type(props, path, Ty::Array, "x-kubernetes-list-type", errors);
    if let Some(items) = props.items().filter(|_| is_array && list_type == "set") {
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let shown = items.list_type.as_deref().map_or(Value::Null, Value::from);
        let at = path.child("items");
        match items.ty {
            Ty::Array if items.list_type.as_deref().is_some_and(|t| t != "atomic") => {
                errors.invalid(&at.child("x-kubernetes-list-type"), shown, detail);
            }
            Ty::Object if items.map_type.as_deref() != Some("atomic") => {
                errors.invalid(&at.child("x-kubernetes-map-type"), shown, detail);
            }
            _ => {}
        }
    }
    if !matches!(list_type.as_str(), "atomic" | "set" | "map") {
        let at = path.child("x-kubernetes-list-type");
        errors.not_supported(&at, list_type.as_str(), &["atomic", "set", "map"]);
    }
}

fn list_map_keys(props: &Props, path: &Path, errors: &mut Errors) {
    let keys_path = path.child("x-kubernetes-list-map-keys");
    if !props.map_keys.is_empty() {
        let (at, detail) =
            (path.child("x-kubernetes-list-type"), "must be map if x-kubernetes-list-map-keys is non-empty");
        match props.list_type.as_deref() {
            None => errors.required(&at, detail),
            Some("map") => {}
            Some(other) => errors.invalid(&at, other, detail),
        }
    }
    let at = path.child("items");
    if props.is_list_map() {
        if props.map_keys.is_empty() {
            errors.required(&keys_path, "must not be empty if x-kubernetes-list-type is map");
        }
        match &props.items {
            Items::Absent => errors.required(&at, "must have a schema if x-kubernetes-list-type is map"),
            Items::Several => {
                errors.invalid(&at, "", "must only have a single schema if x-kubernetes-list-type is map");
            }
            Items::Schema(items) if items.ty != Ty::Object => {
                let detail = "must be object if parent array's x-kubernetes-list-type is map";
                errors.invalid(&at.child("type"), items.ty_name.as_str(), detail);
            }
            Items::Schema(items) => key_fields(props, items, path, errors),
        }
    }
    if let Some(items) = props.items().filter(|_| matches!(props.list_type.as_deref(), Some("map" | "set"))) {
        let list_type = props.list_type.as_deref().unwrap_or_default();
        if items.nullable {
            let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
            errors.forbidden(&at.child("nullable"), detail);
        }
        if props.is_list_map() {
            keys_are_always_there(props, items, &at, errors);
        }
    }
}

fn key_fields(props: &Props, items: &Props, path: &Path, errors: &mut Errors) {
    let keys_path = path.child("x-kubernetes-list-map-keys");
    let shown = || Value::from(props.map_keys.clone());
    for (i, key) in props.map_keys.iter().enumerate() {
        match items.properties.get(key) {
            Some(field) if matches!(field.ty, Ty::Array | Ty::Object) => {
                let at = path.child("items").child("properties").key(key).child("type");
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.invalid(&at, items.ty_name.as_str(), detail);
            }
            Some(_) => {}
            None => errors.invalid(&keys_path, shown(), "entries must all be names of item properties"),
        }
        if props.map_keys[..i].contains(key) {
            errors.invalid(&keys_path, shown(), "must not contain duplicate entries");
        }
    }
}

fn keys_are_always_there(props: &Props, items: &Props, at: &Path, errors: &mut Errors) {
    for key in &props.map_keys {
        let Some(field) = items.properties.get(key) else { continue };
        let at = at.child("properties").key(key);
        if !items.required.contains(key) && field.default.is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                          property";
            errors.required(&at.child("default"), detail);
        }
        if field.nullable {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.forbidden(&at.child("nullable"), detail);
        }
    }
}

/// How rules are written; whether they compile is looked at once the whole schema is sound.
fn rules(props: &Props, path: &Path, errors: &mut Errors) {
    let newline = |s: &str| s.contains(['\n', '\r']);
    for (i, rule) in props.rules.iter().enumerate() {
        let at = path.child("x-kubernetes-validations").index(i);
        let (text, message) = (rule.rule.trim(), rule.message.trim());
        if text.is_empty() {
            errors.required(&at.child("rule"), "rule is not specified");
        } else if !rule.message.is_empty() && message.is_empty() {
            errors.invalid(&at.child("message"), rule.message.as_str(), "must be non-empty if specified");
        } else if newline(message) {
            errors.invalid(&at.child("message"), rule.message.as_str(), "must not contain line breaks");
        } else if newline(text) && message.is_empty() {
            errors.required(&at.child("message"), "message must be specified if rule contains line breaks");
        }
        if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.required(&at.child("messageExpression"), detail);
        }
        if let Some(reason) = rule.reason.as_deref().filter(|r| !REASONS.contains(r)) {
            errors.not_supported(&at.child("reason"), reason, &REASONS);
        }
        let field_path = rule.field_path.as_str();
        let at = at.child("fieldPath");
        if !field_path.is_empty() && field_path.trim().is_empty() {
            errors.invalid(&at, field_path, "must be non-empty if specified");
        }
        if newline(field_path) {
            errors.invalid(&at, field_path, "must not contain line breaks");
        }
        if !field_path.is_empty() && fieldpath::resolve(field_path, props, true).is_err() {
            errors.invalid(&at, field_path, "must be a valid path");
        }
    }
}
