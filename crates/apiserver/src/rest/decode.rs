//! From a request's bytes to an object of the kind that the URL names.

use serde_json::Value;
use usher_schema::codec::{self, Problem};
use usher_schema::field::{Errors, Path};
use usher_schema::protobuf;

use super::{Ask, Target};
use crate::negotiate::{self, BodyForm};
use crate::object::{self, Object};
use crate::registry::served::Served;
use crate::request::FieldValidation;
use crate::status::{ApiError, Result};

/// Reads a body of any form into JSON. `None` for an empty body. `schema` is where protobuf bodies are decoded.
pub fn decode_body(
    ask: &Ask,
    schema: Option<usher_schema::graph::At<'_>>,
    problems: &mut Vec<Problem>,
) -> Result<Option<Value>> {
    if ask.body.is_empty() {
        return Ok(None);
    }
    match negotiate::body_form(ask.content_type())? {
        BodyForm::Json => parse_json(&ask.body, problems).map(Some),
        BodyForm::Yaml => parse_yaml(&ask.body, problems).map(Some),
        BodyForm::Protobuf => {
            let Some(schema) = schema else {
                return Err(ApiError::unsupported_media_type(
                    "the body of the request was in an unknown format - accepted media types include: \
                     application/json, application/yaml",
                ));
            };
            let bad = |e: protobuf::ProtoError| ApiError::bad_request(e.to_string());
            let (meta, raw) = protobuf::decode_unknown(&ask.body).map_err(bad)?;
            let mut value = protobuf::to_json(schema, raw).map_err(bad)?;
            let root = object::as_map(&mut value);
            for (key, text) in [("apiVersion", meta.api_version), ("kind", meta.kind)] {
                if !text.is_empty() {
                    root.insert(key.to_owned(), text.into());
                }
            }
            Ok(Some(value))
        }
    }
}

pub fn parse_json(bytes: &[u8], problems: &mut Vec<Problem>) -> Result<Value> {
    let (value, found) = codec::parse(bytes).map_err(|e| ApiError::bad_request(e.to_string()))?;
    problems.extend(found);
    Ok(value)
}

/// The last of several equal keys counts, as upstream's reader has it; the first that is repeated is a problem.
pub fn parse_yaml(bytes: &[u8], problems: &mut Vec<Problem>) -> Result<Value> {
    let bad = |why: &str| ApiError::bad_request(format!("error converting YAML to JSON: yaml: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|_| bad("invalid UTF-8"))?;
    let parsed = match serde_saphyr::from_str::<Value>(text) {
        Err(error) => match repeated_key(&error) {
            None => Err(error),
            Some(problem) => {
                problems.push(problem);
                let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
                serde_saphyr::from_str_with_options::<Value>(text, options)
            }
        },
        parsed => parsed,
    };
    let value = parsed.map_err(|e| bad(first_line(&e.to_string())))?;
    if codec::within_depth(&value, codec::MAX_DEPTH) { Ok(value) } else { Err(bad("exceeded max depth")) }
}

fn repeated_key(error: &serde_saphyr::Error) -> Option<Problem> {
    let serde_saphyr::Error::DuplicateMappingKey { key, location } = error.without_snippet() else { return None };
    Some(Problem::Repeated { line: location.line(), key: key.clone().unwrap_or_default() })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

/// The object in the body of a create or update, checked against the URL, in the kind's own shape.
pub fn object_of(target: &Target<'_>, validation: FieldValidation, warnings: &mut Vec<String>) -> Result<Object> {
    let kind = target.kind.as_ref();
    let mut problems = Vec::new();
    let unrecognized = |why: &str| unrecognized(kind, &target.ask.body, why);
    let is_json = negotiate::body_form(target.ask.content_type())? == BodyForm::Json;
    let decoded = decode_body(target.ask, Some(kind.schema()), &mut problems);
    let decoded = decoded.map_err(|e| if is_json && e.code == 400 { unrecognized(&e.message) } else { e })?;
    let Some(mut body) = decoded else { return Err(unrecognized("unexpected end of JSON input")) };
    if !body.is_object() {
        let fields =
            r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
        let why = format!("json: cannot unmarshal {} into Go value of type {fields}", json_type(&body));
        return Err(unrecognized(&why));
    }
    if kind.is_custom() && body.get("kind").and_then(Value::as_str).unwrap_or("").is_empty() {
        let raw = String::from_utf8_lossy(&target.ask.body);
        return Err(unrecognized_because(kind, &target.ask.body, &format!("Object 'Kind' is missing in '{raw}'")));
    }
    check_type_meta(kind, &body)?;
    problems.extend(kind.decode(&mut body)?);
    settle_problems(kind, &problems, validation, warnings)?;
    Ok(body)
}

/// A body of which not even version and kind can be read.
fn unrecognized(kind: &dyn Served, body: &[u8], why: &str) -> ApiError {
    unrecognized_because(kind, body, &format!("couldn't get version/kind; json parse error: {why}"))
}

fn unrecognized_because(kind: &dyn Served, body: &[u8], why: &str) -> ApiError {
    const SHOWN_BYTES: usize = 30;
    let cut = &body[..body.len().min(SHOWN_BYTES)];
    let more = if body.len() > SHOWN_BYTES { " ..." } else { "" };
    let shown = match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(cut)),
        // Whatever it is, it is not JSON: shown by its bytes.
        Some(_) => format!("{}{more}", cut.iter().map(|b| format!("{b:02x}")).collect::<String>()),
    };
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why} ({shown})",
        kind.resource().kind
    ))
}

/// What Go calls a JSON value.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// An object that says what it is must be what the URL says. One that says nothing is taken at the URL's word.
pub fn check_type_meta(kind: &dyn Served, body: &Object) -> Result<()> {
    let resource = kind.resource();
    let said = |key: &str| body.get(key).and_then(Value::as_str).unwrap_or("");
    let (api_version, said_kind) = (said("apiVersion"), said("kind"));
    if !said_kind.is_empty() && said_kind != resource.kind && kind.is_custom() && api_version == resource.api_version()
    {
        let mut errors = Errors::new();
        errors.invalid(&Path::new("kind"), said_kind, format!("must be {}", resource.kind));
        return Err(ApiError::invalid_kind(&resource.group, said_kind, object::name(body), &errors));
    }
    if !said_kind.is_empty() && said_kind != resource.kind {
        let version = api_version.rsplit('/').next().unwrap_or("");
        let group = resource.group.split('.').next().filter(|g| !g.is_empty()).unwrap_or("core");
        return Err(ApiError::bad_request(format!(
            "{said_kind} in version {version:?} cannot be handled as a {kind}: converting ({version}.{said_kind}) to \
             ({group}.{kind}): unknown conversion",
            kind = resource.kind
        )));
    }
    if !api_version.is_empty() && api_version != resource.api_version() {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            resource.api_version()
        )));
    }
    if kind.is_custom() && said_kind.is_empty() {
        let shown = body.to_string();
        return Err(ApiError::bad_request(format!("Object 'Kind' is missing in '{shown}'")));
    }
    Ok(())
}

/// Unknown and repeated fields: dropped silently, with warnings, or refused.
pub fn settle_problems(
    kind: &dyn Served,
    problems: &[Problem],
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    match validation {
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            warnings.extend(problems.iter().map(ToString::to_string));
            Ok(())
        }
        FieldValidation::Strict => {
            let r = kind.resource();
            Err(ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {}",
                r.kind,
                r.version,
                r.kind,
                strict_error(problems)
            )))
        }
    }
}

pub fn strict_error(problems: &[Problem]) -> String {
    let list: Vec<String> = problems
        .iter()
        .map(|problem| match problem {
            Problem::Repeated { .. } => yaml_errors(problem),
            _ => problem.to_string(),
        })
        .collect();
    format!("strict decoding error: {}", list.join(", "))
}

/// A problem with YAML in the words of upstream's reader.
pub fn yaml_errors(problem: &Problem) -> String {
    format!("yaml: unmarshal errors:\n  {problem}")
}

/// The body as an object of a kind that is not the URL's resource: reviews, bindings, scales.
pub fn body_of_kind(ask: &Ask, group: &str, version: &str, kind: &str) -> Result<Object> {
    let schema = usher_schema::builtin::kind(group, version, kind);
    let mut problems: Vec<Problem> = Vec::new();
    let mut body = decode_body(ask, schema, &mut problems)?.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    if let Some(schema) = schema {
        codec::decode(schema, &mut body, &mut problems).map_err(|e| {
            ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {e}"))
        })?;
    }
    Ok(body)
}

pub fn question_body(ask: &Ask, resource: &crate::registry::kind::Resource) -> Result<Object> {
    body_of_kind(ask, &resource.group, &resource.version, &resource.kind)
}
