//! Mutating and validating webhook configurations. Calling the webhooks is admission's work.

mod hook;
mod url;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;
use usher_schema::field::{Errors, Path};

use super::common::{list, text};
use crate::registry::kind::{Column, Cx, Kind, Resource};
use crate::registry::table;
use hook::{Hook, Strictness, validate_hooks};

const GROUP: &str = "admissionregistration.k8s.io";
const STATIC_SUFFIX: &str = ".static.k8s.io";

pub struct MutatingWebhookConfigurations;

impl Kind for MutatingWebhookConfigurations {
    type Object = MutatingWebhookConfiguration;

    fn resource(&self) -> Resource {
        resource("MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
    }

    fn default(&self, object: &mut MutatingWebhookConfiguration) {
        for hook in object.webhooks.iter_mut().flatten() {
            hook.reinvocation_policy.get_or_insert_with(|| "Never".to_owned());
            default_hook(Defaults {
                failure_policy: &mut hook.failure_policy,
                match_policy: &mut hook.match_policy,
                namespace_selector: &mut hook.namespace_selector,
                object_selector: &mut hook.object_selector,
                timeout_seconds: &mut hook.timeout_seconds,
                rules: &mut hook.rules,
                client_config: &mut hook.client_config,
            });
        }
    }

    fn validate(&self, _cx: &Cx, object: &MutatingWebhookConfiguration, errors: &mut Errors) {
        let hooks = mutating(list(&object.webhooks));
        validate_hooks(&hooks, &Strictness::of_new(), errors);
        refuse_static_name(text(&object.metadata.name), errors);
    }

    fn validate_update(
        &self,
        _cx: &Cx,
        new: &MutatingWebhookConfiguration,
        old: &MutatingWebhookConfiguration,
        errors: &mut Errors,
    ) {
        let (new, old) = (mutating(list(&new.webhooks)), mutating(list(&old.webhooks)));
        validate_hooks(&new, &Strictness::of_update(&new, &old), errors);
    }

    fn columns(&self) -> Vec<Column> {
        columns()
    }

    fn cells(&self, object: &MutatingWebhookConfiguration, meta: &Value, now: Timestamp) -> Vec<Value> {
        vec![table::name_cell(meta), list(&object.webhooks).len().into(), table::age_cell(meta, now)]
    }

    fn unconditional_update(&self) -> bool {
        false
    }
}

pub struct ValidatingWebhookConfigurations;

impl Kind for ValidatingWebhookConfigurations {
    type Object = ValidatingWebhookConfiguration;

    fn resource(&self) -> Resource {
        resource("ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
    }

    fn default(&self, object: &mut ValidatingWebhookConfiguration) {
        for hook in object.webhooks.iter_mut().flatten() {
            default_hook(Defaults {
                failure_policy: &mut hook.failure_policy,
                match_policy: &mut hook.match_policy,
                namespace_selector: &mut hook.namespace_selector,
                object_selector: &mut hook.object_selector,
                timeout_seconds: &mut hook.timeout_seconds,
                rules: &mut hook.rules,
                client_config: &mut hook.client_config,
            });
        }
    }

    fn validate(&self, _cx: &Cx, object: &ValidatingWebhookConfiguration, errors: &mut Errors) {
        let hooks = validating(list(&object.webhooks));
        validate_hooks(&hooks, &Strictness::of_new(), errors);
        refuse_static_name(text(&object.metadata.name), errors);
    }

    fn validate_update(
        &self,
        _cx: &Cx,
        new: &ValidatingWebhookConfiguration,
        old: &ValidatingWebhookConfiguration,
        errors: &mut Errors,
    ) {
        let (new, old) = (validating(list(&new.webhooks)), validating(list(&old.webhooks)));
        validate_hooks(&new, &Strictness::of_update(&new, &old), errors);
    }

    fn columns(&self) -> Vec<Column> {
        columns()
    }

    fn cells(&self, object: &ValidatingWebhookConfiguration, meta: &Value, now: Timestamp) -> Vec<Value> {
        vec![table::name_cell(meta), list(&object.webhooks).len().into(), table::age_cell(meta, now)]
    }

    fn unconditional_update(&self) -> bool {
        false
    }
}

fn resource(kind: &str, plural: &str) -> Resource {
    Resource::cluster(GROUP, "v1", kind, plural).in_category("api-extensions").with_generation()
}

fn columns() -> Vec<Column> {
    vec![
        table::name_column(),
        Column::new("Webhooks", "integer", 0, "How many webhooks it holds."),
        table::age_column(),
    ]
}

fn refuse_static_name(name: &str, errors: &mut Errors) {
    if name.ends_with(STATIC_SUFFIX) {
        let detail = format!(
            "names ending with \"{STATIC_SUFFIX}\" are reserved for static manifest-based configurations and cannot be managed via the API"
        );
        errors.invalid(&Path::new("metadata").child("name"), name, detail);
    }
}

fn mutating(hooks: &[MutatingWebhook]) -> Vec<Hook<'_>> {
    hooks.iter().map(mutating_hook).collect()
}

fn mutating_hook(hook: &MutatingWebhook) -> Hook<'_> {
    let MutatingWebhook {
        admission_review_versions,
        client_config,
        failure_policy,
        match_conditions,
        match_policy,
        name,
        namespace_selector,
        object_selector,
        reinvocation_policy,
        rules,
        side_effects,
        timeout_seconds,
    } = hook;
    Hook {
        name,
        client_config,
        rules: list(rules),
        failure_policy: failure_policy.as_deref(),
        match_policy: match_policy.as_deref(),
        selectors: [namespace_selector.as_ref(), object_selector.as_ref()],
        side_effects,
        timeout_seconds: *timeout_seconds,
        review_versions: admission_review_versions,
        match_conditions: list(match_conditions),
        reinvocation_policy: reinvocation_policy.as_deref(),
    }
}

fn validating(hooks: &[ValidatingWebhook]) -> Vec<Hook<'_>> {
    hooks.iter().map(validating_hook).collect()
}

fn validating_hook(hook: &ValidatingWebhook) -> Hook<'_> {
    let ValidatingWebhook {
        admission_review_versions,
        client_config,
        failure_policy,
        match_conditions,
        match_policy,
        name,
        namespace_selector,
        object_selector,
        rules,
        side_effects,
        timeout_seconds,
    } = hook;
    Hook {
        name,
        client_config,
        rules: list(rules),
        failure_policy: failure_policy.as_deref(),
        match_policy: match_policy.as_deref(),
        selectors: [namespace_selector.as_ref(), object_selector.as_ref()],
        side_effects,
        timeout_seconds: *timeout_seconds,
        review_versions: admission_review_versions,
        match_conditions: list(match_conditions),
        reinvocation_policy: None,
    }
}

/// What both kinds of webhooks default alike.
struct Defaults<'a> {
    failure_policy: &'a mut Option<String>,
    match_policy: &'a mut Option<String>,
    namespace_selector: &'a mut Option<LabelSelector>,
    object_selector: &'a mut Option<LabelSelector>,
    timeout_seconds: &'a mut Option<i32>,
    rules: &'a mut Option<Vec<RuleWithOperations>>,
    client_config: &'a mut WebhookClientConfig,
}

fn default_hook(hook: Defaults) {
    hook.failure_policy.get_or_insert_with(|| "Fail".to_owned());
    hook.match_policy.get_or_insert_with(|| "Equivalent".to_owned());
    hook.namespace_selector.get_or_insert_default();
    hook.object_selector.get_or_insert_default();
    hook.timeout_seconds.get_or_insert(10);
    for rule in hook.rules.iter_mut().flatten() {
        rule.scope.get_or_insert_with(|| "*".to_owned());
    }
    if let Some(service) = &mut hook.client_config.service {
        service.port.get_or_insert(443);
    }
}

#[cfg(test)]
mod tests;
