//! How long admission takes: its two steps, and each webhook.

use std::cell::Cell;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

tokio::task_local! {
    /// What the request being worked on has spent with webhooks: the time objectives of a server do not count it.
    static ELSEWHERE: Cell<Duration>;
}

/// Runs a request and tells how much of its time went to webhooks.
pub async fn measure<T>(work: impl Future<Output = T>) -> (T, Duration) {
    ELSEWHERE.scope(Cell::default(), async { (work.await, ELSEWHERE.with(Cell::get)) }).await
}

fn spent_elsewhere(took: Duration) {
    // Nobody measures in tests of the parts.
    let _ = ELSEWHERE.try_with(|sum| sum.set(sum.get() + took));
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    code: u16,
    rejected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    error_type: &'static str,
    rejection_code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailOpenLabels {
    name: String,
    r#type: &'static str,
}

const STEP_BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];

/// One of the two passes a write makes through admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Admit,
    Validate,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Admit => "admit",
            Step::Validate => "validate",
        }
    }
}

pub struct Admission {
    steps: Family<StepLabels, Histogram, fn() -> Histogram>,
    webhooks: Family<WebhookLabels, Histogram, fn() -> Histogram>,
    answers: Family<AnswerLabels, Counter>,
    rejections: Family<RejectionLabels, Counter>,
    fail_open: Family<FailOpenLabels, Counter>,
}

impl Default for Admission {
    fn default() -> Self {
        Admission {
            steps: Family::new_with_constructor(|| Histogram::new(STEP_BUCKETS)),
            webhooks: Family::new_with_constructor(|| Histogram::new(WEBHOOK_BUCKETS)),
            answers: Family::default(),
            rejections: Family::default(),
            fail_open: Family::default(),
        }
    }
}

impl Admission {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_admission_step_admission_duration_seconds",
            "Time in a step of admission, by operation and whether it refused",
            self.steps.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Time until a webhook had answered, by its name",
            self.webhooks.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_request",
            "Calls of webhooks, by name and by the code a refusal had",
            self.answers.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_rejection_count",
            "Requests that a webhook refused, or that failed because it could not be asked",
            self.rejections.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_fail_open_count",
            "Requests that went on although a webhook could not be asked",
            self.fail_open.clone(),
        );
    }

    pub fn step(&self, step: Step, operation: &'static str, rejected: bool, took: Duration) {
        let labels = StepLabels { r#type: step.name(), operation, rejected: flag(rejected) };
        self.steps.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// One call of a webhook, which answered or not.
    pub fn webhook(&self, name: &str, step: Step, operation: &'static str, refused: Option<u16>, took: Duration) {
        let rejected = flag(refused.is_some());
        let labels = WebhookLabels { name: name.to_owned(), r#type: step.name(), operation, rejected };
        self.webhooks.get_or_create(&labels).observe(took.as_secs_f64());
        let code = refused.unwrap_or(200).min(600);
        let labels = AnswerLabels { name: name.to_owned(), r#type: step.name(), operation, code, rejected };
        self.answers.get_or_create(&labels).inc();
    }

    /// A request ends because of a webhook: it refused with this code, or could not be asked.
    pub fn rejected(&self, name: &str, step: Step, operation: &'static str, code: Option<u16>) {
        let labels = RejectionLabels {
            name: name.to_owned(),
            r#type: step.name(),
            operation,
            error_type: if code.is_some() { "no_error" } else { "calling_webhook_error" },
            rejection_code: code.unwrap_or(0).min(600),
        };
        self.rejections.get_or_create(&labels).inc();
    }

    /// All webhooks of a step have been asked.
    pub fn webhooks_took(&self, took: Duration) {
        spent_elsewhere(took);
    }

    pub fn failed_open(&self, name: &str, step: Step) {
        self.fail_open.get_or_create(&FailOpenLabels { name: name.to_owned(), r#type: step.name() }).inc();
    }
}

fn flag(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}
