//! Runs `scenarios/*.txt`. A file holds cases, each a small world and what is done about it:
//!
//! ```text
//! # the rule
//! job completions=3 parallelism=2
//! pod a failed index=0 ended=5
//! ----
//! write failed=1
//! ====
//! ```
//!
//! `pods 501 succeeded index=#` is as many pods, `#` being the number of each. Times are seconds before now. `USHER_UPDATE=1` writes what is done into the files: read the difference before keeping it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::job::decide::backoff::Record;
use crate::job::decide::{Done, Step, conditions, decide, settle, tally};
use crate::job::names;
use crate::job::observe::{Observed, Policy};

const NOW: &str = "2026-11-15T12:00:00Z";

#[test]
fn every_scenario_is_decided_as_written() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/job/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (mut cases, mut wrong) = (0, String::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut rewritten = Vec::new();
        for case in text.split("====\n").filter(|case| !case.trim().is_empty()) {
            let (world, expected) = case.split_once("----\n").unwrap_or((case, ""));
            let done = run(world);
            if done != expected {
                let name = file.file_name().unwrap().to_string_lossy();
                writeln!(wrong, "{name}:\n{world}---- expected\n{expected}---- decided\n{done}").unwrap();
            }
            rewritten.push(format!("{world}----\n{done}"));
            cases += 1;
        }
        if std::env::var_os("USHER_UPDATE").is_some() {
            std::fs::write(&file, rewritten.join("====\n")).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(cases > 50, "only {cases} scenarios were found");
}

/// A case's world.
struct World {
    job: Value,
    pods: Vec<Value>,
    remembered: Option<Record>,
    policy: Policy,
    undeletable: BTreeSet<String>,
    unstrippable: BTreeSet<String>,
    creatable: usize,
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn ago(secs: &str) -> String {
    (now() - SignedDuration::from_secs(secs.parse().unwrap())).to_string()
}

impl World {
    fn parse(text: &str) -> World {
        let job = json!({
            "metadata": {"name": "j", "namespace": "n", "uid": "U", "resourceVersion": "1"},
            "spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "template": {"spec": {"restartPolicy": "Never", "containers": []}}},
            "status": {"uncountedTerminatedPods": {}, "conditions": []},
        });
        let mut world = World {
            job,
            pods: Vec::new(),
            remembered: Some(Record::default()),
            policy: Policy::default(),
            undeletable: BTreeSet::new(),
            unstrippable: BTreeSet::new(),
            creatable: usize::MAX,
        };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
            world.read(what, rest).unwrap_or_else(|| panic!("cannot read {line:?}"));
        }
        world
    }

    fn read(&mut self, what: &str, rest: &str) -> Option<()> {
        let words = rest.split_whitespace();
        let pairs = || rest.split_whitespace().map(|word| word.split_once('=').unwrap_or((word, "")));
        match what {
            "job" => pairs().for_each(|(name, value)| self.read_job(name, value)),
            "spec" => merge(&mut self.job["spec"], serde_json::from_str(rest).ok()?),
            "status" => pairs().for_each(|(name, value)| self.read_status(name, value)),
            "condition" => {
                let mut parts = rest.splitn(4, ' ');
                let condition = json!({"type": parts.next()?, "status": parts.next()?, "reason": parts.next()?, "message": parts.next()?});
                self.job["status"]["conditions"].as_array_mut()?.push(condition);
            }
            "pod" => self.pods.push(read_pod(rest)),
            "pods" => {
                let (count, rest) = rest.split_once(' ')?;
                let many = 0..count.parse().ok()?;
                self.pods.extend(
                    many.map(|nth: usize| read_pod(&format!("p{nth:04} {}", rest.replace('#', &nth.to_string())))),
                );
            }
            "restarted" => self.remembered = None,
            "remembered" => {
                let fields: std::collections::BTreeMap<_, _> = pairs().collect();
                let last = ago(fields.get("last")?).parse().ok();
                self.remembered = Some(Record { failures: fields.get("failures")?.parse().ok()?, last });
            }
            "relaxed-gate-off" => self.policy.clear_start_time_on_suspend = false,
            "undeletable" => self.undeletable.extend(words.map(str::to_string)),
            "unstrippable" => self.unstrippable.extend(words.map(str::to_string)),
            "creatable" => self.creatable = rest.parse().ok()?,
            _ => return None,
        }
        Some(())
    }

    fn read_job(&mut self, name: &str, value: &str) {
        let (field, value) = match name {
            "mode" => ("completionMode", json!(value)),
            "replace" => ("podReplacementPolicy", json!(value)),
            "suspend" => ("suspend", json!(true)),
            "restart" => return self.job["spec"]["template"]["spec"]["restartPolicy"] = json!(value),
            "deleting" => return self.job["metadata"]["deletionTimestamp"] = json!(NOW),
            "perIndex" => ("backoffLimitPerIndex", json!(value.parse::<i32>().unwrap())),
            "deadline" => ("activeDeadlineSeconds", json!(value.parse::<i64>().unwrap())),
            "completions" if value == "none" => ("completions", Value::Null),
            name => (name, json!(value.parse::<i32>().unwrap())),
        };
        self.job["spec"][field] = value;
    }

    fn read_status(&mut self, name: &str, value: &str) {
        let list = || json!(value.split(',').collect::<Vec<_>>());
        let status = &mut self.job["status"];
        match name {
            "started" => status["startTime"] = json!(ago(value)),
            "completed" => status["completedIndexes"] = json!(value),
            "failedIndexes" => status["failedIndexes"] = json!(value),
            "uncounted.failed" => status["uncountedTerminatedPods"]["failed"] = list(),
            "uncounted.succeeded" => status["uncountedTerminatedPods"]["succeeded"] = list(),
            name => status[name] = json!(value.parse::<i32>().unwrap()),
        }
    }

    fn observed(&self) -> Observed {
        let job: Job = serde_json::from_value(self.job.clone()).unwrap();
        let pods = self.pods.iter().map(|pod| Arc::new(serde_json::from_value::<Pod>(pod.clone()).unwrap())).collect();
        Observed::new(Arc::new(job), pods, self.remembered, self.policy)
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(name, value)| merge(into.entry(name).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

/// `NAME PHASE` and what else there is about it. Tracked unless it says otherwise.
fn read_pod(text: &str) -> Value {
    let mut words = text.split_whitespace();
    let (name, phase) = (words.next().unwrap(), words.next().unwrap());
    let phase = format!("{}{}", phase[..1].to_uppercase(), &phase[1..]);
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "creationTimestamp": ago("3600"), "annotations": {},
            "finalizers": [names::TRACKING_FINALIZER]},
        "spec": {"containers": [], "nodeName": "node"},
        "status": {"phase": phase, "conditions": [], "containerStatuses": [{"name": "c", "restartCount": 0}]},
    });
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let condition =
            |kind: &str, status: &str, at: &str| json!({"type": kind, "status": status, "lastTransitionTime": ago(at)});
        let conditions = |pod: &mut Value, c: Value| pod["status"]["conditions"].as_array_mut().unwrap().push(c);
        let container = &mut pod["status"]["containerStatuses"][0];
        match key {
            "index" => pod["metadata"]["annotations"][names::COMPLETION_INDEX] = json!(value),
            "failures" => pod["metadata"]["annotations"][names::INDEX_FAILURES] = json!(value),
            "ignored" => pod["metadata"]["annotations"][names::INDEX_IGNORED_FAILURES] = json!(value),
            "untracked" => pod["metadata"]["finalizers"] = json!([]),
            "deleting" => {
                pod["metadata"]["deletionTimestamp"] = json!(ago(if value.is_empty() { "0" } else { value }));
            }
            "unassigned" => pod["spec"]["nodeName"] = json!(null),
            "created" => pod["metadata"]["creationTimestamp"] = json!(ago(value)),
            "ready" => conditions(&mut pod, condition("Ready", "True", if value.is_empty() { "60" } else { value })),
            "unready" => conditions(&mut pod, condition("Ready", "False", value)),
            "condition" => conditions(&mut pod, condition(value, "True", "0")),
            "ended" => container["state"]["terminated"] = json!({"exitCode": 1, "finishedAt": ago(value)}),
            "exit" => container["state"]["terminated"]["exitCode"] = json!(value.parse::<i32>().unwrap()),
            "restarts" => container["restartCount"] = json!(value.parse::<i32>().unwrap()),
            other => panic!("what is {other:?} of a pod?"),
        }
    }
    pod
}

/// Carries out what is decided, as `carry_out` does, and writes it down.
fn run(text: &str) -> String {
    let (world, mut out) = (World::parse(text), String::new());
    let mut observed = world.observed();
    let mut plan = decide(&observed, now());
    if plan.starts_first(&observed) {
        let mut status = observed.status.clone();
        conditions::mark_started(&mut status, now());
        writeln!(out, "start first:{}", changes(&observed.status, &status)).unwrap();
        observed = observed.with_status(status);
        plan = decide(&observed, now());
    }
    let names =
        |positions: &[usize]| positions.iter().map(|&at| observed.pods[at].name()).collect::<Vec<_>>().join(" ");
    let mut done = Done::default();
    let how = match &plan.step {
        Step::End { .. } => "delete, counted",
        _ => "delete, uncounted",
    };
    if !plan.delete().is_empty() {
        writeln!(out, "{how}: {}", names(plan.delete())).unwrap();
    }
    done.deleted =
        plan.delete().iter().copied().filter(|&at| !world.undeletable.contains(observed.pods[at].name())).collect();
    done.created = plan.create().len().min(world.creatable);
    if !plan.create().is_empty() {
        let each = plan.create().iter().map(|new| match (new.index, new.failures) {
            (None, _) => "one".to_string(),
            (Some(index), None | Some((0, 0))) => index.to_string(),
            (Some(index), Some((counted, 0))) => format!("{index}(after {counted})"),
            (Some(index), Some((counted, ignored))) => format!("{index}(after {counted}+{ignored})"),
        });
        let each: Vec<_> = each.collect();
        match each.len() {
            many @ 9.. => writeln!(out, "create: {many} of {}...", each[..3].join(" ")).unwrap(),
            _ => writeln!(out, "create: {}", each.join(" ")).unwrap(),
        }
    }
    let tally = tally(&observed, &plan, &done, now());
    if tally.changed {
        writeln!(out, "write:{}", changes(&observed.status, &tally.status)).unwrap();
    }
    if !tally.strip.is_empty() {
        match tally.strip.len() {
            many @ 9.. => writeln!(out, "strip: {many}").unwrap(),
            _ => writeln!(out, "strip: {}", names(&tally.strip)).unwrap(),
        }
    }
    let stripped: BTreeSet<usize> =
        tally.strip.iter().copied().filter(|&at| !world.unstrippable.contains(observed.pods[at].name())).collect();
    let settled = settle(&observed, &tally, &stripped, stripped.len() == tally.strip.len(), now());
    if settled.changed {
        writeln!(out, "write:{}", changes(&tally.status, &settled.status)).unwrap();
    }
    if let Some(wake) = plan.wake {
        writeln!(out, "again in {}s", wake.as_secs()).unwrap();
    }
    if out.is_empty() { "nothing\n".to_string() } else { out }
}

/// The fields that differ, in words.
fn changes(old: &JobStatus, new: &JobStatus) -> String {
    let mut out = String::new();
    let count = |count: Option<i32>| count.unwrap_or(0);
    for (name, old, new) in [
        ("active", old.active, new.active),
        ("ready", old.ready, new.ready),
        ("terminating", old.terminating, new.terminating),
        ("succeeded", old.succeeded, new.succeeded),
        ("failed", old.failed, new.failed),
    ] {
        if count(old) != count(new) {
            write!(out, " {name}={}", count(new)).unwrap();
        }
    }
    let list = |status: &JobStatus, failed: bool| {
        let lists = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let list = if failed { lists.failed } else { lists.succeeded };
        let list = list.unwrap_or_default();
        if list.len() > 8 { format!("{} uids", list.len()) } else { list.join(",") }
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    for (name, old, new) in [
        ("completedIndexes", text(&old.completed_indexes), text(&new.completed_indexes)),
        ("failedIndexes", text(&old.failed_indexes), text(&new.failed_indexes)),
        ("uncounted.succeeded", list(old, false), list(new, false)),
        ("uncounted.failed", list(old, true), list(new, true)),
    ] {
        if old != new {
            write!(out, " {name}={new}").unwrap();
        }
    }
    match (&old.start_time, &new.start_time) {
        (old, new) if old == new => {}
        (_, Some(at)) if at.0 == now() => out.push_str(" startTime=now"),
        (_, Some(at)) => write!(out, " startTime={}", at.0).unwrap(),
        (_, None) => out.push_str(" startTime=none"),
    }
    if old.completion_time != new.completion_time {
        out.push_str(" completionTime=now");
    }
    for condition in new.conditions.iter().flatten() {
        if conditions::find(old, &condition.type_) != Some(condition) {
            let (kind, value) = (&condition.type_, &condition.status);
            write!(out, " {kind}={value}({})", condition.reason.as_deref().unwrap_or_default()).unwrap();
        }
    }
    if out.is_empty() { " (fields that were not there)".to_string() } else { out }
}
