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
fn an_elastic_job_grows_and_shrinks_and_what_runs_keeps_its_process() {
    let machine = need!(Machine::start());
    flavor(&machine);
    team(&machine, "a", "30m");
    let mut elastic = job("grows", "a", "", &format!("echo pid=$$; {FOREVER}").replace("$$", "$$$$"));
    elastic["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
    // Without completions: with them, parallelism above their number would be no resize.
    elastic["spec"]["parallelism"] = json!(1);
    machine.apply(&elastic);
    let logs = "logs -l job-name=grows --tail=-1";
    let pids = |text: &str| text.lines().filter(|line| line.starts_with("pid=")).map(str::to_owned).collect::<Vec<_>>();
    let first = pids(&machine.wait(logs, "running", |text| pids(text).len() == 1));
    ok(&machine, r#"patch job grows --type=merge -p '{"spec":{"parallelism":5}}'"#);
    let three = pids(&machine.wait(logs, "with three processes", |text| pids(text).len() == 3));
    assert!(three.contains(&first[0]), "{three:?} without {first:?}");
    let gated = "get pods -l job-name=grows -o jsonpath='{.items[*].spec.schedulingGates[*].name}'";
    machine.wait(gated, "with two at their gates", |text| text.matches("kueue.x-k8s.io/elastic-job").count() == 2);
    let resize = |machine: &Machine| reason(&workloads(machine)["grows"], "ResizeRequested");
    assert_eq!(resize(&machine).as_deref(), Some("ScaleUp"));
    ok(&machine, r#"patch job grows --type=merge -p '{"spec":{"parallelism":1}}'"#);
    machine.wait("get pods -l job-name=grows -o name", "with one pod", |text| text.lines().count() == 1);
    let left = pids(&ok(&machine, logs));
    assert!(left.len() == 1 && three.contains(&left[0]), "{left:?} of {three:?}");
    assert_eq!(ok(&machine, "get job grows -o jsonpath='{.spec.suspend}'"), "false");
}

/// What `status.variants` of a Job's Workload says of each: name of the flavor, active, admitted, why it was evicted.
fn told(machine: &Machine, job: &str) -> Vec<(String, bool, bool, String)> {
    let parent = workloads(machine).remove(job).unwrap_or_default();
    let variants = parent["status"]["variants"].as_array().cloned().unwrap_or_default();
    let one = |variant: &Value| {
        let conditions = variant["conditions"].as_array().cloned().unwrap_or_default();
        let is = |ty: &str| conditions.iter().find(|c| c["type"] == ty && c["status"] == "True").cloned();
        let why = is("Evicted").and_then(|c| c["reason"].as_str().map(str::to_owned)).unwrap_or_default();
        let flavor = variant["resourceFlavors"][0].as_str().unwrap_or_default().to_owned();
        (flavor, variant["active"] == true, is("Admitted").is_some(), why)
    };
    variants.iter().map(one).collect()
}

#[test]
fn a_job_starts_on_spot_and_is_restarted_in_the_reservation_when_there_is_room() {
    let machine = need!(Machine::start());
    ok(&machine, "label node n1 example.com/spot=yes example.com/reservation=yes");
    for name in ["reservation", "spot"] {
        machine.apply(
            &json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name},
            "spec": {"nodeLabels": {format!("example.com/{name}"): "yes"}}}),
        );
    }
    let groups = |reserved: &str| {
        let flavor = |name: &str, cpu: &str| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": cpu}]});
        json!([{"coveredResources": ["cpu"], "flavors": [flavor("reservation", reserved), flavor("spot", "10m")]}])
    };
    machine.apply(&json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "q"},
        "spec": {"namespaceSelector": {}, "resourceGroups": groups("0"),
            "concurrentAdmission": {"migrationConstraints": {"mode": "UpgradeOnly"}}}}));
    machine.apply(&json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "q"},
        "spec": {"clusterQueue": "q"}}));
    let on = "get pods -l job-name=moves -o jsonpath='{.items[?(@.status.phase==\"Running\")].spec.nodeSelector}'";
    let pods = "get pods -l job-name=moves -o name";

    machine.apply(&job("moves", "q", "", FOREVER));
    machine.wait(on, "running on spot", |text| text == r#"{"example.com/spot":"yes"}"#);
    let first = ok(&machine, pods);
    let spot = [("reservation".to_owned(), true, false, String::new()), ("spot".to_owned(), true, true, String::new())];
    machine.wait("get workloads", "told", |_| told(&machine, "moves") == spot);

    let patch = json!({"spec": {"resourceGroups": groups("10m")}});
    ok(&machine, &format!("patch clusterqueue q --type=merge -p '{patch}'"));
    machine.wait(on, "running in the reservation", |text| text == r#"{"example.com/reservation":"yes"}"#);
    let then = ok(&machine, pods);
    assert!(then.lines().count() == 1 && then != first, "{first} then {then}");
    let moved = [
        ("reservation".to_owned(), true, true, String::new()),
        ("spot".to_owned(), false, false, "FlavorMigration".to_owned()),
    ];
    machine.wait("get workloads", "told", |_| told(&machine, "moves") == moved);
    let events = ok(&machine, "get events -o jsonpath='{.items[*].reason}'");
    for reason in [
        "CreatedVariant",
        "Admitted",
        "EvictedDueToFlavorMigration",
        "EvictedDueToVariantEvicted",
        "DeactivatedVariant",
    ] {
        assert!(events.split_whitespace().any(|own| own == reason), "no event {reason} in {events}");
    }
    machine.wait("get --raw /metrics", "counted", |text| {
        text.lines().any(|line| {
            line.starts_with(
                r#"kueue_variant_migrations_total{cluster_queue="q",from_flavor="spot",to_flavor="reservation""#,
            )
        })
    });
}

#[test]
fn a_ray_cluster_is_scaled_with_kubectl_and_what_runs_keeps_its_process() {
    let machine = need!(Machine::start());
    flavor(&machine);
    team(&machine, "a", "40m");
    let template = json!({"spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "ray", "image": "ray",
        "command": ["sh", "-c", format!("echo pid=$$; {FOREVER}").replace("$$", "$$$$")],
        "resources": {"requests": {"cpu": "10m"}}}]}});
    machine.apply(&json!({"apiVersion": "ray.io/v1", "kind": "RayCluster",
        "metadata": {"name": "r", "labels": {"kueue.x-k8s.io/queue-name": "a"},
            "annotations": {"kueue.x-k8s.io/elastic-job": "true"}},
        "spec": {"headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": [{"groupName": "g", "replicas": 1, "minReplicas": 0, "maxReplicas": 9,
                "rayStartParams": {}, "template": template}]}}));
    let pids = |text: &str| text.lines().filter(|line| line.starts_with("pid=")).map(str::to_owned).collect::<Vec<_>>();
    let (head, workers) = ("logs -l ray.io/group=headgroup --tail=-1", "logs -l ray.io/group=g --tail=-1");
    let first = pids(&machine.wait(workers, "running", |text| pids(text).len() == 1));
    let of_head = pids(&machine.wait(head, "running", |text| pids(text).len() == 1));
    let scale = |replicas: i32| {
        let patch = json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": replicas}]);
        ok(&machine, &format!("patch raycluster r --type=json -p '{patch}'"));
    };
    scale(5);
    let three = pids(&machine.wait(workers, "with three processes", |text| pids(text).len() == 3));
    assert!(three.contains(&first[0]), "{three:?} without {first:?}");
    let gated = "get pods -l ray.io/group=g -o jsonpath='{.items[*].spec.schedulingGates[*].name}'";
    machine.wait(gated, "with two at their gates", |text| text.matches("kueue.x-k8s.io/elastic-job").count() == 2);
    let told = "get workloads -l '!kueue.x-k8s.io/workload-slice' -o jsonpath='{.items[0].status.conditions[?(@.type==\"ResizeRequested\")].message}'";
    machine.wait(told, "told", |text| text == "2 of 4 added replicas admitted, waiting for 20m cpu in flavor default");
    scale(1);
    machine.wait("get pods -l ray.io/group=g -o name", "with one worker", |text| text.lines().count() == 1);
    let left = pids(&ok(&machine, workers));
    assert!(left.len() == 1 && three.contains(&left[0]), "{left:?} of {three:?}");
    machine.wait("get workloads -o name", "without slices", |text| text.lines().count() == 1);
    scale(3);
    let again = pids(&machine.wait(workers, "with three processes", |text| pids(text).len() == 3));
    assert!(again.contains(&left[0]), "{again:?} without {left:?}");
    assert_eq!(pids(&ok(&machine, head)), of_head, "the head was never touched");
    assert_eq!(ok(&machine, "get raycluster r -o jsonpath='{.spec.suspend}'"), "false");
    let events =
        ok(&machine, "get events --field-selector involvedObject.kind=RayCluster -o jsonpath='{.items[*].reason}'");
    for reason in ["ScaleUpRequested", "ScaledUp", "ScaleUpWithdrawn", "ScaledDown", "Resized"] {
        assert!(events.split_whitespace().any(|told| told == reason), "no {reason} in {events}");
    }
    let metrics = ok(&machine, "get --raw /metrics");
    for (what, count) in [("created", 6), ("folded", 4), ("withdrawn", 2)] {
        let line =
            format!("kueue_workload_slices_{what}_total{{cluster_queue=\"a\",replica_role=\"standalone\"}} {count}");
        let counted: Vec<&str> = metrics.lines().filter(|l| l.starts_with("kueue_workload_slices")).collect();
        assert!(counted.contains(&line.as_str()), "no {line} in {counted:?}");
    }
    for direction in ["up", "down"] {
        let line = format!("kueue_elastic_job_resize_seconds_count{{cluster_queue=\"a\",direction=\"{direction}\"");
        assert!(metrics.lines().any(|l| l.starts_with(&line)), "no {line}");
    }
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
