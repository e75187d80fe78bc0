//! Who owns whom: one node per uid, built from what the watches tell. Pure; it says what must be looked at, and does not
//! look.
//!
//! An owner that has been referred to but not yet seen is a *virtual* node, whose coordinates are only somebody's claim.
//! Claims may disagree with each other and with the truth; each is checked with the server before anything is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::runtime::{Meta, OwnerRef, Resource};

pub type Uid = Arc<str>;

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";
/// How many owners are remembered as absent, as upstream.
const ABSENT_KEPT: usize = 500;

/// An object's coordinates. Ordered by kind, version, namespace, name, uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub kind: Arc<str>,
    pub api_version: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Uid,
}

/// As upstream prints it in events.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { kind, api_version, namespace, name, uid } = self;
        write!(f, "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}

impl Identity {
    pub fn of(resource: &Resource, meta: &Meta) -> Identity {
        Identity {
            kind: resource.kind.clone(),
            api_version: resource.api_version.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        }
    }

    /// What `reference`, found on an object in `namespace`, claims.
    pub fn claimed(reference: &OwnerRef, namespace: &Arc<str>) -> Identity {
        Identity {
            kind: reference.kind.clone(),
            api_version: reference.api_version.clone(),
            namespace: namespace.clone(),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
        }
    }

    fn matches(&self, reference: &OwnerRef) -> bool {
        self.uid == reference.uid
            && self.name == reference.name
            && self.kind == reference.kind
            && self.api_version == reference.api_version
    }

    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// What the deletion of an object waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// `foregroundDeletion`: its dependents are to be deleted first.
    Foreground,
    /// `orphan`: its dependents are to be released first.
    Orphan,
}

pub fn waiting(meta: &Meta) -> Option<Waiting> {
    match meta.being_deleted() {
        true if meta.has_finalizer(ORPHAN) => Some(Waiting::Orphan),
        true if meta.has_finalizer(FOREGROUND) => Some(Waiting::Foreground),
        _ => None,
    }
}

#[derive(Debug)]
struct Node {
    identity: Identity,
    /// `None` for a virtual node.
    meta: Option<Arc<Meta>>,
    dependents: BTreeSet<Uid>,
}

impl Node {
    fn owners(&self) -> &[OwnerRef] {
        self.meta.as_ref().map_or(&[], |meta| &meta.owner_references)
    }

    fn is_waiting(&self, what: Waiting) -> bool {
        self.meta.as_ref().is_some_and(|meta| waiting(meta) == Some(what))
    }
}

/// What must be looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// Does this virtual owner exist?
    Verify(Uid),
    /// Should this object still exist?
    Examine(Uid),
    /// Release this object's dependents.
    Orphan(Uid),
}

/// What a change of the graph leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub tasks: Vec<Task>,
    /// A dependent and its reference to an owner in another namespace.
    pub misplaced: Vec<(Identity, OwnerRef)>,
}

/// A node as one decision sees it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub identity: Identity,
    pub observed: bool,
    pub being_deleted: bool,
    pub waiting: Option<Waiting>,
    pub dependents: Vec<Dependent>,
}

#[derive(Clone, Debug)]
pub struct Dependent {
    pub identity: Identity,
    /// Whether it holds the owner in foreground deletion.
    pub blocks: bool,
    pub in_foreground: bool,
}

#[derive(Debug, Default)]
pub struct Graph {
    nodes: BTreeMap<Uid, Node>,
    absent: Absent,
}

impl Graph {
    /// A watch showed the object.
    pub fn observe(&mut self, resource: &Resource, meta: Arc<Meta>) -> Effects {
        let mut effects = Effects::default();
        let identity = Identity::of(resource, &meta);
        let uid = meta.uid.clone();
        let old = match self.nodes.get_mut(&uid) {
            None => {
                let node = Node { identity, meta: Some(meta.clone()), dependents: BTreeSet::new() };
                self.nodes.insert(uid.clone(), node);
                None
            }
            Some(node) => {
                let old = node.meta.replace(meta.clone());
                let claimed = std::mem::replace(&mut node.identity, identity.clone());
                if old.is_none() && claimed != identity {
                    self.doubt_mistaken_dependents(&identity, &mut effects);
                }
                old
            }
        };
        let before = old.as_ref().map_or(&[][..], |old| &old.owner_references);
        self.relink(&uid, before, &meta.owner_references, &mut effects);
        self.start_waiting(&uid, old.as_deref().and_then(waiting), waiting(&meta), &mut effects);
        effects
    }

    /// A watch showed that the object is gone.
    pub fn remove(&mut self, resource: &Resource, meta: &Meta) -> Effects {
        let mut effects = Effects::default();
        self.forget(&Identity::of(resource, meta), &mut effects);
        effects
    }

    /// The server said that there is nothing with these coordinates and this uid. No watch said so: the coordinates may
    /// be somebody's mistake.
    pub fn vanished(&mut self, identity: &Identity) -> Effects {
        let mut effects = Effects::default();
        let Some(node) = self.nodes.get(&identity.uid) else { return effects };
        let (right, wrong) = self.partition(&node.dependents, identity);
        if node.meta.is_some() && node.identity == *identity || node.meta.is_none() && wrong.is_empty() {
            self.forget(identity, &mut effects);
            return effects;
        }
        let asked_for = node.meta.is_none() && node.identity == *identity;
        if !right.is_empty() {
            self.absent.add(identity.clone());
            effects.tasks.extend(right.into_iter().map(Task::Examine));
        }
        if asked_for {
            match self.next_claim(&wrong, identity) {
                Some(claim) => {
                    if let Some(node) = self.nodes.get_mut(&identity.uid) {
                        node.identity = claim;
                    }
                    effects.tasks.push(Task::Verify(identity.uid.clone()));
                }
                None => self.forget(identity, &mut effects),
            }
        }
        effects
    }

    /// After a gap in the watch of a kind: an owner that came and went within it would stay virtual for ever.
    pub fn synced(&self, resource: &Resource) -> Vec<Task> {
        let same = |id: &Identity| id.kind == resource.kind && id.group() == resource.id.group;
        let nodes = self.nodes.iter().filter(|(_, node)| node.meta.is_none() && same(&node.identity));
        nodes.map(|(uid, _)| Task::Verify(uid.clone())).collect()
    }

    pub fn snapshot(&self, uid: &str) -> Option<Snapshot> {
        let node = self.nodes.get(uid)?;
        let dependents = node.dependents.iter().filter_map(|dependent| {
            let d = self.nodes.get(dependent)?;
            Some(Dependent {
                identity: d.identity.clone(),
                blocks: d.owners().iter().any(|o| *o.uid == *uid && o.blocks()),
                in_foreground: d.is_waiting(Waiting::Foreground),
            })
        });
        Some(Snapshot {
            identity: node.identity.clone(),
            observed: node.meta.is_some(),
            being_deleted: node.meta.as_ref().is_some_and(|meta| meta.being_deleted()),
            waiting: node.meta.as_deref().and_then(waiting),
            dependents: dependents.collect(),
        })
    }

    /// Whether the owner is known not to exist. Where its kind's scope is unknown, both are tried.
    pub fn is_absent(&mut self, reference: &OwnerRef, namespace: &Arc<str>) -> bool {
        self.absent.has(&Identity::claimed(reference, &"".into()))
            || self.absent.has(&Identity::claimed(reference, namespace))
    }

    pub fn note_absent(&mut self, identity: Identity) {
        self.absent.add(identity);
    }

    pub fn uids(&self) -> impl Iterator<Item = &Uid> {
        self.nodes.keys()
    }

    /// Follows a change of `uid`'s owner references.
    fn relink(&mut self, uid: &Uid, before: &[OwnerRef], after: &[OwnerRef], effects: &mut Effects) {
        let find = |refs: &[OwnerRef], owner: &Uid| refs.iter().find(|r| r.uid == *owner).cloned();
        for old in before {
            let unblocked = old.blocks() && find(after, &old.uid).is_none_or(|new| !new.blocks());
            if unblocked && self.nodes.contains_key(&old.uid) {
                effects.tasks.push(Task::Examine(old.uid.clone()));
            }
        }
        let added: Vec<_> = after.iter().filter(|new| find(before, &new.uid).is_none()).collect();
        self.link(uid, &added, effects);
        for old in before.iter().filter(|old| find(after, &old.uid).is_none()) {
            self.unlink(uid, &old.uid);
        }
    }

    fn link(&mut self, uid: &Uid, owners: &[&OwnerRef], effects: &mut Effects) {
        let Some(dependent) = self.nodes.get(uid).map(|node| node.identity.clone()) else { return };
        let mut doubtful = false;
        for reference in owners {
            let owner = match self.nodes.get_mut(&reference.uid) {
                Some(owner) => owner,
                None => {
                    let identity = Identity::claimed(reference, &dependent.namespace);
                    let owner = Node { identity, meta: None, dependents: BTreeSet::from([uid.clone()]) };
                    self.nodes.insert(reference.uid.clone(), owner);
                    effects.tasks.push(Task::Verify(reference.uid.clone()));
                    continue;
                }
            };
            owner.dependents.insert(uid.clone());
            let (at, observed) = (&owner.identity.namespace, owner.meta.is_some());
            let elsewhere = !at.is_empty() && *at != dependent.namespace;
            if elsewhere && observed {
                effects.misplaced.push((dependent.clone(), (*reference).clone()));
            }
            // A virtual cluster-scoped owner may really be a namespaced one that a cluster-scoped dependent refers to.
            let unsure = at.is_empty() && !dependent.namespace.is_empty() && !observed;
            doubtful |= elsewhere || unsure || !owner.identity.matches(reference);
        }
        if doubtful {
            effects.tasks.push(Task::Examine(uid.clone()));
        }
    }

    fn unlink(&mut self, uid: &Uid, owner: &Uid) {
        let Some(node) = self.nodes.get_mut(owner) else { return };
        node.dependents.remove(uid);
        if node.meta.is_none() && node.dependents.is_empty() {
            self.nodes.remove(owner);
        }
    }

    /// A virtual node turned out to be `truth`: whoever claimed something else must be examined.
    fn doubt_mistaken_dependents(&self, truth: &Identity, effects: &mut Effects) {
        let Some(node) = self.nodes.get(&truth.uid) else { return };
        let (_, wrong) = self.partition(&node.dependents, truth);
        for uid in wrong {
            let Some(dependent) = self.nodes.get(&uid) else { continue };
            if !truth.namespace.is_empty() && dependent.identity.namespace != truth.namespace {
                let reference = dependent.owners().iter().find(|r| r.uid == truth.uid);
                effects.misplaced.extend(reference.map(|r| (dependent.identity.clone(), r.clone())));
            }
            effects.tasks.push(Task::Examine(uid));
        }
    }

    /// The dependents whose references name `owner` rightly, and those with one that does not; some are both.
    fn partition(&self, dependents: &BTreeSet<Uid>, owner: &Identity) -> (Vec<Uid>, Vec<Uid>) {
        let (mut right, mut wrong) = (Vec::new(), Vec::new());
        for uid in dependents {
            let Some(dependent) = self.nodes.get(uid) else { continue };
            if !owner.namespace.is_empty() && owner.namespace != dependent.identity.namespace {
                wrong.push(uid.clone());
                continue;
            }
            let mut to_owner = dependent.owners().iter().filter(|r| r.uid == owner.uid).map(|r| owner.matches(r));
            let matches: Vec<bool> = to_owner.by_ref().collect();
            if matches.contains(&true) {
                right.push(uid.clone());
            }
            if matches.contains(&false) {
                wrong.push(uid.clone());
            }
        }
        (right, wrong)
    }

    /// Another claim about the owner that is not known to be wrong: the next one in order, else the first.
    fn next_claim(&mut self, dependents: &[Uid], refuted: &Identity) -> Option<Identity> {
        let mut claims = BTreeSet::new();
        for dependent in dependents.iter().filter_map(|uid| self.nodes.get(uid)) {
            for reference in dependent.owners().iter().filter(|r| r.uid == refuted.uid) {
                let mut claim = Identity::claimed(reference, &dependent.identity.namespace);
                let same_kind = claim.kind == refuted.kind && claim.api_version == refuted.api_version;
                if refuted.namespace.is_empty() && same_kind {
                    claim.namespace = "".into();
                }
                claims.insert(claim);
            }
        }
        claims.remove(refuted);
        claims.retain(|claim| !self.absent.has(claim));
        claims.range(refuted..).next().or_else(|| claims.first()).cloned()
    }

    fn forget(&mut self, identity: &Identity, effects: &mut Effects) {
        let Some(node) = self.nodes.remove(&identity.uid) else { return };
        if !node.dependents.is_empty() {
            self.absent.add(identity.clone());
        }
        effects.tasks.extend(node.dependents.iter().cloned().map(Task::Examine));
        for reference in node.owners() {
            self.unlink(&identity.uid, &reference.uid);
            if self.nodes.get(&reference.uid).is_some_and(|owner| owner.is_waiting(Waiting::Foreground)) {
                effects.tasks.push(Task::Examine(reference.uid.clone()));
            }
        }
    }

    fn start_waiting(&self, uid: &Uid, old: Option<Waiting>, new: Option<Waiting>, effects: &mut Effects) {
        if old == new {
            return;
        }
        match new {
            Some(Waiting::Orphan) => effects.tasks.push(Task::Orphan(uid.clone())),
            Some(Waiting::Foreground) => {
                let dependents = self.nodes.get(uid).into_iter().flat_map(|node| &node.dependents);
                effects.tasks.extend(dependents.cloned().map(Task::Examine));
                effects.tasks.push(Task::Examine(uid.clone()));
            }
            None => {}
        }
    }
}

/// The owners lately found absent; the least recently used is forgotten first. A uid never comes back.
#[derive(Debug, Default)]
struct Absent {
    used: BTreeMap<Identity, u64>,
    order: BTreeMap<u64, Identity>,
    clock: u64,
}

impl Absent {
    fn add(&mut self, identity: Identity) {
        self.clock += 1;
        if let Some(old) = self.used.insert(identity.clone(), self.clock) {
            self.order.remove(&old);
        }
        self.order.insert(self.clock, identity);
        if self.order.len() > ABSENT_KEPT
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.used.remove(&oldest);
        }
    }

    fn has(&mut self, identity: &Identity) -> bool {
        let known = self.used.contains_key(identity);
        if known {
            self.add(identity.clone());
        }
        known
    }
}
