//! What a person sees of `usher up`: the ready line, the errors that stop it, and its end.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn usher() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
    command.stdin(Stdio::null()).env_remove("XDG_DATA_HOME");
    command
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A running `usher up`, killed when dropped.
struct Up {
    child: Child,
    ready: String,
}

impl Up {
    fn start(flags: &[&str], dir: &Path) -> Up {
        let mut child = usher()
            .arg("up")
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("usher starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut ready).expect("a line");
        if ready.is_empty() {
            let mut why = String::new();
            child.stderr.take().expect("piped").read_to_string(&mut why).expect("text");
            panic!("not ready: {why}");
        }
        Up { child, ready }
    }

    fn kubeconfig(&self) -> PathBuf {
        PathBuf::from(self.ready.trim().split("kubeconfig=").nth(1).expect("a kubeconfig"))
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must not start: exit code 2 and one sentence on stderr, nothing on stdout.
fn refused(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("usher runs");
    let stderr = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stdout.is_empty());
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn the_ready_line_names_the_address_and_a_kubeconfig_only_its_owner_can_read() {
    let dir = temp();
    let up = Up::start(&[], dir.path());
    let (url, kubeconfig) = up.ready.trim().strip_prefix("ready ").expect("ready").split_once(' ').expect("two parts");
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    assert!(!url.ends_with(":0"), "port 0 is not an address");
    assert_eq!(kubeconfig, format!("kubeconfig={}", dir.path().join("kubeconfig").display()));
    let mode = |path: &Path| std::fs::metadata(path).expect("exists").permissions().mode() & 0o777;
    assert_eq!(mode(&up.kubeconfig()), 0o600);
    for key in ["ca.key", "server.key", "admin.key", "sa.key"] {
        assert_eq!(mode(&dir.path().join("pki").join(key)), 0o600, "{key}");
    }
    let text = std::fs::read_to_string(up.kubeconfig()).expect("text");
    let ca_key = std::fs::read_to_string(dir.path().join("pki/ca.key")).expect("text");
    assert!(!text.contains(ca_key.lines().nth(1).expect("a key")), "the CA's key stays in the data directory");
}

#[test]
fn sigterm_and_sigint_end_it_cleanly() {
    for signal in ["-TERM", "-INT"] {
        let dir = temp();
        let mut up = Up::start(&[], dir.path());
        up.signal(signal);
        assert_eq!(up.child.wait().expect("ends").code(), Some(0), "{signal}");
    }
}

#[test]
fn a_second_usher_on_the_same_data_directory_is_told_about_the_first() {
    let dir = temp();
    let _up = Up::start(&[], dir.path());
    let said = refused(usher().args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path()));
    assert!(said.contains("in use by another process") && said.contains("--data-dir"), "{said}");
}

#[test]
fn an_occupied_port_stops_it_before_anything_is_touched() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let dir = temp();
    let data = dir.path().join("data");
    let said = refused(usher().args(["up", "--listen", &address, "--data-dir"]).arg(&data));
    assert!(said.contains(&address) && said.contains("--listen"), "{said}");
    assert!(!data.exists());
}

#[test]
fn bad_flags_and_settings_are_named_in_one_sentence() {
    let dir = temp();
    let config = dir.path().join("usher.yaml");
    std::fs::write(&config, "listn: 127.0.0.1:0\n").expect("written");
    let data = dir.path().join("data");
    let flags = |more: &[&str]| {
        let mut command = usher();
        command.args(["up", "--data-dir"]).arg(&data).args(more);
        command
    };
    for (said, expected) in [
        (refused(&mut flags(&["--lisen", "x"])), "--lisen"),
        (refused(&mut flags(&["--listen", "nowhere"])), "nowhere"),
        (refused(&mut flags(&["--feature-gates", "Nonsense=true"])), "Nonsense"),
        (refused(&mut flags(&["--feature-gates", "MutablePodResourcesForSuspendedJobs=maybe"])), "maybe"),
        (refused(&mut flags(&["--config", "/does/not/exist"])), "/does/not/exist"),
        (refused(flags(&["--config"]).arg(&config)), "listn"),
        (refused(&mut flags(&["--token-auth-file", "/does/not/exist"])), "/does/not/exist"),
        (refused(&mut usher()), "usher up"),
    ] {
        assert!(said.contains(expected), "{said}");
    }
    assert!(!data.exists(), "nothing may be touched");
}

#[test]
fn a_data_directory_that_cannot_be_used_says_why() {
    let dir = temp();
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let said = refused(usher().args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(file.join("below")));
    assert!(said.contains("data directory") && said.contains("--data-dir"), "{said}");
    let damaged = temp();
    std::fs::write(damaged.path().join("usher.redb"), b"this is not a database").expect("written");
    let said = refused(usher().args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(damaged.path()));
    assert!(said.contains("usher.redb"), "{said}");
    assert_eq!(std::fs::read(damaged.path().join("usher.redb")).expect("still there"), b"this is not a database");
}

/// Every file below a directory with its content.
fn contents(dir: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            files.extend(contents(&entry));
        } else {
            files.insert(entry.clone(), std::fs::read(&entry).expect("readable"));
        }
    }
    files
}

#[test]
fn a_data_directory_of_a_newer_version_is_left_alone() {
    let dir = temp();
    let mut up = Up::start(&[], dir.path());
    up.signal("-TERM");
    assert_eq!(up.child.wait().expect("ends").code(), Some(0));
    let database = redb::Database::open(dir.path().join("usher.redb")).expect("a database");
    let transaction = database.begin_write().expect("a transaction");
    let facts: redb::TableDefinition<&str, u64> = redb::TableDefinition::new("meta");
    transaction.open_table(facts).expect("a table").insert("format", 999).expect("inserted");
    transaction.commit().expect("committed");
    drop(database);
    let before = contents(dir.path());
    let said = refused(usher().args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path()));
    assert!(said.contains("newer") && said.contains("999") && said.contains("--data-dir"), "{said}");
    assert_eq!(contents(dir.path()), before, "something was touched");
}

#[test]
fn in_memory_leaves_nothing_but_the_kubeconfig() {
    let dir = temp();
    let kubeconfig = dir.path().join("config");
    let data = dir.path().join("data");
    let up = Up::start(&["--in-memory", "--kubeconfig", kubeconfig.to_str().expect("text")], &data);
    assert_eq!(up.kubeconfig(), kubeconfig);
    assert!(kubeconfig.exists());
    assert!(!data.exists());
}

#[test]
fn settings_come_from_the_file_where_no_flag_says_otherwise() {
    let dir = temp();
    let config = dir.path().join("usher.yaml");
    let kubeconfig = dir.path().join("from-file");
    std::fs::write(&config, format!("kubeconfig: {}\nin-memory: true\n", kubeconfig.display())).expect("written");
    let up = Up::start(&["--config", config.to_str().expect("text")], &dir.path().join("data"));
    assert_eq!(up.kubeconfig(), kubeconfig);
}

#[test]
fn help_has_examples_and_version_is_said() {
    let help = usher().args(["up", "--help"]).output().expect("runs");
    let text = String::from_utf8(help.stdout).expect("text");
    assert!(help.status.success() && text.contains("Examples:") && text.contains("--data-dir"), "{text}");
    let version = usher().arg("--version").output().expect("runs");
    assert!(String::from_utf8(version.stdout).expect("text").starts_with("usher "));
}

#[test]
fn manifests_are_printed_and_a_webhook_that_cannot_be_called_is_refused() {
    let printed = usher().args(["manifests", "--namespace", "batch", "--image", "r/usher:9"]).output().expect("runs");
    let text = String::from_utf8(printed.stdout).expect("text");
    assert!(printed.status.success());
    for part in ["kind: Deployment", "r/usher:9", "namespace: batch", "system:serviceaccount:batch:usher"] {
        assert!(text.contains(part), "{part}");
    }
    let refused = usher().args(["manifests", "--webhook-url", "http://x"]).output().expect("runs");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("must begin with https://"));
}
