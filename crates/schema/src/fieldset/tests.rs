use proptest::prelude::*;
use serde_json::{Value, json};

use super::sample::{job, sample};
use super::*;

fn set(fields: Value) -> Set {
    Set::from_fields_v1(&fields).expect("a readable set")
}

fn lines(set: &Set) -> Vec<String> {
    set.paths().iter().map(Path::to_string).collect()
}

#[test]
fn a_value_owns_scalars_items_map_entries_and_atomic_values_whole() {
    let sample = sample();
    let value = job(json!({
        "metadata": {"labels": {"app": "x"}, "annotations": {}, "finalizers": ["b", "a"]},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"spec": {
                "nodeSelector": {"zone": "a"},
                "tolerations": [{"key": "k"}],
                "volumes": [],
                "containers": [{
                    "name": "c", "image": "i", "command": ["x", "y"], "resources": {}, "tty": null,
                    "ports": [{"containerPort": 443}, {"containerPort": 80, "protocol": "UDP"}],
                    "env": [{"name": "E", "value": ""}],
                }],
            }},
        },
    }));
    let expected = r#"{"f:apiVersion":{},"f:kind":{},"f:metadata":{"f:annotations":{},"f:finalizers":{"v:\"a\"":{},"v:\"b\"":{}},"f:labels":{"f:app":{}},"f:name":{},"f:namespace":{}},"f:spec":{"f:selector":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:command":{},"f:env":{"k:{\"name\":\"E\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"UDP\"}":{".":{},"f:containerPort":{},"f:protocol":{}},"k:{\"containerPort\":443,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}},"f:resources":{},"f:tty":{}}},"f:nodeSelector":{},"f:tolerations":{}}}}}"#;
    assert_eq!(of(sample.job(), &value).to_json(), expected);
}

#[test]
fn entries_of_maps_are_members_and_so_are_their_ancestors_in_the_map() {
    let sample = sample();
    let value = job(json!({"spec": {"weird": {"outer": {"inner": "x"}}}}));
    let set = of(sample.job(), &value);
    let path = |names: &[&str]| names.iter().map(|n| Element::field(n)).collect::<Vec<_>>();
    assert!(set.has(&path(&["spec", "weird", "outer"])));
    assert!(set.has(&path(&["spec", "weird", "outer", "inner"])));
    assert!(!set.has(&path(&["spec", "weird"])));
    assert!(!set.has(&path(&["spec"])));
    assert!(!set.has(&[]));
}

#[test]
fn items_with_the_same_key_are_owned_together_without_their_fields() {
    let sample = sample();
    let value = job(json!({"spec": {"template": {"spec": {"containers": [
        {"name": "a", "image": "1"}, {"name": "b", "image": "1"}, {"name": "a", "image": "2"},
    ]}}}}));
    let containers =
        [Element::field("spec"), Element::field("template"), Element::field("spec"), Element::field("containers")];
    let mut at = &of(sample.job(), &value);
    for element in &containers {
        at = at.below(element).expect("there");
    }
    assert_eq!(at.to_json(), r#"{"k:{\"name\":\"a\"}":{},"k:{\"name\":\"b\"}":{".":{},"f:image":{},"f:name":{}}}"#);
}

#[test]
fn unknown_fields_are_owned_field_by_field_where_they_are_kept_and_not_at_all_elsewhere() {
    let sample = sample();
    let value = json!({"spec": {"dropped": 1, "free": {"known": 1, "x": {"y": [1], "z": {}}}, "raw": {"a": {"b": 1}}}});
    assert_eq!(
        of(sample.custom(), &value).to_json(),
        r#"{"f:spec":{"f:free":{"f:known":{},"f:x":{".":{},"f:y":{},"f:z":{}}},"f:raw":{}}}"#
    );
}

#[test]
fn paths_print_as_upstream_prints_them() {
    let fields = json!({"f:spec": {"f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {"f:name": {}}}, "f:set": {"v:\"a\"": {}, "v:1": {}, "i:3": {}}}});
    assert_eq!(
        lines(&set(fields)),
        [".spec.ports[containerPort=80,protocol=\"TCP\"].name", ".spec.set[=1]", ".spec.set[=\"a\"]", ".spec.set[3]"]
    );
}

#[test]
fn members_of_a_level_come_before_what_is_below_them() {
    let fields = json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}});
    assert_eq!(lines(&set(fields)), [".a", ".c", ".a.b"]);
}

#[test]
fn stored_form_keeps_upstreams_order_and_escapes() {
    let fields = json!({
        "f:z": {}, "f:a": {".": {}, "f:b": {}},
        "k:{\"port\":443}": {}, "k:{\"port\":80}": {},
        "v:true": {}, "v:2": {}, "v:\"x\"": {}, "v:10": {}, "i:2": {}, "x:new": {},
        "f:<&>": {},
    });
    assert_eq!(
        set(fields).to_json(),
        "{\"f:\\u003c\\u0026\\u003e\":{},\"f:a\":{\".\":{},\"f:b\":{}},\"f:z\":{},\"k:{\\\"port\\\":80}\":{},\"k:{\\\"port\\\":443}\":{},\"v:2\":{},\"v:10\":{},\"v:\\\"x\\\"\":{},\"v:true\":{},\"i:2\":{}}"
    );
    assert_eq!(
        Set::from_fields_v1(&json!({"v:\"<\"": {}})).map(|s| s.to_fields_v1()),
        Ok(json!({"v:\"\\u003c\"": {}})),
        "a value is escaped inside the key, as Go does"
    );
}

#[test]
fn keys_of_an_item_are_one_key_in_whatever_order_they_were_written() {
    let a = set(json!({"k:{\"protocol\":\"TCP\",\"containerPort\":80}": {}}));
    let b = set(json!({"k:{\"containerPort\":80.0,\"protocol\":\"TCP\"}": {}}));
    assert_eq!(a, b);
    assert_eq!(a.to_json(), r#"{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{}}"#);
}

#[test]
fn unreadable_sets_are_refused() {
    for bad in [
        json!([]),
        json!({"f:a": 1}),
        json!({"a": {}}),
        json!({"": {}}),
        json!({"k:x": {}}),
        json!({"f:a": {"v:": {}}}),
    ] {
        assert!(Set::from_fields_v1(&bad).is_err(), "{bad}");
    }
    assert_eq!(Set::from_fields_v1(&Value::Null), Ok(Set::new()));
    assert_eq!(set(json!({"f:a": null})).to_json(), r#"{"f:a":{}}"#);
}

#[test]
fn hostile_nesting_ends_the_walk_and_not_the_process() {
    let sample = sample();
    let (mut fields, mut value) = (json!({}), json!(1));
    let wrap = |key: &str, inner: Value| Value::Object([(key.to_owned(), inner)].into_iter().collect());
    for _ in 0..1_000 {
        fields = wrap("f:a", fields);
        value = wrap("a", value);
    }
    assert_eq!(Set::from_fields_v1(&fields), Err(BadFields::TooDeep));
    assert_eq!(of(sample.custom(), &wrap("spec", wrap("free", value))).leaves().len(), 1);
}

#[test]
fn difference_is_by_path_and_recursive_difference_takes_what_is_below() {
    let s = set(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"f:d": {}}, "f:e": {}}));
    let minus = set(json!({"f:a": {}, "f:c": {}}));
    assert_eq!(s.difference(&minus), set(json!({"f:a": {"f:b": {}}, "f:c": {"f:d": {}}, "f:e": {}})));
    assert_eq!(s.recursive_difference(&minus), set(json!({"f:e": {}})));
    assert_eq!(s.leaves(), set(json!({"f:a": {"f:b": {}}, "f:c": {"f:d": {}}, "f:e": {}})));
}

#[test]
fn named_fields_on_the_way_become_members_but_not_map_entries_or_items() {
    let sample = sample();
    let s = set(json!({"f:spec": {
        "f:weird": {"f:outer": {"f:inner": {}}},
        "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:resources": {"f:limits": {"f:cpu": {}}}}}}},
    }}));
    let named = lines(&s.ensure_named_fields_are_members(sample.job()));
    for member in [
        ".spec",
        ".spec.weird",
        ".spec.template.spec.containers",
        ".spec.template.spec.containers[name=\"a\"].resources",
        ".spec.template.spec.containers[name=\"a\"].resources.limits",
    ] {
        assert!(named.iter().any(|n| n == member), "{member} in {named:?}");
    }
    for other in [".spec.weird.outer", ".spec.template.spec.containers[name=\"a\"]"] {
        assert!(!named.iter().any(|n| n == other), "{other} not in {named:?}");
    }
}

#[test]
fn sets_from_before_a_field_became_atomic_own_the_field() {
    let sample = sample();
    let old = set(json!({"f:spec": {"f:selector": {"f:matchLabels": {"f:app": {}}}, "f:parallelism": {}}}));
    let new = set(json!({"f:spec": {"f:selector": {}, "f:parallelism": {}}}));
    assert_eq!(old.reconciled(sample.job()), Some(new.clone()));
    assert_eq!(new.reconciled(sample.job()), None);
}

fn any_element() -> impl Strategy<Value = Element> {
    prop_oneof![
        "[a-c]".prop_map(|n| Element::field(&n)),
        ("[ab]", 0..3i64).prop_map(|(n, v)| Element::key([(n, json!(v)), ("z".to_owned(), json!("q"))])),
        prop_oneof![Just(json!(1)), Just(json!(1.5)), Just(json!("<x>")), Just(json!(true))].prop_map(Element::value),
        (0..2i64).prop_map(Element::Index),
    ]
}

fn any_set() -> impl Strategy<Value = Set> {
    prop::collection::vec(prop::collection::vec(any_element(), 1..4), 0..12).prop_map(|paths| {
        let mut set = Set::new();
        paths.iter().for_each(|path| set.insert(path));
        set
    })
}

proptest! {
    #[test]
    fn stored_form_round_trips(s in any_set()) {
        prop_assert_eq!(&Set::from_fields_v1(&s.to_fields_v1()).unwrap(), &s);
        let text: Value = serde_json::from_str(&s.to_json()).unwrap();
        prop_assert_eq!(text, s.to_fields_v1());
    }

    #[test]
    fn sets_obey_the_laws_of_sets(a in any_set(), b in any_set(), c in any_set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
        prop_assert_eq!(a.intersects(&b), !a.intersection(&b).is_empty());
        prop_assert_eq!(a.is_subset(&b), a.difference(&b).is_empty());
        prop_assert!(a.recursive_difference(&b).is_subset(&a.difference(&b)));
        prop_assert!(a.leaves().is_subset(&a));
        prop_assert_eq!(a.union(&b).len(), a.len() + b.len() - a.intersection(&b).len());
    }

    #[test]
    fn membership_is_what_was_inserted(paths in prop::collection::vec(prop::collection::vec(any_element(), 1..4), 0..12)) {
        let mut set = Set::new();
        for path in &paths {
            set.insert(path);
        }
        for path in &paths {
            prop_assert!(set.has(path));
        }
        for path in set.paths() {
            prop_assert!(paths.contains(&path.0));
        }
    }
}
