//! Who asks. An aggregated API is called by the API server on behalf of its users: it shows a certificate of the front proxy's
//! authority and names the user in headers. Nobody else is believed.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Where API servers publish how they act as a front proxy.
const PUBLISHED_IN: (&str, &str) = ("kube-system", "extension-apiserver-authentication");

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxy {
    authorities: Vec<CertificateDer<'static>>,
    /// Common names that are believed; any if there is none.
    allowed: Vec<String>,
    user_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// A user of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub user: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl FrontProxy {
    /// None where the cluster does not aggregate APIs.
    pub async fn published(client: &Client) -> Result<Option<FrontProxy>, kube::Error> {
        let (namespace, name) = PUBLISHED_IN;
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let published = api.get_opt(name).await?;
        Ok(published.and_then(|map| map.data).and_then(|data| FrontProxy::read(&data)))
    }

    pub fn read(data: &BTreeMap<String, String>) -> Option<FrontProxy> {
        let list = |key: &str| -> Vec<String> {
            data.get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        let pem = data.get("requestheader-client-ca-file")?;
        let authorities: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect();
        let proxy = FrontProxy {
            authorities,
            allowed: list("requestheader-allowed-names"),
            user_headers: list("requestheader-username-headers"),
            group_headers: list("requestheader-group-headers"),
            extra_prefixes: list("requestheader-extra-headers-prefix"),
        };
        (!proxy.authorities.is_empty() && !proxy.user_headers.is_empty()).then_some(proxy)
    }

    /// Asks clients for a certificate; those without may still look around.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let roots = usher_pki::roots(&self.authorities).map_err(|error| error.to_string())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, usher_pki::provider());
        verifier.allow_unauthenticated().build().map_err(|error| error.to_string())
    }

    /// The user that a request is for. `certificate` has been verified against the authorities.
    pub fn identify(&self, headers: &HeaderMap, certificate: Option<&CertificateDer<'_>>) -> Option<Caller> {
        let name = common_name(certificate?)?;
        if !self.allowed.is_empty() && !self.allowed.contains(&name) {
            return None;
        }
        let all = |names: &[String]| -> Vec<String> {
            let values = names.iter().flat_map(|name| headers.get_all(name.as_str()));
            values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
        };
        let user = all(&self.user_headers).into_iter().find(|user| !user.is_empty())?;
        Some(Caller { user, groups: all(&self.group_headers), extra: self.extra(headers) })
    }

    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            let prefixes = self.extra_prefixes.iter().map(|prefix| prefix.to_lowercase());
            let key = prefixes.into_iter().find_map(|prefix| name.as_str().strip_prefix(&prefix).map(str::to_owned));
            if let (Some(key), Ok(value)) = (key, value.to_str()) {
                extra.entry(key).or_default().push(value.to_owned());
            }
        }
        extra
    }
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use usher_pki::Authority;

    fn published(ca: &str, allowed: &str) -> BTreeMap<String, String> {
        [
            ("requestheader-client-ca-file", ca),
            ("requestheader-allowed-names", allowed),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        let pairs =
            [("x-remote-user", "eve"), ("x-remote-group", "a"), ("x-remote-group", "b"), ("x-remote-extra-k", "v")];
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    /// The certificate of an authority stands in for one that it signed: only its name is looked at here.
    fn proxy(allowed: &str) -> (FrontProxy, CertificateDer<'static>) {
        let ca = Authority::new("front-proxy", "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        (FrontProxy::read(&published(&ca.pem, allowed)).unwrap(), ca.der)
    }

    #[test]
    fn the_user_is_whom_the_front_proxy_names() {
        let (proxy, certificate) = proxy(r#"["front-proxy"]"#);
        let caller = proxy.identify(&headers(), Some(&certificate)).unwrap();
        assert_eq!((caller.user.as_str(), caller.groups), ("eve", vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(caller.extra, [("k".to_owned(), vec!["v".to_owned()])].into());
    }

    #[test]
    fn headers_of_anybody_else_are_not_believed() {
        let (known, certificate) = proxy(r#"["front-proxy"]"#);
        assert_eq!(known.identify(&headers(), None), None, "no certificate");
        assert_eq!(known.identify(&HeaderMap::new(), Some(&certificate)), None, "no user");
        let (other, certificate) = proxy(r#"["somebody-else"]"#);
        assert_eq!(other.identify(&headers(), Some(&certificate)), None);
        let (any, certificate) = proxy("[]");
        assert!(any.identify(&headers(), Some(&certificate)).is_some());
    }

    #[test]
    fn a_cluster_that_does_not_aggregate_has_no_front_proxy() {
        assert_eq!(FrontProxy::read(&BTreeMap::new()), None);
        assert_eq!(FrontProxy::read(&published("nonsense", "[]")), None);
    }
}
