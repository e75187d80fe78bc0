//! Who a request is from.
//!
//! A [`User`] is what every way in ends with: a client certificate ([`User::from_certificate`]), a ServiceAccount token
//! ([`super::jwt`]), a line of the token file ([`super::token_file`]), or nobody ([`User::anonymous`]). Whether a user
//! may do something is decided elsewhere, from this alone.

use std::collections::BTreeMap;

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use usher_api::names;
use x509_parser::prelude::{FromDer, X509Certificate};

pub const ANONYMOUS: &str = "system:anonymous";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Members may do everything; no rule is consulted.
pub const MASTERS: &str = "system:masters";
pub const NODES: &str = "system:nodes";
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// Key of `extra` under which the credential that was shown is named.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const NODE_PREFIX: &str = "system:node:";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("client certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("expected 1 UID, but found multiple: {0:?}")]
    SeveralUids(Vec<String>),
    #[error("UID cannot be an empty string")]
    EmptyUid,
}

impl User {
    pub fn new(name: &str, groups: &[&str]) -> User {
        User { name: name.to_owned(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
    }

    /// The user of a request that shows no credentials.
    pub fn anonymous() -> User {
        User::new(ANONYMOUS, &[UNAUTHENTICATED])
    }

    /// The user of a ServiceAccount, with the groups all of them have.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> User {
        User {
            name: service_account_user(namespace, name),
            uid: uid.to_owned(),
            groups: service_account_groups(namespace),
            extra: BTreeMap::new(),
        }
    }

    /// Reads CN (name) and O (groups) of a certificate **that TLS has already verified** against our CA.
    ///
    /// `None` when it has no common name: then it identifies nobody, and other credentials are looked at.
    pub fn from_certificate(der: &[u8]) -> Result<Option<User>, CertificateError> {
        // RFC 5280 has no registered name for a user's uid; Kubernetes' own number is used.
        const UID: &str = "1.3.6.1.4.1.57683.2";
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| CertificateError::Unreadable(error.to_string()))?;
        let (mut name, mut groups, mut uids) = (String::new(), Vec::new(), Vec::new());
        for attribute in certificate.subject().iter_attributes() {
            let Ok(value) = attribute.as_str() else { continue };
            match attribute.attr_type().to_id_string().as_str() {
                "2.5.4.3" => name = value.to_owned(),
                "2.5.4.10" => groups.push(value.to_owned()),
                UID => uids.push(value.to_owned()),
                _ => {}
            }
        }
        if name.is_empty() {
            return Ok(None);
        }
        let uid = match uids.as_slice() {
            [] => String::new(),
            [uid] if uid.is_empty() => return Err(CertificateError::EmptyUid),
            [uid] => uid.clone(),
            _ => return Err(CertificateError::SeveralUids(uids)),
        };
        let credential = format!("X509SHA256={}", hex(digest(&SHA256, der).as_ref()));
        let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![credential])]);
        Ok(Some(User { name, uid, groups, extra }.authenticated()))
    }

    /// Adds `system:authenticated`, unless the groups already say what this user is.
    #[must_use]
    pub fn authenticated(mut self) -> User {
        if self.name != ANONYMOUS && !self.in_group(AUTHENTICATED) && !self.in_group(UNAUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// As `authentication.k8s.io/v1` UserInfo.
    pub fn info(&self) -> Value {
        let mut info = Map::new();
        if !self.name.is_empty() {
            info.insert("username".to_owned(), json!(self.name));
        }
        if !self.uid.is_empty() {
            info.insert("uid".to_owned(), json!(self.uid));
        }
        if !self.groups.is_empty() {
            info.insert("groups".to_owned(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            info.insert("extra".to_owned(), json!(self.extra));
        }
        Value::Object(info)
    }
}

/// `system:serviceaccount:<namespace>:<name>`.
pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// Namespace and name of a ServiceAccount's user name.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let valid = names::dns1123_label(namespace, false).is_empty() && is_dns_subdomain(name);
    valid.then_some((namespace, name))
}

/// The node of a node's user name.
pub fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_PREFIX).filter(|node| is_dns_subdomain(node))
}

pub(crate) fn is_dns_subdomain(s: &str) -> bool {
    names::dns1123_subdomain(s, false).is_empty()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    /// rcgen keeps one value per kind of name; the same kind by number is another kind to it.
    fn second_organization() -> DnType {
        DnType::CustomDnType(vec![2, 5, 4, 10])
    }

    #[test]
    fn a_certificate_gives_name_and_every_organization_as_group() {
        let der = certificate(&[
            (DnType::CommonName, "jane"),
            (DnType::OrganizationName, "dev"),
            (second_organization(), "ops, and more"),
            (DnType::OrganizationalUnitName, "ignored"),
        ]);
        let user = User::from_certificate(&der).unwrap().unwrap();
        assert_eq!(user.name, "jane");
        assert_eq!(user.groups, ["dev", "ops, and more", AUTHENTICATED]);
        assert!(user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        assert_eq!(user.extra[CREDENTIAL_ID][0].len(), "X509SHA256=".len() + 64);
    }

    #[test]
    fn a_certificate_without_common_name_is_nobody() {
        assert_eq!(User::from_certificate(&certificate(&[(DnType::OrganizationName, "dev")])), Ok(None));
    }

    #[test]
    fn a_certificate_may_carry_the_users_uid() {
        let uid = || DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let der = certificate(&[(DnType::CommonName, "jane"), (uid(), "u-1")]);
        assert_eq!(User::from_certificate(&der).unwrap().unwrap().uid, "u-1");
    }

    #[test]
    fn what_is_not_a_certificate_is_an_error_and_not_a_panic() {
        for bytes in [&b""[..], b"\x30", &[0xff; 100], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]] {
            assert!(matches!(User::from_certificate(bytes), Err(CertificateError::Unreadable(_))));
        }
    }

    #[test]
    fn authenticated_is_added_once_and_never_to_nobody() {
        assert_eq!(User::new("a", &["g"]).authenticated().authenticated().groups, ["g", AUTHENTICATED]);
        assert_eq!(User::new("a", &[UNAUTHENTICATED]).authenticated().groups, [UNAUTHENTICATED]);
        assert_eq!(User::anonymous().authenticated(), User::anonymous());
    }

    #[test]
    fn only_a_well_formed_name_is_a_service_account() {
        assert_eq!(split_service_account("system:serviceaccount:ns:a.b-c"), Some(("ns", "a.b-c")));
        for bad in [
            "system:serviceaccount:ns",
            "system:serviceaccount:ns:a:b",
            "system:serviceaccount:n.s:a",
            "system:serviceaccount::a",
            "system:serviceaccount:ns:",
            "system:serviceaccount:ns:A",
            "system:serviceaccount:ns:-a",
            "system:serviceaccount:ns:a..b",
            "serviceaccount:ns:a",
        ] {
            assert_eq!(split_service_account(bad), None, "{bad}");
        }
        assert_eq!(node_of("system:node:n1.example"), Some("n1.example"));
        assert_eq!(node_of("system:node:"), None);
    }

    #[test]
    fn user_info_leaves_out_what_is_empty() {
        assert_eq!(User::new("a", &[]).info(), json!({"username": "a"}));
    }
}
