//! Which certificates of webhooks are trusted: those that an authority of the configuration signed, and that one itself.
//!
//! People make one self-signed certificate and give it to both sides. Where it says that it is an authority, which is what
//! `openssl req -x509` writes, webpki refuses it as a server's; Go does not, and so neither does this.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

pub fn client_config(roots_pem: &[u8]) -> Result<ClientConfig, String> {
    let roots: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(roots_pem).filter_map(Result::ok).collect();
    if roots.is_empty() {
        return Err("unable to load root certificates: unable to parse bytes as PEM block".to_owned());
    }
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let provider = Arc::new(default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone())
        .build()
        .map_err(|e| format!("unable to load root certificates: {e}"))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { inner, roots }))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.roots.iter().any(|root| root == end_entity) {
            return self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        let (_, certificate) = X509Certificate::from_der(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < certificate.validity().not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > certificate.validity().not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// A failed handshake in Go's words, as far as people look for them.
pub fn describe(error: &std::io::Error, server_name: &str) -> String {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
    let why = match inner {
        Some(Error::InvalidCertificate(certificate)) => match certificate {
            // Of the others, only an authority that serves and is not trusted is ever seen.
            CertificateError::UnknownIssuer | CertificateError::BadSignature | CertificateError::Other(_) => {
                "certificate signed by unknown authority".to_owned()
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => "certificate has expired or is not yet valid".to_owned(),
            CertificateError::NotValidForName => not_valid_for(server_name, &[]),
            CertificateError::NotValidForNameContext { presented, .. } => not_valid_for(server_name, presented),
            other => other.to_string(),
        },
        Some(Error::InvalidMessage(_)) => return "tls: first record does not look like a TLS handshake".to_owned(),
        Some(other) => return format!("remote error: tls: {other}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => return "EOF".to_owned(),
        None => return error.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

/// Go counts only the names of the kind that was asked for. The TLS library shows them as `DnsName("x")`.
fn not_valid_for(server_name: &str, presented: &[String]) -> String {
    let is_address = server_name.parse::<std::net::IpAddr>().is_ok();
    let kind = if is_address { "IpAddress(" } else { "DnsName(" };
    let names = presented.iter().filter_map(|name| name.strip_prefix(kind));
    let names: Vec<&str> = names.map(|name| name.trim_end_matches(')').trim_matches('"')).collect();
    match (names.as_slice(), is_address) {
        ([], true) => {
            format!("cannot validate certificate for {server_name} because it doesn't contain any IP SANs")
        }
        ([], false) => format!("certificate is not valid for any names, but wanted to match {server_name}"),
        (names, _) => format!("certificate is valid for {}, not {server_name}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_for_other_names_says_which() {
        let error = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(["a.example".to_owned(), "127.0.0.1".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            let parsed = ParsedCertificate::try_from(certificate.der()).unwrap();
            let wanted = ServerName::try_from(name.to_owned()).unwrap();
            describe(&std::io::Error::other(verify_server_name(&parsed, &wanted).unwrap_err()), name)
        };
        let begin = "tls: failed to verify certificate: x509: ";
        assert_eq!(error("b.example"), format!("{begin}certificate is valid for a.example, not b.example"));
        assert_eq!(error("127.0.0.2"), format!("{begin}certificate is valid for 127.0.0.1, not 127.0.0.2"));
        let none = "certificate is not valid for any names, but wanted to match b.example";
        assert_eq!(not_valid_for("b.example", &["IpAddress(127.0.0.1)".to_owned()]), none);
    }
}
