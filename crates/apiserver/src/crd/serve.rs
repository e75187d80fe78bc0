//! Definitions at work: which of them are served, their conditions, and the end of what they define.

use std::sync::Arc;

use serde_json::Value;
use usher_store::{Expect, ListOptions, Op};

use super::kinds::CustomKind;
use super::status;
use super::version::Custom;
use crate::object::{self, Object};
use crate::registry::catalog::Catalog;
use crate::registry::kinds::custom_resource_definition::CLEANUP;
use crate::server::Server;
use crate::stored;

const COLLECTION: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// Adds every established custom resource to what is served.
pub fn serve_all(server: &Server, catalog: &mut Catalog) {
    for (object, revision) in definitions(server) {
        if !status::is_true(&object, "Established") {
            continue;
        }
        match server.compiled(&object, revision) {
            Ok(kinds) => kinds.iter().for_each(|kind| catalog.add(kind.clone())),
            Err(errors) => {
                tracing::error!(name = object::name(&object), %errors, "a stored definition cannot be served");
            }
        }
    }
}

/// Compiles a definition, stored at `since`, for serving.
pub fn compile(definition: &Object, since: u64) -> Result<Vec<Arc<CustomKind>>, usher_schema::field::Errors> {
    let custom = Arc::new(Custom::compile(definition)?);
    Ok(CustomKind::all(&custom, since).into_iter().map(Arc::new).collect())
}

fn definitions(server: &Server) -> Vec<(Object, u64)> {
    let page = server.store().list(COLLECTION, &ListOptions::default());
    page.into_iter()
        .flat_map(|p| p.entries)
        .filter_map(|e| serde_json::from_slice(&e.value).ok().map(|o| (o, e.mod_revision)))
        .collect()
}

impl Server {
    /// Keeps the conditions of definitions true and removes the objects of deleted ones, until the server closes.
    pub async fn run_custom_resources(&self) {
        let mut closing = self.closing();
        let mut watch = match self.store().watch(COLLECTION, "", self.store().revision()) {
            Ok(watch) => watch,
            Err(_) => return,
        };
        loop {
            self.settle_definitions().await;
            tokio::select! {
                changed = watch.next() => match changed {
                    Ok(_) => {}
                    // Too much at once to follow: the next look is at everything anyway.
                    Err(usher_store::WatchEnd::Expired { .. }) => match self.store().watch(COLLECTION, "", self.store().revision()) {
                        Ok(again) => watch = again,
                        Err(_) => return,
                    },
                    Err(usher_store::WatchEnd::Closed) => return,
                },
                _ = closing.wait_for(|closing| *closing) => return,
            }
        }
    }

    /// Starts [`Server::run_custom_resources`] in the background.
    pub fn start_custom_resources(self) {
        tokio::spawn(async move { self.run_custom_resources().await });
    }

    /// Brings the conditions of all definitions up to date, once.
    pub(crate) async fn settle_definitions(&self) {
        let all = definitions(self);
        let objects: Vec<Value> = all.iter().map(|(o, _)| o.clone()).collect();
        for (mut definition, revision) in all {
            if object::is_deleting(&definition) {
                self.remove_defined(&definition, revision).await;
            } else {
                let before = definition.clone();
                if status::update(&mut definition, objects.iter(), self.clock().now()) {
                    self.own_status(&before, &mut definition);
                    self.put_definition(&definition, revision).await;
                }
            }
        }
    }

    /// The conditions are this server's, and it says so.
    fn own_status(&self, before: &Object, definition: &mut Object) {
        let (group, version, kind) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let Some(schema) = usher_schema::builtin::kind(group, version, kind) else { return };
        let manager = usher_schema::managed::Manager {
            name: "kube-apiserver",
            subresource: "status",
            api_version: "apiextensions.k8s.io/v1",
            now: self.clock().now(),
        };
        let reset = usher_schema::fieldset::Set::fields(&[&["spec"]]);
        usher_schema::managed::update(schema, before, definition, &manager, &reset);
    }

    async fn put_definition(&self, definition: &Object, revision: u64) {
        let name = object::name(definition);
        let op = Op::Put(stored::freeze(definition));
        // Someone else's write wins; it will wake us again.
        if self.store().write(COLLECTION, name, op, Expect::Revision(revision)).await.is_ok() {
            self.definitions_changed();
        }
    }

    /// Deletes what the definition defines; when nothing is left, lets the definition go.
    async fn remove_defined(&self, definition: &Object, revision: u64) {
        let finalizers = object::finalizers(definition);
        if !finalizers.contains(&CLEANUP) {
            return;
        }
        let text = |at: &str| definition.pointer(at).and_then(Value::as_str).unwrap_or("").to_owned();
        let collection = format!("{}/{}", text("/spec/group"), text("/spec/names/plural"));
        // From before the look, so that what goes during it is seen as well.
        let after = self.store().revision();
        let left = self.delete_all_of(&collection).await;
        if left > 0 {
            // Objects with finalizers of their own: looked at again when one of them goes.
            let server = self.clone();
            tokio::spawn(async move {
                if let Ok(mut watch) = server.store().watch(&collection, "", after)
                    && watch.next().await.is_ok()
                {
                    server.settle_definitions_later().await;
                }
            });
            return;
        }
        let kept: Vec<String> = finalizers.iter().filter(|f| **f != CLEANUP).map(|f| (*f).to_owned()).collect();
        let mut definition = definition.clone();
        object::set_finalizers(&mut definition, &kept);
        if kept.is_empty() {
            let name = object::name(&definition).to_owned();
            if self.store().write(COLLECTION, &name, Op::Delete, Expect::Revision(revision)).await.is_ok() {
                self.definitions_changed();
            }
        } else {
            self.put_definition(&definition, revision).await;
        }
    }

    fn settle_definitions_later(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.settle_definitions())
    }

    /// Deletes or marks every object of a collection. Says how many are still there.
    async fn delete_all_of(&self, collection: &str) -> usize {
        let Ok(page) = self.store().list(collection, &ListOptions::default()) else { return 0 };
        let mut left = 0;
        for entry in page.entries {
            let Ok(mut object) = serde_json::from_slice::<Object>(&entry.value) else { continue };
            let op = if object::finalizers(&object).is_empty() {
                Op::Delete
            } else if object::is_deleting(&object) {
                left += 1;
                continue;
            } else {
                left += 1;
                let now = object::time(self.clock().now());
                let meta = object::meta_mut(&mut object);
                meta.insert("deletionTimestamp".to_owned(), now.into());
                meta.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
                Op::Put(stored::freeze(&object))
            };
            let removes = op == Op::Delete;
            if self.store().write(collection, &entry.key, op, Expect::Revision(entry.mod_revision)).await.is_err()
                && removes
            {
                left += 1;
            }
        }
        left
    }
}
