//! From the API's objects to the model. What cannot be read (the server validates, but old objects may be anything) is
//! taken as kube-scheduler takes it: a term that does not parse matches nothing, a quantity that does not parse is zero.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use usher_api::quantity::Quantity;

use super::amounts::{Allocatable, Requests, is_counted};
use super::node::{Effect, Node, Taint};
use super::pod::{Aim, Links, Pod, PodTerm, Port, Said, Shape, Spread, Tolerates, Toleration};
use super::select::{NodeTerm, Operator, Requirement, Selector};
use super::shared::Interner;
use crate::runtime::Key;

/// The scheduler whose pods placement places.
pub const SCHEDULER: &str = "default-scheduler";
const NANOS: i128 = 1_000_000_000;
/// What a container that does not say counts for when nodes are compared.
const UNSAID_CPU: i128 = NANOS / 10;
const UNSAID_MEMORY: i128 = 200 * 1024 * 1024 * NANOS;

/// Lowers objects, and makes equal shapes one.
#[derive(Default)]
pub struct Lowering {
    aims: Interner<Aim>,
    links: Interner<Links>,
    shapes: Interner<Shape>,
}

impl Lowering {
    pub fn pod(&mut self, pod: &api::Pod) -> Pod {
        let meta = &pod.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let labels = meta.labels.clone().unwrap_or_default();
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let named = |name: Option<&String>| name.filter(|n| !n.is_empty()).map(|n| Arc::from(n.as_str()));
        let condition = |kind: &str| status?.conditions.as_ref()?.iter().find(|c| c.type_ == kind);
        let leaving = meta.deletion_timestamp.is_some();
        let disrupted = condition("DisruptionTarget")
            .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler"));
        Pod {
            key: Key::new(namespace, meta.name.as_deref().unwrap_or_default()),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            shape: self.shape(spec.unwrap_or(&api::PodSpec::default()), namespace, &labels),
            labels,
            created: meta.creation_timestamp.as_ref().map(|t| t.0),
            started: status.and_then(|s| s.start_time.as_ref()).map(|t| t.0),
            generation: meta.generation,
            node: named(spec.and_then(|s| s.node_name.as_ref())),
            nominated: named(status.and_then(|s| s.nominated_node_name.as_ref())),
            leaving,
            preempted: leaving && disrupted,
            gated: spec.and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty()),
            finished: matches!(phase, "Succeeded" | "Failed"),
            foreign: spec.and_then(|s| s.scheduler_name.as_deref()).is_some_and(|name| name != SCHEDULER),
            said: condition("PodScheduled").map(|c| Said {
                status: c.status.clone(),
                reason: c.reason.clone().unwrap_or_default(),
                message: c.message.clone().unwrap_or_default(),
                generation: c.observed_generation,
            }),
        }
    }

    fn shape(
        &mut self,
        spec: &api::PodSpec,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> super::Shared<Shape> {
        let (requests, nonzero) = requests(spec);
        let links = links(spec, namespace, labels);
        let shape = Shape {
            aim: self.aims.intern(aim(spec)),
            nonzero_cpu_milli: nonzero.cpu_milli,
            nonzero_memory: nonzero.memory,
            requests,
            ports: ports(spec),
            links: links.map(|links| self.links.intern(links)),
            priority: spec.priority.unwrap_or(0),
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
        };
        self.shapes.intern(shape)
    }
}

pub fn node(node: &api::Node) -> Node {
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|s| s.taints.as_ref()).into_iter().flatten();
    let mut allocatable = Allocatable::default();
    for (name, text) in node.status.as_ref().and_then(|s| s.allocatable.as_ref()).into_iter().flatten() {
        let nanos = nanos(text);
        match name.as_str() {
            "cpu" => allocatable.cpu_milli = up(nanos, NANOS / 1000),
            "memory" => allocatable.memory = up(nanos, NANOS),
            "ephemeral-storage" => allocatable.storage = up(nanos, NANOS),
            "pods" => allocatable.pods = up(nanos, NANOS),
            other if is_counted(other) => drop(allocatable.extended.insert(other.into(), up(nanos, NANOS))),
            _ => {}
        }
    }
    Node {
        name: node.metadata.name.as_deref().unwrap_or_default().into(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        taints: taints
            .filter_map(|t| {
                let effect = effect(&t.effect)?;
                Some(Taint { key: t.key.clone(), value: t.value.clone().unwrap_or_default(), effect })
            })
            .collect(),
        unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
        allocatable,
    }
}

fn effect(text: &str) -> Option<Effect> {
    Some(match text {
        "NoSchedule" => Effect::NoSchedule,
        "PreferNoSchedule" => Effect::PreferNoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => return None,
    })
}

fn nanos(text: &Text) -> i128 {
    Quantity::parse(&text.0).map_or(0, |quantity| quantity.nanos().max(0))
}

/// Rounded up, as upstream's integers are.
fn up(nanos: i128, unit: i128) -> i64 {
    i64::try_from((nanos + unit - 1) / unit).unwrap_or(i64::MAX)
}

type Sum<'a> = BTreeMap<&'a str, i128>;
type Texts = BTreeMap<String, Text>;

/// What the pod asks for, and the same with a little for containers that do not say.
fn requests(spec: &api::PodSpec) -> (Requests, Requests) {
    let plain = total(spec, None);
    let level = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let whole = level.is_some_and(|texts| texts.keys().any(|name| is_pod_level(name)));
    let mut unsaid = Sum::from([("cpu", UNSAID_CPU), ("memory", UNSAID_MEMORY)]);
    if whole {
        unsaid.retain(|name, _| !plain.contains_key(name));
    }
    (lowered(&plain), lowered(&total(spec, Some(&unsaid))))
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Containers run together, init containers one after the other beside the sidecars started before them.
fn total<'a>(spec: &'a api::PodSpec, unsaid: Option<&Sum<'static>>) -> Sum<'a> {
    let of = |container: &'a api::Container| -> Sum<'a> {
        let texts = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let mut sum: Sum = texts.into_iter().flatten().map(|(name, text)| (name.as_str(), nanos(text))).collect();
        for (name, amount) in unsaid.into_iter().flatten() {
            sum.entry(*name).or_insert(*amount);
        }
        sum
    };
    let mut all = Sum::new();
    spec.containers.iter().for_each(|container| add(&mut all, &of(container)));
    let (mut sidecars, mut peak) = (Sum::new(), Sum::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let meanwhile = if container.restart_policy.as_deref() == Some("Always") {
            add(&mut all, &own);
            add(&mut sidecars, &own);
            sidecars.clone()
        } else {
            let mut meanwhile = own;
            add(&mut meanwhile, &sidecars);
            meanwhile
        };
        raise(&mut peak, &meanwhile);
    }
    raise(&mut all, &peak);
    if let Some(texts) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        let level = texts.iter().filter(|(name, _)| is_pod_level(name));
        all.extend(level.map(|(name, text)| (name.as_str(), nanos(text))));
    }
    add_texts(&mut all, spec.overhead.as_ref());
    all
}

fn add<'a>(sum: &mut Sum<'a>, more: &Sum<'a>) {
    for (name, amount) in more {
        *sum.entry(*name).or_default() += *amount;
    }
}

fn add_texts<'a>(sum: &mut Sum<'a>, texts: Option<&'a Texts>) {
    for (name, text) in texts.into_iter().flatten() {
        *sum.entry(name.as_str()).or_default() += nanos(text);
    }
}

fn raise<'a>(sum: &mut Sum<'a>, to: &Sum<'a>) {
    for (name, amount) in to {
        let own = sum.entry(*name).or_default();
        *own = (*own).max(*amount);
    }
}

fn lowered(sum: &Sum) -> Requests {
    let mut requests = Requests::default();
    for (name, amount) in sum {
        match *name {
            "cpu" => requests.cpu_milli = up(*amount, NANOS / 1000),
            "memory" => requests.memory = up(*amount, NANOS),
            "ephemeral-storage" => requests.storage = up(*amount, NANOS),
            other if is_counted(other) => requests.extended.push((other.into(), up(*amount, NANOS))),
            _ => {}
        }
    }
    requests
}

fn ports(spec: &api::PodSpec) -> Vec<Port> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut ports: Vec<Port> = sidecars
        .chain(&spec.containers)
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| {
            let port = p.host_port.filter(|port| *port > 0)?;
            let address = p.host_ip.as_deref().filter(|ip| *ip != "0.0.0.0").unwrap_or_default().to_string();
            let protocol = p.protocol.as_deref().filter(|p| !p.is_empty()).unwrap_or("TCP").to_string();
            Some(Port { protocol, port, address })
        })
        .collect();
    ports.sort();
    ports
}

fn aim(spec: &api::PodSpec) -> Aim {
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let selector = spec.node_selector.iter().flatten();
    Aim {
        node_selector: selector.map(|(key, value)| Requirement::equals(key, value)).collect(),
        required: required.map(|r| r.node_selector_terms.iter().filter_map(node_term).collect()),
        names: required.and_then(|r| names(&r.node_selector_terms)),
        preferred: preferred
            .into_iter()
            .flatten()
            .filter(|term| term.weight != 0)
            .filter_map(|term| Some((i64::from(term.weight), node_term(&term.preference)?)))
            .collect(),
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
    }
}

fn toleration(t: &api::Toleration) -> Toleration {
    let known = t.effect.as_deref().filter(|e| !e.is_empty()).map(effect);
    let operator = match t.operator.as_deref().unwrap_or_default() {
        _ if known == Some(None) => Tolerates::Nothing,
        "" | "Equal" => Tolerates::Equal,
        "Exists" => Tolerates::Exists,
        "Lt" => Tolerates::Lt,
        "Gt" => Tolerates::Gt,
        _ => Tolerates::Nothing,
    };
    Toleration {
        key: t.key.clone().unwrap_or_default(),
        operator,
        value: t.value.clone().unwrap_or_default(),
        effect: known.flatten(),
    }
}

/// `None` for a term that matches no node: an empty one, or one that cannot be read.
fn node_term(term: &api::NodeSelectorTerm) -> Option<NodeTerm> {
    let (labels, fields) =
        (term.match_expressions.as_deref().unwrap_or(&[]), term.match_fields.as_deref().unwrap_or(&[]));
    if labels.is_empty() && fields.is_empty() {
        return None;
    }
    let labels = labels.iter().map(|r| requirement(&r.key, &r.operator, r.values.as_deref())).collect::<Option<_>>()?;
    let names = fields.iter().map(field).collect::<Option<Vec<_>>>()?;
    Some(NodeTerm { labels: Selector(labels), names })
}

fn requirement(key: &str, operator: &str, values: Option<&[String]>) -> Option<Requirement> {
    let values = values.unwrap_or(&[]);
    let operator = Operator::parse(operator)?;
    let fits = match operator {
        Operator::In | Operator::NotIn => !values.is_empty(),
        Operator::Exists | Operator::DoesNotExist => values.is_empty(),
        Operator::Gt | Operator::Lt => values.len() == 1 && values[0].parse::<i64>().is_ok(),
    };
    fits.then(|| Requirement { key: key.to_string(), operator, values: values.iter().cloned().collect() })
}

/// A node has one field, its name; any other is empty.
fn field(r: &api::NodeSelectorRequirement) -> Option<(bool, String)> {
    let [value] = r.values.as_deref()? else { return None };
    let equal = match r.operator.as_str() {
        "In" => true,
        "NotIn" => false,
        _ => return None,
    };
    (r.key == "metadata.name").then(|| (equal, value.clone()))
}

/// The node names that terms with `metadata.name` leave, when every term has one.
fn names(terms: &[api::NodeSelectorTerm]) -> Option<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for term in terms {
        let mut named: Option<BTreeSet<String>> = None;
        for r in term.match_fields.iter().flatten().filter(|r| r.key == "metadata.name" && r.operator == "In") {
            let values: BTreeSet<String> = r.values.iter().flatten().cloned().collect();
            named = Some(match named {
                Some(before) => before.intersection(&values).cloned().collect(),
                None => values,
            });
        }
        all.extend(named?);
    }
    (!terms.is_empty()).then_some(all)
}

/// As upstream reads label selectors: absent selects nothing, empty everything, and what cannot be read nothing.
fn selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    let selector = selector?;
    let labels = selector.match_labels.iter().flatten().map(|(k, v)| Some(Requirement::equals(k, v)));
    let expressions = selector.match_expressions.iter().flatten().map(|r| {
        let known = matches!(r.operator.as_str(), "In" | "NotIn" | "Exists" | "DoesNotExist");
        known.then(|| requirement(&r.key, &r.operator, r.values.as_deref())).flatten()
    });
    labels.chain(expressions).collect::<Option<Vec<_>>>().map(Selector)
}

fn pod_term(term: &api::PodAffinityTerm, namespace: &str) -> Arc<PodTerm> {
    let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
    if namespaces.is_empty() && term.namespace_selector.is_none() {
        namespaces.insert(namespace.to_string());
    }
    Arc::new(PodTerm {
        namespaces,
        namespace_selector: selector(term.namespace_selector.as_ref()),
        selector: selector(term.label_selector.as_ref()),
        topology_key: term.topology_key.clone(),
    })
}

fn links(spec: &api::PodSpec, namespace: &str, labels: &BTreeMap<String, String>) -> Option<Links> {
    let near = spec.affinity.as_ref().and_then(|a| a.pod_affinity.as_ref());
    let apart = spec.affinity.as_ref().and_then(|a| a.pod_anti_affinity.as_ref());
    let near_required = near.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let apart_required = apart.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let near_preferred = near.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let apart_preferred = apart.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let term = |term: &api::PodAffinityTerm| pod_term(term, namespace);
    let weighted = |sign: i64| {
        move |w: &api::WeightedPodAffinityTerm| (sign * i64::from(w.weight), pod_term(&w.pod_affinity_term, namespace))
    };
    let spread = |action: &str| -> Vec<Spread> {
        let all = spec.topology_spread_constraints.iter().flatten();
        all.filter(|c| c.when_unsatisfiable == action).map(|c| lower_spread(c, labels)).collect()
    };
    let links = Links {
        namespace: namespace.to_string(),
        affinity: near_required.into_iter().flatten().map(term).collect(),
        anti_affinity: apart_required.into_iter().flatten().map(term).collect(),
        preferred: (near_preferred.into_iter().flatten().map(weighted(1)))
            .chain(apart_preferred.into_iter().flatten().map(weighted(-1)))
            .collect(),
        spread: spread("DoNotSchedule"),
        spread_preferred: spread("ScheduleAnyway"),
    };
    let none = Links { namespace: links.namespace.clone(), ..Links::default() };
    (links != none).then_some(links)
}

fn lower_spread(c: &api::TopologySpreadConstraint, labels: &BTreeMap<String, String>) -> Spread {
    let mut chosen = selector(c.label_selector.as_ref());
    if let Some(chosen) = &mut chosen {
        let keys = c.match_label_keys.iter().flatten();
        chosen.0.extend(keys.filter_map(|key| Some(Requirement::equals(key, labels.get(key)?))));
    }
    let honors = |policy: Option<&str>, unsaid: bool| policy.map_or(unsaid, |policy| policy == "Honor");
    Spread {
        max_skew: i64::from(c.max_skew),
        topology_key: c.topology_key.clone(),
        selector: chosen,
        min_domains: i64::from(c.min_domains.unwrap_or(1)),
        honor_affinity: honors(c.node_affinity_policy.as_deref(), true),
        honor_taints: honors(c.node_taints_policy.as_deref(), false),
    }
}
