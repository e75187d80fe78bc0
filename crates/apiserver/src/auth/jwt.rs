//! ServiceAccount tokens: JSON Web Tokens signed with ES256 by the server's own key.
//!
//! Only what this module wrote passes [`verify`]: one algorithm, keys found by their id, every claim typed. A token that is
//! well signed names a ServiceAccount as it was when the token was made; whether it still exists (and the pod, secret or
//! node the token was bound to) is asked of the store through [`Lookup`]. Requests for tokens are in
//! [`super::token_request`].

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::identity::{CREDENTIAL_ID, User, service_account_user};
use super::refusal::quote_list;

/// Who signs the tokens, and (the same) whom they are for unless they say otherwise.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
pub const OPENID_PATH: &str = "/.well-known/openid-configuration";
pub const JWKS_PATH: &str = "/openid/v1/jwks";
/// Content type of [`jwks`].
pub const JWKS_TYPE: &str = "application/jwk-set+json";

/// Longer texts are not looked at: no token of ours is.
const MAX_BYTES: usize = 64 * 1024;
/// How far clocks may be apart.
const LEEWAY: SignedDuration = SignedDuration::from_secs(60);
/// What a P-256 public key begins with in an X.509 SubjectPublicKeyInfo.
const P256_INFO: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The key tokens are signed with.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    public: VerifyingKey,
}

/// A key tokens are verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyingKey {
    id: String,
    /// Uncompressed point: 0x04, x, y.
    point: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an ECDSA P-256 key in PKCS#8: {0}")]
pub struct KeyError(String);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public.id)
    }
}

impl SigningKey {
    pub fn from_pkcs8(der: &[u8]) -> Result<SigningKey, KeyError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &SystemRandom::new())
            .map_err(|error| KeyError(error.to_string()))?;
        let public = VerifyingKey::new(pair.public_key().as_ref());
        Ok(SigningKey { pair, public })
    }

    pub fn from_pem(pem: &str) -> Result<SigningKey, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| KeyError(error.to_string()))?;
        SigningKey::from_pkcs8(der.secret_pkcs8_der())
    }

    /// The `kid` of its tokens.
    pub fn id(&self) -> &str {
        &self.public.id
    }

    pub fn public(&self) -> &VerifyingKey {
        &self.public
    }

    /// The token for these claims. Fails only when the system has no random numbers.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let payload = serde_json::to_vec(claims).map_err(|error| KeyError(error.to_string()))?;
        self.sign_raw(&json!({"alg": "ES256", "kid": self.id(), "typ": "JWT"}), &payload)
    }

    fn sign_raw(&self, header: &Value, payload: &[u8]) -> Result<String, KeyError> {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(payload));
        let signature = self
            .pair
            .sign(&SystemRandom::new(), text.as_bytes())
            .map_err(|_| KeyError("the system has no random numbers".to_owned()))?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }
}

impl VerifyingKey {
    fn new(point: &[u8]) -> VerifyingKey {
        let info = [&P256_INFO[..], point].concat();
        VerifyingKey { id: URL_SAFE_NO_PAD.encode(digest(&SHA256, &info).as_ref()), point: point.to_vec() }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// `sa.pub`.
    pub fn pem(&self) -> String {
        let text = STANDARD.encode([&P256_INFO[..], &self.point].concat());
        let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.point.get(1..).map_or((&[][..], &[][..]), |xy| xy.split_at(xy.len() / 2));
        json!({
            "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        })
    }
}

/// The document at [`JWKS_PATH`].
pub fn jwks(keys: &[VerifyingKey]) -> Value {
    json!({"keys": keys.iter().map(VerifyingKey::jwk).collect::<Vec<_>>()})
}

/// The document at [`OPENID_PATH`]; `address` is where clients reach this server, `host:port`.
pub fn openid_configuration(address: &str) -> Value {
    json!({
        "issuer": ISSUER,
        "jwks_uri": format!("https://{address}{JWKS_PATH}"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// What a token says. Fields are in the order they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Kubernetes,
    pub nbf: i64,
    pub sub: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kubernetes {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    /// Set where the token lives longer than was asked for: after this it is stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    /// Empty for a node that was gone when the token was made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Reference {
    pub fn new(name: &str, uid: &str) -> Reference {
        Reference { name: name.to_owned(), uid: uid.to_owned() }
    }
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    })
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// Not a token of this server's at all: something else may know it.
    #[error("not a service account token")]
    NotOurs,
    #[error("unexpected signature algorithm {0:?}; expected [\"ES256\"]")]
    Algorithm(String),
    #[error("unsupported token header: {0}")]
    Header(String),
    #[error("invalid signature, no keys found")]
    NoKey,
    #[error("invalid signature")]
    Signature,
    #[error("service account token claims could not be validated: {0}")]
    Claims(String),
    #[error("token audiences {} is invalid for the target audiences {}", quote_list(token), quote_list(wanted))]
    Audience { token: Vec<String>, wanted: Vec<String> },
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is issued in the future")]
    FromTheFuture,
    /// The ServiceAccount, or what the token was bound to, is gone or another one now.
    #[error("{0}")]
    Gone(String),
}

/// A token whose signature, times, issuer and audience are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub claims: Claims,
    /// Those of the wanted audiences that the token is for.
    pub audiences: Vec<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    typ: Option<String>,
    #[serde(default)]
    crit: Option<Value>,
}

/// Checks everything about a token that can be checked without the store.
pub fn verify(token: &str, keys: &[VerifyingKey], wanted: &[String], now: Timestamp) -> Result<Verified, Reject> {
    let (text, header, payload, signature) = parts(token).ok_or(Reject::NotOurs)?;
    let header: Header = serde_json::from_slice(&header).map_err(|_| Reject::NotOurs)?;
    if unverified_issuer(&payload).as_deref() != Some(ISSUER) {
        return Err(Reject::NotOurs);
    }
    check_header(&header)?;
    check_signature(text, &signature, header.kid.as_deref(), keys)?;

    let claims: Claims = serde_json::from_slice(&payload).map_err(|error| Reject::Claims(error.to_string()))?;
    if claims.sub != service_account_user(&claims.kubernetes.namespace, &claims.kubernetes.serviceaccount.name) {
        return Err(Reject::Claims("the subject is not the service account".to_owned()));
    }
    let audiences: Vec<String> = wanted.iter().filter(|audience| claims.aud.contains(audience)).cloned().collect();
    if audiences.is_empty() {
        return Err(Reject::Audience { token: claims.aud, wanted: wanted.to_vec() });
    }
    check_times(&claims, now)?;
    Ok(Verified { claims, audiences })
}

type Parts<'a> = (&'a str, Vec<u8>, Vec<u8>, Vec<u8>);

/// The signed text and the three decoded parts.
fn parts(token: &str) -> Option<Parts<'_>> {
    if token.len() > MAX_BYTES {
        return None;
    }
    let (text, signature) = token.rsplit_once('.')?;
    let (header, payload) = text.split_once('.')?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    Some((text, decode(header)?, decode(payload)?, decode(signature)?))
}

fn unverified_issuer(payload: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    serde_json::from_slice::<Issuer>(payload).ok().map(|issuer| issuer.iss)
}

fn check_header(header: &Header) -> Result<(), Reject> {
    if header.alg != "ES256" {
        return Err(Reject::Algorithm(header.alg.clone()));
    }
    if header.crit.is_some() {
        return Err(Reject::Header("it has critical extensions".to_owned()));
    }
    match &header.typ {
        Some(typ) if !typ.eq_ignore_ascii_case("JWT") => Err(Reject::Header(format!("typ {typ:?} is not JWT"))),
        _ => Ok(()),
    }
}

fn check_signature(text: &str, signature: &[u8], kid: Option<&str>, keys: &[VerifyingKey]) -> Result<(), Reject> {
    let mut candidates = keys.iter().filter(|key| kid.is_none_or(|kid| kid.is_empty() || kid == key.id)).peekable();
    if candidates.peek().is_none() {
        return Err(Reject::NoKey);
    }
    let signed = |key: &VerifyingKey| {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &key.point).verify(text.as_bytes(), signature).is_ok()
    };
    if candidates.any(signed) { Ok(()) } else { Err(Reject::Signature) }
}

fn check_times(claims: &Claims, now: Timestamp) -> Result<(), Reject> {
    let (now, leeway) = (now.as_second(), LEEWAY.as_secs());
    if now.saturating_add(leeway) < claims.nbf {
        return Err(Reject::NotYet);
    }
    if now.saturating_sub(leeway) > claims.exp {
        return Err(Reject::Expired);
    }
    if now.saturating_add(leeway) < claims.iat {
        return Err(Reject::FromTheFuture);
    }
    Ok(())
}

/// What the store has under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub uid: String,
    /// `metadata.deletionTimestamp`.
    pub deleted_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LivePod {
    pub live: Live,
    /// `spec.serviceAccountName`.
    pub service_account: String,
    /// `spec.nodeName`; empty until it is bound.
    pub node: String,
}

/// The few things about stored objects that tokens depend on.
pub trait Lookup {
    fn service_account(&self, namespace: &str, name: &str) -> Option<Live>;
    fn pod(&self, namespace: &str, name: &str) -> Option<LivePod>;
    fn secret(&self, namespace: &str, name: &str) -> Option<Live>;
    fn node(&self, name: &str) -> Option<Live>;
}

impl Verified {
    /// Whether the ServiceAccount and the object the token is bound to are still the same ones.
    pub fn check_live(&self, lookup: &dyn Lookup, now: Timestamp) -> Result<(), Reject> {
        let Kubernetes { namespace, serviceaccount, pod, secret, node, warnafter: _ } = &self.claims.kubernetes;
        let name = &serviceaccount.name;
        let gone = |why: String| Err(Reject::Gone(why));
        // What is deleted but waits for its finalizers lets its tokens in for as long as clocks may differ.
        let deleted = |live: &Live| live.deleted_at.is_some_and(|at| at < now - LEEWAY);
        match lookup.service_account(namespace, name) {
            None => return gone(format!("serviceaccounts {name:?} not found")),
            Some(live) if live.uid != serviceaccount.uid => {
                return gone(format!(
                    "service account UID ({}) does not match claim ({})",
                    live.uid, serviceaccount.uid
                ));
            }
            Some(live) if deleted(&live) => {
                return gone(format!("service account {namespace}/{name} has been deleted"));
            }
            Some(_) => {}
        }
        let bound = |kind: &str, reference: &Reference, found: Option<Live>| match found {
            Some(live) if live.uid != reference.uid => gone(format!(
                "{kind} UID ({}) does not match service account {} ref claim ({})",
                live.uid,
                kind.to_lowercase(),
                reference.uid
            )),
            Some(live) if !deleted(&live) => Ok(()),
            _ => gone("service account token has been invalidated".to_owned()),
        };
        if let Some(secret) = secret {
            bound("secret", secret, lookup.secret(namespace, &secret.name))?;
        }
        match (pod, node) {
            // A pod's token names the pod's node too; that is information, not a condition.
            (Some(pod), _) => bound("pod", pod, lookup.pod(namespace, &pod.name).map(|pod| pod.live)),
            (None, Some(node)) => bound("node", node, lookup.node(&node.name)),
            (None, None) => Ok(()),
        }
    }

    /// The user this token stands for.
    pub fn user(&self) -> User {
        let Kubernetes { namespace, serviceaccount, pod, secret: _, node, warnafter: _ } = &self.claims.kubernetes;
        let mut extra = BTreeMap::new();
        let mut set = |key: &str, value: &str| _ = extra.insert(key.to_owned(), vec![value.to_owned()]);
        if !self.claims.jti.is_empty() {
            set(CREDENTIAL_ID, &format!("JTI={}", self.claims.jti));
        }
        if let Some(pod) = pod {
            set("authentication.kubernetes.io/pod-name", &pod.name);
            set("authentication.kubernetes.io/pod-uid", &pod.uid);
        }
        if let Some(node) = node {
            set("authentication.kubernetes.io/node-name", &node.name);
            if !node.uid.is_empty() {
                set("authentication.kubernetes.io/node-uid", &node.uid);
            }
        }
        let user = User::service_account(namespace, &serviceaccount.name, &serviceaccount.uid);
        User { extra, ..user }.authenticated()
    }
}

#[cfg(test)]
pub(crate) mod tests;
