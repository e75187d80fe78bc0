//! The v2 document in protobuf, which is the only form of it that client-go asks for: `openapi.v2.Document` of gnostic.
//!
//! A table for each message ([`Message`]) says which number each JSON field has and of what kind it is; [`encode`] walks
//! document and tables together. The tables cover what [`super::v2`] and the schemas of custom resources can say, and
//! whatever else a document holds is left out: OAuth, forms, XML, headers and examples of responses, tags.

use serde_json::{Map, Value};

/// The protobuf form of a document made by [`super::v2`].
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    if let Value::Object(map) = document {
        DOCUMENT.write(&mut out, map);
    }
    out
}

struct Message {
    /// In the order of their numbers, which is the order in which protobuf writes them.
    fields: &'static [(&'static str, u32, Kind)],
    /// Where all other keys go, if the message is a map: pairs of `name` (1) and `value` (2).
    entries: Option<(u32, Kind)>,
    /// Where keys that begin with `x-` go, as pairs of `name` and an [`Kind::Any`].
    extensions: Option<u32>,
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    /// `int64`
    Count,
    /// `double`
    Number,
    /// A value of any type, as YAML in the second field of a message.
    Any,
    One(&'static Message),
    /// An array, each item of the kind.
    Many(&'static Kind),
    /// A message whose only field is such a list. One value may stand for a list of one.
    Boxed(&'static Kind),
    /// A message of alternatives: which field the value goes to and as what.
    Choice(fn(&Value) -> (u32, Kind)),
}

use Kind::{Any, Boxed, Choice, Count, Flag, Many, Number, One, Text};

const TEXTS: Kind = Many(&Text);

static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, One(&INFO)),
        ("host", 3, Text),
        ("basePath", 4, Text),
        ("schemes", 5, TEXTS),
        ("consumes", 6, TEXTS),
        ("produces", 7, TEXTS),
        ("paths", 8, One(&PATHS)),
        ("definitions", 9, One(&NAMED_SCHEMAS)),
        ("security", 12, Many(&One(&SECURITY_REQUIREMENT))),
        ("securityDefinitions", 13, One(&SECURITY_DEFINITIONS)),
        ("externalDocs", 15, One(&EXTERNAL_DOCS)),
    ],
    entries: None,
    extensions: Some(16),
};

static INFO: Message = Message {
    fields: &[("title", 1, Text), ("version", 2, Text), ("description", 3, Text), ("termsOfService", 4, Text)],
    entries: None,
    extensions: Some(7),
};

static EXTERNAL_DOCS: Message =
    Message { fields: &[("description", 1, Text), ("url", 2, Text)], entries: None, extensions: Some(3) };

static SECURITY_REQUIREMENT: Message = Message { fields: &[], entries: Some((1, Boxed(&Text))), extensions: None };

/// Of the kinds of definitions we make API keys only.
static SECURITY_DEFINITIONS: Message =
    Message { fields: &[], entries: Some((1, Choice(|_| (2, One(&API_KEY))))), extensions: None };

static API_KEY: Message = Message {
    fields: &[("type", 1, Text), ("name", 2, Text), ("in", 3, Text), ("description", 4, Text)],
    entries: None,
    extensions: Some(5),
};

static PATHS: Message = Message { fields: &[], entries: Some((2, One(&PATH_ITEM))), extensions: Some(1) };

static PATH_ITEM: Message = Message {
    fields: &[
        ("$ref", 1, Text),
        ("get", 2, One(&OPERATION)),
        ("put", 3, One(&OPERATION)),
        ("post", 4, One(&OPERATION)),
        ("delete", 5, One(&OPERATION)),
        ("options", 6, One(&OPERATION)),
        ("head", 7, One(&OPERATION)),
        ("patch", 8, One(&OPERATION)),
        ("parameters", 9, Many(&Choice(parameter_or_reference))),
    ],
    entries: None,
    extensions: Some(10),
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, TEXTS),
        ("summary", 2, Text),
        ("description", 3, Text),
        ("externalDocs", 4, One(&EXTERNAL_DOCS)),
        ("operationId", 5, Text),
        ("produces", 6, TEXTS),
        ("consumes", 7, TEXTS),
        ("parameters", 8, Many(&Choice(parameter_or_reference))),
        ("responses", 9, One(&RESPONSES)),
        ("schemes", 10, TEXTS),
        ("deprecated", 11, Flag),
        ("security", 12, Many(&One(&SECURITY_REQUIREMENT))),
    ],
    entries: None,
    extensions: Some(13),
};

static REFERENCE: Message =
    Message { fields: &[("$ref", 1, Text), ("description", 2, Text)], entries: None, extensions: None };

fn parameter_or_reference(value: &Value) -> (u32, Kind) {
    if value.get("$ref").is_some() { (2, One(&REFERENCE)) } else { (1, Choice(parameter)) }
}

fn parameter(value: &Value) -> (u32, Kind) {
    if value["in"] == "body" { (1, One(&BODY_PARAMETER)) } else { (2, Choice(non_body_parameter)) }
}

fn non_body_parameter(value: &Value) -> (u32, Kind) {
    match value["in"].as_str() {
        Some("header") => (1, One(&PATH_PARAMETER)),
        Some("path") => (4, One(&PATH_PARAMETER)),
        _ => (3, One(&QUERY_PARAMETER)),
    }
}

static BODY_PARAMETER: Message = Message {
    fields: &[
        ("description", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("required", 4, Flag),
        ("schema", 5, One(&SCHEMA)),
    ],
    entries: None,
    extensions: Some(6),
};

/// That of a header has the same numbers.
static PATH_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, Flag),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 5, Text),
        ("format", 6, Text),
        ("default", 9, Any),
        ("pattern", 16, Text),
        ("uniqueItems", 19, Flag),
        ("enum", 20, Many(&Any)),
    ],
    entries: None,
    extensions: Some(22),
};

static QUERY_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, Flag),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("allowEmptyValue", 5, Flag),
        ("type", 6, Text),
        ("format", 7, Text),
        ("default", 10, Any),
        ("pattern", 17, Text),
        ("uniqueItems", 20, Flag),
        ("enum", 21, Many(&Any)),
    ],
    entries: None,
    extensions: Some(23),
};

static RESPONSES: Message = Message { fields: &[], entries: Some((1, Choice(response))), extensions: Some(2) };

fn response(value: &Value) -> (u32, Kind) {
    if value.get("$ref").is_some() { (2, One(&REFERENCE)) } else { (1, One(&RESPONSE)) }
}

static RESPONSE: Message = Message {
    // The alternative to a schema is a file.
    fields: &[("description", 1, Text), ("schema", 2, Choice(|_| (1, One(&SCHEMA))))],
    entries: None,
    extensions: Some(5),
};

/// `definitions` and `properties`: no key is an extension there.
static NAMED_SCHEMAS: Message = Message { fields: &[], entries: Some((1, One(&SCHEMA))), extensions: None };

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("title", 3, Text),
        ("description", 4, Text),
        ("default", 5, Any),
        ("multipleOf", 6, Number),
        ("maximum", 7, Number),
        ("exclusiveMaximum", 8, Flag),
        ("minimum", 9, Number),
        ("exclusiveMinimum", 10, Flag),
        ("maxLength", 11, Count),
        ("minLength", 12, Count),
        ("pattern", 13, Text),
        ("maxItems", 14, Count),
        ("minItems", 15, Count),
        ("uniqueItems", 16, Flag),
        ("maxProperties", 17, Count),
        ("minProperties", 18, Count),
        ("required", 19, TEXTS),
        ("enum", 20, Many(&Any)),
        ("additionalProperties", 21, Choice(additional_properties)),
        ("type", 22, Boxed(&Text)),
        ("items", 23, Boxed(&One(&SCHEMA))),
        ("allOf", 24, Many(&One(&SCHEMA))),
        ("properties", 25, One(&NAMED_SCHEMAS)),
        ("discriminator", 26, Text),
        ("readOnly", 27, Flag),
        ("externalDocs", 29, One(&EXTERNAL_DOCS)),
        ("example", 30, Any),
    ],
    entries: None,
    extensions: Some(31),
};

fn additional_properties(value: &Value) -> (u32, Kind) {
    if value.is_boolean() { (2, Flag) } else { (1, One(&SCHEMA)) }
}

impl Message {
    fn write(&self, out: &mut Vec<u8>, map: &Map<String, Value>) {
        for (name, number, kind) in self.fields {
            if let Some(value) = map.get(*name).filter(|value| !kind.is_default(value)) {
                kind.write(out, *number, value);
            }
        }
        let is_extension = |key: &str| self.extensions.is_some() && key.starts_with("x-");
        if let Some((number, kind)) = self.entries {
            map.iter()
                .filter(|(key, _)| !is_extension(key))
                .for_each(|(key, value)| pair(out, number, key, kind, value));
        }
        if let Some(number) = self.extensions {
            map.iter().filter(|(key, _)| is_extension(key)).for_each(|(key, value)| pair(out, number, key, Any, value));
        }
    }
}

fn pair(out: &mut Vec<u8>, number: u32, name: &str, kind: Kind, value: &Value) {
    let mut inner = Vec::new();
    bytes(&mut inner, 1, name.as_bytes());
    kind.write(&mut inner, 2, value);
    bytes(out, number, &inner);
}

impl Kind {
    /// What proto3 does not write, except in lists and alternatives.
    fn is_default(self, value: &Value) -> bool {
        match self {
            Text => value == "",
            Flag => value == &Value::Bool(false),
            Count | Number => value.as_f64() == Some(0.0),
            _ => false,
        }
    }

    /// Nothing is written of a value that is not of the kind.
    fn write(self, out: &mut Vec<u8>, number: u32, value: &Value) {
        let mut inner = Vec::new();
        match (self, value) {
            (Text, Value::String(text)) => return bytes(out, number, text.as_bytes()),
            (Flag, Value::Bool(flag)) => return varint_field(out, number, u64::from(*flag)),
            (Count, Value::Number(count)) => {
                // Whole numbers may be written with a fraction of zero.
                #[allow(clippy::cast_possible_truncation)]
                let whole = count.as_i64().or_else(|| count.as_f64().map(|f| f as i64));
                return whole.into_iter().for_each(|n| varint_field(out, number, n.cast_unsigned()));
            }
            (Number, Value::Number(n)) => {
                tag(out, number, 1);
                return out.extend_from_slice(&n.as_f64().unwrap_or_default().to_le_bytes());
            }
            (Many(kind), Value::Array(items)) => return items.iter().for_each(|item| kind.write(out, number, item)),
            (Any, value) => bytes(&mut inner, 2, yaml(value).as_bytes()),
            (One(message), Value::Object(map)) => message.write(&mut inner, map),
            (Boxed(kind), Value::Array(items)) => items.iter().for_each(|item| kind.write(&mut inner, 1, item)),
            (Boxed(kind), one) => kind.write(&mut inner, 1, one),
            (Choice(choose), value) => {
                let (chosen, kind) = choose(value);
                kind.write(&mut inner, chosen, value);
            }
            _ => return,
        }
        bytes(out, number, &inner);
    }
}

/// JSON is YAML, but for control characters that YAML wants escaped and JSON does not.
fn yaml(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => text.push(c),
        }
    }
    text.push('\n');
    text
}

fn bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    tag(out, number, 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    tag(out, number, 0);
    varint(out, value);
}

fn tag(out: &mut Vec<u8>, number: u32, wire: u64) {
    varint(out, u64::from(number) << 3 | wire);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::openapi::{Dialect, GroupVersionKind, Resource, custom, v2};

    /// A decoded message: its fields in order, numbers and doubles as their bits.
    struct Decoded(Vec<(u32, Field)>);

    enum Field {
        Bits(u64),
        Bytes(Vec<u8>),
    }

    impl Decoded {
        fn of(mut bytes: &[u8]) -> Decoded {
            let mut fields = Vec::new();
            while !bytes.is_empty() {
                let tag = take_varint(&mut bytes);
                let field = match tag & 7 {
                    0 => Field::Bits(take_varint(&mut bytes)),
                    1 => Field::Bits(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
                    2 => {
                        let length = take_varint(&mut bytes) as usize;
                        Field::Bytes(take(&mut bytes, length).to_vec())
                    }
                    wire => panic!("wire type {wire}"),
                };
                fields.push(((tag >> 3) as u32, field));
            }
            Decoded(fields)
        }

        fn all(&self, number: u32) -> Vec<&[u8]> {
            let wanted = self.0.iter().filter(|(n, _)| *n == number);
            wanted
                .map(|(_, field)| match field {
                    Field::Bytes(bytes) => bytes.as_slice(),
                    Field::Bits(_) => panic!("{number} is not bytes"),
                })
                .collect()
        }

        /// The message at the end of a path of field numbers, each there once.
        #[track_caller]
        fn at(&self, path: &[u32]) -> Decoded {
            let Some((first, rest)) = path.split_first() else { panic!("no path") };
            let found = self.all(*first);
            assert_eq!(found.len(), 1, "field {first}");
            if rest.is_empty() { Decoded::of(found[0]) } else { Decoded::of(found[0]).at(rest) }
        }

        #[track_caller]
        fn text(&self, number: u32) -> String {
            String::from_utf8(self.all(number).concat()).unwrap()
        }

        fn bits(&self, number: u32) -> Option<u64> {
            self.0.iter().find_map(|(n, field)| match field {
                Field::Bits(bits) if *n == number => Some(*bits),
                _ => None,
            })
        }

        /// The value of the pair with this name in a map.
        #[track_caller]
        fn named(&self, number: u32, name: &str) -> Decoded {
            let pairs = self.all(number);
            let found = pairs.into_iter().map(Decoded::of).find(|pair| pair.text(1) == name);
            found.unwrap_or_else(|| panic!("no {name}")).at(&[2])
        }
    }

    fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(length);
        *bytes = rest;
        taken
    }

    fn take_varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = take(bytes, 1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    fn schema(schema: Value) -> Decoded {
        let document = encode(&json!({"definitions": {"it": schema}}));
        Decoded::of(&document).at(&[9]).named(1, "it")
    }

    fn document() -> Decoded {
        let verbs = ["create", "delete", "get", "list", "patch"];
        let jobs = Resource::builtin(GroupVersionKind::new("batch", "v1", "Job"), "jobs", true, &verbs);
        Decoded::of(&encode(&v2("v1.37.1", &[("batch", "v1", &[jobs])], &Map::new())))
    }

    #[test]
    fn the_head_of_the_document_is_there() {
        let document = document();
        assert_eq!(document.text(1), "2.0");
        assert_eq!((document.at(&[2]).text(1), document.at(&[2]).text(2)), ("Kubernetes".into(), "v1.37.1".into()));
        assert_eq!(document.at(&[13]).named(1, "BearerToken").at(&[2]).text(3), "header");
        assert_eq!(document.at(&[12]).named(1, "BearerToken").0.len(), 0);
    }

    #[test]
    fn kubectl_finds_the_patch_of_a_kind_and_its_parameters() {
        let paths = document().at(&[8]);
        let item = paths.named(2, "/apis/batch/v1/namespaces/{namespace}/jobs/{name}");
        let patch = item.at(&[8]);
        let gvk = patch.named(13, "x-kubernetes-group-version-kind").text(2);
        let gvk: Value = serde_json::from_str(&gvk).unwrap();
        assert_eq!(gvk, json!({"group": "batch", "version": "v1", "kind": "Job"}));
        let parameters: Vec<Decoded> = patch.all(8).into_iter().map(Decoded::of).collect();
        let body = parameters[0].at(&[1, 1]);
        assert_eq!((body.text(2), body.bits(4)), ("body".into(), Some(1)));
        let queries: Vec<String> = parameters[1..].iter().map(|p| p.at(&[1, 2, 3]).text(4)).collect();
        assert_eq!(queries, ["dryRun", "fieldManager", "fieldValidation", "force"]);
        let in_path = Decoded::of(item.all(9)[0]).at(&[1, 2, 4]);
        assert_eq!((in_path.text(4), in_path.bits(1), in_path.text(5)), ("name".into(), Some(1), "string".into()));
        let ok = patch.at(&[9]).named(1, "200").at(&[1]);
        assert_eq!(ok.at(&[2, 1]).text(1), "#/definitions/io.k8s.api.batch.v1.Job");
    }

    #[test]
    fn definitions_keep_types_references_and_merge_keys() {
        let definitions = document().at(&[9]);
        let pod = definitions.named(1, "io.k8s.api.core.v1.PodSpec");
        assert_eq!(pod.all(19), [b"containers"]);
        let containers = pod.at(&[25]).named(1, "containers");
        assert_eq!(containers.at(&[22]).text(1), "array");
        assert_eq!(containers.at(&[23, 1]).text(1), "#/definitions/io.k8s.api.core.v1.Container");
        assert_eq!(containers.named(31, "x-kubernetes-patch-merge-key").text(2), "\"name\"\n");
        let labels = pod.at(&[25]).named(1, "nodeSelector").at(&[21, 1]);
        assert_eq!(labels.at(&[22]).text(1), "string");
    }

    #[test]
    fn zeros_are_left_out_but_not_where_they_are_a_choice_or_a_value() {
        let it = schema(json!({"minLength": 0, "minimum": 0.0, "readOnly": false, "title": "", "required": ["", "a"]}));
        assert_eq!(it.0.len(), 2);
        assert_eq!(it.all(19), [&b""[..], b"a"]);
        assert_eq!(schema(json!({"additionalProperties": false})).at(&[21]).bits(2), Some(0));
        assert_eq!(schema(json!({"default": false})).at(&[5]).text(2), "false\n");
        assert_eq!(schema(json!({"properties": {}})).at(&[25]).0.len(), 0);
    }

    #[test]
    fn numbers_have_the_wire_type_of_their_field() {
        let it = schema(json!({"maximum": 2, "multipleOf": 0.5, "maxLength": 300, "minItems": 4.0}));
        assert_eq!(it.bits(7).map(f64::from_bits), Some(2.0));
        assert_eq!(it.bits(6).map(f64::from_bits), Some(0.5));
        assert_eq!((it.bits(11), it.bits(15)), (Some(300), Some(4)));
    }

    #[test]
    fn properties_of_any_name_are_properties() {
        let it = schema(json!({"properties": {"x-odd": {"type": "string"}}, "x-odd": [1, null]}));
        assert_eq!(it.at(&[25]).named(1, "x-odd").at(&[22]).text(1), "string");
        assert_eq!(it.named(31, "x-odd").text(2), "[1,null]\n");
    }

    #[test]
    fn yaml_readers_meet_no_raw_control_characters() {
        assert_eq!(yaml(&json!("a\u{7f}\u{85}\nä😀")), "\"a\\u007f\\u0085\\nä😀\"\n");
    }

    #[test]
    fn schemas_of_custom_resources_are_taken_along_and_what_v2_cannot_say_is_dropped() {
        let gvk = GroupVersionKind::new("stable.example.com", "v1", "CronTab");
        let spec =
            json!({"type": "object", "properties": {"spec": {"type": "object", "bogus": 1, "minProperties": 1}}});
        let made = custom(Dialect::V2, &gvk, "CronTabList", Some(&spec));
        let it = schema(made["com.example.stable.v1.CronTab"].clone());
        let spec = it.at(&[25]).named(1, "spec");
        assert_eq!((spec.bits(18), spec.0.len()), (Some(1), 2));
    }

    #[test]
    fn values_of_the_wrong_type_are_left_out() {
        assert_eq!(schema(json!({"title": 1, "required": "a", "maxLength": "x", "properties": []})).0.len(), 0);
        assert!(encode(&json!([])).is_empty());
    }
}
