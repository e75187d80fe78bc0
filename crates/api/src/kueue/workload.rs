//! Workload: what asks for quota, made for a job or by anyone.

use k8s_openapi::api::core::v1::PodTemplateSpec;

use super::conditions::{self, WorkloadCondition};
use super::keys::{self, annotation, label};
use super::workload_status::WorkloadStatus;
use super::{API_VERSION, template, workload_rules as rules};
use crate::crd::{Definition, Schema, kind, object, words};

/// Pod sets of one Workload at most.
pub const MAX_POD_SETS: usize = 18;

kind! {
    /// What asks for quota, made for a job or by anyone.
    Workload in "kueue.x-k8s.io" "v1beta2", Namespaced "workloads" {
        spec: WorkloadSpec = WorkloadSpec::schema(),
        status: WorkloadStatus = WorkloadStatus::schema(),
    } where
        rules::POD_SET_COUNT => "podSetAssignments must have the same number of podSets as the spec",
        rules::PRIORITY_CLASS => "priorityClassRef is immutable while workload quota reserved",
        rules::PRIORITY_CLASS_GROUP => "priorityClassRef.group is immutable while workload quota reserved",
        rules::PRIORITY_CLASS_KIND => "priorityClassRef.kind is immutable while workload quota reserved",
        rules::PRIORITY_CLASS_NAME =>
            "priorityClassRef.name is immutable for scheduling.k8s.io/priorityclass while workload quota reserved",
        rules::QUEUE_NAME => "queueName is immutable while workload quota reserved",
        rules::EXECUTION_TIME => "maximumExecutionTimeSeconds is immutable while workload quota reserved",
}

object! {
    WorkloadSpec {
        /// Groups of equal pods.
        pod_sets: Vec<PodSet> = Schema::list(PodSet::schema()).min_items(1).max_items(MAX_POD_SETS).keyed(&["name"]),
        /// The LocalQueue it waits in.
        queue_name: String = Schema::subdomain(),
        /// Where its priority comes from.
        priority_class_ref: Option<PriorityClassRef> = PriorityClassRef::schema(),
        /// Its priority; higher comes first.
        priority: Option<i32> = Schema::int32(),
        /// False: it is not admitted, and evicted if it was.
        active: Option<bool> = Schema::boolean().default_to(true),
        /// How long it may be admitted, in all.
        maximum_execution_time_seconds: Option<i32> = Schema::int32().min(1),
        /// While one of them is closed, it preempts nobody.
        preemption_gates: Vec<PreemptionGate> =
            Schema::list(PreemptionGate::schema()).max_items(8).keyed(&["name"]),
        /// What it may be admitted on.
        admission_constraints: Option<AdmissionConstraints> = AdmissionConstraints::schema(),
    } where
        rules::PRIORITY => "priority should not be nil when priorityClassRef is set",
}

object! {
    AdmissionConstraints {
        /// If set, only flavors of this list are assigned.
        allowed_resource_flavors: Vec<String> = Schema::list(Schema::subdomain()).max_items(256).set(),
    }
}

object! {
    PriorityClassRef {
        /// Group of the class.
        group: PriorityClassGroup = PriorityClassGroup::schema().required(),
        /// Kind of the class.
        kind: PriorityClassKind = PriorityClassKind::schema().required(),
        /// Name of the class.
        name: String = Schema::subdomain().min_len(1).required(),
    } where
        "(self.group == 'scheduling.k8s.io') ? self.kind == 'PriorityClass' : true" =>
            "only the PriorityClass kind is allowed for the scheduling.k8s.io group",
        "(self.group == 'kueue.x-k8s.io') ? self.kind == 'WorkloadPriorityClass' : true" =>
            "only the WorkloadPriorityClass kind is allowed for the kueue.x-k8s.io group",
}

words! {
    PriorityClassGroup {
        Kueue = "kueue.x-k8s.io",
        Scheduling = "scheduling.k8s.io",
    }
}

words! {
    PriorityClassKind {
        WorkloadPriorityClass = "WorkloadPriorityClass",
        PriorityClass = "PriorityClass",
    }
}

impl PriorityClassRef {
    pub fn workload(name: &str) -> PriorityClassRef {
        let (group, kind) = (PriorityClassGroup::Kueue, PriorityClassKind::WorkloadPriorityClass);
        PriorityClassRef { group, kind, name: name.to_owned() }
    }

    pub fn pod(name: &str) -> PriorityClassRef {
        let (group, kind) = (PriorityClassGroup::Scheduling, PriorityClassKind::PriorityClass);
        PriorityClassRef { group, kind, name: name.to_owned() }
    }
}

/// A group of equal pods.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSet {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(deserialize_with = "template::lenient")]
    pub template: PodTemplateSpec,
    pub count: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_count: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_request: Option<PodSetTopologyRequest>,
}

impl Default for PodSet {
    /// What the schema fills in.
    fn default() -> PodSet {
        PodSet {
            name: keys::MAIN_POD_SET.to_owned(),
            template: PodTemplateSpec::default(),
            count: 1,
            min_count: None,
            topology_request: None,
        }
    }
}

impl PodSet {
    pub fn schema() -> Schema {
        Schema::object()
            .field("count", "How many pods.", Schema::int32().min(0).default_to(1))
            .field("minCount", "How few will do, if quota is short. One pod set only.", Schema::int32().min(1))
            .field("name", "Unique in the workload.", Schema::label().default_to(keys::MAIN_POD_SET))
            // Any pod template; what it says is checked in code. The schema of pods is 8,000 lines that every write
            // of a Workload would be walked along.
            .field("template", "The pod, as in a Job.", Schema::anything().required())
            .field("topologyRequest", "Where its pods go together.", PodSetTopologyRequest::schema())
            .rule(rules::MIN_COUNT, "minCount should be positive and less or equal to count")
    }
}

object! {
    PodSetTopologyRequest {
        /// The level within which all pods must be.
        required: Option<String> = Schema::string().max_len(63),
        /// The level within which all pods should be.
        preferred: Option<String> = Schema::string().max_len(63),
        /// Any place will do.
        unconstrained: Option<bool> = Schema::boolean(),
        /// The label of pods that has their index.
        pod_index_label: Option<String> = Schema::string().max_len(317),
        /// The label of pods that has the index of their subgroup.
        sub_group_index_label: Option<String> = Schema::string().max_len(317),
        /// How many subgroups.
        sub_group_count: Option<i32> = Schema::int32().min(0),
        /// Pod sets of one group get the same flavor and place.
        pod_set_group_name: Option<String> = Schema::string().max_len(256),
        /// The level within which each slice must be.
        pod_set_slice_required_topology: Option<String> = Schema::string().max_len(63),
        /// Pods of a slice.
        pod_set_slice_size: Option<i32> = Schema::int32().min(1),
        /// Slices of slices, from the widest.
        podset_slice_required_topology_constraints: Vec<SliceTopologyConstraint> =
            Schema::list(SliceTopologyConstraint::schema()).max_items(3).atomic(),
    }
}

object! {
    SliceTopologyConstraint {
        /// The level.
        topology: String = Schema::string().min_len(1).max_len(63).required(),
        /// Pods of a slice at this level.
        size: i32 = Schema::int32().min(1).required(),
    }
}

object! {
    PreemptionGate {
        /// Unique in the workload.
        name: String = Schema::string().min_len(1).max_len(63).required(),
    }
}

/// What a Workload is in concurrent admission and elastic jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Regular,
    /// Has Variants; never scheduled itself.
    Parent,
    Variant,
    /// One added replica of an elastic job.
    Slice,
}

impl Workload {
    pub fn definition() -> Definition {
        Workload::declared()
            .short(&["kwl", "kueueworkload", "kueueworkloads"])
            .with_status()
            .selectable(".status.admission.clusterQueue")
            .column("Queue", "string", ".spec.queueName", false, "Name of the queue this workload was submitted to")
            .column(
                "Reserved in",
                "string",
                ".status.admission.clusterQueue",
                false,
                "Name of the ClusterQueue where the workload is reserving quota",
            )
            .column("Admitted", "string", ".status.conditions[?(@.type=='Admitted')].status", false, "Admission status")
            .column(
                "Finished",
                "string",
                ".status.conditions[?(@.type=='Finished')].status",
                false,
                "Workload finished",
            )
            .column("Age", "date", ".metadata.creationTimestamp", false, "Time this workload was created")
    }

    pub fn is(&self, condition: WorkloadCondition) -> bool {
        conditions::is_true(&self.status.conditions, condition.as_str())
    }

    /// Whether it may be admitted at all.
    pub fn is_active(&self) -> bool {
        self.spec.active.unwrap_or(true)
    }

    pub fn priority(&self) -> i32 {
        self.spec.priority.unwrap_or(0)
    }

    pub fn is_elastic(&self) -> bool {
        self.annotation(annotation::ELASTIC_JOB) == Some(keys::TRUE)
    }

    /// The flavors it is limited to, by its spec or by Kueue's annotation; `None`: no limit.
    pub fn allowed_flavors(&self) -> Option<Vec<&str>> {
        let said = self.spec.admission_constraints.iter().flat_map(|c| &c.allowed_resource_flavors);
        let said: Vec<&str> = said.map(String::as_str).collect();
        if !said.is_empty() {
            return Some(said);
        }
        let list = self.annotation(annotation::ALLOWED_RESOURCE_FLAVORS)?;
        let list: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        Some(list).filter(|list| !list.is_empty())
    }

    pub fn role(&self) -> Role {
        if self.label(label::WORKLOAD_SLICE) == Some(keys::TRUE) {
            Role::Slice
        } else if self.parent_uid().is_some() {
            Role::Variant
        } else if self.label(label::CONCURRENT_ADMISSION_PARENT) == Some(keys::TRUE)
            || self.annotation(annotation::PARENT_VARIANT) == Some(keys::TRUE)
        {
            Role::Parent
        } else {
            Role::Regular
        }
    }

    /// The uid of the Workload that owns this one: the Parent of a Variant, or of a slice.
    pub fn parent_uid(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        let mut parents = owners.filter(|o| o.kind == "Workload" && o.api_version == API_VERSION);
        parents.next().map(|o| o.uid.as_str())
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: serde_json::Value) -> Workload {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_workload_is_written_as_upstream_writes_it() {
        let sent = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w", "namespace": "n"},
            "spec": {"podSets": [{"name": "main", "count": 3, "template": {"spec": {"containers": [{"name": "c"}]}}}],
                "queueName": "q", "priority": 0},
            "status": {"admission": {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 3,
                    "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "3"}}]},
                "reclaimablePods": [{"name": "main", "count": 0}]}});
        assert_eq!(serde_json::to_value(read(sent.clone())).unwrap(), sent);
    }

    #[test]
    fn what_is_not_set_is_not_written() {
        let empty = serde_json::to_value(Workload::default()).unwrap();
        assert_eq!(empty, json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {}}));
    }

    #[test]
    fn roles_are_told_by_labels_and_owners() {
        let owner = json!([{"apiVersion": API_VERSION, "kind": "Workload", "name": "p", "uid": "u"}]);
        let job = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "p", "uid": "u"}]);
        assert_eq!(read(json!({"metadata": {"ownerReferences": job}})).role(), Role::Regular);
        assert_eq!(read(json!({"metadata": {"ownerReferences": owner}})).role(), Role::Variant);
        let slice = json!({"metadata": {"ownerReferences": owner, "labels": {label::WORKLOAD_SLICE: "true"}}});
        assert_eq!(read(slice).role(), Role::Slice);
        let released = json!({"metadata": {"labels": {label::CONCURRENT_ADMISSION_PARENT: "true"}}});
        assert_eq!(read(released).role(), Role::Parent);
        let seed = json!({"metadata": {"annotations": {annotation::PARENT_VARIANT: "true"}}});
        assert_eq!(read(seed).role(), Role::Parent);
    }

    #[test]
    fn allowed_flavors_come_from_the_spec_or_the_annotation() {
        let spec = read(json!({"spec": {"admissionConstraints": {"allowedResourceFlavors": ["a", "b"]}}}));
        assert_eq!(spec.allowed_flavors(), Some(vec!["a", "b"]));
        let noted = read(json!({"metadata": {"annotations": {annotation::ALLOWED_RESOURCE_FLAVORS: "a, b,"}}}));
        assert_eq!(noted.allowed_flavors(), Some(vec!["a", "b"]));
        assert_eq!(read(json!({})).allowed_flavors(), None);
    }
}
