//! Revisioned keys with compare-and-swap, watch from a revision, compaction and durability.
//!
//! The store knows nothing of what its values mean. Keys are strings inside a *collection* (a string too, created on
//! first use); values are bytes. Every accepted write takes the next number of one global *revision*.
//!
//! What holds at every moment:
//!
//! - **Revisions.** A new store stands at revision 1 and its first write gets 2, so 0 never names a state. Every
//!   revision above [`Store::compacted`] has exactly one event; none is skipped, also not by a failed write.
//! - **Durable before visible, visible before answered.** A write is on disk (one fsync, shared by all writers of the
//!   moment) before any reader or watcher can see it, and it can be read and watched before its writer gets the answer.
//! - **A batch appears at once.** The writes that shared an fsync become visible together, in revision order: a list is
//!   the state at exactly the revision it names.
//! - **A failed write changed nothing.** When a commit fails, every write of its batch is answered
//!   [`WriteError::Failed`], memory is as before, reads and watches go on, and the next write tries the disk anew. After
//!   a crash in that moment the write may turn out to have happened; the answer promised neither.
//! - **Watches neither skip nor repeat.** A [`Watch`] holds a cursor and reads the shared history when polled. A reader
//!   that stalls costs no memory; one that falls behind compaction is told so ([`WatchEnd::Expired`]).
//! - **Restarts are invisible.** Opening rebuilds values, revisions and the retained history, so watches and
//!   continued lists survive a restart.
//! - **Compaction may stop anywhere.** Old records leave the log in small steps, a deletion never before the versions
//!   that it deleted, so a crash in between brings nothing back.
//!
//! What is absent: clocks (age-based compaction is the caller calling [`Store::compact`]), transactions over several
//! keys, and, with the memory engine, threads: there a write happens on the caller's task, so that a runtime with
//! paused time never waits for something it cannot see.
//!
//! Start reading at [`Store`]; `writer` orders the writes, `state` is what readers see, [`engine`] is the log.

pub mod conformance;
pub mod engine;
mod model;
mod state;
mod store;
mod watch;
mod writer;

pub use model::{
    Closed, Compacted, Entry, Event, Expect, Kind, ListError, ListOptions, Op, OpenError, Options, Page, Stats,
    WriteError, Written,
};
pub use store::Store;
pub use watch::{Batch, Watch, WatchEnd};
