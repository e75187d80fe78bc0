//! The two shapes of one event, as JSON.

use k8s_openapi::api::core::v1::Event;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The fields with two names: in `events.k8s.io`, in the core group.
const NAMES: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// An event of `events.k8s.io` as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct NewEvent(pub Event);

impl TryFrom<Value> for NewEvent {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<NewEvent, serde_json::Error> {
        serde_json::from_value(to_core(value)).map(NewEvent)
    }
}

impl From<NewEvent> for Value {
    fn from(event: NewEvent) -> Value {
        from_core(serde_json::to_value(event.0).unwrap_or_default())
    }
}

/// An event of `events.k8s.io` as one of the core group. Fields that neither has stay as they are.
pub fn to_core(event: Value) -> Value {
    renamed(event, "v1", |name| NAMES.iter().find(|(new, _)| *new == name).map(|(_, old)| *old))
}

/// An event of the core group as one of `events.k8s.io`.
pub fn from_core(event: Value) -> Value {
    renamed(event, "events.k8s.io/v1", |name| NAMES.iter().find(|(_, old)| *old == name).map(|(new, _)| *new))
}

fn renamed(event: Value, version: &str, rename: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(fields) = event else { return event };
    let mut out = Map::new();
    for (name, value) in fields {
        match rename(&name) {
            Some(other) => out.insert(other.to_owned(), value),
            None if name == "apiVersion" => out.insert(name, version.into()),
            None => out.insert(name, value),
        };
    }
    Value::Object(out)
}
