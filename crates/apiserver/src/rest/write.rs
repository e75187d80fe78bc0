//! `create` and `update`, and the compare-and-swap loop that every change of a stored object goes through.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;
use usher_schema::managed;
use usher_store::{Entry, Expect, Op, WriteError};

use super::decode::object_of;
use super::{Answer, Target};
use crate::admission::{Operation, Review};
use crate::object::{self, Object};
use crate::registry::kind::Cx;
use crate::registry::served::{Part, Served};
use crate::request::WriteOptions;
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::stored::Lean;

/// What a change of a stored object comes to.
pub(super) enum Outcome {
    /// Stored, or nothing had to be.
    Stored(Arc<Entry>),
    /// The change emptied the finalizers of an object that was being deleted: it is gone. Shown as it was to be.
    Removed(Object),
    /// A dry run.
    Tried(Object),
}

/// Whether a creation's managed fields are to be worked out, or came with it (apply).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fields {
    Tracked,
    Kept,
}

/// Where a change finds an object's managed fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Carried {
    Within,
    /// Apart, as text, for kinds that can.
    Beside,
}

/// What became of an object by an edit.
pub(super) struct Edited {
    pub new: Object,
    /// Their text, where they are not within the object.
    pub managed_fields: Option<String>,
}

/// How often a change is worked out anew when others write the same object in between.
const MAX_TRIES: usize = 100;

impl Server {
    pub(super) async fn create(&self, target: &Target<'_>) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let options = WriteOptions::parse(&target.ask.query, "CreateOptions")?;
        let mut warnings = Vec::new();
        let body = object_of(target, options.field_validation, &mut warnings)?;
        let made = self.create_object(target, body, &options, Fields::Tracked, &mut warnings).await;
        let outcome = made.map_err(|e| e.warned(warnings.clone()))?;
        Ok(self.show_outcome(target, 201, outcome, accepted)?.warned(warnings))
    }

    /// Creates from a decoded body.
    pub(super) async fn create_object(
        &self,
        target: &Target<'_>,
        mut body: Object,
        options: &WriteOptions,
        fields: Fields,
        warnings: &mut Vec<String>,
    ) -> Result<Outcome> {
        let kind = target.kind.as_ref();
        self.settle_namespace(target, &mut body)?;
        let meta = object::meta_mut(&mut body);
        if meta.get("resourceVersion").and_then(Value::as_str).is_some_and(|v| !v.is_empty() && v != "0") {
            return Err(ApiError::plain(500, "resourceVersion should not be set on objects to be created"));
        }
        meta.remove("resourceVersion");
        let generated = object::name(&body).is_empty() && !object::meta_str(&body, "generateName").is_empty();
        if object::name(&body).is_empty() && !generated {
            return Err(name_required(kind.resource()));
        }
        let mut body = kind.default(body)?;
        let mut managed_fields = None;
        if fields == Fields::Tracked {
            let manager = self.manager(target, &options.field_manager, "");
            let (schema, reset) = (kind.schema(), kind_reset(target, Part::Main));
            let sent = object::meta_mut(&mut body).contains_key("managedFields");
            if sent || options.dry_run || !self.webhooks().is_empty() {
                let nothing = Value::Object(serde_json::Map::new());
                managed::update(schema, &nothing, &mut body, &manager.borrow(), &reset);
            } else {
                // Nobody looks at them before they are stored.
                managed_fields = managed::of_new(schema, &body, &manager.borrow(), &reset);
            }
        }
        // Mutating admission sees the object as it was sent: name and uid are given after it, as upstream does.
        let said = object::name(&body).to_owned();
        let review = Review::new(target, Operation::Create, &said, options.dry_run);
        let mut body = self.admit(&review, body, None, warnings).await?;
        let generated = object::name(&body).is_empty();
        if generated && object::meta_str(&body, "generateName").is_empty() {
            return Err(name_required(kind.resource()));
        }
        let mut tries = if generated { 8 } else { 1 };
        loop {
            tries -= 1;
            // The last try has the body to itself.
            let mut draft = if tries > 0 { body.clone() } else { std::mem::take(&mut body) };
            self.fill_meta(&mut draft);
            let name = object::name(&draft).to_owned();
            let review = Review::new(target, Operation::Create, &name, options.dry_run);
            let object = kind.create(&self.cx(target), draft)?;
            self.check_escalation(target, &object, None)?;
            warnings.extend(kind.warnings(&object, None));
            self.validate_admission(&review, Some(&object), None, warnings).await?;
            if options.dry_run {
                if self.store().get(&kind.collection(), &target.key(&name)).is_some() {
                    return Err(ApiError::already_exists(kind.resource(), &name));
                }
                return Ok(Outcome::Tried(object));
            }
            let op = Op::Put(kind.freeze(&object, managed_fields.as_deref()));
            // While it waits for the disk, a create holds nothing but its bytes.
            drop(object);
            let written = self.store().write(&kind.collection(), &target.key(&name), op, Expect::Absent).await;
            match written {
                Ok(written) => {
                    self.wrote(kind.resource());
                    return Ok(Outcome::Stored(written.entry));
                }
                Err(WriteError::Conflict { .. }) if generated && tries > 0 => {}
                Err(WriteError::Conflict { .. }) if generated => {
                    return Err(ApiError::generate_name_conflict(kind.resource(), &name));
                }
                Err(WriteError::Conflict { current }) => {
                    let old = kind.thaw(&current).unwrap_or(Value::Null);
                    return Err(if object::is_deleting(&old) {
                        ApiError::being_deleted(kind.resource(), &name)
                    } else {
                        ApiError::already_exists(kind.resource(), &name)
                    });
                }
                Err(error) => return Err(self.write_error(target, &name, &error)),
            }
        }
    }

    pub(super) async fn update(&self, target: &Target<'_>, part: Part) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let options = WriteOptions::parse(&target.ask.query, "UpdateOptions")?;
        let mut warnings = Vec::new();
        let kind = target.kind.as_ref();
        let mut body = object_of(target, options.field_validation, &mut warnings)?;
        self.settle_namespace(target, &mut body)?;
        let name = target.ask.info.name.clone();
        match object::name(&body) {
            "" => {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({name} based on URL) was undeterminable: name must be provided"
                )));
            }
            found if found != name => {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({found}) does not match the name on the URL ({name})"
                )));
            }
            _ => {}
        }
        if self.store().get(&kind.collection(), &target.key(&name)).is_none()
            && kind.create_on_update()
            && part == Part::Main
        {
            object::meta_mut(&mut body).remove("resourceVersion");
            let outcome = self.create_object(target, body, &options, Fields::Tracked, &mut warnings).await?;
            return Ok(self.show_outcome(target, 201, outcome, accepted)?.warned(warnings));
        }
        let manager = self.manager(target, &options.field_manager, part_name(part));
        let outcome = self
            .change(target, &name, part, options.dry_run, &mut warnings, |old| {
                let mut new = kind.default(body.clone())?;
                managed::update(kind.schema(), old, &mut new, &manager.borrow(), &kind_reset(target, part));
                Ok(new)
            })
            .await
            .map_err(|e| e.warned(warnings.clone()))?;
        Ok(self.show_outcome(target, 200, outcome, accepted)?.warned(warnings))
    }

    pub(super) fn show_outcome(
        &self,
        target: &Target<'_>,
        code: u16,
        outcome: Outcome,
        accepted: crate::negotiate::Accepted,
    ) -> Result<Answer> {
        let kind = target.kind.as_ref();
        match outcome {
            Outcome::Stored(entry) => self.show_stored(code, kind, &entry.value, entry.mod_revision, accepted, None),
            Outcome::Removed(object) | Outcome::Tried(object) => self.show_object(code, kind, &object, accepted),
        }
    }

    /// Changes a stored object by `edit`, which sees it as it is now and may run again when someone else was faster.
    pub(super) async fn change(
        &self,
        target: &Target<'_>,
        name: &str,
        part: Part,
        dry_run: bool,
        warnings: &mut Vec<String>,
        mut edit: impl FnMut(&Object) -> Result<Object>,
    ) -> Result<Outcome> {
        let edit = |old: &Object, _: Option<&str>| Ok(Edited { new: edit(old)?, managed_fields: None });
        self.change_with(target, name, part, dry_run, Carried::Within, warnings, edit).await
    }

    /// As [`Server::change`]. With managed fields [`Carried::Beside`] the object, `edit` gets their text and returns the new one.
    #[allow(clippy::too_many_arguments)]
    pub(super) async fn change_with(
        &self,
        target: &Target<'_>,
        name: &str,
        part: Part,
        dry_run: bool,
        carried: Carried,
        warnings: &mut Vec<String>,
        mut edit: impl FnMut(&Object, Option<&str>) -> Result<Edited>,
    ) -> Result<Outcome> {
        let kind = target.kind.as_ref();
        let resource = kind.resource();
        let key = target.key(name);
        for _ in 0..MAX_TRIES {
            let Some(entry) = self.store().get(&kind.collection(), &key) else {
                return Err(target.not_found(name));
            };
            let Lean { object: old, managed_fields: live } = thaw(kind, &entry, carried)?;
            let live = live.as_deref().map(RawValue::get);
            let Edited { mut new, managed_fields } = edit(&old, live)?;
            self.check_preconditions(target, name, &mut new, &old)?;
            self.keep_identity(&mut new, &old);
            object::meta_mut(&mut new).insert("resourceVersion".to_owned(), entry.mod_revision.to_string().into());
            let review = Review::new(target, Operation::Update, name, dry_run);
            let mut said = Vec::new();
            let new = self.admit_update(&review, new, &old, &mut said).await?;
            let new = kind.update(&self.cx(target), part, new, &old)?;
            self.check_escalation(target, &new, Some(&old))?;
            // As upstream: what is written about a built-in kind's status is nothing to warn of.
            if part == Part::Main || kind.is_custom() {
                said.extend(kind.warnings(&new, Some(&old)));
            }
            self.validate_update(&review, &new, &old, &mut said).await?;
            if managed::equal_ignoring_manager_times(&old, &new)
                && managed::equal_texts_ignoring_times(live, managed_fields.as_deref())
            {
                warnings.extend(said);
                return Ok(if dry_run { Outcome::Tried(old) } else { Outcome::Stored(entry) });
            }
            let removed = is_finished(kind, &new, &old, self.clock().now());
            if dry_run {
                warnings.extend(said);
                return Ok(Outcome::Tried(new));
            }
            let op = if removed { Op::Delete } else { Op::Put(kind.freeze(&new, managed_fields.as_deref())) };
            // While it waits for the disk, a change holds no more than it needs after.
            drop(old);
            let gone = removed.then(|| match &managed_fields {
                Some(fields) => with_managed_fields(new, fields),
                None => new,
            });
            match self.store().write(&kind.collection(), &key, op, Expect::Revision(entry.mod_revision)).await {
                Ok(written) => {
                    warnings.extend(said);
                    self.wrote(resource);
                    return Ok(gone.map_or(Outcome::Stored(written.entry), Outcome::Removed));
                }
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(self.write_error(target, name, &error)),
            }
        }
        Err(ApiError::modified(resource, name))
    }

    /// Where a patch may have the managed fields: beside the object if it does not mention them and nobody else looks.
    pub(super) fn carried(&self, manager: &ManagerOf, mentioned: bool, dry_run: bool) -> Carried {
        let plain = |b: u8| b.is_ascii_graphic() || b == b' ';
        let is_valid = manager.name.len() <= 128 && manager.name.bytes().all(plain);
        if is_valid && !mentioned && !dry_run && self.webhooks().is_empty() { Carried::Beside } else { Carried::Within }
    }

    /// A body may insist on the version or the identity it was made from.
    fn check_preconditions(&self, target: &Target<'_>, name: &str, new: &mut Object, old: &Object) -> Result<()> {
        let resource = target.kind.resource();
        let wanted = object::meta_str(new, "resourceVersion");
        match wanted {
            "" | "0" if target.kind.unconditional_update() => {}
            "" | "0" => {
                let mut errors = usher_schema::field::Errors::new();
                errors.invalid(
                    &usher_schema::field::Path::new("metadata.resourceVersion"),
                    0,
                    "must be specified for an update",
                );
                return Err(ApiError::invalid_kind(&resource.group, &resource.plural, name, &errors));
            }
            version if version != object::meta_str(old, "resourceVersion") => {
                return Err(ApiError::modified(resource, name));
            }
            _ => {}
        }
        let uid = object::uid(new);
        if target.ask.info.verb == "update" && !uid.is_empty() && uid != object::uid(old) {
            let key =
                [&resource.plural, target.namespace(), name].map(str::to_owned).into_iter().filter(|p| !p.is_empty());
            // A dry run stops before the place where keys get their prefix.
            let prefix = if target.ask.query.get("dryRun").is_some() { "" } else { "/registry" };
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {prefix}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
                 failed: UID in precondition: {uid}, UID in object meta: {}",
                key.collect::<Vec<_>>().join("/"),
                object::uid(old)
            );
            return Err(ApiError::conflict(resource, name, &why));
        }
        Ok(())
    }

    /// What no update changes: who the object is and when it was made. A body that leaves these out means no harm.
    fn keep_identity(&self, new: &mut Object, old: &Object) {
        for field in ["uid", "creationTimestamp", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            let kept = old.get("metadata").and_then(|m| m.get(field)).cloned();
            let meta = object::meta_mut(new);
            let absent = meta.get(field).is_none_or(Value::is_null);
            match kept {
                // A client that sends another identity hears from validation that it cannot change.
                Some(value) if absent || field != "uid" => drop(meta.insert(field.to_owned(), value)),
                Some(_) => {}
                None => drop(meta.remove(field)),
            }
        }
        let (generate_name, generation) = (object::meta_str(old, "generateName").to_owned(), object::generation(old));
        let meta = object::meta_mut(new);
        if generation > 0 {
            meta.insert("generation".to_owned(), generation.into());
        }
        if !generate_name.is_empty() {
            meta.entry("generateName").or_insert_with(|| generate_name.into());
        }
    }

    /// The body's namespace and the URL's must agree.
    fn settle_namespace(&self, target: &Target<'_>, body: &mut Object) -> Result<()> {
        let said = object::namespace(body).to_owned();
        if !target.kind.resource().namespaced {
            object::set_meta_str(body, "namespace", "");
            return Ok(());
        }
        let wanted = target.namespace();
        if !said.is_empty() && said != wanted {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        object::set_meta_str(body, "namespace", wanted);
        Ok(())
    }

    /// Name, uid and birth of a new object.
    fn fill_meta(&self, object: &mut Object) {
        if object::name(object).is_empty() {
            // 63 characters in all: 58 of the base and 5 that are ours.
            let base: String = object::meta_str(object, "generateName").chars().take(58).collect();
            object::set_meta_str(object, "name", &format!("{base}{}", self.ids().suffix(5)));
        }
        let (uid, now) = (self.ids().uid(), object::time(self.clock().now()));
        let meta = object::meta_mut(object);
        for gone in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            meta.remove(gone);
        }
        meta.insert("uid".to_owned(), uid.into());
        meta.insert("creationTimestamp".to_owned(), now.into());
    }

    pub(super) fn cx<'a>(&'a self, target: &'a Target<'_>) -> Cx<'a> {
        Cx {
            now: self.clock().now(),
            ids: self.ids(),
            gates: self.gates(),
            user: &target.ask.user.name,
            namespace: target.namespace(),
        }
    }

    pub(super) fn manager(&self, target: &Target<'_>, named: &str, subresource: &'static str) -> ManagerOf {
        ManagerOf {
            name: target.ask.field_manager(named),
            subresource,
            api_version: target.kind.resource().api_version(),
            now: self.clock().now(),
        }
    }

    pub(super) fn write_error(&self, target: &Target<'_>, name: &str, error: &WriteError) -> ApiError {
        let resource = target.kind.resource();
        match error {
            WriteError::Conflict { .. } => ApiError::modified(resource, name),
            WriteError::NotFound => target.not_found(name),
            WriteError::Failed(why) => {
                tracing::error!(resource = %resource.qualified(), name, %why, "a write could not be stored");
                ApiError::internal(format!("{} {name:?} was not stored: {why}", resource.qualified()))
            }
            WriteError::Closed => ApiError::unavailable("the server is shutting down"),
        }
    }
}

/// An object together with managed fields that were kept beside it.
pub(super) fn with_managed_fields(mut object: Object, text: &str) -> Object {
    if let Ok(fields) = serde_json::from_str(text) {
        object::meta_mut(&mut object).insert("managedFields".to_owned(), fields);
    }
    object
}

pub(super) fn thaw(kind: &dyn Served, entry: &Entry, carried: Carried) -> Result<Lean> {
    let lean = match carried {
        Carried::Beside => kind.thaw_lean(entry),
        Carried::Within => None,
    };
    lean.unwrap_or_else(|| kind.thaw(entry).map(|object| Lean { object, managed_fields: None }))
        .map_err(|e| ApiError::internal(e.to_string()))
}

/// An owned [`managed::Manager`].
pub(super) struct ManagerOf {
    pub name: String,
    subresource: &'static str,
    api_version: String,
    now: jiff::Timestamp,
}

impl ManagerOf {
    pub fn borrow(&self) -> managed::Manager<'_> {
        managed::Manager {
            name: &self.name,
            subresource: self.subresource,
            api_version: &self.api_version,
            now: self.now,
        }
    }
}

pub(super) fn part_name(part: Part) -> &'static str {
    match part {
        Part::Main => "",
        Part::Status => "status",
    }
}

/// The fields that a write to one part cannot set, and so cannot come to own.
pub(super) fn kind_reset(target: &Target<'_>, part: Part) -> usher_schema::fieldset::Set {
    use usher_schema::fieldset::Set;
    match part {
        Part::Main if target.kind.resource().has_status => Set::fields(&[&["status"]]),
        Part::Main => Set::new(),
        Part::Status if target.kind.is_custom() => Set::fields(&[&["spec"], &["metadata"]]),
        Part::Status => Set::fields(&[&["spec"]]),
    }
}

fn name_required(resource: &crate::registry::kind::Resource) -> ApiError {
    let mut errors = usher_schema::field::Errors::new();
    errors.required(&usher_schema::field::Path::new("metadata.name"), "name or generateName is required");
    ApiError::invalid(resource, "", &errors)
}

/// Whether an update took the last of what an object that is being deleted was waiting for.
pub(super) fn is_finished(kind: &dyn Served, new: &Object, old: &Object, now: Timestamp) -> bool {
    object::is_deleting(old)
        && object::finalizers(new).is_empty()
        && object::deletion_grace_secs(old).is_none_or(|secs| secs == 0)
        && !kind.is_held(new, now)
}
