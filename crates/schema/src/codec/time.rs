//! `metav1.Time` and `metav1.MicroTime`: RFC 3339 read with Go's rules and complaints, written in UTC.

use jiff::civil::DateTime;
use jiff::tz::Offset;

use crate::field::quote;

/// Whole seconds, as `metav1.Time` is written; `None` for Go's zero time, which is written as `null`.
pub fn whole_seconds(text: &str) -> Result<Option<String>, String> {
    let utc = Reader::new(text, "2006-01-02T15:04:05Z07:00").read(false)?;
    Ok((!is_zero(utc)).then(|| render_seconds(utc)))
}

/// Six digits of fraction, no more and no fewer, as `metav1.MicroTime` reads and is written.
pub fn micro_time(text: &str) -> Result<Option<String>, String> {
    let utc = Reader::new(text, "2006-01-02T15:04:05.000000Z07:00").read(true)?;
    Ok((!is_zero(utc) || utc.subsec_nanosecond() != 0).then(|| render_micros(utc)))
}

pub fn render_seconds(t: DateTime) -> String {
    let (year, month, day) = (t.year(), t.month(), t.day());
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", t.hour(), t.minute(), t.second())
}

pub fn render_micros(t: DateTime) -> String {
    let seconds = render_seconds(t);
    format!("{}.{:06}Z", seconds.trim_end_matches('Z'), t.subsec_nanosecond() / 1000)
}

/// UTC, if it is in a year that RFC 3339 can write.
pub fn from_unix(seconds: i64, nanos: i32) -> Option<DateTime> {
    let timestamp = jiff::Timestamp::new(seconds, nanos).ok()?;
    let utc = Offset::UTC.to_datetime(timestamp);
    (0..=9999).contains(&utc.year()).then_some(utc)
}

fn is_zero(t: DateTime) -> bool {
    (t.year(), t.month(), t.day(), t.hour(), t.minute(), t.second()) == (1, 1, 1, 0, 0, 0)
}

struct Reader<'t> {
    text: &'t str,
    layout: &'static str,
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str, layout: &'static str) -> Reader<'t> {
        Reader { text, layout, rest: text }
    }

    fn read(mut self, micros: bool) -> Result<DateTime, String> {
        let year = self.number(4, "2006")?;
        self.literal("-")?;
        let month = self.ranged("01", "month", 1..=12)?;
        self.literal("-")?;
        let day = self.number(2, "02")?;
        self.literal("T")?;
        let hour = self.ranged("15", "hour", 0..=23)?;
        self.literal(":")?;
        let minute = self.ranged("04", "minute", 0..=59)?;
        self.literal(":")?;
        let second = self.ranged("05", "second", 0..=59)?;
        let nanos = if micros { self.micros()? } else { self.skip_fraction() };
        let offset = self.offset()?;
        if !self.rest.is_empty() {
            return Err(format!("parsing time {}: extra text: {}", quote(self.text), quote(self.rest)));
        }
        let narrow = |n: i32| i8::try_from(n).unwrap_or(0);
        let local = DateTime::new(
            i16::try_from(year).unwrap_or(0),
            narrow(month),
            narrow(day),
            narrow(hour),
            narrow(minute),
            narrow(second),
            nanos,
        )
        .map_err(|_| self.out_of_range("day"))?;
        let offset = Offset::from_seconds(offset).map_err(|_| self.out_of_range("time zone offset hour"))?;
        let timestamp = offset.to_timestamp(local).map_err(|_| self.out_of_range("year"))?;
        Ok(Offset::UTC.to_datetime(timestamp))
    }

    fn number(&mut self, digits: usize, element: &str) -> Result<i32, String> {
        let hold = self.rest;
        let head = hold.get(..digits).filter(|h| h.bytes().all(|b| b.is_ascii_digit()));
        let head = head.ok_or_else(|| self.cannot_parse(hold, element))?;
        self.rest = &hold[digits..];
        head.parse().map_err(|_| self.cannot_parse(hold, element))
    }

    fn ranged(&mut self, element: &str, name: &str, range: std::ops::RangeInclusive<i32>) -> Result<i32, String> {
        let n = self.number(2, element)?;
        if range.contains(&n) { Ok(n) } else { Err(self.out_of_range(name)) }
    }

    fn literal(&mut self, expected: &str) -> Result<(), String> {
        self.rest = self.rest.strip_prefix(expected).ok_or_else(|| self.cannot_parse(self.rest, expected))?;
        Ok(())
    }

    fn micros(&mut self) -> Result<i32, String> {
        let hold = self.rest;
        let digits = hold.get(..7).and_then(|f| f.strip_prefix(['.', ',']));
        let digits = digits.filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
        let digits = digits.ok_or_else(|| self.cannot_parse(hold, ".000000"))?;
        self.rest = &hold[7..];
        Ok(digits.parse::<i32>().unwrap_or(0) * 1000)
    }

    /// A fraction is allowed after the seconds even where the layout has none; seconds are all that is kept.
    fn skip_fraction(&mut self) -> i32 {
        if let Some(fraction) = self.rest.strip_prefix(['.', ',']) {
            let after = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if after.len() < fraction.len() {
                self.rest = after;
            }
        }
        0
    }

    fn offset(&mut self) -> Result<i32, String> {
        let hold = self.rest;
        if let Some(rest) = hold.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let sign = match hold.bytes().next() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Err(self.cannot_parse(hold, "Z07:00")),
        };
        let two = |from: usize| hold.get(from..from + 2).and_then(|d| d.parse::<u8>().ok()).map(i32::from);
        match (two(1), hold.get(3..4), two(4)) {
            (Some(hours), Some(":"), Some(minutes)) => {
                self.rest = &hold[6..];
                if hours > 24 {
                    return Err(self.out_of_range("time zone offset hour"));
                }
                if minutes > 60 {
                    return Err(self.out_of_range("time zone offset minute"));
                }
                Ok(sign * (hours * 3600 + minutes * 60))
            }
            _ => Err(self.cannot_parse(hold, "Z07:00")),
        }
    }

    fn cannot_parse(&self, rest: &str, element: &str) -> String {
        let (text, layout) = (quote(self.text), quote(self.layout));
        format!("parsing time {text} as {layout}: cannot parse {} as {}", quote(rest), quote(element))
    }

    fn out_of_range(&self, what: &str) -> String {
        format!("parsing time {}: {what} out of range", quote(self.text))
    }
}
