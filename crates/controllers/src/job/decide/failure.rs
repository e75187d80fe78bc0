//! What a Job's podFailurePolicy says about a failed pod: the first rule that matches decides.

use k8s_openapi::api::batch::v1::{
    PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    FailJob,
    FailIndex,
    Ignore,
    Count,
}

impl Action {
    pub fn as_str(self) -> &'static str {
        match self {
            Action::FailJob => "FailJob",
            Action::FailIndex => "FailIndex",
            Action::Ignore => "Ignore",
            Action::Count => "Count",
        }
    }

    fn parse(text: &str) -> Option<Action> {
        [Action::FailJob, Action::FailIndex, Action::Ignore, Action::Count].into_iter().find(|a| a.as_str() == text)
    }
}

/// The rule that a failed pod met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    pub action: Action,
    rule: usize,
    because: Because,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Because {
    ExitCode { container: String, code: i32 },
    Condition { kind: String },
}

impl Match {
    /// The sentence of the Job's condition.
    pub fn sentence(&self, namespace: &str, pod: &str) -> String {
        let (action, rule) = (self.action.as_str(), self.rule);
        match &self.because {
            Because::ExitCode { container, code } => format!(
                "Container {container} for pod {namespace}/{pod} failed with exit code {code} matching {action} rule at index {rule}"
            ),
            Because::Condition { kind } => {
                format!("Pod {namespace}/{pod} has condition {kind} matching {action} rule at index {rule}")
            }
        }
    }
}

/// The first rule of `policy` that `pod` meets. A rule whose action is unknown matches nothing.
pub fn match_policy(policy: &PodFailurePolicy, pod: &Pod) -> Option<Match> {
    let status = pod.status.as_ref()?;
    policy.rules.iter().enumerate().find_map(|(rule, it)| {
        let because = match (&it.on_exit_codes, &it.on_pod_conditions) {
            (Some(codes), _) => by_exit_code(status, codes)?,
            (None, Some(patterns)) => by_condition(status, patterns)?,
            (None, None) => return None,
        };
        Some(Match { action: Action::parse(&it.action)?, rule, because })
    })
}

/// Containers first, then init containers; one that succeeded or has not ended matches nothing.
fn by_exit_code(status: &PodStatus, codes: &PodFailurePolicyOnExitCodesRequirement) -> Option<Because> {
    let containers = status.container_statuses.iter().flatten();
    let all = containers.chain(status.init_container_statuses.iter().flatten());
    all.filter(|container| codes.container_name.as_ref().is_none_or(|name| *name == container.name))
        .filter_map(|container| Some((container, exit_code(container)?)))
        .filter(|(_, code)| *code != 0)
        .find(|(_, code)| match codes.operator.as_str() {
            "In" => codes.values.contains(code),
            "NotIn" => !codes.values.contains(code),
            _ => false,
        })
        .map(|(container, code)| Because::ExitCode { container: container.name.clone(), code })
}

fn exit_code(container: &ContainerStatus) -> Option<i32> {
    Some(container.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn by_condition(status: &PodStatus, patterns: &[PodFailurePolicyOnPodConditionsPattern]) -> Option<Because> {
    let met = |pattern: &PodFailurePolicyOnPodConditionsPattern, kind: &str, value: &str| {
        pattern.type_ == kind && pattern.status.as_deref().unwrap_or("True") == value
    };
    let conditions = status.conditions.iter().flatten();
    conditions
        .into_iter()
        .find(|condition| patterns.iter().any(|pattern| met(pattern, &condition.type_, &condition.status)))
        .map(|condition| Because::Condition { kind: condition.type_.clone() })
}
