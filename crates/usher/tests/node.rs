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
    let pid = machine.wait("logs p", "up", |text| !text.is_empty());
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
