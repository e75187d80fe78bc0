//! Which slot of its schedule a CronJob is at: the latest one that has come and not been used, and when to look again.
//!
//! The search is upstream's: it estimates how many slots were missed from the first gap between two, and looks for the latest
//! one from shortly before the estimate. Irregular schedules can therefore have missed slots of which none is found.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::CronJob;
use usher_api::cron::{Schedule, load_zone};

/// Added to every wait, so that a clock that runs a little late is not asked before the slot.
const MARGIN: SignedDuration = SignedDuration::from_millis(100);
/// More missed slots than this are worth a warning.
const MANY: i64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    None,
    Few,
    Many,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent {
    /// From here on slots count.
    pub from: Timestamp,
    /// The latest slot that is not in the future.
    pub slot: Option<Timestamp>,
    pub missed: Missed,
}

/// The schedule is grammatical but has no two times, such as 31 February.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time difference between two schedules is less than 1 second")]
pub struct NoGap;

/// The schedule of a CronJob, in its zone. A zone that is unknown is left out, as upstream does.
pub fn schedule(cron: &CronJob) -> Result<Schedule, String> {
    let text = &cron.spec.schedule;
    match &cron.spec.time_zone {
        Some(zone) if !text.contains("TZ") && load_zone(zone).is_ok() => Schedule::parse(&format!("TZ={zone} {text}")),
        _ => Schedule::parse(text),
    }
}

/// `within_deadline`: do not look back further than `startingDeadlineSeconds`.
pub fn recent(
    cron: &CronJob,
    schedule: &Schedule,
    local: &TimeZone,
    now: Timestamp,
    within_deadline: bool,
) -> Result<Recent, NoGap> {
    let next = |after| schedule.next(after, local);
    let from = earliest(cron, now, within_deadline);
    let first = next(from).ok_or(NoGap)?;
    if now < first {
        return Ok(Recent { from, slot: None, missed: Missed::None });
    }
    let second = next(first).ok_or(NoGap)?;
    if now < second {
        return Ok(Recent { from, slot: Some(first), missed: Missed::None });
    }
    let gap = second.as_second() - first.as_second();
    if gap < 1 {
        return Err(NoGap);
    }
    let count = now.duration_since(first).as_secs() / gap + 1;
    let start = SignedDuration::from_secs((count - 2).saturating_mul(gap));
    let start = first.checked_add(start).unwrap_or(first);
    let slot = std::iter::successors(next(start), |t| next(*t)).take_while(|t| *t <= now).last();
    Ok(Recent { from, slot, missed: if count > MANY { Missed::Many } else { Missed::Few } })
}

fn earliest(cron: &CronJob, now: Timestamp, within_deadline: bool) -> Timestamp {
    let last = cron.status.as_ref().and_then(|status| status.last_schedule_time.as_ref());
    let created = cron.metadata.creation_timestamp.as_ref();
    let earliest = last.or(created).map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    match cron.spec.starting_deadline_seconds.filter(|_| within_deadline) {
        Some(secs) => earliest.max(now.saturating_sub(SignedDuration::from_secs(secs)).unwrap_or(Timestamp::MIN)),
        None => earliest,
    }
}

/// How long until the next slot that may be used; `None` when there is none to wait for.
pub fn wait(cron: &CronJob, schedule: &Schedule, local: &TimeZone, now: Timestamp) -> Option<Duration> {
    let base = match recent(cron, schedule, local, now, false) {
        Ok(Recent { slot: Some(slot), .. }) => slot,
        Ok(Recent { from, missed: Missed::None, .. }) => from,
        Ok(_) | Err(NoGap) => now,
    };
    let next = schedule.next(base, local)?;
    Some(Duration::try_from(next.duration_since(now).saturating_add(MARGIN)).unwrap_or_default())
}
