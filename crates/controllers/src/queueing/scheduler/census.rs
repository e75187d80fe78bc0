//! How many Variants of each kind try for quota or have it, by queue: what `kueue_variant_*` shows. Kept as things change, so that a look
//! costs the same however many there are.

use std::collections::BTreeMap;

use usher_api::kueue::Workload;
use usher_api::kueue::conditions::WorkloadCondition;

use crate::queueing::variants::make;
use crate::runtime::Key;

#[derive(Default)]
pub(super) struct Census {
    members: BTreeMap<Key, Member>,
    queues: BTreeMap<String, BTreeMap<String, Tries>>,
}

/// How many Variants of one kind in one queue are active, and how many are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    pub active: usize,
    pub admitted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    queue: String,
    variant: String,
    adds: Tries,
}

impl Census {
    /// Takes note of a Variant in a queue; says whether a number has changed.
    pub fn seen(&mut self, key: &Key, object: &Workload, queue: Option<&String>) -> bool {
        let member = queue.map(|queue| Member {
            queue: queue.clone(),
            variant: make::variant_name(object).to_owned(),
            adds: Tries {
                active: usize::from(object.is_active()),
                admitted: usize::from(object.is(WorkloadCondition::Admitted)),
            },
        });
        if self.members.get(key) == member.as_ref() {
            return false;
        }
        self.gone(key);
        if let Some(member) = member {
            let tries = self.queues.entry(member.queue.clone()).or_default().entry(member.variant.clone()).or_default();
            tries.active += member.adds.active;
            tries.admitted += member.adds.admitted;
            self.members.insert(key.clone(), member);
        }
        true
    }

    pub fn gone(&mut self, key: &Key) {
        let Some(member) = self.members.remove(key) else { return };
        let Some(variants) = self.queues.get_mut(&member.queue) else { return };
        if let Some(tries) = variants.get_mut(&member.variant) {
            tries.active -= member.adds.active;
            tries.admitted -= member.adds.admitted;
        }
        variants.retain(|_, tries| *tries != Tries::default());
        if variants.is_empty() {
            self.queues.remove(&member.queue);
        }
    }

    /// By the name of the variant; those that nobody tries are left out.
    pub fn of(&self, queue: &str) -> impl Iterator<Item = (&str, Tries)> {
        self.queues.get(queue).into_iter().flatten().map(|(name, tries)| (name.as_str(), *tries))
    }
}
