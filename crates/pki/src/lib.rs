//! Certificates of our own: an authority, and what it signs. `usher up` keeps them in files, `usher controller` in a Secret;
//! where they are kept, and when they are made anew, is theirs to say. Here nothing is read, written or remembered.
//!
//! All keys are ECDSA P-256, which takes a millisecond to make.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use ring::digest::{SHA256, digest};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring::default_provider};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

pub const CA_LIFE: SignedDuration = SignedDuration::from_hours(24 * 3652);
pub const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);
/// A certificate this close to its end is issued again.
pub const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 30);
/// Clients' clocks run behind ours.
pub const BACKDATE: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Make(#[from] rcgen::Error),
    #[error("a certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("the certificate of the authority does not belong to its key")]
    Strangers,
}

/// A certificate authority with its key.
pub struct Authority {
    pub pem: String,
    pub der: CertificateDer<'static>,
    pub key: KeyPair,
}

/// A certificate that an authority signed, with its key.
pub struct Leaf {
    pub pem: String,
    pub key: KeyPair,
}

impl Authority {
    pub fn new(name: &str, now: Timestamp) -> Result<Authority, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(serial(&key, now));
        set_validity(&mut params, now - BACKDATE, now + CA_LIFE);
        let certificate = params.self_signed(&key)?;
        Ok(Authority { pem: certificate.pem(), der: certificate.der().clone(), key })
    }

    /// One that was made before.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Authority, Error> {
        let der = read(certificate)?;
        let key = KeyPair::from_pem(key)?;
        if !belongs(certificate, &key) {
            return Err(Error::Strangers);
        }
        Ok(Authority { pem: certificate.to_owned(), der, key })
    }

    /// Lives for a year, but no longer than the authority.
    pub fn issue(&self, mut params: CertificateParams, key: KeyPair, now: Timestamp) -> Result<Leaf, Error> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Strict verifiers (Python 3.13) refuse a certificate that does not name its issuer's key.
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial(&key, now));
        set_validity(&mut params, now - BACKDATE, (now + LEAF_LIFE).min(self.ends()?));
        let issuer = Issuer::from_ca_cert_der(&self.der, &self.key)?;
        Ok(Leaf { pem: params.signed_by(&key, &issuer)?.pem(), key })
    }

    pub fn ends(&self) -> Result<Timestamp, Error> {
        validity_of(&self.der).map(|(_, end)| end)
    }
}

/// A serving certificate for these names and addresses.
pub fn server_params(names: &[String]) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "usher");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// Whether a serving certificate is signed by one of these authorities and valid under `name`, at all those times.
pub fn vouch_for_server(authorities: &[CertificateDer<'static>], pem: &str, name: &str, at: &[Timestamp]) -> bool {
    let (Ok(leaf), Ok(roots)) = (read(pem), roots(authorities)) else { return false };
    let Ok(name) = ServerName::try_from(name) else { return false };
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(roots, provider()).build() else { return false };
    at.iter().all(|at| unix(*at).is_some_and(|at| verifier.verify_server_cert(&leaf, &[], &name, &[], at).is_ok()))
}

/// From when to when the first certificate of `pem` is valid.
pub fn validity(pem: &str) -> Result<(Timestamp, Timestamp), Error> {
    validity_of(&read(pem)?)
}

fn validity_of(der: &CertificateDer<'_>) -> Result<(Timestamp, Timestamp), Error> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|error| Error::Unreadable(error.to_string()))?;
    let time = |t: x509_parser::time::ASN1Time| {
        Timestamp::from_second(t.timestamp()).map_err(|error| Error::Unreadable(error.to_string()))
    };
    Ok((time(certificate.validity().not_before)?, time(certificate.validity().not_after)?))
}

/// The first certificate in `pem`.
pub fn read(pem: &str) -> Result<CertificateDer<'static>, Error> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| Error::Unreadable(error.to_string()))
}

/// Whether the first certificate in `pem` is of this key.
pub fn belongs(pem: &str, key: &KeyPair) -> bool {
    let Ok(der) = read(pem) else { return false };
    X509Certificate::from_der(&der).is_ok_and(|(_, leaf)| leaf.public_key().raw == key.subject_public_key_info())
}

/// Whether the first certificate in `pem` is good for all these names.
pub fn has_names(pem: &str, wanted: &[String]) -> bool {
    let Ok(der) = read(pem) else { return false };
    let Ok((_, leaf)) = X509Certificate::from_der(&der) else { return false };
    let Ok(Some(names)) = leaf.subject_alternative_name() else { return false };
    let found: BTreeSet<String> = names.value.general_names.iter().filter_map(name_of).collect();
    wanted.iter().all(|name| found.contains(name))
}

fn name_of(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// Different for every certificate, also for one issued again for the same key.
fn serial(key: &KeyPair, now: Timestamp) -> SerialNumber {
    let mut seed = key.subject_public_key_info();
    seed.extend_from_slice(&now.as_nanosecond().to_be_bytes());
    let mut bytes = digest(&SHA256, &seed).as_ref()[..16].to_vec();
    // Positive, and without a leading zero byte.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}

pub fn roots(authorities: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(Arc::new(roots))
}

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

pub fn unix(at: Timestamp) -> Option<UnixTime> {
    u64::try_from(at.as_second()).ok().map(|seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

/// rcgen's type of a time has no public name; one can be counted from a date.
fn set_validity(params: &mut CertificateParams, from: Timestamp, to: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
    (params.not_before, params.not_after) = (epoch + since(from), epoch + since(to));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn what_an_authority_signs_is_vouched_for_by_it_and_by_no_other() {
        let now = at("2026-01-01T00:00:00Z");
        let (ours, other) = (Authority::new("a", now).unwrap(), Authority::new("a", now).unwrap());
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let leaf = ours.issue(server_params(&names).unwrap(), KeyPair::generate().unwrap(), now).unwrap();
        for name in &names {
            assert!(vouch_for_server(std::slice::from_ref(&ours.der), &leaf.pem, name, &[now]));
        }
        assert!(vouch_for_server(&[other.der.clone(), ours.der.clone()], &leaf.pem, "localhost", &[now]));
        assert!(!vouch_for_server(&[other.der], &leaf.pem, "localhost", &[now]));
        let later = now + LEAF_LIFE + BACKDATE;
        assert!(!vouch_for_server(std::slice::from_ref(&ours.der), &leaf.pem, "localhost", &[now, later]));
        assert!(!vouch_for_server(&[ours.der], &leaf.pem, "elsewhere", &[now]));
        assert!(has_names(&leaf.pem, &names) && !has_names(&leaf.pem, &["elsewhere".to_owned()]));
    }

    #[test]
    fn an_authority_is_read_back_only_with_its_own_key() {
        let now = at("2026-01-01T00:00:00Z");
        let (ours, other) = (Authority::new("a", now).unwrap(), Authority::new("a", now).unwrap());
        let again = Authority::from_pem(&ours.pem, &ours.key.serialize_pem()).unwrap();
        assert_eq!(again.ends().unwrap(), now + CA_LIFE);
        assert!(matches!(Authority::from_pem(&ours.pem, &other.key.serialize_pem()), Err(Error::Strangers)));
        assert!(matches!(Authority::from_pem("nothing", &other.key.serialize_pem()), Err(Error::Unreadable(_))));
    }
}
