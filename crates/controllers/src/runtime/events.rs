//! Events for people, as client-go's recorder writes them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Api, Client};

/// Records a Warning about `about`. Losing one is no reason to stop: an error is only logged.
pub async fn warn(
    client: &Client,
    component: &str,
    about: ObjectReference,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let namespace = about.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_string());
    let name = format!("{}.{:x}", about.name.as_deref().unwrap_or_default(), now.as_nanosecond());
    let seconds = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let event = Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.clone()), ..Default::default() },
        involved_object: about,
        reason: Some(reason.to_string()),
        message: Some(message),
        type_: Some("Warning".to_string()),
        source: Some(EventSource { component: Some(component.to_string()), host: None }),
        reporting_component: Some(component.to_string()),
        first_timestamp: Some(seconds.clone()),
        last_timestamp: Some(seconds),
        count: Some(1),
        ..Default::default()
    };
    if let Err(error) = Api::<Event>::namespaced(client.clone(), &namespace).create(&Default::default(), &event).await {
        tracing::warn!(%error, reason, "an event could not be recorded");
    }
}
