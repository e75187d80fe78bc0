//! The part of an object's metadata that controllers read, and nothing else: of everything a server sends, only this is
//! decoded and kept.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize};

/// Where an object is, within its kind. Cluster-scoped objects have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    #[serde(deserialize_with = "or_empty")]
    pub namespace: Arc<str>,
    #[serde(deserialize_with = "or_empty")]
    pub name: Arc<str>,
    #[serde(deserialize_with = "or_empty")]
    pub uid: Arc<str>,
    #[serde(deserialize_with = "or_empty")]
    pub resource_version: Arc<str>,
    #[serde(deserialize_with = "or_empty_list")]
    pub finalizers: Vec<String>,
    #[serde(deserialize_with = "or_empty_list")]
    pub owner_references: Vec<OwnerRef>,
    #[serde(deserialize_with = "timestamp")]
    pub deletion_timestamp: Option<Timestamp>,
}

/// An entry of `metadata.ownerReferences`. The absent `blockOwnerDeletion` means false.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerRef {
    #[serde(deserialize_with = "or_empty", serialize_with = "text")]
    pub api_version: Arc<str>,
    #[serde(deserialize_with = "or_empty", serialize_with = "text")]
    pub kind: Arc<str>,
    #[serde(deserialize_with = "or_empty", serialize_with = "text")]
    pub name: Arc<str>,
    #[serde(deserialize_with = "or_empty", serialize_with = "text")]
    pub uid: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl OwnerRef {
    pub fn blocks(&self) -> bool {
        self.block_owner_deletion == Some(true)
    }
}

impl Meta {
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    pub fn being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }
}

/// Any object, cut down to its metadata.
#[derive(Deserialize)]
pub(crate) struct Partial {
    #[serde(default)]
    pub metadata: Meta,
}

/// `null` is what some encoders write for "empty".
fn or_empty<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<str>, D::Error> {
    Ok(Option::<String>::deserialize(d)?.unwrap_or_default().into())
}

fn text<S: serde::Serializer>(value: &Arc<str>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(value)
}

fn or_empty_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(d)?.unwrap_or_default())
}

pub(crate) fn timestamp<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Time>::deserialize(d)?.map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_past_nulls_and_unknown_fields() {
        let text = r#"{"kind":"PartialObjectMetadata","metadata":{"name":"a","uid":"1","creationTimestamp":null,
            "finalizers":null,"managedFields":[{"manager":"x"}],"deletionTimestamp":"2026-01-01T00:00:00Z",
            "ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"2","blockOwnerDeletion":true}]}}"#;
        let meta = serde_json::from_str::<Partial>(text).unwrap().metadata;
        assert_eq!((&*meta.name, &*meta.namespace, &*meta.resource_version), ("a", "", ""));
        assert!(meta.being_deleted() && meta.finalizers.is_empty() && meta.owner_references[0].blocks());
    }
}
