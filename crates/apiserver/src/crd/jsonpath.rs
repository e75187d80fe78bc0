//! The JSONPath of printer columns and selectable fields: client-go's dialect, on JSON values.
//!
//! `.spec.x`, `.metadata.labels.a\.b`, `['a']`, `[0]`, `[-1:]`, `[*]`, `[0,2]`, `[?(@.type=="Ready")].status`, `..name`.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

/// How deeply filters and unions may nest in one path.
const MAX_DEPTH: usize = 8;

/// A compiled path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Node>);

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Field(String),
    /// `[*]` is a slice; this is `.*`.
    Wildcard,
    Recursive,
    Slice(Slice),
    Filter {
        left: Vec<Node>,
        op: Op,
        right: Vec<Node>,
    },
    Union(Vec<Vec<Node>>),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Slice {
    start: Option<i64>,
    end: Option<i64>,
    /// `[3]` was written, so `end` is computed.
    single: bool,
    step: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Exists,
    Less,
    Greater,
    Equal,
    NotEqual,
    LessEqual,
    GreaterEqual,
}

/// A path that cannot be parsed, or not be followed in this value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

fn invalid<T>(why: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid(why.into()))
}

impl JsonPath {
    /// Parses a path as it is written in a CustomResourceDefinition, without braces.
    pub fn parse(path: &str) -> Result<JsonPath, Invalid> {
        parse(path, 0).map(JsonPath)
    }

    /// Everything the path points at; missing keys are no error, an index out of bounds is.
    pub fn find<'v>(&self, value: &'v Value) -> Result<Vec<Cow<'v, Value>>, Invalid> {
        eval(&self.0, vec![Cow::Borrowed(value)])
    }

    /// The first thing it points at, if any.
    pub fn first<'v>(&self, value: &'v Value) -> Option<Cow<'v, Value>> {
        self.find(value).ok()?.into_iter().next()
    }
}

fn parse(path: &str, depth: usize) -> Result<Vec<Node>, Invalid> {
    if depth > MAX_DEPTH {
        return invalid("nested too deeply");
    }
    let mut nodes = Vec::new();
    let mut rest = path;
    while let Some(c) = rest.chars().next() {
        if let Some(inner) = rest.strip_prefix("[?(") {
            rest = filter(inner, depth, &mut nodes)?;
        } else if let Some(after) = rest.strip_prefix("..") {
            if nodes.last() == Some(&Node::Recursive) {
                return invalid("invalid multiple recursive descent");
            }
            nodes.push(Node::Recursive);
            rest = after;
            if rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                rest = field(rest, &mut nodes);
            }
        } else {
            let after = &rest[c.len_utf8()..];
            rest = match c {
                ' ' | '@' | '$' => after,
                '.' => field(after, &mut nodes),
                '[' => array(after, depth, &mut nodes)?,
                '"' | '\'' => quoted(after, c, &mut nodes)?,
                '+' | '-' | '0'..='9' => number(rest, &mut nodes)?,
                c if c.is_alphanumeric() || c == '_' => word(rest, &mut nodes)?,
                c => return invalid(format!("unrecognized character in action: {c:?}")),
            };
        }
    }
    Ok(nodes)
}

fn is_terminator(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn field<'p>(rest: &'p str, nodes: &mut Vec<Node>) -> &'p str {
    let mut end = rest.len();
    let mut chars = rest.char_indices();
    while let Some((i, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if is_terminator(c) {
            end = i;
            break;
        }
    }
    let name = &rest[..end];
    nodes.push(if name == "*" { Node::Wildcard } else { Node::Field(name.replace('\\', "")) });
    &rest[end..]
}

fn word<'p>(rest: &'p str, nodes: &mut Vec<Node>) -> Result<&'p str, Invalid> {
    let end = rest.find(is_terminator).unwrap_or(rest.len());
    match &rest[..end] {
        "true" => nodes.push(Node::Literal(true.into())),
        "false" => nodes.push(Node::Literal(false.into())),
        other => return invalid(format!("unrecognized identifier {other}")),
    }
    Ok(&rest[end..])
}

fn number<'p>(rest: &'p str, nodes: &mut Vec<Node>) -> Result<&'p str, Invalid> {
    let sign = usize::from(rest.starts_with(['+', '-']));
    let end = rest[sign..].find(|c: char| c != '.' && !c.is_ascii_digit()).map_or(rest.len(), |i| i + sign);
    let text = rest[..end].trim_start_matches('+');
    let value = match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(int), _) => Value::from(int),
        (_, Ok(float)) => Value::from(float),
        _ => return invalid(format!("cannot parse number {}", &rest[..end])),
    };
    nodes.push(Node::Literal(value));
    Ok(&rest[end..])
}

fn quoted<'p>(rest: &'p str, quote: char, nodes: &mut Vec<Node>) -> Result<&'p str, Invalid> {
    let mut out = String::new();
    let mut chars = rest.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, 't')) => out.push('\t'),
                Some((_, c)) => out.push(c),
                None => break,
            },
            '\n' => break,
            c if c == quote => {
                nodes.push(Node::Literal(out.into()));
                return Ok(&rest[i + 1..]);
            }
            c => out.push(c),
        }
    }
    invalid("unterminated quoted string")
}

fn array<'p>(rest: &'p str, depth: usize, nodes: &mut Vec<Node>) -> Result<&'p str, Invalid> {
    let Some(end) = rest.find([']', '\n']).filter(|i| rest[*i..].starts_with(']')) else {
        return invalid("unterminated array");
    };
    let (text, rest) = (&rest[..end], &rest[end + 1..]);
    if text.contains(',') {
        let parts = text.split(',').map(|part| parse(&format!("[{}]", part.trim_matches(' ')), depth + 1));
        nodes.push(Node::Union(parts.collect::<Result<_, _>>()?));
    } else if let Some(key) = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')).filter(|k| !k.contains('\'')) {
        nodes.extend(parse(&format!(".{key}"), depth + 1)?);
    } else {
        nodes.push(Node::Slice(slice(if text == "*" { ":" } else { text })?));
    }
    Ok(rest)
}

fn slice(text: &str) -> Result<Slice, Invalid> {
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() > 3 || text.is_empty() {
        return invalid(format!("invalid array index {text}"));
    }
    let number = |part: &&str| -> Result<Option<i64>, Invalid> {
        match *part {
            "" => Ok(None),
            // Far beyond any list, and far from overflow.
            n => {
                n.parse::<i32>().map(|n| Some(i64::from(n))).map_err(|_| Invalid(format!("invalid array index {text}")))
            }
        }
    };
    let numbers = parts.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let at = |i: usize| numbers.get(i).copied().flatten();
    let single = parts.len() == 1;
    let end = if single { Some(at(0).unwrap_or(0) + 1) } else { at(1) };
    Ok(Slice { start: at(0), end, single, step: at(2) })
}

fn filter<'p>(rest: &'p str, depth: usize, nodes: &mut Vec<Node>) -> Result<&'p str, Invalid> {
    let mut quote = None;
    let mut closed = None;
    let mut before = ' ';
    for (i, c) in rest.char_indices() {
        match (c, quote) {
            ('\n', _) => break,
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(q)) if c == q && before != '\\' => quote = None,
            (')', None) => {
                closed = Some(i);
                break;
            }
            _ => {}
        }
        before = c;
    }
    let Some(end) = closed else { return invalid("unterminated filter") };
    let Some(after) = rest[end + 1..].strip_prefix(']') else { return invalid("unclosed array expect ]") };
    let text = &rest[..end];
    let node = match split_comparison(text) {
        None => Node::Filter { left: parse(text, depth + 1)?, op: Op::Exists, right: Vec::new() },
        Some((left, op, right)) => {
            let op = match op {
                "<" => Op::Less,
                ">" => Op::Greater,
                "==" => Op::Equal,
                "!=" => Op::NotEqual,
                "<=" => Op::LessEqual,
                ">=" => Op::GreaterEqual,
                other => return invalid(format!("unrecognized filter operator {other}")),
            };
            Node::Filter { left: parse(left, depth + 1)?, op, right: parse(right, depth + 1)? }
        }
    };
    nodes.push(node);
    Ok(after)
}

fn split_comparison(text: &str) -> Option<(&str, &str, &str)> {
    let is_op = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let start = text.find(is_op).filter(|i| *i > 0)?;
    let end = text[start..].find(|c| !is_op(c)).map(|i| i + start)?;
    Some((&text[..start], &text[start..end], &text[end..]))
}

type Found<'v> = Vec<Cow<'v, Value>>;

fn eval<'v>(nodes: &[Node], mut input: Found<'v>) -> Result<Found<'v>, Invalid> {
    for node in nodes {
        input = step(node, input)?;
    }
    Ok(input)
}

fn step<'v>(node: &Node, input: Found<'v>) -> Result<Found<'v>, Invalid> {
    let mut out = Vec::new();
    match node {
        Node::Literal(value) => return Ok(input.iter().map(|_| Cow::Owned(value.clone())).collect()),
        Node::Union(parts) => {
            for part in parts {
                out.extend(eval(part, input.clone())?);
            }
        }
        Node::Field(name) => {
            for value in input {
                out.extend(child(value, name));
            }
        }
        Node::Wildcard => input.into_iter().for_each(|value| out.extend(children(value))),
        Node::Recursive => input.into_iter().for_each(|value| descend(value, &mut out)),
        Node::Slice(slice) => {
            for value in input.into_iter().filter(|v| !v.is_null()) {
                let Value::Array(list) = value.as_ref() else { return invalid("not an array or slice") };
                let picked = pick(*slice, list.len())?;
                out.extend(picked.filter_map(|i| item(&value, i)));
            }
        }
        Node::Filter { left, op, right } => {
            for value in input {
                let Value::Array(list) = value.as_ref() else {
                    return invalid("not an array or slice and cannot be filtered");
                };
                for i in 0..list.len() {
                    if let Some(item) = item(&value, i)
                        && passes(&item, left, *op, right)?
                    {
                        out.push(item);
                    }
                }
            }
        }
    }
    Ok(out)
}

fn child<'v>(value: Cow<'v, Value>, name: &str) -> Option<Cow<'v, Value>> {
    match value {
        Cow::Borrowed(value) => value.as_object()?.get(name).map(Cow::Borrowed),
        Cow::Owned(value) => value.as_object()?.get(name).cloned().map(Cow::Owned),
    }
}

fn item<'v>(list: &Cow<'v, Value>, i: usize) -> Option<Cow<'v, Value>> {
    match list {
        Cow::Borrowed(value) => value.as_array()?.get(i).map(Cow::Borrowed),
        Cow::Owned(value) => value.as_array()?.get(i).cloned().map(Cow::Owned),
    }
}

fn children(value: Cow<'_, Value>) -> Vec<Cow<'_, Value>> {
    match value {
        Cow::Borrowed(Value::Object(map)) => map.values().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Array(list)) => list.iter().map(Cow::Borrowed).collect(),
        Cow::Owned(Value::Object(map)) => map.into_iter().map(|(_, v)| Cow::Owned(v)).collect(),
        Cow::Owned(Value::Array(list)) => list.into_iter().map(Cow::Owned).collect(),
        _ => Vec::new(),
    }
}

/// A value and everything below it that has children, outermost first.
fn descend<'v>(value: Cow<'v, Value>, out: &mut Found<'v>) {
    let below = children(value.clone());
    if !below.is_empty() {
        out.push(value);
        below.into_iter().for_each(|child| descend(child, out));
    }
}

fn pick(slice: Slice, len: usize) -> Result<impl Iterator<Item = usize>, Invalid> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let mut start = slice.start.unwrap_or(0);
    if start < 0 {
        start += len;
    }
    let mut end = slice.end.unwrap_or(len);
    if end < 0 || end == 0 && slice.single {
        end += len;
    }
    let step = slice.step.unwrap_or(1);
    if step <= 0 {
        return invalid("step must be > 0");
    }
    if end != start {
        if start >= len || start < 0 {
            return invalid(format!("array index out of bounds: index {start}, length {len}"));
        }
        if end > len || end < 0 {
            return invalid(format!("array index out of bounds: index {}, length {len}", end - 1));
        }
        if start > end {
            return invalid(format!("starting index {start} is greater than ending index {end}"));
        }
    }
    let indices = (start..end).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    Ok(indices.filter_map(|i| usize::try_from(i).ok()))
}

fn passes(item: &Value, left: &[Node], op: Op, right: &[Node]) -> Result<bool, Invalid> {
    let side = |nodes| eval(nodes, vec![Cow::Borrowed(item)]);
    if op == Op::Exists {
        return Ok(side(left).is_ok_and(|found| !found.is_empty()));
    }
    let (left, right) = (side(left)?, side(right)?);
    let ([left], [right]) = (left.as_slice(), right.as_slice()) else {
        if left.is_empty() || right.is_empty() {
            return Ok(false);
        }
        return invalid("can only compare one element at a time");
    };
    let order = match (left.as_ref(), right.as_ref()) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::Bool(a), Value::Bool(b)) => match op {
            Op::Equal | Op::NotEqual => Some(a.cmp(b)),
            _ => None,
        },
        _ => None,
    };
    let Some(order) = order else { return invalid("incompatible types for comparison") };
    Ok(match op {
        Op::Less => order == Ordering::Less,
        Op::Greater => order == Ordering::Greater,
        Op::Equal => order == Ordering::Equal,
        Op::NotEqual => order != Ordering::Equal,
        Op::LessEqual => order != Ordering::Greater,
        Op::GreaterEqual => order != Ordering::Less,
        Op::Exists => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(path: &str, value: &Value) -> Value {
        match JsonPath::parse(path).and_then(|p| p.find(value).map(|f| f.into_iter().map(Cow::into_owned).collect())) {
            Ok(list) => Value::Array(list),
            Err(error) => error.to_string().into(),
        }
    }

    #[test]
    fn paths_are_followed_as_client_go_follows_them() {
        let value = json!({
            "spec": {"x": 1, "list": ["a", "b", "c"], "empty": []},
            "metadata": {"labels": {"a.b/c": "dotted", "plain": "p"}},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 1}, {"type": "Synced (x)", "status": "False", "n": 2}]},
        });
        let table = [
            (".spec.x", json!([1])),
            (".spec.nope.deeper", json!([])),
            (r".metadata.labels.a\.b/c", json!(["dotted"])),
            (".metadata.labels['plain']", json!(["p"])),
            (r".metadata.labels['a\.b/c']", json!(["dotted"])),
            (".spec.list[0]", json!(["a"])),
            (".spec.list[-1]", json!(["c"])),
            (".spec.list[-1:]", json!(["c"])),
            (".spec.list[0:2]", json!(["a", "b"])),
            (".spec.list[::2]", json!(["a", "c"])),
            (".spec.list[*]", json!(["a", "b", "c"])),
            (".spec.list[0,2]", json!(["a", "c"])),
            (".spec.list[7]", json!("array index out of bounds: index 7, length 3")),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!(["True"])),
            (".status.conditions[?(@.type=='Synced (x)')].status", json!(["False"])),
            (".status.conditions[?(@.n>1)].type", json!(["Synced (x)"])),
            (".status.conditions[?(@.nope)].type", json!([])),
            (".status.conditions[*].type", json!(["Ready", "Synced (x)"])),
            (".spec.x[0]", json!("not an array or slice")),
            ("..type", json!(["Ready", "Synced (x)"])),
            (".spec.*", json!([[], ["a", "b", "c"], 1])),
        ];
        for (path, expected) in table {
            assert_eq!(found(path, &value), expected, "{path}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_never_panics() {
        for path in [
            "[",
            "[?(",
            "[?(@.a",
            ".a[b]",
            "..",
            "....a",
            "'x",
            "[99999999999999999999]",
            "{",
            "\u{0}",
            ".a[1:2:3:4]",
            "[?(@.a~b)]",
        ] {
            if let Ok(path) = JsonPath::parse(path) {
                let _ = path.find(&json!({"a": [1, {"b": null}]}));
            }
        }
        assert!(JsonPath::parse(".a[b]").is_err());
        assert!(JsonPath::parse(&"[?(".repeat(1000)).is_err());
    }
}
