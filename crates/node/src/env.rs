//! A container's environment and command line: variables from every source, and `$(NAME)` in them. Pure; what has to be
//! fetched first is said by [`Needs`].

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Container, ObjectFieldSelector, Pod, ResourceFieldSelector, Secret};
use usher_api::quantity::Quantity;

use crate::decide::Host;

/// The objects that a pod's variables and volumes are made from, by name. What is not there does not exist.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub config_maps: BTreeMap<String, ConfigMap>,
    pub secrets: BTreeMap<String, Secret>,
}

/// Names of objects to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

impl Needs {
    pub fn of_container(container: &Container) -> Needs {
        let mut needs = Needs::default();
        for from in container.env_from.iter().flatten() {
            needs.config_maps.extend(from.config_map_ref.as_ref().map(|r| r.name.clone()));
            needs.secrets.extend(from.secret_ref.as_ref().map(|r| r.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
            needs.config_maps.extend(source.config_map_key_ref.as_ref().map(|r| r.name.clone()));
            needs.secrets.extend(source.secret_key_ref.as_ref().map(|r| r.name.clone()));
        }
        needs
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("couldn't find key {key} in ConfigMap {namespace}/{name}")]
    NoConfigMapKey { namespace: String, name: String, key: String },
    #[error("couldn't find key {key} in Secret {namespace}/{name}")]
    NoSecretKey { namespace: String, name: String, key: String },
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("container {0} not found")]
    NoContainer(String),
    #[error("the source of variable {0} is not supported on this node")]
    Source(String),
}

pub type Variables = BTreeMap<String, String>;

/// The container's own variables over `given`, which the node provides.
pub fn variables(
    pod: &Pod,
    container: &Container,
    given: Variables,
    objects: &Objects,
    host: &Host,
) -> Result<Variables, Problem> {
    let mut own = Variables::new();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &from.config_map_ref {
            match objects.config_maps.get(&reference.name) {
                Some(map) => own
                    .extend(map.data.iter().flatten().map(|(name, value)| (format!("{prefix}{name}"), value.clone()))),
                None if reference.optional == Some(true) => {}
                None => return Err(Problem::NoConfigMap(reference.name.clone())),
            }
        }
        if let Some(reference) = &from.secret_ref {
            match objects.secrets.get(&reference.name) {
                Some(secret) => {
                    own.extend(secret.data.iter().flatten().map(|(name, value)| {
                        (format!("{prefix}{name}"), String::from_utf8_lossy(&value.0).into_owned())
                    }))
                }
                None if reference.optional == Some(true) => {}
                None => return Err(Problem::NoSecret(reference.name.clone())),
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(text), _) if !text.is_empty() => {
                Some(expand(text, |name| own.get(name).or_else(|| given.get(name)).cloned()))
            }
            (_, None) => Some(String::new()),
            (_, Some(source)) => {
                if let Some(field) = &source.field_ref {
                    Some(field_value(pod, field, host)?)
                } else if let Some(resource) = &source.resource_field_ref {
                    Some(resource_value(pod, Some(container), resource, host)?)
                } else if let Some(key) = &source.config_map_key_ref {
                    let optional = key.optional == Some(true);
                    match objects.config_maps.get(&key.name) {
                        None if optional => None,
                        None => return Err(Problem::NoConfigMap(key.name.clone())),
                        Some(map) => match map.data.as_ref().and_then(|d| d.get(&key.key)) {
                            None if optional => None,
                            None => {
                                let (name, key) = (key.name.clone(), key.key.clone());
                                return Err(Problem::NoConfigMapKey { namespace: namespace.to_owned(), name, key });
                            }
                            Some(value) => Some(value.clone()),
                        },
                    }
                } else if let Some(key) = &source.secret_key_ref {
                    let optional = key.optional == Some(true);
                    match objects.secrets.get(&key.name) {
                        None if optional => None,
                        None => return Err(Problem::NoSecret(key.name.clone())),
                        Some(secret) => match secret.data.as_ref().and_then(|d| d.get(&key.key)) {
                            None if optional => None,
                            None => {
                                let (name, key) = (key.name.clone(), key.key.clone());
                                return Err(Problem::NoSecretKey { namespace: namespace.to_owned(), name, key });
                            }
                            Some(value) => Some(String::from_utf8_lossy(&value.0).into_owned()),
                        },
                    }
                } else {
                    return Err(Problem::Source(variable.name.clone()));
                }
            }
        };
        if let Some(value) = value {
            own.insert(variable.name.clone(), value);
        }
    }
    let mut all = given;
    all.extend(own);
    Ok(all)
}

/// Replaces `$(NAME)` where the name is known; `$$` is a dollar sign.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        match rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            Some((name, after)) => {
                match lookup(name) {
                    Some(value) => out.push_str(&value),
                    None => out.push_str(&format!("$({name})")),
                }
                rest = after;
            }
            None => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

/// What runs: `command`, then `args`. An image's entrypoint is not known here, so that `args` alone are the command, as for an
/// image without one. `None` when there is nothing to run.
pub fn command_line(container: &Container, variables: &Variables) -> Option<Vec<String>> {
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    let argv: Vec<String> = words.map(|word| expand(word, |name| variables.get(name).cloned())).collect();
    (!argv.is_empty()).then_some(argv)
}

pub fn field_value(pod: &Pod, field: &ObjectFieldSelector, host: &Host) -> Result<String, Problem> {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let path = field.field_path.as_str();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(Problem::Field(path.to_owned())),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    let spec = pod.spec.as_ref();
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => spec.and_then(|s| s.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default(),
        // All processes of a machine share its address.
        "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => host.ip.clone(),
        other => return Err(Problem::Field(other.to_owned())),
    })
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n")
}

pub fn resource_value(
    pod: &Pod,
    container: Option<&Container>,
    field: &ResourceFieldSelector,
    host: &Host,
) -> Result<String, Problem> {
    let spec = pod.spec.as_ref();
    let named = field.container_name.as_deref().filter(|n| !n.is_empty());
    let container = match named {
        None => container,
        Some(name) => spec
            .into_iter()
            .flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()))
            .find(|c| c.name == name),
    };
    let container = container.ok_or_else(|| Problem::NoContainer(field.container_name.clone().unwrap_or_default()))?;
    let unsupported = || Problem::Resource(field.resource.clone());
    let (list, resource) = field.resource.split_once('.').ok_or_else(unsupported)?;
    if !matches!(resource, "cpu" | "memory" | "ephemeral-storage") && !resource.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let resources = container.resources.as_ref();
    let amounts = match list {
        "limits" => resources.and_then(|r| r.limits.as_ref()),
        "requests" => resources.and_then(|r| r.requests.as_ref()),
        _ => return Err(unsupported()),
    };
    let parse = |text: &str| Quantity::parse(text).map_err(|_| unsupported());
    let amount = match amounts.and_then(|a| a.get(resource)) {
        Some(amount) => parse(&amount.0)?,
        // Without a limit of its own, a container is limited by the machine.
        None if list == "limits" => host.allocatable.get(resource).copied().unwrap_or(Quantity::ZERO),
        None => Quantity::ZERO,
    };
    let divisor = field.divisor.as_ref().map(|d| parse(&d.0)).transpose()?.filter(|d| !d.is_zero());
    let divisor = divisor.unwrap_or(Quantity::from_units(1, Default::default()));
    let (value, by) = match resource {
        "cpu" => (amount.milli(), divisor.milli()),
        _ => (amount.units(), divisor.units()),
    };
    let by = by.max(1);
    Ok((value / by + i64::from(value % by > 0)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(container: Value) -> (Pod, Container) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "1", "b": "x\"y"}},
            "spec": {"nodeName": "n", "serviceAccountName": "sa", "containers": [container]}}))
        .unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        (pod, container)
    }

    fn env(container: Value, objects: &Objects) -> Result<Variables, Problem> {
        let (pod, container) = pod(container);
        let host = Host {
            ip: "10.1.2.3".into(),
            allocatable: BTreeMap::from([("cpu".to_owned(), Quantity::parse("4").unwrap())]),
        };
        variables(&pod, &container, Variables::from([("GIVEN".into(), "g".into())]), objects, &host)
    }

    #[test]
    fn dollar_parentheses_are_replaced_where_the_name_is_known() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("x$(A)y", "x1y"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A $(", "$A $("),
            ("$(A", "$(A"),
            ("$", "$"),
            ("$()", "$()"),
            ("$($(A))", "$($(A))"),
        ] {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
    }

    #[test]
    fn variables_come_from_every_source_and_see_those_before_them() {
        let objects = Objects {
            config_maps: BTreeMap::from([(
                "cm".to_owned(),
                serde_json::from_value(json!({"data": {"K": "v", "GIVEN": "from the map"}})).unwrap(),
            )]),
            secrets: BTreeMap::from([(
                "s".to_owned(),
                serde_json::from_value(json!({"data": {"T": "aGk="}})).unwrap(),
            )]),
        };
        let container = json!({"name": "c",
            "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1500m"}},
            "envFrom": [{"configMapRef": {"name": "cm"}, "prefix": "P_"}, {"secretRef": {"name": "gone", "optional": true}}],
            "env": [
                {"name": "A", "value": "$(P_K)-$(GIVEN)-$(LATER)"},
                {"name": "LATER", "value": "x"},
                {"name": "GIVEN", "value": "own"},
                {"name": "EMPTY"},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
                {"name": "MACHINE", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "T"}}},
                {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "no", "optional": true}}}]});
        let all = env(container, &objects).unwrap();
        let expected = [
            ("A", "v-g-$(LATER)"),
            ("LATER", "x"),
            ("GIVEN", "own"),
            ("EMPTY", ""),
            ("NAME", "p"),
            ("LABEL", "1"),
            ("IP", "10.1.2.3"),
            ("MEM", "1024"),
            ("CPU", "2"),
            ("MACHINE", "4"),
            ("S", "hi"),
            ("P_K", "v"),
            ("P_GIVEN", "from the map"),
        ];
        let expected: Variables = expected.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn what_is_missing_is_named() {
        let from = |source: Value| json!({"name": "c", "env": [{"name": "A", "valueFrom": source}]});
        let none = Objects::default();
        let map =
            Objects { config_maps: BTreeMap::from([("cm".to_owned(), ConfigMap::default())]), ..Objects::default() };
        for (container, objects, expected) in [
            (from(json!({"configMapKeyRef": {"name": "cm", "key": "k"}})), &none, "configmap \"cm\" not found"),
            (from(json!({"secretKeyRef": {"name": "s", "key": "k"}})), &none, "secret \"s\" not found"),
            (
                from(json!({"configMapKeyRef": {"name": "cm", "key": "k"}})),
                &map,
                "couldn't find key k in ConfigMap ns/cm",
            ),
            (
                from(json!({"resourceFieldRef": {"resource": "limits.gpu"}})),
                &none,
                "unsupported container resource : limits.gpu",
            ),
        ] {
            assert_eq!(env(container, objects).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn args_alone_are_the_command() {
        let line = |container: Value| {
            let (_, container) = pod(container);
            command_line(&container, &Variables::from([("A".into(), "1".into())]))
        };
        assert_eq!(line(json!({"name": "c", "args": ["echo", "$(A)"]})).unwrap(), ["echo", "1"]);
        assert_eq!(line(json!({"name": "c", "command": ["sh"], "args": ["-c", "x"]})).unwrap(), ["sh", "-c", "x"]);
        assert_eq!(line(json!({"name": "c"})), None);
    }
}
