//! The grammar of a schedule: five fields, or a descriptor (`@daily`, `@every 1h30m`).
//!
//! The texts of errors are those of the Go library that Kubernetes parses with.

use jiff::tz::TimeZone;

use super::zone::load_zone;
use super::{duration, quote};

/// Set beside a field's bits when it was `*` or `?`: then the day of the month and of the week must both match.
pub const STAR: u64 = 1 << 63;

/// A schedule that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    At(Fields),
    /// At least a second.
    Every {
        secs: i64,
    },
}

/// Bit `n` of a field is set when `n` is one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    pub minute: u64,
    pub hour: u64,
    pub day_of_month: u64,
    pub month: u64,
    pub day_of_week: u64,
    /// `None`: that of whoever asks.
    pub zone: Option<TimeZone>,
}

struct Bounds {
    min: u64,
    max: u64,
    names: &'static [(&'static str, u64)],
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

impl Schedule {
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
        Ok(Schedule::At(Fields {
            minute: field(minute, &MINUTE)?,
            hour: field(hour, &HOUR)?,
            day_of_month: field(day_of_month, &DAY_OF_MONTH)?,
            month: field(month, &MONTH)?,
            day_of_week: field(day_of_week, &DAY_OF_WEEK)?,
            zone,
        }))
    }
}

/// A leading `TZ=zone ` (an old habit that only CronJobs which have it may keep).
fn split_zone(text: &str) -> Result<(Option<TimeZone>, &str), String> {
    let Some(rest) = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) else {
        return Ok((None, text));
    };
    let Some((name, rest)) = rest.split_once(' ') else {
        return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned());
    };
    let zone = load_zone(name).map_err(|why| format!("provided bad location {name}: {why}"))?;
    Ok((zone, rest.trim()))
}

fn descriptor(text: &str, zone: Option<TimeZone>) -> Result<Schedule, String> {
    let all = |bounds: &Bounds| bits(bounds.min, bounds.max, 1) | STAR;
    let at = |hour, day_of_month, month, day_of_week| {
        Ok(Schedule::At(Fields { minute: 1, hour, day_of_month, month, day_of_week, zone }))
    };
    match text {
        "@yearly" | "@annually" => at(1, 1 << 1, 1 << 1, all(&DAY_OF_WEEK)),
        "@monthly" => at(1, 1 << 1, all(&MONTH), all(&DAY_OF_WEEK)),
        "@weekly" => at(1, all(&DAY_OF_MONTH), all(&MONTH), 1),
        "@daily" | "@midnight" => at(1, all(&DAY_OF_MONTH), all(&MONTH), all(&DAY_OF_WEEK)),
        "@hourly" => at(all(&HOUR), all(&DAY_OF_MONTH), all(&MONTH), all(&DAY_OF_WEEK)),
        _ => match text.strip_prefix("@every ") {
            Some(period) => {
                let nanos = duration::parse(period).map_err(|why| format!("failed to parse duration {text}: {why}"))?;
                Ok(Schedule::Every { secs: (nanos / 1_000_000_000).max(1) })
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
    let parts: Vec<&str> = text.split('/').collect();
    let limits: Vec<&str> = parts[0].split('-').collect();
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
        [] => (bounds.min, bounds.max),
    };
    let step = match parts[1..] {
        [] => 1,
        [step] => {
            let step = number(step)?;
            if limits.len() == 1 {
                end = bounds.max;
            }
            if step > 1 {
                star = 0;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
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

fn bits(start: u64, end: u64, step: u64) -> u64 {
    let step = usize::try_from(step).unwrap_or(usize::MAX).max(1);
    (start..=end).step_by(step).fold(0, |bits, n| bits | 1 << n)
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u64, String> {
    match bounds.names.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)) {
        Some((_, n)) => Ok(*n),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let bad = |why| Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {}: {why}", quote(text)));
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return bad("invalid syntax");
    }
    match text.parse::<i64>() {
        Err(_) => bad("value out of range"),
        Ok(n) => u64::try_from(n).map_err(|_| format!("negative number ({n}) not allowed: {text}")),
    }
}
