//! All resources that are served, by path and in discovery's order.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use super::kind::{Kind, Resource};
use super::kinds;
use super::served::{Served, Typed};

/// What is served at one moment. Replaced as a whole when custom resources come and go.
#[derive(Default)]
pub struct Catalog {
    by_path: BTreeMap<(String, String, String), Arc<dyn Served>>,
    /// Resources that answer a question and are never stored (reviews, who waits in a queue).
    questions: Vec<Resource>,
    /// The OpenAPI v2 document in protobuf, made when first asked for: kubectl asks in every run that needs it.
    pub(crate) openapi_v2: OnceLock<Bytes>,
    /// The OpenAPI v3 documents by group and version, likewise.
    pub(crate) openapi_v3: Mutex<HashMap<(String, String), Bytes>>,
}

/// An API group as discovery shows it.
pub struct Group<'a> {
    /// Empty for the core group.
    pub name: String,
    pub versions: Vec<Version<'a>>,
}

pub struct Version<'a> {
    pub name: String,
    /// By name.
    pub resources: Vec<&'a Resource>,
}

/// Groups in the order discovery lists them: where two groups have a resource of the same name, kubectl takes the first.
const GROUP_ORDER: [&str; 12] = [
    "",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "batch",
    "policy",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
];

impl Catalog {
    /// The built-in kinds.
    pub fn builtin() -> Catalog {
        struct Collect(Catalog);
        impl kinds::Visitor for Collect {
            fn kind<K: Kind>(&mut self, kind: K) {
                let resource = kind.resource();
                match Typed::new(kind) {
                    Some(typed) => self.0.add(Arc::new(typed)),
                    None => tracing::error!(kind = %resource.qualified_kind(), "no schema for a built-in kind"),
                }
            }
        }
        let mut collect = Collect(Catalog::default());
        kinds::register(&mut collect);
        collect.0.questions = questions();
        collect.0
    }

    pub fn add(&mut self, served: Arc<dyn Served>) {
        let r = served.resource();
        self.by_path.insert((r.group.clone(), r.version.clone(), r.plural.clone()), served);
    }

    pub fn add_question(&mut self, resource: Resource) {
        self.questions.push(resource);
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<dyn Served>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    pub fn question(&self, group: &str, version: &str, plural: &str) -> Option<&Resource> {
        self.questions.iter().find(|r| r.group == group && r.version == version && r.plural == plural)
    }

    /// One version of every stored resource: what holds objects.
    pub fn stored(&self) -> Vec<Arc<dyn Served>> {
        let mut seen = std::collections::BTreeSet::new();
        self.by_path.values().filter(|s| seen.insert(s.collection())).cloned().collect()
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Served>> {
        self.by_path.values()
    }

    /// Groups with their versions, most preferred first.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: BTreeMap<(usize, &str), BTreeMap<VersionOrder, Vec<&Resource>>> = BTreeMap::new();
        for resource in self.by_path.values().map(|s| s.resource()).chain(&self.questions) {
            let place = GROUP_ORDER.iter().position(|g| *g == resource.group).unwrap_or(GROUP_ORDER.len());
            let versions = groups.entry((place, &resource.group)).or_default();
            versions.entry(VersionOrder::of(&resource.version)).or_default().push(resource);
        }
        groups
            .into_iter()
            .map(|((_, name), versions)| Group {
                name: name.to_owned(),
                versions: versions
                    .into_iter()
                    .map(|(order, mut resources)| {
                        resources.sort_by(|a, b| a.plural.cmp(&b.plural));
                        Version { name: order.name, resources }
                    })
                    .collect(),
            })
            .collect()
    }
}

/// Kubernetes' order of versions: GA before beta before alpha, higher first, anything else last by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VersionOrder {
    rank: u8,
    major: std::cmp::Reverse<u64>,
    minor: std::cmp::Reverse<u64>,
    pub name: String,
}

impl VersionOrder {
    pub fn of(name: &str) -> VersionOrder {
        let parsed = parse_version(name);
        let (rank, major, minor) = parsed.unwrap_or((3, 0, 0));
        VersionOrder { rank, major: std::cmp::Reverse(major), minor: std::cmp::Reverse(minor), name: name.to_owned() }
    }
}

fn parse_version(name: &str) -> Option<(u8, u64, u64)> {
    let rest = name.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..digits].parse().ok()?;
    match &rest[digits..] {
        "" => Some((0, major, 0)),
        tail => {
            let (rank, number) =
                tail.strip_prefix("beta").map(|n| (1, n)).or_else(|| tail.strip_prefix("alpha").map(|n| (2, n)))?;
            Some((rank, major, number.parse().ok()?))
        }
    }
}

fn questions() -> Vec<Resource> {
    [
        ("authentication.k8s.io", "TokenReview", "tokenreviews", false),
        ("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", false),
        ("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews", false),
        ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", false),
        ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews", false),
        ("authorization.k8s.io", "LocalSubjectAccessReview", "localsubjectaccessreviews", true),
    ]
    .into_iter()
    .map(|(group, kind, plural, namespaced)| Resource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_ascii_lowercase(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: vec!["create"],
        subresources: Vec::new(),
        has_status: false,
        has_generation: false,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_preferred_as_kubernetes_prefers_them() {
        let mut names = ["foo", "v1alpha1", "v2beta1", "v1", "v10", "v2", "v1beta2", "v1beta10"];
        names.sort_by_key(|n| VersionOrder::of(n));
        assert_eq!(names, ["v10", "v2", "v1", "v2beta1", "v1beta10", "v1beta2", "v1alpha1", "foo"]);
    }
}
