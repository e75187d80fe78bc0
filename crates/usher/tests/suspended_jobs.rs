//! The user stories of KEP-2926 and KEP-5440, and their gates: the real binary, kubectl and real processes.

mod harness;

use std::time::{Duration, Instant};

use harness::machine::Machine;
use serde_json::{Value, json};

/// A Job of one container that runs a shell script and can tell its cpu limit.
fn job(name: &str, script: &str, cpu: &str, suspend: bool) -> Value {
    let script = script.replace("$$", "$$$$");
    let limit = json!({"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}});
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"suspend": suspend, "backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1, "containers": [{
                "name": "c", "image": "busybox", "command": ["sh", "-c", script], "env": [limit],
                "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}]}}},
    })
}

fn condition(machine: &Machine, job: &str, which: &str) {
    let done = machine.kubectl(&format!("wait --for=condition={which} job/{job} --timeout=60s"));
    assert_eq!(done.code, Some(0), "{job} never {which}: {}", done.stderr);
}

fn ok(machine: &Machine, arguments: &str) -> String {
    let done = machine.kubectl(arguments);
    assert_eq!(done.code, Some(0), "kubectl {arguments}: {}", done.stderr);
    done.stdout
}

fn field(machine: &Machine, what: &str, path: &str) -> String {
    ok(machine, &format!("get {what} -o jsonpath='{{{path}}}'"))
}

#[test]
fn a_queue_controller_sizes_and_starts_a_job_in_one_request() {
    let machine = need!(Machine::start());
    machine.apply(&job("sized", "echo cpu=$CPU", "100m", true));
    let patch = json!({"spec": {"suspend": false, "template": {"spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "250m"}}}]}}}});
    ok(&machine, &format!("patch job sized --type=strategic -p '{patch}'"));
    condition(&machine, "sized", "Complete");
    assert_eq!(ok(&machine, "logs job/sized"), "cpu=250\n");
    assert_eq!(
        field(&machine, "pods -l job-name=sized", ".items[*].spec.containers[0].resources.requests.cpu"),
        "250m"
    );
}

#[test]
fn a_user_shrinks_a_waiting_job_until_it_can_run() {
    let machine = need!(Machine::start());
    machine.apply(&job("big", "echo cpu=$CPU", "5000", false));
    let pods = "get pods -l job-name=big -o jsonpath='{.items[0].status.conditions[0].message}'";
    machine.wait(pods, "unschedulable", |text| text.contains("Insufficient cpu"));
    let refused = machine.kubectl("set resources job/big --requests=cpu=200m --limits=cpu=200m");
    assert!(refused.stderr.contains("field is immutable"), "{}", refused.stderr);
    ok(&machine, r#"patch job big --type=merge -p '{"spec":{"suspend":true}}'"#);
    condition(&machine, "big", "Suspended");
    ok(&machine, "set resources job/big --requests=cpu=200m --limits=cpu=200m");
    ok(&machine, r#"patch job big --type=merge -p '{"spec":{"suspend":false}}'"#);
    condition(&machine, "big", "Complete");
    assert_eq!(ok(&machine, "logs job/big"), "cpu=200\n");
    assert_eq!(field(&machine, "job big", ".status.failed"), "", "a suspended pod is no failed one");
}

#[test]
fn an_administrator_suspends_a_running_job_shrinks_it_and_resumes_it() {
    let machine = need!(Machine::start());
    let gate = machine.path("gate");
    let script = format!("echo $$ cpu=$CPU; while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    machine.apply(&job("greedy", &script, "400m", false));
    let said = machine.wait("logs job/greedy", "running", |text| text.contains("cpu=400"));
    let pid = said.split(' ').next().expect("a pid").to_owned();
    let edit = "set resources job/greedy --requests=cpu=150m --limits=cpu=150m";
    assert!(machine.kubectl(edit).stderr.contains("field is immutable"), "a running Job was resized");
    ok(&machine, r#"patch job greedy --type=merge -p '{"spec":{"suspend":true}}'"#);
    condition(&machine, "greedy", "Suspended");
    machine.wait("get pods -l job-name=greedy -o name", "without pods", str::is_empty);
    assert!(!std::path::Path::new("/proc").join(&pid).exists(), "process {pid} outlived its pod");
    assert_eq!(field(&machine, "job greedy", ".status.startTime"), "");
    ok(&machine, edit);
    std::fs::write(&gate, "").expect("let it end");
    ok(&machine, r#"patch job greedy --type=merge -p '{"spec":{"suspend":false}}'"#);
    condition(&machine, "greedy", "Complete");
    assert!(ok(&machine, "logs job/greedy").ends_with("cpu=150\n"));
    let counts = field(&machine, "job greedy", ".status.succeeded},{.status.failed");
    assert_eq!(counts, "1,", "the pods that were stopped do not count");
    let events =
        ok(&machine, "get events --field-selector involvedObject.name=greedy -o jsonpath='{.items[*].reason}'");
    for reason in ["Suspended", "Resumed", "Completed"] {
        assert!(events.contains(reason), "{reason} in {events}");
    }
}

#[test]
fn a_queue_controller_aims_a_job_at_a_zone_before_it_starts() {
    let nodes = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        nodes.path(),
        "[{count: 2, name: a, labels: {zone: a}, capacity: {cpu: 8, memory: 8Gi, pods: 110}},\n\
         {count: 2, name: b, labels: {zone: b}, taints: [{key: b, value: only, effect: NoSchedule}], \
         capacity: {cpu: 8, memory: 8Gi, pods: 110}}]",
    )
    .expect("write the nodes");
    let machine = need!(Machine::start_with(&["--sim-nodes", nodes.path().to_str().expect("a path")]));
    let mut aimed = job("aimed", "true", "100m", true);
    aimed["spec"]["parallelism"] = json!(4);
    aimed["spec"]["completions"] = json!(4);
    machine.apply(&aimed);
    let patch = json!({"spec": {"suspend": false, "template": {"metadata": {"labels": {"aimed-by": "queue"}}, "spec": {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}},
        "tolerations": [{"key": "b", "operator": "Exists"}]}}}});
    ok(&machine, &format!("patch job aimed --type=strategic -p '{patch}'"));
    condition(&machine, "aimed", "Complete");
    let on = field(&machine, "pods -l aimed-by=queue", ".items[*].spec.nodeName");
    assert_eq!(on.split(' ').count(), 4, "{on}");
    assert!(on.split(' ').all(|node| node.starts_with("b-")), "{on}");
}

#[test]
fn gates_turned_off_and_on_again_over_one_data_directory_close_and_open_the_template() {
    let mut machine = need!(Machine::start());
    machine.apply(&job("waiting", "true", "100m", true));
    let resize = |machine: &Machine, cpu: &str| {
        machine.kubectl(&format!("set resources job/waiting --requests=cpu={cpu} --limits=cpu={cpu}"))
    };
    let aim = |machine: &Machine, zone: &str| {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"zone": zone}}}}});
        machine.kubectl(&format!("patch job waiting --type=merge -p '{patch}'"))
    };
    assert_eq!((resize(&machine, "110m").code, aim(&machine, "a").code), (Some(0), Some(0)));
    for gates in ["MutablePodResourcesForSuspendedJobs=false", "MutableJobPodResourcesForSuspendedJobs=false"] {
        machine.stop();
        machine.up(&["--feature-gates", gates]);
        let refused = resize(&machine, "120m");
        assert_eq!(refused.code, Some(1), "{gates}");
        assert!(
            refused.stderr.contains("spec.template: Invalid value") && refused.stderr.contains("field is immutable")
        );
        assert_eq!(aim(&machine, gates.split('=').next().expect("a name")).code, Some(0), "directives stay open");
        let counted = ok(&machine, "get --raw /metrics");
        let counted = counted.lines().find(|line| {
            let has = |part: &str| line.contains(part);
            has("apiserver_request_total{") && has("resource=\"jobs\"") && has("verb=\"PATCH\"") && has("code=\"422\"")
        });
        assert!(counted.is_some_and(|line| line.ends_with(" 1")), "{counted:?}");
    }
    machine.stop();
    machine.up(&["--feature-gates", "MutableSchedulingDirectivesForJobs=false"]);
    assert!(aim(&machine, "c").stderr.contains("field is immutable"));
    assert_eq!(resize(&machine, "130m").code, Some(0), "resources stay open");
    machine.stop();
    machine.up(&[]);
    assert_eq!((resize(&machine, "140m").code, aim(&machine, "d").code), (Some(0), Some(0)));
    assert_eq!(field(&machine, "job waiting", ".spec.template.spec.containers[0].resources.requests.cpu"), "140m");
}

#[test]
fn two_hundred_jobs_end_with_the_right_counts_although_usher_is_killed_under_them() {
    let nodes = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(nodes.path(), "[{count: 20, name: sim, capacity: {cpu: 64, memory: 64Gi, pods: 200}}]")
        .expect("nodes");
    let flags = ["--node=false", "--sim-nodes", nodes.path().to_str().expect("a path")];
    let mut machine = need!(Machine::start_without_node(&flags));
    let list: Vec<Value> = (0..200)
        .map(|n| {
            let mut job = job(&format!("job-{n:03}"), "true", "10m", false);
            (job["spec"]["parallelism"], job["spec"]["completions"]) = (json!(2), json!(4));
            // Every tenth fails, at once and for good.
            let (time, code) = if n % 10 == 0 { ("1s", "1") } else { ("2s", "0") };
            let notes = json!({"usher.dev/sim-duration": time, "usher.dev/sim-exit-code": code});
            job["spec"]["template"]["metadata"] = json!({"annotations": notes});
            job
        })
        .collect();
    machine.apply(&json!({"apiVersion": "v1", "kind": "List", "items": list}));
    let count = |machine: &Machine, jsonpath: &str| {
        machine.kubectl(&format!("get jobs -o jsonpath='{jsonpath}'")).stdout.split_whitespace().count()
    };
    let ended = "{.items[?(@.status.completionTime)].metadata.name}";
    for wanted in [1, 60, 120] {
        let deadline = Instant::now() + Duration::from_secs(120);
        while count(&machine, ended) < wanted {
            assert!(Instant::now() < deadline, "{} of {wanted} ended\n{}", count(&machine, ended), machine.log_tail());
            std::thread::sleep(Duration::from_millis(100));
        }
        machine.kill();
        machine.up(&flags);
    }
    let all =
        "{range .items[*]}{.metadata.name}:{.status.succeeded}:{.status.failed}:{.status.conditions[-1:].type} {end}";
    let text = machine.wait(&format!("get jobs -o jsonpath='{all}'"), "all ended", |text| {
        text.split_whitespace().filter(|job| job.ends_with(":Complete") || job.ends_with(":Failed")).count() == 200
    });
    for job in text.split_whitespace() {
        let fields: Vec<&str> = job.split(':').collect();
        let fails = fields[0].ends_with('0');
        match fails {
            true => assert_eq!((fields[1], fields[3]), ("", "Failed"), "{job}"),
            false => assert_eq!((fields[1], fields[2], fields[3]), ("4", "", "Complete"), "{job}"),
        }
    }
    let pods = ok(&machine, "get pods -o jsonpath='{range .items[*]}{.metadata.labels.job-name} {end}'");
    let of = |name: &str| pods.split_whitespace().filter(|pod| *pod == name).count();
    for n in (0..200).filter(|n| n % 10 != 0) {
        assert_eq!(of(&format!("job-{n:03}")), 4, "job-{n:03}: a pod was made twice, or lost");
    }
}
