//! Checking an object against its schema, in the order and the words of kube-apiserver.
//!
//! Upstream validates with a general JSON Schema validator and translates its findings; both the findings' sentences and
//! the translation show in the answer, so [`Finding`] keeps them apart. `matched` imitates how that validator picks the
//! branch of an `anyOf` or `oneOf` whose errors it reports: the one with the most checks passed.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use super::formats::Format;
use super::ratchet::Pair;
use super::schema::{Additional, At, Props, Structural, Ty};
use super::{embedded, lists, rules};
use crate::field::{Error, Errors, Kind, Path, quote};

/// Errors reported for one object at most: a hostile one could otherwise make millions.
const MAX_FINDINGS: usize = 500;

const UNCHECKED_RULES: &str = "some validation rules were not checked because the object was invalid; correct the existing \
                               errors to complete validation";

impl Structural {
    /// Checks a new object, or an update when `old` is given: schema, embedded resources, list types, then the rules.
    pub fn validate(&self, value: &Value, old: Option<&Value>, errors: &mut Errors) {
        self.validate_with(value, old, &mut |_| {}, errors);
    }

    /// As [`Structural::validate`], with something else to check before list types and rules.
    pub fn validate_with(
        &self,
        value: &Value,
        old: Option<&Value>,
        between: &mut dyn FnMut(&mut Errors),
        errors: &mut Errors,
    ) {
        let mut found = Errors::new();
        let pair = old.map(|old| Pair { new: value, old, props: &self.root });
        let outcome = node(&self.root, value, pair, &At::Root, true);
        translate(outcome, &Path::default(), &mut found);
        between(&mut found);
        embedded::validate(value, &self.root, &Path::default(), &mut found);
        self.validate_lists(value, old, &mut found);
        self.validate_rules(value, old, &mut found);
        errors.extend(found);
    }

    /// Checks an update of the status alone: the schema of `status`, list types and the rules of the whole object.
    pub fn validate_status(&self, value: &Value, old: &Value, errors: &mut Errors) {
        let mut found = Errors::new();
        if let (Some(status), Some(props)) = (value.get("status"), self.root.properties.get("status")) {
            let pair = old.get("status").map(|old| Pair { new: status, old, props });
            translate(node(props, status, pair, &At::Root, false), &Path::new("status"), &mut found);
        }
        self.validate_lists(value, Some(old), &mut found);
        self.validate_rules(value, Some(old), &mut found);
        errors.extend(found);
    }

    fn validate_lists(&self, value: &Value, old: Option<&Value>, errors: &mut Errors) {
        let mut found = Errors::new();
        lists::validate(value, &self.root, &mut found);
        if found.is_empty() {
            return;
        }
        let mut before = Errors::new();
        if let Some(old) = old {
            lists::validate(old, &self.root, &mut before);
        }
        if before.is_empty() {
            errors.extend(found);
        }
    }

    fn validate_rules(&self, value: &Value, old: Option<&Value>, errors: &mut Errors) {
        if !self.root.below.rules {
            return;
        }
        let blocks = |e: &Error| {
            matches!(e.kind, Kind::NotSupported | Kind::Required | Kind::TooLong | Kind::TooMany | Kind::TypeInvalid)
        };
        if errors.0.iter().any(blocks) {
            errors.invalid(&Path::default(), Value::Null, UNCHECKED_RULES);
            return;
        }
        rules::validate(&self.root, value, old, true, &Path::default(), errors);
    }
}

/// Checks a default value against the schema it stands in.
pub(super) fn validate_default(props: &Props, value: &Value, path: &Path, errors: &mut Errors) {
    translate(node(props, value, None, &At::Root, false), path, errors);
}

/// One thing the schema validator found.
struct Finding {
    /// Where, as that validator writes paths; empty for what it says about no path in particular.
    at: Option<String>,
    kind: Kind,
    value: Option<Value>,
    /// Its own sentence, which also tells findings apart.
    sentence: String,
    /// The detail of the translated error where that is not the sentence.
    detail: Option<String>,
}

#[derive(Default)]
struct Outcome {
    findings: Vec<Finding>,
    matched: usize,
}

impl Outcome {
    fn is_valid(&self) -> bool {
        self.findings.is_empty()
    }

    fn push(&mut self, finding: Finding) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.matched += other.matched;
        for finding in other.findings {
            self.push(finding);
        }
    }

    fn invalid(&mut self, at: &At, value: impl Into<Value>, tail: impl std::fmt::Display) {
        let name = at.dotted();
        let sentence = format!("{name} in body {tail}");
        self.push(Finding { at: Some(name), kind: Kind::Invalid, value: Some(value.into()), sentence, detail: None });
    }

    fn wrong_type(&mut self, at: &At, want: &str, got: &str) {
        let name = at.dotted();
        let sentence = format!("{name} in body must be of type {want}: {}", quote(got));
        self.push(Finding { at: Some(name), kind: Kind::TypeInvalid, value: Some(got.into()), sentence, detail: None });
    }

    /// A sentence that the translation attaches to no field.
    fn general(&mut self, sentence: String) {
        self.push(Finding { at: None, kind: Kind::Invalid, value: Some("".into()), sentence, detail: None });
    }
}

fn translate(outcome: Outcome, base: &Path, errors: &mut Errors) {
    let mut said = HashSet::new();
    for finding in outcome.findings {
        if !said.insert(finding.sentence.clone()) {
            continue;
        }
        let path = match finding.at.as_deref().map(|at| at.strip_prefix('.').unwrap_or(at)) {
            None | Some("") => base.clone(),
            Some(at) => base.child(at),
        };
        let detail = finding.detail.unwrap_or(finding.sentence);
        errors.0.push(Error { kind: finding.kind, path, value: finding.value, detail });
    }
}

/// Checks a value; where it is as it was before the update, nothing that was found counts.
fn node(props: &Props, value: &Value, pair: Option<Pair>, at: &At, root: bool) -> Outcome {
    let mut out = plain(props, value, pair, at, root);
    if !out.is_valid() && pair.is_some_and(Pair::unchanged) {
        out.findings.clear();
    }
    out
}

fn plain(props: &Props, value: &Value, pair: Option<Pair>, at: &At, root: bool) -> Outcome {
    let mut out = Outcome::default();
    if value.is_null() {
        if (props.ty != Ty::Unset || props.int_or_string) && !props.nullable {
            out.wrong_type(at, type_names(props), "null");
        } else {
            out.matched += 1;
        }
        allowed(props, value, at, &mut out);
        return out;
    }
    if props.ty != Ty::Unset || props.int_or_string || props.format.is_some() {
        types(props, value, at, &mut out);
        out.matched += 1;
    }
    junctors(props, value, at, &mut out);
    out.matched += 1;
    match value {
        Value::String(s) => {
            string(props, s, at, &mut out);
            out.matched += 1;
            if let Some(format) = props.format.filter(|f| !is_numeric(*f)) {
                if !format.accepts(s) {
                    out.wrong_type(at, &props.format_name, s);
                }
                out.matched += 1;
            }
        }
        Value::Number(n) => {
            number(props, n, at, &mut out);
            out.matched += 2;
        }
        Value::Array(list) => {
            array(props, list, pair, at, &mut out);
            out.matched += 2;
        }
        _ => {}
    }
    allowed(props, value, at, &mut out);
    out.matched += 1;
    if let Value::Object(map) = value {
        object(props, map, pair, at, root, &mut out);
        out.matched += 1;
    }
    out.matched += 1;
    out
}

fn is_numeric(format: Format) -> bool {
    matches!(format, Format::Int32 | Format::Int64 | Format::Float | Format::Double)
}

fn type_names(props: &Props) -> &'static str {
    if props.int_or_string { "integer,string" } else { props.ty.name() }
}

/// JSON numbers as Kubernetes decodes them: whole numbers that fit are int64, all others float64.
fn as_int(n: &Number) -> Option<i64> {
    n.as_i64()
}

fn types(props: &Props, value: &Value, at: &At, out: &mut Outcome) {
    let wants = |ty: Ty| {
        props.ty == ty && !props.int_or_string || props.int_or_string && matches!(ty, Ty::Integer | Ty::String)
    };
    let (ty, go_format) = match value {
        Value::Null => return,
        Value::Bool(_) => (Ty::Boolean, ""),
        Value::String(_) => (Ty::String, ""),
        Value::Array(_) => (Ty::Array, ""),
        Value::Object(_) => (Ty::Object, ""),
        Value::Number(n) if as_int(n).is_some() => (Ty::Integer, "int64"),
        Value::Number(_) => (Ty::Number, "float64"),
    };
    let whole = value.as_f64().is_some_and(is_json_integer);
    let fits = wants(ty) || ty == Ty::Number && whole && wants(Ty::Integer) || ty == Ty::Integer && wants(Ty::Number);
    let formatted = props.format.is_some();
    let textual = matches!(ty, Ty::String | Ty::Array);
    if formatted && !textual && !fits && go_format != props.format_name {
        out.wrong_type(at, &props.format_name, go_format);
    } else if formatted && textual && !wants(Ty::Number) && !wants(Ty::Integer) || fits {
        // A list passes for a formatted string upstream, too.
        out.matched += 1;
    } else {
        out.wrong_type(at, type_names(props), ty.name());
    }
}

/// go-openapi's test for "this float is a whole number", with its tolerance.
fn is_json_integer(f: f64) -> bool {
    const MAX: f64 = 9_007_199_254_740_991.0;
    if !f.is_finite() || !(-MAX..=MAX).contains(&f) {
        return false;
    }
    let g = f.trunc();
    let difference = (f - g).abs();
    f == g || difference < 1e-9 * f64::min(f.abs() + g.abs(), f64::MAX) && g != 0.0
}

fn junctors(props: &Props, value: &Value, at: &At, out: &mut Outcome) {
    if !props.any_of.is_empty() {
        any_of(&props.any_of, value, at, out);
    }
    if !props.one_of.is_empty() {
        one_of(&props.one_of, value, at, out);
    }
    if !props.all_of.is_empty() {
        let outcomes: Vec<Outcome> = props.all_of.iter().map(|b| plain(b, value, None, at, false)).collect();
        let valid = outcomes.iter().filter(|o| o.is_valid()).count();
        for outcome in outcomes {
            out.merge(outcome);
        }
        if valid != props.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            out.general(format!("{} must validate all the schemas (allOf){none}", quote(&at.dotted())));
        }
    }
    if let Some(not) = &props.not
        && plain(not, value, None, at, false).is_valid()
    {
        out.general(format!("{} must not validate the schema (not)", quote(&at.dotted())));
    }
    out.matched += 1;
}

fn any_of(branches: &[Props], value: &Value, at: &At, out: &mut Outcome) {
    let mut best: Option<Outcome> = None;
    for branch in branches {
        let outcome = plain(branch, value, None, at, false);
        if outcome.is_valid() {
            return out.merge(outcome);
        }
        if best.as_ref().is_none_or(|b| outcome.matched > b.matched) {
            best = Some(outcome);
        }
    }
    out.general(format!("{} must validate at least one schema (anyOf)", quote(&at.dotted())));
    out.merge(best.unwrap_or_default());
}

fn one_of(branches: &[Props], value: &Value, at: &At, out: &mut Outcome) {
    let mut valid: Vec<Outcome> = Vec::new();
    let mut best: Option<Outcome> = None;
    for branch in branches {
        let outcome = plain(branch, value, None, at, false);
        if outcome.is_valid() {
            best = None;
            valid.push(outcome);
        } else if valid.is_empty() && best.as_ref().is_none_or(|b| outcome.matched > b.matched) {
            best = Some(outcome);
        }
    }
    if valid.len() == 1 {
        return valid.into_iter().for_each(|o| out.merge(o));
    }
    let count = match valid.len() {
        0 => "Found none valid".to_owned(),
        n => format!("Found {n} valid alternatives"),
    };
    out.general(format!("{} must validate one and only one schema (oneOf). {count}", quote(&at.dotted())));
    out.merge(best.unwrap_or_default());
}

/// The first problem only, as upstream.
fn string(props: &Props, s: &str, at: &At, out: &mut Outcome) {
    if props.max_length.is_some() || props.min_length.is_some() {
        // Bytes bound characters from above: count only where that does not decide.
        let runes = if props.max_length.is_some_and(|max| s.len() as i64 <= max) && props.min_length.unwrap_or(0) <= 0 {
            0
        } else {
            s.chars().count() as i64
        };
        if let Some(max) = props.max_length.filter(|max| runes > *max) {
            let name = at.dotted();
            let sentence = format!("{name} in body should be at most {max} chars long");
            let unit = if max == 1 { "byte" } else { "bytes" };
            let detail = Some(format!("may not be more than {max} {unit}"));
            return out.push(Finding { at: Some(name), kind: Kind::TooLong, value: None, sentence, detail });
        }
        if let Some(min) = props.min_length.filter(|min| runes < *min) {
            return out.invalid(at, s, format_args!("should be at least {min} chars long"));
        }
    }
    if let Some(regex) = &props.regex
        && !regex.is_match(s)
    {
        out.invalid(at, s, format_args!("should match '{}'", props.pattern));
    }
}

fn number(props: &Props, n: &Number, at: &At, out: &mut Outcome) {
    let (int, float) = (as_int(n), n.as_f64().unwrap_or(0.0));
    let shown = shown_number(n);
    in_range(props, int, float, "Checked", at, out);
    if let Some(factor) = props.multiple_of {
        let native = in_range(props, None, factor, "MultipleOf", at, out);
        match int.filter(|_| native) {
            Some(int) => multiple_of_int(int, factor as i64, at, out),
            None => multiple_of_float(float, factor, at, out),
        }
    }
    if let Some(min) = props.minimum {
        let native = in_range(props, None, min, "Minimum boundary", at, out);
        let (below, text) = match int.filter(|_| native) {
            Some(int) => (below(int, min as i64, props.exclusive_minimum), (min as i64).to_string()),
            None => (below(float, min, props.exclusive_minimum), go_float(min)),
        };
        if below {
            let or_equal = if props.exclusive_minimum { "" } else { " or equal to" };
            out.invalid(at, shown.clone(), format_args!("should be greater than{or_equal} {text}"));
        }
    }
    if let Some(max) = props.maximum {
        let native = in_range(props, None, max, "Maximum boundary", at, out);
        let (above, text) = match int.filter(|_| native) {
            Some(int) => (below(max as i64, int, props.exclusive_maximum), (max as i64).to_string()),
            None => (below(max, float, props.exclusive_maximum), go_float(max)),
        };
        if above {
            let or_equal = if props.exclusive_maximum { "" } else { " or equal to" };
            out.invalid(at, shown, format_args!("should be less than{or_equal} {text}"));
        }
    }
}

/// Whether `a` is below `b`, or equal to it where that is already too far.
fn below<T: PartialOrd>(a: T, b: T, exclusive: bool) -> bool {
    a < b || exclusive && a <= b
}

/// Whether a number can be held by the declared type and format. Says so about an object's number as about a limit.
fn in_range(props: &Props, int: Option<i64>, float: f64, what: &str, at: &At, out: &mut Outcome) -> bool {
    if props.int_or_string {
        return true;
    }
    let whole = int.or_else(|| (float.fract() == 0.0 && float.abs() < 9.3e18).then_some(float as i64));
    let fits = match (props.ty, props.format) {
        (Ty::Integer, Some(Format::Int32)) => whole.is_some_and(|n| i32::try_from(n).is_ok()),
        (Ty::Integer, _) => whole.is_some() && (int.is_some() || float >= i64::MIN as f64 && float < i64::MAX as f64),
        (Ty::Number, Some(Format::Float)) => float.abs() <= f64::from(f32::MAX),
        _ => true,
    };
    if !fits {
        let format = match props.format {
            Some(f) if is_numeric(f) => format!("with format {}", props.format_name),
            _ => "(default format)".to_owned(),
        };
        out.general(format!("{what} value must be of type {} {format} in {}", props.ty.name(), at.dotted()));
    }
    fits
}

fn multiple_of_int(n: i64, factor: i64, at: &At, out: &mut Outcome) {
    if factor <= 0 {
        not_positive(Value::from(factor), &factor.to_string(), at, out);
    } else if n % factor != 0 {
        out.invalid(at, n, format_args!("should be a multiple of {factor}"));
    }
}

fn multiple_of_float(n: f64, factor: f64, at: &At, out: &mut Outcome) {
    if factor <= 0.0 {
        return not_positive(shown_float(factor), &go_float(factor), at, out);
    }
    let quotient = if factor < 1.0 { 1.0 / factor * n } else { n / factor };
    if !is_json_integer(quotient) {
        out.invalid(at, shown_float(n), format_args!("should be a multiple of {}", go_float(factor)));
    }
}

fn not_positive(value: Value, text: &str, at: &At, out: &mut Outcome) {
    let name = at.dotted();
    let sentence = format!("factor MultipleOf declared for {name} must be positive: {text}");
    out.push(Finding { at: Some(name), kind: Kind::Invalid, value: Some(value), sentence, detail: None });
}

fn array(props: &Props, list: &[Value], pair: Option<Pair>, at: &At, out: &mut Outcome) {
    if let Some(items) = props.items() {
        let olds = pair.and_then(Pair::items);
        for (i, item) in list.iter().enumerate() {
            let pair = olds.as_ref().and_then(|(olds, props)| Some(Pair { new: item, old: olds.get(item)?, props }));
            out.merge(node(items, item, pair, &at.index(i), false));
        }
    }
    let size = list.len() as i64;
    if let Some(min) = props.min_items.filter(|min| size < *min) {
        out.invalid(at, size, format_args!("should have at least {min} items"));
    }
    if let Some(max) = props.max_items.filter(|max| size > *max) {
        too_many(at, size, max, "items", out);
    }
}

fn too_many(at: &At, size: i64, max: i64, what: &str, out: &mut Outcome) {
    let name = at.dotted();
    let sentence = format!("{name} in body should have at most {max} {what}");
    let unit = if max == 1 { "item" } else { "items" };
    let detail = Some(format!("must have at most {max} {unit}"));
    out.push(Finding { at: Some(name), kind: Kind::TooMany, value: Some(size.into()), sentence, detail });
}

fn allowed(props: &Props, value: &Value, at: &At, out: &mut Outcome) {
    if props.allowed.is_empty() || !value.is_null() && props.allowed.iter().any(|a| equal(a, value)) {
        return;
    }
    let name = at.dotted();
    let texts: Vec<String> =
        props.allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
    let quoted: Vec<String> = texts.iter().map(|s| quote(s)).collect();
    let sentence = format!("{name} in body should be one of [{}]", texts.join(" "));
    let detail = Some(format!("supported values: {}", quoted.join(", ")));
    let value = Some(shown_value(value));
    out.push(Finding { at: Some(name), kind: Kind::NotSupported, value, sentence, detail });
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => a == b || x.as_f64() == y.as_f64(),
        _ => a == b,
    }
}

fn object(props: &Props, map: &Map<String, Value>, pair: Option<Pair>, at: &At, root: bool, out: &mut Outcome) {
    let size = map.len() as i64;
    if let Some(min) = props.min_properties.filter(|min| size < *min) {
        out.invalid(at, size, format_args!("should have at least {min} properties"));
    }
    if let Some(max) = props.max_properties.filter(|max| size > *max) {
        too_many(at, size, max, "properties", out);
    }
    match &props.additional {
        Additional::Allowed(false) => {
            for key in map.keys().filter(|k| !props.properties.contains_key(*k)) {
                let name = at.dotted();
                let sentence = format!("{name}.{key} in body is a forbidden property");
                let value = Some(key.as_str().into());
                out.push(Finding { at: Some(name), kind: Kind::Invalid, value, sentence, detail: None });
            }
        }
        Additional::Schema(values) => {
            for (key, value) in map.iter().filter(|(k, _)| !props.properties.contains_key(*k)) {
                out.merge(node(values, value, pair.and_then(|p| p.key(key)), &at.key(key), false));
            }
        }
        _ => {}
    }
    for (name, field) in &props.properties {
        if let Some(value) = map.get(name) {
            // Conversions hide changes of these two, so they cannot ratchet.
            let hidden = root && matches!(name.as_str(), "apiVersion" | "kind");
            let pair = pair.filter(|_| !hidden).and_then(|p| p.key(name));
            out.merge(node(field, value, pair, &at.field(name), false));
        }
    }
    for name in props.required.iter().filter(|name| !map.contains_key(*name)) {
        let name = at.key(name).dotted();
        let sentence = format!("{name} in body is required");
        out.push(Finding { at: Some(name), kind: Kind::Required, value: None, sentence, detail: Some(String::new()) });
    }
}

fn shown_number(n: &Number) -> Value {
    match as_int(n) {
        Some(int) => int.into(),
        None => shown_float(n.as_f64().unwrap_or(0.0)),
    }
}

/// A float as an error shows it: whole ones without a fraction.
fn shown_float(f: f64) -> Value {
    if f.fract() == 0.0 && f.abs() < 9e15 { Value::from(f as i64) } else { Value::from(f) }
}

fn shown_value(value: &Value) -> Value {
    match value {
        Value::Number(n) => shown_number(n),
        other => other.clone(),
    }
}

/// Go's `%v` of a float64.
pub(super) fn go_float(f: f64) -> String {
    if f == 0.0 || !f.is_finite() {
        return format!("{f}");
    }
    let exponent = f.abs().log10().floor() as i32;
    if (-4..21).contains(&exponent) {
        return format!("{f}");
    }
    let text = format!("{f:e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}
