//! Subresources other than status: binding, eviction, logs, tokens, finalize, scale.

use serde_json::{Value, json};

use super::write::{Carried, Outcome};
use super::{Answer, Target};
use crate::admission::{Operation, Review};
use crate::body::Body;
use crate::object::{self, Object};
use crate::registry::served::Part;
use crate::request::WriteOptions;
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::stored::Lean;

impl Server {
    pub(super) async fn subresource(&self, target: &Target<'_>, name: &str) -> Result<Answer> {
        let resource = target.kind.resource();
        let verb = target.ask.info.verb;
        let allowed = resource.subresources.iter().any(|s| s.name == name && s.verbs.contains(&verb));
        if !allowed {
            return Err(ApiError::method_not_allowed(resource, verb));
        }
        match (resource.collection().as_str(), name, verb) {
            ("core/pods", "binding", "create") => self.bind(target).await,
            ("core/pods", "eviction", "create") => self.evict(target).await,
            ("core/pods", "log", "get") => self.log(target).await,
            ("core/serviceaccounts", "token", "create") => {
                target.ask.accepts_whole()?;
                self.issue_token(target).await
            }
            ("core/namespaces", "finalize", "update") => self.finalize_namespace(target).await,
            (_, "scale", _) => self.scale(target).await,
            _ => Err(ApiError::no_such_path()),
        }
    }

    /// The object a subresource is about.
    fn current(&self, target: &Target<'_>) -> Result<Object> {
        let name = &target.ask.info.name;
        let entry =
            self.store().get(&target.kind.collection(), &target.key(name)).ok_or_else(|| target.not_found(name))?;
        target.kind.thaw(&entry).map_err(|e| ApiError::internal(e.to_string()))
    }

    /// The body of a subresource whose kind is not the resource's.
    pub(crate) fn body_as(&self, target: &Target<'_>, group: &str, version: &str, kind: &str) -> Result<Object> {
        super::decode::body_of_kind(target.ask, group, version, kind)
    }

    /// The body of a `create` on a subresource, after all of admission. Nothing of the kind's own stands in between.
    pub(crate) async fn reviewed(
        &self,
        target: &Target<'_>,
        body: Object,
        dry_run: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Object> {
        let review = Review::new(target, Operation::Create, &target.ask.info.name, dry_run);
        let body = self.admit(&review, body, None, warnings).await?;
        self.validate_admission(&review, Some(&body), None, warnings).await?;
        Ok(body)
    }

    /// A pod is put on a node, once.
    async fn bind(&self, target: &Target<'_>) -> Result<Answer> {
        let binding = self.body_as(target, "", "v1", "Binding")?;
        let options = WriteOptions::parse(&target.ask.query, "CreateOptions")?;
        let name = target.ask.info.name.clone();
        let mut warnings = Vec::new();
        let binding = self.reviewed(target, binding, options.dry_run, &mut warnings).await?;
        let to =
            |field: &str| binding.pointer(&format!("/target/{field}")).and_then(Value::as_str).unwrap_or("").to_owned();
        let (kind, node) = (to("kind"), to("name"));
        let mut errors = usher_schema::field::Errors::new();
        let at = usher_schema::field::Path::new("target");
        if !kind.is_empty() && kind != "Node" {
            errors.not_supported(&at.child("kind"), kind, &["Node", "<empty>"]);
        }
        if node.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid_kind("", "Binding", &name, &errors));
        }
        let now = object::time(self.clock().now());
        let annotations = binding.pointer("/metadata/annotations").cloned();
        let labels = binding.pointer("/metadata/labels").cloned();
        let uid = object::uid(&binding).to_owned();
        self.edit_as_server(target, &name, options.dry_run, |pod| {
            let mut binding = target.kind.resource().clone();
            binding.plural = "pods/binding".to_owned();
            let refuse = |why: String| ApiError::conflict(&binding, &name, &why);
            if !uid.is_empty() && uid != object::uid(pod) {
                return Err(refuse(format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    object::uid(pod)
                )));
            }
            if object::is_deleting(pod) {
                return Err(refuse(format!("pod {name} is being deleted, cannot be assigned to a host")));
            }
            let assigned = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or("");
            if !assigned.is_empty() {
                return Err(refuse(format!("pod {name} is already assigned to node {assigned:?}")));
            }
            if pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
                return Err(refuse(format!("pod {name} has non-empty .spec.schedulingGates")));
            }
            let mut pod = pod.clone();
            pod["spec"]["nodeName"] = node.clone().into();
            merge_map(&mut pod, "annotations", annotations.as_ref());
            merge_map(&mut pod, "labels", labels.as_ref());
            set_condition(&mut pod, json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now}));
            Ok(pod)
        })
        .await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(Answer::json(201, &status).warned(warnings))
    }

    /// Deletes a pod that may be disturbed, leaving a condition that says why it went.
    async fn evict(&self, target: &Target<'_>) -> Result<Answer> {
        let eviction = self.body_as(target, "policy", "v1", "Eviction")?;
        let name = target.ask.info.name.clone();
        let said = object::name(&eviction);
        if !said.is_empty() && said != name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        let options = WriteOptions::parse(&target.ask.query, "CreateOptions")?;
        let mut warnings = Vec::new();
        let eviction = self.reviewed(target, eviction, options.dry_run, &mut warnings).await?;
        let delete = super::delete::DeleteOptions::from_value(eviction.get("deleteOptions"))?;
        let dry_run = options.dry_run || delete.dry_run;
        let now = object::time(self.clock().now());
        if !dry_run && !object::is_deleting(&self.current(target)?) {
            self.edit_as_server(target, &name, false, |pod| {
                let mut pod = pod.clone();
                set_condition(
                    &mut pod,
                    json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                        "message": "Eviction API: evicting", "lastTransitionTime": now}),
                );
                Ok(pod)
            })
            .await?;
        }
        self.delete_named(target, &name, &delete, &mut warnings).await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(Answer::json(201, &status).warned(warnings))
    }

    /// The output of a pod's container. Which process knows it is the node's business.
    async fn log(&self, target: &Target<'_>) -> Result<Answer> {
        let name = &target.ask.info.name;
        let mut request = crate::logs::read_options(&target.ask.query, name, self.clock().now())?;
        let pod = self.current(target)?;
        let containers = |list: &str| -> Vec<String> {
            pod.pointer(&format!("/spec/{list}"))
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|c| c.get("name").and_then(Value::as_str).map(str::to_owned))
                .collect()
        };
        let (main, init) = (containers("containers"), containers("initContainers"));
        let ephemeral = containers("ephemeralContainers");
        request.container = match target.ask.query.get("container").unwrap_or("") {
            "" if main.len() + init.len() > 1 || main.len() != 1 => {
                let choices = main.iter().chain(&init).cloned().collect::<Vec<_>>().join(" ");
                return Err(ApiError::bad_request(format!(
                    "a container name must be specified for pod {name}, choose one of: [{choices}]"
                )));
            }
            "" => main[0].clone(),
            container if main.iter().chain(&init).chain(&ephemeral).any(|c| c == container) => container.to_owned(),
            container => {
                return Err(ApiError::bad_request(format!("container {container} is not valid for pod {name}")));
            }
        };
        request.node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or("").to_owned();
        if request.node.is_empty() {
            // A pod that waits has said nothing yet.
            return Ok(Answer::text(200, ""));
        }
        request.pod = pod;
        let opened = match self.log_source() {
            Some(source) => source.open(request).await,
            None => Err(crate::logs::LogError::NoSuchNode),
        };
        match opened {
            Ok(stream) => {
                let closing = crate::logs::until_closing(stream, self.closing());
                Ok(Answer::whole(200, "text/plain", Body::pieces(closing)))
            }
            Err(crate::logs::LogError::Refused(why)) => Err(ApiError::bad_request(why)),
            Err(crate::logs::LogError::NoSuchNode) => {
                Err(ApiError::unavailable(format!("the node of pod {name:?} cannot be reached for its logs")))
            }
        }
    }

    async fn finalize_namespace(&self, target: &Target<'_>) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let options = WriteOptions::parse(&target.ask.query, "UpdateOptions")?;
        let mut warnings = Vec::new();
        let body = super::decode::object_of(target, options.field_validation, &mut warnings)?;
        let finalizers = body.pointer("/spec/finalizers").cloned().unwrap_or_else(|| json!([]));
        let wanted = object::meta_str(&body, "resourceVersion").to_owned();
        let name = target.ask.info.name.clone();
        let review = Review::new(target, Operation::Update, &name, options.dry_run);
        self.validate_admission(&review, Some(&body), Some(&self.current(target)?), &mut warnings).await?;
        let outcome = self
            .edit_as_server(target, &name, options.dry_run, |namespace| {
                if !wanted.is_empty() && wanted != object::meta_str(namespace, "resourceVersion") {
                    return Err(ApiError::modified(target.kind.resource(), &name));
                }
                let mut namespace = namespace.clone();
                match finalizers.as_array() {
                    Some(list) if !list.is_empty() => namespace["spec"]["finalizers"] = finalizers.clone(),
                    _ => drop(
                        namespace
                            .pointer_mut("/spec")
                            .and_then(Value::as_object_mut)
                            .and_then(|s| s.remove("finalizers")),
                    ),
                }
                Ok(namespace)
            })
            .await?;
        Ok(self.show_outcome(target, 200, outcome, accepted)?.warned(warnings))
    }

    /// Writes what the server itself decided about a stored object, past the kind's rules for clients.
    async fn edit_as_server(
        &self,
        target: &Target<'_>,
        name: &str,
        dry_run: bool,
        mut edit: impl FnMut(&Object) -> Result<Object>,
    ) -> Result<Outcome> {
        let kind = target.kind.as_ref();
        let resource = kind.resource();
        let key = target.key(name);
        loop {
            let Some(entry) = self.store().get(&kind.collection(), &key) else {
                return Err(target.not_found(name));
            };
            let carried = if dry_run { Carried::Within } else { Carried::Beside };
            let Lean { object: old, managed_fields } = super::write::thaw(kind, &entry, carried)?;
            let managed_fields = managed_fields.as_deref().map(serde_json::value::RawValue::get);
            let mut new = edit(&old)?;
            usher_schema::codec::encode(kind.schema(), &mut new);
            if dry_run {
                return Ok(Outcome::Tried(new));
            }
            let removed = super::write::is_finished(kind, &new, &old, self.clock().now());
            let op = match removed {
                true => usher_store::Op::Delete,
                false => usher_store::Op::Put(kind.freeze(&new, managed_fields)),
            };
            if let Some(fields) = managed_fields.filter(|_| removed) {
                new = super::write::with_managed_fields(new, fields);
            }
            let expect = usher_store::Expect::Revision(entry.mod_revision);
            match self.store().write(&kind.collection(), &key, op, expect).await {
                Ok(written) => {
                    self.wrote(resource);
                    return Ok(if removed { Outcome::Removed(new) } else { Outcome::Stored(written.entry) });
                }
                Err(usher_store::WriteError::Conflict { .. }) => {}
                Err(error) => return Err(self.write_error(target, name, &error)),
            }
        }
    }

    /// `autoscaling/v1 Scale` of a custom resource.
    async fn scale(&self, target: &Target<'_>) -> Result<Answer> {
        let accepted = target.ask.accepted()?;
        let kind = target.kind.as_ref();
        let Some(paths) = kind.scale_paths() else { return Err(ApiError::no_such_path()) };
        let current = self.current(target)?;
        let problem = |p: crate::crd::scale::Problem| scale_problem(&p);
        let shown = |object: &Object| paths.answer(object).map_err(problem);
        match target.ask.info.verb {
            "get" => {
                let scale = paths.get(&current).map_err(problem)?;
                Ok(super::show::finish(200, scale.to_string().into_bytes(), accepted))
            }
            verb @ ("update" | "patch") => {
                let options = WriteOptions::parse(&target.ask.query, "UpdateOptions")?;
                let name = target.ask.info.name.clone();
                let mut warnings = Vec::new();
                let body =
                    if verb == "update" { Some(self.body_as(target, "autoscaling", "v1", "Scale")?) } else { None };
                let manager = self.manager(target, &options.field_manager, "scale");
                let outcome = self
                    .change(target, &name, Part::Main, options.dry_run, &mut warnings, |old| {
                        let scale = match &body {
                            Some(scale) => scale.clone(),
                            None => super::patch::patched_scale(target, shown(old)?)?,
                        };
                        let wanted = object::meta_str(&scale, "resourceVersion");
                        if !wanted.is_empty() && wanted != object::meta_str(old, "resourceVersion") {
                            return Err(ApiError::modified(kind.resource(), &name));
                        }
                        let mut new = old.clone();
                        paths.set(&mut new, &scale).map_err(problem)?;
                        usher_schema::managed::update(
                            kind.schema(),
                            old,
                            &mut new,
                            &manager.borrow(),
                            &usher_schema::fieldset::Set::new(),
                        );
                        forget_scale_times(&mut new);
                        Ok(new)
                    })
                    .await?;
                let object = match outcome {
                    Outcome::Stored(entry) => kind.thaw(&entry).map_err(|e| ApiError::internal(e.to_string()))?,
                    Outcome::Removed(object) | Outcome::Tried(object) => object,
                };
                Ok(super::show::finish(200, shown(&object)?.to_string().into_bytes(), accepted).warned(warnings))
            }
            verb => Err(ApiError::method_not_allowed(kind.resource(), verb)),
        }
    }
}

/// Upstream's entries for the scale subresource have no time.
fn forget_scale_times(object: &mut Object) {
    for entry in object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
        if entry.get("subresource").is_some_and(|s| s == "scale") {
            object::as_map(entry).remove("time");
        }
    }
}

fn scale_problem(problem: &crate::crd::scale::Problem) -> ApiError {
    match problem {
        crate::crd::scale::Problem::EmptyReplicas(_) => ApiError::bad_request(problem.to_string()),
        other => ApiError::internal(other.to_string()),
    }
}

fn merge_map(object: &mut Object, field: &str, more: Option<&Value>) {
    if let Some(Value::Object(more)) = more {
        let into = object::as_map(object::meta_mut(object).entry(field).or_insert_with(|| json!({})));
        into.extend(more.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
}

/// Puts a condition into `status.conditions`, in place of one of the same type.
fn set_condition(object: &mut Object, condition: Value) {
    let status = object::as_map(object).entry("status").or_insert_with(|| json!({}));
    let list = object::as_map(status).entry("conditions").or_insert_with(|| json!([]));
    if let Value::Array(list) = list {
        match list.iter_mut().find(|c| c.get("type") == condition.get("type")) {
            Some(found) => {
                if found.get("status") != condition.get("status") || found.get("reason") != condition.get("reason") {
                    *found = condition;
                }
            }
            None => list.push(condition),
        }
    }
}
