//! Texts that a client gets as `Warning` headers: what is allowed but old, ambiguous or pointless.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::core::v1::{Container, NodeSelectorTerm, PodAffinityTerm, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use usher_api::quantity::Quantity;
use usher_schema::field::{Path, quote};

use super::security::visit;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{list, text};
use crate::registry::names;

const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];
const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// What replaces a node label that is on its way out.
pub fn deprecated_node_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => "deprecated since v1.22; use Taints and Tolerations instead",
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => return None,
    })
}

/// Warnings for a pod spec. `at` is empty for a Pod and the template's place for a template.
pub fn warnings(spec: &PodSpec, meta: &ObjectMeta, at: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let spec_path = at.child("spec");
    let place = At::Path(&spec_path);
    scheduling(spec, &place, &mut out);
    let no_annotations = BTreeMap::new();
    let annotations = meta.annotations.as_ref().unwrap_or(&no_annotations);
    for (key, message) in OLD_ANNOTATIONS.iter().filter(|(key, _)| annotations.contains_key(*key)) {
        out.push(format!("{}: {message}", at.child("metadata").child("annotations").key(key)));
    }
    volumes(spec, &place, &mut out);
    duplicates(spec, &place, &mut out);
    visit(spec, &place, &mut |container, at| container_warnings(container, at, &mut out));
    ports(spec, &place, &mut out);
    if spec.termination_grace_period_seconds.is_some_and(|secs| secs < 0) {
        let path = place.child("terminationGracePeriodSeconds").path();
        out.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    out
}

fn scheduling(spec: &PodSpec, at: &At, out: &mut Vec<String>) {
    for key in spec.node_selector.iter().flatten().map(|(key, _)| key) {
        if let Some(message) = deprecated_node_label(key) {
            out.push(format!("{}: {message}", at.child("nodeSelector").key(key).path()));
        }
    }
    for (i, constraint) in list(&spec.topology_spread_constraints).iter().enumerate() {
        let at = at.child("topologySpreadConstraints");
        let at = at.index(i);
        let key = &constraint.topology_key;
        if let Some(message) = deprecated_node_label(key) {
            out.push(format!("{}: {key} is {message}", at.child("topologyKey").path()));
        }
        if constraint.label_selector.is_none() {
            out.push(format!("{}: {NULL_SELECTOR}", at.child("labelSelector").path()));
        }
    }
    let Some(affinity) = &spec.affinity else { return };
    let at = at.child("affinity");
    if let Some(node) = &affinity.node_affinity {
        let at = at.child("nodeAffinity");
        if let Some(required) = &node.required_during_scheduling_ignored_during_execution {
            let at = at.child("requiredDuringSchedulingIgnoredDuringExecution");
            let at = at.child("nodeSelectorTerms");
            for (i, term) in required.node_selector_terms.iter().enumerate() {
                node_term(term, false, &at.index(i), out);
            }
        }
        let at = at.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, term) in list(&node.preferred_during_scheduling_ignored_during_execution).iter().enumerate() {
            node_term(&term.preference, true, &at.index(i).child("preference"), out);
        }
    }
    let pod = affinity.pod_affinity.as_ref().map(|a| {
        let preferred = list(&a.preferred_during_scheduling_ignored_during_execution);
        ("podAffinity", list(&a.required_during_scheduling_ignored_during_execution), preferred)
    });
    let anti = affinity.pod_anti_affinity.as_ref().map(|a| {
        let preferred = list(&a.preferred_during_scheduling_ignored_during_execution);
        ("podAntiAffinity", list(&a.required_during_scheduling_ignored_during_execution), preferred)
    });
    for (field, required, preferred) in pod.into_iter().chain(anti) {
        let at = at.child(field);
        let unselective = |term: &PodAffinityTerm| term.label_selector.is_none();
        let here = at.child("requiredDuringSchedulingIgnoredDuringExecution");
        for (i, _) in required.iter().enumerate().filter(|(_, term)| unselective(term)) {
            out.push(format!("{}: {NULL_SELECTOR}", here.index(i).child("labelSelector").path()));
        }
        let here = at.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, _) in preferred.iter().enumerate().filter(|(_, term)| unselective(&term.pod_affinity_term)) {
            let here = here.index(i);
            out.push(format!("{}: {NULL_SELECTOR}", here.child("podAffinityTerm").child("labelSelector").path()));
        }
    }
}

fn node_term(term: &NodeSelectorTerm, check_values: bool, at: &At, out: &mut Vec<String>) {
    for (i, expression) in list(&term.match_expressions).iter().enumerate() {
        let at = at.child("matchExpressions");
        let at = at.index(i);
        if let Some(message) = deprecated_node_label(&expression.key) {
            out.push(format!("{}: {} is {message}", at.child("key").path(), expression.key));
        }
        for (j, value) in list(&expression.values).iter().enumerate().filter(|_| check_values) {
            for problem in names::label_value(value) {
                out.push(format!("{}: {value} is invalid, {problem}", at.child("values").index(j).path()));
            }
        }
    }
}

fn volumes(spec: &PodSpec, at: &At, out: &mut Vec<String>) {
    let at = at.child("volumes");
    for (i, volume) in list(&spec.volumes).iter().enumerate() {
        for (field, set, message) in [
            (
                "photonPersistentDisk",
                volume.photon_persistent_disk.is_some(),
                "deprecated in v1.11, non-functional in v1.16+",
            ),
            ("gitRepo", volume.git_repo.is_some(), "deprecated in v1.11, and disabled by default in v1.33+"),
            ("scaleIO", volume.scale_io.is_some(), "deprecated in v1.16, non-functional in v1.22+"),
            ("flocker", volume.flocker.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
            ("storageOS", volume.storageos.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
            ("quobyte", volume.quobyte.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
            ("glusterfs", volume.glusterfs.is_some(), "deprecated in v1.25, non-functional in v1.26+"),
            ("cephfs", volume.cephfs.is_some(), "deprecated in v1.28, non-functional in v1.31+"),
            ("rbd", volume.rbd.is_some(), "deprecated in v1.28, non-functional in v1.31+"),
        ] {
            if set {
                out.push(format!("{}: {message}", at.index(i).child(field).path()));
            }
        }
    }
}

fn duplicates(spec: &PodSpec, at: &At, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (i, alias) in list(&spec.host_aliases).iter().enumerate() {
        if !seen.insert(alias.ip.as_str()) {
            let at = at.child("hostAliases");
            out.push(format!("{}: duplicate ip {}", at.index(i).child("ip").path(), quote(&alias.ip)));
        }
    }
    let mut seen = HashSet::new();
    let secrets = list(&spec.image_pull_secrets);
    let at = at.child("imagePullSecrets");
    for (i, secret) in secrets.iter().enumerate() {
        if !seen.insert(secret.name.as_str()) {
            out.push(format!("{}: duplicate name {}", at.index(i).child("name").path(), quote(&secret.name)));
        }
    }
    for (i, _) in secrets.iter().enumerate().filter(|(_, secret)| secret.name.is_empty()) {
        out.push(format!("{}: invalid empty name \"\"", at.index(i).child("name").path()));
    }
}

fn container_warnings(container: &Container, at: &At, out: &mut Vec<String>) {
    if let Some(resources) = &container.resources {
        for name in ["memory", "ephemeral-storage"] {
            for (field, values) in [("limits", &resources.limits), ("requests", &resources.requests)] {
                let quantity = values.as_ref().and_then(|values| values.get(name));
                let fractional = quantity.and_then(|q| Quantity::parse(&q.0).ok()).filter(|q| !q.is_whole());
                if let Some(quantity) = fractional {
                    let at = at.child("resources");
                    let path = at.child(field).key(name).path();
                    out.push(format!("{path}: fractional byte value \"{quantity}\" is invalid, must be an integer"));
                }
            }
        }
    }
    let mut seen = HashSet::new();
    for (i, var) in list(&container.env).iter().enumerate() {
        if seen.insert(var.name.as_str()) {
            continue;
        }
        // Building on the earlier value is the one good reason to define a name twice.
        let (value, reference) = (text(&var.value), format!("$({})", var.name));
        if var.value_from.is_some() || value == reference || !value.contains(&reference) {
            let path = at.child("env").index(i).path();
            let name = quote(&var.name);
            out.push(format!("{path}: hides previous definition of {name}, which may be dropped when using apply"));
        }
    }
}

/// Where a port is defined, and what it is on the host.
type HostPort = (Path, i32, String);

fn ports(spec: &PodSpec, at: &At, out: &mut Vec<String>) {
    let mut by_number: HashMap<(i32, String), Vec<HostPort>> = HashMap::new();
    let mut by_name: HashMap<String, Path> = HashMap::new();
    let mut named = Vec::new();
    visit(spec, at, &mut |container, at| {
        for (i, port) in list(&container.ports).iter().enumerate() {
            let path = at.child("ports").index(i).path();
            let (host_ip, host_port) = (text(&port.host_ip).to_owned(), port.host_port.unwrap_or(0));
            let others = by_number.entry((port.container_port, text(&port.protocol).to_owned())).or_default();
            for (other, other_port, other_ip) in others.iter() {
                if host_ip == *other_ip && host_port == *other_port {
                    out.push(format!("{path}: duplicate port definition with {other}"));
                } else if host_port == 0 || *other_port == 0 {
                    out.push(format!("{path}: overlapping port definition with {other}"));
                } else if host_port == *other_port && (host_ip.is_empty() != other_ip.is_empty()) {
                    out.push(format!("{path}: dangerously ambiguous port definition with {other}"));
                }
            }
            others.push((path.clone(), host_port, host_ip));
            let name = text(&port.name);
            if name.is_empty() {
                continue;
            }
            match by_name.get(name) {
                None => drop(by_name.insert(name.to_owned(), path)),
                Some(other) => named.push(format!(
                    "{path}: duplicate port name {} with {other}, services and probes that select ports by name will use {other}",
                    quote(name)
                )),
            }
        }
    });
    out.extend(named);
}
