//! What a decision of placement costs, without any API: `cargo bench -p usher-controllers --bench placement`.
//!
//! Prints a table; asserts nothing about speed. Each line decides for all pods from an empty cluster.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use usher_controllers::placement::decide::{Decision, Planner};
use usher_controllers::placement::model::{Lowering, lower};

fn node(i: usize) -> Node {
    let labels = json!({"kubernetes.io/hostname": format!("n{i:05}"), "zone": format!("z{}", i % 10)});
    let has = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
    serde_json::from_value(
        json!({"metadata": {"name": format!("n{i:05}"), "labels": labels}, "status": {"allocatable": has}}),
    )
    .expect("a node")
}

fn pod(i: usize, cpu_milli: usize, labels: Value, spec: Value) -> Pod {
    let requests = json!({"cpu": format!("{cpu_milli}m"), "memory": "512Mi"});
    let mut whole = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    let meta = json!({"name": format!("p{i:06}"), "namespace": "default", "uid": format!("u{i}"), "labels": labels});
    serde_json::from_value(json!({"metadata": meta, "spec": whole})).expect("a pod")
}

type Make = fn(usize) -> Pod;

fn main() {
    let lines: [(&str, Make); 7] = [
        ("one shape", |i| pod(i, 500, json!({"index": i.to_string()}), json!({}))),
        ("100 shapes in turn", |i| pod(i, 100 + i % 100, json!({}), json!({}))),
        ("every pod its own shape", |i| pod(i, 100 + i, json!({}), json!({}))),
        ("preferred node affinity", |i| {
            let term = json!({"weight": 10, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z3"]}]}});
            pod(
                i,
                500,
                json!({}),
                json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}),
            )
        }),
        ("apart by host, groups of 20", |i| {
            let app = format!("a{}", i / 20);
            let term = json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"});
            let spec =
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
            pod(i, 500, json!({"app": app}), spec)
        }),
        ("spread over zones", |i| {
            let spread = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "web"}}});
            pod(i, 500, json!({"app": "web"}), json!({"topologySpreadConstraints": [spread]}))
        }),
        ("too big for every node", |i| pod(i, 64_000, json!({}), json!({}))),
    ];
    println!("| pods | nodes | of | bound | µs a pod | pods/s |\n|---|---|---|---|---|---|");
    for (name, make) in lines {
        for (nodes, pods) in [(100, 1_000), (1_000, 10_000), (5_000, 50_000)] {
            if nodes > 1_000 && name.starts_with("apart") && std::env::var_os("USHER_BENCH_ALL").is_none() {
                continue;
            }
            run(name, make, nodes, pods);
        }
    }
}

fn run(name: &str, make: Make, nodes: usize, pods: usize) {
    let mut planner = Planner::default();
    let mut lowering = Lowering::default();
    (0..nodes).for_each(|i| planner.set_node(lower::node(&node(i))));
    let lowered: Vec<_> = (0..pods).map(|i| lowering.pod(&make(i))).collect();
    let started = Instant::now();
    lowered.into_iter().for_each(|pod| planner.set_pod(pod));
    let mut bound = 0;
    loop {
        let decisions = planner.decide(256);
        if decisions.is_empty() {
            break;
        }
        bound += decisions.iter().filter(|decision| matches!(decision, Decision::Bind { .. })).count();
    }
    let took = started.elapsed().as_secs_f64();
    let each = took * 1e6 / pods as f64;
    println!("| {name} | {nodes} | {pods} | {bound} | {each:.1} | {:.0} |", pods as f64 / took);
}
