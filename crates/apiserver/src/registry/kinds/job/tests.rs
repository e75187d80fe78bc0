//! Jobs as a client sends them, and what the API makes of them.

use super::*;
use crate::registry::kind::Gates;
use crate::registry::kinds::testing::{cells, create, create_errors, merged, status_errors, update_errors};
use serde_json::json;

fn job(extra: Value) -> Value {
    let base = json!({"metadata": {"name": "pi", "namespace": "default", "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "perl:5.34"}]}}}});
    merged(base, extra)
}

/// As it is stored.
fn stored(extra: Value) -> Value {
    let (value, errors) = create(&Jobs, job(extra.clone()));
    assert!(errors.is_empty(), "{errors:?}");
    // The status is wiped on create; put back what the test wants to be there.
    let status = extra.get("status").cloned().unwrap_or_default();
    merged(value, json!({"status": status}))
}

#[test]
fn a_plain_job_gets_defaults_selector_and_labels() {
    let stored = stored(json!({}));
    let spec = &stored["spec"];
    for (field, value) in [
        ("completions", json!(1)),
        ("parallelism", json!(1)),
        ("backoffLimit", json!(6)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
        ("manualSelector", json!(false)),
        ("podReplacementPolicy", json!("TerminatingOrFailed")),
        ("selector", json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}})),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    let labels = json!({"batch.kubernetes.io/controller-uid": "u-1", "batch.kubernetes.io/job-name": "pi",
        "controller-uid": "u-1", "job-name": "pi"});
    assert_eq!(spec["template"]["metadata"]["labels"], labels);
    assert_eq!(stored["metadata"]["labels"], Value::Null, "generated after defaulting...");
    let mut read: Job = serde_json::from_value(stored).unwrap();
    Jobs.default(&mut read);
    assert_eq!(serde_json::to_value(&read).unwrap()["metadata"]["labels"], labels, "...and seen when read back");
}

#[test]
fn defaults_depend_on_each_other() {
    let spec = |extra: Value| stored(json!({"spec": extra}))["spec"].clone();
    assert_eq!(spec(json!({"parallelism": 3}))["completions"], Value::Null);
    assert_eq!(spec(json!({"completions": 3}))["parallelism"], 1);
    let indexed = spec(json!({"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1}));
    assert_eq!(indexed["backoffLimit"], i32::MAX);
    let policy = json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
    let with_policy = spec(json!({"podFailurePolicy": policy}));
    assert_eq!(with_policy["podReplacementPolicy"], "Failed");
    assert_eq!(with_policy["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"], "True");
}

#[test]
fn labels_of_the_template_become_the_jobs() {
    let out = stored(json!({"spec": {"template": {"metadata": {"labels": {"app": "x"}}}}}));
    assert_eq!(out["metadata"]["labels"], out["spec"]["template"]["metadata"]["labels"]);
    let own = stored(
        json!({"metadata": {"labels": {"mine": "1"}}, "spec": {"template": {"metadata": {"labels": {"app": "x"}}}}}),
    );
    assert_eq!(own["metadata"]["labels"], json!({"mine": "1"}));
}

#[test]
fn mistakes_in_a_spec_are_refused() {
    let cases: &[(Value, &[&str])] = &[
        (json!({"parallelism": -1}), &["spec.parallelism: Invalid value: -1: must be greater than or equal to 0"]),
        (json!({"backoffLimit": -1}), &["spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0"]),
        (
            json!({"maxFailedIndexes": 1}),
            &[
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
                "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
            ],
        ),
        (
            json!({"completionMode": "Sorted"}),
            &["spec.completionMode: Unsupported value: \"Sorted\": supported values: \"NonIndexed\", \"Indexed\""],
        ),
        (
            json!({"completionMode": "Indexed", "parallelism": 1}),
            &["spec.completions: Required value: when completion mode is Indexed"],
        ),
        (
            json!({"completionMode": "Indexed", "completions": 200_000, "parallelism": 100_001}),
            &[
                "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
            ],
        ),
        (
            json!({"completionMode": "Indexed", "completions": 100_001, "parallelism": 10_001, "backoffLimitPerIndex": 1}),
            &[
                "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
                "spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index",
            ],
        ),
        (
            json!({"managedBy": "me"}),
            &["spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")"],
        ),
        (
            json!({"podReplacementPolicy": "Soon"}),
            &[
                "spec.podReplacementPolicy: Unsupported value: \"Soon\": supported values: \"Failed\", \"TerminatingOrFailed\"",
            ],
        ),
        (
            json!({"successPolicy": {"rules": []}}),
            &["spec.successPolicy: Invalid value: {\"rules\":[]}: requires indexed completion mode"],
        ),
        (
            json!({"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [{}, {"succeededIndexes": "0,9"}, {"succeededIndexes": "0-1", "succeededCount": 3}, {"succeededCount": 4}]}}),
            &[
                "spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
                "spec.successPolicy.rules[1].succeededIndexes: Invalid value: \"0,9\": error parsing succeededIndexes: too large index: \"9\"",
                "spec.successPolicy.rules[2].succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)",
                "spec.successPolicy.rules[3].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of specified completions)",
            ],
        ),
        (
            json!({"podFailurePolicy": {"rules": [{"action": ""}, {"action": "FailIndex", "onExitCodes": {"operator": "In", "containerName": "x", "values": [2, 0, 2]}},
            {"action": "Ignore", "onExitCodes": {"operator": "", "values": []}, "onPodConditions": [{"type": "a b"}]}]}}),
            &[
                "spec.podFailurePolicy.rules[0].action: Required value: valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
                "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
                "spec.podFailurePolicy.rules[1].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
                "spec.podFailurePolicy.rules[1].onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template",
                "spec.podFailurePolicy.rules[1].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
                "spec.podFailurePolicy.rules[1].onExitCodes.values[2]: Duplicate value: 2",
                "spec.podFailurePolicy.rules[1].onExitCodes.values: Invalid value: [2,0,2]: must be ordered",
                "spec.podFailurePolicy.rules[2].onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]",
                "spec.podFailurePolicy.rules[2].onExitCodes.values: Invalid value: []: at least one value is required",
                "spec.podFailurePolicy.rules[2].onPodConditions[0].type: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                "spec.podFailurePolicy.rules[2]: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported",
            ],
        ),
        (
            json!({"template": {"spec": {"restartPolicy": "Always"}}}),
            &["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""],
        ),
        (
            json!({"template": {"spec": {"restartPolicy": null}}}),
            &["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""],
        ),
        (
            json!({"template": {"spec": {"restartPolicy": "OnFailure"}}, "podFailurePolicy": {"rules": []}}),
            &[
                "spec.template.spec.restartPolicy: Invalid value: \"OnFailure\": only \"Never\" is supported when podFailurePolicy is specified",
            ],
        ),
        (
            json!({"template": {"metadata": {"labels": {"job-name": "other"}}}}),
            &[
                "spec.template.metadata.labels[job-name]: Invalid value: {\"batch.kubernetes.io/controller-uid\":\"u-1\",\"batch.kubernetes.io/job-name\":\"pi\",\"controller-uid\":\"u-1\",\"job-name\":\"other\"}: must be 'pi'",
            ],
        ),
        (
            json!({"manualSelector": true}),
            &[
                "spec.selector: Required value",
                "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
            ],
        ),
        (
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            &[
                "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"batch.kubernetes.io/controller-uid\":\"u-1\"}}: `selector` not auto-generated",
                "spec.template.metadata.labels: Invalid value: {\"batch.kubernetes.io/controller-uid\":\"u-1\",\"batch.kubernetes.io/job-name\":\"pi\",\"controller-uid\":\"u-1\",\"job-name\":\"pi\"}: `selector` does not match template `labels`",
            ],
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(create_errors(&Jobs, job(json!({"spec": spec}))), *expected, "{spec}");
    }
}

#[test]
fn an_indexed_jobs_last_pod_must_have_a_host_name() {
    let name = "j".repeat(61);
    let errors = create_errors(
        &Jobs,
        job(json!({"metadata": {"name": name}, "spec": {"completionMode": "Indexed", "completions": 100}})),
    );
    assert_eq!(
        errors,
        [format!(
            "metadata.name: Invalid value: \"{name}\": will not able to create pod with invalid DNS label: {name}-99"
        )]
    );
}

#[test]
fn what_may_change_and_what_may_not() {
    let old = stored(json!({}));
    let change =
        |spec: Value| update_errors(&Jobs, &Gates::default(), merged(old.clone(), json!({"spec": spec})), old.clone());
    for free in [
        json!({"parallelism": 7}),
        json!({"suspend": true}),
        json!({"backoffLimit": 1}),
        json!({"activeDeadlineSeconds": 5}),
        json!({"ttlSecondsAfterFinished": 5}),
        json!({"podReplacementPolicy": "Failed"}),
    ] {
        assert_eq!(change(free.clone()), Vec::<String>::new(), "{free}");
    }
    for (frozen, message) in [
        (json!({"completions": 2}), "spec.completions: Invalid value: 2: field is immutable"),
        (json!({"completionMode": "Indexed"}), "spec.completionMode: Invalid value: \"Indexed\": field is immutable"),
        (json!({"managedBy": "a.b/c"}), "spec.managedBy: Invalid value: \"a.b/c\": field is immutable"),
        (
            json!({"podFailurePolicy": {"rules": []}, "podReplacementPolicy": "Failed"}),
            "spec.podFailurePolicy: Invalid value: {\"rules\":[]}: field is immutable",
        ),
    ] {
        assert_eq!(change(frozen.clone()), [message], "{frozen}");
    }
    let image = change(json!({"template": {"spec": {"containers": [{"name": "c", "image": "other:1"}]}}}));
    assert_eq!(image.len(), 1);
    assert!(image[0].starts_with("spec.template: Invalid value: {") && image[0].ends_with(": field is immutable"));
}

#[test]
fn elastic_indexed_jobs_change_completions_with_parallelism() {
    let old = stored(json!({"spec": {"completionMode": "Indexed", "completions": 3, "parallelism": 3}}));
    let change =
        |spec: Value| update_errors(&Jobs, &Gates::default(), merged(old.clone(), json!({"spec": spec})), old.clone());
    assert!(change(json!({"completions": 5, "parallelism": 5})).is_empty());
    assert_eq!(
        change(json!({"completions": 5})),
        ["spec.completions: Invalid value: 5: can only be modified in tandem with spec.parallelism"]
    );
    assert_eq!(
        change(json!({"completions": null})),
        ["spec.completions: Required value: when completion mode is Indexed"]
    );
}

/// Stored states of the template rule: name, suspended, status.
fn states() -> Vec<(&'static str, bool, Value)> {
    let suspended = json!([{"type": "Suspended", "status": "True"}]);
    vec![
        ("running", false, json!({"startTime": "2026-01-01T00:00:00Z", "active": 1})),
        ("not started, not suspended", false, json!({})),
        ("created suspended", true, json!({})),
        ("just suspended", true, json!({"startTime": "2026-01-01T00:00:00Z", "active": 1})),
        ("suspended, pods left", true, json!({"active": 1, "conditions": suspended})),
        ("at rest, started before", true, json!({"startTime": "2026-01-01T00:00:00Z", "conditions": suspended})),
        ("at rest, start cleared", true, json!({"conditions": suspended})),
    ]
}

#[test]
fn the_template_rule_in_all_eight_gate_combinations() {
    let directives = [
        json!({"spec": {"nodeSelector": {"a": "b"}}}),
        json!({"spec": {"tolerations": [{"operator": "Exists"}]}}),
        json!({"spec": {"schedulingGates": [{"name": "a/b"}]}}),
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}}}),
        json!({"metadata": {"labels": {"x": "y"}}}),
        json!({"metadata": {"annotations": {"x": "y"}}}),
    ];
    let resources = [
        json!({"spec": {"containers": [{"name": "c", "image": "perl:5.34", "resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"cpu": "2"}}}]}}),
    ];
    let frozen = [
        json!({"spec": {"priorityClassName": "high"}}),
        json!({"spec": {"affinity": {"podAffinity": {}}}}),
        json!({"spec": {"containers": [{"name": "c", "image": "perl:6"}]}}),
        json!({"spec": {"containers": [{"name": "d", "image": "perl:5.34"}]}}),
        json!({"spec": {"resourceClaims": [{"name": "g", "resourceClaimName": "g"}],
            "containers": [{"name": "c", "image": "perl:5.34", "resources": {"claims": [{"name": "g"}]}}]}}),
        json!({"metadata": {"finalizers": ["a/b"]}}),
    ];
    for bits in 0..8 {
        let gates = Gates {
            mutable_directives: bits & 1 != 0,
            mutable_directives_when_suspended: bits & 2 != 0,
            mutable_resources_when_suspended: bits & 4 != 0,
            ..Gates::default()
        };
        for (state, suspended, status) in states() {
            let old = stored(json!({"spec": {"suspend": suspended}, "status": status}));
            let never_started = status.get("startTime").is_none();
            let at_rest = matches!(state, "created suspended" | "at rest, started before" | "at rest, start cleared");
            let directives_open = gates.mutable_directives
                && if gates.mutable_directives_when_suspended { at_rest } else { suspended && never_started };
            let resources_open = gates.mutable_resources_when_suspended && at_rest;
            let accepted = |template: &Value| {
                let new = merged(old.clone(), json!({"spec": {"template": template, "suspend": false}}));
                let errors = update_errors(&Jobs, &gates, new, old.clone());
                for error in &errors {
                    assert!(error.starts_with("spec.template") && error.ends_with("field is immutable"), "{error}");
                }
                errors.is_empty()
            };
            for edit in &directives {
                assert_eq!(accepted(edit), directives_open, "{gates:?} {state} {edit}");
            }
            for edit in &resources {
                assert_eq!(accepted(edit), resources_open, "{gates:?} {state} {edit}");
            }
            for edit in &frozen {
                assert!(!accepted(edit), "{gates:?} {state} {edit}");
            }
        }
    }
}

#[test]
fn a_template_edit_and_suspending_do_not_go_together() {
    let old = stored(json!({}));
    let new =
        merged(old.clone(), json!({"spec": {"suspend": true, "template": {"spec": {"nodeSelector": {"a": "b"}}}}}));
    assert_eq!(update_errors(&Jobs, &Gates::default(), new, old).len(), 1);
}

#[test]
fn edits_that_change_nothing_are_no_edits() {
    let with = |resources: Value| {
        stored(
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "a:1", "resources": resources}]}}}}),
        )
    };
    let old = with(json!({"limits": {"cpu": "1"}}));
    let same = merged(
        old.clone(),
        json!({"spec": {"template": {"spec": {"tolerations": [], "nodeSelector": {},
        "containers": [{"name": "c", "image": "a:1", "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File", "resources": {"limits": {"cpu": "1000m"}}}]}}}}),
    );
    assert!(update_errors(&Jobs, &Gates::default(), same, old).is_empty());
}

#[test]
fn an_affinity_may_go_only_if_it_held_nothing_but_node_affinity() {
    let node = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}});
    let pod = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}});
    let check = |affinity: Value, replacement: Value| {
        let old = stored(json!({"spec": {"suspend": true, "template": {"spec": {"affinity": affinity}}}}));
        let new = merged(old.clone(), json!({"spec": {"template": {"spec": {"affinity": replacement}}}}));
        update_errors(&Jobs, &Gates::default(), new, old)
    };
    assert!(check(node.clone(), Value::Null).is_empty());
    let refused = check(merged(node, pod), Value::Null);
    assert!(refused[0].starts_with("spec.template.spec: Invalid value"), "{refused:?}");
}

#[test]
fn the_selector_still_holds_while_labels_are_open() {
    let old = stored(json!({"spec": {"suspend": true}}));
    let new = merged(
        old.clone(),
        json!({"spec": {"template": {"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "other"}}}}}),
    );
    let errors = update_errors(&Jobs, &Gates::default(), new, old);
    assert!(errors[0].ends_with("`selector` does not match template `labels`"), "{errors:?}");
}

#[test]
fn statuses_must_add_up() {
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let start = "2026-01-01T00:00:00Z";
    let done = json!({"startTime": start, "completionTime": "2026-01-01T00:10:00Z", "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]});
    let run = |spec: Value, old: Value, new: Value| {
        let base = stored(json!({"spec": spec}));
        status_errors(&Jobs, merged(base.clone(), json!({"status": new})), merged(base, json!({"status": old})))
    };
    let cases: Vec<(Value, Value, Value, &[&str])> = vec![
        (json!({}), json!({}), done.clone(), &[]),
        (
            json!({}),
            json!({}),
            json!({"active": -1}),
            &["status.active: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (
            json!({}),
            json!({}),
            json!({"startTime": start, "conditions": [condition("Complete")]}),
            &[
                "status.completionTime: Required value: completionTime is required for Complete jobs",
                "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            ],
        ),
        (
            json!({}),
            json!({}),
            json!({"startTime": start, "conditions": [condition("Failed")]}),
            &[
                "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
            ],
        ),
        (
            json!({}),
            json!({}),
            json!({"startTime": start, "active": 1, "terminating": 1, "conditions": [condition("Failed"), condition("FailureTarget")]}),
            &[
                "status.active: Invalid value: 1: active>0 is invalid for finished job",
                "status.terminating: Invalid value: 1: terminating>0 is invalid for finished job",
            ],
        ),
        (
            json!({}),
            json!({}),
            json!({"conditions": [condition("Failed"), condition("FailureTarget")]}),
            &["status.startTime: Required value: startTime is required for finished job"],
        ),
        (
            json!({}),
            done.clone(),
            json!({"startTime": start, "completionTime": "2026-01-01T00:10:00Z", "succeeded": 1, "conditions": []}),
            &[
                "status.completionTime: Invalid value: \"2026-01-01T00:10:00Z\": cannot set completionTime when there is no Complete=True condition",
                "status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
                "status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
            ],
        ),
        (
            json!({}),
            json!({"failed": 2, "succeeded": 2}),
            json!({"failed": 1, "succeeded": 1}),
            &[
                "status.failed: Invalid value: 1: cannot decrease the failed counter",
                "status.succeeded: Invalid value: 1: cannot decrease the succeeded counter",
            ],
        ),
        (
            json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3}),
            json!({"succeeded": 2}),
            json!({"succeeded": 1}),
            &[],
        ),
        (
            json!({}),
            json!({"startTime": start}),
            json!({"startTime": "2026-01-02T00:00:00Z"}),
            &[
                "status.startTime: Invalid value: \"2026-01-02T00:00:00Z\": field is immutable for unsuspended job once set",
            ],
        ),
        (json!({"suspend": true}), json!({"startTime": start}), json!({"startTime": null}), &[]),
        (
            json!({}),
            json!({"startTime": start, "conditions": [condition("Suspended")]}),
            json!({"startTime": "2026-01-02T00:00:00Z", "conditions": [{"type": "Suspended", "status": "False"}]}),
            &[],
        ),
        (
            json!({}),
            json!({}),
            json!({"ready": 1}),
            &["status.ready: Invalid value: 1: cannot set more ready pods than active"],
        ),
        (
            json!({}),
            json!({}),
            json!({"completedIndexes": "0"}),
            &[
                "status.completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed completion mode",
            ],
        ),
        (
            json!({"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1}),
            json!({}),
            json!({"completedIndexes": "0-1", "failedIndexes": "1"}),
            &["status.failedIndexes: Invalid value: \"1\": failedIndexes and completedIndexes overlap at index: 1"],
        ),
        (
            json!({}),
            json!({}),
            json!({"uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a"]}}),
            &[
                "status.uncountedTerminatedPods.succeeded[1]: Invalid value: \"\": must not be empty",
                "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
            ],
        ),
    ];
    for (spec, old, new, expected) in cases {
        assert_eq!(run(spec, old.clone(), new.clone()), expected, "{old} -> {new}");
    }
}

#[test]
fn columns_read_like_kubectls() {
    let see = |extra: Value| Value::Array(cells(&Jobs, merged(stored(json!({})), extra)));
    assert_eq!(
        see(json!({})),
        json!(["pi", "Running", "0/1", "", "60m", "c", "perl:5.34", "batch.kubernetes.io/controller-uid=u-1"])
    );
    let condition = |kind: &str| json!([{"type": kind, "status": "True"}]);
    assert_eq!(see(json!({"status": {"conditions": condition("Suspended")}}))[1], "Suspended");
    assert_eq!(
        see(
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"conditions": condition("Suspended")}})
        )[1],
        "Terminating"
    );
    let done = see(
        json!({"status": {"succeeded": 1, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:02:03Z", "conditions": condition("Complete")}}),
    );
    assert_eq!((&done[1], &done[2], &done[3]), (&json!("Complete"), &json!("1/1"), &json!("2m3s")));
    assert_eq!(see(json!({"spec": {"completions": null, "parallelism": 4}}))[2], "0/1 of 4");
}

#[test]
fn warnings_and_selectable_fields() {
    let read = |value: Value| serde_json::from_value::<Job>(value).unwrap();
    let dotted = read(job(json!({"metadata": {"name": "a.b"}})));
    assert_eq!(
        Jobs.warnings(&dotted, None),
        [
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]"
        ]
    );
    assert!(Jobs.warnings(&dotted, Some(&dotted)).is_empty());
    assert_eq!(Jobs.select(&json!({"status": {"succeeded": 3}}), "status.successful"), "3");
    assert_eq!(Jobs.select(&json!({}), "status.successful"), "0");
    assert_eq!(Jobs.default_propagation(), Propagation::Orphan);
}
