use super::*;
use rustls_pki_types::ServerName;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn names() -> Vec<String> {
    server_names(Some("Box"), "192.0.2.7".parse().unwrap())
}

fn start(dir: &Path, now: &str) -> Result<Pki, PkiError> {
    Pki::open(dir, &names(), at(now))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn content(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join("pki").join(name)).unwrap()
}

fn validity(pem: &str) -> (Timestamp, Timestamp) {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    let time = |t: x509_parser::time::ASN1Time| Timestamp::from_second(t.timestamp()).unwrap();
    (time(certificate.validity().not_before), time(certificate.validity().not_after))
}

#[test]
fn the_first_start_makes_private_files_and_the_second_finds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    let pki = dir.path().join("pki");
    assert_eq!(mode(&pki), 0o700);
    let mut files: Vec<String> =
        fs::read_dir(&pki).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, ["admin.crt", "admin.key", "ca.crt", "ca.key", "sa.key", "sa.pub", "server.crt", "server.key"]);
    for file in &files {
        assert_eq!(mode(&pki.join(file)), 0o600, "{file}");
    }
    let before: Vec<String> = files.iter().map(|file| content(dir.path(), file)).collect();
    let second = start(dir.path(), "2026-06-01T00:00:00Z").unwrap();
    let after: Vec<String> = files.iter().map(|file| content(dir.path(), file)).collect();
    assert_eq!(before, after);
    assert_eq!(first.ca_pem, second.ca_pem);
    assert_eq!(first.server_chain, second.server_chain);
    assert_eq!(first.service_account_key.id(), second.service_account_key.id());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left in the data directory");
}

#[test]
fn the_ca_lasts_ten_years_and_the_others_one() {
    let pki = Pki::in_memory(&names(), at("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(validity(&pki.ca_pem), (at("2025-12-31T23:00:00Z"), at("2036-01-01T00:00:00Z")));
    assert_eq!(validity(&pki.admin_cert_pem), (at("2025-12-31T23:00:00Z"), at("2027-01-01T00:00:00Z")));
}

#[test]
fn certificates_are_issued_again_a_month_before_their_end_with_the_same_keys() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    let (server, key) = (content(dir.path(), "server.crt"), content(dir.path(), "server.key"));
    start(dir.path(), "2026-12-01T00:00:00Z").unwrap();
    assert_eq!(content(dir.path(), "server.crt"), server);
    let pki = start(dir.path(), "2026-12-03T00:00:00Z").unwrap();
    assert_ne!(content(dir.path(), "server.crt"), server);
    assert_eq!(content(dir.path(), "server.key"), key);
    assert_eq!(validity(&pki.admin_cert_pem).1, at("2027-12-03T00:00:00Z"));
    assert_eq!(mode(&dir.path().join("pki/server.crt")), 0o600);
    assert!(fs::read_dir(dir.path().join("pki")).unwrap().count() == 8, "no temporary file is left");
}

#[test]
fn certificates_from_the_future_are_issued_again() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), "2026-01-02T00:00:00Z").unwrap();
    let pki = start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    assert_eq!(validity(&pki.admin_cert_pem).0, at("2025-12-31T23:00:00Z"));
}

#[test]
fn a_new_name_of_the_machine_gives_a_new_serving_certificate_only() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    let (server, admin) = (content(dir.path(), "server.crt"), content(dir.path(), "admin.crt"));
    let moved = server_names(Some("other"), "192.0.2.7".parse().unwrap());
    Pki::open(dir.path(), &moved, at("2026-01-01T00:00:00Z")).unwrap();
    assert_ne!(content(dir.path(), "server.crt"), server);
    assert_eq!(content(dir.path(), "admin.crt"), admin);
    assert!(has_names(&content(dir.path(), "server.crt"), &moved));
}

#[test]
fn unreadable_missing_and_foreign_leaves_are_issued_again() {
    let now = "2026-01-01T00:00:00Z";
    let other = tempfile::tempdir().unwrap();
    start(other.path(), now).unwrap();
    let break_by: [&dyn Fn(&Path); 6] = [
        &|pki| fs::write(pki.join("server.crt"), "rubbish").unwrap(),
        &|pki| fs::write(pki.join("server.key"), [0xff, 0xfe]).unwrap(),
        &|pki| fs::remove_file(pki.join("admin.crt")).unwrap(),
        &|pki| fs::remove_file(pki.join("admin.key")).unwrap(),
        &|pki| {
            for name in ["admin.crt", "admin.key"] {
                fs::copy(other.path().join("pki").join(name), pki.join(name)).unwrap();
            }
        },
        // The administrator's certificate is not one to serve with.
        &|pki| {
            for (from, to) in [("admin.crt", "server.crt"), ("admin.key", "server.key")] {
                fs::copy(pki.join(from), pki.join(to)).unwrap();
            }
        },
    ];
    for (case, broken) in break_by.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        start(dir.path(), now).unwrap();
        broken(&dir.path().join("pki"));
        let pki = start(dir.path(), now).unwrap();
        pki.server_config().unwrap();
        let files = Loaded::read(&dir.path().join("pki")).unwrap();
        let (server, admin) = (files.server.pem.unwrap(), files.admin.pem.unwrap());
        assert!(
            vouches_for_server(&files.ca, &server, at(now)) && belongs(&server, &files.server.key.unwrap()),
            "{case}"
        );
        assert!(vouches_for_admin(&files.ca, &admin, at(now)) && belongs(&admin, &files.admin.key.unwrap()), "{case}");
    }
}

#[test]
fn what_cannot_be_made_again_is_never_replaced() {
    for lost in ["ca.key", "ca.crt", "sa.key"] {
        let dir = tempfile::tempdir().unwrap();
        start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
        fs::remove_file(dir.path().join("pki").join(lost)).unwrap();
        let error = start(dir.path(), "2026-01-01T00:00:00Z").err().unwrap().to_string();
        assert!(error.contains(lost) && error.contains("restore it, or remove"), "{error}");
        assert!(!dir.path().join("pki").join(lost).exists());
        fs::write(dir.path().join("pki").join(lost), "rubbish").unwrap();
        let error = start(dir.path(), "2026-01-01T00:00:00Z").err().unwrap().to_string();
        assert!(error.contains(lost) && error.contains("cannot be used"), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    assert!(start(dir.path(), "2037-01-01T00:00:00Z").err().unwrap().to_string().contains("expired"));
}

#[test]
fn a_first_start_that_was_interrupted_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("pki")).unwrap();
    fs::create_dir(dir.path().join(".pki.new")).unwrap();
    fs::write(dir.path().join(".pki.new/ca.key"), "half").unwrap();
    start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(mode(&dir.path().join("pki")), 0o700);
}

#[test]
fn keys_that_others_could_read_are_closed_again() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    let pki = dir.path().join("pki");
    let wide = [("", 0o755), ("ca.key", 0o644), ("server.key", 0o640), ("admin.key", 0o604), ("sa.key", 0o666)];
    for (name, mode) in wide {
        fs::set_permissions(pki.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    for (name, _) in wide {
        assert_eq!(mode(&pki.join(name)) & 0o077, 0, "{name}");
    }
}

#[test]
fn an_unwritable_data_directory_is_one_clear_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = start(&file.join("sub"), "2026-01-01T00:00:00Z").err().unwrap().to_string();
    assert!(error.starts_with("cannot "), "{error}");
}

#[test]
fn the_cas_private_key_is_in_its_file_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let pki = start(dir.path(), "2026-01-01T00:00:00Z").unwrap();
    let config = dir.path().join("kubeconfig");
    write_private(&config, kubeconfig("https://127.0.0.1:7443", &pki).as_bytes()).unwrap();

    let pem = content(dir.path(), "ca.key");
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(&body).unwrap();
    // PKCS#8 of a P-256 key holds the 32 secret bytes after a fixed head.
    let secret = &der[36..68];
    assert!(KeyPair::from_pem(&pem).is_ok());
    let hidden = |bytes: &[u8]| {
        let mut texts = vec![bytes.to_vec()];
        texts.extend(String::from_utf8_lossy(bytes).split_whitespace().filter_map(|word| STANDARD.decode(word).ok()));
        let inner: Vec<Vec<u8>> = texts
            .iter()
            .map(|text| String::from_utf8_lossy(text).lines().filter(|l| !l.starts_with("-----")).collect::<String>())
            .filter_map(|text| STANDARD.decode(text).ok())
            .collect();
        texts.extend(inner);
        texts.iter().any(|text| text.windows(32).any(|window| window == secret))
    };
    let ca_key = dir.path().join("pki/ca.key");
    assert!(hidden(&fs::read(&ca_key).unwrap()), "the search finds it where it is");
    let mut pending = vec![dir.path().to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path != ca_key {
            assert!(!hidden(&fs::read(&path).unwrap()), "{}", path.display());
        }
    }
    let held = [
        pki.ca_pem.as_bytes(),
        pki.admin_key_pem.as_bytes(),
        pki.admin_cert_pem.as_bytes(),
        pki.server_key.secret_der(),
    ];
    assert!(held.iter().all(|bytes| !hidden(bytes)));
}

#[test]
fn a_private_file_replaces_what_was_there_and_narrows_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/kubeconfig");
    write_private(&path, b"one").unwrap();
    assert_eq!((mode(&path), mode(&dir.path().join("a"))), (0o600, 0o700));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    write_private(&path, b"two").unwrap();
    assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o600, b"two".to_vec()));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    assert!(write_private(&path.join("below-a-file"), b"x").is_err());
}

#[test]
fn the_kubeconfig_is_yaml_with_everything_inside() {
    let pki = Pki::in_memory(&names(), at("2026-01-01T00:00:00Z")).unwrap();
    let text = kubeconfig("https://127.0.0.1:7443", &pki);
    let config: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(config["current-context"], "usher");
    assert_eq!(config["contexts"][0], json!({"name": "usher", "context": {"cluster": "usher", "user": "usher"}}));
    assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:7443");
    let decoded =
        |value: &serde_json::Value| String::from_utf8(STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap();
    assert_eq!(decoded(&config["clusters"][0]["cluster"]["certificate-authority-data"]), pki.ca_pem);
    assert_eq!(decoded(&config["users"][0]["user"]["client-certificate-data"]), pki.admin_cert_pem);
    assert_eq!(decoded(&config["users"][0]["user"]["client-key-data"]), pki.admin_key_pem);
}

#[test]
fn odd_host_names_are_left_out() {
    let names = |host| server_names(Some(host), "127.0.0.1".parse().unwrap());
    assert!(names("My-Host.local").contains(&"my-host.local".to_owned()));
    assert_eq!(names("under_score").len(), 8);
    assert_eq!(names("localhost").len(), 8);
    assert_eq!(names("").len(), 8);
}

mod handshake {
    //! A real TLS handshake in memory.
    use super::*;
    use rustls::{ClientConfig, ClientConnection, ServerConnection};

    struct Outcome {
        alpn: Option<Vec<u8>>,
        client: Option<User>,
    }

    /// Certificates are checked against the machine's clock there, so these are made now.
    fn fresh() -> Pki {
        let now = Timestamp::from_second(i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap());
        Pki::in_memory(&names(), now.unwrap()).unwrap()
    }

    fn connect(server: &Pki, client: ClientConfig, name: &str) -> Result<Outcome, rustls::Error> {
        let mut server = ServerConnection::new(Arc::new(server.server_config().unwrap()))?;
        let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from(name.to_owned()).unwrap())?;
        while server.is_handshaking() || client.is_handshaking() {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            let mut bytes = &wire[..];
            while !bytes.is_empty() {
                server.read_tls(&mut bytes).unwrap();
                server.process_new_packets()?;
            }
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            let mut bytes = &wire[..];
            while !bytes.is_empty() {
                client.read_tls(&mut bytes).unwrap();
                client.process_new_packets()?;
            }
        }
        let shown = server.peer_certificates().and_then(|chain| chain.first());
        Ok(Outcome {
            alpn: server.alpn_protocol().map(<[u8]>::to_vec),
            client: shown.and_then(|der| User::from_certificate(der).unwrap()),
        })
    }

    fn trusting(
        ca: &Pki,
        versions: &[&'static rustls::SupportedProtocolVersion],
        identity: Option<&Pki>,
    ) -> ClientConfig {
        let ca = CertificateDer::from_pem_slice(ca.ca_pem.as_bytes()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots(std::slice::from_ref(&ca)).unwrap());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(pki) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(pki.admin_cert_pem.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(pki.admin_key_pem.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }

    #[test]
    fn the_administrator_is_known_and_others_are_let_in_unknown() {
        let pki = fresh();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let known = connect(&pki, trusting(&pki, &[version], Some(&pki)), "localhost").unwrap();
            let user = known.client.unwrap();
            assert_eq!((user.name.as_str(), user.in_group(MASTERS)), ("kubernetes-admin", true));
            assert_eq!(known.alpn.as_deref(), Some(&b"h2"[..]));
            assert!(connect(&pki, trusting(&pki, &[version], None), "localhost").unwrap().client.is_none());
        }
    }

    #[test]
    fn the_serving_certificate_is_good_for_every_name_we_promise() {
        let pki = fresh();
        for name in names() {
            assert!(connect(&pki, trusting(&pki, rustls::ALL_VERSIONS, None), &name).is_ok(), "{name}");
        }
        assert!(connect(&pki, trusting(&pki, rustls::ALL_VERSIONS, None), "example.com").is_err());
    }

    #[test]
    fn a_certificate_of_another_ca_is_refused() {
        let (pki, stranger) = (fresh(), fresh());
        assert!(connect(&pki, trusting(&pki, rustls::ALL_VERSIONS, Some(&stranger)), "localhost").is_err());
        assert!(connect(&pki, trusting(&stranger, rustls::ALL_VERSIONS, None), "localhost").is_err());
    }
}
