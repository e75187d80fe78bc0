//! Whom API servers trust when they call us: the `caBundle` of our webhook configurations and APIServices. Only those fields
//! are written, and only where they say something else.
//!
//! What is not installed is passed over: `usher controller` also runs without webhooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::stream::{Stream, StreamExt, select, select_all};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::names::{
    FIELD_MANAGER, MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION, VISIBILITY_GROUP, VISIBILITY_VERSIONS,
};

/// Everything of ours that has a `caBundle`, by kind and name.
fn places() -> Vec<(ApiResource, String)> {
    let resource = |group: &str, kind: &str, plural: &str| ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{group}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let group = "admissionregistration.k8s.io";
    let mutating = resource(group, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
    let validating = resource(group, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
    let services = resource("apiregistration.k8s.io", "APIService", "apiservices");
    let mut places =
        vec![(mutating, MUTATING_CONFIGURATION.to_owned()), (validating, VALIDATING_CONFIGURATION.to_owned())];
    places.extend(VISIBILITY_VERSIONS.map(|version| (services.clone(), format!("{version}.{VISIBILITY_GROUP}"))));
    places
}

/// The JSON patch that makes an object trust `bundle`; None if it does already.
pub fn patch(object: &Value, bundle: &str) -> Option<Value> {
    let wanted = json!(STANDARD.encode(bundle));
    let mut steps = Vec::new();
    if let Some(webhooks) = object["webhooks"].as_array() {
        for (at, webhook) in webhooks.iter().enumerate() {
            if webhook["clientConfig"]["caBundle"] != wanted {
                // The list may have changed meanwhile.
                steps.push(json!({"op": "test", "path": format!("/webhooks/{at}/name"), "value": webhook["name"]}));
                let path = format!("/webhooks/{at}/clientConfig/caBundle");
                steps.push(json!({"op": "add", "path": path, "value": wanted}));
            }
        }
    } else if object["spec"]["service"].is_object() && object["spec"]["caBundle"] != wanted {
        steps.push(json!({"op": "add", "path": "/spec/caBundle", "value": wanted}));
    }
    (!steps.is_empty()).then_some(Value::Array(steps))
}

/// Puts the bundle everywhere. What cannot be written is logged: a copy without the right to is of use all the same.
pub async fn announce(client: &Client, bundle: &str) {
    for (resource, name) in places() {
        if let Err(error) = announce_at(client, &resource, &name, bundle).await {
            tracing::warn!(kind = resource.kind, name, %error, "cannot put our authority into the caBundle");
        }
    }
}

async fn announce_at(client: &Client, resource: &ApiResource, name: &str, bundle: &str) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let Some(object) = api.get_opt(name).await? else { return Ok(()) };
    let object = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
    let Some(patch) = patch(&object, bundle) else { return Ok(()) };
    let how = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
    api.patch(name, &how, &Patch::<()>::Json(patch)).await?;
    tracing::info!(kind = resource.kind, name, "put our authority into the caBundle");
    Ok(())
}

/// Tells whenever one of the places changes.
pub fn changes(client: &Client) -> impl Stream<Item = ()> + use<> {
    let watch = |(resource, name): (ApiResource, String)| {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        watcher(api, only).default_backoff().applied_objects().filter_map(async |found| found.ok().map(|_| ())).boxed()
    };
    select(select_all(places().into_iter().map(watch)), futures::stream::pending())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(mut object: Value, bundle: &str) -> Value {
        let patch = patch(&object, bundle).expect("something to do");
        json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
        object
    }

    #[test]
    fn every_webhook_is_told_whom_to_trust_and_only_once() {
        let hooks = json!({"webhooks": [{"name": "a", "clientConfig": {"url": "https://x"}},
            {"name": "b", "clientConfig": {"caBundle": "b2xk"}}]});
        let told = applied(hooks, "pem");
        for at in 0..2 {
            assert_eq!(told["webhooks"][at]["clientConfig"]["caBundle"], "cGVt");
        }
        assert_eq!(told["webhooks"][0]["clientConfig"]["url"], "https://x");
        assert_eq!(patch(&told, "pem"), None);
    }

    #[test]
    fn a_service_is_told_and_what_the_api_server_serves_itself_is_not() {
        assert_eq!(applied(json!({"spec": {"service": {"name": "s"}}}), "pem")["spec"]["caBundle"], "cGVt");
        assert_eq!(patch(&json!({"spec": {"service": null}}), "pem"), None);
        assert_eq!(patch(&json!({"spec": {}}), "pem"), None);
    }
}
