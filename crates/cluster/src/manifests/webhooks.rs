//! Which requests the API server asks us about: as few as possible, and none about what is not ours.
//!
//! All say `failurePolicy: Fail`: a queued Job that slipped past would run without quota, and a bad queue would be stored. So the
//! selectors decide what stops when Usher is down: only writes of queues and Workloads, new Jobs that name a queue, and new Jobs
//! in namespaces with a default queue. Updates that change neither spec, labels nor annotations (finalizers, owners) pass
//! unasked, so that what is deleted can go; and what Usher writes itself passes unasked, because it goes by the same rules.

use serde_json::{Value, json};
use usher_api::kueue::keys::{TRUE, label};

use super::Settings;
use super::objects::cluster_meta;
use crate::names::{
    HAS_DEFAULT_QUEUE, MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION, WEBHOOK_SERVICE, service_account_user,
};
use crate::webhook::answer::{MUTATE, VALIDATE};

pub fn all(settings: &Settings) -> Vec<Value> {
    vec![
        configuration("MutatingWebhookConfiguration", MUTATING_CONFIGURATION, mutating(settings)),
        configuration("ValidatingWebhookConfiguration", VALIDATING_CONFIGURATION, validating(settings)),
    ]
}

fn configuration(kind: &str, name: &str, webhooks: Vec<Value>) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": cluster_meta(name),
        "webhooks": webhooks})
}

/// Whom a webhook is about.
enum Whom {
    Everybody,
    /// Those that name a queue.
    Queued,
    /// Those that name none, where there is a default.
    Caught,
}

struct Hook<'h> {
    name: &'h str,
    path: &'h str,
    group: &'h str,
    version: &'h str,
    resources: &'h [&'h str],
    operations: &'h [&'h str],
    whom: Whom,
}

fn mutating(settings: &Settings) -> Vec<Value> {
    let queueing = |name: &'static str, resources: &'static [&'static str]| Hook {
        name,
        path: MUTATE,
        group: "kueue.x-k8s.io",
        version: "v1beta2",
        resources,
        operations: &["CREATE"],
        whom: Whom::Everybody,
    };
    let job = |name: &'static str, whom: Whom| Hook {
        name,
        path: MUTATE,
        group: "batch",
        version: "v1",
        resources: &["jobs"],
        operations: &["CREATE"],
        whom,
    };
    let ray = |name: &'static str, whom: Whom, operations: &'static [&'static str]| Hook {
        name,
        path: MUTATE,
        group: "ray.io",
        version: "v1",
        resources: &["rayclusters"],
        operations,
        whom,
    };
    [
        queueing("mclusterqueue.kb.io", &["clusterqueues"]),
        queueing("mresourceflavor.kb.io", &["resourceflavors"]),
        job("mjob.kb.io", Whom::Queued),
        job("mjob-default-queue.kb.io", Whom::Caught),
        ray("mraycluster.kb.io", Whom::Queued, &["CREATE", "UPDATE"]),
        ray("mraycluster-default-queue.kb.io", Whom::Caught, &["CREATE"]),
    ]
    .map(|hook| hook.render(settings))
    .into()
}

fn validating(settings: &Settings) -> Vec<Value> {
    let hook =
        |name: &'static str, group: &'static str, version: &'static str, resources: &'static [&'static str], whom| {
            Hook { name, path: VALIDATE, group, version, resources, operations: &["CREATE", "UPDATE"], whom }
        };
    let queueing = |name: &'static str, resources: &'static [&'static str]| {
        hook(name, "kueue.x-k8s.io", "v1beta2", resources, Whom::Everybody)
    };
    [
        queueing("vclusterqueue.kb.io", &["clusterqueues"]),
        queueing("vcohort.kb.io", &["cohorts"]),
        queueing("vresourceflavor.kb.io", &["resourceflavors"]),
        queueing("vworkload.kb.io", &["workloads", "workloads/status"]),
        hook("vjob.kb.io", "batch", "v1", &["jobs"], Whom::Queued),
        hook("vraycluster.kb.io", "ray.io", "v1", &["rayclusters"], Whom::Queued),
    ]
    .map(|hook| hook.render(settings))
    .into()
}

impl Hook<'_> {
    fn render(&self, settings: &Settings) -> Value {
        let client = match &settings.webhook_url {
            Some(url) => json!({"url": format!("{}{}", url.trim_end_matches('/'), self.path)}),
            None => {
                json!({"service": {"name": WEBHOOK_SERVICE, "namespace": settings.namespace, "path": self.path, "port": 443}})
            }
        };
        let mut hook = json!({
            "name": self.name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": client,
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "rules": [{"apiGroups": [self.group], "apiVersions": [self.version], "operations": self.operations,
                "resources": self.resources}],
            "matchConditions": conditions(settings, self.operations),
        });
        let names_a_queue =
            |operator: &str| json!({"matchExpressions": [{"key": label::QUEUE_NAME, "operator": operator}]});
        match self.whom {
            Whom::Everybody => {}
            Whom::Queued => hook["objectSelector"] = names_a_queue("Exists"),
            Whom::Caught => {
                hook["objectSelector"] = names_a_queue("DoesNotExist");
                hook["namespaceSelector"] = json!({"matchLabels": {HAS_DEFAULT_QUEUE: TRUE}});
            }
        }
        hook
    }
}

fn conditions(settings: &Settings, operations: &[&str]) -> Value {
    let user = service_account_user(&settings.namespace);
    let mut conditions =
        vec![json!({"name": "not-usher-itself", "expression": format!("request.userInfo.username != '{user}'")})];
    if operations.contains(&"UPDATE") {
        let changes = "request.operation != 'UPDATE' || has(request.subResource) || object.?spec != oldObject.?spec || \
            object.metadata.?labels != oldObject.metadata.?labels || \
            object.metadata.?annotations != oldObject.metadata.?annotations";
        conditions.push(json!({"name": "changes-what-is-checked", "expression": changes}));
    }
    json!(conditions)
}
