//! Starts and stops what the black-box tests drive: `usher up` as a process, a
//! real control plane through `tools/cluster`, and commands with a deadline.
//!
//! A test that lacks something it needs is skipped with a printed reason; with
//! `USHER_REQUIRE_ALL=1` it fails instead, so that CI cannot pass by skipping.

// Every test target compiles this file for itself and uses a part of it.
#![allow(dead_code)]

pub mod wire;

pub mod machine;

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Unwraps what a test needs, or skips the test.
#[macro_export]
macro_rules! need {
    ($what:expr) => {
        match $what {
            Ok(it) => it,
            Err(reason) => return $crate::harness::skip(&reason),
        }
    };
}

/// Says why a test does not run, or fails where everything has to run.
pub fn skip(reason: &str) {
    assert!(std::env::var_os("USHER_REQUIRE_ALL").is_none_or(|v| v != "1"), "required, but missing: {reason}");
    // Not println: the test runner would swallow it, because the test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

pub fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the crate lies in a repository")
}

/// An API server that kubectl can be pointed at.
pub trait Server {
    fn kubeconfig(&self) -> &Path;
    /// What it logged so far, to be shown when a test fails.
    fn log(&self) -> String;
}

/// What the tests of client libraries talk to: `usher up`, or with
/// `USHER_AGAINST=real` a real control plane, which shows that the tests are right.
pub fn server() -> Result<Box<dyn Server>, String> {
    if std::env::var_os("USHER_AGAINST").is_some_and(|against| against == "real") {
        return Ok(Box::new(Cluster::start(CONTROLLERS)?));
    }
    Ok(Box::new(Usher::start()))
}

/// What both sides run when their words are compared: what the API itself promises. Controllers of Jobs and CronJobs are left
/// out on both, because when they act is chance; their events are compared in `cronjobs.rs` and `jobs/real.rs`.
pub const CONTROLLERS: &[&str] = &[
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
];

/// `usher up` on a free port with a data directory of its own; stopped on drop.
pub struct Usher {
    child: Child,
    pub url: String,
    kubeconfig: PathBuf,
    dir: TempDir,
}

impl Usher {
    /// Without this machine as a node: what it is compared with has none either.
    pub fn start() -> Usher {
        Usher::start_with(&["--node=false", "--controllers", &CONTROLLERS.join(",")])
    }

    pub fn start_with(flags: &[&str]) -> Usher {
        let dir = temp_dir();
        let log = File::create(dir.path().join("log")).expect("create log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path().join("data"))
            .args(flags)
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("run usher");
        let stdout = child.stdout.take().expect("stdout is piped");
        let ready = first_line(stdout, Duration::from_secs(30)).and_then(|line| ready_line(&line));
        let mut usher = Usher { child, url: String::new(), kubeconfig: PathBuf::new(), dir };
        match ready {
            Some((url, kubeconfig)) => (usher.url, usher.kubeconfig) = (url, kubeconfig),
            None => panic!("usher up printed no ready line\n{}", usher.log()),
        }
        usher
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// The exit code, once it has ended by itself.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("wait for usher").code()
    }

    #[cfg(target_os = "linux")]
    pub fn rss_bytes(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("read its status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse::<usize>().ok()).expect("a number") * 1024
    }
}

impl Server for Usher {
    fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Usher {
    fn drop(&mut self) {
        signal("TERM", self.child.id());
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The real control plane with the given controllers only; stopped on drop.
pub struct Cluster {
    kubeconfig: PathBuf,
    dir: TempDir,
}

impl Cluster {
    pub fn start(controllers: &[&str]) -> Result<Cluster, String> {
        Cluster::start_with(controllers, &[])
    }

    /// With more flags of `tools/cluster up`.
    pub fn start_with(controllers: &[&str], flags: &[&OsStr]) -> Result<Cluster, String> {
        let which = controllers.join(",");
        let which: &[&OsStr] = match controllers {
            [] => &["--no-controllers".as_ref()],
            _ => &["--controllers".as_ref(), which.as_ref()],
        };
        Cluster::up(&[flags, which].concat())
    }

    /// With all that Kubernetes runs beside its API, the scheduler too.
    pub fn start_whole() -> Result<Cluster, String> {
        Cluster::up(&[])
    }

    fn up(flags: &[&OsStr]) -> Result<Cluster, String> {
        let dir = temp_dir();
        let mut command = cluster_script();
        command.arg("up").arg(dir.path()).args(flags).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("tools/cluster cannot be run: {error}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(3) {
            return Err(format!("no real control plane: {}", stderr.trim()));
        }
        let ready = ready_line(String::from_utf8_lossy(&output.stdout).trim());
        let (_, kubeconfig) = ready.unwrap_or_else(|| panic!("tools/cluster up failed\n{stderr}"));
        Ok(Cluster { kubeconfig, dir })
    }
}

impl Cluster {
    /// Has one of its processes go and come back: `etcd`, `kube-apiserver`.
    pub fn restart(&self, name: &str) {
        let done = cluster_script().arg("restart").arg(self.dir.path()).arg(name).output().expect("run tools/cluster");
        assert!(done.status.success(), "restart {name}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Server for Cluster {
    fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log/kube-apiserver.log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = cluster_script().arg("down").arg(self.dir.path()).output();
    }
}

/// `usher` with a command that runs against a server and prints one ready line; killed on drop.
pub struct Beside {
    child: Child,
    pub ready: String,
}

impl Beside {
    pub fn start(arguments: &[&str], server: &dyn Server) -> Beside {
        let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(arguments)
            .arg("--kubeconfig")
            .arg(server.kubeconfig())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("run usher");
        let stdout = child.stdout.take().expect("stdout is piped");
        let ready = first_line(stdout, Duration::from_secs(60)).unwrap_or_default();
        let beside = Beside { child, ready };
        assert!(beside.ready.starts_with("ready https://"), "usher {arguments:?} printed {:?}", beside.ready);
        beside
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The directory of the kubectl to use: `$USHER_KUBECTL`, else the one that
/// tools/cluster built, else the one on the path.
pub fn kubectl() -> Result<PathBuf, String> {
    let named = std::env::var_os("USHER_KUBECTL").map(PathBuf::from);
    let built = || {
        let output = cluster_script().arg("bin").output().ok().filter(|output| output.status.success())?;
        Some(Path::new(String::from_utf8(output.stdout).ok()?.trim()).join("kubectl"))
    };
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.is_file())
    };
    named.or_else(built).or_else(on_path).ok_or_else(|| "kubectl is not installed".to_owned())
}

/// A shell whose kubectl talks to one server, with a home directory and so
/// discovery caches of its own.
pub struct Shell {
    home: TempDir,
    path: std::ffi::OsString,
}

impl Shell {
    pub fn new(kubectl: &Path, server: &dyn Server) -> Shell {
        let home = temp_dir();
        fs::create_dir_all(home.path().join("bin")).expect("create bin");
        std::os::unix::fs::symlink(kubectl, home.path().join("bin/kubectl")).expect("link kubectl");
        fs::copy(server.kubeconfig(), home.path().join("kubeconfig")).expect("copy the kubeconfig");
        let mut path = home.path().join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        Shell { home, path }
    }

    /// A bash command line in a directory below the shell's home.
    pub fn command(&self, dir: &str, script: &str) -> Command {
        let cwd = self.home.path().join(dir);
        fs::create_dir_all(&cwd).expect("create working directory");
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(cwd).env("PATH", &self.path);
        command.env("HOME", self.home.path()).env("KUBECONFIG", self.home.path().join("kubeconfig"));
        command.env("TMPDIR", "/tmp").env("LC_ALL", "C").env("TZ", "UTC");
        for name in ["KUBE_EDITOR", "EDITOR", "VISUAL", "KUBECTL_EXTERNAL_DIFF", "XDG_CONFIG_HOME"] {
            command.env_remove(name);
        }
        command
    }

    pub fn run(&self, dir: &str, script: &str) -> Finished {
        run(self.command(dir, script), Duration::from_secs(60))
    }

    /// For what is much to do, on a machine that may be busy.
    pub fn run_long(&self, dir: &str, script: &str) -> Finished {
        run(self.command(dir, script), Duration::from_secs(300))
    }
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Finished {
    pub stdout: String,
    pub stderr: String,
    /// None when it was killed, by us after the deadline or by a signal.
    pub code: Option<i32>,
}

/// Runs to the end or to the deadline, after which its process group is killed.
pub fn run(command: Command, timeout: Duration) -> Finished {
    let running = Running::start(command);
    let deadline = Instant::now() + timeout;
    running.finish_by(deadline)
}

/// A command in the background, in its own process group; killed on drop.
pub struct Running {
    child: Child,
    stdout: thread::JoinHandle<()>,
    stderr: thread::JoinHandle<()>,
    printed: std::sync::Arc<std::sync::Mutex<[Vec<u8>; 2]>>,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("run bash");
        let printed = std::sync::Arc::new(std::sync::Mutex::new([Vec::new(), Vec::new()]));
        let collect = |index: usize, mut from: Box<dyn Read + Send>| {
            let printed = printed.clone();
            thread::spawn(move || {
                let mut buffer = [0; 8192];
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    printed.lock().expect("lock output")[index].extend_from_slice(&buffer[..n]);
                }
            })
        };
        let stdout = collect(0, Box::new(child.stdout.take().expect("stdout is piped")));
        let stderr = collect(1, Box::new(child.stderr.take().expect("stderr is piped")));
        Running { child, stdout, stderr, printed }
    }

    pub fn stdout_lines(&self) -> usize {
        self.printed.lock().expect("lock output")[0].iter().filter(|&&byte| byte == b'\n').count()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it and returns what it printed until then.
    pub fn stop(self) -> Finished {
        self.finish_by(Instant::now())
    }

    fn finish_by(mut self, deadline: Instant) -> Finished {
        let mut pause = Duration::from_millis(1);
        let mut code = None;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    code = status.code();
                    break;
                }
                Ok(None) if Instant::now() < deadline => thread::sleep(pause),
                _ => break,
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        if code.is_none() {
            signal_group("KILL", self.child.id());
            let _ = self.child.wait();
        }
        let _ = self.stdout.join();
        let _ = self.stderr.join();
        let [stdout, stderr] = &*self.printed.lock().expect("lock output");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Finished { stdout: text(stdout), stderr: text(stderr), code }
    }
}

fn cluster_script() -> Command {
    Command::new(repository().join("tools/cluster/cluster"))
}

/// `ready URL kubeconfig=PATH`, as `usher up` and `cluster up` both print it.
fn ready_line(line: &str) -> Option<(String, PathBuf)> {
    let (url, path) = line.strip_prefix("ready ")?.split_once(" kubeconfig=")?;
    Some((url.to_owned(), PathBuf::from(path)))
}

fn first_line(from: impl Read + Send + 'static, timeout: Duration) -> Option<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(from).lines();
        if let Some(Ok(line)) = lines.next() {
            let _ = sender.send(line);
        }
        // Read on, so that a later line never meets a closed pipe.
        lines.for_each(drop);
    });
    receiver.recv_timeout(timeout).ok()
}

fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

fn signal_group(name: &str, leader: u32) {
    let group = format!("-{leader}");
    let _ = Command::new("kill")
        .args([OsStr::new(&format!("-{name}")), OsStr::new("--"), OsStr::new(&group)])
        .stderr(Stdio::null())
        .status();
}

pub fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("usher-test-").tempdir().expect("create a temporary directory")
}
