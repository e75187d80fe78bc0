//! What stands between a decoded object and the kind's own rules: the built-in plugins and the webhooks.
//!
//! The order is upstream's: on a create or update the plugins that change objects ([`plugins`]), then the mutating webhooks
//! ([`webhook`]), and both again if a webhook changed something; the kind's own preparation and validation; then the plugins that
//! only check, and the validating webhooks. Start reading at [`chain`].
//!
//! Left out: PodSecurity (it acts only on labelled namespaces), ResourceQuota (stored, not enforced), admission policies (not
//! served), and the plugins that are off by default upstream.

mod chain;
mod plugins;
mod review;
mod scale;
pub(crate) mod webhook;

pub(crate) use review::{Operation, Review};
