//! Concurrent admission policies, in both spellings.

use std::collections::BTreeSet;

use super::{Gates, Verdict};
use crate::field::{Errors, Path};
use crate::kueue::cluster_queue::ClusterQueueSpec;
use crate::kueue::concurrent::{
    ConcurrentAdmission, ConcurrentAdmissionPolicy, ExplicitVariant, MAX_VARIANTS, Mode, ReleasedMode,
};

const SEED: &str = "concurrentAdmission";
const RELEASED: &str = "concurrentAdmissionPolicy";

pub fn validate(spec: &ClusterQueueSpec, path: &Path, gates: &Gates, verdict: &mut Verdict) {
    if !gates.concurrent_admission {
        let set = [(SEED, spec.concurrent_admission.is_some()), (RELEASED, spec.concurrent_admission_policy.is_some())];
        let ignored = set
            .into_iter()
            .filter(|(_, set)| *set)
            .map(|(field, _)| format!("{} is ignored: the feature gate ConcurrentAdmission is off", path.child(field)));
        verdict.warnings.extend(ignored);
        return;
    }
    if spec.concurrent_admission.is_some() && spec.concurrent_admission_policy.is_some() {
        let detail = "may not be set together with concurrentAdmission: they are two spellings of one policy";
        verdict.errors.forbidden(&path.child(RELEASED), detail);
        return;
    }
    if let Some(policy) = &spec.concurrent_admission_policy {
        one_group(spec, path, "ConcurrentAdmissionPolicy is defined", "", &mut verdict.errors);
        validate_released(policy, spec, &path.child(RELEASED), &mut verdict.errors);
    }
    if let Some(policy) = &spec.concurrent_admission {
        if policy.explicit_variants.is_empty() {
            let hint = "; list the variants in spec.concurrentAdmission.explicitVariants to use several";
            one_group(spec, path, "concurrentAdmission has no explicitVariants", hint, &mut verdict.errors);
        }
        validate_seed(policy, spec, &path.child(SEED), verdict);
    }
}

/// Where there is one variant for each flavor, it must be clear which flavors: those of the only group.
fn one_group(spec: &ClusterQueueSpec, path: &Path, when: &str, hint: &str, errors: &mut Errors) {
    let path = path.child("resourceGroups");
    match spec.resource_groups.as_slice() {
        [group] if group.flavors.len() > MAX_VARIANTS => {
            let detail =
                format!("cannot have more than {MAX_VARIANTS} resource flavors in the ResourceGroup when {when}{hint}");
            errors.invalid(&path.index(0).child("flavors"), group.flavors.len(), detail);
        }
        [_] => {}
        groups => {
            errors.invalid(&path, groups.len(), format!("must have exactly one ResourceGroup when {when}{hint}"));
        }
    }
}

fn validate_released(policy: &ConcurrentAdmissionPolicy, spec: &ClusterQueueSpec, path: &Path, errors: &mut Errors) {
    let Some(constraints) = &policy.migration.constraints else { return };
    let path = path.child("migration").child("constraints");
    let mode = policy.migration.mode;
    if mode != ReleasedMode::TryPreferredFlavors {
        let wanted = ReleasedMode::TryPreferredFlavors;
        errors.forbidden(&path, format!("may only be set when migration.mode is \"{wanted}\" (got \"{mode}\")"));
    } else if let Some(flavor) = &constraints.last_acceptable_flavor_name {
        a_flavor(flavor, spec, &path.child("lastAcceptableFlavorName"), errors);
    }
}

fn a_flavor(flavor: &str, spec: &ClusterQueueSpec, path: &Path, errors: &mut Errors) {
    let flavors: Vec<&str> = spec.flavors().collect();
    if !flavors.contains(&flavor) {
        let detail = format!("must be one of the flavors defined in the ClusterQueue: [{}]", flavors.join(" "));
        errors.invalid(path, flavor, detail);
    }
}

fn validate_seed(policy: &ConcurrentAdmission, spec: &ClusterQueueSpec, path: &Path, verdict: &mut Verdict) {
    let constraints = &policy.migration_constraints;
    let (min_flavor, min_variant) = (constraints.min_flavor.as_deref(), constraints.min_variant.as_deref());
    let explicit = &policy.explicit_variants;
    let at = path.child("migrationConstraints");
    let errors = &mut verdict.errors;
    for (field, set) in [("minFlavor", min_flavor.is_some()), ("minVariant", min_variant.is_some())] {
        if set && constraints.mode != Mode::UpgradeOnly {
            let detail =
                format!("may only be set when mode is \"{}\" (got \"{}\")", Mode::UpgradeOnly, constraints.mode);
            errors.forbidden(&at.child(field), detail);
        }
    }
    if let Some(flavor) = min_flavor {
        if explicit.is_empty() {
            a_flavor(flavor, spec, &at.child("minFlavor"), errors);
        } else {
            errors.forbidden(&at.child("minFlavor"), "may not be set together with explicitVariants: use minVariant");
        }
    }
    if let Some(variant) = min_variant {
        let names: Vec<&str> = explicit.iter().map(|v| v.name.as_str()).collect();
        if names.is_empty() {
            errors.forbidden(&at.child("minVariant"), "may only be set with explicitVariants: use minFlavor");
        } else if !names.contains(&variant) {
            let detail = format!("must be the name of one of explicitVariants: [{}]", names.join(" "));
            errors.invalid(&at.child("minVariant"), variant, detail);
        }
    }
    validate_explicit(explicit, spec, &path.child("explicitVariants"), verdict);
}

fn validate_explicit(explicit: &[ExplicitVariant], spec: &ClusterQueueSpec, path: &Path, verdict: &mut Verdict) {
    let errors = &mut verdict.errors;
    if explicit.len() > MAX_VARIANTS {
        errors.too_many(path, explicit.len(), MAX_VARIANTS);
    }
    let flavors: Vec<&str> = spec.flavors().collect();
    let mut seen = BTreeSet::new();
    for (i, variant) in explicit.iter().enumerate() {
        let path = path.index(i);
        if variant.name.is_empty() {
            errors.required(&path.child("name"), "");
        } else if !seen.insert(&variant.name) {
            errors.duplicate(&path.child("name"), variant.name.as_str());
        }
        let at = path.child("allowedResourceFlavors");
        if variant.allowed_resource_flavors.is_empty() {
            errors.required(&at, "a variant needs at least one flavor");
        }
        for (j, flavor) in variant.allowed_resource_flavors.iter().enumerate() {
            if !flavors.contains(&flavor.as_str()) {
                errors.not_supported(&at.index(j), flavor.as_str(), &flavors);
            }
        }
        let delays = [
            ("createDelaySeconds", variant.create_delay_seconds),
            ("deleteDelaySeconds", variant.delete_delay_seconds),
        ];
        for (field, secs) in delays {
            if let Some(secs) = secs.filter(|secs| *secs < 0) {
                errors.invalid(&path.child(field), secs, "must be greater than or equal to 0");
            }
        }
        verdict.warnings.extend(uncovered(variant, spec, &at));
    }
}

/// A variant without a flavor of some group can never hold a workload that asks for what the group covers. There may be
/// workloads that do not, so this is no error.
fn uncovered(variant: &ExplicitVariant, spec: &ClusterQueueSpec, path: &Path) -> Vec<String> {
    let lacks = |group: &&crate::kueue::quota::ResourceGroup| {
        !group.flavors.iter().any(|f| variant.allowed_resource_flavors.contains(&f.name))
    };
    let groups = spec.resource_groups.iter().filter(lacks);
    groups
        .map(|group| {
            format!(
                "{path}: no flavor for {}: workloads that ask for it never fit variant {:?}",
                group.covered_resources.join(", "),
                variant.name
            )
        })
        .collect()
}
