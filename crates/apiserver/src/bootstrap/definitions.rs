//! The definitions of kinds that come with the server, put in place at the start.
//!
//! A definition carries the revision it was made at. A stored one of a lower revision gets the new spec, and keeps whatever
//! else was said about it; one of a higher revision was written by a newer server and stays, and so does one without, which
//! somebody brought along. The usual start finds everything in place and writes nothing.

use serde_json::Value;
use usher_api::kueue::REVISION_ANNOTATION;

use crate::object;
use crate::server::Server;
use crate::status::Result;
use crate::stored;

const COLLECTION: &str = "apiextensions.k8s.io/customresourcedefinitions";

impl Server {
    /// Puts definitions in place and waits until what they define is served.
    pub async fn install(&self, definitions: Vec<Value>) -> Result<()> {
        let writes = definitions.into_iter().map(|definition| self.install_one(definition));
        let written: Vec<bool> = futures::future::try_join_all(writes).await?;
        if written.contains(&true) {
            self.settle_definitions().await;
        }
        Ok(())
    }

    /// Says whether anything was written.
    async fn install_one(&self, definition: Value) -> Result<bool> {
        let name = object::name(&definition).to_owned();
        let Some(entry) = self.store().get(COLLECTION, &stored::key("", &name)) else {
            return self.ensure(definition).await.map(|()| true);
        };
        let Ok(mut current) = serde_json::from_slice::<Value>(&entry.value) else { return Ok(false) };
        match (revision(&current), revision(&definition)) {
            (None, _) => {
                tracing::info!(%name, "this definition is not ours and stays as it is");
                return Ok(false);
            }
            (Some(there), Some(ours)) if there >= ours => return Ok(false),
            _ => {}
        }
        tracing::info!(%name, from = revision(&current), to = revision(&definition), "bringing a definition up to date");
        current["spec"] = definition["spec"].clone();
        current["metadata"]["annotations"][REVISION_ANNOTATION] =
            definition["metadata"]["annotations"][REVISION_ANNOTATION].clone();
        current["metadata"]["resourceVersion"] = entry.mod_revision.to_string().into();
        let catalog = self.catalog();
        let Some(kind) = catalog.all().find(|kind| kind.collection() == COLLECTION) else { return Ok(false) };
        self.write_own("update", kind.resource(), &name, &current).await.map(|()| true)
    }
}

fn revision(definition: &Value) -> Option<u32> {
    definition.get("metadata")?.get("annotations")?.get(REVISION_ANNOTATION)?.as_str()?.parse().ok()
}
