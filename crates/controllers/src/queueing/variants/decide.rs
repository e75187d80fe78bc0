//! What is to be done about one Parent and its Variants: the first of the rules that has something to say.
//!
//! Each step is one write, and every state in between can be read off the objects alone, so a restart goes on where it was. Only this
//! admits Variants (the scheduler reserves their quota, checks make them ready), and only one at a time:
//!
//! 1. A Variant is *ready*: it has quota, all its checks are Ready, nobody told it to leave. Admitted is still False.
//! 2. None of its siblings is admitted and its Parent holds nothing: it is admitted, the Parent mirrors it, the job starts.
//! 3. A worse one is admitted: that one is evicted (`FlavorMigration`) and deactivated, then the Parent, then the job stops and the Parent
//!    gives its admission back, then the worse Variant gives its quota back, and 2 holds.
//!
//! Only the admitted Variant can evict the Parent. Quota of a Variant that is not admitted is given back at once: nothing runs on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use usher_api::kueue::Workload;
use usher_api::kueue::admission_check::CheckState;
use usher_api::kueue::concurrent::{Mode, Policy, Variant};
use usher_api::kueue::conditions::{self, DeactivationCause, EvictionReason, FinishedReason, WorkloadCondition};
use usher_api::kueue::workload::{Role, WorkloadSpec};
use usher_api::kueue::workload_status::{ConcurrentAdmissionStatus, WorkloadStatus};

use super::make;
use super::size::is_resized;
use crate::queueing::scheduler::write::Told;
use crate::queueing::transition::Transition;

/// All that a decision is made from.
pub struct Seen<'a> {
    pub parent: &'a Arc<Workload>,
    /// The Variants it controls, in any order.
    pub variants: &'a [Arc<Workload>],
    /// Of the queue it waits in; None: the queue has none.
    pub policy: Option<&'a Policy>,
}

/// One write, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    /// The Workload becomes a Parent.
    Mark,
    /// The Parent becomes a regular Workload.
    Unmark,
    Create(Box<Workload>),
    Spec {
        of: Arc<Workload>,
        to: Box<WorkloadSpec>,
        told: Option<Told>,
    },
    Status {
        of: Arc<Workload>,
        to: Box<WorkloadStatus>,
        told: Option<Told>,
    },
    /// The admitted Variant makes way for a better one.
    Migrate {
        of: Arc<Workload>,
        to: Box<WorkloadStatus>,
        told: Told,
        counted: Migration,
    },
    Delete {
        of: Arc<Workload>,
    },
}

/// What is counted of a migration.
#[derive(Clone, Debug, PartialEq)]
pub struct Migration {
    pub queue: String,
    /// The flavors that it leaves and that it gets, those it keeps left out.
    pub from: String,
    pub to: String,
    /// How long it ran on the worse ones: it would have waited that long for the better ones.
    pub saved: SignedDuration,
}

/// The step, and when time alone will call for another.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    pub step: Step,
    pub again: Option<Timestamp>,
}

pub fn decide(seen: &Seen<'_>, now: Timestamp) -> Next {
    let (parent, policy) = (seen.parent, seen.policy);
    let once = |step| Next { step, again: None };
    let gone = parent.metadata.deletion_timestamp.is_some();
    match (parent.role(), policy) {
        _ if gone => once(Step::Nothing),
        (Role::Regular, Some(_)) if make::has_variants(parent) => once(Step::Mark),
        (Role::Regular, _) => once(remove_all(seen.variants)),
        (Role::Parent, None) if !parent.is(WorkloadCondition::Finished) => once(unmark(parent, now)),
        (Role::Parent, _) => {
            let none = Policy { mode: Mode::NoMigration, variants: Vec::new(), targets: 0 };
            let policy = policy.map_or(none, |policy| make::applicable(policy, parent));
            let family = Family::new(parent, seen.variants, &policy, now);
            let step = family.rules().iter().find_map(|rule| rule(&family)).unwrap_or(Step::Nothing);
            let again = family.due_times().filter(|at| *at > now).min();
            Next { step, again }
        }
        (Role::Variant | Role::Slice, _) => once(Step::Nothing),
    }
}

/// Variants of a Workload that is no Parent any longer; their quota is its own now.
fn remove_all(variants: &[Arc<Workload>]) -> Step {
    variants.iter().find(|v| is_there(v)).map_or(Step::Nothing, |of| Step::Delete { of: of.clone() })
}

fn is_there(variant: &Workload) -> bool {
    variant.metadata.deletion_timestamp.is_none()
}

/// The queue has no policy any longer: the Parent keeps the admission that it mirrors, as its own. One that is on its way out leaves first.
fn unmark(parent: &Arc<Workload>, now: Timestamp) -> Step {
    if is_leaving(parent) && parent.is(WorkloadCondition::QuotaReserved) {
        return Step::Nothing;
    }
    let mut to = Transition::of(parent, now);
    if kept_out_by(parent).is_some_and(is_ours) {
        to = to.requeued(
            true,
            EvictionReason::ConcurrentAdmission.as_str(),
            "The ClusterQueue admits it as one workload now",
        );
    }
    (to.status.variants, to.status.concurrent_admission) = (Vec::new(), None);
    if to.status == parent.status {
        return Step::Unmark;
    }
    Step::Status { of: parent.clone(), to: Box::new(to.status), told: None }
}

fn condition(workload: &Workload, ty: WorkloadCondition) -> Option<&Condition> {
    conditions::find(&workload.status.conditions, ty.as_str())
}

fn reason(workload: &Workload, ty: WorkloadCondition) -> &str {
    condition(workload, ty).filter(|c| c.status == "True").map_or("", |c| c.reason.as_str())
}

fn is_leaving(workload: &Workload) -> bool {
    workload.is(WorkloadCondition::Evicted)
}

/// Why it is kept out of its queue since its last eviction.
fn kept_out_by(workload: &Workload) -> Option<&str> {
    condition(workload, WorkloadCondition::Requeued).filter(|c| c.status == "False").map(|c| c.reason.as_str())
}

/// Evictions of a Parent that come from here, and that nobody else will let back.
fn is_ours(reason: &str) -> bool {
    [EvictionReason::VariantEvicted, EvictionReason::ConcurrentAdmission].iter().any(|own| own.as_str() == reason)
}

/// The Parent may not run now, for reasons of its own.
pub(in crate::queueing) fn rests(parent: &Workload) -> bool {
    !parent.is_active() || kept_out_by(parent).is_some_and(|reason| !is_ours(reason))
}

/// Its checks said that it is not to be admitted at all.
pub(in crate::queueing) fn is_rejected(variant: &Workload) -> bool {
    let cause = DeactivationCause::AdmissionCheck;
    !variant.is_active() && reason(variant, WorkloadCondition::Evicted) == cause.eviction().as_str()
}

/// It has quota, and all its checks are Ready: it could start now.
pub(super) fn is_ready(variant: &Workload) -> bool {
    variant.is(WorkloadCondition::QuotaReserved)
        && !is_leaving(variant)
        && !variant.is(WorkloadCondition::DeactivationTarget)
        && variant.is_active()
        && variant.status.admission_checks.iter().all(|check| check.state == CheckState::Ready)
}

/// A Variant and what its queue says about it.
pub(super) struct Member<'a> {
    pub object: &'a Arc<Workload>,
    /// Its rank and what it is; None: its queue has no such variant any longer.
    pub said: Option<(usize, &'a Variant)>,
}

impl Member<'_> {
    fn is_admitted(&self) -> bool {
        self.object.is(WorkloadCondition::Admitted)
    }

    fn rank(&self) -> usize {
        self.said.map_or(usize::MAX, |(rank, _)| rank)
    }
}

pub(super) struct Family<'a> {
    pub parent: &'a Arc<Workload>,
    /// Best first; those that are no longer wanted last.
    pub members: Vec<Member<'a>>,
    pub policy: &'a Policy,
    pub now: Timestamp,
}

type Rule = fn(&Family<'_>) -> Option<Step>;

const OF_THE_FINISHED: &[Rule] = &[|family| family.finish_with_the_parent()];

const OF_THE_LIVING: &[Rule] = &[
    |family| family.give_back_what_nothing_runs_on(),
    |family| family.follow_the_admitted_one_out(),
    |family| family.follow_the_parent_out(),
    |family| family.leave_without_an_admitted_one(),
    |family| family.wait_with_the_parent(),
    |family| family.remove_who_is_not_wanted(),
    |family| family.create(),
    |family| family.ask_for_what_the_parent_asks(),
    |family| family.admit_the_best_that_is_ready(),
    |family| family.mirror(),
    |family| family.migrate(),
    |family| family.set_active(),
    |family| family.give_up_when_all_are_rejected(),
    |family| family.pass_counts_on(),
    |family| family.report(),
];

impl<'a> Family<'a> {
    fn new(parent: &'a Arc<Workload>, variants: &'a [Arc<Workload>], policy: &'a Policy, now: Timestamp) -> Family<'a> {
        let mut taken = vec![false; policy.variants.len()];
        let living = variants.iter().filter(|v| is_there(v));
        let mut members: Vec<Member<'a>> = living
            .map(|object| {
                let rank =
                    policy.rank(make::variant_name(object)).filter(|rank| !std::mem::replace(&mut taken[*rank], true));
                Member { object, said: rank.map(|rank| (rank, &policy.variants[rank])) }
            })
            .collect();
        members.sort_by_key(Member::rank);
        Family { parent, members, policy, now }
    }

    fn rules(&self) -> &'static [Rule] {
        if self.parent.is(WorkloadCondition::Finished) { OF_THE_FINISHED } else { OF_THE_LIVING }
    }

    /// The one that the Parent runs on, if any.
    pub(super) fn admitted(&self) -> Option<&Member<'a>> {
        self.members.iter().find(|member| member.is_admitted())
    }

    fn parent_holds(&self) -> bool {
        self.parent.is(WorkloadCondition::QuotaReserved)
    }

    fn parent_rests(&self) -> bool {
        rests(self.parent)
    }

    fn to(&self, of: &Workload) -> Transition {
        Transition::of(of, self.now)
    }

    fn status(&self, of: &Arc<Workload>, to: Transition, told: Option<Told>) -> Step {
        Step::Status { of: of.clone(), to: Box::new(to.status), told }
    }

    /// When the delays of Variants began to count.
    fn base(&self) -> Timestamp {
        let noted = self.parent.status.concurrent_admission.as_ref().and_then(|noted| noted.reset_time.as_ref());
        let created = self.parent.metadata.creation_timestamp.as_ref();
        noted.or(created).map_or(self.now, |time| time.0)
    }

    fn first_admission(&self) -> Option<Timestamp> {
        let noted = self.parent.status.concurrent_admission.as_ref()?;
        noted.first_admission_time.as_ref().map(|time| time.0)
    }

    fn begins_at(&self, variant: &Variant) -> Timestamp {
        let delay = SignedDuration::from_secs(variant.create_delay_secs.into());
        self.base().checked_add(delay).unwrap_or(Timestamp::MAX)
    }

    /// When a Variant of a waiting Parent begins to try, if that is ahead.
    pub(super) fn delayed_until(&self, member: &Member<'_>) -> Option<Timestamp> {
        let (_, variant) = member.said?;
        let begins = self.begins_at(variant);
        (begins > self.now && !self.parent_rests()).then_some(begins)
    }

    /// None: never.
    fn ends_at(&self, variant: &Variant) -> Option<Timestamp> {
        let delay = SignedDuration::from_secs(variant.delete_delay_secs?.into());
        self.first_admission()?.checked_add(delay).ok()
    }

    fn due_times(&self) -> impl Iterator<Item = Timestamp> {
        let variants = self.policy.variants.iter();
        variants.flat_map(|variant| [Some(self.begins_at(variant)), self.ends_at(variant)]).flatten()
    }

    fn finish_with_the_parent(&self) -> Option<Step> {
        let member = self.members.iter().find(|member| !member.object.is(WorkloadCondition::Finished))?;
        let end = condition(self.parent, WorkloadCondition::Finished)?;
        let reason = FinishedReason::parse(&end.reason).unwrap_or(FinishedReason::Succeeded);
        Some(self.status(member.object, self.to(member.object).finished(reason, &end.message), None))
    }

    fn give_back_what_nothing_runs_on(&self) -> Option<Step> {
        let leaves = |member: &&Member<'_>| {
            let object = member.object;
            object.is(WorkloadCondition::QuotaReserved) && is_leaving(object) && !member.is_admitted()
        };
        self.members.iter().find(leaves).map(|member| self.give_back(member.object))
    }

    /// Its quota goes back. Who was evicted by a check or a stop waits for that to pass; everybody else may try again.
    fn give_back(&self, of: &Arc<Workload>) -> Step {
        let evicted = condition(of, WorkloadCondition::Evicted);
        let (why, message) = evicted.map_or(("", ""), |c| (c.reason.as_str(), c.message.as_str()));
        let waits =
            [EvictionReason::AdmissionCheck, EvictionReason::ClusterQueueStopped, EvictionReason::LocalQueueStopped];
        let again = !waits.iter().any(|reason| reason.as_str() == why);
        self.status(of, self.to(of).requeued(again, why, message).quota_released(message), None)
    }

    /// The Variant that the job runs on was evicted: the Parent goes first, then its quota.
    fn follow_the_admitted_one_out(&self) -> Option<Step> {
        let member = self.admitted().filter(|member| is_leaving(member.object))?;
        let object = member.object;
        let why = reason(object, WorkloadCondition::Evicted);
        if why == EvictionReason::FlavorMigration.as_str() && object.is_active() {
            return Some(self.activate(object, false));
        }
        if self.parent_holds() {
            // Nothing is decided while it stops.
            return Some(if is_leaving(self.parent) { Step::Nothing } else { self.evict_parent(object, why) });
        }
        let evicted = condition(object, WorkloadCondition::Evicted)?;
        if why == EvictionReason::Preempted.as_str() && self.has_begun_before(evicted.last_transition_time.0) {
            return Some(self.reset());
        }
        Some(self.give_back(object))
    }

    fn evict_parent(&self, variant: &Workload, why: &str) -> Step {
        let name = variant.metadata.name.as_deref().unwrap_or_default();
        let said = condition(variant, WorkloadCondition::Evicted).map_or("", |c| c.message.as_str());
        let message = format!("Variant {name} was evicted: {said}");
        let to = self.to(self.parent).evicted(EvictionReason::VariantEvicted, why, &message);
        self.status(self.parent, to, Some(Told::normal("EvictedDueToVariantEvicted", message)))
    }

    fn has_begun_before(&self, at: Timestamp) -> bool {
        self.first_admission().is_some() || self.base() < at
    }

    /// As if it had just been created: all delays count anew.
    fn reset(&self) -> Step {
        let mut to = self.to(self.parent);
        let reset_time = Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
        to.status.concurrent_admission =
            Some(ConcurrentAdmissionStatus { reset_time: Some(Time(reset_time)), first_admission_time: None });
        self.status(self.parent, to, None)
    }

    /// The Parent was evicted for a reason of its own: the Variant that it ran on goes with it.
    fn follow_the_parent_out(&self) -> Option<Step> {
        let object = self.admitted()?.object;
        let leaving = is_leaving(self.parent) && self.parent_holds();
        let left = !self.parent_holds() && self.parent_rests();
        if !leaving && !left {
            return None;
        }
        let said = condition(self.parent, WorkloadCondition::Evicted).map_or("", |c| c.message.as_str());
        let message = format!("Its Parent was evicted: {said}");
        let why = reason(self.parent, WorkloadCondition::Evicted);
        let to = self.to(object).evicted(EvictionReason::ConcurrentAdmission, why, &message);
        let to = if left {
            to.requeued(true, EvictionReason::ConcurrentAdmission.as_str(), &message).quota_released(&message)
        } else {
            to
        };
        Some(self.status(object, to, None))
    }

    /// The Variant that it ran on is gone.
    fn leave_without_an_admitted_one(&self) -> Option<Step> {
        if self.admitted().is_some() || !self.parent_holds() {
            return None;
        }
        if is_leaving(self.parent) {
            return Some(Step::Nothing);
        }
        let message = "No variant is admitted";
        let to = self.to(self.parent).evicted(EvictionReason::ConcurrentAdmission, "", message);
        Some(self.status(self.parent, to, Some(Told::normal("EvictedDueToConcurrentAdmission", message.to_owned()))))
    }

    /// While the Parent may not run, no Variant tries.
    fn wait_with_the_parent(&self) -> Option<Step> {
        if !self.parent_rests() {
            return None;
        }
        // The Parent is evicted first, in its own words.
        if !self.parent.is_active() && !is_leaving(self.parent) {
            return Some(Step::Nothing);
        }
        if let Some(member) = self.members.iter().find(|member| member.object.is_active()) {
            return Some(self.activate(member.object, false));
        }
        // What checks said before does not count when its owner activates it again.
        if let Some(member) = self.members.iter().find(|member| !self.parent.is_active() && is_rejected(member.object))
        {
            let mut to = self.to(member.object);
            conditions::remove(&mut to.status.conditions, WorkloadCondition::Evicted.as_str());
            return Some(self.status(member.object, to.evicted_as_inactive("", "The workload is deactivated"), None));
        }
        Some(self.report().unwrap_or(Step::Nothing))
    }

    /// The queue has no such variant any longer. One that runs leaves as it would leave a stopped queue.
    fn remove_who_is_not_wanted(&self) -> Option<Step> {
        let stale = self.members.iter().filter(|member| member.said.is_none());
        let mut stale: Vec<&Member<'_>> = stale.collect();
        stale.sort_by_key(|member| !member.is_admitted());
        let member = stale.first()?;
        if !member.is_admitted() {
            return Some(Step::Delete { of: member.object.clone() });
        }
        let message = format!("The ClusterQueue no longer has the variant {:?}", make::variant_name(member.object));
        let to = self.to(member.object).evicted(EvictionReason::ConcurrentAdmission, "", &message);
        Some(self.status(member.object, to, Some(Told::normal("EvictedDueToConcurrentAdmission", message))))
    }

    fn create(&self) -> Option<Step> {
        let is_made = |rank: usize| self.members.iter().any(|member| member.rank() == rank);
        let mut variants = self.policy.variants.iter().enumerate();
        let (rank, variant) = variants.find(|(rank, _)| !is_made(*rank))?;
        let active = self.is_wanted(rank, variant);
        Some(Step::Create(Box::new(make::variant(self.parent, variant, active))))
    }

    fn ask_for_what_the_parent_asks(&self) -> Option<Step> {
        self.members.iter().find_map(|member| {
            let (_, variant) = member.said?;
            let object = member.object;
            let to = WorkloadSpec { active: object.spec.active, ..self.asked(variant) };
            if to == object.spec {
                return None;
            }
            let holds = object.is(WorkloadCondition::QuotaReserved);
            let same_pods = to.pod_sets == object.spec.pod_sets || (member.is_admitted() && is_resized(object, &to));
            let same_request = same_pods
                && (&to.queue_name, &to.priority_class_ref, to.maximum_execution_time_seconds)
                    == (
                        &object.spec.queue_name,
                        &object.spec.priority_class_ref,
                        object.spec.maximum_execution_time_seconds,
                    );
            if !holds || (same_request && is_on_allowed(object, variant)) {
                return Some(Step::Spec { of: object.clone(), to: Box::new(to), told: None });
            }
            // What it got is not what is asked for now.
            let message = "What is asked for has changed";
            let to = self.to(object).evicted(EvictionReason::ConcurrentAdmission, "", message);
            let to = if member.is_admitted() && self.parent_holds() {
                to
            } else {
                to.requeued(true, EvictionReason::ConcurrentAdmission.as_str(), message).quota_released(message)
            };
            Some(self.status(object, to, None))
        })
    }

    /// Best first: of two that are ready, the better one starts.
    fn admit_the_best_that_is_ready(&self) -> Option<Step> {
        if self.parent_holds() || self.admitted().is_some() {
            return None;
        }
        let member = self.members.iter().find(|member| is_ready(member.object))?;
        let queue = member.object.status.admission.as_ref()?.cluster_queue.clone();
        let reserved = condition(member.object, WorkloadCondition::QuotaReserved)?;
        let waited = (self.now.as_second() - reserved.last_transition_time.0.as_second()).max(0);
        let message = format!("Admitted by ClusterQueue {queue}, wait time since reservation was {waited}s");
        let to = self.to(member.object).admitted_as_variant();
        Some(self.status(member.object, to, Some(Told::normal("Admitted", message))))
    }

    /// The Parent has what the admitted Variant has, checks and all: the job is started with it.
    fn mirror(&self) -> Option<Step> {
        let object = self.admitted()?.object;
        if self.parent_holds() {
            return None;
        }
        let admission = object.status.admission.clone()?;
        let queue = admission.cluster_queue.clone();
        let mut to = self.to(self.parent).quota_reserved(admission, &[]);
        to.status.admission_checks = object.status.admission_checks.clone();
        let mut to = to.admission_synced();
        let base = self.base();
        let noted = to.status.concurrent_admission.get_or_insert_default();
        noted.reset_time.get_or_insert(Time(base));
        noted
            .first_admission_time
            .get_or_insert(Time(Timestamp::from_second(self.now.as_second()).unwrap_or(self.now)));
        to.status.variants = self.shown();
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let message = format!("Admitted by ClusterQueue {queue} as variant {name}");
        Some(self.status(self.parent, to, Some(Told::normal("Admitted", message))))
    }

    /// A better one is ready: the worse one makes way.
    fn migrate(&self) -> Option<Step> {
        let worse = self.admitted().filter(|member| !is_leaving(member.object))?;
        let targets = self.members.iter().filter(|m| m.rank() < worse.rank() && m.rank() < self.policy.targets);
        let better = targets.into_iter().find(|member| is_ready(member.object))?;
        let name = better.object.metadata.name.as_deref().unwrap_or_default();
        let message = format!("The workload moves to the better variant {name}");
        let to = self.to(worse.object).evicted(EvictionReason::FlavorMigration, "", &message);
        Some(Step::Migrate {
            of: worse.object.clone(),
            to: Box::new(to.status),
            told: Told::normal("EvictedDueToFlavorMigration", message),
            counted: self.count(worse.object, better.object),
        })
    }

    fn count(&self, worse: &Workload, better: &Workload) -> Migration {
        let (from, to) = (got(worse), got(better));
        let list = |own: &BTreeSet<&str>, other: &BTreeSet<&str>| {
            let own: Vec<&str> = own.iter().filter(|flavor| from == to || !other.contains(*flavor)).copied().collect();
            own.join(",")
        };
        let since = condition(worse, WorkloadCondition::Admitted).map_or(self.now, |c| c.last_transition_time.0);
        Migration {
            queue: worse.status.admission.as_ref().map(|a| a.cluster_queue.clone()).unwrap_or_default(),
            from: list(&from, &to),
            to: list(&to, &from),
            saved: self.now.duration_since(since),
        }
    }

    /// Whether a variant is to try for quota now.
    fn is_wanted(&self, rank: usize, variant: &Variant) -> bool {
        let has_begun = self.begins_at(variant) <= self.now;
        match self.admitted() {
            None => has_begun,
            Some(admitted) if admitted.rank() == rank => true,
            Some(admitted) => {
                let is_target = rank < admitted.rank() && rank < self.policy.targets;
                is_target && has_begun && self.ends_at(variant).is_none_or(|at| at > self.now)
            }
        }
    }

    /// Those to stop go first, so that quota they hold is free for others.
    fn set_active(&self) -> Option<Step> {
        let wrong = |wanted: bool| {
            self.members.iter().find(|member| {
                let object = member.object;
                let held = member.is_admitted() || (wanted && is_rejected(object));
                let is = |(rank, variant): (usize, &Variant)| self.is_wanted(rank, variant) == wanted;
                !held && object.is_active() != wanted && member.said.is_some_and(is)
            })
        };
        let step = |member: &Member<'_>, active| self.activate(member.object, active);
        wrong(false).map(|m| step(m, false)).or_else(|| wrong(true).map(|m| step(m, true)))
    }

    fn activate(&self, of: &Arc<Workload>, active: bool) -> Step {
        let to = WorkloadSpec { active: Some(active), ..of.spec.clone() };
        let (reason, what) =
            if active { ("ActivatedVariant", "activated") } else { ("DeactivatedVariant", "deactivated") };
        let message = format!("Variant {:?} was {what}", make::variant_name(of));
        Step::Spec { of: of.clone(), to: Box::new(to), told: Some(Told::normal(reason, message)) }
    }

    /// As a regular Workload whose check was rejected.
    fn give_up_when_all_are_rejected(&self) -> Option<Step> {
        let all = !self.members.is_empty() && self.members.iter().all(|member| is_rejected(member.object));
        if !all || self.parent.is(WorkloadCondition::DeactivationTarget) {
            return None;
        }
        let message = "admission checks that rejected every variant";
        let to = self.to(self.parent).deactivated(DeactivationCause::AdmissionCheck, message);
        let told = Told::warning("AdmissionCheckRejected", format!("Deactivated due to {message}"));
        Some(self.status(self.parent, to, Some(told)))
    }

    /// What the job no longer needs, its Variant no longer holds.
    fn pass_counts_on(&self) -> Option<Step> {
        let object = self.admitted().filter(|_| self.parent_holds())?.object;
        let done = &self.parent.status.reclaimable_pods;
        if object.status.reclaimable_pods == *done {
            return None;
        }
        let mut to = self.to(object);
        to.status.reclaimable_pods = done.clone();
        Some(self.status(object, to, None))
    }
}

/// Whether all it got is among what it may have.
fn is_on_allowed(object: &Workload, variant: &Variant) -> bool {
    got(object).into_iter().all(|flavor| variant.allowed_flavors.iter().any(|allowed| allowed == flavor))
}

/// The flavors that a workload has quota of.
fn got(object: &Workload) -> BTreeSet<&str> {
    let sets = object.status.admission.iter().flat_map(|admission| &admission.pod_set_assignments);
    sets.flat_map(|set| set.flavors.values()).map(String::as_str).collect()
}

#[cfg(test)]
mod tests;
