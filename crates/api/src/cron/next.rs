//! The next time of a schedule, found as robfig/cron finds it.
//!
//! The search walks local time from the coarsest field to the finest: months and days by the calendar, hours and minutes by
//! absolute time. What that does around clock changes is what Kubernetes does: a local time that never happens is skipped,
//! one that happens twice runs twice if its hour is walked through.
//!
//! Every search ends: it gives up five years on, and a field without any value is not searched for at all.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

use super::grammar::{Fields, STAR, Schedule};

/// Further than this the search does not look, in years.
const PATIENCE: i64 = 5;
const HOUR: i64 = 3600;
const DAY: i64 = 86_400;

impl Schedule {
    /// The first time after `after`; `None` if there is none within five years. `local` is the zone of a schedule that
    /// names none.
    pub fn next(&self, after: Timestamp, local: &TimeZone) -> Option<Timestamp> {
        let second = i64::try_from(after.as_nanosecond().div_euclid(1_000_000_000)).ok()?;
        let found = match self {
            Schedule::Every { secs } => second.checked_add(*secs)?,
            Schedule::At(fields) => {
                let zone = fields.zone.as_ref().unwrap_or(local);
                Search { fields, zone }.from(Local::at(second.checked_add(1)?, zone)?)?.unix
            }
        };
        Timestamp::from_second(found).ok()
    }
}

/// A moment, and how clocks of the zone show it.
#[derive(Clone, Copy)]
struct Local {
    unix: i64,
    shown: DateTime,
}

impl Local {
    fn at(unix: i64, zone: &TimeZone) -> Option<Local> {
        let at = Timestamp::from_second(unix).ok()?;
        Some(Local { unix, shown: zone.to_offset(at).to_datetime(at) })
    }

    fn year(&self) -> i64 {
        self.shown.year().into()
    }

    fn month(&self) -> i64 {
        self.shown.month().into()
    }

    fn day(&self) -> i64 {
        self.shown.day().into()
    }

    fn hour(&self) -> i64 {
        self.shown.hour().into()
    }

    fn minute(&self) -> i64 {
        self.shown.minute().into()
    }

    fn second(&self) -> i64 {
        self.shown.second().into()
    }
}

/// `None` from a step means that time itself ends: the calendar reaches the year 9999.
struct Search<'a> {
    fields: &'a Fields,
    zone: &'a TimeZone,
}

/// Whether a walk through one field ended on a match, or carried into a coarser field.
enum Walk {
    Matched(Local),
    Carried(Local),
}

impl Search<'_> {
    fn from(&self, mut t: Local) -> Option<Local> {
        let Fields { minute, hour, month, .. } = self.fields;
        if [minute, hour, month].into_iter().any(|bits| bits & !STAR == 0) {
            return None;
        }
        let last_year = t.year() + PATIENCE;
        // Whether finer fields have been set to their start already.
        let mut reset = false;
        while t.year() <= last_year {
            t = match self.walk(t, &mut reset)? {
                Walk::Matched(found) => return Some(found),
                Walk::Carried(on) => on,
            };
        }
        None
    }

    fn walk(&self, t: Local, reset: &mut bool) -> Option<Walk> {
        let mut t = t;
        for step in [Self::months, Self::days, Self::hours, Self::minutes, Self::seconds] {
            match step(self, t, reset)? {
                Walk::Matched(on) => t = on,
                carried => return Some(carried),
            }
        }
        Some(Walk::Matched(t))
    }

    fn months(&self, mut t: Local, reset: &mut bool) -> Option<Walk> {
        while !has(self.fields.month, t.month()) {
            if !*reset {
                *reset = true;
                t = self.date(t.year(), t.month(), 1, 0)?;
            }
            t = self.date(t.year(), t.month() + 1, t.day(), time_of_day(&t))?;
            if t.month() == 1 {
                return Some(Walk::Carried(t));
            }
        }
        Some(Walk::Matched(t))
    }

    fn days(&self, mut t: Local, reset: &mut bool) -> Option<Walk> {
        while !self.day_matches(&t) {
            if !*reset {
                *reset = true;
                t = self.date(t.year(), t.month(), t.day(), 0)?;
            }
            let before = t.unix;
            t = self.date(t.year(), t.month(), t.day() + 1, time_of_day(&t))?;
            if t.unix <= before {
                // The zone leaves this day out (Apia, 30 December 2011). robfig/cron would stay here for ever.
                t = Local::at(before + DAY, self.zone)?;
            }
            // Where midnight does not exist it was shown as 23:00 or 01:00.
            if t.hour() > 12 {
                t = Local::at(t.unix + (24 - t.hour()) * HOUR, self.zone)?;
            } else if t.hour() != 0 {
                t = Local::at(t.unix - t.hour() * HOUR, self.zone)?;
            }
            if t.day() == 1 {
                return Some(Walk::Carried(t));
            }
        }
        Some(Walk::Matched(t))
    }

    fn hours(&self, mut t: Local, reset: &mut bool) -> Option<Walk> {
        while !has(self.fields.hour, t.hour()) {
            if !*reset {
                *reset = true;
                t = self.date(t.year(), t.month(), t.day(), t.hour() * HOUR)?;
            }
            t = Local::at(t.unix + HOUR, self.zone)?;
            if t.hour() == 0 {
                return Some(Walk::Carried(t));
            }
        }
        Some(Walk::Matched(t))
    }

    fn minutes(&self, mut t: Local, reset: &mut bool) -> Option<Walk> {
        while !has(self.fields.minute, t.minute()) {
            if !*reset {
                *reset = true;
                t = Local::at(t.unix - t.unix.rem_euclid(60), self.zone)?;
            }
            t = Local::at(t.unix + 60, self.zone)?;
            if t.minute() == 0 {
                return Some(Walk::Carried(t));
            }
        }
        Some(Walk::Matched(t))
    }

    /// To the start of the next minute, unless at one: in one step where the clock does not change on the way.
    fn seconds(&self, mut t: Local, reset: &mut bool) -> Option<Walk> {
        while t.second() != 0 {
            *reset = true;
            let on = Local::at(t.unix + 60 - t.second(), self.zone)?;
            t = if on.second() == 0 { on } else { Local::at(t.unix + 1, self.zone)? };
            if t.second() == 0 {
                return Some(Walk::Carried(t));
            }
        }
        Some(Walk::Matched(t))
    }

    /// Both fields must match if one of them is a star, else one is enough.
    fn day_matches(&self, t: &Local) -> bool {
        let Fields { day_of_month, day_of_week, .. } = self.fields;
        let by_month = has(*day_of_month, t.day());
        let by_week = has(*day_of_week, t.shown.weekday().to_sunday_zero_offset().into());
        if (day_of_month | day_of_week) & STAR != 0 { by_month && by_week } else { by_month || by_week }
    }

    /// The moment at which clocks show this, as Go's `time.Date` picks it where they show it twice or never. A month or day
    /// beyond the last carries over.
    fn date(&self, year: i64, month: i64, day: i64, secs: i64) -> Option<Local> {
        let (year, month) = if month > 12 { (year + 1, month - 12) } else { (year, month) };
        let first = DateTime::new(year.try_into().ok()?, month.try_into().ok()?, 1, 0, 0, 0, 0).ok()?;
        let shown = Offset::UTC.to_timestamp(first).ok()?.as_second() + (day - 1) * DAY + secs;
        let guess = self.offset(shown)?;
        let unix = if guess == 0 { shown } else { shown - self.offset(shown - guess)? };
        Local::at(unix, self.zone)
    }

    fn offset(&self, unix: i64) -> Option<i64> {
        Some(self.zone.to_offset(Timestamp::from_second(unix).ok()?).seconds().into())
    }
}

fn has(bits: u64, value: i64) -> bool {
    bits & (1 << value) != 0
}

fn time_of_day(t: &Local) -> i64 {
    t.hour() * HOUR + t.minute() * 60 + t.second()
}
