use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::builtin;
use crate::golden::golden;
use crate::graph::At;

fn job() -> At<'static> {
    builtin::kind("batch", "v1", "Job").unwrap()
}

#[test]
fn objects_and_errors_are_what_go_makes_of_them() {
    let mut seen = 0;
    for case in golden() {
        let (mut value, mut strict) = parse(case.text.as_bytes()).unwrap();
        let outcome = decode(case.at, &mut value, &mut strict);
        match (outcome, case.outcome) {
            (Ok(()), Ok(expected)) => {
                encode(case.at, &mut value);
                assert_eq!(value, expected, "{}", case.line);
                let strict: Vec<String> = strict.iter().map(ToString::to_string).collect();
                assert_eq!(strict, case.strict, "{}", case.line);
            }
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected, "{}", case.line),
            (ours, gos) => panic!("{}: Go says {gos:?}, we say {ours:?}", case.line),
        }
        seen += 1;
    }
    assert!(seen > 50, "only {seen} cases were read");
}

#[test]
fn what_was_written_is_read_back_unchanged() {
    for case in golden() {
        let Ok(mut value) = case.outcome else { continue };
        let before = value.clone();
        let mut strict = Vec::new();
        decode(case.at, &mut value, &mut strict).unwrap();
        encode(case.at, &mut value);
        assert_eq!((value, strict), (before, vec![]), "{}", case.line);
    }
}

#[test]
fn the_last_of_repeated_keys_wins_and_each_is_reported_once() {
    let (value, problems) = parse(br#"{"a":[{"b":1,"b":2,"b":3}],"a":[{"b":4}]}"#).unwrap();
    assert_eq!(value, json!({"a": [{"b": 4}]}));
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, ["duplicate field \"a[0].b\"", "duplicate field \"a\""]);
}

#[test]
fn syntax_errors_are_worded_as_go_does() {
    for (text, expected) in [
        ("", "unexpected end of JSON input"),
        (r#"{"a":"#, "unexpected end of JSON input"),
        ("hello", "invalid character 'h' looking for beginning of value"),
        ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
        (r#"{"a" 1}"#, "invalid character '1' after object key"),
        (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("{} x", "invalid character 'x' after top-level value"),
    ] {
        assert_eq!(parse(text.as_bytes()).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let (deepest, _) = parse(nested(MAX_DEPTH).as_bytes()).unwrap();
    assert!(within_depth(&deepest, MAX_DEPTH) && !within_depth(&deepest, MAX_DEPTH - 1));
    assert_eq!(parse(nested(MAX_DEPTH + 1).as_bytes()), Err(ParseError::TooDeep));
    assert_eq!(parse(nested(1_000_000).as_bytes()), Err(ParseError::TooDeep));
}

#[test]
fn numbers_are_kept_as_go_keeps_them() {
    let (mut value, _) = parse(br#"[1, -1, 9223372036854775807, 18446744073709551615, 1.0, 1e3, 0.5]"#).unwrap();
    normalize_numbers(&mut value);
    assert_eq!(value, json!([1, -1, 9223372036854775807i64, 18446744073709551615f64, 1, 1000, 0.5]));
}

#[test]
fn broken_utf8_becomes_replacement_characters() {
    assert_eq!(parse(b"\"a\xffb\"").unwrap().0, json!("a\u{fffd}b"));
}

#[test]
fn at_most_a_hundred_problems_are_reported() {
    let fields: Vec<String> = (0..500).map(|i| format!("\"f{i}\":0")).collect();
    let (mut value, mut strict) = parse(format!("{{{}}}", fields.join(",")).as_bytes()).unwrap();
    decode(job(), &mut value, &mut strict).unwrap();
    assert_eq!((value, strict.len()), (json!({}), 100));
}

fn any_json() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec!["metadata", "spec", "name", "template", "containers", "status", "ports", "x"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..6)
                .prop_map(|pairs| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Value>()),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<Vec<u8>>()) {
        let _ = parse(&text);
    }

    #[test]
    fn no_value_panics_and_reading_is_stable(mut value in any_json()) {
        if decode(job(), &mut value, &mut Vec::new()).is_ok() {
            encode(job(), &mut value);
            let once = value.clone();
            prop_assert!(decode(job(), &mut value, &mut Vec::new()).is_ok());
            encode(job(), &mut value);
            prop_assert_eq!(value, once);
        }
    }

    #[test]
    fn no_time_panics(text in "[-0-9T:Z+., ]{0,40}") {
        let _ = time::whole_seconds(&text);
        let _ = time::micro_time(&text);
    }
}
