//! Each rule in a story: a Workload in a queue with a policy, what others do to it and to its Variants, and what is decided until nothing
//! more is to be done. What must never be is looked for after every single step.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use usher_api::kueue::Workload;
use usher_api::kueue::concurrent::{self, Policy};
use usher_api::kueue::conditions::{self, DeactivationCause, EvictionReason, WorkloadCondition as Is};

use super::{Migration, Next, Seen, Step, decide};
use crate::queueing::transition::Transition;
use crate::queueing::variants::make;

struct World {
    parent: Arc<Workload>,
    variants: Vec<Arc<Workload>>,
    policy: Option<Policy>,
    now: Timestamp,
    /// What was done, in the order in which it was; what only reports is left out.
    log: Vec<String>,
    migrations: Vec<Migration>,
    made: usize,
}

fn start() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn policy(flavors: &[&str], concurrent: Value) -> Option<Policy> {
    let flavors: Vec<Value> = flavors.iter().map(|name| json!({"name": name, "resources": []})).collect();
    let spec = json!({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}], "concurrentAdmission": concurrent});
    concurrent::lower(&serde_json::from_value(spec).expect("a spec"))
}

fn upgrade_only() -> Value {
    json!({"migrationConstraints": {"mode": "UpgradeOnly"}})
}

fn explicit(variants: Value) -> Value {
    json!({"migrationConstraints": {"mode": "UpgradeOnly"}, "explicitVariants": variants})
}

/// A Workload in a queue with these flavors and this policy, and all its Variants.
fn racing(flavors: &[&str], concurrent: Value) -> World {
    let parent = json!({
        "metadata": {"name": "w", "namespace": "n", "uid": "u", "generation": 1, "creationTimestamp": start().to_string()},
        "spec": {"queueName": "lq", "active": true, "priority": 3, "podSets": [{"name": "main", "count": 1, "template": {}}]}});
    let mut world = World {
        parent: Arc::new(serde_json::from_value(parent).expect("a workload")),
        variants: Vec::new(),
        policy: policy(flavors, concurrent),
        now: start(),
        log: Vec::new(),
        migrations: Vec::new(),
        made: 0,
    };
    world.settle();
    world.log.clear();
    world
}

impl World {
    fn next(&self) -> Next {
        decide(&Seen { parent: &self.parent, variants: &self.variants, policy: self.policy.as_ref() }, self.now)
    }

    /// Until there is nothing to do.
    fn settle(&mut self) -> &mut World {
        for _ in 0..100 {
            match self.next().step {
                Step::Nothing => return self,
                step => self.carry_out(step),
            }
            self.check();
        }
        panic!("it never comes to rest: {:?}", self.log);
    }

    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Mark => self.mark(true),
            Step::Unmark => self.mark(false),
            Step::Create(variant) => {
                self.made += 1;
                let mut variant = *variant;
                variant.metadata.uid = Some(format!("v{}", self.made));
                self.log.push(format!("create {}", make::variant_name(&variant)));
                self.variants.push(Arc::new(variant));
            }
            Step::Spec { of, to, .. } => {
                let what = match (of.spec.active, to.active) {
                    (Some(true), Some(false)) => "deactivate",
                    (Some(false), Some(true)) => "activate",
                    _ => "change",
                };
                self.log.push(format!("{what} {}", make::variant_name(&of)));
                self.put(Workload { spec: *to, ..(*of).clone() });
            }
            Step::Status { of, to, .. } => self.put_status(&of, *to),
            Step::Migrate { of, to, counted, .. } => {
                self.migrations.push(counted);
                self.put_status(&of, *to);
            }
            Step::Delete { of } => {
                self.log.push(format!("delete {}", make::variant_name(&of)));
                self.variants.retain(|variant| variant.metadata.uid != of.metadata.uid);
            }
        }
    }

    fn mark(&mut self, parent: bool) {
        self.log.push(if parent { "mark" } else { "unmark" }.to_owned());
        let label = usher_api::kueue::keys::label::CONCURRENT_ADMISSION_PARENT;
        let labels = &mut Arc::make_mut(&mut self.parent).metadata.labels;
        *labels = parent.then(|| [(label.to_owned(), "true".to_owned())].into());
    }

    fn put_status(&mut self, of: &Workload, to: usher_api::kueue::workload_status::WorkloadStatus) {
        let after = Workload { status: to, ..of.clone() };
        let shown = [Is::QuotaReserved, Is::Admitted, Is::Evicted, Is::Finished, Is::DeactivationTarget];
        let turned: Vec<String> = shown
            .into_iter()
            .filter(|ty| of.is(*ty) != after.is(*ty))
            .map(|ty| format!("{}{}", if after.is(ty) { "+" } else { "-" }, ty.as_str()))
            .collect();
        if !turned.is_empty() {
            let who = if of.metadata.uid == self.parent.metadata.uid { "parent" } else { make::variant_name(of) };
            self.log.push(format!("{who} {}", turned.join(" ")));
        }
        self.put(after);
    }

    fn put(&mut self, object: Workload) {
        let own = |known: &Arc<Workload>| known.metadata.uid == object.metadata.uid;
        match self.variants.iter_mut().find(|known| own(known)) {
            Some(known) => *known = Arc::new(object),
            None => self.parent = Arc::new(object),
        }
    }

    /// DESIGN.md's invariants, as far as they can be seen here.
    fn check(&self) {
        let admitted: Vec<&str> =
            self.variants.iter().filter(|v| v.is(Is::Admitted)).map(|v| make::variant_name(v)).collect();
        assert!(admitted.len() <= 1, "{admitted:?} at once: {:?}", self.log);
        if self.parent.is(Is::Admitted) && !self.parent.is(Is::Evicted) && !admitted.is_empty() {
            let variant = self.variant(admitted[0]);
            assert_eq!(self.parent.status.admission, variant.status.admission, "the Parent has what its Variant has");
        }
    }

    fn variant(&self, name: &str) -> &Arc<Workload> {
        self.variants.iter().find(|v| make::variant_name(v) == name).unwrap_or_else(|| panic!("no variant {name}"))
    }

    fn to(&mut self, name: &str, change: impl FnOnce(Transition) -> Transition) -> &mut World {
        let object = if name == "parent" { self.parent.clone() } else { self.variant(name).clone() };
        let status = change(Transition::of(&object, self.now)).status;
        self.put(Workload { status, ..(*object).clone() });
        self
    }

    /// As the scheduler does: quota of the flavor of that name.
    fn reserve(&mut self, name: &str, checks: &[&str]) -> &mut World {
        let admission = json!({"clusterQueue": "cq", "podSetAssignments": [
            {"name": "main", "count": 1, "flavors": {"cpu": name, "memory": "plain"}, "resourceUsage": {"cpu": "1"}}]});
        let admission = serde_json::from_value(admission).expect("an admission");
        let checks: Vec<String> = checks.iter().map(|&check| check.to_owned()).collect();
        self.to(name, |to| to.quota_reserved(admission, &checks))
    }

    /// As whoever does the check.
    fn say(&mut self, name: &str, state: &str) -> &mut World {
        let updates = json!([{"name": "main", "nodeSelector": {"rack": name}}]);
        let said = json!([{"name": "slow", "state": state, "message": "", "podSetUpdates": updates}]);
        self.to(name, |mut to| {
            to.status.admission_checks = serde_json::from_value(said).expect("checks");
            to.admission_synced()
        })
    }

    /// As the job's controller does once its pods are gone.
    fn job_stops(&mut self) -> &mut World {
        assert!(self.parent.is(Is::Evicted) && self.parent.is(Is::QuotaReserved), "it was not told to stop");
        let why = super::reason(&self.parent, Is::Evicted).to_owned();
        let again = why == EvictionReason::Preempted.as_str();
        self.to("parent", |to| to.requeued(again, &why, "").quota_released(""))
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Workload)) -> &mut World {
        edit(Arc::make_mut(&mut self.parent));
        self
    }

    fn pass(&mut self, secs: i64) -> &mut World {
        self.now += SignedDuration::from_secs(secs);
        self
    }

    /// Names of the active ones, best first.
    fn active(&self) -> Vec<String> {
        let shown = self.parent.status.variants.iter().filter(|v| v.active);
        let shown: Vec<String> = shown.map(|v| v.name.rsplit_once("-variant-").unwrap().1.to_owned()).collect();
        let is = |name: &String| self.variant(name).is_active();
        assert!(shown.iter().all(is), "the Parent shows {shown:?}");
        shown
    }

    /// The flavor that the job is told to run on.
    fn runs_on(&self) -> Option<&str> {
        let admission = self.parent.status.admission.as_ref()?;
        Some(admission.pod_set_assignments[0].flavors["cpu"].as_str())
    }

    fn took(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

#[test]
fn there_is_one_variant_for_each_flavor_or_for_each_explicit_variant() {
    let world = racing(&["a", "b"], upgrade_only());
    let shown = |world: &World| {
        let all = world.parent.status.variants.iter();
        all.map(|v| (v.name.clone(), v.resource_flavors.join(","), v.active)).collect::<Vec<_>>()
    };
    let one = |name: &str, flavors: &str| (format!("w-variant-{name}"), flavors.to_owned(), true);
    assert_eq!(shown(&world), [one("a", "a"), one("b", "b")]);
    let owners = |v: &Arc<Workload>| v.metadata.owner_references.clone().unwrap()[0].uid.clone();
    assert!(world.variants.iter().all(|v| owners(v) == "u" && v.parent_uid() == Some("u")));
    let named = explicit(json!([{"name": "good", "allowedResourceFlavors": ["a", "c"]},
        {"name": "rest", "allowedResourceFlavors": ["b", "c"]}]));
    assert_eq!(shown(&racing(&["a", "b", "c"], named)), [one("good", "a,c"), one("rest", "b,c")]);
}

#[test]
fn the_parent_mirrors_the_admitted_variant_with_what_its_checks_ask_for() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &["slow"]).settle();
    assert_eq!(world.took(), [""; 0]);
    assert_eq!(world.runs_on(), None, "nothing before its checks are ready");
    world.say("b", "Ready").settle();
    assert_eq!(world.took(), ["b +Admitted", "parent +QuotaReserved +Admitted"]);
    assert_eq!(world.runs_on(), Some("b"));
    assert_eq!(world.parent.status.admission_checks, world.variant("b").status.admission_checks);
    assert_eq!(world.parent.status.admission_checks[0].pod_set_updates.len(), 1);
}

#[test]
fn of_two_that_are_ready_the_better_one_starts_and_the_other_gives_back() {
    let mut world = racing(&["a", "b", "c"], upgrade_only());
    world.reserve("c", &["slow"]).reserve("b", &["slow"]).settle();
    world.say("c", "Ready").say("b", "Ready").settle();
    assert_eq!(world.runs_on(), Some("b"));
    assert_eq!(world.active(), ["a", "b"]);
    // A deactivated one is evicted by whoever looks after all Workloads; what it holds goes back at once, the job does not notice.
    world.took();
    world.to("c", |to| to.evicted_as_inactive("", "The workload is deactivated")).settle();
    assert_eq!(world.took(), ["c -QuotaReserved"]);
    assert!(world.parent.is(Is::Admitted) && !world.parent.is(Is::Evicted));
}

#[test]
fn after_an_admission_worse_variants_stop_and_better_ones_go_on_down_to_the_limit() {
    let mut world = racing(&["a", "b", "c", "d"], upgrade_only());
    world.reserve("c", &[]).settle();
    assert_eq!(world.active(), ["a", "b", "c"]);
    let flavor = json!({"migrationConstraints": {"mode": "UpgradeOnly", "minFlavor": "a"}});
    let mut world = racing(&["a", "b", "c", "d"], flavor);
    world.reserve("c", &[]).settle();
    assert_eq!(world.active(), ["a", "c"]);
    let mut variant = explicit(json!([{"name": "a", "allowedResourceFlavors": ["a"]},
        {"name": "b", "allowedResourceFlavors": ["b"]}, {"name": "c", "allowedResourceFlavors": ["c"]}]));
    variant["migrationConstraints"]["minVariant"] = json!("a");
    let mut world = racing(&["a", "b", "c"], variant);
    world.reserve("c", &[]).settle();
    assert_eq!(world.active(), ["a", "c"]);
}

#[test]
fn without_migration_all_others_stop_at_once() {
    let mut world = racing(&["a", "b", "c"], json!({"migrationConstraints": {"mode": "NoMigration"}}));
    world.reserve("a", &["slow"]).reserve("b", &[]).settle();
    assert_eq!((world.runs_on(), world.active()), (Some("b"), vec!["b".to_owned()]));
    // One that was ready a moment too late is not moved to.
    world.say("a", "Ready").settle();
    assert_eq!(world.runs_on(), Some("b"));
    assert!(world.migrations.is_empty());
}

#[test]
fn a_delayed_variant_begins_so_long_after_the_creation() {
    let late = explicit(json!([{"name": "a", "allowedResourceFlavors": ["a"]},
        {"name": "b", "allowedResourceFlavors": ["b"], "createDelaySeconds": 7200}]));
    let mut world = racing(&["a", "b"], late);
    assert_eq!(world.active(), ["a"]);
    assert_eq!(world.next().again, Some(start() + SignedDuration::from_secs(7200)));
    let said = conditions::find(&world.parent.status.conditions, "QuotaReserved").unwrap();
    assert_eq!(
        (said.reason.as_str(), said.message.as_str()),
        ("OnHold", "b: does not try before 2023-11-15T00:13:20Z")
    );
    world.pass(7199).settle();
    assert_eq!(world.active(), ["a"]);
    world.pass(1).settle();
    assert_eq!((world.active(), world.next().again), (vec!["a".to_owned(), "b".to_owned()], None));
}

#[test]
fn a_variant_stops_trying_so_long_after_the_first_admission_of_another() {
    let until = explicit(json!([{"name": "a", "allowedResourceFlavors": ["a"], "deleteDelaySeconds": 86400},
        {"name": "b", "allowedResourceFlavors": ["b"]}, {"name": "c", "allowedResourceFlavors": ["c"]}]));
    let mut world = racing(&["a", "b", "c"], until);
    world.pass(500).reserve("c", &[]).settle();
    let first = world.parent.status.concurrent_admission.clone();
    assert_eq!(first.as_ref().unwrap().first_admission_time.as_ref().unwrap().0, world.now);
    world.pass(86_000).reserve("b", &[]).settle().job_stops().settle();
    assert_eq!((world.runs_on(), world.active()), (Some("b"), vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(world.parent.status.concurrent_admission, first, "a migration does not begin the countdown anew");
    world.pass(399).settle();
    assert_eq!(world.active(), ["a", "b"]);
    world.pass(1).settle();
    assert_eq!(world.active(), ["b"]);
}

#[test]
fn a_migration_goes_through_its_states_one_by_one() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    world.pass(90).reserve("a", &["slow"]).settle();
    world.took();
    assert!(!world.parent.is(Is::Evicted), "quota alone moves nobody");
    world.say("a", "Ready").settle();
    assert_eq!(world.took(), ["b +Evicted", "deactivate b", "parent +Evicted"]);
    assert!(world.variant("a").is(Is::QuotaReserved) && !world.variant("a").is(Is::Admitted));
    assert_eq!(world.next().step, Step::Nothing, "nothing until the pods are gone");
    world.job_stops().settle();
    assert_eq!(world.took(), ["b -QuotaReserved -Admitted", "a +Admitted", "parent +QuotaReserved +Admitted -Evicted"]);
    assert_eq!((world.runs_on(), world.active()), (Some("a"), vec!["a".to_owned()]));
    let counted = Migration {
        queue: "cq".to_owned(),
        from: "b".to_owned(),
        to: "a".to_owned(),
        saved: SignedDuration::from_secs(90),
    };
    assert_eq!(world.migrations, [counted], "the flavor that both have is not counted");
}

#[test]
fn a_better_variant_that_loses_its_checks_before_the_migration_changes_nothing() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    world.reserve("a", &["slow"]).settle();
    let before = world.parent.status.admission.clone();
    world.took();
    world.to("a", |to| to.evicted(EvictionReason::AdmissionCheck, "", "A check says: later")).settle();
    assert_eq!(world.took(), ["a -QuotaReserved"]);
    assert!(world.parent.is(Is::Admitted) && !world.parent.is(Is::Evicted));
    assert_eq!((world.parent.status.admission.clone(), world.active()), (before, vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn a_better_variant_that_goes_during_a_migration_leaves_the_race_open() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    world.reserve("a", &[]).settle();
    world.to("a", |to| to.preempted("InClusterQueue", "Preempted")).settle();
    world.job_stops().settle();
    assert_eq!((world.runs_on(), world.active()), (None, vec!["a".to_owned(), "b".to_owned()]));
    world.reserve("b", &[]).settle();
    assert_eq!(world.runs_on(), Some("b"), "the worse one can be had again");
}

#[test]
fn preemption_by_others_resets_the_parent_as_if_just_created() {
    let late = explicit(json!([{"name": "a", "allowedResourceFlavors": ["a"]},
        {"name": "b", "allowedResourceFlavors": ["b"]},
        {"name": "c", "allowedResourceFlavors": ["c"], "createDelaySeconds": 600}]));
    let mut world = racing(&["a", "b", "c"], late);
    world.pass(700).reserve("b", &[]).settle();
    world.pass(100).to("b", |to| to.preempted("InClusterQueue", "Preempted by a stranger")).settle();
    assert!(world.parent.is(Is::Evicted), "its job is told to stop");
    world.pass(10).job_stops().settle();
    assert_eq!(world.active(), ["a", "b"], "the delayed one waits anew");
    let noted = world.parent.status.concurrent_admission.clone().unwrap();
    assert_eq!((noted.reset_time.unwrap().0, noted.first_admission_time), (world.now, None));
    assert_eq!(world.next().again, Some(world.now + SignedDuration::from_secs(600)));
    world.pass(600).settle();
    assert_eq!(world.active(), ["a", "b", "c"]);
}

#[test]
fn preemption_of_a_variant_that_nothing_runs_on_does_not_touch_the_job() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    world.reserve("a", &["slow"]).settle();
    let noted = world.parent.status.concurrent_admission.clone();
    world.took();
    world.to("a", |to| to.preempted("InClusterQueue", "Preempted by a stranger")).settle();
    assert_eq!(world.took(), ["a -QuotaReserved"], "only the admitted Variant can evict the Parent");
    assert_eq!(world.parent.status.concurrent_admission, noted);
    assert_eq!(world.active(), ["a", "b"]);
}

#[test]
fn a_parent_evicted_for_another_reason_takes_its_variants_along_until_it_may_come_back() {
    for why in [EvictionReason::PodsReadyTimeout, EvictionReason::ClusterQueueStopped] {
        let mut world = racing(&["a", "b"], upgrade_only());
        world.reserve("b", &[]).settle();
        world.reserve("a", &["slow"]).settle();
        let noted = world.parent.status.concurrent_admission.clone();
        world.took();
        world.to("parent", |to| to.evicted(why, "", "Out")).settle();
        assert_eq!(
            world.took(),
            ["b +Evicted"],
            "it goes with the Parent, and holds its quota until the pods are gone"
        );
        world.job_stops().settle();
        assert!(world.took().contains(&"b -QuotaReserved -Admitted".to_owned()));
        assert_eq!(world.active(), [""; 0], "nobody tries while it rests: {why:?}");
        assert_eq!(world.parent.status.concurrent_admission, noted, "it is not reset");
        world.to("parent", |to| to.requeued(true, why.as_str(), "")).settle();
        assert_eq!(world.active(), ["a", "b"]);
    }
}

#[test]
fn a_rejected_variant_stays_out_and_when_all_are_the_parent_is_deactivated() {
    let mut world = racing(&["a", "b"], upgrade_only());
    let reject = |world: &mut World, name: &str| {
        world.reserve(name, &["slow"]).settle();
        let (cause, object) = (DeactivationCause::AdmissionCheck, world.variant(name).clone());
        let mut object = (*object).clone();
        object.spec.active = Some(false);
        world.put(object);
        world.to(name, |to| to.evicted_as_inactive(cause.as_str(), "Rejected")).settle();
    };
    reject(&mut world, "a");
    assert_eq!(world.active(), ["b"]);
    assert!(!world.parent.is(Is::DeactivationTarget));
    reject(&mut world, "b");
    assert!(world.parent.is(Is::DeactivationTarget));
}

#[test]
fn flavors_that_come_go_and_change_places_make_delete_and_reorder_variants() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    world.policy = policy(&["c", "b", "a"], upgrade_only());
    world.took();
    world.settle();
    assert_eq!(world.took(), ["create c", "deactivate a"], "what was better is worse now");
    assert_eq!(world.active(), ["c", "b"]);
    world.policy = policy(&["c", "b"], upgrade_only());
    world.settle();
    assert_eq!(world.took(), ["delete a"]);
    assert!(!world.parent.is(Is::Evicted));
}

#[test]
fn removing_the_flavor_that_a_job_runs_on_drains_it_gently() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    world.policy = policy(&["a"], upgrade_only());
    world.took();
    world.settle();
    assert_eq!(world.took(), ["b +Evicted", "parent +Evicted"], "its quota stays until the pods are gone");
    world.job_stops().settle();
    assert_eq!(world.took(), ["b -QuotaReserved -Admitted", "delete b"]);
    world.reserve("a", &[]).settle();
    assert_eq!(world.runs_on(), Some("a"));
}

#[test]
fn without_the_policy_a_parent_is_a_regular_workload_on_the_flavor_it_has() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    let before = world.parent.status.admission.clone();
    world.policy = None;
    world.took();
    world.settle();
    assert_eq!(world.took(), ["unmark", "delete a", "delete b"]);
    assert_eq!(world.parent.status.admission, before);
    assert!(world.parent.is(Is::Admitted) && !world.parent.is(Is::Evicted));
    assert!(world.parent.status.variants.is_empty() && world.parent.status.concurrent_admission.is_none());
}

#[test]
fn a_workload_that_runs_when_the_policy_comes_is_left_alone() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    let policy = world.policy.take();
    world.settle();
    world.policy = policy;
    world.took();
    world.settle();
    assert_eq!(world.took(), [""; 0]);
}

#[test]
fn what_changes_in_a_waiting_parent_reaches_its_variants() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.edit(|parent| parent.spec.priority = Some(9)).settle();
    assert!(world.variants.iter().all(|v| v.spec.priority == Some(9)));
    world.edit(|parent| parent.spec.queue_name = "other".to_owned()).settle();
    assert!(world.variants.iter().all(|v| v.spec.queue_name == "other"));
    world.edit(|parent| parent.spec.pod_sets[0].count = 5).settle();
    assert!(world.variants.iter().all(|v| v.spec.pod_sets[0].count == 5));
    assert_eq!(world.variant("b").allowed_flavors(), Some(vec!["b"]), "each keeps its own limits");
    // One that holds quota for what is no longer asked gives it back first.
    world.reserve("a", &["slow"]).settle();
    world.took();
    world.edit(|parent| parent.spec.pod_sets[0].count = 2).settle();
    let took = world.took();
    assert!(took.contains(&"a -QuotaReserved +Evicted".to_owned()), "{took:?}");
    assert!(world.variants.iter().all(|v| v.spec.pod_sets[0].count == 2));
}

#[test]
fn a_deactivated_parent_takes_its_variants_out_and_back_and_a_deleted_one_is_let_go() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.edit(|parent| parent.spec.active = Some(false)).settle();
    assert_eq!(world.active(), ["a", "b"], "it is evicted first, in its own words");
    world.to("parent", |to| to.evicted_as_inactive("", "The workload is deactivated")).settle();
    assert_eq!(world.active(), [""; 0]);
    world.edit(|parent| parent.spec.active = Some(true)).settle();
    assert_eq!(world.active(), ["a", "b"]);
    let at = serde_json::from_value(json!(world.now.to_string())).unwrap();
    world.took();
    world.edit(|parent| parent.metadata.deletion_timestamp = Some(at)).settle();
    assert_eq!(world.took(), [""; 0], "its Variants are the garbage collector's");
}

#[test]
fn a_finished_parent_finishes_its_variants_and_pods_it_no_longer_needs_are_no_longer_held() {
    let mut world = racing(&["a", "b"], upgrade_only());
    world.reserve("b", &[]).settle();
    let done = serde_json::from_value(json!([{"name": "main", "count": 1}])).unwrap();
    world.edit(|parent| parent.status.reclaimable_pods = done).settle();
    assert_eq!(world.variant("b").status.reclaimable_pods, world.parent.status.reclaimable_pods);
    world.to("parent", |to| to.finished(usher_api::kueue::conditions::FinishedReason::Succeeded, "done")).settle();
    assert!(world.variants.iter().all(|v| v.is(Is::Finished)));
}
