//! Replaces what differs between two runs of the same server: uids, revisions,
//! times, ages, generated names, addresses, keys. Everything else stays.

use std::{collections::BTreeMap, sync::LazyLock};

use jiff::{SignedDuration, Timestamp};
use regex::{Captures, Regex};
use serde_json::Value;

pub fn normalise(text: &str) -> Vec<String> {
    let mut text = text.split('\n').map(sort_keys).collect::<Vec<_>>().join("\n");
    for (pattern, replacement) in RULES.iter() {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    text = times(&text);
    text = uids(&text);
    managers(ages(&text))
}

/// Order matters: what is replaced early cannot match later.
static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        // One certificate or a chain of them.
        (r"(?s)-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----(?:\s+-----BEGIN.*?-----END CERTIFICATE-----)*", "<certificates>"),
        (r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}", "<jwt>"),
        // klog: level and date, time, thread, source line
        (r"(?m)^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (\S+):\d+\]", "$1 $2]"),
        (r#"(resourceVersion\\?"?: ?)\\?"?\d+\\?"?"#, "$1<revision>"),
        (r"(Resource Version: +)\d+", "$1<revision>"),
        (r"\b(gen|kube-api-access)-[bcdfghjklmnpqrstvwxz2456789]{5}\b", "$1-<suffix>"),
        (r"\b127\.0\.0\.1:\d+", "<server>"),
        (r"\b10\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "<ip>"),
        (r"(Server Version: v1\.37\.)\S+", "$1<patch>"),
        (r"/tmp/usher-test-\w+", "~"),
        (r"/tmp/(LIVE|MERGED|kubectl-edit)-\d+", "/tmp/$1-<n>"),
        (r"\b[0-9A-F]{64,128}\b", "<hash>"),
    ]
    .map(|(pattern, replacement)| (Regex::new(pattern).expect("a regular expression"), replacement))
    .into()
});

/// The order of keys in a JSON document means nothing; kubectl prints what it gets with `--raw`.
fn sort_keys(line: &str) -> String {
    fn sorted(value: Value) -> Value {
        match value {
            Value::Array(items) => items.into_iter().map(sorted).collect(),
            Value::Object(fields) => {
                let fields: BTreeMap<_, _> = fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
                Value::Object(fields.into_iter().collect())
            }
            other => other,
        }
    }
    match serde_json::from_str(line) {
        Ok(value @ (Value::Array(_) | Value::Object(_))) => sorted(value).to_string(),
        _ => line.to_owned(),
    }
}

/// Times around now; a time that a manifest names is years away and stays. The
/// number of digits of a fraction stays too: Time has none, MicroTime has six.
fn times(text: &str) -> String {
    static RFC_3339: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.(\d+))?(?:Z| \+0000)").expect("a regular expression")
    });
    static RFC_1123: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\w{3}, (\d\d) (\w{3}) (\d{4}) (\d\d:\d\d:\d\d) \+0000").expect("a regular expression")
    });
    let now = Timestamp::now();
    let text = RFC_3339.replace_all(text, |found: &Captures| {
        let time: Option<Timestamp> = found[0].replace(" +0000", "Z").parse().ok();
        match (time, found.get(1)) {
            (Some(time), _) if now.duration_since(time).abs() > SignedDuration::from_hours(48) => found[0].to_owned(),
            (_, Some(_)) if found[0].contains(' ') => "<time>".to_owned(),
            (_, Some(fraction)) => format!("<time.{}>", fraction.len()),
            (_, None) => "<time>".to_owned(),
        }
    });
    let year = now.strftime("%Y").to_string();
    RFC_1123
        .replace_all(&text, |found: &Captures| if found[3] == year { "<date>".to_owned() } else { found[0].to_owned() })
        .into_owned()
}

/// Numbered within one output, so that a reference to another object is still seen to name it.
fn uids(text: &str) -> String {
    static UID: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b").expect("a regular expression")
    });
    let mut seen: Vec<String> = Vec::new();
    UID.replace_all(text, |found: &Captures| {
        let index = seen.iter().position(|uid| *uid == found[0]).unwrap_or_else(|| {
            seen.push(found[0].to_owned());
            seen.len() - 1
        });
        format!("<uid-{}>", index + 1)
    })
    .into_owned()
}

/// Ages in tables, and what depends on their width: the space between columns.
fn ages(text: &str) -> Vec<String> {
    static HEADER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^\s*[A-Z][A-Z() -]*(  +[A-Z][A-Z() -]*)+$|^  Type +Reason +Age ").expect("a regular expression")
    });
    static AGE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(^| )(\d+[smhdy]){1,2}( |$)").expect("a regular expression"));
    static FIELD: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(\s*(?:Age|Duration|Last Schedule Time): +)(\d+[smhdy]){1,2}( ago)?$")
            .expect("a regular expression")
    });
    let mut in_table = false;
    text.lines()
        .map(|line| {
            if HEADER.is_match(line) {
                in_table = true;
            } else if line.is_empty() {
                in_table = false;
            }
            if !in_table {
                return FIELD.replace(line, "$1<age>$3").into_owned();
            }
            let cells = squeeze(line.trim_end());
            AGE.replace_all(&cells, "$1<age>$3").into_owned()
        })
        .collect()
}

/// Owners of fields are sorted by operation, then by time in whole seconds, then
/// by name: which second it was is chance. So here by name within an operation.
fn managers(lines: Vec<String>) -> Vec<String> {
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let mut sorted = Vec::with_capacity(lines.len());
    let mut lines = lines.into_iter().peekable();
    while let Some(line) = lines.next() {
        let list = line.trim_start() == "managedFields:";
        let depth = indentation(&line);
        sorted.push(line);
        let mut entries: Vec<Vec<String>> = Vec::new();
        while let Some(line) =
            lines.next_if(|line| list && (line[depth.min(line.len())..].starts_with("- ") || indentation(line) > depth))
        {
            match entries.last_mut() {
                Some(entry) if indentation(&line) > depth => entry.push(line),
                _ => entries.push(vec![line]),
            }
        }
        let field =
            |entry: &[String], name: &str| entry.iter().find(|line| line.trim_start().starts_with(name)).cloned();
        for same in entries.chunk_by_mut(|a, b| field(a, "operation: ") == field(b, "operation: ")) {
            same.sort_by_cached_key(|entry| (field(entry, "manager: "), field(entry, "subresource: ")));
        }
        sorted.extend(entries.into_iter().flatten());
    }
    sorted
}

/// Makes every run of two or more spaces exactly two, after the indentation.
fn squeeze(line: &str) -> String {
    static GAP: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}").expect("a regular expression"));
    GAP.replace_all(line, "$1  ").into_owned()
}

#[test]
fn what_changes_by_itself_is_replaced_and_nothing_else() {
    let lines = normalise(concat!(
        "NAME    READY   AGE\n",
        "a       0/1     5s\n",
        "\n",
        "every 5s\n",
        "uid: 0b0c7e1c-0000-4000-8000-000000000001 0b0c7e1c-0000-4000-8000-000000000001 0b0c7e1c-0000-4000-8000-000000000002\n",
        "resourceVersion: \"12\"\n",
        "at: 2001-02-03T04:05:06Z\n",
        "https://127.0.0.1:4711/x\n",
        r#"{"b": 1, "a": [{"d": "x", "c": 2}]}"#,
    ));
    let expected = [
        "NAME  READY  AGE",
        "a  0/1  <age>",
        "",
        "every 5s",
        "uid: <uid-1> <uid-1> <uid-2>",
        "resourceVersion: <revision>",
        "at: 2001-02-03T04:05:06Z",
        "https://<server>/x",
        r#"{"a":[{"c":2,"d":"x"}],"b":1}"#,
    ];
    assert_eq!(lines, expected);
    let now = Timestamp::now();
    assert_eq!(normalise(&format!("{now:.0} {now:.6}")), ["<time> <time.6>"]);
}

#[test]
fn owners_are_sorted_within_an_operation() {
    let entry = |manager: &str, operation: &str| {
        format!("  - apiVersion: v1\n    manager: {manager}\n    operation: {operation}\n")
    };
    let yaml = |entries: &[String]| format!("metadata:\n  managedFields:\n{}  name: x\n", entries.concat());
    let [a, b, c] = [entry("z", "Apply"), entry("b", "Update"), entry("a", "Update")];
    assert_eq!(
        normalise(&yaml(&[a.clone(), b.clone(), c.clone()])).join("\n") + "\n",
        yaml(&[a.clone(), c.clone(), b.clone()])
    );
    assert_ne!(normalise(&yaml(&[b.clone(), a.clone(), c.clone()])), normalise(&yaml(&[a, b, c])));
}
