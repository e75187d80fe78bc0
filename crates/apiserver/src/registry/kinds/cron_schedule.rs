//! The grammar of a CronJob's schedule: five fields, or a descriptor (`@daily`, `@every 1h30m`).
//!
//! Only reads; finding the next time is the controller's. The texts of errors are those of the Go library that upstream
//! parses with.

use std::time::Duration;

use usher_schema::field::quote;

/// Set beside a field's bits when it was `*` or `?`: then the day of the month and of the week must both match.
pub const STAR: u64 = 1 << 63;

/// A schedule that was understood. Bit `n` of a field is set when `n` is one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    At {
        minute: u64,
        hour: u64,
        day_of_month: u64,
        month: u64,
        day_of_week: u64,
        zone: Option<String>,
    },
    /// At least a second, in whole seconds.
    Every {
        period: Duration,
    },
}

struct Bounds {
    min: u32,
    max: u32,
    names: &'static [(&'static str, u32)],
}

const MINUTE: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOUR: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAY_OF_MONTH: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTH: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &[
        ("jan", 1),
        ("feb", 2),
        ("mar", 3),
        ("apr", 4),
        ("may", 5),
        ("jun", 6),
        ("jul", 7),
        ("aug", 8),
        ("sep", 9),
        ("oct", 10),
        ("nov", 11),
        ("dec", 12),
    ],
};
const DAY_OF_WEEK: Bounds = Bounds {
    min: 0,
    max: 6,
    names: &[("sun", 0), ("mon", 1), ("tue", 2), ("wed", 3), ("thu", 4), ("fri", 5), ("sat", 6)],
};

pub fn parse(text: &str) -> Result<Schedule, String> {
    if text.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let (zone, rest) = split_zone(text)?;
    if rest.starts_with('@') {
        return descriptor(rest, zone);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let [minute, hour, day_of_month, month, day_of_week] = fields[..] else {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    };
    Ok(Schedule::At {
        minute: field(minute, &MINUTE)?,
        hour: field(hour, &HOUR)?,
        day_of_month: field(day_of_month, &DAY_OF_MONTH)?,
        month: field(month, &MONTH)?,
        day_of_week: field(day_of_week, &DAY_OF_WEEK)?,
        zone,
    })
}

/// A leading `TZ=zone ` (an old habit that only CronJobs which have it may keep).
fn split_zone(text: &str) -> Result<(Option<String>, &str), String> {
    let Some(rest) = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) else {
        return Ok((None, text));
    };
    let Some((zone, rest)) = rest.split_once(' ') else {
        return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned());
    };
    if !is_zone(zone) {
        return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
    }
    Ok((Some(zone.to_owned()), rest.trim()))
}

/// Whether `name` is a time zone of the database, spelled as it is there (or `UTC`, or nothing).
pub fn is_zone(name: &str) -> bool {
    if name.is_empty() || name == "UTC" || name == "Local" {
        return true;
    }
    jiff::tz::TimeZone::get(name).is_ok_and(|zone| zone.iana_name().is_none_or(|known| known == name))
}

fn descriptor(text: &str, zone: Option<String>) -> Result<Schedule, String> {
    let all = |bounds: &Bounds| bits(bounds.min, bounds.max, 1) | STAR;
    let at = |hour, day_of_month, month, day_of_week| {
        Ok(Schedule::At { minute: 1, hour, day_of_month, month, day_of_week, zone })
    };
    match text {
        "@yearly" | "@annually" => at(1, 1 << 1, 1 << 1, all(&DAY_OF_WEEK)),
        "@monthly" => at(1, 1 << 1, all(&MONTH), all(&DAY_OF_WEEK)),
        "@weekly" => at(1, all(&DAY_OF_MONTH), all(&MONTH), 1),
        "@daily" | "@midnight" => at(1, all(&DAY_OF_MONTH), all(&MONTH), all(&DAY_OF_WEEK)),
        "@hourly" => at(all(&HOUR), all(&DAY_OF_MONTH), all(&MONTH), all(&DAY_OF_WEEK)),
        _ => match text.strip_prefix("@every ") {
            Some(duration) => {
                let nanos = usher_schema::duration::parse(duration)
                    .map_err(|why| format!("failed to parse duration {text}: {why}"))?;
                let secs = u64::try_from(nanos / 1_000_000_000).unwrap_or(0).max(1);
                Ok(Schedule::Every { period: Duration::from_secs(secs) })
            }
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

/// A list of ranges. Empty elements are skipped, so that a field of commas alone matches nothing.
fn field(text: &str, bounds: &Bounds) -> Result<u64, String> {
    text.split(',').filter(|part| !part.is_empty()).try_fold(0, |bits, part| Ok(bits | range(part, bounds)?))
}

fn range(text: &str, bounds: &Bounds) -> Result<u64, String> {
    let mut parts = text.split('/');
    let limits: Vec<&str> = parts.next().unwrap_or_default().split('-').collect();
    let step_text = parts.next();
    let mut star = 0;
    let (start, mut end) = match limits[..] {
        ["*" | "?", ..] => {
            star = STAR;
            (bounds.min, bounds.max)
        }
        [one] => {
            let n = number_or_name(one, bounds)?;
            (n, n)
        }
        [low, high] => (number_or_name(low, bounds)?, number_or_name(high, bounds)?),
        [low, ..] => {
            number_or_name(low, bounds)?;
            return Err(format!("too many hyphens: {text}"));
        }
        [] => return Err(format!("too many hyphens: {text}")),
    };
    let mut step = 1;
    if let Some(step_text) = step_text {
        step = number(step_text)?;
        if limits.len() == 1 {
            end = bounds.max;
        }
        if step > 1 {
            star = 0;
        }
        if parts.next().is_some() {
            return Err(format!("too many slashes: {text}"));
        }
    }
    let Bounds { min, max, .. } = bounds;
    if start < *min {
        return Err(format!("beginning of range ({start}) below minimum ({min}): {text}"));
    }
    if end > *max {
        return Err(format!("end of range ({end}) above maximum ({max}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(bits(start, end, step) | star)
}

fn bits(start: u32, end: u32, step: u32) -> u64 {
    (start..=end).step_by(step.max(1) as usize).fold(0, |bits, n| bits | 1 << n)
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, String> {
    match bounds.names.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)) {
        Some((_, n)) => Ok(*n),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        let why = format!("strconv.Atoi: parsing {}: invalid syntax", quote(text));
        return Err(format!("failed to parse int from {text}: {why}"));
    }
    let n: i64 = text.parse().map_err(|_| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {}: value out of range", quote(text))
    })?;
    if n < 0 {
        return Err(format!("negative number ({n}) not allowed: {text}"));
    }
    // No field reaches this far, and steps beyond it are all the same.
    Ok(u32::try_from(n).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_into_bits() {
        let Ok(Schedule::At { minute, hour, day_of_month, month, day_of_week, zone: None }) =
            parse("*/15 0 1,15 JAN-mar ?")
        else {
            panic!("not understood");
        };
        assert_eq!(minute, 1 | 1 << 15 | 1 << 30 | 1 << 45, "a step above 1 is not a star");
        assert_eq!((hour, day_of_month, month), (1, 1 << 1 | 1 << 15, 0b1110));
        assert_eq!(day_of_week, 0b111_1111 | STAR);
        assert!(
            matches!(parse("5/20 * * * *"), Ok(Schedule::At { minute, .. }) if minute == 1 << 5 | 1 << 25 | 1 << 45)
        );
        assert_eq!(parse("@every 90m"), Ok(Schedule::Every { period: Duration::from_secs(5400) }));
        assert_eq!(parse("@every 10ms"), Ok(Schedule::Every { period: Duration::from_secs(1) }));
        assert_eq!(parse("@hourly"), parse("0 * * * *"));
        assert_eq!(parse("@yearly"), parse("0 0 1 1 *"));
        assert!(
            matches!(parse("CRON_TZ=Europe/Berlin 0 0 * * *"), Ok(Schedule::At { zone: Some(z), .. }) if z == "Europe/Berlin")
        );
    }

    #[test]
    fn mistakes_are_explained_as_upstream_explains_them() {
        for (text, why) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("@fortnightly", "unrecognized descriptor: @fortnightly"),
            ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
            ("@every 5y", "failed to parse duration @every 5y: time: unknown unit \"y\" in duration \"5y\""),
            ("TZ=Moon 0 0 * * *", "provided bad location Moon: unknown time zone Moon"),
            ("TZ=0", "invalid schedule format: runtime error: slice bounds out of range [:-1]"),
        ] {
            assert_eq!(parse(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn zones_are_known_by_their_exact_name() {
        assert!(is_zone("America/New_York") && is_zone("UTC"));
        assert!(!is_zone("america/new_york") && !is_zone("Mars/Olympus"));
    }
}
