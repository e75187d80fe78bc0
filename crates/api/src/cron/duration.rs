//! Durations as Go writes them: `1h30m`, `-1.5s`.

use super::quote;

/// In nanoseconds, or what `time.ParseDuration` says is wrong.
pub fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|c| c.is_ascii_digit() || *c == b'.').count();
        let (number, after) = rest.split_at(digits);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        let unit_len = after.bytes().take_while(|c| *c != b'.' && !c.is_ascii_digit()).count();
        let (unit, after) = after.split_at(unit_len);
        let nanos: u128 = match unit {
            "" => return Err(format!("time: missing unit in duration {}", quote(text))),
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(format!("time: unknown unit {} in duration {}", quote(unit), quote(text))),
        };
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        total = whole.checked_mul(nanos).and_then(|n| n.checked_add(total)).ok_or_else(invalid)?;
        let mut place = nanos;
        for digit in fraction.bytes() {
            place /= 10;
            total += u128::from(digit - b'0') * place;
        }
        rest = after;
    }
    let total = i64::try_from(total).map_err(|_| invalid())?;
    Ok(if negative { -total } else { total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_reads_them() {
        for (text, nanos) in [
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            ("-2ms", -2_000_000),
            ("0", 0),
            (".5s", 500_000_000),
        ] {
            assert_eq!(parse(text), Ok(nanos), "{text}");
        }
        for bad in ["", "-", "1", ".s", "1.2.3s", "9999999999999h", "1 s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
