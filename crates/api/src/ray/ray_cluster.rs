//! RayCluster: a head and groups of workers. Fields that are not named here are kept as they came.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec, ResourceRequirements};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keys::HEAD_POD_SET;
use super::status::{ClusterCondition, RayClusterStatus, state};
use crate::crd::{Definition, Omit, Schema, kind, object};
use crate::kueue::conditions;
use crate::kueue::keys::{self, annotation};
use crate::kueue::template;

kind! {
    /// A Ray cluster: a head and groups of workers.
    RayCluster in "ray.io" "v1", Namespaced "rayclusters" {
        spec: RayClusterSpec = RayClusterSpec::schema(),
        status: RayClusterStatus = RayClusterStatus::schema().with("x-kubernetes-preserve-unknown-fields", true),
    }
}

/// What is not read here, and must be there again when an object is written as a whole.
type Others = BTreeMap<String, Value>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RayClusterSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_in_tree_autoscaling: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaler_options: Option<Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ray_version: String,
    pub head_group_spec: HeadGroup,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worker_group_specs: Vec<WorkerGroup>,
    #[serde(flatten)]
    pub others: Others,
}

impl RayClusterSpec {
    fn schema() -> Schema {
        let known = "the managedBy field value must be either 'ray.io/kuberay-operator' or 'kueue.x-k8s.io/multikueue'";
        let managed_by = Schema::string()
            .rule("self == oldSelf", "the managedBy field is immutable")
            .rule("self in ['ray.io/kuberay-operator', 'kueue.x-k8s.io/multikueue']", known);
        Schema::anything()
            .field("suspend", "It runs no pods.", Schema::boolean())
            .field("managedBy", "Who makes its pods; KubeRay if nothing is said.", managed_by)
            .field("enableInTreeAutoscaling", "Ray's autoscaler changes its replicas.", Schema::boolean())
            .field("autoscalerOptions", "The autoscaler's container.", Schema::anything())
            .field("rayVersion", "", Schema::string())
            .field("headGroupSpec", "The head.", HeadGroup::schema().required())
            .field("workerGroupSpecs", "The workers.", Schema::list(WorkerGroup::schema()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadGroup {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ray_start_params: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "template::lenient")]
    pub template: PodTemplateSpec,
    #[serde(flatten)]
    pub others: Others,
}

impl HeadGroup {
    fn schema() -> Schema {
        Schema::anything().field("rayStartParams", "Arguments of `ray start`.", Schema::map(Schema::string())).field(
            "template",
            "The head's pod.",
            Schema::anything().required(),
        )
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerGroup {
    pub group_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_of_hosts: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ray_start_params: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "template::lenient")]
    pub template: PodTemplateSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,
    #[serde(flatten)]
    pub others: Others,
}

impl Omit for WorkerGroup {}

object! {
    ScaleStrategy {
        /// Pods that are to go, whatever `replicas` says.
        workers_to_delete: Vec<String> = Schema::list(Schema::string()),
    }
}

impl WorkerGroup {
    fn schema() -> Schema {
        Schema::anything()
            .field("groupName", "", Schema::string().required())
            .field("replicas", "How many replicas there are to be.", Schema::int32().default_to(0))
            .field("minReplicas", "Never fewer than this.", Schema::int32().default_to(0).required())
            .field("maxReplicas", "Never more than this.", Schema::int32().default_to(i32::MAX).required())
            .field("numOfHosts", "Pods of one replica.", Schema::int32().default_to(1))
            .field("suspend", "It has no pods.", Schema::boolean())
            .field("rayStartParams", "Arguments of `ray start`.", Schema::map(Schema::string()))
            .field("template", "A worker's pod.", Schema::anything().required())
            .field("scaleStrategy", "Which pods go.", ScaleStrategy::schema())
    }

    /// Replicas there are to be, within the least and the most, as KubeRay makes them.
    pub fn wanted_replicas(&self) -> i32 {
        if self.suspend == Some(true) {
            return 0;
        }
        let (least, most) = (self.min_replicas.unwrap_or(0).max(0), self.max_replicas.unwrap_or(i32::MAX).max(0));
        let replicas = self.replicas.unwrap_or(least);
        if replicas < least { least } else { replicas.min(most) }
    }

    /// Pods of one replica.
    pub fn hosts(&self) -> i32 {
        self.num_of_hosts.unwrap_or(1).max(1)
    }

    pub fn wanted_pods(&self) -> i32 {
        self.wanted_replicas().saturating_mul(self.hosts())
    }

    /// Its name in Workloads, where names are in small letters.
    pub fn pod_set(&self) -> String {
        self.group_name.to_lowercase()
    }

    pub fn workers_to_delete(&self) -> &[String] {
        self.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.workers_to_delete)
    }
}

impl RayCluster {
    pub fn definition() -> Definition {
        let column = |of: Definition, name, ty, path, wide| of.column(name, ty, path, wide, "");
        let columns = [
            ("desired workers", "integer", ".status.desiredWorkerReplicas", false),
            ("available workers", "integer", ".status.availableWorkerReplicas", false),
            ("cpus", "string", ".status.desiredCPU", false),
            ("memory", "string", ".status.desiredMemory", false),
            ("gpus", "string", ".status.desiredGPU", false),
            ("tpus", "string", ".status.desiredTPU", true),
            ("status", "string", ".status.state", false),
            ("age", "date", ".metadata.creationTimestamp", false),
            ("head pod IP", "string", ".status.head.podIP", true),
            ("head service IP", "string", ".status.head.serviceIP", true),
        ];
        columns
            .into_iter()
            .fold(RayCluster::declared().with_status(), |of, (name, ty, path, wide)| column(of, name, ty, path, wide))
    }

    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    pub fn autoscales(&self) -> bool {
        self.spec.enable_in_tree_autoscaling == Some(true)
    }

    /// Whether it may grow and shrink while it runs: its owner says so, or its autoscaler will do it anyway.
    pub fn is_elastic(&self) -> bool {
        let notes = self.metadata.annotations.as_ref();
        let said = notes.and_then(|notes| notes.get(annotation::ELASTIC_JOB)).is_some_and(|said| said == keys::TRUE);
        said || self.autoscales()
    }

    pub fn is(&self, condition: ClusterCondition) -> bool {
        conditions::is_true(&self.status.conditions, condition.as_str())
    }

    /// Whether pods of it may be there. KubeRay says `suspended` only of one that has none, and takes that back before it
    /// makes the first; `state` alone would not do, because it stays `suspended` until all pods of a resumed one run.
    pub fn may_have_pods(&self) -> bool {
        if self.status == RayClusterStatus::default() {
            return false;
        }
        match conditions::find(&self.status.conditions, ClusterCondition::Suspended.as_str()) {
            Some(condition) => condition.status != "True",
            None => self.status.state != state::SUSPENDED,
        }
    }

    /// The pod sets of a Workload, by name: how many pods, what they are like.
    pub fn groups(&self) -> Vec<(String, i32, PodTemplateSpec)> {
        let mut head = self.spec.head_group_spec.template.clone();
        if self.autoscales() {
            // KubeRay puts it into the pod, not into the template; it takes quota all the same.
            head.spec.get_or_insert_default().containers.push(self.autoscaler());
        }
        let workers = &self.spec.worker_group_specs;
        let workers = workers.iter().map(|group| (group.pod_set(), group.wanted_pods(), group.template.clone()));
        std::iter::once((HEAD_POD_SET.to_owned(), 1, head)).chain(workers).collect()
    }

    fn autoscaler(&self) -> Container {
        let said = self.spec.autoscaler_options.as_ref().and_then(|options| options.get("resources"));
        let default = || serde_json::json!({"cpu": "500m", "memory": "512Mi"});
        let resources = match said {
            Some(said) if !said.is_null() => said.clone(),
            _ => serde_json::json!({"requests": default(), "limits": default()}),
        };
        let resources: Option<ResourceRequirements> = template::read_resources(&resources);
        Container { name: "autoscaler".to_owned(), resources, ..Container::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(spec: Value) -> RayCluster {
        serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": spec})).unwrap()
    }

    #[test]
    fn fields_that_nobody_here_reads_are_written_as_they_came() {
        let sent = json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "r"}, "spec": {
            "rayVersion": "2.46.0", "gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}, "suspend": false,
            "headGroupSpec": {"serviceType": "ClusterIP", "rayStartParams": {}, "template": {
                "spec": {"containers": [{"name": "ray-head"}]}}},
            "workerGroupSpecs": [{"groupName": "small", "replicas": 1, "minReplicas": 0, "maxReplicas": 5, "numOfHosts": 1,
                "idleTimeoutSeconds": 60, "scaleStrategy": {"workersToDelete": ["a"]}, "template": {
                    "spec": {"containers": [{"name": "ray-worker"}]}}}]}});
        let read: RayCluster = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), sent);
    }

    #[test]
    fn a_group_has_as_many_pods_as_its_replicas_have_hosts_within_its_bounds() {
        let pods = |group: Value| serde_json::from_value::<WorkerGroup>(group).unwrap().wanted_pods();
        assert_eq!(pods(json!({"replicas": 3, "numOfHosts": 4})), 12);
        assert_eq!(pods(json!({"replicas": 3, "numOfHosts": 0})), 3);
        assert_eq!(pods(json!({"replicas": 1, "minReplicas": 2})), 2);
        assert_eq!(pods(json!({"replicas": 9, "maxReplicas": 5})), 5);
        assert_eq!(pods(json!({"replicas": 9, "suspend": true})), 0);
        assert_eq!(pods(json!({"replicas": -3, "maxReplicas": -1})), 0);
        assert_eq!(pods(json!({"replicas": i32::MAX, "numOfHosts": 2})), i32::MAX);
    }

    #[test]
    fn the_autoscaler_is_part_of_what_the_head_asks_for() {
        let head = |options: Value| {
            let cluster = cluster(json!({"enableInTreeAutoscaling": true, "autoscalerOptions": options,
                "headGroupSpec": {"template": {"spec": {"containers": [{"name": "h"}]}}}}));
            serde_json::to_value(&cluster.groups()[0].2.spec.as_ref().unwrap().containers).unwrap()
        };
        let default = head(Value::Null);
        assert_eq!(default[1]["name"], "autoscaler");
        assert_eq!(default[1]["resources"]["requests"], json!({"cpu": "500m", "memory": "512Mi"}));
        let own = head(json!({"resources": {"requests": {"cpu": 2}}}));
        assert_eq!(own[1]["resources"], json!({"requests": {"cpu": "2"}}));
        assert_eq!(cluster(json!({"headGroupSpec": {"template": {}}})).groups()[0].2.spec, None);
    }

    #[test]
    fn pods_may_be_there_until_it_is_said_to_be_suspended() {
        let with = |status: Value| {
            let cluster: RayCluster = serde_json::from_value(json!({"status": status})).unwrap();
            cluster.may_have_pods()
        };
        let suspended = |status: &str| {
            json!([{"type": "RayClusterSuspended", "status": status, "reason": "RayClusterSuspended", "message": "",
                "lastTransitionTime": "2026-11-15T00:00:00Z"}])
        };
        assert!(!with(json!({})));
        assert!(with(json!({"desiredWorkerReplicas": 1})));
        assert!(with(json!({"state": "suspended", "conditions": suspended("False")})), "it is being resumed");
        assert!(!with(json!({"state": "ready", "conditions": suspended("True")})));
        assert!(!with(json!({"state": "suspended"})), "without conditions, as KubeRay had it before");
    }
}
