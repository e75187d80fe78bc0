//! The API server: what all requests share, and how one is started inside a process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tokio::sync::watch;
use usher_env::{Clock, Ids};
use usher_schema::field::Errors;
use usher_store::Store;

use crate::metrics::Metrics;
use crate::object::{self, Object};
use crate::registry::catalog::Catalog;
use crate::registry::kind::{Gates, Resource};

type Compiled = Vec<Arc<crate::crd::kinds::CustomKind>>;

/// A handle on the server; clones are the same server.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    store: Store,
    clock: Clock,
    ids: Ids,
    gates: Gates,
    options: Options,
    catalog: RwLock<Arc<Catalog>>,
    catalog_is_old: AtomicBool,
    /// Compiled definitions by uid, with the generation they were compiled from.
    compiled: parking_lot::Mutex<HashMap<String, (i64, Compiled)>>,
    access: crate::access::Access,
    webhooks: crate::admission::webhook::Cache,
    metrics: Metrics,
    logs: std::sync::OnceLock<Arc<dyn crate::logs::LogSource>>,
    pending: std::sync::OnceLock<Arc<dyn crate::visibility::PendingWorkloads>>,
    exec: std::sync::OnceLock<Arc<dyn crate::exec::ExecSource>>,
    closing: watch::Sender<bool>,
    crowd: crate::rest::Crowd,
}

/// What the server is started with, apart from the store.
#[derive(Clone, Debug)]
pub struct Options {
    pub gates: Gates,
    /// Largest request body.
    pub max_body_bytes: usize,
    /// Requests worked on at a time; more are answered 429.
    pub max_reads_inflight: usize,
    pub max_writes_inflight: usize,
    /// `host:port` that discovery tells clients.
    pub address: String,
    /// The CA of our own certificates: trusted for webhooks whose configuration names none.
    pub ca_pem: String,
    /// Jobs that name a queue are created suspended, and what they say about queues is checked.
    pub jobs_in_queues: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            gates: Gates::default(),
            max_body_bytes: 3 * 1024 * 1024,
            max_reads_inflight: 400,
            max_writes_inflight: 200,
            address: "127.0.0.1:7443".to_owned(),
            ca_pem: String::new(),
            jobs_in_queues: true,
        }
    }
}

impl Server {
    pub fn new(store: Store, clock: Clock, ids: Ids, options: Options, keys: crate::access::Keys) -> Server {
        Server(Arc::new(Shared {
            store,
            clock,
            ids,
            gates: options.gates.clone(),
            catalog: RwLock::new(Arc::new(Catalog::builtin())),
            catalog_is_old: AtomicBool::new(true),
            compiled: Default::default(),
            access: crate::access::Access::new(keys, &options),
            webhooks: crate::admission::webhook::Cache::default(),
            options,
            metrics: Metrics::default(),
            logs: Default::default(),
            pending: Default::default(),
            exec: Default::default(),
            closing: watch::Sender::new(false),
            crowd: Default::default(),
        }))
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub fn ids(&self) -> &Ids {
        &self.0.ids
    }

    pub fn gates(&self) -> &Gates {
        &self.0.gates
    }

    pub fn options(&self) -> &Options {
        &self.0.options
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Says where the output of pods comes from; once, after which it stays so.
    pub fn serve_logs(&self, source: Arc<dyn crate::logs::LogSource>) {
        let _ = self.0.logs.set(source);
    }

    /// Says who runs commands in containers. Without it nobody does.
    pub fn serve_exec(&self, source: Arc<dyn crate::exec::ExecSource>) {
        let _ = self.0.exec.set(source);
    }

    pub(crate) fn exec_source(&self) -> Option<&Arc<dyn crate::exec::ExecSource>> {
        self.0.exec.get()
    }

    pub(crate) fn log_source(&self) -> Option<&Arc<dyn crate::logs::LogSource>> {
        self.0.logs.get()
    }

    /// Says who knows which workloads wait; once, after which it stays so. Until then their group is not served.
    pub fn serve_pending_workloads(&self, source: Arc<dyn crate::visibility::PendingWorkloads>) {
        let _ = self.0.pending.set(source);
        self.0.catalog_is_old.store(true, Ordering::Release);
    }

    pub(crate) fn pending_source(&self) -> Option<&Arc<dyn crate::visibility::PendingWorkloads>> {
        self.0.pending.get()
    }

    pub(crate) fn access(&self) -> &crate::access::Access {
        &self.0.access
    }

    pub(crate) fn webhook_cache(&self) -> &crate::admission::webhook::Cache {
        &self.0.webhooks
    }

    /// What is served now, custom resources included.
    pub fn catalog(&self) -> Arc<Catalog> {
        if self.0.catalog_is_old.load(Ordering::Acquire) {
            // Marked fresh and made under one lock: nobody reads the old one in between, and no slower maker puts back an
            // older one afterwards.
            let mut current = self.0.catalog.write();
            if self.0.catalog_is_old.swap(false, Ordering::AcqRel) {
                let mut catalog = Catalog::builtin();
                crate::crd::serve_all(self, &mut catalog);
                if self.pending_source().is_some() {
                    crate::visibility::resources().for_each(|resource| catalog.add_question(resource));
                }
                *current = Arc::new(catalog);
            }
        }
        self.0.catalog.read().clone()
    }

    /// A definition compiled for serving, from the last time it was if it has not changed since.
    pub(crate) fn compiled(&self, definition: &Object, revision: u64) -> Result<Compiled, Errors> {
        let (uid, generation) = (object::uid(definition).to_owned(), object::generation(definition));
        let mut compiled = self.0.compiled.lock();
        if let Some((_, kinds)) = compiled.get(&uid).filter(|(g, _)| *g == generation) {
            return Ok(kinds.clone());
        }
        let kinds = crate::crd::compile(definition, revision)?;
        compiled.insert(uid, (generation, kinds.clone()));
        Ok(kinds)
    }

    /// What is served must be worked out anew.
    pub(crate) fn definitions_changed(&self) {
        self.0.catalog_is_old.store(true, Ordering::Release);
    }

    /// Called after every write: what is derived from stored objects is derived anew when next needed.
    pub(crate) fn wrote(&self, resource: &Resource) {
        match resource.group.as_str() {
            "apiextensions.k8s.io" => self.definitions_changed(),
            "rbac.authorization.k8s.io" => self.0.access.rules_changed(),
            "admissionregistration.k8s.io" => self.0.webhooks.configurations_changed(),
            _ => {}
        }
    }

    /// Those who watch over the network.
    pub(crate) fn crowd(&self) -> &crate::rest::Crowd {
        &self.0.crowd
    }

    /// Turns true when the server is about to stop: streams end then.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.0.closing.subscribe()
    }

    /// Ends all watches. Requests that are being worked on finish.
    pub fn close(&self) {
        self.0.closing.send_replace(true);
    }
}
