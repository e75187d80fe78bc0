//! What stands between a decoded object and the kind's own rules: the built-in checks and the webhooks.

use crate::object::Object;
use crate::registry::kind::Resource;
use crate::rest::Target;
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::stored;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// The question put to admission.
pub struct Review<'a> {
    pub resource: &'a Resource,
    pub subresource: &'a str,
    pub operation: Operation,
    pub namespace: &'a str,
    pub name: &'a str,
    pub user: &'a crate::auth::identity::User,
    pub dry_run: bool,
}

impl<'a> Review<'a> {
    pub fn new(target: &'a Target<'_>, operation: Operation, name: &'a str, dry_run: bool) -> Review<'a> {
        Review {
            resource: target.kind.resource(),
            subresource: &target.ask.info.subresource,
            operation,
            namespace: target.namespace(),
            name,
            user: &target.ask.user,
            dry_run,
        }
    }
}

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Server {
    /// Checks and changes an object before its kind prepares it.
    pub(crate) async fn admit(
        &self,
        review: &Review<'_>,
        object: Object,
        _old: Option<&Object>,
        _warnings: &mut Vec<String>,
    ) -> Result<Object> {
        if review.operation == Operation::Create {
            self.namespace_accepts(review)?;
        }
        Ok(object)
    }

    /// Checks an object as it would be stored, or one that is to be deleted.
    pub(crate) async fn validate_admission(
        &self,
        review: &Review<'_>,
        _object: Option<&Object>,
        _old: Option<&Object>,
        _warnings: &mut Vec<String>,
    ) -> Result<()> {
        if review.operation == Operation::Delete
            && review.resource.collection() == "core/namespaces"
            && IMMORTAL.contains(&review.name)
        {
            return Err(ApiError::forbidden(review.resource, review.name, "this namespace may not be deleted"));
        }
        Ok(())
    }

    /// New content needs a namespace that exists and is not on its way out.
    fn namespace_accepts(&self, review: &Review<'_>) -> Result<()> {
        if review.namespace.is_empty() || !review.resource.namespaced {
            return Ok(());
        }
        let Some(entry) = self.store().get("core/namespaces", review.namespace) else {
            return Err(ApiError::not_found_core("namespaces", review.namespace));
        };
        let terminating = serde_json::from_slice::<Object>(&entry.value).is_ok_and(|ns| {
            crate::object::is_deleting(&ns) || ns.pointer("/status/phase").is_some_and(|p| p == "Terminating")
        });
        if terminating {
            return Err(ApiError::namespace_terminating(review.resource, review.name, review.namespace));
        }
        let _ = stored::key;
        Ok(())
    }
}
