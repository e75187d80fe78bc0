use super::*;
use crate::registry::kind::Gates;
use crate::registry::kinds::testing::{cells as cells_of, create_errors, merged, update_errors};
use serde_json::json;

fn core(extra: Value) -> Value {
    let base = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default", "fieldPath": "spec"},
        "reason": "Started", "message": " it runs\n", "type": "Normal", "count": 3, "source": {"component": "kubelet", "host": "n"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:30:00Z"});
    merged(base, extra)
}

fn new(extra: Value) -> Value {
    let base = json!({"metadata": {"name": "e", "namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "Started", "action": "Start",
        "note": "it runs", "type": "Normal", "reportingController": "example.com/c", "reportingInstance": "c-0"});
    merged(base, extra)
}

#[test]
fn both_shapes_carry_the_same_event() {
    let old = core(json!({"reportingComponent": "c", "reportingInstance": "i"}));
    let shown = from_core(old.clone());
    assert_eq!(shown["apiVersion"], "events.k8s.io/v1");
    assert_eq!(shown["note"], " it runs\n");
    assert_eq!(shown["regarding"], old["involvedObject"]);
    assert_eq!(shown["reportingController"], "c");
    assert_eq!(shown["deprecatedCount"], 3);
    assert_eq!(shown["deprecatedSource"], json!({"component": "kubelet", "host": "n"}));
    assert_eq!(shown.get("message"), None);
    assert_eq!(to_core(shown), old);
    assert_eq!(to_core(json!(3)), json!(3), "not an object: left alone");
}

#[test]
fn old_events_are_in_their_objects_namespace() {
    assert!(create_errors(&Events, core(json!({}))).is_empty());
    let mismatch = "involvedObject.namespace: Invalid value: \"other\": does not match event.namespace";
    assert_eq!(create_errors(&Events, core(json!({"involvedObject": {"namespace": "other"}}))), [mismatch]);
    let cluster = json!({"involvedObject": {"namespace": null}});
    assert!(create_errors(&Events, core(cluster.clone())).is_empty(), "default is allowed for cluster-scoped objects");
    let elsewhere = merged(cluster, json!({"metadata": {"namespace": "team"}}));
    assert_eq!(
        create_errors(&Events, core(elsewhere)),
        ["involvedObject.namespace: Invalid value: \"\": does not match event.namespace"]
    );
}

#[test]
fn an_event_time_brings_more_required_fields() {
    let errors = create_errors(&Events, core(json!({"eventTime": "2026-01-01T00:00:00.000000Z", "reason": ""})));
    assert_eq!(errors[0], "reportingComponent: Required value");
    assert_eq!(
        errors[errors.len() - 3..],
        ["reportingInstance: Required value", "action: Required value", "reason: Required value"]
    );
    let long = json!({"action": "x".repeat(129), "note": "x".repeat(1025)});
    assert_eq!(
        create_errors(&NewEvents, new(long)),
        [
            "action: Invalid value: \"\": can have at most 128 characters",
            "message: Invalid value: \"\": can have at most 1024 characters"
        ]
    );
}

#[test]
fn new_events_leave_the_old_fields_unset() {
    assert!(create_errors(&NewEvents, new(json!({}))).is_empty());
    let bad = json!({"type": "Odd", "deprecatedCount": 1, "deprecatedSource": {"component": "x"}, "deprecatedFirstTimestamp":
        "2026-01-01T00:00:00Z", "series": {"count": 1}});
    assert_eq!(
        create_errors(&NewEvents, new(bad)),
        [
            "series.count: Invalid value: \"\": should be at least 2",
            "series.lastObservedTime: Required value",
            "type: Invalid value: \"\": has invalid value: Odd",
            "firstTimestamp: Invalid value: \"\": needs to be unset",
            "count: Invalid value: \"\": needs to be unset",
            "source: Invalid value: \"\": needs to be unset"
        ]
    );
    assert_eq!(create_errors(&NewEvents, new(json!({"eventTime": null}))), ["eventTime: Required value"]);
}

#[test]
fn only_the_series_of_a_new_event_goes_on() {
    let update = |extra| update_errors(&NewEvents, &Gates::default(), new(extra), new(json!({})));
    assert!(update(json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:10:00.000000Z"}})).is_empty());
    assert_eq!(
        update(json!({"note": "other", "reportingInstance": "c-1"})),
        [
            "message: Invalid value: \"other\": field is immutable",
            "reportingInstance: Invalid value: \"c-1\": field is immutable"
        ]
    );
    let errors = update(json!({"regarding": {"name": "q"}}));
    assert!(
        errors[0].starts_with("involvedObject: Invalid value: {") && errors[0].contains("\"Name\":\"q\""),
        "{errors:?}"
    );
}

#[test]
fn columns_read_like_kubectls() {
    let expected = json!(["30m", "Normal", "Started", "pod/p", "spec", "kubelet, n", "it runs", "60m", 3, "e"]);
    assert_eq!(Value::Array(cells_of(&Events, core(json!({})))), expected);
    let series = json!({"series": {"count": 5, "lastObservedTime": "2026-01-01T00:50:00.000000Z"}});
    let expected = json!(["10m", "Normal", "Started", "pod/p", "", "example.com/c, c-0", "it runs", "60m", 5, "e"]);
    assert_eq!(Value::Array(cells_of(&NewEvents, new(series))), expected);
    let expected = json!(["60m", "Normal", "Started", "pod/p", "", "example.com/c, c-0", "it runs", "60m", 1, "e"]);
    assert_eq!(Value::Array(cells_of(&NewEvents, new(json!({})))), expected);
}

#[test]
fn selectors_read_each_groups_own_names() {
    let event = core(json!({"reportingComponent": "c"}));
    assert_eq!(Events.select(&event, "involvedObject.name"), "p");
    assert_eq!(Events.select(&event, "source"), "kubelet");
    assert_eq!(Events.select(&merged(event.clone(), json!({"source": null})), "source"), "c");
    assert_eq!(Events.select(&event, "reason"), "Started");
    let event = from_core(event);
    assert_eq!(NewEvents.select(&event, "regarding.fieldPath"), "spec");
    assert_eq!(NewEvents.select(&event, "reportingController"), "c");
}
