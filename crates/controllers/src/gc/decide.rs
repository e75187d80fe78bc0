//! What to do about one object, given what the server says of it and of its owners.

use crate::runtime::{Meta, OwnerRef};

use super::graph::{FOREGROUND, Identity, ORPHAN, Snapshot, Uid, Waiting};

/// What the server says about an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Not there, or there with another uid.
    Absent,
    Solid,
    /// In foreground deletion: it waits for this object, among others.
    WaitsForDependents,
}

impl Owner {
    pub fn of(live: Option<&Meta>, reference: &OwnerRef) -> Owner {
        match live {
            Some(meta) if meta.uid != reference.uid => Owner::Absent,
            Some(meta) if meta.being_deleted() && meta.has_finalizer(FOREGROUND) => Owner::WaitsForDependents,
            Some(_) => Owner::Solid,
            None => Owner::Absent,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Background,
    Foreground,
    Orphan,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Leave,
    /// The graph is behind: there is no such object any more.
    Gone,
    /// Nothing holds the object in foreground deletion any longer.
    RemoveFinalizer,
    /// These dependents hold the object in foreground deletion: examine them.
    Press(Vec<Uid>),
    /// It has an owner; these references must go all the same.
    DropReferences(Vec<Uid>),
    /// `unblock`: first let go of its owners, which may wait for it in a circle.
    Delete {
        policy: Policy,
        unblock: bool,
    },
}

/// Deciding in two steps, because owners are only asked about when it matters.
#[derive(Debug, PartialEq, Eq)]
pub enum Triage {
    Decided(Decision),
    AskOwners,
}

/// Whether the object need not even be looked up: it is on its way out and waits for nobody.
pub fn is_leaving(node: &Snapshot) -> bool {
    node.being_deleted && node.waiting != Some(Waiting::Foreground)
}

pub fn triage(node: &Snapshot, live: Option<&Meta>) -> Triage {
    let Some(live) = live.filter(|meta| meta.uid == node.identity.uid) else { return Triage::Decided(Decision::Gone) };
    if node.waiting == Some(Waiting::Foreground) {
        return Triage::Decided(finish_foreground(node));
    }
    match live.owner_references.is_empty() {
        true => Triage::Decided(Decision::Leave),
        false => Triage::AskOwners,
    }
}

fn finish_foreground(node: &Snapshot) -> Decision {
    let mut blocking = node.dependents.iter().filter(|d| d.blocks).peekable();
    if blocking.peek().is_none() {
        return Decision::RemoveFinalizer;
    }
    Decision::Press(blocking.filter(|d| !d.in_foreground).map(|d| d.identity.uid.clone()).collect())
}

pub fn decide(node: &Snapshot, live: &Meta, owners: &[(OwnerRef, Owner)]) -> Decision {
    let any = |state| owners.iter().any(|(_, owner)| *owner == state);
    if any(Owner::Solid) {
        // References to owners that wait must go as well, or those would wait for ever.
        let loose = owners.iter().filter(|(_, owner)| *owner != Owner::Solid);
        let loose: Vec<Uid> = loose.map(|(reference, _)| reference.uid.clone()).collect();
        return if loose.is_empty() { Decision::Leave } else { Decision::DropReferences(loose) };
    }
    if any(Owner::WaitsForDependents) && !node.dependents.is_empty() {
        let unblock = node.dependents.iter().any(|d| d.in_foreground);
        return Decision::Delete { policy: Policy::Foreground, unblock };
    }
    let policy = match live {
        live if live.has_finalizer(ORPHAN) => Policy::Orphan,
        live if live.has_finalizer(FOREGROUND) => Policy::Foreground,
        _ => Policy::Background,
    };
    Decision::Delete { policy, unblock: false }
}

/// The event's text for a reference into another namespace.
pub fn misplaced_message(dependent: &Identity, reference: &OwnerRef) -> String {
    let claimed = Identity::claimed(reference, &dependent.namespace);
    format!("ownerRef {claimed} does not exist in namespace {:?}", dependent.namespace)
}
