//! Everything that `kubectl apply` needs to install Usher on a cluster. `usher manifests` prints it, `deploy/` holds it: the same
//! objects, made here.

pub mod objects;
pub mod rbac;
pub mod webhooks;
pub mod yaml;

#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::names::NAMESPACE;

/// What may differ between installations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub namespace: String,
    pub image: String,
    pub replicas: u32,
    /// Where webhooks are reached, if not through a Service: for a copy of Usher that runs outside the cluster.
    pub webhook_url: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            namespace: NAMESPACE.to_owned(),
            image: format!("usher:{}", env!("CARGO_PKG_VERSION")),
            replicas: 2,
            webhook_url: None,
        }
    }
}

/// All objects, in an order in which they can be applied.
pub fn all(settings: &Settings) -> Vec<Value> {
    let mut all = usher_api::kueue::definitions();
    all.push(objects::namespace(settings));
    all.extend(installed(settings));
    all
}

/// All but the definitions and the namespace, which a Helm chart leaves to Helm.
pub fn installed(settings: &Settings) -> Vec<Value> {
    let mut all = rbac::all(settings);
    all.extend(objects::all(settings));
    all.extend(webhooks::all(settings));
    if settings.webhook_url.is_none() {
        all.extend(objects::api_services(settings));
    }
    all
}
