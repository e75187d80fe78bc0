use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fieldset::sample::{job, sample};

fn patched(original: Value, patch: Value) -> Result<Value> {
    let sample = sample();
    let mut object = original;
    apply(sample.job(), &mut object, patch)?;
    Ok(object)
}

/// A patch of the pod spec.
fn pod_spec(original: Value, patch: Value) -> Result<Value> {
    let wrap = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
    patched(wrap(original), wrap(patch)).map(|o| o["spec"]["template"]["spec"].clone())
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("the patch is refused").to_string()
}

#[test]
fn patches_of_the_pod_spec() {
    let abc =
        json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}, {"name": "c", "image": "1"}]});
    let names = |names: &[&str]| json!({"containers": names.iter().map(|n| json!({"name": n, "image": "1"})).collect::<Vec<_>>()});
    let cases: Vec<(&str, Value, Value, Value)> = vec![
        (
            "items are merged by key and new ones added",
            json!({"containers": [{"name": "a", "image": "1", "tty": true}]}),
            json!({"containers": [{"name": "a", "image": "2"}, {"name": "b", "image": "3"}]}),
            json!({"containers": [{"name": "a", "image": "2", "tty": true}, {"name": "b", "image": "3"}]}),
        ),
        (
            "null deletes, also in an item",
            json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "1"}]}),
            json!({"restartPolicy": null, "containers": [{"name": "a", "image": null}]}),
            json!({"containers": [{"name": "a"}]}),
        ),
        (
            "lists without a strategy are replaced",
            json!({"tolerations": [{"key": "a"}]}),
            json!({"tolerations": [{"key": "b"}]}),
            json!({"tolerations": [{"key": "b"}]}),
        ),
        (
            "maps are merged though they are atomic for apply",
            json!({"nodeSelector": {"a": "1", "b": "1"}}),
            json!({"nodeSelector": {"b": "2", "a": null}}),
            json!({"nodeSelector": {"b": "2"}}),
        ),
        (
            "$patch: delete takes an item",
            abc.clone(),
            json!({"containers": [{"$patch": "delete", "name": "b"}]}),
            names(&["a", "c"]),
        ),
        (
            "$patch: replace among the items replaces the list",
            abc.clone(),
            json!({"containers": [{"$patch": "replace"}, {"name": "z", "image": "1"}]}),
            names(&["z"]),
        ),
        (
            "$patch: replace in a map replaces it",
            json!({"nodeSelector": {"a": "1", "b": "1"}}),
            json!({"nodeSelector": {"$patch": "replace", "c": "1"}}),
            json!({"nodeSelector": {"c": "1"}}),
        ),
        (
            "$patch: delete in a map empties it",
            json!({"nodeSelector": {"a": "1"}}),
            json!({"nodeSelector": {"$patch": "delete"}}),
            json!({"nodeSelector": {}}),
        ),
        (
            "$patch: replace in an item replaces the item's fields",
            json!({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}),
            json!({"volumes": [{"name": "v", "emptyDir": {"$patch": "replace"}}]}),
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        (
            "the order of the patch wins, the rest keeps its place",
            abc.clone(),
            json!({"containers": [{"name": "c", "image": "1"}, {"name": "a", "image": "1"}]}),
            names(&["b", "c", "a"]),
        ),
        (
            "new items go to the end when the patch names only them",
            abc.clone(),
            json!({"containers": [{"name": "z", "image": "1"}]}),
            names(&["z", "a", "b", "c"]),
        ),
        (
            "$setElementOrder alone reorders",
            abc.clone(),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}),
            names(&["b", "c", "a"]),
        ),
        (
            "$setElementOrder puts a new item in its place and may name absent ones",
            abc.clone(),
            json!({
                "$setElementOrder/containers": [{"name": "a"}, {"name": "z"}, {"name": "gone"}, {"name": "b"}, {"name": "c"}],
                "containers": [{"name": "z", "image": "1"}],
            }),
            names(&["a", "z", "b", "c"]),
        ),
        (
            "$setElementOrder with a deletion",
            abc.clone(),
            json!({
                "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                "containers": [{"name": "b", "$patch": "delete"}],
            }),
            names(&["c", "a"]),
        ),
        (
            "a new item stands where a deleted one stood, so an unknown one stays before it",
            names(&["a", "b"]),
            json!({
                "$setElementOrder/containers": [{"name": "c"}],
                "containers": [{"name": "c", "image": "1"}, {"name": "a", "$patch": "delete"}],
            }),
            names(&["b", "c"]),
        ),
        (
            "a list that is new loses items with directives",
            json!({}),
            json!({
                "$setElementOrder/containers": [{"name": "a"}],
                "containers": [{"name": "a", "image": "1"}, {"name": "b", "$patch": "delete"}],
            }),
            names(&["a"]),
        ),
        (
            "$setElementOrder of a list that nobody has is ignored",
            json!({}),
            json!({"$setElementOrder/containers": [{"name": "a"}]}),
            json!({}),
        ),
        (
            "$retainKeys clears the other fields of the item",
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"$retainKeys": ["name", "configMap"], "name": "v", "configMap": {"name": "c"}}]}),
            json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}]}),
        ),
        (
            "a map that is new loses nulls and directives",
            json!({}),
            json!({"nodeSelector": {"a": null, "b": "1"}, "containers": [{"name": "a", "image": null, "resources": {"$patch": "replace"}}]}),
            json!({"nodeSelector": {"b": "1"}, "containers": [{"name": "a"}]}),
        ),
        (
            "a new item is taken as it is",
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "b", "image": null}]}),
            json!({"containers": [{"name": "b", "image": null}, {"name": "a"}]}),
        ),
        (
            "a value of another type replaces",
            json!({"restartPolicy": "Never"}),
            json!({"restartPolicy": {"oops": 1}}),
            json!({"restartPolicy": {"oops": 1}}),
        ),
        (
            "an unknown field is added; decoding will say what it thinks of it",
            json!({}),
            json!({"unknown": {"a": 1}}),
            json!({"unknown": {"a": 1}}),
        ),
        (
            "ports are merged by their first key alone",
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "protocol": "TCP"}, {"containerPort": 1, "protocol": "UDP"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "name": "x"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "protocol": "TCP", "name": "x"}, {"containerPort": 1, "protocol": "UDP"}]}]}),
        ),
    ];
    for (behaviour, original, patch, expected) in cases {
        assert_eq!(pod_spec(original, patch), Ok(expected), "{behaviour}");
    }
}

#[test]
fn patches_of_scalar_lists() {
    let finalizers = |live: Value, patch: Value| {
        patched(json!({"metadata": live}), json!({"metadata": patch})).map(|o| o["metadata"].clone())
    };
    let cases = vec![
        (
            "union",
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["c", "a"]}),
            json!({"finalizers": ["c", "a", "b"]}),
        ),
        (
            "$deleteFromPrimitiveList",
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]}),
            json!({"finalizers": ["a", "c"]}),
        ),
        (
            "delete, add and order at once, as kubectl edit sends it",
            json!({"finalizers": ["a", "b", "c"]}),
            json!({
                "$deleteFromPrimitiveList/finalizers": ["a"],
                "$setElementOrder/finalizers": ["d", "c", "b"],
                "finalizers": ["d"],
            }),
            json!({"finalizers": ["d", "c", "b"]}),
        ),
        ("delete from an absent list", json!({}), json!({"$deleteFromPrimitiveList/finalizers": ["b"]}), json!({})),
        ("null for the list", json!({"finalizers": ["a"]}), json!({"finalizers": null}), json!({})),
        (
            "null in the delete list",
            json!({"finalizers": ["a"]}),
            json!({"$deleteFromPrimitiveList/finalizers": null}),
            json!({}),
        ),
        (
            "labels",
            json!({"labels": {"a": "1", "b": "1"}}),
            json!({"labels": {"a": "2", "b": null}}),
            json!({"labels": {"a": "2"}}),
        ),
    ];
    for (behaviour, live, patch, expected) in cases {
        assert_eq!(finalizers(live, patch), Ok(expected), "{behaviour}");
    }
    assert_eq!(
        pod_spec(
            json!({"containers": [{"name": "a", "command": ["x", "y"]}]}),
            json!({"containers": [{"name": "a", "$deleteFromPrimitiveList/command": ["x"]}]})
        ),
        Ok(json!({"containers": [{"name": "a", "command": ["y"]}]})),
        "also from a list that is otherwise replaced"
    );
}

#[test]
fn directives_at_the_root() {
    assert_eq!(patched(json!({"a": 1}), json!({"$patch": "replace", "b": 2})), Ok(json!({"b": 2})));
    assert_eq!(patched(json!({"a": 1}), json!({"$patch": "delete"})), Ok(json!({})));
}

#[test]
fn refusals_say_what_upstream_says() {
    let a = || json!({"containers": [{"name": "a", "image": "1"}]});
    let cases = vec![
        (
            pod_spec(a(), json!({"containers": [{"image": "2", "tty": true}]})),
            "map: map[image:2 tty:true] does not contain declared merge key: name",
        ),
        (
            pod_spec(a(), json!({"containers": [{"$patch": "delete"}]})),
            "map: map[$patch:delete] does not contain declared merge key: name",
        ),
        (
            pod_spec(a(), json!({"containers": [{"$patch": "merge", "name": "a"}]})),
            "merging lists cannot yet be specified in the patch",
        ),
        (
            pod_spec(a(), json!({"containers": [{"$patch": "bogus", "name": "a"}]})),
            "unknown patch type: bogus in map: map[$patch:bogus name:a]",
        ),
        (
            pod_spec(json!({"nodeSelector": {"a": "1"}}), json!({"nodeSelector": {"$patch": "merge"}})),
            "unknown patch type: merge in map: map[$patch:merge]",
        ),
        (
            pod_spec(a(), json!({"containers": ["a"]})),
            "list element types are not identical: [[map[image:1 name:a]] [a]]",
        ),
        (pod_spec(json!({"containers": [[]]}), json!({"containers": [[]]})), "lists of lists are not supported"),
        (
            patched(json!({"spec": {"matrix": [["a"]]}}), json!({"spec": {"matrix": [["b"]]}})),
            "unexpected slice of slice",
        ),
        (
            pod_spec(a(), json!({"$setElementOrder/containers": "a"})),
            "expected a []interface {}, but received a string",
        ),
        (pod_spec(a(), json!({"$setElementOrder": []})), "invalid patch format of setElementOrder list"),
        (pod_spec(a(), json!({"$deleteFromPrimitiveList": []})), "invalid patch format of primitive list"),
        (
            pod_spec(a(), json!({"$setElementOrder/nonsense": []})),
            "unable to find api field in struct PodSpec for the json field \"nonsense\"",
        ),
        (
            pod_spec(json!({"containers": []}), json!({"$setElementOrder/containers": [{"name": "a"}]})),
            "no elements in any of the given slices",
        ),
        (
            pod_spec(
                a(),
                json!({
                    "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                    "containers": [{"name": "b"}, {"name": "a"}],
                }),
            ),
            "The order in patch list:\n[map[name:b] map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:a] map[name:b]]\n",
        ),
        (
            pod_spec(a(), json!({"$setElementOrder/containers": [], "containers": ["a"]})),
            "list element types are not identical: [[map[image:1 name:a]] [a]]",
        ),
        (
            pod_spec(json!({}), json!({"$setElementOrder/containers": [{"name": "a"}], "containers": ["a"]})),
            "expected a map[string]interface {}, but received a string",
        ),
        (
            pod_spec(a(), json!({"$setElementOrder/containers": [], "containers": null})),
            "expected a []interface {}, but received a %!s(<nil>)",
        ),
        (
            pod_spec(
                json!({"volumes": [{"name": "v"}]}),
                json!({"volumes": [{"name": "v", "$retainKeys": ["name"], "emptyDir": {}}]}),
            ),
            "invalid patch format of retainKeys",
        ),
        (
            pod_spec(json!({"volumes": [{"name": "v"}]}), json!({"volumes": [{"name": "v", "$retainKeys": "name"}]})),
            "invalid patch format of retainKeys",
        ),
        (
            patched(json!({"spec": {"weird": {"a": {"b": "c"}}}}), json!({"spec": {"weird": {"a": {"b": "d"}}}})),
            "merging an object in json but data type is not struct, instead is: map",
        ),
        (patched(json!({}), json!([])), "invalid JSON document"),
    ];
    for (result, expected) in cases {
        assert_eq!(message(result), expected);
    }
}

#[test]
fn errors_carry_the_status_code_of_the_answer() {
    assert_eq!(StrategicError::BadRetainKeys.code(), 400);
    assert_eq!(StrategicError::ListOfLists.code(), 422);
    assert_eq!(StrategicError::MergeDirectiveInList.code(), 500);
}

#[test]
fn hostile_nesting_is_refused() {
    let wrap = |inner: Value| Value::Object([("a".to_owned(), inner)].into_iter().collect());
    let deep = (0..1_000).fold(json!(1), |inner, _| wrap(inner));
    assert_eq!(patched(json!({}), deep), Err(StrategicError::TooDeep));
}

#[test]
fn long_lists_are_merged_in_reasonable_time() {
    let list: Vec<String> = (0..20_000).map(|i| format!("f{i}")).collect();
    let reversed: Vec<&String> = list.iter().rev().collect();
    let start = std::time::Instant::now();
    let merged =
        patched(json!({"metadata": {"finalizers": list}}), json!({"metadata": {"finalizers": reversed}})).unwrap();
    assert_eq!(merged["metadata"]["finalizers"], json!(reversed));
    assert!(start.elapsed().as_secs() < 10, "quadratic merging would take minutes");
}

fn any_container() -> impl Strategy<Value = Value> {
    ("[a-f]", "[0-3]", any::<bool>()).prop_map(|(name, image, tty)| json!({"name": name, "image": image, "tty": tty}))
}

fn any_spec() -> impl Strategy<Value = Value> {
    (prop::collection::vec(any_container(), 1..6), prop::collection::btree_map("[a-c]", "[0-2]", 0..3)).prop_map(
        |(mut containers, node_selector)| {
            let mut seen = std::collections::BTreeSet::new();
            containers.retain(|c| seen.insert(c["name"].as_str().unwrap_or_default().to_owned()));
            job(json!({"spec": {"template": {"spec": {"containers": containers, "nodeSelector": node_selector}}}}))
        },
    )
}

proptest! {
    #[test]
    fn patching_an_object_with_itself_or_nothing_changes_nothing(object in any_spec()) {
        prop_assert_eq!(&patched(object.clone(), object.clone()).unwrap(), &object);
        prop_assert_eq!(&patched(object.clone(), json!({})).unwrap(), &object);
    }

    #[test]
    fn a_whole_object_as_patch_wins_everywhere_and_patching_twice_is_patching_once(a in any_spec(), b in any_spec()) {
        let once = patched(a, b.clone()).unwrap();
        prop_assert_eq!(&patched(once.clone(), b.clone()).unwrap(), &once);
        let all = once["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        let theirs = b["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        let of_patch: Vec<&Value> = all.iter().filter(|c| theirs.iter().any(|t| t["name"] == c["name"])).collect();
        prop_assert_eq!(of_patch, theirs.iter().collect::<Vec<_>>());
    }
}
