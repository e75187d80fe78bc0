use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fieldset::sample::{Sample, job, sample};

/// A live object that several managers write to, a second apart.
struct World {
    sample: Sample,
    live: Value,
    second: i64,
}

impl World {
    fn new() -> World {
        World { sample: sample(), live: json!({}), second: 0 }
    }

    fn manager<'m>(&mut self, name: &'m str) -> Manager<'m> {
        self.second += 1;
        Manager { name, subresource: "", api_version: "batch/v1", now: Timestamp::from_second(self.second).unwrap() }
    }

    fn attempt(&mut self, name: &str, config: Value, force: bool) -> Result<bool, ApplyError> {
        let manager = self.manager(name);
        let applied = apply(self.sample.job(), &self.live, &config, &manager, force, &Set::fields(&[&["status"]]))?;
        let changed = applied.is_some();
        if let Some(object) = applied {
            self.live = object;
            self.live["metadata"]["uid"] = json!("u");
        }
        Ok(changed)
    }

    fn apply(&mut self, name: &str, config: Value) -> &mut World {
        self.attempt(name, config, false).expect("no conflict");
        self
    }

    fn force(&mut self, name: &str, config: Value) -> &mut World {
        self.attempt(name, config, true).expect("forced");
        self
    }

    fn update(&mut self, name: &str, object: Value) -> &mut World {
        let manager = self.manager(name);
        let mut new = object;
        managed::update(self.sample.job(), &self.live, &mut new, &manager, &Set::fields(&[&["status"]]));
        self.live = new;
        self.live["metadata"]["uid"] = json!("u");
        self
    }

    fn conflicts(&mut self, name: &str, config: Value) -> Vec<String> {
        match self.attempt(name, config, false) {
            Err(ApplyError::Conflicts(conflicts)) => {
                conflicts.iter().map(|c| format!("{}: {}", c.message(), c.field())).collect()
            }
            other => panic!("expected conflicts, got {other:?}"),
        }
    }

    fn invalid(&mut self, name: &str, config: Value) -> String {
        match self.attempt(name, config, false) {
            Err(ApplyError::Invalid(text)) => text,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    fn spec(&self) -> &Value {
        &self.live["spec"]
    }

    fn containers(&self) -> &Value {
        &self.live["spec"]["template"]["spec"]["containers"]
    }

    /// `manager operation@second: fields`
    fn entries(&self) -> Vec<String> {
        let entries = managed::decode(self.live["metadata"]["managedFields"].clone()).unwrap();
        let line = |e: &Entry| {
            let second = e.time.map_or("-".to_owned(), |t| t.as_second().to_string());
            let fields: Vec<String> = e.set.leaves().paths().iter().map(Path::to_string).collect();
            format!("{} {}@{second}: {}", e.manager, e.operation.as_str(), fields.join(" "))
        };
        entries.iter().map(line).collect()
    }
}

fn spec(spec: Value) -> Value {
    job(json!({"spec": spec}))
}

fn containers(containers: Value) -> Value {
    spec(json!({"template": {"spec": {"containers": containers}}}))
}

#[test]
fn an_applied_object_is_created_and_owned_as_configured() {
    let mut world = World::new();
    world.apply(
        "a",
        job(json!({"metadata": {"labels": {"app": "x"}}, "spec": {"parallelism": 1}, "status": {"active": 1}})),
    );
    assert_eq!(world.entries(), ["a Apply@1: .metadata.labels.app .spec.parallelism"]);
    assert_eq!(world.live["spec"], json!({"parallelism": 1}));
    let entry = &world.live["metadata"]["managedFields"][0];
    assert_eq!(entry["fieldsV1"], json!({"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:parallelism": {}}}));
    assert_eq!(entry["time"], "1970-01-01T00:00:01Z");
    assert_eq!(entry["apiVersion"], "batch/v1");
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let mut world = World::new();
    let config =
        containers(json!([{"name": "c", "image": "1", "ports": [{"containerPort": 80}], "env": [{"name": "E"}]}]));
    world.apply("a", config.clone());
    assert_eq!(world.attempt("a", config, false), Ok(false));
}

#[test]
fn defaults_filled_in_after_an_apply_belong_to_nobody_and_survive() {
    let mut world = World::new();
    world.apply("a", spec(json!({"parallelism": 1})));
    world.live["spec"]["completions"] = json!(1);
    assert_eq!(world.attempt("a", spec(json!({"parallelism": 1})), false), Ok(false));
    world.apply("b", spec(json!({"completions": 5})));
    assert_eq!(*world.spec(), json!({"parallelism": 1, "completions": 5}), "and anyone may set them");
}

#[test]
fn a_dropped_field_goes_unless_someone_else_has_it() {
    let mut world = World::new();
    world.apply("a", spec(json!({"parallelism": 1, "completions": 2})));
    world.apply("b", spec(json!({"parallelism": 1})));
    world.apply("a", spec(json!({})));
    assert_eq!(*world.spec(), json!({"parallelism": 1}));
    assert_eq!(world.entries(), ["b Apply@-: .spec.parallelism", "a Apply@3: .spec"]);
    world.apply("b", job(json!({})));
    assert_eq!(world.live.get("spec"), Some(&Value::Null), "nothing is left of it");
}

#[test]
fn sharing_an_equal_value_is_no_conflict_and_moves_no_time() {
    let mut world = World::new();
    world.apply("a", spec(json!({"parallelism": 1})));
    assert_eq!(world.attempt("b", spec(json!({"parallelism": 1})), false), Ok(true), "the new entry is a change");
    assert_eq!(world.entries(), ["b Apply@-: .spec.parallelism", "a Apply@1: .spec.parallelism"]);
}

#[test]
fn another_value_is_a_conflict_until_forced() {
    let mut world = World::new();
    world.apply("a", spec(json!({"parallelism": 1, "completions": 1})));
    assert_eq!(world.conflicts("b", spec(json!({"parallelism": 2}))), ["conflict with \"a\": .spec.parallelism"]);
    assert_eq!(world.spec()["parallelism"], 1, "and changes nothing");
    world.force("b", spec(json!({"parallelism": 2})));
    assert_eq!(world.entries(), ["a Apply@1: .spec.completions", "b Apply@3: .spec.parallelism"]);
    assert_eq!(
        world.conflicts("a", spec(json!({"parallelism": 1, "completions": 1}))),
        ["conflict with \"b\": .spec.parallelism"]
    );
    world.apply("a", spec(json!({"completions": 1})));
    assert_eq!(*world.spec(), json!({"parallelism": 2, "completions": 1}));
}

#[test]
fn an_applier_changes_its_own_value_freely_and_an_updater_takes_it_away() {
    let mut world = World::new();
    world.apply("a", spec(json!({"parallelism": 1})));
    world.apply("a", spec(json!({"parallelism": 2})));
    world.update("u", spec(json!({"parallelism": 3})));
    assert_eq!(world.entries(), ["u Update@3: .spec.parallelism"]);
    assert_eq!(
        world.conflicts("a", spec(json!({"parallelism": 4}))),
        ["conflict with \"u\" using batch/v1: .spec.parallelism"]
    );
}

#[test]
fn conflict_messages_are_upstreams() {
    let mut world = World::new();
    world.update("foo", spec(json!({"parallelism": 1, "suspend": false})));
    world.apply("bar", job(json!({"metadata": {"labels": {"app": "x"}}})));
    let one = world.attempt("me", spec(json!({"parallelism": 2})), false).expect_err("a conflict");
    assert_eq!(
        one.to_string(),
        "Apply failed with 1 conflict: conflict with \"foo\" using batch/v1: .spec.parallelism"
    );
    let three = job(json!({"metadata": {"labels": {"app": "y"}}, "spec": {"parallelism": 2, "suspend": true}}));
    assert_eq!(
        world.attempt("me", three, false).expect_err("conflicts").to_string(),
        "Apply failed with 3 conflicts: conflicts with \"bar\":\n- .metadata.labels.app\nconflicts with \"foo\" using batch/v1:\n- .spec.parallelism\n- .spec.suspend"
    );
    let status = Conflict {
        manager: "foo".to_owned(),
        operation: Operation::Update,
        api_version: "v1".to_owned(),
        subresource: "scale".to_owned(),
        time: None,
        path: Path(vec![]),
    };
    assert_eq!(status.message(), "conflict with \"foo\" with subresource \"scale\" using v1");
}

#[test]
fn list_items_are_merged_by_key_and_pruned_by_owner() {
    let mut world = World::new();
    world.apply("a", containers(json!([{"name": "x", "image": "1"}, {"name": "y", "image": "1"}])));
    world.apply("b", containers(json!([{"name": "y", "tty": true}, {"name": "z", "image": "1"}])));
    assert_eq!(
        *world.containers(),
        json!([{"name": "x", "image": "1"}, {"name": "y", "image": "1", "tty": true}, {"name": "z", "image": "1"}])
    );
    world.apply("a", containers(json!([{"name": "x", "image": "1"}])));
    assert_eq!(
        *world.containers(),
        json!([{"name": "x", "image": "1"}, {"name": "y", "tty": true}, {"name": "z", "image": "1"}]),
        "y stays because b has it, without what only a had"
    );
    world.apply("b", containers(json!([{"name": "z", "image": "1"}])));
    assert_eq!(*world.containers(), json!([{"name": "x", "image": "1"}, {"name": "z", "image": "1"}]));
}

#[test]
fn an_item_goes_with_its_applier_even_if_others_updated_fields_in_it() {
    let mut world = World::new();
    world.apply("a", containers(json!([{"name": "x"}, {"name": "y"}])));
    world.update("u", containers(json!([{"name": "x", "image": "1"}, {"name": "y"}])));
    world.apply("a", containers(json!([{"name": "y"}])));
    assert_eq!(*world.containers(), json!([{"name": "y"}]));
    assert_eq!(world.entries(), ["a Apply@3: .spec.template.spec.containers[name=\"y\"].name"]);
}

#[test]
fn the_order_of_items_follows_the_configuration() {
    let named = |names: &[&str]| containers(names.iter().map(|n| json!({"name": n})).collect());
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]),
        (&["a", "b"], &["x", "y"], &["a", "b", "x", "y"]),
        (&["a", "b"], &["x", "b"], &["a", "x", "b"]),
        (&["a", "b", "c"], &["b"], &["a", "b", "c"]),
        (&["a", "b", "c"], &["c", "b", "a"], &["c", "b", "a"]),
        (&[], &["b", "a"], &["b", "a"]),
        (&["s", "a", "b"], &["b", "x", "a"], &["s", "b", "x", "a"]),
    ];
    for (live, config, expected) in cases {
        let mut world = World::new();
        world.apply("live", named(live));
        world.apply("me", named(config));
        let got: Vec<&str> = world.containers().as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(got, expected, "{config:?} onto {live:?}");
    }
}

#[test]
fn sets_are_merged_and_pruned_by_value() {
    let finalizers = |values: &[&str]| job(json!({"metadata": {"finalizers": values}}));
    let mut world = World::new();
    world.apply("a", finalizers(&["x", "y"]));
    world.apply("b", finalizers(&["z", "y"]));
    assert_eq!(world.live["metadata"]["finalizers"], json!(["x", "z", "y"]));
    world.apply("a", finalizers(&[]));
    assert_eq!(world.live["metadata"]["finalizers"], json!(["z", "y"]));
    assert_eq!(world.attempt("a", finalizers(&["y"]), false), Ok(true), "members of a set cannot conflict");
}

#[test]
fn map_entries_are_pruned_one_by_one() {
    let labels = |labels: Value| job(json!({"metadata": {"labels": labels}}));
    let mut world = World::new();
    world.apply("a", labels(json!({"a": "1", "b": "1"})));
    world.update("u", labels(json!({"a": "1", "b": "1", "c": "1"})));
    world.apply("a", labels(json!({"b": "1"})));
    assert_eq!(world.live["metadata"]["labels"], json!({"b": "1", "c": "1"}));
}

#[test]
fn atomic_values_are_replaced_whole_and_conflict_whole() {
    let selector = |labels: Value| {
        spec(json!({"selector": {"matchLabels": labels}, "template": {"spec": {"tolerations": [{"key": "k"}]}}}))
    };
    let mut world = World::new();
    world.apply("a", selector(json!({"a": "1", "b": "1"})));
    assert_eq!(
        world.conflicts("b", spec(json!({"selector": {"matchLabels": {"c": "1"}}}))),
        ["conflict with \"a\": .spec.selector"]
    );
    world.apply("a", selector(json!({"c": "1"})));
    assert_eq!(world.spec()["selector"], json!({"matchLabels": {"c": "1"}}));
    world.apply("a", spec(json!({"parallelism": 1})));
    assert_eq!(*world.spec(), json!({"parallelism": 1}), "what was applied and dropped is gone with its parents");
}

#[test]
fn key_fields_have_defaults() {
    let ports = |ports: Value| containers(json!([{"name": "c", "ports": ports}]));
    let mut world = World::new();
    world.update(
        "u",
        ports(json!([{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}])),
    );
    world.apply("a", ports(json!([{"containerPort": 80, "name": "web"}])));
    assert_eq!(
        world.containers()[0]["ports"],
        json!([{"containerPort": 80, "protocol": "TCP", "name": "web"}, {"containerPort": 80, "protocol": "UDP"}])
    );
    let p = ".spec.template.spec.containers[name=\"c\"].ports[containerPort=80,protocol=\"TCP\"]";
    assert!(world.entries()[0].contains(&format!("{p}.containerPort {p}.name")), "{:?}", world.entries());
}

#[test]
fn nulls_are_values_of_scalars_and_say_nothing_about_containers() {
    let mut world = World::new();
    world.update("u", job(json!({"metadata": {"labels": {"a": "1"}}, "spec": {"template": {"spec": {"containers": [{"name": "c"}], "nodeSelector": {"a": "b"}}}}})));
    world.force("a", job(json!({"metadata": {"labels": null}, "spec": {"parallelism": null, "template": {"spec": {"containers": null, "nodeSelector": null}}}})));
    assert_eq!(world.live["metadata"]["labels"], json!({"a": "1"}));
    assert_eq!(*world.containers(), json!([{"name": "c"}]));
    assert_eq!(world.spec()["parallelism"], Value::Null);
    assert_eq!(world.spec()["template"]["spec"]["nodeSelector"], Value::Null, "an atomic map is like a scalar");
}

#[test]
fn configurations_that_do_not_fit_are_refused_in_upstreams_words() {
    let prefix = "failed to create typed patch object (default/a; batch/v1, Kind=Job): ";
    let cases = vec![
        (spec(json!({"bogus": 1})), ".spec.bogus: field not declared in schema"),
        (spec(json!({"parallelism": "1"})), ".spec.parallelism: expected numeric (int or float), got string"),
        (spec(json!({"suspend": "yes"})), ".spec.suspend: expected boolean, got &{yes}"),
        (
            job(json!({"metadata": {"labels": {"a": 1}}})),
            ".metadata.labels.a: expected string, got &value.valueUnstructured{Value:1}",
        ),
        (spec(json!([])), ".spec: expected map, got &{[]}"),
        (job(json!({"metadata": {"finalizers": "x"}})), ".metadata.finalizers: expected list, got &{x}"),
        (
            job(json!({"metadata": {"finalizers": ["x", "x"]}})),
            ".metadata.finalizers: duplicate entries for key [=\"x\"]",
        ),
        (
            job(json!({"metadata": {"finalizers": [{}]}})),
            ".metadata.finalizers: element 0: associative list without keys has an element that's a map type",
        ),
        (
            job(json!({"metadata": {"finalizers": [[]]}})),
            ".metadata.finalizers: element 0: not supported: associative list with lists as elements",
        ),
        (
            job(json!({"metadata": {"finalizers": [null]}})),
            ".metadata.finalizers: element 0: associative list without keys has an element that's an explicit null",
        ),
        (
            containers(json!([{"name": "x"}, {"name": "x"}])),
            ".spec.template.spec.containers: duplicate entries for key [name=\"x\"]",
        ),
        (
            containers(json!([{"image": "x"}])),
            ".spec.template.spec.containers: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (
            containers(json!([null])),
            ".spec.template.spec.containers: element 0: associative list with keys may not have a null element",
        ),
        (
            containers(json!(["x"])),
            ".spec.template.spec.containers: element 0: associative list with keys may not have non-map elements",
        ),
        (
            containers(json!([{"name": "x", "image": 1, "tty": 1}])),
            "errors:\n  .spec.template.spec.containers[name=\"x\"].image: expected string, got &value.valueUnstructured{Value:1}\n  .spec.template.spec.containers[name=\"x\"].tty: expected boolean, got &{1}",
        ),
        (
            containers(json!([{"name": "x", "resources": {"limits": {"cpu": []}}}])),
            ".spec.template.spec.containers[name=\"x\"].resources.limits.cpu: expected any scalar, got &{[]}",
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(World::new().invalid("a", config), format!("{prefix}{expected}"));
    }
    let fine = containers(json!([{"name": "x", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}]));
    assert_eq!(World::new().attempt("a", fine, false), Ok(true), "quantities may be numbers");
}

#[test]
fn managed_fields_are_not_for_configurations() {
    let config = |managed: Value| job(json!({"metadata": {"managedFields": managed}}));
    assert_eq!(World::new().attempt("a", config(json!([])), true), Err(ApplyError::ManagedFieldsInConfig));
    assert_eq!(World::new().attempt("a", config(Value::Null), true), Ok(true));
}

#[test]
fn unreadable_managed_fields_of_the_live_object_stop_an_apply() {
    let mut world = World::new();
    world.live = job(json!({"metadata": {"uid": "u", "managedFields": [{"operation": "Nothing"}]}}));
    assert_eq!(
        world.invalid("a", job(json!({}))),
        "failed to decode managed fields: operation must be `Apply` or `Update`"
    );
}

#[test]
fn what_was_there_before_the_first_apply_has_an_owner() {
    let mut world = World::new();
    world.live = job(json!({"metadata": {"uid": "u"}, "spec": {"parallelism": 1, "completions": 1}}));
    assert_eq!(
        world.conflicts("a", spec(json!({"parallelism": 2}))),
        ["conflict with \"before-first-apply\" using batch/v1: .spec.parallelism"]
    );
    world.force("a", spec(json!({"parallelism": 2})));
    assert_eq!(world.entries(), ["a Apply@2: .spec.parallelism", "before-first-apply Update@2: .spec.completions"]);
}

#[test]
fn kubectl_takes_over_from_client_side_apply() {
    let client_side = |parallelism: i64| {
        let config = spec(json!({"parallelism": parallelism}));
        let mut object = config.clone();
        object["metadata"]["annotations"] = json!({LAST_APPLIED: config.to_string()});
        object
    };
    let mut world = World::new();
    world.update("kubectl-client-side-apply", client_side(1));
    assert_eq!(
        world.conflicts("other", spec(json!({"parallelism": 2}))),
        ["conflict with \"kubectl-client-side-apply\" using batch/v1: .spec.parallelism"]
    );
    world.apply("kubectl", job(json!({"metadata": {"labels": {"a": "<b>"}}, "spec": {"parallelism": 2}})));
    assert_eq!(
        world.live["metadata"]["annotations"][LAST_APPLIED],
        "{\"apiVersion\":\"batch/v1\",\"kind\":\"Job\",\"metadata\":{\"labels\":{\"a\":\"\\u003cb\\u003e\"},\"name\":\"a\",\"namespace\":\"default\"},\"spec\":{\"parallelism\":2}}\n"
    );
    assert_eq!(world.entries()[0], "kubectl Apply@3: .metadata.labels.a .spec.parallelism");
}

#[test]
fn kubectl_does_not_take_over_what_changed_since_or_from_annotations_it_cannot_read() {
    let last =
        |text: String| job(json!({"metadata": {"annotations": {LAST_APPLIED: text}}, "spec": {"parallelism": 1}}));
    let conflict = ["conflict with \"kubectl-client-side-apply\" using batch/v1: .spec.parallelism"];
    let other_version = json!({"apiVersion": "batch/v2", "kind": "Job", "spec": {"parallelism": 1}}).to_string();
    for text in ["junk".to_owned(), spec(json!({"parallelism": 7})).to_string(), other_version, "[]".to_owned()] {
        let mut world = World::new();
        world.update("kubectl-client-side-apply", last(text));
        assert_eq!(world.conflicts("kubectl", spec(json!({"parallelism": 2}))), conflict);
    }
}

#[test]
fn the_last_applied_annotation_is_given_up_when_it_grows_too_large() {
    let mut world = World::new();
    world.update("u", job(json!({"metadata": {"annotations": {LAST_APPLIED: "x"}}})));
    world.apply("kubectl", containers(json!([{"name": "c", "image": "x".repeat(MAX_ANNOTATION_BYTES)}])));
    assert_eq!(world.live["metadata"]["annotations"], json!({}));
}

#[test]
fn an_applier_keeps_one_entry_across_versions() {
    let mut world = World::new();
    world.apply("a", spec(json!({"parallelism": 1, "suspend": true})));
    let newer = Manager { api_version: "batch/v2", ..world.manager("a") };
    let config = spec(json!({"parallelism": 1}));
    let object =
        apply(world.sample.job(), &world.live, &config, &newer, false, &Set::new()).unwrap().expect("a change");
    world.live = object;
    assert_eq!(world.entries(), ["a Apply@2: .spec.parallelism"]);
    assert_eq!(world.live["metadata"]["managedFields"][0]["apiVersion"], "batch/v2");
    assert_eq!(*world.spec(), json!({"parallelism": 1}));
}

#[test]
fn an_apply_through_status_owns_status_only() {
    let mut world = World::new();
    world.apply("a", spec(json!({"parallelism": 1})));
    let status = Manager { subresource: "status", ..world.manager("a") };
    let config = job(json!({"spec": {"parallelism": 9}, "status": {"active": 1}}));
    let object = apply(world.sample.job(), &world.live, &config, &status, false, &Set::fields(&[&["spec"]])).unwrap();
    world.live = object.expect("a change");
    assert_eq!(world.entries(), ["a Apply@1: .spec.parallelism", "a Apply@2: .status.active"]);
}

#[test]
fn unknown_fields_of_custom_resources_merge_deeply() {
    let sample = sample();
    let manager = |name| Manager { name, subresource: "", api_version: "x.io/v1", now: Timestamp::UNIX_EPOCH };
    let config = |free: Value| json!({"apiVersion": "x.io/v1", "kind": "Custom", "metadata": {"name": "a"}, "spec": {"free": free}});
    let live = apply(
        sample.custom(),
        &json!({}),
        &config(json!({"a": {"b": 1}, "l": [1]})),
        &manager("a"),
        false,
        &Set::new(),
    );
    let live = live.unwrap().expect("created");
    let live =
        apply(sample.custom(), &live, &config(json!({"a": {"c": 1}, "s": "x"})), &manager("b"), false, &Set::new());
    let live = live.unwrap().expect("changed");
    assert_eq!(live["spec"]["free"], json!({"a": {"b": 1, "c": 1}, "l": [1], "s": "x"}));
    let taken = apply(sample.custom(), &live, &config(json!({"a": 5})), &manager("b"), true, &Set::new());
    assert_eq!(
        taken.unwrap().expect("changed")["spec"]["free"],
        json!({"a": 5, "l": [1]}),
        "a scalar in place of an object"
    );
}

#[test]
fn unowned_fields_stay_when_their_applier_drops_its_own() {
    let mut world = World::new();
    world.apply("a", containers(json!([{"name": "c", "image": "1", "resources": {"limits": {"cpu": "1"}}}])));
    world.live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1"});
    world.apply("a", containers(json!([{"name": "c"}])));
    assert_eq!(*world.containers(), json!([{"name": "c"}]), "resources was the applier's, with all that is in it");
    world.apply("a", containers(json!([{"name": "c", "image": "1"}])));
    world.live["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    world.apply("a", spec(json!({"parallelism": 1, "template": {"spec": {"containers": [{"name": "c"}]}}})));
    assert_eq!(world.spec()["template"]["spec"], json!({"containers": [{"name": "c"}], "restartPolicy": "Never"}));
}

#[test]
fn duplicates_in_the_live_object_are_replaced_by_what_is_applied() {
    let mut world = World::new();
    world.update(
        "u",
        containers(
            json!([{"name": "c", "env": [{"name": "E", "value": "1"}, {"name": "E", "value": "2"}, {"name": "F"}]}]),
        ),
    );
    world.force("a", containers(json!([{"name": "c", "env": [{"name": "E", "value": "3"}]}])));
    assert_eq!(world.containers()[0]["env"], json!([{"name": "E", "value": "3"}, {"name": "F"}]));
}

fn any_config() -> impl Strategy<Value = Value> {
    let env = prop::collection::btree_map("[E-G]", "[12]", 0..3);
    let container = ("[12]", env, any::<bool>());
    let containers = prop::collection::btree_map("[a-d]", container, 0..4);
    let containers = containers.prop_map(|m| m.into_iter().collect::<Vec<_>>()).prop_shuffle();
    let labels = prop::collection::btree_map("[x-z]", "[12]", 0..3);
    let finalizers = prop::sample::subsequence(vec!["f", "g", "h"], 0..3);
    let rest = (prop::option::of(1..3), prop::option::of("[12]"));
    (containers, labels, finalizers, rest).prop_map(|(containers, labels, finalizers, (parallelism, zone))| {
        let containers: Vec<Value> = containers
            .into_iter()
            .map(|(name, (image, env, tty))| {
                let env: Vec<Value> = env.iter().map(|(n, v)| json!({"name": n, "value": v})).collect();
                json!({"name": name, "image": image, "env": env, "tty": tty})
            })
            .collect();
        let mut config = job(json!({"metadata": {"labels": labels, "finalizers": finalizers}}));
        config["spec"]["template"]["spec"]["containers"] = json!(containers);
        if let Some(parallelism) = parallelism {
            config["spec"]["parallelism"] = json!(parallelism);
        }
        if let Some(zone) = zone {
            config["spec"]["template"]["spec"]["nodeSelector"] = json!({"zone": zone});
        }
        config
    })
}

proptest! {
    #[test]
    fn forcing_a_configuration_twice_is_forcing_it_once(before in any_config(), first in any_config(), config in any_config()) {
        let mut world = World::new();
        world.update("u", before).force("a", first).force("b", config.clone());
        let once = world.live.clone();
        prop_assert_eq!(world.attempt("b", config.clone(), false), Ok(false));
        prop_assert_eq!(&world.live, &once);
    }

    #[test]
    fn what_is_applied_is_there_and_owned(before in any_config(), config in any_config()) {
        let mut world = World::new();
        world.update("u", before).force("a", config.clone());
        let at = world.sample.job();
        let configured = fieldset::of(at, &config);
        prop_assert!(configured.is_subset(&fieldset::of(at, &world.live).ensure_named_fields_are_members(at)));
        let Comparison { modified, added, .. } = compare(at, &world.live, &config).unwrap();
        prop_assert!(modified.is_empty() && added.is_empty(), "the live object has every configured value");
        let entries = managed::decode(world.live["metadata"]["managedFields"].clone()).unwrap();
        let own = entries.iter().find(|e| e.manager == "a").map(|e| e.set.clone()).unwrap_or_default();
        prop_assert_eq!(own, managed::owned(configured));
    }

    #[test]
    fn applying_alone_and_dropping_everything_leaves_nothing(config in any_config()) {
        let mut world = World::new();
        world.apply("a", config).apply("a", job(json!({})));
        let left = managed::owned(fieldset::of(world.sample.job(), &world.live)).leaves();
        let unset = Set::fields(&[&["metadata", "uid"], &["spec"]]);
        prop_assert!(left.difference(&unset).is_empty(), "{left}");
    }

    #[test]
    fn nobody_loses_fields_to_an_applier_that_does_not_mention_them(a in any_config(), b in any_config()) {
        let mut world = World::new();
        world.apply("a", a.clone()).force("b", b.clone()).force("b", job(json!({})));
        let at = world.sample.job();
        let entries = managed::decode(world.live["metadata"]["managedFields"].clone()).unwrap();
        let own = entries.iter().find(|e| e.manager == "a").map(|e| e.set.clone()).unwrap_or_default();
        prop_assert!(own.is_subset(&fieldset::of(at, &world.live).union(&own.intersection(&Set::fields(&[&["metadata", "labels"]])))));
    }
}
