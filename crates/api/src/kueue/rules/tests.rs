//! Manifest in, errors out.

use serde_json::{Value, json};

use super::{Gates, Verdict, default, denial, validate};
use crate::kueue::keys::{RESOURCE_IN_USE, annotation};

const OFF: Gates = Gates { concurrent_admission: false, elastic_jobs: false };

fn errors(verdict: &Verdict) -> Vec<String> {
    verdict.errors.0.iter().map(ToString::to_string).collect()
}

fn created(plural: &str, object: Value) -> Vec<String> {
    errors(&validate(plural, "", &object, None, &Gates::default()))
}

/// A queue with these flavors of cpu, and whatever else its spec says.
fn queue(flavors: &[&str], more: Value) -> Value {
    let flavor = |name: &&str| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": 4}]});
    let flavors: Vec<Value> = flavors.iter().map(flavor).collect();
    let mut spec =
        json!({"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"metadata": {"name": "q"}, "spec": spec})
}

fn group(resource: &str, flavor: &str, quota: Value) -> Value {
    let mut quota = quota;
    quota["name"] = resource.into();
    json!({"coveredResources": [resource], "flavors": [{"name": flavor, "resources": [quota]}]})
}

fn groups(groups: &[Value], cohort: &str) -> Vec<String> {
    created("clusterqueues", json!({"spec": {"cohortName": cohort, "resourceGroups": groups}}))
}

#[test]
fn queues_and_flavors_are_held_until_nothing_uses_them() {
    let mut queue = queue(&["a"], json!({}));
    assert!(default("clusterqueues", &mut queue));
    assert_eq!(queue["metadata"]["finalizers"], json!([RESOURCE_IN_USE]));
    assert!(!default("clusterqueues", &mut queue));
    let mut workload = json!({"metadata": {}});
    assert!(!default("workloads", &mut workload));
}

#[test]
fn a_refusal_reads_as_from_upstreams_webhook() {
    let verdict = validate("cohorts", "", &json!({"spec": {"fairSharing": {"weight": -1}}}), None, &Gates::default());
    assert_eq!(
        denial("cohorts", &verdict.errors),
        "admission webhook \"vcohort.kb.io\" denied the request: spec.fairSharing: Invalid value: \"-1\": must be greater \
         than or equal to 0"
    );
}

#[test]
fn quotas_are_checked() {
    let path = "spec.resourceGroups[0].flavors[0].resources[0]";
    let quota = |quota: Value, cohort: &str| groups(&[group("cpu", "f", quota)], cohort);
    assert_eq!(
        quota(json!({"nominalQuota": -1}), ""),
        [format!("{path}.nominalQuota: Invalid value: \"-1\": must be greater than or equal to 0")]
    );
    assert_eq!(
        quota(json!({"nominalQuota": 1, "borrowingLimit": "500m"}), ""),
        [format!("{path}.borrowingLimit: Invalid value: \"500m\": must be nil when cohort is empty")]
    );
    assert_eq!(
        quota(json!({"nominalQuota": 1, "lendingLimit": 2}), "c"),
        [format!("{path}.lendingLimit: Invalid value: \"2\": must be less than or equal to the nominalQuota")]
    );
    assert!(quota(json!({"nominalQuota": 2, "lendingLimit": 2, "borrowingLimit": 9}), "c").is_empty());
    let twice = [group("cpu", "f", json!({"nominalQuota": 1})), group("cpu", "f", json!({"nominalQuota": 1}))];
    assert_eq!(
        groups(&twice, ""),
        [
            "spec.resourceGroups[1].coveredResources[0]: Duplicate value: \"cpu\"",
            "spec.resourceGroups[1].flavors[0].name: Duplicate value: \"f\""
        ]
    );
    let mut other = group("cpu", "f", json!({"nominalQuota": 1}));
    other["flavors"][0]["resources"][0]["name"] = "gpu".into();
    assert_eq!(
        groups(&[other], ""),
        [format!("{path}.name: Invalid value: \"gpu\": must match the name in coveredResources")]
    );
    assert!(
        groups(&[group("@cpu", "f", json!({"nominalQuota": 1}))], "")[0].starts_with(
            "spec.resourceGroups[0].coveredResources[0]: Invalid value: \"@cpu\": name part must consist of"
        )
    );
}

#[test]
fn a_cohort_may_lend_more_than_its_own_and_limits_need_a_parent() {
    let cohort = |parent: &str| {
        let groups = [group("cpu", "f", json!({"nominalQuota": 1, "lendingLimit": 2}))];
        created("cohorts", json!({"spec": {"parentName": parent, "resourceGroups": groups}}))
    };
    assert!(cohort("p").is_empty());
    assert_eq!(
        cohort(""),
        [
            "spec.resourceGroups[0].flavors[0].resources[0].lendingLimit: Invalid value: \"2\": must be nil when parent is empty"
        ]
    );
    assert_eq!(
        created("cohorts", json!({"spec": {"fairSharing": {"weight": "1n"}}})),
        ["spec.fairSharing: Invalid value: \"1n\": When not 0, weight must be > 10e-9"]
    );
}

#[test]
fn a_queue_may_not_be_too_large() {
    let many = |count: usize| (0..count).map(|i| format!("f{i}")).collect::<Vec<_>>();
    let names = many(257);
    let flavors: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(
        created("clusterqueues", queue(&flavors, json!({}))),
        [
            "spec.resourceGroups: Invalid value: 257: total number of flavors across all resourceGroups must be ≤ 256, got 257"
        ]
    );
}

#[test]
fn preemption_fungibility_and_selectors_must_make_sense() {
    let with = |more: Value| created("clusterqueues", queue(&["a"], more));
    assert_eq!(
        with(
            json!({"preemption": {"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "LowerPriority"}}})
        ),
        [
            "spec.preemption: Invalid value: {\"borrowWithinCohort\":{\"policy\":\"LowerPriority\"},\"reclaimWithinCohort\":\
             \"Never\",\"withinClusterQueue\":\"Never\"}: reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"
        ]
    );
    assert_eq!(
        with(json!({"flavorFungibility": {"preference": "PreemptionOverBorrowing"}})),
        ["spec.flavorFungibility.preference: Invalid value: \"PreemptionOverBorrowing\": preference \
          \"PreemptionOverBorrowing\" requires both whenCanBorrow and whenCanPreempt to be TryNextFlavor"]
    );
    assert_eq!(
        with(json!({"namespaceSelector": {"matchExpressions": [{"key": "k", "operator": "In"}]}})),
        [
            "spec.namespaceSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or \
          'NotIn'"
        ]
    );
}

#[test]
fn a_check_is_limited_to_flavors_of_the_queue() {
    let with = |check: Value| queue(&["a"], json!({"admissionChecksStrategy": {"admissionChecks": [check]}}));
    let bad = with(json!({"name": "c", "onFlavors": ["b"]}));
    let said = [
        "spec.admissionChecksStrategy.admissionChecks[0].onFlavors[0]: Unsupported value: \"b\": supported values: \"a\"",
    ];
    assert_eq!(created("clusterqueues", bad.clone()), said);
    assert!(created("clusterqueues", with(json!({"name": "c", "onFlavors": ["a"]}))).is_empty());
    // One that was stored like this can still be changed elsewhere.
    let update = |old: &Value| errors(&validate("clusterqueues", "", &bad, Some(old), &Gates::default()));
    assert!(update(&bad).is_empty());
    assert_eq!(update(&with(json!({"name": "c"}))), said);
}

mod concurrent {
    use super::*;

    fn with(flavors: &[&str], policy: Value) -> Verdict {
        validate("clusterqueues", "", &queue(flavors, policy), None, &Gates::default())
    }

    fn seed(policy: Value) -> Vec<String> {
        errors(&with(&["reservation", "spot"], json!({"concurrentAdmission": policy})))
    }

    fn constraints(constraints: Value) -> Vec<String> {
        seed(json!({"migrationConstraints": constraints}))
    }

    fn explicit(constraints: Value, variants: Value) -> Vec<String> {
        seed(json!({"migrationConstraints": constraints, "explicitVariants": variants}))
    }

    #[test]
    fn the_policies_of_the_seven_stories_are_accepted() {
        assert!(constraints(json!({"mode": "UpgradeOnly"})).is_empty());
        assert!(constraints(json!({"mode": "UpgradeOnly", "minFlavor": "reservation"})).is_empty());
        assert!(constraints(json!({"mode": "NoMigration"})).is_empty());
        let delayed = json!([{"name": "reservation", "allowedResourceFlavors": ["reservation"], "deleteDelaySeconds": 86400},
            {"name": "on-demand", "allowedResourceFlavors": ["spot"], "createDelaySeconds": 7200}]);
        assert!(explicit(json!({"mode": "UpgradeOnly", "minVariant": "reservation"}), delayed).is_empty());
        let two = [group("gpu", "gpu-a", json!({"nominalQuota": 1})), group("cpu", "cpu", json!({"nominalQuota": 1}))];
        let both = json!([{"name": "a", "allowedResourceFlavors": ["gpu-a", "cpu"]}]);
        let queue = json!({"spec": {"resourceGroups": two, "queueingStrategy": "StrictFIFO", "concurrentAdmission":
            {"migrationConstraints": {"mode": "UpgradeOnly"}, "explicitVariants": both}}});
        assert_eq!(validate("clusterqueues", "", &queue, None, &Gates::default()), Verdict::default());
    }

    #[test]
    fn a_minimum_needs_upgrades_and_the_right_kind_of_variants() {
        let at = "spec.concurrentAdmission.migrationConstraints";
        assert_eq!(
            constraints(json!({"mode": "NoMigration", "minFlavor": "spot"})),
            [format!("{at}.minFlavor: Forbidden: may only be set when mode is \"UpgradeOnly\" (got \"NoMigration\")")]
        );
        assert_eq!(
            constraints(json!({"mode": "UpgradeOnly", "minFlavor": "gold"})),
            [format!(
                "{at}.minFlavor: Invalid value: \"gold\": must be one of the flavors defined in the ClusterQueue: \
                      [reservation spot]"
            )]
        );
        assert_eq!(
            constraints(json!({"mode": "UpgradeOnly", "minVariant": "spot"})),
            [format!("{at}.minVariant: Forbidden: may only be set with explicitVariants: use minFlavor")]
        );
        let one = json!([{"name": "a", "allowedResourceFlavors": ["spot"]}]);
        assert_eq!(
            explicit(json!({"mode": "UpgradeOnly", "minFlavor": "spot"}), one.clone()),
            [format!("{at}.minFlavor: Forbidden: may not be set together with explicitVariants: use minVariant")]
        );
        assert_eq!(
            explicit(json!({"mode": "UpgradeOnly", "minVariant": "b"}), one),
            [format!("{at}.minVariant: Invalid value: \"b\": must be the name of one of explicitVariants: [a]")]
        );
    }

    #[test]
    fn explicit_variants_are_unique_and_of_the_queues_flavors() {
        let at = "spec.concurrentAdmission.explicitVariants";
        let mode = json!({"mode": "UpgradeOnly"});
        assert_eq!(
            explicit(
                mode.clone(),
                json!([{"name": "a", "allowedResourceFlavors": ["spot"]},
                {"name": "a", "allowedResourceFlavors": ["gold"], "createDelaySeconds": -1}, {"name": "b"}])
            ),
            [
                format!("{at}[1].name: Duplicate value: \"a\""),
                format!(
                    "{at}[1].allowedResourceFlavors[0]: Unsupported value: \"gold\": supported values: \"reservation\", \"spot\""
                ),
                format!("{at}[1].createDelaySeconds: Invalid value: -1: must be greater than or equal to 0"),
                format!("{at}[2].allowedResourceFlavors: Required value: a variant needs at least one flavor"),
            ]
        );
        let many: Vec<Value> =
            (0..17).map(|i| json!({"name": format!("v{i}"), "allowedResourceFlavors": ["spot"]})).collect();
        assert_eq!(explicit(mode, many.into()), [format!("{at}: Too many: 17: must have at most 16 items")]);
    }

    #[test]
    fn several_groups_need_explicit_variants_and_hear_so() {
        let two = [group("gpu", "g", json!({"nominalQuota": 1})), group("cpu", "c", json!({"nominalQuota": 1}))];
        let check = |policy: Value| {
            let mut spec = json!({"resourceGroups": two});
            spec.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
            validate("clusterqueues", "", &json!({"spec": spec}), None, &Gates::default())
        };
        let seed = json!({"migrationConstraints": {"mode": "UpgradeOnly"}});
        assert_eq!(
            errors(&check(json!({"concurrentAdmission": seed}))),
            [
                "spec.resourceGroups: Invalid value: 2: must have exactly one ResourceGroup when concurrentAdmission has no \
              explicitVariants; list the variants in spec.concurrentAdmission.explicitVariants to use several"
            ]
        );
        let released = json!({"migration": {"mode": "TryPreferredFlavors"}});
        assert_eq!(
            errors(&check(json!({"concurrentAdmissionPolicy": released}))),
            [
                "spec.resourceGroups: Invalid value: 2: must have exactly one ResourceGroup when ConcurrentAdmissionPolicy is \
              defined"
            ]
        );
        let half = json!({"migrationConstraints": {"mode": "UpgradeOnly"},
            "explicitVariants": [{"name": "v", "allowedResourceFlavors": ["g"]}]});
        let verdict = check(json!({"concurrentAdmission": half}));
        assert!(verdict.errors.is_empty());
        assert_eq!(
            verdict.warnings,
            [
                "spec.concurrentAdmission.explicitVariants[0].allowedResourceFlavors: no flavor for cpu: workloads that ask for \
              it never fit variant \"v\""
            ]
        );
    }

    #[test]
    fn kueues_spelling_has_kueues_rules() {
        let released = |migration: Value| {
            errors(&with(&["a", "b"], json!({"concurrentAdmissionPolicy": {"migration": migration}})))
        };
        let at = "spec.concurrentAdmissionPolicy.migration.constraints";
        let last = |flavor: &str| json!({"lastAcceptableFlavorName": flavor});
        assert!(released(json!({"mode": "TryPreferredFlavors", "constraints": last("a")})).is_empty());
        assert_eq!(
            released(json!({"mode": "TryPreferredFlavors", "constraints": last("x")})),
            [format!(
                "{at}.lastAcceptableFlavorName: Invalid value: \"x\": must be one of the flavors defined in the \
                      ClusterQueue: [a b]"
            )]
        );
        assert_eq!(
            released(json!({"mode": "RetainFirstAdmission", "constraints": last("a")})),
            [format!(
                "{at}: Forbidden: may only be set when migration.mode is \"TryPreferredFlavors\" (got \
                      \"RetainFirstAdmission\")"
            )]
        );
        let names: Vec<String> = (0..17).map(|i| format!("f{i}")).collect();
        let flavors: Vec<&str> = names.iter().map(String::as_str).collect();
        let many = with(&flavors, json!({"concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}}}));
        assert_eq!(
            errors(&many),
            ["spec.resourceGroups[0].flavors: Invalid value: 17: cannot have more than 16 resource flavors in the \
              ResourceGroup when ConcurrentAdmissionPolicy is defined"]
        );
    }

    #[test]
    fn two_spellings_at_once_are_refused_and_a_policy_may_change_on_a_live_queue() {
        let seed = json!({"migrationConstraints": {"mode": "UpgradeOnly"}});
        let released = json!({"migration": {"mode": "TryPreferredFlavors"}});
        let both = with(&["a"], json!({"concurrentAdmission": seed, "concurrentAdmissionPolicy": released}));
        assert_eq!(
            errors(&both),
            [
                "spec.concurrentAdmissionPolicy: Forbidden: may not be set together with concurrentAdmission: they are two \
              spellings of one policy"
            ]
        );
        let (none, one) = (queue(&["a"], json!({})), queue(&["a"], json!({"concurrentAdmission": seed})));
        let other = queue(&["a"], json!({"concurrentAdmissionPolicy": released}));
        for (old, new) in [(&none, &one), (&one, &other), (&other, &none)] {
            assert!(errors(&validate("clusterqueues", "", new, Some(old), &Gates::default())).is_empty());
        }
    }

    #[test]
    fn with_the_gate_off_the_field_is_ignored_with_a_warning() {
        let bad = queue(
            &["a"],
            json!({"concurrentAdmission": {"migrationConstraints": {"mode": "NoMigration", "minFlavor": "x"}}}),
        );
        let verdict = validate("clusterqueues", "", &bad, None, &OFF);
        assert!(verdict.errors.is_empty());
        assert_eq!(
            verdict.warnings,
            ["spec.concurrentAdmission is ignored: the feature gate ConcurrentAdmission is off"]
        );
    }
}

#[test]
fn flavors_have_sound_labels_and_each_taint_once() {
    assert!(
        created("resourceflavors", json!({"spec": {"nodeLabels": {"a b": "c"}}}))[0]
            .starts_with("spec.nodeLabels: Invalid value: \"a b\": name part must consist of")
    );
    let taint = json!({"key": "k", "effect": "NoSchedule"});
    assert_eq!(
        created("resourceflavors", json!({"spec": {"nodeTaints": [taint, taint]}})),
        [
            "spec.nodeTaints[1]: Duplicate value: {\"effect\":\"NoSchedule\",\"key\":\"k\"}: taints must be unique by key and \
          effect pair"
        ]
    );
    assert!(
        created("resourceflavors", json!({"spec": {"tolerations": [{"key": "@"}]}}))[0]
            .starts_with("spec.tolerations[0].key: Invalid value: \"@\"")
    );
}

mod workload {
    use super::*;

    fn pod_set(name: &str, count: i64) -> Value {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": 1}}});
        json!({"name": name, "count": count, "template": {"spec": {"containers": [container]}}})
    }

    /// One pod set of 3, with whatever is set at these pointers.
    fn workload(changes: &[(&str, Value)]) -> Value {
        let mut object = json!({"metadata": {"name": "w", "annotations": {}}, "spec": {"podSets": [pod_set("main", 3)]},
            "status": {}});
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = object.pointer_mut(parent).unwrap();
            match key.parse::<usize>() {
                Ok(index) => parent[index] = value.clone(),
                Err(_) => parent[key] = value.clone(),
            }
        }
        object
    }

    fn reserved() -> Value {
        json!([{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }

    fn admission(count: i64) -> Value {
        json!({"clusterQueue": "q", "podSetAssignments": [{"name": "main", "count": count, "flavors": {"cpu": "spot"},
            "resourceUsage": {"cpu": count.to_string()}}]})
    }

    fn admitted(changes: &[(&str, Value)]) -> Value {
        let mut all = vec![("/status/conditions", reserved()), ("/status/admission", admission(3))];
        all.extend(changes.iter().cloned());
        workload(&all)
    }

    fn elastic() -> (&'static str, Value) {
        ("/metadata/annotations", json!({annotation::ELASTIC_JOB: "true"}))
    }

    fn make(object: Value) -> Vec<String> {
        created("workloads", object)
    }

    fn update(subresource: &str, old: &Value, new: &Value) -> Vec<String> {
        errors(&validate("workloads", subresource, new, Some(old), &Gates::default()))
    }

    #[test]
    fn templates_are_checked_in_code() {
        assert!(make(workload(&[])).is_empty());
        let path = "spec.podSets[0].template";
        let template = |template: Value| make(workload(&[("/spec/podSets/0/template", template)]));
        let why = &template(json!({"spec": {"containers": {}}}))[0];
        assert!(
            why.starts_with(&format!("{path}: Invalid value: null: is not a pod template: invalid type: map")),
            "{why}"
        );
        assert_eq!(template(json!({"spec": {}})), [format!("{path}.spec.containers: Required value")]);
        let container = |more: Value| template(json!({"spec": {"containers": [more]}}));
        assert_eq!(container(json!({"image": "i"})), [format!("{path}.spec.containers[0].name: Required value")]);
        let requests = |list: Value| container(json!({"name": "c", "resources": {"requests": list}}));
        let at = format!("{path}.spec.containers[0].resources.requests");
        assert_eq!(
            requests(json!({"pods": 1})),
            [format!("{at}[pods]: Invalid value: \"pods\": the key is reserved for internal kueue use")]
        );
        assert_eq!(
            requests(json!({"cpu": -1})),
            [format!("{at}[cpu]: Invalid value: \"-1\": must be greater than or equal to 0")]
        );
        assert!(
            requests(json!({"cpu": "much"}))[0]
                .starts_with(&format!("{at}[cpu]: Invalid value: \"much\": quantities must"))
        );
        assert!(
            template(json!({"metadata": {"labels": {"@": "x"}}}))[0]
                .starts_with(&format!("{path}.metadata.labels: Invalid value: \"@\""))
        );
    }

    #[test]
    fn at_most_one_pod_set_has_a_minimum_and_none_of_an_elastic_job() {
        let (mut a, mut b) = (pod_set("a", 3), pod_set("b", 3));
        a["minCount"] = 1.into();
        b["minCount"] = 1.into();
        assert_eq!(
            make(workload(&[("/spec/podSets", json!([a, b]))])),
            ["spec.podSets: Invalid value: 2: at most one podSet can use minCount"]
        );
        assert_eq!(
            make(workload(&[("/spec/podSets", json!([a])), elastic()])),
            ["spec.podSets: Invalid value: 1: partial admission and elastic job cannot be used together"]
        );
    }

    #[test]
    fn slices_of_topologies_have_a_size() {
        let request = |request: Value| make(workload(&[("/spec/podSets/0/topologyRequest", request)]));
        let at = "spec.podSets[0].topologyRequest.podSetSliceSize";
        assert_eq!(
            request(json!({"podSetSliceRequiredTopology": "rack"})),
            [format!("{at}: Required value: must be set when podSetSliceRequiredTopology is specified")]
        );
        assert_eq!(
            request(json!({"podSetSliceSize": 2})),
            [format!("{at}: Forbidden: may not be set when podSetSliceRequiredTopology is not specified")]
        );
    }

    #[test]
    fn allowed_flavors_are_said_once_or_the_same_twice() {
        let spec = ("/spec/admissionConstraints", json!({"allowedResourceFlavors": ["a", "b"]}));
        let noted = |list: &str| ("/metadata/annotations", json!({annotation::ALLOWED_RESOURCE_FLAVORS: list}));
        assert!(make(workload(&[spec.clone(), noted("a,b")])).is_empty());
        assert_eq!(
            make(workload(&[spec, noted("a")])),
            [
                "spec.admissionConstraints.allowedResourceFlavors: Invalid value: \"a,b\": must be the same as the annotation \
              kueue.x-k8s.io/workload-allowed-resource-flavors if both are set"
            ]
        );
    }

    #[test]
    fn quota_comes_with_an_admission_that_adds_up() {
        let old = workload(&[]);
        assert_eq!(
            update("status", &old, &workload(&[("/status/conditions", reserved())])),
            ["status.admission: Required value: must be set while the QuotaReserved condition is true"]
        );
        // One that is like this already may change otherwise.
        let odd = workload(&[("/status/conditions", reserved())]);
        assert!(update("status", &odd, &odd).is_empty());
        let at = "/status/admission/podSetAssignments/0";
        assert_eq!(
            update("status", &old, &admitted(&[(&format!("{at}/resourceUsage"), json!({"cpu": "1", "memory": "3"}))])),
            ["status.admission.podSetAssignments[0].resourceUsage[cpu]: Invalid value: \"1\": is not a multiple of 3"]
        );
        assert_eq!(
            update("status", &old, &admitted(&[(&format!("{at}/name"), json!("other"))])),
            ["status.admission.podSetAssignments[0].name: Not found: \"other\""]
        );
        assert!(update("status", &old, &admitted(&[])).is_empty());
    }

    #[test]
    fn an_admission_is_given_and_taken_but_not_changed() {
        let old = admitted(&[]);
        assert!(update("status", &old, &workload(&[])).is_empty());
        let placed = admitted(&[(
            "/status/admission/podSetAssignments/0/topologyAssignment",
            json!({"levels": ["rack"], "slices": []}),
        )]);
        assert!(update("status", &old, &placed).is_empty());
        let moved = admitted(&[("/status/admission/clusterQueue", json!("other"))]);
        let said = update("status", &old, &moved);
        assert!(said[0].starts_with("status.admission: Invalid value: {\"clusterQueue\":\"other\""), "{said:?}");
        assert!(said[0].ends_with("field is immutable"), "{said:?}");
    }

    #[test]
    fn pod_sets_are_fixed_while_quota_is_reserved() {
        let old = admitted(&[]);
        for (at, value) in [("/spec/podSets/0/count", json!(2)), ("/spec/podSets/0/name", json!("x"))] {
            let said = update("", &old, &admitted(&[(at, value)]));
            let immutable = said.iter().find(|e| e.starts_with("spec.podSets.0: Invalid value: {")).expect(at);
            assert!(immutable.ends_with(": field is immutable"), "{immutable}");
        }
        let two = admitted(&[("/spec/podSets", json!([pod_set("main", 3), pod_set("b", 1)]))]);
        assert!(update("", &old, &two)[0].starts_with("spec.podSets: Invalid value: ["));
        // The same amount in other words is the same.
        let same = admitted(&[("/spec/podSets/0/template/spec/containers/0/resources/requests/cpu", json!("1000m"))]);
        assert!(update("", &old, &same).is_empty());
        let more = admitted(&[("/spec/podSets/0/template/spec/containers/0/resources/requests/cpu", json!(2))]);
        assert_eq!(update("", &old, &more).len(), 1);
        // Without quota everything may change: a suspended job's resources do.
        let waits = workload(&[]);
        let larger = workload(&[("/spec/podSets/0/count", json!(9))]);
        assert!(update("", &waits, &larger).is_empty());
    }

    #[test]
    fn elastic_workloads_shrink_at_will_and_grow_to_what_is_admitted() {
        let old = admitted(&[elastic()]);
        assert!(update("", &old, &admitted(&[elastic(), ("/spec/podSets/0/count", json!(1))])).is_empty());
        assert_eq!(
            update("", &old, &admitted(&[elastic(), ("/spec/podSets/0/count", json!(4))])),
            [
                "spec.podSets[0].count: Invalid value: 4: cannot rise above the 3 admitted pods while quota is reserved; added \
              pods are admitted as slices first"
            ]
        );
        // Folding: the admission rises, then the spec follows.
        let folded =
            admitted(&[elastic(), ("/status/admission", admission(5)), ("/status/foldedSlices", json!(["u"]))]);
        assert!(update("status", &old, &folded).is_empty());
        let mut grown = folded.clone();
        grown["spec"]["podSets"][0]["count"] = 5.into();
        assert!(update("", &folded, &grown).is_empty());
        // The flavor stays, even so.
        let moved = admitted(&[elastic(), ("/status/admission/podSetAssignments/0/flavors", json!({"cpu": "gold"}))]);
        assert_eq!(update("status", &old, &moved).len(), 1);
        // None of this without the annotation, or with the gate off.
        assert_eq!(update("status", &admitted(&[]), &admitted(&[("/status/admission", admission(5))])).len(), 1);
        assert_eq!(errors(&validate("workloads", "status", &folded, Some(&old), &OFF)).len(), 1);
    }

    #[test]
    fn reclaimable_pods_only_grow_unless_the_job_shrank() {
        let with = |more: &[(&str, Value)], list: Value| {
            let mut all = more.to_vec();
            all.push(("/status/reclaimablePods", list));
            admitted(&all)
        };
        let two = json!([{"name": "main", "count": 2}]);
        let old = with(&[], two.clone());
        let at = "status.reclaimablePods[main]";
        assert_eq!(
            update("status", &old, &with(&[], json!([{"name": "main", "count": 1}]))),
            [format!("{at}.count: Invalid value: 1: cannot be less than 2")]
        );
        assert_eq!(update("status", &old, &with(&[], json!([]))), [format!("{at}: Required value: cannot be removed")]);
        assert_eq!(
            update("status", &old, &with(&[], json!([{"name": "main", "count": 4}]))),
            [format!("{at}.count: Invalid value: 4: should be less or equal to 3")]
        );
        assert_eq!(
            update("status", &admitted(&[]), &with(&[], json!([{"name": "x", "count": 1}]))),
            ["status.reclaimablePods[x].name: Unsupported value: \"x\": supported values: \"main\""]
        );
        let small = [elastic(), ("/spec/podSets/0/count", json!(1))];
        // Scaled down to 1: the old count of 2 may stay for a while, and may fall.
        assert!(update("status", &with(&small, two.clone()), &with(&small, two.clone())).is_empty());
        assert!(update("status", &with(&small, two), &with(&small, json!([]))).is_empty());
    }

    #[test]
    fn what_a_ready_check_asked_for_stays() {
        let check = |state: &str, label: &str| {
            let updates = json!([{"name": "main", "labels": {"k": label}}]);
            admitted(&[(
                "/status/admissionChecks",
                json!([{"name": "c", "state": state, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "podSetUpdates": updates}]),
            )])
        };
        assert!(update("status", &check("Pending", "a"), &check("Ready", "b")).is_empty());
        assert!(
            update("status", &check("Ready", "a"), &check("Ready", "b"))[0]
                .starts_with("status.admissionChecks[0].podSetUpdates: Invalid value: [")
        );
        let mut other = check("Ready", "a b");
        other["status"]["admissionChecks"][0]["podSetUpdates"][0]["name"] = "x".into();
        let said = update("status", &admitted(&[]), &other);
        assert_eq!(
            said[0],
            "status.admissionChecks[0].podSetUpdates[0].name: Unsupported value: \"x\": supported values: \"main\""
        );
        assert!(
            said[1].starts_with("status.admissionChecks[0].podSetUpdates[0].labels: Invalid value: \"a b\""),
            "{said:?}"
        );
    }

    #[test]
    fn admission_gates_are_removed_never_added() {
        let gated = |by: &str| workload(&[("/metadata/annotations", json!({annotation::ADMISSION_GATED_BY: by}))]);
        let at = "metadata.annotations[kueue.x-k8s.io/admission-gated-by]";
        assert!(make(gated("a.io/x, b.io/y")).is_empty());
        assert_eq!(
            make(gated("a.io/x,,"))[0],
            format!("{at}: Invalid value: \"a.io/x,,\": cannot contain empty gate names")
        );
        assert_eq!(
            make(gated("a.io/x,a.io/x")),
            [format!("{at}: Invalid value: \"a.io/x,a.io/x\": duplicate gate name: a.io/x")]
        );
        assert!(make(gated("x"))[0].contains("must be a domain-prefixed path (such as \"acme.io/foo\")"));
        assert_eq!(
            update("", &workload(&[]), &gated("a.io/x")),
            [format!("{at}: Forbidden: cannot add admission gate after creation")]
        );
        assert_eq!(
            update("", &gated("a.io/x"), &gated("b.io/y")),
            [format!("{at}: Forbidden: can only remove gates, not add new ones")]
        );
        assert!(update("", &gated("a.io/x,b.io/y"), &gated("b.io/y")).is_empty());
        assert!(update("", &gated("a.io/x"), &workload(&[])).is_empty());
    }

    #[test]
    fn a_cluster_is_one_of_the_nominated() {
        let old = workload(&[("/status/nominatedClusterNames", json!(["a"]))]);
        assert!(update("status", &old, &workload(&[("/status/clusterName", json!("a"))])).is_empty());
        assert_eq!(
            update("status", &old, &workload(&[("/status/clusterName", json!("b"))])),
            [
                "status.clusterName: Invalid value: \"b\": when setting clusterName it must be one of the nominatedClusterNames"
            ]
        );
    }

    #[test]
    fn hostile_objects_are_refused_not_fatal() {
        for object in [json!({"spec": {"podSets": 3}}), json!({"status": {"conditions": "x"}}), json!([]), json!(null)]
        {
            let _ = validate("workloads", "", &object, Some(&object), &Gates::default());
            let _ = validate("clusterqueues", "", &object, None, &Gates::default());
        }
        let said = make(json!({"spec": {"podSets": 3}}));
        assert!(said[0].starts_with("spec: Invalid value: null: cannot be read: invalid type"), "{said:?}");
    }
}
