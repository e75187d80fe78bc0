//! batch/v1 CronJob.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, JobSpec};
use serde_json::Value;
use usher_api::cron::{Schedule, load_zone};
use usher_schema::field::{Errors, Path};

use super::at::At;
use super::common::{default_text, json, list, optional_not_negative, required_one_of, text};
use super::job::{self, spec as job_spec};
use super::selector;
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::table;

/// A Job's name is the CronJob's and eleven characters more.
const NAME_MAX: usize = 52;
const ZONE_PART_MAX: usize = 14;
const SPEC: At = At::Root("spec");

pub struct CronJobs;

impl Kind for CronJobs {
    type Object = CronJob;

    fn resource(&self) -> Resource {
        Resource::namespaced("batch", "v1", "CronJob", "cronjobs")
            .short(&["cj"])
            .in_all()
            .with_status()
            .with_generation()
    }

    fn default(&self, cron: &mut CronJob) {
        let spec = &mut cron.spec;
        default_text(&mut spec.concurrency_policy, "Allow");
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(3);
        spec.failed_jobs_history_limit.get_or_insert(1);
        job::default_pod_level(spec.job_template.spec.get_or_insert_default());
    }

    fn prepare_create(&self, _cx: &Cx, cron: &mut CronJob) {
        cron.status = Some(CronJobStatus::default());
        drop_scheduling(cron, None);
    }

    fn prepare_update(&self, _cx: &Cx, new: &mut CronJob, old: &CronJob) {
        drop_scheduling(new, Some(old));
    }

    fn validate(&self, _cx: &Cx, cron: &CronJob, errors: &mut Errors) {
        validate_spec(&cron.spec, None, errors);
        let name = text(&cron.metadata.name);
        if name.len() > NAME_MAX {
            let path = Path::new("metadata").child("name");
            errors.invalid(&path, name, format!("must be no more than {NAME_MAX} characters"));
        }
    }

    fn validate_update(&self, _cx: &Cx, new: &CronJob, old: &CronJob, errors: &mut Errors) {
        validate_spec(&new.spec, Some(&old.spec), errors);
    }

    fn warnings(&self, new: &CronJob, old: Option<&CronJob>) -> Vec<String> {
        let spec = &new.spec;
        let mut out = Vec::new();
        if old.is_none() {
            out.extend(job::pod_name_warning(text(&new.metadata.name)));
        }
        if let Some(job) = spec.job_template.spec.as_ref().filter(|_| old.is_none_or(|old| old.spec != new.spec)) {
            out.extend(job::spec_warnings(job, &Path::new("spec").child("jobTemplate").child("spec")));
        }
        if old.is_some() && spec.schedule.contains("TZ") {
            out.push(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                    .to_owned(),
            );
        }
        out
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            table::name_column(),
            Column::new("Schedule", "string", 0, "When Jobs are made, in cron notation."),
            Column::new("Timezone", "string", 0, "The time zone the schedule is read in."),
            Column::new("Suspend", "boolean", 0, "Whether no more Jobs are made."),
            Column::new("Active", "integer", 0, "Jobs that are running."),
            Column::new("Last Schedule", "string", 0, "Time since a Job was last made."),
            table::age_column(),
            Column::new("Containers", "string", 1, "Names of the template's containers."),
            Column::new("Images", "string", 1, "Images of the template's containers."),
            Column::new("Selector", "string", 1, "Labels by which a Job finds its pods."),
        ]
    }

    fn cells(&self, cron: &CronJob, meta: &Value, now: Timestamp) -> Vec<Value> {
        let no_job = JobSpec::default();
        let spec = &cron.spec;
        let job = spec.job_template.spec.as_ref().unwrap_or(&no_job);
        let status = cron.status.as_ref();
        let last = status.and_then(|status| status.last_schedule_time.as_ref());
        let suspend = match spec.suspend {
            None => "<unset>",
            Some(true) => "True",
            Some(false) => "False",
        };
        let (containers, images) = job::container_cells(job);
        vec![
            table::name_cell(meta),
            spec.schedule.as_str().into(),
            spec.time_zone.as_deref().unwrap_or("<none>").into(),
            suspend.into(),
            status.map_or(0, |status| list(&status.active).len()).into(),
            last.map_or_else(|| "<none>".to_owned(), |time| table::time_since(Some(time), now)).into(),
            table::age_cell(meta, now),
            containers.into(),
            images.into(),
            selector::format(job.selector.as_ref()).into(),
        ]
    }
}

/// Behind a gate that is off: kept only where it is stored already.
fn drop_scheduling(new: &mut CronJob, old: Option<&CronJob>) {
    let job = |cron: &CronJob| cron.spec.job_template.spec.as_ref()?.scheduling.clone();
    if old.and_then(job).is_none()
        && let Some(spec) = &mut new.spec.job_template.spec
    {
        spec.scheduling = None;
    }
}

fn validate_spec(spec: &CronJobSpec, old: Option<&CronJobSpec>, errors: &mut Errors) {
    validate_schedule(spec, old.is_some_and(|old| old.schedule.contains("TZ")), &SPEC.child("schedule"), errors);
    optional_not_negative(spec.starting_deadline_seconds, &SPEC.child("startingDeadlineSeconds"), errors);
    if let Some(zone) = spec.time_zone.as_ref().filter(|_| old.is_none_or(|old| old.time_zone != spec.time_zone)) {
        validate_zone(zone, &SPEC.child("timeZone"), errors);
    }
    let policies = ["Allow", "Forbid", "Replace"];
    required_one_of(text(&spec.concurrency_policy), &policies, &SPEC.child("concurrencyPolicy"), errors);
    let at = SPEC.child("jobTemplate");
    let at = at.child("spec");
    let no_job = JobSpec::default();
    let job = spec.job_template.spec.as_ref().unwrap_or(&no_job);
    job_spec::validate_common(job, &at, errors);
    if let Some(chosen) = &job.selector {
        errors.invalid(&at.child("selector").path(), json(chosen), "`selector` will be auto-generated");
    }
    if job.manual_selector == Some(true) {
        errors.not_supported(&at.child("manualSelector").path(), true, &["nil", "false"]);
    }
    optional_not_negative(spec.successful_jobs_history_limit, &SPEC.child("successfulJobsHistoryLimit"), errors);
    optional_not_negative(spec.failed_jobs_history_limit, &SPEC.child("failedJobsHistoryLimit"), errors);
}

fn validate_schedule(spec: &CronJobSpec, had_zone: bool, at: &At, errors: &mut Errors) {
    let schedule = spec.schedule.as_str();
    if schedule.is_empty() {
        return errors.required(&at.path(), "");
    }
    if let Err(why) = Schedule::parse(schedule) {
        errors.invalid(&at.path(), schedule, why);
    }
    let detail = match (schedule.contains("TZ"), had_zone) {
        (true, true) if spec.time_zone.is_some() => "cannot use both timeZone field and TZ or CRON_TZ in schedule",
        (true, false) => "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        _ => return,
    };
    errors.invalid(&at.path(), schedule, detail);
}

fn validate_zone(zone: &str, at: &At, errors: &mut Errors) {
    if zone.is_empty() {
        return errors.invalid(&at.path(), zone, "timeZone must be nil or non-empty string");
    }
    let good = |part: &str| {
        let chars = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_' | b'+');
        !matches!(part, "" | "." | "..")
            && !part.starts_with('-')
            && part.len() <= ZONE_PART_MAX
            && part.bytes().all(chars)
    };
    if !zone.split('/').all(good) {
        return errors.invalid(&at.path(), zone, format!("unknown time zone {zone}"));
    }
    if zone.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(&at.path(), zone, detail);
    }
    if let Err(why) = load_zone(zone) {
        errors.invalid(&at.path(), zone, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::kind::Gates;
    use crate::registry::kinds::testing::{cells, create, create_errors, merged, update_errors};
    use serde_json::json;

    fn cron(extra: Value) -> Value {
        let base = json!({"metadata": {"name": "nightly", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": {"spec":
                {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "busybox"}]}}}}}});
        merged(base, extra)
    }

    #[test]
    fn only_the_cron_job_and_the_pod_are_defaulted() {
        let (stored, errors) = create(&CronJobs, cron(json!({})));
        assert!(errors.is_empty(), "{errors:?}");
        let spec = &stored["spec"];
        assert_eq!(spec["concurrencyPolicy"], "Allow");
        assert_eq!(spec["suspend"], false);
        assert_eq!((&spec["successfulJobsHistoryLimit"], &spec["failedJobsHistoryLimit"]), (&json!(3), &json!(1)));
        let job = spec["jobTemplate"]["spec"].as_object().unwrap();
        assert_eq!(job.keys().collect::<Vec<_>>(), ["template"], "a job template gets no Job defaults");
        assert_eq!(job["template"]["spec"]["dnsPolicy"], "ClusterFirst");
    }

    #[test]
    fn mistakes_are_refused() {
        for (extra, expected) in [
            (json!({"spec": {"schedule": ""}}), "spec.schedule: Required value"),
            (
                json!({"spec": {"schedule": "* * *"}}),
                "spec.schedule: Invalid value: \"* * *\": expected exactly 5 fields, found 3: [* * *]",
            ),
            (
                json!({"spec": {"schedule": "TZ=UTC 0 0 * * *"}}),
                "spec.schedule: Invalid value: \"TZ=UTC 0 0 * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            ),
            (
                json!({"spec": {"timeZone": "Narnia"}}),
                "spec.timeZone: Invalid value: \"Narnia\": unknown time zone Narnia",
            ),
            (
                json!({"spec": {"timeZone": "Local"}}),
                "spec.timeZone: Invalid value: \"Local\": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
            ),
            (
                json!({"spec": {"timeZone": ""}}),
                "spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string",
            ),
            (
                json!({"spec": {"concurrencyPolicy": "Maybe"}}),
                "spec.concurrencyPolicy: Unsupported value: \"Maybe\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
            ),
            (
                json!({"spec": {"startingDeadlineSeconds": -1}}),
                "spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"spec": {"failedJobsHistoryLimit": -1}}),
                "spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"spec": {"jobTemplate": {"spec": {"manualSelector": true}}}}),
                "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
            ),
            (
                json!({"spec": {"jobTemplate": {"spec": {"selector": {"matchLabels": {"a": "b"}}}}}}),
                "spec.jobTemplate.spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: `selector` will be auto-generated",
            ),
            (
                json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": null}}}}}}),
                "spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ),
        ] {
            assert_eq!(create_errors(&CronJobs, cron(extra.clone())), [expected], "{extra}");
        }
    }

    #[test]
    fn long_names_are_refused_on_create_only() {
        let long = cron(json!({"metadata": {"name": "n".repeat(53)}}));
        assert!(create_errors(&CronJobs, long.clone())[0].ends_with("must be no more than 52 characters"));
        assert!(update_errors(&CronJobs, &Gates::default(), long.clone(), long).is_empty());
    }

    #[test]
    fn a_cron_job_that_has_a_zone_in_its_schedule_may_keep_it() {
        let old = cron(json!({"spec": {"schedule": "TZ=UTC 0 0 * * *"}}));
        let new = cron(json!({"spec": {"schedule": "TZ=UTC 0 1 * * *"}}));
        assert!(update_errors(&CronJobs, &Gates::default(), new.clone(), old.clone()).is_empty());
        let both = merged(new, json!({"spec": {"timeZone": "UTC"}}));
        let refused = update_errors(&CronJobs, &Gates::default(), both, old);
        assert!(refused[0].ends_with("cannot use both timeZone field and TZ or CRON_TZ in schedule"), "{refused:?}");
    }

    #[test]
    fn an_unknown_zone_that_is_stored_already_is_left_alone() {
        let old = cron(json!({"spec": {"timeZone": "Narnia"}}));
        let same = merged(old.clone(), json!({"spec": {"suspend": true}}));
        assert!(update_errors(&CronJobs, &Gates::default(), same, old.clone()).is_empty());
        let other = merged(old.clone(), json!({"spec": {"timeZone": "a..b"}}));
        let refused = update_errors(&CronJobs, &Gates::default(), other, old);
        assert_eq!(refused, ["spec.timeZone: Invalid value: \"a..b\": time: invalid location name"]);
    }

    #[test]
    fn columns_read_like_kubectls() {
        let seen = cells(
            &CronJobs,
            cron(
                json!({"spec": {"timeZone": "UTC"}, "status": {"active": [{"name": "a"}], "lastScheduleTime": "2026-01-01T00:30:00Z"}}),
            ),
        );
        let expected = json!(["nightly", "0 3 * * *", "UTC", "False", 1, "30m", "60m", "c", "busybox", "<none>"]);
        assert_eq!(Value::Array(seen), expected);
    }
}
