//! Which workloads are Variants of one Parent, in which order, and how far they may move: what the scheduler knows as a group.
//!
//! Siblings share the time and the place of their Parent, so that they stand side by side in line, best first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use usher_api::kueue::Workload;
use usher_api::kueue::concurrent::{Mode, Policy};
use usher_api::kueue::conditions::WorkloadCondition;
use usher_sched::model::{GroupId, Migration, Time};
use usher_sched::names::Interner;

use crate::queueing::variants::{decide, make};
use crate::runtime::Key;

#[derive(Default)]
pub(super) struct Families {
    /// Numbers of groups, by the uid of the Parent.
    ids: Interner,
    /// By the name of the ClusterQueue.
    policies: BTreeMap<String, Policy>,
    parents: BTreeMap<Key, Parent>,
    members: BTreeMap<String, BTreeSet<Key>>,
    /// What the scheduler was told of each group.
    told: BTreeMap<GroupId, Migration>,
}

struct Parent {
    object: Arc<Workload>,
    queued_at: Time,
}

impl Parent {
    fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }
}

/// Where a Variant stands among its siblings.
pub(super) struct Place {
    pub group: GroupId,
    pub sibling: u32,
    /// What the scheduler does not know yet.
    pub news: Option<Migration>,
    /// When its Parent was queued, if that is known.
    pub queued_at: Option<Time>,
    /// It does not try yet, and will: its Parent keeps its place in line through it.
    pub is_to_come: bool,
}

impl Families {
    /// Says whether the policy is another one now.
    pub fn set_policy(&mut self, queue: &str, policy: Option<Policy>) -> bool {
        if self.policies.get(queue) == policy.as_ref() {
            return false;
        }
        match policy {
            Some(policy) => drop(self.policies.insert(queue.to_owned(), policy)),
            None => drop(self.policies.remove(queue)),
        }
        true
    }

    pub fn variants_of(&self, queue: &str) -> impl Iterator<Item = &str> {
        self.policies.get(queue).into_iter().flat_map(|policy| &policy.variants).map(|variant| variant.name.as_str())
    }

    /// Whether its Variants will stand in line for it.
    pub fn is_represented(&self, object: &Workload, queue: Option<&String>) -> bool {
        queue.is_some_and(|queue| self.policies.contains_key(queue)) && make::has_variants(object)
    }

    /// Takes note of a Parent; its Variants, if they are to be told again.
    pub fn parent(&mut self, key: &Key, object: &Arc<Workload>, queued_at: Time) -> Vec<Key> {
        let parent = Parent { object: object.clone(), queued_at };
        let said = |parent: &Parent| (parent.uid().to_owned(), parent.queued_at, waits(&parent.object));
        let (before, now) = (self.parents.get(key).map(said), said(&parent));
        self.parents.insert(key.clone(), parent);
        if before.as_ref() == Some(&now) {
            return Vec::new();
        }
        self.members.get(&now.0).into_iter().flatten().cloned().collect()
    }

    /// A Parent as it was last seen.
    pub fn known(&self, key: &Key) -> Option<&Arc<Workload>> {
        self.parents.get(key).map(|parent| &parent.object)
    }

    pub fn variant(&mut self, key: &Key, object: &Workload, queue: Option<&String>) -> Option<Place> {
        let owners = object.metadata.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|owner| Some(owner.uid.as_str()) == object.parent_uid())?;
        self.members.entry(owner.uid.clone()).or_default().insert(key.clone());
        let group = GroupId(self.ids.id(&owner.uid));
        let policy = queue.and_then(|queue| self.policies.get(queue));
        let rank = policy.and_then(|policy| policy.rank(make::variant_name(object)));
        let migration = policy.map_or(Migration::Never, migration);
        let news = (self.told.insert(group, migration) != Some(migration)).then_some(migration);
        let parent = self.parents.get(&Key::new(&key.namespace, &owner.name)).filter(|known| known.uid() == owner.uid);
        Some(Place {
            group,
            sibling: rank.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(u32::MAX),
            news,
            queued_at: parent.map(|parent| parent.queued_at),
            is_to_come: parent.is_some_and(|parent| is_to_come(&parent.object, object)),
        })
    }

    /// It is no Parent any longer, or gone.
    pub fn forget_parent(&mut self, key: &Key) {
        self.parents.remove(key);
    }

    pub fn forget_variant(&mut self, key: &Key, object: &Workload) {
        let Some(uid) = object.parent_uid() else { return };
        let Some(members) = self.members.get_mut(uid) else { return };
        members.remove(key);
        if members.is_empty() {
            self.members.remove(uid);
            self.told.remove(&GroupId(self.ids.id(uid)));
            self.ids.release(uid);
        }
    }
}

/// Whether a Parent waits for quota, and nothing but that keeps it from running.
fn waits(parent: &Workload) -> bool {
    !parent.is(WorkloadCondition::QuotaReserved) && !decide::rests(parent)
}

/// A Variant is inactive though its Parent waits: its delay is not over, or it is about to be activated. One that was rejected stays out.
fn is_to_come(parent: &Workload, variant: &Workload) -> bool {
    waits(parent) && !variant.is_active() && !decide::is_rejected(variant)
}

fn migration(policy: &Policy) -> Migration {
    match (policy.mode, policy.targets) {
        (Mode::NoMigration, _) | (_, 0) => Migration::Never,
        (Mode::UpgradeOnly, targets) => {
            let last = u32::try_from(targets - 1).unwrap_or(u32::MAX);
            Migration::Upgrade { down_to: (targets < policy.variants.len()).then_some(last) }
        }
    }
}
