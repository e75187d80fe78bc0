//! The scale subresource of a custom resource: an `autoscaling/v1` Scale read from, and written to, paths of the object.

use serde_json::{Map, Value, json};
use usher_schema::field::{Errors, Path};

/// Where a version keeps its numbers, as `subresources.scale` says.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

/// Why there is no Scale, or why it cannot be written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// 500: the object has no replicas to show.
    #[error("the spec replicas field {0:?} does not exist")]
    NoReplicas(String),
    /// 400: the Scale that was sent has none.
    #[error("the spec replicas field {0:?} cannot be empty")]
    EmptyReplicas(String),
    /// 500 on a read, 400 on a write: something else is where a number should be.
    #[error("{0}")]
    Malformed(String),
}

impl ScalePaths {
    pub fn declared(scale: &Value) -> Option<ScalePaths> {
        let text = |name: &str| scale.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(ScalePaths {
            spec_replicas: text("specReplicasPath")?,
            status_replicas: text("statusReplicasPath")?,
            label_selector: text("labelSelectorPath").filter(|p| !p.is_empty()),
        })
    }

    /// The Scale of an object.
    pub fn get(&self, object: &Value) -> Result<Value, Problem> {
        let (scale, found) = self.read(object)?;
        if found { Ok(scale) } else { Err(Problem::NoReplicas(self.spec_replicas.clone())) }
    }

    /// Like [`ScalePaths::get`], but an object without replicas has 0 of them: what answers a write.
    pub fn answer(&self, object: &Value) -> Result<Value, Problem> {
        self.read(object).map(|(scale, _)| scale)
    }

    fn read(&self, object: &Value) -> Result<(Value, bool), Problem> {
        let replicas = int(object, &self.spec_replicas).map_err(Problem::Malformed)?;
        let status = int(object, &self.status_replicas).map_err(Problem::Malformed)?.unwrap_or(0);
        let mut out = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {}, "spec": {}, "status": {"replicas": status}});
        for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object.get("metadata").and_then(|m| m.get(name)) {
                out["metadata"][name] = value.clone();
            }
        }
        if let Some(n) = replicas.filter(|n| *n != 0) {
            out["spec"]["replicas"] = n.into();
        }
        if let Some(path) = &self.label_selector {
            let selector = text(object, path).map_err(Problem::Malformed)?;
            if let Some(selector) = selector.filter(|s| !s.is_empty()) {
                out["status"]["selector"] = selector.into();
            }
        }
        Ok((out, replicas.is_some()))
    }

    /// Writes the replicas of a Scale, and its resourceVersion where it has one, into the object.
    pub fn set(&self, object: &mut Value, scale: &Value) -> Result<(), Problem> {
        let replicas = match scale.pointer("/spec/replicas") {
            None | Some(Value::Null) if int(object, &self.spec_replicas).ok().flatten().is_none() => {
                return Err(Problem::EmptyReplicas(self.spec_replicas.clone()));
            }
            // Absent is how a Scale writes 0.
            None | Some(Value::Null) => 0,
            Some(n) => n.as_i64().ok_or_else(|| Problem::Malformed("spec.replicas must be an integer".to_owned()))?,
        };
        put(object, &self.spec_replicas, replicas.into()).map_err(Problem::Malformed)?;
        let version = scale.pointer("/metadata/resourceVersion").and_then(Value::as_str).filter(|v| !v.is_empty());
        if let (Some(version), Some(Value::Object(meta))) = (version, object.get_mut("metadata")) {
            meta.insert("resourceVersion".to_owned(), version.into());
        }
        Ok(())
    }

    pub fn validate_spec(&self, object: &Value, errors: &mut Errors) {
        count(object, &self.spec_replicas, errors);
    }

    pub fn validate_status(&self, object: &Value, errors: &mut Errors) {
        count(object, &self.status_replicas, errors);
        if let Some(path) = &self.label_selector
            && let Err(why) = text(object, path)
        {
            errors.invalid(&Path::new(path), "", why);
        }
    }
}

fn count(object: &Value, path: &str, errors: &mut Errors) {
    let at = Path::new(path);
    match int(object, path) {
        Err(why) => errors.invalid(&at, 0, why),
        Ok(Some(n)) if n < 0 => errors.invalid(&at, n, "should be a non-negative integer"),
        Ok(Some(n)) if n > i64::from(i32::MAX) => {
            errors.invalid(&at, n, format!("should be less than or equal to {}", i32::MAX));
        }
        Ok(_) => {}
    }
}

fn segments(path: &str) -> Vec<&str> {
    path.strip_prefix('.').unwrap_or(path).split('.').collect()
}

/// Go's name of a decoded value's type.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

fn nested<'v>(object: &'v Value, path: &str) -> Result<Option<&'v Value>, String> {
    let fields = segments(path);
    let mut at = object;
    for (i, field) in fields.iter().enumerate() {
        match at {
            Value::Null => return Ok(None),
            Value::Object(map) => match map.get(*field) {
                Some(child) => at = child,
                None => return Ok(None),
            },
            other => return Err(accessor(&fields[..=i], other, "map[string]interface {}")),
        }
    }
    Ok(Some(at))
}

fn accessor(fields: &[&str], value: &Value, want: &str) -> String {
    let want = want.replace(" {}", "{}");
    format!(".{} accessor error: {} is of the type {}, expected {want}", fields.join("."), shown(value), go_type(value))
}

fn int(object: &Value, path: &str) -> Result<Option<i64>, String> {
    match nested(object, path)? {
        None => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| accessor(&segments(path), value, "int64")),
    }
}

fn text<'v>(object: &'v Value, path: &str) -> Result<Option<&'v str>, String> {
    match nested(object, path)? {
        None => Ok(None),
        Some(value) => value.as_str().map(Some).ok_or_else(|| accessor(&segments(path), value, "string")),
    }
}

fn put(object: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let fields = segments(path);
    let Some((last, parents)) = fields.split_last() else { return Ok(()) };
    let mut at = object;
    for (i, field) in parents.iter().enumerate() {
        let Value::Object(map) = at else { return Err(blocked(&fields[..i])) };
        at = map.entry((*field).to_owned()).or_insert_with(|| Value::Object(Map::new()));
    }
    match at {
        Value::Object(map) => {
            map.insert((*last).to_owned(), value);
            Ok(())
        }
        _ => Err(blocked(parents)),
    }
}

fn blocked(fields: &[&str]) -> String {
    format!("value cannot be set because .{} is not a map[string]interface{{}}", fields.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> ScalePaths {
        ScalePaths {
            spec_replicas: ".spec.replicas".into(),
            status_replicas: ".status.replicas".into(),
            label_selector: Some(".status.selector".into()),
        }
    }

    #[test]
    fn a_scale_is_read_and_written() {
        let mut object = json!({"metadata": {"name": "x", "uid": "u", "resourceVersion": "5", "labels": {"a": "b"}},
            "spec": {"replicas": 3, "other": 1}, "status": {"replicas": 2, "selector": "a=b"}});
        let mut scale = paths().get(&object).expect("has replicas");
        assert_eq!(
            scale,
            json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x", "uid": "u", "resourceVersion": "5"},
                "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b"}})
        );
        scale["spec"]["replicas"] = json!(7);
        paths().set(&mut object, &scale).expect("can be written");
        assert_eq!(object["spec"], json!({"replicas": 7, "other": 1}));
        scale["spec"] = json!({});
        paths().set(&mut object, &scale).expect("absent means none");
        assert_eq!(object["spec"]["replicas"], 0);
    }

    #[test]
    fn an_object_without_replicas_has_no_scale() {
        let mut object = json!({"metadata": {"name": "x"}, "spec": {}});
        assert_eq!(paths().get(&object), Err(Problem::NoReplicas(".spec.replicas".into())));
        assert_eq!(
            paths().get(&object).map_err(|e| e.to_string()),
            Err("the spec replicas field \".spec.replicas\" does not exist".into())
        );
        assert_eq!(
            paths().set(&mut object, &json!({"spec": {}})),
            Err(Problem::EmptyReplicas(".spec.replicas".into()))
        );
    }

    #[test]
    fn numbers_must_be_counts() {
        let said = |object: Value| {
            let mut errors = Errors::new();
            paths().validate_spec(&object, &mut errors);
            paths().validate_status(&object, &mut errors);
            errors.0.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            said(json!({"spec": {"replicas": -1}})),
            [".spec.replicas: Invalid value: -1: should be a non-negative integer"]
        );
        assert_eq!(
            said(json!({"spec": {"replicas": "x"}})),
            [
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64"
            ]
        );
        assert_eq!(
            said(json!({"spec": {"replicas": 3_000_000_000u32}})),
            [".spec.replicas: Invalid value: 3000000000: should be less than or equal to 2147483647"]
        );
        assert!(said(json!({"spec": {}, "status": null})).is_empty());
    }
}
