//! An API server in this process, on virtual time, and a way to it that can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use serde_json::json;
use tower::{BoxError, Layer, ServiceExt};
use usher_apiserver::auth::identity::{MASTERS, User};
use usher_apiserver::auth::pki::Pki;
use usher_apiserver::{Keys, Options, Server};
use usher_env::{Clock, Ids};
use usher_store::Store;

use crate::client::Manners;

pub struct World {
    pub server: Server,
    pub clock: Clock,
}

impl World {
    /// With the kinds of queues, and a namespace `here`.
    pub async fn new() -> World {
        let clock = Clock::virtual_from("2026-01-01T00:00:00Z".parse().unwrap());
        let store = Store::open_memory(usher_store::Options::default());
        let pki = Pki::in_memory(&["localhost".to_owned()], clock.now()).unwrap();
        let keys = Keys { service_account: pki.service_account_key, tokens: Default::default() };
        let server = Server::new(store, clock.clone(), Ids::seeded(1), Options::default(), keys);
        server.bootstrap().await.unwrap();
        server.install(usher_api::kueue::definitions()).await.unwrap();
        server.clone().start_custom_resources();
        let world = World { server, clock };
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "here"}})).unwrap();
        Api::all(world.client(&Arc::default())).create(&Default::default(), &namespace).await.unwrap();
        world
    }

    pub fn client(&self, cut: &Arc<AtomicBool>) -> Client {
        let (inner, cut) = (self.server.service_as(User::new("system:usher", &[MASTERS])), cut.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (inner, cut) = (inner.clone(), cut.clone());
            async move {
                if cut.load(Ordering::Relaxed) {
                    return Err(BoxError::from("the way to the server is cut"));
                }
                inner.oneshot(request).await.map_err(BoxError::from)
            }
        });
        Client::new(Manners { fence: None }.layer(service), "here")
    }
}

/// Waits for a state.
pub async fn until<T>(mut state: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..100_000 {
        if let Some(found) = state().await {
            return found;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("waited in vain")
}
