//! Whole behaviours of a compiled schema. The expected sentences were taken from a kube-apiserver 1.37.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Gvk, Options, Structural};
use crate::field::Errors;
use crate::graph::{Graph, Scalar, Topology, Type};

fn spec(fields: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}})
}

fn compile(schema: &Value) -> Structural {
    Structural::compile(schema).unwrap_or_else(|errors| panic!("{errors}"))
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

fn lines(errors: &Errors) -> Vec<String> {
    errors.0.iter().map(ToString::to_string).collect()
}

/// What the schema says about a new object with this spec.
fn said(schema: &Structural, spec: Value) -> Vec<String> {
    let mut errors = Errors::new();
    schema.validate(&object(spec), None, &mut errors);
    lines(&errors)
}

/// What it says about an update of the spec.
fn said_of_update(schema: &Structural, old: Value, new: Value) -> Vec<String> {
    let mut errors = Errors::new();
    schema.validate(&object(new), Some(&object(old)), &mut errors);
    lines(&errors)
}

/// Why a schema with this field is refused, without the common beginning of the paths.
fn refused(field: Value) -> Vec<String> {
    let errors = Structural::compile(&spec(json!({"a": field}))).err().unwrap_or_default();
    let common = "spec.validation.openAPIV3Schema.properties[spec].properties[a]";
    lines(&errors).into_iter().map(|l| l.replace(common, "a")).collect()
}

#[test]
fn a_schema_that_is_not_structural_is_refused() {
    let table = [
        (json!({}), vec!["a.type: Required value: must not be empty for specified object fields"]),
        (json!({"type": "array"}), vec!["a.items: Required value: must be specified"]),
        (
            json!({"type": "array", "items": {}}),
            vec!["a.items.type: Required value: must not be empty for specified array items"],
        ),
        (
            json!({"type": "string", "allOf": [{"type": "string", "description": "d", "nullable": true}]}),
            vec![
                "a.allOf[0].description: Forbidden: must be empty to be structural",
                "a.allOf[0].nullable: Forbidden: must be false to be structural",
                "a.allOf[0].type: Forbidden: must be empty to be structural",
            ],
        ),
        (
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            vec!["a.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
        ),
        (
            json!({"type": "foo"}),
            vec![
                "a.type: Unsupported value: \"foo\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \
                 \"object\", \"string\"",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            vec![
                "a.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without \
                 x-kubernetes-preserve-unknown-fields",
            ],
        ),
        (
            json!({"type": "string", "pattern": "("}),
            vec![
                "a.pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: \
                 missing closing ): `(`",
            ],
        ),
        (json!({"$ref": "#/x"}), vec!["a.$ref: Forbidden: $ref is not supported"]),
        (
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            vec![
                "a.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ],
        ),
        (json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), vec![]),
    ];
    for (field, expected) in table {
        assert_eq!(refused(field.clone()), expected, "{field}");
    }
}

#[test]
fn what_a_junctor_speaks_of_must_be_declared() {
    let schema = json!({"type": "object", "anyOf": [{"properties": {"x": {"minLength": 1}}}]});
    assert_eq!(
        Structural::compile(&schema).err().unwrap_or_default().to_string(),
        "spec.validation.openAPIV3Schema.properties[x]: Required value: because it is defined in \
         spec.validation.openAPIV3Schema.anyOf[0].properties[x]"
    );
}

#[test]
fn list_types_must_fit_their_items() {
    let items = json!({"type": "object", "properties": {"n": {"type": "string"}}});
    assert_eq!(
        refused(
            json!({"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"]})
        ),
        [
            "a.items.properties[n].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a \
          default or be a required property"
        ]
    );
    assert_eq!(
        refused(json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map"})),
        [
            "a.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
            "a.items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
        ]
    );
    assert_eq!(
        refused(json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"})),
        ["a.x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\""]
    );
    assert_eq!(
        refused(json!({"type": "string", "x-kubernetes-map-type": "atomic"})),
        ["a.type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified"]
    );
}

#[test]
fn metadata_may_only_be_restricted_by_name() {
    let root = |meta: Value| json!({"type": "object", "properties": {"metadata": meta}});
    let name = json!({"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}});
    assert!(Structural::compile(&root(name)).is_ok());
    let labels = json!({"type": "object", "properties": {"labels": {"type": "object"}}});
    let errors = Structural::compile(&root(labels)).expect_err("labels must not be restricted");
    assert_eq!(
        errors.to_string(),
        "spec.validation.openAPIV3Schema.properties[metadata]: Forbidden: must not specify anything other than name and \
         generateName, but metadata is implicitly specified"
    );
}

#[test]
fn defaults_must_be_valid_and_known() {
    assert_eq!(
        refused(json!({"type": "string", "default": 5})),
        ["a.default: Invalid value: \"integer\": a.default in body must be of type string: \"integer\""
            .replace("a.default in body", " in body")]
    );
    assert_eq!(
        refused(json!({"type": "object", "properties": {"x": {"type": "string"}}, "default": {"y": 1}})),
        ["a.default: Invalid value: {\"y\":1}: must not have unknown fields"]
    );
    let rule = json!([{"rule": "self == \"y\"", "message": "must be y"}]);
    assert_eq!(
        refused(json!({"type": "string", "default": "x", "x-kubernetes-validations": rule})),
        ["a.default: Invalid value: \"x\": must be y"]
    );
    let errors =
        Structural::compile(&json!({"type": "object", "properties": {"kind": {"type": "string", "default": "x"}}}));
    assert_eq!(
        errors.expect_err("no defaults for kind").to_string(),
        "spec.validation.openAPIV3Schema.properties[kind].default: Forbidden: must not be set in top-level kind"
    );
}

#[test]
fn the_status_subresource_restricts_the_root() {
    let schema = json!({"type": "object", "minProperties": 1, "properties": {"spec": {"type": "object"}}});
    let options = Options { status_subresource: true, ..Options::default() };
    assert!(Structural::compile(&schema).is_ok());
    let errors = Structural::compile_with(&schema, &options).expect_err("minProperties is not allowed at the root");
    assert!(
        errors
            .to_string()
            .contains("fields are allowed at the root of the schema if the status subresource is enabled")
    );
}

#[test]
fn values_are_refused_in_upstreams_words() {
    let schema = compile(&spec(json!({
        "s": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
        "i": {"type": "integer", "minimum": 1, "maximum": 10},
        "i32": {"type": "integer", "format": "int32"},
        "n": {"type": "number", "minimum": 0.5, "exclusiveMinimum": true},
        "mul": {"type": "integer", "multipleOf": 3},
        "e": {"type": "string", "enum": ["a", "b"]},
        "dt": {"type": "string", "format": "date-time"},
        "ios": {"x-kubernetes-int-or-string": true},
        "l": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
        "m": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}},
        "o": {"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}},
        "nul": {"type": "string", "nullable": true},
    })));
    let table = [
        (json!({}), ""),
        (json!({"s": "a"}), "spec.s: Invalid value: \"a\": spec.s in body should be at least 2 chars long"),
        (json!({"s": "äöüé"}), "spec.s: Invalid value: \"äöüé\": spec.s in body should match '^[a-z]+$'"),
        (json!({"s": "abcde"}), "spec.s: Too long: may not be more than 4 bytes"),
        (json!({"s": 5}), "spec.s: Invalid value: \"integer\": spec.s in body must be of type string: \"integer\""),
        (json!({"s": null}), "spec.s: Invalid value: \"null\": spec.s in body must be of type string: \"null\""),
        (json!({"i": 0}), "spec.i: Invalid value: 0: spec.i in body should be greater than or equal to 1"),
        (json!({"i": 11}), "spec.i: Invalid value: 11: spec.i in body should be less than or equal to 10"),
        (json!({"i": "x"}), "spec.i: Invalid value: \"string\": spec.i in body must be of type integer: \"string\""),
        (json!({"i": 2.0}), ""),
        (
            json!({"i32": 3_000_000_000u32}),
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.i32",
        ),
        (json!({"n": 0.5}), "spec.n: Invalid value: 0.5: spec.n in body should be greater than 0.5"),
        (json!({"mul": 4}), "spec.mul: Invalid value: 4: spec.mul in body should be a multiple of 3"),
        (json!({"e": "c"}), "spec.e: Unsupported value: \"c\": supported values: \"a\", \"b\""),
        (json!({"dt": "x"}), "spec.dt: Invalid value: \"x\": spec.dt in body must be of type date-time: \"x\""),
        (json!({"dt": 5}), "spec.dt: Invalid value: \"int64\": spec.dt in body must be of type date-time: \"int64\""),
        (
            json!({"ios": true}),
            "spec.ios: Invalid value: \"boolean\": spec.ios in body must be of type integer,string: \"boolean\"",
        ),
        (json!({"ios": "5"}), ""),
        (json!({"l": []}), "spec.l: Invalid value: 0: spec.l in body should have at least 1 items"),
        (json!({"l": ["a", "b", "c"]}), "spec.l: Too many: 3: must have at most 2 items"),
        (
            json!({"l": [1]}),
            "spec.l[0]: Invalid value: \"integer\": spec.l[0] in body must be of type string: \"integer\"",
        ),
        (
            json!({"m": {"a": "x"}}),
            "spec.m.a: Invalid value: \"string\": spec.m.a in body must be of type integer: \"string\"",
        ),
        (json!({"m": {"a": 1, "b": 2, "c": 3}}), "spec.m: Too many: 3: must have at most 2 items"),
        (json!({"o": {}}), "spec.o.x: Required value"),
        (json!({"nul": null}), ""),
    ];
    for (value, expected) in table {
        let expected: Vec<&str> = [expected].into_iter().filter(|e| !e.is_empty()).collect();
        assert_eq!(said(&schema, value.clone()), expected, "{value}");
    }
}

#[test]
fn junctors_report_the_best_branch() {
    let two = json!({"x": {"type": "integer"}, "y": {"type": "integer"}});
    let schema = compile(&spec(json!({
        "any": {"type": "object", "properties": two, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
        "one": {"type": "object", "properties": two, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
        "all": {"type": "integer", "allOf": [{"minimum": 3}, {"maximum": 5}]},
        "no": {"type": "string", "not": {"enum": ["bad"]}},
    })));
    assert_eq!(
        said(&schema, json!({"any": {}})),
        [
            "<nil>: Invalid value: \"\": \"spec.any\" must validate at least one schema (anyOf)",
            "spec.any.x: Required value"
        ]
    );
    assert_eq!(
        said(&schema, json!({"one": {"x": 1, "y": 2}})),
        [
            "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    assert_eq!(
        said(&schema, json!({"all": 9})),
        [
            "spec.all: Invalid value: 9: spec.all in body should be less than or equal to 5",
            "<nil>: Invalid value: \"\": \"spec.all\" must validate all the schemas (allOf)",
        ]
    );
    assert_eq!(
        said(&schema, json!({"no": "bad"})),
        ["<nil>: Invalid value: \"\": \"spec.no\" must not validate the schema (not)"]
    );
}

fn keyed() -> Value {
    json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"}, "v": {"type": "integer", "minimum": 5}}},
    })
}

#[test]
fn sets_and_keyed_lists_hold_each_item_once() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    let schema = compile(&spec(json!({"set": set, "map": keyed()})));
    assert_eq!(said(&schema, json!({"set": ["a", "b", "a", "a"]})), ["spec.set[2]: Duplicate value: \"a\""]);
    assert_eq!(
        said(&schema, json!({"map": [{"name": "a"}, {"name": "a"}]})),
        ["spec.map[1]: Duplicate value: {\"name\":\"a\"}"]
    );
    assert_eq!(
        said_of_update(&schema, json!({"set": ["a", "a"]}), json!({"set": ["a", "a", "b"]})),
        Vec::<String>::new(),
        "a list that was already wrong may stay so"
    );
}

#[test]
fn unknown_fields_are_dropped_and_named() {
    let schema = compile(&spec(json!({
        "o": {"type": "object", "properties": {"x": {"type": "string"}}},
        "l": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
        "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "string"}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                 "properties": {"k": {"type": "object", "properties": {"x": {"type": "string"}}}}},
        "er": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        "n": {"type": "string"}, "d": {"type": "string", "default": "dd"},
    })));
    let mut value = object(json!({
        "zz": 1, "o": {"x": "a", "y": {"z": 1}}, "l": [{"x": "a"}, {"y": 1}], "m": {"k": {"x": "a", "y": 1}},
        "free": {"a": {"b": 1}, "k": {"x": "a", "y": 1}},
        "er": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n", "foo": 1}, "any": 1},
        "n": null, "d": null,
    }));
    value["top"] = json!(1);
    let mut unknown = Vec::new();
    schema.prune(&mut value, &mut unknown);
    assert_eq!(
        unknown,
        ["spec.er.metadata.foo", "spec.free.k.y", "spec.l[1].y", "spec.m.k.y", "spec.o.y", "spec.zz", "top"]
    );
    assert_eq!(
        value["spec"],
        json!({
            "o": {"x": "a"}, "l": [{"x": "a"}, {}], "m": {"k": {"x": "a"}}, "free": {"a": {"b": 1}, "k": {"x": "a"}},
            "er": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n"}, "any": 1}, "d": null,
        })
    );
    assert_eq!(value["metadata"], json!({"name": "x"}));
}

#[test]
fn defaults_are_filled_in_where_their_parent_exists() {
    let schema = compile(&spec(json!({
        "o": {"type": "object", "properties": {"d": {"type": "integer", "default": 7}}},
        "od": {"type": "object", "default": {}, "properties": {"d": {"type": "string", "default": "dd"}}},
        "nul": {"type": "string", "nullable": true, "default": "x"},
        "l": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "integer", "default": 1}}}},
    })));
    let defaulted = |value: Value| {
        let mut value = object(value);
        schema.default(&mut value);
        value["spec"].clone()
    };
    assert_eq!(defaulted(json!({})), json!({"od": {"d": "dd"}, "nul": "x"}));
    assert_eq!(
        defaulted(json!({"o": {}, "od": null, "nul": null, "l": [{}, {"d": 2}]})),
        json!({"o": {"d": 7}, "od": {"d": "dd"}, "nul": null, "l": [{"d": 1}, {"d": 2}]})
    );
}

#[test]
fn embedded_resources_need_a_type() {
    let er =
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let schema = compile(&spec(json!({"er": er})));
    assert_eq!(
        said(&schema, json!({"er": {}})),
        ["spec.er.apiVersion: Required value", "spec.er.kind: Required value"]
    );
    let mut seen = Vec::new();
    let value = object(json!({"er": {"apiVersion": "v1", "kind": "Pod"}}));
    schema.embedded(&value, &mut |path, map| seen.push((path.to_string(), map["kind"].clone())));
    assert_eq!(seen, [("spec.er".to_owned(), json!("Pod"))]);
}

#[test]
fn what_did_not_change_is_not_refused_again() {
    let schema = compile(&spec(json!({
        "s": {"type": "string", "minLength": 3},
        "t": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'bad'", "message": "t is bad"}]},
        "l": {"type": "array", "items": {"type": "string", "minLength": 3}},
        "lm": keyed(),
        "free": {"type": "string"},
    })));
    let ok = Vec::<String>::new();
    assert_eq!(said_of_update(&schema, json!({"s": "a"}), json!({"s": "a", "free": "x"})), ok);
    assert_eq!(said_of_update(&schema, json!({"t": "bad"}), json!({"t": "bad", "free": "x"})), ok);
    assert_eq!(said_of_update(&schema, json!({"l": ["a"]}), json!({"l": ["a"], "free": "x"})), ok);
    assert_eq!(
        said_of_update(&schema, json!({"l": ["a"]}), json!({"l": ["a", "bbb"]})).len(),
        1,
        "the items of an atomic list are not compared one by one"
    );
    let old = json!({"lm": [{"name": "a", "v": 3}, {"name": "b", "v": 1}]});
    assert_eq!(said_of_update(&schema, old.clone(), json!({"lm": [{"name": "b", "v": 1}, {"name": "c", "v": 9}]})), ok);
    assert_eq!(
        said_of_update(&schema, old, json!({"lm": [{"name": "b", "v": 2}]})),
        ["spec.lm[0].v: Invalid value: 2: spec.lm[0].v in body should be greater than or equal to 5"]
    );
    assert_eq!(said_of_update(&schema, json!({"s": "a"}), json!({"s": "b"})).len(), 1);
    assert_eq!(
        said_of_update(&schema, json!({"t": "ok"}), json!({"t": "bad"})),
        ["spec.t: Invalid value: \"bad\": t is bad"]
    );
}

#[test]
fn the_status_is_checked_alone() {
    let schema = compile(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}},
        "status": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5}}},
    }}));
    let (mut old, mut new) = (object(json!({})), object(json!({})));
    old["status"] = json!({"n": 6});
    new["status"] = json!({"n": 1});
    let mut errors = Errors::new();
    schema.validate_status(&new, &old, &mut errors);
    assert_eq!(
        errors.to_string(),
        "status.n: Invalid value: 1: n in body should be greater than or equal to 5",
        "the spec's mistakes are not the status writer's"
    );
}

/// A queue with quotas and rules as they are found in the field.
fn queue() -> Structural {
    let bounded = json!({"type": "string", "maxLength": 20});
    compile(&json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "x-kubernetes-validations": [
            {"rule": "!has(self.cohort) || self.cohort != self.name", "message": "a queue is not its own cohort"},
            {"rule": "self.min <= self.max", "messageExpression": "'min ' + string(self.min) + ' exceeds max ' + string(self.max)"},
            {"rule": "!has(oldSelf.flavor) || self.flavor == oldSelf.flavor", "message": "flavor is immutable",
             "fieldPath": ".flavor", "reason": "FieldValueForbidden"},
            {"rule": "oldSelf.hasValue() || !has(self.token) || self.token == 'ok'", "optionalOldSelf": true,
             "message": "token must be ok at first"},
            {"rule": "!has(self.quota) || quantity(self.quota).isGreaterThan(quantity('1'))", "message": "quota is too small"},
            {"rule": "!has(self.labels) || self.labels['team'] != ''"},
        ],
        "properties": {
            "name": bounded, "cohort": bounded, "flavor": bounded, "token": bounded, "quota": bounded,
            "min": {"type": "integer", "default": 0}, "max": {"type": "integer", "default": 10},
            "labels": {"type": "object", "maxProperties": 5, "additionalProperties": bounded},
            "since": {"type": "string", "format": "date-time", "x-kubernetes-validations": [
                {"rule": "self > timestamp('2020-01-01T00:00:00Z')", "message": "too old"}]},
            "wait": {"type": "string", "format": "duration", "x-kubernetes-validations": [
                {"rule": "self >= duration('1m')", "message": "too short"}]},
            "groups": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "groups are immutable"}],
                "items": {"type": "object", "required": ["name"], "properties": {"name": bounded,
                    "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "may only grow"}]}}}},
        },
    }}, "x-kubernetes-validations": [{"rule": "self.metadata.name != 'evil'", "message": "no evil"}]}))
}

fn queue_said(spec: Value) -> Vec<String> {
    let schema = queue();
    let mut value = object(spec);
    schema.default(&mut value);
    let mut errors = Errors::new();
    schema.validate(&value, None, &mut errors);
    lines(&errors)
}

fn queue_said_of_update(old: Value, new: Value) -> Vec<String> {
    let schema = queue();
    let (mut old, mut new) = (object(old), object(new));
    schema.default(&mut old);
    schema.default(&mut new);
    let mut errors = Errors::new();
    schema.validate(&new, Some(&old), &mut errors);
    lines(&errors)
}

#[test]
fn rules_are_evaluated_with_their_messages() {
    assert_eq!(
        queue_said(json!({"name": "a", "cohort": "b", "quota": "2", "labels": {"team": "x"}})),
        Vec::<String>::new()
    );
    let table = [
        (json!({"name": "a", "cohort": "a"}), "spec: Invalid value: a queue is not its own cohort"),
        (json!({"min": 11}), "spec: Invalid value: min 11 exceeds max 10"),
        (json!({"quota": "1"}), "spec: Invalid value: quota is too small"),
        (json!({"token": "no"}), "spec: Invalid value: token must be ok at first"),
        (json!({"since": "2019-01-01T00:00:00Z"}), "spec.since: Invalid value: \"2019-01-01T00:00:00Z\": too old"),
        (json!({"wait": "10s"}), "spec.wait: Invalid value: \"10s\": too short"),
        (
            json!({"labels": {"x": "y"}}),
            "spec: Invalid value: \"object\": no such key: team evaluating rule: !has(self.labels) || self.labels['team'] != ''",
        ),
    ];
    for (value, expected) in table {
        assert_eq!(queue_said(value.clone()), [expected], "{value}");
    }
    let mut evil = object(json!({"min": 0, "max": 1}));
    evil["metadata"]["name"] = json!("evil");
    let mut errors = Errors::new();
    queue().validate(&evil, None, &mut errors);
    assert_eq!(errors.to_string(), "<nil>: Invalid value: no evil");
}

#[test]
fn transition_rules_compare_with_what_was() {
    let ok = Vec::<String>::new();
    assert_eq!(queue_said(json!({"flavor": "a"})), ok, "nothing to compare with on create");
    assert_eq!(
        queue_said_of_update(json!({"flavor": "a"}), json!({"flavor": "b"})),
        ["spec.flavor: Forbidden: flavor is immutable"]
    );
    assert_eq!(queue_said_of_update(json!({}), json!({"token": "no"})), ok);
    let groups = |list: Value| json!({"groups": list});
    let old = groups(json!([{"name": "a", "n": 1}, {"name": "b", "n": 2}]));
    assert_eq!(
        queue_said_of_update(old.clone(), groups(json!([{"name": "b", "n": 2}, {"name": "a", "n": 1}]))),
        ok,
        "the order of a keyed list is no change"
    );
    assert_eq!(
        queue_said_of_update(old, groups(json!([{"name": "b", "n": 1}, {"name": "a", "n": 1}]))),
        ["spec.groups: Invalid value: groups are immutable", "spec.groups[0].n: Invalid value: 1: may only grow"]
    );
}

#[test]
fn rules_wait_until_the_object_has_its_types() {
    assert_eq!(
        queue_said(json!({"min": "x"})),
        [
            "spec.min: Invalid value: \"string\": spec.min in body must be of type integer: \"string\"",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the \
             existing errors to complete validation",
        ]
    );
}

#[test]
fn names_are_escaped_in_rules_as_upstream_escapes_them() {
    let rules: Vec<Value> = ["weird__dash__name", "__namespace__", "a_b", "c__underscores__d"]
        .iter()
        .map(|n| json!({"rule": format!("!has(self.{n}) || self.{n} != 'x'"), "message": n}))
        .collect();
    let s = json!({"type": "string"});
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"weird-name": s, "namespace": s, "a_b": s, "c__d": s}, "x-kubernetes-validations": rules}}}));
    assert_eq!(said(&schema, json!({"weird-name": "x", "namespace": "x", "a_b": "x", "c__d": "x"})).len(), 4);
    assert_eq!(said(&schema, json!({"weird-name": "y"})), Vec::<String>::new());
}

#[test]
fn a_rule_that_does_not_compile_is_refused_with_its_place() {
    let rule = |rule: &str| refused(json!({"type": "string", "x-kubernetes-validations": [{"rule": rule}]}));
    let at = |rule: &str, problem: &str| {
        format!(
            "a.x-kubernetes-validations[0].rule: Invalid value: {{\"Rule\":\"{rule}\",\"Message\":\"\",\"MessageExpression\":\
             \"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: {problem}"
        )
    };
    assert_eq!(
        rule("self.foo > 1"),
        [at(
            "self.foo \\u003e 1",
            "compilation failed: ERROR: <input>:1:5: type 'string' does not support field selection\n | self.foo > 1\n | ....^"
        )]
    );
    assert_eq!(
        rule("self > 1"),
        [at(
            "self \\u003e 1",
            "compilation failed: ERROR: <input>:1:6: found no matching overload for '_>_' applied to '(string, int)'\n \
             | self > 1\n | .....^"
        )]
    );
    assert_eq!(rule("self"), [at("self", "cel expression must evaluate to a bool")]);
    assert_eq!(
        rule("frob(self)"),
        [at(
            "frob(self)",
            "compilation failed: ERROR: <input>:1:5: undeclared reference to 'frob' (in container '')\n | frob(self)\n | ....^"
        )]
    );
    assert!(
        rule("self ==")[0].contains("compilation failed: ERROR: <input>:1:8: Syntax error: mismatched input '<EOF>'")
    );
    let list = json!({"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 3,
        "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}});
    assert_eq!(
        refused(list),
        [
            "a.items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the \
          uncorrelatable portion of the schema within a"
        ]
    );
    let optional = json!([{"rule": "self != ''", "optionalOldSelf": true}]);
    assert_eq!(
        refused(json!({"type": "string", "x-kubernetes-validations": optional})),
        [
            "a.x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"
        ]
    );
}

#[test]
fn rules_with_the_usual_functions_are_accepted() {
    let rules = [
        "self.l.all(x, x.startsWith('a') || x.matches('^b+$'))",
        "self.l.exists_one(x, x == 'a')",
        "self.l.filter(x, x != '').map(x, x.size()).sum() < 10",
        "sets.contains(self.l, ['a'])",
        "self.m.exists(k, self.m[k] == 'v')",
        "size(self.l) == 0 || self.l[0].lowerAscii() == 'a'",
        "self.i in [1, 2, 3]",
        "type(self.ios) == string ? self.ios != '' : self.ios > 0",
        "[has(self.l), has(self.m)].exists_one(x, x)",
        "isURL('https://a') && url('https://a').getHost() == 'a'",
        "duration('1h') > duration('1m')",
        "self.?i.orValue(1) > 0",
        "math.greatest(self.i, 2) > 1",
    ];
    let rules: Vec<Value> = rules.iter().map(|r| json!({"rule": r})).collect();
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": rules,
        "properties": {
            "l": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 5}},
            "m": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 5}},
            "i": {"type": "integer"}, "ios": {"x-kubernetes-int-or-string": true}}}}});
    let schema = compile(&schema);
    let found = said(&schema, json!({"l": ["a"], "m": {"k": "v"}, "i": 1, "ios": 5}));
    assert_eq!(found, ["spec: Invalid value: failed rule: [has(self.l), has(self.m)].exists_one(x, x)"]);
}

#[test]
fn a_rule_that_would_run_too_long_is_stopped() {
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object",
        "x-kubernetes-validations": [{"rule": "self.l.all(x, self.l.exists(y, y == x))"}],
        "properties": {"l": {"type": "array", "items": {"type": "integer"}}}}}}));
    assert_eq!(said(&schema, json!({"l": [1, 2, 3]})), Vec::<String>::new());
    let long: Vec<i64> = (0..5000).collect();
    assert_eq!(
        said(&schema, json!({"l": long})),
        [
            "spec: Invalid value: \"object\": validation failed due to running out of cost budget, no further validation rules \
          will be run"
        ]
    );
}

#[test]
fn hostile_values_are_answered() {
    let schema = queue();
    let mut deep = json!("x");
    for _ in 0..500 {
        deep = Value::Array(vec![deep]);
    }
    let many: Vec<Value> = (0..100_000).map(|_| json!(true)).collect();
    let numbers = json!({"min": 1e308, "max": u64::MAX, "name": "\u{0}\u{ffff}", "wait": "99999999999999999999h"});
    for spec in [
        json!({"name": deep.clone()}),
        json!({"groups": many}),
        numbers,
        json!({"groups": deep}),
        json!(5),
        json!(null),
    ] {
        let mut value = object(spec);
        let mut unknown = Vec::new();
        schema.prune(&mut value, &mut unknown);
        schema.default(&mut value);
        let mut errors = Errors::new();
        schema.validate(&value, None, &mut errors);
        schema.validate(&value, Some(&object(json!({}))), &mut errors);
        assert!(errors.len() < 2000, "findings are bounded");
    }
    for not_a_schema in
        [json!(null), json!([]), json!("x"), json!({"properties": 5, "enum": {}, "minimum": "x", "type": 1})]
    {
        assert!(Structural::compile(&not_a_schema).is_err(), "{not_a_schema}");
    }
    let mut deep = json!({"type": "string"});
    for _ in 0..300 {
        let level = [("type".to_owned(), json!("array")), ("items".to_owned(), deep)];
        deep = Value::Object(level.into_iter().collect());
    }
    assert!(Structural::compile(&spec(json!({"a": deep}))).is_err());
}

#[test]
fn the_graph_knows_lists_maps_and_scalars() {
    let mut port = keyed();
    port["x-kubernetes-list-map-keys"] = json!(["name", "protocol"]);
    port["items"]["properties"]["protocol"] = json!({"type": "string", "default": "TCP"});
    let schema = compile(&spec(json!({
        "ports": port,
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "list": {"type": "array", "items": {"type": "integer"}},
        "map": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        "ios": {"x-kubernetes-int-or-string": true},
        "n": {"type": "number"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
    })));
    let mut graph = Graph::new();
    let meta = graph.add(Type::Any);
    let root = schema.lower(&mut graph, meta);
    let at = graph.at(root);
    assert_eq!(at.field("metadata").map(|f| f.ty), Some(meta));
    assert_eq!(at.child("kind").map(|t| t.ty().clone()), Some(Type::Scalar(Scalar::String)));
    let field = |name: &str| at.child("spec").and_then(|s| s.child(name)).map(|t| t.ty().clone()).expect(name);
    match field("ports") {
        Type::List(list) => assert_eq!(
            list.topology,
            Topology::Map {
                keys: vec!["name".into(), "protocol".into()],
                defaults: vec![("protocol".into(), json!("TCP"))]
            }
        ),
        other => panic!("{other:?}"),
    }
    assert!(matches!(field("tags"), Type::List(l) if l.topology == Topology::Set));
    assert!(
        matches!(field("list"), Type::List(l) if l.topology == Topology::Atomic && *graph.get(l.items) == Type::Scalar(Scalar::Int64))
    );
    assert!(matches!(field("map"), Type::Map(m) if m.atomic));
    assert_eq!(field("ios"), Type::Scalar(Scalar::IntOrString));
    assert_eq!(field("n"), Type::Scalar(Scalar::Double));
    assert!(matches!(field("free"), Type::Struct(s) if s.preserve_unknown && s.fields.is_empty()));
    assert_eq!(field("any"), Type::Any);
}

#[test]
fn openapi_adds_what_every_object_has() {
    let gvk = Gvk { group: "example.com".into(), version: "v1".into(), kind: "Thing".into() };
    let out = compile(&spec(json!({"a": {"type": "string"}}))).openapi(&gvk);
    assert_eq!(
        out["x-kubernetes-group-version-kind"],
        json!([{"group": "example.com", "version": "v1", "kind": "Thing"}])
    );
    assert_eq!(out["properties"]["spec"]["properties"]["a"], json!({"type": "string"}));
    assert_eq!(out["properties"]["apiVersion"]["type"], "string");
    assert!(
        out["properties"]["metadata"]["allOf"][0]["$ref"].as_str().is_some_and(|r| r.ends_with("meta.v1.ObjectMeta"))
    );
}

#[test]
fn selectable_fields_are_resolved_against_the_schema() {
    let schema =
        compile(&spec(json!({"color": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}})));
    let found = schema.selectable(".spec.color").expect("declared");
    assert_eq!((found.path.as_str(), found.root.as_str(), found.ty), ("spec.color", "spec", "string"));
    assert_eq!(schema.selectable(".spec.nope"), Err("does not refer to a valid field".into()));
    assert_eq!(schema.selectable("spec"), Err("expected [ or . but got: spec".into()));
    assert_eq!(schema.selectable(".spec['color']"), Err("array notation is not allowed".into()));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f32>().prop_map(|f| Value::from(f64::from(f))),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    let names = prop_oneof![
        "[a-e]",
        Just("metadata".to_owned()),
        Just("o".to_owned()),
        Just("l".to_owned()),
        Just("d".to_owned())
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn property_schema() -> Structural {
    let inner = json!({"type": "object", "properties": {
        "a": {"type": "string"}, "d": {"type": "integer", "default": 3}, "o": {"type": "object", "default": {}, "properties": {
            "d": {"type": "string", "default": "x"}, "b": {"type": "string", "nullable": true}}}}});
    compile(&spec(json!({
        "a": {"type": "string"}, "b": {"type": "object", "additionalProperties": inner},
        "l": {"type": "array", "items": inner}, "o": inner,
        "c": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"o": inner}},
        "e": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    })))
}

proptest! {
    #[test]
    fn pruning_and_defaulting_twice_changes_nothing(value in any_json()) {
        let schema = property_schema();
        let mut once = object(value);
        schema.prune(&mut once, &mut Vec::new());
        let mut twice = once.clone();
        let mut unknown = Vec::new();
        schema.prune(&mut twice, &mut unknown);
        prop_assert_eq!(&once, &twice);
        prop_assert!(unknown.is_empty());
        schema.default(&mut once);
        let mut again = once.clone();
        schema.default(&mut again);
        prop_assert_eq!(&once, &again);
        schema.prune(&mut again, &mut unknown);
        prop_assert_eq!(&once, &again, "a default is never pruned");
    }

    #[test]
    fn an_unchanged_object_is_never_refused_for_its_schema(value in any_json()) {
        let schema = property_schema();
        let mut value = object(value);
        schema.prune(&mut value, &mut Vec::new());
        let mut errors = Errors::new();
        schema.validate(&value, Some(&value), &mut errors);
        // Embedded resources do not ratchet, and neither does what lies beside fields the schema does not know.
        let ratchets = |path: &str| !path.starts_with("spec.e") && !path.starts_with("spec.c") && path != "spec" && path != "<nil>";
        prop_assert!(errors.0.iter().all(|e| !ratchets(&e.path.to_string())), "{}", errors);
    }
}
