//! The behaviours that the controllers promise, as functions of a `kube::Client`: the same tests hold against a real
//! kube-apiserver, our own over HTTPS, and our own in process on virtual time.
//!
//! Each function makes a namespace of its own, waits for states (never for a duration) and cleans up behind itself. The
//! controllers must be running against the same server; see [`ROOT_CA`] and [`EVENT_TTL`] for how.

use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Options;

/// What the controllers must be told to publish.
pub const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\nnot really\n-----END CERTIFICATE-----\n";
/// How long the controllers must be told to keep events.
pub const EVENT_TTL: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(120);

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Outcome = Result<(), Failure>;
type Behaviour = fn(Client) -> BoxFuture<'static, Outcome>;

/// The options under which [`all`] holds.
pub fn options() -> Options {
    Options {
        gc: true,
        namespaces: true,
        service_accounts: true,
        root_ca: Some(ROOT_CA.to_string()),
        cluster_roles: true,
        event_ttl: Some(EVENT_TTL),
        ..Options::none()
    }
}

/// Every behaviour, by name.
pub fn all() -> Vec<(&'static str, Behaviour)> {
    macro_rules! named {
        ($($name:ident),* $(,)?) => { vec![$((stringify!($name), (|c| $name(c).boxed()) as Behaviour)),*] };
    }
    named![
        a_new_namespace_has_a_default_account_and_the_root_ca,
        what_a_namespace_is_born_with_comes_back,
        background_deletion_takes_dependents_of_dependents,
        an_object_whose_owner_never_existed_goes,
        a_remaining_owner_keeps_an_object_and_the_dangling_reference_goes,
        foreground_deletion_waits_for_what_blocks_it,
        orphans_lose_their_reference_and_stay,
        an_owner_in_another_namespace_is_no_owner,
        custom_resources_own_and_are_owned,
        a_namespace_goes_with_all_that_is_in_it,
        a_namespace_waits_for_finalizers_and_says_so,
        a_namespace_with_a_pod_says_what_remains,
        aggregated_roles_follow_the_roles_they_select,
        events_go_when_their_time_is_over,
    ]
}

/// Runs every behaviour in turn and names those that do not hold.
pub async fn run_all(client: Client) -> Result<usize, String> {
    let mut failed = Vec::new();
    let behaviours = all();
    for (name, behaviour) in &behaviours {
        match behaviour(client.clone()).await {
            Ok(()) => println!("ok    {name}"),
            Err(error) => {
                println!("FAIL  {name}: {error}");
                failed.push(format!("{name}: {error}"));
            }
        }
    }
    if failed.is_empty() { Ok(behaviours.len()) } else { Err(failed.join("\n")) }
}

/// A namespace to play in.
struct Place {
    client: Client,
    name: String,
}

impl Place {
    async fn new(client: &Client, what: &str) -> Result<Place, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let place = Place { client: client.clone(), name: format!("{what}-{}-{count}", std::process::id()) };
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": place.name}}))?;
        Api::all(client.clone()).create(&Default::default(), &namespace).await?;
        Ok(place)
    }

    fn api<K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    fn dynamic(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.name, kind)
    }

    async fn config_map(&self, name: &str, owners: &[Value]) -> Result<ConfigMap, Failure> {
        let map = serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": owners}}))?;
        Ok(self.api().create(&Default::default(), &map).await?)
    }

    async fn leave(self) -> Outcome {
        Api::<Namespace>::all(self.client.clone()).delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// A reference that makes `owner` an owner, holding it in foreground deletion.
fn owner<K: Resource<DynamicType = ()>>(owner: &K) -> Value {
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "name": owner.name_any(), "uid": owner.uid(), "blockOwnerDeletion": true})
}

fn check(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

/// Asks until `state` gives something.
async fn until<T, F, Fut>(what: &str, mut state: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>, kube::Error>>,
{
    let start = Instant::now();
    loop {
        if let Some(found) = state().await? {
            return Ok(found);
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("still not so: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_gone<K>(api: &Api<K>, name: &str) -> Outcome
where
    K: Clone + DeserializeOwned + Debug,
{
    let gone = async || Ok(api.get_opt(name).await?.is_none().then_some(()));
    until(&format!("{name} is gone"), gone).await
}

async fn until_is<K>(api: &Api<K>, name: &str, what: &str, is: impl Fn(&K) -> bool) -> Result<K, Failure>
where
    K: Clone + DeserializeOwned + Debug,
{
    until(&format!("{name} {what}"), async || Ok(api.get_opt(name).await?.filter(|object| is(object)))).await
}

async fn merge<K>(api: &Api<K>, name: &str, patch: Value) -> Result<K, Failure>
where
    K: Clone + DeserializeOwned + Debug,
{
    Ok(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
}

fn hold() -> Value {
    json!({"metadata": {"finalizers": ["example.com/hold"]}})
}

fn release() -> Value {
    json!({"metadata": {"finalizers": null}})
}

async fn exists<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, name: &str) -> Result<bool, Failure> {
    Ok(api.get_opt(name).await?.is_some())
}

/// When this object has come and gone, the collector has seen everything written before it.
async fn collector_has_caught_up(place: &Place) -> Outcome {
    let top = place.config_map("sentinel", &[]).await?;
    place.config_map("sentinel-dependent", &[owner(&top)]).await?;
    let api = place.api::<ConfigMap>();
    api.delete("sentinel", &DeleteParams::background()).await?;
    until_gone(&api, "sentinel-dependent").await
}

pub async fn a_new_namespace_has_a_default_account_and_the_root_ca(client: Client) -> Outcome {
    let place = Place::new(&client, "born").await?;
    until_is(&place.api::<ServiceAccount>(), "default", "is there", |_| true).await?;
    let map = until_is(&place.api::<ConfigMap>(), "kube-root-ca.crt", "is there", |_| true).await?;
    check(map.data.as_ref().and_then(|d| d.get("ca.crt")).is_some_and(|ca| ca == ROOT_CA), format!("{map:?}"))?;
    let described = map.annotations().get("kubernetes.io/description").is_some_and(|d| d.starts_with("Contains a CA"));
    check(described, format!("{map:?}"))?;
    place.leave().await
}

pub async fn what_a_namespace_is_born_with_comes_back(client: Client) -> Outcome {
    let place = Place::new(&client, "reborn").await?;
    let (accounts, maps) = (place.api::<ServiceAccount>(), place.api::<ConfigMap>());
    let first = until_is(&accounts, "default", "is there", |_| true).await?;
    accounts.delete("default", &DeleteParams::default()).await?;
    until_is(&accounts, "default", "is there again", |account| account.uid() != first.uid()).await?;

    let first = until_is(&maps, "kube-root-ca.crt", "is there", |_| true).await?;
    maps.delete("kube-root-ca.crt", &DeleteParams::default()).await?;
    until_is(&maps, "kube-root-ca.crt", "is there again", |map| map.uid() != first.uid()).await?;
    let tampered = json!({"data": {"ca.crt": "forged", "more": "x"}, "metadata": {"annotations": null}});
    merge(&maps, "kube-root-ca.crt", tampered).await?;
    until_is(&maps, "kube-root-ca.crt", "is restored", |map| {
        map.data.as_ref().is_some_and(|d| d.len() == 1 && d["ca.crt"] == ROOT_CA) && !map.annotations().is_empty()
    })
    .await?;
    place.leave().await
}

pub async fn background_deletion_takes_dependents_of_dependents(client: Client) -> Outcome {
    let place = Place::new(&client, "background").await?;
    let (maps, secrets) = (place.api::<ConfigMap>(), place.api::<Secret>());
    let top = place.config_map("top", &[]).await?;
    let middle: Secret =
        serde_json::from_value(json!({"metadata": {"name": "middle", "ownerReferences": [owner(&top)]}}))?;
    let middle = secrets.create(&Default::default(), &middle).await?;
    for i in 0..10 {
        place.config_map(&format!("leaf-{i}"), &[owner(&middle)]).await?;
    }
    place.config_map("bystander", &[]).await?;
    maps.delete("top", &DeleteParams::background()).await?;
    until_gone(&secrets, "middle").await?;
    for i in 0..10 {
        until_gone(&maps, &format!("leaf-{i}")).await?;
    }
    check(exists(&maps, "bystander").await?, "an object without owners was deleted")?;
    place.leave().await
}

pub async fn an_object_whose_owner_never_existed_goes(client: Client) -> Outcome {
    let place = Place::new(&client, "absent").await?;
    let nobody = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "3b3dd0f8-0000-4000-8000-000000000000"});
    place.config_map("lost", &[nobody]).await?;
    until_gone(&place.api::<ConfigMap>(), "lost").await?;
    // The right name with the uid of an earlier object: another owner.
    let top = place.config_map("top", &[]).await?;
    let mut reference = owner(&top);
    reference["uid"] = json!("3b3dd0f8-0000-4000-8000-000000000001");
    place.config_map("mistaken", &[reference]).await?;
    until_gone(&place.api::<ConfigMap>(), "mistaken").await?;
    check(exists(&place.api::<ConfigMap>(), "top").await?, "the object of the same name was deleted")?;
    place.leave().await
}

pub async fn a_remaining_owner_keeps_an_object_and_the_dangling_reference_goes(client: Client) -> Outcome {
    let place = Place::new(&client, "mixed").await?;
    let maps = place.api::<ConfigMap>();
    let (a, b) = (place.config_map("a", &[]).await?, place.config_map("b", &[]).await?);
    place.config_map("both", &[owner(&a), owner(&b)]).await?;
    maps.delete("a", &DeleteParams::background()).await?;
    let names = |map: &ConfigMap| map.owner_references().iter().map(|r| r.name.clone()).collect::<Vec<_>>();
    until_is(&maps, "both", "has one owner", |map| names(map) == ["b"]).await?;
    maps.delete("b", &DeleteParams::foreground()).await?;
    until_gone(&maps, "both").await?;
    until_gone(&maps, "b").await?;
    place.leave().await
}

pub async fn foreground_deletion_waits_for_what_blocks_it(client: Client) -> Outcome {
    let place = Place::new(&client, "foreground").await?;
    let maps = place.api::<ConfigMap>();
    let top = place.config_map("top", &[]).await?;
    let mut loose = owner(&top);
    loose["blockOwnerDeletion"] = json!(false);
    let middle = place.config_map("middle", &[owner(&top)]).await?;
    place.config_map("leaf", &[owner(&middle)]).await?;
    place.config_map("loose", &[loose]).await?;
    merge(&maps, "leaf", hold()).await?;
    merge(&maps, "loose", hold()).await?;
    maps.delete("top", &DeleteParams::foreground()).await?;
    until_is(&maps, "leaf", "is being deleted", |map| map.metadata.deletion_timestamp.is_some()).await?;
    collector_has_caught_up(&place).await?;
    let waiting = |map: &ConfigMap| map.finalizers().iter().any(|f| f == "foregroundDeletion");
    for name in ["top", "middle"] {
        check(waiting(&maps.get(name).await?), format!("{name} did not wait for what blocks it"))?;
    }
    merge(&maps, "leaf", release()).await?;
    for name in ["leaf", "middle", "top"] {
        until_gone(&maps, name).await?;
    }
    check(exists(&maps, "loose").await?, "what does not block was waited for, or lost its finalizer")?;
    merge(&maps, "loose", release()).await?;
    until_gone(&maps, "loose").await?;
    place.leave().await
}

pub async fn orphans_lose_their_reference_and_stay(client: Client) -> Outcome {
    let place = Place::new(&client, "orphan").await?;
    let maps = place.api::<ConfigMap>();
    let top = place.config_map("top", &[]).await?;
    place.config_map("left", &[owner(&top)]).await?;
    place.config_map("right", &[owner(&top)]).await?;
    collector_has_caught_up(&place).await?;
    maps.delete("top", &DeleteParams::orphan()).await?;
    until_gone(&maps, "top").await?;
    collector_has_caught_up(&place).await?;
    for name in ["left", "right"] {
        let map = maps.get(name).await?;
        check(map.owner_references().is_empty() && map.metadata.deletion_timestamp.is_none(), format!("{map:?}"))?;
    }
    place.leave().await
}

pub async fn an_owner_in_another_namespace_is_no_owner(client: Client) -> Outcome {
    let (here, there) = (Place::new(&client, "here").await?, Place::new(&client, "there").await?);
    let top = there.config_map("top", &[]).await?;
    collector_has_caught_up(&there).await?;
    let lost = here.config_map("lost", &[owner(&top)]).await?;
    until_gone(&here.api::<ConfigMap>(), "lost").await?;
    let told = async || {
        let params = ListParams::default().fields(&format!("involvedObject.uid={}", lost.uid().unwrap_or_default()));
        Ok(here.api::<Event>().list(&params).await?.items.into_iter().next())
    };
    let event = until("an event tells", told).await?;
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: {}, name: top, uid: {}] does not exist in namespace {:?}",
        here.name,
        top.uid().unwrap_or_default(),
        here.name
    );
    let said = (event.type_.as_deref(), event.reason.as_deref(), event.message.as_deref());
    check(said == (Some("Warning"), Some("OwnerRefInvalidNamespace"), Some(&message)), format!("{said:?}"))?;
    here.leave().await?;
    there.leave().await
}

fn definition(group: &str) -> Result<(CustomResourceDefinition, ApiResource), Failure> {
    let definition = json!({
        "metadata": {"name": format!("gizmos.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}],
        },
    });
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", "Gizmo"), "gizmos");
    Ok((serde_json::from_value(definition)?, kind))
}

/// Defines a kind and waits until it is served.
async fn define(place: &Place, group: &str) -> Result<ApiResource, Failure> {
    let (definition, kind) = definition(group)?;
    Api::all(place.client.clone()).create(&Default::default(), &definition).await?;
    let served = async || Ok(place.dynamic(&kind).list(&ListParams::default()).await.ok().map(drop));
    until("the new kind is served", served).await?;
    Ok(kind)
}

async fn create_custom(api: &Api<DynamicObject>, body: impl Serialize) -> Result<DynamicObject, Failure> {
    let object: DynamicObject = serde_json::from_value(serde_json::to_value(body)?)?;
    Ok(api.create(&Default::default(), &object).await?)
}

pub async fn custom_resources_own_and_are_owned(client: Client) -> Outcome {
    let place = Place::new(&client, "custom").await?;
    let group = format!("{}.example.com", place.name);
    let kind = define(&place, &group).await?;
    let (gizmos, maps) = (place.dynamic(&kind), place.api::<ConfigMap>());
    let gizmo = |name: &str, owners: Vec<Value>| json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "ownerReferences": owners}});
    let top = create_custom(&gizmos, gizmo("top", vec![])).await?;
    let by_gizmo = |o: &DynamicObject| json!({"apiVersion": kind.api_version, "kind": kind.kind, "name": o.name_any(), "uid": o.uid(), "blockOwnerDeletion": true});
    let middle = place.config_map("middle", &[by_gizmo(&top)]).await?;
    create_custom(&gizmos, gizmo("leaf", vec![owner(&middle)])).await?;
    let free = place.config_map("free", &[]).await?;
    create_custom(&gizmos, gizmo("shared", vec![owner(&middle), owner(&free)])).await?;
    gizmos.delete("top", &DeleteParams::foreground()).await?;
    until_gone(&gizmos, "leaf").await?;
    until_gone(&maps, "middle").await?;
    until_gone(&gizmos, "top").await?;
    until_is(&gizmos, "shared", "has one owner", |g| g.owner_references().len() == 1).await?;
    maps.delete("free", &DeleteParams::orphan()).await?;
    until_gone(&maps, "free").await?;
    until_is(&gizmos, "shared", "has no owner", |g| g.owner_references().is_empty()).await?;

    let shared = gizmos.get("shared").await?;
    place.config_map("last", &[by_gizmo(&shared)]).await?;
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let name = format!("gizmos.{group}");
    // A server takes a moment to empty a kind that is going; the definition's own finalizer does not depend on us.
    definitions.delete(&name, &DeleteParams::default()).await?;
    until_gone(&definitions, &name).await?;
    until_gone(&maps, "last").await?;
    place.leave().await
}

pub async fn a_namespace_goes_with_all_that_is_in_it(client: Client) -> Outcome {
    let place = Place::new(&client, "ends").await?;
    let group = format!("{}.example.com", place.name);
    let kind = define(&place, &group).await?;
    let gizmo = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}});
    create_custom(&place.dynamic(&kind), gizmo).await?;
    for i in 0..20 {
        place.config_map(&format!("map-{i}"), &[]).await?;
    }
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.delete(&place.name, &DeleteParams::default()).await?;
    until_gone(&namespaces, &place.name).await?;
    check(place.dynamic(&kind).list(&ListParams::default()).await?.items.is_empty(), "custom resources were left")?;
    check(place.api::<ConfigMap>().list(&ListParams::default()).await?.items.is_empty(), "config maps were left")?;
    let definitions = Api::<CustomResourceDefinition>::all(client);
    definitions.delete(&format!("gizmos.{group}"), &DeleteParams::default()).await?;
    Ok(())
}

fn condition<'a>(namespace: &'a Namespace, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let all = namespace.status.as_ref()?.conditions.as_ref()?;
    let found = all.iter().find(|c| c.type_ == kind)?;
    Some((&found.status, found.reason.as_deref()?, found.message.as_deref()?))
}

pub async fn a_namespace_waits_for_finalizers_and_says_so(client: Client) -> Outcome {
    let place = Place::new(&client, "held").await?;
    let maps = place.api::<ConfigMap>();
    for name in ["one", "two"] {
        place.config_map(name, &[]).await?;
        merge(&maps, name, hold()).await?;
    }
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.delete(&place.name, &DeleteParams::default()).await?;
    let two = "Some content in the namespace has finalizers remaining: example.com/hold in 2 resource instances";
    let held = until_is(&namespaces, &place.name, "names the finalizers", |ns| {
        condition(ns, "NamespaceFinalizersRemaining") == Some(("True", "SomeFinalizersRemain", two))
    })
    .await?;
    let remaining = "Some resources are remaining: configmaps. has 2 resource instances";
    let expected = [
        (
            "NamespaceDeletionDiscoveryFailure",
            ("False", "ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            ("False", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            ("False", "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        ("NamespaceContentRemaining", ("True", "SomeResourcesRemain", remaining)),
    ];
    for (kind, said) in expected {
        check(condition(&held, kind) == Some(said), format!("{kind}: {:?}", condition(&held, kind)))?;
    }
    check(held.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Terminating"), "not Terminating")?;
    merge(&maps, "one", release()).await?;
    let one = "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    until_is(&namespaces, &place.name, "counts again", |ns| {
        condition(ns, "NamespaceFinalizersRemaining").is_some_and(|(_, _, message)| message == one)
    })
    .await?;
    merge(&maps, "two", release()).await?;
    until_gone(&namespaces, &place.name).await
}

/// The pod is bound to a node that does not exist, so nobody ends it within its grace period.
pub async fn a_namespace_with_a_pod_says_what_remains(client: Client) -> Outcome {
    let place = Place::new(&client, "grace").await?;
    until_is(&place.api::<ServiceAccount>(), "default", "is there", |_| true).await?;
    let pods = place.api::<Pod>();
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "slow"}, "spec": {
        "nodeName": "nowhere", "terminationGracePeriodSeconds": 600, "containers": [{"name": "c", "image": "i"}]}}))?;
    pods.create(&Default::default(), &pod).await?;
    place.config_map("needed", &[]).await?;
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.delete(&place.name, &DeleteParams::default()).await?;
    let remaining = "Some resources are remaining: pods. has 1 resource instances";
    until_is(&namespaces, &place.name, "names the pod", |ns| {
        condition(ns, "NamespaceContentRemaining").is_some_and(|(_, _, message)| message == remaining)
    })
    .await?;
    check(exists(&place.api::<ConfigMap>(), "needed").await?, "other content went before the pods")?;
    let now = DeleteParams::default().grace_period(0);
    pods.delete("slow", &now).await?;
    until_gone(&namespaces, &place.name).await
}

pub async fn aggregated_roles_follow_the_roles_they_select(client: Client) -> Outcome {
    let roles = Api::<ClusterRole>::all(client);
    let label = format!("example.com/aggregate-{}", std::process::id());
    let rule = |verb: &str| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
    let part = |name: &str, verbs: &[&str]| json!({"metadata": {"name": format!("{name}-{}", std::process::id()), "labels": {&*label: "true"}}, "rules": verbs.iter().map(|v| rule(v)).collect::<Vec<_>>()});
    let whole = format!("whole-{}", std::process::id());
    let body = json!({"metadata": {"name": whole}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {&*label: "true"}}]}});
    let verbs = |role: &ClusterRole| -> Vec<String> {
        role.rules.iter().flatten().flat_map(|rule| rule.verbs.clone()).collect()
    };
    roles.create(&Default::default(), &serde_json::from_value(body)?).await?;
    let b = roles.create(&Default::default(), &serde_json::from_value(part("b", &["list", "get"]))?).await?;
    until_is(&roles, &whole, "has the rules of b", |role| verbs(role) == ["list", "get"]).await?;
    let a = roles.create(&Default::default(), &serde_json::from_value(part("a", &["get", "watch"]))?).await?;
    until_is(&roles, &whole, "has the rules of both", |role| verbs(role) == ["get", "watch", "list"]).await?;
    merge(&roles, &b.name_any(), json!({"metadata": {"labels": null}})).await?;
    until_is(&roles, &whole, "has lost the rules of b", |role| verbs(role) == ["get", "watch"]).await?;
    roles.delete(&a.name_any(), &DeleteParams::default()).await?;
    until_is(&roles, &whole, "has no rules", |role| verbs(role).is_empty()).await?;
    for name in [whole, b.name_any()] {
        roles.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

pub async fn events_go_when_their_time_is_over(client: Client) -> Outcome {
    let place = Place::new(&client, "events").await?;
    let events = place.api::<Event>();
    let event = |name: &str| {
        json!({"metadata": {"name": name}, "type": "Normal", "reason": "Tested", "message": "m",
        "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "namespace": place.name}})
    };
    let start = Instant::now();
    events.create(&Default::default(), &serde_json::from_value(event("once"))?).await?;
    events.create(&Default::default(), &serde_json::from_value(event("again"))?).await?;
    tokio::time::sleep(EVENT_TTL / 2).await;
    merge(&events, "again", json!({"count": 2})).await?;
    let rewritten = Instant::now();
    until_gone(&events, "once").await?;
    // Times in objects have whole seconds.
    let slack = Duration::from_secs(1);
    check(start.elapsed() + slack >= EVENT_TTL, format!("gone after {:?}", start.elapsed()))?;
    until_gone(&events, "again").await?;
    check(rewritten.elapsed() + slack >= EVENT_TTL, format!("gone {:?} after its last write", rewritten.elapsed()))?;
    place.leave().await
}
