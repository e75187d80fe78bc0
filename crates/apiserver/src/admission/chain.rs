//! The chain: which plugins and webhooks a write goes through, in which order.

use super::plugins::{kueue, namespace, nodes, pods};
use super::webhook::Rounds;
use super::{Operation, Review};
use crate::metrics::admission::Step;
use crate::object::Object;
use crate::server::Server;
use crate::status::Result;

impl Server {
    /// Checks and changes an object before its kind prepares it.
    pub(crate) async fn admit(
        &self,
        review: &Review<'_>,
        object: Object,
        old: Option<&Object>,
        warnings: &mut Vec<String>,
    ) -> Result<Object> {
        let started = std::time::Instant::now();
        let outcome = self.admit_unmeasured(review, object, old, warnings).await;
        let metrics = self.metrics().admission();
        metrics.step(Step::Admit, review.operation.name(), outcome.is_err(), started.elapsed());
        outcome
    }

    async fn admit_unmeasured(
        &self,
        review: &Review<'_>,
        mut object: Object,
        old: Option<&Object>,
        warnings: &mut Vec<String>,
    ) -> Result<Object> {
        self.run_mutating_plugins(review, &mut object, old).await?;
        let hooks = self.webhooks();
        if hooks.mutating.is_empty() || review.is_exempt_from_webhooks() {
            return Ok(object);
        }
        let mut rounds = Rounds::default();
        object = self.call_mutating(&hooks.mutating, review, object, old, &mut rounds, warnings).await?;
        if rounds.begin_second() {
            // What a webhook changed, the plugins may have something to say about, and then other webhooks.
            let before = object.clone();
            self.run_mutating_plugins(review, &mut object, old).await?;
            if object != before {
                rounds.changed();
            }
            object = self.call_mutating(&hooks.mutating, review, object, old, &mut rounds, warnings).await?;
        }
        Ok(object)
    }

    /// Checks an object as it would be stored, or one that is to be deleted.
    pub(crate) async fn validate_admission(
        &self,
        review: &Review<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let started = std::time::Instant::now();
        let outcome = self.validate_unmeasured(review, object, old, warnings).await;
        let metrics = self.metrics().admission();
        metrics.step(Step::Validate, review.operation.name(), outcome.is_err(), started.elapsed());
        outcome
    }

    async fn validate_unmeasured(
        &self,
        review: &Review<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        if review.operation == Operation::Delete {
            namespace::may_be_deleted(review)?;
        }
        if let Some(object) = object {
            self.run_validating_plugins(review, object).await?;
            kueue::validate(self, review, object, old, warnings)?;
        }
        let hooks = self.webhooks();
        if review.is_exempt_from_webhooks() {
            return Ok(());
        }
        if review.operation == Operation::Delete && !hooks.mutating.is_empty() {
            self.call_mutating_on_delete(&hooks.mutating, review, old, warnings).await?;
        }
        if hooks.validating.is_empty() {
            return Ok(());
        }
        self.call_validating(&hooks.validating, review, object, old, warnings).await
    }

    async fn run_mutating_plugins(&self, review: &Review<'_>, object: &mut Object, old: Option<&Object>) -> Result<()> {
        if review.operation == Operation::Create {
            namespace::accepts(self, review, object)?;
        }
        if !review.resource().group.is_empty() {
            kueue::admit(self, review, object);
            return Ok(());
        }
        match (review.resource().plural.as_str(), review.subresource) {
            ("pods", "") => pods::admit(self, review, object, old).await,
            ("pods", "binding") => {
                nodes::copy_topology_to_binding(self, object);
                Ok(())
            }
            ("nodes", "") if review.operation == Operation::Create => {
                nodes::taint_as_not_ready(object);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn run_validating_plugins(&self, review: &Review<'_>, object: &Object) -> Result<()> {
        let resource = review.resource();
        match (resource.group.as_str(), resource.plural.as_str(), review.subresource) {
            ("", "pods", "") if review.operation == Operation::Create => pods::validate(self, review, object).await,
            ("", "persistentvolumeclaims", "") => pods::validate_claim(self, review, object),
            ("scheduling.k8s.io", "priorityclasses", "") => pods::validate_priority_class(self, review, object),
            _ => Ok(()),
        }
    }
}
