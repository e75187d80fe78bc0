//! Pods as clients send them and node agents report them.

use super::*;
use crate::registry::kind::Gates;
use crate::registry::kinds::testing::{cells, create, create_errors, merged, status_errors, update_errors};
use serde_json::json;

fn pod(extra: Value) -> Value {
    let base = json!({"metadata": {"name": "p", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}});
    merged(base, extra)
}

fn stored(extra: Value) -> Value {
    let (value, errors) = create(&Pods, pod(extra));
    assert!(errors.is_empty(), "{errors:?}");
    value
}

fn change(old: &Value, extra: Value) -> Vec<String> {
    update_errors(&Pods, &Gates::default(), merged(old.clone(), extra), old.clone())
}

#[test]
fn a_new_pod_is_pending_and_has_a_quality_of_service() {
    let with = |resources: Value| {
        stored(json!({"spec": {"containers": [{"name": "c", "image": "a:1", "resources": resources}]}}))["status"]
            .clone()
    };
    assert_eq!(with(json!({})), json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(with(json!({"limits": {"cpu": "1", "memory": "1Gi"}}))["qosClass"], "Guaranteed");
    assert_eq!(with(json!({"limits": {"cpu": "1"}}))["qosClass"], "Burstable");
    assert_eq!(with(json!({"requests": {"cpu": "1"}}))["qosClass"], "Burstable");
    assert_eq!(with(json!({"limits": {"nvidia.com/gpu": "1"}}))["qosClass"], "BestEffort");
    let wiped = create(&Pods, pod(json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}}))).0;
    assert_eq!(wiped["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
}

#[test]
fn a_gated_pod_says_so_from_the_start() {
    let status = stored(json!({"spec": {"schedulingGates": [{"name": "a/b"}]}}))["status"].clone();
    assert_eq!(
        status["conditions"],
        json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "Scheduling is blocked due to non-empty scheduling gates"}])
    );
}

#[test]
fn label_keys_become_part_of_the_selector() {
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}}, "matchLabelKeys": ["rev"]}]);
    let out = stored(
        json!({"metadata": {"labels": {"app": "x", "rev": "7"}}, "spec": {"topologySpreadConstraints": spread}}),
    );
    assert_eq!(
        out["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"],
        json!([{"key": "rev", "operator": "In", "values": ["7"]}])
    );
    assert!(change(&out, json!({"metadata": {"labels": {"extra": "1"}}})).is_empty(), "and stays valid on update");
}

#[test]
fn pod_level_resources_are_completed() {
    let out = stored(json!({"spec": {"resources": {"limits": {"cpu": "4", "memory": "1Gi"}},
        "containers": [{"name": "c", "image": "a:1", "resources": {"requests": {"cpu": "1"}}}]}}));
    assert_eq!(out["spec"]["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(out["status"]["qosClass"], "Burstable");
}

#[test]
fn mistakes_on_create_are_refused() {
    let token = json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
    for (extra, expected) in [
        (
            json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "x"}]}}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (
            json!({"spec": {"nodeName": "n", "schedulingGates": [{"name": "a/b"}]}}),
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ),
        (
            json!({"spec": {"containers": [{"name": "c", "image": " x"}]}}),
            "spec.containers[0].image: Invalid value: \" x\": must not have leading or trailing whitespace",
        ),
        (
            json!({"spec": {"volumes": token}}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
        ),
        (
            json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "+1"}}}),
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+1\": must be a 32bit integer",
        ),
    ] {
        assert_eq!(create_errors(&Pods, pod(extra.clone())), [expected], "{extra}");
    }
}

#[test]
fn only_a_few_fields_may_change() {
    let old = stored(
        json!({"spec": {"activeDeadlineSeconds": 100, "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]}}),
    );
    let containers = |image: &str, extra: Value| {
        let mut container = old["spec"]["containers"][0].clone();
        json_patch::merge(&mut container, &json!({"image": image}));
        json_patch::merge(&mut container, &extra);
        json!({"spec": {"containers": [container]}})
    };
    let toleration =
        |secs: Value| json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": secs});
    for allowed in [
        containers("busybox:2", json!({})),
        json!({"spec": {"activeDeadlineSeconds": 50}}),
        json!({"spec": {"tolerations": [toleration(json!(5)), {"key": "b", "operator": "Exists"}]}}),
        json!({"metadata": {"labels": {"x": "y"}}}),
    ] {
        assert_eq!(change(&old, allowed.clone()), Vec::<String>::new(), "{allowed}");
    }
    for (refused, expected) in [
        (
            json!({"spec": {"activeDeadlineSeconds": 200}}),
            "spec.activeDeadlineSeconds: Invalid value: 200: must be less than or equal to previous value",
        ),
        (
            json!({"spec": {"activeDeadlineSeconds": null}}),
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value",
        ),
        (
            json!({"spec": {"tolerations": []}}),
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
        ),
        (
            json!({"spec": {"schedulingGates": [{"name": "a/b"}]}}),
            "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a/b'",
        ),
    ] {
        assert_eq!(change(&old, refused.clone())[0], expected, "{refused}");
    }
    let two = json!({"spec": {"containers": [old["spec"]["containers"][0], {"name": "d", "image": "x:1"}]}});
    assert_eq!(change(&old, two), ["spec.containers: Forbidden: pod updates may not add or remove containers"]);
    let command = change(&old, containers("busybox:1", json!({"command": ["sh"]})));
    assert_eq!(
        command,
        [
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
          `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
          `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n\
          - spec.containers[0].command: null\n+ spec.containers[0].command: [\"sh\"]"
        ]
    );
}

#[test]
fn a_gated_pod_may_be_aimed_more_narrowly() {
    let term = |keys: &[&str]| {
        let all: Vec<Value> = keys.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect();
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": all}]}}})
    };
    let old = stored(
        json!({"spec": {"schedulingGates": [{"name": "a/b"}], "nodeSelector": {"a": "1"}, "affinity": term(&["x"])}}),
    );
    assert!(
        change(
            &old,
            json!({"spec": {"schedulingGates": [], "nodeSelector": {"b": "2"}, "affinity": term(&["x", "y"])}})
        )
        .is_empty()
    );
    assert_eq!(
        change(&old, json!({"spec": {"nodeSelector": {"a": "2"}}})),
        [
            "spec.nodeSelector: Invalid value: {\"a\":\"2\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        ]
    );
    let narrowed = change(&old, json!({"spec": {"affinity": term(&["y"])}}));
    assert_eq!(narrowed.len(), 1);
    assert!(narrowed[0].ends_with("only additions are allowed (no mutations or deletions)"), "{narrowed:?}");
    let ungated = stored(json!({"spec": {"nodeSelector": {"a": "1"}}}));
    assert!(
        change(&ungated, json!({"spec": {"nodeSelector": {"b": "2"}}}))[0]
            .starts_with("spec: Forbidden: pod updates may not change")
    );
    let bare = stored(json!({"spec": {"schedulingGates": [{"name": "a/b"}]}}));
    assert!(change(&bare, json!({"spec": {"affinity": term(&["x"])}})).is_empty());
}

#[test]
fn a_status_must_be_possible() {
    let ended = |code: i32| json!({"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": code}}}]});
    let running = json!({"containerStatuses": [{"name": "c", "state": {"running": {}}}]});
    let run = |spec: Value, old: Value, new: Value| {
        let base = stored(json!({"spec": spec}));
        status_errors(&Pods, merged(base.clone(), json!({"status": new})), merged(base, json!({"status": old})))
    };
    let never = json!({"restartPolicy": "Never"});
    assert_eq!(
        run(never.clone(), ended(1), running.clone()),
        ["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"]
    );
    assert!(run(json!({"restartPolicy": "OnFailure"}), ended(1), running.clone()).is_empty());
    assert_eq!(run(json!({"restartPolicy": "OnFailure"}), ended(0), running.clone()).len(), 1);
    assert!(run(json!({}), ended(0), running).is_empty());
    assert_eq!(
        run(never.clone(), json!({}), json!({"qosClass": "Guaranteed"})),
        ["status.qosClass: Invalid value: \"Guaranteed\": field is immutable"]
    );
    assert!(run(never.clone(), json!({}), json!({"qosClass": null})).is_empty(), "kept when left out");
    assert_eq!(
        run(never.clone(), json!({}), json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]})),
        [
            "status.podIPs: Invalid value: [{\"ip\":\"10.0.0.1\"},{\"ip\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family"
        ]
    );
    assert!(run(never.clone(), json!({}), json!({"podIP": "10.0.0.1"})).is_empty());
    assert_eq!(
        run(json!({"nodeName": "n"}), json!({}), json!({"nominatedNodeName": "m"})),
        ["status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node"]
    );
    assert!(
        run(never, json!({}), json!({"conditions": [{"type": "a b", "status": "True"}]}))[0]
            .starts_with("status.conditions[0].Type: Invalid value: \"a b\"")
    );
}

#[test]
fn columns_read_like_kubectls() {
    let see = |extra: Value| {
        let cells = cells(&Pods, pod(extra));
        let text = |i: usize| cells[i].as_str().unwrap().to_owned();
        (text(1), text(2), text(3))
    };
    let row = |ready: &str, status: &str, restarts: &str| (ready.to_owned(), status.to_owned(), restarts.to_owned());
    let status = |phase: &str, containers: Value| json!({"status": {"phase": phase, "containerStatuses": containers}});
    let ended =
        |reason: &str, code: i32| json!({"name": "c", "state": {"terminated": {"reason": reason, "exitCode": code}}});
    assert_eq!(see(json!({"status": {"phase": "Pending"}})), row("0/1", "Pending", "0"));
    assert_eq!(
        see(status("Running", json!([{"name": "c", "ready": true, "state": {"running": {}}}]))),
        row("1/1", "Running", "0")
    );
    assert_eq!(see(status("Succeeded", json!([ended("Completed", 0)]))), row("0/1", "Completed", "0"));
    assert_eq!(see(status("Failed", json!([ended("Error", 1)]))), row("0/1", "Error", "0"));
    assert_eq!(see(status("Failed", json!([ended("", 3)]))), row("0/1", "ExitCode:3", "0"));
    assert_eq!(
        see(status("Failed", json!([{"name": "c", "state": {"terminated": {"exitCode": 137, "signal": 9}}}]))).1,
        "Signal:9"
    );
    let crash = json!([{"name": "c", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:55:00Z"}}}]);
    assert_eq!(see(status("Running", crash)), row("0/1", "CrashLoopBackOff", "4 (5m ago)"));
    assert_eq!(
        see(merged(status("Running", json!([])), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))).1,
        "Terminating"
    );
    assert_eq!(
        see(merged(
            status("Succeeded", json!([ended("Completed", 0)])),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        ))
        .1,
        "Completed"
    );
    assert_eq!(
        see(json!({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}})).1,
        "SchedulingGated"
    );
    let init = |states: Value| {
        json!({"spec": {"initContainers": [{"name": "i", "image": "x"}, {"name": "j", "image": "x"}]},
        "status": {"phase": "Pending", "initContainerStatuses": states}})
    };
    let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
    assert_eq!(see(init(json!([{"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}]))).1, "Init:0/2");
    assert_eq!(see(init(json!([done, {"name": "j", "state": {"running": {}}}]))).1, "Init:1/2");
    assert_eq!(see(init(json!([done, {"name": "j", "state": {"terminated": {"exitCode": 2}}}]))).1, "Init:ExitCode:2");
    assert_eq!(
        see(init(json!([{"name": "i", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]))).1,
        "Init:ImagePullBackOff"
    );
    let sidecar = json!({"spec": {"initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always"}]},
        "status": {"phase": "Running", "initContainerStatuses": [{"name": "i", "ready": true, "started": true, "restartCount": 2, "state": {"running": {}}}],
            "containerStatuses": [{"name": "c", "ready": true, "state": {"running": {}}}]}});
    assert_eq!(see(sidecar), row("2/2", "Running", "2"));
}

#[test]
fn wide_columns_say_where_a_pod_is() {
    let seen = cells(
        &Pods,
        pod(json!({"spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "a/b"}]},
            "status": {"podIP": "10.0.0.1", "conditions": [{"type": "a/b", "status": "True"}]}})),
    );
    assert_eq!(seen[4..], [json!("60m"), json!("10.0.0.1"), json!("n1"), json!("<none>"), json!("1/1")]);
}

#[test]
fn selectors_read_the_stored_form() {
    let pod = json!({"spec": {"nodeName": "n1", "hostNetwork": true}, "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}});
    for (field, value) in [
        ("spec.nodeName", "n1"),
        ("spec.hostNetwork", "true"),
        ("status.phase", "Running"),
        ("status.podIP", "10.0.0.1"),
        ("spec.schedulerName", ""),
    ] {
        assert_eq!(Pods.select(&pod, field), value, "{field}");
    }
    assert_eq!(Pods.select(&json!({}), "spec.hostNetwork"), "false");
}
