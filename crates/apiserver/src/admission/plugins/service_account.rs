//! ServiceAccount: every pod runs as one, which exists, and finds its token mounted.
//!
//! Left out: the deprecated `kubernetes.io/enforce-mountable-secrets` annotation.

use std::time::Duration;

use serde_json::{Value, json};

use super::values::{items, list_mut, spec_mut, stored_object, text};
use crate::admission::Review;
use crate::object::{self, Object};
use crate::server::Server;
use crate::status::Result;

const DEFAULT: &str = "default";
const MIRROR: &str = "kubernetes.io/config.mirror";
const TOKEN_VOLUME: &str = "kube-api-access-";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// An hour and 7 seconds: longer than asked for by anyone else, so that it can be told apart.
const TOKEN_SECS: i64 = 3607;
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// A controller makes the account `default` of a new namespace: give it a moment.
const PATIENCE: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

pub async fn admit(server: &Server, review: &Review<'_>, pod: &mut Object) -> Result<()> {
    if is_mirror(pod) {
        // Nothing may change in a pod that mirrors one of a kubelet's own.
        return check_mirror(review, pod);
    }
    if text(pod, "/spec/serviceAccountName").is_empty() {
        let spec = spec_mut(pod);
        for field in ["serviceAccountName", "serviceAccount"] {
            spec.insert(field.to_owned(), DEFAULT.into());
        }
    }
    let account = account_of(server, review, pod).await?;
    let wanted = pod.pointer("/spec/automountServiceAccountToken").and_then(Value::as_bool);
    let wanted = wanted.or_else(|| account.get("automountServiceAccountToken").and_then(Value::as_bool));
    if wanted.unwrap_or(true) {
        mount_token(pod, || format!("{TOKEN_VOLUME}{}", server.ids().suffix(5)));
    }
    if items(pod, "/spec/imagePullSecrets").is_empty() {
        let names = items(&account, "/imagePullSecrets").iter().map(|secret| json!({"name": text(secret, "/name")}));
        let secrets: Vec<Value> = names.collect();
        if !secrets.is_empty() {
            spec_mut(pod).insert("imagePullSecrets".to_owned(), secrets.into());
        }
    }
    Ok(())
}

pub async fn validate(server: &Server, review: &Review<'_>, pod: &Object) -> Result<()> {
    if is_mirror(pod) {
        return check_mirror(review, pod);
    }
    if text(pod, "/spec/serviceAccountName").is_empty() {
        let why = format!("no service account specified for pod {}/{}", review.namespace, object::name(pod));
        return Err(review.forbidden(pod, &why));
    }
    account_of(server, review, pod).await.map(|_| ())
}

async fn account_of(server: &Server, review: &Review<'_>, pod: &Object) -> Result<Object> {
    let name = text(pod, "/spec/serviceAccountName");
    for attempt in 0..if name == DEFAULT { PATIENCE } else { 1 } {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        if let Some(account) = stored_object(server, "core/serviceaccounts", review.namespace, name) {
            return Ok(account);
        }
    }
    let namespace = review.namespace;
    let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
    Err(review.forbidden(pod, &why))
}

fn is_mirror(pod: &Object) -> bool {
    pod.pointer("/metadata/annotations").and_then(|a| a.get(MIRROR)).is_some()
}

fn check_mirror(review: &Review<'_>, pod: &Object) -> Result<()> {
    let refuse = |why: &str| Err(review.forbidden(pod, why));
    if !text(pod, "/spec/serviceAccountName").is_empty() {
        return refuse("a mirror pod may not reference service accounts");
    }
    if references_secrets(pod) {
        return refuse("a mirror pod may not reference secrets");
    }
    let sources = items(pod, "/spec/volumes").iter().flat_map(|volume| items(volume, "/projected/sources"));
    if sources.clone().any(|source| source.get("serviceAccountToken").is_some_and(Value::is_object)) {
        return refuse("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// Any secret, wherever a pod may name one.
fn references_secrets(pod: &Object) -> bool {
    const IN_VOLUME: [&str; 11] = [
        "/secret/secretName",
        "/azureFile/secretName",
        "/cephfs/secretRef/name",
        "/cinder/secretRef/name",
        "/flexVolume/secretRef/name",
        "/rbd/secretRef/name",
        "/scaleIO/secretRef/name",
        "/iscsi/secretRef/name",
        "/storageos/secretRef/name",
        "/csi/nodePublishSecretRef/name",
        "/projected/secret/name",
    ];
    let named = |value: &Value, at: &str| !text(value, at).is_empty();
    let containers = CONTAINER_LISTS.iter().chain(&["ephemeralContainers"]);
    let mut containers = containers.flat_map(|list| items(pod, &format!("/spec/{list}")));
    let mut volumes = items(pod, "/spec/volumes").iter();
    items(pod, "/spec/imagePullSecrets").iter().any(|secret| named(secret, "/name"))
        || containers.any(|container| {
            items(container, "/envFrom").iter().any(|from| named(from, "/secretRef/name"))
                || items(container, "/env").iter().any(|env| named(env, "/valueFrom/secretKeyRef/name"))
        })
        || volumes.any(|volume| {
            IN_VOLUME.iter().any(|at| named(volume, at))
                || items(volume, "/projected/sources").iter().any(|source| named(source, "/secret/name"))
        })
}

/// Mounts the token where clients look for it, in each container that has nothing there yet.
fn mount_token(pod: &mut Object, new_name: impl FnOnce() -> String) {
    let volumes = items(pod, "/spec/volumes").iter().map(|volume| text(volume, "/name"));
    let present = volumes.into_iter().find(|name| name.starts_with(TOKEN_VOLUME)).map(str::to_owned);
    let is_new = present.is_none();
    let name = present.unwrap_or_else(new_name);
    let spec = spec_mut(pod);
    let mut needed = false;
    for list in CONTAINER_LISTS {
        let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
        for container in containers {
            if items(container, "/volumeMounts").iter().any(|mount| text(mount, "/mountPath") == TOKEN_PATH) {
                continue;
            }
            list_mut(object::as_map(container), "volumeMounts")
                .push(json!({"name": name, "readOnly": true, "mountPath": TOKEN_PATH}));
            needed = true;
        }
    }
    if is_new && needed {
        list_mut(spec, "volumes").push(token_volume(&name));
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_mounted_where_nothing_is_yet_and_only_then_needs_a_volume() {
        let mut pod = json!({"spec": {
            "initContainers": [{"name": "i", "volumeMounts": [{"name": "mine", "mountPath": TOKEN_PATH}]}],
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]}});
        mount_token(&mut pod, || "kube-api-access-xxxxx".to_owned());
        let mounts = |list: &str, i: usize| {
            let container = &pod["spec"][list][i];
            items(container, "/volumeMounts").iter().map(|m| text(m, "/name").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(mounts("initContainers", 0), ["mine"]);
        assert_eq!(mounts("containers", 0), ["kube-api-access-xxxxx"]);
        assert_eq!(mounts("containers", 1), ["x", "kube-api-access-xxxxx"]);
        assert_eq!(pod["spec"]["volumes"], json!([token_volume("kube-api-access-xxxxx")]));

        let again = pod.clone();
        mount_token(&mut pod, || unreachable!("the volume is there"));
        assert_eq!(pod, again);
    }

    #[test]
    fn a_pod_whose_containers_all_bring_their_own_gets_no_volume() {
        let mut pod = json!({"spec": {"containers": [{"volumeMounts": [{"name": "m", "mountPath": TOKEN_PATH}]}]}});
        mount_token(&mut pod, || "kube-api-access-xxxxx".to_owned());
        assert!(pod["spec"].get("volumes").is_none());
    }

    #[test]
    fn secrets_are_found_wherever_a_pod_names_them() {
        for spec in [
            json!({"imagePullSecrets": [{"name": "s"}]}),
            json!({"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]}),
            json!({"initContainers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]}),
            json!({"volumes": [{"secret": {"secretName": "s"}}]}),
            json!({"volumes": [{"projected": {"sources": [{"secret": {"name": "s"}}]}}]}),
        ] {
            assert!(references_secrets(&json!({"spec": spec})), "{spec}");
        }
        assert!(!references_secrets(&json!({"spec": {"volumes": [{"configMap": {"name": "c"}}]}})));
    }
}
