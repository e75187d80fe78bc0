//! What queues show of themselves: the real binary, kubectl and HTTP. No node: what is admitted stays admitted.

mod harness;

use harness::Server;
use harness::machine::Machine;
use harness::wire::Endpoint;
use serde_json::{Value, json};

fn start() -> Result<Machine, String> {
    Machine::start_without_node(&["--node=false"])
}

fn kueue(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A ClusterQueue with so much cpu of the flavor `f`, and whatever else.
fn queue(name: &str, cpu: u32, more: Value) -> Value {
    let mut spec = json!({"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
        {"name": "f", "resources": [{"name": "cpu", "nominalQuota": cpu}]}]}]});
    for (key, value) in more.as_object().expect("a map") {
        spec[key] = value.clone();
    }
    kueue("ClusterQueue", name, spec)
}

fn local(name: &str, queue: &str) -> Value {
    kueue("LocalQueue", name, json!({"clusterQueue": queue}))
}

/// A Job that asks its queue for so much cpu.
fn job(name: &str, queue: &str, cpu: u32) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu.to_string()}}}]}}}})
}

fn ok(machine: &Machine, arguments: &str) -> String {
    let done = machine.kubectl(arguments);
    assert_eq!(done.code, Some(0), "kubectl {arguments}: {}", done.stderr);
    done.stdout
}

/// Until the condition Active of an object is this.
fn until_active(machine: &Machine, what: &str, wanted: &str) {
    let path = "'{.status.conditions[?(@.type==\"Active\")].status}/{.status.conditions[?(@.type==\"Active\")].reason}: \
                {.status.conditions[?(@.type==\"Active\")].message}'";
    machine.wait(&format!("get {what} -o jsonpath={path}"), wanted, |text| text == wanted);
}

/// Until the rows of a table, without its head, are these words.
fn until_rows(machine: &Machine, arguments: &str, wanted: &[&[&str]]) {
    machine.wait(arguments, &format!("{wanted:?}"), |text| {
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        rows == wanted
    });
}

fn until_metric(machine: &Machine, line: &str) {
    machine.wait("get --raw /metrics", line, |text| text.lines().any(|own| own == line));
}

fn raw(machine: &Machine, path: &str) -> Value {
    let text = ok(machine, &format!("get --raw '/apis/visibility.kueue.x-k8s.io/{path}'"));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn queues_say_what_they_lack_until_nothing_is_missing() {
    let machine = need!(start());
    machine.apply(&local("lq", "cq"));
    let none = "Can't submit new workloads to clusterQueue";
    until_active(&machine, "lq/lq", &format!("False/ClusterQueueDoesNotExist: {none}"));
    let checks = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "far"}]}});
    machine.apply(&queue("cq", 2, checks));
    until_active(
        &machine,
        "cq/cq",
        "False/FlavorNotFound: Can't admit new workloads: references missing ResourceFlavor(s): f, references missing \
         AdmissionCheck(s): far.",
    );
    until_active(&machine, "lq/lq", &format!("False/ClusterQueueIsInactive: {none}"));
    machine.apply(&kueue("ResourceFlavor", "f", json!({})));
    machine.apply(&kueue("AdmissionCheck", "far", json!({"controllerName": "kueue.x-k8s.io/multikueue"})));
    until_active(
        &machine,
        "cq/cq",
        "False/AdmissionCheckNotSupported: Can't admit new workloads: references not supported AdmissionCheck(s): far.",
    );
    until_active(
        &machine,
        "admissioncheck/far",
        "False/NotSupported: MultiKueue is not supported; ClusterQueues with this check admit nothing until it is removed",
    );
    ok(&machine, "patch cq cq --type=merge -p '{\"spec\":{\"admissionChecksStrategy\":null,\"stopPolicy\":\"Hold\"}}'");
    until_active(&machine, "cq/cq", "False/Stopped: Can't admit new workloads: is stopped.");
    until_metric(
        &machine,
        r#"kueue_cluster_queue_status{cluster_queue="cq",status="pending",replica_role="standalone"} 1.0"#,
    );
    ok(&machine, "patch cq cq --type=merge -p '{\"spec\":{\"stopPolicy\":\"None\"}}'");
    until_active(&machine, "cq/cq", "True/Ready: Can admit new workloads");
    until_active(&machine, "lq/lq", "True/Ready: Can submit new workloads to localQueue");
    until_metric(
        &machine,
        r#"kueue_cluster_queue_status{cluster_queue="cq",status="active",replica_role="standalone"} 1.0"#,
    );
    let generations = "'{.metadata.generation} {.status.conditions[0].observedGeneration}'";
    let generations = ok(&machine, &format!("get cq cq -o jsonpath={generations}"));
    let (now, seen) = generations.split_once(' ').expect("two numbers");
    assert_eq!(now, seen);
    until_rows(&machine, "get clusterqueue -o wide", &[&["cq", "BestEffortFIFO", "0", "0"]]);
    ok(&machine, "patch lq lq --type=merge -p '{\"spec\":{\"stopPolicy\":\"Hold\"}}'");
    until_active(&machine, "lq/lq", "False/Stopped: LocalQueue is stopped");
}

#[test]
fn figures_follow_what_is_admitted_borrowed_and_finished() {
    let machine = need!(start());
    machine.apply(&kueue("ResourceFlavor", "f", json!({})));
    machine.apply(&queue("mine", 2, json!({"cohortName": "team"})));
    machine.apply(&queue("yours", 2, json!({"cohortName": "team"})));
    machine.apply(&local("lq", "mine"));
    for (name, cpu) in [("one", 1), ("two", 2), ("five", 5)] {
        machine.apply(&job(name, "lq", cpu));
    }
    until_rows(
        &machine,
        "get clusterqueue -o wide",
        &[&["mine", "team", "BestEffortFIFO", "1", "2"], &["yours", "team", "BestEffortFIFO", "0", "0"]],
    );
    let head = ok(&machine, "get cq -o wide");
    assert!(head.starts_with("NAME    COHORT   STRATEGY         PENDING WORKLOADS   ADMITTED WORKLOADS\n"), "{head}");
    until_rows(&machine, "get localqueue", &[&["lq", "mine", "1", "2"]]);
    let head = ok(&machine, "get lq");
    assert!(head.starts_with("NAME   CLUSTERQUEUE   PENDING WORKLOADS   ADMITTED WORKLOADS\n"), "{head}");
    let status: Value = serde_json::from_str(&ok(&machine, "get cq mine -o json")).expect("JSON");
    let usage = json!([{"name": "f", "resources": [{"name": "cpu", "total": "3", "borrowed": "1"}]}]);
    assert_eq!((&status["status"]["flavorsReservation"], &status["status"]["flavorsUsage"]), (&usage, &usage));
    assert_eq!(status["status"]["reservingWorkloads"], 2);
    let local: Value = serde_json::from_str(&ok(&machine, "get lq lq -o json")).expect("JSON");
    assert_eq!(local["status"]["flavorsUsage"], json!([{"name": "f", "resources": [{"name": "cpu", "total": "3"}]}]));

    let role = r#"replica_role="standalone"}"#;
    for line in [
        format!(r#"kueue_pending_workloads{{cluster_queue="mine",status="inadmissible",{role} 1.0"#),
        format!(r#"kueue_pending_workloads{{cluster_queue="mine",status="active",{role} 0.0"#),
        format!(r#"kueue_reserving_active_workloads{{cluster_queue="mine",{role} 2.0"#),
        format!(r#"kueue_admitted_active_workloads{{cluster_queue="mine",{role} 2.0"#),
        format!(r#"kueue_admitted_workloads_total{{cluster_queue="mine",priority_class="",{role} 2"#),
        format!(r#"kueue_quota_reserved_workloads_total{{cluster_queue="mine",priority_class="",{role} 2"#),
        format!(
            r#"kueue_cluster_queue_resource_usage{{cohort="team",cluster_queue="mine",flavor="f",resource="cpu",{role} 3.0"#
        ),
        format!(
            r#"kueue_cluster_queue_nominal_quota{{cohort="team",cluster_queue="mine",flavor="f",resource="cpu",{role} 2.0"#
        ),
        format!(r#"kueue_local_queue_admitted_active_workloads{{name="lq",namespace="default",{role} 2.0"#),
    ] {
        until_metric(&machine, &line);
    }

    ok(&machine, "delete job one two --wait=true");
    until_rows(&machine, "get localqueue", &[&["lq", "mine", "1", "0"]]);
    until_metric(&machine, &format!(r#"kueue_reserving_active_workloads{{cluster_queue="mine",{role} 0.0"#));
    ok(&machine, "delete cq yours");
    machine.wait("get --raw /metrics", "the series of yours are gone", |text| !text.contains(r#"="yours""#));
}

#[test]
fn what_is_used_is_deleted_when_it_is_used_no_longer() {
    let machine = need!(start());
    machine.apply(&kueue("ResourceFlavor", "f", json!({})));
    machine.apply(&kueue("AdmissionCheck", "c", json!({"controllerName": "example.com/us"})));
    machine.apply(&queue("cq", 2, json!({})));
    machine.apply(&local("lq", "cq"));
    machine.apply(&job("runs", "lq", 1));
    until_rows(&machine, "get lq", &[&["lq", "cq", "0", "1"]]);
    for what in ["resourceflavor/f", "cq/cq"] {
        ok(&machine, &format!("delete {what} --wait=false"));
    }
    let terminating = "False/Terminating: Can't admit new workloads; clusterQueue is terminating";
    until_active(&machine, "cq/cq", terminating);
    machine.apply(&job("late", "lq", 1));
    machine.wait(
        "get workloads -o jsonpath='{.items[*].status.conditions[?(@.type==\"QuotaReserved\")].message}'",
        "it waits",
        |text| text.contains("ClusterQueue cq is inactive"),
    );
    assert_eq!(ok(&machine, "get cq,resourceflavor -o name").lines().count(), 2, "both are still there");
    // Nothing uses the check.
    ok(&machine, "delete admissioncheck c --timeout=30s");
    ok(&machine, "delete job runs");
    machine.wait("get cq,resourceflavor -o name", "both are gone", str::is_empty);
    until_active(&machine, "lq/lq", "False/ClusterQueueDoesNotExist: Can't submit new workloads to clusterQueue");
}

#[test]
fn everybody_who_waits_has_a_place() {
    let machine = need!(start());
    machine.apply(&kueue("ResourceFlavor", "f", json!({})));
    machine.apply(&queue("cq", 1, json!({})));
    machine.apply(&local("a", "cq"));
    machine.apply(&local("b", "cq"));
    machine.apply(&json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "high"}, "value": 10}));
    machine.apply(&job("first", "a", 1));
    until_rows(&machine, "get lq a", &[&["a", "cq", "0", "1"]]);
    machine.apply(&job("second", "a", 1));
    machine.apply(&job("third", "b", 1));
    let mut urgent = job("urgent", "b", 1);
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
    machine.apply(&urgent);
    machine.wait("get cq cq -o jsonpath={.status.pendingWorkloads}", "three wait", |text| text == "3");

    let places = |value: &Value| -> Vec<(String, i64, i64, i64)> {
        let number = |item: &Value, field: &str| item[field].as_i64().expect("a number");
        let one = |item: &Value| {
            let job = item["metadata"]["ownerReferences"][0]["name"].as_str().expect("its job");
            let (whole, own) = (number(item, "positionInClusterQueue"), number(item, "positionInLocalQueue"));
            (job.to_owned(), number(item, "priority"), whole, own)
        };
        value["items"].as_array().expect("items").iter().map(one).collect()
    };
    let named = |rows: &[(&str, i64, i64, i64)]| -> Vec<(String, i64, i64, i64)> {
        rows.iter().map(|(name, a, b, c)| ((*name).to_owned(), *a, *b, *c)).collect()
    };
    for version in ["v1beta2", "v1beta1"] {
        let all = raw(&machine, &format!("{version}/clusterqueues/cq/pendingworkloads"));
        assert_eq!(all["kind"], "PendingWorkloadsSummary");
        assert_eq!(all["apiVersion"], format!("visibility.kueue.x-k8s.io/{version}"));
        let mut found = places(&all);
        assert_eq!(found.remove(0), ("urgent".to_owned(), 10, 0, 0));
        // Created in the same second, they may stand either way round.
        let second = found.iter().position(|(name, ..)| name == "second").expect("it waits") as i64;
        assert_eq!(found.remove(second as usize), ("second".to_owned(), 0, 1 + second, 0));
        assert_eq!(found, named(&[("third", 0, 2 - second, 1)]));
    }
    let own = raw(&machine, "v1beta2/namespaces/default/localqueues/b/pendingworkloads?limit=1");
    assert_eq!(places(&own), named(&[("urgent", 10, 0, 0)]));
    assert_eq!(own["items"][0]["localQueueName"], "b");
    let rest = raw(&machine, "v1beta2/clusterqueues/cq/pendingworkloads?offset=2&limit=10");
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(1));

    for (path, refusal) in [
        ("clusterqueues/x", r#"Error from server (NotFound): clusterqueue.visibility.kueue.x-k8s.io "x" not found"#),
        (
            "namespaces/default/localqueues/x",
            r#"Error from server (NotFound): localqueue.visibility.kueue.x-k8s.io "x" not found"#,
        ),
    ] {
        let done =
            machine.kubectl(&format!("get --raw /apis/visibility.kueue.x-k8s.io/v1beta2/{path}/pendingworkloads"));
        assert_eq!(done.stderr.trim(), refusal);
    }
    // kubectl still finds the queues themselves.
    until_rows(&machine, "get clusterqueues", &[&["cq", "3"]]);
}

#[test]
fn who_may_see_who_waits_is_a_matter_of_roles() {
    let machine = need!(start());
    machine.apply(&kueue("ResourceFlavor", "f", json!({})));
    machine.apply(&queue("cq", 1, json!({})));
    until_active(&machine, "cq/cq", "True/Ready: Can admit new workloads");
    let anonymous = Endpoint::admin(machine.kubeconfig()).anonymous();
    let path = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/cq/pendingworkloads";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let get = |path: &str| runtime.block_on(async { anonymous.http1().await.get(path).await });
    let refused = get(path);
    assert_eq!(refused.code, 403, "{}", refused.text());
    let words = r#"clusterqueues.visibility.kueue.x-k8s.io "cq" is forbidden: User "system:anonymous" cannot get resource "clusterqueues/pendingworkloads""#;
    assert!(refused.text().contains(&words.replace('"', "\\\"")), "{}", refused.text());
    ok(
        &machine,
        "create clusterrole looks --verb=get --resource=clusterqueues.visibility.kueue.x-k8s.io/pendingworkloads",
    );
    ok(&machine, "create clusterrolebinding looks --clusterrole=looks --user=system:anonymous");
    let shown = get(path);
    assert_eq!((shown.code, &shown.json()["items"]), (200, &json!([])));
    assert_eq!(get(&format!("{path}?limit=x")).code, 400);
}
