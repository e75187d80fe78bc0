//! `accepted.txt`: the differences that are meant, each with its reason.
//!
//! ```text
//! == discovery: kubectl api-resources
//! why: Usher serves the kinds of batch work, not all of them.
//! - *
//! ```
//!
//! The lines after the reason are those that differ, in their order; `<*>` in a
//! line stands for anything, and the line `- *` for any lines, at least one, that
//! only the real server prints.

use std::{fs, path::Path};

use regex::Regex;

use crate::diff::Edit;

pub struct Entry {
    pub section: String,
    pub command: String,
    changes: Vec<Edit>,
    /// More lines on the left side are accepted wherever they are.
    left_may_have_more: bool,
}

impl Entry {
    pub fn covers(&self, edits: &[Edit]) -> bool {
        let changes = edits.iter().filter(|edit| !matches!(edit, Edit::Same(_)));
        let (listed, more): (Vec<&Edit>, Vec<&Edit>) = changes.partition(|edit| {
            !self.left_may_have_more
                || !matches!(edit, Edit::Left(_))
                || self.changes.iter().any(|change| matches(change, edit))
        });
        more.is_empty() != self.left_may_have_more
            && listed.len() == self.changes.len()
            && self.changes.iter().zip(listed).all(|(change, edit)| matches(change, edit))
    }
}

fn matches(listed: &Edit, actual: &Edit) -> bool {
    match (listed, actual) {
        (Edit::Left(listed), Edit::Left(actual)) | (Edit::Right(listed), Edit::Right(actual)) => {
            let parts: Vec<_> = listed.split("<*>").map(regex::escape).collect();
            Regex::new(&format!("^{}$", parts.join(".*"))).is_ok_and(|pattern| pattern.is_match(actual))
        }
        _ => false,
    }
}

pub fn load(dir: &Path) -> Vec<Entry> {
    parse(&fs::read_to_string(dir.join("accepted.txt")).expect("read accepted.txt"))
}

fn parse(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut reasoned = true;
    for line in text.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("== ") {
            assert!(reasoned, "accepted.txt: no reason before {title:?}");
            let (section, command) = title.split_once(": ").expect("accepted.txt: section and command");
            let (section, command) = (section.to_owned(), command.to_owned());
            entries.push(Entry { section, command, changes: Vec::new(), left_may_have_more: false });
            reasoned = false;
            continue;
        }
        let entry = entries.last_mut().expect("accepted.txt begins with a title");
        match line.split_at_checked(2) {
            Some(("wh", _)) => reasoned = true,
            Some(("- ", "*")) => entry.left_may_have_more = true,
            Some(("- ", line)) => entry.changes.push(Edit::Left(line.to_owned())),
            Some(("+ ", line)) => entry.changes.push(Edit::Right(line.to_owned())),
            _ => panic!("accepted.txt: what is {line:?}?"),
        }
    }
    assert!(reasoned, "accepted.txt: no reason for the last entry");
    entries
}

#[test]
fn only_the_listed_lines_are_covered() {
    let entries = parse("== a: kubectl x\nwhy: so\n- one {<*>}: x\n+ two\n\n== a: kubectl y\nwhy: so\n- *\n+ two\n");
    let (left, right) = (|text: &str| Edit::Left(text.to_owned()), |text: &str| Edit::Right(text.to_owned()));
    let one = left("one {something}: x");
    assert!(entries[0].covers(&[one.clone(), Edit::Same("x".to_owned()), right("two")]));
    assert!(!entries[0].covers(&[left("one {something}: y"), right("two")]));
    assert!(!entries[0].covers(std::slice::from_ref(&one)));
    assert!(!entries[0].covers(&[one, right("two"), right("three")]));
    assert!(entries[1].covers(&[left("any"), right("two"), left("more")]));
    assert!(!entries[1].covers(&[right("two")]), "a wildcard that nothing needs is stale");
    assert!(!entries[1].covers(&[left("any"), right("two"), right("three")]));
}
