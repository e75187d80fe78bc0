//! Events for people, as client-go's recorder writes them: what repeats is counted, what floods is held back.
//!
//! Recording never waits and never fails its caller. The rules are in [`Correlator`], which touches neither clock nor API;
//! what it lets through is written in the order it was recorded, object by object.

mod correlate;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use usher_env::Clock;

use super::Tasks;
use super::objects::is_not_found;
pub use correlate::{Correlator, Note, Severity, Write};

/// Objects are spread over this many writers: a burst is not written one event at a time, and does not crowd out what it is about.
const WRITERS: usize = 2;
/// Notes a writer may have before it; more are dropped, as client-go drops them.
const BACKLOG: usize = 4096;
/// What an event is about comes first: its writes would share the disk with those that somebody waits for.
const GIVE_WAY: Duration = Duration::from_millis(50);

/// Records events in the name of one component. Clones record alike.
#[derive(Clone)]
pub struct Recorder {
    writers: Arc<[Writer]>,
}

struct Writer {
    notes: mpsc::Sender<Note>,
    /// Since it was last said.
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Starts the writers among `tasks`; they end with them.
    pub fn new(client: &Client, clock: &Clock, component: &str, tasks: &Tasks) -> Recorder {
        let writer = |_| {
            let (notes, receiver) = mpsc::channel(BACKLOG);
            let dropped = Arc::new(AtomicU64::new(0));
            tasks.spawn(write_all(client.clone(), clock.clone(), component.to_string(), receiver, dropped.clone()));
            Writer { notes, dropped }
        };
        Recorder { writers: (0..WRITERS).map(writer).collect() }
    }

    pub fn normal(&self, about: ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(Note { severity: Severity::Normal, about, reason: reason.to_string(), message: message.into() });
    }

    pub fn warning(&self, about: ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(Note { severity: Severity::Warning, about, reason: reason.to_string(), message: message.into() });
    }

    fn record(&self, note: Note) {
        let mut hasher = DefaultHasher::new();
        (&note.about.namespace, &note.about.name, &note.about.uid).hash(&mut hasher);
        let writer = &self.writers[(hasher.finish() % WRITERS as u64) as usize];
        if let Err(mpsc::error::TrySendError::Full(_)) = writer.notes.try_send(note) {
            writer.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn write_all(
    client: Client,
    clock: Clock,
    component: String,
    mut notes: mpsc::Receiver<Note>,
    dropped: Arc<AtomicU64>,
) {
    let mut correlator = Correlator::of(&component);
    while let Some(first) = notes.recv().await {
        tokio::time::sleep(GIVE_WAY).await;
        let mut next = Some(first);
        while let Some(note) = next {
            let (now, began) = (clock.now(), Instant::now());
            if let Some(write) = correlator.admit(note, now)
                && let Err(error) = put(&client, &component, &write, now).await
            {
                tracing::warn!(%error, reason = write.note.reason, "an event could not be recorded");
            }
            // Half of the time at most: the busier everything is, the fewer events.
            tokio::time::sleep(began.elapsed()).await;
            next = notes.try_recv().ok();
        }
        // Once for each burst, when it is over.
        let dropped = dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(component, dropped, "too many events at once: some were dropped");
        }
    }
}

/// Counts an event up, or creates it where there is none to count up.
async fn put(client: &Client, component: &str, write: &Write, now: Timestamp) -> Result<(), kube::Error> {
    let namespace = namespace_of(&write.note.about);
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    if write.count > 1 {
        let patch = json!({"count": write.count, "lastTimestamp": whole_seconds(now), "message": write.note.message});
        match events.patch_metadata(&write.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if is_not_found(&error) => {}
            other => return other.map(drop),
        }
    }
    let body = serde_json::to_vec(&event(component, write, namespace, now)).map_err(kube::Error::SerdeError)?;
    let request = Request::new(events.resource_url()).create(&Default::default(), body);
    client.request_text(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
}

fn event(component: &str, write: &Write, namespace: &str, now: Timestamp) -> Event {
    let note = &write.note;
    Event {
        metadata: ObjectMeta {
            name: Some(write.name.clone()),
            namespace: Some(namespace.to_string()),
            ..Default::default()
        },
        involved_object: note.about.clone(),
        reason: Some(note.reason.clone()),
        message: Some(note.message.clone()),
        type_: Some(note.severity.as_str().to_string()),
        source: Some(EventSource { component: Some(component.to_string()), host: None }),
        reporting_component: Some(component.to_string()),
        first_timestamp: Some(whole_seconds(write.first)),
        last_timestamp: Some(whole_seconds(now)),
        count: Some(write.count),
        ..Default::default()
    }
}

/// Events about cluster-scoped objects are kept in `default`.
fn namespace_of(about: &ObjectReference) -> &str {
    about.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or("default")
}

fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
