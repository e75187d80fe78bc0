use super::*;
use crate::auth::identity::AUTHENTICATED;

pub(crate) fn key() -> SigningKey {
    SigningKey::from_pkcs8(rcgen::KeyPair::generate().unwrap().serialized_der()).unwrap()
}

pub(crate) fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn claims() -> Claims {
    let at = now().as_second();
    Claims {
        aud: vec![ISSUER.to_owned()],
        exp: at + 3600,
        iat: at,
        iss: ISSUER.to_owned(),
        jti: "id-1".to_owned(),
        kubernetes: Kubernetes {
            namespace: "ns".to_owned(),
            serviceaccount: Reference::new("bot", "sa-uid"),
            pod: Some(Reference::new("p", "pod-uid")),
            node: Some(Reference::new("n", "node-uid")),
            ..Kubernetes::default()
        },
        nbf: at,
        sub: "system:serviceaccount:ns:bot".to_owned(),
    }
}

fn us() -> Vec<String> {
    vec![ISSUER.to_owned()]
}

fn check(key: &SigningKey, token: &str) -> Result<Verified, Reject> {
    verify(token, &[key.public().clone()], &us(), now())
}

/// A world where everything of [`claims`] lives.
#[derive(Clone)]
pub(crate) struct World {
    pub service_account: Option<Live>,
    pub pod: Option<LivePod>,
    pub secret: Option<Live>,
    pub node: Option<Live>,
}

impl World {
    pub fn new() -> World {
        let live = |uid: &str| Live { uid: uid.to_owned(), deleted_at: None };
        World {
            service_account: Some(live("sa-uid")),
            pod: Some(LivePod { live: live("pod-uid"), service_account: "bot".to_owned(), node: "n".to_owned() }),
            secret: Some(live("secret-uid")),
            node: Some(live("node-uid")),
        }
    }
}

impl Lookup for World {
    fn service_account(&self, namespace: &str, name: &str) -> Option<Live> {
        self.service_account.clone().filter(|_| (namespace, name) == ("ns", "bot"))
    }
    fn pod(&self, namespace: &str, name: &str) -> Option<LivePod> {
        self.pod.clone().filter(|_| (namespace, name) == ("ns", "p"))
    }
    fn secret(&self, namespace: &str, name: &str) -> Option<Live> {
        self.secret.clone().filter(|_| (namespace, name) == ("ns", "s"))
    }
    fn node(&self, name: &str) -> Option<Live> {
        self.node.clone().filter(|_| name == "n")
    }
}

#[test]
fn a_signed_token_verifies_and_gives_its_user() {
    let key = key();
    let token = key.sign(&claims()).unwrap();
    let verified = check(&key, &token).unwrap();
    assert_eq!(verified.claims, claims());
    assert_eq!(verified.audiences, us());
    let user = verified.user();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:serviceaccount:ns:bot", "sa-uid"));
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED]);
    let extra: Vec<(&str, &str)> = user.extra.iter().map(|(key, value)| (key.as_str(), value[0].as_str())).collect();
    assert_eq!(
        extra,
        [
            ("authentication.kubernetes.io/credential-id", "JTI=id-1"),
            ("authentication.kubernetes.io/node-name", "n"),
            ("authentication.kubernetes.io/node-uid", "node-uid"),
            ("authentication.kubernetes.io/pod-name", "p"),
            ("authentication.kubernetes.io/pod-uid", "pod-uid"),
        ]
    );
}

#[test]
fn the_header_names_the_key_and_the_payload_is_upstreams() {
    let key = key();
    let token = key.sign(&claims()).unwrap();
    let (_, header, payload, signature) = parts(&token).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    assert_eq!(header, json!({"alg": "ES256", "kid": key.id(), "typ": "JWT"}));
    assert_eq!(signature.len(), 64);
    assert_eq!(
        String::from_utf8(payload).unwrap(),
        "{\"aud\":[\"https://kubernetes.default.svc.cluster.local\"],\"exp\":1767229200,\"iat\":1767225600,\
         \"iss\":\"https://kubernetes.default.svc.cluster.local\",\"jti\":\"id-1\",\"kubernetes.io\":{\
         \"namespace\":\"ns\",\"node\":{\"name\":\"n\",\"uid\":\"node-uid\"},\"pod\":{\"name\":\"p\",\"uid\":\"pod-uid\"},\
         \"serviceaccount\":{\"name\":\"bot\",\"uid\":\"sa-uid\"}},\"nbf\":1767225600,\"sub\":\"system:serviceaccount:ns:bot\"}"
    );
}

#[test]
fn a_token_without_signature_or_with_another_algorithm_is_refused() {
    let key = key();
    let payload = serde_json::to_vec(&claims()).unwrap();
    for alg in ["none", "None", "HS256", "RS256", "ES384", "es256", ""] {
        let header = json!({"alg": alg, "kid": key.id()});
        let signed = key.sign_raw(&header, &payload).unwrap();
        assert_eq!(check(&key, &signed), Err(Reject::Algorithm(alg.to_owned())), "{alg}");
        let (text, _) = signed.rsplit_once('.').unwrap();
        assert!(check(&key, &format!("{text}.")).is_err(), "{alg}");
    }
    let token = key.sign(&claims()).unwrap();
    let (text, _) = token.rsplit_once('.').unwrap();
    assert_eq!(check(&key, &format!("{text}.")), Err(Reject::Signature));
    // A signature keyed with our public key, as if it were a shared secret.
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key.public().point);
    let body = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": key.id()}).to_string()),
        URL_SAFE_NO_PAD.encode(&payload)
    );
    let tag = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, body.as_bytes()).as_ref());
    assert_eq!(check(&key, &format!("{body}.{tag}")), Err(Reject::Algorithm("HS256".to_owned())));
}

#[test]
fn a_token_signed_by_another_key_is_refused_whatever_it_calls_itself() {
    let (ours, theirs) = (key(), key());
    assert_eq!(check(&ours, &theirs.sign(&claims()).unwrap()), Err(Reject::NoKey));
    let payload = serde_json::to_vec(&claims()).unwrap();
    for kid in [json!(ours.id()), json!(""), json!(null)] {
        let forged = theirs.sign_raw(&json!({"alg": "ES256", "kid": kid}), &payload).unwrap();
        assert_eq!(check(&ours, &forged), Err(Reject::Signature), "{kid}");
    }
    let unnamed = ours.sign_raw(&json!({"alg": "ES256"}), &payload).unwrap();
    assert!(check(&ours, &unnamed).is_ok(), "a token without key id is tried with every key");
}

#[test]
fn a_changed_token_is_refused() {
    let key = key();
    let token = key.sign(&claims()).unwrap();
    let (text, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = text.split_once('.').unwrap();
    let mut other = claims();
    other.kubernetes.serviceaccount = Reference::new("admin", "x");
    other.sub = "system:serviceaccount:ns:admin".to_owned();
    let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&other).unwrap());
    assert_eq!(check(&key, &format!("{header}.{payload}.{signature}")), Err(Reject::Signature));
    for i in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[i] = if bytes[i] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(check(&key, &changed).is_err(), "byte {i}");
    }
}

#[test]
fn times_are_kept_with_a_minutes_grace() {
    let key = key();
    let token = key.sign(&claims()).unwrap();
    let at = |seconds: i64| {
        verify(&token, &[key.public().clone()], &us(), now() + SignedDuration::from_secs(seconds)).map(|_| ())
    };
    assert_eq!(at(-61), Err(Reject::NotYet));
    assert_eq!(at(-60), Ok(()));
    assert_eq!(at(3660), Ok(()));
    assert_eq!(at(3661), Err(Reject::Expired));
    let mut future = claims();
    future.nbf -= 1000;
    future.iat += 100;
    assert_eq!(check(&key, &key.sign(&future).unwrap()), Err(Reject::FromTheFuture));
    for extreme in [i64::MIN, i64::MAX] {
        let mut odd = claims();
        (odd.nbf, odd.exp, odd.iat) = (extreme, extreme, extreme);
        assert!(check(&key, &key.sign(&odd).unwrap()).is_err());
    }
}

#[test]
fn a_token_is_good_for_its_audiences_only() {
    let key = key();
    let mut for_vault = claims();
    for_vault.aud = vec!["vault".to_owned(), "other".to_owned()];
    let token = key.sign(&for_vault).unwrap();
    assert_eq!(
        check(&key, &token).unwrap_err().to_string(),
        "token audiences [\"vault\" \"other\"] is invalid for the target audiences \
         [\"https://kubernetes.default.svc.cluster.local\"]"
    );
    let wanted = ["x".to_owned(), "vault".to_owned()];
    assert_eq!(verify(&token, &[key.public().clone()], &wanted, now()).unwrap().audiences, ["vault"]);
    assert!(matches!(verify(&token, &[key.public().clone()], &[], now()), Err(Reject::Audience { .. })));
    let mut plain = serde_json::to_value(claims()).unwrap();
    plain["aud"] = json!(ISSUER);
    let header = json!({"alg": "ES256", "kid": key.id()});
    assert!(
        check(&key, &key.sign_raw(&header, plain.to_string().as_bytes()).unwrap()).is_ok(),
        "one audience as a string"
    );
    plain["aud"] = json!([]);
    assert!(check(&key, &key.sign_raw(&header, plain.to_string().as_bytes()).unwrap()).is_err());
}

#[test]
fn other_issuers_tokens_and_rubbish_are_not_ours() {
    let key = key();
    let mut foreign = claims();
    foreign.iss = "https://example.com".to_owned();
    let deep = "[".repeat(20_000);
    let nested = format!("{}.{}.AA", URL_SAFE_NO_PAD.encode(&deep), URL_SAFE_NO_PAD.encode(&deep));
    let huge = format!("{}.{}.{}", "A".repeat(1 << 20), "A".repeat(1 << 20), "A".repeat(1 << 20));
    let not_utf8 = format!("{0}.{0}.{0}", URL_SAFE_NO_PAD.encode([0xff, 0xfe, 0x00]));
    for token in [
        key.sign(&foreign).unwrap().as_str(),
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "{\"payload\":\"\"}",
        "ключ.ключ.ключ",
        "\u{0}",
        &nested,
        &huge,
        &not_utf8,
        &format!("{}=", key.sign(&claims()).unwrap()),
        &format!(" {}", key.sign(&claims()).unwrap()),
        &format!("{}.x", key.sign(&claims()).unwrap()),
    ] {
        assert_eq!(check(&key, token), Err(Reject::NotOurs), "{}", &token.chars().take(80).collect::<String>());
    }
}

#[test]
fn claims_of_the_wrong_type_and_odd_headers_are_refused() {
    let key = key();
    let good = serde_json::to_value(claims()).unwrap();
    let header = json!({"alg": "ES256", "kid": key.id()});
    for (field, value) in [
        ("exp", json!("never")),
        ("exp", json!(1e300)),
        ("exp", json!(null)),
        ("nbf", json!(u64::MAX)),
        ("sub", json!("system:serviceaccount:ns:other")),
        ("sub", json!(7)),
        ("aud", json!({"a": 1})),
        ("kubernetes.io", json!([])),
        ("kubernetes.io", json!({"namespace": "ns"})),
        ("jti", json!({})),
    ] {
        let mut bad = good.clone();
        bad[field] = value.clone();
        let token = key.sign_raw(&header, bad.to_string().as_bytes()).unwrap();
        assert!(matches!(check(&key, &token), Err(Reject::Claims(_))), "{field} {value}");
    }
    for missing in ["exp", "iat", "nbf", "jti", "sub", "aud", "kubernetes.io"] {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().remove(missing);
        let token = key.sign_raw(&header, bad.to_string().as_bytes()).unwrap();
        assert!(matches!(check(&key, &token), Err(Reject::Claims(_))), "without {missing}");
    }
    for odd in [json!({"alg": "ES256", "crit": ["b64"]}), json!({"alg": "ES256", "typ": "JWE"})] {
        let token = key.sign_raw(&odd, good.to_string().as_bytes()).unwrap();
        assert!(matches!(check(&key, &token), Err(Reject::Header(_))), "{odd}");
    }
}

#[test]
fn a_token_dies_with_its_account_and_with_what_it_is_bound_to() {
    let live = |claims: Claims, world: &World| {
        Verified { claims, audiences: us() }.check_live(world, now()).map_err(|reject| reject.to_string())
    };
    let world = World::new();
    assert_eq!(live(claims(), &world), Ok(()));

    let gone = World { service_account: None, ..world.clone() };
    assert_eq!(live(claims(), &gone).unwrap_err(), "serviceaccounts \"bot\" not found");
    let again = World { service_account: Some(Live { uid: "new".to_owned(), deleted_at: None }), ..world.clone() };
    assert_eq!(live(claims(), &again).unwrap_err(), "service account UID (new) does not match claim (sa-uid)");
    let pod =
        |uid: &str, deleted_at| Some(LivePod { live: Live { uid: uid.to_owned(), deleted_at }, ..LivePod::default() });
    assert_eq!(
        live(claims(), &World { pod: None, ..world.clone() }).unwrap_err(),
        "service account token has been invalidated"
    );
    assert_eq!(
        live(claims(), &World { pod: pod("new", None), ..world.clone() }).unwrap_err(),
        "pod UID (new) does not match service account pod ref claim (pod-uid)"
    );
    let deleted = |seconds| Some(now() - SignedDuration::from_secs(seconds));
    assert!(live(claims(), &World { pod: pod("pod-uid", deleted(61)), ..world.clone() }).is_err());
    assert_eq!(live(claims(), &World { pod: pod("pod-uid", deleted(59)), ..world.clone() }), Ok(()));
    assert_eq!(live(claims(), &World { node: None, ..world.clone() }), Ok(()), "a pod's node is only information");

    let mut on_node = claims();
    on_node.kubernetes.pod = None;
    assert_eq!(live(on_node.clone(), &world), Ok(()));
    assert!(live(on_node, &World { node: None, ..world.clone() }).is_err());
    let mut by_secret = claims();
    (by_secret.kubernetes.pod, by_secret.kubernetes.node) = (None, None);
    by_secret.kubernetes.secret = Some(Reference::new("s", "secret-uid"));
    assert_eq!(live(by_secret.clone(), &world), Ok(()));
    assert!(live(by_secret, &World { secret: None, ..world }).is_err());
}

#[test]
fn the_published_keys_verify_what_was_signed() {
    let key = key();
    let document = jwks(&[key.public().clone()]);
    let jwk = &document["keys"][0];
    assert_eq!((&jwk["kid"], &jwk["alg"], &jwk["crv"]), (&json!(key.id()), &json!("ES256"), &json!("P-256")));
    let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(jwk[name].as_str().unwrap()).unwrap();
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    assert!(verify(&key.sign(&claims()).unwrap(), &[VerifyingKey::new(&point)], &us(), now()).is_ok());
    assert_eq!(openid_configuration("127.0.0.1:7443")["jwks_uri"], "https://127.0.0.1:7443/openid/v1/jwks");
    assert_eq!(openid_configuration("a")["issuer"], ISSUER);
}

#[test]
fn keys_are_read_from_pem_and_printed_as_rcgen_prints_them() {
    let pair = rcgen::KeyPair::generate().unwrap();
    let key = SigningKey::from_pem(&pair.serialize_pem()).unwrap();
    let lines = |pem: &str| pem.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    assert_eq!(lines(&key.public().pem()), lines(&pair.public_key_pem()));
    for bad in ["", "rubbish", &pair.public_key_pem()] {
        assert!(SigningKey::from_pem(bad).is_err());
    }
    assert!(!format!("{key:?}").contains("PRIVATE"));
}
