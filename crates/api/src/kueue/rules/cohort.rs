//! Cohorts.

use super::quotas::{self, Holder};
use crate::field::{Errors, Path};
use crate::kueue::Cohort;

pub fn validate(cohort: &Cohort, errors: &mut Errors) {
    let spec = Path::new("spec");
    let holder = Holder::Cohort { has_parent: !cohort.spec.parent_name.is_empty() };
    quotas::weight(cohort.spec.fair_sharing.as_ref(), &spec.child("fairSharing"), errors);
    quotas::groups(&cohort.spec.resource_groups, holder, &spec.child("resourceGroups"), errors);
}
