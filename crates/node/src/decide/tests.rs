use super::*;
use crate::model::{Ended, Failed, Health, PostStart, Stopping};
use serde_json::{Value, json};

const START: &str = "2026-11-15T10:00:00Z";

fn at(secs: i64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(secs)
}

fn pod(spec: Value, more: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 1}, "spec": spec,
        "status": {"phase": "Pending", "startTime": START}});
    merge(&mut pod, more);
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

fn one(policy: &str) -> Value {
    json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 5, "containers": [{"name": "c"}]})
}

fn running(since: i64) -> Seen {
    Seen { run: Some(Run::Running { since: at(since) }), ..Seen::default() }
}

fn ended(code: i32, finished: i64) -> Seen {
    let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
    let ended =
        Ended { attempt: 0, code, reason, message: String::new(), started_at: Some(at(0)), finished_at: at(finished) };
    Seen { run: Some(Run::Ended(ended)), ..Seen::default() }
}

fn world<const N: usize>(seen: [(&str, Seen); N]) -> Containers {
    seen.into_iter().map(|(name, seen)| (name.to_owned(), seen)).collect()
}

fn plan(pod: &Pod, seen: &Containers, secs: i64) -> Plan {
    decide(pod, seen, &Host { ip: "10.0.0.1".into(), ..Host::default() }, at(secs))
}

fn phase(plan: &Plan) -> &str {
    plan.status.phase.as_deref().unwrap()
}

/// `type=status(reason)` of each condition.
fn conditions(plan: &Plan) -> String {
    let all = plan.status.conditions.as_ref().unwrap().iter().map(|c| match &c.reason {
        Some(reason) => format!("{}={}({reason})", c.type_, c.status),
        None => format!("{}={}", c.type_, c.status),
    });
    all.collect::<Vec<_>>().join(" ")
}

/// The state of each container: waiting reason, `running`, or reason and code.
fn states(plan: &Plan) -> Vec<String> {
    let inits = plan.status.init_container_statuses.iter().flatten();
    let all = inits.chain(plan.status.container_statuses.iter().flatten());
    all.map(|status| {
        let state = status.state.clone().unwrap();
        match (state.waiting, state.terminated) {
            (Some(waiting), _) => format!("{}: {}", status.name, waiting.reason.unwrap()),
            (_, Some(end)) => format!("{}: {} {}", status.name, end.reason.unwrap(), end.exit_code),
            _ => format!("{}: running", status.name),
        }
    })
    .collect()
}

fn stops(plan: &Plan) -> Vec<(&str, Signal)> {
    plan.stop.iter().map(|s| (s.container.as_str(), s.signal)).collect()
}

#[test]
fn a_new_pod_is_shown_as_creating_and_started() {
    let plan = plan(&pod(one("Never"), json!({})), &Containers::new(), 0);
    assert_eq!(plan.start, ["c"]);
    assert_eq!((phase(&plan), states(&plan)), ("Pending", vec!["c: ContainerCreating".to_owned()]));
    assert_eq!(
        conditions(&plan),
        "PodReadyToStartContainers=False(PodSandboxNotReady) Initialized=True Ready=False(ContainersNotReady) \
         ContainersReady=False(ContainersNotReady) PodScheduled=True"
    );
    assert_eq!(plan.status.pod_ip, None);
}

#[test]
fn a_running_pod_is_ready_and_has_an_address() {
    let plan = plan(&pod(one("Never"), json!({})), &world([("c", running(1))]), 2);
    assert_eq!((plan.start.len(), phase(&plan), plan.status.pod_ip.as_deref()), (0, "Running", Some("10.0.0.1")));
    assert_eq!(
        conditions(&plan),
        "PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True"
    );
}

#[test]
fn how_a_pod_ends_follows_from_codes_and_policy() {
    for (policy, code, expected_phase, restarted) in [
        ("Never", 0, "Succeeded", false),
        ("Never", 1, "Failed", false),
        ("OnFailure", 0, "Succeeded", false),
        ("OnFailure", 1, "Running", true),
        ("Always", 0, "Running", true),
        ("Always", 1, "Running", true),
    ] {
        let pod = pod(one(policy), json!({"status": {"phase": "Running"}}));
        let plan = plan(&pod, &world([("c", ended(code, 3))]), 3);
        assert_eq!((phase(&plan), !plan.start.is_empty()), (expected_phase, restarted), "{policy} {code}");
    }
}

#[test]
fn of_two_containers_both_must_end() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}, {"name": "b"}]});
    let pod = pod(spec, json!({"status": {"phase": "Running"}}));
    let half = plan(&pod, &world([("a", ended(1, 1)), ("b", running(0))]), 2);
    assert_eq!((phase(&half), half.stop.len()), ("Running", 0));
    let whole = plan(&pod, &world([("a", ended(1, 1)), ("b", ended(0, 2))]), 2);
    assert_eq!((phase(&whole), conditions(&whole).contains("Ready=False(PodFailed)")), ("Failed", true));
}

#[test]
fn init_containers_run_one_after_the_other_and_before_all_others() {
    let spec = json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "c"}]});
    let pod = pod(spec, json!({}));
    for (seen, start, shown) in [
        (world([]), vec!["i"], "i: PodInitializing"),
        (world([("i", running(0))]), vec![], "i: running"),
        (world([("i", ended(0, 1))]), vec!["j"], "i: Completed 0"),
        (world([("i", ended(0, 1)), ("j", ended(0, 2))]), vec!["c"], "i: Completed 0"),
    ] {
        let plan = plan(&pod, &seen, 2);
        assert_eq!(
            (&plan.start, phase(&plan)),
            (&start.iter().map(|s| (*s).to_owned()).collect(), "Pending"),
            "{seen:?}"
        );
        assert_eq!(states(&plan)[0], shown);
    }
    let failed = plan(&pod, &world([("i", ended(1, 1))]), 2);
    assert_eq!((failed.start.len(), phase(&failed)), (0, "Failed"));
    assert!(conditions(&failed).contains("Initialized=False(ContainersNotInitialized)"), "{}", conditions(&failed));
}

#[test]
fn a_sidecar_is_started_before_the_others_and_stopped_after_them() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c"}], "terminationGracePeriodSeconds": 5,
        "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]});
    let pod = pod(spec, json!({"status": {"phase": "Running"}}));
    assert_eq!(plan(&pod, &world([]), 0).start, ["s"]);
    assert_eq!(plan(&pod, &world([("s", running(0))]), 0).start, ["i"]);
    let up = world([("s", running(0)), ("i", ended(0, 1)), ("c", running(1))]);
    assert_eq!(phase(&plan(&pod, &up, 2)), "Running");
    let done = world([("s", running(0)), ("i", ended(0, 1)), ("c", ended(0, 2))]);
    let over = plan(&pod, &done, 3);
    assert_eq!((stops(&over), phase(&over)), (vec![("s", Signal::Terminate)], "Running"));
    let all_over = world([("s", ended(143, 3)), ("i", ended(0, 1)), ("c", ended(0, 2))]);
    assert_eq!(phase(&plan(&pod, &all_over, 4)), "Succeeded");
    let crashed = world([("s", ended(1, 2)), ("i", ended(0, 1)), ("c", running(1))]);
    assert_eq!(plan(&pod, &crashed, 3).start, ["s"]);
}

#[test]
fn a_sidecar_waits_for_the_others_when_the_pod_is_deleted() {
    let spec = json!({"containers": [{"name": "c"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-11-15T10:00:15Z", "deletionGracePeriodSeconds": 5}});
    let pod = pod(spec, deleted);
    let up = world([("s", running(0)), ("c", running(1))]);
    assert_eq!(stops(&plan(&pod, &up, 11)), [("c", Signal::Terminate)]);
    assert_eq!(stops(&plan(&pod, &world([("s", running(0)), ("c", ended(0, 12))]), 12)), [("s", Signal::Terminate)]);
}

#[test]
fn a_container_that_crashes_again_waits_longer_each_time() {
    let pod = pod(one("Always"), json!({"status": {"phase": "Running"}}));
    let mut seen = ended(1, 100);
    assert_eq!(plan(&pod, &world([("c", seen.clone())]), 100).start, ["c"], "the first restart waits for nothing");
    seen.attempt = 1;
    seen.back_off = Some(BackOff { secs: 10, updated: at(100) });
    let waiting = plan(&pod, &world([("c", seen.clone())]), 105);
    assert_eq!((waiting.start.len(), waiting.wake_at), (0, Some(at(110))));
    assert_eq!(states(&waiting), ["c: CrashLoopBackOff"]);
    assert_eq!(waiting.notes, [Note::BackOff { container: "c".into() }]);
    let status = &waiting.status.container_statuses.as_ref().unwrap()[0];
    let message = status.state.clone().unwrap().waiting.unwrap().message;
    assert_eq!(message.as_deref(), Some("back-off 10s restarting failed container=c pod=p_ns(u)"));
    assert_eq!(status.last_state.clone().unwrap().terminated.unwrap().exit_code, 1);
    assert_eq!(phase(&waiting), "Running");
    assert_eq!(plan(&pod, &world([("c", seen)]), 110).start, ["c"]);
}

#[test]
fn what_cannot_be_created_waits_with_its_reason_and_is_tried_again() {
    let trouble = crate::model::Trouble {
        reason: "CreateContainerConfigError".into(),
        message: "secret \"s\" not found".into(),
        retry_at: at(10),
    };
    let seen = world([("c", Seen { trouble: Some(trouble), ..Seen::default() })]);
    let pod = pod(one("Never"), json!({}));
    let waiting = plan(&pod, &seen, 5);
    assert_eq!(
        (waiting.start.len(), waiting.wake_at, states(&waiting)[0].as_str()),
        (0, Some(at(10)), "c: CreateContainerConfigError")
    );
    assert_eq!(plan(&pod, &seen, 10).start, ["c"]);
}

#[test]
fn a_deleted_pod_gets_its_grace_then_is_killed_and_then_removed() {
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-11-15T10:00:15Z", "deletionGracePeriodSeconds": 5},
        "status": {"phase": "Running"}});
    let pod = pod(one("Always"), deleted);
    let mut seen = running(1);
    let first = plan(&pod, &world([("c", seen.clone())]), 10);
    assert_eq!((stops(&first), first.remove), (vec![("c", Signal::Terminate)], false));
    assert_eq!(first.stop[0].because, "Stopping container c");
    seen.stopping = Some(Stopping { since: at(10), asked: Some(at(10)), killed: false });
    let waiting = plan(&pod, &world([("c", seen.clone())]), 12);
    assert_eq!((stops(&waiting), waiting.wake_at), (vec![], Some(at(15))));
    assert_eq!(stops(&plan(&pod, &world([("c", seen.clone())]), 15)), [("c", Signal::Kill)]);
    seen.stopping = Some(Stopping { since: at(10), asked: Some(at(10)), killed: true });
    let killed = plan(&pod, &world([("c", seen)]), 16);
    assert_eq!((stops(&killed), killed.remove, phase(&killed)), (vec![], false, "Running"));
    let over = plan(&pod, &world([("c", ended(137, 16))]), 16);
    assert_eq!((over.remove, over.start.len(), phase(&over)), (true, 0, "Failed"));
}

#[test]
fn even_a_late_signal_leaves_two_seconds() {
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-11-15T10:00:10Z", "deletionGracePeriodSeconds": 1}});
    let pod = pod(one("Always"), deleted);
    let mut seen = running(1);
    seen.stopping = Some(Stopping { since: at(20), asked: Some(at(20)), killed: false });
    assert_eq!(stops(&plan(&pod, &world([("c", seen.clone())]), 21)), []);
    assert_eq!(stops(&plan(&pod, &world([("c", seen)]), 22)), [("c", Signal::Kill)]);
}

#[test]
fn a_pod_deleted_before_it_ran_is_removed_at_once_as_failed() {
    let deleted = json!({"metadata": {"deletionTimestamp": START, "deletionGracePeriodSeconds": 30}});
    let plan = plan(&pod(one("Always"), deleted), &Containers::new(), 0);
    assert_eq!((plan.remove, plan.start.len(), phase(&plan)), (true, 0, "Failed"));
    assert_eq!(states(&plan), ["c: ContainerStatusUnknown 137"]);
}

#[test]
fn a_pod_past_its_deadline_is_stopped_and_failed_only_when_nothing_runs() {
    for policy in ["Always", "Never"] {
        let mut spec = one(policy);
        spec["activeDeadlineSeconds"] = 10.into();
        let pod = pod(spec, json!({"status": {"phase": "Running"}}));
        assert_eq!(plan(&pod, &world([("c", running(0))]), 9).wake_at, Some(at(10)));
        let late = plan(&pod, &world([("c", running(0))]), 10);
        assert_eq!((stops(&late), phase(&late)), (vec![("c", Signal::Terminate)], "Running"));
        assert_eq!(late.notes, [Note::DeadlineExceeded]);
        let over = plan(&pod, &world([("c", ended(143, 11))]), 11);
        let end = (phase(&over), over.status.reason.as_deref(), over.start.len());
        assert_eq!(end, ("Failed", Some("DeadlineExceeded"), 0), "{policy}");
    }
}

#[test]
fn success_in_time_is_no_missed_deadline() {
    let mut spec = one("Never");
    spec["activeDeadlineSeconds"] = 10.into();
    let pod = pod(spec, json!({"status": {"phase": "Running"}}));
    let plan = plan(&pod, &world([("c", ended(0, 9))]), 11);
    assert_eq!((phase(&plan), plan.status.reason.as_deref()), ("Succeeded", None));
}

#[test]
fn a_terminal_pod_stays_as_it_is() {
    let told = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "m"}});
    let pod = pod(one("Always"), told);
    let seen = world([("c", running(0))]);
    let plan = plan(&pod, &seen, 5);
    assert_eq!((stops(&plan), phase(&plan)), (vec![("c", Signal::Terminate)], "Failed"));
    assert_eq!(plan.status.reason.as_deref(), Some("Evicted"));
}

#[test]
fn a_failed_liveness_probe_restarts_the_container() {
    let pod = pod(one("Always"), json!({"status": {"phase": "Running"}}));
    let mut seen = running(0);
    seen.health = Health { failed: Some(Failed::Liveness), ..Health::default() };
    let broken = plan(&pod, &world([("c", seen.clone())]), 20);
    assert_eq!(stops(&broken), [("c", Signal::Terminate)]);
    assert_eq!(broken.stop[0].because, "Container c failed liveness probe, will be restarted");
    seen.stopping = Some(Stopping { since: at(20), asked: Some(at(20)), killed: false });
    assert_eq!(stops(&plan(&pod, &world([("c", seen)]), 25)), [("c", Signal::Kill)]);
}

#[test]
fn a_container_is_ready_only_when_its_probes_say_so() {
    let spec = json!({"containers": [{"name": "c", "startupProbe": {}, "readinessProbe": {}}]});
    let pod = pod(spec, json!({"status": {"phase": "Running"}}));
    for (started, ready, expected) in
        [(None, None, (false, false)), (Some(true), None, (true, false)), (Some(true), Some(true), (true, true))]
    {
        let mut seen = running(0);
        seen.health = Health { started, ready, failed: None };
        let plan = plan(&pod, &world([("c", seen)]), 5);
        let status = &plan.status.container_statuses.as_ref().unwrap()[0];
        assert_eq!((status.started == Some(true), status.ready), expected);
        assert_eq!(conditions(&plan).contains(" Ready=True"), ready == Some(true));
    }
}

#[test]
fn conditions_of_others_stay_and_ours_keep_their_time() {
    let before = json!({"status": {"phase": "Running", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "X"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T09:00:00Z"}]}});
    let plan = plan(&pod(one("Always"), before), &world([("c", running(0))]), 5);
    let find =
        |type_: &str| plan.status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == type_).cloned().unwrap();
    assert_eq!(find("DisruptionTarget").reason.as_deref(), Some("X"));
    assert_eq!(find("Ready").last_transition_time.unwrap().0, at(-3600));
    assert_eq!(find("ContainersReady").last_transition_time.unwrap().0, at(5));
}

#[test]
fn a_container_is_being_created_until_its_first_hook_is_done_and_the_next_waits_for_it() {
    let two = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": [{"name": "a"}, {"name": "b"}]});
    let pod = pod(two, json!({}));
    let hooked = |post_start| world([("a", Seen { post_start, ..running(1) })]);
    let runs = plan(&pod, &hooked(Some(PostStart::Runs)), 2);
    assert_eq!((runs.start.len(), states(&runs)[0].as_str(), phase(&runs)), (0, "a: ContainerCreating", "Pending"));
    let done = plan(&pod, &hooked(None), 2);
    assert_eq!((done.start.as_slice(), states(&done)[0].as_str()), (&["b".to_owned()][..], "a: running"));
    let failed = plan(&pod, &hooked(Some(PostStart::Failed)), 2);
    assert_eq!(stops(&failed), [("a", Signal::Terminate)]);
    assert_eq!(
        (failed.stop[0].because.as_str(), states(&failed)[0].as_str()),
        ("FailedPostStartHook", "a: PostStartHookError")
    );
}

#[test]
fn a_last_hook_has_the_grace_period_and_the_signal_two_seconds_more() {
    let pod = pod(one("Never"), json!({"metadata": {"deletionTimestamp": at(15), "deletionGracePeriodSeconds": 5}}));
    let mut seen = running(1);
    assert_eq!(plan(&pod, &world([("c", seen.clone())]), 10).stop[0].until, at(15), "no longer than the grace period");
    seen.stopping = Some(Stopping { since: at(10), asked: None, killed: false });
    let hook = plan(&pod, &world([("c", seen.clone())]), 16);
    assert_eq!((stops(&hook).len(), hook.wake_at), (0, Some(at(17))));
    seen.stopping = Some(Stopping { since: at(10), asked: Some(at(15)), killed: false });
    assert_eq!(stops(&plan(&pod, &world([("c", seen.clone())]), 16)), []);
    assert_eq!(stops(&plan(&pod, &world([("c", seen)]), 17)), [("c", Signal::Kill)]);
}
