//! The nouns of the store and the ways its operations end.

use std::{io, path::PathBuf, sync::Arc};

use bytes::Bytes;

/// One version of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: Arc<str>,
    /// The revision of the write that brought the key into being, kept by later puts until a delete.
    pub create_revision: u64,
    /// The revision of the write that made this version.
    pub mod_revision: u64,
    /// Kept as given: a slice of a larger buffer keeps that buffer alive.
    pub value: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Put,
    Delete,
}

/// What one revision did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub revision: u64,
    pub kind: Kind,
    /// The new version. For a delete: the last value, with the deletion's revision as its `mod_revision`.
    pub entry: Arc<Entry>,
    /// The version before, if the key existed.
    pub prev: Option<Arc<Entry>>,
}

impl Event {
    pub fn key(&self) -> &str {
        &self.entry.key
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Put(Bytes),
    Delete,
}

/// What the writer believes about the key. A belief that does not hold refuses the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key exists and was last written at this revision.
    Revision(u64),
    /// Nothing. A put creates or replaces; a delete still needs something to delete.
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub revision: u64,
    /// As in [`Event::entry`].
    pub entry: Arc<Entry>,
    pub prev: Option<Arc<Entry>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error("key {} is at revision {}", current.key, current.mod_revision)]
    Conflict { current: Arc<Entry> },
    /// A delete, or a write that expected a revision, found no such key.
    #[error("key not found")]
    NotFound,
    /// The write did not reach the disk. Nothing was changed; it may be tried again.
    #[error("the write could not be stored: {0}")]
    Failed(Arc<str>),
    #[error("the store is closed")]
    Closed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only keys that begin with this; empty for all.
    pub prefix: String,
    /// Only keys after this one: the last key of the page before.
    pub start_after: Option<String>,
    pub limit: Option<usize>,
    /// The state at exactly this revision; `None` for now.
    pub at: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys.
    pub entries: Vec<Arc<Entry>>,
    /// The revision whose state this is.
    pub revision: u64,
    /// How many entries come after this page.
    pub remaining: usize,
}

impl Page {
    pub fn more(&self) -> bool {
        self.remaining > 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Compacted(#[from] Compacted),
    #[error("revision {requested} is in the future, the store is at {current}")]
    Future { requested: u64, current: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} has been compacted, the oldest one kept is {compacted}")]
pub struct Compacted {
    pub requested: u64,
    pub compacted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store is closed")]
pub struct Closed;

/// The bounds on history that hold without anyone asking for compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub max_events: usize,
    /// How many bytes of values that are no longer current the history may keep alive.
    pub max_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { max_events: 100_000, max_bytes: 32 << 20 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    pub revision: u64,
    pub compacted: u64,
    /// Number of current keys, by collection, in the order of their names.
    pub collections: Vec<(Arc<str>, usize)>,
    pub history_events: usize,
    /// Bytes of values that only the history keeps.
    pub history_bytes: usize,
    /// Size of the database file; 0 in memory.
    pub disk_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} was written in format {found} by a newer version, this one knows formats up to {supported}", path.display())]
    Newer { path: PathBuf, found: u64, supported: u64 },
    #[error("{} is in use by another process", path.display())]
    Locked { path: PathBuf },
    #[error("{} is damaged: {why}", path.display())]
    Corrupt { path: PathBuf, why: String },
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}
