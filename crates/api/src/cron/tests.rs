//! Against robfig/cron's own answers, and the cases that a reader wants to see spelled out.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::grammar::STAR;
use super::{Fields, Schedule, load_zone};

const GOLDEN: &str = include_str!("../../testdata/cron.txt");

/// What we make of a golden line, in the same notation.
fn ours(line: &str) -> String {
    let parts: Vec<&str> = line.split('\t').collect();
    match parts[..] {
        ["next", zone, text, start, ..] => {
            let schedule = Schedule::parse(&format!("TZ={zone} {text}")).expect(line);
            let mut at: Timestamp = Timestamp::from_second(start.parse().expect(line)).expect(line);
            let mut times = Vec::new();
            while times.len() < 5 {
                match schedule.next(at, &TimeZone::UTC) {
                    Some(next) => (at, times) = (next, [times, vec![next.as_second().to_string()]].concat()),
                    None => {
                        times.push("never".to_owned());
                        break;
                    }
                }
            }
            format!("next\t{zone}\t{text}\t{start}\t{}", times.join(" "))
        }
        [_, quoted, ..] => {
            let text: String = serde_json::from_str(quoted).expect(line);
            match Schedule::parse(&text) {
                Ok(_) => format!("fine\t{quoted}"),
                Err(why) => format!("error\t{quoted}\t{why}"),
            }
        }
        _ => panic!("{line}"),
    }
}

#[test]
fn every_golden_vector_of_the_go_library_is_matched() {
    let text = match std::env::var("USHER_CRON_GOLDEN") {
        Ok(path) => std::fs::read_to_string(path).expect("more vectors, from tools/crongold"),
        Err(_) => GOLDEN.to_owned(),
    };
    let wrong: Vec<_> = text.lines().map(|line| (line, ours(line))).filter(|(line, ours)| line != ours).collect();
    for (line, ours) in wrong.iter().take(10) {
        println!("go   {line}\nours {ours}\n");
    }
    assert_eq!(wrong.len(), 0, "of {}", text.lines().count());
}

/// The first times after `start`, all in local time.
fn times(zone: &str, schedule: &str, start: &str, count: usize) -> Vec<String> {
    let schedule = Schedule::parse(&format!("TZ={zone} {schedule}")).expect(schedule);
    let zone = TimeZone::get(zone).expect(zone);
    let mut at: Timestamp = start.parse().expect(start);
    let mut out = Vec::new();
    while let Some(next) = schedule.next(at, &TimeZone::UTC).filter(|_| out.len() < count) {
        out.push(next.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M%:z").to_string());
        at = next;
    }
    out
}

#[test]
fn clocks_that_change_are_followed_as_kubernetes_follows_them() {
    for (what, zone, schedule, start, expected) in [
        (
            "the hour that never happens is left out",
            "Europe/Berlin",
            "30 2 * * *",
            "2026-03-27T12:00:00Z",
            vec!["2026-03-28T02:30+01:00", "2026-03-30T02:30+02:00"],
        ),
        (
            "the hour that happens twice runs twice",
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-24T12:00:00Z",
            vec!["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00", "2026-10-26T02:30+01:00"],
        ),
        (
            "every hour is every hour",
            "Europe/Berlin",
            "0 * * * *",
            "2026-10-24T23:30:00Z",
            vec!["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
        ),
        (
            "half-hour offsets",
            "Asia/Kolkata",
            "0 9 * * *",
            "2026-01-01T00:00:00Z",
            vec!["2026-01-01T09:00+05:30", "2026-01-02T09:00+05:30"],
        ),
        (
            "a summer time of half an hour",
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2025-10-03T12:00:00Z",
            vec!["2025-10-04T02:15+10:30", "2025-10-06T02:15+11:00"],
        ),
        (
            "a midnight that does not exist",
            "America/Sao_Paulo",
            "0 0 * * *",
            "2018-11-03T00:00:00Z",
            vec!["2018-11-03T00:00-03:00", "2018-11-05T00:00-02:00"],
        ),
        (
            "a day that does not exist",
            "Pacific/Apia",
            "0 0 31 12 *",
            "2011-12-01T00:00:00Z",
            vec!["2011-12-31T00:00+14:00", "2012-12-31T00:00+14:00"],
        ),
        (
            "leap days",
            "UTC",
            "0 0 29 2 *",
            "2025-01-01T00:00:00Z",
            vec!["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"],
        ),
        ("leap days across 2100", "UTC", "0 0 29 2 *", "2096-03-01T00:00:00Z", vec![]),
        ("a day that no year has", "UTC", "59 23 31 2 *", "2026-01-01T00:00:00Z", vec![]),
        (
            "either day, where both are restricted",
            "UTC",
            "0 0 13 * 5",
            "2026-11-01T00:00:00Z",
            vec!["2026-11-06T00:00+00:00", "2026-11-13T00:00+00:00", "2026-11-20T00:00+00:00"],
        ),
        (
            "both days, where one is a star",
            "UTC",
            "0 0 * * 5",
            "2026-11-01T00:00:00Z",
            vec!["2026-11-06T00:00+00:00", "2026-11-13T00:00+00:00"],
        ),
        (
            "a stepped star is no star",
            "UTC",
            "0 0 */15 * 5",
            "2026-11-01T00:00:00Z",
            vec!["2026-11-06T00:00+00:00", "2026-11-13T00:00+00:00", "2026-11-16T00:00+00:00"],
        ),
    ] {
        assert_eq!(times(zone, schedule, start, expected.len().max(1)), expected, "{what}");
    }
}

#[test]
fn a_period_runs_from_where_it_is_asked_and_ignores_zones() {
    let schedule = Schedule::parse("TZ=Asia/Kolkata @every 90m").expect("a schedule");
    let next = schedule.next("2026-01-01T00:00:00.7Z".parse().expect("a time"), &TimeZone::UTC);
    assert_eq!(next.map(|t| t.to_string()).as_deref(), Some("2026-01-01T01:30:00Z"));
    assert_eq!(Schedule::parse("@every 10ms"), Ok(Schedule::Every { secs: 1 }));
}

#[test]
fn a_schedule_without_a_zone_is_read_in_that_of_the_asker() {
    let schedule = Schedule::parse("0 9 * * *").expect("a schedule");
    let kolkata = TimeZone::get("Asia/Kolkata").expect("a zone");
    let next = schedule.next("2026-01-01T00:00:00Z".parse().expect("a time"), &kolkata);
    assert_eq!(next.map(|t| t.to_string()).as_deref(), Some("2026-01-01T03:30:00Z"));
}

/// The worst anyone can write ends soon: nothing matches, and it is searched for among five years of minutes.
#[test]
fn a_hostile_schedule_costs_little() {
    let started = std::time::Instant::now();
    for text in [", * * * *", "* , * * *", "* * , * *", "* * * , *", "* * * * ,", "59 23 31 2,4,6,9,11 *"] {
        let schedule = Schedule::parse(text).expect(text);
        assert_eq!(schedule.next("2026-01-01T00:00:00Z".parse().expect("a time"), &TimeZone::UTC), None, "{text}");
    }
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    for end in [Timestamp::MAX, Timestamp::MIN] {
        for text in ["* * * * *", "@every 2562047h", "0 0 29 2 *", "@yearly"] {
            let _ = Schedule::parse(text).expect(text).next(end, &TimeZone::UTC);
        }
    }
}

#[test]
fn schedules_are_read_into_bits() {
    let Ok(Schedule::At(Fields { minute, hour, day_of_month, month, day_of_week, zone: None })) =
        Schedule::parse("*/15 0 1,15 JAN-mar ?")
    else {
        panic!("not understood");
    };
    assert_eq!(minute, 1 | 1 << 15 | 1 << 30 | 1 << 45, "a step above 1 is not a star");
    assert_eq!((hour, day_of_month, month), (1, 1 << 1 | 1 << 15, 0b1110));
    assert_eq!(day_of_week, 0b111_1111 | STAR);
    assert_eq!(Schedule::parse("@hourly"), Schedule::parse("0 * * * *"));
    assert_eq!(Schedule::parse("@yearly"), Schedule::parse("0 0 1 1 *"));
}

#[test]
fn zones_are_known_by_their_exact_name() {
    for good in ["America/New_York", "UTC", "", "Etc/GMT+5"] {
        assert!(load_zone(good).is_ok_and(|zone| zone.is_some()), "{good}");
    }
    assert_eq!(load_zone("Local"), Ok(None));
    for bad in ["america/new_york", "Mars/Olympus", "utc", "Etc/Unknown"] {
        assert_eq!(load_zone(bad), Err(format!("unknown time zone {bad}")));
    }
    assert_eq!(load_zone("../etc/passwd"), Err("time: invalid location name".to_owned()));
}
