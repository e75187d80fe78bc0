//! Pods as processes of this machine: the real binary, driven by kubectl.

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use harness::Server;
use harness::machine::{Machine, walk};
use serde_json::json;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn init_containers_run_in_order_and_exit_codes_are_told() {
    let machine = need!(Machine::start());
    let init = |name: &str| {
        json!({"name": name, "image": "busybox", "command": ["sh", "-c", format!("echo {name} >> /data/order")],
            "volumeMounts": [{"name": "d", "mountPath": "/data"}]})
    };
    machine.pod(
        "p",
        "cat /data/order; echo oops >&2; printf 'the end' > /dev/termination-log; exit 3",
        json!({"spec": {"initContainers": [init("one"), init("two"), init("three")],
            "volumes": [{"name": "d", "emptyDir": {}}],
            "containers": [{"volumeMounts": [{"name": "d", "mountPath": "/data"}]}]}}),
    );
    machine.phase("p", "Failed");
    let logs = machine.logs("p -c c");
    assert!(logs.contains("one\ntwo\nthree\n") && logs.contains("oops\n"), "{logs}");
    assert_eq!(machine.field("p", ".status.containerStatuses[0].state.terminated.exitCode"), "3");
    assert_eq!(machine.field("p", ".status.containerStatuses[0].state.terminated.message"), "the end");
    assert_eq!(
        machine.field("p", ".status.initContainerStatuses[*].state.terminated.reason"),
        "Completed Completed Completed"
    );
    let events =
        machine.wait("get events -o jsonpath={.items[*].reason}", "all events", |t| t.matches("Started").count() == 4);
    assert!(events.contains("Pulled") && events.contains("Created"), "{events}");
}

#[test]
fn signals_and_missing_commands_have_their_codes() {
    let machine = need!(Machine::start());
    machine.pod("killed", "kill -9 $$", json!({}));
    machine.phase("killed", "Failed");
    assert_eq!(machine.field("killed", ".status.containerStatuses[0].state.terminated.exitCode"), "137");
    machine.pod("missing", "", json!({"spec": {"containers": [{"command": ["no-such-program"]}]}}));
    machine.phase("missing", "Failed");
    let end = machine.field("missing", ".status.containerStatuses[0].state.terminated");
    assert!(end.contains("StartError") && end.contains("128") && end.contains("executable file not found"), "{end}");
    machine.pod("silent", "", json!({"spec": {"containers": [{"command": null}]}}));
    let reason = "get pod silent -o jsonpath={.status.containerStatuses[0].state.waiting.reason}";
    machine.wait(reason, "refused", |text| text == "CreateContainerError");
    let said = machine.kubectl("logs silent");
    assert!(
        said.stderr.contains("container \"c\" in pod \"silent\" is waiting to start: CreateContainerError"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_failing_container_backs_off_and_its_last_output_is_kept() {
    let machine = need!(Machine::start());
    machine.pod(
        "p",
        "echo run $(cat n 2>/dev/null || echo 0); echo 1 > n; exit 1",
        json!({"spec": {"restartPolicy": "Always"}}),
    );
    let reason = "get pod p -o jsonpath={.status.containerStatuses[0].state.waiting.reason}";
    machine.wait(reason, "backing off", |text| text == "CrashLoopBackOff");
    assert_eq!(machine.field("p", ".status.containerStatuses[0].restartCount"), "1");
    assert!(machine.field("p", ".status.containerStatuses[0].state.waiting.message").starts_with("back-off 10s"));
    assert_eq!(machine.logs("p --previous"), "run 1\n");
    machine.wait("get events -o jsonpath={.items[*].reason}", "told", |text| text.contains("BackOff"));
}

#[test]
fn logs_are_shown_as_asked_for() {
    let machine = need!(Machine::start());
    machine.pod("p", "for n in 1 2 3 4 5; do echo line $n; done", json!({}));
    machine.phase("p", "Succeeded");
    assert_eq!(machine.logs("p"), "line 1\nline 2\nline 3\nline 4\nline 5\n");
    assert_eq!(machine.logs("p --tail=2"), "line 4\nline 5\n");
    assert_eq!(machine.logs("p --limit-bytes=8"), "line 1\nl");
    assert_eq!(machine.logs("p --since=1h"), machine.logs("p"));
    assert_eq!(machine.logs("p --since-time=2100-01-01T00:00:00Z"), "");
    let stamped = machine.logs("p --timestamps --tail=1");
    let (time, text) = stamped.split_once(' ').expect("a time and a text");
    assert!(time.parse::<jiff::Timestamp>().is_ok() && text == "line 5\n", "{stamped}");
    for (arguments, expected) in [
        ("p --previous", "previous terminated container \"c\" in pod \"p\" not found"),
        ("p -c x", "container x is not valid for pod p"),
    ] {
        let said = machine.kubectl(&format!("logs {arguments}"));
        assert!(said.code == Some(1) && said.stderr.contains(expected), "{}", said.stderr);
    }
}

#[test]
fn logs_are_followed_to_the_end_of_the_container() {
    let machine = need!(Machine::start());
    let gate = machine.path("gate");
    machine.pod(
        "p",
        &format!("echo first; while [ ! -e {} ]; do sleep 0.05; done; echo last", gate.display()),
        json!({}),
    );
    machine.phase("p", "Running");
    let mut following = machine.follow("logs -f p");
    let deadline = Instant::now() + Duration::from_secs(30);
    while following.stdout_lines() < 1 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(following.is_running(), "it ended before the container did");
    std::fs::write(&gate, "").expect("open the gate");
    while following.is_running() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(following.stop().stdout, "first\nlast\n");
}

#[test]
fn a_deleted_pod_is_asked_to_end_and_one_that_will_not_is_killed() {
    let machine = need!(Machine::start());
    let grace = json!({"spec": {"terminationGracePeriodSeconds": 60}});
    machine.pod("polite", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", grace);
    // Started by a shell that leaves: only the whole group, and what left it, will do.
    let stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' &) ; echo up; while :; do sleep 0.05; done";
    machine.pod("stubborn", stubborn, json!({"spec": {"terminationGracePeriodSeconds": 1}}));
    machine.wait("logs polite", "up", |text| text == "up");
    let text = machine.wait("logs stubborn", "up", |text| text.lines().count() == 2);
    let escaped = text.lines().find(|line| *line != "up").expect("a process id").to_owned();
    let begun = Instant::now();
    assert_eq!(machine.kubectl("delete pod polite").code, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(30), "it took its whole grace period: {:?}", begun.elapsed());
    assert_eq!(machine.kubectl("delete pod stubborn").code, Some(0));
    assert!(!Path::new("/proc").join(&escaped).exists(), "process {escaped} still runs");
    let events = machine.kubectl("get events -o jsonpath={.items[*].reason}").stdout;
    assert!(events.contains("Killing"), "{events}");
}

#[test]
fn environment_and_volumes_come_from_the_api() {
    let machine = need!(Machine::start());
    machine.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"key": "value", "f.txt": "from a map\n"}}));
    machine.apply(
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"word": "hush"}}),
    );
    let script = "echo $A $NAME $CPU $P_key; cat /etc/usher-map/f.txt; cat /usher-secret/word; echo; cat /usher-info/labels; echo; \
                  cat /host/hello; cat $TOKENS/namespace; echo; test -s $TOKENS/token && test -s $TOKENS/ca.crt && echo token";
    std::fs::create_dir(machine.path("shared")).expect("create a directory");
    std::fs::write(machine.path("shared/hello"), "from the host\n").expect("write a file");
    machine.pod(
        "p",
        script,
        json!({"metadata": {"labels": {"app": "x"}}, "spec": {
            "containers": [{
                "args": ["$(A)"],
                "resources": {"requests": {"cpu": "1500m"}},
                "envFrom": [{"configMapRef": {"name": "cm"}, "prefix": "P_"}],
                "env": [
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "key"}}},
                    {"name": "A", "value": "<$(B)>"},
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
                    {"name": "TOKENS", "value": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                "volumeMounts": [
                    {"name": "map", "mountPath": "/etc/usher-map"}, {"name": "secret", "mountPath": "/usher-secret"},
                    {"name": "info", "mountPath": "/usher-info"}, {"name": "host", "mountPath": "/host"}]}],
            "volumes": [
                {"name": "map", "configMap": {"name": "cm"}}, {"name": "secret", "secret": {"secretName": "s"}},
                {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "host", "hostPath": {"path": machine.path("shared"), "type": "Directory"}}]}}),
    );
    machine.wait("get pod p -o jsonpath={.status.phase}", "over", |text| matches!(text, "Succeeded" | "Failed"));
    let expected = "<value> p 1500 value\nfrom a map\nhush\napp=\"x\"\nfrom the host\ndefault\ntoken\n";
    assert_eq!(machine.logs("p"), expected);
    assert!(!Path::new("/usher-secret").exists() && !Path::new("/etc/usher-map").exists(), "the machine was changed");
}

#[test]
fn what_is_missing_is_waited_for() {
    let machine = need!(Machine::start());
    machine.pod(
        "p",
        "echo $A",
        json!({"spec": {"containers": [{
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]}]}}),
    );
    let waiting = "get pod p -o jsonpath={.status.containerStatuses[0].state.waiting}";
    let text = machine.wait(waiting, "refused", |text| text.contains("CreateContainerConfigError"));
    assert!(text.contains("secret \\\"late\\\" not found"), "{text}");
    machine.apply(
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"k": "now"}}),
    );
    machine.phase("p", "Succeeded");
    assert_eq!(machine.logs("p"), "now\n");
}

#[test]
fn a_killed_usher_finds_its_processes_again_and_how_others_ended() {
    let mut machine = need!(Machine::start());
    let gate = machine.path("gate");
    let hold = format!("echo $$; while [ ! -e {} ]; do sleep 0.05; done; echo through; exit 7", gate.display());
    machine.pod("ends", &hold, json!({}));
    machine.pod("goes-on", "echo $$; while :; do sleep 0.05; done", json!({}));
    let pid = machine.wait("logs goes-on", "up", |text| !text.is_empty());
    machine.wait("logs ends", "up", |text| !text.is_empty());
    let runs = |machine: &Machine| machine.field("goes-on", ".status.containerStatuses[0].containerID");
    machine.phase("goes-on", "Running");
    let before = runs(&machine);
    machine.kill();
    assert!(Path::new("/proc").join(&pid).exists(), "the process died with usher");
    std::fs::write(&gate, "").expect("open the gate");
    let record = machine.path("data/node/pods");
    let ended = |dir: &Path| walk(dir).iter().any(|file| file.ends_with("exit.json"));
    while !ended(&record) {
        std::thread::sleep(Duration::from_millis(10));
    }
    machine.up(&[]);
    machine.phase("ends", "Failed");
    assert_eq!(machine.field("ends", ".status.containerStatuses[0].state.terminated.exitCode"), "7");
    assert!(machine.logs("ends").ends_with("through\n"));
    machine.phase("goes-on", "Running");
    assert_eq!((runs(&machine), machine.logs("goes-on").trim()), (before, pid.as_str()), "it was started again");
    // And it is still ours to end.
    assert_eq!(machine.kubectl("delete pod goes-on --grace-period=1").code, Some(0));
    assert!(!Path::new("/proc").join(&pid).exists(), "process {pid} still runs");
}

#[test]
fn a_process_that_is_lost_counts_as_failed_and_is_not_run_again() {
    let mut machine = need!(Machine::start());
    machine.pod(
        "p",
        "echo $$; echo ran >> /out/count; while :; do sleep 0.05; done",
        json!({"spec": {"containers": [{"volumeMounts": [{"name": "d", "mountPath": "/out"}]}],
            "volumes": [{"name": "d", "hostPath": {"path": open_dir(&machine.path("out"))}}]}}),
    );
    let pid = machine.wait("logs p", "up", |text| !text.is_empty());
    machine.phase("p", "Running");
    machine.kill();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let shim = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)).expect("a parent").to_owned();
    for pid in [&shim, &pid] {
        let _ = Command::new("kill").args(["-9", pid]).status();
    }
    machine.up(&[]);
    machine.phase("p", "Failed");
    assert_eq!(machine.field("p", ".status.containerStatuses[0].state.terminated.reason"), "ContainerStatusUnknown");
    assert_eq!(std::fs::read_to_string(machine.path("out/count")).expect("it ran"), "ran\n");
}

#[test]
fn pods_of_an_usher_that_keeps_nothing_end_with_it() {
    let mut machine = need!(Machine::start_with(&["--in-memory"]));
    machine.pod("p", "echo $$; while :; do sleep 0.05; done", json!({}));
    let pid = machine.wait("logs p", "up", |text| !text.is_empty()).trim().to_owned();
    machine.wait("get pod p -o jsonpath={.status.containerStatuses[0].ready}", "ready", |ready| ready == "true");
    machine.wait("get events -o jsonpath={.items[*].reason}", "told of", |reasons| reasons.contains("Started"));
    assert_eq!(machine.field("p", ".status.phase"), "Running");
    assert!(Path::new("/proc").join(&pid).exists(), "process {pid} ended while usher was there");
    // Nothing is kept, so that nobody would find it again: it goes with usher.
    machine.kill();
    let deadline = Instant::now() + Duration::from_secs(10);
    while Path::new("/proc").join(&pid).exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!Path::new("/proc").join(&pid).exists(), "process {pid} is forgotten");
}

#[test]
fn pods_cannot_read_the_data_directory_when_usher_is_root() {
    let machine = need!(Machine::start());
    if !is_root() {
        assert!(machine.log().contains("pods run with the rights of the user who started usher"));
        return;
    }
    let keys = machine.path("data");
    machine.pod("p", &format!("id -u; ls {} || echo refused", keys.display()), json!({}));
    machine.phase("p", "Succeeded");
    let logs = machine.logs("p");
    // What is written to two streams comes in any order.
    assert!(logs.lines().any(|line| line == "65534") && logs.lines().any(|line| line == "refused"), "{logs}");
    machine.pod("other", "id -u", json!({"spec": {"securityContext": {"runAsUser": 1234}}}));
    machine.phase("other", "Succeeded");
    assert_eq!(machine.logs("other"), "1234\n");
    machine.pod("root", "id -u", json!({"spec": {"securityContext": {"runAsUser": 0}}}));
    let waiting = "get pod root -o jsonpath={.status.containerStatuses[0].state.waiting}";
    let text = machine.wait(waiting, "refused", |text| text.contains("CreateContainerConfigError"));
    assert!(text.contains("--pod-user"), "{text}");
}

#[test]
fn probes_make_ready_and_restart() {
    let machine = need!(Machine::start());
    let probe =
        |command: &str| json!({"exec": {"command": ["sh", "-c", command]}, "periodSeconds": 1, "failureThreshold": 1});
    machine.pod(
        "p",
        "while :; do sleep 0.05; done",
        json!({"spec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 1, "containers": [{
            "startupProbe": probe("true"), "readinessProbe": probe("test -e /out/ready"), "livenessProbe": probe("test ! -e /out/sick"),
            "volumeMounts": [{"name": "d", "mountPath": "/out"}]}],
            "volumes": [{"name": "d", "hostPath": {"path": open_dir(&machine.path("out"))}}]}}),
    );
    let ready = "get pod p -o jsonpath={.status.containerStatuses[0].ready}";
    machine.wait("get pod p -o jsonpath={.status.containerStatuses[0].started}", "started", |text| text == "true");
    assert_eq!(machine.kubectl(ready).stdout, "false");
    std::fs::write(machine.path("out/ready"), "").expect("make it ready");
    machine.wait(ready, "ready", |text| text == "true");
    std::fs::write(machine.path("out/sick"), "").expect("make it sick");
    machine.wait("get pod p -o jsonpath={.status.containerStatuses[0].restartCount}", "restarted", |text| text != "0");
    let events = machine.kubectl("get events -o jsonpath={.items[*].message}").stdout;
    assert!(
        events.contains("Liveness probe failed")
            && events.contains("Container c failed liveness probe, will be restarted"),
        "{events}"
    );
}

#[test]
fn hooks_run_after_the_start_and_before_the_stop() {
    let machine = need!(Machine::start());
    let hook = |text: &str| json!({"exec": {"command": ["sh", "-c", format!("echo {text} $A >> /out/said")]}});
    let out = json!([{"name": "d", "hostPath": {"path": open_dir(&machine.path("out"))}}]);
    machine.pod(
        "p",
        "trap 'echo term >> /out/said; exit 0' TERM; while :; do sleep 0.05; done",
        json!({"spec": {"terminationGracePeriodSeconds": 60, "volumes": out, "containers": [{
            "env": [{"name": "A", "value": "word"}], "volumeMounts": [{"name": "d", "mountPath": "/out"}],
            "lifecycle": {"postStart": hook("hello"), "preStop": hook("bye")}}]}}),
    );
    machine.phase("p", "Running");
    let said = || std::fs::read_to_string(machine.path("out/said")).unwrap_or_default();
    assert_eq!(said(), "hello word\n", "running, and so its first hook is done");
    assert_eq!(machine.kubectl("delete pod p").code, Some(0));
    assert_eq!(said(), "hello word\nbye word\nterm\n");
}

#[test]
fn a_first_hook_that_fails_ends_the_container_and_a_last_one_does_not_keep_it() {
    let machine = need!(Machine::start());
    let fails = json!({"exec": {"command": ["sh", "-c", "echo a secret; exit 1"]}});
    machine.pod(
        "first",
        "while :; do sleep 0.05; done",
        json!({"spec": {"terminationGracePeriodSeconds": 1, "containers": [{"lifecycle": {"postStart": fails}}]}}),
    );
    machine.phase("first", "Failed");
    assert_eq!(machine.field("first", ".status.containerStatuses[0].state.terminated.exitCode"), "143");
    let sleeps = json!({"exec": {"command": ["sleep", "600"]}});
    for (name, hook, grace) in [("last", fails, 600), ("slow", sleeps, 1)] {
        machine.pod(
            name,
            "echo up; while :; do sleep 0.05; done",
            json!({"spec": {"terminationGracePeriodSeconds": grace, "containers": [{"lifecycle": {"preStop": hook}}]}}),
        );
        machine.wait(&format!("logs {name}"), "up", |text| text == "up");
        assert_eq!(machine.kubectl(&format!("delete pod {name} --timeout=60s")).code, Some(0), "{name}");
    }
    let events = "get events -o jsonpath='{range .items[*]}{.involvedObject.name} {.reason}: {.message}{\"\\n\"}{end}'";
    let told = machine.wait(events, "told", |text| text.contains("last FailedPreStopHook: PreStopHook failed"));
    assert!(told.contains("first FailedPostStartHook: PostStartHook failed"), "{told}");
    assert!(told.contains("first Killing: FailedPostStartHook"), "{told}");
    assert!(!told.contains("slow FailedPreStopHook"), "out of time is no failure: {told}");
    assert!(!told.contains("a secret"), "{told}");
}

/// Answers HTTPS with a certificate that nobody has signed.
const SERVER: &str = r#"
import http.server, ssl, subprocess, sys
subprocess.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 1 -subj /CN=nobody".split(), check=True, capture_output=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/well" else 500); self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain("c.pem", "k.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

#[test]
fn https_probes_ask_without_looking_at_the_certificate() {
    let machine = need!(Machine::start());
    for tool in ["python3", "openssl"] {
        need!(Command::new(tool).arg("--help").output().map_err(|_| format!("{tool} is not installed")));
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": free, "scheme": "HTTPS"}, "periodSeconds": 1});
    let container = |extra| {
        let mut container = json!({"name": "c", "image": "x", "command": ["python3", "-c", SERVER, free.to_string()]});
        container["readinessProbe"] = extra;
        json!({"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}})
    };
    machine.pod("well", "", container(probe("/well")));
    machine.wait("get pod well -o jsonpath={.status.containerStatuses[0].ready}", "ready", |text| text == "true");
    machine.kubectl("delete pod well");
    machine.pod("ill", "", container(probe("/ill")));
    let message = "Readiness probe failed: HTTP probe failed with statuscode: 500";
    machine.wait("get events -o jsonpath={.items[*].message}", "unhealthy", |text| text.contains(message));
    assert_eq!(machine.field("ill", ".status.containerStatuses[0].ready"), "false");
}

#[test]
fn volumes_follow_what_they_are_made_from() {
    let machine = need!(Machine::start());
    let object = |kind: &str, value: &str| {
        let data = if kind == "Secret" { "stringData" } else { "data" };
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "v"}, data: {"a": value, "b": value}})
    };
    machine.apply(&object("ConfigMap", "one"));
    machine.apply(&object("Secret", "one"));
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/v/{name}")});
    machine.pod(
        "p",
        "while :; do cat /v/map/a /v/map/b /v/secret/a /v/info/labels > /v/out/new; echo >> /v/out/new; mv /v/out/new /v/out/now; sleep 0.05; done",
        json!({"metadata": {"labels": {"is": "one"}}, "spec": {"terminationGracePeriodSeconds": 1,
            "containers": [{"volumeMounts": [mount("map"), mount("secret"), mount("info"), mount("out")]}],
            "volumes": [
                {"name": "map", "configMap": {"name": "v"}}, {"name": "secret", "secret": {"secretName": "v", "defaultMode": 0o400}},
                {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "out", "hostPath": {"path": open_dir(&machine.path("out"))}}]}}),
    );
    let shows = |wanted: &str| {
        let deadline = Instant::now() + Duration::from_secs(30);
        let read = || std::fs::read_to_string(machine.path("out/now")).unwrap_or_default();
        while read().trim() != wanted {
            assert!(Instant::now() < deadline, "{wanted:?} is not {:?}\n{}", read(), machine.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    shows("oneoneoneis=\"one\"");
    let change = |what: &str, value: &str| {
        let patch = format!("patch {what} v --type=merge -p '{{\"data\":{{\"a\":\"{value}\",\"b\":\"{value}\"}}}}'");
        assert_eq!(machine.kubectl(&patch).code, Some(0));
    };
    change("configmap", "two");
    shows("twotwooneis=\"one\"");
    change("secret", "dGhyZWU=");
    shows("twotwothreeis=\"one\"");
    assert_eq!(machine.kubectl("label pod p is=four --overwrite").code, Some(0));
    shows("twotwothreeis=\"four\"");
}

#[test]
fn logs_of_several_containers_are_told_apart() {
    let machine = need!(Machine::start());
    let container = |name: &str| json!({"name": name, "image": "x", "command": ["echo", format!("from {name}")]});
    machine.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n1",
        "restartPolicy": "Never", "initContainers": [container("i")], "containers": [container("a"), container("b")]}}));
    machine.phase("p", "Succeeded");
    // kubectl asks for them in any order.
    let sorted = |arguments: &str| {
        let text = machine.logs(arguments);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted("p --all-containers"), ["from a", "from b", "from i"]);
    assert_eq!(sorted("p --all-containers --prefix"), ["[pod/p/a] from a", "[pod/p/b] from b", "[pod/p/i] from i"]);
    assert_eq!(machine.logs("p -c b"), "from b\n");
}

#[test]
fn commands_run_in_containers_with_streams_and_exit_codes() {
    let machine = need!(Machine::start());
    machine.pod("p", "echo up; while :; do sleep 0.05; done", json!({"spec": {"terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "d", "emptyDir": {}}],
        "containers": [{"env": [{"name": "A", "value": "word"}], "volumeMounts": [{"name": "d", "mountPath": "/usher-d"}]}]}}));
    machine.wait("logs p", "up", |text| text == "up");
    let said = machine.kubectl("exec p -- sh -c 'echo $A > /usher-d/f; cat /usher-d/f; echo oops >&2; exit 3'");
    assert_eq!((said.code, said.stdout.as_str()), (Some(3), "word\n"));
    assert_eq!(said.stderr, "oops\ncommand terminated with exit code 3\n");
    let said = machine.kubectl("exec p -c c -- cat /usher-d/f");
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(0), "word\n", ""));
    // What is typed arrives, all of it, and its end too.
    let input = machine.path("input");
    std::fs::write(&input, "line\n".repeat(100_000)).expect("write a file");
    let said = machine.kubectl(&format!("exec -i p -- wc -l < {}", input.display()));
    assert_eq!((said.code, said.stdout.trim()), (Some(0), "100000"), "{}", said.stderr);
    let said = machine.kubectl("exec p -- head -c 3000000 /dev/zero | wc -c");
    assert_eq!((said.code, said.stdout.trim()), (Some(0), "3000000"), "{}", said.stderr);
    let missing = json!({"secretKeyRef": {"name": "none", "key": "k"}});
    machine.pod("waits", "true", json!({"spec": {"containers": [{"env": [{"name": "A", "valueFrom": missing}]}]}}));
    let said = machine.kubectl("exec p -- no-such-program");
    assert!(said.code == Some(1) && said.stderr.contains("executable file not found in $PATH"), "{}", said.stderr);
    for (arguments, why) in [
        ("exec p -c x -- true", "container x is not valid for pod p"),
        ("exec waits -- true", "container not found (\"c\"): it does not run"),
        ("exec none -- true", "pods \"none\" not found"),
        ("attach p", "attaching to a process is not supported by usher"),
        ("port-forward p :80", "forwarding a port is not supported by usher"),
    ] {
        let said = machine.kubectl(arguments);
        assert!(said.code == Some(1) && said.stderr.contains(why), "{arguments}: {}", said.stderr);
    }
    // It ends with the container.
    let mut waiting = machine.follow("exec p -- sleep 6001");
    let running = || Command::new("pgrep").args(["-f", "^sleep 6001$"]).output().is_ok_and(|o| o.status.success());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !running() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(machine.kubectl("delete pod p").code, Some(0));
    while waiting.is_running() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!waiting.is_running(), "it waits for a command whose container has gone");
}

#[test]
fn a_terminal_is_a_terminal() {
    let machine = need!(Machine::start());
    need!(Command::new("script").arg("--version").output().map_err(|_| "script is not installed".to_owned()));
    machine.pod("p", "echo up; while :; do sleep 0.05; done", json!({"spec": {"terminationGracePeriodSeconds": 1}}));
    machine.wait("logs p", "up", |text| text == "up");
    // kubectl wants a terminal of its own for -t.
    let said = machine.kubectl("version --client >/dev/null; script -qec \"kubectl exec -it p -- sh -c 'test -t 0 && tty && echo TERM=\\$TERM; exit 4'\" /dev/null");
    assert_eq!(said.code, Some(4), "{}\n{}", said.stdout, said.stderr);
    assert!(said.stdout.contains("/dev/pts/") && said.stdout.contains("TERM=xterm"), "{}", said.stdout);
}

#[test]
fn nodes_of_an_earlier_simulation_go_and_nothing_is_placed_on_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("nodes.yaml");
    let simulate = |machine: &mut Machine, nodes: &str| {
        std::fs::write(&file, nodes).expect("write the file");
        machine.stop();
        machine.up(&["--node=false", "--sim-nodes", file.to_str().expect("a path")]);
    };
    let mut machine = need!(Machine::start_without_node(&["--node=false"]));
    simulate(&mut machine, "- {count: 2, name: old}\n- {count: 1, name: new}\n");
    machine.wait("get nodes -o name", "three", |text| text.lines().count() == 3);
    simulate(&mut machine, "- {count: 1, name: new}\n");
    machine.wait("get nodes -o name", "one", |text| text == "node/new-0");
    machine.stop();
    machine.up(&["--node=false"]);
    machine.wait("get nodes -o name", "none", str::is_empty);
}

#[test]
fn a_container_leaves_its_last_words_where_and_as_it_wants() {
    let machine = need!(Machine::start());
    let policy = json!({"spec": {"containers": [{"terminationMessagePolicy": "FallbackToLogsOnError"}]}});
    machine.pod("failed", "echo first; echo last; exit 1", policy.clone());
    machine.pod("fine", "echo hello", policy);
    machine.pod(
        "elsewhere",
        "printf words > /usher-words",
        json!({"spec": {"containers": [{"terminationMessagePath": "/usher-words"}]}}),
    );
    for (name, phase, message) in
        [("failed", "Failed", "first\nlast\n"), ("fine", "Succeeded", ""), ("elsewhere", "Succeeded", "words")]
    {
        machine.phase(name, phase);
        assert_eq!(machine.field(name, ".status.containerStatuses[0].state.terminated.message"), message, "{name}");
    }
}

#[test]
fn simulated_pods_say_that_they_print_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("nodes.yaml");
    std::fs::write(&file, "- {count: 2, name: fake}\n").expect("write the file");
    let machine = need!(Machine::start_with(&["--sim-nodes", file.to_str().expect("a path")]));
    machine.pod("p", "", json!({"spec": {"nodeName": "fake-1"}}));
    machine.phase("p", "Succeeded");
    assert_eq!(machine.logs("p"), "node fake-1 is simulated: its pods run nothing and print nothing\n");
}

/// A directory that anyone may write to.
fn open_dir(path: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path).expect("create a directory");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("open it");
    path.to_owned()
}
