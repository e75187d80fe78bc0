//! Pods, and what bounds them: the order in which the plugins see one.

use super::{limit_ranger, nodes, priority, runtime_class, service_account, tolerations};
use crate::admission::{Operation, Review};
use crate::object::Object;
use crate::server::Server;
use crate::status::Result;

pub async fn admit(server: &Server, review: &Review<'_>, pod: &mut Object, old: Option<&Object>) -> Result<()> {
    match review.operation {
        Operation::Create => {
            limit_ranger::set_defaults(&limit_ranger::ranges(server, review), pod);
            service_account::admit(server, review, pod).await?;
            priority::admit(server, review, pod)?;
            tolerations::add_default(pod);
            runtime_class::admit(server, review, pod)?;
            nodes::copy_topology_to_pod(server, pod);
        }
        Operation::Update => {
            if let Some(old) = old {
                priority::keep(pod, old);
            }
            tolerations::add_default(pod);
        }
        Operation::Delete => {}
    }
    Ok(())
}

pub async fn validate(server: &Server, review: &Review<'_>, pod: &Object) -> Result<()> {
    limit_ranger::check_pod(&limit_ranger::ranges(server, review), pod).map_err(|why| review.forbidden(pod, &why))?;
    service_account::validate(server, review, pod).await?;
    runtime_class::validate(server, review, pod)
}

pub fn validate_claim(server: &Server, review: &Review<'_>, claim: &Object) -> Result<()> {
    if crate::object::is_deleting(claim) {
        return Ok(());
    }
    limit_ranger::check_claim(&limit_ranger::ranges(server, review), claim).map_err(|why| review.forbidden(claim, &why))
}

pub fn validate_priority_class(server: &Server, review: &Review<'_>, class: &Object) -> Result<()> {
    priority::only_one_default(server, review, class)
}
