//! `serviceaccounts/<name>/token`: what `kubectl create token` and kubelets ask for.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequestSpec};
use serde_json::{Value, json};
use usher_env::Ids;
use usher_schema::field::{Errors, Path};

use super::identity::service_account_user;
use super::jwt::{Claims, ISSUER, Kubernetes, Lookup, Reference, SigningKey};
use super::refusal::Refusal;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const DEFAULT_SECS: i64 = 3600;
const MIN_SECS: i64 = 600;
const MAX_SECS: i64 = 1 << 32;
/// Kubelets ask for exactly this much for pods; such a token is made to live a year and says when it is stale, for
/// clients that read their token file once.
const POD_SECS: i64 = 3607;
const POD_EXTENDED_SECS: i64 = 365 * 24 * 3600;

/// Whose token.
#[derive(Clone, Copy, Debug)]
pub struct ServiceAccount<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// What the token dies with, besides its ServiceAccount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    #[default]
    Nothing,
    Pod {
        pod: Reference,
        /// Where it runs; told in the token, not a condition of it.
        node: Option<Reference>,
    },
    Secret(Reference),
    Node(Reference),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    pub token: String,
    /// As the requester is told; a pod's token may live longer.
    pub expires: Timestamp,
}

/// Answers a TokenRequest for the ServiceAccount of the path; `now` is cut to seconds.
pub fn create(
    body: &Value,
    namespace: &str,
    name: &str,
    lookup: &dyn Lookup,
    key: &SigningKey,
    now: Timestamp,
    ids: &Ids,
) -> Result<Value, Refusal> {
    let metadata = |field: &str| body["metadata"][field].as_str().unwrap_or_default();
    must_match("name", metadata("name"), name, name)?;
    must_match("namespace", metadata("namespace"), namespace, name)?;
    let account = lookup
        .service_account(namespace, name)
        .ok_or_else(|| Refusal::NotFound { resource: "serviceaccounts".to_owned(), name: name.to_owned() })?;
    if !metadata("uid").is_empty() && metadata("uid") != account.uid {
        return Err(Refusal::Conflict {
            resource: format!("{KIND}.{GROUP}"),
            name: name.to_owned(),
            why: format!(
                "the UID in the token request ({}) does not match the UID of the service account ({})",
                metadata("uid"),
                account.uid
            ),
        });
    }
    let mut spec: TokenRequestSpec = match &body["spec"] {
        Value::Null => TokenRequestSpec::default(),
        spec => serde_json::from_value(spec.clone()).map_err(|error| Refusal::BadRequest(error.to_string()))?,
    };
    set_defaults(&mut spec);
    let errors = validate(&spec);
    if !errors.is_empty() {
        return Err(Refusal::Invalid { group: GROUP, kind: KIND, name: String::new(), errors });
    }
    let bound = match &spec.bound_object_ref {
        Some(reference) => bind(reference, namespace, name, lookup)?,
        None => Bound::Nothing,
    };
    let account = ServiceAccount { namespace, name, uid: &account.uid };
    let issued = issue(&spec, account, &bound, key, now, ids).map_err(Refusal::Internal)?;
    let created = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Ok(json!({
        "kind": KIND,
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": name, "namespace": namespace, "uid": account.uid, "creationTimestamp": created.to_string(),
        },
        "spec": spec,
        "status": {"token": issued.token, "expirationTimestamp": issued.expires.to_string()},
    }))
}

/// Audiences and lifetime that are not asked for.
pub fn set_defaults(spec: &mut TokenRequestSpec) {
    if spec.audiences.as_deref().unwrap_or_default().is_empty() {
        spec.audiences = Some(vec![ISSUER.to_owned()]);
    }
    spec.expiration_seconds.get_or_insert(DEFAULT_SECS);
}

pub fn validate(spec: &TokenRequestSpec) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    let secs = spec.expiration_seconds.unwrap_or(DEFAULT_SECS);
    if secs < MIN_SECS {
        errors.invalid(&path.child("expirationSeconds"), secs, "may not specify a duration less than 10 minutes");
    }
    if secs > MAX_SECS {
        errors.invalid(&path.child("expirationSeconds"), secs, "may not specify a duration larger than 2^32 seconds");
    }
    match &spec.attestations {
        Some(attestations) if !attestations.is_empty() => {
            let mut only = Errors::new();
            let why = "attestations may only be specified with a webhook bound object reference";
            only.invalid(&path.child("attestations"), json!(attestations), why);
            only
        }
        _ => errors,
    }
}

/// The token, and when it ends. The spec has passed [`set_defaults`] and [`validate`].
pub fn issue(
    spec: &TokenRequestSpec,
    account: ServiceAccount,
    bound: &Bound,
    key: &SigningKey,
    now: Timestamp,
    ids: &Ids,
) -> Result<Issued, String> {
    let from = now.as_second();
    let asked = spec.expiration_seconds.unwrap_or(DEFAULT_SECS).clamp(MIN_SECS, MAX_SECS);
    let audiences = spec.audiences.clone().filter(|list| !list.is_empty()).unwrap_or_else(|| vec![ISSUER.to_owned()]);
    let extend =
        matches!(bound, Bound::Pod { .. }) && asked == POD_SECS && audiences.iter().all(|audience| audience == ISSUER);
    let lives = if extend { POD_EXTENDED_SECS } else { asked };
    let (pod, secret, node) = match bound {
        Bound::Nothing => (None, None, None),
        Bound::Pod { pod, node } => (Some(pod.clone()), None, node.clone()),
        Bound::Secret(secret) => (None, Some(secret.clone()), None),
        Bound::Node(node) => (None, None, Some(node.clone())),
    };
    let claims = Claims {
        aud: audiences,
        exp: from.saturating_add(lives),
        iat: from,
        iss: ISSUER.to_owned(),
        jti: ids.uid(),
        kubernetes: Kubernetes {
            namespace: account.namespace.to_owned(),
            serviceaccount: Reference::new(account.name, account.uid),
            pod,
            secret,
            node,
            warnafter: extend.then(|| from.saturating_add(asked)),
        },
        nbf: from,
        sub: service_account_user(account.namespace, account.name),
    };
    let expires = Timestamp::from_second(from.saturating_add(asked)).map_err(|error| error.to_string())?;
    let token = key.sign(&claims).map_err(|error| format!("failed to generate token: {error}"))?;
    Ok(Issued { token, expires })
}

fn must_match(field: &str, found: &str, wanted: &str, name: &str) -> Result<(), Refusal> {
    if found.is_empty() || found == wanted {
        return Ok(());
    }
    let mut errors = Errors::new();
    let why = format!("must match the service account {field} if specified");
    errors.invalid(&Path::new("metadata").child(field), found, why);
    Err(Refusal::Invalid { group: GROUP, kind: KIND, name: name.to_owned(), errors })
}

fn bind(
    reference: &BoundObjectReference,
    namespace: &str,
    account: &str,
    lookup: &dyn Lookup,
) -> Result<Bound, Refusal> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (api_version, kind, name) = (text(&reference.api_version), text(&reference.kind), text(&reference.name));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let missing = |resource: &str| Refusal::NotFound { resource: resource.to_owned(), name: name.clone() };
    let (bound, uid) = match (group, kind.as_str()) {
        ("", "Pod") => {
            let pod = lookup.pod(namespace, &name).ok_or_else(|| missing("pods"))?;
            if pod.service_account != account {
                return Err(Refusal::BadRequest(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            let uid_of = |node: &str| lookup.node(node).map(|live| live.uid).unwrap_or_default();
            let node = (!pod.node.is_empty()).then(|| Reference::new(&pod.node, &uid_of(&pod.node)));
            (Bound::Pod { pod: Reference::new(&name, &pod.live.uid), node }, pod.live.uid)
        }
        ("", "Secret") => {
            let secret = lookup.secret(namespace, &name).ok_or_else(|| missing("secrets"))?;
            (Bound::Secret(Reference::new(&name, &secret.uid)), secret.uid)
        }
        ("", "Node") => {
            let node = lookup.node(&name).ok_or_else(|| missing("nodes"))?;
            (Bound::Node(Reference::new(&name, &node.uid)), node.uid)
        }
        _ => {
            let why = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Refusal::BadRequest(why));
        }
    };
    let wanted = text(&reference.uid);
    if wanted.is_empty() || wanted == uid {
        return Ok(bound);
    }
    Err(Refusal::Conflict {
        resource: kind,
        name,
        why: format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::jwt::tests::{World, key, now};
    use crate::auth::jwt::verify;
    use jiff::SignedDuration;

    fn ask(world: &World, key: &SigningKey, body: Value) -> Result<Value, Refusal> {
        create(&body, "ns", "bot", world, key, now() + SignedDuration::from_millis(700), &Ids::seeded(1))
    }

    fn claims_of(key: &SigningKey, answer: &Value, audience: &str) -> Claims {
        let token = answer["status"]["token"].as_str().unwrap();
        verify(token, &[key.public().clone()], &[audience.to_owned()], now()).unwrap().claims
    }

    #[test]
    fn an_empty_request_gets_an_hour_for_this_server() {
        let key = key();
        let answer = ask(&World::new(), &key, json!({})).unwrap();
        assert_eq!(answer["spec"], json!({"audiences": [ISSUER], "expirationSeconds": 3600}));
        assert_eq!(answer["status"]["expirationTimestamp"], "2026-01-01T01:00:00Z");
        assert_eq!(
            answer["metadata"],
            json!({"name": "bot", "namespace": "ns", "uid": "sa-uid", "creationTimestamp": "2026-01-01T00:00:00Z"})
        );
        let claims = claims_of(&key, &answer, ISSUER);
        assert_eq!((claims.iat, claims.nbf, claims.exp), (1767225600, 1767225600, 1767229200));
        assert_eq!(claims.jti.len(), 36);
        assert_eq!(claims.kubernetes.serviceaccount, Reference::new("bot", "sa-uid"));
        assert_eq!(claims.kubernetes.warnafter, None);
    }

    #[test]
    fn lifetimes_have_bounds() {
        let refused =
            |secs: i64| ask(&World::new(), &key(), json!({"spec": {"expirationSeconds": secs}})).unwrap_err().message();
        assert_eq!(
            refused(599),
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not \
             specify a duration less than 10 minutes"
        );
        assert!(refused((1 << 32) + 1).ends_with("may not specify a duration larger than 2^32 seconds"));
        assert!(refused(i64::MIN).contains("less than 10 minutes"));
        for good in [600_i64, 1 << 32] {
            assert!(ask(&World::new(), &key(), json!({"spec": {"expirationSeconds": good}})).is_ok());
        }
    }

    #[test]
    fn a_pods_token_knows_its_node_and_lives_on_with_a_warning() {
        let key = key();
        let body = json!({"spec": {
            "expirationSeconds": 3607,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid"},
        }});
        let answer = ask(&World::new(), &key, body.clone()).unwrap();
        assert_eq!(answer["status"]["expirationTimestamp"], "2026-01-01T01:00:07Z");
        let claims = claims_of(&key, &answer, ISSUER);
        assert_eq!(claims.exp - claims.iat, 365 * 24 * 3600);
        assert_eq!(claims.kubernetes.warnafter, Some(claims.iat + 3607));
        assert_eq!(claims.kubernetes.pod, Some(Reference::new("p", "pod-uid")));
        assert_eq!(claims.kubernetes.node, Some(Reference::new("n", "node-uid")));

        let mut elsewhere = body;
        elsewhere["spec"]["audiences"] = json!(["vault"]);
        let claims = claims_of(&key, &ask(&World::new(), &key, elsewhere).unwrap(), "vault");
        assert_eq!((claims.exp - claims.iat, claims.kubernetes.warnafter), (3607, None));
    }

    #[test]
    fn a_token_is_bound_only_to_what_is_there() {
        let refused = |world: &World, reference: Value| {
            ask(world, &key(), json!({"spec": {"boundObjectRef": reference}})).unwrap_err()
        };
        let (world, v1) = (World::new(), "v1");
        assert_eq!(
            refused(&world, json!({"apiVersion": v1, "kind": "Pod", "name": "x"})).message(),
            "pods \"x\" not found"
        );
        assert_eq!(
            refused(&world, json!({"apiVersion": "batch/v1", "kind": "Job", "name": "x"})).message(),
            "cannot bind token to object of type batch/v1, Kind=Job"
        );
        let stale = refused(&world, json!({"apiVersion": v1, "kind": "Secret", "name": "s", "uid": "old"}));
        assert_eq!(
            stale.message(),
            "Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference (old) does not match \
             the UID in record. The object might have been deleted and then recreated"
        );
        let mut other = World::new();
        other.pod.as_mut().unwrap().service_account = "someone".to_owned();
        assert_eq!(
            refused(&other, json!({"apiVersion": v1, "kind": "Pod", "name": "p"})).message(),
            "cannot bind token for serviceaccount \"bot\" to pod running with different serviceaccount name."
        );
        let ok = |kind: &str, name: &str| {
            let body = json!({"spec": {"boundObjectRef": {"apiVersion": v1, "kind": kind, "name": name}}});
            ask(&world, &key(), body).is_ok()
        };
        assert!(ok("Secret", "s") && ok("Node", "n") && ok("Pod", "p"));
    }

    #[test]
    fn the_body_must_be_about_the_account_of_the_path() {
        let refused = |body: Value| ask(&World::new(), &key(), body).unwrap_err().message();
        assert_eq!(
            refused(json!({"metadata": {"name": "x"}})),
            "TokenRequest.authentication.k8s.io \"bot\" is invalid: metadata.name: Invalid value: \"x\": must match the \
             service account name if specified"
        );
        assert!(
            refused(json!({"metadata": {"uid": "x"}}))
                .contains("(x) does not match the UID of the service account (sa-uid)")
        );
        assert!(
            refused(json!({"spec": {"attestations": {"a": ["b"]}}})).contains("may only be specified with a webhook")
        );
        assert!(matches!(ask(&World::new(), &key(), json!({"spec": 7})), Err(Refusal::BadRequest(_))));
        let gone = World { service_account: None, ..World::new() };
        assert_eq!(ask(&gone, &key(), json!({})).unwrap_err().message(), "serviceaccounts \"bot\" not found");
    }
}
