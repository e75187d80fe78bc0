//! `batch/v1` Jobs in queues: one pod set, `main`.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use usher_api::kueue::keys::{MAIN_POD_SET, annotation};
use usher_api::kueue::workload::PodSet;
use usher_api::kueue::workload_status::ReclaimablePod;

use crate::queueing::addition::{Addition, AdditionError, gate, restore, topology_of, without_empty};
use crate::queueing::kind::{End, JobKind};
use crate::runtime::GroupResource;

/// Labels that the Job API itself puts into templates. The name is left: people select by it.
const GENERATED: [&str; 3] = ["job-name", "controller-uid", "batch.kubernetes.io/controller-uid"];
const KEPT: &str = "batch.kubernetes.io/job-name";

impl JobKind for Job {
    const API_VERSION: &'static str = "batch/v1";
    const KIND: &'static str = "Job";

    fn resource() -> GroupResource {
        GroupResource::new("batch", "jobs")
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn is_suspended(&self) -> bool {
        self.spec.as_ref().and_then(|spec| spec.suspend).unwrap_or(false)
    }

    fn set_suspended(&mut self, suspended: bool) {
        self.spec.get_or_insert_default().suspend = Some(suspended);
    }

    fn has_pods(&self) -> bool {
        self.status.as_ref().is_some_and(|s| s.active.unwrap_or(0) > 0 || s.terminating.unwrap_or(0) > 0)
    }

    fn end(&self) -> Option<End> {
        let conditions = self.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let last = conditions.filter(|c| c.status == "True").find(|c| matches!(&*c.type_, "Complete" | "Failed"))?;
        Some(End { succeeded: last.type_ == "Complete", message: last.message.clone().unwrap_or_default() })
    }

    fn pod_sets(&self) -> Vec<PodSet> {
        let mut template = self.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
            labels.retain(|key, _| !GENERATED.contains(&key.as_str()));
        }
        without_empty(&mut template);
        let (name, topology_request) = (MAIN_POD_SET.to_owned(), topology_of(&template));
        vec![PodSet { name, template, count: pods(self), min_count: least(self), topology_request }]
    }

    fn reclaimable(&self) -> Vec<ReclaimablePod> {
        let Some(spec) = &self.spec else { return Vec::new() };
        let parallelism = spec.parallelism.unwrap_or(1);
        let completions = spec.completions.unwrap_or(parallelism);
        let ended = ended(self, completions);
        let left = (completions - ended).max(0);
        if parallelism <= 1 || ended == 0 || left >= parallelism {
            return Vec::new();
        }
        vec![ReclaimablePod { name: MAIN_POD_SET.to_owned(), count: parallelism - left }]
    }

    fn pods_now(&self) -> i32 {
        self.status.as_ref().map_or(0, |s| s.active.unwrap_or(0).saturating_add(s.terminating.unwrap_or(0)))
    }

    fn are_pods_ready(&self, wanted: i32) -> bool {
        let Some(status) = &self.status else { return false };
        let uncounted = status.uncounted_terminated_pods.iter().flat_map(|u| u.succeeded.iter().flatten()).count();
        let uncounted = i32::try_from(uncounted).unwrap_or(i32::MAX);
        let ready = status.ready.unwrap_or(0).saturating_add(status.succeeded.unwrap_or(0));
        ready.saturating_add(uncounted) >= wanted
    }

    fn add(&mut self, additions: &[Addition]) -> Result<(), AdditionError> {
        let [addition] = additions else {
            return Err(AdditionError::OtherPodSets { assigned: additions.len(), wanted: 1 });
        };
        if least(self).is_some() {
            set_parallelism(self, addition.count);
        }
        let spec = self.spec.get_or_insert_default();
        spec.template = addition.merged_into(&spec.template)?;
        Ok(())
    }

    fn gate_pods(&mut self) {
        gate(&mut self.spec.get_or_insert_default().template);
    }

    fn restore(&mut self, pod_sets: &[PodSet]) {
        let [before] = pod_sets else { return };
        if least(self).is_some() {
            set_parallelism(self, before.count);
        }
        let spec = self.spec.get_or_insert_default();
        restore(&mut spec.template, &before.template, |key| GENERATED.contains(&key) || key == KEPT);
    }
}

/// How many pods run at once.
fn pods(job: &Job) -> i32 {
    let Some(spec) = &job.spec else { return 0 };
    let parallelism = spec.parallelism.unwrap_or(1);
    spec.completions.map_or(parallelism, |completions| completions.min(parallelism))
}

fn noted<'j>(job: &'j Job, key: &str) -> Option<&'j str> {
    job.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// How few pods will do, where its owner said so.
fn least(job: &Job) -> Option<i32> {
    noted(job, annotation::MIN_PARALLELISM)?.parse().ok()
}

fn set_parallelism(job: &mut Job, count: i32) {
    // As Go reads truth.
    let words = ["1", "t", "T", "TRUE", "true", "True"];
    let together = noted(job, annotation::COMPLETIONS_EQUAL_PARALLELISM).is_some_and(|said| words.contains(&said));
    let spec = job.spec.get_or_insert_default();
    spec.parallelism = Some(count);
    if together {
        spec.completions = Some(count);
    }
}

/// Completions, or indexes, that will never need a pod again.
fn ended(job: &Job, completions: i32) -> i32 {
    let Some(status) = &job.status else { return 0 };
    if job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) != Some("Indexed") {
        return status.succeeded.unwrap_or(0);
    }
    let lists = [&status.completed_indexes, &status.failed_indexes];
    let texts = lists.into_iter().flatten().flat_map(|list| list.split(','));
    let mut ranges: Vec<(i32, i32)> = texts.filter_map(|text| range(text, completions)).collect();
    ranges.sort_unstable();
    let (mut count, mut next) = (0, 0);
    for (first, last) in ranges {
        count += (last + 1 - first.max(next)).max(0);
        next = next.max(last + 1);
    }
    count
}

/// `3` or `3-5`, cut at `completions`: an elastic Job that shrank may still list what is beyond.
fn range(text: &str, completions: i32) -> Option<(i32, i32)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
    let last = last.min(completions - 1);
    (first >= 0 && first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(spec: serde_json::Value, status: serde_json::Value) -> Job {
        serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn a_job_asks_for_no_more_pods_than_it_has_completions() {
        let count = |spec| job(spec, json!({})).pod_sets()[0].count;
        assert_eq!(count(json!({"parallelism": 5, "completions": 3, "template": {}})), 3);
        assert_eq!(count(json!({"parallelism": 2, "completions": 3, "template": {}})), 2);
        assert_eq!(count(json!({"parallelism": 4, "template": {}})), 4);
        assert_eq!(count(json!({"template": {}})), 1);
    }

    #[test]
    fn labels_that_the_job_api_makes_are_not_part_of_its_pod_set() {
        let labels = json!({"app": "a", "job-name": "j", "controller-uid": "u", "batch.kubernetes.io/controller-uid": "u",
            "batch.kubernetes.io/job-name": "j"});
        let set = &job(json!({"template": {"metadata": {"labels": labels}}}), json!({})).pod_sets()[0];
        let kept = set.template.metadata.as_ref().unwrap().labels.as_ref().unwrap();
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["app", "batch.kubernetes.io/job-name"]);
    }

    #[test]
    fn pods_are_reclaimed_when_less_is_left_to_do_than_runs_at_once() {
        let reclaimed = |completions, status| {
            let spec = json!({"parallelism": 5, "completions": completions, "template": {}});
            job(spec, status).reclaimable().first().map_or(0, |pod| pod.count)
        };
        assert_eq!(reclaimed(10, json!({"succeeded": 4})), 0, "six left for five");
        assert_eq!(reclaimed(10, json!({"succeeded": 7})), 2);
        assert_eq!(reclaimed(5, json!({})), 0);
        assert_eq!(reclaimed(5, json!({"succeeded": 5})), 5);
    }

    #[test]
    fn indexes_are_counted_once_and_not_beyond_completions() {
        let spec = json!({"parallelism": 6, "completions": 6, "completionMode": "Indexed", "template": {}});
        let reclaimed = |completed, failed| {
            let status = json!({"completedIndexes": completed, "failedIndexes": failed, "succeeded": 99});
            job(spec.clone(), status).reclaimable().first().map_or(0, |pod| pod.count)
        };
        assert_eq!(reclaimed("0-2", ""), 3);
        assert_eq!(reclaimed("0-2", "2-3"), 4, "an index in both lists");
        assert_eq!(reclaimed("0,4-9", ""), 3, "an elastic Job that shrank");
        assert_eq!(reclaimed("5-3,x,-1", ""), 0, "nonsense");
    }

    #[test]
    fn what_was_added_is_taken_away_again_exactly() {
        let template = json!({"metadata": {"labels": {"job-name": "j", "batch.kubernetes.io/job-name": "j", "app": "a"}},
            "spec": {"containers": [{"name": "c"}], "nodeSelector": {"zone": "a"}, "tolerations": [{"key": "own"}]}});
        let before = job(json!({"template": template, "parallelism": 2, "suspend": true}), json!({}));
        let addition = Addition {
            count: 2,
            labels: [("kueue.x-k8s.io/podset".to_owned(), "main".to_owned())].into(),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            node_selector: [("type".to_owned(), "spot".to_owned())].into(),
            tolerations: vec![serde_json::from_value(json!({"key": "spot"})).unwrap()],
        };
        let mut started = before.clone();
        started.add(&[addition]).unwrap();
        let spec = started.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        assert_eq!(spec.node_selector.as_ref().unwrap().len(), 2);
        assert_eq!(spec.tolerations.as_ref().unwrap().len(), 2);
        started.restore(&before.pod_sets());
        assert_eq!(started, before);
    }

    #[test]
    fn a_job_that_is_admitted_in_part_runs_with_less_and_comes_back_whole() {
        let mut partial = job(json!({"parallelism": 8, "completions": 8, "template": {}}), json!({}));
        let notes = [(annotation::MIN_PARALLELISM, "3"), (annotation::COMPLETIONS_EQUAL_PARALLELISM, "true")];
        partial.metadata.annotations = Some(notes.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let whole = partial.pod_sets();
        assert_eq!((whole[0].count, whole[0].min_count), (8, Some(3)));
        partial.add(&[Addition { count: 5, ..Addition::default() }]).unwrap();
        let spec = partial.spec.clone().unwrap();
        assert_eq!((spec.parallelism, spec.completions), (Some(5), Some(5)));
        partial.restore(&whole);
        let spec = partial.spec.unwrap();
        assert_eq!((spec.parallelism, spec.completions), (Some(8), Some(8)));
    }
}
