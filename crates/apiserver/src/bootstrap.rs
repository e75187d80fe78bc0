//! What must exist before the first client comes: the system's namespaces, roles and priority classes, and the definitions of
//! kinds that come with the server ([`definitions`]).

mod definitions;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

use crate::auth::bootstrap;
use crate::auth::identity::{MASTERS, User};
use crate::object;
use crate::registry::kind::Resource;
use crate::request::{Info, Query};
use crate::rest::Ask;
use crate::server::Server;
use crate::status::Result;
use crate::stored;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

impl Server {
    /// Creates what is missing. What is there stays as it is, so that an operator's changes survive restarts.
    pub async fn bootstrap(&self) -> Result<()> {
        let namespaces =
            NAMESPACES.map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        self.ensure_all(namespaces.into()).await?;
        self.ensure_all(system_objects()).await?;
        self.ensure_own_service().await
    }

    /// The Service `kubernetes`, by which programs find the API server. Nothing routes cluster addresses here, so its
    /// address is the one we really listen on; if that has changed, the Service is made anew.
    async fn ensure_own_service(&self) -> Result<()> {
        let wanted = own_service(&self.options().address);
        let (collection, key) = ("core/services", stored::key("default", "kubernetes"));
        if let Some(entry) = self.store().get(collection, &key) {
            let there: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
            let same = |at: &str| there.pointer(at) == wanted.pointer(at);
            if !["/spec/clusterIP", "/spec/ports/0/port"].into_iter().all(same) {
                let expected = usher_store::Expect::Revision(entry.mod_revision);
                // Whoever was faster knows better.
                let _ = self.store().write(collection, &key, usher_store::Op::Delete, expected).await;
            }
        }
        self.ensure(wanted).await
    }

    /// All at once: the store writes them in a few batches.
    async fn ensure_all(&self, objects: Vec<Value>) -> Result<()> {
        let writes = objects.into_iter().map(|object| self.ensure(object));
        futures::future::try_join_all(writes).await.map(|_| ())
    }

    async fn ensure(&self, object: Value) -> Result<()> {
        let said = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let (api_version, kind) = (said("apiVersion"), said("kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let catalog = self.catalog();
        let Some(served) = catalog.all().find(|s| {
            let r = s.resource();
            r.group == group && r.version == version && r.kind == kind
        }) else {
            tracing::error!(%api_version, %kind, "a bootstrap object is of a kind that is not served");
            return Ok(());
        };
        let resource = served.resource();
        let (namespace, name) = (object::namespace(&object), object::name(&object));
        if self.store().get(&resource.collection(), &stored::key(namespace, name)).is_some() {
            return Ok(());
        }
        match self.write_own("create", resource, "", &object).await {
            Err(error) if error.reason != "AlreadyExists" => Err(error),
            _ => Ok(()),
        }
    }

    /// A write by the server itself, through everything that a client's goes through.
    async fn write_own(&self, verb: &'static str, resource: &Resource, name: &str, object: &Value) -> Result<()> {
        let info = Info {
            verb,
            is_resource: true,
            group: resource.group.clone(),
            version: resource.version.clone(),
            namespace: object::namespace(object).to_owned(),
            resource: resource.plural.clone(),
            name: name.to_owned(),
            ..Info::default()
        };
        let mut headers = HeaderMap::new();
        headers.insert(http::header::USER_AGENT, http::HeaderValue::from_static("usher"));
        let ask = Ask {
            info,
            query: Query::default(),
            user: Arc::new(User::new("system:apiserver", &[MASTERS])),
            in_process: true,
            headers,
            body: Bytes::from(object.to_string()),
        };
        self.dispatch(ask).await.map(|_| ())
    }

    /// Forgets history by age: what is older than `period`, give or take a fifth of it, can no longer be watched from. Runs
    /// until the server closes; not started on virtual time, where a periodic timer would never let the clock rest.
    pub async fn compact_by_age(&self, period: std::time::Duration) {
        const STEPS: usize = 5;
        let mut closing = self.closing();
        // The revisions of the last steps, oldest first.
        let mut marks = VecDeque::from([self.store().revision()]);
        loop {
            tokio::select! {
                () = tokio::time::sleep(period / STEPS as u32) => {}
                _ = closing.wait_for(|closing| *closing) => return,
            }
            if marks.len() >= STEPS
                && let Some(before) = marks.pop_front().filter(|before| *before > self.store().compacted())
            {
                self.store().compact(before);
            }
            marks.push_back(self.store().revision());
        }
    }
}

fn own_service(address: &str) -> Value {
    let address = address.parse::<std::net::SocketAddr>().ok();
    let ip =
        address.map(|a| a.ip()).filter(|ip| !ip.is_unspecified()).map_or("127.0.0.1".to_owned(), |ip| ip.to_string());
    let port = address.map_or(443, |a| a.port());
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {"clusterIP": ip, "ports": [{"name": "https", "port": port, "protocol": "TCP", "targetPort": port}]},
    })
}

/// The roles, bindings and priority classes every cluster has, as objects.
fn system_objects() -> Vec<Value> {
    let bootstrap::Defaults { cluster_roles, cluster_role_bindings, roles, role_bindings, priority_classes } =
        bootstrap::defaults();
    fn values<T: serde::Serialize>(objects: Vec<T>) -> impl Iterator<Item = Value> {
        objects.into_iter().filter_map(|o| serde_json::to_value(o).ok())
    }
    values(cluster_roles)
        .chain(values(cluster_role_bindings))
        .chain(values(roles))
        .chain(values(role_bindings))
        .chain(values(priority_classes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_service_names_an_address_that_can_be_reached() {
        let at = |address: &str| {
            let service = own_service(address);
            (
                service["spec"]["clusterIP"].as_str().unwrap().to_owned(),
                service["spec"]["ports"][0]["port"].as_u64().unwrap(),
            )
        };
        assert_eq!(at("127.0.0.1:7443"), ("127.0.0.1".to_owned(), 7443));
        assert_eq!(at("0.0.0.0:8443"), ("127.0.0.1".to_owned(), 8443));
        assert_eq!(at("[::1]:1234"), ("::1".to_owned(), 1234));
    }
}
