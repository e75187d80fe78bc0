//! Nodes. Their status may be given on create, as kubelets do when they register.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use serde_json::{Value, json};
use usher_schema::field::{Error, Errors, Kind as Wrong, Path};

use super::at::At;
use super::common::{each_invalid, is_true, json as shown, list, required_one_of, text};
use super::json_field::text_at;
use super::pod_template::defaults::default_resource_list;
use super::pod_template::resources::validate_quantity;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::{names, table};

const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE_LABEL: &str = "kubernetes.io/role";
const FEATURE_NAME_MAX: usize = 253;
const SPEC: At = At::Root("spec");
const STATUS: At = At::Root("status");
const METADATA: At = At::Root("metadata");

pub struct Nodes;

impl Kind for Nodes {
    type Object = Node;

    /// Not `with_status`: the server would drop the status of a new node. The hooks below keep it on updates.
    fn resource(&self) -> Resource {
        Resource::cluster("", "v1", "Node", "nodes").short(&["no"]).sub("status", &["get", "patch", "update"], None)
    }

    fn default(&self, node: &mut Node) {
        let spec = node.spec.get_or_insert_default();
        default_pod_cidrs(spec);
        let status = node.status.get_or_insert_default();
        status.capacity.iter_mut().chain(&mut status.allocatable).for_each(default_resource_list);
        if status.allocatable.is_none() {
            status.allocatable.clone_from(&status.capacity);
        }
        status.daemon_endpoints.get_or_insert_default().kubelet_endpoint.get_or_insert_default();
        status.node_info.get_or_insert_default();
    }

    fn prepare_create(&self, _cx: &Cx, node: &mut Node) {
        let spec = node.spec.get_or_insert_default();
        (spec.config_source, spec.pod_preemption_policy) = (None, None);
        if let Some(status) = &mut node.status {
            status.config = None;
        }
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut Node, old: &Node) {
        new.status.clone_from(&old.status);
        let old = old.spec.as_ref();
        let spec = new.spec.get_or_insert_default();
        // Behind gates that are off: only what is there already may stay.
        if old.is_none_or(|old| old.config_source.is_none()) {
            spec.config_source = None;
        }
        if old.is_none_or(|old| old.pod_preemption_policy.is_none()) {
            spec.pod_preemption_policy = None;
        }
    }

    fn prepare_status_update(&self, _cx: &Cx, new: &mut Node, old: &Node) {
        new.spec.clone_from(&old.spec);
        if old.status.as_ref().is_none_or(|status| status.config.is_none())
            && let Some(status) = &mut new.status
        {
            status.config = None;
        }
    }

    fn validate(&self, _cx: &Cx, node: &Node, errors: &mut Errors) {
        let spec = node.spec.as_ref();
        validate_taints(node, errors);
        if let Some(status) = &node.status {
            validate_resources(status, errors);
            let swap = status.node_info.as_ref().and_then(|info| info.swap.as_ref()).and_then(|swap| swap.capacity);
            if let Some(capacity) = swap.filter(|capacity| *capacity <= 0) {
                let at = METADATA.child("nodeSwapStatus");
                errors.invalid(&at.child("capacity").path(), capacity, "must be greater than zero");
            }
            validate_features(status, errors);
        }
        let cidrs = spec.map_or(&[] as &[String], |spec| list(&spec.pod_cidrs));
        validate_cidrs(cidrs, &SPEC.child("podCIDRs"), errors);
    }

    fn validate_update(&self, cx: &Cx, new: &Node, old: &Node, errors: &mut Errors) {
        self.validate(cx, new, errors);
        validate_change(new, old, errors);
    }

    fn validate_status_update(&self, _cx: &Cx, new: &Node, old: &Node, errors: &mut Errors) {
        validate_change(new, old, errors);
    }

    fn warnings(&self, new: &Node, _old: Option<&Node>) -> Vec<String> {
        let Some(spec) = &new.spec else { return Vec::new() };
        let mut out = Vec::new();
        if spec.config_source.is_some() {
            out.push("spec.configSource: the feature is removed".to_owned());
        }
        if !text(&spec.external_id).is_empty() {
            out.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
        }
        out
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Status", "string", 0, "Whether the node is ready, and whether pods may be placed on it."),
            Column::new("Roles", "string", 0, "Roles the node's labels give it."),
            table::age_column(),
            Column::new("Version", "string", 0, "Version of the kubelet."),
            Column::new("Internal-IP", "string", 1, "Address inside the cluster."),
            Column::new("External-IP", "string", 1, "Address from outside."),
            Column::new("OS-Image", "string", 1, "Operating system of the node."),
            Column::new("Kernel-Version", "string", 1, "Kernel of the node."),
            Column::new("Container-Runtime", "string", 1, "Container runtime and its version."),
        ]
    }

    fn cells(&self, node: &Node, meta: &Value, now: Timestamp) -> Vec<Value> {
        let status = node.status.as_ref();
        let info = status.and_then(|status| status.node_info.clone()).unwrap_or_default();
        let known = |text: &str| if text.is_empty() { "<unknown>".to_owned() } else { text.to_owned() };
        let mut kernel = known(&info.kernel_version);
        if !info.architecture.is_empty() {
            kernel = format!("{kernel} ({})", info.architecture);
        }
        vec![
            table::name_cell(meta),
            readiness(node).into(),
            table::joined_or_none(&roles(node)).into(),
            table::age_cell(meta, now),
            info.kubelet_version.as_str().into(),
            address(status, "InternalIP").into(),
            address(status, "ExternalIP").into(),
            known(&info.os_image).into(),
            kernel.into(),
            known(&info.container_runtime_version).into(),
        ]
    }

    fn selectable(&self) -> &'static [&'static str] {
        &["spec.unschedulable"]
    }

    fn select(&self, object: &Value, field: &str) -> String {
        match field {
            "spec.unschedulable" if text_at(object, "/spec/unschedulable") == "true" => "true".to_owned(),
            "spec.unschedulable" => "false".to_owned(),
            _ => String::new(),
        }
    }
}

/// `podCIDR` is the old name of the first of `podCIDRs`; where they differ it wins.
fn default_pod_cidrs(spec: &mut NodeSpec) {
    let first = list(&spec.pod_cidrs).first().cloned();
    match spec.pod_cidr.as_deref().filter(|cidr| !cidr.is_empty()) {
        Some(cidr) if first.as_deref() != Some(cidr) => spec.pod_cidrs = Some(vec![cidr.to_owned()]),
        Some(_) => {}
        None => spec.pod_cidr = first,
    }
}

fn validate_taints(node: &Node, errors: &mut Errors) {
    let taints = node.spec.as_ref().map_or(&[] as &[Taint], |spec| list(&spec.taints));
    let at = METADATA.child("taints");
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let at = at.index(i);
        each_invalid(names::qualified(&taint.key), &taint.key, &at.child("key"), errors);
        let problems = names::label_value(text(&taint.value));
        if !problems.is_empty() {
            errors.invalid(&at.child("value").path(), text(&taint.value), problems.join(";"));
        }
        required_one_of(&taint.effect, &TAINT_EFFECTS, &at.child("effect"), errors);
        if !seen.insert((&taint.effect, &taint.key)) {
            let value = json!({"Key": taint.key, "Value": text(&taint.value), "Effect": taint.effect, "TimeAdded": taint.time_added});
            let detail = "taints must be unique by key and effect pair".to_owned();
            errors.0.push(Error { kind: Wrong::Duplicate, path: at.path(), value: Some(value), detail });
        }
    }
}

fn validate_resources(status: &NodeStatus, errors: &mut Errors) {
    for (field, resources) in [("capacity", &status.capacity), ("allocatable", &status.allocatable)] {
        let parent = Path::new("status").child(field);
        for (name, quantity) in resources.iter().flatten() {
            validate_quantity(name, quantity, &At::Path(&parent.child(name)), errors);
        }
    }
}

fn validate_features(status: &NodeStatus, errors: &mut Errors) {
    let at = STATUS.child("declaredFeatures");
    let features = list(&status.declared_features);
    for (i, feature) in features.iter().enumerate() {
        if let Some(problem) = feature_name_problem(feature) {
            let detail = format!("invalid feature name {}: {problem}", usher_schema::field::quote(feature));
            errors.invalid(&at.index(i).path(), feature.as_str(), detail);
        }
        match features.get(i + 1) {
            Some(next) if next == feature => errors.duplicate(&at.index(i + 1).path(), next.as_str()),
            Some(next) if next < feature => {
                errors.invalid(&at.index(i + 1).path(), next.as_str(), "list must be sorted alphabetically");
            }
            _ => {}
        }
    }
}

fn feature_name_problem(name: &str) -> Option<String> {
    if name.len() > FEATURE_NAME_MAX {
        return Some(names::max_len(FEATURE_NAME_MAX));
    }
    let segment = |segment: &str| {
        segment.starts_with(|c: char| c.is_ascii_alphabetic()) && segment.bytes().all(|c| c.is_ascii_alphanumeric())
    };
    let good = name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(segment);
    let rule = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' \
                (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";
    (!good).then(|| rule.to_owned())
}

fn validate_cidrs(cidrs: &[String], at: &At, errors: &mut Errors) {
    let mut families = Vec::new();
    for (i, cidr) in cidrs.iter().enumerate() {
        match parse_cidr(cidr) {
            Ok(v6) => families.push(v6),
            Err(problem) => errors.invalid(&at.index(i).path(), cidr.as_str(), problem),
        }
    }
    let pair = matches!(families.as_slice(), [a, b] if a != b);
    if cidrs.len() > 1 && !pair {
        errors.invalid(&at.path(), shown(&cidrs), "may specify no more than one CIDR for each IP family");
    }
}

/// Whether it is a range of IPv6 addresses, or what is wrong with it.
pub fn parse_cidr(cidr: &str) -> Result<bool, &'static str> {
    const BAD: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
    let (ip, prefix) = cidr.split_once('/').ok_or(BAD)?;
    let plain = |number: &str| match number.trim_start_matches('0') {
        "" if !number.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    let without_zeros: Vec<String> = ip.split('.').map(plain).collect();
    let address: IpAddr = match ip.parse() {
        Ok(address) => address,
        Err(_) => {
            without_zeros.join(".").parse::<std::net::Ipv4Addr>().map_err(|_| BAD)?;
            return Err("must not have leading 0s in IP or prefix length");
        }
    };
    let width = if address.is_ipv6() { 128 } else { 32 };
    let digits = !prefix.is_empty() && prefix.bytes().all(|c| c.is_ascii_digit());
    let bits = plain(prefix).parse::<u32>().ok().filter(|bits| digits && *bits <= width).ok_or(BAD)?;
    if prefix.len() > 1 && prefix.starts_with('0') {
        return Err("must not have leading 0s in IP or prefix length");
    }
    let rest = match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()).checked_shl(96 + bits),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => return Err("must not have an IPv4-mapped IPv6 address"),
        IpAddr::V6(v6) => v6.to_bits().checked_shl(bits),
    };
    if rest.unwrap_or(0) != 0 {
        return Err("must not have bits set beyond the prefix length");
    }
    Ok(address.is_ipv6())
}

/// What may not change, whichever part is written.
fn validate_change(new: &Node, old: &Node, errors: &mut Errors) {
    let empty = (NodeSpec::default(), NodeStatus::default());
    let (new_spec, old_spec) = (new.spec.as_ref().unwrap_or(&empty.0), old.spec.as_ref().unwrap_or(&empty.0));
    let status = new.status.as_ref().unwrap_or(&empty.1);
    validate_resources(status, errors);
    validate_features(status, errors);
    let mut seen = BTreeSet::new();
    for (i, address) in list(&status.addresses).iter().enumerate() {
        if !seen.insert((&address.type_, &address.address)) {
            let value = json!({"Type": address.type_, "Address": address.address});
            errors.duplicate(&STATUS.child("addresses").index(i).path(), value);
        }
    }
    let (new_cidrs, old_cidrs) = (list(&new_spec.pod_cidrs), list(&old_spec.pod_cidrs));
    let mut changed = old_cidrs.iter().zip(new_cidrs).filter(|(old, new)| old != new).count();
    if !old_cidrs.is_empty() && old_cidrs.len() != new_cidrs.len() {
        changed = 1;
    }
    for _ in 0..changed {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        errors.forbidden(&SPEC.child("podCIDRs").path(), detail);
    }
    let (new_id, old_id) = (text(&new_spec.provider_id), text(&old_spec.provider_id));
    if !old_id.is_empty() && new_id != old_id {
        let how = if new_id.is_empty() { "cleared" } else { "modified" };
        let detail = format!("field cannot be {how} once set");
        errors.invalid(&SPEC.child("providerID").path(), Value::Null, detail);
    }
    validate_taints(new, errors);
    if text(&new_spec.external_id) != text(&old_spec.external_id) {
        errors.forbidden(&SPEC.child("externalID").path(), "may not be updated");
    }
}

fn readiness(node: &Node) -> String {
    let conditions = node.status.as_ref().map_or(&[] as &[_], |status| list(&status.conditions));
    let mut out = match conditions.iter().rfind(|condition| condition.type_ == "Ready") {
        Some(ready) if ready.status == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node.spec.as_ref().is_some_and(|spec| is_true(spec.unschedulable)) {
        out.push_str(",SchedulingDisabled");
    }
    out
}

fn roles(node: &Node) -> Vec<String> {
    let mut roles = BTreeSet::new();
    for (key, value) in node.metadata.labels.iter().flatten() {
        if let Some(role) = key.strip_prefix(ROLE_PREFIX).filter(|role| !role.is_empty()) {
            roles.insert(role.to_owned());
        } else if key == ROLE_LABEL && !value.is_empty() {
            roles.insert(value.clone());
        }
    }
    roles.into_iter().collect()
}

fn address(status: Option<&NodeStatus>, kind: &str) -> String {
    let addresses = status.map_or(&[] as &[_], |status| list(&status.addresses));
    addresses.iter().find(|a| a.type_ == kind).map_or_else(|| "<none>".to_owned(), |a| a.address.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create, create_errors, merged, status_errors, update_errors};

    fn node(extra: Value) -> Value {
        merged(json!({"metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}}), extra)
    }

    fn update(new: Value, old: Value) -> Vec<String> {
        update_errors(&Nodes, &Gates::default(), node(new), node(old))
    }

    #[test]
    fn a_registering_node_keeps_its_status_and_can_give_all_it_has() {
        let (stored, errors) = create(&Nodes, node(json!({"status": {"capacity": {"cpu": "8000m", "pods": "110"}}})));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(stored["status"]["allocatable"], json!({"cpu": "8", "pods": "110"}));
        assert_eq!(stored["status"]["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 0}}));
        assert!(!Nodes.resource().has_status, "the server would drop it");
    }

    #[test]
    fn both_ways_to_give_a_pod_range_end_up_equal() {
        let cidrs = |spec: Value| {
            let stored = create(&Nodes, node(json!({"spec": spec}))).0;
            (stored["spec"]["podCIDR"].clone(), stored["spec"]["podCIDRs"].clone())
        };
        let (one, other) = (json!("10.0.0.0/24"), json!("10.0.1.0/24"));
        assert_eq!(cidrs(json!({"podCIDR": one})), (one.clone(), json!([one])));
        assert_eq!(cidrs(json!({"podCIDRs": [one]})), (one.clone(), json!([one])));
        assert_eq!(cidrs(json!({"podCIDR": other, "podCIDRs": [one]})), (other.clone(), json!([other])));
    }

    #[test]
    fn mistakes_are_refused() {
        for (extra, expected) in [
            (json!({"spec": {"taints": [{"key": "a"}]}}), "metadata.taints[0].effect: Required value"),
            (
                json!({"spec": {"taints": [{"key": "a", "effect": "Never"}]}}),
                "metadata.taints[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
            ),
            (
                json!({"status": {"capacity": {"cpu": "-1"}, "allocatable": {}}}),
                "status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0",
            ),
            (
                json!({"spec": {"podCIDRs": ["10.0.0.0/33"]}}),
                "spec.podCIDRs[0]: Invalid value: \"10.0.0.0/33\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ),
            (
                json!({"spec": {"podCIDRs": ["10.0.0.1/24"]}}),
                "spec.podCIDRs[0]: Invalid value: \"10.0.0.1/24\": must not have bits set beyond the prefix length",
            ),
            (
                json!({"spec": {"podCIDRs": ["10.00.0.0/24"]}}),
                "spec.podCIDRs[0]: Invalid value: \"10.00.0.0/24\": must not have leading 0s in IP or prefix length",
            ),
            (
                json!({"spec": {"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}}),
                "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one CIDR for each IP family",
            ),
            (
                json!({"status": {"declaredFeatures": ["B", "A"]}}),
                "status.declaredFeatures[1]: Invalid value: \"A\": list must be sorted alphabetically",
            ),
        ] {
            assert_eq!(create_errors(&Nodes, node(extra.clone())), [expected], "{extra}");
        }
        assert!(create_errors(&Nodes, node(json!({"spec": {"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}}))).is_empty());
        assert!(create_errors(&Nodes, node(json!({"spec": {"podCIDRs": ["0.0.0.0/0", "::/0"]}}))).is_empty());
    }

    #[test]
    fn a_taint_is_there_once() {
        let taint = json!({"key": "a", "effect": "NoSchedule"});
        let errors = create_errors(&Nodes, node(json!({"spec": {"taints": [taint, taint]}})));
        assert!(errors[0].starts_with("metadata.taints[1]: Duplicate value: {"), "{errors:?}");
        assert!(errors[0].ends_with("}: taints must be unique by key and effect pair"), "{errors:?}");
    }

    #[test]
    fn identity_stays_once_it_is_given() {
        assert!(update(json!({"spec": {"podCIDR": "10.0.0.0/24", "providerID": "x"}}), json!({})).is_empty());
        assert_eq!(
            update(json!({"spec": {"podCIDR": "10.0.1.0/24"}}), json!({"spec": {"podCIDR": "10.0.0.0/24"}})),
            ["spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"]
        );
        let old = json!({"spec": {"providerID": "x"}});
        assert_eq!(
            update(json!({"spec": {"providerID": "y"}}), old.clone()),
            ["spec.providerID: Invalid value: null: field cannot be modified once set"]
        );
        assert_eq!(update(json!({}), old), ["spec.providerID: Invalid value: null: field cannot be cleared once set"]);
    }

    #[test]
    fn status_addresses_are_unique() {
        let ip = json!({"type": "InternalIP", "address": "10.0.0.1"});
        let new = node(json!({"status": {"addresses": [ip, ip]}}));
        let errors = status_errors(&Nodes, new, node(json!({})));
        assert!(errors[0].starts_with("status.addresses[1]: Duplicate value: {"), "{errors:?}");
    }

    #[test]
    fn columns_read_like_kubectls() {
        assert_eq!(
            Value::Array(cells(&Nodes, node(json!({})))),
            json!(["n", "Unknown", "<none>", "60m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"])
        );
        let full = node(json!({
            "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "gpu"}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.37.0", "kernelVersion": "6.1", "architecture": "amd64", "osImage": "Linux",
                    "containerRuntimeVersion": "containerd://2"}}}));
        assert_eq!(
            Value::Array(cells(&Nodes, full)),
            json!([
                "n",
                "Ready,SchedulingDisabled",
                "gpu,worker",
                "60m",
                "v1.37.0",
                "10.0.0.1",
                "<none>",
                "Linux",
                "6.1 (amd64)",
                "containerd://2"
            ])
        );
        assert_eq!(Nodes.select(&json!({}), "spec.unschedulable"), "false");
    }
}
