//! Events go an hour after their last write, as etcd's leases make them go upstream.
//!
//! Each event is a delayed key in one queue: the queue sleeps until the first is due, and not at all when there is none.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Preconditions};
use serde::Deserialize;
use usher_env::Clock;

use crate::runtime::meta::timestamp;
use crate::runtime::objects::{is_conflict, is_not_found};
use crate::runtime::{GroupResource, Key, Objects, Outcome, QueueMetrics, Signal, Store, Tasks, Watches, WorkQueue};

const WORKERS: usize = 4;

/// An Event, as far as its age goes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Written {
    pub metadata: WrittenMeta,
    #[serde(deserialize_with = "timestamp")]
    pub last_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "timestamp")]
    pub event_time: Option<Timestamp>,
    pub series: Option<Series>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WrittenMeta {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    #[serde(deserialize_with = "timestamp")]
    pub creation_timestamp: Option<Timestamp>,
    pub managed_fields: Option<Vec<Managed>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Managed {
    #[serde(deserialize_with = "timestamp")]
    pub time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Series {
    #[serde(deserialize_with = "timestamp")]
    pub last_observed_time: Option<Timestamp>,
}

/// How much longer the event is kept; `None` when its time is over.
///
/// The last write is the latest of the times it carries that is not in the future: some of them are whatever the
/// reporter says, and must not make an event immortal.
pub fn decide(event: &Written, ttl: Duration, now: Timestamp) -> Option<Duration> {
    let managed = event.metadata.managed_fields.iter().flatten().filter_map(|m| m.time);
    let written = [
        event.metadata.creation_timestamp,
        event.last_timestamp,
        event.event_time,
        event.series.as_ref().and_then(|s| s.last_observed_time),
    ];
    let last = written.into_iter().flatten().chain(managed).filter(|time| *time <= now).max();
    let ttl = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
    let left = ttl.saturating_sub(last.map_or(SignedDuration::ZERO, |last| now.duration_since(last)));
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

pub(crate) fn start(
    objects: Objects,
    clock: Clock,
    ttl: Duration,
    watches: &Watches,
    tasks: &Tasks,
    metrics: &QueueMetrics,
) {
    let id = GroupResource::new("", "events");
    let events: Store<Written> = watches.whole_view(&id);
    let mut signals = watches.subscribe(move |resource| resource.id == id);
    let queue = WorkQueue::new("event_expiry", metrics);
    let expiry = Expiry { objects, clock, ttl, events, watches: watches.clone() };
    let worker = expiry.clone();
    queue.run(WORKERS, tasks, move |key| {
        let worker = worker.clone();
        async move { worker.expire(key).await }
    });
    tasks.spawn(async move {
        while let Some(signal) = signals.recv().await {
            if let Signal::Applied(_, meta) = signal {
                let key = meta.key();
                if let Some(event) = expiry.events.get(&key) {
                    let left = decide(&event, ttl, expiry.clock.now()).unwrap_or_default();
                    queue.add_after(key, left);
                }
            }
        }
    });
}

#[derive(Clone)]
struct Expiry {
    objects: Objects,
    clock: Clock,
    ttl: Duration,
    events: Store<Written>,
    watches: Watches,
}

impl Expiry {
    async fn expire(&self, key: Key) -> Result<Outcome, kube::Error> {
        let Some(event) = self.events.get(&key) else { return Ok(Outcome::Settled) };
        if let Some(left) = decide(&event, self.ttl, self.clock.now()) {
            return Ok(Outcome::After(left));
        }
        let catalog = self.watches.catalog();
        let Some(resource) = catalog.kind("v1", "Event") else { return Ok(Outcome::Settled) };
        // Written again meanwhile: its watch will tell, and the hour starts anew.
        let how = DeleteParams::background().preconditions(Preconditions {
            uid: event.metadata.uid.clone(),
            resource_version: event.metadata.resource_version.clone(),
        });
        match self.objects.delete(resource, &key.namespace, &key.name, &how).await {
            Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error),
            _ => Ok(Outcome::Settled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HOUR: Duration = Duration::from_secs(3600);

    fn left(event: serde_json::Value, now: &str) -> Option<u64> {
        let event: Written = serde_json::from_value(event).unwrap();
        decide(&event, HOUR, now.parse().unwrap()).map(|d| d.as_secs())
    }

    #[test]
    fn the_last_write_counts() {
        let mut event = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "lastTimestamp": null});
        assert_eq!(left(event.clone(), "2026-01-01T00:59:59Z"), Some(1));
        assert_eq!(left(event.clone(), "2026-01-01T01:00:00Z"), None);
        event["lastTimestamp"] = json!("2026-01-01T00:10:00Z");
        assert_eq!(left(event.clone(), "2026-01-01T01:00:00Z"), Some(600));
        event["metadata"]["managedFields"] = json!([{"time": "2026-01-01T00:20:00Z"}, {"manager": "m"}]);
        assert_eq!(left(event.clone(), "2026-01-01T01:00:00Z"), Some(1200));
        event["series"] = json!({"lastObservedTime": "2026-01-01T00:30:00.000000Z"});
        assert_eq!(left(event, "2026-01-01T01:00:00Z"), Some(1800));
    }

    #[test]
    fn a_time_in_the_future_keeps_nothing_alive() {
        let event = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "eventTime": "9000-01-01T00:00:00.000000Z"});
        assert_eq!(left(event, "2026-01-01T02:00:00Z"), None);
    }

    #[test]
    fn an_event_without_any_time_is_kept_for_the_whole_span() {
        assert_eq!(left(json!({}), "2026-01-01T00:00:00Z"), Some(3600));
    }
}
