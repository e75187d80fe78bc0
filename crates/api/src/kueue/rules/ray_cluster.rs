//! RayClusters: what naming a queue fills in, and what one in a queue may not be.
//!
//! Where this differs from upstream: a cluster that autoscales is elastic without saying so once more in an annotation.

use serde_json::Value;

use super::job::{Surroundings, add_gate, annotation_path, default_queued, is_elastic, queue_name, validate_queued};
use super::review::Verdict;
use crate::field::{Errors, Path};
use crate::kueue::keys::annotation;
use crate::kueue::workload::MAX_POD_SETS;
use crate::ray::keys::HEAD_POD_SET;

/// Suspends a RayCluster that is in a queue; the pods of one that may be resized are born gated.
pub fn default_ray_cluster(cluster: &mut Value, around: Surroundings) {
    default_queued(cluster, around);
    gate_ray_cluster(cluster, around);
}

/// At every write, because a group may be added at any time: what was not admitted must not run.
pub fn gate_ray_cluster(cluster: &mut Value, around: Surroundings) {
    if queue_name(cluster).is_empty() || !around.elastic_jobs || !may_be_resized(cluster) {
        return;
    }
    add_gate(cluster, "/spec/headGroupSpec/template/spec");
    for at in 0..groups(cluster).len() {
        add_gate(cluster, &format!("/spec/workerGroupSpecs/{at}/template/spec"));
    }
}

pub fn validate_ray_cluster(new: &Value, old: Option<&Value>, around: Surroundings) -> Verdict {
    let mut verdict = Verdict::default();
    let errors = &mut verdict.errors;
    validate_queued(new, old, around, errors);
    if queue_name(new).is_empty() {
        return verdict;
    }
    let spec = Path::new("spec");
    if autoscales(new) && !around.elastic_jobs {
        let detail = "a queued RayCluster can use autoscaling only as an elastic job: \
            enable the ElasticJobsViaWorkloadSlices feature gate";
        errors.invalid(&spec.child("enableInTreeAutoscaling"), true, detail);
    }
    // Upstream's words.
    if groups(new).len() >= MAX_POD_SETS {
        errors.too_many(&spec.child("workerGroupSpecs"), groups(new).len() + 1, MAX_POD_SETS);
    }
    for (at, group) in groups(new).iter().enumerate() {
        if group["groupName"].as_str().is_some_and(|name| name.to_lowercase() == HEAD_POD_SET) {
            let path = spec.child("workerGroupSpecs").index(at).child("groupName");
            errors.forbidden(&path, format!("{HEAD_POD_SET:?} is reserved for the head group"));
        }
    }
    if let Some(old) = old {
        stays_elastic(new, old, errors);
    }
    verdict
}

/// The Workload was made for one or for the other.
fn stays_elastic(new: &Value, old: &Value, errors: &mut Errors) {
    if is_elastic(new) != is_elastic(old) {
        errors.immutable(&annotation_path(annotation::ELASTIC_JOB), is_elastic(new));
    } else if may_be_resized(new) != may_be_resized(old) && !queue_name(old).is_empty() {
        errors.immutable(&Path::new("spec").child("enableInTreeAutoscaling"), autoscales(new));
    }
}

fn groups(cluster: &Value) -> &[Value] {
    cluster.pointer("/spec/workerGroupSpecs").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn autoscales(cluster: &Value) -> bool {
    cluster.pointer("/spec/enableInTreeAutoscaling").and_then(Value::as_bool).unwrap_or(false)
}

fn may_be_resized(cluster: &Value) -> bool {
    is_elastic(cluster) || autoscales(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ON: Surroundings = Surroundings { default_queue: false, default_priority_class: false, elastic_jobs: true };
    const OFF: Surroundings = Surroundings { elastic_jobs: false, ..ON };

    fn cluster(queue: Option<&str>, notes: Value, spec: Value) -> Value {
        let labels = queue.map_or(json!({}), |queue| json!({"kueue.x-k8s.io/queue-name": queue}));
        let template = json!({"spec": {"containers": []}});
        let mut all = json!({"metadata": {"name": "r", "labels": labels, "annotations": notes}, "spec": {
            "headGroupSpec": {"template": template}, "workerGroupSpecs": [{"groupName": "g", "template": template}]}});
        all["spec"].as_object_mut().unwrap().extend(spec.as_object().cloned().unwrap_or_default());
        all
    }

    fn gates(cluster: &Value) -> [Value; 2] {
        let at = |place: &str| cluster.pointer(place).cloned().unwrap_or_default();
        [
            at("/spec/headGroupSpec/template/spec/schedulingGates"),
            at("/spec/workerGroupSpecs/0/template/spec/schedulingGates"),
        ]
    }

    fn refused(new: &Value, old: Option<&Value>, around: Surroundings) -> String {
        let errors = validate_ray_cluster(new, old, around).errors;
        if errors.is_empty() { String::new() } else { errors.to_string() }
    }

    #[test]
    fn one_in_a_queue_is_suspended_and_gated_in_every_group_if_it_may_be_resized() {
        let gated = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let made = |notes: Value, spec: Value, around| {
            let mut cluster = cluster(Some("q"), notes, spec);
            default_ray_cluster(&mut cluster, around);
            assert_eq!(cluster["spec"]["suspend"], true);
            gates(&cluster)
        };
        let elastic = json!({"kueue.x-k8s.io/elastic-job": "true"});
        assert_eq!(made(elastic.clone(), json!({}), ON), [gated.clone(), gated.clone()]);
        assert_eq!(made(json!({}), json!({"enableInTreeAutoscaling": true}), ON), [gated.clone(), gated]);
        assert_eq!(made(elastic, json!({}), OFF), [Value::Null, Value::Null]);
        assert_eq!(made(json!({}), json!({}), ON), [Value::Null, Value::Null]);
        let mut free = cluster(None, json!({}), json!({"enableInTreeAutoscaling": true}));
        let before = free.clone();
        default_ray_cluster(&mut free, ON);
        assert_eq!(free, before);
    }

    #[test]
    fn what_a_workload_cannot_show_is_refused() {
        let head = cluster(Some("q"), json!({}), json!({"workerGroupSpecs": [{"groupName": "Head"}]}));
        let said = refused(&head, None, ON);
        assert!(
            said.contains("spec.workerGroupSpecs[0].groupName: Forbidden: \"head\" is reserved for the head group"),
            "{said}"
        );
        let many: Vec<Value> = (0..18).map(|n| json!({"groupName": format!("g{n}")})).collect();
        let said = refused(&cluster(Some("q"), json!({}), json!({"workerGroupSpecs": many})), None, ON);
        assert!(said.contains("spec.workerGroupSpecs: Too many: 19: must have at most 18 items"), "{said}");
        let scaled = cluster(Some("q"), json!({}), json!({"enableInTreeAutoscaling": true}));
        assert!(refused(&scaled, None, OFF).contains("ElasticJobsViaWorkloadSlices"));
        assert_eq!(refused(&scaled, None, ON), "");
        assert_eq!(refused(&cluster(None, json!({}), json!({"enableInTreeAutoscaling": true})), None, OFF), "");
    }

    #[test]
    fn whether_it_may_be_resized_is_said_once() {
        let fixed = cluster(Some("q"), json!({}), json!({"suspend": true}));
        let noted = cluster(Some("q"), json!({"kueue.x-k8s.io/elastic-job": "true"}), json!({"suspend": true}));
        let scaled = cluster(Some("q"), json!({}), json!({"suspend": true, "enableInTreeAutoscaling": true}));
        assert!(refused(&noted, Some(&fixed), ON).contains("elastic-job]: Invalid value: true: field is immutable"));
        let said = refused(&scaled, Some(&fixed), ON);
        assert!(said.contains("spec.enableInTreeAutoscaling: Invalid value: true: field is immutable"), "{said}");
        assert_eq!(refused(&scaled, Some(&scaled), ON), "");
    }
}
