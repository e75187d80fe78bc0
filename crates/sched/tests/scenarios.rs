//! Runs `tests/scenarios/*.txt`: a small world, events, `plan`, `----` and the decisions that are expected.
//!
//! `== name` begins a case and says the rule. `USHER_UPDATE=1` writes what was decided into the files instead of comparing.

mod script;

use std::fmt::Write;

use script::Script;

#[test]
fn scenarios_decide_as_written() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let update = std::env::var_os("USHER_UPDATE").is_some();
    let mut wrong = String::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let actual = run(&text).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        if update {
            std::fs::write(&path, &actual).unwrap();
        } else if actual != text {
            let at = text.lines().zip(actual.lines()).position(|(a, b)| a != b).unwrap_or(0);
            let show = |text: &str| text.lines().skip(at.saturating_sub(12)).take(20).collect::<Vec<_>>().join("\n");
            writeln!(
                wrong,
                "{} line {}:\n--- expected\n{}\n--- decided\n{}\n",
                path.display(),
                at + 1,
                show(&text),
                show(&actual)
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The text with every block of expectations replaced by what is decided.
fn run(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut script = Script::default();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        writeln!(out, "{line}").unwrap();
        if line.starts_with("== ") {
            script = Script::default();
        } else if line == "----" {
            for decision in script.take_decided() {
                writeln!(out, "{decision}").unwrap();
            }
            while lines.peek().is_some_and(|line| !line.is_empty()) {
                lines.next();
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            script.line(line).map_err(|problem| format!("{line}: {problem}"))?;
        }
    }
    Ok(out)
}
