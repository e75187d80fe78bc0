//! Concurrent admission: a workload races for several flavors at once and may move up to better ones.
//!
//! The seed and Kueue spell the policy differently ([`ConcurrentAdmission`], [`ConcurrentAdmissionPolicy`]); [`lower`] turns
//! either into one [`Policy`], resolved against the flavors of its ClusterQueue. What is wrong with a policy is said by
//! [`super::rules`]; `lower` takes what those rules accept, and reads the rest as well as it can, because a queue may have
//! been stored before a rule existed.

use super::cluster_queue::ClusterQueueSpec;
use crate::crd::{Schema, object, words};

/// Variants of one workload at most, whether spelled out or one for each flavor.
pub const MAX_VARIANTS: usize = 16;

object! {
    /// Whether workloads race for several flavors at once, and what happens after the first admission.
    ConcurrentAdmission {
        /// Whether and how far a running workload moves to better flavors.
        migration_constraints: MigrationConstraints = MigrationConstraints::schema().required(),
        /// The variants, best first. None: one for each flavor of the ClusterQueue.
        explicit_variants: Vec<ExplicitVariant> =
            Schema::list(ExplicitVariant::schema()).max_items(MAX_VARIANTS).keyed(&["name"]),
    }
}

object! {
    MigrationConstraints {
        /// UpgradeOnly: keep trying better ones. NoMigration: the first admission stands.
        mode: Mode = Mode::schema().required(),
        /// The least flavor to move to. Only with UpgradeOnly and without explicit variants.
        min_flavor: Option<String> = Schema::subdomain(),
        /// The least variant to move to. Only with UpgradeOnly and explicit variants.
        min_variant: Option<String> = Schema::subdomain(),
    }
}

words! {
    Mode {
        /// After an admission, better variants keep trying; worse ones stop.
        UpgradeOnly = "UpgradeOnly",
        /// After an admission, all other variants stop.
        NoMigration = "NoMigration",
    }
}

object! {
    ExplicitVariant {
        /// Unique in the ClusterQueue; part of the variant's name.
        name: String = Schema::subdomain().min_len(1).required(),
        /// The flavors it may use, of any resource group.
        allowed_resource_flavors: Vec<String> =
            Schema::list(Schema::subdomain()).min_items(1).max_items(256).set().required(),
        /// How long after the workload's creation it begins to try.
        create_delay_seconds: Option<i32> = Schema::int32().min(0),
        /// How long after another's admission it stops trying.
        delete_delay_seconds: Option<i32> = Schema::int32().min(0),
    }
}

object! {
    /// Kueue's spelling.
    ConcurrentAdmissionPolicy {
        /// Whether and how far a running workload moves to better flavors.
        migration: ConcurrentAdmissionMigration = ConcurrentAdmissionMigration::schema().required(),
    }
}

object! {
    ConcurrentAdmissionMigration {
        /// TryPreferredFlavors is UpgradeOnly, RetainFirstAdmission is NoMigration.
        mode: ReleasedMode = ReleasedMode::schema().max_len(253).required(),
        /// How far to move.
        constraints: Option<ConcurrentAdmissionConstraints> = ConcurrentAdmissionConstraints::schema(),
    }
}

object! {
    ConcurrentAdmissionConstraints {
        /// The least flavor to move to.
        last_acceptable_flavor_name: Option<String> = Schema::subdomain(),
    }
}

words! {
    ReleasedMode {
        TryPreferredFlavors = "TryPreferredFlavors",
        RetainFirstAdmission = "RetainFirstAdmission",
    }
}

/// The policy of a ClusterQueue, whichever way it was spelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub mode: Mode,
    /// Best first.
    pub variants: Vec<Variant>,
    /// How many of the variants, from the best, a running workload may move to. With [`Mode::NoMigration`]: none.
    pub targets: usize,
}

/// One way of admitting a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The flavor's name, or the explicit variant's.
    pub name: String,
    pub allowed_flavors: Vec<String>,
    /// How long after the creation (or the last reset) it begins to try; 0: at once.
    pub create_delay_secs: u32,
    /// How long after the first admission of another it stops trying; `None`: never.
    pub delete_delay_secs: Option<u32>,
}

impl Policy {
    /// Where a variant stands: 0 is the best.
    pub fn rank(&self, variant: &str) -> Option<usize> {
        self.variants.iter().position(|v| v.name == variant)
    }
}

/// The policy of a queue, or `None` if it has none. The seed's spelling wins over Kueue's where both are set, which the
/// rules refuse.
pub fn lower(spec: &ClusterQueueSpec) -> Option<Policy> {
    if let Some(seed) = &spec.concurrent_admission {
        let constraints = &seed.migration_constraints;
        return Some(match seed.explicit_variants.as_slice() {
            [] => Policy::of(constraints.mode, by_flavor(spec), constraints.min_flavor.as_deref()),
            explicit => {
                let variants = explicit.iter().map(Variant::explicit).collect();
                Policy::of(constraints.mode, variants, constraints.min_variant.as_deref())
            }
        });
    }
    let migration = &spec.concurrent_admission_policy.as_ref()?.migration;
    let mode = match migration.mode {
        ReleasedMode::TryPreferredFlavors => Mode::UpgradeOnly,
        ReleasedMode::RetainFirstAdmission => Mode::NoMigration,
    };
    let last = migration.constraints.as_ref().and_then(|c| c.last_acceptable_flavor_name.as_deref());
    Some(Policy::of(mode, by_flavor(spec), last))
}

/// One variant for each flavor of the first resource group: with more groups the rules ask for explicit ones.
fn by_flavor(spec: &ClusterQueueSpec) -> Vec<Variant> {
    let flavors = spec.resource_groups.first().into_iter().flat_map(|group| &group.flavors);
    let plain = |name: &str| Variant {
        name: name.to_owned(),
        allowed_flavors: vec![name.to_owned()],
        create_delay_secs: 0,
        delete_delay_secs: None,
    };
    flavors.take(MAX_VARIANTS).map(|flavor| plain(&flavor.name)).collect()
}

impl Policy {
    fn of(mode: Mode, variants: Vec<Variant>, least: Option<&str>) -> Policy {
        let targets = match (mode, least) {
            (Mode::NoMigration, _) => 0,
            (Mode::UpgradeOnly, None) => variants.len(),
            // A least one that is not there: nothing is good enough.
            (Mode::UpgradeOnly, Some(least)) => variants.iter().position(|v| v.name == least).map_or(0, |i| i + 1),
        };
        Policy { mode, variants, targets }
    }
}

impl Variant {
    fn explicit(said: &ExplicitVariant) -> Variant {
        let secs = |said: i32| u32::try_from(said).unwrap_or(0);
        Variant {
            name: said.name.clone(),
            allowed_flavors: said.allowed_resource_flavors.clone(),
            create_delay_secs: said.create_delay_seconds.map_or(0, secs),
            delete_delay_secs: said.delete_delay_seconds.map(secs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy(mut spec: Value) -> Option<Policy> {
        let flavor = |name| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": 1}]});
        let flavors = ["reservation", "on-demand", "spot"].map(flavor);
        spec["resourceGroups"] = json!([{"coveredResources": ["cpu"], "flavors": flavors}]);
        lower(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let seed = json!({"migrationConstraints": {"mode": "UpgradeOnly", "minFlavor": "on-demand"}});
        let released = json!({"migration": {"mode": "TryPreferredFlavors", "constraints": {"lastAcceptableFlavorName": "on-demand"}}});
        let from_seed = policy(json!({"concurrentAdmission": seed})).unwrap();
        assert_eq!(policy(json!({"concurrentAdmissionPolicy": released})).unwrap(), from_seed);
        assert_eq!(from_seed.targets, 2);
        assert_eq!(from_seed.rank("spot"), Some(2));

        let seed = json!({"concurrentAdmission": {"migrationConstraints": {"mode": "NoMigration"}}});
        let released = json!({"concurrentAdmissionPolicy": {"migration": {"mode": "RetainFirstAdmission"}}});
        assert_eq!(policy(seed), policy(released));
    }

    #[test]
    fn without_a_minimum_every_variant_is_a_target_and_without_migration_none() {
        let mode =
            |mode: &str| policy(json!({"concurrentAdmission": {"migrationConstraints": {"mode": mode}}})).unwrap();
        assert_eq!(mode("UpgradeOnly").targets, 3);
        assert_eq!(mode("NoMigration").targets, 0);
        assert_eq!(policy(json!({})), None);
    }

    #[test]
    fn explicit_variants_keep_their_order_flavors_and_delays() {
        let policy = policy(json!({"concurrentAdmission": {
        "migrationConstraints": {"mode": "UpgradeOnly", "minVariant": "gold"},
        "explicitVariants": [
            {"name": "gold", "allowedResourceFlavors": ["reservation"], "deleteDelaySeconds": 86400},
            {"name": "any", "allowedResourceFlavors": ["on-demand", "spot"], "createDelaySeconds": 7200},
        ]}}))
        .unwrap();
        assert_eq!(policy.targets, 1);
        assert_eq!(
            policy.variants[1],
            Variant {
                name: "any".into(),
                allowed_flavors: vec!["on-demand".into(), "spot".into()],
                create_delay_secs: 7200,
                delete_delay_secs: None
            }
        );
        assert_eq!(policy.variants[0].delete_delay_secs, Some(86400));
    }
}
