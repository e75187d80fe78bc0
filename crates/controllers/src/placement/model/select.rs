//! Selectors of labels and of nodes, parsed. A selector that cannot be parsed selects nothing.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl Operator {
    pub fn parse(text: &str) -> Option<Operator> {
        Some(match text {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: BTreeSet<String>,
}

impl Requirement {
    pub fn equals(key: &str, value: &str) -> Requirement {
        Requirement { key: key.to_string(), operator: Operator::In, values: [value.to_string()].into() }
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt | Operator::Lt => self.compare(value),
        }
    }

    fn compare(&self, value: Option<&String>) -> bool {
        let number = |text: &String| text.parse::<i64>().ok();
        let (Some(has), Some(bound)) = (value.and_then(number), self.values.first().and_then(number)) else {
            return false;
        };
        if self.operator == Operator::Gt { has > bound } else { has < bound }
    }
}

/// All requirements together. Without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

/// One alternative of a node selector. `None` in its place is a term that matches no node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTerm {
    pub labels: Selector,
    /// Names that the node must have (`true`) or must not have.
    pub names: Vec<(bool, String)>,
}

impl NodeTerm {
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.labels.matches(labels) && self.names.iter().all(|(equal, wanted)| (name == wanted) == *equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn requirements_match_as_label_selectors_do() {
        let node = labels(&[("zone", "a"), ("gen", "7"), ("word", "x")]);
        let cases = [
            ("zone", "In", &["a", "b"][..], true),
            ("zone", "In", &["b"], false),
            ("rack", "In", &["a"], false),
            ("zone", "NotIn", &["a"], false),
            ("rack", "NotIn", &["a"], true),
            ("zone", "Exists", &[], true),
            ("rack", "Exists", &[], false),
            ("rack", "DoesNotExist", &[], true),
            ("zone", "DoesNotExist", &[], false),
            ("gen", "Gt", &["6"], true),
            ("gen", "Gt", &["7"], false),
            ("gen", "Lt", &["8"], true),
            ("word", "Gt", &["1"], false),
            ("rack", "Lt", &["1"], false),
        ];
        for (key, operator, values, expected) in cases {
            let requirement = Requirement {
                key: key.to_string(),
                operator: Operator::parse(operator).unwrap(),
                values: values.iter().map(|v| v.to_string()).collect(),
            };
            assert_eq!(requirement.matches(&node), expected, "{key} {operator} {values:?}");
        }
    }
}
