//! ClusterQueues.

use std::collections::{BTreeMap, BTreeSet};

use super::quotas::{self, Holder};
use super::{Gates, Verdict, concurrent, labels};
use crate::field::{Errors, Path};
use crate::kueue::ClusterQueue;
use crate::kueue::cluster_queue::{
    BorrowPolicy, ClusterQueuePreemption, ClusterQueueSpec, FlavorFungibility, ReclaimWithinCohort, WhenCanBorrow,
    WhenCanPreempt,
};

pub fn validate(new: &ClusterQueue, old: Option<&ClusterQueue>, gates: &Gates, verdict: &mut Verdict) {
    let (path, spec, errors) = (Path::new("spec"), &new.spec, &mut verdict.errors);
    let groups = path.child("resourceGroups");
    let holder = Holder::ClusterQueue { in_cohort: !spec.cohort_name.is_empty() };
    quotas::groups(&spec.resource_groups, holder, &groups, errors);
    if let Some(selector) = &spec.namespace_selector {
        labels::selector(selector, &path.child("namespaceSelector"), errors);
    }
    if let Some(preemption) = &spec.preemption {
        validate_preemption(preemption, &path.child("preemption"), errors);
    }
    if let Some(fungibility) = &spec.flavor_fungibility {
        validate_fungibility(fungibility, &path.child("flavorFungibility"), errors);
    }
    quotas::weight(spec.fair_sharing.as_ref(), &path.child("fairSharing"), errors);
    quotas::totals(&spec.resource_groups, &groups, errors);
    concurrent::validate(spec, &path, gates, verdict);
    validate_checks(spec, old.map(|old| &old.spec), &path, &mut verdict.errors);
}

fn validate_preemption(preemption: &ClusterQueuePreemption, path: &Path, errors: &mut Errors) {
    let borrows = preemption.borrow_within_cohort.as_ref().is_some_and(|b| b.policy != BorrowPolicy::Never);
    if preemption.reclaim_within_cohort == ReclaimWithinCohort::Never && borrows {
        let value = serde_json::to_value(preemption).unwrap_or_default();
        errors.invalid(path, value, "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never");
    }
}

fn validate_fungibility(fungibility: &FlavorFungibility, path: &Path, errors: &mut Errors) {
    let tries_all = fungibility.when_can_borrow == WhenCanBorrow::TryNextFlavor
        && fungibility.when_can_preempt == WhenCanPreempt::TryNextFlavor;
    if let Some(preference) = fungibility.preference.filter(|_| !tries_all) {
        let detail =
            format!("preference \"{preference}\" requires both whenCanBorrow and whenCanPreempt to be TryNextFlavor");
        errors.invalid(&path.child("preference"), preference.as_str(), detail);
    }
}

/// Checks may be limited to flavors that the queue has. One stored with others before this was a rule may stay as it is, as
/// long as neither it nor the flavors change.
fn validate_checks(new: &ClusterQueueSpec, old: Option<&ClusterQueueSpec>, path: &Path, errors: &mut Errors) {
    let Some(strategy) = &new.admission_checks_strategy else { return };
    let mut listed = BTreeSet::new();
    let flavors: Vec<&str> = new.flavors().filter(|f| listed.insert(*f)).collect();
    let as_before: BTreeMap<&str, BTreeSet<&str>> = old
        .filter(|old| old.flavors().collect::<BTreeSet<_>>() == listed)
        .and_then(|old| old.admission_checks_strategy.as_ref())
        .map(|old| old.admission_checks.iter().map(|c| (c.name.as_str(), names(&c.on_flavors))).collect())
        .unwrap_or_default();
    let path = path.child("admissionChecksStrategy").child("admissionChecks");
    for (i, check) in strategy.admission_checks.iter().enumerate() {
        if as_before.get(check.name.as_str()) == Some(&names(&check.on_flavors)) {
            continue;
        }
        for (j, flavor) in check.on_flavors.iter().enumerate() {
            if !listed.contains(flavor.as_str()) {
                errors.not_supported(&path.index(i).child("onFlavors").index(j), flavor.as_str(), &flavors);
            }
        }
    }
}

fn names(list: &[String]) -> BTreeSet<&str> {
    list.iter().map(String::as_str).collect()
}
