//! Manifest in, errors out.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use serde_json::{Value, json};
use usher_schema::field::Errors;

use super::{defaults, validate, warnings};
use crate::registry::kinds::at::At;

/// A template with `extra` merged over a good container and spec.
fn template(extra: Value) -> PodTemplateSpec {
    let mut spec = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(json!({"spec": spec})).unwrap()
}

fn check(extra: Value) -> Vec<String> {
    let mut template = template(extra);
    defaults::default_template(&mut template);
    let mut errors = Errors::new();
    validate::validate_template(&template, &At::Root("template"), &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

fn container(extra: Value) -> Vec<String> {
    let mut container = json!({"name": "main", "image": "busybox"});
    container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let prefix = "template.spec.containers[0].";
    let strip = |error: String| error.strip_prefix(prefix).map_or(error.clone(), str::to_owned);
    check(json!({"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]}))
        .into_iter()
        .map(strip)
        .collect()
}

fn table(cases: &[(Value, &[&str])], run: fn(Value) -> Vec<String>) {
    for (input, expected) in cases {
        assert_eq!(run(input.clone()), *expected, "for {input}");
    }
}

#[test]
fn containers_need_names_and_images() {
    table(
        &[
            (json!({}), &[]),
            (json!({"containers": []}), &["template.spec.containers: Required value"]),
            (json!({"containers": [{"name": "a"}]}), &["template.spec.containers[0].image: Required value"]),
            (
                json!({"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}],
                    "initContainers": [{"name": "a", "image": "x"}]}),
                &[
                    "template.spec.containers[1].name: Duplicate value: \"a\"",
                    "template.spec.initContainers[0].name: Duplicate value: \"a\"",
                ],
            ),
            (
                json!({"initContainers": [{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["a"]}}}]}),
                &[
                    "template.spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
                ],
            ),
            (
                json!({"initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always", "livenessProbe": {"exec": {"command": ["a"]}}}]}),
                &[],
            ),
            (
                json!({"ephemeralContainers": [{"name": "e", "image": "x"}]}),
                &["template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"],
            ),
            (
                json!({"restartPolicy": "Sometimes"}),
                &[
                    "template.spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
                ],
            ),
        ],
        check,
    );
}

#[test]
fn parts_of_a_container_are_checked() {
    table(
        &[
            (
                json!({"imagePullPolicy": "Often"}),
                &[
                    "imagePullPolicy: Unsupported value: \"Often\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
                ],
            ),
            (
                json!({"ports": [{"containerPort": 0}, {"containerPort": 70000, "name": "UPPER", "protocol": "ICMP"}]}),
                &[
                    "ports[0].containerPort: Required value",
                    "ports[1].name: Invalid value: \"UPPER\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                    "ports[1].name: Invalid value: \"UPPER\": must contain at least one letter (a-z)",
                    "ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                    "ports[1].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                ],
            ),
            (
                json!({"env": [{"name": ""}, {"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "spec.restartPolicy"}}},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "spec.foo"}}},
                    {"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}},
                    {"name": "F", "valueFrom": {"secretKeyRef": {"name": "s", "key": ""}}},
                    {"name": "G", "valueFrom": {}}]}),
                &[
                    "env[0].name: Required value",
                    "env[1].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
                    "env[3].valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.restartPolicy\": supported values: \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"",
                    "env[4].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.foo\": error converting fieldPath: field label not supported: spec.foo",
                    "env[5].valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
                    "env[6].valueFrom.secretKeyRef.key: Required value",
                    "env[7].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
                ],
            ),
            (
                json!({"envFrom": [{}]}),
                &["envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"],
            ),
            (
                json!({"volumeMounts": [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/a", "subPath": "../x"}, {"name": "nope", "mountPath": ""}]}),
                &[
                    "volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
                    "volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'",
                    "volumeMounts[2].name: Not found: \"nope\"",
                    "volumeMounts[2].mountPath: Required value",
                ],
            ),
            (
                json!({"livenessProbe": {"successThreshold": 2, "exec": {}, "httpGet": {"port": 0}}}),
                &[
                    "livenessProbe.exec.command: Required value",
                    "livenessProbe.httpGet: Forbidden: may not specify more than 1 handler type",
                    "livenessProbe.successThreshold: Invalid value: 2: must be 1",
                ],
            ),
            (json!({"readinessProbe": {}}), &["readinessProbe: Required value: must specify a handler type"]),
            (
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
                &[
                    "lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
                ],
            ),
            (
                json!({"securityContext": {"runAsUser": -1}}),
                &["securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"],
            ),
            (
                json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}),
                &["restartPolicy: Required value: must specify restartPolicy when restart rules are used"],
            ),
        ],
        container,
    );
}

#[test]
fn resources_are_checked() {
    let with = |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
    table(
        &[
            (with(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "2", "nvidia.com/gpu": "1"})), &[]),
            (
                with(json!({"cpu": "2"}), json!({"cpu": "1"})),
                &["resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"],
            ),
            (
                with(json!({"nvidia.com/gpu": "1"}), json!({"nvidia.com/gpu": "2"})),
                &["resources.requests: Invalid value: \"1\": must be equal to nvidia.com/gpu limit of 2"],
            ),
            (
                with(json!({"nvidia.com/gpu": "1"}), json!({})),
                &["resources.limits: Required value: Limit must be set for non overcommitable resources"],
            ),
            (
                with(json!({}), json!({"nvidia.com/gpu": "500m"})),
                &["resources.limits[nvidia.com/gpu]: Invalid value: \"500m\": must be an integer"],
            ),
            (
                with(json!({}), json!({"cpu": "-1"})),
                &["resources.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"],
            ),
            (
                with(json!({}), json!({"pods": "1"})),
                &["resources.limits[pods]: Invalid value: \"pods\": must be a standard resource for containers"],
            ),
            (
                with(json!({}), json!({"bananas": "1"})),
                &[
                    "resources.limits[bananas]: Invalid value: \"bananas\": must be a standard resource type or fully qualified",
                    "resources.limits[bananas]: Invalid value: \"bananas\": must be a standard resource for containers",
                ],
            ),
            (
                with(json!({}), json!({"hugepages-2Mi": "4Mi"})),
                &["resources: Forbidden: HugePages require cpu or memory"],
            ),
            (
                with(json!({}), json!({"cpu": "1", "hugepages-2Mi": "3Mi"})),
                &[
                    "resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
                ],
            ),
            (
                json!({"resources": {"claims": [{"name": "gpu"}]}}),
                &[
                    "resources.claims[0]: Not found: \"gpu\": must be one of the names in pod.spec.resourceClaims which is empty",
                ],
            ),
            (
                with(json!({}), json!({"cpu": "lots"})),
                &[
                    "resources.limits[cpu]: Invalid value: \"lots\": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                ],
            ),
        ],
        container,
    );
}

#[test]
fn volumes_have_exactly_one_source() {
    table(
        &[
            (
                json!({"volumes": [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]}),
                &["template.spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
            ),
            (
                json!({"volumes": [{"name": "A", "secret": {}}, {"name": "b", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]}),
                &[
                    "template.spec.volumes[0].secret.secretName: Required value",
                    "template.spec.volumes[0].name: Invalid value: \"A\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
                    "template.spec.volumes[2].name: Duplicate value: \"b\"",
                ],
            ),
            (
                json!({"volumes": [{"name": "a", "configMap": {"name": "c", "defaultMode": 512, "items": [{"key": "k", "path": "/abs"}]}}]}),
                &[
                    "template.spec.volumes[0].configMap.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                    "template.spec.volumes[0].configMap.items[0].path: Invalid value: \"/abs\": must be a relative path",
                ],
            ),
            (
                json!({"volumes": [{"name": "a", "downwardAPI": {"items": [{"path": "x"}]}}, {"name": "b", "hostPath": {"path": "/a/../b", "type": "Pipe"}},
                    {"name": "c", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}},
                    {"name": "d", "persistentVolumeClaim": {"claimName": ""}}]}),
                &[
                    "template.spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
                    "template.spec.volumes[1].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
                    "template.spec.volumes[1].hostPath.type: Unsupported value: \"Pipe\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
                    "template.spec.volumes[2].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
                    "template.spec.volumes[3].persistentVolumeClaim.claimName: Required value",
                ],
            ),
        ],
        check,
    );
}

#[test]
fn scheduling_directives_are_checked() {
    table(
        &[
            (
                json!({"tolerations": [{"operator": "Equal"}, {"key": "a", "operator": "Exists", "value": "x"},
                    {"key": "a", "tolerationSeconds": 3}, {"key": "a", "effect": "Maybe"}, {"operator": "Exists"}]}),
                &[
                    "template.spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
                    "template.spec.tolerations[1].operator: Invalid value: \"x\": value must be empty when `operator` is 'Exists'",
                    "template.spec.tolerations[2].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
                    "template.spec.tolerations[3].effect: Unsupported value: \"Maybe\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
                ],
            ),
            (
                json!({"schedulingGates": [{"name": "a/b"}, {"name": "a/b"}]}),
                &["template.spec.schedulingGates[1]: Duplicate value: \"a/b\""],
            ),
            (
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "In"}], "matchFields": [{"key": "spec.x", "operator": "In", "values": ["n"]}]}]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {}}]}}}),
                &[
                    "template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                    "template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key: Invalid value: \"spec.x\": not a valid field selector key",
                    "template.spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100",
                ],
            ),
            (
                json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Panic"}]}),
                &[
                    "template.spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                    "template.spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
                    "template.spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Panic\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
                ],
            ),
            (
                json!({"activeDeadlineSeconds": 0, "dnsPolicy": "None", "hostname": "a.b"}),
                &[
                    "template.spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
                    "template.spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
                    "template.spec.hostname: Invalid value: \"a.b\": must not contain dots",
                ],
            ),
            (
                json!({"resources": {"requests": {"cpu": "1"}}, "containers": [{"name": "a", "image": "x", "resources": {"requests": {"cpu": "2"}}}]}),
                &[
                    "template.spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
                ],
            ),
            (
                json!({"os": {"name": "plan9"}}),
                &["template.spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\""],
            ),
        ],
        check,
    );
}

#[test]
fn old_and_ambiguous_things_are_warned_about() {
    let spec: PodSpec = serde_json::from_value(json!({
        "nodeSelector": {"beta.kubernetes.io/os": "linux"},
        "containers": [
            {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "X", "value": "2"}, {"name": "X", "value": "$(X)3"}],
                "resources": {"limits": {"memory": "100m"}}, "ports": [{"containerPort": 80, "name": "web"}]},
            {"name": "b", "ports": [{"containerPort": 80, "name": "web"}]}],
        "imagePullSecrets": [{"name": ""}]
    }))
    .unwrap();
    let mut spec = spec;
    defaults::default_spec(&mut spec);
    assert_eq!(
        warnings::warnings(&spec, &Default::default(), &usher_schema::field::Path::default()),
        [
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.imagePullSecrets[0].name: invalid empty name \"\"",
            "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
            "spec.containers[0].env[1]: hides previous definition of \"X\", which may be dropped when using apply",
            "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
            "spec.containers[1].ports[0]: duplicate port name \"web\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
        ]
    );
}

#[test]
fn hostile_templates_are_refused_without_panicking() {
    let many: Vec<Value> = (0..2000).map(|i| json!({"name": format!("v{i}"), "emptyDir": {}})).collect();
    assert!(check(json!({"volumes": many})).is_empty());
    let huge = "9".repeat(5000);
    assert!(container(json!({"resources": {"limits": {"cpu": huge}}})).is_empty());
    assert!(!container(json!({"resources": {"limits": {"hugepages-0": "1", "cpu": "1"}}})).is_empty());
    assert!(!container(json!({"resources": {"limits": {"hugepages-": "1", "": "1"}}})).is_empty());
}
