//! What the controller remembers between two looks at a Job: which of its own writes the caches must show before it
//! decides again, and the row of failures behind the back-off.
//!
//! Nothing here is needed after a restart: the caches are then filled by lists that show every earlier write, and the row
//! of failures is read off the pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::decide::backoff::Record;
use crate::runtime::Key;

/// One Job's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub uid: Arc<str>,
    pub record: Option<Record>,
    /// The newest revisions of the Job and of pods that came of its own writes.
    pub job_revision: u64,
    pub pod_revision: u64,
    /// Pods that were deleted, by uid: at once or gracefully, the cache must show it.
    pub deleted: BTreeMap<Key, Arc<str>>,
    /// Pods that may have gone with their finalizer, by uid: the cache must show them gone or without it. Until then they
    /// look as if they were not counted.
    pub stripped: BTreeMap<Key, Arc<str>>,
    /// A creation was not answered: whether there is a pod must be asked.
    pub unsure: bool,
}

/// What a cache shows of a pod: its uid, whether it is being deleted, and whether it has the tracking finalizer.
pub struct Shown {
    pub uid: Arc<str>,
    pub being_deleted: bool,
    pub tracked: bool,
}

/// The kind whose cache is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    Jobs,
    Pods,
}

impl Memory {
    pub fn of(uid: &str) -> Memory {
        Memory { uid: uid.into(), ..Memory::default() }
    }

    /// Whether the caches, which show all up to the given revisions, are older than what was written.
    pub fn behind(&mut self, jobs: u64, pods: u64, shown: impl Fn(&Key) -> Option<Shown>) -> Option<Behind> {
        if jobs < self.job_revision {
            return Some(Behind::Jobs);
        }
        self.deleted.retain(|key, uid| shown(key).is_some_and(|pod| pod.uid == *uid && !pod.being_deleted));
        self.stripped.retain(|key, uid| shown(key).is_some_and(|pod| pod.uid == *uid && pod.tracked));
        let awaits = !self.deleted.is_empty() || !self.stripped.is_empty();
        (pods < self.pod_revision || awaits).then_some(Behind::Pods)
    }

    pub fn wrote_job(&mut self, revision: &str) {
        self.job_revision = self.job_revision.max(revision.parse().unwrap_or(0));
    }

    pub fn wrote_pod(&mut self, revision: &str) {
        self.pod_revision = self.pod_revision.max(revision.parse().unwrap_or(0));
    }

    /// A pod has lost its finalizer: at `revision`, or at one that nobody told because it may be gone.
    pub fn stripped(&mut self, pod: Key, uid: &str, revision: Option<&str>) {
        match revision {
            Some(revision) => self.wrote_pod(revision),
            None => drop(self.stripped.insert(pod, uid.into())),
        }
    }
}

/// Every Job's. A Job is worked on by one worker at a time, so nobody else writes a memory that was taken.
#[derive(Default)]
pub struct Memories(Mutex<BTreeMap<Key, Memory>>);

impl Memories {
    /// The memory of the Job of this uid; of an earlier Job of the same name nothing is remembered.
    pub fn recall(&self, key: &Key, uid: &str) -> Memory {
        self.0.lock().get(key).filter(|memory| &*memory.uid == uid).cloned().unwrap_or_else(|| Memory::of(uid))
    }

    pub fn keep(&self, key: &Key, memory: Memory) {
        self.0.lock().insert(key.clone(), memory);
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    pub fn keys(&self) -> Vec<Key> {
        self.0.lock().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_must_show_what_was_written() {
        let mut memory = Memory::of("u");
        memory.wrote_job("7");
        memory.wrote_pod("9");
        memory.wrote_pod("8");
        let none = |_: &Key| None;
        assert_eq!(memory.behind(6, 9, none), Some(Behind::Jobs));
        assert_eq!(memory.behind(7, 8, none), Some(Behind::Pods));
        assert_eq!(memory.behind(7, 9, none), None);
    }

    #[test]
    fn a_deleted_pod_is_awaited_until_it_is_gone_replaced_or_marked() {
        let shown = |uid: &str, being_deleted| Some(Shown { uid: uid.into(), being_deleted, tracked: false });
        let key = Key::new("n", "p");
        for (cache, behind) in [
            (("a", false, true), Some(Behind::Pods)),
            (("a", true, true), None),
            (("b", false, true), None),
            (("", false, false), None),
        ] {
            let mut memory = Memory::of("u");
            memory.deleted.insert(key.clone(), "a".into());
            let (uid, being_deleted, there) = cache;
            assert_eq!(memory.behind(0, 0, |_| shown(uid, being_deleted).filter(|_| there)), behind, "{cache:?}");
        }
    }

    #[test]
    fn a_pod_that_may_have_gone_with_its_finalizer_is_awaited_until_it_is_gone_replaced_or_without_it() {
        let key = Key::new("n", "p");
        for (cache, behind) in [
            (Some(("a", true)), Some(Behind::Pods)),
            (Some(("a", false)), None),
            (Some(("b", true)), None),
            (None, None),
        ] {
            let mut memory = Memory::of("u");
            memory.stripped(key.clone(), "a", None);
            let shown = |_: &Key| cache.map(|(uid, tracked)| Shown { uid: uid.into(), being_deleted: true, tracked });
            assert_eq!(memory.behind(0, 0, shown), behind, "{cache:?}");
        }
    }

    #[test]
    fn a_new_job_of_an_old_name_is_met_without_prejudice() {
        let (memories, key) = (Memories::default(), Key::new("n", "j"));
        memories.keep(&key, Memory { job_revision: 5, ..Memory::of("old") });
        assert_eq!(memories.recall(&key, "old").job_revision, 5);
        assert_eq!(memories.recall(&key, "new"), Memory::of("new"));
    }
}
