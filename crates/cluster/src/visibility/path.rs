//! What a path below `/apis` asks for. Pure.

use serde_json::{Value, json};

use crate::names::{VISIBILITY_GROUP as GROUP, VISIBILITY_VERSIONS as VERSIONS};

/// How many are shown if the request does not say, and at most.
const DEFAULT_LIMIT: usize = 1000;
const MAX_LIMIT: usize = 100_000;

/// Whose line is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    ClusterQueue(String),
    LocalQueue { namespace: String, name: String },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// What is served here, for clients that look around.
    Discovery(Value),
    Pending {
        version: &'static str,
        line: Line,
    },
    Unknown,
}

pub fn read(path: &str) -> Asked {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let version = |name: &str| VERSIONS.into_iter().find(|version| *version == name);
    match parts.as_slice() {
        ["apis"] => Asked::Discovery(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]})),
        ["apis", GROUP] => Asked::Discovery(group()),
        ["apis", GROUP, name] => version(name).map_or(Asked::Unknown, |version| Asked::Discovery(resources(version))),
        ["apis", GROUP, name, "clusterqueues", queue, "pendingworkloads"] => {
            pending(version(name), Line::ClusterQueue((*queue).to_owned()))
        }
        ["apis", GROUP, name, "namespaces", namespace, "localqueues", queue, "pendingworkloads"] => {
            let line = Line::LocalQueue { namespace: (*namespace).to_owned(), name: (*queue).to_owned() };
            pending(version(name), line)
        }
        _ => Asked::Unknown,
    }
}

fn pending(version: Option<&'static str>, line: Line) -> Asked {
    version.map_or(Asked::Unknown, |version| Asked::Pending { version, line })
}

/// Offset and limit of a query, or which of them is no number.
pub fn window(query: &str) -> Result<(usize, usize), String> {
    let (mut offset, mut limit) = (0, 0);
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let number = || value.parse::<i64>().map_err(|_| format!("{key}={value:?} is not a number"));
        match key {
            "offset" => offset = usize::try_from(number()?).unwrap_or(0),
            "limit" => limit = usize::try_from(number()?).unwrap_or(0),
            _ => {}
        }
    }
    Ok((offset, if limit == 0 { DEFAULT_LIMIT } else { limit.min(MAX_LIMIT) }))
}

fn group() -> Value {
    let versions = VERSIONS.map(|version| json!({"groupVersion": format!("{GROUP}/{version}"), "version": version}));
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": versions, "preferredVersion": versions[0]})
}

fn resources(version: &str) -> Value {
    let of = |name: &str, singular: &str, namespaced: bool, verbs: &[&str]| {
        json!({"name": name, "singularName": singular, "namespaced": namespaced,
        "kind": if verbs.is_empty() { singular_kind(singular) } else { "PendingWorkloadsSummary" }, "verbs": verbs})
    };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{version}"), "resources": [
        of("clusterqueues", "clusterqueue", false, &[]),
        of("clusterqueues/pendingworkloads", "", false, &["get"]),
        of("localqueues", "localqueue", true, &[]),
        of("localqueues/pendingworkloads", "", true, &["get"]),
    ]})
}

fn singular_kind(singular: &str) -> &'static str {
    if singular == "clusterqueue" { "ClusterQueue" } else { "LocalQueue" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_asked_for_by_queue() {
        let whole = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/q/pendingworkloads";
        let line = Line::ClusterQueue("q".to_owned());
        assert_eq!(read(whole), Asked::Pending { version: "v1beta2", line });
        let local = "/apis/visibility.kueue.x-k8s.io/v1beta1/namespaces/n/localqueues/q/pendingworkloads";
        let line = Line::LocalQueue { namespace: "n".to_owned(), name: "q".to_owned() };
        assert_eq!(read(local), Asked::Pending { version: "v1beta1", line });
        for other in ["/", "/apis/apps/v1", "/apis/visibility.kueue.x-k8s.io/v9", "/openapi/v2"] {
            assert_eq!(read(other), Asked::Unknown, "{other}");
        }
    }

    #[test]
    fn both_versions_can_be_discovered() {
        let Asked::Discovery(group) = read("/apis/visibility.kueue.x-k8s.io") else { panic!("no discovery") };
        assert_eq!(group["preferredVersion"]["version"], "v1beta2");
        for version in VERSIONS {
            let Asked::Discovery(list) = read(&format!("/apis/{GROUP}/{version}")) else { panic!("no discovery") };
            assert_eq!(list["groupVersion"], format!("{GROUP}/{version}"));
            assert_eq!(list["resources"][1]["name"], "clusterqueues/pendingworkloads");
        }
    }

    #[test]
    fn a_page_is_a_thousand_if_nothing_is_said() {
        assert_eq!(window(""), Ok((0, 1000)));
        assert_eq!(window("offset=5&limit=7&pretty=1"), Ok((5, 7)));
        assert_eq!(window("limit=0"), Ok((0, 1000)));
        assert_eq!(window("limit=9999999"), Ok((0, 100_000)));
        assert!(window("limit=x").unwrap_err().contains("not a number"));
    }
}
