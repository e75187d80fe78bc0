//! `patch`: JSON, merge, strategic merge and apply, each a way to make the new object from the stored one.

use serde_json::Value;
use usher_schema::codec::{self, Problem};
use usher_schema::field::{Errors, Path};
use usher_schema::{apply, managed, strategic};

use super::decode::{check_type_meta, json_type, parse_json, parse_yaml, yaml_errors};
use super::write::{Edited, Fields, kind_reset, part_name, with_managed_fields};
use super::{Answer, Target};
use crate::negotiate::{PatchForm, patch_form};
use crate::object::{self, Object};
use crate::registry::served::{Part, Served};
use crate::request::{FieldValidation, WriteOptions};
use crate::server::Server;
use crate::status::{ApiError, Result};

/// How often an apply starts over because the object came or went under it.
const MAX_APPLY_TURNS: usize = 100;
/// What `copy` operations of one JSON patch may add to an object, as upstream allows.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// What upstream allows in one JSON patch.
const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

impl Server {
    pub(super) async fn patch(&self, target: &Target<'_>, part: Part) -> Result<Answer> {
        let kind = target.kind.as_ref();
        let form = patch_form(target.ask.content_type(), !kind.is_custom())?;
        let accepted = target.ask.accepted()?;
        let options = WriteOptions::parse(&target.ask.query, "PatchOptions")?;
        check_options(form, &options)?;
        if form == PatchForm::ApplyYaml {
            return self.apply(target, part, &options).await;
        }
        let mut warnings = Vec::new();
        let mut problems = Vec::new();
        let patch = parse_json(&target.ask.body, &mut problems)
            .map_err(|e| ApiError::bad_request(format!("error decoding patch: {}", e.message)))?;
        let problems = told(form, &problems, &patch);
        let edit = Edit::new(form, patch)?;
        let manager = self.manager(target, &options.field_manager, part_name(part));
        let mut unknown: Vec<String> = Vec::new();
        let carried = self.carried(&manager, edit.mentions_managed_fields(), options.dry_run);
        let reset = kind_reset(target, part);
        let outcome = self
            .change_with(target, &target.ask.info.name, part, options.dry_run, carried, &mut warnings, |old, live| {
                unknown.clone_from(&problems);
                let mut new = edit.on(kind.schema(), old.clone())?;
                let invalid = |new: &Object, why: &str| match live {
                    Some(live) => patch_invalid(&with_managed_fields(new.clone(), live), why),
                    None => patch_invalid(new, why),
                };
                check_type_meta(kind, &new).map_err(|e| invalid(&new, bare(kind, &e.message)))?;
                let found = decode_changed(kind, &mut new, old).map_err(|e| invalid(&new, bare(kind, &e.message)))?;
                unknown.extend(found.iter().map(ToString::to_string));
                if !unknown.is_empty() && options.field_validation == FieldValidation::Strict {
                    let why = format!("strict decoding error: {}", unknown.join(", "));
                    let whole = live.map(|live| with_managed_fields(old.clone(), live));
                    return Err(invalid_because(edit.shown(kind.schema(), whole.as_ref().unwrap_or(old)), &why));
                }
                check_identity(target, &mut new)?;
                let mut new = kind.settle(part, new, old)?;
                let managed_fields = match live {
                    Some(_) => managed::update_text(kind.schema(), old, &new, live, &manager.borrow(), &reset),
                    None => {
                        managed::update(kind.schema(), old, &mut new, &manager.borrow(), &reset);
                        None
                    }
                };
                Ok(Edited { new, managed_fields })
            })
            .await?;
        if options.field_validation == FieldValidation::Warn {
            warnings.extend(unknown);
        }
        Ok(self.show_outcome(target, 200, outcome, accepted)?.warned(warnings))
    }

    async fn apply(&self, target: &Target<'_>, part: Part, options: &WriteOptions) -> Result<Answer> {
        let kind = target.kind.as_ref();
        let accepted = target.ask.accepted()?;
        let name = target.ask.info.name.clone();
        let mut warnings = Vec::new();
        let mut repeated = Vec::new();
        let mut config = parse_yaml(&target.ask.body, &mut repeated)
            .map_err(|e| ApiError::bad_request(format!("error decoding patch: {}", e.message)))?;
        match (repeated.first(), options.field_validation) {
            (Some(problem), FieldValidation::Strict) => {
                let why = yaml_errors(problem);
                return Err(ApiError::bad_request(format!(
                    "error strict decoding patch: error converting YAML to JSON: {why}"
                )));
            }
            (Some(problem), FieldValidation::Warn) => warnings.push(problem.to_string()),
            _ => {}
        }
        check_config(target, &config)?;
        object::set_meta_str(&mut config, "name", &name);
        let force = options.force.unwrap_or(false);
        let manager = self.manager(target, &options.field_manager, part_name(part));
        let reset = kind_reset(target, part);
        let exists = || self.store().get(&kind.collection(), &target.key(&name)).is_some();
        // Others may make or remove the object meanwhile: then what was an update is a creation, and the other way round.
        for _ in 0..MAX_APPLY_TURNS {
            if !exists() {
                if part != Part::Main {
                    return Err(target.not_found(&name));
                }
                let uid = object::uid(&config).to_owned();
                if !uid.is_empty() {
                    let why = format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                    );
                    return Err(ApiError::conflict(kind.resource(), &name, &why));
                }
                let empty = Value::Object(serde_json::Map::new());
                let mut made = apply::apply(kind.schema(), &empty, &config, &manager.borrow(), force, &reset)
                    .map_err(|e| apply_error(&e))?
                    .unwrap_or_else(|| config.clone());
                kind.decode(&mut made)?;
                match self.create_object(target, made, options, Fields::Kept, &mut warnings).await {
                    Ok(outcome) => {
                        return Ok(self.show_outcome(target, 201, outcome, accepted)?.warned(warnings));
                    }
                    Err(e) if e.reason == "AlreadyExists" => {}
                    Err(e) => return Err(e),
                }
            }
            let outcome = self
                .change(target, &name, part, options.dry_run, &mut warnings, |old| {
                    let wanted = object::meta_str(&config, "resourceVersion");
                    if !wanted.is_empty() && wanted != object::meta_str(old, "resourceVersion") {
                        return Err(ApiError::modified(kind.resource(), &name));
                    }
                    match apply::apply(kind.schema(), old, &config, &manager.borrow(), force, &reset) {
                        Ok(Some(mut new)) => {
                            kind.decode(&mut new)?;
                            check_identity(target, &mut new)?;
                            kind.default(new)
                        }
                        Ok(None) => Ok(old.clone()),
                        Err(error) => Err(apply_error(&error)),
                    }
                })
                .await;
            match outcome {
                Ok(outcome) => return Ok(self.show_outcome(target, 200, outcome, accepted)?.warned(warnings)),
                Err(e) if e.code == 404 && part == Part::Main && !exists() => {}
                Err(e) => return Err(e),
            }
        }
        Err(ApiError::modified(kind.resource(), &name))
    }
}

/// A non-apply patch, parsed.
enum Edit {
    Json(Vec<json_patch::PatchOperation>),
    Merge(Value),
    Strategic(Value),
}

impl Edit {
    fn new(form: PatchForm, patch: Value) -> Result<Edit> {
        match form {
            PatchForm::Json => {
                let Value::Array(operations) = patch else {
                    return Err(wrong_type(&patch, "[]handlers.jsonPatchOp"));
                };
                if operations.len() > MAX_JSON_PATCH_OPERATIONS {
                    return Err(ApiError::too_large(&format!(
                        "The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {}",
                        operations.len()
                    )));
                }
                let operations: Result<Vec<_>, _> = operations.into_iter().map(serde_json::from_value).collect();
                operations.map(Edit::Json).map_err(|_| unfit())
            }
            _ if !patch.is_object() => Err(wrong_type(&patch, "map[string]interface {}")),
            PatchForm::Merge => Ok(Edit::Merge(patch)),
            PatchForm::Strategic | PatchForm::ApplyYaml => Ok(Edit::Strategic(patch)),
        }
    }

    /// What a refusal of the patched object shows: the object as it would be, or the patch that upstream shows instead.
    fn shown(&self, schema: usher_schema::graph::At<'_>, old: &Object) -> String {
        match self {
            Edit::Strategic(patch) => go_value(patch),
            _ => self.on(schema, old.clone()).map(|new| new.to_string()).unwrap_or_default(),
        }
    }

    /// Whether the managed fields have to be there for this patch. An operation may be about them without a word.
    fn mentions_managed_fields(&self) -> bool {
        match self {
            Edit::Json(_) => true,
            Edit::Merge(patch) | Edit::Strategic(patch) => match patch.get("metadata") {
                Some(Value::Object(meta)) => meta.keys().any(|key| key.contains("managedFields")),
                other => other.is_some(),
            },
        }
    }

    fn on(&self, schema: usher_schema::graph::At<'_>, mut object: Object) -> Result<Object> {
        match self {
            Edit::Json(patch) => apply_operations(&mut object, patch)?,
            Edit::Merge(patch) => json_patch::merge(&mut object, patch),
            Edit::Strategic(patch) => {
                strategic::apply(schema, &mut object, patch.clone()).map_err(|e| match e.code() {
                    400 => ApiError::bad_request(e.to_string()),
                    code => ApiError::plain(code, &e.to_string()),
                })?;
            }
        }
        if codec::within_depth(&object, codec::MAX_DEPTH) {
            Ok(object)
        } else {
            Err(ApiError::bad_request(format!(
                "the patched object is nested more than {} levels deep",
                codec::MAX_DEPTH
            )))
        }
    }
}

/// What is odd about the patch itself.
fn told(form: PatchForm, problems: &[Problem], patch: &Value) -> Vec<String> {
    let PatchForm::Json = form else { return problems.iter().map(ToString::to_string).collect() };
    let mut told: Vec<String> = problems.iter().map(|problem| format!("json patch {problem}")).collect();
    for (i, operation) in patch.as_array().into_iter().flatten().enumerate() {
        let members = operation.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        for key in members.filter(|key| !matches!(*key, "op" | "path" | "from" | "value")) {
            told.push(format!("json patch {}", Problem::Unknown { path: format!("[{i}].{key}") }));
        }
    }
    told
}

/// JSON as Go's `%v` prints it.
fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let sorted: std::collections::BTreeMap<_, _> = map.iter().collect();
            let members = sorted.into_iter().map(|(key, value)| format!("{key}:{}", go_value(value)));
            format!("map[{}]", members.collect::<Vec<_>>().join(" "))
        }
        other => other.to_string(),
    }
}

/// Decodes what a patch has changed: the rest came out of the store and is decoded. Returns what was unknown in it.
fn decode_changed(kind: &dyn Served, new: &mut Object, old: &Object) -> Result<Vec<Problem>> {
    let mut kept = Vec::new();
    if let (Value::Object(new), Value::Object(old), false) = (&mut *new, old, kind.is_custom()) {
        for (key, value) in old.iter().filter(|(key, _)| matches!(key.as_str(), "spec" | "status")) {
            if new.get(key) == Some(value) {
                kept.extend(new.remove_entry(key));
            }
        }
    }
    let found = kind.decode(new);
    object::as_map(new).extend(kept);
    found
}

fn wrong_type(patch: &Value, wanted: &str) -> ApiError {
    let why = format!("json: cannot unmarshal {} into Go value of type {wanted}", json_type(patch));
    ApiError::bad_request(format!("error decoding patch: {why}"))
}

/// All that upstream says of a JSON patch that does not fit the object.
fn unfit() -> ApiError {
    ApiError::other(422, "Invalid", "the server rejected our request due to an error in our request")
}

/// One operation after the other, because `copy` can double an object each time: what is copied is counted, as upstream does.
fn apply_operations(object: &mut Object, operations: &[json_patch::PatchOperation]) -> Result<()> {
    use json_patch::{AddOperation, PatchOperation};
    let mut copied_bytes = 0;
    for operation in operations {
        let operation = match operation {
            PatchOperation::Copy(copy) => {
                let value = copy.from.resolve(object).map_err(|_| unfit())?;
                copied_bytes += if codec::within_depth(value, codec::MAX_DEPTH) {
                    value.to_string().len()
                } else {
                    MAX_COPIED_BYTES
                };
                if copied_bytes >= MAX_COPIED_BYTES {
                    return Err(unfit());
                }
                operation.clone()
            }
            // Upstream's library lets a replacement make the member it replaces.
            PatchOperation::Replace(replace) if replace.path.resolve(object).is_err() => {
                PatchOperation::Add(AddOperation { path: replace.path.clone(), value: replace.value.clone() })
            }
            other => other.clone(),
        };
        json_patch::patch_unsafe(object, std::slice::from_ref(&operation)).map_err(|_| unfit())?;
    }
    Ok(())
}

fn check_options(form: PatchForm, options: &WriteOptions) -> Result<()> {
    let mut errors = Errors::new();
    if form == PatchForm::ApplyYaml {
        if options.field_manager.is_empty() {
            errors.required(&Path::new("fieldManager"), "is required for apply patch");
        }
    } else if options.force.is_some() {
        errors.forbidden(&Path::new("force"), "may not be specified for non-apply patch");
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid_kind("meta.k8s.io", "PatchOptions", "", &errors)) }
}

/// A patched object must still be the one the URL names.
fn check_identity(target: &Target<'_>, new: &mut Object) -> Result<()> {
    let (wanted, found) = (&target.ask.info.name, object::name(new));
    if found != wanted {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({wanted})"
        )));
    }
    let namespace = object::namespace(new);
    if !namespace.is_empty() && target.kind.resource().namespaced && namespace != target.namespace() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object::set_meta_str(new, "namespace", target.namespace());
    Ok(())
}

fn check_config(target: &Target<'_>, config: &Object) -> Result<()> {
    if !config.is_object() {
        return Err(ApiError::bad_request("error decoding patch: an apply configuration must be an object"));
    }
    let said = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or("");
    let r = target.kind.resource();
    if said("kind") != r.kind || said("apiVersion") != r.api_version() {
        let version = said("apiVersion");
        let slash = if version.contains('/') { "" } else { "/" };
        let kind = said("kind");
        return Err(ApiError::bad_request(format!("invalid object type: {slash}{version}, Kind={kind}")));
    }
    check_type_meta(target.kind.as_ref(), config)?;
    let name = object::name(config);
    if !name.is_empty() && name != target.ask.info.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.ask.info.name
        )));
    }
    if config
        .get("metadata")
        .and_then(|m| m.get("managedFields"))
        .is_some_and(|m| m.as_array().is_none_or(|l| !l.is_empty()))
    {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

fn apply_error(error: &apply::ApplyError) -> ApiError {
    match error {
        apply::ApplyError::Conflicts(conflicts) => {
            let causes: Vec<_> = conflicts.iter().map(|c| (c.field(), c.message())).collect();
            ApiError::apply_conflict(apply::conflict_message(conflicts), &causes)
        }
        apply::ApplyError::ManagedFieldsInConfig => ApiError::bad_request(error.to_string()),
        apply::ApplyError::Invalid(why) => ApiError::plain(500, why),
    }
}

/// What is wrong with a body, without the sentence that names the body's kind: a patch has none.
fn bare<'a>(kind: &dyn Served, message: &'a str) -> &'a str {
    let opening = format!("cannot be handled as a {}: ", kind.resource().kind);
    message.split_once(&opening).map_or(message, |(_, rest)| rest)
}

fn patch_invalid(patched: &Object, why: &str) -> ApiError {
    invalid_because(patched.to_string(), why)
}

fn invalid_because(shown: String, why: &str) -> ApiError {
    let mut errors = Errors::new();
    errors.invalid(&Path::new("patch"), shown, why);
    ApiError::invalid_kind("", "", "", &errors)
}

/// A Scale after the patch in the request.
pub(super) fn patched_scale(target: &Target<'_>, scale: Object) -> Result<Object> {
    let form = patch_form(target.ask.content_type(), true)?;
    let patch = parse_json(&target.ask.body, &mut Vec::new())?;
    let schema = usher_schema::builtin::kind("autoscaling", "v1", "Scale").ok_or_else(ApiError::no_such_path)?;
    Edit::new(form, patch)?.on(schema, scale)
}
