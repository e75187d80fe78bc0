//! `ray.io/v1` RayClusters in queues: a pod set for the head, and one for each group of workers.
//!
//! Who makes the pods is nobody's business here: KubeRay on a cluster, `raycluster` in `usher up`. What they tell about
//! pods in the status is all that is known.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use usher_api::kueue::workload::PodSet;
use usher_api::kueue::workload_status::ReclaimablePod;
use usher_api::ray::keys::HEAD_POD_SET;
use usher_api::ray::status::ClusterCondition;
use usher_api::ray::{self, RayCluster};

use crate::queueing::addition::{Addition, AdditionError, gate, restore, topology_of, without_empty};
use crate::queueing::kind::{End, JobKind};
use crate::runtime::GroupResource;

impl JobKind for RayCluster {
    const API_VERSION: &'static str = ray::API_VERSION;
    const KIND: &'static str = "RayCluster";

    fn resource() -> GroupResource {
        GroupResource::new(ray::GROUP, "rayclusters")
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn is_suspended(&self) -> bool {
        RayCluster::is_suspended(self)
    }

    fn set_suspended(&mut self, suspended: bool) {
        self.spec.suspend = Some(suspended);
    }

    fn has_pods(&self) -> bool {
        self.may_have_pods()
    }

    /// It runs until somebody deletes it.
    fn end(&self) -> Option<End> {
        None
    }

    fn pod_sets(&self) -> Vec<PodSet> {
        let set = |(name, count, mut template): (String, i32, PodTemplateSpec)| {
            without_empty(&mut template);
            let topology_request = topology_of(&template);
            PodSet { name, template, count, min_count: None, topology_request }
        };
        self.groups().into_iter().map(set).collect()
    }

    fn reclaimable(&self) -> Vec<ReclaimablePod> {
        Vec::new()
    }

    fn are_pods_ready(&self, wanted: i32) -> bool {
        let head = i32::from(self.is(ClusterCondition::HeadPodReady));
        self.status.ready_worker_replicas.unwrap_or(0).saturating_add(head) >= wanted
    }

    fn pods_now(&self) -> i32 {
        let head = i32::from(self.may_have_pods());
        self.status.available_worker_replicas.unwrap_or(0).saturating_add(head)
    }

    fn is_elastic(&self) -> bool {
        RayCluster::is_elastic(self)
    }

    fn replica_size(&self, pod_set: &str) -> i32 {
        let groups = &self.spec.worker_group_specs;
        groups.iter().find(|group| group.pod_set() == pod_set).map_or(1, |group| group.hosts())
    }

    fn add(&mut self, additions: &[Addition]) -> Result<(), AdditionError> {
        let wanted = self.spec.worker_group_specs.len() + 1;
        let [head, workers @ ..] = additions else {
            return Err(AdditionError::OtherPodSets { assigned: 0, wanted });
        };
        if additions.len() != wanted {
            return Err(AdditionError::OtherPodSets { assigned: additions.len(), wanted });
        }
        let template = &mut self.spec.head_group_spec.template;
        *template = head.merged_into(template)?;
        for (group, addition) in self.spec.worker_group_specs.iter_mut().zip(workers) {
            group.template = addition.merged_into(&group.template)?;
        }
        Ok(())
    }

    fn gate_pods(&mut self) {
        gate(&mut self.spec.head_group_spec.template);
        self.spec.worker_group_specs.iter_mut().for_each(|group| gate(&mut group.template));
    }

    /// Groups that its Workload does not know were never added to.
    fn restore(&mut self, pod_sets: &[PodSet]) {
        let before = |name: &str| pod_sets.iter().find(|set| set.name == name).map(|set| &set.template);
        if let Some(before) = before(HEAD_POD_SET) {
            restore(&mut self.spec.head_group_spec.template, before, |_| false);
        }
        for group in &mut self.spec.worker_group_specs {
            if let Some(before) = before(&group.pod_set()) {
                restore(&mut group.template, before, |_| false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cluster(spec: Value, status: Value) -> RayCluster {
        let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c"}], "nodeSelector": {"zone": "a"}}});
        let group = |name: &str, replicas: i32, hosts: i32| json!({"groupName": name, "replicas": replicas, "numOfHosts": hosts, "template": template});
        let mut all = json!({"metadata": {"name": "r"}, "status": status, "spec": {
            "headGroupSpec": {"template": template},
            "workerGroupSpecs": [group("small", 2, 1), group("Big", 3, 4)]}});
        all["spec"].as_object_mut().unwrap().extend(spec.as_object().cloned().unwrap_or_default());
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn there_is_a_pod_set_for_the_head_and_one_for_each_group() {
        let sets = cluster(json!({}), json!({})).pod_sets();
        let shown: Vec<(&str, i32)> = sets.iter().map(|set| (set.name.as_str(), set.count)).collect();
        assert_eq!(shown, [("head", 1), ("small", 2), ("big", 12)]);
        let cluster = cluster(json!({}), json!({}));
        assert_eq!(["head", "small", "big"].map(|set| cluster.replica_size(set)), [1, 1, 4]);
    }

    #[test]
    fn what_was_added_to_each_group_is_taken_away_again_exactly() {
        let before = cluster(json!({"suspend": true, "gcsFaultToleranceOptions": {"a": 1}}), json!({}));
        let addition = |set: &str| Addition {
            count: 1,
            labels: [("kueue.x-k8s.io/podset".to_owned(), set.to_owned())].into(),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            node_selector: [("type".to_owned(), set.to_owned())].into(),
            tolerations: vec![serde_json::from_value(json!({"key": "spot"})).unwrap()],
        };
        let mut started = before.clone();
        assert!(started.add(&[addition("head")]).is_err(), "an admission of another cluster");
        started.add(&["head", "small", "big"].map(addition)).unwrap();
        started.gate_pods();
        let big = serde_json::to_value(&started.spec.worker_group_specs[1].template).unwrap();
        assert_eq!(big["metadata"]["labels"], json!({"app": "a", "kueue.x-k8s.io/podset": "big"}));
        assert_eq!(big["spec"]["nodeSelector"], json!({"zone": "a", "type": "big"}));
        assert_eq!(big["spec"]["schedulingGates"], json!([{"name": "kueue.x-k8s.io/elastic-job"}]));
        started.restore(&before.pod_sets());
        assert_eq!(started, before);
    }

    #[test]
    fn its_head_is_one_of_the_pods_that_are_ready() {
        let ready = |workers: i32, head: &str| {
            let conditions = json!([{"type": "HeadPodReady", "status": head, "reason": "R", "message": "",
                "lastTransitionTime": "2026-11-15T00:00:00Z"}]);
            cluster(json!({}), json!({"readyWorkerReplicas": workers, "conditions": conditions})).are_pods_ready(3)
        };
        assert!(ready(2, "True") && !ready(2, "False") && !ready(1, "True"));
    }

    #[test]
    fn one_that_autoscales_is_elastic_and_so_is_one_that_says_so() {
        assert!(!JobKind::is_elastic(&cluster(json!({}), json!({}))));
        assert!(JobKind::is_elastic(&cluster(json!({"enableInTreeAutoscaling": true}), json!({}))));
        let mut noted = cluster(json!({}), json!({}));
        noted.metadata.annotations = Some([("kueue.x-k8s.io/elastic-job".to_owned(), "true".to_owned())].into());
        assert!(JobKind::is_elastic(&noted));
    }
}
