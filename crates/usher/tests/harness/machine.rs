//! `usher up` that runs pods, and can be killed and started again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Finished, Running, Server, Shell};

/// `usher up` with this machine as node `n1`, that can be killed and started again on the same directories.
pub struct Machine {
    dir: TempDir,
    child: Option<Child>,
    kubeconfig: PathBuf,
    shell: Option<Shell>,
}

impl Server for Machine {
    fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Machine {
    pub fn start() -> Result<Machine, String> {
        Machine::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Result<Machine, String> {
        let machine = Machine::start_without_node(flags)?;
        machine.wait("get node n1 -o jsonpath={.status.conditions[-1:].status}", "ready", |text| text == "True");
        Ok(machine)
    }

    /// For flags that leave the machine out.
    pub fn start_without_node(flags: &[&str]) -> Result<Machine, String> {
        use std::os::unix::fs::PermissionsExt;
        let kubectl = super::kubectl()?;
        let dir = tempfile::Builder::new().prefix("usher-test-").tempdir().expect("create a temporary directory");
        // Pods of another user must be able to get to their own files.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).expect("open the directory");
        let kubeconfig = dir.path().join("kubeconfig");
        let mut machine = Machine { dir, child: None, kubeconfig, shell: None };
        machine.up(flags);
        machine.shell = Some(Shell::new(&kubectl, &machine));
        machine.wait("get serviceaccount default -o name", "the account", |text| !text.is_empty());
        Ok(machine)
    }

    pub fn up(&mut self, flags: &[&str]) {
        let path = |name: &str| self.dir.path().join(name);
        let log = std::fs::File::options().create(true).append(true).open(path("log")).expect("open the log");
        // The port stays the same, so that a client's configuration does.
        let port = std::fs::read_to_string(path("port")).unwrap_or_else(|_| "127.0.0.1:0".to_owned());
        let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(["up", "--node-name", "n1", "--listen", &port, "--data-dir"])
            .arg(path("data"))
            .arg("--pod-dir")
            .arg(path("pods"))
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(flags)
            .env("HOME", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("run usher");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut ready).expect("a line");
        let address = ready.strip_prefix("ready https://").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("usher up printed no ready line\n{}", self.log()));
        std::fs::write(path("port"), address).expect("remember the port");
        self.child = Some(child);
    }

    /// As if the power had gone, for usher alone.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("kill usher");
        child.wait().expect("wait for usher");
    }

    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        child.wait().expect("wait for usher");
    }

    pub fn kubectl(&self, arguments: &str) -> Finished {
        self.shell.as_ref().expect("a shell").run("", &format!("kubectl {arguments}"))
    }

    pub fn follow(&self, arguments: &str) -> Running {
        Running::start(self.shell.as_ref().expect("a shell").command("", &format!("exec kubectl {arguments}")))
    }

    pub fn apply(&self, object: &Value) {
        let file = self.dir.path().join("object.json");
        std::fs::write(&file, object.to_string()).expect("write the object");
        let shell = self.shell.as_ref().expect("a shell");
        let done = shell.run_long("", &format!("kubectl create -f {}", file.display()));
        assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    }

    /// A pod on this machine whose one container runs a shell script.
    pub fn pod(&self, name: &str, script: &str, more: Value) {
        // To Kubernetes two dollar signs are one.
        let script = script.replace("$$", "$$$$");
        let container = json!({"name": "c", "image": "busybox", "command": ["sh", "-c", script]});
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [container]}});
        merge(&mut pod, more);
        self.apply(&pod);
    }

    /// Asks until the answer is as wanted.
    pub fn wait(&self, arguments: &str, what: &str, is: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let said = self.kubectl(arguments);
            let text = said.stdout.trim_end().to_owned();
            if is(&text) {
                return text;
            }
            if Instant::now() > deadline {
                panic!("never {what}: kubectl {arguments}\n{text}\n{}\n{}", said.stderr, self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn phase(&self, name: &str, wanted: &str) {
        self.wait(&format!("get pod {name} -o jsonpath={{.status.phase}}"), wanted, |text| text == wanted);
    }

    pub fn field(&self, name: &str, path: &str) -> String {
        self.kubectl(&format!("get pod {name} -o jsonpath='{{{path}}}'")).stdout
    }

    pub fn logs(&self, arguments: &str) -> String {
        let said = self.kubectl(&format!("logs {arguments}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout
    }

    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(40).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.child.is_some() {
            // What still runs would outlive the test.
            let _ = self.kubectl("delete pods --all --grace-period=0 --force --wait=false");
            let runs = self.path("data/node/pods");
            let deadline = Instant::now() + Duration::from_secs(10);
            while std::fs::read_dir(&runs).is_ok_and(|mut dir| dir.next().is_some()) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            return self.stop();
        }
        // A test that failed while usher was down: end what it left by what is on record.
        for file in walk(&self.path("data/node/pods")).iter().filter(|file| file.ends_with("started.json")) {
            let record: Value = serde_json::from_slice(&std::fs::read(file).unwrap_or_default()).unwrap_or_default();
            for pid in [&record["shim"]["pid"], &record["process"]["pid"]] {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
            }
        }
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (Value::Array(into), Value::Array(from)) if into.len() == from.len() => {
            into.iter_mut().zip(from).for_each(|(into, from)| merge(into, from));
        }
        (into, from) => *into = from,
    }
}

/// Every file below a directory.
pub fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() { files.extend(walk(&entry.path())) } else { files.push(entry.path()) }
    }
    files
}
