use base64::Engine as _;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::builtin;
use crate::golden::golden;

fn pod() -> At<'static> {
    builtin::kind("", "v1", "Pod").unwrap()
}

/// A length-delimited field.
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let varint = |mut n: usize| {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push((n & 0x7f) as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
        out
    };
    [varint((number << 3 | 2) as usize), varint(bytes.len()), bytes.to_vec()].concat()
}

#[test]
fn protobuf_and_json_of_one_object_agree() {
    let mut seen = 0;
    for case in golden() {
        let (Some(proto), Ok(mut expected)) = (case.proto, case.outcome) else { continue };
        let bytes = STANDARD.decode(proto).unwrap();
        assert!(is_protobuf(&bytes));
        let (meta, raw) = decode_unknown(&bytes).unwrap();
        let map = expected.as_object_mut().unwrap();
        assert_eq!(map.remove("apiVersion").unwrap_or("".into()), json!(meta.api_version), "{}", case.line);
        assert_eq!(map.remove("kind").unwrap_or("".into()), json!(meta.kind), "{}", case.line);
        assert_eq!(lists_read_back(expected), lists_read_back(to_json(case.at, raw).unwrap()), "{}", case.line);
        seen += 1;
    }
    assert!(seen > 30, "only {seen} cases were read");
}

#[test]
fn what_is_written_is_what_go_writes_byte_for_byte() {
    let mut seen = 0;
    for case in golden() {
        let (Some(proto), Ok(object)) = (case.proto, case.outcome) else { continue };
        let bytes = STANDARD.decode(proto).unwrap();
        let (_, raw) = decode_unknown(&bytes).unwrap();
        let written = encode_raw(case.at, &object);
        assert_eq!(to_json(case.at, &written).unwrap(), to_json(case.at, raw).unwrap(), "{}", case.line);
        assert_eq!(written, raw, "{}", case.line);
        if let Some(whole) = encode_object(&object) {
            assert_eq!(whole, bytes, "{}", case.line);
        }
        seen += 1;
    }
    assert!(seen > 30, "only {seen} cases were written");
}

#[test]
fn custom_resources_and_tables_have_no_protobuf_form() {
    assert_eq!(encode_object(&json!({"apiVersion": "example.com/v1", "kind": "Widget"})), None);
    assert_eq!(encode_object(&json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table"})), None);
    assert_eq!(encode_object(&json!([])), None);
    let metadata = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "a"}});
    let (meta, raw) = {
        let bytes = encode_object(&metadata).unwrap();
        let (meta, raw) = decode_unknown(&bytes).unwrap();
        (meta, raw.to_vec())
    };
    assert_eq!((meta.api_version.as_str(), meta.kind.as_str()), ("meta.k8s.io/v1", "PartialObjectMetadata"));
    let at = builtin::kind("meta.k8s.io", "v1", "PartialObjectMetadata").unwrap();
    assert_eq!(to_json(at, &raw).unwrap()["metadata"]["name"], "a");
}

#[test]
fn an_event_is_a_frame_with_its_length_before_it() {
    let event =
        json!({"type": "ADDED", "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}});
    let frame = encode_event(&event).unwrap();
    let (length, rest) = frame.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, rest.len());
    let at = builtin::kind("meta.k8s.io", "v1", "WatchEvent").unwrap();
    let mut reader = Reader::new(rest);
    let (number, what) = reader.next().unwrap().unwrap();
    assert_eq!((number, what.bytes("type").unwrap()), (1, b"ADDED".as_slice()));
    assert_eq!(at.field("type").unwrap().number, 1);
    let (number, object) = reader.next().unwrap().unwrap();
    assert_eq!((number, at.field("object").unwrap().number), (2, 2));
    let mut inner = Reader::new(object.bytes("object").unwrap());
    let raw = inner.next().unwrap().unwrap().1.bytes("raw").unwrap();
    assert_eq!(Some(raw.to_vec()), encode_object(&event["object"]));
}

/// Protobuf cannot tell an empty list from none.
fn lists_read_back(mut value: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Array(items) if items.is_empty() => *value = Value::Null,
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::Object(map) => map.values_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut value);
    value
}

#[test]
fn the_envelope_names_the_kind() {
    let meta = [field(1, b"v1"), field(2, b"Pod")].concat();
    let body = [MAGIC.to_vec(), field(1, &meta), field(2, b"raw"), field(9, b"unknown")].concat();
    let (meta, raw) = decode_unknown(&body).unwrap();
    assert_eq!(meta, TypeMeta { api_version: "v1".into(), kind: "Pod".into() });
    assert_eq!(raw, b"raw");
    assert_eq!(decode_unknown(b"{}"), Err(ProtoError::NoMagic));
}

#[test]
fn unknown_fields_and_groups_are_skipped() {
    let metadata = field(1, b"a");
    let unknown =
        [vec![15 << 3, 7], field(14, b"x"), vec![13 << 3 | 3, 8, 1, 13 << 3 | 4], vec![12 << 3 | 5, 0, 0, 0, 0]];
    let raw = [unknown.concat(), field(1, &metadata)].concat();
    assert_eq!(to_json(pod(), &raw).unwrap()["metadata"], json!({"name": "a"}));
}

#[test]
fn packed_and_repeated_numbers_are_the_same_list() {
    let context = |groups: Vec<u8>| field(2, &field(14, &groups));
    let packed = context(field(4, &[1, 2, 0x80, 1]));
    let repeated = context(vec![4 << 3, 1, 4 << 3, 2, 4 << 3, 0x80, 1]);
    let groups = |raw: &[u8]| to_json(pod(), raw).unwrap()["spec"]["securityContext"]["supplementalGroups"].clone();
    assert_eq!(groups(&packed), json!([1, 2, 128]));
    assert_eq!(groups(&repeated), json!([1, 2, 128]));
}

#[test]
fn a_message_in_two_pieces_is_merged() {
    let raw = [field(1, &field(1, b"a")), field(1, &field(3, b"ns"))].concat();
    assert_eq!(to_json(pod(), &raw).unwrap()["metadata"], json!({"name": "a", "namespace": "ns"}));
}

#[test]
fn malformed_messages_are_refused() {
    for (raw, expected) in [
        (vec![1 << 3 | 2, 5, 0], ProtoError::Truncated),
        (vec![1 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], ProtoError::Truncated),
        (vec![0xff; 20], ProtoError::Overflow),
        (vec![0, 0], ProtoError::IllegalTag(0)),
        (vec![1 << 3, 1], ProtoError::WireType { field: "metadata".into(), wire: 0 }),
        (vec![9 << 3 | 4], ProtoError::EndOfGroup),
    ] {
        assert_eq!(to_json(pod(), &raw), Err(expected), "{raw:?}");
    }
}

#[test]
fn schemas_nested_without_end_are_refused() {
    let schema = builtin::graph().named(JSON_SCHEMA_PROPS).unwrap();
    let not = schema.field("not").unwrap().number;
    let nested = |depth: usize| (0..depth).fold(Vec::new(), |raw, _| field(not, &raw));
    assert!(to_json(schema, &nested(50)).is_ok());
    assert_eq!(to_json(schema, &nested(10_000)), Err(ProtoError::TooDeep));
    // Pieces of one message go down the same path, each a little further.
    let pieces: Vec<u8> = (1..100).flat_map(nested).collect();
    assert_eq!(to_json(schema, &pieces), Err(ProtoError::TooDeep));
}

proptest! {
    #[test]
    fn no_bytes_panic(raw in any::<Vec<u8>>()) {
        let _ = decode_unknown(&raw);
        let _ = to_json(pod(), &raw);
    }

    #[test]
    fn a_damaged_object_does_not_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let cases: Vec<_> = golden().into_iter().filter(|c| c.proto.is_some()).collect();
        let case = which.get(&cases);
        let mut bytes = STANDARD.decode(case.proto.unwrap()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok((_, raw)) = decode_unknown(&bytes) {
            let _ = to_json(case.at, raw);
        }
    }
}
