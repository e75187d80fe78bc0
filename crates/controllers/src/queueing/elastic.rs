//! Jobs that grow and shrink without stopping (KEP-77): one slice per added replica, folded into the Workload it belongs to.
//!
//! What is admitted is what the Workload's status says, at every moment: a slice counts for itself until one write of that
//! status raises the counts and lists its uid, and from then on it counts for nothing. Each step can be read off the objects,
//! so that a crash between any two neither loses a replica nor counts one twice:
//!
//! 1. slices that were folded go;
//! 2. slices that are no longer wanted go, the newest first, and those that were told to leave give their quota back;
//! 3. slices that are admitted are folded, as many as there are, in one write that also forgets those that are gone;
//! 4. fewer wanted than admitted: the counts are lowered in place, and the quota is free;
//! 5. more wanted: the condition `ResizeRequested` says so, then there is a slice for each replica that is missing, of as many pods as its kind says;
//! 6. when all that is wanted is admitted, the spec says so too.
//!
//! A job that races for several flavors has its quota through one of its Variants: slices belong to the Parent, are folded into the
//! admitted Variant, and the Parent mirrors that.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use usher_api::kueue::conditions::{self, EvictionReason, ResizeReason, WorkloadCondition};
use usher_api::kueue::keys::{self, label};
use usher_api::kueue::workload::{PodSet, WorkloadSpec};
use usher_api::kueue::workload_status::{Admission, PodSetAssignment, WorkloadStatus};
use usher_api::kueue::{API_VERSION, Workload, names};
use usher_api::quantity::Quantity;

use super::scheduler::requests;
use super::transition::Transition;

/// What is to be done about the size of one elastic job.
#[derive(Clone, Debug, PartialEq)]
pub enum Resize {
    Create(Vec<Workload>),
    Delete(Vec<Arc<Workload>>, Gone),
    /// A slice that was told to leave gives its quota back.
    Release(Arc<Workload>, Box<WorkloadStatus>),
    /// Of the job's Workload.
    Status(Box<WorkloadStatus>, What),
    /// Of the Variant that holds its quota.
    Held(Box<WorkloadStatus>, What),
    Spec(Box<WorkloadSpec>),
}

/// What a write of the status is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Folded(usize),
    ScaledDown,
    Told,
}

/// Why slices go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// They count as part of their Workload.
    Folded,
    /// Nobody asks for them any longer.
    Withdrawn,
}

/// An admitted elastic job, its slices, and what it asks for now.
pub struct Elastic<'a> {
    pub parent: &'a Workload,
    /// The Variant that is admitted for it; `None`: it holds its quota itself.
    pub variant: Option<&'a Workload>,
    pub slices: &'a [Arc<Workload>],
    /// The pod sets as the job has them now.
    pub wanted: &'a [PodSet],
    /// How many pods a replica of a pod set has.
    pub replica_size: &'a dyn Fn(&str) -> i32,
    /// Pods there are, terminating ones included.
    pub pods_now: i32,
    pub now: Timestamp,
}

impl Elastic<'_> {
    pub fn next(&self) -> Option<Resize> {
        Sizing::of(self).next()
    }
}

fn uid(workload: &Workload) -> &str {
    workload.metadata.uid.as_deref().unwrap_or_default()
}

fn is_live(slice: &Workload) -> bool {
    slice.metadata.deletion_timestamp.is_none()
}

/// Slices of one Workload, the oldest first.
fn number(slice: &Workload) -> u64 {
    let name = slice.metadata.name.as_deref().unwrap_or_default();
    name.rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX)
}

/// An elastic job with its slices sorted out: there may be thousands, and each step looks at all of them.
struct Sizing<'a> {
    parent: &'a Workload,
    /// Whose status counts for quota: slices are folded into it.
    holder: &'a Workload,
    slices: &'a [Arc<Workload>],
    wanted: &'a [PodSet],
    of: &'a Elastic<'a>,
    /// Folded slices that are still there.
    folded: Vec<&'a Arc<Workload>>,
    /// Slices that count for themselves, by pod set, the oldest first.
    open: BTreeMap<&'a str, Vec<&'a Arc<Workload>>>,
}

impl<'a> Sizing<'a> {
    fn of(of: &'a Elastic<'a>) -> Sizing<'a> {
        let holder = of.variant.unwrap_or(of.parent);
        let listed: HashSet<&str> = holder.status.folded_slices.iter().map(String::as_str).collect();
        let mut sizing = Sizing {
            parent: of.parent,
            holder,
            slices: of.slices,
            wanted: of.wanted,
            of,
            folded: Vec::new(),
            open: BTreeMap::new(),
        };
        for slice in of.slices.iter().filter(|slice| is_live(slice)) {
            match set_of(slice) {
                _ if listed.contains(uid(slice)) => sizing.folded.push(slice),
                Some(set) => sizing.open.entry(set).or_default().push(slice),
                None => {}
            }
        }
        sizing.open.values_mut().for_each(|open| open.sort_by_key(|slice| number(slice)));
        sizing
    }

    fn next(&self) -> Option<Resize> {
        self.mirror()
            .or_else(|| self.drop_folded())
            .or_else(|| self.withdraw())
            .or_else(|| self.release())
            .or_else(|| self.fold())
            .or_else(|| self.scale_down())
            .or_else(|| self.announce())
            .or_else(|| self.create())
            .or_else(|| self.settle_spec())
            .or_else(|| self.settle_variant())
            .or_else(|| self.settle_status())
    }

    fn assignments(&self) -> &[PodSetAssignment] {
        self.holder.status.admission.as_ref().map_or(&[], |admission| &admission.pod_set_assignments)
    }

    fn admitted(&self, set: &str) -> i32 {
        self.holder.status.admission.as_ref().map_or(0, |admission| admitted_in(admission, set))
    }

    fn open(&self, set: &str) -> &[&'a Arc<Workload>] {
        self.open.get(set).map_or(&[], Vec::as_slice)
    }

    /// A Parent has what its Variant has, before anything that was folded goes: if it has to hold its quota itself from now on, it
    /// neither loses a replica nor counts one twice.
    fn mirror(&self) -> Option<Resize> {
        let variant = &self.of.variant?.status;
        let own = &self.parent.status;
        if (&own.admission, &own.folded_slices) == (&variant.admission, &variant.folded_slices) {
            return None;
        }
        let mut to = Transition::of(self.parent, self.of.now);
        (to.status.admission, to.status.folded_slices) = (variant.admission.clone(), variant.folded_slices.clone());
        Some(self.status(to, What::Told))
    }

    fn drop_folded(&self) -> Option<Resize> {
        let folded: Vec<_> = self.folded.iter().map(|slice| (*slice).clone()).collect();
        (!folded.is_empty()).then_some(Resize::Delete(folded, Gone::Folded))
    }

    fn withdraw(&self) -> Option<Resize> {
        let mut unwanted = Vec::new();
        for set in self.wanted {
            let open = self.open(&set.name);
            let mut excess = self.admitted(&set.name) + replicas(open) - set.count;
            for newest in open.iter().rev() {
                if excess <= 0 {
                    break;
                }
                excess -= replicas(&[*newest]);
                unwanted.push((*newest).clone());
            }
        }
        (!unwanted.is_empty()).then_some(Resize::Delete(unwanted, Gone::Withdrawn))
    }

    /// Nothing runs on what a slice holds: told to leave (by a check, say), it gives that back at once.
    fn release(&self) -> Option<Resize> {
        let mut open = self.open.values().flatten();
        let leaves = open.find(|s| s.is(WorkloadCondition::Evicted) && s.is(WorkloadCondition::QuotaReserved))?;
        let evicted = conditions::find(&leaves.status.conditions, WorkloadCondition::Evicted.as_str())?;
        let again = evicted.reason == EvictionReason::Preempted.as_str();
        let to = Transition::of(leaves, self.of.now).requeued(again, &evicted.reason, &evicted.message);
        let to = to.quota_released(&evicted.message);
        Some(Resize::Release((*leaves).clone(), Box::new(to.status)))
    }

    fn fold(&self) -> Option<Resize> {
        let ready: Vec<&Arc<Workload>> = (self.wanted.iter())
            .flat_map(|set| self.open(&set.name).iter().copied())
            .filter(|slice| slice.is(WorkloadCondition::Admitted) && !slice.is(WorkloadCondition::Evicted))
            .collect();
        if ready.is_empty() {
            return None;
        }
        let mut to = Transition::of(self.holder, self.of.now);
        let admission = to.status.admission.as_mut()?;
        for slice in &ready {
            let got = slice.status.admission.as_ref()?.pod_set_assignments.first()?;
            let of = admission.pod_set_assignments.iter_mut().find(|a| a.name == got.name)?;
            of.count = Some(of.count.unwrap_or(0).saturating_add(got.count.unwrap_or(0)));
            for (resource, more) in &got.resource_usage {
                let total = of.resource_usage.entry(resource.clone()).or_insert(*more);
                if self.assignments().iter().any(|a| a.name == got.name && a.resource_usage.contains_key(resource)) {
                    *total = milli(total.milli().saturating_add(more.milli()), *total);
                }
            }
        }
        // Those that are gone are forgotten with the same write.
        self.forget_gone(&mut to);
        to.status.folded_slices.extend(ready.iter().map(|slice| uid(slice).to_owned()));
        Some(self.held(to, What::Folded(ready.len())))
    }

    fn forget_gone(&self, to: &mut Transition) {
        let there: HashSet<&str> = self.slices.iter().map(|slice| uid(slice)).collect();
        to.status.folded_slices.retain(|folded| there.contains(folded.as_str()));
    }

    fn scale_down(&self) -> Option<Resize> {
        if self.wanted.iter().all(|set| set.count >= self.admitted(&set.name)) {
            return None;
        }
        let mut to = Transition::of(self.holder, self.of.now);
        for of in &mut to.status.admission.as_mut()?.pod_set_assignments {
            let had = of.count.unwrap_or(0);
            let wanted = self.wanted.iter().find(|set| set.name == of.name).map_or(had, |set| set.count);
            if wanted < had {
                of.count = Some(wanted);
                for total in of.resource_usage.values_mut() {
                    *total = milli(total.milli() / i64::from(had) * i64::from(wanted), *total);
                }
            }
        }
        // Pods that were done with are part of those that go.
        to.status.reclaimable_pods.clear();
        Some(self.held(to, What::ScaledDown))
    }

    /// A scale-up is told before the first slice: however fast they are, everybody can see when it began.
    fn announce(&self) -> Option<Resize> {
        let lacks = |set: &PodSet| self.admitted(&set.name) < set.count;
        let told = self.parent.is(WorkloadCondition::ResizeRequested);
        (!told && self.wanted.iter().any(lacks))
            .then(|| self.status(Transition::of(self.parent, self.of.now), What::Told))
    }

    fn create(&self) -> Option<Resize> {
        let taken: BTreeSet<u64> = self.slices.iter().map(|slice| number(slice)).collect();
        let mut free = (1..).filter(|n| !taken.contains(n));
        let mut missing = Vec::new();
        for set in self.wanted {
            let mut have = self.admitted(&set.name) + replicas(self.open(&set.name));
            while have < set.count {
                let pods = self.size(&set.name).min(set.count - have);
                missing.push(self.slice(set, pods, free.next()?));
                have += pods;
            }
        }
        (!missing.is_empty()).then_some(Resize::Create(missing))
    }

    /// One more replica of a pod set, with all that its parent is queued with.
    fn slice(&self, set: &PodSet, count: i32, number: u64) -> Workload {
        let (meta, spec) = (&self.parent.metadata, &self.parent.spec);
        let (name, parent_uid) = (meta.name.clone().unwrap_or_default(), uid(self.parent).to_owned());
        let owner = OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: "Workload".to_owned(),
            name: name.clone(),
            uid: parent_uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let template = spec.pod_sets.iter().find(|own| own.name == set.name).unwrap_or(set).template.clone();
        Workload {
            metadata: ObjectMeta {
                name: Some(names::slice(&name, &parent_uid, &format!("{}-{number}", set.name))),
                namespace: meta.namespace.clone(),
                labels: Some([(label::WORKLOAD_SLICE.to_owned(), keys::TRUE.to_owned())].into()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: WorkloadSpec {
                pod_sets: vec![PodSet { name: set.name.clone(), template, count, ..PodSet::default() }],
                maximum_execution_time_seconds: None,
                preemption_gates: Vec::new(),
                ..spec.clone()
            },
            status: WorkloadStatus::default(),
        }
    }

    /// Pod set by pod set: one may have its size while another waits.
    fn settle_spec(&self) -> Option<Resize> {
        let mut to = self.parent.spec.clone();
        for own in &mut to.pod_sets {
            let admitted = self.admitted(&own.name);
            if self.wanted.iter().any(|set| set.name == own.name && set.count == admitted) {
                own.count = admitted;
            }
        }
        (to != self.parent.spec).then(|| Resize::Spec(Box::new(to)))
    }

    fn settle_variant(&self) -> Option<Resize> {
        let mut to = Transition::of(self.of.variant?, self.of.now);
        self.forget_gone(&mut to);
        let changed = self.open.is_empty() && to.status != self.holder.status;
        changed.then(|| self.held(to, What::Told))
    }

    fn settle_status(&self) -> Option<Resize> {
        let mut to = Transition::of(self.parent, self.of.now);
        // While more are to be folded, that write forgets those that are gone.
        if self.open.is_empty() && self.of.variant.is_none() {
            self.forget_gone(&mut to);
        }
        let told = self.told(to);
        (told.status != self.parent.status).then(|| Resize::Status(Box::new(told.status), What::Told))
    }

    /// A change of what counts for quota.
    fn held(&self, to: Transition, what: What) -> Resize {
        match self.of.variant {
            None => self.status(to, what),
            Some(_) => Resize::Held(Box::new(to.status), what),
        }
    }

    fn status(&self, to: Transition, what: What) -> Resize {
        Resize::Status(Box::new(self.told(to).status), what)
    }

    /// Pods of one replica.
    fn size(&self, set: &str) -> i32 {
        (self.of.replica_size)(set).max(1)
    }

    /// The condition ResizeRequested, as it is to be after this change of the status.
    fn told(&self, to: Transition) -> Transition {
        let admission = to.status.admission.clone().unwrap_or_default();
        let began = conditions::find(&to.status.conditions, WorkloadCondition::ResizeRequested.as_str()).is_some();
        let (mut added, mut of, mut replicas) = (0, 0, 0);
        let (mut wanted, mut same) = (0, true);
        for set in self.wanted {
            let got = admitted_in(&admission, &set.name);
            let before = self.parent.spec.pod_sets.iter().find(|own| own.name == set.name).map_or(0, |own| own.count);
            let size = self.size(&set.name);
            if got < set.count {
                of += (set.count - before).max(set.count - got) / size;
            } else {
                of += (set.count - before).max(0) / size;
            }
            added += (got.min(set.count) - before).max(0) / size;
            replicas += set.count / size;
            wanted += set.count;
            same &= before == set.count;
        }
        if self.wanted.iter().any(|set| admitted_in(&admission, &set.name) < set.count) {
            let message = format!("{added} of {of} added replicas admitted, {}", self.waited_for(&admission));
            return to.resizing(true, ResizeReason::ScaleUp, &message);
        }
        if self.of.pods_now > wanted && (began || !same) {
            let left = self.of.pods_now - wanted;
            let message = format!("{left} pods above the new size of {wanted} are still there");
            return to.resizing(true, ResizeReason::ScaleDown, &message);
        }
        if !began && same {
            return to;
        }
        to.resizing(false, ResizeReason::Resized, &format!("All {replicas} replicas are admitted"))
    }

    /// `waiting for 2 gpu in flavor spot`.
    fn waited_for(&self, admission: &Admission) -> String {
        let mut parts = Vec::new();
        for got in &admission.pod_set_assignments {
            let Some(set) = self.wanted.iter().find(|set| set.name == got.name) else { continue };
            let missing = i64::from(set.count - got.count.unwrap_or(0));
            if missing <= 0 {
                continue;
            }
            for (resource, each) in requested(set, got) {
                let flavor = got.flavors.get(&resource).map_or("", String::as_str);
                let amount = milli(each.milli().saturating_mul(missing), each);
                parts.push(format!("{amount} {resource} in flavor {flavor}"));
            }
        }
        let rejected = self.open.values().flatten().filter(|slice| !slice.is_active()).count();
        let rejected = match rejected {
            0 => String::new(),
            count => format!("; {count} rejected by their admission checks"),
        };
        if parts.is_empty() {
            format!("waiting{rejected}")
        } else {
            format!("waiting for {}{rejected}", parts.join(", "))
        }
    }
}

/// What one pod takes of what its pod set has flavors for.
fn requested(set: &PodSet, got: &PodSetAssignment) -> Vec<(String, Quantity)> {
    match i64::from(got.count.unwrap_or(0)) {
        // With none admitted, nothing tells but its template.
        ..=0 => {
            let asked = requests::of(&set.template.spec.clone().unwrap_or_default());
            asked.into_iter().filter(|(resource, _)| got.flavors.contains_key(resource)).collect()
        }
        count => {
            let each = |total: &Quantity| milli(total.milli() / count, *total);
            got.resource_usage.iter().map(|(resource, total)| (resource.clone(), each(total))).collect()
        }
    }
}

fn admitted_in(admission: &Admission, set: &str) -> i32 {
    admission.pod_set_assignments.iter().find(|a| a.name == set).and_then(|a| a.count).unwrap_or(0)
}

fn set_of(slice: &Workload) -> Option<&str> {
    slice.spec.pod_sets.first().map(|set| set.name.as_str())
}

fn replicas(slices: &[&Arc<Workload>]) -> i32 {
    slices.iter().flat_map(|slice| &slice.spec.pod_sets).map(|set| set.count).sum()
}

/// So many thousandths, written as `like` is.
fn milli(amount: i64, like: Quantity) -> Quantity {
    if amount % 1000 == 0 {
        Quantity::from_units(amount / 1000, like.format())
    } else {
        Quantity::from_milli(amount, like.format())
    }
}
