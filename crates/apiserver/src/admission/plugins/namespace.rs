//! NamespaceLifecycle: new content needs a namespace that exists and is not on its way out; three namespaces stay forever.

use serde::Deserialize;

use crate::admission::Review;
use crate::object::Object;
use crate::server::Server;
use crate::status::{ApiError, Result};

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub fn may_be_deleted(review: &Review<'_>) -> Result<()> {
    if review.is_about("", "namespaces", "") && IMMORTAL.contains(&review.name) {
        return Err(ApiError::forbidden(review.resource(), review.name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// Asked for every create, so no more of the namespace is decoded than this.
#[derive(Deserialize)]
struct Namespace<'a> {
    #[serde(borrow, default)]
    status: Status<'a>,
}

#[derive(Default, Deserialize)]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: std::borrow::Cow<'a, str>,
}

pub fn accepts(server: &Server, review: &Review<'_>, object: &Object) -> Result<()> {
    if !review.resource().namespaced {
        return Ok(());
    }
    let Some(entry) = server.store().get("core/namespaces", review.namespace) else {
        return Err(ApiError::not_found_core("namespaces", review.namespace));
    };
    let terminating =
        serde_json::from_slice::<Namespace<'_>>(&entry.value).is_ok_and(|ns| ns.status.phase == "Terminating");
    if terminating {
        return Err(ApiError::namespace_terminating(review.resource(), review.shown_name(object), review.namespace));
    }
    Ok(())
}
