use super::*;
use crate::registry::kind::Gates;
use crate::registry::kinds::testing::{cells, create, create_errors, merged, status_errors, update_errors};
use serde_json::json;

fn service(extra: Value) -> Value {
    let base = json!({"metadata": {"name": "s", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}}});
    merged(base, extra)
}

#[test]
fn a_plain_service_is_completed() {
    let (stored, errors) = create(&Services, service(json!({})));
    assert!(errors.is_empty(), "{errors:?}");
    let spec = &stored["spec"];
    assert_eq!(spec["type"], "ClusterIP");
    assert_eq!(spec["sessionAffinity"], "None");
    assert_eq!(spec["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]));
    assert_eq!(spec["internalTrafficPolicy"], "Cluster");
    assert_eq!((&spec["ipFamilyPolicy"], &spec["ipFamilies"]), (&json!("SingleStack"), &json!(["IPv4"])));
    assert_eq!(spec.get("clusterIP"), None, "nothing is allocated");
    assert_eq!(stored["status"], json!({"loadBalancer": {}}));
}

#[test]
fn a_headless_service_stays_headless() {
    let (stored, errors) = create(&Services, service(json!({"spec": {"clusterIP": "None", "ports": null}})));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(stored["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(stored["spec"]["ipFamilyPolicy"], "SingleStack");
    let (stored, _) = create(&Services, service(json!({"spec": {"clusterIP": "None", "selector": null}})));
    assert_eq!(stored["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(stored["spec"]["ipFamilyPolicy"], "RequireDualStack");
}

#[test]
fn types_and_affinity_have_their_defaults() {
    let (stored, _) =
        create(&Services, service(json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}})));
    let spec = &stored["spec"];
    assert_eq!(spec["externalTrafficPolicy"], "Cluster");
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    assert_eq!(spec["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
}

#[test]
fn mistakes_are_refused() {
    for (spec, expected) in [
        (json!({"ports": null}), "spec.ports: Required value"),
        (
            json!({"ports": [{"port": 0, "targetPort": 1}]}),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (json!({"ports": [{"port": 1}, {"port": 2, "name": "b"}]}), "spec.ports[0].name: Required value"),
        (
            json!({"ports": [{"port": 1, "protocol": "ICMP"}]}),
            "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            json!({"ports": [{"port": 1, "nodePort": 30000}]}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"type": "Magic"}),
            "spec.type: Unsupported value: \"Magic\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
        (
            json!({"type": "NodePort", "clusterIP": "None"}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            json!({"clusterIP": "nowhere"}),
            "spec.clusterIPs[0]: Invalid value: \"nowhere\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]}),
            "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ),
        (
            json!({"externalIPs": ["127.0.0.1"]}),
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        (
            json!({"externalTrafficPolicy": "Local"}),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (
            json!({"loadBalancerClass": "a/b"}),
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (json!({"type": "ExternalName", "ports": null}), "spec.externalName: Required value"),
        (
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}}),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400",
        ),
    ] {
        assert_eq!(create_errors(&Services, service(json!({"spec": spec}))), [expected], "{spec}");
    }
}

#[test]
fn the_cluster_ip_stays_and_old_clients_may_leave_out_the_list() {
    let with = |spec: Value| service(json!({"spec": spec}));
    let old = with(
        json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}),
    );
    let update = |spec| update_errors(&Services, &Gates::default(), with(spec), old.clone());
    assert!(update(json!({"clusterIP": "10.0.0.1"})).is_empty());
    assert_eq!(
        update(json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"]})),
        ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
    );
    assert!(
        update(
            json!({"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": null})
        )
        .is_empty()
    );
}

#[test]
fn leaving_a_type_leaves_its_fields() {
    let old = service(
        json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000}], "externalTrafficPolicy": "Cluster"}}),
    );
    let new = merged(old.clone(), json!({"spec": {"type": "ClusterIP"}}));
    assert!(update_errors(&Services, &Gates::default(), new, old).is_empty());
}

#[test]
fn only_load_balancers_have_ingress() {
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
    let plain = service(status.clone());
    assert_eq!(
        status_errors(&Services, plain.clone(), plain),
        ["status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"]
    );
    let balanced = merged(service(status), json!({"spec": {"type": "LoadBalancer"}}));
    assert!(status_errors(&Services, balanced.clone(), balanced).is_empty());
}

#[test]
fn columns_read_like_kubectls() {
    let shown = |extra| Value::Array(cells(&Services, service(extra)));
    assert_eq!(shown(json!({})), json!(["s", "ClusterIP", "<none>", "<none>", "80/TCP", "60m", "app=a"]));
    assert_eq!(
        shown(
            json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30000}, {"port": 53, "protocol": "UDP"}]},
            "status": {"loadBalancer": {"ingress": [{"hostname": "b"}, {"ip": "1.2.3.4"}]}}})
        ),
        json!(["s", "LoadBalancer", "10.0.0.1", "1.2.3.4,b", "80:30000/TCP,53/UDP", "60m", "app=a"])
    );
    assert_eq!(shown(json!({"spec": {"type": "LoadBalancer"}}))[3], "<pending>");
    assert_eq!(
        shown(json!({"spec": {"type": "ExternalName", "externalName": "x.y", "ports": null, "selector": null}})),
        json!(["s", "ExternalName", "<none>", "x.y", "<none>", "60m", "<none>"])
    );
}
