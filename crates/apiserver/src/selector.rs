//! Label and field selectors: parsing as the query string spells them, and matching.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use usher_schema::field::{Errors, Path};

use crate::registry::names;
use crate::status::{ApiError, Result};

/// All requirements must hold; none means everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    /// Also true where the key is absent.
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<LabelSelector> {
        Parser::new(text).parse().map(LabelSelector).map_err(ApiError::bad_request)
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches<S: AsRef<str> + Borrow<str> + Ord>(&self, labels: &BTreeMap<S, S>) -> bool {
        self.0.iter().all(|r| r.matches(labels.get(r.key.as_str()).map(AsRef::as_ref)))
    }

    /// From `metav1.LabelSelector` (webhooks, quotas): `None` matches nothing upstream-wise and is the caller's case.
    pub fn from_object(
        selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
    ) -> Option<LabelSelector> {
        let mut all = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            all.push(Requirement { key: key.clone(), test: Test::In(vec![value.clone()]) });
        }
        for e in selector.match_expressions.iter().flatten() {
            let values = e.values.clone().unwrap_or_default();
            let test = match e.operator.as_str() {
                "In" => Test::In(values),
                "NotIn" => Test::NotIn(values),
                "Exists" => Test::Exists,
                "DoesNotExist" => Test::Absent,
                _ => return None,
            };
            all.push(Requirement { key: e.key.clone(), test });
        }
        Some(LabelSelector(all))
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
            Test::NotIn(values) => value.is_none_or(|v| !values.iter().any(|x| x == v)),
            Test::Greater(than) => number().is_some_and(|v| v > *than),
            Test::Less(than) => number().is_some_and(|v| v < *than),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// One of `! = == != > < , ( )`.
    Sign(&'static str),
    Bad(String),
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(w) | Token::Bad(w) => w,
            Token::Sign(s) => s,
            Token::End => "",
        }
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

const SIGNS: [&str; 9] = ["!", "=", "==", "!=", ">", "<", ",", "(", ")"];

impl Parser {
    fn new(text: &str) -> Parser {
        let mut tokens = Vec::new();
        let mut rest = text;
        loop {
            rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
            let is_sign = |c: char| "=!(),><".contains(c);
            match rest.chars().next() {
                None => break,
                Some(c) if is_sign(c) => {
                    let run = rest.find(|c| !is_sign(c)).unwrap_or(rest.len());
                    // The longest known sign at the start: signs are one or two characters.
                    let sign = (1..=run.min(2)).rev().find_map(|n| SIGNS.iter().find(|s| **s == &rest[..n]));
                    match sign {
                        Some(sign) => {
                            tokens.push(Token::Sign(sign));
                            rest = &rest[sign.len()..];
                        }
                        None => {
                            tokens.push(Token::Bad(format!("error expected: keyword found '{}'", &rest[..run])));
                            rest = &rest[run..];
                        }
                    }
                }
                Some(_) => {
                    let end = rest.find(|c: char| is_sign(c) || " \t\r\n".contains(c)).unwrap_or(rest.len());
                    tokens.push(Token::Word(rest[..end].to_owned()));
                    rest = &rest[end..];
                }
            }
        }
        tokens.push(Token::End);
        Parser { tokens, at: 0 }
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn parse(mut self) -> Result<Vec<Requirement>, String> {
        let mut all: Vec<Requirement> = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Sign("!") => {
                    let r = self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?;
                    all.push(r);
                    match self.take() {
                        Token::End => break,
                        Token::Sign(",") => match self.peek() {
                            Token::Word(_) | Token::Sign("!") => {}
                            other => return Err(format!("found '{}', expected: identifier after ','", other.text())),
                        },
                        other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
                    }
                }
                Token::End => break,
                other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.text())),
            }
        }
        all.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.take();
        let negated = token == Token::Sign("!");
        if negated {
            token = self.take();
        }
        let Token::Word(key) = token else { return Err(format!("found '{}', expected: identifier", token.text())) };
        let problems = names::qualified(&key);
        if !problems.is_empty() {
            return Err(invalid(&Path::default(), &key, &problems));
        }
        if negated {
            return Ok(Requirement { key, test: Test::Absent });
        }
        if matches!(self.peek(), Token::End | Token::Sign(",")) {
            return Ok(Requirement { key, test: Test::Exists });
        }
        let operator = self.take();
        let test = match &operator {
            Token::Word(w) if w == "in" => Test::In(self.values()?),
            Token::Word(w) if w == "notin" => Test::NotIn(self.values()?),
            Token::Sign("=" | "==") => Test::In(vec![self.exact()?]),
            Token::Sign("!=") => Test::NotIn(vec![self.exact()?]),
            Token::Sign(sign @ (">" | "<")) => {
                let text = self.exact()?;
                let Ok(n) = text.parse() else {
                    return Err(format!(
                        "values[0]: Invalid value: {text:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                    ));
                };
                if *sign == ">" { Test::Greater(n) } else { Test::Less(n) }
            }
            other => {
                return Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.text()));
            }
        };
        if let Test::In(values) | Test::NotIn(values) = &test {
            for (i, value) in values.iter().enumerate() {
                let problems = names::label_value(value);
                if !problems.is_empty() {
                    return Err(invalid(&Path::new("values").index(i).key(&key), value, &problems));
                }
            }
        }
        Ok(Requirement { key, test })
    }

    fn exact(&mut self) -> Result<String, String> {
        match self.peek() {
            Token::End | Token::Sign(",") => Ok(String::new()),
            _ => match self.take() {
                Token::Word(w) => Ok(w),
                other => Err(format!("found '{}', expected: identifier", other.text())),
            },
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.take();
        if open != Token::Sign("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        let mut values: Vec<String> = Vec::new();
        // An element may be empty: "(a,)" is {"a", ""}.
        let mut current = String::new();
        loop {
            match self.take() {
                Token::Word(w) if current.is_empty() => current = w,
                Token::Sign(",") => values.push(std::mem::take(&mut current)),
                Token::Sign(")") => {
                    values.push(current);
                    break;
                }
                other if current.is_empty() => {
                    return Err(format!("found '{}', expected: ',', ')' or identifier", other.text()));
                }
                other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
            }
        }
        values.sort();
        values.dedup();
        Ok(values)
    }
}

fn invalid(path: &Path, value: &str, problems: &[String]) -> String {
    let mut errors = Errors::new();
    errors.invalid(path, value, problems.join("; "));
    errors.to_string()
}

/// Terms over `metadata.name`, `status.phase` and the like; all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    pub field: String,
    pub equal: bool,
    pub value: String,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<FieldSelector> {
        let mut terms = Vec::new();
        for part in split_terms(text).into_iter().filter(|p| !p.is_empty()) {
            let Some((field, equal, value)) = split_term(part) else {
                let why = format!("invalid selector: '{text}'; can't understand '{part}'");
                return Err(ApiError::bad_request(why));
            };
            terms.push(FieldTerm { field: field.to_owned(), equal, value: unescape(value)? });
        }
        Ok(FieldSelector(terms))
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    pub fn terms(&self) -> &[FieldTerm] {
        &self.0
    }

    /// The value a field must have, if the selector fixes one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|t| t.equal && t.field == field).map(|t| t.value.as_str())
    }

    pub fn require(&mut self, field: &str, value: &str) {
        self.0.push(FieldTerm { field: field.to_owned(), equal: true, value: value.to_owned() });
    }

    pub fn matches(&self, value_of: impl Fn(&str) -> String) -> bool {
        self.0.iter().all(|t| (value_of(&t.field) == t.value) == t.equal)
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    term.char_indices().find_map(|(i, _)| {
        let rest = &term[i..];
        [("!=", false), ("==", true), ("=", true)]
            .into_iter()
            .find_map(|(sign, equal)| rest.strip_prefix(sign).map(|value| (&term[..i], equal, value)))
    })
}

fn unescape(value: &str) -> Result<String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let sequence = other.map_or_else(|| "\\".to_owned(), |c| format!("\\{c}"));
                    return Err(ApiError::bad_request(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    )));
                }
            },
            ',' | '=' => {
                return Err(ApiError::bad_request(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn every_label_operator_selects_what_kubernetes_says() {
        let l = labels(&[("app", "web"), ("tier", ""), ("n", "5")]);
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!gone", true),
            ("app=web", true),
            ("app==web,n", true),
            ("app!=web", false),
            ("gone!=x", true),
            ("app in (web, api)", true),
            ("app notin (web)", false),
            ("gone notin (web)", true),
            ("tier=", true),
            ("tier in (,x)", true),
            ("n>4", true),
            ("n<5", false),
            ("in=x", false),
        ] {
            assert_eq!(LabelSelector::parse(selector).unwrap().matches(&l), expected, "{selector}");
        }
    }

    #[test]
    fn a_bad_label_selector_is_a_bad_request_that_says_where() {
        for (selector, message) in [
            ("app=web,", "found '', expected: identifier after ','"),
            ("app in web", "unable to parse requirement: found 'web' expected: '('"),
            ("=x", "found '=', expected: !, identifier, or 'end of string'"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ] {
            let error = LabelSelector::parse(selector).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (400, message), "{selector}");
        }
    }

    #[test]
    fn field_selectors_know_equality_inequality_and_escapes() {
        let s = FieldSelector::parse(r"metadata.name=a\,b,status.phase!=Running").unwrap();
        assert_eq!(s.exact("metadata.name"), Some("a,b"));
        let value = |f: &str| if f == "metadata.name" { "a,b".to_owned() } else { "Pending".to_owned() };
        assert!(s.matches(value));
        assert!(!s.matches(|_| "Running".to_owned()));
        assert_eq!(FieldSelector::parse("nonsense").unwrap_err().code, 400);
        assert_eq!(FieldSelector::parse(r"a=b\c").unwrap_err().code, 400);
    }
}
