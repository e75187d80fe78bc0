//! Asks the rules about one write. Refusals read as those of upstream's webhooks, which is what its clients know.

use serde_json::json;
use usher_api::kueue::{GROUP, VERSION, rules};

use crate::admission::{Operation, Review};
use crate::object::{self, Object};
use crate::server::Server;
use crate::status::{ApiError, Result};

fn is_ours(review: &Review<'_>) -> bool {
    let resource = review.resource();
    resource.group == GROUP && resource.version == VERSION
}

pub fn admit(review: &Review<'_>, object: &mut Object) {
    if is_ours(review) && review.operation == Operation::Create && review.subresource.is_empty() {
        rules::default(&review.resource().plural, object);
    }
}

pub fn validate(
    server: &Server,
    review: &Review<'_>,
    new: &Object,
    old: Option<&Object>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    if !is_ours(review) {
        return Ok(());
    }
    let plural = review.resource().plural.as_str();
    let verdict = rules::validate(plural, review.subresource, new, old, &server.gates().queues);
    warnings.extend(verdict.warnings);
    if verdict.errors.is_empty() {
        return Ok(());
    }
    let message = rules::denial(plural, &verdict.errors);
    tracing::debug!(resource = plural, name = object::name(new), %message, "refused");
    let status = json!({"metadata": {}, "status": "Failure", "message": message, "reason": "Forbidden", "code": 403});
    Err(ApiError::made_elsewhere(403, &message, status.as_object().cloned().unwrap_or_default()))
}
