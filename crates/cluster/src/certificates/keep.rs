//! Keeps the Secret, and what is served, up to date. Every copy does this, by compare-and-swap: whoever is first makes what is
//! missing, the others take it over.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use usher_env::Clock;

use super::bundles;
use super::decide::{Material, Step, carry_out, decide};
use crate::names::{CERTIFICATE_SECRET, FIELD_MANAGER};

const KEYS: [&str; 4] = ["ca.crt", "ca.key", "tls.crt", "tls.key"];

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read or write the Secret {namespace}/{CERTIFICATE_SECRET}: {why}")]
    Secret { namespace: String, why: String },
    #[error("cannot make a serving certificate: {0}")]
    Make(#[from] usher_pki::Error),
    #[error("the serving certificate cannot be used: {0}")]
    Unusable(String),
}

/// What is served right now. Clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl Serving {
    pub fn is_there(&self) -> bool {
        self.0.read().is_some()
    }

    /// TLS 1.2 and 1.3 with whatever is current; clients show a certificate where `clients` asks for it.
    pub fn tls(&self, clients: Option<Arc<dyn ClientCertVerifier>>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(usher_pki::provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_client_cert_verifier(clients.unwrap_or_else(|| Arc::new(NoClientAuth)))
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn show(&self, material: &Material) -> Result<(), CertificateError> {
        let unusable = |error: &dyn std::fmt::Display| CertificateError::Unusable(error.to_string());
        let chain = CertificateDer::pem_slice_iter(material.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(material.key.as_bytes()).map_err(|e| unusable(&e))?;
        let certified = CertifiedKey::from_der(chain.map_err(|e| unusable(&e))?, key, &usher_pki::provider());
        *self.0.write() = Some(Arc::new(certified.map_err(|e| unusable(&e))?));
        Ok(())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

pub struct Keeper {
    client: Client,
    clock: Clock,
    namespace: String,
    names: Vec<String>,
    serving: Serving,
}

impl Keeper {
    pub fn new(client: &Client, clock: &Clock, namespace: &str, names: Vec<String>) -> Keeper {
        Keeper {
            client: client.clone(),
            clock: clock.clone(),
            namespace: namespace.to_owned(),
            names,
            serving: Serving::default(),
        }
    }

    pub fn serving(&self) -> Serving {
        self.serving.clone()
    }

    /// Looks once: afterwards there is a certificate, and clients are told whom to trust. Says when to look again.
    pub async fn look(&self) -> Result<(Material, Timestamp), CertificateError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let problem =
            |error: kube::Error| CertificateError::Secret { namespace: self.namespace.clone(), why: error.to_string() };
        loop {
            let stored = api.get_opt(CERTIFICATE_SECRET).await.map_err(problem)?;
            let found = stored.as_ref().and_then(read);
            let now = self.clock.now();
            let step = decide(found.as_ref(), &self.names, now);
            if let (Step::Keep { look_again }, Some(found)) = (step, &found) {
                // Trusted before served: whoever asks next must be able to believe us.
                bundles::announce(&self.client, &found.authorities).await;
                self.serving.show(found)?;
                return Ok((found.clone(), look_again));
            }
            let made = carry_out(step, found.as_ref(), &self.names, now)?;
            tracing::info!(?step, secret = CERTIFICATE_SECRET, "certificates are made anew");
            match self.store(&api, stored.as_ref(), &made).await {
                Ok(()) => {}
                // Somebody else was first; what they made is as good.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(problem(error)),
            }
        }
    }

    async fn store(&self, api: &Api<Secret>, stored: Option<&Secret>, made: &Material) -> Result<(), kube::Error> {
        let how = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let data = write(made);
        match stored {
            Some(stored) => {
                // With its revision, so that only what was read is replaced.
                let mut secret = stored.clone();
                secret.data.get_or_insert_default().extend(data);
                api.replace(CERTIFICATE_SECRET, &how, &secret).await?;
            }
            None => {
                let metadata = ObjectMeta { name: Some(CERTIFICATE_SECRET.to_owned()), ..ObjectMeta::default() };
                let secret = Secret { metadata, data: Some(data), ..Secret::default() };
                api.create(&how, &secret).await?;
            }
        }
        Ok(())
    }

    /// Looks again when the time has come, when the Secret changes, and when somebody changes what clients trust.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&self) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let only = watcher::Config::default().fields(&format!("metadata.name={CERTIFICATE_SECRET}"));
        let mut secrets = std::pin::pin!(watcher(api, only).default_backoff().touched_objects());
        let mut trusted = std::pin::pin!(bundles::changes(&self.client));
        let mut jumps = self.clock.jumps();
        let mut failures = 0u32;
        loop {
            let pause = match self.look().await {
                Ok((_, look_again)) => {
                    failures = 0;
                    look_again.duration_since(self.clock.now()).unsigned_abs()
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, "certificates");
                    std::time::Duration::from_secs(1 << failures.min(6))
                }
            };
            tokio::select! {
                // Longer sleeps than this a runtime does not take.
                () = tokio::time::sleep(pause.min(std::time::Duration::from_secs(3600 * 24 * 365))) => {}
                _ = jumps.next() => {}
                Some(_) = secrets.next() => {}
                Some(()) = trusted.next() => {}
            }
        }
    }
}

fn read(secret: &Secret) -> Option<Material> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    let [authorities, authority_key, certificate, key] = KEYS.map(text);
    Some(Material { authorities: authorities?, authority_key: authority_key?, certificate: certificate?, key: key? })
}

fn write(material: &Material) -> BTreeMap<String, ByteString> {
    let texts = [&material.authorities, &material.authority_key, &material.certificate, &material.key];
    KEYS.into_iter().zip(texts).map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::MUTATING_CONFIGURATION;
    use crate::testing::World;
    use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
    use serde_json::json;

    fn keeper(world: &World) -> Keeper {
        Keeper::new(&world.client(&Arc::default()), &world.clock, "here", vec!["s.here.svc".to_owned()])
    }

    #[tokio::test(start_paused = true)]
    async fn copies_that_start_at_once_serve_the_same_certificate_and_say_whom_to_trust() {
        let world = World::new().await;
        let hooks: Api<MutatingWebhookConfiguration> = Api::all(world.client(&Arc::default()));
        let hook = json!({"name": "a.kb.io", "clientConfig": {"url": "https://s.here.svc"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"]});
        let made = json!({"metadata": {"name": MUTATING_CONFIGURATION}, "webhooks": [hook]});
        hooks.create(&Default::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
        let (one, two) = (keeper(&world), keeper(&world));
        let (a, b) = tokio::join!(one.look(), two.look());
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a, b);
        assert!(one.serving().is_there() && two.serving().is_there());
        let told = hooks.get(MUTATING_CONFIGURATION).await.unwrap().webhooks.unwrap_or_default();
        let bundle = told[0].client_config.ca_bundle.as_ref().unwrap();
        assert_eq!(bundle.0, a.0.authorities.as_bytes());
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_wrote_into_the_secret_is_made_good() {
        let world = World::new().await;
        let (before, _) = keeper(&world).look().await.unwrap();
        let secrets: Api<Secret> = Api::namespaced(world.client(&Arc::default()), "here");
        let mut secret = secrets.get(CERTIFICATE_SECRET).await.unwrap();
        secret.data.as_mut().unwrap().insert("tls.crt".to_owned(), ByteString(b"nonsense".to_vec()));
        secrets.replace(CERTIFICATE_SECRET, &Default::default(), &secret).await.unwrap();
        let (after, _) = keeper(&world).look().await.unwrap();
        assert_eq!(after.authorities, before.authorities);
        assert_ne!(after.certificate, before.certificate);
    }
}
