//! Calling webhooks: mutating ones one after another, twice if need be; validating ones all at once.

use std::collections::BTreeSet;

use json_patch::Patch;

use super::config::Hook;
use super::matching::Invocation;
use super::review::{self, Verdict, Version};
use crate::admission::Review;
use crate::metrics::admission::Step;
use crate::object::{self, Object};
use crate::server::Server;
use crate::status::{ApiError, Result};

/// Which webhooks are called again because the object changed after they had seen it.
#[derive(Default)]
pub struct Rounds {
    is_second: bool,
    any_change: bool,
    /// Called so far and willing to be called again, by position.
    seen: BTreeSet<usize>,
    again: BTreeSet<usize>,
}

impl Rounds {
    /// The object is no longer what those called so far have seen.
    pub fn changed(&mut self) {
        self.any_change = true;
        self.again.append(&mut self.seen);
    }

    /// Whether there is to be a second round; there is never a third.
    pub fn begin_second(&mut self) -> bool {
        self.is_second = self.any_change;
        self.is_second
    }

    fn skips(&self, index: usize) -> bool {
        self.is_second && !self.again.contains(&index)
    }
}

/// How a call went wrong.
enum Failure {
    /// The webhook could not be asked, or its answer not be used: the failure policy decides.
    Call(String),
    /// Final, whatever the policy.
    Refused(ApiError),
}

impl Review<'_> {
    /// Webhooks are not asked about the configuration of webhooks: a broken one could not be repaired.
    pub fn is_exempt_from_webhooks(&self) -> bool {
        self.resource().group == "admissionregistration.k8s.io"
    }
}

impl Server {
    pub(in crate::admission) async fn call_mutating(
        &self,
        hooks: &[Hook],
        review: &Review<'_>,
        mut object: Object,
        old: Option<&Object>,
        rounds: &mut Rounds,
        warnings: &mut Vec<String>,
    ) -> Result<Object> {
        for (index, hook) in hooks.iter().enumerate() {
            let Some(invocation) = self.invocation(hook, review, Some(&object), old)? else { continue };
            if rounds.skips(index) {
                continue;
            }
            let called = self.call(hook, &invocation, review, Some(&object), old, true, warnings).await;
            let called = called.and_then(|verdict| patched(hook, &invocation, review, &object, &verdict));
            match called {
                Ok(Some(new)) if new != object => {
                    object = new;
                    rounds.changed();
                }
                Ok(_) => {}
                Err(failure) => self.settle(hook, Step::Admit, review, failure)?,
            }
            if hook.reinvoked {
                rounds.seen.insert(index);
            }
        }
        Ok(object)
    }

    /// There is no object to change on a delete; mutating webhooks are asked all the same.
    pub(in crate::admission) async fn call_mutating_on_delete(
        &self,
        hooks: &[Hook],
        review: &Review<'_>,
        old: Option<&Object>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        for hook in hooks {
            let Some(invocation) = self.invocation(hook, review, None, old)? else { continue };
            match self.call(hook, &invocation, review, None, old, true, warnings).await {
                Ok(verdict) if verdict.patch.is_empty() => {}
                Ok(_) => {
                    return Err(ApiError::internal(format!(
                        "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                        hook.name
                    )));
                }
                Err(failure) => self.settle(hook, Step::Admit, review, failure)?,
            }
        }
        Ok(())
    }

    pub(in crate::admission) async fn call_validating(
        &self,
        hooks: &[Hook],
        review: &Review<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let mut calls = Vec::new();
        for hook in hooks {
            if let Some(invocation) = self.invocation(hook, review, object, old)? {
                calls.push(async move {
                    let mut said = Vec::new();
                    let called = self.call(hook, &invocation, review, object, old, false, &mut said).await;
                    let settle = |failure| self.settle(hook, Step::Validate, review, failure);
                    (called.map(|_| ()).or_else(settle), said)
                });
            }
        }
        let mut outcome = Ok(());
        let started = std::time::Instant::now();
        let answers = futures::future::join_all(calls).await;
        self.metrics().admission().webhooks_took(started.elapsed());
        for (called, said) in answers {
            warnings.extend(said);
            outcome = outcome.and(called);
        }
        outcome
    }

    /// One call. Warnings are kept also when it refuses.
    #[allow(clippy::too_many_arguments)]
    async fn call(
        &self,
        hook: &Hook,
        invocation: &Invocation,
        review: &Review<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
        is_mutating: bool,
        warnings: &mut Vec<String>,
    ) -> std::result::Result<Verdict, Failure> {
        if review.dry_run {
            check_dry_run(hook)?;
        }
        let Some(version) = Version::choose(&hook.review_versions) else {
            return Err(Failure::Call(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
                    .to_owned(),
            ));
        };
        let client = hook.client.as_ref().map_err(|why| Failure::Call(format!("could not get REST client: {why}")))?;
        let uid = self.ids().uid();
        let question = review::question(version, &uid, review, invocation, object, old);
        let started = std::time::Instant::now();
        let answer = client.post(&question, hook.timeout).await;
        let took = started.elapsed();
        let step = if is_mutating { Step::Admit } else { Step::Validate };
        let (metrics, operation) = (self.metrics().admission(), review.operation.name());
        if is_mutating {
            metrics.webhooks_took(took);
        }
        let answer = answer.map_err(|why| Failure::Call(format!("failed to call webhook: {why}")));
        let verdict = answer.and_then(|answer| {
            Verdict::read(version, &uid, is_mutating, &answer)
                .map_err(|why| Failure::Call(format!("received invalid webhook response: {why}")))
        });
        let verdict = verdict.inspect_err(|_| metrics.webhook(&hook.name, step, operation, Some(0), took))?;
        warnings.extend(verdict.warnings.iter().cloned());
        if verdict.allowed {
            metrics.webhook(&hook.name, step, operation, None, took);
            return Ok(verdict);
        }
        let refusal = verdict.refusal(&hook.name);
        metrics.webhook(&hook.name, step, operation, Some(refusal.code), took);
        Err(Failure::Refused(refusal))
    }

    /// A refusal goes to the client; a failed call does so unless the webhook can be done without.
    fn settle(&self, hook: &Hook, step: Step, review: &Review<'_>, failure: Failure) -> Result<()> {
        let (metrics, operation) = (self.metrics().admission(), review.operation.name());
        match failure {
            Failure::Refused(error) => {
                metrics.rejected(&hook.name, step, operation, Some(error.code));
                Err(error)
            }
            Failure::Call(why) => {
                let why = format!("failed calling webhook {:?}: {why}", hook.name);
                tracing::warn!(fails_open = hook.ignores_failure, "{why}");
                if hook.ignores_failure {
                    metrics.failed_open(&hook.name, step);
                    return Ok(());
                }
                metrics.rejected(&hook.name, step, operation, None);
                Err(ApiError::internal(why))
            }
        }
    }
}

fn check_dry_run(hook: &Hook) -> std::result::Result<(), Failure> {
    match hook.side_effects.as_deref() {
        Some("None" | "NoneOnDryRun") => Ok(()),
        None => Err(Failure::Call("Webhook SideEffects is nil".to_owned())),
        Some(_) => {
            let why = format!("admission webhook {:?} does not support dry run", hook.name);
            Err(Failure::Refused(ApiError::bad_request(why)))
        }
    }
}

/// The object after the webhook's patch, decoded and defaulted as if it had been sent so.
fn patched(
    hook: &Hook,
    invocation: &Invocation,
    review: &Review<'_>,
    object: &Object,
    verdict: &Verdict,
) -> std::result::Result<Option<Object>, Failure> {
    if verdict.patch.is_empty() {
        return Ok(None);
    }
    let patch: Patch = serde_json::from_slice(&verdict.patch)
        .map_err(|e| Failure::Call(format!("received undecodable patch in webhook response: {e}")))?;
    if patch.0.is_empty() {
        return Ok(None);
    }
    if verdict.patch_type != "JSONPatch" {
        return Err(Failure::Call(format!("unsupported patch type {:?}", verdict.patch_type)));
    }
    let broken = |why: String| Failure::Refused(ApiError::internal(why));
    let mut new = review::shown(review, invocation, Some(object)).unwrap_or_default();
    json_patch::patch(&mut new, &patch).map_err(|e| broken(e.to_string()))?;
    accept(hook, review, object, new).map(Some).map_err(|e| broken(e.message))
}

fn accept(hook: &Hook, review: &Review<'_>, before: &Object, mut new: Object) -> Result<Object> {
    if !new.is_object() {
        return Err(ApiError::bad_request(format!(
            "admission webhook {:?} made something else of the object",
            hook.name
        )));
    }
    // Where an object lives is not for webhooks to decide.
    object::set_meta_str(&mut new, "namespace", object::namespace(before));
    let (group, version, kind) = review.body_kind();
    for (key, text) in [("apiVersion", review.resource().api_version()), ("kind", kind.to_owned())] {
        object::as_map(&mut new).insert(key.to_owned(), text.into());
    }
    if review.is_own_kind() {
        review.kind.decode(&mut new)?;
        return review.kind.default(new);
    }
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    object::as_map(&mut new).insert("apiVersion".to_owned(), api_version.into());
    if let Some(schema) = usher_schema::builtin::kind(group, version, kind) {
        usher_schema::codec::decode(schema, &mut new, &mut Vec::new())
            .map_err(|e| ApiError::bad_request(e.to_string()))?;
    }
    Ok(new)
}
