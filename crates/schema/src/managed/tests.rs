use serde_json::{Value, json};

use super::*;
use crate::fieldset::sample::{Sample, job, sample};

const NONE: &[&[&str]] = &[];

/// A live object and a clock that moves a second with every write.
struct World {
    sample: Sample,
    live: Value,
    second: i64,
}

impl World {
    fn new() -> World {
        World { sample: sample(), live: json!({}), second: 0 }
    }

    fn update(&mut self, manager: &str, object: Value) -> &mut World {
        self.write(manager, "", &Set::fields(&[&["status"]]), object)
    }

    fn write(&mut self, name: &str, subresource: &str, reset: &Set, object: Value) -> &mut World {
        self.second += 1;
        let now = Timestamp::from_second(self.second).unwrap();
        let mut new = object;
        let manager = Manager { name, subresource, api_version: "batch/v1", now };
        let given = new.pointer("/metadata/managedFields").cloned();
        let by_text = self.by_text(&new, &manager, reset);
        update(self.sample.job(), &self.live, &mut new, &manager, reset);
        if given.is_none_or(|given| Some(&given) == self.live.pointer("/metadata/managedFields")) {
            assert_eq!(by_text.as_ref(), new.pointer("/metadata/managedFields"), "as text");
        }
        self.live = new;
        self.live["metadata"]["uid"] = json!("u");
        self
    }

    /// What [`update_text`] makes of a write that does not mention managed fields.
    fn by_text(&self, new: &Value, manager: &Manager<'_>, reset: &Set) -> Option<Value> {
        let without = |object: &Value| {
            let mut object = object.clone();
            let meta = object.get_mut("metadata").and_then(Value::as_object_mut);
            let fields = meta.and_then(|meta| meta.remove("managedFields"));
            (object, fields.map(|fields| fields.to_string()))
        };
        let ((old, live), (new, _)) = (without(&self.live), without(new));
        let text = update_text(self.sample.job(), &old, &new, live.as_deref(), manager, reset);
        text.map(|text| serde_json::from_str(&text).unwrap())
    }

    fn fields(&self) -> &Value {
        self.live.pointer("/metadata/managedFields").unwrap_or(&Value::Null)
    }

    /// `manager/operation@second: fields` for each entry.
    fn entries(&self) -> Vec<String> {
        let line = |e: &Value| {
            let text = |k: &str| e[k].as_str().unwrap_or("-").to_owned();
            let second =
                e["time"].as_str().map_or("-".to_owned(), |t| t.parse::<Timestamp>().unwrap().as_second().to_string());
            let sub = e["subresource"].as_str().map(|s| format!("/{s}")).unwrap_or_default();
            let set = Set::from_fields_v1(&e["fieldsV1"]).unwrap();
            let fields: Vec<String> = set.leaves().paths().iter().map(ToString::to_string).collect();
            format!("{}{sub} {}@{second}: {}", text("manager"), text("operation"), fields.join(" "))
        };
        self.fields().as_array().map(|a| a.iter().map(line).collect()).unwrap_or_default()
    }
}

fn with_spec(spec: Value) -> Value {
    job(json!({"spec": spec}))
}

#[test]
fn a_creation_owns_what_it_sets_but_not_structs_that_are_always_there() {
    let mut world = World::new();
    world.update("kubectl-create", job(json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {
            "parallelism": 1,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
                "nodeSelector": {"zone": "a"},
                "volumes": [{"name": "v", "emptyDir": {}}],
            }},
        },
        "status": {},
    })));
    assert_eq!(
        *world.fields(),
        json!([{
            "manager": "kubectl-create", "operation": "Update", "apiVersion": "batch/v1", "time": "1970-01-01T00:00:01Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:parallelism": {}, "f:selector": {},
                    "f:template": {
                        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
                        "f:spec": {
                            "f:containers": {"k:{\"name\":\"c\"}": {
                                ".": {}, "f:name": {}, "f:image": {},
                                "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                                "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
                            }},
                            "f:nodeSelector": {},
                            "f:volumes": {".": {}, "k:{\"name\":\"v\"}": {".": {}, "f:name": {}, "f:emptyDir": {}}},
                        },
                    },
                },
            },
        }])
    );
}

#[test]
fn a_custom_resource_owns_its_structs_too() {
    let sample = sample();
    let mut new = json!({"metadata": {"name": "a"}, "spec": {"replicas": 1, "free": {"x": {"y": 1}}}});
    let manager = Manager { name: "m", subresource: "", api_version: "x.io/v1", now: Timestamp::UNIX_EPOCH };
    update(sample.custom(), &json!({}), &mut new, &manager, &Set::fields(NONE));
    assert_eq!(
        new["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {".": {}, "f:replicas": {}, "f:free": {".": {}, "f:x": {".": {}, "f:y": {}}}}})
    );
}

#[test]
fn names_and_what_the_server_sets_belong_to_nobody() {
    let mut world = World::new();
    world.update("m", job(json!({"metadata": {"uid": "u", "resourceVersion": "1", "generation": 1, "creationTimestamp": "2024-01-01T00:00:00Z"}})));
    assert_eq!(world.entries(), [""; 0]);
}

#[test]
fn a_change_moves_the_field_and_only_then_the_time() {
    let mut world = World::new();
    world.update("a", with_spec(json!({"parallelism": 1, "completions": 1})));
    world.update("b", with_spec(json!({"parallelism": 2, "completions": 1})));
    assert_eq!(world.entries(), ["a Update@1: .spec.completions", "b Update@2: .spec.parallelism"]);
    world.update("c", with_spec(json!({"parallelism": 2, "completions": 1})));
    assert_eq!(
        world.entries(),
        ["a Update@1: .spec.completions", "b Update@2: .spec.parallelism"],
        "c changed nothing"
    );
    world.update("a", with_spec(json!({"completions": 1})));
    assert_eq!(world.entries(), ["a Update@1: .spec.completions"], "removing a field gives nobody anything");
    world.update("a", with_spec(json!({"completions": 3, "suspend": true})));
    assert_eq!(world.entries(), ["a Update@5: .spec.completions .spec.suspend"]);
}

#[test]
fn a_list_item_is_owned_by_who_added_it_and_its_fields_by_who_changed_them() {
    let containers = |image: &str, env: Value| {
        with_spec(json!({"template": {"spec": {"containers": [{"name": "c", "image": image, "env": env}]}}}))
    };
    let mut world = World::new();
    world.update("a", containers("1", json!([{"name": "E", "value": "1"}])));
    world.update("b", containers("2", json!([{"name": "E", "value": "1"}, {"name": "F", "value": "1"}])));
    let c = ".spec.template.spec.containers[name=\"c\"]";
    assert_eq!(
        world.entries(),
        [
            format!("a Update@1: {c}.name {c}.env[name=\"E\"].name {c}.env[name=\"E\"].value"),
            format!("b Update@2: {c}.image {c}.env[name=\"F\"].name {c}.env[name=\"F\"].value"),
        ]
    );
    world.update("b", with_spec(json!({"template": {"spec": {"containers": []}}})));
    assert_eq!(world.entries(), [""; 0], "taking items out gives nobody anything");
}

#[test]
fn atomic_values_and_sets_are_tracked_as_such() {
    let object = |zone: &str, finalizers: Value| {
        job(
            json!({"metadata": {"finalizers": finalizers}, "spec": {"template": {"spec": {"nodeSelector": {"zone": zone, "x": "y"}}}}}),
        )
    };
    let mut world = World::new();
    world.update("a", object("1", json!(["f"])));
    world.update("b", object("2", json!(["g", "f"])));
    assert_eq!(
        world.entries(),
        [
            "a Update@1: .metadata.finalizers[=\"f\"]",
            "b Update@2: .metadata.finalizers[=\"g\"] .spec.template.spec.nodeSelector"
        ]
    );
}

#[test]
fn writes_through_status_have_their_own_entry_and_leave_the_rest_alone() {
    let mut world = World::new();
    world.update("a", job(json!({"spec": {"parallelism": 1}, "status": {"active": 7}})));
    assert_eq!(world.entries(), ["a Update@1: .spec.parallelism"], "status is not written through the resource");
    let with_status = job(
        json!({"metadata": {"uid": "u", "managedFields": []}, "spec": {"parallelism": 9}, "status": {"active": 8, "conditions": [{"type": "C", "status": "True"}]}}),
    );
    world.write("a", "status", &Set::fields(&[&["spec"]]), with_status);
    assert_eq!(
        world.entries(),
        [
            "a Update@1: .spec.parallelism",
            "a/status Update@2: .status.active .status.conditions[type=\"C\"].status .status.conditions[type=\"C\"].type"
        ],
        "a subresource can neither reset managed fields nor take what it does not write"
    );
}

#[test]
fn clients_may_send_managed_fields_drop_them_or_reset_them() {
    let entry = |manager: &str| json!({"manager": manager, "operation": "Apply", "apiVersion": "batch/v1", "time": "1970-01-01T00:00:09Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:parallelism": {}}}});
    let given = |managed: Value| job(json!({"metadata": {"managedFields": managed}, "spec": {"parallelism": 1}}));
    let cases = vec![
        ("left out", with_spec(json!({"parallelism": 1})), vec!["a Update@1: .spec.parallelism"]),
        ("null", given(Value::Null), vec!["a Update@1: .spec.parallelism"]),
        ("edited", given(json!([entry("x")])), vec!["x Apply@9: .spec.parallelism"]),
        (
            "two of one identity",
            given(json!([entry("y"), entry("x"), entry("y")])),
            vec!["x Apply@9: .spec.parallelism", "y Apply@9: .spec.parallelism"],
        ),
        ("unreadable: operation", given(json!([{"manager": "x"}])), vec!["a Update@1: .spec.parallelism"]),
        (
            "unreadable: set",
            given(
                json!([{"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"x": {}}}]),
            ),
            vec!["a Update@1: .spec.parallelism"],
        ),
        ("unreadable: type", given(json!("x")), vec!["a Update@1: .spec.parallelism"]),
        ("reset by an empty list", given(json!([])), vec![]),
        ("reset by an empty entry", given(json!([{}])), vec![]),
    ];
    for (case, object, expected) in cases {
        let mut world = World::new();
        world.update("a", with_spec(json!({"parallelism": 1})));
        world.update("b", object);
        assert_eq!(world.entries(), expected, "{case}");
    }
}

#[test]
fn an_object_that_nobody_tracks_stays_so() {
    let mut world = World::new();
    world.live = job(json!({"metadata": {"uid": "u"}, "spec": {"parallelism": 1}}));
    world.update("a", with_spec(json!({"parallelism": 2})));
    assert_eq!(world.entries(), [""; 0]);
    assert!(world.live["metadata"].get("managedFields").is_none());
}

#[test]
fn items_without_identity_keep_the_live_managed_fields() {
    let mut world = World::new();
    world.update("a", with_spec(json!({"parallelism": 1})));
    world.update("b", with_spec(json!({"parallelism": 2, "template": {"spec": {"containers": [{"image": "x"}]}}})));
    assert_eq!(world.entries(), ["a Update@1: .spec.parallelism"]);
}

#[test]
fn duplicates_are_owned_as_one() {
    let env = |values: &[&str]| {
        let env: Vec<Value> = values.iter().map(|v| json!({"name": "E", "value": v})).collect();
        with_spec(json!({"template": {"spec": {"containers": [{"name": "c", "env": env}]}}}))
    };
    let e = ".spec.template.spec.containers[name=\"c\"].env[name=\"E\"]";
    let mut world = World::new();
    world.update("a", env(&["1", "2"]));
    world.update("b", env(&["1", "3"]));
    assert_eq!(
        world.entries(),
        ["a Update@1: .spec.template.spec.containers[name=\"c\"].env .spec.template.spec.containers[name=\"c\"].name".to_owned(), format!("b Update@2: {e}")]
    );
    world.update("c", env(&["1"]));
    assert_eq!(world.entries()[1], format!("c Update@3: {e}.name {e}.value"));
    world.update("d", env(&["1", "1"]));
    assert_eq!(world.entries()[1], format!("d Update@4: {e}"));
}

#[test]
fn eleven_updaters_become_ten() {
    let labels = |n: usize| {
        job(json!({"metadata": {"labels": (0..n).map(|i| (format!("l{i:02}"), json!("x"))).collect::<Map<_, _>>()}}))
    };
    let mut world = World::new();
    for i in 0..12 {
        world.update(&format!("m{i:02}"), labels(i + 1));
    }
    let entries = world.entries();
    assert_eq!(entries.len(), 10);
    assert_eq!(entries[0], "ancient-changes Update@3: .metadata.labels.l00 .metadata.labels.l01 .metadata.labels.l02");
    assert_eq!(entries[1], "m03 Update@4: .metadata.labels.l03");
    assert_eq!(entries[9], "m11 Update@12: .metadata.labels.l11");
}

#[test]
fn the_oldest_of_each_version_are_merged() {
    let entry = |manager: &str, version: &str, second: i64, field: &str| Entry {
        manager: manager.to_owned(),
        operation: Operation::Update,
        api_version: version.to_owned(),
        subresource: String::new(),
        time: Timestamp::from_second(second).ok(),
        set: Set::fields(&[&[field]]),
        stored: None,
        unread: false,
    };
    let padding = |n: i64| (0..n).map(move |i| entry(&format!("p{i}"), &format!("p{i}/v1"), 100 + i, "p"));
    let capped = |entries: Vec<Entry>| {
        let mut entries = entries;
        cap(&mut entries).unwrap();
        entries.sort_by(stored_order);
        let line = |e: &Entry| {
            format!("{} {} @{}: {}", e.manager, e.api_version, e.seconds(), e.set.to_string().replace('\n', " "))
        };
        entries.iter().filter(|e| !e.manager.starts_with('p')).map(line).collect::<Vec<_>>()
    };
    let two_versions = [
        entry("1", "v1", 1, "a"),
        entry("2", "v2", 2, "b"),
        entry("3", "v1", 3, "c"),
        entry("4", "v1", 4, "d"),
        entry("5", "v1", 5, "e"),
    ];
    assert_eq!(
        capped(two_versions.into_iter().chain(padding(7)).collect()),
        ["2 v2 @2: .b", "ancient-changes v1 @4: .a .c .d", "5 v1 @5: .e"]
    );
    let one_bucket = [
        entry("2", "v2", 2, "b"),
        entry("ancient-changes", "v1", 4, "a"),
        entry("5", "v1", 5, "e"),
        entry("7", "v2", 7, "g"),
    ];
    assert_eq!(
        capped(one_bucket.into_iter().chain(padding(8)).collect()),
        ["ancient-changes v1 @5: .a .e", "ancient-changes v2 @7: .b .g"]
    );
    let bucket_is_younger = [entry("aaa", "v1", 1, "a"), entry("ancient-changes", "v1", 1, "b")];
    assert_eq!(capped(bucket_is_younger.into_iter().chain(padding(9)).collect()), ["ancient-changes v1 @1: .a .b"]);
}

#[test]
fn entries_are_sorted_by_operation_time_manager_version_and_subresource() {
    let stored = |manager: &str, operation: &str, time: Option<&str>, version: &str, sub: &str| {
        let mut e = json!({"manager": manager, "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": {"f:x": {}}});
        if let Some(time) = time {
            e["time"] = json!(time);
        }
        if !sub.is_empty() {
            e["subresource"] = json!(sub);
        }
        e
    };
    let (early, late) = (Some("2024-01-01T00:00:00Z"), Some("2024-01-01T03:00:00+02:00"));
    let sorted = vec![
        stored("z", "Apply", late, "v1", ""),
        stored("n", "Update", None, "v1", ""),
        stored("a", "Update", early, "v1", ""),
        stored("b", "Update", early, "v1", ""),
        stored("b", "Update", early, "v1", "status"),
        stored("b", "Update", early, "v2", ""),
        stored("a", "Update", late, "v1", "status"),
    ];
    let mut shuffled = sorted.clone();
    shuffled.reverse();
    assert_eq!(
        encode(decode(Value::Array(shuffled)).unwrap()),
        Some(Value::Array(sorted)),
        "and kept as they were stored"
    );
}

#[test]
fn unreadable_entries_are_explained() {
    let base =
        json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
    let with = |key: &str, value: Value| {
        let mut entry = base.clone();
        entry[key] = value;
        validate(&json!([entry])).expect_err("refused")
    };
    assert_eq!(validate(&json!([base])), Ok(()));
    assert_eq!(with("operation", json!("Create")), "operation must be `Apply` or `Update`");
    assert_eq!(with("apiVersion", json!("")), "apiVersion must not be empty");
    assert_eq!(with("fieldsType", json!("")), "missing fieldsType in managed fields entry 0");
    assert_eq!(with("fieldsType", json!("V2")), "invalid fieldsType \"V2\" in managed fields entry 0");
    assert!(with("time", json!("yesterday")).contains("time"));
    assert!(with("fieldsV1", json!({"f:a": 1})).contains("set"));
}

#[test]
fn times_alone_do_not_make_two_objects_differ() {
    let object = |seconds: [&str; 2], manager: &str, parallelism: i64| {
        let entry = |m: &str, t: &str| json!({"manager": m, "operation": "Apply", "time": t, "fieldsV1": {"f:a": {}}});
        job(
            json!({"metadata": {"managedFields": [entry(manager, seconds[0]), entry("z", seconds[1])]}, "spec": {"parallelism": parallelism}}),
        )
    };
    let a = object(["1", "2"], "m", 1);
    assert!(equal_ignoring_manager_times(&a, &a));
    assert!(equal_ignoring_manager_times(&a, &object(["3", "4"], "m", 1)));
    assert!(!equal_ignoring_manager_times(&a, &object(["1", "2"], "n", 1)));
    assert!(!equal_ignoring_manager_times(&a, &object(["1", "2"], "m", 2)));
    let mut timeless = a.clone();
    timeless["metadata"]["managedFields"][0].as_object_mut().unwrap().remove("time");
    assert!(equal_ignoring_manager_times(&a, &timeless));
    let mut fewer = a.clone();
    fewer["metadata"]["managedFields"].as_array_mut().unwrap().pop();
    assert!(!equal_ignoring_manager_times(&a, &fewer));
    assert!(!equal_ignoring_manager_times(&a, &json!({})));
}

#[test]
fn objects_without_metadata_are_left_alone() {
    let sample = sample();
    let manager = Manager { name: "", subresource: "", api_version: "v1", now: Timestamp::UNIX_EPOCH };
    for mut object in [json!({"spec": {}}), json!(null), json!({"metadata": "x"})] {
        let before = object.clone();
        update(sample.job(), &json!({}), &mut object, &manager, &Set::new());
        assert_eq!(object, before);
    }
    let mut object = with_spec(json!({"parallelism": 1}));
    update(sample.job(), &json!({}), &mut object, &manager, &Set::new());
    assert_eq!(object["metadata"]["managedFields"][0]["manager"], "unknown");
}

#[test]
fn a_new_objects_managed_fields_as_text_are_those_that_would_be_put_into_it() {
    let object = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "a", "labels": {"a<b": "c", "q\"\u{1}\u{2028}": "d"}, "finalizers": ["x/y"]},
        "spec": {"parallelism": 2, "template": {"spec": {"containers": [{"name": "b\\n", "image": "i",
            "ports": [{"containerPort": 80}]}, {"name": "a"}]}}}});
    let at = crate::builtin::kind("batch", "v1", "Job").unwrap();
    let manager =
        Manager { name: "a \"manager\"", subresource: "", api_version: "batch/v1", now: Timestamp::UNIX_EPOCH };
    let reset = Set::fields(&[&["status"]]);
    let mut with = object.clone();
    update(at, &json!({}), &mut with, &manager, &reset);
    let text = of_new(at, &object, &manager, &reset).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), with["metadata"]["managedFields"]);
    assert_eq!(of_new(at, &json!({"metadata": {"name": "a"}}), &manager, &reset), None);
}
