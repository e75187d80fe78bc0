//! Whether a job still is what its Workload says.
//!
//! Compared by meaning: `1` and `1000m` are the same request, absent and empty the same map.

use usher_api::kueue::Workload;
use usher_api::kueue::workload::PodSet;

use super::addition::{Flavors, additions};
use super::kind::JobKind;

/// Whether a job that carries no addition asks for exactly what its Workload says. Everything in the template counts:
/// while a job is suspended, its owner may change where it runs and how big it is.
pub fn is_same<J: JobKind>(job: &J, workload: &Workload) -> bool {
    let (sets, said) = (job.pod_sets(), &workload.spec.pod_sets);
    max_run_secs(job) == workload.spec.maximum_execution_time_seconds
        && sets.len() == said.len()
        && sets.iter().zip(said).all(|(set, said)| {
            (&set.name, set.count, set.min_count) == (&said.name, said.count, said.min_count)
                && canonical(set) == canonical(said)
        })
}

/// Whether a job that carries no addition asks for exactly what its Workload says, however many pods of it.
pub fn is_same_at_another_size<J: JobKind>(job: &J, workload: &Workload) -> bool {
    let (sets, said) = (job.pod_sets(), &workload.spec.pod_sets);
    max_run_secs(job) == workload.spec.maximum_execution_time_seconds
        && sets.len() == said.len()
        && sets.iter().zip(said).all(|(set, said)| set.name == said.name && canonical(set) == canonical(said))
}

/// Whether each pod of a running job asks for what its Workload says, however many there are.
pub fn is_same_but_for_counts<J: JobKind>(job: &J, workload: &Workload) -> bool {
    let (sets, said) = (job.pod_sets(), &workload.spec.pod_sets);
    sets.len() == said.len()
        && sets.iter().zip(said).all(|(set, said)| set.name == said.name && containers(set) == containers(said))
}

/// Whether a running job asks for what was admitted. Its template cannot change while it runs, but others may have added
/// to it when it started: only what takes quota is compared, as upstream does.
pub fn is_running<J: JobKind>(job: &J, workload: &Workload, flavors: Flavors<'_>) -> bool {
    let Ok(added) = additions(workload, flavors) else { return true };
    let (sets, said) = (job.pod_sets(), &workload.spec.pod_sets);
    sets.len() == said.len()
        && sets.iter().zip(said).zip(&added).all(|((set, said), added)| {
            let count = if said.min_count.is_some() { added.count } else { said.count };
            set.name == said.name && set.count == count && containers(set) == containers(said)
        })
}

/// How long its owner lets it be admitted, in all.
pub fn max_run_secs<J: JobKind>(job: &J) -> Option<i32> {
    let key = usher_api::kueue::keys::label::MAX_EXEC_TIME_SECONDS;
    let said = job.metadata().labels.as_ref().and_then(|labels| labels.get(key));
    said.and_then(|text| text.parse().ok()).filter(|secs| *secs > 0)
}

/// The template with quantities as Go writes them and nothing empty.
fn canonical(set: &PodSet) -> Option<serde_json::Value> {
    let mut template = set.template.clone();
    super::addition::without_empty(&mut template);
    let read: PodSet = serde_json::from_value(serde_json::json!({"template": template})).ok()?;
    serde_json::to_value(read.template).ok()
}

fn containers(set: &PodSet) -> Option<(serde_json::Value, serde_json::Value)> {
    let canonical = canonical(set)?;
    let part = |name: &str| canonical.pointer(&format!("/spec/{name}")).cloned().unwrap_or_default();
    Some((part("containers"), part("initContainers")))
}
