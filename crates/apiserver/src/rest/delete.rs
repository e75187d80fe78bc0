//! `delete` and `deletecollection`: grace periods, finalizers and propagation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use usher_schema::field::{Errors, Path};
use usher_store::{Entry, Expect, Op, WriteError};

use super::decode::decode_body;
use super::show::IncludeObject;
use super::{Answer, Target};
use crate::admission::{Operation, Review};
use crate::object::{self, Object};
use crate::registry::kind::Propagation;
use crate::registry::served::{Deletion, Served};
use crate::request::{ListOptions, Query, parse_dry_run};
use crate::server::Server;
use crate::status::{self, ApiError, Result};

/// `metav1.DeleteOptions`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub grace_secs: Option<i64>,
    pub propagation: Option<Propagation>,
    /// The deprecated way to say it.
    orphan: Option<bool>,
    uid: Option<String>,
    resource_version: Option<String>,
    pub dry_run: bool,
}

/// Of a collection. Waiting for the disk together is what makes it fast; more than this gains nothing.
const DELETED_AT_A_TIME: usize = 64;

/// What deleting an object now comes to.
#[derive(Debug, PartialEq)]
enum Step {
    /// It goes.
    Remove,
    /// It stays, marked, until its grace is over and its finalizers are gone.
    Mark(Object),
    /// It goes, but watchers first see it marked: what knows grace always shows the end of it.
    MarkThenRemove(Object),
    /// It was marked before, and nothing about it changes.
    Pending,
}

impl Server {
    pub(super) async fn delete(&self, target: &Target<'_>) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let options = delete_options(target)?;
        let mut warnings = Vec::new();
        if options.propagation.is_none() && options.orphan.is_none() {
            warnings.extend(target.kind.delete_warnings());
        }
        let name = &target.ask.info.name;
        let (removed, object) = self.delete_named(target, name, &options, &mut warnings).await?;
        let kind = target.kind.as_ref();
        let answer = if removed && !kind.delete_shows_object() {
            Answer::json(200, &status::deleted(kind.resource(), name, object::uid(&object)))
        } else {
            let code = if !removed && options.orphan == Some(false) { 202 } else { 200 };
            self.show_object(code, kind, &object, accepted)?
        };
        Ok(answer.warned(warnings))
    }

    /// Deletes one object. Tells whether it is gone, and shows it as it is or last was.
    pub(crate) async fn delete_named(
        &self,
        target: &Target<'_>,
        name: &str,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<(bool, Object)> {
        let kind = target.kind.as_ref();
        let resource = kind.resource();
        loop {
            let Some(entry) = self.store().get(&kind.collection(), &target.key(name)) else {
                return Err(target.not_found(name));
            };
            let object = kind.thaw(&entry).map_err(|e| ApiError::internal(e.to_string()))?;
            options.check_preconditions(kind, name, &object)?;
            let step = step(kind, &object, options, self.clock().now());
            // What is on its way out already is not asked about again, nor an eviction, which was reviewed as one.
            if step != Step::Pending && target.ask.info.subresource.is_empty() {
                let review = Review::new(target, Operation::Delete, name, options.dry_run);
                self.validate_admission(&review, None, Some(&object), warnings).await?;
            }
            if options.dry_run {
                return Ok((matches!(step, Step::Remove | Step::MarkThenRemove(_)), object));
            }
            let op = match step {
                Step::Pending => return Ok((false, object)),
                Step::Remove => Op::Delete,
                Step::Mark(ref marked) | Step::MarkThenRemove(ref marked) => Op::Put(kind.freeze(marked, None)),
            };
            match self
                .store()
                .write(&kind.collection(), &target.key(name), op, Expect::Revision(entry.mod_revision))
                .await
            {
                Ok(written) => {
                    self.wrote(resource);
                    if let Step::MarkThenRemove(_) = step {
                        continue;
                    }
                    return Ok(match step {
                        Step::Mark(mut marked) => {
                            let version = written.revision.to_string();
                            object::meta_mut(&mut marked).insert("resourceVersion".to_owned(), version.into());
                            (false, marked)
                        }
                        _ => (true, object),
                    });
                }
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(self.write_error(target, name, &error)),
            }
        }
    }

    /// Deletes what the selectors choose, a page of it if there is a limit, and shows it as it was.
    pub(super) async fn delete_collection(&self, target: &Target<'_>) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let list = ListOptions::parse(&target.ask.query, false)?;
        super::read::check_fields(target.kind.as_ref(), &list.fields)?;
        let options = delete_options(target)?;
        let include = IncludeObject::parse(target.ask.query.get("includeObject"))?;
        let page = self.select_page(target, &list).await?;
        // Several at a time, so that they share the store's commits. After a failure nothing more is begun, but what was
        // begun is finished: an object must not be left half deleted.
        let failed = AtomicBool::new(false);
        let (failed, options) = (&failed, &options);
        let mut deleting = std::pin::pin!(
            futures::stream::iter(page.entries.clone())
                .map(|entry| async move {
                    if failed.load(Ordering::Relaxed) {
                        return Ok(Vec::new());
                    }
                    self.delete_listed(target, &entry, options).await
                })
                .buffered(DELETED_AT_A_TIME)
        );
        let mut warnings = Vec::new();
        let mut failure = None;
        while let Some(deleted) = deleting.next().await {
            match deleted {
                Ok(said) => warnings.extend(said),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            Some(error) => Err(error.warned(warnings)),
            None => Ok(self.show_page(target.kind, accepted, include, page).warned(warnings)),
        }
    }

    /// Deletes one object of a collection; it may be gone already. Returns what was warned about.
    async fn delete_listed(
        &self,
        target: &Target<'_>,
        entry: &Arc<Entry>,
        options: &DeleteOptions,
    ) -> Result<Vec<String>> {
        let (namespace, name) = split_key(entry, target.kind.as_ref());
        let mut info = target.ask.info.clone();
        info.namespace = namespace;
        let ask = super::Ask {
            info,
            query: target.ask.query.clone(),
            user: target.ask.user.clone(),
            in_process: target.ask.in_process,
            headers: target.ask.headers.clone(),
            body: target.ask.body.clone(),
        };
        let mut warnings = Vec::new();
        match self.delete_named(&Target { kind: target.kind, ask: &ask }, &name, options, &mut warnings).await {
            Ok(_) => Ok(warnings),
            Err(error) if error.code == 404 => Ok(warnings),
            Err(error) => Err(error.warned(warnings)),
        }
    }
}

fn split_key(entry: &Arc<Entry>, kind: &dyn Served) -> (String, String) {
    match entry.key.split_once('/') {
        Some((namespace, name)) if kind.resource().namespaced => (namespace.to_owned(), name.to_owned()),
        _ => (String::new(), entry.key.to_string()),
    }
}

/// What becomes of the object: upstream's graceful deletion, with the garbage collector's finalizers put in or taken out.
fn step(kind: &dyn Served, object: &Object, options: &DeleteOptions, now: Timestamp) -> Step {
    let mut marked = object.clone();
    let finalizers = finalizers_after(kind, object, options);
    object::set_finalizers(&mut marked, &finalizers);
    match grace(kind, object, options, now) {
        Grace::Pending => return Step::Pending,
        Grace::Until { at, secs } => {
            mark(&mut marked, at, secs);
            if secs > 0 {
                return Step::Mark(marked);
            }
        }
        Grace::None => {}
    }
    let begins = !object::is_deleting(object);
    let held =
        if begins { kind.begin_deletion(&mut marked, now) == Deletion::Held } else { kind.is_held(&marked, now) };
    if object::finalizers(&marked).is_empty() && !held {
        return if begins && object::is_deleting(&marked) { Step::MarkThenRemove(marked) } else { Step::Remove };
    }
    if !object::is_deleting(&marked) {
        mark(&mut marked, now, 0);
    }
    if marked == *object { Step::Pending } else { Step::Mark(marked) }
}

/// The first mark of a deletion counts as a change of the object.
fn mark(object: &mut Object, at: Timestamp, grace_secs: i64) {
    let generation = object::generation(object);
    let first = !object::is_deleting(object);
    let meta = object::meta_mut(object);
    meta.insert("deletionTimestamp".to_owned(), object::time(at).into());
    meta.insert("deletionGracePeriodSeconds".to_owned(), grace_secs.into());
    if first && generation > 0 {
        meta.insert("generation".to_owned(), (generation + 1).into());
    }
}

enum Grace {
    /// The kind knows none, or it is over.
    None,
    /// It runs already, and what is asked for now does not shorten it.
    Pending,
    Until {
        at: Timestamp,
        secs: i64,
    },
}

/// How long the object has left. A second delete may only shorten it.
fn grace(kind: &dyn Served, object: &Object, options: &DeleteOptions, now: Timestamp) -> Grace {
    let positive = |secs: i64| if secs < 0 { 1 } else { secs };
    let Some(secs) = kind.grace_secs(object, options.grace_secs).map(positive) else { return Grace::None };
    let Some(until) = object::parse_time(object::meta_str(object, "deletionTimestamp")) else {
        return Grace::Until { at: now + SignedDuration::from_secs(secs), secs };
    };
    let left = object::deletion_grace_secs(object).map_or(0, positive);
    if left == 0 {
        return Grace::None;
    }
    match options.grace_secs.map(positive) {
        Some(secs) if secs < left => {
            let at = until - SignedDuration::from_secs(left) + SignedDuration::from_secs(secs);
            if at < now { Grace::Until { at: now, secs: secs.min(1) } } else { Grace::Until { at, secs } }
        }
        _ => Grace::Pending,
    }
}

/// The finalizers after the propagation policy has had its say.
fn finalizers_after(kind: &dyn Served, object: &Object, options: &DeleteOptions) -> Vec<String> {
    const ORPHAN: &str = "orphan";
    const FOREGROUND: &str = "foregroundDeletion";
    let present = object::finalizers(object);
    let policy = match (options.orphan, options.propagation) {
        (Some(true), _) => Propagation::Orphan,
        (Some(false), _) => Propagation::Background,
        (None, Some(policy)) => policy,
        // Nothing said: what the object's finalizers already decided, else what the kind does.
        (None, None) => present
            .iter()
            .find_map(|f| match *f {
                ORPHAN => Some(Propagation::Orphan),
                FOREGROUND => Some(Propagation::Foreground),
                _ => None,
            })
            .unwrap_or_else(|| kind.default_propagation()),
    };
    let mut finalizers: Vec<String> =
        present.iter().filter(|f| !matches!(**f, ORPHAN | FOREGROUND)).map(|f| (*f).to_owned()).collect();
    match policy {
        Propagation::Orphan => finalizers.push(ORPHAN.to_owned()),
        Propagation::Foreground => finalizers.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    finalizers
}

fn delete_options(target: &Target<'_>) -> Result<DeleteOptions> {
    let schema = usher_schema::builtin::graph().named("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    let body = decode_body(target.ask, schema, &mut Vec::new())?;
    DeleteOptions::parse(body.as_ref(), &target.ask.query)
}

impl DeleteOptions {
    /// Options that came inside another body.
    pub fn from_value(body: Option<&Value>) -> Result<DeleteOptions> {
        DeleteOptions::parse(body, &Query::default())
    }

    /// Where there is a body, the query says nothing.
    fn parse(body: Option<&Value>, query: &Query) -> Result<DeleteOptions> {
        let nothing = Query::default();
        let query = if body.is_some() { &nothing } else { query };
        let body = body.unwrap_or(&Value::Null);
        let mut errors = Errors::new();
        let said =
            |key: &str| body.get(key).and_then(Value::as_str).or_else(|| query.get(key)).filter(|s| !s.is_empty());
        let policy = said("propagationPolicy");
        let propagation = match policy {
            None => None,
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                errors.not_supported(&Path::new("propagationPolicy"), other, &known);
                None
            }
        };
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        let orphan = orphan.or_else(|| query.get("orphanDependents").map(|_| query.flag("orphanDependents")));
        if orphan.is_some() && propagation.is_some() {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.invalid(&Path::new("propagationPolicy"), policy.unwrap_or(""), why);
        }
        let dry_run = match body.get("dryRun").and_then(Value::as_array) {
            Some(list) => parse_dry_run(list.iter().filter_map(Value::as_str), &mut errors),
            None => parse_dry_run(query.all("dryRun"), &mut errors),
        };
        let grace_secs = match body.get("gracePeriodSeconds").and_then(Value::as_i64) {
            Some(secs) => Some(secs),
            None => query.number("gracePeriodSeconds")?,
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid_kind("meta.k8s.io", "DeleteOptions", "", &errors));
        }
        let condition =
            |key: &str| body.pointer(&format!("/preconditions/{key}")).and_then(Value::as_str).map(str::to_owned);
        Ok(DeleteOptions {
            grace_secs,
            propagation,
            orphan,
            uid: condition("uid"),
            resource_version: condition("resourceVersion"),
            dry_run,
        })
    }

    fn check_preconditions(&self, kind: &dyn Served, name: &str, object: &Object) -> Result<()> {
        let resource = kind.resource();
        if let Some(uid) = self.uid.as_deref().filter(|uid| *uid != object::uid(object)) {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and \
                 then recreated",
                object::uid(object)
            );
            return Err(ApiError::delete_conflict(resource, name, &why));
        }
        let found = object::meta_str(object, "resourceVersion");
        if let Some(version) = self.resource_version.as_deref().filter(|v| *v != found) {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({found}). The \
                 object might have been modified"
            );
            return Err(ApiError::delete_conflict(resource, name, &why));
        }
        Ok(())
    }
}
