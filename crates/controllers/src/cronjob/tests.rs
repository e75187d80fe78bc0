//! Decisions as tables: a CronJob, its Jobs, a moment, and what comes of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::decide::{Decision, Ended, Observed, Then, decide, forgotten, start_or_wait, surplus, unseen};
use super::hear::{Timetable, Wake, wake};
use super::notes::Note;
use super::run::Policy;
use super::{job, slots};
use crate::runtime::events::Severity;

/// Created at midnight, every hour.
fn cron(spec: Value, status: Value) -> CronJob {
    let mut base = json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "cu", "creationTimestamp": "2026-11-16T00:00:00Z"},
        "spec": {"schedule": "0 * * * *", "concurrencyPolicy": "Allow", "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1,
            "jobTemplate": {"metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}},
                "spec": {"template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}}},
        "status": status,
    });
    for (key, value) in spec.as_object().expect("a spec") {
        base["spec"][key] = value.clone();
    }
    serde_json::from_value(base).expect("a CronJob")
}

fn job(name: &str, uid: &str, condition: Option<&str>, times: Value) -> Arc<Job> {
    let mut status = times;
    if let Some(condition) = condition {
        status["conditions"] = json!([{"type": condition, "status": "True"}]);
    }
    Arc::new(serde_json::from_value(json!({"metadata": {"name": name, "uid": uid}, "status": status})).expect("a Job"))
}

fn at(text: &str) -> Timestamp {
    format!("2026-11-16T{text}Z").parse().expect(text)
}

fn listed(name: &str, uid: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "namespace": "n", "name": name, "uid": uid})
}

struct World {
    cron: CronJob,
    jobs: Vec<Arc<Job>>,
    missing: Vec<ObjectReference>,
}

impl World {
    fn of(cron: CronJob) -> World {
        World { cron, jobs: vec![], missing: vec![] }
    }

    fn decide(&self, now: Timestamp) -> Decision {
        let reaped = BTreeSet::new();
        let seen = Observed { cron: &self.cron, jobs: &self.jobs, reaped: &reaped, missing: &self.missing };
        decide(&seen, now, &Policy::default())
    }
}

/// The slot that is started, or how long it waits, in a word.
fn then(decision: &Decision) -> String {
    match &decision.then {
        Then::Rest => "rest".to_owned(),
        Then::Wait(delay) => format!("wait {:.1}", delay.as_secs_f64()),
        Then::Start(start) => format!(
            "start {} replacing {} then {:.1}",
            start.slot.strftime("%H:%M:%S"),
            start.replaces.len(),
            start.wait.unwrap_or_default().as_secs_f64()
        ),
    }
}

#[test]
fn slots_are_used_waited_for_and_missed_as_upstream_does() {
    let last = |time: &str| json!({"lastScheduleTime": format!("2026-11-16T{time}Z")});
    let busy = json!({"active": [listed("c-1", "j1")], "lastScheduleTime": "2026-11-16T01:00:00Z"});
    let nothing = json!({});
    let many: Vec<Note> = vec![Note::TooManyMissedTimes];
    let invalid = |schedule: &str| Note::InvalidSchedule {
        schedule: schedule.to_owned(),
        why: "time difference between two schedules is less than 1 second".to_owned(),
    };
    for (what, spec, status, now, expected, notes) in [
        ("before the first slot", json!({}), nothing.clone(), "00:59:59.5", "wait 0.6", vec![]),
        ("at the slot", json!({}), nothing.clone(), "01:00:00", "start 01:00:00 replacing 0 then 3600.1", vec![]),
        ("a used slot", json!({}), last("01:00:00"), "01:00:00.1", "wait 3600.0", vec![]),
        (
            "two missed slots: the later",
            json!({}),
            nothing.clone(),
            "02:10:00",
            "start 02:00:00 replacing 0 then 3000.1",
            vec![],
        ),
        (
            "a hundred missed slots",
            json!({"schedule": "* * * * *"}),
            nothing.clone(),
            "01:40:30",
            "start 01:40:00 replacing 0 then 30.1",
            vec![],
        ),
        (
            "more than a hundred: it still runs",
            json!({"schedule": "* * * * *"}),
            nothing.clone(),
            "01:41:30",
            "start 01:41:00 replacing 0 then 30.1",
            many,
        ),
        (
            "a deadline cuts what was missed off",
            json!({"schedule": "* * * * *", "startingDeadlineSeconds": 100}),
            nothing.clone(),
            "05:41:30",
            "start 05:41:00 replacing 0 then 30.1",
            vec![],
        ),
        (
            "within the deadline",
            json!({"startingDeadlineSeconds": 60}),
            nothing.clone(),
            "01:00:59",
            "start 01:00:00 replacing 0 then 3541.1",
            vec![],
        ),
        (
            "past the deadline nothing is due",
            json!({"startingDeadlineSeconds": 60}),
            nothing.clone(),
            "01:01:01",
            "wait 3539.1",
            vec![],
        ),
        (
            "a period that begins at the deadline, but a second late",
            json!({"schedule": "@every 61s", "startingDeadlineSeconds": 60}),
            json!({"lastScheduleTime": "2026-11-16T00:58:00Z"}),
            "01:00:30.5",
            "wait 32.6",
            vec![],
        ),
        ("suspended", json!({"suspend": true}), nothing.clone(), "01:00:00", "rest", vec![]),
        (
            "forbidden while one runs",
            json!({"concurrencyPolicy": "Forbid"}),
            busy.clone(),
            "02:00:00",
            "wait 3600.1",
            vec![Note::JobAlreadyActive],
        ),
        (
            "allowed while one runs",
            json!({}),
            busy.clone(),
            "02:00:00",
            "start 02:00:00 replacing 0 then 3600.1",
            vec![],
        ),
        (
            "replacing the one that runs",
            json!({"concurrencyPolicy": "Replace"}),
            busy.clone(),
            "02:00:00",
            "start 02:00:00 replacing 1 then 3600.1",
            vec![],
        ),
        (
            "the slot's Job is listed already",
            json!({}),
            json!({"active": [listed("c-29913180", "j")]}),
            "01:00:00",
            "wait 3600.1",
            vec![],
        ),
        (
            "a day that does not exist",
            json!({"schedule": "59 23 31 2 *"}),
            nothing.clone(),
            "01:00:00",
            "rest",
            vec![invalid("59 23 31 2 *")],
        ),
        (
            "a clock set back: the slots that were used stay used",
            json!({}),
            last("02:00:00"),
            "01:59:00",
            "wait 3660.1",
            vec![],
        ),
        (
            "an irregular schedule of which no missed slot is found",
            json!({"schedule": "0,1 1 * * *"}),
            nothing.clone(),
            "03:00:00",
            "wait 79200.1",
            vec![],
        ),
    ] {
        let decision = World::of(cron(spec, status)).decide(at(now));
        let notes: Vec<Note> = notes;
        assert_eq!((then(&decision).as_str(), decision.notes), (expected, notes), "{what}");
    }
}

/// The search does not give a slot past its deadline, here as upstream; the step that follows it does not rely on that.
#[test]
fn a_slot_past_its_deadline_is_missed_and_not_marked_as_used() {
    let cron = cron(json!({"startingDeadlineSeconds": 60}), json!({}));
    let schedule = slots::schedule(&cron).unwrap();
    let mut notes = vec![];
    let then = start_or_wait(&cron, &schedule, at("01:00:00"), at("01:01:01"), &Policy::default(), &mut notes);
    assert_eq!(notes, [Note::MissSchedule { slot: at("01:00:00") }]);
    assert_eq!(then, Then::Wait(Duration::from_millis(59 * 60_000 - 1000 + 100)));
}

#[test]
fn an_unknown_zone_or_schedule_is_told_and_nothing_more() {
    let zone = World::of(cron(json!({"timeZone": "Narnia"}), json!({}))).decide(at("01:00:00"));
    let why = "unknown time zone Narnia".to_owned();
    assert_eq!(zone.notes, [Note::UnknownTimeZone { zone: "Narnia".into(), why }]);
    let bad = World::of(cron(json!({"schedule": "* *"}), json!({}))).decide(at("01:00:00"));
    let why = "expected exactly 5 fields, found 2: [* *]".to_owned();
    assert_eq!(bad.notes, [Note::UnparseableSchedule { schedule: "* *".into(), why }]);
    assert_eq!((zone.then, bad.then), (Then::Rest, Then::Rest));
}

#[test]
fn a_zone_within_the_schedule_is_frowned_upon_and_followed() {
    let schedule = "TZ=Asia/Kolkata 30 6 * * *";
    let decision = World::of(cron(json!({"schedule": schedule}), json!({}))).decide(at("01:00:00"));
    assert_eq!(decision.notes, [Note::UnsupportedSchedule { schedule: schedule.into() }]);
    let Then::Start(start) = decision.then else { panic!("not started") };
    assert_eq!(
        start.job.metadata.annotations.unwrap()[job::SCHEDULED],
        "2026-11-16T01:00:00Z",
        "shown in UTC all the same"
    );
}

#[test]
fn a_cron_job_on_its_way_out_only_keeps_its_books() {
    let mut cron = cron(json!({}), json!({"active": [listed("done", "d")]}));
    cron.metadata.deletion_timestamp = cron.metadata.creation_timestamp.clone();
    let jobs = vec![job("done", "d", Some("Failed"), json!({}))];
    let decision = World { jobs, ..World::of(cron) }.decide(at("01:00:00"));
    assert_eq!(decision.notes, [Note::SawCompletedJob { job: "done".into(), condition: Ended::Failed }]);
    assert_eq!((decision.status.active, decision.then), (None, Then::Rest));
}

#[test]
fn the_books_follow_the_jobs() {
    let active = json!({"active": [listed("done", "d"), listed("runs", "r"), listed("lost", "l")]});
    let world = World {
        jobs: vec![
            job("done", "d", Some("Complete"), json!({"completionTime": "2026-11-16T00:40:00Z"})),
            job("older", "o", Some("Complete"), json!({"completionTime": "2026-11-16T00:20:00Z"})),
            job("runs", "r", None, json!({})),
            job("strange", "s", None, json!({})),
        ],
        missing: vec![serde_json::from_value(listed("lost", "l")).unwrap()],
        cron: cron(json!({}), active),
    };
    assert_eq!(forgotten(&world.cron, &world.jobs), ["s"]);
    assert_eq!(unseen(&world.cron, &world.jobs).len(), 1);
    let decision = world.decide(at("00:50:00"));
    let text: Vec<_> = decision.notes.iter().map(|note| note.render().2).collect();
    assert_eq!(
        text,
        [
            "Saw completed job: done, condition: Complete",
            "Saw a job that the controller did not create or forgot: strange",
            "Active job went missing: lost",
        ]
    );
    let left = decision.status.active.unwrap();
    assert_eq!(
        left.iter().map(|r| r.name.as_deref().unwrap()).collect::<Vec<_>>(),
        ["runs"],
        "strangers are not adopted"
    );
    assert_eq!(decision.status.last_successful_time.unwrap().0, at("00:40:00"));
}

#[test]
fn an_entry_without_a_uid_is_asked_about_and_removed_when_its_job_is_missing() {
    let entry = |name: &str| json!({"kind": "Job", "namespace": "n", "name": name});
    let status = json!({"active": [entry("gone"), entry("there")], "lastScheduleTime": "2026-11-16T00:00:00Z"});
    let mut world = World::of(cron(json!({"concurrencyPolicy": "Forbid"}), status));
    assert_eq!(unseen(&world.cron, &world.jobs).len(), 2);
    world.missing = vec![serde_json::from_value(entry("gone")).unwrap()];
    let decision = world.decide(at("01:00:00"));
    assert_eq!(decision.notes, [Note::MissingJob { job: "gone".into() }, Note::JobAlreadyActive]);
    world.missing.push(serde_json::from_value(entry("there")).unwrap());
    let decision = world.decide(at("01:00:00"));
    assert_eq!((decision.status.active.clone(), &then(&decision)[..14]), (None, "start 01:00:00"));
}

#[test]
fn history_drops_the_oldest_and_counts_success_and_failure_apart() {
    let ended = |name: &str, condition, minute: Option<u8>| {
        let times = minute.map_or(json!({}), |m| json!({"startTime": format!("2026-11-16T00:{m:02}:00Z")}));
        job(name, name, Some(condition), times)
    };
    let jobs = [
        ended("b", "Complete", Some(2)),
        ended("never-started", "Complete", None),
        ended("a", "Complete", Some(2)),
        ended("c", "Complete", Some(1)),
        ended("x", "Failed", Some(5)),
        ended("y", "Failed", Some(4)),
        job("runs", "runs", None, json!({})),
    ];
    let names = |spec: Value| -> Vec<String> {
        surplus(&cron(spec, json!({})), &jobs).iter().map(|job| job.metadata.name.clone().unwrap()).collect()
    };
    assert_eq!(names(json!({})), ["c", "y"]);
    assert_eq!(
        names(json!({"successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 2})),
        ["c", "a", "b", "never-started"]
    );
    assert!(names(json!({"successfulJobsHistoryLimit": null, "failedJobsHistoryLimit": null})).is_empty());
}

#[test]
fn the_job_of_a_slot_carries_the_slot() {
    let built = |spec: Value, policy: &Policy| job::build(&cron(spec, json!({})), at("00:30:00"), policy);
    let scheduled = |spec: Value| built(spec, &Policy::default()).metadata.annotations.unwrap()[job::SCHEDULED].clone();
    assert_eq!(scheduled(json!({})), "2026-11-16T00:30:00Z");
    assert_eq!(scheduled(json!({"timeZone": "Asia/Kolkata"})), "2026-11-16T06:00:00+05:30");
    assert_eq!(scheduled(json!({"timeZone": "America/New_York"})), "2026-11-15T19:30:00-05:00");
    assert_eq!(scheduled(json!({"timeZone": "Europe/London"})), "2026-11-16T00:30:00Z", "no offset is Z");

    let template = json!({"metadata": {"annotations": {job::SCHEDULED: "mine", "a": "1"}}, "spec": {"template": {"spec": {"containers": []}}}});
    let overridden = built(json!({"jobTemplate": template}), &Policy::default());
    assert_eq!(overridden.metadata.annotations.unwrap()[job::SCHEDULED], "2026-11-16T00:30:00Z");
    let off = built(json!({"jobTemplate": template}), &Policy { annotate: false, ..Policy::default() });
    assert_eq!(off.metadata.annotations.unwrap()[job::SCHEDULED], "mine", "off: nothing is touched");

    let made = built(json!({}), &Policy::default());
    assert_eq!(made.metadata.name.as_deref(), Some("c-29913150"));
    assert_eq!(made.metadata.labels.unwrap()["l"], "1");
    let owner = &made.metadata.owner_references.unwrap()[0];
    assert_eq!(
        (&*owner.kind, &*owner.uid, owner.controller, owner.block_owner_deletion),
        ("CronJob", "cu", Some(true), Some(true))
    );
}

#[test]
fn a_changed_schedule_waits_for_its_next_slot_and_other_changes_do_not() {
    let new = cron(json!({"schedule": "30 * * * *"}), json!({}));
    let wake =
        |before: &CronJob, new: &CronJob| wake(Some(&Timetable::of(before)), new, at("00:40:00"), &Policy::default());
    let old = cron(json!({}), json!({}));
    assert_eq!(wake(&old, &cron(json!({"suspend": true}), json!({}))), Wake::Now);
    assert_eq!(wake(&old, &new), Wake::After(Duration::from_millis(50 * 60_000 + 100)));
    assert_eq!(
        wake(&old, &cron(json!({"timeZone": "Asia/Kolkata"}), json!({}))),
        Wake::After(Duration::from_millis(50 * 60_000 + 100))
    );
    let bad = cron(json!({"schedule": "nonsense"}), json!({}));
    assert_eq!(wake(&old, &bad), Wake::Never(Note::UnparseableChange { schedule: "nonsense".into() }));
    let mut other = new.clone();
    other.metadata.uid = Some("another".into());
    assert_eq!(wake(&old, &other), Wake::Now, "created anew");
}

#[test]
fn a_schedule_without_another_slot_is_not_waited_for() {
    let leap = cron(json!({"schedule": "0 0 29 2 *"}), json!({}));
    let now: Timestamp = "2096-03-01T00:00:00Z".parse().unwrap();
    let schedule = slots::schedule(&leap).unwrap();
    assert_eq!(slots::wait(&leap, &schedule, &Policy::default().local, now), None);
}

#[test]
fn notes_read_as_upstreams_events() {
    let text = |note: Note| {
        let (severity, reason, message) = note.render();
        format!("{} {reason}: {message}", if severity == Severity::Normal { "Normal" } else { "Warning" })
    };
    let s = |text: &str| text.to_owned();
    for (note, expected) in [
        (
            Note::UnexpectedJob { job: s("j") },
            "Warning UnexpectedJob: Saw a job that the controller did not create or forgot: j",
        ),
        (
            Note::SawCompletedJob { job: s("j"), condition: Ended::Complete },
            "Normal SawCompletedJob: Saw completed job: j, condition: Complete",
        ),
        (Note::MissingJob { job: s("j") }, "Normal MissingJob: Active job went missing: j"),
        (
            Note::UnknownTimeZone { zone: s("X"), why: s("unknown time zone X") },
            "Warning UnknownTimeZone: invalid timeZone: \"X\": unknown time zone X",
        ),
        (
            Note::UnsupportedSchedule { schedule: s("TZ=UTC @daily") },
            "Warning UnsupportedSchedule: CRON_TZ or TZ used in schedule \"TZ=UTC @daily\" is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
        ),
        (
            Note::UnparseableSchedule { schedule: s("x"), why: s("y") },
            "Warning UnparseableSchedule: unparseable schedule: \"x\" : y",
        ),
        (
            Note::UnparseableChange { schedule: s("x") },
            "Warning UnParseableCronJobSchedule: unparseable schedule for cronjob: x",
        ),
        (Note::InvalidSchedule { schedule: s("x"), why: s("y") }, "Warning InvalidSchedule: invalid schedule: x : y"),
        (
            Note::TooManyMissedTimes,
            "Warning TooManyMissedTimes: too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew",
        ),
        (
            Note::MissSchedule { slot: at("01:00:00") },
            "Warning MissSchedule: Missed scheduled time to start a job: Mon, 16 Nov 2026 01:00:00 +0000",
        ),
        (
            Note::JobAlreadyActive,
            "Normal JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid",
        ),
        (Note::FailedGet { why: s("y") }, "Warning FailedGet: Get job: y"),
        (Note::Deleted { job: s("j") }, "Normal SuccessfulDelete: Deleted job j"),
        (Note::FailedDelete { why: s("y") }, "Warning FailedDelete: Deleted job: y"),
        (Note::Created { job: s("j") }, "Normal SuccessfulCreate: Created job j"),
        (Note::FailedCreate { why: s("y") }, "Warning FailedCreate: Error creating job: y"),
    ] {
        assert_eq!(text(note), expected);
    }
}

/// A year as the controller would live it, without a server: every decision is carried out on plain values, each Job ends a
/// second after it was made, and nothing is looked at but when it was asked for. Returns the slots, as the Jobs carry them.
fn live(mut cron: CronJob, from: Timestamp, until: Timestamp) -> Vec<String> {
    let (mut now, mut jobs, mut made) = (from, Vec::<Arc<Job>>::new(), Vec::new());
    cron.metadata.creation_timestamp = Some(Time(from));
    let nobody = BTreeSet::new();
    while now < until {
        let gone: Vec<_> = surplus(&cron, &jobs).into_iter().map(|job| job.metadata.uid.clone()).collect();
        jobs.retain(|job| !gone.contains(&job.metadata.uid));
        let seen = Observed { cron: &cron, jobs: &jobs, reaped: &nobody, missing: &[] };
        let decision = decide(&seen, now, &Policy::default());
        let mut status = decision.status;
        let wait = match decision.then {
            Then::Rest => return made,
            Then::Wait(wait) => wait,
            Then::Start(start) => {
                assert!(now.duration_since(start.slot) < SignedDuration::from_secs(1), "late: {now}");
                let mut job = start.job;
                job.metadata.uid = job.metadata.name.clone();
                made.push(job.metadata.annotations.clone().unwrap()[job::SCHEDULED].clone());
                status.active.get_or_insert_default().push(job::reference(&job));
                status.last_schedule_time = Some(Time(start.slot));
                let end = json!({"startTime": Time(start.slot), "completionTime": Time(start.slot), "conditions": [{"type": "Complete", "status": "True"}]});
                job.status = Some(serde_json::from_value(end).unwrap());
                jobs.push(Arc::new(job));
                // Its end is heard of first.
                Duration::from_secs(1)
            }
        };
        cron.status = Some(status);
        now += SignedDuration::try_from(wait).unwrap();
    }
    assert!(jobs.len() <= 4, "history was not kept short");
    made
}

#[test]
fn a_year_of_every_hour_in_berlin_is_decided_hour_by_hour() {
    let berlin = jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    let from: Timestamp = "2025-12-31T22:30:00Z".parse().unwrap();
    let until = from + SignedDuration::from_hours(365 * 24);
    let made = live(cron(json!({"timeZone": "Europe/Berlin"}), json!({})), from, until);
    let shown = |hour: i64| {
        let at = from + SignedDuration::from_mins(30) + SignedDuration::from_hours(hour);
        at.to_zoned(berlin.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    };
    let expected: Vec<_> = (0..365 * 24).map(shown).collect();
    let wrong = made.iter().zip(&expected).find(|(ours, expected)| ours != expected);
    assert_eq!((made.len(), wrong), (expected.len(), None));
    let has = |text: &str| made.iter().filter(|slot| *slot == text).count();
    assert_eq!((has("2026-03-29T02:00:00+01:00"), has("2026-03-29T03:00:00+02:00")), (0, 1));
    assert_eq!((has("2026-10-25T02:00:00+02:00"), has("2026-10-25T02:00:00+01:00")), (1, 1));
}
