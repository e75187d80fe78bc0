//! The planner against a naive one that looks at everything, and the rules about who is looked at when.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as api;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::decide::{Decision, Planner};
use super::fit::Mismatch;
use super::model::{Effect, Lowering, Node, Pod, Taint, lower};
use super::reason::{Preemption, Unfit, render};
use crate::runtime::Key;

// ---- a world in a few lines

#[derive(Default)]
struct World {
    planner: Planner,
    lowering: Lowering,
    created: u32,
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from.clone(),
    }
}

fn node(name: &str, cpu: u32, more: Value) -> Node {
    let mut object = json!({"metadata": {"name": name, "labels": {"host": name}},
        "status": {"allocatable": {"cpu": cpu.to_string(), "memory": "1Gi", "pods": "9"}}});
    merge(&mut object, &more);
    lower::node(&serde_json::from_value::<api::Node>(object).expect("a node"))
}

impl World {
    fn pod(&mut self, name: &str, cpu: u32, more: Value) -> Pod {
        self.created += 1;
        let created = format!("2026-01-01T00:{:02}:{:02}Z", self.created / 60, self.created % 60);
        let requests = if cpu == 0 { json!({}) } else { json!({"cpu": cpu.to_string()}) };
        let mut object = json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "creationTimestamp": created, "labels": {}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}});
        merge(&mut object, &more);
        self.lowering.pod(&serde_json::from_value::<api::Pod>(object).expect("a pod"))
    }

    fn add(&mut self, name: &str, cpu: u32, more: Value) {
        let pod = self.pod(name, cpu, more);
        self.planner.set_pod(pod);
    }

    fn remove(&mut self, name: &str) {
        self.planner.remove_pod(&Key::new("n", name));
    }

    /// Decides until nothing is left; `pod>node`, or `pod:` and the words.
    fn decide(&mut self) -> Vec<String> {
        let said = |decision: &Decision| match decision {
            Decision::Bind { pod, node } => format!("{}>{node}", pod.key.name),
            Decision::Wait { pod, unfit, victims, .. } => {
                let victims: Vec<&str> = victims.iter().map(|v| &*v.key.name).collect();
                let short = match unfit {
                    Unfit::Nodes { preemption: Preemption::Waiting, .. } => "waits".to_string(),
                    _ if !victims.is_empty() => format!("ends {}", victims.join(",")),
                    _ => "no".to_string(),
                };
                format!("{}:{short}", pod.key.name)
            }
        };
        let mut all = Vec::new();
        loop {
            let decisions = self.planner.decide(3);
            if decisions.is_empty() {
                return all;
            }
            all.extend(decisions.iter().map(said));
        }
    }
}

fn one_node(cpu: u32) -> World {
    let mut world = World::default();
    world.planner.set_node(node("a", cpu, json!({})));
    world
}

fn priority(value: i32) -> Value {
    json!({"spec": {"priority": value}})
}

#[test]
fn the_more_important_goes_first_then_the_older() {
    let mut world = one_node(2);
    world.add("old", 1, json!({}));
    world.add("young", 1, json!({}));
    world.add("important", 1, priority(5));
    assert_eq!(world.decide(), ["important>a", "old>a", "young:no"]);
}

#[test]
fn nothing_is_decided_twice_without_a_change_that_could_help() {
    let mut world = one_node(2);
    world.add("big", 3, json!({}));
    world.add("other", 1, json!({}));
    assert_eq!(world.decide(), ["big:no", "other>a"]);
    world.remove("other");
    world.planner.set_node(node("a", 2, json!({"metadata": {"labels": {"new": "label"}}})));
    world.planner.set_node(node("cordoned", 9, json!({"spec": {"unschedulable": true}})));
    assert!(world.decide().is_empty(), "nothing of that makes room for 3");
    world.planner.set_node(node("cordoned", 9, json!({})));
    assert_eq!(world.decide(), ["big>cordoned"]);
}

#[test]
fn of_equal_pods_as_many_are_looked_at_as_find_room() {
    let mut world = one_node(2);
    for name in ["a1", "a2"] {
        world.add(name, 1, json!({}));
    }
    for name in ["p1", "p2", "p3", "p4"] {
        world.add(name, 1, json!({}));
    }
    assert_eq!(world.decide(), ["a1>a", "a2>a", "p1:no", "p2:no", "p3:no", "p4:no"]);
    world.remove("a1");
    assert_eq!(world.decide(), ["p1>a", "p2:no"]);
    world.remove("a2");
    world.remove("p1");
    assert_eq!(world.decide(), ["p2>a", "p3>a", "p4:no"]);
}

#[test]
fn a_pod_looks_again_when_it_changes_itself() {
    let mut world = one_node(2);
    world.add("p", 1, json!({"spec": {"nodeSelector": {"x": "y"}}}));
    assert_eq!(world.decide(), ["p:no"]);
    world.add("p", 1, json!({"spec": {"nodeSelector": {"x": "y"}}, "status": {"phase": "Pending", "conditions": []}}));
    assert!(world.decide().is_empty(), "a status is no change");
    world.add("p", 1, json!({"spec": {"nodeSelector": {"host": "a"}}}));
    assert_eq!(world.decide(), ["p>a"]);
}

#[test]
fn gated_foreign_and_leaving_pods_are_left_alone() {
    let mut world = one_node(9);
    world.add("gated", 1, json!({"spec": {"schedulingGates": [{"name": "g"}]}}));
    world.add("foreign", 1, json!({"spec": {"schedulerName": "mine"}}));
    world.add("leaving", 1, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert!(world.decide().is_empty());
    world.add("gated", 1, json!({}));
    assert_eq!(world.decide(), ["gated>a"]);
}

#[test]
fn what_was_refused_is_given_back_and_tried_again_when_asked() {
    let mut world = one_node(1);
    world.add("first", 1, json!({}));
    world.add("second", 1, json!({}));
    assert_eq!(world.decide(), ["first>a", "second:no"]);
    world.planner.refused(&Key::new("n", "first"), "another");
    assert!(world.decide().is_empty(), "a refusal of another pod of that name");
    world.planner.refused(&Key::new("n", "first"), "first");
    assert_eq!(world.decide(), ["second>a"]);
    world.planner.retry(&Key::new("n", "first"));
    assert_eq!(world.decide(), ["first:no"]);
}

#[test]
fn a_pod_bound_by_somebody_else_takes_its_room() {
    let mut world = one_node(1);
    world.add("elsewhere", 1, json!({"spec": {"nodeName": "a"}}));
    world.add("p", 1, json!({}));
    assert_eq!(world.decide(), ["p:no"]);
    world.add("elsewhere", 1, json!({"spec": {"nodeName": "a"}, "status": {"phase": "Succeeded"}}));
    assert_eq!(world.decide(), ["p>a"]);
}

#[test]
fn the_least_important_is_preempted_and_nobody_twice() {
    let mut world = one_node(3);
    world.add("low", 1, priority(1));
    world.add("middle", 2, priority(2));
    assert_eq!(world.decide(), ["middle>a", "low>a"]);
    world.add("high", 1, priority(9));
    assert_eq!(world.decide(), ["high:ends low"]);
    world.add("same", 1, priority(9));
    assert_eq!(world.decide(), ["same:ends middle"], "the room of `low` is for `high`");
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "a"}});
    world.add("low", 1, {
        let mut p = priority(1);
        merge(&mut p, &leaving);
        p
    });
    assert!(world.decide().is_empty(), "that it is leaving gives no room yet");
    world.remove("low");
    assert_eq!(
        world.decide(),
        ["high:waits", "same:waits"],
        "as long as both wait for the node, it needs room for both"
    );
    world.add("rival", 1, priority(5));
    assert_eq!(world.decide(), ["rival:ends middle"], "once `middle` is gone there is room for all three");
    world.remove("middle");
    assert_eq!(world.decide(), ["high>a", "same>a", "rival>a"]);
}

#[test]
fn who_waits_for_a_victim_takes_another_place_when_one_comes() {
    let mut world = one_node(1);
    world.add("low", 1, priority(1));
    assert_eq!(world.decide(), ["low>a"]);
    world.add("high", 1, priority(9));
    assert_eq!(world.decide(), ["high:ends low"]);
    world.planner.set_node(node("small", 0, json!({})));
    world.planner.retry(&Key::new("n", "high"));
    assert_eq!(world.decide(), ["high:waits"]);
    world.planner.set_node(node("b", 1, json!({})));
    assert_eq!(world.decide(), ["high>b"]);
}

#[test]
fn less_important_pods_that_waited_for_the_node_look_elsewhere() {
    let mut world = one_node(1);
    world.add("low", 1, priority(1));
    assert_eq!(world.decide(), ["low>a"]);
    world.add("middle", 1, priority(5));
    assert_eq!(world.decide(), ["middle:ends low"]);
    world.add("high", 1, priority(9));
    assert_eq!(world.decide(), ["high:ends low", "middle:no"]);
    world.remove("low");
    assert_eq!(world.decide(), ["high>a", "middle:no"]);
}

#[test]
fn anti_affinity_wakes_those_whose_rival_went() {
    let mut world = one_node(9);
    let apart = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "host"}]}}}});
    world.add("one", 1, apart.clone());
    world.add("two", 1, apart.clone());
    world.add("three", 1, json!({"metadata": {"labels": {"app": "x"}}}));
    world.add("free", 1, json!({}));
    assert_eq!(world.decide(), ["one>a", "two:no", "three:no", "free>a"]);
    world.remove("free");
    assert_eq!(world.decide(), ["two:no", "three:no"], "room came, but that is not what they lack");
    world.remove("one");
    assert_eq!(world.decide(), ["two>a", "three:no"]);
    world.remove("two");
    assert_eq!(world.decide(), ["three>a"]);
}

#[test]
fn words_are_sorted_with_their_counts_as_text() {
    let lacks =
        BTreeMap::from([(Mismatch::Taint, 2), (Mismatch::Insufficient("cpu".into()), 10), (Mismatch::TooManyPods, 9)]);
    let unfit = Unfit::Nodes { nodes: 20, lacks, preemption: Preemption::Never };
    let expected = "0/20 nodes are available: 10 Insufficient cpu, 2 node(s) had untolerated taint(s), 9 Too many pods. \
        preemption: not eligible due to preemptionPolicy=Never.";
    assert_eq!(render(&unfit), expected);
}

// ---- a planner that looks at everything

#[derive(Default)]
struct Naive {
    nodes: BTreeMap<String, Node>,
    placed: BTreeMap<String, (Pod, String)>,
    pending: BTreeMap<String, Pod>,
}

impl Naive {
    fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Pod> {
        self.placed.values().filter(move |(_, on)| on == node).map(|(pod, _)| pod)
    }

    fn lacks(&self, node: &Node, pod: &Pod) -> Vec<Mismatch> {
        let aim = &pod.shape.aim;
        let cordon =
            Taint { key: "node.kubernetes.io/unschedulable".into(), value: "".into(), effect: Effect::NoSchedule };
        if node.unschedulable && !aim.tolerates(&cordon) {
            return vec![Mismatch::Unschedulable];
        }
        if node.taints.iter().any(|t| t.effect != Effect::PreferNoSchedule && !aim.tolerates(t)) {
            return vec![Mismatch::Taint];
        }
        if !aim.node_selector.iter().all(|r| r.matches(&node.labels)) {
            return vec![Mismatch::NodeAffinity];
        }
        let taken =
            |port: &super::model::Port| self.on(&node.name).any(|o| o.shape.ports.iter().any(|p| p.conflicts(port)));
        if pod.shape.ports.iter().any(taken) {
            return vec![Mismatch::Ports];
        }
        let mut short = vec![];
        if self.on(&node.name).count() as i64 >= node.allocatable.pods {
            short.push(Mismatch::TooManyPods);
        }
        let cpu: i64 = self.on(&node.name).map(|other| other.shape.requests.cpu_milli).sum();
        let wants = pod.shape.requests.cpu_milli;
        if wants > 0 && cpu + wants > node.allocatable.cpu_milli {
            short.push(Mismatch::Insufficient("cpu".into()));
        }
        if !short.is_empty() {
            return short;
        }
        self.lacks_by_others(node, pod).into_iter().collect()
    }

    fn lacks_by_others(&self, node: &Node, pod: &Pod) -> Option<Mismatch> {
        let none = BTreeMap::new();
        let others = || self.placed.values().filter_map(|(other, on)| Some((other, self.nodes.get(on)?)));
        let near =
            |key: &str, other: &Node| node.labels.contains_key(key) && node.labels.get(key) == other.labels.get(key);
        if let Some(links) = pod.shape.links.as_deref() {
            for spread in &links.spread {
                let selector = spread.selector.as_ref().expect("a selector");
                let Some(own) = node.labels.get(&spread.topology_key) else { return Some(Mismatch::SpreadLabel) };
                let mut counts: BTreeMap<&String, i64> = BTreeMap::new();
                for other in self.nodes.values() {
                    let counted = pod.shape.aim.node_selector.iter().all(|r| r.matches(&other.labels));
                    if let Some(value) = other.labels.get(&spread.topology_key).filter(|_| counted) {
                        let matching = self.on(&other.name).filter(|p| selector.matches(&p.labels)).count();
                        *counts.entry(value).or_default() += matching as i64;
                    }
                }
                let least = counts.values().copied().min().unwrap_or(0);
                let itself = i64::from(selector.matches(&pod.labels));
                if counts.get(own).copied().unwrap_or(0) + itself - least > spread.max_skew {
                    return Some(Mismatch::Spread);
                }
            }
            for term in &links.affinity {
                let key = &term.topology_key;
                let met = others().any(|(other, on)| term.matches(other, &none) && near(key, on));
                let anywhere = others().any(|(other, on)| term.matches(other, &none) && on.labels.contains_key(key));
                let first = !anywhere && term.matches(pod, &none) && node.labels.contains_key(key);
                if !met && !first {
                    return Some(Mismatch::Affinity);
                }
            }
            for term in &links.anti_affinity {
                if others().any(|(other, on)| term.matches(other, &none) && near(&term.topology_key, on)) {
                    return Some(Mismatch::AntiAffinity);
                }
            }
        }
        let refuses = |(other, on): (&Pod, &Node)| {
            let links = other.shape.links.as_deref();
            links.is_some_and(|l| l.anti_affinity.iter().any(|t| t.matches(pod, &none) && near(&t.topology_key, on)))
        };
        others().any(refuses).then_some(Mismatch::ExistingAntiAffinity)
    }

    fn histogram(&self, pod: &Pod) -> BTreeMap<Mismatch, usize> {
        let mut counts = BTreeMap::new();
        for reason in self.nodes.values().flat_map(|node| self.lacks(node, pod)) {
            *counts.entry(reason).or_default() += 1;
        }
        counts
    }
}

#[derive(Clone, Debug)]
enum Step {
    Node { name: u8, cpu: u32, zone: u8, taint: bool, cordon: bool },
    DropNode(u8),
    Pod { name: u8, cpu: u32, app: u8, kind: u8, zone: u8 },
    DropPod(u8),
    Refuse(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..4u8, 0..5u32, 0..3u8, any::<bool>(), any::<bool>()).prop_map(|(name, cpu, zone, taint, cordon)| {
            Step::Node { name, cpu, zone, taint: taint && cordon, cordon: cordon && !taint }
        }),
        1 => (0..4u8).prop_map(Step::DropNode),
        6 => (0..12u8, 0..3u32, 0..3u8, 0..8u8, 0..3u8).prop_map(|(name, cpu, app, kind, zone)| Step::Pod { name, cpu, app, kind, zone }),
        2 => (0..12u8).prop_map(Step::DropPod),
        1 => (0..12u8).prop_map(Step::Refuse),
    ];
    proptest::collection::vec(step, 1..40)
}

fn wants(app: u8, kind: u8, zone: u8) -> Value {
    let term = json!([{"labelSelector": {"matchLabels": {"app": format!("{app}")}}, "topologyKey": "zone"}]);
    let mut object = json!({"metadata": {"labels": {"app": app.to_string()}}, "spec": {"preemptionPolicy": "Never"}});
    let spec = match kind {
        0 => json!({"nodeSelector": {"zone": zone.to_string()}}),
        1 => json!({"tolerations": [{"operator": "Exists"}]}),
        2 => json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}),
        3 => json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}),
        4 => {
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app.to_string()}}}]})
        }
        5 => json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 1}]}]}),
        _ => json!({}),
    };
    merge(&mut object, &json!({"spec": spec}));
    object
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Each binding is one that the naive planner allows, each refusal lists what it lists, and what is left waiting at the
    /// end of each step fits nowhere.
    #[test]
    fn decisions_are_those_of_a_planner_that_looks_at_everything(steps in steps()) {
        let (mut world, mut naive) = (World::default(), Naive::default());
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Node { name, cpu, zone, taint, cordon } => {
                    let zone = if zone == 0 { json!(null) } else { json!(zone.to_string()) };
                    let taints = if taint { json!([{"key": "k", "effect": "NoSchedule"}]) } else { json!([]) };
                    let mut object = json!({"spec": {"taints": taints, "unschedulable": cordon}});
                    if !zone.is_null() {
                        object["metadata"] = json!({"labels": {"zone": zone}});
                    }
                    let node = node(&name.to_string(), cpu, object);
                    world.planner.set_node(node.clone());
                    naive.nodes.insert(name.to_string(), node);
                }
                Step::DropNode(name) => {
                    world.planner.remove_node(&name.to_string());
                    naive.nodes.remove(&name.to_string());
                }
                Step::Pod { name, cpu, app, kind, zone } => {
                    let name = name.to_string();
                    let mut object = wants(app, kind, zone);
                    object["metadata"]["uid"] = json!(format!("{name}-{at}"));
                    let pod = world.pod(&name, cpu, object);
                    naive.placed.remove(&name);
                    naive.pending.insert(name, pod.clone());
                    world.planner.set_pod(pod);
                }
                Step::DropPod(name) => {
                    world.remove(&name.to_string());
                    naive.pending.remove(&name.to_string());
                    naive.placed.remove(&name.to_string());
                }
                Step::Refuse(name) => {
                    let key = Key::new("n", &name.to_string());
                    if let Some((pod, _)) = naive.placed.remove(&name.to_string()) {
                        world.planner.refused(&key, &pod.uid);
                        world.planner.retry(&key);
                        naive.pending.insert(name.to_string(), pod);
                    }
                }
            }
            for _ in 0..1000 {
                let Some(decision) = world.planner.decide(1).pop() else { break };
                match decision {
                    Decision::Bind { pod, node } => {
                        let lacks = naive.lacks(&naive.nodes[&*node], &pod);
                        prop_assert!(lacks.is_empty(), "{} on {node}: {lacks:?}", pod.key.name);
                        naive.pending.remove(&*pod.key.name);
                        naive.placed.insert(pod.key.name.to_string(), ((*pod).clone(), node.to_string()));
                    }
                    Decision::Wait { pod, unfit: Unfit::Nodes { lacks, nodes, .. }, .. } => {
                        prop_assert_eq!(nodes, naive.nodes.len());
                        prop_assert_eq!(lacks, naive.histogram(&pod));
                    }
                    Decision::Wait { unfit, .. } => prop_assert!(unfit == Unfit::NoNodes && naive.nodes.is_empty()),
                }
            }
            for pod in naive.pending.values() {
                let fitting: Vec<&str> = naive.nodes.values().filter(|n| naive.lacks(n, pod).is_empty()).map(|n| &*n.name).collect();
                prop_assert!(fitting.is_empty(), "step {at}: {} waits and fits {fitting:?}", pod.key.name);
            }
        }
    }
}
