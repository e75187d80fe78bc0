//! Webhook configurations, read from the store once and again when one of them was written.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as LabelSelectorObject;
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;

use super::client::{Client, Endpoint};
use super::conditions::Condition;
use crate::selector::LabelSelector;
use crate::server::Server;

const DEFAULT_TIMEOUT_SECS: i32 = 10;

/// All webhooks in the order they are called: by the name of their configuration, then as listed there.
#[derive(Default)]
pub struct Webhooks {
    pub mutating: Vec<Hook>,
    pub validating: Vec<Hook>,
}

impl Webhooks {
    pub fn is_empty(&self) -> bool {
        self.mutating.is_empty() && self.validating.is_empty()
    }
}

pub struct Hook {
    pub name: String,
    pub rules: Vec<RuleWithOperations>,
    /// Whether a rule for another version of the same resource counts.
    pub equivalent: bool,
    pub namespaces: Selector,
    pub objects: Selector,
    pub conditions: Vec<Condition>,
    pub ignores_failure: bool,
    pub timeout: Duration,
    /// `None` if the configuration does not say.
    pub side_effects: Option<String>,
    pub reinvoked: bool,
    pub review_versions: Vec<String>,
    /// Or why nothing can be called there.
    pub client: Result<Arc<Client>, String>,
}

/// A label selector; one that cannot be read fails whatever it is asked about.
pub type Selector = Result<LabelSelector, String>;

#[derive(Default)]
pub struct Cache {
    webhooks: RwLock<Arc<Webhooks>>,
    /// "Not read yet" is old too.
    is_fresh: AtomicBool,
    /// Clients keep connections open, so they outlive a change of configuration elsewhere.
    clients: Mutex<HashMap<Endpoint, Arc<Client>>>,
}

impl Cache {
    pub fn configurations_changed(&self) {
        self.is_fresh.store(false, Ordering::Release);
    }
}

impl Server {
    pub(crate) fn webhooks(&self) -> Arc<Webhooks> {
        let cache = self.webhook_cache();
        if !cache.is_fresh.load(Ordering::Acquire) {
            // Whoever comes second waits here: a write that follows a configuration must meet it.
            let mut webhooks = cache.webhooks.write();
            if !cache.is_fresh.swap(true, Ordering::AcqRel) {
                *webhooks = Arc::new(read(self, &mut cache.clients.lock()));
            }
            return webhooks.clone();
        }
        cache.webhooks.read().clone()
    }
}

fn read(server: &Server, clients: &mut HashMap<Endpoint, Arc<Client>>) -> Webhooks {
    let mut clients_in_use = HashMap::new();
    let mut client = |config: &WebhookClientConfig| {
        let endpoint = Endpoint::new(config, &server.options().ca_pem)?;
        if let Some(client) = clients_in_use.get(&endpoint) {
            return Ok(Arc::clone(client));
        }
        let client = match clients.get(&endpoint) {
            Some(client) => client.clone(),
            None => Arc::new(Client::new(&endpoint, server.store().clone())?),
        };
        clients_in_use.insert(endpoint, client.clone());
        Ok(client)
    };
    let mut webhooks = Webhooks::default();
    for config in all::<MutatingWebhookConfiguration>(server, "mutatingwebhookconfigurations") {
        for hook in config.webhooks.unwrap_or_default() {
            webhooks.mutating.push(Hook {
                equivalent: hook.match_policy.as_deref() != Some("Exact"),
                namespaces: selector(hook.namespace_selector.as_ref()),
                objects: selector(hook.object_selector.as_ref()),
                conditions: conditions(hook.match_conditions.as_deref()),
                ignores_failure: hook.failure_policy.as_deref() == Some("Ignore"),
                timeout: timeout(hook.timeout_seconds),
                side_effects: Some(hook.side_effects).filter(|effects| !effects.is_empty()),
                reinvoked: hook.reinvocation_policy.as_deref() == Some("IfNeeded"),
                review_versions: hook.admission_review_versions,
                client: client(&hook.client_config),
                rules: hook.rules.unwrap_or_default(),
                name: hook.name,
            });
        }
    }
    for config in all::<ValidatingWebhookConfiguration>(server, "validatingwebhookconfigurations") {
        for hook in config.webhooks.unwrap_or_default() {
            webhooks.validating.push(Hook {
                equivalent: hook.match_policy.as_deref() != Some("Exact"),
                namespaces: selector(hook.namespace_selector.as_ref()),
                objects: selector(hook.object_selector.as_ref()),
                conditions: conditions(hook.match_conditions.as_deref()),
                ignores_failure: hook.failure_policy.as_deref() == Some("Ignore"),
                timeout: timeout(hook.timeout_seconds),
                side_effects: Some(hook.side_effects).filter(|effects| !effects.is_empty()),
                reinvoked: false,
                review_versions: hook.admission_review_versions,
                client: client(&hook.client_config),
                rules: hook.rules.unwrap_or_default(),
                name: hook.name,
            });
        }
    }
    *clients = clients_in_use;
    webhooks
}

/// Keys are names, so the store's order is that of the configurations.
fn all<T: DeserializeOwned>(server: &Server, plural: &str) -> Vec<T> {
    let collection = format!("admissionregistration.k8s.io/{plural}");
    let page = server.store().list(&collection, &usher_store::ListOptions::default());
    let read = |entry: &usher_store::Entry| match serde_json::from_slice(&entry.value) {
        Ok(config) => Some(config),
        Err(error) => {
            tracing::error!(collection, name = %entry.key, %error, "a webhook configuration cannot be read");
            None
        }
    };
    page.into_iter().flat_map(|p| p.entries).filter_map(|entry| read(&entry)).collect()
}

fn selector(object: Option<&LabelSelectorObject>) -> Selector {
    match object {
        None => Ok(LabelSelector::default()),
        Some(object) => LabelSelector::from_object(object).ok_or_else(|| "invalid label selector operator".to_owned()),
    }
}

fn conditions(conditions: Option<&[MatchCondition]>) -> Vec<Condition> {
    conditions.unwrap_or_default().iter().map(|c| Condition::compile(&c.expression)).collect()
}

fn timeout(secs: Option<i32>) -> Duration {
    Duration::from_secs(u64::try_from(secs.unwrap_or(DEFAULT_TIMEOUT_SECS)).unwrap_or(1))
}
