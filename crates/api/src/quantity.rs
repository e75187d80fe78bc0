//! Kubernetes quantities (`500m`, `1536Mi`, `12e6`): exact arithmetic and the canonical text that Go's
//! `resource.Quantity` writes.
//!
//! The value is a whole number of billionths in an `i128`, which holds every quantity that upstream's fast path can.
//! What is finer is rounded away from zero, what is larger is capped; nothing wraps and nothing is a float.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

const NANOS: i128 = 1_000_000_000;
/// 2^63-1 units, where binary quantities are capped.
const MAX_BINARY: i128 = (i64::MAX as i128) * NANOS;

/// An amount with the family of suffixes it was written in. Equality and order compare amounts only.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `n u m k M G T P E`
    #[default]
    Decimal,
    /// `Ki Mi Gi Ti Pi Ei`
    Binary,
    /// `e3`
    Exponent,
}

/// Upstream's three sentences, which reach users in error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Default for Quantity {
    fn default() -> Quantity {
        Quantity::ZERO
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// From text or a number: custom resources may have either.
impl<'de> serde::Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, units: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(units, Format::Decimal))
            }

            fn visit_u64<E: serde::de::Error>(self, units: u64) -> Result<Quantity, E> {
                self.visit_str(&units.to_string())
            }

            fn visit_f64<E: serde::de::Error>(self, amount: f64) -> Result<Quantity, E> {
                self.visit_str(&amount.to_string())
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::Decimal };

    pub fn from_units(units: i64, format: Format) -> Quantity {
        Quantity { nanos: i128::from(units) * NANOS, format }
    }

    pub fn from_milli(milli: i64, format: Format) -> Quantity {
        Quantity { nanos: i128::from(milli) * (NANOS / 1000), format }
    }

    pub fn parse(text: &str) -> Result<Quantity, ParseError> {
        let (parts, (base, exponent, format)) = Parts::read(text)?;
        Ok(parts.amount(base, exponent, format))
    }

    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// Whole units, rounded away from zero (`Value()` upstream), capped at the ends of `i64`.
    pub fn units(self) -> i64 {
        self.scaled(NANOS)
    }

    /// Thousandths, rounded away from zero (`MilliValue()` upstream), capped at the ends of `i64`.
    pub fn milli(self) -> i64 {
        self.scaled(NANOS / 1000)
    }

    /// Resource lists are kept in thousandths.
    #[must_use]
    pub fn rounded_to_milli(self) -> Quantity {
        let unit = NANOS / 1000;
        let rest = self.nanos % unit;
        let up = if rest == 0 { 0 } else { unit * self.nanos.signum() };
        Quantity { nanos: (self.nanos - rest).saturating_add(up), ..self }
    }

    /// Whether its thousandths are a whole number of units (what "must be an integer" means upstream).
    pub fn is_whole(self) -> bool {
        self.rounded_to_milli().nanos % NANOS == 0
    }

    pub fn format(self) -> Format {
        self.format
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    fn scaled(self, divisor: i128) -> i64 {
        let up = i128::from(self.nanos % divisor != 0) * self.nanos.signum();
        let value = self.nanos / divisor + up;
        i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
    }
}

/// The text Go would write back after reading `text`. Upstream keeps the text as it came when it looks canonical at a
/// glance, and that glance misses some (`1.500`, `+5`, `2E3`); clients see the difference, so it is imitated.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, ParseError> {
    let (parts, (base, exponent, format)) = Parts::read(text)?;
    if parts.kept_as_written(text, exponent, format) {
        return Ok(Cow::Borrowed(text));
    }
    let canonical = parts.amount(base, exponent, format).to_string();
    Ok(if canonical == text { Cow::Borrowed(text) } else { Cow::Owned(canonical) })
}

struct Parts<'t> {
    negative: bool,
    has_digits: bool,
    /// Digits before the point without leading zeros; "0" if there are none.
    whole: &'t str,
    fraction: &'t str,
    suffix: &'t str,
}

impl<'t> Parts<'t> {
    fn read(text: &'t str) -> Result<(Parts<'t>, (Base, i32, Format)), ParseError> {
        let parts = Parts::split(text)?;
        let suffix @ (_, exponent, format) = suffix(parts.suffix).ok_or(ParseError::Suffix)?;
        // A number without a digit is zero to upstream's fast path (`Ki`, `e3`) and wrong to the other (`Pi`, `e-10`).
        if !parts.has_digits && !parts.is_fast(exponent, format) {
            return Err(ParseError::Numeric);
        }
        Ok((parts, suffix))
    }

    fn split(text: &'t str) -> Result<Parts<'t>, ParseError> {
        if text.is_empty() {
            return Err(ParseError::Format);
        }
        let negative = text.starts_with('-');
        let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (whole, rest) = rest.split_at(digits(rest));
        let any_whole = !whole.is_empty();
        let whole = whole.trim_start_matches('0');
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        let exponent = suffix.trim_start_matches(['e', 'E', 'i', 'n', 'u', 'm', 'k', 'K', 'M', 'G', 'T', 'P']);
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        if digits(exponent) != exponent.len() {
            return Err(ParseError::Format);
        }
        let has_digits = any_whole || !fraction.is_empty() || suffix.is_empty();
        Ok(Parts { negative, has_digits, whole: if whole.is_empty() { "0" } else { whole }, fraction, suffix })
    }

    fn amount(&self, base: Base, exponent: i32, format: Format) -> Quantity {
        let nanos = match base {
            Base::Ten => self.decimal(exponent),
            Base::Two => self.binary(exponent.unsigned_abs()),
        };
        // Below one, binary suffixes have nothing to say.
        let format = if format == Format::Binary && (1..NANOS).contains(&nanos) { Format::Decimal } else { format };
        Quantity { nanos: if self.negative { -nanos } else { nanos }, format }
    }

    /// |amount| in nanos: the digits shifted by the exponent, what falls off the end rounded up.
    fn decimal(&self, exponent: i32) -> i128 {
        let shift = i64::from(exponent) - self.fraction.len() as i64 + 9;
        let all = self.whole.bytes().chain(self.fraction.bytes());
        let count = self.whole.len() + self.fraction.len();
        let kept = count.saturating_sub(usize::try_from(-shift).unwrap_or(0));
        let mut value = 0i128;
        let mut lost = false;
        for (i, digit) in all.enumerate() {
            if i < kept {
                value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
            } else {
                lost |= digit != b'0';
            }
        }
        for _ in 0..shift.clamp(0, 40) {
            value = value.saturating_mul(10);
        }
        value.saturating_add(i128::from(lost))
    }

    fn binary(&self, exponent: u32) -> i128 {
        let whole = number(self.whole).saturating_mul(1 << exponent);
        if whole > i128::from(i64::MAX) {
            return MAX_BINARY;
        }
        let precise = &self.fraction[..self.fraction.len().min(18)];
        let beyond = self.fraction[precise.len()..].bytes().any(|b| b != b'0');
        let divisor = 10i128.pow(precise.len() as u32);
        let scaled = number(precise) << exponent;
        let fine = (scaled % divisor) * NANOS;
        let round = i128::from(fine % divisor != 0 || beyond);
        ((whole + scaled / divisor) * NANOS + fine / divisor + round).min(MAX_BINARY)
    }

    /// Whether upstream reads it as a machine integer, without big numbers.
    fn is_fast(&self, exponent: i32, format: Format) -> bool {
        if format == Format::Binary {
            let room = 15 - self.whole.len() as i64 - i64::from(exponent) * 3 / 10 - 1;
            return self.fraction.is_empty() && room >= 0;
        }
        self.whole.len() + self.fraction.len() <= 18 && self.scale(exponent) >= -9
    }

    /// The power of ten that the last digit stands for.
    fn scale(&self, exponent: i32) -> i64 {
        i64::from(exponent) - self.fraction.len() as i64
    }

    /// Upstream's glance, condition by condition.
    fn kept_as_written(&self, text: &str, exponent: i32, format: Format) -> bool {
        if text == "0" {
            return true;
        }
        if !self.is_fast(exponent, format) {
            return false;
        }
        if format == Format::Binary {
            return number(self.whole) & 7 != 0;
        }
        let ends_in_zeros = if self.fraction.is_empty() {
            self.whole.ends_with("000")
        } else {
            format!("{}{}", self.whole, self.fraction).ends_with("000")
        };
        self.scale(exponent) % 3 == 0 && !ends_in_zeros && !self.whole.starts_with('0')
    }
}

#[derive(Clone, Copy)]
enum Base {
    Two,
    Ten,
}

const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

fn suffix(text: &str) -> Option<(Base, i32, Format)> {
    if let Some(i) = DECIMAL.iter().position(|s| *s == text) {
        return Some((Base::Ten, i as i32 * 3 - 9, Format::Decimal));
    }
    if let Some(i) = BINARY.iter().position(|s| *s == text) {
        return Some((Base::Two, i as i32 * 10, Format::Binary));
    }
    let exponent = text.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
    Some((Base::Ten, exponent.clamp(-1_000_000, 1_000_000) as i32, Format::Exponent))
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn number(digits: &str) -> i128 {
    digits.bytes().fold(0i128, |n, d| n.saturating_mul(10).saturating_add(i128::from(d - b'0')))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANOS;
        if self.format == Format::Binary && !small && self.nanos % NANOS == 0 {
            let (value, times) = without_factors(self.nanos / NANOS, 1024, 6);
            return write!(f, "{value}{}", BINARY[times]);
        }
        if self.format == Format::Exponent {
            let (value, times) = without_factors(self.nanos, 1000, usize::MAX);
            return match times as i64 * 3 - 9 {
                0 => write!(f, "{value}"),
                exponent => write!(f, "{value}e{exponent}"),
            };
        }
        let (value, times) = without_factors(self.nanos, 1000, 9);
        write!(f, "{value}{}", DECIMAL[times])
    }
}

fn without_factors(mut value: i128, factor: i128, most: usize) -> (i128, usize) {
    let mut times = 0;
    while times < most && value % factor == 0 {
        value /= factor;
        times += 1;
    }
    (value, times)
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Quantity, ParseError> {
        Quantity::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

/// Saturates. Zero takes the format of what is added to it, as upstream.
impl Add for Quantity {
    type Output = Quantity;

    fn add(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
    }

    #[test]
    fn canonical_text_is_what_go_writes() {
        for (text, expected) in [
            ("0", "0"),
            ("0.0", "0"),
            ("0Ki", "0"),
            ("-0", "0"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1.5", "1500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("512Mi", "512Mi"),
            ("2048Mi", "2Gi"),
            ("0.5Ki", "512"),
            ("0.5Mi", "512Ki"),
            ("1000000", "1M"),
            ("12e6", "12e6"),
            ("1.2e2", "120"),
            ("12000e3", "12e6"),
            ("0.0000000001", "1n"),
            ("-0.0000000001", "-1n"),
            ("1.0000000001", "1000000001n"),
            ("-1.5Gi", "-1536Mi"),
            ("16Ei", "9223372036854775807"),
            ("9223372036854775807", "9223372036854775807"),
            ("100000000000000000000", "100E"),
            ("1Ei", "1Ei"),
            (".5", "500m"),
            ("5.", "5."),
            ("0.001Ki", "1024m"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn text_that_upstream_takes_for_canonical_is_kept() {
        for text in ["1.500", "1.2e1", "+5", "2E3", "010", "5e0", "+3Mi"] {
            check(text, text);
        }
    }

    #[test]
    fn malformed_text_is_refused_with_upstreams_reason() {
        for text in ["", "abc", "1.2.3", "1 Gi", "12Q", "1e3x", "½"] {
            assert_eq!(Quantity::parse(text), Err(ParseError::Format), "{text}");
        }
        for text in ["--1", "1KiMi", "1mm", "1i", "1e", "1Ki3"] {
            assert_eq!(Quantity::parse(text), Err(ParseError::Suffix), "{text}");
        }
        for text in ["Pi", "Ei", "-Pi", ".Ei", "e-10"] {
            assert_eq!(Quantity::parse(text), Err(ParseError::Numeric), "{text}");
        }
    }

    #[test]
    fn a_suffix_or_sign_alone_is_zero_where_upstream_takes_it() {
        for text in ["Ki", "Ti", "e3", "m", ".", "-", "+."] {
            check(text, "0");
        }
    }

    #[test]
    fn thousandths_round_away_from_zero_and_decide_what_is_whole() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!(q("100u").rounded_to_milli().to_string(), "1m");
        assert_eq!(q("-100u").rounded_to_milli().to_string(), "-1m");
        assert!(q("3").is_whole() && q("2999.9999").is_whole() && !q("1500m").is_whole());
    }

    #[test]
    fn conversions_round_away_from_zero_and_cap() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!((q("1.1").units(), q("-1.1").units(), q("100m").units()), (2, -2, 1));
        assert_eq!((q("1.1m").milli(), q("2").milli()), (2, 2000));
        assert_eq!(q("100E").units(), i64::MAX);
        assert_eq!(q("1e999999999999").units(), i64::MAX);
        assert_eq!(q("1e-999999999999").nanos(), 1);
    }

    #[test]
    fn sums_keep_the_format_of_the_first_nonzero() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!((q("1Gi") + q("1024Mi")).to_string(), "2Gi");
        assert_eq!((Quantity::ZERO + q("1Gi")).to_string(), "1Gi");
        assert_eq!((q("2") - q("500m")).to_string(), "1500m");
        assert_eq!(q("1024Mi"), q("1Gi"));
        assert!(q("1G") < q("1Gi"));
    }

    proptest! {
        #[test]
        fn canonical_text_reads_back_as_the_same_amount(nanos in any::<i64>(), kind in 0..3) {
            let format = [Format::Decimal, Format::Binary, Format::Exponent][kind as usize];
            let quantity = Quantity { nanos: i128::from(nanos), format };
            prop_assert_eq!(Quantity::parse(&quantity.to_string()), Ok(quantity));
        }

        #[test]
        fn no_text_panics(text in "[-+]?[0-9.]{0,60}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,30}") {
            let _ = canonical(&text);
        }
    }
}
