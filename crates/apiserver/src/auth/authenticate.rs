//! From a request's credentials to its user.
//!
//! The order is kube-apiserver's: a client certificate counts first, then a bearer token; who shows nothing is anonymous
//! (and may do what RBAC gives to `system:unauthenticated`). Who shows something wrong is refused, not anonymous.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;

use super::identity::User;
use super::jwt::{ISSUER, Lookup, Reject, VerifyingKey, verify};
use super::refusal::aggregate;
use super::token_file::TokenFile;

/// What credentials are checked against.
#[derive(Debug)]
pub struct Authenticator {
    pub keys: Vec<VerifyingKey>,
    pub tokens: TokenFile,
}

/// A 401. Clients are told `Unauthorized` and no more; this is for logs and TokenReview.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unauthorized(pub String);

/// What a client's certificate says, which TLS has verified: the user, or none if it names nobody. Read once for a
/// connection.
pub type Certified = Result<Option<Arc<User>>, Unauthorized>;

pub fn certified(der: &[u8]) -> Certified {
    let user = User::from_certificate(der).map_err(|error| Unauthorized(error.to_string()))?;
    Ok(user.map(Arc::new))
}

impl Authenticator {
    pub fn new(keys: Vec<VerifyingKey>, tokens: TokenFile) -> Authenticator {
        Authenticator { keys, tokens }
    }

    /// The user of a request.
    pub fn request(
        &self,
        certificate: Option<&Certified>,
        headers: &HeaderMap,
        lookup: &dyn Lookup,
        now: Timestamp,
    ) -> Result<Arc<User>, Unauthorized> {
        if let Some(certified) = certificate
            && let Some(user) = certified.clone()?
        {
            return Ok(user);
        }
        match bearer(headers)? {
            Some(token) => self.token(token, &[ISSUER.to_owned()], lookup, now).map(|(user, _)| Arc::new(user)),
            None => Ok(Arc::new(User::anonymous())),
        }
    }

    /// The user of a bearer token, and for which of the wanted audiences it is good.
    pub fn token(
        &self,
        token: &str,
        audiences: &[String],
        lookup: &dyn Lookup,
        now: Timestamp,
    ) -> Result<(User, Vec<String>), Unauthorized> {
        // Tokens of the file name no audience: they are for this server.
        if audiences.iter().any(|audience| audience == ISSUER)
            && let Some(user) = self.tokens.find(token)
        {
            return Ok((user.clone(), vec![ISSUER.to_owned()]));
        }
        let checked = verify(token, &self.keys, audiences, now);
        let live = checked.and_then(|verified| verified.check_live(lookup, now).map(|()| verified));
        match live {
            Ok(verified) => Ok((verified.user(), verified.audiences)),
            Err(reject) => Err(Unauthorized(describe(&reject))),
        }
    }
}

/// As kube-apiserver, whose first authenticator never knows a token, words it.
fn describe(reject: &Reject) -> String {
    let unknown = "invalid bearer token".to_owned();
    match reject {
        Reject::NotOurs => unknown,
        reject => aggregate(&[unknown, reject.to_string()]),
    }
}

/// The token of `Authorization: Bearer`; other schemes are not ours to judge.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Unauthorized> {
    let Some(header) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let text = std::str::from_utf8(header.as_bytes()).map_err(|_| Unauthorized("invalid bearer token".to_owned()))?;
    let mut parts = text.trim().splitn(3, ' ');
    let is_bearer = parts.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer"));
    Ok(parts.next().filter(|token| is_bearer && !token.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::identity::ANONYMOUS;
    use crate::auth::jwt::tests::{World, key, now};
    use crate::auth::token_request;
    use http::HeaderValue;
    use jiff::SignedDuration;
    use serde_json::json;
    use usher_env::Ids;

    fn headers(authorization: &[u8]) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_bytes(authorization).unwrap())])
    }

    fn authenticator(key: &crate::auth::jwt::SigningKey) -> Authenticator {
        Authenticator::new(vec![key.public().clone()], TokenFile::parse(b"s3cret,jane,1").unwrap())
    }

    #[test]
    fn each_credential_gives_its_user() {
        let key = key();
        let authenticator = authenticator(&key);
        let who = |certificate: Option<&[u8]>, headers: &HeaderMap| {
            let certificate = certificate.map(certified);
            authenticator.request(certificate.as_ref(), headers, &World::new(), now()).map(|user| user.name.clone())
        };
        let answer =
            token_request::create(&json!({}), "ns", "bot", &World::new(), &key, now(), &Ids::seeded(1)).unwrap();
        let bot = format!("bearer {}", answer["status"]["token"].as_str().unwrap());
        assert_eq!(who(None, &HeaderMap::new()).unwrap(), ANONYMOUS);
        assert_eq!(who(None, &headers(b"Bearer s3cret")).unwrap(), "jane");
        assert_eq!(who(None, &headers(bot.as_bytes())).unwrap(), "system:serviceaccount:ns:bot");
        assert_eq!(who(None, &headers(b"Basic abc")).unwrap(), ANONYMOUS);
        assert_eq!(who(None, &headers(b"Bearer ")).unwrap(), ANONYMOUS);

        let pki = crate::auth::pki::Pki::in_memory(&[], now()).unwrap();
        use rustls_pki_types::pem::PemObject;
        let admin = rustls_pki_types::CertificateDer::from_pem_slice(pki.admin_cert_pem.as_bytes()).unwrap();
        assert_eq!(who(Some(&admin), &headers(b"Bearer s3cret")).unwrap(), "kubernetes-admin");
        assert!(who(Some(b"rubbish"), &HeaderMap::new()).is_err());
    }

    #[test]
    fn a_wrong_token_is_refused_and_not_anonymous() {
        let key = key();
        let authenticator = authenticator(&key);
        let refused = |headers: &HeaderMap, seconds: i64| {
            let at = now() + SignedDuration::from_secs(seconds);
            authenticator.request(None, headers, &World::new(), at).unwrap_err().to_string()
        };
        assert_eq!(refused(&headers(b"Bearer wrong"), 0), "invalid bearer token");
        assert_eq!(refused(&headers(b"Bearer \xff\xfe"), 0), "invalid bearer token");
        assert_eq!(refused(&headers(&[b"Bearer ", &[b'x'; 100_000][..]].concat()), 0), "invalid bearer token");
        let answer =
            token_request::create(&json!({}), "ns", "bot", &World::new(), &key, now(), &Ids::seeded(1)).unwrap();
        let bot = format!("Bearer {}", answer["status"]["token"].as_str().unwrap());
        assert_eq!(
            refused(&headers(bot.as_bytes()), 4000),
            "[invalid bearer token, service account token has expired]"
        );
    }

    #[test]
    fn a_token_of_the_file_is_good_for_this_server_only() {
        let authenticator = authenticator(&key());
        let find = |audience: &str| authenticator.token("s3cret", &[audience.to_owned()], &World::new(), now());
        assert_eq!(find(ISSUER).unwrap().1, [ISSUER]);
        assert!(find("vault").is_err());
    }
}
