//! Reads `testdata/golden.txt`: objects and what Kubernetes' Go types make of them (`tools/schemagen/golden`).

use serde_json::Value;

use crate::builtin;
use crate::graph::At;

pub struct Golden {
    pub line: &'static str,
    pub at: At<'static>,
    pub text: &'static str,
    pub strict: Vec<&'static str>,
    /// The JSON Go writes, or the error.
    pub outcome: Result<Value, &'static str>,
    pub proto: Option<&'static str>,
}

pub fn golden() -> Vec<Golden> {
    let text = include_str!("../testdata/golden.txt");
    text.split("\n\n").filter(|block| !block.trim().is_empty()).map(read).collect()
}

fn read(block: &'static str) -> Golden {
    let find = |key: &str| block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let line = find("object").expect("a block starts with an object");
    let mut words = line.splitn(3, ' ');
    let (gv, kind) = (words.next().unwrap(), words.next().unwrap());
    let (group, version) = gv.split_once('/').unwrap_or(("", gv));
    Golden {
        line,
        at: builtin::kind(group, version, kind).expect("a built-in kind"),
        text: words.next().unwrap(),
        strict: block.lines().filter_map(|line| line.strip_prefix("strict ")).collect(),
        outcome: match find("error") {
            Some(error) => Err(error),
            None => Ok(serde_json::from_str(find("json").unwrap()).unwrap()),
        },
        proto: find("proto"),
    }
}
