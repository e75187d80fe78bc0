//! What one pod asks for, as Kubernetes adds it up.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource;
use usher_api::quantity::Quantity;

pub type Requests = BTreeMap<String, Quantity>;

/// Containers together, or the hungriest init container with the sidecars before it, whichever is more; and the overhead.
/// What is not requested but limited counts as requested. Requests of the pod as a whole go before its containers'.
pub fn of(spec: &PodSpec) -> Requests {
    let mut total = Requests::new();
    let mut sidecars = Requests::new();
    let mut peak = Requests::new();
    for container in &spec.containers {
        add(&mut total, &container_requests(container));
    }
    for container in spec.init_containers.iter().flatten() {
        let asked = container_requests(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &asked);
            highest(&mut peak, &sidecars);
        } else {
            let mut together = sidecars.clone();
            add(&mut together, &asked);
            highest(&mut peak, &together);
        }
    }
    add(&mut total, &sidecars);
    highest(&mut total, &peak);
    if let Some(pod) = &spec.resources {
        let whole = with_limits(pod.requests.as_ref(), pod.limits.as_ref());
        total.extend(whole);
    }
    add(&mut total, &read(spec.overhead.as_ref()));
    total
}

fn container_requests(container: &Container) -> Requests {
    let resources = container.resources.as_ref();
    with_limits(resources.and_then(|r| r.requests.as_ref()), resources.and_then(|r| r.limits.as_ref()))
}

type Said<'a> = Option<&'a BTreeMap<String, resource::Quantity>>;

fn with_limits(requests: Said<'_>, limits: Said<'_>) -> Requests {
    let mut all = read(limits);
    all.extend(read(requests));
    all
}

/// What cannot be read was refused by validation and asks for nothing.
fn read(said: Said<'_>) -> Requests {
    let said = said.into_iter().flatten();
    said.filter_map(|(name, text)| Some((name.clone(), Quantity::parse(&text.0).ok()?))).collect()
}

fn add(into: &mut Requests, more: &Requests) {
    for (name, more) in more {
        let own = into.entry(name.clone()).or_insert(Quantity::ZERO);
        *own = *own + *more;
    }
}

fn highest(into: &mut Requests, other: &Requests) {
    for (name, other) in other {
        let own = into.entry(name.clone()).or_insert(Quantity::ZERO);
        if other.nanos() > own.nanos() {
            *own = *other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn asked(spec: Value) -> Value {
        let requests = of(&serde_json::from_value(spec).unwrap());
        requests
            .iter()
            .map(|(name, quantity)| (name.clone(), json!(quantity.to_string())))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    fn container(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn containers_add_up_and_limits_stand_in_for_requests() {
        let limited = json!({"name": "d", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}});
        assert_eq!(asked(json!({"containers": [container("1"), limited]})), json!({"cpu": "1500m", "memory": "1Gi"}));
    }

    #[test]
    fn an_init_container_counts_only_as_far_as_it_is_hungrier_than_the_rest() {
        assert_eq!(
            asked(json!({"containers": [container("1")], "initContainers": [container("3")]})),
            json!({"cpu": "3"})
        );
        assert_eq!(
            asked(json!({"containers": [container("4")], "initContainers": [container("3")]})),
            json!({"cpu": "4"})
        );
    }

    #[test]
    fn sidecars_run_beside_what_follows_them() {
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = json!("Always");
        let inits = json!([sidecar, container("4")]);
        assert_eq!(asked(json!({"containers": [container("2")], "initContainers": inits})), json!({"cpu": "5"}));
        let inits = json!([container("4"), sidecar]);
        assert_eq!(asked(json!({"containers": [container("2")], "initContainers": inits})), json!({"cpu": "4"}));
    }

    #[test]
    fn overhead_and_requests_of_the_whole_pod_count() {
        let spec = json!({"containers": [container("1")], "overhead": {"cpu": "100m"}, "resources": {"requests": {"cpu": "2"}}});
        assert_eq!(asked(spec), json!({"cpu": "2100m"}));
    }
}
