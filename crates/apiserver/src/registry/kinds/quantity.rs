//! Quantities (`500m`, `1.5Gi`, `1e3`) as exact integers, written back in canonical form.
//!
//! The value is kept in billionths, which is the finest Kubernetes keeps too; anything finer is rounded away from zero,
//! anything beyond 2^63-1 is capped.

use std::cmp::Ordering;
use std::fmt;

const NANOS: i128 = 1_000_000_000;
const MAX: i128 = i64::MAX as i128 * NANOS;

pub const BAD_FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
pub const BAD_NUMBER: &str = "unable to parse numeric part of quantity";
pub const BAD_SUFFIX: &str = "unable to parse quantity's suffix";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    DecimalSi,
    BinarySi,
    Exponent,
}

/// A parsed quantity. Compares by value, whatever it was written as.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    pub fn parse(text: &str) -> Result<Quantity, &'static str> {
        let bytes = text.as_bytes();
        let (negative, rest) = match bytes.first() {
            None => return Err(BAD_FORMAT),
            Some(b'-') => (true, &bytes[1..]),
            Some(b'+') => (false, &bytes[1..]),
            Some(_) => (false, bytes),
        };
        let number_len = rest.iter().take_while(|c| c.is_ascii_digit() || **c == b'.').count();
        let (number, suffix) = rest.split_at(number_len);
        if !number.iter().any(u8::is_ascii_digit) {
            return Err(if suffix.is_empty() && number.is_empty() { BAD_FORMAT } else { BAD_NUMBER });
        }
        if number.iter().filter(|c| **c == b'.').count() > 1 {
            return Err(BAD_NUMBER);
        }
        let scale = Scale::of(suffix)?;
        let magnitude = scale.apply(number);
        let nanos = if negative { -magnitude } else { magnitude };
        let format = match scale.format {
            Format::BinarySi if magnitude < 1024 * NANOS => Format::DecimalSi,
            format => format,
        };
        Ok(Quantity { nanos, format })
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether its thousandths are a whole number of units (what "must be an integer" means upstream).
    pub fn is_whole(self) -> bool {
        self.rounded_to_milli().nanos % NANOS == 0
    }

    /// The whole number at or above it.
    pub fn value(self) -> i64 {
        i64::try_from(round_up(self.nanos, NANOS) / NANOS).unwrap_or(i64::MAX)
    }

    /// Resource lists are kept in thousandths.
    #[must_use]
    pub fn rounded_to_milli(self) -> Quantity {
        Quantity { nanos: round_up(self.nanos, NANOS / 1000), ..self }
    }

    /// The value in billionths: the same text for the same value, whatever its suffix was.
    pub fn units(self) -> String {
        self.nanos.to_string()
    }

    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        Quantity { nanos: self.nanos.saturating_add(other.nanos).clamp(-MAX, MAX), format: self.format }
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

fn round_up(nanos: i128, unit: i128) -> i128 {
    let rest = nanos % unit;
    if rest == 0 { nanos } else { nanos - rest + unit * nanos.signum() }
}

/// What a suffix multiplies by: `2^shift * 10^exponent`.
struct Scale {
    shift: u32,
    exponent: i32,
    format: Format,
}

impl Scale {
    fn of(suffix: &[u8]) -> Result<Scale, &'static str> {
        let decimal = |exponent| Ok(Scale { shift: 0, exponent, format: Format::DecimalSi });
        let binary = |shift| Ok(Scale { shift, exponent: 0, format: Format::BinarySi });
        match suffix {
            b"" => decimal(0),
            b"n" => decimal(-9),
            b"u" => decimal(-6),
            b"m" => decimal(-3),
            b"k" => decimal(3),
            b"M" => decimal(6),
            b"G" => decimal(9),
            b"T" => decimal(12),
            b"P" => decimal(15),
            b"E" => decimal(18),
            b"Ki" => binary(10),
            b"Mi" => binary(20),
            b"Gi" => binary(30),
            b"Ti" => binary(40),
            b"Pi" => binary(50),
            b"Ei" => binary(60),
            [b'e' | b'E', exponent @ ..] => {
                let text = std::str::from_utf8(exponent).map_err(|_| BAD_SUFFIX)?;
                let exponent = text.parse::<i32>().map_err(|_| BAD_SUFFIX)?;
                Ok(Scale { shift: 0, exponent, format: Format::Exponent })
            }
            _ if suffix.iter().all(|c| b"eEinumkKMGTP+-0123456789".contains(c)) => Err(BAD_SUFFIX),
            _ => Err(BAD_FORMAT),
        }
    }

    /// The magnitude of `number` (digits with at most one dot) in billionths, rounded up and capped.
    fn apply(&self, number: &[u8]) -> i128 {
        let point = number.iter().position(|c| *c == b'.').unwrap_or(number.len());
        let digits = number.iter().filter(|c| **c != b'.').map(|c| i32::from(c - b'0'));
        let mut nanos: i128 = 0;
        let mut lost = false;
        // Digit k stands for 10^(point-1-k) units, times the suffix, in billionths.
        for (k, digit) in digits.enumerate() {
            if digit == 0 {
                continue;
            }
            let place = point as i64 - 1 - k as i64 + i64::from(self.exponent) + 9;
            let digit = i128::from(digit) << self.shift;
            if place > 28 {
                return MAX;
            }
            if place >= 0 {
                nanos = nanos.saturating_add(digit.saturating_mul(10i128.pow(place as u32)));
            } else if place >= -28 {
                let unit = 10i128.pow(-place as u32);
                nanos += digit / unit;
                lost |= digit % unit != 0;
            } else {
                lost = true;
            }
        }
        (nanos + i128::from(lost)).min(MAX)
    }
}

impl fmt::Display for Quantity {
    /// Canonical: no fraction, the largest suffix that keeps the number whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::BinarySi && self.nanos.abs() >= 1024 * NANOS {
            let mut number = round_up(self.nanos, NANOS) / NANOS;
            let mut suffix = 0;
            while number % 1024 == 0 && suffix < 6 {
                number /= 1024;
                suffix += 1;
            }
            return write!(f, "{number}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][suffix]);
        }
        let (mut number, mut step) = (self.nanos, 0);
        while number % 1000 == 0 && step < 9 {
            number /= 1000;
            step += 1;
        }
        match self.format {
            Format::Exponent if step != 3 => write!(f, "{number}e{}", 3 * step as i32 - 9),
            Format::Exponent => write!(f, "{number}"),
            _ => write!(f, "{number}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][step]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_come_back_in_canonical_form() {
        for (input, canonical) in [
            ("0", "0"),
            ("1", "1"),
            ("1000m", "1"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1500m", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("1e3", "1e3"),
            ("1E", "1E"),
            ("12e2", "1200"),
            ("1000k", "1M"),
            ("-2.5", "-2500m"),
            ("100n", "100n"),
            ("0.0000000001", "1n"),
            ("99999999999999999999", "9223372036854775807"),
            ("1e400", "9223372036854775807"),
        ] {
            assert_eq!(Quantity::parse(input).unwrap().to_string(), canonical, "{input}");
        }
    }

    #[test]
    fn malformed_quantities_are_refused() {
        for bad in ["", "abc", "1x", "1.2.3", "1Kii", "--1", "1e", "e3", ".", "1 "] {
            assert!(Quantity::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn comparison_rounding_and_wholeness() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!(q("1"), q("1000m"));
        assert!(q("1Gi") > q("1G"));
        assert_eq!(q("100u").rounded_to_milli().to_string(), "1m");
        assert_eq!(q("-100u").rounded_to_milli().to_string(), "-1m");
        assert!(q("3").is_whole() && !q("1500m").is_whole());
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("1Gi").plus(q("1Gi")).to_string(), "2Gi");
    }
}
