//! A CustomResourceDefinition as an object: its defaults, what the server fills in, and what it refuses.
//!
//! Upstream keeps definitions in an internal form in which whatever all versions share stands at the top; its messages
//! show those paths (`spec.validation.openAPIV3Schema`), so [`Shared`] finds out which parts those are.

use serde_json::{Value, json};
use usher_api::names::{dns1035_label, dns1123_subdomain};
use usher_schema::field::{Errors, Path};
use usher_schema::structural::{self, Structural};

use super::status;

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MAX_SELECTABLE_FIELDS: usize = 8;
const APPROVED: &str = "api-approved.kubernetes.io";

/// Fills in names and the conversion strategy, and notes the version that is stored.
pub fn default(crd: &mut Value) {
    let Some(Value::Object(spec)) = crd.get_mut("spec") else { return };
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let missing = |v: Option<&Value>| v.and_then(Value::as_str).is_none_or(str::is_empty);
        if missing(names.get("singular")) {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if missing(names.get("listKind")) && !kind.is_empty() {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec.insert("conversion".to_owned(), json!({"strategy": "None"}));
    }
}

/// A new definition starts with an empty status that knows only the version to be stored.
pub fn prepare_create(crd: &mut Value) {
    crd["status"] = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null});
    remember_stored(crd);
}

/// An update keeps the status, to which a new storage version is added.
pub fn prepare_update(crd: &mut Value, old: &Value) {
    crd["status"] = old.get("status").cloned().unwrap_or_else(|| json!({}));
    remember_stored(crd);
}

fn remember_stored(crd: &mut Value) {
    let storage =
        versions(crd).iter().find(|v| v["storage"] == true).and_then(|v| v["name"].as_str()).map(str::to_owned);
    let Some(storage) = storage else { return };
    let stored = &mut crd["status"]["storedVersions"];
    match stored {
        Value::Array(list) if list.iter().any(|v| *v == storage) => {}
        Value::Array(list) => list.push(storage.into()),
        other => *other = json!([storage]),
    }
}

pub(super) fn versions(crd: &Value) -> &[Value] {
    crd.pointer("/spec/versions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn strings(value: &Value, pointer: &str) -> Vec<String> {
    let list = value.pointer(pointer).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// What is wrong with a new definition. Its metadata, but for the name, is checked elsewhere.
pub fn validate(crd: &Value, errors: &mut Errors) {
    let name = text(crd, "/metadata/name");
    let wanted = format!("{}.{}", text(crd, "/spec/names/plural"), text(crd, "/spec/group"));
    if name != wanted {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.invalid(&Path::new("metadata").child("name"), name, detail);
    }
    spec(crd, None, errors);
    stored_versions(crd, errors);
    approval(crd, None, errors);
    preserve_unknown(crd, None, errors);
}

/// What is wrong with an update.
pub fn validate_update(crd: &Value, old: &Value, errors: &mut Errors) {
    spec(crd, Some(old), errors);
    let at = Path::new("spec");
    let mut immutable = |pointer: &str, path: Path| {
        let (new, old) = (text(crd, pointer), text(old, pointer));
        if new != old {
            errors.immutable(&path, new);
        }
    };
    if status::is_true(old, "Established") {
        immutable("/spec/scope", at.child("scope"));
        immutable("/spec/names/kind", at.child("names").child("kind"));
    }
    immutable("/spec/group", at.child("group"));
    immutable("/spec/names/plural", at.child("names").child("plural"));
    stored_versions(crd, errors);
    approval(crd, Some(old), errors);
    preserve_unknown(crd, Some(old), errors);
}

/// What clients are warned of: on an update, only what it introduces.
pub fn warnings(crd: &Value, old: Option<&Value>) -> Vec<String> {
    let of = |crd: &Value| -> Vec<String> {
        let schemas = versions(crd).iter().filter_map(|v| v.pointer("/schema/openAPIV3Schema"));
        schemas.flat_map(Structural::warnings).collect()
    };
    let known = old.map(of).unwrap_or_default();
    let mut out: Vec<String> = Vec::new();
    for warning in of(crd) {
        if !known.contains(&warning) && !out.contains(&warning) {
            out.push(warning);
        }
    }
    out
}

/// Which parts all versions have in common.
struct Shared {
    /// Schemas from before an update: what was accepted once stays so, whatever its rules cost.
    accepted: Vec<Value>,
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl Shared {
    fn of(versions: &[Value], old: Option<&Value>) -> Shared {
        let same = |name: &str| {
            let part = |v: &Value| v.get(name).filter(|p| !p.is_null()).cloned();
            versions.windows(2).all(|w| part(&w[0]) == part(&w[1]))
        };
        let accepted = old.map(self::versions).unwrap_or_default().iter();
        Shared {
            accepted: accepted.filter_map(|v| v.pointer("/schema/openAPIV3Schema")).cloned().collect(),
            schema: same("schema"),
            subresources: same("subresources"),
            columns: same("additionalPrinterColumns"),
            selectable: same("selectableFields"),
        }
    }
}

fn spec(crd: &Value, old: Option<&Value>, errors: &mut Errors) {
    let at = Path::new("spec");
    group(text(crd, "/spec/group"), &at.child("group"), errors);
    choice(text(crd, "/spec/scope"), &["Cluster", "Namespaced"], &at.child("scope"), errors);
    let versions = versions(crd);
    let shared = Shared::of(versions, old);
    let list = at.child("versions");
    for (i, version) in versions.iter().enumerate() {
        if version.pointer("/schema/openAPIV3Schema").is_none_or(Value::is_null) {
            errors.required(&list.index(i).child("schema").child("openAPIV3Schema"), "");
        }
    }
    for (i, version) in versions.iter().enumerate() {
        each_version(version, &list.index(i), &shared, errors);
    }
    version_list(versions, &list, &shared, errors);
    let first = versions.first().map_or("", |v| text(v, "/name"));
    let problems = dns1035_label(first, false);
    if !first.is_empty() && !problems.is_empty() {
        errors.invalid(&at.child("version"), first, problems.join(","));
    }
    for name in ["plural", "singular", "kind", "listKind"] {
        if text(crd, &format!("/spec/names/{name}")).is_empty() {
            errors.required(&at.child("names").child(name), "");
        }
    }
    names(crd, &at.child("names"), errors);
    if let Some(first) = versions.first() {
        let any_status = versions.iter().any(has_status);
        if shared.schema {
            schema(first, &at.child("validation").child("openAPIV3Schema"), any_status, &shared, errors);
        }
        if shared.subresources {
            subresources(first, &at.child("subresources"), errors);
        }
        if shared.columns {
            columns(first, &at.child("additionalPrinterColumns"), errors);
        }
        if shared.selectable {
            selectable_fields(first, &at.child("selectableFields"), errors);
        }
    }
    conversion(crd, &at.child("conversion"), errors);
}

fn group(group: &str, at: &Path, errors: &mut Errors) {
    let problems = dns1123_subdomain(group, false);
    if group.is_empty() {
        errors.required(at, "");
    } else if !problems.is_empty() {
        errors.invalid(at, group, problems.join(","));
    } else if !group.contains('.') {
        errors.invalid(at, group, "should be a domain with at least one dot");
    }
}

fn choice(value: &str, accepted: &[&str], at: &Path, errors: &mut Errors) {
    if value.is_empty() {
        errors.required(at, "");
    } else if !accepted.contains(&value) {
        errors.not_supported(at, value, accepted);
    }
}

fn each_version(version: &Value, at: &Path, shared: &Shared, errors: &mut Errors) {
    let name = text(version, "/name");
    let problems = dns1035_label(name, false);
    if !problems.is_empty() {
        errors.invalid(&at.child("name"), name, problems.join(","));
    }
    deprecation(version, &at.child("deprecationWarning"), errors);
    if !shared.schema {
        schema(version, &at.child("schema").child("openAPIV3Schema"), has_status(version), shared, errors);
    }
    if !shared.subresources {
        subresources(version, &at.child("subresources"), errors);
    }
    if !shared.columns {
        columns(version, &at.child("additionalPrinterColumns"), errors);
    }
    if !shared.selectable {
        selectable_fields(version, &at.child("selectableFields"), errors);
    }
}

fn has_status(version: &Value) -> bool {
    version.pointer("/subresources/status").is_some_and(|s| !s.is_null())
}

fn deprecation(version: &Value, at: &Path, errors: &mut Errors) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    if version["deprecated"] != true {
        errors.invalid(at, warning, "can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        errors.invalid(at, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid(at, warning, "must not be an empty string");
    }
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        let detail =
            format!("must only contain printable UTF-8 characters; non-printable character found at index {i}");
        errors.invalid(at, warning, detail);
    }
}

fn version_list(versions: &[Value], at: &Path, shared: &Shared, errors: &mut Errors) {
    let mut names: Vec<&str> = versions.iter().map(|v| text(v, "/name")).collect();
    names.sort_unstable();
    let unique = names.windows(2).all(|w| w[0] != w[1]);
    let storage = versions.iter().filter(|v| v["storage"] == true).count();
    if !unique {
        refuse_versions(versions, at, shared, "must contain unique version names", errors);
    }
    if storage != 1 {
        refuse_versions(versions, at, shared, "must have exactly one version marked as storage version", errors);
    }
}

/// Shows the versions as upstream's internal type prints, without what they share.
fn refuse_versions(versions: &[Value], at: &Path, shared: &Shared, why: &str, errors: &mut Errors) {
    let own = |version: &Value, name: &str, shared: bool| match version.get(name) {
        Some(part) if !shared => part.to_string(),
        _ => "null".to_owned(),
    };
    let shown: Vec<String> = versions
        .iter()
        .map(|v| {
            format!(
                "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{},\
                 \"Subresources\":{},\"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
                Value::from(text(v, "/name")),
                v["served"] == true,
                v["storage"] == true,
                v["deprecated"] == true,
                v["deprecationWarning"],
                own(v, "schema", shared.schema),
                own(v, "subresources", shared.subresources),
                own(v, "additionalPrinterColumns", shared.columns),
                own(v, "selectableFields", shared.selectable),
            )
        })
        .collect();
    let shown = format!("[{}]", shown.join(","));
    errors.0.push(usher_schema::field::Error {
        kind: usher_schema::field::Kind::Invalid,
        path: at.clone(),
        value: None,
        detail: format!("{shown}: {why}"),
    });
}

fn names(crd: &Value, at: &Path, errors: &mut Errors) {
    let name = |name: &str| text(crd, &format!("/spec/names/{name}"));
    for field in ["plural", "singular"] {
        label(name(field), &at.child(field), errors);
    }
    for field in ["kind", "listKind"] {
        let problems = dns1035_label(&name(field).to_lowercase(), false);
        if !name(field).is_empty() && !problems.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
            errors.invalid(&at.child(field), name(field), detail);
        }
    }
    for (i, short) in strings(crd, "/spec/names/shortNames").iter().enumerate() {
        label(short, &at.child("shortNames").index(i), errors);
    }
    if !name("kind").is_empty() && name("kind") == name("listKind") {
        errors.invalid(&at.child("listKind"), name("listKind"), "kind and listKind may not be the same");
    }
    for (i, category) in strings(crd, "/spec/names/categories").iter().enumerate() {
        label(category, &at.child("categories").index(i), errors);
    }
}

fn label(value: &str, at: &Path, errors: &mut Errors) {
    let problems = dns1035_label(value, false);
    if !value.is_empty() && !problems.is_empty() {
        errors.invalid(at, value, problems.join(","));
    }
}

fn schema(version: &Value, at: &Path, status: bool, shared: &Shared, errors: &mut Errors) {
    if let Some(schema) = version.pointer("/schema/openAPIV3Schema").filter(|s| !s.is_null()) {
        let options = structural::Options {
            path: at.clone(),
            status_subresource: status,
            require_pruned_defaults: true,
            limit_costs: !shared.accepted.contains(schema),
        };
        if let Err(found) = Structural::compile_with(schema, &options) {
            errors.extend(found);
        }
    }
}

fn subresources(version: &Value, at: &Path, errors: &mut Errors) {
    let Some(scale) = version.pointer("/subresources/scale").filter(|s| !s.is_null()) else { return };
    for (name, under, whose) in [("specReplicasPath", ".spec.", ".spec"), ("statusReplicasPath", ".status.", ".status")]
    {
        let at = at.child("scale").child(name);
        let path = text(scale, &format!("/{name}"));
        if path.is_empty() {
            errors.required(&at, "");
        } else if simple_path(path, &at, errors) && !path.starts_with(under) {
            errors.invalid(&at, path, format!("should be a json path under {whose}"));
        }
    }
    let path = text(scale, "/labelSelectorPath");
    let at = at.child("scale").child("labelSelectorPath");
    if !path.is_empty()
        && simple_path(path, &at, errors)
        && !path.starts_with(".spec.")
        && !path.starts_with(".status.")
    {
        errors.invalid(&at, path, "should be a json path under either .spec or .status");
    }
}

fn simple_path(path: &str, at: &Path, errors: &mut Errors) -> bool {
    let simple = path.starts_with('.');
    if !simple {
        errors.invalid(at, path, "must be a simple json path starting with .");
    }
    simple
}

fn columns(version: &Value, at: &Path, errors: &mut Errors) {
    let list = version.get("additionalPrinterColumns").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (i, column) in list.iter().enumerate() {
        let at = at.index(i);
        if text(column, "/name").is_empty() {
            errors.required(&at.child("name"), "");
        }
        let kind = text(column, "/type");
        let one_of = format!("must be one of {}", COLUMN_TYPES.join(","));
        if kind.is_empty() {
            errors.required(&at.child("type"), one_of);
        } else if !COLUMN_TYPES.contains(&kind) {
            errors.invalid(&at.child("type"), kind, one_of);
        }
        let format = text(column, "/format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            errors.invalid(&at.child("format"), format, format!("must be one of {}", COLUMN_FORMATS.join(",")));
        }
        let path = text(column, "/jsonPath");
        if path.is_empty() {
            errors.required(&at.child("JSONPath"), "");
        } else {
            simple_path(path, &at.child("JSONPath"), errors);
        }
    }
}

fn selectable_fields(version: &Value, at: &Path, errors: &mut Errors) {
    let list = version.get("selectableFields").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let schema = version.pointer("/schema/openAPIV3Schema").filter(|_| !list.is_empty());
    // A schema that does not compile has been refused already.
    let Some(structural) = schema.and_then(|s| Structural::compile(s).ok()) else { return };
    let mut seen: Vec<Path> = Vec::new();
    for (i, field) in list.iter().enumerate() {
        let at = at.index(i).child("jsonPath");
        let json_path = text(field, "/jsonPath");
        if json_path.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let found = match structural.selectable(json_path) {
            Ok(found) => found,
            Err(why) => {
                errors.invalid(&at, json_path, format!("is an invalid path: {why}"));
                continue;
            }
        };
        if found.root == "metadata" {
            errors.invalid(&at, json_path, "must not point to fields in metadata");
        }
        if !matches!(found.ty, "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                          formats are allowed.";
            errors.invalid(&at, json_path, detail);
        }
        if seen.contains(&found.path) {
            errors.duplicate(&at, json_path);
        } else {
            seen.push(found.path);
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS {
        errors.too_many(at, seen.len(), MAX_SELECTABLE_FIELDS);
    }
}

fn conversion(crd: &Value, at: &Path, errors: &mut Errors) {
    let Some(conversion) = crd.pointer("/spec/conversion").filter(|c| !c.is_null()) else { return };
    let strategy = text(conversion, "/strategy");
    if strategy == "Webhook" {
        let detail = "conversion by webhook is not supported by this server; serve versions that differ only in name, with \
                      strategy None";
        errors.forbidden(&at.child("strategy"), detail);
        return;
    }
    choice(strategy, &["None", "Webhook"], &at.child("strategy"), errors);
    let said = |pointer: &str| conversion.pointer(pointer).is_some_and(|v| !v.is_null());
    let detail = "should not be set when strategy is not set to Webhook";
    if said("/webhook/clientConfig") {
        errors.forbidden(&at.child("webhookClientConfig"), detail);
    }
    if said("/webhook/conversionReviewVersions") && conversion["webhook"]["conversionReviewVersions"] != json!([]) {
        errors.forbidden(&at.child("conversionReviewVersions"), detail);
    }
}

fn stored_versions(crd: &Value, errors: &mut Errors) {
    let at = Path::new("status").child("storedVersions");
    let stored = strings(crd, "/status/storedVersions");
    let shown = || Value::from(stored.clone());
    if stored.is_empty() {
        let none = crd.pointer("/status/storedVersions").cloned().unwrap_or(Value::Null);
        errors.invalid(&at, none, "must have at least one stored version");
        return;
    }
    // Each stored version answers for one version only, as in upstream, where duplicates show for that.
    let mut answers = stored.clone();
    for version in versions(crd) {
        let name = text(version, "/name");
        match answers.iter().position(|s| s == name) {
            Some(i) => {
                answers.remove(i);
            }
            None if version["storage"] == true => {
                errors.invalid(&at, shown(), format!("must have the storage version {name}"));
            }
            None => {}
        }
    }
    for (i, name) in stored.iter().enumerate() {
        if !versions(crd).iter().any(|v| text(v, "/name") == name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from \
                 status.storedVersions"
            );
            errors.invalid(&at.index(i), name.as_str(), detail);
        }
    }
}

/// Groups of the Kubernetes project need its approval, or must say that they have none.
fn approval(crd: &Value, old: Option<&Value>, errors: &mut Errors) {
    let group = text(crd, "/spec/group");
    let protected = |domain: &str| group == domain || group.strip_suffix(domain).is_some_and(|g| g.ends_with('.'));
    if !protected("k8s.io") && !protected("kubernetes.io") {
        return;
    }
    let annotation = |crd: &Value| {
        crd.pointer("/metadata/annotations")
            .and_then(|a| a.get(APPROVED))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    #[derive(PartialEq)]
    enum State {
        Fine(bool),
        Missing,
        Invalid,
    }
    let state = |text: &str| match text {
        "" => State::Missing,
        text if text.starts_with("unapproved") => State::Fine(false),
        text => match text.split_once("://") {
            Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/') => {
                State::Fine(true)
            }
            _ => State::Invalid,
        },
    };
    let now = annotation(crd);
    if old.is_some_and(|old| state(&annotation(old)) == state(&now)) {
        return;
    }
    let at = Path::new("metadata").child("annotations").key(APPROVED);
    let more = "see https://github.com/kubernetes/enhancements/pull/1111";
    match state(&now) {
        State::Fine(_) => {}
        State::Missing => {
            errors.required(&at, format!("protected groups must have approval annotation \"{APPROVED}\", {more}"));
        }
        State::Invalid => {
            let detail = format!(
                "protected groups must have approval annotation \"{APPROVED}\" with either a URL or a reason starting with \
                 \"unapproved\", {more}"
            );
            errors.invalid(&at, now.as_str(), detail);
        }
    }
}

fn preserve_unknown(crd: &Value, old: Option<&Value>, errors: &mut Errors) {
    let preserves = |crd: &Value| crd.pointer("/spec/preserveUnknownFields") == Some(&Value::Bool(true));
    if preserves(crd) && !old.is_some_and(preserves) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema \
                      instead";
        errors.invalid(&Path::new("spec").child("preserveUnknownFields"), true, detail);
    }
}
