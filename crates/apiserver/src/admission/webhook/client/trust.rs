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
            CertificateError::NotValidForName => format!("certificate is not valid for {server_name}"),
            CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
                let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
                format!("certificate is valid for {}, not {server_name}", names.join(", "))
            }
            CertificateError::NotValidForNameContext { .. } => {
                format!("certificate is not valid for any names, but wanted to match {server_name}")
            }
            other => other.to_string(),
        },
        Some(Error::InvalidMessage(_)) => return "http: server gave HTTP response to HTTPS client".to_owned(),
        Some(other) => return format!("remote error: tls: {other}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => return "EOF".to_owned(),
        None => return error.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

/// `DnsName("x")` is how the TLS library shows a name.
fn bare(name: &str) -> &str {
    match name.split_once('(') {
        Some((_, inner)) => inner.trim_end_matches(')').trim_matches('"'),
        None => name,
    }
}
