//! How much the Variants of an elastic job ask for: what it has now, so that a migration moves it at its current size.
//!
//! What is admitted changes elsewhere (`queueing::elastic`): slices are folded into the admitted Variant. Here specs follow.

use usher_api::kueue::Workload;
use usher_api::kueue::concurrent::Variant;
use usher_api::kueue::workload::{PodSet, WorkloadSpec};

use super::decide::Family;
use super::make;

impl Family<'_> {
    /// What a Variant is to ask for. While one of an elastic job is admitted, all ask for as many pods as that has.
    pub(super) fn asked(&self, variant: &Variant) -> WorkloadSpec {
        let mut asked = make::spec(self.parent, variant);
        let admission = self.admitted().and_then(|member| member.object.status.admission.as_ref());
        let admission = admission.filter(|_| self.parent.is_elastic());
        for got in admission.into_iter().flat_map(|admission| &admission.pod_set_assignments) {
            let set = asked.pod_sets.iter_mut().find(|set| set.name == got.name);
            if let (Some(set), Some(count)) = (set, got.count) {
                set.count = count;
            }
        }
        asked
    }
}

/// Whether the one that runs only has to say what it has: nothing but counts differ, and those are admitted.
pub(super) fn is_resized(object: &Workload, asked: &WorkloadSpec) -> bool {
    let at_its_size = |(set, own): (&PodSet, &PodSet)| PodSet { count: own.count, ..set.clone() } == *own;
    object.is_elastic()
        && asked.pod_sets.len() == object.spec.pod_sets.len()
        && asked.pod_sets.iter().zip(&object.spec.pod_sets).all(at_its_size)
}
