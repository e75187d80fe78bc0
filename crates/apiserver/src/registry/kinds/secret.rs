//! Secrets and what each type of them must hold.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;
use usher_schema::field::{Errors, Path};

use super::at::At;
use super::common::{default_text, immutable, is_true, text};
use super::config_map::{FROZEN, MAX_BYTES, same_map, validate_binary};
use super::json_field::text_at;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::table;

const DATA: At = At::Root("data");
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const TLS: &str = "kubernetes.io/tls";

pub struct Secrets;

impl Kind for Secrets {
    type Object = Secret;

    fn resource(&self) -> Resource {
        Resource::namespaced("", "v1", "Secret", "secrets")
    }

    fn default(&self, secret: &mut Secret) {
        // stringData is only ever written: it becomes data.
        if let Some(plain) = secret.string_data.take().filter(|plain| !plain.is_empty()) {
            let data = secret.data.get_or_insert_with(BTreeMap::new);
            data.extend(plain.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))));
        }
        default_text(&mut secret.type_, "Opaque");
    }

    fn validate(&self, _cx: &Cx, secret: &Secret, errors: &mut Errors) {
        if validate_binary(secret.data.as_ref(), &DATA, errors) > MAX_BYTES {
            errors.too_long(&DATA.path(), MAX_BYTES);
        }
        validate_type(secret, errors);
    }

    fn validate_update(&self, cx: &Cx, new: &Secret, old: &Secret, errors: &mut Errors) {
        immutable(&new.type_, &old.type_, &At::Root("type"), errors);
        if is_true(old.immutable) {
            if !is_true(new.immutable) {
                errors.forbidden(&Path::new("immutable"), FROZEN);
            }
            if !same_map(&new.data, &old.data) {
                errors.forbidden(&DATA.path(), FROZEN);
            }
        }
        self.validate(cx, new, errors);
    }

    /// Only the absence of PEM is noticed; whether key and certificate belong together is not checked.
    fn warnings(&self, new: &Secret, _old: Option<&Secret>) -> Vec<String> {
        if text(&new.type_) != TLS {
            return Vec::new();
        }
        let has_pem = |key: &str| value(new, key).is_some_and(|bytes| has_pem_block(&bytes.0));
        match (has_pem("tls.crt"), has_pem("tls.key")) {
            (false, _) => vec!["tls: failed to find any PEM data in certificate input".to_owned()],
            (true, false) => vec!["tls: failed to find any PEM data in key input".to_owned()],
            (true, true) => Vec::new(),
        }
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Type", "string", 0, "What the secret is for."),
            Column::new("Data", "string", 0, "How many keys it holds."),
            table::age_column(),
        ]
    }

    fn cells(&self, secret: &Secret, meta: &Value, now: Timestamp) -> Vec<Value> {
        let keys = secret.data.as_ref().map_or(0, BTreeMap::len);
        vec![table::name_cell(meta), text(&secret.type_).into(), keys.into(), table::age_cell(meta, now)]
    }

    fn selectable(&self) -> &'static [&'static str] {
        &["type"]
    }

    fn select(&self, object: &Value, field: &str) -> String {
        if field == "type" { text_at(object, "/type") } else { String::new() }
    }
}

fn value<'s>(secret: &'s Secret, key: &str) -> Option<&'s ByteString> {
    secret.data.as_ref().and_then(|data| data.get(key))
}

fn validate_type(secret: &Secret, errors: &mut Errors) {
    let has = |key: &str| value(secret, key).is_some();
    let missing = |key: &str, errors: &mut Errors| errors.required(&DATA.key(key).path(), "");
    match text(&secret.type_) {
        "kubernetes.io/service-account-token" => {
            let name = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ACCOUNT_NAME));
            if name.is_none_or(String::is_empty) {
                errors.required(&Path::new("metadata").child("annotations").key(ACCOUNT_NAME), "");
            }
        }
        "kubernetes.io/dockercfg" => validate_docker(secret, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => validate_docker(secret, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            missing("username", errors);
            missing("password", errors);
        }
        "kubernetes.io/ssh-auth" if value(secret, "ssh-privatekey").is_none_or(|key| key.0.is_empty()) => {
            missing("ssh-privatekey", errors);
        }
        TLS => {
            for key in ["tls.crt", "tls.key"] {
                if !has(key) {
                    missing(key, errors);
                }
            }
        }
        _ => {}
    }
}

fn validate_docker(secret: &Secret, key: &str, errors: &mut Errors) {
    let at = DATA.key(key);
    match value(secret, key) {
        None => errors.required(&at.path(), ""),
        Some(bytes) => {
            if let Err(why) = json_object(&bytes.0) {
                errors.invalid(&at.path(), "<secret contents redacted>", why);
            }
        }
    }
}

/// Whether the bytes are a JSON object (or null), and if not, why, in the words of Go's decoder where it is known.
fn json_object(bytes: &[u8]) -> Result<(), String> {
    let mismatch =
        |what: &str| Err(format!("json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"));
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(_) | Value::Null) => Ok(()),
        Ok(Value::Array(_)) => mismatch("array"),
        Ok(Value::String(_)) => mismatch("string"),
        Ok(Value::Number(_)) => mismatch("number"),
        Ok(Value::Bool(_)) => mismatch("bool"),
        Err(error) if error.is_eof() => Err("unexpected end of JSON input".to_owned()),
        Err(error) => match bytes.iter().find(|c| !c.is_ascii_whitespace()) {
            Some(c) if c.is_ascii_graphic() && !b"{[\"-tfn0123456789".contains(c) => {
                Err(format!("invalid character '{}' looking for beginning of value", char::from(*c)))
            }
            _ => Err(error.to_string()),
        },
    }
}

fn has_pem_block(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.split_once("-----BEGIN ").is_some_and(|(_, rest)| rest.contains("-----END "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create, create_errors, merged, update_errors};
    use serde_json::json;

    fn secret(extra: Value) -> Value {
        merged(json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}}), extra)
    }

    #[test]
    fn plain_text_becomes_data_and_the_type_defaults() {
        let (stored, errors) =
            create(&Secrets, secret(json!({"data": {"k": "b2xk", "other": ""}, "stringData": {"k": "new"}})));
        assert!(errors.is_empty());
        assert_eq!(stored["data"], json!({"k": "bmV3", "other": ""}));
        assert_eq!(stored["stringData"], Value::Null);
        assert_eq!(stored["type"], "Opaque");
    }

    #[test]
    fn each_type_has_its_keys() {
        let of = |kind: &str, data: Value| create_errors(&Secrets, secret(json!({"type": kind, "stringData": data})));
        assert_eq!(
            of("kubernetes.io/tls", json!({})),
            ["data[tls.crt]: Required value", "data[tls.key]: Required value"]
        );
        assert_eq!(
            of("kubernetes.io/basic-auth", json!({})),
            ["data[username]: Required value", "data[password]: Required value"]
        );
        assert!(of("kubernetes.io/basic-auth", json!({"password": ""})).is_empty());
        assert_eq!(
            of("kubernetes.io/ssh-auth", json!({"ssh-privatekey": ""})),
            ["data[ssh-privatekey]: Required value"]
        );
        assert_eq!(
            of("kubernetes.io/service-account-token", json!({})),
            ["metadata.annotations[kubernetes.io/service-account.name]: Required value"]
        );
        assert_eq!(of("kubernetes.io/dockerconfigjson", json!({})), ["data[.dockerconfigjson]: Required value"]);
        let redacted = "Invalid value: \"<secret contents redacted>\"";
        for (content, why) in [
            ("", "unexpected end of JSON input"),
            ("hello", "invalid character 'h' looking for beginning of value"),
            ("[]", "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ] {
            assert_eq!(
                of("kubernetes.io/dockercfg", json!({".dockercfg": content})),
                [format!("data[.dockercfg]: {redacted}: {why}")]
            );
        }
        assert!(of("example.com/mine", json!({})).is_empty());
    }

    #[test]
    fn the_type_never_changes_and_immutable_data_stays() {
        let old = secret(json!({"immutable": true, "data": {"k": "AA=="}}));
        let update = |extra| update_errors(&Secrets, &Gates::default(), secret(extra), old.clone());
        assert_eq!(
            update(json!({"type": "x/y", "immutable": true, "data": {"k": "AA=="}})),
            ["type: Invalid value: \"x/y\": field is immutable"]
        );
        assert_eq!(
            update(json!({"data": {"k": "AAA="}})),
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set"
            ]
        );
    }

    #[test]
    fn too_much_data_is_refused() {
        let errors = create_errors(&Secrets, secret(json!({"stringData": {"k": "x".repeat(MAX_BYTES + 1)}})));
        assert_eq!(errors, ["data: Too long: may not be more than 1048576 bytes"]);
    }

    #[test]
    fn a_certificate_that_is_none_is_warned_of() {
        let tls: Secret =
            serde_json::from_value(json!({"metadata": {}, "type": TLS, "data": {"tls.crt": ""}})).unwrap();
        assert_eq!(Secrets.warnings(&tls, None), ["tls: failed to find any PEM data in certificate input"]);
    }

    #[test]
    fn columns_and_selector() {
        let value = secret(json!({"data": {"k": ""}}));
        assert_eq!(Value::Array(cells(&Secrets, value)), json!(["a", "Opaque", 1, "60m"]));
        assert_eq!(Secrets.select(&json!({"type": "Opaque"}), "type"), "Opaque");
    }
}
