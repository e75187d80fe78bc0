//! Quotas and weights, of ClusterQueues and Cohorts.

use std::collections::BTreeSet;

use super::labels;
use crate::field::{Errors, Path};
use crate::kueue::fair_sharing::FairSharing;
use crate::kueue::quota::{FlavorQuotas, ResourceGroup, ResourceQuota};
use crate::quantity::Quantity;

const NEGATIVE: &str = "must be greater than or equal to 0";

/// Whose quotas they are: limits mean something only where there is someone to borrow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    ClusterQueue { in_cohort: bool },
    Cohort { has_parent: bool },
}

impl Holder {
    /// The field that is empty, if limits mean nothing.
    fn alone(self) -> Option<&'static str> {
        match self {
            Holder::ClusterQueue { in_cohort: false } => Some("cohort"),
            Holder::Cohort { has_parent: false } => Some("parent"),
            _ => None,
        }
    }
}

pub fn groups(groups: &[ResourceGroup], holder: Holder, path: &Path, errors: &mut Errors) {
    let (mut resources, mut flavors) = (BTreeSet::new(), BTreeSet::new());
    for (i, group) in groups.iter().enumerate() {
        let path = path.index(i);
        for (j, name) in group.covered_resources.iter().enumerate() {
            let path = path.child("coveredResources").index(j);
            labels::key_of(name, &path, errors);
            if !resources.insert(name) {
                errors.duplicate(&path, name.as_str());
            }
        }
        for (j, flavor) in group.flavors.iter().enumerate() {
            let path = path.child("flavors").index(j);
            flavor_quotas(flavor, &group.covered_resources, holder, &path, errors);
            if !flavors.insert(&flavor.name) {
                errors.duplicate(&path.child("name"), flavor.name.as_str());
            }
        }
    }
}

fn flavor_quotas(flavor: &FlavorQuotas, covered: &[String], holder: Holder, path: &Path, errors: &mut Errors) {
    // More quotas than resources is what the schema refuses.
    for (i, (quota, resource)) in flavor.resources.iter().zip(covered).enumerate() {
        let path = path.child("resources").index(i);
        if quota.name != *resource {
            errors.invalid(&path.child("name"), quota.name.as_str(), "must match the name in coveredResources");
        }
        resource_quota(quota, holder, &path, errors);
    }
}

fn resource_quota(quota: &ResourceQuota, holder: Holder, path: &Path, errors: &mut Errors) {
    not_negative(quota.nominal_quota, &path.child("nominalQuota"), errors);
    if let Some(limit) = quota.borrowing_limit {
        let path = path.child("borrowingLimit");
        only_with_others(limit, holder, &path, errors);
        not_negative(limit, &path, errors);
    }
    if let Some(limit) = quota.lending_limit {
        let path = path.child("lendingLimit");
        not_negative(limit, &path, errors);
        only_with_others(limit, holder, &path, errors);
        if matches!(holder, Holder::ClusterQueue { .. }) && limit > quota.nominal_quota {
            errors.invalid(&path, limit.to_string(), "must be less than or equal to the nominalQuota");
        }
    }
}

fn only_with_others(limit: Quantity, holder: Holder, path: &Path, errors: &mut Errors) {
    if let Some(empty) = holder.alone() {
        errors.invalid(path, limit.to_string(), format!("must be nil when {empty} is empty"));
    }
}

pub fn not_negative(amount: Quantity, path: &Path, errors: &mut Errors) {
    if amount.is_negative() {
        errors.invalid(path, amount.to_string(), NEGATIVE);
    }
}

pub fn weight(fair_sharing: Option<&FairSharing>, path: &Path, errors: &mut Errors) {
    let Some(weight) = fair_sharing.and_then(|f| f.weight) else { return };
    not_negative(weight, path, errors);
    if weight.nanos() == 1 {
        errors.invalid(path, weight.to_string(), "When not 0, weight must be > 10e-9");
    }
}

/// Upstream's bounds on the whole of a ClusterQueue.
pub fn totals(groups: &[ResourceGroup], path: &Path, errors: &mut Errors) {
    let total = |count: fn(&ResourceGroup) -> usize| groups.iter().map(count).sum::<usize>();
    for (what, found) in
        [("flavors", total(|g| g.flavors.len())), ("covered resources", total(|g| g.covered_resources.len()))]
    {
        if found > 256 {
            let detail = format!("total number of {what} across all resourceGroups must be ≤ 256, got {found}");
            errors.invalid(path, found, detail);
        }
    }
    for (i, group) in groups.iter().enumerate() {
        let found: usize = group.flavors.iter().map(|f| f.resources.len()).sum();
        if found > 512 {
            let detail =
                format!("number of flavor-resource combinations in a resourceGroup must be ≤ 512, got {found}");
            errors.invalid(&path.index(i), found, detail);
        }
    }
}
