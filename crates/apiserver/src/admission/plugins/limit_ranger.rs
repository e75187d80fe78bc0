//! LimitRanger: defaults for containers, and bounds for containers, pods and claims, from the namespace's LimitRanges.

use serde_json::Value;

use super::values::{Resources, items, map_mut, resources, spec_mut, stored_objects, text};
use crate::admission::Review;
use crate::object::{self, Object};
use crate::server::Server;
use usher_api::quantity::Quantity;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

pub fn ranges(server: &Server, review: &Review<'_>) -> Vec<Object> {
    stored_objects(server, "core/limitranges", review.namespace)
}

/// Gives containers the requests and limits that they lack, and says so in an annotation.
pub fn set_defaults(ranges: &[Object], pod: &mut Object) {
    for range in ranges {
        let (mut requests, mut limits) = (Resources::new(), Resources::new());
        for item in items(range, "/spec/limits").iter().filter(|item| text(item, "/type") == "Container") {
            requests.extend(resources(item.get("defaultRequest")));
            limits.extend(resources(item.get("default")));
        }
        let mut said = Vec::new();
        for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
            let Some(Value::Array(containers)) = spec_mut(pod).get_mut(list) else { continue };
            for container in containers {
                for (field, defaults, verb) in [("requests", &requests, "request"), ("limits", &limits, "limit")] {
                    let set = fill(container, field, defaults);
                    if !set.is_empty() {
                        said.push(format!("{} {verb} for {what} {}", set.join(", "), text(container, "/name")));
                    }
                }
            }
        }
        if !said.is_empty() {
            let annotations = map_mut(object::meta_mut(pod), "annotations");
            annotations.insert(ANNOTATION.to_owned(), format!("LimitRanger plugin set: {}", said.join("; ")).into());
        }
    }
}

/// The names of the resources that were missing.
fn fill<'d>(container: &mut Value, field: &str, defaults: &'d Resources) -> Vec<&'d str> {
    let present = container.get("resources").and_then(|r| r.get(field)).and_then(Value::as_object);
    let missing: Vec<(&String, &Quantity)> =
        defaults.iter().filter(|(name, _)| present.is_none_or(|list| !list.contains_key(*name))).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let list = map_mut(map_mut(object::as_map(container), "resources"), field);
    list.extend(missing.iter().map(|(name, amount)| ((*name).clone(), Value::from(amount.to_string()))));
    missing.into_iter().map(|(name, _)| name.as_str()).collect()
}

pub fn check_pod(ranges: &[Object], pod: &Object) -> Result<(), String> {
    ranges.iter().try_for_each(|range| {
        let mut problems = Vec::new();
        for item in items(range, "/spec/limits") {
            match text(item, "/type") {
                "Container" => {
                    let containers = items(pod, "/spec/containers").iter().chain(items(pod, "/spec/initContainers"));
                    for container in containers {
                        Bounds::of(item).check(&Asked::by_container(container), &mut problems);
                    }
                }
                "Pod" => Bounds::of(item).check(&Asked::by_pod(pod), &mut problems),
                _ => {}
            }
        }
        aggregate(problems)
    })
}

/// Claims are bounded by what they request; they have no limits.
pub fn check_claim(ranges: &[Object], claim: &Object) -> Result<(), String> {
    let requests = resources(claim.pointer("/spec/resources/requests"));
    ranges.iter().try_for_each(|range| {
        let mut problems = Vec::new();
        for item in items(range, "/spec/limits").iter().filter(|i| text(i, "/type") == "PersistentVolumeClaim") {
            let bounds = Bounds::of(item);
            let asked = Asked { requests: requests.clone(), limits: Resources::new() };
            for (name, bound) in &bounds.min {
                problems.extend(bounds.below_min(name, *bound, &asked));
            }
            for (name, bound) in &bounds.max {
                let head = format!("maximum {name} usage per {} is {bound}", bounds.kind);
                problems.extend(match requests.get(name) {
                    None => Some(format!("{head}.  No request is specified")),
                    Some(request) if milli(*request) > milli(*bound) => {
                        Some(format!("{head}, but request is {request}"))
                    }
                    Some(_) => None,
                });
            }
        }
        aggregate(problems)
    })
}

/// How several errors are written as one: each once, in brackets if there are many.
fn aggregate(mut problems: Vec<String>) -> Result<(), String> {
    let mut seen = std::collections::BTreeSet::new();
    problems.retain(|problem| seen.insert(problem.clone()));
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

struct Bounds<'a> {
    kind: &'a str,
    min: Resources,
    max: Resources,
    max_ratio: Resources,
}

struct Asked {
    requests: Resources,
    limits: Resources,
}

impl<'a> Bounds<'a> {
    fn of(item: &'a Value) -> Bounds<'a> {
        Bounds {
            kind: text(item, "/type"),
            min: resources(item.get("min")),
            max: resources(item.get("max")),
            max_ratio: resources(item.get("maxLimitRequestRatio")),
        }
    }

    fn check(&self, asked: &Asked, problems: &mut Vec<String>) {
        problems.extend(self.min.iter().filter_map(|(name, bound)| self.below_min(name, *bound, asked)));
        problems.extend(self.max.iter().filter_map(|(name, bound)| self.above_max(name, *bound, asked)));
        problems.extend(self.max_ratio.iter().filter_map(|(name, bound)| self.above_ratio(name, *bound, asked)));
    }

    fn below_min(&self, name: &str, bound: Quantity, asked: &Asked) -> Option<String> {
        let head = format!("minimum {name} usage per {} is {bound}", self.kind);
        let Some(request) = asked.requests.get(name) else { return Some(format!("{head}.  No request is specified")) };
        if milli(*request) < milli(bound) {
            return Some(format!("{head}, but request is {request}"));
        }
        let limit = asked.limits.get(name).filter(|limit| milli(**limit) < milli(bound))?;
        Some(format!("{head}, but limit is {limit}"))
    }

    fn above_max(&self, name: &str, bound: Quantity, asked: &Asked) -> Option<String> {
        let head = format!("maximum {name} usage per {} is {bound}", self.kind);
        let Some(limit) = asked.limits.get(name) else { return Some(format!("{head}.  No limit is specified")) };
        if milli(*limit) > milli(bound) {
            return Some(format!("{head}, but limit is {limit}"));
        }
        let request = asked.requests.get(name).filter(|request| milli(**request) > milli(bound))?;
        Some(format!("{head}, but request is {request}"))
    }

    fn above_ratio(&self, name: &str, bound: Quantity, asked: &Asked) -> Option<String> {
        let head = format!("{name} max limit to request ratio per {} is {bound}", self.kind);
        let amount = |list: &Resources| list.get(name).map(|amount| milli(*amount)).filter(|amount| *amount != 0);
        let Some(request) = amount(&asked.requests) else {
            return Some(format!("{head}, but no request is specified or request is 0"));
        };
        let Some(limit) = amount(&asked.limits) else {
            return Some(format!("{head}, but no limit is specified or limit is 0"));
        };
        let ratio = limit as f64 / request as f64;
        (ratio * 1000.0 > milli(bound) as f64).then(|| format!("{head}, but provided ratio is {ratio:.6}"))
    }
}

impl Asked {
    fn by_container(container: &Value) -> Asked {
        Asked {
            requests: resources(container.pointer("/resources/requests")),
            limits: resources(container.pointer("/resources/limits")),
        }
    }

    fn by_pod(pod: &Object) -> Asked {
        Asked { requests: pod_total(pod, "requests"), limits: pod_total(pod, "limits") }
    }
}

/// What a pod takes in all: its containers together with its sidecars, or more if an init container needs more at its turn.
/// CPU and memory that the pod itself states come before that.
fn pod_total(pod: &Object, field: &str) -> Resources {
    let of = |container: &Value| resources(container.get("resources").and_then(|r| r.get(field)));
    let mut total = Resources::new();
    for container in items(pod, "/spec/containers") {
        add(&mut total, &of(container));
    }
    let (mut sidecars, mut peak) = (Resources::new(), Resources::new());
    for container in items(pod, "/spec/initContainers") {
        let mut at_its_turn = of(container);
        if text(container, "/restartPolicy") == "Always" {
            add(&mut total, &at_its_turn);
            add(&mut sidecars, &at_its_turn);
            at_its_turn.clone_from(&sidecars);
        } else {
            add(&mut at_its_turn, &sidecars);
        }
        raise(&mut peak, &at_its_turn);
    }
    raise(&mut total, &peak);
    let stated = resources(pod.pointer("/spec/resources").and_then(|r| r.get(field)));
    total.extend(stated.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")));
    total
}

fn add(list: &mut Resources, more: &Resources) {
    for (name, amount) in more {
        list.entry(name.clone()).and_modify(|sum| *sum = *sum + *amount).or_insert(*amount);
    }
}

fn raise(list: &mut Resources, to: &Resources) {
    for (name, amount) in to {
        let at = list.entry(name.clone()).or_insert(*amount);
        *at = (*at).max(*amount);
    }
}

/// Thousandths, rounded up: the precision at which upstream compares.
fn milli(amount: Quantity) -> i128 {
    amount.rounded_to_milli().nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range(item: Value) -> Vec<Object> {
        vec![json!({"metadata": {"name": "r"}, "spec": {"limits": [item]}})]
    }

    fn pod(resources: Value) -> Object {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    #[test]
    fn containers_are_given_what_they_lack_and_the_pod_says_so() {
        let ranges = range(json!({"type": "Container", "default": {"cpu": "1", "memory": "1Gi"},
            "defaultRequest": {"cpu": "500m", "memory": "1024Mi"}}));
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2", "memory": "1"}}}],
            "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "1"}}}]}});
        set_defaults(&ranges, &mut pod);
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for container a; \
             memory limit for container b; cpu, memory request for init container i; memory limit for init container i"
        );
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}})
        );
        assert_eq!(
            pod["spec"]["containers"][1]["resources"],
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1"}})
        );
        let before = pod.clone();
        set_defaults(&ranges, &mut pod);
        assert_eq!(pod, before);
    }

    #[test]
    fn every_bound_refuses_in_upstreams_words() {
        let both = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
        for (item, asked, why) in [
            (
                json!({"min": {"cpu": "100m"}}),
                both("50m"),
                "minimum cpu usage per Container is 100m, but request is 50m",
            ),
            (json!({"min": {"cpu": "1"}}), json!({}), "minimum cpu usage per Container is 1.  No request is specified"),
            (
                json!({"min": {"cpu": "1"}}),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}}),
                "minimum cpu usage per Container is 1, but limit is 500m",
            ),
            (json!({"max": {"cpu": "1"}}), json!({}), "maximum cpu usage per Container is 1.  No limit is specified"),
            (json!({"max": {"cpu": "1"}}), both("1500m"), "maximum cpu usage per Container is 1, but limit is 1500m"),
            (
                json!({"max": {"cpu": "1"}}),
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
                "maximum cpu usage per Container is 1, but request is 2",
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
                "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"limits": {"cpu": "3"}}),
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ),
            (
                json!({"min": {"cpu": "1"}, "max": {"memory": "1Gi"}}),
                json!({}),
                "[minimum cpu usage per Container is 1.  No request is specified, maximum memory usage per Container is \
                 1Gi.  No limit is specified]",
            ),
        ] {
            let mut item = item;
            item["type"] = "Container".into();
            assert_eq!(check_pod(&range(item), &pod(asked)), Err(why.to_owned()));
        }
        let item = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}});
        assert_eq!(check_pod(&range(item), &pod(both("1"))), Ok(()));
    }

    #[test]
    fn a_pod_counts_its_containers_together_and_init_containers_at_their_turn() {
        let one = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"resources": one("1")}, {"resources": one("1")}],
            "initContainers": [{"resources": one("500m"), "restartPolicy": "Always"}, {"resources": one("3")}]}});
        assert_eq!(pod_total(&pod, "requests")["cpu"], Quantity::parse("3500m").unwrap());
        let why = "maximum cpu usage per Pod is 3, but limit is 3500m";
        assert_eq!(check_pod(&range(json!({"type": "Pod", "max": {"cpu": "3"}})), &pod), Err(why.to_owned()));

        let stated = json!({"spec": {"resources": one("7"), "containers": [{"resources": one("1")}]}});
        assert_eq!(pod_total(&stated, "limits")["cpu"], Quantity::parse("7").unwrap());
    }

    #[test]
    fn claims_are_bounded_by_their_requests() {
        let ranges =
            range(json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}));
        let claim = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        assert_eq!(check_claim(&ranges, &claim("2Gi")), Ok(()));
        let why = "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi";
        assert_eq!(check_claim(&ranges, &claim("1Mi")), Err(why.to_owned()));
        let why = "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi";
        assert_eq!(check_claim(&ranges, &claim("3Gi")), Err(why.to_owned()));
    }
}
