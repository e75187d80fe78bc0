//! The pods of a Job, made from its template.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::claim::owner_reference;
use super::decide::NewPod;
use super::names;

/// The server appends five characters to a generated name, within 63.
const MAX_GENERATED_PREFIX: usize = 58;

/// What all pods of the Job have in common.
pub fn from_template(job: &Job, spec: &JobSpec) -> Pod {
    let template = spec.template.metadata.clone().unwrap_or_default();
    let mut finalizers = template.finalizers.unwrap_or_default();
    if !finalizers.iter().any(|f| f == names::TRACKING_FINALIZER) {
        finalizers.push(names::TRACKING_FINALIZER.to_string());
    }
    let mut pod = spec.template.spec.clone();
    if spec.completion_mode.as_deref() == Some(names::INDEXED)
        && let Some(pod) = &mut pod
    {
        pod.containers.iter_mut().chain(pod.init_containers.iter_mut().flatten()).for_each(tell_index);
    }
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", job.metadata.name.as_deref().unwrap_or_default())),
            namespace: job.metadata.namespace.clone(),
            labels: template.labels,
            annotations: template.annotations,
            finalizers: Some(finalizers),
            owner_references: Some(vec![owner_reference(job)]),
            ..ObjectMeta::default()
        },
        spec: pod,
        status: None,
    }
}

/// One pod: `common` with what is its own.
pub fn build(common: &Pod, job_name: &str, new: &NewPod) -> Pod {
    let mut pod = common.clone();
    let Some(index) = new.index else { return pod };
    let meta = &mut pod.metadata;
    meta.generate_name = Some(indexed_prefix(job_name, index));
    meta.labels.get_or_insert_default().insert(names::COMPLETION_INDEX.to_string(), index.to_string());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(names::COMPLETION_INDEX.to_string(), index.to_string());
    if let Some((counted, ignored)) = new.failures {
        annotations.insert(names::INDEX_FAILURES.to_string(), counted.to_string());
        if ignored > 0 {
            annotations.insert(names::INDEX_IGNORED_FAILURES.to_string(), ignored.to_string());
        }
    }
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{job_name}-{index}"));
    }
    pod
}

/// A long name is cut so that the index stays whole.
fn indexed_prefix(job_name: &str, index: i32) -> String {
    let end = format!("-{index}-");
    let room = MAX_GENERATED_PREFIX.saturating_sub(end.len());
    let cut = (0..=room.min(job_name.len())).rev().find(|&at| job_name.is_char_boundary(at)).unwrap_or(0);
    format!("{}{end}", &job_name[..cut])
}

fn tell_index(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|var| var.name == names::COMPLETION_INDEX_ENV) {
        return;
    }
    let field = ObjectFieldSelector {
        field_path: format!("metadata.labels['{}']", names::COMPLETION_INDEX),
        ..ObjectFieldSelector::default()
    };
    env.push(EnvVar {
        name: names::COMPLETION_INDEX_ENV.to_string(),
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        ..EnvVar::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(name: &str, mode: &str) -> Job {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "uid": "U"},
            "spec": {"completionMode": mode, "template": {
                "metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}, "finalizers": ["example.com/x"]},
                "spec": {
                    "initContainers": [{"name": "i", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]}],
                    "containers": [{"name": "c", "image": "i"}],
                },
            }},
        }))
        .unwrap()
    }

    fn built(job: &Job, new: &NewPod) -> serde_json::Value {
        let common = from_template(job, job.spec.as_ref().unwrap());
        serde_json::to_value(build(&common, job.metadata.name.as_deref().unwrap(), new)).unwrap()
    }

    #[test]
    fn a_pod_of_a_plain_job_is_the_template_with_owner_and_finalizer() {
        let pod = built(&job("j", "NonIndexed"), &NewPod::default());
        assert_eq!(
            pod["metadata"],
            json!({"generateName": "j-", "namespace": "n", "labels": {"a": "1"}, "annotations": {"b": "2"},
                "finalizers": ["example.com/x", "batch.kubernetes.io/job-tracking"],
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "U",
                    "controller": true, "blockOwnerDeletion": true}]})
        );
        assert_eq!(pod["spec"]["containers"], json!([{"name": "c", "image": "i"}]));
    }

    #[test]
    fn a_pod_of_an_indexed_job_knows_its_index_in_every_way() {
        let pod = built(&job("j", "Indexed"), &NewPod { index: Some(3), failures: None });
        assert_eq!(pod["metadata"]["generateName"], "j-3-");
        assert_eq!(pod["metadata"]["labels"], json!({"a": "1", "batch.kubernetes.io/job-completion-index": "3"}));
        assert_eq!(pod["metadata"]["annotations"], json!({"b": "2", "batch.kubernetes.io/job-completion-index": "3"}));
        assert_eq!(pod["spec"]["hostname"], "j-3");
        let env = json!([{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {
            "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]);
        assert_eq!(pod["spec"]["containers"][0]["env"], env);
        let own = json!([{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]);
        assert_eq!(pod["spec"]["initContainers"][0]["env"], own, "a variable of the template's own stays");
    }

    #[test]
    fn failures_of_the_index_are_written_on_the_replacement() {
        let annotations = |failures| {
            let pod = built(&job("j", "Indexed"), &NewPod { index: Some(0), failures });
            let get = |name: &str| pod["metadata"]["annotations"][name].as_str().map(str::to_string);
            (get(names::INDEX_FAILURES), get(names::INDEX_IGNORED_FAILURES))
        };
        assert_eq!(annotations(None), (None, None));
        assert_eq!(annotations(Some((0, 0))), (Some("0".into()), None));
        assert_eq!(annotations(Some((2, 1))), (Some("2".into()), Some("1".into())));
    }

    #[test]
    fn a_long_name_is_cut_before_its_index() {
        let name = "a".repeat(63);
        let prefix = indexed_prefix(&name, 12345);
        assert_eq!((prefix.len(), prefix.ends_with("a-12345-")), (58, true));
        assert_eq!(indexed_prefix("short", 7), "short-7-");
    }
}
