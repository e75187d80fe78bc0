//! What is told to people about a CronJob, as values; here alone they become events, with upstream's reasons and sentences.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::ObjectReference;
use usher_api::cron::quote;

use super::decide::Ended;
use crate::runtime::Recorder;
use crate::runtime::events::Severity;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    UnexpectedJob {
        job: String,
    },
    SawCompletedJob {
        job: String,
        condition: Ended,
    },
    MissingJob {
        job: String,
    },
    UnknownTimeZone {
        zone: String,
        why: String,
    },
    UnsupportedSchedule {
        schedule: String,
    },
    UnparseableSchedule {
        schedule: String,
        why: String,
    },
    /// The same, noticed when the schedule was changed.
    UnparseableChange {
        schedule: String,
    },
    InvalidSchedule {
        schedule: String,
        why: String,
    },
    TooManyMissedTimes,
    MissSchedule {
        slot: Timestamp,
    },
    JobAlreadyActive,
    FailedGet {
        why: String,
    },
    Deleted {
        job: String,
    },
    FailedDelete {
        why: String,
    },
    Created {
        job: String,
    },
    FailedCreate {
        why: String,
    },
}

impl Note {
    pub fn render(&self) -> (Severity, &'static str, String) {
        use Severity::{Normal, Warning};
        match self {
            Note::UnexpectedJob { job } => {
                let message = format!("Saw a job that the controller did not create or forgot: {job}");
                (Warning, "UnexpectedJob", message)
            }
            Note::SawCompletedJob { job, condition } => {
                (Normal, "SawCompletedJob", format!("Saw completed job: {job}, condition: {}", condition.condition()))
            }
            Note::MissingJob { job } => (Normal, "MissingJob", format!("Active job went missing: {job}")),
            Note::UnknownTimeZone { zone, why } => {
                (Warning, "UnknownTimeZone", format!("invalid timeZone: {}: {why}", quote(zone)))
            }
            Note::UnsupportedSchedule { schedule } => {
                let message = format!(
                    "CRON_TZ or TZ used in schedule {} is not officially supported, see \
                     https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                    quote(schedule)
                );
                (Warning, "UnsupportedSchedule", message)
            }
            Note::UnparseableSchedule { schedule, why } => {
                (Warning, "UnparseableSchedule", format!("unparseable schedule: {} : {why}", quote(schedule)))
            }
            Note::UnparseableChange { schedule } => {
                (Warning, "UnParseableCronJobSchedule", format!("unparseable schedule for cronjob: {schedule}"))
            }
            Note::InvalidSchedule { schedule, why } => {
                (Warning, "InvalidSchedule", format!("invalid schedule: {schedule} : {why}"))
            }
            Note::TooManyMissedTimes => {
                let message =
                    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
                (Warning, "TooManyMissedTimes", message.to_owned())
            }
            Note::MissSchedule { slot } => {
                let at = slot.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S +0000").to_string();
                (Warning, "MissSchedule", format!("Missed scheduled time to start a job: {at}"))
            }
            Note::JobAlreadyActive => {
                let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
                (Normal, "JobAlreadyActive", message.to_owned())
            }
            Note::FailedGet { why } => (Warning, "FailedGet", format!("Get job: {why}")),
            Note::Deleted { job } => (Normal, "SuccessfulDelete", format!("Deleted job {job}")),
            Note::FailedDelete { why } => (Warning, "FailedDelete", format!("Deleted job: {why}")),
            Note::Created { job } => (Normal, "SuccessfulCreate", format!("Created job {job}")),
            Note::FailedCreate { why } => (Warning, "FailedCreate", format!("Error creating job: {why}")),
        }
    }

    pub(crate) fn record(&self, recorder: &Recorder, cron: &CronJob) {
        let (severity, reason, message) = self.render();
        let about = about(cron);
        match severity {
            Severity::Normal => recorder.normal(about, reason, message),
            Severity::Warning => recorder.warning(about, reason, message),
        }
    }
}

fn about(cron: &CronJob) -> ObjectReference {
    let meta = cron.metadata.clone();
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("CronJob".to_owned()),
        namespace: meta.namespace,
        name: meta.name,
        uid: meta.uid,
        resource_version: meta.resource_version,
        field_path: None,
    }
}
