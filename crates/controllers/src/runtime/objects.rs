//! The API calls that work on any kind, on metadata only, and what their errors mean.

use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::catalog::Resource;
use super::meta::{Meta, Partial};

const PAGE: u32 = 500;

#[derive(Clone)]
pub struct Objects {
    client: Client,
}

/// One page of a list, its items not yet decoded.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    #[serde(default)]
    pub metadata: PageMeta,
    #[serde(borrow, default)]
    pub items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageMeta {
    #[serde(default)]
    pub resource_version: Option<String>,
    #[serde(default, rename = "continue")]
    pub next: Option<String>,
}

impl Objects {
    pub fn new(client: Client) -> Self {
        Objects { client }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The object's metadata as it is now, not as some cache has it.
    pub async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<Meta>, kube::Error> {
        let request = Request::new(resource.path(namespace)).get_metadata(name, &Default::default());
        match self.client.request::<Partial>(request.map_err(kube::Error::BuildRequest)?).await {
            Ok(object) => Ok(Some(object.metadata)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn list(&self, resource: &Resource, namespace: &str) -> Result<Vec<Meta>, kube::Error> {
        let mut all = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let request = Request::new(resource.path(namespace)).list_metadata(&params);
            let text = self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await?;
            let page: Page = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
            for item in page.items.unwrap_or_default() {
                all.push(serde_json::from_str::<Partial>(item.get()).map_err(kube::Error::SerdeError)?.metadata);
            }
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    pub async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        how: &DeleteParams,
    ) -> Result<(), kube::Error> {
        let request = Request::new(resource.path(namespace)).delete(name, how);
        self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
    }

    pub async fn delete_collection(&self, resource: &Resource, namespace: &str) -> Result<(), kube::Error> {
        let request = Request::new(resource.path(namespace))
            .delete_collection(&DeleteParams::background(), &ListParams::default());
        self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
    }

    pub async fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        patch: &Patch<Value>,
    ) -> Result<(), kube::Error> {
        let request = Request::new(resource.path(namespace)).patch_metadata(name, &PatchParams::default(), patch);
        self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
    }
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

pub fn is_not_found(error: &kube::Error) -> bool {
    code(error) == Some(404)
}

/// Somebody else wrote first, or a precondition does not hold.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "AlreadyExists")
}

/// Refused by validation: the object as it would be, or the change itself.
pub fn is_invalid(error: &kube::Error) -> bool {
    code(error) == Some(422)
}

pub fn is_unsupported_media_type(error: &kube::Error) -> bool {
    code(error) == Some(415)
}

pub fn is_method_not_supported(error: &kube::Error) -> bool {
    code(error) == Some(405)
}

/// The resource version asked for is no longer kept.
pub fn is_expired(error: &kube::Error) -> bool {
    code(error) == Some(410)
}

/// Nothing can be created in a namespace that is going away.
pub fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map_or(&[][..], |d| &d.causes);
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// The server's sentence, as a Go client would print it.
pub fn sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}
