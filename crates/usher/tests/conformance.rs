//! docs/conformance.md and docs/elastic-jobs.md name a test for every rule; this checks that there is such a test.

use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the repository").to_owned()
}

/// Whether `text` has a test of this name: a function after `#[test]` or `#[tokio::test...]`, whatever else is between.
fn has_test(text: &str, name: &str) -> bool {
    let mut attribute = false;
    text.lines().map(str::trim).any(|line| {
        let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        let found =
            attribute && function.is_some_and(|rest| rest.strip_prefix(name).is_some_and(|r| r.starts_with('(')));
        attribute =
            line.starts_with("#[test]") || line.starts_with("#[tokio::test") || (attribute && line.starts_with("#["));
        found
    })
}

/// Whether a scenario file has a case whose title begins so.
fn has_case(text: &str, title: &str) -> bool {
    let titles = text.lines().filter_map(|line| line.strip_prefix("# ").or_else(|| line.strip_prefix("== ")));
    titles.into_iter().any(|rest| rest.starts_with(title))
}

#[test]
fn every_rule_names_a_test_that_exists() {
    check("docs/conformance.md", 50);
}

#[test]
fn every_sentence_about_elastic_jobs_names_a_test_that_exists() {
    check("docs/elastic-jobs.md", 40);
}

fn check(path: &str, at_least: usize) {
    let document = std::fs::read_to_string(repository().join(path)).expect(path);
    let first = |line: &str| line.split('|').nth(1).is_some_and(|rule| rule.contains('/'));
    let rules: Vec<_> = document.lines().filter(|line| line.starts_with("| ") && first(line)).collect();
    assert!(rules.len() >= at_least, "only {} rules", rules.len());
    let mut missing = Vec::new();
    for rule in rules {
        let named: Vec<_> = rule.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect();
        if named.is_empty() {
            missing.push(format!("no test: {rule}"));
        }
        for name in named {
            let (file, test) = name.split_once("::").expect("file::test");
            let exists = match std::fs::read_to_string(repository().join(file)) {
                Err(_) => false,
                Ok(text) if file.ends_with(".rs") => has_test(&text, test),
                Ok(text) => has_case(&text, test),
            };
            if !exists {
                missing.push(name.to_string());
            }
        }
    }
    assert!(missing.is_empty(), "{path} names what is not there:\n{}", missing.join("\n"));
}

#[test]
fn a_function_that_is_no_test_is_not_taken_for_one() {
    assert!(has_test("#[tokio::test(start_paused = true)]\nasync fn a() {", "a"));
    assert!(has_test("    #[test]\n    #[cfg(unix)]\n    fn a() {", "a"));
    assert!(!has_test("fn a() {", "a"));
    assert!(!has_test("#[test]\nfn ab() {", "a"));
    assert!(!has_test("#[test]\nfn b() {\nfn a() {", "a"));
}
