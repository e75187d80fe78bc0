//! Which verb of which resource a request is for.

use std::sync::Arc;

use super::{Answer, Ask, Target};
use crate::negotiate::{Accepted, Encoding, OBJECT_TYPES, Shape};
use crate::registry::kind::Resource;
use crate::registry::served::{Part, Served};
use crate::server::Server;
use crate::status::{ApiError, Result};

impl Server {
    pub(crate) async fn dispatch(&self, ask: Ask) -> Result<Answer> {
        let catalog = self.catalog();
        let info = &ask.info;
        if let Some(question) = catalog.question(&info.group, &info.version, &info.resource) {
            return if question.group == crate::visibility::GROUP {
                self.pending_workloads(&ask, question).await
            } else if info.verb == "create" {
                self.review(&ask, question).await
            } else {
                Err(ApiError::method_unknown())
            };
        }
        let kind = catalog.find(&info.group, &info.version, &info.resource).ok_or_else(ApiError::no_such_path)?.clone();
        check_scope(kind.resource(), &ask)?;
        let target = Target { kind: &kind, ask: &ask };
        if kind.is_custom() {
            refuse_protobuf(&ask)?;
        }
        let deprecation: Vec<String> = kind.deprecation().map(str::to_owned).into_iter().collect();
        match self.subject(&target).await {
            Ok(answer) => Ok(answer.warned(deprecation)),
            Err(error) => Err(error.warned(deprecation)),
        }
    }

    async fn subject(&self, target: &Target<'_>) -> Result<Answer> {
        let Target { kind, ask } = target;
        match ask.info.subresource.as_str() {
            "" => self.main_verb(target).await,
            "status" if has_subresource(kind, "status") => match ask.info.verb {
                "get" => self.get(target).await,
                "update" => self.update(target, Part::Status).await,
                "patch" => self.patch(target, Part::Status).await,
                verb => Err(ApiError::method_not_allowed(kind.resource(), verb)),
            },
            other if has_subresource(kind, other) => self.subresource(target, other).await,
            _ => Err(ApiError::no_such_path()),
        }
    }

    async fn main_verb(&self, target: &Target<'_>) -> Result<Answer> {
        let resource = target.kind.resource();
        let verb = target.ask.info.verb;
        if !resource.verbs.contains(&verb) {
            return Err(ApiError::method_not_allowed(resource, verb));
        }
        match verb {
            "get" => self.get(target).await,
            "list" => self.list(target).await,
            "watch" => self.watch(target).await,
            "create" => self.create(target).await,
            "update" => self.update(target, Part::Main).await,
            "patch" => self.patch(target, Part::Main).await,
            "delete" => self.delete(target).await,
            "deletecollection" => self.delete_collection(target).await,
            _ => Err(ApiError::method_unknown()),
        }
    }
}

/// Custom resources have no protobuf form; their metadata has.
fn refuse_protobuf(ask: &Ask) -> Result<()> {
    match ask.accepted() {
        Ok(Accepted { encoding: Encoding::Protobuf, shape: Shape::Object, .. }) => {
            Err(ApiError::not_acceptable(OBJECT_TYPES))
        }
        _ => Ok(()),
    }
}

fn has_subresource(kind: &Arc<dyn Served>, name: &str) -> bool {
    kind.resource().subresources.iter().any(|s| s.name == name)
}

/// A cluster-scoped resource has no path below a namespace; of a namespaced one, only lists and watches reach across.
fn check_scope(resource: &Resource, ask: &Ask) -> Result<()> {
    let info = &ask.info;
    // The path of a namespace itself reads as if it were in that namespace.
    let is_itself = resource.group.is_empty() && resource.plural == "namespaces" && info.name == info.namespace;
    let in_namespace = !info.namespace.is_empty() && !is_itself;
    if !resource.namespaced && in_namespace {
        return Err(ApiError::no_such_path());
    }
    if resource.namespaced
        && info.namespace.is_empty()
        && !(matches!(info.verb, "list" | "watch") && info.name.is_empty())
    {
        return Err(if info.name.is_empty() { ApiError::method_unknown() } else { ApiError::no_such_path() });
    }
    if matches!(info.verb, "update" | "patch") && info.name.is_empty() {
        return Err(ApiError::method_unknown());
    }
    if info.verb == "create" && !info.name.is_empty() && info.subresource.is_empty() {
        return Err(ApiError::method_unknown());
    }
    Ok(())
}
