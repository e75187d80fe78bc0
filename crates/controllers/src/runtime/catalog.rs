//! What a server serves: every resource at its preferred version, and every kind at every version.
//!
//! Read from aggregated discovery in two requests. A group version marked stale has failed: what was known of it is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use kube::Client;
use kube::core::discovery::v2::APIGroupDiscovery;

/// A resource whatever its version, like `jobs.batch`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    pub group: String,
    pub plural: String,
}

impl GroupResource {
    pub fn new(group: &str, plural: &str) -> Self {
        GroupResource { group: group.to_string(), plural: plural.to_string() }
    }

    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }
}

/// A resource as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    pub id: GroupResource,
    pub version: String,
    pub kind: Arc<str>,
    pub api_version: Arc<str>,
    pub namespaced: bool,
    pub verbs: BTreeSet<String>,
}

impl Resource {
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.contains(verb)
    }

    /// The path of the collection; an empty namespace means all of them, or none for a cluster-scoped resource.
    pub fn path(&self, namespace: &str) -> String {
        let root = match &*self.id.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        match namespace {
            namespace if self.namespaced && !namespace.is_empty() => {
                format!("{root}/namespaces/{namespace}/{}", self.id.plural)
            }
            _ => format!("{root}/{}", self.id.plural),
        }
    }
}

/// As Go prints a GroupVersionResource: part of messages that people search for.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.id.group, self.version, self.id.plural)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// Each resource at the version that its group prefers.
    pub preferred: BTreeMap<GroupResource, Arc<Resource>>,
    /// By (apiVersion, kind): every served version.
    kinds: BTreeMap<(String, String), Arc<Resource>>,
    /// Group versions whose discovery failed.
    pub failed: BTreeSet<String>,
}

impl Catalog {
    pub async fn discover(client: &Client) -> Result<Catalog, kube::Error> {
        let core = client.list_core_api_versions_aggregated().await?;
        let groups = client.list_api_groups_aggregated().await?;
        Ok(Catalog::lower(core.items.into_iter().chain(groups.items)))
    }

    fn lower(groups: impl IntoIterator<Item = APIGroupDiscovery>) -> Catalog {
        let mut catalog = Catalog::default();
        for group in groups {
            let name = group.metadata.and_then(|m| m.name).unwrap_or_default();
            for version in group.versions {
                let number = version.version.unwrap_or_default();
                let api_version = if name.is_empty() { number.clone() } else { format!("{name}/{number}") };
                if version.freshness.as_deref() == Some("Stale") {
                    catalog.failed.insert(api_version.clone());
                }
                for resource in version.resources {
                    let Some(plural) = resource.resource else { continue };
                    let kind = resource.response_kind.and_then(|k| k.kind).unwrap_or_default();
                    let served = Arc::new(Resource {
                        id: GroupResource { group: name.clone(), plural },
                        version: number.clone(),
                        kind: kind.as_str().into(),
                        api_version: api_version.as_str().into(),
                        namespaced: resource.scope.as_deref() == Some("Namespaced"),
                        verbs: resource.verbs.into_iter().collect(),
                    });
                    catalog.kinds.entry((api_version.clone(), kind)).or_insert_with(|| served.clone());
                    catalog.preferred.entry(served.id.clone()).or_insert(served);
                }
            }
        }
        catalog
    }

    #[cfg(test)]
    pub(crate) fn for_tests(groups: Vec<APIGroupDiscovery>) -> Catalog {
        Catalog::lower(groups)
    }

    /// Keeps from `old` what belongs to group versions that could not be discovered now.
    pub fn keep_failed(mut self, old: &Catalog) -> Catalog {
        for (kind, resource) in &old.kinds {
            if self.failed.contains(&*resource.api_version) {
                self.kinds.entry(kind.clone()).or_insert_with(|| resource.clone());
                self.preferred.entry(resource.id.clone()).or_insert_with(|| resource.clone());
            }
        }
        self
    }

    /// The resource behind an owner reference's coordinates.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.kinds.get(&(api_version.to_string(), kind.to_string()))
    }

    pub fn has(&self, group: &str, plural: &str) -> bool {
        self.preferred.contains_key(&GroupResource::new(group, plural))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn group(name: &str, versions: &[(&str, &str, &[&str])]) -> APIGroupDiscovery {
        let versions: Vec<_> = versions
            .iter()
            .map(|(version, freshness, plurals)| {
                let resources: Vec<_> = plurals
                    .iter()
                    .map(|p| json!({"resource": p, "scope": "Namespaced", "verbs": ["list"], "responseKind": {"kind": p.to_uppercase()}}))
                    .collect();
                json!({"version": version, "freshness": freshness, "resources": resources})
            })
            .collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "versions": versions})).unwrap()
    }

    #[test]
    fn a_resource_is_used_at_the_first_version_that_has_it() {
        let c = Catalog::lower([group("g", &[("v2", "Current", &["a"]), ("v1", "Current", &["a", "b"])])]);
        let versions: Vec<_> = c.preferred.values().map(|r| (r.id.plural.as_str(), r.version.as_str())).collect();
        assert_eq!(versions, [("a", "v2"), ("b", "v1")]);
        assert_eq!(c.kind("g/v1", "A").map(|r| r.path("ns")), Some("/apis/g/v1/namespaces/ns/a".to_string()));
        assert!(c.kind("g/v3", "A").is_none());
    }

    #[test]
    fn what_was_known_of_a_failed_group_is_kept() {
        let old = Catalog::lower([group("g", &[("v1", "Current", &["a"])]), group("h", &[("v1", "Current", &["b"])])]);
        let new = Catalog::lower([group("g", &[("v1", "Stale", &[])])]).keep_failed(&old);
        assert!(new.has("g", "a") && !new.has("h", "b"));
        assert_eq!(new.failed.iter().collect::<Vec<_>>(), ["g/v1"]);
    }
}
