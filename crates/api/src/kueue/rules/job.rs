//! Jobs of the batch API: what naming a queue fills in, and what may be said about queues on them.
//!
//! Upstream reads which objects exist; here the caller says it in [`Surroundings`].

use serde_json::{Value, json};

use super::gated_by;
use super::review::Verdict;
use crate::field::{Errors, Path};
use crate::kueue::keys::{self, annotation, label, scheduling_gate};
use crate::names;

/// What a Job finds in its namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// There is a LocalQueue `default`, and Jobs that name none go there.
    pub default_queue: bool,
    /// There is a WorkloadPriorityClass `default`.
    pub default_priority_class: bool,
    /// Jobs may grow and shrink while they run.
    pub elastic_jobs: bool,
}

/// Fills in the queue and the class where there are defaults, and suspends a Job that is in a queue.
pub fn default_job(job: &mut Value, around: Surroundings) {
    if default_queued(job, around) && around.elastic_jobs && is_elastic(job) {
        add_gate(job, "/spec/template/spec");
    }
}

/// What is the same for all kinds of jobs. Says whether this one is in a queue.
pub(super) fn default_queued(job: &mut Value, around: Surroundings) -> bool {
    if around.default_queue && queue_name(job).is_empty() {
        set_label(job, label::QUEUE_NAME, keys::DEFAULT_LOCAL_QUEUE);
    }
    if queue_name(job).is_empty() {
        return false;
    }
    if around.default_priority_class && labelled(job, label::PRIORITY_CLASS).is_empty() {
        set_label(job, label::PRIORITY_CLASS, keys::DEFAULT_WORKLOAD_PRIORITY_CLASS);
    }
    if let Some(spec) = job.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("suspend".to_owned(), Value::Bool(true));
    }
    true
}

/// The pods of an elastic job are born gated: there may be more of them than are admitted.
pub(super) fn add_gate(job: &mut Value, pods: &str) {
    let Some(pods) = job.pointer_mut(pods).and_then(Value::as_object_mut) else { return };
    let gates = pods.entry("schedulingGates").or_insert_with(|| json!([]));
    if gates.is_null() {
        *gates = json!([]);
    }
    if let Value::Array(gates) = gates
        && !gates.iter().any(|gate| gate["name"] == scheduling_gate::ELASTIC_JOB)
    {
        gates.push(json!({"name": scheduling_gate::ELASTIC_JOB}));
    }
}

pub fn validate_job(new: &Value, old: Option<&Value>, around: Surroundings) -> Verdict {
    let mut verdict = Verdict::default();
    let errors = &mut verdict.errors;
    validate_queued(new, old, around, errors);
    let least_changed =
        old.is_none_or(|old| noted(old, annotation::MIN_PARALLELISM) != noted(new, annotation::MIN_PARALLELISM));
    if least_changed {
        min_parallelism(new, errors);
    }
    completions_follow_parallelism(new, errors);
    if let Some(old) = old {
        if is_elastic(new) != is_elastic(old) {
            errors.immutable(&annotation_path(annotation::ELASTIC_JOB), is_elastic(new));
        }
        partial_admission_update(new, old, errors);
    }
    verdict
}

/// What is the same for all kinds of jobs.
pub(super) fn validate_queued(new: &Value, old: Option<&Value>, around: Surroundings, errors: &mut Errors) {
    names_are_names(new, errors);
    max_run_time(new, errors);
    gated_by::validate(noted(new, annotation::ADMISSION_GATED_BY), errors);
    if let Some(old) = old {
        validate_update(new, old, around, errors);
    }
}

fn validate_update(new: &Value, old: &Value, around: Surroundings, errors: &mut Errors) {
    let running = !is_suspended(new);
    if running && queue_name(new) != queue_name(old) {
        errors.immutable(&label_path(label::QUEUE_NAME), queue_name(new));
    }
    if queue_name(new).is_empty() && !queue_name(old).is_empty() && around.default_queue {
        let path = label_path(label::QUEUE_NAME);
        errors.invalid(&path, "", "queue-name must not be empty in namespace with default queue");
    }
    if running && prebuilt_name(new) != prebuilt_name(old) && !is_elastic(old) {
        errors.immutable(&prebuilt_path(new), prebuilt_name(new));
    }
    let key = label::MAX_EXEC_TIME_SECONDS;
    if (running || !is_suspended(old)) && labelled(new, key) != labelled(old, key) {
        errors.immutable(&label_path(key), labelled(new, key));
    }
    priority_class_update(new, old, running, errors);
    let key = annotation::ADMISSION_GATED_BY;
    if noted(new, key) != noted(old, key) {
        gated_by::validate_update(noted(new, key), noted(old, key), errors);
    }
}

fn priority_class_update(new: &Value, old: &Value, running: bool, errors: &mut Errors) {
    let key = label::PRIORITY_CLASS;
    let (is, was) = (labelled(new, key), labelled(old, key));
    let problem = match (was.is_empty(), is.is_empty()) {
        (true, false) if running => "WorkloadPriorityClass cannot be added to a non-suspended workload",
        (false, true) => "WorkloadPriorityClass cannot be removed from a workload",
        _ => return,
    };
    errors.invalid(&label_path(key), is, problem);
}

fn partial_admission_update(new: &Value, old: &Value, errors: &mut Errors) {
    let partial = !noted(old, annotation::MIN_PARALLELISM).is_empty();
    if partial && !is_suspended(old) && parallelism(old) != parallelism(new) {
        let detail = "cannot change when partial admission is enabled and the job is not suspended";
        errors.forbidden(&Path::new("spec").child("parallelism"), detail);
    }
    if !is_suspended(old) && !is_suspended(new) && follows(old) != follows(new) {
        let path = annotation_path(annotation::COMPLETIONS_EQUAL_PARALLELISM);
        errors.forbidden(&path, "field is immutable while the job is not suspended");
    }
}

fn names_are_names(job: &Value, errors: &mut Errors) {
    let queue = job.pointer("/metadata/labels").and_then(|l| l.get(label::QUEUE_NAME)).and_then(Value::as_str);
    if let Some(name) = queue {
        is_name(name, &label_path(label::QUEUE_NAME), errors);
    }
    let prebuilt = prebuilt_name(job);
    if !prebuilt.is_empty() {
        is_name(prebuilt, &prebuilt_path(job), errors);
    }
}

fn is_name(name: &str, path: &Path, errors: &mut Errors) {
    let problems = names::dns1123_subdomain(name, false);
    if !problems.is_empty() {
        errors.invalid(path, name, problems.join(","));
    }
}

fn max_run_time(job: &Value, errors: &mut Errors) {
    let path = label_path(label::MAX_EXEC_TIME_SECONDS);
    let labels = job.pointer("/metadata/labels");
    let Some(text) = labels.and_then(|l| l.get(label::MAX_EXEC_TIME_SECONDS)).and_then(Value::as_str) else { return };
    match integer(text) {
        Err(problem) => errors.invalid(&path, text, problem),
        Ok(secs) if secs <= 0 => errors.invalid(&path, secs, "should be greater than 0"),
        Ok(_) => {}
    }
}

fn min_parallelism(job: &Value, errors: &mut Errors) {
    let path = annotation_path(annotation::MIN_PARALLELISM);
    let notes = job.pointer("/metadata/annotations");
    let Some(text) = notes.and_then(|a| a.get(annotation::MIN_PARALLELISM)).and_then(Value::as_str) else { return };
    let most = pods(job);
    match integer(text) {
        Err(problem) => errors.invalid(&path, text, problem),
        Ok(least) if least <= 0 || least >= most => {
            errors.invalid(&path, least, format!("should be between 0 and {}", most - 1));
        }
        Ok(_) => {}
    }
    if is_elastic(job) {
        errors.invalid(&path, text, "partial admission and elastic job cannot be used together");
    }
}

fn completions_follow_parallelism(job: &Value, errors: &mut Errors) {
    let key = annotation::COMPLETIONS_EQUAL_PARALLELISM;
    let notes = job.pointer("/metadata/annotations");
    let Some(text) = notes.and_then(|a| a.get(key)).and_then(Value::as_str) else { return };
    let path = annotation_path(key);
    match truth(text) {
        None => errors.invalid(&path, text, format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
        Some(false) => {}
        Some(true) => {
            if job.pointer("/spec/completionMode").and_then(Value::as_str) != Some("Indexed") {
                errors.invalid(&path, text, "should not be enabled for NonIndexed jobs");
            }
            let completions = job.pointer("/spec/completions").and_then(Value::as_i64);
            if completions.unwrap_or(1) != parallelism(job) {
                let detail = format!("should be equal to parallelism when {key} annotation is true");
                errors.invalid(&Path::new("spec").child("completions"), json!(completions), detail);
            }
        }
    }
}

pub(super) fn queue_name(job: &Value) -> &str {
    labelled(job, label::QUEUE_NAME)
}

fn labelled<'j>(job: &'j Value, key: &str) -> &'j str {
    job.pointer("/metadata/labels").and_then(|labels| labels.get(key)).and_then(Value::as_str).unwrap_or_default()
}

fn noted<'j>(job: &'j Value, key: &str) -> &'j str {
    job.pointer("/metadata/annotations").and_then(|notes| notes.get(key)).and_then(Value::as_str).unwrap_or_default()
}

fn set_label(job: &mut Value, key: &str, value: &str) {
    let Some(meta) = job.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let labels = meta.entry("labels").or_insert_with(|| json!({}));
    if labels.is_null() {
        *labels = json!({});
    }
    if let Value::Object(labels) = labels {
        labels.insert(key.to_owned(), value.into());
    }
}

/// The annotation goes before the label.
fn prebuilt_name(job: &Value) -> &str {
    let noted = noted(job, annotation::PREBUILT_WORKLOAD);
    if noted.is_empty() { labelled(job, label::PREBUILT_WORKLOAD) } else { noted }
}

fn prebuilt_path(job: &Value) -> Path {
    if noted(job, annotation::PREBUILT_WORKLOAD).is_empty() {
        label_path(label::PREBUILT_WORKLOAD)
    } else {
        annotation_path(annotation::PREBUILT_WORKLOAD)
    }
}

fn label_path(key: &str) -> Path {
    Path::new("metadata").child("labels").key(key)
}

pub(super) fn annotation_path(key: &str) -> Path {
    Path::new("metadata").child("annotations").key(key)
}

fn is_suspended(job: &Value) -> bool {
    job.pointer("/spec/suspend").and_then(Value::as_bool).unwrap_or(false)
}

pub(super) fn is_elastic(job: &Value) -> bool {
    noted(job, annotation::ELASTIC_JOB) == keys::TRUE
}

fn follows(job: &Value) -> bool {
    truth(noted(job, annotation::COMPLETIONS_EQUAL_PARALLELISM)).unwrap_or(false)
}

fn parallelism(job: &Value) -> i64 {
    job.pointer("/spec/parallelism").and_then(Value::as_i64).unwrap_or(1)
}

/// How many pods run at once.
fn pods(job: &Value) -> i64 {
    let completions = job.pointer("/spec/completions").and_then(Value::as_i64);
    completions.map_or(parallelism(job), |completions| completions.min(parallelism(job)))
}

/// A whole number as Go reads it, or what Go says about it.
fn integer(text: &str) -> Result<i64, String> {
    text.parse::<i64>().map_err(|error| {
        let why = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.Atoi: parsing {text:?}: {why}")
    })
}

/// Truth as Go reads it.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(labels: Value, annotations: Value, spec: Value) -> Value {
        json!({"metadata": {"name": "j", "labels": labels, "annotations": annotations}, "spec": spec})
    }

    fn refused(new: &Value, old: Option<&Value>) -> String {
        let around = Surroundings { default_queue: true, ..Surroundings::default() };
        let errors = validate_job(new, old, around).errors;
        if errors.is_empty() { String::new() } else { errors.to_string() }
    }

    #[test]
    fn a_job_that_names_a_queue_is_suspended_and_one_that_names_none_is_left_alone() {
        let mut queued = job(json!({label::QUEUE_NAME: "q"}), json!({}), json!({"suspend": false}));
        default_job(&mut queued, Surroundings::default());
        assert_eq!(queued["spec"]["suspend"], true);
        let mut free = job(json!({}), json!({}), json!({"parallelism": 1}));
        let before = free.clone();
        default_job(&mut free, Surroundings::default());
        assert_eq!(free, before);
    }

    #[test]
    fn the_default_queue_and_class_are_for_those_that_name_none() {
        let around = Surroundings { default_queue: true, default_priority_class: true, elastic_jobs: true };
        let mut none = json!({"metadata": {"name": "j", "labels": null}, "spec": {}});
        default_job(&mut none, around);
        let labels = json!({label::QUEUE_NAME: "default", label::PRIORITY_CLASS: "default"});
        assert_eq!((&none["metadata"]["labels"], &none["spec"]["suspend"]), (&labels, &json!(true)));
        let own = json!({label::QUEUE_NAME: "own", label::PRIORITY_CLASS: "high"});
        let mut named = job(own.clone(), json!({}), json!({}));
        default_job(&mut named, around);
        assert_eq!(named["metadata"]["labels"], own);
    }

    #[test]
    fn the_pods_of_an_elastic_job_are_born_gated_unless_the_feature_is_off() {
        let notes = json!({annotation::ELASTIC_JOB: "true"});
        let spec = json!({"template": {"spec": {"schedulingGates": [{"name": "own"}]}}});
        for (on, gates) in [
            (true, json!([{"name": "own"}, {"name": "kueue.x-k8s.io/elastic-job"}])),
            (false, json!([{"name": "own"}])),
        ] {
            let mut elastic = job(json!({label::QUEUE_NAME: "q"}), notes.clone(), spec.clone());
            default_job(&mut elastic, Surroundings { elastic_jobs: on, ..Surroundings::default() });
            default_job(&mut elastic, Surroundings { elastic_jobs: on, ..Surroundings::default() });
            assert_eq!(elastic["spec"]["template"]["spec"]["schedulingGates"], gates);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_in_upstreams_words() {
        let labels = json!({label::QUEUE_NAME: "Q_", label::MAX_EXEC_TIME_SECONDS: "0"});
        let said = refused(&job(labels, json!({annotation::MIN_PARALLELISM: "x"}), json!({})), None);
        assert!(
            said.contains("metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value: \"Q_\": a lowercase"),
            "{said}"
        );
        assert!(said.contains("max-exec-time-seconds]: Invalid value: 0: should be greater than 0"), "{said}");
        assert!(said.contains("Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax"), "{said}");
        let notes = json!({annotation::MIN_PARALLELISM: "3", annotation::COMPLETIONS_EQUAL_PARALLELISM: "true"});
        let said = refused(&job(json!({}), notes, json!({"parallelism": 3})), None);
        assert!(said.contains("Invalid value: 3: should be between 0 and 2"), "{said}");
        assert!(said.contains("should not be enabled for NonIndexed jobs"), "{said}");
        assert!(said.contains("spec.completions: Invalid value: null: should be equal to parallelism"), "{said}");
    }

    #[test]
    fn a_running_job_stays_in_its_queue_and_a_suspended_one_may_move() {
        let old = job(json!({label::QUEUE_NAME: "a"}), json!({}), json!({"suspend": true}));
        let moved = job(json!({label::QUEUE_NAME: "b"}), json!({}), json!({"suspend": true}));
        assert_eq!(refused(&moved, Some(&old)), "");
        let started = job(json!({label::QUEUE_NAME: "b"}), json!({}), json!({"suspend": false}));
        let said = refused(&started, Some(&old));
        assert!(said.contains("queue-name]: Invalid value: \"b\": field is immutable"), "{said}");
        let left = job(json!({}), json!({}), json!({"suspend": true}));
        assert!(refused(&left, Some(&old)).contains("must not be empty in namespace with default queue"));
    }

    #[test]
    fn a_class_may_change_but_neither_go_nor_come_to_a_running_job() {
        let with = |class: Option<&str>, suspend: bool| {
            let labels = class.map_or(json!({}), |class| json!({label::PRIORITY_CLASS: class}));
            job(labels, json!({}), json!({"suspend": suspend}))
        };
        assert_eq!(refused(&with(Some("b"), false), Some(&with(Some("a"), false))), "");
        assert!(refused(&with(Some("b"), false), Some(&with(None, false))).contains("cannot be added"));
        assert_eq!(refused(&with(Some("b"), true), Some(&with(None, true))), "");
        assert!(refused(&with(None, true), Some(&with(Some("a"), true))).contains("cannot be removed"));
    }
}
