//! Objects as bytes in the store, and back.
//!
//! A stored object begins with its metadata and lacks what the store or the URL knows anyway: `resourceVersion`, `apiVersion`,
//! `kind`. Answering is then copying: a fixed head for the kind, the revision, and the stored bytes after their first 13.
//! Nothing is parsed to serve a get, a list or a watch without selectors.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::object::Object;
use crate::registry::kind::Resource;

/// How every stored object begins.
const OPENING: &[u8] = b"{\"metadata\":{";

/// The bytes of an object. It must have a name, so that its metadata is not empty.
pub fn freeze(object: &Object) -> Bytes {
    freeze_with(object, None)
}

/// As [`freeze`], with managed fields that are JSON already. Those of the object itself come first, if it has any.
pub fn freeze_with(object: &Object, managed_fields: Option<&str>) -> Bytes {
    let empty = Map::new();
    let root = object.as_object().unwrap_or(&empty);
    let meta = root.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let mut out = Vec::with_capacity(8192);
    out.extend_from_slice(OPENING);
    let mut first = true;
    let mut separate = |out: &mut Vec<u8>| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
    };
    for (key, value) in meta.iter().filter(|(key, _)| *key != "resourceVersion") {
        separate(&mut out);
        write_member(&mut out, key, value);
    }
    if let Some(text) = managed_fields.filter(|_| !meta.contains_key("managedFields")) {
        separate(&mut out);
        out.extend_from_slice(b"\"managedFields\":");
        out.extend_from_slice(text.as_bytes());
    }
    out.push(b'}');
    for (key, value) in root.iter().filter(|(key, _)| !matches!(key.as_str(), "metadata" | "apiVersion" | "kind")) {
        out.push(b',');
        write_member(&mut out, key, value);
    }
    out.push(b'}');
    // Kept for long: no larger than it has to be.
    Bytes::copy_from_slice(&out)
}

fn write_member(out: &mut Vec<u8>, key: &str, value: &Value) {
    // Writing to memory cannot fail: the keys of a Value are strings.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let _ = serde_json::to_writer(out, value);
}

/// What stands before the revision when objects of one kind are written.
#[derive(Clone, Debug)]
pub struct Head(Vec<u8>);

impl Head {
    pub fn new(api_version: &str, kind: &str) -> Head {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(b"{\"kind\":");
        // Writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut out, kind);
        out.extend_from_slice(b",\"apiVersion\":");
        let _ = serde_json::to_writer(&mut out, api_version);
        out.extend_from_slice(b",\"metadata\":{\"resourceVersion\":\"");
        Head(out)
    }

    pub fn of(resource: &Resource) -> Head {
        Head::new(&resource.api_version(), &resource.kind)
    }

    /// For items of a list of built-in kinds, which say neither kind nor version.
    pub fn bare() -> Head {
        Head(b"{\"metadata\":{\"resourceVersion\":\"".to_vec())
    }

    /// Appends the object to `out`, shown at `revision`.
    pub fn write(&self, out: &mut Vec<u8>, value: &[u8], revision: u64) {
        out.extend_from_slice(&self.0);
        out.extend_from_slice(revision.to_string().as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(value.get(OPENING.len()..).unwrap_or_default());
    }
}

/// The object, complete.
pub fn thaw(resource: &Resource, value: &[u8], revision: u64) -> Result<Object, serde_json::Error> {
    let mut object: Object = serde_json::from_slice(value)?;
    stamp(&mut object, &resource.api_version(), &resource.kind, revision);
    Ok(object)
}

/// The object without its managed fields, and their text. Half of what is stored about a pod is managed fields, which most
/// changes only carry along.
pub fn thaw_lean(resource: &Resource, value: &[u8], revision: u64) -> Result<Lean, serde_json::Error> {
    let mut managed_fields = None;
    let mut text = serde_json::Deserializer::from_slice(value);
    let root = Root { managed_fields: &mut managed_fields }.deserialize(&mut text)?;
    text.end()?;
    let mut object = Value::Object(root);
    stamp(&mut object, &resource.api_version(), &resource.kind, revision);
    Ok(Lean { object, managed_fields })
}

/// What [`thaw_lean`] makes.
pub struct Lean {
    pub object: Object,
    pub managed_fields: Option<Box<RawValue>>,
}

/// Reads an object, and of its metadata all but the managed fields.
struct Root<'m> {
    managed_fields: &'m mut Option<Box<RawValue>>,
}

struct Metadata<'m>(&'m mut Option<Box<RawValue>>);

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match key.as_str() {
                "metadata" => Value::Object(map.next_value_seed(Metadata(&mut *self.managed_fields))?),
                _ => map.next_value()?,
            };
            out.insert(key, value);
        }
        Ok(out)
    }
}

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the metadata of an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "managedFields" {
                *self.0 = Some(map.next_value()?);
            } else {
                out.insert(key, map.next_value()?);
            }
        }
        Ok(out)
    }
}

/// The object with no members but those that lead to `paths`, and these whole: what a selector looks at.
pub fn excerpt(value: &[u8], paths: &[&[&str]]) -> Object {
    let mut text = serde_json::Deserializer::from_slice(value);
    Excerpt { paths, depth: 0 }.deserialize(&mut text).unwrap_or(Value::Null)
}

#[derive(Clone, Copy)]
struct Excerpt<'p> {
    /// All begin with the steps down to `depth`.
    paths: &'p [&'p [&'p str]],
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Excerpt<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Excerpt<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<Text<'de>>()? {
            let leads = |path: &&&[&str]| path.get(self.depth) == Some(&&*key.0);
            // Paths are few and sorted by their beginnings, so those that go on here stand together.
            let first = self.paths.iter().position(|path| leads(&path)).unwrap_or(self.paths.len());
            let here = &self.paths[first..];
            let here = &here[..here.iter().take_while(leads).count()];
            match here.iter().any(|path| path.len() == self.depth + 1) {
                _ if here.is_empty() => drop(map.next_value::<IgnoredAny>()?),
                true => drop(out.insert(key.0.into_owned(), map.next_value()?)),
                false => {
                    let below = map.next_value_seed(Excerpt { paths: here, depth: self.depth + 1 })?;
                    out.insert(key.0.into_owned(), below);
                }
            }
        }
        Ok(Value::Object(out))
    }
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Puts in what the stored form leaves out.
pub fn stamp(object: &mut Object, api_version: &str, kind: &str, revision: u64) {
    let root = crate::object::as_map(object);
    root.insert("apiVersion".to_owned(), api_version.into());
    root.insert("kind".to_owned(), kind.into());
    crate::object::meta_mut(object).insert("resourceVersion".to_owned(), revision.to_string().into());
}

/// The labels of a stored object, without decoding the rest.
pub fn labels(value: &[u8]) -> BTreeMap<Cow<'_, str>, Cow<'_, str>> {
    #[derive(Deserialize, Default)]
    struct Root<'a> {
        #[serde(borrow, default)]
        metadata: Meta<'a>,
    }
    #[derive(Deserialize, Default)]
    struct Meta<'a> {
        #[serde(borrow, default)]
        labels: BTreeMap<Text<'a>, Text<'a>>,
    }
    let root: Root<'_> = serde_json::from_slice(value).unwrap_or_default();
    root.metadata.labels.into_iter().map(|(k, v)| (k.0, v.0)).collect()
}

/// `namespace/name`, or `name` for what has no namespace.
pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resource() -> Resource {
        Resource {
            group: "batch".into(),
            version: "v1".into(),
            kind: "Job".into(),
            plural: "jobs".into(),
            singular: "job".into(),
            short_names: vec![],
            categories: vec![],
            namespaced: true,
            verbs: vec![],
            subresources: vec![],
            has_status: true,
            has_generation: true,
        }
    }

    #[test]
    fn what_is_served_is_the_object_with_the_revision_of_its_write() {
        let object = json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "a\"b", "resourceVersion": "3", "labels": {"x": "y\\"}}, "spec": {"parallelism": 2}});
        let bytes = freeze(&object);
        let mut served = Vec::new();
        Head::of(&resource()).write(&mut served, &bytes, 7);
        let mut expected = object.clone();
        expected["metadata"]["resourceVersion"] = "7".into();
        assert_eq!(serde_json::from_slice::<Value>(&served).unwrap(), expected);
        assert_eq!(thaw(&resource(), &bytes, 7).unwrap(), expected);
    }

    #[test]
    fn managed_fields_may_come_as_text_and_those_of_the_object_win() {
        let mut object = json!({"metadata": {"name": "a"}, "spec": {}});
        let text = r#"[{"manager":"m"}]"#;
        let stored = |object: &Value| serde_json::from_slice::<Value>(&freeze_with(object, Some(text))).unwrap();
        assert_eq!(
            stored(&object),
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}]}, "spec": {}})
        );
        object["metadata"]["managedFields"] = json!([{"manager": "own"}]);
        assert_eq!(stored(&object), object);
    }

    #[test]
    fn managed_fields_are_told_apart_from_the_rest_and_put_back_unread() {
        let object = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"managedFields": 1},
            "metadata": {"name": "a", "resourceVersion": "7", "managedFields": [{"manager": "m", "fieldsV1": {"f:a": {}}}]}});
        let lean = thaw_lean(&resource(), &freeze(&object), 7).unwrap();
        let mut without = object.clone();
        let managed = without["metadata"].as_object_mut().unwrap().remove("managedFields").unwrap();
        assert_eq!(lean.object, without);
        let text = lean.managed_fields.unwrap();
        assert_eq!(serde_json::from_str::<Value>(text.get()).unwrap(), managed);
        let bytes = freeze_with(&lean.object, Some(text.get()));
        assert_eq!(thaw(&resource(), &bytes, 7).unwrap(), object);
        assert!(thaw_lean(&resource(), b"{\"metadata\":{}} x", 7).is_err());
    }

    #[test]
    fn an_excerpt_has_what_the_paths_lead_to_and_nothing_else() {
        let bytes = freeze(&json!({"metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}], "deep": {"in": {"here": 1}, "not": 2}},
            "status": {"podIPs": [{"ip": "1"}], "phase": "Running"}}));
        let paths: [&[&str]; 5] = [
            &["spec", "deep", "in"],
            &["spec", "nodeName"],
            &["spec", "gone"],
            &["status", "podIPs"],
            &["status", "x"],
        ];
        let expected =
            json!({"spec": {"nodeName": "n", "deep": {"in": {"here": 1}}}, "status": {"podIPs": [{"ip": "1"}]}});
        assert_eq!(excerpt(&bytes, &paths), expected);
    }

    #[test]
    fn labels_are_read_without_the_rest_also_when_escaped() {
        let bytes = freeze(&json!({"metadata": {"name": "a", "labels": {"k/x": "v\"w"}}, "spec": [1, 2]}));
        let labels = labels(&bytes);
        assert_eq!(labels.len(), 1);
        assert_eq!(labels.get("k/x").map(AsRef::as_ref), Some("v\"w"));
    }
}
