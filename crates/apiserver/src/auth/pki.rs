//! The certificates and keys the server lives on: a CA of its own, a serving certificate, the administrator's client
//! certificate and the key that signs ServiceAccount tokens.
//!
//! They are made at the first start ([`Pki::open`]) and kept in `<data-dir>/pki`; `--in-memory` keeps none
//! ([`Pki::in_memory`]). All keys are ECDSA P-256, which takes a millisecond to make. The CA's private key is read to
//! issue certificates and dropped again: a [`Pki`] does not hold it.

mod files;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, PublicKeyData};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use usher_pki::{Authority, Leaf, RENEW_BEFORE, belongs, has_names, provider, roots, server_params, unix};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::identity::{MASTERS, User};
use super::jwt::SigningKey;
pub use files::write_private;

const ADMIN: &str = "kubernetes-admin";

pub struct Pki {
    pub ca_pem: String,
    /// The serving certificate with the CA behind it.
    pub server_chain: Vec<CertificateDer<'static>>,
    pub server_key: PrivateKeyDer<'static>,
    pub admin_cert_pem: String,
    pub admin_key_pem: String,
    pub service_account_key: SigningKey,
}

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is missing but other files of {} are there; restore it, or remove the directory to start with a new CA (kubeconfigs and tokens made so far stop working)",
        file.display(), dir.display()
    )]
    Missing { file: PathBuf, dir: PathBuf },
    #[error("{} cannot be used ({why}); restore it, or remove the directory to start with a new CA (kubeconfigs and tokens made so far stop working)", file.display())]
    Unusable { file: PathBuf, why: String },
    #[error("cannot make certificates: {0}")]
    Issue(#[from] usher_pki::Error),
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

/// The names and addresses the serving certificate must be valid for.
pub fn server_names(hostname: Option<&str>, listen: IpAddr) -> Vec<String> {
    let fixed = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "127.0.0.1",
        "::1",
        // Where pods expect the API: the first address of the default service range.
        "10.96.0.1",
    ];
    let mut names: Vec<String> = fixed.iter().map(|name| (*name).to_owned()).collect();
    // A host may be called anything; a name no client could ask for would only make strict clients refuse the rest.
    let hostname = hostname.map(str::to_lowercase).filter(|name| super::identity::is_dns_subdomain(name));
    for name in hostname.into_iter().chain([listen.to_string()]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The machine's name, where the system tells it without a library.
pub fn hostname() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok())?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

impl Pki {
    /// Makes everything, keeps nothing: for `--in-memory`.
    pub fn in_memory(server_names: &[String], now: Timestamp) -> Result<Pki, PkiError> {
        Complete::new(server_names, now)?.pki()
    }

    /// Loads `<data_dir>/pki`, or makes it. The caller holds the data directory's lock.
    ///
    /// The CA and the token key are never replaced: what is signed by them is out in the world. The serving and the
    /// administrator's certificate are issued again when they are near their end, do not fit, or cannot be read.
    pub fn open(data_dir: &Path, server_names: &[String], now: Timestamp) -> Result<Pki, PkiError> {
        let dir = data_dir.join("pki");
        match std::fs::read_dir(&dir).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Loaded::read(&dir)?.refresh(&dir, server_names, now)?.pki(),
            Ok(false) => create(data_dir, &dir, server_names, now),
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(data_dir, &dir, server_names, now),
            Err(error) => Err(PkiError::Io { doing: "read", path: dir.clone(), source: error }),
        }
    }

    /// TLS for the listener: HTTP/2 and 1.1, TLS 1.2 and 1.3, client certificates asked for but not demanded.
    pub fn server_config(&self) -> Result<ServerConfig, PkiError> {
        let tls = |error: &dyn std::fmt::Display| PkiError::Tls(error.to_string());
        let provider = provider();
        let ca = CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).map_err(|error| tls(&error))?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots(&[ca]).map_err(|e| tls(&e))?, provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| tls(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| tls(&error))?
            .with_client_cert_verifier(clients)
            .with_single_cert(self.server_chain.clone(), self.server_key.clone_key())
            .map_err(|error| tls(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The administrator's kubeconfig. It carries a private key: write it with [`write_private`].
pub fn kubeconfig(server_url: &str, pki: &Pki) -> String {
    let data = |pem: &str| STANDARD.encode(pem);
    // JSON strings are YAML strings: whatever is in the URL stays inside its quotes.
    let server = json!(server_url);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: usher\n  \
           cluster:\n    \
             certificate-authority-data: {}\n    \
             server: {server}\n\
         contexts:\n\
         - name: usher\n  \
           context:\n    \
             cluster: usher\n    \
             user: usher\n\
         current-context: usher\n\
         preferences: {{}}\n\
         users:\n\
         - name: usher\n  \
           user:\n    \
             client-certificate-data: {}\n    \
             client-key-data: {}\n",
        data(&pki.ca_pem),
        data(&pki.admin_cert_pem),
        data(&pki.admin_key_pem),
    )
}

/// Everything, still with the CA's key.
struct Complete {
    ca: Authority,
    server: Leaf,
    admin: Leaf,
    service_account_key: KeyPair,
}

impl Complete {
    fn new(server_names: &[String], now: Timestamp) -> Result<Complete, PkiError> {
        let ca = Authority::new("usher-ca", now)?;
        let server = ca.issue(server_params(server_names)?, generate()?, now)?;
        let admin = ca.issue(admin_params(), generate()?, now)?;
        Ok(Complete { ca, server, admin, service_account_key: generate()? })
    }

    fn files(&self) -> [(&'static str, String); 8] {
        [
            ("ca.crt", self.ca.pem.clone()),
            ("ca.key", self.ca.key.serialize_pem()),
            ("server.crt", self.server.pem.clone()),
            ("server.key", self.server.key.serialize_pem()),
            ("admin.crt", self.admin.pem.clone()),
            ("admin.key", self.admin.key.serialize_pem()),
            ("sa.key", self.service_account_key.serialize_pem()),
            ("sa.pub", self.service_account_key.public_key_pem()),
        ]
    }

    fn pki(&self) -> Result<Pki, PkiError> {
        let tls = |error: &dyn std::fmt::Display| PkiError::Tls(error.to_string());
        let leaf = CertificateDer::from_pem_slice(self.server.pem.as_bytes()).map_err(|error| tls(&error))?;
        let key = PrivateKeyDer::try_from(self.server.key.serialize_der()).map_err(|error| tls(&error))?;
        let signing = SigningKey::from_pkcs8(self.service_account_key.serialized_der());
        Ok(Pki {
            ca_pem: self.ca.pem.clone(),
            server_chain: vec![leaf, self.ca.der.clone()],
            server_key: key,
            admin_cert_pem: self.admin.pem.clone(),
            admin_key_pem: self.admin.key.serialize_pem(),
            service_account_key: signing.map_err(|error| tls(&error))?,
        })
    }
}

/// First start: all files appear at once, by one rename of their directory.
fn create(data_dir: &Path, dir: &Path, server_names: &[String], now: Timestamp) -> Result<Pki, PkiError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| PkiError::Io { doing, path, source }
    };
    let made = Complete::new(server_names, now)?;
    files::create_private_dir(data_dir).map_err(failed("create", data_dir))?;
    let fresh = data_dir.join(".pki.new");
    match std::fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &fresh)(error)),
        _ => {}
    }
    files::create_private_dir(&fresh).map_err(failed("create", &fresh))?;
    // Side by side, because each waits for the disk.
    std::thread::scope(|threads| {
        let writers = made.files().map(|(name, content)| {
            let path = fresh.join(name);
            threads.spawn(move || files::write_new(&path, content.as_bytes()).map_err(failed("write", &path)))
        });
        writers.into_iter().try_for_each(|writer| {
            writer.join().unwrap_or_else(|_| Err(failed("write", &fresh)(io::Error::other("the writer panicked"))))
        })
    })?;
    files::sync_dir(&fresh).map_err(failed("sync", &fresh))?;
    // Succeeds also where an empty directory of that name is in the way.
    std::fs::rename(&fresh, dir).map_err(failed("create", dir))?;
    files::sync_dir(data_dir).map_err(failed("sync", data_dir))?;
    made.pki()
}

/// What was found on disk; the leaves may be unreadable.
struct Loaded {
    ca: Authority,
    server: Found,
    admin: Found,
    service_account_key: KeyPair,
}

struct Found {
    pem: Option<String>,
    key: Option<KeyPair>,
}

impl Loaded {
    fn read(dir: &Path) -> Result<Loaded, PkiError> {
        for name in ["", "ca.key", "server.key", "admin.key", "sa.key"] {
            let path = dir.join(name);
            match files::close(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(PkiError::Io { doing: "close to others", path, source });
                }
                _ => {}
            }
        }
        let ca_key = key_that_must_be_there(dir, "ca.key")?;
        let pem = text_that_must_be_there(dir, "ca.crt")?;
        let unusable = |why: String| PkiError::Unusable { file: dir.join("ca.crt"), why };
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| unusable(error.to_string()))?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|error| unusable(error.to_string()))?;
        if certificate.public_key().raw != ca_key.subject_public_key_info() {
            return Err(unusable("it does not belong to ca.key".to_owned()));
        }
        let leaf = |certificate: &str, key: &str| {
            let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
            Found { pem: read(certificate), key: read(key).and_then(|pem| KeyPair::from_pem(&pem).ok()) }
        };
        Ok(Loaded {
            server: leaf("server.crt", "server.key"),
            admin: leaf("admin.crt", "admin.key"),
            service_account_key: key_that_must_be_there(dir, "sa.key")?,
            ca: Authority { pem, der, key: ca_key },
        })
    }

    /// Issues again what needs it, and writes that.
    fn refresh(self, dir: &Path, server_names: &[String], now: Timestamp) -> Result<Complete, PkiError> {
        if self.ca.ends()? <= now {
            let why = "it has expired".to_owned();
            return Err(PkiError::Unusable { file: dir.join("ca.crt"), why });
        }
        let write = |name: &str, content: &str| {
            let path = dir.join(name);
            write_private(&path, content.as_bytes()).map_err(|source| PkiError::Io { doing: "write", path, source })
        };
        let ca = &self.ca;
        let renew = |name: &str, found: Found, params: CertificateParams, fits: &dyn Fn(&str) -> bool| {
            let key_is_new = found.key.is_none();
            let key = found.key.map_or_else(generate, Ok)?;
            if let Some(pem) = found.pem.filter(|pem| belongs(pem, &key) && fits(pem)) {
                return Ok::<Leaf, PkiError>(Leaf { pem, key });
            }
            let leaf = ca.issue(params, key, now)?;
            // Key first: a crash in between leaves a pair that does not belong together, which is issued again.
            if key_is_new {
                write(&format!("{name}.key"), &leaf.key.serialize_pem())?;
            }
            write(&format!("{name}.crt"), &leaf.pem)?;
            Ok(leaf)
        };
        let server = renew("server", self.server, server_params(server_names)?, &|pem| {
            vouches_for_server(ca, pem, now) && has_names(pem, server_names)
        })?;
        let admin = renew("admin", self.admin, admin_params(), &|pem| vouches_for_admin(ca, pem, now))?;
        let public = self.service_account_key.public_key_pem();
        if std::fs::read_to_string(dir.join("sa.pub")).ok().as_deref() != Some(&public) {
            write("sa.pub", &public)?;
        }
        Ok(Complete { ca: self.ca, server, admin, service_account_key: self.service_account_key })
    }
}

/// Whether a serving certificate is signed by this CA and valid now and for a while.
fn vouches_for_server(ca: &Authority, pem: &str, now: Timestamp) -> bool {
    usher_pki::vouch_for_server(std::slice::from_ref(&ca.der), pem, "localhost", &[now, now + RENEW_BEFORE])
}

fn vouches_for_admin(ca: &Authority, pem: &str, now: Timestamp) -> bool {
    let Ok(leaf) = usher_pki::read(pem) else { return false };
    let Ok(roots) = roots(std::slice::from_ref(&ca.der)) else { return false };
    let Ok(verifier) = WebPkiClientVerifier::builder_with_provider(roots, provider()).build() else { return false };
    let is_admin =
        matches!(User::from_certificate(&leaf), Ok(Some(user)) if user.name == ADMIN && user.in_group(MASTERS));
    is_admin
        && [now, now + RENEW_BEFORE]
            .into_iter()
            .all(|at| unix(at).is_some_and(|at| verifier.verify_client_cert(&leaf, &[], at).is_ok()))
}

fn generate() -> Result<KeyPair, PkiError> {
    Ok(KeyPair::generate().map_err(usher_pki::Error::from)?)
}

fn admin_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, MASTERS);
    params.distinguished_name.push(DnType::CommonName, ADMIN);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn text_that_must_be_there(dir: &Path, name: &str) -> Result<String, PkiError> {
    let path = dir.join(name);
    std::fs::read_to_string(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => PkiError::Missing { file: path, dir: dir.to_owned() },
        io::ErrorKind::InvalidData => PkiError::Unusable { file: path, why: "it is not text".to_owned() },
        _ => PkiError::Io { doing: "read", path, source },
    })
}

fn key_that_must_be_there(dir: &Path, name: &str) -> Result<KeyPair, PkiError> {
    let pem = text_that_must_be_there(dir, name)?;
    KeyPair::from_pem(&pem).map_err(|error| PkiError::Unusable { file: dir.join(name), why: error.to_string() })
}

#[cfg(test)]
mod tests;
