//! The durable log beneath the store: records at rising revisions, committed in batches.
//!
//! An engine stores and replays; it compares no revisions, answers no reads and wakes no one. Whatever implements
//! [`Engine`] must pass [`crate::conformance`].

mod disk;
mod memory;
mod record;
mod volume;

pub use disk::{Disk, FILE_NAME};
pub use memory::Memory;
pub use record::Record;

use crate::{Kind, OpenError};

pub trait Engine: Send {
    /// Whether `commit` waits for a device. Such an engine gets a thread of its own; the others commit on the task that
    /// writes.
    fn blocks(&self) -> bool;

    /// The compaction revision that the last commit recorded; 0 when there was none.
    fn compacted(&mut self) -> Result<u64, OpenError>;

    /// Shows every record of the log by rising revision. Called once, before the first commit. An `Err` from `visit` says what is wrong with the record.
    fn replay(&mut self, visit: &mut dyn FnMut(Record<'_>) -> Result<(), String>) -> Result<(), OpenError>;

    /// Applies the change durably and as a whole. On an error nothing of it may show in a later replay that follows a
    /// successful commit, and a later commit may succeed.
    fn commit(&mut self, change: &Change<'_>) -> Result<(), CommitError>;

    fn size_bytes(&self) -> u64;
}

/// One step of the log.
#[derive(Debug)]
pub struct Change<'a> {
    /// The last revision that the store has published. Records above it are left over from a failed commit.
    pub base: u64,
    /// Rising revisions above `base`, without a hole.
    pub append: &'a [Record<'a>],
    /// Revisions whose records nobody needs any more, in no order. Some may be gone already.
    pub forget: &'a [u64],
    pub compacted: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CommitError(pub String);
