//! Jobs in queues as a user sees them: the real binary, kubectl, real processes, and kill -9.

mod harness;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use harness::machine::Machine;
use serde_json::{Value, json};

fn ok(machine: &Machine, arguments: &str) -> String {
    let done = machine.kubectl(arguments);
    assert_eq!(done.code, Some(0), "kubectl {arguments}: {}", done.stderr);
    done.stdout
}

fn team(machine: &Machine, name: &str, cpu: &str) {
    machine.apply(&json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
        "spec": {"cohortName": "everybody", "namespaceSelector": {},
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                {"name": "default", "resources": [{"name": "cpu", "nominalQuota": cpu}]}]}]}}));
    machine.apply(&json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": name,
        "namespace": "default"}, "spec": {"clusterQueue": name}}));
}

fn flavor(machine: &Machine) {
    machine.apply(
        &json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "default"}}),
    );
}

fn job(name: &str, queue: &str, class: &str, script: &str) -> Value {
    let mut labels = json!({"kueue.x-k8s.io/queue-name": queue});
    if !class.is_empty() {
        labels["kueue.x-k8s.io/priority-class"] = json!(class);
    }
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [
            {"name": "c", "image": "busybox", "command": ["sh", "-c", script], "resources": {"requests": {"cpu": "10m"}}}]}}}})
}

fn until_runs(machine: &Machine, job: &str) {
    let what = format!("get job {job} -o jsonpath='{{.status.ready}}'");
    machine.wait(&what, "running", |ready| ready == "1");
}

/// The Workloads, by the Jobs they belong to.
fn workloads(machine: &Machine) -> BTreeMap<String, Value> {
    let list: Value = serde_json::from_str(&ok(machine, "get workloads -o json")).expect("json");
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let owner = |w: &Value| w["metadata"]["ownerReferences"][0]["name"].as_str().unwrap_or_default().to_owned();
    items.into_iter().map(|workload| (owner(&workload), workload)).collect()
}

fn reason(workload: &Value, ty: &str) -> Option<String> {
    let conditions = workload["status"]["conditions"].as_array()?;
    let one = conditions.iter().find(|condition| condition["type"] == ty)?;
    one["reason"].as_str().map(str::to_owned)
}

/// The Jobs whose Workloads have a condition, with its reason, once there are as many as wanted.
fn until_said(machine: &Machine, ty: &str, wanted: usize) -> BTreeMap<String, String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let said: BTreeMap<String, String> =
            workloads(machine).into_iter().filter_map(|(job, w)| Some((job, reason(&w, ty)?))).collect();
        if said.len() >= wanted {
            return said;
        }
        assert!(Instant::now() < deadline, "{ty} is said of {said:?} only");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn until_waits(machine: &Machine, job: &str, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while workloads(machine).get(job).and_then(|w| reason(w, "QuotaReserved")).as_deref() != Some(wanted) {
        assert!(Instant::now() < deadline, "{job} does not wait for {wanted}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

const FOREVER: &str = "while :; do sleep 0.05; done";

#[test]
fn two_teams_borrow_reclaim_and_preempt_with_real_jobs() {
    let machine = need!(Machine::start());
    flavor(&machine);
    team(&machine, "a", "20m");
    team(&machine, "b", "10m");
    for name in ["a1", "a2", "a3"] {
        machine.apply(&job(name, "a", "", FOREVER));
        until_runs(&machine, name);
    }
    // The third runs on what team b leaves; a fourth has to wait, and says why.
    machine.apply(&job("a4", "a", "", FOREVER));
    until_waits(&machine, "a4", "WaitingForQuota");
    let why = ok(&machine, "get events --field-selector reason=Pending -o jsonpath='{.items[*].message}'");
    assert!(why.contains("insufficient unused quota for cpu in flavor default, 10m more needed"), "{why}");
    assert_eq!(ok(&machine, "get job a4 -o jsonpath='{.spec.suspend}'"), "true");

    machine.apply(&job("b1", "b", "", FOREVER));
    until_runs(&machine, "b1");
    let (victim, why) = until_said(&machine, "Preempted", 1).pop_first().expect("a victim");
    assert!(["a1", "a2", "a3"].contains(&victim.as_str()), "{victim}");
    assert_eq!(why, "InCohortReclamation");
    machine.wait(&format!("get pods -l job-name={victim} -o name"), "without pods", str::is_empty);
    assert_eq!(ok(&machine, &format!("get job {victim} -o jsonpath='{{.spec.suspend}}'")), "true");

    ok(&machine, "delete job b1");
    until_runs(&machine, &victim);

    machine.apply(&json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "high"}, "value": 100}));
    machine.apply(&job("urgent", "a", "high", "echo done"));
    let done = machine.kubectl("wait --for=condition=Complete job/urgent --timeout=60s");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(ok(&machine, "logs job/urgent"), "done\n");
}

#[test]
fn a_job_told_to_wait_can_be_shrunk_with_kubectl_until_it_fits() {
    let machine = need!(Machine::start());
    flavor(&machine);
    team(&machine, "a", "100m");
    machine.apply(&job("big", "a", "", "echo fits"));
    ok(&machine, "wait --for=condition=Complete job/big --timeout=60s");
    let mut bigger = job("bigger", "a", "", "echo fits");
    bigger["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("4");
    machine.apply(&bigger);
    until_waits(&machine, "bigger", "ExceedsMaxQuota");
    ok(&machine, "set resources job/bigger --requests=cpu=100m");
    ok(&machine, "wait --for=condition=Complete job/bigger --timeout=60s");
    assert_eq!(ok(&machine, "logs job/bigger"), "fits\n");
}

#[test]
fn killed_with_many_jobs_in_line_it_loses_none_and_admits_none_twice() {
    const JOBS: usize = 60;
    let nodes = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(nodes.path(), "[{count: 2, name: sim, capacity: {cpu: 64, memory: 64Gi, pods: 110}}]")
        .expect("nodes");
    let flags = ["--node=false", "--sim-nodes", nodes.path().to_str().expect("a path")];
    let mut machine = need!(Machine::start_without_node(&flags));
    flavor(&machine);
    team(&machine, "a", "40m");
    for n in 0..JOBS {
        let mut job = job(&format!("j{n:02}"), "a", "", "true");
        job["spec"]["template"]["metadata"] = json!({"annotations": {"usher.dev/sim-duration": "300ms"}});
        machine.apply(&job);
        if n % 20 == 10 {
            machine.kill();
            machine.up(&flags);
        }
    }
    let complete = "get jobs -o jsonpath='{.items[?(@.status.succeeded==1)].metadata.name}'";
    machine.wait(complete, "all complete", |names| names.split_whitespace().count() == JOBS);
    assert_eq!(ok(&machine, "get pods -o name").lines().count(), JOBS, "each ran once");
    assert_eq!(until_said(&machine, "Finished", JOBS).len(), JOBS);
    // All of the quota is free again: one that needs everything gets it.
    let mut whole = job("whole", "a", "", "true");
    whole["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("40m");
    machine.apply(&whole);
    ok(&machine, "wait --for=condition=Complete job/whole --timeout=60s");
}
